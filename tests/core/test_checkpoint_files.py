"""Files of a run that are damaged, hostile, or cannot be written; what is kept;
and what a state may hold."""

import collections
import dataclasses
import datetime
import enum
import errno
import fractions
import functools
import io
import json
import math
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import threading
import types
import warnings
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from digits_runs import wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from killed import STEPS, make, outcome
from shorter import some

from trainer_nb import CheckpointError, CheckpointHook, Hook
from trainer_nb.support import files
from trainer_nb.support.files import open_plain
from trainer_nb.support.saved import VERSION, plain_copy, read_state, write_state
from trainer_nb.hooks.checkpoint import LIST, CheckpointFolder, KeepRules, Kept, Work, Writer

pytestmark = pytest.mark.slow


def same(one, other):
    """Equal in values and kinds, all the way down; tensors bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.layout is not torch.strided:
            return one.layout == other.layout and same(one.to_dense(), other.to_dense())
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return one.numel() == 0 or torch.equal(
            *(each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@functools.cache
def straight():
    """The outcome of a run that nothing disturbs."""
    with make() as trainer:
        trainer.fit()
        return outcome(trainer)


def names(folder):
    """What is in a folder, but for its lock."""
    return sorted(set(os.listdir(folder)) - {".lock"})


def listed(folder):
    """The list of a folder."""
    return json.loads((Path(folder) / LIST).read_text(encoding="utf-8"))


# ---- damaged files

WEIGHTS = torch.arange(300.0)
STATE = {"model": {"weight": WEIGHTS, "bias": torch.tensor([1, 2, 3])},
         "position": {"step": 7, "seconds": 0.25},
         "half": torch.ones(3, 5, dtype=torch.bfloat16),
         "rest": [None, True, "text", (1, 2j), {"a": -1}]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a file of STATE."""
    return write_state(STATE, tmp_path_factory.mktemp("whole") / "state.pt").read_bytes()


def judged(path, content):
    """'right' or 'refused'; anything else is a failure."""
    path.write_bytes(content)
    try:
        state = read_state(path)
    except CheckpointError as error:
        assert str(path) in str(error)
        return "refused"
    assert same(state, STATE)
    return "right"


def test_cut_off_anywhere(tmp_path, whole):
    """Never half a state."""
    assert judged(tmp_path / "a.pt", whole) == "right"
    draw = random.Random(1)
    ends = {0, 1, 2, 30, *range(len(whole) - 120, len(whole)), *draw.sample(range(len(whole)), 200)}
    assert {judged(tmp_path / "a.pt", whole[:end]) for end in ends} == {"refused"}


def flipped(content, place, bit):
    """One bit is another."""
    content = bytearray(content)
    content[place] ^= 1 << bit
    return bytes(content)


def test_flipped_bits_in_what_is_kept(tmp_path, whole):
    """Also in the headers of its parts, and in fillers, where they do no harm."""
    draw = random.Random(2)
    places = draw.sample(range(whole.find(b"PK\x01\x02")), 500)
    found = collections.Counter(judged(tmp_path / "a.pt", flipped(whole, place, draw.randrange(8)))
                                for place in places)
    assert found["refused"] > found["right"]


def test_flipped_bits_in_the_directory_of_the_archive(tmp_path, whole):
    """It stands at the end of the file, and says where the parts are."""
    begin, draw, wrong = whole.find(b"PK\x01\x02"), random.Random(5), []
    for place in range(begin, len(whole)):
        for bit in {4, draw.randrange(8)}:
            try:
                judged(tmp_path / "a.pt", flipped(whole, place, bit))
            except (AssertionError, OSError) as error:
                wrong.append((place - begin, bit, type(error).__name__))
    assert not wrong


def test_every_flipped_bit_of_the_weights_is_noticed(tmp_path, whole):
    """Torch alone loads such a file without a word."""
    begin = whole.find(WEIGHTS.numpy().tobytes())
    for place in range(begin, begin + WEIGHTS.nbytes, 5):
        assert judged(tmp_path / "a.pt", flipped(whole, place, place % 8)) == "refused"
    assert not torch.equal(torch.load(tmp_path / "a.pt")["model"]["weight"], WEIGHTS)


def test_blocks_that_never_reached_the_disk(tmp_path, whole):
    """Zeros instead of blocks, as after a loss of power; strange ends and beginnings."""
    draw, directory = random.Random(3), whole.find(b"PK\x01\x02")
    for _ in range(200):
        begin = draw.randrange(directory)
        size = min(draw.choice([1, 16, 64, 512, 4096]), directory - begin)
        block = bytes(size) if draw.random() < 0.5 else draw.randbytes(size)
        judged(tmp_path / "a.pt", whole[:begin] + block + whole[begin + size:])
    for content in (b"", bytes(len(whole)), b"PK", whole[::-1], draw.randbytes(3000)):
        assert judged(tmp_path / "a.pt", content) == "refused"
    for content in (whole + b"\0", whole + bytes(5000), whole + whole, b"#" + whole):
        judged(tmp_path / "a.pt", content)


def cut_file(path):
    """Half of it."""
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def flip_weights(path):
    """One bit of one weight."""
    content, weight = path.read_bytes(), torch.load(path)["model"]["0.weight"]
    path.write_bytes(flipped(content, content.find(weight.numpy().tobytes()) + 5, 2))


