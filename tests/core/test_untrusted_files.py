"""What comes from others is data:
checkpoints and run folders lead nowhere outside of the folder that this run was given."""

import copy
import json
import os
import stat
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch._dynamo.trace_rules  # not later: pytest compiles one of its modules into a file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import (CheckpointHook, ImageFileHook, JSONLHook, OutputsHook, TensorBoardHook,
                        Trainer)
from trainer_nb.support.files import NotPlainError, open_plain, parse_json
from trainer_nb.support.saved import CheckpointError, read_state, write_state
from trainer_nb.hooks.run_folder import WRITTEN

pytestmark = pytest.mark.slow

DATA = TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(1)),
                     torch.zeros(48, 1))
WRITERS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
TOUCHED: list | None = None  # paths that are being written to, while a check asks
EARLIER: set[int] = set()  # threads of other tests, which may write meanwhile


def behind(path, itself):
    """The file that a path leads to; `itself`: its last name is not followed."""
    folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
    return (os.path.join(os.path.realpath(folder), name)
            if itself else os.path.realpath(os.path.join(folder, name)))


# of torch and Python
OTHERS = ("/dev/",
          *(os.path.join(tempfile.gettempdir(), name) for name in ("pymp-", "torchinductor")))


def watch(event, arguments):
    """An audit hook: every file that Python opens for writing, makes, renames or removes."""
    if TOUCHED is None or threading.get_ident() in EARLIER:
        return
    if (event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike))
        and (arguments[2] or 0) & WRITERS):
        TOUCHED.append(behind(arguments[0], (arguments[2] or 0) & (os.O_EXCL | os.O_NOFOLLOW)))
    elif event in ("os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"):
        if not isinstance(arguments[0], int):
            TOUCHED.append(behind(arguments[0], event != "os.truncate"))
    elif event in ("os.rename", "os.link", "os.symlink"):
        TOUCHED.extend(behind(each, True) for each in arguments[:2])


sys.addaudithook(watch)


@pytest.fixture
def touched():
    """What is written to from here on."""
    global TOUCHED, EARLIER
    EARLIER = {each.ident for each in threading.enumerate()} - {threading.get_ident()}
    TOUCHED = found = []
    yield found
    TOUCHED = None


def make(workspace=None, *hooks, epochs=2):
    """A small run."""
    torch.manual_seed(0)
    return Trainer(nn.Linear(4, 1), train_dl=DataLoader(DATA, 4), valid_dl=DataLoader(DATA, 16),
                   loss_fn=nn.MSELoss(), epochs=epochs,
                   device="cpu", progress=False, workspace=workspace, hooks=list(hooks), seed=0)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, and a victim beside it."""
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    victim = tmp_path / "home" / "bashrc"
    victim.write_bytes(b"export PATH=/usr/bin\n" * 200)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work", victim


def leaves(value, path=()):
    """The places of all plain values within a state."""
    pairs = (value.items() if isinstance(value, dict) else enumerate(value)
             if isinstance(value, (list, tuple)) else ())
    for key, item in pairs:
        if isinstance(item, (dict, list, tuple)):
            yield from leaves(item, (*path, key))
        elif not isinstance(item, torch.Tensor):
            yield (*path, key)


def replaced(state, path, value):
    """A copy of a state with another value at a place."""
    made = copy.deepcopy(state)
    holder = made
    for key in path[:-1]:
        if isinstance(holder[key], tuple):
            holder[key] = list(holder[key])
        holder = holder[key]
    holder[path[-1]] = value
    return made


def trackers():
    """Hooks that keep a place in a checkpoint."""
    return [JSONLHook(), TensorBoardHook(), ImageFileHook(), CheckpointHook(every_steps=4)]


def resumed(path):
    """Load a file as its victim would, and train on; whatever is refused is refused."""
    trainer = make(None, JSONLHook(), TensorBoardHook())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.load(path)
            trainer.fit()
    except (CheckpointError, ValueError, TypeError, KeyError, OSError, AttributeError, IndexError,
            RuntimeError):
        pass
    finally:
        trainer.close()


@pytest.mark.parametrize("share", [100, pytest.param(10, marks=pytest.mark.long)])
def test_a_checkpoint_names_no_file(place, touched, share):
    """Each plain value in turn is the path of a victim:
    of the tracker's marks all, of the others every tenth or hundredth."""
    work, victim = place
    with make(None, JSONLHook(), TensorBoardHook()) as trainer:
        trainer.step(5)
        state = read_state(trainer.save("good.pt") or "good.pt")
    before = victim.read_bytes()
    paths = list(leaves(state))
    marks = [path for path in paths if path[0] == "trackers"]
    assert len(marks) > 8
    names = ["/".join(map(str, path)) for path in marks]
    assert not any("path" in name or "folder" in name or "file" in name for name in names), names
    for path in marks + [path for path in paths if path not in marks][::share]:
        for value in (str(victim),
                      f"../home/{victim.name}") if path[0] == "trackers" else (str(victim),):
            write_state(replaced(state, path, value), "bad.pt")
            resumed("bad.pt")
    for number in (0, -1, 10**9, "../../home/bashrc", True):
        for key in ("number", "bytes"):
            write_state(replaced(state, ("trackers", "jsonl", key), number), "bad.pt")
            resumed("bad.pt")
    assert victim.read_bytes() == before
    outside = [path for path in touched if not path.startswith((str(work), *OTHERS))]
    assert not outside, outside


