"""Hooks: when they are called and in what order, which are refused, and what happens when one of
them fails."""

import traceback
from types import SimpleNamespace

import pytest
import small_runs
import torch
from torch import nn
from torch.utils.data import Dataset

from trainer_nb import ProgressHook, RecorderHook, Trainer
from trainer_nb.core.hook import (POINTS, QUESTIONS, TRAITS, Hook, HookSet, LambdaHook,
                                  MainProcessHook, check_hook)
from small_runs import Loop
from trainer_nb.core.tunable import Tunable


def make_batches(count=3, size=2):
    """So many pairs (inputs, targets)."""
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(size, 3, generator=draw), torch.randn(size, 1, generator=draw))
            for _ in range(count)]


def make_loop(*hooks, batches=3, valid=0, **settings):
    """A small run with n batches an epoch and in the evaluation."""
    torch.manual_seed(1)
    model = settings.pop("model", None) or nn.Linear(3, 1)
    settings.setdefault("loss_fn", nn.MSELoss())
    settings.setdefault("optim", lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    valid_dl = make_batches(valid) if valid else None
    return Loop(model, None, make_batches(batches), valid_dl, device="cpu", hooks=hooks, **settings)


def tracer(seen, *, order=0, note=lambda trainer, point: point, points=POINTS):
    """A hook at all these points that writes them down."""

    def at(point):
        return lambda trainer, *_: seen.append(note(trainer, point))

    return LambdaHook(order=order, name="tracer", **{point: at(point) for point in points})


def raiser(point, error=None):
    """A hook that fails at this point; its class is called Faulty."""

    def fail(self, trainer, *_):
        raise error or ValueError("planted")

    return type("Faulty", (Hook,), {point: fail})()


def weights(loop):
    """A copy of the model's parameters as one vector."""
    return nn.utils.parameters_to_vector(loop.model.parameters()).detach().clone()


# ---- the order of points

BATCH = ["before_batch", "after_pred", "after_loss", "after_backward", "after_batch"]
STEP = ["before_step", "after_step"]
LOOK = ["before_batch", "after_pred", "after_loss", "after_batch"]  # a batch of an evaluation
VALID = ["before_valid", *LOOK, *LOOK, "after_valid", "on_log"]


def test_all_points_of_a_run_in_order():
    """Two epochs of a full window, a tail window and an evaluation of two batches."""
    seen = []
    make_loop(tracer(seen), valid=2, gradient_accumulation_steps=2).fit(epochs=2)
    train = ["before_train", *BATCH, *BATCH, *STEP, *BATCH, *STEP, "after_train"]
    epoch = ["before_epoch", *train, *VALID, "after_epoch"]
    assert seen == ["before_fit", *epoch, *epoch, "after_fit", "cleanup_fit"]


def test_points_of_a_run_by_steps():
    """The loader ends once with a step missing; the last step is in mid-epoch, which never ends."""
    seen = []
    make_loop(tracer(seen), batches=2, valid=2).fit(max_steps=3)
    first = ["before_epoch", "before_train", *BATCH, *STEP, *BATCH, *STEP, "loader_exhausted",
             "after_train"]
    second = ["before_epoch", "before_train", *BATCH, *STEP, *VALID]
    assert seen == ["before_fit", *first, *VALID, "after_epoch", *second, "after_fit",
                    "cleanup_fit"]


def test_points_of_an_evaluation_before_the_first_step():
    """`eval_first` evaluates before the first epoch begins."""
    seen = []
    make_loop(tracer(seen), batches=1, valid=2, eval_first=True).fit(epochs=1)
    assert seen[: len(VALID) + 2] == ["before_fit", *VALID, "before_epoch"]
    assert seen.count("before_valid") == 2


def test_points_of_chunks():
    """A batch in chunks is one batch; each chunk has its own prediction, loss and backward pass."""
    seen = []
    make_loop(tracer(seen), batches=1, micro_batch_size=1).fit(epochs=1)
    chunk = ["after_pred", "after_loss", "after_backward"]
    assert seen[3:-4] == ["before_batch", *chunk, *chunk, "after_batch", *STEP]


def test_points_of_a_batch_that_is_left_out():
    """A loss of None has no backward pass, and a window of such batches no step."""
    seen = []
    loop = Loop(nn.Linear(3, 1), lambda batch, trainer: {"loss": None}, make_batches(2),
                hooks=[tracer(seen)])
    with pytest.raises(ValueError, match="made no optimizer step"):
        loop.fit(epochs=1)
    batch = ["before_batch", "after_batch"]
    assert seen[3:] == [*batch, *batch, "after_exception", "cleanup_fit"]


def test_points_of_a_test():
    """test() fires the points of a test, not those of a validation, and logs nothing."""
    seen = []
    make_loop(tracer(seen)).test(make_batches(2))
    assert seen == ["before_test", *LOOK, *LOOK, "after_test"]


def test_hooks_know_what_a_batch_is_for():
    """`training` and `split` tell training from each named validation loader, and come back
    afterwards."""
    seen = []

    def note(trainer, point):
        return point, trainer.training, trainer.split, trainer.model.training

    points = ("before_batch", "before_epoch", "after_epoch")
    loop = Loop(
        nn.Linear(3, 1), None, make_batches(1), {"near": make_batches(1), "far": make_batches(1)},
        loss_fn=nn.MSELoss(), hooks=[tracer(seen, note=note, points=points)],
    )  # fmt: skip
    loop.fit(epochs=1)
    assert seen == [
        ("before_epoch", True, "train", True),
        ("before_batch", True, "train", True),
        ("before_batch", False, "near", False),
        ("before_batch", False, "far", False),
        ("after_epoch", True, "train", True),
    ]


def test_counters_have_advanced_when_hooks_run():
    """A batch is counted at after_batch, a step at after_step, an epoch at after_epoch;
    evaluations count nothing."""
    seen = []

    def note(trainer, point):
        state = trainer.step_state
        return point, state.epoch, state.batch_idx, state.optimizer_step, state.samples_seen

    points = ("before_batch", "after_batch", "before_step", "after_step", "after_valid",
              "after_epoch")
    make_loop(tracer(seen, note=note, points=points), batches=2, valid=1).fit(epochs=1)
    assert seen == [
        ("before_batch", 0, 0, 0, 0), ("after_batch", 0, 1, 0, 2), ("before_step", 0, 1, 0, 2),
        ("after_step", 0, 1, 1, 2),
        ("before_batch", 0, 1, 1, 2), ("after_batch", 0, 2, 1, 4), ("before_step", 0, 2, 1, 4),
        ("after_step", 0, 2, 2, 4),
        ("before_batch", 0, 2, 2, 4), ("after_batch", 0, 2, 2, 4), ("after_valid", 0, 2, 2, 4),
        ("after_epoch", 1, 0, 2, 4),
    ]  # fmt: skip


def test_a_replaced_batch_prediction_and_gradient_count():
    """What a hook puts in place of batch, prediction or gradient is what the run goes on with."""

    def shift(trainer):
        trainer.batch = (trainer.batch[0] + 1, trainer.batch[1])

    def double(trainer):
        trainer.pred = trainer.pred * 2

    def replace(trainer):
        for parameter in trainer.model.parameters():
            parameter.grad = parameter.grad + 1

    loop = make_loop(LambdaHook(before_batch=shift, after_pred=double, before_step=replace),
                     batches=1)
    inputs, targets = make_batches(1)[0]
    before = weights(loop)
    loss = nn.functional.mse_loss(2 * loop.model(inputs + 1), targets)
    wanted = nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(loop.model.parameters())))
    loop.fit(epochs=1)
    torch.testing.assert_close(weights(loop), before - 0.1 * (wanted + 1))


