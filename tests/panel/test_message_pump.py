"""The message pump in a real kernel: clicks arrive while a cell runs, queued cells run afterwards,
in order."""

import ast
import queue
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyter_client.manager import start_new_kernel

import trainer_nb
from trainer_nb.panel.kernel import (KERNEL_PARTS, PumpUnavailable, main_shell_stream,
                                     publish_status)
from trainer_nb.panel.pump import MessagePump

SETUP = """
import sys, time
sys.path.insert(0, {root!r})
from trainer_nb.panel.kernel import main_shell_stream, running_kernel
from trainer_nb.panel.pump import MessagePump
seen, order = [], []
def opened(comm, message):
    seen.append("open")
    comm.on_msg(lambda message: seen.append(message["content"]["data"]["value"]))
get_ipython().kernel.comm_manager.register_target("test", opened)
def loop(seconds, until=4):
    end = time.time() + seconds
    with MessagePump() as pump:
        assert pump.live, pump.reason
        while time.time() < end and len(seen) < until:
            pump()
            time.sleep(0.001)
    return list(seen)
"""


@pytest.fixture
def client():
    """A client of a fresh kernel with the package on its path."""
    manager, client = start_new_kernel(kernel_name="python3")
    run(client, SETUP.format(root=str(Path(trainer_nb.__file__).parents[1])))
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code):
    """Execute a cell and return its printed text."""
    return finish(client, client.execute(code))


def begin(client, code):
    """Send a cell and wait until the kernel runs it."""
    cell, deadline = client.execute(code), time.time() + 30
    while time.time() < deadline:
        message = client.get_iopub_msg(timeout=30)
        if message["msg_type"] == "execute_input" and message["parent_header"]["msg_id"] == cell:
            time.sleep(0.3)
            return cell
    raise AssertionError("the cell did not begin")


def finish(client, message_id, timeout=30):
    """Wait for the end of a cell; its printed text, or the error."""
    text, deadline = "", time.time() + timeout
    while time.time() < deadline:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != message_id:
            continue
        content = message["content"]
        if message["msg_type"] == "stream":
            text += content["text"]
        if message["msg_type"] == "error":
            raise AssertionError("\n".join(content["traceback"]))
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            return text
    raise AssertionError("the cell did not end")


def send(client, kind, content):
    """Send a message of any kind on the shell channel."""
    message = client.session.msg(kind, content)
    client.shell_channel.send(message)
    return message["header"]["msg_id"]


def click(client, values):
    """Open a comm and send values through it, as a widget in a page does."""
    send(client, "comm_open", {"comm_id": "c1", "target_name": "test", "data": {}})
    for value in values:
        send(client, "comm_msg", {"comm_id": "c1", "data": {"value": value}})


def shell_replies(client, wanted, timeout=10):
    """The kinds of replies with these parents, in the order in which they came."""
    found, deadline = [], time.time() + timeout
    while len(found) < len(wanted) and time.time() < deadline:
        try:
            message = client.get_shell_msg(timeout=0.5)
        except queue.Empty:
            continue
        if message["parent_header"]["msg_id"] in wanted:
            found.append(wanted.index(message["parent_header"]["msg_id"]))
    return found


def test_messages_take_effect_while_the_cell_runs(client):
    """The loop ends because it saw the messages, long before its time is over."""
    cell = begin(client, "print(loop(20))")
    click(client, [1, 2, 3])
    clicked = time.time()
    assert finish(client, cell).strip() == "['open', 1, 2, 3]"
    assert time.time() - clicked < 10


def test_without_the_pump_they_wait(client):
    """What the pump is for: without it the same messages come after the cell."""
    cell = begin(client, "time.sleep(2); print(list(seen))")
    click(client, [1])
    assert finish(client, cell).strip() == "[]"
    assert run(client, "print(list(seen))").strip() == "['open', 1]"


def test_queued_cells_run_afterwards_in_order(client):
    """Five cells and a completion queued meanwhile: none is lost, none overtakes."""
    cell = begin(client, "order.append('fit'); loop(2.0, until=99); order.append('end')")
    queued = [client.execute(f"order.append({n})") for n in range(5)]
    completion = send(client, "complete_request", {"code": "tim", "cursor_pos": 3})
    click(client, [1, 2])
    finish(client, queued[-1])
    replies = shell_replies(client, [cell, *queued, completion])
    assert replies == list(range(7))
    assert run(client,
               "print(order, seen)").strip() == "['fit', 'end', 0, 1, 2, 3, 4] ['open', 1, 2]"


