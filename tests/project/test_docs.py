"""The documentation site: what `show_doc` shows, and the notebooks as they are processed for it."""

import fcntl
import inspect
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import nbformat
import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from PIL import Image, ImageStat

import trainer_nb
from trainer_nb import Trainer
from trainer_nb.core.hook import POINTS, Hook
from trainer_nb.core.tunable import Tunable

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import pages

PROC = ROOT / "_proc"
VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
LARGEST = 300_000  # bytes of a processed notebook
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
    package = Path(trainer_nb.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", LINKS], cwd=folder, capture_output=True,
                          text=True, env=os.environ | {"PYTHONPATH": str(package)})
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
            if not name.startswith("_")
            if inspect.isroutine(value) or isinstance(value, property)}


def says_nothing(sentence):
    """No words, or only the part of the trainer where an attribute is."""
    return len(sentence.strip()) < 3 or re.fullmatch(r"`[\w.]+` of the trainer\.", sentence)


def missing(names, text):
    """The names without an entry, or with one that says nothing."""
    shown = rows(text)
    return sorted(name for name in names if says_nothing(shown.get(name, "")))


def test_each_name_that_the_reference_shows_has_a_meaning():
    for page in ("10_names", "11_hooks", "12_records_and_files"):
        text = reference(page)
        assert missing(rows(text), text) == []


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
    place = re.sub(rf"^(\| \[?`{name}\b.*?\|).*\|$", r"\1 `state.x` of the trainer. |", text,
                   flags=re.MULTILINE)
    assert missing([name], text) == [] and missing([name], without) == [name]
    assert missing([name], empty) == missing([name], place) == [name]


def test_each_hook_and_each_point_stands_in_the_reference():
    text = reference("11_hooks")
    hooks = [name for name in trainer_nb.__all__
             if isinstance(cls := getattr(trainer_nb, name), type) and issubclass(cls, Hook)]
    assert re.findall(r"^### (\w+)", text, re.MULTILINE) == sorted(hooks)
    assert missing(POINTS, text) == []


def test_each_tunable_of_a_hook_stands_in_the_reference_with_its_rules():
    """Those of a class, and those that layer groups have as objects."""
    text, count = reference("11_hooks"), 0
    for name in trainer_nb.__all__:
        cls = getattr(trainer_nb, name)
        section = text.partition(f"### {name}\n")[2].partition("### ")[0]
        for owner in cls.__mro__ if isinstance(cls, type) and issubclass(cls, Hook) else ():
            for key, rule in vars(owner).items():
                if isinstance(rule, Tunable):
                    count += 1
                    row = rf"\| `\w+\.{key}` \| `[^`]+` \| {re.escape(rule.allowed())} \| " \
                          rf"{re.escape(rule.doc)} \|"
                    assert re.search(row, section), f"{name}.{key}: run the page again"
    assert count > 20
    section = text.partition("### LayerGroupsHook\n")[2].partition("### ")[0]
    assert re.findall(r"`layer_groups\.(\w+\.\w+)`", section) == [
        "body.frozen", "body.lr_scale", "head.frozen", "head.lr_scale"]


def test_each_hook_has_an_example_in_the_reference():
    sections = re.split(r"^### ", reference("11_hooks"), flags=re.MULTILINE)[1:]
    assert [each.split("\n")[0] for each in sections if "```python\n" not in each] == []


def test_the_errors_of_the_reference_have_a_cause_and_a_remedy():
    """A program on the page raises each of them when the page is made."""
    lines = re.findall(r"^\| `\w+` \| `(.+)` \| (.+) \| (.+) \|$",
                       reference("12_records_and_files"), re.MULTILINE)
    assert len(lines) > 25 and len({message for message, *_ in lines}) == len(lines)
    assert [line for line in lines if not all(each.endswith(".") for each in line[1:])] == []


# The drawings of the architecture


