"""Make the pictures of docs/images: runs on the digits in JupyterLab, in Chromium, steered by real
clicks.

    .venv/bin/python scripts/pictures.py            all of them
    .venv/bin/python scripts/pictures.py steer      those of the panel's parts only (or quick_start,
                                                    rates, views, steering)
"""

import io
import re
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, ImageDraw

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from jupyter_server import JupyterServer, open_browser  # noqa: E402
from live_page import DRAWN, Seen  # noqa: E402

IMAGES = ROOT / "docs" / "images"
SETUP = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from sklearn.datasets import load_digits
from trainer_nb import Hook, Trainer, Tunable

torch.set_num_threads(1)
torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels))
train, valid = random_split(data, [1437, 360])

class Blur(Hook):
    "Adds noise to the pictures."
    amount = Tunable(0.1, min=0, max=1, doc="standard deviation of the noise")
    kind = Tunable("normal", choices=("normal", "uniform"))
    fails_at = None
    def before_batch(self, trainer):
        x, y = trainer.batch
        trainer.batch = x + self.amount * torch.randn_like(x), y
        time.sleep(0.004)
    def after_pred(self, trainer):
        if trainer.step_state.optimizer_step == self.fails_at:
            trainer.pred.reshape(32, -1, 3)

blur = Blur()
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
trainer = Trainer(model, train_dl=DataLoader(train, 32, shuffle=True),
                  valid_dl=DataLoader(valid, 256), seed=7,
                  loss_fn=nn.CrossEntropyLoss(),
                  metrics={"accuracy": lambda pred, y: (pred.argmax(1) == y).float().mean()},
                  optim=torch.optim.AdamW(model.parameters(), lr=2e-3), epochs=60, grad_clip=1.0,
                  hooks=[blur],
                  sched=lambda optim: torch.optim.lr_scheduler.CosineAnnealingLR(optim, 60 * 45))
"""


def take(lab, name, cell):
    """A picture of a cell's panel."""
    lab.page.mouse.move(0, 0)
    lab.page.wait_for_timeout(1200)
    lab.cell(cell).locator(".tnb").first.screenshot(path=str(IMAGES / f"{name}.png"))
    print(f"docs/images/{name}.png")


@contextmanager
def page(folder, width=1300, height=1500):
    """A page of JupyterLab."""
    with (JupyterServer(folder) as server, open_browser() as browser,
          server.new_page(browser, width=width, height=height) as lab):
        yield server, lab


def shown(lab, cell, first=0):
    """Run the cells up to this one to their ends, start it, and wait for its curves."""
    lab.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    for each in range(first, cell):
        lab.run_cell(each)
        lab.wait_cell(each)
    lab.run_cell(cell)
    lab.cell(cell).locator(DRAWN).first.wait_for()
    return Seen(lab.cell(cell).locator(".tnb").first)


def quick_start():
    """The quick start: running, paused and finished."""
    with tempfile.TemporaryDirectory() as folder:
        text = (ROOT / "nbs/guide/tutorials/quick_start.ipynb").read_text(encoding="utf-8")
        longer = text.replace("epochs=10", "epochs=100")  # time for a picture of the running run
        Path(folder, "quick_start.ipynb").write_text(longer, encoding="utf-8")
        with page(folder) as (server, lab):
            lab.open("quick_start.ipynb")
            lab.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
            cells = [cell.source for cell in server.read_notebook("quick_start.ipynb").cells]
            fit = next(number for number, source in enumerate(cells)
                       if "trainer.fit()" in source and "\n" not in source)
            lab.run_all()
            lab.page.locator(DRAWN).first.wait_for()
            panel = Seen(lab.page.locator(".tnb").first)
            lab.page.wait_for_timeout(4000)
            take(lab, "running", fit)
            panel.click("Pause")
            panel.is_in("paused")
            take(lab, "paused", fit)
            panel.click("Resume")
            lab.wait_cell("all", seconds=120)
            take(lab, "finished", fit)


def type_into(place, text):
    """Type a text and press Enter."""
    place.fill(text)
    place.press("Enter")


