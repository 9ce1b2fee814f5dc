"""The panel as one widget, by real hands, in each front end: one list of cases for all of them."""

from contextlib import ExitStack, contextmanager
from itertools import pairwise

import pytest
from classic_page import ENVIRONMENT as CLASSIC
from classic_page import ClassicServer
from jupyter_server import PANEL as NOTEBOOK
from jupyter_server import JupyterServer
from live_page import DRAWN, SETUP, Live, Seen, Witnessed, later
from test_browser_marimo import MARIMO, edited

from trainer_nb.panel.widget import module_file

pytestmark = pytest.mark.browser

OTHER = """
class Told(Hook):
    def after_step(self, trainer):
        tell("other", trainer.step_state.optimizer_step)
        time.sleep(0.01)
other = Trainer(torch.nn.Linear(8, 1), train_dl=data, loss_fn=torch.nn.MSELoss(), epochs=50_000,
                device="cpu", hooks=[Told()])
"""
PARTS = {"controls": "[aria-label=Controls]", "plots": ".js-plotly-plot .main-svg",
         "hook_table": ".hooks"}
CELLS = [f"trainer.{part}" for part in PARTS]


class Shown:
    """A notebook in some front end: `panels` are those that it shows, in their order."""

    def __init__(self, run, page, reload, rerun=None):
        self.run, self.page, self.reload, self.rerun = run, page, reload, rerun
        self.panels = page.locator(".tnb")

    def wait(self, panels=1, charts=None):
        """Wait until so many panels are there, and their curves."""
        charts = panels if charts is None else charts
        there = lambda: (self.panels.count(), self.page.locator(DRAWN).count())
        assert later(lambda: there() == (panels, charts)), (
            there(), self.page.locator(".tnb, .jp-OutputArea-output").all_inner_texts())
        return self

    def panel(self, at=0):
        """One of them."""
        return Seen(self.panels.nth(at))


@contextmanager
def in_jupyter(server, browser, cells, start, height=1400):
    """In a page of a Jupyter server, whose first cells run to their end."""
    with server.new_page(browser, height=height) as lab:
        run = Live(lab, server, cells)
        for number in range(1, len(cells) + 1):
            lab.run_cell(number)
            if number > 1 or start:
                lab.wait_cell(number)

        def reload():
            if server.app == "lab":
                lab.save()
            else:
                lab.page.keyboard.press("Control+s")
                path = server.folder / "run.ipynb"
                assert later(lambda: "tnb-kept" in path.read_text())
            lab.reload() if hasattr(lab, "reload") else lab.page.reload()
            if server.app != "lab":  # Notebook 7 has a problem of its own while it loads
                lab.problems.clear()
        yield Shown(run, lab.page, reload, lab)
        assert lab.problems == []


@contextmanager
def in_marimo(folder, browser, cells):
    """In a page of marimo."""
    with edited(folder, [SETUP, *cells]) as address:
        context = browser.new_context(viewport={"width": 1300, "height": 1400})
        try:
            page, problems = context.new_page(), []
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.goto(address)
            page.wait_for_load_state("networkidle")

            def run_all():  # a click before the page is connected is lost
                page.get_by_test_id("run-button").last.click()
                return later(lambda: page.locator(".tnb").count(), 20)
            assert later(run_all)
            yield Shown(Witnessed(folder), page, page.reload)
            assert problems == []
        finally:
            context.close()


SERVERS = {"lab": None, "notebook": lambda folder: JupyterServer(folder, app="notebook"),
           "classic": ClassicServer}
OF_MARIMO = pytest.mark.skipif(not MARIMO.exists(), reason="needs .venv-marimo")
OF_CLASSIC = pytest.mark.skipif(not CLASSIC.exists(), reason="needs .venv-colab")


@pytest.fixture(scope="module", params=[
    "lab", pytest.param("marimo", marks=[pytest.mark.long, OF_MARIMO]),
    pytest.param("notebook", marks=pytest.mark.long),
    pytest.param("classic", marks=[pytest.mark.long, OF_CLASSIC])])
