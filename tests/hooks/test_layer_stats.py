"""Statistics of layers: the right numbers, of the right pass, and neither training nor model feels
them."""

import gc
import math
import warnings
import weakref

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import Hook, LayerStatsHook, SnapshotHook, Trainer
from trainer_nb.hooks.layer_stats import BINS, distance, lower_edges, measure

PIXELS, LABELS = load_digits(return_X_y=True)
DATA = TensorDataset(torch.tensor(PIXELS[:200] / 16).float(), torch.tensor(LABELS[:200]))


class Net(nn.Module):
    """An activation in place, dropout, a layer that is used twice, one with a tuple, one that is
    not used."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.norm = nn.BatchNorm1d(32)
        self.twice = nn.Linear(32, 32)
        self.rnn = nn.GRU(32, 16, batch_first=True)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.norm(self.body(x))
        x = self.twice(self.twice(x).relu()).relu()
        return self.head(self.rnn(x[:, None])[0][:, 0])


def make(*hooks, model=None, **settings):
    """10 steps an epoch."""
    torch.manual_seed(0)
    settings = {"epochs": 2, "seed": 1} | settings
    return Trainer(Net() if model is None else model, train_dl=DataLoader(DATA, 20, shuffle=True),
                   valid_dl=DataLoader(DATA, 100), loss_fn=nn.CrossEntropyLoss(),
                   optim=lambda p: torch.optim.AdamW(p, lr=0.01), progress=False, hooks=hooks,
                   device="cpu", **settings)


def hooked(trainer):
    """Modules that have a forward hook."""
    return [name for name, module in trainer.model.named_modules() if module._forward_hooks]


def equal(a, b):
    """All weights and buffers, bit for bit."""
    return all(torch.equal(x, y)
               for x, y in zip(a.model.state_dict().values(), b.model.state_dict().values(),
                               strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {}, {"mixed_precision": "bf16"}, {"gradient_accumulation_steps": 3, "micro_batch_size": 8},
    {"grad_clip": 0.5, "ema": 0.9}])
def test_the_training_does_not_feel_it(settings):
    """Bit for bit; and no module has a hook afterwards."""
    plain, stats = make(**settings), LayerStatsHook(every_steps=1, log=True)
    plain.fit()
    watched = make(stats, **settings)
    watched.fit()
    assert equal(plain, watched) and hooked(watched) == []
    assert stats.history.layers("activations") == ["body.0", "body.1", "norm", "twice", "rnn",
                                                   "head"]
    assert stats.history.layers("gradients") == ["head", "rnn", "twice", "norm", "body.1", "body.0"]


def test_the_numbers_are_right():
    """Against the same pass by hand: output of each layer, and the gradient of the loss for it."""
    stats, kept = LayerStatsHook(every_steps=4), {}
    class Keep(Hook):
        order = -1
        def before_batch(self, trainer):
            if trainer.training and trainer.step_state.optimizer_step == 4:
                kept.update(state={k: v.clone() for k, v in trainer.model.state_dict().items()},
                            batch=trainer.batch)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    make(stats, Keep(), model=model).fit()
    again = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    again.load_state_dict(kept["state"])
    x, outputs = kept["batch"][0], []
    for layer in again:
        x = layer(x)
        x.retain_grad()
        outputs.append(x)
    nn.CrossEntropyLoss()(x, kept["batch"][1]).backward()
    for name, output in zip("012", outputs, strict=True):
        for kind, values, near in (("activations", output.detach(), 0.05),
                                   ("gradients", output.grad, 1e-8)):
            found, values = stats.series(name, kind), values.double().numpy().ravel()
            assert found.steps.tolist() == [1, 5, 9, 13, 17]
            assert found.mean[1] == pytest.approx(values.mean(), rel=1e-4, abs=1e-9)
            assert found.std[1] == pytest.approx(values.std(), rel=1e-4)
            assert found.near_zero[1] == pytest.approx((abs(values) < near).mean(), abs=1e-6)
            counts, _ = np.histogram(abs(values), [*lower_edges(kind), math.inf])
            assert np.allclose(found.histogram[1], counts / len(values), atol=2 / len(values))


def test_shares_of_a_histogram():
    """They add up to one; what is larger than all edges is in the last bin."""
    edges = torch.tensor(lower_edges("activations"), dtype=torch.float32)
    *_, first, second = measure(torch.tensor([0.0, 0.3, -0.3, 1e6]), edges, 0.05)[3:5]
    assert (first, second) == (0.25, 0.5)
    large = measure(torch.randn(300, 200), edges, 0.05)
    assert len(large) == 3 + BINS and large[3:].sum() == pytest.approx(1.0)
    assert measure(torch.tensor([1e6]), edges, 0.05)[-1] == 1
    assert [distance(count)
            for count in (10, 4096, 4097, 4096 * 9, 4096 * 14)] == [1, 1, 11, 11, 17]


def test_gradients_of_scaled_losses():
    """The loss scale of fp16 is taken out."""
    plain, scaled = LayerStatsHook(every_steps=1), LayerStatsHook(every_steps=1)
    model = nn.Sequential(nn.Linear(64, 10))
    make(plain, model=model, max_steps=1, epochs=None).fit()
    trainer = make(scaled, model=nn.Sequential(nn.Linear(64, 10)), max_steps=1, epochs=None,
                   mixed_precision="fp16")
    trainer.fit()
    assert trainer.engine.scaler.get_scale() > 1000
    assert scaled.series("0",
                         "gradients").std[
                             0] == pytest.approx(plain.series("0", "gradients").std[0], rel=0.02)


def test_switched_on_and_off_in_mid_run():
    """On it looks at the next step; off, and between looks, no module has a hook."""
    seen = {}
    class See(Hook):
        order = 100
        def after_step(self, trainer):
            seen[trainer.step_state.optimizer_step] = ("between", hooked(trainer))
        def before_batch(self, trainer):
            if trainer.training:
                seen[trainer.step_state.optimizer_step] = ("forward", hooked(trainer))
    stats = LayerStatsHook(every_steps=2)
    stats.enabled = False
    trainer = make(stats, See())
    trainer.step(3)
    assert not any(names for _, names in seen.values()) and stats.history.fetch() == []
    trainer.tune(**{"layer_stats.enabled": True})
    trainer.step(4)
    assert stats.series("head").steps.tolist() == [5, 7] and hooked(trainer) == []
    trainer.tune(**{"layer_stats.every_steps": 1})
    trainer.step(2)
    assert stats.series("head").steps.tolist() == [5, 7, 8, 9]
    trainer.tune(**{"layer_stats.enabled": False})
    trainer.step(2)
    assert len(stats.series("head").steps) == 4 and hooked(trainer) == []


def test_off_means_off_at_once():
    """Switched off by hand in a forward pass, its hooks are gone before the next one."""
    stats = LayerStatsHook(every_steps=1)
    class Off(Hook):
        order = 100
        def before_batch(self, trainer):
            assert len(hooked(trainer)) == 7
            stats.enabled = False
            assert hooked(trainer) == []
    trainer = make(stats, Off())
    trainer.step(1)
    assert stats.history.fetch() == []


def test_evaluations_are_not_looked_at():
    """Neither those of the run nor those by hand; nor do modules have hooks then."""
    found = []
    class Look(Hook):
        order = 100
        def before_batch(self, trainer):
            if not trainer.training:
                found.extend(hooked(trainer))
    stats = LayerStatsHook(every_steps=1)
    trainer = make(stats, Look())
    trainer.fit()
    trainer.validate()
    assert found == [] and len(stats.series("head").steps) == 20


def test_the_first_batch_of_a_window():
    """With three batches a step one of them is looked at, in its first chunk."""
    seen = []
    class See(Hook):
        order = 100
        def after_backward(self, trainer):
            seen.append(hooked(trainer))
    stats = LayerStatsHook(every_steps=2)
    make(stats, See(), gradient_accumulation_steps=3, micro_batch_size=7).fit()
    assert not any(seen) and stats.series("head").steps.tolist() == [1, 3, 5, 7]


def test_the_first_batch_is_that_of_the_numbers():
    """What is shown is of the window's first batch, not of its last."""
    first = {}
    class See(Hook):
        order = 100
        def after_loss(self, trainer):
            if trainer.training and trainer.step_state.window_batches == 0 and not first:
                first["mean"] = float(trainer.output["pred"].detach().mean())
    stats = LayerStatsHook(every_steps=1)
    make(stats, See(), gradient_accumulation_steps=4).step(1)
    assert stats.series("head").mean[0] == pytest.approx(first["mean"], rel=1e-5)


