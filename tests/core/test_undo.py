"""What is put on the stack of an `Undo` comes back: last change first, in place, all of it."""

from collections import defaultdict, deque
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainer_nb.support.undo import Undo


def test_the_last_change_is_undone_first_and_an_error_stops_none():
    seen = []

    def fail(name):
        seen.append(name)
        raise ValueError(name)

    with pytest.raises(ValueError, match="^c$"), Undo() as undo:
        for name, restore in {"a": seen.append, "b": fail, "c": fail, "d": seen.append}.items():
            undo.add(restore, name)
    assert seen == ["d", "c", "b", "a"] and undo.pairs == []


def test_the_error_of_the_block_is_told_beside_that_of_a_restore():
    with pytest.raises(ZeroDivisionError) as told, Undo() as undo:
        undo.add(lambda: 1 / 0)
        raise KeyError("block")
    assert isinstance(told.value.__context__, KeyError)


def test_what_is_kept_stays_changed():
    values = [1]
    with Undo() as undo:
        undo.contents(values)
        values.append(2)
        undo.keep()
    assert values == [1, 2]


def test_a_restore_can_be_repeated():
    norm, undo = nn.BatchNorm1d(2), Undo()
    undo.buffers([norm])
    for _ in range(2):
        norm(torch.randn(4, 2))
        undo.restore()
        assert norm.num_batches_tracked == 0 and not norm.running_mean.any()


def test_containers_are_the_same_objects_with_the_same_items():
    tensor = torch.ones(1)
    held = SimpleNamespace(many=[tensor], last=deque([1, 2], maxlen=2), by=defaultdict(list, a=[1]),
                           names={"a"}, of={tensor: 1}, gone=1)
    before = dict(vars(held))
    with Undo() as undo:
        undo.attributes(held, contents=True)
        held.many.insert(0, torch.zeros(1))
        held.last.append(3)
        held.by["b"].append(2)
        held.names.clear()
        held.of.clear()
        held.new, held.many = 1, []
        del held.gone
    assert all(vars(held)[name] is each for name, each in before.items())
    assert (held.many == [tensor] and list(held.last) == [1, 2] and held.by == {"a": [1]}
            and held.names == {"a"} and held.of == {tensor: 1} and not hasattr(held, "new"))


class Merged(nn.Linear):
    """Its eval mode has other weights, and it keeps a count that no buffer has."""

    count = 0

    def train(self, mode=True):
        if mode != self.training:
            self.weight.data.mul_(0.5 if mode else 2)
        return super().train(mode)

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


@pytest.mark.parametrize("on_cpu", [False, True])
def test_a_model_is_as_it_was(on_cpu):
    model = nn.Sequential(Merged(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[2].weight = model[0].weight  # tied
    model[2].bias.requires_grad_(False)
    model(torch.randn(4, 2)).sum().backward()
    mean, gradient = model[1].running_mean, model[0].weight.grad
    before = {name: each.clone() for name, each in model.state_dict().items()
              if isinstance(each, torch.Tensor)}
    with Undo() as undo:
        undo.modules([model], on_cpu)
        model.eval()
        model[1].running_mean = torch.ones(2)
        model[0].count = 5
        with torch.no_grad():
            for each in model.parameters():
                each.add_(1).grad = None
        model[2].bias.requires_grad_(True)
    assert all(torch.equal(model.state_dict()[name], each) for name, each in before.items())
    assert all(each.training for each in model.modules()) and model[0].count == 0
    assert model[1].running_mean is mean and model[0].weight.grad is gradient
    assert not model[2].bias.requires_grad


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
def test_an_optimizer_is_as_it_was(rate):
    model = nn.Linear(2, 1)
    optim = torch.optim.AdamW([model.weight], lr=rate, foreach=False)
    model(torch.ones(1, 2)).sum().backward()
    optim.step()
    steps = optim.state[model.weight]["step"]
    before = {name: each.clone() for name, each in optim.state[model.weight].items()}
    with Undo() as undo:
        undo.optimizer(optim)
        optim.step()
        optim.add_param_group({"params": [model.bias]})
        optim.param_groups[0]["lr"] *= 0.5
        optim.state[model.bias] = {"step": 1}
        optim.mode = "eval"
    assert optim.state[model.weight]["step"] is steps and list(optim.state) == [model.weight]
    assert all(torch.equal(optim.state[model.weight][name], each) for name, each in before.items())
    assert len(optim.param_groups) == 1 and not hasattr(optim, "mode")
    assert optim.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.1)
