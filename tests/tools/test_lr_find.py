"""The search for a rate: it leaves no trace, it is the run's own step, and it says clearly what it
found."""

import copy
import math
import random
import signal
import threading

import numpy as np
import pytest
import torch
from jupyter_server import LIMIT
from live_page import later
from lr_runs import LOADERS, Counts, X, Y, make, plain, whole
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import Hook, SnapshotHook, Trainer, Tunable
from trainer_nb.core.control import Command
from trainer_nb.core.state import TURNS, RunState
from trainer_nb.tools.searches import rate_change
from trainer_nb.tools.sweep import Sweep
from trainer_nb.tools.lr_find import (SUGGESTIONS, LRFind, lr_figure, lr_still, rates, slide,
                                      steepest, valley)


def end(trainer):
    """The rest of the run, and what it came to."""
    trainer.fit()
    return {**plain(trainer.model.state_dict()),
            **{n: plain(trainer.history[n]) for n in ("train/loss", "lr", "valid/loss")}}


PLACES = (0, 1, 7, 12, 17, 36)  # at the beginning, in an epoch, between two and after the end
SHORT = (7, 36)


@pytest.mark.matrix
@pytest.mark.parametrize("loader, at", [
    pytest.param(loader, at, marks=[
        *([pytest.mark.slow] if at not in SHORT or "workers" in loader or "persistent" in loader
          else []),
        *([pytest.mark.long] if at not in SHORT and loader != "shuffled" else [])])
    for loader in LOADERS for at in PLACES])
def test_it_leaves_no_trace(loader, at):
    """At the beginning, in mid-epoch, between epochs and after the end;
    and the run goes on as one that never searched."""
    straight, trainer = make(loader=loader), make(loader=loader)
    if at:
        straight.step(at)
        trainer.step(at)
    before = whole(trainer)
    found = trainer.lr_find(num_steps=30)
    assert len(found.lrs) >= 5
    assert whole(trainer) == before
    assert end(trainer) == end(straight)
    for each in (straight, trainer):
        each.close()


SETTINGS = {
    "sgd": {"optim": "sgd"}, "groups": {"optim": "groups"},
    "accumulation": {"gradient_accumulation_steps": 5},
    "clip and norm": {"grad_clip": 0.1}, "bf16": {"mixed_precision": "bf16"},
    "skip": {"non_finite": "skip"}, "ema": {"ema": 0.9},
    "chunks": {"micro_batch_size": 3},
    "schedule": {"sched": lambda optim: torch.optim.lr_scheduler.OneCycleLR(optim, 0.1, 36)},
    "limited": {"limit_batches": 5}, "overfit": {"overfit_batches": 3},
    "seeded": {"seed_samples": True}, "no seed": {"seed": None}}


@pytest.mark.slow
@pytest.mark.parametrize("settings", list(SETTINGS))
@pytest.mark.parametrize("at", [pytest.param(0, marks=pytest.mark.long), 3])
def test_it_leaves_no_trace_whatever_the_step_is(settings, at):
    """With the run's own accumulation, precision, clipping, hooks, schedule, average."""
    first, second = (make(Counts(), SnapshotHook(), **SETTINGS[settings]) for _ in range(2))
    trainers = first, second
    outcomes = []
    for searching, trainer in enumerate(trainers):
        torch.manual_seed(9)
        if at:
            trainer.step(at)
        if searching:
            before = whole(trainer)
            trainer.lr_find(num_steps=20)
            assert whole(trainer) == before
        outcomes.append(end(trainer))
    assert outcomes[0] == outcomes[1]


class Failing(Hook):
    """Ends the search in a way of its own, in its eighth batch."""

    def __init__(self, way):
        self.way, self.on, self.count = way, False, 0

    def before_step(self, trainer):
        if not self.on:
            return
        self.count += 1
        if self.count == 8:
            if self.way == "error":
                raise ValueError("in the step")
            if self.way == "interrupt":
                signal.raise_signal(signal.SIGINT)
            if self.way == "cancel":
                trainer.sweeping.cancel()
            if self.way == "nan":
                next(trainer.model.parameters()).grad.fill_(math.nan)


