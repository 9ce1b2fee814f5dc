"""Alerts: nothing is said of runs that go well, the right thing of those that do not;
rules that act, repeated exactly."""

import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
from digits_runs import wait_for
from sklearn.datasets import load_digits
from shorter import some
from small_runs import HandClock
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from trainer_nb import (Alert, AlertsHook, CheckpointHook, Hook, LambdaHook, ReplayHook, RuleHook,
                        SnapshotHook, Trainer)
from trainer_nb.core.control import Command, Series
from trainer_nb.hooks.alerts import LossJudge, mean_wait
from trainer_nb.hooks.checkpoint import CheckpointFolder, Writer
from trainer_nb.hooks.recorder import History
from trainer_nb.hooks.rules import changed_values

STEPS = 320
ALL_KEPT = {"every_steps": 50, "every_epochs": None, "keep_last": None}
NO_CLOCK = {"data_share": None}  # this machine may be busy
PIXELS, LABELS = load_digits(return_X_y=True)
IMAGES, TARGETS = torch.tensor(PIXELS / 16).float(), torch.tensor(LABELS)


def mlp():
    """64-32-10."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn():
    """One convolution."""
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))


def make(*hooks, model=mlp, train=1400, optim=None, batch=64, **settings):
    """Digits, 22 steps an epoch."""
    torch.manual_seed(0)
    model = model()
    data = TensorDataset(IMAGES, TARGETS)
    parts = torch.utils.data.random_split(data, [train, 397, len(data) - train - 397])
    settings = {"max_steps": STEPS, "seed": 1} | settings
    return Trainer(model, train_dl=DataLoader(parts[0], batch, shuffle=True),
                   valid_dl=DataLoader(parts[1], 397), loss_fn=nn.CrossEntropyLoss(),
                   optim=optim or (lambda p: torch.optim.Adam(p, 3e-3)), device="cpu",
                   progress=False, hooks=hooks, **settings)


class Poison(Hook):
    """The batches of some steps are a thousand times too bright."""

    def __init__(self, *steps):
        self.steps = steps

    def before_batch(self, trainer):
        """Spoil it."""
        if trainer.training and trainer.step_state.optimizer_step + 1 in self.steps:
            images, labels = trainer.batch
            trainer.batch = 1000 * images, labels


def momentum(parameters):
    """SGD, which a large gradient throws far."""
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def kinds(trainer):
    """What was said, in order."""
    return [each.kind for each in trainer.alerts]


def equal(a, b):
    """All weights, bit for bit."""
    return all(torch.equal(x, y)
               for x, y in zip(a.model.state_dict().values(), b.model.state_dict().values(),
                               strict=True))


def judged(losses, every=50, **limits):
    """The alerts of a curve, by looks: (step of the look, alert), and the looks at which a kind was
    over."""
    hook, judge, going, said, over = AlertsHook(**limits), LossJudge(), set(), [], []
    for step in range(every, len(losses) + 1, every):
        steps, values = np.arange(1, step + 1), np.asarray(losses[:step], float)
        series = Series(steps, steps / 10, steps, steps / 10, values)
        for kind, alert in judge.judge(series, hook, going.__contains__).items():
            if alert and kind not in going:
                said.append((step, alert))
            if kind in going and not alert:
                over.append((step, kind))
            (going.add if alert else going.discard)(kind)
    return said, over


def noise(count, seed=0):
    """Standard normal numbers."""
    return np.random.default_rng(seed).normal(size=count)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "optim", "sched", "batch"), [
    (mlp, None, None, 64), (cnn, None, "one_cycle", 64), (mlp, momentum, None, 16)])
def test_runs_that_go_well(model, optim, sched, batch, capsys):
    """Nothing is said of an MLP and a CNN on digits at usual rates; nothing is printed."""
    trainer = make(AlertsHook(**NO_CLOCK), model=model, optim=optim, sched=sched, batch=batch,
                   max_steps=450)
    trainer.fit()
    assert trainer.alerts == [] and trainer.get_hook(AlertsHook).losses.judged == 450
    assert float(np.median(trainer.history["train/loss"][-50:])) < 0.2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", ["normal", "skewed", "hard batches", "steps", "warm-up bump"])
def test_noise_is_no_alert(shape, seed):
    """Falling losses with noise of several kinds: twelve times the patience, nothing said."""
    step = np.arange(1, 3001)
    trend = 0.3 + 2 * np.exp(-step / 900)
    losses = {"normal": trend * (1 + 0.2 * noise(3000, seed)),
              "skewed": trend * np.exp(0.4 * noise(3000, seed)),
              "hard batches": trend * (1 + 0.05 * noise(3000, seed)) + 3 * (step % 97 == 0),
              "steps": 0.3 + 2 * 0.8 ** (step // 200) + 0.05 * noise(3000, seed),
              "warm-up bump": trend + 4 * np.exp(-((step - 12) / 8) ** 2)
              + 0.1 * noise(3000, seed)}[shape]
    assert judged(losses) == ([], [])


def test_a_spike_and_its_end():
    """Said once with its step and figures; over when the loss is back;
    a second one is a second episode."""
    losses = 0.5 + 2 * np.exp(-np.arange(700) / 60) + 0.02 * noise(700)
    losses[351:375] += 3.0
    losses[551:575] += 3.0
    said, over = judged(losses)
    assert [(look, each.kind, each.step)
            for look, each in said] == [(400, "spike", 352), (600, "spike", 552)]
    assert over == [(450, "spike"), (650, "spike")]
    assert "rose from 0.5" in said[0][1].seen and " to 3.5" in said[0][1].seen


def test_a_spike_goes_on_while_the_loss_is_high():
    """Over at the first look at which the last five losses are back, and not at once."""
    losses = 0.5 + 2 * np.exp(-np.arange(700) / 60) + 0.02 * noise(700)
    losses[380:470] += 3.0
    said, over = judged(losses, divergence=None)
    assert [(look, each.kind, each.step) for look, each in said] == [
        (400, "spike", 381)
    ] and over == [(500, "spike")]


def test_a_spike_of_three_losses():
    """Three of five are enough, two are not."""
    for high, wanted in (([380, 382, 384], [381]), ([380, 382], []), ([380, 385, 390], [])):
        losses = 0.5 + 2 * np.exp(-np.arange(700) / 60) + 0.02 * noise(700)
        losses[high] += 3.0
        assert [each.step for _, each in judged(losses)[0]] == wanted


def test_a_look_reads_what_it_judges():
    """The last points of a name, none of an unknown one; one long wait is not the loader's."""
    history = History()
    for step in range(1, 8):
        history.extend("lr", *([value] for value in (step, step / 4, step, step / 8, 10.0 * step)))
    assert history.last_points("lr", 3).steps.tolist() == [5, 6, 7] and history.last_points(
        "lr", 3
    ).values.tolist() == [50.0, 60.0, 70.0]
    assert (
        len(history.last_points("lr", 99).values) == 7
        and len(history.last_points("loss", 3).steps) == 0
        and history.names == ["lr"]
    )
    assert mean_wait(np.array([0.001, 9.0, 0.003])) == pytest.approx(0.002)


