"""The panel without a browser: what is drawn, what is sent, what a click asks for, and that a run
never waits for it."""

import math
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import warm_kernels
from jupyter_client.manager import AsyncKernelManager
from kernel_client import manager_of
from jupyter_server import LIMIT

from trainer_nb import Trainer
from trainer_nb.core.commands import COMMANDS
from trainer_nb.core.control import Reply, Series
from trainer_nb.core.journal import Journal
from trainer_nb.core.state import Position, RunState
from trainer_nb.panel import screen as screen_module
from trainer_nb.panel.controls import Controls
from trainer_nb.panel.dashboard import Dashboard, message_text, rate, what_failed
from trainer_nb.panel.front_end import WIDGET
from trainer_nb.panel.other_runs import PAST, thinned
from trainer_nb.panel.plots import (MOST_SUMMED, Chart, Curve, Curves, Plots,
                                    in_words, layout, mark_spots)
from trainer_nb.panel.still import measured


class Run:
    """A `RunView` whose numbers are set by hand."""

    def __init__(self, steps=0, state=RunState.RUNNING, names=("train/loss", "lr")):
        self.name, self.description, self.error = "net", "cpu", None
        self.state, self.steps, self.names = state, steps, list(names)
        self.journal, self.tunables, self.hooks = Journal(), [], []
        self.values = {}  # name -> values, where they matter
        self.posted, self.greeted, self.asked_for = [], 0, []
        self.loaders, self.in_cell, self.failed, self.dead_end = ["valid"], True, "", ""
        self.commands = {name: spec for name, spec in COMMANDS.items()
                         if name not in ("checkpoint", "train_more")}
        self.breakpoints, self.step_times, self.inspection = [], None, None
        self.memory = "Memory", 2**30, None
        self.averaged, self.branches, self.records_version = [], [], 0
        self.can_rewind, self.last_saved = False, None
        self.rate_plan = self.invalid_since = self.lr_search = None
        self.notice, self.waiting, self.alerts = ("", ""), [], []
        self.go_on, self.elsewhere = "", False
        self.panes = "hooks", "lr", "journal", "inspect"

    @property
    def position(self):
        done = self.steps
        return Position("train", done // 10, 20, done % 10, 10, done, 200, done * 4, done * 0.1,
                        min(1.0, done / 200), None, done)

    def records(self, since=None, most=None):
        self.asked_for.append(dict(since or {}))
        found = {}
        for name in self.names:
            values = self.values.get(name, np.linspace(2, 1, max(self.steps, 1))[:self.steps])
            start = (since or {}).get(name, 0)
            if len(values) > start:
                at = np.arange(start, len(values)) + 1
                found[name] = Series(at, at / 10, at * 4, at * 0.1,
                                     np.asarray(values, float)[start:])
        return found

    def post(self, command):
        self.posted.append((command.name, command.source))
        return Reply()

    def hello(self):
        self.greeted += 1


def drawn(chart, name):
    """x and y of the first trace of this name, as they travel."""
    trace = next(t for t in chart.figure["data"] if t["name"] == name)
    return np.frombuffer(trace["x"], np.float32), np.frombuffer(trace["y"], np.float32)


# Curves


def test_only_news_is_read():
    run = Run(steps=5, names=("train/loss", "time/step"))
    curves = Curves(run)
    curves.update()
    run.steps = 8
    assert curves.update() == (0, 16)
    assert run.asked_for == [{}, {"train/loss": 5, "time/step": 5}]
    assert curves.of["train/loss"].column("step").tolist() == list(range(1, 9))
    assert "time/step" not in curves.of  # counted, so that it is not sent again, but never drawn


