"""Inspection: the numbers are those one would compute by hand, and looking changes nothing."""

import math
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from digits_runs import (DrawingData, assert_same, at_step, everything, in_evaluation, make_data,
                         make_model, wait_for)
from torch import nn
from torch.utils.data import DataLoader

from trainer_nb.core.control import Command, TensorRow
from trainer_nb.core.hook import Hook, LambdaHook
from trainer_nb.hooks.inspect import InspectHook, layer_names, named_tensors, tensor_row
from trainer_nb.trainer import Trainer

Pair = namedtuple("Pair", "left right")


def make_trainer(*hooks, valid=True, **given_settings):
    """Shuffled digits with noise, three windows an epoch, dropout and running means."""
    settings = {
        "train_dl": DataLoader(make_data(44, DrawingData), 8, shuffle=True),
        "loss_fn": nn.CrossEntropyLoss(),
        "optim": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        "gradient_accumulation_steps": 2,
        "valid_dl": DataLoader(make_data(20, DrawingData), 5, shuffle=True) if valid else None,
        "epochs": 2,
    }  # fmt: skip
    settings |= given_settings
    model = settings.pop("model", None) or make_model()
    return Trainer(model, hooks=hooks, seed=3, device="cpu", progress=False, **settings)


def inspect(trainer, on=True):
    """Ask for it as a panel does."""
    return trainer.post(Command("inspect", {"on": on}, source="widget"))


def looked(*hooks, **settings):
    """A trainer that is inspected from the start, after its fit."""
    trainer = make_trainer(*hooks, **settings)
    inspect(trainer)
    trainer.fit()
    return trainer


def norm(tensors):
    """The norm of several tensors taken together, in double precision."""
    return math.sqrt(sum(tensor.detach().double().square().sum().item() for tensor in tensors))


