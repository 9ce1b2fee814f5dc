"""Train a small network on scikit-learn's handwritten digits, without a notebook.

    python examples/digits.py [--epochs 15] [--workers 0]

Ctrl-C ends the run on a whole step; the exit code is then 130.
"""

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from trainer_nb import Trainer


def accuracy(pred, target):
    """The share of right answers."""
    return (pred.argmax(1) == target).float().mean()


def make_trainer(epochs, workers):
    """The model, its data and its trainer."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    train, valid = random_split(data, [1437, 360])
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
    steps = epochs * len(DataLoader(train, 32))
    return Trainer(
        model,
        train_dl=DataLoader(train, 32, shuffle=True, num_workers=workers),
        valid_dl=DataLoader(valid, 256),
        loss_fn=nn.CrossEntropyLoss(),
        metrics={"accuracy": accuracy},
        optim=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        sched=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2,
                                                                    total_steps=steps),
        epochs=epochs,
        seed=0,
    )


def main():
    """Train, and say how it went."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    with make_trainer(arguments.epochs, arguments.workers) as trainer:
        print(trainer.summary(), flush=True)
        try:
            result = trainer.fit()
        except KeyboardInterrupt:
            return 130
    print(f"{result.status}: {result.steps} steps, validation accuracy "
          f"{result.last['valid/accuracy']:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
