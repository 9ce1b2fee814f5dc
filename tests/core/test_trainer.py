"""Trainer: what it puts together, on the kinds of models, batches and metrics that people have."""

from collections import namedtuple

import pytest
import small_runs
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import Hook, RecorderHook, Trainer

PIXELS, LABELS = load_digits(return_X_y=True)
X, Y = torch.tensor(PIXELS, dtype=torch.float32) / 16, torch.tensor(LABELS)
TRAIN = TensorDataset(X[:320], Y[:320])
VALID = TensorDataset(X[320:420], Y[320:420])


def accuracy(pred, target):
    """The share of right answers."""
    return (pred.argmax(1) == target).float().mean()


def make(model=None, **settings):
    """A small trainer on digits."""
    torch.manual_seed(0)
    model = model or nn.Linear(64, 10)
    settings = {"train_dl": DataLoader(TRAIN, 32, shuffle=True), "loss_fn": nn.CrossEntropyLoss(),
                "epochs": 2,
                "progress": False, "device": "cpu",
                "optim": torch.optim.AdamW(model.parameters(), 1e-2)} | settings
    return Trainer(model, **settings)


class OwnLoss(nn.Module):
    """A model that takes a dict and returns its own loss, as those of transformers."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = nn.Linear(64, 10), kind

    def forward(self, inputs, labels):
        """A dict, or an object with attributes."""
        logits = self.layer(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        return ({"loss": loss, "logits": logits}
                if self.kind == "dict" else namedtuple("Output", "loss logits")(loss, logits))


@pytest.mark.parametrize("kind", ["dict", "attributes"])
def test_models_with_their_own_loss(kind):
    """Dict batches go in by name; the run equals the one with a loss function, and predicts
    logits."""
    batches = [{"inputs": X[i:i + 32], "labels": Y[i:i + 32]} for i in range(0, 320, 32)]
    model = OwnLoss(kind)
    torch.manual_seed(1)
    own = make(model, train_dl=batches, valid_dl=batches[:2], loss_fn=None,
               metrics={"accuracy": accuracy})
    start = {name: value.clone() for name, value in model.layer.state_dict().items()}
    own.fit()
    plain_model = nn.Linear(64, 10)
    plain_model.load_state_dict(start)
    plain = make(plain_model, train_dl=[(b["inputs"], b["labels"]) for b in batches])
    plain.fit()
    assert torch.equal(model.layer.weight, plain_model.weight)
    assert "valid/accuracy" in own.history
    assert own.predict(batches).shape == (320, 10)


@pytest.mark.slow
def test_named_loaders_and_torchmetrics():
    """Each loader's records carry its name; a torchmetrics object equals the whole-set value,
    uneven batches included."""
    import torchmetrics  # takes more than a second

    metric = torchmetrics.classification.MulticlassAccuracy(10, average="micro")
    trainer = make(valid_dl={"near": DataLoader(VALID, 32), "far": DataLoader(TRAIN, 100)},
                   metrics={"tm": metric, "accuracy": accuracy})
    trainer.fit()
    with torch.no_grad():
        whole = accuracy(trainer.model(X[320:420]), Y[320:420]).item()
    assert trainer.history["near/accuracy"][-1] == pytest.approx(whole, abs=1e-6)
    assert trainer.history["near/tm"][-1] == pytest.approx(whole, abs=1e-6)
    assert trainer.history["far/loss"].shape == (2,)
    assert trainer.validate(DataLoader(VALID,
                                       7))["valid/accuracy"] == pytest.approx(whole, abs=1e-6)


def test_a_step_of_ones_own():
    """Records of any depth are kept, after_pred fires where the step calls it, metrics come from
    what it returns."""
    seen = []

    class Watch(Hook):
        """Counts predictions."""

        def after_pred(self, trainer):
            """Note the shape."""
            seen.append(tuple(trainer.pred.shape))

    def step(batch, trainer):
        """A supervised step by hand."""
        pred = trainer.after_pred(trainer.model(batch[0]))
        loss = nn.functional.cross_entropy(pred, batch[1])
        return {"loss": loss, "pred": pred, "target": batch[1], "aux": {"norm": pred.norm()}}

    trainer = make(train_step=step, loss_fn=None, valid_dl=DataLoader(VALID, 50),
                   metrics={"accuracy": accuracy},
                   hooks=[Watch()])
    trainer.fit()
    assert len(trainer.history["train/aux/norm"]) == 20 and "valid/accuracy" in trainer.history
    assert len(seen) == 24 and trainer.predict(DataLoader(VALID, 50)).shape == (100, 10)


class CountFetches(TorchDispatchMode):
    """Counts the operations that wait for a value of a tensor."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Pass everything on."""
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_no_value_is_fetched_per_step():
    """With recorder, clipping, accumulation and the check for non-finite gradients, 200 steps fetch
    no scalar one by one."""
    loader = [(X[i:i + 8], Y[i:i + 8]) for i in range(0, 320, 8)]
    model = nn.Linear(64, 10)
    trainer = make(model, train_dl=loader, optim=torch.optim.SGD(model.parameters(), 0.1),
                   grad_clip=1.0, epochs=10,
                   gradient_accumulation_steps=2)
    with CountFetches() as fetches:
        trainer.fit()
    assert trainer.step_state.optimizer_step == 200 and fetches.count <= 2
    assert len(trainer.history["grad_norm"]) == 200

    def step(batch, trainer):
        """What the others do."""
        loss = nn.functional.cross_entropy(trainer.model(batch[0]), batch[1])
        return {"loss": loss, "shown": loss.item()}

    model = nn.Linear(64, 10)
    naive = make(model, train_dl=loader, train_step=step, loss_fn=None, epochs=1,
                 optim=torch.optim.SGD(model.parameters(), 0.1))
    with CountFetches() as fetches:
        naive.fit()
    assert fetches.count >= 40  # the counter sees them


