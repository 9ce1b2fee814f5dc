"""Are the stored outputs of notebooks those which their code makes?

The notebooks' tests run each cell anyway; `compared_with_stored` keeps what a cell made beside
what is stored, and tells where they differ. Compared are stdout, text/plain and text/markdown.
What differs between two runs of the same code is left out: times, rates, sizes, addresses,
folders, numbers of processes, dates and versions; floats may differ by a hundredth. Widgets,
pictures and HTML are not compared, and no cell with the directive `#| stale-ok`, which nbdev
removes from pages and modules (without a colon and a value: those it would leave to Quarto).
Notebooks that wait, or run threads or processes, are left out: the clock decides what they print.
"""

import json
import re
from contextlib import contextmanager
from itertools import zip_longest

NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
TIME_UNITS = "ns|µs|μs|us|ms|s|min|h|seconds?|minutes?|hours?|microseconds?|milliseconds?"
SIZE_UNITS = "B|[kKMG]i?B|bytes?"
# What is replaced before two texts are compared, in this order.
NOISE = [
    (r"\x1b\[[0-9;]*[A-Za-z]", ""),
    # the lines of the progress hook, which a notebook shows as a bar or in a panel
    (r"(?m)^(?:epoch \d+/\d+ |\w+ (?:after|in) epoch ).*$", ""),
    (rf"(\btime/\w+\W{{1,4}}(?:[\d,]+ records, last )?){NUMBER}", r"\1<time>"),
    (rf"((?:per_second|/s)\b\W{{1,4}}(?:[\d,]+ records, last )?){NUMBER}", r"\1<rate>"),
    # the milliseconds of a hook in the table of hooks
    (r"(?m)^(\| \d+ \| .+ \| )[^|]+\|$", r"\1<time> |"),
    (r"<ipython-input-[\w-]+>|\b\d{6,}\.py\b", "<cell>"),
    (r"\b\d{4}-\d\d-\d\d(?:[T _-]+\d\d[:-]?\d\d(?:[:-]?\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?",
     "<date>"),
    (r"\b\d{8}[-_T]\d{6}\b", "<date>"),
    (r"\b\d+:\d\d(?::\d\d)?(?:\.\d+)?\b", "<time>"),
    (r"\b1[6-9]\d{8}(?:\.\d+)?\b", "<date>"),
    (r"\b0x[0-9a-fA-F]+\b", "<address>"),
    (r"(?<![\w.<])/(?:[\w.+-]+/)*(?:tmp|temp|folders|root|home|work|Users)/[\w./+-]*", "<path>"),
    (r"(?<![\w.<])/(?:tmp|root|home|work|Users)/[\w./+-]*", "<path>"),
    (r"\btmp[a-z0-9_]{8}\b", "<path>"),
    (r"(?i)\b(pid|process|port)\b(\W{1,4})\d+", r"\1\2<number>"),
    (r"\b\d+\.\d+\.\d+[\w.+-]*", "<version>"),
    (r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "<id>"),
    (rf"{NUMBER} ?[kM]?(?: ?[A-Za-z]+)?(?:/| per | a )(?:s|second)\b", "<rate>"),
    (rf"{NUMBER} ?(?:{TIME_UNITS})\b", "<time>"),
    (rf"{NUMBER} ?(?:{SIZE_UNITS})\b", "<size>"),
    (r"[─━═-]{3,}", "---"),
    (r"\s+", " "),
]
# Folders of nbs/ whose stored outputs are compared; pages in them that are not, and why.
COMPARED = ("coming_from", "core", "explanation", "hooks", "how_to", "reference", "tools",
            "tutorials")
LEFT_OUT = {
    "tutorials/10_quick_start.ipynb": "a notebook shows the panel where a test prints lines",
    "tutorials/11_steer.ipynb": "a notebook shows the panel where a test prints lines",
}
# In these notebooks it depends on the clock what is printed.
BY_CLOCK = re.compile(r"time\.sleep|threading|\.start\(|launch\(|subprocess|fit_async|^!", re.M)
RICH = ("application/vnd.jupyter.widget-view+json", "text/html", "image/svg+xml", "image/png",
        "image/jpeg")


