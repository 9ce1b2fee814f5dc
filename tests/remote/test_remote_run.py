"""A run in another process as its folder shows it:
what is read, what is sent, what the panel draws."""

import copy
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import warm
from feed_page import Page
from steered import until
from written_runs import WrittenRun

from trainer_nb import RemoteRun, attach
from trainer_nb.core.control import Command
from trainer_nb.folder import control as folder_control
from trainer_nb.folder import reader as folder_reader
from trainer_nb.folder.control import (STATUS, ControlError, ControlFolder, started,
                                       this_process)
from trainer_nb.folder.reader import LatestFile, Watch
from trainer_nb.core.journal import Journal
from trainer_nb.core.state import RunState
from trainer_nb.hooks.recorder import History
from trainer_nb.hooks.run_folder import read_records
from trainer_nb.remote import remote_run, remote_view
from trainer_nb.remote.remote_view import (JournalReader, Offer, RecordReader, RemoteRunView,
                                           add_records, resume_command)


@pytest.fixture
def written(tmp_path):
    """A run that has made 24 steps and says that it is running."""
    return WrittenRun(tmp_path)


@pytest.fixture
def run(written):
    """The same, attached."""
    run = attach(written.path)
    yield run
    run.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Runs are read twenty times a second, not twice."""
    monkeypatch.setattr(remote_run.follow, "__defaults__", (0.05,))
    monkeypatch.setattr(remote_view, "POLL", 0.05)


class Clock(SimpleNamespace):
    """The time by which a run counts as silent: `now` is what the test says."""

    now, sleep = 0.0, staticmethod(time.sleep)

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """A clock in place of the machine's."""
    monkeypatch.setattr(remote_view, "time", Clock())
    monkeypatch.setattr(folder_reader, "time", remote_view.time)
    return remote_view.time


def reads(run, times=2):
    """Wait until the run's own thread has read its files that often again."""
    looks, refresh = [], type(run).refresh
    run.refresh = lambda: (refresh(run), looks.append(1))
    until(lambda: len(looks) >= times)
    del run.refresh


def watch_of(control):
    """How the run in a folder stands, read once."""
    watch = Watch(LatestFile(control.path / STATUS, control.status).read)
    watch.read()
    return watch


def sleeper():
    """Another process, and how its run names it."""
    process = subprocess.Popen(["sleep", "3600"])
    return process, this_process() | {"pid": process.pid, "started": started(process.pid)}


# Records


def lines_of_a_run(count, draw):
    """The lines of a run that goes back now and then."""
    points, number, step = {}, 0, 0
    for _ in range(count):
        step += 1
        names = [name for name in ("train/loss", "lr", "valid/loss") if draw.random() < 0.7]
        values = {name: draw.choice([draw.random(), 1, float("nan")]) for name in names}
        for name in names:
            points[name] = [*points.get(name, []), step]
        yield {"step": step, "epoch": step / 4, "samples_seen": 8 * step, "seconds": step * 0.1,
               **values}
        if draw.random() < 0.1:
            number, end, step = number + 1, step, draw.randrange(step)
            points = {name: [each for each in steps if each <= step]
                      for name, steps in points.items()}
            counts = {name: len(steps) for name, steps in points.items()}
            yield {"rewind": {"counts": counts, "number": number, "start": step, "end": end}}


def content(history):
    """All points and branches, to compare."""
    def plain(series):
        return {name: [list(map(repr, column)) for column in vars(each).values()]
                for name, each in series.items()}
    return (plain(history.since({})),
            [(each.number, each.start, each.end, plain(each.series)) for each in history.branches])


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(each, marks=pytest.mark.long)
                                               for each in range(3, 50))])
def test_records_that_are_read_while_they_grow_are_those_of_the_file(tmp_path, seed):
    draw, path = random.Random(seed), tmp_path / "metrics.jsonl"
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines_of_a_run(200, draw))
    reader, at = RecordReader(tmp_path), 0
    while at < len(text):
        at = min(len(text), at + draw.randrange(1, 2000))  # anywhere in a line
        path.open("ab").write(text[path.stat().st_size if path.exists() else 0:at])
        reader.read()
    whole = History()
    read_records(whole, text)
    assert content(reader.history) == content(whole) and whole.branches


