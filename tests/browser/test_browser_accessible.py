"""The panel for those who do not see it well, or have no mouse.

What axe-core finds in it, focus, roles, what is said, and a session by keys alone."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from contrast import faint, findings
from live_page import PANEL, SETUP, Live, later, open_tab, settle
from page_runs import Served, training
from PIL import Image

from trainer_nb.panel.style import package_text

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
                          AlertsHook(data_share=None, hook_share=None), SnapshotHook(20)], **settings)
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
# Each page is dark once in `make test`, all of its tabs and controls in `make long`.
in_both_themes = pytest.mark.parametrize(
    "theme", ["light", pytest.param("dark", marks=pytest.mark.long)])


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


def picture(page, name):
    """For a person who wants to see it: TRAINER_NB_PICTURES names a folder."""
    if folder := os.environ.get("TRAINER_NB_PICTURES"):
        page.screenshot(path=str(Path(folder, f"accessible-{name}.png")))


def dressed(page):
    """Wait until the roles stand: they follow what is drawn by a tenth of a second."""
    page.wait_for_function(
        "() => document.querySelector('.tnb-tabs .on')?.getAttribute('aria-selected') === 'true'")
    settle(page, 150)


@pytest.fixture(scope="module")
def whole(lab_server, browser):
    """A page in which a run trains in the background, its panel wide enough for all controls."""
    place = lab_server.place()
    with place.new_page(browser, width=1600, height=1500) as lab:
        yield Live(lab, place, ["trainer.start()", "hold()"], setup=FULL).start()


@pytest.fixture
def shown(whole):
    """That page with the run held and the panel as at first, however another test has left it."""
    whole.page.keyboard.press("Escape")
    whole.lab.run_cell(2)
    whole.lab.wait_cell(2)
    whole.state("paused")
    paint(whole.page, "light")
    open_tab(panel(whole), 0)
    dressed(whole.page)
    return whole


def panel(run):
    """The panel of the run."""
    return run.lab.cell(1).locator(".tnb").first


def tabs(run):
    """The tabs of the panel."""
    return panel(run).locator(".tnb-tabs button")


class Keys:
    """Nothing but keys: Tab until a control has the focus, by what a screen reader would say."""

    def __init__(self, page):
        self.page = page

    @property
    def at(self):
        """Name, kind and place of what has the focus."""
        return self.page.evaluate("""() => {
            const at = document.activeElement;
            return { name: at.getAttribute('aria-label') ?? at.labels?.[0]?.textContent.trim() ?? at.textContent.trim(), role: at.role || at.type || at.tagName,
                     value: at.getAttribute('aria-valuetext') ?? at.value ?? '', inside: Boolean(at.closest('.tnb')) };
        }""")  # noqa: E501

    def press(self, *keys):
        """One key after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def to(self, name, role=None, key="Tab", most=60):
        """Tab (or another key) until a control with this name and role has the focus."""
        for _ in range(most):
            self.press(key)
            at = self.at
            if at["inside"] and at["name"].startswith(name) and role in (None, at["role"]):
                return at
        raise AssertionError(f"no way to {name} by {key}; the focus is on {self.at}")

    def stays(self, name, role=None):
        """The focus is on this control, now and when what was asked for is done: meanwhile a
        button may be disabled, and the focus waits beside it."""
        settle(self.page, 400)
        def there():
            at = self.at
            return at["inside"] and at["name"].startswith(name) and role in (None, at["role"])
        assert later(there), self.at


