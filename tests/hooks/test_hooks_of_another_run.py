"""A hook keeps values of its run, so it takes part in one alone; and a run that was loaded goes
back to its own past only."""

import warnings

import pytest
import torch
from small_runs import make

from trainer_nb import (AlertsHook, CheckpointHook, EarlyStopHook, EMAHook, Hook, LambdaHook,
                        LayerGroupsHook, ReplayHook, SamplesHook, SnapshotHook)

AGAIN = "has taken part in another run"


class Own(EarlyStopHook):
    """A kind of one's own of a hook that keeps values."""


@pytest.mark.parametrize("made", [
    SnapshotHook, EMAHook, AlertsHook, SamplesHook, lambda: EarlyStopHook("train/loss"),
    lambda: Own("train/loss")])
def test_a_hook_that_has_taken_part_in_a_run_is_refused_by_another(made):
    """A cell that makes the trainer is run twice, and the one that makes the hook is not."""
    hook = made()
    make(hooks=[hook]).step(2)
    with pytest.raises(ValueError, match=AGAIN):
        make(hooks=[hook])
    other = make()
    with pytest.raises(ValueError, match=AGAIN):
        other.hooks.add(hook)
    assert other.step(2).steps == 2


def test_whoever_runs_first_has_the_hook():
    hook = SnapshotHook()
    first, second = make(hooks=[hook]), make(hooks=[hook])
    second.step(2)
    with pytest.raises(ValueError, match=AGAIN):
        first.step()
    assert first.step_state.boundary == 0 and second.step(2).steps == 4
    second.hooks.remove(hook)
    second.step()
    second.hooks.add(hook)
    assert second.step().steps == 6


def test_a_hook_that_joins_later_is_taken_too_and_one_that_never_ran_is_free():
    late, unused = SnapshotHook(), SnapshotHook()
    run = make()
    run.step()
    run.hooks.add(late)
    with pytest.raises(ValueError, match=AGAIN):
        make(hooks=[late])
    make(hooks=[unused])
    with pytest.raises(ValueError, match="epochs"):
        make(hooks=[unused], epochs=0)
    assert make(hooks=[unused]).step().steps == 1


def test_a_hook_that_was_given_a_state_is_taken():
    saved, hook = make(hooks=[EMAHook(0.9)]), EMAHook(0.9)
    saved.step(3)
    make(hooks=[hook]).load_state_dict(saved.state_dict())
    with pytest.raises(ValueError, match=AGAIN):
        make(hooks=[hook])


def test_hooks_of_ones_own_may_see_several_runs():
    class Counts(Hook):
        steps = 0

        def after_step(self, trainer):
            self.steps += 1

    counts, told = Counts(), []
    shared = LambdaHook(after_step=lambda trainer: told.append(1))
    for _ in range(2):
        make(hooks=[counts, shared]).step(3)
    assert counts.steps == 6 == len(told)


def test_a_search_before_the_run_takes_no_hook():
    run = make(hooks=[EMAHook(0.9)])
    run.lr_find(num_steps=5)
    assert run.step(2).steps == 2


def test_a_replay_hook_replays_once():
    run = make()
    run.step(2)
    run.tune(lr=0.2)
    run.step()
    hook = ReplayHook(run.journal)
    make(hooks=[hook]).step(3)
    with pytest.raises(ValueError, match=AGAIN):
        make(hooks=[hook])


