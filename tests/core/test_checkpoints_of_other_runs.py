"""A checkpoint that a trainer finds may be of another run: of another fold, rate, data.
What goes on says so, what must not is refused."""

import random
import shutil
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from trainer_nb import CheckpointError, CheckpointHook, EarlyStopHook, Trainer
from trainer_nb.core.data import SkippingSampler
from trainer_nb.core.identity import sample_checksum
from trainer_nb.support.saved import read_state, write_state

INPUTS = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, INPUTS[:, :1])


def make(folder, data=DATA, size=8, lr=0.01, patience=9, weights=0, resume="latest", epochs=3,
         **settings):
    """Sixteen steps an epoch."""
    torch.manual_seed(weights)
    model = nn.Linear(4, 1)
    hooks = [CheckpointHook(folder, resume=resume)] if folder else []
    settings = {"seed": 0, "loss_fn": nn.MSELoss(), **settings}
    return Trainer(model, train_dl=DataLoader(data, size, shuffle=True),
                   valid_dl=DataLoader(DATA, 64), epochs=epochs, device="cpu", progress=False,
                   optim=torch.optim.AdamW(model.parameters(), lr, weight_decay=0.01),
                   hooks=[*hooks, EarlyStopHook(patience=patience)], **settings)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run that was stopped at step 26 and of one that is finished."""
    place = tmp_path_factory.mktemp("runs")
    for name, steps in (("unfinished", 26), ("finished", None)):
        with make(place / name) as trainer:
            trainer.step(26) if steps else trainer.fit()
    return place


@pytest.fixture
def folder(runs, tmp_path, request):
    """A copy of one of them, under the name of the test's first argument."""
    def copied(name):
        return shutil.copytree(runs / name, tmp_path / "kept")
    return copied


LAST = {"unfinished": ("step_00000026.pt", "step 26, 1"),
        "finished": ("step_00000048.pt", "step 48, 3")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given", "ends"), [
    ("unfinished", {}, ""), ("unfinished", {"weights": 1}, ""),
    ("finished", {}, "; nothing is left to train"),
    ("finished", {"epochs": 4}, ""), ("finished", {"epochs": 4, "weights": 1}, ""),
    ("unfinished", {"lr": 1e-4},
     "; the file's settings are in force: lr 0.01 (here 0.0001); trainer.tune() changes them"),
    ("unfinished", {"grad_clip": 0.5},
     "; the file's settings are in force: grad_clip none (here 0.5); trainer.tune() changes them"),
    ("unfinished", {"gradient_accumulation_steps": 4},
     "; the file's settings are in force: gradient_accumulation_steps 1 (here 4); trainer.tune() "
     "changes them"),
    ("unfinished", {"mixed_precision": "bf16"},
     "; the file's settings are in force: mixed_precision none (here bf16); trainer.tune() changes "
     "them"),
    ("unfinished", {"patience": 1},
     "; the file's settings are in force: early_stop.patience 9 (here 1); trainer.tune() changes "
     "them"),
    ("unfinished", {"ema": 0.9}, "; the code's settings are in force: ema.decay 0.9 (file none)"),
    ("unfinished", {"loss_fn": nn.L1Loss()},
     "; the code's settings are in force: loss_fn L1Loss (file MSELoss)")])
def test_what_goes_on_says_so_in_one_line(folder, capsys, name, given, ends):
    """The file, the step, and what differs with the value in force."""
    path = folder(name)
    with make(path, **given) as trainer:
        result = trainer.fit()
    file, place = LAST[name]
    assert capsys.readouterr().out == (f"resumed from {path / file}: {place} of "
                                       f"{given.get('epochs', 3)} epochs done{ends}\n")
    assert trainer.get_hook(CheckpointHook).resumed_from == path / file
    # one step more or less
    assert result.steps == 16 * given.get("epochs", 3) or given.get("gradient_accumulation_steps")
    if "lr" in given:
        assert trainer.optim.param_groups[0]["lr"] == 0.01


OTHER = TensorDataset(INPUTS + 1, INPUTS[:, :1])


@pytest.mark.parametrize(("name", "given", "says"), [
    ("unfinished", {"data": Subset(DATA, range(40))},
     r"batches 16 \(here 5\), samples 128 \(here 40\)"),
    ("unfinished", {"size": 32}, r"batches 16 \(here 4\), batch size 8 \(here 32\)"),
    ("unfinished", {"size": 4}, r"batches 16 \(here 32\)"),
    ("unfinished", {"data": OTHER}, "check sum of samples"),
    ("finished", {"data": OTHER, "epochs": 9}, "check sum of samples"),
    ("finished", {"lr": 1e-4}, r"a finished run .* lr 0.01 \(here 0.0001\)"),
    ("finished", {"lr": 1e-4, "epochs": 9}, "lr 0.01"),
    ("finished", {"weights": 1}, "the first weights are others"),
    ("finished", {"seed": 1}, r"seed 0 \(here 1\)"),
    ("finished", {"grad_clip": 1.0}, "grad_clip none")])
