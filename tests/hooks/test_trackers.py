"""What trackers get of a run: every point once, in order, after a rewind and a resume too;
and that none of them ever stops or changes it."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from small_runs import HandClock

from trainer_nb import (CheckpointHook, Hook, ImageFileHook, JSONLHook, LambdaHook, SnapshotHook,
                        TensorBoardHook, TrackerHook,
                        TrackioHook, Trainer, WandbHook)
from trainer_nb.folder.layout import release
from trainer_nb.support.saved import read_state
from trainer_nb.core.state import RandomStreams

pytestmark = pytest.mark.slow

DIGITS = load_digits()
INPUTS = torch.tensor(DIGITS.data[:92] / 16, dtype=torch.float32)
TARGETS = torch.tensor(DIGITS.target[:92])


def make(*hooks, epochs=2, **settings):
    """Twelve steps an epoch, the last one of four samples; dropout draws random numbers."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(INPUTS, TARGETS)
    model = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Dropout(0.2), torch.nn.ReLU(),
                                torch.nn.Linear(16, 10))
    totals = {} if "max_steps" in settings else {"epochs": epochs}
    return Trainer(model, train_dl=torch.utils.data.DataLoader(data, batch_size=8, shuffle=True),
                   valid_dl=torch.utils.data.DataLoader(data, batch_size=46),
                   loss_fn=torch.nn.CrossEntropyLoss(), grad_clip=1.0,
                   optim=torch.optim.AdamW(model.parameters(), lr=0.01), seed=3, device="cpu",
                   progress=False, hooks=hooks,
                   **totals, **settings)


def weights(trainer):
    """One tensor with all of them."""
    return torch.cat([parameter.detach().ravel() for parameter in trainer.model.parameters()])


def lines(path, name="train/loss"):
    """The lines of a JSON file that have a name."""
    return [line for line in map(json.loads, Path(path).read_text().splitlines()) if name in line]


def wandb_files(folder):
    """The offline files of wandb, in the order in which their runs began (the last change of an
    earlier one may be the later one)."""
    return sorted(map(wandb_ended, Path(folder).glob("wandb/offline-run-*/*.wandb")),
                  key=lambda path: wandb_config(path)[0].start_time.ToNanoseconds())


def wandb_ended(path):
    """The file, when it is whole: wandb's own process may write the last records a moment after the
    run is finished, or many on a busy machine."""
    deadline = time.monotonic() + 120
    while "exit" not in {record.WhichOneof("record_type") for record in wandb_records(path)}:
        assert time.monotonic() < deadline, f"{path} has no end"
        time.sleep(0.05)
    return path


def wandb_records(path):
    """The records of an offline file: a log of 32 kB blocks, each record in one piece or
    several."""
    from wandb.proto import wandb_internal_pb2

    data, place, found = path.read_bytes(), 7, b""
    while place < len(data):
        left = 32768 - place % 32768
        length, kind = (struct.unpack("<4xHB", data[place:place + 7])
                        if left >= 7 and len(data) >= place + 7 else (0, 0))
        if not kind:
            place += left
            continue
        found, place = found + data[place + 7:place + 7 + length], place + 7 + length
        if kind in (1, 4) and place <= len(data):  # whole, or its last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(found)
            found = b""
            yield record


def wandb_rows(path):
    """The rows of an offline run, as dicts."""
    return [{"/".join(item.nested_key) or item.key: json.loads(item.value_json)
             for item in record.history.item}
            for record in wandb_records(path) if record.WhichOneof("record_type") == "history"]


def wandb_config(path):
    """The config of an offline run."""
    runs = [record.run for record in wandb_records(path)
            if record.WhichOneof("record_type") == "run"]
    return runs[0], {item.key: json.loads(item.value_json) for item in runs[0].config.update}


def events(folder):
    """What TensorBoard's own reader sees in a folder, all points."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder),
                            size_guidance={"scalars": 0, "images": 0, "histograms": 0}).Reload()


def server_events(folder):
    """What TensorBoard's server sees in a folder with load_fast=false, all points;
    scalars are tensors to it."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()


def scalars(folder, name):
    """Steps and values of a name; both readers of TensorBoard say the same."""
    from tensorboard.util.tensor_util import make_ndarray

    found = [(event.step, event.value) for event in events(folder).Scalars(name)]
    assert [(event.step, make_ndarray(event.tensor_proto).item())
            for event in server_events(folder).Tensors(name)] == found
    return [step for step, _ in found], [value for _, value in found]


def wandb_hook(folder, **settings):
    """Offline, silent, and patient: on a busy machine wandb's own process needs more than its 30
    seconds to begin."""
    import wandb

    quiet = wandb.Settings(silent=True, x_disable_stats=True, x_service_wait=120)
    return WandbHook("digits", mode="offline", dir=str(folder), settings=quiet, **settings)


class ListHook(TrackerHook):
    """The smallest tracker there can be: lines in a list."""

    def __init__(self, every_steps=1, **settings):
        super().__init__(every_steps, **settings)
        self.lines, self.writes = [], 0

    def open(self, trainer, resumed_at):
        self.place = self.place or {}

    def write(self, lines):
        self.lines += lines
        self.writes += 1


def points(told, name):
    """Steps and values of a name in lines."""
    return [(line["step"], line[name]) for line in told if name in line]


# ---- what is told