def front_end(request, lab_server, tmp_path_factory):
    """Name of a front end, and its server."""
    name = request.param
    if name not in SERVERS:
        yield name, None
    elif name == "lab":
        yield name, lab_server
    else:
        with SERVERS[name](tmp_path_factory.mktemp(name)) as server:
            yield name, server


@pytest.fixture
def shown(front_end, browser, tmp_path):
    """Opens a notebook of a front end with these cells after the set-up."""
    name, server = front_end
    with ExitStack() as stack:
        def open_page(*cells, start=True):
            if name == "marimo":
                return stack.enter_context(in_marimo(tmp_path, browser, cells))
            return stack.enter_context(in_jupyter(server.place(), browser, cells, start))
        yield open_page


def test_it_draws_and_goes_on(shown):
    """Head, curves, tunables and tabs; the step that stands there grows."""
    page = shown("trainer.start()").wait()
    words = page.panels.inner_text()
    assert all(each in words for each in ("train/loss", "grad_clip", "Journal"))
    step = page.panel().step()
    assert later(lambda: page.panel().step() > step + 20)
    page.panel().stop()
    assert page.run.ends()
    page.panel().is_in("paused")


@pytest.fixture
def running(shown, front_end):
    """A run that trains in a cell; in the background where the front end takes no clicks then."""
    name, _ = front_end
    page = (shown("trainer.start()") if name == "marimo"
            else shown("print(trainer.fit().status)", start=False))
    return page.wait()


def test_pause_and_a_typed_rate_reach_the_run(running):
    """The training itself says so, and the journal has both."""
    page, run = running, running.run
    page.panel().click("Pause")
    page.panel().is_in("paused")
    assert run.freezes() and page.panel().step() == run.step
    box = page.panels.locator("[data-name=lr] input:not([type=range])")
    box.fill("*0.1")
    box.press("Enter")
    assert later(lambda: box.input_value() == "0.001")
    page.panel().click("Resume")
    assert later(lambda: run.told["rate"] == 0.001) and run.goes_on()
    assert ["lr", 0.001, "widget"] in run.told["journal"]
    page.panels.get_by_role("tab", name="Journal").click()
    assert later(lambda: "lr" in page.panels.locator(".pane.journal").inner_text())
    page.panel().stop()
    assert run.ends()


def test_the_use_of_the_machine_is_drawn(running):
    """The tab System has a curve of processors and memory, and their newest values."""
    page = running.page
    page.locator("[data-tab=system]").click()
    figures = page.locator("[role=tabpanel] figure")
    assert later(lambda: any("CPU" in each and "%" in each for each in figures.all_inner_texts()))
    assert later(lambda: any("Memory" in each and "GB of" in each
                             for each in figures.all_inner_texts()))
    assert figures.locator("path[d^=M]").count() >= 2


def test_a_click_records_layers_from_here_on(running):
    """The tab Record offers it; it is in the journal, and the tab Layers opens and draws it."""
    page = running.page
    page.locator("[data-tab=more]").click()
    page.get_by_role("button", name="Record layers").click()
    page.locator("[data-tab=layers][aria-selected=true]").wait_for()
    page.locator("[data-tab=more]").click()
    page.get_by_role("button", name="Record samples").wait_for()
    assert later(lambda: page.get_by_role("button", name="Record layers").count() == 0)
    page.locator("[data-tab=layers]").click()
    assert later(lambda: page.locator("[role=tabpanel] canvas, [role=tabpanel] table").count() > 0)
    page.locator("[data-tab=journal]").click()
    assert later(lambda: "record layers" in page.locator(".pane.journal").inner_text())


def test_a_diverged_run_says_so(shown):
    """Without a hook for it: the message line has the figure and the remedy, and so has a tab."""
    page = shown("trainer.step(150); trainer.tune(lr=3.0); trainer.start()").wait().page
    assert later(lambda: "Divergence at step" in page.locator(".message").inner_text())
    assert "lower the rate" in page.locator(".message").inner_text()
    page.locator("[data-tab=alerts]").click()
    assert later(lambda: page.locator("[role=tabpanel] .advice").count() == 1)


