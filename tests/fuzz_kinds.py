"""What a drawn run may have beside its plan: models, optimizers, data and schedules as users write
them, declared in one table."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from exact_runs import INPUTS, SAMPLES, SIZE, TARGETS, Samples, make_loader
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from trainer_nb import SchedulerHook, Trainer


@dataclass(frozen=True)
class Kind:
    """The parts in place of the usual ones, and what of the plan is set for them."""

    must: bool = True  # ends as the run left alone: that `exact` says why not is not enough
    model: Callable | None = None  # ()
    resting: tuple = ()  # parts that a loop by hand keeps in eval mode
    optim: Callable | None = None  # (parameter groups)
    sched: Callable | None = None  # (optimizer)
    loader: Callable | None = None  # (plan, generator, model)
    later: Callable | None = None  # the same, of the loader that takes its place at an epoch
    step: Callable | None = None  # (batch, trainer)
    trainer: type = Trainer
    plan: dict = field(default_factory=dict)
    ways: tuple = ()  # of going on, where not all leave the same bits
    whats: tuple = ()  # of what happens then


# Models


def layers():
    """What `from_pretrained` returns: everything in eval mode."""
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2)).eval()


class FrozenNorm(nn.Module):
    """Its norm stays in eval mode, whoever calls `train()`."""

    def __init__(self, size=4, drop=0.2):
        super().__init__()
        self.norm, self.head, self.drop = nn.BatchNorm1d(size), nn.Linear(size, 1), drop

    def train(self, mode=True):
        """As usual, the norm aside."""
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        """One number."""
        return self.head(functional.dropout(self.norm(x), self.drop, self.training))


class Merging(nn.Linear):
    """An update of low rank, which is a part of the weight in eval mode."""

    def __init__(self, size=4, drop=0.2, start=3.0):
        super().__init__(size, 1)
        self.weight.requires_grad_(False)
        # the start is so large that the weight is rounded
        self.a = nn.Parameter(torch.randn(2, size))
        self.b = nn.Parameter(torch.full((1, 2), start))
        self.merged, self.drop = False, drop

    def train(self, mode=True):
        """Adds the update to the weight, or takes it off."""
        super().train(mode)
        if self.merged == mode:
            self.weight.data += (-1 if mode else 1) * (self.b @ self.a)
            self.merged = not mode
        return self

    def forward(self, x):
        """The same number in both modes."""
        out = functional.linear(x, self.weight, self.bias)
        return out if self.merged else out + functional.dropout(x, self.drop) @ self.a.T @ self.b.T


class KeepingMerging(Merging):
    """Gives the weight back as it was."""

    def train(self, mode=True):
        """Keeps the weight while the update is in it."""
        nn.Linear.train(self, mode)
        if mode and self.merged:
            self.weight.data.copy_(self.kept)
        elif not mode and not self.merged:
            self.kept = self.weight.data.clone()
            self.weight.data += self.b @ self.a
        self.merged = not mode
        return self


class Caching(nn.Linear):
    """Its product is computed once an evaluation."""

    def __init__(self, size=4, drop=0.2):
        super().__init__(size, 1)
        self.kept, self.drop = None, drop

    def train(self, mode=True):
        """What was kept is of the weights before."""
        self.kept = None
        return super().train(mode)

    def forward(self, x):
        """In eval mode by the weight that was kept."""
        if self.training:
            return functional.linear(functional.dropout(x, self.drop), self.weight, self.bias)
        if self.kept is None:
            self.kept = self.weight.detach() * 1.0
        return functional.linear(x, self.kept, self.bias)


def with_head(**parts):
    """A pretrained part with a new head."""
    model = nn.Sequential()
    for name, part in parts.items():
        model.add_module(name, part)
    model.add_module("head", nn.Linear(6, 1))
    return model


def half_frozen():
    """A pretrained part of which one layer is trained."""
    made = layers()
    made[0].requires_grad_(False)
    return made


def resting_norm():
    """A norm that the user froze, among layers that are trained."""
    made = layers().train()
    made[1].eval().requires_grad_(False)
    return made


# Optimizers


class Around(torch.optim.Optimizer):
    """Steps another optimizer, which has a state, over the same groups."""

    def __init__(self, groups, lr=0.02):
        super().__init__(groups, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.base.param_groups

    def step(self, closure=None):
        """One of the other."""
        self.base.step()

    def load_state_dict(self, state):
        """The groups of the other are these."""
        super().load_state_dict(state)
        self.base.param_groups = self.param_groups


class Keeping(Around):
    """Has the state of the other one in its own."""

    def state_dict(self):
        """That of the other."""
        return self.base.state_dict()

    def load_state_dict(self, state):
        """Into the other."""
        self.base.load_state_dict(state)
        self.param_groups = self.base.param_groups


class Sharp(Around):
    """Sharpness-aware: the gradients of a step are those of weights a little way uphill."""

    @torch.no_grad()
    def climb(self):
        """Go uphill; returns the way back."""
        weights = [each for group in self.param_groups for each in group["params"]
                   if each.grad is not None]
        norm = torch.stack([each.grad.norm() for each in weights]).norm() + 1e-12
        before = [each.clone() for each in weights]
        for each in weights:
            each.add_(each.grad, alpha=0.05 / float(norm))
        return lambda: [each.data.copy_(old) for each, old in zip(weights, before)]


class SharpTrainer(Trainer):
    """Takes each window twice."""

    repeats_windows = True

    def do_opt_step(self, closure=None):
        """Gradients uphill, and the step from where it was."""
        back = self.optim.climb()
        self.window_gradients()
        back()
        return super().do_opt_step(closure)


class Lookahead(torch.optim.SGD):
    """Keeps slow weights in a list, and counts in a number."""

    turns, slow = 0, ()

    @torch.no_grad()
    def step(self, closure=None):
        """Goes half-way back at each third step."""
        weights = [each for group in self.param_groups for each in group["params"]]
        if not self.slow:
            self.slow = [each.clone() for each in weights]
        super().step()
        self.turns += 1
        if self.turns % 3 == 0:
            for weight, slow in zip(weights, self.slow):
                weight.copy_(slow.lerp_(weight, 0.5))


class Warming(torch.optim.SGD):
    """Its steps grow by a factor in a number."""

    factor = 0.1

    def step(self, closure=None):
        """A little more each time."""
        self.factor = min(1.0, self.factor * 1.1)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.grad.mul_(self.factor)
        super().step()


class Memory(torch.optim.SGD):
    """Keeps a mean of gradients in an attribute: a tensor, or an array."""

    mean, array = None, False

    def step(self, closure=None):
        """Steps along the mean."""
        grad = self.param_groups[0]["params"][0].grad
        mean = grad.clone() if self.mean is None else torch.as_tensor(self.mean) * 0.9 + grad
        grad.copy_(mean)
        self.mean = mean.numpy() if self.array else mean
        super().step()


class ArrayMemory(Memory):
    """In an array."""

    array = True


def schedule_free(groups):
    """Adam with weights of its own for evaluations."""
    import schedulefree

    return schedulefree.AdamWScheduleFree(groups, lr=0.02)


# Data


DRAWS = {"torch": lambda n: int(torch.randint(n, ())), "numpy": lambda n: np.random.randint(n),
         "python": random.randrange}  # fmt: skip


class Buffer(IterableDataset):
    """An order that is drawn as it goes, from a global stream or a generator of its own."""

    def __init__(self, draw, own=False):
        self.draw, self.rng = DRAWS[draw or "torch"], np.random.default_rng(6) if own else None

    def __iter__(self):
        draw, waiting = self.draw if self.rng is None else self.rng.integers, []
        for index in range(SAMPLES):
            waiting.append(index)
            if len(waiting) > 5:
                yield self.give(waiting.pop(draw(len(waiting))))
        yield from map(self.give, waiting)

    @staticmethod
    def give(index):
        """A sample."""
        return INPUTS[index], TARGETS[index]


class Rollouts(IterableDataset):
    """What is collected when an epoch begins; with a policy, by the model that is trained."""

    def __init__(self, draw, policy=None):
        self.draw, self.policy = DRAWS[draw or "torch"], policy

    def __iter__(self):
        share = [self.draw(100) / 100 for _ in range(SAMPLES)]
        made = INPUTS + torch.randn(SAMPLES, 1) * torch.tensor(share)[:, None]
        if self.policy is not None:
            with torch.no_grad():
                made = made + self.policy[0](INPUTS)[:, :4].tanh()
        return zip(made, TARGETS)


def walk(draw, count, size):
    """Each number is a drawn way from the one before: who draws one anew has others after it."""
    place = 0
    for _ in range(count):
        place = (place + draw(size)) % size
        yield place


class Augmented(IterableDataset):
    """Samples that are changed by what is drawn."""

    def __init__(self, draw):
        self.draw = DRAWS[draw or "torch"]

    def __iter__(self):
        return ((x + part / 100 + torch.rand(4), y)
                for x, y, part in zip(INPUTS, TARGETS, walk(self.draw, SAMPLES, 100)))


class DrawnEach(Sampler):
    """Draws each index, or list of them, when it is asked for."""

    def __init__(self, draw, size=None):
        self.draw, self.size = DRAWS[draw or "torch"], size

    def __len__(self):
        return SAMPLES if self.size is None else 5

    def __iter__(self):
        size = self.size
        places = walk(self.draw, len(self) * (size or 1), SAMPLES)
        return places if size is None else map(list, zip(*[places] * size))


class OwnLoader:
    """A loader of one's own, that draws each batch."""

    def __init__(self, draw):
        self.draw = DRAWS[draw or "torch"]

    def __len__(self):
        return 5

    def __iter__(self):
        for start in walk(self.draw, 5, SAMPLES - SIZE):
            yield INPUTS[start:start + SIZE], TARGETS[start:start + SIZE]


