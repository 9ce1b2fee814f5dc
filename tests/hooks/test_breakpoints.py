"""Breakpoints: a text is taken apart, never run;
a run pauses when a condition becomes true, and goes on the same."""

import builtins
import math
import operator
import os
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from digits_runs import (DrawingData, assert_same, at_step, disturb, everything, make_data,
                         make_model, wait_for)
from torch import nn
from torch.utils.data import DataLoader

from trainer_nb.core.control import Command
from trainer_nb.core.engine import NonFiniteError
from trainer_nb.core.hook import LambdaHook
from trainer_nb.panel.view import LocalRunView
from trainer_nb.hooks.breakpoint import Breakpoint, BreakpointHook, Condition
from trainer_nb.trainer import Trainer

SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
         "==": operator.eq, "!=": operator.ne}
KINDS = {"nan": math.isnan, "inf": math.isinf, "finite": math.isfinite}
STEPS = 3  # an epoch


def make_trainer(*hooks, valid=True, **given):
    """Shuffled digits with noise, six batches and three windows an epoch, dropout:
    whatever shifts shows."""
    settings = {
        "train_dl": DataLoader(make_data(44, DrawingData), 8, shuffle=True),
        "loss_fn": nn.CrossEntropyLoss(),
        "optim": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        "gradient_accumulation_steps": 2,
        "valid_dl": DataLoader(make_data(20, DrawingData), 5, shuffle=True) if valid else None,
    }  # fmt: skip
    model = given.pop("model", None) or make_model()
    return Trainer(model, hooks=hooks, seed=3, device="cpu", progress=False, epochs=2,
                   **settings | given)


def scripted(*values, **given):
    """A trainer whose steps record `x` as told, one batch a step, eight steps an epoch."""

    def step(batch, trainer):
        loss = nn.functional.cross_entropy(trainer.model(batch[0]), batch[1])
        number = trainer.step_state.optimizer_step
        return {"loss": loss, "x": values[number] if number < len(values) else values[-1]}

    loader = DataLoader(make_data(64), 8)
    own = {"train_dl": loader, "gradient_accumulation_steps": 1, "loss_fn": None,
           "train_step": step, "valid": False}
    return make_trainer(model=nn.Linear(64, 10), **own | given)


def pauses(trainer, **totals):
    """fit() until it ends; the steps of all pauses."""
    steps = []
    while (result := trainer.fit(**totals)).status == "paused":
        steps.append(result.steps)
        disturb()
        assert len(steps) < 30
    assert result.status == "finished"
    return steps


def reasons(trainer):
    """What the journal says of the pauses."""
    return [(e.step, e.new, e.source) for e in trainer.journal if e.kind == "pause"]


# ---- texts

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_/.-]{0,12}", fullmatch=True)
BLANK = st.text(" \t", max_size=3)
NUMBERS = st.one_of(st.floats(allow_nan=False), st.integers(-(10**9), 10**9))


@pytest.mark.slow
@given(
    name=NAMES, sign=st.sampled_from(sorted(SIGNS)), number=NUMBERS, value=st.floats(),
    blank=st.tuples(*[BLANK] * 4)
)  # fmt: skip
def test_a_comparison_is_read_as_it_is_meant(name, sign, number, value, blank):
    """Name, comparison and number, with any blanks; it holds where Python's own comparison does."""
    found = Condition.parse(f"{blank[0]}{name}{blank[1]}{sign}{blank[2]}{number}{blank[3]}")
    assert found.name == name
    assert found.holds(value) is SIGNS[sign](value, float(number))
    assert found.holds(float(number)) is (sign in ("<=", ">=", "=="))


@given(name=NAMES, kind=st.sampled_from(sorted(KINDS)), wanted=st.booleans(), value=st.floats())
def test_is_and_is_not(name, kind, wanted, value):
    """nan, inf and finite, and the opposite of each."""
    found = Condition.parse(f"{name} is {'' if wanted else 'not '}{kind}")
    assert found.name == name
    assert found.holds(value) is (KINDS[kind](value) is wanted)


WORDS = ["loss", "train/x", " ", "is", "not", "nan", "finite", *SIGNS, "=", "!", "1e-3", "1,000",
         "()", "0x1"]