DAMAGES = {"cut off": cut_file, "a bit": flip_weights, "empty": lambda path: path.write_bytes(b""),
           "gone": Path.unlink, "weights alone": lambda path: torch.save({"w": WEIGHTS}, path)}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with the checkpoints of a run after seven steps."""
    folder = tmp_path_factory.mktemp("stopped")
    with make(folder) as trainer:
        trainer.step(7)
    return folder


@pytest.fixture
def folder(stopped, tmp_path):
    """A copy of it."""
    assert names(stopped) == [LIST, *(f"step_{step:08d}.pt" for step in (5, 6, 7))]
    return Path(shutil.copytree(stopped, tmp_path / "checkpoints"))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("steps", [(7,), (7, 6)], ids=["the latest", "two"])
def test_a_damaged_file_is_passed_over(folder, damage, steps):
    """The one before is taken, a warning says so, and the end is that of a run that nobody
    disturbed."""
    for step in steps:
        DAMAGES[damage](folder / f"step_{step:08d}.pt")
    with (warnings.catch_warnings(record=True) as told,
          make(folder, settings={"every_steps": 5}) as again):
        warnings.simplefilter("always")
        again.fit()
    assert again.get_hook(CheckpointHook).resumed_from.name == f"step_{min(steps) - 1:08d}.pt"
    assert outcome(again) == straight()
    told = [str(each.message) for each in told if "the one before is tried" in str(each.message)]
    if damage != "gone":  # it was removed
        assert [f"step_{step:08d}.pt" in text
                for step, text in zip(steps, told, strict=True)] == [True] * len(steps)


ENTRY = {"file": "step_00000007.pt", "step": 7, "epoch": 1}
LISTS = {
    "gone": None, "empty": "", "cut off": '{"latest": "step_0000', "a list": "[]", "null": "null",
    "no entries": "{}",
    "a number": '{"checkpoints": 5}', "numbers": '{"checkpoints": [1, 2]}',
    "a text": '{"checkpoints": "step"}',
    "unknown words": json.dumps({"checkpoints": [{**ENTRY, "mood": 1}]}),
    "bytes": b"\xff\xfe\x00\x81",
    "missing words": json.dumps({"checkpoints": [{"file": "step_00000007.pt"}]}),
    "a name that is none": json.dumps({"checkpoints": [{**ENTRY, "file": 7}]}),
    "a step that is none": json.dumps({"checkpoints": [{**ENTRY, "step": "7"}]})}


@pytest.mark.parametrize("content", LISTS.values(), ids=LISTS)
def test_a_list_that_is_damaged_or_gone(folder, content):
    """The files are asked, a warning says so, and a new list is written."""
    (folder / LIST).unlink()
    if content is not None:
        (folder / LIST).write_bytes(content if isinstance(content, bytes) else content.encode())
    with (warnings.catch_warnings(record=True) as told,
          make(folder, settings={"keep_every": 4, "every_steps": 5}) as again):
        warnings.simplefilter("always")
        again.fit()
    assert again.get_hook(CheckpointHook).resumed_from.name == "step_00000007.pt"
    assert outcome(again) == straight() and listed(folder)["latest"] == f"step_{STEPS:08d}.pt"
    assert (content is None) is not any(f"{LIST} is damaged" in str(each.message) for each in told)


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.long)])
def test_a_list_with_flipped_bits(folder, count):
    """Whatever it says then: a state that is found is one of those that were written."""
    right = {path.name: read_state(path) for path in folder.glob("*.pt")}
    content, draw = (folder / LIST).read_bytes(), random.Random(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            spoiled = bytearray(content)
            spoiled[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            (folder / LIST).write_bytes(
                bytes(spoiled[:draw.choice([None, draw.randrange(len(content))])]))
            entry, state = next(CheckpointFolder(folder).readable())
            assert same(state, right[entry.file])


def test_a_file_of_one_s_own_beside_the_checkpoints(folder):
    """It is nobody's business, also if the list is gone."""
    shutil.copy(folder / "step_00000005.pt", folder / "step_for_the_paper.pt")
    (folder / LIST).unlink()
    assert [each.step for each in CheckpointFolder(folder).kept()] == [5, 6, 7]


def test_none_can_be_used(folder):
    """CheckpointError; nothing is trained, nothing is written."""
    for path in folder.glob("*.pt"):
        cut_file(path)
    before = {name: (folder / name).read_bytes() for name in names(folder)}
    trainer = make(folder)
    for _ in range(2):
        with pytest.warns(UserWarning, match="the one before is tried"):
            with pytest.raises(CheckpointError, match="resume=None"):
                trainer.fit()
        assert trainer.step_state.optimizer_step == 0
        assert {name: (folder / name).read_bytes() for name in names(folder)} == before


def test_an_error_while_a_run_is_resumed_leaves_the_files_as_they_are(tmp_path):
    """A hook that cannot take its state back: what is half loaded is not a checkpoint."""
    class Strict(Hook):
        """Gives what it does not take."""
        def state_dict(self):
            """Something."""
            return {"new": 1}
        def load_state_dict(self, state):
            """Nothing."""
            raise KeyError("old")
    make(tmp_path, epochs=1, hooks=[Strict()]).fit()
    before = names(tmp_path), listed(tmp_path)
    with pytest.raises(CheckpointError, match="old.*Nothing was changed"):
        make(tmp_path, hooks=[Strict()]).fit()
    assert (names(tmp_path), listed(tmp_path)) == before


# ---- files that do something


class Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def raw_pickle(value, path):
    """A pickle, and nothing around it."""
    path.write_bytes(pickle.dumps(value))


