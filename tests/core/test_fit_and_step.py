"""Ways of driving a run: what each verb returns and fires, and that pieces give the same weights as
one go."""

import contextvars
import copy
import decimal
import random
import sys
import threading
import time
from datetime import timedelta

import numpy as np
import pytest
import small_runs
import torch
from digits_runs import (
    assert_held, assert_same, at_step, disturb, everything, global_streams, in_evaluation,
    make_batches, make_data, make_loop, recorder, straight, wait_for, wait_for_pauses,
)  # fmt: skip
from small_runs import HandClock
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trainer_nb import Trainer
from trainer_nb.core.control import Command
from trainer_nb.core.hook import Hook, LambdaHook
from trainer_nb.core.looks import background_runs
from trainer_nb.core.state import FitResult, RunState

ENDLESS = 10**9  # epochs

# ---- what each verb returns and fires


def test_fit_returns_how_it_went():
    """Status, totals, the last metrics and the best; with the same total it returns at once."""
    seen = []
    loop = make_loop(recorder(seen))
    result = loop.fit(epochs=2)
    assert (result.status, result.epochs, result.steps) == ("finished", 2, 6)
    assert result.last["valid/loss"] > 0 and result.best["value"] <= result.last["valid/loss"]
    assert seen == ["before_fit", "after_fit", "cleanup_fit"]
    again = loop.fit(epochs=2)
    assert again == result
    assert loop.fit(epochs=1).status == "finished"
    assert seen == ["before_fit", "after_fit", "cleanup_fit"]


def test_step_returns_paused_and_ends_nothing():
    """Steps belong to one fit: before_fit once, no end, not even when another verb goes on."""
    seen = []
    loop = make_loop(recorder(seen))
    result = loop.step()
    assert (result.status, result.steps, loop.state) == ("paused", 1, "paused")
    assert loop.step(3).steps == 4
    assert (loop.step_state.epoch, loop.step_state.batch_idx) == (1, 2)
    assert seen == ["before_fit"]
    assert loop.fit(epochs=2).status == "finished"
    assert seen == ["before_fit", "after_fit", "cleanup_fit"]


def test_step_stops_before_the_work_at_the_end_of_an_epoch():
    """After the last step of an epoch, evaluation and after_epoch belong to the next drive."""
    seen = []
    loop = make_loop(recorder(seen, ("after_train", "after_valid", "after_epoch")))
    loop.step(3)
    assert seen == [] and loop.step_state.epoch == 0
    loop.step()
    assert seen == ["after_train", "after_valid", "after_epoch"]
    assert (loop.step_state.epoch, loop.step_state.optimizer_step) == (1, 4)


def test_step_epochs_goes_to_the_next_epoch_boundary():
    """From the start, and from the middle of an epoch; the evaluation is part of it."""
    loop = make_loop()
    assert (loop.step(epochs=1).epochs, loop.step_state.optimizer_step) == (1, 3)
    loop.step(1)
    result = loop.step(epochs=2)
    assert (result.status, result.epochs, result.steps) == ("paused", 3, 9)
    assert loop.step_state.evaluated_at == 9


def test_step_counts_real_steps_only():
    """A window in which every loss is None is not a step; step() goes on to the next one."""

    def leave_out(batch, trainer):
        left_out = trainer.step_state.batch_idx in (1, 2)
        return {"loss": None
                if left_out else nn.functional.cross_entropy(trainer.model(batch[0]), batch[1])}

    loop = make_loop(train_step=leave_out, loss_fn=None, accumulation=1)
    loop.step(2)
    assert (loop.step_state.optimizer_step, loop.step_state.batch_idx) == (2, 4)


def test_step_ends_with_the_run():
    """Steps beyond the total end as fit() would, and a finished run stays as it is."""
    seen = []
    loop = make_loop(recorder(seen), epochs=1)
    result = loop.step(100)
    assert (result.status, result.steps) == ("finished", 3)
    assert seen == ["before_fit", "after_fit", "cleanup_fit"]
    assert loop.step().status == "finished"
    assert loop.step_state.optimizer_step == 3
    assert seen == ["before_fit", "after_fit", "cleanup_fit"]


def test_a_pause_of_ones_own_returns():
    """Where nobody could resume it, fit() returns `paused`;
    nothing has ended, the generator is alive."""
    seen = []
    loop = make_loop(recorder(seen), at_step(2, lambda trainer: trainer.pause()))
    result = loop.fit(epochs=1)
    assert (result.status, result.steps, seen) == ("paused", 2, ["before_fit", "on_pause"])
    assert loop.fit(epochs=1).status == "finished"
    assert seen == ["before_fit", "on_pause", "after_fit", "cleanup_fit"]
    assert [(e.kind, e.step) for e in loop.journal] == [("pause", 2)]


def test_resume_of_a_returned_pause_drives_in_the_background():
    """resume() after fit() has returned goes on in a thread; wait() joins it."""
    seen = []
    loop = make_loop(recorder(seen), at_step(2, lambda trainer: trainer.pause()))
    loop.fit(epochs=2)
    assert loop.resume().status == "applied"
    result = loop.wait()
    assert (result.status, result.steps) == ("finished", 6)
    assert seen.count("before_fit") == 1
    assert_same(loop, straight(epochs=2))


def test_resume_of_what_cannot_go_on_is_refused():
    """It says what is missing; a run that knows its end is started."""
    loop = make_loop()
    reply = loop.resume()
    assert (reply.status, "neither is given" in reply.reason) == ("refused", True)
    loop.fit(epochs=1)
    assert "finished" in loop.resume().reason
    begun = make_loop(epochs=1)
    assert begun.resume().status == "applied"
    assert begun.wait().status == "finished"


def test_stop_ends_a_fit_and_the_next_one_begins():
    """Stopping fires after_cancel, then cleanup_fit;
    fit() again fires before_fit again and continues."""
    seen = []
    loop = make_loop(recorder(seen), at_step(2, lambda trainer: trainer.stop()))
    result = loop.fit(epochs=1)
    assert (result.status, result.steps) == ("stopped", 2)
    assert seen == ["before_fit", "after_cancel", "cleanup_fit"]
    assert loop.data.iterator is None
    assert loop.fit(epochs=1).steps == 3
    assert seen == ["before_fit", "after_cancel", "cleanup_fit", "before_fit", "after_fit",
                    "cleanup_fit"]
    assert [(e.kind, e.name, e.step) for e in loop.journal] == [("stop", "stop", 2)]


def test_stop_while_paused_ends_the_fit():
    """With nobody driving, stop() ends what step() left open, at once, and only once."""
    seen = []
    loop = make_loop(recorder(seen))
    loop.step(2)
    assert loop.stop().status == "applied"
    assert (loop.state, seen) == ("stopped", ["before_fit", "after_cancel", "cleanup_fit"])
    loop.stop()
    assert seen == ["before_fit", "after_cancel", "cleanup_fit"]
    assert loop.data.iterator is None


