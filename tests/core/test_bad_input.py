"""Bad input is refused with the value and what is allowed, before anything has changed."""

import copy
import math
import re
import random
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trainer_nb.core.control import Command
from trainer_nb.core.hook import Hook, LambdaHook
from small_runs import Loop
from trainer_nb.core.tunable import Tunable


def make_data(count=8):
    """A few pairs (inputs, targets)."""
    draw = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 3, generator=draw),
                         torch.randn(count, 1, generator=draw))


def make_model(seed=0):
    """A model with weights and running means; the global streams stay as they are."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1))


def make_loop(model=None, train_step=None, train_dl=None, valid_dl=None, **settings):
    """A run that would work."""
    if train_step is None:
        settings.setdefault("loss_fn", nn.MSELoss())
    settings.setdefault("optim", lambda parameters: torch.optim.AdamW(parameters, lr=0.01))
    train_dl = DataLoader(make_data(), 4, shuffle=True) if train_dl is None else train_dl
    return Loop(model or make_model(), train_step, train_dl, valid_dl, device="cpu", **settings)


def copied(value):
    """A deep copy in which tensors are bytes, so that == compares all bits."""
    if isinstance(value, torch.Tensor):
        return value.detach().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, (list, tuple)) else value


def snapshot(folder, model, loop=None):
    """All that bad input must leave alone."""
    state = {
        "weights": model.state_dict(),
        "gradients": [p.grad for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "hooks of modules": [len(m._forward_hooks) + len(m._forward_pre_hooks)
                             for m in model.modules()],
        "streams": [random.getstate(), np.random.get_state(), torch.get_rng_state()],
        "files": sorted(str(path) for path in folder.rglob("*")),
    }
    if loop is not None:
        state |= {
            "optimizer": loop.optim.state_dict(),
            "counters": copy.copy(loop.step_state),  # compares its counters
            "totals": (loop.epochs, loop.max_steps),
            "settings": {name: entry.read() for name, entry in loop.tunables().items()},
            "journal": len(loop.journal),
            "pending": loop.tunables.pending,
        }
    return copied(state)


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """`with refused(model, loop, words...)`: an error with these words, and nothing has changed."""
    monkeypatch.chdir(tmp_path)

    @contextmanager
    def check(error, words, model, loop=None):
        before, threads = snapshot(tmp_path, model, loop), set(threading.enumerate())
        with pytest.raises(error) as excinfo:
            yield
        after = snapshot(tmp_path, model, loop)
        assert set(threading.enumerate()) <= threads  # one of another test may have ended
        assert [name for name in before if before[name] != after[name]] == []
        missing = [word for word in words if word not in str(excinfo.value)]
        assert not missing, f"{missing} not in: {excinfo.value}"

    return check


def test_the_snapshot_sees_changes(tmp_path):
    """What the other tests rely on: a step, a draw, a file, a mode are all seen."""
    loop = make_loop()
    before = snapshot(tmp_path, loop.model, loop)
    assert snapshot(tmp_path, loop.model, loop) == before
    loop.step()
    after = snapshot(tmp_path, loop.model, loop)
    assert {name for name in before
            if before[name] != after[name]} == {"weights", "optimizer", "counters", "streams"}
    torch.rand(1), loop.model.eval(), (tmp_path / "file").touch(), loop.tune(lr_scale=0.5)
    later = snapshot(tmp_path, loop.model, loop)
    assert {n for n in after
            if after[n] != later[n]} == {"modes", "streams", "files", "settings", "journal"}


# ---- what the constructor is given


class Watcher(Hook):
    """A hook with a tunable."""

    width = Tunable(4, min=1, max=9)


CONSTRUCTOR = [
    ({"hooks": [Watcher]}, TypeError, ["Watcher is a class", "Watcher()"]),
    ({"hooks": [3]}, TypeError, ["3", "not a hook"]),
    ({"mixed_precision": "fp8"}, ValueError, ["mixed_precision='fp8'", "None", "'bf16'", "'fp16'"]),
    ({"mixed_precision": "float16"}, ValueError, ["'float16'", "did you mean 'fp16'"]),
    ({"mixed_precision": "bfloat16"}, ValueError, ["'bfloat16'", "did you mean 'bf16'"]),
    ({"mixed_precision": 16}, ValueError, ["mixed_precision=16", "'bf16'"]),
    *[
        ({"gradient_accumulation_steps": v}, ValueError,
         ["gradient_accumulation_steps", repr(v), "1 or more"])
        for v in (0, -2, 1.5, "2", None, True)
    ],
    *[
        ({"micro_batch_size": v}, ValueError,
         [f"micro_batch_size={v!r}", "1 or more", "'auto'", "None"])
        for v in (0, -4, 2.5, "automatic", True)
    ],
    *[({"grad_clip": v}, ValueError, ["grad_clip", repr(v), "1e-12 or more"])
      for v in (-1.0, 0, math.nan, math.inf, "1")],
    *[
        ({"non_finite": v}, ValueError, [f"non_finite={v!r}", "'raise'", "'skip'", "'skip:N'"])
        for v in ("skips", "skip:", "skip:x", "skip:-1", 3, "")
    ],
    *[({"eval_every": v}, ValueError, ["eval_every", repr(v), "1 or more"])
      for v in (0, -1, 1.5, "epoch")],
    *[
        ({"limit_batches": v}, ValueError, [f"limit_batches={v!r}", "1 or more", "fraction"])
        for v in (0, -1, 0.0, 1.5, -0.5, True, "2", math.nan)
    ],
    *[({"limit_batches": {"train": 3, "valid": v}}, ValueError,
       [f"limit_batches['valid']={v!r}", "1 or more", "fraction"]) for v in (0, True, "2")],
    ({"limit_batches": {"val": 3}}, ValueError,
     ["limit_batches: 'val'", "'train', 'valid', 'test'"]),
    *[({"overfit_batches": v}, ValueError, [f"overfit_batches={v!r}", "1 or more"])
      for v in (0, -1, 0.5, True)],
    *[({"fast_dev_run": v}, ValueError, [f"fast_dev_run={v!r}", "1 or more"])
      for v in (-1, 1.5, "yes")],
    *[({"max_time": v}, ValueError, [f"max_time={v!r}", "seconds", "timedelta"])
      for v in (-1, 0, "1h", math.nan)],
    *[({"seed": v}, ValueError, [f"seed={v!r}", "whole number"])
      for v in (1.5, "abc", True, 2**70, -2**64)],
    ({"resume_data": "rewind"}, ValueError, ["resume_data='rewind'", "'skip'", "'replay'"]),
    ({"eval_first": True}, ValueError, ["eval_first", "valid_dl"]),
    ({"eval_every": 2}, ValueError, ["eval_every=2", "valid_dl"]),
    *[
        ({"valid_dl": {"near": [], name: []}}, ValueError, [repr(name), "validation loader"])
        for name in ("train", "test")
    ],
    ({"loss_fn": nn.MSELoss}, TypeError, ["loss_fn", "MSELoss()"]),
    ({"loss_fn": "mse"}, TypeError, ["loss_fn='mse'", "pred, target"]),
    ({"optim": "adam"}, TypeError, ["optim='adam'", "Optimizer", "callable"]),
    ({"optim": lambda parameters: None}, TypeError, ["optim", "returned NoneType", "Optimizer"]),
    ({"metrics": len}, TypeError, ["metrics is a builtin_function", "give a dict"]),
    ({"train_step": 3, "loss_fn": None}, TypeError, ["train_step=3", "batch, trainer"]),
    ({"eval_step": "step"}, TypeError, ["eval_step='step'", "batch, trainer"]),
    ({"limit_batches": 2, "overfit_batches": 3}, ValueError,
     ["limit_batches=2", "overfit_batches=3", "give one"]),
    ({"metrics": {"accuracy": 0.5}}, TypeError, ["metrics", "'accuracy'", "0.5"]),
]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    CONSTRUCTOR,
    ids=[re.sub(" at 0x[0-9a-f]+", "", f"{next(iter(s))}={next(iter(s.values()))}")
         for s, *_ in CONSTRUCTOR],
)
def test_the_constructor_refuses(refused, settings, error, words):
    """Each setting by itself, with the value, what is allowed, and the model untouched."""
    model = make_model()
    with refused(error, words, model):
        make_loop(model, **settings)


def test_train_step_and_loss_function_together(refused):
    """One of them would be silently unused."""
    model = make_model()
    with refused(ValueError, ["train_step", "loss_fn", "both"], model):
        make_loop(model, lambda batch, trainer: {}, loss_fn=nn.MSELoss())


@pytest.mark.parametrize("model", [None, 3, nn.Linear, lambda x: x])
def test_what_is_no_model(model):
    """The message says what came instead."""
    with pytest.raises(TypeError, match=f"{type(model).__name__}.*torch.nn.Module"):
        Loop(model, None, [], loss_fn=nn.MSELoss())


@pytest.mark.parametrize("kind",
                         ["of another model", "of a copy", "half of them", "from a callable",
                          "added later"])
def test_an_optimizer_of_other_parameters(refused, kind):
    """It would train something that nobody sees; its own parameters are not touched either."""
    model, other = make_model(), make_model()
    own = list(model.parameters())
    given = {"half of them": own[:2]
             + list(other.parameters())[2:]}.get(kind, list(other.parameters()))
    optim = torch.optim.AdamW(given)
    if kind == "added later":
        optim = torch.optim.AdamW(own)
        optim.add_param_group({"params": list(other.parameters())[:1]})
    count = {"half of them": 4, "added later": 1}.get(kind, 6)
    with refused(ValueError,
                 [f"{count} parameter(s)", "not the model's", "(4, 3)" if count != 4 else "(4,)"],
                 model):
        make_loop(model, optim=(lambda parameters: optim) if kind == "from a callable" else optim)
    with refused(ValueError, ["not the model's"], other):
        make_loop(model, optim=optim)


def test_optimizers_that_are_right():
    """Some of the parameters, those of the loss function, or a class as the callable:
    all welcome."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, pred, target):
            return self.scale * (pred - target).square().mean()

    model, loss = make_model(), Scaled()
    make_loop(model, loss_fn=loss,
              optim=torch.optim.SGD([*model[3].parameters(), loss.scale], lr=0.1)).fit(epochs=1)
    assert loss.scale != 1
    assert isinstance(make_loop(optim=torch.optim.SGD).optim, torch.optim.SGD)


