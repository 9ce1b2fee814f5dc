"""Several optimizers step on the same batches in turn:
bit for bit the loop by hand, each with its own window, rate, clip, scaler and counters."""

import copy
import itertools
import math

import pytest
import torch
from shorter import some
from torch.nn.functional import binary_cross_entropy_with_logits

from trainer_nb import CheckpointError, LambdaHook, SnapshotHook, Task, Trainer
from trainer_nb.core.account import difference
from trainer_nb.core.control import Command
from trainer_nb.core.state import seed_everything
from trainer_nb.tools.replay import ReplayHook

NAMES = ("d", "g")


class GAN(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.d = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.ReLU(),
                                     torch.nn.Dropout(0.2), torch.nn.Linear(width, 1))
        self.g = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width),
                                     torch.nn.ReLU(), torch.nn.Linear(width, 2))


def score(gan, x, target):
    return binary_cross_entropy_with_logits(gan.d(x), torch.full((len(x), 1), target).to(x))


def drawn(gan, real):
    return gan.g(torch.randn(len(real), 3, device=real.device))


def loss_d(gan, real):
    return score(gan, real, 1.0) + score(gan, drawn(gan, real).detach(), 0.0)


def loss_g(gan, real):
    return score(gan, drawn(gan, real), 1.0)


LOSSES = {"d": loss_d, "g": loss_g}


def step_d(batch, trainer):
    return {"loss": loss_d(trainer.model, batch)}


def step_g(batch, trainer):
    return {"loss": loss_g(trainer.model, batch)}


STEPS = {"d": step_d, "g": step_g}


def batches(count=7, last=8):
    torch.manual_seed(7)
    sizes = [8] * (count - 1) + [last]
    return [torch.randn(size, 2) for size in sizes]


def new_gan():
    torch.manual_seed(0)
    return GAN()


def adams(gan, **settings):
    rates = {"d": 4e-3, "g": 1e-3}
    return {name: torch.optim.Adam(getattr(gan, name).parameters(), lr=rates[name],
                                   betas=(0.5, 0.99), **settings) for name in NAMES}


def make(model=None, data=None, optim=None, train_step=None, **settings):
    model = model or new_gan()
    settings = {"epochs": 2, "seed": 3, "progress": False, **settings}
    return Trainer(model, train_step or STEPS, batches() if data is None else data,
                   optim=optim or adams(model), **settings)


def by_hand(data, epochs=2, accumulation=None, every=None, clip=None, bf16=False, scheds=None,
            ema=None):
    "The loop that one writes, with every gradient that may be in the way saved and dropped."
    gan, accumulation, every, clip = new_gan(), accumulation or {}, every or {}, clip or {}
    optims, average = adams(gan), None
    seed_everything(3)
    made = {name: make_sched(optims[name]) for name, make_sched in (scheds or {}).items()}
    if ema:
        average = copy.deepcopy(gan.g)
    updates = 0
    kept, waiting = {name: [None] * 50 for name in NAMES}, dict.fromkeys(NAMES, 0)

    def bring_back(name):
        for p, gradient in zip(getattr(gan, name).parameters(), kept[name]):
            p.grad = gradient

    def close(name):
        nonlocal updates
        own = list(getattr(gan, name).parameters())
        for p in own:
            p.grad = p.grad * (accumulation.get(name, 1) / waiting[name])
        if name in clip:
            torch.nn.utils.clip_grad_norm_(own, clip[name])
        optims[name].step()
        if name in made:
            made[name].step()
        if name == "g" and ema:
            updates += 1
            decay = min(ema, updates / (9 + updates))
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), list(gan.g.parameters()),
                                     1 - decay)
        waiting[name], kept[name] = 0, [None] * len(own)
        gan.zero_grad()

    for _ in range(epochs):
        for number, batch in enumerate(data, 1):
            for name in NAMES:
                if number % every.get(name, 1):
                    continue
                bring_back(name)
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = LOSSES[name](gan, batch)
                (loss / accumulation.get(name, 1)).backward()
                waiting[name] += 1
                kept[name] = [p.grad for p in getattr(gan, name).parameters()]
                if waiting[name] == accumulation.get(name, 1):
                    close(name)
                gan.zero_grad()
        for name in NAMES:  # the tail
            if waiting[name]:
                bring_back(name)
                close(name)
    return gan if average is None else (gan, average)


