"""Wherever a program keeps what changes its result: the state has it, or `exact` names it."""

import random
import time
from enum import IntEnum
from itertools import chain
from queue import Queue
from types import SimpleNamespace

import fuzz_kinds as helpers
import numpy as np
import pytest
import torch
from fuzz_kinds import ArrayMemory, Lookahead, Warming
from shorter import some
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import (DataLoader, Dataset, IterableDataset, RandomSampler, Sampler,
                              TensorDataset)

from trainer_nb import Hook, LambdaHook, SnapshotHook, Trainer
from trainer_nb.core import data as data_chapter
from trainer_nb.core import own_state
from trainer_nb.core.training import Plan

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def blend(old, new):
    """A running mean."""
    return new if old is None else old * 0.5 + new * 0.5


class Around(torch.optim.Optimizer):
    """Steps another optimizer over the same groups."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.base.param_groups

    def step(self, closure=None):
        """One of the other."""
        self.base.step()


class Drifting(Dataset):
    """Its samples move with a number, and so does what it was asked."""

    drift = 0.0

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        self.drift = self.drift * 0.9 + 0.1
        return X[index] + self.drift, Y[index]


class Centering:
    """A collate function with a running mean in an array."""

    mean = np.zeros(4, dtype=np.float32)

    def __call__(self, samples):
        inputs = torch.stack([x for x, _ in samples])
        self.mean = self.mean * 0.9 + inputs.mean(0).numpy() * 0.1
        return inputs - torch.from_numpy(self.mean), torch.stack([y for _, y in samples])


class Harder(Dataset):
    """A curriculum: its level rises with the samples that it gave."""

    level = 0

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        self.level += 1
        return X[index] * (1 + self.level // 40), Y[index]


class FirstHalf(Sampler):
    """Gives more of the samples in each pass."""

    share = 16

    def __len__(self):
        return 32

    def __iter__(self):
        self.share += 8
        return iter([index % self.share for index in range(32)])


def run(optim=lambda weights: torch.optim.SGD(weights, 0.05), step=None, loader=None, hooks=(),
        prepare=None, model=lambda: nn.Linear(4, 1), loss_fn=lambda: mse_loss, rewinds=False,
        **settings):
    """A run of three epochs; with snapshots, if it is to go back."""
    torch.manual_seed(0)
    model = model()
    optimizer = optim(model.parameters())
    if prepare is not None:
        prepare(model, optimizer)
    loader = loader() if loader else DataLoader(TensorDataset(X, Y), 8, shuffle=True)
    loss = {"train_step": step()} if step else {"loss_fn": loss_fn()}
    hooks = [*[SnapshotHook(every_steps=4)] * rewinds, *(hooks() if callable(hooks) else hooks)]
    return Trainer(model, train_dl=loader, optim=optimizer, epochs=3, seed=0, device="cpu",
                   progress=False, hooks=hooks, **loss, **settings)


def scaled(box):
    """A function of a gradient that keeps a mean in a box."""
    def scale(gradient):
        box.mean = blend(getattr(box, "mean", None), gradient.clone())
        return box.mean
    return scale


def of_parameter(model, _):
    """A hook of torch's on a parameter."""
    model.weight.register_hook(scaled(SimpleNamespace()))


def after_gradient(model, _):
    """A hook of torch's that a parameter calls once it has its gradient."""
    change = scaled(SimpleNamespace())
    def change_it(weight):
        weight.grad.copy_(change(weight.grad))
    model.weight.register_post_accumulate_grad_hook(change_it)


def of_module(model, _):
    """A hook of torch's on a module, with a number in its closure."""
    gain = 1.0
    def grow(module, inputs, output):
        nonlocal gain
        if module.training:
            gain *= 1.01
        return output * gain
    model.register_forward_hook(grow)


def before_forward(model, _):
    """A hook of torch's before a module, with a tensor."""
    box = SimpleNamespace(shift=torch.zeros(4))
    def shift(module, inputs):
        if module.training:
            box.shift.lerp_(inputs[0].mean(0), 0.1)
        return (inputs[0] + box.shift,)
    model.register_forward_pre_hook(shift)


def of_step(model, optimizer):
    """A hook of torch's on the optimizer's step."""
    change = scaled(SimpleNamespace())
    def change_it(*_):
        model.weight.grad.copy_(change(model.weight.grad))
    optimizer.register_step_pre_hook(change_it)


def last_loss():
    """A step that keeps its loss, and weighs the next one by it."""
    box = SimpleNamespace(loss=torch.ones(()))
    def step(batch, trainer):
        loss = mse_loss(trainer.model(batch[0]), batch[1]) * (1 + box.loss.clamp(max=1))
        box.loss = loss.detach()
        return {"loss": loss}
    return step


def on_trainer():
    """A step that keeps a mean on the trainer."""
    def step(batch, trainer):
        loss = mse_loss(trainer.model(batch[0]), batch[1])
        trainer.usual = blend(getattr(trainer, "usual", None), loss.item())
        return {"loss": loss * min(2.0, 1 + trainer.usual)}
    return step


class Cooling(nn.Linear):
    """Divides by a temperature, a number, that each pass of the training lowers."""

    heat = 2.0

    def __init__(self):
        super().__init__(4, 1)

    def forward(self, inputs):
        """The next one is colder."""
        if self.training:
            self.heat *= 0.95
        return super().forward(inputs) / self.heat


class Annealed(nn.Linear):
    """Its slope is a number that something else sets."""

    slope = 1.0

    def __init__(self):
        super().__init__(4, 1)

    def forward(self, inputs):
        """With the slope of now."""
        return super().forward(inputs) * self.slope


class Easing(Hook):
    """Makes targets larger from batch to batch."""

    factor = 0.1

    def before_batch(self, trainer):
        """A little more each time."""
        if trainer.training:
            self.factor *= 1.1
            inputs, targets = trainer.batch
            trainer.batch = inputs, targets * min(1.0, self.factor)


def weigh(trainer, factor):
    """Makes the targets of a batch smaller."""
    inputs, targets = trainer.batch
    setattr(trainer, "batch", (inputs, targets * factor))  # noqa: B010


class Through(Hook):
    """Acts by a function."""

    factor = 1.0

    def before_batch(self, trainer):
        """A little less each time."""
        if trainer.training:
            self.factor *= 0.9
            weigh(trainer, self.factor)


class Impatient(Hook):
    """Stops where the loss has not been lower for a while."""

    best, waited = float("inf"), 0

    def after_step(self, trainer):
        """Counts, and stops."""
        loss = float(trainer.loss)
        if loss < self.best:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
        if self.waited > 4:
            trainer.stop()


class Softening:
    """A loss function with a number of its own."""

    power = 2.0

    def __call__(self, outputs, targets):
        """Less and less steep."""
        self.power = max(1.1, self.power * 0.98)
        return (outputs - targets).abs().pow(self.power).mean()


def with_own_rate(optimizer):
    """A schedule that counts its calls itself."""
    calls = [0]
    def rate(_):
        calls[0] += 1
        return 1 / calls[0]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def counted():
    """A step that weighs its loss by the number of calls."""
    calls = 0
    def step(batch, trainer):
        nonlocal calls
        calls += 1
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / calls}
    return step


