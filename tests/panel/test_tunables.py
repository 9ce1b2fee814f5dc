"""What may be changed live: the table of tunables; and the panel's rows without a browser:
what they post, what they show."""

import gc
import math
import sys
import weakref
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_nb import AlertsHook, EMAHook, Hook, Trainer, Tunable
from trainer_nb.core import tunable
from trainer_nb.core.control import TunableView
from trainer_nb.core.tunable import BoundTunable, PartTunable
from trainer_nb.panel.tunables import Tunables, groups, plain, read_value, slider_range


class Probe(Hook):
    """A hook of a user's with a tunable of each kind."""

    every = Tunable(1, min=1, max=50, doc="steps between two looks")
    amount = Tunable(1e-3, min=0, scale="log")
    loud = Tunable(False)
    kind = Tunable("mean", choices=("mean", "max", None))
    label = Tunable("probe")
    limit = Tunable(None, kind=float, min=0)


def make(*hooks, **settings):
    """A small trainer and its rows."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs[:, :1]),
                                       batch_size=8)
    model = torch.nn.Linear(4, 1)
    settings = {"optim": torch.optim.AdamW(model.parameters(), lr=0.01), "epochs": 2} | settings
    trainer = Trainer(model, train_dl=data, loss_fn=torch.nn.MSELoss(), device="cpu",
                      progress=False, hooks=hooks,
                      **settings)
    return trainer, Tunables(trainer.view)


def hint(row):
    """The text below a row."""
    return row.hint.value.split(">")[1].removesuffix("</div")


# The table


@dataclass
class Rates:
    """Settings with plain attributes."""

    lr: float | None = None
    lr_scale: float = 1.0
    label: str = "no tunable"


class Part:
    """An owner of tunables that is not a hook."""

    depth = Tunable(3, min=1, max=9)
    quick = Tunable(False)


class Run:
    """Holds a table of its own tunables and those of its parts."""

    speed = Tunable(1.0, min=0)
    lr = PartTunable(None, "rates", kind=float, min=0)
    lr_scale = PartTunable(1.0, "rates", min=0)

    def __init__(self, **parts):
        self.rates, self.parts, self.asked = Rates(), parts, 0
        self.tunables = tunable.Tunables(self.sources)

    def sources(self):
        self.asked += 1
        yield self, ""
        for name, part in self.parts.items():
            yield BoundTunable(f"{name}.order", Tunable(0), lambda: 7, lambda value: None, name)
            yield part, name


def test_the_table_is_built_once_and_again_after_a_change():
    run = Run(first=Part())
    names = ["speed", "lr", "lr_scale", "first.order", "first.depth", "first.quick"]
    assert list(run.tunables.table) == names and run.tunables.table is run.tunables.table
    run.tunables.validate({"lr": 1.0})
    list(run.tunables.apply({"lr": 1.0}))
    assert run.asked == 1
    run.parts["second"] = Part()
    assert "second.depth" not in run.tunables.table
    run.tunables.invalidate()
    assert "second.depth" in run.tunables.table and run.asked == 2
    with pytest.raises(TypeError):
        run.tunables.table["speed"] = None


def test_a_change_while_the_table_is_built_is_not_lost():
    """Another thread adds a part after the sources were asked for the parts."""
    run = Run(first=Part())

    def slowly():
        yield from run.sources()
        if "second" not in run.parts:
            run.parts["second"] = Part()
            run.tunables.invalidate()

    run.tunables = tunable.Tunables(slowly)
    assert "second.depth" not in run.tunables.table  # asked for before the change
    assert "second.depth" in run.tunables.table


def test_of_two_entries_with_one_name_the_later_one_counts():
    """In the place of the first one, so that rows do not jump."""
    own = BoundTunable("depth", Tunable(5), lambda: 6, print)
    part = Part()
    table = tunable.Tunables(lambda: iter([(part, ""), own])).table
    assert list(table) == ["depth", "quick"] and table["depth"] is own


def test_one_refused_value_refuses_all():
    run = Run(part=Part())
    with pytest.raises(ValueError,
                       match=r"part.depth = 10 is refused: a whole number between 1 and 9"):
        run.tunables.validate({"lr": 0.5, "part.depth": 10, "speed": -1})
    assert list(run.tunables.refused) == ["part.depth"] and run.rates.lr is None
    with pytest.raises(ValueError,
                       match="there is no tunable 'part.dept': did you mean 'part.depth'?"):
        run.tunables.validate({"part.dept": 3})
    assert run.tunables.validate({"part.depth": 4.0, "lr": 1}) == {"part.depth": 4, "lr": 1.0}
    assert list(run.tunables.refused) == ["part.dept"]


@pytest.mark.parametrize("limits, words", [
    ({}, "a number"),
    ({"min": 0.5}, "a number, 0.5 or more"),
    ({"max": 2.0}, "a number, 2.0 or less"),
    ({"min": 0.5, "max": 2.0}, "a number between 0.5 and 2.0"),
    ({"max": 2.0, "optional": True}, "a number, 2.0 or less, or None"),
])
def test_a_refusal_names_the_limits_that_there_are(limits, words):
    declared = Tunable(1.0, **limits)
    with pytest.raises(ValueError) as refusal:
        declared.check("fast", "speed")
    assert str(refusal.value) == f"speed = 'fast' is refused: {words}"


def test_values_are_applied_one_by_one():
    """The loop around `apply` sees each change before the next is made;
    what does not change anything is not told."""
    run = Run(part=Part())
    values = run.tunables.validate({"lr": 0.5, "lr_scale": 1, "part.depth": 5, "part.quick": True})
    run.tunables.pending.update(values, speed=2.0)
    seen = []
    for name, old, new in run.tunables.apply(values):
        seen.append((name, old, new, run.rates.lr, run.parts["part"].depth,
                     list(run.tunables.pending)))
    assert seen == [
        ("lr", None, 0.5, 0.5, 3, ["lr_scale", "part.depth", "part.quick", "speed"]),
        ("part.depth", 3, 5, 0.5, 5, ["part.quick", "speed"]),
        ("part.quick", False, True, 0.5, 5, ["speed"])]
    assert run.tunables.pending == {"speed": 2.0} and run.parts["part"].quick is True


def test_another_type_is_a_change():
    """1 and True are equal, and not the same setting."""
    stored = {"value": 1}
    entry = BoundTunable("value", Tunable(1, choices=(1, True)), lambda: stored["value"],
                         lambda value: stored.update(value=value))
    assert list(tunable.Tunables(
        lambda: iter([entry])).apply({"value": True})) == [("value", 1, True)]


def test_the_table_does_not_keep_its_run_alive():
    """Built and used, with the run's own method as the function that names the sources."""
    gc.disable()
    try:
        run = Run(part=Part())
        list(run.tunables.apply({"speed": 2.0, "part.depth": 2}))
        assert run.speed == 2.0
        alive = weakref.ref(run), weakref.ref(run.parts["part"])
        tunables = run.tunables
        del run
        assert [ref() for ref in alive] == [None, None]
        with pytest.raises(ReferenceError):
            tunables.table["speed"].read()
    finally:
        gc.enable()


