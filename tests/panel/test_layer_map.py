"""The map of the layers: numbers against those by hand, rewinds, thinning, many layers, and the tab
that comes and goes with the hook."""

import numpy as np
import pytest
import torch
from feed_page import Page
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import Hook, LambdaHook, LayerStatsHook, SnapshotHook, Trainer
from trainer_nb.hooks.weight_stats import LARGEST, LOG_BINS, WeightHistory, log_edges
from trainer_nb.panel.looks import MOST_COLUMNS, MOST_LAYERS, look_at

PIXELS, LABELS = load_digits(return_X_y=True)
DATA = TensorDataset(torch.tensor(PIXELS[:160] / 16).float().view(-1, 1, 8, 8),
                     torch.tensor(LABELS[:160]))


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels):
        super().__init__()
        self.conv, self.norm = (nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                                nn.BatchNorm2d(channels))

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


def resnet(channels=8):
    """A small residual network for 8 x 8 pixels."""
    return nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), Block(channels), Block(channels),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def make(*hooks, model=None, **settings):
    """8 steps an epoch."""
    torch.manual_seed(0)
    settings = {"epochs": 2, "seed": 1, "optim": lambda p: torch.optim.AdamW(p, lr=0.01)} | settings
    return Trainer(resnet() if model is None else model,
                   train_dl=DataLoader(DATA, 20, shuffle=True), loss_fn=nn.CrossEntropyLoss(),
                   progress=False, hooks=hooks, device="cpu", **settings)  # fmt: skip


class ByHand(Hook):
    """The norms of each step, from the model itself; before all other hooks."""

    order = -100

    def __init__(self):
        self.found = {}

    def layers(self, model):
        """The modules with parameters of their own."""
        return {name: list(each.parameters(recurse=False)) for name, each in model.named_modules()
                if list(each.parameters(recurse=False))}

    def before_step(self, trainer):
        self.gradients = {name: torch.cat([p.grad.double().flatten() for p in own]).clone()
                          for name, own in self.layers(trainer.model).items()}
        self.before = {name: torch.cat([p.detach().double().flatten() for p in own]).clone()
                       for name, own in self.layers(trainer.model).items()}

    def after_step(self, trainer):
        after = {name: torch.cat([p.detach().double().flatten() for p in own]).clone()
                 for name, own in self.layers(trainer.model).items()}
        self.found[trainer.step_state.optimizer_step] = {
            name: (self.gradients[name], after[name], self.before[name]) for name in after}


def seen(trainer, quantity="gradient", text=""):
    """What the page draws: layers, steps and cells; and all else that it gets."""
    found, buffers = look_at(trainer.view, "layers", {"quantity": quantity, "text": text})
    cells = np.frombuffer(buffers[0], "<f4")
    return found["layers"], found["steps"], cells.reshape(
        len(found["layers"]), len(found["steps"])), found


def one(trainer, quantity, layer, step):
    """What it gets of one cell."""
    return look_at(trainer.view, "layer", {"quantity": quantity, "layer": layer, "step": step})[0]


@pytest.mark.parametrize("settings",
                         [{}, {"grad_clip": 0.01}, {"mixed_precision": "fp16"},
                          {"gradient_accumulation_steps": 2}])
def test_the_map_shows_the_norms_of_torch(settings):
    """Gradient before clipping and without a loss scale, weights after the step, update by the
    weights before it."""
    stats, hand = LayerStatsHook(every_steps=3), ByHand()
    trainer = make(stats, hand, **settings)
    trainer.fit()
    steps = [step for step in hand.found if step % 3 == 1]
    truth = {"gradient": lambda g, w, b: g.norm(), "weights": lambda g, w, b: w.norm(),
             "update/weight": lambda g, w, b: (w - b).norm() / b.norm()}
    for quantity, read in truth.items():
        layers, measured, cells, _ = seen(trainer, quantity)
        assert measured == steps and layers == list(hand.found[1])
        wanted = [[float(read(*hand.found[step][layer])) for step in steps] for layer in layers]
        assert np.allclose(cells, wanted, rtol=2e-4), quantity


