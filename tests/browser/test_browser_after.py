"""What a person does when the run has ended or is held: train more, and free the cell."""

import pytest
from live_page import PANEL, SETUP, Live, later

pytestmark = pytest.mark.browser

SHORT = SETUP + "noise.enabled = False\n"


@pytest.mark.long  # test_a_click_never_comes_before_the_value_beside_it trains more, too
def test_train_more_epochs_by_a_click(jupyterlab, browser):
    """The line comes when the run is finished; a wrong number is refused in words."""
    with jupyterlab.new_page(browser, width=1300, height=1300) as lab:
        run = Live(lab, jupyterlab, ["trainer.fit(epochs=2).status"], setup=SHORT)
        lab.run_cell(1)
        lab.wait_cell(1)
        run.state("finished")
        assert later(lambda: run.step == 32)
        line = lab.cell(1).locator(".tnb-more")
        line.wait_for()
        box = line.locator("input")
        box.fill("none")
        line.get_by_role("button", name="Train").click()
        message = lab.cell(1).locator(".tnb-message")
        assert later(lambda: "refused" in message.inner_text()), message.inner_text()
        assert run.step == 32
        box.fill("3")
        line.get_by_role("button", name="Train").click()
        assert later(lambda: run.step == 80), run.step
        run.state("finished")
        head = lab.cell(1).locator(".tnb-head").first
        assert later(lambda: "5 epochs, 80 steps" in message.inner_text()), message.inner_text()
        assert "80" in head.inner_text() and line.is_visible() and lab.problems == []


def test_detach_in_a_pause_frees_the_cell(jupyterlab, browser):
    """Held as it was, with the panel alive: Resume goes on in the background."""
    with jupyterlab.new_page(browser, width=1300, height=1300) as lab:
        run = Live(lab, jupyterlab, ["trainer.fit().status", "print(trainer.state)"])
        run.start()
        run.click("Pause")
        run.state("paused")
        run.click("Detach")
        lab.wait_cell(1)
        assert run.freezes()
        lab.run_cell(2)
        lab.wait_cell(2)
        assert lab.output_text(2).strip() == "paused"
        run.click("Resume")
        assert run.goes_on(5)
        run.click("Pause")
        run.state("paused")
        assert run.freezes() and lab.cell(1).locator(PANEL).first.is_visible()
        detach = lab.cell(1).locator(".tnb-controls button").filter(has_text="Detach")
        assert later(detach.is_disabled)
        assert later(lambda: "No cell waits" in detach.get_attribute("title"))
        run.click("Stop")
        assert run.ends() and lab.problems == []


HURRY = """(line, [first, then]) => {  // two values and a click before the kernel can answer
    const box = line.querySelector("input");
    for (const text of [first, then]) {
        box.value = text;
        box.dispatchEvent(new Event("change", { bubbles: true }));
    }
    [...line.querySelectorAll("button")].pop().click();
}"""


def test_a_click_never_comes_before_the_value_beside_it(jupyterlab, browser):
    """The page holds a value back while the one before it is on its way, but never a click."""
    with jupyterlab.new_page(browser, width=1300, height=1300) as lab:
        run = Live(lab, jupyterlab, ["trainer.fit(epochs=2).status",
                                     "print(len(trainer.lr_search.lrs))"], setup=SHORT)
        lab.run_cell(1)
        lab.wait_cell(1)
        run.state("finished")
        line = lab.cell(1).locator(".tnb-more")
        line.wait_for()
        line.evaluate(HURRY, ["7", "3"])
        message = lab.cell(1).locator(".tnb-message")
        assert later(lambda: "5 epochs, 80 steps" in message.inner_text()), message.inner_text()
        run.click("LR finder")
        fields = lab.cell(1).locator(".tnb-lrset")
        fields.wait_for()
        fields.evaluate(HURRY.replace('querySelector("input")', 'querySelectorAll("input")[2]'),
                        ["70", "30"])
        found = lab.cell(1).locator(".tnb-rate").filter(has_text="falls fastest")
        use = found.get_by_role("button", name="Use")  # the row stands there before the search too
        assert later(use.is_enabled)
        lab.run_cell(2)
        lab.wait_cell(2)
        assert 0 < int(lab.output_text(2)) <= 30
        assert lab.problems == []
