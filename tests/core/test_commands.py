"""What a run does about each command, and what it answers:
held, running, paused, stopped, failed, finished."""

import gc
import itertools
import math
import threading
import weakref

import pytest
import small_runs
import torch
from digits_runs import (
    assert_same, at_step, disturb, global_streams, in_evaluation, make_loop, recorder, straight,
    wait_for,
)  # fmt: skip
from safetensors.torch import load_file
from torch import nn

from trainer_nb.core.control import Command, CommandHandler, Mailbox
from trainer_nb.core.driver import Logbook
from trainer_nb.core.hook import LambdaHook
from trainer_nb.panel.view import LocalRunView
from trainer_nb.trainer import Trainer


def told(points=("before_valid", "after_valid", "on_pause", "on_resume", "before_fit", "after_fit",
                 "after_cancel")):
    """A hook that writes points and steps down, and its list."""
    seen = []
    return seen, LambdaHook(
        order=50, **{p: lambda trainer, p=p: seen.append((p, trainer.step_state.optimizer_step))
                     for p in points}
    )


def held(*hooks, step=2, **settings):
    """A run in the background that is held after this step."""
    loop = make_loop(at_step(step, lambda trainer: trainer.pause()), *hooks,
                     **{"epochs": 2} | settings)
    loop.start()
    wait_for(lambda: loop.state == "paused")
    return loop


def settled(reply, status="applied"):
    """The answer came, and is this one."""
    assert reply.wait(120).status == status, reply
    return reply


def to_the_end(loop):
    """Resume until it is finished."""
    loop.resume()
    assert loop.wait(120).status == "finished"


def kinds(loop):
    """The kinds of the journal's entries."""
    return [entry.kind for entry in loop.journal]


# ---- the mailbox


def mailbox_of(**handlers):
    """A mailbox that takes these commands."""
    mailbox = Mailbox()
    for name, handler in handlers.items():
        mailbox.register(name, handler)
    return mailbox


def whole(values):
    """The values as whole numbers; ValueError for a negative one."""
    if values["n"] < 0:
        raise ValueError(f"n={values['n']}: 0 or more")
    return {"n": int(values["n"])}


def test_a_mailbox_takes_what_was_registered():
    """Wrong names and values are refused where they are posted, and nothing waits."""
    mailbox = mailbox_of(count=CommandHandler(print, whole), pause=None)
    assert not mailbox and mailbox.take() is None and set(mailbox.commands) == {"count", "pause"}
    command = Command("count", {"n": 2.0})
    replies = [mailbox.post(each)
               for each in (Command("dance"), Command("count", {"n": -1}), command,
                            Command("pause"))]
    assert [reply.status for reply in replies] == ["refused", "refused", "pending", "pending"]
    assert replies[0].reason == "no command 'dance': count, pause"
    assert replies[1].reason == "n=-1: 0 or more"
    assert isinstance(replies[1].error, ValueError) and bool(mailbox) is True
    assert mailbox.take() == (command, replies[2]) and type(command.values["n"]) is int
    assert mailbox.take()[1] is replies[3] and not mailbox


def test_a_mistake_in_a_check_is_not_a_refusal():
    """Only ValueError refuses: everything else is an error where the command is posted."""
    mailbox = mailbox_of(count=CommandHandler(print, whole))
    with pytest.raises(KeyError):
        mailbox.post(Command("count"))
    assert not mailbox


def test_a_checked_command_waits_when_it_is_put():
    """For a caller that decides in between where it is done."""
    mailbox, command = mailbox_of(count=CommandHandler(print, whole)), Command("count", {"n": 3.0})
    reply = mailbox.check(command)
    assert reply.status == "pending" and command.values == {"n": 3} and not mailbox
    mailbox.put(command, reply)
    assert mailbox.take() == (command, reply)


def test_a_later_handler_replaces_an_earlier_one():
    mailbox = mailbox_of(count=CommandHandler(print, whole))
    mailbox.register("count", CommandHandler(print))
    assert mailbox.post(Command("count", {"n": -1})).status == "pending"
    assert set(mailbox.commands) == {"count"}


