"""What a checkpoint costs: how long training waits for it, and how long the disk takes.

    python -m benchmarks.checkpoint                 100 million parameters with AdamW
    python -m benchmarks.checkpoint --millions 10
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from trainer_nb import CheckpointHook, LambdaHook, Trainer
from trainer_nb.support.saved import read_state


def make(millions, folder, every):
    """Square layers; a batch of 64."""
    width = 1024
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width)
              for _ in range(max(1, round(millions * 1e6 / width**2)))]
    model = torch.nn.Sequential(*layers)
    data = [(torch.randn(64, width), torch.randn(64, width)) for _ in range(100)]
    hook = CheckpointHook(folder, every_steps=every, every_epochs=None, keep_last=2, resume=None)
    marks = []
    clock = LambdaHook(order=99, after_step=lambda trainer: marks.append(time.perf_counter()))
    trainer = Trainer(model, train_dl=data, loss_fn=torch.nn.MSELoss(),
                      optim=torch.optim.AdamW(model.parameters(), lr=1e-5),
                      device="cpu", progress=False, max_steps=100, hooks=[hook, clock])
    return trainer, hook, marks


def main():
    """Steps with and without a save right before them."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--millions", type=float, default=100)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer, hook, marks = make(given.millions, folder, given.every)
        spent, written = [], []
        copy, add = trainer.state_dict, None

        def timed_copy():
            start = time.perf_counter()
            state = copy()
            spent.append(time.perf_counter() - start)
            return state

        trainer.state_dict = timed_copy
        trainer.step(1)
        add = hook.folder.add

        def timed_add(state, entry):
            start = time.perf_counter()
            add(state, entry)
            written.append(time.perf_counter() - start)

        hook.folder.add = timed_add
        trainer.step(given.steps)
        hook.writer.wait()
        count = sum(p.numel() for p in trainer.model.parameters())
        latest = Path(folder, hook.folder.kept()[-1].file)
        steps = [b - a for a, b in zip(marks[1:], marks[2:])]
        usual = sorted(steps)[len(steps) // 2]
        start = time.perf_counter()
        read_state(latest)
        reading = time.perf_counter() - start
        print(f"{count / 1e6:.0f} M parameters, {latest.stat().st_size / 1e9:.2f} GB a file, a "
              f"step {usual:.2f} s")
        print(f"training waits for the copy {', '.join(f'{each:.2f}' for each in spent)} s; "
              f"the thread writes, reads once and syncs for "
              f"{', '.join(f'{each:.2f}' for each in written)} s")
        print(f"all steps took {sum(steps) - usual * len(steps):.2f} s longer than {len(steps)} "
              f"usual ones "
              f"({len(spent)} saves): "
              f"{(sum(steps) / (usual * len(steps)) - 1) / len(spent) * len(steps) * 100:.0f} % of "
              f"a step each")
        print(f"reading it with all check sums: {reading:.2f} s")


if __name__ == "__main__":
    main()