class Told(Dataset):
    """Goes by the epoch that it was told."""

    epoch = 0

    def __len__(self):
        return SAMPLES

    def set_epoch(self, epoch):
        """Says which epoch begins."""
        self.epoch = epoch

    def __getitem__(self, index):
        return INPUTS[(index + 5 * self.epoch) % SAMPLES] * (1 + self.epoch), TARGETS[index]


def batches_of(dataset, **settings):
    """A function that makes a loader of what a function of a stream's name makes."""
    def make(plan, generator, model):
        given = {each: kind(plan.augment) if callable(kind) else kind
                 for each, kind in settings.items()}
        size = {} if "batch_sampler" in given else {"batch_size": SIZE}
        return DataLoader(dataset(plan, model), generator=generator, **size, **given)
    return make


def other_size(plan, generator, model):
    """Larger batches, in an order of their own."""
    return DataLoader(Samples(plan.augment), 6, shuffle=True, generator=generator)


def harder(plan, generator, model):
    """Other samples, in a buffer, and fewer of them in a batch."""
    return DataLoader(Buffer(plan.augment), 2, generator=generator)


# Schedules and steps


def warm_and_plateau(optim):
    """A warm-up by steps, and a plateau."""
    return [SchedulerHook(lr_scheduler.LinearLR(optim, 0.1, total_iters=6), "step"),
            SchedulerHook(lr_scheduler.ReduceLROnPlateau(optim, factor=0.5, patience=0))]


