"""Going back by the panel of a running cell, and a script that makes the steered run again."""

import sys
from pathlib import Path

import pytest
import warm
from jupyter_server import LIMIT
from live_page import TURNS, Live, later, settle

pytestmark = pytest.mark.browser

MODULE = '''
import json, os, time, torch
from pathlib import Path
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import EMAHook, Hook, SnapshotHook, Trainer, Tunable

class Noise(Hook):
    "Noise on the pixels."
    amount = Tunable(0.1, min=0, max=1, doc="standard deviation")
    def before_batch(self, trainer):
        pixels, labels = trainer.batch
        trainer.batch = pixels + self.amount * torch.randn_like(pixels), labels

class Witness(Hook):
    name = "witness"
    def __init__(self, pause):
        self.pause = pause
    def after_step(self, trainer):
        told = {"step": trainer.step_state.optimizer_step, "rate": trainer.rates()[0],
                "branch": trainer.step_state.branch,
                "noise": trainer.get_hook(Noise).enabled,
                "journal": [[e.kind, e.name, e.new, e.source] for e in trainer.journal]}
        Path("told.new").write_text(json.dumps(told))
        os.replace("told.new", "told.json")
        time.sleep(self.pause)

def average(trainer):
    return trainer.get_hook(EMAHook).ema_model.state_dict()

def make(*hooks, pause=0.0):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    return Trainer(model, train_dl=DataLoader(data, 32, shuffle=True),
                   valid_dl=DataLoader(data, 600), epochs=10_000, seed=3,
                   loss_fn=nn.CrossEntropyLoss(),
                   optim=torch.optim.AdamW(model.parameters(), lr=1e-3), device="cpu", ema=0.9,
                   hooks=[Noise(), Witness(pause), SnapshotHook(every_steps=20), *hooks])
'''
SETUP = TURNS + """
import steered
after_step = steered.Witness.after_step
def told_step(hook, trainer):
    after_step(hook, trainer)
    if turns[1] != "running":
        turn("running")
steered.Witness.after_step = told_step
trainer = steered.make(pause=0.01)
"""
KEEP = '''from steered import average
trainer.journal.save("journal.jsonl")
both = {**trainer.model.state_dict(),
        **{f"ema.{name}": value for name, value in average(trainer).items()}}
torch.save(both, "steered.pt")
print("kept")'''
REPLAY = '''
import sys, torch
from steered import average, make
from trainer_nb import ReplayHook
trainer = make(*([ReplayHook("journal.jsonl")] if "replay" in sys.argv else []))
trainer.progress_hook.enabled = False
steps = int(sys.argv[1])
trainer.fit() if "replay" in sys.argv else trainer.step(steps)
steered = torch.load("steered.pt", weights_only=True)
mine = {**trainer.model.state_dict(),
        **{f"ema.{name}": value for name, value in average(trainer).items()}}
equal = (list(mine) == list(steered)
         and all(torch.equal(steered[name], value) for name, value in mine.items()))
print(trainer.step_state.optimizer_step, equal)
'''


@pytest.fixture
def server(jupyterlab):
    """A folder of JupyterLab with the module."""
    Path(jupyterlab.folder, "steered.py").write_text(MODULE)
    return jupyterlab


@pytest.fixture
def live(server, browser):
    """The run in a notebook, in its first steps."""
    with server.new_page(browser, height=1400) as page:
        yield Live(page, server, ["print(trainer.fit().status)", KEEP], setup=SETUP).start()


def script(server, *words):
    """What a plain script prints, in a process of its own."""
    command = [sys.executable, "-c", REPLAY, *words]
    return warm.run(command, cwd=server.folder, capture_output=True, text=True, timeout=LIMIT,
                    check=True).stdout.split()


