"""A folder that is used again: by the same cell, by another trainer, by another process."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import warm
from digits_runs import wait_for
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import CheckpointHook, LambdaHook, Trainer
from trainer_nb.folder.layout import FolderTakenError
from trainer_nb.core.state import TURNS

pytestmark = pytest.mark.slow

STEPS = 24
INPUTS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))


def make(workspace=None, *hooks, folder=None, epochs=3, **settings):
    """Eight steps an epoch; with a CheckpointHook."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    return Trainer(model,
                   train_dl=DataLoader(TensorDataset(INPUTS, INPUTS[:, :1]), 8, shuffle=True),
                   loss_fn=nn.MSELoss(), epochs=epochs,
                   optim=torch.optim.AdamW(model.parameters(), 0.01), seed=0, device="cpu",
                   progress=False, workspace=workspace,
                   hooks=[CheckpointHook(folder, every_steps=4), *hooks], **settings)


def weights(trainer):
    """All in one."""
    return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])


@pytest.fixture(scope="module")
def straight():
    """The weights of a run that nothing disturbs."""
    trainer = make(folder=None, epochs=3)
    trainer.hooks.remove(trainer.get_hook(CheckpointHook))
    trainer.fit()
    return weights(trainer)


def at(step, act):
    """Do something after a step."""
    return LambdaHook(after_step=lambda trainer: act(trainer)
                      if trainer.step_state.optimizer_step == step else None)


def wait_aside(condition):
    """Let a run wait in the middle of a step; others may have the random streams meanwhile."""
    with TURNS.aside():
        wait_for(condition)


def interrupted(workspace=None, **named):
    """A trainer whose cell got a Ctrl-C after step 10."""
    trainer = make(workspace, at(10, lambda _: os.kill(os.getpid(), signal.SIGINT)), **named)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    return trainer


@pytest.mark.parametrize("kind", ["workspace", "folder"])
def test_an_interrupted_cell_run_again_goes_on(tmp_path, straight, capsys, kind):
    """In the same folder, from the step where it was, while the first trainer is still there."""
    named = ({"workspace": tmp_path / "first"}
             if kind == "workspace" else {"folder": tmp_path / "first"})
    first = interrupted(**named)
    assert capsys.readouterr().out == ""
    second = make(**named)
    second.fit()
    assert torch.equal(weights(second), straight)
    assert second.get_hook(CheckpointHook).resumed_from.name == "step_00000010.pt"
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"{tmp_path / 'first'}: the trainer that had this folder is closed, {first!r}"
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    if kind == "workspace":
        assert second.workspace == tmp_path / "first" and first.records_of_run.folder is None


@pytest.mark.parametrize("ends", ["finished", "paused", "stopped", "failed"])
def test_any_trainer_that_is_not_running_gives_its_folder_up(tmp_path, straight, capsys, ends):
    """A paused one keeps its place first."""
    def fail(_):
        raise ZeroDivisionError
    acts = {"stopped": lambda trainer: trainer.stop(), "failed": fail}
    first = make(tmp_path / "first", at(10, acts.get(ends, lambda _: None)),
                 epochs=1 if ends == "finished" else 3)
    if ends == "paused":
        first.step(10)
    elif ends == "failed":
        with pytest.raises(ZeroDivisionError):
            first.fit()
    else:
        first.fit()
    second = make(tmp_path / "first")
    second.fit()
    assert second.workspace == tmp_path / "first" and "is closed" in capsys.readouterr().out
    step = 8 if ends in ("finished", "failed") else 10
    assert second.get_hook(CheckpointHook).resumed_from.name == f"step_{step:08d}.pt"
    if ends != "failed":  # what failed is not relied on
        assert torch.equal(weights(second), straight)
    steps = [json.loads(line)["step"]
             for line in (tmp_path / "first" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))


@pytest.mark.parametrize("held", [False, True], ids=["running", "held in its thread"])
def test_a_running_trainer_keeps_its_folder(tmp_path, held):
    """The error names it; nothing is written, no second folder is there, and it goes on to its
    end."""
    go = threading.Event()
    first = make(tmp_path / "first", at(5, lambda _: wait_aside(go.is_set)))
    first.start()
    wait_for(lambda: first.step_state.optimizer_step == 5)
    if held:
        reply = first.pause()
        go.set()
        assert reply.wait(120).status == "applied"
    second = make(tmp_path / "first")
    for _ in range(2):
        with pytest.raises(FolderTakenError,
                           match=r"another trainer of this process, Trainer\(Sequential, "
                                 r"(running|paused)"):
            second.fit()
    assert second.step_state.optimizer_step == 0
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    first.resume() if held else go.set()
    assert first.wait(120).steps == STEPS
    assert second.fit().steps == STEPS  # by now it may have it


