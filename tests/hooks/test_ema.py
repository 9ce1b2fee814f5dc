"""The average of the weights: its arithmetic, when it counts, and that the training never feels
it."""

import copy
import json
import sys
import threading
import warnings

import pytest
import torch
import warm
from digits_runs import wait_for
from safetensors.torch import load_file, load_model
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import (CheckpointHook, EMAHook, Hook, LambdaHook, ReplayHook, SnapshotHook,
                        Trainer)
from trainer_nb.support.saved import read_state
from trainer_nb.core.state import RunState


class Net(nn.Module):
    """BatchNorm, dropout, a tied weight and a frozen one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.2)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.body.weight
        self.head = nn.Linear(6, 1)
        self.head.bias.requires_grad_(False)

    def forward(self, x):
        return self.head(self.tied(self.drop(self.norm(self.body(x)))))


def make(*hooks, model=None, **settings):
    """A run of 3 epochs of 10 batches."""
    torch.manual_seed(0)
    x = torch.randn(80, 6)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = Net() if model is None else model
    settings = {"epochs": 3, "seed": 1} | settings
    optim = settings.pop("optim", None) or torch.optim.AdamW(model.parameters(), lr=0.05)
    return Trainer(model, train_dl=DataLoader(data, 8, shuffle=True), valid_dl=DataLoader(data, 32),
                   loss_fn=nn.MSELoss(),
                   optim=optim, progress=False, hooks=hooks, device="cpu", **settings)


def equal(a, b):
    """All parameters and buffers, bit for bit."""
    a, b = a.state_dict(), b.state_dict()
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


class Reference(Hook):
    """torch's own average, moved by hand."""

    def __init__(self, decay=0.9, buffers=False):
        self.decay, self.buffers, self.averaged = decay, buffers, None

    def after_step(self, trainer):
        if self.averaged is None:
            decay = get_ema_multi_avg_fn(self.decay)
            self.averaged = AveragedModel(trainer.model, multi_avg_fn=decay,
                                          use_buffers=self.buffers)
        self.averaged.update_parameters(trainer.model)


@pytest.mark.parametrize("buffers", ["copy", "average"])
def test_weights_of_another_type_are_followed(buffers):
    """After `model.bfloat16()` in mid-run; the average stays as fine as it was."""
    ema = EMAHook(0.9, warmup=False, buffers=buffers)
    model = nn.Linear(6, 1)
    trainer = make(ema, model=model, optim=torch.optim.SGD(model.parameters(), lr=0.05))
    trainer.step(3)
    before = ema._average.mean["weight"].clone()
    trainer.model.bfloat16()
    trainer.train_dl.dataset.tensors = tuple(
        each.bfloat16() for each in trainer.train_dl.dataset.tensors)
    trainer.step(1)
    mean = ema._average.mean["weight"]
    assert mean.dtype == torch.float32
    assert torch.equal(mean, before.lerp(trainer.model.weight.detach().float(), 1 - 0.9))


@pytest.mark.parametrize("buffers", ["copy", "average"])
def test_weights_in_new_memory_are_followed(buffers):
    """As `p.data = ...` of a hook that clamps them: the average is torch's, bit for bit, over
    epochs, and evaluations use it."""
    def clamp(trainer):
        for each in trainer.model.parameters():
            each.data = each.data.clamp(-0.3, 0.3)
    ema, reference = EMAHook(0.9, warmup=False, buffers=buffers), Reference(
        buffers=buffers == "average")
    hook = LambdaHook(after_step=clamp)
    hook.order = -200
    trainer = make(hook, ema, reference)
    trainer.fit()
    mine = ema.ema_model.state_dict()
    for name, value in reference.averaged.module.named_parameters():
        assert torch.equal(mine[name], value), name
    with torch.no_grad():
        x, y = trainer.valid_dl["valid"].dataset.tensors if isinstance(
            trainer.valid_dl, dict) else trainer.valid_dl.dataset.tensors
        loss = nn.functional.mse_loss(ema.ema_model(x), y)
    assert trainer.history["valid/loss"][-1] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("settings",
                         [{}, {"gradient_accumulation_steps": 3}, {"grad_clip": 0.1},
                          {"mixed_precision": "bf16"}],
                         ids=str)