def test_every_point_of_the_history_is_told_once():
    tracker = ListHook()
    trainer = make(tracker)
    trainer.fit()
    for name in trainer.history.names:
        expected = list(zip(trainer.history.steps(name).tolist(), trainer.history[name].tolist()))
        assert points(tracker.lines, name) == expected, name
    steps = [line["step"] for line in tracker.lines]
    assert steps == sorted(steps) and "valid/loss" in trainer.history
    assert [line["samples_seen"] for line in tracker.lines
            if "lr" in line] == trainer.history.series("lr").samples.tolist()
    assert [line["epoch"] for line in tracker.lines
            if "lr" in line] == trainer.history.series("lr").epochs.tolist()


def test_steps_are_told_in_batches_and_not_one_by_one(monkeypatch):
    """Once a second, and at evaluations; this run takes half a minute of a clock."""
    clock, tracker = HandClock().put_into(monkeypatch, "hooks.trackers"), ListHook()
    trainer = make(LambdaHook(after_step=lambda _: clock.move(0.05)), tracker, max_steps=600,
                   eval_every=600, record=True)
    trainer.fit()
    assert len(points(tracker.lines, "train/loss")) == 600
    assert 28 <= tracker.writes <= 34


def test_a_window_is_the_mean_weighted_by_samples():
    """Steps 9 to 12 end with the short batch of the epoch;
    the rest of a last window comes at the end."""
    tracker = ListHook(every_steps=5)
    trainer = make(tracker)
    trainer.fit()
    losses, samples = (trainer.history["train/loss"],
                       np.diff(trainer.history.series("train/loss").samples, prepend=0))
    assert samples[11] == 4 and set(np.delete(samples, [11, 23])) == {8}
    windows = [slice(start, min(start + 5, 24)) for start in range(0, 24, 5)]
    found = points(tracker.lines, "train/loss")
    assert [step for step, _ in found] == [5, 10, 15, 20, 24]
    assert [value
            for _, value in found] == pytest.approx([np.average(losses[w], weights=samples[w])
                                                     for w in windows], rel=1e-12)
    norms = trainer.history["grad_norm"]
    assert [v for _, v in points(tracker.lines,
                                 "grad_norm")] == pytest.approx(
                                     [norms[w].mean() for w in windows], rel=1e-12)
    # as they are, where they were made
    assert [step for step, _ in points(tracker.lines, "valid/loss")] == [12, 24]
    assert [v for _, v in points(tracker.lines,
                                 "valid/loss")] == trainer.history["valid/loss"].tolist()


def test_the_rate_is_one_that_was_in_force():
    tracker = ListHook(every_steps=4)
    trainer = make(tracker)
    trainer.step(6)
    trainer.tune(lr=0.5)
    trainer.fit()
    assert points(tracker.lines, "lr")[:3] == [(4, 0.01), (8, 0.5), (12, 0.5)]


def test_a_stop_does_not_move_the_windows():
    """A window that was begun is told as it is; when it is whole, it is told whole."""
    tracker, straight = ListHook(every_steps=4), ListHook(every_steps=4)
    make(straight).fit()
    trainer = make(tracker)
    trainer.step(6)
    trainer.stop()
    assert [step for step, _ in points(tracker.lines, "train/loss")] == [4, 6]
    trainer.fit()
    told = dict(points(tracker.lines, "train/loss"))
    assert told.pop(6) and told == dict(points(straight.lines, "train/loss"))


def test_what_trainer_log_gives_out():
    class Logs(Hook):
        def after_step(self, trainer):
            trainer.log({"mine/step": trainer.step_state.optimizer_step,
                         "mine/tensor": torch.tensor(0.5)})

    for record in (True, False):
        tracker = ListHook(every_steps=6)
        make(Logs(), tracker, epochs=1, record=record).fit()
        assert points(tracker.lines, "mine/step") == [(step, step) for step in range(1, 13)], record
        assert points(tracker.lines, "mine/tensor")[-1] == (12, 0.5)
        assert [step for step, _ in points(tracker.lines, "valid/loss")] == [12]


def test_a_few_steps_are_there_when_the_cell_is_over(tmp_path):
    tracker = JSONLHook(tmp_path / "records.jsonl")
    trainer = make(tracker)
    trainer.step(5)
    assert [line["step"] for line in lines(tracker.path)] == [1, 2, 3, 4, 5]
    trainer.close()


def test_one_that_joins_late_gets_all():
    tracker = ListHook()
    trainer = make()
    trainer.step(7)
    trainer.hooks.add(tracker)
    trainer.fit()
    assert [step for step, _ in points(tracker.lines, "train/loss")] == list(range(1, 25))


# ---- it changes nothing


@pytest.mark.parametrize("kind", ["jsonl", "tensorboard", "wandb", "images"])
def test_the_training_never_feels_a_tracker(kind, tmp_path):
    """Equal weights, and equal random streams afterwards."""
    hook = {"jsonl": lambda: JSONLHook(tmp_path / "a.jsonl"),
            "tensorboard": lambda: TensorBoardHook(tmp_path / "tb", 1, histograms=5),
            "wandb": lambda: wandb_hook(tmp_path, every_steps=1, histograms=5),
            "images": lambda: ImageFileHook(tmp_path)}[kind]()

    class Draws(Hook):
        def after_epoch(self, trainer):
            trainer.log_images({"first": INPUTS[0].reshape(8, 8)})

    results = []
    for hooks in ((Draws(), hook), (Draws(),)):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        trainer = make(*hooks)
        trainer.fit()
        outside = RandomStreams.capture()
        results.append((weights(trainer), trainer.driver.random.streams().torch,
                        trainer.driver.random.streams().python, outside.torch, outside.python,
                        outside.numpy))
    for with_it, without in zip(*results):
        assert (torch.equal(with_it, without)
                if isinstance(with_it, torch.Tensor) else with_it == without)


