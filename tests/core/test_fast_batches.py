"""Batches of data in memory, made by one index per tensor: those of torch's loader, bit for bit."""

import random
import traceback

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (BatchSampler, ConcatDataset, DataLoader, RandomSampler, Sampler,
                              StackDataset, Subset, SubsetRandomSampler, TensorDataset,
                              WeightedRandomSampler, default_collate, random_split)
from torch.utils.data._utils import collate

from trainer_nb import Trainer
from trainer_nb.core import data as data_module
from trainer_nb.core.data import (BatchesByIndex, SeededSamples, batch_at, made_by_index,
                                  open_loader)
from trainer_nb.core.state import RandomStreams
from trainer_nb.support import torch_private

KINDS = (torch.float32, torch.float64, torch.half, torch.bfloat16, torch.complex64, torch.int8,
         torch.uint8, torch.int64, torch.bool)


@pytest.fixture
def by_torch(monkeypatch):
    """The indices of the batches that torch was asked to make."""
    asked = []

    def counted(iterator, index):
        asked.append(index)
        return batch_at(iterator, index)

    monkeypatch.setattr(data_module, "batch_at", counted)
    return asked


def draw_tensor(draw, length, kind=None, shape=None):
    """Any bits, NaN with a payload and minus zero too, in any layout."""
    kind = kind or draw.choice(KINDS)
    if shape is None:
        shape = draw.choice([(), (3,), (1,), (2, 3), (1, 4, 4), (3, 2, 2), (2, 1, 3, 3)])
    size = (length, *shape)
    if kind is torch.bool:
        made = torch.randint(2, size).bool()
    else:
        wide = torch.empty(0, dtype=kind).element_size()
        made = torch.randint(256, (*size, wide), dtype=torch.uint8).view(kind).reshape(size)
    layout = draw.choice(["plain"] * 4 + ["transposed", "expanded", "strided", "channels", "part"])
    if layout == "transposed" and len(size) > 1:
        return made.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "expanded":
        return made[:1].expand(size)
    if layout == "strided":
        return torch.cat([made, made])[::2]
    if layout == "channels" and len(size) in (4, 5):
        return made.contiguous(memory_format=torch.channels_last if len(size) == 4
                               else torch.channels_last_3d)
    return torch.cat([made, made])[length:] if layout == "part" else made


def draw_subset(draw, inner, length):
    places = [draw.randrange(length) for _ in range(draw.randint(1, length))]
    kind = draw.choice(["list", "list", "array", "tensor", "range", "numbers", "negative"])
    if kind == "array":
        return Subset(inner, np.array(places)), len(places)
    if kind == "tensor":
        return Subset(inner, torch.tensor(places)), len(places)
    if kind == "range":
        return Subset(inner, range(0, length, 2)), len(range(0, length, 2))
    if kind == "numbers":
        return Subset(inner, list(np.array(places))), len(places)
    if kind == "negative" and type(inner) is TensorDataset:
        places[0] = -1
    return Subset(inner, places), len(places)


def draw_dataset(draw, depth=3):
    """Of tensors, and how long it is."""
    which = draw.choice(["tensors"] * 3 + ["split", "subset", "subset", "stack", "dict", "concat",
                                           "raw"]) if depth else "tensors"
    length = draw.randint(2, 24)
    if which in ("split", "subset"):
        inner, length = draw_dataset(draw, depth - 1)
        if which == "subset":
            return draw_subset(draw, inner, length)
        part = random_split(inner, [0.7, 0.3])[0]
        return part, len(part)
    if which in ("stack", "dict"):
        inner = [TensorDataset(draw_tensor(draw, length)), draw_tensor(draw, length),
                 Subset(TensorDataset(draw_tensor(draw, length)), range(length))]
        draw.shuffle(inner)
        if which == "dict":
            return StackDataset(**dict(zip("bac", inner))), length
        return StackDataset(*inner[:draw.randint(1, 3)]), length
    if which == "concat":
        kind, shape = draw.choice(KINDS), draw.choice([(), (3,), (2, 2)])
        sizes = [draw.randint(1, 9) for _ in range(draw.randint(1, 4))]
        parts = [TensorDataset(*[draw_tensor(draw, size, kind, shape) for _ in range(2)])
                 for size in sizes]
        if draw.random() < 0.2:  # not alike
            parts[-1] = TensorDataset(draw_tensor(draw, sizes[-1]))
        return ConcatDataset(parts), sum(sizes)
    if which == "raw":
        return draw_tensor(draw, length), length
    return TensorDataset(*[draw_tensor(draw, length) for _ in range(draw.randint(1, 3))]), length


