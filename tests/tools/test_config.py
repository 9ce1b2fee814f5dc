"""A run from a file: what is refused and by which name, what is built and under which seed, and
that it can be made again."""

import importlib.util
import json
import os
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
import yaml
from comparing import same, streams
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue
from torch import nn
from trainer_nb import EMAHook, Task, Trainer
from trainer_nb.tools.config import read_config

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).stem  # this module, as a target names it
INPUTS = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS.sum(1, keepdim=True)
STEP = {"_target_": "torch.optim.lr_scheduler.StepLR", "_partial_": True, "step_size": 5}


def from_config(given, kind=Trainer):
    """A trainer whose configuration may use this module, and two that do not work."""
    return kind.from_config(given, allow=(HERE, "no_such_module", "half_done", "digits_parts"))


def loader(batch_size=8, shuffle=True):
    """Inputs and targets."""
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(INPUTS, TARGETS), batch_size,
                                       shuffle=shuffle)


def net(width, blocks=()):
    """A network with dropout, whose first weights are random."""
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(0.2), *blocks,
                         nn.Linear(width, 1))


def error_of(pred, target):
    """A metric."""
    return (pred - target).abs().mean()


def raises(value):
    """A constructor with a mistake in it."""
    return {}[value]


class Draws:
    """A hook that draws when it is made."""

    def __init__(self):
        self.number = torch.rand(1).item(), np.random.rand(), random.random()

    def after_epoch(self, trainer):
        """A hook has a point."""


class Small(Task):
    """A task with an argument."""

    def __init__(self, width=8):
        self.width = width

    def build_model(self):
        return net(self.width)

    def build_train_dl(self):
        return loader()

    def build_loss_fn(self):
        return nn.MSELoss()


def make(**changes):
    """A whole configuration of 5 batches an epoch; None takes a key out."""
    whole = {
        "model": {"_target_": f"{HERE}.net", "width": 8},
        "train_dl": {"_target_": f"{HERE}.loader"},
        "valid_dl": {"_target_": f"{HERE}.loader", "batch_size": 20, "shuffle": False},
        "loss_fn": {"_target_": "torch.nn.MSELoss"},
        "metrics": {"error": {"_target_": "hydra.utils.get_method", "path": f"{HERE}.error_of"}},
        "optim": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.05}, "epochs": 2,
        "seed": 7, "device": "cpu", "progress": False}
    return {key: value for key, value in (whole | changes).items() if value is not None}


# What is built


def test_it_is_the_run_put_together_by_hand():
    torch.manual_seed(7)
    model = net(8)
    expected = Trainer(model, train_dl=loader(), valid_dl=loader(20, False), loss_fn=nn.MSELoss(),
                       metrics={"error": error_of},
                       optim=torch.optim.AdamW(model.parameters(), lr=0.05), epochs=2, seed=7,
                       device="cpu", progress=False)
    trainer = from_config(make())
    assert same(expected.model, trainer.model)
    expected.fit(), trainer.fit()
    assert same(expected.model, trainer.model)
    assert trainer.history["valid/error"].tolist() == expected.history["valid/error"].tolist()


@pytest.mark.parametrize("form", ["dict", "omegaconf", "path", "text", "interpolated"])
def test_every_form_gives_the_same_run(form, tmp_path):
    expected, given = make(), make()
    if form in ("path", "text"):
        given = tmp_path / "run.yaml"
        given.write_text(yaml.safe_dump(expected))
        given = str(given) if form == "text" else given
    elif form == "omegaconf":
        given = OmegaConf.create(expected)
        OmegaConf.set_struct(given, True)
        OmegaConf.set_readonly(given, True)
    elif form == "interpolated":
        given = given | {"config": {"width": 8, "where": HERE},
                         "model": {"_target_": "${config.where}.net", "width": "${config.width}"}}
    trainer = from_config(given)
    kept = dict(trainer.config)
    if kept.pop("config", None):
        # as it was written
        assert kept["model"] == {"_target_": "${config.where}.net", "width": "${config.width}"}
        kept["model"] = expected["model"]
    assert kept == expected and type(trainer.config["model"]) is dict
    assert same(trainer.model, from_config(expected).model)