def test_a_service_that_draws_random_numbers_changes_nothing():
    class Draws(ListHook):
        def open(self, trainer, resumed_at):
            super().open(trainer, resumed_at)
            random.random(), np.random.rand(), torch.rand(3)

        def close(self, trainer):
            random.random(), np.random.rand(), torch.rand(3)

    with_it, without = make(Draws()), make()
    for trainer in (with_it, without):
        trainer.fit(epochs=1)
        trainer.fit(epochs=2)
    assert torch.equal(weights(with_it), weights(without))


# ---- failures


def failing(trainer, *wanted):
    """Fit; the warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert trainer.fit().status == "finished"
    without = make()
    without.fit()
    assert torch.equal(weights(trainer), weights(without))
    texts = [str(each.message) for each in said if "switched off" in str(each.message)]
    assert len(texts) == 1 and all(word in texts[0] for word in wanted), texts
    return texts[0]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [JSONLHook, TensorBoardHook])
def test_a_folder_that_vanishes(kind, tmp_path):
    """Noticed by the hook itself, and not by a thread of the writer that dies of it."""
    folder = tmp_path / "runs"
    hook = kind(folder / "records.jsonl" if kind is JSONLHook else folder, every_steps=1)
    trainer = make(hook)
    trainer.step(3)
    shutil.rmtree(folder)
    name = "jsonl" if kind is JSONLHook else "tensorboard"
    failing(trainer, "FileNotFoundError", "the training goes on", f"{name}.enabled")
    assert not hook.enabled and "FileNotFoundError" in hook.failed


def test_a_disk_that_is_full():
    """A device of the system on which nothing ever fits."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")

    class Full(ListHook):
        def write(self, lines):
            with open("/dev/full", "w") as file:
                file.write("line\n")

    failing(make(Full()), "No space left on device", "full.enabled")


def test_a_service_that_refuses(tmp_path):
    hook = WandbHook("digits", mode="nowhere", dir=str(tmp_path))
    failing(make(hook), "WandbHook", "nowhere")
    assert not hook.enabled


def test_it_can_be_switched_on_again_and_misses_nothing(tmp_path):
    folder = tmp_path / "runs"
    hook = JSONLHook(folder / "records.jsonl")
    trainer = make(hook)
    trainer.step(3)
    away = tmp_path / "away"
    folder.rename(away)
    with pytest.warns(UserWarning, match="switched off"):
        trainer.step(3)
    away.rename(folder)
    with open(hook.path, "a") as file:
        file.write('{"step": 4, "half of a l')  # as a full disk leaves it
    trainer.tune(**{"jsonl.enabled": True})
    trainer.fit()
    assert [line["step"] for line in lines(hook.path)] == list(range(1, 25))


def test_an_interrupt_is_no_failure_of_a_tracker():
    class Interrupts(ListHook):
        def write(self, lines):
            raise KeyboardInterrupt

    hook = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        make(hook).fit()
    assert hook.failed is None


def test_a_package_that_is_missing_is_named_at_once(monkeypatch):
    for package, kind in (("tensorboard", TensorBoardHook), ("wandb", WandbHook),
                          ("trackio", TrackioHook), ("PIL", ImageFileHook)):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError,
                           match=rf"{kind.__name__} needs {package}: pip install "
                                 r"'trainer_nb\[trackers\]'"):
            kind()


@pytest.mark.parametrize("make_hook, says", [
    (lambda: JSONLHook("a", every_steps=0),
     "every_steps = 0 is refused: a whole number, 1 or more"),
    (lambda: TensorBoardHook("a", histograms=2.5),
     "histograms=2.5: a whole number of steps, 1 or more, or None"),
    (lambda: ImageFileHook("a", every_steps=True),
     "every_steps=True: a whole number of steps, 1 or more"),
    (lambda: ImageFileHook("a", max_images=0), "max_images=0"),
    (lambda: WandbHook("a", image_format="gif"), "image_format='gif': 'png'")])
def test_bad_settings(make_hook, says):
    with pytest.raises(ValueError) as refused:
        make_hook()
    assert says in str(refused.value)


# ---- lines of JSON


def test_the_file_says_what_was_run(tmp_path):
    make(JSONLHook(tmp_path / "a.jsonl"),
         config={"width": 16, "kind": np.float32(0.5), "path": tmp_path}).fit()
    first = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])["run"]
    assert first["width"] == 16 and first["kind"] == 0.5 and first["path"] == str(tmp_path)
    assert first["trainer"]["lr"] == 0.01
    assert first["trainer"]["optimizer"] == "AdamW" and first["trainer"]["parameters"] == 1210