def test_two_threads_read_no_point_twice():
    run = Run(steps=100)
    records = run.records
    def slowly(since):
        found = records(since)
        time.sleep(0.02)
        return found
    curves = Curves(run)
    curves.update()
    run.steps = 200
    run.records = slowly
    threads = [threading.Thread(target=curves.update) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert curves.of["train/loss"].count == 200


@pytest.mark.parametrize("count", [1, 699, 700, 701, 5000, 200_000])
def test_what_is_drawn_is_thin_and_keeps_peaks_and_ends(count):
    values = np.random.default_rng(0).normal(size=count)
    values[count // 2] = 40.0
    curve, at = Curve(), np.arange(count)
    curve.extend(Series(at, at / 10, at, at, values))
    x, y = curve.raw("step")
    assert len(x) == min(count, 700) and y.max() == 40.0
    assert (x[0], x[-1]) == (0, count - 1) and (np.diff(x) > 0).all()


def test_a_long_run_costs_little_to_send():
    run = Run(steps=0, names=("train/loss", "lr", "grad_norm"))
    run.values = {name: np.random.default_rng(1).normal(size=300_000) for name in run.names}
    run.steps = 300_000
    chart = Plots(run).chart
    assert sum(len(trace["x"]) + len(trace["y"]) for trace in chart.figure["data"]) < 60_000


def test_smoothing_is_the_mean_around_and_stops_at_gaps():
    values = np.array([1.0, 2, 3, np.nan, 5, np.inf, 7])
    curve, at = Curve(), np.arange(7)
    curve.extend(Series(at, at, at, at, values))
    x, y = curve.smoothed("step", 3)
    assert x.tolist() == at.tolist() and str(y.tolist()) == "[1.0, 2.0, 2.5, nan, 5.0, nan, 7.0]"


def test_every_point_that_comes_is_drawn():
    run = Run(steps=3)
    plots = Plots(run)
    for steps in (4, 60, 61, 100):
        run.steps = steps
        plots.refresh()
        assert drawn(plots.chart, "train")[0][-1] == steps
    panel = Dashboard(run)  # reads the curves before its plots do
    run.steps = 150
    panel.refresh()
    assert drawn(panel.plots.chart, "train")[0][-1] == 150


def test_nothing_new_sends_nothing():
    run = Run(steps=50)
    panel = Dashboard(run)
    sent = []
    for widget in (panel.plots.chart, panel.head.widget, panel.message.text, panel.controls.main,
                   panel.plots.bar.legend):
        widget.observe(lambda change: sent.append(change["name"]))
    panel.refresh()
    assert sent == []


def test_late_records_move_no_plot():
    """The first place waits for a metric; lr and the gradient norm keep theirs."""
    run = Run(steps=30, names=("train/loss", "lr", "grad_norm"))
    curves = Curves(run)
    curves.update()
    before = list(curves.groups())
    titles = [each["text"] for each in layout(curves.groups(), False, 30)["annotations"]]
    assert titles == ["metric after the first evaluation", "<b>lr</b>", "<b>grad_norm</b>"]
    run.names.append("valid/accuracy")
    curves.update()
    assert "evaluation" not in str(layout(curves.groups(), False, 30)["annotations"])
    assert before == ["metric", "lr", "grad_norm"]
    assert list(curves.groups()) == ["valid/accuracy", "lr", "grad_norm"]
    assert layout(curves.groups(), False, 30)["height"] == 400
    run.names += ["valid/f1", "other/f1"]
    curves.update()
    assert list(curves.groups()) == ["valid/accuracy", "lr", "grad_norm", "f1"]
    assert layout(curves.groups(), False, 30)["height"] == 530


def test_a_zoom_outlives_refreshes_but_not_another_axis():
    """plotly keeps it while `uirevision` is the same and no range is set."""
    run = Run(steps=30)
    plots = Plots(run)
    def revision():
        assert all("range" not in axis for key, axis in plots.chart.figure["layout"].items()
                   if key.startswith("xaxis"))
        return plots.chart.figure["layout"]["uirevision"]
    first = revision()
    run.steps = 40
    plots.refresh()
    assert revision() == first
    plots.bar.axis.value = "epoch"
    assert revision() != first and drawn(plots.chart, "train")[0][-1] == pytest.approx(4.0)


def test_marks_stand_where_the_change_was_and_have_the_journals_numbers():
    run = Run(steps=100)
    run.journal.record("pause", "pause", step=5)
    for step in (10, 11, 60):
        run.journal.record("tune", "lr", 1, 2, step=step)
    curves = Curves(run)
    curves.update()
    spots = [(round(x, 3), [entry.number for entry in entries])
             for x, entries in mark_spots(run, curves, "epoch")]
    assert spots == [(1.0, [2, 3]), (6.0, [4])]


def test_names_are_no_markup():
    run = Run(steps=3, names=("train/loss", "<i>x/loss", "valid/<b>y"))
    run.name = "<script>"
    panel = Dashboard(run)
    assert panel.plots.bar.legend.titles == ["train", "<i>x"]  # the page writes them as text
    texts = panel.head.widget.value + str(
        panel.plots.chart.figure["layout"]["annotations"])
    assert not any(tag in texts for tag in ("<i>x", "<b>y", "<script>"))


# Controls


ENABLED = {  # main button's label, and what is enabled
    RunState.IDLE: ("Start", True, ["Validate", "Export"]),
    RunState.RUNNING: ("Pause", True, ["Next epoch", "Validate", "Export", "Detach", "Stop"]),
    RunState.PAUSED: ("Resume", True, ["Step", "Next epoch", "Validate", "Export", "Detach",
                                     "Stop"]),
    RunState.STOPPED: ("Resume", True, ["Validate", "Export"]),
    RunState.INTERRUPTED: ("Resume", True, ["Validate", "Export"]),
    RunState.FINISHED: ("Resume", False, ["Validate", "Export"]),
    RunState.ERROR: ("Resume", True, ["Validate", "Export"]),
}


@pytest.mark.parametrize("state", ENABLED)
def test_buttons_are_there_when_they_mean_something(state):
    controls = Controls(Run(state=state))
    found = [label for label, each in controls.buttons.items() if not each.disabled]
    assert (controls.main.description, not controls.main.disabled, found) == ENABLED[state]


def test_nothing_to_detach_from_in_the_background():
    run = Run()
    controls = Controls(run)
    run.in_cell = False
    controls.refresh()
    assert controls.buttons["Detach"].disabled and not controls.buttons["Stop"].disabled


def test_validate_says_what_is_missing():
    run = Run()
    run.loaders = []
    controls = Controls(run)
    button = controls.buttons["Validate"]
    assert button.disabled and "no valid_dl" in button.tooltip


def test_a_click_sends_what_the_label_said():
    run = Run()
    controls = Controls(run)
    controls._settled = -1.0
    controls.main.click()
    run.state = RunState.PAUSED
    controls.refresh()
    controls._settled = -1.0
    controls.main.click()
    controls.buttons["Step"].click()
    controls.buttons["Stop"].click()
    assert run.posted == [(name, "widget") for name in ("pause", "resume", "step", "stop")]


def test_a_click_right_after_a_step_counts():
    """The label was another one for the moment of the step: nobody saw that. A label that has just
    come for good is not clicked by mistake."""
    run = Run(state=RunState.PAUSED)
    controls = Controls(run)
    controls._settled = -1.0
    for state in (RunState.RUNNING, RunState.PAUSED):
        run.state = state
        controls.refresh()
    controls.main.click()
    assert run.posted == [("resume", "widget")]
    controls._settled = -1.0
    run.state = RunState.RUNNING
    controls.refresh()
    controls.main.click()
    assert run.posted == [("resume", "widget")]


def test_a_second_click_and_one_for_the_old_label_are_dropped():
    run = Run()
    controls = Controls(run)
    controls._settled = -1.0
    controls.main.click()
    controls.main.click()
    run.state = RunState.PAUSED
    controls._settled = -1.0
    controls.refresh()  # the label changes under the hand
    controls.main.click()
    assert run.posted == [("pause", "widget")]


def test_the_answer_to_a_click_is_shown():
    run, reply = Run(), Reply()
    run.post = lambda command: reply
    panel = Dashboard(run)
    panel.controls._settled = -1.0
    panel.controls.main.click()
    assert "<b>Pause</b> was asked for" in panel.message.text.value
    reply.settle("refused", error=RuntimeError("not <now>"))
    panel.refresh()
    assert "<b>Pause</b> was refused: not &lt;now&gt;" in panel.message.text.value
    run.state = RunState.STOPPED
    panel.refresh()
    assert "Stopped at step" in panel.message.text.value


# Head and message


@pytest.mark.parametrize("name, values, expected", [
    ("valid/accuracy", [0.5, 0.9, 0.7], ("0.9000", "ep 0.2")),
    ("valid/mae", [0.5, 0.9, np.nan], ("0.5000", "ep 0.1")),
    ("valid/top1_error", [0.5, 0.4, 0.7], ("0.4000", "ep 0.2")),
    ("valid/accuracy", [np.nan, np.nan], ("", "")),
])
def test_best_knows_which_way_is_better(name, values, expected):
    run = Run(steps=3, names=("train/loss", name))
    run.values[name] = values
    assert Dashboard(run).head.numbers._best(name) == expected


def test_a_missing_number_is_a_dash():
    value = Dashboard(Run(steps=0, names=())).head.widget.value
    assert value.count('<span class="none">–</span>') == 8  # not the memory, and no metric


@pytest.mark.parametrize("value, text", [
    (0.39791, "0.3979"), (0.0020738, "0.002074"), (5.47e-4, "5.47e-4"), (0, "0.0000"),
    (3742.2, "3,742.2"),
    (float("nan"), "nan"), (2e7, "2.00e7")])
def test_numbers_are_short(value, text):
    assert measured(value) == text


@pytest.mark.parametrize("value, text",
                         [(5.47e-4, "5.47e-4"), (0.00139, "1.39e-3"), (0.0, "0"), (0.5, "0.5")])
def test_rates_have_three_digits(value, text):
    assert rate(value) == text


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


@pytest.mark.parametrize("state", RunState)
def test_every_state_has_its_word(state):
    run = Run(steps=12, state=state)
    run.error = "ValueError: <b>"
    panel = Dashboard(run)
    assert panel.message.text.value.count("<b>") <= 3 and message_text(run)
    assert (panel.message.action.layout.display is None) is (
        state in (RunState.PAUSED, RunState.FINISHED))
    assert f"{state.capitalize()}" in panel.head.widget.value
    assert sum(name.startswith("is-") for name in panel.widget._dom_classes) == 1


# A run and its dashboard


def test_drawing_is_rare_and_a_pause_is_drawn_at_once(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(screen_module, "perf_counter", lambda: now[0])
    run = Run(steps=1)
    board = Dashboard(run)
    drawings = []
    board.refresh = lambda: drawings.append(run.state)
    for _ in range(1200):
        board.screen.tick("boundary")
        now[0] += 0.001
    assert len(drawings) == 3
    run.state = RunState.PAUSED
    board.screen.tick("paused")
    assert drawings[-1] is RunState.PAUSED
    count = len(drawings)
    board.screen.tick("paused")
    assert len(drawings) == count
    run.state = RunState.RUNNING
    board.screen.tick("boundary")  # going on is drawn at once, too
    assert drawings[-1] is RunState.RUNNING


def test_a_panel_that_cannot_draw_stops_nothing():
    run = Run(steps=1)
    board = Dashboard(run)
    run.records = lambda since=None: 1 / 0
    for word in ("tried again", "tried again", "stopped drawing"):
        with pytest.warns(UserWarning, match=f"Dashboard .*{word}.* .ZeroDivisionError"):
            board.screen.tick("ended")
    board.screen.tick("ended")  # no further warning


def test_a_panel_that_could_not_draw_once_draws_again():
    """However often that happens, as long as it draws in between."""
    run = Run(steps=1)
    board = Dashboard(run)
    records = run.records
    for step in range(4):
        run.records = lambda since=None: 1 / 0
        with pytest.warns(UserWarning, match="tried again; the run goes on .ZeroDivisionError"):
            board.screen.tick("ended")
        run.records, run.name = records, f"after failure {step}"
        board.screen.tick("ended")
        assert f"after failure {step}" in board.head.widget.value


def test_a_tab_that_is_being_built_disturbs_no_drawing():
    """A click comes in a thread of its own, and a pane takes a while until it is built."""
    board = Dashboard(Run(steps=5))
    begun, go_on, make = threading.Event(), threading.Event(), board.tabs.makers["journal"]

    def slowly():
        begun.set()
        assert go_on.wait(LIMIT)
        return make()

    board.tabs.makers["journal"] = slowly
    click = threading.Thread(target=board.tabs.buttons["journal"].click)
    click.start()
    assert begun.wait(LIMIT)
    board.screen.draw()  # a warning is an error here
    assert board.tabs.open == "hooks" and board.screen.panes == [board]
    go_on.set()
    click.join(LIMIT)
    assert board.tabs.open == "journal"
    assert board.tabs.ground.children == (board.tabs.built["journal"].widget,)
    shown = [name for name, each in board.tabs.buttons.items() if "on" in each._dom_classes]
    assert shown == ["journal"]


def test_unseen_curves_wait_until_the_page_or_the_end():
    run = Run(steps=10)
    board = Dashboard(run)
    board.guard.hidden = True
    run.steps = 20
    board.refresh()
    assert drawn(board.plots.chart, "train")[0][-1] == 10
    run.state = RunState.FINISHED
    board.refresh()
    assert drawn(board.plots.chart, "train")[0][-1] == 20


def test_a_drawn_panel_says_hello():
    run = Run()
    board = Dashboard(run)
    board.guard.drawn += 1
    assert run.greeted == 1


def test_the_picture_follows_the_run(monkeypatch):
    """It is kept at the end and when a pause begins, not at every look during the pause."""
    run = Run(steps=5)
    board = Dashboard(run)
    kept = []
    board.preview.handle = SimpleNamespace(
        update=lambda bundle, raw: kept.append(bundle["text/plain"]))
    board.preview.due = float("inf")
    run.state = RunState.PAUSED
    for _ in range(3):
        board.screen._next = 0.0
        board.screen.tick("paused")
    run.state = RunState.FINISHED
    board.screen.tick("ended")
    assert [text.split()[1] for text in kept] == ["paused", "finished"]
    assert "data:image/svg+xml" in screen_module.as_image("<svg/>")


@pytest.mark.parametrize("seconds, least, most", [(0.0, 0.5, 0.5), (0.005, 1, 1), (0.1, 2, 2)])
def test_drawing_takes_little_time_and_the_panel_is_never_old(monkeypatch, seconds, least, most):
    """Twice a second, 1/200 of the time where drawing takes long, each two seconds at
    least."""
    now = [100.0]
    monkeypatch.setattr(screen_module, "perf_counter", lambda: now[0])
    board, drawn = Dashboard(Run(steps=5)), []

    def tick(kind):
        drawn.append(now[0])
        now[0] += seconds

    board.screen.panes = [SimpleNamespace(tick=tick)]
    while len(drawn) < 4:
        board.screen.tick("step")
        now[0] += 0.001
    for a, b in zip(drawn, drawn[1:]):
        assert least - 0.01 <= b - a <= most + 0.01


def test_where_clicks_cannot_arrive_the_panel_says_what_to_do():
    """A pump that found no way in, and a cell that awaits instead."""
    run = Run(steps=5)
    board = Dashboard(run)
    board.screen.pump = SimpleNamespace(live=False, reason="this kernel's stream has no <flush>")
    board.refresh()
    assert "controls wait for the cell" in board.head.widget.value
    assert "has no &lt;flush&gt;" in board.message.text.value
    assert "trainer.start()" in board.message.text.value
    board.screen.awaited = True
    board.refresh()
    assert "controls live (await)" in board.head.widget.value
    assert "start()" not in board.message.text.value
    board.screen.pump.live, board.screen.awaited = True, False
    board.refresh()
    assert "controls live</span>" in board.head.widget.value


def test_earlier_runs_stand_behind():
    """Only other runs, only when asked for, all of this kernel;
    each with its name, all its records, and a record that is whole."""
    PAST.clear()
    first = Run(steps=20, state=RunState.FINISHED)
    Plots(first)
    second = Run(steps=10)
    plots = Plots(second)
    behind = first.name
    assert not plots.bar.earlier.disabled
    assert all(t["name"] != behind for t in plots.chart.figure["data"])
    plots.bar.earlier.value = True
    assert drawn(plots.chart, behind)[0][-1] == 20 and first.name in plots.legend.titles
    plots.bar.earlier.value = False
    assert all(t["name"] != behind for t in plots.chart.figure["data"])
    assert plots.legend.entries == []
    for _ in range(8):
        Plots(Run(steps=3, state=RunState.STOPPED))
    plots.bar.axis.value = "epoch"
    assert len(plots.others.runs) == 9
    assert len({run.name for run in plots.others.runs}) == 9
    plots.bar.earlier.value = True
    assert len({run.ink for run in plots.others.shown}) == 9
    PAST.clear()


def click(legend, name):
    """A click on a key of the legend, as the page sends it."""
    legend._handle_custom_msg({"toggle": name}, [])


def test_a_click_in_the_legend_hides_and_shows_a_curve():
    """Its line, what is behind it and its crosses; the key stays, and the small plots too."""
    run = Run(steps=50, names=("train/loss", "valid/loss", "lr"))
    plots = Plots(run)
    whole = [trace["name"] for trace in plots.chart.figure["data"]]
    assert [(key["title"], key["off"]) for key in plots.bar.legend.entries] == [
        ("train", False), ("valid", False)]
    click(plots.bar.legend, "train/loss")
    main = [t["name"] for t in plots.chart.figure["data"] if t["yaxis"] == "y"]
    assert main == ["valid"] and plots.bar.legend.entries[0]["off"]
    small = [t["name"] for t in plots.chart.figure["data"] if t["yaxis"] != "y"]
    assert small == [name for name in whole[whole.index("valid") + 1:]]
    run.steps = 60  # it stays hidden when points come
    plots.refresh()
    assert "train" not in [t["name"] for t in plots.chart.figure["data"]]
    click(plots.bar.legend, "valid/loss")
    assert not [t for t in plots.chart.figure["data"] if t["yaxis"] == "y"]
    click(plots.bar.legend, "train/loss")
    click(plots.bar.legend, "valid/loss")
    assert [trace["name"] for trace in plots.chart.figure["data"]] == whole
    drawn_before = plots.chart.figure
    for wrong in ("lr", "run nobody", 3, None, ["train/loss"], {}):
        click(plots.bar.legend, wrong)
    assert plots.chart.figure is drawn_before


def test_a_click_in_the_legend_hides_and_shows_another_run():
    """It stays in the legend, as the switch of the tab Runs; off there, it leaves the legend."""
    PAST.clear()
    first = Run(steps=20, state=RunState.FINISHED)
    Plots(first)
    plots = Plots(Run(steps=10))
    plots.bar.earlier.value = True
    key = f"run {first.name}"
    assert [each["name"] for each in plots.legend.entries] == [key]
    click(plots.legend, key)
    assert plots.others.shown == [] and plots.legend.entries[0]["off"]
    assert all(t["name"] != first.name for t in plots.chart.figure["data"])
    click(plots.legend, key)
    assert drawn(plots.chart, first.name)[0][-1] == 20 and not plots.legend.entries[0]["off"]
    click(plots.legend, key)
    plots.bar.earlier.value = False
    assert plots.legend.entries == []
    PAST.clear()


def test_a_run_that_goes_on_is_remembered_as_it_is_then():
    """Under the name that a person gave it, and still shown."""
    PAST.clear()
    run = Run(steps=20, state=RunState.STOPPED)
    Plots(run)
    plots = Plots(Run(steps=5))
    plots.others.rename(run.name, "first try")
    plots.others.named("first try").show(True)
    plots.refresh()
    assert drawn(plots.chart, "first try")[0][-1] == 20
    run.steps = 30
    Plots(run)
    plots.refresh()
    assert [(each.name, each.shown) for each in plots.others.runs] == [("first try", True)]
    assert drawn(plots.chart, "first try")[0][-1] == 30
    assert [past.name for past in PAST] == ["first try"]
    PAST.clear()


def test_a_long_run_is_remembered_by_few_points_and_smoothed_alike():
    """What each step notes as means, NaN as NaN; an evaluation and a rate are points of the run."""
    steps = np.arange(1, 100_002)
    values = np.sin(steps / 3000) + np.random.default_rng(0).normal(0, 0.2, len(steps))
    whole = Series(steps, steps / 10, steps, steps * 0.1, values)
    few = thinned("train/loss", whole)
    assert len(few) <= 20_000 and few.steps[-1] == 100_001
    assert few.values[0] == pytest.approx(values[:6].mean())
    assert few.values[-1] == pytest.approx(values[-(100_001 - 6 * 16_666):].mean())
    one, other = Curve(), Curve(every=6)
    one.extend(whole)
    other.extend(few)
    x, y = one.smoothed("step", 1200)
    there, found = other.smoothed("step", 1200 // other.every)
    assert np.abs(np.interp(x[20:-20], there, found) - y[20:-20]).max() < 0.05
    assert set(thinned("valid/loss", whole).values) <= set(values)
    values[50] = math.nan
    assert np.isnan(thinned("train/loss", whole).values).sum() == 1


@pytest.fixture(scope="module")
def trained():
    """A small run that was watched by a dashboard from beginning to end."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, inputs[:, :1]), batch_size=8)
    model = torch.nn.Linear(4, 1)
    trainer = Trainer(model, train_dl=data, valid_dl=data, loss_fn=torch.nn.MSELoss(), epochs=3,
                      optim=torch.optim.SGD(model.parameters(), lr=0.1), device="cpu",
                      progress=False)
    board = Dashboard(trainer.view)
    trainer.at_safe_point = board.screen.tick
    trainer.fit()
    return trainer, board


def test_a_real_run_is_drawn_to_its_last_step(trained):
    trainer, board = trained
    assert drawn(board.plots.chart, "train")[0][-1] == trainer.step_state.optimizer_step == 24
    assert drawn(board.plots.chart,
                 "valid")[1].tolist() == pytest.approx(trainer.history["valid/loss"].tolist())
    assert "is-finished" in board.widget._dom_classes and "100 %" in board.head.widget.value


CELLS = """
import torch
from trainer_nb import Trainer
torch.set_num_threads(1)
x = torch.randn(64, 4)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1]), batch_size=8)
model = torch.nn.Linear(4, 1)
class Failing:
    def after_step(self, trainer):
        if trainer.step_state.optimizer_step == 40:
            raise ValueError("at forty")
trainer = Trainer(model, train_dl=data, valid_dl=data, loss_fn=torch.nn.MSELoss(), epochs=3,
                  device="cpu", hooks=[Failing()],
                  optim=torch.optim.SGD(model.parameters(), lr=0.1))
---
trainer.fit().status
---
try:
    trainer.fit(epochs=9)
except ValueError:
    pass
---
trainer.dashboard
"""


def executed(*cells):
    """A notebook of these cells that nbclient has run: it has no front end."""
    import nbformat  # takes a second
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)
                                               for source in cells])
    manager = manager_of(warm_kernels.command(), AsyncKernelManager)
    client = NotebookClient(notebook, km=manager, timeout=LIMIT, store_widget_state=False)
    client.execute()
    return notebook


@pytest.mark.slow
def test_without_a_front_end_the_picture_stays():
    """nbclient runs the same code: no error, and each fit() leaves a picture of its own end."""
    import nbformat  # takes a second

    notebook = executed(*CELLS.split("---\n"))
    finished, failed, shown = (cell.outputs for cell in notebook.cells[1:])
    for outputs, word in ((finished, "finished"), (failed, "error"), (shown, "error")):
        picture, live = outputs[0].data, outputs[1].data
        assert "data:image/svg+xml" in picture["text/html"] and f": {word}" in picture["text/plain"]
        assert WIDGET not in picture and WIDGET in live
    assert len(nbformat.writes(notebook)) < 200_000


LONG = """
import torch
from trainer_nb.panel import screen
clock = screen.perf_counter
screen.perf_counter = lambda: 100 * clock()  # as many drawings as in a hundred times the time
from trainer_nb import Trainer
torch.set_num_threads(1)
x = torch.randn(64, 4)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1]), batch_size=8)
model = torch.nn.Linear(4, 1)
trainer = Trainer(model, train_dl=list(data), valid_dl=list(data), loss_fn=torch.nn.MSELoss(),
                  max_steps=3_000,
                  eval_every=100, device="cpu", optim=torch.optim.SGD(model.parameters(), lr=0.01))
