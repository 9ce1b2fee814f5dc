"""unwrap, key_average and map_nested_tensor: what they take, and that the package itself goes through them."""

import math
import re
import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import EMAHook, LayerGroupsHook, Trainer, key_average, map_nested_tensor, unwrap

PACKAGE = Path(__file__).parents[1] / "trainer_nb"
NAN = math.nan


@pytest.fixture(scope="module")
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WRAPPERS = {"ddp": DistributedDataParallel, "dp": nn.DataParallel, "compile": torch.compile, "average": AveragedModel}


@pytest.mark.parametrize("names", [[], ["ddp"], ["dp"], ["compile"], ["average"], ["ddp", "compile"], ["compile", "ddp"], ["dp", "compile", "dp"],
                                   ["compile", "average", "ddp"]], ids=lambda names: "-".join(names) or "plain")
def test_unwrap(names, group):
    """Whatever is around it, in any order, until nothing is; the average has a copy inside, and that is what comes out."""
    model = inner = nn.Sequential(nn.Linear(2, 2))
    for name in names:
        model = WRAPPERS[name](model)
        inner = unwrap(model.module) if name == "average" else inner
    assert unwrap(model) is inner and unwrap(inner) is inner
    assert list(unwrap(model).state_dict()) == ["0.weight", "0.bias"]


def test_a_model_with_such_names_is_not_unwrapped():
    """A `module` of its own, or an `_orig_mod` that is no module, is no wrapper."""
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self._orig_mod = nn.Linear(1, 1), "text"
    own = Own()
    assert unwrap(own) is own


def test_unwrap_loads_no_compiler():
    """torch's compiler takes seconds to import; to look into a model it is not needed."""
    code = ("import sys, torch; from trainer_nb import unwrap; unwrap(torch.nn.Linear(1, 1)); sys.exit('torch._dynamo' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_there_is_one_way():
    """Nobody else in the package looks behind a wrapper's attribute."""
    found = [path.name for path in sorted(PACKAGE.rglob("*.py")) if "_orig_mod" in path.read_text()]
    assert found == ["torch_private.py"]
    assert len(re.findall("_orig_mod", (PACKAGE / "core" / "torch_private.py").read_text())) == 1


@pytest.mark.parametrize("wrap", [nn.DataParallel, DistributedDataParallel], ids=["dp", "ddp"])
def test_a_wrapped_model_has_plain_names(wrap, group, tmp_path):
    """States, averages and parts of a model that is wrapped are those of the model inside; either loads into the other."""
    def make(wrap=lambda model: model):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        x = torch.randn(24, 3)
        data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8)
        wrapped = wrap(model)
        return Trainer(wrapped, train_dl=data, loss_fn=nn.MSELoss(), epochs=2, device="cpu", progress=False, ema=0.9,
                       hooks=[LayerGroupsHook({"first": "0", "rest": "2"})],
                       optim=torch.optim.SGD(wrapped.parameters(), lr=0.1))
    plain, wrapped = make(), make(wrap)
    plain.fit()
    wrapped.step(4)
    state = wrapped.state_dict()
    assert list(state["model"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    other = make()
    other.load_state_dict(state)
    for trainer in (wrapped, other):
        trainer.fit()
        assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), trainer.model.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(*(each.get_hook(EMAHook).ema_model.parameters() for each in (plain, trainer))))