def test_a_tunable_whose_value_a_part_holds():
    """Read and written at the part, checked by the owner."""
    run = Run()
    run.lr = 1
    assert run.rates.lr == run.lr == 1.0 and type(run.rates.lr) is float
    run.rates.lr_scale = 0.5
    assert run.lr_scale == 0.5 and isinstance(Run.lr, Tunable)
    with pytest.raises(ValueError, match="lr_scale = -1 is refused: a number, 0 or more"):
        run.lr_scale = -1
    assert run.lr_scale == 0.5 and vars(run).keys() == {"rates", "parts", "asked", "tunables"}


def own_calls(function):
    """Calls of the package's own Python functions."""
    found = []

    def note(frame, event, argument):
        if event == "call" and "trainer_nb" in frame.f_code.co_filename:
            found.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def test_a_change_takes_few_calls():
    """Checked where it is asked for, and again where it is applied."""
    run = Run(part=Part())
    assert run.tunables.table

    def tune():
        run.tunables.validate({"lr": 0.1})
        for _ in run.tunables.apply(run.tunables.validate({"lr": 0.1})):
            pass

    assert len(own_calls(tune)) <= 24
    assert own_calls(lambda: (run.rates.lr, run.rates.lr_scale)) == []


# Numbers


@pytest.mark.parametrize("value, text", [
    (3e-4, "3e-4"), (8.5e-5, "8.5e-5"), (0.001, "0.001"), (0.1, "0.1"), (1.0, "1"), (0, "0"),
    (16, "16"), (-1.0, "-1"),
    (1234567, "1.23457e6"), (0.000123456, "1.23456e-4")])
