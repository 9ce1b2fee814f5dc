"""The message pump in a real kernel: clicks arrive while a cell runs, queued cells run afterwards,
in order."""

import ast
import queue
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyter_server import LIMIT
from kernel_client import client_of

import trainer_nb
from trainer_nb.panel import pump as pump_module
from trainer_nb.panel.kernel import (KERNEL_PARTS, PumpUnavailable, main_shell_stream,
                                     publish_status)
from trainer_nb.panel.pump import MessagePump

in_a_kernel = pytest.mark.slow
BEGUN = "it begins\n"
SETUP = """
import sys, time
from trainer_nb.panel.kernel import main_shell_stream, running_kernel
from trainer_nb.panel.pump import MessagePump
seen, order = [], []
def opened(comm, message):
    seen.append("open")
    comm.on_msg(lambda message: seen.append(message["content"]["data"]["value"]))
get_ipython().kernel.comm_manager.register_target("test", opened)
def begin():
    print("it begins", flush=True)
def loop(until):
    with MessagePump() as pump:
        assert pump.live, pump.reason
        begin()
        while len(seen) < until:
            pump()
            time.sleep(0.001)
    return list(seen)
"""


@pytest.fixture
def client(tmp_path):
    """A front end of a fresh kernel."""
    with client_of("python3", tmp_path) as client:
        client.run(SETUP)
        yield client


def printed(client, cell):
    """What a cell has printed when it has ended, but for the word that it begins."""
    return client.finish(cell).replace(BEGUN, "", 1).strip()


def click(client, values):
    """Open a comm and send values through it, as a widget in a page does."""
    client.send("comm_open", {"comm_id": "c1", "target_name": "test", "data": {}})
    for value in values:
        client.send("comm_msg", {"comm_id": "c1", "data": {"value": value}})


def shell_replies(client, wanted, count=None):
    """Which of these messages have got a reply, in the order of the replies."""
    found, end = [], time.monotonic() + LIMIT
    while len(found) < (count or len(wanted)) and time.monotonic() < end:
        try:
            message = client.client.get_shell_msg(timeout=0.5)
        except queue.Empty:
            continue
        parent = message["parent_header"]["msg_id"]
        client.ended.add(parent)
        if parent in wanted:
            found.append(wanted.index(parent))
    return found


@in_a_kernel
def test_messages_take_effect_while_the_cell_runs(client):
    """The loop ends because it saw the messages: it has no other end."""
    cell = client.begin("print(loop(until=4))", BEGUN)
    click(client, [1, 2, 3])
    assert printed(client, cell) == "['open', 1, 2, 3]"


@in_a_kernel
def test_without_the_pump_they_wait(client, tmp_path):
    """What the pump is for: without it the same messages come after the cell."""
    cell = client.begin("import os\nbegin()\nwhile not os.path.exists('sent'): time.sleep(0.001)\n"
                        "print(list(seen))", BEGUN)
    click(client, [1])
    (tmp_path / "sent").touch()
    assert printed(client, cell) == "[]"
    assert client.run("print(list(seen))").strip() == "['open', 1]"


@in_a_kernel
def test_queued_cells_run_afterwards_in_order(client):
    """Five cells and a completion queued meanwhile: none is lost, none overtakes."""
    cell = client.begin("order.append('fit'); loop(until=3); order.append('end')", BEGUN)
    queued = [client.client.execute(f"order.append({n})") for n in range(5)]
    completion = client.send("complete_request", {"code": "tim", "cursor_pos": 3})
    click(client, [1, 2])  # the last to come, and the first to act
    replies = shell_replies(client, [cell, *queued, completion])
    assert replies == list(range(7))
    assert client.run(
        "print(order, seen)").strip() == "['fit', 'end', 0, 1, 2, 3, 4] ['open', 1, 2]"


@in_a_kernel
def test_a_reloaded_page_is_answered_meanwhile(client):
    """Info requests are replied to while the cell still runs."""
    cell = client.begin("loop(until=1)", BEGUN)
    info = client.send("kernel_info_request", {})
    comms = client.send("comm_info_request", {})
    asked = [cell, info, comms]
    assert shell_replies(client, asked, 2) == [1, 2]
    click(client, [])  # this ends it
    assert shell_replies(client, asked, 1) == [0]