class OpenTrainer(Trainer):
    """A trainer whose arguments are not known by name."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)


@pytest.mark.parametrize("kind", [Trainer, OpenTrainer])
def test_the_order_of_the_keys_does_not_matter(kind):
    hooks = [{"_target_": f"{HERE}.Draws"}]
    forward = from_config(make(hooks=hooks), kind)
    backward = from_config(dict(reversed(make(hooks=hooks).items())), kind)
    assert type(forward) is kind
    assert same(forward.model, backward.model)
    assert forward.get_hook(Draws).number == backward.get_hook(Draws).number


def test_building_leaves_the_streams_outside_alone_and_ignores_them():
    numbers, models = [], []
    for outside in (1, 2):
        torch.manual_seed(outside)
        before = streams()
        trainer = from_config(make(hooks=[{"_target_": f"{HERE}.Draws"}]))
        assert streams() == before
        numbers.append(trainer.get_hook(Draws).number)
        models.append(trainer.model)
    assert numbers[0] == numbers[1] and same(*models)
    with pytest.raises(KeyError):
        from_config(make(hooks=[{"_target_": f"{HERE}.raises", "value": 1}]))
    assert streams() == before


def test_partials_are_called_by_the_trainer():
    trainer = from_config(make(sched=STEP))
    assert type(trainer.sched).__name__ == "StepLR" and trainer.sched.optimizer is trainer.optim
    assert trainer.optim.param_groups[0]["lr"] == 0.05
    assert type(trainer.optim.param_groups[0]["betas"]) is tuple
    trainer.fit()
    assert trainer.history["lr"].tolist() == pytest.approx([0.05] * 5 + [0.005] * 5)
    by_epoch = {"_target_": "trainer_nb.SchedulerHook", "scheduler": STEP | {"step_size": 1},
                "every": "epoch"}
    hooked = from_config(make(sched=by_epoch))
    hooked.fit()
    assert hooked.history["lr"].tolist() == trainer.history["lr"].tolist()
    named = from_config(make(sched="one_cycle"))
    named.fit()
    assert named.sched.total_steps == 10


def test_lists_dicts_and_nested_objects_come_plain():
    blocks = [{"_target_": "torch.nn.Linear", "in_features": 8, "out_features": 8},
              {"_target_": "torch.nn.Tanh"}]
    two = {"valid": make()["valid_dl"], "other": make()["train_dl"]}
    trainer = from_config(make(model={"_target_": f"{HERE}.net", "width": 8, "blocks": blocks},
                               valid_dl=two,
                                       hooks=[{"_target_": f"{HERE}.Kept",
                                               "given": {"a": [1, {"b": 2}]}}]))
    assert [type(layer).__name__ for layer in trainer.model][3:5] == ["Linear", "Tanh"]
    assert list(trainer.valid_dl) == ["valid", "other"] and type(trainer.valid_dl) is dict
    given = trainer.get_hook(Kept).given
    assert [type(each) for each in (given, given["a"], given["a"][1])] == [dict, list, dict]
    trainer.fit()


def test_a_task_by_name():
    task = {"_target_": f"{HERE}.Small", "width": 5}
    trainer = from_config({"task": task, "epochs": 1, "seed": 3, "device": "cpu", "progress": False,
                           "grad_clip": 1.0})
    expected = Trainer.from_task(Small(5), epochs=1, seed=3, device="cpu", progress=False,
                                 grad_clip=1.0)
    assert same(trainer.model, expected.model)
    assert trainer.task.width == 5 and trainer.config["task"] == task
    trainer.fit(), expected.fit()
    assert same(trainer.model, expected.model)
    replaced = from_config(make(task=task, train_dl=None, loss_fn=None))
    assert replaced.model[0].out_features == 8 and isinstance(replaced.loss_fn, nn.MSELoss)
    assert from_config(make() | {"task": None}).task is None


# What is refused


@pytest.mark.parametrize(("changes", "text"), [
    ({"epoch": 3},
     r"^epoch: the trainer takes no 'epoch'; did you mean 'epochs'\? There are task, model"),
    ({"model": {"_target_": "test_config.net", "width": 8, "block": 1}},
     r"^model.block: test_config.net takes no 'block'; did you mean 'blocks'"),
    ({"hooks": [{"_target_": "trainer_nb.SnapshotHook"},
                {"_target_": "trainer_nb.EMAHook", "decai": 0.9}]},
     r"^hooks\[1\].decai: trainer_nb.EMAHook takes no 'decai'; did you mean 'decay'\? There are "
     r"decay, every"),
    ({"metrics": {"error": {"_target_": "hydra.utils.get_method", "paht": "x"}}},
     r"^metrics.error.paht: .*'path'"),
    ({"model": {"_target_": "test_config.net", "width": 8,
                "blocks": [{"_target_": "torch.nn.Linear", "in_features": 8, "out": 8}]}},
     r"^model.blocks\[0\].out: torch.nn.Linear takes no 'out'"),
    ({"model": {"_target_": "torch.nn.Sequential",
                "_args_": [{"_target_": "torch.nn.ReLU", "inplac": 1}]}},
     r"^model._args_\[0\].inplac: .*'inplace'"),
    ({"optim": {"_target_": "torch.optim.AdamW", "_partal_": True}},
     r"^optim._partal_: .*'_partial_'"),
    ({"sched": {"_target_": "torch.nn.LSTM", "_partal_": True}}, r"^sched._partal_: .*'_partial_'"),
    ({"optim": {"_target_": "torch.optim.AdamW", "lr": 0.1}},
     r"^optim: torch.optim.AdamW needs params: with _partial_: true"),
    ({"sched": {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 3}},
     r"^sched: .* needs optimizer: with _partial_: true"),
    ({"model": {"_target_": "test_config.net"}}, r"^model: test_config.net needs width$"),
    ({"model": {"_target_": "torch.nn.Liner"}},
     r"^model._target_: there is no 'torch.nn.Liner'; did you mean 'torch.nn.Linear'"),
    ({"model": {"_target_": "trainer_nb.EMAhook"}}, r"did you mean 'trainer_nb.EMAHook'"),
    ({"model": {"_target_": "no_such_module.Net"}},
     r"^model._target_: .*'no_such_module' was not found"),
    ({"model": {"_target_": "torch.nn"}},
     r"^model._target_: torch.nn is a module, which cannot be called"),
    ({"model": {"_target_": 3}}, r"^model._target_: 3 is not a dotted name"),
    ({"model": None}, r"neither 'model' nor 'task'"),
    ({"defaults": ["x"]}, r"^defaults: .*composed by Hydra: @hydra.main, or hydra.compose"),
    ({"optim": {"_targt_": "torch.optim.AdamW", "_partial_": True}},
     r"^optim._targt_: .*did you mean '_target_'"),
    ({"metrics": {"error": {"_partial_": True, "lr": 1}}},
     r"^metrics.error: _partial_ says how '_target_' is built, and there is none"),
    ({"config": {1: 2}}, r"^config: the key 1 is a int, write it as a text"),
    ({"config": {"a": [b"x"]}}, r"^config.a\[0\]: a bytes cannot stand in a configuration"),
    ({"seed": "x"}, "seed='x'"),
])
def test_what_cannot_be_built_is_named_by_its_path(changes, text, monkeypatch):
    def too_early(*args, **settings):
        raise AssertionError("something was built")

    monkeypatch.setattr("hydra.utils.instantiate", too_early)
    with pytest.raises(ValueError, match=text):
        from_config(make(**changes))


def test_values_that_are_missing_are_named():
    with pytest.raises(MissingMandatoryValue, match="epochs"):
        from_config(make(epochs="???"))
    for wrong in (3, [make()], Trainer):
        with pytest.raises(TypeError, match="a configuration is a dict"):
            from_config(wrong)


def test_files_that_are_not_there_are_named(tmp_path):
    (tmp_path / "digits.yaml").write_text("model: 1")
    with pytest.raises(FileNotFoundError,
                       match="digit.yaml: there is no such file; did you mean digits.yaml"):
        from_config(tmp_path / "digit.yaml")
    with pytest.raises(FileNotFoundError,
                       match="config.json: there is no such file; there are digits.yaml"):
        from_config(tmp_path)


@pytest.mark.parametrize(("text", "said"), [
    ("model:\n  a: 1\n b: 2\n", r"run.yaml, line 3, column 2: not YAML"),
    ("model: [1, 2\n", r"run.yaml, line 2, column 1: not YAML: while parsing a flow sequence"),
    ("a: 1\nb: {\x01}\n", r"run.yaml: not YAML: .*special characters"),
    ("a: &x 1\nb: *y\n", r"run.yaml, line 2, column 4: not YAML: found undefined alias 'y'"),
    ("a: 1\na: 2\n", r"run.yaml, line 2, column 1: not YAML: .*duplicate key a"),
    ("a: !!python/object:os.system {}\n", r"run.yaml, line 1, column 4: not YAML: could not")])
def test_a_file_that_is_not_yaml_says_where(tmp_path, text, said):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ValueError, match=said):
        from_config(tmp_path / "run.yaml")


def test_an_error_in_a_constructor_is_its_own_and_names_the_key():
    broken = {"_target_": f"{HERE}.raises", "value": "gone"}
    for changes, place in (({"loss_fn": broken}, "loss_fn"),
                           ({"hooks": [{"_target_": "trainer_nb.EMAHook"}, broken]}, "hooks[1]"),
                           ({"model": {"_target_": f"{HERE}.net", "width": 8,
                                       "blocks": [{"_target_": "torch.nn.ReLU"}, broken]}},
                            "model.blocks[1]")):
        with pytest.raises(KeyError, match="gone") as caught:
            from_config(make(**changes))
        assert caught.value.__notes__ == [f"raised while building {place} of the configuration"]
        assert caught.traceback[-1].name == "raises" and caught.value.__cause__ is None


def test_a_module_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "half_done.py").write_text("import nothing_of_that_name")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name") as caught:
        from_config(make(model={"_target_": "half_done.Net"}))
    assert "half_done.Net for model of the configuration" in caught.value.__notes__[0]


def test_what_is_not_recursive_is_left_to_its_target():
    inner = {"_target_": "not.there", "a": 1}
    config = make(hooks=[{"_target_": f"{HERE}.keep", "_recursive_": False, "given": inner}])
    assert from_config(config).get_hook(Kept).given == inner


class Kept(Draws):
    """A hook that holds a configuration."""

    def __init__(self, given):
        self.given = given


def keep(given):
    """Make one."""
    return Kept(given)


@pytest.mark.slow
def test_without_hydra_the_extra_is_named():
    code = ("import sys; sys.modules['hydra'] = None\nfrom trainer_nb import Trainer\n"
            "try: Trainer.from_config({'model': 1})\nexcept ImportError as error: print(error)")
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "pip install 'trainer_nb[config]'" in done.stdout, done.stderr


# Once more


def test_the_folder_of_a_run_makes_it_again(tmp_path):
    config = make(workspace=str(tmp_path / "run"),
                  hooks=[{"_target_": "trainer_nb.EMAHook", "decay": 0.9}], sched="cosine",
                  config={"width": 8},
                  model={"_target_": f"{HERE}.net", "width": "${config.width}"},
                  grad_clip=0.1 + 0.2)
    with from_config(config) as first:
        first.fit()
    held = json.loads((tmp_path / "run" / "config.json").read_text())
    assert held["config"] == first.config == read_config(
        tmp_path / "run")[1] == read_config(tmp_path / "run" / "config.json")[1]
    assert first.config["model"]["width"] == "${config.width}"
    assert not list((tmp_path / "run").glob("*.yaml"))
    torch.rand(3), np.random.rand(), random.random()
    with from_config(tmp_path / "run") as again:
        again.fit()
        assert again.workspace == tmp_path / "run-2"
    assert same(first.model, again.model)
    assert same(first.get_hook(EMAHook).ema_model, again.get_hook(EMAHook).ema_model)
    assert again.history["train/loss"].tolist() == first.history["train/loss"].tolist()


def test_a_folder_that_was_moved_goes_on_where_it_is(tmp_path, monkeypatch):
    """And a copy in its own folder, from any place."""
    with from_config(make(workspace=str(tmp_path / "run"), epochs=2,
                          hooks=[{"_target_": "trainer_nb.CheckpointHook"}])) as first:
        first.step(3)
    (tmp_path / "run").rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "copied")
    monkeypatch.chdir(tmp_path / "copied")
    for folder, given in (("moved", tmp_path / "moved"), ("copied", ".")):
        with from_config(given) as again:
            again.step(1)
            assert again.workspace == tmp_path / folder and again.step_state.optimizer_step == 4
    assert not (tmp_path / "run").exists()


def test_the_run_of_no_configuration_says_so(tmp_path):
    with Trainer(net(8), train_dl=loader(), loss_fn=nn.MSELoss(), epochs=1,
                 workspace=tmp_path / "run", device="cpu", progress=False) as trainer:
        trainer.fit()
    with pytest.raises(ValueError,
                       match="this run was not built from a configuration, it keeps None"):
        from_config(tmp_path / "run")


@pytest.mark.parametrize("sched", [None, STEP])
def test_the_same_configuration_with_more_epochs_goes_on(tmp_path, sched):
    config = make(sched=sched,
                  hooks=[{"_target_": "trainer_nb.CheckpointHook", "resume": "latest"}])
    with from_config(config | {"epochs": 5, "workspace": str(tmp_path / "straight")}) as straight:
        straight.fit()
    for epochs in (2, 2, 5):
        config["config"] = {"told": epochs}
        with from_config(config | {"epochs": epochs,
                                   "workspace": str(tmp_path / "long")}) as trainer:
            result = trainer.fit()
            assert trainer.workspace == tmp_path / "long"
        assert (result.status, result.epochs, result.steps) == ("finished", epochs, 5 * epochs)
    assert same(trainer.model, straight.model)
    assert trainer.history["train/loss"].tolist() == straight.history["train/loss"].tolist()
    assert trainer.history.steps("valid/loss").tolist() == [5, 10, 15, 20, 25]
    # nothing of the shorter run is left over: one folder, with the files of a run that was so long
    # from the start
    files = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
             for folder in (tmp_path / "long", tmp_path / "straight")]
    assert files[0] == files[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long", "straight"]
    assert sorted(path.name
                  for path in (
                      tmp_path / "long").glob(
                          "checkpoints/*.pt")) == [f"step_{step:08d}.pt" for step in (15, 20, 25)]
    held = json.loads((tmp_path / "long" / "config.json").read_text())
    assert held["epochs"] == held["config"]["epochs"] == 5
    assert held["config"]["config"] == {"told": 5}
    written = [json.loads(line)
               for line in (tmp_path / "long" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in written if "train/loss" in line] == list(range(1, 26))


# From the command line


def run(folder, *arguments):
    """examples/hydra/train.py, started in a folder."""
    return warm.run([sys.executable, str(ROOT / "examples" / "hydra" / "train.py"),
                     *arguments, "epochs=1", "device=cpu"],
                    capture_output=True, text=True, cwd=folder)


def records(folder):
    """The lines of a run's folder, without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items()
             if not name.startswith(("seconds", "time/", "samples_per"))} for line in lines]


