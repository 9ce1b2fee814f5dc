"""Samples of evaluations: the worst ones, the confusion matrix, pictures and texts;
and the training does not feel it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sample_runs import VALID, by_hand, make
from sklearn.metrics import confusion_matrix
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from trainer_nb import Hook, OutputsHook, SamplesHook, SnapshotHook, Trainer
from trainer_nb.hooks.samples import (FAR, LONGEST_TEXT, MOST_CLASSES, SIDE, Sample,
                                      SampledEvaluation, as_pixels, joined)


@pytest.mark.slow
@pytest.mark.parametrize("settings",
                         [{}, {"mixed_precision": "bf16"}, {"ema": 0.9},
                          {"gradient_accumulation_steps": 2, "micro_batch_size": 7}])
def test_the_training_does_not_feel_it(settings):
    """Weights, buffers and records, bit for bit."""
    plain, kept = make(**settings), make(SamplesHook(), **settings)
    plain.fit()
    kept.fit()
    assert all(torch.equal(a, b)
               for a, b in zip(plain.model.state_dict().values(), kept.model.state_dict().values(),
                               strict=True))
    assert plain.history["valid/loss"].tolist() == kept.history["valid/loss"].tolist()


def test_the_worst_samples_and_the_matrix_are_right():
    """Against losses by hand and scikit-learn's matrix, in every evaluation."""
    samples, truth = SamplesHook(worst=12), {}
    class ByHand(Hook):
        order = 100
        def after_valid(self, trainer):
            truth[trainer.step_state.optimizer_step] = by_hand(trainer)
    trainer = make(samples, ByHand())
    trainer.fit()
    assert [each.step for each in samples.evaluations] == [10, 20] == list(truth)
    assert samples.evaluations[0].samples == 123
    for found in samples.evaluations:
        losses, predictions = truth[found.step]
        order = losses.argsort(descending=True)[:12]
        assert [each.index for each in found.worst] == order.tolist()
        assert np.allclose([each.loss for each in found.worst], losses[order], rtol=1e-4)
        targets = VALID.tensors[1]
        assert (found.matrix == confusion_matrix(targets, predictions, labels=range(10))).all()
        assert found.correct == int((targets == predictions).sum())
        for each in found.worst:
            assert each.target == targets[each.index] and each.prediction == predictions[each.index]
            wanted = (VALID.tensors[
                0][each.index].permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
            assert (each.picture == wanted).all() and not each.scaled


def test_the_prediction_of_a_regression_is_the_output():
    """One number a sample, beside its target; not where a sample has several."""
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    for y, known in ((x[:, :1], True), (x[:, 0], True), (x[:, :2], False)):
        net = nn.Sequential(nn.Linear(4, y.shape[1] if y.ndim > 1 else 1),
                            nn.Flatten(0) if y.ndim == 1 else nn.Identity())
        samples, data = SamplesHook(worst=3), DataLoader(TensorDataset(x, y), 16)
        trainer = Trainer(net, train_dl=data, valid_dl=data, loss_fn=nn.MSELoss(), epochs=1,
                          device="cpu", seed=0, progress=False, hooks=[samples])
        trainer.fit()
        for each in samples.evaluations[-1].worst:
            wanted = net(x[each.index:each.index + 1])
            assert (each.prediction == pytest.approx(wanted.item(), abs=1e-5) if known
                    else each.prediction is None)
            assert (each.target is not None) == known
        assert samples.evaluations[-1].matrix is None


def test_pictures_are_small_and_say_when_they_are_scaled():
    """Bounded to 96 pixels; own range for values that are not shares;
    grey and colour, channels first and last."""
    wide, scaled = as_pixels(torch.randn(2, 3, 300, 150))
    assert wide.shape == (2, SIDE, 48, 3) and scaled.tolist() == [True, True]
    for each in wide:
        assert each.min() == 0 and each.max() == 255
    share = torch.rand(2, 1, 5, 7)
    pixels, scaled = as_pixels(share)
    assert torch.equal(pixels[..., 0], (share[:, 0] * 255).round().to(torch.uint8))
    assert not scaled.any()
    given = torch.randint(0, 256, (2, 6, 5, 3), dtype=torch.uint8)
    assert torch.equal(as_pixels(given)[0], given)
    assert as_pixels(torch.full((1, 1, 4, 4), float("nan")))[0].max() == 0
    assert as_pixels(torch.zeros(1, 4, 9, 9))[0].shape == (1, 9, 9, 3)
    assert as_pixels(torch.zeros(2, 4, 9))[0].shape == (2, 4, 9, 1)


class Texts(Dataset):
    """Sentences as text and as tokens."""

    def __len__(self):
        return 30

    def __getitem__(self, at):
        return {"text": f"<b>sentence {at}</b> " + "long " * 200,
                "tokens": torch.tensor([at, at + 1]), "x": torch.tensor([float(at)]),
                "y": torch.tensor([0.0])}


def step(batch, trainer):
    """A regression on the number of the sentence."""
    pred = trainer.model(batch["x"])
    return {"loss": nn.functional.mse_loss(pred, batch["y"]),
            "losses": (pred - batch["y"]).detach().square().squeeze(1), "pred": pred,
            "target": batch["y"]}


@pytest.mark.parametrize("settings",
                         [{}, {"inputs": lambda batch: batch["tokens"],
                               "as_text": lambda row: f"decoded {row.tolist()}"}])
def test_texts(settings):
    """A list of strings in the batch, or rows that are decoded; cut;
    the losses that the step returns count."""
    samples = SamplesHook(worst=3, **settings)
    model = nn.Linear(1, 1)
    trainer = Trainer(model, step, DataLoader(Texts(), 10), DataLoader(Texts(), 7, shuffle=True),
                      epochs=1, seed=0, hooks=[samples], progress=False, device="cpu",
                      optim=lambda p: torch.optim.SGD(p, lr=1e-9))  # fmt: skip
    trainer.fit()
    worst = samples.evaluations[-1].worst
    with torch.no_grad():
        losses = model(torch.arange(30.0)[:, None]).square().flatten()
    assert [each.index for each in worst] == losses.argsort(descending=True)[:3].tolist()
    for each in worst:
        wanted = (f"<b>sentence {each.index}</b>"
                  if not settings else f"decoded [{each.index}, {each.index + 1}]")
        assert each.text.startswith(wanted)
        assert len(each.text) <= LONGEST_TEXT and each.picture is None and each.target == 0.0
    assert samples.evaluations[-1].matrix is None


class Stream(IterableDataset):
    """Samples without an index."""

    def __iter__(self):
        return iter([VALID[at] for at in range(50)])


def test_a_loader_without_indices():
    """The place in its order is known, and is that of the sample."""
    samples = SamplesHook(worst=5)
    trainer = make(samples, valid=DataLoader(Stream(), 20))
    trainer.fit()
    worst, losses = samples.evaluations[-1].worst, by_hand(trainer)[0][:50]
    assert [each.index for each in worst] == [-1] * 5
    assert [each.place for each in worst] == losses.argsort(descending=True)[:5].tolist()


def test_a_loss_without_reduction_needs_a_function():
    """Without one the reason is there, and the matrix all the same; with one its losses count."""
    def loss_fn(pred, target):
        return nn.functional.cross_entropy(pred, target) * 2
    samples, own = (SamplesHook(),
                    SamplesHook(worst=3,
                                loss=lambda pred, target: nn.functional.cross_entropy(
                                    pred, target, reduction="none") * 2))
    trainer = make(samples, own, loss_fn=loss_fn)
    trainer.fit()
    last = samples.evaluations[-1]
    assert last.worst == [] and "'losses'" in last.absent["losses"] and last.matrix.sum() == 123
    losses = 2 * by_hand(trainer)[0]
    assert np.allclose([each.loss for each in own.evaluations[-1].worst],
                       losses.sort(descending=True).values[:3], rtol=1e-4)


def test_losses_that_are_not_finite_come_first():
    """NaN and inf are worse than any number."""
    found = SampledEvaluation("valid", 1, 0)
    found.add([Sample(1e9, 1, 1), Sample(float("nan"), 2, 2), Sample(float("inf"), 3, 3),
               Sample(2.0, 4, 4), Sample(2.0, 4, 9)], 4)
    assert [each.index for each in found.worst] == [2, 3, 1, 4]
    samples = SamplesHook(worst=2)
    bad = TensorDataset(VALID.tensors[0].clone(), VALID.tensors[1])
    bad.tensors[0][[5, 90]] = float("nan")
    trainer = make(samples, valid=DataLoader(bad, 40), non_finite=None)
    trainer.validate()
    assert sorted(each.index for each in samples.evaluations[-1].worst) == [5, 90]
    assert samples.evaluations[-1].worst[0].picture.max() == 0


@pytest.mark.slow
def test_what_is_kept_is_bounded():
    """Evaluations, classes, what is logged; ignored targets are not counted."""
    samples = SamplesHook(worst=1, keep=3, logged=2)
    trainer = make(samples, epochs=5)
    trainer.fit()
    assert [each.step for each in samples.evaluations] == [30, 40, 50]
    found = SampledEvaluation("valid", 1, 0)
    found.count(np.array([0, -100, 2]), np.array([0, 1, 1]))
    assert found.matrix.sum() == 2 and found.matrix.shape == (3, 3)
    found.count(np.array([MOST_CLASSES]), np.array([0]))
    assert found.matrix is None and "more than 100 classes" in found.absent["matrix"]
    for n in range(4):
        trainer.log_images({f"picture {n}": torch.rand(3, 200, 100)})
    samples.log_texts(trainer, {"note": "x" * 9999})
    assert [(step, name) for step, name, _ in samples.log] == [(50, "picture 3"), (50, "note")]
    assert samples.log[0][2].picture.shape == (96, 48, 3)
    assert len(samples.log[1][2].text) == LONGEST_TEXT
    with pytest.raises(ValueError, match="not HxW"):
        trainer.log_images({"bad": torch.zeros(2)})


def test_parts_of_several_processes_are_joined():
    """Places count over all batches; samples without an index stay apart."""
    def part(numbers, losses):
        found = SampledEvaluation(
            "valid",
            5,
            0,
            sum(numbers.values()),
            [Sample(loss, -1, number * FAR + row) for number, row, loss in losses],
            np.eye(2, dtype=np.int64),
        )
        return found, numbers

    whole = joined(
        [part({0: 4, 2: 3}, [(2, 1, 9.0), (0, 3, 1.0)]), part({1: 4}, [(1, 1, 5.0), (1, 0, 2.0)])],
        3,
    )
    assert [(each.loss, each.place) for each in whole.worst] == [(9.0, 9), (5.0, 5), (2.0, 4)]
    assert whole.samples == 11 and whole.matrix.tolist() == [[2, 0], [0, 2]]


def test_a_process_without_a_batch_of_a_loader():
    """The loaders are told apart by name, however many a process has had."""
    samples = SamplesHook(worst=2)
    mine = {
        "few": (SampledEvaluation("few", 0, 0, 2, [Sample(3.0, 1, 1)]), {0: 2}),
        "valid": (SampledEvaluation("valid", 0, 0, 2, [Sample(1.0, 0, 0)]), {0: 2}),
    }
    theirs = {"valid": (SampledEvaluation("valid", 0, 0, 3, [Sample(2.0, 3, FAR + 1)]), {1: 3})}
    trainer = SimpleNamespace(
        engine=SimpleNamespace(gather=lambda value: [mine, theirs]),
        evaluator=SimpleNamespace(),
        step_state=SimpleNamespace(optimizer_step=0),
    )
    samples.after_valid(trainer)
    assert [
        (each.split, each.samples, [(one.index, one.place) for one in each.worst])
        for each in samples.evaluations
    ] == [("few", 2, [(1, 1)]), ("valid", 5, [(3, 3), (0, 0)])]


@pytest.mark.slow
def test_a_rewind_takes_evaluations_back():
    """What came later is forgotten, what was logged too."""
    samples = SamplesHook(worst=1)
    trainer = make(samples, SnapshotHook(every_steps=5, every_epochs=None), epochs=4)
    trainer.step(31)
    samples.log_texts(trainer, {"late": "text"})
    assert [each.step for each in samples.evaluations] == [10, 20, 30]
    trainer.rewind(25)
    assert [each.step for each in samples.evaluations] == [10, 20] and samples.log == []
    trainer.fit()
    assert [each.step for each in samples.evaluations] == [10, 20, 30, 40]


def test_several_loaders_and_another_hook_that_wants_indices(tmp_path):
    """Each has its own; OutputsHook writes the same losses;
    a stop in an evaluation leaves nothing half done."""
    samples, outputs = SamplesHook(worst=4), OutputsHook(tmp_path / "out")
    trainer = make(samples, outputs,
                   valid={"valid": DataLoader(VALID, 40, shuffle=True),
                          "other": DataLoader(TensorDataset(*VALID[:50]), 50)})
    trainer.fit()
    assert [(each.split, each.step, each.samples) for each in samples.evaluations] == [
        ("valid", 10, 123), ("other", 10, 50), ("valid", 20, 123), ("other", 20, 50)]
    written = outputs.load("valid")["losses"]
    assert [each.index
            for each in samples.evaluations[
                2].worst] == np.argsort(-written, kind="stable")[:4].tolist()


@pytest.mark.parametrize("settings",
                         [{"worst": 65}, {"worst": -1}, {"keep": 0}, {"logged": 1.5},
                          {"worst": True}])
def test_bounds_are_checked(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}="):
        SamplesHook(**settings)
