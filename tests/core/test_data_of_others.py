"""Datasets that are told the epoch, batches of NumPy arrays, several loaders at once."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset
from torch.utils.data import TensorDataset

from trainer_nb import Trainer
from trainer_nb.core.data import split_batch

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


class Shuffled(IterableDataset):
    """A stream whose order goes by the epoch."""

    epoch = None

    def set_epoch(self, epoch):
        """The number of the epoch, from 0 on."""
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(32, generator=torch.Generator().manual_seed(self.epoch))
        return ((X[index], Y[index]) for index in order.tolist())


class Moved(Dataset):
    """Samples that go by the epoch."""

    epoch = None

    def set_epoch(self, epoch):
        """The number of the epoch."""
        self.epoch = epoch

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return X[index] + self.epoch, Y[index]


class Wrapper(Dataset):
    """A dataset around another one."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]


KINDS = {
    "stream": Shuffled,
    "map": Moved,
    "subset": lambda: Subset(Moved(), range(32)),
    "several": lambda: ConcatDataset([Moved(), Subset(Moved(), range(8))]),
    "wrapper": lambda: Wrapper(Wrapper(Moved())),
}


def trained(kind, workers=0, **settings):
    """A run of three epochs."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return Trainer(model, train_dl=DataLoader(KINDS[kind](), 8, num_workers=workers), epochs=3,
                   loss_fn=mse_loss, optim=torch.optim.SGD(model.parameters(), 0.05), seed=0,
                   device="cpu", progress=False, **settings)


@pytest.mark.parametrize("kind, workers", [*((kind, 0) for kind in KINDS), ("subset", 1)])
def test_a_dataset_is_told_the_epoch(kind, workers):
    """As by hand, bit for bit; and so is a run that goes on in mid-epoch."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optim, dataset = torch.optim.SGD(model.parameters(), 0.05), KINDS[kind]()
    inside = {"stream": [dataset], "map": [dataset]}.get(kind) or (
        [dataset.dataset] if kind == "subset" else [dataset.inner.inner] if kind == "wrapper"
        else [dataset.datasets[0], dataset.datasets[1].dataset])
    for epoch in range(3):
        for each in inside:
            each.set_epoch(epoch)
        for inputs, targets in DataLoader(dataset, 8):
            optim.zero_grad()
            mse_loss(model(inputs), targets).backward()
            optim.step()
    straight, first, again = (trained(kind, workers) for _ in range(3))
    straight.fit()
    assert torch.equal(straight.model.weight, model.weight)
    first.step(6)
    assert first.exact
    again.load_state_dict(first.state_dict())
    again.fit()
    assert torch.equal(again.model.weight, model.weight)
    for each in (straight, first, again):
        each.close()


def test_a_persistent_worker_does_not_hear_of_the_epoch():
    """It has a copy: that is named."""
    loader = DataLoader(Subset(Moved(), range(32)), 8, num_workers=1, persistent_workers=True)
    trainer = Trainer(nn.Linear(4, 1), train_dl=loader, loss_fn=mse_loss, epochs=1, device="cpu",
                      progress=False)
    assert "Moved.set_epoch() is not heard" in trainer.exact.obstacles[0]


class Note:
    """An object that is no part of the data."""

    def set_epoch(self, epoch):
        """Never called."""
        raise AssertionError


def test_only_datasets_are_told():
    """Not what a dataset merely holds, as a class or an object that gives nothing."""
    dataset = Wrapper(Moved())
    dataset.kind, dataset.note = Note, Note()
    Trainer(nn.Linear(4, 1), train_dl=DataLoader(dataset, 8), loss_fn=mse_loss, epochs=1,
            device="cpu", progress=False).fit()
    assert dataset.inner.epoch == 0


def test_arrays_are_split_like_tensors():
    """Each chunk has its rows of all of them, and what belongs to all samples whole."""
    names = np.array(list("abcdefghijkl"))
    batch = {"x": X[:12].numpy(), "same": X[:12], "names": names, "level": np.float32(3),
             "nested": (X[:12].numpy().astype(object), {"of all": np.zeros(5)})}
    chunks = split_batch(batch, 12, 5)
    assert len(chunks) == 3
    for number, chunk in enumerate(chunks):
        rows = slice(4 * number, 4 * number + 4)
        assert np.array_equal(chunk["x"], X[rows].numpy())
        assert torch.equal(chunk["same"], X[rows])
        assert chunk["names"].tolist() == names[rows].tolist()
        assert np.array_equal(chunk["nested"][0], X[rows].numpy())
        assert chunk["level"] == 3 and len(chunk["nested"][1]["of all"]) == 5


def test_a_run_over_arrays_in_chunks():
    """The weights of whole batches."""
    def collate(samples):
        return {"x": np.stack([x.numpy() for x, _ in samples]),
                "y": torch.stack([y for _, y in samples])}
    def step(batch, trainer):
        assert len(batch["x"]) == len(batch["y"])
        return {"loss": mse_loss(trainer.model(torch.from_numpy(batch["x"])), batch["y"])}
    made = []
    for size in (None, 3):
        torch.manual_seed(0)
        model = nn.Linear(4, 1).double().float()
        loader = DataLoader(TensorDataset(X, Y), 8, collate_fn=collate)
        Trainer(model, step, loader, optim=torch.optim.SGD(model.parameters(), 0.05), epochs=2,
                micro_batch_size=size, device="cpu", progress=False).fit()
        made.append(model.weight.detach())
    assert torch.allclose(*made, atol=1e-6)


def loader():
    """Any loader."""
    return DataLoader(TensorDataset(X, Y), 8)


@pytest.mark.parametrize("given", [list, tuple])
def test_a_list_of_validation_loaders(given):
    """Named by their numbers; also in a test, and when it is set later."""
    def make(valid):
        return Trainer(nn.Linear(4, 1), train_dl=loader(), valid_dl=valid, loss_fn=mse_loss,
                       epochs=1, device="cpu", progress=False)
    trainer = make(given([loader(), loader()]))
    result = trainer.fit()
    assert {"0/loss", "1/loss"} <= result.last.keys()
    assert trainer.test(given([loader(), loader()])).keys() == {"0/loss", "1/loss"}
    other = make(None)
    other.valid_dl = given([loader()])
    assert "0/loss" in other.fit().last


@pytest.mark.parametrize("train, text", [
    ([loader(), loader()], "train_dl is a list of loaders"),
    ((loader(),), "train_dl is a tuple of loaders"),
    ({"a": loader(), "b": loader()}, "train_dl is a dict of loaders"),
    ({"a": X}, "train_dl is a dict, which gives its keys")])
def test_several_training_loaders_are_refused_at_once(train, text):
    """By the constructor, with what is meant."""
    with pytest.raises(TypeError, match=text), warnings.catch_warnings():
        Trainer(nn.Linear(4, 1), train_dl=train, loss_fn=mse_loss, epochs=1, device="cpu",
                progress=False)
    trainer = Trainer(nn.Linear(4, 1), train_dl=loader(), loss_fn=mse_loss, epochs=1, device="cpu",
                      progress=False)
    with pytest.raises(TypeError, match=text):
        trainer.train_dl = train
    trainer.fit()
    with pytest.raises(TypeError, match="loader"):
        trainer.predict(train)
