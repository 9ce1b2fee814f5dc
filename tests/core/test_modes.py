"""Train and eval mode: what a loop written by hand does, by the model's own methods."""

import copy
from functools import partial

import pytest
import torch
from fuzz_kinds import Caching, FrozenNorm, Merging
from small_runs import at_step
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trainer_nb import EMAHook, LambdaHook, Trainer

torch.manual_seed(0)
X = torch.randn(48, 6) * 2 + 1
DATA = TensorDataset(X, X.sum(1, keepdim=True) / 4)
PLAIN = {"size": 6, "drop": 0.0}
LOW_RANK = partial(Merging, **PLAIN, start=0.0)


def body():
    """What `from_pretrained` returns: everything in eval mode."""
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3)).eval()


class Parts(nn.Module):
    """Parts one after the other."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        """Through all of them, in their order."""
        for part in self.children():
            x = part(x)
        return x


def with_adapter():
    """LoRA: a frozen base in eval mode that holds the update."""
    base = nn.Sequential(nn.Dropout(0.3), nn.BatchNorm1d(6)).requires_grad_(False)
    base.append(LOW_RANK())
    return Parts(base=base.eval())


MODELS = {  # name to the model, and its parts that stay in eval mode
    "backbone": (lambda: Parts(backbone=body(), head=nn.Linear(6, 1)), ()),
    "frozen backbone": (lambda: Parts(backbone=body().requires_grad_(False),
                                      head=nn.Linear(6, 1)), ("backbone",)),
    "half frozen backbone": (lambda: Parts(backbone=half_frozen(), head=nn.Linear(6, 1)), ()),
    "whole model": (lambda: Parts(body=body(), head=nn.Linear(6, 1)).eval(), ()),
    "both": (lambda: Parts(norm=nn.BatchNorm1d(6).eval().requires_grad_(False),
                           body=body(), head=nn.Linear(6, 1)), ("norm",)),
    "frozen norm": (lambda: Parts(norm=nn.BatchNorm1d(6).eval().requires_grad_(False),
                                  body=body().train(), head=nn.Linear(6, 1)), ("norm",)),
    "norm without weights": (lambda: Parts(norm=nn.BatchNorm1d(6, affine=False).eval(),
                                           head=nn.Linear(6, 1)), ("norm",)),
    "dropout": (lambda: Parts(drop=nn.Dropout(0.4).eval(), head=nn.Linear(6, 1)), ()),
    "adapter": (with_adapter, ()),
    "own train()": (partial(FrozenNorm, **PLAIN), ()),
    "merging": (LOW_RANK, ()),
    "caching": (partial(Caching, **PLAIN), ()),
    "within": (lambda: Parts(body=body().train(), last=FrozenNorm(**PLAIN)), ()),
}


def half_frozen():
    """A part of it is trained."""
    made = body()
    made[0].requires_grad_(False)
    return made


def weights(of):
    """The values of a model or a trainer's model, as bits."""
    model = getattr(of, "model", of)
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


def loader():
    """Six batches, in the order of the data; a list draws no random number."""
    return [DATA[i:i + 8] for i in range(0, 48, 8)]


def optim(model):
    """Plain steps with what is trained."""
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.02)


def make(model, **settings):
    """A run of three epochs."""
    settings = {"train_dl": loader(), "valid_dl": loader(), "loss_fn": nn.MSELoss(), "epochs": 3,
                "optim": optim(model), "device": "cpu", "progress": False, "seed": 5} | settings
    return Trainer(model, **settings)


def built(kind):
    """One of the models, the same each time."""
    torch.manual_seed(1)
    return MODELS[kind][0]()


def by_hand(model, resting, every=6):
    """The loop that everybody writes; returns its validation losses."""
    steps, done, losses = optim(model), 0, []

    def to_train():
        model.train()
        for name in resting:
            model.get_submodule(name).eval()

    torch.manual_seed(5)
    for _ in range(3):
        to_train()
        for inputs, target in loader():
            steps.zero_grad()
            functional.mse_loss(model(inputs), target).backward()
            steps.step()
            done += 1
            if done % every == 0:
                model.eval()
                with torch.no_grad():
                    found = [functional.mse_loss(model(x), y).item() for x, y in loader()]
                losses.append(sum(found) / len(found))
                to_train()
    return losses


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("every", [6, 2])
def test_as_the_loop_written_by_hand(kind, every):
    """Evaluated at the end of each epoch, or within it too: the same weights, bit for bit."""
    hand = built(kind)
    losses = by_hand(hand, MODELS[kind][1], every)
    trainer = make(built(kind), max_steps=18, epochs=None, eval_every=every)
    trainer.fit()
    assert weights(trainer) == weights(hand)
    assert trainer.history["valid/loss"].tolist() == pytest.approx(losses, rel=1e-6)