def test_numbers_are_written_as_people_do(value, text):
    assert plain(value) == text


@given(st.floats(1e-12, 1e12))
def test_what_the_box_shows_it_can_read(value):
    """To six digits."""
    tunable = TunableView("x", 1.0, "float", None, None, None, "linear", False, "", "")
    assert math.isclose(read_value(plain(value), tunable), value, rel_tol=1e-5)


@pytest.mark.parametrize("text, value", [
    ("3e-4", 3e-4), ("*0.5", 0.005), ("/4", 0.0025), (" 1,000 ", 1000.0), ("schedule", None),
    ("none", None)])
def test_the_box_takes_numbers_factors_and_words(text, value):
    rate = TunableView("lr", 0.01, "float", 0, None, None, "log", True, "", "")
    assert read_value(text, rate) == value


@pytest.mark.parametrize("text", ["fast", "/0", "1e", "__import__('os')", "*", "2+2"])
def test_other_texts_are_refused_with_what_is_taken(text):
    rate = TunableView("lr", 0.01, "float", 0, None, None, "log", False, "", "")
    with pytest.raises(ValueError, match="the box takes 3e-4"):
        read_value(text, rate)


def test_an_empty_box_takes_no_number_away():
    """Where None holds already, it says so; a text that may be None is emptied by emptying it."""
    rate = TunableView("lr", 0.01, "float", 0, None, None, "log", True, "", "")
    with pytest.raises(ValueError, match="an empty box is not a number; .* or 'schedule'"):
        read_value(" ", rate)
    waits = replace(rate, value=None, pending=0.02, has_pending=True)
    with pytest.raises(ValueError, match="an empty box"):
        read_value("", waits)
    for none in (replace(rate, value=None), replace(rate, moves=True), replace(rate, kind="str"),
                 replace(rate, pending=None, has_pending=True)):
        assert read_value("", none) is None


@given(st.floats(0, 1e6), st.sampled_from(["linear", "log"]), st.sampled_from(["float", "int"]))
def test_a_slider_reaches_around_its_value(value, scale, kind):
    value = int(value) if kind == "int" else value
    low, high = slider_range(TunableView("x", value, kind, 0, None, None, scale, False, "", ""))
    assert low < high and value <= high
    assert low <= value or (scale == "log" and value < 1e-12)
    assert scale == "linear" or low > 0


# Rows


def test_there_is_a_row_for_everything_declared_and_a_group_for_each_hook():
    trainer, tunables = make(Probe(),
                             sched=lambda optim: torch.optim.lr_scheduler.ConstantLR(optim))
    found = {title: [t.name for t in members] for title, members in groups(trainer.view).items()}
    assert found["Optimizer"] == ["lr", "lr_scale", "weight_decay", "grad_clip"]
    assert found["Loop"] == ["gradient_accumulation_steps", "mixed_precision", "eval_every"]
    own = next(title for title in found if title.startswith("probe"))
    # the others have only their switch
    assert "your hook" in own and set(found) == {"Optimizer", "Loop", own}
    assert [name.split(".")[1]
            for name in found[own]] == ["enabled", "every", "amount", "loud", "kind", "label",
                                        "limit"]
    assert list(tunables.rows) == sum(found.values(), [])


def test_a_hook_that_comes_later_gets_its_rows_and_the_others_stay():
    trainer, tunables = make()
    before = dict(tunables.rows)
    trainer.hooks.add(Probe())
    tunables.refresh()
    assert "probe.every" in tunables.rows
    assert all(tunables.rows[name] is row for name, row in before.items())
    assert [group.title for group in tunables.groups][:2] == ["Optimizer", "Loop"]
    assert len(tunables.body.children) == 3


