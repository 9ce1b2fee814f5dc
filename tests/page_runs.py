"""A run in a process of its own, and the server of its page in another:
what tests of the page steer by."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import warm
from steered import until

SCRIPT = """
import sys, time, torch
from torch import nn
from trainer_nb import Hook, SnapshotHook, Trainer, Tunable
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(64, 3)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)),
                                   batch_size=8)
class Slow(Hook):
    seconds = Tunable(0.02, min=0, max=1, doc="<b>seconds</b> after each step")
    loud = Tunable(False)
    def after_step(self, trainer):
        time.sleep(self.seconds)
Hostile = type("<img src=x onerror=document.title='owned'>", (nn.Linear,), {})
trainer = Trainer(Hostile(3, 1), train_dl=data, valid_dl=data, loss_fn=nn.MSELoss(),
                  max_steps=10**7, eval_every=50, device="cpu",
                  hooks=[Slow(), SnapshotHook(100)],
                  metrics={"<u>mae</u>": lambda pred, target: (pred - target).abs().mean()},
                  optim=lambda parameters: torch.optim.SGD(parameters, lr=0.01), grad_clip=1.0,
                  workspace=sys.argv[1],
                  progress=False, seed=0)
trainer.fit()
"""
ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1"}


class Run:
    """Files of a run that another process makes."""

    def __init__(self, path):
        self.path = Path(path)

    @property
    def status(self):
        """What it says of itself."""
        return json.loads((self.path / "control" / "status.json").read_text())

    def step(self):
        """Its last step; 0 before it has begun."""
        try:
            return self.status["position"]["step"]
        except FileNotFoundError:
            return 0

    @property
    def journal(self):
        """What was changed by hand."""
        lines = (self.path / "journal.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines[1:]]


@contextmanager
def training(path, script=SCRIPT):
    """A process that trains in this folder until the block ends."""
    with warm.Popen([sys.executable, "-c", script, str(path)], env=ENVIRONMENT) as process:
        try:
            run = Run(path)
            until(lambda: run.step() > 2 or process.poll() is not None)
            assert process.poll() is None, "the run has not begun"
            yield run
        finally:
            process.kill()


class Served:
    """A `trainer-nb serve` of its own: its links, and requests with any headers.

    `before`: code that the process runs at its start."""

    def __init__(self, *words, before=""):
        code = f"{before}\nimport sys; from trainer_nb.remote.cli import main; sys.exit(main())"
        self.process = warm.Popen([sys.executable, "-c", code, "serve", *map(str, words)],
                                  env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True)
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if "to look" in line:
                break
        links = dict(re.findall(r"(to steer|to look): +(http\S+)", self.said))
        self.steer_url, self.look_url = links.get("to steer", ""), links.get("to look", "")
        self.steer, self.look = (self.steer_url.partition("token=")[2],
                                 self.look_url.partition("token=")[2])
        self.port = int(re.search(r":(\d+)/#", self.said)[1])

    def ask(self, path="view", token="steer", method="GET", body=None, host=None, **headers):
        """Status, headers and body of an answer; headers as `If_None_Match=`;
        None leaves one out."""
        token = {"steer": self.steer, "look": self.look}.get(token, token)
        given = {"Host": host or f"127.0.0.1:{self.port}",
                 "Authorization": token and f"Bearer {token}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.putrequest(method, f"/{path}", skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        with connection.getresponse() as answer:
            # a stream of events does not end: its first frame
            stream = answer.headers.get_content_type() == "text/event-stream"
            return answer.status, answer.headers, answer.readline() if stream else answer.read()

    def view(self, token="steer"):
        """How the run stands, in sections."""
        return json.loads(self.ask("view", token)[2])

    def name(self, token="steer"):
        """The state of the run."""
        return self.view(token)["state"]["name"]

    def post(self, command, values=None, token="steer", **headers):
        """Status and object of a command."""
        body = json.dumps({"command": command, "values": values or {}}).encode()
        headers = {"Content_Type": "application/json"} | headers
        status, _, answer = self.ask("command", token, "POST", body, **headers)
        return status, json.loads(answer)

    def interrupt(self):
        """Ctrl-C; the exit code and what was said on standard error."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=300)
        return self.process.returncode, said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
