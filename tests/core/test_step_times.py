"""Where the time of a step goes: the part that sleeps is the part that is told, and what is not a
step is not counted."""

import pytest
import torch
from digits_runs import assert_same, at_step, make_loop, straight, wait_for
from small_runs import HandClock
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainer_nb.core.control import Command
from trainer_nb.core.hook import HOOK_POINTS, PARTS, Hook, LambdaHook
from small_runs import Loop
from trainer_nb.panel.view import LocalRunView

NAP = 0.02  # seconds
CLOCK = HandClock()
IN_A_STEP = (*HOOK_POINTS["batch"], *HOOK_POINTS["step"])


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Let no time pass but that of naps, on a busy machine too."""
    return CLOCK.put_into(monkeypatch, "core.hook", "core.training", "core.runner")


def nap(*_):
    """Be slow."""
    CLOCK.move(NAP)


class Samples(Dataset):
    """A few samples; slow ones take a while to read."""

    def __init__(self, slow=False):
        self.slow = slow

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if self.slow:
            CLOCK.move(NAP / 2)
        return torch.full((3,), float(index)), torch.tensor([1.0])


class SlowLoss(torch.autograd.Function):
    """A loss whose backward pass is slow."""

    @staticmethod
    def forward(ctx, loss):
        """As it is."""
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        """Late."""
        nap()
        return gradient


class SlowSGD(torch.optim.SGD):
    """An optimizer that takes its time."""

    def step(self, closure=None):
        """Late."""
        nap()
        return super().step(closure)


def make(*hooks, slow="", valid=None, skip=(), **settings):
    """A loop of twelve batches an epoch in which one part is slow, watched from the start."""

    def step(batch, trainer):
        if trainer.training and trainer.step_state.batch_idx in skip:
            return {"loss": None}
        if slow == "forward":
            nap()
        loss = nn.functional.mse_loss(trainer.model(batch[0]), batch[1])
        return {"loss": SlowLoss.apply(loss) if slow == "backward" else loss}

    loop = Loop(
        nn.Linear(3, 1), step, DataLoader(Samples(slow == "data"), 2), valid, device="cpu",
        hooks=hooks,
        optim=lambda parameters: (SlowSGD
                                  if slow == "optimizer" else torch.optim.SGD)(parameters, lr=1e-4),
                                  **settings,
    )  # fmt: skip
    loop.watch_hooks()
    return loop


def times(loop):
    """What the view tells: steps, and the share of each part; no part is negative."""
    found = LocalRunView(loop).step_times
    assert set(found.seconds) == set(PARTS) and min(found.seconds.values()) > -1e-6
    total = sum(found.seconds.values())
    return found.steps, {part: seconds / total for part, seconds in found.seconds.items()}


# ---- the part that is slow


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("part", ["data", "forward", "backward", "optimizer"])
def test_the_slow_part_is_told(part, accumulation):
    """Nearly all of it, in every part but hooks and rest."""
    loop = make(slow=part, gradient_accumulation_steps=accumulation)
    loop.fit(epochs=2)
    steps, shares = times(loop)
    assert steps == 24 // accumulation - 1  # the first one is never typical
    assert shares[part] > 0.99, shares


def with_two_optimizers(*hooks):
    """As make(), with a second optimizer that steps first."""
    model = nn.ModuleDict({name: nn.Linear(3, 1) for name in ("first", "second")})
    steps = {name: (
        lambda batch, trainer, name=name: {"loss": trainer.model[name](batch[0]).square().mean()})
        for name in model}
    loop = Loop(model, steps, DataLoader(Samples(), batch_size=2),
                optim={name: torch.optim.SGD(part.parameters(), lr=0.01)
                       for name, part in model.items()},
                hooks=list(hooks))
    loop.watch_hooks()
    return loop


@pytest.mark.parametrize("point", IN_A_STEP)
def test_a_slow_hook_is_told(point):
    """At every point within a step, as hooks and as itself, and in no other part."""
    slow, quick = (LambdaHook(**{point: nap}),
                   LambdaHook(name="quick", **{point: lambda trainer, *name: None}))
    loop = with_two_optimizers(slow, quick) if "optimizer" in point else make(slow, quick)
    if point == "after_pred":
        loop.train_step, plain = ((lambda b, t: (t.after_pred(b[0]), plain(b, t))[1]),
                                  loop.train_step)
    loop.fit(epochs=3)
    _, shares = times(loop)
    assert shares["hooks"] > 0.99, shares
    rows = {row.name: row for row in loop.hooks.rows}
    assert rows["lambda"].calls == rows["quick"].calls == 36
    assert rows["lambda"].seconds == pytest.approx(36 * NAP, rel=1e-3)
    assert rows["quick"].seconds < 1e-3


@pytest.mark.parametrize("point", ["before_epoch", "before_train", "after_train", "after_epoch"])
def test_a_slow_hook_between_two_epochs_is_told(point):
    """It keeps the run from its steps."""
    loop = make(LambdaHook(**{point: lambda trainer: CLOCK.move(8 * NAP)}))
    loop.fit(epochs=4)
    assert times(loop)[1]["hooks"] > 0.99


def test_what_belongs_to_no_part_is_the_rest():
    """Time that is spent at the safe points."""
    loop = make()
    loop.at_safe_point = nap
    loop.fit(epochs=1)
    assert times(loop)[1]["rest"] > 0.99


@pytest.mark.parametrize("slow", ["data", "forward"])
@pytest.mark.parametrize("skip", [(1, 3, 5, 7, 9, 11), (2, 3, 6, 7, 10, 11)])
def test_batches_without_a_loss(slow, skip):
    """Waiting for a batch that is left out is waiting for data, too, and nothing is counted
    twice."""
    loop = make(slow=slow, skip=skip)
    loop.fit(epochs=3)
    steps, shares = times(loop)
    assert steps == 17
    assert shares[slow] > 0.99, shares


class Spoilt(Hook):
    """Makes the gradient of every second step no number."""

    def before_step(self, trainer):
        """Spoil it."""
        if trainer.step_state.batch_idx % 2:
            trainer.model.weight.grad.fill_(float("nan"))


def test_steps_that_are_left_out():
    """Under non_finite="skip" their batches were waited for all the same."""
    loop = make(Spoilt(), slow="data", non_finite="skip")
    loop.fit(epochs=3)
    assert loop.step_state.optimizer_step == 18
    assert times(loop)[1]["data"] > 0.99


# ---- what is not a step


def slow_evaluation():
    """A validation loader that takes longer than all of the training."""
    return DataLoader(Samples(slow=True), 4)


def test_an_evaluation_is_not_counted():
    """Neither its data nor its passes; the steps around it are."""
    loop = make(slow="optimizer", valid=slow_evaluation(), eval_every=3)
    loop.fit(max_steps=24)
    steps, shares = times(loop)
    assert shares["optimizer"] > 0.99, shares
    assert steps > 12


def test_an_evaluation_by_a_hook_is_not_counted():
    """Nor one that a hook makes between two steps."""
    def evaluate(trainer):
        if trainer.step_state.optimizer_step % 4 == 0:
            trainer.validate()

    loop = make(LambdaHook(after_step=evaluate), slow="optimizer", valid=slow_evaluation(),
                eval_every=100)
    loop.fit(max_steps=22)
    assert times(loop)[1]["optimizer"] > 0.99


def longer(loop):
    """What a pause takes: longer than all the steps together."""
    CLOCK.move(30)


PAUSES = {
    "held": lambda loop: None,
    "returned": lambda loop: (loop.fit(epochs=2), longer(loop)),
    "steps": lambda loop: (loop.step(4), longer(loop), loop.step(4), longer(loop)),
    "stopped": lambda loop: (loop.step(4), loop.stop(), longer(loop)),
    "failed": lambda loop: (fail(loop), longer(loop)),
}


def fail(loop):
    """A drive that ends with an exception."""
    loop.hooks.add(at_step(6, lambda trainer: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        loop.fit(epochs=2)


@pytest.mark.parametrize("pause", PAUSES)
def test_a_pause_is_not_counted(pause):
    """Held in the background, or returned to the cell, however the drive ended there."""
    hooks = [at_step(3, lambda trainer: trainer.pause())] if pause in ("held", "returned") else []
    loop = make(*hooks, slow="optimizer")
    if pause == "held":
        loop.start(epochs=2)
        wait_for(lambda: loop.state == "paused")
        longer(loop)
        loop.resume()
        loop.wait()
    else:
        PAUSES[pause](loop)
        loop.fit(epochs=2)
    steps, shares = times(loop)
    assert steps >= 20
    assert shares["optimizer"] > 0.99, shares


# ---- hooks


class Outer(Hook):
    """A hook that makes another one work."""

    def after_step(self, trainer):
        """Give something out."""
        trainer.log({"some/thing": 1.0})


class Inner(Hook):
    """A slow listener."""

    def on_log(self, trainer, records):
        """Late."""
        nap()


def test_a_hook_within_a_hook_is_counted_once():
    """Each row tells its own time, without that of the hook it made run;
    together they are those of all hooks."""
    loop = make(Outer(), Inner())
    loop.fit(epochs=1)
    outer, inner = loop.hooks.rows
    assert (outer.calls, inner.calls) == (12, 12)
    assert inner.seconds == pytest.approx(12 * NAP, rel=1e-3) and outer.seconds < 1e-3
    clock = loop.hooks.clock
    assert outer.seconds + inner.seconds == pytest.approx(clock.hooks)
    assert outer.in_steps + inner.in_steps == pytest.approx(clock.seconds["hooks"])
    assert times(loop)[1]["hooks"] > 0.99


def test_a_hook_that_fails_is_counted():
    """Its call and its time; the clock goes on in the next drive."""
    loop = make(LambdaHook(after_step=nap), at_step(4, lambda trainer: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        loop.fit(epochs=1)
    assert [row.calls for row in loop.hooks.rows] == [4, 4]
    loop.fit(epochs=1)
    assert [row.calls for row in loop.hooks.rows] == [12, 12]
    assert loop.hooks.clock.depth == 0 and times(loop)[1]["hooks"] > 0.99


def test_off_again_costs_nothing():
    """The hooks' tuples hold the plain methods, no clock is among them;
    what was counted stays."""
    hook = Outer()
    loop = make(hook)
    loop.step(4)
    timed = loop.hooks.after_step
    assert len(timed) == 2 and all(method != hook.after_step for _, method in timed)
    loop.watch_hooks(False)
    loop.step(1)
    assert [method for _, method in loop.hooks.after_step] == [hook.after_step]
    assert not any(getattr(loop.hooks, p) for p in IN_A_STEP if p != "after_step")
    assert LocalRunView(loop).step_times.steps == 3
    calls = loop.hooks.rows[0].calls
    loop.step(1)
    assert loop.hooks.rows[0].calls == calls


def test_on_again_goes_on_counting():
    """Switched on twice it goes on as well."""
    loop = make()
    loop.step(4)
    loop.watch_hooks(False)
    loop.step(2)
    loop.watch_hooks()
    assert LocalRunView(loop).step_times.steps == 3
    loop.step(3)
    loop.watch_hooks()
    loop.step(2)
    assert LocalRunView(loop).step_times.steps == 3 + 4
    assert "those of 7 steps." in loop.describe_hooks()
    assert LocalRunView(make()).step_times is None


def test_by_a_command_in_a_running_run():
    """From another thread; the numbers can be read at any time and stand still in a pause."""
    loop = make(slow="forward")
    loop.watch_hooks(False)
    loop.start(epochs=10**9)
    assert loop.post(Command("watch", {"on": True}, source="widget")).wait(120).status == "applied"
    wait_for(lambda: (LocalRunView(loop).step_times or loop.hooks.clock).steps > 4)
    loop.pause().wait(120)
    wait_for(lambda: loop.state == "paused")
    steps, shares = times(loop)
    assert shares["forward"] > 0.99 and times(loop) == (steps, shares)
    assert loop.post(Command("watch", {"on": False})).wait(120).status == "applied"
    loop.stop()
    loop.wait()


def test_a_copy_is_told():
    """What the view gave does not change as the run goes on."""
    loop = make()
    loop.step(4)
    found = LocalRunView(loop).step_times
    kept = (found.steps, dict(found.seconds))
    loop.step(4)
    assert (found.steps, found.seconds) == kept


def test_watched_or_not_the_run_is_the_same():
    """The clock changes no bit."""
    loop = make_loop()
    loop.watch_hooks()
    loop.fit(epochs=2)
    assert LocalRunView(loop).step_times.steps == 5
    assert_same(loop, straight(epochs=2))


# ---- a long run


def test_each_call_of_a_long_run_is_counted():
    """Of a hook that is there from the start, of one that joins late, and in evaluations."""
    early, late = (LambdaHook(name=name, after_step=lambda trainer: CLOCK.move(0.001))
                   for name in ("early", "late"))
    loop = make(early, valid=DataLoader(Samples(), 2))
    loop.step(180)
    loop.hooks.add(late)
    loop.step(120)
    first, second = loop.hooks.rows
    assert (first.calls, second.calls) == (300, 120)
    assert (first.seconds, second.seconds) == pytest.approx((0.3, 0.12), rel=0.01)


def test_calls_are_never_more_than_steps():
    """Drawn in the middle of each step."""
    seen = []

    class Look(Hook):
        def before_step(self, trainer):
            row = next(row for row in LocalRunView(trainer).hooks if row.name == "lambda")
            seen.append((trainer.step_state.optimizer_step, row.calls))

    loop = make(LambdaHook(after_step=lambda trainer: None), Look())
    loop.fit(epochs=20)
    assert len(seen) == 240 and all(calls == steps for steps, calls in seen)
    assert "| 240 |" in loop.describe_hooks()


@pytest.mark.slow
def test_the_shares_of_hooks_add_up_to_the_bar():
    """In a long run with evaluations, epochs, and a hook within a hook:
    own times in steps make up the part of all hooks."""
    hooks = [Outer(),
             LambdaHook(name="inner", on_log=lambda trainer, records: CLOCK.move(0.001),
                        after_epoch=nap, after_loss=lambda trainer: None)]
    loop = make(*hooks, valid=DataLoader(Samples(), 6))
    loop.fit(epochs=60)
    found = LocalRunView(loop).step_times
    assert sum(row.in_steps
               for row in loop.hooks.rows) == pytest.approx(found.seconds["hooks"], rel=1e-6)
    assert loop.hooks.rows[0].in_steps < 0.02 * loop.hooks.rows[1].in_steps