@in_a_kernel
def test_the_stream_is_given_back_after_an_exception(client):
    """The borrowed callback is the kernel's own again, and the next cells run."""
    code = """
before = main_shell_stream(running_kernel())._recv_callback
try:
    with MessagePump() as pump:
        assert main_shell_stream(running_kernel())._recv_callback is not before
        raise ValueError("in the step")
except ValueError:
    print(main_shell_stream(running_kernel())._recv_callback is before)
"""
    assert client.run(code).strip() == "True"
    assert client.run("print(1 + 1)").strip() == "2"


@in_a_kernel
def test_an_error_ends_the_queue_as_ever(client):
    """Cells queued behind a cell that raises are aborted, as the kernel does without a pump."""
    client.begin("loop(until=1); raise RuntimeError('the run failed')", BEGUN)
    queued = client.client.execute("order.append('should not run')")
    click(client, [])
    replies = []
    while not replies or replies[-1]["parent_header"]["msg_id"] != queued:
        replies.append(client.client.get_shell_msg(timeout=LIMIT))
    assert replies[-1]["content"]["status"] in ("aborted", "error")
    # for a moment what comes now is aborted, too, and prints nothing
    found = []
    while not found or not found[-1]:
        found.append(client.run("print(order)").strip())
    assert found[-1] == "[]"


@in_a_kernel
def test_what_cannot_be_read_is_given_back_untouched(client):
    """The kernel's own note "stop aborting" has no header; the run goes on, the kernel gets it."""
    code = """
stream, got = main_shell_stream(running_kernel()), []
receiver = stream._recv_callback
stream.on_recv(lambda message: got.append(message[0].bytes), copy=False)
with MessagePump(interval=0) as pump:
    pump._loan._sort([__import__("zmq").Frame(b"stop aborting")])
    for _ in range(10):
        pump()
    print(pump.live, got)
print(got)
stream.on_recv(receiver, copy=False)
"""
    assert client.run(code).split("\n")[:2] == ["True []", "[b'stop aborting']"]


@in_a_kernel
def test_a_callback_that_raises_or_prints_disturbs_nothing(client):
    """The next click arrives, and what the cell prints still lands under the cell."""
    client.run("def opened(comm, message):\n"
               "    seen.append('open')\n"
               "    def clicked(message):\n"
               "        seen.append(message['content']['data']['value'])\n"
               "        print('from the callback')\n"
               "        raise ValueError('in the callback')\n"
               "    comm.on_msg(clicked)\n"
               "get_ipython().kernel.comm_manager.register_target('test', opened)")
    cell = client.begin("print('before'); print(loop(until=3)); print('after')", BEGUN)
    click(client, [1, 2])
    assert client.finish(cell) == f"before\n{BEGUN}['open', 1, 2]\nafter\n"


@in_a_kernel
def test_a_pump_that_fails_gives_back_and_says_so(client):
    """Whatever breaks inside, the loop that calls it goes on, and the queued cell runs."""
    code = """
with MessagePump(interval=0) as pump:
    pump._loan.stream.flush, flush = None, pump._loan.stream.flush
    begin()
    while pump.live:  # it breaks where a message has come
        pump()
    print(pump.live, pump.reason)
    main_shell_stream(running_kernel()).flush = flush
    for _ in range(100):
        pump()
"""
    # else the kernel may have read the next message before the pump
    cell = client.begin(code, BEGUN)
    queued = client.client.execute("print('queued')")
    assert printed(client, cell).startswith("False stopped by TypeError")
    assert client.finish(queued).strip() == "queued"


@in_a_kernel
def test_a_pump_inside_a_pump(client):
    """A run inside a run (a callback that trains, say): both give back, nothing is lost."""
    cell = client.begin("with MessagePump() as outer:\n"
                        "    print(loop(until=2), flush=True)\n"
                        "    while len(seen) < 3:\n"
                        "        outer()\n"
                        "    print(seen, outer.live)", BEGUN)
    queued = [client.client.execute(f"order.append({n})") for n in range(3)]
    click(client, [1])
    assert client.until(lambda: "['open', 1]" in client.text(cell))  # the inner one has ended
    client.send("comm_msg", {"comm_id": "c1", "data": {"value": 2}})
    assert printed(client, cell) == "['open', 1]\n['open', 1, 2] True"
    client.finish(queued[-1])
    assert client.run("print(order)").strip() == "[0, 1, 2]"