def test_start_returns_at_once_and_wait_joins():
    """The run goes on in another thread, is running as soon as start() has returned, and ends like
    fit()."""
    seen, threads = [], []
    hold = threading.Event()

    def wait_here(trainer):
        threads.append(threading.current_thread())
        hold.wait(120)

    loop = make_loop(recorder(seen), LambdaHook(before_train=wait_here))
    assert loop.start(epochs=1) is None
    assert loop.state == "running"
    assert loop.wait(timeout=0.05).status == "running"
    hold.set()
    assert loop.wait().status == "finished"
    assert threads[0] is not threading.main_thread()
    assert seen == ["before_fit", "after_fit", "cleanup_fit"]
    assert_same(loop, straight(epochs=1))


def test_start_of_a_finished_run_does_nothing():
    """As fit() with the same total: no second before_fit."""
    seen = []
    loop = make_loop(recorder(seen))
    loop.fit(epochs=1)
    loop.start(epochs=1)
    assert loop.wait().status == "finished"
    assert seen == ["before_fit", "after_fit", "cleanup_fit"]


@pytest.mark.parametrize("verb", ["pause", "stop"])
def test_a_command_right_after_start_is_executed(verb):
    """start() returns only when the drive can hear; nothing said in the next line is lost."""
    for _ in range(10):
        loop = make_loop(valid=False)
        loop.start(epochs=ENDLESS)
        reply = getattr(loop, verb)()
        assert reply.wait(120).status == "applied"
        if verb == "pause":
            wait_for(lambda loop=loop: loop.state == "paused")
            loop.stop()
        assert loop.wait(120).status == "stopped"


def test_wait_raises_the_exception_of_the_thread():
    """Once, with its traceback; the run can be continued."""
    loop = make_loop(at_step(2, lambda trainer: 1 / 0))
    loop.start(epochs=1)
    with pytest.raises(ZeroDivisionError) as excinfo:
        loop.wait()
    assert excinfo.traceback[-1].name == "<lambda>"
    assert loop.wait().status == "error"
    assert loop.fit(epochs=1).status == "finished"


def test_a_pause_from_another_thread_holds():
    """The driver waits where it is, with its clock stopped, until it is resumed;
    a change acts at once meanwhile."""
    seen = []
    loop = make_loop(recorder(seen), valid=False)
    loop.start(epochs=ENDLESS)
    loop.pause().wait(120)
    wait_for(lambda: loop.state == "paused")
    step, seconds = loop.step_state.optimizer_step, loop.elapsed()
    reply = loop.tune(lr=0.5).wait(120)
    assert (reply.status, reply.where) == ("applied", f"at step {step}")
    assert_held(loop)
    assert loop.step_state.optimizer_step == step
    assert loop.elapsed() == seconds
    assert loop.resume().wait(120).status == "applied"
    wait_for(lambda: loop.step_state.optimizer_step > step)
    loop.stop()
    loop.wait()
    assert seen == ["before_fit", "on_pause", "on_resume", "after_cancel", "cleanup_fit"]
    assert [e.kind for e in loop.journal] == ["pause", "tune", "resume", "stop"]


def test_another_thread_can_hold_fit():
    """Whoever asks from another thread can resume from there:
    fit() blocks meanwhile, and then goes on."""
    held = []

    def steer():
        wait_for(lambda: loop.step_state.optimizer_step > 0)
        loop.pause().wait(120)
        wait_for(lambda: loop.state == "paused")
        held.append(loop.step_state.optimizer_step)
        assert_held(loop)
        held.append(loop.step_state.optimizer_step)
        loop.resume()

    loop = make_loop(valid=False)
    wait_for_pauses(loop, 20)
    thread = threading.Thread(target=steer)
    thread.start()
    assert loop.fit(epochs=30).status == "finished"
    thread.join()
    assert len(held) == 2 and held[0] == held[1] < loop.step_state.optimizer_step == 90


def test_a_front_end_can_hold_fit():
    """After a panel has said hello, a pause from the run's own thread blocks fit() until Resume
    comes from it."""
    ticks = []

    def panel(kind):
        ticks.append(kind)
        if kind == "paused" and ticks.count("paused") == 3:
            loop.post(Command("resume", source="widget"))

    loop = make_loop(at_step(2, lambda trainer: trainer.pause()))
    loop.driver.status.front_end, loop.at_safe_point = True, panel
    assert loop.fit(epochs=1).status == "finished"
    assert ticks.count("paused") == 3 and ticks[-1] == "ended"
    assert [e.source for e in loop.journal] == ["code", "widget"]


def test_step_of_a_held_run_makes_one_step():
    """A panel's Step goes on and holds again after one real step."""
    loop = make_loop(valid=False)
    loop.start(epochs=ENDLESS)
    loop.pause().wait(120)
    wait_for(lambda: loop.state == "paused")
    before = loop.step_state.optimizer_step
    for made in (1, 2, 3):
        loop.post(Command("step", source="widget")).wait(120)
        wait_for(lambda made=made: (loop.state,
                                    loop.step_state.optimizer_step) == ("paused", before + made))
    loop.stop()
    loop.wait()


def test_a_step_asked_for_ends_with_the_drive():
    """Ten steps that a panel asks for within `step(3)` end there:
    the next `fit()` does not stop for them."""
    loop = make_loop(at_step(2,
                             lambda trainer: trainer.post(
                                 Command("step", {"n": 10}, source="widget"))), valid=False)
    loop.step(3)
    assert (loop.state, loop.step_state.optimizer_step) == ("paused", 3)
    assert loop.fit(epochs=9).status == "finished"


def test_detach_lets_the_cell_go():
    """fit() returns `detached`, the run goes on in a thread without a new before_fit, and ends as
    one run."""
    seen, threads = [], set()
    loop = make_loop(recorder(seen), at_step(2, lambda trainer: trainer.detach()))
    loop.hooks.add(LambdaHook(after_step=lambda trainer: threads.add(threading.current_thread())))
    result = loop.fit(epochs=2)
    assert (result.status, result.steps) == ("detached", 2)
    assert loop.wait().status == "finished"
    assert seen == ["before_fit", "after_fit", "cleanup_fit"]
    assert len(threads) == 2 and threading.main_thread() in threads
    assert_same(loop, straight(epochs=2))


@pytest.mark.parametrize("verb", ["step", "start"])
def test_only_a_fit_can_be_detached(verb):
    """Elsewhere no cell waits: refused, and the drive goes on."""
    hook = at_step(1, lambda trainer: trainer.detach())
    loop = make_loop(hook, epochs=1)
    loop.step(2) if verb == "step" else (loop.start(), loop.wait())
    assert hook.result.status == "refused"
    assert loop.step_state.optimizer_step == (2 if verb == "step" else 3)


@pytest.mark.slow
def test_paused_holds_a_background_run_while_open():
    """Inside the run stands still at a boundary and may be looked at;
    cells inside do not touch its random streams."""
    loop = make_loop()
    wait_for_pauses(loop, 20)
    loop.start(epochs=30)
    with loop.paused() as held:
        assert held is loop and loop.state == "paused" and not loop.runner.window_open
        step = loop.step_state.optimizer_step
        disturb()
        assert loop.validate()["valid/loss"] > 0
        assert loop.tune(lr_scale=1.0).wait(120).status == "applied"
        assert_held(loop)
        assert loop.step_state.optimizer_step == step
    wait_for(lambda: loop.step_state.optimizer_step > step)
    assert loop.wait().status == "finished"
    assert_same(loop, straight(epochs=30))


