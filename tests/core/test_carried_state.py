"""What steps carry from one to the next in plain attributes is kept by a state, or named by
`exact`."""

import gc
import sys
import threading
import weakref
from collections import deque

import pytest
import torch
from exact_runs import INPUTS, TARGETS
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import Hook, LambdaHook, SnapshotHook, Trainer


class Plain(nn.Module):
    """Carries nothing."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, inputs):
        """A layer."""
        return self.layer(inputs)


class Carrying(Plain):
    """Carries a state over batches in an attribute."""

    hidden = None

    def forward(self, inputs):
        """The state has a part in the output."""
        output = self.layer(inputs) + (0 if self.hidden is None else self.hidden[0])
        self.hidden = (output.detach().mean(0, keepdim=True),)
        return output


class InPlace(Plain):
    """Carries a mean that is changed in place."""

    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(4)

    def forward(self, inputs):
        """The mean is taken off."""
        self.mean.lerp_(inputs.detach().mean(0), 0.1)
        return self.layer(inputs - self.mean)


class Unsaved(InPlace):
    """The same in a buffer that no state has."""

    def __init__(self):
        super().__init__()
        mean = self.__dict__.pop("mean")
        self.register_buffer("mean", mean, persistent=False)


class Saved(Unsaved):
    """The same in a buffer of the state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", self._buffers.pop("mean"))


class Caching(Plain):
    """Writes a cache once, makes a constant in each step, and keeps its last output with its
    graph."""

    cache = None

    def forward(self, inputs):
        """The cache has a part in the output."""
        if self.cache is None:
            self.cache = torch.arange(4.0).cos()
        self.mask = torch.ones(4)
        self.last = self.layer(inputs * self.cache * self.mask)
        return self.last


class Drawing(Plain):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.noise = torch.Generator().manual_seed(1)

    def forward(self, inputs):
        """With noise."""
        return self.layer(inputs + torch.randn(inputs.shape, generator=self.noise))


class Accuracy(nn.Module):
    """A metric as those of torchmetrics."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros(())

    def update(self, value):
        """One more."""
        self.total += value

    def compute(self):
        """The sum."""
        return self.total

    def reset(self):
        """None yet."""
        self.total = torch.zeros(())


class Measured(Plain):
    """Has a metric among its modules."""

    def __init__(self):
        super().__init__()
        self.metric = Accuracy()

    def forward(self, inputs):
        """Counts."""
        self.metric.update(inputs.detach().mean())
        return self.layer(inputs)


class Watching(Hook):
    """Looks at a step, and keeps the loss, a sum of them as a number, and the numbers of an
    evaluation."""

    total = 0.0

    def after_loss(self, trainer):
        """The loss as it is."""
        self.last, self.total = trainer.loss.detach(), self.total + trainer.loss.item()
        if not trainer.training:
            self.of_evaluation = trainer.pred.clone() * 2


class Averaging(Hook):
    """Carries a mean, which the step reads."""

    def __init__(self):
        self.mean = torch.zeros(4)

    def before_batch(self, trainer):
        """The mean is taken off."""
        if trainer.training:
            self.mean = 0.9 * self.mean + 0.1 * trainer.batch[0].mean(0)
            trainer.batch = (trainer.batch[0] - self.mean, trainer.batch[1])


class KeptAveraging(Averaging):
    """The same, kept."""

    def state_dict(self):
        """What is kept."""
        return {"mean": self.mean}

    def load_state_dict(self, state):
        """What was kept."""
        self.mean = state["mean"]


class Bank(Plain):
    """Carries a value of each sample, of more than are walked one by one."""

    def __init__(self):
        super().__init__()
        self.bank = {number: torch.zeros(()) for number in range(70)}

    def forward(self, inputs):
        """The mean of all has a part in the output."""
        place = int(1000 * inputs.detach()[0, 0].abs()) % 70
        self.bank[place] = inputs.detach().mean()
        return self.layer(inputs) + self.bank[place - 1]


class BankInPlace(Bank):
    """The same, written into."""

    def forward(self, inputs):
        """One of them is another one."""
        place = int(1000 * inputs.detach()[0, 0].abs()) % 70
        self.bank[place].fill_(inputs.detach().mean())
        return self.layer(inputs) + self.bank[place - 1]


class Window(Plain):
    """Carries the last 64 means."""

    def __init__(self):
        super().__init__()
        self.means = [0.0] * 64

    def forward(self, inputs):
        """Their mean is added."""
        self.means.pop(0)
        self.means.append(inputs.detach().mean().item())
        return self.layer(inputs) + sum(self.means) / 64


class Growing(Plain):
    """Counts by the length of a table."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def forward(self, inputs):
        """How many there were has a part in the output."""
        self.seen[len(self.seen)] = 1
        return self.layer(inputs) + 0.01 * len(self.seen)