@pytest.mark.parametrize("at", [0, 5])
@pytest.mark.parametrize("way", ["error", "interrupt", "cancel", "nan"])
def test_it_leaves_no_trace_however_it_ends(way, at):
    """An error in the step, Ctrl-C, a cancel, losses that are not finite."""
    failing = Failing(way)
    straight, trainer = make(Failing("")), make(failing)
    if at:
        straight.step(at)
        trainer.step(at)
    before = whole(trainer)
    failing.on = True
    if way in ("error", "interrupt"):
        with pytest.raises({"error": ValueError, "interrupt": KeyboardInterrupt}[way]):
            trainer.lr_find()
        found = trainer.lr_search
    else:
        found = trainer.lr_find()
    failing.on = False
    assert whole(trainer) == before
    ended = {"error": "failed", "interrupt": "cancelled", "cancel": "cancelled", "nan": "diverged"}
    assert found.sweep.ended == ended[way] and len(found.lrs) <= 9
    if way != "nan":
        assert found.suggestion is None and ended[way] in found.note
    assert trainer.state is (RunState.PAUSED if at else RunState.IDLE)
    assert end(trainer) == end(straight)


def test_overfit_batches_are_those_of_the_run():
    """The search trains on the very batches that the run repeats."""
    trainer = make(overfit_batches=2)
    trainer.step(4)
    seen = []
    trainer.hooks.add(type("See", (),
                           {"before_batch": lambda self, t: t.training
                            and seen.append(t.batch[0][0, 0].item())})())
    trainer.hooks.resolve()
    trainer.lr_find(num_steps=10, stop_factor=None)
    trainer.step(2)
    assert set(seen[:10]) == set(seen[10:]) and len(set(seen)) == 2


def test_a_search_in_a_pause_is_that_of_the_run():
    """Whatever others have drawn meanwhile: the same curve, from the run's own streams."""
    curves = []
    for noise in (0, 3):
        trainer = make(epochs=100)
        trainer.pause_when("step == 4")
        trainer.start()
        assert later(lambda: trainer.state is RunState.PAUSED)
        torch.randn(noise)
        curves.append(trainer.lr_find(num_steps=12, stop_factor=None).losses)
        trainer.stop()
        trainer.wait()
    assert curves[0] == curves[1]


def test_gradients_of_the_user_and_eval_modes_stay():
    """What was in `.grad` before, a frozen layer, a module in eval mode."""
    trainer = make()
    trainer.model.norm.eval()
    trainer.model.body.weight.requires_grad_(False)
    gradient = torch.ones_like(trainer.model.head.weight)
    trainer.model.head.weight.grad = gradient
    trainer.lr_find(num_steps=10)
    assert trainer.model.head.weight.grad is gradient and bool((gradient == 1).all())
    assert not trainer.model.norm.training and not trainer.model.body.weight.requires_grad


def test_it_is_the_curve_of_torch_lr_finder():
    """Same model, data and order: the same losses, one by one, and the same steepest rate."""
    from torch_lr_finder import LRFinder
    data = [(X[i % 96:i % 96 + 8], Y[i % 96:i % 96 + 8]) for i in range(0, 8 * 100, 8)]
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    other = copy.deepcopy(model)
    trainer = Trainer(model, train_dl=data, loss_fn=nn.MSELoss(),
                      optim=torch.optim.SGD(model.parameters(), lr=1e-5), epochs=1,
                      progress=False, device="cpu")
    found = trainer.lr_find(1e-5, 0.3, 100, smooth=0, stop_factor=None)
    finder = LRFinder(other, torch.optim.SGD(other.parameters(), lr=1e-5), nn.MSELoss(),
                      device="cpu")
    loader = DataLoader(TensorDataset(torch.cat([x for x, _ in data]),
                                      torch.cat([y for _, y in data])), 8)
    finder.range_test(loader, end_lr=0.3, num_iter=100, smooth_f=0, diverge_th=1e30)
    theirs = finder.history
    assert len(found.lrs) == len(theirs["lr"]) == 100
    assert found.lrs == pytest.approx(theirs["lr"], rel=1e-9)
    assert found.losses == theirs["loss"]  # to the last bit
    import matplotlib
    matplotlib.use("Agg")
    _, suggested = finder.plot(skip_start=len(found.lrs) // 10, skip_end=5, suggest_lr=True)
    assert found.suggestions["steepest"] == pytest.approx(suggested, rel=1e-9)


def test_the_steps_are_the_runs_own():
    """By hand: accumulation, clip, a hook that changes the batch, two groups in proportion, one
    window a rate."""
    class Double(Hook):
        def before_batch(self, trainer):
            trainer.batch = 2 * trainer.batch[0], trainer.batch[1]
    model = nn.Linear(6, 1)
    mine = copy.deepcopy(model)
    trainer = make(Double(), model=model, loader="list", optim=torch.optim.SGD(
        [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias], "lr": 0.05}]),
        gradient_accumulation_steps=5, grad_clip=0.3)
    found = trainer.lr_find(1e-3, 1e-1, 12, smooth=0, stop_factor=None)
    batches, losses = LOADERS["list"](), []
    at = 0
    for rate in rates(1e-3, 1e-1, 12):
        window = batches[at:at + 5]
        at = (at + 5) if at + 5 < 12 else 0  # the tail of an epoch is a window of its own
        parts = [nn.functional.mse_loss(mine(2 * x), y) for x, y in window]
        loss = sum(parts) / len(parts)
        losses.append(loss.item())
        mine.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(mine.parameters(), 0.3)
        with torch.no_grad():
            mine.weight -= rate * mine.weight.grad
            mine.bias -= rate / 10 * mine.bias.grad
    assert found.losses == pytest.approx(losses, rel=1e-5)


