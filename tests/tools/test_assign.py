"""An argument of the trainer that is assigned later has an effect everywhere, or is refused:
`trainer.loss_fn = ...` between two fits."""

import gc
import inspect
import weakref

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torch_sched
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import (CheckpointHook, EMAHook, Hook, Journal, LambdaHook, LayerGroupsHook,
                        ReplayHook, SchedulerHook, SnapshotHook, Trainer)
from trainer_nb.support.saved import CheckpointError
from trainer_nb.tools.assign import FIXED, REPLACED

SQUARES, HUBER = nn.MSELoss(), nn.HuberLoss()


def loader(samples=40, batch=8, seed=0):
    """5 batches."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, generator=draw)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch)


def net():
    """The same each time."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def sgd(parameters, lr=0.1):
    """With momentum, so that a new one differs."""
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def make(model=None, **settings):
    """A run of 2 epochs of 5 steps."""
    settings = {"train_dl": loader(), "loss_fn": SQUARES, "optim": sgd, "epochs": 2,
                "seed": 3} | settings
    return Trainer(net() if model is None else model, device="cpu", progress=False, **settings)


def equal(a, b):
    """All parameters, bit for bit."""
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def by_hand(parts):
    """The loop by hand over `(loss_fn, optim or None, epochs, loader)`, one after another, on one
    model."""
    model, optim = net(), None
    for loss_fn, make_optim, epochs, batches in parts:
        optim = make_optim(model.parameters()) if make_optim else optim
        for _ in range(epochs):
            for x, y in batches:
                loss_fn(model(x), y).backward()
                optim.step()
                optim.zero_grad()
    return model


def after_one_epoch(**settings):
    """A trainer that has made 5 of 10 steps."""
    trainer = make(**settings)
    trainer.step(epochs=1)
    return trainer


def test_another_loss_function():
    """Training, evaluation and the state go by it;
    it is an intervention, and `exact` speaks of it."""
    trainer = after_one_epoch(valid_dl=loader(seed=1))
    trainer.loss_fn = HUBER
    x, y = loader(seed=1).dataset.tensors
    assert trainer.validate()[
        "valid/loss"] == pytest.approx(HUBER(trainer.model(x), y).item(), rel=1e-5)
    trainer.fit()
    assert equal(trainer.model, by_hand([(SQUARES, sgd, 1, loader()), (HUBER, None, 1, loader())]))
    assert [(e.step, e.old, e.new) for e in trainer.journal
            if e.kind == "assign"] == [(5, "MSELoss", "HuberLoss")]
    assert trainer.exact and any("loss_fn" in text for text in trainer.exact.assumed)


@pytest.mark.parametrize("given",
                         [lambda model: lambda p: sgd(p, 0.02),
                          lambda model: sgd(model.parameters(), 0.02)], ids=["callable", "object"])
def test_another_optimizer(given):
    """It steps, without the moments of the old one;
    rates, weight decay, state and summary are its own."""
    trainer = after_one_epoch()
    trainer.optim = given(trainer.model)
    assert "lr 0.02" in trainer.summary() and trainer.runner.rates.base == [0.02]
    trainer.fit()
    assert equal(trainer.model,
                 by_hand([(SQUARES, sgd, 1, loader()),
                          (SQUARES, lambda p: sgd(p, 0.02), 1, loader())]))
    assert trainer.state_dict()["optim"]["param_groups"][0]["lr"] == 0.02


def test_another_optimizer_under_fp16():
    """The loss scaler tells a step that it skipped from one that the new optimizer made."""
    trainer = after_one_epoch(mixed_precision="fp16")
    trainer.engine.scaling.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    trainer.optim = lambda p: sgd(p, 0.01)
    trainer.fit()
    assert trainer.step_state.optimizer_step + trainer.skipped_steps == 10
    assert trainer.optim.state and not trainer.engine.overflowed


@pytest.mark.parametrize("sched", ["cosine", lambda optim: torch_sched.ExponentialLR(optim, 0.9)],
                         ids=["name", "function"])
def test_the_schedule_goes_on_with_another_optimizer(sched):
    """Where it is, from the new optimizer's rate."""
    straight, trainer = make(sched=sched), after_one_epoch(sched=sched)
    straight.fit()
    trainer.optim = lambda p: sgd(p, 0.2)
    trainer.fit()
    factors = [2.0 if step > 5 else 1.0 for step in range(1, 11)]
    assert trainer.history[
        "lr"].tolist() == pytest.approx([rate * factor
                                         for rate, factor in zip(straight.history["lr"], factors)])


