"""What a line of a log says: records, the times of a step, the time that is left;
and that it costs nothing between two lines."""

import re

import pytest
import torch
from sklearn.datasets import load_digits
from small_runs import HandClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import LambdaHook, ProgressHook, RecorderHook, SnapshotHook, Trainer
from trainer_nb.hooks.progress import as_seconds

PIXELS, LABELS = load_digits(return_X_y=True)
DATA = TensorDataset(torch.tensor(PIXELS[:320], dtype=torch.float32) / 16,
                     torch.tensor(LABELS[:320]))
VALID = DataLoader(DATA, 160)
CLOCK = HandClock()


@pytest.fixture(autouse=True)
def hand_clock(monkeypatch):
    """Let no time pass but that of hooks and loaders here, on a busy machine too."""
    return CLOCK.put_into(monkeypatch, "core.driver", "core.training", "core.runner",
                          "hooks.recorder", "hooks.progress")


def make(*hooks, every_steps=5, **settings):
    """Twenty steps an epoch."""
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    settings = {"train_dl": DataLoader(DATA, 16), "epochs": 1} | settings
    return Trainer(model, loss_fn=nn.CrossEntropyLoss(),
                   optim=torch.optim.SGD(model.parameters(), 0.1), device="cpu",
                   hooks=[ProgressHook(every_steps=every_steps, style="lines"), *hooks], **settings)


def lines(capsys):
    """Those that were printed, each with its step; not the one that says why a drive ended."""
    return [(int(re.search(r"step (\d+)", line)[1]), line)
            for line in capsys.readouterr().out.splitlines()
            if line.startswith("epoch")]


def clock(text):
    """Seconds of h:mm:ss or m:ss."""
    return sum(int(part) * 60**power for power, part in enumerate(reversed(text.split(":"))))


class SlowData:
    """A loader that waits before each batch."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 20

    def __iter__(self):
        for batch in DataLoader(DATA, 16):
            CLOCK.move(self.seconds)
            yield batch


def test_a_line_says_how_long_a_step_took_and_how_long_it_waited(capsys):
    """The means of the steps since the line before, as they are recorded;
    a second line at the same step says the same."""
    trainer = make(train_dl=SlowData(0.01), valid_dl=VALID)
    trainer.fit()
    step, data = trainer.history["time/step"], trainer.history["time/data"]
    found = lines(capsys)
    assert [number for number, _ in found] == [5, 10, 15, 20, 20]
    for number, line in found:
        since = slice(number - 5, number)
        assert (f"  time/step {as_seconds(step[since].mean())}  time/data "
                f"{as_seconds(data[since].mean())}  ") in line
    assert 0.01 <= data.mean() <= step.mean()


def test_a_drive_that_goes_on_begins_its_means_again(capsys):
    """What was before a stop is not a part of the first line after it."""
    trainer = make(LambdaHook(after_step=lambda t: t.stop()
                              if t.step_state.optimizer_step == 7 else None))
    trainer.fit()
    trainer.fit()
    step = trainer.history["time/step"]
    told = dict(lines(capsys))
    assert f"time/step {as_seconds(step[7:10].mean())} " in told[10]


def test_after_a_rewind_the_means_are_of_the_live_branch(capsys):
    """Also where the line before was at a later step."""
    trainer = make(SnapshotHook(every_steps=3), every_steps=4)
    trainer.step(14)
    trainer.rewind(6)
    capsys.readouterr()
    trainer.fit()
    step = trainer.history["time/step"]
    told = dict(lines(capsys))
    # of the last step: the line before was at step 12
    assert f"time/step {as_seconds(step[7])} " in told[8]
    assert f"time/step {as_seconds(step[8:12].mean())} " in told[12]


def test_the_slow_first_step_is_no_part_of_the_estimate(capsys):
    """Two thousand steps of a millisecond, after one of half a second:
    no half hour is left."""
    def once(trainer):
        if trainer.step_state.optimizer_step == 0:
            CLOCK.move(0.5)
        CLOCK.move(0.001)
    trainer = make(LambdaHook(before_step=once,
                              after_step=lambda t: t.stop()
                              if t.step_state.optimizer_step == 20 else None), epochs=100)
    trainer.fit()
    told = dict(lines(capsys))
    assert "eta" not in told[5] and "eta" not in told[10]
    assert 1 <= clock(re.search(r"eta ([\d:]+)", told[20])[1]) <= 2


def test_a_resumed_run_judges_by_its_own_steps(capsys):
    """The time of an earlier process, whatever it did, is not a part of it."""
    first = make()
    first.step(5)
    state = first.state_dict()
    state["position"]["seconds"] = 1000.0
    second = make(epochs=2)
    second.load_state_dict(state)
    second.fit()
    told = dict(lines(capsys))
    assert "eta" not in told[15] and clock(re.search(r"eta ([\d:]+)", told[20])[1]) < 10
    assert "  16:4" in told[20]


def test_the_gradient_norm_is_told_while_there_is_one(capsys):
    trainer = make(grad_clip=1.0)
    trainer.step(12)
    trainer.tune(grad_clip=None)
    trainer.fit()
    told = dict(lines(capsys))
    assert f"  grad_norm {trainer.history['grad_norm'][9]:.4f}  lr 0.1000  " in told[10]
    assert "grad_norm" not in told[15]
    assert f"train/loss {trainer.history['train/loss'][14]:.4f}" in told[15]


def test_what_a_line_leaves_out(capsys):
    """Without records the times stay; without a recorder there are none."""
    trainer = make()
    trainer.get_hook(ProgressHook).with_records = False
    trainer.fit()
    told = dict(lines(capsys))
    assert "train/loss" not in told[10] and "time/step" in told[10]
    make(record=False).fit()
    told = dict(lines(capsys))
    assert re.fullmatch(r"epoch 1/1  step 20/20  0:0\d  eta 0:00", told[20])


def test_between_two_lines_nothing_is_fetched():
    """What is recorded stays on the device until a line is due."""
    recorder = RecorderHook()
    seen = []
    trainer = make(recorder,
                   LambdaHook(order=95, after_step=lambda t: seen.append(len(recorder._rows))))
    trainer.driver.boundary.next_refresh = float("inf")  # the looks twice a second fetch too
    trainer.fit()
    assert seen == [1, 2, 3, 4, 0] * 4


@pytest.mark.parametrize("seconds, text",
                         [(0, "0 ms"), (4e-7, "0 ms"), (0.00031, "0.31 ms"), (0.25, "250 ms"),
                          (1.234, "1.23 s"), (75.23, "75.2 s"), (1234.5, "1234 s")])
def test_seconds_in_words(seconds, text):
    assert as_seconds(seconds) == text


@pytest.mark.parametrize("value", [-1, 2.5, None, True])
def test_a_bad_warm_up_is_refused(value):
    with pytest.raises(ValueError, match="eta_warmup="):
        ProgressHook(eta_warmup=value)