def plain_model():
    """Two layers, and a parameter that is in no layer."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
            self.scale = nn.Parameter(torch.ones(10))

        def forward(self, x):
            return self.body(x) * self.scale

    torch.manual_seed(1)
    return Scaled()


LAYERS = {"scale": ["scale"], "body.0": ["body.0.weight", "body.0.bias"],
          "body.2": ["body.2.weight", "body.2.bias"]}

# ---- layers


@pytest.mark.parametrize("clip", [None, 0.05])
def test_norms_and_ratios_of_a_step(clip):
    """Of each layer: the gradient before clipping, and the update that was made by the weights that
    were there."""
    seen = []

    class Copy(Hook):
        order = -10

        def before_step(self, trainer):
            """Weights and gradients as they are."""
            named = dict(trainer.model.named_parameters())
            weights = {name: p.detach().clone() for name, p in named.items()}
            seen.append((weights, {name: p.grad.clone() for name, p in named.items()}))

    rate = 0.1
    optim = lambda parameters: torch.optim.SGD(parameters, lr=rate)  # noqa: E731
    trainer = looked(Copy(), model=plain_model(), optim=optim, grad_clip=clip)
    weights, gradients = seen[-1]
    total = norm(gradients.values())
    factor = 1.0 if clip is None else clip / (total + 1e-6)
    assert clip is None or factor < 0.5
    found = trainer.inspection
    assert (found.step, found.layers_step, len(seen)) == (6, 6, 6)
    assert {row.name for row in found.layers} == set(LAYERS)
    for row in found.layers:
        names = LAYERS[row.name]
        wanted = norm(gradients[name] for name in names)
        assert row.norm == pytest.approx(wanted, rel=1e-5)
        assert row.ratio == pytest.approx(
            rate * factor * wanted / norm(weights[name] for name in names), rel=1e-3)


def test_the_update_is_what_the_optimizer_did():
    """Momentum, decay and a rate taken over by hand:
    the weights after the step less those before."""
    kept = {}

    def copies(key):
        return lambda trainer: kept.update({key: [p.detach().clone()
                                                  for p in trainer.model.body[0].parameters()]})

    hook = LambdaHook(before_step=copies("before"), after_step=copies("after"))
    trainer = make_trainer(hook, model=plain_model())
    inspect(trainer)
    trainer.tune(lr=0.03, weight_decay=0.5)
    trainer.fit()
    row = next(row for row in trainer.inspection.layers if row.name == "body.0")
    change = norm(a - b for a, b in zip(kept["after"], kept["before"]))
    assert change > 0 and row.ratio == pytest.approx(change / norm(kept["before"]), rel=1e-4)


def test_layers_without_weights_or_gradients():
    """All weights zero: no ratio. Frozen layers are left out, a gradient that is zero is told."""
    model = plain_model()
    model.body[2].requires_grad_(False)
    nn.init.zeros_(model.scale)
    trainer = make_trainer(model=model,
                           optim=lambda p: torch.optim.SGD(
                               [q for q in p if q.requires_grad], lr=0.1))
    inspect(trainer)
    trainer.step(1)
    inspect(trainer)
    rows = {row.name: row for row in trainer.inspection.layers}
    assert set(rows) == {"scale", "body.0"}
    assert (rows["scale"].ratio, rows["body.0"].norm, rows["body.0"].ratio) == (None, 0.0, 0.0)
    assert rows["scale"].norm > 0


def test_a_sparse_gradient():
    """Rows that come up several times in a batch are one row of the gradient."""

    def build(sparse):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(16, 4, sparse=sparse), nn.Flatten(), nn.Linear(32, 2))
        data = [(torch.randint(0, 3, (6, 8)), torch.randint(0, 2, (6,)))]
        optim = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
        return looked(model=model, train_dl=data, valid=False, optim=optim,
                      epochs=1).inspection.layers

    for row, wanted in zip(build(True), build(False), strict=True):
        wanted = (wanted.name, pytest.approx(wanted.norm, rel=1e-4),
                  pytest.approx(wanted.ratio, rel=1e-4))
        assert (row.name, row.norm, row.ratio) == wanted


def test_a_gradient_that_is_nan_is_told():
    """It is what one looks for."""
    bad = at_step(1, lambda t: t.model.scale.grad.fill_(math.nan), "after_backward")
    trainer = make_trainer(bad, model=plain_model(), non_finite=None)
    inspect(trainer)
    trainer.step(2)
    inspect(trainer)
    rows = {row.name: row for row in trainer.inspection.layers}
    assert math.isnan(rows["scale"].norm)
    assert math.isnan(rows["scale"].ratio) and rows["body.0"].norm > 0


def test_a_step_that_was_left_out_is_not_measured():
    """The layers stay those of the last step that was made, and say which."""
    bad = at_step(2, lambda t: t.model.scale.grad.fill_(math.nan), "after_backward")
    trainer = make_trainer(bad, model=plain_model(), non_finite="skip")
    inspect(trainer)
    trainer.fit(epochs=1)
    assert (trainer.inspection.step, trainer.inspection.layers_step) == (2, 2)
    assert all(math.isfinite(row.norm) for row in trainer.inspection.layers)


NAMES = st.lists(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=4).map(".".join),
                 max_size=60)


@given(parameters=NAMES, most=st.integers(1, 12))
def test_layers_are_few_enough(parameters, most):
    """One name for each parameter, a beginning of its own;
    no more than asked for where the first parts allow."""
    found = layer_names(parameters, most)
    assert len(found) == len(parameters)
    for layer, parameter in zip(found, parameters):
        assert layer == parameter or parameter.startswith(f"{layer}.")
    first = {p.split(".")[0] for p in parameters}
    assert len(set(found)) <= max(most, len(first))


# ---- tensors

NESTED = {
    "a pair": ((torch.zeros(2, 3), torch.ones(2)), {"x[0]": (2, 3), "x[1]": (2,)}),
    "a dict": ({"a": torch.zeros(2), 3: [torch.zeros(1)]}, {"x['a']": (2,), "x[3][0]": (1,)}),
    "a named tuple": (Pair(torch.zeros(2), {"b": torch.zeros(4)}),
                      {"x.left": (2,), "x.right['b']": (4,)}),
    "other mappings": (
        defaultdict(list, a=UserDict(b=torch.zeros(1)), c=OrderedDict(d=torch.zeros(2))),
        {"x['a']['b']": (1,), "x['c']['d']": (2,)},
    ),
    "other things": (["text", None, 3, object(), (torch.zeros(5),)], {"x[4][0]": (5,)}),
    "a tensor": (torch.zeros(()), {"x": ()}),
    "nothing": (None, {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", NESTED)
def test_nested_tensors_are_named_as_one_writes_them(kind):
    """Each with the words that would find it."""
    value, wanted = NESTED[kind]
    found = dict(named_tensors(value, "x"))
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == wanted
    for name, tensor in found.items():
        assert eval(name, {"x": value}) is tensor


@dataclass
class Sample:
    """A batch with fields of its own."""

    image: torch.Tensor
    more: dict


def test_a_dataclass_is_looked_into():
    """What can be a batch can be looked at."""
    value = Sample(torch.zeros(2), {"b": torch.ones(3)})
    found = dict(named_tensors(value, "batch"))
    assert {name: tuple(t.shape)
            for name, t in found.items()} == {"batch.image": (2,), "batch.more['b']": (3,)}


@pytest.mark.parametrize(
    ("tensor", "kind", "numbers"),
    [
        (torch.tensor([[1.0, 2.0, 6.0]]), "float32", (1, 3, 6)),
        (torch.tensor([1, 2, 6]), "int64", (1, 3, 6)),
        (torch.tensor([250, 255], dtype=torch.uint8), "uint8", (250, 252.5, 255)),
        (torch.tensor([True, False, True, True]), "bool", (0, 0.75, 1)),
        (torch.tensor([2.0**100, 2.0**100], dtype=torch.bfloat16), "bfloat16", (2.0**100,) * 3),
        (torch.tensor([60000.0, 60000.0], dtype=torch.float16), "float16", (60000,) * 3),
        (torch.tensor(3.0), "float32", (None, 3, None)),
        (torch.tensor([[True]]), "bool", (None, 1, None)),
        (torch.full((3,), 16777217, dtype=torch.int32), "int32", (16777217,) * 3),
        (torch.tensor([1.0, 2.0], requires_grad=True), "float32", (1, 1.5, 2)),
        (torch.tensor([0.0, math.inf]), "float32", (0, math.inf, math.inf)),
        (torch.zeros(0, 4), "float32", (None,) * 3),
        (torch.zeros(3, dtype=torch.complex64), "complex64", (None,) * 3),
        (torch.eye(3).to_sparse(), "float32", (None,) * 3),
    ],
)
def test_the_range_of_a_tensor(tensor, kind, numbers):
    """Of every type; where there is nothing to compare, nothing is told, and of one number the
    number."""
    row = tensor_row("x", tensor)
    assert row == TensorRow("x", tuple(tensor.shape), kind, *numbers)
    assert all(number is None or type(number) is float for number in (row.min, row.mean, row.max))


def test_a_nan_spoils_all_three():
    """Nothing hides it."""
    row = tensor_row("x", torch.tensor([1.0, math.nan]))
    assert all(math.isnan(number) for number in (row.min, row.mean, row.max))
    assert math.isnan(tensor_row("x", torch.tensor(math.nan)).mean)


def test_batch_prediction_and_loss():
    """Of the current batch, in a pause, at the end and after a failure."""
    trainer = make_trainer(at_step(2, lambda t: t.pause()))
    inspect(trainer)
    assert (trainer.inspection.tensors, trainer.inspection.layers,
            trainer.inspection.layers_step) == ([], [], None)
    trainer.fit()
    found = {row.name: row for row in trainer.inspection.tensors}
    assert list(found) == ["batch[0]", "batch[1]", "pred", "loss"]
    assert found["batch[0]"].mean == pytest.approx(trainer.batch[0].double().mean().item())
    assert (found["batch[1]"].kind, found["batch[1]"].max) == ("int64", trainer.batch[1].max())
    assert found["pred"].shape == (8, 10) and found["pred"].min == trainer.pred.min()
    assert (found["loss"].min, found["loss"].mean, found["loss"].max) == (None, trainer.loss, None)
    assert (trainer.inspection.step, trainer.inspection.layers_step) == (2, 2)
    trainer.hooks.add(at_step(4, lambda t: 1 / 0, "before_batch"))
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    failed = {row.name: row for row in trainer.inspection.tensors}
    assert trainer.inspection.step == 4
    assert failed["batch[1]"].mean == trainer.failed_batch[1].double().mean()
    trainer.fit()
    assert trainer.inspection.step == 6


def test_in_a_held_evaluation():
    """The batch of the evaluation is the current one;
    afterwards it is the last one of the training again."""
    trainer = make_trainer(in_evaluation(lambda t: t.pause()))
    inspect(trainer)
    trainer.start()
    wait_for(lambda: trainer.state == "paused" and trainer.inspection.tensors)
    assert {row.name: row.shape for row in trainer.inspection.tensors}["batch[0]"] == (5, 64)
    trainer.resume()
    trainer.wait()
    assert {row.name: row.shape for row in trainer.inspection.tensors}["batch[0]"] == (4, 64)


# ---- on and off


@pytest.mark.parametrize("how", ["all the time", "in mid-run", "now and then"])
def test_looking_changes_nothing(how):
    """The run with it on is the run without, bit for bit."""
    def switch(trainer):
        step = trainer.step_state.optimizer_step
        if how == "in mid-run" and step == 2 or how == "now and then":
            inspect(trainer, on=how == "in mid-run" or step % 2 == 0)

    trainer = make_trainer(LambdaHook(after_step=switch))
    if how == "all the time":
        inspect(trainer)
    trainer.pause_when("step == 4")
    while trainer.fit().status == "paused":
        inspect(trainer)
    plain = make_trainer()
    plain.fit()
    assert_same(trainer, plain)
    assert trainer.inspection is not None and plain.inspection is None


def test_off_takes_the_hook_out():
    """No copy of the weights is made any more; what was seen last stays."""
    trainer = make_trainer()
    trainer.fit(epochs=1)
    assert trainer.get_hook(InspectHook) is None
    inspect(trainer)
    assert isinstance(trainer.get_hook(InspectHook), InspectHook)
    assert inspect(trainer).status == "applied"  # twice is once
    assert sum(isinstance(hook, InspectHook) for hook in trainer.hooks) == 1
    trainer.fit(epochs=2)
    layers = trainer.inspection.layers
    assert len(layers) == 3 and trainer.inspection.layers_step == 6
    inspect(trainer, on=False)
    assert trainer.get_hook(InspectHook) is None and trainer.inspection.layers == layers
    trainer.fit(epochs=3)
    assert not any(isinstance(row.hook, InspectHook) for row, _ in trainer.hooks.before_step)
    assert (trainer.step_state.optimizer_step, trainer.inspection.layers_step) == (9, 6)
    assert len(everything(trainer)[0]) > 20


def test_asked_for_in_a_pause():
    """At once the current batch; with the very next step its layers."""
    trainer = make_trainer(at_step(2, lambda t: t.pause()))
    trainer.start()
    wait_for(lambda: trainer.state == "paused")
    assert inspect(trainer).wait(120).status == "applied"
    assert trainer.inspection.step == 2
    assert [row.name for row in trainer.inspection.tensors][0] == "batch[0]"
    trainer.post(Command("step"))
    wait_for(lambda: trainer.state == "paused" and trainer.step_state.optimizer_step == 3)
    wait_for(lambda: trainer.inspection.step == 3)
    layers = trainer.inspection.layers_step
    trainer.stop()
    trainer.wait()
    assert layers == 3


def test_the_view_has_it():
    """For the panel, through its one door."""
    trainer = looked()
    assert trainer.view.inspection is trainer.inspection and len(trainer.inspection.layers) == 3
