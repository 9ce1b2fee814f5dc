"""The tabs Layers, Data, Alerts and Runs of a run in another process: bounded files, checked."""

import base64
import copy
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from feed_page import Page
from written_runs import WrittenRun, trained

import trainer_nb
from trainer_nb import CheckpointHook, Hook, LayerStatsHook, SamplesHook, attach
from trainer_nb.folder.control import ControlError, ControlFolder
from trainer_nb.hooks.alerts import Alert
from trainer_nb.hooks.remote_control import RemoteControlHook
from trainer_nb.hooks.samples import SIDE, Sample, SampledEvaluation
from trainer_nb.hooks.stat_files import (
    LAYERS,
    MOST_BYTES,
    SAMPLES,
    SeenLayers,
    SeenSamples,
    StatFile,
    StatWriter,
    layer_values,
    samples_values,
)
from trainer_nb.hooks.weight_stats import WIDTH
from trainer_nb.panel.looks import QUANTITIES, look_at
from trainer_nb.panel.sections import looks

PROGRAM = Path(__file__).parent / "pane_program.py"
ROOT = str(Path(trainer_nb.__file__).parents[1])


def until(condition, seconds=300):
    """Wait for what another thread or process does; returns what came."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


# A real second process


@pytest.fixture(scope="module")
def paused(tmp_path_factory):
    """A paused run in another process, attached; what its hooks have; and its process."""
    folder = tmp_path_factory.mktemp("panes") / "exp1"
    process = warm.Popen(
        [sys.executable, PROGRAM, folder],
        env=os.environ | {"PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )

    def begun():
        assert process.poll() is None, process.stdout.read().decode()
        return (folder / "control" / "status.json").exists() and (folder / "journal.jsonl").exists()

    until(begun)
    run = attach(folder)
    until(lambda: run.view.position.step > 125 and run.view.alerts)
    assert run.pause().wait(300).status == "applied"
    path = until(lambda: next(iter(sorted(folder.glob("truth-*.npz"))), None))
    with np.load(path) as found:
        truth = dict(found)
    until(lambda: run.view.layer_stats.weight_history.table(0)[1][-1] == truth["steps"][-1])
    yield run, truth, process
    run.close()
    process.kill()
    process.wait()


@pytest.mark.slow
def test_what_the_hooks_of_another_process_have_is_seen(paused):
    """Number for number and pixel for pixel."""
    run, truth, _ = paused
    names, steps, norms = run.view.layer_stats.weight_history.table(0)
    assert (
        names == truth["names"].tolist()
        and steps.tolist() == truth["steps"].tolist()
        and (norms == truth["norms"]).all()
        and len(steps) > 20
    )
    rows = [
        np.stack(list(found["activations"].values()))
        for _, found in run.view.layer_stats.history.fetch()
    ]
    assert np.allclose(np.stack(rows), truth["activations"], atol=1e-6)
    evaluations = run.view.samples.evaluations
    assert [each.step for each in evaluations] == truth["evaluated"].tolist() and (
        evaluations[-1].matrix == truth["matrix"]
    ).all()
    worst = evaluations[-1].worst
    assert [each.index for each in worst] == truth["indices"].tolist() and [
        each.loss for each in worst
    ] == truth["losses"].tolist()
    assert (np.stack([each.picture for each in worst]) == truth["pictures"]).all() and worst[
        0
    ].picture.shape == (12, 10, 3)
    for name in (LAYERS, SAMPLES):
        assert 1000 < (run.path / "control" / name).stat().st_size < MOST_BYTES


@pytest.mark.slow
def test_its_panel_has_the_tabs(paused, tmp_path):
    """Layers, Data, Alerts and Runs, as in the process of the run."""
    run, truth, _ = paused
    page = Page(run.dashboard.feed).hello().open("runs", "table", "looks")
    assert page.view["run"]["panes"] == [
        "hooks", "journal", "lr", "inspect", "alerts", "layers", "data"]
    assert page.view["looks"].keys() == {"layers", "data"} and page.view["table"]

    def look(what, **values):
        """What the page is answered."""
        page.own.hear({"ask": "look", "id": "1", "what": what, "values": values})
        return page.answers[-1]["found"]

    last = int(truth["steps"][-1])
    layers = look("layers", quantity="gradient")
    assert layers["layers"] == truth["names"].tolist()
    assert layers["steps"] == truth["steps"].tolist()
    one = look("layer", quantity="gradient", layer="3", step=last)
    assert one["step"] == last and one["numbers"]["gradient norm"] > 0
    data = look("data")
    assert data["names"][0].startswith("<b>cat") and len(data["worst"]) == 3
    assert data["at"] == len(truth["evaluated"]) - 1
    assert all(each["picture"] for each in data["worst"])
    assert any("plateau" in each["title"].lower() for each in page.view["alerts"].values())
    other, before = WrittenRun(tmp_path), len(page.view["runs"]["rows"])  # of this process
    page.own.hear({"ask": "add", "id": "2", "path": str(other.path)})
    rows = page.view["runs"]["rows"]
    assert len(rows) == before + 1 and "exp1" in [each["name"] for each in rows.values()]
    page.own.hear({"ask": "add", "id": "3", "path": str(run.path)})  # not behind itself
    assert len(page.view["runs"]["rows"]) == before + 1
    page.own.hear({"ask": "add", "id": "4", "path": str(tmp_path / "nothing")})
    assert "not there" in page.answers[-1]["reason"]


@pytest.mark.slow
def test_a_rewind_there_takes_measurements_back_here(paused):
    """Then the process goes away, and what was seen stays."""
    run, _, process = paused
    run.rewind(60).wait(300)
    until(
        lambda: (
            run.view.layer_stats.weight_history.table(0)[1].max() <= 60
            and run.view.samples.evaluations[-1].step == 60
        )
    )
    process.kill()
    process.wait()
    until(lambda: run.standing == "lost")
    assert "layers" in run.view.panes and run.view.samples.evaluations


# What is written is bounded


def many_layers(count, steps, most=500):
    """A hook that has measured many layers in many steps."""
    hook = LayerStatsHook(most=most)
    shares = torch.full((count, WIDTH), 1 / 40)
    names = tuple(f"blocks.{number}.attention" for number in range(count))
    for step in range(1, steps + 1):
        hook.weight_history.add(step, names, shares)
        hook.history.add(
            step, {"activations": dict(zip(names, torch.full((count, 43), 0.025))), "gradients": {}}
        )
    return hook


@pytest.mark.parametrize(
    ("count", "steps", "most"), [(2, 3000, 2500), (160, 40, 500), (900, 12, 500)]
)
def test_layers_fit_into_their_file(count, steps, most):
    """However many: fewer steps, the first and the last among them, and 400 layers."""
    hook = many_layers(count, steps, most)
    text = json.dumps(layer_values(hook))
    assert len(text) <= MOST_BYTES
    seen = SeenLayers.of(json.loads(text))
    names, measured, _ = seen.weight_history.table(0)
    assert len(names) == min(count, 400) and len(seen.history.fetch()) > 2
    assert (
        measured[0] == hook.weight_history.fetch()[0][0]
        and measured[-1] == steps
        and 2 < len(measured) <= 1000
    )


def test_samples_fit_into_their_file():
    """The newest of both kinds, whole; texts that JSON makes six times as long, too."""
    draw, hook = np.random.default_rng(0), SamplesHook(worst=64, keep=100, logged=64)

    def picture():
        return draw.integers(0, 256, (SIDE, SIDE, 3), np.uint8)

    matrix = draw.integers(0, 10**6, (100, 100))
    for step in range(1, 12):
        worst = [Sample(1.0, at, at, at, at, picture(), True) for at in range(64)]
        hook.evaluations.append(SampledEvaluation("valid", step, 0, 10**6, worst, matrix))
    hook.log = [(step, "é" * 80, Sample(0.0, picture=picture())) for step in range(64)]
    text = json.dumps(samples_values(hook))
    assert len(text) <= MOST_BYTES
    seen = SeenSamples.of(json.loads(text))
    assert (
        [each.step for each in seen.evaluations] == [11]
        and seen.log[-1][0] == 63
        and len(seen.log) > 10
    )
    assert (seen.evaluations[0].worst[63].picture == hook.evaluations[-1].worst[63].picture).all()


def test_what_hooks_have_may_be_odd():
    """Nothing measured, losses that are not finite, targets of any kind, an empty matrix."""
    hook = SamplesHook()
    odd = [
        Sample(float("nan"), target=True, prediction=complex(1, 2)),
        Sample(float("inf"), target=2.5, text="\x00é<b>"),
    ]
    hook.evaluations = [
        SampledEvaluation("a/b", 0, 0, 0, odd, np.zeros((0, 0), np.int64), {"losses": "none"})
    ]
    seen = SeenSamples.of(json.loads(json.dumps(samples_values(hook)))).evaluations[0]
    assert (
        [each.target for each in seen.worst] == [1, 2.5]
        and seen.worst[0].prediction is None
        and np.isnan(seen.worst[0].loss)
    )
    assert (
        seen.worst[1].text == "\x00é<b>"
        and seen.matrix.shape == (0, 0)
        and seen.absent == {"losses": "none"}
    )
    for hook in (LayerStatsHook(), LayerStatsHook(weights=False)):
        seen = SeenLayers.of(json.loads(json.dumps(layer_values(hook))))
        assert seen.history.fetch() == [] and (seen.weight_history is None) == (
            hook.weight_history is None
        )


class View:
    """What the writer reads of a run."""

    def __init__(self, layers=None, samples=None):
        self.layer_stats, self.samples = layers, samples


def test_a_file_is_written_where_something_is_new(tmp_path):
    """Not before its time, unless at once; without the hook it goes, also an earlier process's."""
    control = ControlFolder(tmp_path)
    control.make()
    layers, samples = control.path / LAYERS, control.path / SAMPLES
    samples.write_text("of an earlier process")
    writer, hook = StatWriter(control), many_layers(2, 3)
    writer.write(View(hook))
    assert layers.exists() and not samples.exists()
    first = layers.stat().st_ino
    hook.weight_history.go_back(2)
    writer.write(View(hook))
    assert layers.stat().st_ino == first
    writer.write(View(hook), at_once=True)
    second = layers.stat().st_ino
    assert SeenLayers.of(json.loads(layers.read_text())).weight_history.table(0)[1].tolist() == [
        1,
        2,
    ]
    writer.write(View(hook), at_once=True)
    assert layers.stat().st_ino == second
    writer.write(View(None), at_once=True)
    assert not layers.exists()