class GrowingSet(Growing):
    """The same, by the size of a set."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def forward(self, inputs):
        """How many there were has a part in the output."""
        self.seen.update(inputs.detach().flatten().tolist())
        return self.layer(inputs) + 0.01 * len(self.seen)


class Meter:
    """A mean by a property."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    @property
    def mean(self):
        """Of all so far."""
        return self.total / max(1, self.count)


class ByProperty(Plain):
    """Carries numbers that a property reads."""

    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def forward(self, inputs):
        """The mean has a part in the output."""
        self.meter.total += inputs.detach().mean().item()
        self.meter.count += 1
        return self.layer(inputs) + self.meter.mean


class ByLocal(Plain):
    """A count that is used under a name of its own."""

    number = 0

    def forward(self, inputs):
        """It has a part in the output."""
        number = self.number = self.number + 1
        return self.layer(inputs) + 0.01 * number


OUTSIDE = {"scale": 1.0}


class ByGlobal(Plain):
    """A number of the module, by a property, a method of the class and one without an object."""

    @property
    def scale(self):
        """As it is now."""
        return OUTSIDE["scale"]

    @staticmethod
    def change():
        """A little more."""
        OUTSIDE["scale"] += 0.01

    @classmethod
    def again(cls):
        """The same."""
        cls.change()

    def forward(self, inputs):
        """It has a part in the output."""
        self.again()
        return self.layer(inputs) * self.scale


class Odd:
    """Cannot be compared."""

    def __eq__(self, other):
        raise TypeError("no")

    __hash__ = None


class WithOdd(Plain):
    """A long list of arrays and of objects that are made anew."""

    def __init__(self):
        super().__init__()
        self.things = [Odd() for _ in range(60)]

    def forward(self, inputs):
        """One of them is another one."""
        self.things[3] = Odd() if self.things[3] is not None else None
        self.things[4] = [torch.ones(3)]
        return self.layer(inputs)


class BySetdefault(Plain):
    """A number in a table."""

    def __init__(self):
        super().__init__()
        self.table = {"a": 0.0}

    def forward(self, inputs):
        """It has a part in the output."""
        before = self.table.setdefault("a", 0.0)
        self.table["a"] = before + inputs.detach().mean().item()
        return self.layer(inputs) + before


class Lookups(Plain):
    """Computes once for each key, and writes down what it sees."""

    def __init__(self):
        super().__init__()
        self.known, self.small, self.written = {}, {}, [0.0] * 60
        self.rows = {"a": []}

    def forward(self, inputs):
        """Looked up; nothing depends on the order."""
        for number in range(int(1000 * inputs.detach()[0, 0].abs()) % 7, 100, 3):
            if number not in self.known:
                self.known[number] = torch.tensor(float(number)).cos()
            if self.small.get(int(number) % 9) is None:
                self.small[int(number) % 9] = number % 9
        self.written.append(inputs.detach().mean())
        self.rows.setdefault("a", []).append(inputs.detach().mean().item())
        return self.layer(inputs) + self.known[int(number)] + self.small[number % 9]


class KeepsBank(Hook):
    """Keeps the bank of a model."""

    model = None

    def before_fit(self, trainer):
        """Whose model."""
        self.model = trainer.model

    def state_dict(self):
        """What is kept."""
        return {"bank": dict(self.model.bank)}

    def load_state_dict(self, state):
        """What was kept."""
        self.model.bank = dict(state["bank"])


