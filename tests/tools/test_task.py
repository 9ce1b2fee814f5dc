"""A run from a class: what is built and in which order, which mistakes are named, and what joins
the records."""

import random

import numpy as np
import pytest
import torch
from comparing import same, streams
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import (CheckpointHook, EMAHook, Hook, LayerGroupsHook, SchedulerHook,
                        SnapshotHook, Task, Trainer)
from trainer_nb.tools.task import ELSEWHERE

INPUTS = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS.sum(1, keepdim=True)
OFF = {"progress": False, "device": "cpu"}


class Small(Task):
    """A regression of 5 batches an epoch."""

    def build_model(self):
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def build_train_dl(self):
        return DataLoader(TensorDataset(INPUTS, TARGETS), 8, shuffle=True)

    def build_valid_dl(self):
        return DataLoader(TensorDataset(INPUTS[:20], TARGETS[:20]), 8)

    def build_loss_fn(self):
        return nn.MSELoss()

    def build_optim(self, model):
        return torch.optim.AdamW(model.parameters(), lr=0.05)


class OwnStep(Small):
    """The same with a step of its own."""

    build_loss_fn = Task.build_loss_fn

    def train_step(self, batch, trainer):
        pred = trainer.model(batch[0])
        return {"loss": nn.functional.mse_loss(pred, batch[1]), "pred": pred, "target": batch[1]}


# What is built


def by_hand(seed, epochs, **settings):
    """The run of `Small`, put together in the usual way."""
    torch.manual_seed(seed)
    task = Small()
    model = task.build_model()
    return Trainer(model, train_dl=task.build_train_dl(), valid_dl=task.build_valid_dl(),
                   loss_fn=nn.MSELoss(),
                   optim=torch.optim.AdamW(model.parameters(), lr=0.05), epochs=epochs, seed=seed,
                   **OFF, **settings)


@pytest.mark.parametrize("task", [Small, Small(), OwnStep], ids=["class", "instance", "own step"])
def test_it_is_the_run_put_together_by_hand(task):
    expected, trainer = by_hand(3, 2), Trainer.from_task(task, epochs=2, seed=3, **OFF)
    assert same(expected.model, trainer.model) and isinstance(trainer.task, Small)
    expected.fit(), trainer.fit()
    assert same(expected.model, trainer.model)
    assert trainer.history["valid/loss"].tolist() == expected.history["valid/loss"].tolist()


def test_building_leaves_the_streams_outside_alone_and_ignores_them():
    class Draws(Small):
        def build_train_dl(self):
            random.random(), np.random.rand(), torch.rand(1)
            return super().build_train_dl()

        def build_test_dl(self):
            random.random(), np.random.rand(), torch.rand(1)
            return self.build_valid_dl()

        def build_optim(self, model):
            random.random(), np.random.rand(), torch.rand(1)
            return super().build_optim(model)

    found = []
    for outside in (1, 2):
        torch.manual_seed(outside)
        before = streams()
        trainer = Trainer.from_task(Draws, epochs=1, seed=5, **OFF)
        trainer.test()
        assert streams() == before
        found.append(trainer.model)
    assert same(*found)
    torch.manual_seed(5)
    assert same(found[0], Small().build_model())  # the model comes first


def test_without_a_seed_building_draws_like_any_other_code():
    torch.manual_seed(9)
    expected = Small().build_model()
    torch.manual_seed(9)
    assert same(expected, Trainer.from_task(Small, epochs=1, **OFF).model)


def test_what_is_not_overridden_is_the_trainers_own():
    class Least(Task):
        def build_model(self):
            return nn.Linear(6, 1)

        def build_train_dl(self):
            return [(INPUTS, TARGETS)]

    trainer = Trainer.from_task(Least, loss_fn=nn.MSELoss(), max_steps=1, **OFF)
    assert trainer.valid_dl is None
    assert trainer.sched is None and type(trainer.optim).__name__ == "AdamW"
    assert trainer.optim.param_groups[0]["lr"] == 1e-3
    assert not any("least" in row.name for row in trainer.hooks.rows)
    trainer.fit()


def test_arguments_take_the_place_of_parts_which_are_not_built():
    class Loud(Small):
        def build_train_dl(self):
            raise AssertionError("built")

        build_valid_dl = build_loss_fn = build_metrics = build_hooks = build_train_dl

        def build_optim(self, model):
            raise AssertionError("built")

        build_sched = build_optim

    other = nn.Linear(6, 1)
    trainer = Trainer.from_task(Loud, model=other, train_dl=[(INPUTS, TARGETS)], valid_dl=None,
                                loss_fn=nn.L1Loss(), metrics={}, hooks=[],
                                optim=lambda p: torch.optim.SGD(p, lr=0.5), sched="cosine",
                                epochs=1, **OFF)
    assert trainer.model is other
    assert trainer.optim.defaults["lr"] == 0.5 and trainer.sched is not None
    trainer.fit()