def test_a_scheduler_of_the_old_optimizer_is_in_the_way():
    """It says so before anything has changed;
    without it the optimizer is taken, and another schedule."""
    optim = sgd((model := net()).parameters())
    trainer = make(model, optim=optim, sched=torch_sched.ExponentialLR(optim, 0.9))
    trainer.step(5)
    with pytest.raises(ValueError, match="trainer.sched = None comes first"):
        trainer.optim = sgd
    assert trainer.optim is optim is trainer.engine.optim
    trainer.sched = None
    assert trainer.sched is None and optim.param_groups[0]["lr"] == 0.1
    trainer.optim = sgd
    with pytest.raises(ValueError, match="another optimizer"):
        trainer.sched = torch_sched.ExponentialLR(optim, 0.9)
    trainer.sched = "cosine"
    trainer.fit()
    rates = trainer.history["lr"][5:]
    assert trainer.get_hook(SchedulerHook).total == 5
    assert rates[0] == 0.1 and (rates[1:] < rates[:-1]).all()


def test_layer_groups_divide_the_new_optimizer():
    """With the rates and switches that they have."""
    trainer = after_one_epoch(hooks=[LayerGroupsHook({"body": "0", "head": "2"})])
    trainer.tune(**{"layer_groups.head.lr_scale": 0.5, "layer_groups.body.frozen": True})
    body = trainer.model[0].weight.detach().clone()
    trainer.optim = lambda p: sgd(p, 0.02)
    trainer.fit()
    assert len(trainer.optim.param_groups) == 2
    assert trainer.rates() == [0.02, 0.01] and torch.equal(body, trainer.model[0].weight)


def test_another_step_and_another_evaluation_step():
    """An eval_step that was not given follows;
    with a loss_fn a step is refused as in the constructor."""
    def step(factor):
        return lambda batch, trainer: {"loss": factor * SQUARES(trainer.model(batch[0]), batch[1])}
    trainer = make(loss_fn=None, train_step=step(1.0), valid_dl=loader())
    trainer.step(epochs=1)
    base = trainer.validate()["valid/loss"]
    trainer.train_step = step(0.5)
    assert trainer.validate()["valid/loss"] == pytest.approx(base / 2)
    trainer.eval_step = step(3.0)
    trainer.train_step = step(0.25)
    assert trainer.validate()["valid/loss"] == pytest.approx(base * 3)
    trainer.fit()
    wanted = by_hand([(SQUARES, sgd, 1, loader()),
                      (lambda p, t: 0.25 * SQUARES(p, t), None, 1, loader())])
    assert equal(trainer.model, wanted)
    with pytest.raises(TypeError, match="train_step"):
        trainer.train_step = 3
    with pytest.raises(ValueError, match="train_step = None comes first"):
        trainer.loss_fn = HUBER
    supervised = make()
    with pytest.raises(ValueError, match="loss_fn = None"):
        supervised.train_step = step(1.0)
    supervised.loss_fn = None
    supervised.train_step = step(1.0)
    assert supervised.fit().steps == 10


def test_another_loader_between_two_epochs():
    """The next epoch is of it, the schedule has its length; in mid-epoch it is refused."""
    trainer = make(valid_dl=loader(seed=1), sched="one_cycle")
    trainer.step(2)
    with pytest.raises(RuntimeError, match=r"at batch 2 .*step\(epochs=1\)"):
        trainer.train_dl = loader(80)
    trainer.step(epochs=1)
    trainer.train_dl = loader(80)
    trainer.valid_dl = {"easy": loader(8), "hard": loader(8, seed=5)}
    result = trainer.fit()
    assert result.steps == 15 and {"easy/loss", "hard/loss"} <= result.last.keys()
    assert trainer.get_hook(SchedulerHook).total == 15
    with pytest.raises(ValueError, match="train"):
        trainer.valid_dl = {"train": loader()}


def test_other_metrics():
    """From the next evaluation on; checked as ever."""
    trainer = after_one_epoch(valid_dl=loader())
    trainer.metrics = {"error": lambda pred, target: (pred - target).abs().mean()}
    assert "valid/error" in trainer.fit().last
    with pytest.raises(TypeError, match="metrics"):
        trainer.metrics = [1]


@pytest.mark.parametrize(("name", "value", "wrong"),
                         [("grad_clip", 0.01, 0), ("gradient_accumulation_steps", 5, 0),
                          ("eval_every", 2, 0),
                          ("mixed_precision", "bf16", "fp8"), ("lr", 0.01, -1)])
