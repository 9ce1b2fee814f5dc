"""Are the stored outputs of notebooks those which their code makes?

The notebooks' tests run each cell anyway; `compared_with_stored` keeps what a cell made beside
what is stored, and tells where they differ. Compared are stdout, text/plain and text/markdown.
What differs between two runs of the same code is left out: times, rates, sizes, addresses,
folders, numbers of processes and threads, dates and versions; floats may differ by a hundredth.
Widgets, pictures and HTML are not compared, and no cell with the directive `#| stale-ok`, which
nbdev removes from pages and modules (without a colon and a value: those it would leave to
Quarto). Of notebooks that wait, or run threads or processes, only the documentation of names is
compared (`show_doc`): the clock decides what their other cells print.

Another processor rounds otherwise, and a training that goes on long enough shows it in its first
digits. So `arithmetic.json` has for each notebook the arithmetic with which its numbers come out
(`execute` writes it); with another one its words are compared, and its numbers are not.
"""

import hashlib
import json
import re
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

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
    (r"(?i)\b(pid|process|port|thread)\b(\W{1,4})\d+", r"\1\2<number>"),
    (r"\b\d+\.\d+\.\d+[\w.+-]*", "<version>"),
    (r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "<id>"),
    (rf"{NUMBER} ?[kM]?(?: ?[A-Za-z]+)?(?:/| per | a )(?:s|second)\b", "<rate>"),
    (rf"{NUMBER} ?(?:{TIME_UNITS})\b", "<time>"),
    (rf"{NUMBER} ?(?:{SIZE_UNITS})\b", "<size>"),
    (r"[─━═-]{3,}", "---"),
    (r"\s+", " "),
]
ARITHMETIC = Path(__file__).with_name("arithmetic.json")
# Notebooks whose stored outputs are not compared, and why.
LEFT_OUT = {
    "panel/28_kernel.ipynb": "a notebook has a kernel, a test has none",
    "panel/30_pump.ipynb": "a notebook has a kernel, a test has none",
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


def same_words(one, other):
    """Whether two texts say the same, apart from noise and from the values of numbers."""
    numbers = rf" ?{NUMBER} ?"  # an array has spaces where a number is short
    return re.sub(numbers, "#", normal(one)) == re.sub(numbers, "#", normal(other))


def same_text(one, other):
    """Whether two texts say the same, apart from noise."""
    if not same_words(one, other):
        return False
    one, other = normal(one), normal(other)
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


class Stale(NamedTuple):
    """What the stored outputs of a cell have that is not made any more."""

    told: str
    in_words: bool  # not in numbers alone
    documents: bool = False  # a cell that shows documentation


def stale_output(cell, stored, made):
    """What is stale in a cell, its words before its numbers, or None."""
    found = [Stale(first_difference(old, new), not same_words(old, new))
             for old, new in compared_texts(stored, made) if not same_text(old, new)]
    if not found:
        return None
    worst = max(found, key=lambda each: each.in_words)
    source = cell["source"].strip().splitlines() or [""]
    return worst._replace(told=f"  cell {cell['id']}: {source[0]}\n{worst.told}",
                          documents=source[0].startswith("show_doc("))


def is_compared(place):
    """Whether the notebook at `place`, a path in nbs/, has stored outputs that are compared."""
    return place.as_posix() not in LEFT_OUT


def is_by_clock(text):
    """Whether a notebook waits, or runs threads, other processes or commands of a shell."""
    cells = json.loads(text)["cells"]
    code = ("".join(each["source"]) for each in cells if each["cell_type"] == "code")
    return any(BY_CLOCK.search(each) for each in code if not each.startswith("#| export"))


def is_exempt(cell):
    """Whether a cell says that its stored output may be another."""
    return "stale-ok" in (cell.directives_ or {})


def arithmetic():
    """How this machine rounds: a digest of what a small model learns in one thread.

    Layers, convolution and attention go through the libraries in which processors differ."""
    import torch
    from torch import nn

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Conv1d(4, 32, 3, padding=1), nn.GELU(), nn.LayerNorm(64),
                                  nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True),
                                  nn.Linear(64, 1), nn.Tanh())
            optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
            for _ in range(20):
                optim.zero_grad()
                model(torch.randn(16, 4, 64)).sub(0.5).square().mean().backward()
                optim.step()
    finally:
        torch.set_num_threads(threads)
    digest = hashlib.sha256()
    for each in model.parameters():
        digest.update(each.detach().numpy().tobytes())
    return digest.hexdigest()[:12]


def stored_arithmetic():
    """The arithmetic with which each notebook's numbers come out, by its place in nbs/."""
    return json.loads(ARITHMETIC.read_text(encoding="utf-8"))


def store_arithmetic(place):
    """Note that the numbers of the notebook at `place`, a path in nbs/, come out here."""
    known = stored_arithmetic() | {place.as_posix(): arithmetic()}
    ARITHMETIC.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def counts_here(stale, place):
    """What is stale in the notebook at `place`, without numbers that another arithmetic made."""
    found = [each for each in stale if each.in_words]
    if len(found) < len(stale) and stored_arithmetic().get(place.as_posix()) == arithmetic():
        return stale
    return found


def without_clock(stale, text):
    """What is stale in a notebook, without the cells for which the clock decides."""
    return [each for each in stale if each.documents] if is_by_clock(text) else stale


@contextmanager
def compared_with_stored(found):
    """While it is open, each cell that nbdev's `test_nb` runs adds its `Stale`, if there is one."""
    import nbdev.test

    plain = nbdev.test.CaptureShell

    class ComparingShell(plain):
        def cell(self, cell, **options):
            stored, cell.outputs = cell.get("outputs", []), []
            super().cell(cell, **options)
            quiet = cell.source.rstrip().endswith(";")  # execnb keeps no text of such a cell
            if not (quiet or self.exc or is_exempt(cell)):
                found.extend(filter(None, [stale_output(cell, stored, cell.outputs)]))

    nbdev.test.CaptureShell = ComparingShell
    try:
        yield found
    finally:
        nbdev.test.CaptureShell = plain