# ---- who runs before whom


def test_low_orders_run_first_and_ties_keep_the_list():
    """Order decides; equal orders stay as they were given, or added."""
    seen = []

    def called(name, order):
        return LambdaHook(order=order, name=name, after_step=lambda trainer: seen.append(name))

    loop = make_loop(called("z", 5), called("c", 5), called("a", -1), called("d", 7), batches=1)
    loop.hooks.add(called("late", 5))
    loop.fit(epochs=1)
    assert seen == ["a", "z", "c", "late", "d"]
    assert [row.name for row in loop.hooks.running()] == seen


def test_a_hook_cannot_be_added_twice():
    """The very same object is refused; another one of its class gets a name of its own."""
    hook = Counting()
    loop = make_loop(hook, Counting())
    assert [row.name for row in loop.hooks.rows] == ["counting", "counting_2"]
    with pytest.raises(ValueError, match="Counting.*is added already"):
        loop.hooks.add(hook)


def test_added_and_removed_hooks_act_from_the_next_boundary():
    """In mid-window nothing changes: a new hook starts, and a removed one ends, with the next
    window."""
    new, old = Counting("after_batch"), Counting("after_batch")

    def swap(trainer):
        if trainer.step_state.batch_idx == 1:
            trainer.hooks.add(new)
            trainer.hooks.remove(old)

    make_loop(LambdaHook(order=-1, after_batch=swap), old, batches=4,
              gradient_accumulation_steps=2).fit(epochs=1)
    assert (old.calls, new.calls) == (2, 2)