def test_a_rewind_is_a_line_and_the_path_is_that_of_a_straight_run(tmp_path):
    hook, straight = (JSONLHook(tmp_path / "a.jsonl", every_steps=4),
                      JSONLHook(tmp_path / "b.jsonl", every_steps=4))
    make(straight).fit()
    trainer = make(hook, SnapshotHook(every_steps=2))
    trainer.step(11)
    trainer.rewind(6)
    trainer.fit()
    read = [json.loads(line) for line in hook.path.read_text().splitlines()]
    number = next(index for index, line in enumerate(read) if "rewind" in line)
    assert read[number] == {"rewind": {"branch": 1, "from_step": 11, "to_step": 6, "holds_to": 4}}
    # all of the branch that was left
    assert [line["step"] for line in read[1:number] if "train/loss" in line] == [4, 8, 11]
    path = [line for line in read[1:number] if line["step"] <= 4] + read[number + 1:]
    assert points(path, "train/loss") == points(lines(straight.path), "train/loss")
    assert points(path, "valid/loss") == points(lines(straight.path, "valid/loss"), "valid/loss")


def run_and_die(tmp_path, hook, stop_at=9):
    """Steps with a checkpoint after each fourth;
    then the process is gone, and nobody has closed anything."""
    trainer = make(CheckpointHook(tmp_path / "checkpoints", every_steps=4, every_epochs=None), hook)
    trainer.step(stop_at)
    trainer.get_hook(CheckpointHook).writer.wait()
    release(trainer)  # the locks of its folders end with it
    return trainer


def test_a_resumed_run_goes_on_in_its_file(tmp_path):
    straight = make(JSONLHook(tmp_path / "straight.jsonl", every_steps=3))
    straight.fit()
    run_and_die(tmp_path, JSONLHook(tmp_path / "a.jsonl", every_steps=3), 11)
    assert [line["step"] for line in lines(tmp_path / "a.jsonl")] == [3, 6, 9]
    second = make(CheckpointHook(tmp_path / "checkpoints"),
                  JSONLHook(tmp_path / "a.jsonl", every_steps=3))
    second.fit()
    for name in ("train/loss", "valid/loss", "lr"):
        assert points(lines(tmp_path / "a.jsonl", name),
                      name) == points(lines(tmp_path / "straight.jsonl", name), name)
    assert len(lines(tmp_path / "a.jsonl", "run")) == 1 and not (tmp_path / "a-2.jsonl").exists()
    assert [line["step"] for line in lines(tmp_path / "a.void.jsonl")] == [9]


def test_a_state_can_be_loaded_twice(tmp_path):
    """What was kept is a copy: the file grows meanwhile."""
    trainer = make(JSONLHook(tmp_path / "a.jsonl"))
    trainer.step(4)
    state = trainer.state_dict()
    for _ in range(2):
        trainer.load_state_dict(state)
        trainer.step(3)
        assert [line["step"] for line in lines(tmp_path / "a.jsonl")] == [1, 2, 3, 4, 5, 6, 7]
    trainer.close()


def test_a_file_that_is_there_is_never_written_to_by_another_run(tmp_path):
    make(JSONLHook(tmp_path / "a.jsonl"), epochs=1).fit()
    kept = (tmp_path / "a.jsonl").read_bytes()
    second = JSONLHook(tmp_path / "a.jsonl")
    trainer = make(second, epochs=1)
    trainer.fit()
    trainer.fit(epochs=2)  # its own it goes on with
    assert (tmp_path / "a.jsonl").read_bytes() == kept and second.path == tmp_path / "a-2.jsonl"
    assert [line["step"] for line in lines(second.path)] == list(range(1, 25))


def test_where_files_go_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(JSONLHook(), TensorBoardHook(), ImageFileHook(), workspace=tmp_path / "run",
         epochs=1).fit()
    assert (tmp_path / "run" / "records.jsonl").is_file()
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
    make(JSONLHook(), TensorBoardHook(), epochs=1).fit()
    assert (tmp_path / "records.jsonl").is_file()
    assert len(list((tmp_path / "runs").glob("*_Sequential/events*"))) == 1


def test_a_checkpoint_with_a_tracker_is_plain_and_loads_without_it(tmp_path, recwarn):
    trainer = run_and_die(tmp_path, JSONLHook(tmp_path / "a.jsonl"))
    state = read_state(sorted((tmp_path / "checkpoints").glob("*.pt"))[-1])
    assert state["trackers"]["jsonl"]["number"] == 1 and trainer.history
    make().load_state_dict(state)
    assert not [each for each in recwarn if "hook" in str(each.message)]


# ---- TensorBoard


