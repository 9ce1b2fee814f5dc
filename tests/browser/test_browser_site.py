"""The documentation's pages in a browser: both themes, and a phone."""

import io
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image, ImageStat

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
SHEET = (ROOT / "nbs" / "site.css").read_text(encoding="utf-8")
# colours, classes and rules of Quarto 1.7's two themes that site.css mends
THEMES = """
body { margin: 0; font: 17px sans-serif; background: white; color: #343a40; }
body.quarto-dark { background: #222; color: white; }
code { white-space: pre; background: #f8f9fa; color: #7d12ba; }
:is(p, td) code { white-space: pre-wrap; }
a { color: #2761e3; } .quarto-dark a { color: #00bc8c; } a > code { color: inherit; }
td a { word-break: break-word; } table { width: 100%; }
.navbar { background-color: #2780e3; color: #fdfeff; }
.quarto-dark .navbar { background-color: #375a7f; color: #dee2e6; }
.quarto-title-breadcrumbs .breadcrumb li:last-of-type a { color: #6c757d; }
.quarto-dark .breadcrumb { background: #434343; }
.quarto-light figcaption { color: #6d7a86; } .nav-page-text { color: #6c757d; }
"""
PARTS = """<div class="navbar"><span>trainer_nb</span></div><nav class="quarto-title-breadcrumbs">
<ol class="breadcrumb"><li class="breadcrumb-item"><a href="#a">Reference</a></li></ol></nav>
<main id="a"><p>Say <code>trainer.fit()</code>, see <a href="#a"><code>Task</code></a>.</p>
<ul><li><code>Trainer(train_step={"d": step_d, "g": step_g}, optim={"d": 1, "g": 2})</code></li>
</ul><figcaption>A run</figcaption><table><tr><td><a href="#a"><code>StepState</code></a></td>
<td>""" + "position, " * 60 + """</td><td><code>step_state.optimizer_step_of_a_run</code></td>
</tr></table><p><code>""" + "a_long_name_" * 5 + """</code></p></main>
<div class="nav-page"><span class="nav-page-text">Steer a run</span></div>"""


def test_text_can_be_read_in_both_themes_and_on_a_phone(browser):
    """Contrast by axe-core, the width of the page, and a name that stays in one line."""
    page, seen = browser.new_page(viewport={"width": 390, "height": 844}), {}
    for rules in ("", SHEET):
        for theme in ("light", "dark"):
            page.set_content(f"<html lang='en'><title>a</title><style>{THEMES}{rules}</style>"
                             f"<body class='quarto-{theme}'>{PARTS}</body></html>")
            faint = Axe().run(page, options={"runOnly": ["color-contrast"]}).response["violations"]
            wide = page.evaluate("document.documentElement.scrollWidth")
            seen[bool(rules), theme] = ([node["html"] for each in faint for node in each["nodes"]],
                                        wide > 390)
    page.set_viewport_size({"width": 1000, "height": 844})
    lines = page.evaluate("document.querySelector('td code').getClientRects().length")
    page.close()
    assert seen[True, "light"] == seen[True, "dark"] == ([], False) and lines == 1, seen
    assert all(len(seen[False, theme][0]) > 1 and seen[False, theme][1]
               for theme in ("light", "dark")), seen


@pytest.mark.parametrize("system", ["light", "dark"])
def test_pictures_of_runs_follow_the_theme_of_the_site(browser, system):
    """The switch of a page decides, whatever look the system has."""
    import nbformat  # takes a second

    cells = nbformat.read(ROOT / "nbs" / "guide" / "tutorials" / "quick_start.ipynb", 4).cells
    shown = [output.get("data", {}).get("text/html", "")
             for cell in cells for output in cell.get("outputs", [])]
    kept = next(text for text in shown if "tnb-kept" in text)
    page, seen = browser.new_page(color_scheme=system), {}
    for theme in ("light", "dark"):
        page.set_content(f"<style>{SHEET}</style><body class='quarto-{theme}'>{kept}</body>")
        picture = page.locator(".tnb-kept img")
        picture.wait_for()
        shot = Image.open(io.BytesIO(picture.screenshot())).convert("L")
        (seen[theme],) = ImageStat.Stat(shot).mean
    page.close()
    assert seen["light"] > 200 and seen["dark"] < 90, seen
