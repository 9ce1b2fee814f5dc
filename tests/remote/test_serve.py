"""The page of a run over real HTTP: what it shows and sends, who may do that, and what keeps
everybody else out."""

import contextlib
import gzip
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import psutil
import pytest
import torch
from page_runs import ENVIRONMENT, Run, Served, training
from steered import until
from torch import nn
from written_runs import WrittenRun, trained

from trainer_nb import Trainer
from trainer_nb.folder.control import Replies
from trainer_nb.remote.serve import (
    LARGEST,
    MOST_COMMANDS,
    MOST_KNOWN,
    MOST_STRANGERS,
    Page,
    Server,
)

FILES = ("", "start.js", "page.css", "panel.js", "panel.css", "plotly-basic.js")
READS = (*FILES, "view")
EVENTS = "events?page=one&v=1"
SEALS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
         "Referrer-Policy": "no-referrer",
         "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin"}
JSON = {"Content_Type": "application/json"}

pytestmark = pytest.mark.slow


# a command waits for its answer until the page is closed
PATIENT = """
from trainer_nb.remote.serve import Page
make = Page.__init__
Page.__init__ = lambda page, *given: make(page, *given, wait=10**6)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in another process."""
    with training(tmp_path_factory.mktemp("runs") / "exp1") as run:
        yield run


@pytest.fixture(scope="module")
def served(run):
    """Its page."""
    with Served(run.path, "--port", 0, "--name", "phone", before=PATIENT) as served:
        yield served


@pytest.fixture(scope="module")
def unread(tmp_path_factory):
    """Files of a run that does not read its commands, for what has to be refused before."""
    return WrittenRun(tmp_path_factory.mktemp("unread"))


@pytest.fixture(scope="module")
def guarded(unread):
    """Its page."""
    with Served(unread.path, "--port", 0) as guarded:
        yield guarded


@pytest.fixture
def written(tmp_path):
    """Files of a run that does not read its commands."""
    return WrittenRun(tmp_path)


# What it shows and sends


def test_state_and_commands_of_a_run_in_another_process(run, served):
    """The rate takes effect and stands in the journal with its sender; pause, step, resume, note;
    the run's refusals come back."""
    assert served.name() == "running" and served.view()["place"]["step"] > 0
    status, answer = served.post("tune", {"lr": "*0.5", "slow.loud": True})
    assert (status, answer["status"]) == (200, "applied")
    found = [(each["name"], each["old"], each["new"], each["source"]) for each in run.journal]
    assert ("lr", None, 0.005, "phone") in found and ("slow.loud", False, True, "phone") in found
    values = served.view()["values"]
    assert (values["lr"]["value"], values["slow.loud"]["value"]) == (0.005, True)
    told = served.view()["journal"]["entries"].values()
    assert any(each["what"] == "lr" and each["change"].endswith("→ 0.005")
               and each["source"] == "phone" for each in told)

    assert served.post("pause")[1]["status"] == "applied"
    assert served.name() == "paused" and run.status["state"] == "paused"
    held = run.step()
    assert served.post("step", {"n": 2})[1]["status"] == "applied"
    until(lambda: run.step() == held + 2 and served.name() == "paused")
    for values, why in [({"lr": "-1"}, "lr"), ({"slow.seconds": 7}, "1")]:
        status, answer = served.post("tune", values)
        assert (status, answer["status"]) == (200, "refused") and why in answer["reason"], answer
    assert served.post("tune", {"lr": "fast"}) == (400,
                                                   {"status": "refused",
                                                    "reason": "lr=fast: a number of at least 0, or "
                                                              "none."})
    assert served.post("note", {"text": "a <b>note</b>"})[1]["status"] == "applied"
    assert any("a <b>note</b>" in each.values()  # text: the page does not read it as HTML
               for each in served.view()["journal"]["entries"].values())
    assert served.post("resume")[1]["status"] == "applied"
    until(lambda: run.step() > held + 3)


