"""The best state: which it is, that it is tested as it was judged, and that nobody notices."""

import copy
import json
import math
import re
import warnings

import pytest
import small_runs
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from trainer_nb import CheckpointHook, EMAHook, Hook, LambdaHook, SnapshotHook, Trainer
from trainer_nb.core.state import RunState

pytestmark = pytest.mark.slow

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = X[:, :1].sign()
ACCURACY = ("valid/accuracy", "max")


class Net(nn.Module):
    """With BatchNorm and dropout."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.drop, self.head = (nn.Linear(6, 6), nn.BatchNorm1d(6),
                                                      nn.Dropout(0.2), nn.Linear(6, 1))

    def forward(self, x):
        return self.head(self.drop(self.norm(self.body(x))))


def accuracy(pred, target):
    """The share of right signs."""
    return (pred.sign() == target).float().mean()


def make(*hooks, **settings):
    """8 epochs of 4 steps whose rate is far too high: the best epoch is seldom the last."""
    torch.manual_seed(0)
    model = Net()
    settings = {"epochs": 8, "seed": 9, "metrics": {"accuracy": accuracy},
                "loss_fn": nn.MSELoss()} | settings
    return Trainer(model, train_dl=DataLoader(TensorDataset(X[:32], Y[:32]), 8, shuffle=True),
                   valid_dl=DataLoader(TensorDataset(X[32:48], Y[32:48]), 8),
                   optim=torch.optim.Adam(model.parameters(), lr=0.3), hooks=hooks, device="cpu",
                   progress=False, **settings)


TEST = DataLoader(TensorDataset(X[48:], Y[48:]), 8)


class Weights(Hook):
    """A copy of the judged weights at each evaluation, by step."""

    order = 50

    def __init__(self):
        self.at = {}

    def on_log(self, trainer, records):
        if "valid/loss" in records:
            *_, weights = trainer.evaluator.weight_sets(trainer).values()
            with weights():
                self.at[trainer.step_state.optimizer_step] = copy.deepcopy(trainer.model).eval()


def judged(model, data=TEST):
    """Loss and accuracy of a model, by hand."""
    x, y = data.dataset.tensors
    pred = model(x)
    return {"test/loss": pytest.approx(nn.functional.mse_loss(pred, y).item(), rel=1e-5),
            "test/accuracy": pytest.approx(accuracy(pred, y).item())}


def everything(trainer):
    """The whole state, without what the clock says."""
    state = trainer.state_dict()
    state["position"].pop("seconds")
    for name in ("journal", "history", "random"):
        state.pop(name, None)
    state["position"].pop("records")
    return state


def same(a, b):
    """Equal bit for bit, all the way down."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize("rule",
                         [None, ("valid/loss", "min"), ("valid/loss", "max"), ACCURACY,
                          ("valid/accuracy", "min")], ids=str)
def test_which_is_best(rule):
    """The first of the best values, with its epoch and step;
    the validation loss where nothing was said."""
    trainer = make(best=rule)
    best = trainer.fit().best
    name, direction = rule or ("valid/loss", "min")
    values = trainer.history[name]
    index = int(values.argmax() if direction == "max" else values.argmin())
    step = int(trainer.history.steps(name)[index])
    assert best == {"name": name, "value": pytest.approx(float(values[index])), "epoch": step / 4,
                    "step": step}


@pytest.mark.parametrize("place", ["memory", "files", "files by the hook's rule"])
@pytest.mark.parametrize("ema", [None, "ema", "raw"])
def test_the_best_state_is_tested_as_it_was_judged(place, ema, tmp_path):
    """Its numbers are those of the weights that were judged then:
    the average's, where evaluations are made with it."""
    watch = Weights()
    hooks = [watch]
    if ema:
        average = EMAHook(0.8)
        average.eval = ema
        hooks.append(average)
    if place != "memory":
        hooks.append(CheckpointHook(tmp_path, keep_last=1,
                                    best=ACCURACY if "hook" in place else None))
    trainer = make(*hooks, best=None if "hook" in place else ACCURACY)
    best = trainer.fit().best
    # not the last one, or nothing is tested here
    assert best["name"] == "valid/accuracy" and best["step"] != 32
    assert (trainer.best_state.kept is None) is (place != "memory")
    assert trainer.test(TEST, weights="best") == judged(watch.at[best["step"]])
    assert trainer.test(TEST) == judged(watch.at[32]) != trainer.test(TEST, weights="best")
    with trainer.best_weights():
        assert trainer.validate()["valid/accuracy"] == pytest.approx(best["value"])
        assert torch.allclose(trainer.predict(TEST), watch.at[best["step"]](X[48:]), atol=1e-6)


