"""Commands from several threads at once:
none is lost, nothing is half done, and the journal replays to the same weights.

    TRAINER_NB_STORMS=20 pytest tests/stress/test_concurrent_commands.py

makes 20 storms of ten thousand commands, not two of three thousand.
"""

import os
import random
import threading
import time

import pytest
import torch

from trainer_nb import Hook, LambdaHook, ReplayHook, SnapshotHook, Trainer, Tunable
from trainer_nb.core.control import Command

STORMS = int(os.environ.get("TRAINER_NB_STORMS", 2))
COUNT, THREADS = 10_000 if STORMS > 2 else 3_000, 4

pytestmark = pytest.mark.slow

TOTALS = ({"epochs": 100_000}, {"max_steps": 10_000_000, "eval_every": 4})


class Shrink(Hook):
    """Pulls the weights a little, so that switching it, tuning it and moving it can be seen in
    them."""

    share = Tunable(0.001, min=0, max=0.1)

    def after_step(self, trainer):
        """By its share."""
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(1 - self.share)


class Shift(Hook):
    """Adds a little: with the other one, the order counts."""

    def after_step(self, trainer):
        """To the biases."""
        with torch.no_grad():
            trainer.model[0].bias.add_(0.001)


def make(seed, *hooks):
    """Dropout, shuffling, accumulation with a tail, an evaluation each epoch or every few steps."""
    torch.manual_seed(0)
    inputs = torch.randn(44, 3)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(),
                                torch.nn.Linear(8, 1))
    return Trainer(
        model, train_dl=torch.utils.data.DataLoader(data, batch_size=4, shuffle=True),
        valid_dl=torch.utils.data.DataLoader(data, batch_size=4), loss_fn=torch.nn.MSELoss(),
        seed=5, device="cpu",
        optim=torch.optim.AdamW(model.parameters(), lr=0.01), hooks=[Shrink(), Shift(), *hooks],
        **TOTALS[seed % 2],
        sched=lambda optim: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optim, 500),
        progress=False)


GOOD = (
    lambda draw: ("tune", {"lr": draw.choice([None, draw.uniform(1e-4, 0.02)])}),
    lambda draw: ("tune", {"lr_scale": draw.uniform(0.5, 1.5)}),
    lambda draw: ("tune", {"weight_decay": draw.uniform(0, 0.1)}),
    lambda draw: ("tune", {"grad_clip": draw.choice([None, draw.uniform(0.1, 2)])}),
    lambda draw: ("tune", {"gradient_accumulation_steps": draw.randint(1, 4)}),
    lambda draw: ("tune", {"mixed_precision": draw.choice([None, None, "bf16"])}),
    lambda draw: ("tune",
                  {"shrink.enabled": draw.random() < 0.7, "shrink.share": draw.uniform(0, 0.01)}),
    lambda draw: ("tune", {"shift.order": draw.randint(-5, 5)}),
    lambda draw: ("tune", {"eval_every": draw.choice([1, 2, 3, 5, 8])}),
    lambda draw: ("note", {"text": f"note {draw.random()}"}),
    lambda draw: ("watch", {"on": draw.random() < 0.5}),
    lambda draw: ("validate", {}) if draw.random() < 0.1 else ("note", {"text": "no evaluation"}),
    lambda draw: ("pause", {}) if draw.random() < 0.2 else ("resume", {}),
    lambda draw: ("resume", {}),
    lambda draw: ("resume", {}),
    lambda draw: ("step", {"n": draw.randint(1, 9)}) if draw.random() < 0.3 else ("resume", {}),
    lambda draw: ("rewind", {"step": draw.randint(0, 1000)})
    if draw.random() < 0.02 else ("resume", {}),
)
BAD = (
    ("tune", {"lr": -1.0}), ("tune", {"learning_rate": 0.1}),
    ("tune", {"lr": 0.01, "grad_clip": "much"}),
    ("tune", {"shrink.share": 2.0}), ("tune", {"mixed_precision": "fp8"}), ("note", {"text": 3}),
    ("fly", {}),
    ("step", {"n": 0}), ("rewind", {"step": -1}), ("watch", {"on": "yes"}),
    ("save", {"path": "no/such/folder/x.pt"}),
)


def weights(trainer):
    """Weights, and what the optimizer knows."""
    moments = [value for state in trainer.optim.state.values() for value in state.values()]
    return [value.clone() for value in (*trainer.model.state_dict().values(), *moments)]


@pytest.mark.parametrize("seed", range(STORMS))
def test_ten_thousand_commands_from_four_threads_and_the_replay(seed):
    made = []
    trainer = make(seed, SnapshotHook(every_epochs=20, memory="20MB"),
                   LambdaHook(after_step=lambda trainer: made.append(1)))
    answers, within = [], []
    def note_place(kind):
        if trainer.eval_batch is not None:
            if kind == "paused":
                within.append(trainer.eval_batch)
            elif not within:
                trainer.pause()
    trainer.at_safe_point = note_place
    def hammer(number):
        draw = random.Random(100 * seed + number)
        for _ in range(COUNT // THREADS):
            good = draw.random() < 0.85
            name, values = draw.choice(GOOD)(draw) if good else draw.choice(BAD)
            source = draw.choice(("code", "widget"))
            reply = trainer.post(Command(name, dict(values), source=source))
            answers.append((good, name, values, reply))
            # some wait for an answer, so that the run is somewhere else
            if name == "tune" and draw.random() < 0.02:
                reply.wait(1)
            if draw.random() < 0.2:  # bursts, and time for a few steps
                time.sleep(draw.uniform(0, 0.01))
    trainer.start()
    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not any(thread.is_alive() for thread in threads) and len(answers) == COUNT
    trainer.post(Command("rewind", {"step": 1000}))
    last = trainer.note("the end")
    end = time.monotonic() + 600
    # a pause may be in front of it, a busy machine makes few steps
    while last.status == "pending" or len(made) <= 100 or not within:
        assert time.monotonic() < end, "a deadlock"
        trainer.resume()
        time.sleep(0.01)
    trainer.stop().wait(600)
    result = trainer.wait(600)

    assert result.status == "stopped"
    assert len(made) > 100 and trainer.step_state.optimizer_step == result.steps
    open_ones = [(name, values) for _, name, values, reply in answers if reply.status == "pending"]
    assert not open_ones
    refused = [(name, reply.reason) for good, name, _, reply in answers
               if not good and reply.status != "refused"]
    assert not refused, "a wrong one was taken"
    statuses = {reply.status for good, name, _, reply in answers if good and name != "rewind"}
    assert statuses <= {"applied", "void"}, statuses  # void: a newer value of a slider
    tuned = sum(len(values) for good, name, values, reply in answers
                if name == "tune" and reply.status == "applied")
    kept = [entry for entry in trainer.journal if entry.kind == "tune"]
    assert COUNT // 10 < len(kept) <= tuned  # a value that is in force already is no change
    assert all(entry.old != entry.new for entry in kept)
    state = trainer.step_state
    assert 0 <= state.batch_idx <= 11 and state.window_batches == 0
    assert state.samples_seen == 44 * state.epoch + 4 * state.batch_idx
    numbers = [entry.number for entry in trainer.journal]
    assert numbers == list(range(1, len(numbers) + 1))
    assert any(entry.kind == "rewind" for entry in trainer.journal)
    assert within, "no pause within an evaluation"
    assert any(entry.name == "eval_every" for entry in kept)

    again = make(seed, SnapshotHook(every_epochs=20, memory="20MB"), ReplayHook(trainer.journal))
    assert again.fit().status == "stopped"
    assert again.step_state == state
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer), weights(again), strict=True))