def test_the_histogram_of_a_cell_counts_the_numbers():
    """That of the chosen layer and measurement, and the numbers beside it."""
    stats, hand = LayerStatsHook(every_steps=3), ByHand()
    trainer = make(stats, hand)
    trainer.fit()
    for quantity, which in (("gradient", 0), ("weights", 1)):
        found = one(trainer, quantity, "1.conv", 8)  # the nearest measurement is that of step 7
        assert (found["layer"], found["step"]) == ("1.conv", 7)
        values = hand.found[7]["1.conv"][which].abs().numpy()
        counts, _ = np.histogram(values, [*log_edges(), np.inf])
        assert np.allclose(found["shares"], counts / len(values), atol=1.5 / len(values))
        assert np.allclose(found["edges"], log_edges())
        assert found["numbers"]["weight norm"] == pytest.approx(
            hand.found[7]["1.conv"][1].norm().item(), rel=1e-4)
    layers, _, cells, _ = seen(trainer, "activation")
    assert "5" in layers and "1.conv" in layers
    assert cells[layers.index("1.conv"), 2] == pytest.approx(stats.series("1.conv").std[2])
    found = seen(trainer, "near zero")[3]
    assert found["range"] == [0.0, 1.0] and not found["log"]


@pytest.mark.parametrize("settings", [{}, {"mixed_precision": "fp16"}, {"grad_clip": 0.1}])
def test_the_training_does_not_feel_it(settings):
    """Bit for bit."""
    plain, watched = make(**settings), make(LayerStatsHook(every_steps=1), **settings)
    plain.fit()
    watched.fit()
    assert all(torch.equal(a, b)
               for a, b in zip(plain.model.state_dict().values(),
                               watched.model.state_dict().values(), strict=True))


def test_a_rewind_takes_columns_back():
    """And the ones after it are of the new branch."""
    trainer = make(LayerStatsHook(every_steps=2), SnapshotHook(every_steps=5, every_epochs=None))
    trainer.step(9)
    before = seen(trainer)
    assert before[1] == [1, 3, 5, 7, 9]
    trainer.rewind(5)
    assert seen(trainer)[1] == [1, 3, 5] and one(trainer, "gradient", "0", 9)["step"] == 5
    trainer.tune(lr=0.5)
    trainer.step(3)
    _, steps, cells, _ = seen(trainer)
    assert steps == [1, 3, 5, 7] and np.array_equal(cells[:, :3], before[2][:, :3])


def test_a_long_run_stays_small():
    """Memory is bounded by measurements and by numbers; the map by columns;
    the first and the last stay."""
    history = WeightHistory(most=10_000)
    names = tuple(f"layer_{n}" for n in range(300))
    for step in range(1, 2000):
        history.add(step, names, torch.full((300, 3 + 2 * LOG_BINS), float(step)))
    found, steps, values = history.table(0)
    assert sum(each.size for *_, each in history.fetch()) <= LARGEST
    assert steps[0] == 1 and steps[-1] == 1999 and len(steps) > 100 and (np.diff(steps) > 0).all()
    assert found == list(names) and (values == steps).all()
    stats = LayerStatsHook()
    stats.weight_history = history
    trainer = make(stats)
    layers, steps, _, found = seen(trainer)
    assert len(steps) <= MOST_COLUMNS and (steps[0], steps[-1]) == (1, 1999)
    assert len(layers) == 300 and found["hidden"] == 0


