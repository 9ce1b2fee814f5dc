"""What counts as a step: loss scaling, autocast, clipping, non-finite gradients, rates by hand,
changes in mid-window."""

import pytest
import small_runs
import torch
from torch import nn
from torch.optim.lr_scheduler import (CosineAnnealingWarmRestarts, LambdaLR, OneCycleLR,
                                      ReduceLROnPlateau, StepLR)
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_nb.core.engine import NonFiniteError
from trainer_nb.core.hook import Hook, LambdaHook
from small_runs import Loop
from trainer_nb.hooks.recorder import History, RecorderHook
from trainer_nb.hooks.schedule import SchedulerHook

BATCH = 8


def make_data(batches, seed=0):
    """Batches of a small regression."""
    draw = torch.Generator().manual_seed(seed)
    return [(torch.randn(BATCH, 6, generator=draw), torch.randn(BATCH, 3, generator=draw))
            for _ in range(batches)]


def make_model():
    """A small network, the same each time."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))


def make_loop(model, data, optim=None, **settings):
    """A loop on the CPU with a squared error."""
    optim = optim or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Loop(model, train_dl=data, loss_fn=nn.MSELoss(), optim=optim, device="cpu", **settings)


def weights(model):
    """A copy of all parameters."""
    return [p.detach().clone() for p in model.parameters()]


def assert_equal(found, wanted):
    """Two lists of tensors are equal bit for bit."""
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


class Spoil:
    """Makes one parameter's gradient infinite or NaN in the backward passes with these numbers
    (from 0)."""

    def __init__(self, parameter, passes, value=float("inf")):
        self.passes, self.value, self.count = set(passes), value, 0
        parameter.register_hook(self)

    def __call__(self, gradient):
        """A gradient hook."""
        bad = self.count in self.passes
        self.count += 1
        return torch.full_like(gradient, self.value) if bad else gradient


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


# ---- fp16: a step that the scaler skipped is none


def by_hand_fp16(data, make_optim, overflows, accumulation=1, clip=None):
    """A hand-written loop with autocast and loss scaling whose scheduler ticks on real steps
    only."""
    model = make_model()
    optim, scaler = make_optim(model.parameters()), torch.amp.GradScaler("cpu")
    sched = LambdaLR(optim, lambda step: 1 / (1 + step))
    Spoil(model[0].weight, overflows)
    for index, (x, y) in enumerate(data):
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss / accumulation).backward()
        if (index + 1) % accumulation:
            continue
        scaler.unscale_(optim)
        finite = all(p.grad.isfinite().all() for p in model.parameters())
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        # else scaler.step() would skip too, but fused optimizers can spoil their momentum there
        if finite:
            scaler.step(optim)
            sched.step()
        scaler.update()
        optim.zero_grad()
    return weights(model), sched.last_epoch


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fp16_skips_tick_nothing(name, accumulation, clip):
    """On overflow neither weights, scheduler, counter nor after_step move;
    the rest is the textbook, bit for bit."""
    data, overflows = make_data(12), {0, 4, 5}
    model = make_model()
    Spoil(model[0].weight, overflows)
    optim = OPTIMIZERS[name](model.parameters())
    sched, seen = LambdaLR(optim, lambda step: 1 / (1 + step)), []

    def after_step(trainer):
        sched.step()
        seen.append(trainer.step_state.optimizer_step)

    hook = LambdaHook(after_step=after_step)
    settings = {"mixed_precision": "fp16", "gradient_accumulation_steps": accumulation,
                "grad_clip": clip}
    loop = make_loop(model, data, optim, hooks=[hook], **settings)
    result = loop.fit(epochs=1)
    wanted, ticks = by_hand_fp16(data, OPTIMIZERS[name], overflows, accumulation, clip)
    skipped = len({index // accumulation for index in overflows})
    real = len(data) // accumulation - skipped
    assert_equal(weights(model), wanted)
    assert sched.last_epoch == ticks == real
    assert seen == list(range(1, real + 1))
    assert result.steps == real and loop.skipped_steps == skipped
    assert loop.step_state.samples_seen == len(data) * BATCH


@pytest.mark.parametrize("settings", [{"mixed_precision": "fp16"}, {"non_finite": "skip"}],
                         ids=["fp16", "skip"])
def test_skips_are_recorded(settings):
    """From the first one on, the number of windows left out so far is in the history."""
    model = make_model()
    Spoil(model[0].weight, {1, 4})
    loop = make_loop(model, make_data(6), hooks=[RecorderHook()], **settings)
    loop.history = History()
    loop.fit(epochs=1)
    assert loop.history.steps("skipped_steps").tolist() == [2, 3, 4]
    assert loop.history["skipped_steps"].tolist() == [1, 1, 2]


@pytest.mark.parametrize("name", ["adamw", "adamw fused"])
def test_fp16_counts_steps_while_the_scale_grows(name):
    """A scale that grows right after a step does not hide that the step was made."""
    model = make_model()
    loop = make_loop(model, make_data(6), OPTIMIZERS[name](model.parameters()),
                     mixed_precision="fp16")
    loop.engine.scaling.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1)
    assert loop.fit(epochs=1).steps == 6
    assert loop.engine.scaler.get_scale() == 2.0**7


def test_fp16_first_steps_at_a_huge_scale():
    """A scale that is far too large: it falls until a step is real, and the run goes on from the
    first weights."""
    model = make_model()
    loop = make_loop(model, make_data(4), mixed_precision="fp16")
    loop.engine.scaling.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    before = weights(model)
    loop.fit(epochs=1)
    assert loop.skipped_steps == 4 and loop.step_state.optimizer_step == 0
    assert_equal(weights(model), before)
    while loop.step_state.optimizer_step == 0:
        loop.fit(epochs=loop.epochs + 4)
    assert all(p.isfinite().all() for p in model.parameters())
    assert loop.skipped_steps > 4


def test_fp16_of_a_loss_that_is_nan_is_an_error():
    """No scale helps against a loss that is itself not finite: the error names place and scale."""
    model = make_model()
    data = [(x * float("nan"), y) for x, y in make_data(10)]
    with pytest.raises(NonFiniteError,
                       match=r"loss scale fell to .* at step 1 \(epoch \d, batches \d to \d\)"):
        make_loop(model, data, mixed_precision="fp16").fit(epochs=9)


def test_fp16_without_gradients_is_no_skip():
    """A window whose gradients a hook has dropped makes no step and is not an overflow;
    the next one is sound."""
    model = make_model()
    turns = iter(range(9))

    def drop(trainer):
        if next(turns) == 1:
            for parameter in trainer.model.parameters():
                parameter.grad = None

    loop = make_loop(model, make_data(4), mixed_precision="fp16",
                     hooks=[LambdaHook(before_step=drop)])
    assert loop.fit(epochs=1).steps == 3
    assert loop.skipped_steps == 0


def test_fp16_goes_on_after_an_error_in_mid_step():
    """A hook that raised between unscaling and step leaves nothing behind that stops the next
    fit()."""
    turns = iter(range(9))

    def fail_once(trainer):
        if next(turns) == 2:
            raise RuntimeError("planted")

    loop = make_loop(make_model(), make_data(4), mixed_precision="fp16",
                     hooks=[LambdaHook(before_step=fail_once)])
    with pytest.raises(RuntimeError, match="planted"):
        loop.fit(epochs=1)
    assert loop.fit(epochs=1).steps == 4


# ---- bf16


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_bf16_equals_the_textbook_loop(name, accumulation):
    """Autocast around model and loss, backward outside, nothing else: bit for bit."""
    data = make_data(12)
    model, by_hand = make_model(), make_model()
    settings = {"mixed_precision": "bf16", "gradient_accumulation_steps": accumulation}
    make_loop(model, data, OPTIMIZERS[name](model.parameters()), **settings).fit(epochs=2)
    optim = OPTIMIZERS[name](by_hand.parameters())
    for index, (x, y) in enumerate(data * 2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(by_hand(x), y)
        (loss / accumulation).backward()
        if (index + 1) % accumulation == 0:
            optim.step()
            optim.zero_grad()
    assert_equal(weights(model), weights(by_hand))


def test_precision_reaches_forward_loss_and_evaluation_only():
    """Autocast is on in the step function, in training and evaluation;
    off in every hook around it."""
    on, off = [], []
    model = make_model()

    def step(batch, trainer):
        on.append(torch.is_autocast_enabled("cpu"))
        return {"loss": nn.functional.mse_loss(model(batch[0]), batch[1])}

    def look(trainer):
        off.append(torch.is_autocast_enabled("cpu"))

    points = ["before_batch", "after_loss", "after_backward", "after_batch", "before_step",
              "after_step"]
    data = make_data(2)
    hook = LambdaHook(**dict.fromkeys(points, look))
    Loop(model, step, data, data, device="cpu", mixed_precision="bf16", hooks=[hook]).fit(epochs=1)
    assert on == [True] * 4 and off and not any(off)


def test_a_prediction_within_a_step_leaves_autocast_closed():
    """A hook that evaluates in the middle of a step must not leave autocast on for what follows."""
    model, data, seen = make_model(), make_data(2), []

    def predict(trainer):
        if trainer.training:
            trainer.predict(data[:1])

    hook = LambdaHook(after_pred=predict,
                      after_loss=lambda t: seen.append(torch.is_autocast_enabled("cpu")))
    make_loop(model, data, mixed_precision="bf16", hooks=[hook]).fit(epochs=1)
    assert seen == [False, False]
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_prediction_within_a_step_keeps_the_gradients(precision):
    """Neither those of the open window, nor by weights that were cast without gradient for the
    prediction."""
    data, results = make_data(4), []
    for look in (False, True):
        model = make_model()

        def step(batch, trainer):
            if look and trainer.training:
                trainer.predict(data[:1])
            return {"loss": nn.functional.mse_loss(model(batch[0]), batch[1])}

        optim = OPTIMIZERS["sgd"](model.parameters())
        eval_step = {
            "eval_step": lambda batch, trainer: {"loss": None, "pred": trainer.model(batch[0])}}
        settings = {"mixed_precision": precision, "gradient_accumulation_steps": 2, "device": "cpu",
                    **eval_step}
        Loop(model, step, data, optim=optim, **settings).fit(epochs=1)
        results.append(weights(model))
    assert_equal(*results)


# ---- a second fit() wraps nothing


@pytest.mark.parametrize("precision", [None, "bf16", "fp16"])
def test_fit_twice_equals_fit_for_longer(precision):
    """The weights, and every hook that torch knows of, are as after one longer fit()."""

    def train(*epochs):
        model = make_model()
        Spoil(model[0].weight, {7})
        optim = OPTIMIZERS["adamw"](model.parameters())
        sched = OneCycleLR(optim, max_lr=0.02, total_steps=60)
        hook = LambdaHook(after_step=lambda trainer: sched.step())
        settings = {"gradient_accumulation_steps": 2, "grad_clip": 1.0, "non_finite": "skip"}
        loop = make_loop(model, make_data(10), optim, hooks=[hook], mixed_precision=precision,
                         **settings)
        for total in epochs:
            loop.fit(epochs=total)
        wrapped = [len(optim._optimizer_step_pre_hooks), len(optim._optimizer_step_post_hooks)]
        wrapped += [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        assert "forward" not in vars(model)
        scale = loop.engine.scaler and loop.engine.scaler.get_scale()
        return weights(model), wrapped, loop.step_state, scale

    twice, once = train(1, 2, 4), train(4)
    assert_equal(twice[0], once[0])
    assert twice[1:] == once[1:]


# ---- gradients that are not finite


def train_with_nan(policy, passes, data=None, **settings):
    """Train with NaN in the gradient of the last layer's bias in these backward passes."""
    model = make_model()
    Spoil(model[2].bias, passes, float("nan"))
    loop = make_loop(model, data or make_data(10), non_finite=policy, **settings)
    return loop, model


