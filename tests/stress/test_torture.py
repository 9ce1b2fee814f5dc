"""A training process that is killed again and again, at any moment, ends with the weights of one
that nobody disturbed.

`PYTHONPATH=tests python tests/stress/test_torture.py 200` kills two hundred times, and tells how it
went; a seed may follow.
"""

import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import killed
import pytest
import torch
import warm
from killed import STEPS, make, outcome

from trainer_nb import CheckpointHook, Hook
from trainer_nb.support import saved
from trainer_nb.support.saved import read_state
from trainer_nb.hooks.checkpoint import LIST

pytestmark = pytest.mark.slow


@cache
def straight(**settings):
    """The outcome of a run that nothing disturbs and that writes no files."""
    with make(**settings) as trainer:
        trainer.fit()
        return outcome(trainer)


def temporary(folder):
    """Files that were begun and left."""
    return sorted(path.name for path in Path(folder).glob(".*.new"))


class Process:
    """A training process; its lines are read while it runs."""

    def __init__(self, folder, *words):
        self.folder, self.result = Path(folder), Path(folder, "..", "result.json").resolve()
        command = [sys.executable, killed.__file__, str(folder), "--result", str(self.result),
                   *words]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = warm.Popen(
            command, stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self._stripped()),
                                       daemon=True)
        self.reader.start()

    def _stripped(self):
        for line in self.process.stdout:
            yield line.strip()

    def wait_for(self, line, seconds=300):
        """Until this has been said; False if the process ended without it."""
        end = time.monotonic() + seconds
        while line not in self.lines:
            if self.process.poll() is not None:
                self.reader.join(seconds)
                return line in self.lines
            assert time.monotonic() < end, f"{line!r} was never said: {self.lines}"
            time.sleep(0.002)
        return True

    def wait_for_steps(self, number):
        """Until it has made n, or has ended."""
        while (sum(line.startswith("step") for line in self.lines) < number
               and self.process.poll() is None):
            time.sleep(0.001)

    def signal(self, number, group=False):
        """To the process, or to its loader workers too."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):  # it ends just now
                (os.killpg if group else os.kill)(self.process.pid, number)

    def end(self, seconds=300):
        """The exit code."""
        return self.process.wait(seconds)

    def told(self):
        """What stands in stderr."""
        self.errors.seek(0)
        return self.errors.read()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.reader.join(300)  # a worker may hold the pipe a little longer
        self.errors.close()


def kill_until_done(folder, draw, kills, *words):
    """Start, kill, start again, until a process comes to its end;
    at most n kills, returns how many."""
    count = 0
    while True:
        with Process(folder, *words) as run:
            assert run.wait_for("training"), run.told()
            if count < kills:
                run.wait_for_steps(draw.randint(0, 6))  # so that a slow machine gets on too
                # a step takes less, a save or an evaluation about that
                time.sleep(draw.uniform(0, 0.06))
                run.signal(signal.SIGKILL, group=draw.random() < 0.5)
            code = run.end()
            assert code in (0, -signal.SIGKILL), run.told()
            if code == 0:
                return count
            count += 1


def torture(place, seed, kills, *words, expected=None, tell=lambda text: None):
    """Runs that are killed so often in all; returns the outcomes that are not as expected, and the
    number of runs."""
    draw, count, failures, runs = random.Random(seed), 0, [], 0
    while count < kills:
        folder = Path(place, f"run_{runs}", "checkpoints")
        now = kill_until_done(folder, draw, min(12, kills - count), *words)
        found = json.loads((folder.parent / "result.json").read_text(encoding="utf-8"))
        if found != expected:
            failures.append({"run": runs, "kills": now, "found": found, "expected": expected,
                             "place": str(folder)})
        count, runs = count + now, runs + 1
        tell(f"run {runs}: killed {now} times, {count} in all, "
             f"{'as expected' if found == expected else 'DIFFERENT'}")
    return failures, runs


# ---- killed


@pytest.mark.parametrize(("kills", "words", "settings"), [
    (3, (), {}),
    pytest.param(2, ("--workers", "2", "--sched", "linear"), {"workers": 2, "sched": "linear"},
                 marks=pytest.mark.long)],
    ids=["alone", "with workers"])
def test_killed_at_any_moment(tmp_path, kills, words, settings):
    """Weights, moments, rates, counts and history are those of a run that nobody disturbed, bit for
    bit."""
    seed = int(os.environ.get("TORTURE_SEED", time.time_ns() % 10**6))
    print(f"TORTURE_SEED={seed}")
    failures, _ = torture(tmp_path, seed, kills, *words, expected=straight(**settings))
    assert not failures


def die_at(number, folder, events=("open", "os.rename", "os.remove", "os.mkdir", "os.scandir"),
           name=""):
    """From now on count what is done to files in the folder, and be killed right before one of
    these things."""
    left = [number]
    def within(path):
        # in a folder that is held open a file has its name alone
        return (str(folder / name) in path if os.path.isabs(path)
                else path.startswith(name) and os.path.basename(path) == path)
    def audit(event, words):
        if event in events and within(str(words[0])):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(audit)


def in_a_fork(work):
    """Do it in a copy of this process; returns the status that it ends with."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_killed_at_each_file_that_is_touched(tmp_path, every):
    """Before each opening, renaming, removing in the saves of a short run, or some of them:
    what goes on is always the same run."""
    few = {"epochs": 1, "settings": {"every_steps": 2, "keep_last": 1}}
    expected, number, status = straight(epochs=1), 0, -signal.SIGKILL
    while status != 0:
        number += every
        folder = tmp_path / f"at_{number}"
        def work():
            die_at(number, folder)
            make(folder, **few).fit()
        status = in_a_fork(work)
        assert status in (0, -signal.SIGKILL)
        with make(folder, **few) as again:
            again.fit()
            assert outcome(again) == expected, number
        listed = json.loads((folder / LIST).read_text(encoding="utf-8"))
        for name in (listed["latest"], *(entry["file"] for entry in listed["checkpoints"])):
            read_state(folder / name)
        assert listed["latest"] == "step_00000004.pt"
    assert number > 30  # three saves, at least ten each


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.long),
                                    pytest.param(2, marks=pytest.mark.long), 3])
