"""Outputs on disk: each sample's own row, whole files or the ones before, and a training that never
feels it."""

import copy
import csv
import functools
import importlib.util
import os
import shutil
import sys

import numpy as np
import pytest
import torch
import warm
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler,
                              Sampler, TensorDataset)
from trainer_nb import Hook, OutputsHook, SnapshotHook, Trainer
from trainer_nb.core.state import RunState
from trainer_nb.hooks.outputs import (NpyFile, Part, join_parts, load_outputs, per_sample_loss,
                                      put_in_place)

PIXELS, LABELS = load_digits(return_X_y=True)
X, Y = torch.tensor(PIXELS[:200] / 16).float(), torch.tensor(LABELS[:200])
TRAIN, VALID = TensorDataset(X[:120], Y[:120]), TensorDataset(X[120:], Y[120:])


def make(*hooks, valid=None, train=None, **settings):
    """A linear model with dropout, 12 steps an epoch."""
    torch.manual_seed(0)
    model = settings.pop("model", None) or nn.Sequential(nn.Dropout(0.1), nn.Linear(64, 10))
    settings = {"epochs": 2, "seed": 1, "loss_fn": nn.CrossEntropyLoss()} | settings
    return Trainer(model, train_dl=DataLoader(TRAIN, 10, shuffle=True) if train is None else train,
                   valid_dl=DataLoader(VALID, 16) if valid is None else valid,
                   optim=lambda p: torch.optim.AdamW(p, lr=0.01),
                   progress=False, hooks=hooks, device="cpu", **settings)  # fmt: skip


def expected(trainer, data=VALID):
    """What the model says to each sample now."""
    model = copy.deepcopy(trainer.model).eval()
    x, y = data.tensors
    with torch.no_grad():
        outputs = model(x)
    return {"indices": np.arange(len(y)), "targets": y.numpy(),
            "losses": F.cross_entropy(outputs, y, reduction="none").numpy(),
            "outputs": outputs.numpy(), "predictions": outputs.argmax(1).numpy()}


def check(found, wanted):
    """All fields, row by row."""
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].shape == array.shape and found[name].dtype == array.dtype, name
        assert np.allclose(found[name], array, atol=1e-6), name


class Backwards(Sampler):
    """A sampler of the user's own, which counts how often it is asked."""

    def __init__(self, data):
        self.data, self.asked = data, 0

    def __iter__(self):
        self.asked += 1
        return reversed(range(len(self.data)))

    def __len__(self):
        return len(self.data)


def loaders(kind):
    """Loaders of the validation set."""
    generator = torch.Generator().manual_seed(5)
    return {
        "in order": lambda: DataLoader(VALID, 16),
        "shuffled": lambda: DataLoader(VALID, 16, shuffle=True),
        "generator": lambda: DataLoader(VALID, 16, shuffle=True, generator=generator),
        "workers": lambda: DataLoader(VALID, 16, shuffle=True, num_workers=1),
        "persistent": lambda: DataLoader(VALID, 16, shuffle=True, num_workers=1,
                                         persistent_workers=True),
        "batch sampler": lambda: DataLoader(VALID,
                                            batch_sampler=BatchSampler(
                                                RandomSampler(VALID), 7, drop_last=False)),
    }[kind]()


@pytest.mark.slow
@pytest.mark.parametrize("kind",
                         ["in order", "shuffled", "generator", "workers", "persistent",
                          "batch sampler"])
def test_each_sample_has_its_own_row(kind, tmp_path):
    """Whatever the order of the loader; in each evaluation, not only in the first."""
    hook = OutputsHook(tmp_path)
    with make(hook, valid=loaders(kind)) as trainer:
        trainer.step(13)
        check(hook.load("valid"), hook.load())
        trainer.fit()
        check(hook.load("valid"), expected(trainer))


