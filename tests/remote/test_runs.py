"""Several runs at once: what the table says, what the plot draws, what is not a run, and what a
stranger may have written."""

import gc
import json
import os
import shutil
import tracemalloc
import weakref

import numpy as np
import pytest
import torch
from feed_page import Page
from steered import until
from torch import nn
from written_runs import WrittenRun, trained

from trainer_nb import SnapshotHook, Trainer, attach
from trainer_nb.folder import control
from trainer_nb.folder.control import Lines
from trainer_nb.panel.bins import COLUMNS
from trainer_nb.remote import remote_run, remote_view
from trainer_nb.remote import runs as runs_module
from trainer_nb.remote.remote_run import RemoteRun
from trainer_nb.remote.remote_view import RecordReader
from trainer_nb.remote.runs import Runs, Table, folder_names

HOSTILE = "<img src=x onerror=alert(1)>|`*_[a](b)"


def evaluated(folder, steps=24, rate=0.05, **settings):
    """A run with an evaluation each epoch."""
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)),
                                       batch_size=8)
    trainer = Trainer(nn.Linear(3, 1), train_dl=data, valid_dl=data, loss_fn=nn.MSELoss(),
                      max_steps=steps, device="cpu", progress=False,
                      optim=lambda parameters: torch.optim.SGD(parameters, rate), workspace=folder,
                      seed=0,
                      metrics={"accuracy": lambda pred, target: (
                          (pred - target).abs() < 0.5).float().mean()}, **settings)
    trainer.step(8)
    return trainer


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Runs are read twenty times a second, not twice."""
    monkeypatch.setattr(remote_run.follow, "__defaults__", (0.05,))


def reads(runs, times=2):
    """Wait until the threads of some runs have read their files that often again."""
    for run in runs:
        looks, refresh = [], type(run).refresh
        run.refresh = lambda: (refresh(run), looks.append(1))
        until(lambda: len(looks) >= times)
        del run.refresh


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three runs that have ended: another rate each, one of them tuned by hand, one rewound."""
    folder, trainers = tmp_path_factory.mktemp("three"), {}
    for name, rate in (("low", 0.01), ("middle", 0.05), ("tuned", 0.01)):
        trainer = trainers[name] = evaluated(folder / name, rate=rate,
                                             hooks=[SnapshotHook(every_steps=8)])
        if name == "tuned":
            trainer.tune(lr=0.1)
        if name == "middle":
            trainer.step(10)
            trainer.rewind(8)
        trainer.fit()
        trainer.close()
    return folder, trainers


@pytest.fixture
def three(made, tmp_path):
    """The same, in a folder that a test may change."""
    for path in made[0].iterdir():
        shutil.copytree(path, tmp_path / path.name)
    return tmp_path, made[1]


@pytest.fixture
def runs(three):
    """The same, attached."""
    found = attach(three[0] / "*")
    yield found
    found.close()


def page_of(runs):
    """A page that shows the panel of several runs, or of one with others behind."""
    return Page(runs.plots.feed).hello()


def lines_of(page, record="train/loss"):
    """Name to the rows of a record of each run, as a page has it."""
    found = {page.view["run"]["name"]: page.curves.get(record)}
    found |= {each["name"]: page.curves.get(f"{record}#{number}")
              for number, each in page.view["drawn"]["runs"].items()}
    return {name: each[1] for name, each in found.items() if each is not None}


def means(rows):
    """The values of a record whose bins hold one point each."""
    return rows[:, COLUMNS.index("mean")]


# The object


def test_a_pattern_gives_runs_by_number_and_by_name(three, runs):
    assert isinstance(runs, Runs)
    assert len(runs) == 3 and [run.path.name for run in runs] == ["low", "middle", "tuned"]
    assert runs["middle"] is runs[1] is attach(three[0] / "middle")
    assert isinstance(runs[0], RemoteRun)
    assert [run.path.name for run in runs[1:]] == ["middle", "tuned"] and runs[-1] in runs
    with pytest.raises(KeyError, match="did you mean .*middle"):
        runs["midle"]
    with pytest.raises(IndexError):
        runs[3]