def assert_equal(mine, theirs):
    differing = [name for name, p in mine.state_dict().items()
                 if not torch.equal(p, theirs.state_dict()[name])]
    assert not differing


CASES = {
    "nothing": {},
    "accumulation of 2 and a tail": {"accumulation": {"d": 2, "g": 2}},
    "a window of the generator of 2": {"accumulation": {"g": 2}},
    "five for one": {"every": {"g": 5}},
    "the discriminator at each second batch": {"every": {"d": 2}},
    "clip of one": {"clip": {"d": 0.05}},
    "clip of both": {"clip": {"d": 0.05, "g": 0.01}},
    "bf16": {"bf16": True},
    "all": {"accumulation": {"d": 2, "g": 2}, "clip": {"d": 0.05}, "bf16": True},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_gan_is_the_loop_by_hand_bit_for_bit(case):
    data = batches(7)
    trainer = make(data=data, every=case.get("every"), grad_clip=case.get("clip"),
                   gradient_accumulation_steps=case.get("accumulation", 1),
                   mixed_precision="bf16" if case.get("bf16") else None)
    trainer.fit()
    assert_equal(trainer.model, by_hand(data, **case))


def test_schedules_and_the_average_of_the_generator_are_those_by_hand():
    scheds = {"d": lambda optim: torch.optim.lr_scheduler.StepLR(optim, 3, gamma=0.5),
              "g": lambda optim: torch.optim.lr_scheduler.ExponentialLR(optim, 0.9)}
    trainer = make(sched=scheds, ema=0.9)
    trainer.fit()
    gan, average = by_hand(batches(), scheds=scheds, ema=0.9)
    assert_equal(trainer.model, gan)
    from trainer_nb import EMAHook
    for mine, theirs in zip(trainer.get_hook(EMAHook).ema_model.g.parameters(),
                            average.parameters()):
        assert torch.allclose(mine, theirs, rtol=1e-6)


def test_a_gradient_left_by_the_other_step_never_reaches_a_window_that_waits():
    """The generator's loss goes through the discriminator, whose window is open:
    it may not add to it."""
    seen = {}

    def look(trainer, name):
        if name == "d":
            seen[trainer.step_state.optimizer_step] = [p.grad.clone()
                                                       for p in trainer.model.d.parameters()]
    data = batches(2)
    trainer = make(data=data, epochs=1, gradient_accumulation_steps=2,
                   hooks=[LambdaHook(before_optimizer_step=look)])
    trainer.fit()
    gan = new_gan()
    seed_everything(3)
    expected = []
    for batch in data:
        expected.append(torch.autograd.grad(loss_d(gan, batch) / 2, list(gan.d.parameters())))
        with torch.no_grad():
            loss_g(gan, batch)  # the random numbers, and nothing else
    for mine, *parts in zip(seen[0], *expected):
        assert torch.equal(mine, sum(parts))


def test_hooks_hear_of_the_run_and_of_each_optimizer_in_order():
    seen = []
    def note(point):
        return lambda trainer, *name: seen.append((point, *name))
    points = ("before_batch", "after_loss", "after_batch", "before_step", "after_step",
              "before_optimizer_step", "after_optimizer_step")
    trainer = make(data=batches(2), epochs=1, every={"g": 2},
                   hooks=[LambdaHook(**{point: note(point) for point in points})])
    trainer.fit()
    of_d = [("before_optimizer_step", "d"), ("after_optimizer_step", "d")]
    assert seen == [("before_batch",), *of_d, ("after_batch",),
                    ("before_batch",), *of_d, ("after_loss",), ("after_batch",), ("before_step",),
                    ("after_step",)]


def test_counters_records_and_rates_are_each_its_own():
    trainer = make(every={"g": 2}, grad_clip={"d": 1.0})
    trainer.fit()
    history = trainer.history
    assert trainer.step_state.optimizer_step == 6
    assert trainer.optimizers["d"].step_state.optimizer_step == 14
    assert len(history["train/d/loss"]) == 14 and len(history["train/g/loss"]) == 6
    assert set(history["lr.d"]) == {4e-3} and set(history["lr.g"]) == {1e-3}
    assert len(history["grad_norm.d"]) == 14 and "grad_norm.g" not in history
    assert history.steps("train/d/loss").tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 6, 6, 7]
    assert trainer.step_state.samples_seen == 2 * 7 * 8


