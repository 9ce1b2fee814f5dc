"""A kernel and a client of it, without a page: what a front end does, message by message.

    with client_of(KERNEL, folder) as client:
        cell = client.begin("trainer.fit()")   # it runs now
        client.tell(comm, {"ask": ...})        # a message of a page, sent on the shell channel
        client.finish(cell)

Every message goes over the main shell channel, as VS Code sends those of widgets.
"""

import json
import os
import queue
import tempfile
import time
import weakref
from contextlib import contextmanager
from pathlib import Path

import warm_kernels
from jupyter_client.manager import KernelManager
from jupyter_server import ENVIRONMENTS, LIMIT

from trainer_nb.panel.feed import VERSION

WIDGETS = "jupyter.widget"


def command_of(kernel):
    """The command line of a kernel: "python3" is this Python's, forked from a warm process; others
    are in environments of their own."""
    if kernel == "python3":
        return warm_kernels.command()
    python = str(ENVIRONMENTS / f".venv-{kernel}" / "bin" / "python")
    return [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]


def manager_of(command, kind=KernelManager):
    """A manager of a kernel that is reached by files: another process could take a port that was
    free before the kernel has it."""
    sockets = tempfile.TemporaryDirectory(prefix="kernel")
    manager = kind(transport="ipc", ip=os.path.join(sockets.name, "channel"))
    weakref.finalize(manager, sockets.cleanup)
    manager.kernel_spec.argv[:] = command
    return manager


@contextmanager
def client_of(kernel, folder):
    """A front end for a new kernel whose working directory is `folder`."""
    manager = manager_of(command_of(kernel))
    manager.start_kernel(cwd=str(folder),
                         env=os.environ | {"OMP_NUM_THREADS": "1", "IPYTHONDIR": str(folder)})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(LIMIT)
        yield FrontEnd(client, manager)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


class FrontEnd:
    """Runs cells, and knows the widgets that the kernel has opened."""

    def __init__(self, client, manager):
        self.client, self.interrupt = client, manager.interrupt_kernel
        self.widgets = {}  # id of a comm to the state of its widget
        self.outputs = {}  # id of a cell to what it printed or displayed, in order
        self.ended = set()  # ids of cells that have their reply
        self.idle = set()  # and of those all of whose outputs were read
        self.echoed = []  # ids of comms whose values the kernel has taken from here
        self.subshell = None  # id of the one that messages are for
        self.messages = {}  # id of a comm to its custom messages, each with its buffers
        self.begun, self.to_clear = set(), set()  # to_clear: at their next output
        self.shown = set()  # ids of comms of panels that a page has drawn

    def read(self, seconds=0.0):
        """Read what the kernel has published; wait at most so long for the first message."""
        wait = seconds
        while True:
            try:
                self._note(self.client.get_iopub_msg(timeout=wait))
            except queue.Empty:
                return
            wait = 0.0

    def _note(self, message):
        kind, content, cell = (message["msg_type"], message["content"],
                               message["parent_header"].get("msg_id"))
        if kind == "clear_output" and content["wait"]:
            self.to_clear.add(cell)
        elif kind == "clear_output":
            self.outputs[cell] = []
        elif kind in ("stream", "display_data", "execute_result") and cell in self.to_clear:
            self.to_clear.remove(cell)
            self.outputs[cell] = []
        if kind == "comm_open" and content["target_name"] == WIDGETS:
            self.widgets[content["comm_id"]] = dict(content["data"]["state"])
        elif kind == "comm_msg" and content["data"].get("method") == "update":
            self.widgets.get(content["comm_id"], {}).update(content["data"]["state"])
        elif kind == "comm_msg" and content["data"].get("method") == "custom":
            self.messages.setdefault(content["comm_id"], []).append(
                (content["data"]["content"], message["buffers"]))
        elif kind == "comm_msg" and content["data"].get("method") == "echo_update":
            self.echoed.append(content["comm_id"])
        elif kind == "status" and content["execution_state"] == "idle":
            self.idle.add(cell)
        elif kind == "comm_close":
            self.widgets.pop(content["comm_id"], None)
        elif kind == "stream":
            self.outputs.setdefault(cell, []).append(content["text"])
        elif kind in ("display_data", "execute_result"):
            self.outputs.setdefault(cell, []).append(content["data"])
        elif kind == "error":
            self.outputs.setdefault(cell, []).append("\n".join(content["traceback"]))
        elif kind == "execute_input":
            self.begun.add(cell)

    def until(self, condition, seconds=LIMIT):
        """Read until the condition holds; False where it does not come to that."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            self.read(0.05)
        return True

    def replied(self, cell):
        """Whether the kernel has answered a cell."""
        while True:
            try:
                self.ended.add(self.client.get_shell_msg(timeout=0)["parent_header"].get("msg_id"))
            except queue.Empty:
                return cell in self.ended

    def run(self, code):
        """Run a cell to its end; what it printed."""
        return self.finish(self.client.execute(code))

    def begin(self, code, said=""):
        """Send a cell and wait until the kernel runs it, and until it has printed some words."""
        cell = self.client.execute(code)
        assert self.until(lambda: cell in self.begun and said in self.text(cell)), self.text(cell)
        return cell

    def finish(self, cell):
        """Wait for the end of a cell; what it printed."""
        assert self.until(lambda: self.replied(cell) and cell in self.idle), self.text(cell)
        return self.text(cell)

    def run_to_now(self):
        """Read all that the kernel has published up to now, while a cell runs: a message of our own
        is answered after it."""
        request = self.send("kernel_info_request", {})
        assert self.until(lambda: request in self.idle)

    def text(self, cell):
        """What a cell has printed so far."""
        return "".join(each for each in self.outputs.get(cell, []) if isinstance(each, str))

    def send(self, kind, content):
        """A message of any kind on the shell channel."""
        message = self.client.session.msg(kind, content)
        if self.subshell:
            message["header"]["subshell_id"] = self.subshell
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def control(self, kind, **content):
        """A message on the control channel; what it is answered."""
        self.client.control_channel.send(self.client.session.msg(kind, content))
        return self.client.get_control_msg(timeout=LIMIT)["content"]

    @contextmanager
    def on_subshell(self):
        """What is sent while this is open goes to a shell of its own, as JupyterLab does it for
        the widgets of a page; the shell ends with it."""
        self.subshell = self.control("create_subshell_request")["subshell_id"]
        try:
            yield
        finally:
            self.control("delete_subshell_request", subshell_id=self.subshell)
            self.subshell = None

    def find(self, **values):
        """The ids of the widgets whose state has these values."""
        self.read()
        return [comm for comm, state in self.widgets.items()
                if all(state.get(name) == value for name, value in values.items())]

    def tell(self, comm, content):
        """A custom message of a widget."""
        self.send("comm_msg", {"comm_id": comm, "data": {"method": "custom", "content": content}})

    def show(self):
        """Say what a page says once it has drawn the panels that are new; how many there were."""
        new = set(self.find(_model_name="AnyModel")) - self.shown
        for comm in new:
            self.tell(comm, {"ask": "hello", "v": VERSION, "page": "shown"})
        self.shown |= new
        return len(new)


def told(folder):
    """What the training of `live_page.SETUP` wrote after its last step."""
    path = Path(folder, "told.json")
    return json.loads(path.read_text()) if path.exists() else {"step": 0}
