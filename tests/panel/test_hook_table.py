"""The hook table without a browser: what it shows, what a hand on it does to the run."""

import threading
from itertools import combinations
from types import SimpleNamespace

import ipywidgets as widgets
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_nb import Hook, Trainer
from trainer_nb.core.control import Reply, StepTimes
from trainer_nb.panel.dashboard import tab_titles
from trainer_nb.panel.hook_table import (HookTable, cells, count_short, each_short,
                                         orders_after_move, seconds_short,
                                         share_short, split_bar)


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
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs[:, :1]),
                                       batch_size=8)
    trainer = Trainer(torch.nn.Linear(4, 1), train_dl=data, loss_fn=torch.nn.MSELoss(),
                      device="cpu", epochs=2,
                      progress=False, hooks=hooks or (First(), Second()))
    said.clear()
    return trainer, HookTable(trainer.view)


def running(table):
    """The names of the rows from top to bottom, as they are drawn."""
    by_widget = {controls.widget: name for name, controls in table.controls.items()}
    return [by_widget[widget]
            for widget in sorted(table.table.children[1:], key=lambda row: int(row.layout.order))]


def lines(*orders, numbers=range(100)):
    """Rows in running order."""
    rows = [SimpleNamespace(name=str(number), order=order, number=number)
            for number, order in zip(numbers, orders)]
    return sorted(rows, key=lambda row: (row.order, row.number))


def after(rows, changed):
    """The names in running order when some orders have changed."""
    return [row.name
            for row in sorted(rows, key=lambda row: (changed.get(row.name, row.order), row.number))]


def fewest_changes(rows, wanted):
    """How many orders must change at least: all choices of those that stay, tried."""
    def fits(kept):
        last = None
        for row in wanted:
            if row.name in kept:
                if last is not None and (row.order, row.number) < last:
                    return False
                last = row.order, row.number
            elif last is not None:
                last = last[0] + (row.number < last[1]), row.number
        return True
    names = [row.name for row in rows]
    return next(count for count in range(len(rows) + 1)
                if any(fits(set(names) - set(gone)) for gone in combinations(names, count)))


@given(st.lists(st.integers(-3, 6), min_size=2, max_size=7), st.permutations(range(7)), st.data())
def test_a_move_lands_where_it_should_and_changes_little(orders, numbers, data):
    """Whatever the orders, the gaps between them and the ties;
    and not one order more than needed."""
    rows = lines(*orders, numbers=numbers)
    index = data.draw(st.integers(0, len(rows) - 1))
    to = data.draw(st.integers(0, len(rows) - 1).filter(lambda place: place != index))
    wanted = list(rows)
    wanted.insert(to, wanted.pop(index))
    changed = orders_after_move(rows, index, to)
    assert after(rows, changed) == [row.name for row in wanted]
    assert len(changed) == fewest_changes(rows, wanted)
    assert all(type(order) is int for order in changed.values())
    assert all(row.order != changed.get(row.name) for row in rows)


@pytest.mark.parametrize("orders, index, to, changed", [
    ((0, 10, 20), 0, 1, {"0": 11}), ((0, 10, 20), 2, 0, {"2": -1}), ((0, 0, 0), 0, 2, {"0": 1}),
    ((1, 2, 3), 2, 1, {"2": 1}), ((1, 2, 3), 0, 1, {"0": 3}), ((5, 5), 1, 0, {"1": 4})])
def test_it_is_the_moved_hook_that_changes_where_one_will_do(orders, index, to, changed):
    assert orders_after_move(lines(*orders), index, to) == changed


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
                seen.append((table.controls["second"].text.value.count("→ off"),
                             trainer.get_hook(Second).enabled))
    seen = []
    trainer, table = make(First(), Second(), Hand())
    trainer.fit(max_steps=4)
    assert seen == [(1, True)] and said == ["first", "second"] * 2 + ["first"] * 2
    assert [(e.name, e.new, e.step, e.source)
            for e in trainer.journal] == [("second.enabled", False, 2, "widget")]
    table.refresh()
    assert "off" in table.controls["second"].widget._dom_classes
    assert "→" not in table.controls["second"].text.value


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
    assert table.controls["first"].order.value == "soon"
    assert "whole number" in table.controls["first"].order.tooltip
    assert "refused" in table.controls["first"].widget._dom_classes and len(trainer.journal) == 1
    table.controls["first"].order.value = "6"
    table.refresh()
    assert "refused" not in table.controls["first"].widget._dom_classes


@pytest.mark.parametrize("text", ["abc", "", "1.5", "1e3", "<b>"])
def test_a_text_that_is_not_an_order_is_red_at_once_and_nothing_is_posted(text):
    """No run is there that would refresh the table;
    the order in force, typed again, is a way out."""
    trainer, table = make()
    row, posted = table.controls["second"], []
    table.view.post = posted.append
    row.order.value = text
    assert "refused" in row.widget._dom_classes
    assert "whole number" in row.order.tooltip and row.order.value == text
    assert "refused" in row.text.value and "<b>'" not in row.text.value
    row.order.value = " 0 "
    assert "refused" not in row.widget._dom_classes
    assert row.order.value == "0" and "refused" not in row.text.value
    assert posted == []


