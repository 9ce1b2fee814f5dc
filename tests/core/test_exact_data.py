"""Saved states with worker processes, in a new process, with other parts:
what is exact, and what says it is not."""

import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import exact_runs
import numpy as np
import pytest
import torch
import warm
from exact_runs import (INPUTS, TARGETS, Bend, Halt, Mix, Plan, Samples, assert_same, comparable,
                        differences, drive, final, halted_run, make_trainer, new_run, scramble,
                        straight_run, through_file)
from shorter import some
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler

from trainer_nb import Hook, Trainer
from trainer_nb.core.exact import device_exactness, draws_random
from trainer_nb.core.hook import LambdaHook
from trainer_nb.support.saved import CheckpointError, plain_copy, read_state, write_state
from trainer_nb.core.state import RandomStreams

pytestmark = pytest.mark.slow

PLAIN = Plan(sched="one cycle", accumulation=2)
WORKERS = {
    "shuffle": (Plan(workers=2), [1, 7]),
    "persistent": (Plan(workers=2, persistent=True, sched="lambda"), [2, 5, 8]),
    "persistent, replacement, own generator": (
        Plan(workers=2, persistent=True, order="replacement", generator="own", accumulation=2),
        [1, 4]),
    "weighted, batches": (Plan(workers=2, order="weighted", generator="shared", valid="shuffle"),
                          [6]),
    "no batching": (Plan(workers=2, order="samples", limit=4), [5]),
    "iterable": (Plan(workers=2, order="iterable", sched="restarts"), [2, 8]),
    "iterable, persistent": (Plan(workers=2, persistent=True, order="iterable", accumulation=2),
                             [1, 5]),
    "iterable, augmented": (Plan(workers=2, order="iterable", augment="torch"), [3]),
    "augmented, replayed": (Plan(workers=2, augment="torch", resume_data="replay"), [7]),
}  # fmt: skip


SOME = ("weighted, batches", "iterable, persistent", "augmented, replayed")


@pytest.mark.parametrize(("kind", "every"), [
    *((kind, False) for kind in SOME),
    *(pytest.param(kind, True, marks=pytest.mark.long) for kind in WORKERS)])
def test_two_workers(kind, every):
    """Real processes; what they loaded ahead is loaded again: after one number of steps for some
    kinds, after several for all."""
    plan, steps = WORKERS[kind]
    straight = straight_run(plan)
    for k in steps if every else steps[-1:]:
        again = halted_run(plan, Halt("step", k))
        assert_same(again, straight)
        assert again.exact
        again.close()
    straight.close()


def test_two_workers_in_several_parts():
    """Persistent workers, asked to stop in a window and in an evaluation."""
    plan = Plan(workers=2, persistent=True, accumulation=2, valid="shuffle")
    straight = straight_run(plan)
    again = halted_run(plan, Halt("stop", 3), Halt("stop", 8), Halt("step", 2))
    assert_same(again, straight)
    straight.close(), again.close()


def test_another_process_finishes_the_run(tmp_path):
    """Another interpreter, which knows the parts and the file only, and has nothing to warn of."""
    code = ("import json, sys, warnings, exact_runs\n"
            "warnings.simplefilter('error', UserWarning)\n"
            "exact_runs.finish_in_this_process(*sys.argv[1:3], **json.loads(sys.argv[3]))")
    changes = {"sched": "one cycle", "accumulation": 2, "augment": "numpy", "valid": "shuffle",
               "generator": "shared"}
    plan = replace(Plan(), **changes)
    straight = straight_run(plan)
    first = new_run(plan)
    drive(first, plan, Halt("step", 4))
    source, target = first.save(tmp_path / "first.pt"), tmp_path / "second.pt"
    warm.run([sys.executable, "-c", code, source, target, json.dumps(changes)], check=True,
             timeout=600, env={**os.environ, "PYTHONPATH": str(Path(exact_runs.__file__).parent)})
    found = differences(comparable(read_state(target)), final(straight))
    assert not found, found


class OneAfterTheOther(Sampler):
    """A sampler of one's own."""

    def __iter__(self):
        return iter(range(18))

    def __len__(self):
        return 18


