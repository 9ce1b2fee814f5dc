"""Widgets for layouts of one's own: each follows the run, and sets it."""

import gc
import weakref

import ipywidgets as widgets
import pytest
import torch
from steered import until
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import EMAHook, Hook, Trainer, Tunable

X = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))


class Kinds(Hook):
    """A tunable of each kind."""

    mode = Tunable("a", choices=("a", "b", None), optional=True)
    loud = Tunable(False)
    words = Tunable("x")
    share = Tunable(0.5, min=0, max=1)
    count = Tunable(3, min=1)


@pytest.fixture
def trainer():
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), 8)
    trainer = Trainer(nn.Linear(3, 1), train_dl=loader, loss_fn=nn.MSELoss(), epochs=100,
                      optim=lambda ps: torch.optim.SGD(ps, lr=0.01), device="cpu", seed=0,
                      hooks=[Kinds(), EMAHook(0.9)], progress=False)
    yield trainer
    trainer.close()


KINDS = {"lr": widgets.FloatLogSlider, "kinds.mode": widgets.Dropdown,
         "kinds.loud": widgets.Checkbox, "kinds.words": widgets.Text,
         "kinds.share": widgets.FloatSlider, "kinds.count": widgets.IntText,
         "gradient_accumulation_steps": widgets.IntText, "grad_clip": widgets.FloatText}


@pytest.mark.parametrize(("name", "value"), [
    ("lr", 0.002), ("kinds.mode", "b"), ("kinds.loud", True), ("kinds.words", "y"),
    ("kinds.share", 0.25), ("kinds.count", 7), ("gradient_accumulation_steps", 2),
    ("grad_clip", 0.5)])
def test_what_a_person_sets_is_in_force_and_what_a_program_sets_is_shown(trainer, name, value):
    """Once each: what is shown is not asked for again."""
    made = trainer.tunables[name].widget()
    assert isinstance(made, KINDS[name])
    before = made.value
    made.value = value
    trainer.step(1)
    assert trainer.tunables[name].read() == value
    if name not in ("grad_clip",):  # which began with None
        trainer.tune(**{name: before})
        trainer.step(1)
        assert made.value == pytest.approx(before) and trainer.tunables[name].read() == before
    entries = [each for each in trainer.journal.entries if each.name == name]
    assert len(entries) == (1 if name == "grad_clip" else 2)
    assert entries[0].source == "widget"


def test_what_is_shown_is_not_asked_for(trainer):
    """A slider shows a rate in its own steps, and leaves it as it is."""
    made = trainer.widget("lr")
    trainer.tune(lr=0.0123456)
    trainer.step(1)
    assert made.value == pytest.approx(0.0123456) and trainer.rate == 0.0123456


def test_what_the_run_refuses_goes_back_and_says_why(trainer):
    made = trainer.widget("kinds.count")
    usual = made.tooltip
    made.value = -3
    assert made.value == 3 and "1" in made.tooltip and not trainer.journal.entries
    made.value = 4
    assert made.tooltip == usual


def test_a_slider_widens_for_a_value_beyond_its_ends(trainer):
    made = trainer.widget("lr")
    trainer.tune(lr=100.0)
    trainer.step(1)
    assert made.value == pytest.approx(100.0)


def test_buttons_are_off_while_they_have_no_effect(trainer):
    """They steer a run in the background; of Start and Resume it is the one that acts."""
    pause, resume = trainer.widget("pause"), trainer.widget("resume")
    epoch = trainer.widget("step", epochs=1)
    assert pause.disabled and resume.description == "Start" and not resume.disabled
    resume.click()
    until(lambda: not pause.disabled)
    pause.click()
    until(lambda: pause.disabled and resume.description == "Resume" and not resume.disabled)
    assert trainer.state == "paused" and epoch.description == "Next epoch"
    trainer.stop()
    trainer.wait()


@pytest.mark.parametrize(("name", "values", "words"), [
    ("lrr", {}, "did you mean 'lr'"), ("pause", {"n": 1}, "no such value"),
    ("lr", {"n": 1}, "takes no values"), ("step", {"n": "x"}, "a whole number")])
def test_a_name_that_is_none(trainer, name, values, words):
    with pytest.raises(ValueError, match=words):
        trainer.widget(name, **values)
    with pytest.raises(ValueError, match="lrr"):
        trainer.tunables["lrr"]


def test_a_closed_widget_is_told_nothing(trainer):
    made = trainer.widget("lr")
    listeners = len(trainer.feed.listeners)
    made.close()
    trainer.tune(lr=0.5)
    trainer.step(1)
    assert len(trainer.feed.listeners) == listeners - 1


def test_a_widget_does_not_keep_the_trainer():
    made = Trainer(nn.Linear(3, 1), train_dl=[X], loss_fn=nn.MSELoss(), max_steps=1,
                   progress=False, device="cpu")
    shown = made.widget("lr")
    found = weakref.ref(made)
    del made
    gc.collect()
    assert found() is None and shown.value > 0