trainer.fit().steps
"""


@pytest.mark.slow
def test_thousands_of_steps_leave_a_small_notebook():
    import nbformat  # takes a second

    notebook = executed(LONG)
    outputs = notebook.cells[0].outputs
    assert outputs[-1].data["text/plain"] == "3000" and "svg+xml" in outputs[0].data["text/html"]
    assert len(nbformat.writes(notebook)) < 200_000


def test_the_chart_carries_arrays_as_bytes():
    chart = Chart()
    chart.show([{"x": np.arange(3), "y": [1.0, np.nan, 3.0], "name": "a"}], {})
    x, y = drawn(chart, "a")
    assert x.tolist() == [0, 1, 2] and np.isnan(y[1]) and y[2] == 3.0


def test_a_search_for_a_rate_is_not_shown_as_a_pause(monkeypatch):
    """Its own words and steps, while the run's step, hooks and place stay those of the run."""
    inputs = torch.randn(64, 4)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs[:, :1]),
                                       batch_size=8)
    trainer = Trainer(torch.nn.Linear(4, 1), train_dl=data, loss_fn=torch.nn.MSELoss(),
                      device="cpu", epochs=5, progress=False)
    board = trainer.dashboard
    trainer.step(11)
    before, seen = trainer.view.position, []
    def look(kind):
        if kind == "sweep":
            board.refresh()
            titles = {name: each.description for name, each in board.tabs.buttons.items()}
            seen.append((board.message.text.value, re.sub("<[^>]*>", " ", board.head.widget.value),
                         titles, trainer.view.position))
    trainer.at_safe_point = look
    trainer.lr_find(num_steps=12, stop_factor=None)
    words, head, titles, place = seen[4]
    assert "Searching for a rate: step 5 of 12." in words
    assert "The run stands at step 11" in words and "Paused" not in words + head
    assert "Searching" in head and "step  11" in head
    assert (place.step, place.epoch, place.batch_idx, place.fraction) == (11, 1, 3, before.fraction)
    assert titles["hooks"].startswith(f"Hooks {len(trainer.hooks)}")
    assert titles["inspect"] == "Inspect"
    trainer.at_safe_point = None
    board.refresh()
    assert "Paused at step 11" in board.message.text.value and trainer.view.position == before