def test_paused_leaves_a_pause_as_it_found_it():
    """A run that was held before stays held; with nobody driving there is nothing to hold."""
    loop = make_loop(valid=False)
    with loop.paused():
        assert loop.state == "idle"
    loop.start(epochs=ENDLESS)
    loop.pause().wait(120)
    wait_for(lambda: loop.state == "paused")
    with loop.paused():
        pass
    assert_held(loop)
    loop.stop()
    loop.wait()


def test_paused_from_within_the_run_is_an_error():
    """A hook would wait for itself."""

    def hold(trainer):
        with trainer.paused():
            pass

    with pytest.raises(RuntimeError, match="own thread"):
        make_loop(at_step(1, hold)).fit(epochs=1)


@pytest.mark.parametrize("verb", ["wait", "close"])
def test_waiting_for_oneself_is_an_error(verb):
    """A hook that waits for the end of its own run would wait for ever."""
    loop = make_loop(at_step(1, lambda trainer: getattr(trainer, verb)()))
    loop.start(epochs=1)
    with pytest.raises(RuntimeError, match="own thread"):
        loop.wait()


@pytest.mark.parametrize("state", ["idle", "paused", "running"])
def test_close_ends_everything(state):
    """A background run is stopped, an open fit is ended, and leaving the with block does the
    same."""
    seen = []
    with make_loop(recorder(seen), valid=False) as loop:
        if state == "paused":
            loop.step(2)
        elif state == "running":
            loop.start(epochs=ENDLESS)
    assert seen == ([] if state == "idle" else ["before_fit", "after_cancel", "cleanup_fit"])
    assert loop.state == ("idle" if state == "idle" else "stopped")
    assert not any(thread.name == "trainer_nb" for thread in threading.enumerate())
    loop.close()
    assert loop.fit(epochs=1
                    if state != "running" else loop.step_state.epoch + 1).status == "finished"


def test_max_time_stops(monkeypatch):
    """Time is up at a boundary: stopped, journalled, resumable by hand."""
    seen, clock = [], HandClock().put_into(monkeypatch, "core.driver")
    slow = LambdaHook(after_step=lambda trainer: clock.move(0.02))
    loop = make_loop(recorder(seen), slow, valid=False, max_time=timedelta(seconds=0.15))
    result = loop.fit(epochs=1000)
    assert result.status == "stopped" and result.steps == 8
    assert 0.16 <= loop.elapsed() < 0.17
    assert seen == ["before_fit", "after_cancel", "cleanup_fit"]
    assert [(e.name, e.source) for e in loop.journal] == [("max_time", "loop")]


# ---- one go equals pieces


def stopping(*steps):
    """Hooks that stop in these steps."""
    return [at_step(step, lambda trainer: trainer.stop()) for step in steps]


def fit_until_done(loop, **totals):
    """fit() again and again, with something going on in between; returns the statuses."""
    statuses = []
    while not statuses or statuses[-1] != "finished":
        statuses.append(loop.fit(**totals).status)
        disturb()
        assert len(statuses) < 30
    return statuses


PIECES = {
    "stops in mid-epoch": (lambda loop: [loop.hooks.add(hook) for hook in stopping(1, 2, 5)], 3),
    "stops at the end of an epoch": (lambda loop: [loop.hooks.add(hook) for hook in stopping(3, 6)],
                                     2),
    "single steps": (lambda loop: [(loop.step(), disturb()) for _ in range(7)], 0),
    "steps and a stop": (lambda loop: [loop.step(2), disturb(), loop.stop(), disturb(),
                                       loop.step(3)], 0),
    "epochs": (lambda loop: [loop.step(epochs=1), disturb(), loop.step(1), loop.step(epochs=1)], 0),
    "shorter totals": (lambda loop: [loop.fit(epochs=1), disturb(), loop.fit(max_steps=5),
                                     disturb()], 0),
    "evaluations by hand": (lambda loop: [loop.step(2), loop.validate(), loop.test(make_batches()),
                                          loop.step()], 0),
    "changed threads": (lambda loop: [loop.step(2), loop.start(epochs=2), loop.wait(), disturb(),
                                      loop.step(1)], 0),
    "model.eval() by hand": (lambda loop: [loop.step(2), loop.model.eval(), loop.step(2),
                                           loop.model.eval()], 0),
    "gradients by hand": (lambda loop: [loop.step(2), backward_by_hand(loop), loop.step(2)], 0),
}


def backward_by_hand(loop):
    """What a person tries in a cell; the run's random streams and its next step are not touched by
    it."""
    mode = loop.model.training
    loop.model.eval()
    nn.functional.cross_entropy(loop.model(make_batches()[0][0]), make_batches()[0][1]).backward()
    loop.model.train(mode)
    loop.model[4].eval()


@pytest.mark.parametrize("kind", PIECES)
def test_pieces_equal_one_go(kind):
    """However a run of three epochs is cut, all its numbers are those of the run in one go, bit for
    bit."""
    cut, stops = PIECES[kind]
    loop = make_loop()
    cut(loop)
    assert fit_until_done(loop, epochs=3) == ["stopped"] * stops + ["finished"]
    assert_same(loop, straight(epochs=3))


def test_a_run_without_validation_trains_the_same():
    """Evaluations, with random draws and running means of their own, leave no trace in the
    training."""
    loop = make_loop(valid=False)
    loop.fit(epochs=3)
    assert_same(loop, straight(epochs=3))


@pytest.mark.parametrize("every", [1, 2, 4])
def test_evaluations_in_mid_epoch_leave_no_trace(every):
    """Also between two windows, and before the first step."""
    loop = make_loop(eval_every=every, eval_first=True)
    loop.fit(max_steps=8)
    plain = make_loop(valid=False)
    plain.fit(max_steps=8)
    assert_same(loop, plain)


def evaluation_runs(seen):
    """Writes down each start and end of an evaluation with its step, and its losses."""

    def note(point):
        return lambda trainer, *_: seen.append((point, trainer.step_state.optimizer_step))

    points = ("before_valid", "after_valid")
    return LambdaHook(**{p: note(p) for p in points},
                      on_log=lambda t, r: seen.append(("log", r["valid/loss"])))


def reference_evaluations():
    """Starts, ends and losses of the evaluations of two undisturbed epochs."""
    seen = []
    make_loop(evaluation_runs(seen)).fit(epochs=2)
    return seen


def test_a_pause_during_an_evaluation_is_held_there():
    """Resumed, the evaluation goes on where it was, and gives what it would have given."""
    seen = []
    loop = make_loop(in_evaluation(lambda trainer: trainer.pause()), evaluation_runs(seen))
    assert loop.fit(epochs=2).status == "paused"
    assert (loop.step_state.phase, loop.eval_batch, loop.model.training) == ("valid", 2, False)
    disturb()
    assert loop.fit(epochs=2).status == "finished"
    assert seen == reference_evaluations()
    assert_same(loop, straight(epochs=2))