def test_several_loaders_and_two_sets_of_weights(tmp_path):
    """A folder each: two shuffled loaders, each evaluated with the weights and their average."""
    hook = OutputsHook(tmp_path)
    half = TensorDataset(X[120:150], Y[120:150])
    valid = {"all": DataLoader(VALID, 16, shuffle=True), "half": DataLoader(half, 7, shuffle=True)}
    trainer = make(hook, valid=valid, ema=0.9)
    trainer.tune(**{"ema.eval": "both"})
    trainer.fit()
    check(hook.load("all"), expected(trainer))
    check(hook.load("half"), expected(trainer, half))
    raw, mean = hook.load("all"), hook.load("all_ema")
    assert (raw["targets"] == mean["targets"]).all()
    assert not np.allclose(raw["outputs"], mean["outputs"])
    assert mean["losses"].mean() == pytest.approx(trainer.history["all_ema/loss"][-1], rel=1e-5)


def test_only_some_splits(tmp_path):
    """By the name of a loader; `test()` is a split of its own, with the hook's usual care without a
    run."""
    valid = {"a": DataLoader(VALID, 16), "b": DataLoader(VALID, 16)}
    hook = OutputsHook(tmp_path, splits=("b", "test"))
    trainer = make(hook, valid=valid)
    trainer.test(DataLoader(TRAIN, 50, shuffle=True))
    check(hook.load("test"), expected(trainer, TRAIN))
    trainer.fit()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "test"]
    with pytest.raises(FileNotFoundError, match="there are b, test"):
        hook.load("a")


def test_order_that_is_not_known(tmp_path):
    """A sampler of the user's own is asked no more than without the hook; a stream has no indices.
    Rows come in the loader's order."""
    class Stream(IterableDataset):
        def __iter__(self):
            yield from VALID
    sampler = Backwards(VALID)
    hook = OutputsHook(tmp_path)
    valid = {"own": DataLoader(VALID, 16, sampler=sampler), "stream": DataLoader(Stream(), 16),
             "list": [tuple(VALID.tensors)]}
    trainer = make(hook, valid=valid, epochs=1)
    trainer.fit()
    wanted = expected(trainer)
    for name, step in (("own", -1), ("stream", 1), ("list", 1)):
        found = hook.load(name)
        assert found["indices"] is None and sampler.asked == 1
        assert (found["targets"] == wanted["targets"][::step]).all()
        assert next(csv.reader(
            open(tmp_path / name / "results.csv"))) == ["target", "loss", "prediction"]


def test_a_collate_that_leaves_samples_out(tmp_path):
    """Then it is not known which sample is which."""
    def collate(samples):
        return torch.utils.data.default_collate(samples[1:])
    hook = OutputsHook(tmp_path)
    make(hook, valid=DataLoader(VALID, 16, collate_fn=collate), epochs=1).fit()
    found = hook.load()
    assert found["indices"] is None and len(found["targets"]) == 75


@pytest.mark.parametrize("splits", [("valid", "test"), ("train", "valid")])
def test_the_training_does_not_feel_it(splits, tmp_path):
    """Bit for bit, with shuffled loaders, dropout, chunks and a generator that training and
    validation share."""
    def run(*hooks):
        generator = torch.Generator().manual_seed(3)
        train, valid = (DataLoader(data, 10, shuffle=True, generator=generator)
                        for data in (TRAIN, VALID))
        trainer = make(*hooks, train=train, valid=valid, epochs=3, gradient_accumulation_steps=2,
                       micro_batch_size=4)
        trainer.fit()
        return trainer
    plain, watched = run(), run(OutputsHook(tmp_path, splits=splits))
    assert all(torch.equal(a, b)
               for a, b in zip(plain.model.parameters(), watched.model.parameters(), strict=True))
    assert (plain.history["valid/loss"] == watched.history["valid/loss"]).all()


@pytest.mark.parametrize("settings",
                         [{}, {"micro_batch_size": 3}, {"gradient_accumulation_steps": 5},
                          {"limit_batches": 7}])