@pytest.mark.parametrize("place", ["memory", "files"])
@pytest.mark.parametrize("ema", [None, 0.8])
def test_the_best_weights_are_exported(place, ema, tmp_path):
    """Those that were judged best, by their own step; the run keeps the weights it has."""
    from safetensors.torch import load_file
    watch = Weights()
    trainer = make(watch, *([CheckpointHook(tmp_path / "kept", keep_last=1)]
                            if place == "files" else []), ema=ema, best=ACCURACY)
    best = trainer.fit().best
    assert best["step"] != 32
    before = everything(trainer)
    exported = trainer.export(tmp_path / "best", weights="best")
    assert same(before, everything(trainer))
    expected = watch.at[best["step"]].state_dict()
    assert same(load_file(exported), dict(expected))
    described = json.loads(exported.with_suffix(".json").read_text())
    assert (described["weights"], described["epochs"], described["steps"]) == (
        "best", best["step"] // 4, best["step"])
    assert described["best"] == best and "last" not in described
    raw = trainer.export(tmp_path / "raw")
    assert same(load_file(raw), dict(trainer.model.state_dict()))
    assert not same(load_file(raw), load_file(exported))


def test_there_is_no_best_to_export(tmp_path):
    """The error says why, how such weights are kept and what can be exported; no file is made."""
    trainer = make()
    trainer.fit()
    with pytest.raises(RuntimeError, match=r"export\(weights='best'\): the weights of the best "
                                           r"state were not kept: Trainer\(best=.*keeps them; "
                                           r"weights='last' writes those of this moment"):
        trainer.export(tmp_path / "x", weights="best")
    with pytest.raises(RuntimeError, match=r"export\(weights='best'\): there is no best state "
                                           r"yet: nothing has been evaluated.*weights='last'"):
        make(best=ACCURACY).export(tmp_path / "x", weights="best")
    with pytest.raises(ValueError, match=r"weights='raw'\): 'last', 'ema' or 'best' \(the raw"):
        trainer.export(tmp_path / "x", weights="raw")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["valid/loss", "valid_ema/loss"])
@pytest.mark.parametrize("place", ["memory", "files"])
def test_where_both_weights_are_evaluated(name, place, tmp_path):
    """The name of the record tells which of them are tested."""
    ema = EMAHook(0.8)
    ema.eval = "both"
    watched = {}
    def note(trainer, records):
        if "valid/loss" in records:
            watched[trainer.step_state.optimizer_step] = [
                copy.deepcopy(trainer.model).eval(), copy.deepcopy(ema.ema_model).eval()]
    hooks = [ema,
             LambdaHook(order=50, on_log=note)] + ([CheckpointHook(tmp_path)]
                                                   if place == "files" else [])
    trainer = make(*hooks, best=(name, "min"))
    best = trainer.fit().best
    expected = watched[best["step"]][name == "valid_ema/loss"]
    assert trainer.test(TEST, weights="best") == judged(expected)
    assert list(trainer.test(TEST)) == ["test/loss", "test/accuracy", "test_ema/loss",
                                        "test_ema/accuracy"]


@pytest.mark.parametrize("place", ["memory", "files"])
def test_the_training_does_not_feel_the_test(place, tmp_path):
    """In mid-epoch, with an average: the state is the same bit for bit, and the run ends at the
    weights of one left alone."""
    def fresh(folder):
        return make(*([CheckpointHook(tmp_path / folder)] if place == "files" else []), ema=0.8,
                    best=ACCURACY)
    straight, trainer = fresh("a"), fresh("b")
    straight.fit()
    trainer.step(14)
    before, generator = everything(trainer), torch.get_rng_state()
    addresses = [each.data_ptr() for each in trainer.model.state_dict().values()]
    first = trainer.test(TEST, weights="best")
    assert same(before, everything(trainer)) and torch.equal(generator, torch.get_rng_state())
    assert addresses == [each.data_ptr() for each in trainer.model.state_dict().values()]
    assert trainer.model.training
    assert trainer.test(TEST, weights="best") == first
    trainer.fit()
    assert same(everything(straight), everything(trainer))