def test_it_is_torchs_average(settings):
    """Bit for bit, one update a real step."""
    ema, reference = EMAHook(0.9, warmup=False), Reference()
    trainer = make(ema, reference, **settings)
    trainer.fit()
    assert equal(ema.ema_model, reference.averaged.module)
    assert ema.updates == trainer.step_state.optimizer_step == reference.averaged.n_averaged


def test_averaged_buffers():
    """Floating ones are averaged as torch does it;
    integer ones are copied (torch averages those too)."""
    ema, reference = EMAHook(0.9, warmup=False, buffers="average"), Reference(buffers=True)
    trainer = make(ema, reference)
    trainer.fit()
    mine, torchs = ema.ema_model.norm, reference.averaged.module.norm
    assert torch.equal(mine.running_mean, torchs.running_mean)
    assert torch.equal(mine.running_var, torchs.running_var)
    assert not torch.equal(mine.running_mean, trainer.model.norm.running_mean)
    assert mine.num_batches_tracked == trainer.model.norm.num_batches_tracked == 30


def test_warm_up_and_every():
    """By the formula, in double precision, step by step."""
    seen, means = [], []
    class See(Hook):
        order = 11
        def after_step(self, trainer):
            seen.append(trainer.model.weight.detach().clone())
            means.append(ema.ema_model.weight.clone())
    ema = EMAHook(0.5, every=2)
    trainer = make(ema, See(), model=nn.Linear(6, 1).double(), epochs=2)
    trainer.train_dl.dataset.tensors = tuple(each.double()
                                             for each in trainer.train_dl.dataset.tensors)
    trainer.fit()
    mean, updates = seen[0], 1
    for step in range(2, 21):
        if step % 2 == 0:
            decay = min(0.5, (1 + updates) / (10 + updates))
            mean, updates = decay * mean + (1 - decay) * seen[step - 1], updates + 1
        assert torch.allclose(means[step - 1], mean, rtol=1e-12), step
    assert ema.updates == updates == 11


def test_a_skipped_step_moves_nothing():
    """Gradients that are not finite are skipped, and the average stays."""
    class Spoil(Hook):
        def after_loss(self, trainer):
            if trainer.training and trainer.step_state.batch_idx == 4:
                trainer.loss = trainer.loss * float("nan")
    ema, reference = EMAHook(0.9, warmup=False), Reference()
    trainer = make(Spoil(), ema, reference, non_finite="skip", epochs=1)
    trainer.fit()
    assert trainer.step_state.optimizer_step == 9 == ema.updates
    assert equal(ema.ema_model, reference.averaged.module)


@pytest.mark.parametrize("ema", [None, 0.9, EMAHook(0.5, buffers="average"), EMAHook(0.9, every=3)],
                         ids=["none", "number", "buffers", "every"])
def test_the_training_does_not_feel_it(ema):
    """Weights, buffers and random streams at the end are those of a run without."""
    plain, averaged = make(), make(ema=ema)
    plain.fit()
    averaged.fit()
    assert equal(plain.model, averaged.model)
    assert (averaged.get_hook(EMAHook) is None) is (ema is None)


def by_hand(trainer, model):
    """The loss of a model on the validation data."""
    model = copy.deepcopy(model).eval()
    losses = [(nn.functional.mse_loss(model(x), y).item(), len(x)) for x, y in trainer.valid_dl]
    return sum(loss * n for loss, n in losses) / sum(n for _, n in losses)


@pytest.mark.parametrize("buffers", ["copy", "average"])
def test_which_weights_are_evaluated(buffers):
    """"ema", "raw" and "both": each loss is that of the model by hand."""
    trainer = make(ema=EMAHook(0.9, buffers=buffers))
    ema = trainer.get_hook(EMAHook)
    first = trainer.validate()
    assert list(first) == ["valid/loss"]
    # nothing averaged yet
    assert first["valid/loss"] == pytest.approx(by_hand(trainer, trainer.model), rel=1e-6)
    trainer.step(15)
    before = copy.deepcopy(trainer.model)
    raw, mean = by_hand(trainer, trainer.model), by_hand(trainer, ema.ema_model)
    assert abs(raw - mean) > 1e-3
    assert trainer.validate()["valid/loss"] == pytest.approx(mean, rel=1e-6)
    trainer.tune(**{"ema.eval": "raw"})
    assert trainer.validate()["valid/loss"] == pytest.approx(raw, rel=1e-6)
    trainer.tune(**{"ema.eval": "both"})
    both = trainer.validate()
    assert both == {"valid/loss": pytest.approx(raw, rel=1e-6),
                    "valid_ema/loss": pytest.approx(mean, rel=1e-6)}
    trainer.tune(**{"ema.enabled": False})
    assert list(trainer.validate()) == ["valid/loss"]
    assert equal(before, trainer.model)


