"""What changes once an epoch, and is in no state, is named; also in a run with evaluations, over
which other values may change."""

import numpy as np
import pytest
import torch
from small_runs import BATCHES, make
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from trainer_nb import Hook, LambdaHook

DATA = TensorDataset(*map(torch.cat, zip(*BATCHES, strict=True)))


class Passes(Sampler):
    """Another order in each pass."""

    def __init__(self):
        self.passes = 0

    def __len__(self):
        return len(DATA)

    def __iter__(self):
        order = np.random.default_rng(self.passes).permutation(len(DATA)).tolist()
        self.passes += 1
        return iter(order)


class Batches:
    """Batches that begin at another place in each pass."""

    def __init__(self):
        self.passes = 0

    def __len__(self):
        return 5

    def __iter__(self):
        self.passes += 1
        for place in range(5):
            yield [(place * 4 + self.passes + each) % len(DATA) for each in range(4)]


class Own(Batches):
    """A loader of one's own."""

    def __iter__(self):
        self.passes += 1
        for x, y in BATCHES:
            yield x * (1 + 0.1 * self.passes), y


class Scaled(nn.Module):
    """A model with a number that is in no state."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(2, 1), 1.0

    def forward(self, x):
        return self.layer(x) * self.scale


class Weights(Hook):
    """Weights batches by a tensor of its own."""

    def __init__(self):
        self.weights = torch.ones(2)

    def before_batch(self, trainer):
        if trainer.training:
            trainer.batch = (trainer.batch[0] * self.weights, trainer.batch[1])

    def after_epoch(self, trainer):
        self.weights = self.weights * 0.9


def shrink(trainer):
    trainer.model.scale *= 0.8


class Changed(torch.utils.data.Dataset):
    """Its transform can be replaced."""

    def __init__(self):
        self.transform = lambda x: x

    def __len__(self):
        return len(DATA)

    def __getitem__(self, place):
        return self.transform(DATA[place][0]), DATA[place][1]


class Hard(Sampler):
    """Some samples once more."""

    def __init__(self):
        self.hard = [0] * 4

    def __len__(self):
        return len(DATA) + len(self.hard)

    def __iter__(self):
        return iter([*range(len(DATA)), *self.hard])


def by_epoch(change):
    """A hook that changes the loader as an epoch begins."""
    return [LambdaHook(name="course", before_epoch=lambda trainer: change(
        trainer.train_dl, trainer.step_state.epoch))]


def collated(times):
    return lambda samples: tuple(times * torch.stack(each) for each in zip(*samples, strict=True))


def other_transform(loader, epoch):
    loader.dataset.transform = lambda x: (1 + epoch) * x


def other_samples(loader, epoch):
    loader.sampler.hard = list(range(epoch, 4 + epoch))


def other_size(loader, epoch):
    loader.batch_sampler.batch_size = 4 + epoch


def other_collate(loader, epoch):
    loader.collate_fn = collated(1 + epoch)


def other_indices(loader, epoch):
    loader.dataset.indices = list(range(epoch, 12 + epoch))


KINDS = {
    "transform": lambda: {"train_dl": DataLoader(Changed(), 4), "hooks": by_epoch(other_transform)},
    "samples": lambda: {"train_dl": DataLoader(DATA, 4, sampler=Hard()),
                        "hooks": by_epoch(other_samples)},
    "batch size": lambda: {"train_dl": DataLoader(DATA, 4), "hooks": by_epoch(other_size)},
    "collate": lambda: {"train_dl": DataLoader(DATA, 4), "hooks": by_epoch(other_collate)},
    "indices": lambda: {"train_dl": DataLoader(torch.utils.data.Subset(DATA, list(range(12))), 4),
                        "hooks": by_epoch(other_indices)},
    "sampler": lambda: {"train_dl": DataLoader(DATA, 4, sampler=Passes())},
    "batch sampler": lambda: {"train_dl": DataLoader(DATA, batch_sampler=Batches())},
    "loader": lambda: {"train_dl": Own()},
    "hook": lambda: {"hooks": [Weights()]},
    "model": lambda: {"hooks": [LambdaHook(name="shrink", after_epoch=shrink)]}}


def run(kind, valid, epochs=5):
    torch.manual_seed(0)
    valid = {"valid_dl": BATCHES} if valid else {}
    return make(Scaled(), seed=0, epochs=epochs, **KINDS[kind]() if kind else {}, **valid)


@pytest.mark.matrix
@pytest.mark.parametrize("valid", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_does_not_go_on_bit_for_bit_says_so(kind, valid):
    straight, run_of, other = (run(kind, valid) for _ in range(3))
    straight.fit()
    run_of.step(11)
    other.load_state_dict(run_of.state_dict())
    other.fit()
    assert not torch.equal(straight.model.layer.weight, other.model.layer.weight)
    assert not run_of.exact and not straight.exact
    assert "is not part of the state" in str(run_of.exact)


@pytest.mark.parametrize("steps", [[11], [1] * 11, [5, 1, 5]])
def test_a_usual_run_with_evaluations_is_exact(steps):
    """Also one that is driven in pieces, and whose evaluations leave values behind."""
    class Best(Hook):
        best = 9.0

        def after_valid(self, trainer):
            self.best = min(self.best, trainer.records["valid/loss"])

    usual = run(None, True)
    usual.hooks.add(Best())
    for count in steps:
        usual.step(count)
    assert usual.exact


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_in_mid_epoch_hide_nothing(kind, every):
    """Nor those of each step; an epoch has five."""
    torch.manual_seed(0)
    seen = make(Scaled(), seed=0, max_steps=60, valid_dl=BATCHES, eval_every=every,
                **KINDS[kind]())
    seen.step(24)
    assert not seen.exact
