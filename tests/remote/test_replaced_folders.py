"""A folder of a run is replaced by a link while the run goes on: nothing behind the link is opened
for writing, moved or removed, by the run or by those who send to it."""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import warm
from shorter import some
from steered import until

from trainer_nb.support import files
from trainer_nb.folder.control import (
    COMMANDS,
    FOLDERS,
    TAKEN,
    ControlError,
    ControlFolder,
    Replies,
    Request,
    incoming,
    read_request,
    set_aside,
)
from trainer_nb.support.files import NotPlainError, OpenFolder, open_folder
from trainer_nb.support.saved import write_state

PLACES = ["control", *(f"control/{each}" for each in FOLDERS), "checkpoints"]
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc here")

# Each event of a file goes to standard output: whether it is in the folders of others, and its
# name. The event of an `os.open` does not say in which folder a name is looked up, so the call is
# noted before it. An `open` with an opener says its path, too, which nothing is opened by: the
# `os.open` before it in the same thread counts.
HOOK = """
import contextlib, os, sys, threading
RUN, OUTSIDE = sys.argv[1:3]
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DESCRIPTORS = {"os.rename": ((0, 2), (1, 3)), "os.link": ((0, 2), (1, 3)), "os.remove": ((0, 1),),
               "os.rmdir": ((0, 1),), "os.mkdir": ((0, 2),), "os.chmod": ((0, 2),),
               "os.symlink": ((1, 2),), "os.truncate": ((0, None),), "os.utime": ((0, 3),)}
def tell(kind, text):
    try:
        os.write(1, f"{kind} {text}\\n".encode())
    except OSError:  # whoever has started this process is gone
        os._exit(1)
def places(path, descriptor):
    if isinstance(path, int):
        return [os.readlink(f"/proc/self/fd/{path}")]
    folder, name = os.path.split(os.fsdecode(path))
    if os.path.isabs(folder) or descriptor in (-1, None):
        return [os.path.join(os.path.realpath(folder or "."), name)]
    return [os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), folder, name)]
last, real = threading.local(), os.open
def open_noted(path, flags, mode=0o777, *, dir_fd=None):
    last.folder = dir_fd
    try:
        return real(path, flags, mode, dir_fd=dir_fd)
    finally:
        last.folder = None
os.open = open_noted
os.supports_dir_fd.add(open_noted)
def watch(event, arguments):
    found = []
    if event == "open" and not isinstance(arguments[0], int):
        name = os.fsdecode(arguments[0])
        before = getattr(last, "name", None)
        last.name = os.path.basename(name) if arguments[1] is None else None
        if before is not None and before == os.path.basename(name) and arguments[1] is not None:
            return
        if (arguments[2] or 0) & (WRITES | os.O_DIRECTORY):
            tell("tried", os.path.basename(name))
        if (arguments[2] or 0) & WRITES:
            found = places(name, getattr(last, "folder", None))
    for path, descriptor in DESCRIPTORS.get(event, ()):
        found += places(arguments[path], None if descriptor is None else arguments[descriptor])
    for each in found:
        if each.startswith(OUTSIDE):
            tell("outside", f"{event} {each}")
sys.addaudithook(watch)
"""

TRAINS = HOOK + """
import time, torch
from trainer_nb import CheckpointHook, Hook, Trainer
torch.set_num_threads(1)
class Slow(Hook):
    def after_step(self, trainer):
        time.sleep(0.005)
x = torch.randn(64, 3)
trainer = Trainer(torch.nn.Linear(3, 1), train_dl=[(x, x[:, :1])] * 8, loss_fn=torch.nn.MSELoss(),
                  max_steps=10**7, device="cpu", progress=False, workspace=RUN, seed=0,
                  hooks=[Slow(), CheckpointHook(every_steps=20)])
trainer.fit()
"""

SENDS = HOOK + """
from trainer_nb.folder.control import ControlError, ControlFolder, Request
from trainer_nb.support.saved import write_state
control = ControlFolder(RUN)
while True:
    with contextlib.suppress(ControlError, OSError):
        control.send(Request("note", {"text": "x"}, "shell", id="sent"))
    control.withdraw("sent")
    with contextlib.suppress(ControlError, OSError):
        control.write("offer.json", {})
        control.reply(dict(id="other", status="received"))
"""


