"""The wrapper that torch puts around every optimizer's step:
left out where it has nothing to do, and only there."""

import functools
import types

import pytest
import torch
from torch.optim.optimizer import (register_optimizer_step_post_hook,
                                   register_optimizer_step_pre_hook)
from torch.profiler import ProfilerActivity, profile

from trainer_nb import Hook, Trainer
from trainer_nb.support.torch_private import step_within


def made(optim=None, **settings):
    """A run of four batches an epoch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    batches = [(torch.randn(5, 3), torch.randint(0, 2, (5,))) for _ in range(4)]
    make = optim or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    return Trainer(model, train_dl=batches, loss_fn=torch.nn.CrossEntropyLoss(), optim=make,
                   epochs=2, progress=False, **settings)


class At(Hook):
    """Does something after a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def after_step(self, trainer):
        """Once."""
        if trainer.step_state.optimizer_step == self.step:
            self.action(trainer)


def test_the_wrapper_is_left_out_where_it_has_nothing_to_do(monkeypatch):
    """Else there were nothing to test here: torch's own wrapper is not entered."""
    entered = []
    record = torch.autograd.profiler.record_function
    monkeypatch.setattr(torch.autograd.profiler, "record_function",
                        lambda *a: entered.append(a) or record(*a))
    made().fit()
    assert not [name for name, *_ in entered if name.startswith("Optimizer.step")]
    assert step_within(made().optim) is not None


@pytest.mark.parametrize("kind", ["pre", "post", "every pre", "every post"])
def test_step_hooks_that_come_in_mid_run_are_called(kind):
    """From the very next step on, and no longer once they are removed."""
    seen = []

    def hook(*arguments):
        seen.append(trainer.step_state.optimizer_step)

    def add(trainer):
        register = {"pre": trainer.optim.register_step_pre_hook,
                    "post": trainer.optim.register_step_post_hook,
                    "every pre": register_optimizer_step_pre_hook,
                    "every post": register_optimizer_step_post_hook}[kind]
        trainer.handle = register(hook)

    trainer = made(hooks=[At(2, add), At(5, lambda t: t.handle.remove())])
    trainer.fit()
    assert seen == [2, 3, 4]


def test_a_profiler_sees_the_step():
    """As it does in a loop by hand."""
    trainer = made()
    trainer.step(2)
    with profile(activities=[ProfilerActivity.CPU]) as traced:
        trainer.step(3)
    found = {event.key: event.count for event in traced.key_averages()}
    assert found["Optimizer.step#SGD.step"] == 3


def test_a_step_put_in_place_of_the_optimizers_own_is_made():
    """On the object, or on the class, also in mid-run."""
    seen = []

    def replace(trainer):
        own = trainer.optim.step
        trainer.optim.step = types.MethodType(lambda self, closure=None: seen.append("object")
                                              or own(), trainer.optim)

    made(hooks=[At(6, replace)]).fit()
    assert seen == ["object"] * 2

    class Mine(torch.optim.SGD):
        def step(self, closure=None):
            seen.append("class")
            return super().step(closure)

    def other(trainer):
        own = Mine.step

        @functools.wraps(own)  # it then bears all marks of torch's own wrapper
        def patched(self, closure=None):
            seen.append("patched")
            return own(self, closure)

        Mine.step = patched

    seen.clear()
    made(lambda parameters: Mine(parameters, lr=0.1), hooks=[At(6, other)]).fit()
    assert seen == ["class"] * 6 + ["patched", "class"] * 2


def test_torchs_schedulers_see_the_steps(recwarn):
    """They count the steps, and warn of one that was not made."""
    made(sched=lambda optim: torch.optim.lr_scheduler.StepLR(optim, 3)).fit()
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "differentiable": lambda p: torch.optim.SGD(p, lr=0.1, differentiable=False, maximize=True),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_weights_are_those_of_the_whole_step(name):
    """Bit for bit, and gradients stay switched on."""
    results = []
    for whole in (False, True):
        trainer = made(OPTIMIZERS[name])
        assert step_within(trainer.optim) is not None
        if whole:
            trainer.optim.register_step_post_hook(lambda *arguments: None)
            assert step_within(trainer.optim) is None
        trainer.fit()
        assert torch.is_grad_enabled()
        results.append([p.detach().clone() for p in trainer.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))
