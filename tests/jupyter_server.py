"""JupyterLab (or Notebook 7) in a folder of its own, and Chromium on it.

    with JupyterServer(folder) as server, open_browser() as browser:
        server.write_notebook("a.ipynb", ["import ipywidgets", "print(1)"])
        with server.new_page(browser) as lab:
            lab.open("a.ipynb")
            lab.run_cell(1)
            lab.wait_cell(1)
            assert lab.output_text(1) == "1"

A notebook of `write_notebook(name, cells, kernel="ipykernel-6.31")` runs on an older kernel, from
an environment that `make env` makes beside the main one.

Cells are run by commands of the front end, without waiting; clicks on widgets are real ones.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from contextlib import contextmanager
from pathlib import Path

import nbformat

CHROMIUM = "/usr/bin/chromium"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
]
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is in the page
    "docmanager-extension/plugin": {"autosave": False},
}
ENVIRONMENTS = Path(sys.prefix).parent  # where `make env` puts older kernels, beside its main one
APPS = {  # module, class that exposes the front end to the page, address of a notebook
    "lab": ("jupyterlab", "LabApp", "lab/workspaces/{workspace}/tree/{name}"),
    "notebook": ("notebook", "JupyterNotebookApp", "notebooks/{name}"),
}


def browser_problem():
    """Why no browser test can run here, or None."""
    if not Path(CHROMIUM).exists():
        return f"{CHROMIUM} is missing (as root: apt-get install chromium)"
    try:
        import playwright  # noqa: F401  is it there?
    except ImportError:
        return "playwright is not installed"


@contextmanager
def open_browser():
    """Debian's Chromium under Playwright, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class JupyterServer:
    """A Jupyter server for the notebooks in `folder`, with configuration and kernels of its own."""

    def __init__(self, folder, app="lab", python=sys.executable, environment=(), settings=()):
        self.folder, self.app = Path(folder), app
        self.settings = SETTINGS | dict(settings)  # of the front end's plugins
        self.home = self.folder.parent / f"{self.folder.name}-jupyter"
        self.port, self.python = free_port(), python
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            **self.own_folders(),
            "OMP_NUM_THREADS": "1",
            **dict(environment),
        }

    def own_folders(self):
        """Environment variables that keep the server away from the person's own settings."""
        names = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        return {name: str(self.home / folder) for name, folder in names.items()}

    def command(self):
        """The server's command line: this machine only, no token, nothing fetched from outside."""
        module, app_class, _ = APPS[self.app]
        return [
            self.python,
            "-m",
            module,
            "--no-browser",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.root_dir={self.folder}",
            "--IdentityProvider.token=",
            "--ServerApp.disable_check_xsrf=True",
            "--LabApp.news_url=None",
            "--LabApp.extension_manager=readonly",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            f"--{app_class}.expose_app_in_browser=True",
            *(["--allow-root"] if os.geteuid() == 0 else []),
        ]

    def write_settings(self):
        """Front end's settings: no news, every cell in the page, no saving but ours."""
        for name, values in self.settings.items():
            path = self.home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))

    def kernelspec(self, kernel):
        """The file that tells the server how to start an older kernel."""
        return self.home / "data" / "kernels" / kernel / "kernel.json"

    def write_kernelspecs(self):
        """Make known the older kernels that there are, each with what it says of itself."""
        for stamp in ENVIRONMENTS.glob(".venv-ipykernel-*/.made"):
            environment = stamp.parent
            spec = json.loads(
                (environment / "share/jupyter/kernels/python3/kernel.json").read_text())
            spec["argv"][0] = str(environment / "bin" / "python")
            spec["display_name"] = environment.name.removeprefix(".venv-")
            path = self.kernelspec(spec["display_name"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(spec))

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_settings()
        self.write_kernelspecs()
        self.log = self.home / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self.wait_until_it_answers()
        return self

    def wait_until_it_answers(self, seconds=60):
        """Wait for the first answer; show the log where none comes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                return self.api("status")
            except OSError:
                time.sleep(0.2)
        self.__exit__()
        raise RuntimeError(f"no answer from {self.url}:\n{self.log.read_text()}")

    def __exit__(self, *error):
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.home / "runtime", ignore_errors=True)

    def api(self, path, method="GET"):
        """The answer of the server's REST interface."""
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def shutdown_kernels(self):
        """End every kernel of this server."""
        for session in self.api("sessions"):
            self.api(f"sessions/{session['id']}", "DELETE")

    def write_notebook(self, name, cells, kernel="python3"):
        """A notebook of code cells in the server's folder, for the current or an older kernel."""
        if kernel != "python3" and not self.kernelspec(kernel).exists():
            raise RuntimeError(f"no kernel in {ENVIRONMENTS / f'.venv-{kernel}'}: run `make env`")
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        nb.metadata["kernelspec"] = {
            "display_name": kernel,
            "language": "python",
            "name": kernel,
        }
        nbformat.write(nb, self.folder / name)

    def read_notebook(self, name):
        """A notebook as it stands on disk."""
        return nbformat.read(self.folder / name, as_version=4)

    @contextmanager
    def new_page(self, browser, width=1280, height=900):
        """A page of its own; kernels are shut down when it is left."""
        context = browser.new_context(viewport={"width": width, "height": height})
        context.set_default_timeout(30_000)
        try:
            yield LabPage(self, context.new_page())
        finally:
            context.close()
            self.shutdown_kernels()


PANEL = "window.jupyterapp.shell.currentWidget"
READY = f"""() => {{
    const panel = window.jupyterapp && {PANEL};
    const session = panel && panel.sessionContext;
    const ready = session && session.isReady && panel.context.isReady;
    const kernel = ready && session.session && session.session.kernel;
    return !!kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle';
}}"""
RUN_CELL = f"""index => {{
    const panel = {PANEL};
    window.runs = window.runs || {{}};
    window.runs[index] = 'running';
    panel.content.activeCellIndex = index;
    panel.content.deselectAll();
    window.jupyterapp.commands.execute('notebook:run-cell').then(
        () => {{ window.runs[index] = 'done'; }},
        error => {{ window.runs[index] = String(error); }});
}}"""
RUN_ALL = """() => {
    window.runs = {all: 'running'};
    window.jupyterapp.commands.execute('notebook:run-all-cells').then(
        () => { window.runs.all = 'done'; },
        error => { window.runs.all = String(error); });
}"""


class LabPage:
    """One notebook in a front end. `page` is Playwright's page, for everything not named here."""

    def __init__(self, server, page):
        self.server, self.page = server, page
        self.problems = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def open(self, name, seconds=60):
        """Open a notebook of the server's folder and wait for its kernel."""
        address = APPS[self.server.app][2].format(workspace=uuid.uuid4().hex[:8], name=name)
        self.page.goto(f"{self.server.url}/{address}")
        self.wait_kernel_ready(seconds)

    def reload(self, seconds=60):
        """Reload the page, as a person would in the middle of a run; the kernel may be busy."""
        self.page.reload()
        self.page.wait_for_function(
            f"() => window.jupyterapp && {PANEL} && {PANEL}.context && {PANEL}.context.isReady",
            timeout=seconds * 1000,
        )

    def wait_kernel_ready(self, seconds=60):
        """Wait until the kernel is connected and idle (do not trust the indicator alone)."""
        self.page.wait_for_function(READY, timeout=seconds * 1000)

    def run_cell(self, index):
        """Start a cell and return at once."""
        self.page.evaluate(RUN_CELL, index)

    def run_all(self):
        """Start all cells and return at once."""
        self.page.evaluate(RUN_ALL)

    def wait_cell(self, index="all", seconds=60):
        """Wait for the end of a cell that `run_cell` (or of all, that `run_all`) started."""
        self.page.wait_for_function(
            "index => window.runs[index] !== 'running'", arg=index, timeout=seconds * 1000
        )
        result = self.page.evaluate("index => window.runs[index]", index)
        assert result == "done", f"cell {index}: {result}"

    def is_running(self, index="all"):
        """Whether a cell started by us has not ended."""
        return self.page.evaluate("index => window.runs[index] === 'running'", index)

    def show(self, name, cells):
        """Write a notebook, open it and run its cells, one after the other."""
        self.server.write_notebook(name, cells)
        self.open(name)
        for index in range(len(cells)):
            self.run_cell(index)
            self.wait_cell(index)

    def interrupt(self):
        """Interrupt the kernel."""
        self.page.evaluate(f"() => {PANEL}.sessionContext.session.kernel.interrupt()")

    def cell(self, index):
        """A locator of a cell: `lab.cell(1).get_by_role("button", name="Pause").click()`."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def output_text(self, index):
        """What a person reads in a cell's output."""
        return self.cell(index).locator(".jp-Cell-outputArea").inner_text().strip()

    def outputs(self, index):
        """A cell's outputs as they would be saved."""
        return self.page.evaluate(
            f"index => {PANEL}.content.widgets[index].model.outputs.toJSON()", index
        )

    def wait_text(self, index, text, seconds=30):
        """Wait until a cell's output shows `text`."""
        self.cell(index).locator(".jp-Cell-outputArea").get_by_text(text).first.wait_for(
            timeout=seconds * 1000
        )

    def save(self):
        """Save the notebook."""
        self.page.evaluate(f"() => {PANEL}.context.save()")

    def screenshot(self, path):
        """A picture of the page."""
        self.page.screenshot(path=str(path))

    def shutdown_kernel(self):
        """End the notebook's kernel."""
        self.page.evaluate(f"() => {PANEL}.sessionContext.shutdown()")