# What the numbers of the head are


def number(panel, label):
    """Value, what it is, style and tooltip of a number of the head."""
    found = re.search(
        rf'<div(?: title="([^"]*)")?><div class="label">(?:<i [^>]*></i>)?{label}</div><div '
        rf'class="value ([^"]*)">(.*?)</div><div class="what">(.*?)</div>',
        panel.head.widget.value,
    )
    return found[3], found[4], found[2], found[1]


def labels(panel):
    """Of the numbers of the head."""
    return re.findall(r'<div class="label">(?:<i [^>]*></i>)?(.*?)</div>', panel.head.widget.value)


def test_no_number_stands_where_none_can_come():
    """Without a validation loader there is no loss of it, and no best value."""
    run = Run(steps=20)
    run.loaders = []
    names = labels(Dashboard(run))
    assert "train/loss" in names
    assert not any("valid" in name or "best" in name for name in names)
    run.loaders = ["held_out", "other"]
    names = labels(Dashboard(run))
    assert "held_out/loss" in names and "best loss" in names
    assert not any("valid" in name or "other" in name for name in names)


def test_a_mean_says_that_it_is_one():
    run = Run(steps=100,
              names=("train/loss", "lr", "grad_norm", "samples_per_second", "valid/loss"))
    run.values = {"train/loss": np.r_[np.full(67, 9.0), np.linspace(1, 3, 33)], "valid/loss": [0.5]}
    panel = Dashboard(run)
    assert number(panel, "train/loss") == ("2.0000", "avg 33", "", "mean of the last 33 steps")
    assert number(panel, "valid/loss") == (
        "0.5000",
        "at step 1",
        "old",
        "last value up to step 1; no longer recorded",
    )
    assert number(panel, "lr")[1:] == ("last", "", "last value")
    assert number(panel, "Samples/s")[1:] == ("last", "", "last value")  # a mean already
    assert "metric" not in panel.head.widget.value  # evaluated, and there is none
    assert number(Dashboard(Run(steps=4)), "train/loss")[1] == "avg 4"


