"""A page that is loaded again in the middle of a run:
the panel comes back, and the notebook keeps the last picture."""

import pytest
from live_page import PANEL, Live, later

from trainer_nb.panel.plots import Script

pytestmark = pytest.mark.browser


@pytest.mark.long  # test_browser_quick_start sees the saved picture again, too
def test_after_a_reload_the_notebook_gets_the_last_picture(jupyterlab, browser):
    """Saved before the first minute was over, stopped after the reload:
    the file says so, and stays light."""
    with jupyterlab.new_page(browser, height=1400) as lab:
        run = Live(lab, jupyterlab, ["trainer.start()"]).start()
        lab.save()
        lab.reload()
        lab.cell(1).locator(PANEL).first.wait_for()
        run.click("Stop")
        assert run.ends()
        run.state("paused")
        def kept():
            lab.save()
            return jupyterlab.read_notebook("run.ipynb").cells[1].outputs[0].data["text/plain"]
        assert later(lambda: "stopped" in kept() and f"as of step {run.step:,}," in kept())
        assert later(lambda: lab.cell(1).locator(".tnb-kept").is_visible() is False)
        assert (jupyterlab.folder / "run.ipynb").stat().st_size < 200_000 and lab.problems == []


def bytes_received(lab):
    """A list that grows by the size of each message that the page gets from the server."""
    sizes = []
    lab.page.on("websocket",
                lambda socket: socket.on("framereceived", lambda frame: sizes.append(len(frame))))
    return sizes


@pytest.mark.long
@pytest.mark.parametrize("reloads", [2, 20])
def test_after_each_reload_five_parts_come_back_whole(jupyterlab, browser, reloads,
                                                      record_property):
    """Panel, controls, curves and hooks in cells of their own:
    no model is missing, nothing is reported, and a click acts.

    plotly.js travels once, packed, however many charts there are."""
    parts = ["trainer.start()", "trainer.controls", "trainer.plots", "trainer.hook_table",
             "trainer.dashboard"]
    with jupyterlab.new_page(browser, height=1400, fresh=True) as lab:
        sizes = bytes_received(lab)
        run = Live(lab, jupyterlab, parts).start()
        for cell in range(2, 6):
            lab.run_cell(cell)
            lab.wait_cell(cell)
        lab.save()
        for number in range(reloads):
            sizes.clear()
            lab.reload()
            for cell in range(1, 6):
                drawn = PANEL if cell in (1, 3, 5) else ".tnb button:visible"
                lab.cell(cell).locator(drawn).first.wait_for()
            assert lab.problems == []
            assert lab.page.get_by_text("Error displaying widget").count() == 0
            record_property(f"bytes of reload {number + 1}", sum(sizes))
            packed = len(Script.current().code)
            with_script = [size for size in sizes if size > packed]
            assert len(with_script) == 1 and with_script[0] < 2 * packed, sizes
            assert packed < sum(sizes) < 2 * packed, sum(sizes)
        run.click("Pause", cell=2)
        run.state("paused", cell=5)
        assert run.freezes()
        run.click("Stop")