def test_predictions_and_tests_use_it_too():
    """`predict` and `test` are made with the average, unless raw weights are asked for."""
    trainer = make(ema=0.9)
    ema = trainer.get_hook(EMAHook)
    trainer.step(15)
    x = trainer.valid_dl.dataset.tensors[0]
    def expected(model):
        return copy.deepcopy(model).eval()(x).detach()
    assert torch.allclose(trainer.predict(trainer.valid_dl), expected(ema.ema_model), atol=1e-6)
    assert trainer.test(
        trainer.valid_dl)["test/loss"] == pytest.approx(by_hand(trainer, ema.ema_model), rel=1e-6)
    trainer.tune(**{"ema.eval": "raw"})
    assert torch.allclose(trainer.predict(trainer.valid_dl), expected(trainer.model), atol=1e-6)


@pytest.mark.parametrize("leaving",
                         ["error", "interrupt", "stop", "paused then stopped", "paused then saved"])
def test_however_an_evaluation_is_left(leaving, tmp_path):
    """The model has its own weights again, and the run goes on to the weights of a run that was
    left alone."""
    straight = make(epochs=2)
    straight.fit()
    class Leave(Hook):
        left = False
        def before_batch(self, trainer):
            if trainer.training or self.left or trainer.eval_batch != 1:
                return
            self.left = True
            if leaving == "error":
                raise ValueError("in the evaluation")
            if leaving == "interrupt":
                raise KeyboardInterrupt
            if leaving == "stop":
                trainer.stop()
            else:
                trainer.pause()
    trainer = make(Leave(), ema=0.9, epochs=2)
    raw = {}
    trainer.hooks.add(type("Note", (),
                           {"after_step": lambda self, t: raw.update(
                               copy.deepcopy(t.model.state_dict()))})())
    if leaving in ("error", "interrupt"):
        with pytest.raises((ValueError, KeyboardInterrupt)):
            trainer.fit()
    elif leaving == "stop":
        trainer.fit()
        assert trainer.state is RunState.STOPPED
    else:
        trainer.start()
        wait_for(lambda: trainer.state is RunState.PAUSED)
        # held in the evaluation, it has the average's
        assert not torch.equal(trainer.model.head.weight, raw["head.weight"])
        if leaving == "paused then stopped":
            trainer.stop()
            trainer.wait()
        else:
            # discards the evaluation, which is made again later
            state = read_state(trainer.save(tmp_path / "run.pt"))
            assert torch.equal(state["model"]["head.weight"], raw["head.weight"])
            trainer.stop()
            trainer.wait()
    assert all(torch.equal(raw[name], value) for name, value in trainer.model.state_dict().items())
    trainer.fit()
    assert equal(straight.model, trainer.model)


def test_switched_off_and_on_again_it_starts_again():
    """The average of before would drag old weights along."""
    trainer = make(ema=EMAHook(0.99, warmup=False))
    ema = trainer.get_hook(EMAHook)
    trainer.step(8)
    trainer.tune(**{"ema.enabled": False})
    trainer.step(8)
    assert not ema.ready(trainer)
    trainer.tune(**{"ema.enabled": True})
    raw = by_hand(trainer, trainer.model)
    # still that of step 8: not used
    assert trainer.validate()["valid/loss"] == pytest.approx(raw, rel=1e-6)
    trainer.step(1)
    assert equal(ema.ema_model, trainer.model) and ema.updates == 1
    trainer.step(1)
    assert not equal(ema.ema_model, trainer.model) and ema.updates == 2


def test_joined_in_mid_run():
    """The first step that it sees is where it begins."""
    trainer = make()
    trainer.step(12)
    ema = EMAHook(0.9)
    trainer.hooks.add(ema)
    trainer.step(1)
    assert equal(ema.ema_model, trainer.model)
    with pytest.raises(RuntimeError, match="before the first step"):
        EMAHook().ema_model