def test_a_list_of_folders_is_as_good_as_a_pattern(three):
    found = attach([three[0] / "tuned", three[0] / "low"])
    assert [run.path.name for run in found] == ["tuned", "low"]
    found.close()


def test_a_name_is_a_persons_and_finds_the_run(runs):
    page = page_of(runs).open("runs")
    runs.names["low"] = " a low rate "
    runs.names["middle"] = "the middle"
    assert runs.names == {"low": "a low rate", "middle": "the middle", "tuned": "tuned"}
    assert runs["a low rate"] is runs["low"] is runs[0]
    assert [each["name"] for each in page.view["runs"]["rows"].values()] == [
        "a low rate", "the middle", "tuned"]
    assert [each["name"] for each in page.view["drawn"]["runs"].values()] == [
        "the middle", "tuned"]
    assert runs.table.rows[0]["name"] == "a low rate"
    for wrong in ("", "  ", "x" * 61, "two\nlines", "\x1b[31m", 7, None, "the middle", "tuned"):
        with pytest.raises(ValueError, match="name"):
            runs.names["low"] = wrong
    with pytest.raises(KeyError, match="did you mean .*low"):
        runs.names["loww"] = "other"
    assert list(runs.names.values()) == ["a low rate", "the middle", "tuned"]


def test_equal_folder_names_are_told_apart_by_their_parents(tmp_path):
    assert folder_names([tmp_path / "a/run", tmp_path / "b/run"]) == ["a/run", "b/run"]
    assert folder_names([tmp_path / "a"]) == ["a"] and folder_names([]) == []


# What matches and is not a run


def test_what_is_no_run_is_named_once(three):
    (three[0] / "notes.txt").touch()
    (three[0] / "empty").mkdir()
    (three[0] / "strange" / "control").mkdir(parents=True)
    with pytest.warns(UserWarning) as told:
        found = attach(three[0] / "*")
    assert len(told) == 1 and len(found) == 3 and told[0].filename == __file__
    text = str(told[0].message)
    assert all(name in text for name in ("notes.txt", "empty", "strange")) and "middle" not in text
    assert [os.path.basename(path) for path in found.left_out] == ["empty", "notes.txt", "strange"]
    found.close()


def test_a_pattern_without_any_run_is_an_error(tmp_path):
    (tmp_path / "notes").mkdir()
    with pytest.raises(ValueError, match="no folder of a run"):
        attach(tmp_path / "*")
    with pytest.raises(ValueError, match="no folder of a run"):
        attach([])


def test_a_pattern_with_too_many_runs_is_refused_and_reads_none(tmp_path, monkeypatch):
    for number in range(runs_module.MOST_RUNS + 1):
        (tmp_path / f"run{number}" / "control").mkdir(parents=True)
    monkeypatch.setattr(runs_module, "attach_one", lambda *given: pytest.fail("it was read"))
    with pytest.raises(ValueError, match="51 runs, and at most 50 .* narrower"):
        attach(tmp_path / "*")


# The table


def test_the_table_has_last_and_best_values_of_the_live_branch(three, runs):
    for row, (name, trainer) in zip(runs.table.rows, three[1].items()):
        history = trainer.history
        assert row["name"] == name and row["standing"] == "ended"
        assert row["steps"] == trainer.step_state.optimizer_step == 24
        assert row["final"] == {key: history[key][-1]
                                for key in ("train/loss", "valid/loss", "valid/accuracy")}
        losses, accuracy = history["valid/loss"], history["valid/accuracy"]
        assert row["best"]["valid/loss"] == {"value": losses.min(),
                                             "step": history.steps("valid/loss")[losses.argmin()]}
        assert row["best"]["valid/accuracy"] == {"value": accuracy.max(),
                                                 "step": history.steps(
                                                     "valid/accuracy")[accuracy.argmax()]}
    json.dumps(runs.table.rows)  # plain data


