"""Schedules by name, whose length comes from the run;
what is to come, for every scheduler of torch's."""

import copy
import math
import random
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import small_runs
import torch
from torch import nn
from torch.optim import lr_scheduler as torch_sched
from torch.optim.lr_scheduler import LinearLR, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR
from trainer_nb import ReplayHook, SchedulerHook, SnapshotHook, Trainer
from trainer_nb.support.saved import plain_copy
from trainer_nb.support.words import some_of
from trainer_nb.hooks.schedule import SCHEDULES, foresee, steps_of

NAMES = list(SCHEDULES)


def data(batches=5):
    """Batches of 4."""
    made = torch.Generator().manual_seed(7)
    return [(torch.randn(4, 3, generator=made), torch.randn(4, 1, generator=made))
            for _ in range(batches)]


def make(sched=None, seed=0, batches=5, optim=None, **settings):
    """A run of n batches an epoch."""
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    optim = optim or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    settings = {"train_dl": data(batches), "progress": False} | settings
    return Trainer(model, loss_fn=nn.MSELoss(), sched=sched, optim=optim, device="cpu", **settings)


def weights(trainer):
    """And the optimizer's groups."""
    return ([p.detach().clone() for p in trainer.model.parameters()],
            plain_copy(trainer.optim.state_dict()))


def assert_same(a, b):
    """Weights, groups and rates, bit for bit."""
    assert all(torch.equal(x, y) for x, y in zip(weights(a)[0], weights(b)[0]))
    assert a.history["lr"].tolist() == b.history["lr"].tolist()
    assert [{k: v for k, v in g.items() if k != "params"} for g in a.optim.param_groups] == [
        {k: v for k, v in g.items() if k != "params"} for g in b.optim.param_groups]


def rates(name, total, peak=1.0, **settings):
    """The whole plan."""
    optim = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=peak)
    return foresee(SCHEDULES[name](optim, total, **settings), list(range(total)))


# ---- the forms
@pytest.mark.parametrize("optim",
                         [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
                          lambda p: torch.optim.AdamW(p, lr=0.1),
                          lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1))])
def test_one_cycle_is_torchs(optim):
    """Rates and momentum, with the highest rate that of the optimizer."""
    peak = 0.1 if not isinstance(optim([nn.Parameter(torch.ones(1))]).param_groups[0]["lr"],
                                 torch.Tensor) else torch.tensor(0.1).item()
    a = make("one_cycle", epochs=4, optim=optim)
    b = make(lambda o: torch_sched.OneCycleLR(o, peak, total_steps=20), epochs=4, optim=optim)
    a.fit()
    b.fit()
    assert_same(a, b)
    assert max(a.history["lr"]) == pytest.approx(0.1) and a.history["lr"][-1] < 1e-5


def test_one_cycle_gives_no_momentum_to_an_optimizer_without():
    """torch's own would set 0.85 to 0.95."""
    trainer = make("one_cycle", epochs=2, optim=lambda p: torch.optim.SGD(p, lr=0.1))
    trainer.fit()
    assert trainer.optim.param_groups[0]["momentum"] == 0
    made = make(SchedulerHook("one_cycle", cycle_momentum=True, pct_start=0.5), epochs=2,
                optim=lambda p: torch.optim.SGD(p, lr=0.1))
    made.fit()
    assert made.optim.param_groups[0]["momentum"] > 0.85 and np.argmax(made.history["lr"]) == 4


def test_cosine_and_its_warm_up():
    """Up in n steps, half a cosine down to where the run ends."""
    found = rates("cosine", 100, warmup=10)
    assert found[:11] == pytest.approx([(k + 1) / 11 for k in range(11)])
    assert found[10:] == pytest.approx([0.5 * (1 + math.cos(math.pi * k / 90)) for k in range(90)])
    assert rates("cosine", 100, warmup=0.1) == found and rates("cosine", 50, warmup=0)[0] == 1.0
    assert rates("cosine", 100, final=0.1)[-1] == pytest.approx(0.1, abs=1e-3)
    assert min(rates("cosine", 100, warmup=0, final=0.1)) >= 0.1


