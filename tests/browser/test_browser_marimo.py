"""marimo in real Chromium: the cells that the page of front ends shows, as they stand there."""

import os
import re
import subprocess
import textwrap
from contextlib import contextmanager

import pytest
from jupyter_server import ENVIRONMENTS, free_port
from live_page import later
from page_runs import ENVIRONMENT, ROOT, Run

pytestmark = [pytest.mark.browser, pytest.mark.long]

MARIMO = ENVIRONMENTS / ".venv-marimo" / "bin" / "python"
SETUP = """
import marimo as mo
import time, torch
from trainer_nb import LambdaHook, Trainer
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(640, 8)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1].sin()), batch_size=8)
model, loss_fn = torch.nn.Linear(8, 1), torch.nn.MSELoss()
"""
SLOW = 'trainer.hooks.add(LambdaHook(name="slow", after_step=lambda _: time.sleep(0.01)))'


def recipe():
    """The three cells of the page, in their order."""
    import nbformat  # takes a second

    page = nbformat.read(ROOT / "nbs" / "guide" / "tutorials" / "front_ends.ipynb", as_version=4)
    text = next(cell.source for cell in page.cells if cell.source.startswith("## marimo"))
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def notebook(cells):
    """A notebook of marimo's."""
    bodies = ["@app.cell\ndef _():\n" + textwrap.indent(cell.strip(), "    ") + "\n    return\n"
              for cell in cells]
    return "\n".join(["import marimo\n\napp = marimo.App()\n", *bodies,
                      'if __name__ == "__main__":\n    app.run()\n'])


@contextmanager
def edited(folder, cells):
    """The address of a marimo that edits a notebook of these cells."""
    (folder / "run.py").write_text(notebook(cells))
    port = free_port()
    command = [MARIMO, "-m", "marimo", "edit", "run.py", "--headless", "--no-token",
               "--skip-update-check", "--host", "127.0.0.1", "--port", str(port)]
    with open(folder / "marimo.log", "w") as log, subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT | {"HOME": str(folder)}, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            assert later(lambda: "URL:" in (folder / "marimo.log").read_text())
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, 9)


def test_the_recipe_of_the_page(tmp_path, browser):
    """The run goes on in its thread; the link opens its page, where Pause and Resume act; marimo's
    own buttons and its box for the rate act, too, and its text follows."""
    first, *others = recipe()
    assert len(others) == 2
    begun = first.replace("page = ", SLOW + "\npage = ", 1)  # ten seconds of steps are too few
    with edited(tmp_path, [SETUP, begun, *others]) as address:
        context = browser.new_context(viewport={"width": 1200, "height": 1000})
        try:
            marimo = context.new_page()
            marimo.goto(address)
            link = marimo.get_by_role("link", name=re.compile("run.s page"))
            def run_all():  # a click before the page is connected is lost
                marimo.get_by_test_id("run-button").last.click()
                return later(lambda: link.count(), 20)
            marimo.wait_for_load_state("networkidle")
            assert later(run_all)
            run = Run(tmp_path / "runs" / "exp1")
            assert later(lambda: run.step() > 5)
            state = lambda: run.status["state"]

            with context.expect_page() as opened:
                link.click()
            page = opened.value
            page.wait_for_selector(".js-plotly-plot .main-svg")
            page.get_by_role("button", name="Pause", exact=True).click()
            assert later(lambda: state() == "paused")
            held, beat = run.step(), run.status["beat"]
            assert later(lambda: run.status["beat"] != beat) and run.step() == held
            page.get_by_role("button", name="Resume", exact=True).click()
            assert later(lambda: state() == "running" and run.step() > held)

            marimo.get_by_role("button", name="Pause", exact=True).click()
            assert later(lambda: state() == "paused")
            assert later(lambda: marimo.get_by_text(f"paused, step {run.step()}").count())
            marimo.get_by_role("button", name="Resume", exact=True).click()
            assert later(lambda: state() == "running")
            rate = marimo.locator("marimo-number input").first
            rate.fill("0.0005")
            rate.press("Enter")
            assert later(lambda: [(each["name"], each["new"]) for each in run.journal
                                  if each["kind"] == "tune"] == [("lr", 0.0005)]), run.journal
            assert later(lambda: marimo.get_by_text("lr 0.0005").count())
            if folder := os.environ.get("TRAINER_NB_PICTURES"):
                marimo.screenshot(path=f"{folder}/marimo.png")
        finally:
            context.close()