# ---- totals

TOTALS = [
    ({}, {}, ["epochs=", "max_steps=", "neither is"]),
    ({}, {"epochs": 1, "max_steps": 1}, ["both are", "epochs=1", "max_steps=1"]),
    *[({}, {"epochs": v}, [f"epochs={v!r}", "1 or more"]) for v in (0, -1, 1.5, "3", True)],
    *[({}, {"max_steps": v}, [f"max_steps={v!r}", "1 or more"]) for v in (0, -1, 1.5, "3", True)],
]


@pytest.mark.parametrize("verb", ["fit", "start"])
@pytest.mark.parametrize(("settings", "totals", "words"), TOTALS)
def test_totals_that_make_no_sense(refused, verb, settings, totals, words):
    """Neither, both, or no whole number."""
    seen = []
    loop = make_loop(hooks=[LambdaHook(before_fit=seen.append, cleanup_fit=seen.append)],
                     **settings)
    with refused(ValueError, [f"{verb}()", *words], loop.model, loop):
        getattr(loop, verb)(**totals)
    assert (seen, loop.state) == ([], "idle")
    assert loop.fit(epochs=1).status == "finished"


def test_totals_of_a_run_survive_bad_ones(refused):
    """A refused total does not replace the one in force."""
    loop = make_loop(epochs=3)
    loop.step()
    for totals in ({"epochs": 0}, {"epochs": 1, "max_steps": 1}, {"max_steps": 2.5}):
        with refused(ValueError, [], loop.model, loop):
            loop.fit(**totals)
    assert loop.fit().epochs == 3


