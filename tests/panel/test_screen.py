"""What refreshes the panels of a run: seldom, at once where it turns; no error stops the run."""

from types import SimpleNamespace

import pytest
from small_runs import make

from trainer_nb.panel import screen as screen_module
from trainer_nb.panel.screen import Screen
from trainer_nb.support.words import what_failed


class Shown:
    """A panel that notes when it is refreshed."""

    def __init__(self, act=lambda: None):
        self.ticks, self.closed, self.act = [], 0, act

    def tick(self, kind):
        """Note it."""
        self.ticks.append(kind)
        self.act()

    def close(self):
        """Note it."""
        self.closed += 1


@pytest.fixture
def clock(monkeypatch):
    """The time, which a test moves."""
    now = [100.0]
    monkeypatch.setattr(screen_module, "perf_counter", lambda: now[0])
    return now


def test_refreshing_is_rare_and_a_pause_and_its_end_come_at_once(clock):
    screen = Screen()
    shown = screen.add(Shown())
    for _ in range(1200):
        screen.tick("boundary")
        clock[0] += 0.001
    assert len(shown.ticks) == 3
    for kind in ("paused", "paused", "boundary", "boundary", "ended", "swept"):
        screen.tick(kind)
    assert shown.ticks == ["boundary"] * 3 + ["paused", "boundary", "ended", "swept"]


@pytest.mark.parametrize(("seconds", "between"), [(0.0, 0.5), (0.005, 1), (0.1, 2)])
def test_it_takes_little_time_and_no_picture_is_old(clock, seconds, between):
    """Twice a second; 1/200 of the time where it takes long; each two seconds at least."""
    times = []

    def slow():
        """As long as drawing takes."""
        times.append(clock[0])
        clock[0] += seconds
    screen = Screen()
    screen.add(Shown(slow))
    while len(times) < 4:
        screen.tick("step")
        clock[0] += 0.001
    assert [two - one for one, two in zip(times, times[1:])] == pytest.approx(
        [between] * 3, abs=0.01)


def test_a_panel_that_cannot_be_refreshed_stops_nothing():
    """Not the run, nor the other panels; the third error in a row ends it."""
    screen, good = Screen(), Shown()
    bad = screen.add(Shown(lambda: 1 / 0))
    screen.add(good)
    for word in ("tried again", "tried again", "no more"):
        with pytest.warns(UserWarning, match=f"Shown .*{word}.* .ZeroDivisionError"):
            screen.tick("ended")
    screen.tick("ended")  # no further warning
    assert len(bad.ticks) == 3 and len(good.ticks) == 4
    screen.close()
    assert bad.closed == good.closed == 1


def test_a_panel_that_failed_once_is_refreshed_again():
    """However often that happens, as long as it works in between."""
    fails = [True]
    screen = Screen()
    shown = screen.add(Shown(lambda: fails[0] and 1 / 0))
    for _ in range(4):
        fails[0] = True
        with pytest.warns(UserWarning, match="tried again; the run goes on .ZeroDivisionError"):
            screen.tick("ended")
        fails[0] = False
        screen.tick("ended")
    assert len(shown.ticks) == 8


def test_an_error_of_a_panel_does_not_end_the_training():
    trainer = make(epochs=2)
    trainer.panels.parts.screen.add(Shown(lambda: 1 / 0))
    with pytest.warns(UserWarning, match="the run goes on"):
        trainer.fit()
    assert trainer.state == "finished"


def test_where_clicks_cannot_arrive_the_run_says_why():
    """A pump that found no way in; not in a cell that awaits, nor without a cell."""
    trainer = make(epochs=2)
    screen = trainer.panels.parts.screen
    told = lambda: trainer.feed.whole("state")["state"].get("obstacle")
    assert told() is None
    screen.pump = SimpleNamespace(live=False, reason="this kernel's stream has no <flush>")
    assert told() == "this kernel's stream has no <flush>"
    screen.awaited = True
    assert told() is None
    screen.awaited, screen.pump.live = False, True
    assert told() is None


def test_an_error_is_named_with_its_notes():
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            error = ValueError("a bad\nshape")
            error.add_note("raised by hook 'probe' (Probe.after_pred)")
            raise error from first
    except ValueError as caught:
        import traceback
        text = "".join(traceback.format_exception(caught))
    assert what_failed(
        text) == "ValueError: a bad · shape · raised by hook 'probe' (Probe.after_pred)"
    assert what_failed("") == "an error"
