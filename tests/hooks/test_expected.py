"""What users of other trainers look for:
stops by a threshold, the best few checkpoints, averages from a step on, limits, small searches."""

import errno
import math
import warnings

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import CheckpointHook, EarlyStopHook, EMAHook, Hook, Trainer
from trainer_nb.support.files import whole_file
from trainer_nb.core.runner import out_of_memory

DATA = TensorDataset(torch.randn(40, 4, generator=torch.Generator().manual_seed(1)),
                     torch.zeros(40, 1))


class Scripted:
    """A metric whose values are known beforehand."""

    def __init__(self, *values):
        self.values, self.number = list(values), 0

    def __call__(self, pred, target):
        """The next one."""
        self.number += 1
        return self.values[min(self.number, len(self.values)) - 1]


def make(*hooks, values=(1.0,), epochs=8, valid=True, model=None, **settings):
    """Two steps an epoch, and a metric with these values."""
    torch.manual_seed(0)
    model = model or nn.Linear(4, 1)
    more = ({"valid_dl": DataLoader(DATA, 40), "metrics": {"mark": Scripted(*values)}}
            if valid else {})
    return Trainer(model, train_dl=DataLoader(DATA, 20), loss_fn=nn.MSELoss(), epochs=epochs,
                   device="cpu", progress=False, seed=0,
                   hooks=list(hooks), **{**more, **settings})


# ---- early stop

@pytest.mark.parametrize("mode, values, epochs",
                         [("max", (0.1, 0.95, 0.2), 2),
                          ("max", (0.1, 0.9, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3), 2),
                          ("min", (3.0, 2.0, 0.9), 2)])
def test_a_run_ends_as_reached(mode, values, epochs):
    """At once, whatever the patience; the value itself is enough."""
    hook = EarlyStopHook("valid/mark", mode, patience=50, reached=0.9 if mode == "max" else 2.0)
    trainer = make(hook, values=values)
    result = trainer.fit()
    assert (result.status, result.epochs) == ("stopped", epochs)
    assert hook.reason.startswith("early stop: reached (reached=")
    assert trainer.journal.entries[0].new == hook.reason
    with pytest.warns(UserWarning, match="reached"):
        assert trainer.fit().epochs == epochs
    assert trainer.fit(epochs=20).epochs > epochs


@pytest.mark.parametrize("value", [10.0, 11.0, math.inf, math.nan])
def test_a_run_ends_as_diverged(value):
    """The value itself, a worse one, and what is not a number."""
    hook = EarlyStopHook("valid/mark", patience=50, diverged=10.0)
    result = make(hook, values=(1.0, 9.9, value)).fit()
    assert (result.status, result.epochs) == ("stopped", 3)
    assert hook.reason.startswith("early stop: diverged (diverged=10)")


def test_a_relative_difference():
    """One percent of the best value; absolute it would be another run."""
    values = (100.0, 99.5, 99.2, 98.9, 98.5, 98.2, 98.1, 98.0)
    relative, absolute = (EarlyStopHook("valid/mark", patience=5, min_delta=0.01, relative=True),
                          EarlyStopHook("valid/mark", patience=5, min_delta=0.01))
    assert make(relative, values=values).fit().status == "finished" and relative.best == 98.9
    assert make(absolute, values=values).fit().status == "finished" and absolute.best == 98.0
    tight = EarlyStopHook("valid/mark", patience=2, min_delta=0.01, relative=True)
    assert make(tight, values=values).fit().epochs == 3 and "by more than 1 %" in tight.reason
    below = EarlyStopHook("valid/mark", patience=2, min_delta=0.5, relative=True)
    # of a negative value, too
    assert make(below, values=(-1.0, -1.2, -1.4, -1.6, -1.8, -2.0, -3.0, -3.0)).fit().epochs == 3


@pytest.mark.parametrize("settings, epochs",
                         [({"min_epochs": 5}, 5), ({"min_steps": 12}, 6), ({"min_steps": 11}, 6),
                          ({}, 3), ({"min_epochs": 2}, 3)])
def test_a_least_number_of_steps_or_epochs(settings, epochs):
    """No stop before; patience and thresholds wait alike."""
    assert make(EarlyStopHook("valid/mark", patience=2, **settings),
                values=(1.0,)).fit().epochs == epochs
    hook = EarlyStopHook("valid/mark", reached=2.0, **settings)
    assert make(hook,
                values=(1.0,)).fit().epochs == max(1, {3: 1}.get(epochs, epochs),
                                                   settings.get("min_epochs", 1))