LOOKS = {
    "validate": lambda trainer: trainer.validate(),
    "predict": lambda trainer: trainer.predict(loader()),
    "test": lambda trainer: trainer.test(loader()),
    "lr_find": lambda trainer: trainer.lr_find(num_steps=4),
    "sweep": lambda trainer: trainer.sweep("lr", [0.1, 0.2]),
    "eval() by hand": lambda trainer: trainer.model.eval(),
}


@pytest.mark.parametrize("kind", ["backbone", "frozen norm", "own train()", "adapter"])
@pytest.mark.parametrize("look", LOOKS)
def test_whatever_is_done_between_two_steps(kind, look):
    """In the middle of an epoch: the training goes on in the modes that it had."""
    straight, looked = make(built(kind)), make(built(kind))
    straight.fit()
    looked.step(8)
    LOOKS[look](looked)
    looked.fit()
    one, other = straight.model.state_dict(), looked.model.state_dict()
    if kind == "adapter":  # the weight is rounded where the update is taken off it again
        assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    else:
        assert weights(straight) == weights(looked)


@pytest.mark.parametrize("kind", ["backbone", "frozen norm", "own train()"])
@pytest.mark.parametrize("point", ["before_batch", "after_loss", "after_step", "after_batch",
                                   "before_epoch"])
def test_a_hook_that_leaves_the_model_in_eval_mode(kind, point):
    """Its mistake is not that of the steps after it."""
    straight = make(built(kind))
    straight.fit()
    other = make(built(kind), hooks=[LambdaHook(**{
        point: lambda trainer: trainer.training and trainer.model.eval()})])
    other.fit()
    assert weights(other) == weights(straight)


def test_a_pause_in_which_the_model_is_put_into_eval_mode():
    """Each step afterwards is one in train mode, and what was frozen is still frozen."""
    modes, frozen = [], []

    def look(trainer):
        if trainer.training:
            modes.append(trainer.model.training)
            frozen.append(trainer.model.norm.training)
            if len(modes) == 4:
                trainer.pause()

    trainer = make(built("frozen norm"), hooks=[LambdaHook(after_loss=look)])
    trainer.start()
    while trainer.state != "paused":
        trainer.wait(0.05)
    trainer.model.eval()
    trainer.resume()
    trainer.wait()
    assert modes == [True] * 18 and not any(frozen)


@pytest.mark.parametrize("way", ["between two drives", "in a pause"])
def test_hooks_of_the_next_step_see_the_modes_of_the_training(way):
    """The model is in train mode before its next batch, and a norm that a hook put into eval mode
    for this epoch is not."""
    seen = []

    def look(trainer):
        if trainer.training:
            seen.append((trainer.model.training, trainer.model.backbone.training))

    def pause(trainer):
        if way == "in a pause":
            trainer.pause()

    trainer = make(built("backbone"), max_steps=6, epochs=None, valid_dl=None, hooks=[
        LambdaHook(name="rest", before_train=lambda trainer: trainer.model.backbone.eval()),
        LambdaHook(name="see", before_batch=look), at_step(2, pause)])
    if way == "in a pause":
        trainer.start()
        while trainer.state != "paused":
            trainer.wait(0.05)
    else:
        trainer.step(2)
    trainer.model.eval()
    if way == "in a pause":
        trainer.resume()
        trainer.wait()
    else:
        trainer.fit()
    assert seen == [(True, False)] * 6


@pytest.mark.parametrize("kind", ["frozen norm", "both", "backbone"])
def test_a_state_taken_while_the_model_is_in_eval_mode(kind):
    """It has the modes of the training."""
    straight, first, second = make(built(kind)), make(built(kind)), make(built(kind))
    straight.fit()
    first.step(8)
    first.model.eval()
    second.load_state_dict(first.state_dict())
    second.fit()
    assert weights(second) == weights(straight)


def test_a_state_has_the_weights_of_the_training():
    """Not those that a model in eval mode has merged; what was merged stays so, bit for bit."""
    straight, first, second = (make(built("merging")) for _ in range(3))
    straight.fit()
    first.step(8)
    first.model.eval()
    before = weights(first)
    second.load_state_dict(first.state_dict())
    assert weights(first) == before and first.model.merged and not first.model.training
    for trainer in (first, second):
        trainer.fit()
        for one, other in zip(straight.model.parameters(), trainer.model.parameters()):
            assert torch.allclose(one, other, atol=1e-5)