PIECES = st.sampled_from(WORDS)


@pytest.mark.slow
@given(text=st.one_of(st.text(max_size=30), st.lists(PIECES, max_size=7).map("".join),
                      st.lists(PIECES).map(" ".join)))
def test_any_text_is_a_condition_or_refused(text):
    """Nothing else is raised, and what is taken says just what stands there:
    name, then comparison and number."""
    try:
        found = Condition.parse(text)
    except ValueError as error:
        assert repr(text) in str(error)
        return
    assert str(found) == text.strip() and found.text.startswith(found.name)
    rest = found.text[len(found.name) :].strip()
    if rest.startswith("is"):
        words = rest.split()
        assert words[-1] in KINDS and words[1:-1] in ([], ["not"])
    else:
        sign = re.match("[<>=!]+", rest)[0]
        assert sign in SIGNS and isinstance(float(rest[len(sign) :].replace(",", "")), float)
    assert found.holds(1.0) in (True, False)


CODE = [
    "__import__('os').mkdir('planted') > 1", "loss > __import__('os').getpid()",
    "open('planted', 'w') is nan",
    "loss > (1)", "trainer.step_state.optimizer_step > 3; loss", "loss > 3 or loss < 1", "3 < loss",
    "loss + 1 > 2",
    "loss > x", "loss", "loss >", "> 3", "", "loss = 3", "loss <> 3", "loss => 3", "loss is",
    "loss is big",
    "loss is not", "loss is notnan", "loss isnan", "loss in (1, 2)", "loss > 1 2", "loss > 1e",
    "loss > --1", "1loss > 2",
    "f() > 1", "loss > \n", "loss\x00> 3",
]  # fmt: skip


@pytest.mark.parametrize("text", CODE)
def test_code_is_no_condition(text, tmp_path, monkeypatch):
    """It is refused where it is asked for, and nothing of it is run."""
    run, error = [], None
    with monkeypatch.context() as patched:
        patched.chdir(tmp_path)
        for name in ("eval", "exec", "compile"):
            patched.setattr(builtins, name, lambda *_, **__: run.append(text) or 1)
        try:
            Condition.parse(text)
        except Exception as raised:
            error = raised
    assert type(error) is ValueError and not run
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "number"),
    [("loss > 1,000", 1000), ("step == 12,345,678", 12345678), ("x<1_000", 1000)]
)
def test_thousands_may_be_set_apart(text, number):
    """As one reads them in the panel."""
    assert Condition.parse(text).holds(number) is (">" not in text and "<" not in text)
    assert Condition.parse(text).holds(number + 1) is (">" in text)


@pytest.mark.parametrize("text", ["loss < 0,5", "loss > 1,5", "loss < ,5", "step == 10,00"])
def test_a_decimal_comma_is_not_taken_for_thousands(text):
    """0,5 is not 5: a run would pause elsewhere than its user thinks."""
    with pytest.raises(ValueError):
        Condition.parse(text)


@pytest.mark.parametrize("condition", [3, None, ("loss", ">", 1), object()])
def test_what_is_no_condition_at_all(condition):
    """A text or a function; the message shows what it was."""
    with pytest.raises(TypeError, match=re.escape(f"pause_when({condition!r})")):
        make_trainer().pause_when(condition)


# ---- when


def test_step_5_pauses_right_after_step_5():
    """With the batch of that step there, and the sixth not begun; the journal says why."""
    labels = []
    trainer = make_trainer(LambdaHook(before_batch=lambda t: t.training
                                      and labels.append(t.batch[1].tolist())))
    trainer.pause_when("step == 5")
    assert trainer.fit().status == "paused"
    assert (trainer.step_state.optimizer_step, len(labels)) == (5, 10)
    assert not trainer.runner.window_open
    assert trainer.batch[1].tolist() == labels[-1]
    assert reasons(trainer) == [(5, "step == 5 (step is 5)", "breakpoint")]
    assert trainer.fit().status == "finished"


