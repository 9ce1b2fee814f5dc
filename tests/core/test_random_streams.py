"""The global random streams are one: runs and cells that draw from them side by side do not hear of
each other."""

import asyncio
import copy
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from digits_runs import (assert_same, at_step, in_evaluation, make_loop, straight, wait_for,
                         wait_for_pauses)

from trainer_nb import Trainer
from trainer_nb.core.control import Command
from small_runs import Loop
from trainer_nb.core.hook import LambdaHook
from trainer_nb.core.state import TURNS, RandomStreams
from trainer_nb.support import streams
from trainer_nb.support.saved import read_state, write_state
from trainer_nb.tools.task import seeded

pytestmark = pytest.mark.slow


def draws():
    """One number of each stream."""
    return random.random(), np.random.rand(), torch.rand(1).item()


def slow(seconds=0.002):
    """A hook that gives other threads a chance in the middle of each step."""
    return LambdaHook(before_step=lambda trainer: time.sleep(seconds))


@pytest.fixture(scope="module")
def wanted():
    """A run in one go."""
    return straight(epochs=4)


# ---- a cell in a pause


@pytest.mark.parametrize("how", ["reply", "state", "paused", "in an evaluation"])
def test_a_cell_in_a_pause_has_streams_of_its_own(how, wanted):
    """It may draw as soon as it is told of the pause:
    the run does not hear of it, nor the cell of the run."""
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    alone = [draws() for _ in range(13)]
    for turn in range(3):
        loop, asked, found = make_loop(), [], []
        wait_for_pauses(loop, *(turn + boundary for boundary in (6, 11, 17, 23)))
        if how == "in an evaluation":
            loop.hooks.add(
                in_evaluation(lambda trainer, asked=asked: asked.append(trainer.pause())))
        random.seed(7), np.random.seed(7), torch.manual_seed(7)
        loop.start(epochs=4)
        if how == "in an evaluation":
            wait_for(lambda asked=asked: asked)
        for number in range(4):
            if how == "paused":
                with loop.paused():
                    found += [draws() for _ in range(3)]
                continue
            reply = asked.pop() if asked else loop.pause()
            while how == "state" and loop.state != "paused" and loop.driver.driven:
                pass
            assert reply.wait(120).status == "applied"
            if number == 0 and how == "in an evaluation":
                assert loop.eval_batch is not None
            found += [draws() for _ in range(3)]
            loop.resume().wait(120)
        loop.wait()
        assert_same(loop, wanted)
        assert [*found, draws()] == alone


@pytest.mark.parametrize("verb", ["pause", "stop", "resume", "step"])
def test_a_reply_is_given_when_it_is_so(verb, wanted):
    """Not while the hooks are still told of it, nor before the streams are where they belong."""
    seen, replies = [], []

    def look(trainer):
        wait_for(lambda: replies)
        seen.append([reply.status for reply in replies])

    point = {"pause": "on_pause", "stop": "after_cancel"}.get(verb, "on_resume")
    loop = make_loop(LambdaHook(**{point: look}))
    wait_for_pauses(loop, 10)
    loop.start(epochs=4)
    if verb in ("resume", "step"):
        loop.pause().wait(120)
    with loop.driver.status.lock:  # who asks is faster than the run
        replies.append(getattr(loop, verb)()
                       if verb != "step" else loop.post(Command("step", {"n": 1000})))
    replies[0].wait(120)
    loop.at_safe_point = None
    assert seen == [["pending"]] and replies[0].status == "applied"
    if verb in ("pause", "stop"):
        assert loop.state == {"pause": "paused", "stop": "stopped"}[verb]
        assert not loop.driver.random.in_place
    torch.rand(3) if verb in ("pause", "stop") else None
    if verb == "stop":
        loop.fit(epochs=4)
    elif verb == "pause":
        loop.resume()
    loop.wait()
    assert_same(loop, wanted)


def test_a_pause_that_an_error_ends_is_void():
    """Its reply says what came between."""
    loop, replies = make_loop(LambdaHook(on_pause=lambda trainer: 1 / 0)), []
    loop.hooks.add(at_step(2, lambda trainer: replies.append(trainer.pause())))
    with pytest.raises(ZeroDivisionError):
        loop.fit(epochs=1)
    assert (replies[0].status, replies[0].where) == ("void", "the run ended with ZeroDivisionError")


def test_a_command_in_a_pause_within_an_evaluation(wanted):
    """The evaluation is discarded there and run again, from the streams with which it began."""
    asked, loop = [], make_loop()
    loop.hooks.add(in_evaluation(lambda trainer: asked.append(trainer.pause())))
    loop.start(epochs=4)
    wait_for(lambda: asked)
    asked[0].wait(120)
    assert loop.eval_batch is not None
    outside = torch.get_rng_state()
    loop.tune(lr_scale=1.0).wait(120)
    assert torch.equal(torch.get_rng_state(), outside) and loop.eval_batch is None
    draws()
    loop.resume()
    loop.wait()
    assert_same(loop, wanted)


