"""A running cell is steered by the panel in JupyterLab: each test asserts on what the training did,
not on the panel alone."""

import os
import shutil
from pathlib import Path

import pytest
from jupyter_server import LIMIT
from live_page import DRAWN, SETUP, Live, later, picture

from trainer_nb.folder.control import ControlFolder, Replies, Request

pytestmark = pytest.mark.browser

FIT = "print(trainer.fit().status)"


@pytest.fixture
def live(jupyterlab, browser):
    """Opens a notebook of these cells after the set-up."""
    with jupyterlab.new_page(browser, height=1400) as lab:
        yield lambda *cells, **settings: Live(lab, jupyterlab, cells, **settings)


TUNED = """
class Other(Hook):
    def after_step(self, trainer):
        if os.path.exists("rate"):
            trainer.tune(lr=float(Path("rate").read_text()))
            os.remove("rate")
trainer.hooks.add(Other())
print(trainer.fit().status)
"""


def test_values_and_hooks_are_changed_while_the_cell_runs(live):
    """By the slider with mouse and keys, by the box, by a switch; what is refused changes nothing,
    and what is being typed stays while something else sets the value. A hook is moved and switched
    off. The training sees each, and the journal has it."""
    run = live(TUNED).start()
    panel, keys, mouse = run.panel(), run.page.keyboard, run.page.mouse
    slider, box = panel.slider("lr"), panel.field("lr")
    panel.box.get_by_text("valid/mae").first.wait_for()  # what moves the rows below it is there
    at = slider.bounding_box()
    middle = at["height"] / 2
    slider.hover(position={"x": 0.6 * at["width"], "y": middle})
    mouse.down()
    mouse.move(at["x"] + 0.75 * at["width"], slider.bounding_box()["y"] + middle, steps=4)
    mouse.up()
    assert later(lambda: run.told["rate"] > 0.02)
    dragged = run.told["rate"]
    slider.focus()
    keys.press("ArrowLeft")
    assert later(lambda: run.told["rate"] < dragged)
    panel.enter("lr", "*0.1")
    assert later(lambda: run.told["rate"] < dragged / 5)
    # its hint has one line more once the value is in force, and moves the rows below it
    assert later(lambda: "pending" not in panel.row("lr").get_attribute("class"))
    panel.field("noise.loud").click()
    assert later(lambda: run.told["loud"] is True)
    panel.enter("noise.amount", "7")
    hint = panel.row("noise.amount").locator(".hint")
    assert later(lambda: "7 is refused" in hint.inner_text()), hint.inner_text()
    panel.enter("noise.amount", "0.25")
    assert later(lambda: run.told["amount"] == 0.25)
    names = [name for name, _, source in run.told["journal"] if source == "widget"]
    assert names == ["lr", "lr", "lr", "noise.loud", "noise.amount"]

    def tune(rate):
        Path(run.server.folder, "new").write_text(str(rate))
        os.replace(Path(run.server.folder, "new"), Path(run.server.folder, "rate"))
        assert later(lambda: run.told["rate"] == rate)
        step = panel.step()
        assert later(lambda: panel.step() > step)  # the panel was drawn since
    tune(0.02)
    assert later(lambda: box.input_value() == "0.02")
    box.click()
    keys.press("Control+a")
    keys.type("*0.")
    tune(0.004)
    assert box.input_value() == "*0."
    keys.type("5")
    keys.press("Enter")
    assert later(lambda: run.told["rate"] == 0.002 and box.input_value() == "0.002")
    tune(0.003)
    assert later(lambda: box.input_value() == "0.003")
    keys.press("Control+a")
    keys.type("7")
    tune(0.006)
    keys.press("Backspace")
    keys.type("0.003")  # what stood there: nothing is asked
    keys.press("Tab")
    assert later(lambda: box.input_value() == "0.006")
    assert run.told["rate"] == 0.006

    assert run.told["order"] == ["noise", "witness"]
    order = panel.hook("noise").get_by_label("Order of noise")
    order.fill("1000")
    order.press("Enter")
    assert later(lambda: run.told["order"] == ["witness", "noise"])
    panel.hook("noise").get_by_role("switch").click()
    assert later(lambda: run.told["order"] in (["witness"], ["witness", "witness"]))
    changed = [each[:2] for each in run.told["journal"] if each[2] == "widget"][-2:]
    assert changed == [["noise.order", 1000], ["noise.enabled", False]] and run.lab.is_running(1)
    run.stop()
    assert run.lab.problems == []


