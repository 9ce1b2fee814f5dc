"""What an editor and a type checker are told: names, arguments, methods and tunables."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import trainer_nb
from trainer_nb import Trainer
from trainer_nb.core.hook import POINTS
from trainer_nb.trainer import PUBLIC

ROOT = Path(__file__).resolve().parents[2]
LIB = Path(trainer_nb.__file__).parent
sys.path.insert(0, str(ROOT / "scripts"))

import check_types
import stubs

# torch and numpy are left out: with them a check takes half a minute
SETTINGS = """\
[mypy]
follow_imports = silent
disable_error_code = import-untyped
[mypy-torch.*]
follow_imports = skip
[mypy-numpy.*]
follow_imports = skip
"""

RIGHT = """\
import torch
from torch import nn

from trainer_nb import FitResult, Hook, Task, Trainer, Tunable, attach, launch


class Noise(Hook):
    strength = Tunable(0.1, min=0)
    steps = Tunable(None, kind=int, min=1)

    def before_batch(self, trainer: Trainer) -> None:
        trainer.batch = [each + self.strength for each in trainer.batch]

    def on_log(self, trainer, records):
        super().on_log(trainer, {})


class Line(Task):
    def build_model(self) -> nn.Module:
        return nn.Linear(3, 1)

    def build_train_dl(self) -> list:
        return []


noise = Noise()
noise.strength, noise.steps = 0.2, 3
smallest: float | None = Noise.strength.min
model = nn.Linear(3, 1)
batches = [(torch.ones(4, 3), torch.ones(4, 1))] * 4
trainer = Trainer(model, train_dl=batches, valid_dl={"valid": batches}, loss_fn=nn.MSELoss(),
                  optim=torch.optim.SGD(model.parameters(), lr=0.1), epochs=1, hooks=[noise],
                  progress="lines", ema=0.9, sched="one_cycle", max_time=60, device="cpu")
trainer.grad_clip = 1.0
trainer.sched = None
trainer.tune(lr=0.1)
result: FitResult = trainer.fit(epochs=2)
loss: float = result.last["train/loss"]
names: list[str] = trainer.history.names
trainer.journal.to_script()
strength: float = trainer.get_hook(Noise).strength
with trainer.best_weights() as same, trainer.trial() as tried:
    tried.step(1)
    scores: dict[str, float] = same.test(batches, weights="best")
