"""What a file may replace, what a killed process leaves, and that no file of the user's is
touched."""

import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer_nb import CheckpointHook, ImageFileHook, Journal, Trainer
from trainer_nb.support import files
from trainer_nb.support.files import is_left_over, whole_file
from trainer_nb.support.saved import read_state, write_state, write_whole


def make(*hooks, **settings):
    """Eight steps."""
    torch.manual_seed(0)
    inputs = torch.randn(32, 3)
    model = torch.nn.Linear(3, 1)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :1])
    return Trainer(model, train_dl=torch.utils.data.DataLoader(data, 8), loss_fn=torch.nn.MSELoss(),
                   epochs=2, seed=1, hooks=list(hooks),
                   optim=torch.optim.SGD(model.parameters(), 0.1), device="cpu", progress=False,
                   **settings)


MARK = "0123456789abcdef.trainer_nb.new"


def dead_process():
    """The number of a process that is over."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.slow
def test_only_marked_files_of_processes_that_are_gone_are_removed(tmp_path):
    """The user's stay, whatever they are called; so do those of a process that is alive."""
    dead, alive = dead_process(), os.getppid()
    users = [".settings.new", ".bashrc.12345678.new", f".run.pt.{dead}.new",
             f".run.{dead}.trainer_nb.new", f"run.{dead}.{MARK}",
             f".run.x{dead}.{MARK}", f".run.99999999999999999999.{MARK}", f".run.{alive}.{MARK}"]
    for name in users:
        (tmp_path / name).write_text("kept")
    (tmp_path / f".link.{dead}.{MARK}").symlink_to(tmp_path / ".settings.new")
    (tmp_path / f".folder.{dead}.{MARK}").mkdir()
    left = [f".step_00000001.pt.{dead}.{MARK}", f".checkpoints.json.{os.getpid()}.{MARK}"]
    for name in left:
        (tmp_path / name).write_text("half")
    with make(CheckpointHook(tmp_path)) as trainer:
        trainer.fit()
    there = set(os.listdir(tmp_path))
    assert there.isdisjoint(left)
    assert there >= {*users, f".link.{dead}.{MARK}", f".folder.{dead}.{MARK}"}


def test_a_file_that_is_being_written_is_not_left_over(tmp_path):
    """Two trainers of one process in a folder; the name is another one each time."""
    names = set()
    for _ in range(3):
        with whole_file(tmp_path / ("n" * 250)) as file:
            file.write(b"half")
            beside = tmp_path / file.name
            assert not is_left_over(beside)
            names.add(beside.name)
    assert len(names) == 3
    assert all(re.fullmatch(rf"\.n+\.{os.getpid()}\.[0-9a-f]{{16}}\.trainer_nb\.new", name)
               for name in names)
    assert os.listdir(tmp_path) == ["n" * 250] and not files._WRITING
    beside.write_text("given up")
    assert is_left_over(beside)


def test_a_new_file_follows_no_link(tmp_path, monkeypatch):
    """What is there under the new file's name is not written through."""
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "0123456789abcdef")
    (tmp_path / "other").write_text("kept")
    (tmp_path / f".run.{os.getpid()}.{MARK}").symlink_to(tmp_path / "other")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "run", lambda file: file.write(b"new"))
    assert (tmp_path / "other").read_text() == "kept"


def put(kind, path):
    """Something that is not a plain file."""
    if kind == "a device":
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            path.symlink_to(os.devnull)
    elif kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


@pytest.mark.parametrize("kind", ["a device", "a FIFO", "a socket", "a folder"])
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "a link to it"])
def test_what_is_no_plain_file_is_not_replaced(kind, linked, tmp_path, monkeypatch):
    """save(), a journal's save() and export() name it, before anything has changed."""
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)  # a socket has a short name
    trainer = make()
    trainer.step(1)
    for name, save in {"run.pt": trainer.save, "journal.jsonl": trainer.journal.save,
                       "weights.safetensors": trainer.export,
                       "weights.json": lambda path: trainer.export(
                               path.with_suffix(".safetensors"))}.items():
        place = tmp_path / name
        put(kind, tmp_path / "thing" if linked else place)
        if linked:
            place.symlink_to("thing")
        before = {each: os.lstat(each).st_ino for each in os.listdir()}
        with pytest.raises(ValueError, match=rf"{re.escape(place.name)}.*that is {kind}"):
            save(place)
        assert {each: os.lstat(each).st_ino for each in os.listdir()} == before
        with pytest.raises(OSError, match=f"that is {kind}"):
            write_state({}, place)
        assert {each: os.lstat(each).st_ino for each in os.listdir()} == before
        for each in before:
            shutil.rmtree(
                each) if os.path.isdir(each) and not os.path.islink(each) else os.unlink(each)
    assert [entry.kind for entry in trainer.journal] == []
    trainer.close()


def test_the_file_behind_a_link_is_written(tmp_path):
    """The link stays; also one that leads to nothing yet."""
    (tmp_path / "far").mkdir()
    trainer = make()
    trainer.step(1)
    for number, there in enumerate((True, False)):
        target, link = tmp_path / "far" / f"run{number}", tmp_path / f"link{number}"
        if there:
            target.write_text("old")
        link.symlink_to(f"far/run{number}")
        trainer.save(link)
        assert link.is_symlink() and read_state(target)["position"]["optimizer_step"] == 1
        trainer.journal.save(link)
        assert link.is_symlink()
        assert [entry.kind for entry in Journal.load(target)] == ["save"] * (number + 1)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="round"):
        trainer.save(tmp_path / "round")
    assert sorted(os.listdir(tmp_path / "far")) == ["run0", "run1"]
    assert (tmp_path / "round").is_symlink()
    trainer.close()


def test_a_journal_leaves_what_is_beside_it(tmp_path):
    """Its new file has a name of its own."""
    (tmp_path / "journal.jsonl.new").write_text("the user's")
    make().journal.save(tmp_path / "journal.jsonl")
    assert sorted(os.listdir(tmp_path)) == ["journal.jsonl", "journal.jsonl.new"]
    assert (tmp_path / "journal.jsonl.new").read_text() == "the user's"


def test_each_name_of_an_image_has_a_file_of_its_own(tmp_path):
    """Also where the system takes capitals and small letters for the same."""
    names = ["a b", "a_b", "a<b", "a%20b", "é/x", "e\u0301/x", "a//b", "a/_/b", "a/b", "A/b", "a/B",
             ".a", "_a", "a.", "a", "A", "../a", "%"]
    trainer = make(ImageFileHook(tmp_path))
    trainer.step(1)
    for _ in range(2):  # the same name has the same file
        trainer.log_images({name: np.full((4, 4), number, np.uint8)
                            for number, name in enumerate(names)})
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png")]
    assert len({path.casefold() for path in found}) == len(found) == len(names)
    assert {"a_b/step_00000001.png", "a/b/step_00000001.png", "é/x/step_00000001.png",
            "a%20b/step_00000001.png"} <= set(found)
    assert list(tmp_path.parent.glob("a*")) == []
    trainer.close()


@pytest.mark.skipif(not hasattr(os, "O_PATH") or os.geteuid() != 0, reason="becomes another user")
def test_a_folder_that_may_not_be_read_is_written_to():
    """As a drop box: entries are made in it, and not listed."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o333)
        code = ("import os, sys; from trainer_nb.support.files import whole_file; "
                "os.seteuid(65534)\nwith whole_file(sys.argv[1] + '/x') as file: file.write(b'1')")
        done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert Path(place, "x").read_bytes() == b"1"
