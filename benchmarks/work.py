"""The work that is measured, each with the loop that one writes by hand for it."""

import argparse
import time
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def rounds_to_measure(doc, default):
    """How many rounds the command line asks for, after torch was given one thread."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=default)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    return rounds


def tiny():
    """A network whose step is nearly nothing but Python: 16-32-4."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def small():
    """A convolutional network for pictures of 28 x 28."""
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(),
                         nn.Linear(64, 10))


def resnet():
    """ResNet-18 of torchvision."""
    from torchvision.models import resnet18
    return resnet18(num_classes=10)


def plain(model, optim, loss_fn, device):
    """The loop as people write it."""
    moves = device != "cpu"
    def block(batches):
        for x, y in batches:
            if moves:
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optim.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optim.step()
    return block


def textbook(model, optim, loss_fn, device):
    """With accumulation over four batches, bf16, clipping and an average of the weights, as the
    documentation of torch shows them."""
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    moves = device != "cpu"
    def block(batches):
        for number, (x, y) in enumerate(batches, 1):
            if moves:
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = loss_fn(model(x), y)
            (loss / 4).backward()
            if number % 4 == 0:
                clip_grad_norm_(model.parameters(), 1.0)
                optim.step()
                optim.zero_grad()
                average.update_parameters(model)
    block.average = average
    return block


@dataclass
class Work:
    """A model, its data, and the loop by hand; `features` is what else the loop does."""

    name: str
    network: object
    shape: tuple  # of an input
    classes: int
    batch: int
    steps: int  # in a block
    raw: object = plain
    features: frozenset = frozenset()
    device: str = "cpu"
    large: bool = False  # for a GPU only

    @cached_property
    def batches(self):
        """The batches of a block, in memory that a GPU reads without a wait."""
        made = torch.Generator().manual_seed(1)
        batches = [(torch.randn(self.batch, *self.shape, generator=made),
                    torch.randint(0, self.classes, (self.batch,), generator=made))
                   for _ in range(self.steps)]
        if self.device != "cpu":
            return [(x.pin_memory(), y.pin_memory()) for x, y in batches]
        return batches

    def parts(self):
        """A model with its first weights, and its optimizer."""
        torch.manual_seed(0)
        model = self.network().to(self.device)
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def by_hand(self):
        """The loop by hand over a block of batches, with a model of its own."""
        model, optim = self.parts()
        block = self.raw(model, optim, nn.CrossEntropyLoss(), self.device)
        block.model = model
        return block


ALL = frozenset(("accumulation", "bf16", "clip", "ema"))
TINY, SMALL = {"network": tiny, "shape": (16,), "classes": 4, "batch": 16}, {
    "network": small, "shape": (1, 28, 28), "classes": 10, "batch": 64}
WORKS = {work.name: work for work in (
    Work("A tiny", **TINY, steps=400),
    Work("A tiny, recorder, progress, hooks", **TINY, steps=400,
         features=frozenset(("record", "progress", "hooks"))),
    Work("B small", **SMALL, steps=12),
    Work("C tiny", **TINY, steps=400, raw=textbook, features=ALL),
    Work("C small", **SMALL, steps=12, raw=textbook, features=ALL),
    Work("D tiny", **TINY, steps=400, features=frozenset(("record", "progress"))),
    Work("D small", **SMALL, steps=12, features=frozenset(("record", "progress"))),
    Work("C ResNet-18", resnet, (3, 64, 64), 10, 128, steps=20, raw=textbook, features=ALL,
         large=True),
)}  # fmt: skip


class Blocks:
    """A loader for a peer: before each block after the first, the loop by hand makes one of its
    own, and both are timed.

    What a peer does with a block lies between the hand-over of its first batch and the request for
    the next block's.
    """

    def __init__(self, work: Work, pairs: int):
        self.work, self.pairs = work, pairs
        self.raw = work.by_hand()
        self.peer, self.own = [], []  # seconds, a block each

    def __len__(self):
        return self.pairs * len(self.work.batches)

    def now(self):
        """Seconds of the processor; on a GPU those of the clock, when all that was asked of it is
        done."""
        if self.work.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def __iter__(self):
        """Every block's batches in turn."""
        for _ in range(self.pairs):
            began = self.now()
            yield from iter(self.work.batches)
            self.peer.append(self.now() - began)
            began = self.now()
            self.raw(iter(self.work.batches))
            self.own.append(self.now() - began)

    def finish(self):
        """The blocks by hand that are left where a peer that counts its steps did not ask for what
        comes after the last one."""
        for _ in range(self.pairs - len(self.own)):
            self.raw(iter(self.work.batches))


def same(a: nn.Module, b: nn.Module) -> bool:
    """Whether two models have the same weights, bit for bit."""
    a, b = a.state_dict(), b.state_dict()
    return all(torch.equal(a[name].cpu(), b[name].cpu()) for name in a)


