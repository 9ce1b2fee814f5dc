"""Runs in which a search for a learning rate could leave a trace, and all that it could leave one
in."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from trainer_nb import EMAHook, Hook, Trainer


class Net(nn.Module):
    """Whatever a forward pass may change: BatchNorm, a buffer that is replaced, dropout."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.drop, self.head = (nn.Linear(6, 8), nn.BatchNorm1d(8),
                                                      nn.Dropout(0.2), nn.Linear(8, 1))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.seen = self.seen + 1
        return self.head(self.drop(self.norm(self.body(x)))) + 0 * self.seen


class Augmented(TensorDataset):
    """Draws from all three random streams."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(6) + random.random() + float(np.random.rand()), y


class Stream(IterableDataset):
    """No index."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return iter([(x, y) for x, y in zip(self.x, self.y)])

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(5))

Y = X.sum(1, keepdim=True)

LOADERS = {
    "shuffled": lambda: DataLoader(TensorDataset(X, Y), 8, shuffle=True),
    "own generator": lambda: DataLoader(TensorDataset(X, Y), 8, shuffle=True,
                                        generator=torch.Generator().manual_seed(3)),
    "replacement": lambda: DataLoader(TensorDataset(X, Y), 8,
                                      sampler=RandomSampler(X, replacement=True, num_samples=90)),
    "augmented": lambda: DataLoader(Augmented(X, Y), 8, shuffle=True),
    "workers": lambda: DataLoader(TensorDataset(X, Y), 8, shuffle=True, num_workers=2),
    "persistent": lambda: DataLoader(TensorDataset(X, Y), 8, shuffle=True, num_workers=1,
                                     persistent_workers=True),
    "iterable": lambda: DataLoader(Stream(X, Y), 8),
    "iterable, persistent": lambda: DataLoader(Stream(X, Y), 8, num_workers=1,
                                               persistent_workers=True),
    "list": lambda: [(X[i:i + 8], Y[i:i + 8]) for i in range(0, 96, 8)]}


class Counts(Hook):
    """Takes part in steps, with a state, an attribute and a list; draws."""

    def __init__(self):
        self.count, self.list = 0, []

    def before_batch(self, trainer):
        self.count += 1
        self.list.append(trainer.split)
        trainer.batch = trainer.batch[0] + 0.01 * torch.randn(()), trainer.batch[1]

    def after_step(self, trainer):
        self.list.append("step")

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def make(*hooks, loader="shuffled", optim="adamw", model=None, **settings):
    """A run of 3 epochs of 12 batches."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = model or Net()
    optims = {"adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
              "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
              "groups": lambda p: torch.optim.SGD([{"params": p[:2], "lr": 0.001},
                                                   {"params": p[2:]}], lr=0.01)}
    optim = optims[optim](list(model.parameters())) if isinstance(optim, str) else optim
    settings = {"epochs": 3, "seed": 1} | settings
    return Trainer(model, train_dl=LOADERS[loader](), valid_dl=DataLoader(TensorDataset(X, Y), 32),
                   loss_fn=nn.MSELoss(),
                   optim=optim, progress=False, hooks=hooks, device="cpu", **settings)


def plain(value):
    """Tensors as bytes, so that all can be compared."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().tobytes(), str(value.dtype), tuple(value.shape)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.tobytes() if isinstance(value, np.ndarray) else value


def whole(trainer):
    """Everything that a search might leave a trace in, as it is now."""
    model, optim = trainer.model, trainer.optim
    return {
        "state": plain({key: each for key, each in trainer.state_dict().items()
                        if key != "history"}),
        "buffers": plain(dict(model.named_buffers())),
        "modes": [module.training for module in model.modules()],
        "gradients": [each.grad for each in model.parameters()],
        "groups": plain(optim.param_groups),
        "optimizer": [(id(key), plain(each)) for key, each in optim.state.items()],
        "history": {name: trainer.history[name].tobytes() for name in trainer.history.names},
        "journal": len(trainer.journal),
        "outside": plain((random.getstate(), np.random.get_state(), torch.get_rng_state())),
        "store": dict(trainer.hook_store), "lr": trainer.lr, "records": dict(trainer.last_records),
        "run": str(trainer.state),
        "hooks": [(type(hook).__name__,
                   plain({k: v for k, v in vars(hook).items()
                          if isinstance(v, (int, list, dict, str))}))
                  for hook in trainer.hooks if isinstance(hook, (Counts, EMAHook))]}