def test_warm_up_stable_decay():
    """Level between, and 1 - sqrt at the end."""
    found = rates("warmup_stable_decay", 100, warmup=5, decay=20)
    assert found[4] < 1 and found[5:81] == [1.0] * 76
    assert found[80:] == pytest.approx([1 - math.sqrt(k / 20) for k in range(20)])
    assert rates("warmup_stable_decay", 100, warmup=0.05,
                 decay=0.2) == found == rates("warmup_stable_decay", 100)
    assert rates("warmup_stable_decay", 100, final=0.5)[-1] > 0.5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("total", [1, 2, 3, 7, 1000])
def test_any_length(name, total):
    """Positive, never above the highest rate, which all but the shortest reach nearly."""
    found = rates(name, total, peak=0.3)
    assert len(found) == total and all(0 < rate <= 0.3 * (1 + 1e-9) for rate in found)
    assert total < 3 or max(found) > 0.29 or name == "one_cycle"


@pytest.mark.parametrize("wrong", [-1, 1.5, "10", True, None])
def test_a_length_that_is_none(wrong):
    """A share or steps, nothing else; said when the trainer is built."""
    with pytest.raises(ValueError,
                       match="a share of the run between 0.0 and 1.0, or a whole number of steps"):
        steps_of("warmup", wrong, 100)
    with pytest.raises(ValueError, match="warmup="):
        make(SchedulerHook("cosine", warmup=wrong), epochs=2)


@pytest.mark.parametrize(("sched", "error", "words"), [
    ("onecycle", ValueError, "sched='onecycle': did you mean 'one_cycle'?"),
    ("linear", ValueError,
     "there are 'one_cycle', 'cosine', 'warmup_stable_decay', or give a scheduler of torch's"),
    (3, TypeError, "3 is not a scheduler"),
    (lambda optim: 5, TypeError, "gave int, which is not a scheduler"),
    (lambda optim, total_steps: None, TypeError, "gave NoneType, which is not a scheduler"),
])
def test_what_is_no_schedule(sched, error, words):
    """At once, with the nearest right thing."""
    with pytest.raises(error) as raised:
        make(sched, epochs=2)
    assert words in str(raised.value)


def test_settings_that_do_not_fit():
    """An unknown one, one for a scheduler that is built, an unknown unit."""
    with pytest.raises(TypeError, match="warm"):
        make(SchedulerHook("cosine", warm=3), epochs=2)
    optim = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    with pytest.raises(TypeError, match="settings are for schedules by name, this is a StepLR"):
        SchedulerHook(torch_sched.StepLR(optim, 1), warmup=3)
    with pytest.raises(ValueError, match="every='batch'"):
        SchedulerHook("cosine", every="batch")
    with pytest.raises(ValueError, match="goes by the length of the run: every='step' or 'epoch'"):
        make(SchedulerHook("cosine", every="evaluation"), epochs=2)


# ---- the length of the run
@pytest.mark.parametrize("settings",
                         [{"epochs": 4}, {"max_steps": 20},
                          {"epochs": 8, "gradient_accumulation_steps": 2, "batches": 5},
                          {"epochs": 10, "limit_batches": 2}])
def test_the_length_is_the_runs(settings):
    """Whatever it is counted in."""
    trainer = make("cosine", **settings)
    planned = trainer.planned_steps
    assert trainer.sched is not None
    trainer.fit()
    assert trainer.history["lr"].tolist() == pytest.approx(rates("cosine", planned, peak=0.1))


def test_a_length_that_fit_gives():
    """Until then there is no scheduler; one that was given to the trainer is replaced before the
    first step."""
    trainer = make("one_cycle")
    assert trainer.sched is None and trainer.rate == 0.1
    trainer.fit(max_steps=12)
    other = make("one_cycle", epochs=50)
    other.fit(max_steps=12)
    assert_same(trainer, other)
    assert trainer.history["lr"].tolist() == pytest.approx(rates("one_cycle", 12, peak=0.1))