def steer():
    """The parts of the panel, in a run that is steered."""
    fail = "blur.fails_at = trainer.step_state.optimizer_step + 10"
    with tempfile.TemporaryDirectory() as folder, page(folder) as (server, lab):
        server.write_notebook("run.ipynb", [SETUP, "trainer.fit()", fail, "trainer.controls"])
        lab.open("run.ipynb")
        panel = shown(lab, 1)
        lab.page.wait_for_timeout(5000)
        panel.enter("weight_decay", "0.05")
        lab.page.wait_for_timeout(1500)
        order = panel.hook("blur").get_by_label("Order of blur")
        type_into(order, "200")
        lab.page.wait_for_timeout(1500)
        panel.enter("lr", "1e-3")
        lab.page.wait_for_timeout(1000)
        panel.enter("grad_clip", "-1")
        take(lab, "hooks", 1)
        type_into(panel.tab("Journal").get_by_label("Note for the journal"), "The plateau is over")
        take(lab, "journal", 1)
        panel.enter("grad_clip", "1")
        panel.click("Pause")
        panel.is_in("paused")
        pane = panel.tab("Inspect")
        panel.click("Step")
        type_into(pane.get_by_label("Pause when", exact=True), "valid/accuracy > 0.98")
        take(lab, "inspect", 1)
        panel.tab("Hooks")
        panel.click("Detach")
        lab.wait_cell(1)
        lab.run_cell(2)  # it fails ten steps later
        lab.wait_cell(2)
        panel.click("Resume")
        panel.is_in("error")
        panel.says("Failed")
        take(lab, "error", 1)
        lab.run_cell(3)
        lab.wait_cell(3)
        take(lab, "controls", 3)


RATES = """
model = nn.Sequential()
model.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 64),
                           nn.ReLU())
model.head = nn.Linear(64, 10)
trainer = Trainer(model, train_dl=DataLoader(train, 32, shuffle=True),
                  valid_dl=DataLoader(valid, 256), seed=7, ema=0.99,
                  loss_fn=nn.CrossEntropyLoss(),
                  metrics={"accuracy": lambda pred, y: (pred.argmax(1) == y).float().mean()},
                  optim=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3), epochs=40,
                  sched="one_cycle",
                  hooks=[LayerGroupsHook(["body", "head"]), SnapshotHook(every_steps=50), blur])
"""


def rates():
    """Schedule, layer groups, and the choice of a state to rewind to."""
    imports = "from trainer_nb import LayerGroupsHook, SnapshotHook"
    with tempfile.TemporaryDirectory() as folder, page(folder, height=1900) as (server, lab):
        server.write_notebook("run.ipynb", [SETUP, imports + RATES, "trainer.fit()"])
        lab.open("run.ipynb")
        panel = shown(lab, 2)
        lab.page.wait_for_timeout(3000)
        panel.field("layer_groups.body.frozen").click()
        lab.page.wait_for_timeout(1500)
        panel.enter("layer_groups.head.lr_scale", "2")
        panel.enter("lr_scale", "0.5")
        lab.page.wait_for_timeout(2000)
        panel.click("Pause")
        panel.is_in("paused")
        panel.tab("LR").get_by_label("Learning rate so far and to come").wait_for()
        panel.choose()
        take(lab, "schedule", 2)


VIEWS = """
from trainer_nb import AlertsHook, LayerStatsHook, SamplesHook
classes = [str(digit) for digit in range(10)]
shaped = lambda data: [(x.view(1, 8, 8), y) for x, y in data]
train, valid = shaped(train), shaped(valid)
def trained(lr, epochs, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
                          nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    return Trainer(model, train_dl=DataLoader(train, 32, shuffle=True),
                   valid_dl=DataLoader(valid, 120), loss_fn=nn.CrossEntropyLoss(), epochs=epochs,
                   metrics={"accuracy": lambda pred, y: (pred.argmax(1) == y).float().mean()},
                   optim=torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), seed=7, **more)
for lr in (0.01, 0.05):
    trained(lr, 8, grad_clip=1.0 if lr == 0.05 else None).fit()
trainer = trained(0.03, 400, hooks=[LayerStatsHook(every_steps=5), SamplesHook(classes=classes),
                                    AlertsHook(data_share=None), blur])
"""