def normal(text):
    """`text` without what changes each time."""
    for pattern, instead in NOISE:
        text = re.sub(pattern, instead, text)
    return text.strip()


def same_number(one, other):
    """Whether two numbers, as text, are equal: whole ones exactly, floats about."""
    if one == other:
        return True
    if re.fullmatch(r"[-+]?[\d,]+", one) and re.fullmatch(r"[-+]?[\d,]+", other):
        return False
    one, other = float(one.replace(",", "")), float(other.replace(",", ""))
    return abs(one - other) <= max(1e-2 * max(abs(one), abs(other)), 1e-6)


def same_text(one, other):
    """Whether two texts say the same, apart from noise."""
    one, other = normal(one), normal(other)
    if re.sub(NUMBER, "#", one) != re.sub(NUMBER, "#", other):
        return False
    pairs = zip(re.findall(NUMBER, one), re.findall(NUMBER, other), strict=True)
    return all(same_number(*pair) for pair in pairs)


def stdout(outputs):
    """What a cell printed."""
    return "".join(
        "".join(output["text"]) for output in outputs
        if output["output_type"] == "stream" and output["name"] == "stdout"
    )


def compared_texts(stored, made):
    """Pairs of texts, a stored one and the one made now."""
    yield stdout(stored), stdout(made)
    both = [[each["data"] for each in outputs if "data" in each] for outputs in (stored, made)]
    for old, new in zip_longest(*both, fillvalue={}):
        if any(kind in data for kind in RICH for data in (old, new)):
            continue
        for kind in ("text/plain", "text/markdown"):
            yield "".join(old.get(kind, "")), "".join(new.get(kind, ""))


def first_difference(stored, made):
    """The first lines that differ, one below the other."""
    for old, new in zip_longest(stored.splitlines(), made.splitlines(), fillvalue=""):
        if not same_text(old, new):
            return f"    stored  {old[:200]}\n    now     {new[:200]}"
    return f"    stored  {stored[:200]!r}\n    now     {made[:200]!r}"


def stale_text(cell, stored, made):
    """What the stored outputs of a cell have that is not made any more, or nothing."""
    for old, new in compared_texts(stored, made):
        if not same_text(old, new):
            source = cell["source"].strip().splitlines() or [""]
            return f"  cell {cell['id']}: {source[0]}\n{first_difference(old, new)}"
    return ""


def is_compared(place):
    """Whether the notebook at `place`, a path in nbs/, has stored outputs that are compared."""
    return place.parts[0] in COMPARED and place.as_posix() not in LEFT_OUT


def is_by_clock(text):
    """Whether a notebook waits, or runs threads, other processes or commands of a shell."""
    cells = json.loads(text)["cells"]
    code = ("".join(each["source"]) for each in cells if each["cell_type"] == "code")
    return any(BY_CLOCK.search(each) for each in code if not each.startswith("#| export"))


def is_exempt(cell):
    """Whether a cell says so, or shows documentation, which is made anew with the pages."""
    return "stale-ok" in (cell.directives_ or {}) or cell.source.lstrip().startswith("show_doc(")


@contextmanager
def compared_with_stored(found):
    """While it is open, cells that nbdev's `test_nb` runs add to `found` what is stale in them."""
    import nbdev.test

    plain = nbdev.test.CaptureShell

    class ComparingShell(plain):
        def cell(self, cell, **options):
            stored, cell.outputs = cell.get("outputs", []), []
            super().cell(cell, **options)
            quiet = cell.source.rstrip().endswith(";")  # execnb keeps no text of such a cell
            if not (quiet or self.exc or is_exempt(cell)):
                found.extend(filter(None, [stale_text(cell, stored, cell.outputs)]))

    nbdev.test.CaptureShell = ComparingShell
    try:
        yield found
    finally:
        nbdev.test.CaptureShell = plain
