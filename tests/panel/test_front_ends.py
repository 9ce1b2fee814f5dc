"""Front ends by their messages, and places where a panel cannot be shown."""

import os
import sys

import pytest
import warm
import warm_kernels
from jupyter_client.manager import AsyncKernelManager
from jupyter_server import LIMIT
from kernel_client import client_of, manager_of
from live_page import SETUP, later

pytestmark = pytest.mark.slow


@pytest.fixture
def front_end(request, tmp_path):
    """A client of a new kernel that sends everything on the shell channel, as VS Code does."""
    with client_of(request.param, tmp_path) as client:
        client.folder = tmp_path
        client.run(SETUP)
        yield client


KERNELS = [
    "python3",
    pytest.param("ipykernel-6.31", marks=pytest.mark.long),
    pytest.param("ipykernel-7.3", marks=pytest.mark.long),
    pytest.param("colab", marks=pytest.mark.long),
]


# A thousand times as fast: the lines come with each drawing, and that with each step.
SHORT = """
from trainer_nb.panel import plain_lines, screen
clock = screen.perf_counter
screen.perf_counter = plain_lines.perf_counter = lambda: 10_000 * clock()
"""
NO_PAGE = "No page has drawn the panel"


SCRIPT = """
import torch
from trainer_nb import Trainer
torch.set_num_threads(1)
x = torch.randn(64, 8)
batches = [(x[at:at + 16], x[at:at + 16, :1]) for at in range(0, 64, 16)]
trainer = Trainer(torch.nn.Linear(8, 1), train_dl=batches, loss_fn=torch.nn.MSELoss(), epochs=3,
                  device="cpu")
print("ended:", trainer.fit().status)
"""


def test_ipython_in_a_terminal_has_a_bar(tmp_path):
    """No widget is made there, and nothing of a panel is printed."""
    pexpect = pytest.importorskip("pexpect")
    (tmp_path / "script.py").write_text(SCRIPT
                                        + "import sys\nprint('widgets:', 'ipywidgets' in "
                                          "sys.modules)\n")
    environment = os.environ | {"IPYTHONDIR": str(tmp_path), "TERM": "dumb"}
    flags = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor",
             "--no-confirm-exit"]
    with pexpect.spawn(sys.executable, flags, encoding="utf-8", timeout=LIMIT, env=environment,
                       dimensions=(40, 150)) as terminal:
        terminal.expect(r"In \[1\]:")
        terminal.sendline(f"%run -i {tmp_path / 'script.py'}")
        terminal.expect("widgets: False")
        shown = terminal.before
        terminal.sendline("exit")  # `close` would give it a tenth of a second
        terminal.expect(pexpect.EOF)
        terminal.wait()
    assert "100.00% [12/12" in shown
    assert "epoch 3/3  step 12/12" in shown and "ended: finished" in shown
    assert NO_PAGE not in shown and "VBox" not in shown


def test_nbconvert_keeps_the_picture_and_the_lines(tmp_path):
    """A notebook that is run without a front end says how far it was, and holds the picture of the
    end."""
    import nbformat  # takes a second
    from nbconvert.preprocessors import ExecutePreprocessor

    cells = [SHORT, SCRIPT.replace("epochs=3", "epochs=20")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    manager = manager_of(warm_kernels.command(), AsyncKernelManager)
    execute = ExecutePreprocessor(timeout=LIMIT)  # what `jupyter nbconvert --execute` calls
    notebook, _ = execute.preprocess(notebook, {"metadata": {"path": str(tmp_path)}}, km=manager)
    outputs = notebook.cells[1].outputs
    printed = "".join(each.text for each in outputs if each.output_type == "stream")
    pictures = [each.data for each in outputs if "text/html" in each.get("data", {})]
    assert printed.count(NO_PAGE) == 1
    assert "epoch 20/20  step 80/80" in printed and "ended: finished" in printed
    assert len(pictures) == 1
    assert "tnb-kept" in pictures[0]["text/html"] and "finished" in pictures[0]["text/plain"]


def test_in_colab_scripts_of_other_widgets_are_allowed(tmp_path):
    """By the call that Colab documents, when the panel is made."""
    package = tmp_path / "google" / "colab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    allow = "def enable_custom_widget_manager():\n    print('allowed')\n"
    (package / "output.py").write_text(allow)
    code = ("import google.colab.output, torch\nfrom trainer_nb import Trainer\n"
            "trainer = Trainer(torch.nn.Linear(1, 1), train_dl=[torch.ones(1, 1)], "
            "loss_fn=torch.nn.MSELoss(), device='cpu')\nprint(trainer.dashboard.part)")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = warm.run([sys.executable, "-c", code], env=environment, capture_output=True,
                    text=True, timeout=LIMIT)
    assert done.stdout.split() == ["allowed", "dashboard"], done.stderr


@pytest.mark.parametrize("front_end", KERNELS, indirect=True)
def test_a_page_that_is_slow_gets_every_widget(front_end):
    """A notebook may open thousands of widgets at once, and a busy server takes them late.
    Of 4,500 messages none is lost, and none comes before one that it refers to."""
    front_end.run("trainer.panels.parts.screen; import ipywidgets")
    before = len(front_end.widgets)
    cell = front_end.client.execute(
        "kept = [ipywidgets.HTML('x' * 8_000) for _ in range(1_500)]\nlen(kept)")
    assert later(lambda: front_end.replied(cell))  # nothing that was published is read
    assert front_end.until(lambda: len(front_end.widgets) - before >= 4_500)
