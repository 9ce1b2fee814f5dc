"""torchdata's StatefulDataLoader: a run over one is resumed by the loader's own state, without
loading what was seen."""

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from trainer_nb import LambdaHook, Trainer

pytestmark = pytest.mark.slow


class Samples(torch.utils.data.Dataset):
    """Counts what is loaded; draws a little from the run's stream where no worker is asked."""

    def __init__(self, noisy):
        self.noisy, self.loaded = noisy, 0

    def __len__(self):
        return 26

    def __getitem__(self, index):
        self.loaded += 1
        x = torch.full((2,), float(index)) / 26
        return (x + 0.1 * torch.rand(2) if self.noisy else x), x.sum(0, keepdim=True)


def make(workers, first=0):
    """Three epochs of seven batches, the last one ragged."""
    torch.manual_seed(first)
    model = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 1))
    data = StatefulDataLoader(Samples(noisy=not workers), batch_size=4, shuffle=True,
                              num_workers=workers)
    return Trainer(model, train_dl=data, loss_fn=torch.nn.MSELoss(),
                   optim=torch.optim.AdamW(model.parameters(), lr=0.01),
                   seed=3, device="cpu", progress=False, epochs=3)


def same_weights(one, other):
    """Equal in every bit."""
    return all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters()))


def halted_and_resumed(straight, same, other, step):
    """A run that is halted at a step goes on as the one left alone;
    so does another trainer from its state."""
    straight.fit()
    same.step(step)
    other.load_state_dict(same.state_dict())
    same.stop()
    for again in (same, other):
        again.fit()
        assert same_weights(straight, again)


@pytest.mark.parametrize(("workers", "steps"), [
    (0, (0, 1, 6, 7, 8, 14, 20, 21)), pytest.param(0, range(22), marks=pytest.mark.long),
    (2, (7, 10)), pytest.param(2, (0, 3, 20), marks=pytest.mark.long)])
def test_resumed_after_any_step(workers, steps):
    straight = make(workers)
    straight.fit()
    for step in steps:
        first = make(workers)
        if step:
            first.step(step)
        state = first.state_dict()
        first.close()
        second = make(workers, first=99)
        second.load_state_dict(state)
        second.step(1)
        if not workers and step:
            assert second.train_dl.dataset.loaded <= 4  # the current batch, and none before it
        second.fit()
        same = [torch.equal(a, b)
                for a, b in zip(straight.model.parameters(), second.model.parameters())]
        assert all(same), step
        second.close()
    straight.close()


def test_stopped_and_going_on_in_one_process():
    straight, other = make(0), make(0)
    straight.fit()
    other.step(10)
    other.stop()
    other.fit()
    assert all(torch.equal(a, b)
               for a, b in zip(straight.model.parameters(), other.model.parameters()))


SAMPLERS = {
    "random": lambda dataset: RandomSampler(dataset),
    "replacement": lambda dataset: RandomSampler(dataset, replacement=True, num_samples=21),
    "weighted": lambda dataset: WeightedRandomSampler(range(1, 27), 26),
    "own generator": lambda dataset: RandomSampler(dataset,
                                                   generator=torch.Generator().manual_seed(1)),
}


class WithState(Samples):
    """Its place in an epoch is the loader's to keep."""

    def state_dict(self):
        """How often it was asked."""
        return {"loaded": self.loaded}

    def load_state_dict(self, state):
        """As often as it was asked."""
        self.loaded = state["loaded"]


@pytest.mark.parametrize("dataset_kind", [Samples, WithState])
@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("step", [2, 9])
def test_a_sampler_of_torch_draws_its_order_again(kind, step, dataset_kind):
    """It has no state: no sample comes twice, and none is left out."""
    def make_with(first=0):
        trainer = make(0, first)
        dataset = dataset_kind(noisy=True)
        loader = StatefulDataLoader(dataset, batch_size=4, sampler=SAMPLERS[kind](dataset))
        return Trainer(trainer.model, train_dl=loader, loss_fn=torch.nn.MSELoss(),
                       optim=trainer.optim, seed=3, device="cpu",
                       progress=False, epochs=3)
    halted_and_resumed(make_with(), make_with(), make_with(first=99), step)


class Stream(torch.utils.data.IterableDataset):
    """Goes on in the next epoch where it was."""

    def __init__(self):
        self.place = 0

    def __iter__(self):
        for _ in range(8):
            self.place += 1
            yield torch.full((2,), self.place / 9), torch.ones(1)

    def state_dict(self):
        """Where it is."""
        return {"place": self.place}

    def load_state_dict(self, state):
        """Where it was."""
        self.place = state["place"]


def test_a_stream_with_a_state_is_named_before_the_run():
    """In a new process it begins again at the end of an epoch."""
    model = torch.nn.Linear(2, 1)
    trainer = Trainer(model, train_dl=StatefulDataLoader(Stream(), batch_size=4),
                      loss_fn=torch.nn.MSELoss(), epochs=2, device="cpu",
                      progress=False)
    assert not trainer.exact and "state of the dataset is not kept" in trainer.exact.obstacles[0]


