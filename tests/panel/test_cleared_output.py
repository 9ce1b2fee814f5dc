"""A hook or a step that clears the output of the cell, as many plots do: the panel comes back."""

import pytest
from kernel_client import client_of

pytestmark = pytest.mark.slow

SETUP = """
import torch
from IPython.display import clear_output
from ipywidgets import Output
from trainer_nb import LambdaHook, Trainer
torch.set_num_threads(1)
data = [(torch.ones(4, 3), torch.ones(4, 1))] * 4
taken = Output()
def make(act, at=3):
    def after_step(trainer):
        if trainer.step_state.optimizer_step == at:
            act()
    return Trainer(torch.nn.Linear(3, 1), train_dl=data, loss_fn=torch.nn.MSELoss(), epochs=2,
                   device="cpu", hooks=[LambdaHook(after_step=after_step)])
def clear_in_widget():
    with taken:
        clear_output()
"""
PANEL = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A kernel for all tests of this file."""
    with client_of("python3", tmp_path_factory.mktemp("kernel")) as front_end:
        front_end.run(SETUP)
        yield front_end


def panels(kernel, cell):
    """What a page shows of panels in the output of a cell: the id of the widget of each."""
    return [each[PANEL]["model_id"] for each in kernel.outputs.get(cell, [])
            if isinstance(each, dict) and PANEL in each]


def fitted(kernel, act, verb="trainer.fit()"):
    """Train in a cell; the panels that it shows at its end, and the id of the panel."""
    cell = kernel.client.execute(f"trainer = make({act})\n{verb};")
    kernel.finish(cell)
    own = kernel.run("print(trainer.dashboard.model_id)").strip()
    return panels(kernel, cell), own


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("verb", ["trainer.fit()", "await trainer.fit_async()"])
def test_the_panel_comes_back(kernel, wait, verb):
    shown, own = fitted(kernel, f"lambda: clear_output(wait={wait})", verb)
    assert shown == [own]


def test_what_is_displayed_after_the_clearing_stays(kernel):
    cell = kernel.client.execute("trainer = make(lambda: (clear_output(), print('kept')))\n"
                                 "trainer.fit();")
    assert "kept" in kernel.finish(cell) and len(panels(kernel, cell)) == 1


def test_an_output_widget_that_is_cleared_is_another_output(kernel):
    shown, own = fitted(kernel, "clear_in_widget")
    assert shown == []  # this front end has no output widgets: it was cleared, and not shown twice
    shown, own = fitted(kernel, "lambda: None")
    assert shown == [own]


def test_one_function_listens_for_all_runs(kernel):
    """And draws nothing in a cell of another run."""
    for _ in range(2):
        fitted(kernel, "clear_output")
    assert kernel.run("print(len(get_ipython().display_pub._hooks))").strip() == "1"
    cell = kernel.client.execute("clear_output()\nprint('mine')")
    assert kernel.finish(cell) == "mine\n" and panels(kernel, cell) == []
