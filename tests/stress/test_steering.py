"""A notebook, a shell and an agent steer one run that is killed again and again:
nothing is applied twice, nothing is left without a reply, and a replay makes the same bits.

`PYTHONPATH=tests python tests/stress/test_steering.py 1000 10` sends a thousand commands to two
processes that are killed ten times; a seed may follow.
"""

import asyncio
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import warm
from mcp import Client, StdioServerParameters
from steered import Process, environment, until

from trainer_nb import attach
from trainer_nb.core.control import Command
from trainer_nb.core.control_folder import FINAL, ControlError
from trainer_nb.remote.cli import main as main_of_shell
from trainer_nb.remote.mcp import ACTS

SAME = "weights", "moments", "ticks", "place"

pytestmark = pytest.mark.slow


def drawn(draw):
    """A command and its values; some are refused."""
    return draw.choice([
        lambda: ("tune", {"grad_clip": draw.choice([0.1, 0.5, 1.0, 5.0, None])}),
        lambda: ("tune", {"lr": draw.choice([None, 0.001, 0.003, 0.01])}),
        lambda: ("tune", {"augment.enabled": draw.random() < 0.5}),
        lambda: ("tune", {"lr_scale": draw.uniform(0.5, 1.5)}),
        lambda: ("tune", {"lr": -draw.random()}), lambda: ("tune", {"rate": 1.0}),
        lambda: ("note", {"text": f"note {draw.random()}"}),
        lambda: ("validate", {}), lambda: ("checkpoint", {}),
        lambda: ("step", {"n": draw.randint(1, 3)}), lambda: ("pause", {}), lambda: ("resume", {}),
        lambda: ("rewind", {"step": draw.randint(0, 400)})])()


class Notebook:
    """As in a notebook: attach()."""

    def __init__(self, folder):
        self.run, self.replies = attach(folder, source="notebook"), []

    async def send(self, name, values, seen):
        reply = self.run.post(Command(name, values), **seen)
        if reply.id:
            self.replies.append((reply, name))
        return not isinstance(reply.error, ControlError)

    def sent(self):
        """Ids and names, but for those that were taken back when the run was killed: it said so."""
        return [(reply.id, name) for reply, name in self.replies
                if "taken back" not in reply.wait(300).reason]


class Shell:
    """As in a shell: trainer-nb."""

    def __init__(self, folder):
        self.folder, self.answers = str(folder), []

    async def send(self, name, values, seen):
        words = ([f"{key}={json.dumps(value)}" for key, value in values.items()]
                 if name == "tune" else [str(each) for each in values.values()])
        shown = io.StringIO()
        with redirect_stdout(shown), redirect_stderr(io.StringIO()):
            main_of_shell([name, self.folder, *words, "--json", "--wait", random.choice("011")])
        found = [json.loads(line) for line in shown.getvalue().splitlines()]
        self.answers += found
        return not any(each["status"] == "no answer" and each["reason"].startswith(self.folder)
                       for each in found)

    def sent(self):
        """Ids and names, but for those that it took back, or that no process was there for."""
        return [(each["id"], each["command"]) for each in self.answers if "id" in each and (
            each["status"] != "no answer" or "not waited for" in each["reason"]
            or "may still" in each["reason"])]


class Agent:
    """As an agent: trainer-nb mcp, and the protocol's own client."""

    def __init__(self, folder):
        self.name, self.ids, self.stack = Path(folder).name, [], AsyncExitStack()
        words = ["mcp", str(folder), "--name", "night", "--max-actions", "100000", "--allow",
                 ",".join(ACTS)]
        program = "import sys; from trainer_nb.remote.cli import main; sys.exit(main())"
        self.server = StdioServerParameters(command=sys.executable, args=["-c", program, *words],
                                            env=environment())

    async def send(self, name, values, seen):
        if not self.ids:
            self.client = await self.stack.enter_async_context(Client(self.server))
            self.ids.append(None)
        given = {"values": values} if name == "tune" else values
        found = await self.client.call_tool(name, {"run": self.name, "reason": "drawn", **given})
        if not found.is_error:
            answer = json.loads(found.content[0].text)
            self.ids.append((answer["id"], name, answer["status"]))
        return not (found.is_error and "is gone" in found.content[0].text)

    def sent(self):
        """Ids and names, but for those that were withdrawn."""
        return [(id, name) for id, name, status in self.ids[1:] if status != "withdrawn"]


CLIENTS = {"notebook": Notebook, "shell": Shell, "agent:night": Agent}


