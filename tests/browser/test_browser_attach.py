"""A script started from a notebook, steered by the panel of its run in two of them, through a
restart of the kernel: each test asserts on what the script did."""

import json
import os
import shutil
from pathlib import Path

import pytest
from jupyter_server import PANEL as NOTEBOOK
from live_page import DRAWN, Live, later, objects, picture, settle

from trainer_nb.folder.control import is_running

pytestmark = pytest.mark.browser

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"
SETUP = "from trainer_nb import attach, launch"
LAUNCH = ('run = launch("train_digits.py", "--epochs", 2000, "--slow", 0.01, '
          'workspace="runs/digits")\nrun')
ATTACH = 'run = attach("runs/digits")\nrun'
SAID = "print(len(run.history['train/loss']), run.journal.entries[0].source)"


@pytest.fixture
def server(jupyterlab):
    """A folder of JupyterLab with the script; its runs end with the test."""
    shutil.copy(EXAMPLE, jupyterlab.folder)
    yield jupyterlab
    for path in jupyterlab.folder.glob("runs/*/control/status.json"):
        process = json.loads(path.read_text())["process"]
        if is_running(process):
            os.kill(process["pid"], 9)


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


def restart_kernel(live):
    """As a person restarts it, from the menu."""
    live.page.evaluate(f"() => {NOTEBOOK}.sessionContext.session.kernel.restart()")
    live.lab.wait_kernel_ready()
    live.run(0)


def shown(live, cell=1):
    """The panel of a cell that shows a run of a script."""
    live.lab.run_cell(cell)
    live.lab.cell(cell).locator(DRAWN).first.wait_for()
    live.lab.wait_cell(cell)  # the kernel is free
    return live.panel(cell)


def first(panel):
    """The first step of the loss."""
    return panel.box.evaluate("box => box.querySelector('.chart').data"
                              ".find(each => each.name === 'train/loss').x[0]")


def test_a_script_is_steered_by_two_notebooks_and_outlives_the_kernel(server, browser):
    """What one does the other sees, and one resumes what the other has paused. Restart and attach
    again: the whole curve is there, the panel before says that its kernel has ended. Rewind; both
    press Stop, and it stops once, with the line that starts it again."""
    with (server.new_page(browser, height=1500) as one_page,
          server.new_page(browser, height=1500) as other_page):
        one = Live(one_page, server, [LAUNCH, ATTACH, SAID], setup=SETUP, name="one.ipynb")
        other = Live(other_page, server, [ATTACH], setup=SETUP, name="other.ipynb")
        panel, script = shown(one), Script(server.folder)
        theirs = shown(other)
        assert later(lambda: script.step() > 60)
        process = script.status["process"]
        tabs = panel.box.get_by_role("tab").all_inner_texts()
        assert not any(each.startswith(("Layers", "Data")) for each in tabs), tabs

        panel.enter("lr", "*0.1")
        assert later(lambda: any("lr" in row and abs(row["lr"] - 2e-4) < 1e-9
                                 for row in script.rows))
        assert later(lambda: theirs.field("lr").input_value() == "2e-4"), theirs.field(
            "lr").input_value()
        theirs.hook("noise").get_by_role("switch").click()
        assert later(lambda: ("tune", "noise.enabled", False, "notebook") in script.journal)
        switch = panel.hook("noise").get_by_role("switch")
        assert later(lambda: not switch.is_checked())
        theirs.click("Pause")
        for each in (panel, theirs):
            each.is_in("paused")
        assert script.status["state"] == "paused"
        held = script.step()
        picture(one.page, "attach-paused")

        restart_kernel(one)
        assert script.running and script.status["process"] == process and script.step() == held
        panel.says("The kernel that drew this panel has ended")
        panel = shown(one, 2)
        panel.is_in("paused")
        assert later(lambda: panel.last() == held and first(panel) == 1)
        picture(one.page, "attach-again")
        assert one.run(3) == f"{held} notebook"

        panel.click("Resume")
        theirs.is_in("running")
        assert later(lambda: script.step() > held + 50)
        panel.choose().get_by_role("button", name="Rewind here").click()
        assert later(lambda: any(kind == "rewind" for kind, *_ in script.journal))
        assert later(lambda: "rewind" in str(script.rows[-200:]))
        assert later(lambda: script.step() > 0 and script.status["state"] == "running")

        for each in (panel, theirs):
            each.click("Stop")
            settle(each.page, 300)
        if not any([each.really_stop() for each in (panel, theirs)]):
            panel.stop()
        assert later(lambda: not script.running)
        for each in (panel, theirs):
            each.says("Stopped at step")
            line = each.box.locator(".go-on code")
            assert later(lambda line=line: "train_digits.py --epochs 2000" in line.inner_text())
            assert later(lambda line=line: line.evaluate("m => m.scrollWidth <= m.clientWidth"))
            assert later(lambda each=each: all(
                each.button(name).get_attribute("aria-disabled") == "true"
                for name in ("Resume", "Validate", "Checkpoint", "Rewind")))
        assert [name for _, name, *_ in script.journal].count("stop") == 1
        assert json.loads((script.folder / "result.json").read_text())["status"] == "stopped"
        assert "stopped: " in (script.folder / "output.txt").read_text()
        assert one.lab.problems == other.lab.problems == []
        picture(one.page, "attach-stopped")


@pytest.mark.long
def test_a_run_of_two_processes_is_steered_and_outlives_the_kernel(server, browser):
    """Under torchrun: rate, pause; restart the kernel, attach again; resume, stop;
    the line that starts it again is torchrun's."""
    with server.new_page(browser, height=1300) as lab:
        launch = LAUNCH.replace("workspace=",
                                '"--engine", "accelerate", num_processes=2, workspace=')
        live = Live(lab, server, [launch, ATTACH], setup=SETUP)
        panel, script = shown(live), Script(server.folder)
        assert later(lambda: script.step() > 40)
        process = script.status["process"]
        panel.enter("lr", "0.003")
        assert later(lambda: any(abs(row.get("lr", 0) - 0.003) < 1e-9 for row in script.rows))
        panel.click("Pause")
        panel.is_in("paused")
        held = script.step()
        restart_kernel(live)
        assert script.running and script.status["process"] == process and script.step() == held
        panel = shown(live, 2)
        panel.is_in("paused")
        panel.click("Resume")
        panel.is_in("running")
        assert later(lambda: script.step() > held + 20)
        command = script.status["command"]
        assert "torch.distributed.run" in command and command[
            command.index("--nproc-per-node") + 1] == "2", command
        panel.stop()
        assert later(lambda: not script.running)
        panel.says("Stopped at step")
        line = panel.box.locator(".go-on code")
        assert later(lambda: "torch.distributed.run" in line.inner_text())
        assert json.loads((script.folder / "result.json").read_text())["processes"] == 2
        assert lab.problems == []
