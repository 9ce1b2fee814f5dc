"""Drawn runs that are disturbed in drawn ways, against the same runs left alone:
equal in every bit, or `exact` says why not.

    python tests/fuzz.py 3000          # scenarios 0 to 2999 of seed 0, in two processes
    python tests/fuzz.py 3000 7        # of seed 7
    python tests/fuzz.py 1 7 1234      # scenario 1234 of seed 7 alone, told in full
    python tests/fuzz.py 300 7 --device cuda

A scenario is a function of its seed, number and device alone. On a GPU the algorithms are the
deterministic ones of torch, and half of the runs in bf16 are in fp16, with a scaler.
"""

import argparse
import random
import subprocess
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from devices import exact_on
from exact_runs import (
    INPUTS,
    SAMPLES,
    SIZE,
    TARGETS,
    Bend,
    Mix,
    Plan,
    Samples,
    Stream,
    differences,
    final,
    make_loader,
    make_trainer,
    scramble,
    through_file,
)
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
    default_collate,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from trainer_nb import SnapshotHook
from trainer_nb.core.control import Command
from trainer_nb.core.hook import LambdaHook


@dataclass(frozen=True)
class Event:
    """A part of the run, and what happens after it."""

    way: str  # of going on: "step", "stop", "pause", "interrupt", "thread", "pair"
    length: int  # in optimizer steps for "step", else in safe points
    what: str  # happens then


@dataclass(frozen=True)
class Scenario:
    """A run, and what disturbs it."""

    plan: Plan
    kind: str = "torch"  # of the loader, or "stateful"
    # "own": a sampler that draws from a generator of its own; "epoch": goes by set_epoch
    random_sampler: str | None = None
    own_generator: bool = False  # the dataset draws from a NumPy generator of its own
    mixes: bool = False  # the collate function draws
    seed_samples: bool = False
    events: tuple = ()


# Parts of a scenario


class OwnNoise(Dataset):
    """Draws from a generator that only the dataset holds."""

    def __init__(self):
        self.rng = np.random.default_rng(4)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return INPUTS[index] + float(self.rng.normal()), TARGETS[index]


class OwnOrder(Sampler):
    """Draws its order from a generator that only the sampler holds."""

    def __init__(self):
        self.rng = np.random.default_rng(8)

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        return iter(self.rng.permutation(SAMPLES).tolist())


class EpochOrder(Sampler):
    """An order for each epoch, as a DistributedSampler has."""

    epoch = 0

    def __len__(self):
        return SAMPLES

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(SAMPLES).tolist())


def mix(samples):
    """Each batch is turned by a random share."""
    inputs, targets = default_collate(samples)
    return inputs.lerp(inputs.flip(0), 0.5 * torch.rand(())), targets


def loader_of(scenario):
    """A function that makes the scenario's training loader."""

    def make(plan, generator):
        plain = (scenario.random_sampler, scenario.own_generator,
                 scenario.mixes) == (None, False, False)
        if scenario.kind == "torch" and plain:
            return make_loader(plan, generator)
        kind = StatefulDataLoader if scenario.kind == "stateful" else DataLoader
        more = {"num_workers": plan.workers,
                "persistent_workers": plan.persistent and plan.workers > 0,
                "generator": generator, "collate_fn": mix if scenario.mixes else None}
        if plan.order == "iterable":
            return kind(Stream(plan.augment), SIZE, drop_last=plan.drop_last, **more)
        dataset = OwnNoise() if scenario.own_generator else Samples(plan.augment)
        if scenario.random_sampler:
            sampler = OwnOrder() if scenario.random_sampler == "own" else EpochOrder()
        else:
            sampler = {
                "plain": lambda: SequentialSampler(dataset),
                "replacement": lambda: RandomSampler(dataset, replacement=True, num_samples=14,
                                                     generator=generator),
                "weighted": lambda: WeightedRandomSampler(
                    range(1, SAMPLES + 1), SAMPLES, generator=generator),
            }.get(plan.order, lambda: RandomSampler(dataset, generator=generator))()
        if plan.order == "batches":
            return kind(dataset, batch_sampler=BatchSampler(sampler, SIZE, plan.drop_last), **more)
        if plan.order == "shuffle" and not scenario.random_sampler:
            return kind(dataset, SIZE, shuffle=True, drop_last=plan.drop_last, **more)
        return kind(dataset, SIZE, sampler=sampler, drop_last=plan.drop_last, **more)

    return make


