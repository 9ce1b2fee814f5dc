"""Early stopping: what counts as better, where the run ends, that it counts on after a resume, a
rewind, a replay."""

import asyncio
import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import (CheckpointHook, EarlyStopHook, Hook, ReplayHook, SchedulerHook,
                        SnapshotHook, Trainer)
from trainer_nb.core.control import Command
from trainer_nb.core.state import RunState

pytestmark = pytest.mark.slow

STEPS = 6  # an epoch
NAN = math.nan


def make(*hooks, values=None, **settings):
    """Digits in 6 steps an epoch; `values`: what the metric "score" is after each epoch, the last
    one for ever."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16).float(), torch.tensor(labels))
    train, valid, _ = torch.utils.data.random_split(data, [300, 200, 1297])
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))
    box = []

    def score(pred, target):
        number = box[0].step_state.optimizer_step // STEPS - 1
        return values[min(number, len(values) - 1)]

    settings = {"epochs": 12, "seed": 1} | settings
    trainer = Trainer(model, train_dl=DataLoader(train, 50, shuffle=True),
                      valid_dl=DataLoader(valid, 200), loss_fn=nn.CrossEntropyLoss(),
                      optim=lambda p: torch.optim.AdamW(p, lr=0.01),
                      metrics={"score": score} if values else None, progress=False,
                      hooks=hooks, device="cpu", **settings)  # fmt: skip
    box.append(trainer)
    return trainer


def equal(a, b):
    """All weights, bit for bit."""
    return all(torch.equal(x, y)
               for x, y in zip(a.model.state_dict().values(), b.model.state_dict().values(),
                               strict=True))


@pytest.mark.parametrize(("values", "settings", "epochs"), [
    ([5, 4, 4, 4, 4], {"patience": 3}, 5),  # equal is no better
    ([5, 4, 4.5, 4.2, 3.9, 4, 4, 4], {"patience": 3}, 8),  # a better one begins again
    ([5, 4, 3], {"patience": 1}, 4),
    ([5, 4.95, 4.9, 4.85], {"patience": 3, "min_delta": 0.2}, 4),  # small steps are none
    # measured from the best, not from the last
    ([5, 4.95, 4.9, 4.75, 4.75], {"patience": 3, "min_delta": 0.2}, 7),
    ([1, 2, 3, 2, 2.5, 3], {"patience": 3, "mode": "max"}, 6),
    ([5, NAN, NAN, NAN], {"patience": 3}, 4),
    ([NAN, NAN], {"patience": 2}, 2),
    ([NAN, 5, NAN, 4, 4, 4], {"patience": 2}, 6),
])
def test_what_is_better(values, settings, epochs):
    """Stopped after the evaluation that was one too many, on a whole epoch."""
    stop = EarlyStopHook("valid/score", **settings)
    trainer = make(stop, values=values)
    result = trainer.fit()
    assert (result.status, result.epochs,
            result.steps) == (RunState.STOPPED, epochs, epochs * STEPS)
    assert "valid/score" in stop.reason and len(stop.since) == stop.patience


def test_it_counts_evaluations_not_steps():
    """Under max_steps the stop comes at the evaluation itself; evaluations by hand do not count."""
    class Look(Hook):
        def after_step(self, trainer):
            if trainer.step_state.optimizer_step % 5 == 0:
                trainer.validate()
    stop = EarlyStopHook("valid/score", patience=2)
    trainer = make(stop, Look(), values=[5, 4, 4, 4], max_steps=200, epochs=None, eval_every=4)
    result = trainer.fit()
    # after 4, 8 and 12 steps the score is 4 (the last of the list), 5, 4
    assert (result.status, result.steps, trainer.step_state.epoch) == (RunState.STOPPED, 12, 1)


def test_the_same_weights_are_judged_once():
    """Somebody asks for each evaluation once more:
    a second look at the same step is not a sign that nothing gets better."""
    class Again(Hook):
        asked = -1
        def after_valid(self, trainer):
            if self.asked != trainer.step_state.optimizer_step:
                self.asked = trainer.step_state.optimizer_step
                trainer.post(Command("validate"))
    stop = EarlyStopHook("valid/score", patience=2)
    trainer = make(stop, Again(), values=[5, 4, 3, 3, 2, 2.5, 2.25, 1])
    result = trainer.fit()
    assert (result.status, result.epochs, stop.since) == (RunState.STOPPED, 7, [2.5, 2.25])
    assert len(trainer.history["valid/score"]) == 14


def test_only_evaluations_are_judged():
    """Other records that are given out under the same name are none."""
    class Tell(Hook):
        def after_step(self, trainer):
            trainer.log({"valid/score": 9.0})
    trainer = make(EarlyStopHook("valid/score", patience=2), Tell(), values=[5, 4, 3, 2, 1, 1, 1])
    assert trainer.fit().epochs == 7


def test_the_reason_is_in_the_journal_and_nothing_else_changed():
    """A note with the values before the stop; the weights are those of a run of that length."""
    stop = EarlyStopHook("valid/score", patience=2)
    trainer = make(stop, values=[5, 4, 4.25, NAN])
    result = trainer.fit()
    note, ended = trainer.journal.entries
    assert (note.kind, note.new, ended.kind,
            ended.source) == ("note", stop.reason, "stop", "early_stop")
    assert stop.reason == ("early stop: valid/score 4.25, nan in 2 evaluations, none better than 4 "
                           "of step 12")
    straight = make(epochs=result.epochs)
    straight.fit()
    assert equal(trainer, straight)


def test_going_on_by_hand():
    """`fit()` with more epochs begins a new count, from the best value so far;
    the whole is the run that was never stopped."""
    stop = EarlyStopHook("valid/score", patience=2)
    trainer = make(stop, values=[5, 4, 4, 4, 4, 3, 3, 3, 3], epochs=6)
    assert trainer.fit().epochs == 4
    assert trainer.state is RunState.STOPPED and stop.reason is not None
    result = trainer.fit(epochs=7)
    assert (result.status, result.epochs) == (RunState.FINISHED, 7)
    assert stop.reason is None and stop.best == 3
    straight = make(epochs=7)
    straight.fit()
    assert equal(trainer, straight)


@pytest.mark.parametrize("length",
                         [{"epochs": 12}, {"epochs": None, "max_steps": 72, "eval_every": STEPS}])
@pytest.mark.parametrize("verb", ["fit", "start", "fit_async"])
def test_started_again_it_has_ended(verb, length):
    """The same totals, or fewer: nothing is trained, one line says why, and the state is that of
    the end."""
    stop = EarlyStopHook("valid/score", patience=2)
    trainer = make(stop, values=[5, 4], **length)
    totals = {name: number for name, number in length.items() if name != "eval_every"}
    first, journal, reason = trainer.fit(), len(trainer.journal.entries), stop.reason
    assert (first.status, first.steps) == (RunState.STOPPED, 24)
    before = trainer.state_dict()["model"]
    def again(**given):
        found = getattr(trainer, verb)(**given)
        return (asyncio.run(found) if verb == "fit_async" else trainer.wait()
                if verb == "start" else found)
    for given in ({}, totals,
                  {name: number and number // 2 + 1 for name, number in totals.items()}):
        with pytest.warns(UserWarning) as told:
            result = again(**given)
        assert (result.status, result.steps, trainer.state,
                stop.reason) == (RunState.STOPPED, 24, RunState.STOPPED, reason)
        text, = [str(each.message) for each in told]
        assert reason in text and ("epochs=13" in text or "max_steps=73" in text)
        assert all(torch.equal(before[name], value)
                   for name, value in trainer.model.state_dict().items())
    assert [each.kind for each in trainer.journal.entries[journal:]] == ["totals"]  # the fewer ones
    # a count of two, and no more
    assert again(**{name: number and 2 * number for name, number in totals.items()}).steps == 36
    with pytest.warns(UserWarning, match="ended early"):
        assert again().steps == 36


@pytest.mark.parametrize("by", ["save", "checkpoint"])
def test_resumed_at_its_end_it_has_ended(tmp_path, by):
    """A script that is started again returns at once;
    with more epochs it goes on with the best value of before."""
    values = [5, 4, 4, 4, 4, 4, 4, 4]
    def run(**settings):
        hooks = [CheckpointHook(tmp_path / "kept")] if by == "checkpoint" else []
        trainer = make(EarlyStopHook("valid/score", patience=2), *hooks, values=values, **settings)
        if by == "save" and (tmp_path / "run.pt").exists():
            trainer.load(tmp_path / "run.pt")
        return trainer
    first = run()
    first.fit()
    if by == "save":
        first.save(tmp_path / "run.pt")
    again = run()
    with pytest.warns(UserWarning, match="ended early at step 24"):
        result = again.fit()
    assert (result.status, result.epochs, result.steps) == (RunState.STOPPED, 4, 24)
    assert equal(again, first)
    more = run(epochs=20)
    assert (more.fit().steps, more.get_hook(EarlyStopHook).best_step) == (36, 12)


def test_what_goes_on_all_the_same():
    """A step by hand, `resume()`, more patience, the switch: each is a word of its own."""
    def ended():
        trainer = make(EarlyStopHook("valid/score", patience=2), values=[5, 4], epochs=9)
        trainer.fit()
        return trainer
    trainer = ended()
    assert trainer.step(1).steps == 25
    assert trainer.fit().steps == 36  # from there on it is not where it had ended
    trainer = ended()
    trainer.resume()
    assert trainer.wait().steps == 36
    trainer = ended()
    trainer.tune(**{"early_stop.patience": 3})
    assert trainer.fit().steps > 24
    trainer = ended()
    trainer.hooks.remove(trainer.get_hook(EarlyStopHook))
    assert trainer.fit().status is RunState.FINISHED


def test_a_state_from_before_the_totals_were_kept():
    """Of an older file: it loads, and the run goes on as it did then."""
    first = make(EarlyStopHook("valid/score", patience=2), values=[5, 4])
    first.fit()
    state = first.state_dict()
    assert state["hooks"]["early_stop"].pop("totals") == (12, None)
    second = make(EarlyStopHook("valid/score", patience=2), values=[5, 4])
    second.load_state_dict(state)
    assert second.fit().steps == 36


def test_patience_is_tuned_and_the_switch():
    """More patience for a run that is under way; switched off it never stops."""
    stop = EarlyStopHook("valid/score", patience=1)
    trainer = make(stop, values=[5, 4, 4, 4, 4], epochs=8)
    trainer.step(2 * STEPS + 1)
    trainer.tune(**{"early_stop.patience": 3})
    assert trainer.fit().epochs == 5
    trainer.tune(**{"early_stop.enabled": False})
    assert trainer.fit().status is RunState.FINISHED


@pytest.mark.parametrize("at", [3, 2 * STEPS, 2 * STEPS + 3, 3 * STEPS, 3 * STEPS + 1])
def test_resumed_it_counts_on(tmp_path, at):
    """Saved anywhere and loaded into another process's trainer: the same end."""
    values = [5, 4, 4.5, 4.25, 4.125]
    straight = make(EarlyStopHook("valid/score"), values=values)
    straight.fit()
    first = make(EarlyStopHook("valid/score"), values=values)
    first.step(at)
    first.save(tmp_path / "run.pt")
    second = make(EarlyStopHook("valid/score"), values=values)
    second.load(tmp_path / "run.pt")
    assert second.fit().epochs == 5 and equal(second, straight)
    mine, theirs = second.get_hook(EarlyStopHook), straight.get_hook(EarlyStopHook)
    assert mine.since == theirs.since == [4.5, 4.25, 4.125]
    assert mine.reason == theirs.reason and mine.best_step == 2 * STEPS