def test_a_handler_does_not_keep_its_owner_alive():
    """A bound method is held weakly, for applying and for checking; a function as it is."""
    class Owner:
        def apply(self, command):
            done.append(command.name)

        def validate(self, values):
            return values | {"checked": True}

    gc.disable()
    try:
        owner, done = Owner(), []
        mailbox = mailbox_of(count=CommandHandler(owner.apply, owner.validate,
                                                  recoverable=(OSError,), blocking=True))
        mailbox.post(Command("count"))
        command, _ = mailbox.take()
        handler = mailbox.handlers[command.name]
        handler.apply(command)
        assert done == ["count"] and command.values == {"checked": True} and handler.blocking
        alive = weakref.ref(owner)
        del owner
        assert alive() is None
        with pytest.raises(ReferenceError, match="this belongs to a Owner that is gone"):
            handler.apply(command)
    finally:
        gc.enable()


def test_commands_of_several_threads_all_arrive():
    """Each once, those of one thread in their order."""
    mailbox = mailbox_of(count=CommandHandler(print))
    def ask(thread):
        for number in range(500):
            mailbox.post(Command("count", {"n": number}, source=thread))

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    taken = []
    while any(thread.is_alive() for thread in threads) or mailbox:
        item = mailbox.take()
        taken += [] if item is None else [item[0]]
    for name in "abcd":
        assert [command.values["n"] for command in taken
                if command.source == name] == list(range(500))


def test_actions_come_at_their_boundary():
    """Once, in their order; one whose boundary has passed at the next."""
    mailbox, done = Mailbox(), []
    assert mailbox.next_due == math.inf
    mailbox.schedule(lambda: done.append("at 3"), 3)
    mailbox.schedule(lambda: done.append("first"))
    mailbox.schedule(lambda: mailbox.schedule(lambda: done.append("by an action")), 2)
    seen = []
    for boundary in range(1, 5):
        for action in mailbox.due(boundary):
            action()
        seen.append((list(done), mailbox.next_due))
        done.clear()
    assert seen == [(["first"], 2), ([], 0), (["at 3", "by an action"], math.inf), ([], math.inf)]
    assert not mailbox  # actions are not commands


def test_no_action_is_lost_between_two_threads():
    """What another thread schedules while the due ones are picked out comes at the next
    boundary."""
    threads, lock, waiting = [], threading.RLock(), []
    class Lock:
        """The mailbox's lock, which notes who waits for it."""
        def __enter__(self):
            if not lock.acquire(blocking=False):
                waiting.append(threading.current_thread())
                lock.acquire()
        def __exit__(self, *error):
            lock.release()
    class Watched(list):
        """Each time that all entries were looked at, another thread schedules one more."""
        def __iter__(self):
            yield from super().__iter__()
            number = len(threads)
            thread = threading.Thread(target=mailbox.schedule, args=(lambda: number,))
            threads.append(thread)
            thread.start()
            wait_for(lambda: thread in waiting or not thread.is_alive())

    mailbox = Mailbox()
    mailbox._lock, mailbox._scheduled = Lock(), Watched()
    mailbox.schedule(lambda: "first")
    assert [action() for action in mailbox.due(1)] == ["first"]
    for thread in threads:
        thread.join()
    assert sorted(action() for action in mailbox.due(2)) == list(range(len(threads))) != []


# ---- validate


def test_validate_in_a_held_run():
    """It evaluates and is held again, at the same step; nothing of it is left in the training."""
    seen, hook = told()
    loop = held(hook)
    for _ in range(2):
        settled(loop.post(Command("validate", source="widget")))
        wait_for(lambda: seen[-1][0] == "on_pause" and loop.state == "paused")
    held_once = ["on_pause", "on_resume", "before_valid", "after_valid", "on_pause"]
    assert seen == [("before_fit", 0), *((p, 2) for p in held_once + held_once[1:])]
    assert loop.last_records["valid/loss"] > 0 and loop.step_state.evaluated_at == 2
    to_the_end(loop)
    assert [step for point, step in seen if point == "after_valid"] == [2, 2, 3, 6]
    assert kinds(loop) == ["pause", "validate", "validate", "resume"]
    assert_same(loop, straight(epochs=2))


def test_validate_where_an_evaluation_is_due_anyway():
    """Held right before the evaluation of an epoch: it is made once."""
    seen, hook = told(("after_valid",))
    loop = held(hook, step=3)
    settled(loop.post(Command("validate")))
    wait_for(lambda: seen and loop.state == "paused")
    to_the_end(loop)
    assert seen == [("after_valid", 3), ("after_valid", 6)]
    assert_same(loop, straight(epochs=2))


