"""The quick start in JupyterLab, steered by real clicks while its cell runs."""

from pathlib import Path

import pytest
from live_page import PANEL, TURNS, Witnessed, later

pytestmark = pytest.mark.browser
QUICK_START = Path(__file__).parents[2] / "nbs" / "guide" / "tutorials" / "quick_start.ipynb"
# The run takes its time until it is told not to: else it could end before the first click. It is
# shorter than the page's run, which other tests make as it is.
SHORTER = (("epochs=10", "epochs=6"), ("reached >= 0.97", "reached >= 0.9"))
WITNESS = TURNS + """
from trainer_nb import LambdaHook
def witness(trainer):
    if Path("quickly").exists():
        return
    tell("told", {"step": trainer.step_state.optimizer_step})
    if turns[1] != "running":
        turn("running")
    time.sleep(0.7)
trainer.hooks.add(LambdaHook(name="witness", after_step=witness))
"""


def write_quick_start(place, name, until_fit=False):
    """The quick start with a hook that writes the steps into a file;
    returns the index of fit()'s cell."""
    import nbformat  # takes a second

    notebook = nbformat.read(QUICK_START, as_version=4)
    fit = next(i for i, cell in enumerate(notebook.cells) if "trainer.fit()" in cell.source)
    assert all(any(words in cell.source for cell in notebook.cells) for words, _ in SHORTER)
    notebook.cells.insert(fit, nbformat.v4.new_code_cell(WITNESS))
    if until_fit:
        notebook.cells = notebook.cells[: fit + 2]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            for words, others in SHORTER:
                cell.source = cell.source.replace(words, others)
    nbformat.write(notebook, Path(place.folder, name))
    return fit + 1


def start(lab, place, **settings):
    """Open the quick start, run all of it, and wait for the drawn panel."""
    fit = write_quick_start(place, "quick.ipynb", **settings)
    lab.open("quick.ipynb")
    lab.run_all()
    lab.page.locator(PANEL).first.wait_for()
    run = Witnessed(place.folder)
    assert later(lambda: run.step > 0)
    return fit, run


def click(lab, label):
    """A real click on a button of the panel."""
    lab.page.locator(".tnb").get_by_role("button", name=label).click()


def test_pause_resume_and_the_picture_that_stays(lab, jupyterlab, browser):
    """Pause freezes the steps while the cell runs, Resume goes on, and the saved notebook keeps the
    picture: reopened with a fresh kernel, nothing run, the cell shows it."""
    fit, run = start(lab, jupyterlab)
    click(lab, "Pause")
    lab.page.locator(".tnb.is-paused").wait_for()
    assert run.freezes() and lab.is_running()
    click(lab, "Resume")
    assert run.goes_on(0)
    Path(jupyterlab.folder, "quickly").touch()
    lab.wait_cell("all")  # its own assert asks for 90 % validation accuracy
    lab.wait_text(fit + 1, "finished after 270 steps")
    lab.save()
    saved = jupyterlab.read_notebook("quick.ipynb")
    output = saved.cells[fit].outputs[0]
    assert "widget-view" not in str(output.data.keys())
    assert "data:image/svg+xml" in output.data["text/html"]
    assert Path(jupyterlab.folder, "quick.ipynb").stat().st_size < 200_000
    lab.shutdown_kernel()
    with jupyterlab.new_page(browser) as again:
        again.open("quick.ipynb")
        picture = again.cell(fit).locator("img")
        picture.wait_for()
        assert later(lambda: picture.evaluate("image => image.naturalWidth") >= 400)


@pytest.mark.long  # test_browser_live presses keys, too
def test_one_key_shortcuts_do_not_reach_the_notebook(lab, jupyterlab):
    """Keys typed while a button of the panel has the focus insert and delete no cell."""
    start(lab, jupyterlab, until_fit=True)
    before = lab.page.locator(".jp-Notebook .jp-Cell").count()
    lab.page.locator(".tnb").get_by_role("button", name="Pause").focus()
    for key in "abddx":
        lab.page.keyboard.press(key)
    lab.page.keyboard.press("Enter")
    lab.page.locator(".tnb.is-paused").wait_for()
    assert lab.page.locator(".jp-Notebook .jp-Cell").count() == before
    click(lab, "Stop")
    lab.wait_cell("all")
