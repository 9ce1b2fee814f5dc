"""Batches keep their types on the way, are cut without loss, and an epoch goes on where it was torn
off."""

import functools
import os
import random
import signal
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import pytest
import small_runs
import torch
from digits_runs import wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trainer_nb.core.data import (EpochIterator, chunk_edges, map_nested_tensor, move_to_device,
                                  split_batch)
from trainer_nb.core.hook import LambdaHook
from small_runs import Loop
from trainer_nb import Trainer
from trainer_nb.core.state import RandomStreams

META = torch.device("meta")
Pair = namedtuple("Pair", "inputs targets")


# ---- moved without losing types


class ReadOnly(Mapping):
    """A mapping that is not a dict and cannot be written to."""

    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Named(dict):
    """A dict of the user's own, with an attribute."""


class Several(UserDict):
    """A mapping that can be written to, with an attribute."""


@dataclass
class Plain:
    x: Any
    label: str
    size: Any = field(init=False, default=None)


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    label: str


def with_note(value):
    """The value with an attribute beside its items."""
    value.note = "kept"
    return value


def sized(value):
    """A Plain whose field outside the constructor was filled later."""
    value.size = torch.ones(2)
    return value


X = torch.ones(2, 3)
CONTAINERS = {
    "list": [X, "text"],
    "tuple": (X, 1.5),
    "namedtuple": Pair(X, None),
    "dict": {"x": X, "name": "a"},
    "dict subclass": with_note(Named(x=X)),
    "OrderedDict": OrderedDict(x=X, name="a"),
    "defaultdict": defaultdict(list, x=X),
    "UserDict": with_note(Several(x=X, name="a")),
    "Mapping": ReadOnly({"x": X, "name": "a"}),
    "dataclass": sized(Plain(X, "a")),
    "frozen dataclass": Frozen(X, "a"),
    "nested": {"a": [Pair(X, (X, Frozen(X, "a")))], "b": ReadOnly({"c": [X]})},
}


