"""Clicks come in threads of their own, while the run draws in its own."""

import threading

from jupyter_server import LIMIT
from small_runs import make

from trainer_nb import Hook
from trainer_nb.core.control import Command
from trainer_nb.core.state import RunState
from trainer_nb.panel.other_runs import PAST, PastRun, remember_run
from trainer_nb.panel.view import LocalRunView


def beside(*actions):
    """Start the actions in threads; whether all end."""
    threads = [threading.Thread(target=action, daemon=True) for action in actions]
    for each in threads:
        each.start()
    for each in threads:
        each.join(LIMIT)
    return not any(each.is_alive() for each in threads)


def test_a_run_that_is_remembered_is_whole(monkeypatch):
    """Other panels read the list of earlier runs at any time."""
    PAST.clear()
    trainer = make(epochs=1)
    trainer.fit()
    seen, take = [], PastRun.take

    def slowly(self, view, source):
        seen.extend(PAST)
        take(self, view, source)

    monkeypatch.setattr(PastRun, "take", slowly)
    remember_run(LocalRunView(trainer), 1)
    assert seen == [] and [past.state for past in PAST] == [RunState.FINISHED]


def test_a_search_that_waits_at_the_end_of_a_drive_holds_nobody_up():
    """It begins when the drive is over, in a thread of its own: `post` goes on meanwhile."""
    class Find(Hook):
        def after_fit(self, trainer):
            replies.append(trainer.post(Command("lr_find", {"num_steps": 60})))

    replies, searching, posted = [], threading.Event(), []
    trainer = make(epochs=1, hooks=[Find()])

    def at_safe_point(kind):
        if kind == "sweep" and not searching.is_set():
            searching.set()
            def click():
                posted.append(trainer.post(Command("note", {"text": "meanwhile"})))
            assert beside(click), "post waits for the search"

    trainer.at_safe_point = at_safe_point
    trainer.fit()
    assert replies[0].wait(LIMIT).status == "applied" and searching.is_set() and len(posted) == 1
