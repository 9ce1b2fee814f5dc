"""What alerts cost a step: a run with AlertsHook beside one without, both with a history, block by
block.

    python -m benchmarks.alerts                 a tiny network, whose step is nearly nothing but
                                                Python
    python -m benchmarks.alerts --rounds 40
"""

import statistics
import time

import torch
from torch import nn
from trainer_nb import AlertsHook, Trainer

from .work import rounds_to_measure

STEPS = 400  # of a block


def make(*hooks):
    """Nothing to train but 16-32-4, with plain SGD."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    data = [(torch.randn(16, 16), torch.randn(16, 4))] * STEPS
    return Trainer(model, train_dl=data, loss_fn=nn.MSELoss(),
                   optim=torch.optim.SGD(model.parameters(), lr=1e-3), device="cpu",
                   progress=False, max_steps=10**9, hooks=hooks)


def block(trainer) -> float:
    """Processor seconds of a step."""
    began = time.thread_time()
    trainer.step(STEPS)
    trainer.history.flush()
    return (time.thread_time() - began) / STEPS


def main():
    """The median of the ratios, pair by pair, each order in turn."""
    rounds = rounds_to_measure(__doc__, 21)
    runs = {"without": make(),
            "with": make(AlertsHook(patience=10**6)),
            "with a plateau": make(AlertsHook())}
    for run in runs.values():
        run.driver.status.front_end = True  # no lines: a plateau is one here
        block(run)
    rows = []
    for number in range(rounds):
        order = list(runs) if number % 2 else list(runs)[::-1]
        found = {name: block(runs[name]) for name in order}
        rows.append(found)
    plain = statistics.median(row["without"] for row in rows)
    print(f"a step without alerts: {plain * 1e6:.1f} us of processor time")
    for name in list(runs)[1:]:
        ratios = sorted(row[name] / row["without"] for row in rows)
        quarter = len(ratios) // 4
        print(f"{name}: {statistics.median(ratios):.3f} times ({ratios[quarter]:.3f} to "
              f"{ratios[-quarter - 1]:.3f})")


if __name__ == "__main__":
    main()