def test_a_step_that_is_given_replaces_the_tasks():
    with_loss = Trainer.from_task(OwnStep, loss_fn=nn.L1Loss(), epochs=1, **OFF)
    assert isinstance(with_loss.loss_fn, nn.L1Loss)
    with_step = Trainer.from_task(Small, train_step=OwnStep().train_step, epochs=1, **OFF)
    assert with_step.loss_fn is None
    with_step.fit()


def test_eval_step_is_the_tasks_own_or_its_train_step():
    class Both(OwnStep):
        def eval_step(self, batch, trainer):
            assert not trainer.training
            return {"loss": torch.tensor(7.0)}

    assert Trainer.from_task(Both, epochs=1, **OFF).validate() == {"valid/loss": 7.0}
    trainer = Trainer.from_task(OwnStep, epochs=1, **OFF)
    assert trainer.validate()["valid/loss"] != 7.0
    assert trainer.predict(trainer.valid_dl).shape == (20, 1)


@pytest.mark.parametrize("way", ["scheduler", "name", "hook", "function", "length", "none"])
def test_a_schedule_is_whatever_sched_takes(way):
    class Scheduled(Small):
        if way == "length":
            def build_sched(self, optim, total_steps):
                assert total_steps == 15
                return StepLR(optim, total_steps // 3, 0.1)
        else:
            def build_sched(self, optim):
                return {"scheduler": lambda: StepLR(optim, 5, 0.1), "name": lambda: "one_cycle",
                        "none": lambda: None,
                        "hook": lambda: SchedulerHook(StepLR(optim, 1, 0.1), every="epoch"),
                        "function": lambda: lambda o: StepLR(o, 5, 0.1)}[way]()

    trainer = Trainer.from_task(Scheduled, epochs=3, **OFF)
    trainer.fit()
    rates = trainer.history["lr"].tolist()
    assert len(rates) == 15
    if way == "none":
        assert trainer.sched is None and set(rates) == {0.05}
    elif way == "name":
        assert rates[0] < max(rates) > rates[-1]
    else:
        assert rates == pytest.approx([0.05] * 5 + [0.005] * 5 + [0.0005] * 5)


def test_the_schedule_sees_layer_groups():
    class Grouped(Small):
        def build_hooks(self):
            return [LayerGroupsHook({"first": "0", "last": "3"})]

        def build_sched(self, optim):
            assert len(optim.param_groups) == 2
            return StepLR(optim, 5)

    Trainer.from_task(Grouped, epochs=1, **OFF).fit()


# Mistakes


@pytest.mark.parametrize(("wrong", "right"),
                         [(name, right) for right, names in ELSEWHERE.items() for name in names]
                         + [("build_modl", "build_model"),
                            ("build_valid_loaders", "build_valid_dl"),
                            ("cb_befor_fit", "cb_before_fit"),
                            ("after_epoch", "cb_after_epoch"), ("cb_epoch_end", "cb_after_epoch"),
                            ("cb_trained", "cb_after_train"),
                            ("evalstep", "eval_step"), ("train_stp", "train_step"),
                            ("end_of_evaluations", "end_of_evaluation")])
def test_a_name_that_nobody_calls_is_refused_with_the_right_one(wrong, right):
    with pytest.raises(TypeError, match=rf"^Mine has {wrong}\b.*\b{right}\b"):
        type("Mine", (Task,), {wrong: lambda self, *args: None})


def test_helpers_may_have_names_of_their_own():
    type("Mine", (Task,),
         {"_build_part": lambda self: None, "split": lambda self: None, "cbrt": lambda self: 1})


@pytest.mark.parametrize("left_out", ["build_model", "build_train_dl"])
def test_a_missing_part_is_named_before_anything_is_built(left_out):
    class Part(Small):
        def __init__(self):
            raise AssertionError("made")

    setattr(Part, left_out, getattr(Task, left_out))
    with pytest.raises(TypeError, match=rf"Part has no {left_out}: write `def {left_out}\(self\)`"):
        Trainer.from_task(Part, epochs=1)


def test_arguments_are_checked_before_anything_is_built():
    class Part(Small):
        def __init__(self):
            raise AssertionError("made")

    with pytest.raises(TypeError, match=r"from_task\(epoch=...\).*did you mean 'epochs'"):
        Trainer.from_task(Part, epoch=3)
    with pytest.raises(ValueError, match="seed='one'"):
        Trainer.from_task(Part, seed="one")
    for wrong in (nn.Linear(1, 1), Trainer, None, {"build_model": None}):
        with pytest.raises(TypeError, match="from_task"):
            Trainer.from_task(wrong)


def test_a_step_and_a_loss_function_are_one_too_many():
    class Two(OwnStep):
        def build_loss_fn(self):
            return nn.MSELoss()

    with pytest.raises(TypeError, match="Two has train_step and build_loss_fn"):
        Trainer.from_task(Two, epochs=1)


@pytest.mark.parametrize("name",
                         ["build_model", "build_train_dl", "build_loss_fn", "build_optim",
                          "build_hooks", "build_metrics"])
def test_a_missing_return_is_named(name):
    forgetful = type("Forgetful", (Small,), {name: lambda self, *args: None})
    with pytest.raises(TypeError, match=rf"Forgetful.{name}\(\) returned None"):
        Trainer.from_task(forgetful, epochs=1, **OFF)


def test_an_error_while_building_gives_the_streams_back_and_is_the_users_own():
    class Broken(Small):
        def build_valid_dl(self):
            raise KeyError("mine")

    before = streams()
    with pytest.raises(KeyError, match="mine"):
        Trainer.from_task(Broken, epochs=1, seed=3)
    assert streams() == before


# Hook points and state


def test_a_task_is_a_hook():
    class Talks(Small):
        def __init__(self):
            self.told = []

        def cb_before_fit(self, trainer):
            assert trainer.task is self
            self.told.append("before_fit")

        def cb_after_valid(self, trainer):
            self.told.append(("after_valid", sorted(trainer.records)))

        def cb_after_epoch(self, trainer):
            self.told.append(trainer.step_state.epoch)

        def cb_on_log(self, trainer, records):
            self.told.append(list(records)[0])

    trainer = Trainer.from_task(Talks, epochs=2, record=False, **OFF)
    assert ("| 0 | talks (Talks) | on | before_fit, "
            "after_valid, after_epoch, on_log |") in trainer.describe_hooks()
    trainer.fit()
    assert trainer.task.told == ["before_fit", ("after_valid", ["valid/loss"]), "valid/loss", 1,
                                 ("after_valid", ["valid/loss"]),
                                 "valid/loss", 2]


class Counts(Small):
    """A task whose step depends on what it counted."""

    build_loss_fn = Task.build_loss_fn

    def __init__(self):
        self.seen = 0

    def train_step(self, batch, trainer):
        if trainer.training:
            self.seen += 1
        return {"loss": nn.functional.mse_loss(trainer.model(batch[0]), batch[1]) / self.seen}

    def eval_step(self, batch, trainer):
        return {"loss": nn.functional.mse_loss(trainer.model(batch[0]), batch[1])}

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_its_state_is_in_checkpoints_and_comes_back_with_a_rewind(tmp_path):
    straight = Trainer.from_task(Counts, epochs=3, seed=1, **OFF)
    straight.fit()
    saved = Trainer.from_task(Counts, epochs=3, seed=1, **OFF)
    saved.step(7)
    saved.save(tmp_path / "seven.pt")
    resumed = Trainer.from_task(Counts, epochs=3, **OFF)
    resumed.load(tmp_path / "seven.pt")
    resumed.fit()
    assert resumed.task.seen == 15 and same(resumed.model, straight.model)
    back = Trainer.from_task(Counts, epochs=3, seed=1, hooks=[SnapshotHook(every_steps=4)], **OFF)
    back.step(10)
    assert back.rewind(4) == 4
    back.fit()
    assert same(back.model, straight.model)


# Outputs of a loader


class Spread(OwnStep):
    """Records of all predictions together."""

    def __init__(self):
        self.got = []

    def build_valid_dl(self):
        first, second = (TensorDataset(INPUTS[:20], TARGETS[:20]),
                         TensorDataset(INPUTS[20:], TARGETS[20:]))
        return {"valid": DataLoader(first, 8), "other": DataLoader(second, 6)}

    def end_of_evaluation(self, name, outputs, trainer):
        assert not torch.is_grad_enabled() and not trainer.training and trainer.split == name
        pred = torch.cat([each["pred"] for each in outputs])
        self.got.append((name, len(outputs), pred))
        return {"median": pred.median(), "tail": {"low": pred.min(), "high": float(pred.max())}}

    def cb_after_valid(self, trainer):
        self.records = dict(trainer.records)


def test_outputs_come_together_for_each_loader_and_their_records_join_it():
    trainer = Trainer.from_task(Spread, epochs=2, seed=0, **OFF)
    found = trainer.validate()
    model = trainer.model.eval()
    for name, part in (("valid", INPUTS[:20]), ("other", INPUTS[20:])):
        pred = model(part)
        assert found[f"{name}/median"] == pytest.approx(pred.median().item())
        assert found[f"{name}/tail/low"] == pytest.approx(pred.min().item())
        assert found[f"{name}/tail/high"] == pytest.approx(pred.max().item())
    assert all(type(value) is float for value in found.values()) and trainer.task.records == found
    assert [(name, count, len(pred))
            for name, count, pred in trainer.task.got] == [("valid", 3, 20), ("other", 4, 20)]
    model.train()
    result = trainer.fit()
    assert len(trainer.history["other/median"]) == 2 and "valid/tail/high" in result.last
    assert "test/median" in trainer.test([(INPUTS, TARGETS)])


def test_outputs_leave_the_training_as_it_was():
    plain, with_outputs = (Trainer.from_task(task, epochs=2, seed=4, **OFF)
                           for task in (OwnStep, Spread))
    plain.fit(), with_outputs.fit()
    assert same(plain.model, with_outputs.model)


def test_outputs_are_those_of_the_weights_in_place():
    class Both(Spread):
        def end_of_evaluation(self, name, outputs, trainer):
            batch = INPUTS[:8] if name.startswith("valid") else INPUTS[20:26]
            return {"same": float(torch.equal(outputs[0]["pred"], trainer.model(batch)))}

    class Tuned(Both):
        def build_hooks(self):
            return [EMAHook(0.9)]

    trainer = Trainer.from_task(Tuned, epochs=1, seed=0, **OFF)
    trainer.fit()
    found = {name: value for name, value in trainer.records.items() if name.endswith("same")}
    assert len(found) >= 2 and set(found.values()) == {1.0}


def test_outputs_are_kept_only_for_who_wants_them():
    class Marks(dict):
        alive = 0

        def __init__(self, values):
            super().__init__(values)
            Marks.alive += 1

        def __or__(self, other):
            return Marks(super().__or__(other))

        def __del__(self):
            Marks.alive -= 1

    class Marked(Small):
        build_loss_fn = Task.build_loss_fn

        def train_step(self, batch, trainer):
            return Marks({"loss": nn.functional.mse_loss(trainer.model(batch[0]), batch[1])})

    most = []

    class Count(Hook):
        def after_batch(self, trainer):
            if not trainer.training:
                most.append(Marks.alive)

    Trainer.from_task(Marked, hooks=[Count()], epochs=1, **OFF).fit()
    assert len(most) == 3 and max(most) <= 2  # of the current batch

    class Keeps(Marked):
        def end_of_evaluation(self, name, outputs, trainer):
            most.append(len(outputs))

    most.clear()
    Trainer.from_task(Keeps, hooks=[Count()], epochs=1, **OFF).fit()
    assert most[2] > 2 and most[3] == 3 and Marks.alive == 0  # and let go afterwards


@pytest.mark.parametrize(("returned", "error", "text"), [
    ({"loss": 1.0}, ValueError, "returned 'loss'.*choose another name"),
    (3.0, TypeError, "returned float: a dict of records, or None"),
    ({"all": torch.ones(3)}, TypeError, "'all' is not one number")])
def test_records_that_cannot_join_are_refused(returned, error, text):
    wrong = type("Wrong", (OwnStep,),
                 {"end_of_evaluation": lambda self, name, outputs, trainer: returned})
    trainer = Trainer.from_task(wrong, epochs=1, **OFF)
    with pytest.raises(error, match=text):
        trainer.validate()
    assert trainer.model.training


def test_none_is_no_record():
    silent = type("Silent", (OwnStep,),
                  {"end_of_evaluation": lambda self, name, outputs, trainer: None})
    assert list(Trainer.from_task(silent, epochs=1, **OFF).validate()) == ["valid/loss"]


# The test loader


def test_the_test_loader_is_built_when_it_is_wanted():
    class Tested(Small):
        built = 0

        def build_test_dl(self):
            type(self).built += 1
            return {"test": DataLoader(TensorDataset(INPUTS, TARGETS), 20)}

    trainer = Trainer.from_task(Tested, epochs=1, seed=0, **OFF)
    trainer.fit()
    assert Tested.built == 0
    found = trainer.test()
    assert found == trainer.test() and Tested.built == 1
    assert found == trainer.test(DataLoader(TensorDataset(INPUTS, TARGETS), 20))
    for other in (Trainer.from_task(Small, epochs=1, **OFF), by_hand(0, 1)):
        with pytest.raises(ValueError, match=r"test\(\): pass a loader"):
            other.test()


def test_a_task_run_goes_on_from_its_checkpoint(tmp_path):
    straight = Trainer.from_task(Small, epochs=3, seed=2, **OFF)
    straight.fit()
    for epochs in (1, 3):
        hooks = [CheckpointHook(tmp_path, resume="latest")]
        with Trainer.from_task(Small, epochs=epochs, seed=2, hooks=hooks, **OFF) as trainer:
            trainer.fit()
    assert same(trainer.model, straight.model)
