"""What a page asks for acts on a real run, between two steps, and is told: values, hooks, states to
go back to, files, searches, what an agent asks for."""

import math
import shutil
import threading
import time

import pytest
import torch
from feed_page import Page
from jupyter_server import LIMIT
from lr_runs import make as searched
from lr_runs import whole
from small_runs import make
from steered import Process, until
from test_numbers import several
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import (AlertsHook, CheckpointHook, Hook, LambdaHook, SnapshotHook, Trainer,
                        Tunable, attach)
from trainer_nb.core.control import Command, Reply, RunView
from trainer_nb.core.journal import Journal
from trainer_nb.core.state import RunState
from trainer_nb.folder.control import ControlFolder, Replies, Request
from trainer_nb.hooks.alerts import Alert
from trainer_nb.hooks.remote_control import MOST_WAITING
from trainer_nb.panel.feed import Feed
from trainer_nb.panel.sections import promise, to_undo

said: list[str] = []


class First(Hook):
    """A hook of a user's."""

    kind = Tunable("mean", choices=("mean", "max", None))

    def before_batch(self, trainer):
        """Say so."""
        said.append("first")


class Second(First):
    """Another one, with the same order."""

    def before_batch(self, trainer):
        """Say so."""
        said.append("second")


def weights(trainer):
    """All weights in one row."""
    return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])


def page_of(trainer, *tabs):
    """A page with these tabs open."""
    return Page(trainer.feed).hello().open(*tabs)


def test_the_view_has_what_the_protocol_says():
    """Each name of `RunView`, on a run with and on one without hooks."""
    for trainer in (make(), make(hooks=[SnapshotHook()])):
        for name in [*RunView.__annotations__,
                     *(name for name in vars(RunView) if not name.startswith("_"))]:
            assert hasattr(trainer.view, name), name


# Values


def test_a_value_waits_for_its_boundary_and_says_so():
    """Asked for in mid step, it is in force when the step is whole."""
    seen = []

    def ask(trainer):
        """In mid step."""
        if trainer.step_state.optimizer_step == 3 and not seen:
            assert page.command("tune", lr=0.5) is None  # it has no answer yet
            seen.extend([trainer.feed.whole("values")["values"]["lr"], trainer.rate])
    trainer = make(epochs=4, hooks=[LambdaHook(name="ask", before_batch=ask)])
    page = page_of(trainer)
    trainer.step(6)
    assert seen == [{"value": 0.05, "waits": True, "pending": 0.5}, 0.05]
    assert page.answers == [{"re": "1", "status": "applied", "where": "at step 4"}]
    assert page.view["values"]["lr"] == {"value": 0.5}
    assert [(each.name, each.step) for each in trainer.journal] == [("lr", 4)]


def test_a_schedule_moves_the_rate_in_force_until_a_value_takes_its_place():
    trainer = make(epochs=4, sched=lambda optim: torch.optim.lr_scheduler.ExponentialLR(optim, 0.5))
    page = page_of(trainer)
    trainer.step(3)
    assert page.view["values"]["lr"] == {"value": 0.00625, "moves": True}
    assert page.view["tunables"]["lr"]["none"] == "schedule"
    page.command("tune", lr=0.02)
    assert page.view["values"]["lr"] == {"value": 0.02}
    page.command("tune", lr=None)
    assert page.view["values"]["lr"]["moves"] is True


def test_a_hook_that_comes_later_has_its_values():
    trainer = make(epochs=4)
    page = page_of(trainer)
    assert "first.kind" not in page.view["tunables"]
    hook = First()
    trainer.hooks.add(hook)
    trainer.step(1)
    assert page.view["tunables"]["first.kind"]["group"] == "first"
    page.command("tune", **{"first.kind": None})
    assert hook.kind is None and page.view["values"]["first.kind"] == {}
    trainer.hooks.remove(hook)
    trainer.step(1)
    assert "first.kind" not in page.view["tunables"].keys() | page.view["values"].keys()


