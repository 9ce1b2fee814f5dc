"""What the published trainers promise in tables and tests of their own, said in our words.

Rows that stand elsewhere: means of keys in test_key_average.py; accumulated batches against one
batch in test_window.py and test_equal_to_by_hand.py; retention by our own rules in
test_checkpoint_files.py::test_which_files_stay; rates under every scheduler in test_schedule.py;
windows skipped in a row in test_precision.py::test_non_finite_skip_n_counts_windows_in_a_row;
chunks of nested batches in test_data.py; a checkpoint in mid-epoch that takes the next batch in
test_exact.py.
"""

import copy

import pytest
import torch
from torch import nn
from trainer_nb import CheckpointHook, Hook, LambdaHook, NonFiniteError, Trainer
from trainer_nb.core.data import batch_size


def make(batches, *hooks, lr=0.0, **settings):
    """y = 3x, where 2x would be right."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    settings = {"epochs": 1, "loss_fn": nn.MSELoss(),
                "optim": torch.optim.SGD(model.parameters(), lr=lr)} | settings
    return Trainer(model, train_dl=batches, hooks=hooks, device="cpu", progress=False, **settings)


def pairs(*sizes):
    """Batches of (x, 2x) with x = 1, 2, 3 ..."""
    x = torch.arange(1.0, sum(sizes) + 1)[:, None]
    return list(zip(x.split(list(sizes)), (2 * x).split(list(sizes))))


# ---- trainloop's CheckpointingHook(interval, keep_previous, keep_interval, keep_steps)
# interval=I is every_steps=I, every_epochs=None. keep_previous=N counts the checkpoints beside the
# latest one: keep_last=N + 1. keep_interval
# and keep_steps are saved *and* kept, in between as well: both are keep_every, a number or a list;
# where both are given, a list of all of them.


def in_our_words(folder, interval, previous=0, every=0, steps=(), end=0):
    """The same rules for our hook."""
    marked = (sorted({*steps, *(range(every, end + 1, every) if every and steps else ())}) or every
              or None)
    return CheckpointHook(folder, every_steps=interval, every_epochs=None, keep_last=previous + 1,
                          keep_every=marked)


@pytest.mark.parametrize(("rules", "end", "kept"), [
    ({"interval": 2}, 10, [10]), ({"interval": 3}, 10, [10]),
    ({"interval": 2, "previous": 1}, 10, [8, 10]),
    ({"interval": 3, "previous": 1}, 10, [9, 10]), ({"interval": 3, "previous": 2}, 10, [6, 9, 10]),
    ({"interval": 3, "previous": 9}, 10, [3, 6, 9, 10]),
    ({"interval": 3, "every": 4}, 10, [4, 8, 10]),
    ({"interval": 3, "previous": 1, "every": 4}, 10, [4, 8, 9, 10]),
    ({"interval": 100, "every": 4}, 10, [4, 8, 10]),
    ({"interval": 4, "steps": [5]}, 10, [5, 10]),
    ({"interval": 4, "previous": 1, "steps": [1, 5]}, 10, [1, 5, 8, 10]),
    ({"interval": 4, "steps": [3, 50]}, 10, [3, 10]),
    ({"interval": 5, "every": 4, "steps": [3]}, 10, [3, 4, 8, 10]),
    ({"interval": 2, "every": 2}, 6, [2, 4, 6]),
    ({"interval": 6, "previous": 2, "every": 3}, 12, [3, 6, 9, 12])], ids=str)
def test_retention(rules, end, kept, tmp_path):
    """Which steps are on the disk at the end."""
    hook = in_our_words(tmp_path, **rules, end=end)
    make(pairs(1, 1), hook, epochs=None, max_steps=end).fit()
    assert [each.step for each in hook.folder.kept()] == kept
    assert sorted(path.name
                  for path in tmp_path.glob("*.pt")) == [f"step_{step:08d}.pt" for step in kept]


# ---- trainloop's max_non_finite_grad_retries
# There, a step whose gradients are not finite is tried again on the batches that come next, at most
# N times, and None means without end;
# here such a window is left out: non_finite="skip:N", "skip". Neither counts as a step. What
# differs: here an epoch is an epoch, so that under
# epochs= a window left out is a step less, and one without a single step ends the run under
# max_steps=; with mixed_precision="fp16" both leave it to the loss scaler.


@pytest.mark.parametrize(("retries", "bad", "passes"), [
    (None, [1, 2, 3, 4, 5], True), (0, [], True), (0, [2], False), (1, [2], True),
    (1, [2, 3], False), (1, [1, 3, 5], True),
    (2, [2, 3], True), (2, [2, 3, 4], False), (2, [0, 1, 3, 4], True)], ids=str)
@pytest.mark.parametrize("size", [1, 2])
def test_retries(retries, bad, passes, size):
    """That many windows in a row may be bad; a good one begins the count again.
    All steps asked for are made."""
    windows = []
    def spoil(trainer):
        if trainer.runner.window.batches == 0:
            windows.append(len(windows))
        if windows[-1] in bad and trainer.runner.window.batches == size - 1:
            trainer.loss = trainer.loss * float("nan")
    policy = "skip" if retries is None else f"skip:{retries}"
    trainer = make(pairs(*[1] * 12), LambdaHook(after_loss=spoil), lr=1e-4, non_finite=policy,
                   epochs=None, max_steps=6, gradient_accumulation_steps=size)
    if not passes:
        with pytest.raises(NonFiniteError, match=f"{retries + 1} windows in a row"):
            trainer.fit()
        return
    assert trainer.fit().steps == 6 and len(windows) == 6 + len(bad)
    assert trainer.model.weight.isfinite().all()


# ---- the rate is recorded as it was used (trainloop, trainer_tools)


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_the_rate_is_recorded_before_the_scheduler_moves_it(every):
    """Beside each loss stands the rate of that very step;
    a scheduler's hook may run before or after the recorder."""
    from trainer_nb import SchedulerHook
    used = []
    class Rate(Hook):
        def before_step(self, trainer):
            used.append(trainer.rate)
    for order in (None, -50):
        used.clear()
        hook = SchedulerHook(lambda optim: torch.optim.lr_scheduler.StepLR(optim, 1, 0.5),
                             every=every)
        if order is not None and every == "epoch":
            hook.order = order
        trainer = make(pairs(1, 1, 1), Rate(), lr=0.8, sched=hook, epochs=2)
        trainer.fit()
        halved = [0.8 * 0.5 ** (step if every == "step" else step // 3) for step in range(6)]
        assert trainer.history["lr"].tolist() == pytest.approx(halved) == used


# ---- PyMarlin's train_step_batch_size: 10 samples with a limit of 4


@pytest.mark.parametrize(("samples", "limit", "sizes"), [
    (10, 4, [4, 3, 3]), (10, 5, [5, 5]), (10, 10, [10]), (10, 11, [10]), (10, 3, [3, 3, 2, 2]),
    (1, 4, [1]), (7, 1, [1] * 7), (9, 4, [3, 3, 3])])
def test_no_sample_is_lost(samples, limit, sizes):
    """The step sees each sample once, in chunks that fit;
    the weights are those of the whole batch."""
    seen = []
    def step(batch, trainer):
        seen.append(batch[0].flatten().tolist())
        return {"loss": nn.functional.mse_loss(trainer.model(batch[0]), batch[1])}
    batches = [tuple(each.double() for each in pair) for pair in pairs(samples)]
    whole, split = (make(batches, lr=1e-3, loss_fn=None, train_step=step) for _ in range(2))
    split.micro_batch_size = limit
    for trainer in (whole, split):
        trainer.model.double()
        seen.clear()
        trainer.fit()
    assert sorted(map(len, seen), reverse=True) == sizes
    assert sorted(sum(seen, [])) == [float(n) for n in range(1, samples + 1)]
    assert torch.allclose(whole.model.weight, split.model.weight, rtol=1e-12)
    assert split.step_state.samples_seen == samples and split.step_state.optimizer_step == 1


# ---- trainer_tools: the loss of y = 3x against 2x is the mean of x squared


@pytest.mark.parametrize(("sizes", "steps", "mean"), [
    ((2, 2), [2.5, 12.5], 7.5), ((2, 2, 1), [2.5, 12.5, 25.0], 11.0), ((3, 1), [14 / 3, 16.0], 7.5),
    ((1, 4), [1.0, 13.5], 11.0)], ids=str)
def test_mean_squared_errors(sizes, steps, mean):
    """Each step's own mean, and over uneven batches the mean of all samples, not of the batches'
    means."""
    batches = pairs(*sizes)
    trainer = make(batches, valid_dl=batches,
                   metrics={"square": lambda pred, target: (pred - target).square().mean()})
    trainer.fit()
    assert trainer.history["train/loss"].tolist() == pytest.approx(steps)
    assert trainer.history["valid/loss"].tolist() == pytest.approx([mean])
    assert trainer.history["valid/square"].tolist() == pytest.approx([mean])
    joined = make(batches, gradient_accumulation_steps=len(sizes))
    joined.fit()
    assert joined.history["train/loss"].tolist() == pytest.approx([mean])


def test_a_checkpoint_is_of_its_step(tmp_path):
    """trainer_tools: the weights in a periodic checkpoint are those right after that step."""
    after = {}
    def note(trainer):
        after[trainer.step_state.optimizer_step] = copy.deepcopy(trainer.model.state_dict())
    trainer = make(pairs(1, 1, 1, 1), LambdaHook(order=-500, after_step=note),
                   CheckpointHook(tmp_path, every_steps=1, keep_last=None), lr=0.01)
    trainer.fit()
    for step, weights in after.items():
        state = torch.load(tmp_path / f"step_{step:08d}.pt", weights_only=True)
        assert torch.equal(state["model"]["weight"], weights["weight"])
        assert state["position"]["optimizer_step"] == step
    assert len(after) == 4 and batch_size(trainer.batch) == 1


# ---- PyMarlin's max_train_steps_per_epoch and max_val_steps_per_epoch


@pytest.mark.parametrize("accumulation", [1, 2])
def test_steps_of_an_epoch_are_exact(accumulation):
    """So many steps of training and batches of each evaluation, each with a limit of its own, and
    that many are announced."""
    seen = []
    trainer = make(pairs(*[1] * 9), LambdaHook(before_batch=lambda t: seen.append(t.split)),
                   valid_dl=pairs(*[1] * 9), epochs=2,
                   gradient_accumulation_steps=accumulation,
                   limit_batches={"train": 3 * accumulation, "valid": 4, "test": 5})
    assert (trainer.steps_per_epoch, trainer.planned_steps) == (3, 6)
    assert trainer.fit().steps == 6
    trainer.test(pairs(*[1] * 9))
    assert [seen.count(split) for split in ("train", "valid", "test")] == [6 * accumulation, 8, 5]


# ---- trainloop and mini.trainer: trainer.log of nested records


def test_nested_records_are_given_out_by_joined_names():
    """As those that a step returns; listeners get numbers, and a flat dict is handed on as
    it is."""
    got = []
    trainer = make(pairs(1, 1), LambdaHook(on_log=lambda trainer, records: got.append(records)))
    trainer.fit()
    flat = {"speed": 2.0}
    trainer.log(flat)
    trainer.log({"error": {"border": 1.0, "middle": {"left": torch.tensor(3.0)}}, "count": 4})
    assert got[0] is flat and got[1] == {"error/border": 1.0, "error/middle/left": 3.0, "count": 4}
    assert trainer.history["error/middle/left"].tolist() == [3.0]
    assert trainer.result().last["error/border"] == 1.0
    with pytest.raises(TypeError, match="the record 'error/all' is not one number"):
        trainer.log({"error": {"all": torch.ones(3)}})
