"""Several runs in JupyterLab: what the page draws, real clicks on the names, and a run that
grows."""

import json
import os
from pathlib import Path

import pytest
from live_page import PANEL, Live, later, settle
from written_runs import WrittenRun, trained

pytestmark = pytest.mark.browser

SETUP = "from trainer_nb import attach"
SHOW = "runs = attach('runs/*')\nruns.names['run1'] = '<b>first</b> try'\nruns"


@pytest.fixture
def page(jupyterlab, browser):
    """A notebook beside a folder with two runs that have ended, and one that goes on."""
    folder = Path(jupyterlab.folder, "runs")
    for number in (1, 2):
        trained(folder / f"run{number}", steps=8 * (3 + number)).close()
    WrittenRun(folder)
    with jupyterlab.new_page(browser, height=1100) as lab:
        yield Live(lab, jupyterlab, [SHOW], setup=SETUP)


def ends(page):
    """Name and last step of each line in the large chart."""
    return page.page.evaluate(
        "() => Object.fromEntries(document.querySelector('.js-plotly-plot').data.filter(t => "
        "(t.yaxis || 'y') === 'y' && t.name !== 'rewound')"
        ".map(t => [t.name, Math.max(...t.x)]))")


def said(page, x):
    """The runs that have a value in the label at a place of the x-axis."""
    texts = page.page.evaluate(
        "async x => { const p = document.querySelector('.js-plotly-plot'); (await "
        "window.trainer_nb_plotly).Fx.hover(p, {xval: x}, 'xy');"
        "await new Promise(r => setTimeout(r, 100)); return [...p.querySelectorAll('.hoverlayer "
        ".legendtext')].map(t => t.textContent); }", x)
    return [text.rpartition(" : ")[0] for text in texts]


def grow(path, last):
    """Add records up to a step, as a run does."""
    line = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    with open(path / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps({**line, "step": step}) + "\n"
                        for step in range(line["step"] + 1, last + 1))


def picture(page, name):
    """A picture of the page, for a person who wants to see it:
    TRAINER_NB_PICTURES names a folder."""
    if folder := os.environ.get("TRAINER_NB_PICTURES"):
        settle(page.page, 1000)
        page.lab.screenshot(Path(folder, f"runs-{name}.png"))


@pytest.mark.long  # tests/remote/test_runs; test_browser_curves has a run beside
def test_three_runs_overlay_a_name_hides_one_and_a_running_one_grows(page, jupyterlab):
    """All in one plot, with the names as text; the legend is real switches;
    new points come by themselves."""
    page.lab.run_cell(1)
    page.lab.cell(1).locator(PANEL).first.wait_for()
    names = {"exp1": 24, "&lt;b&gt;first&lt;/b&gt; try": 32, "run2": 40}
    assert later(lambda: ends(page) == names), ends(page)
    table = page.lab.cell(1).locator(".tnb-table table")
    assert "<b>first</b> try" in table.inner_text() and table.locator("b").count() == 0
    picture(page, "1-three")

    assert later(lambda: said(page, 12) == ["exp1", "<b>first</b> try", "run2"]), said(page, 12)
    picture(page, "2-hover")

    page.click("run2")
    assert later(lambda: "run2" not in ends(page)) and len(ends(page)) == 2
    page.click("run2")
    assert later(lambda: "run2" in ends(page))

    for name, last in (("run2", 1500), ("exp1", 2000)):  # thinned to points at other steps
        grow(Path(jupyterlab.folder, "runs", name), last)
    assert later(lambda: [ends(page).get(name)
                          for name in ("run2", "exp1")] == [1500, 2000]), ends(page)
    assert later(lambda: said(page, 701) == ["exp1", "run2"]), said(page, 701)
    assert page.lab.problems == []
    picture(page, "3-grown")
