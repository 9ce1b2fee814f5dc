"""trainer-nb against training scripts in other processes;
its full-screen view in a pseudo terminal."""

import json
import os
import re
import signal
import subprocess
import sys
import termios
from contextlib import contextmanager

import pexpect
import pytest
import warm
from steered import until
from test_cli import COMMANDS, PROGRAM, made, program, shell

from trainer_nb.folder.control import ControlFolder, incoming

pytestmark = pytest.mark.slow

SCRIPT = '''
import sys, time
from pathlib import Path
import torch
from trainer_nb import CheckpointHook, EMAHook, LambdaHook, SnapshotHook, Trainer

torch.manual_seed(0)
inputs = torch.randn(256, 3)
data = torch.utils.data.TensorDataset(inputs, inputs[:, :1])
model = torch.nn.Linear(3, 1)
def wait(trainer):
    time.sleep(0.01)
    while Path("hold").exists() and trainer.step_state.optimizer_step >= 3:
        time.sleep(0.01)
slow = LambdaHook(name="slow", after_step=wait)
trainer = Trainer(model, train_dl=torch.utils.data.DataLoader(data, batch_size=8),
                  valid_dl=torch.utils.data.DataLoader(data, batch_size=64),
                  loss_fn=torch.nn.MSELoss(), optim=torch.optim.SGD(model.parameters(), 0.001),
                  epochs=int(sys.argv[1]), device="cpu",
                  progress=False, workspace="runs/exp1",
                  hooks=[CheckpointHook(), SnapshotHook(), EMAHook(decay=0.9), slow])
trainer.fit()
'''


@contextmanager
def training(folder, epochs=1_000_000):
    """A script that trains in a process of its own, below `folder`."""
    (folder / "train.py").write_text(SCRIPT)
    with warm.Popen([sys.executable, "train.py", str(epochs)], cwd=folder, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True) as process:
        control = ControlFolder(folder / "runs" / "exp1")

        def begun():
            assert process.poll() is None, process.stdout.read()
            return ((control.path / "offer.json").exists()
                    and status(folder)["status"]["state"] == "running")

        try:
            until(begun)
            yield process
        finally:
            process.kill()


def status(folder):
    """What `status --json` says."""
    return json.loads(shell("status", "--json", cwd=folder).stdout)


def said(folder, *words):
    """Exit code and the object that a command prints with --json, once it is answered."""
    done = shell(*words, "--json", "--wait", "300", cwd=folder)
    return done.returncode, json.loads(done.stdout)


