"""A script that a notebook starts: on its own, its output in its folder, and found again by its
run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import warm
from steered import until

import trainer_nb
from trainer_nb.folder.control import started
from trainer_nb.support.files import NotPlainError
from trainer_nb.folder.layout import FolderTakenError, hold
from trainer_nb.remote import launch_script
from trainer_nb.remote.launch_script import command_line, free_folder, launch, script_environment

pytestmark = pytest.mark.slow

TRAIN = """
import json, os, sys, time, torch
from trainer_nb import CheckpointHook, Hook, Trainer
torch.set_num_threads(1)
if "fail" in sys.argv:
    raise ZeroDivisionError("mine")

class Ticks(Hook):
    def after_step(self, trainer):
        print("step", trainer.step_state.optimizer_step)
        if "slow" in sys.argv:
            time.sleep(0.02)

x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
hooks = [Ticks(), CheckpointHook()] if "resume" in sys.argv else [Ticks()]
trainer = Trainer(torch.nn.Linear(4, 1), train_dl=torch.utils.data.DataLoader(data, 8),
                  loss_fn=torch.nn.MSELoss(), hooks=hooks,
                  epochs=10**6 if "slow" in sys.argv else 1,
                  device="cpu", progress=False, seed=0,
                  workspace=sys.argv[sys.argv.index("--workspace") + 1],
                  engine="accelerate" if "RANK" in os.environ else "local")
trainer.fit()
print("ranks", trainer.step_state.num_processes)
"""


BEFORE = set()  # processes that other tests have started


def children():
    """The processes that this one has started in a test, and not waited for."""
    found = {int(each.name) for each in Path("/proc").iterdir()
             if each.name.isdigit() and parent_of(each) == os.getpid()}
    return sorted(found - BEFORE)


def parent_of(folder):
    """The parent of a process, from its folder in /proc."""
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


FORKS = """
import os, random, runpy, socket, sys
while True:
    port = random.SystemRandom().randrange(20_000, 32_000)  # which nobody gets unasked
    try:
        socket.create_server(("127.0.0.1", port)).close()
        break
    except OSError:
        continue
number, sys.argv = int(sys.argv[1]), sys.argv[2:]
ranks = []
for rank in range(number):
    ranks.append(os.fork())
    if not ranks[-1]:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(number),
                       "LOCAL_WORLD_SIZE": str(number), "TORCHELASTIC_RUN_ID": "none",
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        sys.path.insert(0, os.getcwd())
        runpy.run_path(sys.argv[0], run_name="__main__")
        break
else:
    for rank in ranks:
        os.waitpid(rank, 0)