@pytest.mark.long  # keys, focus and roles: the tests below, and test_browser_live has keys
def test_a_whole_session_by_the_keyboard(jupyterlab, browser):
    """Start, pause, a rate in the box and by the slider, tabs, a hook off, a step, back, on, stop;
    the focus stays where a person left it."""
    setup = SETUP + "from trainer_nb import SnapshotHook\ntrainer.hooks.add(SnapshotHook(20))"
    with jupyterlab.new_page(browser, width=1600, height=1500) as lab:
        run, keys = Live(lab, jupyterlab, ["trainer.fit().status"], setup=setup), Keys(lab.page)
        said = lambda start: later(lambda: lab.page.locator(
            ".tnb-said").inner_text().startswith(start))
        lab.page.evaluate("() => window.jupyterapp.commands.execute('notebook:enter-command-mode')")
        keys.press("ArrowDown", "Control+Enter")
        lab.cell(1).locator(PANEL).first.wait_for()
        assert later(lambda: run.step > 60)
        keys.to("Pause", "submit")
        keys.press("Space")
        run.state("paused")
        keys.stays("Resume")
        assert run.freezes() and said(f"Paused at step {run.step:,}")

        keys.to("lr", "text")
        keys.press("Control+a")
        lab.page.keyboard.type("0.02")
        keys.press("Enter")
        keys.stays("lr", "text")
        at = keys.to("lr", "slider", "Shift+Tab")
        assert at["value"] == "0.02"
        keys.press("ArrowRight")
        keys.stays("lr", "slider")
        value = run.row("lr").locator("input")
        assert later(lambda: 0.0205 < float(keys.at["value"]) < 0.022
                     and value.input_value() == keys.at["value"]), keys.at
        rate = float(keys.at["value"])

        keys.to("Hooks", "tab")
        keys.press("ArrowRight", "ArrowRight", "ArrowRight")
        lab.cell(1).locator(".tnb-inspect").wait_for()
        keys.stays("Inspect", "tab")
        chosen = lab.cell(1).get_by_role("tab", selected=True)
        assert later(lambda: chosen.inner_text().startswith("Inspect"))
        keys.press("Home")
        lab.cell(1).locator(".hrows").wait_for()
        keys.stays("Hooks", "tab")
        keys.to("Noise on or off", "switch")
        keys.press("Space")
        keys.stays("Noise on or off", "switch")

        held = run.step
        keys.to("Step", "submit", "Shift+Tab")
        keys.press("Enter")
        assert later(lambda: run.step == held + 1 and run.told["rate"] == rate), run.told
        assert run.told["order"][-1:] == ["witness"]
        keys.stays("Step")
        assert said(f"Paused at step {held + 1:,}") and not lab.page.get_by_role(
            "switch", name="Noise on or off").is_checked()

        keys.to("Rewind", "submit")
        keys.press("Enter")
        assert later(lambda: keys.at["name"] == "Saved states"), keys.at
        keys.press("Escape")
        assert later(lambda: keys.at["name"] == "Rewind"), keys.at
        chooser = lab.cell(1).locator(".tnb-chooser")
        keys.press("Space")
        chooser.wait_for()
        keys.stays("Saved states")
        keys.to("Rewind here", "submit")
        keys.press("Enter")
        place = max(held // 20 * 20, held // 16 * 16)  # each 20 steps, and where an epoch begins
        assert said(f"Paused at step {place:,},"), lab.page.locator(".tnb-said").inner_text()
        keys.stays("Rewind", "submit")

        keys.to("Resume", "submit", "Shift+Tab")
        keys.press("Enter")
        assert run.goes_on(5)
        keys.stays("Pause")
        keys.to("Stop", "submit")
        keys.press("Space")
        assert run.ends()
        run.state("paused")
        keys.stays("Run controls")
        assert said("Stopped at step") and lab.problems == []


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
    "button": ("Hooks", ".tnb-controls button >> nth=1"),
    "slider": ("Hooks", ".tnb-row .noUi-handle >> nth=0"),
    "box": ("Hooks", ".tnb-row input >> nth=0"),
    "smoothing": ("Hooks", ".smooth .noUi-handle"),
    "switch": ("Hooks", ".hrow .switch input >> nth=0"),
    "tab": ("Hooks", ".tnb-tabs .tab.on"),
    "segment": ("Hooks", ".segments button >> nth=0"),
    "choice": ("Hooks", ".tnb-row select >> nth=0"),
    "fold": ("Hooks", "button.fold >> nth=0"),
    "map": ("Layers", ".heat-map .field"),
    "head of a column": ("Table", ".tnb-datatable th button >> nth=0")}


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