@pytest.mark.parametrize("wrong",
                         [{"n": 0}, {"n": -1}, {"n": 1.5}, {"n": "2"}, {"epochs": 0},
                          {"epochs": 0.5}])
def test_steps_that_make_no_sense(refused, wrong):
    """step() takes whole numbers, 1 or more."""
    loop = make_loop()
    (name, value), *_ = wrong.items()
    with refused(ValueError, ["step()", f"{name}={value!r}", "1 or more"], loop.model, loop):
        loop.step(**wrong)


# ---- loaders


class NoLength(IterableDataset):
    """Batches without a length."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def few():
    """Too few samples for a batch."""
    return DataLoader(make_data(2), 4, drop_last=True)


@pytest.mark.parametrize("verb", ["fit", "step", "start"])
@pytest.mark.parametrize("loader", [[], few()], ids=["list", "drop_last"])
def test_an_empty_loader(refused, verb, loader):
    """Known before the first hook is called."""
    seen = []
    loop = make_loop(train_dl=loader, epochs=1, hooks=[LambdaHook(before_fit=seen.append)])
    with refused(ValueError, [f"{verb}()", "train_dl is empty"], loop.model, loop):
        getattr(loop, verb)()
    assert seen == []


def test_an_empty_loader_without_length(refused):
    """Known when it is iterated: no epoch is counted, and max_steps do not spin for ever."""
    for totals in ({"epochs": 2}, {"max_steps": 2}):
        loop = make_loop(train_dl=DataLoader(NoLength([]), batch_size=None), **totals)
        with refused(ValueError, ["train_dl gave no batch in epoch 1"], loop.model, loop):
            loop.fit()
        assert loop.step_state.epoch == 0


def test_a_generator_is_used_up(refused):
    """The second epoch finds nothing; the message knows why."""
    batches = list(DataLoader(make_data(), 4))
    loop = make_loop(train_dl=(batch for batch in batches), epochs=1)
    loop.fit()
    with refused(ValueError, ["train_dl gave no batch in epoch 2", "only once"], loop.model):
        loop.fit(epochs=2)


def test_no_loader_at_all(refused):
    """A run without train_dl can look, but not train."""
    loop = Loop(make_model(), loss_fn=nn.MSELoss(), device="cpu", epochs=1)
    with refused(ValueError, ["fit()", "no train_dl"], loop.model, loop):
        loop.fit()
    assert loop.validate(DataLoader(make_data(), 4))["valid/loss"] > 0


@pytest.mark.parametrize("loader", [[], few()], ids=["list", "drop_last"])
def test_an_empty_validation_loader(refused, loader):
    """Known before training begins, not at the end of the first epoch; its name is told."""
    loop = make_loop(valid_dl={"near": DataLoader(make_data(), 4), "far": loader}, epochs=1)
    with refused(ValueError, ["fit()", "'far' is empty"], loop.model, loop):
        loop.fit()
    for look in (loop.validate, lambda: loop.test({"far": loader})):
        with refused(ValueError, ["'far' is empty"], loop.model, loop):
            look()


@pytest.mark.parametrize("loader", [[], few(), DataLoader(NoLength([]), None)],
                         ids=["list", "few", "no length"])
def test_predictions_of_an_empty_loader(refused, loader):
    """None would be an answer that the next line stumbles over."""
    loop = make_loop(epochs=1)
    with refused(ValueError, ["predict()", "no batch"], loop.model, loop):
        loop.predict(loader)


def test_validate_without_a_loader(refused):
    """There is nothing to look at."""
    loop = make_loop()
    with refused(ValueError, ["validate()", "valid_dl"], loop.model, loop):
        loop.validate()
    for name in ("train", "test"):
        with refused(ValueError, [repr(name)], loop.model, loop):
            loop.validate({name: DataLoader(make_data(), 4)})


def test_a_fraction_needs_a_length(refused):
    """A tenth of an unknown number is not a number."""
    loader = DataLoader(NoLength(list(DataLoader(make_data(), 4))), batch_size=None)
    loop = make_loop(train_dl=loader, limit_batches=0.1, epochs=1)
    with refused(ValueError, ["limit_batches=0.1", "length", "count"], loop.model, loop):
        loop.fit()


# ---- what a step returns


def good(batch, trainer):
    """The loss of a batch."""
    return nn.functional.mse_loss(trainer.model(batch[0]), batch[1])


OUTPUTS = {
    "a tensor": (lambda b, t: good(b, t), TypeError, ["Tensor", "not a dict", "{'loss': loss}"]),
    "nothing": (lambda b, t: None, TypeError, ["NoneType", "not a dict"]),
    "a tuple": (lambda b, t: (good(b, t), 1), TypeError, ["tuple", "not a dict"]),
    "no loss": (lambda b, t: {"los": good(b, t)}, ValueError, ["no 'loss'", "'los'"]),
    "an empty dict": (lambda b, t: {}, ValueError, ["no 'loss'"]),
    "a float": (lambda b, t: {"loss": good(b, t).item()}, TypeError,
                ["float", "not a tensor", ".item()"]),
    "many": (lambda b, t: {"loss": good(b, t).expand(4)}, ValueError,
             ["4 elements", "(4,)", "loss.mean()"]),
    "none": (lambda b, t: {"loss": good(b, t).expand(0)}, ValueError, ["0 elements", "(0,)"]),
    "detached": (lambda b, t: {"loss": good(b, t).detach()}, ValueError,
                 ["no gradient", "detached", "no_grad"]),
    "n = 0": (lambda b, t: {"loss": good(b, t), "n": 0}, ValueError, ["n=0", "1 item or more"]),
    "n < 0": (lambda b, t: {"loss": good(b, t), "n": -3}, ValueError, ["n=-3", "1 item or more"]),
    "a vector": (lambda b, t: {"loss": good(b, t), "v": torch.ones(3)}, TypeError,
                 ["'v'", "(3,)", "mean"]),
    "a word": (lambda b, t: {"loss": good(b, t), "deep": {"word": "x"}}, TypeError,
               ["'deep/word'", "str"]),
}


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_step_that_returns_nonsense(refused, kind, accumulation):
    """Found in the first batch; weights, running means aside, and optimizer are untouched, nothing
    is counted."""
    step, error, words = OUTPUTS[kind]
    model = make_model()
    model[1].eval().requires_grad_(False)  # a running mean moves with the forward pass itself
    loop = make_loop(model, step, gradient_accumulation_steps=accumulation, epochs=1)
    with refused(error, words, loop.model, loop):
        loop.fit()
    assert loop.state == "error"
    assert all(p.grad is None for p in loop.model.parameters())


@pytest.mark.parametrize("kind", ["a tensor", "detached", "many", "n = 0", "a vector"])
def test_a_repaired_step_begins_at_the_beginning(kind):
    """With the function put right, the same run gives the weights of one that was right from the
    start."""
    loops = []
    for first in (OUTPUTS[kind][0], None):
        model = make_model()
        model[1].eval().requires_grad_(False)
        loop = make_loop(model, lambda b, t: {"loss": good(b, t)}, seed=4)
        if first is not None:
            loop.train_step, right = first, loop.train_step
            with pytest.raises((TypeError, ValueError)):
                loop.fit(epochs=2)
            loop.train_step = right
        loop.fit(epochs=2)
        loops.append(loop)
    assert copied(loops[0].model.state_dict()) == copied(loops[1].model.state_dict())
    assert loops[0].step_state == loops[1].step_state


EVALUATED = ["a tensor", "nothing", "no loss", "a float", "many", "n = 0", "n < 0", "a vector"]


@pytest.mark.parametrize("kind", EVALUATED)
def test_an_evaluation_step_that_returns_nonsense(refused, kind):
    """The same words, and the model is back in training mode."""
    step, error, words = OUTPUTS[kind]
    loop = make_loop(valid_dl=DataLoader(make_data(), 4), eval_step=step)
    with refused(error, words, loop.model, loop):
        loop.validate()


def test_a_loss_of_one_element_or_none_is_welcome(refused):
    """Shape (1,) is one element; None leaves the batch out, but not every batch;
    an evaluation needs no gradient."""
    for loss in (lambda b, t: good(b, t).reshape(1), lambda b, t: good(b, t).reshape(1, 1)):
        loop = make_loop(train_step=lambda b, t, loss=loss: {"loss": loss(b, t)},
                         valid_dl=DataLoader(make_data(), 4))
        assert loop.fit(epochs=1).steps == 2
    loop = make_loop(train_step=lambda b, t: {"loss": None
                                              if t.step_state.batch_idx else good(b, t)})
    assert loop.fit(epochs=1).steps == 1
    loop = make_loop(train_step=lambda b, t: {"loss": None})
    with refused(ValueError, ["epoch 1 made no optimizer step", "every loss was None"], loop.model):
        loop.fit(epochs=1)


def test_metrics_need_prediction_and_target(refused):
    """A step of the user's own must return them."""
    loop = make_loop(
        train_step=lambda b, t: {"loss": good(b, t)},
        valid_dl=DataLoader(make_data(), 4),
        metrics={"error": nn.L1Loss()},
    )
    with refused(ValueError, ["'error'", "'pred'", "'target'"], loop.model, loop):
        loop.validate()