async def send(folder, source, count, seed):
    """Send that many commands, with pauses of drawn lengths;
    print the ids of those that had to be answered."""
    client, draw = CLIENTS[source](folder), random.Random(seed)
    for _ in range(count):
        name, values = drawn(draw)
        seen = ({"basis": draw.randint(0, 200), "max_age_steps": draw.randint(0, 300)}
                if draw.random() < 0.1 else {})
        while not await client.send(name, values, seen):
            time.sleep(0.2)  # between two processes of the run
        if name in ("pause", "step"):  # else a held run would wait for the next resume
            time.sleep(draw.random() * 0.5)
            await client.send("resume", {}, {})
        time.sleep(draw.random() * 0.05)
    for each in client.sent():
        print(json.dumps(each), flush=True)
    if source == "agent:night":
        await client.stack.aclose()


def steer(folder, count, kills, processes, seed, epochs):
    """The run, its commands and the result, after n commands and kills."""
    draw, run = (random.Random(seed),
                 Process(folder, epochs=epochs, every=7, processes=processes, pause=0.003).start())
    words = [sys.executable, __file__, "--send", str(folder)]
    senders = [warm.Popen([*words, source, str(count // 3), str(seed + number)],
                          stdout=subprocess.PIPE, text=True, env=environment())
               for number, source in enumerate(CLIENTS)]
    for number in range(kills):
        answered = count * (number + draw.random()) / (kills + 1)
        until(lambda: len(run.replies.read()) >= answered
              or all(each.poll() is not None for each in senders))
        time.sleep(draw.uniform(0, 0.1))
        if run.running.poll() is None:
            run.kill()
        run.start()
    sent = [json.loads(line) for each in senders
            for line in each.communicate(timeout=3600)[0].splitlines()]
    assert not any(each.returncode for each in senders)
    run.replies.wait(sent[-1][0], 300)
    sent.append([run.send("stop"), "stop"])
    return run, dict(sent), run.end(600)


def check(run, sent, found):
    """Each command has one final word that is so."""
    replies = run.replies.read()
    unanswered = {id for id in sent if replies.get(id, {}).get("status") not in FINAL}
    assert not unanswered, [(sent[id], replies.get(id)) for id in unanswered]
    applied = Counter(found["surviving"])
    twice = {id for id, times in applied.items()
             if times > len({entry["name"] for entry in found["journal"]
                             if entry["command"] == id})}
    assert not twice, twice
    words = {id: replies[id]["status"] for id in sent if id in replies}
    wrong = {id for id in applied if words[id] != "applied"}
    wrong |= {id for id, word in words.items()
              if word == "applied" and replies[id].get("entry") is not None and id not in applied}
    assert not wrong, [(replies[id], id in applied) for id in wrong]
    again = run.replay()
    assert [again[name] for name in SAME] == [found[name] for name in SAME]
    return Counter(words.values())


@pytest.mark.parametrize("processes, count, kills",
                         [(1, 60, 3), pytest.param(2, 45, 2, marks=pytest.mark.long)])
def test_three_processes_steer_a_run_that_is_killed(tmp_path, processes, count, kills):
    run, sent, found = steer(tmp_path / "run", count, kills, processes, 5, epochs=4000)
    check(run, sent, found)


@pytest.mark.parametrize("step",
                         [pytest.param(8, marks=pytest.mark.long),
                          pytest.param(11, marks=pytest.mark.long)])
def test_a_run_of_two_processes_is_repeated_to_where_it_was_stopped(tmp_path, step):
    """Each process of the replay stops at that boundary; the others need not be asked."""
    run = Process(tmp_path / "run", epochs=4000, processes=2, pause=0.01).start()
    until(lambda: run.step() > step)
    run.ask("tune", {"lr": 0.003})
    run.send("stop")
    found, again = run.end(), run.replay()
    assert [again[name] for name in SAME] == [found[name] for name in SAME]


def main(words):
    """Send, or steer."""
    if words[:1] == ["--send"]:
        asyncio.run(send(words[1], words[2], int(words[3]), int(words[4])))
        return
    count, kills, seed = (int(each) for each in [*words, *("1000", "10", "0")[len(words):]])
    with tempfile.TemporaryDirectory() as folder:
        run, sent, found = steer(Path(folder, "run"), count, kills, 2, seed, epochs=4000)
        print(f"{len(sent)} commands, {kills} kills, {found['place'][2]} steps: "
              f"{dict(check(run, sent, found))}; the replay has the same weights")


if __name__ == "__main__":
    main(sys.argv[1:])