class Numbers(Sampler):
    """One's own: numbers of several kinds."""

    def __init__(self, length, convert):
        self.length, self.convert = length, convert

    def __iter__(self):
        return (self.convert(number) for number in torch.randperm(self.length).tolist())

    def __len__(self):
        return self.length


def draw_loader(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dataset, length = draw_dataset(draw)
    generator = torch.Generator().manual_seed(seed) if draw.random() < 0.4 else None
    which = draw.choice(["shuffle", "shuffle", "order", "replacement", "more", "weighted", "own",
                         "kinds", "subset", "batches", "tuples"])
    batch = draw.choice([1, 2, 3, 5, 8, 30])
    settings = {"batch_size": batch, "drop_last": draw.random() < 0.3, "generator": generator}
    if which == "shuffle":
        settings["shuffle"] = True
    elif which == "replacement":
        settings["sampler"] = RandomSampler(dataset, True, draw.randint(1, 70), generator)
    elif which == "more":
        settings["sampler"] = RandomSampler(dataset, False, 2 * length + 1, generator)
    elif which == "weighted":
        settings["sampler"] = WeightedRandomSampler(torch.rand(length) + 0.1, 11,
                                                    generator=generator)
    elif which == "own":
        settings["sampler"] = Numbers(length, draw.choice([int, np.int64]))
    elif which == "kinds":
        settings["sampler"] = Numbers(length, draw.choice([torch.tensor, np.int32]))
    elif which == "subset":
        settings["sampler"] = SubsetRandomSampler(range(length), generator)
    elif which in ("batches", "tuples"):
        batches = BatchSampler(RandomSampler(dataset, generator=generator), batch,
                               draw.random() < 0.5)
        batches = list(map(tuple, batches)) if which == "tuples" else batches
        settings = {"batch_sampler": batches, "generator": generator}
    return DataLoader(dataset, **settings), generator


def described(value):
    """All that can be seen of a batch."""
    if isinstance(value, dict):
        return type(value), [(name, described(each)) for name, each in value.items()]
    if isinstance(value, list):
        return type(value), [described(each) for each in value]
    plain = torch.view_as_real(value) if value.is_complex() else value
    bits = plain.contiguous().reshape(-1).view(torch.uint8).tolist()
    return (type(value), value.dtype, value.shape, value.stride(), value.storage_offset(),
            value.untyped_storage().nbytes(), value.requires_grad, value._is_view(), bits)


def states(generator):
    return (RandomStreams.glance(), np.random.get_state()[1].tolist(), random.getstate(),
            None if generator is None else generator.get_state().tolist())


def whole_pass(seed, passes=2, **settings):
    """Each batch and the random states after it; what a loader raised ends them."""
    loader, generator = draw_loader(seed)
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    seen = []
    for _ in range(passes):
        iterator = open_loader(loader, loader, **settings)
        seen.append(states(generator))
        try:
            for batch in iterator:
                seen.append((described(batch), states(generator)))
        except Exception as error:
            seen.append((type(error), str(error)))
        seen.append(states(generator))
    return seen, loader


@pytest.mark.slow
def test_three_hundred_loaders_give_the_batches_of_torch(by_torch):
    fast = batches = 0
    for seed in range(300):
        usual, _ = whole_pass(seed, fast=False)
        found, loader = whole_pass(seed)
        assert usual == found, f"loader {seed}: {loader.dataset}, {loader.batch_sampler}"
        batches += len(found)
        fast += made_by_index(loader)
    assert fast > 200 and batches > 2000  # and of these are made by an index
    assert len(by_torch) < batches / 3


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("count", [3072, 3073, 2500, 1])
def test_an_order_of_many_batches_is_cut_in_blocks(count, drop_last, monkeypatch):
    """A view of each batch of a long epoch would take long to make, and all of them memory."""
    def order():
        torch.manual_seed(0)
        loader = DataLoader(TensorDataset(torch.arange(count)), 3, shuffle=True,
                            drop_last=drop_last)
        return [batch.tolist() for batch, in open_loader(loader, loader)], torch.get_rng_state()

    (whole, state), _ = order(), monkeypatch.setattr(torch_private, "BLOCK", 2)
    cut, after = order()
    assert cut == whole and torch.equal(state, after)
    monkeypatch.setattr(torch_private, "_CUTS", False)
    assert order()[0] == whole


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_another_batch_size_counts_from_the_next_batch_where_it_does_in_torch(
        size, drop_last, monkeypatch):
    """A program that lets its batches grow in an epoch."""
    monkeypatch.setattr(torch_private, "BLOCK", 2)
    def sizes(fast):
        torch.manual_seed(0)
        loader = DataLoader(TensorDataset(torch.arange(17)), 3, shuffle=True, drop_last=drop_last)
        found = []
        for number, (batch,) in enumerate(open_loader(loader, loader, fast)):
            found.append(batch.tolist())
            if number == 1:
                loader.batch_sampler.batch_size = size
        return found

    assert sizes(True) == sizes(False) and len(sizes(True)) > 2


def test_an_order_of_torch_is_cut_and_any_other_is_asked_for(monkeypatch):
    """What a version of torch, or somebody, draws in another way is drawn in that way."""
    made = lambda **settings: open_loader(
        loader := DataLoader(TensorDataset(torch.arange(9)), 4, **settings), loader)
    torch.manual_seed(0)
    usual = [batch.tolist() for batch, in made(shuffle=True)]
    assert made(shuffle=True).cut and made().cut and not made(sampler=Numbers(9, int)).cut
    assert not made(sampler=RandomSampler(range(9), True)).cut
    assert not made(sampler=RandomSampler(range(9), num_samples=10)).cut
    assert torch_private._cut_as_torch_does()
    monkeypatch.setattr(RandomSampler, "__iter__", lambda self: iter(range(9)[::-1]))
    found = made(shuffle=True)
    assert not found.cut and [batch.tolist() for batch, in found] == [
        [8, 7, 6, 5], [4, 3, 2, 1], [0]]
    state = torch.get_rng_state()
    assert not torch_private._cut_as_torch_does() and torch.equal(state, torch.get_rng_state())
    assert sorted(sum(usual, [])) == list(range(9)) != sum(usual, [])


@pytest.mark.parametrize("kind", ["video", "channels last", "odd strides"])
def test_what_torch_stores_in_another_order_is_left_to_it(kind, by_torch):
    video = torch.randn(6, 2, 3, 4, 4)
    if kind == "channels last":
        video = video.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(
            0, (6, 2))
    elif kind == "odd strides":
        video = torch.randn(6, 2, 4, 4, 1).movedim(-1, 2)
    loader = DataLoader(TensorDataset(video), 4)
    assert [described(each) for each in open_loader(loader, loader)] == [
        described(each) for each in loader]
    assert made_by_index(loader) is (kind == "video")


class Loud(TensorDataset):
    calls = 0

    def __getitem__(self, index):
        Loud.calls += 1
        return tuple(-tensor[index] for tensor in self.tensors)


class LoudSubset(Subset):
    calls = 0

    def __getitems__(self, indices):
        LoudSubset.calls += 1
        return super().__getitems__(indices[::-1])


class OwnIterator(DataLoader):
    def __iter__(self):
        return map(lambda batch: [2 * each for each in batch], super().__iter__())


class OwnGetIterator(DataLoader):
    def _get_iterator(self):
        return DataLoader(TensorDataset(-torch.arange(8)), 4)._get_iterator()


class OwnOrder(DataLoader):
    @property
    def _index_sampler(self):
        return [[3, 2], [1, 0]]


class Tagged(torch.Tensor):
    pass


def tensors():
    return torch.arange(16.0).reshape(8, 2), torch.arange(8)


def with_own_getitems():
    dataset = TensorDataset(*tensors())
    dataset.__getitems__ = lambda indices: [(torch.tensor(-index),) for index in indices]
    return dataset


def subset_with_own_getitems():
    dataset = Subset(TensorDataset(*tensors()), range(8))
    dataset.__getitems__ = lambda indices: [(torch.tensor(-index),) for index in indices]
    return dataset


OVERRIDDEN = {
    "getitem": lambda: DataLoader(Loud(*tensors()), 4),
    "getitem within": lambda: DataLoader(Subset(Loud(*tensors()), range(6)), 4),
    "getitems": lambda: DataLoader(LoudSubset(TensorDataset(*tensors()), range(6)), 4),
    "getitems of an object": lambda: DataLoader(with_own_getitems(), 4),
    "getitems of a subset": lambda: DataLoader(subset_with_own_getitems(), 4),
    "getitems within": lambda: DataLoader(Subset(with_own_getitems(), range(6)), 4),
    "collate": lambda: DataLoader(TensorDataset(*tensors()), 4,
                                  collate_fn=lambda samples: [len(samples)]),
    "iter": lambda: OwnIterator(TensorDataset(*tensors()), 4),
    "get_iterator": lambda: OwnGetIterator(TensorDataset(*tensors()), 4),
    "order": lambda: OwnOrder(TensorDataset(*tensors()), 4),
    "single samples": lambda: DataLoader(TensorDataset(*tensors()), batch_size=None),
    "one sample a batch, collated": lambda: DataLoader(
        TensorDataset(*tensors()[:1] * 2), batch_size=None, collate_fn=default_collate),
    "gradients": lambda: DataLoader(TensorDataset(tensors()[0].requires_grad_()), 4),
    "a class of tensors": lambda: DataLoader(TensorDataset(tensors()[0].as_subclass(Tagged)), 4),
    "parameters": lambda: DataLoader(TensorDataset(nn.Parameter(tensors()[0])), 4),
    "conjugated": lambda: DataLoader(TensorDataset(tensors()[0].to(torch.cfloat).conj()), 4),
    "negated": lambda: DataLoader(TensorDataset(tensors()[0].to(torch.cfloat).conj().imag), 4),
    "numpy": lambda: DataLoader(np.arange(8), 4),
    "list": lambda: DataLoader(list(zip(*tensors())), 4),
    "a worker": lambda: DataLoader(TensorDataset(*tensors()), 4, num_workers=1),
}


def plainly(batches):
    return [[(each.tolist() if isinstance(each, torch.Tensor) else each,
              getattr(each, "requires_grad", None), type(each)) for each in batch]
            if isinstance(batch, (list, tuple)) else batch.tolist() for batch in batches]


@pytest.mark.parametrize("kind", OVERRIDDEN)
def test_what_is_overridden_takes_the_usual_way(kind):
    loader = OVERRIDDEN[kind]()
    iterator = open_loader(loader, loader)
    assert type(iterator) is not BatchesByIndex and not made_by_index(loader)
    assert plainly(iterator) == plainly(OVERRIDDEN[kind]())


def test_ones_own_methods_are_called():
    Loud.calls = LoudSubset.calls = 0
    for kind in ("getitem", "getitem within", "getitems"):
        loader = OVERRIDDEN[kind]()
        list(open_loader(loader, loader))
    assert (Loud.calls, LoudSubset.calls) == (8 + 6, 2)


@pytest.mark.parametrize("owner, name", [
    (TensorDataset, "__getitem__"), (Subset, "__getitems__"), (torch, "stack"),
    (collate, "collate_tensor_fn"), (collate, "collate"), (TensorDataset, "__getitems__")])
def test_what_is_patched_in_mid_epoch_is_called(owner, name, monkeypatch):
    calls, usual = [], getattr(owner, name, None)

    def patched(*given, **named):
        calls.append(given)
        if usual is None:
            return [given[0][index] for index in given[1]]
        return usual(*given, **named)

    loader = DataLoader(Subset(TensorDataset(*tensors()), range(8)), 2)
    iterator = open_loader(loader, loader)
    next(iterator)
    monkeypatch.setattr(owner, name, patched, raising=False)
    second = next(iterator)
    made = len(calls)
    monkeypatch.undo()
    # collate calls the functions of its table, so a new name in its module changes nothing
    assert bool(made) is (name != "collate_tensor_fn")
    assert second[1].tolist() == [2, 3] and next(iterator)[1].tolist() == [4, 5]


def test_a_registered_collate_function_is_called(monkeypatch):
    loader = DataLoader(TensorDataset(*tensors()), 4)
    iterator = open_loader(loader, loader)
    assert next(iterator)[1].tolist() == [0, 1, 2, 3]
    monkeypatch.setitem(collate.default_collate_fn_map, torch.Tensor,
                        lambda samples, collate_fn_map: len(samples))
    assert next(iterator) == [4, 4] and next(iter(open_loader(loader, loader))) == [4, 4]


def test_modes_and_profilers_see_what_they_always_saw():
    loader = DataLoader(TensorDataset(*tensors()), 4)
    iterator = open_loader(loader, loader)
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, given=(), named=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*given, **(named or {}))

    with Mode():
        next(iterator)
    assert "stack" in seen
    with torch.profiler.profile() as profile:
        next(iterator)
    names = {each.key for each in profile.key_averages()}
    assert "aten::stack" in names and any("DataLoader" in name for name in names)


