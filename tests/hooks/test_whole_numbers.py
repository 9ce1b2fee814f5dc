"""Numbers of NumPy are numbers: every argument that takes one, and what a run keeps of it."""

import inspect
import math
import re

import numpy as np
import pytest
import torch
import trainer_nb
from small_runs import BATCHES, make
from torch import nn
from trainer_nb import (CheckpointHook, EarlyStopHook, EMAHook, Hook, Journal, RuleHook,
                        SchedulerHook, SnapshotHook, Trainer)
from trainer_nb.core.control import Command
from trainer_nb.core.state import whole_number
from trainer_nb.remote.launch_script import command_line
from trainer_nb.engines.launch import checked_processes
from trainer_nb.tools.lr_find import rates

HOOKS = [found for name in trainer_nb.__all__ if inspect.isclass(found := getattr(trainer_nb, name))
         and issubclass(found, Hook)]
NEEDED = {"RuleHook": ("spike",), "ReplayHook": (Journal(),)}


def taking(*kinds):
    """Hooks and their arguments of these types, with or without None: (class, name, default)."""
    return [(cls, name, each.default) for cls in HOOKS
            for name, each in inspect.signature(cls).parameters.items()
            if each.annotation in (*kinds, *(kind | None for kind in kinds))]


def built(cls, **settings):
    """A hook with one argument set; SKIP where a package is not installed."""
    needed = {"then": "pause"} if cls is RuleHook else {}
    try:
        return cls(*NEEDED.get(cls.__name__, ()), **needed | settings)
    except ImportError as error:
        pytest.skip(str(error))


def strange(value, depth=6):
    """The numbers of NumPy in an object, but not in arrays."""
    if isinstance(value, np.generic):
        return [value]
    if depth == 0 or isinstance(value, (str, bytes, int, float, type, np.ndarray, torch.Tensor)):
        return []
    parts = ([*value, *value.values()] if isinstance(value, dict) else
             value if isinstance(value, (list, tuple, set, frozenset)) else
             vars(value).values() if hasattr(value, "__dict__") else ())
    return [each for part in parts for each in strange(part, depth - 1)]


WHOLE = taking(int)
FLOAT = taking(float)


def test_the_table_has_the_arguments():
    found = {f"{cls.__name__}.{name}" for cls, name, _ in WHOLE + FLOAT}
    assert len(WHOLE) > 30 and len(FLOAT) > 4
    assert {"CheckpointHook.keep_last", "EMAHook.every", "SamplesHook.worst",
            "MemoryHook.keep_last",
            "ProgressHook.every_steps", "TensorBoardHook.histograms", "EarlyStopHook.reached",
            "SnapshotHook.every_epochs", "RuleHook.most", "ProfilerHook.rows"} <= found


@pytest.mark.parametrize("cls, name, default", WHOLE, ids=lambda value: getattr(
    value, "__name__", str(value)))
def test_a_hook_takes_a_whole_number_of_any_library(cls, name, default):
    number = default or 3
    for kind in (np.int64, np.uint8) if number < 256 else (np.int64,):
        hook, plain = built(cls, **{name: kind(number)}), built(cls, **{name: number})
        assert strange(hook) == []
        assert getattr(hook, name, None) == getattr(plain, name, None)
    if name == "order":  # any number
        return
    for wrong in (True, 2.5, "3", np.bool_(True), np.float32(2.5)):
        with pytest.raises(ValueError, match="whole number") as caught:
            built(cls, **{name: wrong})
        assert name in str(caught.value) and repr(wrong) in str(caught.value)


@pytest.mark.parametrize("cls, name, default", FLOAT, ids=lambda value: getattr(
    value, "__name__", str(value)))
def test_a_hook_takes_a_number_of_any_library(cls, name, default):
    number = 0.5 if default is None else default
    for kind in (np.float64, np.float32):
        hook, plain = built(cls, **{name: kind(number)}), built(cls, **{name: number})
        assert strange(hook) == []
        if isinstance(getattr(hook, name, None), float):
            assert math.isclose(getattr(hook, name), getattr(plain, name), rel_tol=1e-6)
    for wrong in (True, "3"):
        with pytest.raises(ValueError, match=name):
            built(cls, **{name: wrong})