class Refusing:
    """A view of a run that refuses every change."""

    def __init__(self, view):
        self.view = view

    def __getattr__(self, name):
        return getattr(self.view, name)

    def post(self, command):
        reply = Reply()
        reply.settle("refused", error=ValueError("not <now>"))
        return reply


@pytest.mark.parametrize("hand",
                         [lambda row: setattr(row.switch, "value", False),
                          lambda row: row.down.click(),
                          lambda row: setattr(row.order, "value", "8")],
                          ids=["switch", "move", "order"])
def test_a_refusal_stands_with_its_reason_until_the_next_change(hand):
    trainer, table = make()
    row, view, told = table.controls["first"], table.view, []
    table.view, table.notify = Refusing(view), lambda: told.append(1)
    hand(row)
    for _ in range(2):
        assert "refused" in row.widget._dom_classes
        assert row.order.tooltip == "not <now>" and told == [1]
        assert "not &lt;now&gt;" in row.text.value and row.switch.value is True
        table.refresh()
    assert "refused" not in table.controls["second"].widget._dom_classes
    table.view = view
    trainer.tune(**{"first.order": 3})  # in another way
    table.refresh()
    assert "refused" not in row.widget._dom_classes and row.order.value == "3"


def test_two_clicks_before_the_boundary_are_two_places():
    """The first one still waits when the second comes."""
    class Hand(Hook):
        name, order = "hand", 50
        def after_loss(self, trainer):
            if trainer.step_state.optimizer_step == 1:
                table.controls["first"].down.click()
                table.controls["first"].down.click()
                seen.append((running(table), table.controls["first"].text.value.count("0 → 21")))
    seen = []
    trainer, table = make(First(), Second(), Hand())
    trainer.fit(max_steps=3)
    table.refresh()
    assert seen == [(["first", "second", "recorder", "hand"], 1)]
    assert running(table) == ["second", "recorder", "first", "hand"]
    assert "→" not in table.controls["first"].text.value


def test_showing_what_others_changed_asks_for_nothing(monkeypatch):
    trainer, table = make()
    trainer.tune(**{"first.enabled": False, "second.order": 7})
    asked, post = [], trainer.post
    monkeypatch.setattr(trainer, "post", lambda command: asked.append(command) or post(command))
    table.refresh()
    assert asked == [] and len(trainer.journal) == 2
    assert table.controls["first"].switch.value is False
    assert table.controls["second"].order.value == "7"


def test_cost_is_counted_while_it_is_shown():
    trainer, table = make()
    table.shown(True)
    trainer.fit(max_steps=6)
    table.refresh()
    assert trainer.hooks.rows[0].calls == 6 and ">6<" in table.controls["first"].text.value
    assert "forward" in table.split.value
    assert "ms" in table.step.value and trainer.view.step_times.steps == 5
    table.shown(False)
    trainer.fit(max_steps=9)
    assert trainer.hooks.rows[0].calls == 6 and not trainer.hooks.watched
    assert [entry.kind for entry in trainer.journal] == ["totals"]  # looking is not an intervention


def test_sorted_by_cost_nothing_can_be_moved():
    """The most expensive first; the page keeps its rows, and the focus."""
    trainer, table = make()
    before = table.table.children
    trainer.hooks.rows[1].tally.seconds = 3.0
    table.sorting.value = "by cost"
    assert running(table) == ["second", "first", "recorder"] and table.table.children == before
    assert all(controls.up.disabled and controls.down.disabled
               for controls in table.controls.values())
    table.sorting.value = "running order"
    assert running(table)[0] == "first" and not table.controls["first"].down.disabled


def test_a_move_leaves_the_rows_of_the_page_where_they_are():
    """Else the button that was pressed loses the focus;
    when it is opened the next time, the page follows."""
    trainer, table = make()
    before = table.table.children
    table.controls["first"].down.click()
    assert running(table)[:2] == ["second", "first"] and table.table.children == before
    table.shown(False)
    assert table.table.children == before
    table.shown(True)
    assert table.table.children[1:3] == (table.controls["second"].widget,
                                         table.controls["first"].widget)


def test_a_hook_that_raised_is_named_with_point_and_traceback():
    hook = Second()
    trainer, table = make(First(), hook)
    hook.fails_at = 3
    with pytest.raises(ValueError, match="bad"):
        trainer.fit()
    table.refresh()
    row = table.controls["second"]
    assert "bad" in row.widget._dom_classes and "ValueError, step 3" in row.text.value
    assert "Second.before_batch" in table.trouble.value
    assert "a &lt;bad&gt; batch" in table.trouble.value
    assert "test_hook_table.py" in table.trouble.value
    assert "First" not in table.trouble.value.split("<pre>")[0]
    assert table.title == "Hooks 3 · 1 error" == tab_titles(table.view)["hooks"][0]
    row.switch.value = False
    assert trainer.fit().status == "finished"
    table.refresh()
    assert table.title == "Hooks 3" == tab_titles(table.view)["hooks"][0]
    assert "step 3" in row.text.value


