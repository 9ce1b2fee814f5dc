"""A run is steered by files in its folder:
each command once, with a reply, and nothing that is not a command."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
import steered
import torch
import warm
from steered import Process, until

from trainer_nb import LambdaHook, SnapshotHook, Trainer
from trainer_nb.folder.control import ControlFolder, Replies, Request, incoming
from trainer_nb.hooks.remote_control import CommandIntake, RemoteControlHook
from trainer_nb.support.files import OpenFolder


def make(folder, **settings):
    """A small run with a workspace, in this process."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    loader = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(10)]
    return Trainer(model, train_dl=loader, loss_fn=torch.nn.MSELoss(), seed=0, device="cpu",
                   progress=False, workspace=folder, **{"epochs": 2, **settings})


class Steered:
    """A run in this process that is paused at step 3, and its folder."""

    def __init__(self, folder, **settings):
        self.trainer = make(folder, **settings)
        self.trainer.step(3)
        self.attendant = self.trainer.get_hook(RemoteControlHook).attendant
        self.control, self.replies = ControlFolder(folder), Replies(ControlFolder(folder))

    def ask(self, name, values=None, **others):
        """The final reply to a command; the run looks into its folder at once."""
        sent = self.control.send(Request(name, values or {}, **{"source": "shell", **others}))
        self.attendant.look()
        return self.wait(sent)

    def wait(self, sent):
        """The final reply to a command that was sent."""
        return self.replies.wait(sent, 300)


@pytest.fixture
def steered_run(tmp_path):
    run = Steered(tmp_path / "run")
    yield run
    run.trainer.close()


def test_a_tunable_is_changed_and_the_journal_says_by_whom(steered_run):
    reply = steered_run.ask("tune", {"lr": 0.25, "grad_clip": 2.0}, user="ada", host="lab",
                            reason="too slow")
    assert reply["status"] == "applied" and reply["step"] == 3
    entries = steered_run.trainer.journal.entries
    assert steered_run.trainer.rate == 0.25 and steered_run.trainer.grad_clip == 2.0
    assert [(each.source, each.by, each.reason, each.command)
            for each in entries] == [("shell", "ada@lab", "too slow", reply["id"])] * 2
    lines = [json.loads(line)
             for line in (steered_run.trainer.workspace / "journal.jsonl").read_text().splitlines()]
    assert lines[-1]["command"] == reply["id"]


@pytest.mark.parametrize("name, values, words", [
    ("tune", {"lr": -1}, "a number, 0 or more"), ("tune", {"lrr": 1.0}, "lr"),
    ("tune", {"lr": True}, "lr"),
    ("step", {"n": 0}, "1 or more"), ("note", {}, "text"), ("rewind", {"step": 2}, "SnapshotHook"),
    ("tunes", {}, "did you mean 'tune'"),
    ("save", {"path": "elsewhere.pt"}, "no command 'save' for other processes"),
    ("sweep", {}, "no command 'sweep'"), ("lr_find", {"start_lr": 20.0}, "the lower one"),
    ("lr_find", {"num_steps": 10**12}, "1,000,000 steps at most"),
    ("lr_find", {"mode": "up"}, "'linear'"),
    ("lr_find", {"train_dl": "mine"}, "no value 'train_dl'"),
    ("checkpoint", {}, "no command 'checkpoint'"), ("detach", {}, "no command 'detach'"),
    ("pause_when", {"text": "loss >"}, "a name, a comparison"),
])
def test_what_is_wrong_is_refused_with_the_reason(steered_run, name, values, words):
    before = [p.clone() for p in steered_run.trainer.model.parameters()]
    reply = steered_run.ask(name, values)
    assert reply["status"] == "refused" and words in reply["reason"]
    assert not len(steered_run.trainer.journal)
    assert all(torch.equal(a, b) for a, b in zip(before, steered_run.trainer.model.parameters()))


@pytest.mark.parametrize("approve", [False, True])
@pytest.mark.parametrize(("name", "values", "words"), [
    ("pause", {"boundary": True}, "pause has no value 'boundary': it takes none"),
    ("note", {"text": "a", "txt": "b"}, "note has no value 'txt' (did you mean 'text'?)"),
    ("stop", {"n": 3}, "stop has no value 'n': it takes none"),
    ("rewind", {"step": 1, "steps": 2}, "did you mean 'step'?): it takes step"),
    ("step", {"m": 1}, "step has no value 'm'"), ("resume", {"skip": True}, "it takes skip_failed"),
    ("watch", {"on": True, "hook": "a"}, "watch has no value 'hook'")])