def parts_of(value):
    """Everything within a nested value that is not a container, in order, with the types of the
    containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [type(value)] + [part for item in value for part in parts_of(item)]
    if isinstance(value, Mapping):
        own = [getattr(value, "note", None), getattr(value, "default_factory", None)]
        return [type(value),
                *own] + [part for key in value for part in [key, *parts_of(value[key])]]
    if isinstance(value, (Plain, Frozen)):
        names = value.__dataclass_fields__
        return [type(value)] + [part for name in names for part in parts_of(getattr(value, name))]
    return [value]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_moving_keeps_types(kind):
    """Every tensor arrives, everything else is as it was, and the batch given is not touched."""
    before = CONTAINERS[kind]
    moved, original = parts_of(move_to_device(before, META)), parts_of(before)
    for found, wanted in zip(moved, original, strict=True):
        if isinstance(wanted, torch.Tensor):
            assert found.device == META and found.shape == wanted.shape
            assert wanted.device.type == "cpu"
        else:
            assert found == wanted


def test_moving_a_packed_sequence():
    """A namedtuple that has a `.to` is moved by it: its batch sizes belong on the CPU."""
    moved = move_to_device([pack_sequence([torch.ones(3), torch.ones(2)])], META)[0]
    assert type(moved) is PackedSequence
    assert moved.data.device == META and moved.batch_sizes.device.type == "cpu"


def test_moving_uses_the_objects_own_to():
    """An object with a `.to` is moved by it, wherever it is, also if it looks like a container."""

    class Graph(dict):
        def to(self, device):
            """A new graph that knows where it went."""
            return with_place(Graph(self), device)

    def with_place(graph, device):
        graph.place = device
        return graph

    module = nn.Linear(2, 2)
    moved = move_to_device([Graph(x=X), {"net": module}, X.dtype, torch.device], META)
    assert type(moved[0]) is Graph and moved[0].place == META
    assert moved[1]["net"].weight.device == META
    assert moved[2:] == [X.dtype, torch.device]  # neither a dtype nor a class is moved


class Noting(torch.Tensor):
    """A tensor that notes how it is moved; its memory is pinned if it says so."""

    pinned = False

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.is_pinned:
            return args[0].pinned
        if func is torch.Tensor.to:
            args[0].noted = dict(kwargs or {})
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("pinned", [True, False])
def test_non_blocking_only_from_pinned_memory(pinned):
    """A copy from ordinary memory is waited for; one from pinned memory need not be."""
    tensor = torch.ones(2).as_subclass(Noting)
    tensor.pinned = pinned
    move_to_device({"x": tensor}, META)
    assert tensor.noted.get("non_blocking", False) is pinned


def test_a_copy_to_the_cpu_is_waited_for():
    """Towards the CPU nothing may be read before it has arrived."""
    tensor = torch.ones(2).as_subclass(Noting)
    tensor.pinned = True
    move_to_device(tensor, torch.device("cpu"))
    assert not tensor.noted.get("non_blocking", False)


@pytest.mark.cuda
@pytest.mark.parametrize("pinned", [True, False])
def test_only_a_pinned_copy_returns_early(pinned):
    """Behind a busy stream: from pinned memory the call returns, from ordinary memory it waits."""
    source = torch.arange(1 << 20)
    source = source.pin_memory() if pinned else source
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    moved = move_to_device([source], torch.device("cuda"))[0]
    assert torch.cuda.current_stream().query() is not pinned
    torch.cuda.synchronize()
    assert torch.equal(moved.cpu(), source)


@pytest.mark.cuda
def test_a_run_trains_on_batches_from_pinned_memory():
    """The whole way: pinned by the loader, moved by the loop, trained to the same weights as from
    ordinary memory."""
    weights = []
    for pin in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        data = TensorDataset(torch.randn(64, 3), torch.randn(64, 2))
        loader = DataLoader(data, batch_size=8, pin_memory=pin)
        Loop(model, train_dl=loader, loss_fn=nn.MSELoss(), device="cuda").fit(epochs=2)
        weights.append(model.weight.detach().cpu())
    assert torch.equal(*weights)


def test_mapping_over_tensors_reaches_all_and_nothing_else():
    """`map_nested_tensor` changes tensors of any nesting, and leaves the rest."""
    changed = map_nested_tensor(lambda t: t * 2, CONTAINERS["nested"])
    for found, before in zip(parts_of(changed), parts_of(CONTAINERS["nested"]), strict=True):
        assert (torch.equal(found, before * 2)
                if isinstance(before, torch.Tensor) else found == before)


# ---- cut without losing samples


@st.composite
def batches_to_cut(draw):
    """A size, a limit, and a nested batch of that size with things that belong to no sample."""
    size, limit = draw(st.integers(1, 40)), draw(st.integers(1, 45))
    tensor = torch.arange(size * 2).reshape(size, 2)
    other = draw(st.integers(1, 50).filter(lambda n: n != size))
    items = [
        tensor,
        [f"sample {i}" for i in range(size)],
        tuple(range(size)),
        torch.arange(size),
        torch.tensor(7.0),
        torch.arange(other),
        "text",
        None,
        3,
        {"deep": [Pair(tensor, torch.tensor(1))]},
    ]
    chosen = draw(st.lists(st.sampled_from(items), min_size=1, max_size=5))
    return size, limit, [tensor, {"rest": Frozen(tuple(["first", *chosen, "last"]), "x")}]


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 70))
def test_chunks_are_as_equal_as_possible(size, limit):
    """As few as the limit allows, sizes within one of each other, every sample once and in
    order."""
    pieces = split_batch((torch.arange(size), torch.arange(size) + 0.5), size, limit)
    sizes = [len(x) for x, _ in pieces]
    assert len(pieces) == -(-size // limit)
    assert max(sizes) <= limit and max(sizes) - min(sizes) <= 1
    assert torch.cat([x for x, _ in pieces]).tolist() == list(range(size))
    assert torch.cat([y for _, y in pieces]).tolist() == [i + 0.5 for i in range(size)]


@pytest.mark.slow
@settings(deadline=None)
@given(batches_to_cut())
def test_chunks_of_nested_batches_join_to_the_batch(case):
    """Tensors and lists of samples are cut alike; what belongs to no sample is in every chunk."""
    size, limit, batch = case
    pieces = split_batch(batch, size, limit)
    edges = chunk_edges(size, limit) if size > limit else [0, size]
    assert [last - first
            for first, last in zip(edges, edges[1:])] == [len(piece[0]) for piece in pieces]
    for number, item in enumerate(batch[1]["rest"].x):
        cut = [piece[1]["rest"].x[number] for piece in pieces]
        assert all(type(c) is type(item) for c in cut)
        whole = isinstance(item, torch.Tensor) and (item.dim() == 0 or len(item) != size)
        if whole or not isinstance(item, (torch.Tensor, list, tuple, dict)):
            assert all(c is item for c in cut)
        elif isinstance(item, torch.Tensor):
            assert torch.equal(torch.cat(cut), item)
        elif isinstance(item, dict):
            assert torch.equal(torch.cat([c["deep"][0].inputs for c in cut]),
                               item["deep"][0].inputs)
            assert all(c["deep"][0].targets == 1 for c in cut)
        else:
            assert [sample for c in cut for sample in c] == list(item)


# ---- torn off in mid-epoch, and resumed

SAMPLES = 26


class Numbers(Dataset):
    """Indices as samples; with `noise` each one draws from all random streams, like an
    augmentation."""

    def __init__(self, noise=False):
        self.noise = noise

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        index = torch.as_tensor(index, dtype=torch.float64)
        return index + torch.rand(1) + random.random() + np.random.rand() if self.noise else index


class Stream(IterableDataset):
    """The same as a stream, shared out to the workers."""

    def __init__(self, noise=False):
        self.numbers = Numbers(noise)

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, SAMPLES, step):
            yield self.numbers[index]


def own(seed=5):
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


def plain_loader(sampler=None, *, noise=False, **settings):
    return DataLoader(Numbers(noise), batch_size=4, sampler=sampler, **settings)


WEIGHTS = torch.arange(1.0, SAMPLES + 1)
SAMPLERS = {
    "shuffle": lambda **s: plain_loader(RandomSampler(Numbers()), **s),
    "shuffle, loader's generator": lambda **s: DataLoader(
        Numbers(s.pop("noise", False)), batch_size=4, shuffle=True, generator=own(), **s
    ),
    "shuffle, sampler's generator": lambda **s: plain_loader(
        RandomSampler(Numbers(), generator=own()), **s),
    "replacement": lambda **s: plain_loader(RandomSampler(Numbers(), replacement=True), **s),
    "replacement, sampler's generator": lambda **s: plain_loader(
        RandomSampler(Numbers(), replacement=True, num_samples=50, generator=own()), **s
    ),
    "weighted": lambda **s: plain_loader(WeightedRandomSampler(WEIGHTS, SAMPLES), **s),
    "weighted, sampler's generator": lambda **s: plain_loader(
        WeightedRandomSampler(WEIGHTS, SAMPLES, generator=own()), **s
    ),
    "batch sampler": lambda **s: DataLoader(
        Numbers(s.pop("noise", False)),
        batch_sampler=BatchSampler(RandomSampler(Numbers(), generator=own()), 4, drop_last=False),
        **s,
    ),
    "single samples": lambda **s: DataLoader(
        Numbers(s.pop("noise", False)), batch_size=None, sampler=RandomSampler(Numbers()), **s
    ),
    "in order": lambda **s: plain_loader(**s),
    "stream": lambda **s: DataLoader(Stream(s.pop("noise", False)), batch_size=4, **s),
}
WORKERS = {
    "0": {},
    "2": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}
EPOCHS = 3


def train_on(batch, seen):
    """What a training step does to the random streams: it draws from all of them."""
    seen.append((batch.tolist(), torch.rand(1).item(), random.random(), np.random.rand()))


def seed_all():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def straight(loader):
    """A hand-written loop over the epochs, nothing of ours in it."""
    seed_all()
    seen = []
    for _ in range(EPOCHS):
        for batch in loader:
            train_on(batch, seen)
    return seen


@functools.cache
def straight_with_workers(kind, workers):
    """The same over samples without noise that worker processes load."""
    return straight(SAMPLERS[kind](**WORKERS[workers]))


def disturb():
    """What a cell in between may do."""
    torch.rand(7)
    random.random()
    np.random.rand(3)


def torn(loader, tears, resume="skip"):
    """The same through EpochIterator, closed at each (epoch, batch) of `tears` and resumed
    again."""
    seed_all()
    seen, data = [], EpochIterator(loader, resume)
    for epoch in range(EPOCHS):
        if (epoch, "before") in tears:
            data.close()
        data.begin(epoch)
        taken = 0
        while True:
            if (epoch, taken) in tears:
                data.close()
                streams = RandomStreams.capture()
                disturb()
                streams.restore()
                data.resume(taken)
            batch = next(data.iterator, None)
            if batch is None:
                break
            taken += 1
            train_on(batch, seen)
        data.end_epoch()
    data.close()
    return seen


TEARS = {
    "never": [],
    "at once": [(0, 0)],
    "in the first epoch": [(0, 3)],
    "before its tail": [(0, 6)],
    "after its tail": [(0, 7)],
    "in two epochs": [(0, 2), (1, 3), (2, 1)],
    "twice in one": [(1, 1), (1, 4)],
    "at the start of a later one": [(1, 0)],
    "between epochs": [(1, "before"), (2, "before")],
    "between and within": [(0, 5), (1, "before"), (1, 2)],
}


@pytest.mark.parametrize("tears", TEARS)
@pytest.mark.parametrize("kind", SAMPLERS)
def test_torn_off_equals_straight(kind, tears):
    """Without workers: every sampler, wherever it is torn off, augmentation and other draws
    included."""
    make = SAMPLERS[kind]
    assert torn(make(noise=True), TEARS[tears]) == straight(make(noise=True))


@pytest.mark.slow
@pytest.mark.parametrize("tears",
                         [*(pytest.param(tears, marks=pytest.mark.long)
                            for tears in ("never", "in two epochs", "at the start of a later one")),
                          "between and within"])
@pytest.mark.parametrize("workers", ["2", "persistent"])
@pytest.mark.parametrize("kind", [
    "shuffle", pytest.param("shuffle, loader's generator", marks=pytest.mark.long), "replacement",
    pytest.param("weighted, sampler's generator", marks=pytest.mark.long), "stream"])
def test_torn_off_equals_straight_with_workers(kind, workers, tears):
    """With worker processes, ended and started again at each tear, or kept over the epochs."""
    found = torn(SAMPLERS[kind](**WORKERS[workers]), TEARS[tears])
    assert found == straight_with_workers(kind, workers)


@pytest.mark.parametrize("kind", ["shuffle", "replacement, sampler's generator", "stream"])
@pytest.mark.parametrize("tears",
                         ["at once", "after its tail", "twice in one", "between and within"])
def test_replay_equals_straight(kind, tears):
    """Loading and discarding instead of skipping."""
    make = SAMPLERS[kind]
    assert torn(make(noise=True), TEARS[tears], "replay") == straight(make(noise=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind, workers",
                         [("shuffle", "2"), ("shuffle", "persistent"), ("stream", "persistent")])
def test_replay_equals_straight_with_workers(kind, workers):
    """The same with workers; with persistent ones the samples may hold no random part."""
    make, noise = SAMPLERS[kind], workers == "2"
    tears = TEARS["at the start of a later one"] + TEARS["between and within"]
    found = torn(make(noise=noise, **WORKERS[workers]), tears, "replay")
    assert found == straight(make(noise=noise, **WORKERS[workers]))


class Loud(Dataset):
    """A dataset that notes which samples are loaded."""

    def __init__(self):
        self.loaded = []

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.loaded.append(index)
        return torch.tensor(index)


def test_skipping_loads_nothing_that_was_taken():
    """By index the way back costs no loading; by replay everything is loaded once more."""
    for resume, loaded in (("skip", [20, 21, 22, 23]), ("replay", list(range(24)))):
        data = EpochIterator(DataLoader(Loud(), batch_size=4), resume)
        data.begin(0)
        for _ in range(5):
            next(data.iterator)
        data.close()
        data.loader.dataset.loaded.clear()
        data.resume(5)
        assert next(data.iterator).tolist() == [20, 21, 22, 23]
        assert data.loader.dataset.loaded == loaded


@pytest.mark.parametrize("limit", [3, 0.5])
def test_limited_epochs_are_torn_off_too(limit):
    """With limit_batches the rest of the epoch is as short as it was."""

    def batches(tear):
        seed_all()
        data = EpochIterator(SAMPLERS["shuffle"](), limit=limit)
        data.begin(0)
        first = [next(data.iterator) for _ in range(2)]
        if tear:
            data.close()
            data.resume(2)
        return torch.cat([*first, *data.iterator]).tolist()

    assert batches(tear=True) == batches(tear=False)
    assert len(batches(tear=True)) == 12


# ---- the whole run


class Vectors(Dataset):
    """Regression samples whose inputs are noisy in the main process."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x = torch.full((3,), index / SAMPLES)
        return x, x[:1] * 2


