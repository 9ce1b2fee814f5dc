"""The quick start in JupyterLab, steered by real clicks while its cell runs."""

from pathlib import Path

import pytest
from live_page import DRAWN, TURNS, Seen, Witnessed, later

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


def write_quick_start(place, name):
    """The quick start with a hook that writes the steps into a file;
    returns the index of fit()'s cell."""
    import nbformat  # takes a second

    notebook = nbformat.read(QUICK_START, as_version=4)
    fit = next(i for i, cell in enumerate(notebook.cells) if "trainer.fit()" in cell.source)
    assert all(any(words in cell.source for cell in notebook.cells) for words, _ in SHORTER)
    notebook.cells.insert(fit, nbformat.v4.new_code_cell(WITNESS))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            for words, others in SHORTER:
                cell.source = cell.source.replace(words, others)
    nbformat.write(notebook, Path(place.folder, name))
    return fit + 1


def test_pause_resume_and_the_picture_that_stays(lab, jupyterlab, browser):
    """Pause freezes the steps while the cell runs, Resume goes on, and the saved notebook keeps the
    picture: reopened with a fresh kernel, nothing run, the cell shows it."""
    fit = write_quick_start(jupyterlab, "quick.ipynb")
    lab.open("quick.ipynb")
    lab.run_all()
    lab.page.locator(DRAWN).first.wait_for()
    run, panel = Witnessed(jupyterlab.folder), Seen(lab.page.locator(".tnb").first)
    assert later(lambda: run.step > 0)
    panel.click("Pause")
    panel.is_in("paused")
    assert run.freezes() and lab.is_running()
    panel.click("Resume")
    assert run.goes_on(0)
    Path(jupyterlab.folder, "quickly").touch()
    lab.wait_cell("all")  # its own assert asks for 90 % validation accuracy
    lab.wait_text(fit + 1, "finished after 270 steps")
    lab.save()
    saved = jupyterlab.read_notebook("quick.ipynb")
    _, kept, *_ = saved.cells[fit].outputs  # below the panel
    assert "widget-view" not in str(kept.data.keys())
    assert "data:image/svg+xml" in kept.data["text/html"]
    assert Path(jupyterlab.folder, "quick.ipynb").stat().st_size < 200_000
    lab.shutdown_kernel()
    with jupyterlab.new_page(browser) as again:
        again.open("quick.ipynb")
        picture = again.cell(fit).locator("img")
        picture.wait_for()
        assert later(lambda: picture.evaluate("image => image.naturalWidth") >= 400)
        assert later(lambda: "rror" not in again.output_text(fit)), again.output_text(fit)