@pytest.mark.parametrize("body",
                         [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 10_000,
                          b'{"command": "detach"}', b'{"command": 7}',
                          b'{"command": "tune", "values": [1]}', b'{"command": "tune"}',
                          b'{"command": "step", "values": {"n": [1]}}',
                          b'{"command": "note", "values": {"text": "x"}, "reason": "\\u0000"}',
                          b'{"command": "../pause"}'])
def test_garbage_is_refused_with_a_reason(served, run, body):
    """Nothing of it reaches the run."""
    status, _, answer = served.ask("command", method="POST", body=body, **JSON)
    assert status == 400
    assert json.loads(answer)["status"] == "refused" and json.loads(answer)["reason"]
    assert list((run.path / "control" / "commands").iterdir()) == []


def test_each_file_of_the_page_is_sent(guarded):
    """The script of plotly is packed."""
    for path in FILES[1:]:
        status, headers, body = guarded.ask(path)
        assert status == 200 and body
        if path == "plotly-basic.js":
            assert headers["Content-Encoding"] == "gzip"
            assert len(gzip.decompress(body)) > 2 * len(body)


# Who may


@pytest.mark.parametrize("token", [None, "guess", "", "é"])
@pytest.mark.parametrize("path", ["view", "command", "ask", "nothing", EVENTS])
def test_nothing_of_the_run_without_the_token(guarded, path, token):
    """403, with words that say what is needed. Only the header counts: no address, no cookie."""
    token = token and token.encode().decode("latin-1")
    cookies = "; ".join(f"{name}={guarded.steer}" for name in ("token", "trainer_nb", "steer"))
    answers = [guarded.ask(path, token), guarded.ask(path, token, Cookie=cookies),
               guarded.ask(f"{path}?token={guarded.steer}", token),
               guarded.ask(path, None, Authorization=f"Basic {guarded.steer}")]
    for status, headers, body in answers:
        assert status == 403 and b"token of the link" in body
        assert headers["Content-Type"].partition(";")[0] == "application/json"
        assert guarded.steer.encode() not in body and b"exp1" not in body


@pytest.mark.parametrize("path", FILES)
def test_the_files_of_the_page_hold_nothing_of_a_run(guarded, path):
    """They come without a token: the link has it after "#", which a browser sends to nobody.
    Nothing but reading is allowed, and no answer sets a cookie."""
    status, headers, body = guarded.ask(path, None)
    assert (status, body) == (200, guarded.ask(path)[2]) and "Set-Cookie" not in headers
    # not the port: five digits are somewhere among the four million of a large file
    for secret in (guarded.steer, guarded.look, "exp1"):
        assert secret.encode() not in (gzip.decompress(body) if path == "plotly-basic.js" else body)
    assert guarded.ask(path, None, "POST", b"{}", **JSON)[0] == 403
    assert guarded.steer != guarded.look and "/#token=" in guarded.steer_url


def test_each_start_has_new_tokens(guarded, unread):
    """A link of an earlier server opens nothing."""
    with Served(unread.path, "--port", 0) as other:
        assert other.ask("view", guarded.steer)[0] == 403 and other.ask("view")[0] == 200
        assert len({other.steer, other.look, guarded.steer, guarded.look}) == 4
        assert len(other.steer) >= 43


@pytest.mark.parametrize("host",
                         ["evil.example", "evil.example:80", "127.0.0.1.evil.example",
                          "localhost.evil.example", "10.1.2.3", "[::2]:80", "x"])
@pytest.mark.parametrize("path", READS)
def test_a_strange_host_is_refused(guarded, host, path):
    """A name that a web site points to this machine is none of ours, right token or not."""
    assert guarded.ask(path, host=host)[0] == guarded.ask(path, None, host=host)[0] == 403


def test_the_names_of_this_machine_are_taken(guarded):
    """Under any port: ssh may carry it to another one."""
    for host in ("127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:1"):
        assert guarded.ask("view", host=host)[0] == 200