def test_a_run_that_goes_on_without_the_hook_has_no_tab(tmp_path):
    """The next process takes the files away."""
    trained(tmp_path / "exp1", hooks=[CheckpointHook(), LayerStatsHook()]).close()
    run = attach(tmp_path / "exp1")
    assert "layers" in run.view.panes and "data" not in run.view.panes
    trained(tmp_path / "exp1", steps=30, hooks=[CheckpointHook()]).close()
    run.refresh()
    assert run.view.position.step == 30
    assert "layers" not in run.view.panes and run.view.layer_stats is None
    run.close()


def test_the_last_measurement_of_a_run_is_in_its_file(tmp_path):
    """Of one that its process lets go in mid run, although the file was written a moment before."""

    class Late(Hook):
        order = 300

        def after_step(self, trainer):
            """As the thread looks, and as the end of a process closes it."""
            attendant = trainer.get_hook(RemoteControlHook).attendant
            if trainer.step_state.optimizer_step in (10, 11):
                attendant.look()
            if trainer.step_state.optimizer_step == 20:
                attendant.close()

    trained(tmp_path / "exp1", hooks=[LayerStatsHook(every_steps=1), Late()])
    seen = StatFile(tmp_path / "exp1" / "control" / LAYERS, SeenLayers).read()
    assert seen.weight_history.table(0)[1].tolist() == list(range(1, 21))


