"""What may be changed live: the table of tunables."""

import gc
import sys
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from trainer_nb import Trainer, Tunable
from trainer_nb.core import tunable
from trainer_nb.core.tunable import BoundTunable, PartTunable


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
    assert run.rates.lr is None
    with pytest.raises(ValueError,
                       match="there is no tunable 'part.dept': did you mean 'part.depth'?"):
        run.tunables.validate({"part.dept": 3})
    assert run.tunables.validate({"part.depth": 4.0, "lr": 1}) == {"part.depth": 4, "lr": 1.0}


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
