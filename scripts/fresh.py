"""Do the stored outputs of notebooks say what their code makes?

The notebooks' tests run each cell anyway; `compared_with_stored` compares what a cell made with
what is stored. Compared are the words of stdout, text/plain and text/markdown. Numbers are not:
processors round differently, and times, sizes and dates change anyway. Paths, addresses, ids and
versions may differ too. Widgets, pictures and HTML are not compared, and no cell with the
directive `#| stale-ok`, which nbdev removes from pages and modules (without a colon and a value:
those it would leave to Quarto). Of notebooks that wait, or run threads or processes, only Markdown
is compared, as tables and the documentation of names: the clock decides what their cells print.
"""

import json
import re
from contextlib import contextmanager
from itertools import zip_longest

NUMBER = r"[-+]?\.?\d[\d.,:]*(?:[eE][-+]?\d+[.,:]*)?"
UNITS = ("ns|µs|μs|us|ms|s|min|h|seconds?|minutes?|hours?|microseconds?|milliseconds?"
         "|B|[kKMG]i?B|bytes?|[kM]")
# What is replaced before two texts are compared, in this order.
NOISE = [
    (r"\x1b\[[0-9;]*[A-Za-z]", ""),
    # the lines of the progress hook, which a notebook shows as a bar or in a panel
    (r"(?m)^(?:epoch \d+/\d+ |\w+ (?:after|in) epoch ).*$", ""),
    # the milliseconds of a hook in the table of hooks
    (r"(?m)^(\| \d+ \| .+ \| )[^|]+\|$", r"\1<time> |"),
    (r"<ipython-input-[\w-]+>|\b\d{6,}\.py\b", "<cell>"),
    (r"\b0x[0-9a-fA-F]+\b", "<address>"),
    (r"(?<![\w.<])/(?:[\w.+-]+/)*(?:tmp|temp|folders|root|home|work|Users)/[\w./+-]*", "<path>"),
    (r"\btmp[a-z0-9_]{8}\b", "<path>"),
    (r"\b\d+\.\d+\.\d+[\w.+-]*", "<version>"),
    # not the digits of 5.069599956186721e-05
    (r"(?<!\.)\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "<id>"),
    (r"[─━═-]{3,}", "---"),
    (r"\s+", " "),
    (rf" ?{NUMBER}(?: ?(?:{UNITS})\b)? ?", "#"),  # an array has spaces where a number is short
]
# Notebooks whose stored outputs are not compared, and why.
LEFT_OUT = {
    "panel/kernel.ipynb": "a notebook has a kernel, a test has none",
    "panel/pump.ipynb": "a notebook has a kernel, a test has none",
    "guide/tutorials/quick_start.ipynb": "a notebook shows the panel where a test prints lines",
    "guide/tutorials/steer.ipynb": "a notebook shows the panel where a test prints lines",
}
# In these notebooks it depends on the clock what is printed.
BY_CLOCK = re.compile(r"time\.sleep|threading|\.start\(|launch\(|subprocess|fit_async\(|^!", re.M)
RICH = ("application/vnd.jupyter.widget-view+json", "text/html", "image/svg+xml", "image/png",
        "image/jpeg")


def words(text):
    """`text` without what changes each time."""
    for pattern, instead in NOISE:
        text = re.sub(pattern, instead, text)
    return text.strip()


def same_words(one, other):
    """Whether two texts say the same, apart from noise and numbers."""
    return words(one) == words(other)


def stdout(outputs):
    """What a cell printed."""
    return "".join(
        "".join(output["text"]) for output in outputs
        if output["output_type"] == "stream" and output["name"] == "stdout"
    )


def compared_texts(stored, made, by_clock):
    """Pairs of texts, a stored one and the one made now; Markdown alone where the clock decides."""
    if not by_clock:
        yield stdout(stored), stdout(made)
    both = [[each["data"] for each in outputs if "data" in each] for outputs in (stored, made)]
    for old, new in zip_longest(*both, fillvalue={}):
        if any(kind in data for kind in RICH for data in (old, new)):
            continue
        for kind in ("text/markdown",) if by_clock else ("text/plain", "text/markdown"):
            yield "".join(old.get(kind, "")), "".join(new.get(kind, ""))


def first_difference(stored, made):
    """The first lines that differ, one below the other."""
    for old, new in zip_longest(stored.splitlines(), made.splitlines(), fillvalue=""):
        if not same_words(old, new):
            return f"    stored  {old[:200]}\n    now     {new[:200]}"
    return f"    stored  {stored[:200]!r}\n    now     {made[:200]!r}"


def stale_output(cell, stored, made, by_clock=False):
    """What the stored outputs of a cell say that is not made any more, or None."""
    for old, new in compared_texts(stored, made, by_clock):
        if not same_words(old, new):
            first = (cell["source"].strip().splitlines() or [""])[0]
            return f"  cell {cell['id']}: {first}\n{first_difference(old, new)}"
    return None


def is_compared(place):
    """Whether the notebook at `place`, a path in nbs/, has stored outputs that are compared."""
    return place.as_posix() not in LEFT_OUT


def is_by_clock(text):
    """Whether a notebook waits, or runs threads, other processes or commands of a shell."""
    cells = json.loads(text)["cells"]
    code = ("".join(each["source"]) for each in cells if each["cell_type"] == "code")
    return any(BY_CLOCK.search(each) for each in code if not each.startswith("#| export"))


def counts(cell):
    """Whether the outputs of a cell are compared."""
    quiet = cell.source.strip().endswith(";")  # execnb keeps no text of such a cell
    return not quiet and "stale-ok" not in (cell.directives_ or {})


@contextmanager
def compared_with_stored(text, until=None):
    """While it is open, nbdev's `test_nb` compares each cell of a notebook (of this text) that it
    runs; gives the list of what is stale. With `until` it leaves out the first cell that contains
    this text, and all that follow."""
    import nbdev.test

    plain, by_clock, found = nbdev.test.CaptureShell, is_by_clock(text), []

    class ComparingShell(plain):
        ended = False

        def cell(self, cell, **options):
            self.ended = self.ended or bool(until) and until in cell.source
            if self.ended:
                return
            stored, cell.outputs = cell.get("outputs", []), []
            super().cell(cell, **options)
            if counts(cell) and not self.exc:
                found.extend(filter(None, [stale_output(cell, stored, cell.outputs, by_clock)]))

    nbdev.test.CaptureShell = ComparingShell
    try:
        yield found
    finally:
        nbdev.test.CaptureShell = plain