class KeepsHidden(Hook):
    """Keeps what the model carries."""

    model = None

    def before_fit(self, trainer):
        """Whose model."""
        self.model = trainer.model

    def state_dict(self):
        """What is kept."""
        return {"hidden": self.model.hidden}

    def load_state_dict(self, state):
        """What was kept."""
        self.model.hidden = state["hidden"]


def loaders():
    """The usual data."""
    data = TensorDataset(INPUTS, TARGETS)
    return {"train_dl": DataLoader(data, 4, shuffle=True), "valid_dl": DataLoader(data, 6)}


def trainer_of(model_class, *hooks, **settings):
    """A run of ten steps."""
    torch.manual_seed(0)
    model = model_class()
    optim = torch.optim.Adam(model.parameters(), 0.01)
    return Trainer(model, loss_fn=nn.MSELoss(), optim=optim, epochs=2, seed=0, hooks=hooks,
                   device="cpu", progress=False, **loaders(), **settings)


DRIVES = {
    "fit": lambda trainer: trainer.fit(),
    "steps": lambda trainer: trainer.step(3),
    "step by step": lambda trainer: (trainer.step(1), trainer.step(1)),
    "an epoch": lambda trainer: trainer.step(epochs=1),
}
CARRIED = {
    "replaced": (Carrying, (), "model.hidden"),
    "in place": (InPlace, (), "model.mean"),
    "buffer of no state": (Unsaved, (), "model.mean"),
    "generator": (Drawing, (), "model.noise"),
    "hook": (Plain, (Averaging,), "averaging.mean"),
    "bank": (Bank, (), "model.bank"), "bank in place": (BankInPlace, (), "model.bank"),
    "window": (Window, (), "model.means"), "growing": (Growing, (), "model.seen"),
    "growing set": (GrowingSet, (), "model.seen"), "by a local": (ByLocal, (), "model.number"),
    "by setdefault": (BySetdefault, (), "model.table"),
    "by a module": (ByGlobal, (), "OUTSIDE (used by model.scale)"),
    "odd things": (WithOdd, (), "model.things"),
}
QUIET = {
    "plain": (Plain, ()),
    "buffer": (Saved, ()),
    "cache": (Caching, ()),
    "metric": (Measured, ()),
    "watching hook": (Plain, (Watching,)),
    "kept hook": (Plain, (KeptAveraging,)),
    "kept by a hook": (Carrying, (KeepsHidden,)),
    "lookups": (Lookups, ()), "kept bank": (Bank, (KeepsBank,)),
}


@pytest.mark.parametrize("drive", DRIVES)
@pytest.mark.parametrize("kind", CARRIED)
def test_what_steps_carry_beside_the_state_is_named(kind, drive):
    """After any drive; and a trainer that goes on from the state says it as well."""
    model, hooks, name = CARRIED[kind]
    trainer = trainer_of(model, *(hook() for hook in hooks))
    assert trainer.exact
    DRIVES[drive](trainer)
    assert [text for text in trainer.exact.obstacles
            if text.startswith(f"{name} is not part of the state")] == trainer.exact.obstacles != []
    again = trainer_of(model, *(hook() for hook in hooks))
    again.load_state_dict(trainer.state_dict())
    assert again.exact.obstacles == trainer.exact.obstacles


def test_numbers_that_a_property_reads_are_named():
    trainer = trainer_of(ByProperty)
    trainer.step(3)
    assert [text.split()[0] for text in trainer.exact.obstacles] == [
        "model.meter.total", "model.meter.count"]


class Replays(Plain):
    """Reads a buffer of the last inputs."""

    def __init__(self):
        super().__init__()
        self.buffer = deque((torch.zeros(4) for _ in range(60)), maxlen=60)

    def forward(self, inputs):
        """Their mean is taken off."""
        self.buffer.append(inputs.detach().mean(0))
        return self.layer(inputs - torch.stack(list(self.buffer)).mean(0))