def by_hand_without(data, left_out, accumulation=1):
    """A hand-written loop that leaves these windows out."""
    model = make_model()
    optim = OPTIMIZERS["sgd"](model.parameters())
    for index in range(0, len(data), accumulation):
        if index // accumulation in left_out:
            continue
        for x, y in data[index : index + accumulation]:
            (nn.functional.mse_loss(model(x), y) / accumulation).backward()
        optim.step()
        optim.zero_grad()
    return weights(model)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_non_finite_skip_leaves_windows_out(accumulation):
    """As if those windows had not been there, momentum included;
    skips are counted, steps are not."""
    data = make_data(10)
    settings = {"gradient_accumulation_steps": accumulation}
    steps = []
    hook = LambdaHook(after_step=lambda t: steps.append(t.step_state.optimizer_step))
    loop, model = train_with_nan("skip", {2, 3, 7}, data, hooks=[hook], **settings)
    loop.fit(epochs=1)
    left_out = {index // accumulation for index in (2, 3, 7)}
    assert_equal(weights(model), by_hand_without(data, left_out, accumulation))
    assert loop.runner.gradients.finite.skipped == len(left_out)
    assert steps == list(range(1, 10 // accumulation - len(left_out) + 1))


def test_non_finite_raise_names_the_first_bad_step():
    """Found at the end of its epoch at the latest, with the number of the step that went wrong
    first."""
    loop, _ = train_with_nan("raise", {3, 5})
    with pytest.raises(NonFiniteError, match="step 4 "):
        loop.fit(epochs=5)
    assert loop.step_state.epoch == 0 and loop.state == "error"


def test_non_finite_raise_is_found_before_a_pause_ends_the_drive():
    """A run handed back to the user is known to be sound."""
    loop, _ = train_with_nan("raise", {1})
    with pytest.raises(NonFiniteError, match="step 2 "):
        loop.step(3)


def test_non_finite_raise_is_found_at_the_end():
    """Also where the last step is the bad one."""
    loop, _ = train_with_nan("raise", {6})
    with pytest.raises(NonFiniteError, match="step 7 "):
        loop.fit(max_steps=7)


def test_a_bad_step_long_ago_is_no_mark_of_a_later_one():
    """The marks on the device are made in blocks: none serves two steps."""
    seen = []

    def step(batch, trainer):
        loss = model(batch).mean()
        seen.append(len(seen))
        return {"loss": loss * (float("nan") if seen[-1] in (3, 300) else 1.0)}

    model = nn.Linear(2, 1)
    loop = Loop(model, step, [torch.ones(2, 2)] * 50, optim=lambda p: torch.optim.SGD(p, lr=0.01),
                non_finite="skip")
    loop.fit(max_steps=900)
    assert loop.runner.gradients.finite.skipped == 2 and len(seen) == 902


@pytest.mark.parametrize("kind", ["sparse", "complex", "bfloat16", "float64", "mixed"])
def test_a_sparse_gradient_that_is_not_finite_is_found(kind):
    """And gradients of every other kind, whatever the kernel of the loss scaler makes of them."""
    types = {"complex": torch.complex64, "bfloat16": torch.bfloat16, "float64": torch.float64}
    weights = (nn.Linear(8, 3, dtype=types[kind])
               if kind in types else nn.Embedding(8, 3, sparse=kind == "sparse"))
    model = nn.ModuleList([weights, nn.Linear(3, 1).double()]) if kind == "mixed" else weights

    def step(batch, trainer):
        loss = weights(torch.ones(2, 8, dtype=types[kind]) if kind in types else batch).abs().sum()
        return {"loss": loss * (float("inf") if trainer.step_state.batch_idx == 5 else 1.0)}

    loop = Loop(model, step, [torch.tensor([1, 2])] * 8,
                optim=lambda p: torch.optim.SGD(p, lr=0.01))
    with pytest.raises(NonFiniteError, match="step 6 "):
        loop.fit(epochs=1)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_non_finite_none_looks_at_nothing(clip):
    """Whoever asks for no check gets none."""
    loop, model = train_with_nan(None, {3}, grad_clip=clip)
    assert loop.fit(epochs=1).steps == 10
    assert model[2].bias.isnan().all()


@pytest.mark.parametrize("policy, passes, sound",
                         [("skip:2", {1, 2, 5, 6}, True), ("skip:2", {1, 5, 6, 7}, False)])
def test_non_finite_skip_n_counts_windows_in_a_row(policy, passes, sound):
    """Up to N in a row are left out, as often as it happens;
    one more is an error that names place and parameter."""
    loop, model = train_with_nan(policy, passes)
    before = weights(model)
    if sound:
        assert loop.fit(epochs=1).steps == 6
    else:
        with pytest.raises(NonFiniteError) as caught:
            loop.fit(epochs=1)
        message = str(caught.value)
        assert "3 windows in a row" in message
        assert "step 5 (epoch 1, batches 8 to 8)" in message  # steps 1 to 4 were real
        assert "2.bias" in message and "0.weight" not in message
    assert loop.runner.gradients.finite.skipped == (4 if sound else 4)
    assert all(p.isfinite().all() for p in model.parameters())
    assert not torch.equal(before[0], model[0].weight)


@pytest.mark.parametrize("policy", ["skip", "skip:1"])
def test_non_finite_in_every_window_ends(policy):
    """Under max_steps a run that cannot make a step ends with an error instead of turning for
    ever."""
    loop, _ = train_with_nan(policy, range(1000))
    with pytest.raises((NonFiniteError, ValueError)):
        loop.fit(max_steps=3)


class CountSyncs(TorchDispatchMode):
    """Counts how often a value is fetched from a tensor, as `.item()`, `float()` and `bool()`
    do."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy, expected", [("raise", 0), (None, 0), ("skip", 1)])
def test_values_are_not_fetched_each_step(policy, expected):
    """Checks, clipping and weights by tensor `n` stay on the device;
    a policy that must know at once fetches once."""
    model = make_model()

    def step(batch, trainer):
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        return {"loss": loss, "n": torch.tensor(BATCH), "error": loss.sqrt()}

    def syncs(batches):
        optim = torch.optim.SGD(model.parameters(), lr=0.0)
        settings = {"grad_clip": 0.1, "gradient_accumulation_steps": 2, "non_finite": policy}
        loop = Loop(model, step, make_data(batches), optim=optim, device="cpu", **settings)
        # what is looked at twice a second is not counted here
        loop.driver.boundary.next_refresh = float("inf")
        with CountSyncs() as counter:
            loop.fit(epochs=1)
        return counter.count

    assert syncs(80) - syncs(20) == 30 * expected


# ---- clipping


@pytest.mark.parametrize("accumulation", [1, 4])
def test_clipping_once_a_window_equals_clip_grad_norm(accumulation):
    """The whole gradient of the window is clipped, in one go:
    bit-equal to torch's own, and to its norm."""
    data, norms, limit = make_data(12), [], 0.55
    model, by_hand = make_model(), make_model()
    hook = LambdaHook(after_step=lambda t: norms.append(t.grad_norm.clone()))
    settings = {"grad_clip": limit, "gradient_accumulation_steps": accumulation}
    make_loop(model, data, hooks=[hook], **settings).fit(epochs=1)
    optim, wanted = OPTIMIZERS["sgd"](by_hand.parameters()), []
    for index, (x, y) in enumerate(data):
        (nn.functional.mse_loss(by_hand(x), y) / accumulation).backward()
        if (index + 1) % accumulation == 0:
            wanted.append(torch.nn.utils.clip_grad_norm_(by_hand.parameters(), limit))
            optim.step()
            optim.zero_grad()
    assert_equal(weights(model), weights(by_hand))
    assert_equal(norms, wanted)
    assert max(norms) > limit > min(norms)  # some are clipped, some are not


def test_before_step_sees_gradients_unscaled_and_not_clipped():
    """Under fp16 with clipping a hook reads the true gradients, and what it writes is what is
    clipped."""
    data, seen = make_data(1), []
    model, plain = make_model(), make_model()

    def scale_up(trainer):
        seen.extend(p.grad.clone() for p in model.parameters())
        for p in model.parameters():
            p.grad = p.grad * 100

    optim = torch.optim.SGD(model.parameters(), lr=1.0)
    hook = LambdaHook(before_step=scale_up)
    before = weights(model)
    make_loop(model, data, optim, hooks=[hook], grad_clip=0.01,
              mixed_precision="fp16").fit(epochs=1)
    nn.functional.mse_loss(plain(data[0][0]), data[0][1]).backward()
    for found, p in zip(seen, plain.parameters(), strict=True):
        torch.testing.assert_close(found, p.grad, rtol=0.02, atol=2e-3)
    moved = torch.stack([(a - b).norm() for a, b in zip(before, weights(model))]).norm()
    assert moved.item() == pytest.approx(0.01, rel=1e-3)


class Tagger(nn.Module):
    """Words to classes by an embedding, sparse or not, and a dense layer if wanted."""

    def __init__(self, sparse, dense):
        super().__init__()
        torch.manual_seed(4)
        self.embedding = nn.Embedding(20, 3, sparse=sparse)
        self.out = nn.Linear(3, 3) if dense else nn.Identity()
        self.double()

    def forward(self, words):
        return self.out(self.embedding(words)).mean(1)


def make_words(batches=6):
    """Batches of words in which each word comes up several times."""
    draw = torch.Generator().manual_seed(6)
    return [
        (torch.randint(0, 20, (5, 7), generator=draw), torch.randint(0, 3, (5,), generator=draw))
        for _ in range(batches)
    ]


@pytest.mark.parametrize("policy", ["raise", "skip", None])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("dense", [True, False])
def test_sparse_gradients_equal_dense_ones(dense, clip, policy):
    """An embedding with sparse gradients trains as a dense one: accumulated, checked, clipped."""
    results = []
    for sparse in (False, True):
        model = Tagger(sparse, dense)
        optim = torch.optim.SGD(model.parameters(), lr=1.0)
        settings = {"gradient_accumulation_steps": 2, "grad_clip": clip, "non_finite": policy}
        norms, hook = [], Hook()
        hook = LambdaHook(after_step=lambda t: norms.append(t.grad_norm.item() if clip else 0))
        loop = Loop(model, None, make_words(), loss_fn=nn.CrossEntropyLoss(), optim=optim,
                    device="cpu",
                    hooks=[hook], **settings)  # fmt: skip
        loop.fit(epochs=2)
        results.append([*weights(model), torch.tensor(norms)])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_sparse_adam_with_clip():
    """SparseAdam gets sparse gradients, clipped by the norm of what is added up for each word."""
    limit = 0.05
    model, by_hand = Tagger(True, False), Tagger(True, False)
    optim = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    loop = Loop(model, None, make_words(), loss_fn=nn.CrossEntropyLoss(), optim=optim, device="cpu",
                grad_clip=limit)
    loop.fit(epochs=2)
    optim = torch.optim.SparseAdam(by_hand.parameters(), lr=0.1)
    for words, classes in make_words() * 2:
        nn.functional.cross_entropy(by_hand(words), classes).backward()
        gradient = by_hand.embedding.weight.grad
        gradient.mul_(min(1.0, limit / (gradient.to_dense().norm() + 1e-6)))
        optim.step()
        optim.zero_grad()
    torch.testing.assert_close(model.embedding.weight, by_hand.embedding.weight, rtol=1e-10,
                               atol=1e-12)


def test_sparse_gradients_that_are_not_finite_are_skipped():
    """The check sees into sparse gradients too."""
    model = Tagger(True, False)
    data = make_words(3)
    before = weights(model)

    def step(batch, trainer):
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1]) * float("inf")}

    optim = torch.optim.SGD(model.parameters(), lr=1.0)
    loop = Loop(model, step, data, optim=optim, device="cpu", non_finite="skip")
    assert loop.fit(epochs=1).steps == 0
    assert_equal(weights(model), before)