def test_an_error_in_the_test_gives_the_weights_back():
    """And the next test is made with the current weights."""
    def fail(trainer):
        if trainer.split == "test" and failing:
            raise KeyError("in the test")
    failing = [1]
    trainer = make(LambdaHook(before_batch=fail), best=ACCURACY)
    trainer.fit()
    before = everything(trainer)
    with pytest.raises(KeyError):
        trainer.test(TEST, weights="best")
    failing.clear()
    assert same(before, everything(trainer))
    assert trainer.test(TEST) != trainer.test(TEST, weights="best")


def test_a_record_of_ones_own():
    """`trainer.log` counts as well, from any caller; the weights are those of that step."""
    seen = {}
    def mark(trainer):
        step = trainer.step_state.optimizer_step
        seen[step] = copy.deepcopy(trainer.model).eval()
        trainer.log({"mark": torch.tensor(-abs(step - 13.0))})
    trainer = make(LambdaHook(after_step=mark), best=("mark", "max"))
    best = trainer.fit().best
    assert best == {"name": "mark", "value": 0.0, "epoch": 3.25, "step": 13}
    assert trainer.test(TEST, weights="best") == judged(seen[13])
    paused = make(best=("mark", "max"))
    paused.step(3)
    here = copy.deepcopy(paused.model).eval()
    # nobody drives: these weights are meant, not those of the next boundary
    paused.log({"mark": 1.0})
    paused.step(3)
    assert paused.test(TEST, weights="best") == judged(here)
    def within_a_window(trainer):
        if trainer.training and trainer.step_state.batch_idx == 2:
            seen["within"] = copy.deepcopy(trainer.model).eval()
            trainer.log({"mark": 1.0})
    within = make(LambdaHook(after_batch=within_a_window), best=("mark", "max"))
    within.step(4)
    assert within.best["step"] == 1 and within.test(TEST, weights="best") == judged(seen["within"])


def test_a_value_that_is_not_finite_is_never_best():
    """NaN compares as false both ways; of equal values the first one counts."""
    trainer = make(
        LambdaHook(after_epoch=lambda t: t.log(
            {"mark": [math.nan, 2.0, math.inf, 1.0][t.step_state.epoch % 4]})),
            best=("mark", "max"))
    best = trainer.fit().best
    # and the first of equal ones: epoch 5 gives it again
    assert (best["value"], best["epoch"]) == (2.0, 1.0)


def test_the_hook_follows_the_trainer(tmp_path):
    """One word, one place: `Trainer(best=)` is what a CheckpointHook without a rule of its own
    keeps; the trainer's own comes first."""
    trainer = make(CheckpointHook(tmp_path / "a", keep_last=1), best=ACCURACY)
    best = trainer.fit().best
    folder = trainer.get_hook(CheckpointHook).folder
    assert folder.rules.best == ACCURACY
    assert {each.step for each in folder.kept()} == {best["step"], 32}
    both = make(CheckpointHook(tmp_path / "b", keep_last=1, best=("valid/loss", "max")),
                best=ACCURACY)
    assert both.fit().best == best
    assert both.get_hook(CheckpointHook).folder.rules.best == ("valid/loss", "max")
    # from memory: the hook keeps another one
    assert both.test(TEST, weights="best") == trainer.test(TEST, weights="best")
    plain = make(CheckpointHook(tmp_path / "c", keep_last=1))
    assert plain.fit().best["name"] == "valid/loss"
    assert plain.get_hook(CheckpointHook).folder.rules.best is None
    assert len(plain.get_hook(CheckpointHook).folder.kept()) == 1


def test_resumed_in_another_process(tmp_path):
    """The file of the best state is found again;
    what was in memory only is not, and that is said."""
    make(CheckpointHook(tmp_path), best=ACCURACY, epochs=8).fit()
    reference = make(CheckpointHook(tmp_path), best=ACCURACY, epochs=8)
    reference.fit()
    straight = make(best=ACCURACY)
    straight.fit()
    assert reference.best == straight.best
    assert reference.test(TEST, weights="best") == straight.test(TEST, weights="best")
    other = make(best=ACCURACY)
    other.load_state_dict(straight.state_dict())
    gone = r"valid/accuracy .* at step \d+, is not there any more.*CheckpointHook"
    with pytest.raises(RuntimeError, match=gone):
        other.test(TEST, weights="best")