def test_judged_by_the_validation_data():
    """The loss after each step, on that loader; the training's own random stream is not touched."""
    plain_curve, judged = make(loader="list"), make(loader="list")
    first = plain_curve.lr_find(1e-4, 1e-2, 12, smooth=0)
    valid = DataLoader(TensorDataset(X[:32], Y[:32]), 32)
    second = judged.lr_find(1e-4, 1e-2, 12, smooth=0, valid_dl=valid)
    assert first.losses != second.losses and len(second.losses) == 12
    model = copy.deepcopy(judged.model).eval()
    assert abs(second.losses[0] - nn.functional.mse_loss(model(X[:32]), Y[:32]).item()) < 0.5


def test_hooks_of_the_screen_and_of_the_record_take_no_part():
    """No record, no checkpoint, no average, no schedule step; the hooks that make the step do."""
    calls = []
    class Watch(Hook):
        def before_fit(self, trainer): calls.append("before_fit")
        def before_epoch(self, trainer): calls.append("before_epoch")
        def after_step(self, trainer): calls.append("after_step")
        def on_log(self, trainer, records): calls.append("on_log")
        def after_loss(self, trainer): calls.append("after_loss")
    make(Watch(), ema=0.9).lr_find(num_steps=10, stop_factor=None)
    assert calls == ["after_loss"] * 10


def test_while_it_runs_from_another_thread_and_in_a_pause():
    """It waits for the next boundary, and the run goes on to the weights of one that never
    searched."""
    class Waits(Hook):
        """The run is still there when the search, and then the pause, is asked for."""
        def after_step(self, trainer):
            if trainer.step_state.optimizer_step in (10, 20):
                with TURNS.aside():
                    assert later(lambda: trainer.mailbox.waiting or paused_once.is_set())

    paused_once = threading.Event()
    straight = make(epochs=3)
    straight.fit()
    trainer = make(Waits(), epochs=3)
    trainer.start()
    assert later(lambda: trainer.step_state.optimizer_step >= 9)
    running = trainer.lr_find(num_steps=15)
    trainer.pause()
    assert later(lambda: trainer.state is RunState.PAUSED)
    paused_once.set()
    random.random()  # the user draws
    torch.randn(3)
    paused = trainer.lr_find(num_steps=15)
    assert trainer.state is RunState.PAUSED
    trainer.resume()
    trainer.wait()
    assert len(running.lrs) > 5 and len(paused.lrs) > 5
    assert plain(trainer.model.state_dict()) == plain(straight.model.state_dict())


def test_asked_for_by_the_panel_before_the_run():
    """In a thread of its own: the kernel stays free; a bad range is refused at once."""
    class Waits(Hook):
        def before_batch(self, trainer):
            assert seen.wait(LIMIT)

    seen, trainer = threading.Event(), make(Waits())
    before, threads = whole(trainer), set(threading.enumerate())
    refused = trainer.post(Command("lr_find", {"start_lr": -1}, source="widget"))
    assert refused.status == "refused" and "start_lr=-1" in refused.reason
    reply = trainer.post(Command("lr_find", {"num_steps": 100, "stop_factor": None},
                                 source="widget"))
    assert reply.status == "pending"  # post() came back, and the search has yet to make a step
    seen.set()
    assert reply.wait(LIMIT).status == "applied" and len(trainer.lr_search.lrs) == 100
    assert whole(trainer) == before
    assert later(lambda: not [each for each in set(threading.enumerate()) - threads
                              if each.name.startswith("trainer_nb")])