def make_run(workers, valid=False, hooks=(), accumulation=1):
    """A small regression with dropout on a shuffled loader."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    loader = DataLoader(Vectors(), batch_size=4, shuffle=True, **workers)
    valid_dl = DataLoader(Vectors(), batch_size=8, **workers) if valid else None
    return Loop(
        model,
        train_dl=loader,
        valid_dl=valid_dl,
        loss_fn=nn.MSELoss(),
        optim=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        device="cpu",
        hooks=hooks,
        gradient_accumulation_steps=accumulation,
    )


@functools.cache
def by_hand(workers):
    """The same as a hand-written loop."""
    loop = make_run(WORKERS[workers])
    model, optim = loop.model, loop.optim
    for _ in range(EPOCHS):
        for x, y in loop.train_dl:
            nn.functional.mse_loss(model(x), y).backward()
            optim.step()
            optim.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "stops"), [
    *((workers, stops) for workers in WORKERS for stops in ((), (5, 9, 18))),
    *(pytest.param(workers, stops, marks=pytest.mark.long if workers == "2" else ())
      for workers in WORKERS for stops in ((3,), (7, 14)))], ids=str)
def test_a_stopped_run_equals_a_hand_written_loop(workers, stops):
    """Stopped within epochs or between them, continued by fit():
    the weights of a loop that never stopped."""

    def stop(trainer):
        if trainer.step_state.optimizer_step in stops:
            trainer.stop()

    loop = make_run(WORKERS[workers], hooks=[LambdaHook(after_step=stop)], valid=True)
    while loop.fit(epochs=EPOCHS).status != "finished":
        disturb()
    for found, wanted in zip(loop.model.parameters(), by_hand(workers), strict=True):
        assert torch.equal(found, wanted)


# ---- worker processes


def children():
    """The process ids of this process's children."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def assert_ended(processes):
    """They are gone, or will be."""
    wait_for(lambda: not processes & children())


