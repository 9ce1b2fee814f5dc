"""How many samples a batch holds: known for certain, said by the user, or an error before anything
is made of it."""

import dataclasses
from collections import namedtuple

import numpy as np
import pytest
import small_runs
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.core.data import uncertain_size
from trainer_nb import LambdaHook, OutputsHook, Trainer
from trainer_nb.core.data import batch_size
from trainer_nb.hooks.outputs import load_outputs

Pair = namedtuple("Pair", "inputs targets")


@dataclasses.dataclass
class Plain:
    """A batch with names."""

    x: torch.Tensor
    name: object


class Moved:
    """An object of another library, with a `.to`."""

    def __init__(self, *parts):
        self.x, self.y = parts

    def to(self, device):
        """Moved to a device."""
        return type(self)(self.x.to(device), self.y.to(device))


class Graphs(Moved):
    """One that says how many there are."""

    num_graphs = property(lambda self: len(self.y))


def image(*size):
    """A picture, channels first."""
    return torch.ones(3, *size)


CERTAIN = {
    "tensor": (torch.ones(6, 2), 6),
    "pair": ((torch.ones(5, 2), torch.ones(5)), 5),
    "what torch puts together": ([torch.ones(5, 3, 4, 4), torch.ones(5), torch.ones(5)], 5),
    "two inputs": (([torch.ones(5, 2), torch.ones(5, 3)], torch.ones(5)), 5),
    "a number beside": ({"scale": torch.tensor(1.0), "x": torch.ones(4, 2)}, 4),
    "texts beside": ({"ids": ["a", "b"], "x": torch.ones(4, 2), "split": "train"}, 4),
    "texts": (["a", "b", "c"], 3),
    "lists of texts": (Pair(["a", "b"], ["c", "d"]), 2),
    "a dict of lists": ({"text": ["a", "b"], "label": [0, 1]}, 2),
    "dataclass": (Plain(torch.ones(6), "text"), 6),
    "arrays": ((np.ones((7, 2)), np.ones(7)), 7),
    "one number": (torch.tensor(1.0), 1),
    "nothing at all": (None, 1),
    "images with labels": (([image(4, 5), image(6, 7), image(2, 2)], torch.ones(3)), 3),
    "packed": ((pack_sequence([torch.ones(4, 2), torch.ones(2, 2)]), torch.ones(2)), 2),
    "graphs": (Graphs(torch.ones(9, 2), torch.ones(4)), 4),
    "views of small images": ([torch.ones(8, 28, 28), torch.ones(8, 28, 28), torch.ones(8, 28, 28)],
                              8),
}
UNCERTAIN = {
    "other lengths": (torch.ones(5, 2), torch.ones(7)),
    "images and labels": ([image(4, 5)] * 4, torch.ones(4)),
    "images of one size": [image(4, 4)] * 4,
    "images in lists": ([image(4, 4)] * 2, [{"label": "a"}] * 2),
    "boxes": ((image(4, 5), image(3, 6)),
              ({"boxes": torch.ones(2, 4)}, {"boxes": torch.ones(1, 4)})),
    "sequences": [torch.ones(4), torch.ones(2), torch.ones(7)],
    "samples as dicts": [{"x": torch.ones(9), "y": torch.tensor(1)}] * 4,
    "samples as pairs": [(torch.ones(9), torch.tensor(1))] * 4,
    "an object": Moved(torch.ones(9, 2), torch.ones(4)),
    "graphs as a dataclass": Plain(torch.ones(9, 2), torch.ones(4)),
    "lists of other lengths": {"text": ["a", "b"], "label": [0]},
}


@pytest.mark.parametrize("name", CERTAIN)
def test_what_is_certain(name):
    """All tensors share their first dimension, or the batch says it itself."""
    batch, size = CERTAIN[name]
    assert batch_size(batch) == size


def test_the_size_of_a_nested_tensor_is_certain():
    parts = [torch.ones(2), torch.ones(3)]
    assert batch_size(torch.nested.nested_tensor(parts, layout=torch.jagged)) == 2


@pytest.mark.parametrize("name", UNCERTAIN)
def test_what_is_not_certain(name):
    """Nothing is guessed."""
    assert batch_size(UNCERTAIN[name]) is None


# ---- in a run: detection batches, tuples of images and of targets

draw = torch.Generator().manual_seed(0)
SAMPLES = [(torch.rand(3, *torch.randint(4, 9, (2,), generator=draw).tolist(), generator=draw),
            {"boxes": torch.rand(int(torch.randint(1, 4, (1,), generator=draw)), 4,
                                 generator=draw)}) for _ in range(14)]