def test_a_run_without_a_length_is_refused():
    """With what to give; max_steps is enough."""
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(data(3))
    stream = torch.utils.data.DataLoader(Stream(), batch_size=None)
    with pytest.raises(ValueError,
                       match="sched=cosine goes to the end of the run.*give max_steps="):
        make("cosine", epochs=2, train_dl=stream).fit()
    trainer = make("cosine", max_steps=6, train_dl=stream)
    trainer.fit()
    assert trainer.history["lr"].tolist() == pytest.approx(rates("cosine", 6, peak=0.1))


def test_by_the_epoch_and_in_the_list_of_hooks():
    """A tick an epoch, of as many as there are."""
    trainer = make(None, epochs=4, hooks=[SchedulerHook("cosine", every="epoch", warmup=0)])
    trainer.fit()
    assert trainer.history[
        "lr"].tolist() == pytest.approx([rate for rate in rates("cosine", 4, peak=0.1, warmup=0)
                                         for _ in range(5)])
    with pytest.raises(ValueError, match="that is not known"):
        make(SchedulerHook("cosine", every="epoch"), max_steps=4).fit()


def test_a_function_of_ones_own_that_takes_the_length():
    """And one that does not is called as ever."""
    trainer = make(
        lambda optim, total_steps: torch_sched.PolynomialLR(optim, total_iters=total_steps),
        epochs=2)
    trainer.fit()
    assert trainer.history["lr"].tolist() == pytest.approx([0.1 * (1 - k / 10) for k in range(10)])
    trainer = make(lambda optim, total_steps=3: torch_sched.StepLR(optim, total_steps), epochs=2)
    trainer.fit()
    assert trainer.sched.step_size == 3


def test_a_scheduler_that_ends_before_the_run_is_refused():
    """torch's own would raise in the middle of it."""
    sched = lambda o: torch_sched.OneCycleLR(o, 0.1, total_steps=9)  # noqa: E731
    trainer = make(sched, epochs=2)
    with pytest.raises(ValueError,
                       match="ends after 9 steps and the run takes 10: sched='one_cycle'"):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 0
    assert make(sched, max_steps=9).fit().steps == 9


# ---- another length, in the middle of it
WSD = {"warmup": 3, "decay": 4}

@pytest.mark.parametrize("at", [4, 9, 15, 20])
@pytest.mark.parametrize("sched", NAMES)
def test_an_extended_run_goes_on_as_the_longer_one(sched, at):
    """From where it stands it has the longer run's rates;
    where those before were others, it says so."""
    trainer, longer = make(sched, epochs=4), make(sched, epochs=7)
    longer.fit()
    trainer.step(at)
    with pytest.warns(UserWarning,
                      match=f"the schedule {sched} now goes to 35 steps, and was made for 20: the "
                            f"{at} made so far"):
        trainer.fit(epochs=7)
    assert trainer.history["lr"].tolist()[at:] == longer.history["lr"].tolist()[at:]


@pytest.mark.parametrize("at", [1, 10, 16])
def test_an_extended_run_is_the_longer_one_where_the_schedule_allows(at):
    """Before the decay begins nothing tells how long the run will be; nothing is said."""
    trainer, longer = (make(SchedulerHook("warmup_stable_decay", **WSD), epochs=n) for n in (4, 7))
    longer.fit()
    trainer.step(at)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit(epochs=7)
    assert_same(trainer, longer)


def test_one_step_into_the_decay_it_is_not():
    """The warning comes with the first step that would have been another."""
    trainer = make(SchedulerHook("warmup_stable_decay", **WSD), epochs=4)
    trainer.step(18)
    with pytest.warns(UserWarning, match="the 18 made so far had other rates"):
        trainer.fit(epochs=7)


