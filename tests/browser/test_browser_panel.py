"""The panel in JupyterLab: curves that move, a zoom that stays, heights that do not jump, and what
the saved file keeps."""

import pytest
from live_page import PANEL, Live, later, settle

pytestmark = pytest.mark.browser

LAST = ("() => Math.max(...document.querySelector('.js-plotly-plot').data?.find(t => t.name == "
        "'train')?.x ?? [-1])")
FIRST = "() => document.querySelector('.js-plotly-plot').data.find(t => t.name == 'raw').x[0]"
RANGE = "() => document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range.map(Math.round)"
SHIFTS = """() => {
    window.shifts = [];
    const note = list => list.getEntries().forEach(entry => window.shifts.push(entry.value));
    new PerformanceObserver(note).observe({type: 'layout-shift'});
}"""


@pytest.fixture
def running(lab, jupyterlab):
    """A page in which `trainer.fit()` runs in cell 1, its panel drawn."""
    return Live(lab, jupyterlab,
                ["trainer.fit().status",
                 "noise.fails_at = trainer.step_state.optimizer_step + 10\ntrainer.fit()"]).start()


def test_curves_move_a_zoom_stays_and_nothing_jumps(running):
    """The page's own figure follows the steps while the cell runs;
    after a reload all points are there."""
    page = running.page
    seen = [page.evaluate(LAST)]
    page.evaluate(SHIFTS)
    # the page follows the training file: waited for, since a busy machine draws seldom
    for _ in range(2):
        assert later(lambda: page.evaluate(LAST) > seen[-1])
        seen.append(page.evaluate(LAST))
    step = running.step
    assert later(lambda: page.evaluate(LAST) >= step)
    assert sum(page.evaluate("() => window.shifts")) == 0
    page.locator(".js-plotly-plot").scroll_into_view_if_needed()
    box = page.locator(".js-plotly-plot").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.down()
    for part in range(1, 7):  # as slowly as a hand, over two refreshes
        page.mouse.move(box["x"] + 200 + 40 * part, box["y"] + 60)
        if part in (2, 4):
            last = page.evaluate(LAST)
            assert later(lambda: page.evaluate(LAST) > last)
    page.mouse.up()
    assert later(lambda: page.evaluate(RANGE)[0] > 0)
    settle(page)
    zoomed = page.evaluate(RANGE)
    last = page.evaluate(LAST)
    assert 0 < zoomed[0] and zoomed[1] < last
    assert later(lambda: page.evaluate(LAST) > last)
    assert page.evaluate(RANGE) == zoomed
    running.lab.save()
    before = running.step
    running.lab.reload()
    page.locator(PANEL).first.wait_for()
    assert later(lambda: page.evaluate(LAST) > before)
    assert page.evaluate(FIRST) == 1
    running.click("Stop")
    assert running.ends() and running.lab.problems == []


@pytest.mark.long  # test_browser_live has the error, test_browser_quick_start the picture
def test_after_an_error_the_panel_stays_and_the_file_keeps_the_picture(
        running, jupyterlab, browser):
    """The exception is named in the panel; the saved notebook, without a kernel, shows the picture
    alone."""
    running.click("Pause")
    running.state("paused")
    def saved_picture():
        running.lab.save()
        return "data:image/svg+xml" in jupyterlab.read_notebook(
            "run.ipynb").cells[1].outputs[0].data["text/html"]
    assert later(saved_picture)  # so a kernel that dies in a pause leaves it, too
    running.click("Resume")
    running.stop()
    running.lab.run_cell(2)
    running.state("error", cell=2)
    assert later(lambda: not running.lab.is_running(2))
    message = running.lab.cell(2).locator(".tnb .message")
    assert later(lambda: "ValueError: a bad <b>step</b>" in message.inner_text())
    assert later(lambda: running.lab.cell(2).locator(".tnb-kept").is_visible() is False)
    running.lab.save()
    running.lab.shutdown_kernel()
    with jupyterlab.new_page(browser) as again:
        again.open("run.ipynb")
        again.cell(2).locator(".tnb-kept img").wait_for()
        text = again.output_text(2)
        assert "Error displaying widget" not in text and "Loading widget" not in text
        assert "ValueError" in text
