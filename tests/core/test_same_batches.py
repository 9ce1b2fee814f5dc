"""A run that is halted and goes on takes the batches it would have taken:
whatever draws their order and their samples."""

import functools
import gc
import random
import weakref

import numpy as np
import pytest
import torch
from exact_runs import INPUTS, SAMPLES, TARGETS, Halt, Samples, drive, through_file
from shorter import some
from torch import nn
from torch.utils.data import (ConcatDataset, DataLoader, Dataset, DistributedSampler, TensorDataset,
                              IterableDataset, Sampler, Subset)

from trainer_nb import Hook, Trainer
from trainer_nb.core.data import loader_generators, restore_generators
from trainer_nb.core.own_state import alike, generator_state, set_generator_state
from trainer_nb.support.saved import plain_copy
from trainer_nb.core.state import RandomStreams

pytestmark = pytest.mark.slow


class Seen(Hook):
    """The batches of the training, as they are used."""

    kept = False
    order = 50

    def __init__(self):
        self.batches = []

    def before_batch(self, trainer):
        """A sum tells one from another."""
        if trainer.training:
            self.batches.append(trainer.batch[0].double().sum().item())


def trainer_of(train_dl, weights=0, **settings):
    """A trainer with dropout, which draws where the samples draw."""
    torch.manual_seed(weights)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Linear(6, 1))
    settings = {"epochs": 3, "seed": 7} | settings
    return Trainer(model, train_dl=train_dl, loss_fn=nn.MSELoss(),
                   optim=torch.optim.AdamW(model.parameters(), lr=0.01),
                   device="cpu", progress=False, hooks=[Seen()], **settings)  # fmt: skip


def weights_of(trainer):
    """All weights as one row."""
    return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])


def halted(make, cut, way, halt="step"):
    """A run that is halted and goes on in the same trainer, or in another one from a file, or goes
    back and comes again."""
    trainer = drive(make(), halt=Halt(halt, cut))
    if way == "same":
        trainer.stop()
        return drive(trainer)
    state = through_file(trainer.state_dict())
    if way == "rewound":
        trainer.step(2)
        trainer.load_state_dict(state)
        return drive(trainer)
    trainer.close()
    torch.manual_seed(99)
    other = make(weights=9)
    other.load_state_dict(state)
    return drive(other)


OVERFIT = {
    "seeded": lambda: (DataLoader(Samples("torch"), 4, shuffle=True), {"seed_samples": True}),
    "by epoch": lambda: (DataLoader(Samples(), 4, sampler=DistributedSampler(Samples(), 1, 0)), {}),
    "plain": lambda: (DataLoader(Samples("numpy"), 4, shuffle=True), {}),
}


@pytest.mark.parametrize("kind", OVERFIT)
@pytest.mark.parametrize("cut, way",
                         [(1, "new"), (3, "new"), (5, "new"), (3, "same"), (5, "rewound")])
def test_overfit_batches_are_taken_again(kind, cut, way):
    """In a later epoch, by a trainer that has not seen them:
    those of the epoch in which they were taken."""
    def make(weights=0):
        loader, settings = OVERFIT[kind]()
        return trainer_of(loader, weights, overfit_batches=2, **settings)
    straight, again = drive(make()), halted(make, cut, way)
    assert weights_of(again).equal(weights_of(straight))
    assert again.exact


@pytest.mark.parametrize("kind", ["seeded", "by epoch"])
def test_overfit_batches_of_a_search_are_those_of_the_run(kind):
    """Also where the run was loaded in a later epoch, and has not taken them yet."""
    def make(weights=0):
        loader, settings = OVERFIT[kind]()
        return trainer_of(loader, weights, overfit_batches=2, **settings)
    straight, first, again = drive(make()), drive(make(), halt=Halt("step", 3)), make(weights=9)
    again.load_state_dict(through_file(first.state_dict()))
    losses = [trainer.sweep("lr", [0.01, 0.02]).losses for trainer in (first, again)]
    assert losses[0] == losses[1]
    assert weights_of(drive(again)).equal(weights_of(straight))