@pytest.mark.parametrize("at", [0, 1, 7, 10, 13, 30])
def test_saved_and_resumed(tmp_path, at):
    """In another trainer, bit for bit: raw weights, average, evaluations."""
    straight = make(ema=EMAHook(0.9, every=2))
    straight.fit()
    first = make(ema=EMAHook(0.9, every=2))
    if at:
        first.step(at)
    first.save(tmp_path / "run.pt")
    second = make(ema=EMAHook(0.9, every=2))
    second.load(tmp_path / "run.pt")
    again = second.state_dict()  # before the average has a model to be of
    third = make(ema=EMAHook(0.9, every=2))
    third.load_state_dict(again)
    third.fit()
    assert equal(third.model, straight.model)
    mine, theirs = (each.get_hook(EMAHook) for each in (third, straight))
    assert equal(mine.ema_model, theirs.ema_model) and mine.updates == theirs.updates
    assert (third.history["valid/loss"] == straight.history["valid/loss"]).all()


def test_rewound_and_replayed(tmp_path):
    """The average goes back with the weights; a steered run is made again by its journal."""
    trainer = make(SnapshotHook(every_steps=5), ema=EMAHook(0.9))
    trainer.step(10)
    then = copy.deepcopy(trainer.get_hook(EMAHook).ema_model)
    trainer.step(4)
    trainer.rewind(10)
    assert equal(trainer.get_hook(EMAHook).ema_model, then)
    trainer.tune(**{"ema.decay": 0.5})
    trainer.step(4)
    trainer.tune(**{"ema.enabled": False})
    trainer.step(2)
    trainer.tune(**{"ema.enabled": True, "ema.eval": "both"})
    trainer.fit()
    trainer.journal.save(tmp_path / "journal.jsonl")
    replayed = make(ReplayHook(tmp_path / "journal.jsonl"), ema=EMAHook(0.9))
    replayed.fit()
    mine, theirs = (each.get_hook(EMAHook) for each in (trainer, replayed))
    assert equal(trainer.model, replayed.model) and equal(mine.ema_model, theirs.ema_model)
    assert (trainer.history["valid_ema/loss"] == replayed.history["valid_ema/loss"]).all()


def test_two_averages_in_files_are_apart(tmp_path):
    """What is in a state stays as it is while the run goes on."""
    trainer = make(ema=0.9)
    trainer.step(5)
    state = trainer.state_dict()
    kept = {name: value.clone() for name, value in state["hooks"]["ema"]["ema_model"].items()}
    trainer.step(5)
    assert all(torch.equal(kept[name], value)
               for name, value in state["hooks"]["ema"]["ema_model"].items())
    assert not torch.equal(kept["head.weight"], trainer.get_hook(EMAHook).ema_model.head.weight)


@pytest.mark.slow
def test_under_torch_compile():
    """The average is of the model inside, and evaluations of the compiled one use it."""
    model = Net()
    plain, compiled = (make(model=copy.deepcopy(model), ema=0.9),
                       make(model=torch.compile(model, backend="eager"), ema=0.9))
    for trainer in (plain, compiled):
        trainer.fit()
    assert equal(plain.get_hook(EMAHook).ema_model, compiled.get_hook(EMAHook).ema_model)
    assert plain.history["valid/loss"] == pytest.approx(compiled.history["valid/loss"], rel=1e-6)


