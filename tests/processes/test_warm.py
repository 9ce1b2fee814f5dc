"""A warm child is to its parent what a new interpreter would be."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
import warm
import warm_kernels
from kernel_client import client_of
from live_page import later

pytestmark = pytest.mark.slow

PROGRAM = """
import atexit, os, sys, threading, torch
atexit.register(print, "the end")
print(sys.argv, __name__, sys.path[0], os.getcwd(), os.environ.get("LETTER"), __file__)
print(os.getppid(), input(), os.getsid(0) == os.getpid(), file=sys.stderr)
threading.Timer(0.2, print, ["a thread"]).start()
def deeper(way):
    if way == "raise":
        raise ValueError("a mistake")
    if way == "signal":
        os.kill(os.getpid(), 15)
    if way == "interrupt":
        os.kill(os.getpid(), 2)
    sys.exit(way if way == "words" else 7)
deeper(sys.argv[1])
"""


@pytest.mark.parametrize(("way", "quick_end"), [
    ("raise", False), ("signal", False), ("exit", True),
    *(pytest.param(way, False, marks=pytest.mark.long) for way in ("interrupt", "words", "exit")),
    *(pytest.param(way, True, marks=pytest.mark.long) for way in ("raise", "words"))])
def test_a_warm_child_is_like_a_new_interpreter(way, quick_end, tmp_path):
    """Arguments, folder, environment, streams, session, and every way to end."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), way]
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "input": "a line\n",
               "env": os.environ | {"LETTER": "b"}, "start_new_session": True}
    # a shell that starts the tests in the background has children ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    warm_one = warm.run(command, quick_end=quick_end, **options)
    new_one = subprocess.run(command, **options)
    signal.signal(signal.SIGINT, before)
    assert warm_one.returncode == new_one.returncode
    assert warm_one.stdout == new_one.stdout
    assert warm_one.stderr == new_one.stderr


def test_code_a_module_and_signals():
    """`-c` and `-m`; a signal from outside ends it."""
    def outcome(start, *words):
        done = start([sys.executable, *words], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    for words in (["-c", "import sys; print(sys.argv, sys.path[0]); 1 / 0", "a"],
                  ["-m", "trainer_nb", "tnue"]):
        assert outcome(warm.run, *words) == outcome(subprocess.run, *words)
    code = "import time; print('here', flush=True); time.sleep(600)"
    with warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"here\n" and process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_a_file_given_as_a_stream_stays_open(tmp_path):
    with open(tmp_path / "output", "w+") as file:
        warm.run([sys.executable, "-c", "print('there')"], stdout=file)
        file.write("here\n")
    assert (tmp_path / "output").read_text() == "there\nhere\n"


def test_what_a_warm_child_cannot_be_is_refused():
    with pytest.raises(ValueError, match="use subprocess"):
        warm.run(["ls"])


@pytest.mark.parametrize("killed", ["kernel, stand-in", "stand-in, kernel", "stand-in"])
def test_kernels_still_start_after_some_were_killed(killed, tmp_path):
    """What is killed at once is seen at once by the nursery, which must outlive it."""
    *command, _, _ = warm_kernels.command()
    nursery = psutil.Process(warm_kernels.Nursery.of_this_process().process.pid)
    before = set(nursery.children())
    stand_in = subprocess.Popen([*command, "-f", tmp_path / "kernel.json"], cwd=tmp_path)
    assert later((tmp_path / "kernel.json").exists)
    kernel, = set(nursery.children()) - before
    nursery.suspend()
    for each in killed.split(", "):
        process = kernel if each == "kernel" else psutil.Process(stand_in.pid)
        process.kill()
        assert later(lambda process=process: process.status() == psutil.STATUS_ZOMBIE)
    asked = subprocess.Popen([*command, "--version"], stdin=subprocess.DEVNULL)
    asked.kill(), asked.wait(), stand_in.wait()
    nursery.resume()
    told = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 0 and told.stdout.count(".") == 2, told


def test_a_warm_kernel_knows_the_targets_of_widgets(tmp_path):
    """A page asks one of them for the states of all widgets. Who imports ipywidgets before there is
    a kernel has none of them."""
    with client_of("python3", tmp_path) as client:
        told = client.run("import anywidget\n"
                          "print(*sorted(get_ipython().kernel.comm_manager.targets))")
    assert told.split() == ["jupyter.widget", "jupyter.widget.control"]
