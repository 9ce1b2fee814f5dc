"""JupyterLab (or Notebook 7) in a folder of its own, and Chromium on it.

    with JupyterServer(folder) as server, open_browser() as browser:
        server.write_notebook("a.ipynb", ["import ipywidgets", "print(1)"])
        with server.new_page(browser) as lab:
            lab.open("a.ipynb")
            lab.run_cell(1)
            lab.wait_cell(1)
            assert lab.output_text(1) == "1"

A notebook of `write_notebook(name, cells, kernel="ipykernel-6.31")` runs on an older kernel, from
an environment that `make env` makes beside the main one. The usual kernel is forked from a process
that has imported torch; `kernel="cold"` is the same one started by itself.

A JupyterLab page that a test leaves is used again: the next notebook opens in it, in a folder and
with a kernel of its own, as a person opens one notebook after the other.

Cells are run by commands of the front end, without waiting; clicks on widgets are real ones.
"""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import warm_kernels

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
LIMIT = 600  # seconds: nothing takes so long, however busy the machine is
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
        new_context = browser.new_context

        def patient(**options):
            context = new_context(**options)
            context.set_default_timeout(1000 * LIMIT)
            return context

        browser.new_context = patient
        browser.new_page = lambda **options: patient(**options).new_page()
        yield browser
        browser.close()


