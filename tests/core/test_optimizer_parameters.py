"""What is trained is what the optimizer holds:
other models, replaced layers, second optimizers, and the memory of a prediction."""

import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import mse_loss

from trainer_nb import (CheckpointError, Hook, LambdaHook, LayerGroupsHook, SnapshotHook, Task,
                        Trainer)


def batches(count=5, size=8, seed=0):
    """Pairs of inputs and targets."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, size, 4, generator=draw)
    return [(each, each.sum(1, keepdim=True).sin()) for each in x]


def net():
    """The same each time."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def sgd(parameters, lr=0.1):
    """Without momentum."""
    return torch.optim.SGD(parameters, lr=lr)


def make(model=None, step=None, **settings):
    """A run of 2 epochs of 5 steps."""
    settings = {"train_dl": batches(), "loss_fn": None if step else nn.MSELoss(), "optim": sgd,
                "epochs": 2} | settings
    return Trainer(net() if model is None else model, step, device="cpu", progress=False,
                   **settings)


# ---- another model


@pytest.mark.parametrize("count", [5, 50])
@pytest.mark.parametrize("verb", ["fit", "step", "lr_find"])
def test_a_step_with_another_model(count, verb):
    """It ends as an error that says so, after an epoch or 20 windows;
    not as a run that has finished."""
    other = net()
    trainer = make(step=lambda batch, trainer: {"loss": mse_loss(other(batch[0]), batch[1])},
                   train_dl=batches(count))
    with pytest.raises(ValueError,
                       match=r"no parameter that the optimizer holds got a gradient .* "
                             r"trainer\.model"):
        getattr(trainer, verb)()
    assert trainer.step_state.batch_idx in (0, 5, 20) and trainer.step_state.optimizer_step == 0


def test_a_loss_that_is_always_none():
    """An epoch without a step is an error; one with a few of them is not."""
    def step(batch, trainer):
        return {"loss": None
                if trainer.step_state.batch_idx < left_out
                else mse_loss(trainer.model(batch[0]), batch[1])}
    left_out = 5
    with pytest.raises(ValueError, match="epoch 1 made no optimizer step: every loss was None"):
        make(step=step).fit()
    left_out = 4
    assert make(step=step).fit().steps == 2


@pytest.mark.parametrize("settings", [{"non_finite": "skip"}, {"mixed_precision": "fp16"}],
                         ids=["policy", "scaler"])
def test_an_epoch_whose_steps_were_all_skipped(settings):
    """By the policy or the loss scaler: as ever."""
    def step(batch, trainer):
        scale = float("inf") if trainer.step_state.epoch == 0 and "non_finite" in settings else 1e36
        return {"loss": mse_loss(trainer.model(batch[0]),
                                 batch[1]) * (scale if trainer.step_state.epoch == 0 else 1.0)}
    trainer = make(step=step, **settings)
    assert trainer.fit().status == "finished" and trainer.step_state.optimizer_step <= 5


def test_a_few_windows_elsewhere_are_no_error():
    """A loss of other parameters for some windows, later for many: steps were made."""
    other = net()
    def step(batch, trainer):
        model = (trainer.model
                 if trainer.step_state.optimizer_step < 3 and trainer.step_state.batch_idx > 4
                 else other)
        return {"loss": mse_loss(model(batch[0]), batch[1])}
    assert make(step=step, train_dl=batches(50), epochs=1).fit().steps == 3


# ---- a layer that was replaced


def replaced(trainer):
    """Another last layer."""
    trainer.model[2] = nn.Linear(8, 1)


def assigned(trainer):
    """Values that are put in as new parameters."""
    trainer.model.load_state_dict(net().state_dict(), assign=True)


@pytest.mark.parametrize("change", [replaced, assigned])
@pytest.mark.parametrize("when", ["between", "in a hook"])
def test_a_replaced_layer_is_noticed(change, when):
    """At the next drive, and in a search, with its name;
    with a new optimizer the run goes on and trains it."""
    def once(trainer):
        if trainer.step_state.epoch == 1:
            change(trainer)
    trainer = make(hooks=[LambdaHook(after_epoch=once)] if when == "in a hook" else [])
    trainer.step(epochs=1)
    if when == "between":
        change(trainer)
    else:
        # as at the beginning of an epoch: the name is known all the same
        trainer.engine.refresh_parameters()
    for verb in (trainer.fit, trainer.step, trainer.start, trainer.lr_find):
        with pytest.raises(RuntimeError,
                           match=r"does not have any more \(.*2\.weight.*trainer\.optim = "):
            verb()
    assert trainer.step_state.optimizer_step == 5 and trainer.state == "paused"
    if when == "between":
        trainer.optim = sgd
        before = trainer.model[2].weight.detach().clone()
        assert trainer.fit().steps == 10 and not torch.equal(before, trainer.model[2].weight)