# ---- the learning rate by hand, whatever the scheduler

SCHEDULERS = {
    "LambdaLR": lambda o: LambdaLR(o, lambda step: 1 / (1 + 0.3 * step)),
    "OneCycleLR": lambda o: OneCycleLR(o, max_lr=[g["lr"] * 3 for g in o.param_groups],
                                       total_steps=40),
    "StepLR": lambda o: StepLR(o, 3, gamma=0.6),
    "CosineAnnealingWarmRestarts": lambda o: CosineAnnealingWarmRestarts(o, 5),
}
STEPS = 18


def make_groups(model):
    """Two groups of parameters with different rates."""
    groups = [{"params": model[0].parameters(), "lr": 0.1},
              {"params": model[2].parameters(), "lr": 0.02}]
    return torch.optim.SGD(groups, momentum=0.9)


def schedule(name):
    """Rates and momenta of each group at each step, from a scheduler that nobody disturbs;
    and the first rates."""
    optim = make_groups(make_model())
    sched = SCHEDULERS[name](optim)
    first = [group["initial_lr"] for group in optim.param_groups]
    table = []
    for _ in range(STEPS):
        table.append([(group["lr"], group["momentum"]) for group in optim.param_groups])
        optim.step()
        sched.step()
    return table, first


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("change", ["lr_scale", "lr"])
def test_rate_by_hand_and_scheduler(change, name):
    """A multiplier for steps 6 to 11, or a rate taken over:
    before and after the schedule is as if nothing had been."""
    data = make_data(STEPS)
    model, by_hand = make_model(), make_model()
    optim = make_groups(model)
    sched, rates = SCHEDULERS[name](optim), []
    on, off = (({"lr_scale": 0.3}, {"lr_scale": 1.0})
               if change == "lr_scale" else ({"lr": 0.05}, {"lr": None}))

    def after_step(trainer):
        rates.append([group["lr"] for group in optim.param_groups])
        sched.step()
        wish = {6: on, 12: off}.get(trainer.step_state.optimizer_step)
        if wish:
            trainer.tune(**wish)

    make_loop(model, data, optim, hooks=[LambdaHook(after_step=after_step)]).fit(epochs=1)
    table, first = schedule(name)
    # outside the step the schedule's own rates stand
    assert rates == [[rate for rate, _ in row] for row in table]

    optim = make_groups(by_hand)
    for index, (x, y) in enumerate(data):
        for number, (group, (rate, momentum)) in enumerate(zip(optim.param_groups, table[index])):
            taken_over = 0.05 * first[number] / first[0]
            steered = rate * 0.3 if change == "lr_scale" else taken_over
            group["lr"], group["momentum"] = steered if 6 <= index < 12 else rate, momentum
        nn.functional.mse_loss(by_hand(x), y).backward()
        optim.step()
        optim.zero_grad()
    assert_equal(weights(model), weights(by_hand))


