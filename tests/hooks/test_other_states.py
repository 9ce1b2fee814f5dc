"""Runs that become others on the way: a state is loaded into a folder of another run, all steps are
taken back, a metric is judged otherwise, the optimizer is new. Nothing is lost or mixed."""

import json
import os
import shutil
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import (CheckpointHook, EarlyStopHook, ReplayHook, SchedulerHook, SnapshotHook,
                        Trainer, attach)

X = torch.randn(56, 4, generator=torch.Generator().manual_seed(3))
TRAIN, VALID = TensorDataset(X, X[:, :1] * X[:, 1:2]), TensorDataset(X[:24], X[:24, :1])


def run(shuffle=True, **settings):
    """A trainer with epochs of seven steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    settings = {"epochs": 3, "seed": 0, "loss_fn": nn.MSELoss(), "valid_dl": DataLoader(VALID, 8),
                "optim": lambda p: torch.optim.AdamW(p, lr=0.01), **settings}
    return Trainer(net, train_dl=DataLoader(TRAIN, 8, shuffle=shuffle), device="cpu",
                   progress=False, **settings)


def same(one, other):
    """Bit for bit."""
    return all(map(torch.equal, one.model.state_dict().values(), other.model.state_dict().values()))


def files(folder):
    """Name and content of all files below a folder, without the lock."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.name != ".lock"}


def other_run(folder):
    """A file of another run, at step 7."""
    other = run(epochs=1, optim=lambda p: torch.optim.AdamW(p, lr=0.5))
    other.fit()
    other.save(folder / "other.pt")
    return folder / "other.pt"