def test_a_hook_that_comes_or_goes_moves_no_widget():
    trainer, table = make()
    before = dict(table.controls)
    third = SimpleNamespace(after_epoch=lambda trainer: None, order=-1, name="third")
    trainer.hooks.add(third)
    table.refresh()
    assert running(table)[0] == "third"
    assert all(table.controls[name] is each for name, each in before.items())
    trainer.hooks.remove(third)
    table.refresh()
    assert running(table) == ["first", "second", "recorder"]


def messages(monkeypatch):
    """The models that send something to the page, one entry a message."""
    sent = []
    monkeypatch.setattr(widgets.Widget, "send_state", lambda self, key=None: sent.append(self))
    return sent


def test_nothing_new_sends_nothing(monkeypatch):
    trainer, table = make()
    table.shown(True)
    trainer.fit(max_steps=3)
    table.refresh()
    sent = messages(monkeypatch)
    table.refresh()
    assert sent == []


def test_new_numbers_are_one_message_a_row(monkeypatch):
    trainer, table = make()
    table.shown(True)
    trainer.fit(max_steps=3)
    table.refresh()
    trainer.fit(max_steps=6)
    sent = messages(monkeypatch)
    table.refresh()
    texts = {controls.text for controls in table.controls.values()}
    assert texts <= set(sent) <= texts | {table.step, table.split} and len(sent) == len(set(sent))


def test_a_click_in_another_thread_is_heard_while_the_table_is_drawn():
    """It is not taken for a value that is being shown."""
    trainer, table = make()
    row = table.controls["first"]
    hand = threading.Thread(target=lambda: setattr(row.switch, "value", False))
    # in the middle of drawing the row
    row.order.observe(lambda change: (hand.start(), hand.join(0.3)), "value")
    trainer.tune(**{"first.order": -1})
    table.refresh()
    hand.join()
    assert [(entry.name, entry.new)
            for entry in trainer.journal] == [("first.order", -1), ("first.enabled", False)]
    assert row.switch.value is False and trainer.get_hook(First).enabled is False


@pytest.mark.parametrize("value", [0, 2e-5, 0.0499, 0.05, 9.99, 999.9, 1000, 35999, 36000, 359_999])
def test_seconds_fit_their_column(value):
    assert len(seconds_short(value)) <= 7
    assert len(each_short(value)) <= 7


def test_numbers_are_short_and_right():
    assert [count_short(n) for n in (0, 999_999, 12_345_678)] == ["0", "999,999", "12.3 M"]
    assert [share_short(s)
            for s in (0.0004, 0.061, 0.0996, 1.0)] == ["0.0 %", "6.1 %", "10 %", "100 %"]
    assert [seconds_short(s)
            for s in (0.02, 5.5, 4000, 90000)] == ["20.0 ms", "5.5 s", "67 min", "25.0 h"]


def test_dashes_until_something_was_counted():
    row = SimpleNamespace(label="<Hook>", own=True, order=0, points=("after_step",), calls=0,
                          seconds=0.0, in_steps=0.0, estimated=False, enabled=True,
                          failure=None)
    assert cells(row, None, {}).count("–") == 5 and "&lt;Hook&gt;" in cells(row, None, {})
    times = StepTimes(10, {"data": 0.0, "forward": 1.0, "hooks": 1.0, "rest": 0.001}, "")
    row.calls, row.seconds, row.in_steps = 4, 0.2, 0.2
    assert "10 %" in cells(row, times, {})
    assert "50.00" in cells(row, times, {}) and "width:100.0%" in cells(row, times, {})
    assert "rest" not in split_bar(times) and "forward 50 %" in split_bar(times)


def test_numbers_stay_when_the_tab_is_left():
    """Another tab, and back: nothing is lost, and the table says which steps were counted."""
    trainer, table = make()
    table.shown(True)
    trainer.step(4)
    table.refresh()
    assert "counted since step 0" in table.step.value
    table.shown(False)
    table.refresh()
    assert ">4<" in table.controls["first"].text.value
    assert "counted in steps 1 to 4" in table.step.value
    trainer.step(6)
    table.shown(True)
    trainer.fit()
    table.refresh()
    assert ">10<" in table.controls["first"].text.value
    assert "counted in steps 1 to 4 and since step 10" in table.step.value


def test_a_run_whose_hooks_were_not_watched_says_so():
    """Not that times will come: the run has ended."""
    trainer, table = make()
    assert "times appear after the first steps" in table.split.value
    trainer.fit()
    table.refresh()
    assert "no timing recorded while this tab was closed" in table.split.value