def change(row, kind, value):
    """Do what a person does."""
    getattr(row.control, kind).value = value


@pytest.mark.parametrize("name, control, chosen, taken", [
    ("lr", "box", "3e-4", 3e-4), ("lr", "slider", 0.0012345, 0.00123),
    ("weight_decay", "box", "*2", 0.02),
    ("grad_clip", "slider", 1.5, 1.5), ("grad_clip", "box", "0.5", 0.5),
    ("gradient_accumulation_steps", "slider", 4, 4),
    ("mixed_precision", "list", "bf16", "bf16"), ("probe.loud", "box", True, True),
    ("probe.kind", "list", "off", None),
    ("probe.kind", "list", "max", "max"), ("probe.label", "box", "new", "new"),
    ("probe.every", "box", "7", 7),
    ("probe.enabled", "box", False, False), ("eval_every", "box", "2", 2)])
def test_a_change_by_hand_acts_and_is_journalled(name, control, chosen, taken):
    trainer, tunables = make(Probe())
    row = tunables.rows[name]
    change(row, control, chosen)
    last = trainer.journal.entries[-1]
    assert (last.kind, last.name, last.new, last.source) == ("tune", name, taken, "widget")
    assert trainer.tunables()[name].read() == taken and len(trainer.journal) == 1
    tunables.refresh()
    assert len(trainer.journal) == 1  # showing it asks for nothing
    if control == "box" and isinstance(chosen, str) and name != "probe.label":
        assert row.control.slider.value == pytest.approx(taken)
    if control == "slider":
        assert row.control.box.value == plain(taken)


def test_showing_values_that_others_changed_posts_nothing():
    trainer, tunables = make(Probe())
    trainer.tune(lr=0.5, grad_clip=3.0,
                 **{"probe.kind": "max", "probe.loud": True, "probe.label": "x"})
    tunables.refresh()
    assert len(trainer.journal) == 5
    assert tunables.rows["lr"].control.box.value == "0.5"
    assert tunables.rows["probe.kind"].control.list.value == "max"
    assert tunables.rows["lr"].control.slider.value == pytest.approx(0.5)


def test_a_value_beyond_the_slider_moves_its_end_as_long_as_it_is_there():
    trainer, tunables = make()
    row = tunables.rows["grad_clip"]
    change(row, "box", "40")
    assert row.control.slider.value == row.control.slider.max == 40 and trainer.grad_clip == 40
    change(row, "box", "2")
    assert (row.control.slider.value, row.control.slider.max) == (2, 5)
    trainer.tune(lr=50.0)
    tunables.refresh()
    trainer.tune(lr=0.01)
    tunables.refresh()
    assert tunables.rows["lr"].control.slider.max == 0


@pytest.mark.parametrize("name, typed, value",
                         [("lr", "1000", 1000.0), ("lr", "1e-9", 1e-9), ("grad_clip", "250", 250.0),
                          ("lr", "*1e6", 1e4)])
def test_a_value_far_beyond_the_usual_range_is_asked_for(name, typed, value):
    """Nothing changes before the answer; Keep leaves it, Set sets it;
    the same value again is no question."""
    trainer, tunables = make()
    row, before = tunables.rows[name], trainer.tunables()[name].read()
    change(row, "box", typed)
    assert len(trainer.journal) == 0
    assert "far beyond the usual" in hint(row) and row.control.slider.layout.display == "none"
    tunables.refresh()  # it waits for the answer
    assert (
        row.control.box.value == typed
        and row.control.confirm.sure.description == f"Set {plain(value)}"
    )
    row.control.confirm.keep.click()
    assert trainer.tunables()[name].read() == before
    assert "beyond" not in hint(row) and row.control.slider.layout.display is None
    assert row.control.box.value != typed
    change(row, "box", typed)
    row.control.confirm.sure.click()
    assert trainer.tunables()[name].read() == value
    assert row.control.box.value == plain(value) and len(trainer.journal) == 1
    change(row, "box", "0.5")
    assert trainer.tunables()[name].read() == 0.5 and "beyond" not in hint(row)


