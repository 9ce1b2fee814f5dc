"""Optimizers that look at their loss in several places:
SAM and LBFGS as overrides of one method, against the loops by hand."""

import copy
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import CheckpointHook, EMAHook, LambdaHook, NonFiniteError, Trainer
from trainer_nb.core.state import RandomStreams

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from lbfgs import LBFGSTrainer
from sam import SAMTrainer

RHO = 0.1


class Net(nn.Module):
    """Dropout and BatchNorm where they are asked for."""

    def __init__(self, dropout=0.0, norm=False):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x):
        return self.head(self.drop(torch.tanh(self.norm(self.body(x)))))


def data(samples=42):
    """Inputs and targets."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 6, generator=draw)
    return TensorDataset(x, x.sum(1, keepdim=True).sin())


def model(**settings):
    """The same each time."""
    torch.manual_seed(0)
    return Net(**settings)


def make(kind, net, optim, *hooks, batch=8, shuffle=True, **settings):
    """A run of 3 epochs: 6 batches, the last one of 2 samples."""
    settings = {"epochs": 3, "seed": 1, "loss_fn": nn.MSELoss()} | settings
    return kind(net, train_dl=DataLoader(data(), batch, shuffle=shuffle),
                optim=optim(net.parameters()), hooks=hooks, device="cpu",
                progress=False, **settings)


def sgd(parameters):
    """With momentum."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def lbfgs(parameters, search="strong_wolfe"):
    """A few evaluations a step."""
    return torch.optim.LBFGS(parameters, lr=0.5, max_iter=4, history_size=5, line_search_fn=search)


def equal(a, b):
    """All parameters and buffers, bit for bit."""
    a, b = a.state_dict(), b.state_dict()
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def gradients_by_hand(net, window, size, clip, masks=None):
    """Zero gradients, forward and backward of a window;
    the same dropout masks again where `masks` were kept."""
    for parameter in net.parameters():
        parameter.grad = None
    drawn, reference, losses = [], size * len(window[0][0]), []
    for number, (x, y) in enumerate(window):
        if masks:
            masks[number].restore()
        drawn.append(RandomStreams.capture())
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward(torch.tensor(len(x) / reference))
        losses.append((loss.detach(), len(x)))
    total = sum(n for _, n in losses)
    for parameter in net.parameters():
        parameter.grad.mul_(reference / total)
    if clip is not None:
        nn.utils.clip_grad_norm_(net.parameters(), clip)
    return sum(loss / (total / n) for loss, n in losses), drawn


def windows_of(loader, size):
    """Lists of `size` batches; the last may be shorter."""
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


def sam_by_hand(net, size=1, clip=None, epochs=3):
    """The algorithm of the paper, with its second pass under the dropout masks of the first."""
    torch.manual_seed(1)
    optim, parameters = sgd(net.parameters()), list(net.parameters())
    loader = DataLoader(data(), 8, shuffle=True)
    for _ in range(epochs):
        for window in windows_of(loader, size):
            _, masks = gradients_by_hand(net, window, size, clip)
            after = RandomStreams.capture()
            norm = torch.linalg.vector_norm(
                torch.stack([torch.linalg.vector_norm(p.grad) for p in parameters]))
            before = [p.detach().clone() for p in parameters]
            buffers = [each.clone() for each in net.buffers()]
            with torch.no_grad():
                for p in parameters:
                    p.add_(p.grad * (RHO / (norm + 1e-12)))
            gradients_by_hand(net, window, size, clip, masks)
            with torch.no_grad():
                for p, value in [*zip(parameters, before), *zip(net.buffers(), buffers)]:
                    p.copy_(value)
            after.restore()
            optim.step()
    return net


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("parts", [{}, {"dropout": 0.3}, {"norm": True, "dropout": 0.3}],
                         ids=["plain", "dropout", "norm"])
def test_sam_is_the_loop_by_hand(size, parts):
    """Bit for bit: one or several batches a step, the last window short and its last batch of 2
    samples."""
    trainer = make(SAMTrainer, model(**parts), sgd, rho=RHO, gradient_accumulation_steps=size)
    trainer.fit()
    assert equal(trainer.model, sam_by_hand(model(**parts), size))
    plain = make(Trainer, model(**parts), sgd, gradient_accumulation_steps=size)
    plain.fit()
    assert not equal(trainer.model, plain.model)