def test_an_epoch_of_training(settings, tmp_path):
    """Each sample once, as it was seen: loss and output of the very step."""
    seen = {}
    class See(Hook):
        def after_loss(self, trainer):
            if trainer.training:
                pred, target = trainer.output["pred"].detach(), trainer.output["target"]
                for row, label in zip(pred, target):
                    seen.setdefault(trainer.step_state.epoch,
                                    []).append((row.numpy().copy(), int(label)))
    hook = OutputsHook(tmp_path, splits="train")
    trainer = make(hook, See(), **settings)
    trainer.fit()
    found, last = hook.load("train"), seen[1]
    assert len(found["indices"]) == len(last) == (70 if "limit_batches" in settings else 120)
    assert len(set(found["indices"].tolist())) == len(last)
    assert (np.diff(found["indices"]) > 0).all()
    assert (found["targets"] == Y[:120].numpy()[found["indices"]]).all()
    key = lambda row: row.tolist()  # noqa: E731
    assert np.array_equal(sorted(map(key, found["outputs"])), sorted(key(row) for row, _ in last))
    losses = F.cross_entropy(torch.tensor(found["outputs"]), torch.tensor(found["targets"]),
                             reduction="none").numpy()
    assert np.allclose(found["losses"], losses, atol=1e-6)


@pytest.mark.parametrize("way",
                         ["resumed", "another state loaded", "rewound", "switched off for a while",
                          "stopped"])
def test_only_whole_epochs_of_training(way, tmp_path):
    """An epoch of which some is missing is not written; the next one is."""
    hook = OutputsHook(tmp_path, splits="train")
    trainer = make(hook, SnapshotHook(every_steps=5, every_epochs=None), epochs=3)
    trainer.step(15)  # in the second epoch
    if way == "resumed":
        trainer.save(tmp_path / "run.pt")
        hook = OutputsHook(tmp_path, splits="train")
        trainer = make(hook, SnapshotHook(every_steps=5, every_epochs=None), epochs=3)
        trainer.load(tmp_path / "run.pt")
    elif way == "another state loaded":
        other = make(epochs=3)
        other.step(15)
        trainer.load_state_dict(other.state_dict())
    elif way == "rewound":
        trainer.step(2)
        trainer.rewind(15)
        # as many as there were before: the count is right, the rows are not
        trainer.tune(**{"outputs.enabled": False})
        trainer.step(2)
        trainer.tune(**{"outputs.enabled": True})
    elif way == "switched off for a while":
        trainer.tune(**{"outputs.enabled": False})
        trainer.step(2)
        trainer.tune(**{"outputs.enabled": True})
    else:
        trainer.stop()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["train"]
    before = (tmp_path / "train" / "about.json").read_text()
    assert '"step": 12' in before
    trainer.step(10)  # into the third
    assert (tmp_path / "train" / "about.json").read_text() == before
    trainer.fit()
    assert '"step": 36' in (tmp_path / "train" / "about.json").read_text()
    assert (hook.load("train")["targets"] == Y[:120].numpy()).all()


def test_a_window_made_again_in_smaller_chunks(tmp_path):
    """Out of memory in mid-epoch: that epoch is not kept, the next one is, chunk by chunk."""
    class Small(nn.Linear):
        def forward(self, x):
            if self.training and len(x) > 4 and trainer.step_state.batch_idx == 3:
                raise torch.OutOfMemoryError
            return super().forward(x)
    hook = OutputsHook(tmp_path, splits="train")
    trainer = make(hook, model=Small(64, 10), micro_batch_size="auto",
                   gradient_accumulation_steps=2)
    trainer.step(8)
    assert trainer.journal.entries[0].kind == "memory" and not (tmp_path / "train").exists()
    trainer.fit()
    found = hook.load("train")
    assert found["indices"].tolist() == list(range(120))
    assert (found["targets"] == Y[:120].numpy()).all()


def test_a_window_taken_again(tmp_path):
    """A step that asks for gradients twice (SAM): a row is what was said in the first pass."""
    class Twice(Trainer):
        repeats_windows = True
        def do_opt_step(self):
            self.window_gradients()
            return super().do_opt_step()
    hook, loader = OutputsHook(tmp_path, splits="train"), DataLoader(TRAIN, 10, shuffle=True)
    trainer = Twice(nn.Linear(64, 10), None, loader, loss_fn=nn.CrossEntropyLoss(),
                    gradient_accumulation_steps=2, micro_batch_size=4,
                    hooks=[hook], epochs=2, seed=1, progress=False)  # fmt: skip
    trainer.fit()
    found = hook.load("train")
    assert found["indices"].tolist() == list(range(120))
    assert (found["targets"] == Y[:120].numpy()).all()