def test_plateau_gets_the_metric_and_survives_a_multiplier():
    """ReduceLROnPlateau sees the loss of each evaluation;
    a multiplier meanwhile changes what is used, not its rate."""
    data, epochs = make_data(4), 8
    model, by_hand = make_model(), make_model()
    optim, rates = torch.optim.SGD(model.parameters(), lr=0.5), []
    sched = ReduceLROnPlateau(optim, patience=0, factor=0.3, threshold=0.05)

    def after_epoch(trainer):
        rates.append(optim.param_groups[0]["lr"])
        if trainer.step_state.epoch in (2, 5):
            trainer.tune(lr_scale=0.5 if trainer.step_state.epoch == 2 else 1.0)

    hooks = [SchedulerHook(sched), LambdaHook(after_epoch=after_epoch)]
    make_loop(model, data, optim, valid_dl=data, hooks=hooks).fit(epochs=epochs)

    optim, wanted = torch.optim.SGD(by_hand.parameters(), lr=0.5), []
    sched, scheduled = ReduceLROnPlateau(optim, patience=0, factor=0.3, threshold=0.05), 0.5
    for epoch in range(epochs):
        for x, y in data:
            optim.param_groups[0]["lr"] = scheduled * (0.5 if 2 <= epoch < 5 else 1.0)
            nn.functional.mse_loss(by_hand(x), y).backward()
            optim.step()
            optim.zero_grad()
        with torch.no_grad():
            losses = [nn.functional.mse_loss(by_hand(x), y).item() for x, y in data]
        optim.param_groups[0]["lr"] = scheduled
        sched.step(sum(losses) / len(losses))
        scheduled = optim.param_groups[0]["lr"]
        wanted.append(scheduled)
    assert rates == wanted and len(set(wanted)) > 2
    assert_equal(weights(model), weights(by_hand))