def in_a_dict():
    """The same in a dict."""
    kept = {"calls": 0}
    def step(batch, trainer):
        kept["calls"] += 1
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / kept["calls"]}
    return step


def on_itself():
    """The same in an attribute of the function."""
    def step(batch, trainer):
        step.calls += 1
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / step.calls}
    step.calls = 0
    return step


CALLS = 0


def globally():
    """The same in a global variable."""
    global CALLS  # noqa: PLW0603
    CALLS = 0
    def step(batch, trainer):
        global CALLS  # noqa: PLW0603
        CALLS += 1
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / CALLS}
    return step


KEPT = {"calls": 0}


def within_comprehension():
    """The same in a global dict that only a comprehension of the step uses."""
    KEPT["calls"] = 0
    def step(batch, trainer):
        calls, = [KEPT.update(calls=KEPT["calls"] + each) or KEPT["calls"] for each in (1,)]
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / calls}
    return step


def within_function():
    """The same, used by a function within the step."""
    KEPT["calls"] = 0
    def step(batch, trainer):
        def count():
            KEPT["calls"] += 1
            return KEPT["calls"]
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / count()}
    return step


def by_default():
    """The same in the default value of an argument, read next to another variable."""
    def step(batch, trainer, kept={"calls": 0}):  # noqa: B006
        inputs, targets = batch
        kept["calls"] = calls = kept["calls"] + 1
        return {"loss": mse_loss(trainer.model(inputs), targets) / calls}
    return step


def by_keyword():
    """The same in the default value of an argument that has a name only."""
    def step(batch, trainer, *, kept={"calls": 0}):  # noqa: B006
        kept["calls"] += 1
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / kept["calls"]}
    return step


def set_within():
    """A global number that a function within the step sets."""
    global CALLS  # noqa: PLW0603
    CALLS = 0
    def step(batch, trainer):
        def count():
            global CALLS  # noqa: PLW0603
            CALLS += 1
            return CALLS
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / count()}
    return step


def by_module():
    """A generator of a module of the user's."""
    helpers.RNG = np.random.default_rng(0)
    def step(batch, trainer):
        inputs, targets = batch
        noise = torch.tensor([helpers.RNG.normal() for _ in range(4)], dtype=torch.float32)
        return {"loss": mse_loss(trainer.model(inputs + noise), targets)}
    return step


class Power(IntEnum):
    """A class whose values cannot be set."""
    FULL = 2


def counted_in_module():
    """A number of a module, next to a value that cannot be set."""
    helpers.calls = 0
    def step(batch, trainer):
        helpers.calls += 1
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / helpers.calls ** Power.FULL}
    return step


class Box:
    """Where a step counts: in the class, in an object of it."""
    calls = 0


class Tight:
    """The same in a slot."""
    __slots__ = ("calls",)


def counted_in_class():
    """A number of a class."""
    Box.calls = 0
    def step(batch, trainer):
        Box.calls += 1
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / Box.calls}
    return step


def counted_in(kind):
    """A number of an object whose class has no methods."""
    def make():
        box = kind()
        box.calls = 0
        def step(batch, trainer):
            box.calls += 1
            return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / box.calls}
        return step
    return make


class Shared:
    """A list that all objects of a class share."""
    seen = []  # noqa: RUF012

    def __call__(self, batch, trainer):
        """The loss, divided by the number of calls."""
        self.seen.append(1)
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / len(self.seen)}


def in_a_shared_list():
    """It begins empty."""
    Shared.seen.clear()
    return Shared()