def legacy_save(value, path):
    """As torch wrote files long ago."""
    torch.save(value, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("write", [torch.save, legacy_save, raw_pickle])
@pytest.mark.parametrize("within",
                         [lambda bad: bad,
                          lambda bad: {"trainer_nb": VERSION, **STATE, "more": [bad]}],
                         ids=["alone", "in a checkpoint"])
def test_a_file_that_would_run_code_is_refused(folder, tmp_path, write, within):
    """By `load`, by `resume=`, and as the latest of a folder; nothing of it is run."""
    done, path = tmp_path / "done", folder / "step_00000007.pt"
    write(within(Hostile(done)), path)
    reason = ("could run code when it is loaded"
              if write is torch.save else "is damaged, or no checkpoint")
    for act in (read_state, make().load,
                lambda path: make(folder, settings={"resume": path}).fit()):
        with pytest.raises(CheckpointError, match=reason) as refused:
            act(path)
        assert str(path) in str(refused.value) and "\n" not in str(refused.value)
    with pytest.warns(UserWarning, match=reason), make(folder) as again:
        again.fit(epochs=2)
    assert again.get_hook(CheckpointHook).resumed_from.name == "step_00000006.pt"
    assert not done.exists()
    pickle.loads(pickle.dumps(Hostile(done)))
    assert done.exists()  # it really would


@pytest.mark.parametrize(("value", "says"), [
    (torch.nn.Linear(2, 1).state_dict(),
     r"it holds weight, bias\): weights alone are loaded with model.load_st"),
    ({"epoch": 3, "model": {}}, "it holds epoch, model"), (WEIGHTS, "it holds Tensor"),
    ([1, 2], "it holds list"),
    (torch.nn.Linear(2, 1), "could run code")],
    ids=["weights", "of others", "tensor", "list", "module"])
def test_a_file_that_is_no_checkpoint_of_a_trainer(tmp_path, value, says):
    """What it holds is said, and what to do with it."""
    torch.save(value, tmp_path / "a.pt")
    for act in (read_state, make().load):
        with pytest.raises(CheckpointError, match=says) as refused:
            act(tmp_path / "a.pt")
        assert str(tmp_path / "a.pt") in str(refused.value)


def test_a_checkpoint_of_a_later_version(tmp_path):
    """It is one, and says so."""
    torch.save({"trainer_nb": VERSION + 1, **STATE}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="version"):
        read_state(tmp_path / "a.pt")


def test_scripted_code_is_no_checkpoint(tmp_path):
    """An archive of another kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 1)), tmp_path / "a.pt")
        with pytest.raises(CheckpointError):
            read_state(tmp_path / "a.pt")


# ---- a disk that is full, locked, gone


class LimitedFile(io.FileIO):
    """A file on a disk with so much room."""

    def __init__(self, path, room):
        super().__init__(path, "x")
        self.room = room

    def write(self, content):
        """As the system does: what does not fit any more is an error."""
        if self.tell() + len(memoryview(content).cast("B")) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)


class PatchedDisk:
    """Errors of a disk, as `open` and `write` give them."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch

    def fill(self, room=20000):
        """No file may become larger than this."""
        def limited(path, mode, *more):
            return (io.BufferedWriter(LimitedFile(path, room))
                    if mode == "xb" else open_plain(path, mode, *more))
        self.monkeypatch.setattr(files, "open_plain", limited)

    def lock(self):
        """Nothing can be written."""
        def refuse(path, mode, *more):
            if mode == "xb":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return open_plain(path, mode, *more)
        self.monkeypatch.setattr(files, "open_plain", refuse)

    def repair(self):
        """All is well again."""
        self.monkeypatch.undo()


class SmallDisk:
    """A real one, in memory, of one megabyte."""

    def __init__(self, folder):
        self.place = folder.parent
        self.folder, self.ballast = folder, self.place / "ballast"

    @staticmethod
    def mounted(place):
        """It is there; not every machine lets one do this."""
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
        return (shutil.which("mount") is not None
                and subprocess.run(command, capture_output=True).returncode == 0)

    def fill(self, room=20000):
        """So many bytes are left."""
        with open(self.ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(0, file.tell() - room))

    def lock(self):
        """Read-only."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.place)], check=True)

    def repair(self):
        """All is well again."""
        subprocess.run(["mount", "-o", "remount,rw", str(self.place)], check=True)
        self.ballast.unlink(missing_ok=True)


@pytest.fixture(params=["patched", "mounted"])
def disk(request, tmp_path, monkeypatch):
    """A disk with a folder for checkpoints; a real one too, where root may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if request.param == "patched" or not SmallDisk.mounted(place):
        yield PatchedDisk(place / "checkpoints", monkeypatch)
        return
    try:
        yield SmallDisk(place / "checkpoints")
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


class At(Hook):
    """Does something after a step, once; nothing is being written meanwhile."""

    kept = False

    def __init__(self, step, act):
        self.step, self.act = step, act

    def after_step(self, trainer):
        """Now."""
        if trainer.step_state.optimizer_step == self.step and self.act is not None:
            trainer.get_hook(CheckpointHook).writer.join()
            act, self.act = self.act, None
            act()


def hidden(folder):
    """Files that were begun and left."""
    return [name for name in names(folder) if name.startswith(".")]


def tell_files(folder):
    """Every file of the list is whole and there, nothing else is; the number of the latest step."""
    entries = listed(folder)["checkpoints"]
    assert sorted(entry["file"]
                  for entry in entries) == [name for name in names(folder) if name != LIST]
    for entry in entries:
        assert read_state(folder / entry["file"])["position"]["optimizer_step"] == entry["step"]
    return entries[-1]["step"]


@pytest.mark.parametrize("trouble", some(("fill", "lock"), ("fill",)))
def test_a_disk_that_takes_nothing_more(disk, tmp_path, trouble):
    """One warning, and the run goes on; the last good checkpoint is good; where the end cannot be
    saved, fit() raises, and ends once it can."""
    trainer = make(disk.folder, hooks=[At(9, getattr(disk, trouble))])
    with pytest.raises(OSError) as told, pytest.warns(UserWarning) as said:
        trainer.fit()
    assert told.value.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS)
    texts = [text for text in map(str, (each.message for each in said)) if "not written" in text]
    assert len(texts) == 1 and "step_00000009.pt" in texts[0]
    assert trainer.step_state.optimizer_step == STEPS and trainer.exact
    assert tell_files(disk.folder) == 8
    disk.repair()
    with make(tmp_path / "elsewhere") as other:
        other.load(disk.folder / "step_00000008.pt")
        other.fit()
        assert outcome(other) == straight()
    trainer.fit()
    assert outcome(trainer) == straight()
    assert tell_files(disk.folder) == STEPS