def test_another_accumulation_is_another_length():
    """Seven steps of one batch, then windows of two: the schedule ends where the run ends."""
    trainer = make("cosine", epochs=4, batches=6)
    trainer.step(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.tune(gradient_accumulation_steps=2)
    assert trainer.planned_steps == 16
    trainer.fit()
    found = trainer.history["lr"].tolist()
    assert found[:8] == pytest.approx(rates("cosine", 24, peak=0.1)[:8])
    assert found[8:] == pytest.approx(rates("cosine", 16, peak=0.1)[8:])


@pytest.mark.matrix
@pytest.mark.parametrize("sched", [*NAMES, "own"])
@pytest.mark.parametrize("k", [0, 1, 6, 13, 19])
def test_going_on_in_another_trainer(sched, k):
    """Built with another rate, by a trainer that knew no length; the same run."""
    given = ((lambda optim, total_steps: torch_sched.CosineAnnealingLR(optim, total_steps))
             if sched == "own" else sched)
    straight, first = make(given, epochs=4), make(given, epochs=4)
    straight.fit()
    first.step(k) if k else None
    state = plain_copy(first.state_dict())
    for second in (make(given, seed=5, epochs=4,
                        optim=lambda p: torch.optim.SGD(p, lr=3.0, momentum=0.1)),
                        make(given, seed=5)):
        second.load_state_dict(state)
        second.fit(epochs=4)
        assert_same(second, straight)


@pytest.mark.parametrize("k", [3, 12])
def test_going_on_to_a_longer_run(k):
    """A state of 4 epochs resumed by a trainer of 7: as if the first had been extended."""
    first, extended = make("one_cycle", epochs=4), make("one_cycle", epochs=4)
    first.step(k)
    extended.step(k)
    second = make("one_cycle", seed=3, epochs=7)
    with pytest.warns(UserWarning, match="was made for 20"):
        second.load_state_dict(plain_copy(first.state_dict()))
    second.fit()
    with pytest.warns(UserWarning, match="was made for 20"):
        extended.fit(epochs=7)
    assert_same(second, extended)


def test_a_rewind_behind_the_extension():
    """The longer schedule holds from there on, twice the same;
    and a script makes the surviving run."""
    def steered():
        trainer = make("cosine", epochs=4, hooks=[SnapshotHook(every_steps=5)])
        trainer.fit()
        with pytest.warns(UserWarning, match="now goes to 30"):
            trainer.fit(epochs=6)
        with pytest.warns(UserWarning, match="now goes to 30"):
            trainer.rewind(10)
            trainer.fit()
        return trainer
    a, b = steered(), steered()
    assert_same(a, b)
    assert a.history["lr"].tolist()[10:] == pytest.approx(rates("cosine", 30, peak=0.1)[10:])


def test_an_extension_is_replayed():
    """The totals of the journal come at their place."""
    trainer = make("one_cycle", epochs=3)
    trainer.step(8)
    trainer.tune(lr_scale=0.5)
    with pytest.warns(UserWarning):
        trainer.fit(epochs=5)
    again = make("one_cycle", epochs=5, hooks=[ReplayHook(trainer.journal)])
    with pytest.warns(UserWarning):
        again.fit()
    assert_same(again, trainer)


def test_skipped_steps_are_no_other_length():
    """fp16 skips steps, the schedule stays what it was built for: with a halt and without."""
    def run(halt):
        trainer = make("cosine", epochs=4, mixed_precision="fp16")
        trainer.engine.scaling.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        if halt:
            trainer.step(2)
            trainer.stop()
        trainer.fit()
        return trainer
    a, b = run(False), run(True)
    assert a.skipped_steps > 0
    assert_same(a, b)
    assert a.history[
        "lr"].tolist() == pytest.approx(rates("cosine", 20, peak=0.1)[:len(a.history["lr"])])


# ---- what is to come
TORCHS = {
    "step": lambda o: torch_sched.StepLR(o, 3),
    "multi": lambda o: torch_sched.MultiStepLR(o, [3, 7]),
    "constant": lambda o: torch_sched.ConstantLR(o),
    "linear": lambda o: torch_sched.LinearLR(o, total_iters=8),
    "exponential": lambda o: torch_sched.ExponentialLR(o, 0.9),
    "polynomial": lambda o: torch_sched.PolynomialLR(o, 10),
    "cosine": lambda o: torch_sched.CosineAnnealingLR(o, 10),
    "lambda": lambda o: torch_sched.LambdaLR(o, lambda k: 0.9**k),
    "multiplicative": lambda o: torch_sched.MultiplicativeLR(o, lambda k: 0.9),
    "cyclic": lambda o: torch_sched.CyclicLR(o, 0.01, 0.1, 4),
    "cyclic, own form": lambda o: torch_sched.CyclicLR(o, 0.01, 0.1, 4, scale_fn=lambda x: 0.5,
                                                       scale_mode="cycle"),
    "one cycle": lambda o: torch_sched.OneCycleLR(o, 0.1, 30),
    "restarts": lambda o: torch_sched.CosineAnnealingWarmRestarts(o, 4),
    "sequential": lambda o: torch_sched.SequentialLR(o,
                                                     [torch_sched.LinearLR(o, total_iters=4),
                                                      torch_sched.CosineAnnealingLR(o, 10)], [4]),
    "chained": lambda o: torch_sched.ChainedScheduler([torch_sched.LinearLR(o, total_iters=4),
                                                       torch_sched.ExponentialLR(o, 0.9)]),
    "swa": lambda o: SWALR(o, 0.05, 5),
}

@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("name", TORCHS)
def test_foreseen_rates_are_those_that_come(name, tensor):
    """From the start and from within; the scheduler, the optimizer and the warnings are left
    alone."""
    rate = torch.tensor(0.1) if tensor else 0.1
    optim = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))]},
                             {"params": [nn.Parameter(torch.ones(2))], "lr": 0.3}], lr=rate,
                            momentum=0.9)
    sched = TORCHS[name](optim)
    counts = [0, 1, 2, 5, 9, 13]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for done in range(6):
            kept = copy.deepcopy((optim.state_dict(),
                                  {k: v for k, v in sched.state_dict().items()
                                   if k != "_schedulers"}))
            found = foresee(sched, counts)
            assert repr(kept) == repr((optim.state_dict(),
                                       {k: v for k, v in sched.state_dict().items()
                                        if k != "_schedulers"}))
            optim.step()
            if done < 5:
                sched.step()
        real = []
        for _ in range(14):
            real.append(float(optim.param_groups[0]["lr"]))
            sched.step()
    assert found == [real[count] for count in counts]