def test_saved_between_the_last_evaluation_and_the_stop(tmp_path):
    """The state there says that the stop is due: what is resumed from it ends at once."""
    class Save(Hook):
        def on_log(self, trainer, records):
            trainer.ask(lambda: trainer.save(tmp_path / f"{trainer.step_state.optimizer_step}.pt"))
    values = [5, 4, 4, 4]
    straight = make(EarlyStopHook("valid/score", patience=2), Save(), values=values)
    assert straight.fit().steps == 24
    resumed = make(EarlyStopHook("valid/score", patience=2), values=values)
    resumed.load(tmp_path / "24.pt")
    result = resumed.fit()
    assert (result.steps, result.epochs) == (24, 4) and equal(resumed, straight)


def test_the_checkpoint_at_its_end(tmp_path):
    """The end is in the folder of the checkpoints, with the epoch counted;
    a script that wants more goes on from it with a new count."""
    values = [5, 4, 4, 4, 4, 4, 4]
    def run(epochs):
        return make(EarlyStopHook("valid/score", patience=2),
                    CheckpointHook(tmp_path, resume="latest"), values=values, epochs=epochs)
    assert run(12).fit().epochs == 4
    again = run(13)
    assert again.fit().epochs == 6 and again.step_state.optimizer_step == 36