def test_another_run_is_refused(folder, name, given, says):
    """With three ways out, and all files as they were; each of the ways is one."""
    path = folder(name)
    before = {file: (path / file).read_bytes() for file in ("checkpoints.json", LAST[name][0])}
    with pytest.raises(CheckpointError, match=says) as told, make(path, **given) as trainer:
        trainer.fit()
    assert all(way in str(told.value)
               for way in ("resume=False", "another folder", "resume='force'"))
    assert trainer.step_state.optimizer_step == 0
    assert before == {file: (path / file).read_bytes() for file in before}
    with make(path, resume=False, **given) as again:
        again.step(1)
        assert again.get_hook(CheckpointHook).resumed_from is None
        assert again.step_state.optimizer_step == 1


def test_force_goes_on_and_names_what_differs(folder, capsys):
    """Also with other data; a larger total is trained to."""
    path = folder("finished")
    with make(path, resume="force", data=OTHER, lr=0.1, epochs=4) as trainer:
        assert trainer.fit().steps == 64
    told = capsys.readouterr().out
    assert told.startswith(
        f"resumed from {path}/step_00000048.pt: step 48, 3 of 4 epochs done; the file's "
        f"settings are in force: lr 0.01 (here 0.1)")
    assert "the data differ: check sum of samples" in told and told.count("\n") == 1


@pytest.mark.slow
def test_the_folds_of_a_cross_validation(tmp_path):
    """The second fold in the first one's folder is an error;
    with resume=False each is trained, and the best one kept is its own."""
    folds = [list(range(0, 64)), list(range(64, 128))]
    make(tmp_path / "a", Subset(DATA, folds[0])).fit()
    with pytest.raises(CheckpointError, match="check sum of samples"):
        make(tmp_path / "a", Subset(DATA, folds[1])).fit()
    for number, fold in enumerate(folds):
        with make(tmp_path / "b", Subset(DATA, fold), lr=(0.1, 1e-6)[number],
                  best=("valid/loss", "min"), resume=False) as trainer:
            hook = trainer.get_hook(CheckpointHook)
            trainer.step(9)
            for _ in range(2):  # files of the first fold are still there, then none
                entry = hook.folder.best_of(hook.folder.kept())
                assert entry.value == min(trainer.history["valid/loss"])
                assert trainer.fit().steps == 24
            assert {point.step for point in trainer.rewind_points()} == {8, 16, 24}
    assert len(list((tmp_path / "b").glob("*.pt"))) == 3


def test_a_file_of_before_that_says_less_is_resumed(folder, capsys):
    """What it does not know is not compared."""
    path = folder("unfinished")
    for file in path.glob("*.pt"):
        state = read_state(file)
        for name in ("given", "data"):
            del state["journal"]["header"][name]
        del state["position"]["data"]
        write_state(state, file)
    with make(path, lr=1e-4, data=OTHER) as trainer:
        trainer.fit()
    assert capsys.readouterr().out.endswith("step 26, 1 of 3 epochs done\n")


def test_load_names_what_differs(runs, capsys):
    """It was asked for, so it is not an error; the line is that of a resume, said once."""
    path = runs / "finished" / "step_00000048.pt"
    for given, ends in (({"lr": 1e-4},
                         "3 of 3 epochs done; the file's settings are in force: lr 0.01 (here "
                         "0.0001); trainer.tune() changes them; nothing is left to train\n"),
                        ({}, "3 of 3 epochs done; nothing is left to train\n"),
                        ({"epochs": 4}, "3 of 4 epochs done\n")):
        trainer = make(None, **given)
        trainer.load(path)
        told = capsys.readouterr().out
        assert told == f"loaded {path}: step 48, {ends}"
        assert trainer.step_state.optimizer_step == 48
        trainer.fit()
        assert "resumed" not in capsys.readouterr().out
    new = make(None, epochs=4)
    new.load(path, optimizer=False)
    assert capsys.readouterr().out == f"loaded {path}: step 48, 3 of 4 epochs done\n"