@pytest.mark.parametrize("trouble", some(("fill", "lock"), ("lock",)))
def test_the_next_checkpoint_is_tried_and_a_later_trouble_is_said_again(disk, trouble):
    """A disk that is full for a while costs the checkpoints of that while, and nothing else."""
    acts = [At(9, getattr(disk, trouble)), At(12, disk.repair), At(15, getattr(disk, trouble)),
            At(17, disk.repair)]
    with pytest.warns(UserWarning) as said:
        trainer = make(disk.folder, hooks=acts)
        trainer.fit()
    texts = [text for text in map(str, (each.message for each in said)) if "not written" in text]
    assert len(texts) == 2 and all("the next one is tried" in text for text in texts)
    assert "step_00000009.pt" in texts[0] and "step_00000015.pt" in texts[1]
    assert outcome(trainer) == straight() and tell_files(disk.folder) == STEPS


def test_a_disk_that_is_full_at_the_end(disk):
    """The last save fails: fit() raises, and fit() again writes what is missing."""
    trainer = make(disk.folder, hooks=[At(STEPS - 1, disk.fill)],
                   settings={"every_steps": 16, "every_epochs": None})
    with pytest.raises(OSError):
        trainer.fit()
    assert trainer.step_state.optimizer_step == STEPS and tell_files(disk.folder) == 16
    disk.repair()
    trainer.fit()
    assert outcome(trainer) == straight()
    assert tell_files(disk.folder) == STEPS


def test_a_disk_that_is_full_when_the_process_is_told_to_end(disk):
    """The error is raised, the exit is off: a later fit() ends as any other."""
    def end():
        disk.fill()
        os.kill(os.getpid(), signal.SIGTERM)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        trainer = make(disk.folder, hooks=[At(5, end)],
                       settings={"every_steps": 3, "every_epochs": None})
        with pytest.raises(OSError):
            trainer.fit()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        assert tell_files(disk.folder) == 3
        disk.repair()
        trainer.fit()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert outcome(trainer) == straight()


def test_a_list_that_cannot_be_written(tmp_path, monkeypatch):
    """The disk is full after the checkpoint itself:
    the list of before stands, and all that it names is there."""
    room = PatchedDisk(tmp_path, monkeypatch)
    def end():
        room.fill(room=100)
        limited = files.open_plain
        monkeypatch.setattr(files, "open_plain",
                            lambda path, *words: (limited
                                                  if LIST in str(path)
                                                  else open_plain)(path, *words))
    trainer = make(tmp_path, hooks=[At(9, end)])
    with pytest.raises(OSError):
        trainer.fit()
    room.repair()
    assert listed(tmp_path)["latest"] == "step_00000008.pt" and not hidden(tmp_path)
    for entry in listed(tmp_path)["checkpoints"]:
        read_state(tmp_path / entry["file"])
    trainer.fit()
    assert outcome(trainer) == straight()
    with make(tmp_path) as again:
        assert again.fit().steps == STEPS and outcome(again) == straight()


def test_a_folder_that_vanishes(tmp_path):
    """It is made again, and the run goes on."""
    folder = tmp_path / "on a stick" / "checkpoints"
    with make(folder, hooks=[At(9, lambda: shutil.rmtree(folder.parent))]) as trainer:
        trainer.fit()
        assert outcome(trainer) == straight()
    assert tell_files(folder) == STEPS


def test_a_folder_that_cannot_be_made_again(tmp_path):
    """A file is where it was: the error names it; once it is gone all is well."""
    stick = tmp_path / "stick"
    def swap():
        shutil.rmtree(stick)
        stick.write_text("a file")
    trainer = make(stick / "checkpoints", hooks=[At(9, swap)])
    with (pytest.raises(OSError, match="stick/checkpoints"),
          pytest.warns(UserWarning, match="a checkpoint was not written")):
        trainer.fit()
    assert trainer.step_state.optimizer_step == STEPS and names(tmp_path) == ["stick"]
    stick.unlink()
    trainer.fit()
    assert outcome(trainer) == straight() and tell_files(stick / "checkpoints") == STEPS
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    trainer = make(blocked / "checkpoints")
    with pytest.raises(OSError, match="blocked"):
        trainer.fit()


# ---- what is kept


def entries(folder):
    """Steps in the list, in its order; the files are just these."""
    found = [entry["step"] for entry in listed(folder)["checkpoints"]]
    assert sorted(f"step_{step:08d}.pt"
                  for step in found) == [name for name in names(folder) if name != LIST]
    return found


@pytest.mark.parametrize(("rules", "kept"), [
    ({"keep_last": 1}, [20]), pytest.param({"keep_last": 0}, [20], marks=pytest.mark.long),
    pytest.param({}, [18, 19, 20], marks=pytest.mark.long),
    ({"keep_last": None}, [*range(1, 21)]),
    ({"keep_last": 2, "keep_every": 6}, [6, 12, 18, 19, 20]),
    pytest.param({"keep_last": 1, "keep_every": 5}, [5, 10, 15, 20], marks=pytest.mark.long),
    ({"keep_last": 2, "keep_every": [3, 7, 100]}, [3, 7, 19, 20]),
    pytest.param({"keep_last": 2, "keep_every": {3}}, [3, 19, 20], marks=pytest.mark.long),
    pytest.param({"keep_last": 1, "keep_every": range(0, 9, 4)}, [4, 8, 20],
                 marks=pytest.mark.long),
    pytest.param({"keep_last": 2, "every_steps": 7}, [16, 20], marks=pytest.mark.long),
    ({"every_steps": 9, "every_epochs": None}, [9, 18, 20]),
    ({"every_steps": None, "keep_last": 2}, [16, 20]),
    ({"every_steps": None, "every_epochs": 2, "keep_last": None}, [8, 16, 20])])
