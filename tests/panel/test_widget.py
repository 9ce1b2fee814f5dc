"""The panel as one widget: what a page hears and does, message by message, in a real kernel."""

import gc
import json
import os
import threading
import warnings
import weakref
import zlib

import pytest
import warm_kernels
from feed_page import apply
from jupyter_client.manager import AsyncKernelManager
from jupyter_server import LIMIT
from kernel_client import client_of, manager_of, told
from live_page import SETUP, Witnessed, later
from small_runs import make
from steered import until
from test_front_ends import KERNELS, NO_PAGE, SHORT
from written_runs import trained

from trainer_nb.panel import widget as widgets
from trainer_nb.panel.feed import VERSION, Feed
from trainer_nb.panel.widget import WIDGET
from trainer_nb.panel.widget import OUTBOX, PARTS, Outbox, Panel
from trainer_nb import attach
from trainer_nb.remote.remote_view import RemoteRunView


class ShownPage:
    """A page that shows a widget: what it knows of the run, from the messages alone."""

    def __init__(self, client, name="a", comm=None):
        self.client, self.name, self.view = client, name, {}
        assert client.until(lambda: client.find(_model_name="AnyModel"))
        self.comm = comm or client.find(_model_name="AnyModel")[0]
        self.answers, self._asked = {}, 0
        self._read = len(client.messages.get(self.comm, []))  # what came before is not for it

    def hello(self):
        """Say hello, and wait until everything is there."""
        self.ask("hello", v=VERSION)
        assert self.until(lambda: self.view)
        return self

    def ask(self, ask, **message):
        """A message of this page."""
        self.client.tell(self.comm, {"ask": ask, "page": self.name} | message)

    def command(self, name, **values):
        """Send a command; its id."""
        self._asked += 1
        self.ask("command", id=str(self._asked), name=name, values=values)
        return str(self._asked)

    def done(self, name, **values):
        """Send a command, and wait for its answer."""
        id = self.command(name, **values)
        assert self.until(lambda: id in self.answers)
        return self.answers[id]

    def read(self):
        """Take what has come."""
        self.client.read()
        messages = self.client.messages.get(self.comm, [])
        for message, _ in messages[self._read:]:
            if "re" in message:
                if message["page"] == self.name:
                    self.answers[message["re"]] = message
            elif "view" in message:
                self.view = message["view"]
            elif "patch" in message:
                self.view = apply(self.view, message["patch"])
        self._read = len(messages)

    def until(self, condition):
        """Read until a condition holds."""
        return self.client.until(lambda: self.read() or condition())


@pytest.fixture
def front_end(request, tmp_path):
    """A client of a new kernel with a run whose cells show the panel."""
    with client_of(getattr(request, "param", "python3"), tmp_path) as client:
        client.folder = tmp_path
        client.run(SETUP)
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("front_end", KERNELS, indirect=True)
def test_a_page_steers_a_running_cell(front_end):
    """Pause, a rate, Resume and Stop reach `trainer.fit()`, and each has its answer;
    a rate that is refused changes nothing."""
    read = lambda: told(front_end.folder)
    cell = front_end.begin("print(trainer.fit().status)")
    page = ShownPage(front_end).hello()
    assert later(lambda: read()["step"] > 20)
    assert page.done("pause")["status"] == "applied"
    assert page.until(lambda: page.view["state"]["name"] == "paused")
    held = read()["step"]
    assert Witnessed(front_end.folder).freezes() and page.view["place"]["step"] == held
    assert page.done("tune", lr=0.002)["status"] == "applied"
    assert page.done("tune", lr=-1)["status"] == "refused"
    page.done("resume")
    assert later(lambda: read()["rate"] == 0.002)
    assert [each[1:] for each in read()["journal"] if each[0] == "lr"] == [[0.002, "widget"]]
    assert page.until(lambda: page.view["place"]["step"] > held + 20)
    page.command("stop")
    assert front_end.finish(cell).strip().endswith("stopped")
    assert page.until(lambda: page.view["state"]["name"] == "stopped" and "3" in page.answers)


