"""Runs that one process makes alone, or two make together:
`torchrun distributed_runs.py FOLDER NAME ...` writes what came of each."""

import contextlib
import faulthandler
import itertools
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from torch.utils.data import (DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler,
                              TensorDataset)

from trainer_nb import (CheckpointHook, Hook, LambdaHook, LayerGroupsHook, LayerStatsHook,
                        OutputsHook, SamplesHook, SnapshotHook, Task, Trainer)
from trainer_nb.core.control import Command
from trainer_nb.engines.distributed import the_world
from trainer_nb.support.saved import write_state
from trainer_nb.support.shards import ShardFile, StagedShards

SAMPLES = 26
ENGINE = os.environ.get("ENGINE", "accelerate")


class Noisy(Dataset):
    """Samples that draw from the random streams."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.full((5,), float(index)) / SAMPLES + 0.1 * torch.randn(5), index % 3


class Stream(IterableDataset):
    """Samples without an index."""

    def __iter__(self):
        order = torch.randperm(SAMPLES).tolist()
        return iter([(torch.full((5,), index / SAMPLES), index % 3) for index in order])


class Drawn:
    """Batches that are drawn one by one; nobody knows how many."""

    def __iter__(self):
        x, y = data().dataset.tensors
        for _ in range(random.randint(3, 5)):
            index = torch.randint(SAMPLES, (4,))
            yield [x[index], y[index]]


class Short(torch.utils.data.SequentialSampler):
    """Says that it has ten samples more than it gives."""

    def __init__(self):
        super().__init__(range(SAMPLES))

    def __iter__(self):
        return iter(range(16))


def data(samples=SAMPLES, **settings):
    """A shuffled loader with an uneven last batch."""
    made = torch.Generator().manual_seed(1)
    x, y = torch.randn(samples, 5, generator=made), torch.randint(0, 3, (samples,), generator=made)
    return DataLoader(TensorDataset(x, y), **{"batch_size": 4, "shuffle": True, **settings})


def network(dropout=0.0, norm=False):
    """A small classifier in double precision."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8) if norm else torch.nn.Identity(),
              torch.nn.Tanh(),
              torch.nn.Dropout(dropout), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers).double()