def test_a_path_in_a_checkpoint_is_not_written_to(place):
    """A checkpoint with a path for the lines, as they were once written:
    the file was cut, and lines of another's were appended."""
    work, victim = place
    trainer = make(None, JSONLHook())
    trainer.step(5)
    state = trainer.state_dict()
    trainer.close()
    Path("records.jsonl").unlink()
    points = lambda value: tuple(torch.tensor([value], dtype=d)
                                 for d in (torch.int64, torch.float64, torch.int64, torch.float64,
                                           torch.float64))
    state["history"]["points"]["$(touch pwned)"] = points(1)
    state["trackers"] = {"jsonl": {"path": str(victim), "wanted": "records.jsonl", "bytes": 0,
                                   "counts": {}}}
    write_state(state, "bad.pt")
    before = victim.read_bytes()
    resumed("bad.pt")
    assert victim.read_bytes() == before and Path("records.jsonl").is_file()


def test_lines_go_on_in_the_file_whose_first_line_says_so(place):
    """Not in another run's of the same name, however long the checkpoint says that it is."""
    first = make(None, JSONLHook())
    first.step(5)
    first.save("one.pt")
    first.close()
    Path("records.jsonl").rename("mine.jsonl")
    other = make(None, JSONLHook())
    other.fit()
    other.close()
    before = Path("records.jsonl").read_bytes()
    again = make(None, JSONLHook())
    again.load("one.pt")
    again.fit()
    assert again.get_hook(JSONLHook).path == Path("records-2.jsonl").absolute()
    assert Path("records.jsonl").read_bytes() == before


def written_run(work):
    """A run folder as a stranger made it, with all files that a run has."""
    trainer = make(work / "run", *trackers(), epochs=1)
    trainer.step(6)
    trainer.log_images({"picture": torch.rand(3, 8, 8)})
    trainer.close()
    with open(work / "run" / "metrics.jsonl", "ab") as file:
        file.write(b"touch pwned\n")
    for name in WRITTEN:
        (work / "run" / name).touch()
    return sorted(path.relative_to(work / "run") for path in (work / "run").rglob("*"))


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.long)],
                         ids=["in turn", "both"])
