"""The numbers that a panel shows: those of the run, computed here once more by hand."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import schedulefree
import torch
from feed_page import Page
from small_runs import BATCHES, make
from steered import until
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trainer_nb import EMAHook, LambdaHook, SnapshotHook, Trainer, attach
from trainer_nb.core.control import Series
from trainer_nb.panel.bins import Records
from trainer_nb.panel.feed import Feed
from trainer_nb.panel.sections import MOST_ROWS, SECTIONS, Look, means_between, table, values_at
from trainer_nb.panel.still import still

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))


def series(values, steps=None):
    """A record of these values, at steps 1, 2, ... where no others are given."""
    steps = np.arange(1, len(values) + 1) if steps is None else np.asarray(steps)
    return Series(steps, steps / 10, steps * 4, steps * 0.1, np.asarray(values, float))


def recorded(pieces=1, **values):
    """A view with these records, which have come in pieces; `__` stands for a slash."""
    found = {name.replace("__", "/"): series(each) for name, each in values.items()}
    records = Records()
    view = SimpleNamespace(records_version=0, branches=[], binned=records)
    for at in range(1, pieces + 1):
        def until(counts=(), at=at):
            """What is new."""
            parts = {name: [column[dict(counts).get(name, 0):len(each) * at // pieces]
                            for column in vars(each).values()] for name, each in found.items()}
            return {name: Series(*part) for name, part in parts.items() if len(part[0])}
        view.records = until
        records.read(view)
    return view


def number(values, name="train/loss", pieces=1):
    """What is told of one record."""
    return SECTIONS["numbers"].read(recorded(pieces, **{name.replace("/", "__"): values}))[name]


# The last values


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("count", [1, 32, 33, 34, 5000])
def test_a_loss_of_each_step_is_the_mean_of_the_last_33(count, pieces):
    values = np.random.default_rng(0).normal(2, 1, count)
    found = number(values, pieces=pieces)
    assert found == {"value": pytest.approx(values[-33:].mean(), rel=1e-5),
                     "of": min(33, count), "step": count}


@pytest.mark.parametrize("name", ["lr", "lr.d", "samples_per_second", "valid/loss"])
def test_what_stands_by_itself_is_its_last_value(name):
    found = number([0.5, 0.25, 0.125], name)
    assert (found["value"], found["of"], found["step"]) == (0.125, 1, 3)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(("name", "values", "best", "before"), [
    ("valid/accuracy", [0.5, 0.9, 0.7], (0.9, 2), 0.9),
    ("valid/mae", [0.5, 0.9, math.nan], (0.5, 1), 0.9),
    ("valid/top1_error", [0.5, 0.4, 0.7], (0.4, 2), 0.4),
    ("valid/loss", [1.5, 1.5, 1.75], (1.5, 1), 1.5),
    ("valid/loss", [math.nan, math.inf, 1.0], (1.0, 3), "inf"),
    ("valid/accuracy", [math.nan, math.nan, -math.inf], None, "nan"),
    ("valid/odd", [0.5, 0.9, 0.7], None, 0.9)])
def test_the_best_value_knows_which_way_is_better(name, values, best, before, pieces):
    """Of two equal ones it is the first; a name without a direction has none."""
    found = number(values, name, pieces)
    assert found["count"] == 3 and found["before"] == before
    told = found.get("best")
    assert (told and (told["value"], told["step"])) == best
    assert told is None or told["epoch"] == told["step"] / 10


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize(("values", "value", "since"), [
    ([1.0, math.nan, math.nan], "nan", 2), ([math.inf] * 3, "inf", 1),
    ([1.0, math.nan, 3.0], "nan", None), ([math.nan] + [2.0] * 33, 2.0, None)])
def test_a_mean_over_what_is_not_finite_is_none(values, value, since, pieces):
    """`bad_since`: where it has begun, if it still goes on."""
    found = number(values, pieces=pieces)
    assert (found["value"], found.get("bad_since")) == (value, since)


def test_a_run_that_ends_with_a_loss_that_is_none_says_since_when():
    """The step of the gradients that made the weights invalid; and it ends with a rewind."""
    class Poisoned(nn.Linear):
        """Its outputs are NaN from a step on."""
        calls = 0

        def forward(self, x):
            """Count the steps."""
            self.calls += self.training
            return super().forward(x) * (math.nan if self.training and self.calls == 6 else 1.0)
    trainer = make(Poisoned(2, 1), epochs=4, hooks=[SnapshotHook(every_steps=2)], grad_clip=1.0,
                   non_finite=None)
    page = Page(trainer.feed).hello()
    trainer.fit()
    assert page.view["numbers"]["train/loss"]["bad_since"] == 6
    assert page.view["numbers"]["train/loss"]["value"] == "nan"
    page.command("rewind", step=4)
    until_then = trainer.history["train/loss"]
    assert page.view["numbers"]["train/loss"] == {
        "value": pytest.approx(until_then.mean(), rel=1e-5), "of": 4, "step": 4}


# The table of the evaluations


def made(**settings):
    """A small trainer with two validation loaders and a metric."""
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(X, X[:, :1]), batch_size=8)
    return Trainer(nn.Linear(4, 1), train_dl=data, valid_dl={"near": data, "far": data},
                   loss_fn=nn.MSELoss(), epochs=4, device="cpu", seed=0, progress=False,
                   metrics={"mae": lambda pred, target: (pred - target).abs().mean()}, **settings)


def column(found, name):
    """The values of a column, None where a row has none."""
    return [row.get(name) for row in found["rows"].values()]


def test_each_row_has_the_numbers_of_its_evaluation():
    trainer = made()
    trainer.fit()
    found = trainer.feed.whole("table")["table"]
    rows = found["rows"]
    assert found["order"][:3] == ["step", "epoch", "train/loss"]
    assert [*rows] == ["8", "16", "24", "32"] and column(found, "epoch") == [1, 2, 3, 4]
    for name in ("near/loss", "far/loss", "near/mae", "far/mae"):
        np.testing.assert_allclose(column(found, name), trainer.history[name], rtol=1e-6)
        assert rows[str(found["best"][name])][name] == min(column(found, name))
    np.testing.assert_allclose(column(found, "train/loss"),
                               trainer.history["train/loss"].reshape(4, 8).mean(1), rtol=1e-5)
    assert column(found, "seconds") == sorted(column(found, "seconds"))


class WithoutLength(IterableDataset):
    """Batches of 8 rows that nobody has counted."""
    def __iter__(self):
        for start in range(0, 64, 8):
            yield X[start:start + 8], X[start:start + 8, :1]


def test_an_evaluation_at_the_end_of_an_epoch_belongs_to_it():
    """Also where the loader has no length, or says a wrong one: epoch 1, not 0 or 0.8."""
    for length in (None, 8, 10):
        loader = DataLoader(WithoutLength(), batch_size=None)
        if length:
            loader = type("Counted", (), {
                "__iter__": lambda own, loader=loader: iter(loader),
                "__len__": lambda own, length=length: length})()
        trainer = Trainer(nn.Linear(4, 1), train_dl=loader, valid_dl=loader, epochs=3,
                          loss_fn=nn.MSELoss(), device="cpu", seed=0, progress=False,
                          hooks=[SnapshotHook(every_steps=8)])
        trainer.step(epochs=1)
        assert trainer.position().fraction == pytest.approx(1 / 3)
        trainer.fit()
        assert column(trainer.feed.whole("table")["table"], "epoch") == [1, 2, 3]
        assert {row["step"]: row["epoch"] for row in trainer.feed.whole("rewind")["rewind"]
                if row["step"] in (8, 16, 24)} == {8: 1, 16: 2, 24: 3}


def test_the_table_has_each_loss_of_several_optimizers_once():
    """The one without a name is the last one's."""
    pair, data = nn.ModuleDict({"g": nn.Linear(4, 1), "d": nn.Linear(4, 1)}), [(X, X[:, :1])] * 4
    def own(name):
        def step(batch, trainer):
            x, y = batch
            return {"loss": (trainer.model[name](x) - y).square().mean()}
        return step
    trainer = Trainer(pair, train_dl=data, valid_dl=data, epochs=2, device="cpu", seed=0,
                      optim={name: torch.optim.SGD(pair[name].parameters(), 0.1) for name in pair},
                      train_step={name: own(name) for name in pair}, eval_step=own("g"),
                      progress=False)
    trainer.fit()
    order = trainer.feed.whole("table")["table"]["order"]
    assert [name for name in order if name.startswith("train/")] == [
        "train/g/loss", "train/d/loss"]