def remembering():
    """A step that trains on one of all batches so far, too."""
    seen = []
    def step(batch, trainer):
        seen.append(batch)
        inputs, targets = seen[len(seen) // 2]
        loss = mse_loss(trainer.model(batch[0]), batch[1])
        return {"loss": loss + mse_loss(trainer.model(inputs), targets)}
    return step


def second_loader():
    """A step that takes a batch of a second loader, too."""
    others = iter(chain.from_iterable(DataLoader(X, 4) for _ in range(10)))
    def step(batch, trainer):
        model = trainer.model
        return {"loss": mse_loss(model(batch[0]), batch[1]) + model(next(others)).square().mean()}
    return step


def loader_of(dataset, **settings):
    """A function that makes a loader of a new dataset."""
    return lambda: DataLoader(dataset(), 8, **settings)


PLACES = {
    "optimizer: list and count": ({"optim": lambda w: Lookahead(w, 0.05)}, "optim.slow"),
    "optimizer: number": ({"optim": lambda w: Warming(w, 0.05)}, "optim.factor"),
    "optimizer: array": ({"optim": lambda w: ArrayMemory(w, 0.05)}, "optim.mean"),
    "optimizer: another one": ({"optim": lambda w: Around(w, 0.05)}, "optim.base"),
    "dataset: number": ({"loader": loader_of(Drifting)}, "dataset.drift"),
    "dataset: count that it reads": ({"loader": loader_of(Harder)}, "dataset.level"),
    "collate function: array": (
        {"loader": lambda: DataLoader(TensorDataset(X, Y), 8, collate_fn=Centering())},
        "collate_fn.mean"),
    "sampler": ({"loader": lambda: DataLoader(TensorDataset(X, Y), 8, sampler=FirstHalf())},
                "sampler.share"),
    "hook on a parameter": ({"prepare": of_parameter}, "box.mean (used by model.weight)"),
    "hook after a gradient": ({"prepare": after_gradient}, "box.mean (used by model.weight)"),
    "forward hook": ({"prepare": of_module}, "gain (used by model)"),
    "hook before forward": ({"prepare": before_forward}, "box.shift (used by model)"),
    "hook on a step": ({"prepare": of_step}, "box.mean (used by optim)"),
    "last loss of a step": ({"step": last_loss}, "box.loss (used by train_step)"),
    "attribute of the trainer": ({"step": on_trainer}, "trainer.usual"),
    "model: number": ({"model": Cooling}, "model.heat"),
    "model: number set by a hook": ({"model": Annealed, "hooks": lambda: [LambdaHook(
        after_step=lambda t: setattr(t.model, "slope", t.model.slope * 0.9))]}, "model.slope"),
    "hook that acts": ({"hooks": lambda: [Easing()]}, "easing.factor"),
    "hook that acts by a function": ({"hooks": lambda: [Through()]}, "through.factor"),
    "hook that stops": ({"hooks": lambda: [Impatient()]}, "impatient.best"),
    "loss function: number": ({"loss_fn": Softening}, "loss_fn.power"),
    "schedule: list": ({"sched": with_own_rate}, "calls (used by scheduler.lr_lambdas)"),
    "step: variable": ({"step": counted}, "calls (used by train_step)"),
    "step: dict": ({"step": in_a_dict}, "kept (used by train_step)"),
    "step: attribute": ({"step": on_itself}, "train_step.calls"),
    "step: global variable": ({"step": globally}, "CALLS (used by train_step)"),
    "step: global in a comprehension": (
        {"step": within_comprehension}, "KEPT (used by train_step)"),
    "step: global in an inner function": ({"step": within_function}, "KEPT (used by train_step)"),
    "step: default value": ({"step": by_default}, "kept (used by train_step)"),
    "step: default value by name": ({"step": by_keyword}, "kept (used by train_step)"),
    "step: global set by an inner function": (
        {"step": set_within}, "CALLS (used by train_step)"),
    "step: generator of a module": ({"step": by_module}, "helpers.RNG (used by train_step)"),
    "step: number of a module": (
        {"step": counted_in_module}, "helpers.calls (used by train_step)"),
    "step: number of a class": ({"step": counted_in_class}, "Box.calls (used by train_step)"),
    "step: number of an object": (
        {"step": counted_in(Box)}, "box.calls (used by train_step)"),
    "step: number in a slot": ({"step": counted_in(Tight)}, "box.calls (used by train_step)"),
    "step: list of a class": ({"step": in_a_shared_list}, "train_step.seen"),
    "step: list that grows": ({"step": remembering}, "seen (used by train_step)"),
    "step: iterator": ({"step": second_loader}, "others (used by train_step)"),
}


def weights(trainer):
    """A copy of the weights."""
    return [each.detach().clone() for each in trainer.model.parameters()]


def same(one, other):
    """Bit for bit."""
    return all(map(torch.equal, one, other))


@pytest.mark.matrix
@pytest.mark.parametrize("place", PLACES)
def test_what_steps_keep_elsewhere_is_named(place):
    """The run that goes on, or goes back, is another one, and `exact` says why."""
    settings, name = PLACES[place]
    straight, first, again = (run(**settings) for _ in range(3))
    back = run(**settings, rewinds=True)
    straight.fit()
    first.step(10)
    assert any(text.startswith(f"{name} is not part of the state")
               for text in first.exact.obstacles), first.exact
    again.load_state_dict(first.state_dict())
    assert again.exact.obstacles == first.exact.obstacles
    again.fit()
    back.step(10)
    back.rewind(4)
    back.fit()
    assert not back.exact
    assert not same(weights(again), weights(straight)) or not same(weights(back), weights(straight))


@pytest.mark.parametrize("place", ["step: generator of a module", "step: number of a module",
                                   "step: number of a class", "step: number of an object",
                                   "step: number in a slot", "step: list of a class"])
def test_a_search_for_a_rate_takes_back_what_steps_keep_there(place):
    """The run goes on as without it."""
    settings, _ = PLACES[place]
    straight = run(**settings)
    straight.fit()
    searched = run(**settings)
    searched.step(3)
    searched.lr_find(num_steps=4)
    searched.fit()
    assert same(weights(searched), weights(straight))


class Private:
    """A slot that has the name of its class."""
    __slots__ = ("__calls",)

    def __init__(self):
        self.__calls = 0

    def __call__(self, batch, trainer):
        """The loss, divided by the number of calls."""
        self.__calls += 1
        return {"loss": mse_loss(trainer.model(batch[0]), batch[1]) / self.__calls}


def test_a_private_slot_is_named_and_taken_back():
    """By the name that Python gives it."""
    straight, searched = run(step=Private), run(step=Private)
    straight.fit()
    searched.step(5)
    assert any("._Private__calls is not part" in text for text in searched.exact.obstacles)
    searched.lr_find(num_steps=4)
    searched.fit()
    assert same(weights(searched), weights(straight))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["optimizer: list and count", "optimizer: number",
                                   "optimizer: another one", "dataset: count that it reads",
                                   "hook after a gradient", "last loss of a step"])
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 5])
def test_they_are_named_where_evaluations_come_after_few_steps(place, every, length):
    """However short the drives are: not all that changes may be what an evaluation made."""
    settings, name = PLACES[place]
    few = [(X[i:i + 8], Y[i:i + 8]) for i in range(0, 24, 8)]
    trainer = run(**{"loader": lambda: few, **settings}, valid_dl=few, eval_every=every)
    trainer.epochs, trainer.max_steps = None, 20
    for _ in range(3):
        trainer.step(length)
    trainer.fit()
    holder = name.partition(".")[0]
    assert any(text.startswith(f"{holder}.") for text in trainer.exact.obstacles), trainer.exact


class Counting(Dataset):
    """Counts what it gives; nothing reads the count."""

    given = 0

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        self.given += 1
        return X[index], Y[index]


class Caching(Counting):
    """Remembers its samples."""

    def __init__(self):
        self.known = {}

    def __getitem__(self, index):
        return self.known.setdefault(index, (X[index], Y[index]))


class KeepsNumbers(Hook):
    """Keeps what an optimizer has in attributes."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def state_dict(self):
        """The factor."""
        return {"factor": self.optimizer.factor}

    def load_state_dict(self, state):
        """The factor that was kept."""
        self.optimizer.factor = state["factor"]


def kept_by_a_hook():
    """An optimizer's number in the state of a hook."""
    hooks = []
    def make(weights):
        optimizer = Warming(weights, 0.05)
        hooks.append(KeepsNumbers(optimizer))
        return optimizer
    return {"optim": make, "hooks": hooks}


class Looking(Hook):
    """Counts, times and keeps what it sees, and prints at times."""

    def __init__(self):
        self.losses, self.steps, self.begun, self.lowest = [], 0, 0.0, float("inf")

    def before_epoch(self, trainer):
        """When."""
        self.begun = time.perf_counter()

    def after_step(self, trainer):
        """How low."""
        self.steps += 1
        self.losses.append(float(trainer.loss))
        self.lowest = min(self.lowest, self.losses[-1])
        if self.steps % 4 == 0:
            trainer.log({"lowest": self.lowest})

    def after_epoch(self, trainer):
        """How long."""
        trainer.log({"took": time.perf_counter() - self.begun})


class Recording(nn.Linear):
    """Keeps what it saw, and reads only what this pass has set."""

    rows = calls = 0
    level = 0.0

    def __init__(self):
        super().__init__(4, 1)
        self.shapes = []

    def forward(self, inputs):
        """Numbers of this pass, a count, and a list."""
        self.rows = len(inputs)
        self.calls += 1
        self.shapes.append(inputs.shape)
        told = {"level": inputs.mean()}  # the name of an attribute, as a word
        self.level = float(told["level"])
        return super().forward(inputs).view(self.rows, 1)


def recording():
    """A step that counts, and keeps its losses."""
    losses, calls, seen = [], 0, {"samples": 0}
    def step(batch, trainer):
        nonlocal calls
        calls += 1
        seen["samples"] += len(batch[0])
        loss = mse_loss(trainer.model(batch[0]), batch[1])
        losses.append(loss.item())
        return {"loss": loss}
    return step


