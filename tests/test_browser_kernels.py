"""Steering while a cell runs, on other kernels and in another front end: real clicks, and what the training itself wrote."""

import time
from importlib.metadata import version
from pathlib import Path

import pytest
from jupyter_server import JupyterServer

pytestmark = pytest.mark.browser

VERSION = "import ipykernel\nprint(ipykernel.__version__)"
SETUP = """
import ipywidgets, os, time, torch
from pathlib import Path
from trainer_nb import Trainer
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(256, 8)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1].sin()), batch_size=16)
model = torch.nn.Linear(8, 1)
class Witness:
    def after_step(self, trainer):
        Path("new.txt").write_text(f"{trainer.step_state.optimizer_step} {trainer.rates()[0]}")
        os.replace("new.txt", "steps.txt")  # at once: nobody reads half of it
        time.sleep(0.01)
trainer = Trainer(model, train_dl=data, loss_fn=torch.nn.MSELoss(), epochs=5000, device="cpu", hooks=[Witness()],
                  optim=torch.optim.SGD(model.parameters(), lr=0.01))
"""
BUTTON = """
button = ipywidgets.Button(description="Other rate")
button.on_click(lambda _: trainer.tune(lr=0.123))
button
"""
FIT = "ended = [str(trainer.fit().status)]"
FIRST = "ended.append('first')\nprint(ended)"
SECOND = "ended.append('second')\nprint(ended)"
JOURNAL = "print([(entry.kind, entry.name, entry.new) for entry in trainer.journal])"
CELLS = [VERSION, SETUP, BUTTON, FIT, FIRST, SECOND, JOURNAL]

# ipykernel 7.0 to 7.3 may leave unread what it is asked at the start, until the next connection
# (ipython/ipykernel#1554): there a page is opened again, as a person would reload it.
OVERLOOKING = {"ipykernel-7.3"}


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    """A server with the front end that is asked for."""
    with JupyterServer(tmp_path_factory.mktemp(request.param), app=request.param) as server:
        yield server


def witnessed(server):
    """The optimizer steps and the rate in force that the training itself has written down."""
    path = Path(server.folder, "steps.txt")
    step, rate = path.read_text().split() if path.exists() else (0, 0)
    return int(step), float(rate)


def later(condition, seconds=20):
    """Wait until the condition holds."""
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def goes_on(server, count=20):
    """Whether the training takes further steps."""
    step, _ = witnessed(server)
    return later(lambda: witnessed(server)[0] > step + count)


def freezes(server):
    """Whether the training takes no steps."""
    held = witnessed(server)
    time.sleep(0.6)
    return witnessed(server) == held


def click(page, label):
    """A real click on one of the run controls."""
    page.page.locator(".tnb-controls").get_by_role("button", name=label).click()


def open_notebook(page, name, attempts):
    """Open a notebook and run its first cell, where need be more than once."""
    from playwright.sync_api import TimeoutError

    for attempt in range(1, attempts + 1):
        try:
            page.open(name, seconds=60 / attempts)
            page.run_cell(0)
            return page.wait_cell(0, seconds=60 / attempts)
        except TimeoutError:
            if attempt == attempts:
                raise


@pytest.mark.parametrize(
    "server, kernel, ipykernel",
    [
        ("lab", "ipykernel-6.31", "6.31.0"),
        ("lab", "ipykernel-7.3", "7.3.0"),
        ("notebook", "python3", version("ipykernel")),
    ],
    indirect=["server"],
)
def test_a_running_cell_is_steered(server, browser, kernel, ipykernel):
    """Pause, a rate changed by a widget, Resume, Stop act while the cell runs; cells queued meanwhile run after it, in order."""
    Path(server.folder, "steps.txt").unlink(missing_ok=True)
    server.write_notebook("run.ipynb", CELLS, kernel=kernel)
    with server.new_page(browser) as page:
        open_notebook(page, "run.ipynb", attempts=3 if kernel in OVERLOOKING else 1)
        assert page.output_text(0) == ipykernel
        page.problems.clear()  # Notebook 7 has one of its own while it loads
        for cell in (1, 2):
            page.run_cell(cell)
            page.wait_cell(cell)
        page.run_cell(3)
        page.page.wait_for_selector(".tnb .js-plotly-plot .main-svg", timeout=60_000)
        assert later(lambda: witnessed(server)[0] > 20)

        click(page, "Pause")
        page.page.wait_for_selector(".tnb.is-paused")
        assert freezes(server) and page.is_running(3)
        click(page, "Resume")
        assert goes_on(server) and witnessed(server)[1] == 0.01

        for cell in (4, 5):
            page.run_cell(cell)
        page.cell(2).get_by_role("button", name="Other rate").click()
        assert later(lambda: witnessed(server)[1] == 0.123)
        assert goes_on(server) and witnessed(server)[1] == 0.123
        assert [page.is_running(cell) for cell in (3, 4, 5)] == [True] * 3
        assert page.output_text(4) == page.output_text(5) == ""

        click(page, "Stop")
        for cell in (3, 4, 5):
            page.wait_cell(cell, seconds=20)
        assert freezes(server)
        assert page.output_text(4) == "['stopped', 'first']"
        assert page.output_text(5) == "['stopped', 'first', 'second']"
        page.run_cell(6)
        page.wait_cell(6)
        assert "('tune', 'lr', 0.123)" in page.output_text(6)
        assert page.problems == []