class Counting(Hook):
    """Counts its calls at one point."""

    def __init__(self, point="after_step"):
        self.calls = 0
        setattr(self, point, self.count)

    def count(self, trainer):
        """One more."""
        self.calls += 1


def change_in_mid_window(**values):
    """A hook that tunes after the first batch of the first window; it keeps the reply."""

    def change(trainer):
        if trainer.step_state.batch_idx == 1 and hook.reply is None:
            hook.reply = trainer.tune(**values)
            hook.status = hook.reply.status

    hook = LambdaHook(order=-9, name="changer", after_batch=change)
    hook.reply = None
    return hook


def test_switched_off_at_the_next_boundary_and_on_again():
    """A hook switched off in mid-window still sees its window end;
    the journal has both changes, where they acted."""
    counting = Counting()
    changer = change_in_mid_window(**{"counting.enabled": False})
    loop = make_loop(counting, changer, batches=6, gradient_accumulation_steps=2)
    loop.fit(epochs=1)
    assert counting.calls == 1
    assert (changer.status, changer.reply.status,
            changer.reply.where) == ("pending", "applied", "at step 1")
    loop.tune(**{"counting.enabled": True})
    loop.fit(epochs=2)
    assert counting.calls == 1 + 3
    entries = [(e.kind, e.name, e.old, e.new, e.step, e.batch_idx) for e in loop.journal
               if e.kind == "tune"]
    assert entries == [
        ("tune", "counting.enabled", True, False, 1, 2),
        ("tune", "counting.enabled", False, True, 3, 0),
    ]


def test_reordered_at_the_next_boundary():
    """A new order acts from the next window on, and is journalled."""
    seen = []
    first = LambdaHook(order=1, name="first", after_batch=lambda trainer: seen.append("first"))
    second = LambdaHook(order=2, name="second", after_batch=lambda trainer: seen.append("second"))
    changer = change_in_mid_window(**{"first.order": 3})
    loop = make_loop(first, second, changer, batches=4, gradient_accumulation_steps=2)
    loop.fit(epochs=1)
    assert seen == ["first", "second"] * 2 + ["second", "first"] * 2
    assert [(e.name, e.old, e.new, e.step) for e in loop.journal] == [("first.order", 1, 3, 1)]


def test_every_intervention_is_told_to_the_hooks():
    """on_intervention gets the entry that the journal keeps."""
    seen = []
    loop = make_loop(LambdaHook(on_intervention=lambda trainer, entry: seen.append(entry)))
    loop.tune(lr=0.5)
    loop.note("look here")
    assert [(e.name, e.new) for e in seen] == [("lr", 0.5), ("note", "look here")]
    assert seen == loop.journal.entries


def test_main_process_hooks_run_in_the_main_process_only():
    """In another process they are not called, and neither their class nor an attribute can be
    overlooked."""

    class Writes(MainProcessHook):
        calls = 0

        def after_step(self, trainer):
            self.calls += 1

    for is_main, calls in ((True, 3), (False, 0)):
        hook, marked, usual = Writes(), Counting(), Counting()
        marked.main_process_only = True
        loop = make_loop(hook, marked, usual)
        loop.hooks.is_main = is_main
        loop.fit(epochs=1)
        assert (hook.calls, marked.calls, usual.calls) == (calls, calls, 3)


# ---- misspelled points

MISSPELLED = [
    ("befor_fit", "before_fit"), ("after_setp", "after_step"), ("on_step_end", None),
    ("before_training", "before_train"),
    ("cleanup", None), ("on_train_begin", None), ("afterstep", "after_step"),
    ("loader_exhaust", "loader_exhausted"),
]  # fmt: skip
WRONG = [pair for pair in MISSPELLED if pair[0] != "cleanup"]


def says(excinfo, name, right):
    """The message names what is wrong, and the right name where there is one."""
    assert name in str(excinfo.value)
    assert right is None or right in str(excinfo.value)