def test_undo_takes_back_one_change_after_the_other():
    """What others changed is taken back, too; a rewound change is not."""
    trainer = make(epochs=4, hooks=[First(), SnapshotHook(every_steps=2)])
    page = page_of(trainer)

    def undo():
        """As the button does it."""
        asked = page.view["journal"]["undo"]
        page.number += 1
        page.own.hear({"ask": "command", "id": str(page.number), "name": "tune",
                       "values": {asked["name"]: asked.get("old")}, "reason": "undo"})
        return trainer.get_hook(First).kind, trainer.lr
    assert "undo" not in page.view["journal"]
    page.command("tune", lr=0.1)
    page.command("tune", lr=0.2)
    trainer.tune(**{"first.kind": "max"})
    assert [undo(), undo(), undo()] == [("mean", 0.2), ("mean", 0.1), ("mean", None)]
    assert "undo" not in page.view["journal"]
    assert [each.reason for each in trainer.journal][-3:] == ["undo"] * 3
    trainer.step(4)
    page.command("tune", lr=0.3)
    assert page.view["journal"]["undo"]["name"] == "lr"
    page.command("rewind", step=2)
    assert "undo" not in page.view["journal"]


def test_of_a_panel_without_these_names_undo_knows_nothing():
    journal = Journal()
    journal.record("tune", "lr", 1, 2)
    journal.record("hook", "mine.enabled", True, False)
    assert to_undo(journal).name == "mine.enabled" and to_undo(journal, ["lr"]).old == 1


# Hooks


def test_a_switch_acts_at_the_boundary_and_is_journalled():
    """Asked for in mid step: this step still hears it, the next does not."""
    said.clear()

    def ask(trainer):
        """In mid step."""
        if trainer.step_state.optimizer_step == 1:
            page.command("tune", **{"second.enabled": False})
    trainer = make(epochs=4, hooks=[First(), Second(), LambdaHook(name="ask", after_backward=ask)])
    page = page_of(trainer)
    trainer.step(4)
    assert said == ["first", "second"] * 2 + ["first"] * 2
    assert [(each.name, each.new, each.step, each.source) for each in trainer.journal] == [
        ("second.enabled", False, 2, "widget")]
    assert page.view["hooks"]["second"]["enabled"] is False


def test_another_order_changes_what_runs_first():
    said.clear()
    trainer = make(epochs=4, hooks=[First(), Second()])
    page = page_of(trainer)
    in_order = lambda: sorted(page.view["hooks"], key=lambda name: page.view["hooks"][name]["at"])
    assert in_order() == ["first", "second", "recorder"]
    assert page.view["points"]["first"] == {"label": "First", "points": ["before_batch"],
                                            "own": True}
    assert "own" not in page.view["points"]["recorder"]
    page.command("tune", **{"first.order": 1})
    trainer.step(1)
    assert said == ["second", "first"] and in_order()[:2] == ["second", "first"]
    assert page.view["hooks"]["first"]["order"] == 1
    trainer.hooks.add(LambdaHook(name="third", after_step=lambda trainer: None, order=-1))
    trainer.step(1)
    assert in_order()[0] == "third"


def test_a_value_that_is_refused_at_its_boundary_waits_no_longer():
    """Since its hook has gone, or since it came too late."""
    class Loud(Hook):
        """A hook that goes away."""
        loud = Tunable(1.0, min=0)

        def after_step(self, trainer):
            """Ask, and go."""
            if trainer.step_state.optimizer_step == 2:
                page.command("tune", **{"loud.loud": 2.0})
                assert trainer.tunables.pending == {"loud.loud": 2.0}
                trainer.hooks.remove(self)
    trainer = make(epochs=2, hooks=[Loud()])
    page = page_of(trainer)
    trainer.step(3)
    assert page.answers[0]["status"] == "refused" and trainer.tunables.pending == {}
    late = trainer.post(Command("tune", {"lr": 0.01}, basis=1, max_age_steps=1))
    assert late.status == "refused" and "too late" in late.reason
    assert trainer.tunables.pending == {} and trainer.rates() == [0.05]


# The journal


def test_a_note_is_kept_at_its_step():
    trainer = make(epochs=4)
    page = page_of(trainer)
    trainer.step(3)
    page.command("note", text="a <b>thought</b>")
    trainer.step(4)
    page.command("tune", **{"recorder.enabled": False})
    note, switch = page.view["journal"]["entries"].values()
    assert note["change"] == "a <b>thought</b>" and note["source"] == "panel"
    assert (note["step"], note["epoch"], note["kind"]) == (3, 0, "note")
    assert (switch["step"], switch["epoch"]) == (7, 1)
    assert (switch["what"], switch["change"]) == ("recorder.enabled", "on → off")


