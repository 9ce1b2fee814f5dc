"""What a test process asks of torch before it trains on a device."""

import os

import torch


def exact_on(device):
    """On a GPU the deterministic algorithms, as `trainer.exact` asks."""
    if device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