def run(processes, k=1, loader=None, **settings):
    """A trainer for n processes whose windows hold 2 k batches in all."""
    dropout, norm, single = (settings.pop("dropout", 0.0), settings.pop("norm", False),
                             settings.pop("single", False))
    settings = {"epochs": 3, "grad_clip": 0.3, "valid_dl": data(11, shuffle=False), "seed": 3,
                **settings}
    metrics = {"accuracy": lambda pred, target: (pred.argmax(1) == target).double().mean()}
    if "train_step" not in settings:
        settings["loss_fn"] = torch.nn.CrossEntropyLoss()
    model = network(dropout, norm)
    return Trainer(model.float() if single else model,
                   train_dl=data() if loader is None else loader, metrics=metrics, progress=False,
                   device="cpu",
                   optim=settings.pop("optim",
                                      lambda parameters: torch.optim.AdamW(parameters, lr=0.01)),
                   gradient_accumulation_steps=k * (2 // processes) or 1,
                   engine=ENGINE if processes > 1 else "local", **settings)


def counted_step(batch, trainer):
    """The loss is the mean over a part of the samples, and the step says how many these are."""
    x, y = batch
    kept = y != 0
    pred = trainer.model(x)
    loss = torch.nn.functional.cross_entropy(pred[kept], y[kept]) if kept.any() else pred.sum() * 0
    return {"loss": loss, "n": max(int(kept.sum()), 1), "pred": pred, "target": y,
            "confidence": pred.detach().max()}


def sometimes_step(batch, trainer):
    """Some batches give no loss."""
    x, y = batch
    if int(y.sum()) % 3 == 0 and trainer.training:
        return {"loss": None}
    pred = trainer.model(x)
    return {"loss": torch.nn.functional.cross_entropy(pred, y), "pred": pred, "target": y}


class AsDouble(Hook):
    """Batches in double precision."""

    order = -50

    def before_batch(self, trainer):
        """Move the inputs on."""
        trainer.batch = [trainer.batch[0].double(), trainer.batch[1]]


def closure(processes, loader=None):
    """The step calls the model it was written with, not that of the trainer."""
    def step(batch, trainer):
        x, y = batch
        return {"loss": torch.nn.functional.cross_entropy(trainer.plain_model(x), y)}
    return run(processes, train_step=step, eval_step=supervised_step, hooks=[AsDouble()],
               loader=loader)


def supervised_step(batch, trainer):
    """As a loss function makes it."""
    x, y = batch
    pred = trainer.model(x)
    return {"loss": torch.nn.functional.cross_entropy(pred, y), "pred": pred, "target": y}


class Freeze(Hook):
    """Some layers learn only in some steps."""

    def before_step(self, trainer):
        """What holds from the next window on."""
        step = trainer.step_state.optimizer_step
        trainer.plain_model[0].weight.requires_grad_(not 2 <= step < 5)
        trainer.plain_model[4].bias.requires_grad_(step >= 3)


class Weighted(torch.nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.temperature = torch.nn.Parameter(torch.rand((), dtype=torch.float64))

    def forward(self, pred, target):
        """Cross-entropy at a temperature that is learnt."""
        return torch.nn.functional.cross_entropy(pred * self.temperature, target)


def weighted(processes):
    """The optimizer has the loss's parameter too;
    processes that begin with different ones would part."""
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    loss, model = Weighted(), network()
    optim = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=0.01)
    return Trainer(model, train_dl=data(), loss_fn=loss, optim=optim, epochs=3, seed=3,
                   device="cpu", progress=False, grad_clip=0.1, hooks=[AsDouble()],
                   gradient_accumulation_steps=2 // processes,
                   engine=ENGINE if processes > 1 else "local")


class Unused(torch.nn.Module):
    """A network with a part that only some batches go through, and one that none goes through."""

    def __init__(self):
        super().__init__()
        self.main, self.rare, self.never = (network(), torch.nn.Linear(5, 3).double(),
                                            torch.nn.Linear(2, 2).double())

    def forward(self, x):
        """Through the rare part where a sample says so."""
        pred = self.main(x)
        return pred + self.rare(x) if x[0, 0] > 0.5 else pred


EQUAL = {  # two processes make of these what one makes
    "uneven": lambda p: run(p, hooks=[AsDouble()]),
    "two batches a process": lambda p: run(p, k=2, hooks=[AsDouble()]),
    "three batches a process": lambda p: run(p, k=3, hooks=[AsDouble()]),
    "fewer batches than processes": lambda p: run(p, loader=data(3), hooks=[AsDouble()]),
    "own generator": lambda p: run(p, loader=data(generator=torch.Generator().manual_seed(7)),
                                   hooks=[AsDouble()]),
    "workers": lambda p: run(p, loader=data(num_workers=1), epochs=2, hooks=[AsDouble()]),
    "a list": lambda p: run(p, loader=list(data(shuffle=False)), hooks=[AsDouble()]),
    "a stream": lambda p: run(p, loader=DataLoader(Stream(), batch_size=4), hooks=[AsDouble()]),
    "batches drawn on the way": lambda p: run(p, loader=Drawn(), hooks=[AsDouble()]),
    "seeded samples": lambda p: run(p, loader=DataLoader(Noisy(), batch_size=4, shuffle=True),
                                    seed_samples=True, hooks=[AsDouble()]),
    "items of its own": lambda p: run(p, train_step=counted_step, hooks=[AsDouble()]),
    "an average and a schedule": lambda p: run(p, ema=0.9, sched="one_cycle", hooks=[AsDouble()]),
    "steps": lambda p: run(p, epochs=None, max_steps=9, eval_every=2, hooks=[AsDouble()]),
    "limited": lambda p: run(p, limit_batches=5, hooks=[AsDouble()]),
    "small pieces": lambda p: run(p, micro_batch_size=3, hooks=[AsDouble()]),
    "overfit": lambda p: run(p, overfit_batches=3, hooks=[AsDouble()]),
    "overfit, seeded samples": lambda p: run(p,
                                             loader=DataLoader(Noisy(), batch_size=4, shuffle=True),
                                             overfit_batches=3, seed_samples=True,
                                             hooks=[AsDouble()]),
    "many epochs": lambda p: run(p, epochs=12, train_step=counted_step, hooks=[AsDouble()]),
    "the plain model": closure,
    "layers frozen and thawed": lambda p: run(p, k=2, epochs=4, hooks=[AsDouble(), Freeze()]),
    "a loss that learns": weighted,
}
# batches without a loss count in the window of several processes, and not in that of one: each has
# its own figures
TOGETHER = {"some batches without a loss": lambda p: run(
    p, train_step=sometimes_step, epochs=8, hooks=[AsDouble()]),
            "normalized": lambda p: run(p, norm=True, hooks=[AsDouble()]),
            "normalized, unjudged": lambda p: run(p, norm=True, valid_dl=None, hooks=[AsDouble()]),
            "bf16": lambda p: run(p, single=True, mixed_precision="bf16")}


def outcome(trainer) -> dict:
    """What is compared: weights, records and counters."""
    names = [name for name in trainer.history.names
             if not name.startswith(("time/", "samples_per"))]
    found = {name: torch.tensor(trainer.history[name]) for name in names}
    place = trainer.step_state
    state = trainer.engine.whole(dict(trainer.plain_model.named_parameters()))
    return {"weights": [p.detach().clone() for p in state.values()], "records": found,
            "buffers": [b.clone() for b in trainer.plain_model.buffers()],
            "samples": torch.tensor(trainer.history.series("train/loss").samples),
            "counters": [place.epoch, place.optimizer_step, place.samples_seen, place.boundary]}


class At(Hook):
    """Does something once, after a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def after_step(self, trainer):
        """Once."""
        if trainer.step_state.optimizer_step == self.step:
            self.act(trainer)


def resumed(processes, folder):
    """Straight, and saved in mid-epoch and gone on with by another trainer;
    dropout and samples draw from the streams."""
    def make():
        return run(processes, loader=DataLoader(Noisy(), batch_size=4, shuffle=True), dropout=0.5,
                   hooks=[AsDouble()],
                   **({} if ENGINE == "fsdp" else {"ema": 0.9}))
    straight = make()
    straight.fit()
    first = make()
    first.step(6)
    first.save(folder / "state.pt")
    second = make()
    second.load(folder / "state.pt")
    second.fit()
    return {"straight": outcome(straight), "resumed": outcome(second), "first": outcome(first)}


def tensors(state):
    """The tensors of model and optimizer in a state, or in a trainer's."""
    moments = [each[name] for each in state["optim"]["state"].values() for name in sorted(each)]
    return [*state["model"].values(), *moments]


class Drawing(Noisy):
    """Samples that draw from a generator of their own."""

    def __init__(self):
        self.drawn = torch.Generator().manual_seed(0)

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.randn(5, generator=self.drawn), y


class Means(Hook):
    """Keeps a mean of its own batches."""

    mean = 0.0

    def before_batch(self, trainer):
        """Of one process."""
        self.mean = 0.9 * self.mean + 0.1 * trainer.batch[0].mean()

    def state_dict(self):
        """In the file of the first one."""
        return {"mean": self.mean}

    def load_state_dict(self, state):
        """Likewise."""
        self.mean = state["mean"]


def own_generator(processes, folder):
    """What `exact` says of what a file has of the first process alone."""
    found = {}
    for name, dataset in {"own": Drawing, "global": Noisy}.items():
        trainer = run(processes, loader=DataLoader(dataset(), batch_size=4, shuffle=True),
                      hooks=[AsDouble(), Means()])
        trainer.step(4)
        found[name] = trainer.exact.obstacles, trainer.exact.assumed
        trainer.close()
    return found


class ByRank(Stream):
    """Every process has a part of the samples already."""

    def __iter__(self):
        return itertools.islice(super().__iter__(), int(os.environ["RANK"]), None, 2)


def parted(processes, folder):
    """What is said where each process changes the weights by draws of its own; and where a loader
    gives each other batches."""
    def shake(trainer):
        with torch.no_grad():
            for each in trainer.plain_model.parameters():
                each.add_(0.01 * torch.randn_like(each))
    def shake_loss(trainer):
        with torch.no_grad():
            for each in trainer.loss_fn.parameters():
                each.add_(0.01 * torch.randn_like(each))
    found = {}
    trainer = weighted(processes)
    trainer.hooks.add(LambdaHook(after_step=shake_loss))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.step(2)
        trainer.state_dict()
    found["of the loss"] = trainer.exact.obstacles
    trainer.close()
    for name, more in {"alike": {}, "drawn": {"hooks": [AsDouble(), LambdaHook(after_step=shake)]},
                       "whole": {"loader": DataLoader(Stream(), batch_size=4)},
                       "by rank": {"loader": DataLoader(ByRank(), batch_size=4)}}.items():
        trainer = run(processes, **{"hooks": [AsDouble()]} | more)
        before = trainer.state_dict()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trainer.step(2)
            trainer.state_dict()
        found[name] = [str(each.message) for each in said], trainer.exact.obstacles
        trainer.load_state_dict(before)
        found.setdefault("back", []).extend(trainer.exact.obstacles)
        trainer.close()
    return found


class InOrderOf(Sampler):
    """Draws each order from a generator of its own."""

    def __init__(self):
        self.drawn = np.random.default_rng(0)

    def __iter__(self):
        return iter(self.drawn.permutation(SAMPLES).tolist())

    def __len__(self):
        return SAMPLES


def resumed_at_the_end(processes, folder):
    """Saved after the last step of an epoch, whose order came from a generator of the loader's or
    of its sampler's own."""
    kinds = {"generator": lambda: {"shuffle": True,
                                   "generator": torch.Generator().manual_seed(4)},
             "sampler": lambda: {"sampler": InOrderOf()}}
    found = {}
    for name, order in kinds.items():
        def make(order=order):
            return run(processes, loader=DataLoader(Noisy(), 4, drop_last=True, **order()),
                       hooks=[AsDouble()])
        straight, first, second = make(), make(), make()
        straight.fit()
        first.step(straight.step_state.optimizer_step // 3)
        path = first.save(folder / f"end of {name}.pt")
        second.load(path)
        second.fit()
        first.fit()
        found[name] = [outcome(each) for each in (straight, first, second)]
    return found


def in_shards(processes, folder):
    """Saved by hand, by a hook, and as whole tensors; taken up from each."""
    path = folder / "parts.pt"
    trainer = run(processes, dropout=0.5,
                  hooks=[AsDouble(), CheckpointHook(folder / "parts", every_steps=2, keep_last=2,
                                                    best=("valid/loss", "min"))])
    trainer.step(3)
    trainer.save(path)
    trainer.step(2)
    trainer.save(path)
    saved = [each.clone() for each in tensors(trainer.state_dict())]
    if trainer.is_main:
        write_state(trainer.checkpoint.state_dict(trainer), folder / "whole.pt")
    else:
        trainer.checkpoint.state_dict(trainer)
    names = sorted(each.name for each in (folder / "parts.pt.shards").glob("*/*"))
    own = [p.to_local().numel() for p in trainer.plain_model.parameters()]
    trainer.fit()
    found = {"saved": saved, "names": names, "own": own, "end": outcome(trainer)}
    with trainer.best_weights():
        found["best"] = [each.clone() for each in trainer.engine.whole(
            dict(trainer.plain_model.named_parameters())).values()]
    found["kept"] = sorted(each.name for each in (folder / "parts").iterdir())
    for name in ("parts.pt", "whole.pt"):
        again = run(processes, dropout=0.5, hooks=[AsDouble()])
        the_world().gather(None)
        again.load(folder / name)
        found[name] = {"loaded": tensors(again.state_dict())}
        again.fit()
        found[name]["end"] = outcome(again)
    return found


def in_other_shards(processes, folder):
    """What two processes saved, taken up by so many, and saved by these."""
    trainer = run(processes, dropout=0.5, hooks=[AsDouble()])
    name = "others.pt" if processes == 2 else "parts.pt"
    the_world().gather(None)
    trainer.load(folder / name)
    trainer.save(folder / "others.pt")
    return {"loaded": tensors(trainer.state_dict()),
            "own": [p.to_local().numel() for p in trainer.plain_model.parameters()],
            "names": sorted(each.name for each in (folder / "others.pt.shards").glob("*/*"))}


def disk_full_in_one(processes, folder):
    """The second process's disk takes nothing more from step 3 to step 5; and then save() fails."""
    place, last = folder / "full", os.environ["RANK"] == "1"
    def limit(size):
        if trainer.get_hook(CheckpointHook).writer.busy:
            trainer.get_hook(CheckpointHook).writer.join()
        if last:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    trainer = run(processes, hooks=[
        AsDouble(), At(3, lambda trainer: limit(100)),
        At(5, lambda trainer: limit(resource.RLIM_INFINITY)),
        CheckpointHook(place, every_steps=2, every_epochs=None, keep_last=None)])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer.step(7)
        limit(resource.RLIM_INFINITY)
        files = sorted(each.name for each in place.iterdir())
        limit(100)
        try:
            trainer.save(folder / "full.pt")
            error = None
        except OSError as caught:
            error = str(caught), caught.__notes__
        limit(resource.RLIM_INFINITY)
    trainer.save(folder / "full.pt")
    trainer.fit()
    return {"files": files, "error": error, "there": (folder / "full.pt").is_file(),
            "warned": [str(each.message) for each in warned], "end": outcome(trainer)}


def slow_in_one(processes, folder):
    """The second process's disk is slow; the run saves by itself and by hand meanwhile."""
    place, held = folder / "slow", threading.Event()
    writes = StagedShards.write
    def slowly(staged, *rest):
        if os.environ["RANK"] == "1":
            held.wait()
        writes(staged, *rest)
    def by_hand(trainer):
        held.set()
        trainer.save(folder / "slow.pt")
    with mock.patch.object(StagedShards, "write", slowly), warnings.catch_warnings(
            record=True) as warned:
        warnings.simplefilter("always")
        trainer = run(processes, hooks=[
            AsDouble(), At(5, by_hand),
            CheckpointHook(place, every_steps=1, every_epochs=None, keep_last=None)])
        trainer.fit()
    steps = [int(each.name[5:13]) for each in sorted(place.glob("step_*.pt"))]
    return {"steps": steps, "warned": [str(each.message) for each in warned],
            "by hand": trainer.engine.files.read(folder / "slow.pt")["position"]["optimizer_step"]}


def rewound(processes, folder):
    """A checkpoint in mid-epoch, a rewind to it, and the steps from there again."""
    trainer = run(processes, dropout=0.5,
                  hooks=[AsDouble(),
                         CheckpointHook(folder / "rewound", every_steps=5, every_epochs=None)])
    trainer.step(8)
    landed = trainer.rewind(6)
    trainer.fit()
    straight = run(processes, dropout=0.5, hooks=[AsDouble()])
    straight.fit()
    return {"landed": landed, "straight": outcome(straight), "rewound": outcome(trainer)}


def steered(processes, folder):
    """Somebody at the first process changes the rate, pauses, changes something in the pause, and
    goes on; the run waits for that."""
    there, asked, noted = threading.Event(), threading.Event(), threading.Event()
    def meet(trainer):
        there.set()
        if trainer.is_main:
            asked.wait()
    trainer = run(processes, epochs=6,
                  hooks=[AsDouble(), At(3, meet),
                         At(8, lambda trainer: trainer.is_main and noted.wait())])
    def steer():
        there.wait()
        trainer.tune(lr=0.003)
        pause = trainer.pause()
        asked.set()
        pause.wait()
        trainer.tune(grad_clip=0.1).wait()
        trainer.resume().wait()
        trainer.note("from the first process")
        noted.set()
    if trainer.is_main:
        threading.Thread(target=steer).start()
    trainer.fit()
    entries = [(e.kind, e.name, e.new, e.boundary, e.step) for e in trainer.journal.entries]
    if trainer.is_main:
        trainer.journal.save(folder / "steered.jsonl")
    return {"steered": outcome(trainer), "entries": entries}


def signalled(processes, folder):
    """A signal reaches the last process only."""
    def send(trainer):
        if trainer.engine.rank == processes - 1:
            os.kill(os.getpid(), signal.SIGTERM)
    trainer = run(processes, hooks=[AsDouble(), At(5, send), CheckpointHook(folder / "signalled")])
    try:
        trainer.fit()
        code = None
    except SystemExit as end:
        code = end.code
    again = run(processes, hooks=[AsDouble(), CheckpointHook(folder / "signalled")])
    again.fit()
    straight = run(processes, hooks=[AsDouble()])
    straight.fit()
    return {"code": code, "step": trainer.step_state.optimizer_step, "again": outcome(again),
            "straight": outcome(straight)}


def asked_apart(processes, folder):
    """The last process alone asks for a stop, later both do."""
    def alone(trainer):
        if trainer.engine.rank == processes - 1:
            trainer.stop()
    together = At(6, lambda trainer: trainer.stop())
    trainer = run(processes, hooks=[AsDouble(), At(3, alone), together])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.fit()
    return {"step": trainer.step_state.optimizer_step,
            "told": [str(each.message) for each in told if "has no effect" in str(each.message)]}


def stopped_by_time(processes, folder):
    """Every process stops at the same step, by the clock of the first: an eighth of a second each.
    In the others each step takes a minute."""
    now = [0.0]
    def tick(trainer):
        now[0] += 0.125 if trainer.is_main else 60.0
    with mock.patch("trainer_nb.core.driver.perf_counter", lambda: now[0]):
        trainer = run(processes, epochs=1000, max_time=0.75,
                      hooks=[AsDouble(), LambdaHook(after_step=tick)])
        result = trainer.fit()
    return {"status": str(result.status), "steps": result.steps}


def textbook(processes, folder):
    """Against torch's DistributedDataParallel by hand, single precision, equal batches."""
    batches = list(data(24, shuffle=False))
    trainer = Trainer(network().float(), train_dl=batches, loss_fn=torch.nn.CrossEntropyLoss(),
                      device="cpu", progress=False, epochs=3,
                      optim=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
                      engine="accelerate")
    trainer.fit()
    model = torch.nn.parallel.DistributedDataParallel(network().float())
    optim = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        for x, y in batches[trainer.engine.rank::processes]:
            optim.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optim.step()
    return {"own": outcome(trainer), "by hand": [p.detach() for p in model.module.parameters()]}


def partly(processes, k):
    """A trainer of a model that is gone through in part; its windows have 2 k batches in all."""
    return Trainer(Unused(), train_dl=data(), loss_fn=torch.nn.CrossEntropyLoss(), device="cpu",
                   progress=False, epochs=6, seed=3,
                   optim=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
                   hooks=[AsDouble()],
                   gradient_accumulation_steps=2 * k // processes,
                   engine=ENGINE if processes > 1 else "local")


def unused(processes, folder):
    """Parts of the model that not every process, or none, goes through."""
    found = {}
    for k in (1, 2):
        trainer = partly(processes, k)
        trainer.fit()
        found[k] = outcome(trainer)
    return found


def written(processes, folder):
    """What the model says to each sample, from all processes:
    of a shuffled epoch, of an evaluation, of a stream without indices."""
    def place(name):
        return folder / f"{name}_{processes}"
    trainer = run(processes, epochs=2,
                  hooks=[AsDouble(), OutputsHook(place("outputs"), splits=("train", "valid"))])
    trainer.fit()
    trainer.validate(data(3, shuffle=True))
    stream = run(processes, epochs=1, loader=DataLoader(Stream(), batch_size=4),
                 hooks=[AsDouble(), OutputsHook(place("stream"), splits="train")])
    stream.fit()
    return {"train": trainer.get_hook(OutputsHook).load("train"),
            "valid": trainer.get_hook(OutputsHook).load("valid"),
            "stream": stream.get_hook(OutputsHook).load("train"),
            "files": sorted(path.name for path in place("outputs").iterdir())}


def sampled(processes, folder=None):
    """What is kept of evaluations: few batches, an uneven tail, samples without indices."""
    class Fixed(IterableDataset):
        def __iter__(self):
            return iter(
                [
                    (torch.full((5,), index / SAMPLES), index % 3)
                    for index in torch.randperm(
                        SAMPLES, generator=torch.Generator().manual_seed(5)
                    ).tolist()
                ]
            )

    order = torch.randperm(11, generator=torch.Generator().manual_seed(5)).tolist()
    loaders = {
        "few": data(3, shuffle=False),
        "valid": data(11, shuffle=False, sampler=order),
        "stream": DataLoader(Fixed(), batch_size=4),
    }
    hook = SamplesHook(worst=6, inputs=lambda batch: batch[0][:, None, None])
    trainer = run(processes, epochs=2, valid_dl=loaders, hooks=[AsDouble(), hook])
    trainer.fit()
    trainer.test(data(7, shuffle=False))
    def plain(one):
        worst = [
            {
                "index": each.index,
                "place": each.place,
                "target": each.target,
                "prediction": each.prediction,
                "picture": each.picture.tolist(),
                "loss": each.loss,
            }
            for each in one.worst
        ]
        return {
            "split": one.split,
            "step": one.step,
            "samples": one.samples,
            "worst": worst,
            "matrix": one.matrix.tolist(),
            "absent": one.absent,
        }

    return [plain(each) for each in hook.evaluations]


class Collects(Task):
    """A task that looks at all outputs of a loader."""

    def build_model(self):
        """The network."""
        return network()

    def build_train_dl(self):
        """All samples."""
        return data()

    def build_valid_dl(self):
        """Two loaders, one with fewer batches than there are processes."""
        return {"valid": data(11, shuffle=False), "few": data(3, shuffle=False)}

    def build_optim(self, model):
        """As ever."""
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def train_step(self, batch, trainer):
        """As ever."""
        return supervised_step(batch, trainer)

    def end_of_evaluation(self, name, outputs, trainer):
        """A median is not a mean over batches; the first one tells the order."""
        pred = torch.cat([each["pred"] for each in outputs])
        return {"median": pred.median(), "first": pred[0, 0],
                "fifth": pred[min(5, len(pred) - 1), 0], "count": len(pred)}


def collected(processes, folder):
    """Outputs of all processes, in the order of the loader."""
    trainer = Trainer.from_task(Collects(), epochs=2, seed=3, hooks=[AsDouble()], device="cpu",
                                progress=False,
                                gradient_accumulation_steps=2 // processes,
                                engine=ENGINE if processes > 1 else "local")
    trainer.fit()
    return dict(trainer.records)


def given(processes, folder):
    """A file of other processes is gone on with."""
    trainer = run(processes, loader=DataLoader(Noisy(), batch_size=4, shuffle=True), dropout=0.5,
                  hooks=[AsDouble()])
    trainer.load(folder / "state.pt")
    trainer.fit()
    return outcome(trainer)


def looked_at(processes, folder):
    """What else is asked of a run: the best state, predictions, a rate, the weights as a file."""
    trainer = run(processes, best=("valid/loss", "min"), hooks=[AsDouble()],
                  optim=lambda parameters: torch.optim.AdamW(parameters, lr=0.5))
    trainer.fit()
    before = outcome(trainer)["weights"]
    found = {"best": trainer.best, "test": trainer.test(data(11, shuffle=False), weights="best"),
             "last": trainer.test(data(11, shuffle=False)),
             "predictions": trainer.predict(list(torch.randn(7, 1, 5).double())),
             "weights": before}
    rate = trainer.lr_find(num_steps=12)
    found |= {"rates": torch.tensor(rate.lrs), "losses": torch.tensor(rate.losses)}
    trainer.export(folder / f"weights{ENGINE}{processes}.safetensors")
    trainer.export(folder / f"best{ENGINE}{processes}.safetensors", weights="best")
    found["untouched"] = all(torch.equal(a, b)
                             for a, b in zip(before, outcome(trainer)["weights"], strict=True))
    trainer.fit(epochs=4)
    return found | {"end": outcome(trainer)["weights"]}


def refused(processes, folder):
    """What processes that share the parameters cannot do is said before anything is done."""
    used = network()
    optim = torch.optim.AdamW(used.parameters())
    used(torch.zeros(1, 5).double()).sum().backward()
    optim.step()
    cases = {"ema": lambda: run(processes, ema=0.9),
             "micro": lambda: run(processes, micro_batch_size=2),
             "used": lambda: Trainer(used, train_dl=data(), loss_fn=torch.nn.CrossEntropyLoss(),
                                     optim=optim, device="cpu", engine=ENGINE)}
    found = {}
    for name, make in cases.items():
        try:
            make()
        except ValueError as error:
            found[name] = str(error)
    return found


def in_units(processes, folder):
    """The layers are gathered one by one, by what the launcher says;
    every process holds its part."""
    os.environ |= {"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP", "FSDP_MIN_NUM_PARAMS": "20"}
    trainer = run(processes, hooks=[AsDouble()])
    trainer.fit()
    parts = [p.to_local().numel() for p in trainer.plain_model.parameters()]
    units = [name for name, module in trainer.plain_model.named_modules()
             if type(module).__name__.startswith("FSDP")]
    held = sum(value.to_local().numel() for state in trainer.optim.state.values()
               for value in state.values() if value.ndim)
    os.environ.pop("FSDP_AUTO_WRAP_POLICY")
    return outcome(trainer) | {"parts": parts, "units": units, "held": held}


def none_shared(processes, folder):
    """A batch without a loss, where every pass is made together."""
    run(processes, train_step=sometimes_step, hooks=[AsDouble()]).fit()


def half(processes, folder):
    """Half precision with a loss scaler that has to skip the first steps."""
    model = network().float()
    trainer = Trainer(model, train_dl=data(), loss_fn=torch.nn.CrossEntropyLoss(), device="cpu",
                      progress=False, epochs=3, seed=3,
                      optim=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
                      engine=ENGINE, mixed_precision="fp16", grad_clip=0.3)
    trainer.engine.scaler._init_scale = 2.0**19
    trainer.fit()
    return outcome(trainer) | {"skipped": trainer.skipped_steps}


def killed(processes, folder):
    """The last process is killed in the middle of a run."""
    def kill(trainer):
        if trainer.engine.rank == processes - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    run(processes,
        hooks=[AsDouble(), At(7, kill), CheckpointHook(folder / "killed", every_steps=2)]).fit()


def killed_writing(processes, folder):
    """The last process is killed while it writes its part of the second checkpoint."""
    written = ShardFile.write
    def kill(file, data):
        if trainer.engine.rank == processes - 1 and (folder / "killed/step_00000002.pt").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return written(file, data)
    with mock.patch.object(ShardFile, "write", kill):
        trainer = run(processes, epochs=50,
                      hooks=[AsDouble(), CheckpointHook(folder / "killed", every_steps=2)])
        trainer.fit()


def killed_early(processes, folder):
    """The same, where the next gradients are added up within the backward pass."""
    def kill(trainer):
        if trainer.engine.rank == processes - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    run(processes, hooks=[AsDouble(), At(2, kill)]).fit()


def failing(processes, folder):
    """A step of the user's raises in one process."""
    def step(batch, trainer):
        if trainer.engine.rank == 1 and trainer.step_state.optimizer_step == 4:
            raise ZeroDivisionError("mine")
        return sometimes_step(batch, trainer)
    trainer = run(processes, train_step=step,
                  hooks=[AsDouble(), CheckpointHook(folder / "failing", every_steps=2)])
    try:
        trainer.fit()
    except ZeroDivisionError:
        try:
            trainer.fit(skip_failed=True)
        except RuntimeError as refused:
            print("REFUSED", refused)
        raise


def resumed_from_a_file(processes, folder):
    """A run that was killed goes on from its last checkpoint."""
    trainer = run(processes, hooks=[AsDouble(), CheckpointHook(folder / "killed", every_steps=2)])
    trainer.fit()
    straight = run(processes, hooks=[AsDouble()])
    straight.fit()
    return {"resumed": outcome(trainer), "straight": outcome(straight),
            "from": str(trainer.get_hook(CheckpointHook).resumed_from)}


def from_one(processes, folder):
    """A file of one process is gone on with:
    loaded by hand, and by a hook while the drive begins."""
    alone, path = run(1, dropout=0.5, hooks=[AsDouble()]), folder / f"alone{os.environ['RANK']}.pt"
    alone.step(5)
    alone.save(path)
    found = {}
    for how in ("by hand", "by a hook"):
        trainer = run(processes, dropout=0.5,
                      hooks=[AsDouble(),
                             *([CheckpointHook(folder / "from_one", resume=path)]
                               if how == "by a hook" else [])])
        if how == "by hand":
            trainer.load(path)
        trainer.step(1)
        found[how] = {"stream": trainer.driver.random.streams().torch}
        trainer.fit()
        found[how] |= outcome(trainer)
    return found


def left_over(processes, folder):
    """Two wishes to end, and a change behind them, at one boundary; then the run goes on."""
    def ask(trainer):
        trainer.stop()
        trainer.stop()
        trainer.tune(lr=0.003)
    trainer = run(processes, hooks=[AsDouble(), At(3, ask)])
    status = str(trainer.fit().status)
    lr = trainer.lr
    return {"first": status, "lr": lr, "then": str(trainer.fit().status)}


def held_at(processes, folder):
    """A breakpoint."""
    trainer = run(processes, hooks=[AsDouble()])
    trainer.pause_when("step == 2")
    return {"step": trainer.fit().steps}


def persistent(processes, folder):
    """Workers that live on from epoch to epoch, and a run that is saved between two of them."""
    def make():
        return run(processes, loader=data(num_workers=1, persistent_workers=True), epochs=2,
                   hooks=[AsDouble()], valid_dl=None)
    straight, first, second = make(), make(), make()
    with straight, first, second:
        straight.fit()
        first.step(epochs=1)
        first.save(folder / "persistent.pt")
        second.load(folder / "persistent.pt")
        second.fit()
    return {"straight": outcome(straight), "resumed": outcome(second)}


class Grow(Hook):
    """A layer that comes when the run begins; every process draws its weights for itself."""

    def before_fit(self, trainer):
        """Once."""
        model = trainer.plain_model
        if len(model) == 5:
            model.append(torch.nn.Linear(3, 3).double())
            trainer.optim.add_param_group({"params": list(model[5].parameters())})


def grown(processes, folder):
    """All have the new layer of the first."""
    trainer = run(processes, valid_dl=None, hooks=[AsDouble(), Grow()])
    trainer.fit()
    return outcome(trainer)


def thawed(processes, folder):
    """A group of parameters that a hook adds in mid-run: resumed and rewound."""
    def make():
        model = network()
        model[0].requires_grad_(False)
        def add(trainer):
            if trainer.step_state.optimizer_step == 5 and len(trainer.optim.param_groups) == 1:
                late = trainer.plain_model[0].requires_grad_(True)
                trainer.optim.add_param_group({"params": list(late.parameters()), "lr": 0.005})
        return Trainer(model, train_dl=data(), loss_fn=torch.nn.CrossEntropyLoss(), device="cpu",
                       progress=False, epochs=3, seed=3, engine=ENGINE, sched="cosine",
                       optim=torch.optim.AdamW(model[4].parameters(), lr=0.01),
                       hooks=[AsDouble(), LambdaHook(after_step=add),
                              SnapshotHook(every_steps=1)])
    straight, first, second = make(), make(), make()
    straight.fit()
    first.step(8)
    first.save(folder / "thawed.pt")
    second.load(folder / "thawed.pt")
    second.fit()
    first.rewind(3)
    groups = len(first.optim.param_groups)
    first.fit()
    return {"straight": outcome(straight), "resumed": outcome(second),
            "rewound": outcome(first), "groups": groups}


def spectral(processes, folder):
    """Buffers that the training itself goes by differ between processes;
    a file keeps those of each."""
    def make():
        model = network()
        torch.nn.utils.parametrizations.spectral_norm(model[0])
        return Trainer(model, train_dl=data(), loss_fn=torch.nn.CrossEntropyLoss(), device="cpu",
                       progress=False, epochs=3, seed=3, engine=ENGINE,
                       optim=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
                       hooks=[AsDouble()])
    straight, first, second = make(), make(), make()
    straight.fit()
    first.step(6)
    first.save(folder / "spectral.pt")
    second.load(folder / "spectral.pt")
    second.fit()
    return {"straight": outcome(straight), "resumed": outcome(second)}


class Cancel(Hook):
    """The first process has seen enough of a sweep."""

    def before_step(self, trainer):
        """In its third step."""
        if trainer.sweeping is not None and len(trainer.sweeping) == 2 and trainer.is_main:
            trainer.sweeping.cancel()


def cancelled(processes, folder):
    """All end it."""
    sweep = run(processes, hooks=[AsDouble(), Cancel()]).sweep("lr", [0.01, 0.02, 0.03, 0.04, 0.05])
    return {"tried": len(sweep), "ended": sweep.ended}


def claimed(processes, folder):
    """A trainer that is finished has the workspace:
    it gives it up, and all processes resume there."""
    first, second = [run(processes, epochs=1, hooks=[AsDouble(), CheckpointHook()],
                         workspace=folder / "claimed") for _ in range(2)]
    with first, second:
        first.fit()
        second.fit()
        return {"folder": second.get_hook(CheckpointHook).folder.path.parent.name,
                "resumed": second.get_hook(CheckpointHook).resumed_from.parent.parent.name}


class Counts:
    """A metric that knows nothing of other processes."""

    def reset(self):
        """From zero."""
        self.seen = 0

    def update(self, pred, target):
        """Count the samples."""
        self.seen += len(pred)

    def compute(self):
        """How many there were."""
        return self.seen


def at_odds(processes, folder):
    """What the processes were not given alike is refused by all of them."""
    divided = data(11, shuffle=False,
                   sampler=DistributedSampler(range(11), 2, int(os.environ["RANK"])))
    trainer, counting = run(processes, hooks=[AsDouble()]), run(processes, hooks=[AsDouble()])
    counting.metrics["count"] = Counts()
    trainer.step(2)
    if trainer.is_main:
        trainer.tune(lr=0.5)
    cases = {"metric": counting.validate, "lr": trainer.fit, "test": lambda: trainer.test(divided),
             "valid": lambda: run(processes, valid_dl=divided),
             "train": lambda: run(processes,
                                  loader=DataLoader(divided.dataset,
                                                    batch_sampler=torch.utils.data.BatchSampler(
                                                        divided.sampler, 4, False))),
             "short": lambda: run(processes, loader=data(shuffle=False, sampler=Short()),
                                  hooks=[AsDouble()]).fit()}
    found = {}
    for name, act in cases.items():
        try:
            act()
        except ValueError as error:
            found[name] = str(error)
    return found


def looked_into(processes, folder):
    """A layer that is frozen by its group, and what is measured of the others."""
    stats = LayerStatsHook(every_steps=2, modules=["4"])
    trainer = run(processes,
                  hooks=[AsDouble(), LayerGroupsHook({"body": ["0"], "head": ["4"]}), stats])
    before = trainer.state_dict()["model"]
    trainer.tune(**{"layer_groups.body.frozen": True})
    trainer.post(Command("inspect", {"on": True}))
    trainer.fit()
    after = trainer.state_dict()["model"]
    return {"changed": [name for name in before if not torch.equal(before[name], after[name])],
            "measured": stats.history.layers("activations"),
            "gradients": {row.name: row.norm for row in trainer.inspection.layers}}


@contextlib.contextmanager
def hurried(times=5):
    """A process that waits for another one loses its patience that many times sooner."""
    watch, dump = the_world().watch, faulthandler.dump_traceback_later
    clock = SimpleNamespace(perf_counter=lambda: times * time.perf_counter(), sleep=time.sleep)
    over = watch.ended
    ended = SimpleNamespace(wait=lambda seconds: over.wait(seconds / times), set=over.set)
    with (mock.patch("trainer_nb.engines.distributed.time", clock),
          mock.patch.object(watch, "ended", ended),
          mock.patch("faulthandler.dump_traceback_later",
                     lambda seconds, **more: dump(seconds / times, **more))):
        yield


def alone_in_a_hook(act):
    """Only the second process does something in the middle of a run."""
    def made(processes, folder):
        mine = [At(3, act)] if os.environ["RANK"] == "1" else []
        run(processes, hooks=[AsDouble(), *mine], epochs=50).fit()
    return made


def save_alone(trainer):
    """A usual mistake, the other way round."""
    trainer.save("here.pt")


def freeze_alone(trainer):
    """The first layer."""
    several = isinstance(trainer.plain_model, torch.nn.Sequential)
    (trainer.plain_model[0] if several else trainer.model).requires_grad_(False)


def saves_alone_between(processes, folder):
    """Between two drives."""
    trainer = run(processes, hooks=[AsDouble()])
    trainer.step(2)
    if os.environ["RANK"] == "1":
        trainer.save(folder / "here.pt")
    trainer.fit()


def validates_alone(processes, folder):
    """While the other one goes on training."""
    trainer = run(processes, valid_dl=data(11), hooks=[AsDouble()])
    trainer.step(2)
    if os.environ["RANK"] == "1":
        trainer.validate()
    trainer.fit()


def frozen_between(processes, folder):
    """Between two drives."""
    trainer = run(processes, hooks=[AsDouble()])
    trainer.step(2)
    if os.environ["RANK"] == "1":
        freeze_alone(trainer)
    trainer.fit()


def frozen_while_adding_up(processes, folder):
    """Gradients are added up after the pass:
    nobody waits, and one would train what the other has frozen."""
    mine = [At(3, freeze_alone)] if os.environ["RANK"] == "1" else []
    run(processes, loader=DataLoader(Stream(), 4), hooks=[AsDouble(), *mine]).fit()


def one_is_slow(processes, folder):
    """Much slower than a process waits before it asks;
    both freeze a layer then, the slow one after it was asked four times."""
    def slowly(trainer):
        if os.environ["RANK"] == "1":
            while the_world().watch.store.add("asked", 0) < 4:
                time.sleep(0.01)
        freeze_alone(trainer)
    with contextlib.ExitStack() as fast:
        trainer = run(processes, hooks=[AsDouble(), At(3, slowly), At(4, lambda _: fast.close())])
        fast.enter_context(hurried())
        trainer.fit()
    return outcome(trainer)


class Adversaries(torch.nn.Module):
    """Two networks, and no random numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.d, self.g = torch.nn.Linear(5, 1).double(), torch.nn.Linear(5, 5).double()

    def losses(self, x) -> dict:
        """The loss of each."""
        made = self.g(x.flip(1))
        return {"d": lambda: (self.d(x).sigmoid() - 1).square().mean()
                + self.d(made.detach()).sigmoid().square().mean(),
                "g": lambda: (self.d(made).sigmoid() - 1).square().mean()}

    def optimizers(self) -> dict:
        """One each."""
        return {name: torch.optim.Adam(getattr(self, name).parameters(), lr=0.01)
                for name in ("d", "g")}


def adversaries(processes, every=None, k=1, **settings):
    """A trainer of both, whose steps call the parts of the model."""
    model = Adversaries()
    steps = {name: (
        lambda batch, trainer, name=name: {"loss": trainer.model.losses(batch[0].double())[name]()})
        for name in ("d", "g")}
    return Trainer(model, steps, data(shuffle=False), optim=model.optimizers(), every=every,
                   epochs=3, seed=3, progress=False, device="cpu",
                   gradient_accumulation_steps=k, grad_clip={"d": 0.05},
                   engine=ENGINE if processes > 1 else "local", **settings)


def in_turn(processes, folder):
    """Several optimizers: each at every batch; a window of two; the second at every other turn;
    saved, and gone on with."""
    found = {}
    for name, settings in {"plain": {}, "window": {"k": 2}, "every": {"every": {"g": 2}}}.items():
        trainer = adversaries(processes, **settings)
        trainer.fit()
        found[name] = outcome(trainer) | {"steps": [each.step_state.optimizer_step
                                                    for each in trainer.optimizers.values()],
                                          "planned": [each.planned_steps
                                                      for each in trainer.optimizers.values()]}
    first = adversaries(processes)
    first.step(3)
    first.save(folder / "in_turn.pt")
    other = adversaries(processes)
    other.load(folder / "in_turn.pt")
    other.fit()
    found["resumed"] = outcome(other)
    return found


saves_in_a_hook, freezes_in_a_hook = alone_in_a_hook(save_alone), alone_in_a_hook(freeze_alone)
PARTED = {"saves_in_a_hook": saves_in_a_hook, "freezes_in_a_hook": freezes_in_a_hook} | {
    f.__name__: f for f in (saves_alone_between, validates_alone, frozen_between,
                            frozen_while_adding_up)}
WHOLE = PARTED | {
    f.__name__: f
    for f in (resumed, rewound, steered, signalled, asked_apart, stopped_by_time, textbook, unused,
              written, collected, sampled, looked_at, given, refused, in_units, none_shared, half,
              killed, killed_early, failing, resumed_from_a_file, from_one, left_over, held_at,
              persistent, grown, thawed, spectral, cancelled, claimed, at_odds, looked_into,
              one_is_slow, in_turn, in_shards, own_generator, resumed_at_the_end,
              disk_full_in_one, slow_in_one, killed_writing, in_other_shards, parted)}
FAST = contextlib.ExitStack()  # to the very end of the process


def main():
    """One process: every run that is named, in turn."""
    torch.set_num_threads(1)
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for name in names:
        began = time.perf_counter()
        if name in PARTED:
            FAST.enter_context(hurried())
        if name in WHOLE:
            found = WHOLE[name](processes, folder)
        else:
            trainer = (EQUAL | TOGETHER)[name](processes)
            trainer.fit()
            found = outcome(trainer)
        torch.save(found, folder / f"{name}.{rank}")
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
    torch.distributed.barrier()  # no process goes while another one still listens


if __name__ == "__main__":
    main()