@pytest.mark.parametrize(("kind", "name", "old", "new", "text"), [
    ("tune", "lr", 0.001, 3e-4, "0.001 → 3e-4"), ("tune", "grad_clip", None, 1.0, "off → 1"),
    ("hook", "mix.enabled", True, False, "on → off"),
    ("memory", "micro_batch_size", 64, 32, "64 → 32"), ("note", "note", None, "10 %", "10 %"),
    ("pause", "pause", None, "loss > 3 (4)", "loss > 3 (4)"), ("rewind", "step", 12, 10, "12 → 10"),
    ("skip", "batch", None, "batch 3 of epoch 1", "batch 3 of epoch 1 left out"),
    ("stop", "max_time", None, 60, "60")])
def test_a_change_is_written_in_words(kind, name, old, new, text):
    assert Journal().record(kind, name, old, new).change() == text


def test_what_a_rewind_took_back_is_told_as_undone():
    trainer = make(epochs=4, hooks=[SnapshotHook(every_steps=5)])
    page = page_of(trainer)
    trainer.step(12)
    trainer.tune(lr=0.02)
    page.command("rewind", step=10)
    trainer.tune(lr=0.005)
    first, rewind, last = page.view["journal"]["entries"].values()
    assert first["undone"] is True and not {"undone"} & (rewind.keys() | last.keys())
    assert (rewind["change"], rewind["source"]) == ("12 → 10", "panel")
    assert "took back" in promise(trainer.journal)
    assert str(trainer.journal.entries[1]) == "step 10: rewind 12 → 10 (panel)"


def test_path_of_rewinds_in_rewinds():
    """A rewind behind an earlier one takes that one back, too."""
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


@pytest.mark.parametrize(("totals", "call"), [
    ({"epochs": 2}, "epochs=2"), ({"max_steps": 9}, "max_steps=9")])
def test_the_script_is_that_of_the_run_with_its_totals(totals, call):
    trainer = make(seed=7, **totals)
    page = page_of(trainer)
    trainer.step(3)
    trainer.tune(lr=0.2)
    trainer.fit()
    key, _, value = call.partition("=")
    page.own.hear({"ask": "script", "id": "1"})
    assert page.answers[-1]["text"] == trainer.journal.to_script(**{key: int(value)})
    trainer.fit(**{key: 2 * int(value)})
    page.own.hear({"ask": "script", "id": "2"})
    assert page.answers[-1]["text"].endswith(f"trainer.fit({key}={2 * int(value)})\n")
    assert "seed=7" in page.answers[-1]["text"]


def test_the_script_promises_no_more_than_it_keeps():
    plain = "Replays to the same weights, bit for bit. Pauses and notes are left out."
    assert promise(Journal({"seed": 7})) == plain
    assert "the run had no seed" in promise(Journal({"seed": None}))
    journal = Journal({"seed": 7})
    journal.record("skip", "batch", new="batch 1 of epoch 0")
    assert "skipped again" in promise(journal)


# Inspect


def ranges(page):
    """Smallest, mean and largest value of each tensor that is shown."""
    return {each["name"]: [each.get(name) for name in ("min", "mean", "max")]
            for each in page.view["inspect"]["tensors"]}


def test_a_pause_shows_the_batch_and_the_layers_of_the_step():
    """Steps from cells, too; each time those of that step."""
    trainer = make(epochs=4)
    page = page_of(trainer, "inspect")
    assert page.view.get("inspect", {}).get("tensors", []) == []
    for count in (1, 2, 3):
        trainer.step(count)
        page.command("inspect", on=True)
        found = page.view["inspect"]
        assert found["step"] == found["layers_step"] == trainer.step_state.optimizer_step
        batch = trainer.batch[0].double()
        assert ranges(page)["batch[0]"] == pytest.approx(
            [batch.min().item(), batch.mean().item(), batch.max().item()])
        assert ranges(page)["loss"][1] == pytest.approx(trainer.loss.item())
        assert [each["shape"] for each in found["tensors"]] == [[4, 2], [4, 1], [4, 1], []]
        assert [each["name"] for each in found["layers"]] == ["weight", "bias"]
    page.open()
    assert not any(type(hook).__name__ == "InspectHook" for hook in trainer.hooks)


def test_after_an_error_the_batch_that_failed_is_shown():
    def spoil(trainer):
        """Not a number, and an exception."""
        if trainer.step_state.batch_idx == 2:
            trainer.batch = trainer.batch[0] * math.nan, trainer.batch[1]
            raise RuntimeError("no")
    trainer = make(epochs=4, hooks=[LambdaHook(name="spoil", after_loss=spoil)])
    page = page_of(trainer, "inspect")
    with pytest.raises(RuntimeError, match="no"):
        trainer.fit()
    assert ranges(page)["batch[0]"] == ["nan"] * 3
    assert page.view["state"]["what"].startswith("RuntimeError: no")


