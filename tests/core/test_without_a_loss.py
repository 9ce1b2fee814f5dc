"""A model without loss function and step gets the whole batch: what cannot work is said at
construction, and the first batch's error says what to write; no batch is offered to be skipped."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from trainer_nb import Trainer

X = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
PAIRS = [(X[:8], X[:8, :1]), (X[8:], X[8:, :1])]
NAMED = [{"x": x, "labels": y} for x, y in PAIRS]


class Own(nn.Module):
    """Returns its loss, in one way or another."""

    def __init__(self, error=None):
        super().__init__()
        self.layer, self.error = nn.Linear(3, 1), error

    def forward(self, x, labels):
        """A dict with the loss."""
        if self.error:
            raise self.error
        return {"loss": nn.functional.mse_loss(self.layer(x), labels)}


class NoLoss(Own):
    """Takes targets and forgets them."""

    def forward(self, x, labels):
        """The prediction."""
        return self.layer(x)


def make(model, loader, **settings):
    """A trainer without loss function."""
    return Trainer(model, train_dl=loader, device="cpu", progress=False,
                   **{"epochs": 1, **settings})


@pytest.mark.parametrize("model, loader, text", [
    (lambda: nn.Linear(3, 1), PAIRS, r"Linear.forward\(input.*does not take a batch of 2 values"),
    (lambda: nn.Linear(3, 1), NAMED, r"a batch of 2 values by name \(x, labels\)"),
    (lambda: nn.Linear(3, 1), [X[:8]], r"Linear returned a tensor of shape \(8, 1\), and no loss"),
    (NoLoss, PAIRS, "NoLoss returned a tensor"), (Own, [X], "does not take a batch of 1 value")])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore:no loss_fn=")
def test_the_first_batch_says_what_to_write(model, loader, text, compiled):
    trainer = make(model(), loader)
    if compiled:
        trainer = make(torch.compile(model(), backend="eager"), loader)
    with pytest.raises(TypeError, match=text) as found:
        trainer.fit()
    assert "loss_fn=" in str(found.value) and "train_step=" in str(found.value)
    assert trainer.loop.feed.failed is None
    with pytest.raises(RuntimeError, match="nothing to skip"):
        trainer.fit(skip_failed=True)


def test_construction_says_that_the_model_has_to_return_its_loss():
    with pytest.warns(UserWarning, match="Linear has to return its loss. Without loss_fn="):
        make(nn.Linear(3, 1), PAIRS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(Own(), PAIRS)
        Trainer(nn.Linear(3, 1), train_dl=PAIRS, loss_fn=nn.MSELoss(), device="cpu")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_is_no_code_of_python_s_can_be_trained():
    model = torch.jit.trace(Own(), PAIRS[0], strict=False)
    trainer = make(model, PAIRS)
    assert trainer.fit().steps == 2


def test_an_error_of_the_model_s_own_stays_what_it_is():
    trainer = make(Own(TypeError("unsupported operand")), PAIRS)
    with pytest.raises(TypeError, match="^unsupported operand"):
        trainer.fit()
    assert trainer.loop.feed.failed is not None
    trainer.model.error = None
    assert trainer.fit().steps == 2


@pytest.mark.parametrize("loader", [PAIRS, NAMED])
def test_a_model_with_its_own_loss_trains(loader):
    assert make(Own(), loader).fit().steps == 2


@pytest.mark.parametrize("wrong", [{"epochs": 2.5}, {"epochs": None, "max_steps": -1},
                                   {"epochs": 0}, {"epochs": True}, {"epochs": "3"},
                                   {"epochs": 1, "max_steps": 2}])
def test_a_length_that_makes_no_sense_is_refused_by_the_constructor(wrong):
    with pytest.raises(ValueError, match=r"Trainer\(\).*(epochs|max_steps)="):
        make(Own(), PAIRS, **wrong)


EVALUATED = {"valid_dl": PAIRS, "eval_step": lambda batch, trainer: {"loss": torch.zeros(())}}


@pytest.mark.parametrize("settings", [
    {"epochs": np.int64(1)}, {"epochs": None, "max_steps": np.int32(2)},
    {"micro_batch_size": np.int64(4)}, {"seed": np.int64(3)},
    {"gradient_accumulation_steps": np.int64(1)}, {"limit_batches": np.int64(2)},
    {"limit_batches": {"train": np.int64(2)}}, {**EVALUATED, "eval_every": np.int64(1)},
    {**EVALUATED, "eval_first": np.int64(1)}], ids=lambda settings: next(reversed(settings)))
def test_a_whole_number_of_numpy_s_is_one(settings):
    trainer = make(Own(), PAIRS, **settings)
    assert trainer.fit().steps == 2
    assert type(trainer.state_dict()["position"]["totals"]["epochs"]) in (int, type(None))
    assert trainer.fit(**({"max_steps": np.int64(4)} if trainer.max_steps else
                          {"epochs": np.int64(2)})).steps == 4
    name = "max_steps" if trainer.max_steps else "epochs"
    setattr(trainer, name, np.int64(6 if trainer.max_steps else 3))
    assert trainer.fit().steps == 6