def gather(samples):
    """Torchvision's own way to put samples together."""
    return tuple(zip(*samples))


class Detector(nn.Module):
    """One box of the mean colour."""

    def __init__(self):
        super().__init__()
        self.boxes = nn.Linear(3, 4).double()

    def forward(self, images, targets):
        """The mean loss over the images."""
        found = self.boxes(torch.stack([each.double().mean((1, 2)) for each in images]))
        return torch.stack([(box - target["boxes"].double()).square().mean()
                            for box, target in zip(found, targets)]).mean()


def plain_step(batch, trainer):
    """Without `n`."""
    return {"loss": trainer.model(*batch)}


def counted_step(batch, trainer):
    """With `n`."""
    return {"loss": trainer.model(*batch), "n": len(batch[0])}


def detection(step=plain_step, size=4, train_dl=None, **settings):
    """A run over 14 images in batches of 4, with windows of three batches:
    the last one has 2 images."""
    torch.manual_seed(0)
    model = Detector()
    loader = DataLoader(SAMPLES, size, collate_fn=gather)
    settings = {"gradient_accumulation_steps": 3, "valid_dl": loader, "epochs": 1,
                "progress": False, "device": "cpu"} | settings
    return Trainer(model, step, train_dl or loader, optim=torch.optim.SGD(model.parameters(), 0.5),
                   **settings)


def by_hand():
    """The loss of the images of each window, one by one."""
    torch.manual_seed(0)
    model = Detector()
    optim = torch.optim.SGD(model.parameters(), 0.5)
    for first in (0, 12):
        optim.zero_grad()
        torch.stack([model(*gather([each]))
                     for each in SAMPLES[first:first + 12]]).mean().backward()
        optim.step()
    with torch.no_grad():
        return model, torch.stack([model(*gather([each])) for each in SAMPLES]).mean().item()


@pytest.mark.parametrize("settings",
                         [{"batch_size": lambda batch: len(batch[0])}, {"step": counted_step}],
                         ids=["batch_size", "n"])
def test_said_by_the_user_it_weighs_and_counts(settings):
    """The weights, the mean of the evaluation and samples_seen are those of the images."""
    trainer = detection(**settings)
    result = trainer.fit()
    model, loss = by_hand()
    for own, other in zip(trainer.model.parameters(), model.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)
    assert result.last["valid/loss"] == pytest.approx(loss, rel=1e-12)
    assert trainer.step_state.samples_seen == 14


@pytest.mark.parametrize("settings",
                         [{"batch_size": lambda batch: len(batch[0])}, {"step": counted_step}],
                         ids=["batch_size", "n"])
def test_uneven_batches_of_a_window_weigh_by_their_samples(settings):
    """Five images and one in a window: the mean over six."""
    batches = [gather(SAMPLES[:5]), gather(SAMPLES[5:6])]
    trainer = detection(train_dl=batches, gradient_accumulation_steps=2, valid_dl=None, **settings)
    trainer.fit()
    torch.manual_seed(0)
    model = Detector()
    torch.stack([model(*gather([each])) for each in SAMPLES[:6]]).mean().backward()
    with torch.no_grad():
        for own, other in zip(trainer.model.parameters(), model.parameters()):
            torch.testing.assert_close(own, other - 0.5 * other.grad, rtol=1e-12, atol=1e-12)


def test_without_a_word_it_is_an_error_before_any_step():
    """It names the batch, what was found in it, and both ways out."""
    trainer = detection()
    before = [each.clone() for each in trainer.model.parameters()]
    with pytest.raises(ValueError,
                       match=r"batch 1 of epoch 1.*not certain.*batch_size=lambda batch: "
                             r"len\(batch\[0\]\).*'n'"):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters()))
    assert all(each.grad is None for each in trainer.model.parameters())


def test_an_evaluation_asks_too():
    """The loader and the batch are named."""
    trainer = detection()
    with pytest.raises(ValueError, match=r"batch 0 of the loader 'valid'.*not certain"):
        trainer.validate()
    trainer = detection(batch_size=lambda batch: len(batch[0]))
    assert trainer.validate()["valid/loss"] > 0


def test_batch_size_goes_before_the_tensors():
    """Time in the first dimension: the rule would count steps."""
    batches = [(torch.ones(7, 2, 3), torch.ones(7, 2, 1))] * 2
    trainer = Trainer(nn.Linear(3, 1), train_dl=batches, loss_fn=nn.MSELoss(), epochs=1,
                      progress=False, device="cpu",
                      batch_size=lambda batch: batch[0].shape[1])
    trainer.fit()
    assert trainer.step_state.samples_seen == 4