def test_without_validation_data_the_training_is_judged():
    """The mean of its losses over each epoch; resumed in the middle it is the same stop."""
    class Loss(Hook):
        """Losses that fall, then rise."""
        def after_loss(self, trainer):
            """By the step."""
            step = trainer.step_state.optimizer_step
            trainer.loss = trainer.loss * 0 + abs(step - 7.0)
    hook = EarlyStopHook("train/loss", patience=2)
    trainer = make(hook, valid=False, epochs=20)
    model = trainer.model
    result = trainer.fit()
    losses = trainer.history["train/loss"].reshape(-1, 2).mean(1)
    assert hook.best == pytest.approx(losses[:hook.judged // 2].min())
    assert result.epochs == len(losses) and model is trainer.model
    fast = EarlyStopHook("train/loss", patience=1, min_delta=1e9)
    assert make(fast, valid=False).fit().epochs == 2 and "train/loss" in fast.reason
    first = make(EarlyStopHook("train/loss", patience=3, min_delta=1e9), valid=False)
    first.step(3)
    again = make(EarlyStopHook("train/loss", patience=3, min_delta=1e9), valid=False)
    again.load_state_dict(first.state_dict())
    assert again.fit().epochs == make(EarlyStopHook("train/loss", patience=3, min_delta=1e9),
                                      valid=False).fit().epochs == 4
    with pytest.raises(ValueError, match="'train/los'.*did you mean 'train/loss'"):
        make(EarlyStopHook("train/los"), valid=False).fit()
    with pytest.raises(ValueError,
                       match="there is no valid_dl; metric='train/loss' goes by the training"):
        make(EarlyStopHook(), valid=False).fit()


@pytest.mark.parametrize("settings, text", [
    ({"reached": "x"}, "reached='x'"), ({"diverged": math.nan}, "diverged=nan"),
    ({"reached": 2.0, "diverged": 1.0}, "the lower one"),
    ({"mode": "max", "reached": 1.0, "diverged": 2.0}, "the higher one"),
    ({"min_epochs": -1}, "min_epochs=-1"), ({"min_steps": 1.5}, "min_steps=1.5"),
    ({"relative": 1}, "relative=1")])
def test_settings_that_make_no_sense(settings, text):
    """Named before anything runs."""
    with pytest.raises(ValueError, match=text):
        EarlyStopHook(**settings)


# ---- the best few

def kept(folder):
    """Steps of the checkpoints that are there."""
    return sorted(int(path.stem[5:13]) for path in folder.glob("step_*.pt"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("halted", [False, True], ids=["", "in two processes"])
def test_the_best_few_stay(tmp_path, mode, halted):
    """And what is no better than the worst of them is not even written."""
    values = (0.5, 0.3, 0.9, 0.1, 0.8, 0.9, 0.2, 0.0)
    values = values if mode == "max" else tuple(-value for value in values)
    def hook():
        return CheckpointHook(tmp_path, every_epochs=None, keep_last=0, best=("valid/mark", mode),
                              keep_best=3)
    if halted:
        first = make(hook(), values=values, epochs=8)
        first.step(epochs=3)
        first.close()
    trainer = make(hook(), values=values[3:] if halted else values)
    if halted:
        trainer.step(1)
        assert trainer.state_dict()[
            "hooks"]["checkpoint"]["best_values"] == sorted(values[:3], reverse=mode == "max")
    trainer.fit()
    trainer.close()
    assert kept(tmp_path) == [6, 10, 12, 16]  # 0.9, 0.8, 0.9, and the end
    assert trainer.get_hook(
        CheckpointHook).folder.best_of(trainer.get_hook(CheckpointHook).folder.kept()).step == 6
    state = trainer.state_dict()["hooks"]["checkpoint"]
    assert state["best_values"] == sorted(state["best_values"], reverse=mode == "max")
    assert len(state["best_values"]) == 3


def test_one_best_file_is_the_default(tmp_path):
    """As before."""
    make(CheckpointHook(tmp_path, every_epochs=None, keep_last=0, best=("valid/mark", "max")),
         values=(0.5, 0.9, 0.8, 0.1)).fit()
    assert kept(tmp_path) == [4, 16]
    for wrong in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match="keep_best="):
            CheckpointHook(tmp_path, keep_best=wrong)
    with pytest.raises(ValueError, match="keep_best=3 needs the record"):
        make(CheckpointHook(tmp_path / "new", keep_best=3)).fit()
    assert not (tmp_path / "new").exists()


# ---- averages

def test_an_average_from_a_step_on():
    """Before it there is none, and evaluations use the weights;
    then it is that of a hook which joined there."""
    hook = EMAHook(0.9, start_step=5, warmup=False)
    trainer = make(hook)
    trainer.step(4)
    with pytest.raises(RuntimeError, match="before step 5"):
        hook.ema_model
    trainer.step(1)
    assert all(torch.equal(a, b)
               for a, b in zip(hook.ema_model.parameters(), trainer.model.parameters()))
    expected = [p.detach().clone() for p in trainer.model.parameters()]
    for _ in range(3):
        trainer.step(1)
        expected = [torch.lerp(mean, p.detach(), 0.1)
                    for mean, p in zip(expected, trainer.model.parameters())]
    assert all(torch.allclose(a, b, atol=1e-7)
               for a, b in zip(hook.ema_model.parameters(), expected))
    for wrong in (-1, 1.5, True, None):
        with pytest.raises(ValueError, match="start_step="):
            EMAHook(start_step=wrong)


def test_statistics_that_were_renewed_stay():
    """`update_bn(loader, hook.ema_model)` was undone at the next access."""
    torch.manual_seed(0)
    hook = EMAHook(0.9)
    trainer = make(hook, model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)))
    trainer.step(3)
    before = hook.ema_model[1].running_mean.clone()
    update_bn(DataLoader(DATA, 8), hook.ema_model)
    renewed = hook.ema_model[1].running_mean.clone()
    assert not torch.equal(before, renewed) and torch.equal(hook.ema_model[1].running_mean, renewed)
    trainer.step(1)
    # those of the training again
    assert torch.equal(hook.ema_model[1].running_mean, trainer.model[1].running_mean)
    state = trainer.state_dict()
    update_bn(DataLoader(DATA, 8), hook.ema_model)
    trainer.load_state_dict(state)
    assert torch.equal(hook.ema_model[1].running_mean, trainer.model[1].running_mean)


# ---- limits and small searches

@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_predictions_of_a_few_batches(workers):
    """By the call or by the trainer; a share, too; no worker stays."""
    trainer = make(limit_batches={"predict": 2, "train": 1})
    loader = DataLoader(DATA, 8, num_workers=workers)
    whole = make().predict(loader)
    assert len(whole) == 40 and torch.equal(trainer.predict(loader), whole[:16])
    assert torch.equal(trainer.predict(loader, limit_batches=1), whole[:8])
    assert torch.equal(trainer.predict(loader, limit_batches=0.6), whole[:24])
    # of one limit for all, predictions are not cut
    assert len(make(limit_batches=1).predict(loader)) == 40
    for wrong in (0, -1, 1.5, "x", True):
        with pytest.raises(ValueError, match=r"limit_batches\['predict'\]="):
            trainer.predict(loader, limit_batches=wrong)


def test_a_search_of_a_few_steps():
    """It gives the losses, and says why there is no suggestion."""
    found = make().lr_find(num_steps=5)
    assert len(found.losses) == 5
    assert found.suggestion is None and "a curve of 10 or more is read" in found.note
    assert found.lrs[0] == pytest.approx(1e-7) and found.lrs[-1] == pytest.approx(10)
    with pytest.raises(ValueError, match="num_steps=1: a whole number of steps, 2 or more"):
        make().lr_find(num_steps=1)


@pytest.mark.parametrize("text, known", [
    ("CUDA out of memory. Tried to allocate 2 GiB", True),
    ("[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: "
     "you tried "
"to allocate 4 bytes. Error code 12", True),
("[enforce fail] data. DefaultCPUAllocator: not enough memory: you tried to allocate", True),
    ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
     "non-contiguous input.", True),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)", True),
    ("mat1 and mat2 shapes cannot be multiplied", False)])