class Watched:
    """A process whose files are watched, and what it has said of them."""

    def __init__(self, code, *words):
        self.process = warm.Popen([sys.executable, "-c", code, *map(str, words)],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.tried, self.outside, self.said = {}, [], ""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "outside":
                self.outside.append(rest)
            elif kind == "tried":
                self.tried[rest] = self.tried.get(rest, 0) + 1
            else:
                self.said += line

    def tries(self, name, more=3):
        """Wait until it has tried to open something of this name some more times."""
        begun = self.tried.get(name, 0)
        until(lambda: self.tried.get(name, 0) >= begun + more or self.outside
              or self.process.poll() is not None)
        assert self.outside == [] and self.process.poll() is None, self.said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.reader.join()


def contents(folder):
    """All that can change in a folder, by name."""
    return {str(path): (os.lstat(path).st_ino, os.lstat(path).st_mode, os.lstat(path).st_mtime_ns,
                        path.read_bytes() if path.is_file() else None)
            for path in [folder, *sorted(folder.rglob("*"))]}


@pytest.fixture
def outside(tmp_path):
    """Files of this user that are none of the run's, with the names of a run's files, too."""
    home = tmp_path / "outside"
    (home / ".ssh").mkdir(parents=True)
    for each in FOLDERS:
        (home / each).mkdir()
        (home / each / "sent.json").write_text("mine")
    for name in ("id_rsa", "status.json", "offer.json", "replies.jsonl", "sent.json",
                 "checkpoints.json", "step_00000001.pt", "layers.json"):
        (home / name).write_text("mine")
    return home


def command(folder, name):
    """A command that is put into a folder, whatever stands in its place."""
    (folder / f".{name}").write_text(json.dumps({"id": name, "name": "checkpoint"}))
    os.replace(folder / f".{name}", folder / f"{name}.json")


@pytest.mark.slow
@needs_proc
def test_a_run_touches_nothing_behind_a_link(tmp_path, outside):
    """Each of its folders in turn, and none then: it hears again, and writes checkpoints."""
    run, before = tmp_path / "run", contents(outside)
    control = ControlFolder(run)
    with Watched(TRAINS, run, outside) as process:
        until(lambda: (run / "checkpoints" / "checkpoints.json").exists() and control.complete)
        for number, place in enumerate(PLACES):
            (run / place).rename(tmp_path / "kept")
            (run / place).symlink_to(outside)
            kept, usual = tmp_path / "kept", control.path / COMMANDS
            commands = {"control": kept / COMMANDS, f"control/{COMMANDS}": kept}.get(place, usual)
            command(commands, f"n{number}")
            (commands / f"noise{number}.json").write_text("no command")
            process.tries(Path(place).name)
            (run / place).unlink()
            (tmp_path / "kept").rename(run / place)
        sent = control.send(Request("note", {"text": "still here"}, "shell"))
        assert Replies(control).wait(sent, 300)["status"] == "applied"
        written = (run / "checkpoints" / "checkpoints.json").stat().st_mtime_ns
        until(lambda: (run / "checkpoints" / "checkpoints.json").stat().st_mtime_ns > written
              or process.process.poll() is not None)
        assert process.outside == [] and process.process.poll() is None, process.said
        assert "a link to one" in process.said
    assert contents(outside) == before
    kept = [path.read_text() for path in (control.path / "refused").iterdir()]
    assert "no command" in kept and "mine" not in kept


def exchange(one, other):
    """Let two names change places, in one step."""
    done = ctypes.CDLL(None, use_errno=True).renameat2(
        -100, os.fsencode(one), -100, os.fsencode(other), 2)
    if done:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("place", some(PLACES, ("control/commands", "checkpoints")))
def test_a_link_that_comes_and_goes(tmp_path, outside, place):
    """Between a check and the use of what was checked, too; of the run and of a sender."""
    run, before = tmp_path / "run", contents(outside)
    (tmp_path / "link").symlink_to(outside)
    control = ControlFolder(run)
    with Watched(TRAINS, run, outside) as process:
        until(lambda: (run / "checkpoints" / "checkpoints.json").exists() and control.complete)
        try:
            for _ in range(2):
                exchange(run / place, tmp_path / "link")
        except (AttributeError, OSError) as error:
            pytest.skip(f"this system cannot exchange two names: {error}")
        with Watched(SENDS, run, outside) as sender:
            name, begun, number = Path(place).name, dict(process.tried), 0
            until(lambda: sender.tried)
            while (process.process.poll() is None and not process.outside
                   and (number < 20_000 or process.tried.get(name, 0) < begun.get(name, 0) + 5)):
                number += 1
                if number % 500 == 0:
                    for id, text in (("c", "checkpoint"), ("no command", "")):
                        with contextlib.suppress(OSError, ControlError):
                            control.put(COMMANDS, f"{id}{number}.json",
                                        json.dumps({"id": f"{id}{number}", "name": text}))
                exchange(run / place, tmp_path / "link")
                if number > 20_000:
                    time.sleep(0.001)
            assert process.process.poll() is None, process.said
            assert sender.process.poll() is None, sender.said
            assert process.outside == sender.outside == []
    assert contents(outside) == before


# A system without handles of folders


@pytest.fixture(params=[True, False], ids=["handles", "no handles"])
def handles(request, monkeypatch):
    """With handles of folders, and as on Windows."""
    if not request.param:
        monkeypatch.setattr(files, "HANDLES", False)


@pytest.mark.usefixtures("handles")
def test_both_ways_work(tmp_path):
    """A command is sent, read, moved, set aside and withdrawn, and files are replaced."""
    control = ControlFolder(tmp_path)
    with pytest.raises(ControlError, match="is missing"):
        control.send(Request("pause"))
    control.make()
    control.make()
    assert control.complete and {(control.path / each).stat().st_mode & 0o777
                                 for each in ("", *FOLDERS)} == {0o700}
    sent = [control.send(Request("pause", source="shell")) for _ in range(3)]
    assert incoming(control) == [f"{each}.json" for each in sent]
    assert read_request(control, COMMANDS, f"{sent[0]}.json").name == "pause"
    assert control.move(f"{sent[0]}.json", COMMANDS, TAKEN)
    assert not control.move(f"{sent[0]}.json", COMMANDS, TAKEN)
    set_aside(control, COMMANDS, f"{sent[1]}.json", "why not")
    assert control.withdraw(sent[2]) and not control.withdraw(sent[2])
    assert incoming(control) == [] and incoming(control, TAKEN) == [f"{sent[0]}.json"]
    assert {path.suffix for path in (control.path / "refused").iterdir()} > {".why"}
    control.write("status.json", {"state": "running"})
    assert control.status() == {"state": "running"}
    control.reply(dict(id=sent[0], status="applied"))
    assert Replies(control).wait(sent[0])["status"] == "applied"


@pytest.mark.usefixtures("handles")
@pytest.mark.parametrize("place", PLACES)
def test_a_link_is_refused_by_all_that_writes(tmp_path, outside, place):
    """Also where only checks are left."""
    run, before = tmp_path / "run", contents(outside)
    run.mkdir()
    control = ControlFolder(run)
    control.make()
    (run / "checkpoints").mkdir()
    for each in FOLDERS:
        (control.path / each / "sent.json").write_text("{}")
    (run / place).rename(tmp_path / "kept")
    (run / place).symlink_to(outside)
    refused = 0
    for work in (lambda: control.send(Request("pause", id="sent")), control.make,
                 lambda: control.write("status.json", {}), lambda: control.reply(dict(id="sent")),
                 lambda: set_aside(control, COMMANDS, "sent.json", "why"),
                 *(lambda each=each: control.put(each, "x", "x") for each in FOLDERS),
                 *(lambda each=each: control.remove(each, "sent.json") for each in FOLDERS),
                 *(lambda each=each: control.move("sent.json", each, TAKEN) for each in FOLDERS),
                 *(lambda each=each: control.move("id_rsa", each, TAKEN) for each in FOLDERS),
                 *(lambda each=each: incoming(control, each) for each in FOLDERS),
                 lambda: write_state({}, run / "checkpoints" / "step_00000001.pt", run)):
        try:
            work()
        except (ControlError, NotPlainError) as error:
            refused += 1
            assert place in str(error) and "a link" in str(error)
    assert refused >= 1 and contents(outside) == before
    assert not control.withdraw("sent") or place == "checkpoints" or COMMANDS not in place


@pytest.mark.usefixtures("handles")
@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "", ".", ".."])
def test_a_name_is_no_path(tmp_path, name):
    """Whoever has given it: an id of a reply, a listing."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "x").write_text("mine")
    with open_folder(tmp_path / "inner", tmp_path) as folder:
        assert isinstance(folder, OpenFolder)
        for work in (folder.remove, folder.make, folder.status if name else folder.make,
                     lambda name: folder.open(name, "ab"),
                     lambda name: folder.move("x", folder, name),
                     lambda name: folder.whole(name).__enter__()):
            with pytest.raises(ValueError, match="is not the name of a file"):
                work(name)
    assert (tmp_path / "x").read_text() == "mine" and os.listdir(tmp_path / "inner") == []


@needs_proc
def test_no_handle_stays_open(tmp_path):
    """After an error either."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)

    def opened():  # of these; other threads of the process have their own
        links = []
        for each in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                links.append(os.readlink(f"/proc/self/fd/{each}"))
        return [each for each in links if each.startswith(str(tmp_path))]

    for path in ("file", "link", "none", "link/none", "."):
        with contextlib.suppress(OSError), open_folder(tmp_path / path, tmp_path):
            assert path in ("file", "link") or opened()
            raise OSError
    assert not opened()