def test_a_rewind_in_the_file_moves_the_version(tmp_path):
    reader = RecordReader(tmp_path)
    place = {"step": 1, "epoch": 0.1, "samples_seen": 8, "seconds": 0.1}
    rewind = {"counts": {"lr": 1}, "number": 1, "start": 1, "end": 2}
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, [
        place | {"lr": 1.0}, place | {"lr": 2.0, "step": 2}, {"rewind": rewind},
        place | {"lr": 3.0, "step": 2}])) + "\n")
    reader.read()
    assert reader.history["lr"].tolist() == [1.0, 3.0] and reader.history.version == 1
    assert reader.history.branches[0].series["lr"].values.tolist() == [2.0]


def test_a_file_that_was_cut_is_read_again_and_never_seen_half(tmp_path):
    """A resumed run has cut its file to a checkpoint;
    who looks meanwhile sees all points or none of them."""
    path, reader = tmp_path / "metrics.jsonl", RecordReader(tmp_path)
    lines = [json.dumps({"step": step, "epoch": 0.0, "samples_seen": 0, "seconds": 0.0,
                         "lr": float(step)}) for step in range(1, 50)]
    path.write_text("\n".join(lines) + "\n")
    reader.read()
    version = reader.history.version
    path.write_text("\n".join(lines[:20]) + "\n")
    reader.read()
    assert reader.history["lr"].tolist() == list(range(1, 21)) and reader.history.version > version
    seen, end = [], threading.Event()
    def look():
        while not end.is_set():
            seen.append(len(reader.history))
    thread = threading.Thread(target=look)
    thread.start()
    for number in range(10**6):
        reader.restart()
        reader.read()
        if number > 200 and len(seen) > 200:
            break
    end.set()
    thread.join()
    assert set(seen) == {20}


STRANGE = [None, True, "x", "<img src=x>", -1, 0, 10**30, 1e300, float("nan"), [], [[]], [1, 2, 3],
           {}, {"a": 1}, {"lr": "x"}]


@pytest.mark.parametrize("key", ["step", "epoch", "samples_seen", "seconds", "lr"])
def test_a_line_that_is_no_record_is_left_out(key):
    history, good = (History(),
                     {"step": 1, "epoch": 0.1, "samples_seen": 8, "seconds": 0.1, "lr": 1.0})
    for strange in STRANGE:
        add_records(history,
                    [good | {key: strange}, {"rewind": strange}, {"rewind": {"counts": strange}}])
    add_records(history, [dict(good)])
    lengths = {len(column) for column in vars(history.series("lr")).values()}
    assert len(lengths) == 1 and history["lr"][-1] == 1.0


# Journal


def test_the_journal_stays_one_object_and_void_lines_are_out(tmp_path):
    written, reader = Journal({"seed": 3}), JournalReader(tmp_path)
    journal = reader.journal
    reader.read()
    assert len(journal) == 0
    for rate in (0.1, 0.2, 0.3):
        written.record("tune", "lr", None, rate, step=4)
        written.save(tmp_path / "journal.jsonl")
        reader.read()
    assert reader.journal is journal
    assert journal.entries == written.entries and journal.header == written.header
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    (tmp_path / "journal.jsonl").write_text("\n".join([*lines[:2],
                                                       '{"void": true, ' + lines[2][1:]]) + "\n")
    reader.read()
    assert [entry.new for entry in journal] == [0.1]


@pytest.mark.parametrize("line", [
    {"kind": "skip", "name": "batch", "new": "x\nimport os"},
    {"kind": "assign", "name": "loss_fn", "new": "f\nimport os"},
    {"kind": "assign", "name": "x = 1\nimport os", "new": "f"},
    {"kind": "assign", "name": "a; import os", "new": 1},
    {"kind": "tune", "name": "lr\nimport os", "new": 1}])
def test_no_line_of_a_stranger_gets_into_the_script(tmp_path, line):
    head = {"journal": 1, "seed": "0); import os; (", "given": {"every": "import os"}}
    (tmp_path / "journal.jsonl").write_text(json.dumps(head) + "\n"
                                            + json.dumps({"number": 1} | line) + "\n")
    reader = JournalReader(tmp_path)
    reader.read()
    assert "import os" not in reader.journal.to_script(max_steps=4)


