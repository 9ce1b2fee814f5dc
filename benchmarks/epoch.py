"""What an epoch costs, with its validation and a metric, as it is written in a notebook: the loader
is torch's, and what begins and ends an epoch counts.

`python -m benchmarks epoch` writes benchmarks/EPOCH.md. Each peer has a process of its own, in
which it takes turns with the loop by hand: whole runs of some epochs. The figures are medians of
ratios of processor time, on one thread.
"""

import contextlib
import io
import json
import logging
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PAGE = Path(__file__).parent / "EPOCH.md"


@dataclass
class Epochs:
    """Data and a model; the training data is shuffled."""

    shape: tuple
    samples: int
    held_out: int
    batch: int
    epochs: int

    def data(self) -> tuple[DataLoader, DataLoader]:
        """Loaders for training and validation, over tensors in memory. The order is drawn from a
        generator of its own: who draws for a validation, too, has the same one."""
        train, valid = self.datasets
        return (DataLoader(train, self.batch, shuffle=True,
                           generator=torch.Generator().manual_seed(2)),
                DataLoader(valid, self.batch))

    @cached_property
    def datasets(self) -> list[TensorDataset]:
        """Drawn once: that is no part of a run."""
        draw = torch.Generator().manual_seed(0)
        return [TensorDataset(torch.randn(count, *self.shape, generator=draw),
                              torch.randint(0, 10, (count,), generator=draw))
                for count in (self.samples, self.held_out)]

    def parts(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A model and its optimizer, the same each time."""
        torch.manual_seed(1)
        if len(self.shape) == 1:
            model = nn.Sequential(nn.Linear(*self.shape, 64), nn.ReLU(), nn.Linear(64, 10))
        else:
            model = nn.Sequential(
                nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(),
                nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


WORKS = {
    "digits MLP, batch 32": Epochs((64,), 1437, 360, 32, 8),
    "digits MLP, batch 256": Epochs((64,), 1437, 360, 256, 12),
    "CNN 3 x 32 x 32, batch 64": Epochs((3, 32, 32), 1024, 256, 64, 3),
}


def accuracy(pred, target):
    """The share of samples that are right."""
    return (pred.argmax(1) == target).float().mean()


def raw(work):
    """The loop that everybody writes."""
    model, optim = work.parts()
    train_dl, valid_dl = work.data()
    loss_fn, history = nn.CrossEntropyLoss(), []
    for _ in range(work.epochs):
        model.train()
        for x, y in train_dl:
            loss = loss_fn(model(x), y)
            loss.backward()
            optim.step()
            optim.zero_grad()
        model.eval()
        losses = right = count = 0
        with torch.no_grad():
            for x, y in valid_dl:
                pred = model(x)
                losses += loss_fn(pred, y).item() * len(x)
                right += accuracy(pred, y).item() * len(x)
                count += len(x)
        history.append((losses / count, right / count))
    return model


def trainer_nb(work, **settings):
    """This package as it comes, without a bar."""
    from trainer_nb import Trainer

    model, optim = work.parts()
    train_dl, valid_dl = work.data()
    trainer = Trainer(model, train_dl=train_dl, valid_dl=valid_dl, loss_fn=nn.CrossEntropyLoss(),
                      optim=optim, metrics={"accuracy": accuracy}, epochs=work.epochs,
                      device="cpu", progress=False, **settings)
    trainer.fit()
    return model


def trainer_nb_slow_batches(work):
    """The same, with batches that torch stacks sample by sample."""
    return trainer_nb(work, fast_batches=False)


def ignite(work):
    """pytorch-ignite: a supervised trainer, and an evaluator after each epoch."""
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy, Loss

    model, optim = work.parts()
    train_dl, valid_dl = work.data()
    loss_fn = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, optim, loss_fn)
    evaluator = create_supervised_evaluator(
        model, metrics={"accuracy": Accuracy(), "loss": Loss(loss_fn)})
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda _: evaluator.run(valid_dl))
    trainer.run(train_dl, max_epochs=work.epochs)
    return model


def accelerate(work):
    """Hugging Face Accelerate: the loop by hand with its wrappers."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    bare, optim = work.parts()
    model, optim, train_dl, valid_dl = accelerator.prepare(bare, optim, *work.data())
    loss_fn = nn.CrossEntropyLoss()
    for _ in range(work.epochs):
        model.train()
        for x, y in train_dl:
            accelerator.backward(loss_fn(model(x), y))
            optim.step()
            optim.zero_grad()
        model.eval()
        losses = right = count = 0
        with torch.no_grad():
            for x, y in valid_dl:
                pred, y = accelerator.gather_for_metrics((model(x), y))
                losses += loss_fn(pred, y).item() * len(y)
                right += accuracy(pred, y).item() * len(y)
                count += len(y)
    return bare


def lightning(work):
    """Lightning: a module and a Trainer that logs loss and accuracy."""
    import lightning as L

    model, optim = work.parts()
    train_dl, valid_dl = work.data()

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.loss_fn = model, nn.CrossEntropyLoss()

        def training_step(self, batch, _):
            x, y = batch
            return self.loss_fn(self.net(x), y)

        def validation_step(self, batch, _):
            x, y = batch
            pred = self.net(x)
            self.log("valid/loss", self.loss_fn(pred, y), batch_size=len(x))
            self.log("valid/accuracy", accuracy(pred, y), batch_size=len(x))

        def configure_optimizers(self):
            return optim

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = L.Trainer(max_epochs=work.epochs, accelerator="cpu", logger=False,
                        enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(Module(), train_dl, valid_dl)
    return model


def fastai(work):
    """fastai: a Learner over the same loaders; its optimizer wraps the one of torch."""
    from fastai.basics import DataLoaders, Learner, OptimWrapper
    from fastai.callback import progress  # noqa: F401, gives a Learner `no_bar`

    model, _ = work.parts()
    learner = Learner(DataLoaders(*work.data()), model, loss_func=nn.CrossEntropyLoss(),
                      metrics=[accuracy], train_bn=False,
                      opt_func=lambda params, **_: OptimWrapper(params, torch.optim.SGD, lr=0.05,
                                                                momentum=0.9))
    with learner.no_bar(), learner.no_logging():
        learner.fit(work.epochs, lr=0.05)
    return model


PEERS = {each.__name__: each for each in (
    raw, trainer_nb, trainer_nb_slow_batches, ignite, accelerate, lightning, fastai)}


def compare(peer: str, name: str, pairs: int) -> dict:
    """Ratios of processor time, peer by hand, and whether the weights are the same."""
    torch.set_num_threads(1)
    work, found, same = WORKS[name], [], True
    def spent(train):
        began = time.process_time()
        with (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()),
              warnings.catch_warnings()):
            warnings.simplefilter("ignore")
            model = train(work)
        return time.process_time() - began, [*model.parameters()]
    for number in range(pairs + 1):
        # each of them is the first one in half of the pairs
        order = (raw, PEERS[peer]) if number % 2 else (PEERS[peer], raw)
        (first, one), (second, other) = map(spent, order)
        same = same and all(map(torch.equal, one, other))
        found.append((second, first) if number % 2 else (first, second))
    ratios = [a / b for a, b in found[1:]]  # the first pair warms up
    return {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
            "by_hand": statistics.median(b for _, b in found[1:]) / work.epochs, "same": same}


def in_process(peer: str, name: str, pairs: int) -> dict:
    """As `compare`, in a process of its own; the last line of its error if it fails."""
    call = [sys.executable, "-m", "benchmarks.epoch", peer, name, str(pairs)]
    done = subprocess.run(call, capture_output=True, text=True, cwd=PAGE.parents[1], check=False)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def cell(row: dict) -> str:
    """Median, and the least and the most of the pairs."""
    if "failed" in row:
        return "–"
    text = f"**{row['ratio']:.2f}** ({row['least']:.2f} to {row['most']:.2f})"
    return text if row["same"] else f"{text} ¹"


def report(rows: dict, pairs: int, versions: str) -> str:
    """The page."""
    peers = list(dict.fromkeys(peer for peer, _ in rows))
    lines = ["# What an epoch costs", "",
             f"`python -m benchmarks epoch`, {time.strftime('%Y-%m-%d')}, {versions}, one thread, "
             f"{pairs} pairs of runs.", "",
             "Ratios to the loop by hand: processor time of whole runs that take turns, the median "
             "(the least to the most). Each epoch ends with a validation and its accuracy. The row "
             "`raw` is that loop against itself: the noise.", "",
             "| | " + " | ".join(WORKS) + " |", "| --- |" + " --- |" * len(WORKS)]
    lines += [f"| {peer} | " + " | ".join(cell(rows[peer, work]) for work in WORKS) + " |"
              for peer in peers]
    by_hand = [f"{rows['raw', work]['by_hand'] * 1e3:.1f} ms" for work in WORKS]
    lines += ["| an epoch by hand | " + " | ".join(by_hand) + " |", ""]
    if any(not row.get("same", True) for row in rows.values()):
        lines += ["¹ other weights than by hand.", ""]
    failed = {(peer, row["failed"]) for (peer, _), row in rows.items() if "failed" in row}
    lines += [f"- {peer} was not measured: {reason}" for peer, reason in sorted(failed)]
    return "\n".join(lines).rstrip() + "\n"


def measure(peers: list[str], pairs: int, versions: str) -> None:
    """All works of these peers; the page is written when `raw` is among them."""
    rows = {}
    for peer in peers:
        for name in WORKS:
            rows[peer, name] = row = in_process(peer, name, pairs)
            print(f"{peer:26}{name:28}{row.get('failed') or cell(row)}", flush=True)
    if "raw" in peers:
        PAGE.write_text(report(rows, pairs, versions))
        print(f"\n{PAGE}")


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
