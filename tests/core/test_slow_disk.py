"""A disk that is slower than the checkpoints that are due: training goes on, what was asked for is
written, and no memory is taken but that of one copy."""

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from digits_runs import wait_for
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import CheckpointError, CheckpointHook, Hook, Trainer
from trainer_nb.core.control import Command
from trainer_nb.core.hook import LambdaHook
from trainer_nb.hooks.checkpoint import Work, Writer
from trainer_nb.support import saved
from trainer_nb.support.saved import (Buffers, ColumnSums, Copies, WithoutCopies, digest_fits,
                                      plain_copy, read_state, write_state)

pytestmark = pytest.mark.slow


class Disk:
    """What is written is on it once it is open."""

    def __init__(self, monkeypatch):
        self.opened, self.fsync = threading.Event(), os.fsync
        monkeypatch.setattr(os, "fsync", self.sync)

    def sync(self, handle):
        """In the thread that writes."""
        assert self.opened.wait(60)
        self.fsync(handle)


@pytest.fixture
def disk(monkeypatch):
    """One that is closed, and takes nothing."""
    made = Disk(monkeypatch)
    yield made
    made.opened.set()


@pytest.fixture
def no_line(monkeypatch):
    """Every state is too large to wait in line."""
    monkeypatch.setattr("trainer_nb.hooks.checkpoint.LINE", 0)


