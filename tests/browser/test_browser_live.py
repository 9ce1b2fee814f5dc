"""Steering a running cell by the panel: each test asserts on what the training did, not on the
widget alone."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from jupyter_server import LIMIT, JupyterServer
from live_page import PANEL, SETUP, Live, later

from trainer_nb.folder.control import ControlFolder, Replies, Request

pytestmark = pytest.mark.browser

FIT = "print(trainer.fit().status)"


IN_BOTH = "values detach pause error keys"  # words in the names of tests that Notebook 7 runs too
SHORT = "keys"  # of those, what `make test` runs there, and not in JupyterLab


def pytest_generate_tests(metafunc):
    """JupyterLab runs everything, Notebook 7 what differs by the page around the panel."""
    both, other = (any(f"_{word}" in metafunc.function.__name__ for word in words.split())
                   for words in (IN_BOTH, SHORT))
    long = "lab" if other else "notebook"
    metafunc.parametrize("server", [
        pytest.param(each, marks=[pytest.mark.long] if each == long else [])
        for each in ("lab", "notebook")[:1 + both]], indirect=True, scope="module")


@pytest.fixture(scope="module")
def server(request, lab_server, tmp_path_factory):
    """JupyterLab, or Notebook 7."""
    if request.param == "lab":
        yield lab_server
        return
    with JupyterServer(tmp_path_factory.mktemp(request.param), app=request.param) as server:
        yield server


@pytest.fixture
def live(server, browser):
    """Opens a notebook of the given cells after the set-up."""
    with ExitStack() as pages:
        def open_page(*cells, **settings):
            place = server.place()
            page = pages.enter_context(place.new_page(browser, height=1400))
            return Live(page, place, cells, **settings)
        yield open_page


def test_values_are_changed_while_the_cell_runs(live):
    """By slider with the mouse and the keyboard, by the exact box, by a switch;
    a refused one changes nothing."""
    run = live(FIT).start()
    handle = run.row("lr").locator(".noUi-handle")
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    run.page.mouse.move(box["x"] + 7, box["y"] + 7)
    run.page.mouse.down()
    run.page.mouse.move(box["x"] + 30, box["y"] + 7, steps=4)
    run.page.mouse.up()
    assert later(lambda: run.told["rate"] > 0.02)
    dragged = run.told["rate"]
    handle.focus()
    run.page.keyboard.press("ArrowLeft")
    assert later(lambda: run.told["rate"] < dragged)
    run.row("lr").locator("input").fill("*0.1")
    run.row("lr").locator("input").press("Enter")
    assert later(lambda: run.told["rate"] < dragged / 5)
    run.row("noise.loud").locator("input").click()
    assert later(lambda: run.told["loud"] is True)
    run.row("noise.amount").locator("input").fill("7")
    run.row("noise.amount").locator("input").press("Enter")
    run.row("noise.amount").locator(".hint").get_by_text("refused").wait_for()
    run.row("noise.amount").locator("input").fill("0.25")
    run.row("noise.amount").locator("input").press("Enter")
    assert later(lambda: run.told["amount"] == 0.25)
    names = [name for name, _, source in run.told["journal"] if source == "widget"]
    assert names == ["lr", "lr", "lr", "noise.loud", "noise.amount"] and run.lab.is_running(1)
    run.stop()
    assert run.lab.problems == []


def test_pause_step_next_epoch_and_validate(live):
    """Each control does what it says: counted by the training itself."""
    run = live(FIT).start()
    run.click("Pause")
    run.state("paused")
    assert run.freezes() and run.lab.is_running(1)
    for _ in range(2):  # so that one of the two is in the middle of an epoch
        held = run.step
        run.click("Step")
        assert later(lambda: run.step == held + 1) and run.freezes()
        if run.step % 16:
            break
    held = run.step
    run.click("Next epoch")
    assert later(lambda: run.step == (held // 16 + 1) * 16) and run.freezes()
    evaluations = run.turn[2]
    run.click("Validate")
    assert later(lambda: run.turn[2] == evaluations + 1) and run.freezes()
    assert later(lambda: run.page.locator(".tnb .pill").inner_text() == "Paused")
    run.click("Resume")
    assert run.goes_on()
    run.stop()


TUNED = """
class Other(Hook):
    def after_step(self, trainer):
        if os.path.exists("rate"):
            trainer.tune(lr=float(Path("rate").read_text()))
            os.remove("rate")
