"""The documentation site: the reference, and the notebooks as they are processed for it."""

import fcntl
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import warm
import yaml

import trainer_nb
from trainer_nb import Trainer
from trainer_nb.core.hook import POINTS, Hook

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import pages

PROC = ROOT / "_proc"
VIEW = "application/vnd.jupyter.widget-view+json"
MODULES = (*warm.PRELOADED, "nbdev.showdoc", "ipywidgets", "plotly.graph_objects",
           "sklearn.datasets")  # what pages import
LARGEST = 300_000  # bytes of a processed notebook
LINKS = """
import trainer_nb
from trainer_nb.tools.show_doc import ReferenceRenderer
for each in [trainer_nb.Trainer.fit, *(getattr(trainer_nb, name) for name in trainer_nb.__all__)]:
    text = ReferenceRenderer(each)._repr_markdown_()
    print(each.__name__, *[part for part in text.split() if part.startswith("[source](")])
"""


# The reference


@pytest.mark.parametrize("address", ["", "https://example.org/somebody/trainer_nb"])
def test_with_an_address_each_name_is_linked_to_the_line_that_defines_it(tmp_path, address):
    """The address is that of settings.ini; without one nothing is linked."""
    settings = (ROOT / "settings.ini").read_text(encoding="utf-8")
    settings = re.sub(r"^git_url =.*", f"git_url = {address}", settings, flags=re.MULTILINE)
    (tmp_path / "settings.ini").write_text(settings, encoding="utf-8")
    done = warm.run([sys.executable, "-c", LINKS], cwd=tmp_path, capture_output=True, text=True,
                    quick_end=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    links = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    assert len(links) > len(trainer_nb.__all__)
    for name, link in links if address else ():
        path, line = re.match(rf"\[source\]\({address}/blob/main/(\S+)#L(\d+)\)", link).groups()
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1:][:6]
        assert any(re.search(rf"(def|class) {name}\b", each) for each in lines), (name, link)
    assert address or {link for _, link in links} == {""}


def reference(name):
    """The Markdown that a page of the reference shows, and the meaning of each name in it."""
    import nbformat  # takes a second

    page = ROOT / "nbs" / "guide" / "reference" / f"{name}.ipynb"
    cells = nbformat.read(page, as_version=4).cells
    text = "\n".join(output["data"].get("text/markdown", "") for cell in cells
                     for output in cell.get("outputs", []) if "data" in output)
    row = r"^\| \[?`([\w.]+)(?:\(\))?`(?:\]\(\S+\))? \| (.*) \|$"
    return text, dict(re.findall(row, text, re.MULTILINE))


def test_each_public_name_hook_and_point_stands_in_the_reference_with_its_meaning():
    attributes = {name for each in Trainer.__mro__ if each.__module__.startswith("trainer_nb")
                  for name, value in vars(each).items() if not name.startswith("_")
                  if inspect.isroutine(value) or isinstance(value, property)}
    _, names = reference("names")
    text, points = reference("hooks")
    wanted = {*trainer_nb.__all__, *attributes}
    assert [name for name in wanted if len(names.get(name, "").strip()) < 3] == []
    assert [name for name in POINTS if len(points.get(name, "").strip()) < 3] == []
    hooks = [name for name in trainer_nb.__all__
             if isinstance(cls := getattr(trainer_nb, name), type) and issubclass(cls, Hook)]
    assert re.findall(r"^### (\w+)", text, re.MULTILINE) == sorted(hooks)


# The processed notebooks