@in_a_kernel
def test_only_the_thread_of_the_messages_pumps(client):
    """In a background thread the kernel is free and takes its messages itself."""
    code = """
import threading
def enter():
    with MessagePump() as pump:
        pump()
        print(pump.live, pump.reason)
thread = threading.Thread(target=enter)
thread.start(); thread.join()
"""
    assert client.run(code).startswith("False this is not the thread that handles")


def test_without_a_kernel_nothing_happens():
    """The same code in a script."""
    with MessagePump() as pump:
        pump()
        assert not pump.live and "no kernel" in pump.reason


@pytest.mark.parametrize("missing", ["shell_handlers", "get_parent", "iopub_socket", "session"])
def test_an_attribute_that_the_kernel_lacks_is_named(missing):
    """The reason names it, and the run goes on."""
    kernel = SimpleNamespace(**{name: None for name in KERNEL_PARTS if name != missing})
    with pytest.raises(PumpUnavailable, match=missing):
        main_shell_stream(kernel)


def test_private_attributes_that_are_gone_are_named():
    """A stream without pyzmq's private callback, and a kernel 7 without its private pair of
    sockets."""
    kernel = SimpleNamespace(**dict.fromkeys(KERNEL_PARTS))
    kernel.shell_stream = SimpleNamespace(flush=None, on_recv=None, io_loop=None)
    with pytest.raises(PumpUnavailable, match="stream has no _recv_callback"):
        main_shell_stream(kernel)
    kernel.shell_channel_thread = SimpleNamespace(manager=SimpleNamespace())
    with pytest.raises(PumpUnavailable, match="stream has no flush"):
        main_shell_stream(kernel)


@in_a_kernel
def test_without_the_private_identity_messages_are_answered(client):
    """A kernel that hides who sent the cell:
    clicks are handled, and what the cell prints lands under it."""
    hidden = """
from trainer_nb.panel import pump as module
from types import SimpleNamespace
before, module.cell_identity = module.cell_identity, lambda kernel: before(SimpleNamespace())
assert module.cell_identity(None) == b""
print(loop(until=2)); print("after")
module.cell_identity = before
"""
    cell = client.begin(hidden, BEGUN)
    click(client, [1])
    assert printed(client, cell) == "['open', 1]\nafter"


def test_the_status_is_what_the_kernel_itself_would_send():
    """By public attributes alone: the same message as that of ipykernel's private method."""
    from ipykernel.kernelbase import Kernel
    sent = []
    session = SimpleNamespace(send=lambda *args, **names: sent.append((args, names)))
    kernel = SimpleNamespace(session=session, iopub_socket="iopub", ident="a-b",
                             get_parent=lambda channel: {"of": channel})
    kernel._topic = lambda topic: Kernel._topic(kernel, topic)
    Kernel._publish_status(kernel, "busy", "shell")
    publish_status(kernel, "busy")
    assert sent[0] == sent[1]


def test_the_usual_call_costs_next_to_nothing(monkeypatch):
    """It reads the clock and compares; the messages are looked at every 10 ms."""
    now, looked = [100.0], []
    monkeypatch.setattr(pump_module, "perf_counter", lambda: now[0])
    pump = MessagePump()
    pump._pump = lambda: looked.append(now[0])
    for _ in range(200):
        pump()
        now[0] += 0.001
    assert looked == pytest.approx([100.0 + 0.01 * number for number in range(20)])


LIBRARIES = {path.stem for path in Path(trainer_nb.__file__).parent.glob("panel/*.py")} - {"kernel"}


@pytest.mark.parametrize("module", sorted(LIBRARIES))
def test_private_attributes_of_libraries_stand_in_one_module(module):
    """Every module of the panel but `kernel` reads private attributes of itself alone."""
    tree = ast.parse((Path(trainer_nb.__file__).parent / "panel" / f"{module}.py").read_text())
    found = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match("_[^_]", node.attr)
        and ast.unparse(node.value).split(".")[0] not in ("self", "cls")
    }
    assert {text for text in found if not text.endswith("._repr_mimebundle_")} == set()