def test_which_files_stay(tmp_path, rules, kept):
    """Each step once, though a step may be saved for several reasons;
    the list is in the order of the run."""
    make(tmp_path, settings=rules).fit()
    assert entries(tmp_path) == kept
    assert listed(tmp_path)["latest"] == "step_00000020.pt" and listed(tmp_path)["best"] is None


class Marks(Hook):
    """Gives out a mark at each evaluation."""

    def __init__(self, *values):
        self.values = values

    def on_log(self, trainer, records):
        """With the other records."""
        if "valid/loss" in records:
            trainer.log({"mark": self.values[trainer.step_state.epoch]})


BEST = [
    ((1.0, 5.0, 2.0, 3.0, 4.0), "max", 8), ((1.0, 5.0, 2.0, 3.0, 4.0), "min", 4),
    ((5.0, 4.0, 4.0, 4.0, 4.5), "min", 8),
    ((math.nan, 2.0, math.inf, -math.inf, 1.0), "max", 8),
    ((math.nan, 2.0, math.inf, -math.inf, 1.0), "min", 20),
    ((1.0, 2.0, 3.0, 4.0, 5.0), "max", 20), ((math.nan,) * 5, "max", None)]


# in one go, or in two runs
@pytest.mark.parametrize(("values", "direction", "best", "stop"), [
    *((*case, None) for case in BEST), (*BEST[0], 10), (*BEST[4], 10), (*BEST[6], 10),
    *(pytest.param(*BEST[number], 10, marks=pytest.mark.long) for number in (1, 2, 3, 5))])
def test_the_best_file_stays(tmp_path, values, direction, best, stop):
    """By the direction of the metric, the first of equal ones, after the evaluation;
    never by a value like nan."""
    rules = {"keep_last": 1, "best": ("mark", direction), "every_steps": 3, "every_epochs": None}
    if stop:
        with make(tmp_path, hooks=[Marks(*values)], settings=rules) as trainer:
            trainer.step(stop)
    make(tmp_path, hooks=[Marks(*values)], settings=rules).fit()
    assert entries(tmp_path) == sorted({best or 20, 20})
    assert listed(tmp_path)["best"] == (best and f"step_{best:08d}.pt")
    if best:
        state = read_state(tmp_path / listed(tmp_path)["best"])
        assert state["position"]["evaluated_at"] == best
        entry = next(entry for entry in listed(tmp_path)["checkpoints"] if entry["step"] == best)
        assert entry["value"] == values[best // 4 - 1]


def test_a_value_belongs_to_the_step_it_was_found_at(tmp_path):
    """A file from before the evaluation has none;
    and what was best is still known in another process."""
    values = (1.0, 5.0, 2.0, 3.0, 4.0)
    rules = {"keep_last": None, "best": ("mark", "max"), "every_epochs": None}
    make(tmp_path / "steps", hooks=[Marks(*values)], settings={**rules, "every_steps": 3}).fit()
    told = {entry["step"]: entry["value"] for entry in listed(tmp_path / "steps")["checkpoints"]}
    assert told == {3: None, 4: 1.0, 6: None, 8: 5.0, 9: None, 12: None, 15: None, 18: None,
                    20: 4.0}
    rules["every_steps"] = None
    with make(tmp_path / "best", hooks=[Marks(*values)], settings=rules) as trainer:
        trainer.step(10)
    make(tmp_path / "best", hooks=[Marks(*values)], settings=rules).fit()
    assert entries(tmp_path / "best") == [4, 8, 10, 20]


def test_the_best_by_a_real_metric(tmp_path):
    """What the history says."""
    for direction, pick in (("min", np.argmin), ("max", np.argmax)):
        trainer = make(tmp_path / direction, settings={"best": ("valid/loss", direction),
                                                       "keep_last": 1, "every_steps": None})
        trainer.fit()
        series = trainer.history.series("valid/loss")
        assert listed(
            tmp_path / direction)["best"] == f"step_{series.steps[pick(series.values)]:08d}.pt"


VALUES = st.none() | st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0])
EVERY = st.none() | st.integers(1, 5) | st.lists(st.integers(0, 40), max_size=4)


@given(st.lists(st.tuples(st.integers(0, 3), VALUES), min_size=1, max_size=12),
       st.none() | st.integers(0, 4), EVERY,
       st.sampled_from([None, "min", "max"]))
@settings(deadline=None)
def test_any_rules_and_any_values(tmp_path_factory, plan, last, every, direction):
    """After each save: the list is what is there, no step twice, what a rule names is there, and
    nothing else."""
    place = tmp_path_factory.mktemp("rules")
    folder = CheckpointFolder(place, KeepRules(last, every, direction and ("value", direction)))
    step, seen = 0, {}
    for further, value in plan:
        step += further  # 0: the same step again, say after its evaluation
        seen[step] = value
        folder.add({"step": step}, Kept(f"step_{step:08d}.pt", step, 0, value=value))
        found = entries(place)
        assert found == sorted(set(found)) and found[-1] == step
        assert [read_state(place / f"step_{each:08d}.pt")["step"] for each in found] == found
        latest = sorted(seen) if last is None else sorted(seen)[-max(1, last):]
        marked = {each for each in seen
                  if every is not None and (each in every if isinstance(every, list)
                                             else each % every == 0)}
        assert set(found) >= {*latest, *marked}
        valued = {each: seen[each] for each in found if seen[each] is not None}
        best = None
        if direction and valued:
            best = (min if direction == "min" else max)(sorted(valued), key=valued.get)
        assert listed(place)["best"] == (None if best is None else f"step_{best:08d}.pt")
        assert set(found) <= {*latest, *marked, best}
    shutil.rmtree(place)


class Count(Hook):
    """Counts steps, and draws."""

    steps = 0

    def after_step(self, trainer):
        """One more."""
        self.steps += 1 + int(torch.rand(()) < 0.5)

    def state_dict(self):
        """How many."""
        return {"steps": self.steps}

    def load_state_dict(self, state):
        """So many."""
        self.steps = state["steps"]


