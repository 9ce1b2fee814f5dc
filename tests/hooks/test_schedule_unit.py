"""The unit of a schedule: schedulers made for epochs, timm's, and parameter groups that come
later."""

import copy
import warnings

import pytest
import torch
from shorter import some
from torch import nn
from torch.optim import lr_scheduler as torch_sched

from trainer_nb import (CheckpointError, CheckpointHook, LambdaHook, SchedulerHook, SnapshotHook,
                        Trainer)
from trainer_nb.hooks.schedule import foresee, rate_after


def batches(count):
    """Pairs of inputs and targets."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, 4, 3, generator=draw)
    return [(each, each.sum(1, keepdim=True)) for each in x]


def net():
    """The same each time."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def make(sched, model=None, count=5, **settings):
    """A run of 4 epochs of `count` steps."""
    settings = {"optim": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "epochs": 4} | settings
    return Trainer(model or net(), train_dl=batches(count), loss_fn=nn.MSELoss(), sched=sched,
                   device="cpu", progress=False, **settings)


# ---- made for epochs


FOR_EPOCHS = {"step": lambda o: torch_sched.StepLR(o, 2),
              "multi": lambda o: torch_sched.MultiStepLR(o, [2, 3]),
              "exponential": lambda o: torch_sched.ExponentialLR(o, 0.7),
              "cosine": lambda o: torch_sched.CosineAnnealingLR(o, 4),
              "polynomial": lambda o: torch_sched.PolynomialLR(o, 4),
              "lambda": lambda o: torch_sched.LambdaLR(o, lambda k: 0.5**k)}
FOR_STEPS = {"step": lambda o: torch_sched.StepLR(o, 60),
             "multi": lambda o: torch_sched.MultiStepLR(o, [80, 120]),
             "exponential": lambda o: torch_sched.ExponentialLR(o, 0.97),
             "cosine": lambda o: torch_sched.CosineAnnealingLR(o, 160),
             "warm-up": lambda o: torch_sched.LinearLR(o, total_iters=10),
             "restarts": lambda o: torch_sched.CosineAnnealingWarmRestarts(o, 40),
             "one cycle": lambda o: torch_sched.OneCycleLR(o, 0.1, 160), "name": "cosine",
             "constant": lambda o: torch_sched.ConstantLR(o),
             "sequential": lambda o: torch_sched.SequentialLR(
                 o, [torch_sched.LinearLR(o, total_iters=4), torch_sched.CosineAnnealingLR(o, 156)],
                 [4])}


@pytest.mark.parametrize("name", FOR_EPOCHS)
def test_a_scheduler_made_for_epochs_is_asked_about(name):
    """Once, when the run begins; with `every=` there is nothing to ask."""
    trainer = make(FOR_EPOCHS[name], count=40)
    with pytest.warns(UserWarning, match="ticks at each of the 160 steps.*every='epoch'"):
        trainer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step()
        for every in ("step", "epoch"):
            make(SchedulerHook(FOR_EPOCHS[name], every=every), count=40).step()
        make(FOR_EPOCHS[name], count=1).step()