def stored_outputs(nb):
    """The HTML that a page keeps."""
    return ["".join(output["data"]["text/html"]) for cell in nb.cells
            for output in cell.get("outputs", []) if "text/html" in output.get("data", {})]


def test_the_drawings_are_those_of_the_trainer_as_it_is():
    """The code of the page, run again: it checks the parts and calls, and draws the same."""
    path = ROOT / "nbs" / "explanation" / "13_architecture.ipynb"
    nb, names = nbformat.read(path, as_version=4), {}
    for cell in nb.cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
    assert stored_outputs(nb) == [names["holds_svg"], names["way_svg"]]


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
            done = subprocess.run([sys.executable, ROOT / "scripts" / "notebooks.py", "docs"],
                                  capture_output=True, text=True, cwd=ROOT,
                                  env=os.environ | {"PYTHONPATH": str(ROOT)})
            assert done.returncode == 0, done.stderr
        return pages.Site(PROC)


def faults(nb):
    """What is wrong with the outputs of a processed notebook."""
    if nb["metadata"].get("widgets", {}).get(STATE, {}).get("state"):
        yield "state of widgets"
    for cell in nb["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if output["output_type"] == "error":
                yield "an error"
            if VIEW in data and not {"text/html", "image/svg+xml", "image/png"} & set(data):
                yield "a widget without a still picture"


def test_no_page_shows_an_error_or_an_empty_place(site):
    assert len(site.notebooks) == len(list((ROOT / "nbs").rglob("[!.]*.ipynb")))
    assert {path: list(faults(nb)) for path, nb in site.notebooks.items() if list(faults(nb))} == {}


def test_no_page_is_heavy(site):
    sizes = {path: (PROC / path).stat().st_size for path in site.notebooks}
    assert {path: size for path, size in sizes.items() if size > LARGEST} == {}


def test_each_link_leads_to_a_page_and_to_an_anchor_on_it(site):
    dead = {path: list(site.dead_links(path)) for path in site.notebooks}
    assert {path: links for path, links in dead.items() if links} == {}
    assert sum(1 for path in site.notebooks for _ in site.links(path)) > 1000


def write_page(folder, name, *markdown, outputs=()):
    """A processed notebook of these cells."""
    front = f"---\ntitle: {name}\ndescription: About {name}.\noutput-file: {name}.html\n---\n"
    cells = [{"cell_type": "markdown", "metadata": {}, "source": text}
             for text in (front, *markdown)]
    cells.append({"cell_type": "code", "metadata": {}, "source": "", "outputs": list(outputs)})
    (folder / f"{name}.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}}))


def test_planted_faults_are_found(tmp_path):
    outputs = [{"output_type": "error", "ename": "E"},
               {"output_type": "display_data", "data": {VIEW: {}, "text/plain": "x"}},
               {"output_type": "display_data", "data": {VIEW: {}, "text/html": "<svg>"}}]
    write_page(tmp_path, "one", outputs=outputs)
    nb = pages.Site(tmp_path).notebooks["one.ipynb"]
    assert list(faults(nb)) == ["an error", "a widget without a still picture"]
    nb["metadata"]["widgets"] = {STATE: {"state": {"a": {}}}}
    assert next(faults(nb)) == "state of widgets"


def test_planted_dead_links_are_found_and_anchors_of_methods_mended(tmp_path):
    write_page(tmp_path, "one", "# One\n## Task\n```\n## No heading\n```")
    write_page(tmp_path, "two", "[a](one.ipynb#task) [b](/one.html#task.build) [c](gone.ipynb)"
               " [d](one.ipynb#no-heading) [e](https://example.org/x#y) [f](#one)")
    site = pages.Site(tmp_path)
    assert list(site.dead_links("two.ipynb")) == [
        "/one.html#task.build", "gone.ipynb", "one.ipynb#no-heading", "#one"]
    site.mend_anchors()
    text = "".join(pages.Site(tmp_path).notebooks["two.ipynb"]["cells"][1]["source"])
    assert text == ("[a](one.ipynb#task) [b](/one.html#task) [c](gone.ipynb)"
                    " [d](one.ipynb#no-heading) [e](https://example.org/x#y) [f](#one)")


def test_links_with_the_address_of_the_pages_are_those_of_the_site(tmp_path):
    write_page(tmp_path, "one", "# One", "[a](https://a.example/one.html#one.two) [b](https://b.c)")
    site = pages.Site(tmp_path, "https://a.example/")
    assert list(site.dead_links("one.ipynb")) == ["https://a.example/one.html#one.two"]
    site.mend_anchors()
    assert list(pages.Site(tmp_path, site.address).links("one.ipynb")) == [
        ("https://a.example/one.html", "one")]


def test_a_picture_of_an_output_keeps_its_words_on_the_site(tmp_path):
    """Quarto drops the title of an SVG and the `alt` beside a raster; `fig-alt` stays."""
    def shown(kind, data, **metadata):
        output = {"output_type": "display_data", "data": {kind: data}, "metadata": metadata}
        write_page(tmp_path, "one", outputs=[output])
        site = pages.Site(tmp_path)
        site.name_pictures()
        site.name_pictures()  # the second time changes nothing
        return "".join(pages.Site(tmp_path).notebooks["one.ipynb"]["cells"][-1]["source"])

    def words(text):
        assert text.startswith("#| fig-alt: ") and text.count("#|") == 1
        return yaml.safe_load(text.removeprefix("#| "))["fig-alt"]

    svg = ["<svg role='img'><title>A &amp; &quot;B&quot;</title>\n",
           "<desc>loss 1:\n2</desc></svg>"]
    assert words(shown("image/svg+xml", svg)) == 'A & "B". loss 1: 2'
    assert words(shown("image/svg+xml", '<svg aria-label="Loss: low"></svg>')) == "Loss: low"
    assert words(shown("image/png", "iV", **{"image/png": {"alt": "A 'digit'"}})) == "A 'digit'"
    assert shown("image/png", "iV") == shown("text/html", "<svg><title>a</title></svg>") == ""


def test_no_link_stands_in_the_words_of_another(site):
    """nbdev makes a link of each name that it knows, also within a link."""
    assert pages.unnested("[the [`fit`](/a.html#fit) of [`Trainer`](/b.html)](../c.ipynb)") == (
        "[the `fit` of `Trainer`](../c.ipynb)")
    apart = "[`fit`](/a.html) and [x] [`go`](/b.html), [here](c.ipynb)"
    assert pages.unnested(apart) == apart
    texts = [(path, pages.prose("".join(holder[key]))) for path, nb in site.notebooks.items()
             for holder, key in pages.markdown_texts(nb)]
    assert {path for path, text in texts if pages.unnested(text) != text} == set()
    names = site.notebooks["reference/10_names.ipynb"]
    tables = "".join("".join(holder[key]) for holder, key in pages.markdown_texts(names))
    assert len(re.findall(r"^\| \[`\w+`\]\(", tables, re.MULTILINE)) >= 38


def test_no_page_has_quarto_load_scripts_from_elsewhere(site, tmp_path):
    """As it does for each output in HTML; what has a script of its own stays."""
    def left(data):
        write_page(tmp_path, "one", outputs=[{"output_type": "display_data", "data": data}])
        pages.Site(tmp_path).html_as_markdown()
        [output] = pages.Site(tmp_path).notebooks["one.ipynb"]["cells"][-1]["outputs"]
        return {kind: "".join(text) for kind, text in output["data"].items()}

    assert left({"text/html": ["<b>\n", "a</b>"], "text/plain": "a"}) == {
        "text/plain": "a", "text/markdown": "```{=html}\n<b>\na</b>\n```\n"}
    assert left({"text/html": "````"})["text/markdown"] == "`````{=html}\n````\n`````\n"
    assert left({"text/html": "<script>a</script>"}) == {"text/html": "<script>a</script>"}
    kinds = {path: {kind for cell in nb["cells"] for output in cell.get("outputs", [])
                    for kind in output.get("data", {})} for path, nb in site.notebooks.items()}
    wanting = {"text/html", "application/javascript"}
    assert {path: found & wanting for path, found in kinds.items() if found & wanting} == {}


def test_each_picture_is_one_as_a_file_too(site):
    """Quarto writes an SVG into a file, where nothing is shown without its namespace."""
    drawn = [(path, "".join(output["data"]["image/svg+xml"])) for path, nb in site.notebooks.items()
             for cell in nb["cells"] for output in cell.get("outputs", [])
             if "image/svg+xml" in output.get("data", {})]
    assert len(drawn) > 5
    assert [path for path, text in drawn
            if ElementTree.fromstring(text).tag != "{http://www.w3.org/2000/svg}svg"] == []


# The site's settings


# colours, classes and rules of Quarto 1.7's two themes that site.css mends
THEMES = """
body { margin: 0; font: 17px sans-serif; background: white; color: #343a40; }
body.quarto-dark { background: #222; color: white; }
code { white-space: pre; background: #f8f9fa; color: #7d12ba; }
:is(p, td) code { white-space: pre-wrap; }
a { color: #2761e3; } .quarto-dark a { color: #00bc8c; } a > code { color: inherit; }
td a { word-break: break-word; } table { width: 100%; }
.navbar { background-color: #2780e3; color: #fdfeff; }
.quarto-dark .navbar { background-color: #375a7f; color: #dee2e6; }
.quarto-title-breadcrumbs .breadcrumb li:last-of-type a { color: #6c757d; }
.quarto-dark .breadcrumb { background: #434343; }
.quarto-light figcaption { color: #6d7a86; } .nav-page-text { color: #6c757d; }
"""
PARTS = """<div class="navbar"><span>trainer_nb</span></div><nav class="quarto-title-breadcrumbs">
<ol class="breadcrumb"><li class="breadcrumb-item"><a href="#a">Reference</a></li></ol></nav>
<main id="a"><p>Say <code>trainer.fit()</code>, see <a href="#a"><code>Task</code></a>.</p>
<ul><li><code>Trainer(train_step={"d": step_d, "g": step_g}, optim={"d": 1, "g": 2})</code></li>
</ul><figcaption>A run</figcaption><table><tr><td><a href="#a"><code>StepState</code></a></td>
<td>""" + "position, " * 60 + """</td><td><code>step_state.optimizer_step_of_a_run</code></td>
</tr></table><p><code>""" + "a_long_name_" * 5 + """</code></p></main>
<div class="nav-page"><span class="nav-page-text">Steer a run</span></div>"""


@pytest.mark.browser
def test_text_can_be_read_in_both_themes_and_on_a_phone(browser):
    """Contrast by axe-core, the width of the page, and a name that stays in one line."""
    sheet = (ROOT / "nbs" / "site.css").read_text(encoding="utf-8")
    page, seen = browser.new_page(viewport={"width": 390, "height": 844}), {}
    for rules in ("", sheet):
        for theme in ("light", "dark"):
            page.set_content(f"<html lang='en'><title>a</title><style>{THEMES}{rules}</style>"
                             f"<body class='quarto-{theme}'>{PARTS}</body></html>")
            faint = Axe().run(page, options={"runOnly": ["color-contrast"]}).response["violations"]
            wide = page.evaluate("document.documentElement.scrollWidth")
            seen[bool(rules), theme] = ([node["html"] for each in faint for node in each["nodes"]],
                                        wide > 390)
    page.set_viewport_size({"width": 1000, "height": 844})
    lines = page.evaluate("document.querySelector('td code').getClientRects().length")
    page.close()
    assert seen[True, "light"] == seen[True, "dark"] == ([], False) and lines == 1, seen
    assert all(len(seen[False, theme][0]) > 1 and seen[False, theme][1]
               for theme in ("light", "dark")), seen


def settings(**fields):
    """What settings.ini says of the site, with these fields."""
    usual = {"title": "a", "description": "b", "branch": "main", "doc_path": Path("_docs"),
             "git_url": "", "doc_host": "", "doc_baseurl": "/"}
    return SimpleNamespace(**usual | fields)


@pytest.mark.browser
@pytest.mark.parametrize("system", ["light", "dark"])
def test_pictures_of_runs_follow_the_theme_of_the_site(site, browser, system):
    """The switch of a page decides, whatever look the system has."""
    made = yaml.safe_load((PROC / "_quarto.yml").read_text(encoding="utf-8"))
    sheet = (PROC / made["format"]["html"]["css"]).read_text(encoding="utf-8")
    cells = nbformat.read(PROC / "tutorials" / "10_quick_start.ipynb", 4).cells
    shown = ["".join(output.get("data", {}).get("text/markdown", ""))
             for cell in cells for output in cell.get("outputs", [])]
    kept = next(text for text in shown if "tnb-kept" in text)
    page, seen = browser.new_page(color_scheme=system), {}
    for theme in ("light", "dark"):
        page.set_content(f"<style>{sheet}</style><body class='quarto-{theme}'>{kept}</body>")
        picture = page.locator(".tnb-kept img")
        picture.wait_for()
        shot = Image.open(io.BytesIO(picture.screenshot())).convert("L")
        (seen[theme],) = ImageStat.Stat(shot).mean
    page.close()
    assert seen["light"] > 200 and seen["dark"] < 90, seen


def test_edit_links_need_an_address():
    bare = yaml.safe_load(pages.site_fields(settings()))["website"]
    assert bare == {"title": "a", "description": "b"}
    full = yaml.safe_load(pages.site_fields(settings(
        git_url="https://example.org/a/b", doc_host="https://a.example", doc_baseurl="/b/")))
    assert full["website"]["repo-actions"] == ["edit", "issue"]
    assert full["website"]["repo-url"] == "https://example.org/a/b"
    assert full["website"]["site-url"] == "https://a.example/b/"


def test_the_site_has_two_themes_a_card_and_what_it_names(site):
    made = yaml.safe_load((PROC / "_quarto.yml").read_text(encoding="utf-8"))
    html, website = made["format"]["html"], made["website"]
    assert set(html["theme"]) == {"light", "dark"} and html["lightbox"]
    assert html["code-overflow"] == "wrap" and website["open-graph"] and website["twitter-card"]
    named = [website["favicon"], website["image"], *made["project"]["resources"]]
    named += [each["href"] for each in website["navbar"]["right"]]
    assert [name for name in named if not (PROC / name).is_file()] == []
    assert (PROC / "favicon.svg").stat().st_size < 1000


def test_the_changelog_is_a_page_whose_links_lead_to_pages(site):
    text = (PROC / "changelog.md").read_text(encoding="utf-8")
    links = [link for link, _ in pages.LINK.findall(text) if not re.match(r"\w+:", link)]
    assert links and [link for link in links if link not in site.notebooks] == []


# llms.txt


def test_llms_txt_has_a_line_for_each_page(site):
    text = (PROC / "llms.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[.+\]\((\S+)\): \S.*[.!?:]$", text, re.MULTILINE)
    assert sorted(listed) == sorted(site.pages)
    assert text.startswith("# trainer_nb\n\n> ") and text.count("\n- ") == len(listed)


def test_llms_txt_keeps_the_order_of_the_sidebar(tmp_path):
    for name in ("one", "two", "three"):
        write_page(tmp_path, name)
    contents = [{"section": "S", "contents": ["two.ipynb", "one.ipynb"]}, "three.ipynb"]
    text = pages.Site(tmp_path).llms_text("T", "D.", contents, "https://a.example/")
    assert text == ("# T\n\n> D.\n\n- [three](https://a.example/three.html): About three.\n\n"
                    "## S\n\n- [two](https://a.example/two.html): About two.\n"
                    "- [one](https://a.example/one.html): About one.\n")


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