def test_a_long_buffer_is_named_and_its_old_items_are_not_kept():
    trainer = trainer_of(Replays)
    trainer.step(2)
    assert [text.split()[0] for text in trainer.exact.obstacles] == ["model.buffer"]
    first = weakref.ref(trainer.model.buffer[-1])
    trainer.fit(epochs=40)
    gc.collect()
    assert first() is None


class Overridden(ByGlobal):
    """Something else under the name of a property, of a method."""

    scale = 1.0

    def forward(self, inputs):
        """As it was."""
        self.again()
        return self.layer(inputs) * self.scale


class Raising:
    """An object that answers no question."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def test_what_overrides_and_what_raises_ends_no_run():
    trainer = trainer_of(Overridden)
    things = [Raising() for _ in range(60)]
    trainer.hooks.add(LambdaHook(after_batch=lambda trainer: things.reverse()))
    trainer.fit()
    assert trainer.exact is not None


def test_a_long_table_that_a_thread_changes_ends_no_run():
    table, over = dict.fromkeys(range(3000), 0), threading.Event()

    def change():
        number = 3000
        while not over.is_set():
            table[number] = 1
            table.pop(number - 3000, None)
            number += 1
    trainer = trainer_of(Plain)
    trainer.hooks.add(LambdaHook(before_batch=lambda trainer: sum(list(table.values()))))
    thread, before = threading.Thread(target=change, daemon=True), sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        thread.start()
        for _ in range(8):
            trainer.step(1)
    finally:
        sys.setswitchinterval(before)
        over.set()
        thread.join()
    assert trainer.step_state.optimizer_step == 8


class Numbered(Hook):
    """Scales the inputs by a number of its own, which it counts."""

    number = 0

    def before_batch(self, trainer):
        """In training alone."""
        if trainer.training:
            self.number += 1
            trainer.batch = (trainer.batch[0] * (1 + 0.01 * self.number), trainer.batch[1])


class KeptNumbered(Numbered):
    """The same, kept."""

    def state_dict(self):
        """What is kept."""
        return {"number": self.number}

    def load_state_dict(self, state):
        """What was kept."""
        self.number = state["number"]


def test_a_number_is_not_kept_by_another_hook_with_the_same_number():
    trainer = trainer_of(Plain, Numbered(), KeptNumbered())
    trainer.step(3)
    assert [text.split()[0] for text in trainer.exact.obstacles] == ["numbered.number"]


class Clipping(Hook):
    """Acts through an imported name, by a norm that it carries."""

    norm = 1.0

    def before_step(self, trainer):
        """By half of the largest norm so far."""
        found = clip_grad_norm_(trainer.model.parameters(), self.norm)
        self.norm = max(0.5 * self.norm, found.item() * 0.1)


def test_a_hook_that_acts_by_an_imported_function_is_no_onlooker():
    trainer = trainer_of(Plain, Clipping())
    trainer.step(3)
    assert [text.split()[0] for text in trainer.exact.obstacles] == ["clipping.norm"]


@pytest.mark.parametrize("kind", QUIET)
def test_what_is_kept_or_carries_nothing_is_not_named(kind):
    """Drives of all lengths, evaluations in pauses."""
    model, hooks = QUIET[kind]
    trainer = trainer_of(model, *(hook() for hook in hooks))
    for drive in ("step by step", "steps", "an epoch", "fit"):
        DRIVES[drive](trainer)
        trainer.validate()
        assert trainer.exact, trainer.exact


def test_it_is_named_while_the_first_drive_goes_on():
    """After three windows, where a checkpoint may be written."""
    told = []
    trainer = trainer_of(Carrying)

    class Asking(Hook):
        """Asks after each step."""

        def after_step(self, trainer):
            """What is in the way."""
            told.append(len(trainer.exact.obstacles))

    trainer.hooks.add(Asking())
    trainer.fit()
    assert told == [0, 0, *[1] * 8]


class Scaled(Plain):
    """Multiplies by a number, and has parts of torch's."""

    def __init__(self):
        super().__init__()
        self.scale, self.drop, self.norm = 1.0, nn.Dropout(0.1), nn.BatchNorm1d(4)

    def forward(self, inputs):
        """The product."""
        return self.layer(self.drop(self.norm(inputs))) * self.scale


