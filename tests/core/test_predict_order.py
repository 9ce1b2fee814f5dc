"""`predict` of a loader that does not keep the order of its dataset: said, and the samples' places
on demand; the training's order does not change by it."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import (BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler,
                              Subset, TensorDataset, WeightedRandomSampler)

from trainer_nb import Trainer

X = torch.arange(24, dtype=torch.float32).reshape(24, 1)
DATA = TensorDataset(X, X)


class Odd(Sampler):
    """A sampler of the user's own: the odd samples."""

    def __iter__(self):
        return iter(range(1, 24, 2))

    def __len__(self):
        return 12


def make(**settings):
    """A model that gives back its input."""
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.zero_()
    return Trainer(model, train_dl=DataLoader(DATA, 4, shuffle=True), loss_fn=nn.MSELoss(),
                   optim=torch.optim.SGD(model.parameters(), lr=0.0), device="cpu",
                   progress=False, **settings)


LOADERS = {
    "batches of a shuffled sampler": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 5, False)),
    "shuffled": lambda: DataLoader(DATA, 5, shuffle=True),
    "own generator": lambda: DataLoader(DATA, 5, shuffle=True,
                                        generator=torch.Generator().manual_seed(3)),
    "with replacement": lambda: DataLoader(DATA, 5, sampler=WeightedRandomSampler(X[:, 0], 9)),
    "workers": lambda: DataLoader(DATA, 5, shuffle=True, num_workers=2),
    "persistent workers": lambda: DataLoader(DATA, 5, shuffle=True, num_workers=1,
                                             persistent_workers=True),
    "without batches": lambda: DataLoader(TensorDataset(X.reshape(24, 1, 1)), None, shuffle=True),
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("limit", [None, 2])
def test_the_places_are_those_of_the_predictions(loader, limit):
    loader, trainer = loader(), make()
    for _ in range(2):  # workers stay
        predictions, places = trainer.predict(loader, limit, indices=True)
        assert torch.equal(predictions.reshape(-1), places.to(torch.float32))
        if limit is None and len(places) == 24:
            assert sorted(places.tolist()) == list(range(24))
    with pytest.warns(UserWarning, match="indices=True"):
        trainer.predict(loader, limit)


def test_a_subset_s_places_are_those_within_it():
    trainer = make()
    loader = DataLoader(Subset(DATA, range(10, 20)), 3, shuffle=True)
    predictions, places = trainer.predict(loader, indices=True)
    assert torch.equal(predictions.reshape(-1), places.to(torch.float32) + 10)


@pytest.mark.parametrize("loader", [
    lambda: DataLoader(DATA, 5), lambda: DataLoader(DATA, 5, num_workers=1), lambda: [X[:4], X[4:]],
    lambda: DataLoader(DATA, 5, sampler=Odd())], ids=["usual", "workers", "list", "own sampler"])
def test_nothing_is_said_of_another_loader(loader):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().predict(loader())


def test_in_order_places_count_from_zero():
    predictions, places = make().predict(DataLoader(DATA, 5), indices=True)
    assert places.tolist() == list(range(24)) and len(predictions) == 24


class Stream(IterableDataset):
    """Samples without an index."""

    def __iter__(self):
        return iter(X)


@pytest.mark.parametrize("loader", [lambda: [X[:4]], lambda: DataLoader(Stream(), 4),
                                    lambda: DataLoader(DATA, 5, sampler=Odd())],
                         ids=["list", "stream", "own sampler"])
def test_places_that_nobody_knows_are_refused(loader):
    with pytest.raises(ValueError, match="does not tell which samples"):
        make().predict(loader(), indices=True)


def test_predictions_of_several_lengths_have_a_list_of_places():
    loader = DataLoader([1, 2, 4, 8, 16, 32], 2, shuffle=True,  # no two sums are equal
                        collate_fn=lambda rows: torch.ones(2, sum(rows), 1))
    with pytest.warns(UserWarning, match="do not join"):
        predictions, places = make().predict(loader, indices=True)
    assert [each.shape[1] for each in predictions] == [int((2 ** p).sum()) for p in places]


def test_the_training_goes_on_as_without():
    def losses(look):
        """All losses of two epochs."""
        torch.manual_seed(0)
        trainer = make(epochs=2, seed=0)
        for _ in range(12):
            trainer.step()
            if look:
                trainer.predict(DataLoader(DATA, 5, shuffle=True), indices=True)
        return list(trainer.history["train/loss"])

    assert losses(True) == losses(False)


class Detector(nn.Module):
    """Gives something for each sample, as torchvision's detectors do."""

    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(1, 1), kind

    def forward(self, x):
        """Dicts, vectors of several lengths, texts; or two tensors of the whole batch."""
        if self.kind == "columns":
            return [x, 2 * x]
        return [{"box": row.expand(2, 1), "score": self.linear(row)} if self.kind == "dicts" else
                row.expand(1 + int(row)) if self.kind == "vectors" else f"{int(row)}" for row in x]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["dicts", "vectors", "texts", "columns"])
def test_a_list_with_an_entry_for_each_sample_is_one_list(kind, size):
    """Whatever the batches are; a list of what each batch has is joined column by column."""
    data = TensorDataset(torch.arange(6.0)[:, None])
    trainer = Trainer(Detector(kind), train_dl=DataLoader(data, 3), max_steps=1, progress=False,
                      loss_fn=lambda pred, target: 0, device="cpu")
    found, places = trainer.predict(DataLoader(data, size), indices=True)
    assert torch.cat([each.reshape(-1) for each in places]
                     if isinstance(places, list) else [places]).tolist() == [*range(6)]
    if kind == "columns":
        assert [each.flatten().tolist() for each in found] == [[*range(6)], [*range(0, 12, 2)]]
        return
    assert type(found) is list and len(found) == 6
    first = {"dicts": lambda each: each["box"][0].item(), "texts": int,
             "vectors": lambda each: each[0].item()}[kind]
    assert [first(each) for each in found] == [*range(6)]
