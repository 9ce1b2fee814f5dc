"""`prove`: runs that were steered in real processes, repeated in fresh ones."""

import json
import os
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import warm
from steered import until

from trainer_nb.folder.control import (ControlFolder, Replies, Request, incoming,
                                            this_process)
from trainer_nb.core.journal import Journal, digest
from trainer_nb.remote.prove import (EndedRun, add_arguments, child_environment, given_program,
                                     last_and_best, prove, run)

PROGRAM = Path(__file__).with_name("prove_program.py")

pytestmark = [pytest.mark.long, pytest.mark.slow]


def popen(command, **settings):
    """A program of one process begins with torch in memory."""
    several = "torch.distributed.run" in command or command[0] != sys.executable
    return (subprocess.Popen if several else warm.Popen)(command, **settings)


def start(*options, script=PROGRAM, wait=True, launcher=(), **environment):
    """The program in a process of its own, in the present folder."""
    command = [sys.executable, *launcher, str(script), *options]
    child = popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if wait:
        text = child.communicate(timeout=600)[0]
        assert child.returncode == 0, text
    return child


def files(folder="."):
    """Path to bytes, of all files below a folder."""
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def journal():
    """Of the run that all tests make."""
    return Journal.load("runs/exp1/journal.jsonl")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """Programs are started where the test is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("trainer_nb.remote.prove.subprocess", SimpleNamespace(
        Popen=popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired))


def test_steered_by_the_clock_and_the_same_bits():
    """A thread tunes, pauses and resumes where it happens to be:
    again the journal decides, and not the thread."""
    start("clock", "--slow", "0.005")
    assert [each.name for each in journal().changes()] == ["lr", "grad_clip", "weight_decay"]
    proof = prove("runs/exp1", [PROGRAM, "clock", "--slow", "0.005"])
    assert proof.code == 0 and proof.weights[0] == proof.weights[1] and proof.parted == [], proof
    (effect,) = proof.effects
    assert len(effect.interventions) == 3 and not effect.same_weights and not effect.problem
    assert effect.metric == "valid/mistake" and effect.run_with != effect.run_without
    written = json.loads(Path("runs/exp1/result.json").read_text())
    assert effect.run_with == [written["last"]["valid/mistake"], written["best"]["value"]]


@pytest.mark.short
def test_steered_from_another_process(capsys):
    """Commands through the folder: left out by their id or sender;
    the folder names the program that is repeated."""
    child = start("plain", "--gates", "5:first", "12:second", wait=False)
    control, ids = ControlFolder("runs/exp1"), []
    for gate, source, values in (("first", "agent:one", {"lr": 0.05}),
                                 ("second", "shell", {"grad_clip": 0.1})):
        until(Path(f"{gate}.reached").exists)
        ids.append(control.send(Request("tune", values, source, user="somebody", host="here")))
        until(lambda: not incoming(control))
        Path(gate).touch()
        assert Replies(control).wait(ids[-1], 300)["status"] == "applied"
    child.communicate(timeout=600)
    parser = ArgumentParser()
    add_arguments(parser)
    assert run(parser.parse_args(["runs/exp1", "--yes", "--json", "--without",
                                  f"command={ids[0]}"])) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["program"] == f"python {PROGRAM} plain --gates 5:first 12:second"
    assert len(found["effects"]) == 1
    assert "lr" in found["effects"][0]["interventions"][0]
    assert not found["effects"][0]["same_weights"]
    proof = prove("runs/exp1", [PROGRAM, "plain"], without=["source=agent:one", "by=somebody@here"])
    assert proof.code == 0 and len(proof.effects[0].interventions) == 2


def test_nothing_but_the_repetition_is_written():
    """Neither run nor checkpoints nor what the program writes at its end;
    the checkpoints of the first time are not resumed."""
    start("tunes", "--checkpoints")
    assert list(Path("checkpoints").glob("*.pt"))
    before = files()
    proof = prove("runs/exp1", [PROGRAM, "tunes", "--checkpoints"], keep="kept")
    assert proof.code == 0, proof
    after = files()
    assert {name: text for name, text in after.items() if not name.startswith("kept/")} == before
    assert before["after"].decode() == f"{proof.weights[0]}\n"
    assert sorted(path.name for path in Path("kept").iterdir()) == ["1-with", "2-without-1-2-3"]


@pytest.mark.parametrize("step", [9, 28])
def test_a_planted_difference_is_found_where_it_was_planted(step):
    """A weight that moves by a ten-thousandth, after one step:
    the first record that differs is that of the step after it."""
    start("tunes")
    proof = prove("runs/exp1", [PROGRAM, "tunes", "--planted", str(step)])
    assert proof.code == 1 and proof.same is False and proof.effects == []
    assert proof.weights[0] != proof.weights[1] and proof.parted
    assert {each["step"] for each in proof.parted} == {min(step + 1, 28)}
    assert step == 28 or [each["name"] for each in proof.parted] == ["train/loss"]
    assert f"step {min(step + 1, 28)}" in str(proof) and "not the same" in str(proof)


def test_killed_and_resumed_and_proven():
    """One journal survives the kill; the repetition goes through from the first step on."""
    child = start("tunes", "--checkpoints", "--gates", "14:go", wait=False)
    listed = Path("checkpoints/checkpoints.json")
    until(lambda: Path("go.reached").exists()
          and json.loads(listed.read_text())["latest"] == "step_00000012.pt")
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    proof = prove("runs/exp1", [PROGRAM, "tunes", "--checkpoints"])
    assert proof.code == 2 and "no end" in proof.reason
    start("tunes", "--checkpoints")
    proof = prove("runs/exp1", [PROGRAM, "tunes", "--checkpoints"])
    assert proof.code == 0 and "3" in proof.run and proof.effects, proof


@pytest.mark.parametrize("kind", ["accelerate", "fsdp"])
def test_two_processes(kind, monkeypatch):
    """Each with its part of the batches, and with fsdp of the weights:
    the digest is that of the whole ones."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true" if kind == "fsdp" else "false")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    start("tunes", "--engine", "accelerate", launcher=launcher)
    assert json.loads(Path("runs/exp1/result.json").read_text())["processes"] == 2
    proof = prove("runs/exp1", [PROGRAM, "tunes", "--engine", "accelerate"], without=["name=lr"])
    assert proof.code == 0 and proof.program.startswith(
        "torchrun --standalone --nproc-per-node 2"), proof
    assert not proof.effects[0].same_weights
    assert Path("after").read_text() == f"{proof.weights[0]}\n"
    start("tunes", "--engine", "accelerate", "--workspace", "runs/alone")
    assert json.loads(
        Path("runs/alone/result.json").read_text())["weights"]["sha256"] != proof.weights[0]