@pytest.mark.parametrize(("name", "right"), WRONG)
def test_misspelled_in_a_hook_class(name, right):
    """Already the class statement is refused, also where the method comes from a mix-in."""
    with pytest.raises(TypeError) as excinfo:
        type("Mine", (Hook,), {name: lambda self, trainer: None})
    says(excinfo, name, right)
    mixin = type("Mixin", (), {name: lambda self, trainer: None})
    with pytest.raises(TypeError) as excinfo:
        type("Mine", (mixin, Hook), {})
    says(excinfo, name, right)


@pytest.mark.parametrize(("name", "right"), WRONG)
def test_misspelled_in_any_other_object(name, right):
    """An object without our base class is checked when it is added, methods and attributes
    alike."""

    def point(*_):
        return None

    plain = type("Plain", (), {name: point, "after_step": point})
    for hook in (plain(), SimpleNamespace(after_step=point, **{name: point})):
        with pytest.raises(TypeError) as excinfo:
            make_loop(hook)
        says(excinfo, name, right)


@pytest.mark.parametrize(("name", "right"), MISSPELLED)
def test_misspelled_in_a_lambda_hook(name, right):
    """Each function must be for a hook point."""
    with pytest.raises(TypeError) as excinfo:
        LambdaHook(**{name: lambda trainer: None})
    says(excinfo, name, right)


@pytest.mark.parametrize(("name", "right"), WRONG)
def test_misspelled_in_a_component(name, right):
    """A `cb_` method of the model that looks like a hook point must be one."""
    model = type("Model", (nn.Linear,), {f"cb_{name}": lambda self, trainer: None})(3, 1)
    with pytest.raises(TypeError) as excinfo:
        make_loop(model=model)
    says(excinfo, f"cb_{name}", right and f"cb_{right}")


@pytest.mark.parametrize("wrong", [Counting, object(), 3, "after_step", lambda trainer: None])
def test_what_is_no_hook_is_refused(wrong):
    """A class instead of an instance, or an object without a single point."""
    with pytest.raises(TypeError, match=r"Counting\(\)" if wrong is Counting else "not a hook"):
        make_loop(wrong)


def test_helpers_of_a_hook_are_no_points():
    """Own methods are welcome; those that look like points begin with an underscore."""

    class Mine(Hook):
        def _before_lunch(self):
            """No point."""

        def _after_step(self):
            """None either, though it is called like one."""

        def refresh(self):
            """Looks like none."""

    class Codebook(nn.Linear):
        def cb_loss(self):
            """A model may have names of its own."""

    check_hook(Mine())
    loop = make_loop(Mine(), model=Codebook(3, 1))
    assert [(row.label, row.points) for row in loop.hooks.rows] == [("Mine", ())]


# ---- what hooks are asked for


@pytest.mark.parametrize(("name", "right"),
                         [("rewind_point", "rewind_points"), ("weight_set", "weight_sets"),
                          ("start_anow", "start_anew")])
def test_a_misspelled_question(name, right):
    """A method that nearly has the name of a question is refused in a class, and in any other
    object."""
    def wrong(self, trainer=None):
        pass
    plain = {name: wrong, "after_step": wrong}
    for make in (lambda: type("Mine", (Hook,), {name: wrong}),
                 lambda: HookSet([type("Plain", (), plain)()])):
        with pytest.raises(TypeError, match=f"never called: did you mean {right}") as excinfo:
            make()
        says(excinfo, name, right)


@pytest.mark.parametrize(("name", "right"),
                         [("write", "writes"), ("main_proces_only", "main_process_only"),
                          ("enable", "enabled")])
def test_a_misspelled_attribute(name, right):
    """So is a value that nearly has the name of an attribute that is read."""
    with pytest.raises(TypeError, match=f"never read: did you mean {right}") as excinfo:
        type("Mine", (Hook,), {name: True})
    says(excinfo, name, right)


def test_short_words_are_the_authors_own():
    """A method or value with a short name may be near to one of ours."""
    type("Mine", (Hook,),
         {"write": lambda self, text: None, "lead": lambda self: 1, "stored": lambda self: 1,
          "orders": [], "names": ()})