def test_a_tunable_that_is_assigned_is_tuned(name, value, wrong):
    """With all that `tune` does: effect, check, journal; the same weights as with `tune`."""
    tuned, assigned = after_one_epoch(), after_one_epoch()
    tuned.tune(**{name: value})
    setattr(assigned, name, value)
    with pytest.raises(ValueError, match=name):
        setattr(assigned, name, wrong)
    for trainer in (tuned, assigned):
        trainer.fit()
    assert equal(tuned.model, assigned.model)
    assert [str(e) for e in tuned.journal] == [str(e) for e in assigned.journal]
    assert assigned.engine.precision == ("bf16" if name == "mixed_precision" else None)


def test_totals_and_settings():
    """A total of one unit takes the place of the other;
    each setting acts, and a wrong one is refused."""
    trainer = after_one_epoch()
    trainer.max_steps = 7
    assert trainer.fit().steps == 7 and trainer.epochs is None
    trainer.epochs = 3
    assert trainer.fit().steps == 15 and [e.kind for e in trainer.journal] == ["totals"] * 2
    sizes = []
    trainer.hooks.add(LambdaHook(after_pred=lambda t: sizes.append(len(t.pred))))
    trainer.micro_batch_size, trainer.non_finite, trainer.max_time = 4, "skip:3", 1e6
    trainer.fit(epochs=4)
    trainer.batch_size = lambda batch: 3 * len(batch[0])
    before = trainer.step_state.samples_seen
    trainer.micro_batch_size = None
    trainer.fit(epochs=5)
    assert trainer.step_state.samples_seen - before == 120
    sizes = sizes[:10]
    assert set(sizes) == {4} and trainer.non_finite == "skip:3"
    assert trainer.runner.gradients.finite.policy == "skip:3"
    for name, wrong in {"epochs": 0, "max_steps": "7", "micro_batch_size": 0,
                        "non_finite": "skip:x", "max_time": -1}.items():
        before = getattr(trainer, name)
        with pytest.raises(ValueError, match=name.replace("epochs", "epochs=0")):
            setattr(trainer, name, wrong)
        assert getattr(trainer, name) == before


@pytest.mark.parametrize("name", sorted(FIXED))
def test_what_is_fixed_says_what_to_do(name):
    """Nothing has changed afterwards, and the run goes on."""
    trainer = after_one_epoch()
    with pytest.raises(AttributeError, match=f"trainer.{name} = .* is refused: ..."):
        setattr(trainer, name, 1)
    assert trainer.fit().steps == 10 and len(trainer.history["train/loss"]) == 10


def test_every_argument_is_decided_on():
    """An argument that comes later is in exactly one of the three lists."""
    arguments = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    trainer = make()
    tunables = {name for name in trainer.tunables() if "." not in name}
    assert arguments - tunables == {*REPLACED, *FIXED} and not {*REPLACED} & {*FIXED}


def test_while_it_is_being_driven():
    """In a step, and from another thread, it is refused;
    at a boundary, or in a pause, it is done."""
    refused = []
    def try_it(trainer):
        with pytest.raises(RuntimeError, match="trainer.loss_fn = "):
            trainer.loss_fn = HUBER
        refused.append(trainer.step_state.optimizer_step)
    trainer = make(hooks=[LambdaHook(after_step=try_it, before_batch=try_it)])
    trainer.fit()
    assert trainer.loss_fn is SQUARES and len(refused) == 20
    asking = make(
        hooks=[LambdaHook(after_epoch=lambda t: t.ask(lambda: setattr(t, "loss_fn", HUBER)))])
    asking.fit()
    assert equal(asking.model, by_hand([(SQUARES, sgd, 1, loader()), (HUBER, None, 1, loader())]))
    held = make(epochs=1_000_000)
    held.start()
    with pytest.raises(RuntimeError, match=r"in progress \(in start"):
        held.loss_fn = HUBER
    with held.paused():
        held.loss_fn = HUBER
    held.stop()
    held.wait()
    assert held.train_step.loss_fn is HUBER
    assert [e.name for e in held.journal if e.kind == "assign"] == ["loss_fn"]


def shuffled(batch=8):
    """In an order that is drawn."""
    return DataLoader(loader().dataset, batch, shuffle=True)


