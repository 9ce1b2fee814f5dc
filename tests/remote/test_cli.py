"""trainer-nb: commands reach a run in another process, exit codes, runs that are gone, and folders
that are not to be trusted."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from types import SimpleNamespace

import pexpect
import pytest

from trainer_nb.folder import control as folder_control
from trainer_nb.folder.control import (ControlFolder, Replies, incoming, started,
                                            this_process)
from trainer_nb.remote import cli, run_log

PROGRAM = "import sys; from trainer_nb.remote.cli import main; sys.exit(main())"
COMMANDS = ("tune", "pause", "resume", "step", "checkpoint", "rewind", "stop", "validate", "note",
            "record")
TUNABLES = [{"name": "lr", "kind": "float", "value": 0.1, "min": 0, "optional": True},
            {"name": "grad_clip", "kind": "float", "value": 1.0, "optional": True},
            {"name": "ema.enabled", "kind": "bool", "value": True},
            {"name": "workers", "kind": "int", "value": 3},
            {"name": "mixed_precision", "kind": "choice", "choices": [None, "bf16"], "value": None}]


def shell(*words, cwd="."):
    """What `trainer-nb WORDS` prints, and its exit code, in this process."""
    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with chdir(cwd), redirect_stdout(out), redirect_stderr(errors):
        code = cli.main(list(map(str, words)))
    said = [each.buffer.getvalue().decode() for each in (out, errors)]
    return subprocess.CompletedProcess(words, code, *said)


def program(*words, cwd=None, code=PROGRAM, **options):
    """The same in a process of its own."""
    return subprocess.run([sys.executable, "-c", code, *map(str, words)], cwd=cwd,
                          capture_output=True, text=True, timeout=300, check=False, **options)


def made(path, process=None, lines=(), commands=COMMANDS, **changes):
    """The files of a run; without `process` that of this test."""
    path.mkdir(parents=True, exist_ok=True)
    control = ControlFolder(path)
    control.make()
    control.write("status.json",
                  {"protocol": 1, "state": "running", "alive": True,
                   "process": process or this_process(), "beat": 1,
                   "name": path.name, "position": {"step": 412, "epoch": 3, "epochs": 10},
                   "rewind_points": [100, 400],
                   "command": ["python", "my train.py", "--lr", "0.1"],
                   "folder": "/data/a b"} | changes)
    control.write("offer.json",
                  {"protocol": 1, "tunables": TUNABLES,
                   "commands": {name: {} for name in commands}})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return control


def gone():
    """A process that was there."""
    with subprocess.Popen(["true"]) as process:
        return this_process() | {"pid": process.pid, "started": "1"}


# Fast, and without torch


@pytest.mark.slow
def test_no_command_imports_torch(tmp_path):
    """The program is there at once: it loads neither torch, nor numpy, nor rich."""
    made(tmp_path / "runs" / "a")
    code = PROGRAM.replace("sys.exit(main())", """