@pytest.mark.parametrize("given", [8, "8"])
def test_a_number_is_no_batch_size(given):
    """The loader's is meant."""
    with pytest.raises(TypeError, match=r"batch_size=.*DataLoader\(dataset, batch_size="):
        detection(batch_size=given)


@pytest.mark.parametrize("size", [None, 2.5, -1, True])
def test_what_batch_size_returns_is_checked(size):
    """Named with its value."""
    with pytest.raises(TypeError, match="batch_size= returned"):
        detection(batch_size=lambda batch: size).fit()


@pytest.mark.parametrize("size", [2, "auto"])
def test_what_cannot_be_split_is_refused(size):
    """Not cut through its channels, and not passed whole without a word."""
    with pytest.raises(ValueError, match="micro_batch_size=.*batch 1 of epoch 1.*not certain"):
        detection(micro_batch_size=size, step=counted_step).fit()
    for images in (3, 4):  # three: as many as channels
        with pytest.raises(ValueError,
                           match=rf"micro_batch_size=.*batch 1 of epoch 1 \({images} samples\) "
                                 rf"cannot be split"):
            detection(micro_batch_size=size, size=images,
                      batch_size=lambda batch: len(batch[0])).fit()


@pytest.mark.parametrize("make", [lambda: Graphs(torch.ones(9, 2), torch.ones(4)),
                                  lambda: (pack_sequence([torch.ones(4, 2), torch.ones(2, 2)]),
                                           torch.ones(2)),
                                  lambda: ([torch.ones(4), torch.ones(2), torch.ones(7)],
                                           torch.ones(3)),
                                  lambda: ([image(4, 5)] * 3, torch.ones(3))])
def test_objects_and_sequences_are_not_split(make):
    """They were passed whole, with the weight of a part each."""
    model, size = (nn.Linear(1, 1),
                   (lambda batch: len(batch.y if isinstance(batch, Graphs) else batch[1])))
    trainer = Trainer(model, lambda batch, trainer: {"loss": model(torch.ones(1)).sum()}, [make()],
                      epochs=1, progress=False,
                      device="cpu", batch_size=size, micro_batch_size=1)
    with pytest.raises(ValueError, match="cannot be split"):
        trainer.fit()


def test_what_fits_is_not_asked_to_be_split():
    """A limit that no batch exceeds."""
    trainer = detection(micro_batch_size=4, batch_size=lambda batch: len(batch[0]))
    assert trainer.fit().status == "finished" and trainer.step_state.samples_seen == 14


def test_three_columns_of_three_that_torch_put_together():
    """Alone they look like images; torch's own collate function makes columns only."""
    data = TensorDataset(*(torch.ones(11, 5, 5) for _ in range(3)))
    model = nn.Linear(5, 1)
    trainer = Trainer(model, lambda batch, trainer: {"loss": model(batch[0]).mean()},
                      DataLoader(data, 8), DataLoader(data, 8),
                      epochs=1, progress=False, device="cpu")
    assert trainer.fit().status == "finished" and trainer.step_state.samples_seen == 11


def test_a_batch_left_out_counts_nothing():
    """A loss of None says nothing of how many there were."""
    def step(batch, trainer):
        """The first batch is left out."""
        return ({"loss": None}
                if trainer.step_state.batch_idx == 0 and trainer.training
                else counted_step(batch, trainer))

    trainer = detection(step)
    trainer.fit()
    assert trainer.step_state.samples_seen == 10


# ---- n in an evaluation

def test_function_metrics_weigh_by_n():
    """Three tokens in one batch and one in the other, of two sentences each:
    the mean over tokens."""
    batches = [(torch.ones(2, 1), torch.tensor([[1.0], [4.0]]), 3),
               (torch.ones(2, 1), torch.tensor([[9.0], [9.0]]), 1)]

    def step(batch, trainer):
        """The loss is the mean of n items."""
        pred = trainer.model(batch[0])
        return {"loss": pred.mean(), "n": batch[2], "pred": pred, "target": batch[1]}

    trainer = Trainer(nn.Linear(1, 1), step, batches, batches,
                      metrics={"target": lambda pred, target: target.mean()}, epochs=1,
                      progress=False, device="cpu")
    assert trainer.validate()["valid/target"] == pytest.approx((2.5 * 3 + 9) / 4)