def test_rows_that_were_made_stay_and_a_page_is_sent_the_new_one_alone():
    """However long the run is; the rows are those that are made in one go."""
    trainer, patches = made(), []
    with trainer.feed.listen("table", patches.append):
        for _ in range(32):
            trainer.step()
        trainer.fit()
    sent = [[*patch["table"]["rows"]] for patch in patches if "rows" in patch.get("table", {})]
    assert sent == [["8"], ["16"], ["24"], ["32"]]
    assert trainer.feed.whole("table") == Feed(trainer.view).whole("table")


def test_a_second_evaluation_of_the_last_step_is_in_its_row():
    trainer = made()
    rows = lambda: trainer.feed.whole("table")["table"]["rows"]
    trainer.step(17)
    assert "near/late" not in rows()["16"]
    trainer.log({"near/late": 1.0})
    trainer.step(2)
    trainer.log({"near/loss": 0.25, "near/late": 2.0})
    assert rows()["19"] == {"near/loss": 0.25, "near/late": 2.0} | {
        name: rows()["19"][name] for name in ("epoch", "seconds", "train/loss")}
    trainer.log({"near/late": 3.0})
    assert rows()["19"]["near/late"] == 3.0 and rows()["17"]["near/late"] == 1.0
    assert trainer.feed.whole("table")["table"] == Feed(trainer.view).whole("table")["table"]


