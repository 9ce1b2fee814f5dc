"""A saved state goes on bit for bit: any run, halted anywhere, resumed by a trainer that knows
only the file."""

import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from digits_runs import wait_for, wait_for_pauses
from exact_runs import (EPOCHS, Bend, Halt, Mix, Plan, assert_continues, assert_same, differences,
                        drive, final, halted_run, make_trainer, new_run, scramble, straight_run,
                        through_file)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trainer_nb.core.control import Command
from trainer_nb.core.hook import LambdaHook
from trainer_nb.support.saved import plain_copy
from trainer_nb.core.state import RunState

pytestmark = pytest.mark.slow

CHANGES = st.one_of(
    st.builds(lambda lr: {"lr": lr}, st.sampled_from([0.03, 0.001, None])),
    st.builds(lambda scale: {"lr_scale": scale}, st.sampled_from([0.5, 2.0, 1.0])),
    st.builds(lambda decay: {"weight_decay": decay}, st.sampled_from([0.0, 0.5])),
    st.builds(lambda on: {"mix.enabled": on}, st.booleans()),
    st.builds(lambda order: {"mix.order": order}, st.sampled_from([7, 4])),
    st.builds(lambda share: {"mix.share": share}, st.floats(0, 1)),
    st.builds(lambda n: {"gradient_accumulation_steps": n}, st.integers(1, 4)),
    st.builds(lambda clip: {"grad_clip": clip}, st.sampled_from([None, 0.1])),
    st.builds(lambda every: {"eval_every": every}, st.sampled_from([None, 1, 2])),
    st.sampled_from([{"mixed_precision": "bf16"}, {"recorder.enabled": False},
                     {"lr": 0.05, "bend.enabled": False}]))
OF_GROUPS = st.one_of(
    st.builds(lambda on: {"layer_groups.first.frozen": on}, st.booleans()),
    st.builds(lambda scale: {"layer_groups.last.lr_scale": scale}, st.sampled_from([0.3, 1.0])),
    st.builds(lambda on: {"layer_groups.enabled": on}, st.booleans()))


def by_hand(changes):
    """A few changes and their boundaries."""
    return st.lists(st.tuples(st.integers(1, 22),
                              changes.map(lambda values: tuple(values.items()))), max_size=3)


TOTALS = st.sampled_from([(("epochs", EPOCHS),)] * 2 + [(("max_steps", 11),), (("max_steps", 4),)])


@st.composite
def plans(draw):
    """Runs in which everything may differ that may differ."""
    def one(*values):
        return draw(st.sampled_from(values))
    order = one("shuffle", "replacement", "weighted", "batches", "samples", "plain", "iterable",
                "list")
    valid, fewer = one("plain", "plain", "shuffle", None), one(None, None, None, "limit", "overfit")
    total, groups = draw(TOTALS), one(False, False, True)
    named = (one("one_cycle", "cosine", "warmup_stable_decay")
             if order != "iterable" or "max_steps" in total[0] else "lambda")
    sched = one(None, "one cycle", "lambda", "restarts", "sequential", named, named,
                *(["plateau"] if valid else []))
    every = one("step", "step", "epoch", "evaluation")
    if sched == named != "lambda":
        every = "step" if every == "evaluation" or "max_steps" in total[0] else every
    limit = one(3, 9, 2, 0.7) if fewer == "limit" else None
    return Plan(
        order=order, generator=None if order == "list" else one(None, "own", "shared"),
        augment=one(None, "torch", "numpy", "python"), drop_last=draw(st.booleans()), valid=valid,
        total=total, eval_every=one(None, None, 1, 2, 3),
        eval_first=bool(valid) and one(False, False, True), accumulation=one(1, 1, 2, 3, 4),
        micro_batch_size=one(None, None, 2), precision=one(None, None, "bf16"), clip=one(None, 0.3),
        ema=one(None, 0.9),
        optim=one("adamw", "sgd"), sched=sched, every=every, groups=groups,
        limit=3 if limit == 0.7 and order == "iterable" else limit,
        overfit=2 if fewer == "overfit" else None,
        resume_data=one("skip", "skip", "replay"), seed=one(7, None), frozen=one(False, True),
        resting=one(False, True),
        changes=tuple(draw(by_hand(st.one_of(CHANGES, OF_GROUPS) if groups else CHANGES))))