def test_sam_clips_both_gradients():
    """Each gradient of the window that is taken is clipped as a whole, as by hand."""
    trainer = make(SAMTrainer, model(), sgd, rho=RHO, gradient_accumulation_steps=2, grad_clip=0.05)
    trainer.fit()
    # torch's own clipping multiplies by another rounding of the same factor
    for a, b in zip(trainer.model.parameters(), sam_by_hand(model(), 2, clip=0.05).parameters()):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)
    free = make(SAMTrainer, model(), sgd, rho=RHO, gradient_accumulation_steps=2)
    free.fit()
    assert not torch.allclose(trainer.model.body.weight, free.model.body.weight, rtol=1e-3)


def lbfgs_by_hand(net, clip=None, epochs=6, search="strong_wolfe"):
    """torch's optimizer on the full batch."""
    optim, (x, y) = lbfgs(net.parameters(), search), data().tensors
    def closure():
        optim.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        return loss
    for _ in range(epochs):
        optim.step(closure)
    return net


@pytest.mark.parametrize("search", ["strong_wolfe", None])
def test_lbfgs_is_torchs_on_full_batches(search):
    """Bit for bit."""
    trainer = make(LBFGSTrainer, model(), lambda p: lbfgs(p, search), batch=42, shuffle=False,
                   epochs=6)
    result = trainer.fit()
    assert equal(trainer.model, lbfgs_by_hand(model(), search=search))
    assert result.steps == 6


