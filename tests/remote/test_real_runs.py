"""Training scripts in processes of their own, seen and steered through their folders:
tuned, paused, killed, resumed, crashed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from feed_page import Page
from steered import ROOT, Process, until

from trainer_nb import attach
from trainer_nb.folder.control import ControlFolder
from trainer_nb.core.journal import Journal
from trainer_nb.hooks.recorder import History
from trainer_nb.hooks.run_folder import read_records
from trainer_nb.tools.lr_find import rates

SCRIPT = """
import sys, time
from pathlib import Path
import torch
from trainer_nb import LambdaHook, Trainer

def after_step(trainer):
    time.sleep(0.01)
    if Path(sys.argv[1], "crash").exists():
        raise ValueError("<b>no such batch</b>")

x = torch.arange(80.0).reshape(40, 2) / 80
data = [(x[i:i + 4], x[i:i + 4].sum(1, keepdim=True)) for i in range(0, 40, 4)]
trainer = Trainer(torch.nn.Linear(2, 1), train_dl=data, loss_fn=torch.nn.MSELoss(),
                  max_steps=10**7, device="cpu", progress=False,
                  workspace=sys.argv[1], hooks=[LambdaHook(name="slow", after_step=after_step)])
trainer.fit()
"""

pytestmark = [pytest.mark.long, pytest.mark.slow]


@pytest.fixture
def process(tmp_path):
    """A long run in another process, with checkpoints and snapshots every five steps."""
    process = Process(tmp_path / "run", epochs=10**6, pause=0.002).start()
    yield process
    if process.running.poll() is None:
        process.kill()


@pytest.fixture
def run(process):
    """The same, attached."""
    run = attach(process.folder)
    yield run
    run.close()


def applied(reply):
    """The reply, once the run has applied it."""
    assert reply.wait(300).status == "applied", reply
    return reply


def content(history):
    """All points and branches, to compare."""
    def plain(series):
        return {name: [list(map(repr, column)) for column in vars(each).values()]
                for name, each in series.items()}
    return (plain(history.since({})),
            [(each.number, each.start, each.end, plain(each.series)) for each in history.branches])


def in_the_files(folder):
    """Records and journal as the tools of the run itself read them."""
    history = History()
    read_records(history, Path(folder, "metrics.jsonl").read_bytes())
    return history, Journal.load(Path(folder, "journal.jsonl"))


@pytest.mark.short
def test_a_run_is_tuned_paused_stepped_rewound_and_resumed(process, run):
    until(lambda: run.view.position.step > 12 and len(run.history))
    assert run.standing == "running" and {"lr", "grad_clip"} <= set(run.tunables())
    applied(run.pause())
    until(lambda: run.standing == "paused" and run.view.rewind_points())
    tuned = applied(run.post(run_command("tune", grad_clip=2.5), reason="it explodes"))
    until(lambda: run.tunables()["grad_clip"].value == 2.5
          and not run.tunables()["grad_clip"].has_pending)
    until(lambda: len(run.journal) == 2)
    entry = next(each for each in run.journal if each.name == "grad_clip")
    assert (entry.command, entry.reason, entry.source,
            entry.new) == (tuned.id, "it explodes", "code", 2.5) and entry.step == tuned.step
    step = run.view.position.step
    applied(run.step(2))
    until(lambda: run.view.position.step == step + 2 and run.standing == "paused")
    applied(run.note("a note,\nof two lines"))
    applied(run.checkpoint())
    back = [each for each in run.view.rewind_points() if each < entry.step][-1]
    applied(run.rewind(back))
    until(lambda: run.history.branches and run.view.position.step == back)
    assert run.history.branches[0].start == back and run.history.steps("train/loss")[-1] <= back
    until(lambda: tuned.status == "void")  # the rewind has undone it, and the reply says so
    until(lambda: run.tunables()["grad_clip"].value == 5.0)
    applied(run.resume())
    until(lambda: run.standing == "running" and run.view.position.step > step)
    run.stop().wait(300)
    until(lambda: run.standing == "ended" and not run.view.watch.reachable)
    history, journal = in_the_files(process.folder)
    until(lambda: content(run.history) == content(history)
          and run.journal.entries == journal.entries)
    assert run.result.status == "stopped" and run.result.steps == run.view.position.step
    assert json.loads((process.folder / "result.json").read_text())["steps"] == run.result.steps


@pytest.mark.short
def test_it_is_inspected_and_a_rate_is_searched(process, run):
    """The tensors of the last batch and the layers in its step; a search leaves the run where it
    stands, and a rate of it is taken by the same way as any other."""
    until(lambda: run.view.position.step > 5)
    applied(run.pause())
    until(lambda: run.standing == "paused")
    assert "inspect" in run.view.panes
    applied(run.post(run_command("inspect", on=True)))
    applied(run.step(1))
    until(lambda: run.view.inspection and run.view.inspection.layers_step)
    step = run.view.position.step
    assert run.view.inspection.layers_step == run.view.inspection.step == step
    tensors = {each.name: each for each in run.view.inspection.tensors}
    assert {"batch[0]", "batch[1]", "pred", "loss"} <= tensors.keys()
    assert tensors["batch[0]"].min < tensors["batch[0]"].mean < tensors["batch[0]"].max
    assert all(each.norm > 0 and each.ratio > 0 for each in run.view.inspection.layers)
    applied(run.post(run_command("lr_find", num_steps=15)))
    until(lambda: run.view.lr_search and run.view.lr_search.sweep.ended)
    search = run.view.lr_search
    assert search.lrs == rates(1e-7, 10, 15)[:len(search.losses)]
    assert run.view.position.step == step and len(search.losses) > 5
    (name, value), = search.change(0.004).items()
    search.tune(0.004)
    until(lambda: run.tunables()[name].value == value)
    applied(run.resume())
    until(lambda: run.view.position.step > step)
    run.stop().wait(300)


@pytest.mark.short
def test_two_that_disagree(process, run):
    """What one does the other sees; the later value is in force, and both press Stop:
    it stops once, and each is told."""
    other = attach(process.folder)
    try:
        until(lambda: other.view.position.step > 5)
        one, two = run.tune(lr=0.005), other.tune(lr=0.001)
        assert applied(one).step <= applied(two).step
        until(lambda: run.tunables()["lr"].value == other.tunables()["lr"].value == 0.001)
        applied(other.pause())
        until(lambda: run.standing == other.standing == "paused")
        applied(run.resume())
        until(lambda: other.standing == "running")
        ends = sorted(each.wait(300).status for each in (run.stop(), other.stop()))
        assert ends in (["applied", "refused"], ["applied", "void"], ["applied", "applied"]), ends
        until(lambda: run.standing == other.standing == "ended" and not run.view.watch.reachable)
        until(lambda: run.journal.entries == other.journal.entries)
        assert [each.kind for each in run.journal].count("stop") == 1
        assert [each.new for each in run.journal if each.name == "lr"] == [0.005, 0.001]
    finally:
        other.close()


def run_command(name, **values):
    """A command as code posts it."""
    from trainer_nb.core.control import Command
    return Command(name, values)


def test_what_only_the_run_knows_is_refused_by_it(process, run):
    until(lambda: run.view.position.step > 12)
    reply = run.step(0)
    assert reply.wait(300).status == "refused" and "1 or more" in reply.reason and reply.received
    late = run.post(run_command("tune", grad_clip=1.0), basis=1, max_age_steps=1)
    assert late.wait(300).status == "refused" and "too late" in late.reason
    until(lambda: not run.tunables()["grad_clip"].has_pending)


def test_a_run_that_is_killed_is_lost_and_followed_again_when_it_is_resumed(process, run):
    page = Page(run.dashboard.feed).hello()
    until(lambda: run.view.last_saved and run.view.position.step > 12)
    applied(run.tune(grad_clip=2.0))
    at = run.view.position.step
    until(lambda: run.view.last_saved[0] > at)  # a checkpoint has it
    process.running.send_signal(signal.SIGSTOP)  # so that nothing reads the next command
    unread = run.stop()
    process.running.kill()
    until(lambda: run.standing == "lost")
    assert unread.wait(300).status == "void" and "taken back" in unread.reason
    until(lambda: page.view["state"].get("word") == "Lost")
    assert "steered.py" in page.view["state"]["go_on"]
    assert "Its last checkpoint" in page.view["state"]["notice"]
    process.running.wait()
    assert run.standing == "lost"
    version = run.history.version
    process.start()
    until(lambda: run.standing == "running" and run.view.position.step > at + 20)
    assert run.history.version > version and run.tunables()["grad_clip"].value == 2.0
    steps = run.history.steps("train/loss")
    assert (steps[1:] - steps[:-1] == 1).all() and steps[0] == 1  # each step once
    until(lambda: page.view["state"] == {"name": "running", "standing": "running"}
          and page.curves["train/loss"][1][-1, 0] >= steps[-1] - 1)
    assert applied(run.pause()) and len(list((process.control.path / "commands").iterdir())) == 0
    until(lambda: run.standing == "paused"
          and run.history.steps("train/loss")[-1] == run.view.position.step)
    history, journal = in_the_files(process.folder)
    assert content(run.history) == content(history) and run.journal.entries == journal.entries


def test_a_page_steers_the_other_process(process, run):
    page = Page(run.dashboard.feed).hello().open("times", "rewind")
    until(lambda: run.view.position.step > 12)
    page.command("tune", grad_clip=1.5)
    until(lambda: page.answers and page.view["values"]["grad_clip"] == {"value": 1.5})
    until(lambda: page.view.get("times"))  # the tab is open, so they are counted
    page.command("pause")
    until(lambda: page.view["state"]["name"] == "paused")
    assert [(each.name, each.source)
            for each in run.journal] == [("grad_clip", run.view.source), ("pause", run.view.source)]
    before = run.view.position.step
    page.command("step", n=1)
    until(lambda: page.view["place"]["step"] == before + 1)
    until(lambda: page.view["state"]["name"] == "paused" and page.view["rewind"])
    page.command("rewind", step=page.view["rewind"][-1]["step"])
    until(lambda: page.view["branches"] and page.view["place"]["step"] <= before)
    page.command("resume")
    until(lambda: page.view["state"]["name"] == "running")


@pytest.mark.short
def test_a_run_that_crashes_says_why(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    place = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = warm.Popen([sys.executable, "train.py", "run"], cwd=tmp_path, env=place,
                               stderr=subprocess.DEVNULL)
    try:
        control = ControlFolder(tmp_path / "run")
        until(lambda: (control.path / "status.json").exists()
              and (control.path / "offer.json").exists())
        run = attach(tmp_path / "run")
        page = Page(run.dashboard.feed).hello()
        until(lambda: run.view.position.step > 3)
        (tmp_path / "run" / "crash").touch()
        assert process.wait(300) == 1
        until(lambda: run.standing == "crashed"
              and "Crashed after step" in page.view["state"].get("notice", "")
              and sum("failure" in row for row in page.view["hooks"].values()) == 1)
        assert "ValueError: <b>no such batch" in page.view["state"]["notice"]
        assert "It saved no checkpoint." in page.view["state"]["notice"]
        assert "ValueError: <b>no such batch</b>" in run.view.error
        assert run.result.status == "error" and "failed" not in page.view["state"]
        run.close()
    finally:
        process.kill()
        process.wait()


MAIN = SCRIPT.replace("x = torch", "def main():\n    x = torch")
MAIN = MAIN.replace("\ndata =", "\n    data =").replace("\ntrainer", "\n    trainer")
MAIN += "main()\n"


@pytest.mark.parametrize("script", [SCRIPT, MAIN], ids=["module", "main"])
@pytest.mark.short
def test_a_stopped_script_answers_before_it_ends(tmp_path, script):
    """Also where its trainer is a variable of a function that returns:
    it is gone before the process is."""
    (tmp_path / "train.py").write_text(script)
    place = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = warm.Popen([sys.executable, "train.py", "run"], cwd=tmp_path, env=place)
    try:
        control = ControlFolder(tmp_path / "run")
        until(lambda: (control.path / "status.json").exists()
              and (control.path / "offer.json").exists())
        run = attach(tmp_path / "run")
        until(lambda: run.view.position.step > 3)
        reply = applied(run.stop())
        assert process.wait(300) == 0
        until(lambda: run.standing == "ended" and not run.view.watch.alive)
        assert reply.step == run.result.steps
        run.close()
    finally:
        process.kill()
        process.wait()


LAST = """
import atexit, sys, threading, time
# runs last
atexit.register(lambda: print(*[each.name for each in threading.enumerate()
                                if "control" in each.name]))
