"""Checkpoint, Rewind and branches in the panel, on real runs:
what is offered, what is asked for, what is drawn."""

import math
import re
import shutil

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import CheckpointHook, SnapshotHook, Trainer
from trainer_nb.core.control import RunView
from trainer_nb.core.journal import Journal
from trainer_nb.core.state import RunState
from trainer_nb.panel.controls import Controls
from trainer_nb.panel.dashboard import message_text
from trainer_nb.panel.journal_pane import entry_table, promise
from trainer_nb.panel.plots import Curves, Plots, figure, mark_spots, rewound_traces
from trainer_nb.panel.still import still, still_text


def make(*hooks, epochs=3, **settings):
    """A small run of 20 steps an epoch."""
    torch.manual_seed(0)
    x = torch.randn(320, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = torch.nn.Linear(4, 1)
    return Trainer(
        model,
        train_dl=DataLoader(data, 16, shuffle=True),
        valid_dl=DataLoader(data, 64),
        loss_fn=torch.nn.MSELoss(),
        optim=torch.optim.SGD(model.parameters(), lr=0.01),
        epochs=epochs,
        seed=1,
        progress=False,
        hooks=hooks,
        **settings,
    )


def weights(trainer):
    """All weights in one row."""
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def test_the_view_has_what_the_protocol_says():
    """Each name of `RunView`, on a run with and on one without hooks."""
    for trainer in (make(), make(SnapshotHook())):
        for name in [*RunView.__annotations__,
                     *(n for n in vars(RunView) if not n.startswith("_"))]:
            assert hasattr(trainer.view, name), name


def test_a_run_behind_another_one_has_its_branches_and_its_gaps():
    """What a rewind took back from it is drawn whole, in its colour; where it was NaN is a cross.

    The legend hides what was rewound, of both runs."""
    earlier, present = (make(SnapshotHook(every_steps=10), non_finite=None) for _ in range(2))
    earlier.step(40)
    earlier.rewind(10)
    earlier.optim.param_groups[0]["lr"] = math.nan
    earlier.step(5)
    present.step(20)
    present.rewind(10)
    present.step(10)
    plots = Plots(present.view)
    assert plots.add_run(earlier, "earlier") == ["earlier"]
    ink = next(run.ink for run in plots.others.runs if run.name == "earlier")

    def rewound():
        return [trace for trace in plots.chart.figure["data"] if trace["name"] == "rewound"]

    theirs = [trace for trace in rewound() if trace["line"]["color"] == ink]
    ends = [np.frombuffer(trace["x"], np.float32)[[0, -2]] for trace in theirs]
    assert [11, 40] in [each.tolist() for each in ends]
    assert len(rewound()) > len(theirs) > 0
    crosses = [trace for trace in plots.chart.figure["data"] if trace["name"] == "not finite"]
    assert any("earlier" in trace["customdata"][0] and "NaN" in trace["customdata"][0]
               for trace in crosses)
    plots.bar.legend._handle_custom_msg({"toggle": "rewound"}, [])
    assert rewound() == []
    plots.remove_run("earlier")


def test_buttons_are_there_when_they_mean_something(tmp_path):
    """Without a hook that keeps states both are off and say what is missing."""
    bare = Controls(make().view).buttons
    assert bare["Rewind"].disabled and bare["Checkpoint"].disabled
    assert "SnapshotHook" in bare["Rewind"].tooltip
    assert "CheckpointHook" in bare["Checkpoint"].tooltip
    trainer = make(CheckpointHook(tmp_path))
    controls = Controls(trainer.view)
    # nothing to save before the first step
    assert controls.buttons["Checkpoint"].disabled and not controls.buttons["Rewind"].disabled
    trainer.step(1)
    controls.refresh()
    assert not controls.buttons["Checkpoint"].disabled
    trainer.fit()
    controls.refresh()
    assert not controls.buttons["Checkpoint"].disabled and not controls.buttons["Rewind"].disabled
    assert controls.buttons["Checkpoint"].tooltip == "Write a checkpoint at the next step"


def test_checkpoint_is_written_where_the_run_stands(tmp_path):
    """Also when nothing drives the run; then the file is there when the click has been answered."""
    trainer = make(CheckpointHook(tmp_path, every_epochs=None))
    board = trainer.dashboard
    trainer.step(7)
    board.controls.buttons["Checkpoint"].click()
    assert [path.name for path in tmp_path.glob("*.pt")] == ["step_00000007.pt"]
    assert trainer.last_saved[0] == 7 and board.controls.asked[1].status == "applied"
    assert (trainer.journal.entries[-1].kind,
            trainer.journal.entries[-1].source) == ("save", "widget")


def test_a_checkpoint_that_cannot_be_written_is_refused_with_the_reason(tmp_path):
    """The folder is a file: the click is refused with the reason, the run is as it was."""
    trainer = make(CheckpointHook(tmp_path / "kept", every_epochs=None))
    board = trainer.dashboard
    trainer.step(7)
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "kept").write_text("in the way")
    board.controls.buttons["Checkpoint"].click()
    assert board.controls.asked[1].status == "refused" and "kept" in board.message.text.value
    assert trainer.last_saved is None and trainer.step_state.optimizer_step == 7
    trainer.step(1)


