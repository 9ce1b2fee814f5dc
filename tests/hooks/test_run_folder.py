"""The folder of a run: what is in it, that two runs keep apart, and that a run resumed goes on in
it."""

import csv
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import warm

from trainer_nb import CheckpointHook, Journal, LambdaHook, SnapshotHook, Trainer
from trainer_nb.folder.layout import release
from trainer_nb.hooks.recorder import History
from trainer_nb.hooks.run_folder import read_records

pytestmark = pytest.mark.slow


def make(workspace, *hooks, epochs=3, **settings):
    """Twelve steps."""
    torch.manual_seed(0)
    inputs = torch.randn(32, 3)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :1])
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    return Trainer(model, train_dl=torch.utils.data.DataLoader(data, batch_size=8, shuffle=True),
                   loss_fn=torch.nn.MSELoss(),
                   valid_dl=torch.utils.data.DataLoader(data, batch_size=16),
                   optim=torch.optim.AdamW(model.parameters(), lr=0.01),
                   seed=3, device="cpu", progress=False, hooks=hooks, epochs=epochs,
                   workspace=workspace, **settings)


def lines(path):
    """Of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(path):
    """(step, value) of each name in a table of CSV."""
    found = {}
    for line in csv.DictReader(open(path, newline="")):
        for name, value in line.items():
            if value and name not in ("step", "epoch", "samples_seen", "seconds"):
                found.setdefault(name, []).append((int(line["step"]), float(value)))
    return found


def in_table(history):
    """What it must say, in full precision."""
    return {name: list(zip(history.steps(name).tolist(), history[name].tolist()))
            for name in history.names}


def points(history):
    """All that does not depend on the clock."""
    return {name: (history.steps(name).tolist(), history[name].tolist()) for name in history.names
            if not name.startswith(("time/", "samples_per"))}


def test_what_a_run_leaves_behind(tmp_path):
    trainer = make(tmp_path / "runs" / "first", CheckpointHook(),
                   config={"width": 8, "kind": np.float32(0.5)})
    trainer.step(5)
    trainer.tune(lr=0.02)
    trainer.fit()
    folder = tmp_path / "runs" / "first"
    assert trainer.workspace == folder
    steps = [line for line in lines(folder / "metrics.jsonl") if "train/loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 13))
    assert [line["train/loss"] for line in steps] == trainer.history["train/loss"].tolist()
    assert [line["lr"] for line in steps] == [0.01] * 5 + [0.02] * 7
    assert [line["valid/loss"] for line in lines(folder / "metrics.jsonl") if "valid/loss" in line
            ] == trainer.history["valid/loss"].tolist()
    assert [entry.name for entry in Journal.load(folder / "journal.jsonl")] == ["lr"]
    assert Journal.load(folder / "journal.jsonl").header["end"]["state"] == "finished"
    config = json.loads((folder / "config.json").read_text())
    assert config["config"] == {"width": 8, "kind": 0.5}
    assert config["epochs"] == 3 and config["tunables"]["lr"] is None
    assert list((folder / "checkpoints").glob("step_*12.pt"))
    picture = ElementTree.parse(folder / "still.svg").getroot()
    assert "finished" in "".join(picture.itertext()).lower()
    assert "schedule" not in "".join(picture.itertext())


def test_the_picture_costs_a_script_no_widget(tmp_path):
    """It is written by what needs no notebook."""
    code = (f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
            f"from test_run_folder import make; make({str(tmp_path / 'run')!r}).fit(); "
            f"heavy = {{'ipywidgets', 'plotly', 'anywidget', 'pandas'}}; "
            f"sys.exit(bool(heavy & set(sys.modules)))")
    assert warm.run([sys.executable, "-c", code], timeout=600).returncode == 0
    assert (tmp_path / "run" / "still.svg").stat().st_size > 1000


def test_a_resumed_run_goes_on_in_its_files(tmp_path):
    """What was recorded after the checkpoint was lost:
    it is in the file once, as it was made again."""
    straight = make(None)
    straight.step(5)
    straight.tune(lr=0.02)
    straight.fit()
    first = make(tmp_path / "run", CheckpointHook(every_steps=4, every_epochs=None))
    first.step(5)
    first.tune(lr=0.03)
    first.step(2)
    first.get_hook(CheckpointHook).writer.wait()
    # as after a second; then the process dies at step 7
    first.records_of_run.folder.write(first.history)
    release(first)
    second = make(tmp_path / "run", CheckpointHook(every_steps=4, every_epochs=None))
    second.step(1)
    assert second.step_state.optimizer_step == 5 and second.workspace == tmp_path / "run"
    second.tune(lr=0.02)
    second.fit()
    assert points(second.history) == points(straight.history)
    assert all(torch.equal(a, b)
               for a, b in zip(straight.model.parameters(), second.model.parameters()))
    written = [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")
               if "train/loss" in line]
    assert written == list(range(1, 13))
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.void.jsonl")
            if "train/loss" in line] == [5, 6, 7]
    journal = lines(tmp_path / "run" / "journal.jsonl")[1:]
    assert [(line["step"], line.get("void", False)) for line in journal] == [(5, False), (5, True)]
    assert len(Journal.load(tmp_path / "run" / "journal.jsonl")) == 1


def test_a_finished_run_goes_on_in_its_folder(tmp_path):
    """By fit(epochs=larger): nothing of the shorter run is left over, and the settings say how long
    it is now, and how it began."""
    straight = make(tmp_path / "straight", CheckpointHook(), epochs=5)
    straight.fit()
    trainer = make(tmp_path / "run", CheckpointHook(), epochs=2)
    trainer.fit()
    trainer.tune(lr=0.02)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["epochs"] == 2
    trainer.fit(epochs=5)
    trainer.close(), straight.close()
    files = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
             for folder in (tmp_path / "run", tmp_path / "straight")]
    assert files[0] == files[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "straight"]
    assert [path.name
            for path in sorted(
                (tmp_path / "run" / "checkpoints").glob(
                    "*.pt"))] == [f"step_{step:08d}.pt" for step in (12, 16, 20)]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["epochs"], config["max_steps"], config["tunables"]["lr"]) == (5, None, None)
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")
            if "train/loss" in line] == list(range(1, 21))


def test_a_rewind_is_in_the_file(tmp_path):
    """A run that is resumed has the branches of the one before."""
    first = make(tmp_path / "run", CheckpointHook(every_steps=100, every_epochs=None),
                 SnapshotHook(every_steps=2))
    first.step(7)
    first.rewind(4)
    first.tune(lr=0.001)
    first.step(3)
    first.stop()
    first.close()
    second = make(tmp_path / "run", CheckpointHook())
    second.step(1)
    assert second.step_state.optimizer_step == 8
    assert second.history.steps("train/loss").tolist() == list(range(1, 9))
    first_branch, = second.history.branches
    assert (first_branch.number, first_branch.start, first_branch.end) == (0, 4, 7)
    assert first_branch.series[
        "train/loss"].values.tolist() == first.history.branches[
            0].series["train/loss"].values.tolist()
    assert second.rewind(7) == 7
    second.step(1)
    assert second.history.steps("train/loss").tolist() == list(range(1, 9))
    assert len(second.history.branches) == 2


def replayed(path):
    """The history that the lines of a file make."""
    found = History()
    read_records(found, path.read_bytes())
    return found


def fails_at(step):
    """A hook that raises before a step is made, as long as it is switched on."""
    def check(trainer):
        if trainer.training and trainer.step_state.optimizer_step == step:
            raise ArithmeticError("bad")
    return LambdaHook(name="bad", before_batch=check)


def test_errors_about_a_rewind_leave_each_record_once(tmp_path):
    """The second drive begins within an epoch, and fails before a second has passed."""
    bad = fails_at(7)
    trainer = make(tmp_path, CheckpointHook(every_steps=2), SnapshotHook(every_steps=2), bad)
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            trainer.fit()
        assert points(replayed(tmp_path / "metrics.jsonl")) == points(trainer.history)
        trainer.rewind(6)
    bad.enabled = False
    trainer.fit()
    assert trainer.history.steps("train/loss").tolist() == list(range(1, 13))
    assert points(replayed(tmp_path / "metrics.jsonl")) == points(trainer.history)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "finished"


def test_a_resumed_run_that_fails_at_once_goes_on_in_its_files(tmp_path):
    """Within an epoch, before its first step; then the same trainer goes on."""
    trainer = make(tmp_path, CheckpointHook(every_steps=2))
    trainer.step(6)
    release(trainer)
    bad = fails_at(6)
    again = make(tmp_path, CheckpointHook(every_steps=2), bad)
    with pytest.raises(ArithmeticError):
        again.fit()
    bad.enabled = False
    again.fit()
    assert again.history.steps("train/loss").tolist() == list(range(1, 13))
    assert points(replayed(tmp_path / "metrics.jsonl")) == points(again.history)
    again.close()
    last = make(tmp_path, CheckpointHook(every_steps=2))
    assert last.fit().status == "finished" and points(last.history) == points(again.history)


def test_two_runs_keep_apart(tmp_path, capsys):
    """A second run in one process, and in another, that does not resume:
    it says where it goes, and the first one keeps its files."""
    first = make(tmp_path / "run", epochs=1)
    first.fit()
    kept = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    second = make(tmp_path / "run", epochs=1)
    second.fit()
    assert second.workspace == tmp_path / "run-2"
    assert capsys.readouterr().out == (f"{tmp_path / 'run'} has the records of another run: this "
                                       f"one goes to {tmp_path / 'run-2'}\n")
    script = ("import sys; sys.path.insert(0, sys.argv[2]); from test_run_folder import make\n"
              "trainer = make(sys.argv[1], epochs=1); trainer.fit(); print(trainer.workspace)")
    there = warm.run([sys.executable, "-c", script, tmp_path / "run", Path(__file__).parent],
                     capture_output=True, text=True, check=True)
    assert there.stdout.splitlines()[-1] == str(tmp_path / "run-3")
    assert len(there.stdout.splitlines()) == 2
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == kept


def test_a_checkpoint_holds_the_place_in_the_file_and_not_the_records(tmp_path):
    trainer = make(tmp_path / "run", CheckpointHook())
    trainer.fit()
    state = trainer.state_dict()
    assert state["history"] == {"bytes": (tmp_path / "run" / "metrics.jsonl").stat().st_size,
                                "counts": trainer.history.counts()}
    other = make(None)
    with pytest.warns(UserWarning, match="workspace="):
        other.load_state_dict(state)
    assert other.step_state.optimizer_step == 12


def test_the_table_has_all_records_a_line_a_step(tmp_path):
    """Those of an evaluation in the line of its step; what was logged twice at a step twice."""
    def twice(trainer):
        if trainer.step_state.optimizer_step == 6:
            trainer.log({"extra": 1.0})
            trainer.log({"extra": float("nan")})
    trainer = make(tmp_path / "run", LambdaHook(after_step=twice), grad_clip=1.0)
    trainer.step(5)
    assert not (tmp_path / "run" / "metrics.csv").exists()  # nothing is done before the end
    trainer.fit()
    path = tmp_path / "run" / "metrics.csv"
    assert str(table(path)) == str(in_table(trainer.history))
    rows = list(csv.DictReader(open(path, newline="")))
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4, 5, 6, 6, *range(7, 13)]
    for row in rows:
        assert bool(row["valid/loss"]) == (row["step"] in ("4", "8", "12"))
        assert bool(row["grad_norm"]) == (row["extra"] != "nan")
    assert [float(row["epoch"]) for row in rows[:4]] == [0.25, 0.5, 0.75, 1.0]
    assert rows[3]["samples_seen"] == "32"
    assert float(rows[3]["seconds"]) == trainer.history.series("valid/loss").seconds[0]


def test_the_table_is_of_the_live_branch_also_when_a_run_is_resumed(tmp_path):
    """After a crash, a rewind and a stop; a reader of the old file has a whole one."""
    path = tmp_path / "run" / "metrics.csv"
    first = make(tmp_path / "run", CheckpointHook(every_steps=4, every_epochs=None))
    first.step(7)
    first.get_hook(CheckpointHook).writer.wait()
    first.records_of_run.folder.write(first.history)
    release(first)  # the process dies, and its locks with it
    second = make(tmp_path / "run", CheckpointHook(every_steps=100, every_epochs=None),
                  SnapshotHook(every_steps=2))
    second.step(4)
    second.stop()
    assert [step for step, _ in table(path)["train/loss"]] == list(range(1, 9))
    before, reader = path.read_text(), open(path)
    second.step(2)
    assert second.rewind(6) == 6
    second.tune(lr=0.001)
    second.step(2)
    second.stop()
    assert table(path) == in_table(second.history)
    assert [step for step, _ in table(path)["lr"]] == list(range(1, 9))
    assert reader.read() == before != path.read_text()
    second.fit()
    assert table(path) == in_table(second.history) and len(table(path)["lr"]) == 12
    assert not list((tmp_path / "run").glob(".*.new"))


@pytest.mark.parametrize("ends", ["finished", "stopped", "error"])
def test_the_result_is_in_a_file(ends, tmp_path):
    def end(trainer):
        if trainer.step_state.optimizer_step == 9 and ends == "stopped":
            trainer.stop()
        assert trainer.step_state.optimizer_step < 9 or ends != "error"
    trainer = make(tmp_path / "run", LambdaHook(after_step=end), best=("valid/loss", "min"))
    if ends == "error":
        with pytest.raises(AssertionError):
            trainer.fit()
    else:
        trainer.fit()
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    result = trainer.result()
    assert written["status"] == ends == str(result.status)
    assert written["steps"] == result.steps == (12 if ends == "finished" else 9)
    assert written["best"] == result.best
    assert written["best"]["value"] == min(trainer.history["valid/loss"])
    assert written["last"] == result.last and 0 < written["seconds"] <= trainer.elapsed()