class Batches:
    """A loader of one's own."""

    def __iter__(self):
        return iter([(INPUTS, TARGETS)] * 3)


def trainer_of(train_dl, **settings):
    """A plain trainer of a training loader."""
    model = nn.Linear(4, 1)
    return Trainer(model, train_dl=train_dl, loss_fn=nn.MSELoss(), epochs=2, device="cpu",
                   progress=False, **settings)


def loader_of(dataset, workers=2, **settings):
    """A loader with workers that nobody starts."""
    return DataLoader(dataset, 4, num_workers=workers, **settings)


FIRST_FOUR = "draw nothing random in workers: they did not for four samples"
EXACT = {
    "a list": (lambda: trainer_of([(INPUTS, TARGETS)]), None, None),
    "no workers, augmented": (lambda: trainer_of(loader_of(Samples("torch"), 0)), None, None),
    "workers": (lambda: trainer_of(loader_of(Samples())), None, FIRST_FOUR),
    "torch in workers": (lambda: trainer_of(loader_of(Samples("torch"))),
                         "draws random numbers in its workers", None),
    "numpy in workers": (lambda: trainer_of(loader_of(Samples("numpy"))),
                         "draws random numbers in its workers", None),
    "python in workers": (
        lambda: trainer_of(loader_of(Samples("python"))), "draws random numbers in its workers",
        None),
    "replayed": (lambda: trainer_of(loader_of(Samples("torch")), resume_data="replay"), None, None),
    "replayed, persistent": (
        lambda: trainer_of(loader_of(Samples("torch"), persistent_workers=True),
                           resume_data="replay"),
        "draws random numbers in its workers", "persistent workers after the first epoch"),
    "out of order": (lambda: trainer_of(loader_of(Samples(), in_order=False)), "in_order=False",
                     FIRST_FOUR),
    "once only": (lambda: trainer_of(batch for batch in [(INPUTS, TARGETS)]), "iterated only once",
                  None),
    "own loader": (lambda: trainer_of(Batches()), None, "gives the same batches"),
    "compiled, a smaller last batch": (
        lambda: trainer_of(loader_of(Samples(), 0), compile=True),
        "compile=True and batches of 2 and 4 samples", None),
    "compiled, batches of one size": (
        lambda: trainer_of(loader_of(Samples(), 0, drop_last=True), compile=True), None, None),
    "compiled, without the last batch": (
        lambda: trainer_of(loader_of(Samples(), 0), compile=True, limit_batches=3), None, None),
    "compiled, a list": (
        lambda: trainer_of([(INPUTS, TARGETS)], compile=True),
        "compile=True and batches that may be of", None),
    "compiled, in chunks": (
        lambda: trainer_of(loader_of(Samples(), 0, drop_last=True), compile=True,
                           micro_batch_size=3),
        "compile=True and batches that may be of", None),
    "own sampler": (
        lambda: trainer_of(loader_of(Samples(), sampler=OneAfterTheOther()),
                           resume_data="replay"), None, "OneAfterTheOther draws"),
}  # fmt: skip


@pytest.mark.parametrize("make, obstacle, assumed", EXACT.values(), ids=EXACT)
def test_exact_says_what_stands_in_the_way(make, obstacle, assumed):
    """Obstacles make it false, what is assumed does not; looking draws nothing."""
    trainer, before = make(), RandomStreams.capture()
    found = trainer.exact
    after = RandomStreams.capture()
    assert before.python == after.python and torch.equal(before.torch, after.torch)
    assert all(np.array_equal(a, b) for a, b in zip(before.numpy, after.numpy))
    assert bool(found) is (obstacle is None)
    assert str(found).splitlines()[0] == ("exact" if found else "not exact")
    for texts, wanted in ((found.obstacles, obstacle), (found.assumed, assumed)):
        assert len(texts) == (wanted is not None) and all(wanted in text for text in texts)
        assert all(text in str(found) for text in texts)


def test_what_is_said_of_augmentation_in_workers_is_so():
    """The obstacle is a real one: in mid-epoch the run goes another way, at the end of an epoch it
    does not."""
    plan = Plan(workers=2, augment="torch")
    straight = straight_run(plan)
    assert_same(halted_run(plan, Halt("step", 5)), straight)
    again = halted_run(plan, Halt("step", 3))
    assert not again.exact and ".model.0.weight" in differences(final(again), final(straight))