def test_the_message_of_a_running_run_names_the_last_checkpoint(tmp_path):
    """Step and age, from the moment that the file is there."""
    said = []
    trainer = make(CheckpointHook(tmp_path, every_steps=5))
    class Look:
        def after_step(self, trainer):
            said.append(message_text(trainer.view))
    trainer.hooks.add(Look())
    trainer.fit()
    assert "last checkpoint" not in said[0]
    assert re.search(r"last checkpoint step (5|10|15), 0 s ago", said[19])


def test_chooser_offers_what_is_kept():
    """Newest first; the last state before the present is chosen."""
    trainer = make(SnapshotHook(every_steps=5))
    board = trainer.dashboard
    chooser = board.controls.chooser
    assert not chooser.open and chooser.widget.layout.display == "none"
    board.controls.buttons["Rewind"].click()
    assert chooser.open and chooser.go.disabled and "No state is saved" in chooser.words.value
    board.controls.buttons["Rewind"].click()  # once more closes it
    assert not chooser.open
    trainer.step(15)
    board.controls.buttons["Rewind"].click()
    assert chooser.steps.options == (("step 15", 15), ("step 10", 10), ("step 5", 5), ("step 0", 0))
    assert chooser.steps.value == 10 and not chooser.go.disabled  # 15 is where the run is
    assert board.message.text.layout.display == board.message.action.layout.display == "none"
    chooser.cancel.click()
    assert chooser.widget.layout.display == "none" and board.message.text.layout.display is None
    assert trainer.step_state.optimizer_step == 15 and len(trainer.journal) == 0


@pytest.mark.parametrize(("axis", "x", "step"),
                         [("step", 13.7, 10), ("step", 4.6, 5), ("step", 2.0, 0), ("step", -3.0, 0),
                          ("epoch", 0.55, 10), ("samples", 160.0, 10), ("samples", 159.0, 5),
                          ("samples", 9e9, 15)])
def test_a_click_on_a_curve_chooses_the_state_before_it(axis, x, step):
    """Whatever the x-axis shows."""
    trainer = make(SnapshotHook(every_steps=5))
    board = trainer.dashboard
    trainer.step(17)
    board.refresh()
    board.plots.bar.axis.value = axis
    board.plots._on_click(None, {"x": x}, None)
    assert board.controls.chooser.open and board.controls.chooser.steps.value == step


def test_a_click_on_the_axis_of_time():
    """Seconds of training are not round numbers: the step whose point was clicked."""
    trainer = make(SnapshotHook(every_steps=1))
    board = trainer.dashboard
    trainer.step(9)
    board.refresh()
    board.plots.bar.axis.value = "time"
    for number, x in enumerate(trainer.history.series("train/loss").seconds, 1):
        board.plots._on_click(None, {"x": float(np.float32(x))}, None)
        assert board.controls.chooser.steps.value == number


def test_clicks_without_an_effect_are_ignored():
    """Nothing to go back to, or a message that is none."""
    trainer = make()
    trainer.step(3)
    board = trainer.dashboard
    board.plots._on_click(None, {"x": 2.0}, None)
    assert not board.controls.chooser.open
    kept = make(SnapshotHook()).dashboard
    for content in ({}, {"x": None}, {"x": "2"}):
        kept.plots._on_click(None, content, None)
    assert not kept.controls.chooser.open


