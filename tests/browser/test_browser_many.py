"""Many of everything at any width: 40 hooks with tunables, 40 metrics, 6 loaders, long names."""

import pytest
from live_page import later, picture, settle
from page_runs import Served, training

pytestmark = pytest.mark.browser

SCRIPT = """
import sys, torch
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
trainer = Trainer(Net(4, 1), train_dl=data, valid_dl=loaders, loss_fn=torch.nn.MSELoss(), epochs=2, device="cpu", grad_clip=1.0, seed=0, workspace=sys.argv[1],
                  progress=False,
                  hooks=[*map(hook, range(37)), LayerStatsHook(every_steps=1), AlertsHook(), SamplesHook()], metrics=dict(map(metric, range(40))))
trainer.step(2)
trainer.tune(lr=0.01)
trainer.step(3)
trainer.pause_when("step == 8")
trainer.fit(epochs=4)
"""  # noqa: E501
# widths of the page: beside a file browser in a small window, in a default window, alone, wide
SHORT, WHOLE = (520, 820, 1300), (390, 520, 680, 820, 965, 1300, 1900, 2560)

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


@pytest.mark.parametrize("widths", [SHORT, pytest.param(WHOLE, marks=pytest.mark.long)])
def test_many_of_everything_at_any_width(tmp_path, browser, widths):
    """Nothing overlaps, runs over the panel's edge or leaves a screen empty, in each tab."""
    with training(tmp_path / "run", SCRIPT) as run, Served(run.path, "--port", 0) as served:
        page = browser.new_context(viewport={"width": 1300, "height": 3000}).new_page()
        page.goto(served.steer_url)
        panel, wrong = page.locator(".tnb"), []
        panel.locator(".js-plotly-plot .main-svg").first.wait_for()
        tabs = panel.get_by_role("tab")
        assert later(lambda: tabs.count() == 9)
        for width in widths:
            widen(page, width)
            for at in range(tabs.count()):
                tabs.nth(at).click()
                settle(page)
                wrong += wrong_at(panel, width, tabs.nth(at).inner_text())
                picture(page, f"many-{width}-{at}")
        page.context.close()
        assert wrong == [], "\n".join(map(str, wrong[:60]))