@pytest.mark.parametrize("back", [0, 2, 5, 6])
def test_a_rewind_brings_the_loader_of_its_step_back(back):
    """The rest of the run, in the middle of an epoch too, is that of a run without the rewind."""
    def start():
        made = make(train_dl=shuffled(), epochs=3, hooks=[SnapshotHook(every_steps=1)])
        made.step(epochs=1)
        made.train_dl = shuffled(20)
        return made

    straight, trainer = start(), start()
    straight.fit()
    trainer.step(epochs=1)
    later = trainer.train_dl
    trainer.train_dl = shuffled(4)
    trainer.step(3)
    trainer.rewind(back)
    assert trainer.exact, trainer.exact
    if back > 5:
        assigned = trainer.checkpoint.assigned
        assert trainer.train_dl is later and assigned == {"train_dl": "DataLoader"}
    else:
        assert trainer.train_dl.batch_size == 8 and not trainer.checkpoint.assigned
        if back < 5:
            trainer.step(epochs=1)
        trainer.train_dl = later
    trainer.fit()
    assert equal(trainer.model, straight.model)
    assert [(e.step, e.name) for e in trainer.journal.surviving()
            if e.kind == "assign"] == [(5, "train_dl")]


@pytest.mark.parametrize("name, value", [("train_dl", lambda: loader(batch=4)),
                                         ("optim", lambda: Counted), ("loss_fn", lambda: HUBER)])
def test_another_part_within_a_drive_is_not_what_steps_change(name, value):
    """Asked for by a hook, or given in a pause: `exact` does not name what is in it."""
    def change(trainer):
        if trainer.step_state.epoch == 1:
            trainer.ask(lambda: setattr(trainer, name, value()))

    trainer = make(hooks=[LambdaHook(after_epoch=change)], optim=Counted, epochs=4)
    trainer.fit()
    assert [(e.step, e.name) for e in trainer.journal if e.kind == "assign"] == [(5, name)]
    assert trainer.exact, trainer.exact


class Counted(torch.optim.SGD):
    """Each has a number of its own."""

    made = 0

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        Counted.made += 1
        self.number = Counted.made

    def step(self, closure=None):
        """As usual; it reads the number."""
        return super().step() if self.number else None


def test_what_was_the_loader_on_a_branch_that_was_left_is_forgotten():
    """A second rewind goes by the path that the run really took."""
    trainer = make(train_dl=shuffled(), epochs=4, hooks=[SnapshotHook(every_steps=1)])
    first = trainer.train_dl
    for batch in (20, 10):
        trainer.step(epochs=1)
        trainer.train_dl = shuffled(batch)
    trainer.rewind(3)
    assert trainer.train_dl is first
    trainer.step(5)
    trainer.rewind(7)
    assert trainer.train_dl is first and trainer.exact
    trainer.step(epochs=1)
    trainer.train_dl = shuffled(4)
    trainer.step(2)
    trainer.rewind(9)
    assert trainer.train_dl is first


@pytest.mark.slow
@pytest.mark.parametrize("by", ["a hook", "hand"])
def test_a_rewind_to_the_very_boundary_at_which_the_loader_was_replaced(by):
    """The snapshot of a boundary has what a hook has asked for there; what is set by hand after
    it comes later."""
    other, seen = loader(seed=7), []
    def replace(trainer):
        if trainer.step_state.optimizer_step == 5 and by == "a hook":
            trainer.ask(lambda: setattr(trainer, "train_dl", other))
    trainer = make(epochs=3, hooks=[
        SnapshotHook(every_steps=5), LambdaHook(after_epoch=replace),
        LambdaHook(before_train=lambda t: seen.append(t.train_dl is other))])
    trainer.step(epochs=1)
    if by == "hand":
        trainer.train_dl = other
    trainer.fit()
    first, weights = list(seen), [each.clone() for each in trainer.model.parameters()]
    assert first == [False, True, True]
    seen.clear()
    trainer.rewind(5)
    trainer.fit()
    assert seen == ([True, True] if by == "a hook" else [False, False])
    same = all(map(torch.equal, weights, trainer.model.parameters()))
    assert same == (by == "a hook")


def test_a_loader_that_no_rewind_needs_is_let_go(tmp_path):
    """Without states to go back to, none is kept; else those since the first of them."""
    last = CheckpointHook(tmp_path, every_epochs=1, keep_last=1)
    for hooks, kept in (([], 0), ([SnapshotHook(every_steps=5)], 3), ([last], 1)):
        trainer, loaders = make(epochs=9, hooks=hooks), []
        for _ in range(5):
            trainer.step(epochs=1)
            loaders.append(weakref.ref(trainer.train_dl))
            if last in hooks:  # the file before goes once this one is there
                last.finish_writing()
            trainer.train_dl = loader()
            if kept == 3 and len(loaders) == 2:
                hooks[0].snapshots.clear()
        trainer.step(1)
        gc.collect()
        assert sum(each() is not None for each in loaders) == kept


