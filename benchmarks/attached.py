"""What a run pays for being seen from outside:
steps with a workspace, nobody attached, against a process that follows the folder.

    python -m benchmarks.attached            ratios of the wall clock and of the process's CPU time,
                                             medians of interleaved blocks

The follower is stopped and let go on between blocks. A third kind of block has no workspace.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from trainer_nb import Trainer

FOLLOW = """
import sys, time
from trainer_nb import attach
run = attach(sys.argv[1])
print("attached", flush=True)
while True:
    len(run.history), run.view.position, run.view.tunables
    time.sleep(0.5)
"""


def make(workspace, steps):
    """A small run that is long enough."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    data = [(torch.randn(32, 64), torch.randint(0, 10, (32,))) for _ in range(64)]
    loader = [data[number % 64] for number in range(steps)]
    return Trainer(model, train_dl=loader, loss_fn=torch.nn.CrossEntropyLoss(), epochs=1,
                   device="cpu", progress=False, workspace=workspace)


def spent(trainer, steps):
    """Seconds of the wall clock and of the processor, a step."""
    wall, cpu = time.perf_counter(), time.process_time()
    trainer.step(steps)
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10_000, help="in a block; a second or two")
    given = parser.parse_args()
    torch.set_num_threads(1)
    total = (given.pairs + 2) * given.steps * 2
    with tempfile.TemporaryDirectory() as folder:
        plain, seen = make(None, total), make(Path(folder, "run"), total)
        for trainer in (plain, seen):
            trainer.step(given.steps)
        follower = subprocess.Popen([sys.executable, "-c", FOLLOW, str(Path(folder, "run"))],
                                    stdout=subprocess.PIPE, text=True)
        follower.stdout.readline()
        rows = []
        for _ in range(given.pairs):
            os.kill(follower.pid, signal.SIGSTOP)
            without, alone = spent(plain, given.steps), spent(seen, given.steps)
            os.kill(follower.pid, signal.SIGCONT)
            rows.append((without, alone, spent(seen, given.steps)))
        follower.kill()
        seen.close()
    for index, kind in enumerate(("wall clock", "processor")):
        step = statistics.median(without[index] for without, _, _ in rows)
        alone = statistics.median(a[index] / w[index] for w, a, _ in rows)
        attached = statistics.median(f[index] / a[index] for _, a, f in rows)
        print(f"{kind}: {1e6 * step:.0f} us a step without a workspace; with one {alone:.3f} x, "
              f"attached at 2 Hz {attached:.3f} x of that")


if __name__ == "__main__":
    main()
