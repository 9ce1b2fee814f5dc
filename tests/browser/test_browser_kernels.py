"""Steering while a cell runs, on older kernels, in Notebook 7, and without subshells:
real hands, and what the training itself wrote."""

from contextlib import contextmanager
from importlib.metadata import version

import pytest
from jupyter_server import JupyterServer
from live_page import Live, later

pytestmark = pytest.mark.browser

FIT = "ended = [str(trainer.fit().status)]"
FIRST = "import ipykernel\nended.append(ipykernel.__version__)\nprint(ended)"
SECOND = "ended.append('and the next')\nprint(ended)"

# ipykernel 7.0 to 7.3 may leave unread what comes while it sends a reply, until there is another
# connection (ipython/ipykernel#1554): up to the first steps the test begins again with a new
# kernel.
ATTEMPTS = {"ipykernel-7.3": 3}

# The messages of widgets go to the main shell then, as VS Code sends them ("supportsSubshells:
# false" in its source).
NO_SUBSHELLS = {"apputils-extension/kernels-settings": {"commsOverSubshells": "disabled"}}


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    """A server with the front end that is asked for; "main shell":
    JupyterLab without comms over subshells."""
    app, settings = request.param, {}
    if app == "main shell":
        app, settings = "lab", NO_SUBSHELLS
    if app == "lab" and not settings:
        yield request.getfixturevalue("lab_server")
        return
    with JupyterServer(tmp_path_factory.mktemp(app), app=app, settings=settings) as server:
        yield server


@contextmanager
def sent_to_subshells(page):
    """A list that grows by each comm message that the page sends: whether it names a subshell."""
    sent = []

    def heard(frame):
        frame = frame if isinstance(frame, bytes) else frame.encode()
        if b'"comm_msg"' in frame:
            sent.append(b'"subshell_id":"' in frame.replace(b": ", b":"))

    def opened(socket):
        socket.on("framesent", heard)

    page.page.on("websocket", opened)
    yield sent
    page.page.remove_listener("websocket", opened)


@contextmanager
def training(server, browser, kernel):
    """A page on a new kernel in which `trainer.fit()` runs in cell 1."""
    from playwright.sync_api import TimeoutError

    for left in reversed(range(ATTEMPTS.get(kernel, 1))):
        place = server.place()
        with place.new_page(browser) as page, sent_to_subshells(page) as sent:
            try:
                run = Live(page, place, [FIT, FIRST, SECOND], kernel=kernel).start()
            except TimeoutError:
                if left:
                    continue
                raise
            run.sent = sent
            yield run
            return


def subshells(server, kernel):
    """Whether messages of widgets go to a subshell there."""
    return not server.settings.keys() & NO_SUBSHELLS.keys() and kernel != "ipykernel-6.31"


@pytest.mark.long  # tests/panel: test_message_pump, test_widget; here real pages
@pytest.mark.parametrize(
    "server, kernel, ipykernel",
    [
        ("lab", "ipykernel-6.31", "6.31.0"),
        ("lab", "ipykernel-7.3", "7.3.0"),
        ("notebook", "python3", version("ipykernel")),
        ("main shell", "python3", version("ipykernel")),
        ("main shell", "ipykernel-6.31", "6.31.0"),
        ("main shell", "ipykernel-7.3", "7.3.0"),
    ],
    indirect=["server"],
)
def test_a_running_cell_is_steered(server, browser, kernel, ipykernel):
    """Pause, Resume, a rate and Stop act while the cell runs, by the way of this kernel's messages;
    cells queued meanwhile run after it, in order."""
    with training(server, browser, kernel) as run:
        page, panel = run.lab, run.panel()
        panel.click("Pause")
        panel.is_in("paused")
        assert run.freezes() and page.is_running(1)
        panel.click("Resume")
        assert run.goes_on() and run.told["rate"] == 0.01

        for cell in (2, 3):
            page.run_cell(cell)
        panel.enter("lr", "0.123")
        assert later(lambda: run.told["rate"] == 0.123)
        assert ["lr", 0.123, "widget"] in run.told["journal"]
        assert run.goes_on() and run.told["rate"] == 0.123
        assert [page.is_running(cell) for cell in (1, 2, 3)] == [True] * 3
        assert page.output_text(2) == page.output_text(3) == ""

        run.stop()
        for cell in (2, 3):
            page.wait_cell(cell)
        assert run.ends()
        assert page.output_text(2) == f"['stopped', '{ipykernel}']"
        assert page.output_text(3) == f"['stopped', '{ipykernel}', 'and the next']"
        assert page.problems == []
        assert any(run.sent) is subshells(server, kernel)
        assert len(run.sent) > 3