def test_each_and_chosen():
    """By source, and one at a time; what is left in has its effect at its place."""
    start("sources")
    proof = prove("runs/exp1", [PROGRAM, "sources"], each=True, keep="kept")
    assert [each.interventions[0][:1] for each in proof.effects] == ["1", "2"] and proof.code == 0
    chosen = prove("runs/exp1", [PROGRAM, "sources"], without=["source=shell"])
    assert [each.run_without for each in chosen.effects] == [proof.effects[1].run_without]
    there = Journal.load("kept/2-without-1/run/journal.jsonl")
    assert [(each.step, each.new) for each in there.changes()] == [(15, 0.002)]


@pytest.mark.parametrize("how", ["windows", "evaluations"])
def test_what_is_left_in_comes_after_as_many_samples(how):
    """Without larger windows, or without evaluations, the boundaries are others:
    the later change has its place all the same."""
    start(how)
    late = journal().changes()[-1]
    proof = prove("runs/exp1", [PROGRAM, how], without=["number=1"], keep="kept")
    assert proof.code == 0 and not proof.effects[0].problem, proof
    (entry,) = Journal.load("kept/2-without-1/run/journal.jsonl").changes()
    assert entry.samples_seen == late.samples_seen and entry.new == late.new
    assert (entry.boundary, entry.step) != (late.boundary, late.step)