def test_tensorboard_reads_what_was_recorded(tmp_path, monkeypatch):
    clock = HandClock().put_into(monkeypatch, "core.driver", "hooks.recorder", "hooks.trackers")
    monkeypatch.setattr("trainer_nb.hooks.trackers.time",
                        SimpleNamespace(time=lambda: 1.7e9 + clock()))
    hook = TensorBoardHook(tmp_path / "run", every_steps=1, histograms=10)
    trainer = make(LambdaHook(after_step=lambda _: clock.move(0.3)), hook, config={"width": 16})
    before = 1.7e9 + clock()
    trainer.fit()
    trainer.log_images({"digits/first": DIGITS.images[0] / 16})
    for name in ("train/loss", "lr", "grad_norm", "valid/loss", "time/step"):
        assert scalars(hook.folder, name) == (trainer.history.steps(name).tolist(),
                                              trainer.history[name].astype(np.float32).tolist())
    steps, epochs = scalars(hook.folder, "epoch")
    assert scalars(hook.folder, "samples_seen")[1][-1] == 184 and epochs[-1] == 2
    found = events(hook.folder)
    assert [event.step for event in found.Histograms("parameters/0.weight")] == [10, 20]
    assert found.Histograms("parameters/0.weight")[0].histogram_value.num == 1024
    image, = found.Images("digits/first")
    assert (image.step, image.width, image.height) == (24, 8, 8)
    assert "| width | 16 |" in found.Tensors(
        "config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert b"trainer/optimizer" in found.PluginTagToContent(
        "hparams")["_hparams_/session_start_info"]
    times = [event.wall_time for event in found.Scalars("train/loss")]
    # when they were made, not when they were sent
    assert before <= times[0] and times == sorted(times) and len(set(times)) == 24
    assert abs(times[-1] - times[0] - np.ptp(trainer.history.series("lr").seconds)) < 0.01


def test_tensorboard_after_a_rewind(tmp_path):
    straight = make()
    straight.fit()
    hook = TensorBoardHook(tmp_path / "run", every_steps=1)
    trainer = make(hook, SnapshotHook(every_steps=2, every_epochs=None))
    trainer.step(17)  # to the boundary before the evaluation of step 12, which is made twice
    trainer.rewind(12)
    trainer.fit()
    for name in ("train/loss", "valid/loss"):
        assert scalars(hook.folder, name) == (straight.history.steps(name).tolist(),
                                              straight.history[name].astype(np.float32).tolist())


def test_tensorboard_resumed(tmp_path, monkeypatch):
    from tensorboard.summary.writer import event_file_writer

    straight = make()
    straight.fit()
    run_and_die(tmp_path, TensorBoardHook(tmp_path / "run", every_steps=1), 15)
    # its reader takes files in the order of their seconds
    monkeypatch.setattr(event_file_writer, "time",
                        SimpleNamespace(time=lambda: time.time() + 60))
    make(CheckpointHook(tmp_path / "checkpoints"),
         TensorBoardHook(tmp_path / "run", every_steps=1)).fit()
    for name in ("train/loss", "valid/loss"):
        assert scalars(tmp_path / "run", name) == (straight.history.steps(name).tolist(),
                                                   straight.history[
                                                       name].astype(np.float32).tolist())
    assert not (tmp_path / "run-2").exists()


def test_two_runs_never_share_a_folder_of_tensorboard(tmp_path):
    first, second = TensorBoardHook(tmp_path / "run"), TensorBoardHook(tmp_path / "run")
    make(first, epochs=1).fit()
    make(second, epochs=1).fit()
    assert (first.folder.name, second.folder.name) == ("run", "run-2")


def test_weights_that_are_not_finite_have_histograms_too(tmp_path):
    class Spoils(Hook):
        def after_step(self, trainer):
            with torch.no_grad():
                trainer.model[0].weight[0, 0] = float("nan")
                trainer.model[3].bias.fill_(float("inf"))

    hook = TensorBoardHook(tmp_path / "run", histograms=1)
    make(Spoils(), hook, max_steps=1, non_finite=None).fit()
    assert hook.enabled
    assert events(hook.folder).Histograms("parameters/0.weight")[0].histogram_value.num == 1023


# ---- Weights & Biases


def test_wandb_has_the_rows(tmp_path):
    hook = wandb_hook(tmp_path, every_steps=1, histograms=10, config={"note": "b"}, tags=["digits"])
    trainer = make(hook, config={"width": 16, "note": "a"})
    trainer.step(5)
    trainer.log_images({"digits/first": DIGITS.images[0] / 16})
    trainer.fit()
    path, = wandb_files(tmp_path)
    rows = wandb_rows(path)
    assert [row["_step"] for row in rows] == list(range(1, 25))
    assert [row["train/loss"] for row in rows] == trainer.history["train/loss"].tolist()
    assert [(row["_step"], row["valid/loss"]) for row in rows
            if "valid/loss" in row] == list(zip([12, 24], trainer.history["valid/loss"]))
    assert [row["samples_seen"] for row in rows] == trainer.history.series("lr").samples.tolist()
    assert rows[-1]["epoch"] == 2
    assert [row["_step"] for row in rows
            if "parameters/0.weight/_type" in row or "parameters/0.weight" in row] == [10, 20]
    run, config = wandb_config(path)
    assert run.project == "digits" and list(run.tags) == ["digits"]
    assert config["width"] == 16 and config["note"] == "b" and config["trainer"]["lr"] == 0.01
    assert len(list(path.parent.glob("files/media/images/digits/first_5_*.png"))) == 1


def test_wandb_after_a_rewind_has_a_run_of_its_own(tmp_path):
    hook = wandb_hook(tmp_path, every_steps=1, name="first")
    trainer = make(hook, SnapshotHook(every_steps=2))
    trainer.step(9)
    trainer.rewind(6)
    trainer.fit()
    first, second = wandb_files(tmp_path)
    assert [row["_step"] for row in wandb_rows(first)] == list(range(1, 10))
    assert [row["_step"] for row in wandb_rows(second)] == list(range(6, 25))
    run, config = wandb_config(second)
    assert run.display_name == "first-branch1" and run.run_id != wandb_config(first)[0].run_id
    assert (config["branch"], config["branch_of"], config["rewound_to"]) == (1, "first", 6)


