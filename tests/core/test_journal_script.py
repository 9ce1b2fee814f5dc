"""`Journal.to_script`: the text it gives, and that running it makes the same weights, bit for
bit."""

import ast
import enum
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
import warm
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trainer_nb import CheckpointHook, Hook, LambdaHook, Trainer, Tunable
from trainer_nb.core.control import Command
from trainer_nb.core.journal import Journal

BATCHES, EPOCHS = 7, 3


class Mix(Hook):
    """Mixes each batch with itself by a random share, which draws from the run's random stream."""

    share = Tunable(0.3, min=0, max=1)

    def before_batch(self, trainer):
        """In training only."""
        if trainer.training:
            inputs, targets = trainer.batch
            other = torch.randperm(len(inputs))
            share = self.share * torch.rand(())
            trainer.batch = inputs.lerp(inputs[other], share), targets.lerp(targets[other], share)


def make_trainer(seed=None, total=None):
    """Dropout, a shuffled loader, a schedule, an evaluation:
    everything by which a run can go another way."""
    torch.manual_seed(0 if seed is None else seed)
    inputs = torch.randn(BATCHES * 4 - 1, 3)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    layers = torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    model = torch.nn.Sequential(*layers)
    return Trainer(
        model, train_dl=torch.utils.data.DataLoader(data, batch_size=4, shuffle=True),
        valid_dl=torch.utils.data.DataLoader(data, batch_size=9), loss_fn=torch.nn.MSELoss(),
        seed=seed,
        optim=torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1), hooks=[Mix()],
        sched=lambda optim: torch.optim.lr_scheduler.LinearLR(optim, 1.0, 0.2, 20),
        device="cpu", progress=False, **(total or {"epochs": EPOCHS}))


def weights(trainer):
    """Weights and what the optimizer knows, flat."""
    moments = [value for state in trainer.optim.state.values() for value in state.values()]
    return [value.clone() for value in (*trainer.model.state_dict().values(), *moments)]


def replayed(script, total=None):
    """The trainer that a script leaves behind, of a function that builds it for the totals the
    script asks for."""
    names = {"make_trainer": lambda seed=None: make_trainer(seed, total)}
    exec(script, names)
    return names["trainer"]


def assert_same(trainer, script, total=None):
    """The script's trainer stands where this one does."""
    again = replayed(script, total)
    assert again.step_state == trainer.step_state and again.state == trainer.state
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer), weights(again), strict=True))
    assert again.optim.param_groups[
        0]["weight_decay"] == trainer.optim.param_groups[0]["weight_decay"]
    return again


def steer(plan, total=None):
    """A run that is steered by clicks as it goes: boundary -> changes."""
    trainer = make_trainer(7, total)
    plan = {boundary: list(changes) for boundary, changes in plan}
    def hand(kind):
        if kind == "boundary":
            for values in plan.pop(trainer.step_state.boundary, ()):
                trainer.post(Command("tune", values, source="widget"))
    for values in plan.pop(0, ()):
        trainer.tune(**values)
    trainer.at_safe_point = hand
    trainer.fit()
    return trainer


CHANGES = st.one_of(
    st.builds(lambda lr: {"lr": lr}, st.sampled_from([0.05, 1e-4, 0.3, None])),
    st.builds(lambda lr: {"lr_scale": lr}, st.floats(0.1, 3)),
    st.builds(lambda on: {"mix.enabled": on}, st.booleans()),
    st.builds(lambda share: {"mix.share": share}, st.floats(0, 1)),
    st.builds(lambda n: {"gradient_accumulation_steps": n}, st.integers(1, 4)),
    st.builds(lambda decay: {"weight_decay": decay}, st.sampled_from([0.0, 0.5, 3e-3])),
    st.builds(lambda clip: {"grad_clip": clip}, st.sampled_from([None, 0.01, 1.0])),
    st.builds(lambda order: {"mix.order": order}, st.integers(-5, 50)),
    st.just({"lr": 0.02, "mix.enabled": False}))
BOUNDARIES = st.integers(0, EPOCHS * (BATCHES + 4))
PLANS = st.lists(st.tuples(BOUNDARIES, st.lists(CHANGES, min_size=1, max_size=3)), max_size=5)


WHOLE = {"epochs": EPOCHS}


@pytest.mark.slow
@given(PLANS, st.sampled_from([WHOLE, {"max_steps": 11}]))
@example([(4, [{"lr": 0.3}]), (9, [{"mix.enabled": False}, {"gradient_accumulation_steps": 3}])],
         WHOLE)
