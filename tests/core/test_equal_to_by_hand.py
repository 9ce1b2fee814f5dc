"""In the plain case the weights are those of a hand-written loop, bit for bit, whatever else is
switched on."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import epoch
from benchmarks.peers import train
from benchmarks.work import WORKS, same
from trainer_nb.core.hook import Hook, LambdaHook
from small_runs import Loop
from trainer_nb.hooks.schedule import SchedulerHook
from trainer_nb.trainer import Trainer

IMAGES, LABELS = load_digits(return_X_y=True)
BATCHES, SIZE, EPOCHS = 8, 32, 3
LOSS = nn.CrossEntropyLoss(label_smoothing=0.1)


def digits():
    """Scikit-learn's digits: 256 to train on, 200 to validate."""
    x, y = torch.tensor(IMAGES / 16, dtype=torch.float32), torch.tensor(LABELS)
    cut = BATCHES * SIZE
    return TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut : cut + 200], y[cut : cut + 200])


def make_parts(optim, generator=None):
    """Model, optimizer and loaders; the model has dropout and batch norm, the loader shuffles."""
    torch.manual_seed(7)
    train, valid = digits()
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
                          nn.Linear(32, 10))
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    }[optim]
    generator = generator and torch.Generator().manual_seed(11)
    loader = DataLoader(train, batch_size=SIZE, shuffle=True, generator=generator)
    valid_dl = DataLoader(valid, batch_size=50, shuffle=True, generator=generator)
    return model, make(model.parameters()), loader, valid_dl


STEPS = BATCHES * EPOCHS
SCHEDULERS = {
    None: lambda optim: None,
    "cosine": lambda optim: CosineAnnealingLR(optim, STEPS),
    "one cycle": lambda optim: OneCycleLR(optim, max_lr=0.05, total_steps=STEPS),
}


def state_of(model, optim):
    """Everything that training changed: parameters, buffers, the optimizer's state."""
    states = [value for state in optim.state_dict()["state"].values() for value in state.values()]
    return [*model.state_dict().values(), *[s for s in states if isinstance(s, torch.Tensor)]]


def by_hand(optim, scheduler=None, accumulation=1, clip=None, generator=None, precision=None):
    """The loop as it is in every tutorial, without validation."""
    model, optim, loader, _ = make_parts(optim, generator)
    sched = SCHEDULERS[scheduler](optim)
    model.train()
    for _ in range(EPOCHS):
        for index, (x, y) in enumerate(loader, 1):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = LOSS(model(x), y)
            (loss / accumulation).backward()
            if index % accumulation == 0:
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optim.step()
                if sched:
                    sched.step()
                optim.zero_grad()
    return state_of(model, optim)


class Busy(Hook):
    """Looks at everything, and changes nothing."""

    def __init__(self):
        self.seen = []

    def look(self, trainer):
        """What a curious hook reads."""
        gradients = [p.grad.norm().item() for p in trainer.model.parameters() if p.grad is not None]
        loss = None if trainer.loss is None else trainer.loss.item()
        self.seen.append((loss, gradients, trainer.position(), trainer.describe_hooks()))


for point in ("before_epoch", "before_batch", "after_pred", "after_loss", "after_backward",
              "after_batch",
              "before_step", "after_step", "before_valid", "after_valid", "after_epoch"):
    setattr(Busy, point, Busy.look)


def assert_equal(found, wanted):
    """Two lists of tensors are equal bit for bit."""
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("optim", ["sgd", "adamw"])
def test_digits_equal_a_hand_written_loop(optim, scheduler, accumulation):
    """The loop alone with its validation: weights, buffers and optimizer state are equal."""
    model, made, loader, valid_dl = make_parts(optim)
    sched = SCHEDULERS[scheduler](made)
    hooks = [SchedulerHook(sched)] if sched else []
    settings = {"gradient_accumulation_steps": accumulation, "hooks": hooks, "device": "cpu"}
    loop = Loop(model, None, loader, valid_dl, loss_fn=LOSS, optim=made, **settings)
    loop.fit(epochs=EPOCHS)
    assert_equal(state_of(model, made), by_hand(optim, scheduler, accumulation))


@pytest.mark.parametrize("optim", ["sgd", "adamw"])
def test_digits_with_everything_on_equal_a_hand_written_loop(optim, capsys):
    """Recorder, progress lines, several validations with metrics, clipping and curious hooks change
    no bit."""
    model, made, loader, valid_dl = make_parts(optim)
    busy = [Busy(), LambdaHook(order=-5, after_batch=lambda t: t.loss.item()),
            LambdaHook(on_log=lambda t, r: None)]
    accuracy = {"accuracy": lambda pred, target: (pred.argmax(1) == target).float().mean()}
    trainer = Trainer(
        model,
        train_dl=loader,
        valid_dl={"valid": valid_dl, "again": valid_dl},
        loss_fn=LOSS,
        metrics=accuracy,
        optim=made,
        sched=SCHEDULERS["one cycle"],
        hooks=busy,
        grad_clip=0.5,
        gradient_accumulation_steps=2,
        eval_first=True,
        progress="lines",
        device="cpu",
    )
    trainer.fit(epochs=EPOCHS)
    assert_equal(state_of(model, made), by_hand(optim, "one cycle", 2, clip=0.5))
    assert len(trainer.history["again/accuracy"]) == EPOCHS + 1 and busy[0].seen
    assert "loss" in capsys.readouterr().out