def test_rewind_here_goes_back_and_draws_the_branch():
    """The weights are those of then, the curves end there, the rest is faint."""
    trainer = make(SnapshotHook(every_steps=5))
    board = trainer.dashboard
    trainer.step(10)
    then = weights(trainer)
    trainer.tune(lr=0.05)
    trainer.step(22)
    board.refresh()
    assert "rewound" not in board.plots.bar.legend.titles
    board.controls.chooser.show(10)
    board.controls.chooser.go.click()
    assert trainer.step_state.optimizer_step == 10 and torch.equal(weights(trainer), then)
    assert not board.controls.chooser.open and "Paused at step 10" in board.message.text.value
    assert trainer.journal.entries[-1].source == "widget"
    drawn = {trace["name"]: trace for trace in board.plots.chart.figure["data"]
             if trace["yaxis"] == "y"}
    x = {name: np.frombuffer(drawn[name]["x"], np.float32) for name in ("train", "rewound")}
    assert x["train"].max() == 10 and np.nanmin(x["rewound"]) > 10 and np.nanmax(x["rewound"]) == 32
    assert drawn["rewound"]["opacity"] == 0.35 and drawn["rewound"]["hoverinfo"] == "skip"
    legend = board.plots.bar.legend
    assert "rewound" in legend.titles and legend.entries[-1]["faint"]
    for hidden in (True, False):
        legend._handle_custom_msg({"toggle": "rewound"}, [])
        names = [trace["name"] for trace in board.plots.chart.figure["data"]]
        assert ("rewound" not in names) is hidden and legend.entries[-1]["off"] is hidden
    assert board.plots.chart.figure["layout"]["xaxis"]["autorangeoptions"]["maxallowed"] > 32
    trainer.fit()
    board.refresh()
    assert np.frombuffer(next(t for t in board.plots.chart.figure["data"]
                              if t["name"] == "train")["x"], np.float32)[-1] == 60


@pytest.mark.parametrize("where", ["finished", "error", "stopped"])
def test_rewind_from_an_end(where):
    """A run that has ended goes back and stands there;
    Resume goes on, to the weights of an undisturbed run."""
    straight = make()
    straight.fit()
    class Failing:
        fails = where == "error"
        def before_batch(self, trainer):
            if self.fails and trainer.step_state.optimizer_step == 33:
                raise RuntimeError("a bad batch")
    failing = Failing()
    trainer = make(SnapshotHook(every_steps=10), failing)
    board = trainer.dashboard
    if where == "finished":
        trainer.fit()
    elif where == "error":
        with pytest.raises(RuntimeError, match="a bad batch"):
            trainer.fit()
        failing.fails = False
    else:
        trainer.step(33)
        trainer.stop()
    assert trainer.state == where
    board.controls.chooser.show(21)
    board.controls.chooser.go.click()
    assert trainer.state is RunState.PAUSED and trainer.step_state.optimizer_step == 20
    assert not board.controls.main.disabled and board.controls.main.description == "Resume"
    board.controls._settled = 0.0
    board.controls.main.click()
    trainer.wait()
    assert trainer.state is RunState.FINISHED and torch.equal(weights(trainer), weights(straight))


def test_curves_are_those_of_the_history_at_any_time():
    """Read before, between and after rewinds and a load: always the same as read at once."""
    trainer = make(SnapshotHook(every_steps=5))
    curves = Curves(trainer.view)
    def same():
        curves.update()
        fresh = Curves(trainer.view)
        fresh.update()
        assert list(curves.of) == list(fresh.of)
        for name, curve in curves.of.items():
            assert np.array_equal(curve.column("values"), fresh.of[name].column("values")), name
            assert np.array_equal(curve.column("step"), trainer.history.series(name).steps)
        assert len(curves.rewound) == len(trainer.history.branches)
    trainer.step(12)
    same()
    saved = trainer.state_dict()
    trainer.rewind(10)
    trainer.step(2)  # as many points as before
    same()
    trainer.rewind(0)
    same()
    trainer.step(30)
    trainer.rewind(25)
    trainer.step(7)
    same()
    trainer.load_state_dict(saved)
    same()


def test_a_rewind_while_the_curves_are_read():
    """What was read of the old path is dropped."""
    trainer = make(SnapshotHook(every_steps=5))
    trainer.step(12)
    view = trainer.view
    curves, read = Curves(view), type(view).records
    class View(type(view)):
        def records(self, since=None, most=None):
            found = read(self, since)
            if trainer.step_state.optimizer_step == 12:
                trainer.rewind(5)
            return found
    curves.view = View(trainer)
    curves.update()
    assert len(curves.of["train/loss"].column("values")) == 5 and len(curves.rewound) == 1