@example([(0, [{"gradient_accumulation_steps": 4}]), (17, [{"lr": 0.02}])], {"max_steps": 11})
@example([(8, [{"gradient_accumulation_steps": 2}]), (11, [{"gradient_accumulation_steps": 4}])],
         WHOLE)
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_the_script_of_a_steered_run_makes_the_same_weights(plan, total):
    """Changes at any boundary: in epochs, around evaluations, before the first step, several at one
    place."""
    trainer = steer(plan, total)
    assert_same(trainer, trainer.journal.to_script(**total), total)


def test_a_run_steered_from_cells_by_step_and_next_epoch():
    trainer = make_trainer(7)
    trainer.tune(lr=0.03)
    trainer.step(3)
    trainer.tune(weight_decay=0.7, gradient_accumulation_steps=2)
    trainer.note("half-way")
    trainer.step(epochs=1)
    trainer.tune(**{"mix.enabled": False})
    trainer.step(1)
    trainer.tune(lr=None)
    trainer.fit()
    script = trainer.journal.to_script(epochs=EPOCHS)
    assert script.splitlines()[2:] == [
        "trainer = make_trainer(seed=7)",
        "trainer.epochs = 3",
        "trainer.tune(lr=0.03)",
        "trainer.step(3); trainer.tune(weight_decay=0.7)",
        "trainer.tune(gradient_accumulation_steps=2)",
        "trainer.step(epochs=1)",  # the two would be a long line
        'trainer.tune(**{"mix.enabled": False})',
        "trainer.step(1); trainer.tune(lr=None)",
        "trainer.fit(epochs=3)"]
    again = assert_same(trainer, script)
    kept = [(e.name, e.old, e.new, e.step, e.epoch) for e in trainer.journal if e.kind == "tune"]
    assert [(e.name, e.old, e.new, e.step, e.epoch) for e in again.journal] == kept


class AtEnds(Hook):
    """Shrinks the weights at the end of each epoch."""

    name = "ends"

    def after_epoch(self, trainer):
        """Once an epoch."""
        with torch.no_grad():
            trainer.model[0].weight.mul_(0.5)


def test_what_is_changed_at_the_start_of_an_epoch_comes_after_the_end_of_the_one_before():
    """`step(n)` would switch the hook off before it acts at the end of the epoch."""
    def make(seed):
        trainer = make_trainer(seed)
        trainer.hooks.add(AtEnds())
        return trainer
    trainer = make(7)
    trainer.step(epochs=2)
    trainer.tune(**{"ends.enabled": False})
    trainer.fit()
    names = {"make_trainer": make}
    exec(trainer.journal.to_script(epochs=EPOCHS), names)
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer), weights(names["trainer"])))


def with_schedule(sched, **total):
    """A function that makes the trainer with another schedule."""
    def make(seed):
        trainer = make_trainer(seed, total or None)
        trainer.sched = sched
        return trainer
    return make


def test_an_evaluation_that_was_asked_for_lowers_the_rate_again():
    """By clicks in an epoch, at its end and in its evaluation, and by code."""
    make = with_schedule(lambda optim: torch.optim.lr_scheduler.ReduceLROnPlateau(
        optim, factor=0.5, patience=0, threshold=0.9))
    trainer, plain = make(7), make(7)
    plain.fit()
    def hand(kind):
        if kind == "boundary" and trainer.step_state.boundary in (3, 7, 9, 12):
            trainer.post(Command("validate", source="widget"))
    trainer.at_safe_point = hand
    trainer.step(16)
    trainer.do("validate")
    trainer.fit()
    assert trainer.rates() < plain.rates()
    names, script = {"make_trainer": make}, trainer.journal.to_script()
    exec(script, names)
    assert script.count("trainer.do('validate')") == 5
    assert all(map(torch.equal, weights(trainer), weights(names["trainer"])))
    assert trainer.rates() == names["trainer"].rates()


def at_the_last_step(trainer):
    """A click before the last evaluation, one after it, and another length."""
    def hand(kind):
        if kind == "boundary" and trainer.step_state.optimizer_step == 10 and not trainer.journal:
            trainer.post(Command("validate", source="widget"))
    trainer.at_safe_point = hand
    trainer.fit()
    trainer.tune(lr=0.02)
    trainer.do("validate")
    trainer.fit(max_steps=18)