def test_a_module_that_is_called_twice():
    """Activation and gradient are both of the first call."""
    outputs = []
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)
        def forward(self, x):
            for _ in range(2):
                x = self.layer(x)
                x.retain_grad()
                outputs.append(x)
            return x[:, :10]
    stats = LayerStatsHook(every_steps=1)
    make(stats, model=Twice()).step(1)
    assert stats.series(
        "layer").std[0] == pytest.approx(float(outputs[0].detach().std(correction=0)), rel=1e-5)
    assert stats.series("layer",
                        "gradients").std[
                            0] == pytest.approx(float(outputs[0].grad.std(correction=0)), rel=1e-5)


@pytest.mark.slow
def test_no_graph_is_kept():
    """After the step its activations and the graph are gone."""
    dead = []
    class Watched(Net):
        def forward(self, x):
            hidden = self.body(x)
            dead.append(weakref.ref(hidden))
            pred = self.head(self.rnn(self.norm(hidden)[:, None])[0][:, 0])
            dead.append(weakref.ref(pred))
            return pred
    stats = LayerStatsHook(every_steps=1)
    trainer = make(stats, model=Watched())
    trainer.step(3)
    trainer.pred = trainer.loss = None
    gc.collect()
    assert len(dead) == 6 and not any(each() is not None for each in dead)
    assert all(not row.requires_grad for _, found in stats.history._pending
               for layers in found.values() for row in layers.values())