def test_the_buttons_of_a_question_are_made_for_the_first_one():
    """They come behind the other widgets, so the box keeps its place and focus."""
    trainer, tunables = make()
    row = tunables.rows["lr"]
    before = row.widget.children
    change(row, "box", "0.02")
    assert row.control.confirm is None and row.widget.children == before
    for typed in ("1000", "2000"):
        change(row, "box", typed)
        assert (
            row.widget.children == (*before, row.control.confirm.widget)
            and row.control.confirm.widget.layout.display is None
        )
        row.control.confirm.keep.click()
        assert row.control.confirm.widget.layout.display == "none"


def test_a_question_is_forgotten_with_the_next_value():
    trainer, tunables = make()
    row = tunables.rows["lr"]
    for answer, taken in (("0.02", 0.02), ("nonsense", 0.02)):
        change(row, "box", "1000")
        change(row, "box", answer)
        assert row.control.asking is None and trainer.tunables()["lr"].read() == taken
    assert "is not a number" in hint(row)


def test_undo_takes_back_one_change_after_the_other():
    """Each undo is a change in the journal with its reason;
    what others changed is taken back, too; a rewound one is not."""
    trainer, tunables = make(Probe())
    assert tunables.undo.disabled
    change(tunables.rows["lr"], "box", "0.1")
    change(tunables.rows["lr"], "box", "0.2")
    trainer.tune(**{"probe.kind": "max"})
    tunables.refresh()
    assert not tunables.undo.disabled and "probe.kind" in tunables.undo.tooltip
    seen = []
    for _ in range(4):
        tunables.undo.click()
        seen.append((trainer.get_hook(Probe).kind, trainer.lr))
    assert seen == [("mean", 0.2), ("mean", 0.1), ("mean", None), ("mean", None)]
    assert tunables.undo.disabled
    assert [entry.reason for entry in trainer.journal][-3:] == ["undo"] * 3
    change(tunables.rows["lr"], "box", "0.3")
    tunables.undo.click()
    assert trainer.lr is None and tunables.undo.disabled


def test_groups_fold_and_a_search_finds_what_is_folded():
    trainer, tunables = make(Probe())
    seen = lambda: [name for group in tunables.groups for name, row in zip(group.names, group._rows)
                    if row.widget.layout.display is None and group.widget.layout.display is None]
    whole = seen()
    assert len(whole) == len(tunables.rows) > 12 and tunables.search.layout.display is None
    next(group for group in tunables.groups if group.title == "Loop").fold.click()
    assert set(whole) - set(seen()) == {"gradient_accumulation_steps", "mixed_precision",
                                        "eval_every"}
    tunables.search.value = "EVERY"
    assert seen() == ["eval_every", "probe.every"]
    again = Probe()
    again.name = "again"
    trainer.hooks.add(again)
    tunables.refresh()
    assert seen() == ["eval_every", "probe.every", "again.every"]
    tunables.search.value = ""
    assert "eval_every" not in seen() and "again.kind" in seen()
    few = make()[1]
    assert few.search.layout.display == "none"


def test_many_settings_of_a_hook_of_the_package_start_folded():
    trainer, tunables = make(Probe(), AlertsHook())
    shut = [group for group in tunables.groups if not group.open]
    assert len(tunables.groups) > 3 and [group.title for group in shut] == ["alerts"]
    assert len(shut[0].names) > 6
    assert all(row.widget.layout.display == "none" for row in shut[0]._rows)
    shut[0].fold.click()
    trainer.hooks.add(EMAHook())
    tunables.refresh()  # the groups are made anew, and what a person opened stays open
    assert all(group.open for group in tunables.groups)
    tunables.search.value = "spike"
    shown = [name for group in tunables.groups for name, row in zip(group.names, group._rows)
             if row.widget.layout.display is None]
    assert shown and all("spike" in name for name in shown)


def test_a_refused_value_stays_to_be_corrected_and_changes_nothing():
    trainer, tunables = make()
    row = tunables.rows["grad_clip"]
    change(row, "box", "-1")
    assert row.control.box.value == "-1" and trainer.grad_clip is None and len(trainer.journal) == 0
    assert "refused" in row.widget._dom_classes
    assert hint(row) == "refused: a number, 0 or more. Still off"
    tunables.refresh()
    assert row.control.box.value == "-1"
    change(row, "box", "nonsense")
    assert "&#x27;nonsense&#x27; is not a number" in hint(row)
    change(row, "box", "2")
    assert "refused" not in row.widget._dom_classes and trainer.grad_clip == 2.0