def test_a_run_folder_holds_no_link(place, touched, both):
    """Each file, each folder and each name that a run may write is a link in turn, soft or hard:
    nothing outside is touched."""
    import shutil
    work, victim = place
    names = written_run(work)
    (work / "run").rename(work / "theirs")
    before, refused = victim.read_bytes(), []
    assert len(names) > 12
    names += [Path("checkpoints/step_00000008.pt"), Path("records.void.jsonl")]
    for number, name in enumerate(names):
        kinds = ("soft", "hard", "folder")
        for kind in kinds if both else (kinds[number % 2], "folder"):
            shutil.rmtree(work / "run", ignore_errors=True)
            shutil.copytree(work / "theirs", work / "run")
            path = work / "run" / name
            if (kind == "folder") != path.is_dir():
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            if kind == "hard":
                os.link(victim, path)
            else:
                path.symlink_to(victim if kind == "soft" else victim.parent)
            touched.clear()
            trainer = make(work / "run", *trackers(), epochs=1)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    trainer.fit()
                    trainer.log_images({"picture": torch.rand(3, 8, 8)})
            except NotPlainError as error:
                refused.append(str(name))
                assert str(name.name) in str(error)
            finally:
                trainer.close()
            assert victim.read_bytes() == before, (name, kind)
            assert os.listdir(victim.parent) == [victim.name], (name, kind)
            outside = [each for each in touched if not each.startswith((str(work), *OTHERS))]
            assert not outside, (name, kind, outside)
    assert {"metrics.jsonl", "journal.jsonl", "config.json", ".lock",
            "checkpoints"} <= set(refused), refused


def test_what_is_refused_is_named_before_anything_has_changed(place):
    """The files beside it are as they were."""
    work, victim = place
    written_run(work)
    (work / "run" / "metrics.void.jsonl").unlink()
    (work / "run" / "metrics.void.jsonl").symlink_to(victim)
    before = {path: path.read_bytes() for path in (work / "run").rglob("*")
              if path.is_file() and path.name != ".lock"}
    trainer = make(work / "run", CheckpointHook(every_steps=4), epochs=1)
    with pytest.raises(NotPlainError,
                       match="a link: the files of a run are plain files of this user"):
        trainer.fit()
    trainer.close()
    assert before == {path: path.read_bytes() for path in before}
    assert trainer.step_state.optimizer_step == 0


@pytest.mark.parametrize("kind", ["link", "hard link", "FIFO", "folder"])
@pytest.mark.parametrize("mode", ["ab", "r+b"])
def test_only_regular_files_are_opened(kind, mode, tmp_path):
    """A FIFO without a reader would be waited for."""
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_bytes(b"precious")
    {"link": lambda: path.symlink_to(victim), "hard link": lambda: os.link(victim, path),
     "FIFO": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    with pytest.raises(OSError) as found:
        open_plain(path, mode)
    assert isinstance(found.value, NotPlainError) or kind == "FIFO", found.value
    assert victim.read_bytes() == b"precious"


def test_files_with_settings_are_for_this_user_alone(place):
    """Under a usual umask; a checkpoint, a table of curves and the picture say less, or nothing of
    the configuration."""
    work, _ = place
    before = os.umask(0o022)
    try:
        trainer = make(work / "run", *trackers(), epochs=1)
        trainer.fit()
        trainer.close()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (work / "run").rglob("*")
             if path.is_file()}
    private = ["config.json", "journal.jsonl", "result.json", "records.jsonl",
               *[name for name in modes if name.startswith("step_") and name.endswith(".pt")]]
    assert len(private) > 5
    assert {name: oct(modes[name]) for name in private} == dict.fromkeys(private, "0o600")
    assert modes["metrics.jsonl"] == modes["still.svg"] == 0o644


DAMAGED = {
    "deep": b"[" * 100_000 + b"]" * 100_000, "no UTF-8": b'{"a": "\xff\xfe"}',
    "a huge number": b'{"step": ' + b"9" * 5000 + b"}",
    "a list": b"[1, 2]", "a text": b'"text"', "nothing": b"",
    "half": b'{"checkpoints": [{"file": "st', "null": b"null"}


@pytest.mark.parametrize(("name", "kind"), [
    *((name, kind) for kind in DAMAGED
      for name in ("checkpoints/checkpoints.json", "metrics.jsonl", "journal.jsonl")),
    *(pytest.param(name, kind, marks=() if kind in ("deep", "no UTF-8", "half")
                   else pytest.mark.long)
      for name in (".lock", "config.json") for kind in DAMAGED)])