def test_a_number_that_no_longer_comes_says_when_it_came():
    """The gradient norm after clipping went off."""
    run = Run(steps=100, names=("train/loss", "lr", "grad_norm"))
    run.values["grad_norm"] = np.full(40, 0.25)
    assert number(Dashboard(run), "grad_norm") == (
        "0.2500",
        "at step 40",
        "old",
        "mean of the last 33 steps up to step 40; no longer recorded",
    )
    run.values["grad_norm"] = np.full(100, 0.25)
    assert number(Dashboard(run), "grad_norm")[1:3] == ("avg 33", "")


@pytest.mark.parametrize("values, unit", [
    ([0.5, 0.512], "+.012"), ([110.5, 100.0], "−10.500"), ([0.5, 0.49999], "−1e-5"),
    ([0.5, 0.5], "±0"), ([0.5, np.nan], "since 2"),
    ([np.nan, 0.5], ""), ([2.0, 0.6], "−1.400")])
def test_the_change_of_a_loss(values, unit):
    run = Run(steps=2, names=("train/loss", "lr", "valid/loss"))
    run.values["valid/loss"] = np.array(values)
    value, what, style, _ = number(Dashboard(run), "valid/loss")
    if style == "wrong":
        assert what == unit
    else:
        assert (
            what == "at step 2" and value.partition("<small>")[2].removesuffix("</small>") == unit
        )


