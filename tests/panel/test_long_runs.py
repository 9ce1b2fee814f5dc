"""Curves and stills of long runs say the same as if each point were looked at."""

import re

import numpy as np
import pytest
from test_static_picture import make_view

from trainer_nb.core.control import Series
from trainer_nb.support.long_array import LongArray
from trainer_nb.panel import plots
from trainer_nb.panel.plots import Curve
from trainer_nb.panel.still import MOST, still, still_text
from trainer_nb.panel.table_pane import means_between


def losses(count, *bad):
    """A falling loss with noise; not finite at these points."""
    values = np.exp(-np.arange(count) / count * 3)
    values += np.random.default_rng(1).normal(0, 0.05, count)
    values[list(bad)] = np.nan
    return values.astype(np.float32).astype(float)


def curve_of(values, bunch=997):
    """A curve that has come in bunches."""
    curve, at = Curve(), np.arange(len(values))
    for start in range(0, len(values), bunch):
        part = slice(start, start + bunch)
        curve.extend(Series(at[part] + 1, at[part] / 100, at[part], at[part] * 0.5, values[part]))
    return curve


@pytest.fixture
def short(monkeypatch):
    """Most points are in the file, and a picture looks at the extremes of groups."""
    monkeypatch.setattr(LongArray, "BLOCK", 500)
    monkeypatch.setattr(plots, "DENSE", 1_000)


@pytest.mark.parametrize("bad", [(), range(40), (5_000, 5_001, 7_777), range(9_900, 10_000)])
def test_a_curve_of_groups_has_the_peaks_and_ends_of_a_dense_one(short, bad):
    """Whole and zoomed in; the smoothed line is the same to the last bit."""
    values = losses(10_000, *bad)
    values[[3_333, 8_888]] = 9.0, -9.0
    curve = curve_of(values)
    good = np.flatnonzero(np.isfinite(values))
    for span, first, last in [(None, 0, 9_999), ((3_000, 6_500), 2_999, 6_499)]:
        x, y = curve.raw("step", 200, span)
        seen = (x - 1).astype(int)
        assert (np.diff(x) > 0).all() and 150 < len(x) < 420
        np.testing.assert_array_equal(y, values[seen].astype(np.float32))
        inside = good[(good >= first) & (good <= last)]
        assert {inside[0], inside[-1], 3_333} <= set(seen)
        if span is None:
            assert 8_888 in seen
    plots.DENSE = 10**9
    dense = curve_of(values)
    for window in (1, 33, 1_000):
        for one, other in zip(curve.smoothed("step", window), dense.smoothed("step", window)):
            np.testing.assert_array_equal(one, other)


def test_the_lowest_and_the_highest_point_are_found(short):
    """In a whole group, in the last points, among values that are not finite."""
    for place in (0, 70, 6_000, 9_984, 9_999):
        values = losses(10_000, *range(100, 400))
        values[place] = -5.0
        assert curve_of(values).extreme() == place
        values[place] = 50.0
        assert curve_of(values).extreme(low=False) == place
    nothing = curve_of(np.full(3_000, np.nan))
    assert nothing.extreme() is None and len(nothing.raw("step")[0]) < 700


@pytest.mark.parametrize("bad", [(), (0,), range(95, 205), (199, 200), range(2_950, 3_000)])
def test_means_between_points_are_those_of_the_values(short, bad):
    """Of the finite ones; NaN where there are none."""
    values, ends = losses(3_000, *bad), np.array([0, 100, 200, 201, 2_960, 3_000])
    means = means_between(curve_of(values), ends)  # step 100 is the hundredth point
    for start, end, mean in zip([0, *ends], ends, means, strict=False):
        part = values[start:end]
        part = part[np.isfinite(part)]
        wanted = part.mean() if len(part) else np.nan
        np.testing.assert_allclose(mean, wanted, rtol=1e-9)


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
