"""What `notebooks.py docs` adds to nbdev's processed notebooks: links that lead somewhere, the
fields of the site that depend on its address, the changelog, and llms.txt."""

import html
import json
import posixpath
import re

import yaml

LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]+)?\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
KNOWN = r"\[(`[^`\n]+`)\]\([^)\s]*\)"  # nbdev's link of a name that it knows
WORDS = re.compile(rf"\[((?:[^][\n]|{KNOWN})+)\]\(")


# Pages and anchors


def front_matter(nb):
    """Title, description and output file, as nbdev writes them into the first cell."""
    found = re.match(r"---\n(.*?)\n---", "".join(nb["cells"][0]["source"]), flags=re.DOTALL)
    return yaml.safe_load(found[1]) if found else {}


def slug(heading):
    """The anchor that Pandoc gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"\{[^}]*\}\s*$", "", heading))
    text = re.sub(r"\s+", "-", re.sub(r"[^\w\s.-]", "", text).strip().lower())
    return re.sub(r"^[^a-z]+", "", text)


def markdown_texts(nb):
    """(the holder of a text, its key) for each Markdown cell and each output in Markdown."""
    for cell in nb["cells"]:
        if cell["cell_type"] == "markdown":
            yield cell, "source"
        for output in cell.get("outputs", []):
            if "text/markdown" in output.get("data", {}):
                yield output["data"], "text/markdown"


def prose(text):
    """A text without its blocks of code."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def unnested(text):
    """A text in which no link has a link in its words: nbdev makes one of each name it knows."""
    return WORDS.sub(lambda found: "[" + re.sub(KNOWN, r"\1", found[1]) + "](", text)


