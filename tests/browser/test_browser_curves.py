"""The chart's script in a page of its own, and the runs behind a run in JupyterLab:
scales, outliers, names, files."""

import base64
import csv
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from live_page import PANEL, Live, later, settle, texts_of
from plotly.offline import get_plotlyjs

from trainer_nb.panel import plots
from trainer_nb.panel.style import package_text

pytestmark = pytest.mark.browser

PAGE = "<!doctype html><title>curves</title><div id='chart' style='width: 760px'></div>"
COUNT = """() => {
    const { react } = Plotly;
    window.drawn = 0;
    Plotly.react = (...given) => react(...given).finally(() => { window.drawn++; });
}"""
MOUNT = """async source => {
    const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
    const { default: chart, scale } = await import(url);
    window.end?.();
    document.getElementById('chart').replaceChildren();
    const sent = [], model = {figure: {data: [], layout: {}}, get: name => model[name], send: each => sent.push(each),
                              on: (name, act) => { window.heard[name] = act; }, off: () => {}};
    Object.assign(window, { scale, sent, model, heard: {} });
    window.end = chart.render({model, el: document.getElementById('chart'), loaded: Promise.resolve(window.Plotly)});
}"""  # noqa: E501
SHOW = """([data, layout]) => {
    const bytes = text => new DataView(Uint8Array.from(atob(text), each => each.charCodeAt(0)).buffer);
    window.model.figure = {data: data.map(t => ({...t, x: bytes(t.x), y: bytes(t.y)})), layout};
    window.heard['change:figure']();
}"""  # noqa: E501
TITLES = """() => [...document.querySelectorAll('.annotation-text')].map(each => {
    const { left, right } = each.getBoundingClientRect();
    return [each.textContent.replaceAll('\\u00a0', ' '), left, right];
})"""
AXIS = ("name => { const b = document.querySelector('.js-plotly-plot'); return "
        "b?._fullLayout?.[name]?.range; }")


class Page:
    """A page with one chart, which is given figures as the kernel gives them."""

    def __init__(self, page):
        self.page = page

    def show(self, traces, **layout):
        """Draw traces; their x and y travel as bytes."""
        def packed(values):
            return base64.b64encode(np.asarray(values, np.float32).tobytes()).decode()
        shape = {"xaxis": {"autorange": True}, "yaxis": {}, "height": 300, "uirevision": "keep",
                 "margin": {"l": 40, "r": 0, "t": 0, "b": 20}} | layout
        before = self.page.evaluate("() => window.drawn")
        self.page.evaluate(SHOW,
                           [[trace | {"x": packed(trace["x"]), "y": packed(trace["y"])}
                             for trace in traces], shape])
        self.page.wait_for_function("before => window.drawn > before", arg=before)
        settle(self.page)  # once more at its own size, 60 ms after that has changed

    def range(self, axis="yaxis"):
        """The ends of an axis."""
        return self.page.evaluate(AXIS, axis)

    def drag(self, start, end):
        """Zoom from one place of the plot to another, in px from its left upper corner."""
        before = self.range("xaxis")
        box = self.page.locator(".js-plotly-plot").bounding_box()
        self.page.mouse.move(box["x"] + start[0], box["y"] + start[1])
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + (start[0] + end[0]) / 2, box["y"] + (start[1] + end[1]) / 2)
        self.page.mouse.move(box["x"] + end[0], box["y"] + end[1])
        self.page.mouse.up()
        assert later(lambda: self.range("xaxis") != before)
        settle(self.page)

    def double_click(self):
        """End a zoom."""
        before = self.range("xaxis")
        self.page.locator(".js-plotly-plot").dblclick(position={"x": 300, "y": 100})
        assert later(lambda: self.range("xaxis") != before)
        settle(self.page)


@pytest.fixture(scope="module")
def with_plotly(browser):
    """A page that has loaded plotly.js."""
    context = browser.new_context()
    page = context.new_page()
    page.set_content(PAGE)
    page.add_script_tag(content=get_plotlyjs())
    page.evaluate(COUNT)
    yield page
    context.close()


@pytest.fixture
def page(with_plotly):
    """A new chart in a page of its own."""
    with_plotly.mouse.move(0, 0)
    with_plotly.evaluate(MOUNT, package_text("chart.js"))
    return Page(with_plotly)


def line(y, **more):
    """A trace over 0, 1, 2, ..."""
    return {"x": np.arange(len(y)), "y": y, "mode": "lines", "yaxis": "y", "xaxis": "x"} | more