def test_the_table_says_what_differs_and_not_what_is_common(runs):
    rows = {row["name"]: row for row in runs.table.rows}
    assert [rows[name]["differs"]["given.lr"] for name in rows] == [0.01, 0.05, 0.01]
    assert rows["tuned"]["differs"]["lr"] == "none → 0.1" and rows["low"]["differs"]["lr"] == "none"
    assert "given.optimizer" not in rows["low"]["differs"] and rows["low"]["journal"] == []
    assert len(rows["tuned"]["journal"]) == 1 and "lr" in rows["tuned"]["journal"][0]


def test_what_is_in_every_journal_is_no_difference(tmp_path):
    for name in ("a", "b"):
        trainer = evaluated(tmp_path / name)
        trainer.tune(lr=0.1)
        trainer.fit()
        trainer.close()
    found = attach(tmp_path / "*")
    assert [row["journal"] for row in found.table.rows] == [[], []] and "by hand" not in repr(found)
    found.close()


def test_new_points_are_in_the_table_and_a_rewind_takes_a_best_value_back(tmp_path):
    written = WrittenRun(tmp_path)
    found = attach(tmp_path / "*")
    line = {"epoch": 9.0, "samples_seen": 9, "seconds": 9.0}
    def add(*lines):
        with open(written.path / "metrics.jsonl", "a") as file:
            file.writelines(json.dumps(each) + "\n" for each in lines)
        found[0].refresh()
        return found.table.rows[0]
    row = add({"step": 25, "valid/loss": 0.5, **line},
              {"step": 26, "valid/loss": float("nan"), **line},
              {"step": 27, "valid/loss": 0.25, **line})
    assert row["standing"] == "running" and row["best"]["valid/loss"] == {"value": 0.25, "step": 27}
    counts = {name: len(found[0].history[name])
              for name in found[0].history.names} | {"valid/loss": 1}
    row = add({"rewind": {"counts": counts, "number": 1, "start": 25, "end": 27}},
              {"step": 26, "valid/loss": 0.75, **line})
    assert row["final"]["valid/loss"] == 0.75
    assert row["best"]["valid/loss"] == {"value": 0.5, "step": 25}
    found.close()


def hostile(folder):
    """A run whose files a stranger has written."""
    written = WrittenRun(folder)
    settings = json.loads((written.path / "config.json").read_text())
    settings |= {"model": HOSTILE, HOSTILE: "<b>",
                 "tunables": {HOSTILE: HOSTILE, "deep": {"x": ["<b>"] * 1000}}}
    (written.path / "config.json").write_text(json.dumps(settings))
    entry = {"step": 3, "kind": "note", "name": HOSTILE, "new": HOSTILE, "source": "<b>",
             "number": 1, "time": "", "by": HOSTILE, "reason": "\x1b[31m"}
    with open(written.path / "journal.jsonl", "a") as file:
        file.write(json.dumps(entry) + "\n")
    with open(written.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 25, "epoch": 1.0, "samples_seen": 9, "seconds": 9.0,
                               f"valid/{HOSTILE}": 1.0, f"x{HOSTILE}": 2.0}) + "\n")
    os.rename(written.path, folder / "<b>a&b")
    return folder / "<b>a&b"


def test_no_text_of_a_stranger_is_html(tmp_path):
    hostile(tmp_path)
    trained(tmp_path / "plain").close()
    found = attach(tmp_path / "*")
    found.names["plain"] = "<i>mine</i>"
    table = found.table
    page, text = table._repr_html_(), repr(table)
    for tag in ("<img", "<b>", "<i>"):
        assert tag not in page
    assert "&lt;img" in page
    assert "\x1b" not in page + text
    assert len(text.splitlines()) == 3 + bool(table.left_out())
    assert not any(tag in found.dashboard.picture.draw()[0]
                   for tag in ("<img src=x", "<i>", "<b>"))
    found.close()