def test_wandb_resumed_goes_on_under_its_id(tmp_path):
    """The step raised after the checkpoint: what was sent until then is not sent again."""
    class Fails(Hook):
        def before_step(self, trainer):
            if trainer.step_state.optimizer_step == 10:
                raise RuntimeError("the tenth step is done")

    with pytest.raises(RuntimeError, match="tenth"):
        make(CheckpointHook(tmp_path / "checkpoints", every_steps=4, every_epochs=None), Fails(),
             wandb_hook(tmp_path, every_steps=1)).fit()
    for path in (tmp_path / "checkpoints").glob("*_error.pt"):
        path.unlink()
    second = make(CheckpointHook(tmp_path / "checkpoints"), wandb_hook(tmp_path, every_steps=1))
    second.fit()
    first, later = wandb_files(tmp_path)
    assert wandb_config(first)[0].run_id == wandb_config(later)[0].run_id
    assert [row["_step"] for row in wandb_rows(first) + wandb_rows(later)] == list(range(1, 25))


# ---- trackio


@pytest.mark.long  # trackio has an environment of its own
def test_trackio_has_the_rows(tmp_path):
    python = Path(sys.prefix).parent / ".venv-trackio" / "bin" / "python"
    assert python.exists(), "run `make .venv-trackio/.made`"
    code = (f"import sys; sys.path[:0] = {list(map(str, Path(__file__).parents[:2]))!r}; import "
            f"test_trackers; "
            f"test_trackers.run_in_trackio()")
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "TRACKIO_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr


def run_in_trackio():
    """A run with a rewind, resumed once; read back by trackio's own reader.
    In a process of its own: its folder is read at import."""
    from trackio.sqlite_storage import SQLiteStorage

    def rows(run):
        found = SQLiteStorage.get_logs("digits", run)
        return [(row["step"], row["train/loss"]) for row in found if "train/loss" in row]

    hook = TrackioHook("digits", every_steps=1, histograms=10, name="first", auto_log_cpu=False)
    trainer = make(hook, SnapshotHook(every_steps=2), config={"width": 16})
    trainer.step(9)
    state = trainer.state_dict()
    trainer.step(1)
    trainer.log_images({"digits/first": DIGITS.images[0] / 16})
    trainer.log_pr_curve("three", *three_and_scores())
    trainer.close()
    table, = [row["three"] for row in SQLiteStorage.get_logs("digits", "first") if "three" in row]
    assert table[
        "_type"] == "trackio.table" and set(
            table["_value"][0]) == {"recall", "precision", "threshold"}, table
    assert table["_value"][-1]["recall"] == 1 and len(table["_value"]) > 3, table
    other = make(TrackioHook("digits", every_steps=1, name="first", auto_log_cpu=False),
                 SnapshotHook(every_steps=2))
    other.load_state_dict(state)
    other.step(3)
    other.rewind(9)
    other.fit()
    losses = other.history["train/loss"].tolist()
    told = rows("first")
    assert [step for step, _ in told] == list(range(1, 13)), told
    assert [value for _, value in told[:9]] == losses[:9]
    assert rows("first-branch1") == list(zip(range(9, 25), losses[8:])), rows("first-branch1")
    kept = SQLiteStorage.get_run_config("digits", "first-branch1")
    assert kept["branch"] == 1 and kept["branch_of"] == "first" and kept["rewound_to"] == 9, kept


# ---- precision-recall curves


def three_and_scores(count=92):
    """Which digits are a 3, and what a network that has hardly learnt says of it;
    some predictions are equal."""
    return (torch.tensor(DIGITS.target[:count] == 3),
            torch.tensor(DIGITS.images[:count, 4:6, 4:6].mean((1, 2)) / 16).round(decimals=2))


def written_curves(path):
    """The curves in a JSON file, with their steps."""
    return [(line["step"], line["pr_curve"]) for line in lines(path, "pr_curve")]


@pytest.mark.parametrize("count", [92, 1797], ids=["each", "thinned"])
def test_points_of_a_pr_curve_are_those_of_scikit_learn(count, tmp_path):
    """Each point is on the curve with all thresholds, and no recall is reached with a higher
    precision at a threshold above it."""
    from sklearn.metrics import precision_recall_curve

    labels, scores = three_and_scores(count)
    hook = JSONLHook(tmp_path / "a.jsonl")
    make(hook).log_pr_curve("three", labels, scores)
    (step, curve), = written_curves(hook.path)
    assert step == 0 and curve["name"] == "three"
    precision, recall, thresholds = precision_recall_curve(labels.numpy(), scores.numpy())
    full = {threshold: (p, r)
            for p, r, threshold in zip(precision.tolist(), recall.tolist(), thresholds.tolist())}
    found = list(zip(curve["thresholds"], curve["precision"], curve["recall"]))
    assert found == [(threshold, *full[threshold]) for threshold, _, _ in found]
    # the highest threshold that has this recall is among them
    for share in np.arange(1, 101) / 100:
        first = max(threshold for threshold, (_, r) in full.items() if r >= share - 1e-12)
        assert first in curve["thresholds"], share
    assert (len(found) == len({r for _, r in full.values() if r > 0})
            if count == 92 else len(found) <= 100)
    assert curve["recall"][-1] == 1
    assert curve["thresholds"] == sorted(curve["thresholds"], reverse=True)