def test_rate_by_hand_survives_a_failing_step():
    """If the optimizer raises, the scheduler's rate is back in its place."""
    model = make_model()
    optim = make_groups(model)
    loop = make_loop(model, make_data(3), optim)
    loop.tune(lr_scale=0.5)

    def fail(*_):
        raise RuntimeError("planted")

    optim.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="planted"):
        loop.fit(epochs=1)
    assert [group["lr"] for group in optim.param_groups] == [0.1, 0.02]


# ---- changes in mid-window


def at_batch(number, action):
    """A hook that acts after this batch (from 1)."""
    count = iter(range(1, 1000))
    return LambdaHook(after_batch=lambda trainer: action(trainer)
                      if next(count) == number else None)


@pytest.mark.parametrize("number", [5, 6, 7])
def test_accumulation_changed_in_mid_window(number):
    """The window that is open keeps its size; the next ones have the new one."""
    ends = []
    hooks = [
        at_batch(number, lambda t: t.tune(gradient_accumulation_steps=2)),
        LambdaHook(after_step=lambda t: ends.append(t.step_state.batch_idx)),
    ]
    model, by_hand, data = make_model(), make_model(), make_data(16)
    loop = make_loop(model, data, hooks=hooks, gradient_accumulation_steps=4)
    loop.fit(epochs=1)
    assert ends == [4, 8, 10, 12, 14, 16]
    optim = OPTIMIZERS["sgd"](by_hand.parameters())
    for first, last in zip([0, *ends], ends):
        for x, y in data[first:last]:
            (nn.functional.mse_loss(by_hand(x), y) / (last - first)).backward()
        optim.step()
        optim.zero_grad()
    assert_equal(weights(model), weights(by_hand))
    (entry,) = loop.journal
    assert (entry.name, entry.old, entry.new,
            entry.step) == ("gradient_accumulation_steps", 4, 2, 2)