@pytest.mark.parametrize("name", ["config.json", "journal.jsonl", "result.json"])
def test_a_file_that_cannot_be_read_leaves_its_columns_empty(three, tmp_path, name):
    path = three[0] / "low" / name
    path.unlink()
    path.symlink_to(three[0] / "tuned" / name)  # of a stranger
    found = attach(three[0] / "*")
    rows = found.table.rows
    assert rows[0]["differs"] == {}
    assert rows[0]["journal"] == [] and rows[0]["final"] and rows[2]["journal"]
    found.close()


def test_a_table_of_many_columns_is_cut_and_says_so():
    row = {"name": "a", "folder": "a", "standing": "ended", "steps": 1, "seconds": 1.0, "best": {},
           "journal": [f"step {n}" for n in range(9)],
           "final": {f"valid/m{n}": 0.5 for n in range(40)},
           "differs": {f"s{n}": "v" * 500 for n in range(40)}}
    table = Table([row])
    heads, rows = table.cells()
    assert len(heads) == len(rows[0]) == 4 + 12 + 12 + 1
    assert "28 metrics and 28 settings more" in repr(table)
    assert max(map(len, rows[0])) < 120
    assert "and 4 more" in table._repr_html_() and "28 metrics" in table._repr_html_()


# The panel


def test_the_panel_has_the_curves_and_the_rows_of_all_runs(three, runs):
    page = page_of(runs).open("runs")
    assert runs.plots is runs.plots is runs.dashboard and runs.plots.part == "runs"
    for record in ("train/loss", "valid/accuracy"):
        own, *others = lines_of(page, record).values()
        for rows, trainer in zip((own, *others), three[1].values(), strict=True):
            np.testing.assert_allclose(means(rows), trainer.history[record], rtol=1e-6)
            assert rows[-1, 0] == 24
    found = page.view["runs"]["rows"]
    assert [each["name"] for each in found.values()] == ["low", "middle", "tuned"]
    for row, trainer in zip(found.values(), three[1].values()):
        losses = trainer.history["valid/loss"]
        assert row["steps"] == 24 and row["values"]["valid/loss"]["best"] == pytest.approx(
            losses.min(), rel=1e-5)


def test_a_branch_that_was_rewound_is_there_whole(three, runs):
    page = page_of(runs)
    [name] = [name for name in page.curves if name.startswith("valid/loss\n")]
    branch = three[1]["middle"].history.branches[0].series["valid/loss"]
    np.testing.assert_allclose(means(page.curves[name][1]), branch.values, rtol=1e-6)
    assert name.partition("#")[2] in page.view["drawn"]["runs"]


def test_a_run_is_hidden_and_shown_again(runs):
    page = page_of(runs).open("runs")
    number = next(number for number, each in page.view["drawn"]["runs"].items()
                  if each["name"] == "middle")
    page.own.hear({"ask": "run", "id": "1", "do": "hide", "number": int(number)})
    assert list(lines_of(page)) == [page.view["run"]["name"], "tuned"]
    assert not any(name.endswith(f"#{number}") for name in page.curves)
    page.own.hear({"ask": "run", "id": "2", "do": "show", "number": int(number)})
    assert len(lines_of(page)) == 3 and len(lines_of(page)["middle"]) == 24