def test_after_a_reload_in_mid_run_all_parts_are_back(shown):
    """And a click in one of them acts in all."""
    page = shown("trainer.start()", *CELLS)
    parts = lambda: page.wait(len(PARTS) + 1, charts=2)
    parts()
    page.reload()
    parts()
    for at, selector in enumerate(PARTS.values(), 1):
        page.panels.nth(at).locator(selector).first.wait_for()
    assert page.run.goes_on()
    page.panel(1).click("Pause")
    for at in range(len(PARTS) + 1):
        page.panel(at).is_in("paused")
    assert page.run.freezes()
    page.panel().stop()
    assert page.run.ends()


def test_two_runs_in_one_notebook(shown, front_end):
    """Each panel has its own; the packed script has come once."""
    page = shown("trainer.start()", OTHER + "other.start()").wait(2)
    step = lambda: page.run.read("other") or 0
    assert later(lambda: step() > 20)
    page.panel(1).click("Pause")
    page.panel(1).is_in("paused")
    held = step()
    assert page.run.goes_on() and step() == held and page.panel(1).step() == held
    page.panel(0).is_in("running")
    for at in range(2):
        page.panel(at).stop()
        page.panel(at).is_in("paused")
    assert page.run.ends()


# JupyterLab alone

@pytest.fixture
def lab_page(lab_server, browser):
    """A run in the background in JupyterLab."""
    with in_jupyter(lab_server.place(), browser, ["trainer.start()"], True) as page:
        yield page.wait()


# when a panel of this page asked for plotly, in milliseconds
ASKED = """
    window.asked = [];
    const { send } = WebSocket.prototype;
    WebSocket.prototype.send = function (data) {
        const text = typeof data === "string" ? data : new TextDecoder().decode(data);
        if (text.includes('"ask":"library"')) asked.push(performance.now());
        return send.call(this, data);
    };
"""


@pytest.mark.parametrize("reloads", [1, pytest.param(40, marks=pytest.mark.long)])
def test_plotly_travels_once_a_page(lab_server, browser, reloads):
    """However many parts draw curves; and once more after a reload in mid-run, which leaves none of
    five out, however often: a click acts. Where no answer comes for ten seconds, it is asked for
    again."""
    packed, come = module_file("plotly-basic.js.gz"), []
    place = lab_server.place()
    with place.new_page(browser, height=1400, fresh=True) as lab:
        lab.page.on("websocket", lambda socket: socket.on(
            "framereceived", lambda frame: come.append(type(frame) is bytes and packed in frame)))
        lab.page.add_init_script(ASKED)

        earlier = []  # how often each page asked: a late answer may come to the next one

        def once():
            asked = lab.page.evaluate("() => window.asked")
            earlier.append(len(asked))
            assert asked and sum(come) <= sum(earlier)
            return all(after - at > 9000 for at, after in pairwise(asked))
        run = Live(lab, place, ["trainer.start()", OTHER + "other.start()", *CELLS])
        for number in range(1, 6):
            run.run(number)
        count = lambda selector: lab.page.locator(selector).count()
        drawn = lambda: count(".tnb") == 2 + len(PARTS) and count(DRAWN) == 3
        assert later(drawn) and once()
        lab.save()
        for _ in range(reloads):
            lab.reload()
            assert later(drawn) and once() and lab.problems == []
        run.panel(1).click("Pause")
        run.panel(1).is_in("paused")
        assert run.freezes()


# A page that is busy for seconds: no module is there in the two seconds that anywidget gives it,
# and the manager of widgets, which has looked for a model in vain, looks again too late.
BUSY = """
    AbortSignal.timeout = () => {
        const given = new AbortController();
        queueMicrotask(() => given.abort());
        return given.signal;
    };
    const later = window.setTimeout.bind(window), late = [];
    const put = Node.prototype.appendChild;
    Node.prototype.appendChild = function (each) {
        if (each.nodeName === "STYLE" && each.textContent.includes(".tnb"))
            later(() => { for (const call of late.splice(0)) call(); }, 3000);
        return put.call(this, each);
    };
    window.setTimeout = (call, ms, ...more) => /get_model/.test(new Error().stack)
        ? late.push(call) : later(call, ms, ...more);
"""


