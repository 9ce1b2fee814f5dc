"""The panel for those who do not see it well, or have no mouse.

What axe-core finds in it, focus and its rings, what is said, and a session by keys alone."""

import io

import numpy as np
import pytest
from contrast import faint, findings
from live_page import DRAWN, SETUP, Live, later, picture, settle
from PIL import Image

pytestmark = pytest.mark.browser

FULL = SETUP + """
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import AlertsHook, LayerStatsHook, SamplesHook, SnapshotHook
pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16).float().view(-1, 1, 8, 8), torch.tensor(labels)
train, valid = TensorDataset(x[:200], y[:200]), TensorDataset(x[200:300], y[200:300])
def digits(*hooks, **settings):
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    settings = {"epochs": 50_000, "optim": torch.optim.SGD(net.parameters(), lr=0.01)} | settings
    return Trainer(net, train_dl=DataLoader(train, 20), valid_dl=DataLoader(valid, 50), loss_fn=nn.CrossEntropyLoss(), device="cpu",
                   hooks=[*hooks, LayerStatsHook(every_steps=5), SamplesHook(worst=4),
                          AlertsHook(data_share=None), SnapshotHook(20)], **settings)
trainer = digits(noise, Witness())
def hold():
    if str(trainer.state) not in ("running", "paused"):
        noise.fails_at = None
        trainer.start()
    trainer.pause()
    while str(trainer.state) != "paused":
        time.sleep(0.01)
"""  # noqa: E501
FAILS = "noise.fails_at = 5 + trainer.step_state.optimizer_step"
FINISHED = "done = digits(epochs=2)\ndone.fit().status"
NAN = """
bad = digits(optim=lambda parameters: torch.optim.SGD(parameters, lr=1e30))
print(bad.fit().status)
"""
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


def wrong(page, theme):
    """What is wrong in this theme: roles and names are the same in both."""
    return findings(page) if theme == "light" else faint(page)


def paint(page, theme):
    """Light or dark; waits until it is painted."""
    change = "name => window.jupyterapp.commands.execute('apputils:change-theme', { theme: name })"
    page.evaluate(change, THEMES[theme])
    page.wait_for_function("light => document.body.dataset.jpThemeLight === String(light)",
                           arg=theme == "light")
    bright = """light => {
        const { backgroundColor } = getComputedStyle(document.querySelector('.tnb'));
        return (backgroundColor.match(/\\d+/)[0] > 128) === light;
    }"""
    page.wait_for_function(bright, arg=theme == "light")


