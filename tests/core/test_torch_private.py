"""Names of torch that are not public: without each of them the public way gives the same."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm
from torch import nn
from torch.autograd import profiler
from torch.utils.data import DataLoader, TensorDataset

import trainer_nb
from trainer_nb import Trainer
from trainer_nb.support import torch_private
from trainer_nb.core.data import close_iterator, open_loader
from trainer_nb.engines.distributed import BackwardSync

PACKAGE = Path(trainer_nb.__file__).parent
OWNERS = ["core/state", "support/files", "core/own_state", "core/data", "core/identity",
          "core/engine",
          "core/step", "core/checks",
          "folder/layout", "support/saved", "engines/distributed", "engines/sharded"]


def gradients():
    """Three of several shapes."""
    torch.manual_seed(0)
    return [torch.randn(4, 3), torch.randn(()), torch.randn(7)]


def trained(optim=torch.optim.AdamW, **settings):
    """The weights after five steps."""
    torch.manual_seed(0)
    data = DataLoader([(torch.randn(3), torch.randn(1)) for _ in range(20)], 4)
    model = nn.Linear(3, 1)
    trainer = Trainer(model, train_dl=data, loss_fn=nn.MSELoss(),
                      optim=lambda parameters: optim(parameters, lr=0.1), epochs=1, device="cpu",
                      progress=False, record=False, grad_clip=0.5, **settings)
    trainer.fit()
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


def batches():
    """Of rows in memory."""
    loader = DataLoader(TensorDataset(torch.arange(12.0).reshape(6, 2)), 2)
    return [each for each, in open_loader(loader, loader)]


def scaled(by, tensors):
    """Multiplied in place."""
    torch_private.multiply(tensors, by)
    return tensors


def copied(tensors):
    """Copied into zeros."""
    made = [torch.zeros_like(each) for each in tensors]
    torch_private.copy_into(made, tensors)
    return made


WAYS = {
    "norms": (torch, "_foreach_norm", lambda: torch_private.gradient_norms(gradients())),
    "product": (torch, "_foreach_mul_", lambda: scaled(0.5, gradients())),
    "product with a tensor": (torch, "_foreach_mul_",
                              lambda: scaled(torch.tensor(0.3), gradients())),
    "copies": (torch, "_foreach_copy_", lambda: copied(gradients())),
    "a step": (torch_private, "_KNOWN", lambda: [trained()]),
    "a backward pass": (torch_private, "_RUN", lambda: [trained(torch.optim.SGD)]),
    "a batch": (torch_private, "_AS_SHIPPED", batches),
    "a batch under a mode": (torch_private, "_DISPATCH", batches),
    "a batch of any tensors": (torch_private, "_KEYS", batches),
    "a mode": (torch_private, "_MODES", lambda: [trained(torch.optim.SGD)]),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_public_way_gives_the_same(name, monkeypatch):
    """Bit for bit."""
    owner, attribute, made = WAYS[name]
    expected = made()
    if owner is torch:
        monkeypatch.delattr(owner, attribute)
    else:
        monkeypatch.setattr(owner, attribute, None)
    assert all(map(torch.equal, made(), expected))


def test_non_finite_gradients_are_found_by_their_norm(monkeypatch):
    """The error names the step, as with torch's own kernel."""
    monkeypatch.delattr(torch, "_amp_foreach_non_finite_check_and_unscale_")
    marks = torch_private.Marks()
    assert [marks.look([each], step).item()
            for step, each in enumerate((torch.ones(2), torch.tensor([1.0, float("nan")])),
                                        1)] == [0, 1]
    assert marks.first_bad_step() == 2 and marks.first_bad_step() is None
    with pytest.raises(ArithmeticError, match="the gradients of step 2 are not finite"):
        trained(lambda parameters, lr: torch.optim.SGD(parameters, lr=float("inf")))


@pytest.mark.parametrize("attribute", ["_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"])
def test_an_optimizer_without_these_names_is_stepped_by_its_wrapper(attribute):
    """So is one whose class does not call its parent's constructor."""
    optim = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    assert torch_private.step_within(optim) is not None
    delattr(optim, attribute)
    assert torch_private.step_within(optim) is None


