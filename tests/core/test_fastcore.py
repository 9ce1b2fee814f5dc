"""The package beside today's fastai, whose fastcore is newer than the one that nbdev needs."""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest
from jupyter_server import ENVIRONMENTS
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ENVIRONMENTS / ".venv-fastai" / "bin" / "python"
TOGETHER = """
from importlib.metadata import version
import torch
from benchmarks.peers import train
from benchmarks.work import WORKS, same
from trainer_nb import Trainer

work = WORKS["A tiny"]
by_hand = work.by_hand()
by_hand(iter(work.batches))
for name in ("fastai", "trainer_nb"):
    print(name, same(train(name, work, work.batches), by_hand.model))

from fastai.basics import DataLoaders
data = torch.utils.data.TensorDataset(torch.rand(64, 4), torch.rand(64, 1))
dls = DataLoaders.from_dsets(data, data, bs=16, device="cpu")
trainer = Trainer(torch.nn.Linear(4, 1), train_dl=dls.train, valid_dl=dls.valid, epochs=2,
                  loss_fn=torch.nn.MSELoss(), device="cpu", progress=False)
print(trainer.fit().status, len(trainer.history["train/loss"]))
print(version("fastcore"))
"""


def run_there(*arguments):
    """What Python prints beside fastai; the test fails if it fails."""
    assert PYTHON.exists(), "run `make .venv-fastai/.made`"
    place = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run([PYTHON, *arguments], cwd=ROOT, env=place, text=True, timeout=600,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_package_asks_for_no_fastcore():
    """fastai needs a newer one than nbdev, so pip would have to choose."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "fastcore" not in [each.name for each in map(Requirement, project["dependencies"])]


@pytest.mark.long  # fastai has an environment of its own
def test_fastai_and_this_package_train_in_one_process():
    """Both end with the weights of the loop by hand, bit for bit, and fastai's loaders feed a
    run."""
    *trained, fastcore = run_there("-W", "ignore", "-c", TOGETHER).splitlines()[-4:]
    assert trained == ["fastai True", "trainer_nb True", "finished 8"]
    assert not fastcore.startswith("1.")