@pytest.mark.parametrize("stream", ["torch", "numpy", "python", None])
def test_a_dataset_is_looked_at_without_a_trace(stream):
    """One sample tells, also where the drawn number was drawn before."""
    scramble()
    before = RandomStreams.capture()
    assert [bool(draws_random(Samples(stream))) for _ in range(3)] == [stream is not None] * 3
    assert differences(vars(before)["python"], RandomStreams.capture().python) == []
    assert not draws_random([]) and not draws_random(object())


class ShuffleBuffer(IterableDataset):
    """Gives samples in an order that is drawn as it goes, from the stream that dropout draws
    from."""

    def __iter__(self):
        left = list(range(18))
        while left:
            index = left.pop(torch.randint(len(left), ()).item())
            yield INPUTS[index], TARGETS[index]


def test_an_order_drawn_while_dropout_draws_is_not_called_exact():
    """What a buffer holds cannot be found again by iterating alone:
    either it is, or `exact` says so."""
    def make(weights=0):
        torch.manual_seed(weights)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        loader = DataLoader(ShuffleBuffer(), 4)
        return Trainer(model, train_dl=loader, loss_fn=nn.MSELoss(), epochs=2, seed=1, device="cpu",
                       progress=False)
    straight, first, again = make(), make(), make(3)
    straight.fit()
    first.step(3)
    again.load_state_dict(first.state_dict())
    again.fit()
    same = not differences(again.model.state_dict(), straight.model.state_dict())
    assert same or again.exact.obstacles or again.exact.assumed


def failing(at_batch):
    """A hook that raises once, in a batch."""
    def fail(trainer):
        if trainer.training and trainer.step_state.batch_idx == at_batch and not hook.done:
            hook.done = True
            raise ArithmeticError("once")
    hook = LambdaHook(before_batch=fail, name="fails")
    hook.done = False
    return hook


def test_an_exception_in_mid_window_is_told_on():
    """The run can go on, and the files of it say that it is not the one it would have been."""
    plan = Plan(accumulation=3)
    trainer = new_run(plan, hooks=[Mix(), failing(1)])
    with pytest.raises(ArithmeticError):
        trainer.fit()
    assert not trainer.exact and "ArithmeticError in the middle of step 1" in str(trainer.exact)
    state = through_file(trainer.state_dict())
    assert state["position"]["batch_idx"] == 0 and state["position"]["samples_seen"] == 0
    trainer.fit()
    other = make_trainer(plan, weights=3, hooks=[Mix(), LambdaHook(name="fails")])
    assert other.exact
    other.load_state_dict(state)
    assert not other.exact and "in the middle of step 1" in str(other.exact)
    assert_same(drive(other, plan), trainer)  # of what it has become it is a good copy


def test_an_exception_between_two_windows_leaves_the_run_exact():
    """In a hook after the step, and in the middle of an evaluation: nothing was half done."""
    plan = Plan(accumulation=2, valid="shuffle", augment="python")
    straight = straight_run(plan, hooks=[Mix(), Bend(), LambdaHook(name="fails")])
    points = {"after_step": "train", "after_batch": "valid", "before_epoch": "train",
              "on_log": "train"}
    for point, split in points.items():
        failed = []
        def fail(trainer, *_, split=split, failed=failed):
            if trainer.split == split and not failed and trainer.step_state.optimizer_step >= 3:
                failed.append(1)
                raise ArithmeticError("once")
        first = new_run(plan,
                        hooks=[Mix(), Bend(), LambdaHook(order=100, name="fails", **{point: fail})])
        with pytest.raises(ArithmeticError):
            first.fit()
        # hooks that were called before the one that raised hear of this epoch's beginning twice:
        # that is said
        assert failed and bool(first.exact) is (point != "before_epoch")
        assert ("before_epoch" in str(first.exact)) is (point == "before_epoch")
        again = make_trainer(plan, weights=3,
                             hooks=[Mix(), Bend(), LambdaHook(order=100, name="fails")])
        scramble()
        again.load_state_dict(through_file(first.state_dict()))
        again.fit()
        found = differences(final(again), final(straight))
        # what raised came before a boundary
        expected = (".tunables.fails.order", ".position.boundaries", ".journal.header.end.boundary",
                    *([".position.inexact"] if point == "before_epoch" else []))
        assert not [place for place in found if not place.startswith(expected)], (point, found)


