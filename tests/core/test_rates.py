"""The rates that a run tells of, also while a step has others in the optimizer's groups."""

import threading
import time

import pytest
import torch
from digits_runs import wait_for
from small_runs import make
from torch import nn


class Telling(torch.optim.SGD):
    """Asks for the rates in the middle of each step."""

    def step(self, closure=None):
        self.told.append(self.trainer.rates())
        return super().step(closure)


@pytest.mark.parametrize(("tuned", "rates"), [({"lr_scale": 0.5}, [0.05, 0.1]),
                                              ({"lr": 0.3}, [0.3, 0.6]), ({}, [0.1, 0.2])])
def test_in_the_middle_of_a_step(tuned, rates):
    model = nn.Linear(2, 1)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.2}]
    optim = Telling(groups, lr=0.1)
    trainer = make(model, optim=optim, epochs=1)
    optim.trainer, optim.told = trainer, []
    trainer.tune(**tuned)
    trainer.fit()
    assert optim.told and optim.told == [pytest.approx(rates)] * len(optim.told)
    assert trainer.rates() == pytest.approx(rates)
    assert [group["lr"] for group in optim.param_groups] == [0.1, 0.2]


@pytest.mark.parametrize("base", [[0.0, 0.1, 0.2], [0.1, 0.0, 0.2], [0.0, 0.0, 0.1]])
def test_a_group_at_rate_zero_rests_also_at_a_rate_by_hand(base):
    """The others keep their ratio, to the first of them."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    groups = [{"params": [each], "lr": rate}
              for each, rate in zip(model.parameters(), base, strict=True)]
    trainer = make(model, optim=torch.optim.SGD(groups, lr=0.1), epochs=1)
    trainer.tune(lr=0.05)
    first = next(filter(None, base))
    assert trainer.rates() == pytest.approx([0.05 * rate / first for rate in base])


def test_from_another_thread():
    """A scale never counts twice, and never not at all."""
    trainer = make(nn.Linear(2, 1), epochs=200)
    trainer.tune(lr_scale=0.5)
    found, ended = set(), threading.Event()

    def ask():
        while not ended.is_set():
            found.add(trainer.rates()[0])
            time.sleep(0)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for(lambda: found)
    try:
        trainer.fit()
    finally:
        ended.set()
        asking.join()
    assert len(found) == 1
    assert found == {trainer.rates()[0]}


class Groups(list):
    """Parameter groups that a step changes just when somebody reads them."""

    meanwhile = None

    def __iter__(self):
        if self.meanwhile is not None:
            self.meanwhile, action = None, self.meanwhile
            action()
        return super().__iter__()


def test_a_step_that_begins_while_the_rates_are_read():
    trainer = make(nn.Linear(2, 1), optim=lambda p: torch.optim.SGD(p, 0.1), epochs=1)
    trainer.tune(lr_scale=0.5)
    rates, groups = trainer.runner.rates, Groups(trainer.optim.param_groups)

    def begin():  # what another thread does up to the middle of `EffectiveRates.step`
        rates.scheduled, rates.replaced = [0.1], rates.replaced + 1
        groups[0]["lr"] = 0.05

    groups.meanwhile = begin
    trainer.optim.param_groups = groups
    assert trainer.rates() == [0.05]
