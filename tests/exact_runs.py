"""Small runs in which nearly everything can differ:
built from a plan, halted anywhere, resumed by another trainer."""

import random
import sys
import tempfile
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from devices import exact_on
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from trainer_nb import Hook, LayerGroupsHook, Trainer, Tunable
from trainer_nb.core.control import Command
from trainer_nb.support.saved import read_state, write_state
from trainer_nb.core.state import seed_everything
from trainer_nb.hooks.schedule import SchedulerHook

SAMPLES, SIZE, EPOCHS = 18, 4, 3  # 5 batches an epoch, the last one of two samples
INPUTS = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(3))
TARGETS = INPUTS.sum(1, keepdim=True).sin()


@dataclass(frozen=True)
class Plan:
    """What a run is made of."""

    # or "plain", "replacement", "weighted", "batches", "samples", "iterable", "list"
    order: str = "shuffle"
    generator: str | None = None  # "own" to the training loader, or "shared" with validation
    augment: str | None = None  # draws in the dataset: "torch", "numpy", "python"
    drop_last: bool = False
    workers: int = 0
    persistent: bool = False
    valid: str | None = "plain"  # or "shuffle"
    total: tuple = (("epochs", EPOCHS),)
    eval_every: int | None = None
    eval_first: bool = False
    accumulation: int = 1
    micro_batch_size: int | None = None
    precision: str | None = None
    clip: float | None = None
    ema: float | None = None
    optim: str = "adamw"
    sched: str | None = None
    every: str = "step"
    limit: int | float | None = None
    overfit: int | None = None
    resume_data: str = "skip"
    seed: int | None = 7
    frozen: bool = False  # the first layer
    resting: bool = False  # batch norm in eval mode
    groups: bool = False  # layer groups
    device: str = "cpu"
    changes: tuple = ()  # (boundary, ((name, value), ...)): what is changed by hand, and where


class Samples(Dataset):
    """The samples by index or by a list of them, augmented from a global stream."""

    def __init__(self, augment=None):
        self.augment = augment

    def __len__(self):
        return SAMPLES

    def noise(self, index):
        """A number of the stream asked for; some samples draw two, since every second one waits,
        drawn before."""
        times = 1 + sum([index] if isinstance(index, int) else index) % 2
        if self.augment == "torch":
            return torch.randn(times).sum().item()
        if self.augment == "numpy":
            return sum(np.random.normal() for _ in range(times))
        return sum(random.gauss(0, 1) for _ in range(times)) if self.augment == "python" else 0.0

    def __getitem__(self, index):
        return INPUTS[index] + self.noise(index), TARGETS[index]


class Stream(IterableDataset):
    """The same samples without an index; each of two workers gives its share."""

    def __init__(self, augment=None):
        self.samples = Samples(augment)

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        share = range(SAMPLES) if worker is None else (range(10), range(10, SAMPLES))[worker.id]
        return (self.samples[index] for index in share)


class Mix(Hook):
    """Mixes a batch with itself by a random share, and counts;
    the count has a part in the share."""

    order = 5
    share = Tunable(0.3, min=0, max=1)

    def __init__(self):
        self.seen, self.mean = 0, torch.zeros(4)

    def before_batch(self, trainer):
        """In training only."""
        if trainer.training:
            inputs, targets = trainer.batch
            self.mean = self.mean.to(inputs.device)
            other = torch.randperm(len(inputs))
            share = self.share * torch.rand(()).item() / (1 + self.seen % 5)
            trainer.batch = (inputs.lerp(inputs[other], share) - 0.01 * self.mean,
                             targets.lerp(targets[other], share))

    def after_step(self, trainer):
        """Steps count, batches do not: a window that is void is taken again."""
        self.seen += 1
        self.mean.lerp_(trainer.batch[0].mean(0), 0.1)  # in place: who keeps it must copy it

    def state_dict(self):
        """All it knows, the mean as it is."""
        return {"seen": self.seen, "mean": self.mean}

    def load_state_dict(self, state):
        """All it knew."""
        self.seen, self.mean = state["seen"], state["mean"]


class Bend(Hook):
    """Before or after the mixing is not the same."""

    order = 6

    def before_batch(self, trainer):
        """Bends the inputs."""
        if trainer.training:
            trainer.batch = trainer.batch[0].tanh(), trainer.batch[1]


SCHEDULERS = {
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=24),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + 0.3 * n)),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.2, 1.0, 4), lr_scheduler.ExponentialLR(o, 0.8)],
        milestones=[4]),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.2),
}  # fmt: skip
OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9),
}