# ---- batches


def batches_of(*sizes):
    """Pairs with n samples."""
    return [(torch.ones(size, 3), torch.ones(size, 1)) for size in sizes]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("position", [0, 1])
def test_a_batch_without_samples(refused, accumulation, position):
    """Its loss would be NaN; the place is named, and its window leaves nothing behind."""
    loader = batches_of(*[4] * position, 0, 4)
    loop = make_loop(train_dl=loader, gradient_accumulation_steps=accumulation, epochs=1)
    loop.model[1].eval().requires_grad_(False)
    if accumulation == 1 and position:
        loop.step()
    with refused(ValueError, [f"batch {position + 1} of epoch 1", "no sample"], loop.model, loop):
        loop.fit()


def test_an_evaluation_batch_without_samples(refused):
    """It would make the whole evaluation NaN."""
    loop = make_loop(valid_dl=batches_of(4, 0))
    with refused(ValueError, ["batch 1", "'valid'", "no sample"], loop.model, loop):
        loop.validate()


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"x": torch.ones(2, 3)}, ["dict", "1", "(inputs, targets)", "train_step"]),
        ((torch.ones(2, 3),) * 3, ["tuple of 3", "(inputs, targets)"]),
        (torch.ones(2, 3), ["Tensor", "(inputs, targets)"]),
    ],
)
def test_a_batch_that_is_no_pair(refused, batch, words):
    """With loss_fn= a batch is a pair; the message says what it is and what to write."""
    loop = make_loop(train_dl=[batch], epochs=1)
    with refused(TypeError, words, loop.model, loop):
        loop.fit()