@pytest.mark.parametrize(
    "at, now, old", [(40, 79, False), (40, 81, True), (5, 15, False), (5, 16, True)]
)
def test_an_evaluation_is_old_after_twice_the_steps_between(at, now, old):
    """Its step is said in any case; one alone is measured from the start of the run."""
    run = Run(steps=now, names=("train/loss", "lr"))
    panel = Dashboard(run)
    panel.curves.of["valid/loss"] = curve = Curve()
    steps = np.arange(20, at + 1, 20) if at > 20 else np.array([at])
    curve.extend(Series(steps, steps / 10, steps * 4, steps * 0.1, np.ones(len(steps))))
    panel.head.refresh()
    _, what, style, tip = number(panel, "valid/loss")
    assert (what, style) == (f"at step {at}", "old" if old else "") and f"step {at}" in tip


def test_the_head_shows_what_is_pinned():
    """Any record or best of an evaluation, by a click or by code; no dash for no metric."""
    run = Run(steps=50, names=("train/loss", "lr", "my/<b>value", "valid/loss", "valid/accuracy"))
    labels = lambda panel: re.findall('"label">(?:<i [^>]*></i>)?([^<]*)<', panel.head.widget.value)
    before = Dashboard(Run(steps=0, names=()))
    assert "metric" not in before.head.widget.value and labels(before)[-2:] == [
        "valid/loss",
        "best loss",
    ]
    run.names.remove("my/<b>value")
    panel = Dashboard(run)
    usual = [
        "Elapsed",
        "Left",
        "Samples/s",
        "Memory",
        "lr",
        "grad_norm",
        "train/loss",
        "valid/loss",
        "valid/accuracy",
        "best accuracy",
    ]
    assert (
        labels(panel) == usual
        and panel.head.chooser.shown[-1] == "best valid/accuracy"
        and not panel.head.chooser.chosen
    )
    run.names.append("my/<b>value")
    panel.refresh()
    assert {"my/<b>value", "best valid/loss", "lr"} <= set(panel.head.chooser.names)
    panel.head.chooser._handle_msg(
        {
            "content": {
                "data": {
                    "method": "custom",
                    "content": {"pin": ["best valid/loss", "my/<b>value", "lr"]},
                }
            },
            "buffers": [],
        }
    )
    assert (
        labels(panel) == ["Elapsed", "Left", "best valid/loss", "my/&lt;b&gt;value", "lr"]
        and panel.head.chooser.chosen
    )
    assert labels(Dashboard(run, panel.screen)) == labels(panel)  # another panel of the run
    panel.pin("later", "lr", "later")
    assert (
        labels(panel) == ["Elapsed", "Left", "later", "lr"] and "later" in panel.head.chooser.names
    )
    with pytest.raises(TypeError, match="3 is not the name of a record"):
        panel.pin(3)
    for nonsense in ({"pin": [3]}, {"pin": "lr"}, {}):
        panel.head.chooser._handle_msg(
            {"content": {"data": {"method": "custom", "content": nonsense}}, "buffers": []}
        )
    assert labels(panel) == ["Elapsed", "Left", "later", "lr"]
    panel.pin()
    assert labels(panel)[:8] == usual[:8] and not panel.head.chooser.chosen