def two_by_name(optim):
    """By steps, and by epochs."""
    return [SchedulerHook(lr_scheduler.LambdaLR(optim, lambda n: 1 / (1 + 0.1 * n)), "step"),
            SchedulerHook(lr_scheduler.StepLR(optim, 1, 0.5), "epoch")]


def by_training_loss(optim):
    """A plateau of the loss in training."""
    plateau = lr_scheduler.ReduceLROnPlateau(optim, factor=0.5, patience=0, threshold=0.2)
    return [SchedulerHook(plateau, metric="train/loss")]


def by_tokens(batch, trainer):
    """The mean over those samples that count; it says how many they are."""
    inputs, targets = batch
    pred = trainer.model(inputs)
    loss = functional.mse_loss(pred, targets, reduction="none")
    counts = (targets > -0.5).to(loss.dtype)
    return {"loss": (loss * counts).sum() / counts.sum().clamp(min=1), "pred": pred,
            "n": counts.sum().clamp(min=1)}


ONE = {"order": "shuffle", "workers": 0, "persistent": False}
DATA = {"order": "iterable", "workers": 0, "persistent": False}
# it is seen from the second step on that a trainer makes
STATES = dict(must=False, plan={"precision": None, "overfit": None, "limit": None})
BACK = ("rewind", "rewind", "another trainer", "its own state", "crash", "validate")
KINDS = {
    "usual": Kind(must=False),
    # state in attributes of the optimizer
    "optimizer around another": Kind(optim=Around, **STATES),
    "sharpness-aware": Kind(optim=Sharp, trainer=SharpTrainer, **STATES),
    "lookahead": Kind(optim=lambda groups: Lookahead(groups, 0.05), **STATES),
    "number in the optimizer": Kind(optim=lambda groups: Warming(groups, 0.05), **STATES),
    "tensor in the optimizer": Kind(optim=lambda groups: Memory(groups, 0.02), **STATES),
    "array in the optimizer": Kind(optim=lambda groups: ArrayMemory(groups, 0.02), **STATES),
    "state of the inner optimizer": Kind(optim=Keeping),
    "schedule-free": Kind(optim=schedule_free,
                          plan={"sched": None, "ema": None, "precision": None}),
    # models with a train() of their own; pretrained parts
    "frozen norm": Kind(model=FrozenNorm),
    # rounded where the update is taken off again, so each evaluation leaves a trace
    "merging": Kind(model=Merging, ways=("step",), plan={"ema": None},
                    whats=("nothing", "another trainer", "its own state", "rewind", "crash")),
    "merging, and back": Kind(model=KeepingMerging),
    "caching": Kind(model=Caching),
    "backbone": Kind(model=lambda: with_head(backbone=layers())),
    "frozen backbone": Kind(model=lambda: with_head(backbone=layers().requires_grad_(False)),
                            resting=("backbone",)),
    "half frozen backbone": Kind(model=lambda: with_head(backbone=half_frozen())),
    "resting norm": Kind(model=lambda: with_head(body=resting_norm()), resting=("body.1",)),
    "all in eval mode": Kind(model=lambda: with_head(body=layers()).eval()),
    # what draws in the main process
    "buffer": Kind(loader=batches_of(lambda plan, _: Buffer(plan.augment)), plan=DATA),
    "buffer of its own": Kind(loader=batches_of(lambda plan, _: Buffer(None, own=True)), plan=DATA),
    "rollouts": Kind(loader=batches_of(lambda plan, _: Rollouts(plan.augment)), plan=DATA),
    "rollouts of the model": Kind(must=False, plan=DATA, loader=batches_of(
        lambda plan, model: Rollouts(plan.augment, model))),
    "augmented stream": Kind(loader=batches_of(lambda plan, _: Augmented(plan.augment)), plan=DATA),
    "drawing sampler": Kind(loader=batches_of(lambda plan, _: Samples(plan.augment),
                                              sampler=DrawnEach), plan=ONE),
    "drawing batch sampler": Kind(loader=batches_of(
        lambda plan, _: Samples(plan.augment),
        batch_sampler=lambda draw: DrawnEach(draw, SIZE)), plan=ONE),
    "own loader": Kind(loader=lambda plan, *_: OwnLoader(plan.augment), plan=DATA),
    "told its epoch": Kind(loader=batches_of(lambda *_: Told()), plan=ONE),
    # another loader from an epoch on
    "other batch size": Kind(loader=make_loader, later=other_size, plan=ONE, whats=BACK),
    "curriculum": Kind(loader=make_loader, later=harder, plan=ONE, whats=BACK),
    "from a stream to an order": Kind(
        loader=batches_of(lambda plan, _: Buffer(plan.augment)), later=other_size, plan=DATA,
        whats=BACK),
    # schedules, losses
    "two schedules": Kind(sched=two_by_name, plan={"sched": None}),
    "warm-up and plateau": Kind(sched=warm_and_plateau, plan={"sched": None, "valid": "plain"}),
    "plateau in training": Kind(sched=by_training_loss, plan={"sched": None}),
    "weighted by tokens": Kind(step=by_tokens),
}  # fmt: skip