class Counting:
    """Counts its calls."""

    calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1 / (1 + 0.1 * self.calls)


class Drawn(torch_sched.LRScheduler):
    """A rate that is drawn."""

    def get_lr(self):
        return [0.1 + 0.01 * random.random() for _ in self.base_lrs]


def counting():
    """A function that counts its calls outside of itself."""
    calls = []

    def factor(step):
        calls.append(step)
        return 1 / (1 + 0.1 * len(calls))
    return factor


def counting_a_number():
    """The same, by an assignment."""
    count = 0

    def factor(step):
        nonlocal count
        count += 1
        return 1 / (1 + 0.1 * count)
    return factor


def counting_in_a_table(table):
    """The same, in a table."""
    def factor(step):
        table["calls"] += 1
        return 1 / (1 + 0.1 * table["calls"])
    return factor


def counting_itself(step):
    """The same, in an attribute of its own."""
    counting_itself.calls += 1
    return 1 / (1 + 0.1 * counting_itself.calls)


MADE_BY_FUNCTIONS = {
    "counts": lambda o: torch_sched.LambdaLR(o, counting()),
    "counts a number": lambda o: torch_sched.LambdaLR(o, counting_a_number()),
    "counts itself": lambda o: torch_sched.LambdaLR(o, counting_itself),
    "counts in a table": lambda o: torch_sched.LambdaLR(o, counting_in_a_table({"calls": 0})),
    "object counts": lambda o: torch_sched.LambdaLR(o, Counting()),
    "draws": lambda o: torch_sched.LambdaLR(o, lambda step: 1 + 0.1 * random.random()),
    "draws by NumPy": lambda o: torch_sched.MultiplicativeLR(
        o, lambda step: 1 + 0.1 * np.random.normal()),
    "within another": lambda o: torch_sched.SequentialLR(
        o, [torch_sched.ConstantLR(o, 0.5, 2), torch_sched.LambdaLR(o, counting())], [2]),
    "scale of a cycle": lambda o: torch_sched.CyclicLR(
        o, 0.01, 0.1, step_size_up=2, scale_fn=counting(), cycle_momentum=False),
    "class": Drawn}