@pytest.mark.parametrize("headers", [
    {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost"}, {"Origin": ""},
    {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Sec_Fetch_Site": "none"}],
    ids=str)
def test_another_page_changes_nothing(guarded, unread, headers):
    """Also one of another port of this machine."""
    status, answer = guarded.post("note", {"text": "evil"}, **headers)
    assert status == 403 and "may not change" in answer["reason"] and unread.commands() == []


def test_the_page_itself_may(served):
    """With what a browser sends, and a program without it."""
    own = {"Origin": f"http://127.0.0.1:{served.port}", "Sec_Fetch_Site": "same-origin"}
    assert served.post("note", {"text": "own"},
                       **own)[0] == served.post("note", {"text": "program"})[0] == 200


@pytest.mark.parametrize("kind",
                         [None, "text/plain", "application/x-www-form-urlencoded",
                          "text/json; application/json"])
def test_only_json_is_taken(guarded, kind):
    """A form of another site cannot send it."""
    assert guarded.post("pause", Content_Type=kind)[0] == 415
    assert guarded.name() == "running"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "POST"])
def test_other_methods_do_nothing(guarded, method):
    """No preflight is answered."""
    status, headers, _ = guarded.ask("view", method=method, body=b"{}",
                                     Origin="https://evil.example", **JSON)
    assert status in (403, 405)
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_a_link_that_may_only_look(guarded, unread):
    """It sees the run, without the line that starts it, and changes nothing."""
    for command in ("pause", "tune", "note", "stop"):
        status, answer = guarded.post(command, {"text": "x"}, token="look")
        assert status == 403 and "may only look" in answer["reason"]
    view = guarded.view("look")
    assert view["may_steer"] is False
    assert view["state"]["name"] == "running" and unread.commands() == []


@pytest.fixture
def reading(guarded):
    """Opens the events of a page: its name, its token, to the messages that come."""
    opened = []
    def read(name, token="steer"):
        connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=300)
        connection.request("GET", f"/events?page={name}&v=1", headers={
            "Authorization": f"Bearer {getattr(guarded, token)}"})
        answer = connection.getresponse()
        opened.append(connection)
        def messages():
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))
        return answer.status, messages()
    yield read
    for each in opened:
        each.close()


def say(served, token="steer", **message):
    """Status and object of a message to the page's server."""
    status, _, answer = served.ask("ask", token, "POST", json.dumps(message).encode(), **JSON)
    return status, json.loads(answer)


def test_a_page_that_may_only_look_opens_tabs_and_commands_nothing(guarded, unread, reading):
    """Its messages reach its own page alone, and no page of the other link takes its name."""
    status, messages = reading("guest", "look")
    assert status == 200 and next(messages)["view"]["may_steer"] is False
    assert say(guarded, "look", page="guest", ask="open", tabs=["table"])[0] == 200
    said = say(guarded, "look", page="guest", ask="command", id="1", name="pause")
    assert said[0] == 200
    answer = next(each for each in messages if each.get("re") == "1")
    assert answer["status"] == "refused" and "may look" in answer["reason"]
    status, owned = reading("owner")
    assert status == 200 and next(owned)["view"]["may_steer"] is True
    for token, page in (("look", "owner"), ("steer", "guest")):
        status, answer = say(guarded, token, page=page, ask="command", id="1", name="stop")
        assert status == 409 and "not connected" in answer["reason"]
        assert reading(page, token)[0] == 503
    assert unread.commands() == []


