"""However a process ends, it ends: with the exit code that is due, and without processes that are
left.

`make ends` goes through all places, workers and ways.
"""

import gc
import multiprocessing
import os
import signal
import threading
import time
from contextlib import nullcontext

import ends
import pytest
import torch
from steered import until
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from trainer_nb import Hook, Trainer
from trainer_nb.core.data import OPEN_ITERATORS, as_torch, open_loader, opened

SHORT = [
    ("paused", "2", "exit"), ("background", "0", "exception"), ("background", "2", "dead worker"),
    ("training", "2", "two interrupts"), ("predict", "persistent", "interrupt")]
LONG = [
    ("paused", "persistent", "interrupt"), ("paused", "2", "SIGTERM to all"),
    ("paused", "2", "dead worker"),
    ("background", "2", "exit"), ("paused background", "persistent", "two interrupts"),
    ("training", "persistent", "dead worker"), ("evaluation", "2", "exception"),
    ("predict", "2", "exception"), ("validate", "2", "exception"), ("lr_find", "2", "exception"),
    ("finished", "persistent", "exit")]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, marks=[pytest.mark.long] if each in LONG else [], id=" / ".join(each))
     for each in SHORT + LONG])
def test_the_process_ends(scenario):
    """A worker that ignored one SIGTERM was waited for without end."""
    result = ends.run(*scenario)
    assert not ends.faults(*scenario, *result), result


DATA = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))


def make(**settings):
    """A run whose loader has workers."""
    loader = settings.pop("loader", None) or DataLoader(DATA, 4, num_workers=2)
    return Trainer(nn.Linear(4, 1), train_dl=loader, loss_fn=nn.MSELoss(), epochs=2, device="cpu",
                   progress=False, **settings)


def workers():
    """The worker processes of this one."""
    return [each for each in multiprocessing.active_children() if each.daemon]


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """What earlier tests have left need not be looked through each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def nothing_is_left():
    """Whether there are no workers, and none are to be ended, at the latest after a collection."""
    gc.collect()
    return not workers() and not OPEN_ITERATORS.ends


@pytest.fixture(autouse=True)
def no_workers():
    """Each test begins and ends without workers."""
    until(nothing_is_left)
    yield
    until(nothing_is_left)


def kill(worker):
    """Kill a worker; torch raises for it in the main thread, whatever that does."""
    with pytest.raises(RuntimeError, match="killed by signal"):
        os.kill(worker.pid, signal.SIGKILL)
        time.sleep(300)


@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.long), True],
                         ids=["", "persistent"])
@pytest.mark.parametrize("closed", [False, True], ids=["dropped", "closed"])
def test_a_dropped_trainer_takes_its_workers_along(persistent, closed):
    """At once: garbage collection was blocked for 20 s, and the workers stayed."""
    loader = DataLoader(DATA, 4, num_workers=2, persistent_workers=persistent)
    trainer = make(loader=loader)
    trainer.step(3)
    assert len(workers()) == 2
    if closed:
        trainer.close()
    del trainer
    gc.collect()
    assert not workers()
    assert len(list(loader)) == 16  # the loader is as good as new
    if persistent:
        del loader


def test_a_trainer_dropped_within_an_evaluation():
    """The evaluation's workers end too."""
    class Pause(Hook):
        """In the middle of an evaluation."""
        def before_batch(self, trainer):
            """At its third batch."""
            if not trainer.training and trainer.eval_batch == 2:
                trainer.pause()

    valid = DataLoader(DATA, 4, num_workers=1)
    trainer = make(valid_dl=valid, hooks=[Pause()])
    assert trainer.fit().status == "paused" and trainer.eval_batch is not None and workers()
    del trainer
    gc.collect()
    assert not workers()


def test_a_loader_that_two_trainers_share():
    """The end of the first one does not take the persistent workers of the second one."""
    loader = DataLoader(DATA, 4, num_workers=2, persistent_workers=True)
    first = make(loader=loader)
    first.fit()
    second = make(loader=loader)
    second.step(3)
    del first
    gc.collect()
    assert len(workers()) == 2
    second.fit()
    second.close()


