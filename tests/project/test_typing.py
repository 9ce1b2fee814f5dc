"""What an editor and a type checker are told: names, arguments, methods and tunables."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainer_nb
from trainer_nb import Trainer
from trainer_nb.core.hook import POINTS

ROOT = Path(__file__).resolve().parents[2]

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
    "Trainer(nn.Linear(3, 1)).feed.nowhere()": "has no attribute",
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


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What mypy says of the package and of two programs that use it, in one run: a few seconds;
    without mypy's cache a minute."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(START + "\n".join(MISTAKES) + "\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "trainer_nb", folder / "right.py",
                           folder / "wrong.py"], cwd=ROOT, capture_output=True, text=True)
    assert "(checked" in done.stdout, done.stdout + done.stderr  # to the end
    return done.stdout


@pytest.mark.slow
def test_mistakes_are_found_and_a_right_program_has_none(said):
    found = {(file, int(line)): message for file, line, message in re.findall(
        r"^(?:.*/)?(right\.py|wrong\.py):(\d+): error: (.*)$", said, re.MULTILINE)}
    first = START.count("\n") + 1
    assert list(found) == [("wrong.py", first + each) for each in range(len(MISTAKES))]
    assert [(message, expected) for message, expected in zip(found.values(), MISTAKES.values())
            if expected not in message] == []


def test_each_public_method_says_what_it_takes_and_gives():
    """But for what its class overrides, and for the trainer that hooks get."""
    kinds = {each for name in trainer_nb.__all__
             if inspect.isclass(each := getattr(trainer_nb, name))}
    untold = []
    for owner, name, member in [(kind, *each) for kind in kinds for each in vars(kind).items()]:
        method = getattr(member, "__func__", member)
        if (inspect.isfunction(method) and not name.startswith("_") and name not in POINTS
                and not any(hasattr(base, name) for base in owner.__bases__)):
            given = inspect.signature(method)
            untold += [f"{owner.__name__}.{name}: {each.name}" for each in given.parameters.values()
                       if each.annotation is each.empty and each.kind is not each.VAR_KEYWORD
                       and each.name not in ("self", "cls", "trainer")]
            untold += [f"{owner.__name__}.{name}()"] * (given.return_annotation is given.empty)
    assert untold == [] and len(kinds) > 30


def test_each_argument_of_the_trainer_is_explained_once():
    """In the table of the class, from which the reference page is made."""
    told = re.findall(r"^ {4}(\w+) {2,}\S", inspect.getdoc(Trainer), re.MULTILINE)
    assert sorted(told) == sorted(inspect.signature(Trainer).parameters)


@pytest.mark.slow
def test_the_package_is_right_itself(said):
    assert re.findall(r"^trainer_nb/.*: error: .*$", said, re.MULTILINE) == []