def test_a_rewind_takes_the_best_back(tmp_path):
    """What was best later is of a dead branch:
    the file before it is tested, and memory says that it has none."""
    watch = Weights()
    filed = make(CheckpointHook(tmp_path, keep_last=None), watch, best=ACCURACY)
    kept = make(SnapshotHook(), best=ACCURACY)
    for trainer in (filed, kept):
        trainer.fit()
        last = trainer.best
        trainer.rewind(last["step"] - 4)
        assert 0 < trainer.best["step"] < last["step"]
    assert filed.test(TEST, weights="best") == judged(watch.at[filed.best["step"]])
    with pytest.raises(RuntimeError, match="is not there any more"):
        kept.test(TEST, weights="best")
    kept.fit()
    assert kept.best == last and kept.test(TEST, weights="best")["test/loss"] > 0


def test_a_record_of_weights_that_are_not_evaluated_is_told_early():
    """After the first evaluation, and once: a long run keeps no best state otherwise."""
    wanted = ("valid_ema/accuracy", "max")
    trainer = make(ema=0.9, best=wanted)
    with pytest.warns(UserWarning) as found:
        trainer.step(10)
    assert [str(each.message) for each in found] == [
        f"best={wanted!r}: no record 'valid_ema/accuracy' came; there are "
        "valid/accuracy, valid/loss (did you mean 'valid/accuracy'?); EMAHook(eval='both') "
        "evaluates the weights and their average"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for hooks, best in (([EMAHook(0.9, eval="both")], wanted),
                            ([LambdaHook(after_epoch=lambda t: t.log({"mark": 1.0}))],
                             ("mark", "max"))):
            assert make(*hooks, best=best).fit().best["name"] == best[0]


def test_a_name_that_never_comes():
    """A misspelled record of a loader is told at the first evaluation, with the nearest name;
    others at the end."""
    trainer = make(best=("valid/acuracy", "max"))
    with pytest.raises(ValueError,
                       match=r"no record 'valid/acuracy' came; there are valid/accuracy, "
                             r"valid/loss \(did you mean 'valid/accuracy'"):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 4
    early = make(best=("valid/acuracy", "max"), eval_first=1)
    with pytest.raises(ValueError, match="did you mean"):
        early.fit()
    assert early.step_state.optimizer_step == 0
    with pytest.raises(RuntimeError, match="nothing has been evaluated here; fit.. trains, or "):
        make(best=("valid/loss", "min")).test(TEST, weights="best")
    other = make(LambdaHook(after_epoch=lambda t: t.log({"mark": 1.0})), best=("mrak", "max"))
    with pytest.warns(UserWarning, match=r"no record 'mrak' came.*did you mean 'mark'"):
        assert other.fit().best == {}
    with pytest.raises(RuntimeError,
                       match="there is no best state yet: no record 'mrak' came.*did you mean "
                             "'mark'"):
        other.test(TEST, weights="best")


def test_what_is_refused():
    """Each says what to do."""
    for wrong in ("valid/accuracy", ("valid/accuracy", "up"), ("valid/accuracy",), (1, "max")):
        with pytest.raises(ValueError, match=r"best=.*'valid/accuracy', 'max'"):
            make(best=wrong)
    trainer = make()
    trainer.fit()
    with pytest.raises(RuntimeError, match=r"were not kept: Trainer\(best="):
        trainer.test(TEST, weights="best")
    with pytest.raises(ValueError, match="'last' or 'best'"):
        trainer.test(TEST, weights="ema")
    grown = make(best=ACCURACY)
    grown.fit()
    grown.model.extra = nn.Linear(1, 1)
    with pytest.raises(RuntimeError, match="of another model"):
        grown.test(TEST, weights="best")


# ---- eval_first as a number, and short runs


def batches_of(trainer):
    """Batches taken of training and validation, by split."""
    seen = []
    trainer.hooks.add(LambdaHook(before_batch=lambda t: seen.append(t.split)))
    return seen


def test_a_short_pass_before_the_first_step():
    """So many batches of each loader, nothing logged, nothing best, no hook told;
    and the run is the one without it."""
    told = []
    plain, trainer = make(), make(LambdaHook(before_valid=lambda t: told.append("before"),
                                             after_valid=lambda t: told.append(
                                                 t.step_state.optimizer_step)),
                                  eval_first=1)
    plain.fit()
    seen = batches_of(trainer)
    trainer.step(1)
    assert seen == ["valid", "train"] and told == [] and trainer.records == {} == trainer.best
    assert "valid/loss" not in trainer.history.names
    trainer.fit()
    assert seen.count("valid") == 1 + 8 * 2
    assert all(torch.equal(a, b)
               for a, b in zip(plain.model.parameters(), trainer.model.parameters()))
    assert trainer.history["valid/loss"].tolist() == plain.history["valid/loss"].tolist()
    assert trainer.history.steps(
        "valid/loss").tolist() == plain.history.steps("valid/loss").tolist()
    assert "1 batch of it before the first step" in make(eval_first=1).summary()


def test_a_shuffled_validation_goes_on_as_without_it():
    """The validation loader's own generator is put back."""
    def fresh(first):
        trainer = make(eval_first=first)
        loader = DataLoader(trainer.valid_dl.dataset, 3, shuffle=True,
                            generator=torch.Generator().manual_seed(1))
        trainer.evaluator.loaders["valid"] = loader
        orders = []
        trainer.hooks.add(LambdaHook(before_batch=lambda t: orders.append(t.batch[0])
                                     if not t.training else None))
        trainer.fit(epochs=2)
        return orders
    without, with_it = fresh(False), fresh(2)
    assert len(with_it) == len(without) + 2
    assert all(torch.equal(a, b) for a, b in zip(without, with_it[2:]))


def test_a_mistake_in_the_evaluation_shows_at_once():
    """Before an epoch is spent; put right, the same run trains."""
    def broken(pred, target):
        if wrong:
            raise TypeError("in a metric")
        return pred.mean()
    wrong = [1]
    trainer = make(metrics={"mean": broken}, eval_first=2)
    with pytest.raises(TypeError, match="in a metric"):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 0 and trainer.step_state.batch_idx == 0
    wrong.clear()
    assert trainer.fit().status == "finished" and trainer.step_state.optimizer_step == 32


def test_the_short_pass_comes_once_and_can_be_stopped():
    """Stopped within it, it comes again; a run resumed later has none."""
    class Stop(Hook):
        stopped = False
        def before_batch(self, trainer):
            if not (trainer.training or self.stopped):
                self.stopped = True
                trainer.stop()
    trainer = make(Stop(), eval_first=2)
    seen = batches_of(trainer)
    assert trainer.fit().status is RunState.STOPPED and seen == ["valid"]
    state = trainer.state_dict()
    trainer.step(1)
    assert seen == ["valid", "valid", "valid", "train"]
    other = make(eval_first=2)
    seen = batches_of(other)
    other.load_state_dict(trainer.state_dict())
    other.step(1)
    assert seen == ["train"]
    again = make(eval_first=2)
    seen = batches_of(again)
    again.load_state_dict(state)
    again.step(1)
    assert seen == ["valid", "valid", "train"]


@pytest.mark.parametrize("value", [-1, 1.5, "all", None])
def test_bad_numbers_of_batches(value):
    """Told with what is allowed."""
    with pytest.raises(ValueError, match=f"eval_first={value!r}: True .*a number of batches"):
        make(eval_first=value)


def test_overfit_batches_are_the_same_and_leave_the_test_alone():
    """The same few batches in the same order each epoch, as many of the validation;
    a test is whole."""
    trainer = make(overfit_batches=2, epochs=3)
    taken = []
    trainer.hooks.add(LambdaHook(before_batch=lambda t: taken.append(t.batch[0].clone())
                                 if t.training else None))
    seen = batches_of(trainer)
    trainer.fit()
    assert len(taken) == 6 and all(torch.equal(taken[i], taken[i + 2]) for i in range(4))
    assert seen.count("valid") == 3 * 2
    seen.clear()
    trainer.evaluator.loaders["valid"] = DataLoader(TensorDataset(X, Y), 8)
    trainer.test(DataLoader(TensorDataset(X, Y), 8))
    trainer.validate()
    assert (seen.count("test"), seen.count("valid")) == (8, 2)


def test_a_fast_dev_run_leaves_nothing_behind(tmp_path):
    """One batch of each, and no file: checkpoints and the run's folder take no part, the hooks
    themselves are as they were."""
    checkpoint = CheckpointHook(tmp_path / "kept", every_steps=1)
    trainer = make(checkpoint, fast_dev_run=True, workspace=tmp_path / "run", best=ACCURACY)
    seen = batches_of(trainer)
    result = trainer.fit()
    assert seen == ["train", "valid"] and result.steps == 1 and list(tmp_path.iterdir()) == []
    assert "off" in [line.split("|")[3].strip() for line in trainer.describe_hooks().splitlines()
                     if "CheckpointHook" in line]
    assert trainer.test(TEST, weights="best")["test/loss"] > 0  # in memory, then
    assert seen.count("test") == 1
    assert checkpoint.enabled
    make(checkpoint, epochs=1).fit()
    assert (list((tmp_path / "kept").iterdir())
            if (tmp_path / "kept").exists() else checkpoint.folder is not None)
    assert {each.step for each in checkpoint.folder.kept()} == {2, 3, 4}


def test_limit_batches_of_every_loader():
    """Train, validation and test alike; a prediction is whole."""
    trainer = make(limit_batches=1, epochs=2)
    seen = batches_of(trainer)
    trainer.fit()
    trainer.test(TEST)
    assert (seen.count("train"), seen.count("valid"), seen.count("test")) == (2, 2, 1)
    assert len(trainer.predict(TEST)) == 16


def test_a_fraction_of_a_loader_without_a_length_is_refused_before_the_first_step():
    """A validation loader without a length: said at once, not after an epoch of training."""
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(TEST.dataset)
    def trainer_of(train, valid, limit):
        return Trainer(nn.Linear(6, 1), None, train, valid, loss_fn=nn.MSELoss(),
                       limit_batches=limit, epochs=1, device="cpu", progress=False)
    for loaders in ((TEST, DataLoader(Stream(), 4)), (DataLoader(Stream(), 4), TEST)):
        trainer = trainer_of(*loaders, 0.5)
        with pytest.raises(ValueError,
                           match=r"limit_batches=0.5: a fraction needs a loader with a length"):
            trainer.fit()
        assert trainer.step_state.optimizer_step == 0
    assert trainer_of(DataLoader(Stream(), 4), DataLoader(Stream(), 4),
                      2).fit().status is RunState.FINISHED


def test_best_is_never_nan():
    """A first evaluation that is not finite is not the best of anything."""
    trainer = small_runs.make(valid_dl=[(small_runs.X[:4] * float("nan"), small_runs.Y[:4])],
                              epochs=1)
    assert trainer.fit().best == {}


REFUSED = {
    "fit()": lambda trainer, state: trainer.fit(),
    "step()": lambda trainer, state: trainer.step(2),
    "start()": lambda trainer, state: trainer.start(),
    "rewind()": lambda trainer, state: trainer.rewind(4),
    "load_state_dict()": lambda trainer, state: trainer.load_state_dict(state),
    "state_dict()": lambda trainer, state: trainer.state_dict(),
    "trainer.optim": lambda trainer, state: setattr(
        trainer, "optim", torch.optim.SGD(trainer.model.parameters(), 0.1)),
}


@pytest.mark.parametrize("block", ["best_weights", "trial"])
@pytest.mark.parametrize("verb", REFUSED)
def test_within_a_block_that_gives_the_weights_back_the_run_stays_as_it_is(verb, block):
    """What a state of it had would not belong together, and steps of it would be lost."""
    straight, trainer = (make(SnapshotHook(every_steps=2), best=ACCURACY) for _ in range(2))
    straight.fit()
    trainer.step(10)
    state = trainer.state_dict()
    with getattr(trainer, block)(), pytest.raises(
            RuntimeError, match=rf"{re.escape(verb)}.* within `with trainer\.{block}\(\):`"):
        REFUSED[verb](trainer, state)
    trainer.fit()
    assert all(map(torch.equal, trainer.model.state_dict().values(),
                   straight.model.state_dict().values()))


def test_the_best_weights_are_evaluated_and_predicted_with_and_written_while_they_are_there(
        tmp_path):
    trainer = make(best=ACCURACY)
    trainer.fit()
    with trainer.best_weights():
        assert trainer.validate()["valid/accuracy"] == trainer.best["value"]
        assert len(trainer.predict(TEST)) == 16
        trainer.export(tmp_path / "best.safetensors", weights="best")
    assert (tmp_path / "best.safetensors").exists()
