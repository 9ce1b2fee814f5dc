"""A page in which a run trains in a cell:
what the training itself has written down, and real hands on the panel."""

import json
import os
import time
from pathlib import Path

from jupyter_server import LIMIT

# What the training does is read from files that it writes itself: told.json after each step, and
# turn.json where it stands: a number that grows, "running", "paused" (at each turn of a pause) or
# "ended", and how many evaluations and searches for a rate there were.
TURNS = """
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
MAIN = ("Pause", "Resume", "Start")  # buttons that share one place
DRAWN = ".tnb .js-plotly-plot:has(.main-svg)"


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


def picture(page, name):
    """A picture of a page, for a person who wants to see it: TRAINER_NB_PICTURES names a folder."""
    if folder := os.environ.get("TRAINER_NB_PICTURES"):
        settle(page, 1000)
        page.screenshot(path=Path(folder, f"{name}.png"), full_page=True)


class Seen:
    """A panel, by what a person sees and presses; `box` is its place on a page."""

    def __init__(self, box):
        self.box, self.page = box, box.page

    def button(self, name):
        """The button of this name."""
        return self.box.get_by_role("button", name=name, exact=True)

    def click(self, name):
        """A click on a button; it comes later than the second half of a double click on the button
        that was in its place."""
        if name in MAIN:
            settle(self.page, 300)
        self.button(name).click()

    def stop(self):
        """Stop the run: the second click comes later than that of a double click, and before the
        button asks no more."""
        def stopped():
            self.click("Stop")
            settle(self.page, 300)
            return self.really_stop()
        assert later(stopped)

    def really_stop(self):
        """Press it, if the button still asks: the run may have stopped, or the time be over."""
        return self.button("Really stop?").evaluate_all(
            "found => (found.forEach(each => each.click()), found.length)") > 0

    def is_in(self, state):
        """Wait until it shows a state."""
        assert later(lambda: f"is-{state}" in self.box.get_attribute("class").split()), (
            state, self.box.get_attribute("class"), self.message())

    def step(self):
        """The step in its head."""
        return int(self.box.locator(".step").inner_text().replace(",", ""))

    def message(self):
        """What it says."""
        return self.box.locator(".message").inner_text()

    def says(self, text):
        """Wait until it says this."""
        assert later(lambda: text in self.message()), self.message()

    def row(self, name):
        """All there is of a tunable."""
        return self.box.locator(f'.row[data-name="{name}"]')

    def field(self, name):
        """Box, list or switch of a tunable."""
        return self.row(name).locator("input:not([type=range]), select")

    def slider(self, name):
        """The slider of a tunable."""
        return self.row(name).locator("input[type=range]")

    def enter(self, name, text):
        """Type a value, and press Enter."""
        self.field(name).fill(text)
        self.field(name).press("Enter")

    def tab(self, name):
        """Open a tab by a click; what it shows."""
        tab = self.box.get_by_role("tab", name=name)
        tab.click()
        assert later(lambda: tab.get_attribute("aria-selected") == "true")
        return self.box.get_by_role("tabpanel")

    def hook(self, name):
        """The row of a hook, in the tab Hooks."""
        return self.tab("Hooks").locator(f'tr[data-name="{name}"]')

    def choose(self):
        """Open the list of states to go back to, and wait for the first of them."""
        self.click("Rewind")
        chooser = self.box.get_by_role("region", name="Rewind")
        assert later(lambda: chooser.locator("option").count() > 0)
        return chooser

    def last(self, curve="train/loss"):
        """The last step of a curve; -1 before it is drawn."""
        return self.box.evaluate(
            "(box, curve) => Math.max(-1, ...(box.querySelector('.chart')?.data"
            "?.find(each => each.name === curve)?.x ?? []))", curve)


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
        self.lab.cell(cell).locator(DRAWN).first.wait_for()
        assert later(lambda: self.step > 20)
        return self

    def run(self, cell):
        """Run a cell to its end; what it has printed."""
        self.lab.run_cell(cell)
        self.lab.wait_cell(cell)
        return self.lab.output_text(cell)

    def panel(self, cell=1):
        """The panel that a cell shows."""
        return Seen(self.lab.cell(cell).locator(".tnb").first)

    def stop(self, cell=1):
        """End the run by the panel, and wait for the cell."""
        self.panel(cell).stop()
        self.lab.wait_cell(cell)