def test_a_spike_that_stays_is_a_divergence():
    """The loss goes up and does not come back:
    the spike first, then the divergence, from the lowest level on."""
    losses = 0.5 + 2 * np.exp(-np.arange(800) / 60) + 0.02 * noise(800)
    losses[351:] += 2.0
    said, _ = judged(losses)
    assert [(look, each.kind) for look, each in said] == [(400, "spike"), (450, "divergence")]
    assert said[1][1].step == 350 and "up from 0.5" in said[1][1].seen


def test_slow_divergence_and_none_from_the_start():
    """A loss that climbs without a jump; one that is above its beginning and never learned."""
    rising = 0.5 + 2 * np.exp(
        -np.arange(800) / 60) + 0.02 * noise(800) + np.maximum(0, np.arange(800) - 400) / 200
    assert "divergence" in [each.kind for _, each in judged(rising)[0]]
    worse = np.concatenate([[2.3, 9.0], 50 + noise(398)])
    said, _ = judged(worse)
    assert [each.kind for _, each in said] == ["divergence"] and "began at 9" in said[0][1].seen


def test_a_plateau_and_its_end():
    """No fall in 1,000 steps; over when the loss falls again; its length is `patience`."""
    flat = np.concatenate([0.7 + 0.1 * noise(1600),
                           0.7 - np.arange(1500) / 3000 + 0.1 * noise(1500, 1)])
    said, over = judged(flat)
    assert [(look, each.kind, each.step) for look, each in said] == [(1000, "plateau", 1)]
    assert [kind for _, kind in over] == ["plateau"] and 1750 <= over[0][0] <= 2500
    assert judged(flat[:1600], patience=2000) == ([], [])


