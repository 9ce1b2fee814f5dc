"""A step that calls backward() itself; attributes that every hook has."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import Hook, Trainer

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))


def run(step, **settings):
    """Two epochs of a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    loader = DataLoader(TensorDataset(X, X[:, :1]), 8)
    trainer = Trainer(model, step, loader, optim=torch.optim.SGD(model.parameters(), 0.1),
                      epochs=2, device="cpu", progress=False, **settings)
    trainer.fit()
    return model[0].weight.detach()


def whole(batch, trainer):
    """Both parts, returned."""
    pred = trainer.model(batch[0])
    return {"loss": mse_loss(pred, batch[1]) + pred.abs().mean()}


def parts(batch, trainer):
    """The first part by a backward() of its own."""
    trainer.model(batch[0]).abs().mean().backward()
    return {"loss": mse_loss(trainer.model(batch[0]), batch[1])}


def now_and_then(batch, trainer):
    """The same, but only at some steps."""
    step = whole if trainer.step_state.optimizer_step < 2 else parts
    return step(batch, trainer)


def all_of_it(batch, trainer):
    """All of it, and the loss is returned as well."""
    loss = mse_loss(trainer.model(batch[0]), batch[1])
    loss.backward()
    return {"loss": loss}


def test_with_one_batch_a_step_it_adds_its_gradients():
    """As by hand."""
    assert torch.allclose(run(whole), run(parts), atol=1e-6)


@pytest.mark.parametrize("step", [parts, now_and_then])
@pytest.mark.parametrize("settings", [{"gradient_accumulation_steps": 2}, {"micro_batch_size": 4},
                                      {"micro_batch_size": 3, "gradient_accumulation_steps": 3}])
def test_in_a_window_of_several_passes_it_is_refused(step, settings):
    """Its weight there would be another one; a step without one is not touched by that."""
    with pytest.raises(RuntimeError, match="a backward\\(\\) of its own.*return the sum of all"):
        run(step, **settings)
    run(whole, **settings)


def test_a_second_backward_names_the_trainer():
    """And keeps torch's words behind it."""
    with pytest.raises(RuntimeError, match="the trainer calls backward\\(\\) on the loss") as found:
        run(all_of_it)
    assert "second time" in str(found.value.__cause__)


@pytest.mark.parametrize("name", ["order", "enabled"])
@pytest.mark.parametrize("value", [torch.randperm(8), [1, 2], "first"],
                         ids=["tensor", "list", "str"])
def test_an_attribute_that_every_hook_has(name, value):
    """Set to something of the user's, it is named with its class."""
    class Rollout(Hook):
        """Keeps an order of samples."""

        def before_train(self, trainer):
            """Too late for an error at construction."""
            setattr(self, name, value)
            trainer.loop.resolve_hooks(trainer)

    with pytest.raises(TypeError, match=f"Rollout.{name} is a {type(value).__name__}"):
        run(whole, hooks=[Rollout()])
