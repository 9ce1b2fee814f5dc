"""A short form of `make fuzz`: drawn runs, disturbed in drawn ways, end as the same runs left
alone, or `exact` says why not."""

import fuzz
import pytest
import torch

SEED = 20

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number",
                         [*range(8),
                          *(pytest.param(each, marks=pytest.mark.long) for each in range(8, 60))])
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