def test_not_finite():
    """NaN is said at its step, and nothing else of these losses; over once they are finite."""
    losses = 0.5 + 2 * np.exp(-np.arange(500) / 60) + 0.02 * noise(500)
    losses[[203, 204]] = np.nan
    said, over = judged(losses)
    assert [(look, each.kind, each.step) for look, each in said] == [(250, "not_finite", 204)]
    assert over == [(300, "not_finite")]
    assert "2 of the last 50" in said[0][1].seen


@pytest.mark.slow
def test_nan_in_a_run():
    """With the run going on, and with the run ended by it:
    in both the first step is named, and what to do."""
    def spoil(trainer):
        if trainer.training and trainer.step_state.optimizer_step == 119:
            trainer.batch = trainer.batch[0] * float("nan"), trainer.batch[1]
    for policy in (None, "raise"):
        trainer = make(AlertsHook(**NO_CLOCK), LambdaHook(before_batch=spoil),
                       SnapshotHook(every_steps=40), non_finite=policy, max_steps=200)
        if policy:
            with pytest.raises(Exception, match="not finite"):
                trainer.fit()
        else:
            trainer.fit()
        assert kinds(trainer) == ["not_finite"] and trainer.alerts[0].step == 120
        assert ("`trainer.rewind(110)`" in trainer.alerts[0].advice
                or "`trainer.rewind(88)`" in trainer.alerts[0].advice)


@pytest.mark.parametrize("name, first, words", [
    ("lr", None, "lr_scale=0.5"), ("lr", 0.02, "lr=0.01"), ("lr_scale", 0.5, "lr_scale=0.25")])
def test_the_advice_halves_the_rate_that_a_rewind_brings_back(name, first, words):
    """Not the one that was set since."""
    def steer(trainer):
        step = trainer.step_state.optimizer_step
        if step in (30, 190) and (first if step == 30 else 1e6) is not None:
            trainer.tune(**{name: first if step == 30 else 1e6})
    trainer = make(AlertsHook(**NO_CLOCK), LambdaHook(after_step=steer),
                   SnapshotHook(every_steps=40), non_finite=None, max_steps=260, optim=momentum)
    trainer.fit()
    advice = trainer.alerts[-1].advice
    assert f"`trainer.tune({words})`" in advice and "trainer.rewind(" in advice, advice


@pytest.mark.slow
def test_steps_left_out():
    """Under non_finite="skip" a skipped step has no loss: how many there were is said."""
    class Bad(Hook):
        def after_backward(self, trainer):
            if (trainer.step_state.optimizer_step in (60, 130)
                and not getattr(self, "last", None) == trainer.step_state.optimizer_step):
                self.last = trainer.step_state.optimizer_step
                next(trainer.model.parameters()).grad.fill_(float("inf"))
    trainer = make(AlertsHook(**NO_CLOCK), Bad(), non_finite="skip", max_steps=250)
    trainer.fit()
    assert [(each.kind, each.raised, each.ended)
            for each in trainer.alerts] == [("not_finite", 100, 200)]
    assert "1 steps were left out" in trainer.alerts[0].seen


@pytest.mark.slow
def test_validation_apart():
    """A wide network learns 100 digits by heart, and the labels it is validated with are drawn:
    that loss rises."""
    def wide():
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    trainer = make(AlertsHook(**NO_CLOCK), model=wide, train=100, batch=25,
                   optim=lambda p: torch.optim.Adam(p, 2e-2), max_steps=300)
    torch.manual_seed(5)
    wrong = torch.randint(0, 10, (397,))
    trainer.evaluator.loaders["valid"] = DataLoader(TensorDataset(IMAGES[:397], wrong), 397)
    trainer.fit()
    assert kinds(trainer)[:1] == ["overfitting"] and trainer.alerts[0].subject == "valid/loss"
    assert "valid/loss is" in trainer.alerts[0].seen and "EarlyStopHook" in trainer.alerts[0].advice