def test_a_pause_at_the_same_boundary():
    """The stop is heard in the pause, it is not lost."""
    class Pause(Hook):
        order = -1
        def on_log(self, trainer, records):
            if trainer.step_state.optimizer_step == 24:
                trainer.pause()
    trainer = make(EarlyStopHook("valid/score", patience=3), Pause(), values=[5], max_steps=90,
                   epochs=None, eval_every=6)
    assert (trainer.fit().status, trainer.step_state.optimizer_step) == (RunState.STOPPED, 24)


def test_evaluations_rarer_than_epochs(tmp_path):
    """Taken up at its end the run goes on to the next evaluations, not to the next epoch."""
    values = [5, 4, 4, 4, 4, 4, 4, 4]
    def run(epochs):
        return make(EarlyStopHook("valid/score", patience=1),
                    CheckpointHook(tmp_path, resume="latest"), values=values, eval_every=2,
                    epochs=epochs)
    assert [run(12).fit().epochs, run(14).fit().epochs] == [4, 6]


def test_rewound():
    """The count goes back with the weights."""
    stop = EarlyStopHook("valid/score", patience=3)
    trainer = make(stop, SnapshotHook(), values=[5, 4, 4.5, 4.25, 4.125])
    trainer.fit()
    trainer.rewind(2 * STEPS)
    assert (stop.since, stop.reason, stop.best) == ([], None, 4)
    assert trainer.fit().epochs == 5


