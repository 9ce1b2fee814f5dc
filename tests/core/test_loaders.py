"""Loaders that are not what they seem: datasets in their place, passes that end early, lengths that
are wrong; words of other trainers."""

import os
import signal
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from trainer_nb.core.data import limited
from trainer_nb import Task, Trainer
from trainer_nb.core.data import all_batches, opened

X, Y = torch.randn(64, 4), torch.randn(64, 1)
DATA = TensorDataset(X, Y)


class Stream(IterableDataset):
    """Samples without an index."""

    def __iter__(self):
        return iter(DATA)


DATASETS = {"tensors": DATA, "part": Subset(DATA, range(8)), "stream": Stream()}


def make(train_dl=None, **settings):
    """A small run."""
    model = nn.Linear(4, 1)
    settings = {"loss_fn": nn.MSELoss(), "epochs": 3, "progress": False, "device": "cpu"} | settings
    return Trainer(model, train_dl=DataLoader(DATA, 8) if train_dl is None else train_dl,
                   **settings)


# ---- a dataset in the place of a loader

@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("use",
                         ["train_dl", "valid_dl", "named", "validate", "test", "predict", "lr_find",
                          "lr_find valid", "sweep"])
def test_a_dataset_is_no_loader(name, use):
    """It was gone through sample by sample."""
    given = DATASETS[name]
    if use in ("train_dl", "valid_dl", "named"):
        wrong = {"valid_dl": {"other": given}} if use == "named" else {use: given}
        with pytest.raises(TypeError,
                           match=r"is a dataset.*DataLoader\(dataset, batch_size=\.\.\.\)"):
            make(**wrong)
        return
    trainer = make()
    calls = {"validate": lambda: trainer.validate(given), "test": lambda: trainer.test(given),
             "predict": lambda: trainer.predict(given),
             "lr_find": lambda: trainer.lr_find(train_dl=given),
             "lr_find valid": lambda: trainer.lr_find(valid_dl=given),
             "sweep": lambda: trainer.sweep("lr", [0.1], train_dl=given)}
    with pytest.raises(TypeError, match=r"is a dataset.*batch_size=None"):
        calls[use]()
    assert trainer.step_state.optimizer_step == 0


@pytest.mark.parametrize("wrong", [X, X.numpy(), DataLoader])
def test_other_things_are_no_loader(wrong):
    """Rows of a tensor, and a class."""
    with pytest.raises(TypeError, match="train_dl is (a|the class)"):
        make(wrong)


def test_a_loader_over_batches_of_a_dataset_is_one():
    """What the message says works."""
    class Batches(Dataset):
        """Its items are batches."""

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return X[8 * index:8 * index + 8], Y[8 * index:8 * index + 8]

    trainer = make(DataLoader(Batches(), batch_size=None))
    trainer.fit()
    assert trainer.step_state.samples_seen == 3 * 32


# ---- a StopIteration that is not an end

class Broken(Dataset):
    """`next()` of something empty, at one index."""

    def __init__(self, at=40):
        self.at = at

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return DATA[index] if index != self.at else next(iter([]))


def broken_collate(samples):
    """The same in a collate function, for the fourth batch."""
    if torch.equal(samples[0][0], X[24]):
        next(iter([]))
    return torch.utils.data.default_collate(samples)


