"""Drawn runs that are disturbed in drawn ways, against the same runs left alone, and those that
are plain enough against a loop by hand: equal in every bit, or `exact` says why not. Of the kinds
in `fuzz_kinds.KINDS` that must be equal, that it says so is not enough.

    python tests/fuzz.py 3000          # scenarios 0 to 2999 of seed 0, in two processes
    python tests/fuzz.py 3000 7        # of seed 7
    python tests/fuzz.py 1 7 1234      # scenario 1234 of seed 7 alone, told in full
    python tests/fuzz.py 300 7 --device cuda

Every third scenario is of the usual kind, the others of each of the others in turn. A scenario is
a function of its seed, number and device alone. On a GPU the algorithms are the deterministic ones
of torch, and half of the runs in bf16 are in fp16, with a scaler.
"""

import argparse
import io
import random
import re
import sys
import threading
import time
import traceback
import warnings
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from devices import exact_on
from exact_runs import (
    EPOCHS,
    INPUTS,
    OPTIMIZERS,
    SAMPLES,
    SCHEDULERS,
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
    parameter_groups,
    through_file,
    usual_model,
)
from fuzz_kinds import KINDS
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

from trainer_nb import SnapshotHook, Trainer
from trainer_nb.core.control import Command
from trainer_nb.core.hook import LambdaHook
from trainer_nb.core.state import Phase, RandomStreams, seed_everything
from trainer_nb.tools.replay import ReplayHook


@dataclass(frozen=True)
class Event:
    """A part of the run, and what happens after it."""

    # of going on: "step", "stop", "pause", "interrupt", "thread", "pair", "held", "fit"
    way: str
    length: int  # in optimizer steps for "step", else in safe points
    what: str  # happens then


@dataclass(frozen=True)
class Scenario:
    """A run, and what disturbs it."""

    plan: Plan
    name: str = "usual"  # in KINDS
    later_from: int | None = None  # the epoch from which on another loader is there
    replayed: bool = False  # in the end, by the journal or its script
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

    def make(plan, generator, model):
        if KINDS[scenario.name].loader:
            return KINDS[scenario.name].loader(plan, generator, model)
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


def make(scenario, weights=0, prepared=True, hooks=(), rewinds=True):
    """A trainer of the scenario, perhaps with states to go back to."""
    kind = KINDS[scenario.name]
    more = {} if kind.step is None else {"train_step": kind.step}
    return make_trainer(
        scenario.plan, weights, prepared,
        hooks=[Mix(), Bend(), *([SnapshotHook(every_steps=2)] if rewinds else []), *hooks],
        loader=loader_of(scenario), model=kind.model, optim=kind.optim, sched=kind.sched,
        kind=kind.trainer, seed_samples=scenario.seed_samples, **more)


def has_other(trainer, scenario):
    """Whether a trainer that begins an epoch has the loader of other epochs."""
    state = trainer.step_state
    return (scenario.later_from is not None
            and state.phase in (Phase.EPOCH_START, Phase.ITERATE)
            and (state.epoch >= scenario.later_from) != is_later(trainer))


def change_loader(trainer, scenario):
    """Give the trainer the loader that is not there now."""
    plan = scenario.plan
    generator = torch.Generator().manual_seed(11) if plan.generator else None
    later = not is_later(trainer)
    made = (KINDS[scenario.name].later(plan, generator, trainer.model) if later
            else loader_of(scenario)(plan, generator, trainer.model))
    made.later = later
    trainer.train_dl = made


def is_later(trainer):
    """Whether it has the loader of later epochs."""
    return getattr(trainer.train_dl, "later", False)


def resumed(scenario, state, later, draw, hooks=()):
    """A new trainer that has only a state, and the loader of that state."""
    trainer = make(scenario, draw.randrange(100), prepared=False, hooks=hooks)
    if later:
        change_loader(trainer, scenario)
    scramble(draw.randrange(1000))
    trainer.load_state_dict(state)
    return trainer


# How a part is driven


