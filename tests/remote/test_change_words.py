"""One change has one wording: in the journal, after a resume, and in a shell."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
from small_runs import make

from trainer_nb.core.journal import Intervention, Journal, read_entry
from trainer_nb.support.words import change_words
from trainer_nb.folder.reader import entry_text, read_journal


def steered(folder, sched):
    """A run with changes of several kinds, in a folder."""
    trainer = make(workspace=folder, sched=sched, max_steps=20)
    trainer.step(2)
    trainer.tune(lr=0.004)
    trainer.step(1)
    trainer.tune(lr=None, grad_clip=1.0)
    trainer.note("too fast")
    trainer.step(1)
    trainer.tune(grad_clip=None, mixed_precision="bf16")
    trainer.step(1)
    return trainer


@pytest.mark.parametrize("sched, unset", [(None, "initial"), ("cosine", "schedule")])
def test_a_change_has_one_wording_everywhere(tmp_path, sched, unset):
    trainer = steered(tmp_path / "run", sched)
    told = [str(entry) for entry in trainer.journal]
    rates = [text for text in told if ": lr " in text]
    assert len(rates) == 2 and f"({unset}) → 0.004" in rates[0] and f"0.004 → {unset}" in rates[1]
    assert any("grad_clip off → 1" in text for text in told)
    assert any("mixed_precision fp32 → bf16" in text for text in told)

    trainer.save(tmp_path / "saved.pt")
    later = make(sched=sched, max_steps=20)
    later.load(tmp_path / "saved.pt")
    assert [str(entry) for entry in later.journal][:len(told)] == told

    trainer.journal.save(tmp_path / "journal.jsonl")
    assert [*map(str, Journal.load(tmp_path / "journal.jsonl"))][:len(told)] == told

    trainer.step(1)  # the folder's files are written
    entries = read_journal(tmp_path / "run").entries
    assert [entry_text(entry) for entry in entries][:len(told)] == told


def test_a_panel_is_a_panel_in_a_shell():
    entry = Intervention(1, "tune", "lr", None, 1e-3, source="widget", was=0.003, unset="initial")
    assert entry_text(asdict(entry)) == str(entry) == "step 0: lr 0.003 (initial) → 0.001 (panel)"


def test_a_person_may_be_called_widget():
    entry = Intervention(1, "note", "note", new="too fast", source="shell", by="widget")
    assert entry_text(asdict(entry)) == "step 0: note: too fast (shell, widget)"


def test_what_none_means_is_a_text_that_can_be_shown():
    entry = asdict(Intervention(1, "tune", "lr", None, 1e-3, was=0.003, unset="initial"))
    assert str(read_entry(entry)) == "step 0: lr 0.003 (initial) → 0.001 (code)"
    for wrong in ({"unset": "\x1b[2J"}, {"unset": 7}, {"was": "0.003"}):
        with pytest.raises(ValueError):
            read_entry(entry | wrong)


def test_an_older_file_has_no_rate_in_force():
    entry = {"number": 1, "kind": "tune", "name": "lr", "old": None, "new": 0.1, "source": "code"}
    assert entry_text(entry) == str(Intervention(**entry)) == "step 0: lr not set → 0.1 (code)"


@pytest.mark.parametrize("wrong", [
    {"was": "1e9"}, {"was": [1]}, {"unset": 7}, {"unset": "\x1b[2J"}, {"old": {"a": 1}},
    {"old": "\x1b[2J" * 1000}, {"new": 10**400}, {"kind": "rewind", "old": 10**400, "new": 2},
    {"kind": "rewind", "old": "x", "new": None}, {"name": None},
])
def test_what_another_process_wrote_is_one_line_of_text(wrong):
    entry = {"kind": "tune", "name": "lr", "old": None, "new": 0.1, "source": "code", **wrong}
    shown = entry_text(json.loads(json.dumps(entry)))
    assert shown.isprintable() and len(shown) < 1000


@pytest.mark.parametrize("module", ["support.words", "folder.layout", "folder.reader"])
def test_the_words_and_the_files_need_no_torch(module):
    code = (f"import sys, trainer_nb.{module}; "
            "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert change_words("tune", "lr", None, 1e-3, 3e-3, "schedule") == "0.003 (schedule) → 0.001"