def test_a_process_keeps_its_folder(tmp_path, straight):
    """The error names it; after a kill the folder is free at once, though a child that was forked
    lives on."""
    code = ("import sys; sys.path[:0] = sys.argv[2:]; from test_reused_folder import *\n"
            "trainer = make(folder=sys.argv[1]); trainer.step(6); "
            "trainer.get_hook(CheckpointHook).finish_writing(); number = os.fork()\n"
            "os.write(1, b'%d\\n' % number)\n"  # the forked one, too: what it inherits is given
            # up then; one write, so that the lines of two processes do not mix
            "threading.Event().wait(3600)")
    child = warm.Popen([sys.executable, "-c", code, tmp_path / "kept", *Path(__file__).parents[:2]],
                       stdout=subprocess.PIPE, text=True)
    number = max(int(child.stdout.readline()) for _ in range(2))
    try:
        trainer = make(folder=tmp_path / "kept")
        with pytest.raises(FolderTakenError, match=f"kept belongs to process {child.pid} "):
            trainer.fit()
        assert trainer.step_state.optimizer_step == 0
        child.kill()
        child.wait()
        os.kill(number, 0)  # it is there
        trainer.fit()
    finally:
        child.kill()
        os.kill(number, signal.SIGKILL)
    assert trainer.get_hook(CheckpointHook).resumed_from.name == "step_00000004.pt"
    assert torch.equal(weights(trainer), straight)


def test_two_threads_that_ask_at_once(tmp_path):
    """One gets the folder."""
    made, found = [make(folder=tmp_path / "kept", epochs=1) for _ in range(4)], []
    begin = threading.Barrier(4)
    until_all_asked = LambdaHook(
        after_step=lambda _: wait_aside(lambda: found.count("taken") == 3))
    def drive(trainer):
        trainer.hooks.add(until_all_asked)
        begin.wait(120)
        try:
            trainer.fit()
            found.append("done")
        except FolderTakenError:
            found.append("taken")
    threads = [threading.Thread(target=drive, args=(each,)) for each in made]
    [each.start() for each in threads]
    [each.join(240) for each in threads]
    assert sorted(found) == ["done", "taken", "taken", "taken"]


def test_a_trainer_goes_on_in_its_folder_after_close(tmp_path, straight):
    """Each record is in the file once, a rewind in between too."""
    trainer = make(tmp_path / "first", epochs=1)
    trainer.fit()
    trainer.close()
    assert trainer.workspace == tmp_path / "first"
    trainer.fit(epochs=2)
    trainer.close()
    assert trainer.rewind(12) == 12
    trainer.fit(epochs=3)
    lines = [json.loads(line)
             for line in (tmp_path / "first" / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("step", "rewind")
            for line in lines] == [*range(1, 17), "rewind", *range(13, STEPS + 1)]
    assert torch.equal(weights(trainer), straight)
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_a_trainer_that_gave_its_folder_up_leaves_it_alone(tmp_path):
    """Another run has had it: fit() says so, a rewind and the best state find nothing there, the
    files stay those of the other run."""
    first = interrupted(tmp_path / "first")
    second = make(tmp_path / "first")
    second.fit()
    second.close()
    def files():
        return {path: path.read_bytes() for path in (tmp_path / "first").rglob("*")
                if path.is_file()}
    before, step = files(), first.step_state.optimizer_step
    for act in (first.fit, lambda: first.step(1), first.start):
        with pytest.raises(FolderTakenError, match="another run has had it since"):
            act()
            first.wait(120)
    with pytest.raises(ValueError, match="no snapshot or checkpoint"):
        first.rewind(20)
    assert first.get_hook(CheckpointHook).best_state() is None
    assert first.step_state.optimizer_step == step and files() == before
    # the trainer itself is whole
    assert "loss" in str(first.validate(DataLoader(TensorDataset(INPUTS, INPUTS[:, :1]), 8)))


def test_a_hook_whose_folder_another_run_has_had_offers_nothing(tmp_path):
    """The folder of a CheckpointHook alone, without a workspace."""
    first = make(folder=tmp_path)
    first.step(9)
    with make(folder=tmp_path) as second:
        second.fit()
    assert second.step_state.optimizer_step == STEPS
    with pytest.raises(ValueError, match="no snapshot or checkpoint"):
        first.rewind(20)
    assert first.rewind_points() == [] and first.step_state.optimizer_step == 9


def test_an_error_before_the_first_step_leaves_the_files_of_the_folder(tmp_path):
    """Settings, journal, table and result are those of the run that made them."""
    with make(tmp_path / "first", epochs=1) as first:
        first.fit()
    def files():
        return {path: path.read_bytes() for path in (tmp_path / "first").rglob("*")
                if path.is_file() and path.name != ".lock"}
    before = files()
    def fail(_):
        raise ZeroDivisionError
    trainer = make(tmp_path / "first", LambdaHook(order=-105, before_fit=fail))
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    assert files() == before
    assert first.fit(epochs=2).steps == 16  # the folder is still its own


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_trainer_that_is_dropped_leaves_no_file_open(tmp_path):
    trainer = make(tmp_path / "run", epochs=1)
    trainer.fit()
    file = trainer.records_of_run.folder._file
    assert not file.closed
    del trainer
    gc.collect()
    assert file.closed