def watched(trainer, scenario, safe_points=None, way=None):
    """What is called at the trainer's safe points:
    changes by hand at their boundaries, and the end of the part."""
    count = 0

    def look(kind):
        nonlocal count
        if kind == "boundary":
            for boundary, values in scenario.plan.changes:
                if boundary == trainer.step_state.boundary:
                    trainer.post(Command("tune", dict(values)))
            if has_other(trainer, scenario):
                if way in ("pair", "interrupt"):  # as a hook may ask for
                    trainer.ask(lambda: change_loader(trainer, scenario),
                                trainer.step_state.boundary)
                else:
                    trainer.post(Command("pause" if way == "held" else "stop"))
        if kind in ("boundary", "micro"):
            count += 1
            if count == safe_points and way not in ("step", "fit"):
                trainer.post(Command(way if way in ("stop", "pause", "interrupt") else "stop"))

    trainer.at_safe_point = look


def companion(device):
    """Another run, which draws from the global streams as well."""
    plan = Plan(augment="torch", seed=99, total=(("epochs", 40),), device=device)
    return make(Scenario(plan), rewinds=False)


def in_thread(trainer, scenario):
    """In the background; meanwhile it is held, looked at, and given another loader."""
    trainer.start()
    with trainer.paused():
        trainer.predict(DataLoader(Samples(), 5, shuffle=True))
        trainer.model.eval()
        torch.rand(3)
    while trainer.driver.driven:
        if trainer.state == "paused":
            with trainer.paused():
                if has_other(trainer, scenario):
                    change_loader(trainer, scenario)
            trainer.resume()
        time.sleep(0.001)
    trainer.wait(600)


def drive(trainer, scenario, call):
    """Drive by a call, and again after another loader was given on the way."""
    while True:
        if has_other(trainer, scenario):
            change_loader(trainer, scenario)
        call()
        if not has_other(trainer, scenario):
            return


def go_on(trainer, scenario, event):
    """Drive a part of the run."""
    watched(trainer, scenario, event.length, event.way)

    def call():
        if event.way == "step":
            trainer.step(event.length)
        elif event.way == "thread":
            trainer.start()
            trainer.wait(600)
        elif event.way == "held":
            in_thread(trainer, scenario)
        elif event.way == "fit":  # to an end that comes before the run's
            trainer.fit(epochs=min(EPOCHS, trainer.step_state.epoch + event.length % 2 + 1))
        elif event.way == "pair":
            with companion(scenario.plan.device) as other:
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

    drive(trainer, scenario, call)
    if event.way == "fit":
        trainer.epochs = EPOCHS
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

    def some_steps():
        watched(trainer, scenario)
        drive(trainer, scenario, lambda: trainer.step(draw.randint(1, 6)))

    scramble(draw.randrange(1000))
    if event.what == "another trainer":
        given = through_file(trainer.state_dict())
        trainer.close()
        trainer = resumed(scenario, given, is_later(trainer), draw)
    elif event.what == "its own state":
        given, later = through_file(trainer.state_dict()), is_later(trainer)
        some_steps()
        if later == is_later(trainer):
            trainer.load_state_dict(given)
        else:  # it may be in the middle of an epoch of the other loader
            trainer.close()
            trainer = resumed(scenario, given, later, draw)
    elif event.what == "rewind":
        points = [point for point in trainer.rewind_points() if point.step <= state.optimizer_step]
        if points:
            some_steps()
            trainer.rewind(draw.choice(points).step)
            # a snapshot is of before what was changed by hand at its boundary
            for boundary, values in plan.changes:
                if boundary == trainer.step_state.boundary:
                    trainer.tune(**dict(values))
    elif event.what == "crash":
        given, later = through_file(trainer.state_dict()), is_later(trainer)
        trainer.close()
        dies = resumed(scenario, given, later, draw, [raising(draw.randint(1, 9))])
        watched(dies, scenario)
        try:
            drive(dies, scenario, dies.fit)
        except ArithmeticError:
            pass
        dies.close()
        trainer = resumed(scenario, given, later, draw)
    elif event.what == "lr_find":
        trainer.lr_find(num_steps=draw.randint(10, 14), start_lr=1e-4, end_lr=1e-1)
    elif event.what == "sweep":
        trainer.sweep("grad_clip", [0.5, 1.0, None][: draw.randint(1, 3)])
    elif event.what == "validate" and trainer.evaluator.loaders:
        trainer.validate()
    elif event.what == "predict":
        trainer.predict(DataLoader(Samples(), 5, shuffle=True))
    elif event.what == "test":
        trainer.test(DataLoader(Samples(), 5, shuffle=True))
    elif event.what == "close":
        trainer.close()
    trainer.at_safe_point = None
    return trainer


