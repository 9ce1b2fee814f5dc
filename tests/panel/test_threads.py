"""Clicks come in threads of their own, while the run draws in its own."""

import threading

import ipywidgets as widgets
from jupyter_server import LIMIT
from small_runs import make

from trainer_nb import AlertsHook, Hook, SnapshotHook, Tunable
from trainer_nb.core.control import Command, Reply
from trainer_nb.core.state import RunState
from trainer_nb.panel.controls import Fields, MoreEpochs
from trainer_nb.panel.lr_pane import LRPane
from trainer_nb.panel.other_runs import PAST, PastRun, remember_run
from trainer_nb.panel.plots import Curves
from trainer_nb.panel.view import LocalRunView


def beside(*actions):
    """Start the actions in threads; whether all end."""
    threads = [threading.Thread(target=action, daemon=True) for action in actions]
    for each in threads:
        each.start()
    for each in threads:
        each.join(LIMIT)
    return not any(each.is_alive() for each in threads)


def test_a_switch_of_the_tab_runs_and_a_drawing_do_not_wait_for_each_other():
    """The click draws the plots; meanwhile the run's thread draws the tab."""
    PAST.clear()
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
        assert clicked.wait(LIMIT)
        trainer.journal  # the run's thread comes to the tab while the click is at the plots
        pane._drawn = None
        threading.Timer(0.2, drawing.set).start()
        pane.refresh()

    pane._redraw = slowly
    assert beside(lambda: setattr(row.switch, "value", not row.switch.value), draw)
    assert row.run.shown is row.switch.value is True


def test_a_run_that_is_remembered_is_whole(monkeypatch):
    """Other panels read the list of earlier runs at any time."""
    PAST.clear()
    trainer = make(epochs=1)
    trainer.fit()
    seen, take = [], PastRun.take

    def slowly(self, view, source):
        seen.extend(PAST)
        take(self, view, source)

    monkeypatch.setattr(PastRun, "take", slowly)
    remember_run(LocalRunView(trainer), 1)
    assert seen == [] and [past.state for past in PAST] == [RunState.FINISHED]


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
                assert trainer.tunables.pending == {"loud.loud": 2.0}
                trainer.hooks.remove(self)

    replies = []
    trainer = make(epochs=2, hooks=[Loud()])
    trainer.step(3)
    assert replies[0].status == "refused" and trainer.tunables.pending == {}
    late = trainer.post(Command("tune", {"lr": 0.01}, basis=1, max_age_steps=1))
    assert late.status == "refused" and "too late" in late.reason
    assert trainer.tunables.pending == {} and trainer.rates() == [0.05]


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
            assert beside(click), "post waits for the search"

    trainer.at_safe_point = at_safe_point
    trainer.fit()
    assert replies[0].wait(LIMIT).status == "applied" and searching.is_set() and len(posted) == 1


def heard(line, shown):
    """What the page sends for a click on the button of a line."""
    [fields] = [each for each in line.children if isinstance(each, Fields)]
    data = {"method": "custom", "content": {"shown": shown}}
    fields._handle_msg({"content": {"data": data}, "buffers": []})


def held_back(field, name, older):
    """As soon as the field is set by the click, an older message of the page comes in a thread."""
    def set_again(change):
        if getattr(field, name) != older:
            thread = threading.Thread(target=field.set_state, args=({name: older},))
            thread.start()
            thread.join()
    field.observe(set_again, name)


def test_a_click_has_what_its_line_showed_whatever_comes_in_between(monkeypatch):
    """The value of a click is that of its own message, not the one that stands in the field."""
    trainer = make(epochs=3, hooks=[SnapshotHook(every_steps=2)])
    trainer.step(10)
    chooser = trainer.dashboard.controls.chooser
    chooser.show()
    assert [label for label, _ in chooser.steps.options][:3] == ["step 10", "step 8", "step 6"]
    held_back(chooser.steps, "index", 3)
    heard(chooser.widget, ["step\xa06"])
    trainer.step()
    assert trainer.step_state.optimizer_step == 7 and not chooser.open

    asked = []
    more = MoreEpochs(trainer.view, asked.append)
    held_back(more.count, "value", "7")
    heard(more.widget, ["3"])
    assert asked == [3] and more.count.value == "7"

    posted = []
    pane = LRPane(trainer.view)
    monkeypatch.setattr(pane.view, "post", lambda command: posted.append(command) or Reply())
    [line] = [each for each in pane.widget.children[1].children
              if any(isinstance(part, Fields) for part in getattr(each, "children", ()))]
    held_back(pane.settings.boxes["num_steps"], "value", "70")
    heard(line, ["1e-6", "2", "30"])
    assert posted[0].values == {"start_lr": 1e-6, "end_lr": 2.0, "num_steps": 30}


def test_a_message_that_does_not_fit_a_line_does_nothing():
    """What comes from a page is data; a text that the list does not have leaves it as it is."""
    asked = []
    go, words, some = widgets.Button(), widgets.Text("1"), widgets.Dropdown(options=["a", "b"])
    line = widgets.Box([go, words, some, Fields(go, lambda *values: asked.append(values),
                                                words, some)])
    for shown in (None, "12", [], ["3"], ["3", "b", "c"], {"0": "3", "1": "b"}):
        heard(line, shown)
    assert asked == [] and (words.value, some.value) == ("1", "a")
    heard(line, ["3", "b"])
    heard(line, [4, "c"])
    go.click()
    assert asked == [("3", "b"), ("4", "b"), ("4", "b")]