@pytest.mark.slow
def test_a_page_steers_a_run_in_the_background(front_end):
    """The kernel is free: clicks come in its main thread, and the run answers from its own."""
    front_end.run("trainer.start()")
    page = ShownPage(front_end).hello()
    for _ in range(3):
        page.done("pause")
        assert page.until(lambda: page.view["state"]["name"] == "paused")
        page.done("resume")
        assert page.until(lambda: page.view["state"]["name"] == "running")
    step = page.view["place"]["step"]
    assert page.until(lambda: page.view["place"]["step"] > step)
    page.done("stop")
    assert page.until(lambda: page.view["state"]["name"] == "stopped")
    assert page.done("tune", lr=0.5)["status"] == "applied"  # nobody drives it
    assert page.until(lambda: page.view["values"]["lr"]["value"] == 0.5)
    front_end.run("trainer.wait()")


@pytest.mark.slow
def test_two_pages_of_one_widget(front_end):
    """Both have the ids 1, 2, …, and each hears its own answers; both see all changes."""
    front_end.run("trainer.start()")
    one = ShownPage(front_end, "one").hello()
    other = ShownPage(front_end, "other", one.comm).hello()
    good, bad = one.command("tune", lr=0.02), other.command("tune", lr=-1)
    assert good == bad == "1"
    assert one.until(lambda: "1" in one.answers) and other.until(lambda: "1" in other.answers)
    assert (one.answers["1"]["status"], other.answers["1"]["status"]) == ("applied", "refused")
    for page in (one, other):
        assert page.until(lambda page=page: page.view["values"]["lr"].get("value") == 0.02)
    one.done("stop")
    front_end.run("trainer.wait()")


@pytest.mark.slow
def test_a_page_is_heard_when_the_shell_of_the_page_before_has_ended(front_end):
    """JupyterLab has one for each page; ipykernel 7.4 would go on sending to it."""
    front_end.run("trainer.start()")
    with front_end.on_subshell():
        page = ShownPage(front_end).hello()
        step = page.view["place"]["step"]
        assert page.until(lambda: page.view["place"]["step"] > step)
    again = ShownPage(front_end, "loaded again", page.comm).hello()
    assert again.done("stop")["status"] == "applied"
    front_end.run("trainer.wait()")


@pytest.mark.slow
def test_a_panel_is_two_models_and_syncs_its_part_alone(front_end):
    """Itself and its layout, however long it is used."""
    front_end.run("trainer.start()")
    page = ShownPage(front_end).hello()
    page.done("tune", lr=0.02)
    page.done("stop")
    front_end.run("trainer.wait()")
    assert len(front_end.widgets) == 2
    own = {name for name in front_end.widgets[page.comm] if not name.startswith("_")}
    assert own == {"part", "own_id", "layout", "tabbable", "tooltip"}


@pytest.mark.slow
def test_the_packed_script_comes_when_it_is_asked_for(front_end):
    """As bytes beside a message."""
    front_end.run("panel = trainer.dashboard")
    page = ShownPage(front_end).hello()
    page.ask("library")
    found = lambda: [buffers for message, buffers in front_end.messages[page.comm]
                     if message == {"library": "plotly"}]
    assert page.until(found)
    [buffers] = found()
    assert b"Plotly" in zlib.decompress(buffers[0], wbits=31)


@pytest.mark.slow
@pytest.mark.parametrize("front_end", KERNELS[:1], indirect=True)
def test_where_no_page_shows_the_panel_lines_come(front_end):
    """Until one says hello."""
    front_end.run(SHORT)
    cell = front_end.begin("print(trainer.fit().status)")
    assert front_end.until(lambda: front_end.text(cell).count("eta") >= 2), front_end.text(cell)
    assert front_end.text(cell).count(NO_PAGE) == 1
    page = ShownPage(front_end).hello()
    run, ends = Witnessed(front_end.folder), []
    for _ in range(2):
        assert run.goes_on()
        front_end.run_to_now()
        ends.append(front_end.text(cell))
    assert ends[0] == ends[1]
    page.command("stop")
    front_end.finish(cell)


