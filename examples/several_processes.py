"""Digits on several processes: accelerate launch --num_processes 2 examples/several_processes.py

Without GPUs: torchrun --nproc_per_node 2 examples/several_processes.py
With a part of every parameter in each (FSDP): accelerate launch --use_fsdp --fsdp_version 2 ..., or
ACCELERATE_USE_FSDP=true torchrun ... The same script runs alone: python
examples/several_processes.py --accumulate 2
"""

import argparse
import zlib

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from trainer_nb import Trainer


def main():
    """Train, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1,
                        help="batches of each process in a step")
    wanted = parser.parse_args()

    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16), torch.tensor(digits.target))
    train, valid = random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()

    trainer = Trainer(
        model,
        train_dl=DataLoader(train, batch_size=32, shuffle=True),
        valid_dl=DataLoader(valid, batch_size=256),
        loss_fn=nn.CrossEntropyLoss(),
        metrics={"accuracy": lambda pred, target: (pred.argmax(1) == target).double().mean()},
        optim=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        gradient_accumulation_steps=wanted.accumulate,
        epochs=wanted.epochs,
        grad_clip=1.0,
        seed=0,
        engine="accelerate",
    )
    result = trainer.fit()
    # all processes ask together
    weights = torch.cat([tensor.reshape(-1) for tensor in trainer.state_dict()["model"].values()])
    if trainer.is_main:
        number = trainer.step_state.num_processes
        print(f"{number} process{'es' if number > 1 else ''}, {result.steps} steps, accuracy "
              f"{result.last['valid/accuracy']:.3f}, "
              f"weights {zlib.crc32(weights.round(decimals=9).numpy().tobytes()):08x}")


if __name__ == "__main__":
    main()