def test_memory_format_and_another_device():
    """channels_last stays; a device given is where the average lives ("meta" would hold nothing, so
    here it is the CPU's)."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(1))
    model(torch.zeros(1, 3, 4, 4))
    model = model.to(memory_format=torch.channels_last)
    data = TensorDataset(torch.randn(16, 3, 4, 4), torch.randn(16, 1))
    ema = EMAHook(0.9, device="cpu")
    Trainer(model, train_dl=DataLoader(data, 4), loss_fn=nn.MSELoss(), hooks=[ema], epochs=1,
            progress=False, device="cpu").fit()
    weight = ema.ema_model[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) and weight.device.type == "cpu"


@pytest.mark.cuda
def test_the_average_of_a_gpu_model_on_the_cpu():
    """Equal to the average beside the model."""
    near, far = EMAHook(0.9), EMAHook(0.9, device="cpu")
    model = Net().cuda()
    data = TensorDataset(torch.randn(80, 6), torch.randn(80, 1))
    trainer = Trainer(model, train_dl=DataLoader(data, 8), loss_fn=nn.MSELoss(), hooks=[near, far],
                      epochs=2, progress=False)
    trainer.fit()
    assert far.ema_model.head.weight.device.type == "cpu"
    assert torch.allclose(near.ema_model.head.weight.cpu(), far.ema_model.head.weight, atol=1e-6)


def test_a_layer_that_is_replaced():
    """The average begins again with the model as it is now."""
    trainer = make(ema=0.9)
    trainer.step(10)  # to the end of the epoch
    with torch.no_grad():
        trainer.model.extra = nn.Linear(2, 2)
    trainer.step(2)
    names = dict(trainer.get_hook(EMAHook).ema_model.named_parameters())
    assert "extra.weight" in names and trainer.get_hook(EMAHook).updates == 2


def test_exported(tmp_path):
    """`weights="ema"` writes the average, with BatchNorm's numbers of the training."""
    trainer = make(ema=0.9)
    with pytest.raises(ValueError, match="no average"):
        trainer.export(tmp_path / "early", weights="ema")
    trainer.step(12)
    raw = load_file(trainer.export(tmp_path / "raw"))
    mean = load_file(trainer.export(tmp_path / "mean", weights="ema"))
    assert torch.equal(raw["head.weight"], trainer.model.head.weight)
    assert torch.equal(mean["head.weight"], trainer.get_hook(EMAHook).ema_model.head.weight)
    assert not torch.equal(raw["head.weight"], mean["head.weight"])
    assert torch.equal(mean["norm.running_mean"], trainer.model.norm.running_mean)
    assert '"weights": "ema"' in (tmp_path / "mean.json").read_text()
    with pytest.raises(ValueError, match="'last', 'ema' or 'best'"):
        trainer.export(tmp_path / "x", weights="avg")


@pytest.mark.parametrize(("settings", "error"), [
    ({"ema": 1.5}, "between 0 and 1"), ({"ema": True}, "between 0 and 1"),
    ({"ema": "0.9"}, "or an EMAHook")])
def test_bad_settings_of_the_trainer(settings, error):
    """Refused before anything has begun, with what is allowed."""
    with pytest.raises(ValueError, match=error):
        make(**settings)


@pytest.mark.parametrize(("settings", "error"), [
    ({"decay": -0.1}, "decay"), ({"every": 0}, "every=0"), ({"every": 1.5}, "every=1.5"),
    ({"buffers": "mean"}, "'copy' or 'average'")])
def test_bad_settings_of_the_hook(settings, error):
    """Each names the value."""
    with pytest.raises(ValueError, match=error):
        EMAHook(**settings)


def test_both_losses_are_told_and_the_panel_has_its_controls():
    """`valid_ema/loss` is a record of its own;
    decay, eval and the switch are tunables of the panel."""
    trainer = make(ema=EMAHook(0.9))
    trainer.tune(**{"ema.eval": "both"})
    trainer.step(20)
    found = trainer.feed.whole(["numbers", "tunables"])
    assert {"valid/loss", "valid_ema/loss"} <= found["numbers"].keys()
    assert {"ema.enabled", "ema.decay", "ema.eval"} <= found["tunables"].keys()


@pytest.mark.slow
def test_a_script_loads_no_widget():
    """The average costs no import of the notebook's packages."""
    code = ("import sys; from trainer_nb import EMAHook, Trainer; EMAHook(); sys.exit('ipywidgets' "
            "in sys.modules)")
    assert warm.run([sys.executable, "-c", code], timeout=600).returncode == 0


def test_the_average_is_there_after_a_load(tmp_path):
    """Before another step is made: in a fresh trainer, in that of a finished run, and from a
    checkpoint."""
    trainer = make(CheckpointHook(tmp_path / "run"), ema=0.9)
    trainer.fit()
    trainer.save(tmp_path / "run.pt")
    wanted = trainer.get_hook(EMAHook).ema_model
    trainer.close()
    loaded = make(ema=0.9)
    loaded.load(tmp_path / "run.pt")
    assert equal(loaded.get_hook(EMAHook).ema_model, wanted)
    loaded.fit()
    assert equal(loaded.get_hook(EMAHook).ema_model, wanted)
    resumed = make(CheckpointHook(tmp_path / "run"), ema=0.9)
    resumed.fit()
    assert equal(resumed.get_hook(EMAHook).ema_model, wanted)


