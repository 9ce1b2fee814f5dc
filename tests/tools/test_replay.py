"""A journal replayed: to the same weights wherever a setting was changed, and refused where the two
runs part."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import Hook, ReplayHook, SnapshotHook, Trainer
from trainer_nb.core.control import Command


class Once(Hook):
    """Asks once for something in the middle of an evaluation: the one that comes at a step."""

    kept = False

    def __init__(self, ask, step):
        self.ask, self.step = ask, step

    def after_batch(self, trainer):
        """In the first batch of it."""
        if not trainer.training and self.ask and trainer.step_state.optimizer_step == self.step:
            ask, self.ask = self.ask, None
            getattr(trainer, ask)()


def make(*hooks, **settings):
    """Eight steps an epoch, dropout, shuffled; an evaluation of three batches."""
    torch.manual_seed(0)
    inputs = torch.randn(32, 3)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(),
                                torch.nn.Linear(8, 1))
    settings = {"optim": torch.optim.AdamW(model.parameters(), lr=0.01)} | settings
    return Trainer(model, train_dl=DataLoader(data, 4, shuffle=True), valid_dl=DataLoader(data, 12),
                   loss_fn=torch.nn.MSELoss(),
                   seed=3, device="cpu", hooks=hooks, progress=False, **settings)


def same(one, other):
    """The two runs stand at the same place, after the same boundaries, with the same weights."""
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return (one.step_state == other.step_state
            and one.step_state.boundary == other.step_state.boundary
            and all(torch.equal(a, b) for a, b in pairs))


def acts(trainer):
    """What was done, and where."""
    kinds = ("tune", "validate", "totals")
    return [(each.name, each.new, each.boundary, each.step, each.epoch, each.batch_idx)
            for each in trainer.journal if each.kind in kinds]


def evaluated(trainer):
    """The steps that were evaluated."""
    return [int(step) for step in trainer.history.steps("valid/loss")]


UNITS = [({"max_steps": 24, "eval_every": 4}, 4), ({"max_steps": 24}, 8), ({"epochs": 3}, 8)]


@pytest.mark.parametrize("ask", ["pause", "stop"])
@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize(("settings", "at"), UNITS)
def test_eval_every_tuned_within_an_evaluation(settings, at, every, ask):
    """The evaluation is decided by the setting in force, live and in the replay;
    what follows acts at its own place."""
    trainer = make(Once(ask, at), **settings)
    trainer.fit()
    assert trainer.step_state.optimizer_step == at and trainer.position().phase == "valid"
    trainer.tune(eval_every=every)
    trainer.step(2)
    trainer.tune(lr_scale=0.1)
    trainer.step(5)
    trainer.tune(lr_scale=2.0)
    trainer.fit()
    again = make(ReplayHook(trainer.journal), **settings)
    again.fit()
    assert same(trainer, again) and acts(trainer) == acts(again)
    assert evaluated(trainer) == evaluated(again)
    assert (at in evaluated(trainer)) == ("epochs" not in settings and at % every == 0)


@pytest.mark.parametrize(("settings", "at"), UNITS)
@pytest.mark.parametrize("commands", [["tune", "validate"], ["validate", "tune"]])
def test_an_evaluation_that_was_asked_for_comes(settings, at, commands):
    """Whatever `eval_every` says, in a pause within another evaluation;
    once, live and in the replay."""
    trainer = make(Once("pause", at), **settings)
    values = {"tune": {"eval_every": 7}, "validate": {}}
    waiting = list(commands)
    def hand(kind):
        if kind == "paused":
            for name in waiting:
                trainer.post(Command(name, values[name]))
            waiting.clear()
            trainer.post(Command("resume"))
    trainer.driver.status.front_end, trainer.at_safe_point = True, hand
    trainer.fit()
    assert [each.name
            for each in trainer.journal][1:3] == [{"tune": "eval_every"}.get(name, name)
                                                  for name in commands]
    again = make(ReplayHook(trainer.journal), **settings)
    again.fit()
    assert same(trainer, again) and acts(trainer) == acts(again)
    assert evaluated(trainer) == evaluated(again) and evaluated(trainer).count(at) == 1


@pytest.mark.parametrize(("settings", "at"), UNITS)
def test_stopped_within_an_evaluation_and_nothing_changed(settings, at):
    """It is the run that was not stopped: the evaluation is made, and no boundary comes or goes."""
    trainer, straight = make(Once("stop", at), **settings), make(**settings)
    trainer.fit()
    trainer.fit()
    straight.fit()
    assert same(trainer, straight) and evaluated(trainer) == evaluated(straight)


def test_saved_within_an_evaluation_and_tuned_in_another_trainer(tmp_path):
    """What the file says of the place is enough:
    an evaluation by the settings, or one that was asked for."""
    settings = {"max_steps": 24, "eval_every": 4}
    for asked in (False, True):
        trainer = make(Once("stop", 3 if asked else 4), **settings)
        trainer.at_safe_point = lambda kind: (asked and trainer.step_state.boundary == 4
                                              and trainer.step_state.optimizer_step == 3
                                              and kind == "boundary"
                                              and trainer.post(Command("validate", {})))
        trainer.fit()
        assert trainer.position().phase == "valid"
        trainer.save(tmp_path / f"{asked}.pt")
        other = make(**settings)
        other.load(tmp_path / f"{asked}.pt")
        other.tune(eval_every=7)
        other.fit()
        again = make(ReplayHook(other.journal), **settings)
        again.fit()
        assert same(other, again) and evaluated(other) == evaluated(again)
        assert evaluated(other)[0] == (3 if asked else 7)


@pytest.mark.parametrize("name", ["step", "epoch", "batch_idx"])
def test_an_entry_of_another_place_is_refused(name, tmp_path):
    """The replay ends there with an error that names entry and places, and does not go on without
    what is left."""
    trainer = make(max_steps=24)
    trainer.tune(lr_scale=0.5)
    trainer.step(10)
    trainer.tune(lr_scale=2.0)
    trainer.step(3)
    trainer.tune(grad_clip=1.0)
    trainer.fit()
    entry = trainer.journal.entries[1]
    setattr(entry, name, getattr(entry, name) + 1)
    trainer.journal.save(tmp_path / "journal.jsonl")
    again = make(ReplayHook(tmp_path / "journal.jsonl"), max_steps=24)
    for _ in range(2):
        with pytest.raises(ValueError,
                           match="has diverged from its journal: entry 2 .*lr_scale 0.5 → 2 .*this "
                                 "run stands at step 10, epoch 2, 2 batches"):
            again.fit()
        assert again.step_state.optimizer_step == 10
        assert [each.new for each in again.journal] == [0.5]


def test_a_run_that_goes_another_way_is_refused():
    """Evaluations at other steps: the boundaries are others, and the first entry after one says
    so."""
    trainer = make(max_steps=24, eval_every=4)
    trainer.step(6)
    trainer.tune(lr_scale=2.0)
    trainer.fit()
    again = make(ReplayHook(trainer.journal), max_steps=24, eval_every=20)
    with pytest.raises(ValueError, match="made at step 6, .*this run stands at step 7"):
        again.fit()


class Spoiled(Hook):
    """Fails at one batch of an epoch, once."""

    kept = False

    def __init__(self):
        self.on = True

    def before_batch(self, trainer):
        """The sixth batch of the second epoch."""
        state = trainer.step_state
        if self.on and trainer.training and (state.epoch, state.batch_idx) == (1, 5):
            self.on = False
            raise ArithmeticError("planted")


@pytest.mark.parametrize("other", [{"epochs": 5}, {"max_steps": 24}])
def test_a_run_of_another_length_is_refused(other):
    """One of the length that the run got on its way is not."""
    trainer = make(epochs=2)
    trainer.fit()
    trainer.fit(epochs=3)
    with pytest.raises(ValueError, match=r"it was to have 3 epochs, this one (5 epochs|24 steps)"):
        make(ReplayHook(trainer.journal), **other).fit()
    again = make(ReplayHook(trainer.journal), epochs=3)
    again.fit()
    assert same(again, trainer)


def test_a_batch_that_was_left_out_is_left_out_again():
    """The very batch, whatever its text counts from."""
    trainer = make(Spoiled(), epochs=3)
    with pytest.raises(ArithmeticError):
        trainer.fit()
    trainer.fit(skip_failed=True)
    again = make(ReplayHook(trainer.journal), epochs=3)
    again.fit()
    assert again.data.skipped_batches == trainer.data.skipped_batches == {1: {5}}
    assert same(trainer, again)


@pytest.mark.parametrize("own", [{"epochs": 3}, {"epochs": 4}])
def test_totals_made_larger_and_then_a_rewind_to_before(own):
    """The totals stay, and the journal says so: it replays, to the same weights."""
    trainer = make(SnapshotHook(every_steps=2), epochs=3)
    trainer.step(10)
    trainer.checkpoint.set_totals(4, None, trainer)
    trainer.step(2)
    trainer.rewind(4)
    result = trainer.fit()
    assert result.epochs == 4 and [str(each) for each in trainer.journal][-2:] == [
        "step 4: rewind 12 → 4 (code)", "step 4: totals 3 epochs → 4 epochs (code)"]
    again = make(ReplayHook(trainer.journal), **own)
    assert again.fit().epochs == 4 and same(trainer, again)


def test_a_rewind_to_after_the_totals_were_set_tells_nothing_twice():
    trainer = make(SnapshotHook(every_steps=2), epochs=3)
    trainer.step(3)
    trainer.checkpoint.set_totals(4, None, trainer)
    trainer.step(5)
    trainer.rewind(6)
    assert sum(each.kind == "totals" for each in trainer.journal) == 1


def test_totals_of_a_run_that_has_begun_and_made_no_boundary():
    """It failed before its first one, and is told to be longer:
    what the journal says at its head is that."""
    class Fails(Hook):
        kept = False
        on = True
        def before_epoch(self, trainer):
            if self.on:
                self.on = False
                raise ArithmeticError("planted")
    trainer = make(Fails(), epochs=2)
    with pytest.raises(ArithmeticError):
        trainer.fit()
    trainer.fit(epochs=3)
    again = make(ReplayHook(trainer.journal), epochs=3)
    assert again.fit().epochs == 3 and same(trainer, again)
