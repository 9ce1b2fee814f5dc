"""The map of the layers: numbers against those by hand, rewinds, thinning, long names, and the tab
that comes and goes with the hook."""

import re

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import Hook, LambdaHook, LayerStatsHook, SnapshotHook, Trainer
from trainer_nb.hooks.weight_stats import LARGEST, LOG_BINS, WeightHistory, log_edges
from trainer_nb.panel.layers_pane import LayersPane, histogram
from trainer_nb.panel.looks import MOST_COLUMNS, MOST_LAYERS

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


def cells(pane):
    """What the page draws: rows and columns."""
    return np.frombuffer(pane.map.cells,
                         np.float32).reshape(len(pane.map.rows), len(pane.map.columns))


def choose(pane, layer, step):
    """As the page sends it."""
    pane._on_cell(pane.map, {"layer": layer, "step": step}, [])


@pytest.mark.parametrize("settings",
                         [{}, {"grad_clip": 0.01}, {"mixed_precision": "fp16"},
                          {"gradient_accumulation_steps": 2}])
def test_the_map_shows_the_norms_of_torch(settings):
    """Gradient before clipping and without a loss scale, weights after the step, update by the
    weights before it."""
    stats, hand = LayerStatsHook(every_steps=3), ByHand()
    trainer = make(stats, hand, **settings)
    trainer.fit()
    pane = LayersPane(trainer.view)
    steps = [step for step in hand.found if step % 3 == 1]
    assert pane.map.columns == steps and pane.map.rows == list(hand.found[1])
    truth = {"gradient": lambda g, w, b: g.norm(), "weights": lambda g, w, b: w.norm(),
             "update/weight": lambda g, w, b: (w - b).norm() / b.norm()}
    for quantity, read in truth.items():
        pane.quantity.value = quantity
        wanted = [[float(read(*hand.found[step][layer])) for step in steps]
                  for layer in pane.map.rows]
        assert np.allclose(cells(pane), wanted, rtol=2e-4), quantity


def test_the_histogram_of_a_cell_counts_the_numbers():
    """That of the chosen layer and measurement: gradients, weights, and activations beside them;
    the table has the same numbers."""
    stats, hand = LayerStatsHook(every_steps=3), ByHand()
    trainer = make(stats, hand)
    trainer.fit()
    pane = LayersPane(trainer.view)
    for quantity, which in (("gradient", 0), ("weights", 1)):
        pane.quantity.value = quantity
        choose(pane, "1.conv", 8)  # the nearest measurement is that of step 7
        assert pane.map.chosen == [1, 2] and "1.conv · step 7<" in pane.details.value
        values = hand.found[7]["1.conv"][which].abs().numpy()
        counts, _ = np.histogram(values, [*log_edges(), np.inf])
        tips = [(float(each) / 100)
                for each in re.findall(r'title="[^"]*: ([0-9.]+)%"', pane.details.value)]
        there = np.flatnonzero(counts)
        assert np.allclose([each for each in tips if each], (counts / len(values))[there],
                           atol=1.5 / len(values))
        assert f"{hand.found[7]['1.conv'][1].norm():.4g}" in pane.details.value
    pane.quantity.value = "activation"
    assert "5" in pane.map.rows and "1.conv" in pane.map.rows
    assert cells(pane)[pane.map.rows.index("1.conv"),
                       2] == pytest.approx(stats.series("1.conv").std[2])
    pane.quantity.value = "near zero"
    assert pane.map.range == [0.0, 1.0] and not pane.map.log


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
    stats = LayerStatsHook(every_steps=2)
    trainer = make(stats, SnapshotHook(every_steps=5, every_epochs=None))
    pane = LayersPane(trainer.view)
    trainer.step(9)
    pane.refresh()
    assert pane.map.columns == [1, 3, 5, 7, 9]
    choose(pane, "0", 9)
    trainer.rewind(5)
    pane.refresh()
    assert pane.map.columns == [1, 3, 5]
    assert pane.map.chosen == [0, 2] and "0 · step 5<" in pane.details.value
    before = cells(pane).copy()
    trainer.tune(lr=0.5)
    trainer.step(3)
    pane.refresh()
    assert pane.map.columns == [1, 3, 5, 7] and np.array_equal(cells(pane)[:, :3], before)


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
    pane = LayersPane(trainer.view)
    assert len(pane.map.columns) <= MOST_COLUMNS and pane.map.columns[-1] == 1999
    assert len(pane.map.cells) <= 300 * MOST_COLUMNS * 4 and pane.map.height == 640