def test_y_follows_a_zoom_in_x_until_a_double_click(page):
    """Also while new points come; a zoom in y is the person's own, and a double click ends both."""
    falling = 100 / np.arange(1, 401)
    page.show([line(falling)])
    assert page.range()[1] > 100
    page.drag((400, 120), (740, 120))
    first, last = page.range("xaxis")
    expected = [falling[int(last)], falling[int(first) + 1]]
    assert 150 < first < last < 400
    assert page.range() == pytest.approx(expected, abs=0.3) and page.range()[1] < 1
    seen = page.range("xaxis")
    falling[300] = 50  # a new point within what is seen
    page.show([line(falling)])
    assert page.range("xaxis") == seen and page.range()[1] > 50
    page.drag((100, 60), (300, 200))  # in both directions
    own = page.range()
    page.show([line(falling * 1.5)])
    assert page.range() == own
    page.double_click()
    assert page.range()[1] > 150 and page.range("xaxis")[1] > 395
    page.show([line(falling * 3)])
    assert (
        page.range()[1] > 300
        and page.page.evaluate("() => window.sent.filter(each => 'x' in each)") == []
    )


def test_outliers_are_left_out_of_the_scale_and_marked(page):
    """The evaluation's few points are no outliers; a log axis counts in powers;
    the mark says the value."""
    noise = np.random.default_rng(0).normal(1, 0.1, 600)
    noise[300] = 1000
    few = line([5.0, 4.0, 3.0]) | {"x": [100, 300, 500]}
    page.show([line(noise), few], meta={"outliers": True}, uirevision="spike")
    assert page.range()[1] > 1000
    page.show([line(noise), few], meta={"outliers": False}, uirevision="spike")
    assert 5 < page.range()[1] < 6 and page.range()[0] > 0
    marks = page.page.evaluate(
        "() => document.querySelector('.js-plotly-plot').data.filter(t => t.name == 'beyond the "
        "scale')[0]")
    assert list(marks["x"]) == [300]
    assert list(marks["customdata"]) == [1000] and marks["marker"]["symbol"] == ["triangle-up"]
    assert marks["y"][0] == pytest.approx(page.range()[1])
    page.show([line(noise)], meta={"outliers": False}, yaxis={"type": "log"}, uirevision="log")
    assert page.range()[1] < 1 and page.range()[0] > -1
    page.show([line(noise)], meta={"outliers": True}, yaxis={"type": "log"}, uirevision="log")
    assert page.range()[1] > 3


def test_what_is_not_finite_stands_at_the_axis(page):
    """At the lower end, linear and log, also after a zoom in y; it has no part in the scale."""
    values = np.linspace(3, 2, 50)
    marks = {
        "x": [10, 20],
        "y": [1e-3, 1e-3],
        "mode": "markers",
        "xaxis": "x",
        "yaxis": "y",
        "meta": "axis",
        "name": "not finite",
    }
    drawn = """() => [...document.querySelector('.js-plotly-plot')
        .data.find(t => t.name === 'not finite').y]"""
    page.show([line(values), marks], uirevision="marks")
    assert page.range()[0] > 1.9 and page.page.evaluate(drawn) == pytest.approx(
        [page.range()[0]] * 2
    )
    page.drag((100, 60), (300, 200))
    assert page.range()[0] > 2 and page.page.evaluate(drawn) == pytest.approx([page.range()[0]] * 2)
    page.show([line(values), marks], uirevision="log", yaxis={"type": "log"})
    assert page.page.evaluate(drawn) == pytest.approx([10 ** page.range()[0]] * 2)


HOVER = """() => Object.fromEntries([...document.querySelectorAll('.hoverlayer .legendtext')]
    .map(each => each.textContent.split(' : ')).filter(each => each.length === 2))"""
PLACE = """x => { const axis = document.querySelector('.js-plotly-plot')._fullLayout.xaxis;
    return axis._offset + axis.d2p(x); }"""
POINTS = """name => { const box = document.querySelector('.js-plotly-plot');
    const at = box.calcdata.find(each => each[0].trace.name === name)[0].trace.uid;
    const drawn = box.querySelector('.trace' + at);
    const points = [...drawn.querySelectorAll('.points path')];
    return {opacity: [...new Set(points.map(each => each.style.opacity))],
            steps: box.data.find(each => each.name === name).x.every(Number.isInteger),
            markers: [...drawn.querySelectorAll('.points path')].filter(
                each => each.getBBox().width > 0).length,
            places: drawn.querySelector('.js-line').getAttribute('d').slice(1).split(/[LVH]/)
                .map(each => each.split(',').map(Number))}; }"""