def test_a_metric_of_no_items_counts_for_nothing():
    """The mean of nothing is NaN: it does not spoil the others."""
    batches = [(torch.ones(2, 1), torch.tensor([1.0])), (torch.ones(2, 1), torch.ones(0))]

    def step(batch, trainer):
        """The second batch has no target."""
        pred = trainer.model(batch[0])
        return {"loss": pred.mean() if len(batch[1]) else None, "n": len(batch[1]), "pred": pred,
                "target": batch[1]}

    def make(batches):
        """A run that only evaluates."""
        return Trainer(nn.Linear(1, 1), step, batches, batches,
                       metrics={"target": lambda pred, target: target.mean()}, epochs=1,
                       batch_size=lambda batch: 2, progress=False, device="cpu")

    assert make(batches).validate()["valid/target"] == 1.0
    assert np.isnan(make(batches[1:]).validate()["valid/target"])


# ---- hooks

def test_outputs_of_uncertain_batches_have_their_indices(tmp_path):
    """The rows are the images, each with its index."""
    def step(batch, trainer):
        """The loss of each image."""
        losses = torch.stack([trainer.model([image], [target]) for image, target in zip(*batch)])
        return {"loss": losses.mean(), "n": len(losses), "losses": losses.detach()}

    trainer = detection(step, eval_step=step, batch_size=lambda batch: len(batch[0]),
                        hooks=[OutputsHook(tmp_path, fields=("indices", "losses"))])
    trainer.fit()
    found = load_outputs(next(tmp_path.rglob("indices.npy")).parent)
    assert found["indices"].tolist() == list(range(14)) and len(found["losses"]) == 14


def test_a_hook_may_replace_the_batch():
    """What is counted is what the step gets."""
    batches = [(torch.ones(4, 2), torch.ones(4, 1))]
    halved = LambdaHook(before_batch=lambda t: setattr(t, "batch",
                                                       tuple(each[:3] for each in t.batch)))
    trainer = Trainer(nn.Linear(2, 1), train_dl=batches, loss_fn=nn.MSELoss(), epochs=1,
                      progress=False, device="cpu", hooks=[halved])
    trainer.fit()
    assert trainer.step_state.samples_seen == 3


def test_an_empty_validation_batch_is_an_error_that_says_so():
    """As in training."""
    with pytest.raises(ValueError, match="holds no sample"):
        small_runs.make(valid_dl=[(small_runs.X[:0], small_runs.Y[:0])], epochs=1).fit()


def test_the_advice_fits_a_list_of_samples_and_one_of_columns():
    sample = torch.zeros(3), torch.zeros(1)
    columns = [*sample] * 4, [1] * 8
    for batch, words in (([sample] * 5, "len(batch))"), (columns, "len(batch[0]))")):
        assert f"lambda batch: {words}" in str(uncertain_size(batch, "here"))


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("alone", [False, True])
def test_a_loss_of_no_items_is_no_record(accumulation, alone):
    """torch's mean over nothing is NaN; the loss of a window is that of its other batches."""
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    y[8:16] = -100  # padding
    if alone:
        y[:8] = -100

    def step(batch, trainer):
        loss = nn.functional.cross_entropy(trainer.model(batch[0]), batch[1])
        return {"loss": loss, "n": (batch[1] != -100).sum(), "twice": 2 * loss}
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    start = {name: each.clone() for name, each in model.state_dict().items()}
    loader = DataLoader(TensorDataset(x, y), 8)
    trainer = Trainer(model, train_dl=loader, valid_dl=loader, train_step=step, epochs=1,
                      gradient_accumulation_steps=accumulation, device="cpu", progress=False,
                      optim=torch.optim.SGD(model.parameters(), 0.1), non_finite=None)
    trainer.fit()
    byhand = nn.Linear(6, 2)
    byhand.load_state_dict(start)
    optim = torch.optim.SGD(byhand.parameters(), 0.1)
    wanted, at = [], []
    for number, first in enumerate(range(0, 48, 8 * accumulation), 1):
        rows = slice(first, first + 8 * accumulation)
        loss = nn.functional.cross_entropy(byhand(x[rows]), y[rows])
        if loss.isfinite():
            wanted.append(loss.item())
            at.append(number)
            optim.zero_grad()
            loss.backward()
            optim.step()
    assert trainer.history.steps("train/loss").tolist() == at
    assert trainer.history["train/loss"] == pytest.approx(wanted, rel=1e-5)
    assert trainer.history["train/twice"] == pytest.approx([2 * each for each in wanted], rel=1e-5)
    assert torch.allclose(trainer.model.weight, byhand.weight) and trainer.alerts == []