def test_a_forward_pass_that_fails():
    """No hook stays behind; the next drive measures again."""
    class Fails(Net):
        broken = True
        def forward(self, x):
            pred = super().forward(x)
            if self.broken and self.training:
                raise ValueError("in the forward pass")
            return pred
    stats = LayerStatsHook(every_steps=1)
    trainer = make(stats, model=Fails())
    with pytest.raises(ValueError, match="in the forward pass"):
        trainer.fit()
    assert hooked(trainer) == [] and stats.history.fetch() == []
    trainer.model.broken = False
    trainer.step(2)
    assert stats.series("head").steps.tolist() == [1, 2]


@pytest.mark.parametrize(("modules", "names"), [
    (None, ["body.0", "body.1", "norm", "twice", "rnn", "unused", "head"]), ("body", ["body"]),
    (["head", "norm"], ["head", "norm"]),
    (nn.Linear, ["body.0", "twice", "unused", "head"]),
    (lambda name, module: name.startswith("body."), ["body.0", "body.1", "body.2"])])
def test_which_layers(modules, names):
    """By name, by class, by a function."""
    stats = LayerStatsHook(every_steps=1, modules=modules)
    trainer = make(stats)
    trainer.step(1)
    assert stats.history.layers(
        "activations") == sorted((name for name in names if name != "unused"), key=[
"body.0", "body.1", "body.2", "body", "norm", "twice", "rnn", "head"].index)


def test_a_frozen_part_has_no_gradient():
    """Its activations are measured all the same."""
    stats = LayerStatsHook(every_steps=1)
    trainer = make(stats)
    trainer.model.body.requires_grad_(False)
    trainer.step(1)
    assert "body.0" in stats.history.layers("activations")
    assert "body.0" not in stats.history.layers("gradients")
    assert "| body.0 | 1 |" in stats.table() and "| – | – |" in stats.table()


def test_a_rewind_takes_looks_back():
    """What was measured later is forgotten."""
    stats = LayerStatsHook(every_steps=2)
    trainer = make(stats, SnapshotHook(every_steps=5, every_epochs=None))
    trainer.step(9)
    stats.history.fetch()
    trainer.step(1)
    trainer.rewind(5)
    assert stats.series("head").steps.tolist() == [1, 3, 5]
    trainer.step(4)
    assert stats.series("head").steps.tolist() == [1, 3, 5, 7, 9]


