"""unwrap: what it takes off, that the package has no other way, and that states of a wrapped model
have plain names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import EMAHook, LayerGroupsHook, Trainer, unwrap

PACKAGE = Path(__file__).parents[2] / "trainer_nb"
@pytest.fixture(scope="module")
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WRAPPERS = {"ddp": DistributedDataParallel, "dp": nn.DataParallel, "compile": torch.compile,
            "average": AveragedModel}


@pytest.mark.parametrize("names",
                         [[], ["ddp"], ["dp"], ["compile"], ["average"], ["ddp", "compile"],
                          ["compile", "ddp"], ["dp", "compile", "dp"],
                          ["compile", "average", "ddp"]],
                          ids=lambda names: "-".join(names) or "plain")
def test_unwrap(names, group):
    """Whatever is around it, in any order, until nothing is;
    the average has a copy inside, and that is what comes out."""
    model = inner = nn.Sequential(nn.Linear(2, 2))
    for name in names:
        model = WRAPPERS[name](model)
        inner = unwrap(model.module) if name == "average" else inner
    assert unwrap(model) is inner and unwrap(inner) is inner
    assert list(unwrap(model).state_dict()) == ["0.weight", "0.bias"]


def test_a_model_with_such_names_is_not_unwrapped():
    """A `module` of its own, or an `_orig_mod` that is not a module, is not a wrapper."""
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self._orig_mod = nn.Linear(1, 1), "text"
    own = Own()
    assert unwrap(own) is own


@pytest.mark.slow
def test_unwrap_loads_no_compiler():
    """torch's compiler takes seconds to import; to look into a model it is not needed."""
    code = ("import sys, torch; from trainer_nb import unwrap; unwrap(torch.nn.Linear(1, 1)); "
            "sys.exit('torch._dynamo' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_there_is_one_way():
    """Nobody else in the package looks behind a wrapper's attribute."""
    found = [path.name for path in sorted(PACKAGE.rglob("*.py")) if "_orig_mod" in path.read_text()]
    assert found == ["torch_private.py"]
    assert len(re.findall("_orig_mod", (PACKAGE / "support" / "torch_private.py").read_text())) == 1


@pytest.mark.parametrize("wrap", [nn.DataParallel, DistributedDataParallel], ids=["dp", "ddp"])
def test_a_wrapped_model_has_plain_names(wrap, group, tmp_path):
    """States, averages and parts of a model that is wrapped are those of the model inside;
    either loads into the other."""
    def make(wrap=lambda model: model):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        x = torch.randn(24, 3)
        data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8)
        wrapped = wrap(model)
        return Trainer(wrapped, train_dl=data, loss_fn=nn.MSELoss(), epochs=2, device="cpu",
                       progress=False, ema=0.9,
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
        assert all(torch.equal(a, b)
                   for a, b in zip(plain.model.parameters(), trainer.model.parameters()))
        assert all(torch.equal(a, b)
                   for a, b in zip(*(each.get_hook(EMAHook).ema_model.parameters()
                                     for each in (plain, trainer))))
