"""A page in which a run trains in a cell:
what the training itself has written down, and real hands on the panel."""

import json
import re
import time
from pathlib import Path

from jupyter_server import LIMIT

# What the training does is read from files that it writes itself: told.json after each step, and
# turn.json where it stands: a number that grows, "running", "paused" (at each turn of a pause) or
# "ended", and how many evaluations and searches for a rate there were.
HANDS = """
from trainer_nb.panel import approvals_pane, controls
clock = controls.perf_counter
controls.perf_counter = lambda: 1000 * clock()  # what has just changed takes a click at once:
approvals_pane.SETTLE = 0  # a person is slower than a test
"""
TURNS = HANDS + """
from trainer_nb.panel import screen
seconds = screen.perf_counter
screen.perf_counter = lambda: 5 * seconds()  # a panel of a running run is 0.4 s old, and not 2 s
import json, os, threading, time, torch
from pathlib import Path
from trainer_nb.core.driver import RunStatus
torch.set_num_threads(1)
turns, tick = [0, "", 0, 0], RunStatus.tick
def tell(name, told):
    new = f"{name}.{threading.get_ident()}"  # two runs may tell at the same time
    Path(new).write_text(json.dumps(told))
    os.replace(new, name + ".json")  # at once: nobody reads half of it
def turn(point, evaluations=0, searches=0):
    turns[:] = turns[0] + 1, point, turns[2] + evaluations, turns[3] + searches
    tell("turn", turns)
def told_tick(status, point):
    tick(status, point)
    turn(point, searches=point == "swept")
RunStatus.tick = told_tick
"""
SETUP = TURNS + """
from trainer_nb import Hook, Trainer, Tunable
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
        group, step = trainer.optim.param_groups[0], trainer.step_state.optimizer_step
        tell("told", {"step": step, "rate": trainer.rates()[0], "loud": noise.loud,
                      "amount": noise.amount, "order": order[-2:],
                      "journal": [[e.name, e.new, e.source] for e in trainer.journal]})
        order.clear()
        if turns[1] != "running":
            turn("running")
        time.sleep(0.01)
    def after_valid(self, trainer):
        turn("running", 1)
order, noise = [], Noise()
trainer = Trainer(model, train_dl=data, valid_dl=data, loss_fn=torch.nn.MSELoss(), epochs=50_000,
                  device="cpu",
                  hooks=[noise, Witness()],
                  metrics={"mae": lambda pred, target: (pred - target).abs().mean()}, grad_clip=1.0,
                  optim=torch.optim.SGD(model.parameters(), lr=0.01))
"""
PANEL = ".tnb .js-plotly-plot .main-svg"
STANDS = {"Pause": ("running",), "Resume": ("paused", "ended", "idle")}


def later(condition, seconds=LIMIT):
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def objects(path):
    """The lines of a .jsonl that another process writes; the last one may not be whole yet."""
    whole, _, _ = Path(path).read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


SETTLED = """async ms => {
    const frames = async () => { for (let n = 0; n < 2; n++) await new Promise(requestAnimationFrame); };
    await frames();
    await new Promise(done => setTimeout(done, ms));
    await frames();
}"""  # noqa: E501
TEXTS = """selector => {
    const texts = window.texts = [];
    const note = () => {
        for (const { innerText } of document.querySelectorAll(selector))
            if (!texts.includes(innerText)) texts.push(innerText);
    };
    note();
    new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""  # noqa: E501


def settle(page, ms=100):
    """Let the page do what it has planned for the next ms: its timers keep their order."""
    page.evaluate(SETTLED, ms)


def texts_of(page, selector):
    """Returns a function: all the texts that these elements have had from now on."""
    page.evaluate(TEXTS, selector)
    return lambda: page.evaluate("() => window.texts")


def open_tab(panel, at):
    """Open a tab of a panel by a click, and wait until its pane is in the place of the one before.

    `at`: its number, or the words that its title begins with."""
    tab = panel.locator(".tnb-tabs .tab")
    tab = (tab.nth(at) if isinstance(at, int)
           else tab.filter(has_text=re.compile("^" + re.escape(at)))).first
    tab.wait_for()
    if "on" not in tab.get_attribute("class").split():
        pane = panel.locator(".tnb-pane").first
        pane.evaluate("pane => { for (const each of pane.children) each.dataset.before = ''; }")
        tab.click()
        assert later(lambda: pane.evaluate(
            "pane => pane.children.length > 0 && !pane.querySelector(':scope > [data-before]')"))
    return tab


class Witnessed:
    """A run that writes told.json and turn.json into a folder."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def read(self, name):
        """What the training wrote into one of its files, or None."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def told(self):
        """What the training wrote after its last step."""
        return self.read("told") or {"step": 0}

    @property
    def turn(self):
        """Where it stands: a number that grows, "running", "paused" or "ended", and how many
        evaluations and searches there were."""
        return self.read("turn") or [0, "", 0, 0]

    @property
    def step(self):
        """Its last step."""
        return self.told["step"]

    def freezes(self):
        """Whether the training takes no steps: it says itself that its pause goes on. One that was
        detached in a pause has ended in the meantime."""
        step, (first, *_) = self.step, self.turn
        assert later(lambda: self.turn[1] in ("ended", "idle")
                     or self.turn[1] == "paused" and self.turn[0] > first + 3), self.turn
        return self.step == step

    def ends(self):
        """Whether the training ends; then it takes no steps."""
        return later(lambda: self.turn[1] == "ended")

    def goes_on(self, count=20):
        """Whether it takes further steps."""
        step = self.step
        return later(lambda: self.step > step + count)


class Live(Witnessed):
    """A run in a notebook, seen from outside."""

    def __init__(self, lab, server, cells, kernel="python3", setup=SETUP, name="run.ipynb"):
        super().__init__(server.folder)
        self.lab, self.server, self.page = lab, server, lab.page
        server.write_notebook(name, [setup, *cells], kernel=kernel)
        lab.open(name)
        lab.problems.clear()  # Notebook 7 has one of its own while it loads
        lab.run_cell(0)
        lab.wait_cell(0)

    def start(self, cell=1):
        """Run a cell that trains and wait for its panel and its first steps."""
        self.lab.run_cell(cell)
        self.lab.cell(cell).locator(PANEL).first.wait_for()
        assert later(lambda: self.step > 20)
        return self

    def shown_step(self, cell=1):
        """The step that the head of the panel shows, or -1."""
        head = self.lab.cell(cell).locator(".tnb-head").first.inner_text()
        found = re.search(r"step\s*([\d,]+)", head)
        return int(found[1].replace(",", "")) if found else -1

    def redrawn(self, cell=1):
        """Wait until all of the panel of a running run was drawn: the head is drawn first, so it is
        once the head has changed twice."""
        for _ in range(2):
            step = self.shown_step(cell)
            assert later(lambda: self.shown_step(cell) > step)

    def click(self, label, cell=1):
        """A real click on a button or tab of the panel, once it can mean what it says."""
        panel = self.lab.cell(cell).locator(".tnb")
        tab = panel.get_by_role("tab", name=label)
        target = panel.get_by_role("button", name=label).or_(tab).first
        target.wait_for()
        if label in STANDS and self.turn[1]:
            assert later(lambda: self.turn[1] in STANDS[label]), self.turn
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
