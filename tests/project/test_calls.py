"""Calls of Python and of its built-in functions in a step:
a figure without noise, beside that of the loop by hand."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import trainer_nb
from benchmarks.peers import PEERS, train
from benchmarks.work import WORKS
from trainer_nb import Trainer

SHORT, LONG = 80, 280  # steps; the difference leaves out what a run costs once


class Batches:
    """The first n batches of a work."""

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
    # what is imported at first use is not a part of a step
    train("trainer_nb", work, Batches(work, 8))
    few, many = (counted(lambda n=n: train("trainer_nb", work, Batches(work, n)))
                 for n in (SHORT, LONG))
    return (many - few) / (LONG - SHORT)


@pytest.mark.parametrize(("name", "fewer"),
                         [("A tiny", 50), ("A tiny, recorder, progress, hooks", 32),
                          ("D tiny", 42)])
def test_a_step_makes_fewer_calls_than_the_loop_by_hand(name, fewer):
    """Nothing is looked up, sorted or formatted in a step that could be done once, and torch's
    wrapper of the step is left out."""
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
        assert all(torch.equal(a, b)
                   for a, b in zip(model.parameters(), block.model.parameters())), peer
    assert set(PEERS) >= {"raw", "trainer_nb", "ignite", "accelerate", "lightning", "fastai"}


def small(steps, **settings):
    """A run of that many steps, for counting."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    data = [(torch.randn(16, 16), torch.randint(0, 4, (16,)))] * steps
    return Trainer(model, train_dl=data, loss_fn=torch.nn.CrossEntropyLoss(),
                   optim=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                   epochs=1, device="cpu", progress=False, **settings)


def own_calls(function):
    """Calls of this package's functions, and how often the class whose code runs changes (a
    function outside of a class: its module)."""
    package, places, found = trainer_nb.__path__[0], [], collections.Counter()

    def place(code):
        name = (code.co_qualname.split(".<locals>")[0]
                if hasattr(code, "co_qualname") else code.co_name)
        return code.co_filename, name.rpartition(".")[0]

    def note(frame, event, argument):
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(package):
            return
        before = places[-1] if places else None
        if event == "call":
            places.append(place(frame.f_code))
            found["calls"] += 1
        else:
            places.pop()
        found["changes"] += bool(places) and before is not None and places[-1] != before

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


SETTINGS = {"nothing": {"record": False, "non_finite": None}, "defaults": {},
            "clip": {"grad_clip": 1.0}, "accumulation": {"gradient_accumulation_steps": 8}}


def main():
    """Calls a batch under each of the settings, as JSON."""
    found = {}
    for name, settings in SETTINGS.items():
        small(8, **settings).fit()
        # twice a second a run looks up: the fewest of some tries are those without it, on a busy
        # machine too
        few, many = (min(counted(lambda n=n: small(n, **settings).fit()) for _ in range(3))
                     for n in (SHORT, LONG))
        found[name] = (many - few) / (LONG - SHORT)
    few, many = ([own_calls(lambda: small(n).fit()) for _ in range(8)] for n in (SHORT, LONG))
    for kind in ("calls", "changes"):
        found[kind] = (min(each[kind]
                           for each in many) - min(each[kind] for each in few)) / (LONG - SHORT)
    print(json.dumps(found))


@pytest.fixture(scope="module")
def calls():
    """In a process of its own: what other tests have imported and switched on makes further calls
    in torch."""
    root = Path(trainer_nb.__path__[0]).parent
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=place,
                          timeout=600, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("name", "most"),
                         [("nothing", 154), ("defaults", 163), ("clip", 182), ("accumulation", 78)])
def test_the_calls_of_a_step_do_not_grow(calls, name, most):
    """What is built beside the step, several optimizers say, is not paid for by a run that does not
    use it."""
    assert calls[name] <= most


@pytest.mark.parametrize(("kind", "most"), [("calls", 24.5), ("changes", 38.5)])
def test_a_step_goes_through_few_rooms(calls, kind, most):
    """Functions of our own in a step with the defaults, and how often the class changes between
    them; half a one is what an epoch costs."""
    assert calls[kind] <= most


def test_a_change_by_hand_takes_few_calls_of_our_own():
    """The table of tunables is not built again for it."""
    trainer = small(20)
    trainer.step(3)
    trainer.tune(lr=0.1)
    package, own = trainer_nb.__path__[0], []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            own.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        trainer.tune(lr=0.2)
    finally:
        sys.setprofile(None)
    assert len(own) <= 60, own


if __name__ == "__main__":
    main()
