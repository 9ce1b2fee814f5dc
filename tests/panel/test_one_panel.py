"""Several fits in one cell: one panel for each trainer."""

import pytest
from kernel_client import client_of

from trainer_nb.panel.widget import WIDGET

pytestmark = pytest.mark.slow
SETUP = """
import torch
from IPython.display import clear_output
from IPython.utils.capture import capture_output
from trainer_nb import Trainer
torch.set_num_threads(1)
data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(4)]
def make(**settings):
    return Trainer(torch.nn.Linear(3, 1), train_dl=data, loss_fn=torch.nn.MSELoss(),
                   **{"epochs": 2, "device": "cpu"} | settings)
"""
CELLS = {  # code to the panels in the cell's output
    "trainer.fit(); trainer.fit(epochs=4)": 1,
    "trainer.step(2); trainer.fit(); trainer.fit()": 1,  # and one that has nothing left to do
    "trainer.start(); trainer.wait(); trainer.fit(epochs=5)": 1,
    "trainer.fit(); other = make(); other.fit(); trainer.fit(epochs=3); other.fit(epochs=3)": 2,
    "for _ in range(3): make().fit()": 3,
    "trainer.fit(); trainer.close(); trainer.fit(epochs=3)": 2,  # of the closed one the picture
    "trainer.fit(); clear_output(); trainer.fit(epochs=3)": 1,  # the first is gone from the page
    "with capture_output(): trainer.fit()\ntrainer.fit(epochs=3)": 1,  # nobody saw the first
    "trainer.fit(); display(trainer.dashboard)": 2,  # as asked for
    "await trainer.fit_async(); await trainer.fit_async(epochs=3)": 1}


def panels(client, code):
    """Run a cell; ids of the models of the panels in its output, and the pictures."""
    cell = client.client.execute(code)
    client.finish(cell)
    shown = [each for each in client.outputs.get(cell, []) if isinstance(each, dict)]
    assert not any("Traceback" in each for each in client.outputs.get(cell, [])
                   if isinstance(each, str)), client.text(cell)
    pictures = [each for each in shown if "tnb-kept" in each.get("text/html", "")]
    return [each[WIDGET]["model_id"] for each in shown if WIDGET in each], len(pictures)


@pytest.mark.parametrize("kernel", [
    "python3", *(pytest.param(each, marks=pytest.mark.long)
                 for each in ("ipykernel-6.31", "ipykernel-7.3"))])
def test_a_cell_has_one_panel_of_a_trainer(kernel, tmp_path):
    """Where it is known to be there; and run again, the cell has one again."""
    with client_of(kernel, tmp_path) as client:
        client.run(SETUP)
        for code, count in CELLS.items():
            client.run("trainer = make()")
            for _ in range(2):
                found, pictures = panels(client, code)
                assert len(found) == pictures == count, (code, found)
        first, _ = panels(client, "trainer = make(); trainer.fit(); trainer.fit(epochs=3)")
        again, _ = panels(client, "trainer.fit(epochs=4); trainer.fit(epochs=5)")
        assert first == again and len(first) == 1  # the panel is in both cells


def test_the_picture_that_stays_is_of_the_last_fit(tmp_path):
    """The one display of the cell is updated to the end."""
    with client_of("python3", tmp_path) as client:
        client.run(SETUP + "trainer = make()")
        updates = []
        note = client._note

        def noted(message):
            if message["msg_type"] == "update_display_data":
                updates.append(message["content"]["data"]["text/plain"])
            note(message)
        client._note = noted
        panels(client, "trainer.fit(); trainer.fit(epochs=4)")
        assert "step 16" in updates[-1] and "finished" in updates[-1], updates[-1]


def test_a_run_that_goes_on_is_told_of_where_its_cell_runs_again(tmp_path):
    """The cell gives its name to another one; a run that has ended is not told of."""
    line = "Another run goes on in this kernel, at step "
    with client_of("python3", tmp_path) as client:
        client.run(SETUP)
        cell = "trainer = make(epochs=None, max_steps=10**9); trainer.start()"
        assert line not in client.run(cell)
        assert client.run(cell).count(line) == 1
        assert line not in client.run("from trainer_nb import background_runs\n"
                                      "for each in background_runs(): each.stop(); each.wait()\n"
                                      "trainer = make(); trainer.start(); trainer.wait()")
