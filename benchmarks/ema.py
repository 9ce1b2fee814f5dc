"""What an average of the weights costs a step:
EMAHook against AveragedModel, beside a run without, interleaved.

    python -m benchmarks.ema                 a tiny and a larger network
    python -m benchmarks.ema --rounds 20
"""

import statistics
import time

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from trainer_nb import EMAHook, LambdaHook, Trainer

from .work import rounds_to_measure

SIZES = {"tiny (16-32-4)": (16, 32, 4, 500), "larger (12 layers of 256)": (*[256] * 13, 100)}


def averaged_model():
    """torch's own average, as one writes it by hand."""
    kept = []
    def move(trainer):
        if not kept:
            kept.append(AveragedModel(trainer.model, multi_avg_fn=get_ema_multi_avg_fn(0.999)))
        kept[0].update_parameters(trainer.model)
    return LambdaHook(after_step=move)


def seconds(widths, steps, hooks):
    """A step of a run that is warm."""
    torch.manual_seed(0)
    layers = [layer for a, b in zip(widths, widths[1:])
              for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    data = [(torch.randn(16, widths[0]), torch.randn(16, widths[-1]))] * steps
    trainer = Trainer(model, train_dl=data, loss_fn=torch.nn.MSELoss(),
                      optim=torch.optim.SGD(model.parameters(), lr=1e-3),
                      device="cpu", progress=False, record=False, epochs=2, hooks=hooks)
    trainer.step(epochs=1)
    began = time.perf_counter()
    trainer.fit()
    return (time.perf_counter() - began) / steps


def main():
    """Medians of the differences to the run without, round by round."""
    rounds = rounds_to_measure(__doc__, 11)
    for name, (*widths, steps) in SIZES.items():
        rows = [(seconds(widths, steps, []), seconds(widths, steps, [EMAHook(0.999)]),
                 seconds(widths, steps, [averaged_model()]))
                for _ in range(rounds)]
        plain = statistics.median(row[0] for row in rows) * 1e6
        mine, torchs = (statistics.median(row[k] - row[0] for row in rows) * 1e6 for k in (1, 2))
        print(f"{name}: a step {plain:.1f} us; EMAHook +{mine:.1f} us, "
              f"AveragedModel +{torchs:.1f} us")


if __name__ == "__main__":
    main()