def make(scenario, weights=0, prepared=True, hooks=()):
    """A trainer of the scenario."""
    return make_trainer(
        scenario.plan, weights, prepared,
        hooks=[Mix(), Bend(), SnapshotHook(every_steps=1, memory="50MB"), *hooks],
        loader=loader_of(scenario), seed_samples=scenario.seed_samples)


# How a part is driven


def watched(trainer, plan, safe_points=None, way=None):
    """What is called at the trainer's safe points:
    changes by hand at their boundaries, and the end of the part."""
    count = 0

    def look(kind):
        nonlocal count
        if kind == "boundary":
            for boundary, values in plan.changes:
                if boundary == trainer.boundaries:
                    trainer.post(Command("tune", dict(values)))
        if kind in ("boundary", "micro"):
            count += 1
            if count == safe_points and way != "step":
                trainer.post(Command("stop" if way in ("thread", "pair") else way))

    trainer.at_safe_point = look


def companion(device):
    """Another run, which draws from the global streams as well."""
    plan = Plan(augment="torch", seed=99, total=(("epochs", 40),), device=device)
    return make(Scenario(plan))


def go_on(trainer, plan, event):
    """Drive a part of the run."""
    watched(trainer, plan, event.length, event.way)
    if event.way == "step":
        trainer.step(event.length)
    elif event.way == "thread":
        trainer.start()
        trainer.wait(600)
    elif event.way == "pair":
        with companion(plan.device) as other:
            other.start()
            trainer.start()
            trainer.wait(600)
            other.stop()
            other.wait(600)
    else:
        try:
            trainer.fit()
        except KeyboardInterrupt:
            assert event.way == "interrupt"
    trainer.at_safe_point = None


def raising(batches):
    """A hook that raises at a batch of the training."""
    seen = 0

    def after_batch(trainer):
        nonlocal seen
        seen += trainer.training
        if trainer.training and seen == batches:
            raise ArithmeticError("a crash")

    return LambdaHook(after_batch=after_batch, name="crash")


def disturb(trainer, scenario, event, draw):
    """What happens between two parts; returns the trainer that goes on."""
    plan, state = scenario.plan, trainer.step_state
    scramble(draw.randrange(1000))
    if event.what == "another trainer":
        given = through_file(trainer.state_dict())
        trainer.close()
        trainer = make(scenario, weights=draw.randrange(100), prepared=False)
        scramble(draw.randrange(1000))
        trainer.load_state_dict(given)
    elif event.what == "its own state":
        given = through_file(trainer.state_dict())
        watched(trainer, plan)
        trainer.step(draw.randint(1, 6))
        trainer.load_state_dict(given)
    elif event.what == "rewind":
        points = [point for point in trainer.rewind_points() if point.step <= state.optimizer_step]
        if points:
            watched(trainer, plan)
            trainer.step(draw.randint(1, 6))
            trainer.rewind(draw.choice(points).step)
            # a snapshot is of before what was changed by hand at its boundary
            for boundary, values in plan.changes:
                if boundary == trainer.boundaries:
                    trainer.tune(**dict(values))
    elif event.what == "crash":
        given = through_file(trainer.state_dict())
        trainer.close()
        dies = make(scenario, weights=3, prepared=False, hooks=[raising(draw.randint(1, 9))])
        dies.load_state_dict(given)
        watched(dies, plan)
        try:
            dies.fit()
        except ArithmeticError:
            pass
        dies.close()
        trainer = make(scenario, weights=draw.randrange(100), prepared=False)
        trainer.load_state_dict(given)
    elif event.what == "lr_find":
        trainer.lr_find(num_steps=draw.randint(10, 14), start_lr=1e-4, end_lr=1e-1)
    elif event.what == "sweep":
        trainer.sweep("grad_clip", [0.5, 1.0, None][: draw.randint(1, 3)])
    elif event.what == "validate" and trainer.valid_loaders:
        trainer.validate()
    elif event.what == "predict":
        trainer.predict(DataLoader(Samples(), 5, shuffle=True))
    elif event.what == "close":
        trainer.close()
    trainer.at_safe_point = None
    return trainer


