"""Several runs in JupyterLab: those of a folder, of which one grows, and those that have ended in
this kernel."""

import html
import json
from pathlib import Path

import pytest
from live_page import Live, later, picture
from written_runs import WrittenRun, trained

pytestmark = pytest.mark.browser

SETUP = """
import torch
from trainer_nb import Trainer, attach
torch.set_num_threads(1)
x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)),
                                   batch_size=16)
def trained(lr):
    model = torch.nn.Linear(4, 1)
    return Trainer(model, train_dl=data, valid_dl=data, loss_fn=torch.nn.MSELoss(), epochs=4,
                   optim=torch.optim.SGD(model.parameters(), lr=lr), device="cpu", seed=0)
"""
SHOW = "runs = attach('runs/*')\nruns.names['run1'] = '<b>first</b> try'\nruns"
ENDED = "first = trained(0.01)\nfirst.fit().status"
SECOND = ("second = trained(0.1)\nsecond.plots.add_run('runs/run2', name='of a folder')\n"
          "second.fit().status")


@pytest.fixture
def live(jupyterlab, browser):
    """A notebook beside a folder with two runs that have ended, and one that goes on."""
    folder = Path(jupyterlab.folder, "runs")
    for number in (1, 2):
        trained(folder / f"run{number}", steps=8 * (3 + number)).close()
    WrittenRun(folder)
    with jupyterlab.new_page(browser, height=1300) as lab:
        yield Live(lab, jupyterlab, [SHOW, ENDED, SECOND, "second.plots.remove_run('of a folder')"],
                   setup=SETUP)


def ends(panel):
    """Name and last step of each line in the large chart; of one loss by each run."""
    return panel.box.evaluate(
        "box => Object.fromEntries((box.querySelector('.chart')?.data ?? [])"
        ".filter(each => each.yaxis === 'y').map(each => [each.name, Math.max(...each.x)]))")


def grow(path, last):
    """Add records up to a step, as a run does."""
    line = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    with open(path / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps({**line, "step": step}) + "\n"
                        for step in range(line["step"] + 1, last + 1))


def test_runs_of_a_folder_and_of_this_kernel(live, jupyterlab):
    """All in one plot, names as text; a name in the legend hides a run, and what a run adds comes
    by itself. Of a kernel's own runs an earlier one is shown, called by a name that the other
    panel has, too, and one of a folder was added by code."""
    live.run(1)
    panel = live.panel(1)
    first = "<b>first</b> try"
    lines = {"exp1": 24, html.escape(first): 32, "run2": 40}  # plotly reads names as HTML
    assert later(lambda: ends(panel) == lines), ends(panel)
    table = panel.box.locator("table.runs")
    assert first in table.inner_text() and table.locator("b").count() == 0
    picture(live.page, "runs")
    drag = panel.box.locator(".chart .nsewdrag").first
    at = drag.bounding_box()
    said = panel.box.locator(".chart .hoverlayer .legendtext")
    def heard():
        for each in (0.2, 0.25):  # the mouse moves
            live.page.mouse.move(at["x"] + each * at["width"], at["y"] + at["height"] / 2)
        return [each.rpartition(" : ")[0] for each in said.all_text_contents()]
    assert later(lambda: heard() == ["exp1", first, "run2"]), heard()

    legend = panel.box.locator(".runs-legend button")
    for there in (2, 3):
        legend.filter(has_text="run2").click()
        assert later(lambda: len(ends(panel)) == there and ("run2" in ends(panel)) == (there == 3))
    for name, last in (("run2", 1500), ("exp1", 2000)):
        grow(Path(jupyterlab.folder, "runs", name), last)
    assert later(lambda: [ends(panel)[name] for name in ("run2", "exp1")] == [1500, 2000]), ends(
        panel)

    live.run(2)
    live.run(3)
    panel = live.panel(3)
    panel.is_in("finished")
    assert later(lambda: "of a folder" in ends(panel)), ends(panel)
    rows = panel.tab("Runs").locator("tbody tr")
    assert later(lambda: rows.count() == 3)
    row = rows.filter(has_text="finished").filter(has_not_text="this run").filter(
        has_not_text="of a folder")
    row.get_by_role("switch").click()
    earlier = row.locator("button.run-name").inner_text()
    assert later(lambda: [each for each in ends(panel) if each.startswith(earlier)]), ends(panel)
    row.locator("button.run-name").dblclick()
    box = panel.box.get_by_label("Name of")
    box.fill("low <b>rate</b>")
    box.press("Enter")
    assert later(lambda: any("low" in each for each in ends(panel))), ends(panel)
    assert later(lambda: "low <b>rate</b>" in panel.box.locator(".runs-legend").inner_text())
    heads = panel.box.locator("table.runs thead th").all_inner_texts()
    values = [[each.inner_text() for each in line.locator("th, td").all()]
              for line in (rows.filter(has_text="this run"), rows.filter(has_text="low"))]
    assert [each[heads.index("lr")] for each in values] == ["0.1", "0.01"]
    picture(live.page, "runs-of-a-kernel")
    add = panel.box.get_by_label("Folder of a run")
    add.fill("nowhere/*")
    add.press("Enter")
    assert later(lambda: "nowhere" in panel.box.locator(".pane.runs .wrong").inner_text())
    live.run(4)
    assert later(lambda: "of a folder" not in ends(panel) and rows.count() == 2)
    assert live.lab.problems == []