class Stuck(torch.utils.data.Dataset):
    """Waits for ever, and says that it does."""

    def __init__(self):
        self.stuck = torch.multiprocessing.get_context("fork").Semaphore(0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.stuck.release()
        while True:
            time.sleep(1)


def test_a_worker_that_neither_answers_nor_hears(monkeypatch):
    """It is killed: one SIGTERM it would ignore."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    data = Stuck()
    loader = DataLoader(data, 2, num_workers=2)
    iterator = open_loader(loader, loader)
    assert data.stuck.acquire(timeout=300) and data.stuck.acquire(timeout=300)
    OPEN_ITERATORS.close(iterator, loader)
    assert not workers()


def test_a_worker_that_dies_within_a_lock(monkeypatch):
    """The others wait for what it held; the end of the loader waits only for so long."""
    loader = DataLoader(DATA, 2, num_workers=2)
    iterator = open_loader(loader, loader)
    iterator._workers_done_event._cond.acquire()  # as if a dead worker had held it
    kill(iterator._workers[0])
    patience = []

    def join(thread, timeout=None):
        """Time passes at once."""
        assert timeout is not None, "it would be waited for without end"
        patience.append(timeout)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", join)
        OPEN_ITERATORS.close(iterator, loader)
    assert patience and max(patience) <= 5 and not workers()
    iterator._workers_done_event._cond.release()


def test_an_error_while_the_workers_are_started(monkeypatch):
    """Nobody has the iterator yet; torch does not keep it in mind, since another one may come to
    its address."""
    inits, told = [], []
    from torch.utils.data import _utils
    tell = _utils.signal_handling._set_worker_pids

    def noted(address, pids):
        told.append(address)
        tell(address, pids)

    def broken():
        inits.append(len(workers()))
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Segmentation fault.")
    monkeypatch.setattr(_utils.signal_handling, "_set_SIGCHLD_handler", broken)
    monkeypatch.setattr(_utils.signal_handling, "_set_worker_pids", noted)
    trainer = make()
    with pytest.raises(RuntimeError, match="Segmentation"):
        trainer.fit()
    assert inits == [2] and not workers()
    with pytest.raises(ValueError, match="Cannot find"):
        _utils.signal_handling._remove_worker_pids(*told)


def test_a_fork_has_no_workers_of_its_parents():
    """What is collected in a forked process ends nobody's workers."""
    loader = DataLoader(DATA, 4, num_workers=2)
    iterator = open_loader(loader, loader)
    pid = os.fork()
    if not pid:
        OPEN_ITERATORS.close_all()
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(iterator)) == 16
    OPEN_ITERATORS.close(iterator, loader)


class Slotted:
    """A loader of the user's own that no weak reference can point to."""
    __slots__ = ("inner",)

    def __init__(self, workers):
        self.inner = DataLoader(DATA, 4, num_workers=workers)

    def __iter__(self):
        return iter(self.inner)


@pytest.mark.parametrize("way", ["whole", "closed", "raises"])
def test_a_loader_without_weak_references(way):
    """Its workers end with the pass."""
    with pytest.raises(ZeroDivisionError) if way == "raises" else nullcontext():
        with opened(Slotted(1)) as iterator:
            next(iterator)
            if way == "raises":
                raise ZeroDivisionError
            if way == "whole":
                assert len(list(iterator)) == 15
    make(loader=Slotted(0), valid_dl=Slotted(1)).fit()
    trainer = make(loader=Slotted(1))
    trainer.step(2)
    trainer.close()


@pytest.mark.parametrize("workers", [4, [object()], []])
def test_a_users_iterator_with_workers_of_its_own(workers):
    """That attribute is not torch's."""
    class Own:
        """Batches from elsewhere."""
        def __init__(self):
            self._workers, self.batches = workers, iter(DataLoader(DATA, 4))

        def __iter__(self):
            return self

        def __next__(self):
            return next(self.batches)

    class Loader:
        """Gives them."""
        def __len__(self):
            return 16

        def __iter__(self):
            return Own()

    assert make(loader=Loader(), valid_dl=Loader()).fit().steps == 32


def test_no_thread_can_be_started_any_more(monkeypatch):
    """At the end of a process of Python 3.12:
    a worker has died, and the others end all the same."""
    loader = DataLoader(DATA, 4, num_workers=2)
    iterator = open_loader(loader, loader)
    kill(iterator._workers[0])
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    OPEN_ITERATORS.close_all()
    assert not workers()
    from trainer_nb.hooks.checkpoint import Work, Writer
    written = []
    writer = Writer()
    writer.add(Work(lambda: written.append(1)))
    writer.wait()
    assert written == [1]


def test_what_is_assigned_to_a_loader_of_torchdata_counts():
    """Also between two passes; else its workers live on."""
    loader = StatefulDataLoader(DATA, 4, num_workers=1, persistent_workers=True)
    first = as_torch(loader)
    assert as_torch(loader) is first
    loader.collate_fn = len
    assert as_torch(loader) is not first
    assert as_torch(loader).collate_fn is len and as_torch(loader) is as_torch(loader)