class Exactly(Hook):
    """The same average in double precision."""

    def __init__(self):
        self.mean, self.updates = None, 1

    def after_step(self, trainer):
        """One update."""
        now = {name: each.detach().double()
               for name, each in trainer.model.named_parameters()}
        if self.mean is None:
            self.mean = now
            return
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        self.mean = {name: mean * decay + now[name] * (1 - decay)
                     for name, mean in self.mean.items()}
        self.updates += 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_an_average_of_narrow_weights_is_kept_in_float32(dtype):
    """It moves, also by less than the weights can show; and goes on from a state."""
    def run(hook):
        torch.manual_seed(0)
        x = torch.randn(64, 6).to(dtype)
        model = nn.Linear(6, 1).to(dtype)
        with torch.no_grad():
            model.weight.fill_(0.5)
        return Trainer(model, train_dl=DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8),
                       loss_fn=nn.MSELoss(), epochs=12, ema=0.99, hooks=[hook], device="cpu",
                       optim=torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9),
                       progress=False)
    exactly = Exactly()
    straight, first, again = run(exactly), run(Exactly()), run(Exactly())
    straight.fit()
    mean = straight.get_hook(EMAHook).state_dict()["ema_model"]
    assert {each.dtype for each in mean.values()} == {
        torch.float64 if dtype is torch.float64 else torch.float32}
    for name, each in exactly.mean.items():
        assert (mean[name].double() - each).abs().max() < 1e-5, name
    module = straight.get_hook(EMAHook).ema_model
    assert module.weight.dtype is dtype and torch.equal(module.weight, mean["weight"].to(dtype))
    first.step(37)
    again.load_state_dict(first.state_dict())
    again.fit()
    assert equal(again.get_hook(EMAHook).ema_model, module)
    assert straight.test(straight.train_dl, weights="ema") == straight.test(straight.train_dl)


class KeepsAttention(Net):
    """Keeps what it made of the last batch, in lists too."""

    def forward(self, x):
        """The output, and traces of it."""
        hidden = self.body(x)
        self.seen, self.parts = hidden, [hidden * 2, {"last": hidden}]
        return super().forward(x)


class HoldsALock(Net):
    """Cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x):
        """Under the lock."""
        with self.lock:
            return super().forward(x)


class OldWeightNorm(Net):
    """Has a weight that is made anew before each pass."""

    def __init__(self):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.head = torch.nn.utils.weight_norm(self.head)


class Growing(Net):
    """Has a buffer that follows the batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.zeros(0), persistent=False)

    def forward(self, x):
        """Another tensor each time."""
        self.mask = torch.full((len(x), 1), 0.5)
        return super().forward(x) * self.mask


@pytest.mark.parametrize("buffers", ["copy", "average"])
@pytest.mark.parametrize("kind", [KeepsAttention, HoldsALock, OldWeightNorm, Growing])
def test_a_model_that_keeps_things(kind, buffers):
    """The run is that without an average, its numbers are torch's, and `ema_model` computes."""
    torch.manual_seed(1)
    plain, averaged = make(model=kind()), None
    torch.manual_seed(1)
    hook = EMAHook(0.9, buffers=buffers)
    averaged = make(hook, model=kind())
    plain.fit()
    averaged.fit()
    assert all(map(torch.equal, plain.model.parameters(), averaged.model.parameters()))
    x = torch.randn(5, 6)
    module = hook.ema_model
    given = module(x)
    assert given.shape == (5, 1) and torch.isfinite(given).all()
    live = [each.clone() for each in averaged.model.parameters()]
    with hook._average.swapped_in(), torch.no_grad():
        assert torch.allclose(averaged.model.eval()(x), given) or buffers == "average"
    averaged.model.train()
    assert all(map(torch.equal, live, averaged.model.parameters()))
    assert module is hook.ema_model and not module.training
    averaged.fit(epochs=4)  # the same module goes on
    names = dict(hook.ema_model.named_parameters())
    assert all(torch.equal(names[name], mean) for name, mean in hook._average.mean.items()
               if name in names)


