"""What the live panel costs and how quickly it answers, measured in JupyterLab in Chromium.

    python -m benchmarks.panel latency     click to effect, for 2000 and for 5 steps a second
    python -m benchmarks.panel cpu         CPU time of the loop's thread with the panel open,
                                           against without, with a control (--steps 20000 a call,
                                           --blocks 7)
    python -m benchmarks.panel memory      kernel and page over ten minutes, earlier runs beside
                                           the run's curves (--minutes 10 --runs 10)

Numbers of a busy machine mean little: let nothing else run.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from jupyter_server import JupyterServer, open_browser

SETUP = """
import json, time, torch
from pathlib import Path
from trainer_nb import Trainer
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(4096, 64)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1].sin()), batch_size=32)
class Batches:  # no loader in the way: the step itself is what is timed
    def __init__(self, pause=0.0): self.batches, self.pause = list(data), pause
    def __len__(self): return len(self.batches)
    def __iter__(self):
        for batch in self.batches:
            if self.pause: time.sleep(self.pause)
            yield batch
def make(width, pause=0.0, **settings):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(),
                                torch.nn.Linear(width, 1))
    return Trainer(model, train_dl=Batches(pause), loss_fn=torch.nn.MSELoss(), device="cpu",
                   optim=torch.optim.SGD(model.parameters(), lr=1e-3),
                   **{"max_steps": 10**9, **settings})
"""
LATENCY = """
class Witness:
    order = 99
    steps, pauses = [], []
    def after_step(self, trainer): self.steps.append(time.time())
    def on_pause(self, trainer):
        self.pauses.append(time.time())
        Path("pauses.txt").write_text(str(len(self.pauses)))
    def on_resume(self, trainer): Path("steps.txt").write_text(str(len(self.steps)))
witness = Witness()
trainer = make({width}, {pause}, hooks=[witness])
"""
TELL = "print(json.dumps([witness.steps, witness.pauses]))"
CPU = """
from contextlib import nullcontext
trainer = make({width})
trainer.progress_hook.enabled = False
trainer.dashboard
"""
COMPARE = """
screen, feed = trainer.panels.parts.screen, trainer.feed
panels, pages = list(screen.panels), list(feed.listeners)
looks, look = [], feed._look
def timed(*given):
    began = time.thread_time()
    look(*given)
    looks.append(1000 * (time.thread_time() - began))
feed._look = timed
def spent(shown, steps):
    screen.panels[:] = panels if shown else []
    feed.listeners = pages if shown else []
    cpu, wall = time.thread_time(), time.perf_counter()
    with screen.live() if shown else nullcontext():
        trainer.step(steps)
    return [(time.thread_time() - cpu) / steps, (time.perf_counter() - wall) / steps]
spent(True, 20_000)  # recorded points
order, blocks = (True, False, False), []
for _ in range({blocks}):  # forwards and backwards: what drifts meets each of the three alike
    there = [spent(shown, {steps}) for shown in order]
    back = [spent(shown, {steps}) for shown in reversed(order)][::-1]
    blocks.append([[sum(pair) / 2 for pair in zip(*both)] for both in zip(there, back)])
spent(True, 100)
print(json.dumps([blocks, sorted(looks)]))
"""
EARLIER = """
for number in range({runs}):
    make(64 + 8 * number, max_steps=20_000).fit()
trainer = make(256)
import os
print(os.getpid())
"""


@contextmanager
def notebook(cells):
    """A page with the cells, the first one run."""
    with tempfile.TemporaryDirectory() as folder:
        with JupyterServer(Path(folder, "lab")) as server, open_browser() as browser:
            server.write_notebook("run.ipynb", [SETUP, *cells])
            with server.new_page(browser, width=1300, height=1300) as lab:
                lab.open("run.ipynb")
                lab.run_cell(0)
                lab.wait_cell(0)
                yield lab


def answer(lab, index):
    """What a cell printed, as JSON."""
    lab.run_cell(index)
    lab.wait_cell(index, seconds=3600)
    return json.loads(lab.output_text(index))


def click_times(lab, clicks):
    """Click Pause and Resume in turn; when each Pause was pressed, by the page's clock."""
    page = lab.page
    page.evaluate("""() => {
        window.pressed = [];
        document.addEventListener('click', event => {
            const button = event.target.closest('[aria-label=Controls] .main');
            if (button && button.innerText.includes('Pause'))
                window.pressed.push((performance.timeOrigin + event.timeStamp) / 1000);
        }, true);
    }""")
    main = page.locator("[aria-label=Controls] .main")
    for number in range(clicks):
        main.get_by_text("Pause").click()
        page.wait_for_selector(".tnb.is-paused")
        time.sleep(0.4 + 0.037 * (number % 7))
        main.get_by_text("Resume").click()
        page.wait_for_selector(".tnb.is-running")
        time.sleep(0.7 + 0.041 * (number % 11))
    return page.evaluate("() => window.pressed")


def stop(page):
    """End the run: the button asks once."""
    controls = page.locator(".tnb").first.get_by_label("Controls")
    controls.get_by_role("button", name="Stop").click()
    time.sleep(0.4)  # later than the second half of a double click
    controls.get_by_role("button", name="Really stop?").click()