@pytest.mark.parametrize("name", FOR_STEPS)
def test_a_schedule_that_fits_the_steps_is_not(name):
    """Nothing is said."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(FOR_STEPS[name], count=40).step()


def test_the_summary_tells_unit_and_last_rate():
    """As the run then has them."""
    each_step, each_epoch = (make(FOR_EPOCHS["exponential"]),
                             make(SchedulerHook(FOR_EPOCHS["exponential"], every="epoch")))
    assert "changes each step, lr 0.1 now and 0.000114 at step 20" in each_step.summary()
    assert "changes each epoch, lr 0.1 now and 0.0343 at step 20" in each_epoch.summary()
    each_epoch.fit()
    assert each_epoch.history["lr"][-1] == pytest.approx(0.0343)
    assert "schedule" not in make(None).summary()
    slow = make(lambda o: torch_sched.ExponentialLR(o, 0.9999), epochs=None, max_steps=100_000)
    assert "lr 4.54e-06 at step 100,000" in slow.summary()


@pytest.mark.parametrize("name", ["step", "multi", "exponential", "cosine", "polynomial"])
def test_a_rate_far_ahead(name):
    """Beyond what is looked ahead tick by tick:
    by the closed form, which leaves the scheduler where it is."""
    optim = torch.optim.SGD(net().parameters(), lr=0.1)
    sched = {"step": lambda: torch_sched.StepLR(optim, 500),
             "multi": lambda: torch_sched.MultiStepLR(optim, [700, 1300]),
             "exponential": lambda: torch_sched.ExponentialLR(optim, 0.999),
             "cosine": lambda: torch_sched.CosineAnnealingLR(optim, 3000),
             "polynomial": lambda: torch_sched.PolynomialLR(optim, 4000)}[name]()
    kept = copy.deepcopy(sched.state_dict())
    assert rate_after(sched, 1500) == pytest.approx(foresee(sched, [1500])[0], rel=1e-6)
    assert repr(kept) == repr(sched.state_dict()) and optim.param_groups[0]["lr"] == 0.1


# ---- timm's


class Numbered:
    """A scheduler of timm's shape: it is told the epoch, or the update."""

    def __init__(self, optimizer, t_in_epochs=True):
        self.optimizer, self.t_in_epochs, self.told = optimizer, t_in_epochs, []
        self.base = [group["lr"] for group in optimizer.param_groups]

    def _set(self, number):
        for group, rate in zip(self.optimizer.param_groups, self.base):
            group["lr"] = rate / (1 + number)

    def step(self, epoch: int, metric: float | None = None) -> None:
        """At the end of an epoch, with the number of the next one."""
        self.told.append(("epoch", epoch, metric))
        if self.t_in_epochs:
            self._set(epoch)

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        """After an update, with how many there were."""
        if not self.t_in_epochs:
            self._set(num_updates)

    def state_dict(self):
        """All but the optimizer."""
        return {"base": self.base}

    def load_state_dict(self, state):
        """Back again."""
        self.base = state["base"]