@pytest.mark.parametrize("name", MADE_BY_FUNCTIONS)
def test_a_function_with_a_state_is_called_as_often_as_by_hand(name):
    """Nothing is computed ahead with it: rates and random numbers are those of the loop by hand."""
    def rates(by_hand):
        random.seed(0)
        np.random.seed(0)
        counting_itself.calls = 0
        model = nn.Linear(3, 1)
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        sched, found = MADE_BY_FUNCTIONS[name](optim), []
        if by_hand:
            for _ in range(15):
                found.append(optim.param_groups[0]["lr"])
                optim.step()
                sched.step()
            return found
        trainer = Trainer(model, train_dl=data(), loss_fn=nn.MSELoss(), optim=optim, sched=sched,
                          epochs=3, device="cpu", progress=False)
        plan = trainer.rate_plan
        trainer.fit()
        assert name == "object counts" or not len(plan.steps)  # an object is copied
        return trainer.history["lr"].tolist()
    assert rates(False) == rates(True)


def test_a_longer_run_is_told_of_where_its_rates_cannot_be_foreseen():
    """They may have been others: the function counts by itself, and goes by the total."""
    def made(optim, total_steps):
        calls = []

        def factor(step):
            calls.append(step)
            return max(0.0, 1 - len(calls) / total_steps)
        return torch_sched.LambdaLR(optim, factor)
    model = nn.Linear(3, 1)
    trainer = Trainer(model, train_dl=data(), loss_fn=nn.MSELoss(), sched=made, device="cpu",
                      optim=torch.optim.SGD(model.parameters(), lr=0.1), epochs=2, progress=False)
    trainer.fit()
    with pytest.warns(UserWarning, match="was made for 10"):
        trainer.fit(epochs=4)


def test_functions_of_the_step_alone_are_foreseen():
    """As those of Transformers, which are partials of functions of a module."""
    optim = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    def warm(step, *, steps):
        return min(1.0, step / steps) * math.cos(0.0) * np.sqrt(1.0)
    def falls(step):
        return 1.0 if step < 1 else rises(step - 1)
    def rises(step):
        return falls(step - 1)
    milestones, args = [3, 6], SimpleNamespace(warmup=3)
    milestones.append(milestones)  # one that holds itself is no plain list
    assert foresee(torch_sched.LambdaLR(optim, lambda k: milestones[0] / (k + 1)), [1]) is None
    milestones.pop()
    for function in (partial(warm, steps=4), lambda k: warm(k, steps=4), Counting(), falls,
                     lambda k: 0.1 ** sum(k >= each for each in milestones),
                     lambda k: min(1.0, (k + 1) / args.warmup)):
        assert foresee(torch_sched.LambdaLR(optim, function), [1]) is not None


def test_what_nobody_foresees():
    """A plateau waits for losses; too many ticks would take too long, where each must be made."""
    optim = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    assert foresee(torch_sched.ReduceLROnPlateau(optim), [0, 1]) is None
    assert foresee(torch_sched.ExponentialLR(optim, 0.9), [0, 20_001]) is None
    assert foresee(torch_sched.LambdaLR(optim, lambda k: 1 / (k + 1)),
                   [0, 3, 10**7]) == pytest.approx([1, 1 / 4, 1e-7])
    found = some_of(range(10**6), 400)
    assert some_of(range(3), 400) == [0, 1, 2] and found[-1] == 10**6 - 1 and len(found) == 400


@pytest.mark.parametrize("sched",
                         [*NAMES, TORCHS["step"], SchedulerHook("cosine", every="epoch", warmup=0)])
