"""Panels of runs that are over: the same cell again and again holds one model, a bounded number of
widgets, and few bytes a cell."""

import base64
import os
import queue
import re
import time

import pytest
import torch
from jupyter_server import LIMIT
from kernel_client import client_of

from trainer_nb import Trainer

in_a_kernel = pytest.mark.slow

SETUP = """
import gc, weakref
import torch
from ipywidgets.widgets.widget import _instances
from trainer_nb import Trainer
torch.set_num_threads(1)
data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(4)]
models = []
def make(**settings):
    model = torch.nn.Linear(3, 1)
    models.append(weakref.ref(model))
    return Trainer(model, train_dl=data, valid_dl=data, loss_fn=torch.nn.MSELoss(), epochs=2,
                   device="cpu", **settings)
def counted():
    gc.collect()
    print(sum(model() is not None for model in models), len(_instances))
"""


class Kernel:
    """A kernel that runs cells, and what their messages were."""

    def __init__(self, client):
        self.client = client
        self.run(SETUP)

    def run(self, code, cell="a"):
        """Execute a cell of the notebook; returns what it printed."""
        message = self.client.session.msg("execute_request", {"code": code, "silent": False},
                                          metadata={"cellId": cell})
        self.client.shell_channel.send(message)
        self.messages, end = [], time.monotonic() + LIMIT
        while time.monotonic() < end:
            try:
                told = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if told["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                self.messages.append(told)
                assert told["msg_type"] != "error", "\n".join(told["content"].get("traceback", ""))
                if told["content"].get("execution_state") == "idle":
                    return "".join(m["content"]["text"] for m in self.messages
                                   if m["msg_type"] == "stream").strip()
        raise AssertionError("the cell did not end")

    def counted(self):
        """How many models are alive, and how many widgets are open."""
        return tuple(int(number) for number in self.run("counted()", cell="count").split()[-2:])

    @property
    def kilobytes(self):
        """The size of the last cell's messages."""
        packed = self.client.session.pack
        return sum(len(packed(m["content"])) + sum(len(b) for b in m["buffers"])
                   for m in self.messages) / 1024


@pytest.fixture(scope="module")
def one_kernel(tmp_path_factory):
    """A kernel for all tests of this file."""
    with client_of("python3", tmp_path_factory.mktemp("kernel")) as front_end:
        yield Kernel(front_end.client)


@pytest.fixture
def kernel(one_kernel):
    """The kernel, without the runs of the test before."""
    one_kernel.run(
        "trainer = plots = shown = None\nOut.clear()\n_ = __ = ___ = None\ngc.collect()\n"
        "models.clear()")
    return one_kernel


@in_a_kernel
def test_the_same_cell_again_lets_the_run_before_go(kernel):
    """One model is alive, with two models of widgets: that of the panel, and its layout."""
    alive, widgets, kilobytes = [], [], []
    for _ in range(8):
        kernel.run("trainer = make()\ntrainer.fit()")
        kilobytes.append(kernel.kilobytes)
        for numbers, number in zip((alive, widgets), kernel.counted()):
            numbers.append(number)
    assert alive == [1] * 8
    assert widgets == [2] * 8
    assert max(kilobytes) < 300


USED = """
trainer = make(hooks=[SnapshotHook()])
def page(part):
    part._hear(part, {"ask": "hello", "page": "a", "v": 1}, [])
    return lambda ask, **more: part._hear(part, {"ask": ask, "page": "a"} | more, [])
for part in (trainer.plots, trainer.controls, trainer.hook_table):
    display(part)
    page(part)
trainer.step(3)
ask = page(trainer.dashboard)
ask("open", tabs=["lr", "inspect", "times"])
trainer.lr_find(num_steps=10)
ask("command", id="1", name="tune", values={"lr": -1})
ask("command", id="2", name="checkpoint")
trainer.fit()
reply = trainer.post(Command("step"))
print(reply)
del ask, reply
"""


@in_a_kernel
def test_a_panel_that_was_used_does_not_keep_its_run(kernel):
    """A search, refusals with tracebacks, parts in cells of their own:
    nothing of it holds the model, nothing stays open."""
    kernel.run("from trainer_nb.core.control import Command\n"
               "from trainer_nb.hooks.snapshots import SnapshotHook")
    assert "Reply(refused: the run is finished" in kernel.run(USED)
    assert kernel.counted()[0] == 1
    kernel.run("del trainer, part\nOut.clear()\n_ = __ = ___ = None")
    assert kernel.counted() == (0, 0)


@in_a_kernel
def test_close_leaves_the_picture_and_a_run_that_goes_on_has_a_new_panel(kernel):
    """The last picture is of the moment of closing."""
    kernel.run("trainer = make()\nplots = trainer.plots\ndisplay(plots)\ntrainer.fit(epochs=1)\n"
               "trainer.tune(lr=0.5)\nshown = trainer.dashboard")
    kernel.run("trainer.close()")
    kept = [m["content"]["data"] for m in kernel.messages if m["msg_type"] == "update_display_data"]
    assert len(kept) == 1 and "svg+xml" in kept[0]["text/html"]
    assert "lr" in kept[0]["text/plain"] and "0.5" in kept[0]["text/plain"]
    assert kernel.counted() == (1, 0)
    kernel.run("display(plots, shown)")
    told = [m["content"]["data"] for m in kernel.messages if m["msg_type"] == "display_data"]
    assert all(each["text/plain"].startswith("This panel was closed") for each in told)
    assert len(told) == 2
    assert kernel.run("print(trainer.fit(epochs=3).status)") == "finished"
    assert kernel.counted()[1] == 2


@in_a_kernel
def test_each_picture_says_of_which_moment_it_is_and_the_first_comes_with_the_panel(kernel):
    """A notebook that is saved, or a kernel that ends, before the first minute is over."""
    kernel.run("trainer = make()\ntrainer.fit(epochs=1)")
    kept = [m["content"]["data"] for m in kernel.messages
            if "tnb-kept" in m["content"].get("data", {}).get("text/html", "")]
    moments = [each["text/plain"].splitlines()[-1].strip() for each in kept]
    assert all(re.fullmatch(r"as of step \d, 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", moment)
               for moment in moments)
    assert moments[0].startswith("as of step 0,") and moments[-1].startswith("as of step 4,")
    pictures = [base64.b64decode(re.search("base64,([^\"]+)", each["text/html"])[1]).decode()
                for each in kept]
    assert all(f">{moment}</text>" in picture for moment, picture in zip(moments, pictures))


def test_a_forked_worker_closes_nothing():
    """A data loader's process has a copy of everything, and may collect it."""
    trainer = Trainer(torch.nn.Linear(1, 1), train_dl=[torch.ones(1, 1)],
                      loss_fn=torch.nn.MSELoss(), epochs=1, device="cpu", progress=False)
    plots = trainer.plots
    child = os.fork()
    if not child:
        trainer.panels.parts.close()
        os._exit(plots.comm is None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    trainer.close()
    assert plots.comm is None