def test_two_at_once_are_not_possible():
    """The second is told who drives."""
    trainer = make()
    reply = trainer.post(Command("lr_find", {"num_steps": 200_000, "stop_factor": None}))
    assert later(lambda: trainer.sweeping is not None and len(trainer.sweeping))
    with pytest.raises(RuntimeError, match=r"in progress \(in sweep"):
        trainer.fit()
    trainer.sweeping.cancel()
    assert reply.wait(LIMIT).status == "applied" and trainer.lr_search.sweep.ended == "cancelled"
    trainer.fit()


def test_applied_as_an_intervention():
    """Without a schedule the rate, with one its highest rate; under a rate by hand, that one."""
    trainer = make(loader="list")
    found = trainer.lr_find(1e-5, 1, 60)
    assert found.suggestion and found.apply() == found.suggestion == trainer.lr
    assert found.apply("minimum") == found.suggestions["minimum"] == trainer.lr
    assert [entry.name for entry in trainer.journal] == ["lr", "lr"]
    with pytest.raises(ValueError, match="apply\\('best'\\): there are valley"):
        found.apply("best")
    scheduled = make(loader="list",
                     sched=lambda optim: torch.optim.lr_scheduler.OneCycleLR(optim, 0.1, 36))
    found = scheduled.lr_find(1e-5, 1, 60)
    rate = found.apply()
    scheduled.fit()
    used = scheduled.history["lr"]
    assert used.max() == pytest.approx(rate, rel=0.02)
    assert used[0] == pytest.approx(rate / 25, rel=0.02) and len(used) == 36
    by_hand = make(loader="list", sched=lambda optim: torch.optim.lr_scheduler.StepLR(optim, 10))
    by_hand.tune(lr=0.02)
    assert rate_change(by_hand, 0.5) == {"lr": 0.5}


def test_any_tunable_can_be_swept():
    """Weight decay, one of a hook of the user's; it has its own value again."""
    class Mix(Hook):
        alpha = Tunable(0.25, min=0, max=1)
        def before_batch(self, trainer):
            trainer.batch = trainer.batch[0] * (1 - self.alpha), trainer.batch[1]
    trainer = make(Mix(), loader="list")
    before = whole(trainer)
    for name, values in (("weight_decay", [0, 0.1, 1]), ("mix.alpha", [0.0, 0.5, 1.0]),
                         ("gradient_accumulation_steps", [1, 4]),
                         ("grad_clip", [None, 0.1]), ("mixed_precision", [None, "bf16"])):
        found = trainer.sweep(name, values)
        assert found.values == values
        assert found.ended == "done" and len(set(found.losses)) == len(values)
        assert whole(trainer) == before, name
    with pytest.raises(ValueError, match="did you mean 'mix.alpha'"):
        trainer.sweep("mix.alfa", [0.1])
    with pytest.raises(ValueError, match="mix.alpha = 2"):
        trainer.sweep("mix.alpha", [0.1, 2])
    with pytest.raises(ValueError, match="nothing to try"):
        trainer.sweep("lr", [])
    assert whole(trainer) == before


@pytest.mark.parametrize(("settings", "error"), [
    ({"start_lr": 0}, "start_lr=0"), ({"end_lr": math.inf}, "end_lr=inf"),
    ({"start_lr": 1, "end_lr": 0.1}, "the lower one"),
    ({"num_steps": 1}, "num_steps=1"), ({"num_steps": 10.5}, "10.5"),
    ({"mode": "log"}, "'exp' or 'linear'"),
    ({"smooth": 1}, "smooth=1"), ({"stop_factor": 1}, "stop_factor=1"),
    ({"start_lr": True}, "start_lr=True")])
def test_bad_input(settings, error):
    """Refused with the value and what is allowed, before anything has changed."""
    trainer = make()
    with pytest.raises(ValueError, match=error):
        trainer.lr_find(**settings)
    assert trainer.lr_search is None and trainer.state is RunState.IDLE


def test_a_loader_that_can_be_used_once():
    """It is refused, as nothing could be given back; another loader for the search helps."""
    model = nn.Linear(6, 1)
    trainer = Trainer(model, train_dl=iter(LOADERS["list"]()), loss_fn=nn.MSELoss(), epochs=1,
                      progress=False, device="cpu")
    with pytest.raises(ValueError, match="only once"):
        trainer.lr_find()
    assert len(trainer.lr_find(num_steps=20, train_dl=LOADERS["list"]()).lrs) > 5
    trainer.fit()
    assert trainer.step_state.optimizer_step == 12


