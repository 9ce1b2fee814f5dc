"""The documentation site: what `show_doc` shows, and the notebooks as they are processed for it."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import trainer_nb
from trainer_nb import Trainer
from trainer_nb.core.hook import POINTS, Hook

ROOT = Path(__file__).resolve().parents[2]
LINKS = """
import inspect
import trainer_nb
from trainer_nb.tools.show_doc import ReferenceRenderer
names = [getattr(trainer_nb, name) for name in trainer_nb.__all__]
names += [each for each in vars(trainer_nb.Trainer).values()
          if inspect.isfunction(getattr(each, "fget", each))]
for each in names:
    print(getattr(each, "fget", each).__name__, end=" ")
    text = ReferenceRenderer(each)._repr_markdown_()
    print(*[part for part in text.split() if part.startswith("[source](")])
"""


def source_links(folder, address):
    """Name and link of each public name and of each method, with this address in settings.ini."""
    settings = (ROOT / "settings.ini").read_text(encoding="utf-8")
    settings = re.sub(r"^git_url =.*", f"git_url = {address}", settings, flags=re.MULTILINE)
    (folder / "settings.ini").write_text(settings, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", LINKS], cwd=folder, capture_output=True,
                          text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return [line.partition(" ")[::2] for line in done.stdout.splitlines()]


def test_without_an_address_no_source_is_linked(tmp_path):
    links = source_links(tmp_path, "")
    assert len(links) > len(trainer_nb.__all__) and {link for _, link in links} == {""}


def test_with_an_address_each_link_leads_to_the_line_that_defines_the_name(tmp_path):
    address = "https://example.org/somebody/trainer_nb"
    for name, link in source_links(tmp_path, address):
        path, line = re.match(rf"\[source\]\({address}/blob/main/(\S+)#L(\d+)\)", link).groups()
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1:][:6]
        assert any(re.search(rf"(def|class) {name}\b", each) for each in lines), (name, link)


# The reference


def reference(name):
    """The Markdown that a page of the reference shows."""
    cells = nbformat.read(ROOT / "nbs" / "reference" / f"{name}.ipynb", as_version=4).cells
    return "\n".join(output["data"].get("text/markdown", "") for cell in cells
                     for output in cell.get("outputs", []) if "data" in output)


def rows(text):
    """Name and sentence of each row of the tables."""
    found = re.findall(r"^\| \[?`([\w.]+)(?:\(\))?`(?:\]\(\S+\))? \| (.*) \|$", text, re.MULTILINE)
    return dict(found)


def attributes(cls):
    """The public methods and properties of a trainer."""
    return {name for each in cls.__mro__ if each.__module__.startswith("trainer_nb")
            for name, value in vars(each).items()
            if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, property))}


def missing(names, text):
    """The names without an entry, or with one that says nothing."""
    shown = rows(text)
    return sorted(name for name in names if len(shown.get(name, "").strip()) < 3)


def test_each_public_name_stands_in_the_reference():
    assert missing(trainer_nb.__all__, reference("10_names")) == []


def test_each_method_and_property_of_a_trainer_stands_in_the_reference():
    assert missing(attributes(Trainer), reference("10_names")) == []


def test_each_name_of_the_reference_has_a_docstring():
    text = reference("10_names")
    for name in trainer_nb.__all__:
        words = " ".join((getattr(trainer_nb, name).__doc__ or "").split())
        assert words and words.startswith(rows(text)[name]), f"{name}: run the page again"


@pytest.mark.parametrize("name", ["EMAHook", "unwrap", "rewind", "sched"])
def test_a_planted_gap_in_the_reference_is_found(name):
    text = reference("10_names")
    without = re.sub(rf"^\| \[?`{name}.*\n", "", text, flags=re.MULTILINE)
    empty = re.sub(rf"^(\| \[?`{name}\b.*?\|).*\|$", r"\1  |", text, flags=re.MULTILINE)
    assert missing([name], text) == [] and missing([name], without) == [name]
    assert missing([name], empty) == [name]


def test_each_hook_and_each_point_stands_in_the_reference():
    text = reference("11_hooks")
    hooks = [name for name in trainer_nb.__all__
             if isinstance(cls := getattr(trainer_nb, name), type) and issubclass(cls, Hook)]
    assert re.findall(r"^### (\w+)", text, re.MULTILINE) == sorted(hooks)
    assert missing(POINTS, text) == []