def test_validate_in_a_held_evaluation():
    """The current one is thrown away and made again, whole; then the run is held."""
    seen, hook = told(("before_valid", "after_valid"))
    loop = make_loop(in_evaluation(lambda trainer: trainer.pause()), hook, epochs=2)
    loop.start()
    wait_for(lambda: loop.state == "paused" and loop.eval_batch == 2)
    settled(loop.post(Command("validate")))
    wait_for(lambda: len(seen) == 3 and loop.state == "paused")
    assert seen == [("before_valid", 3), ("before_valid", 3), ("after_valid", 3)]
    to_the_end(loop)
    assert seen[3:] == [("before_valid", 6), ("after_valid", 6)]
    assert_same(loop, straight(epochs=2))


@pytest.mark.parametrize("state", ["idle", "paused", "stopped", "failed"])
def test_validate_while_nobody_drives(state):
    """A thread evaluates and holds the run where it was; Resume goes on from there."""
    seen, hook = told(("after_valid", "after_step"))
    fail = at_step(2, lambda trainer: 1 / 0,
                   "before_epoch" if state != "failed" else "before_batch")
    loop = make_loop(hook, fail, epochs=2)
    if state == "failed":
        with pytest.raises(ZeroDivisionError):
            loop.fit()
    elif state != "idle":
        loop.step(2)
    if state == "stopped":
        loop.stop()
    steps = 0 if state == "idle" else 2
    disturb()
    outside = global_streams()
    settled(loop.post(Command("validate")))
    wait_for(lambda: ("after_valid", steps) in seen and loop.state == "paused")
    assert loop.background.thread.is_alive() and loop.step_state.optimizer_step == steps
    to_the_end(loop)
    assert global_streams() == outside
    wanted = [("after_step", n) for n in (1, 2, 3)] + [("after_valid", 3)]
    wanted += [("after_step", n) for n in (4, 5, 6)] + [("after_valid", 6)]
    wanted.insert(steps, ("after_valid", steps))
    assert seen == wanted
    if state != "failed":  # the batch that failed had been drawn
        assert_same(loop, straight(epochs=2))


@pytest.mark.parametrize("totals", [{"epochs": 2}, {"max_steps": 5}])
def test_validate_of_a_finished_run(totals):
    """It evaluates once more and is finished again: nobody has to resume what has no steps left."""
    seen, hook = told(("after_valid",))
    loop = make_loop(hook)
    loop.fit(**totals)
    before, steps = len(seen), loop.step_state.optimizer_step
    settled(loop.post(Command("validate")))
    wait_for(lambda: len(seen) > before and loop.state != "running")
    assert loop.state == "finished" and seen[before:] == [("after_valid", steps)]
    assert loop.wait().steps == steps
    assert_same(loop, straight(**totals))
    loop.fit(epochs=3)
    assert_same(loop, straight(epochs=3))


def test_validate_when_there_is_nothing_to_train():
    """A run that knows no end can evaluate all the same, or says why not;
    nothing has changed then."""
    loop = make_loop()
    reply = loop.post(Command("validate"))
    if reply.status == "refused":
        assert "neither is given" in reply.reason
        assert loop.step_state.phase == "epoch_start" and loop.step_state.evaluated_at == -1
    else:
        wait_for(lambda: loop.state == "paused")
        assert loop.last_records["valid/loss"] > 0
        loop.stop()
        loop.wait()
    loop.fit(epochs=1)
    assert_same(loop, straight(epochs=1))


# ---- step


@pytest.mark.parametrize("state", ["held", "paused", "idle", "stopped"])
def test_step_of_an_epoch(state):
    """To the end of the current epoch, evaluation and all, and held there."""
    seen, hook = told(("after_valid",))
    if state == "held":
        loop = held(hook)
    else:
        loop = make_loop(hook, epochs=2)
        loop.step(2) if state != "idle" else None
        loop.stop() if state == "stopped" else None
    settled(loop.post(Command("step", {"epochs": 1})))
    wait_for(lambda: loop.step_state.epoch == 1 and loop.state == "paused")
    assert (loop.step_state.optimizer_step, loop.step_state.phase,
            seen) == (3, "epoch_start", [("after_valid", 3)])
    to_the_end(loop)
    assert_same(loop, straight(epochs=2))