@pytest.mark.parametrize("before, after",
                         [(None, "bf16"), ("bf16", None), (None, "fp16"), ("fp16", "bf16")])
def test_precision_changed_in_mid_window(before, after):
    """All batches of a window are computed alike; scaled and plain gradients are never added."""
    seen = []

    def step(batch, trainer):
        enabled = torch.is_autocast_enabled("cpu")
        seen.append(torch.get_autocast_dtype("cpu") if enabled else None)
        return {"loss": nn.functional.mse_loss(trainer.model(batch[0]), batch[1])}

    model = make_model()
    norms = []
    hooks = [
        at_batch(6, lambda t: t.tune(mixed_precision=after)),
        LambdaHook(before_step=lambda t: norms.append(model[0].weight.grad.norm().item())),
    ]
    optim = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = {"mixed_precision": before, "gradient_accumulation_steps": 4}
    Loop(model, step, make_data(4) * 4, optim=optim, device="cpu", hooks=hooks,
         **settings).fit(epochs=1)
    types = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert seen == [types[before]] * 8 + [types[after]] * 8
    # the same four batches: never scaled by 65536
    assert norms == pytest.approx(norms[:1] * 4, rel=0.02)


def test_precision_switched_to_and_fro_leaves_no_scaler_hook():
    """Neither switching nor stepping piles up hooks on the optimizer."""
    model = make_model()
    loop = make_loop(model, make_data(4))
    for precision in ("fp16", None, "fp16", "bf16", "fp16"):
        loop.tune(mixed_precision=precision)
    assert loop.fit(epochs=1).steps == 4
    assert len(loop.optim._optimizer_step_post_hooks) == 0