def test_another_tensor_is_seen_at_once(by_torch):
    dataset = TensorDataset(*tensors())
    half = Subset(dataset, list(range(8)))
    loader = DataLoader(half, 2)
    iterator = open_loader(loader, loader)
    assert next(iterator)[1].tolist() == [0, 1]
    dataset.tensors = tuple(-each for each in dataset.tensors)
    assert next(iterator)[1].tolist() == [-2, -3]
    half.indices[4] = 0
    assert next(iterator)[1].tolist() == [0, -5]
    half.dataset = TensorDataset(*tensors())
    assert next(iterator)[1].tolist() == [6, 7]
    assert not by_torch


def test_a_batch_shares_no_memory_with_the_data():
    inputs, numbers = tensors()
    wide = torch.arange(3.0).expand(8, 3)
    for dataset in (TensorDataset(inputs, numbers, wide), StackDataset(inputs, numbers),
                    Subset(TensorDataset(inputs), range(8)), inputs, numbers,
                    ConcatDataset([TensorDataset(inputs)] * 2)):
        loader = DataLoader(dataset, 8)
        for batch in open_loader(loader, loader):
            for each in batch if isinstance(batch, list) else [batch]:
                each.fill_(100)
    wanted = *tensors(), torch.arange(3.0).expand(8, 3)
    assert all(map(torch.equal, (inputs, numbers, wide), wanted))