class Persevering(Impatient):
    """Has its numbers in its state."""

    def state_dict(self):
        """Both."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state):
        """Both."""
        self.best, self.waited = state["best"], state["waited"]


@pytest.mark.parametrize("make", [
    lambda: {"hooks": [Looking()]}, lambda: {"model": Recording}, lambda: {"step": recording},
    lambda: {"hooks": [Persevering()]},
    lambda: {"loader": loader_of(Counting)}, lambda: {"loader": loader_of(Caching)},
    lambda: {"optim": lambda w: torch.optim.Adam(w, 0.01)}, kept_by_a_hook],
    ids=["hook that looks", "model that records", "step that records", "hook with a state",
         "a count", "a cache", "torch's optimizer", "kept by a hook"])
def test_what_changes_nothing_or_is_kept_is_not_named(make):
    """And the run goes on bit for bit."""
    straight, first, again = (run(**make()) for _ in range(3))
    straight.fit()
    first.step(10)
    assert first.exact, first.exact
    again.load_state_dict(first.state_dict())
    again.fit()
    assert same(weights(again), weights(straight))


class Buffered(IterableDataset):
    """An order that is drawn as it goes."""

    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        waiting = []
        for index in chain(range(64), range(8)):
            if len(waiting) < 8:
                waiting.append(index)
                continue
            place = self.draw(8)
            index, waiting[place] = waiting[place], index
            yield X[index], Y[index]


class Augmented(IterableDataset):
    """Samples that are changed by what is drawn."""

    def __iter__(self):
        return ((x + torch.rand(4) * 0.1, y) for x, y in zip(X, Y))


class DrawnEach(Sampler):
    """Draws each index when it is asked for."""

    def __len__(self):
        return 48

    def __iter__(self):
        return (int(torch.randint(64, ())) if random.random() < 2 else 0 for _ in range(48))


class Batches:
    """A loader of one's own, that draws each batch."""

    def __len__(self):
        return 8

    def __iter__(self):
        seen = []
        for _ in range(8):
            seen.append(int(torch.randint(56, ())))
            start = seen[int(torch.randint(len(seen), ()))]
            yield X[start:start + 8], Y[start:start + 8]


DRAWN = {
    "torch": loader_of(lambda: Buffered(lambda n: int(torch.randint(n, ())))),
    "numpy": loader_of(lambda: Buffered(np.random.randint)),
    "python": loader_of(lambda: Buffered(random.randrange)),
    "augmented": loader_of(Augmented),
    "sampler": lambda: DataLoader(TensorDataset(X, Y), 8, sampler=DrawnEach()),
    "batches of one's own": Batches,
}


def noisy_step():
    """A step with dropout, and noise of the other streams."""
    def step(batch, trainer):
        hidden = nn.functional.dropout(batch[0], 0.3)
        noise = np.random.rand() + random.random()
        return {"loss": mse_loss(trainer.model(hidden), batch[1] + 0.01 * noise)}
    return step


@pytest.mark.matrix
@pytest.mark.parametrize("halts", [
    pytest.param((1,), marks=pytest.mark.long), (3, 4),
    pytest.param((7, 10), marks=pytest.mark.long), (11, 12, 13)])
@pytest.mark.parametrize("kind", DRAWN)
def test_an_order_drawn_between_the_draws_of_steps(kind, halts):
    """A run that goes on in mid-epoch, also twice in one, draws the same again."""
    straight = run(step=noisy_step, loader=DRAWN[kind])
    straight.fit()
    trainer = run(step=noisy_step, loader=DRAWN[kind])
    for step in halts:
        trainer.step(step - trainer.step_state.optimizer_step)
        state = trainer.state_dict()
        trainer = run(step=noisy_step, loader=DRAWN[kind], rewinds=True)
        trainer.load_state_dict(state)
        assert trainer.exact, trainer.exact
    trainer.step(2)  # and within one process
    trainer.rewind(halts[-1])
    trainer.fit()
    assert same(weights(trainer), weights(straight))


def test_with_more_draws_than_are_kept_it_is_not_called_exact(monkeypatch):
    """The number is bounded, and a state keeps that there were more."""
    monkeypatch.setattr(data_chapter, "MOST_MARKS", 4)
    trainer = run(step=noisy_step, loader=DRAWN["torch"])
    trainer.step(4)
    assert trainer.exact
    trainer.step(2)
    assert "Buffered draws from the global random streams" in trainer.exact.obstacles[0]
    again = run(step=noisy_step, loader=DRAWN["torch"])
    again.load_state_dict(trainer.state_dict())
    assert again.exact.obstacles == trainer.exact.obstacles


class Rollouts(IterableDataset):
    """What a policy does, collected when an epoch begins."""

    def __init__(self, policy):
        self.policy, self.made = policy, None

    def __iter__(self):
        if self.made is None:
            with torch.no_grad():
                self.made = X + torch.randn(64, 1) * self.policy(X)
        yield from zip(self.made, Y)
        self.made = None


class KeepsRollouts(Hook):
    """Keeps what was collected."""

    def __init__(self, data):
        self.data = data

    def state_dict(self):
        """What the epoch is trained on."""
        return {"made": self.data.made}

    def load_state_dict(self, state):
        """The same."""
        self.data.made = state["made"]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("halt", [3, 8, 13])
def test_batches_made_with_the_model(kept, halt):
    """Named, or kept by a hook: then a run goes on in the middle of what was collected."""
    def make():
        torch.manual_seed(0)
        policy = nn.Linear(4, 1)
        data = Rollouts(policy)
        return Trainer(policy, train_dl=DataLoader(data, 8), loss_fn=mse_loss, epochs=3, seed=0,
                       optim=torch.optim.SGD(policy.parameters(), 0.05), device="cpu",
                       progress=False, hooks=[KeepsRollouts(data)] if kept else [])
    straight, first, again = make(), make(), make()
    straight.fit()
    assert bool(first.exact) is kept
    first.step(halt)
    assert bool(first.exact) is kept, first.exact
    assert kept or "dataset.policy is the model that is trained" in str(first.exact)
    again.load_state_dict(first.state_dict())
    again.fit()
    if kept:
        assert same(weights(again), weights(straight))


def lesson(epoch, dataset=TensorDataset):
    """The samples of an epoch."""
    draw = torch.Generator().manual_seed(epoch)
    x = torch.randn(64, 4, generator=draw) * (1 + epoch)
    data = TensorDataset(x, x.sum(1, keepdim=True)) if dataset is TensorDataset else dataset()
    data[0]  # its attributes are there
    return DataLoader(data, 16, shuffle=True)


class NextLesson(Hook):
    """Replaces the loader at the end of an epoch, and the loss function with its tensor."""

    def __init__(self, dataset=TensorDataset):
        self.dataset = dataset

    def after_epoch(self, trainer):
        """At the boundary that follows."""
        trainer.ask(lambda: self.replace(trainer))

    def replace(self, trainer):
        """By the number of the epoch."""
        trainer.train_dl = lesson(trainer.step_state.epoch, self.dataset)
        trainer.loss_fn = nn.SmoothL1Loss(beta=1.0 / (1 + trainer.step_state.epoch))


