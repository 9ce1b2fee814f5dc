"""The hook table without a browser: what it shows, what a hand on it does to the run."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_nb import Hook, Trainer
from trainer_nb.core.control import StepTimes
from trainer_nb.panel.hook_table import HookTable, cells, orders_after_move, split_bar


class First(Hook):
    """A hook of a user's."""

    def before_batch(self, trainer):
        said.append("first")


class Second(Hook):
    """Another one, with the same order."""

    fails_at = None

    def before_batch(self, trainer):
        said.append("second")
        if trainer.step_state.optimizer_step == self.fails_at:
            raise ValueError("a <bad> batch")


said: list[str] = []


def make(*hooks):
    """A small trainer and its table."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs[:, :1]), batch_size=8)
    trainer = Trainer(torch.nn.Linear(4, 1), train_dl=data, loss_fn=torch.nn.MSELoss(), device="cpu", epochs=2,
                      progress=False, hooks=hooks or (First(), Second()))
    said.clear()
    return trainer, HookTable(trainer.view)


def running(table):
    """The names of the rows from top to bottom."""
    by_widget = {controls.widget: name for name, controls in table.controls.items()}
    return [by_widget[widget] for widget in table.table.children[1:]]


@given(st.lists(st.integers(-3, 6), min_size=2, max_size=8), st.permutations(range(8)), st.data())
def test_a_move_lands_where_it_should_and_changes_little(orders, numbers, data):
    """Whatever the orders, the gaps between them and the ties."""
    rows = [SimpleNamespace(name=str(number), order=order, number=number) for number, order in zip(numbers, orders)]
    rows.sort(key=lambda row: (row.order, row.number))
    index = data.draw(st.integers(0, len(rows) - 1))
    to = data.draw(st.integers(0, len(rows) - 1).filter(lambda place: place != index))
    wanted = [row.name for row in rows]
    wanted.insert(to, wanted.pop(index))
    changed = orders_after_move(rows, index, to)
    assert all(row.order != changed.get(row.name) for row in rows)
    for row in rows:
        row.order = changed.get(row.name, row.order)
    assert [row.name for row in sorted(rows, key=lambda row: (row.order, row.number))] == wanted


def test_rows_stand_in_running_order_with_their_points():
    trainer, table = make()
    assert running(table) == ["first", "second", "recorder"]
    text = table.controls["first"].text.value
    assert "First" in text and "yours" in text and "before_batch" in text
    assert "yours" not in table.controls["recorder"].text.value


def test_a_switch_acts_at_the_boundary_and_is_journalled():
    """Clicked in mid-step: this step still hears it, the next does not."""
    class Hand(Hook):
        def after_backward(self, trainer):
            if trainer.step_state.optimizer_step == 1:
                table.controls["second"].switch.value = False
                seen.append((table.controls["second"].text.value.count("→ off"), trainer.get_hook(Second).enabled))
    seen = []
    trainer, table = make(First(), Second(), Hand())
    trainer.fit(max_steps=4)
    assert seen == [(1, True)] and said == ["first", "second"] * 2 + ["first"] * 2
    assert [(e.name, e.new, e.step, e.source) for e in trainer.journal] == [("second.enabled", False, 2, "widget")]
    table.refresh()
    assert "off" in table.controls["second"].widget._dom_classes and "→" not in table.controls["second"].text.value


def test_a_move_among_equal_orders_changes_what_runs_first():
    trainer, table = make()
    table.controls["first"].down.click()
    trainer.fit(max_steps=1)
    assert said == ["second", "first"] and running(table)[:2] == ["second", "first"]
    table.controls["first"].up.click()
    assert running(table)[:2] == ["first", "second"]
    assert table.controls["first"].up.disabled and table.controls["recorder"].down.disabled


def test_an_order_is_typed():
    trainer, table = make()
    table.controls["first"].order.value = "5"
    trainer.fit(max_steps=1)
    assert said == ["second", "first"] and trainer.journal.entries[0].name == "first.order"
    table.controls["first"].order.value = "soon"
    table.refresh()
    assert table.controls["first"].order.value == "soon" and "whole number" in table.controls["first"].order.tooltip
    assert "refused" in table.controls["first"].widget._dom_classes and len(trainer.journal) == 1
    table.controls["first"].order.value = "6"
    table.refresh()
    assert "refused" not in table.controls["first"].widget._dom_classes


def test_showing_what_others_changed_asks_for_nothing():
    trainer, table = make()
    trainer.tune(**{"first.enabled": False, "second.order": 7})
    table.refresh()
    assert len(trainer.journal) == 2
    assert table.controls["first"].switch.value is False and table.controls["second"].order.value == "7"


def test_cost_is_counted_while_it_is_shown():
    trainer, table = make()
    table.shown(True)
    trainer.fit(max_steps=6)
    table.refresh()
    assert trainer.hooks.rows[0].calls == 6 and ">6<" in table.controls["first"].text.value
    assert "forward" in table.split.value and "ms" in table.step.value and trainer.view.step_times.steps == 5
    table.shown(False)
    trainer.fit(max_steps=9)
    assert trainer.hooks.rows[0].calls == 6 and not trainer.hooks.watched
    assert len(trainer.journal) == 0  # looking is no intervention


def test_sorted_by_cost_nothing_can_be_moved():
    trainer, table = make()
    trainer.hooks.rows[1].seconds = 3.0
    table.sorting.value = "by cost"
    assert running(table)[0] == "second"
    assert all(controls.up.disabled and controls.down.disabled for controls in table.controls.values())


def test_a_hook_that_raised_is_named_with_point_and_traceback():
    hook = Second()
    trainer, table = make(First(), hook)
    hook.fails_at = 3
    with pytest.raises(ValueError, match="bad"):
        trainer.fit()
    table.refresh()
    row = table.controls["second"]
    assert "bad" in row.widget._dom_classes and "ValueError, step 3" in row.text.value
    assert "Second.before_batch" in table.trouble.value and "a &lt;bad&gt; batch" in table.trouble.value
    assert "test_hook_table.py" in table.trouble.value and "First" not in table.trouble.value.split("<pre>")[0]
    row.switch.value = False
    assert trainer.fit().status == "finished"


def test_a_hook_that_comes_or_goes_moves_no_widget():
    trainer, table = make()
    before = dict(table.controls)
    third = SimpleNamespace(after_epoch=lambda trainer: None, order=-1, name="third")
    trainer.hooks.add(third)
    table.refresh()
    assert running(table)[0] == "third" and all(table.controls[name] is each for name, each in before.items())
    trainer.hooks.remove(third)
    table.refresh()
    assert running(table) == ["first", "second", "recorder"]


def test_nothing_new_sends_nothing():
    trainer, table = make()
    trainer.fit(max_steps=3)
    table.refresh()
    sent = []
    for controls in table.controls.values():
        for widget in (controls.switch, controls.up, controls.down, controls.order, controls.text):
            widget.observe(lambda change: sent.append(change["name"]))
    for widget in (table.table, table.split, table.step, table.trouble):
        widget.observe(lambda change: sent.append(change["name"]))
    table.refresh()
    assert sent == []


def test_dashes_until_something_was_counted():
    row = SimpleNamespace(label="<Hook>", own=True, order=0, points=("after_step",), calls=0, seconds=0.0, enabled=True,
                          failure=None)
    assert cells(row, None, {}).count("–") == 5 and "&lt;Hook&gt;" in cells(row, None, {})
    times = StepTimes(10, {"data": 0.0, "forward": 1.0, "hooks": 1.0, "rest": 0.001}, "")
    row.calls, row.seconds = 4, 0.2
    assert "10.0 %" in cells(row, times, {}) and "50.00" in cells(row, times, {}) and "width:100.0%" in cells(row, times, {})
    assert "rest" not in split_bar(times) and "forward 50 %" in split_bar(times)
