"""From a click to its effect in the training, in each front end that runs here.

    python -m benchmarks.clicks            # all, 20 clicks each
    python -m benchmarks.clicks lab vscode # some

A switch of the panel is clicked while `trainer.fit()` runs in a cell. The effect is the first
optimizer step (10 ms each) that sees the new value, by the same clock. Needs `make env` and
Chromium. The figures hold for a quiet machine alone: the load is printed beside them.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "browser")]

from classic_page import ClassicServer
from jupyter_server import JupyterServer, open_browser
from kernel_client import client_of
from live_page import SETUP, Live, later
from test_browser_marimo import edited

SEEN = """
class Seen(Hook):
    loud, times = False, []
    def after_step(self, trainer):
        if noise.loud is not self.loud:
            self.loud = noise.loud
            self.times.append(time.time())
            Path("seen.new").write_text(json.dumps(self.times))
            os.replace("seen.new", "seen.json")
trainer.hooks.add(Seen())
"""
NO_SUBSHELLS = {"apputils-extension/kernels-settings": {"commsOverSubshells": "disabled"}}
PLACES = {  # name: front end, kernel, settings of the front end, what it is
    "lab": ("lab", "python3", {}, "JupyterLab 4.6, ipykernel 7.4"),
    "lab-7.3": ("lab", "ipykernel-7.3", {}, "JupyterLab 4.6, ipykernel 7.3"),
    "lab-6.31": ("lab", "ipykernel-6.31", {}, "JupyterLab 4.6, ipykernel 6.31"),
    "main-shell": ("lab", "python3", NO_SUBSHELLS,
                   "JupyterLab 4.6 without comms over subshells, ipykernel 7.4"),
    "notebook": ("notebook", "python3", {}, "Notebook 7, ipykernel 7.4"),
    "classic": ("classic", "python3", {},
                "Classic Notebook 6.5, ipykernel 6.17.1, ipywidgets 7.7.1 (as Colab)"),
    "page": ("page", "", {}, "the page of `trainer.serve()`, which goes through the run's folder"),
    "marimo": ("marimo", "", {}, "marimo, the page of `trainer.serve()` beside its thread"),
    "vscode": ("client", "python3", {},
               "messages on the shell channel (as VS Code), ipykernel 7.4"),
}
CLICK = "box => { const at = Date.now(); box.click(); return at / 1000; }"


@contextmanager
def on_a_page(folder):
    """A function that clicks the switch on the page of a run in a process of its own."""
    program = SETUP.replace("epochs=", "progress=False, workspace='run', epochs=") + SEEN
    program += "print(trainer.serve().url, flush=True)\ntrainer.fit()"
    folder.mkdir(parents=True, exist_ok=True)
    with (subprocess.Popen([sys.executable, "-c", program], cwd=folder, text=True,
                           stdout=subprocess.PIPE) as process, open_browser() as browser):
        page = browser.new_page()
        page.goto(process.stdout.readline().strip())
        box = page.get_by_label("noise loud")
        box.wait_for()
        yield lambda: box.evaluate(CLICK)
        process.kill()


@contextmanager
def beside_marimo(folder):
    """A function that clicks the switch on the page of a run in a thread of marimo."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = ("Path('url').write_text(trainer.serve().url)\n"
             "import marimo as mo\nmo.Thread(target=trainer.fit).start()")
    program = SETUP.replace("epochs=", "progress=False, workspace='run', epochs=") + SEEN
    with edited(folder, [program + begin]) as address, open_browser() as browser:
        marimo, url = browser.new_page(), folder / "url"
        marimo.goto(address)
        marimo.wait_for_load_state("networkidle")

        def run_all():  # a click before the page is connected is lost
            marimo.get_by_test_id("run-button").last.click(timeout=5000)
            return later(url.exists, 20)

        if not later(run_all, 60):
            raise RuntimeError("marimo ran no cell")
        page = browser.new_page()
        page.goto(url.read_text())
        box = page.get_by_label("noise loud")
        box.wait_for()
        yield lambda: box.evaluate(CLICK)


@contextmanager
def clicker(place, folder):
    """A function that clicks the switch in this front end, and returns when it did."""
    app, kernel, settings, _ = PLACES[place]
    if app in ("page", "marimo"):
        with {"page": on_a_page, "marimo": beside_marimo}[app](folder) as click:
            yield click
        return
    cells = ["trainer.fit()"]
    if app == "client":
        folder.mkdir(parents=True, exist_ok=True)
        with client_of(kernel, folder) as client:
            client.run(SETUP + SEEN)
            client.begin(cells[0])
            assert client.until(client.show)
            panel = client.find(_model_name="AnyModel")[0]
            value, number = [False], count(1)

            def click():
                value[0] = not value[0]
                at = time.time()
                client.tell(panel, {"ask": "command", "id": str(next(number)), "name": "tune",
                                    "page": "shown", "values": {"noise.loud": value[0]}})
                return at

            yield click
        return
    server = (ClassicServer(folder)
              if app == "classic" else JupyterServer(folder, app=app, settings=settings))
    with server, open_browser() as browser, server.new_page(browser, height=1400) as page:
        run = Live(page, server, cells, kernel=kernel, setup=SETUP + SEEN).start()
        yield lambda: run.panel().field("noise.loud").evaluate(CLICK)


def measure(place, clicks):
    """Milliseconds from each click to its effect."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "notebooks")
        with clicker(place, folder) as click:
            seen, found = folder / "seen.json", []
            read = lambda: json.loads(seen.read_text()) if seen.exists() else []
            for number in range(clicks + 1):  # the first one is not counted
                at = click()
                if not later(lambda: len(read()) > number):
                    raise RuntimeError(f"{place}: click {number} had no effect in 20 s")
                found.append(1000 * (read()[number] - at))
                time.sleep(0.4)
    return found[1:]


def main(names, clicks=20):
    """A row of a table for each front end."""
    print("| front end | clicks | median, ms | largest, ms | load |\n| --- | ---: | ---: | ---: | "
          "---: |")
    for place in names or PLACES:
        found = measure(place, clicks)
        row = [PLACES[place][3], len(found), f"{statistics.median(found):.0f}", f"{max(found):.0f}",
               f"{os.getloadavg()[0]:.1f}"]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