@pytest.mark.parametrize("halt", [3, 6, 9, 11])
def test_a_curriculum_is_exact(halt):
    """A part that was replaced in mid-run is none that steps have changed."""
    straight, first = (run(loader=lambda: lesson(0), hooks=[NextLesson()]) for _ in range(2))
    straight.fit()
    assert straight.exact, straight.exact
    first.step(halt)
    assert first.exact, first.exact
    epoch = first.step_state.epoch
    again = run(loader=lambda: lesson(epoch), hooks=[NextLesson()])
    again.loss_fn = nn.SmoothL1Loss(beta=1.0 / (1 + epoch)) if epoch else mse_loss
    again.load_state_dict(first.state_dict())
    again.fit()
    assert same(weights(again), weights(straight))


def test_what_changes_in_a_replaced_part_is_named():
    """And what had changed before it was replaced."""
    later = run(loader=lambda: lesson(0), hooks=[NextLesson(Drifting)])
    later.fit()
    assert "dataset.drift is not part of the state" in str(later.exact)
    before = run(loader=loader_of(Drifting))
    before.step(epochs=1)
    before.train_dl = lesson(1)
    before.fit()
    assert "dataset.drift is not part of the state" in str(before.exact)


class ByTheClock(Plan):
    """Evaluates when time has passed."""

    def evaluation_due(self, state, epoch_ended=False):
        """Each second, say."""
        return time.monotonic() % 2 < 1 and super().evaluation_due(state, epoch_ended)


class ByCount(Plan):
    """Evaluates by a count of its own."""

    turns = 0

    def evaluation_due(self, state, epoch_ended=False):
        """At each third question."""
        self.turns += 1
        return self.turns % 3 == 0 and state.evaluated_at != state.optimizer_step


class Timed(Trainer):
    """With a plan by the clock."""

    plan_class = ByTheClock


class Counted(Trainer):
    """With a plan that carries a count."""

    plan_class = ByCount


@pytest.mark.parametrize("kind, text", [(Timed, "ByTheClock asks the clock"),
                                        (Counted, "plan.turns is not part of the state")])
def test_a_plan_that_another_run_decides_otherwise_is_named(kind, text):
    """By the clock, or by what no state has."""
    trainer = kind(nn.Linear(4, 1), train_dl=[(X, Y)] * 4, valid_dl=[(X, Y)], loss_fn=mse_loss,
                   epochs=3, device="cpu", progress=False)
    trainer.step(6)
    assert any(each.startswith(text) for each in trainer.exact.obstacles), trainer.exact
    plain = Trainer(nn.Linear(4, 1), train_dl=[(X, Y)] * 4, valid_dl=[(X, Y)], loss_fn=mse_loss,
                    epochs=3, device="cpu", progress=False)
    plain.step(6)
    assert plain.exact and plain.exact.assumed == []


class Short(nn.Module):
    """Has no memory for more than some samples, behind a norm and a dropout."""

    def __init__(self, room):
        super().__init__()
        self.room = room
        self.norm, self.drop, self.out = nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1)

    def forward(self, inputs):
        """Raises after the norm."""
        hidden = self.drop(self.norm(inputs))
        if len(inputs) > self.room:
            raise torch.OutOfMemoryError("no room")
        return self.out(hidden)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("room", [2, 6, 8])
def test_a_pass_that_ran_out_of_memory_leaves_no_trace(room, accumulation):
    """The same bits, averages and draws as with the size that was found."""
    def trained(size):
        torch.manual_seed(1)
        trainer = Trainer(Short(room), train_dl=DataLoader(TensorDataset(X, Y), 8), epochs=2,
                          optim=lambda w: torch.optim.SGD(w, 0.01), loss_fn=mse_loss, seed=0,
                          gradient_accumulation_steps=accumulation, micro_batch_size=size,
                          device="cpu", progress=False)
        trainer.fit()
        return trainer
    found = trained("auto")
    fixed = trained(found.runner.micro.limit)
    states = zip(found.model.state_dict().values(), fixed.model.state_dict().values())
    assert all(torch.equal(a, b) for a, b in states)


# a sampler that is iterated again gives more, and what an iterator gave is gone
@pytest.mark.matrix
@pytest.mark.parametrize(("place", "search"), [
    pytest.param(place, search,
                 marks=[pytest.mark.long] if search == "sweep" and place.startswith("step") else [])
    for place in sorted(PLACES.keys() - {"sampler", "step: iterator"})
    for search in ("lr_find", "sweep")])
def test_a_search_takes_back_what_its_steps_kept_elsewhere(place, search):
    """The run goes on as if there had been none."""
    settings, _ = PLACES[place]
    straight = run(**settings)
    straight.step(5)
    straight.fit()
    searched = run(**settings)
    searched.step(5)
    if search == "lr_find":
        searched.lr_find(num_steps=6)
    else:
        searched.sweep("lr", [0.01, 0.1, 0.2])
    searched.fit()
    assert same(weights(searched), weights(straight))


def test_a_search_with_a_class_as_collate_function():
    """A class, `list` say, is no object with attributes to be taken back."""
    def step(batch, trainer):
        inputs = torch.stack([x for x, _ in batch])
        return {"loss": trainer.model(inputs).square().mean(), "n": len(batch)}
    searched, straight = (
        run(step=lambda: step, loader=lambda: DataLoader(TensorDataset(X, Y), 8, collate_fn=list))
        for _ in range(2))
    searched.step(2)
    searched.lr_find(num_steps=4)
    searched.fit()
    straight.fit()
    assert same(weights(searched), weights(straight))


class Box:
    """A place for a number."""

    level = 0.0


class Shelf:
    """A dict of all its objects; no function names the class."""

    memo = {"a": 0.0}


class Slot:
    """The same, in a slot."""

    __slots__ = ("level",)

    def __init__(self):
        self.level = 0.0


LEVEL = 0.0


class Late(nn.Module):
    """Reads a number from everywhere; `change` moves one of them once `on` is set."""

    def __init__(self, change):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.on, self.change = False, change
        self.level, self.table, self.row, self.pair = 0.0, {"a": 0.0}, [0.0], (0.0, 1)
        self.box, self.slot, self.array, self.tensor = Box(), Slot(), np.zeros(2), torch.zeros(2)
        self.deep, self.shelf = {"a": [{"b": Box()}]}, Shelf()

    def forward(self, x):
        """The sum of all of them, too."""
        if self.training and self.on:
            self.change(self)
        levels = (self.level, self.table["a"], self.row[0], self.pair[0], self.box.level,
                  Box.level, self.slot.level, float(self.array[0]), float(self.tensor[0]), LEVEL,
                  self.deep["a"][0]["b"].level, self.shelf.memo["a"])
        return self.layer(x) + sum(levels)


def move_global(_):
    """The number beside the functions."""
    global LEVEL
    LEVEL += 0.1


def other_box(model):
    """Another object at the same place."""
    level = model.box.level
    model.box = Box()
    model.box.level = level + 0.1


def other_namespace(model):
    """All attributes at once."""
    model.box.__dict__ = {"level": model.box.level + 0.1}


def other_weights(model):
    """A hook of torch's, which comes late and has a number of its own."""
    if not model.layer.weight._backward_hooks:
        model.layer.weight.register_hook(scaled(SimpleNamespace(mean=torch.zeros(1, 4))))


