"""The panel in pages that are not JupyterLab's, and its focus:
real widgets, taken from a real page."""

import os
from pathlib import Path

import pytest
from contrast import CONTRAST
from live_page import PANEL, SETUP, Live, later, settle

pytestmark = pytest.mark.browser

# How other places paint their page: with no variables at all, with those of VS Code, and with the
# light ones that ipywidgets brings along.
LIGHT_WIDGETS = """:root { --jp-ui-font-color0: black; --jp-ui-font-color1: black; --jp-layout-color1: white; --jp-widgets-color: black;
    --jp-widgets-input-color: black; --jp-widgets-input-background-color: white; }"""  # noqa: E501
VSCODE = (":root {{ --vscode-foreground: {ink}; --vscode-editor-background: {ground}; "
          "--vscode-focusBorder: #0078d4; {widgets} }}")
# style of the page, attributes of html, class of body, colour scheme of the browser, is the panel
# to be dark
PAGES = {
    "white": ("body { background: white }", "", "", "light", False),
    "dark browser": ("body { background: #111 }", "", "", "dark", True),
    "dark body": ("body { background: #1f1f1f; color: #ccc }", "", "vscode-dark", "light", True),
    "VS Code light": (VSCODE.format(ink="#3b3b3b", ground="#ffffff", widgets="") + LIGHT_WIDGETS,
                      "", "vscode-light", "dark", False),
    "VS Code dark": (VSCODE.format(ink="#cccccc", ground="#1f1f1f", widgets="") + LIGHT_WIDGETS, "",
                     "vscode-dark", "light", True),
    "Colab dark": ("body { background: #383838 }" + LIGHT_WIDGETS, 'theme="dark"', "", "light",
                   True),
}


@pytest.fixture(scope="module")
def panels(lab_server, browser):
    """The panel's markup as the widgets made it in JupyterLab:
    running, paused, and after an error."""
    place = lab_server.place()
    with place.new_page(browser, height=1400) as lab:
        run = Live(lab, place,
                   ["trainer.start()", "noise.fails_at = 1 + trainer.step_state.optimizer_step"],
                   setup=SETUP).start()
        shown = ("() => document.querySelector('.jp-Notebook .jp-Cell:nth-of-type(2) .tnb, "
                 ".tnb').outerHTML")
        made = {"running": lab.page.evaluate(shown)}
        run.row("lr").locator("input").fill("minus one")
        run.row("lr").locator("input").press("Enter")
        run.row("lr").locator(".hint").get_by_text("refused").wait_for()
        run.click("Pause")
        run.state("paused")
        lab.cell(1).get_by_role("tab", name="Journal").click()
        lab.cell(1).locator(".tnb-journal").wait_for()
        made["paused"] = lab.page.evaluate(shown)
        lab.run_cell(2)
        lab.wait_cell(2)
        run.click("Resume")
        run.state("error")
        lab.cell(1).locator(".tnb-message").get_by_text("ValueError").first.wait_for()
        made["error"] = lab.page.evaluate(shown)
    return made