@pytest.mark.parametrize("with_hook", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
def test_replayed(tmp_path, with_hook, goes_on):
    """The same weights from the journal, with the hook or without, also where the user went on
    after the stop."""
    values = [5, 4, 4, 4, 4, 4, 4, 4]
    trainer = make(EarlyStopHook("valid/score", patience=2), values=values, epochs=7)
    trainer.step(7)
    trainer.tune(lr=0.02)
    trainer.fit()
    assert trainer.step_state.epoch == 4
    if goes_on:
        trainer.fit(epochs=9)
        assert (trainer.state, trainer.step_state.epoch) == (RunState.STOPPED, 6)
    trainer.journal.save(tmp_path / "journal.jsonl")
    hooks = [ReplayHook(tmp_path / "journal.jsonl"),
             *([EarlyStopHook("valid/score", patience=2)] if with_hook else [])]
    replayed = make(*hooks, values=values, epochs=7)
    result = replayed.fit()
    assert (result.status, result.epochs) == (RunState.STOPPED, trainer.step_state.epoch)
    assert equal(replayed, trainer)
    def notes(run):
        return [entry.new for entry in run.journal if entry.kind == "note"]
    assert notes(replayed) == notes(trainer)
    if with_hook and not goes_on:  # past its end the journal leads no more
        replayed.fit(epochs=9)
        assert (replayed.state, replayed.step_state.epoch) == (RunState.STOPPED, 6)


@pytest.mark.parametrize(("name", "error"), [
    ("valid/scor", "did you mean 'valid/score'"), ("test/loss", "valid/loss, valid/score"),
    ("quux", "There are valid/loss, valid/score")])
def test_a_name_that_no_evaluation_has(name, error):
    """Found at the first evaluation, with the nearest name."""
    trainer = make(EarlyStopHook(name), values=[1])
    with pytest.raises(ValueError, match=error):
        trainer.fit()
    assert trainer.step_state.optimizer_step == STEPS


def test_bad_settings():
    """Refused at once."""
    with pytest.raises(ValueError, match="mode='lower'"):
        EarlyStopHook(mode="lower")
    with pytest.raises(ValueError, match="min_delta=-1"):
        EarlyStopHook(min_delta=-1)
    with pytest.raises(ValueError, match="patience = 0"):
        EarlyStopHook(patience=0)
    trainer = make(EarlyStopHook())
    trainer.evaluator.loaders = {}
    with pytest.raises(ValueError, match="there is no valid_dl"):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 0


def test_a_record_that_is_gone_for_a_while():
    """The average's record is not there while `ema.eval` says raw:
    nothing is judged, nothing fails."""
    stop = EarlyStopHook("valid_ema/loss")
    trainer = make(stop, ema=0.9)
    trainer.tune(**{"ema.eval": "both"})
    trainer.step(STEPS + 1)
    best = stop.best
    trainer.tune(**{"ema.eval": "raw"})
    trainer.step(STEPS)
    assert best is not None and (stop.best, stop.since) == (best, [])


def test_the_mean_of_an_epoch_is_that_of_its_samples():
    """A last batch of two counts as two; a plateau gets the same."""
    x, y, seen = torch.ones(10, 1), torch.zeros(10, 1), []
    y[8:] = 5.0

    class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, value, *more):
            seen.append(float(value))
            return super().step(value, *more)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    hook = EarlyStopHook("train/loss", patience=5)
    Trainer(model, train_dl=DataLoader(TensorDataset(x, y), 8), loss_fn=nn.MSELoss(), epochs=2,
            device="cpu", progress=False, hooks=[hook],
            optim=lambda parameters: torch.optim.SGD(parameters, 0.0),
            sched=SchedulerHook(Plateau, metric="train/loss")).fit()
    assert hook.best == pytest.approx(nn.functional.mse_loss(x, y).item()) == 4.0
    assert seen == pytest.approx([4.0, 4.0])
