"""A program for tests: `python steered.py [--option ...]` trains in runs/exp1, steered in the way
that the options say."""

import argparse
import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainer_nb import CheckpointHook, Hook, SnapshotHook, Trainer
from trainer_nb.core.control import Command
from trainer_nb.core.journal import digest

parser = argparse.ArgumentParser()
parser.add_argument("how", nargs="?", default="plain")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--engine", default="local")
parser.add_argument("--slow", type=float, default=0.0, help="seconds a step")
parser.add_argument("--checkpoints", action="store_true")
parser.add_argument("--planted", type=int, default=0,
                    help="the step after which a weight moves by a ten-thousandth")
parser.add_argument("--gates", nargs="*", default=[], metavar="STEP:FILE",
                    help="after this step it waits for a file")
parser.add_argument("--workspace", default="runs/exp1")
wanted = parser.parse_args()


class Noisy(Dataset):
    """Samples with noise of all three random streams."""

    def __len__(self):
        return 26

    def __getitem__(self, index):
        x = torch.full((5,),
                       index / 26) + 0.1 * torch.randn(
                           5) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return x, torch.tensor([float(index % 3)])


class Acts(Hook):
    """What is done after which step."""

    kept = False

    def before_batch(self, trainer):
        """A batch that cannot be read, the first time."""
        if (wanted.how == "spoils" and trainer.step_state.optimizer_step == 9
            and not Path("failed").exists()):
            Path("failed").touch()
            raise ArithmeticError("planted")

    def after_step(self, trainer):
        """Once each."""
        step = trainer.step_state.optimizer_step
        if wanted.slow:
            time.sleep(wanted.slow)
        for gate in wanted.gates:
            at, _, name = gate.partition(":")
            if int(at) == step:
                Path(f"{name}.reached").touch()
                while not Path(name).exists():
                    time.sleep(0.01)
        if wanted.how == "clock" and step in CLOCK:
            CLOCK[step].wait()
        if step == wanted.planted:
            with torch.no_grad():
                trainer.plain_model[0].weight[0, 0] += 1e-4
        for act in ACTS.get(wanted.how, {}).get(step, ()):
            act(trainer)


def fails_once():
    """In after_step: the hooks that come later are not called."""
    if not FAILED:
        FAILED.append(True)
        raise ArithmeticError("planted")


def sources(trainer, source, **values):
    """Tune as another user."""
    trainer.post(Command("tune", values, source))


FAILED = []
ACTS = {
    "tunes": {7: [lambda t: t.tune(lr=0.05)],
              15: [lambda t: t.tune(grad_clip=0.2, weight_decay=0.5)]},
    "sources": {5: [lambda t: sources(t, "agent:one", lr=0.05)],
                15: [lambda t: sources(t, "shell", lr=0.002)]},
    "windows": {5: [lambda t: sources(t, "agent:one", gradient_accumulation_steps=2)],
                12: [lambda t: sources(t, "shell", lr=0.05)]},
    "evaluations": {5: [lambda t: t.tune(eval_every=2)],
                    15: [lambda t: sources(t, "shell", lr=0.05)]},
    "stops": {5: [lambda t: t.tune(lr=0.05)],
              17: [lambda t: wanted.how == "stops" and Path("stop").exists() and t.stop()]},
    "fails": {9: [lambda t: 1 / 0]},
    "repeats": {9: [lambda t: fails_once()]},
}


CLOCK = {20: threading.Event(), 27: threading.Event()}  # at the latest after these steps


def by_the_clock(trainer):
    """A person at a shell: where the changes come is another place each time."""
    while trainer.step_state.optimizer_step < 5:
        time.sleep(0.001)
    own = random.Random(os.getpid()).random()
    time.sleep(own * 0.05)
    trainer.tune(lr=0.05 + 0.01 * own)
    pause = trainer.pause()
    CLOCK[20].set()
    pause.wait()
    trainer.tune(grad_clip=0.1)
    trainer.note("somebody was here").wait()
    trainer.resume().wait()
    trainer.tune(weight_decay=0.3)
    CLOCK[27].set()


def make(workspace):
    """Dropout, shuffling, an average, a schedule."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))
    loss_fn = nn.MSELoss()
    hooks = [Acts(), SnapshotHook(every_steps=2)] if wanted.engine == "local" else [Acts()]
    if wanted.checkpoints:
        hooks.append(CheckpointHook("checkpoints", every_steps=3, every_epochs=None))
    return Trainer(model, train_dl=DataLoader(Noisy(), batch_size=4, shuffle=True),
                   valid_dl=DataLoader(Noisy(), batch_size=13), loss_fn=loss_fn,
                   optim=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
                   epochs=wanted.epochs, seed=3, device="cpu", progress=False,
                   hooks=hooks, workspace=workspace, engine=wanted.engine,
                   metrics={"mistake": lambda pred, target: (pred - target).abs().mean()},
                   best=("valid/mistake", "min"), max_time=1.0 if wanted.how == "limited" else None)


def main():
    """Train, and leave a file that says so."""
    if wanted.how == "two":
        make("runs/before").fit()
    trainer = make(wanted.workspace)
    if wanted.how == "clock":
        threading.Thread(target=by_the_clock, args=[trainer], daemon=True).start()
    if wanted.how == "rewinds":
        trainer.step(9)
        trainer.tune(lr=0.5)
        trainer.step(4)
        trainer.rewind(8)
        trainer.tune(lr=0.003)
    if wanted.how == "replaces":
        trainer.step(9)
        trainer.loss_fn = nn.HuberLoss()
    if wanted.how == "waits":
        trainer.step(9)
        Path("waiting").touch()
        time.sleep(600)
    if wanted.how in ("repeats", "spoils"):
        try:
            trainer.fit()
        except ArithmeticError:
            pass
    trainer.fit()
    whole = trainer.state_dict()["model"]  # all processes ask together
    if trainer.is_main:
        with open("after", "a") as file:
            file.write(f"{digest({'model': whole, 'loss_fn': {}})}\n")


if __name__ == "__main__":
    main()