@pytest.mark.slow
def test_a_run_from_the_command_line_can_be_made_again(tmp_path, monkeypatch):
    done = run(tmp_path, "optim.lr=0.01", "hydra.run.dir=here")
    assert done.returncode == 0, done.stderr
    assert "finished: 45 steps, validation accuracy 0." in done.stdout
    folder = tmp_path / "here" / "run"
    held = json.loads((folder / "config.json").read_text())
    assert held["config"]["optim"]["lr"] == 0.01 and held["config"]["workspace"] == str(folder)
    monkeypatch.syspath_prepend(ROOT / "examples" / "hydra")
    with from_config(folder) as again:
        again.fit()
        assert again.workspace == tmp_path / "here" / "run-2"
        assert again.checkpoint.parts.fingerprint()["threads"] == held["fingerprint"]["threads"]
    assert records(tmp_path / "here" / "run-2") == records(folder)


@pytest.mark.slow
def test_a_sweep_from_the_command_line(tmp_path):
    done = run(tmp_path, "--multirun", "optim.lr=0.1,0.01", "hydra.sweep.dir=sweep")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished: 45 steps") == 2
    rates = [json.loads(
        (tmp_path / "sweep" / name / "run" / "config.json").read_text())["config"]["optim"]["lr"]
        for name in "01"]
    assert rates == [0.1, 0.01]
    first, second = (records(tmp_path / "sweep" / name / "run")[-1]["valid/loss"] for name in "01")
    assert first != second