def test_pins_stay_when_the_panel_is_closed():
    """A panel that is made anew, and a run that was detached, show them."""
    data = [(torch.ones(2, 1), torch.ones(2, 1))] * 4
    trainer = Trainer(
        torch.nn.Linear(1, 1),
        train_dl=data,
        loss_fn=torch.nn.MSELoss(),
        epochs=2,
        device="cpu",
        progress=False,
    )
    trainer.dashboard.pin("lr")
    trainer.fit(epochs=1)
    trainer.close()
    assert (
        trainer.dashboard.head.numbers.shown() == ["lr"]
        and "train/loss" not in trainer.dashboard.head.widget.value
    )
    trainer.start()
    trainer.wait()
    assert trainer.dashboard.head.chooser.shown == ["lr"]
    trainer.close()


# Zoomed curves


def long_run(count=100_000):
    """A run of many steps, with noise that thinning cannot keep."""
    run = Run(steps=count, names=("train/loss", "lr", "valid/loss"))
    run.values["train/loss"] = np.random.default_rng(0).normal(1, 0.1, count)
    run.values["valid/loss"] = np.random.default_rng(1).normal(1, 0.1, 5000)
    return run


def inside(chart, name, span):
    """How many points of a trace lie in a part of the x-axis."""
    x, y = drawn(chart, name)
    assert (np.diff(x) > 0).all() and len(x) == len(y)
    return int(((x >= span[0]) & (x <= span[1])).sum())


