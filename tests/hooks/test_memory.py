"""Memory in the records, a snapshot when it runs out, profiles of a few steps;
and that none of it changes or holds anything."""

import json
import pickle

import psutil
import pytest
import torch
from digits_runs import wait_for
from torch.autograd import profiler as torch_profiler

from trainer_nb import (EmptyCacheHook, Hook, JSONLHook, MemoryHook, ProfilerHook, SnapshotHook,
                        Trainer)
from trainer_nb.core.state import RunState

CUDA = pytest.mark.cuda


def make(*hooks, epochs=2, device="cpu", width=8, **settings):
    """Ten steps an epoch."""
    torch.manual_seed(0)
    inputs = torch.randn(80, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Dropout(0.1),
                                torch.nn.Linear(width, 1))
    return Trainer(model, train_dl=torch.utils.data.DataLoader(data, 8, shuffle=True),
                   valid_dl=torch.utils.data.DataLoader(data, 40),
                   loss_fn=torch.nn.MSELoss(), optim=torch.optim.AdamW(model.parameters(), lr=0.01),
                   epochs=epochs, seed=1, device=device,
                   progress=False, hooks=hooks, **settings)


def weights(trainer):
    """One tensor with all of them."""
    return torch.cat([parameter.detach().ravel().cpu() for parameter in trainer.model.parameters()])


def names(path):
    """Of the events in a Chrome trace, with how often each is there."""
    found = [event.get("name", "") for event in json.loads(path.read_text())["traceEvents"]]
    return {name: found.count(name) for name in set(found)}


@pytest.fixture(autouse=True)
def nothing_is_profiled():
    """Before and after each test."""
    assert not torch_profiler._is_profiler_enabled
    yield
    assert not torch_profiler._is_profiler_enabled, "a profiler was left open"


# ---- memory


def test_memory_of_the_process_in_gb():
    class Keeps(Hook):
        def after_step(self, trainer):
            if trainer.step_state.optimizer_step == 12:
                self.kept = torch.ones(50_000_000)  # 0.2 GB

    trainer = make(MemoryHook(every_steps=5), Keeps())
    trainer.fit()
    here = trainer.history["memory/host"]
    assert trainer.history.steps("memory/host").tolist() == [5, 10, 15, 20]
    assert here[2] - here[1] == pytest.approx(0.2, abs=0.03)
    assert here[-1] == pytest.approx(psutil.Process().memory_info().rss / 1e9, rel=0.1)
    # no CUDA: no more
    assert [name for name in trainer.history.names if name.startswith("memory/")] == ["memory/host"]


def test_it_asks_only_every_n_steps(monkeypatch):
    asked = []
    import trainer_nb.hooks.memory as module

    def counted(device):
        asked.append(device)
        return {"memory/host": 1.0}

    monkeypatch.setattr(module, "memory_records", counted)
    make(MemoryHook(every_steps=7)).fit()
    assert len(asked) == 2


def test_a_record_waits_for_no_device():
    """Losses stay where they are: the recorder has not been asked to fetch."""
    trainer = make(MemoryHook(every_steps=1))
    fetched = []

    class Looks(Hook):
        order = 26

        def after_step(self, trainer):
            fetched.append(len(trainer.history._columns.get("train/loss", ())))

    trainer.hooks.add(Looks())
    trainer.fit()
    assert fetched[:9] == [0] * 9


def test_a_tracker_gets_the_highest(tmp_path):
    hook = JSONLHook(tmp_path / "a.jsonl", every_steps=10)
    trainer = make(MemoryHook(every_steps=2), hook)
    trainer.fit()
    told = [json.loads(line) for line in hook.path.read_text().splitlines()]
    values = trainer.history["memory/host"]
    assert [line["memory/host"] for line in told
            if "memory/host" in line] == [max(values[:5]), max(values[5:])]


def test_memory_goes_back_with_the_run():
    trainer = make(MemoryHook(every_steps=2), SnapshotHook(every_steps=4))
    trainer.step(9)
    trainer.rewind(4)
    trainer.step(4)
    assert trainer.history.steps("memory/host").tolist() == [2, 4, 6, 8]
    trainer.close()


def test_memory_can_be_tuned_and_refuses():
    trainer = make(MemoryHook())
    trainer.tune(**{"memory.every_steps": 4})
    trainer.step(8)
    assert trainer.history.steps("memory/host").tolist() == [4, 8]
    with pytest.raises(ValueError, match="every_steps = 0 is refused: a whole number, 1 or more"):
        MemoryHook(every_steps=0)
    with pytest.raises(ValueError, match="every_steps = 2.5 is refused"):
        EmptyCacheHook(every_steps=2.5)
    trainer.close()