def make_loader(plan, generator, model=None):
    """The training loader of a plan."""
    dataset = Samples(plan.augment)
    if plan.order == "list":
        return [(INPUTS[i : i + SIZE], TARGETS[i : i + SIZE]) for i in range(0, SAMPLES, SIZE)]
    workers = {"num_workers": plan.workers, "persistent_workers": plan.persistent}
    if plan.order == "iterable":
        return DataLoader(Stream(plan.augment), SIZE, drop_last=plan.drop_last, generator=generator,
                          **workers)
    sampler = {
        "shuffle": lambda: RandomSampler(dataset, generator=generator),
        "plain": lambda: SequentialSampler(dataset),
        "replacement": lambda: RandomSampler(dataset, replacement=True, num_samples=14,
                                             generator=generator),
        "weighted": lambda: WeightedRandomSampler(range(1, SAMPLES + 1), SAMPLES,
                                                  generator=generator),
        "batches": lambda: RandomSampler(dataset, generator=generator),
        "samples": lambda: RandomSampler(dataset, generator=generator),
    }[plan.order]()  # fmt: skip
    if plan.order == "samples":  # no batching of torch's: the sampler gives lists of indices
        sampler, size = BatchSampler(sampler, SIZE, plan.drop_last), None
        return DataLoader(dataset, size, sampler=sampler, generator=generator, **workers)
    if plan.order == "batches":
        batches = BatchSampler(sampler, SIZE, plan.drop_last)
        return DataLoader(dataset, batch_sampler=batches, generator=generator, **workers)
    return DataLoader(dataset, SIZE, sampler=sampler, drop_last=plan.drop_last, generator=generator,
                      **workers)


def usual_model(plan, prepared):
    """A small net; layers are frozen or at rest only where it is prepared."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2),
                          nn.Linear(8, 1))
    model[0].requires_grad_(not (prepared and plan.frozen))
    model[1].train(not (prepared and plan.resting))
    return model


def parameter_groups(model):
    """Two groups, of which the last has a rate of its own."""
    every = list(model.parameters())
    cut = max(1, len(every) - 2)
    return [{"params": every[:cut]}, {"params": every[cut:], "lr": 0.005}]


def make_trainer(plan, weights=0, prepared=True, hooks=None, loader=None, model=None, optim=None,
                 sched=None, kind=Trainer, **more):
    """A trainer of a plan with initial weights of its own;
    layers are frozen or at rest only where it is prepared.

    `loader` is a function of the plan, its generator and the model, in place of `make_loader`;
    `model` a function, `optim` one of parameter groups, `sched` one of the optimizer that returns
    hooks; `more` goes to the Trainer."""
    torch.manual_seed(weights)
    model = usual_model(plan, prepared) if model is None else model()
    generator = torch.Generator().manual_seed(11) if plan.generator else None
    valid = None
    if plan.valid:
        shared = generator if plan.generator == "shared" else None
        valid = DataLoader(Samples(), 7, shuffle=plan.valid == "shuffle", generator=shared)
    optim = (optim or OPTIMIZERS[plan.optim])(parameter_groups(model))
    own = [LayerGroupsHook({"first": ["0", "1"], "last": "4"})] if plan.groups else []
    given = SCHEDULERS.get(plan.sched, plan.sched)
    if callable(given) and not plan.groups:
        given = given(optim)
    sched = (sched(optim) if sched else
             given and SchedulerHook(given, None if plan.sched == "plateau" else plan.every))
    return kind(
        model, train_dl=(loader or make_loader)(plan, generator, model), valid_dl=valid,
        **({} if "train_step" in more else {"loss_fn": nn.MSELoss()}), optim=optim, sched=sched,
        hooks=own + ([Mix(), Bend()] if hooks is None else hooks), mixed_precision=plan.precision,
        grad_clip=plan.clip,
        gradient_accumulation_steps=plan.accumulation, micro_batch_size=plan.micro_batch_size,
        seed=plan.seed, ema=plan.ema,
        eval_every=None if valid is None else plan.eval_every, eval_first=plan.eval_first,
        limit_batches=plan.limit,
        overfit_batches=plan.overfit,
        resume_data=plan.resume_data, device=plan.device, progress=False, **dict(plan.total),
        **more)


def scramble(seed=987):
    """The global streams are anywhere else."""
    seed_everything(seed)
    random.gauss(0, 1)
    np.random.normal()


@dataclass(frozen=True)
class Halt:
    """Where a trainer gives up, and how: "step" counts optimizer steps, "stop" and "pause" safe
    points of all kinds."""

    how: str
    at: int


def drive(trainer, plan=Plan(), halt=None):
    """Drive on, with the plan's changes at their boundaries, to the end or to the halt;
    returns the trainer."""
    points = 0

    def look(kind):
        nonlocal points
        if kind == "boundary":
            for boundary, values in plan.changes:
                if boundary == trainer.step_state.boundary:
                    trainer.post(Command("tune", dict(values)))
        if kind in ("boundary", "micro"):
            points += 1
            if halt is not None and halt.how != "step" and points == halt.at:
                getattr(trainer, halt.how)()

    trainer.at_safe_point = look
    if halt is None or halt.how != "step":
        trainer.fit()
    elif halt.at:
        trainer.step(halt.at)
    trainer.at_safe_point = None
    return trainer


def through_file(state):
    """What a file of a state gives back."""
    with tempfile.TemporaryDirectory() as folder:
        return read_state(write_state(state, Path(folder) / "run.pt"))


def new_run(plan, **settings):
    """A trainer, and the random streams with which each run begins."""
    trainer = make_trainer(plan, **settings)
    scramble(5)
    return trainer


def straight_run(plan, **settings):
    """The run that nobody disturbs."""
    seed_everything(5)
    return drive(new_run(plan, **settings), plan)


def halted_run(plan, *halts, **settings):
    """The same, each part by a new trainer that has only a file of the one before;
    the last one goes to the end."""
    trainer = new_run(plan, **settings)
    for number, halt in enumerate(halts, 1):
        state = through_file(drive(trainer, plan, halt).state_dict())
        trainer.close()
        trainer = make_trainer(plan, weights=100 + number, prepared=False)
        scramble(number)
        trainer.load_state_dict(state)
    return drive(trainer, plan)


def final(trainer):
    """The whole state of a trainer, without what is a time or a way of getting there."""
    return comparable(trainer.state_dict())


def comparable(state):
    """A state that is taken at the end, without what is a time or a way of getting there."""
    state["position"].pop("seconds")
    # how the last epoch's loader was opened
    state["data"].pop("workers_persist"), state["data"].pop("start")
    entries = state["journal"]["entries"]
    state["journal"]["entries"] = [[entry[key]
                                    for key in ("name", "old", "new", "boundary", "step", "epoch",
                                                "branch")]
                                   for entry in entries if entry["kind"] == "tune"]  # fmt: skip
    points = state["history"]["points"]
    state["history"]["points"] = {
        name: columns[:3] + (columns[4:] if not name.startswith(("time/", "samples_per")) else ())
        for name, columns in points.items()}  # fmt: skip
    return state


def bits(tensor):
    """The bytes of a tensor: a NaN equals itself, and -0.0 is not 0.0."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


