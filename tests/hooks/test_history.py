"""The records of a run in memory: points share their places, and each is what was written."""

import threading
import time
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_nb import Trainer
from trainer_nb.core.control import Series, ThinSeries
from trainer_nb.support.long_array import LongArray
from trainer_nb.hooks.recorder import History

NAMES = ("train/loss", "lr", "time/step", "grad_norm", "valid/loss")


def places(first, count):
    """Steps, epochs, samples and seconds of so many steps."""
    steps = np.arange(first, first + count)
    return steps, steps / 10, steps * 32, steps * 0.25


def shared(history):
    """How many sets of places the records have."""
    return len({id(each.places) for each in history._columns.values()})


def as_lists(history):
    """What a history has, as plain lists."""
    return {name: [column.tolist() for column in vars(history.series(name)).values()]
            for name in history.names}


append = st.tuples(st.just("append"), st.sets(st.sampled_from(NAMES), min_size=1),
                   st.integers(1, 5), st.integers(0, 2))
cut = st.tuples(st.just("cut"), st.integers(0, 12))
halve = st.tuples(st.just("halve"), st.sampled_from(NAMES))
saved = st.tuples(st.just("saved"))


class Plain:
    """The same as a history, one list of points a record."""

    def __init__(self):
        self.of, self.step = {}, 1

    def append(self, history, names, count, late):
        """The same steps for some records; the last ones miss the first steps."""
        for order, name in enumerate(sorted(names)):
            skip = min(late, count - 1) if order else 0
            columns = [*places(self.step + skip, count - skip),
                       np.arange(count - skip) + len(name)]
            history.extend(name, *columns)
            own = self.of.setdefault(name, [[], [], [], [], []])
            for known, new in zip(own, columns, strict=True):
                known += new.tolist()
        self.step += count

    def cut(self, history, step):
        """A rewind to a step."""
        counts = {name: sum(each <= step for each in own[0]) for name, own in self.of.items()}
        history.cut(counts, 1, step, self.step)
        self.of = {name: [column[: counts[name]] for column in own]
                   for name, own in self.of.items()}
        self.step = step + 1

    def halve(self, history, name):
        """Every second point of a record."""
        if self.of.get(name, [[]])[0]:
            history.halve(name)
            self.of[name] = [column[::2] for column in self.of[name]]

    def saved(self, history):
        """Saved and loaded."""
        history.load_state_dict(history.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("block", [3, LongArray.BLOCK])
@given(acts=st.lists(st.one_of(append, append, cut, halve, saved), max_size=12))
@settings(deadline=None)
def test_each_record_is_what_was_written(block, acts):
    """Whatever the order in which records come together, part, and are cut; also from the file."""
    history, plain = History(), Plain()
    with patch.object(LongArray, "BLOCK", block):
        for name, *rest in acts:
            getattr(plain, name)(history, *rest)
            wanted = {name: own for name, own in plain.of.items() if own[0]}
            assert as_lists(history) == wanted
            assert {name: series.values.tolist() for name, series in history.since({}).items()} == {
                name: own[-1] for name, own in wanted.items()}


def recorded(values, start=1):
    """A history with these losses, a rate and an evaluation each ten steps."""
    history, count = History(), len(values)
    history.extend("train/loss", *places(start, count), values)
    history.extend("lr", *places(start, count), np.full(count, 0.1))
    steps, *others = (column[9::10] for column in places(start, count))
    history.extend("valid/loss", steps, *others, np.full(len(steps), 0.5))
    return history


@pytest.mark.parametrize("bad", [(), (0,), (4_321,), (9_999,), (10, 11, 12, 7_000, 7_001),
                                 range(10_000), range(5_001, 10_000)])
def test_few_points_stand_for_all(bad):
    """Of 10,000 points at most 300: exact means, the last one, and where values are not finite."""
    values = np.random.default_rng(0).normal(size=10_000)
    values[list(bad)] = np.nan
    history = recorded(values)
    thin = history.since({}, most=300)
    series, full = thin["train/loss"], history.series("train/loss")
    assert isinstance(series, ThinSeries) and len(series) <= 300 + 2 * len(bad)
    kept = series.steps - 1
    assert (np.diff(kept) > 0).all() and kept[-1] == 9_999
    for name in ("epochs", "samples", "seconds", "values"):
        np.testing.assert_array_equal(getattr(series, name), getattr(full, name)[kept])
    good, begins = np.isfinite(values), np.append(0, kept[:-1] + 1)
    for begin, end, mean in zip(begins, kept + 1, series.means, strict=True):
        part = values[begin:end][good[begin:end]]
        np.testing.assert_allclose(mean, part.mean() if len(part) else np.nan, atol=1e-12)
    starts = np.flatnonzero(~good & np.r_[True, good[:-1]])
    assert set(starts) <= set(kept)  # where a stretch ends
    assert len(thin["lr"]) < 400 and len(thin["valid/loss"]) == 1_000  # evaluations: all
    assert thin["valid/loss"].means is thin["valid/loss"].values
    few = history.since({"train/loss": 9_900}, most=300)["train/loss"]
    assert type(few) is Series and few.steps.tolist() == list(range(9_901, 10_001))


def test_a_record_that_misses_a_step_has_places_of_its_own():
    """Also where its next point comes with the same arrays as that of another record."""
    history = History()
    for step in (1, 2, 3):
        where = places(step, 1)
        history.extend("train/loss", *where, [0.5])
        if step != 2:
            history.extend("lr", *where, [0.1])
    assert history.series("lr").steps.tolist() == [1, 3] and shared(history) == 2


def test_records_of_the_same_steps_share_their_places():
    """72 bytes a step with five records, not 200; also when loaded, and after a rewind."""
    history = History()
    names = ("train/loss", "lr", "time/step", "time/data", "samples_per_second")
    for first in range(1, 10_001, 250):
        for name in names:
            history.extend(name, *places(first, 250), np.full(250, 0.5))
    state = history.state_dict()
    stretches = {id(column) for points in state["points"].values() for column in points[:4]}
    assert shared(history) == 1 and len(stretches) == 4
    loaded = History()
    loaded.load_state_dict(state)
    assert shared(loaded) == 1 and as_lists(loaded) == as_lists(history)
    history.cut(dict.fromkeys(names, 5_000), 1, 5_000, 10_000)
    for name in names:
        history.extend(name, *places(5_001, 250), np.full(250, 0.25))
    own = history._columns["lr"]
    assert shared(history) == 1 and own.places.count == len(own) == 5_250


def test_a_record_that_goes_its_own_way_keeps_its_points():
    """Of the gradient's norm one step is missing: from there on it has places of its own."""
    history = History()
    for name in ("train/loss", "grad_norm"):
        history.extend(name, *places(1, 4), [1.0, 2.0, 3.0, 4.0])
    history.extend("train/loss", *places(5, 4), [5.0] * 4)
    history.extend("grad_norm", *places(6, 3), [6.0] * 3)
    assert history.steps("grad_norm").tolist() == [1, 2, 3, 4, 6, 7, 8]
    assert history.steps("train/loss").tolist() == list(range(1, 9)) and shared(history) == 2


def test_what_a_reader_changes_stays_with_the_reader():
    """Arrays of `series` are copies."""
    history = History()
    for name in ("train/loss", "lr"):
        history.extend(name, *places(1, 3), [1.0, 2.0, 3.0])
    series = history.series("train/loss")
    series.steps[:] = 0
    assert history.steps("train/loss").tolist() == history.steps("lr").tolist() == [1, 2, 3]


def test_a_reader_in_another_thread_sees_whole_points():
    """All columns of a record have one length while another thread writes."""
    history, found, ended = History(), [], threading.Event()

    def read():
        while not ended.is_set():
            for series in history.since({}).values():
                found.append({len(column) for column in vars(series).values()})

    reader = threading.Thread(target=read)
    reader.start()
    first, end = 1, time.monotonic() + 300
    while len(found) <= 100 and time.monotonic() < end:
        for name in NAMES[:3]:
            history.extend(name, *places(first, 100), np.zeros(100))
        first += 100
        time.sleep(0)  # the reader's turn
    ended.set()
    reader.join()
    assert len(found) > 100 and all(len(each) == 1 for each in found)


def test_a_record_of_one_backward_pass_is_the_value_itself():
    """0.1 * 3 / 3 is not 0.1; a name that a step leaves out has no point there."""
    x = torch.randn(12, 2)

    def step(batch, trainer):
        loss = trainer.model(batch).square().mean()
        more = {"odd": loss * 0 + 2} if trainer.step_state.batch_idx % 2 else {}
        return {"loss": loss, "tenth": 0.1, "of": {"loss": loss, "count": 3}} | more

    trainer = Trainer(torch.nn.Linear(2, 1), train_dl=torch.utils.data.DataLoader(x, 3),
                      train_step=step, optim=lambda p: torch.optim.SGD(p, lr=0.1), epochs=1,
                      device="cpu", progress=False)
    trainer.fit()
    history = trainer.history
    assert history["train/tenth"].tolist() == [0.1] * 4
    assert history["train/of/loss"].tolist() == history["train/loss"].tolist()
    assert history["train/of/count"].tolist() == [3.0] * 4
    odd = history.series("train/odd")
    assert odd.values.tolist() == [2.0] * 2 and odd.steps.tolist() == [2, 4]
