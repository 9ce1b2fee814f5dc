"""Clicks come in threads of their own, while the run draws in its own."""

import threading

from small_runs import make

from trainer_nb import AlertsHook, Hook, SnapshotHook, Tunable
from trainer_nb.core.control import Command
from trainer_nb.core.state import RunState
from trainer_nb.panel import plots as plots_module
from trainer_nb.panel.plots import Curves, PastRun, remember_run
from trainer_nb.panel.view import LocalRunView


def beside(*actions, seconds=10):
    """Start the actions in threads; whether all have ended in time."""
    threads = [threading.Thread(target=action, daemon=True) for action in actions]
    for each in threads:
        each.start()
    for each in threads:
        each.join(seconds)
    return not any(each.is_alive() for each in threads)


def test_a_switch_of_the_tab_runs_and_a_drawing_do_not_wait_for_each_other(monkeypatch):
    """The click draws the plots; meanwhile the run's thread draws the tab."""
    monkeypatch.setattr(plots_module, "PAST", [])
    make(epochs=1).fit()
    earlier = make(epochs=1)
    earlier.dashboard
    earlier.fit()
    trainer = make(epochs=2)
    tabs = trainer.dashboard.tabs
    trainer.step(2)
    tabs.show("runs")
    pane = tabs.built["runs"]
    row, plain = next(iter(pane.rows.values())), pane._redraw
    clicked, drawing = threading.Event(), threading.Event()

    def slowly():
        clicked.set()
        drawing.wait(0.5)
        plain()

    def draw():
        assert clicked.wait(10)
        trainer.journal  # the run's thread comes to the tab while the click is at the plots
        pane._drawn = None
        threading.Timer(0.2, drawing.set).start()
        pane.refresh()

    pane._redraw = slowly
    assert beside(lambda: setattr(row.switch, "value", not row.switch.value), draw)
    assert row.run.shown is row.switch.value is True


def test_a_run_that_is_remembered_is_whole(monkeypatch):
    """Other panels read the list of earlier runs at any time."""
    monkeypatch.setattr(plots_module, "PAST", [])
    trainer = make(epochs=1)
    trainer.fit()
    seen, take = [], PastRun.take

    def slowly(self, view, source):
        seen.extend(plots_module.PAST)
        take(self, view, source)

    monkeypatch.setattr(PastRun, "take", slowly)
    remember_run(LocalRunView(trainer), 1)
    assert seen == [] and [past.state for past in plots_module.PAST] == [RunState.FINISHED]


def test_curves_that_are_read_stay_whole_while_others_come():
    """A record that comes, or a rewind, makes another dict: the one before can be gone through."""
    trainer = make(epochs=4, valid_dl=make().train_dl, hooks=[SnapshotHook(2)])
    trainer.step(3)
    curves = Curves(LocalRunView(trainer))
    curves.update()
    before = curves.of
    names, counts = list(before), [curve.count for curve in before.values()]
    trainer.step(4)
    curves.update()
    assert list(before) == names and "valid/loss" in curves.of
    trainer.rewind(2)
    later, extended = curves.of, []

    class Extended(Curves):
        def _extended(self, of, records):
            extended.append(self.of)
            return super()._extended(of, records)

    curves.__class__ = Extended
    curves.update()
    assert extended[0] is later and list(later)  # until the new one is there
    assert curves.of["train/loss"].count == 2 and counts[0] == 3


def test_a_value_that_is_refused_at_its_boundary_waits_no_longer():
    """Refused since it came too late, or since its hook has gone."""
    class Loud(Hook):
        loud = Tunable(1.0, min=0)

        def after_step(self, trainer):
            if trainer.step_state.optimizer_step == 2:
                replies.append(trainer.post(Command("tune", {"loud.loud": 2.0})))
                assert trainer.pending == {"loud.loud": 2.0}
                trainer.hooks.remove(self)

    replies = []
    trainer = make(epochs=2, hooks=[Loud()])
    trainer.step(3)
    assert replies[0].status == "refused" and trainer.pending == {}
    late = trainer.post(Command("tune", {"lr": 0.01}, basis=1, max_age_steps=1))
    assert late.status == "refused" and "too late" in late.reason
    assert trainer.pending == {} and trainer.rates() == [0.05]


def test_during_a_search_the_panel_knows_the_hooks_of_the_run():
    """Its alerts, its states to go back to, its tabs."""
    trainer = make(epochs=2, hooks=[AlertsHook(), SnapshotHook(1)])
    view, seen = LocalRunView(trainer), []
    trainer.step(3)
    trainer.alerts.append("of the run")
    usual = view.panes, view.can_rewind, view.alerts
    trainer.at_safe_point = lambda kind: kind == "sweep" and seen.append(
        (view.panes, view.can_rewind, view.alerts))
    trainer.lr_find(num_steps=8)
    assert seen and set(map(str, seen)) == {str(usual)} and usual[1] and "alerts" in usual[0]


def test_a_search_that_waits_at_the_end_of_a_drive_holds_nobody_up():
    """It begins when the drive is over, in a thread of its own: `post` goes on meanwhile."""
    class Find(Hook):
        def after_fit(self, trainer):
            replies.append(trainer.post(Command("lr_find", {"num_steps": 60})))

    replies, searching, posted = [], threading.Event(), []
    trainer = make(epochs=1, hooks=[Find()])

    def at_safe_point(kind):
        if kind == "sweep" and not searching.is_set():
            searching.set()
            def click():
                posted.append(trainer.post(Command("note", {"text": "meanwhile"})))
            assert beside(click, seconds=5), "post waits for the search"

    trainer.at_safe_point = at_safe_point
    trainer.fit()
    assert replies[0].wait(30).status == "applied" and searching.is_set() and len(posted) == 1