def test_events_begin_with_the_whole_view(guarded, unread):
    """A message of a page that reads none, or that has no name, is refused."""
    status, _, first = guarded.ask(EVENTS)
    view = json.loads(first.removeprefix(b"data: "))["view"]
    assert status == 200 and view["may_steer"] is True
    assert view["place"]["step"] == guarded.view()["place"]["step"]
    for path in ("events", "events?page=one", "events?v=1&page=" + "x" * 41,
                 "events?page=a%00b&v=1", "events?page=one&v=-1"):
        assert guarded.ask(path)[0] == 400
    for body in (b"{}", b"[]", b"null", b"{", b'{"page": ["one"], "ask": "hello"}',
                 b'{"page": "one", "ask": "command", "id": "1", "name": "stop"}'):
        status, _, answer = guarded.ask("ask", method="POST", body=body, **JSON)
        assert status == 409 and json.loads(answer)["status"] == "refused"
    assert guarded.ask("ask", method="POST", body=b" " * 20_000, **JSON)[0] == 413
    assert unread.commands() == []


def test_read_only_has_no_link_that_steers(written):
    """One link, which may only look; an empty token is not one that steers."""
    with Served(written.path, "--port", 0, "--read-only") as served:
        assert served.steer_url == "" and served.view("look")["may_steer"] is False
        assert served.post("pause", token="look")[0] == 403
        assert served.post("pause", token=None, Authorization="Bearer ")[0] == 403
    assert written.commands() == []


def test_every_answer_is_sealed(guarded):
    """The same rules for the browser with each, refusals among them."""
    answers = [guarded.ask(path)
               for path in (*READS, "nothing",
                            "command")] + [guarded.ask(path, None) for path in ("", "view")]
    answers += [guarded.ask("view", host="evil"),
                guarded.ask("command", method="POST", body=b"{}", **JSON),
                guarded.ask("view", method="PUT")]
    assert {status for status, *_ in answers} >= {200, 400, 403, 404, 405}
    for _, headers, _ in answers:
        policy = dict(each.strip().split(" ", 1)
                      for each in headers["Content-Security-Policy"].split(";"))
        assert policy[
            "default-src"] == policy[
                "frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect")} == {"'self'"}
        assert policy["img-src"] == "'self' data:"  # pictures of samples
        assert {name: headers[name] for name in SEALS} == SEALS
        assert "no-store" in headers["Cache-Control"]
        assert "unsafe" not in headers["Content-Security-Policy"]


@pytest.mark.parametrize("path",
                         ["../setup.py", "%2e%2e/pyproject.toml", "/etc/passwd",
                          "page/../../../pyproject.toml", "panel.js/../../run_files.py",
                          "module/panel.js", "metrics.jsonl", "control/status.json",
                          "panel.js%00.html", "..%5Cx", "view/../events/x"])
def test_no_path_is_followed(guarded, path):
    """What stands in an address is a name of a list, or nothing."""
    status, _, body = guarded.ask(path)
    assert status == 404 and body == b"Not Found"


def test_long_requests_end_early(guarded):
    """A body has a bound."""
    assert guarded.ask("command", method="POST", body=b" " * LARGEST, **JSON)[0] == 400
    assert guarded.ask("command", method="POST", body=b" " * (LARGEST + 1), **JSON)[0] == 413


def test_an_endless_body(guarded):
    """One that does not say its length is answered when it has become too long."""
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=300) as endless:
        endless.sendall(
            f"POST /command HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
            f"{guarded.steer}\r\nContent-Type: application/json\r\n"
                        "Transfer-Encoding: chunked\r\n\r\n".encode()
                        + (b"1000\r\n" + b" " * 0x1000 + b"\r\n") * 8)
        assert b" 413 " in endless.recv(1000)
    assert guarded.name() == "running"


