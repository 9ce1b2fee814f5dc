"""Classic Notebook 6.5 with ipywidgets 7 and Colab's kernel, from the environment `.venv-colab`:
a server and a page.

It stands in for Google Colab: the same kernel, IPython and widgets, in a page of the time for which
they were made.
"""

import os
import time
import urllib.parse

from jupyter_server import ENVIRONMENTS, LIMIT, JupyterServer

ENVIRONMENT = ENVIRONMENTS / ".venv-colab"
READY = ("() => window.Jupyter && Jupyter.notebook && Jupyter.notebook.kernel && "
         "Jupyter.notebook.kernel.is_connected() && !Jupyter.notebook.kernel_busy")
RUN_CELL = "index => { Jupyter.notebook.select(index); Jupyter.notebook.execute_cells([index]); }"
# The reply sets the number of the prompt and may be there before the last outputs, which have come
# with the message that the kernel is idle
RUNNING = ("index => { const cell = Jupyter.notebook.get_cell(index); "
           "const awaited = Jupyter.notebook.kernel._msg_callbacks[cell.last_msg_id]; "
           "return cell.running || cell.element.hasClass('running') || "
           "cell.input_prompt_number === '*' || Boolean(awaited && !awaited.iopub_done); }")


class ClassicServer(JupyterServer):
    """Classic Notebook for the notebooks in `folder`."""

    def __init__(self, folder, environment=()):
        super().__init__(folder, python=str(ENVIRONMENT / "bin" / "python"),
                         environment=environment)
        self.app, self.page_class = "classic", ClassicPage

    def command(self):
        """The server's command line: this machine only, no token."""
        return [
            self.python, "-m", "notebook", "--no-browser", f"--NotebookApp.port={self.port}",
            "--NotebookApp.port_retries=0",
            "--NotebookApp.ip=127.0.0.1", f"--NotebookApp.notebook_dir={self.folder}",
            "--NotebookApp.token=", "--NotebookApp.password=",
            "--NotebookApp.disable_check_xsrf=True",
            *(["--allow-root"] if os.geteuid() == 0 else []),
        ]


class ClassicPage:
    """One notebook in classic Notebook, with the names of `LabPage`."""

    def __init__(self, server, page):
        self.server, self.page = server, page
        self.problems = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def leave(self):
        """The page is used for one notebook alone."""
        return False

    def open(self, name, seconds=LIMIT):
        """Open a notebook of the server's folder and wait for its kernel."""
        path = urllib.parse.quote(self.server.root + name)
        self.page.goto(f"{self.server.url}/notebooks/{path}")
        self.page.wait_for_function(READY, timeout=seconds * 1000)

    def reload(self):
        """Reload the page, as a person would in the middle of a run; the kernel may be busy."""
        self.page.once("dialog", lambda dialog: dialog.accept())  # unsaved changes
        self.page.reload()

    def run_cell(self, index):
        """Start a cell and return at once."""
        self.page.evaluate(RUN_CELL, index)

    def wait_cell(self, index, seconds=LIMIT):
        """Wait for the end of a cell."""
        end = time.monotonic() + seconds
        while self.is_running(index):
            assert time.monotonic() < end, f"cell {index} is still running"
            time.sleep(0.1)

    def is_running(self, index):
        """Whether a cell runs or waits."""
        return self.page.evaluate(RUNNING, index)

    def cell(self, index):
        """A locator of a cell."""
        return self.page.locator("#notebook .cell").nth(index)

    def output_text(self, index):
        """What a person reads in a cell's output."""
        return self.cell(index).locator(".output").inner_text().strip()
