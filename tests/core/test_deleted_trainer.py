"""What `del trainer` gives back: the trainer, its model and its parameters at once, without the
cyclic collector."""

import gc
import os
import signal
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import Trainer
from trainer_nb.core.state import weakly
from trainer_nb.hooks.checkpoint import CheckpointHook
from trainer_nb.hooks.early_stop import EarlyStopHook
from trainer_nb.hooks.snapshots import SnapshotHook

KINDS = {
    "plain": lambda path: {"record": False},
    "recorder": lambda path: {"valid_dl": data(), "best": ("valid/loss", "min")},
    "progress": lambda path: {"progress": "lines"},
    "checkpoints": lambda path: {"hooks": [CheckpointHook(path, every_steps=2)]},
    "average": lambda path: {"ema": 0.9, "valid_dl": data()},
    "workspace": lambda path: {"workspace": path / "run", "hooks": [CheckpointHook()]},
    "schedule": lambda path: {"sched": lambda optim: torch.optim.lr_scheduler.StepLR(optim, 2)},
    "hooks": lambda path: {"valid_dl": data(),
                           "hooks": [SnapshotHook(), EarlyStopHook("valid/loss", patience=9)]},
}


def data():
    draw = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(20, 4, generator=draw),
                                    torch.randn(20, 2, generator=draw)), 4)


def make(**settings):
    """A trainer of two epochs of five steps."""
    settings = {"progress": False, "seed": 0, "epochs": 2, "device": "cpu"} | settings
    torch.manual_seed(2)
    return Trainer(nn.Linear(4, 2), train_dl=data(), loss_fn=nn.MSELoss(), **settings)


def finished(trainer):
    trainer.fit()


def stopped(trainer):
    trainer.step(3)
    trainer.stop()


def paused(trainer):
    trainer.step(3)


def paused_between_epochs(trainer):
    trainer.step(epochs=1)


def gone_on(trainer):
    trainer.step(2)
    trainer.step(1)


def in_the_background(trainer):
    trainer.start()
    trainer.wait()
    trainer.background.thread.join()


def steered(trainer):
    """Everything that leaves a method of the trainer somewhere."""
    trainer.step(2)
    trainer.lr_find(num_steps=12)
    trainer.sweep("weight_decay", [0.0, 0.1])
    trainer.pause_when("loss > 1e9")
    trainer.tune(lr=1e-3)
    trainer.note("a note")
    trainer.step(1)


@pytest.fixture(autouse=True, scope="module")
def no_collector():
    """The first optimizer of a process is another matter:
    torch imports a part of itself, and leaves frames of that."""
    torch.optim.AdamW(nn.Linear(1, 1).parameters())
    gc.disable()
    yield
    gc.enable()


def alive(trainer):
    parts = {"trainer": trainer, "model": trainer.plain_model,
             "weights": trainer.plain_model.weight}
    return {name: weakref.ref(part) for name, part in parts.items()}


def left(refs):
    return [name for name, ref in refs.items() if ref() is not None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", [finished, stopped, paused, paused_between_epochs, gone_on],
                         ids=lambda end: end.__name__)
def test_del_gives_all_back_at_once(tmp_path, kind, end):
    """No circle of references leads through a trainer, wherever its run stands."""
    handler = signal.getsignal(signal.SIGTERM)
    trainer = make(**KINDS[kind](tmp_path))
    end(trainer)
    refs = alive(trainer)
    del trainer
    assert left(refs) == []
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize("use", [in_the_background, steered], ids=lambda use: use.__name__)
def test_del_after_other_uses(use):
    """A thread that has ended, a search for a rate and what was asked for hold nothing either."""
    trainer = make()
    use(trainer)
    refs = alive(trainer)
    del trainer
    assert left(refs) == []


def test_what_is_left_of_a_trainer_says_that_it_is_gone():
    """Its history is read as before; what would need the trainer names it."""
    trainer = make()
    trainer.step(3)
    found = trainer.lr_find(num_steps=12)
    history = trainer.history
    del trainer
    assert len(history["train/loss"]) == 3
    for needs_it in (history.plot, lambda: found.tune(0.1)):
        with pytest.raises(ReferenceError, match="belongs to a Trainer that is gone"):
            needs_it()
    assert weakly(len) is len


def test_a_paused_run_goes_on_as_if_it_had_not_been_paused():
    """Without the generator that it had: step by step it is the run in one piece."""
    straight, pieces = (make(valid_dl=data(), max_steps=8, epochs=None, eval_every=3)
                        for _ in range(2))
    straight.fit()
    while pieces.state != "finished":
        pieces.step(1)
        if pieces.step_state.optimizer_step == 8:
            pieces.fit()
    assert torch.equal(straight.plain_model.weight, pieces.plain_model.weight)
    for name in ("train/loss", "valid/loss"):
        assert list(straight.history[name]) == list(pieces.history[name])


@pytest.fixture
def heard():
    """The signals that came to the handler of before all runs."""
    numbers = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def with_folder(path):
    return make(hooks=[CheckpointHook(path, every_epochs=None)])


def test_paused_runs_leave_no_handlers(tmp_path, heard):
    """Dropped in the order in which they began, and the other way round:
    the handler of before is back."""
    outside = signal.getsignal(signal.SIGTERM)
    for first, second in (("a", "b"), ("b", "a")):
        runs = {name: with_folder(tmp_path / (first + name)) for name in "ab"}
        for trainer in runs.values():
            trainer.step(1)
        del trainer
        del runs[first]
        assert signal.getsignal(signal.SIGTERM) is not outside  # one of them is still there
        del runs[second]
        assert signal.getsignal(signal.SIGTERM) is outside


def test_a_signal_reaches_past_a_paused_run(tmp_path, heard):
    """A run that is driven while another one is paused is saved before the process ends, and only
    what was there before hears of it too."""
    paused = with_folder(tmp_path / "paused")
    paused.step(1)
    driven = with_folder(tmp_path / "driven")
    driven.step(2)
    theirs, after = signal.getsignal(signal.SIGTERM), []
    def told_to_end(trainer):
        os.kill(os.getpid(), signal.SIGTERM)
        after.append(signal.getsignal(signal.SIGTERM))
    driven.get_hook(CheckpointHook).after_step = told_to_end
    driven.hooks.stale = True
    with pytest.raises(SystemExit) as end:
        driven.fit()
    assert end.value.code == 143 and heard == [signal.SIGTERM]
    assert after == [theirs]  # a second signal is heard too
    assert driven.get_hook(CheckpointHook).folder.kept()[-1].step == 3
    paused.stop()


def test_of_two_runs_the_earlier_one_ends_first(tmp_path, heard):
    """The later one still hears the signal, and at its end the handler of before comes back."""
    outside = signal.getsignal(signal.SIGTERM)
    earlier, later = with_folder(tmp_path / "earlier"), with_folder(tmp_path / "later")
    earlier.step(1)
    later.step(1)
    theirs = signal.getsignal(signal.SIGTERM)
    earlier.stop()
    assert signal.getsignal(signal.SIGTERM) is theirs
    later.stop()
    assert signal.getsignal(signal.SIGTERM) is outside