def test_few_commands_wait_at_once(written, monkeypatch):
    """A run that does not answer holds a few requests, not all threads;
    what it has not read is taken back."""
    page, statuses, over = Page(written.path, wait=0.1), [], threading.Event()
    monkeypatch.setattr(Replies, "wait", lambda *given: over.wait() and None)
    threads = [threading.Thread(
        target=lambda: statuses.append(page.command(b'{"command": "pause"}').status))
        for _ in range(MOST_COMMANDS)]
    for thread in threads:
        thread.start()
    until(lambda: len(written.commands()) == MOST_COMMANDS)
    assert [page.command(b'{"command": "pause"}').status for _ in range(3)] == [503] * 3
    over.set()
    for thread in threads:
        thread.join()
    assert statuses == [200] * MOST_COMMANDS and written.commands() == []
    answer = json.loads(page.command(b'{"command": "pause"}').body)
    assert answer["status"] == "no answer" and "withdrawn" in answer["reason"]


# Connections without a token


HURRY = "import trainer_nb.remote.serve as serve\nserve.HEAD_SECONDS = 0.5\n"
NO_HURRY = HURRY.replace("0.5", "10**6")
HALF = b"GET /view HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: "


def connected(served, text=b""):
    """A connection that has sent this much."""
    made = socket.create_connection(("127.0.0.1", served.port), timeout=300)
    made.sendall(text)
    return made


def dropped(connection):
    """Whether the server has ended it; waits for that."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("text", [b"", HALF], ids=["silent", "half a request"])
def test_connections_without_a_token_keep_nobody_out(written, text):
    """Those who come later find the page; the oldest strangers have given way to them. A
    connection that has shown the token stays."""
    stack = contextlib.ExitStack()
    served = stack.enter_context(Served(written.path, "--port", 0, before=NO_HURRY))
    known = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
    seal = {"Authorization": f"Bearer {served.look}"}
    def asked():
        known.request("GET", "/view", headers=seal)
        with known.getresponse() as answer:
            return answer.status, known.sock.getsockname(), answer.read()[:1]
    with stack:
        stack.callback(known.close)
        first = asked()
        strangers = [stack.enter_context(connected(served, text))
                     for _ in range(2 * MOST_STRANGERS + 20)]
        assert all(dropped(each) for each in strangers[:MOST_STRANGERS + 20])
        assert first[0] == 200 and asked() == first  # over the same connection
        assert served.ask("view")[0] == served.ask("")[0] == 200


def test_the_head_of_a_request_has_a_time_limit(written):
    """Also of one that comes letter by letter, and of the second one of a connection."""
    with Served(written.path, "--port", 0, before=HURRY) as served:
        whole = (f"GET /view HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {served.look}"
                 "\r\n\r\n").encode()
        with connected(served) as silent, connected(served, HALF) as half:
            assert dropped(silent) and dropped(half)
        with connected(served, HALF) as slow:
            slow.settimeout(0.05)
            def sent():
                """Whether it was ended, after one letter more."""
                try:
                    slow.sendall(b"x")
                    return slow.recv(1) == b""
                except TimeoutError:
                    return False
                except ConnectionError:
                    return True
            until(sent)
        with connected(served, whole) as second:
            answer = http.client.HTTPResponse(second)
            answer.begin()
            assert answer.status == 200 and answer.read()
            second.sendall(HALF)
            assert dropped(second)
        assert served.name() == "running"


def test_who_may_only_look_cannot_take_all_places(guarded):
    """As many connections as are allowed with one link leave the other link as many."""
    head = ("GET /start.js HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
            f"{guarded.look}\r\n\r\n")
    def code(connection):
        """The code of its answer, which is read."""
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        answer.read()
        return answer.status
    with contextlib.ExitStack() as stack:
        codes = [code(stack.enter_context(connected(guarded, head.encode())))
                 for _ in range(MOST_KNOWN + 1)]
        assert codes.count(200) == MOST_KNOWN and codes.count(503) == 1
        assert guarded.ask("view", "look")[0] == 503 and guarded.ask("view")[0] == 200
    until(lambda: guarded.ask("view", "look")[0] == 200)  # those have gone


# Where it listens, and its end


def listens(served):
    """The addresses at which the process listens."""
    return {each.laddr.ip for each in psutil.Process(served.process.pid).net_connections()
            if each.status == "LISTEN"}


def test_only_this_machine_unless_told(served, written):
    """`--host` opens it, and says what that means."""
    assert listens(served) == {"127.0.0.1"} and "for this machine only" in served.said
    with Served(written.path, "--port", 0, "--host", "0.0.0.0", "--allow-host",
                "gpu7.example") as wide:
        assert listens(wide) == {"0.0.0.0"}
        assert "every machine that reaches this one" in wide.said and "not encrypted" in wide.said
        assert [wide.ask("view", host=host)[0]
                for host in ("10.1.2.3", "gpu7.example:80", "evil.example")] == [200, 200, 403]
        assert wide.post("note", {"text": "x"}, Origin="https://evil.example",
                         host="10.1.2.3")[0] == 403


def test_a_port_that_is_taken(served, run):
    """One that was asked for is an error that says what to do; the usual one gives way."""
    done = subprocess.run([sys.executable, "-m", "trainer_nb", "serve", run.path, "--port",
                           str(served.port)], env=ENVIRONMENT, text=True,
                          capture_output=True, timeout=300, check=False)
    assert done.returncode == 3
    assert "--port 0 takes a free port" in done.stderr and "Traceback" not in done.stderr
    with Served(run.path) as first, Served(run.path) as second:
        assert first.port != second.port and second.name() == "running"


def test_a_program_that_ends_closes_its_page(written):
    """Before what was registered earlier runs, also if nobody called `close`."""
    code = f"""