def comparable(state):
    """A state without times; what belongs to a hook by name, whatever the order."""
    state["position"].pop("seconds")
    state["tunables"].pop("checkpoint.order")
    for name, columns in list(state["history"]["points"].items()):
        state["history"]["points"][name] = [column for number, column in enumerate(columns)
                                            if number != 3]
        if name.startswith(("time/", "samples_per_second")):
            del state["history"]["points"][name]
    for part in (state["hooks"], state["tunables"], state["history"]["points"]):
        for name in sorted(part):
            part[name] = part.pop(name)
    return state


@pytest.mark.parametrize("order", [pytest.param(None, marks=pytest.mark.long), 1000,
                                   pytest.param(-1000, marks=pytest.mark.long)])
def test_the_order_of_hooks_changes_nothing_in_a_file(tmp_path, order):
    """Before or after the hooks whose state it keeps;
    at steps, epochs, evaluations, and at the end."""
    rules = {"every_steps": 3, "keep_last": None, "best": ("valid/loss", "min")}
    kept = []
    for number in range(3):
        saving = CheckpointHook(tmp_path / str(number), **rules)
        if order is not None:
            saving.order = order
        hooks = [Count(), Marks(*range(5))]
        hooks.insert(number, saving)
        make(hooks=hooks).fit()
        kept.append({step: comparable(read_state(tmp_path / str(number) / f"step_{step:08d}.pt"))
                     for step in entries(tmp_path / str(number))})
    assert list(kept[0]) == list(kept[1]) == list(kept[2]) and {3, 4, 6, 8, 12, 20} <= set(kept[0])
    for step, state in kept[0].items():
        assert same(state, kept[1][step]) and same(state, kept[2][step]), step
    assert kept[0][4]["hooks"]["count"]["steps"] >= 4


# ---- what a state may hold


@dataclasses.dataclass
class Rule:
    """A rule."""

    name: str
    weight: torch.Tensor
    more: tuple = ()


class Mood(enum.Enum):
    """How it goes."""

    GOOD = 1
    MIXED = (1, 2)


class Level(enum.IntEnum):
    """A number and more."""

    HIGH = 3


class Text(str):
    """A text and more."""


Pair = collections.namedtuple("Pair", "one two")
ONES = torch.ones(2)
VALUES_KEPT = {
    "tensor": (WEIGHTS, WEIGHTS), "parameter": (torch.nn.Parameter(ONES), ONES),
    "half": (ONES.half(), ONES.half()),
    "eight bits": (ONES.to(torch.float8_e4m3fn), ONES.to(torch.float8_e4m3fn)),
    "no elements": (ONES[:0], ONES[:0]),
    "one number": (torch.tensor(3), torch.tensor(3)), "complex tensor": (ONES * 1j, ONES * 1j),
    "every other": (WEIGHTS[::2], WEIGHTS[::2].clone()),
    "expanded": (torch.ones(1).expand(3), torch.ones(3)),
    "transposed": (WEIGHTS.view(3, -1).T, WEIGHTS.view(3, -1).T), "bools": (ONES > 0, ONES > 0),
    "sparse": (torch.eye(2).to_sparse(), torch.eye(2).to_sparse()),
    "needs grad": ((ONES * 1).requires_grad_(), ONES),
    "array": (np.arange(3), torch.arange(3)), "array of numbers without sign": (
        np.arange(3, dtype=np.uint32), torch.arange(3).to(torch.uint32)),
    "array backwards": (np.arange(3)[::-1], torch.tensor([2, 1, 0])),
    "array without dimensions": (np.array(2.5), torch.tensor(2.5).double()),
    "numpy's float": (np.float32(0.5), 0.5), "numpy's int": (np.int64(5), 5),
    "numpy's bool": (np.bool_(True), True),
    "numpy's text": (np.str_("a"), "a"), "numpy's complex": (np.complex64(1j), 1j),
    "None": (None, None), "bool": (True, True), "int": (-5, -5), "large int": (10**40, 10**40),
    "float": (0.1, 0.1),
    "nan": (math.nan, math.nan), "infinity": (-math.inf, -math.inf), "complex": (1 + 2j, 1 + 2j),
    "text": ("ä\n€\0", "ä\n€\0"),
    "bytes": (bytes(range(256)), bytes(range(256))), "dtype": (torch.bfloat16, torch.bfloat16),
    "device": (torch.device("cuda", 1), torch.device("cuda", 1)),
    "size": (torch.Size([1, 2]), torch.Size([1, 2])),
    "list": ([1, [2]], [1, [2]]), "tuple": ((1, ("a",)), (1, ("a",))), "set": ({1, 2}, {1, 2}),
    "frozenset": (frozenset({1}), {1}),
    "deque": (collections.deque([1, 2], 2), [1, 2]), "range": (range(3), [0, 1, 2]),
    "named tuple": (Pair(1, ONES), (1, ONES)),
    "dict": ({"a": {1: 2}, (1, "b"): None, None: 0.5}, {"a": {1: 2}, (1, "b"): None, None: 0.5}),
    "ordered dict": (collections.OrderedDict(b=1, a=2), collections.OrderedDict(b=1, a=2)),
    "counter": (collections.Counter("aab"), collections.Counter("aab")),
    "default dict": (collections.defaultdict(list, a=[1]), {"a": [1]}),
    "other mapping": (types.MappingProxyType({"a": 1}), {"a": 1}),
    "dataclass": (Rule("r", ONES, (1,)), {"name": "r", "weight": ONES, "more": (1,)}),
    "enum": ([Mood.GOOD, Mood.MIXED], [1, (1, 2)]), "enum as key": ({Mood.GOOD: 2}, {1: 2}),
    "int enum": (Level.HIGH, 3),
    "flag": (enum.IntFlag("Bits", "A B")(3), 3), "class made from text": (Text("t"), "t"),
    "path": (PurePosixPath("a/b"), "a/b"), "date": (datetime.date(2024, 5, 6), "2024-05-06"),
    "date and time": (datetime.datetime(2024, 5, 6, 7), "2024-05-06 07:00:00"),
    "time": (datetime.time(7), "07:00:00"),
    "generator": (torch.Generator().manual_seed(5), torch.Generator().manual_seed(5).get_state()),
    "version of torch": (torch.torch_version.TorchVersion("2.6"), "2.6"),
    "numpy's generator": (np.random.default_rng(0).bit_generator.state,
                          np.random.default_rng(0).bit_generator.state),
    "numpy's date": (np.datetime64("2024-05-06"), "2024-05-06"),  # item() gives a datetime.date
    "numpy's long float": (np.longdouble(1.5), 1.5),  # item() gives itself
    "big endian": (np.arange(3, dtype=">i8"), torch.arange(3)),
    "set of sets": ({frozenset({1})}, None), "set as key": ({frozenset({1}): 2}, None)}