def hear(plots, **content):
    """A message of the page."""
    plots.chart._handle_msg(
        {"content": {"data": {"method": "custom", "content": content}}, "buffers": []}
    )


def test_a_zoomed_curve_has_finer_points():
    """All of them where they are few; the rest of the curve stays, for another page."""
    run = long_run()
    plots = Plots(run)
    span = (50_000, 50_300)
    coarse = {name: inside(plots.chart, name, span) for name in ("raw", "train")}
    assert max(coarse.values()) < 20
    hear(plots, axis="step", span=list(span))
    assert inside(plots.chart, "raw", span) == 301 and inside(plots.chart, "train", span) == 301
    x, y = drawn(plots.chart, "raw")
    at = np.flatnonzero((x >= span[0]) & (x <= span[1]))
    assert y[at] == pytest.approx(run.values["train/loss"][x[at].astype(int) - 1], rel=1e-6)
    assert x[0] == 1 and x[-1] == 100_000 and len(x) < 1500
    hear(plots, axis="step", span=[1000.5, 4000.5])
    assert inside(plots.chart, "valid", (1000, 4000)) > 650
    for end in (
        {"axis": "step", "span": None},
        {"axis": "step", "span": [5, 5]},
        {"axis": "step", "span": [float("nan"), 5]},
        {"axis": "step", "span": "x"},
    ):
        hear(plots, axis="step", span=list(span))
        hear(plots, **end)
        assert inside(plots.chart, "raw", span) == coarse["raw"], end
    hear(plots, axis="time", span=list(span))  # of a page that has not heard of the other axis yet
    assert inside(plots.chart, "raw", span) == coarse["raw"]
    hear(plots, axis="step", span=list(span))
    plots.bar.axis.value = "epoch"
    assert len(drawn(plots.chart, "raw")[0]) < 800
    plots.bar.axis.value = "step"
    assert inside(plots.chart, "raw", span) == coarse["raw"]


def test_a_zoom_in_a_gap_and_beyond_the_ends():
    """No line crosses what is not finite there either; a span without points changes nothing."""
    run = long_run(50_000)
    run.values["train/loss"][20_000:20_050] = np.nan
    plots = Plots(run)
    for span in (
        (19_900, 20_100),
        (20_010, 20_020),
        (-50, -10),
        (60_000, 70_000),
        (49_990, 80_000),
    ):
        hear(plots, axis="step", span=list(span))
        x, y = drawn(plots.chart, "raw")
        hole = (x > 20_000) & (x <= 20_050)
        assert hole.any() and np.isnan(y[hole]).all(), span
        x, y = drawn(plots.chart, "train")
        assert np.isfinite(y[(x < 20_000) | (x > 20_051)]).all(), span


# In words


def test_every_curve_that_is_drawn_is_told_in_words():
    """For who cannot see them: losses, metrics, rates and norms, each with its last value."""
    run = Run(steps=30, names=("train/loss", "valid/loss", "lr", "grad_norm",
                               *(f"valid/metric{k}" for k in range(30))))
    run.values = {name: np.linspace(2, 1, 30) for name in run.names}
    plots = Plots(run)
    plots.bar.all.value = True
    words = plots.chart.figure["layout"]["meta"]["summary"]
    assert words.startswith("Curves. train/loss: 1 at step 30, lowest 1 at step 30; valid/loss: 1")
    assert all(f"; {name}: 1 at step 30" in words for name in run.names[1:])
    assert "lr: 1 at step 30;" in words and words.count("lowest") == 33  # of a rate: none


def test_a_text_of_many_curves_ends():
    curve = Curve()
    curve.extend(Series(*(np.arange(3),) * 4, np.array([1.0, np.nan, np.inf])))
    told = in_words("Curves", [(f"run {k}", "train/loss", curve) for k in range(MOST_SUMMED + 7)])
    assert told.startswith("Curves. run 0: inf at step 2, lowest 1 at step 0; run 1: inf")
    assert told.count("inf") == MOST_SUMMED and told.endswith("; and 7 more")
    assert in_words("loss of 2 runs", [("a", "train/loss", Curve())]) == (
        "loss of 2 runs: no record yet")
