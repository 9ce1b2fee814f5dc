"""The page of a run in real Chromium: what it shows and does at 1300 and 390 px, what a strict
policy forbids, and what a guest cannot do."""

import http.server
import json
import os
import threading
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from contrast import findings
from live_page import later, objects, settle
from page_runs import SCRIPT, Served, training

pytestmark = pytest.mark.browser

# What the policy forbade, and all that the message and the buttons have said, some of it for
# seconds.
WATCH = """window.violations = [];
addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective + ' ' + e.blockedURI), true);
window.said = [];
new MutationObserver(() => { for (const each of document.querySelectorAll('.message, [aria-label=Controls] button')) said.push(each.innerText); })
    .observe(document, {subtree: true, childList: true, characterData: true});"""  # noqa: E501


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """A run in another process, with names that are HTML."""
    with training(tmp_path_factory.mktemp("runs") / "exp1") as run:
        yield run


@pytest.fixture(scope="module")
def server(whole_run):
    """Its page."""
    with Served(whole_run.path, "--port", 0) as served:
        yield served


@pytest.fixture
def served(server, whole_run):
    """The page of a run that is going on, whatever another test has done."""
    if whole_run.status["state"] == "paused":
        server.post("resume")
    assert later(lambda: whole_run.status["state"] == "running")
    return server


@pytest.fixture
def run(whole_run, served):
    """The run, going on."""
    return whole_run