def raw_block(markup):
    """HTML as a block of Pandoc's Markdown."""
    ticks = max(map(len, re.findall("`+", markup)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}{{=html}}\n{markup}\n{fence}\n"


def words_of(output):
    """The text that stands for the picture of an output: from the SVG itself, or beside a raster.

    Pictures in HTML bring theirs with them."""
    for kind, data in output.get("data", {}).items():
        if kind == "image/svg+xml":
            svg = "".join(data)
            found = [re.search(f"<{name}>(.*?)</{name}>", svg, re.DOTALL)
                     for name in ("title", "desc")]
            found = [*filter(None, found)] or [*re.finditer(r'aria-label="([^"]*)"', svg)][:1]
            yield html.unescape(". ".join(each[1] for each in found))
        elif kind.startswith("image/"):
            yield output.get("metadata", {}).get(kind, {}).get("alt", "")


class Site:
    """The processed notebooks under a folder, by their paths in it.

    nbdev's own links begin with `address`, that of the first page."""

    def __init__(self, folder, address="/"):
        self.folder, self.address = folder, address
        self.notebooks = {path.relative_to(folder).as_posix(): json.loads(path.read_text("utf-8"))
                          for path in sorted(folder.rglob("*.ipynb"))}
        self.fields = {path: front_matter(nb) for path, nb in self.notebooks.items()}
        self.pages = {self.page(path): path for path in self.notebooks}
        self.anchors = {path: self.anchors_of(nb) for path, nb in self.notebooks.items()}

    def page(self, path):
        """The page that is made from a notebook."""
        name = self.fields[path].get("output-file")
        return posixpath.join(posixpath.dirname(path), name) if name else path

    def anchors_of(self, nb):
        """The anchors of a page."""
        texts = [prose("".join(holder[key])) for holder, key in markdown_texts(nb)]
        return {slug(heading) for text in texts for heading in HEADING.findall(text)}

    def target(self, path, link):
        """The notebook to which a link on the page of `path` leads; None where it is none."""
        if link.startswith(self.address):
            return self.pages.get(link.removeprefix(self.address))
        found = posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) if link else path
        return found if found in self.notebooks else None

    def links(self, path):
        """(link, its anchor) of each link of a page that stays on the site."""
        for holder, key in markdown_texts(self.notebooks[path]):
            for link, anchor in LINK.findall(prose("".join(holder[key]))):
                if link.startswith(self.address) or not re.match(r"\w+:", link):
                    yield link, anchor.removeprefix("#")

    def dead_links(self, path):
        """The links of a page that lead to no page, file or anchor."""
        here = self.folder / posixpath.dirname(path)
        for link, anchor in self.links(path):
            target = self.target(path, link)
            if target is None and not (here / link).exists():
                yield link
            elif target is not None and anchor and anchor not in self.anchors[target]:
                yield f"{link}#{anchor}"

    def nearest(self, path, found):
        """A link of nbdev's with an anchor that is there: of the method, of its class, or none."""
        link, anchor = found[1], (found[2] or "").removeprefix("#")
        if not link.startswith(self.address):
            return found[0]
        target = self.target(path, link)
        while target is not None and anchor and anchor not in self.anchors[target]:
            anchor = anchor.rpartition(".")[0]
        return f"]({link}{'#' if anchor else ''}{anchor})"

    def mend_anchors(self):
        """Links to methods that no page shows lead to their class, and none stands in the words of
        another; write what has changed."""
        for path, nb in self.notebooks.items():
            before = json.dumps(nb)
            for holder, key in markdown_texts(nb):
                text = LINK.sub(lambda found, path=path: self.nearest(path, found),
                                unnested("".join(holder[key])))
                holder[key] = text.splitlines(keepends=True)
            if json.dumps(nb) != before:
                self.write(path)

    def name_pictures(self):
        """Quarto writes a picture of an output to a file, and takes the words for it from the
        cell's option `fig-alt`."""
        for path, nb in self.notebooks.items():
            changed = False
            for cell in nb["cells"]:
                found = [words for each in cell.get("outputs", []) for words in words_of(each)]
                source = "".join(cell["source"])
                if (words := " ".join("; ".join(found).split())) and "fig-alt:" not in source:
                    source = f"#| fig-alt: {json.dumps(words, ensure_ascii=False)}\n{source}"
                    cell["source"], changed = source.splitlines(keepends=True), True
            if changed:
                self.write(path)

    def html_as_markdown(self):
        """HTML of outputs as Markdown: for HTML Quarto has a page load jQuery and require.js from
        elsewhere, which pictures and tables do not need."""
        for path, nb in self.notebooks.items():
            changed = False
            for output in [each for cell in nb["cells"] for each in cell.get("outputs", [])]:
                data = output.get("data", {})
                if (markup := "".join(data.get("text/html", ""))) and "<script" not in markup:
                    del data["text/html"]
                    data["text/markdown"] = raw_block(markup).splitlines(keepends=True)
                    changed = True
            if changed:
                self.write(path)

    def write(self, path):
        """Write a notebook."""
        text = json.dumps(self.notebooks[path], indent=1, ensure_ascii=False) + "\n"
        (self.folder / path).write_text(text, "utf-8")

    def llms_text(self, title, description, contents, address=""):
        """A list of the pages for language models: a line each, in the order of the sidebar.

        Pages without a section come first."""
        lines = [f"# {title}", "", f"> {description}", ""]
        alone = {"contents": [each for each in contents if isinstance(each, str)]}
        for section in [alone, *(each for each in contents if isinstance(each, dict))]:
            lines += ["", f"## {section['section']}", ""] if "section" in section else []
            for path in section["contents"]:
                fields = self.fields[path]
                words = " ".join(fields["description"].split())
                lines.append(f"- [{fields['title']}]({address}{self.page(path)}): {words}")
        return "\n".join(lines) + "\n"


# The fields of the site


def address(config):
    """Where the pages are; from the root of their host as long as that is not known."""
    return config.doc_host.rstrip("/") + config.doc_baseurl


def site_fields(config):
    """nbdev.yml: what stands in settings.ini; what needs an address only where there is one."""
    website = {"title": config.title, "description": config.description}
    if config.doc_host:
        website["site-url"] = address(config)
    if config.git_url:
        website |= {"repo-url": config.git_url, "repo-branch": config.branch,
                    "repo-subdir": "nbs", "repo-actions": ["edit", "issue"]}
    fields = {"project": {"output-dir": config.doc_path.name}, "website": website}
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def changelog_page(text):
    """CHANGELOG.md as a page: its links are written from the project's root."""
    return re.sub(r"\]\(nbs/", "](", text)
