"""A short form of `make fuzz`: drawn runs, disturbed in drawn ways, end as the same runs left
alone, or `exact` says why not."""

import fuzz
import pytest
import torch

SEED = 20
EVERY = range(200)  # of each kind several, half of them plain enough for the loop by hand
SHORT = {fuzz.kind_of(number): number for number in reversed(EVERY)}
SHORT = [number for (name, plain), number in SHORT.items()
         if plain is (fuzz.KINDS[name].model is not None)]

pytestmark = pytest.mark.slow


def test_each_kind_is_drawn():
    """Once in the short form."""
    assert sorted(fuzz.kind_of(number)[0] for number in SHORT) == sorted(fuzz.KINDS)


@pytest.mark.parametrize("number", [
    pytest.param(each, marks=[] if each in SHORT else pytest.mark.long) for each in EVERY])
def test_a_disturbed_run_ends_as_the_one_left_alone(number):
    told = fuzz.outcome(SEED, number)
    assert told.startswith(("equal", "named")), f"seed {SEED} scenario {number}: {told}"


@pytest.mark.cuda
@pytest.mark.parametrize("number", range(40))
def test_on_a_gpu_too(number, monkeypatch):
    """With torch's deterministic algorithms; half of those in bf16 are in fp16, with a scaler."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        told = fuzz.outcome(SEED, number, "cuda")
    finally:
        torch.use_deterministic_algorithms(False)
    assert told.startswith(("equal", "named")), f"seed {SEED} scenario {number}: {told}"


def test_the_judge_sees_a_difference():
    """One weight that is another one by a hair after the first step."""
    scenario = fuzz.Scenario(fuzz.Plan())
    one, other = fuzz.make(scenario), fuzz.make(scenario)
    one.fit()
    other.step(1)
    with torch.no_grad():
        next(other.model.parameters()).view(-1)[0] += 1e-7
    other.fit()
    assert fuzz.differences(fuzz.judged(other), fuzz.judged(one))