class Seen:
    """A hook that notes the children there are at each batch, and may then do something, once."""

    def __init__(self, action=None, at=4, training=True):
        self.before, self.pids, self.count = children(), set(), 0
        self.action, self.at, self.training = action, at, training

    def after_batch(self, trainer):
        """Notes the workers of training and evaluation."""
        self.pids |= children() - self.before
        self.count += trainer.training is self.training
        if self.count == self.at and self.action:
            self.count += 1
            self.action(trainer)


def fail(trainer):
    raise RuntimeError("planted")


ENDS = {
    "finish": (None, 9, True),
    "stop": (Trainer.stop, 9, True),
    "exception": (fail, 9, True),
    "stop in an evaluation": (Trainer.stop, 2, False),
    "exception in an evaluation": (fail, 2, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["2", "persistent"])
@pytest.mark.parametrize("end", ENDS)
def test_workers_end_with_the_drive(end, workers):
    """However a drive ends, no worker of training or evaluation is left behind."""
    seen = Seen(*ENDS[end])
    loop = make_run(WORKERS[workers], valid=True, hooks=[seen])
    try:
        loop.fit(epochs=2)
    except RuntimeError as error:
        assert "planted" in str(error)
    assert len(seen.pids) >= 4
    assert_ended(seen.pids)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["2", "persistent"])
