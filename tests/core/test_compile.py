"""`Trainer(compile=)`: what torch.compile takes, and nothing else;
exact where each size is compiled for itself."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import EMAHook, Trainer

INPUTS = torch.randn(18, 4, generator=torch.Generator().manual_seed(3))
DATA = TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True).sin())


def make(weights=0, **settings):
    """Five batches an epoch, the last one of two samples."""
    torch.manual_seed(weights)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return Trainer(model, train_dl=DataLoader(DATA, 4, shuffle=True), loss_fn=nn.MSELoss(), seed=1,
                   epochs=2, device="cpu", progress=False, **settings)


class Own(nn.Module):
    """A class with a forward of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


class Parts(nn.Module):
    """Has no forward."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(4, 1)


def noted():
    """A list of the sizes that a backend is called for, and the backend."""
    sizes = []

    def backend(graph, examples):
        sizes.extend({len(each) for each in examples if tuple(each.shape[1:]) == (4,)} - {8})
        return graph

    return sizes, backend


@pytest.mark.slow
@pytest.mark.parametrize("model", [Own, lambda: nn.Linear(4, 1), lambda: nn.Sequential(Own()),
                                   lambda: nn.Sequential(nn.Linear(4, 1))])
def test_models_of_torch_are_compiled_too(model):
    """`model.compile()` alone compiles nothing of a Sequential (torch 2.13)."""
    torch._dynamo.reset()
    sizes, backend = noted()
    trainer = Trainer(model(), train_dl=DataLoader(DATA, 9), loss_fn=nn.MSELoss(), epochs=1,
                      device="cpu", progress=False, compile={"backend": backend})
    trainer.fit()
    assert 9 in sizes


def test_a_model_without_a_forward_is_refused():
    """Of it nothing would be compiled."""
    model = Parts()
    with pytest.raises(ValueError, match=r"a Parts, has no forward.*model.part.compile\(\)"):
        Trainer(model, lambda batch, trainer: {"loss": model.layers(batch[0]).mean()},
                DataLoader(DATA, 9), compile=True)


@pytest.mark.slow
def test_the_average_of_a_compiled_model_is_its_own():
    """The copy of the model has weights of its own, and computes with them."""
    trainer = make(compile={"backend": "eager"}, ema=0.5)
    trainer.fit()
    average, x = trainer.get_hook(EMAHook).ema_model, INPUTS[:3]
    by_hand = nn.functional.linear(x, average[0].weight, average[0].bias).tanh()
    by_hand = nn.functional.linear(by_hand, average[2].weight, average[2].bias)
    assert torch.equal(average(x), by_hand) and not torch.equal(average(x), trainer.model(x))


@pytest.mark.slow
def test_arguments_reach_torch():
    """A backend of one's own is called, for each size where it is asked to."""
    torch._dynamo.reset()
    sizes, backend = noted()
    compiled = make(compile={"backend": backend, "dynamic": False})
    compiled.fit()
    assert sizes == [4, 2]
    plain = make()
    plain.fit()
    assert torch.equal(compiled.model[0].weight, plain.model[0].weight)


@pytest.mark.slow
@pytest.mark.parametrize(("given", "told"), [
    ("reduce-overhead", r"did you mean \{'mode': 'reduce-overhead'\}"),
    ({"mod": "default"}, r"no 'mod'; did you mean 'mode'\?"), (3, "compile=3: True, False, or a"),
    ({"model": None}, "no 'model'"), ("True", r"compile='True': True, False, or a [^;]*$"),
    ({"dynamic": 0}, r"compile=\{'dynamic': 0\}: "), ({"mode": "fast"}, "'fast'"),
    ({"mode": "default", "options": {"max_autotune": True}}, "mode"),
])
def test_what_torch_does_not_take_is_refused(given, told):
    """Before the model has changed."""
    model = nn.Linear(4, 1).double()
    before = model.weight.device, model.weight.data_ptr()
    with pytest.raises((TypeError, ValueError), match=told):
        Trainer(model, train_dl=DataLoader(DATA, 4), loss_fn=nn.MSELoss(), compile=given)
    assert (model.weight.device, model.weight.data_ptr()) == before
    assert model._compiled_call_impl is None


@pytest.mark.slow
@pytest.mark.parametrize(("compile", "exact"), [
    (False, True), (True, False), ({}, False), ({"dynamic": False}, True),
    ({"dynamic": True}, False), ({"mode": "default"}, False), ({"disable": True}, True),
    ({"dynamic": False, "recompile_limit": 1}, False),
])
def test_what_exact_says(compile, exact):
    """{} is True; of two sizes each has to be compiled for itself."""
    trainer = make(compile=compile)
    assert bool(trainer.exact) is exact, trainer.exact
    if not exact:
        assert "compile={'dynamic': False}" in str(trainer.exact)
    # pieces may have any size
    pieces = make(compile=compile, micro_batch_size=2)
    assert bool(pieces.exact) is (compile in (False, {"disable": True}))


@pytest.mark.parametrize(("sizes", "each", "exact"), [
    ([9], False, True), ([6], False, False), ([6], True, True), ([6, 18], True, True),
    ([6, 18, 5], True, False)])
def test_sizes_of_evaluations_count(sizes, each, exact):
    """A run that goes on may meet them first; torch compiles for no more than four."""
    trainer = Trainer(Own(), train_dl=DataLoader(DATA, 9), loss_fn=nn.MSELoss(), epochs=1,
                      valid_dl={f"of {size}": DataLoader(DATA, size) for size in sizes},
                      device="cpu", progress=False, compile={"dynamic": False} if each else True)
    assert bool(trainer.exact) is exact


def test_a_traced_model_is_compiled():
    """Its class says no module for its forward."""
    sizes, backend = noted()
    torch._dynamo.reset()
    Trainer(torch.fx.symbolic_trace(Own()), train_dl=DataLoader(DATA, 9), loss_fn=nn.MSELoss(),
            epochs=1, device="cpu", progress=False, compile={"backend": backend}).fit()
    assert 9 in sizes


@pytest.mark.long
def test_each_size_for_itself_goes_on_bit_for_bit():
    """From any step, with nothing in the compiler's memory."""
    def straight():
        torch._dynamo.reset()
        return make(compile={"dynamic": False}, valid_dl=DataLoader(DATA, 6))

    whole = straight()
    whole.fit()
    for step in (1, 4, 5, 7):
        first = straight()
        first.step(step)
        other = straight()
        other.load_state_dict(first.state_dict())
        other.validate()  # another order of the sizes
        other.fit()
        assert torch.equal(other.model[0].weight, whole.model[0].weight), step