class Opened:
    """The page at a link, with all that it asked for and complained about."""

    def __init__(self, browser, link, width=1300, height=900, touch=False, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": height},
                                           has_touch=touch, is_mobile=touch, color_scheme=scheme)
        self.page = self.context.new_page()
        self.asked, self.posted, self.problems = [], [], []
        self.page.on("request", self.heard)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console",
                     lambda line: self.problems.append(line.text)
                     if line.type in ("error", "warning") else None)
        self.page.add_init_script(WATCH)
        self.page.goto(link)
        self.page.wait_for_selector(".js-plotly-plot .main-svg")

    def heard(self, request):
        """What the page asks the server for, and which commands it sends."""
        self.asked.append(request.url)
        if request.method == "POST":
            asked = json.loads(request.post_data)
            self.posted.append(asked["command" if "command" in asked else "name"
                                     if asked["ask"] == "command" else "ask"])

    def has_said(self, text):
        """Whether the message or a button has said this, be it for a moment."""
        return self.page.evaluate("text => said.some(each => each.includes(text))", text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def word(self):
        """The state, as the head has it; or that the page is locked."""
        pill = self.page.locator(".pill")
        return pill.inner_text() if pill.count() else ""

    def message(self):
        """What the page says."""
        return self.page.locator(".message").inner_text()

    def button(self, label):
        """The button with this word."""
        return self.page.get_by_role("button", name=label, exact=True)

    def tab(self, name):
        """Open the tab whose title begins with this word."""
        self.page.get_by_role("tab", name=name).click()

    def picture(self, name):
        """For a person who wants to see it: TRAINER_NB_PICTURES names a folder."""
        if folder := os.environ.get("TRAINER_NB_PICTURES"):
            settle(self.page, 1000)
            self.page.screenshot(path=Path(folder, f"page-{name}.png"), full_page=True)

    def clean(self, link):
        """Nothing was blocked, nothing asked of another host, nothing complained about, and no name
        became a part of the page."""
        assert self.page.evaluate("violations") == [] and self.problems == []
        assert {urlsplit(address).netloc for address in self.asked} == {urlsplit(link).netloc}
        assert self.page.locator("main img, main u").count() == 0
        assert self.page.title() != "owned"


def last_change(run):
    """Name, new value and source of the last change by hand."""
    return [(run.journal or [{}])[-1].get(each) for each in ("name", "new", "source")]


def last_step(page):
    """The last step that the training curve of the module has; -1 before it is drawn."""
    return page.evaluate("() => Math.max(-1, ...(document.querySelector('.chart')?.data"
                         "?.find(each => each.name === 'train/loss')?.x ?? []))")


def test_a_run_is_steered_from_the_page(run, served, browser):
    """What changes comes by itself, and a click is one message: the curves grow; the rate takes
    effect and stands in the journal; a refusal is shown where it was typed; pause, step, resume,
    rewind; stop asks."""
    with Opened(browser, served.steer_url) as opened:
        page = opened.page
        assert later(lambda: opened.word() == "Running") and "token" not in page.url
        assert page.locator(".name").inner_text().startswith("<img src=x")
        first = last_step(page)
        assert later(lambda: last_step(page) > max(first, 0) + 10)
        page.locator(".legend button", has_text="train/loss").click()
        assert later(lambda: last_step(page) == -1)
        page.locator(".legend button", has_text="train/loss").click()
        for axis in ("epoch", "samples", "time", "step"):
            page.get_by_label("x", exact=True).select_option(axis)
            assert later(lambda: last_step(page) > 0)

        rate, row = page.get_by_label("lr", exact=True), page.locator(".row[data-name=lr]")
        rate.fill("*0.5")
        rate.press("Enter")
        assert later(lambda: last_change(run)[::2] == ["lr", "page"])
        new = last_change(run)[1]
        assert later(lambda: objects(run.path / "metrics.jsonl")[-1].get("lr") == new)
        opened.tab("Journal")
        assert later(lambda: f"→ {new}" in page.locator(".journal ol li").first.inner_text())
        assert later(lambda: float(rate.input_value()) == new)
        rate.fill("-3")
        rate.press("Enter")
        assert later(lambda: "refused" in row.get_attribute("class"))
        assert "0" in row.locator(".hint").inner_text() and rate.input_value() == "-3"
        rate.fill("0.01")
        rate.press("Enter")
        assert later(lambda: "refused" not in row.get_attribute("class"))
        page.get_by_label("slow loud").click()
        assert later(lambda: last_change(run)[:2] == ["slow.loud", True])
        # what plotly writes above the curves
        page.locator(".chart .nsewdrag").first.hover(force=True)
        opened.tab("Hooks")
        switch = page.get_by_label("snapshot on or off")
        row = page.locator("tr[data-name=snapshot]")
        switch.click()
        assert later(lambda: last_change(run)[:2] == ["snapshot.enabled", False])
        assert later(lambda: row.get_attribute("class") == "off" and not switch.is_checked())
        switch.click()
        assert later(lambda: last_change(run)[:2] == ["snapshot.enabled", True])

        opened.button("Pause").click()
        assert later(lambda: opened.word() == "Paused") and run.status["state"] == "paused"
        held = run.step()
        opened.button("Step").click()
        assert later(lambda: run.step() == held + 1
                     and page.locator(".step").inner_text() == f"{held + 1:,}")
        assert later(lambda: last_step(page) == held + 1)
        opened.tab("Journal")
        note = page.get_by_label("Note for the journal")
        note.fill("seen <b>by night</b>")
        note.press("Enter")
        assert later(lambda: "seen <b>by night</b>" in page.locator(".journal ol").inner_text())
        assert page.locator(".journal ol b", has_text="by night").count() == 0
        opened.picture("module")
        opened.button("Rewind").click()
        assert later(lambda: page.get_by_label("Go back to").locator("option").count() >= 1)
        opened.button("Rewind here").click()
        assert later(lambda: any(each["kind"] == "rewind" for each in run.journal))
        assert later(lambda: last_step(page) == run.step() <= held)
        opened.button("Resume").click()
        assert later(lambda: opened.word() == "Running")
        opened.button("Stop").click()
        assert later(lambda: opened.has_said("Really stop?")) and "stop" not in opened.posted
        page.reload()
        assert later(lambda: opened.word() == "Running")  # this tab has kept the token
        assert later(lambda: last_step(page) > 0)
        assert opened.context.cookies() == [] and not any(
            served.steer in address for address in opened.asked if "#" not in address)
        opened.clean(served.steer_url)


def test_tabs_show_what_the_run_measured(run, served, browser):
    """Evaluations to sort; hooks with calls and times, which are counted while that tab is open;
    the journal as a script; states to go back to with their loss; and a reload keeps the tab."""
    with Opened(browser, served.steer_url) as opened:
        page = opened.page
        pane, rows = page.get_by_role("tabpanel"), page.locator("[role=tabpanel] tbody tr")
        assert later(lambda: rows.count() > 1)
        assert later(lambda: "<u>mae</u>" in page.locator("thead").inner_text())
        steps = [int(each.replace(",", "")) for each in rows.locator("th").all_inner_texts()]
        assert steps == sorted(steps) and not any(each % 50 for each in steps)
        pane.get_by_role("button", name="valid/loss", exact=True).click()
        assert later(lambda: page.locator("thead th[aria-sort]").get_attribute("aria-sort")
                     == "descending")
        losses = [float(each) for each in rows.locator("td:nth-child(4)").all_inner_texts()]
        assert losses == sorted(losses, reverse=True)
        page.locator("[data-tab=table]").focus()
        page.keyboard.press("ArrowRight")
        slow = page.locator("tr[data-name=slow]")
        assert later(lambda: "–" not in slow.locator("td:nth-child(5)").inner_text())
        assert later(lambda: "hooks" in page.locator(".parts").inner_text())
        opened.tab("journal")
        page.get_by_label("Note for the journal").fill("mine")
        page.get_by_label("Note for the journal").press("Enter")
        assert later(lambda: "mine" in pane.inner_text())
        opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
        opened.button("Copy as script").click()
        assert later(lambda: "trainer = make_trainer(seed=0)" in page.evaluate(
            "navigator.clipboard.readText()"))
        opened.button("Rewind").click()
        points = page.get_by_label("Go back to").locator("option")
        assert later(lambda: points.count() > 1 and "valid/loss" in points.first.inner_text())
        assert page.locator("option", has_text="best").count() == 1
        page.reload()
        assert later(lambda: page.locator("[data-tab=journal]").count() == 1 and page.locator(
            "[data-tab=journal]").get_attribute("aria-selected") == "true")
        assert later(lambda: "mine" in pane.inner_text())
        opened.clean(served.steer_url)


def boxes(page):
    """The visible controls, texts and parts of the page: name, left, top, right, bottom.

    Of what scrolls in a box of its own the box alone, as wide as it is."""
    return page.evaluate("""() => [...document.querySelectorAll('main button, main select, main input, main label, .pill, .place, .numbers > div, .hint, .message, .scroller, .tabs,'
        + ' .name, .percent, h2, .chart, .journal li')].filter(e => e.checkVisibility() && !e.classList.contains('unseen') && !e.parentElement.closest('.scroller, .tabs')).map(e => {
        const r = e.getBoundingClientRect(); return [e.tagName + ' ' + (e.id || e.textContent.slice(0, 30)), r.left, r.top, r.right, r.bottom]; })
        .filter(b => b[3] > b[1] && b[4] > b[2])""")  # noqa: E501


def overlaps(found):
    """Pairs that share more than a pixel, but for what contains the other."""
    def shared(one, other):
        width = min(one[3], other[3]) - max(one[1], other[1])
        height = min(one[4], other[4]) - max(one[2], other[2])
        inside = any(a[1] - 1 <= b[1] and a[2] - 1 <= b[2] and a[3] + 1 >= b[3] and a[4] + 1 >= b[4]
                     for a, b in ((one, other), (other, one)))
        return width > 1 and height > 1 and not inside
    return [(one[0], other[0]) for at, one in enumerate(found) for other in found[at + 1:]
            if shared(one, other)]


def low_controls(page):
    """Those that a finger does not find."""
    return page.evaluate(
        "[...document.querySelectorAll('main button, main select, main input')].filter(e => "
        "e.checkVisibility() && e.getBoundingClientRect().height < 40).map(e => e.outerHTML)")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_on_a_phone(run, served, browser, scheme):
    """At 390 px nothing overlaps, runs out of the page or scrolls sideways, and a finger finds each
    control; a tap pauses."""
    with Opened(browser, served.steer_url, 390, 844, touch=True, scheme=scheme) as opened:
        page = opened.page
        assert later(lambda: opened.word() == "Running")
        for state in ("running", "paused"):
            assert later(lambda: overlaps(boxes(page)) == []), overlaps(boxes(page))
            assert [each for each in boxes(page) if each[1] < 0 or each[3] > 390] == []
            for name in ("hooks", "journal", "inspect", "lr", "table"):
                opened.tab(name)
                assert later(lambda: overlaps(boxes(page)) == []), (name, overlaps(boxes(page)))
                assert [each for each in boxes(page) if each[1] < 0 or each[3] > 390] == []
                assert low_controls(page) == [], name
                opened.picture(f"phone-{scheme}-{state}-{name}")
            assert page.evaluate(
                "[document.documentElement.scrollWidth, document.body.scrollWidth]") == [390, 390]
            opened.picture(f"phone-{scheme}-{state}")
            if state == "running":
                opened.button("Pause").tap()
                assert later(lambda: opened.word() == "Paused")
                opened.button("Rewind").tap()
                assert later(lambda: page.get_by_label("Go back to").is_visible())
        opened.button("Cancel").tap()
        assert later(lambda: not page.get_by_label("Go back to").is_visible()
                     and opened.button("Resume").is_enabled())
        opened.button("Resume").tap()
        assert later(lambda: run.status["state"] == "running")
        opened.clean(served.steer_url)


def test_a_link_that_may_only_look(run, served, browser):
    """All controls are off and say why; what a script in the page posts is refused."""
    with Opened(browser, served.look_url) as opened:
        page = opened.page
        assert later(lambda: opened.word() == "Running")
        assert later(lambda: "may only look" in opened.message())
        opened.tab("Journal")
        acting = page.locator("[aria-label=Controls] button:not([aria-disabled=true]), "
                              ".tunables :is(input, select):enabled, .journal input:enabled")
        assert acting.count() == 0
        assert opened.button("Pause").get_attribute("title") == "This link may only look"
        before = len(run.journal)
        status = page.evaluate(
            "fetch('command', {method: 'POST', headers: {'Content-Type': 'application/json', "
            "Authorization: `Bearer ${sessionStorage.token}`}, "
            "body: '{\"command\": \"pause\"}'}).then(r => r.status)")
        assert page.evaluate("sessionStorage.token") == served.look
        assert status == 403 and run.status["state"] == "running" and len(run.journal) == before
        assert first_growth(page)


def first_growth(page):
    """Whether the curves grow."""
    first = last_step(page)
    return later(lambda: last_step(page) > first)


def test_another_site_reaches_nothing(run, served, browser, tmp_path):
    """A page of another address, open in the same browser, in the same tab at last: it can neither
    write nor read, nor show the page in a frame, and nothing that it receives has the token."""
    (tmp_path / "evil.html").write_text(f"""<iframe src="http://127.0.0.1:{served.port}/"></iframe><script>
        const at = "http://127.0.0.1:{served.port}/", json = {{"Content-Type": "application/json"}};
        const body = JSON.stringify({{command: "pause"}}), tell = (p) => p.then((r) => r.type + " " + r.status, () => "blocked");
        window.found = Promise.all([
            tell(fetch(at + "command", {{method: "POST", credentials: "include", body}})),
            tell(fetch(at + "command", {{method: "POST", credentials: "include", body, mode: "no-cors"}})),
            tell(fetch(at + "command", {{method: "POST", credentials: "include", body, headers: json}})),
            tell(fetch(at + "view", {{credentials: "include"}}))]);
        </script><script src="http://127.0.0.1:{served.port}/view"></script>""")  # noqa: E501
    received = []
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Note what was asked."""
            received.append(f"{self.path} {self.headers}")

    before = len(run.journal)
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path))
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        with Opened(browser, served.steer_url) as opened:
            for host in ("127.0.0.1", "localhost"):  # the same site by its name, and another one
                evil = opened.context.new_page()
                evil.goto(f"http://{host}:{other.server_port}/evil.html")
                found = evil.evaluate("window.found")
                assert found[0] == found[2] == found[3] == "blocked"
                assert found[1] in ("opaque 0", "blocked")
                assert not any("Running" in (frame.evaluate("document.body?.innerText ?? ''"))
                               for frame in evil.frames)
            opened.page.goto(f"http://127.0.0.1:{other.server_port}/evil.html")
            assert opened.page.evaluate("window.found")[0] == "blocked"
            assert opened.page.evaluate("Object.keys(sessionStorage)") == []
            step = run.step()
            assert later(lambda: run.step() > step + 5)
            assert not any(each["kind"] == "pause" for each in run.journal[before:])
            assert len(received) >= 3 and served.steer not in "".join(received)
    finally:
        other.shutdown()
        other.server_close()


def test_without_the_token_it_is_asked_for(run, served, browser):
    """An address alone shows nothing of the run; the token is pasted, or comes with a link that is
    opened in the same tab; then a reload shows the run again."""
    address = served.steer_url.partition("#")[0]
    for paste in (True, False):
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        key = page.get_by_label("Token", exact=True)
        key.wait_for()
        assert page.locator(".pill").inner_text() == "Locked"
        assert "exp1" not in page.content() and "Open the whole link" in page.content()
        if paste:
            key.fill("wrong")
            key.press("Enter")
            assert later(lambda: "does not know" in page.locator(".message").inner_text())
            key.fill(served.steer)
            key.press("Enter")
        else:
            page.goto(served.steer_url)  # changes what stands after "#": the page is not loaded
        for _ in range(2):
            assert later(lambda: page.locator(".pill").inner_text() == "Running")
            assert page.url == address and not key.is_visible()
            page.reload()
        context.close()


@pytest.mark.long
def test_a_server_that_ends_is_said(run, browser):
    """What stands there is old, and the page says so; a new server wants its new link."""
    with Served(run.path, "--port", 0) as first:
        with Opened(browser, first.steer_url) as opened:
            assert later(lambda: opened.word() == "Running")
            first.interrupt()
            assert later(lambda: "cannot be reached" in opened.message())
            with Served(run.path, "--port", first.port):
                assert later(lambda: "does not know the token" in opened.message())


# On a page that stays open for these


@pytest.fixture(scope="module")
def wide(server, browser):
    """The page of the run, open."""
    with Opened(browser, server.steer_url) as opened:
        yield opened


@pytest.mark.parametrize("width", [1300, pytest.param(620, marks=pytest.mark.long)])
def test_nothing_overlaps_on_a_wide_page_and_every_control_has_a_name(run, wide, width):
    """Two columns and one. For those who hear the page: buttons, boxes and lists have names,
    changes of the state are said, the keyboard shows where it is."""
    page = wide.page
    page.set_viewport_size({"width": width, "height": 900})
    assert later(lambda: wide.word() == "Running")
    assert later(lambda: page.locator(".tunables .row").count() > 3)
    settle(page)
    assert later(lambda: overlaps(boxes(page)) == []), overlaps(boxes(page))
    assert [each for each in boxes(page) if each[1] < 0 or each[3] > width] == []
    wide.picture(f"{width}")
    nameless = page.evaluate(
        "[...document.querySelectorAll('main button, main select, main input, main "
        "progress')].filter(e =>"
                             " !(e.textContent.trim() && e.tagName === 'BUTTON') && "
                             "!e.labels?.length && !e.ariaLabel).map(e => e.outerHTML)")
    assert nameless == [] and page.locator("[aria-live=polite], [role=status]").count() >= 2
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    wide.button("Pause").focus()
    page.keyboard.press("Tab")
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert later(lambda: page.evaluate(ring) == "solid")


def test_two_buttons_pressed_at_once_both_act(run, wide):
    """The second half of a double click does nothing; a click on another button does."""
    assert later(lambda: wide.word() == "Running")
    wide.page.evaluate("() => { said.length = 0; }")
    wide.posted.clear()
    wide.page.evaluate("""() => { for (const name of ["validate", "stop", "stop"])
        document.querySelector(`[aria-label=Controls] button[name=${name}]`).click(); }""")
    assert later(lambda: wide.has_said("validate: applied") or wide.has_said("Evaluated at step"))
    assert wide.has_said("Really stop?") and wide.posted == ["validate"]
    assert run.status["state"] == "running"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The page of a run that measures its layers, keeps its samples, and looks for alerts."""
    more = "[Slow(), SnapshotHook(100), AlertsHook(), LayerStatsHook(20), SamplesHook(4)]"
    script = SCRIPT.replace("[Slow(), SnapshotHook(100)]", more).replace(
        "SnapshotHook,", "SnapshotHook, AlertsHook, LayerStatsHook, SamplesHook,")
    with training(tmp_path_factory.mktemp("measured") / "exp1", script) as run:
        with Served(run.path, "--port", 0) as served:
            served.run = run
            yield served


TABS = {"Table": "[role=tabpanel] tbody tr", "Hooks": "[role=tabpanel] [data-name=slow]",
        "Journal": "[role=tabpanel] form", "Inspect": "[role=tabpanel]",
        "LR": "[role=tabpanel] .settings",
        "Runs": "[role=tabpanel] table.runs tbody tr",
        "Layers": ".heat-map canvas", "Data": ".gallery figure", "Alerts": "[role=tabpanel]"}


def test_a_batch_is_inspected_and_a_rate_searched_from_the_page(measured, browser):
    """In a pause: the tensors and layers of the last batch, then the curve of a search, which
    leaves the run where it is."""
    with Opened(browser, measured.steer_url) as opened:
        page = opened.page
        step = lambda: int(page.locator(".step").first.inner_text().replace(",", ""))
        opened.tab("Inspect")
        opened.button("Pause").click()
        run = measured.run
        assert later(lambda: opened.word() == "Paused") and run.status["state"] == "paused"
        held = run.step() + 1
        opened.button("Step").click()
        batch = page.get_by_role("heading", name=f"Last batch step {held:,}")
        assert later(lambda: batch.count() == 1 and step() == held == run.step())
        rows = page.get_by_role("region", name="Layers").locator("tbody tr")
        assert later(lambda: rows.count() > 1)
        assert page.get_by_role("region", name="Tensors").get_by_text("pred").count() == 1
        assert page.get_by_text("trainer.paused()").count() == 0  # that is for its own process
        opened.tab("LR")
        page.get_by_role("button", name="Find a rate").click()
        page.get_by_role("button", name="Search again").wait_for()
        assert later(lambda: page.locator(".search .js-plotly-plot .main-svg").count() > 0)
        assert step() == held
        opened.picture("searched")
        opened.button("Resume").click()
        assert later(lambda: step() > held)
        opened.clean(measured.steer_url)


def test_every_tab_shows_its_part_and_can_be_heard(measured, browser):
    """By the keyboard from tab to tab; what axe-core calls serious is not there."""
    with Opened(browser, measured.steer_url) as opened:
        page = opened.page
        page.get_by_role("tab", name="Table").click()
        for number, (name, part) in enumerate(TABS.items()):
            if number:
                page.keyboard.press("ArrowRight")
            tab = page.get_by_role("tab", name=name)
            assert later(lambda: tab.get_attribute("aria-selected") == "true"), name
            assert later(lambda: page.locator(part).count() > 0), name
            assert later(lambda: findings(page, "main") == []), (name, findings(page, "main"))
            opened.picture(f"tab-{name}")
        opened.clean(measured.steer_url)