def other_memo(model):
    """Another dict in the body of a class."""
    type(model.shelf).memo = {"a": model.shelf.memo["a"] + 0.1}


def deeper(model):
    """In an object in a dict in a list in a dict."""
    model.deep["a"][0]["b"].level += 0.1


LATELY = {
    "attribute": lambda model: setattr(model, "level", model.level + 0.1),
    "entry": lambda model: model.table.update(a=model.table["a"] + 0.1),
    "item": lambda model: model.row.__setitem__(0, model.row[0] + 0.1),
    "tuple": lambda model: setattr(model, "pair", (model.pair[0] + 0.1, 1)),
    "object": lambda model: setattr(model.box, "level", model.box.level + 0.1),
    "another object": other_box, "another namespace": other_namespace,
    "class": lambda model: setattr(Box, "level", Box.level + 0.1),
    "dict of a class": other_memo,
    "slot": lambda model: setattr(model.slot, "level", model.slot.level + 0.1),
    "array": lambda model: model.array.__iadd__(0.1),
    "tensor": lambda model: model.tensor.add_(0.1),
    "global": move_global,
    "deep": deeper,
    "hook of torch's": other_weights,
}


@pytest.mark.parametrize("place", LATELY)
def test_what_steps_begin_to_change_late_is_named(place, monkeypatch):
    """In a loop of `step()`, after many steps that have changed nothing."""
    monkeypatch.setattr(Box, "level", 0.0)
    monkeypatch.setattr(Shelf, "memo", {"a": 0.0})
    monkeypatch.setitem(globals(), "LEVEL", 0.0)
    trainer = run(model=lambda: Late(LATELY[place]))
    for _ in range(7):
        trainer.step()
    assert trainer.exact, trainer.exact.obstacles
    trainer.plain_model.on = True  # by hand, between two steps: this is not named
    for _ in range(3):
        trainer.step()
    assert trainer.exact.obstacles and not any(".on" in each for each in trainer.exact.obstacles)


def test_a_loop_of_single_steps_is_not_searched_again(monkeypatch):
    """Once a search has found nothing, identities and counts of writes are compared."""
    made = []
    real = own_state.Mark.__init__
    monkeypatch.setattr(own_state.Mark, "__init__",
                        lambda self, *given: (made.append(1), real(self, *given))[1])
    trainer = run(valid_dl=DataLoader(TensorDataset(X, Y), 8))
    for _ in range(4):
        trainer.step()
    before = len(made)
    for _ in range(20):  # two ends of epochs, with their evaluations
        trainer.step()
    assert trainer.exact and len(made) <= before + 4


class HardFirst(Sampler):
    """Orders the samples by their losses."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return len(X)

    def __iter__(self):
        with torch.no_grad():
            losses = (self.model(X) - Y).abs().flatten()
        yield from losses.argsort(descending=True).tolist()


def test_an_order_drawn_with_the_model_is_named():
    """Who goes on in mid-epoch draws it with other weights."""
    def make():
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        loader = DataLoader(TensorDataset(X, Y), 8, sampler=HardFirst(model))
        return Trainer(model, train_dl=loader, loss_fn=mse_loss, epochs=3, seed=0, device="cpu",
                       optim=torch.optim.SGD(model.parameters(), 0.3), progress=False)
    straight, first, again = make(), make(), make()
    straight.fit()
    first.step(3)
    assert "sampler.model is the model that is trained" in str(first.exact)
    again.load_state_dict(first.state_dict())
    again.fit()
    assert not same(weights(again), weights(straight))


class InTurn(Sampler):
    """Draws each epoch's order from its number, which has a name of its own."""

    def __init__(self, counts=False):
        self.turn, self.passes, self.counts = 0, 0, counts

    def __len__(self):
        return len(X)

    def set_epoch(self, number):
        """As DistributedSampler has it."""
        self.turn = number

    def __iter__(self):
        draw = torch.Generator().manual_seed(self.turn + 100 * self.passes)
        self.passes += self.counts
        return iter(torch.randperm(len(X), generator=draw).tolist())


@pytest.mark.parametrize("counts", [False, True])
def test_the_number_of_the_epoch_is_set_by_the_trainer_under_any_name(counts):
    """What the sampler counts by itself beside it is named."""
    def make():
        return run(loader=lambda: DataLoader(TensorDataset(X, Y), 8, sampler=InTurn(counts)))
    straight, first, again = make(), make(), make()
    straight.fit()
    assert bool(straight.exact) is not counts, straight.exact
    assert counts == ("sampler.passes" in str(straight.exact))
    assert "sampler.turn" not in str(straight.exact)
    first.step(11)
    again.load_state_dict(first.state_dict())
    again.fit()
    assert same(weights(again), weights(straight)) is not counts


class Ticks(Hook):
    """Steps a scheduler by itself."""

    def __init__(self, scheduler):
        self.scheduler = scheduler

    def after_step(self, trainer):
        """As in a loop by hand."""
        self.scheduler.step()


class KeptTicks(Ticks):
    """The same, as the docs have it."""

    def state_dict(self):
        """The scheduler's."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state):
        """Likewise."""
        self.scheduler.load_state_dict(state)


def by_library(kind):
    """A run whose steps move on an object of a library."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optim = torch.optim.SGD(model.parameters(), 0.02)
    settings = {"loss_fn": mse_loss}
    if "scheduler" in kind:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optim, 24)
        if kind == "scheduler in a hook":
            settings["hooks"] = [Ticks(scheduler)]
        elif kind == "scheduler in a hook with a state":
            settings["hooks"] = [KeptTicks(scheduler)]
        elif kind == "scheduler of the run":
            settings |= {"sched": scheduler, "hooks": [LambdaHook(
                after_step=lambda trainer: scheduler.get_last_lr())]}
        else:
            def step(batch, trainer):
                loss = mse_loss(trainer.model(batch[0]), batch[1])
                if trainer.training:
                    trainer.ask(scheduler.step)
                return {"loss": loss}
            settings = {"train_step": step}
    else:
        drawn, waiting = torch.quasirandom.SobolEngine(4, scramble=True, seed=1), Queue()
        def step(batch, trainer):
            more = drawn.draw(4) if kind == "points" else batch[0]
            if kind == "queue":
                waiting.put(batch[0])
                more = waiting.get() if waiting.qsize() > 2 else more
            loss = mse_loss(trainer.model(batch[0]), batch[1]) + trainer.model(more).pow(2).mean()
            return {"loss": loss}
        settings = {"train_step": step}
    return Trainer(model, train_dl=DataLoader(TensorDataset(X, Y), 8, shuffle=True), optim=optim,
                   epochs=3, seed=0, device="cpu", progress=False, **settings)


@pytest.mark.parametrize(("kind", "name"), [
    ("scheduler in a hook", "scheduler."), ("scheduler in a step", "scheduler."),
    ("points", "drawn"), ("queue", "waiting."),
    ("scheduler in a hook with a state", None), ("scheduler of the run", None)])
