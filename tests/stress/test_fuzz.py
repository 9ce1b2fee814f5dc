"""A short form of `make fuzz`: drawn runs, disturbed in drawn ways, end as the same runs left
alone, or `exact` says why not."""

import fuzz
import pytest
import torch

SEED = 20


@pytest.mark.parametrize("number",
                         [*range(15),
                          *(pytest.param(each, marks=pytest.mark.long) for each in range(15, 60))])
def test_a_disturbed_run_ends_as_the_one_left_alone(number):
    told = fuzz.outcome(SEED, number)
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
