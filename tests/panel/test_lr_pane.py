"""The LR finder in the panel, on real runs: find, cancel, click, take."""

import threading

import pytest
from live_page import later
from lr_runs import make, whole
from trainer_nb.core.state import RunState
from trainer_nb.panel.lr_pane import LRPane


def searched(trainer, **texts):
    """A pane that has found a rate."""
    pane = LRPane(trainer.view)
    for name, text in texts.items():
        pane.settings.boxes[name].value = text
    pane.find.click()
    assert later(lambda: pane.asked.status != "pending")
    pane.refresh()
    return pane


def test_empty_before_the_first_search():
    """Dashes, a promise, one button that can be clicked."""
    pane = LRPane(make().view)
    assert [row.use.disabled for row in pane.rows.values()] == [True] * 5
    assert "<code>–</code>" in pane.rows["valley"].number.value and "put back" in pane.words.value
    assert pane.find.description == "Find" and not pane.find.disabled and pane.curve.picture == ""


def test_find_then_take_a_suggestion():
    """The four rates are those of the search; Use is an intervention by the panel;
    nothing else has changed."""
    trainer = make(loader="list")
    before = whole(trainer)
    pane = searched(trainer, start_lr="1e-5", end_lr="1", num_steps="60")
    found = trainer.lr_search
    assert len(found.sweep.planned) == 60
    assert found.sweep.planned[0] == 1e-5 and whole(trainer) == before
    assert {name: row.rate for name, row in pane.rows.items()
            if name != "clicked"} == found.suggestions
    assert pane.find.description == "Run again"
    assert "valley" in pane.curve.picture and "readings" in pane.words.value
    pane.rows["steepest"].use.click()
    assert trainer.lr == found.suggestions["steepest"]
    assert [(entry.name, entry.source) for entry in trainer.journal] == [("lr", "widget")]


def test_a_click_on_the_curve():
    """Left edge, right edge, middle: the rates there; outside the nearest; Use takes it."""
    trainer = make(loader="list")
    pane = searched(trainer, start_lr="1e-5", end_lr="1e-1", num_steps="41")
    for x, rate in ((46, 1e-5), (620, 1e-1), (333, 1e-3), (-50, 1e-5), (9999, 1e-1)):
        pane._on_click(None, {"x": x}, None)
        assert pane.clicked == pytest.approx(rate, rel=1e-6) == pane.rows["clicked"].rate
    pane.rows["clicked"].use.click()
    assert trainer.lr == pytest.approx(1e-1)
    pane._on_click(None, {"x": None}, None)
    assert pane.clicked == pytest.approx(1e-1)


def test_a_click_before_there_is_a_curve():
    """Nothing happens."""
    pane = LRPane(make().view)
    pane._on_click(None, {"x": 100}, None)
    assert pane.clicked is None


@pytest.mark.parametrize(("texts", "word"),
                         [({"start_lr": "low"}, "start_lr=&#x27;low&#x27;"),
                          ({"end_lr": "-1"}, "end_lr=-1"),
                          ({"num_steps": "1"}, "num_steps=1"),
                          ({"start_lr": "1", "end_lr": "1e-3"}, "lower")])
def test_a_range_that_is_refused(texts, word):
    """It is refused with its name, and what was typed stays."""
    trainer = make()
    pane = searched(trainer, **texts)
    assert word in pane.words.value and "wrong" in pane.words.value and trainer.lr_search is None
    assert all(pane.settings.boxes[name].value == text for name, text in texts.items())
    assert pane.find.description == "Find"


def test_progress_and_cancel():
    """While it goes on the button cancels; what was tried is drawn, nothing is suggested."""
    trainer = make()
    before, threads = whole(trainer), set(threading.enumerate())
    pane = LRPane(trainer.view)
    pane.settings.boxes["num_steps"].value = "200000"
    pane.find.click()
    assert later(lambda: trainer.lr_search is not None and len(trainer.lr_search.sweep) > 5)
    pane.refresh()
    assert pane.find.description == "Cancel" and "of 200000 rates tried" in pane.words.value
    assert all(row.use.disabled for row in pane.rows.values())
    pane.find.click()
    assert later(lambda: pane.asked.status == "applied")
    pane.refresh()
    assert "cancelled" in pane.words.value
    assert pane.find.description == "Run again" and len(trainer.lr_search.lrs) < 200000
    assert later(lambda: not set(threading.enumerate()) - threads)
    assert whole(trainer) == before


def test_in_a_pause_and_while_it_runs():
    """Asked for in either, it is made between two steps, and the run is where it was."""
    trainer = make(epochs=1_000_000)
    trainer.tune(lr=1e-6)  # a loss near zero is noise, and the search would end early
    pane = LRPane(trainer.view)
    pane.settings.boxes["num_steps"].value = "20"
    trainer.start()
    assert later(lambda: trainer.step_state.optimizer_step > 5)
    pane.find.click()
    assert later(lambda: pane.asked.status == "applied") and len(trainer.lr_search.lrs) > 4
    trainer.pause()
    assert later(lambda: trainer.state is RunState.PAUSED)
    first, step = trainer.lr_search, trainer.step_state.optimizer_step
    pane.find.click()
    assert later(lambda: pane.asked.status == "applied") and trainer.lr_search is not first
    assert trainer.step_state.optimizer_step == step and trainer.state is RunState.PAUSED
    trainer.stop()
    trainer.wait()


def test_with_a_schedule_the_schedule_is_scaled():
    """The journal says by how much."""
    import torch
    trainer = make(loader="list", sched=lambda optim: torch.optim.lr_scheduler.StepLR(optim, 10))
    pane = searched(trainer, start_lr="1e-5", end_lr="1")
    pane.rows["valley"].use.click()
    assert trainer.lr is None and trainer.rates()[0] == pytest.approx(trainer.lr_search.suggestion)
    assert trainer.journal.entries[-1].name == "lr_scale"


def test_it_is_a_tab_of_the_panel():
    """Built when it is opened."""
    trainer = make()
    board = trainer.dashboard
    assert "lr" not in board.tabs.built and board.tabs.buttons["lr"].description == "LR finder"
    board.tabs.show("lr")
    assert isinstance(board.tabs.built["lr"], LRPane)
