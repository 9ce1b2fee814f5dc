"""The message pump in a real kernel: clicks arrive while a cell runs, queued cells run afterwards, in order."""

import queue
import time

import pytest
from jupyter_client.manager import start_new_kernel

SETUP = """
import sys, time
sys.path.insert(0, {root!r})
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
def client(request):
    """A client of a fresh kernel with the package on its path."""
    manager, client = start_new_kernel(kernel_name="python3")
    run(client, SETUP.format(root=str(request.config.rootpath)))
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code):
    """Execute a cell and return its printed text."""
    return finish(client, client.execute(code))


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
    cell = client.execute("print(loop(20))")
    time.sleep(0.5)
    click(client, [1, 2, 3])
    begin = time.time()
    assert finish(client, cell).strip() == "['open', 1, 2, 3]"
    assert time.time() - begin < 10


def test_without_the_pump_they_wait(client):
    """What the pump is for: without it the same messages come after the cell."""
    cell = client.execute("time.sleep(2); print(list(seen))")
    time.sleep(0.3)
    click(client, [1])
    assert finish(client, cell).strip() == "[]"
    assert run(client, "print(list(seen))").strip() == "['open', 1]"


def test_queued_cells_run_afterwards_in_order(client):
    """Five cells and a completion queued meanwhile: none is lost, none overtakes."""
    cell = client.execute("order.append('fit'); loop(2.0, until=99); order.append('end')")
    time.sleep(0.3)
    queued = [client.execute(f"order.append({n})") for n in range(5)]
    completion = send(client, "complete_request", {"code": "tim", "cursor_pos": 3})
    click(client, [1, 2])
    finish(client, queued[-1])
    replies = shell_replies(client, [cell, *queued, completion])
    assert replies == list(range(7))
    assert run(client, "print(order, seen)").strip() == "['fit', 'end', 0, 1, 2, 3, 4] ['open', 1, 2]"


def test_a_reloaded_page_is_answered_meanwhile(client):
    """Info requests are replied to while the cell still runs."""
    cell = client.execute("loop(3, until=99)")
    time.sleep(0.3)
    info = send(client, "kernel_info_request", {})
    comms = send(client, "comm_info_request", {})
    assert shell_replies(client, [cell, info, comms]) == [1, 2, 0]


def test_the_stream_is_given_back_after_an_exception(client):
    """The borrowed callback is the kernel's own again, and the next cells run."""
    code = """
from trainer_nb.panel.pump import main_shell_stream, running_kernel
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
    client.execute("loop(1.5, until=99); raise RuntimeError('the run failed')")
    time.sleep(0.3)
    queued = client.execute("order.append('should not run')")
    deadline = time.time() + 10
    while time.time() < deadline:
        reply = client.get_shell_msg(timeout=10)
        if reply["parent_header"]["msg_id"] == queued:
            break
    assert reply["content"]["status"] in ("aborted", "error")
    time.sleep(0.5)
    assert run(client, "print(order)").strip() == "[]"