WAYS = ("step", "step", "stop", "pause", "interrupt", "thread", "pair", "held", "fit")
WHATS = ("nothing", "another trainer", "another trainer", "its own state", "rewind", "crash",
         "lr_find", "sweep", "validate",
         "predict", "test", "close")  # fmt: skip


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


def kind_of(number):
    """The name of the kind of a scenario, and whether it is to be plain."""
    others = list(KINDS)[1:]
    turn, rest = divmod(number, 3)
    if not rest:
        return "usual", False
    turn = 2 * turn + rest - 1
    return others[turn % len(others)], bool(turn // len(others) % 2)


def plain(plan):
    """Without what a loop by hand has not."""
    return replace(plan, accumulation=1, micro_batch_size=None, precision=None, ema=None,
                   overfit=None, limit=None, changes=(), eval_first=False, workers=0,
                   persistent=False, sched=None if plan.sched == "plateau" else plan.sched)


def draw_events(draw, plan, kind):
    """What disturbs a run of a plan."""
    ways, whats = kind.ways or WAYS, kind.whats or WHATS
    # an end that comes before the run's has an evaluation of its own, else
    if dict(plan.total) != {"epochs": EPOCHS} or plan.eval_every not in (None, 1) or any(
            name == "eval_every" for _, values in plan.changes for name, _ in values):
        ways = tuple(way for way in ways if way != "fit")
    return tuple(Event(draw.choice(ways), draw.randint(1, 12), draw.choice(whats))
                 for _ in range(draw.randint(1, 4)))


def scenario_of(seed, number, device="cpu"):
    """Scenario `number` of a seed."""
    draw = random.Random(f"{seed} {number}")
    name, is_plain = kind_of(number)
    given, plan = KINDS[name], draw_plan(draw)
    if given.must:  # `exact` names what is drawn in workers
        plan = replace(plan, workers=0, persistent=False)
    if is_plain and given.model and draw.random() < 0.6:  # evaluations within epochs
        plan = replace(plan, valid="plain", total=(("max_steps", 11),), eval_every=2)
    plan = replace(plain(plan) if is_plain else plan, **given.plan)
    if plan.sched == "plateau" or plan.valid is None:
        plan = replace(plan, every="step", eval_first=False)
    torchs = given.loader is None and plan.order not in ("list", "samples")
    kind = draw.choice(["torch", "torch", "stateful"]) if torchs else "torch"
    by_index = given.loader is None and plan.order in ("shuffle", "plain", "replacement",
                                                       "weighted", "batches")
    sampler = draw.choice([None, None, None, "own", "epoch"]) if by_index else None
    own = by_index and draw.random() < 0.15
    mixes = torchs and draw.random() < 0.15
    seeded = (by_index and kind == "torch" and not own and not mixes and plan.seed is not None
              and draw.random() < 0.2)
    if plan.order == "list":
        plan = replace(plan, generator=None, workers=0, persistent=False)
    if plan.order == "samples":
        plan = replace(plan, workers=0, persistent=False)
    events = draw_events(draw, plan, given)
    # `exact` assumes that persistent workers of a stream draw nothing
    if plan.order == "iterable" and (plan.augment or mixes):
        plan = replace(plan, persistent=False)
    # without a seed the run begins where the other one left the streams
    if any(event.way in ("pair", "held") for event in events):
        plan = replace(plan, seed=7)
    scales = device != "cpu" and plan.precision == "bf16" and number % 2
    plan = replace(plan, device=device, precision="fp16" if scales else plan.precision)
    later = draw.randint(1, 2) if given.later else None
    # a script has changes by their steps, a journal by their boundaries
    replayed = draw.random() < 0.25 and not (later and plan.changes)
    return Scenario(plan, name, later, replayed, kind, sampler, own, mixes, seeded, events)


# The loop by hand


def has_hand(scenario):
    """Whether a scenario is plain enough for the loop by hand."""
    kind = KINDS[scenario.name]
    return (scenario.plan == plain(scenario.plan) and kind.sched is None and kind.trainer is Trainer
            and scenario.name != "schedule-free" and not scenario.seed_samples
            and scenario.plan.device == "cpu")


def by_hand(scenario):
    """The weights and the optimizer's state of a loop that a user writes."""
    plan, kind = scenario.plan, KINDS[scenario.name]
    torch.manual_seed(0)
    model = kind.model() if kind.model else usual_model(plan, True)
    optim = (kind.optim or OPTIMIZERS[plan.optim])(parameter_groups(model))
    sched = SCHEDULERS[plan.sched](optim) if plan.sched else None
    total, every = dict(plan.total), plan.eval_every
    generator, later = (torch.Generator().manual_seed(11) if plan.generator else None
                        for _ in range(2))
    loader = loader_of(scenario)(plan, generator, model)
    valid = DataLoader(Samples(), 7, shuffle=plan.valid == "shuffle",
                       generator=generator if plan.generator == "shared" else None)
    scramble(5)
    if plan.seed is not None:
        seed_everything(plan.seed)
    mix, bend, run = Mix(), Bend(), SimpleNamespace(training=True, model=model, batch=None)

    def train_mode():
        model.train()
        for name in kind.resting:
            model.get_submodule(name).eval()

    def evaluate():
        streams, own = RandomStreams.capture(), generator and generator.get_state()
        model.eval()
        with torch.no_grad():
            for inputs, _ in valid:
                model(inputs)
        train_mode()
        streams.restore()
        if own is not None:
            generator.set_state(own)

    step, epoch, evaluated = 0, 0, None
    while epoch < total.get("epochs", 99) and step < total.get("max_steps", 99):
        if epoch == scenario.later_from:
            loader = kind.later(plan, later, model)
        train_mode()
        for told in {id(each): each for each in (getattr(loader, "dataset", None), getattr(
                loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None),
                                                  "sampler", None))}.values():
            if hasattr(told, "set_epoch"):
                told.set_epoch(epoch)
        for run.batch in loader:
            mix.before_batch(run), bend.before_batch(run)
            loss = (kind.step(run.batch, run)["loss"] if kind.step else
                    torch.nn.functional.mse_loss(model(run.batch[0]), run.batch[1]))
            loss.backward()
            if plan.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
            optim.step()
            optim.zero_grad()
            mix.after_step(run)
            if sched and plan.every == "step":
                sched.step()
            step += 1
            if plan.valid and "max_steps" in total and every and not step % every:
                evaluate()
                evaluated = step
            if step == total.get("max_steps"):
                break
        else:
            epoch += 1
            if sched and plan.every == "epoch":
                sched.step()
            if plan.valid and (not every or ("epochs" in total and not epoch % every)):
                evaluate()
                evaluated = step
    if plan.valid and evaluated != step:
        evaluate()
    return {"model": model.state_dict(), "optim": optim.state_dict()["state"]}