@pytest.mark.parametrize("later", [
    lambda trainer: (trainer.step(10), setattr(trainer, "max_steps", 18), trainer.fit()),
    lambda trainer: (trainer.step(9), setattr(trainer, "max_steps", 5), trainer.fit(),
                     trainer.fit(epochs=3)),
    lambda trainer: (trainer.fit(), setattr(trainer, "max_steps", 14),
                     setattr(trainer, "max_steps", 18), trainer.fit()),
    at_the_last_step], ids=["not at its end", "shorter", "twice", "asked for"])
def test_it_is_evaluated_where_the_run_was(later):
    """A schedule counts evaluations, also that of an end which was not the last."""
    make = with_schedule(lambda optim: torch.optim.lr_scheduler.ReduceLROnPlateau(
        optim, factor=0.5, patience=0, threshold=0.9), max_steps=10)
    trainer, names = make(7), {"make_trainer": make}
    later(trainer)
    exec(trainer.journal.to_script(), names)
    again = names["trainer"]
    assert list(again.history.steps("valid/loss")) == list(trainer.history.steps("valid/loss"))
    assert all(map(torch.equal, weights(trainer), weights(again)))


@pytest.mark.parametrize("by_hook", [False, True])
def test_a_run_that_was_loaded_after_its_end_is_evaluated_there(tmp_path, by_hook):
    """In another trainer, which is to go on; the file is of `save`, or a checkpoint of the end."""
    sched = lambda optim: torch.optim.lr_scheduler.ReduceLROnPlateau(
        optim, factor=0.5, patience=0, threshold=0.9)
    make, longer = (with_schedule(sched, max_steps=steps) for steps in (10, 18))
    first, later = make(7), longer(7)
    if by_hook:
        first.hooks.add(CheckpointHook(folder=tmp_path, every_epochs=None))
    first.fit()
    if not by_hook:
        first.save(tmp_path / "run.pt")
    later.load(max(tmp_path.glob("*.pt")))
    later.fit()
    names = {"make_trainer": make}
    exec(later.journal.to_script(), names)
    steps = [list(each.history.steps("valid/loss")) for each in (later, names["trainer"])]
    assert steps[0] == steps[1] == [7, 10, 14, 18]
    assert all(map(torch.equal, weights(later), weights(names["trainer"])))


def test_several_evaluations_at_one_step_are_named():
    """The script makes one, and says that there were more."""
    trainer = make_trainer(7)
    def hand(kind):
        if kind == "boundary" and trainer.step_state.boundary in (5, 6):
            trainer.post(Command("validate", source="widget"))
    trainer.at_safe_point = hand
    trainer.fit()
    trainer.do("validate")
    trainer.fit(epochs=4)
    script = trainer.journal.to_script()
    places = {(entry.step, entry.reason) for entry in trainer.journal if entry.kind == "validate"}
    count = sum(entry.kind == "validate" for entry in trainer.journal)
    assert (len(places), count) == (2, 3)
    assert script.count("trainer.do('validate')") == len(places)
    assert script.count("# it was evaluated once more here") == 1


@pytest.mark.parametrize("later", [
    lambda trainer: (trainer.fit(), trainer.fit(epochs=3)),
    lambda trainer: (trainer.step(5), setattr(trainer, "max_steps", 18), trainer.fit()),
    lambda trainer: (trainer.step(5), setattr(trainer, "epochs", None),
                     setattr(trainer, "epochs", 3), trainer.fit())])
def test_another_length_bends_the_schedule_where_it_did(later):
    """After the end, and on the way."""
    make = with_schedule("one_cycle", epochs=2)
    trainer, names = make(7), {"make_trainer": make}
    with pytest.warns(UserWarning, match="one_cycle"):
        later(trainer)
    with pytest.warns(UserWarning, match="one_cycle"):
        exec(trainer.journal.to_script(), names)
    assert all(map(torch.equal, weights(trainer), weights(names["trainer"])))
    assert trainer.step_state.optimizer_step == names["trainer"].step_state.optimizer_step > 14


def test_pauses_stops_and_a_run_that_is_extended():
    """What interrupts a run leaves no line; another length is set where it was, whatever the length
    of the trainer that the function makes."""
    trainer = make_trainer(7, {"epochs": 1})
    def hand(kind):
        if kind == "boundary" and trainer.step_state.boundary == 4:
            trainer.stop()
    trainer.at_safe_point = hand
    trainer.fit()
    trainer.tune(lr=0.1)
    trainer.fit()
    trainer.tune(lr=0.05)
    trainer.fit(epochs=2)
    assert [entry.kind for entry in trainer.journal] == ["stop", "tune", "tune", "totals"]
    script = trainer.journal.to_script(epochs=2)
    again = {"make_trainer": lambda seed: make_trainer(seed, {"epochs": 4})}
    exec(script, again)
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer), weights(again["trainer"])))
    assert "trainer.fit(epochs=1); trainer.tune(lr=0.05)\ntrainer.epochs = 2\n" in script
    assert script.count("\n") == 8 and "stop" not in script