# every window of the generator is a multiple of the discriminator's, and it has its turn in each
# epoch
TURNS = [({}, 1), ({}, 2), ({}, {"g": 2}), ({"g": 2}, 1), ({"g": 2}, 2), ({"g": 2}, {"g": 2}),
         ({"g": 2}, {"d": 4, "g": 2}), ({"d": 3}, 1),
         ({"d": 3}, {"g": 2}), ({"g": 3, "d": 2}, 1), ({"g": 3, "d": 2}, {"g": 2})]


@pytest.mark.slow
@pytest.mark.parametrize(("length", "turns", "total"), [
    (length, turns, total)
    for length, turns, total in itertools.product((3, 5, 8), TURNS,
                                                  ({"epochs": 3}, {"max_steps": 7}))])
def test_the_steps_planned_are_the_steps_made(length, turns, total):
    every, accumulation = turns
    steps = {name: (
        lambda batch, trainer, part=name: {
            "loss": getattr(trainer.model, part)[0](torch.zeros(1, 2 + (part == "g"))).sum()})
            for name in NAMES}
    trainer = make(data=batches(length), train_step=steps, every=every,
                   gradient_accumulation_steps=accumulation,
                   **({"epochs": None} | total))
    planned = {name: each.planned_steps for name, each in trainer.optimizers.items()}
    trainer.fit()
    assert {name: each.step_state.optimizer_step
            for name, each in trainer.optimizers.items()} == planned


def test_max_steps_that_are_never_reached_are_an_error():
    with pytest.raises(ValueError, match="max_steps would never be reached"):
        make(data=batches(3), every={"g": 5}, epochs=None, max_steps=2).fit()


