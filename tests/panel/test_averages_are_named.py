"""A validation loss that is one of an average of the weights says so: in the head, in the legend of
the curves, in the picture that stays and on the page; one of the weights themselves does not."""

import re

import pytest
import schedulefree
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import EMAHook, SamplesHook, Trainer, attach
from trainer_nb.panel.dashboard import Dashboard
from trainer_nb.panel.data_pane import evaluation_words
from trainer_nb.panel.plots import Curves, traces
from trainer_nb.panel.still import still
from trainer_nb.panel.view import LocalRunView
from trainer_nb.remote.live_page import Pages

X = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))


def make(tmp_path, optim=torch.optim.SGD, **settings):
    """A run of two epochs whose records are in files, too."""
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), 8)
    trainer = Trainer(nn.Linear(3, 1), train_dl=loader, valid_dl=loader, loss_fn=nn.MSELoss(),
                      optim=lambda parameters: optim(parameters, lr=0.01), device="cpu", epochs=2,
                      progress=False, workspace=tmp_path, **settings)
    trainer.fit()
    return trainer


def shown(view, trainer):
    """What a person reads of the validation loss, in several places."""
    panel = Dashboard(view)
    curves = Curves(view)
    curves.update()
    names = [each.get("name") for each in traces(curves, {}, "step", 5)]
    words = re.sub("<[^>]*>", " ", still(view))
    legend = words[:words.index("metric")] if "metric" in words else words
    page = Pages(trainer.workspace).read(False)["run"]
    return {"head": "average, step 8" in panel.head.widget.value,
            "curves": "valid (average)" in names, "picture": "valid (average)" in legend,
            "page": page["averaged"] == ["valid"]}


AVERAGES = {"ema=": {"ema": 0.9}, "hook": {"hooks": [EMAHook(0.9)]},
            "schedule-free": {"optim": schedulefree.SGDScheduleFree}}
OTHERS = {"none": {}, "off": {"hooks": [EMAHook(0.9)]}}


@pytest.mark.parametrize("settings", AVERAGES.values(), ids=AVERAGES)
def test_it_says_that_it_is_one_of_the_average(settings, tmp_path):
    trainer = make(tmp_path, **settings)
    for view in (LocalRunView(trainer), attach(trainer.records_of_run.folder.path).view):
        found = shown(view, trainer)
        assert all(found.values()), found
    trainer.close()


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_one_of_the_weights_does_not(settings, tmp_path):
    for hook in settings.get("hooks", ()):
        hook.enabled = False
    trainer = make(tmp_path, **settings)
    assert not any(shown(LocalRunView(trainer), trainer).values())
    trainer.close()


def test_an_epoch_is_counted_from_one(tmp_path):
    samples = SamplesHook(worst=1)
    trainer = make(tmp_path, hooks=[samples])
    assert "epoch 2, step 8" in repr(trainer)
    words = [evaluation_words(each, 0, 1) for each in samples.evaluations]
    assert ["epoch 1 ·" in words[0], "epoch 2 ·" in words[-1]] == [True, True]
    other = Trainer(nn.Linear(3, 1), train_dl=[(X, X[:, :1])], loss_fn=nn.MSELoss(), epochs=3,
                    device="cpu", progress=False)
    assert "epoch 1, step 0" in repr(other)