WAYS = ("step", "step", "stop", "pause", "interrupt", "thread", "pair")
WHATS = ("nothing", "another trainer", "another trainer", "its own state", "rewind", "crash",
         "lr_find", "sweep", "validate",
         "predict", "close")  # fmt: skip


# Drawing a scenario


def draw_changes(draw):
    """A few changes by hand, and the boundaries they are made at."""
    kinds = (
        lambda: ("lr", draw.choice([0.03, 0.001, None])),
        lambda: ("lr_scale", draw.choice([0.5, 2.0])),
        lambda: ("weight_decay", draw.choice([0.0, 0.5])),
        lambda: ("mix.enabled", draw.random() < 0.5),
        lambda: ("mix.order", draw.choice([4, 7])),
        lambda: ("gradient_accumulation_steps", draw.randint(1, 4)),
        lambda: ("grad_clip", draw.choice([None, 0.1])),
        lambda: ("eval_every", draw.choice([None, 1, 2])),
        lambda: ("mixed_precision", draw.choice([None, "bf16"])),
    )
    return tuple((draw.randint(1, 22), (draw.choice(kinds)(),))
                 for _ in range(draw.choice([0, 0, 1, 3])))


def draw_plan(draw):
    """A run."""
    one = lambda *values: draw.choice(values)  # noqa: E731
    valid = one("plain", "plain", "shuffle", None)
    total = one((("epochs", 3),), (("epochs", 3),), (("max_steps", 11),))
    sched = one(None, None, "lambda", "restarts", "sequential", *(["plateau"] if valid else []))
    fewer = one(None, None, None, "limit", "overfit")
    workers = one(*[0] * 12, 1, 2)
    return Plan(
        order=one("shuffle", "replacement", "weighted", "batches", "samples", "plain", "iterable",
                  "list"),
        generator=one(None, "own", "shared"), augment=one(None, "torch", "numpy", "python"),
        drop_last=one(False, True),
        workers=workers, persistent=bool(workers) and one(False, True), valid=valid, total=total,
        eval_every=one(None, None, 1, 2), eval_first=bool(valid) and one(False, False, True),
        accumulation=one(1, 1, 2, 3), micro_batch_size=one(None, None, 2),
        precision=one(None, None, "bf16"),
        clip=one(None, 0.3), ema=one(None, 0.9), optim=one("adamw", "sgd"), sched=sched,
        every="step" if sched is None or sched == "plateau" else one("step", "epoch"),
        limit=one(2, 3) if fewer == "limit" else None, overfit=2 if fewer == "overfit" else None,
        resume_data=one("skip", "skip", "replay"), seed=one(7, None), changes=draw_changes(draw))


def scenario_of(seed, number, device="cpu"):
    """Scenario `number` of a seed."""
    draw = random.Random(f"{seed} {number}")
    plan = draw_plan(draw)
    kind = (draw.choice(["torch", "torch", "stateful"])
            if plan.order not in ("list", "samples") else "torch")
    by_index = plan.order in ("shuffle", "plain", "replacement", "weighted", "batches")
    sampler = draw.choice([None, None, None, "own", "epoch"]) if by_index else None
    own = by_index and draw.random() < 0.15
    mixes = plan.order not in ("list", "samples") and draw.random() < 0.15
    seeded = (by_index and kind == "torch" and not own and not mixes and plan.seed is not None
              and draw.random() < 0.2)
    if plan.order == "list":
        plan = replace(plan, generator=None, workers=0, persistent=False)
    if plan.order == "samples":
        plan = replace(plan, workers=0, persistent=False)
    events = tuple(Event(draw.choice(WAYS), draw.randint(1, 12), draw.choice(WHATS))
                   for _ in range(draw.randint(1, 4)))
    # `exact` assumes that persistent workers of a stream draw nothing
    if plan.order == "iterable" and (plan.augment or mixes):
        plan = replace(plan, persistent=False)
    # without a seed the run begins where the other one left the streams
    if any(event.way == "pair" for event in events):
        plan = replace(plan, seed=7)
    scales = device != "cpu" and plan.precision == "bf16" and number % 2
    plan = replace(plan, device=device, precision="fp16" if scales else plan.precision)
    return Scenario(plan, kind, sampler, own, mixes, seeded, events)


