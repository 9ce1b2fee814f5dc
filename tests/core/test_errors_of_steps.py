"""Mistakes in a step, or around it, are told in words, before anything has changed."""

import functools

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import LambdaHook, Trainer

X, Y = torch.randn(40, 4), torch.randn(40, 1)
DATA = DataLoader(TensorDataset(X, Y), 8)


def run(**settings):
    """A plain run."""
    model = nn.Linear(4, 1)
    settings = {"train_dl": DATA, "epochs": 2, "progress": False, "device": "cpu",
                "optim": lambda p: torch.optim.SGD(p, 0.05), **settings}
    if "train_step" not in settings:
        settings["loss_fn"] = settings.get("loss_fn", nn.MSELoss())
    return Trainer(model, **settings)


def ended(*given):
    """What has ended."""
    return next(iter(()))


ENDED = {
    "step": lambda: run(train_step=ended),
    "loss": lambda: run(loss_fn=ended),
    "hook": lambda: run(hooks=[LambdaHook(after_step=ended)]),
    "metric": lambda: run(valid_dl=DATA, metrics={"mine": ended}),
}


@pytest.mark.parametrize("place", ENDED)
def test_next_of_something_that_has_ended(place):
    """It ends no epoch, and Python's words alone would not say where it came from."""
    with pytest.raises(RuntimeError, match="the step, a loss, a metric or a hook raised StopIter"):
        ENDED[place]().fit()


def test_an_error_of_ones_own_from_such_an_end_is_left_alone():
    """Its text and its cause are the user's."""
    def step(batch, trainer):
        try:
            ended()
        except StopIteration as end:
            raise RuntimeError("no more of it") from end
    with pytest.raises(RuntimeError, match="^no more of it") as caught:
        run(train_step=step).fit()
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize("n, kind", [("x", TypeError), (float("nan"), ValueError),
                                     (-1, ValueError), ([3], TypeError)])
def test_a_number_of_items_that_is_none(n, kind):
    """Named, and the weights are as they were."""
    trainer = run(train_step=lambda batch, trainer: {
        "loss": mse_loss(trainer.model(batch[0]), batch[1]), "n": n})
    before = trainer.model.weight.detach().clone()
    with pytest.raises(kind, match="the step function returned n="):
        trainer.fit()
    assert torch.equal(trainer.model.weight, before)


def test_steps_and_epochs_together():
    """One of them would have no effect."""
    trainer = run()
    with pytest.raises(ValueError, match=r"step\(3, epochs=1\)"):
        trainer.step(3, epochs=1)
    assert trainer.step_state.optimizer_step == 0
    trainer.step(epochs=1)
    assert trainer.step_state.optimizer_step == 5


def test_a_trial_in_the_middle_of_a_step():
    """Its steps would write to what the backward pass still needs."""
    def try_one(trainer):
        with trainer.trial() as trial:
            trial.step()
    trainer = run(hooks=[LambdaHook(after_loss=try_one)])
    with pytest.raises(RuntimeError, match="a trial in the middle of a step: trainer.ask"):
        trainer.fit()
    asked = run(hooks=[LambdaHook(after_loss=lambda trainer: trainer.ask(
        lambda: try_one(trainer)))])
    plain = run()
    for each in (asked, plain):
        with torch.no_grad():
            each.model.weight.fill_(0.1), each.model.bias.fill_(0.1)
        each.fit()
    assert torch.equal(asked.model.weight, plain.model.weight)