@pytest.mark.slow
def test_a_part_that_was_shown_by_hand_is_heard_in_a_cell(front_end):
    """Without a progress display, and without any other widget of the run."""
    front_end.run("from trainer_nb.panel.widget import Panel\ntrainer.progress = False\n"
                  "part = Panel(trainer.feed, 'controls')\npart")
    page = ShownPage(front_end).hello()
    assert not any(message.get("curves") for message, _ in front_end.messages[page.comm])
    cell = front_end.begin("print(trainer.fit().status)")
    assert page.until(lambda: page.view["place"]["step"] > 5)
    page.command("stop")
    assert front_end.finish(cell).strip().endswith("stopped")


@pytest.mark.slow
def test_the_picture_stands_below_the_panel_and_follows_the_run(front_end):
    """A page that was loaded again gets it as a message; when the trainer is closed it stays."""
    updates = []
    note = front_end._note

    def noted(message):
        if message["msg_type"] == "update_display_data":
            updates.append(message["content"]["data"]["text/plain"])
        note(message)
    front_end._note = noted
    cell = front_end.client.execute("trainer.start()")
    front_end.finish(cell)
    shown = [each for each in front_end.outputs[cell] if isinstance(each, dict)]
    assert [WIDGET in each for each in shown] == [True, False]
    assert "tnb-kept" in shown[1]["text/html"] and "step" in shown[1]["text/plain"]
    page = ShownPage(front_end).hello()
    kept = lambda: [message for message, _ in front_end.messages[page.comm] if "kept" in message]
    page.done("pause")
    assert front_end.until(lambda: updates and "paused" in updates[-1])
    assert kept() == []  # the only page has the output's own updates
    again = ShownPage(front_end, "loaded again", page.comm).hello()
    assert again.until(kept)
    assert "paused" in kept()[0]["kept"]["text/plain"]
    again.done("stop")
    assert again.until(lambda: "stopped" in kept()[-1]["kept"]["text/plain"])
    front_end.run("trainer.wait(); trainer.close()")
    assert front_end.until(lambda: not front_end.widgets)
    assert "stopped" in updates[-1]


SCRIPT = """
import torch
from trainer_nb import Trainer
torch.set_num_threads(1)
x = torch.randn(64, 8)
batches = [(x[at:at + 16], x[at:at + 16, :1]) for at in range(0, 64, 16)]
trainer = Trainer(torch.nn.Linear(8, 1), train_dl=batches, loss_fn=torch.nn.MSELoss(), epochs=20,
                  device="cpu", valid_dl=batches)
print("ended:", trainer.fit().status)
"""
SMALL = 300_000  # bytes of a saved notebook


@pytest.mark.slow
def test_a_notebook_that_nbconvert_runs_is_small_and_holds_the_picture(tmp_path):
    """With the state of its widgets: no plotly, no curves."""
    import nbformat  # takes a second
    from nbconvert.preprocessors import ExecutePreprocessor

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SCRIPT)])
    manager = manager_of(warm_kernels.command(), AsyncKernelManager)
    execute = ExecutePreprocessor(timeout=LIMIT)  # what `jupyter nbconvert --execute` calls
    notebook, _ = execute.preprocess(notebook, {"metadata": {"path": str(tmp_path)}}, km=manager)
    panel, picture = [each.data for each in notebook.cells[0].outputs if "data" in each]
    assert WIDGET in panel and "tnb-kept" in picture["text/html"]
    assert "finished" in picture["text/plain"]
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert len(state) == 2
    assert len(nbformat.writes(notebook)) < SMALL


# In this process, without a kernel

class Wire:
    """A page of a panel whose messages go nowhere else."""

    def __init__(self, panel):
        self.panel, self.messages = panel, []
        panel.send = lambda message, buffers: self.messages.append(message)

    def hear(self, ask, **message):
        """A message of the page."""
        self.panel._hear(self.panel, {"ask": ask, "page": "a"} | message, [])

    def view(self):
        """What the page knows, once all that was sent has arrived."""
        arrived()
        found = {}
        for each in self.messages:
            found = each.get("view") or apply(found, each.get("patch", {}))
        return found


