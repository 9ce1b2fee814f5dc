"""The panel's module: what is committed was built from its sources, it reads the messages of the
feed as they are, and its own tests pass."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from trainer_nb.core.control import Series
from trainer_nb.panel import bins
from trainer_nb.panel.feed import VERSION, diff

ROOT = Path(__file__).resolve().parents[2]
SOURCES, PACKAGE = ROOT / "frontend", ROOT / "trainer_nb" / "panel" / "module"
MESSAGES = SOURCES / "test" / "messages.json"


def hash_of_sources():
    """As build.js computes it."""
    found = hashlib.sha256()
    names = [*(f"src/{each.name}" for each in sorted((SOURCES / "src").iterdir())),
             "package.json", "package-lock.json", "build.js"]
    for name in names:
        found.update(f"{name}\n".encode())
        found.update((SOURCES / name).read_bytes())
    return found.hexdigest()


def test_the_module_was_built_from_its_sources():
    """After a change: `make panel`."""
    for name in ("panel.js", "panel.css"):
        first = (PACKAGE / name).read_text().partition("\n")[0]
        assert f"sources: sha256 {hash_of_sources()}" in first, name


def test_both_sides_speak_one_version():
    """The number in link.js is that of the feed."""
    assert f"export const VERSION = {VERSION};" in (SOURCES / "src" / "link.js").read_text()


class View:
    """Records of a run, of which more are known at each look."""

    def __init__(self):
        self.count, self.records_version, self.branches = 0, 0, []
        steps = np.arange(1, 120)
        noise = np.random.default_rng(0).normal(size=len(steps))
        values = 3 / np.sqrt(steps) + 0.1 * noise
        values[[7, 30, 31]] = np.nan, np.inf, np.nan
        self.series = {
            "train/loss": Series(steps + bins.WRAP - 50, steps / 10, steps * 32, steps * 0.5,
                                 values),
            "valid/loss": Series(*(each[9::10] for each in (steps, steps / 10, steps * 32,
                                                            steps * 0.5, values)))}

    def records(self, counts=None):
        """Those after the first `counts` of each."""
        found = {}
        for name, series in self.series.items():
            until = self.count if name == "train/loss" else self.count // 10
            part = Series(*(each[(counts or {}).get(name, 0):until]
                            for each in vars(series).values()))
            if len(part):
                found[name] = part
        return found


def plain(rows):
    """Rows as JSON: None for NaN."""
    return [[None if np.isnan(each) else float(each) for each in row] for row in rows]


def made_messages():
    """Messages of the feed, and what a page must have after all of them."""
    view, records, cursor, messages = View(), bins.Records(), bins.Cursor(), []
    views = [{"place": {"step": 1, "fraction": 0.1}, "state": {"name": "running"}},
             {"place": {"step": 2, "fraction": 0.2}, "state": {"name": "running", "notice": "x"}},
             {"place": {"step": 3}, "state": {"name": "paused"}, "breakpoints": ["a", "b"]}]
    for number, count in enumerate((5, 6, 21, 22, 60, 61, 100, 119)):
        view.count = count
        records.read(view)
        part, buffers = cursor.news(records, number % 3 == 2)
        view_now = views[min(number, 2)]
        news = {"patch": diff(views[min(number, 3) - 1], view_now)} if 0 < number < 3 else {}
        head = {"v": VERSION, "view": view_now} if number == 0 else news
        messages.append(head | part | {
            "buffers": [base64.b64encode(each).decode() for each in buffers]})
    wanted = {}
    for name, record in records.of.items():
        _, rows = record.bins.since()
        wanted[name] = {"stride": record.bins.stride, "rows": plain(rows)}
    return {"messages": messages, "view": views[2], "curves": wanted}


def test_the_messages_that_its_tests_read_are_those_of_the_feed(monkeypatch):
    """TRAINER_NB_WRITE=1 writes them anew."""
    monkeypatch.setattr(bins, "MOST", 16)
    text = json.dumps(made_messages(), separators=(",", ":")) + "\n"
    if os.environ.get("TRAINER_NB_WRITE"):
        MESSAGES.write_text(text)
    assert MESSAGES.read_text() == text


@pytest.mark.slow
def test_its_own_tests_pass_and_the_build_is_the_same(tmp_path):
    """In Node, with the packages of the lock file."""
    if not shutil.which("npm"):
        pytest.skip("needs Node 20")
    if not (SOURCES / "node_modules").exists() and not os.environ.get("TRAINER_NB_REQUIRE_BROWSER"):
        pytest.skip("needs its packages: make panel")
    for words in (["npm", "test"], ["node", "build.js", str(tmp_path)]):
        done = subprocess.run(words, cwd=SOURCES, capture_output=True, text=True,
                              env=os.environ | {"CI": "1", "NO_COLOR": "1"})
        assert done.returncode == 0, done.stdout + done.stderr
    for name in ("panel.js", "panel.css", "plotly-basic.js.gz"):
        assert (tmp_path / name).read_bytes() == (PACKAGE / name).read_bytes(), name
