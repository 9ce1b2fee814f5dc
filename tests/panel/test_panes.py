"""The panes of journal and inspect: what they show of a real run, what they post, that they stay
still."""

import math
import re
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from live_page import later

from trainer_nb import Hook, Trainer
from trainer_nb.core.control import Command, Inspection, LayerRow, Reply, TensorRow
from trainer_nb.core.journal import Journal
from trainer_nb.core.state import RunState
from trainer_nb.panel import inspect_pane as inspect_module
from trainer_nb.panel.inspect_pane import (InspectPane, layer_table, inspection_code, number_short,
                                           tensor_table)
from trainer_nb.panel.journal_pane import (PAGE, SHOWN, Entry, JournalPane, change_text, entry_row,
                                           promise)


class Slow(Hook):
    """Takes its time in each step, so that a run in the background is still there."""

    def after_step(self, trainer):
        """A little."""
        time.sleep(0.002)


def make(epochs=2, **settings):
    """A small trainer."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs[:, :1]),
                                       batch_size=8)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    return Trainer(model, train_dl=data, loss_fn=torch.nn.MSELoss(), device="cpu", progress=False,
                   epochs=epochs, optim=optim, seed=7, **settings)


def cells(table):
    """The rows of a table of HTML as lists of plain texts."""
    body = table.partition("<tbody>")[2]
    rows = body.split("</tr>")[:-1]
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall("<td.*?</td>", row)]
            for row in rows]


def sent(widget):
    """A list that gets every trait of this widget that changes from now on."""
    changes = []
    widget.observe(lambda change: changes.append(change["name"]))
    return changes


# Journal


def test_the_newest_entry_stands_first_with_its_place_in_the_run():
    trainer = make()
    pane = JournalPane(trainer.view)
    trainer.step(5)
    trainer.tune(lr=0.002)
    trainer.note("so far so good")
    trainer.step(7)
    trainer.tune(**{"recorder.enabled": False})
    pane.refresh()
    switch, note, rate = cells(pane.table.value)
    assert switch[:3] == ["3", "12", "1.50"]
    assert switch[4:] == ["recorder.enabled", "on → off", "code"]
    assert note[:3] == ["·", "5", "0.62"] and note[4:] == ["note", "“so far so good”", "code"]
    assert rate[:3] == ["1", "5", "0.62"] and rate[4:] == ["lr", "0.01 (initial) → 0.002", "code"]
    assert re.fullmatch(r"\d\d:\d\d:\d\d", rate[3]) and pane.title == "Journal 3"


@pytest.mark.parametrize("kind, name, old, new, text", [
    ("tune", "lr", 0.001, 3e-4, "0.001 → 3e-4"), ("tune", "grad_clip", None, 1.0, "off → 1"),
    ("hook", "mix.enabled", True, False, "on → off"),
    ("tune", "mix.kind", "mean", "<b>", "mean → <b>"),
    ("memory", "micro_batch_size", 64, 32, "64 → 32"), ("note", "note", None, "10 %", "“10 %”"),
    ("pause", "pause", None, None, "–"), ("pause", "pause", None, "loss > 3 (4)", "loss > 3 (4)"),
    ("skip", "batch", None, "batch 3 of epoch 1", "batch 3 of epoch 1 left out"),
    ("stop", "max_time", None, 60, "60")])
def test_a_change_is_written_in_words(kind, name, old, new, text):
    entry = Journal().record(kind, name, old, new)
    assert change_text(entry) == text
    assert '"number dot"' in entry_row(entry, 10) or kind in ("tune", "hook")


def test_the_epoch_is_whole_where_its_length_is_unknown_and_never_more_than_begun():
    entry = Journal().record("tune", "lr", 1.0, 2.0, epoch=3, batch_idx=9, step=1234)
    assert cells("<tbody>" + entry_row(entry, None))[0][1:3] == ["1,234", "3"]
    # the loader gave more than it had said
    assert cells("<tbody>" + entry_row(entry, 8))[0][2] == "4.00"


def test_texts_of_people_are_shown_as_text():
    trainer = make()
    trainer.note("<script>alert(1)</script> & <b>bold</b>")
    trainer.journal.record("tune", "a<i>", "x", "<img>", source="<u>")
    table = JournalPane(trainer.view).table.value
    assert not re.search("<(script|img|i|u)>", table) and "<b>bold" not in table
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp;" in table


def test_twelve_rows_then_all_in_pages():
    trainer = make()
    pane = JournalPane(trainer.view)
    for number in range(SHOWN):
        trainer.note(str(number))
    pane.refresh()
    assert len(cells(pane.table.value)) == SHOWN and pane.pages.widget.layout.display == "none"
    for number in range(SHOWN, 2 * PAGE + 7):
        trainer.note(str(number))
    pane.refresh()
    assert len(cells(pane.table.value)) == SHOWN and pane.pages.more.description == "Show all 207"
    assert pane.pages.older.layout.display == "none"
    pane.pages.more.click()
    assert len(cells(pane.table.value)) == PAGE and "1–100 of 207" in pane.pages.count.value
    assert pane.pages.newer.disabled
    pane.pages.older.click()
    pane.pages.older.click()
    assert [row[5] for row in cells(pane.table.value)] == [f"“{n}”" for n in range(6, -1, -1)]
    assert pane.pages.older.disabled
    assert not pane.pages.newer.disabled and "201–207 of 207" in pane.pages.count.value
    pane.pages.newer.click()
    assert "101–200" in pane.pages.count.value
    pane.pages.more.click()
    assert cells(pane.table.value)[0][5] == "“206”" and len(cells(pane.table.value)) == SHOWN


def test_a_note_is_kept_at_its_step_and_the_box_is_empty_again():
    trainer, told = make(), []
    pane = JournalPane(trainer.view, lambda: told.append(1))
    trainer.step(3)
    pane.note.box.value = "  a thought "
    entry = trainer.journal.entries[0]
    assert (entry.kind, entry.new, entry.step, entry.source) == ("note", "a thought", 3, "widget")
    assert pane.note.box.value == "" and told == [1] and cells(pane.table.value)[0][6] == "panel"
    pane.note.box.value = "   "
    pane.note.keep.click()
    assert len(trainer.journal) == 1


def test_a_note_in_a_running_run_appears_when_it_has_been_taken():
    trainer = make(epochs=1_000_000, hooks=[Slow()])
    trainer.start()
    pane = JournalPane(trainer.view)
    pane.note.box.value = "in between"
    assert later(lambda: len(trainer.journal) == 1)
    pane.refresh()
    assert cells(pane.table.value)[0][5] == "“in between”"
    trainer.close()


def test_nothing_new_draws_nothing_and_a_step_alone_is_nothing_new(monkeypatch):
    written, write = [], Journal.to_script
    monkeypatch.setattr(Journal, "to_script",
                        lambda self, **total: written.append(1) or write(self, **total))
    trainer = make()
    trainer.step(1)
    trainer.tune(lr=0.1)
    pane = JournalPane(trainer.view)
    table, script = sent(pane.table), sent(pane.script)
    for _ in range(3):
        trainer.step(1)
        pane.refresh()
    assert table == script == [] and len(written) == 1
    trainer.note("x")
    pane.refresh()
    assert "value" in table and script == []  # a note is not a line of the script


def test_a_hook_that_tunes_in_every_step_does_not_draw_in_every_step():
    trainer = make(epochs=3)
    pane = JournalPane(trainer.view)
    for _ in range(600):
        trainer.journal.record("tune", "lr", 0.1, 0.2)
    drawn = sent(pane.table)
    trainer.state = RunState.RUNNING
    for _ in range(20):
        trainer.journal.record("tune", "lr", 0.1, 0.2)
        pane.refresh()
    assert len(drawn) == 1
    trainer.state = RunState.PAUSED
    pane.refresh()
    assert len(drawn) == 2


@pytest.mark.parametrize("totals, call", [
    ({"epochs": 2}, "epochs=2"), ({"epochs": None, "max_steps": 9}, "max_steps=9")])
def test_the_script_is_that_of_the_run_with_its_totals(totals, call):
    trainer = make(**totals)
    pane = JournalPane(trainer.view)
    trainer.step(3)
    trainer.tune(lr=0.2)
    trainer.fit()
    pane.refresh()
    key, _, value = call.partition("=")
    assert pane.script.text == trainer.journal.to_script(**{key: int(value)})
    assert pane.script.text.endswith(f"trainer.fit({call})\n")
    trainer.fit(**{key: 2 * int(value)})
    pane.refresh()
    assert pane.script.text.endswith(f"trainer.fit({key}={2 * int(value)})\n")


def test_an_empty_journal_says_so_and_learns_the_seed_when_the_run_begins():
    trainer = make()
    pane = JournalPane(trainer.view)
    assert "No manual changes yet." in pane.table.value and pane.title == "Journal 0"
    trainer.step(1)
    pane.refresh()
    assert "make_trainer(seed=7)" in pane.script.text


def test_the_script_promises_no_more_than_it_keeps():
    plain = "Replays to the same weights, bit for bit. Pauses and notes are left out."
    assert promise(Journal({"seed": 7})) == plain
    assert "the run had no seed" in promise(Journal({"seed": None}))
    journal = Journal({"seed": 7})
    journal.record("skip", "batch", new="batch 1 of epoch 0")
    assert "skipped again" in promise(journal)


# Inspect: tables


@pytest.mark.parametrize("value, text", [
    (None, "–"), (0, "0"), (-0.0, "0"), (999.7, "1,000"), (9.0, "9"), (-2.4315, "−2.43"),
    (11.62, "11.6"),
    (0.0101, "0.0101"), (12345.6, "12,346"), (-3.21e-7, "−3.21e-7"), (6.02e23, "6.02e23"),
    (math.nan, '<b class="wrong">nan</b>'),
    (-math.inf, '<b class="wrong">−inf</b>')])
def test_numbers_are_short_and_non_finite_ones_stand_out(value, text):
    assert number_short(value) == text


@given(st.floats(-1e300, 1e300))
def test_a_short_number_is_the_number(value):
    """To three digits."""
    read = float(number_short(value).replace("−", "-").replace(",", ""))
    assert math.isclose(read, value, rel_tol=5.1e-3)


def test_shapes_and_types_are_written_as_people_do():
    rows = [TensorRow("batch['<x>']", (128, 3, 32, 32), "bfloat16", -2.43, 0.01, 2.75),
            TensorRow("loss", (), "float32", None, 0.51234, None)]
    table = tensor_table(rows)
    assert cells(table)[0][1:] == ["128 × 3 × 32 × 32", "bf16", "−2.43", "0.01", "2.75"]
    assert cells(table)[1] == ["loss", "scalar", "fp32", "–", "0.5123", "–"]
    assert "<x>" not in table


def test_the_longest_bar_is_the_largest_finite_norm():
    rows = [LayerRow("a", 0.5, 1e-3), LayerRow("b", 2.0, None), LayerRow("c", math.inf, math.nan),
            LayerRow("d", None, 0.0)]
    table = layer_table(Inspection(5, layers=rows, layers_step=5), "")
    assert re.findall(r"width:(\d+)%", table) == ["25", "100", "100", "0"]
    assert "norm of the last step" in table
    assert [row[2] for row in cells(table)] == ["1.0e-3", "–", "nan", "0.0"]
    assert "norm in step 1,004" in layer_table(Inspection(1005, layers=rows, layers_step=1004), "")


def test_before_a_layer_was_measured_there_are_dashes_and_a_word():
    table = layer_table(Inspection(5), "press <b>Step</b>")
    assert cells(table) == [["–", "–", "–"]] and "press <b>Step</b>" in table


# Inspect: a run


def test_a_pause_fills_the_pane_with_batch_and_layers():
    trainer = make()
    pane = InspectPane(trainer.view)
    assert "away" in pane.tables._dom_classes and pane.title == "Inspect"
    pane.shown(True)
    trainer.step(3)
    pane.refresh()
    assert "away" not in pane.tables._dom_classes and pane.title == "Inspect · step 3"
    batch = cells(pane.batch.value)
    assert [row[:3] for row in batch] == [["batch[0]", "8 × 4", "fp32"],
                                          ["batch[1]", "8 × 1", "fp32"],
                                          ["pred", "8 × 1", "fp32"], ["loss", "scalar", "fp32"]]
    assert batch[0][4] == number_short(trainer.batch[0].double().mean().item())
    assert [row[0] for row in cells(pane.layers.value)] == ["0", "2"]
    assert "norm of the last step" in pane.layers.value


def test_opened_in_a_pause_it_asks_for_a_step():
    trainer = make()
    trainer.step(2)
    pane = InspectPane(trainer.view)
    pane.shown(True)
    pane.refresh()
    assert cells(pane.batch.value)[0][0] == "batch[0]" and "press <b>Step</b>" in pane.layers.value
    pane.shown(False)
    assert not any(type(hook).__name__ == "InspectHook" for hook in trainer.hooks)


def test_it_follows_steps_from_cells_and_shows_no_batch_of_another_step():
    trainer = make()
    pane = InspectPane(trainer.view)
    pane.shown(True)
    for step in (1, 2, 5):
        trainer.step(step - trainer.step_state.optimizer_step)
        pane.refresh()
        assert trainer.inspection.step == step and f"Inspect · step {step}" == pane.title
        assert cells(pane.batch.value)[3][4] == number_short(trainer.loss.item(), ".4")
    trainer.fit()
    pane.refresh()
    assert pane.title == "Inspect"
    assert cells(pane.batch.value)[3][4] == number_short(trainer.loss.item(), ".4")


def test_after_an_error_it_shows_the_batch_that_failed():
    class Fails(Hook):
        """At the third batch."""
        def after_loss(self, trainer):
            """Not a number, and an exception."""
            if trainer.step_state.batch_idx == 2:
                trainer.batch[0][0, 0] = math.nan
                raise RuntimeError("no")
    trainer = make(hooks=[Fails()])
    pane = InspectPane(trainer.view)
    pane.shown(True)
    with pytest.raises(RuntimeError):
        trainer.fit()
    pane.refresh()
    assert "away" not in pane.tables._dom_classes and pane.title == "Inspect"
    assert cells(pane.batch.value)[0][3:] == ["nan"] * 3
    assert "press <b>Step</b>" not in pane.layers.value


def test_the_tables_outlast_a_step_by_hand_and_give_way_in_a_run(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(inspect_module, "perf_counter", lambda: now[0])
    trainer = make()
    pane = InspectPane(trainer.view)
    pane.shown(True)
    trainer.step(1)
    pane.refresh()
    kept, changes = pane.batch.value, sent(pane.batch)
    trainer.state = RunState.RUNNING
    now[0] += 5.0  # so long it was paused, without a look
    pane.refresh()
    now[0] += 0.9
    pane.refresh()
    assert "away" not in pane.tables._dom_classes
    now[0] += 0.2
    pane.refresh()
    assert "away" in pane.tables._dom_classes  # in place, but unseen:
    assert pane.batch.value == kept and changes == []


def test_it_sends_nothing_where_nothing_has_changed():
    trainer = make()
    pane = InspectPane(trainer.view)
    pane.shown(True)
    pane.breakpoints.box.value = "loss > 10"
    trainer.step(2)
    pane.refresh()
    row = pane.breakpoints.list.children[0]
    below = pane.breakpoints
    parts = [pane.batch, pane.layers, pane.code, pane.tables, pane.widget, below.widget, below.hint,
             below.list, below.box, row]
    changes = [sent(part) for part in parts]
    posted = []
    post = trainer.post
    trainer.post = lambda command: posted.append(command.name) or post(command)
    for _ in range(3):
        pane.refresh()
    assert changes == [[]] * len(parts)
    assert posted == [] and pane.breakpoints.list.children[0] is row


class Still:
    """A `RunView` with made-up answers."""

    def __init__(self, state=RunState.RUNNING):
        self.state, self.in_cell, self.loaders, self.inspection, self.breakpoints = (
            state, True, [], None, [])
        self.posted, self.replies = [], []
        self.position = SimpleNamespace(step=3)

    def post(self, command):
        """Keep what is asked."""
        self.posted.append((command.name, command.values, command.source))
        self.replies.append(Reply())
        return self.replies[-1]


def test_it_asks_once_for_a_step_that_was_not_inspected():
    """While it waits for the answer, it shows what there is."""
    view = Still(RunState.PAUSED)
    pane = InspectPane(view)
    pane.refresh()
    assert view.posted == []  # nobody looks
    pane.shown(True)
    for step in (3, 3, 4, 4):
        view.position.step = step
        pane.refresh()
    assert view.posted == [("inspect", {"on": True}, "widget")] * 3


def test_opening_and_closing_is_posted_to_the_run():
    view = Still()
    pane = InspectPane(view)
    pane.shown(True)
    pane.shown(False)
    assert view.posted == [("inspect", {"on": True}, "widget"),
                           ("inspect", {"on": False}, "widget")]


@pytest.mark.parametrize("in_cell, loaders, names, lines", [
    (True, ["valid"], ["batch[0]", "batch[1]", "pred", "loss"],
     ["# after Detach, in any cell:", "with trainer.paused():", "    x, y = trainer.batch",
      "    pred = trainer.pred", "    trainer.validate()"]),
    (False, [], ["batch['ids']", "loss"],
     ["# in any cell:", "with trainer.paused():", "    batch = trainer.batch"])])
def test_the_code_fits_the_run(in_cell, loaders, names, lines):
    view = Still(RunState.PAUSED)
    view.in_cell, view.loaders = in_cell, loaders
    found = Inspection(3, [TensorRow(name, (1,), "float32", 0, 0, 0) for name in names])
    assert inspection_code(view, found).splitlines() == lines


@pytest.mark.parametrize("batch", ["x, y", "batch"])
def test_the_code_runs(batch):
    trainer = make()
    trainer.step(2)
    trainer.post(Command("inspect", {"on": True}))
    if batch == "batch":
        trainer.inspection.tensors.pop(1)
    code = inspection_code(trainer.view, trainer.inspection)
    names = {"trainer": trainer}
    exec(code, names)
    assert batch in code and names["pred"] is trainer.pred


# Pause when


def test_a_condition_pauses_the_run_and_can_be_taken_back():
    trainer, told = make(epochs=20), []
    pane = InspectPane(trainer.view, lambda: told.append(1))
    pane.breakpoints.box.value = "step == 6"
    pane.breakpoints.box.value = "loss is nan"
    assert pane.breakpoints.box.value == ""
    assert list(pane.breakpoints.rows) == ["step == 6", "loss is nan"]
    first = pane.breakpoints.list.children[0]
    pane.breakpoints.box.value = "epoch == 19"
    assert pane.breakpoints.list.children[0] is first  # it may have the focus
    pane.breakpoints.list.children[2].children[1].click()
    assert trainer.fit().steps == 6
    pane.breakpoints.rows["step == 6"].children[1].click()
    assert list(pane.breakpoints.rows) == ["loss is nan"] and len(trainer.breakpoints) == 1
    assert len(told) == 5


def test_the_same_condition_twice_is_one_row_which_removes_both():
    trainer = make()
    trainer.pause_when("loss > 5")
    trainer.pause_when("loss > 5")
    trainer.pause_when(lambda trainer: False)
    pane = InspectPane(trainer.view)
    assert list(pane.breakpoints.rows) == ["loss > 5", "<lambda>"]
    words = pane.breakpoints.rows["<lambda>"].children[0].value
    assert words == '<code title="&lt;lambda&gt;">&lt;lambda&gt;</code>'
    pane.breakpoints.rows["loss > 5"].children[1].click()
    assert len(trainer.breakpoints) == 1


@pytest.mark.parametrize("state", ["idle", "paused", "finished", "running"])
def test_a_refused_condition_stays_to_be_corrected_in_every_state(state):
    trainer = make(epochs=1 if state == "finished" else 1_000_000, hooks=[Slow()])
    if state == "running":
        trainer.start()
    elif state != "idle":
        trainer.fit() if state == "finished" else trainer.step(2)
    pane = InspectPane(trainer.view)
    box, hint = pane.breakpoints.box, pane.breakpoints.hint
    box.value = "lss <b> 3"
    assert box.value == "lss <b> 3" and "refused" in pane.breakpoints.widget._dom_classes
    assert "write a name, a comparison and a number" in hint.value and "<b>" not in hint.value
    pane.refresh()
    assert box.value == "lss <b> 3" and "refused" in pane.breakpoints.widget._dom_classes
    box.value = "loss > 1e9"
    assert later(lambda: len(trainer.breakpoints) == 1)
    pane.refresh()
    assert box.value == "" and "refused" not in pane.breakpoints.widget._dom_classes
    assert "write" not in hint.value and list(pane.breakpoints.rows) == ["loss > 1e9"]
    trainer.close()


def test_a_cleared_box_forgets_what_was_refused():
    pane = InspectPane(make().view)
    pane.breakpoints.box.value = "nonsense"
    pane.breakpoints.box.value = ""
    assert "refused" not in pane.breakpoints.widget._dom_classes
    assert "nonsense" not in pane.breakpoints.hint.value


def test_what_is_refused_at_the_boundary_comes_back_into_the_box():
    view = Still()
    pane = InspectPane(view)
    pane.breakpoints.box.value = "valid/loss < 1"
    assert pane.breakpoints.box.value == ""
    assert "from the next step on" in pane.breakpoints.hint.value
    view.replies[0].settle("refused", error=ValueError("gone"))
    pane.refresh()
    assert pane.breakpoints.box.value == "valid/loss < 1" and "gone" in pane.breakpoints.hint.value
    assert len(view.posted) == 1  # it was put there, nobody asked again
    pane.breakpoints.box.value = ""
    pane.refresh()
    assert pane.breakpoints.box.value == ""


def test_two_threads_refresh_while_a_third_asks():
    trainer = make(epochs=1_000_000, hooks=[Slow()])
    trainer.start()
    panes, failed = [JournalPane(trainer.view), InspectPane(trainer.view)], []
    panes[1].shown(True)
    def draw():
        try:
            for _ in range(60):
                for pane in panes:
                    pane.refresh()
                time.sleep(0.001)
        except Exception as error:
            failed.append(error)
    threads = [threading.Thread(target=draw) for _ in range(2)]
    [thread.start() for thread in threads]
    for number in range(20):
        panes[1].breakpoints.box.value = f"loss > {1000 + number}"
        panes[0].note.box.value = f"note {number}"
        trainer.pause() if number % 2 else trainer.resume()
        time.sleep(0.003)
    [thread.join() for thread in threads]
    trainer.resume()
    assert later(lambda: len(trainer.breakpoints) == 20)
    [pane.refresh() for pane in panes]
    assert failed == [] and len(panes[1].breakpoints.rows) == 20
    assert len({child.model_id for child in panes[1].breakpoints.list.children}) == 20
    trainer.close()


def test_box_and_button_at_once_in_two_threads_hand_a_text_over_once():
    """A front end may give each of the two a thread of its own;
    the button's click and the box's text come together."""
    taken, clicked = [], threading.Event()
    def take(text):
        if text:
            taken.append(text)
            clicked.wait(0.3)  # the other one arrives meanwhile
        return bool(text)
    line = Entry("", take, "Add")
    box = threading.Thread(target=lambda: setattr(line.box, "value", "once"))
    box.start()
    assert later(lambda: taken)
    line.keep.click()
    clicked.set()
    box.join()
    assert taken == ["once"] and line.box.value == ""