def test_a_rewind_takes_its_rows_along_and_what_comes_again_is_there_once():
    trainer = made(hooks=[SnapshotHook()])
    steps = lambda: [*trainer.feed.whole("table")["table"]["rows"]]
    trainer.step(25)
    assert steps() == ["8", "16", "24"]
    trainer.rewind(8)
    assert steps() == ["8"]
    trainer.fit()
    assert steps() == ["8", "16", "24", "32"]


def test_the_row_of_a_rewound_evaluation_is_made_anew():
    """Also where as many evaluations have come again as there were."""
    trainer = made(hooks=[SnapshotHook()])
    loss = lambda: trainer.feed.whole("table")["table"]["rows"]["16"]["near/loss"]
    trainer.step(17)
    before = loss()
    trainer.rewind(8)
    trainer.tune(lr=0.1)
    trainer.step(9)
    assert loss() == trainer.history["near/loss"][1] != before


def test_what_is_not_finite_or_not_there_is_said():
    """None: there was none; NaN: that was the value, or all of them."""
    loss = series([1, math.nan, 3, math.nan, math.nan, 6])
    assert str(means_between(loss, np.array([3, 5, 6, 7])).tolist()) == "[2.0, nan, 6.0, None]"
    some = series([0.5, math.inf, math.nan], [2, 4, 6])
    assert str(values_at(some, np.array([1, 2, 3, 4, 6, 9])).tolist()) == (
        "[None, 0.5, None, inf, nan, None]")


def test_the_best_row_is_that_of_the_best_value_if_the_name_says_what_is_better():
    count = 4
    view = recorded(train__loss=np.ones(count), valid__odd=np.ones(count),
                    valid__loss=np.array([math.nan, 3.0, 2.0, math.inf]),
                    valid__accuracy=np.array([1.0, 3.0, 2.0, 3.0]),
                    far__loss=np.full(count, math.nan))
    assert table(Look(view, view.binned))["best"] == {"valid/loss": 3, "valid/accuracy": 2}


@pytest.mark.parametrize("bad", [(), (0,), range(95, 205), (199, 200), range(2_950, 3_000)])
def test_means_between_evaluations_are_those_of_the_finite_values_unless_the_last_is_not(bad):
    values, ends = np.random.default_rng(1).normal(size=3_000), [50, 100, 200, 201, 2_960, 3_000]
    values[list(bad)] = math.nan
    found = means_between(series(values), np.array(ends))
    for start, end, mean in zip([0, *ends], ends, found.tolist(), strict=False):
        part = values[start:end]
        part = part[np.isfinite(part)]
        wanted = part.mean() if np.isfinite(values[end - 1]) else math.nan
        np.testing.assert_allclose(mean, wanted, rtol=1e-9)


def test_what_is_recorded_beside_evaluations_has_no_row():
    """Memory is measured every few steps."""
    view = recorded(memory__host=np.ones(40), train__loss=np.ones(40))
    assert table(Look(view, view.binned)) is None


def test_of_very_many_rows_the_last_ones_are_there():
    count = MOST_ROWS + 3000
    view = recorded(valid__loss=np.arange(float(count)), train__loss=np.ones(count))
    rows = table(Look(view, view.binned))["rows"]
    assert [*rows] == [str(step) for step in range(count - MOST_ROWS + 1, count + 1)]
    assert rows[str(count - MOST_ROWS + 1)]["train/loss"] == 1


# Several optimizers