def test_a_running_run_grows_by_itself_and_one_that_ended_is_not_read_again(
        three, tmp_path, monkeypatch):
    written = WrittenRun(three[0])
    found = attach(three[0] / "*")
    page = page_of(found)
    last = lambda: (lines_of(page).get("exp1") if "exp1" in lines_of(page)
                    else page.curves["train/loss"][1])[-1, 0]
    assert last() == 24
    reads(found)  # what ended is read once more
    read, lines = [], Lines.read
    monkeypatch.setattr(Lines, "read",
                        lambda self, most=-1: (
                            self.path.is_relative_to(three[0])  # else of another test's run
                            and read.append(self.path.relative_to(three[0]).parts[0]),
                            lines(self, most))[1])
    with open(written.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 25, "epoch": 3.1, "samples_seen": 200, "seconds": 9.0,
                               "train/loss": 1.0}) + "\n")
    until(lambda: last() == 25)
    reads(found)
    assert set(read) == {"exp1"}
    found.close()


def test_a_run_that_disappears_keeps_its_curve(three, runs):
    page, before = page_of(runs), len(runs["low"].history)
    shutil.rmtree(three[0] / "low")
    reads([runs["low"]])
    row = runs.table.rows[0]
    assert row["standing"] == "removed"
    assert row["final"]["valid/loss"] and len(runs["low"].history) == before
    assert len(page.curves["train/loss"][1]) == 24


def test_what_is_shown_is_held_and_what_is_closed_is_freed(three):
    found = attach(three[0] / "*")
    gone = weakref.ref(found)
    plots = found.plots
    del found
    assert gone() is not None and gone().plots is plots
    gone().close()
    del plots
    until(lambda: gc.collect() is not None and gone() is None)


# Behind a run of this kernel


def test_other_runs_stand_behind_a_live_one_and_can_be_taken_away(three, tmp_path):
    trainer = trained(tmp_path / "live", steps=8)
    plots, page = trainer.plots, page_of(trainer)
    assert plots.add_run(attach(three[0] / "low")) == ["low"]
    assert plots.add_run(attach(three[0] / "tuned"), name="by <b>hand") == ["by <b>hand"]
    assert {"low", "by <b>hand"} <= set(lines_of(page))
    assert lines_of(page)["low"][-1, 0] == 24
    assert set(lines_of(page, "valid/accuracy")) == {"low", "by <b>hand"}  # this run has none
    plots.remove_run("low")
    assert "low" not in lines_of(page)
    with pytest.raises(KeyError, match="by <b>hand"):
        plots.remove_run("low")
    plots.remove_run("by <b>hand")
    assert len(lines_of(page)) == 1
    trainer.close()


def test_a_pattern_or_a_trainer_is_added_and_the_run_itself_is_not(three, tmp_path):
    trainer, other = trained(tmp_path / "live", steps=8), trained(tmp_path / "other", steps=8)
    runs = attach(three[0] / "[lmt]*w*")
    runs.names["low"] = "slow"
    assert trainer.plots.add_run(runs) == ["slow"] and trainer.plots.add_run(runs) == []
    assert trainer.plots.add_run(other, name="other") == ["other"]
    assert trainer.plots.add_run(trainer) == []
    with pytest.raises(ValueError, match="another run has it"):
        trainer.plots.add_run(trained(tmp_path / "third", steps=8), name="other")
    with pytest.raises(TypeError, match=r"is not a run: .* add_run\(attach\("):
        trainer.plots.add_run(7)
    trainer.plots.remove_run("slow")
    assert trainer.plots.add_run(str(three[0] / "low"), name="by path") == ["by path"]
    assert trainer.plots.add_run(runs) == []
    assert trainer.plots.add_run(runs["low"], name="again") == []
    with pytest.raises(ValueError, match="no folder"):
        trainer.plots.add_run(str(three[0] / "nothing*"))
    runs.close()
    trainer.close()
    other.close()


# Long files


PLACE = {"epoch": 0.0, "samples_seen": 0, "seconds": 0.0}


def write_steps(path, steps, **others):
    """Records of these steps, the value of `lr` is the step."""
    with open(path / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps({"step": step, **PLACE, "lr": float(step), **others}) + "\n"
                        for step in steps)


