"""Stored outputs of notebooks: one that the code no longer makes is found, noise is not."""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import fresh
import notebooks


def stale_after(tmp_path, source, stored, kind="stream"):
    """What is found stale in a notebook of one cell with a stored output, when it is run."""
    output = (nbformat.v4.new_output("stream", text=stored) if kind == "stream"
              else nbformat.v4.new_output("execute_result", {kind: stored}))
    cell = nbformat.v4.new_code_cell(source, outputs=[output] if stored else [])
    path = tmp_path / "page.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=notebooks.KERNEL), path)
    program = ("import sys, pathlib, fresh, nbdev.test\n"
               "with fresh.compared_with_stored([]) as stale:\n"
               "    passed, _ = nbdev.test.test_nb(pathlib.Path(sys.argv[1]))\n"
               "assert passed\n"
               "for each in stale: print(each.told, '\\nwords' if each.in_words else '')")
    ended = notebooks.subprocess.run(
        [sys.executable, "-c", program, path], cwd=ROOT / "scripts", text=True, check=True,
        capture_output=True)
    return ended.stdout.strip()


@pytest.mark.parametrize("source, stored, kind", [
    ("print('loss', 0.5)", "loss 0.4\n", "stream"),
    ("print('two', 'words')", "two things\n", "stream"),
    ("print('printed now')", "", "stream"),
    ("1 + 1", "3", "text/plain"),
    ("None", "3", "text/plain"),
])
def test_a_changed_output_is_found(tmp_path, source, stored, kind):
    found = stale_after(tmp_path, source, stored, kind)
    assert source in found and "stored" in found


@pytest.mark.parametrize("source, stored, kind", [
    ("print('loss', 0.5001, 'in 3.2 s')", "loss 0.5 in 140 ms\n", "stream"),
    ("#| stale-ok\nimport random\nrandom.random()", "7", "text/plain"),
    ("object()", "<object at 0x7f2b3c>", "text/plain"),
    ("print('hidden');", "", "stream"),
])
def test_noise_is_not(tmp_path, source, stored, kind):
    assert stale_after(tmp_path, source, stored, kind) == ""


@pytest.mark.parametrize("one, other", [
    ("at 2026-01-02 10:11:12", "at 2025-11-30 01:02:03"),
    ("1,234 samples/s", "98.5 samples/s"),
    ("{'time/step': 0.004, 'samples_per_second': 12.5}",
     "{'time/step': 0.1, 'samples_per_second': 1.0}"),
    (f"12 MB in {tempfile.gettempdir()}/tmpab12cd34/run",
     f"3.5 GiB in {tempfile.gettempdir()}/tmpzz99xx00/run"),
    ("process 123 of torch 2.9.1", "process 99 of torch 2.10.0+cpu"),
    ("epoch 1/3  step 45/135  train/loss 0.2\nend", "end"),
    ("| a    | b  |\n|------|----|", "| a | b |\n|---|---|"),
    ("1.000 and -0.0000001", "1.004 and 0.0000002"),
    ("[1.403 1.38  1.4  ]", "[1.4  1.38 1.4 ]"),
])
def test_texts_that_say_the_same(one, other):
    assert fresh.same_text(one, other)


@pytest.mark.parametrize("one, other", [
    ("step 10", "step 11"), ("loss 0.10", "loss 0.12"), ("on", "off"), ("1 2", "1 2 3"),
    ("takes 2 s", "takes 2 steps"), ("1.0", "nan"),
])
def test_texts_that_do_not(one, other):
    assert not fresh.same_text(one, other)


@pytest.mark.parametrize("stored, in_words", [
    ("loss 0.7, 3 steps\n", False), ("loss 0.7\n", True), ("rate 0.5, 2 steps\n", True)])
def test_it_is_told_whether_words_differ(tmp_path, stored, in_words):
    found = stale_after(tmp_path, "print('loss 0.5, 2 steps')", stored)
    assert found and found.endswith("\nwords") == in_words


def test_the_spaces_of_an_array_are_no_words():
    assert fresh.same_words("loss  [1.41 1.38 1.4 ]", "loss  [1.4  1.42 1.36]")
    assert not fresh.same_words("loss  [1.41 1.38 1.4 ]", "loss  [1.41 1.38]")
    assert not fresh.same_text("loss  [1.41 1.38 1.4 ]", "loss  [1.4  1.42 1.36]")


