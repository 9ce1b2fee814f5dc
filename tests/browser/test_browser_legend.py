"""The legend of the curves in JupyterLab: clicks and keys hide and show, while the cell runs."""

import os
from pathlib import Path

import pytest
from live_page import Live, later

pytestmark = pytest.mark.browser

DRAWN = """box => box.data.filter(each => each.yaxis === 'y' && each.x.length)
                      .map(each => each.name)"""


@pytest.fixture
def live(browser, jupyterlab):
    """A run that trains in a cell."""
    with jupyterlab.new_page(browser, width=1400, height=1300) as lab:
        yield Live(lab, jupyterlab, ["trainer.fit().status"]).start()


def picture(live, name):
    """For the eyes, where a folder is given."""
    if folder := os.environ.get("TRAINER_NB_PICTURES"):
        live.page.screenshot(path=str(Path(folder, f"{name}.png")))


@pytest.mark.long  # test_browser_page clicks there, too
def test_a_click_hides_a_curve_and_another_one_shows_it_while_the_cell_runs(live):
    chart = live.page.locator(".tnb .js-plotly-plot").first
    train = live.page.locator(".legend button", has_text="train")
    valid = live.page.locator(".legend button", has_text="valid")
    assert later(lambda: {"train", "valid"} <= set(chart.evaluate(DRAWN)))
    assert later(lambda: train.get_attribute("aria-pressed") == "true")
    train.click()
    assert later(lambda: chart.evaluate(DRAWN) == ["valid"]), chart.evaluate(DRAWN)
    assert later(lambda: train.get_attribute("aria-pressed") == "false") and train.is_visible()
    picture(live, "legend_off")
    live.redrawn()  # it stays so when points come
    assert chart.evaluate(DRAWN) == ["valid"]
    live.page.keyboard.press("Space")  # the focus has stayed
    assert later(lambda: "train" in chart.evaluate(DRAWN))
    assert later(lambda: train.get_attribute("aria-pressed") == "true")
    valid.focus()
    live.page.keyboard.press("Enter")
    assert later(lambda: "valid" not in chart.evaluate(DRAWN))
    live.page.keyboard.press("Enter")
    assert later(lambda: "valid" in chart.evaluate(DRAWN))
    picture(live, "legend_on")
    assert live.lab.problems == []
