"""Values that are set by hand are those to the last bit; what would have no effect is refused."""

import warnings

import pytest
import torch
from small_runs import BATCHES, make
from steered import until
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import CheckpointError, EMAHook, LambdaHook, Trainer


@pytest.mark.parametrize("first", [0.05, 0.03, 0.7, 1e-3, 0.1])
def test_a_tuned_rate_and_decay_are_the_numbers_that_were_given(first):
    """Times and over the first rate it may be another number by one bit."""
    model = nn.Linear(2, 1)
    run = make(model, optim=torch.optim.AdamW([
        {"params": [model.weight], "weight_decay": first}, {"params": [model.bias]}], lr=first))
    for value in (0.1, 0.3, 0.7, 1e-4, 5e-324):
        run.tune(lr=value, weight_decay=value)
        assert run.rate == value == run.optim.param_groups[0]["weight_decay"]


def test_the_first_decays_come_back_to_the_last_bit():
    """As after a search."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    decays = [0.1, 0.2, 0.7, 1e-3]
    run = make(model, optim=torch.optim.SGD([
        {"params": [each], "weight_decay": decay}
        for each, decay in zip(model.parameters(), decays, strict=True)], lr=0.01))
    run.step()
    run.sweep("weight_decay", [0.01, 0.02])
    assert [group["weight_decay"] for group in run.optim.param_groups] == decays
    run.tune(weight_decay=0.3)
    run.tune(weight_decay=0.1)
    assert [group["weight_decay"] for group in run.optim.param_groups] == decays


def test_a_tunable_that_is_no_attribute_is_not_set_as_one():
    run = make(optim=None)
    with pytest.raises(AttributeError, match=r"trainer.tune\(weight_decay=0.5\)"):
        run.weight_decay = 0.5
    run.mine = 0.5  # of one's own
    run.mine = 0.6
    assert run.mine == 0.6 and run.optim.param_groups[0]["weight_decay"] == 0.01


class Alike(nn.Module):
    """Layers of one shape."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_state_is_refused_by_an_optimizer_that_holds_the_parameters_in_another_order(
        named, several, tmp_path):
    """Their shapes are the same, and the moments would go to other parameters."""
    def made(order):
        model = Alike()
        pairs = [(name, each) for part in order for name, each in model.named_parameters()
                 if name.startswith(part)]
        given = pairs if named else [each for _, each in pairs]
        if not several:
            return make(model, optim=torch.optim.Adam(given, 0.01))
        loss = lambda batch, trainer: {"loss": trainer.model(batch[0]).square().mean()}
        return make(model, optim={"d": torch.optim.Adam(given[:-2], 0.01),
                                  "g": torch.optim.Adam(given[-2:], 0.01)},
                    loss_fn=None, train_step={"d": loss, "g": loss})

    first, same = made("abc"), made("abc")
    first.step(3)
    first.save(tmp_path / "run.pt")
    other = made("bac")
    with pytest.raises(CheckpointError, match="another order: number 0 is b.weight, and was a.w"):
        other.load(tmp_path / "run.pt")
    assert other.step_state.optimizer_step == 0
    same.load(tmp_path / "run.pt")
    first.step(2), same.step(2)
    assert all(torch.equal(one, two) for one, two in zip(
        first.model.parameters(), same.model.parameters(), strict=True))


def test_a_state_of_an_earlier_version_names_no_order():
    first, other = make(), make()
    first.step(2)
    state = first.state_dict()
    del state["modules"]["stepped"]
    other.load_state_dict(state)
    assert other.step().steps == 3


@pytest.mark.slow
@pytest.mark.parametrize("look", [
    lambda run, loader: run.validate(loader), lambda run, loader: run.test(loader),
    lambda run, loader: run.predict(loader), lambda run, loader: run.validate({"a": loader})])
def test_the_training_loader_is_evaluated_in_mid_epoch_and_keeps_its_pass(look):
    """torch would begin the pass of persistent workers anew."""
    data = TensorDataset(*map(torch.cat, zip(*BATCHES, strict=True)))

    def made():
        loader = DataLoader(data, 4, shuffle=True, num_workers=1, persistent_workers=True)
        return make(train_dl=loader, seed=0, epochs=3)

    with made() as straight, made() as run:
        loader = run.train_dl
        straight.fit()
        run.step(2)
        workers = loader._iterator._workers
        look(run, loader)
        run.step(6)
        look(run, loader)
        assert loader._iterator._workers is workers  # they were not started anew
        run.fit()
        assert run.step_state.optimizer_step == 15 == straight.step_state.optimizer_step
        assert all(torch.equal(one, two) for one, two in zip(
            run.model.parameters(), straight.model.parameters(), strict=True))


