"""The picture that a run leaves: whole, escaped, small and quick, whatever the run was."""

import html
import math
import re
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import History, Journal, RunState, Trainer
from trainer_nb.core.state import Position
from trainer_nb.panel.screen import as_image
from trainer_nb.panel.still import (MOST, disc_width, measured, numbers_text, smooth, still,
                                    still_runs, still_text)

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '</svg><script>alert("x")</script>&amp; \x00\x1b[1m\n\u202e\ud800 ]]> \'"'


def make_view(records=(), steps=None, name="Net", state=RunState.FINISHED, error=None, epochs=2):
    """A view of a run with these records: name -> values, at steps 1, 2, ..."""
    history = History()
    for record, values in dict(records).items():
        at = np.arange(1, len(values) + 1)
        history.extend(record, at, at / 100, at * 32, at * 0.01, values)
    steps = max([0, *(len(v) for v in dict(records).values())]) if steps is None else steps
    place = Position(
        "train", epochs, epochs, 0, None, steps, steps, steps * 32, steps * 0.01, 1.0, None, steps
    )
    return SimpleNamespace(
        name=name,
        description="cpu",
        state=state,
        position=place,
        error=error, invalid_since=None, averaged=[],
        journal=Journal(),
        history=history,
        branches=[],
        records=lambda since=None, most=None: history.since(since or {}, most),
    )


def parsed(view, **settings):
    """The picture as a tree, after what must hold for each."""
    text = still(view, **settings)
    tree = ElementTree.fromstring(text)
    assert len(text.encode()) < 60_000
    assert tree.tag == f"{SVG}svg" and tree.get("role") == "img"
    assert tree.find(f"{SVG}title").text and tree.find(f"{SVG}desc").text
    assert not re.search(r"[\s(,\">](nan|inf|-inf)[\s,\")]", coordinates(tree))
    assert {element.tag.removeprefix(SVG) for element in tree.iter()} <= {
        *("svg", "title", "desc", "style", "rect", "text", "tspan", "line", "path", "polyline"),
        *("polygon", "g"),
    }
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    return tree


def coordinates(tree):
    """All attributes, where NaN or inf would spoil the drawing."""
    return "\n".join(f'"{value}"' for element in tree.iter() for value in element.attrib.values())


def words(tree):
    """All that can be read, without the tooltips."""
    tips = set(tree.iter(f"{SVG}title"))
    pieces = (
        piece
        for text in tree.iter(f"{SVG}text")
        for element in text.iter()
        for piece in ("" if element in tips else element.text, element.tail)
    )
    return " ".join(" ".join(piece or "" for piece in pieces).split())


# A run that was


@pytest.fixture(scope="module")
def trainer():
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels))
    torch.manual_seed(0)
    trainer = Trainer(
        nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
        train_dl=DataLoader(data, 64, shuffle=True),
        valid_dl={"valid": DataLoader(data, 256), "again": DataLoader(data, 512)},
        loss_fn=nn.CrossEntropyLoss(),
        metrics={"accuracy": lambda pred, target: (pred.argmax(1) == target).float().mean()},
        epochs=3,
        seed=0,
        progress=False,
        device="cpu",
    )
    trainer.fit()
    return trainer


def test_a_run_has_all_its_parts(trainer):
    read = words(parsed(trainer.view))
    last = trainer.history.last()
    for part in ("Sequential ● Finished", "3 epochs", "87 steps", "samples/s", "cpu", "— train"):
        assert part in read
    for name in ("valid/loss", "again/loss", "valid/accuracy", "again/accuracy"):
        assert f"{name} {last[name]:.4f}" in read
    assert "changed by hand" not in read


def test_the_text_has_the_same_numbers(trainer):
    text = still_text(trainer.view)
    assert text.startswith("Sequential: finished · 3 epochs · 87 steps")
    assert f"valid/loss {trainer.history.last()['valid/loss']:.4f}" in text
    best = trainer.best
    assert f"best {best['value']:.4f} (epoch {best['epoch']:g})" in text


def test_a_still_changes_nothing_in_the_run(trainer):
    before = len(trainer.history), len(trainer.journal)
    assert still(trainer.view) == still(trainer.view)
    assert (len(trainer.history), len(trainer.journal)) == before


# Runs that could be


@pytest.mark.parametrize("state", list(RunState))
def test_every_state_has_its_colour(state):
    tree = parsed(make_view(state=state))
    assert state.capitalize() in words(tree)
    assert f".ts-{state}{{" in tree.find(f"{SVG}style").text