@pytest.mark.slow
def test_waiting_for_data(monkeypatch):
    """The loader that makes the run wait is named until it does so no longer."""
    clock = HandClock().put_into(monkeypatch, "core.hook", "core.training", "core.runner",
                                 "core.driver", "hooks.recorder")
    class Slow(Dataset):
        wait = 0.004

        def __len__(self):
            return 100_000

        def __getitem__(self, index):
            clock.move(Slow.wait)
            return IMAGES[index % 1000], TARGETS[index % 1000]
    class Embed(Hook):
        def after_batch(self, trainer):
            clock.move(0.03)
    torch.manual_seed(0)
    trainer = Trainer(mlp(), train_dl=DataLoader(Slow(), 8), loss_fn=nn.CrossEntropyLoss(),
                      device="cpu", progress=False, max_steps=400,
                      hooks=[AlertsHook(every=20, patience=10_000)])
    trainer.step(40)
    assert kinds(trainer) == ["data"] and "num_workers" in trainer.alerts[0].advice
    Slow.wait = 0.0
    trainer.hooks.add(Embed())  # now the step is the longer part
    trainer.step(60)
    assert trainer.alerts[0].ended is not None


@pytest.mark.slow
def test_said_once_where_no_panel_is(capsys):
    """One line an episode, in a script; none where a front end shows the panel.
    Hooks hear of it."""
    heard = []
    hook = LambdaHook(on_alert=lambda trainer, alert: heard.append(alert))
    for shown in (False, True):
        trainer = make(AlertsHook(**NO_CLOCK), Poison(251), hook, optim=momentum, max_steps=300)
        trainer.driver.status.front_end = shown
        trainer.fit()
        lines = [line for line in capsys.readouterr().out.splitlines()
                 if line.startswith("alert: ")]
        spikes = [each for each in trainer.alerts if each.kind == "spike"]
        assert len(spikes) == 1 and 251 <= spikes[0].step <= 253
        assert lines == ([] if shown else [f"alert: {each}" for each in trainer.alerts])
        assert heard == trainer.alerts
        heard.clear()


@pytest.mark.parametrize(("arguments", "text"), [
    ({"on": "spikes", "rewind": 3}, "did you mean 'spike'"), ({"on": "spike"}, "does nothing"),
    ({"on": "data", "rewind": 100}, "time of the clock"),
    ({"on": "data", "tune": {"lr": 1.0}}, "time of the clock"),
    ({"on": "spike", "then": "halt"}, "then='halt'"),
    ({"on": "spike", "rewind": 0}, "1 or more"),
    ({"on": "spike", "rewind": 5, "most": -1}, "0 or more"),
    ({"on": "spike", "tune": {"lr": "/0"}}, "other than 0")])
def test_rules_that_make_no_sense(arguments, text):
    """Refused when they are made."""
    with pytest.raises(ValueError, match=text):
        RuleHook(**arguments)


@pytest.mark.parametrize(("hooks", "settings", "text"), [
    ([RuleHook("spike", rewind=5)], {}, "nothing raises them here"),
    ([AlertsHook(), RuleHook("spike", rewind=5)], {}, "add a SnapshotHook"),
    ([AlertsHook(), RuleHook("spike", tune={"grad_clop": 1.0})], {}, "did you mean 'grad_clip'"),
    ([AlertsHook(), RuleHook("spike", tune={"grad_clip": -1.0})], {}, "is refused"),
    ([AlertsHook(), RuleHook("spike", tune={"grad_clip": "*0.5"})], {}, "cannot change"),
    ([AlertsHook(), RuleHook("not_finite", then="stop")], {}, "non_finite='raise'"),
    ([AlertsHook()], {"record": False}, "record=True")])
def test_rules_that_could_not_act(hooks, settings, text):
    """Refused when the run starts, before a step."""
    trainer = make(*hooks, **settings)
    with pytest.raises(ValueError, match=text):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 0


def steered(*hooks, rule=True, **settings):
    """A poisoned batch at step 231, which a rule answers:
    back by 60 steps, half the rate, clipped."""
    rules = ([RuleHook("spike", rewind=60, tune={"lr": "*0.5", "grad_clip": 1.0}, most=2)]
             if rule else [])
    return make(AlertsHook(**NO_CLOCK), Poison(231), *rules, *hooks, optim=momentum, **settings)


