"""Many of everything at any width: 40 hooks with tunables, 40 metrics, 6 loaders, long names."""

import os
from pathlib import Path

import pytest
from live_page import Live, later, open_tab, settle

pytestmark = pytest.mark.browser

SETUP = """
import torch
from trainer_nb import AlertsHook, Hook, LayerStatsHook, SamplesHook, Trainer, Tunable
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(64, 4)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1].sin()), batch_size=16)
LONG = "a_held_out_set_from_another_hospital_with_a_long_name"
loaders = {f"{LONG}_{k}": data for k in range(6)}
def hook(k):
    words = ("Watches", "CountsTheGradientsOfEveryLayerAndWritesThemDownFor", "Mixes")[k % 3]
    return type(f"{words}{k:02}", (Hook,), {"amount": Tunable(0.1 + k, min=0, doc="how much of it"), "after_step": lambda self, trainer: None})()
def metric(k):
    words = "score" if k % 2 else "mean_absolute_difference_of_the_upper_quartile"
    def measured(pred, target):
        return (pred - target).abs().mean() + k
    return f"{words}_{k:02}", measured
Net = type("N" + "etwork" * 9 + "Block", (torch.nn.Linear,), {})
assert len(Net.__name__) == 60
trainer = Trainer(Net(4, 1), train_dl=data, valid_dl=loaders, loss_fn=torch.nn.MSELoss(), epochs=2, device="cpu", grad_clip=1.0, seed=0,
                  hooks=[*map(hook, range(37)), LayerStatsHook(every_steps=1), AlertsHook(), SamplesHook()], metrics=dict(map(metric, range(40))))
"""  # noqa: E501
RUN = "trainer.tune(lr=0.01)\ntrainer.fit().status"
LEFT_AREA = "() => window.jupyterapp.commands.execute('application:toggle-left-area')"
THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
# widths of the window, those at which all tabs are opened, and those with all plots
SHORT, WHOLE = ((520, 1300), (520,), ()), (
    (520, 800, 965, 1300, 1900, 2560), (520, 1300), (520, 1300))

# What a person sees of the panel: texts, cut where a box around them cuts, and controls.
SEEN = """(panel) => {
    const known = new Map([[panel.parentElement, [-1e9, -1e9, 1e9, 1e9]]]);
    const clip = (e) => {  // what of the page an element shows of its content, or null
        if (!known.has(e)) {
            const style = getComputedStyle(e), around = clip(e.parentElement), box = e.getBoundingClientRect();
            const hidden = style.visibility === 'hidden' || style.display === 'none' || +style.opacity === 0;
            const cuts = style.overflowX !== 'visible' || style.overflowY !== 'visible';
            known.set(e, hidden || !around ? null : !cuts ? around : [Math.max(around[0], box.left), Math.max(around[1], box.top),
                                                                      Math.min(around[2], box.right), Math.min(around[3], box.bottom)]);
        }
        return known.get(e);
    };
    const cut = (r, from) => {
        const c = clip(from);
        if (!c) return null;
        const box = [Math.max(c[0], r.left), Math.max(c[1], r.top), Math.min(c[2], r.right), Math.min(c[3], r.bottom)];
        return box[2] - box[0] > 1 && box[3] - box[1] > 1 ? box : null;
    };
    let number = 0;
    const found = [], walk = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        const parent = node.parentElement, text = node.textContent.trim();
        if (!text || parent.closest('style, script, option, .tnb-hidden, .hoverlayer, [hidden], .unseen, pre')) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const r of range.getClientRects()) {
            const box = cut(r, parent);
            if (box) found.push([text.slice(0, 40), ...box, number]);
        }
        number++;
    }
    for (const control of panel.querySelectorAll('input, select, .noUi-target')) {
        const box = cut(control.getBoundingClientRect(), control.parentElement);
        if (box) found.push([control.tagName + ' ' + (control.title || control.className), ...box, number++]);
    }
    const outer = panel.getBoundingClientRect();
    const filled = [...panel.querySelectorAll('svg, canvas, img, button, .noUi-target, .progress')].map(e => cut(e.getBoundingClientRect(), e.parentElement)).filter(Boolean);
    return {found, filled, panel: [outer.left, outer.top, outer.right, outer.bottom], wide: panel.scrollWidth - panel.clientWidth};
}"""  # noqa: E501


def overlaps(found):
    """Pairs of texts and controls that share more than two pixels each way."""

    def shared(one, other):
        width, height = (
            min(one[3], other[3]) - max(one[1], other[1]),
            min(one[4], other[4]) - max(one[2], other[2]),
        )
        return width > 2 and height > 3

    found = sorted(found, key=lambda each: each[2])
    pairs = []
    for at, one in enumerate(found):
        for other in found[at + 1 :]:
            if other[2] > one[4]:
                break
            if one[5] != other[5] and shared(one, other):  # a cut text has two boxes
                pairs.append(
                    (one[0], other[0], [round(v) for v in one[1:5]], [round(v) for v in other[1:5]])
                )
    return pairs


def gaps(seen, most=400):
    """Empty stretches of more than `most` px from top to bottom, in each third of the panel."""
    left, top, right, bottom = seen["panel"]
    boxes, found = [each[1:5] for each in seen["found"]] + seen["filled"], []
    for third in range(3):
        ends = [left + (right - left) * part / 3 for part in (third, third + 1)]
        inside = sorted((t, b) for l, t, r, b in boxes if l < ends[1] and r > ends[0])
        reached = top
        for t, b in [*inside, (bottom, bottom)]:
            if t - reached > most:
                found.append((third, round(reached - top), round(t - top)))
            reached = max(reached, b)
    return found