class ScaledByClass(Scaled):
    """The number is one of the class until it is set."""

    scale = 1.0

    def __init__(self):
        super().__init__()
        del self.scale


ONCE = {  # what a hook changes in mid-run, and what `exact` calls it
    "number": (Scaled, lambda trainer: setattr(trainer.model, "scale", 0.5), "model.scale"),
    "number in place of the class's": (
        ScaledByClass, lambda trainer: setattr(trainer.model, "scale", 0.5), "model.scale"),
    "number of the class": (
        ScaledByClass, lambda trainer: setattr(ScaledByClass, "scale", 0.5), "model.scale"),
    "dropout": (Scaled, lambda trainer: setattr(trainer.model.drop, "p", 0.5), "model.drop.p"),
    "momentum of a norm": (
        Scaled, lambda trainer: setattr(trainer.model.norm, "momentum", 0.5),
        "model.norm.momentum"),
    "part": (Scaled, lambda trainer: setattr(trainer.model, "drop", nn.Dropout(0.5)),
             "model.drop.p"),
    "part of another kind": (
        Scaled, lambda trainer: setattr(trainer.model, "drop", nn.Tanh()), "model.drop"),
    "setting of the loss": (
        Scaled, lambda trainer: setattr(trainer.loss_fn, "reduction", "sum"), "loss_fn.reduction"),
}


@pytest.mark.parametrize("what", ONCE)
def test_what_a_hook_changes_once_in_model_or_loss_is_named(what, monkeypatch):
    """An evaluation comes after the change, and another one ends the run. Where the run is taken up
    later, the hook does not set it again."""
    kind, change, name = ONCE[what]
    monkeypatch.setattr(ScaledByClass, "scale", 1.0)

    def run():
        hook = LambdaHook(after_step=lambda trainer: change(trainer)
                          if trainer.step_state.optimizer_step == 4 else None)
        ScaledByClass.scale = 1.0
        return trainer_of(kind, hook)

    first = run()
    assert first.exact
    first.step(6)
    state = first.state_dict()
    straight = run()
    straight.fit()
    assert any(text.startswith(f"{name} is not") for text in straight.exact.obstacles), (
        straight.exact)
    assert any(text.startswith(f"{name} is not") for text in first.exact.obstacles), first.exact
    later = run()
    later.load_state_dict(state)
    later.fit()
    pairs = zip(straight.model.state_dict().values(), later.model.state_dict().values())
    assert not all(torch.equal(*pair) for pair in pairs)


IN_A_PAUSE = {
    "nothing": lambda trainer: None,
    "evaluation": lambda trainer: trainer.validate(),
    "test": lambda trainer: trainer.test(loaders()["valid_dl"]),
    "prediction": lambda trainer: trainer.predict(loaders()["valid_dl"]),
    "search": lambda trainer: trainer.lr_find(num_steps=3),
    "trial": lambda trainer: tried(trainer),
    "tune": lambda trainer: trainer.tune(lr=0.1),
    "load": lambda trainer: trainer.load_state_dict(trainer.state_dict()),
    "rewind": lambda trainer: trainer.rewind(2),
    "weights": lambda trainer: trainer.model.layer.weight.data.zero_(),
    "frozen": lambda trainer: trainer.model.layer.weight.requires_grad_(False),
    "eval mode": lambda trainer: trainer.model.eval(),
    "another loss": lambda trainer: setattr(trainer, "loss_fn", nn.L1Loss()),
    "another loader": lambda trainer: setattr(trainer, "train_dl", loaders()["train_dl"]),
    "a hook": lambda trainer: trainer.hooks.add(Watching()),
}


def tried(trainer):
    """A step that is taken back."""
    with trainer.trial() as one:
        one.step()


@pytest.mark.parametrize("what", IN_A_PAUSE)
def test_what_is_in_the_state_or_leaves_no_trace_is_not_named(what):
    """Whatever was done between two drives."""
    trainer = trainer_of(Scaled, SnapshotHook(every_steps=2), Watching())
    trainer.step(epochs=1)
    IN_A_PAUSE[what](trainer)
    trainer.step(2)
    trainer.fit()
    assert trainer.exact.obstacles == []


