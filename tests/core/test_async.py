"""A run that a cell awaits: the event loop gets its turns and random streams of its own, the run is
that of fit()."""

import asyncio
import random
import signal
import threading

import numpy as np
import pytest
import torch
from digits_runs import (
    assert_same, at_step, disturb, everything, global_streams, in_evaluation, make_batches,
    make_loop, recorder,
    straight,
)  # fmt: skip

from small_runs import HandClock

from trainer_nb import Trainer
from trainer_nb.core.control import Command
from trainer_nb.core.hook import LambdaHook
from trainer_nb.core.looks import background_runs
from trainer_nb.panel.sections import commands
from trainer_nb.panel.view import LocalRunView

BREATH = 0.05  # the most seconds between two turns of the event loop
CLOCK = HandClock()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Let runs read a clock that only their hooks move: nothing here depends on the machine."""
    return CLOCK.put_into(monkeypatch, "core.driver")


def awaited(loop, *beside, **totals):
    """What `await loop.fit_async()` gives while these coroutines run beside it."""

    async def main():
        tasks = [asyncio.create_task(coroutine(loop)) for coroutine in beside]
        try:
            return await loop.fit_async(**totals)
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    return asyncio.run(main())


async def until(condition):
    """Give the others their turns until `condition()` is true, and fail if it never is."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0)


def slow(*points, seconds=1.2 * BREATH):
    """A hook that takes so long at these points that the event loop must get a turn right after."""
    return LambdaHook(order=90, **{point: lambda trainer: CLOCK.move(seconds) for point in points})


def slow_in(**at):
    """A hook that is slow once at each point: after n calls of it."""
    counts = dict.fromkeys(at, 0)

    def called(point):
        def call(trainer):
            counts[point] += 1
            if counts[point] == at[point]:
                CLOCK.move(1.2 * BREATH)

        return call

    return LambdaHook(order=90, **{point: called(point) for point in at})


def draw():
    """One number of each global stream."""
    return random.random(), np.random.rand(), torch.rand(()).item()


# ---- the same run


@pytest.mark.parametrize("totals", [{"epochs": 2}, {"max_steps": 5}, {"epochs": 1}])
def test_it_is_the_run_of_fit(totals):
    """Weights, optimizer, counters, what is returned, and what the hooks hear."""
    seen, heard = [], []
    loop, plain = make_loop(recorder(seen)), make_loop(recorder(heard))
    result = awaited(loop, **totals)
    assert result == plain.fit(**totals)
    assert seen == heard and loop.state == "finished"
    assert_same(loop, plain)


def test_totals_of_the_constructor_and_a_finished_run():
    """As in fit(): the totals replace earlier ones, a finished run returns at once and hears
    nothing."""
    seen = []
    loop = make_loop(recorder(seen), epochs=1)
    assert awaited(loop).epochs == 1
    heard = list(seen)
    assert awaited(loop).status == "finished"
    assert seen == heard
    assert awaited(loop, epochs=2).epochs == 2
    assert_same(loop, straight(epochs=2))


@pytest.mark.slow
def test_the_event_loop_gets_its_turns():
    """At the first boundary, and then whenever a twentieth of a second is over;
    not at every step."""
    turns = []

    async def count(loop):
        while True:
            turns.append(loop.step_state.optimizer_step)
            await asyncio.sleep(0)

    loop = make_loop(slow("after_step"), valid=False)
    awaited(loop, count, epochs=2)
    assert set(turns) >= set(range(7))  # a turn after each of the six slow steps
    quick = make_loop(slow("after_step", seconds=0.4 * BREATH), valid=False, accumulation=1)
    turns.clear()
    awaited(quick, count, epochs=20)
    assert sorted(set(turns)) == list(range(0, 121, 3)) and len(turns) < 45


