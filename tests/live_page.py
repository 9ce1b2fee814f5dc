"""A page in which a run trains in a cell:
what the training itself has written down, and real hands on the panel."""

import json
import time
from pathlib import Path

SETUP = """
import json, os, time, torch
from pathlib import Path
from trainer_nb import Hook, Trainer, Tunable
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(256, 8)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1].sin()), batch_size=16)
model = torch.nn.Linear(8, 1)
class Noise(Hook):
    amount = Tunable(0.0, min=0, max=1, doc="standard deviation of the noise")
    loud = Tunable(False)
    fails_at, fails_on = None, None
    def before_batch(self, trainer):
        order.append("noise")
        if trainer.training and trainer.step_state.batch_idx == self.fails_on:
            raise RuntimeError("a bad batch")
    def after_step(self, trainer):
        if trainer.step_state.optimizer_step == self.fails_at:
            raise ValueError("a bad <b>step</b>")
class Witness(Hook):
    name = "witness"
    def before_batch(self, trainer):
        order.append("witness")
    def after_step(self, trainer):
        group = trainer.optim.param_groups[0]
        told = {"step": trainer.step_state.optimizer_step, "rate": trainer.rates()[0],
                "loud": noise.loud,
                "amount": noise.amount, "order": order[-2:],
                "journal": [[e.name, e.new, e.source] for e in trainer.journal]}
        order.clear()
        Path("told.new").write_text(json.dumps(told))
        os.replace("told.new", "told.json")  # at once: nobody reads half of it
        time.sleep(0.01)
order, noise = [], Noise()
trainer = Trainer(model, train_dl=data, valid_dl=data, loss_fn=torch.nn.MSELoss(), epochs=500,
                  device="cpu",
                  hooks=[noise, Witness()],
                  metrics={"mae": lambda pred, target: (pred - target).abs().mean()}, grad_clip=1.0,
                  optim=torch.optim.SGD(model.parameters(), lr=0.01))
"""
PANEL = ".tnb .js-plotly-plot .main-svg"


def later(condition, seconds=20):
    """Wait until the condition holds."""
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


class Live:
    """A run in a notebook, seen from outside."""

    def __init__(self, lab, server, cells, kernel="python3", setup=SETUP):
        self.lab, self.server, self.page = lab, server, lab.page
        Path(server.folder, "told.json").unlink(missing_ok=True)
        server.write_notebook("run.ipynb", [setup, *cells], kernel=kernel)
        lab.open("run.ipynb")
        lab.problems.clear()  # Notebook 7 has one of its own while it loads
        lab.run_cell(0)
        lab.wait_cell(0)

    def start(self, cell=1):
        """Run a cell that trains and wait for its panel and its first steps."""
        self.lab.run_cell(cell)
        self.lab.cell(cell).locator(PANEL).first.wait_for(timeout=60_000)
        assert later(lambda: self.step > 20)
        return self

    @property
    def told(self):
        """What the training wrote after its last step."""
        path = Path(self.server.folder, "told.json")
        return json.loads(path.read_text()) if path.exists() else {"step": 0}

    @property
    def step(self):
        """Its last step."""
        return self.told["step"]

    def freezes(self):
        """Whether the training takes no steps."""
        held = self.step
        time.sleep(0.6)
        return self.step == held

    def goes_on(self, count=20):
        """Whether it takes further steps."""
        step = self.step
        return later(lambda: self.step > step + count)

    def click(self, label, cell=1):
        """A real click on a button or tab of the panel.

        The main button takes none for a quarter of a second after its label has changed: a person
        is slower than this test."""
        panel = self.lab.cell(cell).locator(".tnb")
        tab = panel.get_by_role("tab", name=label)
        target = panel.get_by_role("button", name=label).or_(tab).first
        if label in ("Pause", "Resume", "Start"):
            target.wait_for()  # on a busy machine the label comes late
            time.sleep(0.4)
        target.click()

    def row(self, name, cell=1):
        """The controls of a tunable."""
        return self.lab.cell(
            cell).locator(".tnb-row").filter(has=self.page.locator(f'.nm[title^="{name}:"]'))

    def hook(self, name, cell=1):
        """The row of a hook in the table."""
        return self.lab.cell(cell).locator(".hrow").filter(has_text=name)

    def state(self, word, cell=1):
        """Wait until the panel shows a state."""
        self.lab.cell(cell).locator(f".tnb.is-{word}").wait_for()

    def stop(self, cell=1):
        """End the run by the panel."""
        self.click("Stop", cell)
        self.lab.wait_cell(cell)