def test_a_journal_without_an_end_is_read_up_to_a_bound(tmp_path, monkeypatch):
    """Neither its number of entries nor one endless line fills the memory;
    what comes back is the journal's."""
    monkeypatch.setattr(remote_view, "MOST_ENTRIES", 5)
    monkeypatch.setattr(folder_control, "CHUNK", 4096)
    written, reader = Journal({"seed": 3}), JournalReader(tmp_path)
    for rate in range(40):
        written.record("tune", "lr", None, 1 / (rate + 1), step=rate)
    written.save(tmp_path / "journal.jsonl")
    with open(tmp_path / "journal.jsonl", "a") as file:
        file.write('{"name": "' + "x" * 100_000 + '"}\n')
    assert (tmp_path / "journal.jsonl").stat().st_size > 2 * 4096
    reader.read()
    assert reader.journal.entries == written.entries[:5] and not reader.lines.more
    reader.most = 1000
    written.record("tune", "lr", None, 2.0, step=50)
    written.save(tmp_path / "journal.jsonl")
    reader.read()
    assert reader.journal.entries == written.entries


@pytest.mark.parametrize("make",
                         [os.mkfifo, lambda path: path.symlink_to("/etc/hostname"), Path.mkdir,
                          lambda path: path.symlink_to("/dev/zero")])
def test_a_journal_or_records_that_are_not_a_plain_file_are_not_read(tmp_path, make):
    """A FIFO would let the reader wait, /dev/zero would fill the memory."""
    for name in ("journal.jsonl", "metrics.jsonl"):
        make(tmp_path / name)
    journal, records = JournalReader(tmp_path), RecordReader(tmp_path)
    journal.read()
    records.read()
    assert not journal.journal.entries and not records.history.names


# Standing


@pytest.mark.parametrize(("changes", "standing", "state"), [
    ({}, "running", "running"), ({"state": "detached"}, "running", "detached"),
    ({"state": "paused"}, "paused", "paused"),
    ({"state": "idle"}, "idle", "idle"), ({"state": "finished"}, "ended", "finished"),
    ({"state": "stopped"}, "ended", "stopped"),
    ({"state": "error"}, "crashed", "error"), ({"alive": False}, "ended", "interrupted"),
    ({"alive": False, "state": "error"}, "crashed", "error"),
    ({"alive": False, "state": "finished"}, "ended", "finished"),
    ({"alive": False, "state": "no state"}, "ended", "interrupted")])
def test_how_a_run_stands(written, changes, standing, state):
    written.write(**changes)
    view = RemoteRunView(written.path)
    assert (view.standing, view.state) == (standing, RunState(state))


@pytest.mark.parametrize(("state", "standing"),
                         [("running", "lost"), ("paused", "lost"), ("idle", "lost"),
                          ("finished", "ended"), ("error", "crashed")])
def test_a_process_that_was_killed_is_noticed(written, state, standing):
    process, words = sleeper()
    written.write(state=state, process=words)
    watch = watch_of(written.control)
    assert watch.reachable
    process.kill()  # not waited for: it stays as a zombie
    until(lambda: watch.read() or not watch.reachable)
    assert watch.standing == standing
    process.wait()
    watch.read()
    assert watch.standing == standing


def test_another_process_with_the_same_number_is_not_the_run(written):
    written.write(process=this_process() | {"started": "1"})
    assert watch_of(written.control).standing == "lost"


def test_a_last_word_that_comes_between_two_looks_counts(written):
    """The process writes that it has ended, then is gone:
    a status from before must not say that it was lost."""
    process, words = sleeper()
    process.kill()
    process.wait()
    written.write(process=words)

    class Ending(ControlFolder):
        """The status is replaced right after it was read for the first time."""

        def read(self, name):
            found = super().read(name)
            self.write(STATUS, found | {"alive": False, "state": "finished"})
            return found

    assert watch_of(Ending(written.path)).standing == "ended"


def test_a_run_elsewhere_is_lost_when_its_beat_stands_still(written, clock):
    written.write(process={"host": "elsewhere", "pid": 1, "started": ""})
    watch = watch_of(written.control)
    for _ in range(4):
        clock.now += 0.9 * remote_view.SILENT
        written.write(time=-1e9)  # its clock is wrong
        watch.read()
        assert watch.standing == "running"
    clock.now += 1.1 * remote_view.SILENT
    watch.read()
    assert watch.standing == "lost"
    written.write()
    watch.read()
    assert watch.standing == "running"


def test_a_process_that_hangs_is_not_lost_but_is_said_to_be_silent(written, clock):
    view = RemoteRunView(written.path)
    clock.now += 0.9 * remote_view.SILENT
    view.refresh()
    assert view.notice == ("", "")
    clock.now += 0.2 * remote_view.SILENT
    view.refresh()
    assert view.standing == "running" and "No sign for" in view.notice[1]


# Commands