def test_no_records_at_all():
    view = make_view()
    assert "no losses recorded" in words(parsed(view))
    assert "train/loss –" in still_text(view)


def test_a_view_of_a_trainer_that_never_ran_or_keeps_no_records():
    model, loader = nn.Linear(2, 1), DataLoader(TensorDataset(torch.ones(4, 2), torch.ones(4, 1)))
    settings = {"loss_fn": nn.MSELoss(), "epochs": 1, "progress": False, "device": "cpu"}
    fresh = Trainer(model, train_dl=loader, **settings)
    silent = Trainer(model, train_dl=loader, record=False, **settings)
    silent.fit()
    assert "Idle" in words(parsed(fresh.view)) and "Finished" in words(parsed(silent.view))


@pytest.mark.parametrize("count", [1, 2, 7, 16, 17, 468, 469, 5000])
def test_any_number_of_records(count):
    view = make_view({"train/loss": np.linspace(2, 1, count), "valid/loss": [1.5]})
    tree = parsed(view)
    lines = list(tree.iter(f"{SVG}polyline"))
    assert any(line.get("points").count(",") == min(count, 300) for line in lines)
    assert (tree.find(f"{SVG}polygon") is not None) == (count > 468)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite(bad):
    good = {"train/loss": [2.0, bad, 1.0, bad], "valid/loss": [bad], "valid/accuracy": [bad, 0.5]}
    tree = parsed(make_view(good))
    assert any("ts-error" in (text.get("class") or "") for text in tree.iter(f"{SVG}text"))
    bad_only = {name: [bad] * 3 for name in ("train/loss", "valid/loss", "valid/accuracy", "lr")}
    view = make_view({**bad_only, "samples_per_second": [bad]})
    assert "no finite loss" in words(parsed(view))
    assert f"train/loss {bad}" in still_text(view)


@pytest.mark.parametrize(
    "losses",
    [
        [0.0] * 50,
        [-3.0] * 50,
        [1e300, -1e300, 1e300],
        [1e-300, 2e-300],
        [1e308, 1.0, 1e308, 1.0],
        [1e20, *[0.3] * 500],
        [5e-324, 1.0],
        [1e6 + 1e-9 * i for i in range(50)],
        list(np.geomspace(1e4, 1e-4, 1000)),
        [-1.0, *np.linspace(5, -9, 600)],
    ],
    ids=str,
)
def test_odd_losses(losses):
    tree = parsed(make_view({"train/loss": losses, "valid/loss": losses[-2:]}))
    for line in tree.iter(f"{SVG}polyline"):
        for point in line.get("points").split():
            x, y = map(float, point.split(","))
            assert 51 <= x <= 800 and 61 <= y <= 300


def test_one_high_loss_does_not_spoil_the_mean_after_it():
    text = still_text(make_view({"train/loss": [1e20, *[0.3] * 999]}))
    assert "train/loss 0.3000" in text


def test_losses_over_many_powers_get_such_an_axis():
    assert "powers of ten" in words(parsed(make_view({"train/loss": np.geomspace(1e3, 1e-3, 900)})))
    plain = words(parsed(make_view({"train/loss": np.linspace(3, 0.3, 900)})))
    assert "powers of ten" not in plain


def test_many_loaders():
    records = {"train/loss": np.ones(900)}
    for number in range(40):
        name = f"validation_number_{number:02d}_with_a_long_name"
        records |= {f"{name}/loss": np.ones(500), f"{name}/accuracy": np.ones(500)}
    tree = parsed(make_view({**records, "lr": [0.1], "grad_norm": [1.0] * 900}), width=640)
    read = words(tree)
    assert "and 71 more" in read and "●" in read and "lr 0.1" in read and "grad_norm 1.0000" in read
    assert float(tree.get("height")) < 600


def test_a_metric_whose_name_gives_no_direction_has_no_best():
    text = still_text(make_view({"valid/loss": [2, 1, 3], "valid/blah": [1, 2, 1]}))
    assert "valid/blah 1.0000\n" in text + "\n" and "valid/loss 3.0000  best 1.0000" in text


@pytest.mark.parametrize("name, best", [("accuracy", 3), ("top1", 3), ("loss", 1), ("word_err", 1)])
def test_the_better_end_of_a_metric(name, best):
    assert f"best {best}.0000" in still_text(make_view({f"valid/{name}": [2, 3, 1, 2]}))


