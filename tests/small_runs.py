"""A small regression run without noise, and what tests do in it."""

import torch
from torch import nn

from trainer_nb import LambdaHook, Trainer

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