def told(page, x):
    """Name to value in the label, with the mouse at a place of the x-axis."""
    box, across = page.page.locator(".js-plotly-plot").bounding_box(), page.page.evaluate(PLACE, x)
    label = page.page.locator(".hoverlayer .legendtext")
    page.page.mouse.move(box["x"] + across, box["y"] - 50)  # the label before goes
    assert later(lambda: label.count() == 0)
    settle(page.page)  # plotly looks at the mouse twenty times a second
    page.page.mouse.move(box["x"] + across, box["y"] + 150)
    assert later(lambda: label.count() > 0)
    return {name: float(value) for name, value in page.page.evaluate(HOVER).items()}


@pytest.mark.parametrize("kind", ["linear", "log"])
def test_values_between_far_points_are_told(page, kind):
    """Those of the nearer point, however far; not before a curve begins or after it has ended."""
    points = {"mode": "lines+markers", "hovertemplate": "%{y:.5g}", "marker": {"size": 6}}
    traces = [
        line(np.linspace(2, 1, 1001)) | {"name": "train", "hovertemplate": "%{y:.5g}"},
        line([0.5, 8.0]) | points | {"name": "valid", "x": [200, 800]},
        line([4.0, 3.0]) | points | {"name": "ended", "x": [0, 200]},
        line([1.5]) | points | {"name": "mark", "x": [450], "mode": "markers",
                                "customdata": ["lr, by hand"],
                                "hovertemplate": "%{customdata}<extra></extra>"},
        line([0, 9, np.nan]) | {"name": "mark", "x": [450, 450, np.nan], "hoverinfo": "skip"}]
    page.show(traces, hovermode="x unified", hoverdistance=80, uirevision=f"far {kind}",
              yaxis={"type": kind})
    assert told(page, 90)["ended"] == 4 and told(page, 110)["ended"] == 3
    assert told(page, 470) == {"train": pytest.approx(1.53, abs=0.003), "valid": 0.5}
    assert told(page, 610) == {"train": pytest.approx(1.39, abs=0.003), "valid": 8}
    assert set(told(page, 950)) == {"train"} and "valid" not in told(page, 20)
    seen = page.page.evaluate(POINTS, "valid")
    assert seen["opacity"] == ["1"] and seen["steps"]  # a label says no step that there is not
    assert seen["markers"] == 2 and len(seen["places"]) == 2  # a straight line, by two ends
    page.drag((330, 120), (400, 120))  # neither point of valid is seen
    assert page.range("xaxis")[0] > 400 and page.range("xaxis")[1] < 600
    assert told(page, 520)["valid"] == 8 and told(page, 480)["valid"] == 0.5


@pytest.mark.parametrize(("many", "drawn"), [(3, 3), (42, 42), (150, 50)])
def test_markers_are_those_of_the_points(page, many, drawn):
    """Also where many places between them have a value: 60 markers at most, evenly."""
    places = [*np.linspace(0, 300, many - 1).round().tolist(), 1000]
    page.show([line(np.linspace(2, 1, 1001)) | {"name": "train"},
               line(np.linspace(3, 2, many)) | {
                   "x": places, "name": "valid", "mode": "lines+markers",
                   "hovertemplate": "%{y:.5g}", "marker": {"size": 6, "maxdisplayed": 60}}],
              uirevision=f"markers {many}", hovermode="x unified", hoverdistance=80)
    assert page.page.evaluate(POINTS, "valid")["markers"] == drawn


def test_a_zoom_in_x_is_told_once_the_hand_rests(page):
    """With the axis it counts in; a double click ends it."""
    page.show([line(np.arange(400.0))], uirevision="epoch false told")
    page.drag((200, 120), (500, 120))
    first, last = page.range("xaxis")
    assert later(
        lambda: (
            page.page.evaluate("() => window.sent")
            == [{"axis": "epoch", "span": [pytest.approx(first), pytest.approx(last)]}]
        )
    )
    page.page.locator(".js-plotly-plot").dblclick(position={"x": 300, "y": 100})
    assert later(
        lambda: page.page.evaluate("() => window.sent").pop() == {"axis": "epoch", "span": None}
    )


