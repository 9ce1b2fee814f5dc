"""Use of the machine as small curves: read in a thread of its own, while a page shows a run."""

import threading

import pytest
import torch
from feed_page import Page
from steered import until
from torch import nn
from trainer_nb import Trainer, attach
from trainer_nb.panel import system
from trainer_nb.panel.system import MONITOR, Figure, Figures, Machine, Monitor, mean_of


def make(**settings):
    """A linear model."""
    model = nn.Linear(4, 1)
    data = [(torch.ones(8, 4), torch.ones(8, 1))] * 20
    return Trainer(model, train_dl=data, loss_fn=nn.MSELoss(), epochs=1, device="cpu",
                   progress=False, **settings)


def threads():
    """Those that read the figures."""
    return [each for each in threading.enumerate() if each.name == "trainer_nb system"]


@pytest.fixture
def monitor(monkeypatch):
    """The one of this process, as it is at first, and in a hurry."""
    MONITOR.close()
    monkeypatch.setattr(MONITOR, "every", 0.02)
    monkeypatch.setattr(MONITOR, "sent", None)
    monkeypatch.setattr(MONITOR, "figures", Figures())
    yield MONITOR
    MONITOR.close()


def test_it_begins_with_the_first_page(monitor):
    """Not with a run or a listener; the tab has the figures of the time before it was opened."""
    trainer = make()
    trainer.feed.listen("state", print)
    trainer.fit()
    assert monitor.sent is None and not threads()
    page = Page(trainer.feed).hello()
    trainer.feed.look()
    until(lambda: monitor.sent is not None and "cpu" in monitor.sent["figures"])
    assert "system" not in page.view and "system" in page.view["run"]["panes"]
    page.open("system")
    figures = page.view["system"]["figures"]
    assert figures["memory"]["unit"] == "GB" and 0 < figures["memory"]["now"] < (
        figures["memory"]["most"])
    assert 0 < figures["process"]["now"] < figures["memory"]["most"]
    assert 0 <= figures["cpu"]["now"] <= 100 and figures["cpu"]["points"]
    assert threads()[0] is not threading.current_thread()
    trainer.close()


def test_only_what_is_new_travels(monitor):
    """A patch has the newest points."""
    trainer = make()
    page = Page(trainer.feed).hello().open("system")
    trainer.feed.look()
    until(lambda: monitor.sent is not None and len(monitor.sent["figures"]["memory"]["points"]) > 1)
    first = monitor.sent
    until(lambda: monitor.sent is not first)
    assert first["figures"]["memory"]["points"].keys() <= (
        monitor.sent["figures"]["memory"]["points"].keys())
    assert page.view["run"]["name"] == "Linear"
    trainer.close()


def test_it_ends_when_no_page_is_fed(monitor):
    """And begins again, with the same figures."""
    one = Monitor(every=0.01, rest=0.05)
    one.watch()
    until(lambda: one.sent is not None)
    until(lambda: not threads())
    rows = len(one.figures.rows)
    one.watch()
    until(lambda: len(threads()) == 1 and one.figures.rows and len(one.figures.rows) >= rows)
    one.watch()
    assert len(threads()) == 1
    one.close()
    assert not threads()


def test_a_run_elsewhere_has_no_such_tab(tmp_path, monitor):
    """These would be the figures of another machine."""
    make(workspace=tmp_path / "run").fit()
    run = attach(tmp_path / "run")
    page = Page(run.dashboard.feed).hello().open("system")
    assert "system" not in page.view["run"]["panes"] and "system" not in page.view
    assert not threads() and run.view.system is None
    run.close()


def test_without_psutil_the_memory_of_the_process_is_left():
    """The rest is left out."""
    machine = Machine()
    machine.psutil = None
    machine.read()
    assert machine.read().keys() == {"process"} and machine.missing == ""


def test_without_psutil_a_page_says_what_to_install(monkeypatch):
    """Not less, without a word."""
    monkeypatch.setattr(system, "find_psutil", lambda: None)
    assert "pip install psutil" in Machine().missing


def test_what_cannot_be_read_is_left_out():
    """An error of the system ends nothing."""
    machine = Machine()
    machine.psutil = object()
    assert machine.read().keys() == machine.read().keys() == {"process"}


def test_memory_is_bounded():
    """However long: 300 points, of the whole time, the newest ones included."""
    some, figures = Figures(), {"cpu": Figure("CPU", "%", 100.0)}
    for second in range(20_000):
        some.add(second + 0.3, {"cpu": 50.0} if second < 19_999 else {"cpu": 90.0})
        assert len(some.rows) <= 300
    sent = some.sent(figures)
    points = {int(at): value for at, value in sent["figures"]["cpu"]["points"].items()}
    assert min(points) == 0 and max(points) == 19_999 // sent["every"]
    assert len(points) >= 150 and sent["figures"]["cpu"]["now"] == 90.0
    assert list(points.values())[:-1] == [50.0] * (len(points) - 1)


def test_a_mean_is_over_the_rows_that_have_it():
    assert mean_of([{"a": 1.0}, {"a": 3.0, "b": 7.0}]) == {"a": 2.0, "b": 7.0}