def test_a_stop_in_a_pause_during_an_evaluation_discards_it():
    """The model is back in training mode at once, and the evaluation is run again from its
    start."""
    seen = []
    loop = make_loop(in_evaluation(lambda trainer: trainer.pause()), evaluation_runs(seen))
    loop.fit(epochs=2)
    outside = global_streams()
    loop.stop()
    assert global_streams() == outside
    assert (loop.state, loop.eval_batch, loop.model.training,
            loop.model[4].training) == ("stopped", None, True, False)
    assert loop.fit(epochs=2).status == "finished"
    assert seen == [("before_valid", 3), *reference_evaluations()]
    assert_same(loop, straight(epochs=2))


@pytest.mark.parametrize("held", [False, True])
def test_a_change_in_a_pause_during_an_evaluation_discards_it(held):
    """A command for a boundary acts at once, on weights nobody is evaluating;
    the evaluation is run again."""
    seen = []
    loop = make_loop(in_evaluation(lambda trainer: trainer.pause()), evaluation_runs(seen))
    if held:
        loop.start(epochs=2)
    else:
        loop.fit(epochs=2)
    wait_for(lambda: loop.state == "paused" and loop.driver.status.name is None or held
             and loop.eval_batch == 2)
    wait_for(lambda: loop.state == "paused")
    outside = global_streams() if not held else None
    assert loop.tune(lr_scale=0.5).wait(120).status == "applied"
    assert (loop.lr_scale, loop.eval_batch, loop.model.training) == (0.5, None, True)
    assert held or global_streams() == outside
    loop.resume()
    assert loop.wait().status == "finished"
    wanted = make_loop(at_step(3, lambda trainer: trainer.tune(lr_scale=0.5)))
    wanted.fit(epochs=2)
    assert_same(loop, wanted)
    assert [entry[0]
            for entry in seen] == ["before_valid"] + ["before_valid", "after_valid", "log"] * 2
    assert [(e.kind, e.step) for e in loop.journal][:2] == [("pause", 3), ("tune", 3)]


def test_a_change_during_an_evaluation_waits_for_its_end():
    """Without a pause nothing is discarded: the change acts at the boundary after the
    evaluation."""
    seen, acted = [], []
    loop = make_loop(in_evaluation(lambda trainer: trainer.tune(lr_scale=0.5)),
                     evaluation_runs(seen))
    loop.hooks.add(
        LambdaHook(on_intervention=lambda trainer, entry: acted.append(
            (trainer.eval_batch, trainer.training))))
    loop.fit(epochs=1)
    assert acted == [(None, True)]
    assert [entry[0] for entry in seen] == ["before_valid", "after_valid", "log"]
    entry = loop.journal.entries[0]
    assert (entry.name, entry.new, entry.step) == ("lr_scale", 0.5, 3)
    assert loop.step_state.evaluated_at == 3


def test_changes_keep_their_order_around_a_pause_during_an_evaluation():
    """What was said before the pause comes before what is said in it."""

    def say(trainer):
        trainer.tune(lr_scale=0.5)
        trainer.note("first")
        trainer.pause()

    loop = make_loop(in_evaluation(say))
    loop.start(epochs=1)
    wait_for(lambda: loop.state == "paused")
    loop.note("second").wait(120)
    assert loop.tune(lr_scale=0.25).wait(120).status == "applied"
    loop.resume()
    loop.wait()
    said = [(e.kind, e.new) for e in loop.journal if e.kind in ("tune", "note")]
    assert said == [("tune", 0.5), ("note", "first"), ("note", "second"), ("tune", 0.25)]
    assert loop.lr_scale == 0.25


def test_a_change_right_after_a_pause_does_not_wait():
    """In an evaluation, too, what follows a pause acts in the pause, even if it was said before the
    pause began."""
    loop = make_loop(in_evaluation(lambda trainer: (trainer.pause(),
                                                    trainer.tune(lr_scale=0.5))[1]))
    loop.start(epochs=1)
    wait_for(lambda: loop.state == "paused" and loop.lr_scale == 0.5)
    loop.resume()
    assert loop.wait().status == "finished"
    assert [e.kind for e in loop.journal] == ["pause", "tune", "resume"]


@pytest.mark.parametrize("end", ["stop", "exception", "detach"])
def test_an_evaluation_that_ends_early_is_run_again(end):
    """Stopped or broken it leaves no trace, and is run again; detached it goes on in the thread."""
    seen = []
    action = {"stop": lambda t: t.stop(), "exception": lambda t: 1 / 0,
              "detach": lambda t: t.detach()}[end]
    loop = make_loop(in_evaluation(action), evaluation_runs(seen))
    if end == "exception":
        with pytest.raises(ZeroDivisionError):
            loop.fit(epochs=2)
    else:
        assert loop.fit(epochs=2).status == {"stop": "stopped", "detach": "detached"}[end]
    if end == "detach":
        loop.wait()
    else:
        assert loop.model.training
        assert not loop.model[4].training and loop.training and loop.split == "train"
        disturb()
        loop.fit(epochs=2)
    again = [] if end == "detach" else [("before_valid", 3)]
    assert seen == again + reference_evaluations()
    assert_same(loop, straight(epochs=2))


def test_an_exception_in_mid_window_takes_its_batches_again():
    """The open window is void: its gradients are gone, and the same samples come again, in the same
    windows."""

    def step(batch, trainer):
        taken.append(batch[1].tolist())
        if len(taken) == 4:
            raise ZeroDivisionError("planted")
        return {"loss": nn.functional.cross_entropy(trainer.model(batch[0]), batch[1])}

    taken = []
    loop = make_loop(train_step=step, loss_fn=None, valid=False)
    with pytest.raises(ZeroDivisionError):
        loop.fit(epochs=1)
    state = loop.step_state
    assert (state.optimizer_step, state.batch_idx, state.samples_seen,
            state.window_batches) == (1, 2, 16, 0)
    assert all(p.grad is None for p in loop.model.parameters())
    loop.fit(epochs=1)
    assert taken[4:6] == taken[2:4]
    labels = []
    whole = make_loop(LambdaHook(before_batch=lambda t: labels.append(t.batch[1].tolist())),
                      valid=False)
    whole.fit(epochs=1)
    assert taken[:2] + taken[4:] == labels
    assert loop.step_state == whole.step_state


def test_a_failed_run_without_draws_equals_an_unbroken_one():
    """Where nothing is random within a step, going on after an exception is exact."""

    def plain(*hooks):
        torch.manual_seed(1)
        loader = DataLoader(make_data(44), 8, shuffle=True,
                            generator=torch.Generator().manual_seed(2))
        return make_loop(*hooks, model=nn.Linear(64, 10), train_dl=loader, valid=False,
                         accumulation=3)

    def fail(trainer):
        if trainer.step_state.batch_idx == 5 and not failed:
            failed.append(True)
            raise ZeroDivisionError

    failed = []
    loop, whole = plain(LambdaHook(before_batch=fail)), plain()
    with pytest.raises(ZeroDivisionError):
        loop.fit(epochs=2)
    loop.fit(epochs=2)
    whole.fit(epochs=2)
    tensors, others = everything(loop)[0], everything(whole)[0]
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


# ---- totals, evaluations, ends


def evaluated_steps(loop, **totals):
    """The steps after which a run was evaluated."""
    steps = []
    loop.hooks.add(
        LambdaHook(before_valid=lambda trainer: steps.append(trainer.step_state.optimizer_step)))
    loop.fit(**totals)
    return steps