def test_a_model_without_its_own_loss(refused):
    """Without loss_fn and train_step the model returns its loss;
    the message names all three ways."""
    model = make_model()
    model[1].eval().requires_grad_(False)
    loop = Loop(model, None, [torch.ones(2, 3)], device="cpu", epochs=1)
    with refused(TypeError, ["tensor of shape", "no loss", "loss_fn=", "train_step", "'loss'"],
                 loop.model, loop):
        loop.fit()


# ---- tunables

TUNED = [
    ({"lr": -1}, ["lr = -1", "0 or more", "None"]),
    ({"lr": math.nan}, ["lr = nan", "0 or more"]),
    ({"lr": math.inf}, ["lr = inf"]),
    ({"lr": "fast"}, ["lr = 'fast'", "a number"]),
    ({"lr": True}, ["lr = True", "a number"]),
    ({"lr_scale": None}, ["lr_scale = None", "a number"]),
    ({"grad_clip": -0.5}, ["grad_clip = -0.5", "1e-12 or more"]),
    ({"gradient_accumulation_steps": 0},
     ["gradient_accumulation_steps = 0", "a whole number, 1 or more"]),
    ({"gradient_accumulation_steps": 1.5}, ["gradient_accumulation_steps = 1.5", "a whole number"]),
    ({"mixed_precision": "fp8"}, ["mixed_precision = 'fp8'", "None", "'bf16'", "'fp16'"]),
    ({"weight_decay": -1}, ["weight_decay = -1", "0 or more"]),
    ({"eval_every": 0}, ["eval_every = 0", "1 or more"]),
    ({"watcher.width": 10}, ["watcher.width = 10", "between 1 and 9"]),
    ({"watcher.width": 0}, ["watcher.width = 0", "between 1 and 9"]),
    ({"watcher.enabled": 1}, ["watcher.enabled = 1", "True or False"]),
    ({"watcher.order": 0.5}, ["watcher.order = 0.5", "a whole number"]),
    ({"gradclip": 1.0}, ["'gradclip'", "did you mean 'grad_clip'"]),
    ({"accumulation_steps": 2},
     ["'accumulation_steps'", "did you mean 'gradient_accumulation_steps'"]),
    ({"watcher.widht": 2}, ["'watcher.widht'", "did you mean 'watcher.width'"]),
    ({"Lr": 0.1}, ["'Lr'", "did you mean 'lr'"]),
    ({"zzz": 1}, ["'zzz'", "no tunable", "grad_clip", "watcher.width"]),
    ({"lr_scale": 0.5, "grad_clip": 2.0, "watcher.width": 0}, ["watcher.width = 0"]),
    ({"lr_scale": 0.5, "typo_here": 2.0}, ["'typo_here'"]),
]


