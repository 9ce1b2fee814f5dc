"""The panel in pages that are not JupyterLab's: its markup, taken from a real page, in others; and
with the versions of Colab."""

import os
from pathlib import Path

import pytest
from contrast import CONTRAST
from live_page import SETUP, Live, later

from trainer_nb.panel.widget import module_file

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


STYLE = module_file("panel.css").decode()


@pytest.fixture(scope="module")
def panels(lab_server, browser):
    """The panel's markup as it was made in JupyterLab: running, paused, and after an error."""
    place = lab_server.place()
    with place.new_page(browser, height=1400) as lab:
        run = Live(lab, place,
                   ["trainer.start()", "noise.fails_at = 1 + trainer.step_state.optimizer_step"],
                   setup=SETUP).start()
        panel, markup = run.panel(), "box => box.outerHTML"
        panel.box.get_by_role("tabpanel").locator("tbody tr").first.wait_for()
        made = {"running": panel.box.evaluate(markup)}
        panel.enter("lr", "minus one")
        hint = panel.row("lr").locator(".hint")
        assert later(lambda: "is not a number" in hint.inner_text())
        panel.click("Pause")
        panel.is_in("paused")
        panel.tab("Journal").locator("form").wait_for()
        made["paused"] = panel.box.evaluate(markup)
        run.run(2)
        panel.click("Resume")
        panel.is_in("error")
        panel.says("ValueError")
        panel.tab("Hooks").locator("details").wait_for()
        made["error"] = panel.box.evaluate(markup)
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
                f'<!doctype html><html {attributes}><style>{STYLE}{style}</style><body '
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


COLAB = """
import google.colab, ipykernel, ipywidgets, IPython
from google.colab import output
print(trainer.fit().status, ipykernel.__version__, ipywidgets.__version__, IPython.__version__,
      output.asked > 0)
"""
# Colab's own is in its page alone
STAND_IN = "asked = 0\ndef enable_custom_widget_manager():\n    global asked\n    asked += 1\n"


@pytest.mark.long  # test_browser_module has more of classic Notebook
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
        panel = run.panel()
        panel.click("Pause")
        panel.is_in("paused")
        assert run.freezes() and page.is_running(1)
        if folder := os.environ.get("TRAINER_NB_PICTURES"):
            page.page.screenshot(path=str(Path(folder, "classic-paused.png")), full_page=True)
        assert later(lambda: page.cell(1).locator(".tnb-kept").is_visible() is False)
        panel.click("Resume")
        assert run.goes_on()
        page.run_cell(2)
        panel.enter("lr", "0.123")
        assert later(lambda: run.told["rate"] == 0.123)
        assert run.goes_on() and page.is_running(1) and page.is_running(2)
        run.stop()
        page.wait_cell(2)
        # lines before it, if the page of a busy machine was too late to draw the panel
        *_, last = page.cell(1).locator(".output_stdout").inner_text().strip().splitlines()
        assert last == "stopped 6.17.1 7.7.1 7.34.0 True"
        assert page.cell(2).locator(".output_stdout").inner_text().strip() == "2"
        assert page.problems == []
