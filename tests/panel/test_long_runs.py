"""Stills of long runs say the same as if each point were looked at."""

import re

import numpy as np
import pytest
from test_static_picture import make_view

from trainer_nb.panel.still import MOST, still, still_text


def losses(count, *bad):
    """A falling loss with noise; not finite at these points."""
    values = np.exp(-np.arange(count) / count * 3)
    values += np.random.default_rng(1).normal(0, 0.05, count)
    values[list(bad)] = np.nan
    return values.astype(np.float32).astype(float)


def long_view(*bad):
    """A run of 200,000 steps."""
    return make_view({"train/loss": losses(200_000, *bad), "lr": np.full(200_000, 1e-3)})


def test_a_still_of_a_long_run_has_the_means_of_all_its_points():
    """The last and the best value, as from every point; the mean of a tenth would be 0.005 off."""
    view = long_view()
    thin, full = still_text(view), still_text(view, records=view.records())
    assert len(view.records(most=MOST)["train/loss"]) == MOST
    numbers = [re.search(r"train/loss +([\d.]+) +best +([\d.]+)", text) for text in (thin, full)]
    assert all(numbers), thin
    for one, other in zip(*(each.groups() for each in numbers), strict=True):
        assert float(one) == pytest.approx(float(other), abs=4e-4)
    assert len(still(view)) < 60_000


def test_a_still_of_a_long_run_has_each_gap():
    """One NaN among 200,000 steps is a cross; the first of the last ones is named."""
    assert still(long_view()).count("×") == 0
    assert still(long_view(77_777)).count("×") == 1
    words = still_text(long_view(77_777, *range(123_457, 200_000)))
    assert "train/loss is NaN since step 123,458" in words
    assert "train/loss is NaN since step 200,000" in still_text(long_view(199_990, 199_999))
