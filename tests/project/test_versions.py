"""Pages of released versions: each in a folder of its own, listed, the newest first."""

import re
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import versions


def add(folder, **archives):
    """Add archives with these pages to a site; how many there are, and the links to them."""
    (folder / "site").mkdir()
    (folder / "zips").mkdir()
    listing = folder / "site" / "versions.html"
    listing.write_text(f"<html>{versions.page('0.3.0')}</html>")
    for name, pages in archives.items():
        with zipfile.ZipFile(folder / "zips" / f"{name}.zip", "w") as made:
            for path, text in pages.items():
                made.writestr(path, text)
    count = versions.add_versions(folder / "site", folder / "zips")
    return count, re.findall(r'href="([^"]+)"', listing.read_text())


def test_versions_are_unpacked_and_listed_the_newest_first(tmp_path):
    names = ("0.10.0", "0.10.0rc1", "0.9.0")
    others = {"../../outside.html": "y", str(tmp_path / "absolute.html"): "z"}  # are left out
    count, links = add(tmp_path, **{f"pages-{name}": {"index.html": name} | others
                                    for name in names[::-1]})
    assert {path.name for path in tmp_path.iterdir()} == {"site", "zips"}
    assert count == 3 and links == [f"{name}/index.html" for name in names]
    assert [(tmp_path / "site" / link).read_text() for link in links] == list(names)
    (tmp_path / "none").mkdir()
    assert add(tmp_path / "none") == (0, [])
    assert "none is released yet" in (tmp_path / "none" / "site" / "versions.html").read_text()


@pytest.mark.parametrize("name, pages, words", [
    ("pages-newest", {"index.html": "x"}, "pages-newest.zip names no version"),
    ("pages-0.1.0", {"start.html": "x"}, "has no index.html"),
    ("pages-0.1.0", {"index.html": "x" * 2000}, "2,000 bytes of pages, at most 1,000"),
])
def test_what_is_no_archive_of_pages_is_refused(tmp_path, monkeypatch, name, pages, words):
    monkeypatch.setattr(versions, "MOST", 1000)
    with pytest.raises(ValueError, match=words):
        add(tmp_path, **{name: pages})
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["versions.html"]