def test_a_condition_pauses_the_run_and_can_be_taken_back():
    trainer = make(epochs=20)
    page = page_of(trainer)
    for text in ("step == 6", "loss is nan", "epoch == 19"):
        assert page.command("pause_when", text=text)["status"] == "applied"
    assert page.command("pause_when", text="lss > 3")["status"] == "refused"
    assert page.view["breakpoints"] == ["step == 6", "loss is nan", "epoch == 19"]
    assert page.command("pause_not_when", text="epoch == 19")["status"] == "applied"
    trainer.start()
    until(lambda: page.view["state"]["name"] == "paused")
    assert trainer.step_state.optimizer_step == 6
    assert page.view["state"]["paused_by"].startswith("step == 6")
    assert page.view["breakpoints"] == ["step == 6", "loss is nan"]
    trainer.close()


# States to go back to, and files


def test_going_back_there_and_on_draws_the_branch():
    """The weights are those of then, the curves end there, the rest is a branch."""
    trainer = make(epochs=8, hooks=[SnapshotHook(every_steps=5)])
    page = page_of(trainer, "rewind")
    trainer.step(10)
    then = weights(trainer)
    trainer.tune(lr=0.01)
    trainer.step(22)
    assert page.command("rewind", step=10) == {"re": "1", "status": "applied",
                                               "where": "at step 10"}
    assert trainer.step_state.optimizer_step == 10 and torch.equal(weights(trainer), then)
    steps = lambda name: page.curves[name][1][:, 0].tolist()
    assert steps("train/loss") == list(range(1, 11))
    assert steps("train/loss\n0") == list(range(11, 33))
    assert page.view["branches"] == {"0": {"start": 10, "end": 32}}
    assert [row["step"] for row in page.view["rewind"]] == [0, 5, 10]
    trainer.fit()
    assert steps("train/loss") == list(range(1, 41))


@pytest.mark.parametrize("where", ["finished", "error", "stopped"])
def test_a_run_that_has_ended_goes_back_and_on(where):
    """To the weights of a run that nobody disturbed."""
    straight = make(epochs=8)
    straight.fit()
    fails = [where == "error"]

    def after_step(trainer):
        """An error, once."""
        if fails[0] and trainer.step_state.optimizer_step == 33:
            raise RuntimeError("a bad batch")
    trainer = make(epochs=8, hooks=[SnapshotHook(every_steps=10),
                                    LambdaHook(name="fail", after_step=after_step)])
    page = page_of(trainer)
    if where == "finished":
        trainer.fit()
    elif where == "error":
        with pytest.raises(RuntimeError, match="a bad batch"):
            trainer.fit()
        fails[0] = False
    else:
        trainer.step(33)
        trainer.stop()
    assert page.view["state"]["name"] == where
    page.command("rewind", step=20)
    assert page.view["state"]["name"] == "paused" and page.view["place"]["step"] == 20
    assert "why_not" not in page.view["commands"]["resume"]["buttons"]["Resume"]
    page.command("resume")
    trainer.wait()
    assert trainer.state is RunState.FINISHED and torch.equal(weights(trainer), weights(straight))


def test_a_checkpoint_is_written_where_the_run_stands(tmp_path):
    """Also when nothing drives it; then the file is there with the answer."""
    trainer = make(epochs=4, hooks=[CheckpointHook(tmp_path, every_epochs=None)])
    page = page_of(trainer)
    assert page.view["commands"]["checkpoint"]["why_not"] and "saved" not in page.view
    trainer.step(7)
    assert page.command("checkpoint")["status"] == "applied"
    assert [path.name for path in tmp_path.glob("*.pt")] == ["step_00000007.pt"]
    assert page.view["saved"]["step"] == 7 and abs(page.view["saved"]["time"] - time.time()) < LIMIT
    entry = trainer.journal.entries[-1]
    assert (entry.kind, entry.source) == ("save", "widget")


def test_a_checkpoint_that_cannot_be_written_is_refused_with_the_reason(tmp_path):
    """The folder is a file; the run is as it was."""
    trainer = make(epochs=4, hooks=[CheckpointHook(tmp_path / "kept", every_epochs=None)])
    page = page_of(trainer)
    trainer.step(7)
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "kept").write_text("in the way")
    answer = page.command("checkpoint")
    assert answer["status"] == "refused" and "kept" in answer["reason"]
    assert trainer.last_saved is None and trainer.step_state.optimizer_step == 7
    trainer.step(1)