def make(*hooks, size=8, **others):
    """A run of 20 steps."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(20, size), torch.randn(20, size))
    model = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(),
                                torch.nn.Linear(size, size))
    optim = torch.optim.Adam(model.parameters(), lr=0.01)
    return Trainer(model, train_dl=DataLoader(data, 1), loss_fn=torch.nn.MSELoss(), optim=optim,
                   device="cpu", seed=1, progress=False, hooks=hooks,
                   **{"max_steps": 20, **others})


def at(step, act):
    """Call `act(trainer)` after a step."""
    return LambdaHook(after_step=lambda t: act(t) if t.step_state.optimizer_step == step else None)


def saving(folder, **rules):
    """After every step, and all are kept."""
    given = {"every_steps": 1, "every_epochs": None, "keep_last": None, **rules}
    return CheckpointHook(folder, **given)


def steps_in(folder):
    """The steps of the files, each of which holds the state of its step."""
    found = []
    for path in sorted(Path(folder).glob("step_*.pt")):
        found.append(int(path.stem.split("_")[1]))
        assert read_state(path)["position"]["optimizer_step"] == found[-1]
    return found


def test_training_goes_on_and_the_newest_state_is_written(tmp_path, disk, no_line):
    """The disk takes the first file when ten steps are done; then it gets the state of then."""
    hook = saving(tmp_path, every_steps=2)

    def let_it_write(trainer):
        assert not list(tmp_path.glob("step_*.pt"))
        disk.opened.set()
        wait_for(lambda: not hook.writer.busy and hook.saver.wanted)

    trainer = make(hook, at(11, let_it_write))
    with pytest.warns(UserWarning, match="of step 4 is put off") as told:
        trainer.fit()
    assert len([each for each in told if "put off" in str(each.message)]) == 1
    steps = steps_in(tmp_path)
    assert steps[:2] == [2, 11] and steps[-1] == 20
    assert [each.step for each in hook.folder.kept()] == steps
    assert [each.step for each in trainer.rewind_points()] == steps
    assert trainer.last_saved[0] == 20


def test_a_run_goes_back_to_a_state_that_waits_for_the_disk(tmp_path, disk):
    """The list has it, and the rewind waits for it."""
    hook = saving(tmp_path)

    def back(trainer):
        if not len(trainer.journal):
            assert [each.step for each in trainer.rewind_points()] == [1, 2, 3, 4]
            assert not list(tmp_path.glob("step_*.pt"))
            trainer.post(Command("rewind", {"step": 3}))
            disk.opened.set()

    trainer = make(hook, at(5, back), max_steps=8)
    trainer.fit()
    assert [each.new for each in trainer.journal if each.kind == "rewind"] == [3]
    assert sorted({point.step for point in trainer.rewind_points()}) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_what_was_put_off_changes_no_bit(tmp_path, disk, no_line):
    """A run that resumes from such a file is the run that nobody disturbed."""
    whole = make()
    whole.fit()
    hook = saving(tmp_path, every_steps=3)

    def kill(trainer):
        disk.opened.set()
        wait_for(lambda: not hook.writer.busy and hook.saver.wanted)

    first = make(hook, at(7, kill), at(9, lambda trainer: hook.writer.wait()))
    with pytest.warns(UserWarning, match="put off"):
        first.step(9)
    assert 7 in steps_in(tmp_path)
    again = make()
    again.load(tmp_path / "step_00000007.pt")
    again.fit()
    assert torch.equal(whole.model[0].weight, again.model[0].weight)


@pytest.mark.parametrize("kind", ["marked", "best", "by hand"])
def test_what_was_asked_for_is_never_lost(tmp_path, monkeypatch, no_line, kind):
    """Whatever the disk is doing."""
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (time.sleep(0.02), fsync(handle)))
    wanted = [3, 4, 5, 7, 12, 13]

    def act(trainer):
        if trainer.step_state.optimizer_step in wanted:
            if kind == "best":
                trainer.log({"score": float(trainer.step_state.optimizer_step)})
            elif kind == "by hand":
                trainer.post(Command("checkpoint"))

    rules = {"marked": {"keep_every": wanted}, "by hand": {},
             "best": {"best": ("score", "max"), "keep_best": len(wanted)}}[kind]
    hook = saving(tmp_path, keep_last=None if kind == "by hand" else 1, **rules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(hook, LambdaHook(after_step=act)).fit()
    assert set(steps_in(tmp_path)) >= {*wanted, 20}
    assert [each.step for each in hook.folder.kept()] == steps_in(tmp_path)


def test_small_states_wait_and_those_that_no_rule_keeps_leave(tmp_path, disk, monkeypatch):
    """At the end there is what a fast disk would have."""
    written = []
    monkeypatch.setattr("trainer_nb.hooks.checkpoint.write_state", lambda state, path, within: (
        written.append(int(path.stem[5:])), write_state(state, path, within)))
    hook = saving(tmp_path, keep_last=2, keep_every=[5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(hook, at(10, lambda trainer: disk.opened.set()), max_steps=10).fit()
    assert not {2, 3, 4, 6, 7} & {*written} and steps_in(tmp_path) == [5, 9, 10]


@pytest.mark.parametrize("how", ["step", "pause"])
def test_what_was_put_off_is_written_in_a_pause(tmp_path, disk, no_line, how):
    """It is no use to wait for a step that comes tomorrow."""
    hook = saving(tmp_path)

    def act(trainer):
        if how == "pause":
            trainer.pause()
        disk.opened.set()

    trainer = make(hook, at(6, act))
    with pytest.warns(UserWarning, match="put off"):
        if how == "step":
            trainer.step(6)
        else:
            trainer.start()
            wait_for(lambda: str(trainer.state) == "paused" and hook.saver.has(trainer))
    hook.writer.join()
    assert steps_in(tmp_path) == [1, 6]
    trainer.stop()
    trainer.wait(60)


def test_the_memory_of_a_copy_is_used_again(tmp_path, monkeypatch, no_line):
    """And each file has the values of its step."""
    places, right = set(), []

    def noted(state, path, within):
        places.add(state["model"]["0.weight"].data_ptr())
        write_state(state, path, within)

    monkeypatch.setattr("trainer_nb.hooks.checkpoint.write_state", noted)
    weights = {}
    hook = saving(tmp_path, every_steps=2)
    trainer = make(LambdaHook(after_step=lambda t: weights.update(
        {t.step_state.optimizer_step: t.model[0].weight.detach().clone()})), hook,
        LambdaHook(before_batch=lambda t: hook.writer.join()))
    trainer.fit()
    for step in range(2, 21, 2):
        state = read_state(tmp_path / f"step_{step:08d}.pt")
        right.append(torch.equal(state["model"]["0.weight"], weights[step]))
    assert len(places) == 1 and all(right) and len(right) == 10


def test_buffers_follow_a_model_that_changes():
    """Those that are not used any more are let go; tied weights are copied once."""
    shared, buffers = torch.ones(4, 4), Buffers()
    first = buffers.take({"a": shared, "tied": shared, "b": torch.ones(3).expand(2, 3)})
    assert first["a"] is first["tied"] and buffers.nbytes == 64 + 24
    place = first["a"].data_ptr()
    shared.fill_(2)
    second = buffers.take({"a": shared.t(), "b": torch.zeros(5)})
    assert buffers.nbytes == 64 + 20 and second["a"].stride() == (1, 4)
    third = buffers.take({"a": shared.t(), "c": torch.full((4, 4), 3.0)})
    assert third["a"].data_ptr() == second["a"].data_ptr() != third["c"].data_ptr()
    assert third["a"].eq(2).all() and third["c"].eq(3).all() and place


@pytest.fixture
def copied(monkeypatch):
    """The bytes of all copies that are made of tensors."""
    sizes, made = [], Copies.make
    monkeypatch.setattr(Copies, "make", lambda self, tensor: (
        sizes.append(tensor.nbytes), made(self, tensor))[1])
    return sizes


def test_a_save_and_a_load_copy_no_tensor(tmp_path, copied):
    """The model is there already, and what was read from the file is nobody else's."""
    trainer = make(size=200)
    trainer.step(3)
    trainer.save(tmp_path / "a.pt")
    again = make(size=200)
    assert sum(copied) < 200 * 200 and read_state(tmp_path / "a.pt")
    again.load(tmp_path / "a.pt")
    assert sum(copied) < 200 * 200
    for each in (trainer, again):
        each.fit()
    assert torch.equal(trainer.model[0].weight, again.model[0].weight)