def arrived():
    """Wait until all messages before this call are sent."""
    done = threading.Event()
    OUTBOX.put(done.set)
    assert done.wait(LIMIT)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_what_the_module_reads_of_it(part):
    """All sections but those of tabs; what it draws is for the module to know."""
    with make(epochs=1) as trainer:
        page = Wire(Panel(trainer.feed, part))
        assert page.messages == []
        page.hear("hello", v=VERSION)
        assert {"run", "state", "place", "commands", "points"} <= page.view().keys()
        trainer.fit()
        assert page.view() == trainer.feed.whole(page.panel.page.sections) | {"may_steer": True}
        page.panel.close()


def test_a_run_of_another_process(tmp_path):
    """Its folder is a run like any other."""
    trained(tmp_path / "run")
    page = Wire(Panel(Feed(RemoteRunView(tmp_path / "run"))))
    page.hear("hello", v=VERSION)
    assert page.view()["place"]["step"] == 24
    page.panel.close()


def test_what_is_no_part_is_refused():
    """With the names that there are."""
    with make(epochs=1) as trainer, pytest.raises(ValueError, match="hook_table"):
        Panel(trainer.feed, "hooks")


@pytest.mark.parametrize("message", [None, 3, [], {}, {"ask": 1}, {"ask": "library", "x": 2},
                                     {"ask": "hello", "v": "1"}, {"ask": "keep"}])
def test_strange_messages_do_no_harm(message):
    """Whatever a page sends."""
    with make(epochs=1) as trainer:
        page = Wire(Panel(trainer.feed))
        page.panel._hear(page.panel, message, [])
        arrived()
        assert len(page.messages) == 1 and not page.panel.page.ready
        page.panel.close()


def test_a_search_in_a_run_that_is_not_driven_is_answered():
    """It runs in a thread of its own, and nothing ticks after it."""
    with make(epochs=1) as trainer:
        page = Wire(Panel(trainer.feed))
        page.hear("hello", v=VERSION)
        page.hear("command", id="1", name="lr_find", values={})
        until(lambda: any(each.get("re") == "1" for each in page.messages))
        page.panel.close()


def test_a_panel_does_not_keep_its_trainer():
    """A cell that runs again makes a new one."""
    trainer = make(epochs=1)
    panel, gone = trainer.dashboard, weakref.ref(trainer)
    trainer.fit()
    del trainer
    gc.collect()
    assert gone() is None
    assert panel.comm is None and panel.page not in panel.feed.listeners


def test_messages_of_many_threads_arrive_in_the_order_of_each():
    """None is lost."""
    found, outbox = [], Outbox()

    def put(name):
        for number in range(500):
            outbox.put(found.append, (name, number))
    threads = [threading.Thread(target=put, args=[name]) for name in range(8)]
    for each in threads:
        each.start()
    until(lambda: len(found) == 4000)
    for name in range(8):
        assert [number for one, number in found if one == name] == list(range(500))
    assert sum(each.name == "trainer_nb panel" for each in threading.enumerate()) <= 2


def test_a_page_that_is_slow_does_not_hold_up_the_run():
    """What sends may block as long as it likes."""
    with make(epochs=20) as trainer:
        page, free = Wire(Panel(trainer.feed)), threading.Event()
        page.panel.send = lambda *message: free.wait(LIMIT)
        page.hear("hello", v=VERSION)
        trainer.fit()
        assert trainer.state == "finished"
        free.set()
        page.panel.close()