def test_a_command_carries_who_asks_and_what_was_seen(written, run):
    run.view.post(Command("tune", {"lr": np.float32(0.5)}, source="widget"), reason="stalled",
                  max_age_steps=10)
    found, = written.commands()
    assert found["values"] == {"lr": 0.5}
    assert found["name"] == "tune" and found["source"] == run.view.source
    assert (found["basis"], found["max_age_steps"], found["reason"]) == (24, 10, "stalled")
    assert found["user"] and found["host"]


REFUSED = [("pose", {}, "did you mean 'pause'"), ("sweep", {}, "no command 'sweep'"),
           ("tune", {"lrr": 1}, "did you mean 'lr'"),
           ("tune", {"lr": -1}, "0 or more"), ("tune", {"lr": float("nan")}, "a number"),
           ("tune", {"lr": "1"}, "a number"),
           ("tune", {"lr": [1]}, "a text, a number"),
           ("tune", {"mixed_precision": "bf17"}, "one of None"),
           ("tune", {"gradient_accumulation_steps": 0}, "1 or more"),
           ("tune", {"lr": 1.0, "lr_scale": -1}, "lr_scale"), ("tune", {}, "needs a name"),
           ("step", {"m": 1}, "no such value"), ("step", {"n": 1.5}, "a whole number"),
           ("step", {"n": True}, "a whole number"), ("note", {}, "needs text"),
           ("note", {"text": None}, "a text"), ("note", {"text": "x" * 70_000}, "65,536")]


@pytest.mark.parametrize(("name", "values", "words"), REFUSED, ids=str)
def test_what_the_offer_rules_out_is_refused_and_not_sent(written, run, name, values, words):
    reply = run.post(Command(name, values))
    assert reply.status == "refused" and words in reply.reason and written.commands() == []


def test_every_value_that_the_run_takes_is_let_through(written, run):
    """The rule here may never be narrower than that of the run:
    each value in force, and None where it is allowed."""
    for view in run.tunables().values():
        assert run.tune(**{view.name: view.value}).status == "pending"
        if view.optional:
            assert run.tune(**{view.name: None}).status == "pending"
    assert run.tune(lr=1).status == "pending" and written.commands()[-1]["values"] == {"lr": 1.0}
    assert run.step().status == "pending" and written.commands()[-1]["values"] == {"n": 1}


def test_a_bad_value_raises_in_a_verb(run):
    with pytest.raises(ValueError, match="did you mean 'lr'"):
        run.tune(lrr=1)
    with pytest.raises(ValueError, match="a whole number"):
        run.rewind("10")


@pytest.mark.parametrize(("status", "words"),
                         [("applied", "at step 30"), ("refused", "too large"),
                          ("void", "gone back")])
def test_a_reply_is_settled_from_its_line(written, run, status, words):
    reply = run.pause()
    assert reply.wait(0.2).status == "pending" and not reply.received
    written.control.reply(dict(id=reply.id, status="received"))
    until(lambda: reply.received)
    assert reply.status == "pending"
    written.control.reply(dict(id="of another", status="refused", reason="not ours"))
    written.control.reply(dict(id=reply.id, status=status,
                               **{"where" if status == "applied" else "reason": words, "step": 30}))
    assert reply.wait(300) is reply
    assert (reply.status, reply.step) == (status, 30) and words in repr(reply)


def test_an_applied_command_can_become_void(written, run):
    reply = run.tune(lr=0.5)
    written.control.reply(dict(id=reply.id, status="applied", step=30))
    assert reply.wait(300).status == "applied"
    written.control.reply(dict(id=reply.id, status="void", reason="the run went back to step 20"))
    until(lambda: reply.status == "void")
    assert "went back" in reply.reason


def test_waiting_ends_when_the_process_does_and_the_command_is_taken_back(written, run):
    """A stop that nobody has read must not end the run that is resumed a week later."""
    process, words = sleeper()
    written.write(process=words)
    run.refresh()
    read, unread = run.pause(), run.stop()
    os.replace(written.control.path / "commands" / f"{read.id}.json",
               written.control.path / "taken" / f"{read.id}.json")
    written.control.reply(dict(id=read.id, status="received"))
    threading.Timer(0.3, process.kill).start()
    assert unread.wait(300).status == "void"
    assert "taken back" in unread.reason and written.commands() == []
    run.refresh()
    assert read.status == "void" and "before it answered" in read.reason
    run.view._outbox.read()  # finds the line of before again
    assert read.status == "void" and "before it answered" in read.reason
    written.control.reply(dict(id=read.id, status="applied", step=30))  # it had been applied
    until(lambda: read.status == "applied")
    process.wait()


