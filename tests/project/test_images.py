"""Each picture of the documentation has words that stand for it, and its files are those shown."""

import html
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import notebooks

GENERIC = {"", "image", "picture", "the picture", "the run as a picture", "plot", "figure"}


def images(text, kind="text/markdown"):
    """(what it is, its words) of each picture in Markdown, HTML or SVG."""
    if kind == "text/markdown":
        text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        for words, source in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)[^)]*\)", text):
            yield source, words
    for tag in re.findall(r"<img\b[^>]*>", text):
        found = re.search(r'\balt="([^"]*)"', tag)
        yield tag[:40], html.unescape(found[1]) if found else ""
    for tag, inside in re.findall(r"(<svg\b[^>]*>)(.*?)</svg>", text, re.DOTALL):
        if 'aria-hidden="true"' not in tag:
            found = (re.match(r"\s*<title>([^<]*)</title>", inside)
                     or re.search(r'\baria-label="([^"]*)"', tag))
            yield tag[:40], html.unescape(found[1]) if found and 'role="img"' in tag else ""


def images_of(cell):
    """The same of each picture of a cell and of its outputs."""
    if cell["cell_type"] == "markdown":
        yield from images("".join(cell["source"]))
    for output in cell.get("outputs", []):
        for kind, data in output.get("data", {}).items():
            if kind in ("text/html", "text/markdown", "image/svg+xml"):
                yield from images("".join(data), kind)
            elif kind.startswith("image/"):
                yield kind, output.get("metadata", {}).get(kind, {}).get("alt", "")


def shown():
    """(page, what it is, its words) of each picture of README.md and of the notebooks."""
    readme = (ROOT / "README.md").read_text("utf-8")
    pages = {"README.md": [{"cell_type": "markdown", "source": readme}]}
    pages |= {path.name: json.loads(path.read_text("utf-8"))["cells"]
              for path in notebooks.notebooks_in(notebooks.NBS)}
    return [(page, *each) for page, cells in pages.items()
            for cell in cells for each in images_of(cell)]


def test_each_picture_has_words():
    found = shown()
    assert len(found) > 30
    assert [each for each in found if each[2].strip().lower().rstrip(".") in GENERIC] == []


def test_a_picture_without_words_is_found_in_each_kind_of_text():
    page = "<img src='a.png'><svg><title>a</title></svg><svg role='img'><text/></svg>"
    output = {"data": {"image/png": "iV", "text/html": page}}
    cells = [{"cell_type": "markdown", "source": "![](a.png) ```![b](b.png)```"},
             {"cell_type": "code", "outputs": [output]}]
    assert [words for cell in cells for _, words in images_of(cell)] == [""] * 5
    assert list(images('<svg role="img"><title>a &amp; b</title></svg>')) == [
        ('<svg role="img">', "a & b")]


def test_the_files_of_pictures_are_those_shown_and_the_script_makes_each():
    files = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    assert files == {Path(what).name for _, what, _ in shown() if "docs/images/" in what}
    script = (ROOT / "scripts" / "pictures.py").read_text("utf-8").lower()
    assert [name for name in files if f'"{Path(name).stem}"' not in script] == []
