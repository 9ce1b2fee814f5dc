"""On a GPU no step waits for the device:
two hundred of them with everything on, under torch's own watch."""

import math

import pytest
import torch
from torch import nn
from trainer_nb import Hook, Trainer

pytestmark = pytest.mark.cuda


class Watch(Hook):
    """From step 20 to 220 a wait for the device is an error;
    the looks twice a second, which fetch, are put off as long."""

    order = -100
    steps = 0

    def after_step(self, trainer):
        """Switch at both ends."""
        step = trainer.step_state.optimizer_step
        if step == 20:
            trainer.driver.boundary.next_refresh = math.inf
            torch.cuda.set_sync_debug_mode("error")
        elif step == 220:
            torch.cuda.set_sync_debug_mode("default")
            trainer.driver.boundary.next_refresh = 0.0
        self.steps += 20 < step <= 220


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("non_finite", [None, "raise"])
def test_two_hundred_steps_without_a_wait(accumulation, non_finite):
    """Recorder, average, clipping, bf16 and progress."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    data = [(torch.randn(16, 32, device="cuda"), torch.randint(0, 8, (16,), device="cuda"))
            for _ in range(230 * accumulation)]
    watch = Watch()
    trainer = Trainer(
        model, train_dl=data, loss_fn=nn.CrossEntropyLoss(),
        optim=lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True), epochs=1,
        device="cuda", mixed_precision="bf16", gradient_accumulation_steps=accumulation,
        grad_clip=1.0, ema=0.999,
        non_finite=non_finite, progress="lines", hooks=[watch])  # fmt: skip
    try:
        trainer.fit()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert watch.steps == 200 and len(trainer.history["train/loss"]) == 230