HALTS = st.builds(Halt, st.sampled_from(["step", "stop", "pause"]), st.integers(1, 30))


@given(plans(), st.lists(HALTS, min_size=1, max_size=3))
@example(Plan(sched="sequential", generator="shared", accumulation=2),
         [Halt("step", 3), Halt("stop", 9)])
@example(Plan(total=(("max_steps", 11),), changes=((3, (("eval_every", 1),)),)), [Halt("step", 2)])
@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
def test_any_run_halted_anywhere_is_the_same_run(plan, halts):
    """Weights, optimizer, schedule, hooks, streams, history:
    up to three halts, each resumed by another trainer."""
    again = halted_run(plan, *halts)
    assert_same(again, straight_run(plan))
    assert again.exact


SYSTEMATIC = {
    "ragged windows, one cycle": Plan(accumulation=2, sched="one cycle", augment="numpy"),
    "replacement, shared generator": Plan(
        order="replacement", generator="shared", valid="shuffle", sched="restarts", clip=0.3,
        ema=0.8),
    "weighted, SGD, each epoch": Plan(order="weighted", optim="sgd", sched="lambda", every="epoch",
                                      augment="python"),
    "batch sampler, bf16": Plan(order="batches", generator="own", precision="bf16", accumulation=3,
                                sched="sequential"),
    "no batching, plateau": Plan(order="samples", sched="plateau", drop_last=True, frozen=True,
                                 augment="torch"),
    "steps, ends in mid-epoch": Plan(total=(("max_steps", 12),), eval_every=3, sched="plateau",
                                     resting=True),
    "iterable": Plan(order="iterable", augment="python", eval_first=True, sched="one cycle",
                     accumulation=4),
    "list": Plan(order="list", limit=3, valid="shuffle", sched="restarts", every="epoch"),
    "the same two batches": Plan(overfit=2, augment="torch", accumulation=2, eval_every=2),
    "a part of each loader": Plan(limit=0.7, generator="own", resume_data="replay", augment="torch",
                                  sched="lambda"),
    "gets worse": Plan(optim="sgd", changes=((9, (("lr", 0.5),)),)),
    "changed by hand": Plan(changes=(
        (2, (("lr", 0.03), ("mix.share", 0.9))), (4, (("mix.enabled", False),)),
        (9, (("lr", None), ("lr_scale", 0.5))),
        (11, (("mix.enabled", True), ("mix.order", 9), ("weight_decay", 0.4))),
        (15, (("gradient_accumulation_steps", 2),)))),
}  # fmt: skip
# Those that differ most; the rest are drawn by `test_any_run_halted_anywhere_is_the_same_run`, too.
SHORT = ("replacement, shared generator", "batch sampler, bf16", "no batching, plateau", "iterable",
         "a part of each loader", "changed by hand")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)],
                         ids=["some", "every"])
@pytest.mark.parametrize("plan", [
    pytest.param(plan, id=name, marks=[] if name in SHORT else pytest.mark.long)
    for name, plan in SYSTEMATIC.items()])
