"""LBFGS: a quasi-Newton method, whose line search asks for loss and gradients several times a step.

    python examples/lbfgs.py [--steps 15]

It is made for full batches and smooth losses: here logistic regression on scikit-learn's breast
cancer data.
"""

import argparse
import sys

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from trainer_nb import Trainer


class LBFGSTrainer(Trainer):
    """Gives the optimizer a closure: loss and gradients of the whole window, from zero gradients,
    clipped with `grad_clip`."""

    repeats_windows = True

    def do_opt_step(self):
        """The closure's first answer is what the window has found already."""
        asked = []

        def closure():
            asked.append(True)
            return self.window.loss() if len(asked) == 1 else self.window_gradients()

        return super().do_opt_step(closure)


def make_trainer(steps):
    """Logistic regression with a little weight decay in its loss."""
    torch.manual_seed(0)
    inputs, labels = load_breast_cancer(return_X_y=True)
    inputs = torch.tensor((inputs - inputs.mean(0)) / inputs.std(0), dtype=torch.float32)
    targets = torch.tensor(labels, dtype=torch.float32)[:, None]
    order = torch.randperm(len(inputs))
    train, valid = order[:400], order[400:]
    model = nn.Linear(30, 1)

    def train_step(batch, trainer):
        pred = trainer.model(batch[0])
        penalty = 1e-3 * trainer.model.weight.square().sum()
        loss = nn.functional.binary_cross_entropy_with_logits(pred, batch[1]) + penalty
        return {"loss": loss, "pred": pred, "target": batch[1]}

    return LBFGSTrainer(
        model,
        train_step,
        [(inputs[train], targets[train])],
        [(inputs[valid], targets[valid])],
        metrics={"accuracy": lambda pred, target: ((pred > 0) == (target > 0.5)).float().mean()},
        optim=torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe"),
        max_steps=steps,
    )


def main():
    """Train, and say how it went."""
    parser = argparse.ArgumentParser(description="Logistic regression with LBFGS.")
    parser.add_argument("--steps", type=int, default=15)
    with make_trainer(parser.parse_args().steps) as trainer:
        result = trainer.fit()
    print(f"{result.status}: {result.steps} steps, train loss {result.last['train/loss']:.4f}, "
          f"validation accuracy {result.last['valid/accuracy']:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
