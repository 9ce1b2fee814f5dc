"""The panel, the picture and the view of a run with several optimizers:
each has its losses, its rate and its group of controls."""

import torch
from live_page import later

from trainer_nb import Trainer
from trainer_nb.panel.dashboard import Numbers
from trainer_nb.panel.lr_pane import LRPane
from trainer_nb.panel.plots import Curves, colour, figure
from trainer_nb.panel.still import still
from trainer_nb.panel.tunables import groups


def make(**settings):
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"d": torch.nn.Linear(2, 1), "g": torch.nn.Linear(2, 1)})
    steps = {name: (
        lambda batch, trainer, name=name: {"loss": trainer.model[name](batch).square().mean(),
                                           "accuracy": 0.5}) for name in model}
    optims = {"d": torch.optim.SGD(model["d"].parameters(), lr=0.1),
              "g": torch.optim.SGD(model["g"].parameters(), lr=0.02)}
    return Trainer(model, steps, list(torch.randn(6, 4, 2)), optim=optims, epochs=2, progress=False,
                   seed=1, **settings)


def fitted(**settings):
    trainer = make(**settings)
    trainer.fit()
    curves = Curves(trainer.view)
    curves.update()
    return trainer, curves


def test_each_loss_is_drawn_once_and_has_its_own_colour():
    trainer, curves = fitted()
    assert curves.losses() == ["train/d/loss", "train/g/loss"]
    names = list(curves.of)
    assert colour("train/d/loss", names) == colour("lr.d",
                                                   names) != colour(
                                                       "train/g/loss",
                                                       names) == colour("lr.g", names)
    drawn = [trace.name for trace in figure(trainer.view).data if trace.xaxis == "x"]
    assert [name for name in drawn if name != "by hand"] == ["raw", "d", "raw", "g"]


def test_rates_norms_and_metrics_share_a_plot_each():
    _, curves = fitted(grad_clip={"d": 1.0})
    shown = curves.groups()
    assert shown["lr"] == ["lr.d", "lr.g"] and shown["grad_norm"] == ["grad_norm.d"]
    assert shown["accuracy"] == ["train/d/accuracy", "train/g/accuracy"]


def test_the_head_has_a_line_for_each():
    trainer, curves = fitted()
    page = Numbers(trainer.view, curves).html(trainer.view.position)
    for word in ("d 0.1", "g 2.00e-2", "d –", "g –"):
        assert word in page, page


def test_the_picture_has_a_row_for_each_loss_and_rate():
    trainer, _ = fitted()
    picture = still(trainer.view)
    for word in ("train/d/loss", "train/g/loss", "lr.d", "lr.g"):
        assert picture.count(f"<title>{word}<") == 1, word
    assert ">train/loss<" not in picture


def test_a_loss_that_is_not_finite_is_named_by_its_optimizer():
    trainer = make(non_finite=None)
    trainer.step(2)
    with torch.no_grad():
        trainer.model["g"].weight.fill_(float("nan"))
    trainer.fit()
    curves = Curves(trainer.view)
    curves.update()
    assert curves.invalid_weights() == ("train/g/loss is NaN since step 3", 3)
    assert "train/g/loss is NaN since step 3" in still(trainer.view)


def test_the_controls_stand_in_a_group_for_each_and_show_the_rate_in_force():
    trainer = make(sched={"d": "cosine"})
    trainer.step(3)
    found = {title: [t.name for t in members] for title, members in groups(trainer.view).items()
             if members}
    assert list(found)[:3] == ["Optimizer d", "Optimizer g", "Loop"]
    assert found["Optimizer d"] == ["lr.d", "lr_scale.d", "weight_decay.d", "grad_clip.d",
                                    "gradient_accumulation_steps.d"]
    tunables = {t.name: t for t in trainer.view.tunables}
    assert tunables["lr.d"].value == trainer.optimizers["d"].rate != 0.1 and tunables["lr.d"].moves
    assert tunables["lr.g"].value == 0.02 and not tunables["lr.g"].moves


def test_the_rate_finder_asks_for_which_and_says_so():
    trainer = make()
    trainer.step(1)
    pane = LRPane(trainer.view)
    assert pane.settings.optimizer.options == ("d", "g")
    pane.settings.optimizer.value = "g"
    pane.settings.boxes["num_steps"].value = "12"
    pane.find.click()
    assert later(lambda: trainer.lr_search is not None and trainer.lr_search.sweep.ended)
    pane.refresh()
    assert trainer.lr_search.sweep.name == "lr.g" and "Optimizer g: " in pane.words.value
    pane._use(0.003)
    trainer.step(1)
    assert trainer.optimizers["g"].rate == 0.003 and trainer.optimizers["d"].rate == 0.1


def test_a_run_with_one_optimizer_is_drawn_as_before():
    model = torch.nn.Linear(2, 1)
    trainer = Trainer(model, train_dl=[(x, x[:, :1]) for x in torch.randn(6, 4, 2)],
                      loss_fn=torch.nn.MSELoss(), epochs=1, progress=False)
    trainer.fit()
    curves = Curves(trainer.view)
    curves.update()
    assert curves.losses() == ["train/loss"] and curves.groups()["lr"] == ["lr"]
    assert list(groups(trainer.view))[:2] == ["Optimizer", "Loop"]
    assert LRPane(trainer.view).settings.values().keys() == {"start_lr", "end_lr", "num_steps"}