# A search for a rate


@pytest.mark.parametrize(("values", "word"), [
    ({"start_lr": "low"}, "start_lr"), ({"end_lr": -1.0}, "end_lr=-1"),
    ({"num_steps": 1}, "num_steps=1"), ({"start_lr": 1.0, "end_lr": 1e-3}, "lower")])
def test_a_range_that_makes_no_sense_is_refused(values, word):
    trainer = searched(loader="list")
    page = page_of(trainer, "lr")
    page.command("lr_find", **values)
    until(lambda: page.answers)
    assert page.answers[0]["status"] == "refused" and word in page.answers[0]["reason"]
    assert trainer.lr_search is None and "search" not in page.view["lr"]


@pytest.mark.parametrize(("sched", "name"), [
    (None, "lr"), (lambda optim: torch.optim.lr_scheduler.StepLR(optim, 10), "lr_scale")])
def test_a_rate_that_was_found_is_taken_and_nothing_else_has_changed(sched, name):
    """With a schedule that is scaled."""
    trainer = searched(loader="list", sched=sched)
    page, before = page_of(trainer, "lr"), whole(trainer)
    page.command("lr_find", start_lr=1e-5, end_lr=1.0, num_steps=60)
    until(lambda: page.answers)
    search = page.view["lr"]["search"]
    assert whole(trainer) == before and search["rates"][0] == pytest.approx(1e-5)
    rate = search["suggestions"]["valley"]["rate"]
    assert rate == pytest.approx(trainer.lr_search.suggestions["valley"], rel=1e-5)
    tunable, factor = search["use"]
    assert tunable == name
    page.command("tune", **{tunable: rate * factor})
    assert trainer.rates()[0] == pytest.approx(rate)
    assert [(each.name, each.source) for each in trainer.journal] == [(name, "widget")]


def test_a_search_of_one_optimizer_is_for_its_rate():
    trainer = several()
    page = page_of(trainer, "lr")
    trainer.step(1)
    page.command("lr_find", optimizer="g", num_steps=12)
    until(lambda: page.answers)
    search = page.view["lr"]["search"]
    assert (search["optimizer"], search["use"]) == ("g", ["lr.g", 1.0])
    page.command("tune", **{"lr.g": 0.003})
    assert trainer.optimizers["g"].rate == 0.003 and trainer.optimizers["d"].rate == 0.1


def test_while_a_run_goes_on_it_searches_between_two_steps():
    trainer = searched(epochs=1_000_000)
    trainer.tune(lr=1e-6)  # a loss near zero is noise, and the search would end early
    page = page_of(trainer, "lr")
    trainer.start()
    until(lambda: trainer.step_state.optimizer_step > 5)
    page.command("lr_find", num_steps=20)
    until(lambda: page.answers)
    assert page.answers[0]["status"] == "applied" and len(trainer.lr_search.lrs) > 4
    trainer.stop()
    trainer.wait()


def test_a_search_is_not_told_as_a_pause():
    """Its own words, while the run's step, hooks, states and tabs stay those of the run."""
    trainer = make(epochs=5, hooks=[AlertsHook(), SnapshotHook(1)])
    page = page_of(trainer)
    trainer.step(11)
    trainer.alerts.append(Alert("spike", 3, "A spike", "2", number=1))
    names, view, seen = ["hooks", "run", "place"], trainer.view, []

    def look():
        """What is told of the run; not its planned steps."""
        found = trainer.feed.whole(names)
        return view.alerts, view.panes, view.can_rewind, {
            **found, "place": {**found["place"], "max_steps": 25}}

    def at_safe_point(kind):
        """At each rate that is tried."""
        if kind == "sweep":
            seen.append((look(), trainer.feed.whole("state")["state"].get("searching")))
    usual, trainer.at_safe_point = look(), at_safe_point
    trainer.lr_find(num_steps=12, stop_factor=None)
    assert seen[4][1] == "5 of 12" and len(seen) == 12
    assert all(told == usual for told, _ in seen)
    trainer.at_safe_point = None
    trainer.feed.look()
    assert page.view["state"] == {"name": "paused"} and page.view["place"]["step"] == 11


# What an agent asks for