def test_a_branch_that_diverged_does_not_press_the_curves_flat():
    """A rewound loss of thousands leaves the picture; one nearby is drawn."""
    trainer = make(SnapshotHook(every_steps=5))
    trainer.step(10)
    trainer.step(6)
    trainer.rewind(10)
    trainer.tune(lr=5.0)
    trainer.step(8)
    assert trainer.history["train/loss"][-1] > 1e5
    trainer.rewind(10)
    trainer.tune(lr=0.01)
    trainer.step(10)
    curves = Curves(trainer.view)
    curves.update()
    trace = rewound_traces(curves, curves.groups(), "step", 1)[0]
    seen = trace["y"][np.isfinite(trace["y"])]
    assert len(seen) >= 6 and seen.max() < 2 * trainer.history["train/loss"].max()
    svg = still(trainer.view)
    assert 'opacity=".35"' in svg
    whole = figure(trainer.view)
    assert sum(trace.name == "rewound" for trace in whole.data) >= 2


def test_marks_and_journal_show_what_a_rewind_took_back():
    """A change that a rewind took back has no mark and a faint row;
    the rewind has both, with its steps."""
    trainer = make(SnapshotHook(every_steps=5))
    trainer.step(12)
    trainer.tune(lr=0.02)
    trainer.rewind(10)
    trainer.tune(lr=0.005)
    trainer.step(10)
    curves = Curves(trainer.view)
    curves.update()
    assert [entry.number for _, entries in mark_spots(trainer.view, curves, "step")
            for entry in entries] == [2, 3]
    rows = entry_table(trainer.journal.entries, 20,
                       {entry.number for entry in trainer.journal.path()})
    first, second, third = re.findall(r"<tr.*?</tr>", rows.partition("<tbody>")[2])
    assert 'class="rewound"' in first and "rewound" not in second + third
    assert "<b>rewind</b>" in second
    assert ">12 → 10<" in second and '<span class="number">2</span>' in second
    assert "took back" in promise(trainer.journal)
    text = still_text(trainer.view)
    assert "rewind 12 → 10" in text and "0.02" not in text
    assert str(trainer.journal.entries[1]) == "step 10: rewind 12 → 10 (code)"


def test_path_of_rewinds_in_rewinds():
    """A rewind behind an earlier one takes that one back too."""
    journal = Journal()
    journal.record("tune", "lr", 1, 2)
    journal.record("tune", "lr", 2, 3)
    first = journal.record("rewind", "step", 20, 10, branch=1)
    first.survives = 1
    journal.record("tune", "lr", 2, 4, branch=1)
    assert [entry.number for entry in journal.path()] == [1, 3, 4]
    last = journal.record("rewind", "step", 15, 5, branch=2)
    last.survives = 0
    assert [entry.number for entry in journal.path()] == [5] and journal.surviving() == []
    second = journal.record("rewind", "step", 9, 5, branch=3)
    second.survives = 5
    assert [entry.number
            for entry in journal.path()] == [5, 6] == [entry.number for entry in journal.changes()]


def test_the_controls_alone_have_the_chooser():
    """`trainer.controls` in a cell of its own can go back too."""
    trainer = make(SnapshotHook(every_steps=5))
    trainer.step(12)
    pane = trainer.controls
    pane.refresh()
    pane.controls.buttons["Rewind"].click()
    assert pane.controls.chooser.widget in pane.widget.children and pane.controls.chooser.open
    pane.controls.chooser.go.click()
    assert trainer.step_state.optimizer_step == 10


def test_the_better_part_of_a_branch_is_drawn():
    """A run that improved goes back to its beginning:
    all of the branch is there, and the axes hold it."""
    trainer = make(SnapshotHook(every_steps=5))
    trainer.fit()
    best = trainer.history["train/loss"].min()
    raw = trainer.history.series("train/loss").values[10:]
    trainer.rewind(10)
    trainer.step(1)
    assert trainer.history["train/loss"].min() > 3 * best
    curves = Curves(trainer.view)
    curves.update()
    trace = rewound_traces(curves, curves.groups(), "step", 1)[0]
    assert np.isfinite(trace["y"]).sum() == len(raw) and np.nanmin(trace["y"]) == np.float32(best)
    lines = re.findall(
        r'<polyline class="ts-c0" stroke-width="1.5" opacity=".35" points="([^"]*)"/>',
        still(trainer.view))
    points = np.array([list(map(float, point.split(","))) for line in lines
                       for point in line.split()])
    assert len(lines) == 1 and len(points) == len(raw)
    # px: it falls, and is not cut off
    assert (np.diff(points[:, 1]) > 0).mean() > 0.5 and points[-1, 1] - points[0, 1] > 30