def test_the_plan_is_what_happens(sched):
    """At the start, in mid-epoch with windows of two, with a rate scaled and taken over, after an
    extension; nothing after the end."""
    trainer = make(sched, epochs=6, gradient_accumulation_steps=2)
    def look():
        plan = trainer.rate_plan
        return dict(zip(plan.steps.tolist(), plan.in_force.tolist()))
    def compare(seen, last):
        for step, rate in enumerate(trainer.history["lr"].tolist()[:last], 1):
            assert seen.get(step, rate) == pytest.approx(rate), step
    first = look()
    assert list(first) == list(range(1, 19))
    trainer.step(7)
    compare(first, 7)
    assert min(look()) == 1  # nothing was changed: it need not look again
    trainer.tune(lr_scale=0.5)
    scaled = look()
    assert list(scaled) == list(range(8, 19))
    assert trainer.rate_plan.scheduled.tolist() == pytest.approx([first[k] for k in range(8, 19)])
    trainer.step(3)
    trainer.tune(lr=0.02)
    assert set(look().values()) == {0.02}
    compare(scaled, 10)
    trainer.step(2)
    trainer.tune(lr=None, lr_scale=1.0)
    last = look()
    trainer.fit()
    compare(last, 18)
    assert all(last[k] == pytest.approx(first[k]) for k in last)
    trainer.note("look again").wait(120)
    assert len(trainer.rate_plan.steps) == 0


def test_the_plan_of_an_earlier_state():
    """Loaded into a trainer that was further on, with a journal of the same length."""
    trainer = make("cosine", epochs=4)
    trainer.step(3)
    state = plain_copy(trainer.state_dict())
    trainer.step(7)
    assert trainer.rate_plan.steps[0] == 11
    journal = len(trainer.journal)
    trainer.load_state_dict(state)
    while len(trainer.journal) < journal:
        trainer.note("as many entries")
    assert trainer.rate_plan.steps[0] == 4


def test_no_plan():
    """Without a schedule, with one that is off, or that waits for a metric."""
    assert make(None, epochs=2).rate_plan is None
    trainer = make("cosine", epochs=2)
    trainer.tune(**{"scheduler.enabled": False})
    assert trainer.rate_plan is None
    plateau = make(lambda o: torch_sched.ReduceLROnPlateau(o), epochs=2, valid_dl=data(1))
    assert len(plateau.rate_plan.steps) == 0


def test_the_panel_has_the_plan():
    """The rates to come, and those of the schedule alone."""
    trainer = make("cosine", epochs=4)
    plan = lambda: trainer.feed.whole("lr")["lr"].get("plan")
    assert plan()["steps"] == list(range(1, 21))  # before the first step
    trainer.step(5)
    trainer.tune(lr_scale=0.5)
    assert plan()["steps"] == list(range(6, 21))
    assert plan()["scheduled"] == [2 * rate for rate in plan()["in_force"]]
    assert "planned" in [trace.name for trace in trainer.history.plot().data]


def test_validate_by_hand_ticks_no_scheduler():
    """validate() between a step and its evaluation is none of the run's evaluations."""
    model = nn.Linear(2, 1)
    optim = torch.optim.SGD(model.parameters(), 0.01)
    plateau = ReduceLROnPlateau(optim, patience=0, factor=0.1, threshold=1e9, threshold_mode="abs")
    trainer = small_runs.make(model, optim=optim, sched=plateau, valid_dl=small_runs.BATCHES,
                              max_steps=10, eval_every=5)
    trainer.step(5)
    for _ in range(3):
        trainer.validate()
    assert plateau.last_epoch == 0 and optim.param_groups[0]["lr"] == 0.01
    trainer.fit()
    assert plateau.last_epoch == 2


def test_a_scheduler_class_is_a_callable():
    """LinearLR itself is called with the optimizer;
    a plateau without anything to watch is refused."""
    assert isinstance(small_runs.make(sched=LinearLR, epochs=1).sched, LinearLR)
    with pytest.raises(ValueError, match="no valid_dl"):
        small_runs.make(sched=lambda optim: ReduceLROnPlateau(optim), epochs=1).fit()


# ---- a rate that is written by hand

WRITTEN = [("cosine", {}), (lambda optim: torch_sched.StepLR(optim, 3), {}),
           (SchedulerHook(lambda optim: torch_sched.ExponentialLR(optim, 0.9), every="epoch"), {}),
           (lambda optim: ReduceLROnPlateau(optim), {"valid_dl": data(2)})]