def test_an_earlier_state_takes_looks_back():
    """Loaded, not rewound to: what was measured later is of another course, and steps only
    ascend."""
    stats = LayerStatsHook(every_steps=2)
    trainer = make(stats)
    trainer.step(5)
    state = trainer.state_dict()
    trainer.step(4)
    assert stats.series("head").steps.tolist() == [1, 3, 5, 7, 9]
    trainer.load_state_dict(state)
    trainer.step(2)
    assert stats.series("head").steps.tolist() == [1, 3, 5, 7]


def test_memory_is_bounded():
    """Older looks are thinned out; the first and the last stay."""
    stats = LayerStatsHook(every_steps=1, most=8)
    make(stats, epochs=6, model=nn.Sequential(nn.Linear(64, 10))).fit()
    steps = stats.series("0").steps.tolist()
    assert len(steps) <= 8 and steps[0] == 1 and steps[-1] == 60 and steps == sorted(set(steps))


def test_records():
    """With `log` they are records of the history, at the step they are of."""
    stats = LayerStatsHook(every_steps=5, log=True)
    trainer = make(stats)
    trainer.fit()
    assert trainer.history.steps("layers/head/std").tolist() == [1, 6, 11, 16]
    assert np.allclose(trainer.history["layers/head/grad_std"],
                       stats.series("head", "gradients").std)
    assert trainer.history.steps("train/loss").tolist() == list(range(1, 21))


def test_another_kind_is_refused():
    """The error names the two that there are."""
    with pytest.raises(ValueError, match="'activations' or 'gradients'"):
        LayerStatsHook().series("0", "weights")


@pytest.mark.slow
def test_a_compiled_model():
    """Nothing is measured, a warning says so, and the training goes on."""
    for model in (torch.compile(Net(), backend="eager"), nn.Sequential(nn.Linear(64, 10))):
        if not hasattr(model, "_orig_mod"):
            model.compile(backend="eager")
        stats = LayerStatsHook(every_steps=1)
        trainer = make(stats, model=model)
        with pytest.warns(UserWarning, match="without torch.compile"):
            trainer.step(2)
        assert stats.history.fetch() == []
        assert not any(module._forward_hooks for module in model.modules())


def test_bad_settings():
    """A name that is none is refused before the first step."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for modules, error in (("hed", "did you mean 'head'"),
                               (nn.Conv2d, "no module of the model fits"),
                               (["quux"], "there are model, body")):
            trainer = make(LayerStatsHook(modules=modules))
            with pytest.raises(ValueError, match=error):
                trainer.fit()
            assert trainer.step_state.optimizer_step == 0
        for settings in ({"every_steps": 0}, {"most": 1}):
            with pytest.raises(ValueError, match=next(iter(settings))):
                LayerStatsHook(**settings)
    with pytest.raises(KeyError, match="none yet"):
        LayerStatsHook().series("head")


class Watch(Hook):
    """From step 4 to 9 a wait for the device is an error, also in deterministic algorithms;
    the looks twice a second, which fetch, are put off as long."""

    order = -100

    def after_step(self, trainer):
        """Switch at both ends."""
        step = trainer.step_state.optimizer_step
        if step in (4, 9):
            trainer.driver.boundary.next_refresh = math.inf if step == 4 else 0.0
            torch.use_deterministic_algorithms(step == 4)
            torch.cuda.set_sync_debug_mode("error" if step == 4 else "default")


@pytest.mark.cuda
def test_no_step_waits_for_the_device():
    """A look stays on the GPU."""
    stats = LayerStatsHook(every_steps=2)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    batches = [(x.cuda(), y.cuda()) for x, y in DataLoader(DATA, 20)]
    trainer = Trainer(model, train_dl=batches, loss_fn=nn.CrossEntropyLoss(),
                      hooks=[stats, Watch()], epochs=1, progress=False, device="cuda")
    try:
        trainer.fit()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.use_deterministic_algorithms(False)
    assert stats.series("0").steps.tolist() == [1, 3, 5, 7, 9]