def test_every_step_is_a_good_place(plan, every):
    """Resumed after k steps, for every k from 0 to the end, or for these: none, at the start,
    in the middle and at the end of the second epoch, all."""
    straight = straight_run(plan)
    steps = straight.step_state.optimizer_step
    assert steps >= 3 and len(straight.history["train/loss"]) == steps and "lr" in straight.history
    some = {0, steps // 3, steps // 2, 2 * steps // 3, steps}
    for k in range(steps + 1) if every else sorted(some):
        assert_same(halted_run(plan, Halt("step", k)), straight)


@pytest.mark.parametrize("how", ["by turns", pytest.param("stop", marks=pytest.mark.long),
                                 pytest.param("pause", marks=pytest.mark.long)])
@pytest.mark.parametrize("plan", [
    Plan(accumulation=3, valid="shuffle", sched="plateau", augment="python"),
    Plan(total=(("max_steps", 8),), accumulation=2, eval_every=2, generator="shared",
         valid="shuffle", sched="lambda")])
def test_every_safe_point_is_a_good_place(plan, how):
    """Asked to end between micro batches, between batches of an evaluation, at the start and at the
    end of an epoch; "by turns": the second epoch, stopped and paused."""
    kinds = []
    counted = make_trainer(plan)
    counted.at_safe_point = kinds.append
    counted.fit()
    points = kinds.count("micro") + kinds.count("boundary")
    straight = straight_run(plan)
    assert points > 30
    some = how == "by turns"
    for point in range(points // 3, 2 * points // 3 + 2) if some else range(1, points + 1):
        halt = Halt(("stop", "pause")[point % 2] if some else how, point)
        assert_same(halted_run(plan, halt), straight)


@pytest.mark.parametrize("where", ["window", "evaluation"])
def test_a_stop_asked_for_by_a_hook_in_a_micro_batch(where):
    """It is obeyed at the end of the window, or there in the evaluation, which is made again."""
    plan = Plan(accumulation=3, sched="one cycle", augment="torch")
    straight, seen = straight_run(plan), []
    def ask(trainer):
        if trainer.training == (where == "window"):
            seen.append(trainer.step_state.window_batches)
            if len(seen) == 2:
                trainer.stop()
    first = new_run(plan, hooks=[Mix(), Bend(), LambdaHook(after_batch=ask, name="asks")])
    assert first.fit().status == RunState.STOPPED and len(seen) == (3 if where == "window" else 2)
    assert first.step_state.phase == ("train" if where == "window" else "valid")
    second = make_trainer(plan, weights=3, hooks=[Mix(), Bend(), LambdaHook(name="asks")])
    scramble()
    second.load_state_dict(through_file(first.state_dict()))
    second.fit()
    found = [place for place in differences(final(second), final(straight))
             if not place.startswith((".tunables", ".position ['carried']"))]  # `seen`, of the hook
    assert not found, found


def test_fp16_on_the_cpu_keeps_its_loss_scale():
    """The scale grows and falls (one loss overflows), and both go on where they were."""
    plan = Plan(precision="fp16", accumulation=2, sched="lambda")
    def huge(trainer):
        if trainer.training and trainer.step_state.batch_idx == 3:
            trainer.batch = trainer.batch[0], trainer.batch[1] * 1e5
    def make(weights=0, prepared=True):
        trainer = make_trainer(plan, weights, hooks=[Mix(), LambdaHook(order=9, before_batch=huge)])
        if prepared:
            trainer.engine.scaler.load_state_dict({**trainer.engine.scaler.state_dict(),
                                                   "growth_interval": 2})
        return trainer
    straight = make()
    scramble(5)
    drive(straight, plan)
    assert straight.skipped_steps == EPOCHS and straight.engine.scaler.get_scale() != 2.0**16
    for k in range(7):
        first = make()
        scramble(5)
        state = through_file(drive(first, plan, Halt("step", k)).state_dict())
        second = make(weights=9, prepared=False)
        scramble()
        second.load_state_dict(state)
        assert_same(drive(second, plan), straight)


@pytest.mark.parametrize("how", ["epochs", "max_steps"])
def test_a_run_at_its_end_is_extended_to_the_longer_one(how):
    """With a schedule that has no end of its own."""
    short, long = {"epochs": (2, 4), "max_steps": (7, 13)}[how]
    plan = Plan(sched="restarts", total=((how, short),), valid="plain" if how == "epochs" else None,
                augment="numpy")
    longer = replace(plan, total=((how, long),))
    straight = straight_run(longer)
    first = straight_run(plan)
    second = make_trainer(plan, weights=8, prepared=False)
    scramble()
    second.load_state_dict(through_file(first.state_dict()))
    assert second.fit().steps == first.step_state.optimizer_step  # nothing is left to do
    for trainer in (first, second):
        trainer.fit(**{how: long})
        a, b = final(trainer), final(straight)
        for state in (a, b):
            state.pop("journal")  # the other totals
        assert differences(a, b) == []


def test_a_state_is_not_changed_by_who_goes_on_from_it():
    """Twice in one process, by the same trainer and by another one; the state is what it was."""
    plan = Plan(sched="one cycle", accumulation=2, optim="sgd", augment="python",
                changes=((3, (("lr_scale", 0.5),)),))
    straight = straight_run(plan)
    first = new_run(plan)
    state = drive(first, plan, Halt("step", 4)).state_dict()
    before = plain_copy(state)
    parameters = list(first.model.parameters())
    for trainer in (first, first, make_trainer(plan, weights=6), first):
        scramble()
        trainer.load_state_dict(state)
        assert_same(drive(trainer, plan), straight)
    assert all(a is b for a, b in zip(parameters, first.model.parameters()))
    assert differences(state, before) == []


def test_what_the_parts_were_built_with_does_not_count():
    """Another rate, decay, clipping, window and precision, other switches and orders:
    the state's are taken."""
    plan = Plan(accumulation=2, clip=0.3, precision="bf16", sched="lambda",
                changes=((6, (("lr", 0.04),)),))
    straight = straight_run(plan)
    for k in (2, 4):
        first = new_run(plan)
        state = through_file(drive(first, plan, Halt("step", k)).state_dict())
        again = make_trainer(Plan(sched="lambda"), weights=3)
        again.tune(lr_scale=3.0, weight_decay=0.9,
                   **{"mix.order": 50, "bend.enabled": False, "mix.share": 0.0})
        again.runner.rates.become([1.0, 2.0])
        for group in again.optim.param_groups:
            group |= {"lr": 9.0, "initial_lr": 8.0, "eps": 0.5, "betas": (0.1, 0.2)}
        again.model.eval()
        again.load_state_dict(state)
        assert_same(drive(again, plan), straight)


def test_a_state_is_a_copy():
    """What the run does after it was taken is not in it."""
    trainer = make_trainer(Plan(optim="sgd"))
    trainer.step(3)
    state = trainer.state_dict()
    before = plain_copy(state)
    trainer.fit()
    assert differences(state, before) == []


@pytest.mark.parametrize("held", ["step", "pause"])
def test_what_is_drawn_during_a_pause_changes_nothing(held):
    """Held between two drives, or in the background, while this test draws from every stream and
    takes a state."""
    plan = Plan(augment="python", valid="shuffle", sched="restarts")
    straight = straight_run(plan)
    trainer = new_run(plan)
    states = []
    def play():
        torch.rand(5), np.random.normal(size=3), random.gauss(0, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            states.append(trainer.state_dict())
        scramble(len(states))
    if held == "step":
        while trainer.step(2).status != "finished":
            play()
    else:
        wait_for_pauses(trainer, 4, 9, 13, 18, 22)
        trainer.start()
        for _ in range(5):
            reply = trainer.post(Command("pause", {"boundary": True}))  # not in an evaluation
            assert reply.wait(120).status == "applied" and trainer.state is RunState.PAUSED
            play()
            trainer.resume().wait(120)
        trainer.wait()
        trainer.at_safe_point = None
    assert_same(trainer, straight)
    assert len(states) > 2
    for state in states[:6]:
        assert_continues(state, plan, straight, weights=4)


def test_from_another_thread_only_while_it_is_held():
    """While it runs state_dict() is refused; inside paused() it is a state like any other."""
    plan = Plan(total=(("epochs", 6),), sched="restarts", augment="torch")
    straight = straight_run(plan)
    trainer = new_run(plan)
    wait_for_pauses(trainer, 5, 14, 23, 32)
    trainer.start()
    states = []
    for _ in range(4):
        with pytest.raises(RuntimeError, match="with trainer.paused"):
            trainer.state_dict()
        with pytest.raises(RuntimeError, match="with trainer.paused"):
            trainer.load_state_dict({})
        with trainer.paused():
            scramble(33)
            states.append(through_file(trainer.state_dict()))
            place = trainer.step_state.boundary
        wait_for(lambda place=place: trainer.step_state.boundary > place + 3)
    trainer.wait()
    trainer.at_safe_point = None
    assert_same(trainer, straight)
    assert states[0]["position"]["optimizer_step"] < states[-1]["position"]["optimizer_step"] < 30
    for state in states:
        assert_continues(state, plan, straight, weights=2)


def test_a_held_run_becomes_another_one():
    """load_state_dict() inside paused(): the thread goes on from the state, more than once."""
    plan = Plan(total=(("epochs", 4),), sched="one cycle", augment="numpy")
    straight = straight_run(plan)
    trainer = new_run(plan)
    trainer.step(3)
    state, loaded = trainer.state_dict(), []
    def wait(kind):
        """Not get ahead of the three pauses."""
        if kind == "boundary" and trainer.step_state.optimizer_step >= 8 and len(loaded) < 3:
            wait_for(lambda: trainer.mailbox)
    trainer.at_safe_point = wait
    trainer.start()
    for _ in range(3):
        wait_for(lambda: trainer.step_state.optimizer_step > 3)
        with trainer.paused():
            assert trainer.driver.driven and trainer.step_state.optimizer_step > 3
            scramble()
            trainer.load_state_dict(state)
            assert trainer.step_state.optimizer_step == 3
            loaded.append(trainer.step_state.boundary)
    trainer.wait()
    trainer.at_safe_point = None
    assert_same(trainer, straight)


@pytest.mark.parametrize("where", ["ask", "at_safe_point"])
def test_a_run_becomes_another_one_at_a_boundary(where):
    """In the thread that drives it: asked for by a hook, or by who looks at each safe point."""
    plan = Plan(accumulation=2, sched="one cycle", augment="python")
    done = []
    def become(trainer):
        if trainer.step_state.optimizer_step == 5 and not done:
            done.append(trainer.step_state.boundary)
            trainer.load_state_dict(state)
    def asking():
        on = where == "ask"
        def ask(trainer):
            if on:
                trainer.ask(lambda: become(trainer))
        return [Mix(), Bend(), LambdaHook(name="asks", after_step=ask)]
    straight = straight_run(plan)
    first = new_run(plan, hooks=asking())
    state = drive(first, plan, Halt("step", 3)).state_dict()
    trainer = make_trainer(plan, weights=4, hooks=asking())
    trainer.at_safe_point = lambda kind: become(
        trainer) if (kind, where) == ("boundary", "at_safe_point") else None
    trainer.fit()
    trainer.at_safe_point = None
    assert done
    found = [place for place in differences(final(trainer), final(straight))
             if not place.startswith(".tunables")]
    assert not found, found


@pytest.mark.parametrize("point",
                         ["before_batch", "after_backward", "after_step", "on_log", "after_epoch"])
def test_in_the_middle_of_a_step_it_is_refused(point):
    """By a hook, whichever point it is called at; what it asks for comes at the next boundary."""
    refused, states = [], []
    def take(trainer, *_):
        if not refused:
            with pytest.raises(RuntimeError, match="trainer.ask"):
                trainer.state_dict()
            with pytest.raises(RuntimeError, match="trainer.ask"):
                trainer.load_state_dict({})
            trainer.ask(lambda: states.append(trainer.state_dict()))
            refused.append(trainer.step_state.optimizer_step)
    plan = Plan(accumulation=2)
    asking = LambdaHook(**{point: take}, name="asks")
    trainer = new_run(plan, hooks=[Mix(), Bend(), asking])
    drive(trainer, plan)
    straight = straight_run(plan, hooks=[Mix(), Bend(), LambdaHook(name="asks")])
    assert len(states) == 1 and refused
    # the hook goes by a list of its own, which may be named
    trainer.driver.carried.findings.found.clear()
    assert_same(trainer, straight)
    assert_continues(through_file(states[0]), plan, straight, weights=3,
                     hooks=[Mix(), Bend(), LambdaHook(name="asks")])


@pytest.mark.parametrize("what", ["rest", "freeze", "rest until the epoch ends"])
def test_layers_changed_between_two_drives(what):
    """Frozen, or put into eval mode, after a few steps: this is part of the state as well.

    A part in eval mode that is trained is in train mode again from the next epoch on."""
    plan = Plan()
    def change(trainer):
        if what == "freeze":
            trainer.model[0].requires_grad_(False)
        else:
            trainer.model[1].eval().requires_grad_(what != "rest")
    straight = new_run(plan)
    straight.step(4)
    change(straight)
    state = through_file(straight.state_dict())
    straight.step(1)
    assert straight.model[1].training == (what == "freeze")
    straight.fit()
    assert straight.model[1].training == (what != "rest")
    assert straight.model[0].weight.requires_grad == (what != "freeze")
    again = make_trainer(plan, weights=3)
    again.load_state_dict(state)
    # modes of the moment, not those of the end of the last drive
    assert_same(drive(again, plan), straight)


@pytest.mark.parametrize("way", ["step", "stop", "pause", "look"])
def test_a_validation_loader_with_a_generator_of_its_own(way):
    """An evaluation that is given up, or that only looks, leaves the generator of its loader as it
    was."""
    generators = []
    def make(weights=0):
        trainer = make_trainer(Plan(), weights)
        generators.append(torch.Generator().manual_seed(4))
        data = trainer.evaluator.loaders["valid"].dataset
        trainer.evaluator.loaders[
            "valid"] = torch.utils.data.DataLoader(data, 7, shuffle=True, generator=generators[-1])
        return trainer
    straight = make()
    scramble(5)
    drive(straight)
    first = make()
    scramble(5)
    # 8: the second batch of the first evaluation
    drive(first, halt={"step": Halt("step", 7), "look": Halt("step", 3)}.get(way, Halt(way, 8)))
    if way == "look":
        first.validate()
    assert way in ("step", "look") or first.step_state.phase == "valid"
    again = make(weights=3)
    scramble()
    again.load_state_dict(through_file(first.state_dict()))
    assert_same(drive(again), straight)


def test_a_state_from_before_the_first_step_while_the_run_is_held():
    """It has no random streams yet: the run begins again with its seed."""
    plan = Plan(seed=3, total=(("epochs", 6),))
    straight, trainer = straight_run(plan), make_trainer(plan)
    state = trainer.state_dict()
    wait_for_pauses(trainer, 12)
    trainer.start()
    wait_for(lambda: trainer.step_state.optimizer_step >= 4)
    with trainer.paused():
        assert trainer.driver.driven
        trainer.load_state_dict(state)
        trainer.at_safe_point = None
    trainer.wait()
    found = differences(final(trainer), final(straight))
    assert not [place for place in found if not place.startswith(".journal")], found


def test_resumed_before_the_first_tick_of_a_schedule():
    """At the end of the first epoch, with a schedule that ticks each epoch:
    torch has nothing to warn of."""
    plan = Plan(sched="lambda", every="epoch")
    straight = straight_run(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(halted_run(plan, Halt("step", 5)), straight)
