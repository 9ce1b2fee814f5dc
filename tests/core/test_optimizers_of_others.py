"""Optimizers of other libraries: with modes of their own, with a state of their own, with
parameters that come later."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import CheckpointHook, Hook, Trainer
from trainer_nb.support.saved import CheckpointError

schedulefree = pytest.importorskip("schedulefree")

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True).sin()


def loader():
    """Six batches."""
    return DataLoader(TensorDataset(X, Y), 8)


def net():
    """A model with BatchNorm, always with the same weights."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(),
                         nn.Linear(16, 1))


FREE = {"AdamW": lambda parameters: schedulefree.AdamWScheduleFree(parameters, lr=0.02),
        "SGD": lambda parameters: schedulefree.SGDScheduleFree(parameters, lr=0.5)}


def make(optim, epochs=3, **settings):
    """A trainer that judges each epoch."""
    return Trainer(net(), train_dl=loader(), loss_fn=nn.MSELoss(), optim=optim, epochs=epochs,
                   device="cpu", progress=False, **{"valid_dl": loader(), **settings})


def by_hand(optim, epochs=3):
    """As the library's page has it; the losses of the evaluations, and the weights they judged."""
    model, loss_fn = net(), nn.MSELoss()
    optim, losses, judged = optim(model.parameters()), [], []
    for _ in range(epochs):
        model.train()
        optim.train()
        for x, y in loader():
            loss_fn(model(x), y).backward()
            optim.step()
            optim.zero_grad()
        model.eval()
        optim.eval()
        with torch.no_grad():
            losses.append(loss_fn(model(X), Y).item())
        judged.append(copy.deepcopy(model.state_dict()))
    return losses, judged


@pytest.mark.parametrize("optim", FREE.values(), ids=FREE)
def test_evaluations_judge_the_weights_of_eval_mode(optim, tmp_path):
    losses, judged = by_hand(optim)
    trainer = make(optim)
    trainer.fit()
    assert list(trainer.history["valid/loss"]) == pytest.approx(losses, rel=1e-4)
    assert trainer.test(loader())["test/loss"] == pytest.approx(losses[-1], rel=1e-4)
    assert trainer.test(loader(), weights="last")["test/loss"] == pytest.approx(losses[-1],
                                                                               rel=1e-4)
    expected = net()
    expected.load_state_dict(judged[-1])
    with torch.no_grad():
        wanted = expected.eval()(X)
    assert torch.allclose(trainer.predict(loader()), wanted, atol=1e-4)
    from safetensors.torch import load_file
    path = trainer.export(tmp_path / "model")
    for name, value in load_file(path).items():
        assert torch.allclose(value, judged[-1][name], atol=1e-4), name
    assert '"valid/loss"' in path.with_suffix(".json").read_text("utf-8")


@pytest.mark.parametrize("optim", FREE.values(), ids=FREE)
def test_evaluations_leave_no_trace(optim):
    def weights(look):
        """After three epochs, looked at or not."""
        trainer = make(optim, valid_dl=None)
        for _ in range(9):
            trainer.step(2)
            if look:
                trainer.test(loader())
                trainer.predict(loader())
        return trainer.model.state_dict()

    one, other = weights(True), weights(False)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("optim", FREE.values(), ids=FREE)
@pytest.mark.parametrize("step", [6, 9])
def test_resumed_and_taken_back_bit_for_bit(optim, step, tmp_path):
    straight = make(optim)
    straight.fit()
    first = make(optim)
    first.step(step)
    first.save(tmp_path / "run.pt")
    second = make(optim)
    second.load(tmp_path / "run.pt")
    assert second.exact
    second.fit()
    wanted, found = straight.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert list(second.history["valid/loss"]) == list(straight.history["valid/loss"])


def test_an_optimizer_left_in_eval_mode_trains_on():
    class Left(Hook):
        """Puts the optimizer into eval mode after each epoch."""

        def after_epoch(self, trainer):
            """As one does before one looks at the model."""
            trainer.optim.eval()

    trainer = make(FREE["AdamW"], hooks=[Left()])
    trainer.fit()
    assert not trainer.optim.param_groups[0]["train_mode"]
    with torch.no_grad():
        loss = nn.MSELoss()(trainer.model.eval()(X), Y).item()
    assert loss == pytest.approx(trainer.records["valid/loss"], rel=1e-4)
    trainer.fit(epochs=4)
    assert trainer.step_state.optimizer_step == 24


@pytest.mark.parametrize("files", [False, True])
def test_the_best_weights_are_those_that_were_judged(files, tmp_path):
    hooks = [CheckpointHook(tmp_path)] if files else []
    trainer = make(FREE["SGD"], best=("valid/loss", "min"), hooks=hooks)
    trainer.fit()
    found = trainer.test(loader(), weights="best")["test/loss"]
    assert found == pytest.approx(trainer.best["value"], rel=1e-5)