def test_a_run_steered_by_hand_is_made_again_by_a_script(live, server):
    """Rate, hook off, rewind, another rate, stop: each by a real click;
    the journal's replay gives the same weights."""
    panel = live.panel()
    panel.enter("lr", "2e-3")
    assert later(lambda: live.told["rate"] == 2e-3) and live.goes_on()
    panel.hook("noise").get_by_role("switch").click()
    assert later(lambda: live.told["noise"] is False) and live.goes_on()
    order = panel.hook("witness").get_by_label("Order of witness")
    order.fill("-5")
    order.press("Enter")
    panel.enter("gradient_accumulation_steps", "2")
    assert live.goes_on(40)
    chooser = panel.choose()
    chooser.locator("select").select_option(index=3)
    chooser.get_by_role("button", name="Rewind here").click()
    assert later(lambda: live.told["branch"] == 1)
    chooser.wait_for(state="hidden")
    of_ema = lambda on: [name for _, name, new, _ in live.told["journal"]
                         if name.startswith("ema") and new is on]
    panel.hook("ema").get_by_role("switch").click()
    assert later(lambda: of_ema(False))
    panel.enter("ema.decay", "0.8")
    panel.hook("ema").get_by_role("switch").click()
    assert later(lambda: of_ema(True))
    assert live.goes_on()
    panel.enter("lr", "5e-4")
    assert later(lambda: live.told["rate"] == 5e-4) and live.goes_on()
    live.stop()
    sources = {tuple(entry[:2]) for entry in live.told["journal"] if entry[3] == "widget"}
    assert {("tune", "lr"), ("rewind", "step"), ("tune", "gradient_accumulation_steps")} <= sources
    assert any(kind == "hook" or name == "noise.enabled" for kind, name in sources)
    steps = live.step
    live.lab.run_cell(2)
    live.lab.wait_text(2, "kept")
    assert script(server, str(steps), "replay") == [str(steps), "True"]
    assert script(server, str(steps)) == [str(steps), "False"]  # without the journal: another run
    assert live.lab.problems == []


def test_a_click_on_a_curve_goes_back_there_and_a_zoom_stays(live):
    """The chooser opens at the state before the place, Escape closes it; a zoom outlives the
    points that come; after a reload the branch is there."""
    page, panel = live.page, live.panel()
    assert later(lambda: live.step > 150)
    panel.click("Pause")
    panel.is_in("paused")
    step, plot = live.step, panel.box.locator(".js-plotly-plot .nsewdrag").first
    chooser = panel.box.get_by_role("region", name="Rewind")
    last = "box => Math.max(0, ...box.querySelector('.chart').data.flatMap(each => [...each.x]))"
    assert later(lambda: panel.box.evaluate(last) >= step)  # a click means what is drawn
    box = plot.bounding_box()

    def click():
        plot.hover(position={"x": box["width"] * 0.5, "y": box["height"] * 0.5})
        page.mouse.down()
        settle(page, 600)  # the chart is not drawn while a button is held
        page.mouse.up()
        chooser.locator("option").first.wait_for(state="attached")

    click()
    step_of = lambda text: int(text.split()[1].replace(",", ""))
    numbers = [step_of(text) for text in chooser.locator("option").all_inner_texts()]
    chosen = step_of(chooser.locator("option:checked").inner_text())
    assert {*range(20, step, 20)[-20:]} <= {*numbers, step}  # of very many some are left out
    assert 0.3 * step < chosen < 0.55 * step
    page.keyboard.press("Escape")
    chooser.wait_for(state="hidden")
    assert live.freezes() and live.told["branch"] == 0
    click()
    assert step_of(chooser.locator("option:checked").inner_text()) == chosen
    chooser.get_by_role("button", name="Rewind here").click()
    panel.says(f"step {chosen}")
    live.lab.save()
    live.lab.reload()
    drawn = """box => box.querySelector('.chart')?.data?.map(each => each.name) ?? []"""
    assert later(lambda: "train/loss\n0" in live.panel().box.evaluate(drawn))
    panel = live.panel()
    panel.click("Resume")
    assert later(lambda: live.told["branch"] == 1) and live.goes_on()

    ends = "box => box.querySelector('.chart')._fullLayout.xaxis.range.map(Math.round)"
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.down()
    for part in range(1, 7):  # as slowly as a hand, while the run goes on
        page.mouse.move(box["x"] + 200 + 40 * part, box["y"] + 60)
        step = live.step
        assert later(lambda step=step: live.step > step + 5)
    page.mouse.up()
    assert later(lambda: panel.box.evaluate(ends)[0] > 0)
    settle(page)
    zoomed = panel.box.evaluate(ends)
    step = panel.step()
    assert later(lambda: panel.step() > max(step, zoomed[1]) + 20)  # drawn several times
    assert panel.box.evaluate(ends) == zoomed
    panel.stop()
    assert live.ends()
    assert live.lab.problems == []


def test_a_finished_run_trains_on_by_a_click(jupyterlab, browser):
    """The line comes when the run is finished; a wrong number is refused in words."""
    with jupyterlab.new_page(browser, height=1400) as lab:
        run = Live(lab, jupyterlab, ["noise.enabled = False\ntrainer.fit(epochs=2).status"])
        run.run(1)
        panel = run.panel()
        panel.is_in("finished")
        field = panel.box.get_by_label("How many epochs")
        field.fill("none")
        panel.click("Train more")
        panel.says("refused")
        assert run.step == 32
        field.fill("3")
        panel.click("Train more")
        assert later(lambda: run.step == 80)
        panel.is_in("finished")
        assert later(lambda: panel.step() == 80) and field.is_visible() and lab.problems == []
