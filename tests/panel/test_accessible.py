"""What the kernel gives to screen readers; the rest is the page's: test_browser_accessible.py."""

import re

import torch

from trainer_nb import Hook, Trainer, Tunable


class Probe(Hook):
    """A hook with a logarithmic tunable and one that is not."""

    small = Tunable(1e-3, min=0, scale="log")
    plain = Tunable(1, min=1, max=50)


def make():
    """A small trainer, one epoch on."""
    inputs = torch.randn(32, 4)
    dataset = torch.utils.data.TensorDataset(inputs, inputs[:, :1])
    model = torch.nn.Linear(4, 1)
    trainer = Trainer(model, train_dl=torch.utils.data.DataLoader(dataset, batch_size=8),
                      loss_fn=torch.nn.MSELoss(), device="cpu", progress=False, hooks=[Probe()],
                      epochs=2, optim=torch.optim.SGD(model.parameters(), lr=0.01))
    trainer.fit(epochs=1)
    return trainer


def test_sliders_whose_position_is_an_exponent_are_marked():
    """The page says their value, not their position."""
    rows = make().dashboard.tunables.rows
    sliders = {name: row.control.slider for name, row in rows.items()
               if hasattr(row.control, "slider")}
    marked = {name for name, slider in sliders.items() if "log" in slider._dom_classes}
    assert {"lr", "probe.small"} <= marked and "probe.plain" not in marked
    assert all(type(sliders[name]).__name__ == "FloatLogSlider" for name in marked)


def test_the_progress_bar_has_a_name():
    """A number without one says nothing."""
    html = make().dashboard.head.widget.value
    bar = re.search('<div class="progress"[^>]*>', html)[0]
    assert 'aria-label="Progress of the run"' in bar and 'aria-valuenow="100"' in bar
