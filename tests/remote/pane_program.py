"""A run that measures layers, keeps samples and raises alerts: `python pane_program.py FOLDER`.

At each pause it writes down what its hooks have.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import AlertsHook, Hook, LayerStatsHook, SamplesHook, SnapshotHook, Trainer

FOLDER = Path(sys.argv[1])


class Truth(Hook):
    """Writes what the hooks of this process have, as NumPy does; a step takes a while.

    From step 130 on it takes long: a pause that comes late finds the evaluation of step 60."""

    order = 200

    def after_step(self, trainer):
        """Time to look."""
        time.sleep(0.004 if trainer.step_state.optimizer_step < 130 else 0.3)

    def on_pause(self, trainer):
        """Under another name first: who waits for the file finds all of it."""
        layers, samples = trainer.get_hook(LayerStatsHook), trainer.get_hook(SamplesHook)
        names, steps, norms = layers.weight_history.table(0)
        rows = [(step, kinds["activations"]) for step, kinds in layers.history.fetch()]
        last = samples.evaluations[-1]
        np.savez(
            FOLDER / "part.npz",
            names=names,
            steps=steps,
            norms=norms,
            step=trainer.step_state.optimizer_step,
            activations=np.stack([np.stack(list(found.values())) for _, found in rows]),
            matrix=last.matrix,
            evaluated=[each.step for each in samples.evaluations],
            losses=[each.loss for each in last.worst],
            indices=[each.index for each in last.worst],
            pictures=np.stack([each.picture for each in last.worst]),
        )
        (FOLDER / "part.npz").replace(FOLDER / f"truth-{trainer.step_state.optimizer_step}.npz")


def main():
    """Digits that nothing can learn: a rate of nearly 0 is a plateau."""
    torch.manual_seed(0)
    pictures, classes = torch.rand(96, 3, 12, 10), torch.randint(0, 3, (96,))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 10 * 8, 3))
    data = TensorDataset(pictures, classes)
    hooks = [
        LayerStatsHook(every_steps=5),
        SamplesHook(worst=3, classes=["<b>cat</b>", "dog", "owl"]),
        AlertsHook(patience=100, every=20),
        SnapshotHook(every_steps=10, every_epochs=None),
        Truth(),
    ]
    trainer = Trainer(
        model,
        train_dl=DataLoader(data, 8),
        valid_dl=DataLoader(data, 32),
        loss_fn=nn.CrossEntropyLoss(),
        optim=torch.optim.SGD(model.parameters(), lr=1e-9),
        max_steps=10**7,
        eval_every=12,
        device="cpu",
        progress=False,
        workspace=FOLDER,
        seed=0,
        hooks=hooks,
    )
    trainer.fit()


if __name__ == "__main__":
    main()