# Judging it


def judged(trainer):
    """What must be equal at the end: nothing of branches, of boundaries' times, or of the loader's
    own notes."""
    state = final(trainer)
    state.pop("journal"), state.pop("fingerprint")
    state["position"].pop("branch"), state["position"].pop("inexact")
    state["position"].pop("assumed", None)  # also what was changed between two drives
    state["history"].pop("branches", None)
    state["hooks"].pop("snapshot", None)
    state["data"] = {}
    return {key: state[key]
            for key in ("model", "optim", "hooks", "tunables", "position", "random", "history",
                        "loaders")}


def replay(trainer, scenario, straight):
    """What is different where the journal of a run is replayed, or the script made of it is run."""
    by_script = scenario.later_from is not None  # a journal does not hold a loader
    again = make(scenario, hooks=[] if by_script else [ReplayHook(trainer.journal)],
                 rewinds=False)
    scramble(5)
    if by_script:
        script = trainer.journal.to_script(**dict(scenario.plan.total))
        exec(re.sub(r"trainer\.train_dl = train_dl_\d+", "change_loader(trainer, scenario)",
                    script),
             {"make_trainer": lambda seed=None: again, "change_loader": change_loader,
              "scenario": scenario})
    else:
        again.fit()
    found = differences(*(each.state_dict()["model"] for each in (again, straight)), "replayed")
    again.close()
    return found