def test_steps_beyond_the_end():
    """The run is finished as ever, and the goal is forgotten."""
    loop = held()
    settled(loop.post(Command("step", {"epochs": 9})))
    assert loop.wait().status == "finished"
    assert_same(loop, straight(epochs=2))
    loop.fit(epochs=12)
    assert (loop.state, loop.step_state.epoch) == ("finished", 12)


def test_a_pause_comes_before_the_goal():
    """What held the run first counts: the goal of a step is forgotten then."""
    loop = make_loop(at_step(3, lambda trainer: trainer.pause()), epochs=3)
    settled(loop.post(Command("step", {"n": 5})))
    wait_for(lambda: loop.state == "paused")
    assert loop.step_state.optimizer_step == 3
    to_the_end(loop)
    assert loop.step_state.optimizer_step == 9


# ---- resume


@pytest.mark.parametrize("place", ["a batch", "an evaluation", "a hook of the fit"])
def test_resume_after_an_error(place):
    """It goes on in the background, from the window or the evaluation that failed."""
    hooks = {
        "a batch": at_step(2, lambda trainer: 1 / 0, "before_batch"),
        "an evaluation": in_evaluation(lambda trainer: 1 / 0),
        "a hook of the fit": at_step(6, lambda trainer: 1 / 0, "after_fit"),
    }
    loop = make_loop(hooks[place], epochs=2)
    with pytest.raises(ZeroDivisionError):
        loop.fit()
    assert loop.state == "error" and "ZeroDivisionError" in LocalRunView(loop).error
    settled(loop.post(Command("resume", source="widget")))
    assert loop.wait().status == "finished"
    assert LocalRunView(loop).error is None
    assert loop.step_state.optimizer_step == 6
    if place != "a batch":
        assert_same(loop, straight(epochs=2))


def test_resume_after_an_error_in_the_background():
    """The error is not raised again by the wait for what goes on."""
    loop = make_loop(at_step(2, lambda trainer: 1 / 0), epochs=2)
    loop.start()
    wait_for(lambda: loop.state == "error" and not loop.background.thread.is_alive())
    settled(loop.resume())
    assert loop.wait().status == "finished"
    assert_same(loop, straight(epochs=2))


@pytest.mark.parametrize("end", ["stop", "pause"])
def test_resume_of_what_has_ended_early(end):
    """Stopped or paused, the run goes on in the background."""
    loop = make_loop(at_step(2, lambda trainer: getattr(trainer, end)()), epochs=2)
    loop.fit()
    disturb()
    settled(loop.resume())
    assert loop.wait().status == "finished"
    assert_same(loop, straight(epochs=2))


# ---- many at once


def test_of_a_sliders_values_the_last_one_counts():
    """One entry, one change, the last value; the answers to those it replaced say so."""
    replies = []

    def slide(trainer):
        for value in (0.9, 0.8, 0.7, 0.6):
            replies.append(trainer.post(Command("tune", {"lr_scale": value}, source="widget")))
        pending.append(dict(trainer.tunables.pending))

    pending, scales = [], []
    loop = make_loop(at_step(2, slide),
                     LambdaHook(before_step=lambda trainer: scales.append(trainer.lr_scale)))
    loop.fit(epochs=2)
    assert [reply.status for reply in replies] == ["void", "void", "void", "applied"]
    assert all("newer" in reply.where for reply in replies[:3]) and replies[3].where == "at step 2"
    written = [(e.kind, e.name, e.old, e.new, e.source) for e in loop.journal]
    assert written == [("tune", "lr_scale", 1.0, 0.6, "widget")]
    assert pending == [{"lr_scale": 0.6}] and loop.tunables.pending == {}
    assert scales == [1.0, 1.0, 0.6, 0.6, 0.6, 0.6]
    wanted = make_loop(at_step(2, lambda trainer: trainer.tune(lr_scale=0.6)))
    wanted.fit(epochs=2)
    assert_same(loop, wanted)


def tune(source="widget", **values):
    """A tune command."""
    return Command("tune", values, source=source)


