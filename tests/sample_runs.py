"""Short runs on handwritten digits with a validation loader, for tests of what is kept of
evaluations."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from trainer_nb import Trainer

PIXELS, LABELS = load_digits(return_X_y=True)
DATA = TensorDataset(torch.tensor(PIXELS / 16).float().view(-1, 1, 8, 8), torch.tensor(LABELS))
TRAIN, VALID = Subset(DATA, range(200)), TensorDataset(*DATA[200:323])


def net():
    """A small convolutional network with dropout."""
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                         nn.Dropout(0.3), nn.Flatten(), nn.Linear(512, 10))


def make(*hooks, valid=None, loss_fn=None, **settings):
    """10 steps an epoch; the validation loader is shuffled, and its last batch is smaller."""
    torch.manual_seed(0)
    settings = {"epochs": 2, "seed": 1, "model": net(),
                "train_dl": DataLoader(TRAIN, 20, shuffle=True)} | settings
    valid = DataLoader(VALID, 40, shuffle=True) if valid is None else valid
    return Trainer(settings.pop("model"), valid_dl=valid, loss_fn=loss_fn or nn.CrossEntropyLoss(),
                   optim=lambda p: torch.optim.AdamW(p, lr=0.01),
                   progress=False, hooks=hooks, device="cpu", **settings)  # fmt: skip


def by_hand(trainer, data=VALID):
    """Losses and predictions of a dataset, with the weights that the trainer has now."""
    trainer.model.eval()
    with torch.no_grad():
        pred = trainer.model(data.tensors[0])
    trainer.model.train()
    return nn.functional.cross_entropy(pred, data.tensors[1], reduction="none"), pred.argmax(1)