# Changed by hand


def test_interventions_are_numbered_as_in_the_journal():
    view = make_view({"train/loss": np.ones(900)})
    view.journal.record("pause", "pause", step=10)
    view.journal.record("tune", "lr", 1e-3, 2e-3, step=400)
    view.journal.record("note", "note", new="hm", step=420)
    view.journal.record("hook", "MixUp", True, False, step=700)
    view.journal.record("tune", "grad_clip", None, 1.0, step=704)
    read = words(parsed(view))
    assert "2 400 lr 0.001 → 0.002" in read
    assert "MixUp" in read and "on → off" in read and "off → 1" in read
    assert " 4–5 " in f" {read} " and "hm" not in read


def test_sixty_interventions():
    view = make_view({"train/loss": np.ones(6000)})
    for number in range(60):
        view.journal.record("tune", "lr", number / 7, number, step=100 * number)
    tree = parsed(view)
    assert "and 54 more" in words(tree) and "and 54 more" in still_text(view)
    labels = [e for e in tree.iter(f"{SVG}g")]
    spans = [(float(g[1].get("x")), float(g[1].get("width"))) for g in labels]
    assert all(x + wide <= after for (x, wide), (after, _) in zip(spans, spans[1:]))


def test_interventions_without_records_and_out_of_order():
    view = make_view()
    view.journal.record("tune", "lr", 1, 2, step=5)
    assert "changed by hand" in words(parsed(view))
    late = make_view({"train/loss": np.ones(100)})
    for step in (100, 100, 50, 0, 10**9):
        late.journal.record("tune", "lr", 1, 2, step=step)
    parsed(late)


# Texts


def test_texts_are_escaped():
    view = make_view(
        {"train/loss": [1.0], f"{NASTY}/loss": [1.0], f"valid/{NASTY}": [0.5]},
        name=NASTY,
        state=RunState.ERROR,
        error=f"Traceback\n  x\nValueError: {NASTY}",
    )
    view.description = NASTY
    view.journal.record("tune", NASTY, NASTY, NASTY, step=1)
    text = still(view)
    parsed(view)
    assert "<script" not in text and "\x00" not in text and "\u202e" not in text
    text.encode()


@pytest.mark.parametrize("name", ["", "N" * 5000, "模型" * 500, "a b " * 2000])
def test_names_of_any_length(name):
    view = make_view({"train/loss": [1.0, 0.5]}, name=name)
    view.journal.record("tune", name * 3, name, name, step=1)
    view.description = name
    assert len(still(view)) < 20_000


def test_the_error_is_named():
    error = ("Traceback (most recent call last):\n  File x\nRuntimeError: out of luck\nwhile "
             "ending, also: y")
    view = make_view({"train/loss": [1.0]}, state=RunState.ERROR, error=error)
    assert "RuntimeError: out of luck" in words(parsed(view)) and "out of luck" in still_text(view)


def test_two_stills_share_a_page():
    views = [make_view({"train/loss": [1.0, 0.5]}, name=name) for name in ("A", "B")]
    page = "".join(still(view) for view in views)
    assert " id=" not in page
    rules = re.findall(r"(?:^|[{}])\s*([^{}@]+)\{", re.search("<style>(.*?)</style>", page)[1])
    assert rules and all(rule.startswith(".tnb-still") for rule in rules)


@pytest.mark.parametrize("width", [640, 800, 1400])
def test_widths(width):
    tree = parsed(make_view({"train/loss": [1.0, 0.5]}), width=width)
    assert tree.get("viewBox").split()[2] == tree.get("width") == str(width)


def test_too_narrow_is_refused():
    with pytest.raises(ValueError, match="width=300: 640"):
        still(make_view(), width=300)


# A long run


def test_a_million_steps(monkeypatch):
    count = 1_000_000
    at = np.arange(1, count + 1)
    view = make_view(steps=count)
    noise = np.random.default_rng(0).standard_normal(count)
    for name in ("train/loss", "lr", "grad_norm", "time/step", "time/data", "samples_per_second"):
        view.history.extend(name, at, at / 1000, at, at * 0.1, 2 + 0.1 * noise)
    view.history.extend("valid/loss", at[::1000], at[::1000] / 1e3, at[::1000], at[::1000] / 10,
                        noise[:1000])
    read, records = [], view.records
    monkeypatch.setattr(view, "records", lambda **asked: read.append(records(**asked)) or read[-1])
    assert len(still(view).encode()) < 60_000
    assert {len(series) for found in read for series in found.values()} == {MOST, 1000}
    parsed(view)