def test_a_value_that_a_command_does_not_have_is_refused(steered_run, name, values, words, approve):
    """It meant something to the sender; nothing has happened."""
    reply = steered_run.ask(name, values, approve=approve)
    assert reply["status"] == "refused" and words in reply["reason"], reply
    assert steered_run.trainer.step_state.optimizer_step == 3
    assert not [each for each in steered_run.trainer.journal if each.kind == "note"]


def test_a_command_that_comes_too_late_is_refused_with_both_steps(steered_run):
    reply = steered_run.ask("tune", {"lr": 0.5}, basis=1, max_age_steps=1)
    assert reply["status"] == "refused"
    assert "step 1" in reply["reason"] and "step 3" in reply["reason"]
    assert steered_run.ask("tune", {"lr": 0.5}, basis=2, max_age_steps=1)["status"] == "applied"


@pytest.mark.parametrize("name, values", [("resume", {}), ("step", {"n": 1})])
def test_a_late_command_does_not_let_a_paused_run_go_on(tmp_path, name, values):
    """Neither where the run is held, nor where nothing drives it."""
    run = Steered(tmp_path / "run", epochs=2000)
    late = run.ask(name, values, basis=0, max_age_steps=1)
    assert late["status"] == "refused" and run.trainer.step_state.optimizer_step == 3
    run.trainer.start()
    run.trainer.pause().wait()
    held = run.trainer.step_state.optimizer_step
    late = run.ask(name, values, basis=0, max_age_steps=0)
    assert late["status"] == "refused"
    # what was sent before it has had its effect by then
    assert run.ask("note", {"text": "still paused"})["status"] == "applied"
    assert run.trainer.step_state.optimizer_step == held and run.trainer.state == "paused"
    run.trainer.close()


def test_a_command_that_is_sent_twice_is_applied_once(steered_run):
    request = Request("note", {"text": "once"}, "shell")
    for _ in range(3):
        steered_run.control.send(request)
        assert steered_run.wait(request.id)["status"] == "applied"
        steered_run.attendant.look()
    assert [entry.new for entry in steered_run.trainer.journal] == ["once"]
    assert not list((steered_run.control.path / "commands").iterdir())
    assert not list((steered_run.control.path / "taken").iterdir())


def test_commands_take_effect_in_the_order_in_which_they_came(steered_run):
    sent = [steered_run.control.send(Request("note", {"text": str(number)}, "shell",
                                             id=f"{(7 * number) % 40:016d}"))
                                             for number in range(40)]
    steered_run.wait(sent[-1])
    assert [entry.new
            for entry in steered_run.trainer.journal] == [str(number) for number in range(40)]


HOSTILE = {
    "a link": lambda path: os.symlink("/etc/passwd", path), "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a hard link": lambda path: os.link(path.parent.parent / "status.json", path),
    "no JSON": lambda path: path.write_bytes(b"\xff\xfe{"),
    "too large": lambda path: path.write_text("[" + "1," * 40_000 + "1]"),
    "too deep": lambda path: path.write_text("[" * 30_000),
    "a list": lambda path: path.write_text("[]"),
    "another protocol": lambda path: path.write_text('{"id": "x", "name": "pause", "protocol": 2}'),
    "an unknown field": lambda path: path.write_text(
        '{"id": "x", "name": "pause", "import": "os"}'),
    "another name": lambda path: path.write_text('{"id": "y", "name": "pause"}'),
    "a path as id": lambda path: path.write_text('{"id": "../../x", "name": "pause"}'),
    "control characters": lambda path: path.write_text(
        '{"id": "x", "name": "pause", "reason": "\\u001b[2J"}'),
    "nested values": lambda path: path.write_text(
        '{"id": "x", "name": "tune", "values": {"lr": [1]}}'),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_command_is_moved_aside_with_the_reason(steered_run, kind):
    """The run goes on, and hears the next command."""
    HOSTILE[kind](steered_run.control.path / "commands" / "x.json")
    steered_run.attendant.look()
    until(lambda: not (steered_run.control.path / "commands" / "x.json").is_symlink()
          and not (steered_run.control.path / "commands" / "x.json").exists())
    until(lambda: any((steered_run.control.path / "refused").glob("*.why")))
    why = next((steered_run.control.path / "refused").glob("*.why")).read_text()
    assert len(why) > 5 and steered_run.ask("note", {"text": "still here"})["status"] == "applied"
    assert not len([each for each in steered_run.trainer.journal if each.kind != "note"])


def test_the_files_are_for_their_owner_alone(steered_run):
    steered_run.ask("note", {"text": "x"})
    for path in [steered_run.control.path, *steered_run.control.path.rglob("*")]:
        assert (path.stat().st_mode & 0o777) == (0o700 if path.is_dir() else 0o600), path


def test_a_control_folder_that_is_a_link_is_not_followed(tmp_path):
    """The run goes on without it, and says so once."""
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "run/control")
    trainer = make(tmp_path / "run")
    with pytest.warns(UserWarning, match="cannot be steered"):
        trainer.fit()
    assert trainer.state == "finished" and not list((tmp_path / "elsewhere").iterdir())
    trainer.close()