def differences(a, b, where=""):
    """The places at which two states differ in a bit."""
    if isinstance(a, torch.Tensor):
        same = (type(b) is type(a) and (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
                and torch.equal(bits(a), bits(b)))
        return [] if same else [where]
    if type(a) is not type(b):
        return [f"{where} {a!r} {b!r}"]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{where} {sorted(map(str, a.keys() ^ b.keys()))}"]
        return [found for key in a for found in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, (list, tuple, deque)):
        if len(a) != len(b):
            return [f"{where} {len(a)} {len(b)}"]
        return [found for i, pair in enumerate(zip(a, b))
                for found in differences(*pair, f"{where}[{i}]")]
    return [] if a == b or a != a else [f"{where} {a!r} {b!r}"]


def assert_same(trainer, straight):
    """Two runs stand at the same place, and are the same."""
    found = differences(final(trainer), final(straight))
    assert not found, found
    for name in ("step_state", "state", "best", "skipped_steps", "records"):
        assert getattr(trainer, name) == getattr(straight, name), name
    assert trainer.step_state.evaluated_at == straight.step_state.evaluated_at
    assert trainer.runner.rates.base == straight.runner.rates.base


def assert_continues(state, plan, straight, weights=3, **settings):
    """A new trainer that has only the state ends as the straight run did."""
    again = make_trainer(plan, weights=weights, **settings)
    again.load_state_dict(state)
    assert_same(drive(again, plan), straight)


def finish_in_this_process(source, target, **changes):
    """What another process does: take the state of one file up, go to the end, write another
    one."""
    plan = replace(Plan(), **changes)
    exact_on(plan.device)
    trainer = make_trainer(plan, weights=55, prepared=False)
    scramble()
    trainer.load(source)
    drive(trainer, plan).save(target)
    trainer.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    import json

    finish_in_this_process(*sys.argv[1:3], **json.loads(sys.argv[3]))
