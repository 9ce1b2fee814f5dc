"""The figure of a history: the numbers in it are those that were recorded."""

import numpy as np
import pytest
import torch
from small_runs import BATCHES, make

from trainer_nb import NonFiniteError
from trainer_nb.hooks.snapshots import SnapshotHook
from trainer_nb.panel.figure import figure


def lines(drawn, name):
    """What is drawn of a record: steps and values of each line."""
    return [(np.asarray(each.x), np.asarray(each.y)) for each in drawn.data if each.name == name]


def test_each_record_is_drawn_with_its_numbers():
    with make(epochs=8, valid_dl=BATCHES, metrics={"mae": torch.nn.L1Loss()}) as trainer:
        trainer.fit(epochs=2)
        trainer.tune(lr=0.01)
        trainer.fit(epochs=8)
        drawn, history = trainer.history.plot(), trainer.history
    for name in ("valid/loss", "valid/mae", "lr"):
        (steps, values), = lines(drawn, name)
        assert steps.tolist() == history.steps(name).tolist()
        assert values.tolist() == history[name].tolist()
    (_, raw), (steps, means) = lines(drawn, "train/loss")
    assert raw.tolist() == history["train/loss"].tolist()
    assert steps[-1] == 40 and means.min() >= raw.min() and means.max() <= raw.max()
    (place,) = [each for each in drawn.layout.shapes if each.type == "line"]
    assert place.x0 == 10 and [each.text for each in drawn.layout.annotations][-1] == "1"
    losses = {each.xaxis for each in drawn.data if each.name.endswith("loss")}
    assert losses == {"x"} and {each.xaxis for each in drawn.data if each.name == "lr"} != losses


def test_what_a_rewind_took_back_is_dotted_and_a_gap_stays():
    with make(epochs=4, hooks=[SnapshotHook(every_steps=5)]) as trainer:
        trainer.step(12)
        taken = trainer.history["train/loss"][10:].tolist()
        trainer.rewind(10)
        trainer.step(2)
        trainer.tune(lr=1e38)
        with pytest.raises(NonFiniteError):
            trainer.step(8)
        drawn = trainer.history.plot()
        own = trainer.history["train/loss"]
    (steps, values), = lines(drawn, "rewound")[:1]
    assert steps.tolist() == [11, 12] and values.tolist() == taken
    (_, raw), *means = lines(drawn, "train/loss")
    assert not np.isfinite(own).all() and np.array_equal(raw, own, equal_nan=True)
    assert all(np.isfinite(each).all() for _, each in means)


def test_losses_in_powers_of_ten_and_no_records_at_all():
    with make(epochs=1) as trainer:
        assert not figure(trainer.view).data
        trainer.fit()
        assert figure(trainer.view, log=True).layout.yaxis.type == "log"