@pytest.mark.slow
def test_a_still_loads_nothing_that_draws():
    code = ("import sys, trainer_nb.panel.still\nprint('plotly' in sys.modules, 'ipywidgets' in "
            "sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 300, 301, 5_000])
def test_a_mean_is_that_of_the_steps_around(count):
    """At both ends of what there is; a single huge loss does not blur those far from it."""
    values = np.random.default_rng(0).normal(size=count)
    values[count // 3] = 1e30
    half = min(max(16, count // 200), count // 16)
    places, means = smooth(values)
    around = [values[max(0, at - half):at + half + 1].mean() for at in places]
    assert places[0] == 0 and places[-1] == count - 1
    np.testing.assert_allclose(means, around, rtol=1e-12)


# The text that stands for the picture


def alt(image):
    """The alternative text of an image element."""
    return html.unescape(re.fullmatch(r'<img alt="([^"]*)" style="[^"]*" src="[^"]*">', image)[1])


def test_the_alternative_text_tells_what_is_shown_and_the_last_values():
    view = make_view({"train/loss": [2.0, 1.5], "valid/loss": [1.25]}, name="Net")
    assert alt(as_image(still(view, as_of="as of step 2"))) == (
        "Net: finished. Curves of the losses, with the last values. 2 epochs · 2 steps · 0:00 · "
        "cpu; train/loss 1.5000; valid/loss 1.2500; 0 changed by hand; as of step 2")


def test_the_alternative_text_names_the_error():
    error = "Traceback (most recent call last):\n  ...\nValueError: no items\n"
    text = alt(as_image(still(make_view(state=RunState.ERROR, error=error))))
    assert text.startswith("Net: error. ") and "ValueError: no items" in text


def test_no_name_breaks_the_image_element():
    text = alt(as_image(still(make_view({"train/loss": [1.0]}, name=NASTY))))
    assert "<script>" in text and '"x"' in text


def test_a_picture_of_runs_has_the_last_values_of_each():
    runs = [("low", "#111", make_view({"train/loss": [2.0, 0.5]})),
            ("none", "#333", make_view())]
    assert alt(as_image(still_runs(runs, "train/loss", "now"))) == (
        "2 runs: train/loss. Curves of the runs, with the last values. low 0.5000; none –; now")
    many = [(f"r{number}", "#111", make_view()) for number in range(20)]
    assert alt(as_image(still_runs(many, "train/loss"))).endswith("r13 –; and 6 more")


def test_a_picture_without_words_is_called_one():
    assert alt(as_image("<svg/>")) == "the run as a picture"


# Marks


@pytest.mark.parametrize("first, last", [(1, 1), (9, 9), (42, 42), (100, 100), (987, 987),
                                         (1234, 1234), (100, 120)])
def test_the_disc_of_a_mark_holds_its_number(first, last):
    """Bold digits of 10 px are 7 px wide in the widest font; 3.5 px of the round ends are free."""
    label = numbers_text([SimpleNamespace(number=first), SimpleNamespace(number=last)])
    assert disc_width(label) >= max(15, 7 * len(label) + 7)


def test_the_discs_of_marks_and_of_the_list_are_as_wide_as_their_numbers():
    view = make_view({"train/loss": [1.0] * 300})
    for number in range(120):
        view.journal.record("tune", "lr", number, number + 1, step=2 * number)
    tree = parsed(view)
    discs = [rect for rect in tree.iter(f"{SVG}rect") if rect.get("class") == "ts-mark"]
    labels = [text.text for text in tree.iter(f"{SVG}text")
              if text.get("class") == "ts-m ts-b ts-w"]
    assert len(discs) == len(labels) and any(len(label) > 4 for label in labels)
    for disc, label in zip(discs, labels):
        assert float(disc.get("width")) >= 7 * len(label) + 7


@pytest.mark.parametrize(("value", "text"), [
    (0.39791, "0.3979"), (0.0020738, "0.002074"), (5.47e-4, "5.47e-4"), (0, "0.0000"),
    (3742.2, "3,742.2"), (math.nan, "nan"), (2e7, "2.00e7")])
def test_numbers_are_short(value, text):
    assert measured(value) == text