import torch
from trainer_nb import Trainer
from trainer_nb.hooks.remote_control import Attendant

class Slow:
    def __del__(self):
        time.sleep(1.0)

def look_slowly(*given, look=Attendant._look):
    looked.set()
    time.sleep(0.5)
    look(*given)

def main():
    data = [(torch.ones(2, 2), torch.ones(2, 1))] * 3
    trainer = Trainer(torch.nn.Linear(2, 1), train_dl=data, loss_fn=torch.nn.MSELoss(), epochs=1,
                      device="cpu", progress=False,
                      workspace=sys.argv[1])
    trainer.model.slow = Slow()
    trainer.fit()
    Attendant._look = look_slowly
    looked.wait()

looked = threading.Event()
main()
"""


@pytest.mark.short
def test_the_thread_is_gone_before_python_ends(tmp_path):
    """It may hold the trainer last: tensors that it frees while Python ends would end the process
    with an abort."""
    (tmp_path / "train.py").write_text(LAST)
    place = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "train.py", "run"], cwd=tmp_path, env=place,
                           capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "", "")


def test_nobody_has_to_look_for_a_run_to_go_on(process, run):
    """The reader may go away at any moment: the run hears nothing of it."""
    until(lambda: run.view.position.step > 12)
    run.close()
    step = process.step()
    until(lambda: process.step() > step + 50)
    again = attach(process.folder)
    assert again is not run and again.standing == "running"
    again.close()