def test_a_run_that_was_stopped():
    """It ends there again, and without the change after as many steps."""
    Path("stop").touch()
    start("stops")
    Path("stop").unlink()  # nobody stops it now
    proof = prove("runs/exp1", [PROGRAM, "stops"], keep="kept")
    assert proof.code == 0 and proof.run.startswith("stopped at step 17"), proof
    assert json.loads(Path("kept/2-without-1/run/result.json").read_text())["steps"] == 17


def test_a_run_that_went_back():
    """The path that survived."""
    start("rewinds")
    proof = prove("runs/exp1", [PROGRAM, "rewinds"])
    assert proof.code == 0 and len(proof.effects[0].interventions) == 1, proof


def test_another_trainer_of_the_program_goes_aside():
    """It trains where it leaves no trace, and gets no journal."""
    start("two")
    before = files("runs")
    proof = prove("runs/exp1", [PROGRAM, "two"], keep="kept")
    assert proof.code == 0 and files("runs") == before
    assert Path("kept/1-with/others/before/result.json").exists() and proof.effects == []


def test_a_run_whose_time_was_up():
    """A repetition may be slower than the run was."""
    start("limited", "--slow", "0.06")
    proof = prove("runs/exp1", [PROGRAM, "limited", "--slow", "0.12"])
    assert proof.code == 0 and proof.run.startswith("stopped at step"), proof
    assert json.loads(Path("runs/exp1/result.json").read_text())["steps"] < 28


def test_a_program_that_fails_and_goes_on():
    """It does so each time, and the weights are the same."""
    start("repeats")
    assert prove("runs/exp1", [PROGRAM, "repeats"]).code == 0


def test_a_result_of_before_proves_nothing():
    """The digest must be of the step at which the run ended."""
    start("plain")
    path = Path("runs/exp1/result.json")
    result = json.loads(path.read_text())
    result["weights"]["step"] -= 1
    path.write_text(json.dumps(result))
    proof = prove("runs/exp1", PROGRAM)
    assert proof.code == 2 and "no digest of the weights at step 28" in proof.reason
    del result["weights"]
    path.write_text(json.dumps(result))
    assert prove("runs/exp1", PROGRAM).code == 2


def test_the_digest_covers_names_shapes_types_and_bytes():
    """Whatever the order."""
    one = {"a": torch.ones(2, 3), "b": torch.zeros(2)}
    others = [{"a": one["a"]}, one | {"a": torch.ones(3, 2)}, one | {"b": torch.zeros(2).int()},
              one | {"b": -torch.zeros(2)},
              {"a": one["a"], "c": one["b"]}, {"a": one["a"].flatten(), "b": one["b"]}, {"m": one}]
    assert digest(one) == digest(dict(reversed(one.items())))
    assert digest({"m": one}) == digest({"m": OrderedDict(one)})
    assert len({digest(one), *map(digest, others)}) == 8


def test_as_many_threads_as_the_run(monkeypatch, tmp_path):
    """Unless the user says how many."""
    run = EndedRun(tmp_path, Journal({"fingerprint": {"threads": 3}}), {}, None)
    assert child_environment(run, tmp_path)["OMP_NUM_THREADS"] == "1"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert child_environment(run, tmp_path)["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(("how", "words"),
                         [("fails", "ended as 'error'"),
                          ("spoils", "ArithmeticError in the middle of step 10"),
                          ("replaces", "loss_fn was another one"),
                          ("plain", "no run with workspace='runs/exp1'")])
def test_what_cannot_be_proven(how, words):
    """A run that failed, one with an object that no journal holds, a script that makes another
    run."""
    child = start(how, wait=False)
    child.communicate(timeout=600)
    options = ["--workspace", "runs/other"] if how == "plain" else []
    proof = prove("runs/exp1", [PROGRAM, how, *options])
    assert proof.code == 2 and proof.same is None and words in proof.reason, proof
    assert not Path("runs/other").exists()


