"""Two notebooks attached to one run of a script, who disagree;
and a run of two processes, through a restart of the kernel."""

import json

import pytest
from live_page import PANEL, Live, later, objects
from test_browser_attach import SETUP, Script, picture, restart_kernel, server  # noqa: F401

pytestmark = pytest.mark.browser

LAUNCH = ('run = launch("train_digits.py", "--epochs", 2000, "--slow", 0.01, '
          'workspace="runs/{name}")\nrun')
ATTACH = 'run = attach("runs/{name}")\nrun'


def notebook(lab, server, cells, name):
    """A notebook of its own."""
    return Live(lab, server, cells, setup=SETUP, name=name)


def shown(live, cell=1):
    """Start a cell that shows a panel, and wait for it."""
    live.lab.run_cell(cell)
    live.lab.cell(cell).locator(PANEL).first.wait_for()


def rate(live, cell=1):
    """What the box of the rate shows."""
    return live.row("lr", cell).locator("input").first.input_value()


def entries(script):
    """Of the journal: what, value, who, and the user."""
    return [(each["name"], each["new"], each["source"], each["by"] != "")
            for each in objects(script.folder / "journal.jsonl")[1:]]


@pytest.mark.long  # test_real_runs has the same without a browser
def test_two_notebooks_that_disagree(server, browser):  # noqa: F811
    """What one does the other sees; one pauses and the other resumes; both press Stop, and it
    stops once."""
    with (server.new_page(browser, height=1100) as first,
          server.new_page(browser, height=1100) as second):
        one = notebook(first, server, [LAUNCH.format(name="both")], "one.ipynb")
        other = notebook(second, server, [ATTACH.format(name="both")], "other.ipynb")
        shown(one)
        script = Script(server.folder)
        script.folder = script.folder.parent / "both"
        shown(other)
        assert later(lambda: script.step() > 20)

        one.row("lr").locator("input").first.fill("0.005")
        one.row("lr").locator("input").first.press("Enter")
        assert later(lambda: rate(other) == rate(one) != ""
                     and float(rate(other)) == 0.005), (rate(one), rate(other))
        other.row("lr").locator("input").first.fill("0.001")
        other.row("lr").locator("input").first.press("Enter")
        assert later(lambda: float(rate(one)) == 0.001)
        assert later(lambda: entries(script) == [("lr", 0.005, "notebook", True),
                                                 ("lr", 0.001, "notebook", True)]), entries(script)

        other.click("Pause")
        one.state("paused")
        other.state("paused")
        head = one.lab.cell(1).locator(".tnb-head").first.inner_text()
        assert "both" in head  # which folder that is
        tabs = one.lab.cell(1).locator(".tnb-tabs").first.inner_text()
        assert "Hooks" in tabs and "Inspect" not in tabs and "LR" not in tabs
        picture(one, "two-1-paused")
        one.click("Resume")
        other.state("running")
        held = script.step()
        assert later(lambda: script.step() > held + 20)

        buttons = [each.lab.cell(1).locator(".tnb").get_by_role("button", name="Stop").first
                   for each in (one, other)]
        for button in buttons:
            button.click()
        assert later(lambda: not script.running)
        for each in (one, other):
            panel = each.lab.cell(1).locator(".tnb").first
            assert later(
                lambda panel=panel: "Stopped at step" in panel.inner_text()), panel.inner_text()
            assert each.lab.problems == []
        assert [name for name, *_ in entries(script)].count("stop") == 1
        picture(one, "two-2-stopped-one")
        picture(other, "two-3-stopped-other")


@pytest.mark.long
def test_a_run_of_two_processes_is_steered_and_outlives_the_kernel(server, browser):  # noqa: F811
    """Under torchrun: rate, pause; restart the kernel, attach again; resume, stop;
    the line that starts it again is torchrun's."""
    with server.new_page(browser, height=1300) as lab:
        launch = LAUNCH.format(name="several").replace('workspace=',
                                                       '"--engine", "accelerate", num_processes=2, '
                                                       'workspace=')
        page = notebook(lab, server, [launch, ATTACH.format(name="several")], "several.ipynb")
        script = Script(server.folder)
        script.folder = script.folder.parent / "several"
        shown(page)
        assert later(lambda: script.step() > 40)
        process = script.status["process"]
        page.row("lr").locator("input").first.fill("0.003")
        page.row("lr").locator("input").first.press("Enter")
        assert later(lambda: any(abs(row.get("lr", 0) - 0.003) < 1e-9 for row in script.rows))
        page.click("Pause")
        page.state("paused")
        held = script.step()
        picture(page, "several-1-paused")
        restart_kernel(page)
        assert script.running and script.status["process"] == process and script.step() == held
        shown(page, 2)
        page.state("paused", cell=2)
        picture(page, "several-2-attached-again")
        page.click("Resume", cell=2)
        page.state("running", cell=2)
        assert later(lambda: script.step() > held + 20)
        command = script.status["command"]
        assert "torch.distributed.run" in command and command[
            command.index("--nproc-per-node") + 1] == "2", command
        page.click("Stop", cell=2)
        assert later(lambda: not script.running)
        panel = page.lab.cell(2).locator(".tnb").first
        assert later(lambda: "Stopped at step" in panel.inner_text()
                     and "torch.distributed.run" in panel.inner_text()), panel.inner_text()
        assert json.loads((script.folder / "result.json").read_text())["processes"] == 2
        assert lab.problems == []
        picture(page, "several-3-stopped")