BROKEN = {
    "dataset": (lambda: DataLoader(Broken(), 8), 5),
    "the last batch": (lambda: DataLoader(Broken(60), 8), 7),
    "collate": (lambda: DataLoader(DATA, 8, collate_fn=broken_collate), 3),
    "collate of a stream": (lambda: DataLoader(Stream(), 8, collate_fn=broken_collate), 3),
    "worker": (lambda: DataLoader(Broken(), 8, num_workers=1), 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_mistake_in_the_dataset_is_no_end(name):
    """It names batch and epoch, and has the dataset's own traceback."""
    loader, batch = BROKEN[name]
    trainer = make(loader(), sched="one_cycle" if "stream" not in name else None)
    with pytest.raises(RuntimeError,
                       match=f"batch {batch + 1} of epoch 1.*StopIteration") as caught:
        trainer.fit()
    assert isinstance(caught.value.__cause__, StopIteration)
    assert trainer.step_state.optimizer_step == batch


@pytest.mark.parametrize("name", ["dataset", "the last batch"])
def test_it_can_be_passed_over(name):
    """As any batch that fails."""
    loader, batch = BROKEN[name]
    trainer = make(loader(), epochs=1)
    with pytest.raises(RuntimeError):
        trainer.fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainer.fit(skip_failed=True).status == "finished"
    assert trainer.step_state.optimizer_step == 7


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_nor_in_an_evaluation(call):
    """It was the mean of less."""
    with pytest.raises(RuntimeError, match="batch 5 of the loader.*StopIteration"):
        getattr(make(), call)(BROKEN["dataset"][0]())


@pytest.mark.slow
@pytest.mark.parametrize("loader",
                         [lambda: DataLoader(DATA, 8), lambda: DataLoader(Stream(), 8),
                          lambda: DataLoader(DATA, 8, num_workers=1),
                          lambda: DataLoader(Stream(), 8, num_workers=1),
                          lambda: DataLoader([(X, Y)] * 3, batch_size=None),
                          lambda: iter([(X, Y)] * 3)])
def test_true_ends_are_ends(loader):
    """Of loaders with and without an index, with workers, and of an iterator."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make(loader(), epochs=1, valid_dl=DataLoader(Stream(), 8)).fit().status == "finished"


# ---- a length that is wrong

class Wrong:
    """A loader that says another length."""

    def __init__(self, said, gives):
        self.said, self.gives = said, gives

    def __len__(self):
        return self.said

    def __iter__(self):
        return iter([(X[:8], Y[:8])] * self.gives)


@pytest.mark.parametrize(("said", "gives"), [(8, 5), (5, 8)])
def test_a_wrong_length_is_told_once(said, gives):
    """With both numbers; the counters are those of what came."""
    trainer = make(Wrong(said, gives), sched="cosine")
    with pytest.warns(UserWarning,
                      match=f"train_dl gave {gives} batches.*len.. says {said}") as caught:
        result = trainer.fit()
    assert len(caught) == 1
    assert (result.status, result.epochs, result.steps) == ("finished", 3, 3 * gives)
    assert trainer.position().fraction == 1.0 and trainer.planned_steps == 3 * gives


@pytest.mark.parametrize("limits", [{}, {"max_steps": 10, "epochs": None}])
def test_a_run_over_more_than_was_said_goes_on_where_it_stopped(limits):
    """Beyond the length it said."""
    straight, parts = (make(Wrong(5, 8), **limits) for _ in range(2))
    parts.model.load_state_dict(straight.model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        straight.fit()
        parts.step(7)
        assert parts.planned_steps == (parts.max_steps
                                       or 7 + (parts.epochs - 1) * parts.steps_per_epoch)
        parts.stop()
        parts.fit()
    assert parts.step_state.optimizer_step == straight.step_state.optimizer_step
    assert parts.step_state.batch_idx == straight.step_state.batch_idx
    assert all(torch.equal(a, b)
               for a, b in zip(straight.model.parameters(), parts.model.parameters()))


@pytest.mark.parametrize(("said", "gives"), [(8, 5), (5, 8)])
def test_of_an_evaluation_too(said, gives):
    """The loader is named."""
    trainer = make(valid_dl={"other": Wrong(said, gives)})
    with pytest.warns(UserWarning, match=f"'other' gave {gives} batches.*says {said}") as caught:
        trainer.fit()
    assert len(caught) == 1


def test_limits_are_no_wrong_length():
    """A part of a loader was asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(limit_batches=3, valid_dl=DataLoader(DATA, 8)).fit()
        make(limit_batches={"valid": 0.5}, valid_dl=DataLoader(DATA, 8)).fit()
        make(overfit_batches=2, valid_dl=DataLoader(DATA, 8)).fit()
        make(fast_dev_run=True, valid_dl=DataLoader(DATA, 8)).fit()
        make(eval_first=2, valid_dl=DataLoader(DATA, 8)).fit()
        make(limit_batches=100, valid_dl=DataLoader(DATA, 8)).fit()


# ---- words of other trainers

@pytest.mark.parametrize(("name", "own"),
                         [("training_step", "train_step"), ("validation_step", "eval_step"),
                          ("configure_optimizers", "build_optim"),
                          ("forward", "build_model"), ("train_dataloader", "build_train_dl")])
def test_methods_of_other_trainers_are_refused(name, own):
    """In a task, and in a trainer of one's own."""
    with pytest.raises(TypeError, match=f"has {name}.*{own}"):
        type("Mine", (Task,), {name: lambda self, batch, index: None})
    with pytest.raises(TypeError, match=f"has {name}.*{own}"):
        type("Mine", (Trainer,), {name: lambda self, batch, index: None})


def test_a_model_that_has_a_step_of_its_own():
    """It would not be called."""
    class Lit(nn.Linear):
        """As Lightning's are."""

        def training_step(self, batch, index):
            """Another's."""

    with pytest.raises(TypeError, match="Lit has training_step.*train_step="):
        Trainer(Lit(4, 1), train_dl=DataLoader(DATA, 8))
    assert Trainer(Lit(4, 1), train_dl=DataLoader(DATA, 8), loss_fn=nn.MSELoss(), epochs=1,
                   progress=False).fit().status == "finished"


@pytest.mark.parametrize(("name", "own"), [
    ("max_epochs", "epochs="), ("callbacks", "hooks="), ("lr", "optim=lambda"),
    ("learning_rate", "optim=lambda"), ("optimizer", "optim="),
    ("loss_func", "loss_fn="), ("cbs", "hooks="), ("train_dataset", "DataLoader"),
    ("gradient_clip_val", "grad_clip="), ("num_train_epochs", "epochs="),
    ("max_stepz", "'max_steps'"), ("quux", "there are")])
def test_arguments_of_other_trainers_get_ours(name, own):
    """A table of their words, and the nearest of ours for what is misspelled."""
    with pytest.raises(TypeError, match=f"Trainer takes no argument '{name}'.*{own}"):
        make(**{name: 1})


def test_the_signature_stays():
    """Help, configurations and the docs read it."""
    import inspect
    names = list(inspect.signature(Trainer).parameters)
    assert names[:4] == ["model", "train_step", "train_dl", "valid_dl"]
    assert "batch_size" in names and "arguments" not in names


@pytest.mark.slow
def test_a_connection_to_a_worker_breaks_before_its_end_is_seen():
    """The error names the worker, whichever is noticed first."""
    class Dying:
        """A queue whose writer dies while something is read."""
        def __init__(self, iterator):
            self.iterator = iterator

        def get(self, timeout):
            os.kill(self.iterator._workers[0].pid, signal.SIGKILL)
            raise ConnectionResetError(104, "Connection reset by peer")

    for _ in range(5):  # most of the time the process is still there when torch looks
        loader = DataLoader(torch.arange(40.0), 4, num_workers=2)
        with (opened(loader) as iterator,
              pytest.raises(RuntimeError,
                            match=r"DataLoader worker .*pid.* \d+.*(exited unexpectedly|killed)")):
            next(iterator)
            iterator._data_queue = Dying(iterator)
            for _ in all_batches(iterator, lambda: "here"):
                pass
        assert not any(worker.is_alive() for worker in iterator._workers)


@pytest.mark.slow
def test_a_broken_connection_of_the_users_own_stays_what_it_is():
    """An error of the dataset's is not put down to a worker."""
    class Remote(torch.utils.data.Dataset):
        """Its server is gone."""
        def __len__(self):
            return 8

        def __getitem__(self, index):
            raise ConnectionResetError("the user's own")

    for workers in (0, 1):
        with opened(DataLoader(Remote(), 4, num_workers=workers)) as iterator, \
                pytest.raises(ConnectionResetError, match="the user's own"):
            list(all_batches(iterator, lambda: "here"))


def test_a_share_of_the_batches_is_not_one_less_by_rounding():
    assert [limited(100, share / 100) for share in range(1, 101)] == list(range(1, 101))
    assert [limited(10, 0.29), limited(10, 0.01), limited(3, 0.5)] == [2, 1, 1]