import atexit
from trainer_nb.remote.serve import Server
server = Server({str(written.path)!r})
atexit.register(lambda: print("closed:", server.closed))
server.start()
assert not server.closed
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, text=True,
                          capture_output=True, timeout=300, check=False)
    assert done.stdout.strip() == "closed: True" and done.returncode == 0, done


def test_ctrl_c_ends_the_page_alone(run, written):
    """In words, also while a browser looks and a command waits; the run goes on."""
    with Served(written.path, "--port", 0, before=PATIENT) as served:
        look = socket.create_connection(("127.0.0.1", served.port))  # a page that is open
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(served.post("pause")))
        waiting.start()
        until(written.commands)
        code, said = served.interrupt()
        assert code == 0
        assert "the run goes on" in said and "Traceback" not in said
        look.close()
        waiting.join()
        assert answers[0][0] == 503 and "the page was closed" in answers[0][1]["reason"]
    before = run.step()
    until(lambda: run.step() > before)


def test_sigterm_ends_it_too(run):
    """As a service manager ends it."""
    with Served(run.path, "--port", 0) as served:
        served.process.send_signal(signal.SIGTERM)
        served.process.communicate(timeout=300)
        assert served.process.returncode in (0, -signal.SIGTERM)


def test_a_run_that_ends_and_a_folder_that_goes(tmp_path):
    """The page says so, goes on answering, and shows the run again where its folder comes back."""
    path = tmp_path / "exp1"
    trained(path).close()
    with Served(path, "--port", 0) as served:
        view = served.view()
        assert (view["state"]["word"], view["state"]["standing"]) == ("Finished", "ended")
        assert all(button["why_not"] for each in view["commands"].values()
                   for button in each.get("buttons", {}).values())
        assert served.post("pause")[1]["status"] == "no answer"
        assert "not running" in served.post("pause")[1]["reason"]
        path.rename(tmp_path / "moved")
        status, _, body = served.ask("view")
        assert status == 404 and b"The folder of the run is gone" in body
        assert served.post("pause")[0] == 400
        trained(path, steps=8).close()
        assert served.view()["place"]["step"] == 8


