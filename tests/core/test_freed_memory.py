"""A step on the CPU takes the memory that the one before has freed, and no new pages."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
STEPS = """
import resource
import torch
from trainer_nb import Trainer

model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(),
                            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
torch.set_num_threads(1)
data = [(torch.randn(64, 3, 32, 32), torch.randn(64, 16)) for _ in range(3)]
trainer = Trainer(model, train_dl=data, loss_fn=torch.nn.MSELoss(), device="cpu",
                  optim=torch.optim.SGD(model.parameters(), 0.1), progress=False, epochs=None)
trainer.step(20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
trainer.step(20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what another C library does")
@pytest.mark.parametrize("bound", [None, pytest.param("131072", marks=pytest.mark.skipif(
    HUGE.exists() and "[always]" in HUGE.read_text(), reason="a page may be of 2 MiB"))],
    ids=["as it comes", "with a setting"])
def test_steps_take_no_new_pages(bound):
    """A step here frees about 16 MiB, 4,000 pages. Who sets a bound has it."""
    given = {} if bound is None else {"MALLOC_TRIM_THRESHOLD_": bound}
    unset = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True,
                          check=True, env=unset | given)
    taken = int(done.stdout.splitlines()[-1])
    assert taken < 20 * 400 if bound is None else taken > 20 * 400