def test_a_title_ends_where_the_next_begins(page):
    """Its middle is left out; what has room stays as it is."""
    name = "mean_absolute_difference_of_the_upper_&amp;_lower_quartile_00"
    titles = [
        {
            "name": "title",
            "xref": "paper",
            "yref": "paper",
            "x": x,
            "y": 0.9,
            "xanchor": "left",
            "showarrow": False,
            "text": f"<b>{text}</b>",
            "font": {"size": 12},
        }
        for x, text in ((0, name), (0.36, "a &amp; b"))
    ]
    page.show([line(np.arange(9.0))], annotations=titles, uirevision="titles")
    def as_wanted():
        """Both at once: a chart that is drawn again replaces them."""
        (first, _, end), (second, begin, _) = page.page.evaluate(TITLES)
        return (first.startswith("mean_abs") and first.endswith("tile_00") and "…" in first
                and second == "a & b" and end < begin)
    assert later(as_wanted), page.page.evaluate(TITLES)


SCALES = [
    ([3e-4] * 50, True, (0, 3.18e-4)), ([3e-4] * 50, False, (2.7e-4, 3.3e-4)),
    ([0.0] * 5, False, (-1, 1)), ([-2.0], False, (-2.2, -1.8)),
    ([1.0, float("nan"), 3.0, float("inf")], False, (0.88, 3.12)),
    ([float("nan")] * 3, False, None), ([], False, None),
    ([1.0, 1.0 + 1e-9], False, (0.9, 1.1))]


def test_a_scale_fits_what_there_is(page):
    """A flat line stands in the middle of a range of its own size;
    what is not finite has no place."""
    for y, zero, expected in SCALES:
        values = [None if np.isnan(each) else "Infinity" if np.isinf(each) else each for each in y]
        found = page.page.evaluate(
            "([y, zero]) => scale([{x: y.map((_, i) => i), y: y.map(v => v === null ? NaN : "
            "Number(v))}], {zero})", [values, zero])
        assert found == (None if expected is None else pytest.approx(expected)), y


def test_a_thousand_evaluations_are_no_band(page):
    """The markers thin out, the line stays whole."""
    values = np.random.default_rng(0).normal(0, 1, 700).cumsum()
    trace = plots._line(np.arange(700.0), values, "#dd7023", 1, "valid", points=True)
    page.show([trace], uirevision="many")
    drawn = page.page.evaluate(
        "() => document.querySelectorAll('.js-plotly-plot .points path').length")
    assert 30 <= drawn <= 2 * plots.MOST_MARKERS
    assert page.page.evaluate(
        "() => document.querySelector('.js-plotly-plot .js-line').getAttribute('d').length") > 2000


# In JupyterLab

SETUP = """
import torch
from trainer_nb import Hook, Trainer
torch.set_num_threads(1)
x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)),
                                   batch_size=16)

class Spike(Hook):
    def after_loss(self, trainer):
        if trainer.step_state.optimizer_step == 20:
            trainer.step_state.loss = trainer.step_state.loss * 1000

def trained(lr, **more):
    model = torch.nn.Linear(4, 1)
    trainer = Trainer(model, train_dl=data, valid_dl=data, loss_fn=torch.nn.MSELoss(), epochs=4,
                      optim=torch.optim.SGD(model.parameters(), lr=lr),
                      device="cpu", seed=0, **more)
    return trainer
"""
CELLS = ["first = trained(0.01)\nfirst.fit().status", "second = trained(0.1)\nsecond.fit().status"]


@pytest.fixture
def two(jupyterlab, browser):
    """Two runs in two cells, the second one's panel looked at."""
    with jupyterlab.new_page(browser, height=1400) as lab:
        yield Live(lab, jupyterlab, CELLS, setup=SETUP)


def picture(page, name):
    """A picture of the page, for a person who wants to see it:
    TRAINER_NB_PICTURES names a folder."""
    if folder := os.environ.get("TRAINER_NB_PICTURES"):
        settle(page.page, 1000)
        page.lab.screenshot(Path(folder, f"curves-{name}.png"))


def names(panel):
    """The names of the curves in the loss plot."""
    return panel.locator(
        ".js-plotly-plot").evaluate(
            "box => box.data.filter(t => (t.yaxis || 'y') === 'y').map(t => t.name)")


