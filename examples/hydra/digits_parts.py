"""What the configuration names: loaders, models and a metric for scikit-learn's handwritten
digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def loader(split, batch_size=32):
    """The images for "train", shuffled, or for "valid"."""
    images, labels = load_digits(return_X_y=True)
    own = torch.Generator().manual_seed(0)  # the split is the same under every seed
    train, valid = torch.randperm(len(images), generator=own).split([1437, 360])
    part = {"train": train, "valid": valid}[split]
    data = TensorDataset(torch.tensor(images, dtype=torch.float32)[part] / 16,
                         torch.tensor(labels)[part])
    return DataLoader(data, batch_size, shuffle=split == "train")


def mlp(width, dropout=0.0):
    """A network with one hidden layer."""
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))


def cnn(channels):
    """A network with two layers of three by three filters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * channels, 10),
    )


def accuracy(pred, target):
    """The share of right answers."""
    return (pred.argmax(1) == target).float().mean()