def kept(kind, folder):
    return SnapshotHook(every_steps=2) if kind == "memory" else CheckpointHook(
        folder / "kept", every_steps=2, keep_last=9)


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_run_that_was_loaded_goes_back_to_no_state_of_the_one_before(kind, tmp_path):
    other = make(seed=7)
    other.step(5)
    run = make(seed=8, hooks=[kept(kind, tmp_path)])
    run.step(9)
    assert run.rewind_points()
    run.load_state_dict(other.state_dict())
    assert run.rewind_points() == []
    with pytest.raises(ValueError, match="no snapshot or checkpoint"):
        run.rewind(4)
    run.step(2)
    other.step(2)
    assert all(torch.equal(one, two) for one, two in zip(
        run.model.parameters(), other.model.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_an_earlier_state_of_the_same_run_keeps_its_own_past(kind, tmp_path):
    """What comes later is of another branch, as after a rewind."""
    run = make(seed=8, hooks=[kept(kind, tmp_path)])
    run.step(3)
    run.tune(lr=0.02, grad_clip=1.0)
    run.step(2)
    run.save(tmp_path / "early.pt")
    run.step(4)
    before = [point.step for point in run.rewind_points()]
    assert max(before) == 8
    run.load(tmp_path / "early.pt")
    steps = [point.step for point in run.rewind_points()]
    assert 4 in steps and {*steps} <= {step for step in before if step <= 5}
    run.tune(lr=0.5)
    run.step(4)
    straight = make(seed=8)
    straight.step(3)
    straight.tune(lr=0.02, grad_clip=1.0)
    straight.step()
    assert run.rewind(4) == 4
    assert all(torch.equal(one, two) for one, two in zip(
        run.model.parameters(), straight.model.parameters(), strict=True))


class Seen(Hook):
    """Weights a batch by how often it was seen: what it keeps is empty at first."""

    def __init__(self):
        self.seen = {}

    def before_batch(self, trainer):
        if trainer.training:
            place = trainer.step_state.batch_idx
            self.seen[place] = self.seen.get(place, 0) + 1
            trainer.batch = (trainer.batch[0] * (1 + 0.1 * self.seen[place]), trainer.batch[1])

    def state_dict(self):
        return dict(self.seen)

    def load_state_dict(self, state):
        self.seen = dict(state)


@pytest.mark.parametrize("step", [0, 2])
def test_a_hook_gets_an_empty_state_back_too(step):
    straight, run = (make(hooks=[Seen(), SnapshotHook(every_steps=2)], epochs=2, seed=0)
                     for _ in range(2))
    straight.fit()
    run.step(7)
    assert run.rewind(step) == step and len(run.get_hook(Seen).seen) == step
    run.fit()
    assert torch.equal(run.model.weight, straight.model.weight)


def test_a_hook_that_joined_later_begins_again_before_that():
    """Its best value was of the branch that was taken back."""
    hook = EarlyStopHook("train/loss", patience=50)
    run = make(hooks=[SnapshotHook(every_steps=2)], epochs=90)
    run.step(5)
    run.hooks.add(hook)
    run.step(30)
    assert hook.best is not None
    run.rewind(4)
    assert hook.best is None and hook.judged == -1


@pytest.mark.parametrize("kind", ["average", "early stop", "one's own", "best files"])
def test_a_hook_that_a_loaded_state_does_not_know_begins_again(kind, tmp_path):
    """As in a new trainer with the same hooks."""
    made = {"average": lambda: EMAHook(0.9), "one's own": Seen,
            "early stop": lambda: EarlyStopHook("train/loss", patience=2, min_delta=1.0),
            "best files": lambda: CheckpointHook(tmp_path / str(len(list(tmp_path.iterdir()))),
                                                 best=("train/loss", "min"))}[kind]
    other = make(seed=7, epochs=9)
    other.step(7)
    state = other.state_dict()
    run, new = make(seed=8, epochs=9, hooks=[made()]), make(seed=8, epochs=9, hooks=[made()])
    run.step(12)
    run.load_state_dict(state)
    new.load_state_dict(state)
    kinds = EMAHook, Seen, EarlyStopHook, CheckpointHook
    ours, theirs = (next(row.hook.state_dict() for row in each.hooks.rows
                         if type(row.hook) in kinds) for each in (run, new))
    assert ours == theirs
    assert run.fit().steps == new.fit().steps
    assert torch.equal(run.model.weight, new.model.weight)


class OwnFiles(CheckpointHook):
    """A kind of one's own of a hook whose state is empty at first."""


@pytest.mark.parametrize("kind", [OwnFiles, type("OwnAverage", (EMAHook,), {})])
def test_a_kind_of_ones_own_of_a_hook_of_ours_takes_an_empty_state(kind, tmp_path):
    made = lambda: make(hooks=[kind(tmp_path) if kind is OwnFiles else kind(0.9)])
    first = made()
    state = first.state_dict()
    other = made()
    other.load_state_dict(state)
    other.step(3)
    other.load_state_dict(state)
    assert other.step_state.optimizer_step == 0 and other.step(2).steps == 2


def test_a_large_state_of_a_new_hook_is_not_kept_twice():
    class Large(Hook):
        def state_dict(self):
            return {"weights": [torch.zeros(60_000), torch.zeros(60_000)]}

    class Broken(Hook):
        def state_dict(self):
            raise RuntimeError("there is none before the run")

    run = make(hooks=[Large(), Seen(), Broken()])
    run.hooks.begin_run()
    assert [row.first for row in run.hooks.rows if row.own] == [None, {}, None]


def test_a_run_of_another_rate_is_another_run():
    """As two runs of one seed that are compared."""
    def made(lr, *hooks):
        model = torch.nn.Linear(2, 1)
        return make(model, seed=8, optim=lambda parameters: torch.optim.SGD(parameters, lr),
                    hooks=list(hooks))
    torch.manual_seed(0)
    slow = made(0.05)
    torch.manual_seed(0)
    fast = made(0.5, SnapshotHook(every_steps=2))
    slow.step(6)
    fast.step(9)
    fast.load_state_dict(slow.state_dict())
    assert fast.rewind_points() == []


class Best(Hook):
    """Has no state before it has a value, and does not ask for one."""

    def __init__(self, empty):
        self.best, self.empty = None, empty

    def after_step(self, trainer):
        self.best = 1.0

    def state_dict(self):
        return self.empty if self.best is None else {"best": self.best}

    def load_state_dict(self, state):
        self.best = state["best"]


@pytest.mark.parametrize("empty", [{}, None])
def test_a_hook_that_takes_no_empty_state_is_told_of_where_it_keeps_its_values(empty):
    new, run = make(hooks=[Best(empty)]), make(hooks=[Best(empty), SnapshotHook(every_steps=2)])
    state = new.state_dict()
    make(hooks=[Best(empty)]).load_state_dict(state)  # both are empty
    state["hooks"].pop("best", None)  # of an earlier version
    make(hooks=[Best(empty)]).load_state_dict(state)
    run.step(4)
    if empty is None:
        run.rewind(0)
    else:
        with pytest.warns(UserWarning, match="the hook 'best' keeps the values that it has"):
            run.rewind(0)
    assert run.step_state.optimizer_step == 0 and run.step(3).steps == 3


def test_a_hook_that_divides_the_optimizer_takes_a_state_without_it():
    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    plain = make(model())
    plain.step(3)
    parts = LayerGroupsHook({"body": "0", "head": "1"})
    fine = make(model(), hooks=[parts], optim=lambda parameters: torch.optim.SGD(parameters, 0.1))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*keeps the values.*")
        fine.load_state_dict(plain.state_dict(), optimizer=False)
    assert fine.step(2).steps == 5


def test_a_load_takes_no_hook_from_another_run():
    hook = EarlyStopHook("train/loss")
    first, second = make(hooks=[hook]), make(hooks=[hook])
    first.step(5)
    best = hook.best = 1.5
    with pytest.raises(ValueError, match=AGAIN):
        second.load_state_dict(make().state_dict())
    assert hook.best == best and first.step(2).steps == 7


def test_a_run_that_fails_before_its_first_step_leaves_its_hooks():
    """The cell is corrected and run again; one that writes has a folder by then."""
    hook = EMAHook(0.9)
    with pytest.raises(RuntimeError, match="shapes"):
        make(torch.nn.Linear(3, 1), hooks=[hook]).step()
    assert make(hooks=[hook]).step(2).steps == 2