def latency(clicks=20):
    """Milliseconds from the click to the pause, beyond the end of the current batch."""
    for label, width, pause in (("2000 steps/s", 256, 0.0), ("5 steps/s", 256, 0.2)):
        with notebook([LATENCY.format(width=width, pause=pause), "trainer.fit()", TELL]) as lab:
            lab.run_cell(1)
            lab.wait_cell(1)
            lab.run_cell(2)
            lab.page.wait_for_selector(".tnb .js-plotly-plot .main-svg", timeout=60_000)
            time.sleep(3)
            pressed = click_times(lab, clicks)
            stop(lab.page)
            lab.wait_cell(2)
            steps, pauses = answer(lab, 3)
        pace = (len(steps) - 1) / sum(b - a for a, b in zip(steps, steps[1:]) if b - a < 0.35)
        whole = [1000 * (held - at) for at, held in zip(pressed, pauses)]
        beyond = [1000 * (held - next(s for s in steps if s >= min(at, held - 1e-4)))
                  for at, held in zip(pressed, pauses)]
        print(f"{label}: really {pace:,.0f} steps/s, {len(beyond)} clicks; click to pause median "
              f"{statistics.median(whole):.1f} ms, max {max(whole):.1f} ms; beyond the batch in "
              f"hand median "
              f"{statistics.median(beyond):.1f} ms, max {max(beyond):.1f} ms")  # fmt: skip


def cpu(blocks=7, steps=20_000):
    """Ratio of the loop thread's CPU time, and of the wall clock, with a control for the noise.

    One trainer does all: two trainers alike differed by as much as two percent. Without the
    panel nothing is drawn or timed, and no messages are handled."""
    with notebook([CPU.format(width=256), COMPARE.format(blocks=blocks, steps=steps)]) as lab:
        lab.run_cell(1)
        lab.wait_cell(1)
        lab.page.wait_for_selector(".tnb .js-plotly-plot .main-svg", timeout=60_000)
        found, looks = answer(lab, 2)
    print(f"an update in the loop: median {statistics.median(looks):.2f} ms of {len(looks)}, "
          f"the lowest tenth up to {looks[len(looks) // 10]:.2f}, the highest from "
          f"{looks[-len(looks) // 10]:.2f}")
    for kind, index in (("CPU of the loop's thread", 0), ("wall clock", 1)):
        per_step = statistics.median(plain[index] for _, plain, _ in found)
        print(f"{kind}: {1e6 * per_step:.0f} us a step without the panel; medians of {len(found)} "
              f"blocks, {steps:,} steps each, forwards and backwards")  # fmt: skip
        for name, place in (("the panel", 0), ("a second time without it", 2)):
            ratios = [block[place][index] / block[1][index] for block in found]
            print(f"  {name}: {statistics.median(ratios):.3f} x "
                  f"({min(ratios):.3f} to {max(ratios):.3f})")  # fmt: skip


def compare_runs(lab, runs):
    """Show the curves of all earlier runs beside the run's own, by clicks in the tab Runs."""
    panel = lab.cell(2).locator(".tnb").first
    panel.get_by_role("tab", name="Runs").click()
    panel.get_by_role("button", name="Show all").click()
    while panel.locator(".runs-legend button").count() < runs:
        time.sleep(0.2)


def memory(minutes=10.0, runs=10):
    """Kernel's resident memory and the page's script heap, every half minute, beside other runs."""
    cells = [EARLIER.format(runs=runs), "trainer.fit()"]
    with notebook(cells) as lab:
        import psutil

        lab.run_cell(1)
        lab.wait_cell(1, seconds=600)
        lab.run_cell(2)
        lab.page.wait_for_selector(".tnb .js-plotly-plot .main-svg", timeout=60_000)
        compare_runs(lab, runs)
        session = lab.page.context.new_cdp_session(lab.page)
        session.send("Performance.enable")
        kernel = psutil.Process(int(lab.output_text(1).split()[-1]))
        began = time.monotonic()
        while (passed := time.monotonic() - began) < 60 * minutes:
            time.sleep(30)
            session.send("HeapProfiler.collectGarbage")
            metrics = {m["name"]: m["value"]
                       for m in session.send("Performance.getMetrics")["metrics"]}
            step = lab.cell(2).locator(".tnb .step").first.inner_text()
            print(f"{(passed + 30) / 60:5.1f} min  step {step:>10}"
                  f"  kernel {kernel.memory_info().rss / 2**20:7.1f} MiB"
                  f"  page {metrics['JSHeapUsedSize'] / 2**20:6.1f} MiB"
                  f"  {metrics['Nodes']:,.0f} nodes", flush=True)  # fmt: skip
        stop(lab.page)
        lab.wait_cell(2)


def main():
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("latency", "cpu", "memory"))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20_000)
    wanted = parser.parse_args()
    if wanted.what == "memory":
        memory(wanted.minutes, wanted.runs)
    elif wanted.what == "cpu":
        cpu(wanted.blocks, wanted.steps)
    else:
        latency()


if __name__ == "__main__":
    main()
