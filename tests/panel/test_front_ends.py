"""Front ends by their messages: clicks on the main shell channel, and places where a panel cannot
be shown."""

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from kernel_client import client_of, told
from live_page import SETUP, later

import trainer_nb

SLIDER = "FloatLogSliderModel"


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


@pytest.mark.parametrize("front_end", KERNELS, indirect=True)
def test_clicks_on_the_shell_channel_act_while_the_cell_runs(front_end):
    """Pause, a slider, a box, Resume and Stop reach `trainer.fit()`;
    cells sent meanwhile run after it, in order."""
    read = lambda: told(front_end.folder)
    cell = front_end.begin("print(trainer.fit().status)")
    assert later(lambda: read()["step"] > 20)
    front_end.show()
    front_end.click("Pause")
    assert front_end.until(lambda: front_end.find(_model_name="ButtonModel", description="Resume"))
    held = read()["step"]
    time.sleep(0.5)
    assert read()["step"] == held and not front_end.replied(cell)
    queued = [front_end.client.execute(f"print({number}, trainer.state)") for number in range(2)]
    front_end.click("Resume")
    assert later(lambda: read()["step"] > held + 5)

    slider = front_end.find(_model_name=SLIDER, value=0.01)[0]
    front_end.set(slider, value=0.002)
    assert later(lambda: read()["rate"] == 0.002), read()
    assert front_end.until(lambda: front_end.find(_model_name="TextModel", value="0.002"))
    box = front_end.find(_model_name="TextModel", value="0.002")[0]
    front_end.set(box, value="4e-3")
    assert later(lambda: read()["rate"] == 0.004), read()
    assert [entry[1:] for entry in read()["journal"]
            if entry[0] == "lr"] == [[0.002, "widget"], [0.004, "widget"]]
    assert not any(front_end.replied(each) for each in (cell, *queued)), "a cell overtook the run"

    front_end.click("Stop")
    assert front_end.finish(cell).strip().endswith("stopped")
    assert [front_end.finish(each).strip() for each in queued] == ["0 stopped", "1 stopped"]


SHORT = ("from trainer_nb.panel.plain_lines import PlainLines\nPlainLines.patience = "
         "PlainLines.interval = 0.5")
NO_PAGE = "No page has drawn the panel"


@pytest.mark.parametrize("front_end", KERNELS[:1], indirect=True)
def test_where_no_page_draws_the_panel_lines_come(front_end):
    """A console, or an editor without widgets:
    one line says so, others follow, and an interrupt stops after a whole step."""
    front_end.run(SHORT)
    cell = front_end.begin("print(trainer.fit().status)")
    # a busy machine draws seldom: drawing takes at most 1/200 of the time
    assert front_end.until(lambda: front_end.text(cell).count("\nepoch") >= 2,
                           120), front_end.text(cell)
    front_end.show()  # a page that comes late ends them
    front_end.until(lambda: False, 2)
    lines = front_end.text(cell)
    front_end.until(lambda: False, 2.5)
    assert front_end.text(cell) == lines and lines.count(NO_PAGE) == 1
    first, *others = [line for line in lines.splitlines() if line.startswith("epoch")]
    assert "train/loss" in others[0] and "eta" in others[-1] and len(set(others)) == len(others)
    front_end.click("Stop")
    assert front_end.finish(cell).strip().endswith("stopped")

    front_end.widgets.clear()
    again = front_end.begin("trainer.dashboard.guard.drawn = 0\nprint(trainer.fit().status)")
    assert front_end.until(lambda: NO_PAGE in front_end.text(again), 60)
    front_end.interrupt()
    front_end.finish(again)
    assert front_end.run(
        "print(trainer.state, trainer.step_state.phase.value)").startswith("interrupted")


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
    with pexpect.spawn(sys.executable, flags, encoding="utf-8", timeout=60, env=environment,
                       dimensions=(40, 150)) as terminal:
        terminal.expect(r"In \[1\]:")
        terminal.sendline(f"%run -i {tmp_path / 'script.py'}")
        terminal.expect("widgets: False")
        shown = terminal.before
    assert "100.00% [12/12" in shown
    assert "epoch 3/3  step 12/12" in shown and "ended: finished" in shown
    assert NO_PAGE not in shown and "VBox" not in shown


def test_nbconvert_keeps_the_picture_and_the_lines(tmp_path):
    """A notebook that is run without a front end says how far it was, and holds the picture of the
    end."""
    cells = [SHORT, SCRIPT.replace("epochs=3", "epochs=2000")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(notebook, tmp_path / "run.ipynb")
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace",
               "run.ipynb"]
    environment = os.environ | {"IPYTHONDIR": str(tmp_path),
                                "JUPYTER_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    outputs = nbformat.read(tmp_path / "run.ipynb", as_version=4).cells[1].outputs
    printed = "".join(each.text for each in outputs if each.output_type == "stream")
    pictures = [each.data for each in outputs if "text/html" in each.get("data", {})]
    assert printed.count(NO_PAGE) == 1
    assert "epoch 2000/2000  step 8000/8000" in printed and "ended: finished" in printed
    assert len(pictures) == 1
    assert "tnb-kept" in pictures[0]["text/html"] and "finished" in pictures[0]["text/plain"]


@pytest.mark.parametrize("raises", [False, True])
def test_in_colab_scripts_of_other_widgets_are_allowed(tmp_path, raises):
    """By the call that Colab documents; where it fails, the view is there all the same, and one
    warning says why."""
    package = tmp_path / "google" / "colab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    body = "raise ValueError('Unknown widgets version')" if raises else "print('allowed')"
    (package / "output.py").write_text(f"def enable_custom_widget_manager():\n    {body}\n")
    code = ("import google.colab, ipywidgets\nfrom trainer_nb.panel.front_end import WIDGET, "
            "view_of\n"
            "print(WIDGET in view_of(ipywidgets.Label()))")
    root = str(Path(trainer_nb.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), root])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, timeout=120)
    assert done.stdout.split() == (["True"] if raises else ["allowed", "True"]), done.stderr
    assert ("ValueError: Unknown widgets version" in done.stderr) is raises


@pytest.mark.parametrize("front_end", KERNELS, indirect=True)
def test_a_page_that_is_slow_gets_every_widget(front_end):
    """A panel with many hooks opens thousands of widgets at once, and a busy server takes them
    late. Of 12,000 messages none is lost, and none comes before one that it refers to."""
    front_end.run("trainer.screen; import ipywidgets")
    before = len(front_end.widgets)
    cell = front_end.client.execute(
        "kept = [ipywidgets.HTML('x' * 2_000) for _ in range(4_000)]\nlen(kept)")
    end = time.monotonic() + 60
    while not front_end.replied(cell) and time.monotonic() < end:
        time.sleep(0.05)  # nothing that was published is read
    assert front_end.replied(cell)
    assert front_end.until(lambda: len(front_end.widgets) - before >= 12_000)