def test_each_button_does_what_it_says(live):
    """Counted by the training itself: Pause, Step, Next epoch, Validate, a breakpoint; Detach
    frees the cell in a pause, and Resume goes on in the background."""
    run = live(FIT, "print(trainer.state)").start()
    panel = run.panel()
    panel.click("Pause")
    panel.is_in("paused")
    assert run.freezes() and run.lab.is_running(1)
    held = run.step
    panel.click("Step")
    assert later(lambda: run.step == held + 1) and run.freezes()
    panel.click("Step")
    panel.click("Step")  # at once
    assert later(lambda: run.step == held + 3) and run.freezes()
    if run.step % 16 == 0:  # so that it is in the middle of an epoch
        panel.click("Step")
        assert later(lambda: run.step == held + 4) and run.freezes()
    held = run.step
    panel.click("Next epoch")
    assert later(lambda: run.step == (held // 16 + 1) * 16) and run.freezes()
    evaluations = run.turn[2]
    panel.click("Validate")
    assert later(lambda: run.turn[2] == evaluations + 1) and run.freezes()

    field, goal = panel.tab("Inspect").get_by_label("Pause when", exact=True), run.step + 20
    field.fill("loss >")
    field.press("Enter")
    panel.says("write a name, a comparison and a number")
    assert field.input_value() == "loss >"
    field.fill(f"step == {goal}")
    field.press("Enter")
    panel.box.get_by_label(f"No longer pause when step == {goal}").wait_for()
    panel.click("Resume")
    assert later(lambda: run.step == goal) and run.freezes()
    panel.box.get_by_text("16 × 8").first.wait_for()  # the batch

    panel.click("Detach")
    run.lab.wait_cell(1)
    assert run.freezes() and run.run(2) == "paused"
    panel.click("Resume")
    assert run.goes_on(5)
    panel.click("Pause")
    panel.is_in("paused")
    assert run.freezes() and run.lab.cell(1).locator(DRAWN).is_visible()
    detach = panel.button("Detach")
    assert later(lambda: "No cell waits" in detach.get_attribute("title"))
    panel.stop()
    assert run.ends() and run.lab.problems == []


def test_after_an_error_the_hook_is_switched_off_and_the_run_goes_on(live, jupyterlab, browser):
    """Name, point and traceback stand in the panel; then a failing batch ends the run, and Resume
    skips it. The saved notebook shows the picture of the error to another kernel."""
    run = live("noise.fails_at = 30\ntrainer.fit()", "noise.fails_at, noise.fails_on = None, 9")
    run.lab.run_cell(1)
    panel = run.panel()
    panel.is_in("error")
    assert later(lambda: not run.lab.is_running(1)) and run.step == 30
    panel.says("ValueError: a bad <b>step</b>")
    hook = panel.hook("noise")
    panel.box.get_by_role("tab", name="Hooks 4 · 1 error").wait_for()
    trouble = panel.box.get_by_role("tabpanel").locator("details")
    assert later(lambda: "noise.after_step" in trouble.inner_text()
                 and "raise ValueError" in trouble.inner_text()), trouble.inner_text()
    picture(run.page, "live-error")
    run.lab.save()
    shutil.copy(jupyterlab.folder / "run.ipynb", jupyterlab.folder / "copy.ipynb")
    hook.get_by_role("switch").click()
    panel.click("Resume")
    assert later(lambda: run.step > 60)
    panel.is_in("running")
    run.run(2)
    hook.get_by_role("switch").click()
    panel.is_in("error")
    assert run.ends()
    panel.says("RuntimeError: a bad batch")
    held = run.step
    hook.get_by_role("switch").click()
    panel.click("Resume")
    assert later(lambda: run.step > held + 20)
    panel.stop()
    assert run.ends() and run.lab.problems == []
    with jupyterlab.new_page(browser) as again:
        again.open("copy.ipynb")
        again.cell(1).locator(".tnb-kept img").wait_for()
        text = again.output_text(1)
        assert "ValueError" in text and "displaying widget" not in text
        assert "Loading widget" not in text


def test_what_an_agent_asks_of_an_awaiting_cell_is_answered_by_a_click(live):
    """`await trainer.fit_async()` is steered; what an agent asks is not done before a person
    agrees, and its lines are gone then."""
    run = live("print((await trainer.fit_async()).status)",
               setup=SETUP.replace("epochs=50_000,", "epochs=50_000, workspace='asked',")).start()
    panel, control = run.panel(), ControlFolder(run.server.folder / "asked")

    def ask(name, values, why):
        return control.send(Request(name, values, "agent:night", user="ada", host="lab",
                                    approve=True, reason=why))
    tuned = ask("tune", {"lr": 0.0025}, "the loss of the last hundred steps rises")
    stopped = ask("stop", {}, "<b>done</b>")
    waiting = panel.box.get_by_role("region", name="Waiting for approval")
    lines = waiting.locator(".bar")
    assert later(lambda: lines.count() == 2)
    words = lines.nth(0).inner_text()
    assert all(each in words for each in ("agent:night", "tune", "0.0025", "rises")), words
    assert "<b>done</b>" in lines.nth(1).inner_text()
    picture(run.page, "approvals")
    assert run.goes_on() and run.told["rate"] == 0.01
    lines.filter(has_text="rises").get_by_role("button", name="Approve").click()
    assert later(lambda: run.told["rate"] == 0.0025)
    lines.filter(has_text="done").get_by_role("button", name="Decline").click()
    replies = Replies(control)
    assert replies.wait(tuned, LIMIT)["status"] == "applied"
    assert replies.wait(stopped, LIMIT)["status"] == "refused"
    waiting.wait_for(state="detached")

    panel.click("Pause")
    panel.is_in("paused")
    assert run.freezes() and run.lab.is_running(1)
    panel.enter("lr", "0.125")
    panel.click("Resume")
    assert later(lambda: run.told["rate"] == 0.125)
    run.stop()
    assert "stopped" in run.lab.output_text(1) and run.lab.problems == []