KEPT = {
    "from code": [tune("code", lr_scale=0.9), tune("code", lr_scale=0.8),
                  tune("code", lr_scale=0.7)],
    "first from code": [tune("code", lr_scale=0.9), tune(lr_scale=0.8)],
    "last from code": [tune(lr_scale=0.9), tune("code", lr_scale=0.8)],
    "of several names": [tune(lr_scale=0.9), tune(grad_clip=2.0), tune(lr_scale=0.8)],
    "one name and two": [tune(lr_scale=0.9), tune(lr_scale=0.8, grad_clip=2.0), tune(lr_scale=0.7)],
    "with a note between": [tune(lr_scale=0.9), Command("note", {"text": "here"}, source="widget"),
                            tune(lr_scale=0.8)],
    "notes": [Command("note", {"text": "same"}, source="widget")] * 2,
}


@pytest.mark.parametrize("kind", KEPT)
def test_other_commands_are_all_kept(kind):
    """In their order, each with its entry."""
    commands = [Command(c.name, dict(c.values), c.source) for c in KEPT[kind]]
    replies = []
    loop = make_loop(at_step(2, lambda trainer: replies.extend(map(trainer.post, commands))))
    loop.fit(epochs=1)
    assert [reply.status for reply in replies] == ["applied"] * len(commands)
    wanted = [(c.name, value, c.source) for c in commands for value in c.values.values()]
    assert [(e.kind, e.new, e.source) for e in loop.journal] == wanted


def test_values_of_other_names_are_other_values():
    """A slider's values replace those that have the same names in the same order."""
    mailbox = mailbox_of(tune=None)
    posted = ({"a": 1, "b": 2}, {"b": 3, "a": 4}, {"b": 5, "a": 6}, {"a": 7})
    replies = [mailbox.post(tune(**values)) for values in posted]
    taken = []
    while (item := mailbox.take()) is not None:
        taken.append(item[0].values)
    assert taken == [{"a": 1, "b": 2}, {"b": 5, "a": 6}, {"a": 7}]
    assert [reply.status for reply in replies] == ["pending", "void", "pending", "pending"]


def test_a_slider_in_an_evaluation_and_in_a_pause():
    """Values that wait for the end of an evaluation are taken together, those in a pause one by one
    as they come."""
    replies = []

    def slide(trainer):
        replies.extend(trainer.post(tune(lr_scale=value)) for value in (0.9, 0.8))

    loop = make_loop(in_evaluation(slide), in_evaluation(slide, batch=3),
                     at_step(4, lambda trainer: trainer.pause()))
    loop.start(epochs=2)
    wait_for(lambda: loop.state == "paused")
    assert [reply.status for reply in replies] == ["void", "void", "void", "applied"]
    for value in (0.7, 0.6):
        settled(loop.post(tune(lr_scale=value)))
    to_the_end(loop)
    assert [(e.step, e.new) for e in loop.journal
            if e.kind == "tune"] == [(3, 0.8), (4, 0.7), (4, 0.6)]


# ---- what is written down


@pytest.mark.parametrize("drive", ["idle", "running"])
def test_looking_is_not_written_down(drive):
    """Counting the hooks' time, and inspecting, change nothing in the run: no entry."""
    def look(trainer):
        for name in ("watch", "inspect"):
            for on in (True, False, True):
                replies.append(trainer.post(Command(name, {"on": on}, source="widget")))

    replies = []
    made = make_loop(at_step(2, look) if drive == "running" else LambdaHook(before_fit=id))
    trainer = Trainer(
        made.model, train_dl=made.train_dl, valid_dl=made.valid_dl, loss_fn=made.loss_fn, seed=3,
        device="cpu",
        optim=made.optim, gradient_accumulation_steps=2, hooks=list(made.hooks), progress=False,
    )  # fmt: skip
    if drive == "idle":
        look(trainer)
    trainer.fit(epochs=2)
    assert [reply.status for reply in replies] == ["applied"] * 6
    assert len(trainer.journal) == 0 and trainer.hooks.watched and trainer.inspection is not None
    assert_same(trainer, straight(epochs=2))


# ---- refused

WRONG = [
    ("tune", {"lr": "fast"}), ("tune", {"no_such": 1}), ("tune", {"lr_scale": -1}),
    ("tune", {"lr_scale": 0.5, "lr": -1}),
    ("note", {}), ("note", {"text": 3}), ("note", {"text": None}), ("step", {"n": 0}),
    ("step", {"n": 1.5}),
    ("step", {"n": True}), ("step", {"epochs": 0}), ("step", {"epochs": "1"}),
    ("step", {"steps": 3}), ("watch", {}),
    ("watch", {"on": 1}), ("watch", {"on": None}), ("watch", {"on": "yes"}), ("no such", {}),
    ("", {}), ("fit", {}),
    ("_tune", {}), ("pause_if", {"text": "loss > 3"}), ("approve", {"id": "1"}),
]  # fmt: skip