def test_damaged_files_are_named(place, name, kind):
    """No RecursionError, KeyError or the like:
    the run goes on without them, or the error names file and line."""
    work, _ = place
    with make(work / "run", CheckpointHook(every_steps=4), epochs=1) as trainer:
        trainer.step(6)
    path = work / "run" / name
    first = path.read_bytes().splitlines(keepends=True)[:1] if name == "journal.jsonl" else []
    path.write_bytes(b"".join(first) + DAMAGED[kind] + b"\n" * (name.endswith("l")) + b" " * 4000)
    trainer = make(work / "run", CheckpointHook(every_steps=4), epochs=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit()
    except CheckpointError as error:
        assert name == "metrics.jsonl" and "metrics.jsonl" in str(
            error) and ("line 1" in str(error) or "shorter" in str(error)), error
    else:
        assert trainer.step_state.optimizer_step == 12
    finally:
        trainer.close()


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_journal_names_its_line(tmp_path, kind):
    """Journal.load and config files, too."""
    from trainer_nb.core.journal import Journal
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"journal": 1}\n' + DAMAGED[kind] + b"\n")
    if kind == "nothing":
        return
    with pytest.raises(ValueError, match="journal.jsonl.*line 2"):
        Journal.load(path)


def test_parse_json_says_where():
    """Whatever is wrong."""
    for kind in ("deep", "no UTF-8", "a huge number", "half", "nothing"):
        with pytest.raises(ValueError, match="^here: "):
            parse_json(DAMAGED[kind], "here")
    assert parse_json(b'{"a": 1}', "here") == {"a": 1} == json.loads('{"a": 1}')


# Names that people choose

ODD = ["..", ".", "", "a/b", "a_b", "a b", "../../home/bashrc", "x" * 300, "x" * 299 + "y",
       "é" * 200, "a.unfinished", "a", "=1+1", "C:\\x", "nul\0"]


def test_each_odd_name_has_a_folder_of_its_own(place):
    """Loaders of any name: nothing is written outside, nothing shares a folder."""
    work, victim = place
    hook = OutputsHook(splits=("valid",))
    torch.manual_seed(0)
    loaders = {name: DataLoader(TensorDataset(torch.full((number + 1, 4), float(number)),
                                              torch.zeros(number + 1, 1)), 16)
               for number, name in enumerate(ODD)}
    trainer = Trainer(nn.Linear(4, 1), train_dl=DataLoader(DATA, 16), valid_dl=loaders,
                      loss_fn=nn.MSELoss(), epochs=1, device="cpu",
                      progress=False, hooks=[hook])
    trainer.fit()
    for number, name in enumerate(ODD):
        assert len(hook.load(name)["outputs"]) == number + 1, name
    assert sorted(os.listdir(work)) == ["outputs"] and len(os.listdir(work / "outputs")) == len(ODD)
    trainer.close()


def test_images_of_odd_names(place):
    """Long ones, too."""
    work, victim = place
    trainer = make(None, ImageFileHook())
    trainer.step(1)
    trainer.log_images({name: torch.rand(3, 4, 4) for name in ODD})
    assert len(list((work / "images").rglob("*.png"))) == len(ODD)
    assert sorted(os.listdir(work)) == ["images"]
    trainer.close()


def test_a_table_of_curves_has_no_formula(place):
    """A spreadsheet would run it."""
    work, _ = place
    with make(work / "run", epochs=1) as trainer:
        trainer.step(2)
        trainer.log({'=HYPERLINK("http://x","y")': 1.0, "+1": 2.0, "@x": -3.0, "fine": -1.0})
        trainer.fit()
    head, *lines = (work / "run" / "metrics.csv").read_text().splitlines()
    assert "'=HYPERLINK" in head and ",'+1," in head and ",'@x," in head and ",fine" in head
    assert any(",-1.0" in line for line in lines)