def test_out_of_memory_without_a_gpu_writes_nothing(tmp_path, recwarn):
    class Fails(Hook):
        def before_step(self, trainer):
            raise torch.OutOfMemoryError("no more")

    hook = MemoryHook(folder=tmp_path)
    with pytest.raises(torch.OutOfMemoryError, match="no more"):
        make(hook, Fails()).fit()
    assert hook.snapshot is None and not list(tmp_path.iterdir()) and not recwarn.list


@CUDA
def test_peaks_of_cuda():
    """The peak of each two steps alone: one large tensor shows once."""
    class Large(Hook):
        def before_step(self, trainer):
            if trainer.step_state.optimizer_step == 6:  # in step 7
                torch.ones(250_000_000, device="cuda")  # 1 GB

    trainer = make(MemoryHook(every_steps=2), Large(), device="cuda")
    trainer.fit()
    peaks = trainer.history["memory/peak_allocated"]
    assert peaks[3] - peaks[2] == pytest.approx(1.0, abs=0.01)
    assert peaks[4] - peaks[2] == pytest.approx(0, abs=0.01)
    assert all(trainer.history["memory/peak_reserved"] >= peaks)


@CUDA
@pytest.mark.parametrize("trace", [False, True])
def test_a_snapshot_when_cuda_is_out_of_memory(trace, tmp_path):
    class Fails(Hook):
        def before_step(self, trainer):
            if trainer.step_state.optimizer_step == 3:
                torch.ones(2**50, device="cuda")

    hook = MemoryHook(folder=tmp_path, trace=trace)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        make(hook, Fails(), device="cuda").fit()
    assert hook.snapshot == tmp_path / "memory_step_00000003.pickle"
    assert any(str(hook.snapshot) in note for note in caught.value.__notes__)
    kept = pickle.loads(hook.snapshot.read_bytes())
    assert kept["segments"] and any(kept["device_traces"]) == trace


def test_snapshots_of_every_n_steps_need_cuda(tmp_path):
    """Said before the first step."""
    trainer = make(MemoryHook(snapshot_every=5, folder=tmp_path))
    with pytest.raises(ValueError, match="snapshot_every=5.*on cpu"):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 0 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "value"),
                         [("snapshot_every", 0), ("snapshot_every", 2.5), ("snapshot_every", True),
                          ("keep_last", 0), ("keep_last", None)])
def test_bad_numbers_of_snapshots_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        MemoryHook(**{name: value})


@CUDA
@pytest.mark.parametrize("trace", [False, True])
def test_snapshots_of_every_n_steps(trace, tmp_path):
    """The last ones stay, what others wrote there too, and the run is the same."""
    (tmp_path / "memory_step_00000001.pickle").write_bytes(b"of another run")
    hook = MemoryHook(snapshot_every=4, keep_last=2, folder=tmp_path, trace=trace)
    trainer, without = make(hook, device="cuda"), make(device="cuda")
    trainer.fit()
    without.fit()
    assert torch.equal(weights(trainer), weights(without))
    assert sorted(path.name
                  for path in tmp_path.iterdir()) == [f"memory_step_{step:08d}.pickle"
                                                      for step in (1, 16, 20)]
    kept = pickle.loads(hook.snapshot.read_bytes())
    assert hook.snapshot.name == "memory_step_00000020.pickle"
    assert kept["segments"] and any(kept["device_traces"]) == trace


@CUDA
def test_reserved_memory_is_given_back():
    class Frees(Hook):
        order = -10

        def after_step(self, trainer):
            torch.ones(50_000_000, device="cuda")

    make(Frees(), EmptyCacheHook(every_steps=20), device="cuda").fit()
    assert torch.cuda.memory_reserved() - torch.cuda.memory_allocated() < 1e8


# ---- profiles


def test_a_trace_of_the_steps_that_were_asked_for(tmp_path):
    # all rows: which ten take the most time is not the same on a busy machine
    profiler = ProfilerHook(tmp_path, wait=2, warmup=1, active=3, rows=1000, show=False)
    trainer = make(profiler)
    trainer.fit()
    # the first step, 2 + 1, and 3
    assert [path.name for path in profiler.traces] == ["trace_step_00000007.json"]
    found = names(profiler.traces[0])
    assert found["Optimizer.step#AdamW.step"] == 3
    assert sum(count for name, count in found.items() if name.startswith("ProfilerStep#")) == 3
    assert "aten::addmm" in profiler.table


def test_several_recordings(tmp_path):
    profiler = ProfilerHook(tmp_path, wait=1, warmup=1, active=2, repeat=3, show=False)
    make(profiler).fit()
    assert [names(path)["Optimizer.step#AdamW.step"] for path in profiler.traces] == [2, 2, 2]
    assert len(set(profiler.traces)) == 3


def test_the_table_is_shown(tmp_path, capsys):
    """As many rows as are wanted; which ones come first is a matter of time."""
    texts = []
    for rows in (5, 500):
        make(ProfilerHook(tmp_path, rows=rows)).fit()
        texts.append(capsys.readouterr().out)
    few, whole = texts
    assert "Self CPU" in few and "aten::addmm" in whole
    assert few.count("\n") + 10 < whole.count("\n")