@pytest.mark.parametrize("labels, scores", [
    ([0, 1, 1], [0.1, 0.9, 0.25]),
    (torch.tensor([[0.0], [1.0], [1.0]]), torch.tensor([[0.125], [0.5], [0.25]]).bfloat16()),
    (np.array([False, True, True]), np.array([0.0, 1.0, 0.25], np.float32)),
    (torch.tensor([0, 1, 1]), [0, 1, 0.25])],
    ids=["lists", "Nx1", "arrays", "both"])
def test_what_a_pr_curve_is_made_of(labels, scores, tmp_path):
    hook = JSONLHook(tmp_path / "a.jsonl")
    make(hook).log_pr_curve("one", labels, scores)
    (_, curve), = written_curves(hook.path)
    assert curve["precision"] == [1, 1]
    assert curve["recall"] == [0.5, 1] and curve["thresholds"][1] == 0.25


@pytest.mark.parametrize("labels, scores, says", [
    ([0, 1], [0.5, 0.5, 0.5], r"'mine': labels have the shape \(2,\), predictions \(3,\)"),
    ([0, 1, 2], np.full((3, 4), 0.25),
     r"predictions \(3, 4\); one of each a sample: one class at a time, labels == 3 and "
     r"predictions\[:, 3\]"),
    (np.zeros((2, 2)), np.zeros((2, 2)), r"labels have the shape \(2, 2\)"),
    ([0, 2], [0.5, 0.5],
     "labels are 0 or 1, and 2 is among them; for a class of several: labels == 2"),
    ([0, -1], [0.5, 0.5], "and -1 is among them"), ([0.3, 1], [0.5, 0.5], "and 0.3 is among them"),
    (["cat", "dog"], [0.5, 0.5], "and 'cat' is among them"),
    ([0, 1], [0.5, 1.5],
     r"probabilities from 0 to 1, and 1.5 is among them; of logits: logits.sigmoid\(\)"),
    ([0, 1], [-0.1, 1], "and -0.1 is among them"),
    ([0, 1], [0.5, float("nan")], "and nan is among them"),
    ([0, 0], [0.5, 0.5], "none of the 2 labels is 1"), ([], [], "none of the 0 labels is 1")],
    ids=["lengths", "classes", "square", "two", "minus", "half", "text", "logits", "negative",
         "nan", "zeros", "empty"])
@pytest.mark.parametrize("kind", [JSONLHook, ImageFileHook])
def test_what_has_no_pr_curve_is_refused_where_it_is_given(kind, labels, scores, says, tmp_path):
    hook = kind(tmp_path / "a")
    with pytest.raises(ValueError, match=says):
        make(hook).log_pr_curve("mine", labels, scores)
    assert hook.enabled and not list(tmp_path.iterdir())


def test_tensorboard_has_pr_curves(tmp_path):
    from tensorboard.plugins.pr_curve import metadata
    from tensorboard.util.tensor_util import make_ndarray

    labels, scores = three_and_scores()
    hook = TensorBoardHook(tmp_path / "run", every_steps=1)
    trainer = make(hook, SnapshotHook(every_steps=2),
                   LambdaHook(after_epoch=lambda trainer: trainer.log_pr_curve(
                       "valid/three", labels, scores)))
    trainer.step(17)
    trainer.log_pr_curve("valid/three", labels, scores / 2)
    trainer.rewind(14)  # the later one is of a branch that was left
    trainer.fit()
    found = server_events(hook.folder)
    assert metadata.parse_plugin_metadata(
        found.PluginTagToContent("pr_curves")["valid/three"]).num_thresholds == 127
    points = found.Tensors("valid/three")
    assert [event.step for event in points] == [12, 24]
    hits, false, _, missed, precision, recall = make_ndarray(points[0].tensor_proto)
    for at, threshold in enumerate(np.arange(127) / 126):
        chosen = scores.numpy() >= threshold
        assert (hits[at], false[at], missed[at]) == ((labels.numpy() & chosen).sum(),
                                                     (~labels.numpy() & chosen).sum(),
                                                     (labels.numpy() & ~chosen).sum())
    assert recall[0] == 1 and precision[0] == pytest.approx(labels.float().mean().item())
    times = [event.wall_time for event in points]
    assert times[0] < times[1]


def test_lines_with_pr_curves_go_the_way_of_the_others(tmp_path):
    """Behind the records up to there; what a run that died had written after its checkpoint is cut
    off."""
    labels, scores = three_and_scores()

    def hooks(number):
        draws = LambdaHook(order=50,
                           after_step=lambda trainer: trainer.log_pr_curve(
                               "three", labels, scores / number))
        return (draws, CheckpointHook(tmp_path / "checkpoints", every_steps=4, every_epochs=None),
                JSONLHook(tmp_path / "a.jsonl"))

    trainer = make(*hooks(1))
    trainer.step(6)
    trainer.get_hook(CheckpointHook).writer.wait()
    assert [(line["step"], "train/loss" in line)
            for line in lines(tmp_path / "a.jsonl", "step")] == [
(step, is_record) for step in range(1, 7) for is_record in (True, False)]
    release(trainer)
    make(*hooks(2)).step(4)
    top = scores[labels].max().item()
    assert [(step, curve["thresholds"][0])
            for step, curve in written_curves(tmp_path / "a.jsonl")] == [
(step, top if step <= 4 else top / 2) for step in range(1, 9)]