@pytest.mark.parametrize(("dicts", "exclude", "expected"), [
    ([], False, {}),
    ([{}], False, {}),
    ([{"a": 1}, {"a": 2}], False, {"a": 1.5}),
    ([{"a": 1.0}, {"b": 4.0}, {"a": 3.0}], False, {"a": 2.0, "b": 4.0}),
    ([{"a": None}, {"a": 2.0}], False, {"a": 2.0}),
    ([{"a": None}, {"a": None}], False, {"a": NAN}),
    ([{"a": 1.0}, {"a": NAN}], False, {"a": NAN}),
    ([{"a": 1.0}, {"a": NAN}], True, {"a": 1.0}),
    ([{"a": NAN}, {"a": NAN}], True, {"a": NAN}),
    ([{"a": {"b": 1.0, "c": None}}, {"a": {"b": 3.0, "c": 5.0}}], False, {"a": {"b": 2.0, "c": 5.0}}),
    ([{"a": {"b": 1.0}}, {"c": 2.0}], False, {"a": {"b": 1.0}, "c": 2.0}),
    ([{"a": {"b": 1.0}}, {"a": None}], False, {"a": {"b": 1.0}}),
    ([{"a": {"b": NAN}}, {"a": {"b": 2.0}}], True, {"a": {"b": 2.0}}),
    ([{"a": {}}, {"a": {}}], False, {}),
    ([{"a": True}, {"a": False}], False, {"a": 0.5}),
    ([{"a/b": 1.0, "a": {"b": 3.0}}], False, {"a/b": 1.0, "a": {"b": 3.0}}),
    ([{1: 2.0}, {1: 4.0}], False, {1: 3.0}),
    ([{"a": torch.tensor(1.0)}, {"a": torch.tensor(2.0)}], False, {"a": 1.5}),
    ([{"a": torch.tensor(NAN)}, {"a": torch.tensor(2.0)}], True, {"a": 2.0}),
    ([{"a": torch.tensor(1)}, {"a": 2.0}], False, {"a": 1.5}),
], ids=str)
def test_key_average(dicts, exclude, expected):
    """By the table: what counts is a value that is there."""
    found = key_average(dicts, exclude_nan=exclude)
    assert same(found, expected) and list(found) == list(expected)


def same(found, expected):
    """Equal numbers, NaN too; a tensor counts as its number."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    return float(found) == expected or (math.isnan(found) and math.isnan(expected))


def test_key_average_of_tensors_and_iterables():
    """Tensors stay tensors of any shape; any iterable of dicts will do, and none is changed."""
    dicts = ({"a": torch.tensor([1.0, 2.0]), "b": {"c": i}} for i in range(3))
    found = key_average(dicts)
    assert torch.equal(found["a"], torch.tensor([1.0, 2.0])) and found["b"] == {"c": 1.0}
    given = [{"a": {"b": 1.0}}, {"a": {"b": 3.0}}]
    key_average(given)["a"]["b"] = 9
    assert given == [{"a": {"b": 1.0}}, {"a": {"b": 3.0}}]


@pytest.mark.parametrize("dicts", [[{"a": 1.0}, {"a": {"b": 2.0}}], [{"a": {"b": 2.0}}, {"a": 1.0}]])
def test_a_number_here_and_a_dict_there(dicts):
    """No mean can be made; the key is named."""
    with pytest.raises(TypeError, match=r"key_average\(\): a.* is a number in one dict and a dict in another"):
        key_average(dicts)


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(("value", "expected"), [
    (torch.tensor(1), 2), ([torch.tensor(1), "a"], [2, "a"]), ((torch.tensor(1), None), (2, None)), ({"a": {"b": torch.tensor(1)}}, {"a": {"b": 2}}),
    (OrderedDict(a=torch.tensor(1)), OrderedDict(a=2)), (Pair(torch.tensor(1), 3), Pair(2, 3)), (3, 3), ("text", "text"), ([], []),
    (defaultdict(list, a=[torch.tensor(1)]), {"a": [2]})], ids=str)
def test_map_nested_tensor(value, expected):
    """Each tensor is mapped, containers keep their types, all else stays."""
    found = map_nested_tensor(lambda tensor: tensor.item() + 1, value)
    assert found == expected and type(found) is (type(value) if not isinstance(value, torch.Tensor) else int)


def test_a_set_of_tensors():
    """Sets are walked through as well."""
    assert map_nested_tensor(lambda tensor: tensor.item(), {torch.tensor(1), torch.tensor(2)}) == {1, 2}
