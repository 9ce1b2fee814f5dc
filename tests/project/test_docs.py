"""The documentation site: what `show_doc` shows, and the notebooks as they are processed for it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainer_nb

ROOT = Path(__file__).resolve().parents[2]
LINKS = """
import inspect
import trainer_nb
from trainer_nb.tools.show_doc import ReferenceRenderer
names = [getattr(trainer_nb, name) for name in trainer_nb.__all__]
names += [each for each in vars(trainer_nb.Trainer).values()
          if inspect.isfunction(getattr(each, "fget", each))]
for each in names:
    print(getattr(each, "fget", each).__name__, end=" ")
    text = ReferenceRenderer(each)._repr_markdown_()
    print(*[part for part in text.split() if part.startswith("[source](")])
"""


def source_links(folder, address):
    """Name and link of each public name and of each method, with this address in settings.ini."""
    settings = (ROOT / "settings.ini").read_text(encoding="utf-8")
    settings = re.sub(r"^git_url =.*", f"git_url = {address}", settings, flags=re.MULTILINE)
    (folder / "settings.ini").write_text(settings, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", LINKS], cwd=folder, capture_output=True,
                          text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return [line.partition(" ")[::2] for line in done.stdout.splitlines()]


def test_without_an_address_no_source_is_linked(tmp_path):
    links = source_links(tmp_path, "")
    assert len(links) > len(trainer_nb.__all__) and {link for _, link in links} == {""}


def test_with_an_address_each_link_leads_to_the_line_that_defines_the_name(tmp_path):
    address = "https://example.org/somebody/trainer_nb"
    for name, link in source_links(tmp_path, address):
        path, line = re.match(rf"\[source\]\({address}/blob/main/(\S+)#L(\d+)\)", link).groups()
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1:][:6]
        assert any(re.search(rf"(def|class) {name}\b", each) for each in lines), (name, link)