def look(panel, width, where):
    """What is wrong at this width."""
    seen = panel.evaluate(SEEN)
    left, _, right, _ = seen["panel"]
    wrong = [("overlap", *pair) for pair in overlaps(seen["found"])]
    wrong += [
        ("out of the panel", *each)
        for each in seen["found"]
        if each[1] < left - 1 or each[3] > right + 1
    ]
    wrong += [("broken", *each) for each in seen["found"] if "javascript error" in each[0]]
    wrong += [("empty", *gap) for gap in gaps(seen)]
    wrong += [("wide", seen["wide"])] if seen["wide"] > 0 else []
    return [(width, where, *each) for each in wrong]


def wrong_at(panel, width, where):
    """What is wrong at this width, and stays so."""
    return [] if later(lambda: not look(panel, width, where)) else look(panel, width, where)


FITS = """() => [...document.querySelectorAll('.tnb .js-plotly-plot')]
    .every(each => !each.offsetWidth || Math.abs(each._fullLayout.width - each.offsetWidth) < 1)"""


def widen(page, width):
    """Another width of the window, which the figures follow."""
    page.set_viewport_size({"width": width, "height": 3000})
    settle(page)
    page.wait_for_function(FITS)
    settle(page)


def picture(lab, name):
    """A picture for a person who wants to see it: TRAINER_NB_PICTURES names a folder."""
    if folder := os.environ.get("TRAINER_NB_PICTURES"):
        lab.screenshot(Path(folder, f"many-{name}.png"))


def pin_by_keys(lab, panel):
    """A number of the head by keyboard: searched, ticked, shown; Escape gives the focus back."""
    opener = panel.get_by_role("button", name="Choose the numbers of the head")
    labels = panel.locator(".numbers .label")
    before = labels.all_inner_texts()
    opener.focus()
    lab.page.keyboard.press("Enter")
    panel.locator(".tnb-pins .list").wait_for()
    focus = lambda name: lab.page.evaluate(f"() => document.activeElement.{name}")
    assert later(lambda: focus("tagName") == "INPUT")
    lab.page.keyboard.type("_5/score_39")
    found = panel.locator(".tnb-pins label:visible")
    assert later(lambda: found.count() == 2), (
        found.all_inner_texts()
    )  # the record and its best value
    picture(lab, "pins")
    lab.page.keyboard.press("Tab")
    if focus("className") == "usual":
        lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Space")
    assert later(lambda: labels.count() == len(before) + 1) and labels.last.inner_text().endswith(
        "_5/score_39"
    )
    assert later(panel.locator(".tnb-pins .usual").is_enabled)
    lab.page.keyboard.press("Escape")
    panel.locator(".tnb-pins .list").wait_for(state="hidden")
    assert later(lambda: focus("title") == "Choose the numbers of the head")
    lab.page.keyboard.press("Enter")
    panel.locator(".tnb-pins .list").wait_for()
    panel.locator(".tnb-pins .usual").click()
    assert later(lambda: labels.all_inner_texts() == before)
    lab.page.keyboard.press("Escape")
    assert (
        lab.cell(1).locator(".tnb").count() == 1 and lab.page.locator(".jp-Cell").count() == 2
    )  # no key reached the notebook


@pytest.mark.long  # test_browser_page: nothing overlaps; what_opens_in_the_panel has the pins
@pytest.mark.parametrize("widths, tabs_at, plots_at", [SHORT, WHOLE])
def test_many_of_everything_at_any_width(jupyterlab, browser, widths, tabs_at, plots_at):
    """Nothing overlaps, runs over the panel's edge or leaves a screen empty, in each tab."""
    with jupyterlab.new_page(browser, width=1300, height=3000) as lab:
        run = Live(lab, jupyterlab, [RUN], setup=SETUP)
        lab.page.evaluate(LEFT_AREA)
        lab.run_cell(1)
        panel = lab.cell(1).locator(".tnb").first
        panel.locator(".js-plotly-plot .main-svg").first.wait_for()
        run.state("finished")
        wrong, tabs = [], panel.locator(".tnb-tabs button")
        for width in widths:
            widen(lab.page, width)
            wrong += wrong_at(panel, width, "panel")
            picture(lab, f"{width}")
            if os.environ.get("TRAINER_NB_PICTURES"):
                for theme in ("Dark", "Light"):
                    lab.page.evaluate(THEME, f"JupyterLab {theme}")
                    settle(lab.page, 1000)
                    picture(lab, f"{width}-{theme}")
            for tab in range(1, tabs.count() if width in tabs_at else 0):
                open_tab(panel, tab)
                settle(lab.page)
                wrong += wrong_at(panel.locator(".tnb-pane"), width, tabs.nth(tab).inner_text())
                if os.environ.get("TRAINER_NB_PICTURES"):
                    panel.locator(".tnb-pane").screenshot(
                        path=Path(os.environ["TRAINER_NB_PICTURES"], f"many-{width}-tab{tab}.png")
                    )
            open_tab(panel, 0)
        pin_by_keys(lab, panel)
        if plots_at:
            panel.locator("button", has_text="plots").click()
            panel.locator(".tnb-plots.tall").wait_for()
        for width in plots_at:
            widen(lab.page, width)
            wrong += wrong_at(panel, width, "all plots")
            picture(lab, f"{width}-all")
        lab.page.evaluate(LEFT_AREA)
        assert wrong == [], "\n".join(map(str, wrong[:60]))