@pytest.mark.parametrize(
    ("settings", "totals", "steps"),
    [
        ({}, {"epochs": 3}, [3, 6, 9]),
        ({"eval_every": 2}, {"epochs": 5}, [6, 12, 15]),
        ({"eval_every": 2}, {"epochs": 4}, [6, 12]),
        ({"eval_first": True}, {"epochs": 2}, [0, 3, 6]),
        ({}, {"max_steps": 7}, [3, 6, 7]),
        ({}, {"max_steps": 6}, [3, 6]),
        ({"eval_every": 2}, {"max_steps": 7}, [2, 4, 6, 7]),
        ({"eval_every": 3}, {"max_steps": 7}, [3, 6, 7]),
        ({"eval_every": 7}, {"max_steps": 7}, [7]),
        ({"eval_every": 100}, {"max_steps": 2}, [2]),
        ({"eval_first": True, "eval_every": 4}, {"max_steps": 5}, [0, 4, 5]),
    ],
)
def test_evaluated_when(settings, totals, steps):
    """In the unit of the run, and at its end, never twice at one step."""
    assert evaluated_steps(make_loop(**settings), **totals) == steps


def test_eval_first_comes_once():
    """Not again when a run goes on, however it was stopped."""
    loop = make_loop(*stopping(1), in_evaluation(lambda trainer: trainer.stop()), eval_first=True)
    steps = []
    loop.hooks.add(
        LambdaHook(after_valid=lambda trainer: steps.append(trainer.step_state.optimizer_step)))
    fit_until_done(loop, epochs=1)
    loop.fit(epochs=2)
    assert steps == [0, 3, 6]


def test_max_steps_in_mid_epoch():
    """The last step is evaluated once; the epoch stays open, and an extension goes on in it, bit
    for bit."""
    seen = []
    loop = make_loop(recorder(seen, ("before_epoch", "after_train", "after_valid", "after_epoch")))
    result = loop.fit(max_steps=4)
    assert (result.status, result.epochs, result.steps) == ("finished", 1, 4)
    whole = ["before_epoch", "after_train", "after_valid", "after_epoch"]
    assert seen == [*whole, "before_epoch", "after_valid"]
    assert loop.step_state.batch_idx == 2
    assert loop.fit(max_steps=4).steps == 4
    assert seen == [*whole, "before_epoch", "after_valid"]
    disturb()
    loop.fit(max_steps=6)
    assert seen == [*whole, "before_epoch", "after_valid", "after_train", "after_valid",
                    "after_epoch"]
    assert_same(loop, straight(max_steps=6))
    assert_same(loop, straight(epochs=2))


def test_a_finished_run_is_extended():
    """More epochs, then more steps: as if it had been asked for at once."""
    loop = make_loop()
    assert loop.fit(epochs=1).steps == 3
    disturb()
    assert loop.fit(epochs=2).steps == 6
    disturb()
    assert (loop.fit(max_steps=8).steps, loop.epochs) == (8, None)
    assert_same(loop, straight(max_steps=8))


def test_totals_of_fit_replace_those_of_the_constructor():
    """Either unit, and an end that is nearer too."""
    assert make_loop(epochs=5).fit().epochs == 5
    assert make_loop(epochs=5).fit(max_steps=2).steps == 2
    assert make_loop(max_steps=5).fit(epochs=1).steps == 3
    with pytest.raises(ValueError, match="both are given"):
        make_loop(epochs=1, max_steps=1)
    loop = make_loop(epochs=5)
    loop.fit(max_steps=2)
    assert (loop.epochs, loop.max_steps, loop.fit().steps) == (None, 2, 2)


class Endless(IterableDataset):
    """Batches without a length."""

    def __init__(self, count):
        self.batches = make_batches(count)

    def __iter__(self):
        return iter(self.batches)


class NotedEpochs(torch.utils.data.RandomSampler):
    """A sampler that is told the epoch."""

    def set_epoch(self, epoch):
        """Note it."""
        self.__dict__.setdefault("told", []).append(epoch)


def test_max_steps_cycle_the_loader():
    """Each pass is an epoch: set_epoch is called, loader_exhausted is fired while steps are
    missing."""
    seen = []
    data = make_data(16)
    sampler = NotedEpochs(data)
    loader = DataLoader(data, 8, sampler=sampler)
    loop = make_loop(recorder(seen, ("loader_exhausted",)), train_dl=loader, accumulation=1)
    result = loop.fit(max_steps=5)
    assert (result.epochs, result.steps, loop.step_state.batch_idx) == (2, 5, 1)
    assert sampler.told == [0, 1, 2]
    assert seen == ["loader_exhausted"] * 2


def test_loaders_without_length_are_cycled_too():
    """The tail of each pass is stepped when the loader ends."""
    seen = []
    loader = DataLoader(Endless(3), batch_size=None)
    loop = make_loop(recorder(seen, ("loader_exhausted",)), train_dl=loader)
    result = loop.fit(max_steps=5)
    assert (result.epochs, result.steps, seen) == (2, 5, ["loader_exhausted"] * 2)
    assert loop.position().batches is None
    assert make_loop(train_dl=loader).fit(epochs=2).steps == 4


def counted_batches(loop, **totals):
    """How many batches each split gave."""
    counts = {}

    def count(trainer):
        counts[trainer.split] = counts.get(trainer.split, 0) + 1

    loop.hooks.add(LambdaHook(before_batch=count))
    loop.fit(**totals)
    return counts


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({}, {"train": 12, "valid": 8}),
        ({"limit_batches": 2}, {"train": 4, "valid": 4}),
        ({"limit_batches": 100}, {"train": 12, "valid": 8}),
        ({"limit_batches": 0.5}, {"train": 6, "valid": 4}),
        ({"limit_batches": 0.01}, {"train": 2, "valid": 2}),
        ({"limit_batches": {"train": 3}}, {"train": 6, "valid": 8}),
        ({"limit_batches": {"train": 5, "valid": 0.5}}, {"train": 10, "valid": 4}),
        ({"limit_batches": {"valid": 1, "test": 9}}, {"train": 12, "valid": 2}),
        ({"overfit_batches": 3}, {"train": 6, "valid": 6}),
        ({"fast_dev_run": True}, {"train": 1, "valid": 1}),
        ({"fast_dev_run": 2}, {"train": 2, "valid": 2}),
    ],
)
def test_limits(settings, counts):
    """Fewer batches of every loader; fast_dev_run is one epoch whatever was asked for."""
    loop = make_loop(**settings)
    assert counted_batches(loop, **({} if "fast_dev_run" in settings else {"epochs": 2})) == counts


def test_overfit_batches_are_the_same_samples():
    """Shuffled again or not, every epoch takes the first epoch's few batches, augmentation and
    all."""
    seen = []
    loop = make_loop(LambdaHook(before_batch=lambda t: seen.append(t.batch[0].clone())),
                     overfit_batches=2, valid=False)
    fit_until_done(loop, epochs=3)
    assert len(seen) == 6
    assert all(torch.equal(seen[i], seen[i % 2]) for i in range(6))
    assert not torch.equal(seen[0], seen[1])