@pytest.fixture
def small_bounds(monkeypatch):
    """What a file of 200 MB meets, for one of two: 500 points of a name, 16 kB at once."""
    monkeypatch.setattr(remote_view, "MOST_POINTS", 500)
    monkeypatch.setattr(control, "CHUNK", 1 << 14)


def test_a_long_file_is_thinned_evenly_while_it_is_read(tmp_path, small_bounds):
    reader = RecordReader(tmp_path)
    write_steps(tmp_path, range(1, 10_001))
    reader.read()
    kept = reader.history["lr"]
    assert 250 <= len(kept) <= 500
    assert kept[0] == 1 and set(np.diff(kept)) == {32.0} and kept[-1] > 10_000 - 32
    write_steps(tmp_path, range(10_001, 12_001))
    version = reader.history.version
    reader.read()
    assert set(np.diff(reader.history["lr"])) == {32.0}
    assert len(reader.history["lr"]) == 375 and reader.history.version == version
    assert (reader.history.steps("lr") == reader.history["lr"]).all()


def test_a_rewind_in_a_thinned_file_cuts_at_the_right_place(tmp_path, small_bounds):
    reader, count = RecordReader(tmp_path), 3000
    write_steps(tmp_path, range(1, count + 1))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"rewind": {"counts": {"lr": 1001}, "number": 1, "start": 1001,
                                          "end": count}}) + "\n")
    write_steps(tmp_path, range(1002, 1100))
    reader.read()
    live, branch = reader.history["lr"], reader.history.branches[0].series["lr"].values
    assert set(np.diff(live)) == {8.0} and live[-1] == 1097
    assert branch[0] == 1009 and branch[-1] == 2993 and set(np.diff(branch)) == {8.0}


def test_many_branches_together_stay_small_and_have_their_last_points(tmp_path, small_bounds):
    reader = RecordReader(tmp_path)
    for number in range(1, 60):
        write_steps(tmp_path, range(1, 101))
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"rewind": {"counts": {}, "number": number, "start": 0,
                                              "end": 100}}) + "\n")
    reader.read()
    sizes = [len(branch.series["lr"]) for branch in reader.history.branches if branch.series]
    assert sum(sizes) <= 500
    assert reader.history.branches[-1].number == 59 and len(reader.history) == 0
    assert reader.history.branches[-1].series["lr"].values[-1] >= 97


def test_memory_stays_flat_however_long_the_file_is(tmp_path, small_bounds):
    """The least of three readings: what other threads take meanwhile counts, too."""
    def peak(folder):
        reader = RecordReader(folder)
        tracemalloc.start()
        reader.read()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peaks = []
    for size in (3_000, 12_000):
        folder = tmp_path / str(size)
        folder.mkdir()
        write_steps(folder, range(size))
        peaks.append(min(peak(folder) for _ in range(3)))
    assert peaks[1] < 1.2 * peaks[0] < 2_000_000, peaks


def test_names_are_bounded_and_a_line_that_is_too_long_is_passed_over(
        tmp_path, small_bounds, monkeypatch):
    monkeypatch.setattr(remote_view, "MOST_NAMES", 20)
    reader = RecordReader(tmp_path)
    write_steps(tmp_path, [1])
    write_steps(tmp_path, [2], **{f"n{number}": 1.0 for number in range(100)})
    write_steps(tmp_path, [3], **{"x" * 40_000: 1.0})
    write_steps(tmp_path, [4])
    reader.read()
    assert len(reader.history.names) == 20 and reader.history["lr"].tolist() == [1, 2, 4]


def test_a_line_that_is_being_written_is_waited_for(tmp_path, small_bounds):
    reader = RecordReader(tmp_path)
    write_steps(tmp_path, [1, 2])
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(whole[:-20])
    reader.read()
    assert reader.history["lr"].tolist() == [1]
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(whole[-20:])
    reader.read()
    assert reader.history["lr"].tolist() == [1, 2]