SETTINGS = {
    "plain": {},
    "five for one": {"every": {"g": 3}},
    "windows": {"gradient_accumulation_steps": {"d": 1, "g": 2}, "grad_clip": 0.1},
    "schedules": {"sched": {"d": "cosine", "g": "one_cycle"}, "ema": 0.9,
                  "mixed_precision": "bf16"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", some(SETTINGS, ("five for one", "schedules")))
def test_a_run_saved_at_any_boundary_goes_on_bit_for_bit(name):
    settings = SETTINGS[name]
    whole = make(**settings)
    states = []
    def keep(trainer):
        states.append(trainer.state_dict())
    def ask(trainer):
        trainer.ask(lambda: keep(trainer))
    whole.hooks.add(LambdaHook(after_batch=ask))
    whole.fit()
    assert len(states) >= 6
    for state in states:
        again = make(**settings)
        again.load_state_dict(state)
        again.fit()
        assert_equal(again.model, whole.model)
        for name, each in again.optimizers.items():
            assert each.step_state == whole.optimizers[name].step_state
        assert again.history["train/d/loss"].tolist() == whole.history["train/d/loss"].tolist()


def test_a_rewind_and_a_replay_are_the_same_run():
    trainer = make(every={"g": 2}, sched={"d": "cosine"}, hooks=[SnapshotHook(every_steps=1)])
    trainer.step(4)
    trainer.tune(**{"lr.d": 1e-3, "grad_clip.g": 0.1})
    trainer.rewind(2)
    trainer.tune(**{"lr_scale.g": 0.5})
    trainer.fit()
    again = make(every={"g": 2}, sched={"d": "cosine"}, hooks=[SnapshotHook(every_steps=1)])
    again.hooks.add(ReplayHook(trainer.journal))
    again.fit()
    assert_equal(again.model, trainer.model)


def test_an_error_between_two_steps_of_a_batch_is_named():
    "The discriminator has stepped: its batch is taken again, and that is no longer the same run."
    def failing(batch, trainer):
        if trainer.step_state.optimizer_step == 2 and not failed:
            failed.append(True)
            raise RuntimeError("here")
        return step_g(batch, trainer)
    failed = []
    trainer = make(train_step={"d": step_d, "g": failing})
    with pytest.raises(RuntimeError, match="here"):
        trainer.fit()
    assert "parameters may have moved" in str(trainer.exact)
    assert trainer.step_state.batch_idx == 2
    assert trainer.optimizers["d"].step_state.optimizer_step == 3
    trainer.fit()
    assert trainer.step_state.optimizer_step == 14


def test_after_an_error_in_a_window_all_its_batches_are_taken_again():
    def failing(batch, trainer):
        taken.append(trainer.step_state.batch_idx)
        if len(taken) == 4:
            raise RuntimeError("here")
        return step_d(batch, trainer)
    taken = []
    trainer = make(train_step={"d": failing, "g": step_g}, gradient_accumulation_steps=2, epochs=1)
    with pytest.raises(RuntimeError, match="here"):
        trainer.fit()
    state = trainer.step_state
    assert (state.batch_idx, state.samples_seen, state.window_batches) == (2, 16, 0)
    trainer.fit()
    assert taken == [0, 1, 2, 3, 2, 3, 4, 5, 6]


def test_an_error_before_any_step_costs_other_random_numbers_only():
    def failing(batch, trainer):
        if trainer.step_state.optimizer_step == 2 and not failed:
            failed.append(True)
            raise RuntimeError("here")
        return step_d(batch, trainer)
    failed = []
    trainer = make(train_step={"d": failing, "g": step_g})
    with pytest.raises(RuntimeError, match="here"):
        trainer.fit()
    assert "with other random numbers" in str(trainer.exact)
    assert all(p.grad is None for p in trainer.model.parameters())


def test_the_search_for_a_rate_is_of_one_optimizer_and_leaves_no_trace():
    trainer, other = make(), make()
    trainer.step(3)
    other.step(3)
    rates = []
    trainer.hooks.add(
        LambdaHook(before_batch=lambda t: rates.append([o.rate for o in t.optimizers.values()])))
    found = trainer.lr_find(1e-4, 1e-1, num_steps=12, optimizer="d")
    assert found.sweep.name == "lr.d" and len(found.losses) == 12
    assert {g for _, g in rates} == {1e-3} and [d for d, _ in rates] == pytest.approx(found.lrs)
    trainer.fit()
    other.fit()
    assert_equal(trainer.model, other.model)
    assert other.history["train/d/loss"].tolist() == trainer.history["train/d/loss"].tolist()


def test_the_losses_of_a_search_are_those_of_its_optimizer():
    trainer = make()
    first = [trainer.lr_find(1e-4, 1e-1, num_steps=10, optimizer=name).losses[0] for name in NAMES]
    gan = new_gan()
    seed_everything(3)
    with torch.no_grad():
        expected = [loss_d(gan, batches()[0]).item(), None]
    assert first[0] == pytest.approx(expected[0]) and first[1] != first[0]


def test_a_skipped_step_is_counted_for_its_optimizer():
    def spoiled(batch, trainer):
        factor = (float("nan")
                  if trainer.optimizers["d"].step_state.optimizer_step == 2 and not seen else 1.0)
        seen.append(factor) if factor != factor else None
        return {"loss": step_d(batch, trainer)["loss"] * factor}
    seen = []
    trainer = make(train_step={"d": spoiled, "g": step_g}, non_finite="skip", epochs=1)
    trainer.fit()
    of_d, of_g = (trainer.runners[name].gradients.finite.skipped for name in NAMES)
    assert (of_d, of_g) == (1, 0)
    assert trainer.optimizers["d"].step_state.optimizer_step == 6
    assert trainer.step_state.optimizer_step == 7
    assert trainer.history["skipped_steps.d"][-1] == 1


def test_a_gradient_of_the_first_optimizer_that_is_not_finite_raises():
    def spoiled(batch, trainer):
        return {"loss": step_d(batch,
                               trainer)["loss"] * (float("nan")
                                                   if trainer.step_state.optimizer_step == 2
                                                   else 1.0)}

    def alone(batch, trainer):  # what the discriminator has become never reaches it
        return {"loss": trainer.model.g(torch.randn(len(batch), 3)).square().mean()}
    with pytest.raises(ArithmeticError, match="gradients of step 3 are not finite"):
        make(train_step={"d": spoiled, "g": alone}, epochs=1).fit()


def test_each_optimizer_has_a_loss_scaler_of_its_own():
    trainer = make(mixed_precision="fp16", epochs=1)
    scalers = [each.engine.scaler for each in trainer.optimizers.values()]
    assert scalers[0] is not scalers[1] and None not in scalers
    scalers[0]._lazy_init_scale_growth_tracker(torch.device("cpu"))
    scalers[0]._scale.fill_(2.0**120)
    trainer.fit()
    of_d, of_g = trainer.optimizers["d"].step_state, trainer.step_state
    assert of_d.skipped_steps > 0 and of_g.skipped_steps == 0
    state = trainer.state_dict()
    again = make(mixed_precision="fp16", epochs=2)
    again.load_state_dict(state)
    assert again.optimizers["d"].engine.scaler.state_dict() == scalers[0].state_dict()


def test_live_settings_take_the_optimizers_name():
    trainer = make(epochs=1)
    trainer.step(2)
    trainer.tune(**{"lr.d": 0.0, "weight_decay.g": 0.1})
    before = copy.deepcopy(trainer.model.d.state_dict())
    trainer.fit()
    for name, p in trainer.model.d.named_parameters():
        assert torch.equal(p, before[name])
    assert trainer.optimizers["g"].optim.param_groups[0]["weight_decay"] == 0.1
    with pytest.raises(ValueError, match="there are 'lr.d' and 'lr.g'"):
        trainer.tune(lr=0.1)
    with pytest.raises(ValueError, match="closes it earlier"):
        trainer.tune(**{"gradient_accumulation_steps.d": 2})
    assert "lr.d" in str(trainer.journal)


def test_windows_that_were_changed_by_hand_come_with_the_state_into_any_trainer():
    """Together they fit; one after the other they would not."""
    trainer = make(gradient_accumulation_steps={"d": 1, "g": 1})
    trainer.step(2)
    trainer.tune(**{"gradient_accumulation_steps.d": 2, "gradient_accumulation_steps.g": 4})
    trainer.step(1)
    again = make()
    again.load_state_dict(trainer.state_dict())
    assert [each.settings.gradient_accumulation_steps
            for each in again.optimizers.values()] == [2, 4]
    trainer.fit()
    again.fit()
    assert_equal(again.model, trainer.model)


def test_the_weight_decay_of_each_is_kept_in_a_checkpoint():
    trainer = make()
    trainer.step(2)
    trainer.tune(**{"weight_decay.d": 0.2})
    trainer.step(1)
    again = make()
    again.load_state_dict(trainer.state_dict())
    assert again.tunables()["weight_decay.d"].read() == 0.2


WRONG = {
    "no step for one": (dict(train_step={"d": step_d}), ValueError,
                        "no step for the optimizer 'g'"),
    "a step for nobody": (dict(train_step={**STEPS, "e": step_d}), ValueError, "the name 'e'"),
    "one step": (dict(train_step=step_d), TypeError, "take a step each"),
    "turns of nobody": (dict(every={"e": 2}), ValueError, "every= has the name 'e'"),
    "no turns": (dict(every={"g": 0}), ValueError, r"every\['g'\]=0"),
    "turns for all": (dict(every=2), TypeError, "a dict"),
    "a clip for nobody": (dict(grad_clip={"e": 2}), ValueError, "grad_clip has the name 'e'"),
    "a wrong clip": (dict(grad_clip={"d": -1}), ValueError, r"grad_clip\['d'\] = -1"),
    "a window that is cut": (dict(gradient_accumulation_steps={"d": 3, "g": 2}), ValueError,
                             "closes it earlier"),
    "a loss function": (dict(loss_fn=torch.nn.MSELoss()), ValueError, "a step of its own"),
    "a schedule for nobody": (dict(sched={"e": "cosine"}), ValueError, "sched has the name 'e'"),
    "an evaluation": (dict(valid_dl=batches(2), eval_first=True), ValueError, "eval_step="),
    "an evaluation after an epoch": (dict(valid_dl=batches(2), epochs=None), ValueError,
                                     "eval_step="),
    "an optimizer of nothing": (dict(optim={"d": 3, "g": 4}), TypeError, r"optim\['d'\]=3"),
    "no such part": (dict(optim={"d": torch.optim.SGD, "h": torch.optim.SGD},
                          train_step={"d": step_d, "h": step_g}), ValueError, "no submodule 'h'"),
}


@pytest.mark.parametrize(("given", "error", "text"), WRONG.values(), ids=WRONG)
def test_what_does_not_belong_together_is_named(given, error, text):
    with pytest.raises(error, match=text):
        make(**given).fit()


def test_two_optimizers_hold_no_common_parameter():
    gan = new_gan()
    optims = {"d": torch.optim.SGD(gan.parameters(), lr=0.1),
              "g": torch.optim.SGD(gan.g.parameters(), lr=0.1)}
    with pytest.raises(ValueError, match="hold the same parameter"):
        make(gan, optim=optims)


def test_functions_of_parameters_get_those_of_the_part_with_the_name():
    trainer = make(optim={"d": torch.optim.SGD,
                          "g": lambda parameters: torch.optim.Adam(parameters, lr=0.01)})
    assert [type(each.optim).__name__ for each in trainer.optimizers.values()] == ["SGD", "Adam"]
    assert {id(p)
            for p in trainer.model.g.parameters()} == {id(p)
                                                       for p in trainer.optim[
                                                           "g"].param_groups[0]["params"]}


def test_names_for_one_optimizer_are_refused():
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match="every="):
        Trainer(model, train_dl=[1], loss_fn=torch.nn.MSELoss(), every={"g": 2}, progress=False)
    with pytest.raises(TypeError, match="train_step= is a dict"):
        Trainer(model, {"d": step_d}, [1], progress=False)
    with pytest.raises(ValueError, match="sched= is a dict"):
        Trainer(model, train_dl=[1], loss_fn=torch.nn.MSELoss(), sched={"d": "cosine"}, epochs=1,
                progress=False)


@pytest.mark.parametrize("name", ["train_step", "optim", "sched", "loss_fn", "every"])
def test_an_assignment_that_would_be_of_one_optimizer_is_refused(name):
    trainer = make()
    with pytest.raises(AttributeError, match="is refused"):
        setattr(trainer, name, {"every": {"g": 3}, "sched": "cosine"}.get(name, step_d))


def test_non_finite_assigned_counts_for_all():
    trainer = make()
    trainer.non_finite = "skip:3"
    assert [each.gradients.finite.policy
            for each in trainer.runners.values()] == ["skip:3"] * 2
    of_d = trainer.runners["d"].gradients.finite
    assert trainer.runner.gradients.finite.others == (of_d,)


def test_a_state_of_other_optimizers_is_refused_and_changes_nothing():
    state = make()
    state.step(2)
    state = state.state_dict()
    other = new_gan()
    one = Trainer(other, step_g, batches(), optim=torch.optim.Adam(other.g.parameters()), epochs=2,
                  progress=False)
    with pytest.raises(CheckpointError, match="2 optimizers, here is one"):
        one.load_state_dict(state)
    here = make()
    for damage, text in [(lambda s: s["optimizers"].pop("d"), "the optimizers"),
                         (lambda s: s["optimizers"]["d"].pop("optim"), "lacks 'optim'"),
                         (lambda s: s["optimizers"]["d"].update(kind="SGD"), "another optimizer"),
                         (lambda s: s.update(optimizers=3), "optimizers"),
                         (lambda s: s.pop("optimizers"), "optimizers")]:
        damaged = copy.deepcopy(state)
        damage(damaged)
        before = here.state_dict()
        with pytest.raises(CheckpointError, match=text):
            here.load_state_dict(damaged)
        assert str(here.state_dict()["position"]) == str(before["position"])


def test_own_optimizers_go_on_from_a_state():
    state = make()
    state.step(3)
    trainer = make(optim={"d": lambda p: torch.optim.SGD(p, lr=0.1),
                          "g": lambda p: torch.optim.SGD(p, lr=0.1)})
    trainer.load_state_dict(state.state_dict(), optimizer=False)
    assert [type(each.optim).__name__ for each in trainer.optimizers.values()] == ["SGD", "SGD"]
    assert trainer.fit().steps == 14


def test_a_subclass_with_a_step_of_its_own_is_refused():
    class Own(Trainer):
        def do_opt_step(self, closure=None):
            return super().do_opt_step(closure)
    gan = new_gan()
    with pytest.raises(ValueError, match="do_opt_step"):
        Own(gan, STEPS, batches(), optim=adams(gan), epochs=1, progress=False)


def test_micro_batches_give_the_same_gradients():
    gan = new_gan().double()
    def sums(batch, trainer):  # no BatchNorm, no dropout, no random numbers
        return {"loss": trainer.model.d[0](batch).square().mean()}
    def sums_g(batch, trainer):
        return {"loss": trainer.model.g[0](torch.cat([batch, batch[:, :1]], 1)).square().mean()}
    made = []
    for size in (None, 3):
        gan = new_gan().double()
        trainer = make(gan, [b.double() for b in batches()], train_step={"d": sums, "g": sums_g},
                       micro_batch_size=size)
        trainer.fit()
        made.append(gan)
    for a, b in zip(made[0].parameters(), made[1].parameters()):
        assert torch.allclose(a, b, rtol=1e-9)


def test_the_evaluation_takes_a_step_of_its_own():
    trainer = make(valid_dl=batches(2),
                   eval_step=lambda batch, trainer: {"loss": loss_d(trainer.model, batch)})
    assert math.isfinite(trainer.fit().last["valid/loss"])


class PairTask(Task):
    """A task whose steps and optimizers have names."""

    def __init__(self, named=True):
        if named:
            self.train_step = {"d": self.step_d, "g": self.step_g}

    def build_model(self):
        return new_gan()

    def build_optim(self, model):
        return adams(model)

    def build_train_dl(self):
        return batches()

    def step_d(self, batch, trainer):
        return step_d(batch, trainer)

    def step_g(self, batch, trainer):
        return step_g(batch, trainer)


def test_a_task_builds_several_optimizers():
    plain = make()
    plain.fit()
    trainer = Trainer.from_task(PairTask(), epochs=2, seed=3, progress=False)
    trainer.fit()
    assert_equal(trainer.model, plain.model)
    task = PairTask(named=False)
    assert Trainer.from_task(task, train_step={"d": task.step_d, "g": task.step_g}, epochs=1,
                             progress=False).fit().steps == 7
    with pytest.raises(TypeError, match=r"train_step=\{'d': ..., 'g': ...\}"):
        Trainer.from_task(PairTask(named=False), train_step=step_d, epochs=1, progress=False)


def test_rates_are_of_all_optimizers():
    trainer = make()
    assert trainer.rates() == [4e-3, 1e-3]
    assert repr(trainer.optimizers["d"]) == "Adam 'd', lr 0.004, 0 steps"


def test_a_script_says_which_change_came_between_two_steps_and_a_replay_repeats_it():
    done = []
    def act(trainer):
        if trainer.step_state.batch_idx == 3 and not done:
            done.append(trainer.post(Command("tune", {"lr.d": 1e-3})))
    trainer = make(every={"g": 2}, hooks=[LambdaHook(after_batch=act)])
    trainer.fit()
    trainer.tune(**{"lr.g": 1e-3})
    script = trainer.journal.to_script()
    assert script.count("between two steps") == 1 and "came after batch 3" in script
    again = make(every={"g": 2}, hooks=[ReplayHook(trainer.journal)])
    again.fit()
    assert_equal(again.model, trainer.model)


def test_another_order_of_turns_is_another_run():
    state = make(every={"g": 2})
    state.step(2)
    assert ("every", 2, 1) in difference(make(), state.state_dict()).settings


def test_a_parameter_that_an_optimizer_gets_later_is_trained():
    """The lists of what belongs to whom are read again."""
    gan = new_gan()
    gan.extra = torch.nn.Parameter(torch.zeros(1))
    optims = adams(gan)

    def add(trainer):
        if len(optims["d"].param_groups) == 1:
            optims["d"].add_param_group({"params": [gan.extra], "lr": 0.1})

    def with_extra(batch, trainer):
        return {"loss": step_d(batch, trainer)["loss"] + (gan.extra - 1).square().sum()}
    make(gan, optim=optims, train_step={"d": with_extra, "g": step_g},
         hooks=[LambdaHook(after_epoch=add)]).fit()
    assert gan.extra.item() > 0.3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["rewind", "load"])