def test_a_reloaded_page_is_answered_meanwhile(client):
    """Info requests are replied to while the cell still runs."""
    cell = begin(client, "loop(3, until=99)")
    info = send(client, "kernel_info_request", {})
    comms = send(client, "comm_info_request", {})
    assert shell_replies(client, [cell, info, comms]) == [1, 2, 0]


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
    assert run(client, code).strip() == "True"
    assert run(client, "print(1 + 1)").strip() == "2"


def test_an_error_ends_the_queue_as_ever(client):
    """Cells queued behind a cell that raises are aborted, as the kernel does without a pump."""
    begin(client, "loop(1.5, until=99); raise RuntimeError('the run failed')")
    queued = client.execute("order.append('should not run')")
    deadline = time.time() + 10
    while time.time() < deadline:
        reply = client.get_shell_msg(timeout=10)
        if reply["parent_header"]["msg_id"] == queued:
            break
    assert reply["content"]["status"] in ("aborted", "error")
    time.sleep(0.5)
    assert run(client, "print(order)").strip() == "[]"


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
    assert run(client, code).split("\n")[:2] == ["True []", "[b'stop aborting']"]


def test_a_callback_that_raises_or_prints_disturbs_nothing(client):
    """The next click arrives, and what the cell prints still lands under the cell."""
    run(client, "def opened(comm, message):\n"
                "    seen.append('open')\n"
                "    def clicked(message):\n"
                "        seen.append(message['content']['data']['value'])\n"
                "        print('from the callback')\n"
                "        raise ValueError('in the callback')\n"
                "    comm.on_msg(clicked)\n"
                "get_ipython().kernel.comm_manager.register_target('test', opened)")
    cell = begin(client, "print('before'); print(loop(20, until=3)); print('after')")
    click(client, [1, 2])
    assert finish(client, cell).split("\n") == ["before", "['open', 1, 2]", "after", ""]


def test_a_pump_that_fails_gives_back_and_says_so(client):
    """Whatever breaks inside, the loop that calls it goes on, and the queued cell runs."""
    code = """
with MessagePump(interval=0) as pump:
    pump._loan.stream.flush, flush = None, pump._loan.stream.flush
    until = time.monotonic() + 10  # it breaks where a message has come
    while pump.live and time.monotonic() < until:
        pump()
    print(pump.live, pump.reason)
    main_shell_stream(running_kernel()).flush = flush
    for _ in range(100):
        pump()
        time.sleep(0.01)
"""
    cell = begin(client, code)  # else the kernel may have read the next message before the pump
    queued = client.execute("print('queued')")
    assert finish(client, cell).startswith("False stopped by TypeError")
    assert finish(client, queued).strip() == "queued"


def test_a_pump_inside_a_pump(client):
    """A run inside a run (a callback that trains, say): both give back, nothing is lost."""
    cell = begin(client, "with MessagePump() as outer:\n"
                         "    print(loop(20, until=2))\n"
                         "    while len(seen) < 3:\n"
                         "        outer()\n"
                         "    print(seen, outer.live)")
    queued = [client.execute(f"order.append({n})") for n in range(3)]
    click(client, [1])
    time.sleep(0.5)
    send(client, "comm_msg", {"comm_id": "c1", "data": {"value": 2}})
    assert finish(client, cell).strip() == "['open', 1]\n['open', 1, 2] True"
    finish(client, queued[-1])
    assert run(client, "print(order)").strip() == "[0, 1, 2]"


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
    assert run(client, code).startswith("False this is not the thread that handles")


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


def test_without_the_private_identity_messages_are_answered(client):
    """A kernel that hides who sent the cell:
    clicks are handled, and what the cell prints lands under it."""
    hidden = """
from trainer_nb.panel import pump as module
from types import SimpleNamespace
before, module.cell_identity = module.cell_identity, lambda kernel: before(SimpleNamespace())
assert module.cell_identity(None) == b""
print(loop(20, until=2)); print("after")
module.cell_identity = before
"""
    cell = begin(client, hidden)
    click(client, [1])
    assert finish(client, cell).strip() == "['open', 1]\nafter"


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


def test_the_usual_call_costs_next_to_nothing():
    """A throttled call is a comparison: under 2 µs even here."""
    pump = MessagePump()
    pump.due = float("inf")
    start = time.perf_counter()
    for _ in range(100_000):
        pump()
    assert (time.perf_counter() - start) / 100_000 < 2e-6


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