def test_errors_of_a_memory_that_is_full(text, known):
    """Of the CPU's allocator and of libraries, not only torch's own class."""
    assert out_of_memory(RuntimeError(text)) is known and not out_of_memory(ValueError(text))
    class Small(nn.Linear):
        """Has room for five samples."""
        def forward(self, inputs):
            """Or fewer."""
            if len(inputs) > 5:
                raise RuntimeError(text)
            return super().forward(inputs)
    small = Small(4, 1)
    start = {name: value.clone() for name, value in small.state_dict().items()}
    trainer = make(model=small, valid=False, micro_batch_size="auto")
    if not known:
        with pytest.raises(RuntimeError, match="shapes"):
            trainer.step(2)
        return
    trainer.step(2)
    assert [(entry.old, entry.new) for entry in trainer.journal
            if entry.kind == "memory"] == [(20, 10), (10, 5)]
    plain = make(valid=False, micro_batch_size=5)
    plain.model.load_state_dict(start)
    plain.step(2)
    assert all(torch.equal(a, b)
               for a, b in zip(trainer.model.parameters(), plain.model.parameters()))


def test_the_allocator_of_the_cpu_itself():
    """Its real error."""
    with pytest.raises(RuntimeError) as found:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert out_of_memory(found.value)


# ---- time that is used up, errors with a message alone

@pytest.mark.slow
@pytest.mark.parametrize("way", ["fit", "step", "start"])
def test_no_step_when_the_time_is_used_up(tmp_path, way):
    """A job that is started again trained one step each time."""
    first = make(CheckpointHook(tmp_path), max_time=1e9, epochs=200)
    first.step(4)
    first.close()
    again = make(CheckpointHook(tmp_path), max_time=1e-6, epochs=200)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        getattr(again, way)()
        again.wait()
    assert again.step_state.optimizer_step == 4
    assert any("are used up" in str(each.message) for each in told)
    longer = make(CheckpointHook(tmp_path), max_time=1e9, epochs=4)
    assert longer.fit().steps == 8


def test_an_error_with_a_message_alone_keeps_it(tmp_path):
    """A file's name would hide it."""
    with pytest.raises(OSError) as found, whole_file(tmp_path / "a.pt"):
        raise OSError("the quota is used up")
    assert str(found.value) == "the quota is used up" and "a.pt" in found.value.__notes__[0]
    with pytest.raises(OSError, match="No space.*a.pt") as found, whole_file(tmp_path / "a.pt"):
        raise OSError(errno.ENOSPC, "No space left on device")