# Judging it


def judged(trainer):
    """What must be equal at the end: nothing of branches, of boundaries' times, or of the loader's
    own notes."""
    state = final(trainer)
    state.pop("journal"), state.pop("fingerprint")
    state["position"].pop("branch"), state["position"].pop("inexact")
    state["history"].pop("branches", None)
    state["hooks"].pop("snapshot", None)
    state["data"] = {}
    return {key: state[key]
            for key in ("model", "optim", "hooks", "tunables", "position", "random", "history",
                        "loaders")}


def run(seed, number, device="cpu"):
    """The scenario once undisturbed and once disturbed; returns "equal", "refused:
    ...", or what differs."""
    scenario = scenario_of(seed, number, device)
    draw = random.Random(f"{seed} {number} events")
    scramble(5)
    straight = make(scenario)
    scramble(5)
    watched(straight, scenario.plan)
    straight.fit()
    straight.at_safe_point = None
    trainer = make(scenario)
    foreseen = [str(each) for each in trainer.exact.obstacles]
    scramble(5)
    for event in scenario.events:
        go_on(trainer, scenario.plan, event)
        trainer = disturb(trainer, scenario, event, draw)
    watched(trainer, scenario.plan)
    trainer.fit()
    trainer.at_safe_point = None
    later = [str(each) for each in trainer.exact.obstacles]
    found = differences(judged(trainer), judged(straight))
    trainer.close(), straight.close()
    if not found:
        return "equal"
    if foreseen or later:
        return f"named: {foreseen[0]}" if foreseen else f"named afterwards: {later[0]}"
    return f"DIFFERENT: {found[:4]}"


def outcome(seed, number, device="cpu"):
    """As `run`; an exception is an outcome too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(seed, number, device)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return (f"RAISED: {type(error).__name__}: {str(error)[:160]} "
                    f"({Path(where.filename).name}:{where.lineno})")


def main(count, seed=0, first=None, device="cpu", processes=2):
    """Run scenarios; print what is not equal, and the counts at the end."""
    torch.set_num_threads(1)
    exact_on(device)
    if first is None:
        parts = [subprocess.Popen([sys.executable, __file__, str(count), str(seed),
                                   f"{part}/{processes}", "--device", device])
                 for part in range(processes)]
        return max(each.wait() for each in parts)
    part, _, parts = first.partition("/")
    numbers = (range(int(part), count, int(parts))
               if parts else range(int(part), int(part) + count))
    counts, began = {}, time.monotonic()
    for number in numbers:
        if count == 1:
            print(scenario_of(seed, number, device))
        told = outcome(seed, number, device)
        counts[told.split(":")[0]] = counts.get(told.split(":")[0], 0) + 1
        if not told.startswith(("equal", "named")):
            print(f"seed {seed} scenario {number}: {told}", flush=True)
        left = [each.name for each in threading.enumerate() if each.name == "trainer_nb"]
        if left:
            print(f"seed {seed} scenario {number}: threads left {left}", flush=True)
    print(f"seed {seed}, {len(numbers)} scenarios in {time.monotonic() - began:.0f} s: {counts}",
          flush=True)
    return int(any(not key.startswith(("equal", "named")) for key in counts))


if __name__ == "__main__":
    ask = argparse.ArgumentParser()
    ask.add_argument("count", type=int)
    ask.add_argument("seed", type=int, nargs="?", default=0)
    ask.add_argument("first", nargs="?")
    ask.add_argument("--device", default="cpu")
    ask.add_argument("--processes", type=int, default=2)
    sys.exit(main(**vars(ask.parse_args())))