@pytest.mark.parametrize("in_epochs", [True, False])
def test_schedulers_that_are_told_a_number(in_epochs):
    """By epochs or by updates, as they say of themselves; also of a run that is resumed."""
    def fresh():
        return make(lambda optim: Numbered(optim, in_epochs), valid_dl=batches(1))
    straight, stopped = fresh(), fresh()
    straight.fit()
    wanted = [0.1 / (1 + (step // 5 if in_epochs else step)) for step in range(20)]
    assert straight.history["lr"].tolist() == pytest.approx(wanted)
    stopped.step(7)
    resumed = fresh()
    resumed.load_state_dict(stopped.state_dict())
    resumed.fit()
    assert all(torch.equal(a, b)
               for a, b in zip(straight.model.parameters(), resumed.model.parameters()))
    with pytest.raises(ValueError, match="goes by"):
        SchedulerHook(Numbered(straight.optim, in_epochs), every="step" if in_epochs else "epoch")


def test_a_metric_for_one_that_is_told_a_number():
    """The record of the evaluation before."""
    trainer = make(SchedulerHook(lambda optim: Numbered(optim), metric="valid/loss"),
                   valid_dl=batches(1), epochs=2)
    trainer.fit()
    (_, first, a), (_, second, b) = trainer.sched.told
    assert (first, second) == (1, 2) and b == trainer.result().last["valid/loss"] != a


def test_one_that_asks_for_something_else():
    """It is refused when the trainer is made."""
    class Asking:
        def step(self, epoch):
            """Needs a number."""
    with pytest.raises(TypeError, match="its step.. asks for epoch"):
        make(lambda optim: Asking())


# ---- parameter groups that come later


def unfreeze(model, at, rate=0.1):
    """A hook that gives the body to the optimizer after n steps."""
    def add(trainer):
        if trainer.step_state.optimizer_step == at and len(trainer.optim.param_groups) == 1:
            model[0].requires_grad_(True)
            trainer.optim.add_param_group({"params": list(model[0].parameters()), "lr": rate})
    return add


ADDED = ["cosine", "one_cycle", lambda o: torch_sched.LambdaLR(o, lambda k: 0.9**k),
         lambda o: torch_sched.StepLR(o, 4)]


@pytest.mark.parametrize("point", ["after_step", "after_epoch"])
@pytest.mark.parametrize("sched", ADDED, ids=["cosine", "one_cycle", "lambda", "step"])
def test_a_group_that_is_added_in_a_hook_is_scheduled(sched, point):
    """Like the others, from the rate that it comes with; theirs are as in a run without it."""
    def run(*hooks):
        model, rates = net(), []
        model[0].requires_grad_(False)
        trainer = make(sched, model,
                       optim=torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9),
                       hooks=[LambdaHook(
                           before_step=lambda t: rates.append(
                               [group["lr"] for group in t.optim.param_groups])),
                              *(LambdaHook(**{point: unfreeze(model, 10, 0.05)}) for _ in hooks)])
        trainer.fit()
        return trainer, rates
    (_, plain), (trainer, rates) = run(), run(1)
    assert [each[0] for each in rates] == pytest.approx([each[0] for each in plain])
    assert trainer.runner.rates.base == [0.1, 0.05]
    assert [each[1]
            for each in rates[10:]] == pytest.approx([0.5 * each[0] for each in rates[10:]],
                                                     rel=1e-6, abs=1e-12)


def thawed(sched, folder=None, at=7, hooks=()):
    """A run whose body is frozen, and joins the optimizer after a step."""
    model = net()
    model[0].requires_grad_(False)
    files = [] if folder is None else [CheckpointHook(folder, every_steps=5, every_epochs=None)]
    return make(sched, model, optim=torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9),
                hooks=[SnapshotHook(every_steps=5), *files,
                       LambdaHook(after_step=unfreeze(model, at, 0.05)), *hooks])


def assert_same_run(trainer, other, held=(0, 2)):
    """Weights, moments, rates and groups; `held`: layers that the optimizer has."""
    for own, there in zip(trainer.model.parameters(), other.model.parameters()):
        assert torch.equal(own, there)
    for own, there in ((a, b) for number in held for a, b in zip(
            trainer.model[number].parameters(), other.model[number].parameters())):
        assert torch.equal(trainer.optim.state[own]["momentum_buffer"],
                           other.optim.state[there]["momentum_buffer"])
    assert trainer.rates() == other.rates()
    assert len(trainer.optim.param_groups) == len(other.optim.param_groups) == 2


SCHEDULES = dict(zip(["cosine", "one_cycle", "lambda", "step"], ADDED))


@pytest.mark.matrix
@pytest.mark.parametrize(("sched", "way"), some(
    [(sched, way) for sched in (None, *SCHEDULES)
     for way in ("rewind", "load", "resume", "rewind after load")],
    [(None, "rewind"), (None, "load"), ("cosine", "rewind"), ("cosine", "rewind after load"),
     ("one_cycle", "load"), ("lambda", "rewind"), ("lambda", "resume"), ("step", "resume")]))
def test_over_a_group_that_was_added_a_run_goes_on_bit_for_bit(sched, way, tmp_path):
    """Back to before it, and in a new trainer after it."""
    sched = SCHEDULES.get(sched)
    plain = thawed(sched)
    plain.fit()
    trainer = thawed(sched, tmp_path / "run")
    trainer.step(12)
    if way == "rewind":
        trainer.rewind(5)
        assert len(trainer.optim.param_groups) == 1
    else:
        trainer.save(tmp_path / "run.pt")
        trainer = thawed(sched, tmp_path / "run" if way == "resume" else None)
        if way != "resume":
            trainer.load(tmp_path / "run.pt")
            assert len(trainer.optim.param_groups) == 2
        trainer.step(1)
        if way == "rewind after load":
            trainer.save(tmp_path / "later.pt")
            trainer.load(of_before(tmp_path, sched))
            assert len(trainer.optim.param_groups) == 1
    trainer.fit()
    assert_same_run(trainer, plain)


LATE = {**SCHEDULES, "plateau": lambda o: torch_sched.ReduceLROnPlateau(o, patience=0),
        "by epochs": lambda o: torch_sched.StepLR(o, 1)}


@pytest.mark.parametrize("point", ["after_epoch", "after_step", "asked"])
@pytest.mark.parametrize("sched", LATE)
def test_a_file_from_before_the_schedule_knows_a_group(sched, point, tmp_path):
    """A crash after the epoch at whose end a group came: it is scheduled before the next step."""
    def made(folder=None):
        model = net()
        model[0].requires_grad_(False)
        add = unfreeze(model, 5, 0.05)
        late = {"after_epoch": LambdaHook(after_epoch=add, order=50),
                "after_step": LambdaHook(after_step=add, order=50),
                "asked": LambdaHook(after_step=lambda trainer: trainer.ask(lambda: add(trainer)))}
        hook = {"plateau": lambda: SchedulerHook(LATE[sched], metric="train/loss", every="epoch"),
                "by epochs": lambda: SchedulerHook(LATE[sched], every="epoch")}.get(
            sched, lambda: SCHEDULES[sched])()
        files = [] if folder is None else [CheckpointHook(folder, every_steps=5)]
        return make(hook, model, optim=torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9),
                    hooks=[late[point], SnapshotHook(every_steps=1), *files])
    plain, first, other = made(), made(tmp_path), made()
    plain.fit()
    first.step(7)
    first.close()
    for entry in tmp_path.glob("step_*.pt"):
        if entry.stem != "step_00000005":  # as after a crash
            entry.unlink()
    again = made(tmp_path)
    again.step(1)
    assert again.step_state.optimizer_step == 6
    other.step(8)
    other.rewind(5)
    assert len(other.optim.param_groups) == 2
    for trainer in again, other:
        trainer.fit()
        assert_same_run(trainer, plain)
    other.rewind(4)
    assert len(other.optim.param_groups) == 1
    other.fit()
    assert_same_run(other, plain)