for words in (["status"], ["tune", "lr=1e-4", "--wait", "0"], ["log"], ["ls", "."]):
    print("code", main(words), "loaded", *{'torch', 'numpy', 'rich'} & sys.modules.keys())""")
    done = program(cwd=tmp_path, code=code)
    assert re.findall("code .*", done.stdout) == [
        f"code {number} loaded" for number in (0, 3, 0, 0)], done


# Which run


def test_the_run_is_found(tmp_path):
    """In its folder, as the only one below ./runs, by its name, its folder and --run;
    several are an error that names them."""
    made(tmp_path / "runs" / "a")
    for words, cwd in [([], tmp_path / "runs" / "a"), ([], tmp_path), (["a"], tmp_path),
                       (["runs/a"], tmp_path), (["--run", "runs/a"], tmp_path)]:
        found = json.loads(shell("status", *words, "--json", cwd=cwd).stdout)
        assert (found["standing"], found["status"]["position"]["step"]) == ("running", 412)
    made(tmp_path / "runs" / "b")
    done = shell("status", cwd=tmp_path)
    assert done.returncode == 3 and "runs/a, runs/b" in done.stderr
    done = shell("pause", "runs/aa", cwd=tmp_path)
    assert done.returncode == 3 and "did you mean runs/a" in done.stderr


def test_a_folder_with_an_equals_sign_is_no_assignment(tmp_path):
    """runs/lr=0.1 is a run, also where a value is expected."""
    control = made(tmp_path / "runs" / "lr=0.1")
    made(tmp_path / "runs" / "lr=0.2")
    shell("tune", "runs/lr=0.1", "lr=0.3", "--wait", "0", cwd=tmp_path)
    (file,) = incoming(control)
    assert json.loads((control.path / "commands" / file).read_text())["values"] == {"lr": 0.3}


# What is refused before it is sent


@pytest.mark.parametrize(("words", "said"), [
    (["tune", "lrr=1"], "no such tunable; did you mean lr?"),
    (["tune", "lr=fast"], "lr=fast: a number of at least 0, or none"),
    (["tune", "ema.enabled=maybe"], "ema.enabled=maybe: on or off"),
    (["tune", "mixed_precision=bf6"], "one of none, bf16; did you mean bf16?"),
    (["tune"], "this run has lr, grad_clip"),
    (["tune", "lr=1", "lr=2"], "lr is given twice"),
    (["tune", "lr=*x"], "*x: a number is expected behind *"),
    (["tune", "workers=*0.5"], "workers=1.5: a whole number"),
    (["tune", "ema.enabled=*2"], "ema.enabled=*2: on or off"),
    (["rewind"], "the step to go back to"),
    (["step", "-3"], "how many steps is expected, a whole number, 0 or more"),
    (["tnue"], "did you mean tune?"),
    (["pause", "--jsn"], "did you mean --json?"),
    (["note"], "which text?"),
    (["note", "runs/a"], "which text?"),
    (["pause", "--source", "a\nb"], "source has characters that cannot be printed"),
    (["pause", "--source", " "], "source is empty: who asks, say shell or agent:night"),
])
def test_wrong_words_are_refused_with_what_is_allowed(tmp_path, words, said):
    """Exit code 2, and nothing is sent."""
    control = made(tmp_path / "runs" / "a")
    done = shell(*words, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr, done
    assert incoming(control) == []


def test_a_command_that_the_run_does_not_take(tmp_path):
    """It is refused with the nearest one that it takes."""
    control = made(tmp_path / "a")
    control.write("offer.json", {"commands": {"pause": {}, "note": {}}, "tunables": []})
    done = shell("rewind", "a", "400", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == found["exit"] == 2 and "It takes pause, note" in found["reason"]


# What is sent


@pytest.mark.parametrize(("word", "waits", "sent"), [
    ("lr=*0.5", {}, 0.5), ("lr=/4", {}, 0.25), ("lr=*0.5", {"pending": 9.0}, 0.5),
    ("lr=*0.5", {"pending": 0.004, "has_pending": True}, 0.25)])
def test_a_factor_is_that_of_the_value_in_force(tmp_path, word, waits, sent):
    """As in the box of the panel, or of the value that waits; what is sent is the value."""
    control = made(tmp_path / "a")
    factor = {"name": "lr", "kind": "float", "min": 0, "value": 0.008} | waits
    control.write("offer.json", {"tunables": [factor], "commands": {"tune": {}}})
    shell("tune", "a", word, "--wait", "0", cwd=tmp_path)
    (file,) = incoming(control)
    values = json.loads((control.path / "commands" / file).read_text())["values"]
    assert values == {"lr": 0.008 * sent}


def test_the_command_has_its_sender_reason_and_basis(tmp_path):
    """Values by their kinds, the step that was seen, and how old it may be."""
    control = made(tmp_path / "a")
    words = ["lr=1e-4", "grad_clip=none", "ema.enabled=off", "--reason", "loss rises",
             "--max-age-steps", "50", "--source", "agent:x"]
    assert shell("tune", "a", *words, "--wait", "0", cwd=tmp_path).returncode == 3
    (file,) = incoming(control)
    sent = json.loads((control.path / "commands" / file).read_text())
    assert sent["values"] == {"lr": 1e-4, "grad_clip": None, "ema.enabled": False}
    assert [sent[name]
            for name in ("name", "reason", "basis", "max_age_steps",
                         "source")] == ["tune", "loss rises", 412, 50, "agent:x"]
    assert sent["user"] and sent["host"]


@pytest.mark.parametrize(("words", "name", "values"), [
    (["step", "a"], "step", {"n": 1}), (["step", "a", "10"], "step", {"n": 10}),
    (["step", "--epochs", "2", "a"], "step", {"epochs": 2}),
    (["rewind", "a", "400"], "rewind", {"step": 400}),
    (["note", "a", "new data"], "note", {"text": "new data"}),
    (["checkpoint", "a"], "checkpoint", {}), (["validate", "--reason", "why", "a"], "validate", {}),
])
def test_the_values_of_each_command(tmp_path, words, name, values):
    """Folder, numbers and texts in any order with the options."""
    control = made(tmp_path / "a")
    shell(*words, "--wait", "0", cwd=tmp_path)
    (file,) = incoming(control)
    sent = json.loads((control.path / "commands" / file).read_text())
    assert (sent["name"], sent["values"]) == (name, values)


@pytest.mark.parametrize(("words", "name", "values"), [
    (["record", "exp1", "layers"], "record", {"what": "layers"}),
    (["note", "exp1", "hello"], "note", {"text": "hello"}),
    (["note", "exp1 was worse"], "note", {"text": "exp1 was worse"}),
    (["step", "exp1", "2"], "step", {"n": 2}),
])
@pytest.mark.parametrize("others", [[], ["exp2"]])
def test_a_run_is_named_by_its_name_below_runs(tmp_path, words, name, values, others):
    """By each command; another run beside it does not matter."""
    control = made(tmp_path / "runs/exp1")
    for each in others:
        made(tmp_path / "runs" / each)
    if others and "exp1" not in words:
        words = [*words, "--run", "exp1"]
    shell(*words, "--wait", "0", cwd=tmp_path)
    (file,) = incoming(control)
    sent = json.loads((control.path / "commands" / file).read_text())
    assert (sent["name"], sent["values"]) == (name, values)


@pytest.mark.parametrize("name", ["prove", "mcp", "pause"])
def test_the_help_says_how_a_run_is_named(name, tmp_path):
    """By its name below ./runs only where that is so."""
    said = shell(name, "--help", cwd=tmp_path).stdout
    assert ("below ./runs" in said) == (name == "pause") and "folder of a run" in said


# Without an answer


def test_without_an_answer_the_command_is_withdrawn(tmp_path):
    """It must not take effect hours later."""
    control = made(tmp_path / "a")
    done = shell("pause", "a", "--wait", "0.2", cwd=tmp_path)
    assert done.returncode == 3 and "withdrawn" in done.stderr and incoming(control) == []


def test_a_command_that_was_read_is_not_called_withdrawn(tmp_path, monkeypatch):
    """The run may still apply it."""
    control, wait = made(tmp_path / "a"), Replies.wait

    def read_meanwhile(replies, id, timeout, *ends):
        """It is taken while its sender waits, and not answered."""
        path = control.path / "commands" / f"{id}.json"
        if path.exists():
            path.unlink()
            control.reply(dict(id=id, status="received", step=412))
        return wait(replies, id, timeout)

    monkeypatch.setattr(Replies, "wait", read_meanwhile)
    said = json.loads(shell("pause", "a", "--wait", "0.2", "--json", cwd=tmp_path).stdout)
    assert said["status"] == "no answer"
    assert "may still apply" in said["reason"] and said["exit"] == 3


def nobody_waits(seconds):
    """In place of time.sleep()."""
    raise AssertionError(f"it waits for {seconds} seconds")


@pytest.mark.parametrize("words", [["pause"], ["tune", "lr=0.2"], ["status"]])
def test_a_lost_run_says_how_it_was_started(tmp_path, words, monkeypatch):
    """Its process is gone and it did not say goodbye:
    exit code 3, at once, and nothing is left for a later one."""
    control = made(tmp_path / "a", gone())
    monkeypatch.setattr(folder_control, "time",
                        SimpleNamespace(monotonic=lambda: 0.0, sleep=nobody_waits))
    done = shell(words[0], "a", *words[1:], cwd=tmp_path)
    assert done.returncode == 3
    assert "cd '/data/a b' && python 'my train.py' --lr 0.1" in done.stdout + done.stderr
    assert incoming(control) == []


def test_a_process_that_ends_while_waiting(tmp_path, monkeypatch):
    """The answer does not take the whole time."""
    now = [0.0]
    with subprocess.Popen(["sleep", "3600"]) as process:
        made(tmp_path / "a", this_process() | {"pid": process.pid, "started": started(process.pid)})

        def wait(replies, id, timeout, *ends):
            """Time passes without an answer; the process ends in the third second."""
            now[0] += timeout
            if now[0] > 2:
                process.kill()
                process.wait()

        monkeypatch.setattr(Replies, "wait", wait)
        monkeypatch.setattr(cli, "time", SimpleNamespace(monotonic=lambda: now[0]))
        done = shell("pause", "a", "--wait", "30", cwd=tmp_path)
    assert done.returncode == 3 and "is gone" in done.stderr and 2 < now[0] < 4


def test_a_void_command_is_no_success(tmp_path):
    """void counts as refused."""
    assert cli.show_outcome({"command": "tune", "values": {}, "status": "void",
                             "reason": "rewound"}, False) == 2


# Folders that are not to be trusted

EVIL = "x\x1b[2J\x1b]0;t\x07\u202e\r\nfake: ok\n\x9b\x7f"
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def evil_run(folder):
    """Every text has escape sequences in it."""
    evil = {"step": 3, "train/loss": 0.5, f"loss{EVIL}": 0.25}
    control = made(folder, lines=[evil, {"step": 4, f"a{EVIL}": EVIL}], name=EVIL, state=EVIL,
                   description=EVIL, error=EVIL,
                   command=["python", EVIL], folder=EVIL, best={"name": EVIL, "value": 1.0},
                   breakpoints=[EVIL],
                   process=this_process() | {"host": EVIL})
    control.write("offer.json",
                  {"commands": {EVIL: {}, "pause": {}},
                   "tunables": [{"name": f"lr{EVIL}", "kind": EVIL, "value": EVIL,
                                 "choices": [EVIL]}]})
    entry = {"number": 1, "kind": "tune", "name": EVIL, "old": EVIL, "new": EVIL, "step": 3,
             "source": EVIL, "by": EVIL, "reason": EVIL}
    (folder / "journal.jsonl").write_text('{"journal": 1}\n' + json.dumps(entry) + "\n")
    (folder / "config.json").write_text(json.dumps({EVIL: EVIL, "tunables": {EVIL: EVIL}}))
    control.reply(dict(id=EVIL, name=EVIL, status="refused", reason=EVIL, source=EVIL, step=3))
    return control


@pytest.mark.parametrize("words",
                         [["status", "a"], ["ls", "."], ["log", "a"], ["diff", "a", "b"],
                          ["tune", "a", "x=1"],
                          ["stop", "a"], ["pause", "a", "--wait", "0.1"],
                          ["completion", "bash"]])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_control_character_reaches_the_terminal(tmp_path, words, form):
    """Names, values and reasons of files are shown with their escapes."""
    evil_run(tmp_path / "a")
    made(tmp_path / "b")
    done = shell(*words, *form, cwd=tmp_path)
    assert not RAW.search(done.stdout + done.stderr) and "Traceback" not in done.stderr
    assert "fake: ok" not in [line.strip() for line in (done.stdout + done.stderr).splitlines()
                              if words[0] != "status"]
    if form and words[0] != "completion":
        for line in done.stdout.splitlines():
            json.loads(line)


GARBAGE = ["", "[1, 2]", "{", '"text"', "\x00\xff", "[" * 100_000,
           '{"position": 5, "process": [], "best": 3, "state": {}, "alive": 1}',
           '{"alive": true, "process": {"host": 3, "pid": "x"}, "position": {"step": "9", '
           '"fraction": [], "seconds": 1e999}}',
           '{"alive": true, "last_saved": [null], "rewind_points": {}, "position": {"step": %s, '
           '"fraction": %s}, "command": "rm -rf", "error": 4}' % (("9" * 4000,) * 2),
           '{"alive": true, "position": {"step": NaN, "epoch": Infinity, "fraction": NaN, '
           '"epochs": -0.5}}', "{}"]


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_an_error_or_shown_in_part(tmp_path, text):
    """No traceback, whatever the files hold; a command does not hang."""
    control = made(tmp_path / "a")
    for name in ("status.json", "offer.json"):
        (control.path / name).write_bytes(text.encode("latin-1"))
    for name in ("metrics.jsonl", "journal.jsonl", "result.json", "config.json",
                 "control/replies.jsonl"):
        (tmp_path / "a" / name).write_bytes(text.encode("latin-1") + b"\n"
                                            + b'{"step": {}, "loss": 1e999, "rewind": 3}\n')
    for words in (["status", "a"], ["status", "a", "--json"], ["ls", "."], ["log", "a"],
                  ["diff", "a", "a"], ["tune", "a", "lr=1", "--wait", "0.1"]):
        done = shell(*words, cwd=tmp_path)
        assert done.returncode in (0, 2, 3) and "Traceback" not in done.stderr, done


def test_huge_and_special_files(tmp_path):
    """A status of many megabytes, a FIFO and a link are not read;
    the table shows the other runs."""
    big, fifo, link = (made(tmp_path / name) for name in ("big", "fifo", "link"))
    made(tmp_path / "good")
    with open(big.path / "status.json", "wb") as file:
        file.truncate(1 << 30)
    for control, place in ((fifo, "control/status.json"), (link, "control/status.json"),
                           (fifo, "metrics.jsonl")):
        (control.run / place).unlink()
        if control is fifo:
            os.mkfifo(control.run / place)
        else:
            os.symlink(tmp_path / "good" / place, control.run / place)
    for name, said in (("big", "bytes"), ("link", "not a plain file"),
                       ("fifo", "not a plain file")):
        done = shell("status", name, cwd=tmp_path)
        assert done.returncode == 3 and (said in done.stderr
                                         or "not a folder of a run" in done.stderr), done
    rows = [json.loads(line)
            for line in shell("ls", ".", "--json", cwd=tmp_path).stdout.splitlines()]
    assert {row["name"]: row["standing"] for row in rows}["good"] == "running"


def test_only_the_end_of_long_records_is_read(tmp_path):
    """The table of runs does not read a gigabyte."""
    made(tmp_path / "a")
    with open(tmp_path / "a" / "metrics.jsonl", "r+b") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"step": 9, "train/loss": 0.5}\n')
    row = json.loads(shell("ls", ".", "--json", cwd=tmp_path).stdout)
    assert row["loss"] == 0.5
    done = shell("log", "a", cwd=tmp_path)
    assert done.returncode == 3 and "are not read" in done.stderr


# Log, differences, completion


def test_the_difference_of_two_runs_is_that_of_their_files(tmp_path, capsys):
    """Settings, values at the beginning and the end, and results: times are no results."""
    for name, rate, loss in (("a", 0.1, 0.5), ("b", 0.2, 0.75)):
        made(tmp_path / name, lines=[
            {"step": 1, "train/loss": 2.0, "samples_per_second": 10 * rate, "time/step": rate},
            {"step": 2, "train/loss": loss, "samples_per_second": 20 * rate, "time/step": rate}])
        entry = {"number": 1, "kind": "tune", "name": "lr", "old": 0.1, "new": rate, "step": 1,
                 "source": "shell"}
        (tmp_path / name / "journal.jsonl").write_text(
            json.dumps({"journal": 1, "seed": 3}) + "\n" + json.dumps(entry) + "\n")
        (tmp_path / name / "config.json").write_text(json.dumps({"tunables": {"lr": 0.1},
                                                                 "epochs": 4}))
    with chdir(tmp_path):
        assert cli.main(["diff", "a", "b", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert cli.main(["diff", "a", "b"]) == 0
        shown = capsys.readouterr().out
    assert found["configuration"] == {}
    assert found["tunables"] == {"lr": [[0.1, 0.1], [0.1, 0.2]]}
    assert found["journal"] == ["-step 1: lr 0.1 → 0.1 (shell)", "+step 1: lr 0.1 → 0.2 (shell)"]
    assert found["results"]["train/loss"] == [0.5, 0.75]
    assert not {"samples_per_second", "time/step"} & found["results"].keys()
    assert "configuration: equal" in shown and "0.1 → 0.2" in shown and "+0.25" in shown


def test_the_log_goes_on_until_the_run_ends(tmp_path, monkeypatch, capsys):
    """New records and entries appear once, also when the journal is replaced."""
    control = made(tmp_path / "a", lines=[{"step": 1, "train/loss": 0.5}])
    entries = ['{"journal": 1}',
               json.dumps({"number": 1, "kind": "tune", "name": "lr", "old": 0.1, "new": 0.2,
                           "step": 1, "source": "shell"})]
    journal = tmp_path / "a" / "journal.jsonl"
    journal.write_text("\n".join(entries) + "\n")

    def meanwhile():
        """What happens between two looks, and what the last one has shown."""
        yield "step 1: train/loss 0.5\nstep 1: lr 0.1 → 0.2 (shell)\n"
        with open(tmp_path / "a" / "metrics.jsonl", "a") as file:
            file.write('{"step": 2, "train/loss": 0.25}\n')
        yield "step 2: train/loss 0.25\n"
        yield ""
        later = entries[1].replace('"number": 1', '"number": 2').replace('"step": 1', '"step": 2')
        (tmp_path / "new").write_text("\n".join([*entries, later]) + "\n")
        os.replace(tmp_path / "new", journal)
        yield "step 2: lr 0.1 → 0.2 (shell)\n"
        control.write("status.json", control.status() | {"alive": False, "state": "finished"})

    looks = meanwhile()

    def sleep(seconds):
        """The time between two looks."""
        assert capsys.readouterr().out == shown.pop()
        shown.append(next(looks, "nothing more"))

    shown = [next(looks)]
    monkeypatch.setattr(run_log, "time", SimpleNamespace(sleep=sleep))
    with chdir(tmp_path):
        assert cli.main(["log", "a", "--follow"]) == 0
    rest, errors = capsys.readouterr()
    assert shown == ["nothing more"] and rest == "" and "the run has ended" in errors


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(tmp_path):
    """trainer-nb log | head."""
    made(tmp_path / "a", lines=[{"step": step, "train/loss": 0.5} for step in range(10_000)])
    command = f"{sys.executable} -c '{PROGRAM}' log a -n 10000 | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert done.stdout == "step 0: train/loss 0.5\n" and done.stderr == ""


@pytest.mark.slow
def test_bash_completes_runs_tunables_and_values(tmp_path):
    """In a real bash; a folder whose name would be a command is not offered."""
    made(tmp_path / "runs" / "exp1",
         waiting=[{"id": "3f2a90", "name": "tune"}, {"id": "$(touch evil)"}, 5])
    made(tmp_path / "runs" / "$(touch evil)")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "trainer-nb").write_text(
        f"#!/bin/bash\nexec {sys.executable} -c '{PROGRAM}' \"$@\"\n")
    (bin_folder / "trainer-nb").chmod(0o755)

    lines = {"trainer-nb st": ["status", "step", "stop"],
             "trainer-nb status runs/": ["runs/exp1"],
             "trainer-nb tune runs/exp1 g": ["grad_clip="],
             "trainer-nb tune runs/exp1 mixed_precision=": ["none", "bf16"],
             "trainer-nb rewind runs/exp1 4": ["400"],
             "trainer-nb approve runs/exp1 ": ["3f2a90"],
             "trainer-nb decline runs/exp1 ": ["3f2a90"],
             "trainer-nb pause --max": ["--max-age-steps"]}
    # what bash makes of each line and the Tab key
    script = """eval "$(trainer-nb completion bash)"
        for COMP_LINE in "$@"
        do COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; _python_argcomplete trainer-nb
           echo "${COMPREPLY[@]}"
        done"""
    done = subprocess.run(["bash", "-c", script, "bash", *lines], cwd=tmp_path, capture_output=True,
                          text=True, check=True,
                          env=os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"})
    assert done.stderr == ""
    assert dict(zip(lines, map(str.split, done.stdout.splitlines()), strict=True)) == lines
    assert not (tmp_path / "evil").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_runs_tunables_and_values(tmp_path):
    """In a real zsh, by its Tab key; a folder whose name would be a command is not offered."""
    made(tmp_path / "runs" / "exp1")
    made(tmp_path / "runs" / "$(touch evil)")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "trainer-nb").write_text(
        f"#!/bin/bash\nexec {sys.executable} -c '{PROGRAM}' \"$@\"\n")
    (bin_folder / "trainer-nb").chmod(0o755)
    place = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "HOME": str(tmp_path),
                          "TERM": "dumb"}
    terminal = pexpect.spawn("zsh", ["-f", "-i"], cwd=str(tmp_path), env=place,
                             dimensions=(40, 200), encoding="utf8", timeout=300)
    try:
        terminal.sendline(
            "PS1='> '; autoload -U compinit; compinit -u; eval \"$(trainer-nb completion zsh)\"; "
            "echo go-$((40 + 2))")
        terminal.expect("go-42")
        for line, expected in (("status runs/", "runs/exp1 "), ("tune runs/exp1 g", "rad_clip="),
                               ("tune runs/exp1 mixed_precision=", "=bf16  mixed_precision=none"),
                               ("rewind runs/exp1 4", "400 "), ("pause --max", "--max-age-steps "),
                               ("st", "status  step    stop")):
            terminal.send(f"trainer-nb {line}\t")
            terminal.expect_exact(expected)
            terminal.send("\x15")  # the line is emptied
    finally:
        terminal.close(force=True)
    assert not (tmp_path / "evil").exists()


@pytest.mark.slow
def test_the_program_is_a_module_too(tmp_path):
    """`python -m trainer_nb`, where the command is not on the path."""
    made(tmp_path / "a")
    done = subprocess.run([sys.executable, "-m", "trainer_nb", "status", "a", "--json"],
                          cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["standing"] == "running"
    assert subprocess.run([sys.executable, "-m", "trainer_nb", "tnue"], capture_output=True,
                          check=False).returncode == 2