def test_a_profiler_sees_the_step(monkeypatch):
    """The wrapper tells it."""
    optim = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    monkeypatch.setattr(profiler, "_is_profiler_enabled", True)
    assert torch_private.step_within(optim) is None


class Bare:
    """Has none of the names."""


def test_objects_without_the_names():
    """Nothing is known of them, and nothing is done to them."""
    bare = Bare()
    assert torch_private.compiled_module(bare) is None and torch_private.module_versions({}) is None
    assert torch_private.iterator_workers(bare) == []
    assert torch_private.waiting_iterator(bare) is None
    assert not torch_private.can_add_up_within(bare)
    torch_private.shut_down_workers(bare)
    torch_private.forget_worker_pids(bare)
    with torch_private.scaling_left_to_us(bare):
        assert not vars(bare)


def test_only_persistent_buffers_are_part_of_the_state():
    """As the module's own state has them, in the module itself."""
    module = nn.Sequential(nn.BatchNorm1d(2))
    module.register_buffer("kept", torch.zeros(1))
    module.register_buffer("scratch", torch.zeros(1), persistent=False)
    assert [each is module.kept for each in torch_private.persistent_buffers(module)] == [True]
    assert len(torch_private.persistent_buffers(module[0])) == 3


def test_a_fused_optimizer_gets_its_setting_back():
    """Also after an error."""
    optim = Bare()
    optim._step_supports_amp_scaling = True
    with pytest.raises(ZeroDivisionError), torch_private.scaling_left_to_us(optim):
        assert not optim._step_supports_amp_scaling
        1 / 0
    assert optim._step_supports_amp_scaling


@pytest.mark.slow
def test_workers_end_where_their_iterator_is_not_known(monkeypatch):
    """A torch whose iterators have another class: they end in its own way."""
    monkeypatch.setattr(torch_private, "_ITERATOR", ())
    loader, owner = DataLoader(torch.arange(8), 2, num_workers=2), Bare()
    iterator = open_loader(loader, owner)
    next(iterator)
    workers = torch_private.iterator_workers(iterator)
    close_iterator(iterator, loader)
    assert workers and not any(worker.is_alive() for worker in workers)


# one of two processes, in a torch that does not give its store away
STORE = """
import os, sys
import torch.distributed as dist
from trainer_nb.support import torch_private
rank, folder = int(sys.argv[1]), sys.argv[2]
os.environ["MASTER_ADDR"] = "localhost"
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
del dist.distributed_c10d._get_default_store
store = torch_private.job_store(dist.group.WORLD)
store.set(f"from {rank}", str(rank))
print(rank, store.get(f"from {1 - rank}").decode())
dist.barrier()
"""


@pytest.mark.slow
def test_a_store_of_ones_own(tmp_path):
    """Two processes read what the other one has written."""
    started = [warm.Popen([sys.executable, "-c", STORE, str(rank), tmp_path],
                          stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
    try:
        told = [each.communicate(timeout=300)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    assert told == ["0 1\n", "1 0\n"] and [each.wait() for each in started] == [0, 0]


def test_a_wrapper_that_cannot_be_told_adds_up_after_the_pass():
    """Its reducer has other names in that torch."""
    wrapper = Bare()
    wrapper.module, wrapper.reducer = nn.Linear(1, 1), Bare()
    sync = BackwardSync(wrapper)
    sync.begin(wanted=True)
    assert not sync.active and not wrapper.require_backward_grad_sync


PRIVATE = re.compile(
    r"\b(?:torch|dist|loader|iterator|reducer|optim|optimizer|model|module|tensor|gradient"
    r"|profiler|dataloader|np|random)(?:\.\w+)*\._[a-z]\w*")


@pytest.mark.parametrize("name", OWNERS)
def test_no_private_name_elsewhere(name):
    """These modules ask `torch_private` for it."""
    text = (PACKAGE / f"{name}.py").read_text(encoding="utf-8")
    assert PRIVATE.findall(text) == []
