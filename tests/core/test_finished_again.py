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