def several(**settings):
    """A run in which each of two optimizers has its own loss."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"d": nn.Linear(2, 1), "g": nn.Linear(2, 1)})
    steps = {name: (
        lambda batch, trainer, name=name: {"loss": trainer.model[name](batch).square().mean(),
                                           "accuracy": 0.5}) for name in model}
    optims = {"d": torch.optim.SGD(model["d"].parameters(), lr=0.1),
              "g": torch.optim.SGD(model["g"].parameters(), lr=0.02)}
    return Trainer(model, steps, list(torch.randn(6, 4, 2)), optim=optims, epochs=2, progress=False,
                   seed=1, **settings)


def test_each_optimizer_has_its_losses_and_its_rate():
    trainer = several(grad_clip={"d": 1.0})
    trainer.fit()
    found = trainer.feed.whole("numbers")["numbers"]
    for name in ("train/d/loss", "train/g/loss", "grad_norm.d"):
        values = trainer.history[name]
        assert found[name] == {"value": pytest.approx(values.mean(), rel=1e-5), "of": 12,
                               "step": 12}
    assert (found["lr.d"]["value"], found["lr.g"]["value"]) == (0.1, 0.02)
    assert "grad_norm.g" not in found


def test_the_picture_has_a_row_for_each_loss_and_rate():
    trainer = several()
    trainer.fit()
    picture = still(trainer.view)
    for word in ("train/d/loss", "train/g/loss", "lr.d", "lr.g"):
        assert picture.count(f"<title>{word}<") == 1, word
    assert ">train/loss<" not in picture


def test_a_loss_that_is_not_finite_is_named_by_its_optimizer():
    trainer = several(non_finite=None)
    trainer.step(2)
    with torch.no_grad():
        trainer.model["g"].weight.fill_(math.nan)
    trainer.fit()
    found = trainer.feed.whole("numbers")["numbers"]
    assert found["train/g/loss"]["bad_since"] == 3 and "bad_since" not in found["train/d/loss"]
    assert "train/g/loss is NaN since step 3" in still(trainer.view)


def test_the_tunables_stand_in_a_group_for_each_and_have_the_rate_in_force():
    trainer = several(sched={"d": "cosine"})
    trainer.step(3)
    found = trainer.feed.whole(["tunables", "values"])
    groups = {}
    for name, rules in sorted(found["tunables"].items(), key=lambda each: each[1]["at"]):
        groups.setdefault(rules["group"], []).append(name)
    assert list(groups)[:3] == ["Optimizer d", "Optimizer g", "Loop"]
    assert groups["Optimizer d"] == ["lr.d", "lr_scale.d", "weight_decay.d", "grad_clip.d",
                                     "gradient_accumulation_steps.d"]
    assert [found["tunables"][name]["label"] for name in groups["Optimizer d"]] == [
        "lr", "lr_scale", "weight_decay", "grad_clip", "accumulation"]
    rates = found["values"]["lr.d"], found["values"]["lr.g"]
    assert rates[0]["value"] == pytest.approx(trainer.optimizers["d"].rate) != 0.1
    assert rates[0]["moves"] is True and rates[1] == {"value": 0.02}


# Averages of the weights


AVERAGES = {"ema=": {"ema": 0.9}, "hook": {"hooks": [EMAHook(0.9)]},
            "schedule-free": {"optim": lambda parameters: schedulefree.SGDScheduleFree(
                parameters, lr=0.01)}}


def averaged(folder, **settings):
    """What is said of a run of two epochs by its trainer, by its files and by its picture."""
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(X, X[:, :1]), 8)
    with Trainer(nn.Linear(4, 1), train_dl=loader, valid_dl=loader, loss_fn=nn.MSELoss(),
                 device="cpu", epochs=2, progress=False, workspace=folder, **settings) as trainer:
        trainer.fit()
        remote = attach(trainer.records_of_run.folder.path)
        told = [each.whole("run")["run"]["averaged"] for each in (trainer.feed, Feed(remote.view))]
        pictured = ["valid (average)" in re.sub("<[^>]*>", " ", still(each))
                    for each in (trainer.view, remote.view)]
        remote.close()
    return told, pictured


@pytest.mark.parametrize("settings", AVERAGES.values(), ids=AVERAGES)
def test_a_validation_loss_of_an_average_says_so(settings, tmp_path):
    told, pictured = averaged(tmp_path, **settings)
    assert told == [["valid"]] * 2 and all(pictured)


@pytest.mark.parametrize("off", [False, True])
def test_one_of_the_weights_does_not(off, tmp_path):
    hooks = [EMAHook(0.9)] if off else []
    for hook in hooks:
        hook.enabled = False
    assert averaged(tmp_path, hooks=hooks) == ([[]] * 2, [False] * 2)


def test_an_epoch_is_counted_from_one():
    trainer = made()
    assert "epoch 1, step 0" in repr(trainer)
    trainer.fit(epochs=2)
    assert "epoch 2, step 16" in repr(trainer)


def test_which_evaluations_are_of_an_average_is_what_the_last_one_was():
    """In the middle of a step, too, and a page is told where it changes."""
    seen, told = [], []
    look = LambdaHook(order=-5, after_step=lambda trainer: seen.append(trainer.view.averaged))
    trainer = make(hooks=[look], epochs=4, ema=0.9, valid_dl=BATCHES)
    trainer.feed.listen(["run"], lambda found: told.append(found["run"].get("averaged")))
    trainer.fit(2)
    assert trainer.view.averaged == ["valid"] == seen[-1]
    until(lambda: told[-1:] == [["valid"]])
    trainer.tune(**{"ema.eval": "raw"})
    trainer.validate()
    assert trainer.view.averaged == ["valid"]  # what is shown was measured before
    trainer.fit(4)
    assert trainer.view.averaged == []
    until(lambda: told[-1:] == [[]])
    trainer.close()