def test_an_empty_journal_gives_a_script_that_just_fits():
    trainer = make_trainer(3)
    trainer.fit()
    script = trainer.journal.to_script()
    assert script.splitlines()[2:] == ["trainer = make_trainer(seed=3)", "trainer.fit(epochs=3)"]
    assert_same(trainer, script)
    bare = Journal().to_script(max_steps=5).splitlines()
    assert bare[2:] == ["trainer = make_trainer()", "trainer.fit(max_steps=5)"]
    with pytest.raises(ValueError, match="epochs=1, max_steps=2"):
        Journal().to_script(epochs=1, max_steps=2)


def test_a_script_says_how_long_the_run_was_last_to_be():
    """What `fit` was given, also later, and after a rewind; what the caller says comes first."""
    trainer = make_trainer(3)
    trainer.fit(max_steps=10)
    trainer.fit(max_steps=14)
    script = trainer.journal.to_script()
    assert script.endswith("trainer.max_steps = 10\n"
                           "trainer.fit(max_steps=10); trainer.max_steps = 14\n"
                           "trainer.fit(max_steps=14)\n")
    assert trainer.journal.to_script(epochs=2).endswith("trainer.fit(epochs=2)\n")
    for first, length in (({"epochs": 4, "max_steps": None}, "epochs=4"),
                          ({"epochs": 4, "max_steps": 9}, "max_steps=9"),
                          ({"epochs": None, "max_steps": None}, "")):
        journal = Journal({"seed": 1, "totals": first})
        assert journal.to_script().endswith(f"trainer.fit({length})\n")
    journal = Journal({"seed": 1, "totals": {"epochs": 4, "max_steps": None}})
    journal.record("totals", "totals", "4 epochs", "6 epochs", step=3)
    journal.record("rewind", "rewind", 3, 2, step=2, survives=0)
    assert journal.to_script().endswith("trainer.fit(epochs=4)\n")


def test_what_a_run_writes_can_be_read(tmp_path):
    """A seed of 64 bits, a length that is changed twice, a name with an odd space."""
    journal = Journal({"seed": 2**64 - 1, "totals": {"epochs": None, "max_steps": 9}})
    journal.record("totals", "totals", "9 steps", "None epochs", step=3)
    assert journal.to_script().endswith("trainer.fit()\n")
    journal.record("totals", "totals", "None epochs", "5 epochs", step=3)
    journal.record("save", "モデル\u3000最終.pt", step=3)
    journal.record("note", "note", new="two\nlines", step=3)
    journal.save(tmp_path / "journal.jsonl")
    again = Journal.load(tmp_path / "journal.jsonl")
    assert again.entries == journal.entries and again.header == journal.header
    assert again.to_script().splitlines()[2:] == [
        f"trainer = make_trainer(seed={2**64 - 1})", "trainer.max_steps = 9",
        "trainer.step(3); trainer.epochs = 5", "trainer.fit(epochs=5)"]


EVIL = [({"kind": "assign", "name": "x; import os", "new": 1}, "cannot be shown"),
        ({"kind": "assign", "name": "class", "new": 1}, "cannot be shown"),
        ({"kind": "assign", "name": "loss_fn", "new": "x\nimport os"}, "cannot be shown"),
        ({"kind": "skip", "name": "batch", "new": "x\rimport os"}, "cannot be shown"),
        ({"kind": "load", "name": "load", "step": "1\nimport os"}, "step = "),
        ({"kind": "tune", "name": "lr", "new": 1, "batch_idx": "4"}, "batch_idx = "),
        ({"kind": "totals", "name": "totals", "new": "6 epochs)\nx"}, "a length of a run"),
        ({"kind": "tune", "name": "lr", "new": [1]}, "new = ")]
EVIL_HEADERS = [{"seed": "1)\nimport os  #"}, {"given": {"every": "x"}}, {"given": {"every": 0}},
                {"totals": {"epochs": "1)\nimport os  #", "max_steps": None}},
                {"totals": {"epochs": 1}}]


