"""Checkpoints whose tensors lie in a folder beside them: what is not whole is refused."""

import os
import pickle
import warnings

import pytest
import torch
from torch.distributed.checkpoint.planner_helpers import _create_write_item_for_tensor

from trainer_nb import CheckpointError
from trainer_nb.core.engine import read_checkpoint
from trainer_nb.hooks.checkpoint import CheckpointFolder, Kept, KeepRules
from trainer_nb.support.saved import (TABLE, ColumnSums, names_shards, read_state, shards_of,
                                      write_state)
from trainer_nb.support.shards import StagedShards, Turns, fill_shards

WEIGHT = torch.arange(6.).view(2, 3)
LINE = Turns()


class Part:
    """A tensor of which one process has everything."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __create_write_items__(self, name, part):
        return [_create_write_item_for_tensor(name, self.tensor)]


class Runs:
    """Something that writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def staged(weight=WEIGHT):
    """A checkpoint of one tensor and a number, still to be written."""
    state = {"model": {"weight": None, "steps": torch.tensor(3)}}
    return StagedShards(state, {("model", "weight"): (Part(weight), weight)},
                        os.urandom(16).hex(), None, True, LINE.take())


def save(path, weight=WEIGHT):
    """Write one; PyTorch says that it is one process that does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        staged(weight).write(path, lambda state: write_state(state, path))
    return next(shards_of(path).iterdir())


def table_of(path):
    """Where the tensors lie."""
    return read_state(path)[TABLE]


def test_a_later_checkpoint_replaces_an_earlier_one_and_its_tensors(tmp_path):
    """Also one with whole tensors, of another run."""
    path = tmp_path / "run.pt"
    first = save(path)
    second = save(path, 2 * WEIGHT)
    assert first != second and not first.exists() and names_shards(path, second.name)
    found = read_checkpoint(path)
    assert torch.equal(found["model"]["weight"], 2 * WEIGHT) and int(found["model"]["steps"]) == 3
    assert TABLE not in found
    write_state({"model": {}}, path)
    assert [each.name for each in tmp_path.iterdir()] == ["run.pt"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_fails_leaves_the_earlier_checkpoint(tmp_path, when):
    """And nothing of its own; what fails when the file is in its place leaves what that names."""
    path = tmp_path / "run.pt"
    first = save(path)
    def fails(state):
        if when == "after":
            write_state(state, path)
        raise OSError("no room")
    with warnings.catch_warnings(), pytest.raises(OSError, match="no room") as caught:
        warnings.simplefilter("ignore")
        staged(2 * WEIGHT).write(path, fails)
    assert caught.value.__notes__ == ["in process 0"]
    assert len(list(shards_of(path).iterdir())) == 1
    assert first.exists() == (when == "before")
    factor = 1 if when == "before" else 2
    assert torch.equal(read_checkpoint(path)["model"]["weight"], factor * WEIGHT)


def test_keys_with_dots_are_told_apart(tmp_path):
    """Though PyTorch's names of the two are the same."""
    path = tmp_path / "run.pt"
    parts = {("optim", "a", "b.c"): WEIGHT, ("optim", "a.b", "c"): -WEIGHT}
    state = {"model": {}, "optim": {"a": {"b.c": None}, "a.b": {"c": None}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        StagedShards(state, {key: (Part(each), each) for key, each in parts.items()}, "a" * 32,
                     None, True, LINE.take()).write(path, lambda state: write_state(state, path))
    found = read_checkpoint(path)["optim"]
    assert torch.equal(found["a"]["b.c"], WEIGHT) and torch.equal(found["a.b"]["c"], -WEIGHT)


def put(name, value):
    """A change of the first tensor's entry, or of that of its only part."""
    def change(table):
        tensor = table["tensors"][0]
        (tensor if name in tensor else tensor["chunks"][0])[name] = value
    return change


CHANGES = {
    "a folder elsewhere": (lambda table: table.update(id=".."), "not a folder of shards"),
    "a longer path": (lambda table: table.update(id="a" * 32 + "/b"), "not a folder of shards"),
    "a file elsewhere": (lambda table: table.update(files={"../../run.pt": [1, ""]}),
                         "not a file of shards"),
    "a device": (lambda table: table.update(files={"/dev/zero": [1, ""]}), "not a file of shards"),
    "another digest": (lambda table: table["files"].update({"__0_0.distcp": [
        table["files"]["__0_0.distcp"][0], "0" * 32]}), "check sum"),
    "too large": (put("size", [2, 3_000_000_000]), "are missing"),
    "larger than its file": (put("length", 10**9), "lies elsewhere"),
    "behind its file": (put("at", 10**9), "lies elsewhere"),
    "before its file": (put("at", -1), "lies elsewhere"),
    "a part outside": (put("offsets", [1, 0]), "lies elsewhere"),
    "a place that is taken": (put("path", ["model", "steps"]), "not the place"),
    "a place elsewhere": (put("path", ["position", "weight"]), "cannot be loaded"),
    "no place": (put("path", []), "cannot be loaded"),
    "no such file": (put("file", "__9_0.distcp"), "cannot be loaded"),
    "no tensors": (lambda table: table.pop("tensors"), "damaged"),
    "not a table": (lambda table: table.update(tensors=3), "damaged")}


@pytest.mark.parametrize("name", CHANGES)
def test_a_list_that_lies_is_refused(tmp_path, name):
    """It leads nowhere else, and no memory is taken for what is not there."""
    path = tmp_path / "run.pt"
    save(path)
    state = read_state(path)
    change, text = CHANGES[name]
    change(state[TABLE])
    with pytest.raises(CheckpointError, match=text):
        fill_shards(state, path)


@pytest.mark.parametrize("how", ["cut off", "flipped", "gone", "a link", "a linked folder",
                                 "all gone"])
def test_a_folder_that_is_not_what_it_was(tmp_path, how):
    """Is refused, and no link is followed."""
    path = tmp_path / "run.pt"
    folder = save(path)
    file = folder / "__0_0.distcp"
    content = file.read_bytes()
    if how == "cut off":
        file.write_bytes(content[:-1])
    elif how == "flipped":
        file.write_bytes(content[:-200] + bytes([content[-200] ^ 1]) + content[-199:])
    elif how == "gone":
        file.unlink()
    elif how == "a link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif how == "a linked folder":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.parent.rename(tmp_path / "elsewhere")
    match = "check sum" if how == "flipped" else "copy, move and rename the file and the folder"
    with pytest.raises(CheckpointError, match=match):
        read_checkpoint(path)


def test_nothing_in_the_folder_runs_code(tmp_path):
    """Not PyTorch's own list, which is a pickle and is not read; and not a part, even if its
    checksum is right."""
    path, made = tmp_path / "run.pt", tmp_path / "made"
    folder = save(path)
    (folder / ".metadata").write_bytes(pickle.dumps(Runs(made)))
    read_checkpoint(path)
    assert not made.exists()
    with open(folder / "__0_0.distcp", "wb") as file:
        torch.save(Runs(made), file)
    state, data = read_state(path), (folder / "__0_0.distcp").read_bytes()
    sums = ColumnSums()
    sums.update(data)
    state[TABLE]["files"]["__0_0.distcp"] = [len(data), sums.hexdigest()]
    state[TABLE]["tensors"][0]["chunks"][0]["length"] = len(data)
    with pytest.raises(CheckpointError, match="weights_only|Weights only"):
        fill_shards(state, path)
    assert not made.exists()


def test_the_rules_of_a_folder_hold_for_what_lies_beside_its_files(tmp_path):
    """A file goes with its tensors; what a crash left goes, and others' files stay."""
    folder = CheckpointFolder(tmp_path, KeepRules(last=2))
    left = tmp_path / "step_00000001.pt.shards" / ("a" * 32)
    left.mkdir(parents=True)
    other = tmp_path / "mine.shards"
    other.mkdir()
    for step in range(2, 6):
        path = tmp_path / f"step_0000000{step}.pt"
        entry = Kept(path.name, step, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            staged(step * WEIGHT).write(path, lambda state: folder.add(state, entry))
    names = [f"step_0000000{step}.pt{end}" for step in (4, 5) for end in ("", ".shards")]
    found = sorted(each.name for each in tmp_path.iterdir())
    assert found == ["checkpoints.json", "mine.shards", *names]
    assert [int(state["model"]["weight"][0, 1]) for _, state in folder.readable()] == [5, 4]
    shards_of(tmp_path / "step_00000005.pt").rename(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="the one before is tried"):
        entry, _ = next(folder.readable())
    assert entry.step == 4