def read_table(two, panel):
    """The tab Table: a row an evaluation with the values of the curves, sorted by a click, copied
    as Markdown."""
    panel.locator(".tnb-tabs button", has_text="Table 4").click()
    table = panel.locator(".tnb-datatable table")
    table.wait_for()
    def column(at):
        return table.locator(f"tbody td:nth-child({at})").all_inner_texts()
    assert later(lambda: column(1) == ["64", "48", "32", "16"])
    assert [each.rstrip("\u2009↓")
            for each in table.locator(
                "th").all_inner_texts()] == ["step", "epoch", "train/loss", "valid/loss", "time",
                                             "+ time"]
    assert column(2) == ["4", "3", "2", "1"]
    drawn = panel.locator(".js-plotly-plot").evaluate(  # those with a marker, not those between
        "box => { const {y, marker} = box.data.find(t => t.name === 'valid'); return [...y]"
        ".filter((_, at) => typeof marker.size === 'number' || marker.size[at] > 0); }")
    assert [float(each) for each in column(4)[::-1]] == pytest.approx(drawn, rel=1e-2)
    table.locator("th button", has_text="step").click()
    assert later(lambda: column(1) == ["16", "32", "48", "64"])
    assert later(lambda: table.locator("th").first.get_attribute("aria-sort") == "ascending")
    two.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    texts = texts_of(two.page, ".tnb-datatable .bar")
    panel.get_by_role("button", name="Copy as Markdown").click()
    assert later(lambda: any(text.endswith("Copied") for text in texts()))  # for three seconds
    copied = two.page.evaluate("() => navigator.clipboard.readText()").splitlines()
    assert copied[0] == "| step | epoch | train/loss | valid/loss | time | + time |"
    assert copied[2].startswith("| 16 | 1 | ") and len(copied) == 6
    picture(two, "table")


def test_an_earlier_run_is_shown_named_and_compared_and_the_records_saved(two, tmp_path):
    """By real clicks in the Runs tab: its curves with their names, a row with its values, and a
    name that stays."""
    lab = two.lab
    for cell in (1, 2):
        lab.run_cell(cell)
        lab.cell(cell).locator(PANEL).first.wait_for()
        lab.wait_cell(cell)
        two.state("finished", cell)
    panel = lab.cell(2).locator(".tnb").first
    panel.locator(".tnb-tabs button", has_text="Runs 2").click()
    row = panel.locator(".tnb-runrow:not(.heads, .this)")
    row.wait_for()
    picture(two, "runs tab")
    assert "Linear · train" not in names(panel)
    assert later(lambda: "finished" in row.inner_text())
    row.locator("button.run").click()
    assert later(lambda: {"Linear · train", "Linear · valid",
                          "train"} <= set(names(panel))), names(panel)
    box = row.locator("input")
    box.fill("low <b>rate</b>")
    box.press("Enter")
    assert later(lambda: "low &lt;b&gt;rate&lt;/b&gt; · train" in names(panel))
    assert later(lambda: panel.locator(".legend.wrap").inner_text() == "low <b>rate</b>")
    heads = panel.locator(".tnb-runrow.heads .cells > div").all_inner_texts()
    values = [row.locator(".cells > div").all_inner_texts(),
              panel.locator(".tnb-runrow.this .cells > div").all_inner_texts()]
    assert "lr" in heads and [each[heads.index("lr")] for each in values] == ["0.01", "0.1"]
    picture(two, "runs")
    read_table(two, panel)
    panel.locator(".tnb-tabs button", has_text="Runs 2").click()
    box.fill("")
    box.press("Enter")
    assert later(
        lambda: "a letter at least" in panel.locator(".tnb-runspane .hint.refused").inner_text())
    panel.locator(".tnb-runspane .tnb-entry input").fill("nowhere/*")
    panel.locator(".tnb-runspane .tnb-entry button").click()
    assert later(lambda: "nowhere" in panel.locator(".tnb-runspane .hint.refused").inner_text())
    for kind in ("csv", "svg", "png"):
        with lab.page.expect_download() as loading:
            panel.locator(".tnb-save select").select_option(kind)
        saved = tmp_path / loading.value.suggested_filename
        loading.value.save_as(saved)
        assert saved.name == f"Linear.{kind}"
    table = list(csv.DictReader(io.StringIO((tmp_path / "Linear.csv").read_text())))
    losses = [float(each["value"]) for each in table if each["record"] == "train/loss"]
    drawn = json.loads(
        panel.locator(
            ".js-plotly-plot").evaluate(
                "box => JSON.stringify([...box.data.filter(t => t.name === 'raw')[0].y])"))
    assert losses == pytest.approx(drawn, rel=1e-6) and len(losses) == 64
    assert (tmp_path / "Linear.svg").read_text().startswith("<svg")
    assert (tmp_path / "Linear.png").read_bytes().startswith(b"\x89PNG")
    assert lab.problems == []
