"""How tests compare models, and the random streams before and after."""

import random

import numpy as np
import torch

from trainer_nb.core.state import RandomStreams


def same(a, b):
    """All parameters and buffers, bit for bit."""
    a, b = a.state_dict(), b.state_dict()
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def streams():
    """Some numbers that change when a global stream was drawn from; nothing is drawn for good."""
    kept = RandomStreams.capture()
    found = random.random(), np.random.rand(), torch.rand(1).item()
    kept.restore()
    return found