@pytest.mark.parametrize("entry,words", EVIL)
def test_no_line_of_a_file_gets_into_the_script(tmp_path, entry, words):
    """A file is data: what would be code in the script is refused, with its line."""
    path = tmp_path / "journal.jsonl"
    path.write_text('{"journal": 1, "seed": 1}\n' + json.dumps({"number": 1} | entry) + "\n")
    with pytest.raises(ValueError, match=rf"line 2: .*{words}"):
        Journal.load(path)


@pytest.mark.parametrize("header", EVIL_HEADERS)
def test_no_head_of_a_file_gets_into_the_script(tmp_path, header):
    """The seed and the lengths are whole numbers."""
    path = tmp_path / "journal.jsonl"
    path.write_text(json.dumps({"journal": 1, "seed": 1} | header) + "\n")
    (name, value), = header.items()
    with pytest.raises(ValueError, match=re.escape(f"line 1: {name}={value!r:.60}: not of a run")):
        Journal.load(path)


def test_a_run_without_seed_says_so():
    script = Journal({"seed": None, "weights": "0"}).to_script()
    assert "no seed" in script and "trainer = make_trainer()" in script.splitlines()


def test_what_only_tells_leaves_no_line_but_a_failed_batch_is_named():
    journal = Journal({"seed": 1})
    for kind in ("note", "pause", "resume", "stop", "memory"):
        journal.record(kind, kind, new="x", step=5, batch_idx=5, source="widget")
    journal.record("skip", "batch", new="batch 6 of epoch 0", step=6, batch_idx=6)
    journal.record("tune", "lr", 1.0, 2.0, step=8, batch_idx=8)
    assert journal.to_script().splitlines()[3:] == [
        "# batch 6 of epoch 0 failed after step 6 and was left out: trainer.fit(skip_failed=True)",
        "trainer.step(8); trainer.tune(lr=2.0)", "trainer.fit()"]


@pytest.mark.parametrize("how", ["stop", "pause"])
@pytest.mark.parametrize("by_epochs", [False, True])
def test_a_hook_that_halts_the_run_before_a_change_halts_the_script_too(how, by_epochs):
    """And the script goes on, as the person did."""
    def made(seed=1):
        def halt(trainer):
            if trainer.step_state.optimizer_step in (2, 3, 7):
                getattr(trainer, how)()
        trainer = make_trainer(seed)
        trainer.hooks.add(LambdaHook(after_step=halt))
        return trainer
    run = made()
    while run.step_state.optimizer_step < 5:
        run.step(epochs=1) if by_epochs else run.step(5 - run.step_state.optimizer_step)
    run.tune(lr=0.3)
    while str(run.state) != "finished":
        run.fit()
    names = {"make_trainer": made}
    exec(run.journal.to_script(), names)
    again = names["trainer"]
    at = [each.step for each in run.journal if each.kind == "tune"]
    assert [each.step for each in again.journal if each.kind == "tune"] == at
    assert at == [7 if by_epochs else 5]
    assert str(again.state) == "finished"
    assert all(map(torch.equal, weights(run), weights(again)))


class Kind(enum.StrEnum):
    """A choice that is a text and more."""

    MEAN = "mean"


ODD = ["lambda", "self", 'a "b', "a\\b", "straße.é"]
NAMES = st.sampled_from(ODD) | st.from_regex(r"[a-z_]{1,8}(\.[a-z]{1,8})?", fullmatch=True)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(),
                   st.just(Kind.MEAN))


@pytest.mark.slow
@given(NAMES, VALUES)
@example("x", float("nan"))
@example("x", float("-inf"))
def test_every_name_and_value_can_be_read_again(name, value):
    """Keywords, dots, quotes, line ends, numbers that are none."""
    journal = Journal()
    journal.record("tune", name, None, value)
    script = journal.to_script()
    ast.parse(script)
    called = []
    class Told:
        """Keeps what it is called with."""
        def tune(_told, **values):  # `self` is a name that a tunable may have
            called.append(values)
        def fit(_):
            """Nothing."""
    exec(script, {"make_trainer": Told})
    assert repr(called) == repr([{name: getattr(value, "value", value)}])


def other_loader(batches, seed):
    """Other samples than those of `make_trainer`, shuffled by the run's random stream."""
    inputs = torch.randn(batches * 3, 3, generator=torch.Generator().manual_seed(seed))
    data = torch.utils.data.TensorDataset(inputs, inputs.prod(1, keepdim=True))
    return torch.utils.data.DataLoader(data, batch_size=3, shuffle=True)


