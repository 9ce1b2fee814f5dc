"""A path means what it meant when it was given: `~` is the home folder for every argument that
takes a path, and a change of the current folder between two calls splits no run."""

import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import (CheckpointHook, ImageFileHook, JSONLHook, Journal, OutputsHook,
                        ProfilerHook, ReplayHook, TensorBoardHook, Trainer, attach)
from trainer_nb.support.files import given_path
from trainer_nb.hooks.outputs import load_outputs

X = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A home, the current folder, and another one to go to."""
    found = [tmp_path / name for name in ("home", "here", "other")]
    for each in found:
        each.mkdir()
    monkeypatch.setenv("HOME", str(found[0]))
    monkeypatch.chdir(found[1])
    return found


def make(**settings):
    """Twelve steps."""
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), 8)
    model = nn.Linear(3, 1)
    return Trainer(model, train_dl=loader, loss_fn=nn.MSELoss(), device="cpu", epochs=2,
                   optim=torch.optim.SGD(model.parameters(), lr=0.01), progress=False,
                   **{"valid_dl": loader, **settings})


def inside(folder):
    """All that is in a folder, one level deep."""
    return sorted(each.name for each in folder.iterdir())


HOOKS = {
    "CheckpointHook": lambda path: CheckpointHook(path),
    "JSONLHook": lambda path: JSONLHook(path),
    "TensorBoardHook": lambda path: TensorBoardHook(path),
    "OutputsHook": lambda path: OutputsHook(path),
    "ProfilerHook": lambda path: ProfilerHook(wait=0, warmup=1, active=1, folder=path, show=False),
    "ImageFileHook": lambda path: ImageFileHook(path),
}


def drive(trainer):
    """The first epoch, with a picture for those who keep pictures."""
    trainer.step(epochs=1)
    trainer.log_images({"picture": torch.zeros(3, 4, 4)})


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_files_of_a_hook_are_in_the_home_folder(hook, places):
    home, here, _ = places
    with make(hooks=[hook("~/files")]) as trainer:
        drive(trainer)
        trainer.fit()
    assert inside(home) == ["files"] and not inside(here)


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
@pytest.mark.parametrize("given", ["files", None])
def test_files_of_a_hook_stay_in_one_folder(hook, given, places, monkeypatch):
    _, here, other = places
    with make(hooks=[hook(given)]) as trainer:
        monkeypatch.chdir(other)  # before its first step, too
        drive(trainer)
        monkeypatch.chdir(other.parent)
        trainer.fit()
    assert inside(here) and not inside(other)


@pytest.mark.parametrize("workspace", ["~/runs/one", "runs/one"])
def test_a_workspace(workspace, places, monkeypatch):
    home, here, other = places
    hooks = [CheckpointHook(), JSONLHook(), OutputsHook()]
    trainer = make(workspace=workspace, hooks=hooks)
    place = (home if "~" in workspace else here) / "runs/one"
    assert trainer.workspace == place
    trainer.step(epochs=1)
    monkeypatch.chdir(other)
    assert trainer.fit().status == "finished"
    trainer.close()
    monkeypatch.chdir(home if "~" in workspace else here)
    run = attach(workspace)
    monkeypatch.chdir(other)
    assert run.path == place and len(run.history["train/loss"]) == 12
    run.close()
    assert not inside(other)
    again = make(workspace=place, hooks=[CheckpointHook(resume="latest")])
    again.fit(epochs=3)
    again.close()
    assert again.step_state.optimizer_step == 18


def test_files_that_are_written_and_read_by_name(places):
    home, here, _ = places
    trainer = make(hooks=[OutputsHook("~/outputs")])
    trainer.step(3)
    assert trainer.save("~/run.pt") == home / "run.pt"
    assert trainer.export("~/model") == home / "model.safetensors"
    trainer.journal.save("~/journal.jsonl")
    assert Journal.load("~/journal.jsonl").header == trainer.journal.header
    trainer.fit()
    assert load_outputs("~/outputs/valid").keys()
    other = make()
    other.load("~/run.pt")
    assert other.step_state.optimizer_step == 3
    make(hooks=[ReplayHook("~/journal.jsonl")])
    resumed = make(hooks=[CheckpointHook("~/checkpoints", resume="~/run.pt")])
    resumed.fit()
    assert torch.equal(resumed.model.weight, trainer.model.weight)
    assert not inside(here)


def test_a_file_to_resume_from_is_the_one_that_was_named(places, monkeypatch):
    _, here, other = places
    first = make()
    first.step(3)
    first.save("run.pt")
    hook = CheckpointHook("checkpoints", resume="run.pt")
    with make(hooks=[hook]) as second:
        monkeypatch.chdir(other)
        second.fit()
    assert hook.resumed_from == here / "run.pt" and not inside(other)


def test_a_folder_below_is_named_from_here(places, capsys):
    first = make(hooks=[CheckpointHook("checkpoints")])
    first.step(epochs=1)
    first.close()
    with make(hooks=[CheckpointHook("checkpoints", resume="latest")]) as second:
        second.step()
    said = capsys.readouterr().out
    assert "resumed from checkpoints/" in said and os.fspath(places[1]) not in said


def test_the_home_of_nobody_is_refused(places):
    with pytest.raises(ValueError, match="~nobody-of-that-name"):
        given_path("~nobody-of-that-name/files")
    for make_one in (lambda: CheckpointHook("~nobody-of-that-name/files"),
                     lambda: make(workspace="~nobody-of-that-name/files")):
        with pytest.raises(ValueError, match="~nobody-of-that-name"):
            make_one()
    assert not inside(places[1])
