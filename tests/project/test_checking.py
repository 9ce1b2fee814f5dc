"""What `make check` decides: what depends on a change, what is noise, which edit is kept."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import checking
import notebooks


def test_a_notebook_depends_on_the_modules_that_it_imports():
    found = {path.name for path in checking.dependents(["core.hook"])}
    assert {"13_runner.ipynb", "write_a_hook.ipynb"} <= found and "01_hook.ipynb" not in found
    assert {path.parent.name for path in checking.dependents(["none"])} == {"reference"}


def test_times_and_folders_are_noise_and_words_and_numbers_are_not():
    texts = [checking.without_noise([{"output_type": "stream", "text": [text]}]) for text in (
        "loss 0.25 in 12.5 ms, in /tmp/a1/run", "loss 0.25 in 9.1 ms, in /tmp/b/run",
        "loss 0.26 in 12.5 ms, in /tmp/a1/run", "lost 0.25 in 12.5 ms, in /tmp/a1/run")]
    assert [text == texts[0] for text in texts] == [True, True, False, False]


def test_the_one_that_was_edited_is_brought_to_the_other(tmp_path, monkeypatch):
    import nbformat  # takes a second

    notebook, script = tmp_path / "00_one.ipynb", tmp_path / "scratch_00_one.py"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 1")]), notebook)
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "NBS", tmp_path)
    monkeypatch.setattr(checking, "MEMORY", tmp_path / "checked.json")
    notebooks.to_py(notebook)
    for edited, other, new in ((script, notebook, "x = 2"), (notebook, script, "x = 3")):
        edited.write_text(edited.read_text().replace(f"x = {int(new[-1]) - 1}", new))
        checking.bring_back_scripts(checking.Memory())
        assert new in other.read_text()
    notebook.write_text(notebook.read_text().replace("x = 3", "x = 4"))
    script.write_text(script.read_text().replace("x = 3", "x = 5"))
    with pytest.raises(SystemExit, match="were both edited"):
        checking.bring_back_scripts(checking.Memory())


def test_what_was_edited_by_hand_is_kept(tmp_path, monkeypatch):
    readme, made = Path("README.md"), "<!-- Made from nbs/index.ipynb -->\n"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebooks, "clean", lambda: None)
    monkeypatch.setattr(notebooks, "export", lambda: readme.write_text(made))
    readme.write_text(made + "edited\n")
    with pytest.raises(SystemExit, match=r"README\.md: edited by hand"):
        checking.bring_into_step([readme])
    assert "edited" in readme.read_text()
    checking.bring_into_step([readme, Path("nbs/index.ipynb")])  # made by an export before
    assert readme.read_text() == made


def test_the_names_for_editors_are_made_from_the_table():
    more = (notebooks.LIB / "__init__.py").read_text().replace('"Train": {', '"Train": {"N": "n",')
    assert "\n    from .n import N as N\n" in notebooks.with_names_for_editors(more)