def run(seed, number, device="cpu"):
    """The scenario once undisturbed and once disturbed, and by hand; returns "equal", "named:
    ..." (as `exact` says), or what differs."""
    scenario = scenario_of(seed, number, device)
    draw = random.Random(f"{seed} {number} events")
    scramble(5)
    straight = make(scenario, rewinds=False)
    scramble(5)
    watched(straight, scenario)
    drive(straight, scenario, straight.fit)
    straight.at_safe_point = None
    if has_hand(scenario):
        here = {"model": straight.plain_model.state_dict(),
                "optim": straight.optim.state_dict()["state"]}
        if found := differences(here, by_hand(scenario)):
            return f"UNLIKE THE LOOP BY HAND: {found[:4]}"
    trainer = make(scenario)
    named = [str(each) for each in trainer.exact.obstacles]
    scramble(5)
    for event in scenario.events:
        go_on(trainer, scenario, event)
        trainer = disturb(trainer, scenario, event, draw)
        named += trainer.exact.obstacles
    watched(trainer, scenario)
    drive(trainer, scenario, trainer.fit)
    trainer.at_safe_point = None
    named += trainer.exact.obstacles
    found = differences(judged(trainer), judged(straight))
    if not found and scenario.replayed:
        found = replay(trainer, scenario, straight)
    trainer.close(), straight.close()
    if found:
        must = KINDS[scenario.name].must
        return f"named: {named[0]}" if named and not must else f"DIFFERENT: {found[:4]} {named[:1]}"
    if named and KINDS[scenario.name].must:
        return f"NAMED WITHOUT A REASON: {named[0]}"
    return f"equal, and yet named: {named[0]}" if named else "equal"


def outcome(seed, number, device="cpu"):
    """As `run`; an exception is an outcome too."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return run(seed, number, device)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return (f"RAISED: {type(error).__name__}: {str(error)[:160]} "
                    f"({Path(where.filename).name}:{where.lineno})")


def is_good(told):
    """Whether an outcome is one that is promised."""
    return told.startswith(("equal", "named"))


def outcomes(numbers, seed, device):
    """The outcomes of scenarios, by number; what is not promised is printed at once."""
    torch.set_num_threads(1)
    exact_on(device)
    found = {}
    for number in numbers:
        found[number] = told = outcome(seed, number, device)
        if not is_good(told):
            print(f"seed {seed} scenario {number} ({kind_of(number)[0]}): {told}", flush=True)
        left = [each.name for each in threading.enumerate() if each.name == "trainer_nb"]
        if left:
            print(f"seed {seed} scenario {number}: threads left {left}", flush=True)
    return found


def main(count, seed=0, first=None, device="cpu", processes=2):
    """Run scenarios; print what is not equal, and the counts of each kind at the end."""
    began = time.monotonic()
    numbers = range(int(first or 0), int(first or 0) + count)
    if count == 1:
        print(scenario_of(seed, numbers[0], device))
    if processes == 1 or count == 1:
        found = outcomes(numbers, seed, device)
    else:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            parts = [pool.submit(outcomes, numbers[part::processes], seed, device)
                     for part in range(processes)]
            found = {number: told for part in parts for number, told in part.result().items()}
    counts = defaultdict(Counter)
    for number, told in found.items():
        counts[kind_of(number)[0]][told.split(":")[0]] += 1
    for name, each in sorted(counts.items()):
        print(f"{name:30}", ", ".join(f"{told} {times}" for told, times in each.items()))
    print(f"seed {seed}, {count} scenarios in {time.monotonic() - began:.0f} s:",
          dict(sum(counts.values(), Counter())), flush=True)
    return int(not all(map(is_good, found.values())))


if __name__ == "__main__":
    ask = argparse.ArgumentParser()
    ask.add_argument("count", type=int)
    ask.add_argument("seed", type=int, nargs="?", default=0)
    ask.add_argument("first", nargs="?")
    ask.add_argument("--device", default="cpu")
    ask.add_argument("--processes", type=int, default=2)
    sys.exit(main(**vars(ask.parse_args())))