def test_nothing_is_sent_to_a_run_that_is_gone(written, run):
    written.write(alive=False, state="finished")
    until(lambda: run.standing == "ended")
    with pytest.raises(ControlError, match="takes no commands any more") as refused:
        run.pause()
    assert "To go on" not in str(refused.value)  # there is nothing left to do
    written.write(alive=False, state="stopped")
    until(lambda: run.view.state == "stopped")
    with pytest.raises(ControlError, match="To go on: cd /work"):
        run.pause()
    written.write(alive=True, state="running", process=this_process() | {"started": "1"})
    until(lambda: run.standing == "lost")
    reply = run.post(Command("resume"))
    assert reply.status == "refused"
    assert "cd /work && python train.py --lr 0.1" in reply.reason and "step 20" in reply.reason
    assert written.commands() == []


@pytest.mark.parametrize(("changes", "line"), [
    ({"command": []}, ""), ({"command": ["a\nb"]}, ""), ({"command": [1]}, ""),
    ({"command": "python"}, ""), ({"folder": None}, "python train.py --lr 0.1"),
    ({"command": ["python", "my train.py", "; rm -rf x"], "folder": "/a b"},
     "cd '/a b' && python 'my train.py' '; rm -rf x'")])
def test_the_line_that_starts_it_again(written, changes, line):
    written.write(**changes)
    assert resume_command(RemoteRunView(written.path)) == line


def value_of(written, name, value):
    """Write another value of a tunable into the offer."""
    next(each for each in written.offer["tunables"] if each["name"] == name)["value"] = value
    written.write()


def test_a_value_waits_until_it_is_in_force(written, run):
    reply = run.tune(lr_scale=0.5)
    assert (run.tunables()["lr_scale"].pending,
            run.tunables()["lr_scale"].has_pending) == (0.5, True)
    written.control.reply(dict(id=reply.id, status="applied", step=30))
    reply.wait(300)
    assert run.tunables()["lr_scale"].has_pending  # the offer still has the old value: no jump back
    value_of(written, "lr_scale", 0.5)
    until(lambda: run.tunables()["lr_scale"].value == 0.5)
    assert not run.tunables()["lr_scale"].has_pending


@pytest.mark.parametrize("status", ["refused", "void"])
def test_a_value_that_was_refused_does_not_wait(written, run, status):
    reply = run.tune(lr_scale=0.5)
    written.control.reply(dict(id=reply.id, status=status, reason="no"))
    reply.wait(300)
    assert not run.tunables()["lr_scale"].has_pending


def test_a_value_that_never_shows_stops_waiting(written, run, clock):
    reply = run.tune(lr_scale=0.5)
    written.control.reply(dict(id=reply.id, status="applied"))
    reply.wait(300)
    clock.now += 0.9 * remote_view.Waiting.HOLD
    assert run.tunables()["lr_scale"].has_pending
    clock.now += 0.2 * remote_view.Waiting.HOLD
    assert not run.tunables()["lr_scale"].has_pending


# The run


def test_a_run_follows_its_files(written, run):
    assert content(run.history) == content(written.history)
    assert run.state is RunState.RUNNING and run.result is None
    assert repr(run).startswith(f"RemoteRun({written.path}: running, step 24, train/loss ")
    written.status["position"]["step"] = 1300
    written.write(state="paused")
    with open(written.path / "metrics.jsonl", "a") as file:
        file.write('{"step": 1300, "epoch": 4, "samples_seen": 99, "seconds": 9, "train/loss": '
                   '0.125}\n')
    until(lambda: run.standing == "paused" and run.history["train/loss"][-1] == 0.125)
    assert repr(run) == f"RemoteRun({written.path}: paused, step 1,300, train/loss 0.125)"
    written.write(state="finished", alive=False)
    until(lambda: run.standing == "ended")
    assert (run.result.status, run.result.steps) == ("finished", 24)


def test_another_attempt_reads_the_records_again(written, run):
    version = run.history.version
    written.write(attempt="b")
    until(lambda: run.history.version > version)
    assert content(run.history) == content(written.history)


def test_the_folder_may_go_away_and_come_back(written, run, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        os.rename(written.path, tmp_path / "moved")
        reads(run)
        # the last that is known
        assert run.view.position.step == 24 and len(run.history["train/loss"]) == 24
        os.rename(tmp_path / "moved", written.path)
        with open(written.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": 25, "epoch": 3.1, "samples_seen": 200, "seconds": 9.0,
                                   "train/loss": 1.0}) + "\n")
        until(lambda: len(run.history["train/loss"]) == 25)