def test_over_a_group_that_an_optimizer_gets_later(way, name, tmp_path):
    """A rewind to before it, and a new trainer after it, go on bit for bit."""
    def made():
        gan = new_gan()
        late = getattr(gan, name)[0]
        optims = adams(gan) | {name: torch.optim.Adam(getattr(gan, name)[1:].parameters(), lr=1e-3)}
        def add(trainer):
            if trainer.step_state.optimizer_step == 4 and len(optims[name].param_groups) == 1:
                optims[name].add_param_group({"params": list(late.parameters()), "lr": 2e-3})
        return make(gan, optim=optims, sched={name: "cosine"},
                    hooks=[LambdaHook(after_step=add), SnapshotHook(every_steps=3)])
    with pytest.warns(UserWarning, match="no optimizer holds 2"):
        plain, trainer = made(), made()
        plain.fit()
        trainer.step(6)
    if way == "rewind":
        trainer.rewind(3)
        assert len(trainer.optimizers[name].optim.param_groups) == 1
    else:
        trainer.save(tmp_path / "run.pt")
        trainer = made()
        trainer.load(tmp_path / "run.pt")
    trainer.fit()
    assert_equal(trainer.model, plain.model)
    assert trainer.optimizers[name].rates() == plain.optimizers[name].rates()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["fit", "step by step"])