@pytest.mark.parametrize("question", QUESTIONS)
def test_hook_answers_every_question_with_nothing(question):
    """Hook's own answer is none, no, or empty, and counts as no answer."""
    given = {"load_state_dict": ({},), "check_state": (None, {}), "weight_sets_in": ({}, "plain"),
             "own_tunables": ("plain",), "run_loaded": (None, None)}
    alone = ("state_dict", "schedule_name", "best_state", "rewind_points", "finish_writing")
    args = given.get(question, () if question in alone else (None,))
    plain = SimpleNamespace(after_step=lambda trainer: None)
    hooks = HookSet([Hook(), plain])
    assert [not row.ask(question, *args) for row in hooks.rows] == [True, True]
    assert hooks.answering(question) == [] and hooks.ask(question, *args) == []


def test_who_is_asked_and_in_what_order():
    """In running order, with or without the base class;
    those that are off only where that is wanted."""
    late = type("Late", (Hook,), {"order": 5, "leads": lambda self, trainer: trainer})()
    off = type("Off", (Hook,), {"enabled": False, "leads": lambda self, trainer: None})()
    plain = SimpleNamespace(after_step=lambda trainer: None, leads=lambda trainer: -trainer,
                            name="plain")
    hooks = HookSet([late, off, plain, Hook()])
    assert [(row.name, answer)
            for row, answer in hooks.ask("leads", 3)] == [("off", None), ("plain", -3), ("late", 3)]
    assert [row.name for row, _ in hooks.ask("leads", 3, enabled=True)] == ["plain", "late"]
    with pytest.raises(AttributeError, match="lead"):
        hooks.ask("lead", 3)


def test_an_attribute_that_is_missing_is_that_of_hook():
    """Any other object has the attributes of the base class where it has none of its own."""
    plain = SimpleNamespace(after_step=lambda trainer: None, kept=False)
    row = HookSet([plain]).rows[0]
    assert [row.trait(name) for name in TRAITS] == [False if name == "kept" else getattr(Hook, name)
                                                    for name in TRAITS]
    with pytest.raises(AttributeError, match="keep"):
        row.trait("keep")


# ---- the table


@pytest.mark.parametrize("value", [torch.ones(3), [], None, 0])
def test_an_attribute_of_ones_own_is_no_switch(value):
    """A hook that calls something of its own `kept`, or `writes`, has its state in a file."""
    class Keeps(Hook):
        def after_step(self, trainer):
            self.kept = self.writes = value

        def state_dict(self):
            return {"there": 3}

        def load_state_dict(self, state):
            self.there = state["there"]
    def make():
        return Trainer(nn.Linear(2, 1), train_dl=[(torch.ones(4, 2), torch.ones(4, 1))] * 12,
                       loss_fn=nn.MSELoss(), epochs=1, progress=False, hooks=[Keeps()])
    trainer, again = make(), make()
    trainer.step(9)
    again.load_state_dict(trainer.state_dict())
    assert again.get_hook(Keeps).there == 3
    trainer.fit()
    with trainer.trial() as trial:
        trial.step()



def test_the_table_lists_just_what_runs():
    """In running order, with the points that are really overridden;
    a switched-off hook is shown as off."""

    class Late(Hook):
        order = 90

        def after_step(self, trainer):
            """Nothing."""

        def on_log(self, trainer, records):
            """Nothing."""

    class Off(Late):
        enabled = False
        order = 5

    plain = SimpleNamespace(before_fit=lambda trainer: None, order=3, name="plain")
    loop = make_loop(Late(), Off(), Hook(), plain)
    rows = [[cell.strip() for cell in line.strip("|").split("|")][:4]
            for line in loop.describe_hooks().splitlines()]
    assert rows[2:] == [
        ["0", "hook (Hook)", "on", ""],
        ["3", "plain (SimpleNamespace)", "on", "before_fit"],
        ["5", "off (Off)", "off", "after_step, on_log"],
        ["90", "late (Late)", "on", "after_step, on_log"],
    ]


def test_the_table_says_what_is_called():
    """A point that the table lists is called, and one that it does not list is not."""
    seen = []
    hook = tracer(seen, points=("after_step", "cleanup_fit"))
    loop = make_loop(hook, batches=1)
    assert [row.points for row in loop.hooks.rows] == [("cleanup_fit", "after_step")]
    loop.fit(epochs=1)
    assert seen == ["after_step", "cleanup_fit"]
    assert [(row.name, method.__name__)
            for row, method in loop.hooks.after_step] == [("tracer", "<lambda>")]
    assert loop.hooks.before_step == ()