def test_the_thread_ends_with_close_and_with_the_object(written):
    earlier = threading.enumerate()

    def followers():
        return [each for each in threading.enumerate()
                if each.name == "trainer_nb attach" and each not in earlier]

    run = attach(written.path)
    assert len(followers()) == 1
    run.close()
    until(lambda: not followers())
    again = attach(written.path)
    assert run.closed and again is not run
    written.write(state="paused")
    until(lambda: again.standing == "paused")  # noqa: F821  its thread has had it
    gone = weakref.ref(again)
    del again
    until(lambda: gc.collect() is not None and gone() is None)  # its thread may have it just now
    until(lambda: not followers())


def test_a_run_with_a_panel_is_held_until_it_is_closed(written):
    run = attach(written.path)
    gone, board = weakref.ref(run), run.dashboard
    page = Page(board.feed).hello()
    del run
    gc.collect()
    assert gone() is not None and attach(written.path) is gone()
    written.write(state="paused")
    until(lambda: page.view["state"]["name"] == "paused")  # noqa: F821
    gone().close()
    assert board.comm is None
    del board, page
    until(lambda: gc.collect() is not None and gone() is None)


def test_the_same_folder_is_the_same_run(written, run, monkeypatch):
    monkeypatch.chdir(written.path.parent)
    assert attach("exp1") is run and attach("exp1", source="agent:a") is not run
    attach("exp1", source="agent:a").close()


def test_attaching_loads_nothing_that_draws(written):
    code = ("import sys; from trainer_nb import attach; print(attach(sys.argv[1])); "
            "print('loaded', *{'ipywidgets', 'plotly', 'IPython'} & set(sys.modules))")
    done = warm.run([sys.executable, "-c", code, written.path], capture_output=True, text=True,
                    check=True)
    assert "exp1: running, step 24, train/loss" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded"


# What attach refuses


def test_a_folder_that_is_no_run(written, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for path, words in [("exp2", "^exp2 is not there: did you mean 'exp1'"),
                        (".", "there is 'exp1'"),
                        ("exp1/metrics.jsonl", "is not a folder"),
                        ("exp1/control", "not the folder of a run"), ("elsewhere/x", "workspace=")]:
        with pytest.raises(ControlError, match=words):
            attach(path)
    with pytest.raises(ValueError, match="no folder of a run has such a name"):
        attach("other*")
    found = attach("exp*")
    assert [run.path.name for run in found] == ["exp1"] and isinstance(found[0], RemoteRun)
    found[0].close()


def test_a_run_without_control(written):
    shutil.rmtree(written.path / "control")
    with pytest.raises(ControlError, match="cannot be reached from outside"):
        attach(written.path)


def test_a_run_that_has_not_offered_itself_yet(written):
    (written.path / "control" / STATUS).unlink()
    with pytest.raises(ControlError, match="no run has offered itself"):
        attach(written.path)


def test_the_run_of_another_user(written, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ControlError, match="belongs to another user"):
        attach(written.path)


def test_a_run_that_speaks_another_version(written):
    written.write(protocol=2)
    with pytest.raises(ControlError, match="version 2"):
        attach(written.path)


def test_a_link_is_no_control_folder(written, tmp_path):
    os.rename(written.path / "control", tmp_path / "other")
    os.symlink(tmp_path / "other", written.path / "control")
    with pytest.raises(ControlError, match="a link"):
        attach(written.path)


SEARCH = {"name": "lr", "planned": [1e-3, 1e-2], "losses": [2.0, 1.0], "stop_factor": 4.0,
          "smooth": 0.9, "ended": "done", "tunable": "lr", "factor": 1.0}


@pytest.mark.parametrize("wrong", [
    {}, {"smooth": 1}, {"smooth": -1.0}, {"stop_factor": 0.0}, {"losses": [10**400]},
    {"losses": [1.0] * 3}, {"losses": ["1"]}, {"planned": [0.0, 1.0]}, {"planned": [10**400, 1.0]},
    {"planned": [1e-3] * 2001}, {"factor": None}, {"tunable": 3}, {"ended": None}], ids=str)
def test_a_search_that_no_run_has_made_is_left_out(written, wrong):
    """The rest of the offer is read all the same."""
    written.control.write("offer.json", written.offer | {"search": SEARCH | wrong})
    run = attach(written.path)
    try:
        assert (run.view.lr_search is None) == bool(wrong)
        assert "lr" in run.tunables()
    finally:
        run.close()


# The panel


def page_of(run):
    """A page that shows the panel of a run."""
    return Page(run.dashboard.feed).hello()


def test_the_panel_shows_a_run_elsewhere(written, run):
    page = page_of(run)
    view = page.view
    assert view["state"] == {"name": "running", "standing": "running"}
    assert view["run"]["name"] == f"Linear in {written.path.name}" and view["place"]["step"] == 24
    assert len(page.curves["train/loss"][1]) == 24
    assert view["tunables"].keys() >= {"lr", "lr_scale", "grad_clip"}
    assert view["hooks"].keys() == {each["name"] for each in written.offer["hooks"]}
    assert view["run"]["panes"] == ["hooks", "journal", "lr", "inspect"]
    assert run.plots is run.plots and run.dashboard is run.dashboard
    assert {each.part for each in (run.plots, run.controls, run.hook_table)} == {
        "plots", "controls", "hook_table"}


def test_the_panel_follows_without_a_cell(written, run):
    page = page_of(run)
    written.status["position"]["step"] = 77
    written.write(state="paused")
    until(lambda: page.view["place"]["step"] == 77 and page.view["state"]["name"] == "paused")
    assert "why_not" not in page.view["commands"]["resume"]["buttons"]["Resume"]
    with open(written.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"rewind": {"counts": {"train/loss": 10}, "number": 1, "start": 10,
                                          "end": 24}}) + "\n")
    until(lambda: len(page.curves["train/loss"][1]) == 10 and "train/loss\n1" in page.curves)