def test_overfit_batches_are_the_same_after_a_stop():
    """A stop between two of them goes on with the second."""
    seen = []
    loop = make_loop(*stopping(3), accumulation=1, overfit_batches=2, valid=False)
    loop.hooks.add(LambdaHook(before_batch=lambda t: seen.append(t.batch[1].tolist())))
    assert fit_until_done(loop, epochs=3) == ["stopped", "finished"]
    assert seen == seen[:2] * 3


# ---- one driver at a time

VERBS = {
    "fit()": lambda loop: loop.fit(epochs=77),
    "step()": lambda loop: loop.step(77),
    "start()": lambda loop: loop.start(epochs=77),
}


@pytest.mark.parametrize("second", VERBS)
@pytest.mark.parametrize("first", ["fit()", "step()"])
def test_a_second_driver_from_a_callback_is_refused(first, second):
    """The message names both; the first goes on to its own end as if nothing had been said."""
    errors = []

    def drive_again(trainer):
        with pytest.raises(RuntimeError) as excinfo:
            VERBS[second](trainer)
        errors.append(str(excinfo.value))

    loop = make_loop(at_step(1, drive_again))
    result = loop.fit(epochs=1) if first == "fit()" else loop.step(2)
    assert (
        len(errors) == 1
        and errors[0].startswith(second)
        and f"in progress (in {first}" in errors[0]
    )
    assert (result.steps, result.status) == ((3, "finished") if first == "fit()" else (2, "paused"))
    assert loop.epochs == (1 if first == "fit()" else None)


@pytest.mark.parametrize("second", VERBS)
def test_a_second_driver_from_another_thread_is_refused(second):
    """Right after start() already, and the background run keeps its totals."""
    for _ in range(5):
        loop = make_loop(valid=False)
        loop.start(epochs=ENDLESS)
        with pytest.raises(RuntimeError, match=r"in progress \(in start\(\)") as excinfo:
            VERBS[second](loop)
        assert str(excinfo.value).startswith(second)
        assert loop.epochs == ENDLESS
        loop.stop()
        assert loop.wait(120).status == "stopped"


def test_evaluating_and_predicting_in_a_running_run_is_refused():
    """validate() while another thread trains would evaluate moving weights;
    the message tells how."""
    loop = make_loop(valid=True)
    loop.start(epochs=ENDLESS)
    for look in (loop.validate, lambda: loop.test(make_batches()),
                 lambda: loop.predict(make_batches())):
        with pytest.raises(RuntimeError, match="paused"):
            look()
    loop.stop()
    loop.wait()


@pytest.mark.parametrize("act", [
    *VERBS.values(), lambda other: other.validate(), lambda other: other.predict(make_batches()),
    lambda other: other.lr_find(num_steps=5)])
def test_a_model_that_a_thread_trains_for_another_run_is_refused(act):
    """A cell that is run twice makes a second run of the same model, and nobody has the first."""
    loop = make_loop()
    other = make_loop(model=loop.model)
    loop.start(epochs=ENDLESS)
    with pytest.raises(RuntimeError, match="another run trains this model in the background"):
        act(other)
    assert other.state is RunState.IDLE and other.step_state.optimizer_step == 0
    assert loop in background_runs() and other not in background_runs()
    with loop.paused():  # it would go on with weights that another one has trained
        assert other.validate()["valid/loss"] > 0
        with pytest.raises(RuntimeError, match="another run trains this model"):
            other.step()
    loop.stop()
    loop.wait()
    assert loop not in background_runs()
    assert other.step(2).steps == 2


def test_what_changes_no_weights_of_a_model_in_training_is_done(tmp_path):
    """A run that has begun can be saved, stopped and closed, whoever trains its model now."""
    loop = make_loop()
    with make_loop(model=loop.model) as other:
        other.step(2)
        loop.start(epochs=ENDLESS)
        other.max_steps = 9
        other.save(tmp_path / "other.pt")
        assert other.stop().wait().status == "applied" and other.state is RunState.STOPPED
    assert loop.state is RunState.RUNNING
    loop.stop()
    loop.wait()


def test_runs_that_share_layers_which_neither_trains_go_on_side_by_side():
    shared = nn.Linear(64, 16).requires_grad_(False)
    loop, other = (make_loop(model=nn.Sequential(nn.Flatten(), shared, nn.Linear(16, 10)))
                   for _ in range(2))
    loop.start(epochs=ENDLESS)
    assert other.step(2).steps == 2 and other.validate()["valid/loss"] > 0
    loop.stop()
    loop.wait()


# ---- random streams


def test_the_outside_keeps_its_own_streams():
    """After any drive, or none, the global streams are where the cell left them."""
    loop, batches = make_loop(at_step(2, lambda trainer: trainer.pause())), make_batches()
    for drive in (
        lambda: loop.step(), lambda: loop.fit(epochs=1), lambda: loop.validate(),
        lambda: loop.fit(epochs=1),
        lambda: loop.predict(batches), lambda: loop.step(4), lambda: loop.stop(),
        lambda: loop.fit(epochs=4),
    ):  # fmt: skip
        disturb()
        before = global_streams()
        drive()
        assert global_streams() == before


def test_streams_come_back_after_an_exception():
    """Also when training or an evaluation fails."""
    for hook in (at_step(1, lambda trainer: 1 / 0), in_evaluation(lambda trainer: 1 / 0)):
        loop = make_loop(hook)
        before = global_streams()
        with pytest.raises(ZeroDivisionError):
            loop.fit(epochs=1)
        assert global_streams() == before


def test_without_a_seed_the_run_starts_from_the_global_streams():
    """As a plain loop would, and from then on it owns what it took over."""
    runs = []
    for _ in range(2):
        loop = make_loop(seed=None)
        disturb()
        loop.step(2)
        torch.manual_seed(99)
        loop.fit(epochs=1)
        runs.append(loop)
    assert_same(*runs)
    other = make_loop(seed=None)
    torch.manual_seed(9)
    other.fit(epochs=1)
    assert not torch.equal(everything(other)[0][0], everything(runs[0])[0][0])


def test_the_seed_applies_once():
    """Every epoch and every drive has its own draws: seeding again would repeat the first order."""
    orders = []
    loop = make_loop(LambdaHook(before_batch=lambda t: orders.append(t.batch[1].tolist())),
                     valid=False)
    loop.fit(epochs=1)
    loop.fit(epochs=2)
    assert orders[:6] != orders[6:]
    disturb()
    other = make_loop(valid=False)
    other.fit(epochs=2)
    assert_same(loop, other)


def test_numpy_and_python_streams_belong_to_the_run_too():
    """Draws of a step from any global stream are the run's own."""

    def draws(cut):
        seen = []
        loop = make_loop(
            LambdaHook(after_step=lambda t: seen.append((random.random(), np.random.rand()))),
            valid=False)
        for _ in range(cut):
            loop.step()
            disturb()
        loop.fit(epochs=2)
        return seen

    assert draws(0) == draws(4)


def test_a_hook_may_evaluate_in_mid_run():
    """validate() from a hook, at any point of training, changes nothing in it."""
    seen = []
    hook = LambdaHook(
        after_step=lambda t: seen.append(t.validate()["valid/loss"]),
        after_batch=lambda t: t.validate() if t.training else None,
    )
    loop = make_loop(hook)
    loop.fit(epochs=2)
    assert len(set(seen)) == 6
    assert_same(loop, straight(epochs=2))