@pytest.mark.parametrize("size", [2, 3])
def test_the_closure_is_of_the_whole_window(size):
    """Accumulated batches: loss and gradients are those of the joined batch, the uneven tail
    included."""
    net = model().double()
    joined = data()
    x, y = (each.double() for each in joined.tensors)
    batches = [(x[i:i + 16], y[i:i + 16]) for i in range(0, 42, 16)]
    trainer = LBFGSTrainer(net, train_dl=batches, loss_fn=nn.MSELoss(),
                           optim=lbfgs(net.parameters()), epochs=3, device="cpu",
                           progress=False, gradient_accumulation_steps=size,
                           hooks=[LambdaHook(
                               before_step=lambda t: losses.append(t.runner.window.loss().item()))])
    losses, expected = [], []
    trainer.fit()
    other = model().double()
    optim = lbfgs(other.parameters())
    groups = [slice(i * 16 * size, (i + 1) * 16 * size) for i in range(-(-3 // size))]
    for _ in range(3):
        for part in groups:
            def closure(part=part):
                optim.zero_grad()
                loss = nn.functional.mse_loss(other(x[part]), y[part])
                loss.backward()
                return loss
            expected.append(optim.step(closure).item())
    for a, b in zip(net.parameters(), other.parameters()):
        assert torch.allclose(a, b, rtol=1e-6)
    assert losses == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_the_line_search_sees_one_function():
    """With dropout, the loss and gradients at the same weights are the same, bit for bit, however
    often they are taken."""
    class Look(Trainer):
        repeats_windows = True
        def do_opt_step(self):
            first = [p.grad.clone() for p in self.model.parameters()]
            streams, buffers = (torch.get_rng_state(),
                                copy.deepcopy(dict(self.model.named_buffers())))
            losses = [self.runner.window.loss()]
            for _ in range(3):
                losses.append(self.window_gradients())
                assert all(torch.equal(a, p.grad) for a, p in zip(first, self.model.parameters()))
            assert len({loss.item() for loss in losses}) == 1
            assert torch.equal(streams, torch.get_rng_state())
            assert all(torch.equal(buffers[name], each)
                       for name, each in self.model.named_buffers())
            self.looked = True
            return super().do_opt_step()
    for settings in ({}, {"gradient_accumulation_steps": 3}, {"micro_batch_size": 3},
                     {"micro_batch_size": "auto"}, {"grad_clip": 0.01},
                     {"mixed_precision": "bf16"}):
        # streams that no pass would leave as they are
        draws = [LambdaHook(after_batch=lambda t: torch.rand(3)) for _ in range(2)]
        trainer = make(Look, model(dropout=0.4, norm=True), sgd, draws[0], **settings, epochs=2)
        plain = make(Trainer, model(dropout=0.4, norm=True), sgd, draws[1], **settings, epochs=2)
        trainer.fit()
        plain.fit()
        assert trainer.looked and equal(trainer.model, plain.model), settings
        assert trainer.history["train/loss"].tolist() == plain.history["train/loss"].tolist()


@pytest.mark.parametrize("name", ["do_backward", "do_opt_step", "do_zero_grad"])
@pytest.mark.parametrize("own", [False, True])
def test_a_step_that_is_assigned_to_a_trainer_is_refused(name, own):
    """The run would never call it; the message names the way, and nothing has changed."""
    class Own(Trainer):
        def do_opt_step(self, closure=None):
            self.steps = getattr(self, "steps", 0) + 1
            return super().do_opt_step(closure)
    trainer = make(Own if own else Trainer, model(), sgd)
    before = dict(vars(trainer))
    rest = {"do_backward": ", loss, seed", "do_opt_step": ", closure", "do_zero_grad": ""}[name]
    with pytest.raises(AttributeError,
                       match=re.escape(f"trainer.{name} = ... is refused")) as caught:
        setattr(trainer, name, lambda *args: None)
    assert f"class MyTrainer(Trainer): def {name}(self{rest})" in str(caught.value)
    assert vars(trainer) == before
    trainer.fit(max_steps=3)
    assert getattr(trainer, "steps", None) == (3 if own else None)


@pytest.mark.parametrize("size", [1, 3])
def test_a_step_that_goes_by_the_counters_finds_them_again(size):
    """A loss that depends on the number of the batch is the same function in every pass;
    one batch in three has none."""
    passes = []
    def step(batch, trainer):
        state = trainer.step_state
        passes.append((state.epoch, state.batch_idx, state.samples_seen, state.window_batches))
        loss = nn.functional.mse_loss(trainer.model(batch[0]), batch[1]) * (1 + state.batch_idx)
        return {"loss": None if state.batch_idx % 3 == 1 else loss}
    class Look(SAMTrainer):
        def do_opt_step(self):
            state, first = self.step_state, passes[:]
            passes.clear()
            stepped = super().do_opt_step()
            assert passes == first[-len(passes):]
            assert len(passes) == (1 if size == 1 else 4) and self.step_state is state
            passes.clear()
            return stepped
    trainer = make(Look, model(), sgd, train_step=step, loss_fn=None,
                   gradient_accumulation_steps=size, limit_batches=5, epochs=2)
    assert trainer.fit().steps == 2 * (3 if size == 1 else 1)
    assert trainer.step_state.samples_seen == 80


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "optim", "parts"), [
    (SAMTrainer, sgd, {"dropout": 0.3, "norm": True}), (LBFGSTrainer, lbfgs, {"dropout": 0.3})],
    ids=["sam", "lbfgs"])
@pytest.mark.parametrize("size", [1, 2])
def test_paused_saved_and_resumed(kind, optim, parts, size, tmp_path):
    """step(3) and fit(), and a new trainer from the state at step 3, both in mid-epoch, end at the
    weights of one fit()."""
    def fresh():
        return make(kind, model(**parts), optim, gradient_accumulation_steps=size)
    straight = fresh()
    straight.fit()
    paused = fresh()
    paused.step(2 if size == 2 else 3)
    assert paused.step_state.batch_idx not in (0, 6)
    state = paused.state_dict()
    paused.save(tmp_path / "run.pt")
    paused.fit()
    assert equal(straight.model, paused.model)
    resumed = fresh()
    resumed.load_state_dict(state)
    resumed.fit()
    assert equal(straight.model, resumed.model)
    of_file = fresh()
    of_file.load(tmp_path / "run.pt")
    of_file.fit()
    assert equal(straight.model, of_file.model)
    mine, theirs = (each.optim.state_dict()["state"] for each in (straight, of_file))
    assert mine.keys() == theirs.keys() and len(mine)


def test_rates_by_hand_hooks_and_the_average_count():
    """A rate by hand holds for the inner optimizer, the average moves once a step, records are of
    the first pass."""
    class Rates(SAMTrainer):
        def do_opt_step(self):
            return super().do_opt_step()
    seen = []
    net = model()
    trainer = make(Rates, net, sgd,
                   LambdaHook(before_step=lambda t: seen.append(t.runner.window.loss().item())),
                   rho=RHO,
                   ema=0.9)
    trainer.tune(lr=0.0)
    first = copy.deepcopy(net)
    trainer.fit()
    assert equal(first, net)  # and the weights came back from where SAM had looked
    assert trainer.get_hook(EMAHook).updates == trainer.step_state.optimizer_step == 18
    assert trainer.history["train/loss"].tolist() == seen
    slow = make(LBFGSTrainer, model(), lambda p: lbfgs(p, None))
    slow.tune(lr_scale=0.0)
    slow.fit()
    assert equal(first, slow.model)


def test_rho_is_a_tunable_and_goes_into_the_checkpoint():
    """SAM's radius may be changed live; 0 is plain SGD."""
    trainer = make(SAMTrainer, model(), sgd, rho=RHO)
    trainer.tune(rho=0.0)
    trainer.fit()
    plain = make(Trainer, model(), sgd)
    plain.fit()
    assert equal(trainer.model, plain.model)
    assert trainer.state_dict()["tunables"]["rho"] == 0.0
    with pytest.raises(ValueError, match="rho"):
        trainer.tune(rho=-1.0)


def test_an_error_in_the_second_pass_leaves_the_weights():
    """They are not left where SAM has looked; and with the fault gone the run goes on."""
    calls = []
    def loss_fn(pred, target):
        calls.append(len(calls))
        if len(calls) == 6:
            raise KeyError("in the second pass")
        return nn.functional.mse_loss(pred, target)
    trainer = make(SAMTrainer, model(), sgd, rho=RHO, loss_fn=loss_fn)
    kept = {}
    trainer.hooks.add(
        LambdaHook(after_step=lambda t: kept.update(copy.deepcopy(t.model.state_dict()))))
    with pytest.raises(KeyError, match="second pass"):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 2
    assert all(torch.equal(kept[name], each) for name, each in trainer.model.state_dict().items())
    assert trainer.fit().steps == 18


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_second_gradient_that_is_not_finite(policy):
    """Under "raise" its own step is named, under "skip" the step is left out."""
    calls = []
    def loss_fn(pred, target):
        calls.append(len(calls))
        return nn.functional.mse_loss(pred, target) * (float("nan") if len(calls) == 6 else 1.0)
    trainer = make(SAMTrainer, model(), sgd, rho=RHO, loss_fn=loss_fn, non_finite=policy, epochs=1)
    if policy == "raise":
        with pytest.raises(NonFiniteError, match="step 3 "):
            trainer.fit()
        return
    assert trainer.fit().steps == 5
    assert all(p.isfinite().all() for p in trainer.model.parameters())


def test_a_schedule_and_lr_find():
    """Schedules tick once a step; a search for a rate takes SAM's steps and leaves no trace."""
    trainer = make(SAMTrainer, model(), sgd, rho=RHO,
                   sched=lambda o: torch.optim.lr_scheduler.StepLR(o, 6, 0.5))
    before = copy.deepcopy(trainer.model)
    trainer.lr_find(1e-4, 1, num_steps=10)
    assert equal(before, trainer.model)
    trainer.fit()
    assert trainer.optim.param_groups[0]["lr"] == pytest.approx(0.1 / 8)


@pytest.mark.slow
def test_checkpoints_hold_the_optimizer(tmp_path):
    """LBFGS's directions and steps come back from a file of the hook."""
    def fresh(epochs):
        return make(LBFGSTrainer, model(), lbfgs, CheckpointHook(tmp_path, every_steps=2),
                    epochs=epochs)
    fresh(2).fit()
    again = fresh(3)
    again.fit()
    straight = make(LBFGSTrainer, model(), lbfgs)
    straight.fit()
    assert equal(again.model, straight.model)
    assert again.get_hook(CheckpointHook).resumed_from is not None


@pytest.mark.parametrize("size", [None, 4])
def test_others_keep_nothing(size):
    """A window of a trainer that does not ask holds no batch."""
    kept = []
    hook = LambdaHook(
        before_step=lambda t: kept.append((len(t.runner.window.kept),
                                           len(t.runner.window.streams))))
    make(Trainer, model(), sgd, hook, micro_batch_size=size).fit()
    assert set(kept) == {(0, 0)}
    kept.clear()
    make(SAMTrainer, model(), sgd, hook, micro_batch_size=size,
         gradient_accumulation_steps=4).fit(epochs=1)
    assert kept == [(4, 4), (2, 2)]


def test_what_is_refused():
    """Each with what to do."""
    with pytest.raises(ValueError,
                       match="LBFGS needs a closure.*repeats_windows = True.*window_gradients"):
        make(Trainer, model(), lbfgs)
    trainer = make(SAMTrainer, model(), sgd)
    with pytest.raises(RuntimeError, match="no window is open; call it in do_opt_step"):
        trainer.window_gradients()
    class Forgot(Trainer):
        def do_opt_step(self):
            return super().do_opt_step(self.window_gradients)
    with pytest.raises(RuntimeError, match="set repeats_windows = True in Forgot"):
        make(Forgot, model(), sgd).fit()
    with pytest.raises(ValueError, match="fp16.*'bf16' or None"):
        make(SAMTrainer, model(), sgd, mixed_precision="fp16")
    trainer.step(1)
    with pytest.raises(ValueError, match="mixed_precision.*bf16"):
        trainer.tune(mixed_precision="fp16")
    trainer.tune(mixed_precision="bf16")
    assert trainer.fit().steps == 18
    with pytest.raises(ValueError, match="rho"):
        make(SAMTrainer, model(), sgd, rho=-0.1)