class Other(nn.Module):
    """Not the model of the plan: one layer more."""

    def __init__(self, model):
        super().__init__()
        self.first, self.more = model, nn.Linear(1, 1)

    def forward(self, inputs):
        """Both."""
        return self.more(self.first(inputs))


def spoiled(what):
    """A good state of another run, made bad; and what must be said of it."""
    changed = replace(PLAIN, changes=((1, (("lr", 0.5),)),))
    state = drive(make_trainer(changed), changed, Halt("step", 3)).state_dict()
    model, optim = state["model"], state["optim"]
    if what == "a weight less":
        del model["4.bias"]
        return state, "lacks 4.bias"
    if what == "a weight more":
        model["5.weight"] = torch.zeros(1)
        return state, "has no place for 5.weight"
    if what == "another shape":
        model["4.weight"] = torch.zeros(2, 8)
        return state, r"4.weight is \(2, 8\) there and \(1, 8\) here"
    if what == "other groups":
        optim["param_groups"] = optim["param_groups"][:1]
        return state, "another optimizer"
    if what == "another optimizer":
        other = drive(make_trainer(replace(PLAIN, optim="sgd")), PLAIN, Halt("step", 3))
        return {**state, "optim": other.state_dict()["optim"]}, "optim"
    del state[what]
    return state, f"lacks {what}"


BAD = ["a weight less", "a weight more", "another shape", "other groups", "another optimizer",
       "model", "optim", "position", "hooks", "tunables", "random", "data", "loaders", "journal",
       "history", "fingerprint", "modules", "scaler"]


@pytest.mark.parametrize("what", some(BAD, (
    "a weight less", "other groups", "another optimizer", "optim", "position", "hooks", "loaders",
    "journal", "scaler")))
def test_nothing_has_changed_after_an_error(what):
    """The state of other parts is refused, and the run goes on as if nobody had asked."""
    straight = straight_run(PLAIN)
    trainer = new_run(PLAIN)
    trainer.step(2)
    parameters, before = list(trainer.model.parameters()), plain_copy(trainer.state_dict())
    state, text = spoiled(what)
    with pytest.raises(CheckpointError, match=text):
        trainer.load_state_dict(state)
    after = trainer.state_dict()
    assert differences(after, before) == []
    assert all(a is b for a, b in zip(parameters, trainer.model.parameters()))
    assert_same(drive(trainer, PLAIN), straight)


def test_another_model_is_refused_before_the_first_step_too(tmp_path):
    """A trainer that was never driven, by way of a file."""
    path = make_trainer(PLAIN).save(tmp_path / "run.pt")
    plain = make_trainer(PLAIN, weights=5)
    parts = {"train_dl": plain.train_dl, "loss_fn": nn.MSELoss()}
    other = Trainer(Other(plain.model), epochs=1, device="cpu", progress=False, **parts)
    before = plain_copy(other.state_dict())
    with pytest.raises(CheckpointError, match="another model: it lacks first.0.bias"):
        other.load(path)
    assert differences(plain_copy(other.state_dict()), before) == []
    write_state({"model": {}}, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match="not a state of a run: it lacks optim"):
        other.load(tmp_path / "weights.pt")


class Counter(Hook):
    """Counts steps."""

    def __init__(self):
        self.count = 0

    def after_step(self, trainer):
        """One more."""
        self.count += 1

    def state_dict(self):
        """The count."""
        return {"count": self.count}

    def load_state_dict(self, state):
        """The count."""
        self.count = state["count"]


def test_the_state_of_a_hook_that_is_not_there():
    """A warning names it; all else is taken over."""
    first = new_run(PLAIN, hooks=[Mix(), Bend(), Counter()])
    first.step(3)
    state = first.state_dict()
    again = make_trainer(PLAIN, weights=3)
    with pytest.warns(UserWarning, match="a hook 'counter', and there is none here") as told:
        again.load_state_dict(state)
    assert len(told) == 1
    assert_same(drive(again, PLAIN), straight_run(PLAIN))