def test_a_search_for_a_rate_in_mid_epoch(tmp_path):
    """Its steps are not part of the epoch, its evaluations none of the run."""
    hook = OutputsHook(tmp_path, splits=("train", "valid"))
    trainer = make(hook, epochs=1)
    trainer.step(3)
    trainer.lr_find(num_steps=10, valid_dl=DataLoader(VALID, 40))
    assert [path.name for path in tmp_path.iterdir()] == ["train.unfinished"]
    trainer.fit()
    found = hook.load("train")
    assert found["indices"].tolist() == list(range(120))
    assert (found["targets"] == Y[:120].numpy()).all()
    check(hook.load(), expected(trainer))


@pytest.mark.parametrize("leaving", ["stop", "error", "pause and step on"])
def test_an_evaluation_that_is_given_up(leaving, tmp_path):
    """The earlier files stay as they were, nothing unfinished is left;
    afterwards it is made again."""
    class Leave(Hook):
        left = False
        def before_batch(self, trainer):
            if (trainer.training or self.left or trainer.eval_batch != 2
                or trainer.step_state.optimizer_step < 24):
                return
            self.left = True
            if leaving == "stop":
                trainer.stop()
            elif leaving == "error":
                raise ValueError("in the evaluation")
            else:
                trainer.pause()
    hook = OutputsHook(tmp_path)
    trainer = make(hook, Leave(), valid={"a": DataLoader(VALID, 8), "b": DataLoader(VALID, 8)})
    trainer.step(13)
    before = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*")
              if path.is_file()}
    assert len(before) == 14
    if leaving == "error":
        with pytest.raises(ValueError, match="in the evaluation"):
            trainer.fit()
    else:
        trainer.fit()
    if leaving != "pause and step on":
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
        assert {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*")
                if path.is_file()} == before
    else:
        assert all((tmp_path / path).read_bytes() == data for path, data in before.items())
        trainer.validate()  # discards the one that is held
        check(hook.load("a"), expected(trainer))
    assert trainer.fit().status is RunState.FINISHED
    check(hook.load("b"), expected(trainer))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.slow
def test_killed_in_the_middle(tmp_path):
    """The folder of the evaluation before is whole; the next run clears what is unfinished away."""
    code = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_outputs import *
class Die(Hook):
    def after_batch(self, trainer):
        step = trainer.step_state.optimizer_step
        if not trainer.training and step == 24 and trainer.eval_batch == 3:
            os._exit(9)