def test_workers_of_a_paused_run_live_until_close(workers):
    """`step()` keeps the iterator, and with it the workers; `close()` ends them."""
    before = children()
    with make_run(WORKERS[workers], valid=True) as loop:
        loop.step(9)
        alive = children() - before
        assert len(alive) == (4 if workers == "persistent" else 2)
        loop.step()
        assert children() - before == alive
    assert_ended(alive)


@pytest.mark.slow
def test_workers_of_a_validation_by_hand_end_with_close():
    """`validate()` outside a drive leaves persistent workers to the next one, and to `close()`."""
    before = children()
    loop = make_run(WORKERS["persistent"], valid=True)
    loop.validate()
    alive = children() - before
    loop.validate()
    assert len(alive) == 2 and children() - before == alive
    loop.close()
    assert_ended(alive)


@pytest.mark.slow
def test_persistent_workers_are_kept_over_epochs():
    """What the user asked to be persistent is not started again each epoch, nor for each
    evaluation."""
    seen = Seen()
    make_run(WORKERS["persistent"], valid=True, hooks=[seen]).fit(epochs=3)
    assert len(seen.pids) == 4
    seen = Seen()
    make_run(WORKERS["2"], valid=True, hooks=[seen]).fit(epochs=3)
    assert len(seen.pids) == 12


