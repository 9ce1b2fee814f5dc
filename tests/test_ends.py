"""However a process ends, it ends: with the exit code that is due, in seconds, and without processes that are left.

`make ends` goes through all places, workers and ways.
"""

import gc
import multiprocessing
import os
import signal
import time

import ends
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import Hook, Trainer
from trainer_nb.core.data import OPEN_ITERATORS, open_loader

SHORT = [
    ("paused", "2", "exit"), ("paused", "persistent", "interrupt"), ("paused", "2", "SIGTERM to all"), ("paused", "2", "dead worker"),
    ("background", "0", "exception"), ("background", "2", "exit"), ("paused background", "persistent", "two interrupts"),
    ("background", "2", "dead worker"), ("training", "2", "two interrupts"), ("training", "persistent", "dead worker"),
    ("evaluation", "2", "exception"), ("predict", "2", "exception"), ("predict", "persistent", "interrupt"),
    ("validate", "2", "exception"), ("lr_find", "2", "exception"), ("finished", "persistent", "exit")]


@pytest.mark.parametrize("scenario", SHORT, ids=" / ".join)
def test_the_process_ends(scenario):
    """A worker that ignored one SIGTERM was waited for without end."""
    result = ends.run(*scenario)
    assert not ends.faults(*scenario, *result), result


DATA = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))


def make(**settings):
    """A run whose loader has workers."""
    loader = settings.pop("loader", None) or DataLoader(DATA, 4, num_workers=2)
    return Trainer(nn.Linear(4, 1), train_dl=loader, loss_fn=nn.MSELoss(), epochs=2, device="cpu", progress=False, **settings)


def workers():
    """The worker processes of this one."""
    return [each for each in multiprocessing.active_children() if each.daemon]


@pytest.fixture(autouse=True)
def no_workers():
    """Each test begins and ends without workers."""
    gc.collect()
    assert not workers()
    yield
    gc.collect()
    assert not workers() and not OPEN_ITERATORS.ends


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("closed", [False, True], ids=["dropped", "closed"])
def test_a_dropped_trainer_takes_its_workers_along(persistent, closed):
    """At once: garbage collection was blocked for 20 s, and the workers stayed."""
    loader = DataLoader(DATA, 4, num_workers=2, persistent_workers=persistent)
    trainer = make(loader=loader)
    trainer.step(3)
    assert len(workers()) == 2
    begun = time.perf_counter()
    if closed:
        trainer.close()
    del trainer
    gc.collect()
    assert time.perf_counter() - begun < 3 and not workers()
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
    begun = time.perf_counter()
    del trainer
    gc.collect()
    assert time.perf_counter() - begun < 3 and not workers()


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


def test_a_worker_that_neither_answers_nor_hears(monkeypatch):
    """It is killed: one SIGTERM it would ignore."""
    class Stuck(torch.utils.data.Dataset):
        """Waits for ever."""
        def __len__(self):
            return 8

        def __getitem__(self, index):
            while True:
                time.sleep(1)

    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
    loader = DataLoader(Stuck(), 2, num_workers=2)
    iterator = open_loader(loader, loader)
    begun = time.perf_counter()
    OPEN_ITERATORS.close(iterator, loader)
    assert time.perf_counter() - begun < 5 and not workers()


def test_a_worker_that_dies_within_a_lock():
    """The others wait for what it held, and so did the end of the loader."""
    loader = DataLoader(DATA, 2, num_workers=2)
    iterator = open_loader(loader, loader)
    iterator._workers_done_event._cond.acquire()  # as if a dead worker had held it
    with pytest.raises(RuntimeError, match="killed by signal"):  # of torch's, whatever is being done
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        time.sleep(5)
    begun = time.perf_counter()
    OPEN_ITERATORS.close(iterator, loader)
    assert time.perf_counter() - begun < 12 and not workers()


def test_an_error_while_the_workers_are_started(monkeypatch):
    """Nobody has the iterator yet."""
    inits = []
    from torch.utils.data import _utils

    def broken():
        inits.append(len(workers()))
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Segmentation fault.")
    monkeypatch.setattr(_utils.signal_handling, "_set_SIGCHLD_handler", broken)
    trainer = make()
    with pytest.raises(RuntimeError, match="Segmentation"):
        trainer.fit()
    assert inits == [2] and not workers()


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