def test_a_lost_run_and_files_that_are_not_to_be_trusted(written):
    """A process that is gone, statuses that no run writes: words, never a failure of the server."""
    with Served(written.path, "--port", 0) as served:
        state = served.view()["state"]
        assert state["name"] == "running" and "go_on" not in state
        written.write(process={"host": socket.gethostname(), "pid": 2**22 + 1, "started": "1"},
                      error="Traceback (most recent call last):\n  x\nValueError: bad")
        until(lambda: served.view()["state"]["standing"] == "lost")
        state, guest = served.view()["state"], served.view("look")["state"]
        assert "gone" in state["notice"] and "python train.py" in state["go_on"]
        assert "Traceback" in state["error"] and "train.py" not in str(guest)
        assert guest["what"] == state["what"] == "ValueError: bad"
        assert not {"go_on", "error"} & guest.keys() and "gone" in guest["notice"]
        for strange in ("[]", "{",
                        '{"state": 3, "position": [], "waiting": [{}, 4], "memory": [1, [], {}], '
                        '"best": [], "rewind_points": "x"}',
                        json.dumps({"name": "a\u0000\u202e" * 1000, "error": "\u001b[31m",
                                    "state": "x" * 9999, "alive": True}), "[" * 50_000):
            (written.path / "control" / "status.json").write_text(strange)
            (written.path / "control" / "offer.json").write_text(strange)
            status, _, body = served.ask("view")
            assert status in (200, 404) and len(body) < 20_000
            assert "\u202e" not in json.loads(body).get("run", {}).get("name", "")
        (written.path / "control" / "status.json").unlink()
        os.mkfifo(written.path / "control" / "status.json")
        assert served.ask("view")[0] in (200, 404)  # it does not wait for a writer


# Apart from torch, and in a thread