def test_of_very_many_layers_some_are_shown_and_a_text_finds_the_rest():
    """It says how many are not."""
    long = nn.ModuleDict({f"{'encoder_block_' * 6}{n}<b>": nn.Linear(64, 1)
                          for n in range(MOST_LAYERS + 50)})
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = long
        def forward(self, x):
            found = [each(x.flatten(1)) for each in self.layers.values()]
            return torch.cat(found[:10], 1) + sum(found[10:])
    stats = LayerStatsHook(every_steps=1)
    trainer = make(stats, model=Net(), max_steps=1, epochs=None)
    trainer.fit()
    layers, _, _, found = seen(trainer)
    assert len(layers) == MOST_LAYERS and found["hidden"] == 50
    layers, _, _, found = seen(trainer, text=" _449<B> ")
    assert len(layers) == 1 and found["hidden"] == 0
    assert one(trainer, "gradient", layers[0], 1)["layer"].endswith("_449<b>")
    assert seen(trainer, text="nothing <i>")[0] == []


def broken_gradient(when):
    """A hook that puts a NaN into a gradient at the positions for which `when` is true."""
    def spoil(trainer):
        if when(trainer.step_state):
            trainer.model[0].weight.grad[0] = float("nan")
    return LambdaHook(order=-5, before_step=spoil)


def test_numbers_that_are_not_finite():
    """A NaN is a cell of its own colour, and leaves the scale as it is;
    a layer without gradient has no cell."""
    stats = LayerStatsHook(every_steps=1)
    breaks = broken_gradient(lambda state: state.optimizer_step == 2)
    trainer = make(stats, breaks, max_steps=4, epochs=None, non_finite="skip")
    trainer.step(1)
    trainer.model[1].requires_grad_(False)
    trainer.step(1)
    stats.weight_history.add(3, ("0", "5"), torch.tensor([[float("nan")] * 83, [1.0] * 83]))
    layers, _, cells, found = seen(trainer)
    assert np.isnan(cells[layers.index("0"), 2])
    assert (cells[layers.index("1.conv")] >= 0).tolist() == [True, False, False]
    assert np.isfinite(found["range"]).all()
    assert one(trainer, "gradient", "0", 3)["numbers"]["gradient norm"] != 1


def test_a_skipped_step_is_not_measured():
    """Gradients that were not finite made no step: no column."""
    stats = LayerStatsHook(every_steps=1)
    breaks = broken_gradient(lambda state: state.batch_idx == 3)
    trainer = make(stats, breaks, non_finite="skip", epochs=1)
    trainer.fit()
    steps = trainer.view.layer_stats.weight_history.table(0)[1].tolist()
    assert steps == list(range(1, trainer.step_state.optimizer_step + 1)) and len(steps) == 7
    assert np.isfinite(stats.weight_history.table(0)[2]).all()


def test_the_tab_is_there_where_the_hook_is():
    """It comes with the hook, and goes with it; what it has measured is new to an open one."""
    trainer, stats = make(), LayerStatsHook(every_steps=1, weights=False)
    page = Page(trainer.feed).hello().open("looks")
    assert "layers" not in page.view["run"]["panes"] and page.view["looks"] == {}
    trainer.hooks.add(stats)
    trainer.step(1)
    assert "layers" in page.view["run"]["panes"]
    before = page.view["looks"]["layers"]
    trainer.step(1)
    assert page.view["looks"]["layers"] != before
    assert seen(trainer)[0] == [] and seen(trainer, "activation")[1] == [1, 2]
    trainer.hooks.remove(stats)
    trainer.step(1)
    assert "layers" not in page.view["run"]["panes"] and page.view["looks"] == {}


@pytest.mark.parametrize("values", [
    {}, {"quantity": "gradient", "layer": "0"}, {"quantity": "gradient", "layer": 0, "step": 1},
    {"quantity": "gradient", "layer": "0", "step": "1"},
    {"quantity": "none", "layer": "0", "step": 1}])
def test_a_page_may_send_anything(values):
    """A cell that is none is refused; a layer that is none has no numbers."""
    trainer = make(LayerStatsHook(every_steps=1))
    trainer.step(1)
    page = Page(trainer.feed).hello()
    page.own.hear({"ask": "look", "id": "1", "what": "layer", "values": values})
    assert page.answers[-1]["status"] == "refused"
    found = one(trainer, "gradient", "none", 1)
    assert found["numbers"] == {} and "shares" not in found
