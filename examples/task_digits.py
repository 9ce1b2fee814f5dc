"""Handwritten digits as a Task: everything that is trained in one class, and one of its parts
changed by a subclass.

    python examples/task_digits.py [--epochs 8] [--wide]

Validation is on clean and on noisy images, each with the digit that is read worst; the test set is
looked at once, at the end. Ctrl-C ends the run on a whole step; the exit code is then 130.
"""

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import Task, Trainer


def accuracy(pred, target):
    """The share of right answers."""
    return (pred.argmax(1) == target).float().mean()


class Digits(Task):
    """A small network, AdamW, one cycle."""

    def __init__(self, width=128, lr=3e-3, batch_size=32):
        self.width, self.lr, self.batch_size = width, lr, batch_size
        images, labels = load_digits(return_X_y=True)
        images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
        own = torch.Generator().manual_seed(0)  # the split is the same under every seed
        parts = torch.randperm(len(images), generator=own).split([1197, 300, 300])
        self.train, self.valid, self.test = (TensorDataset(images[part], labels[part])
                                             for part in parts)
        noise = 0.3 * torch.randn(300, 64, generator=own)
        self.noisy = TensorDataset(images[parts[1]] + noise, labels[parts[1]])

    def build_model(self):
        """One hidden layer."""
        return nn.Sequential(nn.Linear(64, self.width), nn.ReLU(), nn.Dropout(0.2),
                             nn.Linear(self.width, 10))

    def build_train_dl(self):
        """Shuffled."""
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def build_valid_dl(self):
        """Clean and noisy images."""
        return {"valid": DataLoader(self.valid, 150), "noisy": DataLoader(self.noisy, 150)}

    def build_test_dl(self):
        """Images that no decision was made by."""
        return DataLoader(self.test, 150)

    def build_loss_fn(self):
        """Cross entropy."""
        return nn.CrossEntropyLoss()

    def build_metrics(self):
        """What can be counted batch by batch."""
        return {"accuracy": accuracy}

    def build_optim(self, model):
        """AdamW."""
        return torch.optim.AdamW(model.parameters(), lr=self.lr)

    def build_sched(self, optim):
        """Made for the length of the run."""
        return "one_cycle"

    def end_of_evaluation(self, name, outputs, trainer):
        """What needs all of a loader: the accuracy on the digit that is read worst."""
        right = torch.cat([each["pred"].argmax(1) == each["target"] for each in outputs])
        target = torch.cat([each["target"] for each in outputs])
        return {"worst_digit": min(right[target == digit].float().mean() for digit in range(10))}

    def cb_after_fit(self, trainer):
        """The last word of a run that came to its end."""
        print(f"test accuracy {trainer.test()['test/accuracy']:.4f}")


class WideDigits(Digits):
    """The same with two hidden layers."""

    def build_model(self):
        """Two hidden layers."""
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 128),
                             nn.ReLU(), nn.Linear(128, 10))


def main():
    """Train, and say how it went."""
    parser = argparse.ArgumentParser(description="Train a task on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--wide", action="store_true")
    arguments = parser.parse_args()
    with Trainer.from_task(WideDigits if arguments.wide else Digits, epochs=arguments.epochs,
                           seed=0) as trainer:
        print(trainer.summary(), flush=True)
        try:
            result = trainer.fit()
        except KeyboardInterrupt:
            return 130
    last = result.last
    print(f"{result.status}: accuracy {last['valid/accuracy']:.4f}, worst digit "
          f"{last['valid/worst_digit']:.4f}, "
          f"noisy images {last['noisy/accuracy']:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