def test_the_page_is_there_before_torch(written):
    """Its files and commands need neither torch nor plotly."""
    code = f"""
import sys, json, urllib.request
from trainer_nb.remote.serve import Server
server = Server({str(written.path)!r}).start()
def get(path):
    seal = {{"Authorization": "Bearer " + server.access.look}}
    address = f"http://127.0.0.1:{{server.port}}/{{path}}"
    return urllib.request.urlopen(urllib.request.Request(address, headers=seal))
assert get("").status == get("panel.js").status == 200
print("loaded", *{{"torch", "numpy", "plotly", "ipywidgets"}} & sys.modules.keys())
assert json.load(get("view"))["state"]["name"] == "running" and "torch" in sys.modules
assert not {{"plotly", "ipywidgets", "anywidget"}} & sys.modules.keys()
server.close()
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, text=True,
                          capture_output=True, timeout=300, check=False)
    assert done.stdout.strip() == "loaded" and done.returncode == 0, done


def test_what_is_missing_is_named(written):
    """The extra that has it, not a traceback."""
    code = ("import sys; sys.modules['{}'] = None; from trainer_nb.remote.cli import main; "
            "sys.exit(main(['serve', {!r}]))")
    for name in ("starlette", "uvicorn"):
        done = subprocess.run([sys.executable, "-c", code.format(name, str(written.path))],
                              env=ENVIRONMENT, text=True, capture_output=True,
                              timeout=300, check=False)
        assert done.returncode == 3
        assert 'pip install "trainer_nb[serve]"' in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("words",
                         [["--port", "70000"], ["--port", "-1"], ["--name", "agent:x"],
                          ["--name", ""], ["more", "words"], ["--host", "no.such.host.invalid"]])
def test_bad_options(written, words):
    """Words, and an exit code."""
    done = subprocess.run([sys.executable, "-m", "trainer_nb", "serve", written.path, *words],
                          env=ENVIRONMENT, text=True, capture_output=True,
                          timeout=300, check=False)
    assert done.returncode in (2, 3)
    assert done.stderr.startswith("trainer-nb: ") and "Traceback" not in done.stderr


def get(link, path="view"):
    """What a server in this process answers to the holder of a link."""
    address, _, token = link.partition("#token=")
    return json.load(
        urllib.request.urlopen(urllib.request.Request(
            address + path, headers={"Authorization": f"Bearer {token}"})))


def test_a_trainer_serves_its_own_run(tmp_path):
    """Before the first step, while it trains in the background, and until it is closed;
    the port is free then."""
    x = torch.ones(8, 3)
    trainer = Trainer(nn.Linear(3, 1), train_dl=[(x, x[:, :1])] * 4, loss_fn=nn.MSELoss(),
                      max_steps=10**7, device="cpu", progress=False,
                      workspace=tmp_path / "exp1", seed=0)
    server = trainer.serve()
    def state():
        """That of the run; '' as long as there is none."""
        try:
            return get(server.look_url)["state"]["name"]
        except urllib.error.HTTPError as error:
            assert error.code == 404 and b"no run" in error.read()
            return ""
    assert state() == ""
    trainer.start()
    until(lambda: state() == "running")
    assert get(server.url)["may_steer"] is True
    request = urllib.request.Request(server.url.partition("#")[0] + "command",
                                     b'{"command": "stop"}',
                                     {"Authorization": f"Bearer {server.access.steer}",
                                      "Content-Type": "application/json"})
    assert json.load(urllib.request.urlopen(request))["status"] == "applied"
    trainer.wait()
    assert Run(tmp_path / "exp1").status["state"] == "stopped"
    assert trainer.journal.entries[-1].source == "page"
    assert server.url in repr(server) and server.look_url in server._repr_html_()
    server.close()
    trainer.close()
    with socket.create_server(("127.0.0.1", server.port)):
        assert server.closed
    assert not [thread for thread in threading.enumerate() if thread.name == "trainer_nb serve"]


def test_behind_the_proxy_of_colab_the_page_steers(tmp_path, monkeypatch, capsys):
    """Whether the proxy keeps its name in the request or writes the server's; other pages may not.

    A stand-in for Colab's module: the page was not tried behind its real proxy."""
    name = "8765-abc.prod.colab.example"
    output = SimpleNamespace(eval_js=lambda text: f"https://{name}/")
    monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace(output=output))
    monkeypatch.setitem(sys.modules, "google.colab.output", output)
    trainer = trained(tmp_path / "exp1")
    server = trainer.serve()
    try:
        assert f"In Colab: https://{name}/#token={server.access.steer}" in capsys.readouterr().out
        address = f"http://127.0.0.1:{server.port}/command"
        for host in (name, f"127.0.0.1:{server.port}"):
            for origin, expected in ((f"https://{name}", 200), ("https://evil.example", 403)):
                request = urllib.request.Request(
                    address, b'{"command": "note", "values": {"text": "x"}}',
                    {"Authorization": f"Bearer {server.access.steer}", "Origin": origin,
                     "Host": host, "Content-Type": "application/json"})
                try:
                    status = urllib.request.urlopen(request).status
                except urllib.error.HTTPError as error:
                    status = error.code
                assert status == expected, (host, origin)
    finally:
        server.close()
        trainer.close()


def test_a_trainer_without_a_folder_cannot():
    """The error names what is missing."""
    trainer = Trainer(nn.Linear(3, 1), train_dl=[torch.ones(1, 3)], loss_fn=nn.MSELoss(),
                      max_steps=1, progress=False)
    with pytest.raises(ValueError, match="workspace="):
        trainer.serve()


def test_read_only_of_a_trainer(tmp_path):
    """`read_only=True` has no link to steer."""
    trainer = trained(tmp_path / "exp1")
    server = trainer.serve(read_only=True)
    assert server.url == server.look_url
    assert get(server.url)["may_steer"] is False and "steer" not in repr(server)
    server.close()
    trainer.close()


def test_a_restart_of_the_run_is_seen(tmp_path):
    """The same folder, another process: the page shows the new attempt."""
    path = tmp_path / "exp1"
    trained(path).close()
    server = Server(path).start()
    assert get(server.url)["state"]["standing"] == "ended"
    shutil.rmtree(path)
    trainer = trained(path, steps=4)
    assert get(server.url)["place"]["step"] == 4
    server.close()
    trainer.close()
