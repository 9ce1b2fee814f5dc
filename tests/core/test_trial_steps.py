"""Steps on trial leave nothing behind in what the user's code holds:
hooks, metrics, second optimizers, tensors beside the model."""

import warnings
from collections import UserDict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exact_runs import INPUTS, TARGETS, drive
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from trainer_nb import CheckpointHook, Hook, Trainer
from trainer_nb.core import own_state
from trainer_nb.core.own_state import undo_objects
from trainer_nb.support.undo import Undo


class Bank(Hook):
    """A memory that the step function changes; no point of its own."""

    def __init__(self):
        self.mean, self.seen, self.rates = torch.zeros(4), [], {"a": {"b": 0}}

    def update(self, inputs):
        """In place and by replacement."""
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        self.seen.append(len(inputs))
        self.rates["a"]["b"] += 1

    def state_dict(self):
        """What is kept."""
        return {"mean": self.mean}

    def load_state_dict(self, state):
        """What was kept."""
        self.mean = state["mean"]


class Watching(Bank):
    """The same with a point of the step."""

    def after_batch(self, trainer):
        """Nothing."""


class Slots(Hook):
    """What it knows is found by its state only."""

    def update(self, inputs):
        """Beside."""
        hidden[id(self)] = hidden.get(id(self), 0) + float(inputs.mean())

    @property
    def mean(self):
        """As the others have one."""
        return torch.tensor(hidden.get(id(self), 0.0))

    def state_dict(self):
        """What is kept."""
        return {"value": hidden.get(id(self), 0.0)}

    def load_state_dict(self, state):
        """What was kept."""
        hidden[id(self)] = state["value"]


class Metric(nn.Module):
    """As those of torchmetrics: plain tensors and lists in a module that belongs to no model."""

    def __init__(self):
        super().__init__()
        self.total, self.values, self.count = torch.zeros(()), [], 0

    def update(self, value):
        """One more."""
        self.total += value
        self.values.append(value)
        self.count += 1