address: str = trainer.serve(read_only=True).look_url
Trainer.from_task(Line, epochs=3).fit()
run = attach("runs/first")
run.tune(lr=1e-4)
halted: bool = run.state.name == "PAUSED" and not run.closed
runs = attach("runs/*")
best: str = repr(runs.table)
number: int = len(attach(["runs/first", "runs/second"]))
started: str = launch("train.py", "--epochs", 5, workspace="runs/third").standing
score: float = launch(lambda rank: 0.5, 1, num_processes=2)
"""

START = "from torch import nn\nfrom trainer_nb import Hook, Trainer, Tunable, attach, launch\n"
START += "class Noise(Hook):\n    strength = Tunable(0.1, min=0)\n"
MISTAKES = {
    "Trainer(nn.Linear(3, 1), epoch=3)": "Unexpected keyword argument",
    "Trainer(nn.Linear(3, 1), epochs='three')": "incompatible type",
    "Trainer(nn.Linear(3, 1)).fitt()": "has no attribute",
    "Trainer(nn.Linear(3, 1)).fit(epoch=2)": "Unexpected keyword argument",
    "Trainer(nn.Linear(3, 1)).grad_clip = 'high'": "Incompatible types in assignment",
    "Noise().strength.upper()": "has no attribute",
    "Noise.strength.minimum": "has no attribute",
    "Tunable(0.1, minimum=0)": "No overload variant",
    "Trainer(nn.Linear(3, 1)).get_hook(Noise).strenght": "has no attribute",
    "Trainer(nn.Linear(3, 1)).plots.nowhere()": "has no attribute",
    "Trainer(nn.Linear(3, 1)).test([], weights='worst')": "incompatible type",
    "Trainer.from_config({}).nowhere()": "has no attribute",
    "Hook().after_step(3)": "incompatible type",
    "Hook().on_intervention(Trainer(nn.Linear(3, 1)), 'lr')": "incompatible type",
    "launch('train.py', workspace='runs/first').nowhere()": "has no attribute",
    "launch(lambda: 'a', timeout=3)": "No overload variant",
    "attach('runs/first').tunne(lr=1)": "has no attribute",
    "attach(['runs/first']).tune(lr=1)": "has no attribute",
}


def checked(folder, **programs):
    """The lines in which mypy finds something wrong in each of the programs: number -> message."""
    (folder / "mypy.ini").write_text(SETTINGS)
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *(f"{name}.py" for name in programs)],
        capture_output=True, text=True, cwd=folder, env={"MYPYPATH": str(LIB.parent), "PATH": ""},
        check=False)
    assert done.stderr == ""
    found = re.findall(r"^(\w+)\.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return {name: {int(line): text for own, line, text in found if own == name}
            for name in programs}


def test_mistakes_are_found_and_a_right_program_has_none(tmp_path):
    found = checked(tmp_path, right=RIGHT, wrong=START + "\n".join(MISTAKES) + "\n")
    assert found["right"] == {}
    first = START.count("\n") + 1
    assert list(found["wrong"]) == list(range(first, first + len(MISTAKES)))
    for message, expected in zip(found["wrong"].values(), MISTAKES.values(), strict=True):
        assert expected in message


def test_each_public_method_says_what_it_takes_and_gives():
    """Of the trainer, in the stubs, where an editor infers nothing."""
    methods = {}
    for module, name in (("core/core_trainer.pyi", "CoreTrainer"), ("trainer.pyi", "Trainer")):
        tree = ast.parse((LIB / module).read_text(encoding="utf-8"))
        [own] = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name]
        methods |= {each.name: each for each in own.body if isinstance(each, ast.FunctionDef)}
    public = [each for name, each in methods.items()
              if not name.startswith("_") or name == "__init__"]
    assert len(public) > 100
    untyped = [f"{each.name}({argument.arg})" for each in public
               for argument in [*each.args.args, *each.args.kwonlyargs]
               if argument.annotation is None and argument.arg not in ("self", "cls")]
    assert untyped == []
    assert [each.name for each in public if each.returns is None and each.name != "__init__"] == []


def untyped(kind):
    """What a class leaves open, that no class it derives from tells."""
    told = {name for base in kind.__mro__[1:] if base.__module__.startswith("trainer_nb")
            for name in vars(base)}
    for name, member in list(vars(kind).items()):
        if name in told or name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, property):
            if name not in kind.__annotations__ and "return" not in member.fget.__annotations__:
                yield f"{kind.__name__}.{name}"
        elif inspect.isfunction(function := getattr(member, "__func__", member)):
            signature = inspect.signature(function)
            yield from [f"{kind.__name__}.{name}({argument.name})"
                        for argument in signature.parameters.values()
                        if argument.annotation is argument.empty
                        and argument.name not in ("self", "cls", "instance", *stubs.ABOVE)]
            if signature.return_annotation is signature.empty:
                if name not in ("__init__", *POINTS):
                    yield f"{kind.__name__}.{name}()"


# objects of the services: their own packages say what they are
OF_SERVICES = ["TensorBoardHook.events", "WandbHook.run", "TrackioHook.run"]


def test_each_public_class_says_what_its_methods_take_and_give():
    kinds = [each for each in map(partial(getattr, trainer_nb), trainer_nb.__all__)
             if inspect.isclass(each) and each is not Trainer]
    assert len(kinds) > 30
    assert [each for kind in kinds for each in untyped(kind) if each not in OF_SERVICES] == []


def test_what_people_derive_from_gets_a_trainer():
    """In the stub: the layers of these classes may not import it."""
    for module, name, number in (("core/hook.pyi", "Hook", 40), ("tools/task.pyi", "Task", 3),
                                 ("hooks/trackers.pyi", "TrackerHook", 5)):
        tree = ast.parse((LIB / module).read_text(encoding="utf-8"))
        [kind] = [each for each in tree.body
                  if isinstance(each, ast.ClassDef) and each.name == name]
        given = [ast.unparse(argument.annotation) if argument.annotation else "nothing"
                 for method in kind.body if isinstance(method, ast.FunctionDef)
                 for argument in method.args.args if argument.arg == "trainer"]
        assert len(given) >= number
        assert set(given) == {"Trainer"}


# The bodies of the package


def planted(folder, module, line, mistake):
    """A copy of the package with another line in place of one, and the number of that line."""
    package = folder / LIB.name
    shutil.copytree(LIB, package, ignore=shutil.ignore_patterns("__pycache__", "*.pyi"))
    lines = (package / module).read_text(encoding="utf-8").split("\n")
    [number] = [number for number, each in enumerate(lines) if each == line]
    lines[number] = mistake
    (package / module).write_text("\n".join(lines), encoding="utf-8")
    return package, number + 1


def test_a_mistake_in_a_patched_method_is_all_that_is_found(tmp_path):
    line = "    self.generator = self.loop.run(owner)"
    package, number = planted(tmp_path, "core/driver.py", line, line.replace(".run(", ".nowhere("))
    code, report = check_types.check(package)
    place = f"{LIB.name}/core/driver.py:{number}: error: "
    assert re.findall(r"^.*: error: .*$", report, re.MULTILINE) == [
        f'{place}"TrainingLoop" has no attribute "nowhere"  [attr-defined]']
    assert code == 1


def test_patched_functions_are_checked_in_their_class():
    text = '''class Run:
    "A run."
    size = 1
@patch
@contextmanager
def held(self: Run): yield
@patch(as_prop=True)
def length(self: Run) -> int:
    return self.size
def other(): pass
@patch(cls_method=True)
def made(cls: Run,
         size: int): return cls()
'''
    new, numbers = check_types.whole_classes(text)
    assert new == '''class Run:
    "A run."
    size = 1

    @contextmanager
    def held(self): yield
    @property
    def length(self) -> int:
        return self.size
    @classmethod
    def made(cls,
             size: int): return cls()
def other(): pass
'''
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 10, 14]
    report = "m.py:10: error: no\nm.py:13: note: yes\nFound 1 error\n"
    assert check_types.mapped(report, {"m.py": numbers}) == (
        "m.py:11: error: no\nm.py:10: note: yes\nFound 1 error\n")


# The lazily imported names


def test_the_names_for_editors_are_those_that_are_imported():
    tree = ast.parse((LIB / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {each.asname: node.module for node in block.body for each in node.names
            if each.asname == each.name}
    assert told == trainer_nb._EXPORTS


# The trainer's arguments

ARGUMENTS = {name: each for name, each in inspect.signature(Trainer).parameters.items()}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_is_annotated_and_explained(name):
    assert ARGUMENTS[name].annotation is not inspect.Parameter.empty
    assert re.search(rf"^(    |.*, ){name}(,| {{2,}})", inspect.getdoc(Trainer), re.MULTILINE)


# Stubs


def test_a_stub_has_every_public_name_of_a_trainer():
    text = (LIB / "trainer.pyi").read_text() + (LIB / "core" / "core_trainer.pyi").read_text()
    missing = [name for name in PUBLIC if not re.search(rf"^    (async )?(def )?{name}[:(]", text,
                                                        re.MULTILINE)]
    assert missing == []


def test_a_stub_puts_a_patched_method_into_its_class():
    text = '''
from fastcore.basics import patch
class Run:
    "A run."
    several = None
    def __init__(self, size: int, sched=None):
        self.size, self.parts = size, Parts()
class Parts: pass
@patch
def go(self: Run, steps: int = 1) -> bool:
    "Go on."
    self.steps: int = steps
    return True
@patch(as_prop=True)
def length(self: Run) -> int: return 3
@patch(as_prop=True)
def sched(self: Run) -> str: return ""
@patch(cls_method=True)
def made(cls: Run): return cls(1)
'''
    assert stubs.stub(text) == stubs.HEAD + '''from typing import Any
class Run:
    """A run."""
    several: Any

    def __init__(self, size: int, sched=None):
        ...

    def go(self, steps: int=1) -> bool:
        """Go on."""

    @property
    def length(self) -> int:
        ...
    sched: str

    @classmethod
    def made(cls):
        ...
    steps: int
    size: int
    parts: Parts
class Parts:
    ...
'''
    assert stubs.stub("class Run: pass") is None