def test_without_a_workspace_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = make(None)
    trainer.fit()
    assert trainer.get_hook(RemoteControlHook) is None and not list(tmp_path.iterdir())
    assert not [each for each in threading.enumerate() if each.name == "trainer_nb control"]


def test_the_thread_ends_with_the_trainer(tmp_path):
    import gc
    before = len([each for each in threading.enumerate() if each.name == "trainer_nb control"])
    run = Steered(tmp_path / "run")
    run.trainer.close()
    other = Steered(tmp_path / "other")
    del run, other
    gc.collect()
    until(lambda: len([each for each in threading.enumerate()
                       if each.name == "trainer_nb control"]) <= before)


def test_the_status_says_how_the_run_stands(steered_run):
    until(lambda: steered_run.control.status()["state"] == "paused")
    status = steered_run.control.status()
    assert status["position"]["step"] == 3
    assert status["alive"] and status["process"]["pid"] == os.getpid()
    steered_run.trainer.fit()
    until(lambda: steered_run.control.status()["state"] == "finished")
    steered_run.trainer.close()
    assert steered_run.control.status()["alive"] is False


def test_a_crash_is_in_the_status_with_its_traceback(tmp_path):
    def fail(trainer):
        if trainer.step_state.optimizer_step == 4:
            raise ValueError("a bad step")
    trainer = make(tmp_path / "run", hooks=[LambdaHook(after_step=fail)])
    with pytest.raises(ValueError, match="a bad step"):
        trainer.fit()
    status = ControlFolder(tmp_path / "run").status()
    assert status["state"] == "error" and "ValueError: a bad step" in status["error"]
    trainer.close()


def test_the_offer_has_every_tunable_with_its_range(steered_run):
    offer = steered_run.control.offer()
    assert {each["name"] for each in offer["tunables"]} == set(steered_run.trainer.tunables())
    rate = next(each for each in offer["tunables"] if each["name"] == "grad_clip")
    assert rate["min"] == 1e-12 and rate["kind"] == "float" and rate["optional"]
    assert set(offer["commands"]) == {
        name for name, spec in steered_run.trainer.commands.items() if spec.remote}
    assert {each["name"]
            for each in offer["hooks"]} == {row.name for row in steered_run.trainer.hooks.running()}


def test_the_bits_are_those_of_a_run_that_nobody_steers(tmp_path):
    """A folder and a thread beside the run change nothing."""
    plain, watched = make(None), make(tmp_path / "run")
    plain.fit()
    watched.fit()
    assert all(torch.equal(a, b)
               for a, b in zip(plain.model.parameters(), watched.model.parameters()))
    watched.close()


def test_a_folder_that_is_removed_ends_nothing(tmp_path):
    """Where it is made again, the run hears again."""
    run = Steered(tmp_path / "run", epochs=100_000)
    run.trainer.start()
    shutil.rmtree(run.control.path)
    until(lambda: (run.control.path / "commands").is_dir())
    assert run.ask("note", {"text": "again"})["status"] == "applied"
    run.trainer.close()


SENDER = """
import sys, time
from pathlib import Path
from trainer_nb.folder.control import COMMANDS, ControlFolder

number, control, stop = 0, ControlFolder(sys.argv[1]), Path(sys.argv[1], "stop")
while not stop.exists():
    if number < 30_000:
        control.put(COMMANDS, f"n{number:06d}.json", "x")
        number += 1
"""


@pytest.mark.slow
def test_a_command_that_is_seen_has_none_before_it_that_is_not(tmp_path):
    """While another process sends, each look shows the first ones, without a gap."""
    control = ControlFolder(tmp_path)
    control.make()
    with subprocess.Popen([sys.executable, "-c", SENDER, tmp_path]) as sender:
        looks = 0
        while looks <= 10:
            assert sender.poll() is None
            names = incoming(control, most=10_000)
            assert names == [f"n{number:06d}.json" for number in range(len(names))]
            looks += len(names) > 1_000  # a smaller folder is listed in one piece
        (tmp_path / "stop").touch()
    assert sender.returncode == 0