def views():
    """The tabs Runs, Table, Layers, Data and Alerts, in a run with two earlier ones."""
    with tempfile.TemporaryDirectory() as folder, page(folder, height=2100) as (server, lab):
        server.write_notebook("run.ipynb", [SETUP, VIEWS, "trainer.fit()"])
        lab.open("run.ipynb")
        panel = shown(lab, 2)
        panel.box.get_by_role("tab", name=re.compile(r"Table ([6-9]|\d\d)")).wait_for()
        pane = panel.tab("Runs")
        pane.get_by_role("button", name="Show all", exact=True).click()
        for row, name in ((1, "clipped"), (2, "low rate")):  # the newest first
            pane.locator("tbody tr").nth(row).locator("button.run-name").dblclick()
            type_into(pane.get_by_label("Name of"), name)
        take(lab, "runs", 2)
        for name in ("Table", "Layers", "Data"):
            pane = panel.tab(name)
            if name == "Layers":
                pane.locator(".field").click()  # the numbers of a layer
                pane.locator(".bars").wait_for()
            take(lab, name.lower(), 2)
        panel.enter("lr", "0.25")
        panel.box.get_by_role("tab", name=re.compile("Alerts [1-9]")).click(timeout=120_000)
        take(lab, "alerts", 2)
        panel.stop()
        lab.wait_cell(2)


STEERING = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
trainer = Trainer(model, train_dl=DataLoader(train, 32, shuffle=True),
                  valid_dl=DataLoader(valid, 256), seed=7, loss_fn=nn.CrossEntropyLoss(),
                  metrics={"accuracy": lambda pred, y: (pred.argmax(1) == y).float().mean()},
                  optim=torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9), epochs=90,
                  hooks=[blur])
"""
FRAME_WIDTH = 960  # pixels of the animated picture


class Film:
    """Frames of the upper part of a panel, each with the milliseconds for which it is shown."""

    def __init__(self, lab, panel):
        self.lab, self.frames, self.shown = lab, [], []
        box, curves = panel.bounding_box(), panel.locator(".chart").bounding_box()
        self.clip = {**box, "height": curves["y"] + curves["height"] - box["y"]}

    def take(self, milliseconds, clicked=None):
        """One more frame; a ring around the middle of what is about to be clicked."""
        picture = Image.open(io.BytesIO(self.lab.page.screenshot(clip=self.clip))).convert("RGB")
        if clicked is not None:
            box = clicked.bounding_box()
            x = box["x"] + box["width"] / 2 - self.clip["x"]
            y = box["y"] + box["height"] / 2 - self.clip["y"]
            ring = (x - 26, y - 26, x + 26, y + 26)
            ImageDraw.Draw(picture).ellipse(ring, outline=(214, 51, 108), width=4)
        height = round(picture.height * FRAME_WIDTH / picture.width)
        self.frames.append(picture.resize((FRAME_WIDTH, height), Image.Resampling.LANCZOS))
        self.shown.append(milliseconds)

    def take_running(self, number):
        """Frames of a run that goes on."""
        for _ in range(number):
            self.lab.page.wait_for_timeout(500)
            self.take(350)

    def save(self, name):
        """The frames as a picture that starts again at its end."""
        path = IMAGES / f"{name}.webp"
        self.frames[0].save(path, save_all=True, append_images=self.frames[1:], loop=0,
                            duration=self.shown, quality=60, method=6)
        print(f"docs/images/{name}.webp, {len(self.frames)} frames, {path.stat().st_size} bytes")


def steering():
    """A run that is paused, gets another rate, and goes on: an animated picture."""
    with tempfile.TemporaryDirectory() as folder, page(folder) as (server, lab):
        server.write_notebook("run.ipynb", [SETUP + STEERING, "trainer.fit()"])
        lab.open("run.ipynb")
        panel = shown(lab, 1)
        lab.page.wait_for_timeout(1500)
        panel.box.scroll_into_view_if_needed()
        film = Film(lab, panel.box)
        film.take_running(8)
        change_rate(lab, panel, film)
        film.take_running(14)
        film.take(2500)
        panel.stop()
        lab.wait_cell(1)
        film.save("steering")


def change_rate(lab, panel, film):
    """Pause, a tenth of the rate, Resume."""
    film.take(800, panel.button("Pause"))
    panel.click("Pause")
    panel.is_in("paused")
    lab.page.wait_for_timeout(800)
    film.take(1200)
    box = panel.field("lr")
    film.take(600, box)
    for typed in ("0", "0.0", "0.04"):
        box.fill(typed)
        film.take(300)
    box.press("Enter")
    lab.page.wait_for_timeout(800)
    film.take(1500)
    film.take(800, panel.button("Resume"))
    panel.click("Resume")


def main():
    """Take the pictures that are asked for."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for make in (quick_start, steer, rates, views, steering):
        if len(sys.argv) == 1 or make.__name__ in sys.argv[1:]:
            make()


if __name__ == "__main__":
    main()