@pytest.mark.slow
def test_parts_are_chosen_on_the_command_line_and_mistakes_named(tmp_path):
    done = run(tmp_path, "model=cnn", "optim=sgd", "model.channel=3", "hydra.run.dir=here")
    assert done.returncode == 1 and "channel" in done.stderr  # Hydra's own answer
    done = run(tmp_path, "model=cnn", "optim=sgd", "+model.channel=3", "hydra.run.dir=here")
    assert done.returncode == 1
    assert ("model.channel: digits_parts.cnn takes no "
            "'channel'; did you mean 'channels'?") in done.stderr
    assert not (tmp_path / "here" / "run").exists()


# Whom a configuration may call

ATTACKS = {
    "a process": {"_target_": "os.system", "command": "touch pwned"},
    "through a package": {"_target_": "torch.os.system", "command": "touch pwned"},
    "deep through a package": {"_target_": "torch.nn.modules.module.torch.load", "f": "evil.pt",
                               "weights_only": True},
    "through the notebook": {"_target_": "__main__.os.system", "command": "touch pwned"},
    "an object of the notebook's": {"_target_": "__main__.trainer.save", "path": "pwned"},
    "a pickle": {"_target_": "torch.load", "f": "evil.pt", "weights_only": False},
    "a pickle by another name": {"_target_": "torch.serialization.load", "f": "evil.pt"},
    "code from the hub": {"_target_": "torch.hub.load", "repo_or_dir": "somebody/model",
                          "model": "x"},
    "code that is timed": {"_target_": "torch.utils.benchmark.Timer", "stmt": "import os"},
    "a shell": {"_target_": "torch.utils.collect_env.run", "command": "touch pwned"},
    "a file": {"_target_": "pathlib.Path.write_text", "self": "pwned", "data": "x"},
    "a file by torch": {"_target_": "torch.save", "obj": 1, "f": "pwned"},
    "a file by torchvision": {"_target_": "torchvision.utils.save_image", "tensor": 1,
                              "fp": "pwned"},
    "a method": {"_target_": "torch.Tensor.tolist", "self": 1},
    "a method of a module": {"_target_": "torch.nn.Module.apply",
                             "self": {"_target_": "torch.nn.ReLU"}, "fn": 1},
    "what the notebook imported": {"_target_": "__main__.system", "command": "touch pwned"},
    "private": {"_target_": "torch._C._nn.gelu", "input": 1},
    "a module that runs": {"_target_": "runs_when_imported.net"},
    "by a name": {"_target_": "hydra.utils.get_method", "path": "os.system"},
    "by a name without a key": {"_target_": "hydra.utils.get_method", "_args_": ["os.system"]},
    "by Hydra itself": {"_target_": "hydra.utils.instantiate",
                        "config": {"_target_": "os.system", "command": "touch pwned"}},
    "remote code": {"_target_": "transformers.AutoModel.from_pretrained",
                    "pretrained_model_name_or_path": "x", "trust_remote_code": True},
    "remote code, nested": {"_target_": "torch.nn.Linear", "in_features": {"trust_remote_code": 1},
                            "out_features": 1},
    "what is resolved later": "\\${oc.create:{_target_:torch.load,f:evil.pt,weights_only:false}}",
    "a name that comes later": {"_target_": "torch.utils.checkpoint.checkpoint",
                                "use_reentrant": False, "_args_": [
{"_target_": "hydra.utils.get_object", "_partial_": True}, "runs_when_imported.net"]},
    "a graph": {"_target_": "torch.fx.graph_module.reduce_graph_module",
                "body": {"_code": "def forward(self): pass\n"},
                "import_block": "open('pwned', 'w')"},
    "a storage": {"_target_": "torch.UntypedStorage.from_file", "_args_": ["pwned", True, 100]},
    "a storage by another name": {
        "_target_": "torch.nn.modules.module.torch.UntypedStorage.from_file",
        "_args_": ["pwned", True, 100]},
    "a writer": {"_target_": "torch.PyTorchFileWriter", "_args_": ["pwned"]},
    "a module of TorchScript": {"_target_": "torch.import_ir_module", "_args_": ["evil.pt"]},
    "a program": {"_target_": "torch.utils.model_dump.__main__.main"},
    "a helper of the package": {"_target_": "trainer_nb.hooks.checkpoint.write_state",
                                "state": {"a": 1}, "path": "pwned"},
    "another helper": {"_target_": "trainer_nb.hooks.trackers.open_plain", "path": "pwned",
                       "mode": "xb"},
    "processes": {"_target_": "trainer_nb.launch", "function": 1},
    "a run elsewhere": {"_target_": "trainer_nb.attach", "path": "pwned"},
    "inside of the package": {"_target_": "trainer_nb.support.saved.write_state", "state": {},
                              "path": "pwned"},
}