def test_many_layers_with_long_names():
    """All of 300 are rows; of more some are shown, and the words say so;
    the filter finds the rest; names are not markup."""
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
    pane = LayersPane(trainer.view)
    assert len(pane.map.rows) == MOST_LAYERS and "50 more layers" in pane.words.value
    pane.filter.value = "_449<B>"
    assert len(pane.map.rows) == 1 and "more layers" not in pane.words.value
    choose(pane, pane.map.rows[0], 1)
    assert "_449&lt;b&gt; · step 1" in pane.details.value and "<b>" not in pane.details.value
    pane.filter.value = "nothing <i>"
    assert "No layer's name contains" in pane.empty.value
    assert "<i>" not in pane.empty.value and pane.map.rows


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
    pane = LayersPane(trainer.view)
    found = cells(pane)
    row = pane.map.rows.index("1.conv")
    assert np.isnan(found[pane.map.rows.index("0"), 2])
    assert (found[row] >= 0).tolist() == [True, False, False]
    assert np.isfinite(pane.map.range).all() and "not finite" in pane.words.value
    choose(pane, "0", 3)
    assert "NaN" in pane.details.value or "nan" in pane.details.value


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
    """It comes with the hook, is built when it is opened, and goes with it."""
    trainer = make()
    board, stats = trainer.dashboard, LayerStatsHook(every_steps=1)
    def titles():
        board.refresh()
        return [each.description.split()[0] for each in board.tabs.strip.children]
    assert "Layers" not in titles()
    trainer.hooks.add(stats)
    trainer.step(2)
    assert "Layers" in titles() and "layers" not in board.tabs.built
    board.tabs.buttons["layers"].click()
    assert board.tabs.built["layers"].map.columns == [1, 2] and board.tabs.open == "layers"
    trainer.hooks.remove(stats)
    assert "Layers" not in titles() and board.tabs.open == "hooks"


def test_the_pane_alone():
    """In a cell of its own; without a hook it says which one it needs."""
    trainer = make()
    pane = trainer.layers_pane
    assert pane is trainer.layers_pane and "LayerStatsHook" in pane.empty.value
    assert "tnb" in pane._repr_mimebundle_()["text/plain"] or pane._alone is not None
    trainer.hooks.add(LayerStatsHook(every_steps=1, weights=False))
    trainer.step(1)
    pane.refresh()
    assert "Nothing was measured" in pane.empty.value
    pane.quantity.value = "activation"
    assert pane.map.columns == [1]
    assert pane.map.summary.startswith("Map of activation: 7 layers, steps 1 to 1.")


def test_a_page_may_send_anything():
    """A cell that is none chooses nothing."""
    stats = LayerStatsHook(every_steps=1)
    trainer = make(stats)
    trainer.step(1)
    pane = LayersPane(trainer.view)
    for content in ({}, {"layer": "0"}, {"layer": 0, "step": 1}, {"layer": "none", "step": 1},
                    {"layer": "0", "step": "1"}):
        pane._on_cell(pane.map, content, [])
        assert pane.chosen is None


def test_bars_say_what_they_count():
    """A bar for each bin with values, and at least eight; empty ones have none."""
    shares = np.zeros(LOG_BINS)
    shares[[4, 6]] = 0.25, 0.75
    bars = histogram(shares, log_edges(), "|gradient|")
    assert bars.count("<i ") == 8
    assert 'title="1e-9 to 2.15e-9: 25.00%"' in bars and "most, 75%" in bars
    assert "No finite values" in histogram(np.zeros(LOG_BINS), log_edges(), "x")