class Marked(Vectors):
    """Tells whether the user's own worker_init_fn was called."""

    marked = 0.0

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x, y * 0 + self.marked


def mark(worker_id):
    """The user's own worker_init_fn."""
    torch.utils.data.get_worker_info().dataset.marked = 1.0 + worker_id


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["2", "persistent"])
def test_ctrl_c_does_not_kill_workers(workers):
    """The terminal sends SIGINT to the workers as well:
    they live on, and the user's worker_init_fn is heard."""
    interrupted, targets = [], set()

    def interrupt(trainer):
        targets.update(trainer.batch[1].flatten().tolist())
        fresh = children() - before - set(interrupted)
        for pid in fresh:
            os.kill(pid, signal.SIGINT)
            interrupted.append(pid)

    before = children()
    model = nn.Linear(3, 1)
    loader = DataLoader(Marked(), batch_size=2, worker_init_fn=mark, **WORKERS[workers])
    loop = Loop(model, train_dl=loader, loss_fn=nn.MSELoss(), device="cpu",
                hooks=[LambdaHook(after_batch=interrupt)])
    assert loop.fit(epochs=2).status == "finished"
    assert len(interrupted) == (2 if workers == "persistent" else 4)
    assert targets == {1.0, 2.0}
    assert loader.worker_init_fn is mark


def test_a_stop_at_the_limit_does_not_skip_in_the_next_epoch():
    """limit_batches: stopped right at an epoch's last batch, the next epoch begins at its first."""
    def run(stop):
        """The inputs trained on."""
        seen = []
        loader = DataLoader(TensorDataset(small_runs.X, small_runs.Y), batch_size=4)
        watch = LambdaHook(before_batch=lambda t: seen.append(t.batch[0][0, 0].item()))
        trainer = small_runs.make(train_dl=loader, limit_batches=3, epochs=2, hooks=[watch],
                                  record=False)
        if stop:
            trainer.step(3)
            trainer.stop()
        trainer.fit()
        return seen

    assert run(stop=True) == run(stop=False)


@pytest.mark.parametrize(("value", "expected"), [
    (torch.tensor(1), 2), ([torch.tensor(1), "a"], [2, "a"]), ((torch.tensor(1), None), (2, None)),
    ({"a": {"b": torch.tensor(1)}}, {"a": {"b": 2}}),
    (OrderedDict(a=torch.tensor(1)), OrderedDict(a=2)), (Pair(torch.tensor(1), 3), Pair(2, 3)),
    (3, 3), ("text", "text"), ([], []),
    (defaultdict(list, a=[torch.tensor(1)]), {"a": [2]})], ids=str)
def test_map_nested_tensor(value, expected):
    """Each tensor is mapped, containers keep their types, all else stays."""
    found = map_nested_tensor(lambda tensor: tensor.item() + 1, value)
    assert found == expected
    assert type(found) is (type(value) if not isinstance(value, torch.Tensor) else int)


def test_a_set_of_tensors():
    """Sets are walked through as well."""
    assert map_nested_tensor(lambda tensor: tensor.item(),
                             {torch.tensor(1), torch.tensor(2)}) == {1, 2}