@pytest.fixture(scope="module")
def answered():
    """A run whose rule has acted, with states in memory."""
    trainer = steered(SnapshotHook(every_steps=50, every_epochs=None))
    trainer.fit()
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same with states in files; nothing interrupts it."""
    trainer = steered(CheckpointHook(tmp_path_factory.mktemp("whole"), **ALL_KEPT))
    trainer.fit()
    return trainer


@pytest.mark.slow
def test_a_rule_rewinds_and_tunes(answered):
    """Once, with its source, step and reason in the journal; the run ends well.
    Nothing is said of what is before."""
    trainer = answered
    entries = [(each.kind, each.name, each.old, each.new, each.step, each.source)
               for each in trainer.journal]
    assert entries[:3] == [("rewind", "step", 250, 150, 150, "rule:spike_rule"),
                           ("tune", "lr_scale", 1.0, 0.5, 150, "rule:spike_rule"),
                           ("tune", "grad_clip", None, 1.0, 150, "rule:spike_rule")]
    assert len(entries) == 4 and "1 of 2" in entries[3][3]
    assert trainer.journal.entries[0].reason.startswith("Loss spike: train/loss rose")
    alert, = trainer.alerts
    assert (alert.raised, alert.ended) == (250, 250) and 231 <= alert.step <= 233
    assert np.median(trainer.history["train/loss"][-50:]) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hook", "script"])
def test_a_steered_run_is_replayed(way, answered):
    """The replay reaches the same weights bit for bit;
    the rule that is there as well does not act a second time."""
    trainer = answered
    if way == "hook":
        again = steered(ReplayHook(trainer.journal),
                        SnapshotHook(every_steps=50, every_epochs=None))
        again.fit()
        assert not [each for each in again.journal if each.source.startswith("rule")]
        assert not [each for each in again.journal if each.kind == "rewind"]
    else:
        space = {"make_trainer": lambda seed: steered(rule=False)}
        exec(trainer.journal.to_script(max_steps=STEPS), space)
        again = space["trainer"]
    assert equal(trainer, again) and again.step_state.optimizer_step == STEPS
    assert trainer.history["train/loss"].tolist() == again.history["train/loss"].tolist()


@pytest.mark.slow
def test_a_rule_goes_back_from_the_step_of_the_alert():
    """Not from that of the look, 17 steps later."""
    trainer = steered(SnapshotHook(every_steps=5, every_epochs=None), max_steps=260)
    trainer.fit()
    assert trainer.journal.entries[0].new == (trainer.alerts[0].step - 60) // 5 * 5


@pytest.mark.slow
def test_a_rule_heeds_its_kind():
    """It waits for alerts of its own kind."""
    trainer = make(
        AlertsHook(**NO_CLOCK),
        Poison(231),
        RuleHook("plateau", tune={"lr": "*0.1"}),
        optim=momentum,
        max_steps=260,
    )
    trainer.fit()
    assert kinds(trainer) == ["spike"] and len(trainer.journal) == 0


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"grad_clip": "/4"}, {"grad_clip": 0.5}),
        ({"grad_clip": " * 3 "}, {"grad_clip": 6.0}),
        ({"gradient_accumulation_steps": "*1.6"}, {"gradient_accumulation_steps": 3}),
        ({"lr": "/2"}, {"lr_scale": 0.5}),
        ({"lr": 0.25, "grad_clip": None}, {"lr": 0.25, "grad_clip": None}),
    ],
)
def test_factors_of_a_rule(changes, wanted):
    """For the value in force; a whole number stays one, and an optimizer's rate is scaled."""
    trainer = make(grad_clip=2.0, gradient_accumulation_steps=2)
    found = changed_values(changes, trainer.tunables.table)
    assert found == wanted and [type(each) for each in found.values()] == [
        type(each) for each in wanted.values()
    ]