@pytest.mark.parametrize(("values", "words"), TUNED, ids=[str(values) for values, _ in TUNED])
def test_a_tunable_that_is_refused(refused, values, words):
    """Out of range, of another type or unknown:
    an error where it is said, and none of several values is taken."""
    loop = make_loop(hooks=[Watcher()])
    with refused(ValueError, words, loop.model, loop):
        loop.tune(**values)


def test_a_refused_change_does_not_disturb_a_run():
    """Said to a run in the background it is an error there and then;
    the run neither stops nor changes."""
    loop = make_loop(hooks=[Watcher()])
    loop.start(epochs=10**9)
    for values in ({"lr": -1}, {"watcher.width": 0, "lr_scale": 0.5}, {"larning": 1}):
        with pytest.raises(ValueError):
            loop.tune(**values)
    assert loop.state == "running"
    reply = loop.post(Command("tune", {"watcher.width": 99}, source="widget"))
    assert (reply.status, "between 1 and 9" in reply.reason) == ("refused", True)
    loop.tune(**{"watcher.width": 5}).wait(120)
    loop.stop()
    assert loop.wait().status == "stopped"
    assert [(e.name, e.new) for e in loop.journal if e.kind == "tune"] == [("watcher.width", 5)]
    assert (loop.lr, loop.lr_scale, loop.get_hook(Watcher).width) == (None, 1.0, 5)


def test_an_attribute_is_checked_like_a_change():
    """Setting it directly is refused with the same words."""
    loop, watcher = make_loop(), Watcher()
    with pytest.raises(ValueError, match="gradient_accumulation_steps = 0"):
        loop.gradient_accumulation_steps = 0
    with pytest.raises(ValueError, match="width = 0.*between 1 and 9"):
        watcher.width = 0
    assert (loop.gradient_accumulation_steps, watcher.width) == (1, 4)


@pytest.mark.parametrize(
    "wrong", [{"default": 0, "min": 1}, {"default": None}, {"default": "c", "choices": ("a", "b")}]
)
def test_a_tunable_that_refuses_its_own_default(wrong):
    """Found where it is declared."""
    with pytest.raises((ValueError, TypeError)):
        Tunable(**wrong)


def test_an_unknown_command_is_refused():
    """The reply names those that there are."""
    loop = make_loop()
    reply = loop.post(Command("paus"))
    assert reply.status == "refused"
    assert "'paus'" in reply.reason and "pause" in reply.reason.replace("'paus'", "")