def test_killed_in_the_middle_of_a_file(tmp_path, number):
    """Half of it is written; the third one is of a step that has one already, from before its
    evaluation."""
    few, real = {"epochs": 1, "settings": {"every_steps": 2, "keep_last": 1}}, torch.save
    left = [number]
    def half(state, file):
        left[0] -= 1
        if left[0]:
            return real(state, file)
        whole = io.BytesIO()
        real(state, whole)
        file.write(whole.getvalue()[:len(whole.getvalue()) // 2])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    def work():
        torch.save = half
        make(tmp_path, **few).fit()
    assert in_a_fork(work) == -signal.SIGKILL and len(temporary(tmp_path)) == 1
    with warnings.catch_warnings(), make(tmp_path, **few) as again:
        warnings.simplefilter("error")  # nothing is damaged
        again.fit()
        if number > 1:
            assert again.get_hook(
                CheckpointHook).resumed_from.name == f"step_{2 * number - 2:08d}.pt"
        assert outcome(again) == straight(epochs=1)
    assert not temporary(tmp_path)


@pytest.mark.parametrize("named", [False, True], ids=["latest", "its own folder by name"])
@pytest.mark.parametrize(("number", "event", "name", "every_steps", "epochs"), [
    (1, "os.remove", "step_", 2, 1), (3, "os.rename", f".{LIST}", 2, 1),
    (1, "os.remove", "step_", None, 2)],
    ids=["an old file", "a file that was begun", "an old file, nothing left to save"])
def test_what_a_kill_leaves_is_removed_in_the_end(tmp_path, number, event, name, every_steps,
                                                  epochs, named):
    """Between the list and the removal of a file that nobody keeps any more;
    and before the last list has its name. A run that is resumed at its end saves nothing."""
    few = {"epochs": epochs, "settings": {"every_steps": every_steps, "keep_last": 1}}
    def work():
        die_at(number, tmp_path, (event,), name)
        trainer = make(tmp_path, **few)
        for _ in range(4 * epochs):  # each file is written before the next one is due
            trainer.step()
            trainer.get_hook(CheckpointHook).finish_writing()
        trainer.fit()
    assert in_a_fork(work) == -signal.SIGKILL
    if named:
        few["settings"]["resume"] = tmp_path
    make(tmp_path, **few).fit()
    assert sorted(os.listdir(tmp_path)) == [".lock", LIST, f"step_{4 * epochs:08d}.pt"]


# ---- told to end


class Told(Hook):
    """Sends this process a signal, at a point, at a step."""

    kept = False

    def __init__(self, step=7, point="after_step", number=signal.SIGTERM, times=1):
        self.step, self.number, self.times = step, number, times
        setattr(self, point, self._send)

    def _send(self, trainer, *words):
        if trainer.step_state.optimizer_step == self.step and self.times:
            self.times -= 1
            os.kill(os.getpid(), self.number)


@contextmanager
def handled(handler, number=signal.SIGTERM):
    """A handler of one's own, for as long as this is open."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def latest(folder):
    """The state in the latest file, and its name."""
    name = json.loads((folder / LIST).read_text(encoding="utf-8"))["latest"]
    return name, read_state(folder / name)


def goes_on(folder, step, expected=None, **settings):
    """What is in the folder is whole, of that step, and going on from there is the run that nobody
    disturbed."""
    name, state = latest(folder)
    assert name == f"step_{step:08d}.pt"
    assert state["position"]["optimizer_step"] == step and not temporary(folder)
    assert state["position"]["inexact"] is None
    with make(folder, **settings) as again:
        again.fit()
        assert again.get_hook(CheckpointHook).resumed_from == folder / name
        assert outcome(again) == (expected or straight(**settings))


@pytest.mark.parametrize(("number", "code", "workers", "group"), [
    pytest.param(signal.SIGTERM, 143, 0, False, marks=pytest.mark.long),
    pytest.param(signal.SIGTERM, 143, 2, False, marks=pytest.mark.long),
    (signal.SIGTERM, 143, 2, True),
    pytest.param(signal.SIGINT, -signal.SIGINT, 0, False, marks=pytest.mark.long),
    (signal.SIGINT, -signal.SIGINT, 2, True)],
    ids=["terminated", "terminated beside workers", "terminated with its workers", "interrupted",
         "interrupted with its workers"])
def test_a_process_that_is_told_to_end(tmp_path, number, code, workers, group):
    """Exit code 128 + 15, or KeyboardInterrupt; a whole file, of the step that was under way;
    and on from there."""
    folder = tmp_path / "checkpoints"
    with Process(folder, "--every", "100", "--pause", "0", "--hold", "6",
                 "--workers", str(workers)) as run:
        assert run.wait_for("held"), run.told()
        run.signal(number, group)
        Path(f"{folder}.go").touch()
        assert run.end() == code, run.told()
        assert ("KeyboardInterrupt" in run.told()) is (number == signal.SIGINT)
        run.reader.join(300)
        assert "done" not in run.lines
        said = [line for line in run.lines if line.startswith("step")]
    goes_on(folder, int(said[-1].split()[1]), workers=workers)


@pytest.mark.parametrize(("at", "point", "saved_at"), [
    (0, "before_fit", 0), (7, "after_step", 7), (7, "before_batch", 8), (8, "before_valid", 8),
    (8, "before_epoch", 8), (STEPS, "after_fit", STEPS),
    *(pytest.param(*each, marks=pytest.mark.long) for each in (
        (7, "after_backward", 8), (8, "after_valid", 8), (8, "on_log", 8),
        (STEPS, "after_epoch", STEPS)))])
def test_where_a_run_is_told_to_end(tmp_path, at, point, saved_at):
    """In an open window, in an evaluation, between two epochs, at its own end:
    the file is always of a whole step."""
    told = Told(at, point)
    with handled(signal.SIG_IGN), pytest.raises(SystemExit) as end:
        make(tmp_path, hooks=[told], settings={"every_steps": 100, "every_epochs": None}).fit()
    assert end.value.code == 143 and not told.times
    goes_on(tmp_path, saved_at)


def test_told_twice_while_a_file_is_written(tmp_path, monkeypatch):
    """The signals come in the middle of a save;
    the file becomes whole, and the second signal changes nothing."""
    def slow(state, path, follow):
        for _ in range(2):
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)
        return saved.write_state(state, path, follow)
    monkeypatch.setattr("trainer_nb.hooks.checkpoint.write_state", slow)
    with handled(signal.SIG_IGN):
        with pytest.raises(SystemExit) as end:
            make(tmp_path, settings={"every_steps": 6}).fit()
        assert end.value.code == 143 and signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    monkeypatch.undo()
    goes_on(tmp_path, latest(tmp_path)[1]["position"]["optimizer_step"])


def test_a_handler_from_before_is_called_too_and_comes_back(tmp_path):
    """After a run that was told to end, after one that was not, and after one that raised."""
    heard = []
    def handler(number, frame):
        heard.append(number)
    def fail(trainer):
        raise ValueError("mine")
    with handled(handler):
        with pytest.raises(SystemExit):
            make(tmp_path, hooks=[Told(3)]).fit()
        assert heard == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) is handler
        make(tmp_path).fit()
        assert heard == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) is handler
        failing = Told(5)
        failing._send = failing.after_step = fail
        with pytest.raises(ValueError, match="mine"):
            make(tmp_path / "other", hooks=[failing]).fit()
        assert signal.getsignal(signal.SIGTERM) is handler


def test_a_signal_between_two_cells_goes_to_the_handler_from_before(tmp_path):
    """After `step()` there is nobody who would stop at a boundary:
    what was there before gets the signal."""
    heard = []
    with handled(lambda number, frame: heard.append(number)), make(tmp_path) as trainer:
        trainer.step(3)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        trainer.fit()
        assert outcome(trainer) == straight()


@pytest.mark.parametrize(("settings", "number", "code"), [
    ({"exit_code": 7}, signal.SIGTERM, 7), ({"exit_code": 0}, signal.SIGTERM, 0),
    ({"exit_signals": (signal.SIGTERM, signal.SIGUSR1)}, signal.SIGUSR1, 128 + signal.SIGUSR1)])
def test_the_code_that_a_process_ends_with(tmp_path, settings, number, code):
    """The signal's, or one's own."""
    with (handled(signal.SIG_IGN), handled(signal.SIG_IGN, signal.SIGUSR1),
          pytest.raises(SystemExit) as end):
        make(tmp_path, hooks=[Told(5, number=number)], settings=settings).fit()
    assert end.value.code == code
    goes_on(tmp_path, 5)


def test_a_process_waits_before_its_end(tmp_path, monkeypatch):
    """After the last file is whole; and only if it was told to end."""
    waits, waited, sleep = {"exit_wait": 0.4, "every_steps": 100}, [], time.sleep

    def watched_sleep(seconds):
        """Note which file there is by then."""
        if seconds == 0.4:
            waited.append(latest(tmp_path)[1]["position"]["optimizer_step"])
        sleep(seconds)

    monkeypatch.setattr("trainer_nb.hooks.checkpoint.time.sleep", watched_sleep)
    with handled(signal.SIG_IGN), pytest.raises(SystemExit):
        make(tmp_path, hooks=[Told(5)], settings=waits).fit()
    assert waited == [5]
    goes_on(tmp_path, 5)
    make(tmp_path, settings=waits).fit(epochs=1)
    assert waited == [5]


def test_a_worker_that_is_killed(tmp_path):
    """The run raises; the last whole step is on disk, and going on from there is the same run."""
    class Kill(Hook):
        """Kills a loader worker, once."""
        kept = False
        def after_step(self, trainer):
            """At the sixth step."""
            if trainer.step_state.optimizer_step == 6:
                for worker in trainer.data._raw._workers:
                    os.kill(worker.pid, signal.SIGKILL)
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="worker"):
        warnings.simplefilter("ignore")
        make(tmp_path, 2, hooks=[Kill()], settings={"every_steps": 2}).fit()
    with make(tmp_path, 2, settings={"every_steps": 2}) as again:
        again.fit()
        assert again.get_hook(
            CheckpointHook).resumed_from.name in ("step_00000006.pt", "step_00000007.pt")
        assert outcome(again) == straight(workers=2)


def main(kills, seed=None):
    """The long form."""
    torch.set_num_threads(1)
    seed = time.time_ns() % 10**6 if seed is None else int(seed)
    print(f"seed {seed}", flush=True)
    tell = lambda text: print(text, flush=True)
    share = {"alone": (int(kills) * 4 // 5, (), {}), "with workers": (
        int(kills) - int(kills) * 4 // 5, ("--workers", "2", "--sched", "linear"),
        {"workers": 2, "sched": "linear"})}
    all_failures = []
    for name, (number, words, settings) in share.items():
        tell(f"{name}: {number} kills")
        place = tempfile.mkdtemp(prefix="torture_")
        failures, runs = torture(place, seed, number, *words, expected=straight(**settings),
                                 tell=tell)
        all_failures += failures
        tell(f"{name}: {number} kills, {runs} runs, {len(failures)} failures"
             + (f" (see {place})" if failures else ""))
        for each in failures:
            tell(json.dumps(each, indent=1))
    tell(f"{kills} kills, {len(all_failures)} failures")
    return bool(all_failures)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