def test_calls_and_time_are_counted_only_while_watched():
    """Unwatched, the table shows dashes and the methods are called as they are;
    watching again goes on."""
    hook = Counting()
    loop = make_loop(hook, batches=2)
    row = loop.hooks.rows[0]
    loop.fit(epochs=1)
    assert (row.calls, row.seconds) == (0, 0.0)
    assert loop.hooks.after_step == ((row, hook.after_step),)
    assert loop.describe_hooks().splitlines()[-1].endswith("| – | – |")
    loop.hooks.watch()
    loop.fit(epochs=3)
    assert row.calls == 4 and row.seconds > 0
    assert "| 4 |" in loop.describe_hooks().splitlines()[-3]
    loop.hooks.watch(False)
    loop.fit(epochs=4)
    assert row.calls == 4
    loop.hooks.watch()
    loop.fit(epochs=5)
    assert row.calls == 6
    assert hook.calls == 10


def test_watching_begins_at_the_next_boundary():
    """Switched on in mid-window, counting starts with the next window, for all hooks alike."""
    counting = Counting("after_batch")

    def look(trainer):
        if trainer.step_state.batch_idx == 1:
            trainer.hooks.watch()

    loop = make_loop(LambdaHook(order=-1, after_batch=look), counting, batches=4,
                     gradient_accumulation_steps=2)
    loop.fit(epochs=1)
    assert [row.calls for row in loop.hooks.rows] == [2, 2]


# ---- a hook that fails

RAISING = [
    "before_fit", "before_epoch", "before_train", "before_batch", "after_pred", "after_loss",
    "after_backward",
    "after_batch", "before_step", "after_step", "after_train", "before_valid", "after_valid",
    "on_log", "after_epoch",
]  # fmt: skip


@pytest.mark.parametrize("point", RAISING)
def test_an_exception_names_hook_and_point(point):
    """It is the hook's own exception with its traceback;
    everybody is told, and everybody cleans up."""
    seen, error = [], ValueError("planted")
    ends = ("after_fit", "after_cancel", "after_exception", "cleanup_fit")

    def note(trainer, point):
        return point, trainer.exception is error

    early, late = (tracer(seen, order=order, note=note, points=ends) for order in (-5, 5))
    loop = make_loop(early, raiser(point, error), late, valid=1)
    with pytest.raises(ValueError) as excinfo:
        loop.fit(epochs=1)
    assert excinfo.value is error
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][-1] == "fail"
    said = "".join(traceback.format_exception(error))
    assert "'faulty'" in said and f"Faulty.{point}" in said
    assert loop.error_text.rstrip() == said.rstrip() or f"Faulty.{point}" in loop.error_text
    assert next(row for row in loop.hooks.rows
                if row.name == "faulty").last_error == "ValueError: planted"
    assert seen == [("after_exception", True)] * 2 + [("cleanup_fit", True)] * 2
    assert loop.result().status == "error"


@pytest.mark.parametrize("point", RAISING)
def test_the_run_goes_on_after_a_hook_failed(point):
    """Without that hook the same run is finished to its totals:
    no batch is lost, no step made twice."""
    taken = []

    def note(trainer, point):
        return trainer.step_state.optimizer_step, float(trainer.batch[0].sum())

    faulty = raiser(point)
    loop = make_loop(faulty, tracer(taken, order=-1, note=note, points=["after_step"]), valid=1)
    straight = []
    make_loop(tracer(straight, note=note, points=["after_step"])).fit(epochs=2)
    with pytest.raises(ValueError):
        loop.fit(epochs=2)
    loop.hooks.remove(faulty)
    result = loop.fit(epochs=2)
    assert (result.status, result.epochs, result.steps) == ("finished", 2, 6)
    assert taken == straight
    assert loop.error_text is None and loop.exception is None


def test_gradients_of_a_failed_window_are_dropped():
    """A window that a hook broke leaves nothing behind:
    done again, it gives the step of an unbroken run."""

    def fail(trainer):
        if trainer.step_state.batch_idx == 2 and not failed:
            failed.append(True)
            raise ValueError("planted")

    failed = []
    loop = make_loop(LambdaHook(after_backward=lambda trainer: None, after_batch=fail),
                     gradient_accumulation_steps=3)
    with pytest.raises(ValueError):
        loop.fit(epochs=1)
    assert (loop.step_state.batch_idx, loop.step_state.samples_seen,
            loop.step_state.window_batches) == (0, 0, 0)
    assert all(p.grad is None for p in loop.model.parameters())
    loop.fit(epochs=1)
    unbroken = make_loop(gradient_accumulation_steps=3)
    unbroken.fit(epochs=1)
    assert torch.equal(weights(loop), weights(unbroken))
    assert loop.step_state == unbroken.step_state