# ---- modes of modules


@pytest.mark.parametrize("end",
                         ["finished", "stop", "exception in a step", "exception in an evaluation",
                          "pause"])
def test_a_frozen_module_stays_frozen(end):
    """BatchNorm in eval mode is never updated, and every module's mode is as before, whatever
    happened."""
    hooks = {
        "stop": stopping(2), "exception in a step": [at_step(2, lambda t: 1 / 0)], "finished": [],
        "exception in an evaluation": [in_evaluation(lambda t: 1 / 0)],
        "pause": [in_evaluation(lambda t: t.pause())],
    }[end]  # fmt: skip
    loop = make_loop(*hooks)
    frozen = {name: value.clone() for name, value in loop.model[4].state_dict().items()
              if "running" in name}
    modes = [module.training for module in loop.model.modules()]
    if "exception" in end:
        with pytest.raises(ZeroDivisionError):
            loop.fit(epochs=1)
    else:
        loop.fit(epochs=1)
    if end != "pause":
        assert [module.training for module in loop.model.modules()] == modes
        loop.model.eval()  # by hand, to look at something
    loop.fit(epochs=2)
    assert [module.training for module in loop.model.modules()] == modes
    assert all(torch.equal(loop.model[4].state_dict()[name], value)
               for name, value in frozen.items())
    assert not torch.equal(loop.model[1].running_mean, torch.zeros(16))


# ---- entering, and changing threads


@pytest.mark.parametrize("verb", ["fit", "step", "start"])
@pytest.mark.parametrize(
    ("context", "name"),
    [
        (torch.no_grad, "no_grad"),
        (torch.inference_mode, "inference_mode"),
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16), "autocast"),
    ],
)
def test_entering_under_an_open_context_is_refused(verb, context, name):
    """Nothing would be learnt, or on stale weights:
    an error before anything happens, and a later fit is unharmed."""
    seen = []
    loop = make_loop(recorder(seen), epochs=1)
    with context(), pytest.raises(RuntimeError, match=name):
        getattr(loop, verb)()
    assert (seen, loop.state, loop.step_state.boundary) == ([], "idle", 0)
    loop.fit()
    assert_same(loop, straight(epochs=1))


@pytest.mark.slow
@pytest.mark.parametrize("drive", ["start", "detach"])
def test_thread_settings_go_along(drive):
    """What the calling thread has set holds in the background thread, and there only as long as it
    lives."""
    variable = contextvars.ContextVar("variable", default="unset")

    def settings():
        return {
            "context": variable.get(), "decimal": decimal.getcontext().prec,
            "numpy": np.geterr()["divide"],
            "threads": torch.get_num_threads(), "cache": torch.is_autocast_cache_enabled(),
            "backward": torch._C._is_multithreading_enabled(), "device": torch.get_default_device(),
        }  # fmt: skip

    seen = {}
    loop = make_loop(
        LambdaHook(after_step=lambda t: seen.update({threading.current_thread().name: settings()})))
    loop.hooks.add(at_step(1, lambda trainer: trainer.detach()))
    before = settings()
    threads, token = torch.get_num_threads(), variable.set("mine")
    try:
        with (
            decimal.localcontext(prec=7), np.errstate(divide="raise"), torch.device("cpu:0"),
            torch.autograd.set_multithreading_enabled(False),
        ):  # fmt: skip
            torch.set_num_threads(threads + 1)
            torch.set_autocast_cache_enabled(False)
            wanted = settings()
            if drive == "start":
                loop.start(epochs=1)
            else:
                assert loop.fit(epochs=1).status == "detached"
            loop.wait()
    finally:
        torch.set_num_threads(threads)
        torch.set_autocast_cache_enabled(True)
        variable.reset(token)
    assert all(wanted[name] != before[name] for name in wanted)
    assert seen["trainer_nb"] == wanted


def test_no_context_is_open_between_two_steps():
    """Neither autocast nor no_grad leaks out of a step, an evaluation or a pause in one."""
    seen = []

    def look(kind):
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"),
                     torch.is_inference_mode_enabled()))

    loop = make_loop(in_evaluation(lambda t: t.pause()), mixed_precision="bf16")
    loop.at_safe_point = look
    loop.fit(epochs=1)
    look("outside")
    loop.fit(epochs=1)
    assert len(seen) > 10 and set(seen) == {(True, False, False)}


# ---- commands from everywhere


