"""Each picture of the documentation has a text that stands for it."""

import html
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)[^)]*\)")
GENERIC = {"image", "picture", "the picture", "the run as a picture", "plot", "figure", "digits"}


def without_code(text):
    """Markdown without its code."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def images_of_text(text, kind):
    """(what it is, its alternative text) of each picture in Markdown or HTML."""
    if kind == "text/markdown":
        text = without_code(text)
        for words, source in MARKDOWN.findall(text):
            yield source, words
    for tag in re.findall(r"<img\b[^>]*>", text):
        found = re.search(r'\balt="([^"]*)"', tag)
        yield tag[:40], html.unescape(found[1]) if found else ""
    for tag, inside in re.findall(r"(<svg\b[^>]*>)(.*?)</svg>", text, re.DOTALL):
        if 'aria-hidden="true"' not in tag:
            found = (re.match(r"\s*<title>([^<]*)</title>", inside)
                     or re.search(r'\baria-label="([^"]*)"', tag))
            yield tag[:40], html.unescape(found[1]) if found and 'role="img"' in tag else ""


def images(cells):
    """(number of the cell, what it is, its alternative text) of each picture of a notebook."""
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "markdown":
            for each in images_of_text("".join(cell["source"]), "text/markdown"):
                yield number, *each
        for output in cell.get("outputs", []):
            for kind, data in output.get("data", {}).items():
                if kind in ("text/html", "text/markdown", "image/svg+xml"):
                    for each in images_of_text("".join(data), kind):
                        yield number, *each
                elif kind.startswith("image/"):
                    words = output.get("metadata", {}).get(kind, {}).get("alt", "")
                    yield number, kind, words


def says_nothing(words):
    """Empty, or what would fit each picture."""
    return not words.strip() or words.strip().lower().rstrip(".") in GENERIC


def without_words(cells):
    """The pictures whose alternative text is missing or says nothing."""
    return [(number, what) for number, what, words in images(cells) if says_nothing(words)]


def pages():
    """Each notebook by its path, and README.md as one of a single cell."""
    for path in sorted((ROOT / "nbs").rglob("*.ipynb")):
        inner = path.relative_to(ROOT / "nbs").parts
        if not any(part[0] in "._" for part in inner):
            yield str(path.relative_to(ROOT)), json.loads(path.read_text("utf-8"))["cells"]
    text = (ROOT / "README.md").read_text("utf-8")
    yield "README.md", [{"cell_type": "markdown", "source": text}]


def test_no_picture_is_without_a_text_that_stands_for_it():
    missing = {path: found for path, cells in pages() if (found := without_words(cells))}
    assert missing == {}
    assert sum(1 for _, cells in pages() for _ in images(cells)) > 50


def code(**data):
    """A code cell whose output has this, with `_` for `/` and metadata under `metadata`."""
    metadata = data.pop("metadata", {})
    data = {kind.replace("_", "/", 1).replace("svg", "svg+xml"): each
            for kind, each in data.items()}
    return {"cell_type": "code", "source": "", "outputs": [
        {"output_type": "display_data", "data": data, "metadata": metadata}]}


@pytest.mark.parametrize("cell", [
    {"cell_type": "markdown", "source": "![](a.png)"},
    {"cell_type": "markdown", "source": ["text ", "<img src='a.png'>"]},
    {"cell_type": "markdown", "source": "![picture](a.png)"},
    code(text_html="<p><img src='data:image/png;base64,'></p>"),
    code(text_html='<img alt="  " src="a.png">'),
    code(text_html='<img alt="the run as a picture" src="a.png">'),
    code(text_markdown="![](a.png)"),
    code(image_svg='<svg role="img"><text>3</text></svg>'),
    code(image_svg="<svg><title>no role</title></svg>"),
    code(image_svg='<svg role="img"><text><title>of a part</title></text></svg>'),
    code(image_png="iVBO"),
])
def test_a_planted_picture_without_words_is_found(cell):
    assert len(without_words([cell])) == 1


@pytest.mark.parametrize("cell", [
    {"cell_type": "markdown", "source": "![A paused run](a.png)"},
    {"cell_type": "markdown", "source": "```\n![](a.png)\n``` and `<img>`"},
    code(text_html='<img alt="A paused run" src="a.png">'),
    code(text_html='<svg aria-hidden="true"><path/></svg>'),
    code(image_svg='<svg role="img"><title>A paused run</title></svg>'),
    code(image_svg='<svg role="img" aria-label="A paused run"></svg>'),
    code(image_png="iVBO", metadata={"image/png": {"alt": "A paused run"}}),
])
def test_a_picture_with_words_is_not_found(cell):
    assert without_words([cell]) == []


# The files


def shown_files():
    """The pictures of docs/images that a page shows, by name."""
    sources = {what for _, cells in pages() for _, what, _ in images(cells)}
    return {Path(source).name for source in sources if "docs/images/" in source}


def test_each_picture_of_the_folder_is_shown_on_a_page_and_the_other_way_round():
    files = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    assert shown_files() == files


def test_each_picture_of_the_folder_is_made_by_the_script():
    script = (ROOT / "scripts" / "pictures.py").read_text("utf-8")
    files = {path.stem for path in (ROOT / "docs" / "images").iterdir()}
    assert {name for name in files if f'"{name}"' not in script.lower()} == set()
