"""A folder on a disk that is full, read-only or gone, with thousands of old commands, or of another
clock: the run goes on, and each gets an answer."""

import json
import os
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from steered import until
from test_cli import program, shell
from test_remote_control import Steered, make

from trainer_nb import LambdaHook, attach
from trainer_nb.folder.control import (
    COMMANDS,
    TAKEN,
    ControlFolder,
    Replies,
    Request,
    incoming,
    this_process,
)
from trainer_nb.folder import reader
from trainer_nb.hooks import remote_control
from trainer_nb.hooks.remote_control import (OPEN, SOONEST, Attendant, CommandIntake, Inbox,
                                             RemoteControlHook)
from trainer_nb.hooks.run_folder import RunFolderHook
from trainer_nb.remote import remote_view
from trainer_nb.remote.remote_run import RemoteRun

pytestmark = pytest.mark.filterwarnings("ignore:.*the run goes on")


def mount(*words):
    """Whether the system lets us."""
    return subprocess.run(["mount", *map(str, words)], capture_output=True,
                          check=False).returncode == 0


class Disk:
    """A file system of one megabyte that can be made to take nothing."""

    def __init__(self, path, kind):
        self.path, self.kind, self.run = path, kind, path / "run"

    def refuse(self):
        """From now on nothing can be written."""
        # a mount over the folder: one with open files cannot be made so
        if self.kind == "read-only":
            assert mount("--bind", self.run, self.run) and mount("-o", "remount,bind,ro", self.run)
            return
        with open(self.path / "filler", "ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                with suppress(OSError):
                    while True:
                        file.write(b"x" * size)

    def mend(self):
        """As before."""
        if self.kind == "read-only":
            subprocess.run(["umount", "-l", self.run], check=True)
        else:
            (self.path / "filler").unlink()


@pytest.fixture(params=["full", "read-only"])
def disk(request, tmp_path):
    """A small disk of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", path):
        pytest.skip("this user may not mount a small disk")
    try:
        (path / "run").mkdir()
        yield Disk(path, request.param)
    finally:
        subprocess.run(["umount", "-q", "-l", path / "run"], check=False)
        subprocess.run(["umount", "-l", path], check=True)


def lines(path):
    """The objects of a file of JSON lines; every line is one."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def running(folder):
    """A run that makes a step in two milliseconds."""
    run = Steered(folder, epochs=10**6,
                  hooks=[LambdaHook(after_step=lambda trainer: time.sleep(0.002))])
    run.trainer.start()
    return run


def steps(run, count=20):
    """The run makes n more."""
    begun = run.trainer.step_state.optimizer_step
    until(lambda: run.trainer.step_state.optimizer_step > begun + count)


@pytest.mark.slow
def test_a_disk_that_takes_nothing_in_mid_run(disk):
    """What was asked before is answered when there is room, the sender of more is told;
    nothing is applied twice, nothing is missing."""
    run = running(disk.run)
    attached = attach(disk.run)
    first = run.ask("note",
                    {"text": "the file of the replies has a line, and room for a part of the next "
                             "ones"})["id"]
    with run.attendant._lock:  # between two looks
        sent = [run.control.send(Request("note", {"text": f"{number} " + 200 * "x"}, "shell"))
                for number in range(40)]
        disk.refuse()
        # all are applied before one is answered: the file of an answered one would make room
        with suppress(OSError):
            run.attendant.intake.take(run.trainer, 300)
        steps(run)
    beat = run.control.status()["beat"]
    for _ in range(3):
        run.trainer.get_hook(RunFolderHook)._due = 0.0  # the records are written at the next step
        steps(run)
        run.attendant.look()
    for words in (["tune", disk.run, "lr=0.1"], ["tune", disk.run, "lr=0.1", "--json"]):
        told = shell(*words, "--wait", "2")
        assert told.returncode == 3 and ("No space left" in told.stderr + told.stdout
                                         or "Read-only" in told.stderr + told.stdout), told
    with pytest.raises(OSError, match="No space left|Read-only"):
        attached.tune(lr=0.1)
    assert run.control.status()["beat"] <= beat + 1 and run.trainer.rate != 0.1
    disk.mend()
    for each in sent:
        assert run.wait(each)["status"] == "applied"
    until(lambda: run.control.status()["beat"] > beat + 2)
    assert shell("tune", disk.run, "lr=0.1", "--wait", "300").returncode == 0
    assert attached.tune(lr=0.2).wait(300).status == "applied"
    step = run.trainer.step_state.optimizer_step
    until(lambda: run.control.status()["position"]["step"] > step)
    run.trainer.stop().wait()
    run.trainer.wait()
    attached.close()
    run.trainer.close()
    entries = [entry["command"] for entry in lines(disk.run / "journal.jsonl")[1:]
               if entry["command"]]
    assert entries[:41] == [first, *sent] and len(entries) == len(set(entries)) == 43
    assert {line["id"] for line in lines(run.control.path / "replies.jsonl")} == set(entries)
    recorded = [line["step"] for line in lines(disk.run / "metrics.jsonl") if "train/loss" in line]
    assert recorded == list(range(1, run.trainer.step_state.optimizer_step + 1))
    assert not any(incoming(run.control, folder) for folder in (COMMANDS, TAKEN))


@pytest.mark.slow
def test_a_disk_that_takes_nothing_from_the_start(disk):
    """The run does not begin, the error names the place, and a later start is as if nothing had
    been."""
    disk.refuse()
    with pytest.raises(OSError, match=f"No space left.*{disk.run}|Read-only.*{disk.run}"):
        make(disk.run).fit()
    told = shell("tune", disk.run, "lr=0.1")
    assert told.returncode == 3 and "is not a folder of a run" in told.stderr
    disk.mend()
    run = Steered(disk.run)
    assert run.ask("tune", {"lr": 0.25})["status"] == "applied"
    run.trainer.close()


@pytest.mark.slow
def test_snapshots_go_on_on_a_disk_that_takes_nothing(disk):
    """They lie in memory; a rewind works meanwhile, and the file of records has its line
    afterwards."""
    from trainer_nb import SnapshotHook

    run = Steered(disk.run, epochs=10, hooks=[SnapshotHook(every_steps=2, every_epochs=None)])
    disk.refuse()
    assert run.trainer.step(60).steps == 63  # several pages of records
    run.trainer.rewind(6)
    run.trainer.step(2)
    disk.mend()
    run.trainer.fit()
    found = lines(disk.run / "metrics.jsonl")
    assert [line["rewind"]["end"] for line in found if "rewind" in line] == [63]
    assert [line["step"] for line in found if "train/loss" in line][-91:] == list(range(10, 101))
    run.trainer.close()


@pytest.mark.parametrize("what", ["control", "taken", "run"])
def test_a_folder_that_is_removed_in_mid_run(tmp_path, what):
    """`control` is made again and heard; without the folder of the run it goes on, and who asks
    is told."""
    run = running(tmp_path / "run")
    control = run.control
    gone = {"control": control.path, "taken": control.path / "taken", "run": control.run}[what]
    shutil.rmtree(gone)
    run.attendant.look()
    steps(run)
    if what != "run":
        until(lambda: all((control.path / each).is_dir() for each in ("commands", "taken")))
        assert run.ask("tune", {"lr": 0.25})["status"] == "applied" and run.trainer.rate == 0.25
    else:
        told = shell("pause", gone)
        assert told.returncode == 3 and "no such folder" in told.stderr, told
        run.trainer.tune(lr=0.25)  # has an entry in the journal
        steps(run)
        assert run.trainer.state == "running" and run.trainer.rate == 0.25
    run.trainer.stop().wait()
    with suppress(FileNotFoundError):  # its result has no place any more
        run.trainer.wait()
    with suppress(FileNotFoundError):
        run.trainer.close()


def old_commands(folder, count, name="stop", values=None):
    """A folder with commands of long ago, elsewhere."""
    control = ControlFolder(folder)
    folder.mkdir()
    control.make()
    for number in range(count):
        control.send(Request(name, values or {}, "shell", id=f"old{number:06d}"))
    return control


@pytest.mark.slow
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_old_commands_before_a_fresh_run(tmp_path, count, monkeypatch):
    """None is applied, each is void; the run begins before they are answered, and a pause does not
    wait behind them."""
    control, begun, begin = old_commands(tmp_path / "run", count), [], CommandIntake.begin
    os.utime(control.path / "commands", (1, 1))

    def watched_begin(intake, trainer):
        """What is left to be answered while the run goes on."""
        begin(intake, trainer)
        begun.append(len(os.listdir(control.path / "stale")))

    monkeypatch.setattr(CommandIntake, "begin", watched_begin)
    trainer = make(tmp_path / "run", epochs=10**6)
    trainer.step(3)
    assert begun == [count]
    trainer.start()
    pause = control.send(Request("pause", source="shell"))
    assert Replies(control).wait(pause, 300)["status"] == "applied" and trainer.state == "paused"
    until(lambda: not os.listdir(control.path / "stale"))
    assert sum(line["status"] == "void" for line in Replies(control).read().values()) == count
    assert [entry.command for entry in trainer.journal if entry.command] == [pause]
    trainer.close()


def test_old_commands_of_a_run_that_was_killed_are_still_void(tmp_path):
    """They were put away by a process that did not live to answer them:
    the next one does, and does not apply them."""
    control = old_commands(tmp_path / "run", 300)
    Inbox(control).put_away()
    trainer = make(None)
    trainer.step(3)  # no fresh run
    intake = CommandIntake(Inbox(control))
    intake.begin(trainer)
    intake.take(trainer, seconds=60)
    intake.inbox.flush()
    assert sum(line["status"] == "void" for line in Replies(control).read().values()) == 300
    assert not len(trainer.journal)
    assert not os.listdir(control.path / "stale") and not os.listdir(control.path / "commands")
    trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("name, values, count",
                         [("note", {"text": "x"}, 500),
                          pytest.param("note", {"text": "x"}, 10_000, marks=pytest.mark.long),
                           pytest.param("tune", {"lr": -1}, 10_000, marks=pytest.mark.long)])
def test_thousands_of_commands_in_mid_run(tmp_path, name, values, count):
    """They appear at once; no step waits for all of them, and a pause that comes then is
    answered."""
    away, run = old_commands(tmp_path / "away", count, name, values), running(tmp_path / "run")
    for path in sorted((away.path / "commands").iterdir()):
        os.rename(path, run.control.path / "commands" / path.name)
    step = run.trainer.step_state.optimizer_step
    pause = run.wait(run.control.send(Request("pause", source="shell")))
    made = run.trainer.step_state.optimizer_step - step
    assert pause["status"] == "applied"
    found = run.replies.read().values()
    assert sum(line["status"] in ("applied", "refused") for line in found) == count + 1
    assert made > 1
    run.trainer.close()


def test_a_hundred_commands_wait_for_a_boundary_at_most(tmp_path):
    """A step does not have to apply thousands; all are answered in their turn."""
    go = threading.Event()
    go.set()
    run = Steered(tmp_path / "run", epochs=10**6,
                  hooks=[LambdaHook(after_step=lambda trainer: go.wait())])
    run.trainer.start()
    go.clear()
    sent = [run.control.send(Request("note", {"text": "x"}, "shell")) for _ in range(2 * OPEN)]
    until(lambda: len(run.attendant.intake.open) >= OPEN)
    for _ in range(3):
        run.attendant.look(patience=0.0)
        assert len(run.attendant.intake.open) == OPEN
    go.set()
    assert [run.wait(each)["status"] for each in sent] == ["applied"] * 2 * OPEN
    run.trainer.close()


HOUR = 3600


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_folder_whose_clock_is_an_hour_off_has_news(tmp_path, hours, monkeypatch):
    """Of a file that comes within the same tick of that clock, too;
    and nothing is read where nothing has come."""
    now = [0.0]
    monkeypatch.setattr(remote_control, "monotonic", lambda: now[0])
    control = ControlFolder(tmp_path)
    control.make()
    inbox, there = Inbox(control), time.time() + hours * HOUR
    os.utime(control.path / "commands", (there, there))
    assert inbox.has_news() and list(inbox.take()) == []
    control.send(Request("pause", id="same-tick"))
    os.utime(control.path / "commands", (there, there))
    assert inbox.has_news() and [each.id for each in inbox.take()] == ["same-tick"]
    os.utime(control.path / "commands", (there, there))
    assert inbox.has_news()
    now[0] += 3.0
    assert not inbox.has_news()
    control.send(Request("pause", id="later"))
    os.utime(control.path / "commands", (there + 1, there + 1))
    assert inbox.has_news() and [each.id for each in inbox.take()] == ["later"]


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_sender_whose_clock_is_an_hour_off(tmp_path, hours):
    """Its command is taken and answered; what it reads of the run is right."""
    run = Steered(tmp_path / "run", epochs=10**6)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        f"import time\nreal = time.time\ntime.time = lambda: real() + {hours * HOUR}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])}
    first, second = (program("tune", run.control.run, f"lr={value}", "--wait", "300",
                             env=environment) for value in (0.5, 0.25))
    assert (first.returncode, second.returncode) == (0, 0), (first, second)
    assert run.trainer.rate == 0.25 and [entry.new for entry in run.trainer.journal] == [0.5, 0.25]
    told = json.loads(program("status", run.control.run, "--json", env=environment).stdout)
    assert told["standing"] == "paused" and told["tunables"]["lr"] == 0.25
    run.trainer.close()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_run_on_a_machine_whose_clock_is_an_hour_off(tmp_path, monkeypatch, hours):
    """It is there while its heart beats, and lost when it has stopped;
    no two clocks are compared."""
    now = [0.0]
    for module in (reader, remote_view):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    (tmp_path / "run").mkdir()
    control, there = ControlFolder(tmp_path / "run"), time.time() + hours * HOUR
    control.make()
    process = this_process() | {"host": "another"}

    def beat(number):
        control.write("status.json",
                      {"protocol": 1, "state": "running", "alive": True, "process": process,
                       "attempt": "a", "beat": number, "time": there + number,
                       "position": {"step": number}})
        os.utime(control.path / "status.json", (there, there))  # as coarse as a clock can be

    control.write("offer.json", {"protocol": 1, "commands": {}, "tunables": []})
    beat(1)
    run = RemoteRun(tmp_path / "run")
    for number in range(2, 8):
        now[0] += 0.9 * remote_view.SILENT
        beat(number)
        run.view.refresh()
        assert run.standing == "running" and run.view.watch.of("beat", int, 0) == number
    now[0] += 1.1 * remote_view.SILENT
    run.view.refresh()
    assert run.standing == "lost"
    beat(8)
    run.view.refresh()
    assert run.standing == "running"
    run.close()


def test_a_hook_that_tunes_at_each_step_is_no_reason_to_look_at_each_step(tmp_path):
    """At most five looks a second: a change wakes the thread, and it waits for the rest of the
    fifth."""
    trainer = make(tmp_path / "run", epochs=10**6)
    trainer.step(3)
    attendant = trainer.get_hook(RemoteControlHook).attendant
    woken, wake = [], attendant.wake
    attendant.wake = lambda: (woken.append(1), wake())
    trainer.tune(lr=0.2)
    assert woken
    trainer.close()

    now, looks, waits = [0.0], [], []

    def woken_at_once(seconds):
        """By the next step, which takes a millisecond."""
        now[0] += 0.001
        return True

    def wait(seconds):
        waits.append(seconds)
        now[0] += seconds

    thread = SimpleNamespace(
        _trainer=lambda: trainer, look=lambda: looks.append(now[0]),
        _wake=SimpleNamespace(wait=woken_at_once, clear=lambda: None),
        _over=SimpleNamespace(wait=wait, is_set=lambda: len(looks) == 50),
        intake=SimpleNamespace(inbox=SimpleNamespace(behind=False)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(remote_control, "monotonic", lambda: now[0])
        Attendant._run(thread)
    assert looks == pytest.approx([SOONEST * (number + 1) for number in range(50)])
    assert SOONEST == 0.2 and max(waits) < SOONEST


def test_what_a_reply_says_stands_in_the_files_by_then(tmp_path):
    """Offer and status are written before the reply; they were up to a second late."""
    run = Steered(tmp_path / "run", epochs=10**6)
    attached = attach(run.control.run)
    for number in range(1, 6):
        assert attached.tune(lr=number / 10).wait(300).status == "applied"
        offered = {each["name"]: each["value"] for each in run.control.offer()["tunables"]}
        assert offered["lr"] == number / 10
    attached.close()
    run.trainer.start()
    assert run.ask("pause")["status"] == "applied" and run.control.status()["state"] == "paused"
    run.trainer.close()


def test_the_offer_is_not_written_at_each_look(tmp_path, monkeypatch):
    """Only once a second, or with what a command has changed."""
    run = Steered(tmp_path / "run", epochs=10**6)
    files, written, now = run.attendant.files, [], [time.monotonic() + HOUR]
    write = files.write_offer
    with run.attendant._lock:  # between two looks of its thread
        files.write_offer = lambda view: (written.append(now[0]), write(view))
        monkeypatch.setattr(remote_control, "monotonic", lambda: now[0])
    for second in range(3):
        for _ in range(20):
            run.attendant.look()
        assert len(written) == second + 1
        now[0] += 1.1
    run.trainer.close()


def test_half_a_line_of_replies_does_not_take_the_next_one_with_it(tmp_path):
    """As a machine that went down leaves it."""
    control = ControlFolder(tmp_path)
    control.make()
    control.reply(dict(id="a", status="received"))
    with open(control.path / "replies.jsonl", "ab") as file:
        file.write(b'{"id": "a", "sta')
    control.make()
    control.reply(dict(id="b", status="applied"))
    assert {id: line["status"]
            for id, line in Replies(control).read().items()} == {"a": "received", "b": "applied"}
