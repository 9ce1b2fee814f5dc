"""A training process with a workspace, for tests that steer it from outside;
started again, it goes on in the same folder.

`python tests/steered.py FOLDER --result FILE` trains to the end, and writes what two equal runs
have in common; under torchrun in several processes. `--replay` repeats the journal of the folder
instead, and writes nothing there. `--holds 3 8`: after the steps 3 and 8 it waits for
`Process.go_on`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil
import warm
from devices import exact_on
from killed import Slow, make, outcome

import trainer_nb
from trainer_nb import Hook, ReplayHook, SnapshotHook
from trainer_nb.folder.control import ControlFolder, Replies, Request

ROOT = Path(trainer_nb.__path__[0]).parent


def trainer_in(folder, epochs=30, pause=0.0, every=5, hooks=(), **settings):
    """A run with records, checkpoints and snapshots in a folder."""
    settings = {"workspace": folder, "grad_clip": 5.0, **settings}
    return make(Path(folder, "checkpoints"), settings={"every_steps": every, "every_epochs": None},
                epochs=epochs, sched="linear",
                hooks=[Slow(pause), SnapshotHook(every_steps=every), *hooks], **settings)


def replayed(folder, epochs):
    """What a run made that repeats the journal of the one in a folder."""
    trainer = make(epochs=epochs, grad_clip=5.0, sched="linear",
                   hooks=[Slow(), SnapshotHook(every_steps=5),
                          ReplayHook(Path(folder, "journal.jsonl"))])
    trainer.fit()
    return outcome(trainer)


class Hold(Hook):
    """Waits after some steps until somebody else says to go on."""

    kept = False

    def __init__(self, folder, steps):
        self.folder, self.steps = folder, steps

    def after_step(self, trainer):
        """A file says that it waits, and another one that it may go on."""
        step = trainer.step_state.optimizer_step
        if step in self.steps:
            Path(f"{self.folder}.held{step}").touch()
            while not Path(f"{self.folder}.go{step}").exists():
                time.sleep(0.005)


class Process:
    """The training process of a folder, seen from outside."""

    def __init__(self, folder, epochs=30, pause=0.01, every=5, processes=1, arguments=(),
                 holds=()):
        self.folder, self.result = Path(folder), Path(f"{folder}.result")
        self.control = ControlFolder(folder)
        self.replies = Replies(self.control)
        python = [sys.executable] if processes == 1 else [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            str(processes)]
        self.words = [*python, __file__, str(folder), "--epochs", str(epochs), "--pause",
                      str(pause), "--every", str(every), *arguments]
        self.words += ["--holds", *map(str, holds)] if holds else []
        forked = processes == 1 and "cuda" not in arguments
        self.popen = warm.Popen if forked else subprocess.Popen
        self.running = None

    def start(self):
        """Start it, and wait until it offers itself."""
        before = self.attempt()
        with open(f"{self.folder}.output", "ab") as output:
            self.running = self.popen([*self.words, "--result", str(self.result)], stdout=output,
                                      stderr=output, env=environment(), start_new_session=True)
        until(lambda: self.attempt() != before or self.running.poll() is not None)
        return self

    def replay(self):
        """What came of a run in fresh processes that repeats the journal."""
        result = Path(f"{self.folder}.replayed")
        with self.popen([*self.words, "--result", str(result), "--replay"], env=environment(),
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said
        return json.loads(result.read_text())

    def attempt(self):
        """The token of the process that has the folder."""
        try:
            return self.control.status()["attempt"]
        except RuntimeError:
            return None

    def kill(self):
        """End it at once, with no chance to write anything."""
        # torchrun's are sessions of their own
        for each in [*psutil.Process(self.running.pid).children(recursive=True), self.running]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.running.wait()

    def reach(self, step):
        """Wait until it waits after a step."""
        until(lambda: Path(f"{self.folder}.held{step}").exists() or self.running.poll() is not None)
        assert self.running.poll() is None, self.output()

    def go_on(self, step):
        """It need not wait after this step any more."""
        Path(f"{self.folder}.go{step}").touch()

    def end(self, seconds=300):
        """Wait for its end; its result."""
        assert self.running.wait(seconds) == 0, self.output()
        return json.loads(self.result.read_text())

    def output(self):
        """What it printed."""
        return Path(f"{self.folder}.output").read_text()

    def step(self):
        """The last step that it told."""
        return self.control.status()["position"]["step"]

    def send(self, name, values=None, source="shell", **others):
        """Send a command; its id."""
        return self.control.send(Request(name, values or {}, source, **others))

    def ask(self, name, values=None, source="shell", seconds=300, at=None, **others):
        """Send a command and wait for its final reply; `at`: the step after which it waits."""
        if at is None:
            return self.replies.wait(self.send(name, values, source, **others), seconds)
        self.reach(at)
        sent = self.send(name, values, source, **others)
        until(lambda: sent in self.replies.read())
        self.go_on(at)
        return self.replies.wait(sent, seconds)

    def lines(self, id):
        """All replies to a command, in order."""
        text = Path(self.folder, "control/replies.jsonl").read_text()
        return [line["status"] for line in map(json.loads, text.splitlines()) if line["id"] == id]


def environment():
    """For processes that import this package and the helpers of the tests."""
    places = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)),
            "OMP_NUM_THREADS": "1"}


def until(condition, seconds=300):
    """Wait until a condition holds: for minutes, on a machine that is busy."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def main(words):
    """Train in a folder."""
    ask = argparse.ArgumentParser()
    ask.add_argument("folder")
    ask.add_argument("--result", required=True)
    ask.add_argument("--epochs", type=int, default=30)
    ask.add_argument("--pause", type=float, default=0.01)
    ask.add_argument("--every", type=int, default=5)
    ask.add_argument("--device", default="cpu")
    ask.add_argument("--replay", action="store_true")
    ask.add_argument("--holds", type=int, nargs="*", default=())
    given = ask.parse_args(words)
    several = {"engine": "accelerate"} if "WORLD_SIZE" in os.environ else {}
    several["device"] = given.device
    exact_on(given.device)
    if given.replay:
        trainer = make(epochs=given.epochs, grad_clip=5.0, sched="linear", **several,
                       hooks=[Slow(), SnapshotHook(every_steps=given.every),
                              ReplayHook(Path(given.folder, "journal.jsonl"))])
    else:
        trainer = trainer_in(given.folder, given.epochs, given.pause, given.every, **several,
                             hooks=[Hold(given.folder, given.holds)])
    found = trainer.fit()
    if trainer.is_main:
        journal = [asdict(each) for each in trainer.journal]
        surviving = [entry.command for entry in trainer.journal.path() if entry.command]
        Path(given.result).write_text(json.dumps(outcome(trainer)
                                                 | {"journal": journal, "surviving": surviving,
                                                    "status": str(found.status)}))
    trainer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
