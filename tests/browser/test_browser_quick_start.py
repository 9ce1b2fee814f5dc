"""The quick start in JupyterLab, steered by real clicks while its cell runs."""

import time
from pathlib import Path

import nbformat
import pytest
from live_page import later

pytestmark = pytest.mark.browser
QUICK_START = Path(__file__).parents[2] / "nbs" / "tutorials" / "10_quick_start.ipynb"
WITNESS = """
from pathlib import Path
from trainer_nb import LambdaHook
def witness(trainer):
    Path("steps.txt").write_text(str(trainer.step_state.optimizer_step))
trainer.hooks.add(LambdaHook(name="witness", after_step=witness))
"""


def steps(server):
    """The optimizer steps that the training itself has written down."""
    path = Path(server.folder, "steps.txt")
    return int(path.read_text() or 0) if path.exists() else 0


def write_quick_start(server, name, until_fit=False):
    """The quick start with a hook that writes the steps into a file;
    returns the index of fit()'s cell."""
    notebook = nbformat.read(QUICK_START, as_version=4)
    fit = next(i for i, cell in enumerate(notebook.cells) if "trainer.fit()" in cell.source)
    notebook.cells.insert(fit, nbformat.v4.new_code_cell(WITNESS))
    if until_fit:
        notebook.cells = notebook.cells[: fit + 2]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbformat.write(notebook, Path(server.folder, name))
    Path(server.folder, "steps.txt").unlink(missing_ok=True)
    return fit + 1


def start(lab, server, name, **settings):
    """Open the quick start, run all of it, and wait for the drawn panel."""
    fit = write_quick_start(server, name, **settings)
    lab.open(name)
    lab.wait_kernel_ready()
    lab.run_all()
    lab.page.wait_for_selector(".tnb .js-plotly-plot .main-svg", timeout=60_000)
    assert later(lambda: steps(server) > 10)
    return fit


def click(lab, label):
    """A real click on a button of the panel."""
    lab.page.locator(".tnb").get_by_role("button", name=label).click()


def test_pause_resume_and_the_picture_that_stays(lab, jupyterlab):
    """Pause freezes the steps while the cell runs, Resume goes on, and the saved notebook keeps the
    picture."""
    fit = start(lab, jupyterlab, "quick.ipynb")
    click(lab, "Pause")
    lab.page.wait_for_selector(".tnb.is-paused")
    held = steps(jupyterlab)
    time.sleep(1.5)
    assert steps(jupyterlab) == held and lab.is_running()
    click(lab, "Resume")
    assert later(lambda: steps(jupyterlab) > held + 10)
    lab.wait_cell("all", seconds=120)  # its own assert asks for 97 % validation accuracy
    assert "finished after 1350 steps" in lab.output_text(fit + 1)
    lab.save()
    saved = jupyterlab.read_notebook("quick.ipynb")
    output = saved.cells[fit].outputs[0]
    assert "widget-view" not in str(output.data.keys())
    assert "data:image/svg+xml" in output.data["text/html"]
    assert Path(jupyterlab.folder, "quick.ipynb").stat().st_size < 200_000


def test_the_saved_picture_is_seen_again(lab, jupyterlab, browser):
    """Reopened with a fresh kernel, nothing run, the cell shows the picture of the run."""
    fit = start(lab, jupyterlab, "stop.ipynb", until_fit=True)
    click(lab, "Stop")
    lab.wait_cell("all", seconds=30)
    stopped = steps(jupyterlab)
    time.sleep(0.5)
    assert 0 < stopped < 1350 and steps(jupyterlab) == stopped
    lab.save()
    lab.shutdown_kernel()
    with jupyterlab.new_page(browser) as again:
        again.open("stop.ipynb")
        picture = again.cell(fit).locator("img")
        picture.wait_for()
        assert picture.evaluate("image => image.naturalWidth") >= 400


@pytest.mark.long  # test_browser_live presses keys, too
def test_one_key_shortcuts_do_not_reach_the_notebook(lab, jupyterlab):
    """Keys typed while a button of the panel has the focus insert and delete no cell."""
    start(lab, jupyterlab, "keys.ipynb", until_fit=True)
    before = lab.page.locator(".jp-Notebook .jp-Cell").count()
    lab.page.locator(".tnb").get_by_role("button", name="Pause").focus()
    for key in "abddx":
        lab.page.keyboard.press(key)
    time.sleep(0.5)
    assert lab.page.locator(".jp-Notebook .jp-Cell").count() == before
    lab.page.keyboard.press("Enter")
    lab.page.wait_for_selector(".tnb.is-paused")
    click(lab, "Stop")
    lab.wait_cell("all", seconds=30)