def test_a_load_before_a_hook_that_resumes_is_said_once(folder, capsys):
    """The hook leaves a run alone that stands somewhere already."""
    path = folder("unfinished")
    file = path / LAST["unfinished"][0]
    with make(path) as trainer:
        trainer.load(file)
        trainer.fit()
    assert capsys.readouterr().out == f"loaded {file}: step 26, 1 of 3 epochs done\n"
    with make(path, epochs=4) as trainer:  # and a resume loads without a second line
        trainer.fit()
    assert capsys.readouterr().out == (f"resumed from {path / LAST['finished'][0]}: step 48, 3 of "
                                       "4 epochs done\n")


@pytest.mark.parametrize(("value", "says"),
                         [(True, "resume=True"), (3, "resume=3"), ("", "resume=''"),
                          ("lastest", "did you mean 'latest'"),
                          ("Force", "did you mean 'force'")])
def test_a_resume_that_means_nothing_is_refused(value, says):
    with pytest.raises(ValueError, match=says):
        CheckpointHook(resume=value)


# ---- a look at samples


class Noisy(Dataset):
    """Samples that draw from all three global streams."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": torch.randn(2) + index, "y": np.random.rand(), "z": [random.random(), "text"]}


class Own(Noisy):
    """With a generator of its own."""

    def __init__(self):
        self.inner = {"noise": np.random.default_rng(0)}

    def __getitem__(self, index):
        return self.inner["noise"].random()


class Opens(Noisy):
    """Opens a file at its first sample."""

    file = None

    def __getitem__(self, index):
        if self.file is None:
            self.file = open(__file__)
        return index


class Counts(Noisy):
    """Differs at each look."""

    seen = []

    def __getitem__(self, index):
        self.seen.append(index)
        return len(self.seen)


class Stream(IterableDataset):
    """Gives each sample once."""

    def __iter__(self):
        raise AssertionError("it was asked")

    def __len__(self):
        return 5

    def __getitem__(self, index):
        raise AssertionError("it was asked")


def test_a_checksum_of_samples_leaves_no_trace():
    """In streams, in the dataset's own generators, in its attributes, in what is iterated."""
    streams = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    opens, own = Opens(), Own()
    state = own.inner["noise"].bit_generator.state
    assert sample_checksum(Noisy()) == sample_checksum(Subset(Noisy(), range(10))) is not None
    assert sample_checksum(Subset(opens, range(3))) is not None and opens.file is None
    assert sample_checksum(own) is None and own.inner["noise"].bit_generator.state == state
    assert sample_checksum(Counts()) is None
    assert sample_checksum(Stream()) is None and sample_checksum([]) is None
    assert sample_checksum(Subset(DATA, range(5))) != sample_checksum(Subset(DATA, range(1, 6)))
    assert streams == (random.getstate(), np.random.get_state()[1].tolist(),
                       torch.get_rng_state().tolist())


def test_an_epoch_that_is_shorter_than_the_place_in_it(folder):
    """Step 26 is batch 10 of its epoch: an error in words, also where the loader does not know its
    length."""
    path = folder("unfinished")
    with pytest.raises(ValueError,
                       match="the run stands at batch 10 of its epoch, and train_dl gives 5"), \
            make(path, data=Subset(DATA, range(40)), resume="force") as trainer:
        trainer.fit()
    sampler = SkippingSampler(range(5))
    sampler.skip = 10
    with pytest.raises(ValueError, match="stands at batch 10 of its epoch, and train_dl gives 5"):
        list(sampler)
    class Short(IterableDataset):
        """Of no known length."""
        def __iter__(self):
            return iter(Subset(DATA, range(40)))
    with pytest.raises(ValueError,
                       match="the run stands at batch 10 of its epoch, and train_dl gives 5"), \
            warnings.catch_warnings(), make(None) as trainer:
        warnings.simplefilter("ignore")
        trainer.train_dl = DataLoader(Short(), 8)
        trainer.load(path / LAST["unfinished"][0])
        trainer.fit()


# What was changed since the run began


def test_values_found_by_hand_may_stand_in_the_code(tmp_path, capsys):
    """The rate and the clipping in force are those of the file and of the code; so nothing
    differs. With a third value the line names the one in force."""
    for name in "ab":
        with make(tmp_path / name) as first:
            first.step(10)
            first.tune(lr=1e-3, grad_clip=0.5, weight_decay=0.1)
            first.step(3)
    capsys.readouterr()
    with make(tmp_path / "a", lr=1e-3, grad_clip=0.5) as again:
        again.step(1)
        assert (again.rate, again.grad_clip) == (1e-3, 0.5)
    assert capsys.readouterr().out.endswith("step 13, 0 of 3 epochs done\n")
    with make(tmp_path / "b", lr=1e-4, grad_clip=2.0) as other:
        other.step(1)
        assert other.grad_clip == 0.5
    assert ("the file's settings are in force: lr 0.001 (here 0.0001), grad_clip 0.5 (here 2)"
            in capsys.readouterr().out)