def test_the_average_is_evaluated_before_it_is_merged():
    """A model that merges weights in eval mode: the average is merged, not put over what is."""
    trainer = make(built("merging"), hooks=[EMAHook(0.5, eval="both")])
    trainer.fit()
    raw = copy.deepcopy(trainer.model)
    average = copy.deepcopy(raw)
    average.load_state_dict(trainer.get_hook(EMAHook).ema_model.state_dict())
    raw.eval(), average.eval()
    for model, name in ((raw, "valid/loss"), (average, "valid_ema/loss")):
        with torch.no_grad():
            expected = functional.mse_loss(model(X), DATA.tensors[1]).item()
        assert trainer.history[name][-1] == pytest.approx(expected, rel=1e-5)
    assert not trainer.model.merged


@pytest.mark.parametrize("kind", ["merging", "own train()"])
def test_a_search_leaves_a_model_in_eval_mode_as_it_was(kind):
    """The weights that were merged are merged again, bit for bit."""
    trainer = make(built(kind))
    trainer.step(3)
    trainer.model.eval()
    before = weights(trainer)
    trainer.lr_find(num_steps=4)
    assert weights(trainer) == before and not trainer.model.training
    assert getattr(trainer.model, "merged", True)


@pytest.mark.parametrize("kind", MODELS)
def test_a_run_taken_up_in_another_trainer(kind, tmp_path):
    """In the middle of an epoch, by a model as it comes from its constructor."""
    straight, first, second = make(built(kind)), make(built(kind)), make(built(kind))
    straight.fit()
    first.step(8)
    first.save(tmp_path / "state.pt")
    second.load(tmp_path / "state.pt")
    second.fit()
    assert weights(second) == weights(straight)


def test_a_loss_with_a_train_of_its_own():
    """A loss function that is a module is a part of it."""
    class Loss(nn.MSELoss):
        called = 0

        def train(self, mode=True):
            self.called += mode
            return super().train(mode)

    loss_fn = Loss()
    make(nn.Linear(6, 1), loss_fn=loss_fn).fit()
    assert loss_fn.training and loss_fn.called >= 6


# What the user is told, and how modes are kept


@pytest.mark.parametrize("kind, words", [
    ("backbone", ["backbone switched from eval to train mode"]),
    ("frozen backbone", ["backbone stays in eval mode (frozen)"]),
    ("both", ["body switched from eval to train mode (trainable); norm stays in eval mode"]),
    ("whole model", []), ("own train()", []), ("caching", []),
])
def test_one_line_names_the_parts_in_eval_mode(kind, words, capsys):
    """Once, not in each epoch; and `summary()` tells before the run what will be."""
    trainer = make(built(kind))
    summary = trainer.summary()
    trainer.fit()
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("modes")]
    assert len(said) == len(words)
    assert all(word in said[0] and word in summary for word in words)


def test_parts_of_a_loss_are_named(capsys):
    """A frozen judge in a loss stays in eval mode, as a part of the model would."""
    class Judged(nn.MSELoss):
        def __init__(self):
            super().__init__()
            self.judge = nn.BatchNorm1d(1).eval().requires_grad_(False)
            self.scale = nn.BatchNorm1d(1).eval()

    trainer = make(nn.Linear(6, 1), loss_fn=Judged())
    assert "loss_fn.judge stays in eval mode" in trainer.summary()
    trainer.fit()
    assert "loss_fn.scale switched" in capsys.readouterr().out
    assert not trainer.loss_fn.judge.training and trainer.loss_fn.scale.training


def test_a_search_before_the_run_does_not_take_the_line_away(capsys):
    """The rate is found first, as people do."""
    trainer = make(built("backbone"))
    trainer.lr_find(num_steps=3)
    assert not trainer.model.backbone.training and "modes:" not in capsys.readouterr().out
    trainer.fit()
    assert capsys.readouterr().out.count("backbone switched from eval to train mode") == 1


def test_a_train_of_the_models_own_is_not_foretold():
    """The summary does not say that its norm changes to train mode."""
    trainer = make(built("own train()"))
    trainer.fit()
    assert "norm in eval mode now (a train() of the model's own" in trainer.summary()
    assert "switched" not in trainer.summary()


