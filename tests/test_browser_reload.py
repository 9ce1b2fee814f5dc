"""A page that is loaded again in the middle of a run: the panel comes back, and the notebook keeps the last picture."""

import pytest
from live_page import PANEL, Live, later

pytestmark = pytest.mark.browser


def test_after_a_reload_the_notebook_gets_the_last_picture(jupyterlab, browser):
    """Saved before the first minute was over, stopped after the reload: the file says so, and stays light."""
    with jupyterlab.new_page(browser, height=1400) as lab:
        run = Live(lab, jupyterlab, ["trainer.start()"]).start()
        lab.save()
        lab.reload()
        lab.cell(1).locator(PANEL).first.wait_for(timeout=60_000)
        run.click("Stop")
        run.state("paused")
        assert later(run.freezes)
        def kept():
            lab.save()
            return jupyterlab.read_notebook("run.ipynb").cells[1].outputs[0].data["text/plain"]
        assert later(lambda: "stopped" in kept() and f"as of step {run.step:,}," in kept())
        assert lab.cell(1).locator(".tnb-kept").is_visible() is False
        assert (jupyterlab.folder / "run.ipynb").stat().st_size < 200_000 and lab.problems == []