def test_what_cannot_be_sent_is_said_once(monkeypatch):
    """And the next message is sent."""
    said, found, outbox = [], [], Outbox()
    monkeypatch.setattr(widgets, "warn", said.append)

    def fail():
        raise OSError("gone")
    for _ in range(3):
        outbox.put(fail)
    outbox.put(found.append, 1)
    until(lambda: found)
    assert len(said) == 1 and "OSError: gone" in said[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_sends_nothing():
    """The page belongs to its parent, which goes on; workers of a loader are such processes."""
    with make(epochs=1) as trainer:
        page = Wire(Panel(trainer.feed))
        page.hear("hello", v=VERSION)
        before = page.view()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this process has threads
            child = os.fork()
        if not child:
            waiting = OUTBOX._waiting.qsize()  # of the moment of the fork
            page.panel.send_later({"patch": {}})
            os._exit(OUTBOX._waiting.qsize() - waiting)
        assert os.waitpid(child, 0)[1] == 0
        trainer.fit()
        assert (before["state"]["name"], page.view()["state"]["name"]) == ("idle", "finished")
        page.panel.close()


def test_messages_are_json():
    """A front end packs them as such."""
    with make(epochs=1) as trainer:
        page = Wire(Panel(trainer.feed))
        page.hear("hello", v=VERSION)
        trainer.fit()
        arrived()
        json.dumps(page.messages, allow_nan=False)
        page.panel.close()


def test_runs_are_drawn_behind_one_and_taken_away(tmp_path):
    """By what attach() gave, by a path, or a trainer; each once, and the run itself never."""
    for name in ("low", "high", "third"):
        trained(tmp_path / name)
    runs = attach(tmp_path / "[lh]*")
    with make(epochs=1) as trainer, make(epochs=1) as other:
        other.fit()
        plots = trainer.plots
        page = Wire(plots)
        page.hear("hello", v=VERSION)
        assert plots.add_run(runs) == ["high", "low"] and plots.add_run(runs) == []
        assert plots.add_run(other, "another") == ["another"] and plots.add_run(other) == []
        assert plots.add_run(trainer) == []
        assert plots.add_run(str(tmp_path / "third"), "x" * 500) == ["x" * 59 + "…"]
        assert [each["name"] for each in page.view()["drawn"]["runs"].values()][:3] == [
            "high", "low", "another"]
        assert plots.add_run(runs["low"], "renamed") == []
        assert plots.add_run(runs["low"], "renamed") == []  # a cell runs twice
        assert len(page.view()["drawn"]["runs"]) == 4
        for wrong, error, words in [((7,), TypeError, r"is not a run: .* add_run\(attach\("),
                                    ((runs, "two"), ValueError, "2 runs, and one name"),
                                    ((runs["high"], "renamed"), ValueError, "another run has it"),
                                    ((str(tmp_path / "no*"),), ValueError, "no folder")]:
            with pytest.raises(error, match=words):
                plots.add_run(*wrong)
        plots.remove_run("renamed")
        with pytest.raises(KeyError, match="high"):
            plots.remove_run("higher")
        names = [each["name"] for each in page.view()["drawn"]["runs"].values()]
        assert names == ["high", "another", "x" * 59 + "…"]
    runs.close()


def test_several_runs_are_one_panel(tmp_path):
    """Curves and rows of all, by the names that a person gave; those of this kernel are not among
    them."""
    for name in ("a", "b", "c"):
        trained(tmp_path / name)
    with make(epochs=1) as trainer:
        trainer.fit()
        page = Wire(trainer.dashboard)
        page.hear("hello", v=VERSION)  # so that it is remembered
    runs = attach(tmp_path / "*")
    runs.names["b"] = "the second"
    panel = runs.plots
    assert panel is runs.dashboard and panel.part == "runs"
    page = Wire(panel)
    page.hear("hello", v=VERSION)
    page.hear("open", tabs=["runs"])
    rows = page.view()["runs"]["rows"]
    assert [each["name"] for each in rows.values()] == ["a", "the second", "c"]
    assert [each["steps"] for each in rows.values()] == [each.view.position.step for each in runs]
    assert all(each["shown"] for each in rows.values())
    drawn = {each["run"] for message in page.messages for each in message.get("curves", [])
             if "run" in each}
    assert len(drawn) == 2
    runs.names["a"] = "the first"
    assert [each["name"] for each in page.view()["runs"]["rows"].values()][0] == "the first"
    html, text = panel.picture.draw()
    assert "the second" in text and "svg+xml" in html and "<table>" in html
    gone = weakref.ref(runs)
    del runs
    assert gone() is not None  # it is shown
    gone().close()
    assert gone() is None and panel.comm is None


def test_why_clicks_wait_is_told():
    """Where the kernel has changed, the page says so."""
    with make(epochs=1) as trainer:
        page = Wire(trainer.controls)
        page.hear("hello", v=VERSION)
        assert "obstacle" not in page.view()["state"]
        with trainer.panels.parts.screen.live():  # without a kernel
            trainer.feed.look()
            assert page.view()["state"]["obstacle"] == "no kernel is running this code"
        trainer.feed.look()
        assert page.view()["state"].get("obstacle") is None