@pytest.mark.slow
def test_a_profile_changes_no_weights(tmp_path):
    with_it, without = make(ProfilerHook(tmp_path, repeat=2, show=False, record_shapes=True,
                                         profile_memory=True)), make()
    with_it.fit()
    without.fit()
    assert torch.equal(weights(with_it), weights(without))
    assert torch.equal(with_it.driver.random.streams().torch, without.driver.random.streams().torch)


@pytest.mark.parametrize("steps, recorded", [(2, None), (3, None), (5, 2)])
def test_nothing_is_open_when_a_cell_is_over(steps, recorded, tmp_path):
    """Begun, warming up, recording: what was recorded is kept, else it begins again with the next
    drive."""
    profiler = ProfilerHook(tmp_path, show=False)
    trainer = make(profiler)
    trainer.step(steps)
    assert not torch_profiler._is_profiler_enabled
    assert [names(path)["Optimizer.step#AdamW.step"]
            for path in profiler.traces] == ([recorded] if recorded else [])
    trainer.start()
    trainer.wait()
    assert [names(path)["Optimizer.step#AdamW.step"] for path in profiler.traces] == [recorded or 3]


def test_nothing_is_open_after_an_error_a_stop_or_in_a_pause(tmp_path):
    class Fails(Hook):
        def before_step(self, trainer):
            if trainer.step_state.optimizer_step == 4:
                raise RuntimeError("at the fifth")

    profiler = ProfilerHook(tmp_path / "a", show=False)
    with pytest.raises(RuntimeError, match="at the fifth"):
        make(profiler, Fails()).fit()
    assert not torch_profiler._is_profiler_enabled
    assert names(profiler.traces[0])["Optimizer.step#AdamW.step"] == 1

    class Stops(Hook):
        def after_step(self, trainer):
            if trainer.step_state.optimizer_step == 4:
                trainer.stop()

    trainer = make(ProfilerHook(tmp_path / "b", show=False), Stops())
    assert trainer.fit().status == "stopped" and not torch_profiler._is_profiler_enabled

    profiler = ProfilerHook(tmp_path / "c", show=False)
    trainer = make(profiler)
    seen = []
    trainer.pause_when(lambda t: t.step_state.optimizer_step == 4)

    class Looks(Hook):
        order = 95

        def on_pause(self, trainer):
            seen.append(torch_profiler._is_profiler_enabled)

    trainer.hooks.add(Looks())
    trainer.driver.status.front_end = True  # a pause holds the drive
    trainer.start()
    wait_for(lambda: trainer.state is RunState.PAUSED)
    trainer.resume()
    trainer.wait()
    assert seen == [False] and len(profiler.traces) == 1


@pytest.mark.slow
def test_switched_off_in_mid_recording_it_is_closed_with_the_drive(tmp_path):
    class Off(Hook):
        def after_step(self, trainer):
            if trainer.step_state.optimizer_step == 4:
                trainer.tune(**{"profiler.enabled": False})

    make(ProfilerHook(tmp_path, show=False, active=8), Off()).fit()


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="could not be written"):
        assert make(ProfilerHook(tmp_path / "file", show=False)).fit().status == "finished"


@pytest.mark.parametrize("settings, says", [({"active": 0}, "active=0: a whole number, 1 or more"),
                                            ({"wait": -1}, "wait=-1: a whole number, 0 or more"),
                                            ({"repeat": None}, "repeat=None")])
def test_bad_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        ProfilerHook(**settings)


def test_a_setting_that_the_profiler_does_not_have():
    """Said where the hook is made, not in a run that is under way;
    so is one that is the hook's own business."""
    with pytest.raises(TypeError, match="'with_stak'.*did you mean 'with_stack'"):
        ProfilerHook(with_stak=True)
    with pytest.raises(TypeError, match="'schedule'.*wait=, warmup=, active=, repeat="):
        ProfilerHook(schedule=None)
    ProfilerHook(with_stack=True, record_shapes=True, profile_memory=True)


def test_the_end_of_every_drive_is_told():
    """Also of one that a hook or step has ended by an error; on the thread that drove."""
    import threading
    told = []

    class Ends(Hook):
        def drive_ended(self, trainer):
            told.append((trainer.step_state.optimizer_step, threading.current_thread().name))

    class Fails(Hook):
        def before_step(self, trainer):
            if trainer.step_state.optimizer_step == 15:
                raise RuntimeError("no")

    trainer = make(Ends(), Fails())
    trainer.step(2)
    trainer.start()
    with pytest.raises(RuntimeError, match="no"):
        trainer.wait()
    assert told == [(2, "MainThread"), (15, "trainer_nb")]
