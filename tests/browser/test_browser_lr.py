"""The LR finder in a real page: before the run, in a pause, by suggestion and by click."""

import json

import pytest
from live_page import Live, later
from test_browser_rewind import MODULE
from test_browser_rewind import SETUP as STEERED

pytestmark = pytest.mark.browser

SETUP = STEERED + "trainer.dashboard"
TELL = """import json
import time
from IPython.display import JSON
print(json.dumps([trainer.lr, trainer.step_state.optimizer_step, len(trainer.lr_search.lrs),
                  trainer.lr_search.suggestions]))"""


@pytest.fixture
def live(jupyterlab, browser):
    """The panel of a run that has not begun."""
    (jupyterlab.folder / "steered.py").write_text(MODULE)
    with jupyterlab.new_page(browser, height=1500) as page:
        live = Live(page, jupyterlab, [TELL, "print(trainer.fit().status)"], setup=SETUP)
        live.lab.cell(0).locator(".tnb-tabs").wait_for()
        yield live


def open_finder(live, cell):
    """The tab, with its parts."""
    pane = live.lab.cell(cell).locator(".tnb-lr")
    live.click("LR finder", cell)
    pane.wait_for()
    return pane


def drawn(pane):
    """What the curve shows, in words; empty without one."""
    curve = pane.locator(".lr-curve svg")
    return curve.get_attribute("aria-label") if curve.count() else ""


def find(live, pane, steps):
    """Ask for n steps, and wait until the run has made them and the pane shows what they found.

    The pane draws the button, the curve and the words in this order: with the button of a search
    that has ended and no words of one that goes on, a curve that is not the one before is the
    last one."""
    searches, before = live.turn[3], drawn(pane)
    pane.locator("input").nth(2).fill(str(steps))
    pane.locator("input").nth(2).press("Tab")
    pane.get_by_role("button",
                     name="Find").or_(pane.get_by_role("button", name="Run again")).click()
    assert later(lambda: live.turn[3] == searches + 1)
    assert later(lambda: pane.get_by_role("button", name="Run again").is_visible()
                 and not pane.get_by_text("rates tried").is_visible() and drawn(pane) != before)


def told(live, cell=1):
    """What the kernel says."""
    live.lab.run_cell(cell)
    live.lab.wait_cell(cell)
    return json.loads(live.lab.output_text(cell))


@pytest.mark.long  # tests/panel/test_lr_pane; test_browser_after has a search, too
def test_before_the_run_and_in_a_pause(live):
    """Found, taken by a suggestion before the first step;
    found again in a pause of a running cell, taken by a click."""
    pane = open_finder(live, 0)
    assert pane.get_by_role("button", name="Use").first.is_disabled()
    find(live, pane, 100)
    pane.get_by_role("button", name="Use").first.click()
    # the click and the next cell reach the kernel in two threads, in either order
    assert later(lambda: told(live)[0] is not None)
    rate, step, tried, suggestions = told(live)
    assert step == 0 and tried > 50 and rate == pytest.approx(suggestions["valley"])
    live.start(2)
    live.click("Pause", 2)
    live.state("paused", 2)
    held = live.step
    pane = open_finder(live, 2)
    tabs = live.lab.cell(2).locator(".tnb-tabs").bounding_box()
    find(live, pane, 60)
    picture = pane.locator(".lr-curve svg")
    box = picture.bounding_box()
    picture.click(position={"x": box["width"] * 333 / 640, "y": box["height"] / 2})
    row = pane.locator(".tnb-rate").nth(4)
    row.locator("code").get_by_text("e-").wait_for()
    rate = float(row.locator("code").inner_text())
    assert 1e-7 < rate < 1
    assert live.freezes() and live.step == held
    assert later(lambda: live.lab.cell(2).locator(".tnb-tabs").bounding_box() == tabs)
    row.get_by_role("button", name="Use").click()
    live.click("Resume", 2)
    assert later(lambda: live.told["rate"] == pytest.approx(rate, rel=0.06)) and live.goes_on()
    live.stop(2)
    assert live.lab.problems == []