class Noisy(Dataset):
    """Draws from a generator of its own; some samples draw more than others."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return INPUTS[index] + sum(self.draw() for _ in range(1 + index % 2)), TARGETS[index]


class OwnRng(Noisy):
    """As it is written most often."""

    def __init__(self):
        super().__init__(self.noise)
        self.rng = np.random.default_rng(4)

    def noise(self):
        """A number."""
        return float(self.rng.normal())


class Buffered(IterableDataset):
    """A shuffle buffer with a generator of its own."""

    def __init__(self):
        self.rng = random.Random(4)

    def __iter__(self):
        left = list(range(SAMPLES))
        while left:
            index = left.pop(self.rng.randrange(len(left)))
            yield INPUTS[index], TARGETS[index]


class OwnOrder(Sampler):
    """Another order in each epoch, from one generator."""

    def __init__(self):
        self.rng = np.random.default_rng(4)

    def __iter__(self):
        return iter(self.rng.permutation(SAMPLES).tolist())

    def __len__(self):
        return SAMPLES


class OwnLoader:
    """A loader of one's own."""

    def __init__(self):
        self.rng = np.random.RandomState(4)

    def __iter__(self):
        for index in np.split(self.rng.permutation(SAMPLES), 3):
            yield INPUTS[index] + float(self.rng.normal()), TARGETS[index]

    def __len__(self):
        return 3


beside = np.random.default_rng(4)  # as a cell of a notebook has it


def noise_beside():
    """Draws from a global generator."""
    return float(beside.normal())


def collate(generator, samples):
    """Stacks, and adds noise."""
    inputs, targets = map(torch.stack, zip(*samples))
    return inputs + 0.3 * torch.rand(len(inputs), 1, generator=generator), targets


def masked(rng):
    """A collate function that closes over a generator."""
    def masked(samples):
        inputs, targets = map(torch.stack, zip(*samples))
        return inputs * torch.from_numpy(rng.random(inputs.shape) > 0.2), targets
    return masked


def shared(workers=0):
    """One generator for the order and the samples."""
    generator = torch.Generator().manual_seed(4)
    dataset = Noisy(functools.partial(draw_from, generator))
    return DataLoader(dataset, 4, shuffle=True, generator=generator, num_workers=workers)


def draw_from(generator):
    """A number of torch's."""
    return torch.randn((), generator=generator).item()


def nested():
    """A generator in a list in a dataset in a subset of two."""
    inner = Noisy(functools.partial(random.Random.gauss, random.Random(4), 0, 1))
    return Subset(ConcatDataset([Samples(), inner]), range(0, 2 * SAMPLES, 2))


OWN = {
    "dataset": lambda: DataLoader(OwnRng(), 4, shuffle=True),
    "nested datasets": lambda: DataLoader(nested(), 4, shuffle=True),
    "a global": lambda: DataLoader(Noisy(noise_beside), 4, shuffle=True),
    "shared with the order": shared,
    "collate function": lambda: DataLoader(Samples(), 4,
                                           collate_fn=functools.partial(
                                               collate, torch.Generator().manual_seed(4))),
    "closure": lambda: DataLoader(Samples("torch"), 4, shuffle=True,
                                  collate_fn=masked(np.random.default_rng(4))),
    "sampler": lambda: DataLoader(OwnRng(), 4, sampler=OwnOrder()),
    "sampler, two workers": lambda: DataLoader(Samples(), 4, sampler=OwnOrder(), num_workers=2),
    "iterable": lambda: DataLoader(Buffered(), 4),
    "own loader": OwnLoader,
}


def make_own(kind, weights=0):
    """A trainer over a loader that draws from a generator of its own, which begins again."""
    beside.bit_generator.state = np.random.default_rng(4).bit_generator.state
    return trainer_of(OWN[kind](), weights)


GO_ON = ("dataset", "shared with the order", "closure", "sampler, two workers", "iterable")


@pytest.mark.parametrize("kind", some(OWN, GO_ON))
def test_generators_of_ones_own_go_on(kind):
    """In dataset, sampler or collate function:
    no sample comes twice, none is missing, and all noise is the same."""
    make = functools.partial(make_own, kind)
    straight = drive(make())
    cuts = [(2, "new"), (2, "same"), (6, "same"), (7, "new"), (4, "rewound")]
    for cut, way in cuts[:2] if "workers" in kind else cuts:
        again = halted(make, cut, way)
        assert weights_of(again).equal(weights_of(straight)), (cut, way)
        assert again.exact
        again.close()
    straight.close()