def test_a_group_without_what_its_scheduler_reads_there():
    """One of the program's own cannot add it: refused, and nothing has changed."""
    def made():
        model = net()
        optim = torch.optim.SGD([{"params": model[0].parameters()},
                                 {"params": model[2].parameters()}], lr=0.1, momentum=0.9)
        return make(torch_sched.OneCycleLR(optim, 0.1, 20), model, optim=optim)
    trainer = made()
    trainer.step(3)
    state = copy.deepcopy(trainer.state_dict())
    late = state["optim"]["param_groups"][1]
    for name in ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"):
        late.pop(name, None)
    again = made()
    with pytest.raises(CheckpointError, match="lacks 'initial_lr', 'max_lr'"):
        again.load_state_dict(state)
    assert again.step_state.optimizer_step == 0
    again.load_state_dict(trainer.state_dict())
    again.fit(), trainer.fit()
    assert all(map(torch.equal, again.model.parameters(), trainer.model.parameters()))


def of_before(folder, sched):
    """The file of a step before the group came."""
    early = thawed(sched)
    early.step(4)
    early.save(folder / "early.pt")
    return folder / "early.pt"


def test_other_groups_are_another_optimizer():
    """Of a run that began with them, or of a trainer that has more; nothing has changed then."""
    trainer = thawed("cosine")
    early = trainer.state_dict()
    trainer.step(12)
    state = trainer.state_dict()
    def refused(other, given):
        groups = list(other.optim.param_groups)
        with pytest.raises(CheckpointError, match="another optimizer|2 groups|1 group of|momentum"):
            other.load_state_dict(given)
        assert other.optim.param_groups == groups and other.step_state.optimizer_step == 0
    model = net()
    both = [{"params": model[2].parameters()}, {"params": model[0].parameters()}]
    refused(make("cosine", model, optim=torch.optim.SGD(both, lr=0.1, momentum=0.9)), early)
    more = thawed("cosine")
    more.optim.add_param_group({"params": list(more.model[0].parameters())})
    refused(more, early)
    held = ["2.weight", "2.bias", "0.weight", "0.bias"]
    for stepped in ([*held[:3], held[0]], [*held[:2], "x", "y"], [held[1], held[0], *held[2:]],
                    held[:1], None, "abcd"):
        refused(thawed("cosine"), state | {"modules": state["modules"] | {"stepped": stepped}})
    refused(thawed("cosine"), state | {"modules": state["modules"] | {"groups": [["2.weight"]]}})
    again = thawed("cosine")
    again.load_state_dict(state)
    again.fit()
    trainer.fit()
    assert_same_run(again, trainer)


