"""The table of the evaluations: its numbers are those of the run, also after a rewind, with NaN,
and with several loaders."""

import math

import numpy as np
import pytest
import torch

from trainer_nb import SnapshotHook, Trainer
from trainer_nb.core.control import Series
from trainer_nb.panel.plots import Curve, Curves
from trainer_nb.panel.table_pane import (DataTable, TablePane, best_row, evaluation_columns,
                                         means_between, values_at)


def made(**settings):
    """A small trainer with two validation loaders and a metric."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1]), batch_size=8)
    return Trainer(torch.nn.Linear(4, 1), train_dl=data, valid_dl={"near": data, "far": data},
                   loss_fn=torch.nn.MSELoss(), epochs=4, device="cpu",
                   seed=0, metrics={"mae": lambda pred, target: (pred - target).abs().mean()},
                   progress=False, **settings)


def table(trainer):
    """The columns, as they are now."""
    curves = Curves(trainer.view)
    curves.update()
    return evaluation_columns(curves)


def test_each_row_has_the_numbers_of_its_evaluation():
    trainer = made()
    trainer.fit()
    found = table(trainer)
    assert list(found)[:3] == ["step", "epoch", "train/loss"]
    assert list(found)[-2:] == ["time", "since"]
    assert found["step"].tolist() == [8, 16, 24, 32] and found["epoch"].tolist() == [1, 2, 3, 4]
    for name in ("near/loss", "far/loss", "near/mae", "far/mae"):
        np.testing.assert_allclose(found[name], trainer.history[name], rtol=1e-6)
    np.testing.assert_allclose(found["train/loss"],
                               trainer.history["train/loss"].reshape(4, 8).mean(1), rtol=1e-5)
    assert (np.diff(found["time"]) >= 0).all()
    assert found["since"].sum() == pytest.approx(found["time"][-1], rel=1e-5)


def test_a_rewind_takes_its_rows_along_and_what_comes_again_is_there_once():
    trainer = made(hooks=[SnapshotHook()])
    trainer.step(24)
    pane = TablePane(trainer.view)
    assert pane.title == "Table 2" and len(pane.widget.rows) == 2
    trainer.rewind(8)
    pane.refresh()
    assert [row[0] for row in pane.widget.rows] == [8] and pane.title == "Table 1"
    trainer.fit()
    pane.refresh()
    assert [row[0] for row in pane.widget.rows] == [8, 16, 24, 32]


def curve(steps, values):
    """A record with these points."""
    found, steps = Curve(), np.asarray(steps)
    found.extend(Series(steps, steps / 10, steps, steps * 1.0, np.asarray(values, float)))
    return found


def test_what_is_not_finite_or_not_there_is_said():
    loss = curve([1, 2, 3, 4, 5, 6], [1, math.nan, 3, math.nan, math.nan, 6])
    assert str(means_between(loss, np.array([3, 5, 6])).tolist()) == "[2.0, nan, 6.0]"
    some = curve([2, 4], [0.5, math.inf])
    assert str(values_at(some, np.array([1, 2, 3, 4, 9])).tolist()) == "[nan, 0.5, nan, inf, nan]"
    assert best_row("valid/loss", np.array([math.nan, 3.0, 2.0, math.inf])) == 2
    assert best_row("valid/accuracy", np.array([1.0, 3.0, 2.0])) == 1
    assert best_row("valid/odd", np.array([1.0])) is None
    assert best_row("step", np.array([1.0])) is None
    assert best_row("valid/loss", np.array([math.nan])) is None
    shown = DataTable()
    shown.show({"step": np.array([1, 2, 3]), "valid/loss": np.array([math.nan, math.inf, 1.5])})
    assert shown.rows == [[1.0, None], [2.0, "inf"], [3.0, 1.5]]
    assert [each["best"] for each in shown.columns] == [None, 2]


def test_nothing_new_sends_nothing_and_many_rows_are_the_last_ones():
    trainer = made()
    pane = TablePane(trainer.view)
    assert pane.widget.rows == [] and pane.widget.columns == []
    trainer.step(9)
    pane.refresh()
    before = pane.widget.rows
    trainer.step(1)
    pane.refresh()
    assert pane.widget.rows is before and len(before) == 1
    curves = Curves(trainer.view)
    curves.of = {"valid/loss": curve(np.arange(1, 5001), np.arange(5000.0)),
                 "train/loss": curve(np.arange(1, 5001), np.ones(5000))}
    assert evaluation_columns(curves)["step"].tolist() == list(range(3001, 5001))