def free_port():
    """A port that nobody listens on, and that the system gives to nobody who asks for any port.

    Several processes of tests choose at the same time: each has its own thousand."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    ports = list(range(20_000 + worker % 12 * 1000, 21_000 + worker % 12 * 1000))
    random.SystemRandom().shuffle(ports)
    for port in ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


# what a panel of another test has kept: its open tab, pinned numbers
FORGET = """() => [localStorage, sessionStorage].forEach(
    each => Object.keys(each).filter(name => name.startsWith("trainer_nb")).forEach(
        name => each.removeItem(name)))"""


class Notebooks:
    """Notebooks in a folder of a server; `root` is its address there."""

    def write_notebook(self, name, cells, kernel="python3"):
        """A notebook of code cells, for the current or an older kernel."""
        if kernel != "python3" and not self.kernelspec(kernel).exists():
            raise RuntimeError(f"no kernel in {ENVIRONMENTS / f'.venv-{kernel}'}: run `make env`")
        made = [{"cell_type": "code", "id": f"cell-{at}", "metadata": {}, "source": source,
                 "outputs": [], "execution_count": None} for at, source in enumerate(cells)]
        spec = {"display_name": kernel, "language": "python", "name": kernel}
        (self.folder / name).write_text(json.dumps({
            "cells": made, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}))

    def read_notebook(self, name):
        """A notebook as it stands on disk."""
        import nbformat  # takes a second

        return nbformat.read(self.folder / name, as_version=4)

    def shutdown_kernels(self):
        """End every kernel of these notebooks."""
        for session in self.api("sessions"):
            if session["path"].startswith(self.root):
                self.api(f"sessions/{session['id']}", "DELETE")

    @contextmanager
    def new_page(self, browser, width=1280, height=900, fresh=False):
        """A page of its own; kernels are shut down when it is left. `fresh`: not one in which
        another notebook was open before."""
        size = {"width": width, "height": height}
        if self.tabs and not fresh:
            tab = self.tabs.pop()
            tab.set_viewport_size(size)
            tab.evaluate(FORGET)
        else:
            tab = browser.new_page(viewport=size)
        page = self.page_class(self, tab)
        try:
            yield page
        except BaseException:
            tab.context.close()
            self.shutdown_kernels()
            raise
        if page.leave():
            self.tabs.append(tab)
        else:
            tab.context.close()
        self.shutdown_kernels()


class Place(Notebooks):
    """A folder of its own on a server that others use, too."""

    def __init__(self, server, name):
        self.server, self.root, self.folder = server, f"{name}/", server.folder / name
        self.folder.mkdir()

    def __getattr__(self, name):
        return getattr(self.server, name)


class JupyterServer(Notebooks):
    """A Jupyter server for the notebooks in `folder`, with configuration and kernels of its own."""

    root = ""
    distrusted = False  # a test has failed: no page of it is used again

    def __init__(self, folder, app="lab", python=sys.executable, environment=(), settings=()):
        self.folder, self.app, self.page_class = Path(folder), app, LabPage
        self.places, self.tabs = 0, []  # tabs: those that can be used again
        self.settings = SETTINGS | dict(settings)  # of the front end's plugins
        self.home = self.folder.parent / f"{self.folder.name}-jupyter"
        self.port, self.python = free_port(), python
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            **self.own_folders(),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": warm_kernels.python_path(),
            **dict(environment),
        }
        self.warm = python == sys.executable
        if self.warm:  # found before the kernel that the environment has
            self.environment["JUPYTER_PATH"] = str(self.home / "warm")

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
            "--KernelManager.shutdown_wait_time=0.2",
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
        """Make known the warm kernel, and the older ones that there are, each with what it says of
        itself."""
        cold = [self.python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        warm = self.home / "warm" / "kernels" / "python3" / "kernel.json"
        for path, argv in ((self.kernelspec("cold"), cold),
                           *([(warm, warm_kernels.command())] if self.warm else [])):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"argv": argv, "display_name": path.parent.name,
                                        "language": "python"}))
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

    def wait_until_it_answers(self, seconds=LIMIT):
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
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def place(self):
        """A new folder on this server."""
        self.places += 1
        return Place(self, str(self.places))


PANEL = "window.jupyterapp.shell.currentWidget"
READY = f"""path => {{
    const panel = window.jupyterapp && {PANEL};
    const session = panel && panel.sessionContext;
    const ready = session && session.isReady && panel.context.isReady;
    const kernel = ready && session.session && session.session.kernel;
    return !!kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle'
        && (path === null || panel.context.path === path);
}}"""
LOADED = f"() => window.jupyterapp && {PANEL} && {PANEL}.context && {PANEL}.context.isReady"
# Beside the notebook there is what takes the place of the last one that is closed.
OPEN = """async path => {
    const { commands, shell } = window.jupyterapp;
    window.runs = {};
    await commands.execute('docmanager:open', { path, factory: 'Notebook' });
    for (const each of [...shell.widgets('main')]) if (each.context?.path !== path) each.dispose();
}"""
# Close what is open, without a question; whether the page is as it was.
LEAVE = """async () => {
    const { shell } = window.jupyterapp, open = [...shell.widgets('main')].filter(each => each.context);
    document.activeElement?.blur();
    getSelection().empty();
    for (const { context } of open) context.model.dirty = false;
    const closed = open.map(each => new Promise(done => each.disposed.connect(done)));
    for (const each of open) each.close();
    await Promise.all(closed);
    return !document.querySelector('.jp-Dialog, .jp-Notebook') && !shell.leftCollapsed
        && document.body.dataset.jpThemeLight === 'true' && open.every(({ context }) => context.isDisposed);
}"""  # noqa: E501
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
        self.server, self.page, self.path = server, page, None
        self.used = page.url != "about:blank"  # another notebook was open in it
        self.problems = []
        page.on("pageerror", self._problem)

    def _problem(self, error):
        # a page that was busy for two seconds: the panel goes past it
        if "[anywidget] Failed to initialize model" not in str(error):
            self.problems.append(error.stack or str(error))

    def address(self):
        """Where a page loads the notebook, in a workspace of its own."""
        name = APPS[self.server.app][2].format(workspace=uuid.uuid4().hex[:8], name=self.path)
        return f"{self.server.url}/{name}"

    def open(self, name, seconds=LIMIT):
        """Open a notebook of the server's folder and wait for its kernel."""
        self.path = self.server.root + name
        if self.used:
            self.used = False
            self.page.evaluate(OPEN, self.path)
            self.wait_kernel_ready(seconds)
            self.problems.clear()  # those of the notebook before
        else:
            self.page.goto(self.address())
            self.wait_kernel_ready(seconds)

    def leave(self):
        """Close the notebook; whether the page can be used for another one."""
        self.page.remove_listener("pageerror", self._problem)
        if self.server.app != "lab" or self.path is None or JupyterServer.distrusted:
            return False
        return not self.problems and self.page.evaluate(LEAVE)

    def reload(self, seconds=LIMIT):
        """Reload the page, as a person would in the middle of a run; the kernel may be busy."""
        self.page.goto(self.address())
        self.page.wait_for_function(LOADED, timeout=seconds * 1000)

    def wait_kernel_ready(self, seconds=LIMIT):
        """Wait until the kernel is connected and idle (do not trust the indicator alone)."""
        self.page.wait_for_function(READY, arg=self.path, timeout=seconds * 1000)

    def run_cell(self, index):
        """Start a cell and return at once."""
        self.page.evaluate(RUN_CELL, index)

    def run_all(self):
        """Start all cells and return at once."""
        self.page.evaluate(RUN_ALL)

    def wait_cell(self, index="all", seconds=LIMIT):
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

    def wait_text(self, index, text, seconds=LIMIT):
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


class Held:
    """Chromium and JupyterLab for all the browser tests that a process runs in a row."""

    def __init__(self, folder):
        self.folder, self.stack = folder, ExitStack()  # folder: makes new ones
        self._browser = self._lab = None

    def browser(self):
        """Chromium."""
        self._browser = self._browser or self.stack.enter_context(open_browser())
        return self._browser

    def lab(self):
        """A JupyterLab server."""
        self._lab = self._lab or self.stack.enter_context(JupyterServer(self.folder("lab")))
        return self._lab

    def close(self):
        """End both; whoever asks for one again gets a new one."""
        self._browser = self._lab = None
        self.stack.close()