def test_layers_that_are_frozen_taken_out_or_added_with_a_group():
    """A replaced layer that was frozen is no matter;
    one that was added and given to the optimizer is trained."""
    trainer = make()
    trainer.step(epochs=1)
    trainer.model[0].requires_grad_(False)
    trainer.model[0] = nn.Linear(4, 8).requires_grad_(False)
    trainer.model.append(nn.Linear(1, 1))
    trainer.optim.add_param_group({"params": trainer.model[3].parameters()})
    before = trainer.model[3].weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit()
    assert not torch.equal(before, trainer.model[3].weight)


# ---- parameters that no optimizer holds


class Weighted(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, pred, target):
        return (-self.weight).exp() * mse_loss(pred, target) + self.weight


def test_parameters_of_the_loss_function_are_named_once():
    """They stay as they are by default; frozen, or given to the optimizer, there is nothing to
    say."""
    trainer = make(loss_fn=Weighted())
    with pytest.warns(UserWarning, match=r"no optimizer holds .*loss_fn\.weight") as told:
        trainer.step()
        trainer.step()
        trainer.fit()
    assert len(told) == 1 and trainer.loss_fn.weight == 0
    loss_fn, frozen = Weighted(), Weighted().requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(loss_fn=frozen).fit()
        make(loss_fn=loss_fn, optim=lambda p: sgd([*p, *loss_fn.parameters()])).fit()
    assert loss_fn.weight != 0


