"""`load(path, optimizer=False)`: all as it was saved, but for the optimizer and the schedule, which
begin again; and the run says so."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import (CheckpointHook, EMAHook, LambdaHook, LayerGroupsHook, ReplayHook,
                        SchedulerHook, SnapshotHook, Trainer)
from trainer_nb.support.saved import CheckpointError, plain_copy
from trainer_nb.panel.sections import promise

torch.manual_seed(5)
INPUTS = torch.randn(40, 3)
DATA = TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True))


def adam(parameters):
    """With a state to leave behind."""
    return torch.optim.AdamW(parameters, lr=0.01)


def sgd(parameters):
    """Another one."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def make(*hooks, optim=adam, seed=0, **settings):
    """Ten steps an epoch, three epochs."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.2), nn.Linear(6, 1))
    settings = {"epochs": 3, "sched": "cosine", "seed": 3} | settings
    return Trainer(model, train_dl=DataLoader(DATA, 4, shuffle=True), valid_dl=DataLoader(DATA, 20),
                   loss_fn=nn.MSELoss(), optim=optim,
                   device="cpu", progress=False, hooks=hooks, **settings)


def saved(tmp_path, steps=14, **settings):
    """A file of a run in mid-epoch."""
    trainer = make(**settings)
    trainer.step(steps)
    return trainer, trainer.save(tmp_path / "run.pt")


def by_hand(weights, batches, optimizer, rates):
    """The loop by hand from these weights, with these rates."""
    model = nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.0), nn.Linear(6, 1))
    model.load_state_dict(weights)
    optimizer = optimizer(model.parameters())
    for (inputs, targets), rate in zip(batches, rates):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("optim", [adam, sgd])
def test_the_optimizer_is_new_and_all_else_is_as_it_was(optim, tmp_path):
    first, path = saved(tmp_path)
    second = make(optim=optim, seed=9)
    second.load(path, optimizer=False)
    assert all(torch.equal(a, b)
               for a, b in zip(first.model.parameters(), second.model.parameters()))
    assert not second.optim.state
    assert second.optim.param_groups[0]["lr"] != first.optim.param_groups[0]["lr"]
    for name in ("epoch", "batch_idx", "optimizer_step", "samples_seen"):
        assert getattr(second.step_state, name) == getattr(first.step_state, name)
    mine, its = second.state_dict(), plain_copy(first.state_dict())
    assert mine["random"]["torch"].tolist() == its["random"]["torch"].tolist()
    assert str(mine["data"]) == str(its["data"])
    assert second.history["train/loss"].tolist() == first.history["train/loss"].tolist()


@pytest.mark.parametrize("optim", [adam, sgd])
def test_it_goes_on_as_the_loop_by_hand_with_a_new_optimizer(optim, tmp_path):
    """With the batches that were to come, and rates over what is left of the run."""
    _, path = saved(tmp_path)
    second, batches = make(optim=optim, seed=9), []
    second.load(path, optimizer=False)
    second.model[1].p = 0.0
    weights = plain_copy(second.model.state_dict())
    second.hooks.add(LambdaHook(before_step=lambda t: batches.append(t.batch)))
    second.fit()
    straight = make(optim=optim)
    straight.step(14)
    straight.model[1].p, seen = 0.0, []
    straight.hooks.add(LambdaHook(before_step=lambda t: seen.append(t.batch)))
    straight.fit()
    assert len(batches) == 16 and all(torch.equal(a[0], b[0]) for a, b in zip(batches, seen))
    rates = second.history["lr"][14:]
    assert max(rates) == pytest.approx(optim([nn.Parameter(torch.ones(1))]).defaults["lr"])
    ended = by_hand(weights, batches, optim, rates)
    assert all(torch.equal(ended[name], value) for name, value in second.model.state_dict().items())


@pytest.mark.parametrize(("every", "of_epochs"), [("step", None), ("epoch", [1, 2])])
def test_the_schedule_starts_again_over_what_is_left(every, of_epochs, tmp_path):
    """Its first rate comes at once, its last one at the end;
    also in a run that is resumed from there."""
    def sched():
        return SchedulerHook("cosine", every=every, warmup=0)
    _, path = saved(tmp_path, sched=sched())
    second = make(sched=sched(), seed=9)
    second.load(path, optimizer=False)
    hook = second.get_hook(SchedulerHook)
    assert hook.total == (16 if every == "step" else 2)
    plan = second.rate_plan.in_force.tolist()
    state = second.state_dict()
    second.fit()
    rates = second.history["lr"][14:]
    assert rates.tolist() == pytest.approx(plan)
    assert rates[0] == pytest.approx(0.01) and (rates[1:] <= rates[:-1]).all()
    if every == "step":
        short = make(sched=sched(), epochs=None, max_steps=16)
        short.fit()
        assert rates.tolist() == pytest.approx(short.history["lr"].tolist())
    third = make(sched=sched(), seed=4)
    third.load_state_dict(state)
    third.fit()
    assert third.history["lr"].tolist() == second.history["lr"].tolist()
    assert all(torch.equal(a, b)
               for a, b in zip(third.model.parameters(), second.model.parameters()))


def test_a_longer_run_stretches_the_new_schedule(tmp_path):
    _, path = saved(tmp_path)
    second = make(seed=9)
    second.load(path, optimizer=False)
    second.step(6)
    third = make(seed=4)  # and of a run that is resumed
    third.load_state_dict(second.state_dict())
    for trainer in (second, third):
        with pytest.warns(UserWarning, match="made for 16"):
            trainer.fit(epochs=4)
        assert trainer.get_hook(SchedulerHook).total == 26
        assert trainer.step_state.optimizer_step == 40


def test_a_finished_run_with_a_new_optimizer_waits_for_more_steps(tmp_path):
    first = make(sched="one_cycle")
    first.fit()
    path = first.save(tmp_path / "run.pt")
    second = make(sched="one_cycle", seed=9)
    second.load(path, optimizer=False)
    assert second.fit().steps == 30
    second.fit(epochs=4)
    assert second.get_hook(SchedulerHook).total == 10
    assert second.history["lr"][-1] < 1e-3 < second.history["lr"][33]


def test_rates_set_by_hand_are_left_behind_and_other_changes_are_not(tmp_path):
    def parts():
        return [EMAHook(0.9), LayerGroupsHook({"first": ["0"], "second": ["2"]})]
    first = make(*parts())
    first.step(5)
    first.tune(lr=0.5, lr_scale=0.5, grad_clip=1.0, weight_decay=0.25,
               **{"ema.decay": 0.8, "layer_groups.first.frozen": True})
    first.step(5)
    path = first.save(tmp_path / "run.pt")
    second = make(*parts(), seed=9)
    second.load(path, optimizer=False)
    assert second.lr is None
    assert second.lr_scale == 1.0 and second.optim.param_groups[0]["weight_decay"] == 0.01
    assert second.grad_clip == 1.0
    assert second.get_hook(EMAHook).decay == 0.8 and not second.model[0].weight.requires_grad
    averages = [tree_leaves({name: each for name, each in
                             trainer.state_dict()["hooks"]["ema"].items()
                             if name != "buffers"}) for trainer in (first, second)]
    assert len(averages[0]) > 4
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b))
               for a, b in zip(*averages, strict=True))
    second.tune(lr=0.1)  # of the rates of this optimizer
    assert second.rates()[0] == pytest.approx(0.1)


def test_the_run_says_so(tmp_path):
    """It is not exact, the journal has an entry, and what is saved from there on has both."""
    first, path = saved(tmp_path)
    first.tune(grad_clip=2.0)
    first.step(1)
    first.save(path)
    second = make(seed=9)
    second.load(path, optimizer=False)
    entry = second.journal.entries[-1]
    assert (entry.kind, entry.step) == ("load", 15)
    assert str(entry).startswith("step 15: optimizer and schedule: new")
    second.step(2)
    second.tune(grad_clip=1.0)
    second.fit()
    third = make(seed=4)
    third.load_state_dict(second.state_dict())
    for trainer in (second, third):
        assert not trainer.exact and "step 15" in str(trainer.exact)
    assert first.exact
    script = third.journal.to_script()
    assert ("trainer.load(path, optimizer=False)  # the file of step 15\n"
            "trainer.epochs = 3\ntrainer.step(2);") in script
    assert "2.0" not in script
    assert "loaded" in promise(third.journal) and "loaded" not in promise(first.journal)


def test_a_replay_needs_the_file_too(tmp_path):
    _, path = saved(tmp_path)
    second = make(seed=9)
    second.load(path, optimizer=False)
    second.step(3)
    second.tune(lr_scale=0.5)
    second.fit()
    with pytest.raises(ValueError, match=r"from step 14 with a new optimizer.*optimizer=False"):
        make(ReplayHook(second.journal)).fit()
    again = make(ReplayHook(second.journal), seed=8)
    again.load(path, optimizer=False)
    again.fit()
    assert all(torch.equal(a, b)
               for a, b in zip(again.model.parameters(), second.model.parameters()))


def test_a_rewind_before_it_needs_the_old_optimizer(tmp_path):
    """Of the same class it is that run again, whole;
    of another one the rewind is refused, and nothing has changed."""
    first = make(CheckpointHook(tmp_path / "all", every_steps=6, every_epochs=None, keep_last=None))
    first.step(14)
    first.get_hook(CheckpointHook).finish_writing()
    path = first.save(tmp_path / "run.pt")
    for optim in (adam, sgd):
        second = make(CheckpointHook(tmp_path / "all", every_steps=None, every_epochs=None,
                                     keep_last=None), SnapshotHook(every_steps=2), optim=optim,
                                     seed=9)
        second.load(path, optimizer=False)
        second.step(4)
        assert second.rewind(16) == 16 and not second.exact
        if optim is sgd:
            with pytest.raises(CheckpointError, match="another optimizer"):
                second.rewind(12)
            assert second.step_state.optimizer_step == 16
        else:
            assert second.rewind(12) == 12
            assert second.exact and second.get_hook(SchedulerHook).total == 30
            second.step(2)
            assert all(torch.equal(a, b)
                       for a, b in zip(second.model.parameters(), first.model.parameters()))


def test_what_is_refused(tmp_path):
    """Before anything has changed."""
    first, path = saved(tmp_path)
    with pytest.raises(RuntimeError, match="at step 14.*new trainer"):
        first.load(path, optimizer=False)
    second = make(seed=9)
    for value in (second.optim, None, 0):
        with pytest.raises(ValueError, match="optimizer="):
            second.load(path, optimizer=value)
    other = Trainer(nn.Linear(2, 1), train_dl=DataLoader(DATA, 4), loss_fn=nn.MSELoss(), epochs=3,
                    device="cpu", progress=False)
    with pytest.raises(CheckpointError, match="another model"):
        other.load(path, optimizer=False)
    with pytest.raises(CheckpointError, match="another optimizer"):
        make(optim=sgd).load(path)
    assert second.step_state.optimizer_step == other.step_state.optimizer_step == 0
    assert not len(second.journal)
