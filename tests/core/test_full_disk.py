"""A disk that is full at any byte of a file:
the error says so, what was there stays, and a run goes on."""

import os
import pickle
import resource
import signal
from contextlib import contextmanager

import pytest
import torch

from trainer_nb import Trainer
from trainer_nb.core.control import Command
from trainer_nb.support.saved import DigestedFile, read_state, write_state

pytestmark = pytest.mark.slow


def in_child(work):
    """What `work()` returns in a process of its own, whose limits are its own too."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an OSError takes its place
            told = pickle.dumps(work())
        except BaseException as error:
            told = pickle.dumps(f"{type(error).__name__}: {error}")
        os.write(writing, told)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        told = file.read()
    os.waitpid(child, 0)
    return pickle.loads(told)


@contextmanager
def room_for(size):
    """No file becomes larger than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_an_os_error_at_every_size(tmp_path):
    """Parts of a file that pass the buffer, and parts that stay in it."""
    state = {f"layer{number}": torch.arange(700.0 + 91 * number)
             for number in range(11)} | {"rest": list(range(50))}
    path = write_state(state, tmp_path / "run.pt")
    before = path.read_bytes()
    assert len(before) > 36_000

    def work():
        wrong = []
        for size in range(0, len(before), 483):
            with room_for(size):
                try:
                    write_state(state, path)
                    wrong.append((size, "nothing"))
                except Exception as error:
                    if not isinstance(error, OSError) or error.filename != str(path):
                        wrong.append((size, repr(error)[:80]))
            if os.listdir(tmp_path) != ["run.pt"]:
                wrong.append((size, os.listdir(tmp_path)))
        return wrong
    assert in_child(work) == []
    assert path.read_bytes() == before


def test_a_save_by_hand_on_a_full_disk_does_not_end_the_run(tmp_path):
    """At every size: the one who asked gets the error, the run goes on."""
    def work():
        torch.manual_seed(0)
        inputs = torch.randn(64, 8)
        data = torch.utils.data.TensorDataset(inputs, inputs[:, :3])
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16),
                                    torch.nn.ReLU(), torch.nn.Linear(16, 3))
        trainer = Trainer(model, train_dl=torch.utils.data.DataLoader(data, 8),
                          loss_fn=torch.nn.MSELoss(), device="cpu", seed=1,
                          optim=torch.optim.AdamW(model.parameters()), epochs=10**6, progress=False)
        found, path = [], tmp_path / "run.pt"
        trainer.start()
        trainer.post(Command("save", {"path": str(path)})).wait(120)
        whole = path.stat().st_size
        for size in range(0, whole, max(1, whole // 40)):
            with room_for(size):
                reply = trainer.post(Command("save", {"path": str(path)})).wait(120)
            found.append("OSError" if isinstance(reply.error, OSError) else repr(reply.error)[:80])
        state = str(trainer.state)
        trainer.stop()
        trainer.wait(120)
        return (state, sorted(set(found)), len(found) >= 40,
                read_state(path)["position"]["optimizer_step"] >= 0)
    assert in_child(work) == ("running", ["OSError"], True, True)


class Refusing:
    """A file that takes n bytes, then raises once."""

    def __init__(self, error, room):
        self.error, self.room = error, room

    def write(self, data):
        """All of it, or the error."""
        self.room -= len(data)
        if self.room < 0 and self.error is not None:
            error, self.error = self.error, None
            raise error

    def flush(self):
        """Nothing to do."""


@pytest.mark.parametrize("error", [OSError(28, "no room"), KeyboardInterrupt()],
                         ids=["a full disk", "Ctrl-C"])
def test_torch_does_not_hide_what_was_raised_within_a_file(error):
    """Wherever in the archive it was, and though what follows could be written."""
    for room in range(0, 4500, 97):
        file = DigestedFile(Refusing(error, room))
        with pytest.raises(type(error)):
            file.write_archive({"weight": torch.zeros(1000)})