def test_others_draw_from_streams_of_their_own():
    """They go on where the cell was, between all steps and in evaluations, and the run does not
    notice."""
    drawn = []

    async def gamble(loop):
        while True:
            drawn.append(draw())
            await asyncio.sleep(0)

    loop = make_loop(slow("after_batch"))
    disturb()
    wanted_first = global_streams()
    awaited(loop, gamble, epochs=2)
    after = global_streams()
    assert len(drawn) > 10 and drawn[0] == wanted_first
    disturb()
    assert [draw() for _ in drawn] == drawn
    assert global_streams() == after
    assert_same(loop, straight(epochs=2))


def test_without_a_seed():
    """The run takes over the streams as they are when it is awaited, what others seed later is
    theirs."""

    async def seed(loop):
        while True:
            disturb()
            await asyncio.sleep(0)

    torch.manual_seed(77), random.seed(77), np.random.seed(77)
    loop = make_loop(slow("after_step"), seed=None)
    awaited(loop, seed, epochs=1)
    torch.manual_seed(77), random.seed(77), np.random.seed(77)
    plain = make_loop(seed=None)
    plain.fit(epochs=1)
    assert_same(loop, plain)


def test_others_may_look():
    """An evaluation by hand, in this very thread, at any turn that is not in an evaluation."""
    seen = []

    async def look(loop):
        while True:
            if loop.eval_batch is None:
                seen.append((loop.validate()["valid/loss"], loop.test(make_batches())["test/loss"]))
            else:
                with pytest.raises(RuntimeError, match="an evaluation is going on"):
                    loop.validate()
            await asyncio.sleep(0)

    def linger(trainer):
        if trainer.step_state.batch_idx % 2 if trainer.training else trainer.eval_batch == 0:
            CLOCK.move(1.2 * BREATH)

    loop = make_loop(LambdaHook(after_batch=linger))
    awaited(loop, look, epochs=1)
    assert len(set(seen)) > 2
    assert_same(loop, straight(epochs=1))


# ---- steered


def test_a_pause_by_another_coroutine_holds():
    """Nothing moves until it says so, changes act at once meanwhile, others run;
    then it is as by step() and tune()."""
    held = []

    async def steer(loop):
        await until(lambda: loop.step_state.optimizer_step >= 2)
        reply = loop.pause()
        await until(lambda: loop.state == "paused")
        assert reply.status == "applied"
        held.append((loop.step_state.optimizer_step, loop.elapsed()))
        replies = [loop.tune(lr_scale=0.5), loop.note("here"), loop.tune(grad_clip=0.1)]
        for _ in range(3):
            disturb()
            CLOCK.move(1.0)
            await asyncio.sleep(0.01)
        assert [r.status for r in replies] == ["applied"] * 3
        held.append((loop.step_state.optimizer_step, loop.elapsed()))
        loop.resume()

    loop = make_loop(slow("after_step"))
    result = awaited(loop, steer, epochs=3)
    assert (result.status, held[0]) == ("finished", held[1])
    wanted = make_loop()
    wanted.step(held[0][0])
    wanted.tune(lr_scale=0.5), wanted.tune(grad_clip=0.1)
    wanted.fit(epochs=3)
    assert_same(loop, wanted)
    assert [e.kind for e in loop.journal] == ["pause", "tune", "note", "tune", "resume"]


@pytest.mark.parametrize("where", ["a hook", "an evaluation"])
def test_a_pause_from_within_holds_too(where):
    """There is a caller who can resume: all the coroutines of this thread."""

    async def resume(loop):
        await until(lambda: loop.state == "paused")
        place.append((loop.step_state.optimizer_step, loop.eval_batch))
        disturb()
        loop.resume()

    place = []
    hook = (at_step(2, lambda t: t.pause())
            if where == "a hook" else in_evaluation(lambda t: t.pause()))
    loop = make_loop(hook)
    assert awaited(loop, resume, epochs=2).status == "finished"
    assert place == [(2, None) if where == "a hook" else (3, 2)]
    assert_same(loop, straight(epochs=2))


