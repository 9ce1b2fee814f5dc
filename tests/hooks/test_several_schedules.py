"""Several schedules of one optimizer, and schedules that go by a record of the training."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (CosineAnnealingLR, LambdaLR, LinearLR, ReduceLROnPlateau,
                                      StepLR)
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import EarlyStopHook, Hook, SchedulerHook, Trainer

LOSSES = [5, 4] + [4.5] * 30


def data():
    """Four batches of eight, with targets that no model can learn from them."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 6, generator=generator), torch.randn(32, 1, generator=generator)
    return DataLoader(TensorDataset(x, y), 8)


def judge(batch, trainer):
    """A loss that stops falling after the second epoch."""
    return {"loss": torch.tensor(LOSSES[trainer.step_state.epoch])}


def make(sched, lr=0.01, epochs=8, **settings):
    """A trainer whose schedules are functions of the optimizer or names."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    settings = {"valid_dl": data(), "eval_step": judge, **settings}
    return Trainer(model, train_dl=data(), loss_fn=nn.MSELoss(), epochs=epochs, device="cpu",
                   optim=torch.optim.SGD(model.parameters(), lr=lr), sched=sched, progress=False,
                   **settings)


def warm_up(optim):
    """A warm-up of six steps."""
    return LinearLR(optim, 0.1, total_iters=6)


def plateau(optim):
    """Half the rate where the loss stays."""
    return ReduceLROnPlateau(optim, patience=1, factor=0.5)


WARM = [0.001 + 0.009 * min(step, 6) / 6 for step in range(16)]
WANTED = WARM + [0.005] * 8 + [0.0025] * 8


def test_a_warm_up_and_a_plateau_are_applied_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = make([warm_up, SchedulerHook(plateau)])
        trainer.fit()
    assert trainer.history["lr"] == pytest.approx(WANTED)
    assert [type(each) for each in trainer.sched] == [LinearLR, ReduceLROnPlateau]
    assert trainer.rate_plan is None
    text = trainer.summary()
    assert "warm_up, changes each step" in text and "plateau, changes each evaluation" in text


def test_they_go_on_from_a_file_without_a_warning(tmp_path):
    first = make([warm_up, plateau])
    first.step(21)
    first.save(tmp_path / "run.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = make([warm_up, plateau])
        second.load(tmp_path / "run.pt")
        second.fit()
    assert second.history["lr"] == pytest.approx(WANTED)


def test_a_rate_written_by_hand_is_still_told():
    trainer = make([warm_up, plateau])
    trainer.step(2)
    trainer.optim.param_groups[0]["lr"] = 0.5
    with pytest.warns(UserWarning, match="0.5 was written into optim.param_groups"):
        trainer.step(1)


@pytest.mark.parametrize("steady", [lambda optim: LambdaLR(optim, lambda step: 1.0), "cosine"],
                         ids=["LambdaLR", "by name"])
def test_a_schedule_that_replaces_the_rate_of_the_other_is_named(steady):
    trainer = make([steady, plateau])
    with pytest.warns(UserWarning, match="of plateau is lost"):
        trainer.fit()


def test_assigned_schedules_take_the_place_of_all():
    trainer = make([warm_up, plateau])
    trainer.step(8)
    trainer.sched = [lambda optim: StepLR(optim, 4, 0.5), lambda optim: StepLR(optim, 6, 0.1)]
    assert [type(each) for each in trainer.sched] == [StepLR, StepLR]
    trainer.step(8)
    done = np.arange(8)
    assert trainer.history["lr"][8:] == pytest.approx(0.01 * 0.5 ** (done // 4)
                                                      * 0.1 ** (done // 6))
    trainer.sched = None
    assert trainer.sched is None
    trainer.step(2)
    assert trainer.history["lr"][-1] == pytest.approx(0.01)


def test_another_optimizer_takes_both():
    trainer = make([warm_up, plateau])
    trainer.step(2)
    trainer.optim = lambda parameters: torch.optim.SGD(parameters, lr=0.02)
    trainer.step(6)
    assert trainer.history["lr"][-1] == pytest.approx(0.02)
    assert all(each.optimizer is trainer.optim for each in trainer.sched)


def test_a_list_in_a_hook_is_refused_with_what_to_write():
    with pytest.raises(TypeError, match=r"sched=\[a, b\]"):
        SchedulerHook([warm_up, plateau])


@pytest.mark.parametrize("valid", [True, False])
def test_a_plateau_goes_by_the_mean_loss_of_an_epoch(valid):
    class Means(Hook):
        """The mean of each epoch, by hand."""
        order = 40

        def __init__(self):
            self.means = []

        def after_epoch(self, trainer):
            """Four steps make an epoch."""
            trainer.history.flush()
            self.means.append(float(np.mean(list(trainer.history["train/loss"])[-4:])))

    hook, means = SchedulerHook(plateau, metric="train/loss"), Means()
    assert hook.every is None  # as the scheduler has it
    trainer = make(hook, lr=0.3, epochs=16, valid_dl=data() if valid else None,
                   hooks=[means, EarlyStopHook("train/loss", patience=30)])
    trainer.fit()
    assert hook.every == "epoch"
    expected = ReduceLROnPlateau(torch.optim.SGD([torch.zeros(1)], lr=0.3), patience=1, factor=0.5)
    rates = []
    for mean in means.means:
        rates += [expected.optimizer.param_groups[0]["lr"]] * 4
        expected.step(mean)
    assert trainer.history["lr"] == pytest.approx(rates)
    assert rates[-1] < 0.3, "this run never stood still"


def test_the_mean_of_an_epoch_survives_a_file_in_its_middle(tmp_path):
    def new():
        """By the training's loss."""
        trainer = make(SchedulerHook(plateau, metric="train/loss"), lr=0.3, epochs=12)
        return trainer

    straight = new()
    straight.fit()
    first = new()
    first.step(18)
    first.save(tmp_path / "run.pt")
    second = new()
    second.load(tmp_path / "run.pt")
    second.fit()
    assert list(second.history["lr"]) == list(straight.history["lr"])
    assert torch.equal(second.model.weight, straight.model.weight)


def test_a_record_that_does_not_come_is_named():
    trainer = make(SchedulerHook(plateau, metric="train/los"), epochs=2)
    with pytest.raises(ValueError, match="did you mean 'train/loss'"):
        trainer.fit()
    trainer = make(SchedulerHook(plateau, metric="train/loss"), record=False)
    with pytest.raises(ValueError, match="keeps no history|train/loss"):
        trainer.fit()
    for every, metric, other in (("evaluation", "train/loss", "every='epoch'"),
                                 (None, "valid/loss", "metric='train/loss'")):
        trainer = make(SchedulerHook(plateau, every, metric), valid_dl=None)
        with pytest.raises(ValueError, match=other):
            trainer.fit()
        assert trainer.step_state.optimizer_step == 0


def test_a_schedule_that_falls_is_multiplied_by_one_of_torch_s():
    trainer = make([lambda optim: CosineAnnealingLR(optim, 32), lambda optim: StepLR(optim, 16,
                                                                                   0.1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit()
    assert trainer.history["lr"][15] > 5 * trainer.history["lr"][16]


@pytest.mark.parametrize("sched, text", [
    ("cosine", "cosine with a linear warm-up over 0.05 of the run (2 steps)"),
    (SchedulerHook("warmup_stable_decay", warmup=7), "with a linear warm-up over 7 steps"),
    (SchedulerHook("cosine", warmup=0), "cosine, changes"), ("one_cycle", "one_cycle, changes")])
def test_the_summary_says_how_a_schedule_by_name_begins(sched, text):
    assert text in make(sched).summary()