def test_messages_become_commands(written, run):
    page = page_of(run)
    asked = len(written.commands())
    hook = written.offer["hooks"][0]["name"]
    page.command("pause")
    page.command("tune", lr_scale=0.5)
    page.command("tune", **{f"{hook}.enabled": False})
    assert page.open("rewind").view["rewind"][-1]["step"] == 20
    page.command("rewind", step=20)
    found = [(each["name"], each["values"]) for each in written.commands()[asked:]]
    assert found == [("pause", {}), ("tune", {"lr_scale": 0.5}),
                     ("tune", {f"{hook}.enabled": False}), ("rewind", {"step": 20})]
    until(lambda: page.view["values"]["lr_scale"].get("waits"))
    assert page.view["values"]["lr_scale"] == {"value": 1.0, "waits": True, "pending": 0.5}
    assert page.answers == []


def test_what_is_refused_says_so_and_is_not_sent(written, run):
    page = page_of(run)
    assert "0 or more" in page.command("tune", lr_scale=-1)["reason"]
    assert not [each for each in written.commands() if each["name"] == "tune"]
    assert "not for pages" in page.command("sweep")["reason"]
    assert "no command" in run.view.post(Command("sweep")).reason


ERROR = ("Traceback (most recent call last):\n  File \"train.py\", line 3\nValueError: <b>bad</b> "
         "batch\nraised by hook 'x'")
NOTICES = [
    ({"lost": True}, "Lost",
     ["Lost at step 24", "Its last checkpoint is of step 20"]),
    ({"lost": True, "last_saved": None, "command": []}, "Lost", ["It saved no checkpoint."]),
    ({"alive": False, "state": "error", "error": ERROR}, "Crashed",
     ["Crashed after step 24", "ValueError: <b>bad</b>"]),
    ({"alive": False, "state": "finished"}, "Finished", ["Finished", "train/loss "]),
    ({"alive": False, "state": "stopped"}, "Stopped",
     ["Stopped at step 24", "its process has ended"]),
    ({"alive": False, "state": "running"}, "Interrupted", ["Interrupted at step 24"]),
    ({"state": "error", "error": ERROR}, None, []), ({"state": "idle"}, None, [])]


@pytest.mark.parametrize(("changes", "word", "parts"), NOTICES, ids=lambda each: str(each)[:30])
def test_the_panel_says_how_the_run_stands(written, run, changes, word, parts):
    """A page says a run that is there in its own words."""
    changes = dict(changes)
    if changes.pop("lost", False):
        changes["process"] = this_process() | {"started": "1"}
    page = page_of(run)
    written.write(**changes)
    until(lambda: page.view["state"].get("word") == word
          and (word or page.view["state"]["name"] == changes["state"]))
    state = page.view["state"]
    assert all(part in state["notice"] for part in parts) and (word is None) is (
        "notice" not in state)
    assert (state.get("go_on") == "cd /work && python train.py --lr 0.1") is (
        word in ("Lost", "Crashed", "Stopped", "Interrupted") and "command" not in changes)
    assert state.get("what", "ValueError: <b>bad</b> batch · raised by hook 'x'").startswith(
        "ValueError: <b>bad</b> batch")
    buttons = [each for spec in page.view["commands"].values()
               for each in spec.get("buttons", {}).values()]
    assert (word is None) or all(each["why_not"] for each in buttons)