@pytest.mark.parametrize(("sched", "more"), WRITTEN, ids=["name", "steps", "epochs", "plateau"])
def test_a_rate_written_into_the_optimizer_is_told_once(sched, more):
    """What it was, what the schedule makes of it, and what holds a rate instead."""
    trainer = make(copy.deepcopy(sched), epochs=4, **more)
    trainer.step(2)
    trainer.optim.param_groups[0]["lr"] = 0.5
    with pytest.warns(UserWarning) as found:
        trainer.step(10)
        trainer.optim.param_groups[0]["lr"] = 0.7
        trainer.fit()
    assert [str(each.message).partition(":")[0] for each in found] == [
        "the learning rate 0.5 was written into optim.param_groups"]
    assert "trainer.tune(lr=0.5)" in str(found[0].message)


def test_the_rate_that_is_told_is_that_of_the_group():
    """Of the second one, where the first one was left alone."""
    model = nn.Linear(3, 1)
    optim = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.02}],
                            lr=0.1)
    trainer = Trainer(model, train_dl=data(), loss_fn=nn.MSELoss(), device="cpu", optim=optim,
                      sched=torch_sched.StepLR(optim, 100, gamma=0.5), epochs=4, progress=False)
    trainer.step(2)
    optim.param_groups[1]["lr"] = 0.5
    with pytest.warns(UserWarning, match=r"rate 0\.5 was written.*at each step, 0\.5 now"):
        trainer.step(1)


def test_the_rate_that_is_told_is_the_one_of_the_next_step():
    trainer, other = make("cosine", epochs=4), make("cosine", epochs=4)
    trainer.step(2), other.step(3)
    trainer.optim.param_groups[0]["lr"] = 0.5
    now = other.rates()[0]
    with pytest.warns(UserWarning, match=f"cosine writes there at each step, {now:.3g} now"):
        trainer.step(1)
    assert trainer.rates() == [now] and 0.09 < now < 0.1


@pytest.mark.parametrize("sched", [*NAMES, *(each for each, _ in WRITTEN[1:3])])
def test_a_schedule_that_nobody_disturbs_is_not_told(sched, tmp_path):
    """Tuned, rewound, saved and loaded, accumulated, and with a parameter group that was added."""
    made = lambda: make(copy.deepcopy(sched), epochs=4, gradient_accumulation_steps=2,
                        hooks=[SnapshotHook(every_steps=1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer = made()
        trainer.step(3)
        trainer.tune(lr=0.01)
        trainer.step(2)
        trainer.tune(lr=None, lr_scale=0.5)
        trainer.rewind(3)
        trainer.step(2)
        trainer.save(tmp_path / "run.pt")
        other = made()
        other.load(tmp_path / "run.pt")
        other.step(1)
        other.optim.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.2})
        other.fit()
    assert other.step_state.epoch == 4


OF_OPTIMIZER = {
    "cosine": lambda o: torch_sched.CosineAnnealingLR(o, 20),
    "lambda": lambda o: torch_sched.LambdaLR(o, lambda n: 1 / (2 + n)),
    "one cycle": lambda o: torch_sched.OneCycleLR(o, [0.1, 0.01], total_steps=20),
    "two": lambda o: torch_sched.SequentialLR(
        o, [LinearLR(o, 0.1, total_iters=3), torch_sched.ExponentialLR(o, 0.8)], [3]),
    "restarts": lambda o: torch_sched.CosineAnnealingWarmRestarts(o, 3, 2)}


@pytest.mark.parametrize("place", ["hooks", "add"])
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("kind", OF_OPTIMIZER)
def test_a_state_that_comes_before_its_scheduler_is_made(kind, rate, place):
    """That of a hook among the others: it is made by the first drive."""
    def run():
        def optim(parameters):
            weight, bias = parameters
            return torch.optim.AdamW([{"params": [weight]}, {"params": [bias], "lr": 0.1 * rate}],
                                     lr=rate.clone() if torch.is_tensor(rate) else rate)
        hook = SchedulerHook(OF_OPTIMIZER[kind])
        trainer = make(optim=optim, epochs=4, hooks=[hook] if place == "hooks" else [])
        if place == "add":
            trainer.hooks.add(hook)
        return trainer
    straight, first, again = run(), run(), run()
    straight.fit()
    first.step(7)
    again.load_state_dict(first.state_dict())
    assert_same(again, first)
    again.fit()
    assert len(set(straight.history["lr"])) > 4
    assert_same(again, straight)
    assert again.exact
