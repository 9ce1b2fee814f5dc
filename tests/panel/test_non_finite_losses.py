"""A loss that becomes NaN or inf, in the panel and in the still picture:
no line goes on, no mean leaves it out."""

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from feed_page import Page
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import NonFiniteError, SnapshotHook, Trainer
from trainer_nb.core.state import RunState
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


def test_a_run_that_failed_says_since_when_and_goes_back():
    """The weights are invalid from a step on; the mean is NaN; a rewind ends both."""
    trainer = make(SnapshotHook(every_steps=10))
    page = Page(trainer.feed).hello().open("rewind")
    with pytest.raises(NonFiniteError,
                       match="the gradients of step 31 are not finite; the weights are invalid "
                             "from that step on"):
        trainer.fit()
    state = page.view["state"]
    assert state["name"] == "error" and state["invalid_since"] == 31
    assert state["what"].startswith("NonFiniteError: the gradients of step 31")
    rows = page.curves["train/loss"][1]
    assert rows[:30, 5].tolist() == [1] * 30 and not rows[30:, 5].any()
    assert np.isnan(rows[30:, 2:5]).all()
    found = page.view["numbers"]["train/loss"]
    assert (found["value"], found["bad_since"]) == ("nan", 31)
    assert [row["step"] for row in page.view["rewind"]][-1] == 30
    page.command("rewind", step=30)
    assert page.view["state"] == {"name": "paused"} and page.view["place"]["step"] == 30
    assert "bad_since" not in page.view["numbers"]["train/loss"]


def test_unnoticed_the_run_is_finished_and_says_what_its_losses_are():
    """non_finite=None. The states after the turn have the loss that was measured there."""
    trainer = make(SnapshotHook(every_steps=10), non_finite=None)
    page = Page(trainer.feed).hello().open("rewind", "table")
    assert trainer.fit().status is RunState.FINISHED
    numbers = page.view["numbers"]
    assert numbers["train/loss"]["bad_since"] == 31 and numbers["valid/loss"]["bad_since"] == 40
    assert math.isfinite(numbers["valid/loss"]["best"]["value"])
    assert {row["step"]: row.get("value") for row in page.view["rewind"]}[60] == "nan"
    [best] = [row for row in page.view["rewind"] if row.get("best")]
    assert best["step"] <= 30
    table = page.view["table"]
    first, *others = table["rows"].values()
    assert [row["valid/loss"] for row in others] == ["nan", "nan"]
    assert table["rows"][str(table["best"]["valid/loss"])] is first


def test_skipped_steps_do_not_end_the_run():
    """non_finite="skip": three windows were left out, the run goes on, the weights stay valid."""
    trainer = make(non_finite="skip")
    trainer.model.last = 33
    page = Page(trainer.feed).hello()
    trainer.fit()
    assert page.view["state"] == {"name": "finished"} and page.view["place"]["step"] == 57
    found = page.view["numbers"]["train/loss"]
    assert isinstance(found["value"], float) and found["of"] == 33 and "bad_since" not in found


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