def test_a_run_that_comes_back_is_running_on_the_page(written, run):
    page = page_of(run)
    written.write(process=this_process() | {"started": "1"})
    until(lambda: page.view["state"].get("word") == "Lost")
    sent = len(written.commands())
    assert page.command("pause")["status"] == "refused" and len(written.commands()) == sent
    written.write(process=this_process(), attempt="b")
    until(lambda: page.view["state"] == {"name": "running", "standing": "running"})


def places(found, path=()):
    """The path of each value in nested objects."""
    yield path
    if isinstance(found, (dict, list)):
        for key in found if isinstance(found, dict) else range(min(len(found), 2)):
            yield from places(found[key], (*path, key))


def replaced(found, path, value):
    """A copy with another value at a path."""
    made = copy.deepcopy(found)
    *before, last = path
    at = made
    for key in before:
        at = at[key]
    at[last] = value
    return made


@pytest.mark.parametrize("file", ["status", "offer"])
@pytest.mark.long
def test_a_strange_value_stops_neither_reader_nor_panel(written, file):
    """Every value of the files, replaced by others: a page is sent JSON, and nothing is amiss."""
    good, draw = getattr(written, file), random.Random(1)
    entry = {"number": 1, "kind": "tune", "name": "<img src=x>", "old": 1, "new": "<img src=x>",
             "source": "<img src=x>", "time": "<img src=x>"}
    (written.path / "journal.jsonl").write_text('{"journal": 1}\n' + json.dumps(entry) + "\n")
    run = attach(written.path)
    run._follower.end()
    page = page_of(run).open("table", "rewind", "times", "entries", "looks", "runs")
    for path in list(places(good))[1:]:
        for value in draw.sample(STRANGE, 15 if file == "status" else 5):
            if path in {("beat",), ("process", "pid")}:
                continue
            setattr(written, file, replaced(good, path, value))
            written.write()
            run.view.refresh()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                run.dashboard.feed.look()  # what is sent is JSON
            assert page.view["run"], path
    run.close()


def test_a_tunable_of_a_hook_that_is_not_there_is_left_out(written):
    """No row of the panel would hold it."""
    known = {each.name for each in Offer(written.offer).tunables if each.owner}
    assert known
    assert not {each.name for each in Offer(written.offer | {"hooks": []}).tunables if each.owner}
    assert Offer(written.offer | {"hooks": []}).tunables


def test_a_text_of_the_offer_is_a_text_for_a_page(written, run):
    """Once: the page writes it as text, so nothing is escaped for it."""
    written.offer["hooks"][0] |= {"label": "<img src=x>", "last_error": "<img src=x>",
                                  "points": ["<img src=x>"], "failure": {
"error": "<img src=x>", "point": "<img src=x>", "step": 1, "epoch": 0, "batch_idx": 0,
"traceback": "<img src=x>"}}
    written.write(memory=["<img src=x>", 1, None], state="error")
    run.view.refresh()
    view = page_of(run).open("times").view
    assert view["memory"]["label"] == "<img src=x>"
    name = written.offer["hooks"][0]["name"]
    assert view["points"][name]["label"] == view["hooks"][name]["error"] == "<img src=x>"


@pytest.mark.parametrize("field",
                         ["number", "kind", "name", "old", "new", "source", "step", "epoch",
                          "batch_idx", "time", "branch", "boundary", "survives"])
def test_a_strange_entry_stops_no_journal(written, run, field):
    """Entries of a stranger, and a record whose name is HTML."""
    entry = {"number": 1, "kind": "tune", "name": "lr", "old": 1, "new": 2, "source": "shell",
             "step": 3, "epoch": 0, "batch_idx": 3, "time": "12:00:00"}
    lines = [{"journal": 1}, *(entry | {field: value} for value in STRANGE),
             entry | {"name": "the last"}]
    (written.path / "journal.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    with open(written.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 25, "epoch": 4, "samples_seen": 99, "seconds": 9,
                               "<img src=x>/loss": 1, "lr.<img src=x>": 1}) + "\n")
    run._follower.end()
    run.view.refresh()
    page = page_of(run).open("entries", "table")
    assert "the last" in [each["what"] for each in page.view["entries"].values()]
    assert "<img src=x>/loss" in page.view["table"]["order"]
