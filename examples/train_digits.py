"""A script that is steered from elsewhere:
handwritten digits, in a folder that other processes see.

    python examples/train_digits.py [--epochs 10] [--workspace runs/digits]

From a notebook, so that it outlives the kernel:

    run = trainer_nb.launch("examples/train_digits.py", "--epochs", 10, workspace="runs/digits")

Run again in the same folder it goes on where it was. Ctrl-C, SIGTERM and `run.stop()` end it on a
whole step.
"""

import argparse
import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from trainer_nb import CheckpointHook, Hook, SnapshotHook, Trainer, Tunable


def accuracy(pred, target):
    """The share of right answers."""
    return (pred.argmax(1) == target).float().mean()


class Noise(Hook):
    """Adds noise to the training images."""

    amount = Tunable(0.2, min=0, max=1, doc="standard deviation of the noise")

    def before_batch(self, trainer):
        """In training only."""
        if trainer.training:
            images, labels = trainer.batch
            trainer.batch = images + self.amount * torch.randn_like(images), labels


class Slow(Hook):
    """Waits after each step: a run that is long enough to steer."""

    seconds = Tunable(0.0, min=0, max=1, doc="seconds after each step")

    def __init__(self, seconds):
        self.seconds = seconds

    def after_step(self, trainer):
        """The steps are the same, only later."""
        time.sleep(self.seconds)


def make_trainer(arguments):
    """The model, its data and its trainer."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    train, valid = random_split(data, [1437, 360], generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    return Trainer(
        model,
        train_dl=DataLoader(train, 32, shuffle=True),
        valid_dl=DataLoader(valid, 360),
        loss_fn=nn.CrossEntropyLoss(),
        metrics={"accuracy": accuracy},
        optim=lambda parameters: torch.optim.AdamW(parameters, lr=arguments.lr),
        grad_clip=1.0,
        epochs=arguments.epochs,
        seed=0,
        best=("valid/accuracy", "max"),
        hooks=[Noise(), Slow(arguments.slow), CheckpointHook(), SnapshotHook()],
        workspace=arguments.workspace,
        engine=arguments.engine,
    )


def main():
    """Train, and say how it went."""
    parser = argparse.ArgumentParser(
        description="Train on handwritten digits, in a folder from which the run can be steered.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to wait after each step")
    parser.add_argument("--engine", default="local",
                        help="for several processes: torchrun --nproc-per-node 2 "
                             "examples/train_digits.py --engine accelerate")
    parser.add_argument("--workspace", default="runs/digits", help="folder of the run")
    with make_trainer(parser.parse_args()) as trainer:
        try:
            result = trainer.fit()
        except KeyboardInterrupt:
            return 130
    if trainer.is_main:
        print(f"{result.status}: {result.steps} steps, best validation accuracy "
              f"{trainer.best['value']:.4f} at step {trainer.best['step']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