@pytest.mark.parametrize("drive", ["idle", "held", "running"])
def test_unknown_commands_and_wrong_values_are_refused(drive):
    """At once, with a reason; nothing waits, nothing is written down, and the run is as without."""
    replies = []

    def ask(trainer):
        replies.extend(trainer.post(Command(name, dict(values), source="widget"))
                       for name, values in WRONG)

    if drive == "held":
        loop = held()
        ask(loop)
        to_the_end(loop)
    else:
        loop = make_loop(*([at_step(2, ask)] if drive == "running" else []), epochs=2)
        ask(loop) if drive == "idle" else None
        loop.fit()
    assert len(replies) == len(WRONG)
    for reply, (name, values) in zip(replies, WRONG):
        assert (reply.status, bool(reply.reason),
                bool(reply.error)) == ("refused", True, True), (name, values)
    assert all(command in replies[17].reason for command in loop.commands)
    assert loop.tunables.pending == {} and set(kinds(loop)) <= {"pause", "resume"}
    assert_same(loop, straight(epochs=2))


def test_the_commands_there_are():
    """What a panel may offer."""
    assert set(LocalRunView(make_loop()).commands) == {
        "pause", "resume", "stop", "interrupt", "detach", "step", "tune", "note", "validate",
        "watch", "save", "rewind", "train_more", "inspect", "pause_when", "pause_not_when", "sweep",
        "lr_find", "export", "record"}


def test_a_tunable_that_went_away_meanwhile():
    """Checked again where it acts: refused there, and the run goes on."""
    loop = make_loop(LambdaHook(name="mine", after_epoch=id), recorder([]))
    hook = next(iter(loop.hooks))

    def ask(trainer):
        replies.append(trainer.post(Command("tune", {"mine.enabled": False})))
        trainer.hooks.remove(hook)

    replies = []
    loop.hooks.add(at_step(2, ask))
    loop.fit(epochs=2)
    assert replies[0].status == "refused" and "mine.enabled" in replies[0].reason
    assert len(loop.journal) == 0
    assert_same(loop, straight(epochs=2))


def test_two_that_resume_at_once_are_one_drive():
    """One of several threads that found nobody driving starts the run; the others are told."""
    loop = make_loop(epochs=2)
    loop.step(2)
    replies, lock, waiting = [], loop.driver.status.lock, set()

    class Lock:
        """The lock of the drive, which notes who has come as far as this."""
        def __enter__(self):
            waiting.add(threading.get_ident())
            lock.acquire()
        def __exit__(self, *error):
            lock.release()

    threads = [threading.Thread(target=lambda: replies.append(loop.resume())) for _ in range(4)]
    loop.driver.status.lock = Lock()
    with lock:
        for thread in threads:
            thread.start()
        wait_for(lambda: len(waiting) == 4)
    for thread in threads:
        thread.join()
    assert loop.wait(120).status == "finished"
    assert sorted(reply.wait(120).status for reply in replies) == ["applied"] + ["refused"] * 3
    assert_same(loop, straight(epochs=2))


def test_a_run_whose_losses_are_all_none_can_be_stopped():
    """On an endless loader of batches that are left out, a stop is obeyed at once."""
    seen = []

    def step(batch, trainer):
        """Leave every batch out; ask for a stop at the fifth."""
        seen.append(1)
        if len(seen) == 5:
            trainer.stop()
        return {"loss": None} if len(seen) < 1000 else small_runs.fail(trainer)

    trainer = small_runs.make(train_step=step, loss_fn=None,
                              train_dl=itertools.cycle(small_runs.BATCHES), max_steps=3)
    assert trainer.fit().status == "stopped" and len(seen) == 5


def test_steps_asked_for_in_a_pause_are_forgotten_by_a_stop():
    """The pause that "step" would have made does not end a later fit()."""
    trainer = small_runs.make(epochs=10,
                              hooks=[small_runs.at_step(3,
                                                        lambda t: t.post(
                                                            Command("step", {
                                                                "n": 20}))), small_runs.at_step(
                                                                    5, Trainer.stop)])
    assert trainer.fit().status == "stopped"
    assert trainer.fit().status == "finished"