class Runs:
    """Leaves a file behind when it is loaded."""

    def __reduce__(self):
        return open, ("pwned", "w")


@pytest.fixture
def guarded(tmp_path, monkeypatch):
    """A folder with a hostile pickle and a module that runs when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "runs_when_imported.py").write_text("open('pwned', 'w'); net = dict")
    torch.save(Runs(), tmp_path / "evil.pt")
    monkeypatch.setattr(sys.modules["__main__"], "os", os, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "system", os.system, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "trainer",
                        Trainer(nn.Linear(1, 1), device="cpu", progress=False), raising=False)
    yield tmp_path
    assert not (tmp_path / "pwned").exists() and "runs_when_imported" not in sys.modules


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("form", ["dict", "YAML", "folder"])
def test_what_a_configuration_may_not_call(name, form, guarded):
    """Refused before anything is imported or built;
    the error names the key, and what can be done."""
    given = make(loss_fn=ATTACKS[name])
    if form == "YAML":
        Path("run.yaml").write_text(yaml.safe_dump(given))
        given = "run.yaml"
    elif form == "folder":
        Path("run").mkdir()
        Path("run", "config.json").write_text(json.dumps({"fingerprint": {}, "config": given}))
        given = "run"
    with pytest.raises(ValueError, match=r"^loss_fn"):
        from_config(given)


def test_all_names_are_looked_at_before_the_first_import(guarded):
    """A module that is allowed is not imported for a configuration that is refused."""
    given = make(model={"_target_": "runs_when_imported.net"}, loss_fn=ATTACKS["a process"])
    with pytest.raises(ValueError, match=r"^loss_fn"):
        Trainer.from_config(given, allow=(HERE, "runs_when_imported"))


@pytest.mark.slow
def test_what_a_configuration_may_call(guarded, monkeypatch):
    """Classes, functions and class methods of the usual packages, of the notebook, and of those
    that are allowed."""
    monkeypatch.setattr(sys.modules["__main__"], "mine", net, raising=False)
    allowed = [{"_target_": "torch.nn.functional.gelu", "_partial_": True},
               {"_target_": "torch.nn.functional.cross_entropy", "_partial_": True},
               {"_target_": "torch.relu", "_partial_": True},
               {"_target_": "torch.randn", "_args_": [2]},
               {"_target_": "torch.nn.Embedding.from_pretrained",
"embeddings": {"_target_": "torch.zeros", "_args_": [2, 2]}},
{"_target_": "torchmetrics.MeanMetric"},
               {"_target_": "timm.create_model", "_partial_": True},
               {"_target_": "transformers.AutoConfig.for_model", "model_type": "bert"},
               {"_target_": "torch.device", "_args_": ["cpu"]},
               {"_target_": "torch.optim.lr_scheduler.LambdaLR", "_partial_": True},
               {"_target_": "__main__.mine", "width": 3},
               {"_target_": "hydra.utils.get_object", "path": "torch.float32"},
               {"_target_": "hydra.utils.get_object", "path": "torch.nn.attention.SDPBackend.MATH"},
               {"_target_": "torch.special.expit", "_partial_": True},
               {"_target_": "torch.linalg.norm", "_partial_": True},
               {"_target_": "torch.distributions.Normal",
"loc": 0.0, "scale": 1.0}, {"_target_": "torch.optim.swa_utils.SWALR", "_partial_": True},
{"_target_": "torch.nn.init.xavier_uniform_", "_partial_": True},
               {"_target_": "torch.Generator"},
               {"_target_": "torch.nn.functional.scaled_dot_product_attention", "_partial_": True},
               {"_target_": "torch.utils.data.TensorDataset"},
               {"_target_": "trainer_nb.hooks.early_stop.EarlyStopHook"},
               {"_target_": "torch.compile", "_partial_": True},
               {"_target_": "hydra.utils.get_class", "path": "torch.nn.ReLU"},
               {"_target_": "hydra.utils.get_method", "path": f"{HERE}.error_of"}]
    for each in allowed:
        if (each["_target_"].split(".")[0] not in ("__main__", HERE)
            and importlib.util.find_spec(each["_target_"].split(".")[0]) is None):
            continue
        from_config(make(model={"_target_": f"{HERE}.first",
                                "of": [{"_target_": f"{HERE}.net", "width": 8}, each]}))
    for wrong in ("my_package", (3,), ("",)):
        with pytest.raises(ValueError, match="allow="):
            Trainer.from_config(make(), allow=wrong)
    with pytest.raises(ValueError,
                       match=rf"'{HERE}.net' is not from the packages.*allow=\('{HERE}',\)"):
        Trainer.from_config(make())


def first(of):
    """The first of several things."""
    return of[0]


def test_a_secret_is_in_no_file(tmp_path, monkeypatch):
    """What is kept names the variable, and not what is in it;
    the run can be made again where it is set."""
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    config = make(workspace=str(tmp_path / "run"),
                  config={"token": "${oc.env:MY_TOKEN}", "same": "${config.token}", "width": 8},
                  hooks=[{"_target_": f"{HERE}.keep", "given": "${config.token}"}],
                  model={"_target_": f"{HERE}.net", "width": "${config.width}"})
    with from_config(config) as trainer:
        assert trainer.get_hook(Kept).given == "hunter2"
        trainer.fit()
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path
    assert json.loads(
        (tmp_path / "run" / "config.json").read_text())[
            "config"]["config"]["token"] == "${oc.env:MY_TOKEN}"
    with from_config(tmp_path / "run") as again:
        assert again.get_hook(Kept).given == "hunter2" and again.model[0].out_features == 8


@pytest.mark.slow
@pytest.mark.parametrize("text",
                         [b"[" * 5_000, b"{\"a\": \"\xff\"}", b"model: \xff", b"{" * 5_000])
@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
def test_a_damaged_file_is_named(text, name, tmp_path):
    """No RecursionError."""
    (tmp_path / name).write_bytes(text)
    with pytest.raises(ValueError, match=name):
        from_config(tmp_path / name)
