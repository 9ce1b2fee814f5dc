"""What cannot be is told in words that help:
a copy of a trainer, a metric that is not a number, predictions that do not join."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import CheckpointHook, EMAHook, LambdaHook, Trainer
from trainer_nb.core.step import EvaluationTotals

X, Y = torch.arange(30.0).reshape(10, 3) / 10, torch.arange(10) % 2


def make(model=None, **settings):
    """Two classes, batches of 4, 4 and 2."""
    torch.manual_seed(0)
    data = TensorDataset(X, Y)
    settings = {"loss_fn": nn.CrossEntropyLoss(), "valid_dl": DataLoader(data, 4), "epochs": 2,
                "seed": 0} | settings
    return Trainer(model or nn.Linear(3, 2), train_dl=DataLoader(data, 4), progress=False,
                   device="cpu", **settings)


class Own(Trainer):
    """A class of the user's."""


@pytest.mark.parametrize("act",
                         [pickle.dumps, copy.deepcopy, copy.copy,
                          lambda trainer: copy.deepcopy({"run": [trainer]})])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_trainer_is_saved_and_not_copied(act, steps, tmp_path):
    """The error names what keeps a run, and the run goes on."""
    trainer = make()
    if steps:
        trainer.step(steps)
    ways = r"trainer\.save\(path\).*trainer\.state_dict\(\).*trainer\.export\(path\)"
    with pytest.raises(TypeError, match=ways):
        act(trainer)
    trainer.fit()
    straight = make()
    straight.fit()
    assert torch.equal(trainer.model.weight, straight.model.weight)


def test_whatever_holds_a_trainer_says_so_too(tmp_path):
    """torch.save, a class of the user's, a model that knows its trainer."""
    trainer = Own(nn.Linear(3, 2), train_dl=DataLoader(TensorDataset(X, Y), 4),
                  loss_fn=nn.CrossEntropyLoss(), epochs=1, progress=False)
    with pytest.raises(TypeError, match="Own cannot be pickled or copied"):
        torch.save(trainer, tmp_path / "trainer.pt")
    trainer.model.owner = trainer
    with pytest.raises(TypeError, match="Own cannot be pickled or copied"):
        copy.deepcopy(trainer.model)


class Collected:
    """A metric with a state, as those of torchmetrics are."""

    def __init__(self, value):
        self.value = value

    def reset(self):
        """Nothing is kept."""

    def update(self, pred, target):
        """Nothing is counted."""

    def compute(self):
        """What it was given."""
        return self.value

    __call__ = compute


BAD = [(None, "None"), (torch.zeros(2), r"shape \(2,\)"), (np.zeros((2, 2)), r"shape \(2, 2\)"),
       ([0.5, 0.5], "list"), ("0.5", "str"),
       (torch.zeros(0), r"shape \(0,\)"), (torch.tensor(1j), "complex64"), (1j, "complex")]


@pytest.mark.parametrize(("value", "what"), BAD)
@pytest.mark.parametrize("collected", [False, True])
def test_a_metric_that_is_no_number_is_named(value, what, collected):
    """With its kind or shape and the remedy;
    nothing is recorded, and the run goes on once it is mended."""
    bad = Collected(value) if collected else lambda pred, target: value
    trainer = make(
        metrics={"accuracy": lambda pred, target: (pred.argmax(-1) == target).float().mean(),
                 "per_class": bad})
    with pytest.raises(TypeError,
                       match=rf"the metric 'per_class' returned .*{what}.*one number") as told:
        trainer.fit()
    assert ("None" in str(told.value)
            if value is None else "mean" in str(told.value) or "number" in str(told.value))
    assert "valid/loss" not in trainer.history.names and not trainer.records
    trainer.metrics.pop("per_class")
    assert trainer.fit().epochs == 2 and "valid/accuracy" in trainer.history.names


@pytest.mark.parametrize("value",
                         [1, 0.5, True, torch.tensor(0.5), torch.tensor([[0.5]]), torch.tensor(2),
                          np.float32(0.5), np.array([0.5]),
                          torch.tensor(0.5, dtype=torch.bfloat16)])  # fmt: skip
def test_what_is_one_number_is_taken(value):
    """Of any kind, with one element."""
    trainer = make(metrics={"mine": lambda pred, target: value, "theirs": Collected(value)})
    found = trainer.validate()
    assert found[
        "valid/mine"] == found["valid/theirs"] == float(value.item()
                                                        if hasattr(value, "item") else value)


def test_a_collected_dict_names_the_part():
    """A metric that computes several values: the one that is not a number."""
    trainer = make(metrics={"scores": Collected({"f1": 0.5, "confusion": torch.zeros(2, 2)})})
    with pytest.raises(TypeError, match=r"the metric 'scores/confusion' returned .*shape \(2, 2\)"):
        trainer.validate()
    assert make(metrics={"scores": Collected({"f1": 0.5,
                                              "recall": 1})}).validate()["valid/scores/recall"] == 1


def test_a_metric_function_is_asked_first():
    """Its value is looked at before the batch counts in anything."""
    totals = EvaluationTotals({"bad": lambda pred, target: None}, keep_outputs=True)
    with pytest.raises(TypeError, match="'bad'"):
        totals.add({"loss": torch.tensor(1.0), "pred": X, "target": Y}, 2)
    assert not totals.means.values and not totals.outputs