@pytest.mark.parametrize("command",
                         [Command("step", {"n": "x"}), Command("note"),
                          Command("tune", {"lr": "x"}),
                          Command("validate"), Command("dance")])
def test_a_bad_command_is_refused_and_the_run_goes_on(command):
    """Nothing that is posted can end a run by being wrong."""
    replies = []
    trainer = small_runs.make(epochs=2,
                              hooks=[small_runs.at_step(3,
                                                        lambda t: replies.append(t.post(command)))])
    assert trainer.fit().status == "finished"
    assert replies[0].status == "refused" and replies[0].reason


def test_a_stop_behind_a_pause_is_obeyed():
    """Where nothing can resume, the stop that waits behind the pause still counts."""
    def both(trainer):
        """Two wishes between the same two steps."""
        trainer.pause()
        trainer.stop()

    trainer = small_runs.make(epochs=2, hooks=[small_runs.at_step(2, both)])
    assert trainer.fit().status == "stopped"


@pytest.mark.parametrize("when", ["idle", "running", "paused"])
def test_weights_are_exported_by_a_command(tmp_path, when):
    """Into the folder of the run, at once or at a boundary: those of that step, in the journal."""
    x = torch.ones(8, 3)
    torch.manual_seed(0)
    trainer = Trainer(nn.Linear(3, 1), train_dl=[(x, x[:, :1])] * 4, loss_fn=nn.MSELoss(),
                      max_steps=10**6, device="cpu", progress=False, workspace=tmp_path / "exp1",
                      seed=0)
    trainer.step(3)
    if when != "idle":
        trainer.start()
    if when == "paused":
        trainer.pause().wait()
    reply = trainer.post(Command("export")).wait(300)
    assert reply.status == "applied", reply
    told = reply.where
    if when != "running":  # a file of somebody else stays, and so does the run
        beside = tmp_path / "exp1" / f"weights_{trainer.step_state.optimizer_step:08}.json"
        beside.write_text('{"of": "somebody else"}')
        before, reply = trainer.state, trainer.post(Command("export")).wait(300)
        assert (reply.status, trainer.state) == ("refused", before), reply
        assert beside.read_text() == '{"of": "somebody else"}'
    if when != "idle":
        trainer.stop().wait(300)
        trainer.wait()
    entry = next(each for each in trainer.journal.entries if each.kind == "save")
    path = tmp_path / "exp1" / f"weights_{entry.step:08}.safetensors"
    assert entry.name == path.name and told == f"at step {entry.step} as {path}"
    written = load_file(path)
    if when != "running":  # nothing was made since then
        assert torch.equal(written["weight"], trainer.model.weight)
    assert set(written) == {"weight", "bias"}
    for values in ({"weights": "ema"}, {"weights": "x"}, {"path": "x.pt"}):
        assert trainer.post(Command("export", values)).status == "refused"
    trainer.close()
    assert [each.name for each in (tmp_path / "exp1").glob("*.safetensors")] == [path.name]


def test_an_average_is_exported_beside_the_weights(tmp_path):
    """Of the same step: neither replaces the other."""
    trainer = Trainer(nn.Linear(3, 1), train_dl=[(torch.ones(8, 3), torch.ones(8, 1))] * 4,
                      loss_fn=nn.MSELoss(), max_steps=3, device="cpu", progress=False, ema=0.9,
                      workspace=tmp_path / "exp1", seed=0)
    trainer.fit()
    for values in ({}, {"weights": "ema"}):
        assert trainer.post(Command("export", values)).wait(300).status == "applied"
    last, ema = (load_file(tmp_path / "exp1" / f"weights_00000003{end}.safetensors")["weight"]
                 for end in ("", "_ema"))
    assert torch.equal(last, trainer.model.weight) and not torch.equal(last, ema)
    trainer.close()


def test_no_command_stays_in_force_after_two_that_overlapped():
    """In threads of their own; what is recorded later is of neither."""
    logbook = Logbook(None, None, None, None)
    one, other = (logbook.effect_of(Command("pause", reason=each)) for each in ("a", "b"))
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert logbook.command is None