def test_digits_in_pieces_equal_a_hand_written_loop():
    """step(), validate(), predict(), cells that draw random numbers, fit() again:
    still the same bits."""
    model, made, loader, valid_dl = make_parts("adamw")
    trainer = Trainer(model, None, loader, valid_dl, loss_fn=LOSS, optim=made, progress=False,
                      device="cpu")
    trainer.epochs = EPOCHS
    trainer.step(3)
    torch.rand(5)
    trainer.validate()
    trainer.step(7)
    trainer.predict(valid_dl)
    trainer.step(epochs=1)
    torch.manual_seed(99)
    trainer.fit(epochs=EPOCHS)
    assert trainer.step_state.optimizer_step == STEPS
    assert_equal(state_of(model, made), by_hand("adamw"))


@pytest.mark.parametrize("eval_every", [None, 3])
def test_digits_by_steps_equal_a_hand_written_loop(eval_every):
    """Counted in steps, with evaluations in mid-epoch."""
    model, made, loader, valid_dl = make_parts("sgd")
    loop = Loop(model, None, loader, valid_dl, loss_fn=LOSS, optim=made, eval_every=eval_every,
                device="cpu")
    loop.fit(max_steps=STEPS)
    assert_equal(state_of(model, made), by_hand("sgd"))


def test_digits_in_the_background_equal_a_hand_written_loop():
    """The same from another thread."""
    model, made, loader, valid_dl = make_parts("adamw")
    loop = Loop(model, None, loader, valid_dl, loss_fn=LOSS, optim=made, device="cpu")
    loop.start(epochs=EPOCHS)
    loop.wait()
    assert_equal(state_of(model, made), by_hand("adamw"))


def test_digits_in_bf16_equal_a_hand_written_loop():
    """Autocast with accumulation on the same data."""
    model, made, loader, valid_dl = make_parts("adamw")
    settings = {"mixed_precision": "bf16", "gradient_accumulation_steps": 2, "device": "cpu"}
    Loop(model, None, loader, valid_dl, loss_fn=LOSS, optim=made, **settings).fit(epochs=EPOCHS)
    assert_equal(state_of(model, made), by_hand("adamw", accumulation=2, precision="bf16"))


def test_a_generator_shared_with_validation_is_not_disturbed():
    """Training and validation loaders draw from one generator:
    the training order is that without validation."""
    model, made, loader, valid_dl = make_parts("sgd", generator=True)
    assert loader.generator is valid_dl.generator
    Loop(model, None, loader, valid_dl, loss_fn=LOSS, optim=made, device="cpu").fit(epochs=EPOCHS)
    assert_equal(state_of(model, made), by_hand("sgd", generator=True))


def test_scheduler_by_epoch_equals_a_hand_written_loop():
    """Stepped at the end of each epoch."""
    results = []
    for ours in (True, False):
        model, optim, loader, valid_dl = make_parts("sgd")
        sched = StepLR(optim, 1, gamma=0.5)
        if ours:
            hooks = [SchedulerHook(sched, every="epoch")]
            Loop(model, None, loader, valid_dl, loss_fn=LOSS, optim=optim, hooks=hooks,
                 device="cpu").fit(epochs=EPOCHS)
        else:
            for _ in range(EPOCHS):
                for x, y in loader:
                    LOSS(model(x), y).backward()
                    optim.step()
                    optim.zero_grad()
                sched.step()
        results.append(state_of(model, optim))
    assert_equal(*results)


def test_the_benchmarks_compare_equal_work():
    """Every run that is measured ends with the weights of its loop by hand."""
    for work in [work for name, work in WORKS.items() if "tiny" in name]:
        block, batches = work.by_hand(), work.batches[:40]
        block(batches)
        for peer in ("trainer_nb", "trainer_nb_default"):
            assert same(train(peer, work, batches), block.model), (work.name, peer)


@pytest.mark.parametrize("peer", ["trainer_nb", "trainer_nb_slow_batches"])
def test_the_epochs_of_the_benchmarks_are_equal_work(peer):
    """With a validation and a metric, too."""
    work = epoch.Epochs((3, 4, 4), samples=22, held_out=10, batch=4, epochs=2)
    hand, model = epoch.raw(work), epoch.PEERS[peer](work)
    assert all(map(torch.equal, hand.parameters(), model.parameters()))


def test_the_comparison_would_notice():
    """One batch in another order, or one rate that differs, is seen:
    the equality above is no accident."""
    model, made, loader, valid_dl = make_parts("sgd")
    made.param_groups[0]["lr"] *= 1 + 1e-6
    Loop(model, None, loader, valid_dl, loss_fn=LOSS, optim=made, device="cpu").fit(epochs=EPOCHS)
    found, wanted = state_of(model, made), by_hand("sgd")
    assert not torch.equal(found[0], wanted[0])
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("pieces", [(), (5, 4)])
@pytest.mark.parametrize("point", ["after_step", "after_epoch", "before_epoch", "on_log"])
def test_gradients_that_a_hook_leaves_are_dropped(point, pieces):
    """As by `zero_grad()` at the top of a loop: looking at gradients changes nothing."""
    weights = []
    for looks in (False, True):
        model, optim, loader, valid_dl = make_parts("sgd")
        x, y = loader.dataset[:8]

        def look(trainer, *records, x=x, y=y):
            modes = [each.training for each in trainer.model.modules()]
            trainer.model.eval()
            LOSS(trainer.model(x), y).backward()
            for each, mode in zip(trainer.model.modules(), modes, strict=True):
                each.training = mode
        hooks = [LambdaHook(**{point: look})] if looks else []
        trainer = Trainer(model, train_dl=loader, valid_dl=valid_dl, loss_fn=LOSS, optim=optim,
                          epochs=EPOCHS, seed=0, device="cpu", progress=False, hooks=hooks)
        for steps in pieces:
            trainer.step(steps)
        trainer.fit()
        weights.append(state_of(model, optim))
    assert all(map(torch.equal, *weights))