class Tokens(nn.Module):
    """Predictions as long as the longest sample of the batch."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 2)

    def forward(self, tokens):
        """Two values a token."""
        return self.head(tokens.unsqueeze(-1))


def padded(samples):
    """Samples of one batch, padded to the longest."""
    return nn.utils.rnn.pad_sequence([torch.ones(length) for length in samples], batch_first=True)


RAGGED = DataLoader([1, 2, 3, 3, 5, 1, 2], 3, collate_fn=padded)


def test_predictions_of_several_lengths_come_batch_by_batch():
    """All of them, in order, with one warning that says what came and how to get one tensor."""
    trainer = make(Tokens())
    with pytest.warns(UserWarning) as told:
        parts = trainer.predict(RAGGED)
    assert [type(parts),
            *(tuple(part.shape) for part in parts)] == [list, (3, 3, 2), (3, 5, 2), (1, 2, 2)]
    assert all(torch.equal(part, trainer.model(batch))
               for part, batch in zip(parts, RAGGED, strict=True))
    texts = [str(each.message) for each in told]
    assert len(texts) == 1 and "list" in texts[0] and "3 batches" in texts[0] and "pad" in texts[0]


def own_step(give):
    """A train_step whose prediction is what a function makes of the batch."""
    def step(batch, trainer):
        inputs, targets = batch
        return {"loss": nn.functional.cross_entropy(trainer.model(inputs), targets),
                "pred": give(inputs)}
    return step


@pytest.mark.parametrize("give", [
    lambda inputs: inputs.sum(),  # one number a batch
    lambda inputs: {"logits": inputs, "mask": inputs[0, : len(inputs) // 2].repeat(len(inputs), 1)},
    # a list that is no list of samples, and shorter for the last batch
    lambda inputs: [each[None] for each in inputs[1:]],
    lambda inputs: {"a": inputs} if len(inputs) == 4 else {"a": inputs, "b": inputs},
    lambda inputs: inputs if len(inputs) == 4 else None or (inputs,),
])
def test_no_part_of_a_prediction_is_lost(give):
    """Nested ones too: where any part does not join, each batch's prediction is whole."""
    trainer = make(train_step=own_step(give), loss_fn=None)
    with pytest.warns(UserWarning, match="list of the 3 batches"):
        parts = trainer.predict(trainer.valid_dl)
    plain = [give(inputs) for inputs, _ in trainer.valid_dl]
    assert torch.utils._pytree.tree_structure(parts) == torch.utils._pytree.tree_structure(plain)
    leaves = [torch.utils._pytree.tree_leaves(each) for each in (parts, plain)]
    assert all(torch.equal(a, b) for a, b in zip(*leaves, strict=True))


def test_what_joins_is_joined_without_a_word():
    """Tensors, tuples and dicts of them; what is not a tensor comes as a list of the batches, as
    ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(make(train_step=own_step(lambda x: x),
                                loss_fn=None).predict(DataLoader(TensorDataset(X, Y), 4)), X)
        both = make(train_step=own_step(lambda x: (x, {"twice": 2 * x})),
                    loss_fn=None).predict(DataLoader(TensorDataset(X, Y), 4))
        assert torch.equal(both[0], X) and torch.equal(both[1]["twice"], 2 * X)
        texts = make(train_step=own_step(lambda x: "text"),
                     loss_fn=None).predict(DataLoader(TensorDataset(X, Y), 4))
        assert texts == ["text"] * 3


def test_a_hook_may_log_in_on_log_but_not_for_ever():
    """What it logs for some records is recorded; one that logs for each is told so, and the run can
    go on without it."""
    logged = LambdaHook(on_log=lambda trainer, records: "valid/loss" in records and trainer.log(
        {"double": 2 * records["valid/loss"]}))
    trainer = make(hooks=[logged])
    trainer.fit()
    assert trainer.history["double"][-1] == 2 * trainer.history["valid/loss"][-1]
    endless = LambdaHook(on_log=lambda trainer, records: trainer.log({"more": 1.0}))
    trainer = make(hooks=[endless])
    with pytest.raises(RuntimeError, match="a hook's on_log logs each time it is called"):
        trainer.fit()
    trainer.hooks.remove(endless)
    trainer.fit(epochs=3)
    assert trainer.state == "finished"

    def own(depth=0):
        return own(depth + 1)

    trainer = make(hooks=[LambdaHook(on_log=lambda trainer, records: own())])
    with pytest.raises(RecursionError):
        trainer.fit()


@pytest.mark.parametrize("given", ["ema", EMAHook(), None])
def test_a_hook_is_asked_for_by_its_class(given):
    """A name, or a hook, is refused with what to write; a class or several are taken."""
    trainer = make(hooks=[EMAHook()])
    with pytest.raises(TypeError, match=r"give the class of a hook, say get_hook\(Checkp"):
        trainer.get_hook(given)
    assert trainer.get_hook((CheckpointHook, EMAHook)) is trainer.get_hook(EMAHook) is not None
    assert trainer.get_hook(CheckpointHook, 3) == 3