OF_PARTS = {
    "OneCycleLR": lambda o: torch_sched.OneCycleLR(o, 0.1, 20),
    "SequentialLR": lambda o: torch_sched.SequentialLR(
        o, [torch_sched.LinearLR(o, 0.1, total_iters=8), torch_sched.ExponentialLR(o, 0.9)], [8]),
    "ChainedScheduler": lambda o: torch_sched.ChainedScheduler(
        [torch_sched.LinearLR(o, 0.1, total_iters=8), torch_sched.ExponentialLR(o, 0.9)], o)}


@pytest.mark.parametrize("name", OF_PARTS)
def test_a_scheduler_that_cannot_take_a_group_says_so(name):
    """When the group comes, not at the milestone after it."""
    model = net()
    optim = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
    trainer = make(OF_PARTS[name](optim), model, optim=optim,
                   hooks=[LambdaHook(after_step=unfreeze(model, 3))])
    model[0].requires_grad_(False)
    with pytest.raises(ValueError, match=f"{name} cannot take it"):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 3


def of_three(change=None, at=5, sched=None, *hooks):
    """Groups with a rate and a decay of their own; a hook changes them after a step."""
    model, used = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1)), []
    groups = [{"params": list(model[number].parameters()), "lr": rate, "weight_decay": decay}
              for number, rate, decay in ((0, 0.002, 0.0), (2, 0.005, 0.1), (3, 0.1, 0.2))]
    def act(trainer):
        if trainer.step_state.optimizer_step == at and change is not None:
            change(trainer)
    trainer = make(sched, model, optim=torch.optim.SGD(groups, momentum=0.9), hooks=[
        LambdaHook(after_step=act), LambdaHook(after_batch=lambda t: used.append(t.rates())),
        SnapshotHook(every_steps=1), *hooks])
    return trainer, used


def drop(trainer, number):
    """A group goes, and what is kept of its parameters."""
    for parameter in trainer.optim.param_groups.pop(number)["params"]:
        del trainer.optim.state[parameter]


def drop_first(trainer):
    """That of the body."""
    drop(trainer, 0)


def exchange_last(trainer):
    """A new head with a rate of its own in the place of the old one."""
    model = trainer.model
    model[3] = nn.Linear(4, 1)
    drop(trainer, -1)
    trainer.optim.add_param_group({"params": list(model[3].parameters()), "lr": 0.001,
                                   "weight_decay": 0.4})


@pytest.mark.parametrize(("change", "rates", "decays"), [
    (None, [0.2, 0.5, 10], [0, 0.05, 0.1]), (drop_first, [0.2, 4], [0.05, 0.1]),
    (exchange_last, [0.2, 0.5, 0.1], [0, 0.05, 0.2])], ids=["none", "removed", "exchanged"])