# ---- several runs


def test_runs_at_once_are_what_they_are_alone(wanted):
    """Two in threads and one in the main thread, in turns;
    outside nothing has moved, and no thread is left waiting."""
    loops = [make_loop(slow()) for _ in range(3)]
    loops.append(make_loop(slow(), seed=5))
    alone = make_loop(seed=5)
    alone.fit(epochs=4)
    outside = torch.get_rng_state()
    for loop in loops[1:]:
        loop.start(epochs=4)
    loops[0].fit(epochs=4)
    for loop in loops:
        loop.wait()
    assert torch.equal(torch.get_rng_state(), outside)
    assert TURNS.thread is None and not TURNS.waiting
    for loop in loops[:3]:
        assert_same(loop, wanted)
    assert_same(loops[3], alone)


def test_beside_a_run_that_is_awaited(wanted):
    """The event loop's run and those of threads take turns, too."""
    first, second, third = make_loop(slow()), make_loop(slow()), make_loop(slow())

    async def both():
        third.start(epochs=4)
        await asyncio.gather(first.fit_async(epochs=4), second.fit_async(epochs=4))

    asyncio.run(both())
    third.wait()
    for loop in (first, second, third):
        assert_same(loop, wanted)


@pytest.mark.parametrize("what", ["validate", "predict", "exact", "state", "search", "build"])
def test_what_a_cell_does_with_another_run_meanwhile(what, wanted):
    """Whatever puts random streams in place for a while waits for the end of a step."""
    cell, done = threading.get_ident(), []

    def hold(trainer):
        """Until the cell waits, in the middle of this step."""
        wait_for(lambda: cell in TURNS.waiting or len(done) == 3)

    loop = make_loop(LambdaHook(before_step=hold))
    kind = Trainer if what == "search" else Loop
    other = make_loop(seed=9)
    made = kind(other.model, train_dl=other.train_dl, valid_dl=other.valid_dl,
                loss_fn=other.loss_fn, seed=9, device="cpu", epochs=1)
    state = made.state_dict() if kind is Loop else None
    loop.start(epochs=4)
    for _ in range(3):
        if what == "validate":
            made.validate()
        elif what == "predict":
            made.predict(made.valid_dl)
        elif what == "state":
            made.load_state_dict(state)
        elif what == "search":
            made.lr_find(num_steps=10)
        elif what == "build":
            with seeded(4):
                torch.rand(3)
        else:
            made.exact
        done.append(loop.step_state.optimizer_step)
    loop.wait()
    assert done == sorted(done) and done[-1] < 12
    assert_same(loop, wanted)
    assert TURNS.thread is None


def test_a_hook_that_waits_for_another_run_lets_it_go_on(wanted):
    """The streams of the one are put aside meanwhile, in the middle of its step."""
    other = make_loop()

    def meet(trainer):
        other.start(epochs=4)  # its thread waits for the turn that this step has
        other.pause().wait(120)
        assert other.state == "paused"
        other.resume()
        other.wait()

    loop = make_loop(at_step(2, meet, "before_batch"))
    other.step(5)
    loop.fit(epochs=4)
    assert_same(loop, wanted)
    assert_same(other, wanted)


def test_a_run_within_a_hook_of_another(wanted):
    """One in a thread waits as long; the inner run is part of the outer one's turn."""
    inner, beside = make_loop(), make_loop(slow())
    loop = make_loop(at_step(2, lambda trainer: inner.fit(epochs=4)))
    beside.start(epochs=4)
    loop.fit(epochs=4)
    beside.wait()
    for each in (inner, beside, loop):
        assert_same(each, wanted)


def test_runs_that_wait_for_each_other_go_on_and_say_so(monkeypatch):
    """Hooks that meet in each step cannot take turns:
    after a while both go on, and neither is exact."""
    monkeypatch.setattr(TURNS, "patience", 0.3)
    barrier = threading.Barrier(2, timeout=120)
    settings = {"train_dl": [(torch.randn(4, 64), torch.zeros(4, dtype=torch.long))] * 3,
                "accumulation": 1}
    loops = [make_loop(LambdaHook(after_step=lambda trainer: barrier.wait()), valid=False,
                       **settings) for _ in range(2)]
    with pytest.warns(UserWarning, match="side by side"):
        for loop in loops:
            loop.start(epochs=4)
        for loop in loops:
            assert loop.wait().status == "finished"
    assert all("at the same time" in loop.step_state.inexact for loop in loops)
    assert TURNS.thread is None
    alone = make_loop()
    alone.fit(epochs=4)
    assert_same(alone, straight(epochs=4))  # turns are taken again