def test_the_code_as_it_was_is_no_difference(tmp_path, capsys):
    """Somebody changed the rate by hand, and starts the same program again."""
    with make(tmp_path / "a") as first:
        first.step(10)
        first.tune(lr=1e-3)
        first.fit()
    capsys.readouterr()
    with make(tmp_path / "a") as again:
        assert again.fit().steps == 48
    assert "in force" not in capsys.readouterr().out


@pytest.mark.parametrize("last", [1e-3, 5e-3])
def test_each_of_several_optimizers_has_its_own_rate(last, tmp_path, capsys):
    """Changed by hand and found in the code, or not."""
    def several(rate, last):
        torch.manual_seed(0)
        model = nn.ModuleDict({"d": nn.Linear(4, 2), "g": nn.Linear(4, 2)})

        def step(name):
            return lambda batch, trainer: {"loss": model[name](batch[0]).square().mean()}

        return Trainer(
            model, {name: step(name) for name in "dg"}, DataLoader(DATA, 8), device="cpu",
            optim={name: torch.optim.SGD(model[name].parameters(), value)
                   for name, value in (("d", rate), ("g", last))}, epochs=2, progress=False)

    first = several(0.01, 0.01)
    first.step(3)
    first.tune(**{"lr.d": 0.02, "lr.g": 1e-3})
    first.step(3)
    first.save(tmp_path / "state.pt")
    several(0.02, last).load(tmp_path / "state.pt")
    assert ("in force" in capsys.readouterr().out) == (last != 1e-3)


@pytest.mark.parametrize("way", ["built with it", "assigned", "the first one"])
def test_the_data_are_those_of_the_last_assignment(way, tmp_path, capsys):
    """After `trainer.train_dl = ...` the run goes on with that loader, and with no other."""
    def later():
        return DataLoader(DATA, 16, shuffle=True)

    def first(folder, size=8):
        made = make(folder, size=size)
        made.step(epochs=1)
        made.train_dl = later()
        made.step(2)
        return made

    straight = first(tmp_path / "straight")
    straight.fit()
    first(tmp_path / "kept").close()
    capsys.readouterr()
    with make(tmp_path / "kept", size=16 if way == "built with it" else 8) as again:
        if way == "assigned":
            again.train_dl = later()
        if way == "the first one":
            with pytest.raises(CheckpointError, match=r"batch size 16 \(here 8\)"):
                again.fit()
            return
        again.fit()
        assert all(map(torch.equal, again.model.parameters(), straight.model.parameters()))
    assert "differ" not in capsys.readouterr().out


def test_other_samples_of_the_same_number_are_seen_after_an_assignment(tmp_path):
    """By their check sum, as those of the first loader."""
    with make(tmp_path / "a") as trainer:
        trainer.step(epochs=1)
        trainer.train_dl = DataLoader(OTHER, 8, shuffle=True)
        trainer.step(2)
    with pytest.raises(CheckpointError, match="check sum of samples"), make(
            tmp_path / "a") as again:
        again.fit()
    with make(tmp_path / "a", data=OTHER) as right:
        assert right.fit().steps == 48


@pytest.mark.parametrize(("part", "new", "says"), [
    ("loss_fn", lambda model: nn.L1Loss(),
     "the code's settings are in force: loss_fn MSELoss (file L1Loss)"),
    ("optim", lambda model: torch.optim.AdamW(model.parameters(), 0.05, betas=(0.8, 0.99)),
     "")])
def test_parts_are_those_of_the_last_assignment(part, new, says, tmp_path, capsys):
    """The code that has them is no other; with those of the beginning the state's hold, or a line
    says that the code's do, and that the bits differ."""
    with make(tmp_path / "run") as trainer:
        trainer.step(20)
        setattr(trainer, part, new(trainer.model))
        trainer.step(2)
        straight = trainer.exact
    for now in (True, False):
        shutil.copytree(tmp_path / "run", tmp_path / f"again {now}")
        with make(tmp_path / f"again {now}") as again:
            if now:
                setattr(again, part, new(again.model))
            capsys.readouterr()
            again.step(1)
            said = capsys.readouterr().out
            assert "step 22 of" in said or "step 22," in said
            assert (says in said) if says and not now else "in force" not in said
            assert bool(again.exact) == bool(straight and (now or not says))
            if part == "optim":
                assert again.optim.param_groups[0]["betas"] == (0.8, 0.99)
