"""The examples as people run them; digits.py into a pipe, in a terminal, ended by Ctrl-C."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm

pytestmark = pytest.mark.slow
MODULES = (*warm.PRELOADED, "sklearn.datasets")
ROOT = Path(__file__).parents[2]
SCRIPT = [sys.executable, str(ROOT / "examples" / "digits.py")]
NOTEBOOK_PARTS = "plotly ipywidgets anywidget IPython nbdev matplotlib".split()


def test_into_a_pipe_it_prints_plain_lines():
    """A line an epoch, no carriage return, and the validation accuracy is right."""
    done = warm.run(SCRIPT, modules=MODULES, capture_output=True, text=True, timeout=600,
                    env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stdout and "█" not in done.stdout
    epochs = re.findall(r"^epoch (\d+)/15  step", done.stdout, re.MULTILINE)
    assert epochs == [str(n) for n in range(1, 16)]
    assert float(done.stdout.rsplit(" ", 1)[1]) >= 0.95


def test_in_a_terminal_it_draws_a_bar():
    """A pseudo-terminal gets fastprogress's bar, redrawn in place."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(SCRIPT[0], [*SCRIPT, "--epochs", "2"], os.environ | {"OMP_NUM_THREADS": "1"})
    text = b""
    while True:
        ready, _, _ = select.select([terminal], [], [], 600)
        try:
            part = os.read(terminal, 65536) if ready else b""
        except OSError:  # the other side is closed
            break
        if not part:
            break
        text += part
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert re.search(r"\r \|█+\| 100\.00% \[90/90", text.decode(errors="replace"))


def test_nothing_of_the_notebook_is_imported(tmp_path):
    """The modules loaded at the end of a script's run; `run_panels` alone knows when one is due."""
    code = (f"import sys; sys.path.append({str(ROOT / 'examples')!r}); sys.argv = ['digits.py', "
            f"'--epochs', '1']\n"
            "import digits; digits.main()\nprint('LOADED', *sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split("LOADED", 1)[1].split()
    assert "torch" in loaded and "trainer_nb.trainer" in loaded
    assert [name for name in NOTEBOOK_PARTS if name in loaded] == []
    assert [name for name in loaded if name.startswith("trainer_nb.panel.")] == [
        "trainer_nb.panel.run_panels"]


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_ends_on_a_whole_step(workers):
    """Ctrl-C goes to the whole process group, as in a terminal:
    the run says how to go on, the exit code is 130."""
    process = warm.Popen([*SCRIPT, "--epochs", "500", "--workers", str(workers)], modules=MODULES,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         start_new_session=True)
    for line in process.stdout:
        if line.startswith("epoch 2/"):
            break
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert re.search(
        r"interrupted after step \d+, \d+ of 500 epochs done: fit\(\) goes on from there\n"
        r"not saved: it ends with this process; trainer.save\(", out)
    assert "Traceback" not in errors


@pytest.mark.parametrize(("example", "least"),
                         [(["sam.py", "--epochs", "3", "--accumulate", "2"], 0.9),
                          (["lbfgs.py"], 0.95)], ids=["sam", "lbfgs"])
def test_steps_of_your_own(example, least):
    """SAM and LBFGS train."""
    done = warm.run([SCRIPT[0], str(ROOT / "examples" / example[0]), *example[1:]],
                    modules=MODULES, capture_output=True, text=True, timeout=600,
                    env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout and float(done.stdout.rsplit(" ", 1)[1]) >= least


@pytest.mark.parametrize("arguments", [[], ["--wide"]])
def test_the_task_says_what_it_has_learnt(arguments):
    """Both loaders with their records, and the test set once, at the end."""
    script = [sys.executable, str(ROOT / "examples" / "task_digits.py"), "--epochs", "5",
              *arguments]
    done = warm.run(script, modules=MODULES, capture_output=True, text=True, timeout=600,
                    env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^epoch \d/5 .*valid/worst_digit [\d.]+ .*noisy/worst_digit",
                          done.stdout, re.MULTILINE)) == 5
    assert float(re.search(r"^test accuracy ([\d.]+)$", done.stdout, re.MULTILINE)[1]) > 0.9
    clean, worst, noisy = map(float,
                              re.search(r"^finished: accuracy ([\d.]+), worst digit ([\d.]+), "
                                        r"noisy images ([\d.]+)$",
                                        done.stdout, re.MULTILINE).groups())
    assert worst < clean > noisy and clean > 0.9


def test_the_script_of_a_folder_goes_on_there(tmp_path):
    """Run again in its folder, it resumes."""
    script, told = [sys.executable, str(ROOT / "examples" / "train_digits.py")], []
    for arguments in (["--epochs", "1"], ["--epochs", "3", "--workspace", "runs/digits"]):
        done = warm.run([*script, *arguments], modules=MODULES, capture_output=True, text=True,
                        timeout=600, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert "finished: 45 steps" in told[0]
    assert "step 45, 1 of 3 epochs done" in told[1] and "finished: 135 steps" in told[1]
    assert os.listdir(tmp_path / "runs") == ["digits"]
    assert float(re.search(r"accuracy ([\d.]+) at step", told[1])[1]) > 0.85


@pytest.mark.long
def test_several_processes_make_the_run_of_one():
    """Started by Accelerate, and with a part of every parameter in each;
    the check sums of the weights are equal."""
    script = str(ROOT / "examples" / "several_processes.py")
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
              "--num_machines", "1", "--mixed_precision", "no",
              "--dynamo_backend", "no", script]
    parts = ["-m", "torch.distributed.run", "--nproc_per_node", "2", script]
    told = []
    for command, more in (([script, "--accumulate", "2"], {}), (launch, {}),
                          (parts, {"ACCELERATE_USE_FSDP": "true"})):
        done = subprocess.run([SCRIPT[0], *command], capture_output=True, text=True, timeout=600,
                              env=quiet | more)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.strip().splitlines()[-1])
    assert [each.partition(",")[0] for each in told] == ["1 process", "2 processes", "2 processes"]
    assert len({each.partition(",")[2] for each in told}) == 1