def test_the_first_step_of_a_group_that_comes_in_mid_epoch(way, name):
    """Its gradient was taken for one of the other optimizer's."""
    def made():
        gan = new_gan()
        gan.extra = torch.nn.Parameter(torch.zeros(()))
        return gan, {each: torch.optim.SGD(getattr(gan, each).parameters(), lr=0.01)
                     for each in NAMES}

    def step_of(each):
        def step(batch, trainer):
            own = STEPS[each](batch, trainer)["loss"]
            return {"loss": own + (trainer.model.extra - 1).square() * (each == name)}
        return step
    gan, optims = made()
    def add(trainer):
        if trainer.step_state.optimizer_step == 4:
            optims[name].add_param_group({"params": [gan.extra], "lr": 0.1})
    trainer = make(gan, optim=optims, train_step={each: step_of(each) for each in NAMES},
                   hooks=[LambdaHook(after_step=add)], epochs=1)
    if way == "fit":
        trainer.fit()
    else:
        for _ in trainer.train_dl:
            trainer.step()
    expected, steps = 0.0, trainer.step_state.optimizer_step - 4
    for _ in range(steps):
        expected -= 0.1 * 2 * (expected - 1)
    assert steps > 0 and gan.extra.item() == pytest.approx(expected, rel=1e-5)
