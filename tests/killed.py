"""A training process that `test_torture.py` kills at any moment;
started again, it goes on in the same folder.

`python tests/killed.py FOLDER --result FILE` trains to the end, and says "training", each step, and
"done". `--hold 6`: after step 6 it says "held", and waits for a file FOLDER.go.
"""

import argparse
import hashlib
import json
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from devices import exact_on
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainer_nb import CheckpointHook, Hook, Trainer

# seven batches, the last one smaller; four steps, the last one of one batch
SAMPLES, BATCH, EPOCHS = 26, 4, 5
STEPS = 4 * EPOCHS


class Noisy(Dataset):
    """Samples; where they are loaded in the main process, with noise from all three random
    streams."""

    def __init__(self, noise):
        draw = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(SAMPLES, 6, generator=draw)
        self.targets = self.inputs[:, :1].sin() + self.inputs[:, 1:2]
        self.noise = noise

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        inputs = self.inputs[index]
        if self.noise:
            scaled = inputs * (1 + 0.1 * random.random())
            inputs = scaled + 0.1 * np.random.randn() + 0.1 * torch.randn(6)
        return inputs, self.targets[index]


class Augment(Hook):
    """Changes each batch by numbers of all three random streams, and counts its calls."""

    calls = 0

    def before_batch(self, trainer):
        """In training; evaluations draw too, which must change nothing."""
        inputs, targets = trainer.batch
        noise = 0.2 * torch.rand(()) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        if trainer.training:
            self.calls += 1
            trainer.batch = inputs[torch.randperm(len(inputs))].lerp(inputs, 0.9) + noise, targets

    def state_dict(self):
        """The calls."""
        return {"calls": self.calls}

    def load_state_dict(self, state):
        """Go on counting."""
        self.calls = state["calls"]


class Slow(Hook):
    """Takes its time with every batch, says every step; after one of them it waits for a file."""

    kept = False

    def __init__(self, pause=0.0, told=None, hold=None, go=None):
        self.pause, self.told, self.hold, self.go = pause, told, hold, go

    def after_pred(self, trainer):
        """In training and in evaluations."""
        if self.pause:
            time.sleep(self.pause)

    def after_step(self, trainer):
        """The step's number."""
        if self.told is not None:
            self.told("step", trainer.step_state.optimizer_step)
        if trainer.step_state.optimizer_step == self.hold:
            self.told("held")
            while not self.go.exists():
                time.sleep(0.005)


def schedule(name, optim):
    """OneCycle changes the momenta too."""
    if name == "onecycle":
        return torch.optim.lr_scheduler.OneCycleLR(optim, 0.02, STEPS)
    return torch.optim.lr_scheduler.LinearLR(optim, 1.0, 0.1, STEPS)


def make(folder=None, workers=0, sched="onecycle", hooks=(), settings=None, epochs=EPOCHS,
         device="cpu", **others):
    """A trainer with everything by which a resumed run can go another way;
    `settings` are the checkpoint hook's."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.2), nn.ReLU(), nn.Linear(12, 1)
    model = nn.Sequential(*layers)
    saving = ([]
              if folder is None
              else [CheckpointHook(folder, **{"every_steps": 1, **(settings or {})})])
    train = DataLoader(Noisy(not workers), BATCH, shuffle=True, num_workers=workers)
    return Trainer(
        model, train_dl=train, valid_dl=DataLoader(Noisy(not workers), 9), loss_fn=nn.MSELoss(),
        epochs=epochs,
        optim=torch.optim.AdamW(model.parameters(), lr=0.01),
        sched=lambda optim: schedule(sched, optim), seed=11,
        gradient_accumulation_steps=2, hooks=[Augment(), *saving, *hooks], device=device,
        progress=False, **others)


def digest(*tensors):
    """A check sum of tensors, bit for bit."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def outcome(trainer):
    """All that two equal runs have in common at their end: check sums and counts."""
    moments = [value for state in trainer.optim.state.values() for value in state.values()]
    history, state = trainer.history, trainer.step_state
    names = [name for name in sorted(history.names)
             if not name.startswith(("time/", "samples_per_second"))]
    told = [torch.tensor(column) for each in map(history.series, names)
            for column in (each.steps, each.values)]
    return {"weights": digest(*trainer.model.state_dict().values()), "moments": digest(*moments),
            "rates": [group["lr"] for group in trainer.optim.param_groups],
            "ticks": trainer.sched.last_epoch,
            "place": [state.epoch, state.batch_idx, state.optimizer_step, state.samples_seen],
            "calls": next(hook for hook in trainer.hooks if isinstance(hook, Augment)).calls,
            "records": names, "history": digest(*told)}


def say(*words):
    """A line that the parent reads at once."""
    print(*words, flush=True)


def main(words):
    """Train in a folder."""
    ask = argparse.ArgumentParser()
    ask.add_argument("folder")
    ask.add_argument("--result", required=True)
    ask.add_argument("--workers", type=int, default=0)
    ask.add_argument("--sched", default="onecycle")
    ask.add_argument("--pause", type=float, default=0.01)
    ask.add_argument("--every", type=int, default=1)
    ask.add_argument("--device", default="cpu")
    ask.add_argument("--hold", type=int)
    given = ask.parse_args(words)
    # ignored where a shell starts jobs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    exact_on(given.device)
    # what is imported at the first step is in memory now
    make(epochs=1, sched=given.sched, limit_batches=2, device=given.device).fit()
    slow = Slow(given.pause, say, given.hold, Path(f"{given.folder}.go"))
    with make(given.folder, given.workers, given.sched, [slow],
              {"every_steps": given.every}, device=given.device) as trainer:
        say("training")
        trainer.fit()
        Path(given.result).write_text(json.dumps(outcome(trainer)), encoding="utf-8")
    say("done")


if __name__ == "__main__":
    main(sys.argv[1:])
