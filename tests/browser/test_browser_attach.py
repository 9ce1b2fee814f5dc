"""A script started from a notebook, steered by the panel of its run, through a restart of the
kernel: each test asserts on what the script did."""

import json
import os
import shutil
from pathlib import Path

import pytest
from jupyter_server import PANEL as NOTEBOOK
from live_page import HANDS, PANEL, Live, later, objects, settle

from trainer_nb.folder.control import is_running

pytestmark = pytest.mark.browser

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"
SETUP = HANDS + "from trainer_nb import attach, launch"
LAUNCH = ('run = launch("train_digits.py", "--epochs", 2000, "--slow", 0.01, '
          'workspace="runs/digits")\nrun')
ATTACH = 'run = attach("runs/digits")\nrun'


@pytest.fixture
def server(jupyterlab):
    """A folder of JupyterLab with the script; its runs end with the test."""
    shutil.copy(EXAMPLE, jupyterlab.folder)
    yield jupyterlab
    for path in jupyterlab.folder.glob("runs/*/control/status.json"):
        process = json.loads(path.read_text())["process"]
        if is_running(process):
            os.kill(process["pid"], 9)


@pytest.fixture
def page(server, browser):
    """A notebook with cells that launch and attach."""
    with server.new_page(browser, height=1500) as lab:
        yield Live(lab, server,
                   [LAUNCH, ATTACH,
                    "print(len(run.history['train/loss']), run.journal.entries[0].source)"],
                    setup=SETUP)


class Script:
    """What the run writes down, read by this process."""

    def __init__(self, folder):
        self.folder = Path(folder, "runs", "digits")

    @property
    def status(self):
        """State, position, process."""
        return json.loads((self.folder / "control" / "status.json").read_text())

    @property
    def journal(self):
        """What was changed by hand."""
        return [(each["kind"], each["name"], each["new"], each["source"])
                for each in objects(self.folder / "journal.jsonl")[1:]]

    @property
    def rows(self):
        """The lines of the records."""
        return objects(self.folder / "metrics.jsonl")

    @property
    def running(self):
        """Whether its process is there."""
        return is_running(self.status["process"])

    def step(self):
        """Its last step."""
        return self.status["position"]["step"]


def drawn(page, cell):
    """The first and the last step of the loss in the curves of a cell."""
    return page.page.evaluate(
        "cell => { const x = document.querySelectorAll('.jp-Notebook "
        ".jp-Cell')[cell].querySelector('.js-plotly-plot').data"
        ".find(t => t.name === 'train')?.x ?? []; "
        "return [Math.min(...x), Math.max(...x)]; }", cell)


def picture(page, name):
    """A picture of the page, for a person who wants to see it:
    TRAINER_NB_PICTURES names a folder."""
    if folder := os.environ.get("TRAINER_NB_PICTURES"):
        settle(page.page, 1000)
        page.lab.screenshot(Path(folder, f"attach-{name}.png"))


def restart_kernel(page):
    """As a person restarts it, from the menu."""
    page.page.evaluate(f"() => {NOTEBOOK}.sessionContext.session.kernel.restart()")
    page.lab.wait_kernel_ready()
    page.lab.run_cell(0)
    page.lab.wait_cell(0)


@pytest.mark.long  # tests/remote/test_remote_run; test_browser_page has the clicks
def test_a_script_is_steered_by_the_panel_and_outlives_the_kernel(page, server):
    """Rate, hook, pause; restart and attach again; resume, rewind, stop."""
    script = Script(server.folder)
    page.lab.run_cell(1)
    page.lab.cell(1).locator(PANEL).first.wait_for()
    page.lab.wait_cell(1)  # the kernel is free
    assert later(lambda: script.step() > 60)
    process = script.status["process"]
    picture(page, "1-running")

    page.row("lr").locator("input").fill("*0.1")
    page.row("lr").locator("input").press("Enter")
    assert later(lambda: any("lr" in row and abs(row["lr"] - 2e-4) < 1e-9 for row in script.rows))
    page.hook("Noise").locator("input[type=checkbox]").click()
    assert later(lambda: ("tune", "noise.enabled", False, "notebook") in script.journal)
    page.click("Pause")
    page.state("paused")
    assert script.status["state"] == "paused"
    held = script.step()
    picture(page, "2-paused")

    restart_kernel(page)
    assert script.running and script.status["process"] == process and script.step() == held
    page.lab.run_cell(2)
    page.lab.cell(2).locator(PANEL).first.wait_for()
    page.state("paused", cell=2)
    look = ("of => getComputedStyle(document.querySelectorAll('.jp-Notebook "
            ".jp-Cell')[1].querySelector(of), '::before').content")
    assert later(lambda: "has ended" in page.page.evaluate(look, ".tnb"))
    assert page.page.evaluate(look, ".tnb .tnb-head") == "none"
    assert later(lambda: drawn(page, 2) == [1, held]), drawn(page, 2)  # the whole curve
    picture(page, "3-attached-again")
    page.lab.run_cell(3)
    page.lab.wait_cell(3)
    assert page.lab.output_text(3) == f"{held} notebook"

    page.click("Resume", cell=2)
    page.state("running", cell=2)
    assert later(lambda: script.step() > held + 50)
    page.click("Rewind", cell=2)
    picture(page, "4-rewind")
    page.click("Rewind here", cell=2)
    assert later(lambda: any(kind == "rewind" for kind, *_ in script.journal))
    assert later(lambda: "rewind" in str(script.rows[-200:]))
    assert later(lambda: script.step() > 0 and script.status["state"] == "running")
    picture(page, "5-rewound")

    page.click("Stop", cell=2)
    assert later(lambda: not script.running)
    panel = page.lab.cell(2).locator(".tnb").first
    assert later(lambda: "Stopped at step" in panel.inner_text()
                 and "train_digits.py --epochs 2000" in panel.inner_text()), panel.inner_text()
    whole = ("of => { const m = document.querySelectorAll('.jp-Notebook "
             ".jp-Cell')[2].querySelector(of); return m.scrollWidth <= m.clientWidth; }")
    # the line that resumes it can be read and copied
    assert later(lambda: page.page.evaluate(whole, ".tnb .message"))
    assert later(lambda: all(panel.get_by_role("button", name=name).first.is_disabled()
                             for name in ("Resume", "Validate", "Checkpoint", "Rewind")))
    assert json.loads((script.folder / "result.json").read_text())["status"] == "stopped"
    assert "stopped: " in (script.folder / "output.txt").read_text() and page.lab.problems == []
    picture(page, "6-stopped")