def test_the_hook_table_as_markdown_has_no_markup_of_its_own():
    """Neither a column nor a link nor a tag."""
    class Odd(CheckpointHook):
        """A hook with a name."""
    Odd.__name__ = Odd.__qualname__ = "A|B<img src=x onerror=1>[x](http://y)`c`\nnext"
    trainer = make(None, Odd())
    text = trainer.describe_hooks()
    line = next(line for line in text.splitlines() if "onerror" in line)
    assert "<" not in line and "[" not in line and "`" not in line and "A&#124;B" in line
    assert {each.count("|") for each in text.splitlines() if each.startswith("|")} == {7}


def test_untrusted_outputs(place):
    """The list of fields names no file elsewhere."""
    from trainer_nb.hooks.outputs import load_outputs
    work, victim = place
    import numpy as np
    np.save(work / "secret.npy", np.ones(3))
    (work / "theirs").mkdir()
    for fields in (["../secret"], ["a/b"], "outputs", None, 3, [1]):
        (work / "theirs" / "about.json").write_text(json.dumps({"fields": fields}))
        with pytest.raises(ValueError, match="no list of fields"):
            load_outputs(work / "theirs")
    for text in DAMAGED.values():
        (work / "theirs" / "about.json").write_bytes(text)
        with pytest.raises(ValueError, match="about.json"):
            load_outputs(work / "theirs")


def test_an_unfinished_folder_that_is_a_link(place):
    """Of a run that another user broke off."""
    work, victim = place
    (work / "outputs").mkdir()
    (work / "outputs" / "valid.unfinished").symlink_to(victim.parent)
    trainer = make(None, OutputsHook(splits=("valid",)))
    with pytest.raises(NotPlainError, match="valid.unfinished"):
        trainer.fit()
    trainer.close()
    assert os.listdir(victim.parent) == [victim.name]


@pytest.mark.parametrize("keep", ["last", "all"])
def test_outputs_behind_a_link(place, keep):
    """The folder of a split, or one above that of an image."""
    work, victim = place
    (work / "outputs").mkdir()
    (work / "outputs" / "valid").symlink_to(victim.parent)
    trainer = make(None, OutputsHook(splits=("valid",), keep=keep))
    with pytest.raises((NotPlainError, FileExistsError), match="valid"):
        trainer.fit()
    trainer.close()
    (work / "images").mkdir()
    (work / "images" / "a").symlink_to(victim.parent)
    images = make(None, ImageFileHook())
    images.step(1)
    with pytest.warns(UserWarning, match="NotPlainError.*images/a"):
        images.log_images({"a/b/c": torch.rand(3, 4, 4)})
    images.close()
    assert os.listdir(victim.parent) == [victim.name]