trainer.hooks.add(Other())
print(trainer.fit().status)
"""


def test_what_is_being_typed_stays_while_the_value_changes(live):
    """A rate that something else sets meanwhile does not take the place of half a word;
    it is shown when the box is left."""
    run = live(TUNED).start()
    box = run.row("lr").locator("input")
    def tune(rate):
        Path(run.server.folder, "new").write_text(str(rate))
        os.replace(Path(run.server.folder, "new"), Path(run.server.folder, "rate"))
        assert later(lambda: run.told["rate"] == rate)
    tune(0.02)
    assert later(lambda: box.input_value() == "0.02")
    box.click()
    box.press("Control+a")
    run.page.keyboard.type("*0.")
    tune(0.004)
    run.redrawn()
    assert box.input_value() == "*0."
    run.page.keyboard.type("5")
    run.page.keyboard.press("Enter")
    assert later(lambda: run.told["rate"] == 0.002 and box.input_value() == "0.002")
    tune(0.003)
    assert later(lambda: box.input_value() == "0.003")
    run.page.keyboard.press("Control+a")
    run.page.keyboard.type("7")
    tune(0.006)
    run.redrawn()
    run.page.keyboard.press("Backspace")
    run.page.keyboard.type("0.003")  # what stood there: nothing is asked
    run.page.keyboard.press("Tab")
    assert later(lambda: box.input_value() == "0.006")
    assert run.told["rate"] == 0.006
    run.stop()


def test_a_hook_is_switched_off_and_moved_while_the_cell_runs(live):
    """The training sees it, and the journal has both."""
    run = live(FIT).start()
    assert run.told["order"] == ["noise", "witness"]
    run.hook("Noise").get_by_role("button", name="later").click()
    assert later(lambda: run.told["order"] == ["witness", "noise"])
    run.hook("Noise").locator("input[type=checkbox]").click()
    assert later(lambda: run.told["order"] == ["witness", "witness"]
                 or run.told["order"] == ["witness"])
    changed = {name for name, _, source in run.told["journal"] if source == "widget"}
    assert "noise.enabled" in changed and any(name.endswith(".order") for name in changed)
    run.stop()


@pytest.mark.long  # test_browser_after detaches, test_browser_panel reloads
def test_detach_frees_the_cell_and_the_page_can_be_reloaded(live):
    """Another cell runs meanwhile; after a reload in mid-run, in a cell, the panel steers again."""
    run = live(FIT, "print('another cell')").start()
    run.lab.save()
    run.lab.reload()
    run.lab.cell(1).locator(PANEL).first.wait_for()
    run.click("Pause")
    run.state("paused")
    assert run.freezes()
    run.click("Resume")
    assert run.goes_on()
    run.click("Detach")
    assert later(lambda: "detached" in run.lab.output_text(1) or not run.lab.page.evaluate(
        "() => document.querySelectorAll('.jp-Notebook .jp-Cell')[1].innerText.includes('[*]')"))
    run.lab.wait_kernel_ready()
    run.lab.run_cell(2)
    run.lab.wait_cell(2)
    assert run.lab.output_text(2) == "another cell" and run.goes_on()
    run.click("Stop")
    assert run.ends()


def test_keys_on_the_panel_reach_no_shortcut_of_the_page(live):
    """Neither `a` nor `dd` nor `00` does anything to the notebook;
    Space and Tab do what they do on buttons."""
    run = live(FIT).start()
    cells = run.page.locator(".jp-Notebook .jp-Cell").count()
    run.lab.cell(1).locator(".tnb-controls").get_by_role("button", name="Pause").focus()
    for key in "abxddiizm00":
        run.page.keyboard.press(key)
    run.page.keyboard.press("Space")
    run.state("paused")
    assert run.page.locator(".jp-Notebook .jp-Cell").count() == cells and run.freezes()
    step = run.lab.cell(1).locator(".tnb-controls").get_by_role("button", name="Step")
    assert later(step.is_enabled)  # it comes a moment after the word "paused"
    run.page.keyboard.press("Tab")
    held = run.step
    run.page.keyboard.press("Enter")
    assert later(lambda: run.step == held + 1)
    assert not run.page.locator(".jp-Dialog").count()
    run.stop()


@pytest.mark.long  # tests/panel/test_panes
def test_a_breakpoint_of_the_panel_pauses_and_shows_the_batch(live):
    """A condition that cannot be understood stays in the box."""
    run = live(FIT).start()
    run.click("Inspect")
    field = run.lab.cell(1).get_by_placeholder("loss > 10")
    field.fill("loss >")
    field.press("Enter")
    hint = run.lab.cell(1).locator(".hint")  # the line that is read aloud says it, too
    hint.get_by_text("write a name, a comparison and a number").wait_for()
    run.click("Pause")  # else it may be past the goal before it has heard of it
    run.state("paused")
    goal = run.step + 20
    field.fill(f"step == {goal}")
    field.press("Enter")
    run.lab.cell(1).get_by_text(f"step == {goal}", exact=True).first.wait_for()
    run.click("Resume")
    assert later(lambda: run.step == goal) and run.freezes()
    run.lab.cell(1).get_by_text("16 × 8").first.wait_for()
    run.click("Step")
    assert later(lambda: run.step == goal + 1)
    run.stop()


def test_after_an_error_the_hook_is_switched_off_and_the_run_goes_on(live):
    """Its name, point and traceback stand in the panel;
    then a failing batch is skipped by a click."""
    run = live("noise.fails_at = 30\ntrainer.fit()", "noise.fails_at, noise.fails_on = None, 9",
               "print(trainer.wait())")
    run.lab.run_cell(1)
    run.state("error")
    panel = run.lab.cell(1).locator(".tnb")
    named = ("ValueError", "after_step", "Hooks 4 · 1 error")
    # the parts come one after the other
    assert later(lambda: all(word in panel.inner_text() for word in named)) and run.step == 30
    run.click("Switch Noise off")
    run.click("Resume")
    assert later(lambda: run.step > 60)
    run.state("running")
    run.lab.run_cell(2)
    run.lab.wait_cell(2)
    run.hook("Noise").locator("input[type=checkbox]").click()
    run.state("error")
    assert run.ends()
    held = run.step
    run.hook("Noise").locator("input[type=checkbox]").click()
    run.click("Resume")
    assert later(lambda: run.step > held + 20)
    run.click("Stop")
    assert run.ends()


@pytest.mark.long  # tests/panel/test_panel; test_browser_after goes on in the background
def test_a_background_run_is_steered_from_parts_in_other_cells(live):
    """`start()` shows the panel and frees the kernel;
    controls and curves in cells of their own are live."""
    run = live("trainer.start()", "trainer.controls", "trainer.plots",
               "print(trainer.step_state.optimizer_step)",
               "trainer.dashboard")
    run.start()
    for cell in (2, 3):
        run.lab.run_cell(cell)
        run.lab.wait_cell(cell)
    run.click("Pause", cell=2)
    run.state("paused", cell=1)
    assert run.freezes()
    run.row("lr", cell=2).locator("input").fill("0.125")
    run.row("lr", cell=2).locator("input").press("Enter")
    run.click("Resume", cell=2)
    assert later(lambda: run.told["rate"] == 0.125)
    run.lab.cell(3).locator(PANEL).first.wait_for()
    last = ("cell => Math.max(...document.querySelectorAll('.jp-Cell')[cell]"
            ".querySelector('.js-plotly-plot').data.find(t => t.name == 'train')?.x ?? [-1])")
    seen = run.page.evaluate(last, 3)
    assert later(lambda: run.page.evaluate(last, 3) > seen)
    run.lab.run_cell(4)
    run.lab.wait_cell(4)
    assert int(run.lab.output_text(4)) > 20
    run.lab.run_cell(5)
    run.lab.wait_cell(5)
    run.click("Stop", cell=5)  # the same panel, in another cell
    assert run.ends()
    run.state("paused", cell=1)


@pytest.mark.long  # tests/panel/test_approvals_pane
def test_what_an_agent_asks_is_answered_by_a_click(live):
    """The lines appear while the cell runs, approve and decline act, and they are gone;
    nothing is applied before."""
    run = live(FIT, setup=SETUP.replace("epochs=50_000,", "epochs=50_000, workspace='asked',"))
    run.start()
    control = ControlFolder(run.server.folder / "asked")
    def ask(name, values, why):
        return control.send(Request(name, values, "agent:night", user="ada", host="lab",
                                    approve=True, reason=why))
    asked, stop = (ask("tune", {"lr": 0.0025}, "the loss of the last hundred steps rises"),
                   ask("stop", {}, "<b>done</b>"))
    panel = run.lab.cell(1).locator(".tnb").first
    line = panel.locator(".tnb-chooser", has_text="the loss of the last hundred steps rises")
    line.wait_for()
    assert later(lambda: "agent:night asks" in line.inner_text()
                 and "0.0025" in line.inner_text()), line.inner_text()
    other = panel.locator(".tnb-chooser", has_text="<b>done</b>")
    other.wait_for()
    if folder := os.environ.get("TRAINER_NB_PICTURES"):
        run.lab.screenshot(Path(folder, "approvals.png"))
    assert run.goes_on() and run.told["rate"] == 0.01
    line.get_by_role("button", name="Approve").click()
    assert later(lambda: run.told["rate"] == 0.0025)
    other.get_by_role("button", name="Decline").click()
    replies = Replies(control)
    assert replies.wait(asked, LIMIT)["status"] == "applied"
    assert replies.wait(stop, LIMIT)["status"] == "refused"
    line.wait_for(state="hidden")
    other.wait_for(state="hidden")
    assert run.goes_on()
    if folder:
        run.lab.screenshot(Path(folder, "approvals-after.png"))
    run.stop()
    assert run.lab.problems == []


@pytest.mark.long  # tests/core/test_async; tests/panel/test_one_panel
def test_an_awaiting_cell_is_steered(live):
    """`await trainer.fit_async()`: pause, a rate, going on."""
    run = live("print((await trainer.fit_async()).status)").start()
    run.click("Pause")
    run.state("paused")
    assert run.freezes() and run.lab.is_running(1)
    run.row("lr").locator("input").fill("0.125")
    run.row("lr").locator("input").press("Enter")
    run.click("Resume")
    assert later(lambda: run.told["rate"] == 0.125)
    run.click("Stop")
    run.lab.wait_cell(1)
    assert "stopped" in run.lab.output_text(1)
