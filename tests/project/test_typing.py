"""What an editor and a type checker are told: names, arguments, methods and tunables."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import trainer_nb
from trainer_nb import Trainer
from trainer_nb.core.hook import POINTS

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

START = "from torch import nn\nfrom trainer_nb import Hook, Task, Trainer, Tunable\n"
START += "from trainer_nb import attach, launch\n"
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
    "Task().train_step((), 3)": "incompatible type",
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


def untyped(kind):
    """What a class leaves open, that no class it derives from tells (nor `Trainer` itself, of what
    it derives from; its properties are typed in the stubs)."""
    others = Trainer.__mro__[:1] if kind in Trainer.__mro__[1:] else kind.__mro__[1:]
    told = {name for other in others if other.__module__.startswith("trainer_nb")
            for name in vars(other)}
    for name, member in list(vars(kind).items()):
        if name in told or name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, property) and kind not in Trainer.__mro__:
            if name not in kind.__annotations__ and "return" not in member.fget.__annotations__:
                yield f"{kind.__name__}.{name}"
        elif inspect.isfunction(function := getattr(member, "__func__", member)):
            signature = inspect.signature(function)
            yield from [f"{kind.__name__}.{name}({argument.name})"
                        for argument in signature.parameters.values()
                        if argument.annotation is argument.empty
                        and argument.kind is not argument.VAR_KEYWORD
                        and argument.name not in ("self", "cls", "instance", *stubs.ABOVE)]
            if signature.return_annotation is signature.empty:
                if name not in ("__init__", *POINTS):
                    yield f"{kind.__name__}.{name}()"


# objects of the services: their own packages say what they are
OF_SERVICES = ["TensorBoardHook.events", "WandbHook.run", "TrackioHook.run"]


def test_each_public_class_says_what_its_methods_take_and_give():
    kinds = [each for name in trainer_nb.__all__ if inspect.isclass(
        each := getattr(trainer_nb, name))] + [*Trainer.__mro__[1:-1]]
    assert len(kinds) > 30
    assert [each for kind in kinds for each in untyped(kind) if each not in OF_SERVICES] == []


def test_each_argument_of_the_trainer_is_explained():
    words = inspect.getdoc(Trainer)
    assert [name for name in inspect.signature(Trainer).parameters
            if not re.search(rf"^(    |.*, ){name}(,| {{2,}})", words, re.MULTILINE)] == []


def test_the_names_for_editors_are_those_that_are_imported():
    tree = ast.parse((LIB / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {each.asname: node.module for node in block.body for each in node.names
            if each.asname == each.name}
    assert told == trainer_nb._EXPORTS


# The package itself


def test_a_mistake_in_a_method_is_all_that_is_found(tmp_path):
    """In a copy of the package with another line in place of one."""
    package = tmp_path / LIB.name
    shutil.copytree(LIB, package, ignore=shutil.ignore_patterns("__pycache__", "*.pyi"))
    driver, line = package / "core" / "driver.py", "    self.generator = self.loop.run(owner)\n"
    before, found, after = driver.read_text(encoding="utf-8").partition(line)
    assert found
    driver.write_text(before + line.replace(".run(", ".nowhere(") + after, encoding="utf-8")
    code, report = check_types.check(package)
    place = f"{LIB.name}/core/driver.py:{before.count(chr(10)) + 1}: error: "
    assert re.findall(r"^.*: error: .*$", report, re.MULTILINE) == [
        f'{place}"TrainingLoop" has no attribute "nowhere"  [attr-defined]']
    assert code == 1


def test_a_stub_puts_a_patched_method_into_its_class():
    text = '''class Run:
    "A run."
@patch
def go(self: Run, steps: int = 1) -> bool:
    self.steps: int = steps
    return True
@patch(as_prop=True)
def length(self: Run) -> int: return 3
'''
    assert stubs.stub(text).replace("\n", "").endswith(
        'class Run:    """A run."""    def go(self, steps: int=1) -> bool:        ...    @property'
        "    def length(self) -> int:        ...    steps: int")