def test_a_run_that_goes_on_is_refused():
    """By its journal, and by its status too."""
    child = start("waits", wait=False)
    try:
        until(Path("waiting").exists)
        assert prove("runs/exp1", PROGRAM).code == 2
    finally:
        child.kill()
        child.communicate()
    start("plain", "--workspace", "runs/exp2")
    control = ControlFolder("runs/exp2")
    control.make()
    status = {"state": "running", "alive": True, "process": this_process()}
    control.write("status.json", status)
    proof = prove("runs/exp2", PROGRAM)
    assert proof.code == 2 and f"process {os.getpid()}" in proof.reason
    control.write("status.json", status | {"process": this_process() | {"started": "1"}})
    assert prove("runs/exp2", [PROGRAM, "--workspace", "runs/exp2"]).code == 0


def test_another_program_is_refused_with_the_first_difference():
    """Other weights at the beginning: that is not a repetition."""
    start("plain")
    Path("other.py").write_text(
        PROGRAM.read_text().replace("nn.Linear(8, 1)", "nn.Linear(8, 1, bias=False)"))
    proof = prove("runs/exp1", "other.py")
    assert proof.code == 2 and "check sum of the first weights" in proof.reason


def test_a_program_that_makes_other_evaluations_has_diverged():
    """Known at the next entry: not the same, and where."""
    start("tunes")
    Path("other.py").write_text(
        PROGRAM.read_text().replace('best=("valid/mistake", "min")',
                                    'best=("valid/mistake", "min"), eval_every=3'))
    proof = prove("runs/exp1", ["other.py", "tunes"])
    assert proof.code == 1 and "has diverged from its journal: entry 2" in proof.reason
    assert "this run stands at" in proof.reason


def marks(folder):
    """A script that says that it was started."""
    script = Path(folder, "marks.py")
    script.write_text("from pathlib import Path\nPath('started').touch()\n")
    return script.resolve()


def test_a_program_that_only_the_folder_names_is_not_started_unasked(capsys, monkeypatch):
    """It is shown; --yes starts it."""
    start("plain")
    script = marks(".")
    control = ControlFolder("runs/exp1")
    control.make()
    control.write("status.json", {"command": [str(script), "a b"], "folder": os.getcwd()})
    parser = ArgumentParser()
    add_arguments(parser)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))
    assert run(parser.parse_args(["runs/exp1"])) == 2 and not Path("started").exists()
    assert f"{script} 'a b'" in capsys.readouterr().out
    assert run(parser.parse_args(["runs/exp1", "--yes", "--json"])) == 2
    assert Path("started").exists()
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2
    # of several processes
    launcher = ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", str(PROGRAM),
                "plain"]
    control.write("status.json",
                  {"command": launcher, "arguments": [str(PROGRAM), "plain"],
                   "folder": os.getcwd()})
    assert run(parser.parse_args(["runs/exp1", "--yes"])) == 0