class Carrying(nn.Module):
    """Carries a state over batches in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.layer, self.hidden = nn.Linear(4, 1), None

    def forward(self, inputs):
        """The state has a part in the output."""
        output = self.layer(inputs) + (0 if self.hidden is None else self.hidden)
        self.hidden = output.detach().mean()
        return output


hidden = UserDict()  # in which no search looks


def make(kind=Bank):
    """A run whose step changes things everywhere; and these things."""
    torch.manual_seed(0)
    model, other, bank = Carrying(), nn.Linear(4, 4), kind()
    second = torch.optim.Adam(other.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(second, 0.9)
    box = SimpleNamespace(metric=Metric(), recent=deque(maxlen=3), array=np.zeros(2),
                          rng=np.random.default_rng(0))
    def step(batch, trainer):
        inputs, targets = batch
        inner = (other(inputs) - inputs).pow(2).mean()
        second.zero_grad()
        inner.backward()
        second.step()
        schedule.step()
        bank.update(inputs)
        box.array += float(inner.detach())
        box.recent.append(box.rng.normal())
        loss = nn.functional.mse_loss(model(inputs + 0.1 * other(inputs).detach() - bank.mean
                                            + box.recent[-1]), targets)
        box.metric.update(loss.detach())
        return {"loss": loss * (1 + 0.01 * box.metric.count)}
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), 4, shuffle=True)
    optim = torch.optim.SGD(model.parameters(), 0.05)
    trainer = Trainer(model, step, loader, optim=optim, epochs=2, seed=0, device="cpu",
                      progress=False, hooks=[bank])
    return trainer, SimpleNamespace(other=other, second=second, bank=bank, box=box,
                                    schedule=schedule)


def values_of(trainer, held):
    """Everything that a step changes, copied."""
    box, bank = held.box, held.bank
    plain = [bank.mean.clone(), box.metric.total.clone(), list(box.metric.values), box.metric.count,
             list(box.recent), box.array.copy(),
             held.schedule.state_dict()["last_epoch"], getattr(bank, "seen", [])[:],
             getattr(bank, "rates", {"a": {}})["a"].copy()]
    weights = [each.detach().clone()
               for each in (*trainer.model.parameters(), *held.other.parameters())]
    return [*plain, weights,
            {number: dict(each) for number, each in held.second.state_dict()["state"].items()},
            str(trainer.model.hidden)]


@pytest.mark.parametrize("kind", [Bank, Watching, Slots])
@pytest.mark.parametrize("search", ["lr_find", "sweep"])
def test_a_search_leaves_no_trace_in_what_the_step_holds(kind, search):
    """Before the run and in the middle, and the run is the one without it."""
    hidden.clear()
    straight, held = make(kind)
    wanted = values_of(drive(straight), held)
    for steps in (0, 5):
        hidden.clear()
        trainer, mine = make(kind)
        if steps:
            trainer.step(steps)
        before, seen, mean = (values_of(trainer, mine), getattr(mine.bank, "seen", None),
                              mine.bank.mean)
        trainer.lr_find(num_steps=10) if search == "lr_find" else trainer.sweep("lr", [0.01, 0.02])
        assert own_state.alike(values_of(trainer, mine), before)
        assert getattr(mine.bank, "seen", None) is seen
        assert (kind is Slots or mine.bank.mean is mean)
        drive(trainer)
        assert own_state.alike(values_of(trainer, mine), wanted)
    hidden.clear()


class Counting(Dataset):
    """Counts the visits of each sample, and weights it by them."""

    def __init__(self, seen):
        self.seen = seen

    def __len__(self):
        return len(INPUTS)

    def __getitem__(self, place):
        self.seen[place] = (self.seen.get(place, 0) if isinstance(self.seen, dict)
                            else self.seen[place]) + 1
        return INPUTS[place] * (1 + 0.1 * float(self.seen[place])), TARGETS[place]


SEEN = {"array": lambda: np.zeros(len(INPUTS)), "list": lambda: [0] * len(INPUTS), "dict": dict,
        "tensor": lambda: torch.zeros(len(INPUTS))}
LOOKS = {"lr_find": lambda trainer: trainer.lr_find(num_steps=5),
         "sweep": lambda trainer: trainer.sweep("lr", [0.1, 0.2]),
         "exact": lambda trainer: trainer.exact,
         "checkpoints": lambda trainer: None}


@pytest.mark.slow
@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("seen", SEEN)
def test_what_a_dataset_keeps_of_its_samples_is_as_by_hand(seen, look, subset, tmp_path):
    """Also where samples are read to know the data again, or to see whether they are random."""
    def run(look):
        torch.manual_seed(0)
        model, own = nn.Linear(4, 1), Counting(SEEN[seen]())
        data = torch.utils.data.Subset(own, range(len(INPUTS))) if subset else own
        workers = 1 if look == "exact" else 0
        hooks = [CheckpointHook()] if look == "checkpoints" else []
        trainer = Trainer(model, train_dl=DataLoader(data, 4, num_workers=workers), seed=0,
                          loss_fn=nn.MSELoss(), optim=torch.optim.SGD(model.parameters(), 0.05),
                          epochs=2, device="cpu", progress=False, hooks=hooks, alerts=False,
                          workspace=tmp_path if hooks else None)
        LOOKS.get(look, lambda trainer: None)(trainer)
        values = own.seen.values() if isinstance(own.seen, dict) else own.seen
        kept = np.array([*map(float, values)])
        if look != "exact":
            trainer.step(3)
            LOOKS.get(look, lambda trainer: None)(trainer)
            trainer.fit()
        return model.weight.detach().clone(), kept.sum()
    weight, kept = run(look)
    assert kept == 0
    assert look == "exact" or torch.equal(weight, run("nothing")[0])


@pytest.mark.parametrize("how", ["lr_find", "sweep", "trial"])
def test_statistics_of_a_second_network_and_an_iterator(how):
    """The former are set back, though torch writes them uncounted; of the latter it is said that
    it has moved."""
    torch.manual_seed(0)
    model, teacher = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    others = iter(DataLoader(TensorDataset(torch.arange(4000.0)), 1))

    def step(batch, trainer):
        with torch.no_grad():
            wanted = teacher(batch[0]).mean(1, keepdim=True) * next(others)[0]
        return {"loss": nn.functional.mse_loss(trainer.model(batch[0]), wanted)}
    trainer = Trainer(model, step, DataLoader(TensorDataset(INPUTS, TARGETS), 4),
                      optim=torch.optim.SGD(model.parameters(), 0.05), epochs=2, device="cpu",
                      progress=False)
    trainer.step(2)
    before = {name: each.clone() for name, each in teacher.state_dict().items()}
    with pytest.warns(UserWarning, match=r"^others \(used by train_step\): an iterator"):
        if how == "trial":
            with trainer.trial() as tried:
                tried.step()
        else:
            (trainer.lr_find(num_steps=5) if how == "lr_find" else trainer.sweep("lr", [0.1] * 3))
    assert own_state.alike(dict(teacher.state_dict()), before)


class Counter:
    """A counter of one's own."""

    def __init__(self):
        self.number = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.number += 1
        return self.number


