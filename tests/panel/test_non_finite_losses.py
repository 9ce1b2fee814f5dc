"""A loss that becomes NaN or inf, in the panel and in the still picture:
no line goes on, no mean leaves it out, no button invites to go on."""

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import Hook, NonFiniteError, SnapshotHook, Trainer
from trainer_nb.core.control import Series
from trainer_nb.core.state import RunState
from trainer_nb.panel.plots import Curve, figure
from trainer_nb.panel.still import still, still_text

SVG = "{http://www.w3.org/2000/svg}"


class Poisoned(torch.nn.Module):
    """Its loss is NaN from a step on, for good or for a few steps."""

    def __init__(self, first, last=10**9):
        super().__init__()
        self.layer, self.first, self.last, self.step = torch.nn.Linear(4, 1), first, last, 0

    def forward(self, x):
        self.step += self.training
        bad = self.training and self.first <= self.step <= self.last
        return self.layer(x) * (math.nan if bad else 1.0)


def make(*hooks, first=31, epochs=3, **settings):
    """20 steps an epoch; the gradients of step `first` are NaN."""
    torch.manual_seed(0)
    x = torch.randn(320, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = Poisoned(first)
    return Trainer(model, train_dl=DataLoader(data, 16), valid_dl=DataLoader(data, 64),
                   loss_fn=torch.nn.MSELoss(),
                   optim=torch.optim.SGD(model.parameters(), lr=0.01), epochs=epochs, seed=1,
                   progress=False,
                   hooks=hooks, grad_clip=10.0, **settings)


def curve_of(values):
    at, curve = np.arange(1, len(values) + 1), Curve()
    for part in np.array_split(np.arange(len(values)), 3):  # as it comes, in pieces
        curve.extend(Series(*(at[part],) * 4, np.asarray(values, float)[part]))
    return curve


def crossings(x, y, values):
    """How many drawn lines go over a value that is not finite."""
    bad = np.flatnonzero(~np.isfinite(values)) + 1
    drawn = np.isfinite(y[:-1]) & np.isfinite(y[1:])
    return sum(int(((bad > a) & (bad < b)).any()) for a, b in zip(x[:-1][drawn], x[1:][drawn]))


@pytest.mark.parametrize("count", [9, 150, 5000])
@pytest.mark.parametrize("hole", ["end", "one", "many", "begin", "other", "all"])
def test_no_line_crosses_a_hole(count, hole):
    """Raw and smoothed, thinned or not: each drawn point is of finite values of its own stretch
    alone."""
    values = np.linspace(2, 1, count)
    where = {"end": slice(2 * count // 3, None), "one": slice(count // 2, count // 2 + 1),
             "many": slice(3, None, 4),
             "begin": slice(0, 3), "other": slice(1, None, 2), "all": slice(None)}[hole]
    values[where] = np.where(np.arange(count)[where] % 2, math.nan, math.inf)
    curve = curve_of(values)
    for x, y in (curve.raw("step"), curve.smoothed("step", 33)):
        assert crossings(x, y, values) == 0 and len(x) <= 3000 and (np.diff(x) > 0).all()
        good = np.isfinite(values)
        finite = np.isfinite(y)
        assert good[x[finite].astype(int) - 1].all() and finite.any() == good.any()
        if hole in ("end", "one"):  # the last finite value before it is there
            assert (2 * count // 3 if hole == "end" else count // 2) in x[finite]


def test_a_gap_does_not_move_the_mean_beside_it():
    """The mean of a stretch is the one that it has alone."""
    values = np.r_[np.linspace(3, 2, 60), math.nan, np.linspace(1, 0.5, 40)]
    x, y = curve_of(values).smoothed("step", 33)
    assert np.allclose(y[:60], curve_of(values[:60]).smoothed("step", 33)[1])
    assert np.allclose(y[61:], curve_of(values[61:]).smoothed("step", 33)[1])


def drawn(board, name, axis="y"):
    trace = next(t for t in board.plots.chart.figure["data"]
                 if (t["name"], t["yaxis"]) == (name, axis))
    return np.frombuffer(trace["x"], np.float32), np.frombuffer(trace["y"], np.float32), trace


def number(board, label):
    """Value, small text and style of a number of the head."""
    found = re.search(rf'{label}</div><div class="value ([^"]*)">(.*?)</div>'
                      '<div class="what">(.*?)</div>', board.head.widget.value)
    return f"{found[2]} {found[3]}".strip(), found[1]


def looks(board):
    """Buttons that are filled, and the style of the whole."""
    main = "main" if "aside" not in board.controls.main._dom_classes else ""
    first = "rewind" if "first" in board.controls.buttons["Rewind"]._dom_classes else ""
    return main or first, next(c for c in board.widget._dom_classes if c.startswith("is-"))


def test_names_with_markup_are_plain_text_where_the_mouse_is():
    """Of loaders and of records, on their lines and on their crosses."""
    loader, name = "<b>v</b>", "<i>m</i>"
    class Log(Hook):
        """A metric."""
        def after_epoch(self, trainer):
            """One value."""
            trainer.log({name: 1.0})
    data = TensorDataset(torch.randn(32, 4), torch.full((32, 1), math.nan))
    trainer = make(Log(), first=10**9)
    trainer.valid_dl = {loader: DataLoader(data, 16)}
    trainer.fit()
    shown = [words for trace in figure(trainer.view).data
             for words in (trace.name or "", *(trace.customdata if trace.customdata is not None
                                               else ()))]
    assert "&lt;i&gt;m&lt;/i&gt;" in shown and "&lt;b&gt;v&lt;/b&gt;" in shown, shown
    assert any(words.startswith("&lt;b&gt;v&lt;/b&gt;/loss is NaN") for words in shown), shown
    assert not any("<b>" in words or "<i>" in words for words in shown), shown


def test_a_run_that_failed_shows_where_it_turned():
    """The curves end at the last finite loss, a cross stands there, the mean is NaN, and Rewind is
    what to press."""
    trainer = make(SnapshotHook(every_steps=10))
    board = trainer.dashboard
    with pytest.raises(NonFiniteError,
                       match="the gradients of step 31 are not finite; the weights are invalid "
                             "from that step on"):
        trainer.fit()
    board.refresh()
    for name in ("raw", "train"):
        x, y, _ = drawn(board, name)
        assert x[np.isfinite(y)][-1] == 30 and not np.isfinite(y[x > 30]).any()
    x, y, cross = drawn(board, "not finite")
    assert x.tolist() == [31] and np.isfinite(y).all() and cross["text"] == ["NaN from step 31"]
    assert cross["customdata"] == ["train/loss is NaN from step 31 on"]
    assert number(board, "train/loss") == ("NaN since 31", "wrong")
    assert looks(board) == ("rewind", "is-error") and not board.controls.buttons["Rewind"].disabled
    assert ("Failed after step 40: the weights are invalid from step 31 on.</b> <b>Rewind</b> goes "
            "back") in board.message.text.value
    assert 'title="NonFiniteError: the gradients of step 31' in board.message.text.value
    board.controls.buttons["Rewind"].click()
    assert board.controls.chooser.steps.value == 30
    board.controls.chooser.go.click()
    board.refresh()
    assert trainer.state is RunState.PAUSED and trainer.step_state.optimizer_step == 30
    assert looks(board) == ("main", "is-paused")
    assert "NaN" not in board.head.widget.value + board.message.text.value


def test_without_a_state_to_go_back_to_no_button_is_first():
    """Resume is still there, and says what it goes on with."""
    trainer = make()
    board = trainer.dashboard
    with pytest.raises(NonFiniteError):
        trainer.fit()
    board.refresh()
    assert looks(board) == ("", "is-error")
    assert "weights are invalid from step 31 on" in board.controls.main.tooltip


def test_unnoticed_it_is_not_green():
    """non_finite=None: the run is finished, and says what its weights are worth."""
    trainer = make(SnapshotHook(every_steps=10), non_finite=None)
    board = trainer.dashboard
    assert trainer.fit().status is RunState.FINISHED
    board.refresh()
    assert looks(board) == ("rewind", "is-error")
    assert ("Finished after step 60, but train/loss "
            "is NaN since step 31.") in board.message.text.value
    assert number(board, "valid/loss") == ("NaN since 40", "wrong")
    assert number(board, "best loss") == (number(board, "best loss")[0], "")
    assert "nan" not in board.head.widget.value
    board.controls.buttons["Rewind"].click()
    assert board.controls.chooser.steps.value == 30  # the last one that is of any use
    assert board.controls.chooser.steps.options[0][0] == "step 60, weights invalid"


def test_skipped_steps_do_not_end_the_run():
    """non_finite="skip": three windows were left out, the run goes on, the weights stay valid."""
    trainer = make(non_finite="skip")
    trainer.model.last = 33
    board = trainer.dashboard
    trainer.fit()
    board.refresh()
    assert looks(board)[1] == "is-finished"
    assert "<b>Finished</b> 3 epochs, 57 steps" in board.message.text.value
    assert number(board, "train/loss")[1] == ""
    assert number(board, "train/loss")[0].endswith("avg 33")


def test_a_mean_over_a_gap_is_none():
    """Some steps were NaN, later ones are not: the mean says that one of them was."""
    trainer = make(non_finite=None, first=10**9)
    board = trainer.dashboard
    trainer.step(40)
    values = trainer.history._columns["train/loss"].values
    changed = values.read()
    changed[29] = math.nan
    values.truncate(0)
    values.extend(changed)
    board.curves.of, board.curves._counts, board.plots._drawn = {}, {}, None
    board.refresh()
    assert number(board, "train/loss") == ("NaN in last 33", "wrong")
    assert looks(board) == ("main", "is-paused")
    assert drawn(board, "not finite")[2]["customdata"] == ["train/loss is NaN at step 30"]


def numbers_of(text):
    return np.array([list(map(float, point.split(","))) for point in text.split()])


def test_the_still_picture_breaks_too():
    """No line beyond the turn, a cross at it, and no green word."""
    trainer = make(non_finite=None)
    trainer.fit()
    svg = still(trainer.view)
    tree = ET.fromstring(svg)
    lines = [numbers_of(line.get("points"))[:, 0] for line in tree.iter(f"{SVG}polyline")
             if "ts-c0" in line.get("class")]
    assert max(x.max() for x in lines) < 52 + (800 - 360) * 31 / 60  # the box of the curves
    words = [("".join(each.itertext()), each.get("class") or "")
             for each in tree.iter(f"{SVG}text")]
    assert ("NaN", True) in [(text, "ts-error" in style) for text, style in words]
    assert not [text for text, style in words if "ts-finished" in style]
    assert 'class="ts-finished"' not in svg
    assert "train/loss is NaN since step 31" in svg
    text = still_text(trainer.view)
    assert "train/loss nan" in text and "train/loss is NaN since step 31" in text


def test_the_still_picture_breaks_at_gaps():
    """Long or short: no stretch is joined to the next."""
    for count in (60, 2000):
        trainer = make(non_finite=None, first=10**9)
        trainer.step(1)
        values = np.linspace(2, 1, count)
        values[count // 2:count // 2 + 3] = math.nan
        at = np.arange(1, count + 1)
        trainer.history.load_state_dict(
            {"points": {"train/loss": (at, at / 20, at * 16, at * 0.1, values)}, "branches": []})
        trainer.step_state.optimizer_step = count
        tree = ET.fromstring(still(trainer.view))
        marked = [each for each in (*tree.iter(f"{SVG}polyline"), *tree.iter(f"{SVG}polygon"))
                  if re.search("ts-[cf]0", each.get("class"))]
        hole = [52 + 440 * step / count for step in (count // 2 + 1, count // 2 + 3)]
        assert len(marked) == 4
        for each in marked:
            x = numbers_of(each.get("points"))[:, 0]
            assert not (x.min() < hole[0] < x.max()) and not (x.min() < hole[1] < x.max())
        assert "is NaN since" not in still(trainer.view)