def test_rates_by_hand_go_with_their_groups(change, rates, decays):
    """Each by the rate that it came with, whatever stands in its place now."""
    trainer, _ = of_three(change)
    trainer.step(6)
    trainer.tune(lr=0.2, weight_decay=0.05)
    assert trainer.rates() == pytest.approx(rates)
    assert [each["weight_decay"] for each in trainer.optim.param_groups] == pytest.approx(decays)


@pytest.mark.parametrize("sched", ["cosine", lambda o: torch_sched.StepLR(o, 4),
                                   lambda o: torch_sched.LambdaLR(o, lambda k: 0.9**k)],
                         ids=["cosine", "step", "lambda"])
@pytest.mark.parametrize("change", [drop_first, exchange_last])
def test_the_schedule_goes_with_its_groups(change, sched):
    """What stays has the rates of the run without the change; a new group those of its own."""
    (plain, before), (trainer, used) = of_three(sched=sched), of_three(change, sched=sched)
    plain.fit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of parameters that nobody holds
        trainer.fit()
    for own, there in zip(used[5:], before[5:]):
        if change is drop_first:
            assert own == pytest.approx(there[1:], rel=1e-6, abs=1e-12)
        else:
            assert own == pytest.approx([*there[:2], 0.01 * there[2]], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("sched", [None, "cosine", lambda o: torch_sched.StepLR(o, 4)],
                         ids=["none", "cosine", "step"])
def test_groups_that_are_all_exchanged(sched):
    """A schedule by name is made for the new ones; one of the program says that it cannot be."""
    def exchange(trainer):
        groups, trainer.optim.param_groups[:] = trainer.optim.param_groups[:], []
        trainer.optim.add_param_group({"params": [each for group in groups
                                                  for each in group["params"]], "lr": 0.01})
    (plain, before), (trainer, used) = of_three(sched=sched), of_three(exchange, sched=sched)
    if callable(sched):
        with pytest.raises(ValueError, match="all parameter groups are others"):
            trainer.fit()
        return
    plain.fit(), trainer.fit()
    expected = [0.01 if sched is None else 0.1 * each[2] for each in before[5:]]
    assert [rate for rate, in used[5:]] == pytest.approx(expected)


def test_what_is_left_of_a_group_that_was_removed_is_named():
    """torch cannot save it, and says no more than a number."""
    trainer, _ = of_three(lambda trainer: trainer.optim.param_groups.pop(0))
    with pytest.raises(CheckpointError, match=r"del optim.state\[parameter\]"):
        trainer.fit()


@pytest.mark.parametrize("sched", [None, "cosine"])
def test_an_exchange_that_the_schedule_does_not_know_yet_goes_on_bit_for_bit(sched):
    """A snapshot of the boundary at which it was asked for."""
    def ask(trainer):
        trainer.ask(lambda: exchange_last(trainer))
    torch.manual_seed(5)
    trainer, used = of_three(ask, sched=sched)
    trainer.fit()
    first = used[5:]
    used.clear()
    trainer.rewind(5)
    trainer.fit()
    assert used == first


@pytest.mark.parametrize("sched", [None, "cosine", lambda o: torch_sched.StepLR(o, 4)],
                         ids=["none", "cosine", "step"])
def test_over_a_group_that_was_removed_a_run_goes_on_bit_for_bit(sched, tmp_path):
    """In a new trainer, after a rewind to before it, and to between."""
    def made():
        torch.manual_seed(5)
        return of_three(drop_first, sched=sched)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plain, trainer = made(), made()
        plain.fit()
        trainer.step(10)
        trainer.save(tmp_path / "run.pt")
        again = made()
        again.load(tmp_path / "run.pt")
        again.fit()
        assert_same_run(again, plain, [2, 3])
        for step in (7, 3):
            trainer.rewind(step)
            trainer.fit()
            assert_same_run(trainer, plain, [2, 3])