def test_every_place_that_writes_is_known():
    """A new one comes here with its name's origin: `files` has the list for people."""
    import ast
    import trainer_nb
    names = {"write_text", "write_bytes", "save", "mkdir", "touch", "SummaryWriter", "save_file",
             "save_model", "export_chrome_trace", "_dump_snapshot",
             "symlink_to", "mkfifo", "mknod", "makedirs", "copyfile", "copytree", "savez", "tofile"}
    found = {}
    for path in sorted(Path(trainer_nb.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = (node.func.attr
                    if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
            text = ast.unparse(node)
            writes = (name == "open"
                      and any(isinstance(each, ast.Constant) and isinstance(each.value, str)
                              and set(each.value) & set("wax+")
                              and len(each.value) < 4
                              for each in [*node.args, *[word.value for word in node.keywords]]))
            if writes or name in names or text.startswith("os.open("):
                key = f"{path.stem}: {text.split('(')[0]}"
                found[key] = found.get(key, 0) + 1
    assert found == KNOWN_WRITERS, {key: (found.get(key), KNOWN_WRITERS.get(key))
                                    for key in found.keys() ^ KNOWN_WRITERS.keys()} or found


KNOWN_WRITERS = {
    # Saver.save, which hands the state to write_state under the name of the step
    "checkpoint: save": 1, "checkpoint: self.saver.save": 1, "checkpoint: hook.saver.save": 1,
    # of `files`: a plain file by its path or in a folder that is held open, and such a folder, also
    # one that may not be read
    "files: os.open": 5, "files: self.open": 1, "files: os.mkdir": 1,
    "layout: os.open": 1, "layout: self._folder.open": 1, "layout: path.mkdir": 1,
    "saved: torch.save": 2, "checkpoint: self.path.mkdir": 1,
    # new files in a folder that is held open, `run.pt.shards`, whose name is that of the file
    "shards: dcp.save": 1, "shards: folder.open": 1, "shards: self.fs.mkdir": 1,
    "memory: folder.mkdir": 2, "memory: torch.cuda.memory._dump_snapshot": 1,
    "memory: done.export_chrome_trace": 1, "outputs: open": 2,
    "outputs: folder.mkdir": 1, "outputs: final.parent.mkdir": 1, "outputs: ": 1,
    "tracker_services: SummaryWriter": 1, "trackers: path.parent.mkdir": 2,
    "trackers: Image.fromarray": 1, "distributed: open": 1, "export: save_model": 1,
    "export: save_file": 1,
    # in a folder that did not exist, made for one repetition of a run
    # `os.devnull`, where the reader of a pipe has gone
    "cli: os.open": 1,
    # the replies, in a folder that is held open; a file to be read
    "control: control.open": 2, "control: os.open": 1,
    "prove: place.mkdir": 1, "prove: open": 1, "prove: ": 1, "prove: run.journal.save": 1}


def test_untrusted_unfinished_outputs(place):
    """Links in the place of the files that are joined there: they go, or the run says so."""
    work, victim = place
    before = victim.read_bytes()
    folder = work / "outputs" / "valid.unfinished"
    folder.mkdir(parents=True)
    for name in ("results.csv", "about.json", "outputs.npy"):
        (folder / name).symlink_to(victim)
    with make(None, OutputsHook(splits=("valid",)), epochs=1) as trainer:
        trainer.fit()
    assert victim.read_bytes() == before
    assert (work / "outputs" / "valid" / "results.csv").is_file() and not folder.exists()
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with (make(None, OutputsHook(splits=("valid",)), epochs=1) as trainer,
          pytest.raises(FileExistsError, match="valid.unfinished is there")):
        trainer.fit()
    assert (folder / "thesis.txt").read_text() == "mine"


def test_odd_entries_among_checkpoints(place):
    """A link to nothing and a folder of that name are not checkpoints."""
    work, _ = place
    (work / "checkpoints" / "step_00000002.pt").mkdir(parents=True)
    (work / "checkpoints" / "step_00000001.pt").symlink_to(work / "nothing")
    with make(None, CheckpointHook(every_steps=4), epochs=1) as trainer:
        trainer.fit()
        assert trainer.step_state.optimizer_step == 12
    with make(None, CheckpointHook(every_steps=4), epochs=2) as again:
        again.step(1)
        assert again.step_state.optimizer_step == 13


def test_a_run_whose_folder_is_gone_says_so(place, monkeypatch):
    """And one whose current folder is another one now goes on where it is."""
    work, victim = place
    trainer = make("rel", epochs=2)
    trainer.step(2)
    trainer.close()
    monkeypatch.chdir(victim.parent)
    (work / "rel").rename(work / "elsewhere")
    with pytest.raises(FileNotFoundError, match="rel.*was it moved"):
        trainer.fit()
    (work / "elsewhere").rename(work / "rel")
    trainer.fit()
    assert os.listdir(victim.parent) == [victim.name]


@pytest.mark.parametrize("wrong",
                         [{"number": 0}, {"number": "../../x"}, {"number": True}, {"bytes": -1},
                          {"bytes": 1.5}, {"id": 3}, {"id": "short"}, {"counts": 3}])
def test_invalid_places_in_a_file(wrong):
    """A tracker that is given them begins again."""
    good = {"number": 1, "bytes": 10, "id": "a" * 32, "counts": {}}
    assert JSONLHook().read_place(None, dict(good)) == good
    assert JSONLHook().read_place(None, good | wrong) is None
    assert all(JSONLHook().read_place(None, {key: good[key] for key in good if key != name}) is None
               for name in good)