def test_no_question_is_asked_in_a_notebook():
    """A cell with `!` has a terminal, into which nobody can type:
    the answer is 2, and what to say instead."""
    from kernel_client import manager_of
    start("plain")
    control = ControlFolder("runs/exp1")
    control.make()
    control.write("status.json", {"command": [str(marks("."))], "folder": os.getcwd()})
    manager = manager_of([sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(300)
        printed = []
        client.execute_interactive(
            f"!{sys.executable} -m trainer_nb prove runs/exp1\nprint('code', _exit_code)",
            timeout=300,
                                   output_hook=lambda message: printed.append(
                                       message["content"].get("text", "")))
        assert "--yes starts that" in "".join(printed)
        assert "code 2" in "".join(printed) and not Path("started").exists()
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("command",
                         [["-c", "open('started', 'w')"], ["-m", "marks"],
                          ["python", "-c", "open('started', 'w')"], ["/bin/touch", "started"],
                          ["-I", "marks.py"], "marks.py", [], [["marks.py"]]])
def test_what_is_no_python_file_is_not_started(command):
    """Whatever the folder says, and whatever is confirmed."""
    start("plain")
    marks(".")
    control = ControlFolder("runs/exp1")
    control.make()
    control.write("status.json", {"command": command, "folder": os.getcwd()})
    assert prove("runs/exp1", confirm=lambda program: True).code == 2
    assert not Path("started").exists()


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0,
                    reason="gives a file away, which root may")
@pytest.mark.parametrize("given", ["marks.py", "runs/exp1"])
def test_another_users_program_is_not_started(given):
    """Neither script nor folder may be another user's, unless the user names the script."""
    start("plain")
    script = marks(".")
    control = ControlFolder("runs/exp1")
    control.make()
    control.write("status.json", {"command": [str(script)], "folder": os.getcwd()})
    os.chown(given, 12345, 12345)
    proof = prove("runs/exp1", confirm=lambda program: True)
    assert proof.code == 2
    assert "belongs to another user (12345)" in proof.reason and not Path("started").exists()
    assert prove("runs/exp1", PROGRAM).code == 0


@pytest.mark.parametrize("name", ["journal.jsonl", "metrics.jsonl", "result.json"])
@pytest.mark.parametrize("what", ["link", "noise", "list", "missing", "folder"])
def test_files_of_the_folder_are_data(name, what):
    """No link is followed; what is not a run says so in a line."""
    start("plain") if not Path("runs").exists() else None
    path = Path("runs/exp1", name)
    path.rename("moved")
    if what == "link":
        path.symlink_to(Path("moved").resolve())
    elif what == "folder":
        path.mkdir()
    elif what != "missing":
        path.write_text({"noise": "\x00{", "list": "[1]\n"}[what])
    proof = prove("runs/exp1", PROGRAM)
    assert proof.code == 2 and proof.reason and "\n" not in proof.reason


def test_built_from_a_configuration():
    """No script is needed: the folder has what the run was built from."""
    config = {"model": {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": 1},
              "max_steps": 6, "seed": 3, "device": "cpu", "progress": False,
              "train_dl": {"_target_": "torch.utils.data.DataLoader", "batch_size": 4,
                           "dataset": {"_target_": "torch.utils.data.TensorDataset",
                                       "_args_": [{"_target_": "torch.ones", "_args_": [16, 3]},
                                                 {"_target_": "torch.zeros", "_args_": [16, 1]}]}},
              "loss_fn": {"_target_": "torch.nn.MSELoss"}, "workspace": "runs/exp1"}
    Path("config.json").write_text(json.dumps(config))
    Path("train.py").write_text(
        "from trainer_nb import Trainer\ntrainer = Trainer.from_config('config.json')\n"
                                "trainer.step(3)\ntrainer.tune(lr=0.5)\ntrainer.fit()\n")
    start(script="train.py")
    proof = prove("runs/exp1", config=True)
    assert proof.code == 0 and proof.effects[
        0].metric == "train/loss" and not proof.effects[0].same_weights, proof


@pytest.mark.short
def test_the_parser_needs_no_torch():
    """It is built at each start of the command, and so is help."""
    code = ("import sys, argparse\nfrom trainer_nb.remote.prove import add_arguments\nparser = "
            "argparse.ArgumentParser()\nadd_arguments(parser)\n"
            "found = parser.parse_args(['runs/exp1', '--each', '--script', 'train.py', '--lr', "
            "'1'])\n"
            "assert found.script == ['train.py', '--lr', '1'] and found.each and 'torch' not in "
            "sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.short
def test_last_and_best():
    """In the direction of the rule; NaN is never best."""
    history = {"a": __import__("numpy").array([2.0, float("nan"), 1.0, 3.0])}
    assert last_and_best(history, "a", "min") == [3.0, 1.0]
    assert last_and_best(history, "a", "max") == [3.0, 3.0]
    assert last_and_best(history, "b", "max") == [None, None]


def test_a_module_as_the_program():
    """As Python itself takes it."""
    assert given_program(["-m", "package.train", "--lr",
                          "1"]).arguments()[1:] == ["-m", "package.train", "--lr", "1"]
