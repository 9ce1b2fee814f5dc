"""A notebook, a shell and an agent that steer a run.

`python steering_clients.py FOLDER SOURCE COUNT SEED` sends drawn commands, and prints the ids of
those that had to be answered.
"""

import asyncio
import io
import json
import random
import sys
import time
from contextlib import AsyncExitStack, redirect_stderr, redirect_stdout
from pathlib import Path

from steered import environment

from trainer_nb import attach
from trainer_nb.core.control import Command
from trainer_nb.folder.control import ControlError
from trainer_nb.remote.cli import main as main_of_shell
from trainer_nb.remote.mcp import ACTS


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
        self.server = {"command": sys.executable, "args": ["-c", program, *words],
                       "env": environment()}

    async def send(self, name, values, seen):
        if not self.ids:
            from mcp import Client, StdioServerParameters  # which takes a while

            client = Client(StdioServerParameters(**self.server))
            self.client = await self.stack.enter_async_context(client)
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
            time.sleep(draw.random() * 0.2)
            await client.send("resume", {}, {})
        time.sleep(draw.random() * 0.05)
    for each in client.sent():
        print(json.dumps(each), flush=True)
    if source == "agent:night":
        await client.stack.aclose()


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
