"""Sharpness-aware minimization: each step is made with the gradient of a place a little further up.

    python examples/sam.py [--epochs 5] [--rho 0.05] [--accumulate 1]

Foret, Kleiner, Mobahi and Neyshabur: Sharpness-Aware Minimization for Efficiently Improving
Generalization, ICLR 2021 (https://arxiv.org/abs/2010.01412). Any optimizer may be the inner one. A
step costs two passes.
"""

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from trainer_nb import Trainer, Tunable


class SAMTrainer(Trainer):
    """Steps with the gradient at the point of the highest loss near by, to first order:
    `rho` up the gradient."""

    # the second pass takes the window's batches again, with the dropout masks of the first
    repeats_windows = True
    rho = Tunable(0.05, min=0, doc="how far up SAM looks")

    def __init__(self, *args, rho=0.05, **settings):
        self.rho = rho
        super().__init__(*args, **settings)

    def do_opt_step(self):
        """Go up, take the gradients there, come back, step."""
        weights = [p for p in self.model.parameters() if p.grad is not None]
        gradients, before = [p.grad for p in weights], [p.detach().clone() for p in weights]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g)
                                                     for g in gradients]))
        try:
            with torch.no_grad():
                torch._foreach_add_(weights,
                                    torch._foreach_mul(gradients, self.rho / (norm + 1e-12)))
            self.window_gradients()
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, before)
        return self.gradients_allowed() and super().do_opt_step()


def make_trainer(epochs, rho, accumulate):
    """A network for handwritten digits."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    train, valid = random_split(data, [1437, 360])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    return SAMTrainer(
        model,
        train_dl=DataLoader(train, 32, shuffle=True),
        valid_dl=DataLoader(valid, 360),
        loss_fn=nn.CrossEntropyLoss(),
        metrics={"accuracy": lambda pred, target: (pred.argmax(1) == target).float().mean()},
        optim=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        rho=rho,
        gradient_accumulation_steps=accumulate,
        epochs=epochs,
        seed=0,
    )


def main():
    """Train, and say how it went."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits with SAM.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rho", type=float, default=0.05)
    parser.add_argument("--accumulate", type=int, default=1)
    arguments = parser.parse_args()
    with make_trainer(arguments.epochs, arguments.rho, arguments.accumulate) as trainer:
        result = trainer.fit()
    print(f"{result.status}: {result.steps} steps, validation accuracy "
          f"{result.last['valid/accuracy']:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
