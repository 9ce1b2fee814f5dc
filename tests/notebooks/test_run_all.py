"""All cells of a page, one after another, in a page that draws the panel and clicks nothing."""

import json
from pathlib import Path

import pytest
from kernel_client import client_of
from jupyter_server import LIMIT

pytestmark = pytest.mark.slow
PAGES = Path(__file__).parents[2] / "nbs"


@pytest.mark.parametrize("page", ["guide/tutorials/steer"])
def test_run_all_needs_no_click(page, tmp_path):
    """A run that is paused goes on by a later cell."""
    cells = json.loads((PAGES / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    with client_of("python3", tmp_path) as client:
        sent = [client.client.execute(source) for source in sources]
        drawn = []

        def done():
            """Say that the panels are drawn as soon as they are there, as a page does."""
            drawn.append(client.show())
            return all([client.replied(cell) for cell in sent]) and client.idle.issuperset(sent)
        assert client.until(done, 4 * LIMIT), [client.text(cell) for cell in sent
                                               if cell not in client.idle][:1]
        told = [client.text(cell) for cell in sent]
        assert sum(drawn) and not any("Traceback" in text for text in told), told