def test_a_factor_multiplies_the_value_that_waits():
    """After a slider was let go and before the boundary, also where the box asked first."""
    seen = []

    class Hand(Hook):
        def before_batch(self, trainer):
            step = trainer.step_state.optimizer_step
            if step in (3, 5) and step not in seen:
                seen.append(step)
                row = tunables.rows["grad_clip" if step == 3 else "lr"]
                change(row, "slider", 2.0 if step == 3 else 0.004)
                change(row, "box", "*2")
                change(row, "box", "/8" if step == 3 else "*2")

    trainer, tunables = make(Hand(), grad_clip=1.0)
    trainer.fit()
    assert trainer.grad_clip == 0.5
    assert trainer.lr == pytest.approx(0.016)


def test_a_pending_value_is_shown_until_its_boundary():
    """Posted in a step, it waits until the step is whole."""
    seen = []
    class Hand(Hook):
        def before_batch(self, trainer):
            if trainer.step_state.optimizer_step == 3 and not seen:
                change(tunables.rows["lr"], "box", "0.5")
                row = tunables.rows["lr"]
                seen.extend([hint(row), "pending" in row.widget._dom_classes, trainer.rates()[0]])
    trainer, tunables = make(Hand())
    trainer.fit()
    assert seen == ["0.01 → 0.5 at the next step", True, 0.01]
    tunables.refresh()
    assert "pending" not in tunables.rows["lr"].widget._dom_classes
    assert "…" in hint(tunables.rows["lr"])
    assert [(e.name, e.step) for e in trainer.journal] == [("lr", 4)]


def test_a_schedule_moves_the_hint_and_not_the_slider():
    """The box and the slider stay where they are, whatever the schedule does."""
    trainer, tunables = make(sched=lambda optim: torch.optim.lr_scheduler.ExponentialLR(optim, 0.5))
    row = tunables.rows["lr"]
    before = row.control.slider.value, row.control.box.value
    trainer.step(3)
    tunables.refresh()
    assert (row.control.slider.value, row.control.box.value) == before == (0.01, "")
    assert row.control.box.placeholder == "schedule"
    assert hint(row) == "in force 0.00125 (schedule)"
    change(row, "box", "0.02")
    assert row.control.box.value == "0.02" and trainer.rates() == [0.02]
    change(row, "box", "schedule")
    assert trainer.lr is None and row.control.box.value == ""


def test_nothing_new_sends_nothing():
    trainer, tunables = make(Probe())
    sent = []
    for row in tunables.rows.values():
        for widget in (row.hint, *(c for c in row.widget.children)):
            widget.observe(lambda change: sent.append(change["name"]))
    tunables.refresh()
    assert sent == []


def test_the_table_shows_names_and_values():
    """`trainer.tunables` at the end of a cell."""
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(model, train_dl=[], optim=torch.optim.SGD(model.parameters(), lr=0.5))
    lines = repr(trainer.tunables).splitlines()
    assert lines[0] == "lr = None" and "lr_scale = 1.0" in lines


@pytest.mark.parametrize("value", [np.float32(0.25), np.array(0.25), torch.tensor(0.25),
                                   torch.tensor(0.25, dtype=torch.float64)])
def test_a_scalar_of_numpy_or_torch_is_a_number(value):
    """It is journalled as the Python value; more than one value is refused."""
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(model, train_dl=[], optim=torch.optim.SGD(model.parameters(), lr=0.5))
    trainer.tune(lr=value)
    assert type(trainer.lr) is float and trainer.lr == 0.25
    trainer.tune(gradient_accumulation_steps=np.int64(4))
    assert type(trainer.gradient_accumulation_steps) is int
    with pytest.raises(ValueError, match="lr = .* is refused: a number"):
        trainer.tune(lr=torch.tensor([0.1, 0.2]))
    with pytest.raises(ValueError, match="is refused"):
        trainer.tune(lr=torch.tensor(True))
    assert trainer.lr == 0.25