def is_fresh():
    """Whether the notebooks were processed since anything changed from which they are made."""
    made = PROC / "llms.txt"
    sources = [ROOT / name for name in ("_quarto.yml", "settings.ini", "CHANGELOG.md")]
    for folder, kind in (("nbs", "*.ipynb"), ("nbs", "*.css"), ("scripts", "*.py"),
                         ("trainer_nb", "*.py")):
        sources += (ROOT / folder).rglob(kind)
    return made.exists() and made.stat().st_mtime > max(path.stat().st_mtime for path in sources)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` leaves it; made here where that was not done."""
    base = tmp_path_factory.getbasetemp()
    with open((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "docs", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # two processes of the tests take turns
        if not is_fresh():
            done = warm.run([sys.executable, ROOT / "scripts" / "notebooks.py", "docs"],
                            modules=MODULES, quick_end=True, capture_output=True, text=True,
                            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
            # cells with imports are run: a run beside them would train each time
            assert done.returncode == 0 and "Found cells" not in done.stderr, done.stderr
        return pages.Site(PROC)


def faults(nb):
    """What is wrong with the outputs of a processed notebook."""
    for owner, output in [(cell, each) for cell in nb["cells"] for each in cell.get("outputs", [])]:
        data = output.get("data", {})
        if output["output_type"] == "error":
            yield "an error"
        if VIEW in data and not {"text/html", "image/svg+xml", "image/png"} & set(data):
            yield "a widget without a still picture"
        if {"text/html", "application/javascript"} & set(data):
            yield "HTML, for which Quarto has a page load scripts from elsewhere"
        if {"image/svg+xml", "image/png"} & set(data) and not re.match(
                r'#\| fig-alt: "\S', "".join(owner["source"])):
            yield "a picture whose words Quarto drops"
        # Quarto writes an SVG into a file, where nothing is shown without its namespace
        if "image/svg+xml" in data and ElementTree.fromstring(
                "".join(data["image/svg+xml"])).tag != "{http://www.w3.org/2000/svg}svg":
            yield "an SVG that is no picture as a file"


def test_no_page_is_wrong_or_heavy(site):
    assert len(site.notebooks) == len(list((ROOT / "nbs").rglob("[!.]*.ipynb")))
    found = {path: list(faults(nb)) for path, nb in site.notebooks.items()}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}
    sizes = {path: (PROC / path).stat().st_size for path in site.notebooks}
    assert {path: size for path, size in sizes.items() if size > LARGEST} == {}


def test_each_link_leads_to_a_page_and_to_an_anchor_on_it(site):
    dead = {path: list(site.dead_links(path)) for path in site.notebooks}
    assert {path: links for path, links in dead.items() if links} == {}
    assert sum(1 for path in site.notebooks for _ in site.links(path)) > 1000


def test_no_link_stands_in_the_words_of_another(site):
    """nbdev makes a link of each name that it knows, also within a link."""
    assert pages.unnested("[the [`fit`](/a.html#fit) of [`Trainer`](/b.html)](../c.ipynb)") == (
        "[the `fit` of `Trainer`](../c.ipynb)")
    apart = "[`fit`](/a.html) and [x] [`go`](/b.html), [here](c.ipynb)"
    assert pages.unnested(apart) == apart
    texts = [(path, pages.prose("".join(holder[key]))) for path, nb in site.notebooks.items()
             for holder, key in pages.markdown_texts(nb)]
    assert {path for path, text in texts if pages.unnested(text) != text} == set()


def write_page(folder, name, *markdown, outputs=()):
    """A processed notebook of these cells."""
    front = f"---\ntitle: {name}\ndescription: About {name}.\noutput-file: {name}.html\n---\n"
    cells = [{"cell_type": "markdown", "metadata": {}, "source": text}
             for text in (front, *markdown)]
    cells.append({"cell_type": "code", "metadata": {}, "source": "", "outputs": list(outputs)})
    (folder / f"{name}.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}}))


def test_planted_faults_are_found(tmp_path):
    write_page(tmp_path, "one", outputs=[
        {"output_type": "error"}, *({"output_type": "display_data", "data": data} for data in (
            {VIEW: {}, "text/plain": "x"}, {"text/html": "<b>"}, {"image/svg+xml": "<svg/>"}))])
    assert len(list(faults(pages.Site(tmp_path).notebooks["one.ipynb"]))) == 5


def test_planted_dead_links_are_found_and_anchors_of_methods_mended(tmp_path):
    write_page(tmp_path, "one", "# One\n## Task\n```\n## No heading\n```")
    write_page(tmp_path, "two", "[a](one.ipynb#task) [b](https://a.b/one.html#task.build)"
               " [c](gone.ipynb) [d](one.ipynb#no-heading) [e](https://example.org/x#y) [f](#one)")
    site = pages.Site(tmp_path, "https://a.b/")
    assert list(site.dead_links("two.ipynb")) == [
        "https://a.b/one.html#task.build", "gone.ipynb", "one.ipynb#no-heading", "#one"]
    site.mend_anchors()
    text = "".join(pages.Site(tmp_path).notebooks["two.ipynb"]["cells"][1]["source"])
    assert text == ("[a](one.ipynb#task) [b](https://a.b/one.html#task) [c](gone.ipynb)"
                    " [d](one.ipynb#no-heading) [e](https://example.org/x#y) [f](#one)")


# The site's settings


def test_the_site_has_two_themes_and_the_files_that_it_names(site):
    made = yaml.safe_load((PROC / "_quarto.yml").read_text(encoding="utf-8"))
    website = made["website"]
    assert set(made["format"]["html"]["theme"]) == {"light", "dark"}
    named = [website["favicon"], website["image"], *made["project"]["resources"]]
    named += [each["href"] for each in website["navbar"]["right"]]
    assert [name for name in named if not (PROC / name).is_file()] == []


def test_the_changelog_is_a_page_whose_links_lead_to_pages(site):
    text = (PROC / "changelog.md").read_text(encoding="utf-8")
    links = [link for link, _ in pages.LINK.findall(text) if not re.match(r"\w+:", link)]
    assert links and [link for link in links if link not in site.notebooks] == []


def test_llms_txt_has_a_line_for_each_page_in_the_order_of_the_sidebar(site, tmp_path):
    text = (PROC / "llms.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[.+\]\((\S+)\): \S.*[.!?:]$", text, re.MULTILINE)
    assert sorted(listed) == sorted(site.pages) and text.count("\n- ") == len(listed)
    for name in ("one", "two", "three"):
        write_page(tmp_path, name)
    contents = [{"section": "S", "contents": ["two.ipynb", "one.ipynb"]}, "three.ipynb"]
    assert pages.Site(tmp_path).llms_text("T", "D.", contents, "https://a.b/") == (
        "# T\n\n> D.\n\n- [three](https://a.b/three.html): About three.\n\n## S\n\n"
        "- [two](https://a.b/two.html): About two.\n- [one](https://a.b/one.html): About one.\n")


@pytest.mark.parametrize("quarto, told, code", [
    (None, "no pages are rendered: Quarto is not installed (https://quarto.org)", 0),
    ("echo \"$@\"; exit 3", f"render {PROC} --no-cache", 3),  # a stand-in: what it is called with
])
def test_pages_are_rendered_where_quarto_is(tmp_path, quarto, told, code):
    """Otherwise one line says what is missing; a failure of Quarto's is one of `make docs`."""
    if quarto:
        (tmp_path / "quarto").write_text(f"#!/bin/sh\n{quarto}\n")
        (tmp_path / "quarto").chmod(0o755)
    done = subprocess.run([sys.executable, ROOT / "scripts" / "notebooks.py", "render"], text=True,
                          capture_output=True, env=os.environ | {"PATH": str(tmp_path)})
    assert (done.stdout.strip(), done.returncode) == (told, code), done.stderr