def test_a_counter_of_ones_own_is_set_back_and_what_has_not_moved_is_not_named():
    """A generator and a zip that the step could use."""
    counter, generator, pairs = Counter(), (each for each in range(9)), zip([1], [2], strict=True)
    model = nn.Linear(4, 1)

    def step(batch, trainer):
        next(counter)
        if len(batch) > 100:
            next(generator), next(pairs)
        return {"loss": nn.functional.mse_loss(trainer.model(batch[0]), batch[1])}
    trainer = Trainer(model, step, DataLoader(TensorDataset(INPUTS, TARGETS), 4),
                      optim=torch.optim.SGD(model.parameters(), 0.05), epochs=2, device="cpu",
                      progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.lr_find(num_steps=5)
    assert counter.number == 0 and next(generator) == 0


def test_what_is_copied_is_bounded(monkeypatch):
    """Arrays beyond the bound stay as steps leave them; of the samples that are looked at no
    others are copied."""
    monkeypatch.setattr(own_state, "MOST", 100)
    holder = SimpleNamespace(first=np.zeros(10), second=np.zeros(10))
    with Undo() as undo:
        undo_objects(undo, {"holder": holder})
        holder.first += 1
        holder.second += 1
    assert holder.first.sum() == 0 and holder.second.sum() == 10


class Past(torch.optim.Optimizer):
    """The mean of the last gradients, which are in lists of its state."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        """One more, without the oldest."""
        for group in self.param_groups:
            for each in group["params"]:
                past = self.state[each].setdefault("past", {"of": ([],)})["of"][0]
                past.append(each.grad.clone())
                del past[:-3]
                past[-1].mul_(0.5)
                each.sub_(sum(past), alpha=group["lr"])


@pytest.mark.parametrize("look", ["trial", "lr_find", "sweep"])
@pytest.mark.parametrize("kind", ["LBFGS", "own"])
def test_a_search_leaves_no_trace_in_lists_of_an_optimizers_state(kind, look):
    class Closures(Trainer):
        """A step may pass more than once over the window."""

        repeats_windows = kind == "LBFGS"

        def do_opt_step(self):
            return super().do_opt_step(self.window_gradients if self.repeats_windows else None)

    def run(look):
        torch.manual_seed(0)
        model = nn.Linear(INPUTS.shape[1], 1)
        optim = (torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=4)
                 if kind == "LBFGS" else Past(model.parameters()))
        trainer = Closures(model, train_dl=[(INPUTS, TARGETS)], optim=optim, max_steps=8,
                           loss_fn=nn.MSELoss(), device="cpu", seed=0, progress=False)
        trainer.step(5)
        if look == "trial":
            with trainer.trial() as tried:
                tried.step()
        elif look == "lr_find":
            trainer.lr_find(num_steps=5)
        elif look == "sweep":
            trainer.sweep("lr", [0.1, 0.2])
        trainer.fit()
        return model.weight.detach()
    assert torch.equal(run(None), run(look))


def test_a_state_of_an_optimizer_that_contains_itself_is_restored():
    model = nn.Linear(2, 1)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    held = optim.state[model.weight]["held"] = [optim.state]
    held.append(held)
    with Undo() as undo:
        undo.optimizer(optim)
        held.append(1)
    assert len(held) == 2 and held[1] is held


def test_a_step_of_a_trial_takes_no_number():
    """It makes one step; a number would be taken for a name."""
    words = r"trial\.step\(5\): it makes one step"
    with make()[0].trial() as tried, pytest.raises(ValueError, match=words):
        tried.step(5)


def test_a_large_tensor_is_named(monkeypatch):
    """It is not copied; what became of it is said."""
    monkeypatch.setattr(own_state, "LARGE", 8)
    holder = SimpleNamespace(table=torch.zeros(4), other=torch.zeros(4))
    with pytest.warns(UserWarning, match="^holder.table: larger than") as told, Undo() as undo:
        undo_objects(undo, {"holder": holder})
        holder.table += 1
    assert len(told) == 1


def made_in_inference():
    """A tensor that only code in inference mode may write to."""
    with torch.inference_mode():
        return torch.ones(6)


@pytest.mark.parametrize("buffer", [lambda: torch.ones(1).expand(5), made_in_inference])
@pytest.mark.parametrize("look", ["lr_find", "trial"])
def test_a_buffer_that_cannot_be_written_to_keeps_nothing_from_being_restored(buffer, look):
    """It is as it was; the statistics behind it come back."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model[0].register_buffer("fixed", buffer())
    trainer = Trainer(model, train_dl=DataLoader(TensorDataset(INPUTS, TARGETS), 4), epochs=2,
                      loss_fn=nn.MSELoss(), optim=torch.optim.SGD(model.parameters(), 0.1),
                      device="cpu", progress=False)
    trainer.step(2)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    if look == "trial":
        with trainer.trial() as tried:
            tried.step()
    else:
        trainer.lr_find(num_steps=3)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