def test_only_becoming_true_counts():
    """As long as a condition holds it does not pause again; when it has been false it does."""
    trainer = scripted(0, 2, 3, 0, 1, 2, 2, 0)
    trainer.pause_when("train/x > 1")
    assert pauses(trainer, epochs=1) == [2, 6]
    assert [reason for _, reason, _ in reasons(trainer)] == ["train/x > 1 (train/x is 2)"] * 2


def test_what_holds_at_the_first_look_counts():
    """Also for a breakpoint that joins in mid-run."""
    trainer = scripted(5)
    trainer.pause_when("train/x > 1")
    assert trainer.fit(epochs=1).steps == 1
    trainer.pause_when("train/x > 2")
    assert pauses(trainer, epochs=1) == [2]


def test_a_value_is_the_mean_of_its_window():
    """Weighted by samples, as the history has it: of two batches neither alone would tell."""
    seen = []
    trainer = make_trainer(valid=False)
    trainer.pause_when(lambda t: seen.append(t.loss.item()))
    assert pauses(trainer) == []
    losses = trainer.history["train/loss"]
    assert len(seen) == len(losses) == 6 and not any(a == b for a, b in zip(seen, losses))
    for step in (2, 3):  # the third window is a tail of 8 and 4 samples
        again = make_trainer(valid=False)
        value = losses[step - 1].item()
        again.pause_when(f"loss == {value!r}")
        again.pause_when(f"train/loss == {value!r}")
        assert pauses(again) == [step]
        assert reasons(again)[0][1].count(f"is {value:.5g}") == 2


def numbers_of(trainer, name):
    """The values that a run without breakpoints records, one a step."""
    trainer.runner.gradients.wants_norm = True
    trainer.fit()
    return trainer.history[name].tolist()


@pytest.mark.slow
def test_the_norm_of_the_gradients():
    """Before clipping, and measured from the first step on because a condition asks for it."""
    norms = numbers_of(make_trainer(grad_clip=0.1), "grad_norm")
    assert len(norms) == 6 and min(norms) > 0.1
    largest = max(norms[1:])
    trainer = make_trainer(grad_clip=0.1)
    trainer.pause_when(f"grad_norm == {largest!r}")
    assert pauses(trainer) == [norms.index(largest) + 1]
    plain = make_trainer()
    plain.pause_when("grad_norm > 0")
    assert plain.fit().steps == 1
    assert pauses(make_trainer(record=False)) == []


def test_the_rate_in_force():
    """A schedule's, a scaled one, and one taken over by hand."""
    sched = lambda optim: torch.optim.lr_scheduler.StepLR(optim, 2, gamma=0.1)  # noqa: E731
    trainer = make_trainer(sched=sched)
    trainer.pause_when("lr < 5e-3")
    assert pauses(trainer) == [3]  # the third step is the first that was made with it
    trainer = make_trainer(at_step(2, lambda t: t.tune(lr_scale=0.5)))
    trainer.pause_when("lr < 6e-3")
    assert pauses(trainer) == [3]
    trainer = make_trainer()
    trainer.pause_when("lr == 0.25")
    trainer.step(1)
    trainer.tune(lr=0.25)
    assert pauses(trainer) == [2]


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("epoch >= 1", [3]), ("epoch > 0.5", [2]), ("epoch >= 1.5", [5]),
        ("samples_seen > 40", [3]),
        ("samples_seen >= 88", [6]), ("step != 1", [2]), ("step <= 2", [1]), ("seconds > 0", [1]),
        ("loss is nan", []),
        ("loss is not finite", []), ("loss is finite", [1]), ("grad_norm is inf", []),
        ("step > 6", []),
    ],
)  # fmt: skip
def test_counters_and_kinds(text, steps):
    """Each name that has no slash."""
    trainer = make_trainer()
    trainer.pause_when(text)
    assert pauses(trainer) == steps


