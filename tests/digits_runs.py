"""Runs over handwritten digits in which anything that goes astray shows in the weights, and hooks
that act in them."""

import random
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from small_runs import Loop
from trainer_nb.core.hook import HOOK_POINTS, LambdaHook

IMAGES, LABELS = load_digits(return_X_y=True)  # read once: that takes 45 milliseconds
FIT_POINTS = (*HOOK_POINTS["fit"], "on_pause", "on_resume")


class DrawingData(TensorDataset):
    """Digits with noise from the global stream:
    an order or a stream that shifts shows in the weights."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + 0.1 * torch.randn(image.shape), label


def make_data(count, cls=TensorDataset):
    """So many handwritten digits."""
    return cls(torch.tensor(IMAGES[:count], dtype=torch.float32) / 16, torch.tensor(LABELS[:count]))


def make_model():
    """A classifier with everything that can go astray:
    dropout, running means, one of them frozen."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(16),
        nn.Linear(16, 10)
    )
    model[4].eval().requires_grad_(False)
    return model


def make_loop(*hooks, valid=True, train=44, batch=8, accumulation=2, **settings):
    """Shuffled digits, six batches and three windows an epoch (the last one a small tail),
    AdamW."""
    settings.setdefault("seed", 3)
    settings.setdefault("optim", lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
    settings.setdefault("train_dl", DataLoader(make_data(train, DrawingData), batch, shuffle=True))
    if valid is True:  # evaluation draws from the streams, too
        valid = DataLoader(make_data(20, DrawingData), 5, shuffle=True)
    return Loop(
        settings.pop("model", None) or make_model(), settings.pop("train_step", None),
        valid_dl=valid or None,
        loss_fn=settings.pop("loss_fn", nn.CrossEntropyLoss()), device="cpu", hooks=hooks,
        gradient_accumulation_steps=accumulation, **settings,
    )  # fmt: skip


def make_batches(count=2, size=4):
    """Batches of digits in a list."""
    return list(DataLoader(make_data(count * size), size))


def everything(loop):
    """All that a run has learnt: weights, running means, optimizer state, counters."""
    optim = [value for state in loop.optim.state.values() for value in state.values()]
    return [*(v.clone() for v in loop.model.state_dict().values()),
            *(torch.as_tensor(v).clone() for v in optim)], (
loop.step_state
)


def assert_same(loop, other):
    """Two runs stand at the same place, bit for bit."""
    (tensors, state), (others, other_state) = everything(loop), everything(other)
    assert state == other_state
    assert len(tensors) == len(others) > 20
    assert all(torch.equal(a, b) for a, b in zip(tensors, others))
    assert loop.step_state.phase == other.step_state.phase


def straight(**totals):
    """A run in one go."""
    loop = make_loop()
    assert loop.fit(**totals).status == "finished"
    return loop


def recorder(seen, points=FIT_POINTS):
    """A hook that writes these points down."""
    return LambdaHook(order=50, **{p: (lambda trainer, *_, p=p: seen.append(p)) for p in points})


def at_step(number, action, point="after_step"):
    """A hook that acts once, in this step."""

    def act(trainer):
        if trainer.step_state.optimizer_step == number and not hook.acted:
            hook.acted = True
            hook.result = action(trainer)

    hook = LambdaHook(**{point: act})
    hook.acted = False
    return hook


def in_evaluation(action, batch=2):
    """A hook that acts once, after this batch of the first evaluation."""

    def act(trainer):
        if not trainer.training and trainer.eval_batch == batch - 1 and not hook.acted:
            hook.acted = True
            hook.result = action(trainer)

    hook = LambdaHook(after_batch=act)
    hook.acted = False
    return hook


def wait_for(condition, seconds=120):
    """Wait until `condition()` is true, and fail if it never is."""
    end = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < end, "this was never true"
        time.sleep(0.002)


def wait_for_pauses(loop, *boundaries):
    """Let a run not get ahead of a test that pauses it again and again: at the first of these
    boundaries it waits for the first pause, at the second for the second, and so on."""

    def wait(kind):
        if kind == "boundary" and loop.step_state.boundary in boundaries:
            number = boundaries.index(loop.step_state.boundary) + 1
            wait_for(lambda: loop.mailbox
                     or [entry.kind for entry in loop.journal].count("pause") >= number)

    loop.at_safe_point = wait


def assert_held(loop):
    """The run is paused, and stays at its place while it checks for commands three times."""
    wait_for(lambda: loop.state == "paused")
    place = loop.step_state.boundary, loop.step_state.optimizer_step
    seconds, checks = loop.elapsed(), []
    loop.at_safe_point = checks.append
    wait_for(lambda: len(checks) >= 3)
    loop.at_safe_point = None
    assert loop.state == "paused" and set(checks) == {"paused"}
    assert (loop.step_state.boundary, loop.step_state.optimizer_step) == place
    assert loop.elapsed() == seconds


def global_streams():
    """One draw of each global stream, and the streams as they were."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    drawn = random.random(), np.random.rand(), torch.rand(()).item()
    random.setstate(kept[0]), np.random.set_state(kept[1]), torch.set_rng_state(kept[2])
    return drawn


def disturb():
    """What a person does in a cell between two drives."""
    random.seed(8), np.random.seed(8), torch.manual_seed(8)
    torch.rand(100)
