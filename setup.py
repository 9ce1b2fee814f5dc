"""What the package index shows that pyproject.toml cannot say: it depends on the addresses in
settings.ini, which are empty until somebody publishes the project."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
FIELDS = ConfigParser()
FIELDS.read(ROOT / "settings.ini", encoding="utf-8")
FIELDS = FIELDS["DEFAULT"]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)")


def addresses(code: str, pages: str, branch: str) -> dict[str, str]:
    """The links beside the package; those whose address is empty are left out."""
    found = {}
    if pages:
        found["Documentation"] = pages
    if code:
        found |= {"Source": code, "Issues": f"{code}/issues",
                  "Changelog": f"{code}/blob/{branch}/CHANGELOG.md"}
    return found


def readable_elsewhere(text: str, code: str, branch: str) -> str:
    """README.md where its files are not beside it: links with the whole address.

    Without an address a picture is left out, and of a link the words stay."""
    def whole(found: re.Match) -> str:
        picture, words, target = found.groups()
        if not code:
            return "" if picture else words
        return f"{picture}[{words}]({code}/{'raw' if picture else 'blob'}/{branch}/{target})"
    return re.sub(r"\n{3,}", "\n\n", LINK.sub(whole, text))


CODE, BRANCH = FIELDS["git_url"].rstrip("/"), FIELDS["branch"]
PAGES = f"{FIELDS['doc_host'].rstrip('/')}{FIELDS['doc_baseurl']}" if FIELDS["doc_host"] else ""

if __name__ == "__main__":
    setup(
        long_description=readable_elsewhere((ROOT / "README.md").read_text(encoding="utf-8"),
                                            CODE, BRANCH),
        long_description_content_type="text/markdown",
        project_urls=addresses(CODE, PAGES, BRANCH),
    )