@pytest.mark.parametrize("own", [False, True])
def test_a_state_that_is_loaded_before_the_first_fit_leaves_the_folder_alone(own, tmp_path):
    """Of another run, or an earlier one of the folder: it goes to a folder of its own."""
    first = run(workspace=tmp_path / "a", hooks=[CheckpointHook()])
    first.fit()
    first.close()
    file = tmp_path / "a/checkpoints/step_00000007.pt" if own else other_run(tmp_path)
    before = files(tmp_path / "a")
    second = run(workspace=tmp_path / "a", hooks=[CheckpointHook()], epochs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        second.load(file)
    second.fit()
    second.close()
    assert second.workspace == tmp_path / "a-2" and files(tmp_path / "a") == before
    assert attach(tmp_path / "a").history.steps("train/loss").tolist() == [*range(1, 22)]


def test_a_rewind_does_not_become_another_run(tmp_path):
    """Whose files lie in the folder of the checkpoints."""
    run(hooks=[CheckpointHook(tmp_path / "ck")]).fit()
    second = run(hooks=[CheckpointHook(tmp_path / "ck")], epochs=4)
    second.load(other_run(tmp_path))
    second.step(2)
    assert second.rewind_points() == []
    with pytest.raises(ValueError, match="no snapshot or checkpoint"):
        second.rewind(8)
    second.fit()
    assert {point.step for point in second.rewind_points()} <= {14, 21, 28}
    listed = json.loads((tmp_path / "ck/checkpoints.json").read_text())
    assert listed["best"] != "step_00000021.pt" or all(
        each["earlier"] is False for each in listed["checkpoints"])


def test_a_late_hook_goes_back_to_files_of_its_own_run(tmp_path):
    """One that is added in the middle, to the folder of the one before."""
    trainer = run(hooks=[CheckpointHook(tmp_path, every_steps=2, keep_last=None)])
    trainer.step(6)
    trainer.hooks.remove(trainer.get_hook(CheckpointHook))
    trainer.hooks.add(CheckpointHook(tmp_path, every_steps=2, keep_last=None))
    trainer.step(4)
    assert {2, 4, 6, 8, 10} <= {point.step for point in trainer.rewind_points()}


@pytest.mark.parametrize("sched", ["cosine", "one_cycle"])
@pytest.mark.parametrize("totals", [{"epochs": 4}, {"epochs": 2}, {"max_steps": 10}])
def test_other_totals_after_all_steps_were_taken_back(totals, sched, tmp_path):
    """As a new run of that length; the journal has it, and its script does the same."""
    given = {"sched": sched, "hooks": [SnapshotHook(every_steps=3)]}
    wanted = run(sched=sched, **{"epochs": None} | totals)
    wanted.fit()
    trainer = run(**given)
    trainer.step(7)
    trainer.rewind(0)
    trainer.fit(**totals)
    assert same(trainer, wanted)
    assert [each.kind for each in trainer.journal.entries] == ["rewind", "totals"]
    trainer.journal.save(tmp_path / "journal.jsonl")
    again = run(**given | {"hooks": [SnapshotHook(every_steps=3),
                                     ReplayHook(tmp_path / "journal.jsonl")]})
    again.fit()
    assert same(again, wanted)


def test_a_part_that_is_assigned_after_all_steps_were_taken_back_is_journalled(tmp_path):
    """So that nobody goes on without it."""
    def make(epochs, **settings):
        return run(epochs=epochs, workspace=tmp_path / "a",
                   hooks=[SnapshotHook(every_steps=3), CheckpointHook()], **settings)
    trainer = make(2)
    trainer.step(7)
    trainer.rewind(0)
    trainer.loss_fn = nn.L1Loss()
    trainer.fit()
    trainer.close()
    assert [each.name for each in trainer.journal.entries] == ["step", "loss_fn"]
    wanted = run(epochs=2, loss_fn=nn.L1Loss())
    wanted.fit()
    assert same(trainer, wanted)
    with pytest.raises(RuntimeError, match="loss_fn L1Loss"):
        make(3).fit()


def test_fewer_epochs_than_were_begun_end_with_the_one_that_was():
    """A schedule by the length goes on to its end."""
    for sched in "one_cycle", "cosine":
        trainer = run(sched=sched)
        trainer.step(9)
        with pytest.warns(UserWarning, match="is at epoch 2 already"):
            trainer.fit(epochs=1)
        assert trainer.step_state.optimizer_step == 14 == trainer.planned_steps
        assert trainer.state == "finished"


def test_a_resume_says_that_a_begun_epoch_is_ended(tmp_path, capsys):
    """And no more than that."""
    first = run(workspace=tmp_path, hooks=[CheckpointHook(every_steps=9)])
    first.step(9)
    first.close()
    second = run(workspace=tmp_path, hooks=[CheckpointHook(every_steps=9)], epochs=1)
    second.fit()
    said = capsys.readouterr().out
    assert "it ends with the epoch that has begun" in said and "nothing is left" not in said
    assert second.step_state.optimizer_step == 14


MAE = {"far": lambda pred, target: 1000 + (pred - target).abs().mean()}


def resumed(tmp_path, before, after, **settings):
    """A run of two epochs that goes on with other hooks or another `best`; its warnings."""
    for epochs, given in (2, before), (8, after):
        trainer = run(workspace=tmp_path / "a", epochs=epochs, metrics=MAE, **settings | given)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            trainer.fit()
        trainer.close()
    return trainer, " ".join(str(each.message) for each in told)


def hooks(*more):
    """Hooks of a run that goes on."""
    return {"hooks": [CheckpointHook(), *more]}


@pytest.mark.parametrize("after", [("valid/far", "min"), ("valid/loss", "max")])
def test_an_early_stop_by_another_metric_counts_anew(after, tmp_path):
    """Its values are not compared with those of another one."""
    trainer, told = resumed(tmp_path, hooks(EarlyStopHook("valid/loss", patience=9)),
                            hooks(EarlyStopHook(*after, patience=9)))
    assert f"by valid/loss min, and this hook goes by {' '.join(after)}" in told
    hook, values = trainer.get_hook(EarlyStopHook), trainer.history[after[0]][2:]
    assert hook.best == (values.max() if after[1] == "max" else values.min())


@pytest.mark.parametrize("after", [("valid/far", "min"), ("valid/loss", "max")])
def test_the_best_state_by_another_record_is_found_anew(after, tmp_path):
    """In the list of the files, in `best` and in its weights."""
    trainer, _ = resumed(tmp_path, {"best": ("valid/loss", "min"), **hooks()},
                         {"best": after, "hooks": [CheckpointHook()]})
    values = trainer.history[after[0]][2:]
    value = values.max() if after[1] == "max" else values.min()
    assert trainer.best["name"] == after[0] and trainer.best["value"] == value
    listed = json.loads((tmp_path / "a/checkpoints/checkpoints.json").read_text())
    assert [each["value"] for each in listed["checkpoints"]
            if each["file"] == listed["best"]] == [value]
    with trainer.best_weights():
        assert trainer.validate()[after[0]] == pytest.approx(value)


@pytest.mark.parametrize("metric, mode", [("valid/far", "min"), ("valid/loss", "max")])
def test_a_plateau_by_another_metric_is_judged_anew(metric, mode, tmp_path):
    """It has its own mode, and no best value of another one."""
    def plateau(metric, mode):
        return hooks(SchedulerHook(lambda optim: ReduceLROnPlateau(optim, mode=mode, patience=1),
                                   metric=metric, every="epoch"))
    trainer, told = resumed(tmp_path, plateau("valid/loss", "min"), plateau(metric, mode))
    assert f"judges by valid/loss min, and this schedule by {metric} {mode}" in told
    scheduler, values = trainer.get_hook(SchedulerHook).scheduler, trainer.history[metric][2:]
    assert scheduler.mode == mode
    assert scheduler.best == pytest.approx(values.max() if mode == "max" else values.min(),
                                           rel=1e-3)


def test_an_optimizer_that_began_anew_is_the_one_that_is_compared(tmp_path):
    """By the same program, started again."""
    run(epochs=2).save(tmp_path / "a.pt")

    def start(epochs, steps=None):
        trainer = run(epochs=epochs, workspace=tmp_path / "b", hooks=[CheckpointHook()],
                      optim=lambda p: torch.optim.SGD(p, lr=0.01))
        if not (tmp_path / "b/checkpoints").exists():
            trainer.load(tmp_path / "a.pt", optimizer=False)
        if steps:
            trainer.step(steps)
        else:
            trainer.fit()
        trainer.close()
        return trainer
    start(4, 3)
    assert start(4).step_state.optimizer_step == 28
    assert start(5).step_state.optimizer_step == 35


def test_another_order_in_the_middle_of_an_epoch_is_another_run(tmp_path):
    """Samples would come twice, and others never; between two epochs it is a change of the code."""
    first = run(workspace=tmp_path / "a", hooks=[CheckpointHook(every_steps=9)])
    first.step(9)
    first.close()
    with pytest.raises(RuntimeError, match=r"order by RandomSampler \(here SequentialSampler\)"):
        run(shuffle=False, workspace=tmp_path / "a", hooks=[CheckpointHook(every_steps=9)]).fit()
    whole = run(workspace=tmp_path / "b", hooks=[CheckpointHook()], epochs=1)
    whole.fit()
    whole.close()
    second = run(shuffle=False, workspace=tmp_path / "b", hooks=[CheckpointHook()], epochs=2)
    assert second.fit().epochs == 2


def test_a_rewind_to_before_all_files_is_saved_with_the_next_step(tmp_path):
    """Who starts again after a crash does not go on with what was taken back."""
    def make():
        return run(workspace=tmp_path / "a", hooks=[
            SnapshotHook(every_steps=2), CheckpointHook(every_steps=3, keep_last=1)])
    trainer = make()
    trainer.step(10)
    trainer.tune(lr=0.5)
    trainer.step(2)
    trainer.rewind(4)
    trainer.step(1)
    trainer.get_hook(CheckpointHook).saver.writer.wait()
    copy = tmp_path / "copy"  # as a process leaves it that is killed here
    shutil.copytree(tmp_path / "a", copy)
    trainer.close()
    shutil.rmtree(tmp_path / "a")
    copy.rename(tmp_path / "a")
    again, wanted = make(), run()
    again.fit()
    wanted.fit()
    assert same(again, wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_does_not_write_into_the_folder_of_the_run(tmp_path):
    """The run goes on where it was."""
    trainer = run(workspace=tmp_path, hooks=[CheckpointHook(every_steps=2)])
    trainer.step(3)
    child = os.fork()
    if not child:
        try:
            trainer.fit()
        except RuntimeError as error:
            os._exit(7 if "is a fork of the one" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    trainer.fit()
    trainer.close()
    assert attach(tmp_path).history.steps("train/loss").tolist() == [*range(1, 22)]