def test_a_record_of_an_evaluation():
    """Looked at when it is given out, with the evaluation over and the model in training mode
    again."""
    plain = make_trainer()
    plain.fit()
    first, second = plain.history["valid/loss"].tolist()
    assert second < first
    trainer = make_trainer()
    trainer.pause_when(f"valid/loss < {first!r}")
    assert trainer.fit().status == "paused"
    assert (trainer.step_state.optimizer_step, trainer.eval_batch,
            trainer.model.training) == (6, None, True)
    assert trainer.history["valid/loss"].tolist() == [first, second]
    assert reasons(trainer) == [(6, f"valid/loss < {first!r} (valid/loss is {second:.5g})",
                                 "breakpoint")]
    assert trainer.fit().status == "finished"
    assert_same(trainer, plain)


def test_a_record_of_ones_own():
    """What a hook gives out by log() is looked at then, and once a step it is known by name."""
    tell = LambdaHook(
        after_step=lambda t: t.log({"valid/again": -float(t.step_state.optimizer_step)}))
    trainer = make_trainer(tell)
    trainer.pause_when("valid/again <= -4")
    assert pauses(trainer) == [4]


def test_a_record_that_belongs_to_no_loader():
    """A name of the user's own is known once it was given out."""
    trainer = make_trainer(
        LambdaHook(after_step=lambda t: t.log({"mine/steps": float(t.step_state.optimizer_step)})))
    with pytest.raises(ValueError, match="is not a record of this run"):
        trainer.pause_when("mine/steps == 4")
    trainer.step(1)
    trainer.pause_when("mine/steps == 4")
    assert pauses(trainer) == [4]


def test_a_function_of_the_trainer():
    """Any truth will do; its name is the reason."""

    def third_of_all(trainer):
        return torch.tensor(trainer.step_state.optimizer_step == 3)

    trainer = make_trainer()
    trainer.pause_when(third_of_all)
    assert pauses(trainer) == [3]
    assert reasons(trainer) == [(3, "third_of_all", "breakpoint")]
    assert LocalRunView(trainer).breakpoints == ["third_of_all"]


def test_a_function_that_fails_ends_the_run():
    """With its own exception, which says whose it is;
    the step is counted, and the run goes on without it."""
    trainer = make_trainer()
    made = trainer.pause_when(lambda t: 1 / (t.step_state.optimizer_step - 2))
    with pytest.raises(ZeroDivisionError) as excinfo:
        pauses(trainer)
    assert any("breakpoint" in note for note in excinfo.value.__notes__)
    assert (trainer.state, trainer.failed_batch) == ("error", None)
    trainer.breakpoints.remove(made)
    assert pauses(trainer) == []
    assert_same(trainer, straight())


def test_two_at_once_are_one_pause():
    """With both reasons; each keeps its own edge."""
    trainer = make_trainer()
    trainer.pause_when("step == 2")
    trainer.pause_when("samples_seen >= 32")
    trainer.pause_when("step == 4")
    assert pauses(trainer) == [2, 4]
    assert reasons(
        trainer)[0][1] == "step == 2 (step is 2), samples_seen >= 32 (samples_seen is 32)"


def nan_at(number):
    """A training step whose loss is not a number in this step."""

    def step(batch, trainer):
        loss = nn.functional.cross_entropy(trainer.model(batch[0]), batch[1])
        bad = trainer.training and trainer.step_state.optimizer_step == number - 1
        return {"loss": loss * math.nan if bad else loss}

    return step


@pytest.mark.parametrize("text", ["loss is nan", "train/loss is not finite", "grad_norm is nan"])
@pytest.mark.parametrize("number", [2, STEPS])
def test_a_loss_that_is_nan_is_held_where_a_user_can_look(text, number):
    """Under non_finite="raise", too, and at the end of an epoch:
    the batch is there, and Resume raises as ever."""
    trainer = make_trainer(train_step=nan_at(number), loss_fn=None)
    trainer.driver.status.front_end = True
    trainer.pause_when(text)
    trainer.start()
    wait_for(lambda: trainer.state == "paused" and reasons(trainer))
    assert trainer.step_state.optimizer_step == number and trainer.loss.isnan()
    assert reasons(trainer)[0][2] == "breakpoint"
    trainer.resume()
    with pytest.raises(NonFiniteError, match=f"step {number}"):
        trainer.wait()