class Around(torch.optim.Optimizer):
    """Goes halfway back at every third step; its state has its own layout."""

    def __init__(self, params, torch_layout=False):
        self.inner = torch.optim.SGD(params, lr=0.05, momentum=0.9)
        super().__init__(self.inner.param_groups, {})
        self.param_groups, self.count = self.inner.param_groups, 0
        self.state, self.torch_layout = self.inner.state, torch_layout
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    def zero_grad(self, set_to_none=True):
        """Of the inner one."""
        self.inner.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        """A step, and sometimes half of it back."""
        self.inner.step()
        self.count += 1
        if self.count % 3 == 0:
            every = (p for group in self.param_groups for p in group["params"])
            for p, slow in zip(every, self.slow):
                slow.lerp_(p, 0.5)
                p.copy_(slow)

    def state_dict(self):
        """Two layouts."""
        own = {"slow": [each.clone() for each in self.slow], "count": self.count}
        inner = self.inner.state_dict()
        return inner | own if self.torch_layout else {"inner": inner} | own

    def load_state_dict(self, state):
        """The same two."""
        self.inner.load_state_dict({name: state[name] for name in ("state", "param_groups")}
                                   if self.torch_layout else state["inner"])
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        self.count = state["count"]
        for slow, saved in zip(self.slow, state["slow"]):
            slow.copy_(saved)


def test_a_state_that_no_load_would_take_is_not_saved(tmp_path):
    trainer = make(Around)
    trainer.step(7)
    before = copy.deepcopy(trainer.model.state_dict())
    for attempt in (lambda: trainer.save(tmp_path / "run.pt"), trainer.state_dict):
        with pytest.raises(CheckpointError, match=r"Around.state_dict\(\).*'param_groups'"):
            attempt()
    assert not list(tmp_path.iterdir())
    assert all(torch.equal(before[name], value)
               for name, value in trainer.model.state_dict().items())
    trainer.fit()  # a run without files goes on
    with pytest.raises(CheckpointError, match="Around"):
        make(Around, hooks=[CheckpointHook(tmp_path / "files")]).step(1)


def test_with_torch_s_layout_it_goes_on(tmp_path):
    def new():
        """With entries of its own beside torch's."""
        return make(lambda parameters: Around(parameters, torch_layout=True))

    straight = new()
    straight.fit()
    first = new()
    first.step(7)
    first.save(tmp_path / "run.pt")
    second = new()
    second.load(tmp_path / "run.pt")
    second.fit()
    assert torch.equal(straight.model[0].weight, second.model[0].weight)


@pytest.mark.parametrize("place", ["before_epoch", "after_step"])
def test_parameters_unfrozen_in_a_drive_that_nobody_holds_are_named(place):
    class Unfreeze(Hook):
        """Thaws the first layer in the third epoch."""

        def before_epoch(self, trainer):
            """At its start."""
            self.thaw(trainer, "before_epoch")

        def after_step(self, trainer):
            """Or within it."""
            self.thaw(trainer, "after_step")

        def thaw(self, trainer, point):
            """If this is the place."""
            if point == place and trainer.step_state.epoch == 2:
                trainer.model[0].requires_grad_(True)

    model = net()
    model[0].requires_grad_(False)
    trainer = Trainer(model, train_dl=loader(), loss_fn=nn.MSELoss(), epochs=3, device="cpu",
                      optim=lambda parameters: torch.optim.SGD(
                          [p for p in parameters if p.requires_grad], lr=0.01),
                      progress=False, hooks=[Unfreeze()])
    with pytest.warns(UserWarning, match=r"no optimizer holds 1 trainable parameters \(0.weight"
                      ) as found:
        trainer.fit()
    assert sum("no optimizer holds" in str(each.message) for each in found) == 1


def adafactor(**settings):
    """Of the Transformers library, which computes its rate by itself if it gets none."""
    transformers = pytest.importorskip("transformers")
    return lambda parameters: transformers.optimization.Adafactor(parameters, **settings)


@pytest.mark.slow
def test_an_optimizer_without_a_rate_is_refused_with_what_to_write():
    for optim in (adafactor(), {"a": adafactor()}):
        several = isinstance(optim, dict)
        more = {"train_step": {"a": lambda batch, trainer: {}}, "loss_fn": None} if several else {}
        model = nn.ModuleDict({"a": net()})
        with pytest.raises(ValueError, match="Adafactor: parameter group 0 has lr=None.*relative_"):
            Trainer(**{"model": model, "train_dl": loader(), "loss_fn": nn.MSELoss(),
                       "device": "cpu", "progress": False, "epochs": 1, "optim": optim, **more})


@pytest.mark.slow
def test_it_trains_with_a_rate_that_can_be_changed():
    trainer = make(adafactor(lr=0.01, relative_step=False, scale_parameter=False))
    trainer.step(3)
    trainer.tune(lr=0.0)
    before = copy.deepcopy(trainer.model[0].weight)
    trainer.step(3)
    assert torch.equal(before, trainer.model[0].weight)
    with pytest.raises(ValueError, match="lr=None"):
        trainer.optim = adafactor()
    trainer.tune(lr=0.01)
    trainer.fit()
    assert not torch.equal(before, trainer.model[0].weight)


@pytest.mark.parametrize("kind", FREE)
def test_what_a_schedule_free_optimizer_keeps_among_its_settings_is_no_setting(kind, tmp_path,
                                                                                capsys):
    """A resumed run says nothing of it; nor that a seed could be tuned."""
    def make(seed):
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 1)
        x = torch.ones(16, 4)
        return Trainer(net, train_dl=[(x, x[:, :1])] * 4, loss_fn=torch.nn.MSELoss(), epochs=2,
                       optim=FREE[kind], seed=seed, device="cpu", progress=False)
    first = make(0)
    first.step(3)
    first.save(tmp_path / "run.pt")
    capsys.readouterr()
    make(0).load(tmp_path / "run.pt")
    assert "settings" not in capsys.readouterr().out
    make(1).load(tmp_path / "run.pt")
    said = capsys.readouterr().out
    assert "the file's settings are in force: seed 0 (here 1)" in said and "tune" not in said