def test_an_exception_in_after_step_waits_for_the_other_hooks():
    """Whoever keeps step with the optimizer misses no step because of another hook."""
    last, first = Counting(), Counting()
    last.order, first.order = 50, -50
    loop = make_loop(first, raiser("after_step", ValueError("one")),
                     raiser("after_step", KeyError("two")), last)
    with pytest.raises(ValueError, match="one"):
        loop.fit(epochs=1)
    assert (first.calls, last.calls, loop.step_state.optimizer_step) == (1, 1, 1)
    assert [row.last_error
            for row in loop.hooks.running()] == [None, "ValueError: one", "KeyError: 'two'", None]


@pytest.mark.parametrize("point", ["after_fit", "cleanup_fit", "after_cancel"])
def test_an_exception_at_the_end_does_not_cheat_the_other_hooks(point):
    """Every hook gets its end and its clean-up, once, even if one of them fails there."""
    seen = []
    ends = (point, "cleanup_fit") if point != "cleanup_fit" else (point,)
    loop = make_loop(raiser(point), tracer(seen, points=ends))
    if point == "after_cancel":
        loop.hooks.add(LambdaHook(after_step=lambda trainer: trainer.stop()))
    with pytest.raises(ValueError, match="planted"):
        loop.fit(epochs=1)
    assert seen == list(ends)


def test_a_second_exception_does_not_hide_the_first():
    """A hook that fails while the run ends after an exception is a note on it."""
    seen = []
    loop = make_loop(
        raiser("before_step", KeyError("first")), raiser("after_exception"),
        tracer(seen, points=["cleanup_fit"])
    )
    with pytest.raises(KeyError, match="first") as excinfo:
        loop.fit(epochs=1)
    assert any("ValueError: planted" in note for note in excinfo.value.__notes__)
    assert seen == ["cleanup_fit"]


# ---- values between hooks


class Counts(Hook):
    """Stores the number of steps for others."""

    def after_step(self, trainer):
        """Store it."""
        self.store(trainer, "steps", trainer.step_state.optimizer_step)


def test_hooks_share_values():
    """What one class stored another one reads; a run has its own values."""

    class Reads(Hook):
        def after_step(self, trainer):
            read.append((self.get(trainer, Counts, "steps"), self.get(trainer, Reads, "steps", -1)))

    read = []
    loop, other = make_loop(Reads(), Counts(), batches=2), make_loop()
    loop.fit(epochs=1)
    assert read == [(None, -1), (1, -1)]
    assert Counts().get(loop, Counts, "steps") == 2
    assert Counts().get(other, Counts, "steps", "none") == "none"


def test_get_hook_finds_by_class():
    """The first hook of the class in running order, or the default."""
    first, second = Counts(), Counts()
    second.order = -1
    loop = make_loop(first, second)
    assert loop.get_hook(Counts) is second
    assert loop.get_hook(MainProcessHook, "none") == "none"


def test_hooks_bring_tunables_under_their_name():
    """A declared value is tuned as name.value, kept in its bounds."""

    class SmoothHook(Hook):
        width = Tunable(4, min=1)

    hook = SmoothHook()
    loop = make_loop(hook)
    loop.tune(**{"smooth.width": 9})
    assert hook.width == 9
    with pytest.raises(ValueError, match="smooth.width = 0"):
        loop.tune(**{"smooth.width": 0})
    assert hook.width == 9 and SmoothHook().width == 4


# ---- components that are hooks too


class ModelWithPoints(nn.Linear):
    """A model that listens."""

    def cb_before_fit(self, trainer):
        """Note the call."""
        trainer.seen.append(("model", "before_fit"))

    def cb_after_step(self, trainer):
        """Note the call."""
        trainer.seen.append(("model", "after_step"))