@pytest.mark.parametrize("kind", PAGES)
def test_the_panel_paints_itself_in_any_page(browser, panels, kind, tmp_path):
    """Ground and text are its own: each text has a contrast of 4.5:1 or more, and the panel is dark
    where the page is."""
    style, attributes, body, scheme, dark = PAGES[kind]
    context = browser.new_context(viewport={"width": 1000, "height": 1300}, color_scheme=scheme)
    page = context.new_page()
    try:
        for state, html in panels.items():
            page.set_content(
                f'<!doctype html><html {attributes}><style>{style}</style><body '
                f'class="{body}">{html}</body></html>')
            seen = page.evaluate(CONTRAST)
            if folder := os.environ.get("TRAINER_NB_PICTURES"):
                page.screenshot(path=str(Path(folder,
                                              f"page-{kind.replace(' ', '-')}-{state}.png")))
            assert len(seen) > 60
            poor = [each for each in seen if each["ratio"] < 4.5]
            assert poor == [], (state, poor[:5])
            ground = page.evaluate(
                "() => getComputedStyle(document.querySelector('.tnb')).backgroundColor")
            level = [int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")]
            assert (max(level) < 64) if dark else (min(level) > 200), ground
    finally:
        context.close()


def focused(lab):
    """What has the focus: text, class, and whether it is in a panel."""
    return lab.page.evaluate("""() => {
        const at = document.activeElement;
        return { text: at.textContent.slice(0, 40).trim(), name: at.className, inside: !!at.closest('.tnb'), button: at.tagName === 'BUTTON' };
    }""")  # noqa: E501


OFF = """button => {
    window.offs = 0;  // how often it was disabled
    new MutationObserver(all => { window.offs += all.filter(each => each.oldValue === null).length; })
        .observe(button, { attributeFilter: ['disabled'], attributeOldValue: true });
}"""  # noqa: E501


def test_the_focus_stays_in_the_panel(jupyterlab, browser):
    """Step, Stop and a button that vanishes:
    the next key does nothing to the notebook, and Step has the focus again."""
    cells = ["ended = trainer.fit().status"]
    with jupyterlab.new_page(browser, height=1400) as lab:
        run = Live(lab, jupyterlab, cells).start()
        count = "() => window.jupyterapp.shell.currentWidget.content.widgets.length"
        before = lab.page.evaluate(count)
        run.click("Pause")
        run.state("paused")
        button = lab.cell(1).locator(".tnb-controls button", has_text="Step")
        button.evaluate(OFF)
        for _ in range(3):
            assert later(button.is_enabled)  # it comes a moment after the word "paused"
            step, offs = run.step, lab.page.evaluate("() => window.offs")
            button.focus()
            lab.page.keyboard.press("Space")
            assert later(lambda: run.step == step + 1)
            # the button is disabled while the step is made
            assert later(lambda: lab.page.evaluate("() => window.offs") > offs)
            assert later(button.is_enabled)
            settle(lab.page)
            assert later(lambda: focused(lab)["text"] == "Step"), focused(lab)
        lab.cell(1).get_by_role("button", name="Inspect").first.focus()
        lab.page.keyboard.press("Enter")
        run.click("Resume")
        assert run.goes_on()
        lab.cell(1).locator(".tnb-controls button", has_text="Stop").focus()
        lab.page.keyboard.press("Space")
        lab.wait_cell(1)
        assert later(lambda: lab.cell(1).locator(".tnb-controls button",
                                                 has_text="Stop").is_disabled())
        assert later(lambda: focused(lab)["inside"] and not focused(lab)["button"]), focused(lab)
        for key in "abxdd":
            lab.page.keyboard.press(key)
        assert lab.page.evaluate(count) == before
        lab.page.keyboard.press("Tab")
        assert later(lambda: focused(lab)["inside"] and focused(lab)["text"] == "Resume"), focused(
            lab)
        assert lab.problems == []


COLAB = """
import google.colab, ipykernel, ipywidgets, IPython
from google.colab import output
print(trainer.fit().status, ipykernel.__version__, ipywidgets.__version__, IPython.__version__,
      output.asked > 0)
"""
# Colab's own is in its page alone
STAND_IN = "asked = 0\ndef enable_custom_widget_manager():\n    global asked\n    asked += 1\n"


@pytest.mark.long  # test_older_widgets, and the pages above
def test_the_panel_lives_in_classic_notebook_with_the_versions_of_colab(tmp_path, browser):
    """ipywidgets 7: curves, Pause, Resume, a rate and Stop while the cell runs;
    a cell queued meanwhile runs after it."""
    from classic_page import ENVIRONMENT, ClassicServer

    assert ENVIRONMENT.exists(), "run `make env`"
    package = tmp_path / "stand_in" / "google" / "colab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "output.py").write_text(STAND_IN)
    path = os.pathsep.join(filter(None, [str(tmp_path / "stand_in"), os.environ.get("PYTHONPATH")]))
    with (ClassicServer(tmp_path / "notebooks", environment={"PYTHONPATH": path}) as server,
          server.new_page(browser, height=1500) as page):
        run = Live(page, server, [COLAB, "print(1 + 1)"],
                   setup="import google.colab\n" + SETUP).start()
        run.click("Pause")
        run.state("paused")
        assert run.freezes() and page.is_running(1)
        if folder := os.environ.get("TRAINER_NB_PICTURES"):
            page.page.screenshot(path=str(Path(folder, "classic-paused.png")), full_page=True)
        assert later(lambda: page.cell(1).locator(".tnb-kept").is_visible() is False)
        by_role = page.page.get_by_role
        rate = by_role("slider", name="lr", exact=True)
        assert later(lambda: rate.get_attribute("aria-valuetext") == "0.01")
        by_role("switch", name="noise.loud").wait_for()
        by_role("tab", selected=True).first.wait_for()
        page.page.locator(".tnb-said", has_text="Paused at step").wait_for(state="attached")
        run.click("Resume")
        assert run.goes_on()
        page.run_cell(2)
        run.row("lr").locator("input").fill("0.123")
        run.row("lr").locator("input").press("Enter")
        assert later(lambda: run.told["rate"] == 0.123)
        assert run.goes_on() and page.is_running(1) and page.is_running(2)
        run.stop()
        page.wait_cell(2)
        # lines before it, if the page of a busy machine was too late to draw the panel
        *_, last = page.cell(1).locator(".output_stdout").inner_text().strip().splitlines()
        assert last == "stopped 6.17.1 7.7.1 7.34.0 True"
        assert page.cell(2).locator(".output_stdout").inner_text().strip() == "2"
        assert page.problems == []


@pytest.mark.long
@pytest.mark.parametrize("begin", ["trainer.fit()", "trainer.start()"])
def test_classic_notebook_shows_the_panel_again_after_a_reload(tmp_path, browser, begin):
    """In mid-run, also while the cell holds the kernel; the panel counts on, and a click acts."""
    from classic_page import ClassicServer

    with (ClassicServer(tmp_path / "notebooks") as server,
          server.new_page(browser, height=1500) as page):
        run = Live(page, server, [begin]).start()
        page.page.evaluate("() => Jupyter.notebook.save_checkpoint()")
        path = server.folder / "run.ipynb"
        assert later(lambda: "widget-view" in path.read_text())
        page.page.once("dialog", lambda dialog: dialog.accept())  # unsaved changes
        page.page.reload()
        page.cell(1).locator(PANEL).first.wait_for()
        before = run.step
        assert run.goes_on()
        assert later(lambda: run.shown_step() > before)
        run.click("Pause")
        run.state("paused")
        assert run.freezes()
        run.click("Stop")
        assert run.ends() and page.problems == []