WRONG = {"too large": [0, 8], "too small": [-9], "bools": [True, False], "mixed": [True, 3],
         "negative": [-1, 0], "floats": [0.0, 1.0], "slices": [slice(0, 2), slice(2, 4)],
         "none": [], "lists": [[0, 1], [2, 3]], "huge": [2 ** 70], "text": ["a"],
         "a tensor": torch.tensor([3, 1]), "small numbers": torch.tensor([3, 1], dtype=torch.uint8),
         "a mask": torch.tensor([True, False]), "an array": np.array([2, 0]), "a range": range(3)}


@pytest.mark.parametrize("nest", [lambda data: data, lambda data: Subset(data, list(range(8))),
                                  lambda data: ConcatDataset([data, data]), StackDataset],
                         ids=["tensors", "subset", "concat", "stack"])
@pytest.mark.parametrize("kind", WRONG)
def test_odd_indices_are_left_to_torch(kind, nest):
    def outcome(fast):
        seen = []
        loader = DataLoader(nest(TensorDataset(*tensors())), batch_sampler=[[1], WRONG[kind], [2]])
        iterator = open_loader(loader, loader, fast)
        for _ in range(4):  # it goes on after an error
            try:
                seen.append(described(next(iterator)))
            except Exception as error:
                frames = [each.name for each in traceback.extract_tb(error.__traceback__)]
                seen.append((type(error), str(error), error.__context__ is None, type(error)
                             is StopIteration or frames[frames.index("_next_data"):]))
        return seen
    assert outcome(True) == outcome(False)