def test_what_an_object_of_a_library_counts_is_named(kind, name):
    """It decides about later steps; one that is in a state is not."""
    straight, first, again = by_library(kind), by_library(kind), by_library(kind)
    straight.fit()
    first.step(7)
    for each in straight, first:
        assert bool(each.exact) is (name is None), each.exact
        assert name is None or name in str(each.exact), each.exact
    again.load_state_dict(first.state_dict())
    again.fit()
    assert same(weights(again), weights(straight)) is (name is None)


@pytest.mark.parametrize("point", ["before_epoch", "after_epoch", "after_step"])
@pytest.mark.parametrize("shuffled", [True, False])
def test_a_list_of_batches_that_is_shuffled_is_named(point, shuffled):
    """It is the data of the run, and no state has its order."""
    def make():
        batches = [(X[at:at + 8], Y[at:at + 8]) for at in range(0, 64, 8)]
        act = (lambda trainer: random.shuffle(batches)) if shuffled else (
            lambda trainer: batches.count(1))
        return run(loader=lambda: batches, hooks=[LambdaHook(**{point: act})])
    straight, first, again = make(), make(), make()
    straight.fit()
    assert bool(straight.exact) is not shuffled, straight.exact
    assert shuffled == ("train_dl is not part of the state" in str(straight.exact))
    first.step(11)
    again.load_state_dict(first.state_dict())
    again.fit()
    assert same(weights(again), weights(straight)) is not shuffled


class Growing(Dataset):
    """As many samples as a hook lets it have."""

    def __init__(self):
        self.size = 16

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        return X[at], Y[at]


def test_a_dataset_whose_length_a_hook_sets_is_named():
    """Its own code reads it in __len__ alone."""
    def grow(trainer):
        trainer.train_dl.dataset.size = min(64, trainer.train_dl.dataset.size + 16)
    trainer = run(loader=lambda: DataLoader(Growing(), 8), hooks=[LambdaHook(after_epoch=grow)])
    trainer.fit()
    assert "dataset.size is not part of the state" in str(trainer.exact)
    trainer = run(loader=lambda: DataLoader(Growing(), 8))
    trainer.fit()
    assert trainer.exact


class Zipped:
    """Batches of two loaders."""

    def __init__(self, *loaders):
        self.inner = {"loaders": loaders}

    def __iter__(self):
        """In pairs; the inputs are the first one's and the other's."""
        for (x, y), (more, _) in zip(*self.inner["loaders"]):
            yield x + 0.1 * more, y

    def __len__(self):
        return 8


class OfMany(Dataset):
    """A generator for each sample."""

    def __init__(self, kind):
        many = [random.Random(number) for number in range(64)]
        self.many = many if kind == "list" else dict(enumerate(many))

    def __len__(self):
        return 64

    def __getitem__(self, at):
        return X[at] + self.many[at].gauss(0, 0.3), Y[at]


class Stream(IterableDataset):
    """Samples of another loader."""

    def __init__(self):
        self.inner = drawn_by_itself(None)

    def __iter__(self):
        return iter(self.inner)


def drawn_by_itself(size):
    """A loader with a generator of its own."""
    return DataLoader(TensorDataset(X, Y), size, shuffle=True,
                      generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(("kind", "halt"), some(
    [(kind, halt) for kind in ("loaders", "stream", "list", "dict") for halt in (3, 8, 13)],
    [("loaders", 3), ("loaders", 8), ("stream", 13), ("list", 8), ("dict", 3)]))
def test_generators_within_the_data_are_kept(kind, halt):
    """Those of loaders that one of the user's own iterates, and of many samples."""
    def loader():
        if kind == "stream":
            return DataLoader(Stream(), 8)
        if kind != "loaders":
            return DataLoader(OfMany(kind), 8, shuffle=True)
        return Zipped(DataLoader(TensorDataset(X, Y), 8, shuffle=True), drawn_by_itself(8))
    straight, first, again = (run(loader=loader, hooks=[SnapshotHook(every_steps=3)])
                              for _ in range(3))
    straight.fit()
    first.step(halt)
    again.load_state_dict(first.state_dict())
    again.fit()
    first.rewind(3)
    first.fit()
    for each in first, again:
        assert each.exact and same(weights(each), weights(straight))


class OwnPlateau(Hook):
    """Lowers the rate where evaluations get no better; with `acts` off it only counts."""

    def __init__(self):
        self.best, self.bad = float("inf"), 0

    def after_valid(self, trainer):
        """Counts."""
        value = trainer.records["valid/loss"]
        self.best, self.bad = (value, 0) if value < 0.9 * self.best else (self.best, self.bad + 1)
        if self.bad == 2:
            self.bad = 0
            for group in trainer.optim.param_groups:
                group["lr"] *= 0.1


class KeptPlateau(OwnPlateau):
    """With its counts in the state."""

    def state_dict(self):
        """Both."""
        return {"best": self.best, "bad": self.bad}

    def load_state_dict(self, state):
        """Both."""
        self.best, self.bad = state["best"], state["bad"]


class ByLoss(Hook):
    """Scales the loss by that of the last evaluation."""

    def __init__(self):
        self.scale = 1.0

    def on_log(self, trainer, records):
        """Keeps it."""
        self.scale = records.get("valid/loss", self.scale)

    def after_loss(self, trainer):
        """Uses it."""
        if trainer.training:
            trainer.context.loss = trainer.context.loss * self.scale


class BestSoFar(Hook):
    """Only looks."""

    def __init__(self):
        self.best = float("inf")

    def after_valid(self, trainer):
        """For a line at the end."""
        self.best = min(self.best, trainer.records["valid/loss"])


@pytest.mark.parametrize("drives", [1, 5])
@pytest.mark.parametrize(("kind", "name"), [
    (OwnPlateau, "best"), (ByLoss, "scale"), (KeptPlateau, None), (BestSoFar, None)])
def test_what_hooks_keep_from_evaluations_is_named_where_they_act(kind, name, drives):
    """It decides about the steps to come."""
    def make():
        valid = DataLoader(TensorDataset(X, Y), 16)
        return run(lambda weights: torch.optim.SGD(weights, 0.005), hooks=[kind()], valid_dl=valid)
    straight, first, again = make(), make(), make()
    straight.fit()
    for steps in [19] if drives == 1 else [4, 5, 3, 5, 2]:
        first.step(steps)
    again.load_state_dict(first.state_dict())
    again.fit()
    for each in straight, first:
        assert bool(each.exact) is (name is None), each.exact
        assert name is None or (f".{name} is not part of the state, and evaluations change it"
                                in str(each.exact)), each.exact
    if name != "best":  # the counts may be the same by chance
        assert same(weights(again), weights(straight)) is (name is None)


@pytest.mark.parametrize("kind", ["loader in a hook", "loader in a step", "sampler in a step",
                                  "training loader in a step"])
def test_other_loaders_that_steps_draw_from_are_named(kind):
    """Their generators are of no state; those of the training loader are."""
    other, own = drawn_by_itself(4), drawn_by_itself(8)
    draws = RandomSampler(X, num_samples=4, generator=torch.Generator().manual_seed(3))

    def mixed(trainer):
        (x, y), (more, of_more) = trainer.context.batch, next(iter(other))
        trainer.context.batch = torch.cat([x, more]), torch.cat([y, of_more])

    def step(batch, trainer):
        more = {"loader in a step": lambda: next(iter(other))[0],
                "sampler in a step": lambda: X[list(draws)],
                "training loader in a step": lambda: X[:len(own)]}[kind]()
        loss = mse_loss(trainer.model(batch[0]), batch[1])
        return {"loss": loss + trainer.model(more).pow(2).mean()}

    settings = ({"hooks": [LambdaHook(before_batch=mixed)]} if "hook" in kind else
                {"step": lambda: step})
    trainer = run(loader=lambda: own, **settings)
    trainer.step(11)
    named = "training" not in kind
    assert bool(trainer.exact) is not named, trainer.exact
    assert named == (".generator" in str(trainer.exact)), trainer.exact


class OnParameters(Hook):
    """Keeps a mean of each gradient at its parameter, as Grokfast does."""

    def before_step(self, trainer):
        """Adds it to the gradient."""
        for each in trainer.model.parameters():
            mean = getattr(each, "mean_of_grad", None)
            each.mean_of_grad = each.grad.clone() if mean is None else 0.9 * mean + 0.1 * each.grad
            each.grad = each.grad + each.mean_of_grad


class OnParametersInPlace(OnParameters):
    """The same, in place."""

    def before_step(self, trainer):
        """Adds it to the gradient."""
        for each in trainer.model.parameters():
            if not hasattr(each, "mean_of_grad"):
                each.mean_of_grad = torch.zeros_like(each)
            each.mean_of_grad.mul_(0.9).add_(each.grad, alpha=0.1)
            each.grad = each.grad + each.mean_of_grad


@pytest.mark.parametrize("kind", [OnParameters, OnParametersInPlace])
def test_attributes_of_parameters_are_named_once_and_taken_back_by_a_search(kind):
    """One that stays what it was, as those that libraries set, is not."""
    def make(hooks):
        trainer = run(model=lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), hooks=hooks)
        for each in trainer.model.parameters():
            each.is_initialized = True
        return trainer
    trainer, straight = make([kind()]), make([kind()])
    trainer.lr_find(num_steps=4)
    assert not hasattr(trainer.model[0].weight, "mean_of_grad")
    trainer.step(5)
    before = trainer.model[0].weight.mean_of_grad.clone()
    trainer.lr_find(num_steps=4)
    assert torch.equal(trainer.model[0].weight.mean_of_grad, before)
    trainer.fit()
    straight.fit()
    assert same(weights(trainer), weights(straight))
    for each in trainer, straight:
        assert [text.partition(" is not")[0] for text in each.exact.obstacles] == [
            "model.parameters().mean_of_grad"]
    plain = make([])
    plain.fit()
    assert plain.exact