class Keys:
    """Nothing but keys: Tab until a control has the focus, by what a screen reader would say."""

    def __init__(self, page):
        self.page = page

    @property
    def at(self):
        """Name, kind and place of what has the focus."""
        return self.page.evaluate("""() => {
            const at = document.activeElement;
            return { tag: at.tagName, name: at.getAttribute('aria-label') ?? at.labels?.[0]?.textContent.trim() ?? at.textContent.trim(), role: at.role || at.type || at.tagName,
                     value: at.getAttribute('aria-valuetext') ?? at.value ?? '', inside: Boolean(at.closest('.tnb')) };
        }""")  # noqa: E501

    def press(self, *keys):
        """One key after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def to(self, name, role=None, key="Tab", most=60):
        """Tab (or another key) until a control with this name and role has the focus."""
        way = []
        for _ in range(most):
            self.press(key)
            at = self.at
            way.append(at["name"][:20])
            if at["inside"] and at["name"].startswith(name) and role in (None, at["role"]):
                return at
        raise AssertionError(f"no way to {name} by {key}; the focus was on {way}")

    def stays(self, name, role=None):
        """The focus is on this control, now and when what was asked for is done: meanwhile a
        button may be disabled, and the focus waits beside it."""
        settle(self.page, 400)
        def there():
            at = self.at
            return at["inside"] and at["name"].startswith(name) and role in (None, at["role"])
        assert later(there), self.at


# All that is said to those who hear the page.
SAID = """() => {
    window.said = [];
    new MutationObserver((all) => all.forEach(({ target }) => {
        const live = (target.closest ? target : target.parentElement).closest('[aria-live], [role=status], [role=alert]');
        if (live?.closest('.tnb') && live.textContent) window.said.push(live.textContent);
    })).observe(document.querySelector('.tnb'), { subtree: true, childList: true, characterData: true });
}"""  # noqa: E501


def test_a_whole_session_by_the_keyboard(jupyterlab, browser):
    """Start, pause, a rate by the slider and in the box, tabs, a hook off, a step, back, stop: the
    focus stays where a person left it, and no key reaches the notebook. Nothing is said while the
    run goes on, then each new state."""
    setup = SETUP + "from trainer_nb import SnapshotHook\ntrainer.hooks.add(SnapshotHook(20))"
    with jupyterlab.new_page(browser, width=1600, height=1500) as lab:
        run, keys = Live(lab, jupyterlab, ["trainer.fit().status"], setup=setup), Keys(lab.page)
        panel = run.panel()
        lab.page.evaluate("() => window.jupyterapp.commands.execute('notebook:enter-command-mode')")
        keys.press("ArrowDown", "Control+Enter")
        lab.cell(1).locator(DRAWN).wait_for()
        assert later(lambda: run.step > 60)
        assert lab.page.get_by_role("region", name="Training run Linear").count() == 1
        lab.page.evaluate(SAID)
        for _ in range(3):
            step = panel.step()
            assert later(lambda: panel.step() > step)
        assert lab.page.evaluate("() => window.said") == []
        keys.to("Pause", "button")
        keys.press("Space")
        panel.is_in("paused")
        keys.stays("Resume")
        assert run.freezes()
        panel.says(f"Paused after step {run.step:,}")
        assert any("Paused" in each for each in lab.page.evaluate("() => window.said"))

        keys.to("lr, slider", "range")
        assert keys.at["value"] == "0.01"
        keys.press("ArrowRight")
        keys.stays("lr, slider", "range")
        rate = panel.field("lr")
        assert later(lambda: rate.input_value() == keys.at["value"] != "0.01"), keys.at
        keys.to("lr", "text")
        keys.press("Control+a")
        lab.page.keyboard.type("0.02")
        keys.press("Enter")
        keys.stays("lr", "text")
        assert later(lambda: panel.slider("lr").get_attribute("aria-valuetext") == "0.02")

        keys.to("Table", "tab")
        keys.press("ArrowRight", "ArrowRight", "ArrowRight")
        keys.stays("Inspect", "tab")
        assert panel.box.get_by_role("tab", selected=True).inner_text().startswith("Inspect")
        keys.press("Home", "ArrowRight")
        keys.stays("Hooks", "tab")
        keys.to("noise on or off", "switch")
        keys.press("Space")
        keys.stays("noise on or off", "switch")
        assert later(lambda: not panel.box.get_by_label("noise on or off").is_checked())

        keys.to("Step", "button", "Shift+Tab")
        for _ in range(2):
            held = run.step
            keys.press("Enter")
            assert later(lambda: run.step == held + 1)
            keys.stays("Step")
        assert run.told["rate"] == 0.02 and run.told["order"][-1:] == ["witness"]
        held = run.step

        keys.to("Rewind", "button")
        keys.press("Enter")
        keys.stays("Go back to")
        keys.press("Escape")
        keys.stays("Rewind", "button")
        settle(lab.page, 300)
        keys.press("Space")
        keys.stays("Go back to")
        assert later(lambda: panel.box.get_by_label("Go back to").locator("option").count() > 0)
        keys.to("Rewind here", "button")
        keys.press("Enter")
        before = held - 1  # a state of each 20 steps, and where an epoch begins
        place = max(before // 20 * 20, before // 16 * 16)
        panel.says(f"Paused after step {place:,}")
        keys.stays("Rewind", "button")

        keys.to("Resume", "button", "Shift+Tab")
        keys.press("Enter")
        assert run.goes_on(5)
        keys.stays("Pause")
        keys.to("Stop", "button")
        keys.press("Space")
        keys.stays("Really stop?")
        keys.press("Space")
        assert run.ends()
        panel.is_in("paused")
        keys.stays("Stop")
        lab.wait_kernel_ready()
        for key in "abxdd":
            keys.press(key)
        assert lab.page.locator(".jp-Notebook .jp-Cell").count() == 2 and lab.problems == []


# Controls that have the focus and no ring of 2 px around them, of a
# colour that stands out from the ground (3:1).
UNMARKED = """() => {
    const canvas = document.createElement('canvas'), paint = canvas.getContext('2d', { willReadFrequently: true });
    const light = (colours) => {
        for (const colour of ['white', ...colours]) { paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); }
        const [r, g, b] = [...paint.getImageData(0, 0, 1, 1).data].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    };
    const ground = getComputedStyle(document.querySelector('.tnb')).backgroundColor, seen = new Set(), poor = [];
    for (const each of document.querySelectorAll('.tnb :is(button, input, select, a[href], [tabindex])')) {
        if (each.disabled || each.tabIndex < 0 && each.role !== 'tab' || !each.checkVisibility({ visibilityProperty: true })) continue;
        each.focus({ preventScroll: true });
        if (document.activeElement !== each) continue;
        const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(each), pair = [light([ground, outlineColor]), light([ground])];
        seen.add(each.role || each.type || each.className);
        if (!each.matches(':focus-visible') || outlineStyle === 'none' || parseFloat(outlineWidth) < 2 || Math.max(...pair) / Math.min(...pair) < 3)
            poor.push([each.outerHTML.slice(0, 160), outlineStyle, outlineWidth, outlineColor]);
    }
    return { seen: [...seen], poor };
}"""  # noqa: E501
KINDS = {  # one control of each kind, in the tab of that name
    "button": ("Table", "[aria-label=Controls] button >> nth=1"),
    "legend": ("Table", ".legend button >> nth=0"),
    "slider": ("Table", ".row input[type=range] >> nth=0"),
    "box": ("Table", ".row.slides input:not([type=range]) >> nth=0"),
    "switch": ("Table", ".row input[role=switch] >> nth=0"),
    "choice": ("Table", ".plotbar select >> nth=0"),
    "fold": ("Table", "button.fold >> nth=0"),
    "tab": ("Table", "[role=tab][aria-selected=true]"),
    "head of a column": ("Table", "th button >> nth=0"),
    "segment": ("Layers", ".segments button >> nth=0"),
    "map": ("Layers", ".heat-map .field")}


def ring(page, control):
    """Pixels around a control that change when it takes the focus, as a share of its outline."""
    box = control.bounding_box()
    clip = {"x": box["x"] - 6, "y": box["y"] - 6,
            "width": box["width"] + 12, "height": box["height"] + 12}
    page.evaluate("() => document.activeElement.blur()")
    without = page.screenshot(clip=clip)
    control.focus()
    return differing(without, page.screenshot(clip=clip)) / (2 * (box["width"] + box["height"]))


def differing(one, other):
    """In how many pixels two pictures differ."""
    one, other = (np.asarray(Image.open(io.BytesIO(each)).convert("RGB")).astype(int)
                  for each in (one, other))
    return int((np.abs(one - other).sum(2) > 60).sum())


@pytest.fixture
def shown(jupyterlab, browser):
    """A page with a run that is held and measures all there is, its panel wide."""
    with jupyterlab.new_page(browser, width=1600, height=1500) as lab:
        yield Live(lab, jupyterlab, ["trainer.start()", "hold()", FAILS], setup=FULL).start()


def test_contrast_names_and_rings_in_every_tab_in_both_themes(shown):
    """Held, so that each tab has what it can show; also what opens in the panel, running, and after
    an error. Of each kind of control the ring is really painted on all sides."""
    page, panel, kinds = shown.page, shown.panel(), set()
    poor = lambda: page.evaluate(UNMARKED)["poor"]
    shown.run(2)
    panel.is_in("paused")
    names = [each.inner_text().split()[0] for each in panel.box.get_by_role("tab").all()]
    assert len(names) == 10
    for theme in THEMES:
        paint(page, theme)
        for name in names:
            panel.tab(name)
            settle(page)
            picture(page, f"accessible-{theme}-{name}")
            assert later(lambda: wrong(page, theme) == []), (theme, name, wrong(page, theme))
            if theme == "light" or name == names[0]:
                page.keyboard.press("Tab")  # from here on the browser shows where the focus is
                assert later(lambda: poor() == []), (theme, name, poor()[:5])
                kinds |= set(page.evaluate(UNMARKED)["seen"])
        for kind, (tab, place) in KINDS.items():
            panel.tab(tab)
            control = panel.box.locator(place)
            control.wait_for()
            page.keyboard.press("Tab")
            control.evaluate("node => node.scrollIntoView({ block: 'start' })")  # at the edge
            assert later(lambda: ring(page, control) > 1.6), (theme, kind, ring(page, control))

        chooser = panel.choose()
        assert later(lambda: wrong(page, theme) == []), (theme, "chooser", wrong(page, theme))
        chooser.get_by_role("button", name="Cancel").click()
        panel.enter("lr", "1e6")
        keep = panel.row("lr").get_by_role("button", name="Keep")
        keep.wait_for()
        assert later(lambda: wrong(page, theme) == []), (theme, "question", wrong(page, theme))
        picture(page, f"accessible-{theme}-question")
        keep.click()
        panel.click("Resume")
        panel.is_in("running")
        assert later(lambda: wrong(page, theme) == []), (theme, "running", wrong(page, theme))
        panel.click("Pause")
        panel.is_in("paused")
    assert {"range", "switch", "tab", "text", "button", "select-one", "application"} <= kinds, kinds
    shown.run(3)
    panel.click("Resume")
    panel.is_in("error")
    panel.tab("Hooks")
    for theme in reversed(THEMES):
        paint(page, theme)
        assert later(lambda: wrong(page, theme) == []), (theme, "error", wrong(page, theme))
        picture(page, f"accessible-{theme}-error")
    assert shown.lab.problems == []


@pytest.mark.long
def test_finished_and_a_loss_that_is_not_finite(jupyterlab, browser):
    """What is green or red keeps its contrast, in both themes."""
    with jupyterlab.new_page(browser, width=1600, height=1500) as lab:
        run = Live(lab, jupyterlab, [FINISHED, NAN], setup=FULL)
        for cell, state in ((1, "finished"), (2, "error")):
            run.run(cell)
            run.panel(cell).is_in(state)
            lab.cell(cell).locator(DRAWN).first.wait_for()
            for theme in THEMES:
                paint(lab.page, theme)
                assert later(lambda: wrong(lab.page, theme) == []), (state, theme)
            picture(lab.page, f"ended-{state}")
        paint(lab.page, "light")
        assert lab.problems == []