def test_an_own_getitems_that_returns_tensors_means_what_torch_takes_it_for():
    class Whole(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitems__(self, indices):
            return tensors()[0][indices], tensors()[0][indices] + 1

    loader = DataLoader(Whole(), 4)
    assert not made_by_index(loader)
    assert next(open_loader(loader, loader)).shape == (2, 4, 2)  # a batch of two samples


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.2), nn.ReLU(), nn.Linear(12, 3))

    def forward(self, inputs):
        return self.layers(inputs)


def accuracy(pred, target):
    return (pred.argmax(1) == target).float().mean()


SETTINGS = {"plain": {}, "accumulated": {"gradient_accumulation_steps": 3},
            "limited": {"limit_batches": 5}, "overfit": {"overfit_batches": 3},
            "bf16": {"mixed_precision": "bf16"}, "seeded samples": {"seed_samples": True},
            "replay": {"resume_data": "replay"}}


def run(fast, settings="plain", split=True):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(70, 6), torch.randint(3, (70,)))
    train, valid = random_split(data, [0.7, 0.3]) if split else (data, data)
    return Trainer(Net(), train_dl=DataLoader(train, 8, shuffle=True),
                   valid_dl=DataLoader(valid, 16), loss_fn=nn.CrossEntropyLoss(),
                   metrics={"accuracy": accuracy}, epochs=3,
                   optim=lambda parameters: torch.optim.AdamW(parameters, lr=0.01), seed=4,
                   device="cpu", progress=False, fast_batches=fast, **SETTINGS[settings])


