"""Cases of which `make test` runs a few, and `make long` the others."""

import pytest


def some(cases, short):
    """Return the cases for `parametrize`; those that are not in `short` are long."""
    return [pytest.param(*(case if isinstance(case, tuple) else [case]),
                         marks=[] if case in short else pytest.mark.long) for case in cases]