class DrawnAtOnce(torch.utils.data.Sampler):
    """Draws its order from a generator of its own, as soon as it is iterated."""

    def __init__(self):
        self.rng = np.random.default_rng(8)

    def __len__(self):
        return 26

    def __iter__(self):
        return iter(self.rng.permutation(26).tolist())


def at(workers=0, sampler=None, valid=None, **settings):
    """A trainer of two epochs over such a loader."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    order = {"sampler": sampler} if sampler else {"shuffle": True}
    data = StatefulDataLoader(Samples(noisy=False), batch_size=4, num_workers=workers, **order)
    return Trainer(model, train_dl=data, valid_dl=valid, loss_fn=torch.nn.MSELoss(),
                   optim=torch.optim.SGD(model.parameters(), lr=0.1),
                   seed=3, device="cpu", progress=False, epochs=2, **settings)


@pytest.mark.parametrize("step", [2, 7, 9])
def test_a_sampler_with_a_generator_of_its_own_is_asked_once_an_epoch(step):
    halted_and_resumed(*(at(sampler=DrawnAtOnce()) for _ in range(3)), step)


SEARCHED = {"all": {}, "overfit": {"overfit_batches": 1}, "limit": {"limit_batches": {"train": 3}}}
WITH_A_WORKER = [("all", 1), ("overfit", 0), ("limit", 7)]


@pytest.mark.parametrize(("kind", "steps", "workers"), [
    *((kind, steps, 0) for kind in SEARCHED for steps in (0, 1, 7)),
    *((kind, steps, 1) for kind, steps in WITH_A_WORKER),
    *(pytest.param(kind, steps, 1, marks=pytest.mark.long) for kind in SEARCHED
      for steps in (0, 1, 7) if (kind, steps) not in WITH_A_WORKER)])
def test_a_search_leaves_no_trace(kind, steps, workers):
    settings = SEARCHED[kind]
    straight, searched = at(workers, **settings), at(workers, **settings)
    straight.fit()
    if steps:
        searched.step(min(steps, searched.planned_steps))
    searched.lr_find(num_steps=10)
    assert searched.exact
    searched.fit()
    assert same_weights(straight, searched)
    straight.close(), searched.close()


@pytest.mark.parametrize(("step", "workers"), [
    (1, 0), (5, 0), (8, 0), (5, 1), *(pytest.param(step, 1, marks=pytest.mark.long)
                                      for step in (1, 8))])
def test_an_evaluation_over_one_goes_on_too(step, workers):
    def make_with():
        generator = torch.Generator().manual_seed(2)
        return at(valid=StatefulDataLoader(Samples(noisy=not workers), batch_size=5, shuffle=True,
                                           generator=generator, num_workers=workers))
    runs = make_with(), make_with(), make_with()
    halted_and_resumed(*runs, step)
    for each in runs:
        assert each.history["valid/loss"].tolist() == runs[0].history["valid/loss"].tolist()
        each.close()


def test_the_order_is_that_of_the_loader_by_hand():
    """Iterated by torch's loader, it gives the batches it gives alone."""
    seen = []
    trainer = at(
        hooks=[LambdaHook(
            after_batch=lambda trainer: seen.append(trainer.batch[0][:, 0].tolist()))])
    trainer.fit()
    trainer = at()  # its generator is seeded as that of the other one was
    by_hand = [batch[0][:, 0].tolist() for _ in range(2) for batch in trainer.train_dl]
    assert seen == by_hand


def test_a_loaded_state_is_refused():
    loader = StatefulDataLoader(Samples(noisy=False), batch_size=4)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="place is kept by the trainer"):
        Trainer(torch.nn.Linear(2, 1), train_dl=loader, loss_fn=torch.nn.MSELoss())


class Counting(torch.utils.data.IterableDataset):
    """A stream without a state."""

    def __iter__(self):
        yield from ((torch.full((2,), i / 9), torch.ones(1)) for i in range(24))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_without_a_state_is_halted_twice_in_an_epoch(workers):
    def stream():
        model = torch.nn.Linear(2, 1)
        torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
        return Trainer(model,
                       train_dl=StatefulDataLoader(Counting(), batch_size=4, num_workers=workers),
                       loss_fn=torch.nn.MSELoss(),
                       max_steps=15, device="cpu", progress=False,
                       optim=torch.optim.SGD(model.parameters(), lr=0.1))
    straight, halted = stream(), stream()
    straight.fit()
    for _ in range(2):
        halted.step(2)
        halted.stop()
    halted.fit()
    assert same_weights(straight, halted)
    straight.close(), halted.close()


class OnlyLoads:
    """Not torchdata's: it can be given a state, and gives none."""

    def __iter__(self):
        return iter([(torch.ones(4, 2), torch.ones(4, 1))] * 3)

    def __len__(self):
        return 3

    def load_state_dict(self, state):
        """Nothing."""


def test_a_loader_that_only_takes_a_state_is_iterated_as_it_is():
    trainer = Trainer(torch.nn.Linear(2, 1), train_dl=OnlyLoads(), loss_fn=torch.nn.MSELoss(),
                      epochs=2, device="cpu", progress=False)
    assert trainer.fit().steps == 6