@pytest.mark.long  # test_older_widgets_and_an_end, and roles_names_and_values
def test_states_are_said_once(jupyterlab, browser):
    """Nothing while it runs, however often the panel is drawn; then each new state, why a value
    was refused, and how it ended."""
    with jupyterlab.new_page(browser, width=1600, height=1500) as lab:
        run = Live(lab, jupyterlab, ["trainer.start()", FAILS]).start()
        page, said = lab.page, lab.page.locator(".tnb-said").first
        run.click("Pause")
        assert later(lambda: said.inner_text().startswith("Paused")), said.inner_text()
        page.evaluate("""() => {
            window.said = [];
            new MutationObserver(() => window.said.push(document.querySelector('.tnb-said').textContent))
                .observe(document.querySelector('.tnb-said'), { childList: true, characterData: true, subtree: true });
        }""")  # noqa: E501
        run.click("Resume")
        assert later(lambda: said.inner_text() == "Running"), (
            said.inner_text(), page.evaluate("() => window.said"))
        run.redrawn()
        settle(page, 500)  # what is new is said within half a second
        assert page.evaluate("() => window.said") == ["Running"]
        amount = run.row("noise.amount").locator("input[type=text]")
        amount.fill("7")
        amount.press("Enter")
        assert later(lambda: said.inner_text().startswith("refused: ")), said.inner_text()
        assert later(lambda: amount.get_attribute("aria-invalid") == "true")
        run.click("Pause")
        assert later(lambda: said.inner_text() ==
                     f"Paused at step {run.step:,}, after a whole step."), said.inner_text()
        assert later(lambda: findings(page) == []), findings(page)
        lab.run_cell(2)
        lab.wait_cell(2)
        run.click("Resume")
        run.state("error")
        assert later(lambda: said.inner_text().startswith(
            f"Failed after step {run.step:,}: ValueError")), said.inner_text()
        assert len(page.evaluate("() => window.said")) <= 5
        for theme in THEMES:
            paint(page, theme)
            assert later(lambda: wrong(page, theme) == []), (theme, wrong(page, theme))
            picture(page, f"error-{theme}")
        paint(page, "light")


@pytest.mark.long  # the end by an error, in both themes, is in the test before
def test_finished_and_a_loss_that_is_not_finite(jupyterlab, browser):
    """What is green or red keeps its contrast, in both themes."""
    with jupyterlab.new_page(browser, width=1600, height=1500) as lab:
        run = Live(lab, jupyterlab, [FINISHED, NAN], setup=FULL)
        for cell, state in ((1, "finished"), (2, "error")):
            lab.run_cell(cell)
            lab.wait_cell(cell)
            run.state(state, cell)
            lab.cell(cell).locator(PANEL).first.wait_for()
            dressed(lab.page)
            for theme in THEMES:
                paint(lab.page, theme)
                assert later(lambda: wrong(lab.page, theme) == []), (state, theme)
            picture(lab.page, f"ended-{state}")
        paint(lab.page, "light")
        assert lab.problems == []


# What ipywidgets 7 makes of a tunable and of two tabs: its sliders say nothing of themselves.
OLD = """<div class="tnb is-running">
    <div><div class="tnb-head"><span class="pill">Running</span><span class="name">Net</span></div></div>
    <div class="tnb-message"><div><div class="message">Running.</div></div></div>
    <div class="widget-box tnb-row refused"><div class="nm" title="lr: a rate">lr</div>
      <div class="slider ui-slider"><span class="ui-slider-handle" tabindex="0" style="left: 25%"></span></div>
      <input type="text" value="0.01"><div class="tnb-hint"><div class="hint">refused: no</div></div></div>
    <div class="tnb-row"><div class="nm" title="decay: of the weights">decay</div><div class="log"><div class="noUi-target"><div class="noUi-handle" role="slider"
      tabindex="0" aria-valuetext="-2"></div></div></div><input type="text" value="0.01"></div>
    <div class="tnb-tabs"><button class="tab on">One</button><button class="tab">Two</button></div><div class="tnb-pane">nothing to focus</div></div>"""  # noqa: E501