def test_an_interrupt_while_waiting_for_a_turn(wanted):
    """Nothing has begun: the run is as it was, and the other one goes on."""
    entered, interrupted = threading.Event(), threading.Event()

    def hold(trainer):
        entered.set()
        interrupted.wait(120)

    def interrupt():
        def waiting():
            with TURNS._changed:  # whoever waits for a turn gives this lock back while it does
                return threading.main_thread().ident in TURNS.waiting

        wait_for(waiting)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    other, loop = make_loop(at_step(1, hold)), make_loop()
    other.start(epochs=4)
    entered.wait(120)
    # a test before may have left another one
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            loop.fit(epochs=4)
    finally:
        signal.signal(signal.SIGINT, before)
        interrupted.set()
    assert loop.state == "idle" and not TURNS.waiting
    loop.fit(epochs=4)
    other.wait()
    assert_same(loop, wanted)
    assert_same(other, wanted)


# the states of Python and NumPy, read at their addresses


def same_state(one, other):
    """Equal in every value and type."""
    return ([*map(type, one)] == [*map(type, other)] and one[1].dtype == other[1].dtype
            and one[0] == other[0] and np.array_equal(one[1], other[1]) and one[2:] == other[2:])


@pytest.fixture
def numpy_kept():
    """NumPy's stream is put back."""
    generator, state = np.random.get_bit_generator(), np.random.get_state()
    yield
    np.random.set_bit_generator(generator)
    np.random.set_state(state)


@pytest.mark.usefixtures("numpy_kept")
@pytest.mark.parametrize("known", [True, False])
def test_numpys_state_is_what_numpy_says(known, monkeypatch):
    """After any draws, with and without the second number of a pair; also where its place is not
    known."""
    if known:
        assert streams.place_of_pair() is not None
    else:
        monkeypatch.setattr(streams, "place_of_pair", lambda: None)
    for number in range(1500):
        if number % 3:
            np.random.standard_normal()
        if number % 5 == 0:
            np.random.random(number % 701)
        assert same_state(streams.kept_numpy(streams.numpy_state()), np.random.get_state())


@pytest.mark.usefixtures("numpy_kept")
def test_the_second_number_of_a_pair_is_restored():
    """Though none of the 624 words has changed since."""
    np.random.standard_normal()
    before, seen = RandomStreams.capture(), RandomStreams.glance()
    wanted = np.random.standard_normal()
    assert RandomStreams.glance() != seen
    before.restore()
    assert RandomStreams.glance() == seen and np.random.standard_normal() == wanted


@pytest.mark.parametrize("known", [True, False])
def test_pythons_state_is_what_python_says(known, monkeypatch):
    """After any draws, and put back from any state to any other, with and without a number that is
    kept; also where the words are not known."""
    outside = random.getstate()
    if known:
        assert streams.words_of_python() is not None
    else:
        monkeypatch.setattr(streams, "words_of_python", lambda: None)
    seen = []
    for number in range(1300):
        random.gauss(0, 1) if number % 3 == 0 else random.random()
        found = streams.python_state()
        assert streams.python_numbers(found) == random.getstate()
        if number % 100 < 2:
            seen.append((found, random.getstate()))
    for found, wanted in seen * 2:
        random.random()
        streams.put_python_state(found)
        assert random.getstate() == wanted
        assert streams.python_from_kept(wanted) == found
    random.setstate(outside)