def test_a_rewind_to_a_loader_that_is_not_known_is_named(tmp_path):
    """The trainer that went on from a file never had it."""
    def hooks():
        return [CheckpointHook(tmp_path, every_steps=2, keep_last=9)]

    first = make(hooks=hooks())
    first.step(epochs=1)
    first.train_dl = shuffled(20)
    first.step(1)
    first.close()
    again = make(train_dl=shuffled(20), hooks=hooks())
    again.step(1)
    assert again.exact
    with pytest.warns(UserWarning, match="train_dl stays"):
        again.rewind(2)
    assert "another train_dl" in again.exact.obstacles[0]


class Told(TensorDataset):
    """Has a hook's method."""

    def __init__(self, start):
        super().__init__(*loader().dataset.tensors)
        self.count = start

    def cb_after_step(self, trainer):
        """Counts steps."""
        self.count += 1


class Refusing(Hook):
    """Takes no state, if asked to."""

    refuses = False

    def state_dict(self):
        """A number."""
        return {"number": 1}

    def load_state_dict(self, state):
        """An error, perhaps."""
        if self.refuses:
            raise ValueError("not today")


def test_a_dataset_that_is_a_hook_comes_back_with_its_loader():
    """And where the rewind fails the later one stays."""
    broken = Refusing()
    trainer = make(train_dl=DataLoader(Told(0), 8), hooks=[SnapshotHook(every_steps=1), broken])
    trainer.step(epochs=1)
    first, later = trainer.train_dl, DataLoader(Told(100), 8)
    trainer.train_dl = later
    trainer.step(2)
    rows = [row.name for row in trainer.hooks.rows]
    broken.refuses = True
    with pytest.raises(CheckpointError, match="not today"):
        trainer.rewind(3)
    assert trainer.train_dl is later and later.dataset.count == 102
    broken.refuses = False
    assert [row.name for row in trainer.hooks.rows] == rows
    trainer.rewind(3)
    assert trainer.train_dl is first
    trainer.step(1)
    assert first.dataset.count == 6 and later.dataset.count == 102


def test_a_rewind_keeps_the_part_and_says_so():
    """The journal has it at its new place; the script takes it by name, and a replay refuses it
    before anything has changed."""
    trainer = make(hooks=[SnapshotHook(every_steps=2)])
    trainer.step(4)
    trainer.loss_fn = HUBER
    trainer.step(2)
    with pytest.warns(UserWarning, match="loss_fn stays"):
        trainer.rewind(2)
    assert [(e.step, e.name) for e in trainer.journal.surviving()
            if e.kind == "assign"] == [(2, "loss_fn")]
    trainer.fit()
    script = trainer.journal.to_script(epochs=2)
    assert "trainer.step(2)" in script
    assert "# loss_fn_2: HuberLoss, from step 2 on" in script
    again = make()
    exec(script, {"make_trainer": lambda seed: again, "loss_fn_2": HUBER})
    assert equal(trainer.model, again.model)
    replayed = make(hooks=[ReplayHook(trainer.journal)])
    with pytest.raises(ValueError, match="HuberLoss"):
        replayed.fit()


def test_plain_settings_are_replayed(tmp_path):
    """A journal holds them whole."""
    trainer = after_one_epoch()
    trainer.micro_batch_size = 3
    trainer.fit()
    trainer.journal.save(tmp_path / "journal.jsonl")
    again = make(hooks=[ReplayHook(Journal.load(tmp_path / "journal.jsonl"))])
    again.fit()
    assert again.micro_batch_size == 3 and equal(trainer.model, again.model)


def test_parameters_of_a_loss_function_are_not_lost():
    """One that is trained cannot be exchanged under the optimizer."""
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
        def forward(self, pred, target):
            return self.weight.abs() * SQUARES(pred, target)
    loss_fn = Weighted()
    trainer = make(loss_fn=loss_fn, optim=lambda p: sgd([*p, *loss_fn.parameters()]),
                   hooks=[EMAHook(0.9)])
    trainer.step(2)
    with pytest.raises(ValueError, match="trains parameters of the loss function"):
        trainer.loss_fn = SQUARES
    assert trainer.fit().steps == 10