def test_wandb_has_pr_curves_as_chart_and_table(tmp_path):
    labels, scores = three_and_scores()
    trainer = make(JSONLHook(tmp_path / "a.jsonl"), wandb_hook(tmp_path, every_steps=1), epochs=1)
    trainer.step(5)
    trainer.log_pr_curve("valid/three", labels, scores)
    trainer.fit()
    path, = wandb_files(tmp_path)
    row = next(row for row in wandb_rows(path) if row["_step"] == 5)
    assert row["train/loss"] == trainer.history["train/loss"][4]
    table, = path.parent.glob("files/media/table/valid/*.table.json")
    table = json.loads(table.read_text())
    (step, curve), = written_curves(tmp_path / "a.jsonl")
    assert step == 5 and table["columns"] == ["recall", "precision", "threshold", "class"]
    assert table["data"] == [[*row, "1"]
                             for row in zip(curve["recall"], curve["precision"],
                                            curve["thresholds"])]
    _, config = wandb_config(path)
    charts = [json.loads(item.value_json) for record in wandb_records(path)
              if record.WhichOneof("record_type") == "config"
              for item in record.config.update]
    assert "area-under-curve" in json.dumps([config, charts])


def test_pictures_of_pr_curves(tmp_path):
    from PIL import Image

    labels, scores = three_and_scores()
    trainer = make(ImageFileHook(tmp_path, max_images=1))
    for perfect in (False, True):
        trainer.step(1)
        trainer.log_pr_curve("valid/three", labels, labels if perfect else scores)
    trainer.close()
    path, = tmp_path.rglob("*.png")
    assert path == tmp_path / "valid" / "three" / "step_00000002.png"
    picture = np.asarray(Image.open(path)).astype(int)
    # of a perfect one: its only point, at the upper right
    blue = np.argwhere((abs(picture - (0x3f, 0x83, 0xe8)) < 60).all(-1))
    assert picture.shape == (240, 320, 3) and len(blue) and (abs(blue - (28, 306)) <= 3).all()


# ---- images


@pytest.mark.parametrize("image, shape", [
    (torch.rand(3, 8, 6), (8, 6, 3)), (torch.rand(8, 6), (8, 6)), (torch.rand(1, 8, 6), (8, 6)),
    (np.random.rand(8, 6, 4), (8, 6, 4)),
    (np.random.rand(3, 8, 3), (3, 8, 3)), (torch.rand(3, 8, 3), (8, 3, 3)),
    (np.random.rand(3, 8, 6), (8, 6, 3)),
    (torch.rand(8, 6).bfloat16(), (8, 6)), (np.ones((8, 6), bool), (8, 6)),
    (torch.full((8, 6), 255), (8, 6))], ids=lambda each: "")
def test_shapes_of_images(image, shape, tmp_path):
    from PIL import Image

    hook = ImageFileHook(tmp_path)
    make(hook).log_images({"one": image})
    written = np.asarray(Image.open(tmp_path / "one" / "step_00000000.png"))
    assert written.shape == shape


def test_values_of_images(tmp_path):
    from PIL import Image

    image = torch.tensor([[0.0, 0.5, 1.0], [-3.0, 7.0, float("nan")]])
    make(ImageFileHook(tmp_path)).log_images({"../a b/c": image, "whole": np.array([[0, 7, 255]])})
    assert np.asarray(
        Image.open(tmp_path / "%2E%2E" / "a%20b" / "c" / "step_00000000.png")).tolist() == [
            [0, 128, 255], [0, 255, 0]]
    assert np.asarray(
        Image.open(tmp_path / "whole" / "step_00000000.png")).tolist() == [[0, 7, 255]]
    assert list(tmp_path.parent.glob("a*b")) == []


@pytest.mark.parametrize("image, says", [
    (torch.rand(4, 3, 8, 8), r"'mine' has the shape \(4, 3, 8, 8\).*one at a time"),
    (torch.rand(8), r"shape \(8,\)"),
    (torch.rand(2, 8, 8), r"1, 3 or 4 colours"), (np.array([[0, 256]]), "from 0 to 256"),
    (np.zeros((0, 3)), r"shape \(0, 3\)")],
    ids=["batch", "line", "two", "large", "empty"])
def test_what_is_no_image_is_refused_where_it_is_given(image, says, tmp_path):
    hook = ImageFileHook(tmp_path)
    with pytest.raises(ValueError, match=says):
        make(hook).log_images({"mine": image})
    assert hook.enabled and not list(tmp_path.iterdir())


def test_how_many_images_are_kept(tmp_path):
    class Draws(Hook):
        def after_step(self, trainer):
            trainer.log_images({"a": INPUTS[0].reshape(8, 8)})

    trainer = make(Draws(), ImageFileHook(tmp_path, every_steps=5, max_images=3),
                   SnapshotHook(every_steps=2))
    trainer.step(19)
    assert sorted(path.name
                  for path in (
                      tmp_path / "a").iterdir()) == [f"step_{step:08d}.png" for step in (6, 11, 16)]
    trainer.rewind(10)
    trainer.step(2)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "step_00000011.png", "step_00000011_branch1.png", "step_00000016.png"]
    trainer.close()