def harder(epoch, batches, seed):
    """A hook that gives the run another loader after so many epochs."""
    def after_epoch(trainer):
        """At the boundary that follows."""
        if trainer.step_state.epoch == epoch:
            trainer.ask(lambda: setattr(trainer, "train_dl", other_loader(batches, seed)))
    return LambdaHook(name="harder", after_epoch=after_epoch)


@pytest.mark.slow
def test_a_replaced_loader_is_given_to_the_script(tmp_path):
    """Between two drives, by a hook, and while the run is paused; run in another process."""
    trainer = make_trainer(seed=3, total={"epochs": 5})
    trainer.step(epochs=1)
    trainer.train_dl = other_loader(5, 1)
    trainer.valid_dl = {"valid": other_loader(2, 2), "hard": other_loader(2, 3)}
    trainer.step(2)
    trainer.tune(lr=0.02)
    trainer.hooks.add(hook := harder(2, 4, 4))
    trainer.fit()
    trainer.hooks.remove(hook)
    trainer.train_dl = other_loader(5, 1)
    trainer.fit(epochs=6)
    script = trainer.journal.to_script()
    lines = script.splitlines()
    assert [line for line in lines if "_dl" in line] == [
        "# train_dl_2: DataLoader, from step 7 on", "# valid_dl_2: dict, from step 7 on",
        "# train_dl_3: DataLoader, from step 12 on", "# train_dl_4: DataLoader, from step 24 on",
        "trainer.step(epochs=1); trainer.train_dl = train_dl_2",
        "trainer.valid_dl = valid_dl_2",
        "trainer.step(epochs=1); trainer.train_dl = train_dl_3",
        "trainer.fit(epochs=5);  trainer.train_dl = train_dl_4"]
    program = tmp_path / "again.py"
    program.write_text("""\
import torch
import test_journal_script as given
make_trainer = lambda seed: given.make_trainer(seed, {"epochs": 5})
train_dl_2, train_dl_3, train_dl_4 = (given.other_loader(*each) for each in
                                      ((5, 1), (4, 4), (5, 1)))
valid_dl_2 = {"valid": given.other_loader(2, 2), "hard": given.other_loader(2, 3)}
""" + script + f"torch.save(given.weights(trainer), {str(tmp_path / 'weights.pt')!r})\n")
    tests = Path(__file__).parent
    paths = [str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]
    warm.run([sys.executable, program], check=True, cwd=tests.parent.parent, quick_end=True,
             env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))})
    again = torch.load(tmp_path / "weights.pt")
    assert all(map(torch.equal, again, weights(trainer)))


def test_a_script_of_which_an_object_is_missing_stops_before_it():
    """With a name that says which one."""
    trainer = make_trainer(seed=3)
    trainer.step(epochs=1)
    trainer.train_dl = other_loader(5, 1)
    trainer.fit()
    with pytest.raises(NameError, match="train_dl_2"):
        exec(trainer.journal.to_script(), {"make_trainer": make_trainer})


class StopsAt(Hook):
    """Ends the run at some steps, as an early stop does, and lets `fit()` not go on from there."""

    def __init__(self, *steps):
        self.steps = steps

    def after_step(self, trainer):
        if trainer.step_state.optimizer_step in self.steps:
            trainer.post(Command("stop", source="stops_at"))

    def ended_early(self, trainer):
        at = trainer.step_state.optimizer_step
        return f"it was stopped at {at}" if at in self.steps else None


@pytest.mark.parametrize("change", [lambda trainer: None, lambda trainer: trainer.tune(lr=0.003)])
@pytest.mark.parametrize("stops", [(6,), (6, 11), (9,)])
def test_a_run_that_a_hook_stopped_and_that_went_on_by_steps(stops, change):
    made = lambda seed=None: make_trainer(seed)
    trainer = made(0)
    trainer.hooks.add(StopsAt(*stops))
    trainer.fit()
    assert trainer.step_state.optimizer_step == stops[0]
    change(trainer)
    trainer.step(2)
    assert "trainer.step()\ntrainer.fit(" in trainer.journal.to_script()  # also of one that goes on
    while trainer.fit().status != "finished":
        trainer.step()

    def same(seed=None):
        """The same trainer again."""
        again = made(seed)
        again.hooks.add(StopsAt(*stops))
        return again

    names = {"make_trainer": same}
    exec(trainer.journal.to_script(), names)
    again = names["trainer"]
    assert again.step_state.optimizer_step == BATCHES * EPOCHS
    assert all(torch.equal(one, two) for one, two in zip(
        weights(trainer), weights(again), strict=True))