def test_what_changes_a_class_is_taken_back_by_a_search():
    """A number of the model's class, by a step."""
    class Cooling(Plain):
        heat = 1.0

        def forward(self, inputs):
            type(self).heat *= 0.9
            return self.layer(inputs) * self.heat

    trainer = trainer_of(Cooling)
    trainer.step(3)
    assert any("model.heat is not" in text for text in trainer.exact.obstacles), trainer.exact
    heat = Cooling.heat
    trainer.lr_find(num_steps=4)
    assert Cooling.heat == heat
    with trainer.trial() as tried:
        tried.step()
    assert Cooling.heat == heat


def test_an_evaluation_in_a_pause_that_changes_it_is_named():
    """Validation and test; in what a step does not carry nothing is named."""
    for name in ("validate", "test"):
        trainer = trainer_of(Carrying)
        trainer.step(3)
        assert "in a pause" not in str(trainer.exact)
        trainer.validate() if name == "validate" else trainer.test(loaders()["valid_dl"])
        assert f"so did a {name}() in a pause" in str(trainer.exact)


class Keeps(Hook):
    """Keeps a second optimizer, and its model."""

    def __init__(self, *parts):
        self.parts = parts

    def state_dict(self):
        """What is kept."""
        return {str(number): each.state_dict() for number, each in enumerate(self.parts)}

    def load_state_dict(self, state):
        """What was kept."""
        for number, each in enumerate(self.parts):
            each.load_state_dict(state[str(number)])


@pytest.mark.parametrize("kept", ["nothing", "optimizer", "all"])
def test_a_second_model_and_its_optimizer_in_a_step_are_named(kept):
    """Each once, unless a hook keeps it."""
    torch.manual_seed(0)
    model, critic = Plain(), nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    second = torch.optim.Adam(critic.parameters(), 0.01)

    def step(batch, trainer):
        """One of the critic, then the loss of the model."""
        output = model(batch[0])
        second.zero_grad()
        critic(output.detach()).pow(2).mean().backward()
        second.step()
        return {"loss": mse_loss(output, batch[1])}

    hooks = {"nothing": [], "optimizer": [Keeps(second)], "all": [Keeps(second, critic)]}[kept]
    trainer = Trainer(model, step, loaders()["train_dl"],
                      optim=torch.optim.Adam(model.parameters(), 0.01), epochs=2, seed=0,
                      hooks=hooks,
                      device="cpu", progress=False)
    trainer.step(3)
    named = [text.partition(" is not")[0] for text in trainer.exact.obstacles]
    expected = {"nothing": ["critic (used by train_step)", "second (used by train_step)"],
                "optimizer": ["critic (used by train_step)"], "all": []}
    assert sorted(named) == expected[kept]


def test_what_changes_at_a_later_step_only_is_named_at_the_end_of_the_drive():
    """A mean that each fourth step changes."""

    class Seldom(Averaging):
        """Only now and then."""

        def before_batch(self, trainer):
            """Each fourth time."""
            if trainer.step_state.optimizer_step % 4 == 3:
                super().before_batch(trainer)

    trainer = trainer_of(Plain, Seldom())
    trainer.step(3)
    assert trainer.exact
    trainer.step(2)
    assert "seldom.mean is not part of the state" in str(trainer.exact)


def test_a_part_that_is_replaced_meanwhile_ends_the_comparison():
    """In another thread, as while a run is held in the background."""
    trainer = trainer_of(Plain)
    trainer.step(4)
    carried, objects = trainer.driver.carried, trainer.driver.carried.objects
    carried.begin(lambda action, boundary: None)
    assert carried.base is not None
    carried.base_at = (0, carried.base_at[1])  # steps were made since

    def meanwhile():
        thread = threading.Thread(target=carried.forget)
        thread.start()
        thread.join()
        return objects()

    carried.objects = meanwhile
    carried.compare()
    assert carried.base is None and trainer.exact