def test_step_and_validate_by_another_coroutine():
    """A held run makes a step, or an evaluation, and holds again."""
    seen = []

    async def steer(loop):
        await until(lambda: loop.state == "paused")
        for name, values in (("step", {}), ("step", {"n": 2}), ("validate", {}),
                             ("step", {"epochs": 1})):
            reply = loop.post(Command(name, values))
            await until(lambda reply=reply: reply.status != "pending")
            assert reply.status == "applied"
            await until(lambda: loop.state == "paused")
            seen.append((loop.step_state.optimizer_step, loop.step_state.epoch))
        loop.resume()

    evaluated = []
    loop = make_loop(at_step(1, lambda t: t.pause()))
    loop.hooks.add(LambdaHook(after_valid=lambda t: evaluated.append(t.step_state.optimizer_step)))
    awaited(loop, steer, epochs=3)
    assert seen == [(2, 0), (4, 1), (4, 1), (6, 2)]
    assert evaluated == [3, 4, 6, 9]
    assert_same(loop, straight(epochs=3))


def test_a_stop_by_another_coroutine():
    """The await returns `stopped`, and any verb goes on."""

    async def stop(loop):
        await until(lambda: loop.step_state.optimizer_step >= 2)
        loop.stop()

    seen = []
    loop = make_loop(recorder(seen), slow("after_step"))
    result = awaited(loop, stop, epochs=2)
    assert result.status == "stopped" and 2 <= result.steps < 6
    assert seen == ["before_fit", "after_cancel", "cleanup_fit"]
    disturb()
    assert loop.fit(epochs=2).status == "finished"
    assert_same(loop, straight(epochs=2))


def test_detached():
    """The await returns, the run goes on in a thread and is no longer this thread's."""

    async def detach(loop):
        await until(lambda: loop.step_state.optimizer_step >= 2)
        replies.append(loop.detach())

    replies, threads = [], set()
    loop = make_loop(slow("after_step"),
                     LambdaHook(after_step=lambda t: threads.add(threading.get_ident())))
    result = awaited(loop, detach, epochs=3)
    assert (result.status, replies[0].status) == ("detached", "applied")
    assert loop.wait().status == "finished"
    assert len(threads) == 2
    assert_same(loop, straight(epochs=3))


def test_detached_in_a_pause_the_run_stays_paused():
    """The await returns; what is looked at changes nothing; Resume goes on in a thread."""

    async def look(loop):
        await until(lambda: loop.step_state.optimizer_step >= 2)
        loop.pause()
        await until(lambda: loop.state == "paused")
        replies.append(loop.detach())

    replies = []
    loop = make_loop(slow("after_step"))
    result = awaited(loop, look, epochs=3)
    assert (result.status, replies[0].status) == ("paused", "applied") and not loop.driver.driven
    step = loop.step_state.optimizer_step
    disturb()
    assert loop.state == "paused" and loop.step_state.optimizer_step == step
    assert loop.resume().wait(120).status == "applied" and loop.wait().status == "finished"
    assert_same(loop, straight(epochs=3))


def test_train_more():
    """A finished run goes on in a thread, as fit() with more epochs;
    refused while it runs, and for what is no number of epochs."""
    loop = make_loop(slow("after_step"))
    loop.fit(epochs=1)
    for wrong in (0, -1, 1.5, "two", True, None):
        reply = loop.post(Command("train_more", {"epochs": wrong}))
        assert reply.status == "refused" and "1 or more" in reply.reason, wrong
        assert loop.state == "finished" and loop.epochs == 1, wrong
    for wrong in ({"epochs": 1, "n": 2}, {"epochs": 1, "steps": 2}, {}):
        assert loop.post(Command("train_more", wrong)).status == "refused", wrong
    disturb()
    more = Command("train_more", {"epochs": 2}, source="widget")
    assert loop.post(more).wait(120).status == "applied"
    [totals] = [each for each in loop.journal if each.kind == "totals"]
    assert (totals.new, totals.source) == ("3 epochs", "widget")  # the button, and not code
    again = loop.post(Command("train_more", {"epochs": 2}))
    assert again.status == "refused" and "the run goes on" in again.reason
    assert loop.wait().status == "finished" and loop.epochs == 3
    assert_same(loop, straight(epochs=3))


