"""Stored outputs of notebooks: words that the code no longer makes are found, noise is not."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import fresh
import notebooks

PROGRAM = """
import sys, pathlib, fresh, nbdev.test
path = pathlib.Path(sys.argv[1])
with fresh.compared_with_stored(path.read_text()) as stale:
    passed, _ = nbdev.test.test_nb(path)
assert passed
print(*stale, sep="\\n")
"""
CHANGED = {  # source of a cell: what is stored
    "print('two', 'words')": "two things\n",
    "print('printed now')": "",
    "1 + 1": {"text/plain": "two"},
    "None": {"text/plain": "3"},
    "show_doc(len)": {"text/plain": "of another function"},
}
NOISE = {
    "print('loss', 0.5001, 'in 3.2 s')": "loss 7 in 140 ms\n",
    "#| stale-ok\nprint('a')": "b\n",
    "object()": {"text/plain": "<object at 0x7f2b3c>"},
    "print('hidden');": "",
}


def stale(folder, cells):
    """What is found stale in a notebook of these cells, when it is run."""
    import nbformat  # takes a second

    nb = nbformat.v4.new_notebook(metadata=notebooks.KERNEL, cells=[nbformat.v4.new_code_cell(
        "#| hide\nfrom nbdev.showdoc import show_doc")])
    for source, stored in cells.items():
        output = (nbformat.v4.new_output("execute_result", stored) if isinstance(stored, dict)
                  else nbformat.v4.new_output("stream", text=stored))
        nb.cells.append(nbformat.v4.new_code_cell(source, outputs=[output] if stored else []))
    nbformat.write(nb, folder / "page.ipynb")
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder / "page.ipynb"], text=True,
                          cwd=ROOT / "scripts", check=True, capture_output=True)
    return done.stdout


def test_changed_words_are_found_and_noise_is_not(tmp_path):
    found = stale(tmp_path, CHANGED | NOISE)
    assert [source for source in CHANGED | NOISE if source in found] == list(CHANGED)
    assert found.count("stored  ") == len(CHANGED)


def test_where_the_clock_decides_only_documentation_is_compared(tmp_path):
    found = stale(tmp_path, CHANGED | {"import time; time.sleep(0)": ""})
    assert [source for source in CHANGED if source in found] == ["show_doc(len)"]


@pytest.mark.parametrize("one, other, same", [
    ("at 2026-01-02 10:11:12, 0:02", "at 2025-11-30 01:02:03, 1:00:02", True),
    ("12 MB, 1,234 samples/s", "3.5 GiB, 98.5k samples/s", True),
    (f"{tempfile.gettempdir()}/tmpab12cd34/run", f"{tempfile.gettempdir()}/tmpzz99xx00/a", True),
    ("process 123 of torch 2.9.1", "process 99 of torch 2.10.0+cpu", True),
    ("epoch 1/3  step 45/135  train/loss 0.2\nend", "end", True),
    ("| a    | b  |\n|------|----|", "| a | b |\n|---|---|", True),
    ("[1.403 1.38  1.4  ] and -1e-7", "[1.4  1.38 1.4 ] and 0.2", True),
    ("on", "off", False), ("1 2", "1 2 3", False), ("2 s", "2 steps", False), ("1.0", "nan", False),
])
def test_words_are_the_same_or_not(one, other, same):
    assert fresh.same_words(one, other) == same
