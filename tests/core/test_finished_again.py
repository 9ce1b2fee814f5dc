"""`fit()` of a run that is finished: nothing is trained, and a line says how it goes on."""

import pytest
import torch
from torch import nn

from trainer_nb import Trainer

X = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
DATA = [(X[:8], X[:8, :1]), (X[8:], X[8:, :1])]


def make(**settings):
    """Two batches an epoch."""
    torch.manual_seed(0)
    return Trainer(nn.Linear(3, 1), train_dl=DATA, loss_fn=nn.MSELoss(), device="cpu",
                   **{"progress": "lines", **settings})


@pytest.mark.parametrize("settings, words", [
    ({"epochs": 30}, "Finished at 30 epochs: fit(epochs=40) trains on"),
    ({"epochs": 1}, "Finished at 1 epoch: fit(epochs=2) trains on"),
    ({"max_steps": 9}, "Finished at 9 steps: fit(max_steps=12) trains on")])
def test_a_line_says_how_it_goes_on(settings, words, capsys):
    trainer = make(**settings)
    first = trainer.fit()
    capsys.readouterr()
    before = trainer.model.weight.clone()
    again = trainer.fit()
    assert capsys.readouterr().out.splitlines() == [words]
    assert (again.status, again.steps) == (first.status, first.steps)
    assert torch.equal(before, trainer.model.weight)
    call = words.partition("fit(")[2].partition(")")[0]
    name, _, total = call.partition("=")
    assert trainer.fit(**{name: int(total)}).steps > first.steps


def test_a_run_that_shows_nothing_says_nothing(capsys):
    trainer = make(epochs=1, progress=False)
    trainer.fit()
    trainer.fit()
    assert not capsys.readouterr().out


@pytest.mark.parametrize("total, words", [
    ({"epochs": 2},
     "Finished at 3 epochs; epochs=2 is a total of the run: fit(epochs=4) trains on"),
    ({"max_steps": 5},
     "Finished at 6 steps; max_steps=5 is a total of the run: fit(max_steps=8) trains on")])
def test_a_total_that_is_behind_the_run_is_called_one(total, words, capsys):
    """Who asks a finished run for two epochs more may give 2; the line has the number that does."""
    trainer = make(epochs=3)
    trainer.fit()
    capsys.readouterr()
    trainer.fit(**total)
    assert capsys.readouterr().out.splitlines() == [words]
    call = words.partition("fit(")[2].partition(")")[0]
    name, _, more = call.partition("=")
    assert trainer.fit(**{name: int(more)}).steps == int(more) * (2 if name == "epochs" else 1)


@pytest.mark.parametrize("steps, total, more", [
    (5, {"epochs": 2}, "epochs=4"), (5, {"max_steps": 4}, "max_steps=6"), (5, {"epochs": 3}, None),
    (4, {"epochs": 2}, None), (5, {"max_steps": 5}, None)])
def test_a_run_that_goes_on_warns_of_a_total_behind_it(steps, total, more, recwarn):
    """One that is in epoch 3 ends with that epoch, whatever smaller number is given."""
    trainer = make(epochs=30)
    trainer.step(steps)
    trainer.fit(**total)
    found = [str(each.message) for each in recwarn if "the total of the whole run" in
             str(each.message)]
    assert [each.rpartition(": ")[2] for each in found] == ([more] if more else [])