class Holds(Hook):
    """Its state is the very memory of a moment of the optimizer, and a corner of a large tensor."""

    def __init__(self):
        self.moment, self.large = None, torch.arange(1e6)

    def after_step(self, trainer):
        """Of the first parameter."""
        if self.moment is None:
            self.moment = trainer.optim.state[trainer.model[0].weight]["exp_avg"]

    def state_dict(self):
        """Live."""
        return {"moment": self.moment, "corner": self.large[5:8]}

    def load_state_dict(self, state):
        """As it was saved."""
        self.moment, self.loaded = state["moment"], state


def test_parts_of_a_loaded_state_share_no_memory(tmp_path):
    """A step of the optimizer changes its own moment alone; of a view only the part is written."""
    trainer = make(Holds())
    trainer.step(2)
    trainer.save(tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size < 1e6
    again = make(Holds())
    again.load(tmp_path / "a.pt")
    hook = again.get_hook(Holds)
    before = hook.moment.clone()
    assert torch.equal(before, trainer.optim.state[trainer.model[0].weight]["exp_avg"])
    assert hook.loaded["corner"].tolist() == [5, 6, 7]
    again.step(1)
    assert torch.equal(hook.moment, before)
    assert not torch.equal(again.optim.state[again.model[0].weight]["exp_avg"], before)


def test_a_run_that_is_begun_while_it_is_saved_waits(tmp_path, disk):
    """The file is of one moment, though the weights were not copied for it."""
    trainer = make()
    trainer.step(2)
    before = plain_copy(trainer.model.state_dict())
    save = threading.Thread(target=lambda: trainer.save(tmp_path / "a.pt"))
    save.start()
    wait_for(lambda: list(tmp_path.iterdir()))
    drive = threading.Thread(target=lambda: trainer.step(1))
    drive.start()
    drive.join(0.2)
    assert trainer.step_state.optimizer_step == 2
    disk.opened.set()
    save.join()
    drive.join()
    assert trainer.step_state.optimizer_step == 3
    state = read_state(tmp_path / "a.pt")["model"]
    assert all(torch.equal(state[name], value) for name, value in before.items())


# ---- the checksum


def of(content, *cuts):
    """The digest of bytes that come in pieces."""
    sums, begin = ColumnSums(), 0
    for end in (*cuts, len(content)):
        sums.update(memoryview(content)[begin:end])
        begin = end
    return sums.hexdigest()


def test_column_sums_are_of_the_bytes_and_not_of_the_pieces():
    """Whatever a writer hands over at once."""
    draw, block = random.Random(1), ColumnSums.BLOCK
    for size in (0, 1, 7, block - 1, block, block + 1, 3 * block + 12345):
        content = draw.randbytes(size)
        for cuts in ([], [1], [size // 2], [block], sorted(draw.choices(range(size + 1), k=40))):
            assert of(content, *(each for each in cuts if each <= size)) == of(content)


def test_column_sums_notice_what_happens_to_files():
    """A bit, a sector of zeros or in another one's place, and bytes that are gone or too many."""
    draw = random.Random(2)
    content = draw.randbytes(2 * ColumnSums.BLOCK + 5000)
    seen = {of(content), of(content[:-1]), of(content + b"\0"), of(b"\0" + content)}
    damages = 60
    for _ in range(damages):
        place, other = draw.sample(range(len(content) // 512), 2)
        bit, zeros, moved = bytearray(content), bytearray(content), bytearray(content)
        bit[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        one, two = (slice(512 * each, 512 * each + 512) for each in (place, other))
        zeros[one] = bytes(512)
        moved[one], moved[two] = content[two], content[one]
        seen |= {of(bytes(each)) for each in (bit, zeros, moved)}
    assert len(seen) == 4 + 3 * damages


def test_a_file_of_an_earlier_version_is_read(tmp_path):
    """Its checksum is blake2b, of everything before it."""
    path = tmp_path / "a.pt"
    with open(path, "wb") as file:
        torch.save({"trainer_nb": saved.VERSION, "weight": torch.arange(1000.0)}, file)
    archive = path.read_bytes()[:-2] + (40).to_bytes(2, "little")
    digest = hashlib.blake2b(archive, digest_size=16).hexdigest().encode()
    path.write_bytes(archive + b"blake2b:" + digest)
    assert digest_fits(path) and torch.equal(read_state(path)["weight"], torch.arange(1000.0))
    damaged = bytearray(path.read_bytes())
    damaged[damaged.find(np.arange(1000, dtype="f4").tobytes()) + 401] ^= 4
    path.write_bytes(bytes(damaged))
    with pytest.raises(CheckpointError, match="its check sum is not that of its content"):
        read_state(path)


def test_tensors_that_are_not_copied():
    """A part of a larger one is, and one whose memory is given out already."""
    large, given = torch.arange(10.0), set()
    state = plain_copy({"whole": large, "again": large, "turned": large.view(2, 5).t(),
                        "part": large[2:4]}, copies=WithoutCopies(given))
    places = {name: each.untyped_storage().data_ptr() for name, each in state.items()}
    assert places["whole"] == places["again"] == large.data_ptr()
    assert len(set(places.values())) == 3 and state["part"].untyped_storage().nbytes() == 8
    other = plain_copy({"whole": large}, copies=WithoutCopies(given))
    assert other["whole"].data_ptr() != large.data_ptr()


MEMORY = """
import os, resource, sys, torch, warnings
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import CheckpointHook, Trainer
from trainer_nb.core.hook import LambdaHook
from trainer_nb.hooks.checkpoint import Work, Writer
warnings.simplefilter("ignore")
torch.set_num_threads(1)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
model = torch.nn.Linear(2048, 2048)
ones = TensorDataset(torch.randn(8, 2048), torch.randn(8, 2048))
hook = CheckpointHook(sys.argv[1], every_steps=1, every_epochs=None)
before = []
trainer = Trainer(model, train_dl=DataLoader(ones, 4), loss_fn=torch.nn.MSELoss(), progress=False,
                  optim=torch.optim.Adam(model.parameters()), device="cpu", max_steps=12,
                  hooks=[LambdaHook(before_fit=lambda t: None)])
trainer.step(4)
trainer.save(sys.argv[1] + ".pt")
before = peak()
trainer.save(sys.argv[1] + ".pt")
by_hand = peak() - before
trainer.hooks.add(hook)
trainer.fit()
print(by_hand, peak() - before)
"""


def test_peak_memory(tmp_path):
    """Of a save by hand nothing, and of a run with checkpoints one copy."""
    told = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path / "kept")],
                          capture_output=True, text=True, check=True).stdout
    state, (by_hand, run) = 3 * 4 * 2048 ** 2, map(int, told.split()[-2:])
    assert by_hand < 0.3 * state and run < 1.5 * state


def test_an_error_that_comes_while_the_thread_begins(monkeypatch):
    """A loader's worker that was killed is told by a signal's handler: anywhere. The work is done
    once, by the thread, and the error is raised."""
    begin, done = threading.Thread.start, []
    def interrupted(thread):
        begin(thread)
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    writer = Writer()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(RuntimeError, match="killed by signal"):
            writer.add(Work(lambda: done.append(threading.current_thread())))
    writer.wait()
    assert len(done) == 1 and done[0] is not threading.current_thread()


def test_where_no_thread_begins_the_work_is_done_at_once(monkeypatch):
    """As at the end of a process."""
    def refused(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    writer, done = Writer(), []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        writer.add(Work(lambda: done.append(threading.current_thread())))
    writer.wait()
    assert done == [threading.current_thread()]
