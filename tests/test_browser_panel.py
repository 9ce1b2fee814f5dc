"""The panel in JupyterLab: curves that move, what a page keeps and shows again, steering by real clicks."""

import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

SETUP = """
import time, torch
from pathlib import Path
from trainer_nb import Trainer
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(256, 8)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1].sin()), batch_size=16)
model = torch.nn.Linear(8, 1)
class Witness:
    def after_step(self, trainer):
        step = trainer.step_state.optimizer_step
        Path("steps.txt").write_text(f"{step} {trainer.optim.param_groups[0]['lr']}")
        time.sleep(0.01)
        if step == fails_at:
            raise ValueError("at this step")
fails_at = None
trainer = Trainer(model, train_dl=data, valid_dl=data, loss_fn=torch.nn.MSELoss(), epochs=500, device="cpu", hooks=[Witness()],
                  metrics={"mae": lambda pred, target: (pred - target).abs().mean()}, grad_clip=1.0,
                  optim=torch.optim.SGD(model.parameters(), lr=0.01))
"""
FIT = "trainer.fit().status"
LAST = "() => Math.max(...document.querySelector('.js-plotly-plot').data.find(t => t.name == 'train').x)"
RANGE = "() => document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range.map(Math.round)"
WRITE_CELL = "code => window.jupyterapp.shell.currentWidget.content.widgets[2].model.sharedModel.setSource(code)"
SHIFTS = """() => {
    window.shifts = [];
    const note = list => list.getEntries().forEach(entry => window.shifts.push(entry.value));
    new PerformanceObserver(note).observe({type: 'layout-shift'});
}"""


def steps(server):
    """The optimizer steps that the training itself has written down."""
    path = Path(server.folder, "steps.txt")
    return int((path.read_text().split() or ["0"])[0]) if path.exists() else 0


def later(condition, seconds=20):
    """Wait until the condition holds."""
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def running(lab, jupyterlab):
    """A page in which `trainer.fit()` runs in cell 1, its panel drawn; cell 2 prints a word."""
    Path(jupyterlab.folder, "steps.txt").unlink(missing_ok=True)
    jupyterlab.write_notebook("run.ipynb", [SETUP, FIT, "print('another cell')"])
    lab.open("run.ipynb")
    lab.run_cell(0)
    lab.wait_cell(0)
    lab.run_cell(1)
    lab.page.wait_for_selector(".tnb .js-plotly-plot .main-svg", timeout=60_000)
    assert later(lambda: steps(jupyterlab) > 20)
    return lab


def click(lab, label):
    """A real click on one of the run controls."""
    lab.page.locator(".tnb-controls").get_by_role("button", name=label).click()


def test_curves_move_a_zoom_stays_and_nothing_jumps(running, jupyterlab):
    """The page's own figure follows the steps while the cell runs."""
    page = running.page
    seen = [page.evaluate(LAST)]
    page.evaluate(SHIFTS)
    for _ in range(3):
        time.sleep(1.2)
        seen.append(page.evaluate(LAST))
    assert seen == sorted(set(seen)) and steps(jupyterlab) - seen[-1] < 200
    assert sum(page.evaluate("() => window.shifts")) == 0
    page.locator(".js-plotly-plot").scroll_into_view_if_needed()
    box = page.locator(".js-plotly-plot").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.down()
    for part in range(1, 7):  # as slowly as a hand, over several refreshes
        page.mouse.move(box["x"] + 200 + 40 * part, box["y"] + 60)
        time.sleep(0.25)
    page.mouse.up()
    time.sleep(0.3)
    zoomed = page.evaluate(RANGE)
    assert zoomed[1] < seen[-1]
    time.sleep(1.2)
    assert page.evaluate(RANGE) == zoomed and page.evaluate(LAST) > seen[-1]
    click(running, "Stop")
    running.wait_cell(1)
    assert running.problems == []


def test_pause_step_resume_detach_stop(running, jupyterlab):
    """Each control does what it says: counted by the training itself."""
    page = running.page
    click(running, "Pause")
    page.wait_for_selector(".tnb.is-paused")
    held = steps(jupyterlab)
    time.sleep(0.6)
    assert steps(jupyterlab) == held and running.is_running(1)
    click(running, "Step")
    assert later(lambda: steps(jupyterlab) == held + 1)
    time.sleep(0.6)
    assert steps(jupyterlab) == held + 1
    click(running, "Resume")
    assert later(lambda: steps(jupyterlab) > held + 20)
    click(running, "Detach")
    running.wait_cell(1, seconds=10)
    running.run_cell(2)
    running.wait_cell(2, seconds=10)
    detached = steps(jupyterlab)
    assert running.output_text(2) == "another cell"
    assert later(lambda: steps(jupyterlab) > detached + 20)
    assert later(lambda: page.evaluate(LAST) > detached)  # the panel follows the run in the background
    click(running, "Stop")
    assert later(lambda: "Stopped" in page.locator(".tnb .pill").inner_text())
    stopped = steps(jupyterlab)
    time.sleep(0.6)
    assert steps(jupyterlab) == stopped


def test_a_reloaded_page_shows_the_whole_run_and_steers_it(running, jupyterlab):
    """Saved and loaded anew in the middle of the run: all points are there, Stop works."""
    running.save()
    before = steps(jupyterlab)
    running.reload()
    running.page.wait_for_selector(".tnb .js-plotly-plot .main-svg", timeout=60_000)
    points = "() => document.querySelector('.js-plotly-plot').data.find(t => t.name == 'raw').x[0]"
    assert later(lambda: running.page.evaluate(LAST) > before)
    assert running.page.evaluate(points) == 1
    click(running, "Stop")
    assert later(lambda: "Stopped" in running.page.locator(".tnb .pill").inner_text())


def test_after_an_error_the_panel_stays_and_the_file_keeps_the_picture(running, jupyterlab, browser):
    """The exception is named in the panel; the saved notebook, without a kernel, shows the picture alone."""
    page = running.page
    click(running, "Pause")
    page.wait_for_selector(".tnb.is-paused")
    def saved_picture():
        running.save()
        return "data:image/svg+xml" in jupyterlab.read_notebook("run.ipynb").cells[1].outputs[0].data["text/html"]
    assert later(saved_picture)  # so a kernel that dies in a pause leaves it, too
    click(running, "Resume")
    click(running, "Stop")
    running.wait_cell(1)
    page.evaluate(WRITE_CELL, "fails_at = trainer.step_state.optimizer_step + 10\ntrainer.fit()")
    running.run_cell(2)
    page.wait_for_selector(".tnb.is-error", timeout=30_000)
    assert later(lambda: not running.is_running(2))
    assert "ValueError: at this step" in running.cell(2).locator(".tnb .message").inner_text()
    assert running.cell(2).locator(".tnb-kept").is_visible() is False
    running.save()
    running.shutdown_kernel()
    with jupyterlab.new_page(browser) as again:
        again.open("run.ipynb")
        again.cell(2).locator(".tnb-kept img").wait_for()
        text = again.output_text(2)
        assert "Error displaying widget" not in text and "Loading widget" not in text
        assert "ValueError" in text