@pytest.mark.parametrize("judged", ["ema", "raw", "both"])
def test_a_file_and_its_score_belong_together(judged, tmp_path):
    """Of the last weights, their average, and the best: what the .json says is what a test says."""
    hook = EMAHook(0.9, eval=judged)
    trainer = make(hook, best=("valid/loss", "min"))
    trainer.fit()
    scores = {}
    for weights in ("last", "ema", "best"):
        path = trainer.export(tmp_path / weights, weights=weights)
        fresh = Net()
        load_model(fresh, path)
        fresh.eval()
        total = [(nn.functional.mse_loss(fresh(x), y) * len(x)).item() for x, y in trainer.valid_dl]
        tested = trainer.test(trainer.valid_dl, weights=weights)["test/loss"]
        assert tested == pytest.approx(sum(total) / 80, rel=1e-5)
        scores[weights] = json.loads(path.with_suffix(".json").read_text()).get("last", {})
        told = scores[weights].get("valid/loss")
        assert told is None or told == pytest.approx(tested, rel=1e-5)
        assert not any("_ema" in name for name in scores[weights])
    assert [("valid/loss" in scores[each]) for each in ("last", "ema")] == {
        "ema": [False, True], "raw": [True, False], "both": [True, True]}[judged]
    assert "train/loss" in scores["last"]
    usual = trainer.test(trainer.valid_dl)["test/loss"]
    other = "last" if judged in ("raw", "both") else "ema"
    assert usual == trainer.test(trainer.valid_dl, weights=other)["test/loss"]
    early = make(EMAHook(0.9, eval=judged))
    early.step(12)  # evaluated after step 10: that is not the score of these weights
    for weights in ("last", "ema"):
        path = early.export(tmp_path / "early", weights=weights)
        assert "valid/loss" not in json.loads(path.with_suffix(".json").read_text())["last"]


def test_weights_that_are_not_there():
    """In one set of names, for test and export."""
    trainer = make()
    trainer.fit()
    for verb in (lambda name: trainer.test(trainer.valid_dl, weights=name),
                 lambda name: trainer.export("nowhere", weights=name)):
        with pytest.raises(ValueError, match="there is no average.*'last' or 'best'"):
            verb("ema")
        with pytest.raises(ValueError, match="'last', 'ema' or 'best'"):
            verb("raw")


class Counted(nn.Linear):
    """Has a state that is no tensor."""

    def get_extra_state(self):
        """Any object."""
        return {"vocabulary": 30}

    def set_extra_state(self, state):
        """Nothing to do."""


def test_an_export_with_an_extra_state_and_compiled_parts(tmp_path):
    """The tensors are written, under plain names; what is left out is named."""
    model = nn.Sequential(torch.compile(nn.Linear(6, 6), backend="eager"), Counted(6, 1))
    trainer = make(model=model)
    trainer.step(2)
    with pytest.warns(UserWarning, match="1._extra_state is no dense tensor"):
        path = trainer.export(tmp_path / "weights")
    assert sorted(load_file(path)) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert json.loads(path.with_suffix(".json").read_text())["left_out"] == ["1._extra_state"]
    fresh = nn.Sequential(nn.Linear(6, 6), Counted(6, 1))
    fresh.load_state_dict(load_file(path), strict=False)
    assert torch.equal(fresh[0].weight, model[0].weight)


def test_two_averages_are_refused_where_one_would_have_no_effect():
    """Before anything is built."""
    with pytest.raises(ValueError, match="ema=0.9: there is an EMAHook in hooks= already"):
        make(EMAHook(0.5), ema=0.9)


@pytest.mark.parametrize("way", ["rewind", "load"])
def test_a_head_that_is_replaced_in_mid_epoch_has_an_average_of_its_own(way, tmp_path):
    """At once: an evaluation with the average of the old one would be of a model that never was."""
    def made():
        def replace(trainer):
            torch.manual_seed(9)
            trainer.model.head = nn.Linear(6, 1)
            trainer.optim = torch.optim.AdamW(trainer.model.parameters(), lr=0.05)
        def act(trainer):
            if trainer.step_state.optimizer_step == 4:
                trainer.ask(lambda: replace(trainer))
        return make(EMAHook(0.5), LambdaHook(after_step=act), SnapshotHook(every_steps=1))
    trainer = made()
    trainer.step(5)
    average, weight = trainer.get_hook(EMAHook).ema_model.head.weight, trainer.model.head.weight
    assert torch.equal(average, weight)  # the average begins with the first step of the new one
    trainer.fit()
    losses = trainer.history["valid/loss"].tolist()
    if way == "rewind":
        trainer.rewind(4)
        trainer.fit()
        assert trainer.history["valid/loss"].tolist() == losses
    else:
        first = made()
        first.step(4)
        assert "ema_model" not in first.state_dict()["hooks"].get("ema", {})
