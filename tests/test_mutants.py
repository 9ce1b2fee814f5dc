"""Every planted mistake in tests/mutants still fits the code; that it is noticed is for tests/run_mutants.py to show."""

import pytest
from run_mutants import all_mutants


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda m: f"{m.list}: {m.name}")
def test_mutant_still_applies(mutant):
    """Its text occurs exactly once, and the test that must fail exists."""
    assert mutant.problem() is None