def compared(trainer):
    """Weights, records and streams."""
    records = {name: value for name, value in trainer.result().last.items()
               if name.startswith(("train/", "valid/"))}
    return ([each.tolist() for each in trainer.model.parameters()], records,
            torch.get_rng_state().tolist())


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_run_has_the_same_bits(settings, by_torch):
    usual, fast = run(False, settings), run(True, settings)
    usual.fit()
    assert not by_torch
    fast.fit()
    assert not by_torch and compared(usual) == compared(fast)
    assert torch.equal(usual.predict(usual.valid_dl), fast.predict(fast.valid_dl))


@pytest.mark.matrix
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("first, then", [(True, True), (True, False), (False, True)])
def test_a_run_that_was_halted_in_mid_epoch_goes_on_with_the_same_bits(first, then, settings,
                                                                       tmp_path):
    straight = run(False, settings)
    straight.fit()
    halted = run(first, settings)
    halted.step(4)
    assert halted.step_state.batch_idx
    halted.save(tmp_path / "run.pt")
    resumed = run(then, settings)
    resumed.load(tmp_path / "run.pt")
    resumed.fit()
    assert compared(straight) == compared(resumed)
    halted.fit()
    assert compared(straight) == compared(halted)


def test_the_files_of_a_run_do_not_know_of_it(tmp_path):
    def state(fast):
        trainer = run(fast)
        trainer.step(4)
        return trainer.data.state_dict(), trainer.exact
    usual, fast = state(False), state(True)
    assert str(usual) == str(fast) and bool(fast[1])


def test_each_pass_of_a_run_uses_it_unless_it_is_switched_off(monkeypatch):
    made = []
    usual = data_module.rows
    monkeypatch.setattr(data_module, "rows", lambda *given: made.append(1) or usual(*given))

    def count(call, *given):
        made.clear()
        call(*given)
        return len(made)

    for fast in (True, False):
        trainer = run(fast)
        assert bool(count(trainer.step)) is fast
        assert bool(count(trainer.validate)) is fast
        assert bool(count(trainer.predict, trainer.valid_dl)) is fast
        assert bool(count(trainer.lr_find)) is fast
        trainer.step(epochs=1)
        trainer.train_dl = trainer.train_dl
        trainer.train_dl = DataLoader(trainer.train_dl.dataset, 8)
        assert bool(count(trainer.step)) is fast


def test_the_summary_says_it_and_the_argument_is_checked():
    line = "batches    train_dl, valid: made by one index per tensor in memory"
    assert line in run(True).summary()
    assert "by one index" not in run(False).summary()
    assert run(True).fast_batches is True and run(False).fast_batches is False
    with pytest.raises(ValueError, match="fast_batches=1: True or False"):
        run(1)
    with pytest.raises(AttributeError, match="make another Trainer"):
        run(True).fast_batches = False


def test_samples_with_streams_of_their_own_are_rows_too(by_torch):
    dataset = SeededSamples(Subset(TensorDataset(*tensors()), [7, 1, 2, 3]), 3)
    loader = DataLoader(dataset, batch_sampler=[[(0, 1), (0, 0)], [(0, 3)]])
    found = [each[1].tolist() for each in open_loader(loader, loader)]
    assert found == [[1, 7], [3]] and made_by_index(loader) and not by_torch
    assert [each[1].tolist() for each in loader] == found