def test_older_widgets_and_an_end(browser):
    """A slider without roles gets them, a logarithmic one says its value while it moves; when the
    panel goes, nothing is written any more."""
    page = browser.new_page()
    try:
        page.set_content(OLD)
        page.evaluate(
            "() => { document.querySelector('.noUi-target').noUiSlider = { get: () => -2 }; }")
        page.evaluate(package_text("aria.js") +
     "; window.aria = new Aria(document.querySelector('.tnb'))")
        handle, box, pane = page.locator(
            ".ui-slider-handle"), page.locator("input").first, page.locator(".tnb-pane")
        assert [handle.get_attribute(
            f"aria-{name}") for name in ("label", "valuetext", "valuenow")] == ["lr", "0.01", "25"]
        assert handle.get_attribute("role") == "slider" and box.get_attribute(
            "aria-invalid") == "true" and pane.get_attribute("tabindex") == "0"
        assert page.get_by_role("region", name="Training run Net").is_visible()
        decay = page.get_by_role("slider", name="decay")
        assert decay.get_attribute("aria-valuetext") == "0.01"
        moved = """() => {
            const handle = document.querySelector('.noUi-handle');
            handle.parentElement.noUiSlider = { get: () => -3 };
            handle.setAttribute('aria-valuetext', '-3');
        }"""
        page.evaluate(moved)
        assert later(lambda: decay.get_attribute("aria-valuetext") == "0.001")
        change = """() => {
            document.querySelector('.pill').textContent = 'Paused';
            document.querySelectorAll('.tab').forEach((tab) => tab.classList.toggle('on'));
        }"""
        page.evaluate(change)
        page.locator(".tnb-said", has_text="Paused").wait_for(state="attached")
        assert page.locator(".tnb-said").inner_text() == "Paused"  # and not what was refused before
        assert later(lambda: page.get_by_role("tab", selected=True).inner_text() == "Two")
        page.evaluate("() => document.querySelector('.tab').addEventListener("
                      "'click', () => { window.opened = true; })")
        page.get_by_role("tab", name="Two").focus()
        page.keyboard.press("ArrowRight")  # from the last to the first, which opens
        assert page.evaluate("() => document.activeElement.textContent") == "One"
        assert later(lambda: page.evaluate("() => window.opened === true"))
        page.evaluate("() => aria.stop()")
        page.evaluate(change)
        page.get_by_role("tab", name="Two").focus()
        page.keyboard.press("ArrowLeft")
        settle(page, 400)
        assert page.locator(".tnb-said").count() == 0 and page.get_by_role("tab",
                            selected=True).inner_text() == "Two"
        assert page.evaluate("() => document.activeElement.textContent") == "Two"
    finally:
        page.close()


@pytest.mark.long  # test_browser_page: every control has a name; the rest is what the panel draws
def test_the_page_of_a_run(tmp_path, browser):
    """`trainer-nb serve`: wide and narrow, light and dark, to steer and to look."""
    with training(tmp_path / "exp1") as run, Served(run.path, "--port", 0) as served:
        for link, looks in ((served.steer_url, ((1300, "light"), (390, "dark"))),
                            (served.look_url, ((1300, "dark"),))):
            page = browser.new_page()
            page.goto(link)
            page.locator(".js-plotly-plot .main-svg").first.wait_for()
            page.get_by_role("img", name="train/loss").wait_for()
            for width, theme in looks:
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=theme)
                settle(page)
                assert later(lambda: findings(page, "html") == []), (width, theme)
                if width == 390:
                    page.get_by_role("button", name="Pause").click()
                    page.locator(".tnb.is-paused").wait_for()
                    assert later(lambda: findings(page, "html") == [])
                page.get_by_label("y", exact=True).focus()
                page.keyboard.press("Tab")
                assert later(lambda: page.evaluate(UNMARKED)["poor"] == [])
                picture(page, f"page-{width}-{theme}")
            page.context.close()


# On a page with all panes, which stays open for these


@in_both_themes
def test_every_tab_in_light_and_dark(shown, theme):
    """Paused, so that each tab has what it can show; text keeps its contrast."""
    page = shown.page
    paint(page, theme)
    for at in range(tabs(shown).count()):
        open_tab(panel(shown), at)
        dressed(page)
        picture(page, f"{theme}-{at}")
        assert later(lambda: wrong(page, theme) == []), (at, wrong(page, theme))
    assert tabs(shown).count() == 9