def test_a_hook_that_the_state_does_not_know():
    """It stays as it is."""
    first = new_run(PLAIN)
    first.step(3)
    counter = Counter()
    again = make_trainer(PLAIN, weights=3, hooks=[counter, Mix(), Bend()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_state_dict(first.state_dict())
    again.fit()
    assert counter.count == again.step_state.optimizer_step - 3
    assert again.model[0].weight.equal(straight_run(PLAIN).model[0].weight)


def test_hooks_in_another_order():
    """States go by name; two of one class keep apart."""
    def make(turned, weights=0):
        hooks = [Mix(), Bend(), Counter(), Counter()]
        hooks[3].name = "late"
        return make_trainer(PLAIN, weights, hooks=hooks[::-1] if turned else hooks), hooks
    first, hooks = make(False)
    scramble(5)
    first.step(1)
    hooks[3].count = 40
    first.step(2)
    again, others = make(True, weights=3)
    again.load_state_dict(through_file(first.state_dict()))
    assert (others[2].count, others[3].count, others[0].seen) == (3, 42, 3)
    again.fit()
    assert again.model[0].weight.equal(straight_run(PLAIN).model[0].weight)


def test_another_fingerprint():
    """Other versions and another number of workers:
    a warning says which, and the state is taken over."""
    first = new_run(PLAIN)
    first.step(3)
    state = first.state_dict()
    state["fingerprint"] |= {"torch": "1.0", "workers": 5}
    again = make_trainer(PLAIN, weights=3)
    differs = r"torch '1.0' \(here .*workers 5 \(here 0\).*may differ in bits"
    with pytest.warns(UserWarning, match=differs) as told:
        again.load_state_dict(state)
    assert len(told) == 1
    assert_same(drive(again, PLAIN), straight_run(PLAIN))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("benchmark", [False, True])
def test_what_a_gpu_needs(deterministic, benchmark, monkeypatch):
    """Both are named, each with its remedy; a CPU needs neither."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", benchmark)
    on_meta = Trainer(nn.Linear(4, 1), train_dl=DataLoader(Samples(), 6), loss_fn=nn.MSELoss(),
                      epochs=1, device="meta", progress=False)  # no GPU, and no CPU
    torch.use_deterministic_algorithms(deterministic)
    try:
        assert make_trainer(PLAIN).exact
        told, of_trainer = device_exactness(torch.device("cuda")), on_meta.exact.obstacles
    finally:
        torch.use_deterministic_algorithms(False)
    assert any("use_deterministic_algorithms(True)" in each for each in told) is not deterministic
    assert any("cudnn.benchmark = False" in each for each in told) is benchmark
    named = any("some operations on meta are not" in each for each in of_trainer)
    assert named is not deterministic


def test_another_device():
    """The device is the trainer's, whatever else the process uses: "meta" stands in for a GPU."""
    state = new_run(PLAIN).state_dict()
    assert (state["fingerprint"]["device"], state["fingerprint"]["cuda"]) == ("cpu", None)
    again = make_trainer(PLAIN)
    again.engine.device = torch.device("meta")
    with pytest.warns(UserWarning, match=r"device 'cpu' \(here 'meta'\)"):
        again.load_state_dict(state)


@pytest.mark.parametrize("by", ["load", "load_state_dict"])
@pytest.mark.parametrize("what", ["hook", "fingerprint"])
def test_a_warning_points_at_the_line_that_loads(what, by, tmp_path):
    """As any warning does."""
    first = make_trainer(PLAIN, hooks=[Mix(), Bend(), Counter()] if what == "hook" else None)
    first.step(2)
    state = first.state_dict()
    if what == "fingerprint":
        state["fingerprint"]["torch"] = "1.0"
    path, again = write_state(state, tmp_path / "run.pt"), make_trainer(PLAIN)
    with pytest.warns(UserWarning) as told:
        again.load(path) if by == "load" else again.load_state_dict(state)
    assert [each.filename for each in told] == [__file__]