def test_the_recorded_loss_is_the_joined_batchs():
    """Uneven batches in a window: the record equals the loss of all its items, in float64."""
    model = nn.Linear(64, 10).double()
    x, y = X[:50].double(), Y[:50]
    loader = [(x[a:b], y[a:b]) for a, b in ((0, 20), (20, 29), (29, 50))]
    trainer = make(model, train_dl=loader, gradient_accumulation_steps=3, epochs=1)
    expected = nn.functional.cross_entropy(model(x), y).item()
    trainer.fit()
    assert trainer.history["train/loss"].tolist() == pytest.approx([expected], abs=1e-12)


def test_history_has_every_record_with_its_place():
    """Steps, epochs, samples and times of the records, and the table of them."""
    trainer = make(valid_dl=DataLoader(VALID, 50))
    trainer.fit()
    series = trainer.history.series("train/loss")
    assert series.steps.tolist() == list(range(1, 21))
    assert series.samples.tolist() == list(range(32, 641, 32))
    assert series.epochs[9] == 1.0 and (series.seconds[1:] >= series.seconds[:-1]).all()
    assert trainer.history.steps("valid/loss").tolist() == [10, 20]
    table = trainer.history.to_pandas()
    assert len(table) == len(trainer.history) and set(table.name) == set(trainer.history.names)
    data, step = trainer.history["time/data"], trainer.history["time/step"]
    assert (data >= 0).all()
    assert (data <= step).all() and (trainer.history["samples_per_second"] > 0).all()


def test_recorded_lr_is_the_one_used():
    """The rate of the step itself, not the one the scheduler sets afterwards;
    overrides included."""
    model = nn.Linear(64, 10)
    optim = torch.optim.SGD(model.parameters(), 1.0)
    trainer = make(model, optim=optim, sched=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
                   epochs=1)
    trainer.step(3)
    trainer.tune(lr_scale=0.1)
    trainer.step(1)
    trainer.tune(lr=0.3)
    trainer.step(1)
    assert trainer.history["lr"].tolist() == pytest.approx([1, 0.5, 0.25, 0.0125, 0.3])


@pytest.mark.parametrize("progress", ["bar", "lines", False])
def test_progress_does_not_change_the_run(progress, capsys):
    """The same weights, whatever is shown."""
    plain, shown = (make(valid_dl=DataLoader(VALID, 50)),
                    make(valid_dl=DataLoader(VALID, 50), progress=progress))
    torch.manual_seed(3)
    plain.fit()
    torch.manual_seed(3)
    shown.fit()
    assert torch.equal(plain.model.weight, shown.model.weight)
    out = capsys.readouterr().out
    assert ("█" in out) == (progress == "bar") and bool(out) == bool(progress)


def test_the_summary_does_the_sums_and_nothing_else():
    """Windows, tail and steps as the run then makes them; weights and random streams untouched."""
    trainer = make(gradient_accumulation_steps=3, valid_dl=DataLoader(VALID, 50))
    weights, stream = trainer.model.weight.clone(), torch.get_rng_state()
    text = trainer.summary()
    assert torch.equal(weights, trainer.model.weight) and torch.equal(stream, torch.get_rng_state())
    assert "10 batches = 4 optimizer steps per epoch (3 windows of 3 and a tail of 1)" in text
    assert "2 epochs = 8 steps" in text
    assert trainer.fit().steps == 8


def test_get_hook_and_describe_hooks():
    """A hook is found by its class; the table lists which hooks are active."""
    trainer = make()
    from trainer_nb import ProgressHook, RecorderHook

    assert isinstance(trainer.get_hook(RecorderHook), RecorderHook)
    assert trainer.get_hook(ProgressHook) is None and trainer.get_hook(ProgressHook, 7) == 7
    assert "| 20 | recorder (RecorderHook) | on |" in trainer.describe_hooks()


def test_an_unknown_progress_or_argument_is_refused():
    """Before anything is built."""
    with pytest.raises(ValueError, match="progress='bars'"):
        make(progress="bars")
    with pytest.raises(TypeError, match="epoch"):
        make(epoch=3)


class Extra(nn.Linear):
    """A module with a state that is not a tensor, and a sparse buffer."""

    def __init__(self):
        super().__init__(2, 1)
        self.register_buffer("table", torch.eye(3).to_sparse())

    def get_extra_state(self):
        """Plain values."""
        return {"version": 1}

    def set_extra_state(self, state):
        """Nothing to keep."""


def test_extra_state_and_sparse_buffers_do_not_stop_a_run():
    """The journal's header takes a checksum of whatever a state dict holds."""
    trainer = small_runs.make(Extra(), epochs=1)
    assert trainer.fit().status == "finished" and trainer.journal.header["weights"]


def test_a_recorder_of_ones_own_replaces_the_default_one():
    """Every step is recorded once."""
    trainer = small_runs.make(epochs=1, hooks=[RecorderHook()])
    trainer.fit()
    assert len(trainer.history["train/loss"]) == 5


def test_a_loss_module_is_evaluated_in_eval_mode():
    """Dropout or BatchNorm within a loss must not act while validating."""
    class Loss(nn.MSELoss):
        """Notes its mode."""

        modes = []

        def forward(self, pred, target):
            """The mean squared error."""
            self.modes.append(self.training)
            return super().forward(pred, target)

    small_runs.make(loss_fn=Loss(), valid_dl=small_runs.BATCHES[:1], epochs=1).fit()
    assert Loss.modes == [True] * 5 + [False]