def test_a_run_of_steps_trains_some_steps_more():
    """Also where an epoch has no end; the button that a person sees asks for steps."""
    class Endless:
        def __iter__(self):
            while True:
                yield torch.ones(2, 4), torch.ones(2, 1)

    def offered(run):
        buttons = commands(LocalRunView(run))["train_more"]["buttons"].values()
        return [each["asks"] for each in buttons if "why_not" not in each]
    run = Trainer(torch.nn.Linear(4, 1), train_dl=Endless(), loss_fn=torch.nn.MSELoss(),
                  max_steps=5, progress=False)
    run.fit()
    assert offered(run) == [["steps"]]
    assert run.post(Command("train_more", {"steps": 3})).wait(120).status == "applied"
    assert run.wait().steps == 8 and run.max_steps == 8 and run.epochs is None
    loop = make_loop()
    loop.fit(epochs=1)
    assert offered(loop) == [["epochs"]]


def test_pieces_of_every_kind():
    """Steps, an await that is stopped, a background run and a plain fit(): one run."""
    loop = make_loop(at_step(4, lambda t: t.stop()))
    loop.step(2)
    disturb()
    assert awaited(loop, epochs=4).status == "stopped"
    disturb()
    loop.start(epochs=2)
    loop.wait()
    disturb()
    assert awaited(loop, epochs=3).status == "finished"
    loop.fit(epochs=4)
    assert_same(loop, straight(epochs=4))


def test_after_an_await_a_script_is_a_script_again():
    """A pause of its own returns: there is nobody beside it any more."""
    loop = make_loop(at_step(4, lambda t: t.pause()))
    awaited(loop, epochs=1)
    assert (loop.fit(epochs=2).status, loop.step_state.optimizer_step) == ("paused", 4)
    loop.fit(epochs=2)
    assert_same(loop, straight(epochs=2))


# ---- cancelled, failed, refused


def cancelled(loop, when):
    """Await a run of two epochs and cancel it as soon as `when()` is true."""

    async def main():
        task = asyncio.create_task(loop.fit_async(epochs=2))
        await asyncio.sleep(0)
        await until(lambda: when() or task.done())
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    before = global_streams()
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pytest.fail("nobody pressed Ctrl-C")
    assert global_streams() == before


CANCELS = {
    "between two steps": ({"after_step": 2}, lambda t: t.step_state.optimizer_step == 2),
    "at the end of an epoch": ({"after_epoch": 1}, lambda t: t.step_state.epoch == 1),
    "before an epoch": ({"before_train": 2},
                        lambda t: t.step_state.phase == "iterate" and t.step_state.epoch == 1),
    "in an evaluation": ({"before_valid": 1}, lambda t: t.eval_batch == 1),
    "in mid-window": ({"after_batch": 3}, lambda t: t.runner.window_open),
}


@pytest.mark.parametrize("where", CANCELS)
def test_a_cancelled_run_can_be_resumed(where):
    """It ends at a whole step, tells its hooks, and goes on with fit() as if nothing had
    happened."""
    at, when = CANCELS[where]
    seen = []
    loop = make_loop(recorder(seen), slow_in(**at))
    cancelled(loop, lambda: when(loop))
    assert (loop.state, loop.runner.window_open, loop.eval_batch,
            loop.model.training) == ("interrupted", False, None, True)
    assert loop.step_state.batch_idx % 2 == 0
    assert all(p.grad is None for p in loop.model.parameters())
    assert seen == ["before_fit", "after_cancel", "cleanup_fit"]
    assert (loop.failed_batch, loop.data.iterator, loop.driver.status.name) == (None, None, None)
    disturb()
    assert loop.fit(epochs=2).status == "finished"
    assert_same(loop, straight(epochs=2))


def test_cancelled_in_a_pause():
    """Held or not, the run ends; fit() goes on from there."""
    loop = make_loop(at_step(2, lambda t: t.pause()))
    cancelled(loop, lambda: loop.state == "paused")
    assert loop.state == "interrupted"
    loop.fit(epochs=2)
    assert_same(loop, straight(epochs=2))


