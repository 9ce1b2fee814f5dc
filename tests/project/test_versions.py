"""Pages of released versions: each in a folder of its own, listed, the newest first."""

import re
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import versions


def archive(folder, name, pages=None):
    """A zip with pages."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as made:
        for path, text in (pages or {"index.html": name, "core/hook.html": "a hook"}).items():
            made.writestr(path, text)


@pytest.fixture
def site(tmp_path):
    """A site with its page of versions, as a Markdown page with raw HTML becomes one."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "versions.html").write_text(f"<html>{versions.page('0.3.0')}</html>")
    return tmp_path / "site"


def links(site):
    return re.findall(r'href="([^"]+)"', (site / "versions.html").read_text())


def test_versions_are_unpacked_and_listed_the_newest_first(site, tmp_path):
    for name in ("pages-0.9.0.zip", "pages-0.10.0.zip", "pages-0.10.0rc1.zip"):
        archive(tmp_path / "zips", name)
    assert versions.add_versions(site, tmp_path / "zips") == 3
    assert links(site) == [f"{each}/index.html" for each in ("0.10.0", "0.10.0rc1", "0.9.0")]
    assert [link for link in links(site) if not (site / link).is_file()] == []
    assert (site / "0.9.0" / "index.html").read_text() == "pages-0.9.0.zip"
    assert "none is released" not in (site / "versions.html").read_text()
    assert versions.add_versions(site, tmp_path / "zips") == 3 and len(links(site)) == 3


def test_without_a_release_the_page_says_so(site, tmp_path):
    (tmp_path / "zips").mkdir()
    assert versions.add_versions(site, tmp_path / "zips") == 0
    assert "none is released yet" in (site / "versions.html").read_text() and not links(site)


@pytest.mark.parametrize("name, pages, words", [
    ("pages-newest.zip", None, "pages-newest.zip names no version"),
    ("pages-0.1.0.zip", {"start.html": "x"}, "has no index.html"),
    ("pages-0.1.0.zip", {"index.html": "x" * 2000}, "2,000 bytes of pages, at most 1,000"),
])
def test_what_is_no_archive_of_pages_is_refused(site, tmp_path, monkeypatch, name, pages, words):
    monkeypatch.setattr(versions, "MOST", 1000)
    archive(tmp_path / "zips", name, pages)
    with pytest.raises(ValueError, match=words):
        versions.add_versions(site, tmp_path / "zips")
    assert [path.name for path in site.iterdir()] == ["versions.html"] and not links(site)


def test_no_path_leads_out_of_the_site(site, tmp_path):
    absolute = tmp_path / "absolute.html"
    archive(tmp_path / "zips", "pages-0.1.0.zip",
            {"index.html": "x", "../../outside.html": "y", str(absolute): "z"})
    versions.add_versions(site, tmp_path / "zips")
    assert not (tmp_path / "outside.html").exists() and not absolute.exists()
    assert (site / "0.1.0" / "index.html").is_file()


def test_the_workflow_keeps_and_shows_versions():
    workflow = yaml.safe_load((ROOT / ".github/workflows/docs.yml").read_text())
    steps = workflow["jobs"]["docs"]["steps"]
    commands = "\n".join(step.get("run", "") for step in steps)
    order = ("make docs", "pages-${TAG#v}.zip", "gh release download", "scripts/versions.py")
    places = [commands.index(each) for each in order]
    assert places == sorted(places)
    assert steps[-2]["with"]["path"] == "_proc/_docs"