class DataWithPoints(Dataset):
    """A dataset that listens."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.ones(3) * index, torch.zeros(1)

    def cb_before_epoch(self, trainer):
        """Note the call."""
        trainer.seen.append(("data", "before_epoch"))


class OptimizerWithPoints(torch.optim.SGD):
    """An optimizer that listens."""

    def cb_before_step(self, trainer):
        """Note the call."""
        trainer.seen.append(("optimizer", "before_step"))


class LossWithPoints(nn.MSELoss):
    """A loss function that listens."""

    def cb_on_log(self, trainer, records):
        """Note the call."""
        trainer.seen.append(("loss", sorted(records)))


def test_components_are_hooks():
    """cb_ methods of model, dataset, optimizer and loss function are called with the trainer, and
    are in the table."""
    loader = torch.utils.data.DataLoader(DataWithPoints())
    loop = Loop(
        ModelWithPoints(3, 1), None, loader, make_batches(1), loss_fn=LossWithPoints(),
        optim=lambda parameters: OptimizerWithPoints(parameters, lr=0.1),
    )  # fmt: skip
    loop.seen = []
    loop.fit(epochs=1)
    step = [("optimizer", "before_step"), ("model", "after_step")]
    assert loop.seen == [("model", "before_fit"), ("data", "before_epoch"), *step, *step,
                         ("loss", ["valid/loss"])]
    rows = {row.label: row.points for row in loop.hooks.rows}
    assert rows == {
        "DataWithPoints": ("before_epoch",), "ModelWithPoints": ("before_fit", "after_step"),
        "OptimizerWithPoints": ("before_step",), "LossWithPoints": ("on_log",),
    }  # fmt: skip


def test_a_component_is_switched_like_a_hook():
    """Its row has a name, a switch and an order; an exception in it names the component."""
    loop = make_loop(model=ModelWithPoints(3, 1), batches=1)
    loop.seen = []
    loop.tune(**{"model_with_points.enabled": False})
    loop.fit(epochs=1)
    assert loop.seen == []
    loop.tune(**{"model_with_points.enabled": True})
    del loop.seen
    with pytest.raises(AttributeError) as excinfo:
        loop.fit(epochs=2)
    assert any("ModelWithPoints.before_fit" in note for note in excinfo.value.__notes__)


@pytest.mark.parametrize("hook", [RecorderHook(), ProgressHook(style="lines", every_steps=1)],
                         ids=["recorder", "progress"])
def test_a_hook_switched_on_in_mid_run_works_from_then_on(hook):
    """It hears of the beginning of the fit first, and works from then on."""
    hook.enabled = False
    name = "recorder" if isinstance(hook, RecorderHook) else "progress"
    trainer = small_runs.make(epochs=4,
                              hooks=[hook,
                                     small_runs.at_step(7,
                                                        lambda t: t.tune(
                                                            **{f"{name}.enabled": True}))],
                                                            record=False)
    assert trainer.fit().status == "finished"
    assert name != "recorder" or len(trainer.history["train/loss"]) == 13


def test_a_hook_added_in_mid_run_hears_of_the_beginning_once():
    """before_fit, then its other points; cleanup_fit at the end."""
    said = []

    class Late(Hook):
        """Notes what it hears."""

        def before_fit(self, trainer):
            """The beginning."""
            said.append("before_fit")

        def after_epoch(self, trainer):
            """An epoch."""
            said.append("after_epoch")

        def cleanup_fit(self, trainer):
            """The end."""
            said.append("cleanup_fit")

    trainer = small_runs.make(epochs=3,
                              hooks=[small_runs.at_step(7, lambda t: t.hooks.add(Late()))])
    trainer.fit()
    assert said == ["before_fit", "after_epoch", "after_epoch", "cleanup_fit"]


def test_the_exception_of_after_fit_is_the_one_that_is_raised():
    """cleanup_fit runs once, and what it raises is a note."""
    said = []

    def cleanup(trainer):
        """Raises too."""
        said.append(trainer.state)
        raise KeyError("second")

    trainer = small_runs.make(epochs=1,
                              hooks=[LambdaHook(after_fit=small_runs.fail, cleanup_fit=cleanup)])
    with pytest.raises(ValueError, match="user's own") as caught:
        trainer.fit()
    assert said == ["error"] and any("second" in note for note in caught.value.__notes__)


def test_the_set_shows_its_table_wherever_it_is_printed():
    hooks = HookSet([LambdaHook(name="first", after_step=lambda trainer: None)])
    assert "| first (LambdaHook) | on |" in repr(hooks)
    assert hooks._repr_markdown_() == str(hooks) == hooks.describe()