class Probe(Hook):
    """Notes at which batches it was called."""

    def __init__(self):
        self.batches = []

    def after_batch(self, trainer):
        """Its one point."""
        self.batches.append(trainer.step_state.batch_idx)


CHANGES = {
    "added": (lambda t, probe: t.hooks.add(probe), [9, 10, 11, 12]),
    "removed": (lambda t, probe: t.hooks.remove(probe), list(range(1, 9))),
    "tuned off": (lambda t, probe: t.tune(**{"probe.enabled": False}), list(range(1, 9))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_hook_changed_in_mid_window(change):
    """It is called for the whole window or for none of it."""
    probe = Probe()
    act, wanted = CHANGES[change]
    hooks = [at_batch(6, lambda t: act(t, probe))] + ([] if change == "added" else [probe])
    make_loop(make_model(), make_data(12), hooks=hooks, gradient_accumulation_steps=4).fit(epochs=1)
    assert probe.batches == wanted


def test_order_changed_in_mid_window():
    """Two hooks change places between two windows."""
    calls = []
    first = LambdaHook(name="first", after_batch=lambda t: calls.append("first"))
    second = LambdaHook(name="second", after_batch=lambda t: calls.append("second"))
    hooks = [first, second, at_batch(3, lambda t: t.tune(**{"second.order": -1}))]
    make_loop(make_model(), make_data(6), hooks=hooks, gradient_accumulation_steps=2).fit(epochs=1)
    assert calls == ["first", "second"] * 4 + ["second", "first"] * 2


def test_a_tuned_clip_waits_for_the_boundary():
    """The window in which it was asked for is clipped by the old limit."""
    moved = []
    model = make_model()
    optim = torch.optim.SGD(model.parameters(), lr=1.0)
    state = {"before": weights(model)}

    def after_step(trainer):
        now = weights(model)
        moved.append(torch.stack([(a - b).norm()
                                  for a, b in zip(now, state["before"])]).norm().item())
        state["before"] = now

    hooks = [at_batch(3, lambda t: t.tune(grad_clip=0.01)), LambdaHook(after_step=after_step)]
    make_loop(model, make_data(6), optim, hooks=hooks, grad_clip=0.02,
              gradient_accumulation_steps=2).fit(epochs=1)
    assert moved == pytest.approx([0.02, 0.02, 0.01], rel=1e-3)


def test_what_is_prepared_for_a_step_fits_that_step():
    """A loss on another device gets a seed of its own;
    a precision chosen under no_grad is entered with its cache of casts."""
    loop = Loop(nn.Linear(3, 1), train_dl=[(torch.randn(4, 3), torch.randn(4, 1))],
                loss_fn=nn.MSELoss(), device="cpu", max_steps=2)
    here, elsewhere = torch.zeros(()), torch.zeros((), device="meta")
    assert [loop.engine.seed(loss, 1.0).device.type
            for loss in (here, here, elsewhere, here)] == ["cpu", "cpu", "meta", "cpu"]
    with torch.no_grad():
        loop.tune(mixed_precision="bf16")
    with loop.engine.training_autocast:
        assert torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()


def test_a_skipped_first_window_evaluates_nothing():
    """No step was made yet, so there is none to evaluate."""
    batches = [(small_runs.X[:4] * float("nan"), small_runs.Y[:4]), *small_runs.BATCHES]
    trainer = small_runs.make(train_dl=batches, valid_dl=small_runs.BATCHES, max_steps=8,
                              eval_every=4, non_finite="skip")
    trainer.fit()
    assert small_runs.evaluated(trainer) == [4, 8]
