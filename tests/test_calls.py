"""Calls of Python and of its built-in functions in a step: a figure without noise, beside that of the loop by hand."""

import collections
import sys

import pytest
import torch
from benchmarks.peers import PEERS, train
from benchmarks.work import WORKS

SHORT, LONG = 80, 280  # steps; the difference leaves out what a run costs once


class Batches:
    """The first so many batches of a work."""

    def __init__(self, work, count):
        self.batches = work.batches[:count]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


def counted(function):
    """How many calls a function makes."""
    found = collections.Counter()

    def note(frame, event, argument):
        found[event] += 1

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found["call"] + found["c_call"]


def by_hand(work):
    """Calls a batch of the loop by hand."""
    block = work.by_hand()
    block(work.batches[:20])
    few, many = (counted(lambda n=n: block(iter(work.batches[:n]))) for n in (SHORT, LONG))
    return (many - few) / (LONG - SHORT)


def of_trainer(work):
    """Calls a batch of a run."""
    train("trainer_nb", work, Batches(work, 8))  # what is imported at first use is no part of a step
    few, many = (counted(lambda n=n: train("trainer_nb", work, Batches(work, n))) for n in (SHORT, LONG))
    return (many - few) / (LONG - SHORT)


@pytest.mark.parametrize(("name", "fewer"), [("A tiny", 50), ("A tiny, recorder, progress, hooks", 32), ("D tiny", 42)])
def test_a_step_makes_fewer_calls_than_the_loop_by_hand(name, fewer):
    """Nothing is looked up, sorted or formatted in a step that could be done once, and torch's wrapper of the step is left out."""
    hand, own = by_hand(WORKS[name]), of_trainer(WORKS[name])
    assert own <= hand - fewer, (own, hand)


def test_with_everything_on_it_makes_fewer():
    """Accumulation, bf16, clipping and the average: against the textbook loop, and in all."""
    work = WORKS["C tiny"]
    hand, own = by_hand(work), of_trainer(work)
    assert own <= 0.5 * hand and own <= 130, (own, hand)


@pytest.mark.parametrize("name", [name for name in WORKS if "tiny" in name])
def test_the_benchmarks_compare_equal_work(name):
    """Every run ends with the weights of the loop by hand, bit for bit."""
    torch.set_num_threads(1)
    work = WORKS[name]
    block = work.by_hand()
    block(iter(work.batches[:40]))
    for peer in ("raw", "trainer_nb", "trainer_nb_default"):
        model = train(peer, work, Batches(work, 40)) if peer != "raw" else block.model
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), block.model.parameters())), peer
    assert set(PEERS) >= {"raw", "trainer_nb", "ignite", "accelerate", "lightning", "fastai"}