def test_cancelled_after_the_last_step():
    """Too late to stop anything: cancelled all the same, and nothing is left to do twice."""
    loop = make_loop(slow_in(after_epoch=2))
    cancelled(loop, lambda: loop.step_state.epoch == 2)
    assert loop.state in ("finished", "interrupted") and loop.driver.status.name is None
    assert loop.fit(epochs=2).status == "finished"
    assert_same(loop, straight(epochs=2))
    assert loop.fit(epochs=3).status == "finished"
    assert_same(loop, straight(epochs=3))


def test_cancelled_before_it_began():
    """A task that never got a turn has changed nothing."""
    loop = make_loop()

    async def main():
        task = asyncio.create_task(loop.fit_async(epochs=2))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (loop.state, loop.epochs, loop.driver.status.name) == ("idle", None, None)
    loop.fit(epochs=2)
    assert_same(loop, straight(epochs=2))


def test_a_timeout_around_it():
    """asyncio's own way of giving up: TimeoutError in the cell, and a run that goes on."""
    loop = make_loop(slow("after_step"))

    async def main():
        async with asyncio.timeout(None) as limit:
            def time_is_up(trainer):
                if trainer.step_state.optimizer_step == 2:
                    limit.reschedule(0)

            loop.hooks.add(LambdaHook(after_step=time_is_up))
            await loop.fit_async(epochs=3)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert loop.state == "interrupted" and 2 <= loop.step_state.optimizer_step < 9
    loop.fit(epochs=3)
    assert_same(loop, straight(epochs=3))


def test_an_interrupt():
    """Ctrl-C is heard at the next boundary: KeyboardInterrupt at the await, a whole step, and fit()
    goes on."""

    async def interrupt(loop):
        await until(lambda: loop.step_state.optimizer_step >= 2)
        signal.raise_signal(signal.SIGINT)

    loop = make_loop(slow("after_step"))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        awaited(loop, interrupt, epochs=2)
    assert signal.getsignal(signal.SIGINT) is handler
    assert (loop.state, loop.runner.window_open) == ("interrupted", False)
    assert [(e.kind, e.name, e.source) for e in loop.journal] == [("stop", "interrupt", "signal")]
    loop.fit(epochs=2)
    assert_same(loop, straight(epochs=2))


@pytest.mark.parametrize("where", ["a step", "an evaluation", "a hook of a pause"])
def test_an_exception_is_raised_at_the_await(where):
    """The user's own, once, with the streams back in their places; the run can be continued."""
    hooks = {
        "a step": [at_step(2, lambda t: 1 / 0, "before_batch")],
        "an evaluation": [in_evaluation(lambda t: 1 / 0)],
        "a hook of a pause": [at_step(2, lambda t: t.pause()),
                              at_step(2, lambda t: 1 / 0, "on_pause")],
    }[where]  # fmt: skip
    loop = make_loop(*hooks, slow("after_step"))
    before = global_streams()
    with pytest.raises(ZeroDivisionError) as excinfo:
        awaited(loop, epochs=2)
    assert global_streams() == before
    assert loop.state == "error"
    assert repr(loop.exception) == repr(excinfo.value)
    assert excinfo.traceback[-1].name == "<lambda>"
    assert (loop.failed_batch is not None) is (where == "a step")
    assert awaited(loop, epochs=2).status == "finished"


def test_a_failed_batch_is_left_out_by_the_next_fit():
    """The batch is known after an await as after fit()."""
    loop = make_loop(at_step(2, lambda t: 1 / 0, "before_batch"), valid=False)
    with pytest.raises(ZeroDivisionError):
        awaited(loop, epochs=1)
    assert loop.loop.feed.failed.batch_idx == 4 and len(loop.failed_indices) == 8
    assert loop.fit(epochs=1, skip_failed=True).status == "finished"
    assert loop.step_state.samples_seen == 36