def test_what_comes_while_a_folder_is_looked_at_waits_for_the_next_look(tmp_path, monkeypatch):
    """The listing that shows it need not show one that came before it."""
    control, entries, sent = ControlFolder(tmp_path), OpenFolder.entries, []
    control.make()

    def listed(folder):
        sent.append(control.send(Request("note", id=f"n{len(sent)}")))
        return entries(folder)

    control.send(Request("note", id="first"))
    monkeypatch.setattr(OpenFolder, "entries", listed)
    assert incoming(control) == ["first.json", "n0.json"]
    assert incoming(control) == ["first.json", "n0.json", "n1.json", "n2.json"]


@pytest.mark.slow
def test_ten_thousand_commands_at_once(tmp_path):
    """All are answered, in order, and the run makes steps meanwhile."""
    run, count = Steered(tmp_path / "run", epochs=100_000), 2_000
    with run.attendant._lock:  # between two looks
        for number in range(count):
            run.control.send(Request("note", {"text": str(number)}, "shell", id=f"n{number:06d}"))
        run.trainer.start()
    assert run.wait(f"n{count - 1:06d}")["status"] == "applied"
    notes = [entry for entry in run.trainer.journal if entry.kind == "note"]
    assert [entry.new for entry in notes] == [str(number) for number in range(count)]
    assert len({entry.step for entry in notes}) > 1
    run.trainer.close()


@pytest.mark.slow
def test_a_rewind_makes_what_it_undoes_void(tmp_path):
    """The rewind itself is applied, and what came before its step stays."""
    run = Process(tmp_path / "run", epochs=500, pause=0, holds=[6, 18, 24, 40]).start()
    first = run.ask("tune", {"grad_clip": 1.0}, at=6)
    second = run.ask("tune", {"grad_clip": 0.5}, at=18)
    back = run.ask("rewind", {"step": second["step"] - 1}, at=24)
    assert back["status"] == "applied" and first["step"] < back["step"] < second["step"], back
    until(lambda: run.replies.read()[second["id"]]["status"] == "void")
    assert f"step {back['step']}" in run.replies.of[second["id"]]["reason"]
    assert run.replies.of[first["id"]]["status"] == "applied"
    assert run.replies.of[back["id"]]["status"] == "applied"
    run.ask("stop", at=40)
    run.end()


def test_what_a_rewind_undoes_names_the_step_gone_back_to(tmp_path, monkeypatch):
    """Also where the run has made steps before it looks at what the rewind has undone."""
    run = Steered(tmp_path / "run", hooks=[SnapshotHook(every_steps=2)])
    run.trainer.step(4)
    undone = run.ask("tune", {"grad_clip": 0.5})
    with monkeypatch.context() as busy:
        busy.setattr(CommandIntake, "note_rewinds", lambda intake, trainer: None)
        run.trainer.rewind(4)
        run.trainer.step(2)
    run.attendant.look()
    run.trainer.step(1)
    until(lambda: run.replies.read()[undone["id"]]["status"] == "void")
    assert run.replies.of[undone["id"]]["reason"] == "the run went back to step 4, before it"
    run.trainer.close()


@pytest.mark.slow
def test_a_killed_run_goes_on_and_says_what_is_void(tmp_path):
    """What came after the last checkpoint is void;
    what was sent while nobody was there is done once."""
    run = Process(tmp_path / "run", epochs=15, every=20, pause=0, holds=[2, 25, 30, 50]).start()
    early = run.ask("tune", {"grad_clip": 1.0}, at=2)
    late = run.ask("tune", {"grad_clip": 0.5}, at=25)
    assert early["status"] == late["status"] == "applied"
    assert early["step"] < 20 < late["step"] < 30
    run.reach(30)
    run.kill()
    waiting = run.send("note", {"text": "sent to nobody"})
    run.go_on(30)
    run.start()
    until(lambda: run.replies.read().get(waiting, {}).get("status") == "applied")
    assert run.replies.read()[late["id"]]["status"] == "void"
    assert "step 20" in run.replies.of[late["id"]]["reason"]
    assert run.replies.of[early["id"]]["status"] == "applied"
    again = run.ask("tune", {"grad_clip": 0.7}, at=50)
    found = run.end()
    commands = [entry["command"] for entry in found["journal"]]
    assert commands == [early["id"], waiting, again["id"]]
    assert found["weights"] == steered.replayed(tmp_path / "run", 15)["weights"]


