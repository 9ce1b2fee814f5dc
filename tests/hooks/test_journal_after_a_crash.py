"""Entries of a journal that a crash took back stay in its file, marked void, each once."""

import json
import os

import pytest
from test_run_folder import lines, make

from trainer_nb import CheckpointHook, Journal, LambdaHook, SnapshotHook

pytestmark = pytest.mark.slow


def crashed(work):
    """`work()` in a process that ends in the middle of it."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def run(folder, *hooks, **settings):
    """A checkpoint each four steps."""
    return make(folder, CheckpointHook(every_steps=4, every_epochs=None), *hooks, **settings)


def go_and_note(trainer, steps, *texts):
    """Some steps, then notes that no checkpoint holds."""
    trainer.step(steps)
    trainer.get_hook(CheckpointHook).finish_writing()
    for text in texts:
        trainer.note(text)


def written(folder):
    """What is said in the file: entries that hold, and void ones."""
    entries = lines(folder / "journal.jsonl")[1:]
    def said(void):
        return [entry["new"] if entry["kind"] == "note" else entry["kind"] for entry in entries
                if entry.get("void", False) is void]
    return said(False), said(True)


def first_life(folder):
    """One note in the checkpoint of step 4, two after it."""
    trainer = run(folder, epochs=2)
    go_and_note(trainer, 3, "kept")
    go_and_note(trainer, 2, "lost")
    trainer.tune(lr_scale=0.5)


@pytest.mark.parametrize("epochs", [2, 3], ids=["the same total", "a larger one"])
@pytest.mark.parametrize("first", [False, True], ids=["nothing", "a note"])
def test_what_a_crash_took_back_is_void(epochs, first, tmp_path):
    """Also where changes come before the first epoch of the run that goes on:
    a total, a note of a hook."""
    crashed(lambda: first_life(tmp_path))
    assert written(tmp_path) == (["kept", "lost", "tune"], [])
    trainer = run(tmp_path, *[LambdaHook(before_fit=lambda trainer: trainer.note("again"))] * first,
                  epochs=epochs)
    trainer.fit()
    holds, void = written(tmp_path)
    assert void == ["lost", "tune"] and holds[0] == "kept"
    assert ("again" in holds) is first and ("totals" in holds) is (epochs == 3)
    assert [entry.number
            for entry in Journal.load(tmp_path / "journal.jsonl")] == list(range(1, len(holds) + 1))
    assert len(trainer.journal) == len(holds)
    trainer.close()


def test_two_crashes_in_a_row(tmp_path):
    """What the first one took back stays, once."""
    crashed(lambda: first_life(tmp_path))
    crashed(lambda: go_and_note(run(tmp_path, epochs=4), 1, "lost too"))
    assert written(tmp_path)[1] == ["lost", "tune"]
    crashed(lambda: go_and_note(run(tmp_path, epochs=5), 1, "lost as well"))
    for _ in range(2):
        trainer = run(tmp_path, epochs=5)
        trainer.fit()
        trainer.close()
    holds, void = written(tmp_path)
    assert [text for text in void
            if text != "totals"] == ["lost", "tune", "lost too",
                                     "lost as well"] and holds[0] == "kept"


def test_a_rewind_that_a_crash_took_back(tmp_path):
    """With what came before and after it; a rewind alone makes nothing void."""
    def life():
        trainer = run(tmp_path, SnapshotHook(every_steps=1))
        go_and_note(trainer, 6, "one")
        trainer.rewind(5)
        trainer.note("two")
    crashed(life)
    assert written(tmp_path) == (["one", "rewind", "two"], [])
    trainer = run(tmp_path, SnapshotHook(every_steps=1), epochs=4)
    trainer.step(1)
    trainer.close()
    assert written(tmp_path) == (["totals", "stop"], ["one", "rewind", "two"])


def test_a_file_that_is_loaded_takes_entries_back_too(tmp_path):
    """Of a run that is alive."""
    trainer = run(tmp_path / "run")
    trainer.step(2)
    trainer.save(tmp_path / "early.pt")
    trainer.note("later")
    trainer.step(1)
    trainer.load(tmp_path / "early.pt")
    trainer.step(1)
    trainer.note("instead")
    holds, void = written(tmp_path / "run")
    assert "later" in void and "later" not in holds and holds[-1] == "instead"
    trainer.close()


def test_a_line_that_cannot_be_read_stays(tmp_path):
    """It is nobody's entry, and no run ends because of it."""
    crashed(lambda: first_life(tmp_path))
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text() + "# a remark\n")
    for epochs in (3, 4):
        trainer = run(tmp_path, epochs=epochs)
        trainer.fit()
        trainer.close()
    unread = [json.loads(line) for line in path.read_text().splitlines() if "remark" in line]
    assert unread == [{"void": True, "unreadable": "# a remark"}]
