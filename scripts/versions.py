"""The pages of released versions, beside those of the newest state.

    python scripts/versions.py SITE ARCHIVES

A release keeps its pages as pages-VERSION.zip. Each archive in the folder ARCHIVES is unpacked to
SITE/VERSION, and SITE/versions.html gets a list of them, the newest first.
"""

import re
import sys
import zipfile
from pathlib import Path

from packaging.version import InvalidVersion, Version

LIST = re.compile(r'(<ul id="versions">).*?(</ul>)', re.DOTALL)
MOST = 500 << 20  # bytes of a version's pages
TEXT = """# Versions

These pages are of the newest state of the project, {version} or what comes after it. Pages of
releases:

<ul id="versions"><li>none is released yet</li></ul>

[Changes](changelog.md) says what each version brought.
"""


def page(version):
    """The page of versions, as Markdown; its list is filled in after the site is made."""
    return TEXT.format(version=version)


def released(archives):
    """Version to archive, the newest first; ValueError for a name without a version."""
    found = {}
    for path in Path(archives).glob("*.zip"):
        try:
            found[Version(path.stem.removeprefix("pages-"))] = path
        except InvalidVersion as error:
            raise ValueError(f"{path.name} names no version, as pages-0.1.0.zip does") from error
    return dict(sorted(found.items(), reverse=True))


def unpack(path, folder):
    """Unpack an archive of pages; ValueError, before anything is written, where it is none."""
    with zipfile.ZipFile(path) as archive:
        size = sum(each.file_size for each in archive.infolist())
        if size > MOST:
            raise ValueError(f"{path.name} has {size:,} bytes of pages, at most {MOST:,} are "
                             "unpacked")
        if "index.html" not in archive.namelist():
            raise ValueError(f"{path.name} has no index.html")
        archive.extractall(folder)  # which drops what leads out of the folder


def add_versions(site, archives):
    """Unpack each archive into the site and list the versions; returns their number."""
    found, listed = released(archives), Path(site, "versions.html")
    text = listed.read_text(encoding="utf-8")
    if not LIST.search(text):
        raise ValueError(f"{listed} has no list of versions")
    for version, path in found.items():
        unpack(path, Path(site, str(version)))
    if found:
        lines = "".join(f'<li><a href="{each}/index.html">{each}</a></li>' for each in found)
        listed.write_text(LIST.sub(rf"\g<1>{lines}\g<2>", text), encoding="utf-8")
    return len(found)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(f"{add_versions(*sys.argv[1:])} released versions are in the site")