def test_a_nan_in_a_script_is_an_error_as_ever():
    """Nobody could look: the breakpoint does not hide it."""
    trainer = make_trainer(train_step=nan_at(2), loss_fn=None)
    trainer.pause_when("loss is nan")
    with pytest.raises(NonFiniteError, match="step 2"):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 2


def test_a_nan_where_nothing_is_checked():
    """With non_finite=None a script gets its pause."""
    trainer = make_trainer(train_step=nan_at(2), loss_fn=None, non_finite=None)
    trainer.pause_when("loss is nan")
    assert (trainer.fit().status, trainer.step_state.optimizer_step) == ("paused", 2)


# ---- and on again


def straight():
    """The run without any breakpoint."""
    trainer = make_trainer()
    assert trainer.fit().status == "finished"
    return trainer


@pytest.mark.parametrize(
    "text", ["step > 0", "step != 3", "loss is finite", "valid/loss > 0", "grad_norm > 0",
             "epoch > 1"]
)
def test_a_run_with_pauses_is_the_run_without(text):
    """Bit for bit, with cells that draw in between."""
    trainer = make_trainer()
    trainer.pause_when(text)
    trainer.pause_when(lambda t: t.step_state.optimizer_step % 2)
    assert len(pauses(trainer)) >= 3
    assert_same(trainer, straight())


def test_in_a_held_run():
    """In the background it stays where it is until it is resumed, and then is the run without."""
    trainer = make_trainer()
    for text in ("step == 2", "valid/loss > 0", "step == 5"):
        trainer.pause_when(text)
    trainer.start()
    for step in (2, 3, 5):
        wait_for(lambda step=step: (trainer.state,
                                    trainer.step_state.optimizer_step) == ("paused", step))
        trainer.resume().wait(120)
    assert trainer.wait().status == "finished"
    assert [e.kind for e in trainer.journal] == ["pause", "resume"] * 3
    assert_same(trainer, straight())


def test_step_stops_at_one():
    """What comes first counts; the goal of the step is forgotten."""
    trainer = make_trainer()
    trainer.pause_when("step == 2")
    assert trainer.step(5).steps == 2
    assert trainer.step(1).steps == 3
    assert trainer.fit().steps == 6