@in_both_themes
def test_what_opens_in_the_panel(shown, theme):
    """The states to go back to, the list of numbers, the question before a far value; running."""
    page, board = shown.page, panel(shown)
    chooser, pins = board.locator(".tnb-chooser:has(.cancel)"), board.locator(".tnb-pins")
    rate = shown.row("lr").locator("input[type=text]")
    paint(page, theme)
    shown.click("Rewind")
    chooser.wait_for()
    assert later(lambda: wrong(page, theme) == []), ("chooser", wrong(page, theme))
    page.keyboard.press("Escape")
    chooser.wait_for(state="hidden")
    pins.locator("button").first.click()
    pins.locator(".list").wait_for()
    assert later(lambda: wrong(page, theme) == []), ("pins", wrong(page, theme))
    page.keyboard.press("Escape")
    pins.locator(".list").wait_for(state="hidden")
    rate.fill("1000")
    rate.press("Enter")
    question = board.locator(".tnb-sure")
    question.wait_for()
    assert later(lambda: wrong(page, theme) == []), ("question", wrong(page, theme))
    picture(page, f"question-{theme}")
    question.get_by_role("button", name="Keep").click()
    question.wait_for(state="hidden")
    shown.click("Resume")
    shown.state("running")
    assert later(lambda: wrong(page, theme) == []), ("running", wrong(page, theme))


@in_both_themes
def test_each_control_shows_that_it_has_the_focus(shown, theme):
    """In all tabs, in the dark in the first; of each kind the ring is really painted on all
    sides."""
    page, kinds, light = shown.page, set(), theme == "light"
    paint(page, theme)
    for at in range(tabs(shown).count() if light else 1):
        tab = open_tab(panel(shown), at)
        dressed(page)
        page.keyboard.press("Tab")  # from here on the browser shows where the focus is
        poor = lambda: page.evaluate(UNMARKED)["poor"]
        assert later(lambda: poor() == []), (tab.inner_text(), poor()[:5])
        kinds |= set(page.evaluate(UNMARKED)["seen"])
    assert {"slider", "switch", "tab", "text", "submit", "select-one",
            *(["application"] if light else [])} <= kinds, kinds
    for kind, (tab, place) in KINDS.items() if light else list(KINDS.items())[:7]:
        open_tab(panel(shown), tab)
        control = panel(shown).locator(place)
        control.wait_for()
        dressed(page)
        page.keyboard.press("Tab")
        control.evaluate("node => node.scrollIntoView({ block: 'start' })")  # at the edge
        assert later(lambda: ring(page, control) > 1.6), (kind, ring(page, control))
        picture(page, f"focus-{theme}-{kind.replace(' ', '-')}")


# After a reload under load, Lab does not always find the models of a large panel ("widget model not
# found"), and draws nothing: a limit of a panel of 400 models, which `make long` still looks at.
@pytest.mark.parametrize("reloaded", [False, pytest.param(True, marks=pytest.mark.long)],
                         ids=["at first", "reloaded"])
def test_roles_names_and_values_in_real_units(shown, reloaded):
    """With one line that speaks."""
    page = shown.page
    def right():
        dressed(page)
        board = panel(shown)
        named = lambda role, name, **about: board.get_by_role(role, name=name, **about).first
        assert page.get_by_role("region", name="Training run Sequential").count() == 1
        assert named("slider", "lr", exact=True).get_attribute("aria-valuetext") == "0.01"
        window = board.locator(".smooth").first.evaluate(WINDOW)
        assert named("slider", "Smoothing").get_attribute("aria-valuetext") == f"{window} steps"
        assert named("switch", "Noise").is_checked() and named("switch", "noise.loud").is_visible()
        chosen = board.get_by_role("tab", selected=True).first
        labelled = board.get_by_role("tabpanel").first.get_attribute("aria-labelledby")
        assert chosen.inner_text().startswith("Hooks") and labelled == chosen.get_attribute("id")
        assert named("img", "Curves. train/loss").is_visible()
        assert named("button", "step", exact=True, pressed=True).is_visible()
        hint = board.locator(".tnb-row .tnb-hint").first.get_attribute("id")
        assert hint and named("slider", "lr", exact=True).get_attribute("aria-describedby") == hint
        assert page.locator(".tnb-said").count() == 1
        ids = page.evaluate(
            """() => [...document.querySelectorAll('.tnb [id]')]
                .map((node) => node.id).filter((id) => id.startsWith('tnb-'))""")
        assert len(ids) == len(set(ids)) > 10
    if reloaded:
        shown.lab.save()
        shown.lab.reload()
        page.locator(PANEL).first.wait_for()
        tabs(shown).first.wait_for()
    right()


WINDOW = "node => Math.round(10 ** node.querySelector('.noUi-target').noUiSlider.get(true))"