@pytest.mark.parametrize("kind", some(OWN, OWN.keys() - set(GO_ON)))
def test_a_search_gives_generators_of_ones_own_back(kind):
    """Before the first step, and in mid-epoch."""
    make = functools.partial(make_own, kind)
    straight = drive(make())
    for cut in (0, 2):
        other = make()
        if cut:
            other.step(cut)
        other.sweep("lr", [0.01] * 6)
        assert weights_of(drive(other)).equal(weights_of(straight)), cut
        other.close()
    straight.close()


def test_an_evaluation_gives_a_shared_generator_back():
    """Training and validation over parts of one dataset that draws."""
    def make(valid):
        dataset = OwnRng()
        return trainer_of(DataLoader(Subset(dataset, range(12)), 4),
                          valid_dl=DataLoader(Subset(dataset, range(12, 18)), 4) if valid else None)
    assert weights_of(drive(make(True))).equal(weights_of(drive(make(False))))


def test_states_of_all_kinds_come_back_through_a_file():
    """With the half of a pair that NumPy and Python keep for the next number."""
    def make(seed):
        kinds = [np.random.PCG64(seed), np.random.MT19937(seed), np.random.Philox(seed),
                 np.random.SFC64(seed)]
        numpy = [np.random.Generator(each) for each in kinds]
        return [*numpy, np.random.RandomState(seed), random.Random(seed),
                torch.Generator().manual_seed(seed)]
    def numbers(generators):
        *numpy, python, own = generators
        return [[each.normal() for each in numpy], python.gauss(0, 1),
                torch.rand(1, generator=own).item()]
    first, second = make(1), make(2)
    numbers(first)
    states = through_file(plain_copy({"all": [generator_state(each) for each in first]}))["all"]
    expected = [numbers(first) for _ in range(3)]
    restore_generators(second, states)
    assert [numbers(second) for _ in range(3)] == expected
    with pytest.raises(TypeError, match="another kind of generator than Random"):
        set_generator_state(second[5], states[0])


IN_WORKERS = {
    "collate function": (lambda: DataLoader(Samples(), 4, num_workers=2,
                                            collate_fn=functools.partial(collate, None)),
                                            "the collate function draws"),
    "own generator": (lambda: DataLoader(OwnRng(), 4, num_workers=2),
                      "dataset.rng has a copy in each worker"),
    "third sample": (lambda: DataLoader(Third(), 4, num_workers=2),
                     "the dataset draws random numbers in its workers"),
}  # fmt: skip


class Third(Dataset):
    """Draws for a few of its samples."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return INPUTS[index] + (torch.rand(()) if index == 2 else 0), TARGETS[index]


@pytest.mark.parametrize("kind", IN_WORKERS)
def test_what_draws_in_workers_is_named_before_the_run(kind):
    """And the looking leaves every generator as it was;
    resume_data='replay' is a way out, seed_samples for the global streams."""
    make, text = IN_WORKERS[kind]
    trainer = trainer_of(make())
    before, generators = (RandomStreams.capture(),
                          [generator_state(each) for each in loader_generators(trainer.train_dl)])
    assert not trainer.exact
    assert text in trainer.exact.obstacles[0] and len(trainer.exact.obstacles) == 1
    assert alike(vars(before), vars(RandomStreams.capture()))
    assert alike(generators,
                 [generator_state(each) for each in loader_generators(trainer.train_dl)])
    assert trainer_of(make(), resume_data="replay").exact
    assert bool(trainer_of(make(), seed_samples=True).exact) is (kind != "own generator")


class Curriculum(TensorDataset):
    """Its samples follow a trainer that is a global name, as in a notebook."""

    def __getitem__(self, index):
        """The farther the run, the larger."""
        return tuple(each * (1 + EVERYWHERE["trainer"].step_state.epoch)
                     for each in super().__getitem__(index))


EVERYWHERE: dict = {}


def test_data_that_knows_its_trainer_is_let_go_with_it():
    """Where the generators of a loader were looked for is remembered by the run alone."""
    def train():
        data = Curriculum(torch.randn(8, 2), torch.randn(8, 1))
        loader = DataLoader(data, 4)
        trainer = EVERYWHERE["trainer"] = Trainer(
            torch.nn.Linear(2, 1), train_dl=loader, valid_dl=loader, device="cpu",
            loss_fn=torch.nn.functional.mse_loss, progress=False, epochs=2,
            optim=lambda weights: torch.optim.SGD(weights, 0.1))
        trainer.fit()
        EVERYWHERE.clear()
        return weakref.ref(data), weakref.ref(trainer)
    found = train()
    gc.collect()
    assert [each() for each in found] == [None, None]
