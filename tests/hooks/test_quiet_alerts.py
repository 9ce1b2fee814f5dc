"""What a run reports without an AlertsHook: a loss that is not finite, a divergence, a wait for
data; each once, and nothing of a run that goes well."""

import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from trainer_nb import AlertsHook, LambdaHook, SnapshotHook, Trainer
from trainer_nb.core.engine import NonFiniteError
from trainer_nb.folder.reader import RunFiles, alert_text
from trainer_nb.remote.cli import status_text
from trainer_nb.remote.remote_view import RemoteRunView
from trainer_nb.remote.run_log import RunLog, log_text
from trainer_nb.remote.watch import WatchData, screen_rows


def regression(count=2560, noise=0.1):
    """Inputs, and a linear function of them with noise."""
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 8, generator=made)
    weights = torch.randn(8, 1, generator=made)
    return TensorDataset(inputs, inputs @ weights + noise * torch.randn(count, 1, generator=made))


def make(*hooks, data=None, steps=400, lr=0.02, **settings):
    """A small run, which looks at each boundary at which it looks up."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    settings = {"non_finite": None, "progress": False, "device": "cpu", "seed": 1} | settings
    trainer = Trainer(model, train_dl=data or DataLoader(regression(), 32), loss_fn=nn.MSELoss(),
                      optim=torch.optim.SGD(model.parameters(), lr=lr), hooks=hooks,
                      max_steps=steps, **settings)
    look_up_always(trainer)
    return trainer


def look_up_always(trainer):
    """Look at each boundary, not twice a second: no test waits for a time."""
    def begin_again(point):
        trainer.driver.boundary.next_refresh = quiet(trainer).due = 0.0
    trainer.driver.status.at_safe_point = begin_again


def quiet(trainer):
    """The alerts of a run without a hook of its own."""
    return trainer.records_of_run.quiet


def at_step(step, act):
    """A hook that acts after a step."""
    return LambdaHook(after_step=lambda trainer: (
        trainer.step_state.optimizer_step == step and act(trainer)))


def spoil(trainer):
    """The weights are far off, and the rate is far too low to bring them back."""
    with torch.no_grad():
        trainer.model.weight.add_(5.0)
    trainer.tune(lr=1e-6)


def poison(trainer):
    """The weights are NaN from here on."""
    with torch.no_grad():
        trainer.model.weight.fill_(float("nan"))


def kinds(trainer):
    """What was reported, in order."""
    return [each.kind for each in trainer.alerts]


class Sleeps(Dataset):
    """A sample takes a while; each batch of eight waits 16 ms."""

    def __len__(self):
        return 8 * 90

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(8), torch.ones(1)


def test_a_healthy_run_says_nothing(capsys):
    """No alert, no line, no tab; and it was looked at."""
    trainer = make()
    trainer.fit()
    assert trainer.alerts == [] and quiet(trainer).count == 400
    assert capsys.readouterr().out == ""
    assert "alerts" not in trainer.view.panes
    assert trainer.get_hook(AlertsHook) is None


@pytest.mark.parametrize("steps", [1, 5, 30, 99])
def test_a_tiny_run_says_nothing(steps, capsys):
    """Too short to judge."""
    trainer = make(steps=steps)
    trainer.fit()
    assert trainer.alerts == [] and capsys.readouterr().out == ""


def test_a_diverged_run_says_so_once(capsys):
    """With a figure and a remedy, in the output and in the view of the panel."""
    trainer = make(at_step(200, spoil))
    trainer.fit()
    assert kinds(trainer) == ["divergence"]
    alert, = trainer.alerts
    assert alert.step <= 200 < alert.raised and alert.ended is None
    assert "train/loss is" in alert.seen and "up from 0.0" in alert.seen
    assert "lower the rate" in alert.advice
    assert capsys.readouterr().out.count("alert: Divergence at step") == 1
    assert trainer.view.alerts == [alert] and "alerts" in trainer.view.panes


def test_a_run_that_never_learns_has_diverged():
    """The rate is far too high from the start."""
    trainer = make(lr=0.9, steps=140, data=DataLoader(regression(), 8))
    trainer.fit()
    assert "divergence" in kinds(trainer) or "not_finite" in kinds(trainer)


def test_nan_is_said_once(capsys):
    """However long it stays."""
    trainer = make(at_step(50, poison), steps=300)
    trainer.fit()
    assert kinds(trainer) == ["not_finite"]
    assert "train/loss is NaN at step 51" in trainer.alerts[0].seen
    assert capsys.readouterr().out.count("alert:") == 1


def test_a_loss_that_is_now_and_then_nan_is_one_alert():
    """One in forty steps; the history has them as they are."""
    trainer = make(steps=1)
    for step in range(1, 400):
        value = float("nan") if step % 40 == 20 else 1.0
        trainer.history.extend("train/loss", [step], [step], [step], [step], [value])
        quiet(trainer).look(trainer, True)
    assert kinds(trainer) == ["not_finite"]


def test_nan_that_ends_the_run_is_an_alert_too(capsys):
    """With `non_finite="raise"` the error says it; the panel has the alert."""
    trainer = make(at_step(50, poison), non_finite="raise")
    with pytest.raises(NonFiniteError):
        trainer.fit()
    assert kinds(trainer) == ["not_finite"] and "alert:" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_loader_that_sleeps(capsys):
    """The share of the wait, and workers as the remedy."""
    trainer = make(data=DataLoader(Sleeps(), 8), steps=90)
    trainer.fit()
    assert kinds(trainer) == ["data"]
    assert "is a wait for the next batch" in trainer.alerts[0].seen
    assert "num_workers" in trainer.alerts[0].advice
    assert capsys.readouterr().out.count("alert: Waiting for data") == 1


def test_a_hook_of_ones_own_replaces_it():
    """The thresholds of the hook are those that count."""
    trainer = make(AlertsHook(divergence=None, spike=None, data_share=None),
                   at_step(200, spoil))
    trainer.fit()
    assert trainer.alerts == [] and quiet(trainer).count == 0


def test_switched_off(capsys):
    """Nothing is looked at."""
    trainer = make(at_step(200, spoil), alerts=False)
    trainer.fit()
    assert trainer.alerts == [] and quiet(trainer).count == 0 and capsys.readouterr().out == ""


@pytest.mark.parametrize("value", [None, 1, "divergence", AlertsHook])
def test_a_switch_is_true_or_false(value):
    with pytest.raises(ValueError, match="alerts=.*True or False"):
        make(alerts=value)


def test_it_cannot_be_assigned():
    with pytest.raises(AttributeError, match="make another Trainer"):
        make().alerts = False


def test_without_records_there_is_nothing_to_judge():
    trainer = make(at_step(200, spoil), record=False)
    trainer.fit()
    assert trainer.alerts == []


def of_two(*hooks, **settings):
    """A run of two models with an optimizer each, which is looked at at each boundary."""
    model = nn.ModuleDict({"a": nn.Linear(8, 1), "b": nn.Linear(8, 1)})

    def step(name):
        return lambda batch, trainer: {
            "loss": nn.functional.mse_loss(trainer.model[name](batch[0]), batch[1])}
    trainer = Trainer(
        model, {"a": step("a"), "b": step("b")}, DataLoader(regression(), 32), device="cpu",
        optim={name: torch.optim.SGD(model[name].parameters(), lr=0.02) for name in "ab"},
        progress=False, hooks=hooks, **settings)
    look_up_always(trainer)
    return trainer


def test_two_optimizers_do_not_diverge():
    """Their losses pull at each other: only what is not finite is reported."""
    def spoil_b(trainer):
        with torch.no_grad():
            trainer.model["b"].weight.add_(5.0)
        trainer.tune(**{"lr.b": 1e-6})
    trainer = of_two(at_step(200, spoil_b), max_steps=400)
    trainer.fit()
    assert trainer.history["train/loss"][-1] > 10 * trainer.history["train/loss"][190]
    assert trainer.alerts == []


@pytest.mark.parametrize("own", [False, True])
def test_the_advice_names_the_rate_of_each_optimizer(own):
    """Half of what is in force where a rewind goes to; the loss of any of them is looked at."""
    def poison_a(trainer):
        with torch.no_grad():
            trainer.model["a"].weight.fill_(torch.nan)
    trainer = of_two(SnapshotHook(every_steps=10), at_step(60, poison_a),
                     *([AlertsHook(every=10)] if own else []), max_steps=100, non_finite=None)
    trainer.step(20)
    trainer.tune(**{"lr.b": 0.008, "lr_scale.a": 0.4})
    trainer.step(35)
    trainer.tune(**{"lr.b": 0.009})
    trainer.fit()
    call = 'trainer.tune(**{"lr_scale.a": 0.2, "lr.b": 0.004})'
    assert [call in each.advice for each in trainer.alerts] == [True], trainer.alerts
    assert (trainer.alerts[0].key, trainer.alerts[0].step) == ("not_finite:train/a/loss", 61)
    trainer.rewind(50)
    eval(call, {"trainer": trainer})  # as it is copied
    assert trainer.alerts[0].ended is not None
    trainer.fit()
    assert trainer.optimizers["b"].rate == 0.004
    assert [each.key for each in trainer.alerts] == ["not_finite:train/a/loss"] * 2
    assert trainer.alerts[1].ended is None


def test_bits_and_checkpoints_are_the_same(tmp_path):
    """With it and without: the same weights, the same state, and each file loads into the other."""
    runs = {on: make(alerts=on, steps=60) for on in (True, False)}
    states = {}
    for on, trainer in runs.items():
        trainer.fit()
        trainer.save(tmp_path / f"{on}.pt")
        states[on] = trainer.state_dict()
    assert torch.equal(runs[True].model.weight, runs[False].model.weight)
    assert states[True].keys() == states[False].keys()
    assert states[True]["hooks"].keys() == states[False]["hooks"].keys()
    assert bool(runs[True].exact) == bool(runs[False].exact) is True
    assert runs[True].exact.assumed == runs[False].exact.assumed
    for on in (True, False):
        other = make(alerts=not on, steps=60)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            other.load(tmp_path / f"{on}.pt")
        assert torch.equal(other.model.weight, runs[on].model.weight)


def test_a_loaded_run_is_judged_from_its_history(tmp_path):
    """The good level is known from the file: the divergence of a run that goes on is reported."""
    trainer = make(steps=200)
    trainer.fit()
    trainer.save(tmp_path / "run.pt")
    later = make(at_step(200, spoil))
    later.load(tmp_path / "run.pt")
    with torch.no_grad():
        later.model.weight.add_(5.0)
    later.tune(lr=1e-6)
    later.fit(max_steps=400)
    assert kinds(later) == ["divergence"] and later.alerts[0].step <= 200


def test_what_an_earlier_run_had_is_not_said_of_a_loaded_one(tmp_path):
    """A NaN that it had; and alerts of the run that was here before are gone."""
    trainer = make(at_step(50, poison), steps=60)
    trainer.fit()
    assert kinds(trainer) == ["not_finite"]
    good = make(steps=40)
    good.fit()
    trainer.load_state_dict(good.state_dict())
    assert trainer.alerts == []
    late = make(at_step(30, poison), at_step(35, lambda each: each.model.reset_parameters()),
                steps=300)
    late.fit()
    late.save(tmp_path / "late.pt")
    after = make(steps=300)
    after.load(tmp_path / "late.pt")
    after.fit(max_steps=400)
    assert after.alerts == []


def test_a_rewind_ends_what_went_on():
    """What was said stays; the same mistake again is another alert, without another line."""
    trainer = make(SnapshotHook(every_steps=50), at_step(200, spoil), steps=400)
    trainer.fit()
    alert, = trainer.alerts
    trainer.rewind(150)
    assert trainer.alerts == [alert] and alert.ended == 400
    trainer.fit(max_steps=400)
    assert [each.kind for each in trainer.alerts] == ["divergence", "divergence"]
    assert trainer.alerts[1].ended is None and trainer.alerts[1].number == 2


def test_a_hook_hears_of_it():
    """`on_alert` is called, as by an AlertsHook."""
    heard = []
    trainer = make(at_step(200, spoil), LambdaHook(on_alert=lambda _, alert: heard.append(alert)))
    trainer.fit()
    assert heard == trainer.alerts != []


def test_between_two_looks_a_step_costs_nothing():
    """While none is due, there is the one at the end."""
    trainer = make()
    trainer.driver.status.at_safe_point = None
    quiet(trainer).due = float("inf")
    looks, own = [], quiet(trainer)._losses
    quiet(trainer)._losses = lambda each: (looks.append(1), own(each))
    trainer.fit()
    assert len(looks) == 1


def test_other_processes_see_it(tmp_path):
    """The page, `status`, `watch` and `log`."""
    trainer = make(at_step(200, spoil), workspace=tmp_path / "run", steps=400)
    trainer.fit()
    trainer.close()
    view, run = RemoteRunView(tmp_path / "run"), RunFiles(tmp_path / "run")
    assert [each.kind for each in view.alerts] == ["divergence"] and "alerts" in view.panes
    text = alert_text(run.status()["alerts"][0])
    assert "train/loss is" in text and "lower the rate" in text
    assert any("alert" in line and "up from" in line
               for line in status_text(run, run.status(), {}))
    data = WatchData(run)
    data.read()
    screen = ["".join(part for part, _ in row) for row in screen_rows(data, "", 200, 30)]
    assert len(screen) == 30 and sum("alert: step" in row for row in screen) == 1
    log = RunLog(run)
    found = [log_text(*each) for each in log.read() if each[0] == "alert"]
    assert found == [f"alert: {text}"] and not [each for each in log.read() if each[0] == "alert"]


def test_a_long_history_is_read_in_a_hundred_pieces(monkeypatch):
    """However long the run was."""
    trainer = make(steps=1)
    steps = np.arange(1, 200_001)
    values = 0.5 + 2 * np.exp(-steps / 900)
    trainer.history.extend("train/loss", steps, steps / 10, steps, steps / 10, values)
    quiet(trainer).begin_anew(trainer.history)
    judged, judge = [], quiet(trainer).losses.judge
    quiet(trainer).losses.judge = lambda *args: (judged.append(1), judge(*args))[1]
    quiet(trainer).look(trainer, True)
    assert 90 <= len(judged) <= 101 and trainer.alerts == []
    assert quiet(trainer).losses.levels.best == pytest.approx(0.5, abs=0.01)