make(OutputsHook({str(tmp_path)!r}), Die()).fit()
"""
    assert warm.run([sys.executable, "-c", code], timeout=600).returncode == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["valid", "valid.unfinished"]
    found = load_outputs(tmp_path / "valid")
    assert len(found["losses"]) == 80
    assert '"step": 12' in (tmp_path / "valid" / "about.json").read_text()
    hook = OutputsHook(tmp_path)
    trainer = make(hook)
    trainer.fit()
    check(hook.load(), expected(trainer))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["valid"]


def test_a_crash_between_two_names(tmp_path, monkeypatch):
    """The old folder had to make way, the new one has not come:
    the old one is found, and gets its name back."""
    def folder(name, value):
        (tmp_path / name).mkdir()
        (tmp_path / name / "about.json").write_text('{"fields": ["losses"]}')
        np.save(tmp_path / name / "losses.npy", np.array([value]))
        return tmp_path / name
    folder("valid", 1.0)
    names, replace = [], os.replace
    def once(source, target):
        if names:
            raise KeyboardInterrupt
        names.append(source)
        replace(source, target)
    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(folder("valid.unfinished", 2.0), tmp_path / "valid")
    monkeypatch.undo()
    assert not (tmp_path / "valid").exists() and load_outputs(tmp_path / "valid")["losses"] == [1.0]
    put_in_place(tmp_path / "valid.unfinished", tmp_path / "valid")
    assert load_outputs(tmp_path / "valid")["losses"] == [2.0]
    assert [path.name for path in tmp_path.iterdir()] == ["valid"]


def test_two_hooks_in_one_place(tmp_path):
    """Refused before the first step; in other splits or other folders they are two hooks like
    any."""
    trainer = make(OutputsHook(tmp_path, fields="losses"), OutputsHook(tmp_path, fields="outputs"))
    with pytest.raises(ValueError, match="'valid'.*OutputsHook.*folder="):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 0
    hooks = (OutputsHook(tmp_path / "a", fields="losses"),
             OutputsHook(tmp_path / "a", splits="train"), OutputsHook(tmp_path / "b"))
    make(*hooks, epochs=1).fit()
    assert list(hooks[0].load()) == ["losses"]
    assert len(hooks[1].load("train")["targets"]) == 120 and len(hooks[2].load()["targets"]) == 80


def test_what_others_wrote_is_left_alone(tmp_path):
    """A folder that is not a split's is refused before the first step;
    also evaluations that were all to be kept, and a copy beside."""
    (tmp_path / "data" / "valid").mkdir(parents=True)
    (tmp_path / "data" / "valid" / "image.png").write_text("precious")
    trainer = make(OutputsHook(tmp_path / "data"))
    with pytest.raises(FileExistsError, match=r"data.valid .*give another folder="):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 0
    make(OutputsHook(tmp_path / "data", keep="all"), epochs=1).fit()  # in a folder of its own there
    with pytest.raises(FileExistsError, match="data.test "):
        (tmp_path / "data" / "test").mkdir()
        (tmp_path / "data" / "test" / "image.png").write_text("precious")
        make(OutputsHook(tmp_path / "data", splits="test")).test(DataLoader(VALID, 16))
    assert [path.read_text() for path in sorted(tmp_path.rglob("image.png"))] == ["precious"] * 2
    make(OutputsHook(tmp_path / "all", keep="all")).fit()
    shutil.copytree(tmp_path / "all" / "valid", tmp_path / "all" / "valid.old")
    with pytest.raises(FileExistsError, match="all.valid "):
        make(OutputsHook(tmp_path / "all")).fit()
    make(OutputsHook(tmp_path / "all", keep="all"), epochs=1).fit()
    assert len(list(tmp_path.glob("all/valid*/step_*"))) == 4


def test_the_table(tmp_path):
    """A line a sample, in the order of the dataset, with the very numbers."""
    hook = OutputsHook(tmp_path)
    make(hook, valid=DataLoader(VALID, 16, shuffle=True)).fit()
    found = hook.load()
    rows = list(csv.DictReader(open(tmp_path / "valid" / "results.csv")))
    assert [int(row["index"]) for row in rows] == list(range(80))
    assert [int(row["target"]) for row in rows] == found["targets"].tolist()
    assert [np.float32(row["loss"]) for row in rows] == found["losses"].tolist()
    assert list(rows[0]) == ["index", "target", "loss", "prediction"]


def test_parquet(tmp_path, monkeypatch):
    """The same as a parquet file; without pyarrow an error that says what to install."""
    parquet = pytest.importorskip("pyarrow.parquet")
    hook = OutputsHook(tmp_path, format="parquet")
    make(hook, epochs=1).fit()
    table, found = (parquet.read_table(tmp_path / "valid" / "results.parquet").to_pydict(),
                    hook.load())
    assert table["loss"] == found["losses"].tolist() and table["index"] == list(range(80))
    assert not (tmp_path / "valid" / "results.csv").exists()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"trainer_nb\[outputs\]"):
        OutputsHook(tmp_path, format="parquet")


def test_all_evaluations_are_kept(tmp_path):
    """A folder a step; without a step the one written last."""
    hook = OutputsHook(tmp_path, keep="all", format="npy")
    trainer = make(hook)
    trainer.step(13)
    first = expected(trainer)["losses"]
    trainer.fit()
    check(hook.load(), expected(trainer))
    assert sorted(path.name
                  for path in (tmp_path / "valid").iterdir()) == ["step_00000012", "step_00000024"]
    assert not np.allclose(hook.load(step=12)["losses"], first)
    assert hook.load(step=12)["losses"].shape == (80,)
    assert not list(tmp_path.rglob("results.csv"))


@pytest.mark.parametrize(("loss_fn", "there"), [
    (nn.CrossEntropyLoss(), True), (F.cross_entropy, True),
    (functools.partial(F.cross_entropy, label_smoothing=0.1), True),
    (nn.CrossEntropyLoss(reduction="sum"), True),
    (lambda pred, target: F.cross_entropy(pred, target), False)])
def test_losses_of_samples(loss_fn, there, tmp_path):
    """Those of torch's losses, whose mean (or sum) is the loss;
    of another function there are none, and nothing fails."""
    hook = OutputsHook(tmp_path)
    trainer = make(hook, loss_fn=loss_fn, valid=DataLoader(VALID, 80), epochs=1)
    trainer.fit()
    losses = hook.load()["losses"]
    assert (losses is not None) is there
    if there:
        total = losses.sum() if getattr(loss_fn, "reduction", "") == "sum" else losses.mean()
        assert total == pytest.approx(trainer.records["valid/loss"], rel=1e-5)
    else:
        assert "'losses'" in (tmp_path / "valid" / "about.json").read_text()
        with pytest.raises(ValueError, match="no losses in the split 'valid'.*under 'losses'"):
            make(OutputsHook(tmp_path, fields=("losses",)), loss_fn=loss_fn, epochs=1).fit()


def test_several_losses_a_sample():
    """Their mean, or their sum where the loss is a sum."""
    pred, target = torch.randn(5, 3, 2), torch.randn(5, 3, 2)
    each = (pred - target).square().reshape(5, -1)
    assert torch.allclose(per_sample_loss(nn.MSELoss())(pred, target), each.mean(1))
    assert torch.allclose(per_sample_loss(nn.MSELoss(reduction="sum"))(pred, target), each.sum(1))
    loss_fn = nn.MSELoss()
    per_sample_loss(loss_fn)(pred, target)
    assert loss_fn.reduction == "mean"


def test_a_step_of_ones_own(tmp_path):
    """It returns prediction, target and losses;
    a regression has no classes, a function says what is predicted."""
    def step(batch, trainer):
        x, y = batch
        pred = trainer.model(x)
        losses = (pred[:, 0] - y).square()
        return {"loss": losses.mean(), "losses": losses, "pred": pred, "target": y}
    hook = OutputsHook(tmp_path / "a")
    trainer = make(hook, loss_fn=None, train_step=step)
    trainer.fit()
    found = hook.load()
    assert np.allclose(found["losses"], (found["outputs"][:, 0] - found["targets"])**2, rtol=1e-5)
    assert "train/losses" not in trainer.history
    rounded = OutputsHook(tmp_path / "b", predict=lambda pred: pred[:, 0].round())
    trainer = make(rounded, loss_fn=None,
                   train_step=lambda batch, trainer: {**step(batch, trainer),
                                                      "target": batch[1].float()})
    trainer.fit()
    found = rounded.load()
    assert (found["predictions"] == found["outputs"][:, 0].round()).all()


def test_half_precision(tmp_path):
    """bf16 outputs are written as float32; the losses are those of the evaluation."""
    hook = OutputsHook(tmp_path, splits=("train", "valid"))
    trainer = make(hook, mixed_precision="bf16", valid=DataLoader(VALID, 80))
    trainer.fit()
    found = hook.load()
    assert found["outputs"].dtype == found["losses"].dtype == np.float32
    assert found["losses"].mean() == pytest.approx(trainer.records["valid/loss"], rel=1e-6)


def test_parts_of_several_processes(tmp_path):
    """Joined by index, a sample that was seen twice is there twice;
    without indices by the batches of the loader."""
    for rank, indices in enumerate(([0, 2, 4, 6, 6], [1, 3, 5, 0, 2])):
        for name, kept in (("known", torch.tensor(indices)), ("unknown", torch.full((5,), -1))):
            part = Part(tmp_path / name / f"part_{rank}")
            values = {"indices": kept, "outputs": torch.tensor(indices)[:, None] * torch.ones(2)}
            for first in (0, 3):
                piece = slice(first, first + 3)
                part.add({key: value[piece] for key, value in values.items()}, {},
                         batch=2 * (first // 3) + rank)
            part.close()
    for name, order in (("known", [0, 0, 1, 2, 2, 3, 4, 5, 6, 6]),
                        ("unknown", [0, 2, 4, 1, 3, 5, 6, 6, 0, 2])):
        folder = tmp_path / name
        assert join_parts([folder / "part_0", folder / "part_1"],
                          folder) == {"indices": 10, "outputs": 10}
        assert np.load(folder / "outputs.npy")[:, 0].tolist() == order


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.complex64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_arrays_that_grow(dtype, shape, tmp_path):
    """NumPy reads them, whole; before the end the header says that there is nothing."""
    file = NpyFile(tmp_path / "x.npy")
    pieces = [np.ones((count, *shape)).astype(dtype) * (count % 2) for count in (3, 1, 999)]
    for piece in pieces:
        file.append(piece.astype(dtype))
    file.file.flush()
    assert len(np.load(tmp_path / "x.npy")) == 0
    file.close()
    found = np.load(tmp_path / "x.npy")
    assert found.dtype == dtype and np.array_equal(found, np.concatenate(pieces))


def test_memory_stays_as_it_is(tmp_path, monkeypatch):
    """Batches are written as they come: no more than a few MB wait."""
    most = []
    flush = Part.flush
    monkeypatch.setattr(Part, "flush", lambda self: (most.append(self._bytes), flush(self)))
    part = Part(tmp_path / "part")
    for _ in range(40):
        part.add({"outputs": torch.zeros(1000, 250)}, {})
    part.close()
    assert max(most) < (1 << 22) + 1_100_000
    assert np.load(tmp_path / "part" / "outputs.npy").shape == (40_000, 250)


def test_a_model_that_reuses_its_memory(tmp_path):
    """What it said to a batch is written, though the next batch has its place by then."""
    class Reuse(nn.Linear):
        def forward(self, x):
            pred = super().forward(x)
            if self.training:
                return pred
            place = self.__dict__.setdefault("place", torch.zeros(16, 10))
            return place.copy_(pred)
    hook = OutputsHook(tmp_path)
    trainer = make(hook, model=Reuse(64, 10))
    trainer.fit()
    trainer.model.train()
    wanted = F.linear(X[120:], trainer.model.weight, trainer.model.bias).detach().numpy()
    assert np.allclose(hook.load()["outputs"], wanted, atol=1e-6)


def test_outputs_of_unequal_length(tmp_path):
    """Cannot be one array: the error says what to leave out."""
    class Ragged(Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return torch.zeros(3 + index), torch.zeros(3 + index)
    class Same(nn.Linear):
        def forward(self, x):
            return x * self.weight
    trainer = make(OutputsHook(tmp_path), model=Same(1, 1), loss_fn=nn.MSELoss(),
                   train=DataLoader(Ragged(), 1), valid=DataLoader(Ragged(), 1))
    with pytest.raises(ValueError, match="leave '(outputs|targets)' out of fields="):
        trainer.fit()


def test_bad_settings(tmp_path):
    """Refused before the first step, with the nearest right one."""
    with pytest.raises(ValueError, match="did you mean 'valid'"):
        make(OutputsHook(tmp_path, splits=("vaild",))).fit()
    with pytest.raises(RuntimeError, match="nothing was written yet"):
        OutputsHook().load()


def test_in_the_workspace(tmp_path):
    """Without a folder of its own."""
    hook = OutputsHook()
    with make(hook, workspace=tmp_path / "run", epochs=1) as trainer:
        trainer.fit()
    assert (tmp_path / "run" / "outputs" / "valid" / "losses.npy").exists()
    assert len(hook.load()["losses"]) == 80


@pytest.mark.parametrize("loss_fn", [
    nn.CrossEntropyLoss(), nn.CrossEntropyLoss(ignore_index=2), F.cross_entropy,
    functools.partial(F.cross_entropy, ignore_index=1), nn.CrossEntropyLoss(reduction="sum")])
def test_ignored_targets_are_no_part_of_a_samples_mean(loss_fn):
    """The loss of a sample is what the loss function gives for it alone."""
    draw = torch.Generator().manual_seed(0)
    pred = torch.randn(4, 3, 8, generator=draw)
    target = torch.randint(0, 3, (4, 8), generator=draw)
    target[0, 1:] = getattr(loss_fn, "ignore_index", -100)
    if isinstance(loss_fn, functools.partial):
        target[0, 1:] = 1
    target[:, 0] = 0
    alone = torch.stack([loss_fn(pred[at:at + 1], target[at:at + 1]) for at in range(4)])
    assert torch.allclose(per_sample_loss(loss_fn)(pred, target), alone)
