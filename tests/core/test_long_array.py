"""Numbers in memory and in a file read as one array, whatever is appended and forgotten."""

import contextlib
import errno
import gc
import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_nb.support.long_array import LongArray


class Short(LongArray):
    """Few numbers are in memory."""

    BLOCK = 4


def filled(count, dtype=np.int64):
    """0, 1, 2, ..."""
    numbers = Short(dtype)
    for number in range(count):
        numbers.extend([number])
    return numbers


def in_memory(numbers):
    """How many are not in the file."""
    return numbers._parts[2]


bound = st.one_of(st.none(), st.integers(-30, 60))
acts = st.lists(st.one_of(st.tuples(st.just("extend"), st.integers(0, 25)),
                          st.tuples(st.just("truncate"), st.integers(0, 50))), max_size=8)


@pytest.mark.slow
@given(acts, bound, bound, st.lists(st.integers(0, 10_000), max_size=9))
@settings(deadline=None)
def test_it_reads_as_one_array(steps, start, stop, places):
    """As a NumPy array that is made anew each time."""
    numbers, plain, last = Short(np.float64), np.empty(0), 0
    for act, count in steps:
        if act == "extend":
            new = np.arange(last, last + count) / 2
            last += count
            numbers.extend(new)
            plain = np.concatenate([plain, new])
        else:
            numbers.truncate(count)
            plain = plain[:count]
        assert len(numbers) == len(plain) and numbers.read().tolist() == plain.tolist()
        assert in_memory(numbers) < 8
    assert numbers.read(start, stop).tolist() == plain[start:stop].tolist()
    if len(plain):
        places = np.array(places, np.int64) % len(plain)
        assert numbers.take(places).tolist() == plain[places].tolist()
        assert numbers.take(places[:0]).tolist() == []


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("place", [-1, 20, 10**12])
def test_a_place_that_is_not_there_is_refused(count, place):
    with pytest.raises(IndexError, match=f"there are {count} numbers"):
        filled(count).take([0, place])


@pytest.mark.slow
def test_what_is_read_is_a_copy():
    """Of what is in memory and of what is in the file; and a read array outlives the numbers."""
    numbers = filled(20)
    everything, few, last = numbers.read(), numbers.take([0, 19]), numbers.read(17)
    everything[:], few[:], last[:] = -1, -1, -1
    assert numbers.read().tolist() == list(range(20))
    kept = numbers.read()
    del numbers
    gc.collect()
    assert kept.tolist() == list(range(20))


def test_memory_holds_the_last_numbers_alone():
    """Two blocks at most, with a quarter of room; the others are in the file."""
    numbers = LongArray(np.float64)
    for start in range(0, 2_000_000, 10_000):
        numbers.extend(np.arange(start, start + 10_000.0))
    stored, tail, used = numbers._parts
    assert stored + used == 2_000_000 and tail.nbytes <= 8 * 2 * 65_536 * 1.25
    assert os.fstat(numbers._file.fileno()).st_size == 8 * stored
    assert numbers.read(999_990, 1_000_010).tolist() == list(range(999_990, 1_000_010))


@pytest.mark.parametrize("call", ["TemporaryFile", "write"])
def test_where_the_disk_refuses_all_stays_in_memory(monkeypatch, call):
    """Full from the start, or after some blocks: nothing is lost, nothing is raised."""
    numbers = filled(20)
    stored = 20 - in_memory(numbers)

    def refuse(*arguments, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    if call == "write":
        monkeypatch.setattr(Short, "_write", refuse)
    else:
        numbers, stored = Short(np.int64), 0
        monkeypatch.setattr("trainer_nb.support.long_array.tempfile.TemporaryFile", refuse)
    for number in range(len(numbers), 50):
        numbers.extend([number])
    assert in_memory(numbers) == 50 - stored and numbers.read().tolist() == list(range(50))


@pytest.mark.slow
def test_a_forked_process_writes_a_file_of_its_own():
    """Both go on, and neither sees the other's numbers."""
    numbers = filled(20)
    (written, write), (go, going) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            for number in range(100, 130):
                numbers.extend([number])
            os.write(write, b"x")
            os.read(go, 1)  # the parent has written meanwhile
            status = int(numbers.read().tolist() != [*range(20), *range(100, 130)])
        finally:
            os._exit(status)
    os.read(written, 1)
    for number in range(20, 60):
        numbers.extend([number])
    os.write(going, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert numbers.read().tolist() == list(range(60))
    for end in (written, write, go, going):
        os.close(end)


@pytest.mark.slow
def test_another_thread_reads_while_numbers_come():
    """What it reads is always the first numbers, each in its place."""
    numbers, wrong, seen, ended = Short(np.int64), [], set(), threading.Event()

    def look():
        while not ended.is_set():
            found = numbers.read()
            count = len(found)
            seen.add(count)
            if not np.array_equal(found, np.arange(count)):
                wrong.append(found)
            if count and numbers.take([count - 1]) != count - 1:
                wrong.append(count)

    reader = threading.Thread(target=look)
    reader.start()
    end = time.monotonic() + 300
    while time.monotonic() < end and (len(seen) < 100 or len(numbers) < 2_000):
        numbers.extend([len(numbers)])
    ended.set()
    reader.join()
    assert not wrong and len(seen) >= 100


def opened():
    """The inodes of all files that the process has open."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(os.fstat(int(each)).st_ino)
    return found


@pytest.mark.slow
def test_the_file_is_closed_with_the_numbers():
    """A kernel that makes a thousand trainers does not run out of files."""
    kept = [filled(20) for _ in range(30)]
    files = {os.fstat(each._file.fileno()).st_ino for each in kept}  # another thread has others
    assert len(files) == 30 and files <= opened()
    kept.clear()
    gc.collect()
    assert not files & opened()