def test_commands_from_four_threads_are_all_done():
    """None is lost or done twice, each thread's own stay in order, and the journal tells one
    story."""
    loop = make_loop(valid=False)
    replies = {name: [] for name in "abcd"}

    def ask(name):
        for number in range(60):
            replies[name].append(loop.note(f"{name}{number}"))
            if number % 20 == 10:
                replies[name].append(loop.tune(lr_scale=1 + number / 100
                                               + "abcd".index(name) / 1000))
            time.sleep(0.0005)  # so that the four take turns

    loop.start(epochs=ENDLESS)
    threads = [threading.Thread(target=ask, args=(name,)) for name in replies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [reply for some in replies.values() for reply in some]
    assert {reply.wait(120).status for reply in every} == {"applied"}
    loop.stop()
    loop.wait()
    entries = loop.journal.entries
    assert [e.number for e in entries] == list(range(1, len(entries) + 1))
    assert len(entries) == len(every) + 1 == 4 * 63 + 1
    for name in replies:
        assert [e.new for e in entries
                if e.kind == "note" and e.new[0] == name] == [f"{name}{n}" for n in range(60)]
    places = [(e.boundary, e.order) for e in entries]
    assert places == sorted(places) and len(set(places)) == len(places)
    assert all(e.step <= e.boundary for e in entries)
    tuned = [(e.old, e.new) for e in entries if e.kind == "tune"]
    assert [old for old, _ in tuned] == [1.0] + [new for _, new in tuned][:-1]
    assert tuned[-1][1] == loop.lr_scale


@pytest.mark.slow
def test_commands_at_the_end_of_a_run_are_answered():
    """Whatever is asked while a run ends is either done or void;
    nothing waits for ever, and no change is lost."""
    for _ in range(10):
        loop = make_loop(valid=False, accumulation=1)
        loop.start(epochs=1)
        replies, number = [], 0
        while loop.background.thread.is_alive() or number < 3:
            number += 1
            replies.append((loop.note(str(number)),
                            loop.pause() if number % 7 == 6 else loop.detach()))
            if loop.state == "paused":
                loop.resume()
            time.sleep(0.0003)
        loop.wait()
        assert loop.state == "finished"
        assert all(reply.wait(120).status == "applied" for reply, _ in replies)
        assert all(reply.wait(120).status in ("applied", "void", "refused") for _, reply in replies)
        assert [e.new for e in loop.journal
                if e.kind == "note"] == [str(n) for n in range(1, number + 1)]


def test_commands_while_nobody_drives_act_at_once():
    """A change is applied, a wish to a driver is void."""
    loop = make_loop()
    assert loop.tune(lr=0.25).status == "applied"
    assert loop.lr == 0.25
    assert loop.pause().status == "void"
    assert loop.fit(epochs=1).status == "finished"


def test_validate_now():
    """The command evaluates at the next boundary and training goes on as if nothing had
    happened."""
    seen = []
    validate = at_step(2, lambda trainer: trainer.post(Command("validate")))
    loop = make_loop(validate,
                     LambdaHook(after_valid=lambda t: seen.append(t.step_state.optimizer_step)))
    loop.fit(epochs=2)
    assert validate.result.status == "applied"
    assert seen == [2, 3, 6]
    assert_same(loop, straight(epochs=2))


def test_validate_now_without_a_loader_is_refused():
    """There is nothing to evaluate; the run goes on."""
    validate = at_step(2, lambda trainer: trainer.post(Command("validate")))
    loop = make_loop(validate, valid=False)
    assert loop.fit(epochs=1).status == "finished"
    assert validate.result.status == "refused" and "valid_dl" in validate.result.reason


def test_safe_points_are_where_they_should_be():
    """Micro points within windows and evaluations only;
    at a boundary no window or evaluation is open."""
    seen = []

    def look(kind):
        if kind == "boundary":
            assert not loop.runner.window_open and loop.eval_batch is None
            assert all(p.grad is None for p in loop.model.parameters())
        seen.append((kind, loop.step_state.phase.value, loop.eval_batch))

    loop = make_loop()
    loop.at_safe_point = look
    loop.fit(epochs=1)
    window = [("micro", "train", None), ("boundary", "train", None)]
    last = [("micro", "train", None), ("boundary", "train", None),
            ("boundary", "after_train", None)]
    evaluation = [("micro", "valid", n) for n in (1, 2, 3, 4)] + [("boundary", "after_valid", None)]
    assert seen == [
        ("boundary", "iterate", None), *window, *window, *last, *evaluation,
        ("boundary", "epoch_start", None),
        ("ended", "epoch_start", None),
    ]  # fmt: skip
    assert loop.step_state.boundary == sum(kind == "boundary" for kind, *_ in seen)


class Touchy(Hook):
    """Fails once when the run is held."""

    def on_pause(self, trainer):
        """Fail."""
        self.enabled = False
        trainer.hooks.stale = True
        raise ValueError("planted")


def test_a_hook_that_fails_in_a_pause_ends_the_drive():
    """The exception is raised by the drive, the fit is ended, and can be continued."""
    seen = []
    loop = make_loop(Touchy(), recorder(seen), at_step(2, lambda trainer: trainer.pause()))
    with pytest.raises(ValueError, match="planted"):
        loop.fit(epochs=1)
    assert seen == ["before_fit", "after_exception", "cleanup_fit"]
    assert loop.fit(epochs=1).status == "finished"


@pytest.mark.parametrize("step", [5, 10])
def test_an_exception_after_a_step_does_not_lose_its_evaluation(step):
    """The evaluation that was due is made when the run goes on, the last one too."""
    trainer = small_runs.make(valid_dl=small_runs.BATCHES, max_steps=10, eval_every=5,
                              hooks=[small_runs.at_step(step, small_runs.fail)])
    with pytest.raises(ValueError, match="user's own"):
        trainer.fit()
    assert trainer.fit().status == "finished" and small_runs.evaluated(trainer) == [5, 10]


@pytest.mark.parametrize("point", ["before_valid", "before_batch", "after_loss", "after_batch"])
def test_an_evaluation_within_an_evaluation_is_refused(point):
    """A clear error instead of an endless recursion."""
    def look(trainer):
        """Only from within an evaluation."""
        if not trainer.training:
            trainer.validate()

    trainer = small_runs.make(valid_dl=small_runs.BATCHES, epochs=1,
                              hooks=[LambdaHook(**{point: look})])
    with pytest.raises(RuntimeError, match="an evaluation is going on already"):
        trainer.fit()


def test_validate_and_test_leave_the_records_of_the_last_evaluation():
    """validate() and test() on other data return theirs;
    those of the run stay, and are what its state holds."""
    other = DataLoader(TensorDataset(small_runs.X + 1, small_runs.Y), batch_size=4)
    trainer = small_runs.make(valid_dl=DataLoader(TensorDataset(small_runs.X, small_runs.Y),
                                                  batch_size=4), epochs=1)
    trainer.fit()
    before = dict(trainer.records)
    assert trainer.validate(other)["valid/loss"] != before["valid/loss"]
    trainer.test(other)
    assert trainer.records == before == trainer.state_dict()["position"]["records"]


def test_the_result_is_a_table_in_a_notebook():
    """Status, how far it came, last values and the best one; a name cannot break the table."""
    result = FitResult(RunState.PAUSED, epochs=1, steps=2298, last={"valid/loss": 1 / 3, "a|b": 3},
                       best={"name": "valid/loss", "value": 0.25, "epoch": 1.0, "step": 1200})
    shown = result._repr_markdown_()
    assert shown.startswith("**Paused** after 1 epoch, 2,298 steps.")
    assert "| valid/loss | 0.3333 |" in shown and "| a&#124;b | 3 |" in shown
    assert shown.endswith("Best: valid/loss 0.25 at step 1,200.")
    assert FitResult(RunState.ERROR, 0, 0)._repr_markdown_() == "**Error** after 0 epochs, 0 steps."


def test_a_model_that_resizes_a_buffer_trains():
    """As the observers of torch.ao do: nothing that a run does beforehand forbids it."""
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.register_buffer("seen", torch.zeros(0))

        def forward(self, inputs):
            if not self.seen.numel():
                self.seen.resize_(1).fill_(2.0)
            return self.layer(inputs) * self.seen

    torch.manual_seed(0)
    model = Growing()
    twin = copy.deepcopy(model)
    batches = [(torch.ones(2, 3), torch.ones(2, 1))] * 3
    Trainer(model, train_dl=batches, loss_fn=nn.MSELoss(), epochs=1, device="cpu", progress=False,
            optim=torch.optim.SGD(model.parameters(), 0.1)).fit()
    optim = torch.optim.SGD(twin.parameters(), 0.1)
    for inputs, targets in batches:
        optim.zero_grad()
        nn.functional.mse_loss(twin(inputs), targets).backward()
        optim.step()
    assert torch.equal(model.layer.weight, twin.layer.weight)


@pytest.mark.parametrize("items", ["pairs", "tensors"])
def test_a_step_asks_nothing_of_each_batch_of_a_list(items):
    """A call of `step()` makes as many calls with a long list of batches as with a short one; a
    list of tensors, which may be written to, is looked through."""
    def calls(length):
        batches = [torch.ones(2, 3) for _ in range(length)]
        if items == "pairs":
            batches = [(each, torch.ones(2, 1)) for each in batches]
        model = torch.nn.Linear(3, 1)
        trainer = Trainer(model, train_dl=batches, device="cpu", progress=False, epochs=1,
                          train_step=lambda batch, trainer: {"loss": model(batch[0]).mean()},
                          optim=torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(4):
            trainer.step()
        found = [0]

        def note(frame, event, argument):
            found[0] += event == "call" and "trainer_nb" in frame.f_code.co_filename

        sys.setprofile(note)
        try:
            trainer.step()
        finally:
            sys.setprofile(None)
        return found[0]

    calls(20)
    more = calls(520) - calls(20)
    assert more == 0 if items == "pairs" else more > 500