@pytest.mark.parametrize(("value", "plain"), VALUES_KEPT.values(), ids=VALUES_KEPT)
def test_what_a_file_can_hold(tmp_path, value, plain):
    """Copied, written, and read as anybody would read it; or refused where it is copied."""
    if plain is None and value is not None:
        with pytest.raises(CheckpointError, match=r"of state\['k'\]|state\['k'\]\[0\]"):
            plain_copy({"k": value})
        return
    copy = plain_copy({"k": value})
    assert same(copy, {"k": plain})
    assert same(torch.load(write_state(copy, tmp_path / "a.pt"), weights_only=True)["k"], plain)
    assert same(read_state(tmp_path / "a.pt"), {"k": plain})
    assert same(plain_copy(copy), copy)


class OwnTensor(torch.Tensor):
    """A tensor and more."""


REFUSED = {
    "function": (print, "builtin_function_or_method"), "class": (Rule, "builtins.type"),
    "module": (torch.nn.ReLU(), "activation.ReLU"),
    "slice": (slice(1), "builtins.slice"),
    "time span": (datetime.timedelta(1), "datetime.timedelta"),
    "bytearray": (bytearray(b"a"), "builtins.bytearray"),
    "fraction": (fractions.Fraction(1, 2), "fractions.Fraction"),
    "objects": (np.array([None]), "an array of object"),
    "texts": (np.array(["a"]), "an array of <U1"),
    "dates": (np.zeros(2, "M8[s]"), r"an array of datetime64\[s\]"),
    "long floats": (np.zeros(2, np.longdouble), "an array of"),
    "layout": (torch.strided, "torch.layout"), "keys": ({}.keys(), "dict_keys"),
    "iterator": (iter([]), "list_iterator"),
    # a file would name the class, which is refused when it is read
    "empty bytes": (b"", "builtins.bytes"),
    "tensor of a class of one's own": (ONES.as_subclass(OwnTensor), "OwnTensor"),
    "without data": (torch.ones(2, device="meta"), "meta")}