# ---- put in and taken out


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("los > 3", "'loss'"), ("grad > 3", "'grad_norm'"), ("samples > 3", "'samples_seen'"),
        ("vali/loss > 3", "'valid/loss'"), ("valid > 3", "'valid/loss'"),
        ("test/loss > 3", "'train/loss'"),
        ("learning_rate < 1", "there are loss, step, epoch"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_refused(text, near):
    """It would wait for ever; the nearest known one is named, and nothing was changed."""
    trainer = make_trainer()
    with pytest.raises(ValueError, match=re.escape(near)):
        trainer.pause_when(text)
    assert trainer.breakpoints == [] and trainer.get_hook(BreakpointHook) is None
    reply = trainer.post(Command("pause_when", {"text": text}))
    assert (reply.status, near in reply.reason) == ("refused", True)


def test_records_not_made_yet_are_believed():
    """Before the first records any name of a split may come; after them it must be one of them."""
    trainer = scripted(0, 1, valid=True, train_dl=DataLoader(make_data(16), 8))
    trainer.pause_when("train/x == 1")
    trainer.pause_when("valid/accuracy > 0.5")
    assert trainer.fit(epochs=1).steps == 2
    trainer.fit(epochs=1)
    with pytest.raises(ValueError, match="did you mean 'train/x'"):
        trainer.pause_when("train/y > 1")
    with pytest.raises(ValueError, match="is not a record of this run"):
        trainer.pause_when("valid/accuracy > 0.5")
    assert trainer.pause_when("valid/x > 0.5").name == "valid/x"


@pytest.mark.parametrize("name", ["samples_per_second", "time/step", "time/data"])
def test_a_recorded_name_is_looked_at_or_refused(name):
    """Whatever the history knows: a breakpoint that is taken must be able to pause."""
    trainer = make_trainer()
    trainer.step(2)
    try:
        trainer.pause_when(f"{name} >= 0")
    except ValueError:
        return
    assert pauses(trainer) == [3]


def test_taken_out():
    """From the list, in a pause or in mid-run, by its text or as itself; the others stay."""
    trainer = make_trainer()
    second, third = trainer.pause_when("step == 2"), trainer.pause_when("step == 3")
    trainer.pause_when(
        "step == 4"), trainer.pause_when("step == 5"), trainer.pause_when("step == 5")
    assert LocalRunView(trainer).breakpoints == ["step == 2", "step == 3", "step == 4", "step == 5",
                                                 "step == 5"]
    trainer.breakpoints.remove(second)
    assert trainer.fit().steps == 3
    assert trainer.breakpoints[0] is third
    assert trainer.post(Command("pause_not_when", {"text": "step == 5"})).status == "applied"
    assert pauses(trainer) == [4]
    trainer.post(Command("pause_not_when", {"text": "step == 3"}))
    assert [str(each) for each in trainer.breakpoints] == ["step == 4"]
    trainer.post(Command("pause_not_when", {"text": "step == 4"}))
    assert trainer.get_hook(BreakpointHook) is None
    assert_same(trainer, straight())


def test_by_a_command_in_mid_run():
    """It is active from the next boundary on, and is out again as soon."""
    trainer = make_trainer(LambdaHook(after_step=lambda t: ask(t)))
    replies = []

    def ask(trainer):
        step = trainer.step_state.optimizer_step
        if step == 2:
            replies.append(trainer.post(Command("pause_when", {"text": " step >= 2 "},
                                                source="widget")))
            assert trainer.breakpoints == []
        if step == 3:
            replies.append(trainer.post(Command("pause_not_when", {"text": "step >= 2"},
                                                source="widget")))

    assert pauses(trainer) == [3]
    assert [reply.where for reply in replies] == ["at step 2", "at step 3"]
    assert trainer.breakpoints == []
    assert [e.kind for e in trainer.journal] == ["pause"]
    assert_same(trainer, straight())


@pytest.mark.parametrize("how", ["command", "call"])
def test_asked_for_in_a_pause(how):
    """It counts from the very next step on."""
    trainer = make_trainer(at_step(2, lambda t: t.pause()))
    trainer.start()
    wait_for(lambda: trainer.state == "paused")
    if how == "command":
        assert trainer.post(Command("pause_when",
                                    {"text": "step == 3"})).wait(120).status == "applied"
    else:
        trainer.pause_when("step == 3")
    trainer.resume()
    wait_for(lambda: trainer.step_state.optimizer_step > 2
             and trainer.state in ("paused", "finished"))
    assert (trainer.state, trainer.step_state.optimizer_step) == ("paused", 3)
    trainer.stop()
    trainer.wait()


WRONG = [{}, {"text": 3}, {"text": None}, {"text": "loss"}, {"condition": "loss > 3"},
         {"text": ["loss > 3"]}]


@pytest.mark.parametrize("values", WRONG)
@pytest.mark.parametrize("name", ["pause_when", "pause_not_when"])
def test_wrong_values_are_refused_and_harm_nothing(name, values):
    """Where they are asked for: neither an exception of post() nor the end of the run."""
    replies = []
    ask = LambdaHook(after_step=lambda t: replies.append(t.post(Command(name, dict(values)))))
    trainer = make_trainer(ask)
    trainer.pause_when("step == 100")
    assert trainer.fit().status == "finished"
    allowed = (("refused",)
               if name == "pause_when" or "text" not in values else ("refused", "applied"))
    assert all(reply.status in allowed for reply in replies) and len(replies) == 6
    assert [str(each) for each in trainer.breakpoints] == ["step == 100"]


def test_without_breakpoints_nothing_is_looked_at():
    """A run that has none carries no hook for them, and measures no norm."""
    trainer = make_trainer(record=False)
    trainer.fit()
    assert trainer.get_hook(BreakpointHook) is None
    assert trainer.grad_norm is None and not trainer.runner.gradients.wants_norm
    assert len(everything(trainer)[0]) > 20


def test_a_breakpoint_reads_like_its_condition():
    """For the list in the panel."""
    assert str(Breakpoint("  loss   > 3 ")) == "loss   > 3"
    assert "lambda" in str(Breakpoint(lambda trainer: True))