def test_a_page_that_is_busy_while_it_loads(lab_page):
    """The panel is there nevertheless, and hears what comes."""
    page, lab = lab_page, lab_page.rerun
    page.page.add_init_script(BUSY)
    page.reload()
    page.wait()
    step = page.panel().step()
    assert later(lambda: page.panel().step() > step + 20)
    page.panel().click("Pause")
    page.panel().is_in("paused")
    assert page.run.freezes() and lab.problems == []
    lab.path = None  # no other test gets this page


def test_two_views_of_one_widget(lab_page):
    """Both live, each says its own answers, and shows the tab that was opened in it."""
    page = lab_page
    page.page.evaluate("() => window.jupyterapp.commands.execute('notebook:create-output-view')")
    page.wait(2)
    for at, (tab, shown) in enumerate((("System", ".figures svg"), ("Hooks", ".hooks .split"))):
        page.panels.nth(at).get_by_role("tab", name=tab).click()
        page.panels.nth(at).locator(shown).first.wait_for()
    assert page.panels.nth(0).locator(".figures svg").count()
    page.panel(1).click("Pause")
    for at in range(2):
        page.panel(at).is_in("paused")
    said = lambda at: page.panels.nth(at).locator(".message").inner_text()
    assert later(lambda: said(1).startswith("pause: applied"))
    assert later(lambda: said(0).startswith("Paused"))


def test_the_notebook_keeps_the_picture(lab_page, lab_server):
    """Hidden beside the panel; what a page that was loaded again saves is the last one; without a
    kernel it is all that is shown."""
    page, lab = lab_page, lab_page.rerun
    picture = lab.cell(1).locator(".tnb-kept")
    assert later(lambda: picture.count() and not picture.is_visible())
    page.reload()
    page.wait()
    page.panel().stop()
    assert page.run.ends()

    def kept():
        lab.save()
        outputs = page.run.server.read_notebook("run.ipynb").cells[1].outputs
        return outputs[1].data["text/plain"]
    assert later(lambda: "stopped" in kept() and f"as of step {page.run.step:,}," in kept())
    assert later(lambda: not picture.is_visible())
    assert (page.run.server.folder / "run.ipynb").stat().st_size < 200_000
    page.page.evaluate(f"() => {NOTEBOOK}.sessionContext.session.kernel.restart()")
    page.panels.get_by_text("The kernel that drew this panel has ended").wait_for()
    lab.wait_kernel_ready()
    lab.reload()
    picture.wait_for()
    assert page.panels.count() == 0
    assert later(lambda: "rror" not in lab.output_text(1)), lab.output_text(1)


@pytest.mark.parametrize("app", ["lab", pytest.param("notebook", marks=pytest.mark.long)])
def test_keys_on_the_panel_reach_no_shortcut_of_the_page(app, lab_server, browser,
                                                         tmp_path_factory):
    """Neither `a` nor `dd` nor `00` does anything to the notebook; Space presses a button."""
    with ExitStack() as stack:
        server = lab_server if app == "lab" else stack.enter_context(
            JupyterServer(tmp_path_factory.mktemp(app), app=app))
        page = stack.enter_context(in_jupyter(
            server.place(), browser, ["print(trainer.fit().status)"], False)).wait()
        cells = page.page.locator(".jp-Notebook .jp-Cell").count()
        page.panels.get_by_role("button", name="Pause", exact=True).focus()
        for key in "abxddiizm00":
            page.page.keyboard.press(key)
        page.page.keyboard.press("Space")
        page.panel().is_in("paused")
        assert page.page.locator(".jp-Notebook .jp-Cell").count() == cells and page.run.freezes()
        assert not page.page.locator(".jp-Dialog").count()
        page.panel().stop()