def asked(control, values=None, name="tune", **others):
    """Leave a command that waits; its id."""
    values = {"lr": 0.25} if values is None else values
    return control.send(Request(name, values, "agent:night", user="a", host="b", approve=True,
                                **{"reason": "it <b>rises</b>", **others}))


@pytest.fixture
def run(tmp_path):
    """A run of this kernel that is paused at step 3."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    trainer = Trainer(torch.nn.Linear(4, 1), train_dl=DataLoader(TensorDataset(x, x[:, :1]), 8),
                      loss_fn=torch.nn.MSELoss(), epochs=2,
                      device="cpu", progress=False, workspace=tmp_path / "run")
    trainer.step(3)
    yield trainer
    trainer.close()


def test_a_run_of_this_kernel_is_asked(run):
    """A page lets it go; in code `approve` and `decline` do."""
    control, replies = ControlFolder(run.workspace), Replies(ControlFolder(run.workspace))
    page = page_of(run)
    assert page.view["waiting"] == {}
    first, second, third = (asked(control), asked(control, {}, "stop"),
                            asked(control, {"grad_clip": 2.0}))
    until(lambda: len(run.waiting) == 3)
    run.feed.look()
    assert page.view["waiting"][first] == {
        "name": "tune", "values": [["lr", 0.25]], "source": "agent:night", "by": "a@b",
        "reason": "it <b>rises</b>", "step": 3}
    assert run.rate != 0.25
    guest = Page(run.feed, may_steer=False).hello()
    assert guest.command("approve", id=first)["status"] == "refused" and run.rate != 0.25
    page.command("approve", id=first)
    assert replies.wait(first, LIMIT)["status"] == "applied"
    run.feed.look()
    assert run.rate == 0.25 and first not in page.view["waiting"]
    run.decline(second, "not at night")
    run.approve(third)
    assert replies.wait(second, LIMIT)["reason"].endswith("declined it: not at night")
    assert run.waiting == []
    assert replies.wait(third, LIMIT)["status"] == "applied" and run.grad_clip == 2.0
    with pytest.raises(ValueError, match="no command .* waits for approval: refused"):
        run.approve(second)


@pytest.mark.slow
def test_the_thread_that_trains_does_not_wait_for_what_it_approves(run, monkeypatch):
    """Without subshells a click is handled between two steps, by that thread."""
    control, rates, waited, wait = ControlFolder(run.workspace), [], [], Reply.wait
    id = asked(control)
    until(lambda: run.waiting)

    def approves(trainer):
        if trainer.step_state.optimizer_step == 6:
            trainer.approve(id)
            rates.append(trainer.rate)

    def waits(reply, *seconds):
        waited.append(threading.current_thread())
        return wait(reply, *seconds)

    monkeypatch.setattr(Reply, "wait", waits)
    run.hooks.add(LambdaHook(after_step=approves))
    run.step(5)
    assert rates[0] != 0.25 and run.rate == 0.25 and run.journal.entries[-1].step == 6
    assert threading.current_thread() not in waited
    assert Replies(control).wait(id, LIMIT)["status"] == "applied"


@pytest.mark.long
def test_a_run_elsewhere_is_asked(tmp_path):
    """By the same messages, through its folder; what is decided is in its journal."""
    process = Process(tmp_path / "run", epochs=2000).start()
    try:
        remote = attach(tmp_path / "run")
        page, id = Page(Feed(remote.view)).hello(), asked(process.control, {"lr": 1e-3})
        until(lambda: remote.waiting)
        page.own.feed.look()
        assert list(page.view["waiting"]) == [id]
        page.own.hear({"ask": "command", "id": "1", "name": "approve", "values": {"id": id}})
        assert process.replies.wait(id, LIMIT)["status"] == "applied"
        until(lambda: remote.journal.entries and not remote.waiting)
        assert remote.journal.entries[-1].source == "agent:night"
        assert "approved by" in remote.journal.entries[-1].by
        remote.close()
    finally:
        process.kill()


@pytest.mark.slow
def test_only_a_number_of_requests_wait(run):
    """The next one is refused, and says why."""
    control, replies = ControlFolder(run.workspace), Replies(ControlFolder(run.workspace))
    for _ in range(MOST_WAITING):
        asked(control)
    until(lambda: len(run.waiting) == MOST_WAITING)
    assert "a person has to decide first" in replies.wait(asked(control), LIMIT)["reason"]
    run.close()
    assert {each["status"] for each in replies.read().values()} == {"void", "refused"}