LOADERS = {
    "a number": (5, "5, which gives no batches"),
    "a function": (lambda: DATA, "which gives no batches.*: what it returns is meant"),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("name", ["train_dl", "valid_dl", "of several"])
def test_what_gives_no_batches_is_refused_at_once(kind, name):
    """And not when the epoch is over."""
    value, text = LOADERS[kind]
    given = {"valid_dl": {"other": value}} if name == "of several" else {name: value}
    with pytest.raises(TypeError, match=text):
        run(**given)


@pytest.mark.parametrize("given, text", [({1: DATA}, "1 as the name of a validation loader"),
                                         ({"other": None}, "the loader 'other' is None")])
def test_names_and_gaps_of_validation_loaders(given, text):
    """Refused at once."""
    with pytest.raises(TypeError, match=text):
        run(valid_dl=given)


def test_validation_batches_that_come_only_once():
    """The second evaluation says why there are none."""
    with pytest.raises(ValueError, match="nothing to evaluate: a generator can be"):
        run(valid_dl=(batch for batch in DATA)).fit()


def test_a_sparse_batch_has_no_slices():
    """It is not divided."""
    batches = [X[:4].to_sparse()] * 3
    trainer = run(train_dl=batches, micro_batch_size=2, train_step=lambda batch, trainer: {
        "loss": trainer.model(batch.to_dense()).mean()})
    with pytest.raises(ValueError, match="cannot be split"):
        trainer.fit()


def test_the_names_of_a_history():
    """As those of a dict."""
    trainer = run()
    trainer.fit()
    assert {"train/loss", "lr"} <= {*trainer.history}


@pytest.mark.parametrize("point", ["before_optimizer_step", "after_optimizer_step"])
def test_a_hook_around_the_steps_of_several_optimizers_is_refused_with_one(point):
    """It would never be called; one that has both is for both."""
    calls = []
    def never(trainer, name):
        calls.append(name)
    trainer = run(hooks=[LambdaHook(name="clips", **{point: never})])
    with pytest.raises(ValueError, match=f"clips: {point} is called for several.*"
                                         f"{point.replace('_optimizer', '')} is meant"):
        trainer.fit()
    both = run(hooks=[LambdaHook(**{point: never, point.replace("_optimizer", ""): print})])
    both.step()
    assert not calls


def backwards(trainer, batch):
    """The parameters of a step, in the other order."""
    return {"loss": trainer.model(batch[0]).mean()}


def of_a_model(model, batch):
    """As in other libraries."""
    return {"loss": model(batch[0]).mean()}


@pytest.mark.parametrize("settings, words", [
    ({"train_step": backwards}, r"train_step\(trainer, batch\): a step gets \(batch, trainer\)"),
    ({"train_step": of_a_model}, r"train_step\(model, batch\): a step gets \(batch, trainer\)"),
    ({"device": "gpu"}, "device='gpu' is no device of torch: did you mean 'cuda'?"),
    ({"device": "CPU"}, "did you mean 'cpu'?"),
    ({"device": "fridge"}, "there are cpu, cuda, mps, xpu"),
    ({"sched": torch.optim.lr_scheduler.CosineAnnealingLR},
     "a class that needs T_max, too: sched=lambda optim: CosineAnnealingLR.optim, T_max=..."),
    ({"sched": torch.optim.lr_scheduler.MultiStepLR}, "needs milestones, too"),
])
def test_arguments_in_another_form_than_is_meant(settings, words):
    """Told before a step is made."""
    with pytest.raises((TypeError, ValueError), match=words):
        run(**settings)


def test_a_class_of_schedulers_that_needs_the_optimizer_alone_is_taken():
    """As a function of it."""
    trainer = run(sched=torch.optim.lr_scheduler.ConstantLR)
    trainer.fit()
    assert trainer.history["lr"][0] < 0.05


class Labelled(nn.Module):
    """A model that computes its loss where it gets labels."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, x, labels=None, label=None, **others):
        """As those of Transformers."""
        pred = self.inner(x)
        return {"logits": pred} | ({} if labels is None else {"loss": mse_loss(pred, labels)})


@pytest.mark.parametrize("names, words", [
    ({"x"}, "no loss: the batch has no 'labels', which the loss is computed with. Without"),
    ({"x", "target"}, "with; its 'target' may be meant. Without")])
def test_a_batch_without_labels(names, words):
    """The usual cause of a model without a loss."""
    batch = {name: X[:8] if name == "x" else Y[:8] for name in names}
    model = Labelled()
    model.forward = lambda x, labels=None, **others: Labelled.forward(model, x, labels)
    trainer = Trainer(model, train_dl=[batch], epochs=1, progress=False, device="cpu")
    with pytest.raises(TypeError, match=words):
        trainer.fit()


def test_a_step_that_is_wrapped_is_taken_by_its_own_parameters():
    """Not by those of what it calls."""
    @functools.wraps(of_a_model)
    def step(batch, trainer):
        return of_a_model(trainer.model, batch)
    assert run(train_step=step).fit().steps == 10