@pytest.mark.parametrize("verb", ["fit", "step", "start", "fit_async"])
def test_a_second_driver_is_refused(verb):
    """From a coroutine beside it, by name, before anything has changed; the first goes on."""
    errors = []

    async def drive_again(loop):
        await until(lambda: loop.step_state.optimizer_step >= 1)
        with pytest.raises(RuntimeError) as excinfo:
            made = getattr(loop, verb)(**({"n": 77} if verb == "step" else {"epochs": 77}))
            if verb == "fit_async":
                await made
        errors.append(str(excinfo.value))

    loop = make_loop(slow("after_step"))
    assert awaited(loop, drive_again, epochs=2).status == "finished"
    assert len(errors) == 1
    assert errors[0].startswith(f"{verb}()") and "in progress (in fit_async())" in errors[0]
    assert loop.epochs == 2
    assert_same(loop, straight(epochs=2))


def test_waiting_for_it_in_its_own_thread_is_an_error():
    """It would block the event loop that the run needs."""
    refused = []

    async def wait(loop):
        await until(lambda: loop.step_state.optimizer_step >= 1)
        with pytest.raises(RuntimeError, match="would wait for itself"):
            loop.wait()
        refused.append(True)

    loop = make_loop(slow("after_step"))
    assert awaited(loop, wait, epochs=1).status == "finished"
    assert refused == [True]
    assert_same(loop, straight(epochs=1))


def test_two_runs_at_a_time():
    """Each is awaited by a task of its own, in one thread, and is what it would have been alone."""
    loops = [make_loop(slow("after_step"), seed=seed) for seed in (3, 4)]

    async def main():
        return await asyncio.gather(*(loop.fit_async(epochs=number)
                                      for number, loop in enumerate(loops, 1)))

    outside, handler = global_streams(), signal.getsignal(signal.SIGINT)
    assert [result.status for result in asyncio.run(main())] == ["finished"] * 2
    found = signal.signal(signal.SIGINT, handler)
    assert global_streams() == outside
    assert found is handler
    for number, loop in enumerate(loops, 1):
        alone = make_loop(seed=number + 2)
        alone.fit(epochs=number)
        assert_same(loop, alone)
    assert not torch.equal(everything(loops[0])[0][0], everything(loops[1])[0][0])


@pytest.mark.parametrize("act", [
    lambda other: other.fit(epochs=1), lambda other: other.step(),
    lambda other: other.start(epochs=1), lambda other: asyncio.create_task(
        other.fit_async(epochs=1)), lambda other: other.lr_find(num_steps=5)])
def test_a_model_that_an_awaited_run_trains_is_refused(act):
    """A cell with `create_task(trainer.fit_async())` that is run twice; an evaluation comes
    between two steps, and a hook of the run may train its model."""
    loop = make_loop(slow("after_step"))
    other = make_loop(model=loop.model)

    async def main():
        first = asyncio.create_task(loop.fit_async(epochs=2))
        await until(lambda: loop.step_state.optimizer_step)
        assert background_runs() == [loop]
        assert other.validate()["valid/loss"] > 0
        with pytest.raises(RuntimeError, match=r"has it; stop\(\) it, and await"):
            found = act(other)
            await found
        return await first

    assert asyncio.run(main()).status == "finished" and other.step_state.optimizer_step == 0
    assert_same(loop, straight(epochs=2))
    assert background_runs() == [] and other.step(2).steps == 2
    inner = make_loop(model=loop.model)
    loop.hooks.add(LambdaHook(name="inner", after_epoch=lambda trainer: inner.step()))
    assert awaited(loop, epochs=3).status == "finished" and inner.step_state.optimizer_step == 1


def test_bad_totals_are_refused_at_the_await():
    """As in fit(), before anything has changed."""
    loop = make_loop()
    wrong = {"neither is given": {}, "1 or more": {"epochs": 0},
             "both are": {"epochs": 1, "max_steps": 1}}
    for error, totals in wrong.items():
        with pytest.raises(ValueError, match=error):
            awaited(loop, **totals)
    with torch.no_grad(), pytest.raises(RuntimeError, match="no_grad"):
        awaited(loop, epochs=1)
    assert (loop.state, loop.step_state.boundary, loop.driver.status.name) == ("idle", 0, None)
    awaited(loop, epochs=1)
    assert_same(loop, straight(epochs=1))