def journal(folder):
    """The entries of the journal."""
    lines = (folder / "runs" / "exp1" / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_a_script_is_steered(tmp_path):
    """Values are applied, in the journal with their reason, or refused with the run's own;
    the exit code says which."""
    with training(tmp_path) as process:
        code, found = said(tmp_path, "tune", "lr=0.002", "grad_clip=1", "ema.enabled=off",
                           "--reason", "loss rises")
        assert (code, found["status"]) == (0, "applied") and found["step"] > 0
        until(lambda: {"lr": 0.002, "grad_clip": 1,
                          "ema.enabled": False}.items() <= status(tmp_path)["tunables"].items())
        entry = next(each for each in journal(tmp_path) if each["name"] == "lr")
        assert (entry["new"], entry["source"], entry["reason"],
                entry["command"]) == (0.002, "shell", "loss rises", found["id"])
        assert said(tmp_path, "tune", "grad_clip=none")[0] == 0
        until(lambda: status(tmp_path)["tunables"]["grad_clip"] is None)

        code, found = said(tmp_path, "tune", "lr=-1")
        assert (code, found["status"]) == (2, "refused") and "-1" in found["reason"]
        code, found = said(tmp_path, "tune", "lr=0.1", "--max-age-steps", "0")
        assert code == 2 and "too late" in found["reason"]

        assert said(tmp_path, "pause")[0] == 0 and status(tmp_path)["standing"] == "paused"
        step = status(tmp_path)["status"]["position"]["step"]
        assert said(tmp_path, "step", "7")[0] == 0
        until(lambda: status(tmp_path)["standing"] == "paused"
                 and status(tmp_path)["status"]["position"]["step"] == step + 7)
        assert said(tmp_path, "note", "half time")[0] == 0 and said(tmp_path, "checkpoint")[0] == 0
        until(lambda: status(tmp_path)["status"]["last_saved"][0] == step + 7)

        points = status(tmp_path)["status"]["rewind_points"]
        code, found = said(tmp_path, "rewind", points[0])
        assert code == 0
        assert found["step"] == points[0] == status(tmp_path)["status"]["position"]["step"]
        assert said(tmp_path, "validate")[0] == said(tmp_path, "resume")[0] == 0
        until(lambda: status(tmp_path)["status"]["position"]["step"] > points[0])
        assert said(tmp_path, "stop")[0] == 0
        assert process.wait(300) == 0
    assert status(tmp_path)["standing"] == "ended"
    code, found = said(tmp_path, "pause")
    assert code == 3 and f"cd {tmp_path} && {sys.executable} train.py 1000000" in found["reason"]
    shown = shell("log", "-n", "2000", cwd=tmp_path).stdout
    for text in ("(initial) → 0.002 (shell, ", ": loss rises)", "note: half time",
                 "command tune refused", "train/loss ", "undone"):
        assert text in shown, shown


def test_a_killed_script_is_lost(tmp_path):
    """It wrote `running` and nothing after that: no command is sent to it."""
    with training(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = shell("tune", "lr=0.1", cwd=tmp_path)
        assert done.returncode == 3 and "is gone; it was started with: cd " in done.stderr
        assert status(tmp_path)["standing"] == "lost"
        assert json.loads(shell("ls", "--json", cwd=tmp_path).stdout)["standing"] == "lost"


def test_a_stopped_process_gives_no_answer(tmp_path):
    """It is there, and does not answer in time:
    the command is withdrawn, and has no effect afterwards."""
    with training(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        stat = f"/proc/{process.pid}/stat"
        until(lambda: open(stat).read().rpartition(")")[2].split()[0] == "T")
        try:
            done = shell("tune", "lr=0.5", "--wait", "0.2", cwd=tmp_path)
        finally:
            process.send_signal(signal.SIGCONT)
        assert done.returncode == 3 and "withdrawn" in done.stderr
        assert said(tmp_path, "note", "after")[0] == 0
        assert status(tmp_path)["tunables"]["lr"] != 0.5


@pytest.mark.long
def test_two_runs_are_compared(tmp_path):
    """What was changed, and what came of it."""
    for name, rate in (("a", "0.002"), ("b", "0.02")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "hold").touch()
        with training(folder, epochs=4) as process:
            shell("tune", f"lr={rate}", "--wait", "0", cwd=folder)
            until(lambda: not incoming(ControlFolder(folder / "runs/exp1")))
            (folder / "hold").unlink()
            assert process.wait(300) == 0
    found = json.loads(shell("diff", "a/runs/exp1", "b/runs/exp1", "--json", cwd=tmp_path).stdout)
    assert found["configuration"] == {}
    assert list(found["tunables"]) == ["lr"] and len(found["journal"]) == 2
    left, right = found["results"]["best valid/loss"]
    assert right < left and found["results"]["step"] == [128, 128]
    shown = shell("diff", "a/runs/exp1", "b/runs/exp1", cwd=tmp_path).stdout
    assert re.search(r"lr +none → 0.002 +none → 0.02", shown) and f"{right - left:.3g}"[:4] in shown


# Full screen

PAGE = "\x1b[?1049h"  # to the other page of a terminal, and back
BACK = "\x1b[?1049l"


@contextmanager
def screen(folder, rows=24, columns=80, words=("watch",)):
    """`trainer-nb watch` in a pseudo terminal; the terminal must be as before at the end."""
    terminal = pexpect.spawn(sys.executable, ["-c", PROGRAM, *words], cwd=str(folder),
                             dimensions=(rows, columns), timeout=300,
                             encoding="utf-8",
                             env=os.environ | {"TERM": "xterm-256color", "PYTHONUTF8": "1",
                                               "COLUMNS": "100", "LINES": "50"})
    before = termios.tcgetattr(terminal.child_fd)
    try:
        yield terminal
        terminal.expect(pexpect.EOF)
        terminal.wait()
        assert termios.tcgetattr(terminal.child_fd) == before
    finally:
        terminal.close(force=True)


def restored(terminal):
    """Whether everything after the last page is on the first one, with a cursor."""
    text = terminal.before
    return (BACK in text and PAGE not in text.split(BACK)[-1]
            and text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"))


@pytest.mark.parametrize(("rows", "columns"),
                         [(24, 80), pytest.param(12, 40, marks=pytest.mark.long)])
def test_keys_steer_a_run(tmp_path, rows, columns):
    """Pause, step, checkpoint, resume and stop, with their answers;
    q leaves the terminal as it was."""
    with training(tmp_path) as process, screen(tmp_path, rows, columns) as terminal:
        terminal.expect_exact(PAGE)
        terminal.expect("running")
        terminal.expect("[▁-█]")  # a curve
        terminal.send("p")
        terminal.expect("pause: applied at step")
        assert status(tmp_path)["standing"] == "paused"
        step = status(tmp_path)["status"]["position"]["step"]
        terminal.send("s")
        terminal.expect("step: applied")
        until(lambda: status(tmp_path)["status"]["position"]["step"] == step + 1)
        terminal.send("c")
        terminal.expect("checkpoint: applied")
        terminal.send("\x1b[A")  # an arrow: its letters are not keys
        terminal.send("r")
        terminal.expect("resume: applied")
        terminal.send("x")
        terminal.expect("stop the run")
        terminal.send("nc")  # no: the run makes a checkpoint
        terminal.expect("checkpoint: applied")
        assert status(tmp_path)["standing"] == "running"
        terminal.send("xy")
        terminal.expect("stop: (applied|sent)")
        assert process.wait(300) == 0
        terminal.expect("ended")
        terminal.send("q")
        terminal.expect_exact(BACK)
        terminal.before = BACK + terminal.before
    assert terminal.exitstatus == 0
    assert [each["kind"] for each in journal(tmp_path) if each["source"] == "shell"][-1] == "stop"


def test_what_waits_for_a_person_is_shown_and_decided(tmp_path):
    """The oldest command with its reason, without letters that steer the terminal;
    a and d decide about the one on the screen."""
    takes = *COMMANDS, "approve", "decline"
    asked = [{"id": f"3f2a9{number}", "name": "tune", "values": {"lr": 0.01},
              "source": "agent:night", "reason": why}
             for number, why in enumerate(("too \x1b[2Jfast", "later"))]
    control = made(tmp_path / "runs" / "exp1", waiting=asked, commands=takes)
    commands = control.path / "commands"

    def sent(count):
        """What was sent, once there are n."""
        until(lambda: len(list(commands.glob("*.json"))) == count)
        found = [json.loads(path.read_text()) for path in sorted(commands.glob("*.json"))]
        return sorted((each["name"], each["values"]["id"]) for each in found)

    with screen(tmp_path, 24, 120) as terminal:
        terminal.expect_exact("a approve, d decline, 1 more: ")
        terminal.expect(r"3f2a90: tune lr=0\.01 \(agent:night: too (\S*)fast\)")
        assert "\x1b" not in terminal.match[1]
        terminal.send("a")
        assert sent(1) == [("approve", "3f2a90")]
        made(tmp_path / "runs" / "exp1", waiting=asked[1:], commands=takes)
        terminal.expect(r"3f2a91: tune lr=0\.01 \(agent:night: later\)")
        terminal.send("d")
        assert sent(2) == [("approve", "3f2a90"), ("decline", "3f2a91")]
        made(tmp_path / "runs" / "exp1", waiting=[], commands=takes, state="paused")
        terminal.expect("paused")  # the screen shows what is in the file now
        terminal.send("adq")
    assert len(list(commands.glob("*.json"))) == 2


def test_the_journal_is_read_again_where_it_has_changed_and_only_there(tmp_path, monkeypatch):
    """Four times a second a long journal would cost more than the run."""
    from trainer_nb.core.journal import Journal
    from trainer_nb.remote import watch
    from trainer_nb.folder.reader import RunFiles

    made(tmp_path / "a")
    written, reads, text = Journal({"seed": 0}), [], watch.entry_text
    monkeypatch.setattr(watch, "entry_text", lambda entry: reads.append(entry) or text(entry))
    data = watch.WatchData(RunFiles(tmp_path / "a"))
    data.read()
    assert data.journal == [] and data.problem == ""
    for number in (1, 2):
        written.record("tune", "lr", None, 0.1 * number, step=number)
        written.save(tmp_path / "a" / "journal.jsonl")
        before = len(reads)
        for _ in range(5):
            data.read()
        assert len(data.journal) == number and len(reads) == before + number


@pytest.mark.parametrize("end", ["q", "ctrl-c", "terminate", "folder", "closed"])
@pytest.mark.long
def test_the_terminal_is_restored(tmp_path, end):
    """On q, Ctrl-C, SIGTERM, and when the folder of the run is moved away;
    no key reaches the shell."""
    with training(tmp_path):
        with screen(tmp_path) as terminal:
            terminal.expect("running")
            if end == "q":
                terminal.send("qecho")
            elif end == "ctrl-c":
                terminal.send("\x03")
            elif end == "terminate":
                terminal.kill(signal.SIGTERM)
            elif end == "folder":
                os.rename(tmp_path / "runs" / "exp1", tmp_path / "moved")
                (tmp_path / "runs" / "exp1").mkdir(exist_ok=True)  # as a checkpoint would
            else:
                terminal.sendeof()
                terminal.send("q")
        assert restored(terminal)
        expected = {"q": 0, "ctrl-c": 130, "terminate": 143, "folder": 3, "closed": 0}
        assert terminal.exitstatus == expected[end]
        assert ("is gone" in terminal.before.split(BACK)[-1]) == (end == "folder")
        assert "echo" not in terminal.before


def test_rows_fit_the_screen(tmp_path):
    """No line is wrapped, also after the window has become smaller."""
    made(tmp_path / "runs" / "exp1",
         lines=[{"step": step, "train/loss": 1 / step} for step in range(1, 50)])
    with screen(tmp_path, 12, 40) as terminal:
        terminal.expect("running")
        terminal.setwinsize(6, 20)
        terminal.send("x")
        terminal.expect("stop the run")  # drawn in the new size
        terminal.send("nq")
        terminal.expect(pexpect.EOF)
        last = terminal.before.split("\x1b[H")[-1].split(BACK)[0]
        rows = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", row)
                for row in last.replace("\r", "").split("\n")]
        assert len(rows) <= 6 and max(map(len, rows)) <= 20, rows


def test_without_rich_or_a_terminal(tmp_path):
    """One line that says what to install, or what to use instead."""
    made(tmp_path / "a")
    done = program("watch", "a", cwd=tmp_path)
    assert done.returncode == 2 and "log --follow" in done.stderr
    done = program("watch", "a", cwd=tmp_path,
                   code="import sys; sys.modules['rich.console'] = None; " + PROGRAM)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "pip install 'trainer_nb[cli]'" in done.stderr