def curve(losses, stop_factor=4.0, smooth=0.9):
    """A search that found these losses."""
    sweep = Sweep("lr", rates(1e-6, 10, len(losses)), stop_factor, smooth)
    for rate, loss in zip(sweep.planned, losses):
        if not sweep.add(rate, float(loss)):
            break
    sweep.ended = sweep.ended or "done"
    return LRFind(sweep, lambda rate: None)


def test_readings_of_a_plain_curve():
    """Flat, a straight fall over two decades, a way up: each reading is where its words say."""
    lrs = np.array(rates(1e-6, 1, 121))
    place = np.log10(lrs)
    losses = np.where(place < -4, 2.0,
                      np.where(place < -2, 2.0 - 0.75 * (place + 4),
                               0.5 + 2 * np.maximum(0, place + 1.5)))
    assert 1e-4 <= steepest(lrs, losses) <= 1e-2
    assert valley(lrs, losses) == pytest.approx(1e-3, rel=0.1)
    assert 1e-4 < slide(lrs, losses) < 1
    assert SUGGESTIONS["minimum"][0](lrs, losses) == pytest.approx(1e-3, rel=0.2)


def test_valley_is_the_longest_fall_by_brute_force():
    """Of short curves, every falling subsequence is looked at."""
    draw = np.random.default_rng(0)
    for _ in range(40):
        losses = draw.permutation(9).astype(float)
        lengths = [bin(mask).count("1") for mask in range(1, 512)
                   if np.all(np.diff(losses[[i for i in range(9) if mask >> i & 1]]) < 0)]
        lrs = np.arange(1.0, 10.0)
        length = np.ones(9, int)
        for at in range(9):
            length[at] = 1 + max((length[i] for i in range(at) if losses[i] > losses[at]),
                                 default=0)
        assert length.max() == max(lengths)
        end = int(length.argmax())
        assert valley(lrs, losses) == lrs[end - max(lengths) // 2]


@pytest.mark.parametrize("losses", [
    2.3 + 0.02 * np.random.default_rng(0).standard_normal(100), np.full(100, 1.0),
    np.linspace(1, 3, 100),
    [1.0] * 3 + [9.0] * 97], ids=["noise", "constant", "rising", "diverges at once"])
def test_a_curve_that_says_nothing(losses):
    """No suggestion out of noise, but a word why, also in the picture."""
    found = curve(losses)
    assert found.suggestion is None and found.suggestions == {} and found.note
    assert ("does not fall" in found.note) or ("ran away" in found.note)
    assert found.note in repr(found) and "<svg" in lr_still(found)
    with pytest.raises(ValueError, match="nothing is suggested"):
        found.apply()


@pytest.mark.parametrize("from_rate, words", [
    (0.1, "may have learned already. Stay below"), (1e-6, "try a lower first rate"),
    (None, "try a higher last rate")], ids=["late", "at once", "never"])
def test_what_to_do_where_the_loss_only_rises(from_rate, words):
    """A loss that stays until a rate is too high belongs to a model that has learned, and not to a
    range that is too narrow; the rate where it begins to rise is said."""
    losses = 0.01 + 1e-4 * np.random.default_rng(0).standard_normal(100)
    lrs = np.geomspace(1e-6, 10, 100)
    if from_rate is not None:
        losses = losses + 2e-3 * np.maximum(0, np.log(lrs / from_rate))
    note = curve(losses).note
    assert words in note
    if from_rate == 0.1:
        rate = float(note.split("rises from ")[1].split(" on")[0])
        assert 0.03 < rate < 0.5


def test_pictures():
    """A small SVG that stays in a saved notebook, without a number that is none;
    a plotly figure with the suggestions."""
    place = np.linspace(-6, 1, 100)
    losses = 0.4 + 2 / (1 + 10 ** (1.2 * (place + 2.5))) + 10 ** (2 * (place - 0.3))
    found = curve(losses)
    svg = lr_still(found)
    assert len(svg) < 12_000 and "nan" not in svg and "inf" not in svg and "script" not in svg
    bundle = found._repr_mimebundle_()
    assert "image/svg+xml" in bundle["text/html"] and "valley" in bundle["text/plain"]
    figure = lr_figure(found)
    assert len(figure.layout.shapes) == 4 and figure.layout.xaxis.type == "log"
    diverged = curve([*losses[:60], math.nan, *losses[61:]])
    assert diverged.sweep.ended == "diverged"
    assert len(diverged.lrs) == 61 and "nan" not in lr_still(diverged)