@pytest.mark.slow
def test_a_rule_without_a_rewind_is_replayed_once():
    """On a plateau the rate goes down: in the replay by the journal alone, so once."""
    def flat(*hooks):
        rule = RuleHook("plateau", tune={"lr": "*0.1"}, note="flat")
        return make(AlertsHook(patience=100, spike=None, divergence=None, apart=None, **NO_CLOCK),
                    rule, *hooks,
                    optim=lambda p: torch.optim.SGD(p, 1e-6), max_steps=260)
    trainer = flat()
    trainer.fit()
    assert [(each.name, each.new, each.step)
            for each in trainer.journal][0] == ("lr_scale", pytest.approx(0.1), 100)
    again = flat(ReplayHook(trainer.journal))
    again.fit()
    assert equal(trainer, again)
    assert [(each.name, each.new)
            for each in again.journal] == [(each.name, each.new) for each in trainer.journal]
    assert {each.source for each in again.journal} == {"replay"}


@pytest.mark.slow
def test_a_rule_is_exhausted():
    """The same batch is broken again after each rewind:
    the rate goes down each time, then the rule says that it has ended."""
    rule = RuleHook("spike", rewind=60, tune={"lr": "*0.9"}, most=2)
    trainer = make(AlertsHook(**NO_CLOCK), Poison(231), rule,
                   SnapshotHook(every_steps=50, every_epochs=None), optim=momentum, max_steps=300)
    trainer.fit()
    assert [each.new for each in trainer.journal
            if each.name == "lr_scale"] == [pytest.approx(0.9), pytest.approx(0.81)]
    assert [each.kind for each in trainer.journal].count("rewind") == 2
    assert "has acted 2 of 2 times and does not any more" in trainer.journal.entries[-1].new
    assert kinds(trainer)[:3] == ["spike"] * 3
    assert kinds(trainer).count("spike") == 3 and trainer.state == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("then", ["pause", "stop"])
def test_a_rule_pauses_or_stops(then):
    """The run ends there as by hand, with the alert as the reason;
    the weights are those of a run without a rule."""
    trainer = make(AlertsHook(**NO_CLOCK), Poison(231), RuleHook("spike", then=then),
                   optim=momentum)
    assert trainer.fit().status == {"pause": "paused", "stop": "stopped"}[then]
    assert trainer.step_state.optimizer_step == 250
    assert [each.kind for each in trainer.journal] == ["note", then]
    straight = make(Poison(231), optim=momentum)
    straight.step(250)
    assert equal(trainer, straight)


@pytest.mark.slow
@pytest.mark.parametrize("at", some((120, 250, 290), (250,)))
def test_saved_and_loaded(at, tmp_path, whole):
    """At any step, the one of the alert among them:
    another trainer goes on to the same weights, alerts and acts."""
    def run():
        return steered(CheckpointHook(tmp_path / "parts", **ALL_KEPT))
    first = run()
    first.step(at)
    first.save(tmp_path / "saved.pt")
    first.close()
    second = run()
    second.load(tmp_path / "saved.pt")
    second.fit()
    assert equal(whole, second)
    assert [vars(each) for each in whole.alerts] == [vars(each) for each in second.alerts]
    acts = [[(each.kind, each.name, each.new) for each in trainer.journal]
            for trainer in (whole, second)]
    assert acts[0] == acts[1]


@pytest.fixture
def slow_disk(monkeypatch):
    """Each checkpoint is written only when the run waits for it."""
    add, join, waiting = CheckpointFolder.add, Writer.join, []
    def noted(writer):
        waiting.append(writer)
        try:
            join(writer)
        finally:
            waiting.pop()
    def slow(*arguments):
        wait_for(lambda: waiting)
        add(*arguments)
    monkeypatch.setattr(Writer, "join", noted)
    monkeypatch.setattr(CheckpointFolder, "add", slow)


@pytest.mark.slow
def test_a_slow_disk_changes_no_rule(tmp_path, slow_disk):
    """The state of step 200 is still being written when the alert is raised:
    the advice names it, and the rule goes back to it."""
    rule = RuleHook("spike", rewind=20, tune={"lr": "*0.5"}, most=1)
    trainer = make(AlertsHook(**NO_CLOCK), Poison(231), rule,
                   CheckpointHook(tmp_path, **ALL_KEPT), optim=momentum, max_steps=260)
    trainer.fit()
    assert "rewind to step 200 " in trainer.alerts[0].advice
    assert [each.new for each in trainer.journal if each.kind == "rewind"] == [200]