def test_a_metric_whose_name_is_taken_is_refused():
    """Both would be averaged together."""
    absolute = lambda pred, target: (pred - target).abs().mean()
    with pytest.raises(ValueError, match="the loss of an evaluation has this name"):
        make(metrics={"loss": absolute})

    def step(batch, trainer):
        pred = trainer.model(batch[0])
        error = (pred - batch[1]).square().mean()
        return {"loss": error, "error": error.sqrt(), "pred": pred, "target": batch[1]}

    run = make(loss_fn=None, train_step=step, valid_dl=BATCHES, metrics={"error": absolute})
    with pytest.raises(ValueError, match="the step returns 'error', and metrics= has one"):
        run.validate()


def test_evaluations_of_one_name_are_refused():
    run = make(valid_dl={"a": BATCHES, "a_ema": BATCHES}, hooks=[EMAHook(0.9, eval="both")])
    run.step()
    with pytest.raises(ValueError, match="two evaluations have one name"):
        run.validate()


@pytest.mark.parametrize("every", [{}, {"d": 2}, {"d": 3}])
def test_a_search_for_an_optimizer_waits_for_its_turn(every):
    """Also where an epoch ends before it."""
    model = nn.ModuleDict({"d": nn.Linear(2, 1), "g": nn.Linear(2, 1)})
    steps = {name: (lambda batch, trainer, name=name: {
        "loss": trainer.model[name](batch[0]).square().mean()}) for name in model}
    optims = {name: torch.optim.SGD(model[name].parameters(), 0.01) for name in model}
    run = make(model, loss_fn=None, train_step=steps, optim=optims, epochs=2,
               **({"every": every} if every else {}))
    found = run.lr_find(num_steps=12, optimizer="d", stop_factor=None)
    assert len(found.losses) == 12 and run.step_state.optimizer_step == 0


def test_close_in_a_hook_stops_the_run_and_says_so():
    run = make(hooks=[LambdaHook(after_step=lambda trainer: trainer.close()
                                 if trainer.step_state.optimizer_step == 3 else None)])
    with pytest.raises(RuntimeError, match="close\\(\\) in a hook of a run that goes on"):
        run.fit(epochs=2)
    assert run.step_state.optimizer_step == 3
    ended = make(hooks=[LambdaHook(after_fit=lambda trainer: trainer.close())])
    assert ended.fit(epochs=1).status == "finished"


@pytest.mark.parametrize(("settings", "told"), [
    ({"micro_batch_size": 2}, 1), ({"gradient_accumulation_steps": 2}, 1), ({}, 0)])
def test_a_loss_that_is_a_sum_is_told_of_where_steps_have_parts(settings, told):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make(loss_fn=nn.MSELoss(reduction="sum"), **settings)
        make(**settings)
    assert ["reduction='sum'" in str(each.message) for each in found] == [True] * told


@pytest.mark.parametrize("name, own", [("optimizer", "optim"), ("criterion", "loss_fn"),
                                       ("train_loader", "train_dl"), ("num_epochs", "epochs")])
def test_an_attribute_of_another_trainer_is_told_of(name, own):
    """The run does not read it. One of one's own, or of a subclass, is taken without a word."""
    class Mine(Trainer):
        pass

    trainer = make()
    with pytest.warns(UserWarning, match=rf"does not read: did you mean trainer\.{own}\?"):
        setattr(trainer, name, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setattr(trainer, name, 2)
        trainer.teacher = "mine"
        setattr(Mine(nn.Linear(2, 1)), name, 1)
    assert trainer.teacher == "mine" and getattr(trainer, name) == 2


def test_a_second_drive_of_a_paused_run_is_told_what_it_can_do():
    """Pausing it once more is of no use."""
    trainer = make(max_steps=10**9, epochs=None)
    trainer.start()
    trainer.pause().wait()
    until(lambda: trainer.state == "paused")
    with pytest.raises(RuntimeError, match=r"start\(\), paused\); resume\(\) or stop\(\) it"):
        trainer.step()
    trainer.stop()
    trainer.wait()
