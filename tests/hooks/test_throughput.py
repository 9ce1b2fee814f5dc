"""How fast a run is: samples by seconds of training, the same number wherever it is shown, also
where the loader waits at some steps."""

import re

import pytest
import torch
from small_runs import HandClock
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainer_nb import Hook, RecorderHook, Trainer
from trainer_nb.hooks.recorder import Throughput
from trainer_nb.panel.still import still
from trainer_nb.panel.view import LocalRunView
from trainer_nb.remote.live_page import Pages

CLOCK = HandClock()
NAME = "samples_per_second"


@pytest.fixture
def clock(monkeypatch):
    """Time passes where somebody naps, and only there."""
    return CLOCK.put_into(monkeypatch, "core.hook", "core.training", "core.runner", "core.driver",
                          "hooks.recorder")


class Stalling(Dataset):
    """Four samples a batch; each fourth batch is late."""

    def __init__(self, nap=0.2):
        self.nap = nap

    def __len__(self):
        return 4 * 48

    def __getitem__(self, index):
        CLOCK.move(0.01 / 4)
        if index % 16 == 15:
            CLOCK.move(self.nap)
        return torch.ones(3), torch.tensor([1.0])


class Slow(Hook):
    """Takes its time outside of steps, in evaluations, and in a pause."""

    def __init__(self):
        self.evaluating = 0.0

    def after_step(self, trainer):
        """Part of the training."""
        CLOCK.move(0.003)

    def before_valid(self, trainer):
        """Not a part of it."""
        CLOCK.move(7.0)

    def after_epoch(self, trainer):
        """Part of it."""
        CLOCK.move(0.05)


def make(**settings):
    """A run whose seconds are known."""
    model = nn.Linear(3, 1)
    return Trainer(model, train_dl=DataLoader(Stalling(), 4), loss_fn=nn.MSELoss(), device="cpu",
                   optim=torch.optim.SGD(model.parameters(), lr=0.01), progress=False,
                   **{"epochs": 2, **settings})


def head(trainer):
    """The number in the panel's head."""
    return trainer.feed.whole("numbers")["numbers"][NAME]["value"]


def kept(trainer):
    """The number in the picture that stays."""
    text = re.sub(r"<[^>]*>", " ", still(LocalRunView(trainer)))
    return float(re.search(r"([\d,]+) samples/s", text).group(1).replace(",", ""))


def page(trainer):
    """The number on the page of a run."""
    return Pages(trainer.workspace).read(False)["numbers"][NAME]["value"]


@pytest.mark.parametrize("hooks", [0, 1])
def test_all_numbers_are_samples_by_seconds_of_training(clock, hooks, tmp_path):
    slow = [Slow()] if hooks else []
    trainer = make(hooks=slow, valid_dl=[(torch.ones(4, 3), torch.ones(4, 1))],
                   workspace=tmp_path / "runs")
    trainer.step(30)
    clock.move(100.0)  # a pause
    trainer.fit()
    done = 2 * 48
    seconds = done * 0.01 + done / 4 * 0.2 + (done * 0.003 + 2 * 0.05 if hooks else 0)
    expected = 4 * done / seconds
    for found in (trainer.history[NAME][-1], head(trainer), kept(trainer), page(trainer)):
        assert found == pytest.approx(expected, rel=0.02)
    assert trainer.history[NAME][20:] == pytest.approx(expected, rel=0.02)


def test_a_run_that_becomes_slower_says_so(clock):
    trainer = make(epochs=4)
    trainer.step(96)
    fast = trainer.history[NAME][-1]
    trainer.train_dl.dataset.nap = 2.0
    trainer.fit()
    assert trainer.history[NAME][-1] == pytest.approx(fast * 0.24 / 2.04, rel=0.02)


def test_after_a_rewind_nothing_of_the_later_steps_counts(clock):
    trainer = make(epochs=4)
    trainer.step(8)
    state = trainer.state_dict()
    trainer.train_dl.dataset.nap = 50.0
    trainer.step(16)
    trainer.load_state_dict(state)
    trainer.train_dl.dataset.nap = 0.2
    trainer.step(8)
    assert trainer.history[NAME][-1] == pytest.approx(16 / 0.24, rel=0.05)


def test_the_window_is_of_seconds_or_steps():
    rate = Throughput(seconds=5.0, steps=20)
    quick = [rate.add(n + 1, 0.1 * (n + 1), 0.0, n, 0.1) for n in range(100)]
    assert quick == pytest.approx([10.0] * 100) and len(rate.points) == 51
    late = [rate.add(101 + n, 10 + 2.0 * (n + 1), 0.0, 100 + n, 2.0) for n in range(30)]
    assert late[-1] == pytest.approx(0.5) and len(rate.points) == 21


def test_it_is_a_record_of_several_optimizers_too(clock):
    model = nn.ModuleDict({"a": nn.Linear(3, 1), "b": nn.Linear(3, 1)})

    def step(name):
        """Of one part."""
        return lambda batch, trainer: {"loss": trainer.model[name](batch[0]).square().mean()}

    trainer = Trainer(model, train_dl=DataLoader(Stalling(), 4), device="cpu", progress=False,
                      train_step={"a": step("a"), "b": step("b")}, epochs=1, hooks=[RecorderHook()],
                      optim={name: torch.optim.SGD(model[name].parameters(), lr=0.01)
                             for name in ("a", "b")})
    trainer.fit()
    assert trainer.history[NAME][-1] == pytest.approx(16 / 0.24, rel=0.02)