@pytest.mark.parametrize(("value", "says"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize(("place", "where"), [
    (lambda value: {"hooks": {"mine": [0, value]}}, r"state\['hooks'\]\['mine'\]\[1\]"),
    (lambda value: {"rule": Rule("r", ONES, (value,))}, r"state\['rule'\].more\[0\]")],
    ids=["in a list", "in a dataclass"])
def test_what_a_file_cannot_hold(place, where, value, says):
    """CheckpointError names the place and the kind."""
    with pytest.raises(CheckpointError,
                       match=f"{where} is (a|an array of) ?.*{says}|{where}.*{says}"):
        plain_copy(place(value))


def test_what_a_hook_cannot_keep_is_said_while_it_trains(tmp_path):
    """By the hook's name, and what is on disk stays."""
    class Odd(Hook):
        """Keeps a function, later on."""
        def state_dict(self):
            """From the fifth step on."""
            return {"rule": [1, print if trainer.step_state.optimizer_step >= 5 else 2]}
    trainer = make(tmp_path, hooks=[Odd()])
    with pytest.raises(CheckpointError, match=r"state\['hooks'\]\['odd'\]\['rule'\]\[1\]"):
        trainer.fit()
    assert tell_files(tmp_path) == 4


def test_keys_that_become_the_same(tmp_path):
    """One of two values would be lost."""
    for state in ({PurePosixPath("a"): 1, "a": 2}, {Mood.GOOD: "x", 1: "y"}):
        with pytest.raises(CheckpointError):
            plain_copy(state)


def test_tied_tensors_share_memory_again(tmp_path):
    """What is the same tensor in a state is one in its copy and in its file;
    the file holds it once."""
    large = torch.nn.Parameter(torch.randn(500, 100))
    model = torch.nn.Sequential(torch.nn.Linear(100, 500, bias=False),
                                torch.nn.Linear(100, 500, bias=False))
    model[0].weight = model[1].weight = large
    state = {"model": model.state_dict(), "again": [large, large.detach(), large.data],
             "other": large + 0}
    copy = plain_copy(state)
    read = read_state(write_state(copy, tmp_path / "a.pt"))
    for each in (copy, read):
        first = each["model"]["0.weight"]
        for tensor in (each["model"]["1.weight"], *each["again"]):
            assert tensor.data_ptr() == first.data_ptr() and torch.equal(tensor, large)
        assert each["other"].data_ptr() != first.data_ptr()
    assert (tmp_path / "a.pt").stat().st_size < 2.2 * large.nbytes
    square, empty = torch.arange(4.0).view(2, 2), torch.ones(0)
    copy = plain_copy([square, square.T, square[0], square.view(4), empty, empty.double()])
    assert same(copy, [square, square.T, square[0], square.view(4), empty, empty.double()])


def test_a_copy_is_a_copy():
    """Whatever is done to the one, the other does not change."""
    weight, array, inner = torch.zeros(3, 4), np.zeros(3), {"a": [torch.zeros(2)]}
    state = {"weight": weight, "row": weight[1], "array": array, "inner": inner,
             "gone": torch.zeros(0)}
    copy = plain_copy(state)
    before = plain_copy(copy)
    weight.fill_(1), array.fill(1), inner["a"][0].fill_(1), inner["a"].append(2)
    assert same(copy, before) and copy["weight"].sum() == 0 == copy["row"].sum()
    again = plain_copy(copy)
    for tensor in (again["weight"], again["array"], again["inner"]["a"][0]):
        tensor.fill_(3)
    assert same(copy, before)


def test_tensors_that_are_made_as_they_are_asked_for():
    """The memory of one that is gone is used for the next; they are not the same tensor."""
    class Lazy(collections.abc.Mapping):
        """Its values are made again each time."""
        def __len__(self):
            return 8
        def __iter__(self):
            return iter(range(8))
        def __getitem__(self, number):
            return torch.full((3, 1000), float(number))[:, 0]
    assert same(plain_copy(Lazy()),
                {number: torch.full((3,), float(number)) for number in range(8)})


# ---- one save in flight


class Steps(Hook):
    """Notes each step among what else happens; a file that was begun before is in the making."""

    kept = False

    def __init__(self, events, threads):
        self.events, self.threads = events, threads

    def after_step(self, trainer):
        """Now."""
        thread = trainer.get_hook(CheckpointHook).writer._thread
        wait_for(lambda: thread is None or thread in self.threads)
        self.events.append(("step", trainer.step_state.optimizer_step))


@pytest.fixture
def watched(monkeypatch):
    """Each file takes until the run waits for it: at the end.

    The events ("begin" or "end" and a file's name, "step" and its number) in their order, and the
    threads that wrote."""
    events, threads, waiting, join = [], [], [], Writer.join
    def noted(writer):
        waiting.append(writer)
        try:
            join(writer)
        finally:
            waiting.pop()
    def slow(state, path, follow):
        events.append(("begin", path.name))
        threads.append(threading.current_thread())
        wait_for(lambda: waiting)
        write_state(state, path, follow)
        events.append(("end", path.name))
    monkeypatch.setattr(Writer, "join", noted)
    monkeypatch.setattr("trainer_nb.hooks.checkpoint.write_state", slow)
    return events, threads


def test_one_save_at_a_time_and_none_left_out(tmp_path, watched):
    """They wait in line for the disk, and training waits for none of them."""
    events, threads = watched
    make(tmp_path, hooks=[Steps(events, threads)],
         settings={"every_steps": 2, "keep_last": None}).fit()
    written = [event for event in events if event[0] != "step"]
    assert written == [(kind, f"step_{step:08d}.pt") for step in range(2, 21, 2)
                       for _ in range(2 if step % 4 == 0 else 1)  # and after each epoch
                       for kind in ("begin", "end")]
    assert not any(thread is threading.main_thread() or thread.is_alive() or thread.daemon
                   for thread in threads)
    assert re.search("bs+e", "".join(kind[0] for kind, _ in events))
    assert tell_files(tmp_path) == STEPS


def test_what_is_written_is_the_state_of_its_step(tmp_path, watched):
    """The training that goes on meanwhile changes nothing in it."""
    events, threads = watched
    make(tmp_path, hooks=[Steps(events, threads)],
         settings={"every_steps": 5, "keep_last": None}).fit()
    for step in (5, 10, 15):
        end = events.index(("end", f"step_{step:08d}.pt"))
        assert events.index(("step", step + 1)) < end
        with make(max_steps=step, epochs=None) as other:
            other.fit(max_steps=step)
            state = read_state(tmp_path / f"step_{step:08d}.pt")
            assert same(plain_copy(other.model.state_dict()), state["model"])
            assert same(plain_copy(other.optim.state_dict()["state"]), state["optim"]["state"])


def test_an_error_of_the_writer_is_told_at_the_next_step(tmp_path, monkeypatch):
    """Whatever it is, once, and not before a step is whole."""
    def fail(state, path, follow):
        if path.name == "step_00000006.pt":
            raise ZeroDivisionError("in the thread")
        write_state(state, path, follow)
    monkeypatch.setattr("trainer_nb.hooks.checkpoint.write_state", fail)
    class Patient(Hook):
        """The file is done before the next step is."""
        kept = False
        def before_step(self, trainer):
            """Nobody is told yet."""
            if trainer.get_hook(CheckpointHook).writer._thread is not None:
                trainer.get_hook(CheckpointHook).writer._thread.join()
    trainer = make(tmp_path, hooks=[Patient()], settings={"every_steps": 3})
    with pytest.raises(ZeroDivisionError, match="in the thread"):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 7
    assert trainer.exact and not trainer.runner.window_open
    assert tell_files(tmp_path) == 4
    trainer.fit()
    assert outcome(trainer) == straight() and tell_files(tmp_path) == STEPS


def test_the_writer_itself(monkeypatch):
    """One piece of work at a time; its error is raised where a caller waits, and only once."""
    writer, done, joins, join = Writer(), [], [], Writer.join
    monkeypatch.setattr(Writer, "join", lambda writer: (joins.append(1), join(writer)))
    def start(work):
        writer.wait()
        writer.add(Work(work))
    for number in range(3):
        def work(number=number):
            """Not done before a caller waits for it."""
            wait_for(lambda: len(joins) > number + 1)
            done.append(number)
        start(work)
        assert done == list(range(number))
    writer.wait()
    assert done == [0, 1, 2]
    for again in (writer.wait, lambda: start(lambda: done.append("next"))):
        start(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            again()
        writer.wait()
        assert done == [0, 1, 2]