def test_the_rest_of_the_model_is_named():
    """An optimizer of the head only; with the body frozen nothing is said, and said again where it
    is not any more."""
    model = net()
    trainer = make(model, optim=sgd(model[2].parameters()))
    with pytest.warns(UserWarning, match=r"2 trainable parameters.*0\.weight, 0\.bias"):
        trainer.step()
    model[0].requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step()
        make(model, optim=sgd(model[2].parameters())).step()
    groups = make(hooks=[LayerGroupsHook({"body": "0"})])
    groups.tune(**{"layer_groups.body.frozen": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups.fit()


class Keep(Hook):
    """A hook that keeps optimizers."""

    def __init__(self, **optims):
        self.optims = optims


class Gan(nn.Module):
    """Two halves."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.g, self.d = nn.Linear(4, 2), nn.Linear(2, 1)


def gan_step(model, optim, batch, noise):
    """The discriminator's step, and the generator's loss, which leaves gradients in the
    discriminator."""
    real, fake = batch[0][:, :2], model.g(noise)
    optim.zero_grad()
    (bce(model.d(real),
         torch.ones(len(real), 1)) + bce(model.d(fake.detach()),
                                         torch.zeros(len(real), 1))).backward()
    optim.step()
    return 30 * bce(model.d(fake), torch.ones(len(real), 1))


def make_gan(where, **settings):
    """A trainer whose optimizer holds the generator;
    the other one is in a closure, a hook, or a task."""
    model = Gan()
    optim = torch.optim.Adam(model.d.parameters(), lr=1e-2)
    class OfTask(Task):
        def __init__(self):
            self.other = optim
        def build_model(self):
            return model
        def build_train_dl(self):
            return batches()
        def train_step(self, batch, trainer):
            return {"loss": gan_step(trainer.model, self.other, batch, batch[0])}
    settings = {"optim": lambda p: sgd(model.g.parameters()), "epochs": 2, "device": "cpu",
                "progress": False} | settings
    if where == "task":
        return Trainer.from_task(OfTask(), **settings)
    held = Keep(d=optim)
    steps = {"closure": lambda batch, trainer: {
        "loss": gan_step(trainer.model, optim, batch, batch[0])},
             "hook": lambda batch, trainer: {
                 "loss": gan_step(trainer.model, trainer.get_hook(Keep).optims["d"], batch,
                                  batch[0])}}
    return Trainer(model, steps[where], batches(), hooks=[held] if where == "hook" else [],
                   **settings)


@pytest.mark.parametrize("where", ["closure", "hook", "task"])
def test_a_second_optimizer_counts(where):
    """Nothing is said of what it holds."""
    trainer = make_gan(where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit()


# ---- gradients of others


def gan_by_hand(clip):
    """The loop by hand: weights, and the norms of the generator's gradients."""
    model = Gan()
    d, g, norms = torch.optim.Adam(model.d.parameters(), lr=1e-2), sgd(model.g.parameters()), []
    for _ in range(2):
        for batch in batches():
            loss = gan_step(model, d, batch, batch[0])
            g.zero_grad()
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(model.g.parameters(), clip).item())
            g.step()
    return model, norms


def test_clipping_and_norm_are_of_what_is_stepped():
    """The discriminator's gradients, which the generator's loss leaves there, do not count."""
    trainer = make_gan("closure", grad_clip=0.5)
    trainer.fit()
    model, norms = gan_by_hand(0.5)
    assert min(norms) > 0.5
    assert trainer.history["grad_norm"].tolist() == pytest.approx(norms, rel=1e-5)
    for a, b in zip(trainer.model.parameters(), model.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_non_finite_gradients_of_others_do_not_count(policy):
    """And they are dropped with the window's, as all of the model's are."""
    model = Gan()
    def step(batch, trainer):
        return {"loss": model.g(batch[0]).square().mean() + (model.d.weight * float("inf")).sum()}
    seen = []
    hooks = [LambdaHook(
        before_step=lambda t: seen.append(model.d.weight.grad.isfinite().all().item()))]
    trainer = Trainer(model, step, batches(), optim=sgd(model.g.parameters()), epochs=1,
                      device="cpu", progress=False, hooks=hooks, non_finite=policy)
    with pytest.warns(UserWarning, match=r"d\.weight, d\.bias"):
        assert trainer.fit().steps == 5
    assert seen == [False] * 5 and model.d.weight.grad is None


def test_uneven_batches_correct_what_is_stepped():
    """The mean over the items of a window, also with a part of the model held."""
    model, data = net(), [batches(1, size)[0] for size in (3, 5)]
    model[0].requires_grad_(False)
    trainer = make(model, optim=sgd(model[2].parameters()), train_dl=data,
                   gradient_accumulation_steps=2, epochs=1)
    trainer.fit()
    other = net()
    x, y = (torch.cat(each) for each in zip(*data))
    mse_loss(other(x), y).backward()
    torch.testing.assert_close(model[2].weight, other[2].weight - 0.1 * other[2].weight.grad)


def test_a_group_that_a_hook_adds_is_clipped_at_once():
    """In mid-epoch, from its first step on."""
    model, norms = net(), []
    def add(trainer):
        if trainer.step_state.optimizer_step == 2:
            trainer.optim.add_param_group({"params": model[0].parameters(), "lr": 0.1})
    def look(trainer):
        norms.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm().item())
    trainer = make(model, optim=sgd(model[2].parameters()),
                   hooks=[LambdaHook(after_step=add, before_step=look)], grad_clip=1e-3, epochs=1)
    with pytest.warns(UserWarning):
        trainer.fit()
    assert trainer.history["grad_norm"][2:].tolist() == pytest.approx(norms[2:], rel=1e-5)
    assert trainer.history["grad_norm"][1] < 0.999 * norms[1]


class TwoWeights(nn.Module):
    """A loss with weights of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.later = (nn.Parameter(torch.tensor(0.3)) for _ in range(2))

    def forward(self, pred, target):
        """Each one goes to its own place."""
        return (mse_loss(pred, target) + (self.first - 1).square() + (self.later - 1).square())


@pytest.mark.parametrize("way", ["fit", "load", "rewind"])
def test_a_parameter_of_the_loss_that_is_held_later_has_fresh_gradients(way, tmp_path):
    """Those of the batches before are dropped; and its group is resumed and rewound, too."""
    def made():
        model, loss_fn = net(), TwoWeights()
        optim = sgd([*model.parameters(), loss_fn.first])
        def add(trainer):
            if trainer.step_state.optimizer_step == 4:
                trainer.optim.add_param_group({"params": [trainer.loss_fn.later], "lr": 0.05})
        return make(model, loss_fn=loss_fn, optim=optim,
                    hooks=[LambdaHook(after_step=add), SnapshotHook(every_steps=1)])
    with pytest.warns(UserWarning, match="loss_fn.later"):
        trainer = made()
        if way == "fit":
            trainer.fit()
        elif way == "rewind":
            trainer.step(7)
            trainer.rewind(2)
            trainer.fit()
        else:
            trainer.step(7)
            trainer.save(tmp_path / "run.pt")
            trainer = made()
            trainer.load(tmp_path / "run.pt")
            trainer.fit()
    expected = 0.3
    for _ in range(6):
        expected -= 0.05 * 2 * (expected - 1)
    assert trainer.loss_fn.later.item() == pytest.approx(expected, rel=1e-5)
    assert trainer.engine.begun_groups() is not None


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, tied=True):
        super().__init__()
        self.body, self.last, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        if tied:
            self.last.weight = self.body.weight

    def forward(self, x):
        """One after the other."""
        return self.head(self.last(self.body(x)))


@pytest.mark.parametrize("way", ["load", "rewind"])
def test_weights_that_were_untied_are_another_model(way, tmp_path):
    """One of the two saved tensors would be lost without a word."""
    def made():
        torch.manual_seed(0)
        def untie(trainer):
            if trainer.step_state.optimizer_step == 3:
                last = trainer.model.last
                last.weight = nn.Parameter(last.weight.detach().clone(), requires_grad=False)
        return make(Tied(), hooks=[LambdaHook(after_step=untie), SnapshotHook(every_steps=1)])
    trainer = made()
    trainer.step(5)
    trainer.save(tmp_path / "run.pt")
    before = {name: each.clone() for name, each in trainer.model.state_dict().items()}
    with pytest.raises(CheckpointError, match="body.weight and last.weight are one tensor"):
        if way == "load":
            made().load(tmp_path / "run.pt")
        else:
            trainer.rewind(2)
    assert all(torch.equal(each, before[name])
               for name, each in trainer.model.state_dict().items())


@pytest.mark.parametrize("way", ["added to the list", "another list"])
@pytest.mark.parametrize("at", ["in a hook", "between drives"])
def test_parameters_that_are_put_into_a_group_count_at_once(way, at):
    """Of a layer that is thawed, or replaced, in mid-epoch: their gradients are clipped, and
    dropped after the step; the weights are those of the loop by hand."""
    def made():
        model = net()
        model[0].requires_grad_(way == "another list")
        return model, sgd([each for each in model.parameters() if each.requires_grad])

    def change(model, optim):
        if way == "another list":
            torch.manual_seed(5)
            model[2] = nn.Linear(8, 1)
            optim.param_groups[0]["params"] = list(model.parameters())
        else:
            model[0].requires_grad_(True)
            optim.param_groups[0]["params"].extend(model[0].parameters())
    hand, optim = made()
    for number, (x, y) in enumerate(batches(), 1):
        optim.zero_grad()
        mse_loss(hand(x), y).backward()
        nn.utils.clip_grad_norm_(hand.parameters(), 1e-3)
        optim.step()
        if number == 2:
            change(hand, optim)
    model, optim = made()
    hooks = [LambdaHook(after_step=lambda trainer: trainer.step_state.optimizer_step == 2
                        and change(model, optim))] if at == "in a hook" else []
    trainer = make(model, optim=optim, hooks=hooks, grad_clip=1e-3, epochs=1)
    if at == "between drives":
        trainer.step(2)
        change(model, optim)
    trainer.fit()
    assert all(map(torch.equal, model.state_dict().values(), hand.state_dict().values()))


# ---- memory


class Watched(nn.Module):
    """Notes at each pass whether the prediction before is still there."""

    def __init__(self):
        super().__init__()
        self.layer, self.last, self.alive = nn.Linear(4, 1), None, []

    def forward(self, x):
        if self.last is not None:
            self.alive.append(self.last() is not None)
        pred = self.layer(x)
        self.last = weakref.ref(pred)
        return pred


@pytest.mark.parametrize("settings",
                         [{}, {"micro_batch_size": 2}, {"gradient_accumulation_steps": 3},
                          {"mixed_precision": "bf16"}])
def test_a_prediction_is_gone_before_the_next_pass(settings):
    """In training, chunks, evaluation and prediction;
    while the run waits it is there to be looked at."""
    model, seen = Watched(), []
    hook = LambdaHook(after_batch=lambda t: seen.append(t.pred is not None),
                      after_step=lambda t: seen.append(t.pred is not None))
    trainer = make(model, valid_dl=batches(3), hooks=[hook], **settings)
    trainer.step(1)
    assert trainer.pred is not None
    trainer.fit()
    assert all(seen)
    model.alive.clear()
    trainer.fit(epochs=3)
    trainer.predict(batches(3))
    during_evaluation = 1  # the last one of the training, which comes back after the evaluation
    assert sum(model.alive) <= during_evaluation + 1, model.alive