def test_two_readings_are_never_taken_for_each_other(good):
    """A pane draws where a version has changed."""
    readings = [SeenLayers.of(good[LAYERS]) for _ in range(2)]
    assert (
        len(
            {each.weight_history.version for each in readings}
            | {each.history.version for each in readings}
        )
        == 4
    )
    assert SeenSamples.of(good[SAMPLES]).version != SeenSamples.of(good[SAMPLES]).version


def test_why_a_matrix_is_absent_is_text(good):
    found = changed(
        good[SAMPLES],
        ("evaluations", 1, "absent"),
        {"matrix": "<img src=x>", "losses": "<img src=x>"},
    )
    for path in (("evaluations", 1, "matrix"), ("evaluations", 1, "worst")):
        found = changed(found, path, None if path[-1] == "matrix" else [])
    seen, _ = look_at(View(samples=SeenSamples.of(found)), "data", {})
    assert seen["absent"] == {"matrix": "<img src=x>", "losses": "<img src=x>"}
    assert "matrix" not in seen and seen["worst"] == []


# What is read is refused


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Both files of a run, as values."""
    hook = SamplesHook(classes=["a", "b"])
    hook.evaluations = [
        SampledEvaluation(
            "valid",
            step,
            0,
            5,
            [Sample(1.0, 1, 1, 0, 1, np.full((2, 3, 3), 7, np.uint8)), Sample(2.0, text="x")],
            np.array([[1, 2], [3, 4]]),
            {"losses": "why"},
        )
        for step in (1, 2)
    ]
    hook.log = [
        (1, "p", Sample(0.0, picture=np.zeros((2, 2, 1), np.uint8))),
        (2, "t", Sample(0.0, text="y")),
    ]
    return {
        LAYERS: json.loads(json.dumps(layer_values(many_layers(2, 3)))),
        SAMPLES: json.loads(json.dumps(samples_values(hook))),
    }


KINDS = {LAYERS: SeenLayers, SAMPLES: SeenSamples}
STRANGE = [
    None,
    True,
    "x",
    "<img src=x onerror=alert(1)>",
    -1,
    0.5,
    10**30,
    10**400,
    1e300,
    float("nan"),
    float("inf"),
    [],
    [[]],
    [1, 2, 3],
    {},
    {"a": 1},
    "AAAA" * 100,
]


def places(value, where=()):
    """Every place in a value of JSON."""
    yield where
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in inner:
        yield from places(each, (*where, key))


def changed(value, where, new):
    """The value with another one at a place."""
    if not where:
        return new
    made = copy.deepcopy(value)
    inner = made
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = new
    return made


def draw_all(seen, name):
    """Ask for all that a page asks for; the answers as they travel."""
    view = View(**{"layers" if name == LAYERS else "samples": seen})
    if name == SAMPLES:
        found = [look_at(view, "data", values)[0] for values in ({}, {"step": 1})]
    else:
        found = [look_at(view, "layers", {"quantity": each})[0] for each in QUANTITIES]
        for each in found[:]:
            if each["layers"] and each["steps"]:
                found.append(look_at(view, "layer", {
                    "quantity": "gradient", "layer": each["layers"][0],
                    "step": each["steps"][0]})[0])
    return json.dumps([found, looks(view)], allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, pytest.param(len(STRANGE), marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [LAYERS, SAMPLES])
def test_any_value_in_any_place_is_drawn_or_refused_in_words(good, tmp_path, name, count):
    """A wrong value never raises where a page asks, and what is sent is JSON."""
    path, draw, tried, refused = tmp_path / name, random.Random(0), 0, 0
    file = StatFile(path, KINDS[name])
    for where in places(good[name]):
        for strange in draw.sample(STRANGE, count):
            path.unlink(missing_ok=True)
            path.write_text(json.dumps(changed(good[name], where, strange)))
            seen = file.read()
            shown = draw_all(seen, name)
            tried, refused = tried + 1, refused + bool(seen.trouble)
            if seen.trouble:
                assert name in seen.trouble and len(seen.trouble) <= 400 and name in shown
    path.write_text(json.dumps(good[name]))
    assert file.read().trouble == "" and refused > tried / 2


BAD = [
    (LAYERS, ("weights", "rows", 1, "step"), 1, "do not ascend"),
    (LAYERS, ("weights", "rows", 0, "layers"), [0, 2], "out of range"),
    (LAYERS, ("weights", "rows", 0, "layers"), [1, 1], "do not ascend"),
    (LAYERS, ("weights", "names"), ["a", "a"], "a name twice"),
    (LAYERS, ("weights", "rows", 0, "numbers"), "AAAA", "3 bytes where 664 belong"),
    (LAYERS, ("weights", "rows", 0, "numbers"), "*", "not base64"),
    (LAYERS, ("activations",), None, "not"),
    (LAYERS, ("weights", "rows", 0, "step"), 1 << 53, "out of range"),
    (
        LAYERS,
        ("activations", "rows", 0, "numbers"),
        base64.b64encode(np.full((2, 43), 2, "<f4").tobytes()).decode(),
        "share",
    ),
    (
        SAMPLES,
        ("evaluations", 0, "worst", 0, "picture", "shape"),
        [10**6, 10**6, 3],
        "a picture of",
    ),
    (
        SAMPLES,
        ("evaluations", 0, "worst", 0, "picture", "shape"),
        [3, 3, 3],
        "18 bytes where 27 belong",
    ),
    (SAMPLES, ("evaluations", 0, "worst", 0, "picture"), "/etc/passwd", "not dict"),
    (SAMPLES, ("evaluations", 0, "matrix"), [[1, 2], [3]], "counts"),
    (SAMPLES, ("evaluations", 0, "matrix"), [[1.5]], "counts"),
    (SAMPLES, ("evaluations", 0, "matrix"), [[-1]], "counts"),
    (SAMPLES, ("evaluations", 0, "matrix"), [[1 << 62]], "counts"),
    (SAMPLES, ("evaluations", 0, "matrix"), [[0] * 101] * 101, "counts"),
    (SAMPLES, ("evaluations", 0, "step"), -1, "out of range"),
    (SAMPLES, ("log", 0, "sample", "text"), "both", "missing"),
    (SAMPLES, ("evaluations", 0, "worst"), [asdict(Sample(1.0))] * 65, "has 65 items"),
    (SAMPLES, ("log",), [{}] * 3, "lacks"),
    (SAMPLES, ("evaluations", 0, "worst", 0, "loss"), 10**400, r"\['loss'\] is an int of more"),
]


@pytest.mark.parametrize(("name", "where", "new", "words"), BAD, ids=str)
def test_what_no_run_has_written_is_refused(good, name, where, new, words):
    with pytest.raises(ValueError, match=words):
        KINDS[name].of(changed(good[name], where, new))


def deep(path):
    """Brackets in brackets."""
    path.write_text("[" * 100_000)


def large(path):
    """More than is read; the rest is blank."""
    path.write_text(
        json.dumps({"activations": {"names": [], "rows": []}, "weights": None}).ljust(
            MOST_BYTES + 1
        )
    )


def link(path):
    """To a file that would be right."""
    path.with_name("other").write_text(
        json.dumps({"activations": {"names": [], "rows": []}, "weights": None})
    )
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        link,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        deep,
        large,
        lambda path: path.write_bytes(b"\xff\xfe{"),
        Path.touch,
    ],
)
def test_a_file_that_is_not_plain_or_not_a_run_s_is_refused(tmp_path, make):
    """None of them is waited for, followed or read without end."""
    make(tmp_path / LAYERS)
    seen = StatFile(tmp_path / LAYERS, SeenLayers).read()
    assert seen.trouble.startswith("layers.json cannot be read: ") and seen.history.fetch() == []


def test_a_panel_lives_with_bad_files_and_takes_good_ones_again(tmp_path):
    """The tab is there, says why it has nothing, and draws what comes next."""
    written = WrittenRun(tmp_path, hooks=[LayerStatsHook(every_steps=5)])
    path = written.path / "control" / LAYERS
    whole = path.read_text()
    written.write(
        alerts=[
            asdict(Alert("spike", 3, "<img src=x> `rose`", "<i>", number=1)),
            {"kind": "spike"},
            5,
        ]
    )
    run = attach(written.path)
    page = Page(run.dashboard.feed).hello().open("looks")
    steps = lambda: look_at(run.view, "layers", {"quantity": "gradient"})[0]["steps"]
    assert steps() and "trouble" not in page.view["looks"]
    path.write_text(whole[:-9])
    until(lambda: "layers.json cannot be read" in page.view["looks"].get("trouble", ""))
    path.write_text(whole)
    until(lambda: "trouble" not in page.view["looks"])
    os.rename(written.path, tmp_path / "moved")
    run.refresh()
    assert run.view.panes[-2:] == ("alerts", "layers") and steps()
    os.rename(tmp_path / "moved", written.path)
    assert len(run.view.alerts) == 1
    run.close()


def test_a_control_folder_that_is_a_link_is_not_followed(tmp_path):
    """Neither to write nor to remove."""
    control = ControlFolder(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / LAYERS).write_text("precious")
    (tmp_path / "control").symlink_to(tmp_path / "other")
    for hook in (None, many_layers(1, 1)):
        with pytest.raises(ControlError, match="a link"):
            StatWriter(control).write(View(hook), at_once=True)
    assert (tmp_path / "other" / LAYERS).read_text() == "precious"