"""


def popen(command, **settings):
    """A script begins with torch in memory: as if by Python, or by torchrun."""
    if command[0] != sys.executable:
        return subprocess.Popen(command, **settings)
    if command[1:4] == ["-m", "torch.distributed.run", "--standalone"]:
        assert command[4] == "--nproc-per-node"
        command = [command[0], "-c", FORKS, *command[5:]]
    unbuffered = ["-u"] if settings["env"].get("PYTHONUNBUFFERED") else []
    return warm.Popen([command[0], *unbuffered, *command[1:]], **settings)


def launched(*words, workspace="runs/exp1", **settings):
    """The run of a script, however busy the machine is."""
    return launch(*words, workspace=workspace, **{"timeout": 10**6, **settings})


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder with a script; every process started from it is ended."""
    warm.run([sys.executable, "-c", ""])  # the server is none of them
    monkeypatch.setattr(launch_script, "subprocess", SimpleNamespace(
        Popen=popen, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT))
    BEFORE.clear()
    BEFORE.update(children())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    root = Path(trainer_nb.__file__).parents[1]  # a copy, where mistakes are planted
    monkeypatch.setenv("PYTHONPATH", f"{root}:{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "train.py").write_text(TRAIN)
    yield tmp_path
    for each in Path("/proc").iterdir():
        try:
            ours = (each.name.isdigit() and int(each.name) != os.getpid()
                    and (each / "cwd").readlink() == tmp_path)
        except OSError:
            continue
        if ours:
            os.kill(int(each.name), signal.SIGKILL)
    until(lambda: children() == [])


def steps(folder="runs/exp1"):
    """The steps that the script has made so far, as its output says."""
    path = Path(folder, "output.txt")
    return path.read_text().count("step ") if path.exists() else 0


def status(folder="runs/exp1"):
    """What the run says of itself."""
    return json.loads(Path(folder, "control", "status.json").read_text())


KERNEL = """
import signal, sys, time
# ignored where a shell starts jobs in the background
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from trainer_nb import launch
run = launch("train.py", "slow", workspace="runs/exp1")
print("attached", flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("end",
                         [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long),
                          pytest.param(signal.SIGHUP, marks=pytest.mark.long)],
                          ids=["kill", "interrupt", "hang up"])
def test_a_script_outlives_the_process_that_has_started_it(here, end):
    """Whether that is killed, or its whole group gets a signal;
    the script has a session of its own, and closed input."""
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True,
                              start_new_session=True)  # in it the script is a new interpreter
    assert kernel.stdout.readline() == "attached\n"
    process = status()["process"]
    os.killpg(kernel.pid, end) if end != signal.SIGKILL else kernel.kill()
    assert kernel.wait(300) != 0
    kernel.stdout.close()
    before = steps()
    until(lambda: steps() > before + 20)
    assert os.getsid(process["pid"]) == process["pid"]
    assert started(process["pid"]) == process["started"]
    assert os.readlink(f"/proc/{process['pid']}/fd/0") == os.devnull


def test_output_is_appended_and_private(here):
    """Both streams, in the order in which they were written;
    what an earlier run wrote stays before it."""
    (here / "runs/exp1").mkdir(parents=True)
    run = launched("train.py", "slow")
    until(lambda: steps() > 3)
    assert oct(Path("runs/exp1/output.txt").stat().st_mode)[-3:] == "600"
    os.kill(status()["process"]["pid"], signal.SIGKILL)
    until(lambda: children() == [])  # nothing is left in the system's table
    before = Path("runs/exp1/output.txt").read_text()
    assert before.startswith("step 1\nstep 2\n") and run.path == Path("runs/exp1").absolute()
    with pytest.raises(RuntimeError, match=r"exit code 1[\s\S]*ZeroDivisionError: mine") as failed:
        launched("train.py", "fail")
    after = Path("runs/exp1/output.txt").read_text()
    assert after.startswith(before + "Traceback") and "step" not in str(failed.value)


def test_a_script_that_fails_at_once(here):
    """The end of its output is the error, also where it ends by a signal or without a word."""
    with pytest.raises(RuntimeError,
                       match=r"exit code 1\) before it had a run[\s\S]*ZeroDivisionError: mine"):
        launched("train.py", "fail")
    for source, words in [("import os; os.kill(os.getpid(), 9)",
                           r"exit code -9.*--workspace[\s\S]*\(nothing\)"),
                          ("input()", "EOFError"), ("print('x' * 10**6)", r"exit code 0")]:
        (here / "train.py").write_text(source)
        with pytest.raises(RuntimeError, match=words) as failed:
            launched("train.py")
        assert len(str(failed.value)) < 6000
    with pytest.raises(FileNotFoundError):
        launch("train.py", workspace="runs/exp2", python="no/such/python")
    until(lambda: children() == [])


def test_a_folder_in_use_is_refused_before_anything_is_started(here):
    """By a trainer of this process, by the launched script, and by neither afterwards."""
    class Owner:
        driver = SimpleNamespace(driven=True)

    owner = Owner()
    lock = hold("runs/exp1", owner)
    with pytest.raises(FolderTakenError, match="belongs to another trainer of this process"):
        launched("train.py")
    lock.close()
    assert not Path("runs/exp1/output.txt").exists()
    followed = launched("train.py", "slow")
    process, before = status()["process"], Path("runs/exp1/.lock").read_text()
    with pytest.raises(FolderTakenError, match=f"belongs to process {process['pid']} "):
        launched("train.py", "slow", workspace=here / "runs" / "exp1")
    assert Path("runs/exp1/.lock").read_text() == before and status()["process"] == process
    os.kill(process["pid"], signal.SIGKILL)
    until(lambda: not Path(f"/proc/{process['pid']}").exists())
    again = launched("train.py", "slow", "resume")
    # it does not take half a second to see it
    assert again is followed and again.standing == "running"
    assert status()["process"] != process


def test_a_script_whose_run_is_over_may_end_before_the_next_one(here, monkeypatch):
    """The folder is its own until its last line: launch() waits for it, and not for ever."""
    (here / "train.py").write_text("import torch; torch.manual_seed(0)" + TRAIN + """
while not os.path.exists("go"):
    time.sleep(0.01)
os.unlink("go")
print("last line")
""")
    run, output = launched("train.py", "resume"), Path("runs/exp1/output.txt")
    until(lambda: run.standing == "ended")
    looks, now = [], [0.0]

    def sleep(seconds):
        """Between two looks at the folder; the first script goes on at the third one."""
        looks.append("last line" in output.read_text())
        assert len(looks) < 10_000
        if len(looks) == 3:
            Path("go").touch()
        now[0] += seconds
        time.sleep(0.01)

    monkeypatch.setattr(launch_script, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    launched("train.py", "resume")
    assert looks[:3] == [False] * 3 and output.read_text().count("last line") == 1
    until(lambda: run.standing == "ended")
    now[0] = 0.0
    monkeypatch.setattr(launch_script.time, "monotonic", lambda: now[0])
    with pytest.raises(FolderTakenError):
        free_folder("runs/exp1", patience=0.2)
    assert 0.2 <= now[0] < 0.3
    Path("go").touch()
    until(lambda: children() == [])


def test_a_run_that_does_not_resume_is_found_beside(here, capsys):
    """The records in exp1 are of another run: the new one is in exp1-2, and that is said."""
    launched("train.py")
    until(lambda: "ranks 1" in Path("runs/exp1/output.txt").read_text())
    until(lambda: children() == [])
    run = launched("train.py")
    assert Path(run.path).name == "exp1-2" and "this one is in" in capsys.readouterr().out


def test_a_run_that_another_process_begins_there_is_not_taken_for_its_own(here):
    """The folder was free when the script was started, and another script was faster."""
    waits = "import os, time\nwhile not os.path.exists('runs/exp1/{}'):\n    time.sleep(0.05)\n"
    (here / "other.py").write_text(waits.format("output.txt") + TRAIN)
    (here / "train.py").write_text(waits.format("control/status.json") + TRAIN)
    command = [sys.executable, "other.py", "slow", "resume", "--workspace", "runs/exp1"]
    other = warm.Popen(command, stdout=subprocess.DEVNULL)
    with pytest.raises(RuntimeError, match=f"exit code 1[\\s\\S]*belongs to process {other.pid} "):
        launched("train.py", "slow", "resume")
    assert other.poll() is None and status()["process"]["pid"] == other.pid
    other.kill()
    other.wait()


@pytest.mark.parametrize("launcher", ["as torchrun does", pytest.param(
    "torchrun", marks=pytest.mark.long)])
def test_two_processes(here, launcher, monkeypatch):
    """By torchrun: the run is that of the first rank, and makes its steps with both."""
    if launcher == "torchrun":
        monkeypatch.setattr(launch_script, "subprocess", subprocess)
    run = launched("train.py", num_processes=2)
    output = Path(run.path) / "output.txt"
    until(lambda: output.read_text().count("ranks 2") == 2)
    # what starts it again is the launcher
    assert status()["command"] == command_line("train.py", ["--workspace", "runs/exp1"], 2)
    assert status()["arguments"] == ["train.py", "--workspace", "runs/exp1"]
    until(lambda: children() == [])


def test_a_script_that_takes_long_goes_on(here, monkeypatch):
    """The error says how to attach later."""
    (here / "train.py").write_text("""
import os, time
print("reading data")
while not os.path.exists("go"):
    time.sleep(0.01)
""" + TRAIN)
    output, now = Path("runs/exp1/output.txt"), [0.0]

    def sleep(seconds):
        """Time passes once the script has said something."""
        time.sleep(0.01)
        now[0] += 2.0 if output.exists() and "reading data" in output.read_text() else 0.0

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    monkeypatch.setattr(launch_script, "time", clock)
    with pytest.raises(TimeoutError,
                       match=r"goes on, and has had no run in 1 s; once it has: "
                             r"attach\([\s\S]*reading data"):
        launched("train.py", "slow", timeout=1)
    Path("go").touch()
    until(lambda: steps() > 3)


def test_nothing_is_written_through_a_link(here):
    """The file of the output is a plain file of this user."""
    (here / "runs/exp1").mkdir(parents=True)
    (here / "mine.txt").write_text("mine")
    (here / "runs/exp1/output.txt").symlink_to(here / "mine.txt")
    with pytest.raises(NotPlainError, match="a link"):
        launched("train.py")
    assert (here / "mine.txt").read_text() == "mine" and children() == []


def test_the_environment_of_a_script(monkeypatch):
    """What a kernel sets for its own output stays behind;
    what the person sets goes along and comes last."""
    for name, value in (("MPLBACKEND", "module://matplotlib_inline.backend_inline"),
                        ("FORCE_COLOR", "1"), ("JPY_PARENT_PID", "5"),
                        ("MINE", "1")):
        monkeypatch.setenv(name, value)
    found = script_environment({"MINE": 2, "PYTHONUNBUFFERED": ""})
    assert not found.keys() & {"MPLBACKEND", "FORCE_COLOR", "JPY_PARENT_PID"}
    assert found["MINE"] == "2"
    assert found["PYTHONUNBUFFERED"] == "" and script_environment()["PYTHONUNBUFFERED"] == "1"
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert script_environment()["MPLBACKEND"] == "agg"


def test_the_command_in_the_status_starts_the_run_again(here):
    """Folder included: it is among the arguments, as `--workspace` or where the script wants it."""
    launched("train.py", "slow", "resume")
    first = status()
    os.kill(first["process"]["pid"], signal.SIGKILL)
    until(lambda: children() == [])
    again = warm.Popen(first["command"], cwd=first["folder"], stdout=subprocess.DEVNULL)
    until(lambda: status()["process"]["pid"] == again.pid)
    again.kill()
    again.wait()
    (here / "train.py").write_text(TRAIN.replace('sys.argv[sys.argv.index("--workspace") + 1]',
                                                 'sys.argv[2].removeprefix("out=")'))
    found = launched("train.py", "resume", "out={workspace}")
    assert found.path == Path("runs/exp1").absolute()


def test_the_public_name_takes_functions_and_scripts(here):
    """What is for one of them is refused for the other."""
    assert trainer_nb.launch is launch
    with pytest.raises(TypeError, match='workspace="runs/first" is missing'):
        launch("train.py")
    with pytest.raises(TypeError, match="python= is for a script"):
        launch(print, python="python")
    with pytest.raises(TypeError, match="the path of a script, or a function"):
        launch(5)
    with pytest.raises(ValueError, match="num_processes=0"):
        launch(print, num_processes=0)
    with pytest.raises(ValueError, match="num_processes=0"):
        launch("train.py", num_processes=0, workspace="runs/exp1")
    assert not Path("runs").exists()
