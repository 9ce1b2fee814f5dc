"""The way from the loss to torch's engine:
the shortest where nothing is looked up on it, the public one everywhere else."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from trainer_nb import Hook, Trainer
from trainer_nb.support import torch_private
from trainer_nb.support.torch_private import run_backward


def made(**settings):
    """A run of four batches an epoch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    made = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 3, generator=made), torch.randint(0, 2, (5,), generator=made))
               for _ in range(4)]
    settings = {"loss_fn": torch.nn.CrossEntropyLoss(), **settings}
    return Trainer(model, train_dl=batches,
                   optim=lambda parameters: torch.optim.SGD(parameters, lr=0.1), epochs=2,
                   progress=False, **settings)


def weights(trainer):
    """Of the model, as they are."""
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def public(monkeypatch):
    """The calls of `Tensor.backward` from now on."""
    seen, backward = [], torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward",
                        lambda self, *a, **k: (seen.append(self), backward(self, *a, **k))[1])
    return seen


class Marked(torch.Tensor):
    """A tensor of the user's own, which is told what is done with it."""

    told = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """As of any tensor."""
        cls.told.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("settings",
                         [{}, {"gradient_accumulation_steps": 3}, {"mixed_precision": "bf16"},
                          {"mixed_precision": "fp16"}],
                         ids=["plain", "accumulation", "bf16", "fp16"])
def test_both_ways_lead_to_the_same_weights(settings, monkeypatch):
    """Bit for bit; also in a version of torch that has no shorter one."""
    short = made(device="cpu", **settings)
    short.fit()
    monkeypatch.setattr(torch_private, "_RUN", None)
    seen = public(monkeypatch)
    long = made(device="cpu", **settings)
    long.fit()
    assert len(seen) == 8
    assert all(torch.equal(a, b) for a, b in zip(weights(short), weights(long), strict=True))


def test_the_public_way_is_left_out_where_it_has_nothing_to_do(monkeypatch):
    """Else there were nothing to test here."""
    entered = []
    make_grads = torch.autograd._make_grads
    monkeypatch.setattr(torch.autograd, "_make_grads",
                        lambda *a, **k: entered.append(a) or make_grads(*a, **k))
    made().fit()
    assert not entered


@pytest.mark.parametrize("place", [(torch.Tensor, "backward"), (torch.autograd, "backward")],
                         ids=["Tensor.backward", "autograd.backward"])
def test_what_a_user_put_there_in_mid_run_is_called(place, monkeypatch):
    """From the next batch on."""
    seen, before = [], getattr(*place)

    class Put(Hook):
        def after_step(self, trainer):
            if trainer.step_state.optimizer_step == 3:
                monkeypatch.setattr(*place,
                                    lambda *a, **k: (seen.append(trainer.step_state.optimizer_step),
                                                     before(*a, **k))[1])

    made(hooks=[Put()]).fit()
    assert seen == [3, 4, 5, 6, 7]


def test_a_mode_sees_it():
    """Whoever follows torch's functions finds this one among them."""

    class Follows(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen = []
    with Follows():
        made().fit()
    assert seen.count(torch.Tensor.backward) == 8


def test_a_tensor_of_the_users_own_is_told():
    """A subclass may have its own word in it, as loss or as seed."""
    weight = torch.ones((), requires_grad=True)
    Marked.told.clear()
    run_backward(weight * torch.ones(()).as_subclass(Marked), torch.ones(()))
    assert torch.Tensor.backward in Marked.told
    run_backward(weight * 2, torch.ones(()).as_subclass(Marked))
    run_backward(weight * 2, None)
    assert float(weight.grad) == 5


def test_errors_are_those_of_torch():
    """A seed of another shape, a loss without a graph, a graph that is gone."""
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        run_backward(weight.sum(), torch.ones(2))
    with pytest.raises(RuntimeError, match="does not require grad"):
        run_backward(torch.ones(()), torch.ones(()))
    loss = (weight * weight).sum()
    run_backward(loss, torch.ones(()))
    assert torch.equal(weight.grad, 2 * torch.ones(3))
    with pytest.raises(RuntimeError, match="second time"):
        run_backward(loss, torch.ones(()))