def test_several_steps_to_keep_and_sizes():
    assert CheckpointHook(keep_every=np.arange(10, 40, 10)).rules.every == [10, 20, 30]
    assert CheckpointHook(keep_every=np.int64(10)).rules.every == 10
    assert CheckpointHook(keep_every=range(0, 10**15, 10)).rules.every == range(0, 10**15, 10)
    assert SnapshotHook(memory=np.int64(10**6)).memory == 10**6
    assert CheckpointHook(exit_code=np.int64(3)).signals.code == 3
    for wrong in ([1.5], "10", [True], 0, {10: 1}):
        with pytest.raises(ValueError, match="keep_every="):
            CheckpointHook(keep_every=wrong)
    for wrong in ({"exit_code": 300}, {"exit_code": "3"}, {"exit_wait": -1}, {"exit_wait": True}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CheckpointHook(**wrong)


@pytest.mark.parametrize("value", [0, -1, True, False, 2.0, "3", None, np.float64(3), [3]])
def test_what_is_not_a_whole_number_is_refused(value):
    with pytest.raises(ValueError, match=re.escape(
            f"n={value!r}: a whole number of steps, 1 or more") + "$"):
        whole_number("n", value, unit="steps")
    with pytest.raises(ValueError, match="from 2 to 5, or None"):
        whole_number("n", 6, 2, 5, optional=True)


@pytest.mark.parametrize("settings", [
    {"lr": np.float32(0.01)}, {"lr": np.float64(0.01)}, {"weight_decay": np.float32(0.1)},
    {"momentum": np.float64(0.5), "lr": 0.1}], ids=str)
def test_an_optimizer_with_numbers_of_numpy(tmp_path, settings):
    model = nn.Linear(2, 1)
    optim = torch.optim.SGD(model.parameters(), **{"lr": 0.1} | settings)
    trainer = make(model, optim=optim, epochs=1)
    trainer.fit()
    assert strange(optim.param_groups) == []
    trainer.save(tmp_path / "run.pt")
    trainer.load(tmp_path / "run.pt")
    for name, value in settings.items():
        assert type(optim.param_groups[0][name]) is float
        assert math.isclose(optim.param_groups[0][name], value, rel_tol=1e-6)


def test_an_optimizer_with_a_switch_for_a_rate_is_refused():
    model = nn.Linear(2, 1)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    optim.param_groups[0]["lr"] = np.bool_(True)
    with pytest.raises(ValueError, match="lr="):
        make(model, optim=optim)


def test_the_arguments_of_a_trainer(tmp_path):
    trainer = make(Named(), ema=np.float32(0.5), max_time=np.float32(60), seed=np.int64(3),
                   grad_clip=np.float32(1), gradient_accumulation_steps=np.int64(2),
                   limit_batches={"train": np.float32(0.5), "predict": np.int64(1)},
                   epochs=np.int64(2), micro_batch_size=np.int64(2), workspace=tmp_path,
                   hooks=[SnapshotHook(every_steps=np.int64(1)),
                          SchedulerHook("cosine", warmup=np.int64(1))])
    assert len(trainer.predict(BATCHES, limit_batches=np.float32(0.4))) == 8
    assert len(trainer.predict(BATCHES, limit_batches=np.int64(3))) == 12
    trainer.step(np.int64(1))
    trainer.rewind(np.int64(0))
    trainer.micro_batch_size, trainer.max_time = np.int64(4), np.float64(100)
    trainer.fit()
    assert trainer.max_time == 100 and type(trainer.max_time) is float
    assert strange(trainer.journal.lines()) == [] and strange(trainer.state_dict()) == []
    assert "np." not in (tmp_path / "journal.jsonl").read_text()
    assert "max_steps=9" in trainer.journal.to_script(max_steps=np.int64(9))
    with pytest.raises(ValueError, match=re.escape("epochs='9'")):
        trainer.journal.to_script(epochs="9")
    assert len(trainer.lr_find(np.float32(1e-4), np.float64(1), np.int64(10)).sweep) == 10
    assert len(trainer.sweep("lr", np.linspace(0.01, 0.1, 3, dtype=np.float32),
                             smooth=np.float32(0.5), stop_factor=np.float32(4))) == 3


class Named(nn.Module):
    """A model of one layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x)


def test_posted_commands():
    trainer = make(epochs=2, hooks=[SnapshotHook()])
    trainer.step()
    for name, values in (("step", {"n": np.int64(2)}), ("rewind", {"step": np.int64(0)}),
                         ("train_more", {"epochs": np.int64(1)})):
        command = Command(name, values)
        checked = trainer.mailbox.handlers[name].validate(values)
        assert strange(checked) == [] and checked == values, command
    for name, values in (("step", {"n": 2.0}), ("step", {"n": True}), ("rewind", {"step": True}),
                         ("train_more", {"epochs": 1.0}), ("train_more", {"epochs": 2**70}),
                         ("step", {"m": 1}), ("train_more", {"epochs": 1, "n": 1})):
        with pytest.raises(ValueError, match=rf"{name}.*{[*values][-1]}"):
            trainer.mailbox.handlers[name].validate(values)


def test_processes_and_rates(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    assert "4" in command_line(script, [], np.int64(4))
    assert checked_processes(np.int64(1)) == 1 and checked_processes(None) == 1
    assert len(rates(np.float32(1e-3), np.float64(1), np.int64(7))) == 7
    for check in (lambda value: command_line(script, [], value), checked_processes):
        with pytest.raises(ValueError, match="num_processes=True: a whole number, 1 or more"):
            check(True)


def test_the_turns_of_several_optimizers():
    models = nn.ModuleDict({"d": nn.Linear(2, 1), "g": nn.Linear(2, 1)})

    def step(name):
        def made(batch, trainer):
            return {"loss": nn.functional.mse_loss(models[name](batch[0]), batch[1])}
        return made

    trainer = Trainer(models, {name: step(name) for name in models}, BATCHES, progress=False,
                      optim={name: torch.optim.SGD(each.parameters(), np.float32(0.1))
                             for name, each in models.items()}, every={"g": np.int64(2)}, epochs=1)
    trainer.fit()
    assert strange(trainer.every) == [] and strange(trainer.journal.lines()) == []


def test_an_average_and_a_threshold():
    assert type(EMAHook(decay=np.float32(0.5)).decay) is float
    assert type(EarlyStopHook("valid/loss", reached=np.float32(0.5)).reached) is float
