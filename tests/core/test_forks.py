"""A worker that is forked while a thread of another library is busy may hang for ever, so the fork
waits (python/cpython#112275)."""

import ctypes
import sys
import zlib

import pytest
import torch
from torch.utils.data import DataLoader

from trainer_nb.core import data

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are looked up in /proc")

Start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class Busy:
    """A thread that Python has not started; `done` is true when it has computed for a while."""

    def __init__(self, endless=False):
        self.done, self.running, self.endless = False, False, endless
        some, rounds = bytes(2**22), iter(range(40))

        def main(argument):
            self.running = True
            while self.endless or next(rounds, None) is not None:
                zlib.crc32(some)  # without Python's lock
            self.done = True

        self.start, self.thread = Start(main), ctypes.c_ulong()
        self.library = ctypes.CDLL(None)
        assert not self.library.pthread_create(ctypes.byref(self.thread), None, self.start, None)
        while not self.running:
            pass

    def join(self):
        self.library.pthread_join(self.thread, None)


class WhenForked(torch.utils.data.Dataset):
    """Its one sample says whether the thread was done when the worker was forked."""

    def __init__(self, busy):
        self.busy = busy

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.busy.done


def first_batch(busy):
    with data.opened(DataLoader(WhenForked(busy), num_workers=1,
                                multiprocessing_context="fork")) as batches:
        return next(batches).item()


@pytest.fixture
def group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                         world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_workers_are_forked_when_no_thread_of_a_process_group_is_busy(group, monkeypatch):
    """The worker has the thread's memory of the moment in which it was forked."""
    monkeypatch.setattr(data, "FORKS_HANG", True)
    busy = Busy()
    assert first_batch(busy)
    busy.join()


def test_nobody_waits_where_a_fork_is_safe(group, monkeypatch):
    """From Python 3.11.10 on, and in a single process."""
    waits = []
    monkeypatch.setattr(data, "wait_for_threads_beside", lambda: waits.append(1))
    monkeypatch.setattr(data, "FORKS_HANG", False)
    data.wait_before_fork()
    monkeypatch.setattr(data, "FORKS_HANG", True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    data.wait_before_fork()
    assert not waits


def test_a_thread_that_stays_busy_is_not_waited_for_long():
    """A library's own thread may compute for minutes."""
    busy = Busy(endless=True)
    data.wait_for_threads_beside(0.01)
    assert not busy.done
    busy.endless = False
    busy.join()