class Settings:
    """An object of the user's, without code that reads it."""

    def __init__(self):
        self.level, self.seen = 0.0, 0


class ByLevel(Hook):
    """Reads and counts in an object of the model or of the trainer."""

    def __init__(self, of):
        self.of = of

    def before_step(self, trainer):
        """Gradients shrink as the level rises."""
        settings = trainer.settings_of_mine if self.of == "trainer" else trainer.model.settings
        settings.level += 0.05
        settings.seen += 1
        for each in trainer.model.parameters():
            each.grad.mul_(1 / (1 + settings.level))


class Counts(Hook):
    """Only counts."""

    def after_step(self, trainer):
        """For others to read."""
        trainer.model.settings.seen += 1


def by_settings(batch, trainer):
    """A step that reads it."""
    trainer.model.settings.level += 0.05
    loss = mse_loss(trainer.model(batch[0]), batch[1])
    return {"loss": loss * (1 + trainer.model.settings.level)}


@pytest.mark.parametrize("kind", ["model", "trainer", "step", "counts"])
def test_numbers_in_objects_that_are_reached_through_the_trainer_are_named(kind):
    """By the names that the step and acting hooks read."""
    def make():
        given = {"step": {"step": lambda: by_settings}, "counts": {"hooks": [Counts()]}}
        trainer = run(**given.get(kind, {"hooks": [ByLevel(kind)]}))
        trainer.model.settings, trainer.settings_of_mine = Settings(), Settings()
        return trainer
    straight, first, again = make(), make(), make()
    straight.fit()
    first.step(9)
    again.load_state_dict(first.state_dict())
    again.fit()
    owner = "trainer.settings_of_mine" if kind == "trainer" else "model.settings"
    wanted = [] if kind == "counts" else [f"{owner}.level"]
    for each in straight, first:
        assert [text.partition(" is not")[0] for text in each.exact.obstacles] == wanted
    assert same(weights(again), weights(straight)) is (kind == "counts")


class FilledLate(Dataset):
    """Noise from a generator that the second epoch brings, in a list that begins empty."""

    def __init__(self):
        self.later = []

    def __len__(self):
        return len(X)

    def set_epoch(self, epoch):
        """Make it."""
        if epoch and not self.later:
            self.later.append(torch.Generator().manual_seed(3))

    def __getitem__(self, at):
        noise = [torch.randn((), generator=each) for each in self.later]
        return X[at] + sum(noise), Y[at]


def test_a_generator_in_a_list_that_began_empty_is_kept():
    """The list was searched when it held nothing."""
    straight, first, again = (run(loader=lambda: DataLoader(FilledLate(), 8)) for _ in range(3))
    straight.fit()
    first.step(len(first.train_dl) + 2)
    state = first.state_dict()
    assert len(state["data"]["generators"]) == 1
    again.train_dl.dataset.set_epoch(1)  # as in the script that goes on
    again.load_state_dict(state)
    again.fit()
    assert same(weights(again), weights(straight))


@pytest.mark.parametrize("acts", [True, False])
def test_a_hook_that_came_in_mid_run_is_assumed_where_it_acts(acts):
    """A file has no hooks."""
    def halve(trainer):
        trainer.model.weight.grad.mul_(0.5)
    trainer = run()
    trainer.step(2)
    trainer.hooks.add(LambdaHook(**({"before_step": halve} if acts else {"after_step": repr})))
    trainer.step(2)
    said = [text for text in trainer.exact.assumed if "came when the run had begun" in text]
    assert trainer.exact and len(said) == acts and all("lambda" in text for text in said)
    assert not [text for text in run(hooks=[LambdaHook(before_step=halve)]).exact.assumed
                if "came when" in text]


class Counted:
    """A hook of torch's with a count that has a part in the output."""

    calls = 0

    def __call__(self, module, inputs, output):
        self.calls += 1
        return output * (1 + 0.01 * self.calls)


def test_a_hook_that_a_module_gets_between_drives_is_named():
    """Its table was empty when the steps were looked at."""
    trainer = run()
    trainer.step(3)
    assert trainer.exact
    trainer.model.register_forward_hook(Counted())
    trainer.step(2)
    assert any("calls" in each for each in trainer.exact.obstacles), trainer.exact
