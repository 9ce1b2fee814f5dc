"""A small regression run without noise, and what tests do in it."""

from functools import partial

import torch
from torch import nn

from trainer_nb import LambdaHook, Trainer

Loop = partial(Trainer, record=False, progress=False)  # a trainer that shows and keeps nothing

X = torch.arange(40.0).reshape(20, 2) / 40

Y = X.sum(1, keepdim=True)

BATCHES = [(X[i:i + 4], Y[i:i + 4]) for i in range(0, 20, 4)]


def make(model=None, **settings):
    """A small regression run without noise."""
    torch.manual_seed(0)
    model = model or nn.Linear(2, 1)
    settings = {"train_dl": BATCHES, "loss_fn": nn.MSELoss(), "progress": False, "device": "cpu",
                "optim": torch.optim.SGD(model.parameters(), 0.05)} | settings
    return Trainer(model, **settings)


def evaluated(trainer):
    """The steps at which the run evaluated."""
    return trainer.history.steps("valid/loss").tolist()


def at_step(step, action):
    """A hook that does something once, after a step."""
    done = []

    def after_step(trainer):
        """Act once."""
        if trainer.step_state.optimizer_step == step and not done:
            done.append(step)
            action(trainer)

    return LambdaHook(name="act", after_step=after_step)


def fail(trainer):
    """What a hook of the user's may do."""
    raise ValueError("the user's own")


class HandClock:
    """A clock that moves only if a test moves it, in place of `perf_counter` in some modules.

    Each reading adds a microsecond, because two readings of a real clock differ."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        self.now += 1e-6
        return self.now

    def move(self, seconds):
        """Let time pass."""
        self.now += seconds

    def put_into(self, monkeypatch, *modules):
        """Let modules of the package, "core.driver" for example, read this clock."""
        for module in modules:
            monkeypatch.setattr(f"trainer_nb.{module}.perf_counter", self)
        return self
