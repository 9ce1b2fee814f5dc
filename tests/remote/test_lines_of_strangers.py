"""Lines in the replies that no run has written: a name is a name, and a run starts in any case."""

import json
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from trainer_nb import Journal, Trainer
from trainer_nb.folder.control import ControlFolder, Replies, Request
from trainer_nb.core.state import start_thread

X = torch.ones(8, 2)


def trainer_in(folder):
    """A run in a folder."""
    return Trainer(nn.Linear(2, 1), train_dl=[(X, X[:, :1])] * 4, loss_fn=mse_loss, epochs=2,
                   device="cpu", progress=False, workspace=folder)


@pytest.mark.parametrize("status", ["applied", "refused", "void"])
@pytest.mark.parametrize("place", ["absolute", "relative", "beside"])
def test_an_id_that_is_a_path_touches_no_file(place, status, tmp_path):
    """Outside of the folder, and in it; also in a folder that no run has had yet."""
    outside = tmp_path / "outside"
    outside.mkdir()
    kept = outside / "settings.json"
    folder = tmp_path / "run"
    control = folder / "control"
    for part in (control, control / "taken"):
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
    inside = control / "mine.json"
    for each in (kept, inside):
        each.write_text("precious")
    ids = {"absolute": str(kept)[:-5], "relative": "../../../outside/settings", "beside": "../mine"}
    line = {"id": ids[place], "name": "tune", "source": "shell", "status": status, "entry": 5,
            "boundary": 10**9}
    (control / "replies.jsonl").write_text(json.dumps(line) + "\n")
    with trainer_in(folder) as trainer:
        trainer.fit()
    assert kept.read_text() == inside.read_text() == "precious"


STRANGE = ['{"id": "x"}', '{"id": "x", "status": ["applied"]}', "[]", "5", '{"id": 5}', "{",
           '{"id": "x", "status": "applied", "boundary": "y", "entry": {}}',
           '{"id": "x", "status": "void", "name": 5, "source": []}',
           '{"id": "x", "status": null, "name": "tune"}',
           '{"id": "", "status": "applied"}', '{"id": ".", "status": "applied"}',
           json.dumps({"id": "a" * 101, "status": "applied"}),
           '{"id": "x", "status": "applied", "reason": {"a": 1}, "where": 3}']


@pytest.mark.parametrize("line", STRANGE)
def test_a_line_that_is_no_reply_is_passed_over(line, tmp_path):
    """And the lines around it are read."""
    folder = tmp_path / "run"
    with trainer_in(folder) as trainer:
        trainer.step(2)
    replies = folder / "control" / "replies.jsonl"
    good = '{"id": "%s", "name": "tune", "source": "shell", "status": "refused"}'
    replies.write_text("\n".join([good % "before", line, good % "after", ""]))
    assert set(Replies(ControlFolder(folder)).read()) == {"before", "after"}
    with trainer_in(folder) as trainer:
        assert trainer.fit().steps == 8


@pytest.mark.parametrize("id", ["../x", "/tmp/x", "a/b", "a\\b", "", ".", "..", ".hidden", "a b",
                                "x\n", "é" * 101, "-x"])
def test_an_id_is_a_plain_name(id):
    """Of a command as well."""
    with pytest.raises(ValueError, match="id"):
        Request.of({"id": id, "name": "pause"})
    assert Request.of({"id": "a-b_c.9", "name": "pause"}).id == "a-b_c.9"


@pytest.mark.parametrize("number", [10**20, -10**19, 2**63])
def test_a_whole_number_beyond_64_bits_is_refused(number, tmp_path):
    """By every door, before anything has changed; the journal is read afterwards."""
    with pytest.raises(ValueError, match="64 bits"):
        Request.of({"id": "a", "name": "tune", "values": {"eval_every": number}})
    with trainer_in(tmp_path / "run") as trainer:
        before = trainer.eval_every
        with pytest.raises(ValueError, match="64 bits" if number > 0 else "eval_every"):
            trainer.tune(eval_every=number)
        assert trainer.eval_every == before
        trainer.fit()
    Journal.load(tmp_path / "run" / "journal.jsonl")


def test_an_error_of_a_signal_while_a_thread_starts_is_told_as_it_is(monkeypatch):
    """Python covers it up with an error of its own, if the thread has begun already."""
    name = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
    begin = getattr(threading, name)
    def interrupted(*args, **settings):
        begin(*args, **settings)
        assert thread._started.wait(60)
        raise RuntimeError("a worker is killed")
    thread = threading.Thread(target=lambda: None)
    monkeypatch.setattr(threading, name, interrupted)
    with pytest.raises(RuntimeError, match="a worker is killed"):
        start_thread(thread)