@pytest.mark.usefixtures("numpy_kept")
@pytest.mark.parametrize("known", [True, False])
def test_a_state_put_back_is_the_one_that_numpy_puts_back(known, monkeypatch):
    """From any state to any other, with and without the second number of a pair, and as a
    checkpoint has it; the numbers drawn afterwards are the same."""
    if not known:
        monkeypatch.setattr(streams, "place_of_pair", lambda: None)
    states = []
    for number in range(12):
        np.random.seed(number // 3)
        np.random.random(97 * number)
        np.random.standard_normal(number % 3)
        states.append(np.random.get_state())
    name, keys, *rest = states[5]
    states.append((name, keys.astype(np.int64), *rest))
    for one in states:
        for other in states:
            np.random.set_state(other)
            wanted, drawn = np.random.get_state(), np.random.standard_normal(5)
            np.random.set_state(one)
            streams.put_numpy_state(streams.numpy_from_kept(other))
            assert same_state(np.random.get_state(), wanted)
            assert np.array_equal(np.random.standard_normal(5), drawn)


@pytest.mark.usefixtures("numpy_kept")
def test_another_generator_of_numpy_is_saved_and_restored(tmp_path):
    """As that of the global functions: with `np.random.set_bit_generator`."""
    np.random.set_bit_generator(np.random.PCG64(3))

    def made():
        drawn = []
        loop = make_loop(epochs=2)
        loop.hooks.add(LambdaHook(before_step=lambda trainer: drawn.append(np.random.random())))
        return drawn, loop

    drawn, loop = made()
    loop.step(2)
    loop.save(tmp_path / "a.pt")
    loop.step(2)
    again, other = made()
    other.load(tmp_path / "a.pt")
    other.step(2)
    assert len(again) == 2 and again == drawn[2:]


def test_runs_without_a_seed_are_different_ones():
    """From the same weights, as loops by hand are; one with a seed leaves the streams alone."""
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
    begin = nn.Linear(6, 1)

    def trained(steps=6, **settings):
        model = copy.deepcopy(begin)
        trainer = Trainer(model, train_dl=loader, loss_fn=nn.MSELoss(), epochs=1, device="cpu",
                          optim=torch.optim.SGD(model.parameters(), 0.05), progress=False,
                          **settings)
        for _ in range(steps):
            trainer.step()
        return model.weight.detach().clone()

    def byhand():
        model = copy.deepcopy(begin)
        optim = torch.optim.SGD(model.parameters(), 0.05)
        for a, b in loader:
            optim.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optim.step()
        return model.weight.detach()

    torch.manual_seed(3)
    first = byhand()
    torch.manual_seed(3)
    many = [trained() for _ in range(3)]
    assert torch.equal(many[0], first)
    assert len({each.sum().item() for each in many}) == 3
    before = RandomStreams.glance()
    assert torch.equal(trained(seed=1), trained(seed=1))
    trained(steps=0)
    assert RandomStreams.glance() == before


@pytest.mark.parametrize("older", [False, True], ids=["as it is", "of an older file"])
def test_pythons_stream_goes_on_from_a_file(older, tmp_path):
    """Its words are one tensor in a file; they were a tuple of numbers each."""
    drawn = []

    def made():
        loop = make_loop(epochs=2)
        loop.hooks.add(LambdaHook(before_step=lambda trainer: drawn.append(random.random())))
        return loop

    loop = made()
    loop.step(2)
    loop.save(tmp_path / "a.pt")
    state = read_state(tmp_path / "a.pt")
    version, words, following = state["random"]["python"]
    assert isinstance(words, torch.Tensor) and len(words) == 625
    if older:
        state["random"]["python"] = version, tuple(words.tolist()), following
        write_state(state, tmp_path / "a.pt")
    loop.step(2)
    other = made()
    other.load(tmp_path / "a.pt")
    other.step(2)
    assert drawn[4:] == drawn[2:4] and len(set(drawn)) == 4


@pytest.mark.usefixtures("numpy_kept")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("draw", [
    random.random, lambda: random.gauss(0, 1), lambda: random.seed(5), lambda: np.random.rand(624),
    np.random.standard_normal, np.random.standard_normal, lambda: np.random.seed(5),
    lambda: torch.rand(624), lambda: torch.randn(1), lambda: torch.randn(1, dtype=torch.double),
    lambda: nn.functional.dropout(torch.ones(9), 0.5), lambda: torch.manual_seed(5),
    lambda: np.random.set_bit_generator(np.random.PCG64(3))])
def test_each_draw_is_seen_at_a_glance(draw, known, monkeypatch):
    """Also where the words are not known; what draws nothing is not seen."""
    if known:
        assert streams.signs_of_torch() is not None
    else:
        monkeypatch.setattr(streams, "_places", lambda: None)
    random.random(), np.random.rand(), torch.rand(1)
    before = RandomStreams.glance()
    torch.ones(9).sum().item()
    assert RandomStreams.glance() == before
    draw()
    assert RandomStreams.glance() != before


def test_a_run_and_the_loop_around_it_do_not_draw_the_same_numbers():
    """Without a seed: neither does the next run, at any shift."""
    found = {"loop": [], "run": [], "next": []}
    def driven(name):
        def step(batch, trainer):
            found[name].append(draws())
            return {"loss": trainer.model(batch).mean()}
        model = nn.Linear(2, 1)
        return Trainer(model, step, [torch.ones(4, 2)], device="cpu", progress=False, epochs=30,
                       optim=torch.optim.SGD(model.parameters(), 1e-5))
    for number in range(3):
        (random.seed, np.random.seed, torch.manual_seed)[number](1)
    first, second = driven("run"), driven("next")
    for _ in range(30):
        found["loop"].append(draws())
        first.step()
    second.fit()
    # the run begins with the number that comes after the loop's first
    for stream in zip(*found["loop"], strict=True), zip(*found["run"]), zip(*found["next"]):
        assert all(len(set(numbers)) == 30 for numbers in stream)
    every = [each for name in found for row in found[name] for each in row]
    assert len(set(every)) == len(every)