def test_a_model_in_eval_mode_is_told_by_the_summary():
    """Before the run; afterwards it is in train mode."""
    trainer = make(built("whole model"))
    assert "in eval mode now" in trainer.summary()
    trainer.fit()
    assert "eval mode" not in trainer.summary()


def test_many_parts_are_counted():
    """Twenty norms are not twenty names."""
    norms = {f"norm{i}": nn.BatchNorm1d(6).eval().requires_grad_(False) for i in range(20)}
    text = make(Parts(**norms, head=nn.Linear(6, 1))).summary()
    assert "norm3 and 16 more stay" in text and "norm4" not in text


@pytest.mark.parametrize("kind", ["backbone", "whole model"])
def test_modes_are_kept_if_asked(kind, capsys):
    """A backbone in eval mode is trained in eval mode: no dropout, and no new statistics."""
    trainer = make(built(kind), keep_modes=True)
    before = {name: each.training for name, each in trainer.model.named_modules()}
    part = "backbone" if kind == "backbone" else "the model"
    assert f"kept as they are (keep_modes): {part} in eval mode" in trainer.summary()
    trainer.step(2)
    trainer.validate()
    trainer.fit()
    assert before == {name: each.training for name, each in trainer.model.named_modules()}
    norm = next(each for each in trainer.model.modules() if isinstance(each, nn.BatchNorm1d))
    assert norm.num_batches_tracked == 0 and "modes:" not in capsys.readouterr().out


def test_keep_modes_is_true_or_false():
    """Refused before anything has changed; and fixed afterwards."""
    model = built("backbone")
    with pytest.raises(ValueError, match="keep_modes='yes': True or False"):
        make(model, keep_modes="yes")
    trainer = make(model)
    with pytest.raises(AttributeError, match="make another Trainer"):
        trainer.keep_modes = True
    assert trainer.keep_modes is False


def test_a_run_taken_up_with_other_modes_says_so(tmp_path, capsys):
    """Modes are a setting of the run."""
    first = make(built("backbone"), keep_modes=True)
    first.step(2)
    first.save(tmp_path / "state.pt")
    other = make(built("backbone"))
    other.load(tmp_path / "state.pt")
    assert "keep_modes False (file True)" in capsys.readouterr().out
    assert not other.exact and "keep_modes=False" in other.exact.obstacles[0]
    same = make(built("backbone"), keep_modes=True)
    same.load(tmp_path / "state.pt")
    assert same.exact and "keep_modes" not in capsys.readouterr().out


def test_modes_set_within_an_epoch_last_to_its_end():
    """As by hand: an evaluation does not end them, the next epoch does."""
    seen = []
    trainer = make(built("backbone"), max_steps=12, epochs=None, eval_every=1, hooks=[
        LambdaHook(name="freeze", before_train=lambda trainer: trainer.step_state.epoch == 0
                   and trainer.model.backbone.eval()),
        LambdaHook(name="see", after_step=lambda trainer: seen.append(
            trainer.model.backbone.training))])
    trainer.fit()
    assert seen == [False] * 6 + [True] * 6


def test_a_part_that_is_frozen_in_mid_run_stays_in_eval_mode():
    """From the moment on at which a hook froze it."""
    trainer = make(built("backbone"), hooks=[at_step(7, lambda trainer: (
        trainer.model.backbone.requires_grad_(False).eval()))])
    trainer.fit()
    assert not trainer.model.backbone.training and trainer.model.head.training


@pytest.mark.parametrize("halt", [2, 8, 11])
@pytest.mark.parametrize("keep_modes", [False, True])
def test_modes_that_a_hook_sets_as_a_fit_begins(halt, keep_modes):
    """They end where an epoch begins, so a run that goes on within one does not have them."""
    def make():
        torch.manual_seed(0)
        seen = []
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        hook = LambdaHook(before_fit=lambda trainer: trainer.model[1].eval(),
                          after_batch=lambda trainer: seen.append(trainer.model[1].training))
        trainer = Trainer(model, train_dl=torch.utils.data.DataLoader(DATA, 8), hooks=[hook],
                          loss_fn=nn.MSELoss(), epochs=3, device="cpu", progress=False,
                          keep_modes=keep_modes)
        return trainer, seen
    (straight, all_of_it), (first, before), (again, after) = make(), make(), make()
    straight.fit()
    first.step(halt)
    again.load_state_dict(first.state_dict())
    again.fit()
    assert before + after == all_of_it == [not keep_modes] * 18
    assert all(map(torch.equal, again.model.state_dict().values(),
                   straight.model.state_dict().values()))