@pytest.mark.slow
def test_a_slow_disk_changes_no_rewind(tmp_path, slow_disk):
    """A rewind in the loop goes back to the state that is still being written."""
    def back(trainer):
        if trainer.step_state.optimizer_step == 110 and not len(trainer.journal):
            trainer.post(Command("rewind", {"step": 105}))
    trainer = make(CheckpointHook(tmp_path, **ALL_KEPT), LambdaHook(after_step=back), max_steps=120)
    trainer.fit()
    assert [each.new for each in trainer.journal] == [100]


def killed(at, folder):
    """A run that kills its process: in step 250, when that step's checkpoint is written and the
    rule has not acted; or after the act."""
    torch.set_num_threads(1)
    def end(trainer):
        trainer.get_hook(CheckpointHook).finish_writing()
        os.kill(os.getpid(), signal.SIGKILL)
    def kill(trainer):
        step = trainer.step_state.optimizer_step
        if at == "act" and step == 250:
            trainer.ask(lambda: end(trainer))
        if at == "later" and step == 210 and trainer.lr_scale < 1:
            end(trainer)
    steered(CheckpointHook(folder, **ALL_KEPT),
            LambdaHook(name="killer", order=95, after_step=kill)).fit()


@pytest.mark.slow
@pytest.mark.parametrize("at", ["act", "later"])
def test_killed_and_resumed(at, tmp_path, whole):
    """Killed between the alert and the act, or after the act:
    the resumed run ends with the weights of one that was not killed."""
    torch.set_num_threads(1)
    process = multiprocessing.get_context(
        "fork").Process(target=killed, args=(at, tmp_path / "run"))
    process.start()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL
    resumed = steered(CheckpointHook(tmp_path / "run", **ALL_KEPT))
    resumed.fit()
    assert equal(whole, resumed) and whole.step_state == resumed.step_state
    assert whole.get_hook(RuleHook).acted == resumed.get_hook(RuleHook).acted == 1
    acts = [[(each.kind, each.name, each.new, each.step) for each in trainer.journal]
            for trainer in (whole, resumed)]
    assert acts[0] == acts[1] and [each.kind for each in resumed.journal].count("rewind") == 1


@pytest.mark.slow
def test_rewound_by_hand():
    """What was said stays, and has ended; the same spike is said again on the new branch."""
    trainer = make(AlertsHook(**NO_CLOCK), Poison(231),
                   SnapshotHook(every_steps=50, every_epochs=None), optim=momentum, max_steps=300)
    trainer.step(260)
    alert, = trainer.alerts
    assert alert.ended is None
    trainer.rewind(200)
    assert trainer.alerts == [alert] and trainer.alerts[0].ended == 260
    trainer.fit()
    assert [(each.number, each.kind, each.step)
            for each in trainer.alerts][:2] == [(1, "spike", alert.step), (2, "spike", alert.step)]


@pytest.mark.slow
def test_thresholds_are_tunables():
    """They can be changed live, are journaled, and None switches a kind off;
    a wrong name is refused."""
    trainer = make(AlertsHook(**NO_CLOCK), Poison(231), optim=momentum, max_steps=300)
    trainer.tune(**{"alerts.spike": None, "alerts.divergence": None})
    trainer.fit()
    assert kinds(trainer) == []
    assert [each.name for each in trainer.journal] == ["alerts.spike", "alerts.divergence"]
    with pytest.raises(TypeError, match="there are every, spike"):
        AlertsHook(spikes=3)
    with pytest.raises(ValueError, match="every = 1 is refused"):
        AlertsHook(every=1)


@pytest.mark.parametrize("change",
                         [{"log": [{"kind": 3}]}, {"judged": "x"}, {"levels": {}},
                          {"evaluations": {"valid/loss": {"best": 1.0}}}, {"back": None}])
def test_a_state_of_something_else_is_refused(change):
    """Before anything has changed."""
    trainer = make(AlertsHook())
    trainer.step(1)
    state = trainer.state_dict()
    state["hooks"]["alerts"] |= change
    with pytest.raises(Exception, match="does not take its state"):
        trainer.load_state_dict(state)
    assert trainer.step_state.optimizer_step == 1


def test_an_alert_as_data():
    """It has its title, a text, and a key of its episode."""
    alert = Alert("spike", 1352, "It rose.", "Rewind.", "train/loss")
    assert (alert.title, alert.key) == ("Loss spike", "spike:train/loss")
    assert str(alert) == "Loss spike at step 1,352: It rose. Rewind."