@pytest.mark.slow
def test_a_command_that_was_taken_and_not_answered_is_answered_by_the_next_process(tmp_path):
    """Once: it stands in `taken`, and its reply does not."""
    run = Process(tmp_path / "run", epochs=8, every=4, pause=0, holds=[9]).start()
    run.reach(9)
    run.kill()
    request = Request("note", {"text": "taken"}, "shell")
    run.control.send(request)
    os.replace(run.control.path / "commands" / f"{request.id}.json",
               run.control.path / "taken" / f"{request.id}.json")
    run.go_on(9)
    known = run.start().replies.wait(request.id, 300)
    found = run.end()
    assert known["status"] == "applied"
    assert [entry["command"] for entry in found["journal"]] == [request.id]


def test_what_lay_there_before_the_run_began_is_void(tmp_path):
    control = ControlFolder(tmp_path / "run")
    (tmp_path / "run").mkdir()
    control.make()
    sent = control.send(Request("stop", source="shell"))
    trainer = make(tmp_path / "run")
    trainer.fit()
    assert trainer.state == "finished" and Replies(control).read()[sent]["status"] == "void"
    trainer.close()


@pytest.mark.slow
def test_a_held_script_is_resumed_from_outside(tmp_path):
    """`fit()` of a script with a workspace waits in a pause: other processes can let it go on."""
    run = Process(tmp_path / "run", epochs=8, pause=0, holds=[2]).start()
    paused = run.ask("pause", at=2)
    assert paused["status"] == "applied" and run.running.poll() is None
    until(lambda: run.control.status()["state"] == "paused")
    held = run.step()
    assert run.ask("step", {"n": 3})["status"] == "applied"
    until(lambda: run.control.status()["state"] == "paused" and run.step() == held + 3)
    assert run.ask("note", {"text": "still paused"})["step"] == held + 3
    assert run.running.poll() is None
    assert run.ask("resume")["status"] == "applied"
    run.end()


def test_a_disk_that_takes_nothing_ends_nothing(tmp_path):
    """The run goes on; what could not be written is answered when the disk takes it again."""
    run = Steered(tmp_path / "run", epochs=2)
    reply = run.control.reply
    broken = {"on": True}
    inbox = run.attendant.intake.inbox
    def fails(*lines):
        if broken["on"]:
            raise OSError(28, "No space left on device")
        return reply(*lines)
    inbox.control.reply = fails
    sent = run.control.send(Request("note", {"text": "x"}, "shell"))
    with pytest.warns(UserWarning, match="No space left"):
        run.attendant.look()
    assert run.trainer.step(2).steps == 5
    broken["on"] = False
    run.attendant.look()
    assert run.wait(sent)["status"] == "applied"
    run.trainer.close()


def test_a_running_run_says_to_which_steps_it_can_go_back(tmp_path):
    """Its status is written at each look; the steps were looked up only after two quiet seconds,
    which never came."""
    trainer = make(tmp_path / "run", epochs=10**6,
                   hooks=[SnapshotHook(every_steps=2, every_epochs=None),
                          LambdaHook(after_step=lambda trainer: time.sleep(0.002))])
    trainer.start()
    control = ControlFolder(tmp_path / "run")
    until((control.path / "status.json").exists)
    until(lambda: len(control.status()["rewind_points"]) > 3)
    status = control.status()
    assert status["state"] == "running" and status["rewind_points"][0] == 0
    trainer.close()


MAKER = """
import sys
from small_runs import make
from trainer_nb import CheckpointHook
trainer = make(workspace="run", hooks=[CheckpointHook(every_steps=2)], max_steps=int(sys.argv[1]))
trainer.fit()
if sys.argv[2:]:
    trainer.rewind(10)
    trainer.fit()
"""


@pytest.mark.slow
def test_who_only_opens_a_finished_run_is_not_its_maker(tmp_path):
    """`prove` and the way to resume name the program that made the last steps."""
    paths = [os.path.dirname(steered.__file__), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, paths))

    def started(name, steps, *more):
        (tmp_path / name).write_text(MAKER)
        warm.run([sys.executable, name, str(steps), *more], cwd=tmp_path, check=True,
                 env=os.environ | {"PYTHONPATH": path}, capture_output=True, timeout=300)
        found = ControlFolder(tmp_path / "run").status()
        assert found["position"]["step"] == max(steps, 8) and found["command"][1:] == (
            found["arguments"])
        return found["arguments"]

    assert started("first.py", 8) == ["first.py", "8"]
    assert started("second.py", 8) == ["first.py", "8"]
    assert started("second.py", 12) == ["second.py", "12"]
    assert started("first.py", 12) == ["second.py", "12"]
    assert started("third.py", 12, "rewind") == ["third.py", "12", "rewind"]
