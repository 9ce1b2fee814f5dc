"""What a long run costs the kernel: memory of a record, a reading of it for the panel's curves,
the picture.

    python -m benchmarks.history              a million steps
    python -m benchmarks.history --steps 100000
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from trainer_nb import Trainer
from trainer_nb.panel.bins import Records
from trainer_nb.panel.still import still

NAMES = ("train/loss", "lr", "time/step", "time/data", "samples_per_second")
BLOCK = 256  # steps written at a time, as the recorder does


def resident() -> int:
    """Bytes that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def write(history, first: int, count: int, noise: np.ndarray) -> None:
    """So many steps more, with what the recorder keeps of each."""
    for begin in range(first, first + count, BLOCK):
        steps = list(range(begin + 1, min(begin + BLOCK, first + count) + 1))
        epochs, samples, seconds = ([s / 1000 for s in steps], [32 * s for s in steps],
                                    [s / 3000 for s in steps])
        for name in NAMES:
            history.extend(name, steps, epochs, samples, seconds,
                           (noise[: len(steps)] + 1e5 / (begin + 1e5)).tolist())


def main():
    """Write, draw, and say."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    steps = parser.parse_args().steps
    model = torch.nn.Linear(1, 1)
    data = [(torch.zeros(1, 1), torch.zeros(1, 1))]
    trainer = Trainer(model, train_dl=data, loss_fn=torch.nn.MSELoss(), max_steps=steps,
                      progress=False, device="cpu")
    noise = np.random.default_rng(0).normal(0, 0.05, BLOCK)
    write(trainer.history, 0, 1000, noise)
    records_of, view = Records(), trainer.view
    records_of.read(view)
    before = resident()
    write(trainer.history, 1000, steps - 1000, noise)
    kept = resident() - before
    began = time.perf_counter()
    records_of.read(view)
    first = time.perf_counter() - began
    drawn = resident() - before
    spent = []
    for number in range(20):
        write(trainer.history, steps + 100 * number, 100, noise)
        began = time.perf_counter()
        records_of.read(view)
        spent.append(time.perf_counter() - began)
    records = steps * len(NAMES)
    print(f"{steps:,} steps, {records:,} records: {kept / records:.0f} bytes a record; with the "
          f"panel's curves {drawn / records:.0f}")
    print(f"reading for the curves: the first {first * 1e3:.0f} ms, then "
          f"{statistics.median(spent) * 1e3:.2f} ms")
    began = time.perf_counter()
    picture = still(trainer.view)
    print(f"still: {len(picture.encode()) / 1000:.0f} kB in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