def test_words_of_a_cell_count_more_than_its_numbers():
    cell = {"id": "one", "source": "f()"}
    made = [nbformat.v4.new_output("stream", text="1"),
            nbformat.v4.new_output("execute_result", {"text/plain": "b"})]
    stored = [nbformat.v4.new_output("stream", text="2"),
              nbformat.v4.new_output("execute_result", {"text/plain": "a"})]
    assert fresh.stale_output(cell, stored, made).in_words
    assert fresh.stale_output(cell, stored[:1], made[:1]) is not None
    assert not fresh.stale_output(cell, stored[:1], made[:1]).in_words
    assert fresh.stale_output(cell, made, made) is None


def asked(expression, **environment):
    """What an expression of fresh.py gives in another process."""
    program = f"import fresh; from pathlib import Path; print({expression})"
    return notebooks.subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "scripts", text=True, check=True,
        capture_output=True, env=os.environ | environment).stdout.strip()


def test_another_arithmetic_is_known_and_its_numbers_are_not_compared(monkeypatch, tmp_path):
    """Equal in another process, another one with other instructions; the random stream and the
    threads stay as they are."""
    torch.manual_seed(3)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    here = fresh.arithmetic()
    assert torch.equal(before, torch.get_rng_state()) and torch.get_num_threads() == threads
    assert asked("fresh.arithmetic()", OMP_NUM_THREADS="2") == here
    others = [asked("fresh.arithmetic()", **{name: value}) for name, value in (
        ("ATEN_CPU_CAPABILITY", "default"), ("MKL_CBWR", "COMPATIBLE"))]
    assert here not in others

    monkeypatch.setattr(fresh, "ARITHMETIC", tmp_path / "arithmetic.json")
    fresh.ARITHMETIC.write_text('{"b/two.ipynb": "elsewhere"}')
    fresh.store_arithmetic(Path("a/one.ipynb"))
    assert fresh.stored_arithmetic() == {"a/one.ipynb": here, "b/two.ipynb": "elsewhere"}
    words, numbers = fresh.Stale("in words", True), fresh.Stale("in numbers", False)
    assert fresh.counts_here([words, numbers], Path("a/one.ipynb")) == [words, numbers]
    for other in ("b/two.ipynb", "c/three.ipynb"):
        assert fresh.counts_here([words, numbers], Path(other)) == [words]


@pytest.mark.skipif(notebooks.has_gpu(), reason="on a GPU nothing is compared")
def test_each_compared_notebook_says_with_which_arithmetic():
    compared = {path.relative_to(notebooks.NBS).as_posix()
                for path in notebooks.find_notebooks([]) if notebooks.has_stored_outputs(path)
                and not fresh.is_by_clock(path.read_text(encoding="utf-8"))}
    assert compared == set(fresh.stored_arithmetic()), "scripts/notebooks.py execute writes it"


def test_what_is_compared_exists():
    for page, reason in fresh.LEFT_OUT.items():
        assert (ROOT / "nbs" / page).exists() and reason
    assert notebooks.has_stored_outputs(ROOT / "nbs/core/01_hook.ipynb") != notebooks.has_gpu()
    assert fresh.is_by_clock((ROOT / "nbs/core/00_state.ipynb").read_text())  # it has threads
    assert not notebooks.has_stored_outputs("/elsewhere/core/00_state.ipynb")


def test_documentation_is_compared_also_where_the_clock_decides():
    """Of the cells that differ in a notebook with threads, those of `show_doc` count."""
    def stale(source):
        stored, made = ([nbformat.v4.new_output("execute_result", {"text/plain": text})]
                        for text in ("def hold(other)", "def hold(path)"))
        return fresh.stale_output({"id": "a", "source": source}, stored, made)

    found = [stale("show_doc(hold)"), stale("print(owner)")]
    by_clock, other = ('{"cells": [{"cell_type": "code", "source": ["%s"]}]}' % source
                       for source in ("time.sleep(1)", "1 + 1"))
    assert fresh.without_clock(found, by_clock) == found[:1]
    assert fresh.without_clock(found, other) == found


def test_what_is_left_out_has_a_reason():
    assert not fresh.is_compared(Path(next(iter(fresh.LEFT_OUT))))
