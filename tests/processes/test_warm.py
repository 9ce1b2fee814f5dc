"""A warm child is to its parent what a new interpreter would be."""

import os
import signal
import subprocess
import sys

import pytest
import warm

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys, torch
print(sys.argv, __name__, sys.path[0], os.getcwd(), os.environ.get("LETTER"), __file__)
print(os.getppid(), input(), os.getsid(0) == os.getpid(), file=sys.stderr)
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


@pytest.mark.parametrize("way", ["raise", "signal", "interrupt", "words", "exit"])
def test_a_warm_child_is_like_a_new_interpreter(way, tmp_path):
    """Arguments, folder, environment, streams, session, and every way to end."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), way]
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "input": "a line\n",
               "env": os.environ | {"LETTER": "b"}, "start_new_session": True}
    warm_one, new_one = (each(command, **options) for each in (warm.run, subprocess.run))
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
