"""Make the pictures of docs/images: the quick start in JupyterLab, in Chromium, steered by real clicks.

    .venv/bin/python scripts/pictures.py
"""

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from jupyter_server import JupyterServer, open_browser  # noqa: E402

IMAGES = ROOT / "docs" / "images"


def take(lab, name):
    """A picture of the training cell's output."""
    lab.page.mouse.move(0, 0)
    lab.page.wait_for_timeout(1200)
    output = lab.page.locator(".jp-Cell:has-text('trainer.fit()') .jp-Cell-outputArea").first
    output.scroll_into_view_if_needed()
    output.screenshot(path=str(IMAGES / f"{name}.png"))
    print(f"docs/images/{name}.png")


def steer(lab):
    """Run the quick start, pause it, go on, and take a picture of each state."""
    lab.open("quick_start.ipynb")
    lab.wait_kernel_ready()
    lab.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    lab.run_all()
    panel = lab.page.locator(".tnb")
    panel.locator(".js-plotly-plot .main-svg").first.wait_for(timeout=60_000)
    lab.page.wait_for_timeout(4000)
    take(lab, "running")
    panel.get_by_role("button", name="Pause").click()
    lab.page.wait_for_selector(".tnb.is-paused")
    take(lab, "paused")
    panel.get_by_role("button", name="Resume").click()
    lab.wait_cell("all", seconds=120)
    take(lab, "finished")


def main():
    """Take all pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "nbs/tutorials/10_quick_start.ipynb", Path(folder, "quick_start.ipynb"))
        with JupyterServer(folder) as server, open_browser() as browser:
            with server.new_page(browser, width=1300, height=1500) as lab:
                steer(lab)
                lab.save()
                lab.shutdown_kernel()
            with server.new_page(browser, width=1300, height=1500) as lab:  # as it was saved, nothing run
                lab.open("quick_start.ipynb")
                take(lab, "still")


if __name__ == "__main__":
    main()
