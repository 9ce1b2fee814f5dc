"""Two real processes over gloo on the CPU: the run of one process with all their batches."""

import os
import random
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import warm

pytest.importorskip("accelerate")

from distributed_runs import (  # noqa: E402
    EQUAL, TOGETHER, Adversaries, Unused, collected, data, looked_at, looked_into, network, outcome,
    partly, run, sampled, written)

from trainer_nb import CheckpointError  # noqa: E402
from trainer_nb.support.saved import TABLE  # noqa: E402

LONG = os.environ.get("TRAINER_NB_LONG") == "1"
# what differs from another run in numbers alone; of processes that share the parameters also what
# concerns the loaders, which know nothing of the engine, and what `resumed` restores as well
MORE = ["two batches a process", "many epochs"]
MORE_SHARED = [*MORE, "own generator", "a list", "a stream", "batches drawn on the way", "steps",
               "limited", "overfit", "rewound", "signalled"]
GOING_ON = ["resumed", "rewound", "steered", "signalled"]
SHARED = [name for name in EQUAL
          if name not in ("an average and a schedule", "small pieces", "workers", "seeded samples",
                          "overfit, seeded samples")]
SCRIPT = Path(__file__).parents[1] / "distributed_runs.py"


pytestmark = pytest.mark.slow


def in_short(names, more):
    """These names, in a short run without those of `more`."""
    return [name for name in names if LONG or name not in more]


def marked(names, more):
    """The same names as parameters."""
    return [pytest.param(name, marks=[pytest.mark.long] if name in more else []) for name in names]


def free_port():
    """A port that nobody listens at, of those that the system gives to nobody unasked."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return str(port)


def start(folder, *names, processes=2, seconds=600, engine="accelerate"):
    """Start the processes and wait for them; returns (code, output) of each."""
    place = {**os.environ, "ENGINE": engine, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
             "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
             "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])}
    started = [warm.Popen([sys.executable, str(SCRIPT), str(folder), *names], quick_end=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True)
               for rank in range(processes)]
    try:
        return [(each.wait(), text) for each in started
                for text in [each.communicate(timeout=seconds)[0]]]
    finally:
        for each in started:
            each.kill()


def read(folder, name):
    """What the two processes wrote of a run."""
    return [torch.load(folder / f"{name}.{rank}", weights_only=False) for rank in (0, 1)]


def assert_close(a, b, tolerance=1e-10):
    """Weights and records are equal to that; samples and counters are equal."""
    assert a["counters"] == b["counters"]
    assert torch.equal(a["samples"], b["samples"])
    assert a["records"].keys() == b["records"].keys()
    for name, values in a["records"].items():
        torch.testing.assert_close(values, b["records"][name], atol=tolerance, rtol=0,
                                   equal_nan=True, msg=lambda text: f"{name}: {text}")
    for one, other in zip(a["weights"], b["weights"], strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


def assert_same(a, b):
    """Bit for bit."""
    assert_close(a, b, tolerance=0)


def assert_run_of_one(folder, name):
    """What both processes made is what one makes with the joined batches."""
    trainer = EQUAL[name](1)
    trainer.fit()
    first, second = read(folder, name)
    assert_close(first, outcome(trainer))
    assert_same(first, second)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder with what two processes made of all runs that need no death."""
    folder = tmp_path_factory.mktemp("together")
    names = [*in_short(EQUAL, MORE), *TOGETHER, *GOING_ON, "looked_at", "written", "collected",
             "sampled", "asked_apart", "stopped_by_time", "textbook", "unused", "half", "from_one",
             "left_over", "held_at", "persistent", "grown", "thawed", "spectral", "cancelled",
             "claimed", "looked_into", "own_generator", "resumed_at_the_end", "in_turn", "parted",
             "at_odds"]
    found = start(folder, *names)
    assert [code for code, _ in found] == [0, 0], "\n\n".join(text[-3000:] for _, text in found)
    return folder


@pytest.fixture(scope="module")
def sharing(tmp_path_factory):
    """The same of processes that have a part of every parameter each."""
    folder = tmp_path_factory.mktemp("sharing")
    names = [*in_short([*SHARED, *GOING_ON], MORE_SHARED), "normalized, unjudged", "looked_at",
             "written", "collected", "sampled", "refused", "in_units", "half", "grown", "thawed",
             "looked_into", "in_shards", "disk_full_in_one", "slow_in_one"]
    found = start(folder, *names, engine="fsdp")
    assert [code for code, _ in found] == [0, 0], "\n\n".join(text[-3000:] for _, text in found)
    return folder


@pytest.mark.parametrize("name", marked(EQUAL, MORE))
def test_two_processes_make_the_run_of_one(together, name):
    """Uneven tails, accumulation, clipping, weights by items, any kind of loader:
    with the joined batches of one process."""
    assert_run_of_one(together, name)


@pytest.mark.parametrize("kind", ["generator", "sampler"])
def test_a_file_of_an_epochs_last_step_has_the_order_of_the_next(together, kind):
    """Of a generator that only the loader, or its sampler, has."""
    for found in read(together, "resumed_at_the_end"):
        straight, first, second = found[kind]
        assert_same(straight, first)
        assert_same(straight, second)


def test_what_a_file_has_of_the_first_process_alone_is_named(together):
    """A generator of the dataset's own is another one in each; global streams are kept for all."""
    for found in read(together, "own_generator"):
        (obstacles, assumed), (of_global, _) = found["own"], found["global"]
        assert len(obstacles) == 1 and "generator of the dataset's own" in obstacles[0]
        assert of_global == [] and any("the state of means is the same" in text for text in assumed)


def test_from_three_processes_on_the_first_step_may_differ_in_the_last_bits(tmp_path):
    """torch's wrapper adds up its gradients in another order, and `exact` says so."""
    found = start(tmp_path, "own_generator", processes=3)
    assert [code for code, _ in found] == [0, 0, 0], found
    for each in read(tmp_path, "own_generator"):
        obstacles, _ = each["global"]
        assert len(obstacles) == 1 and "three processes or more" in obstacles[0]


def test_processes_that_part_are_told(together):
    """Other weights make `exact` False; data that are shared out already are said at once."""
    for found in read(together, "parted"):
        assert found["alike"] == found["whole"] == ([], [])
        assert found["back"] == []  # all have the weights of the state
        assert any("loss_fn." in text for text in found["of the loss"])
        said, obstacles = found["drawn"]
        assert len(said) == 1 and "0.weight" in said[0] and "different values" in said[0]
        assert len(obstacles) == 1 and "0.weight and others" in obstacles[0]
        said, _ = found["by rank"]
        assert len(said) == 1 and "does not give all processes the same batches" in said[0]


@pytest.mark.parametrize("name", [name for name in TOGETHER if name != "normalized, unjudged"])
def test_processes_stay_the_same(together, name):
    """Also where one has no loss."""
    first, second = read(together, name)
    assert_same(first, second)
    assert first["counters"][0] >= 3
    assert all(weights.isfinite().all() for weights in first["weights"])


@pytest.mark.parametrize("kind, name, other", [
    ("together", "resumed", "resumed"), ("together", "rewound", "rewound"),
    ("together", "signalled", "again"), ("sharing", "resumed", "resumed"),
    pytest.param("sharing", "rewound", "rewound", marks=pytest.mark.long),
    pytest.param("sharing", "signalled", "again", marks=pytest.mark.long)])
def test_two_processes_go_on_bit_for_bit(request, kind, name, other):
    """Each with random streams of its own: resumed from a file, after a rewind, after a signal to
    one of them."""
    for found in read(request.getfixturevalue(kind), name):
        assert_same(found["straight"], found[other])


def test_the_processes_draw_from_streams_of_their_own(together):
    """With dropout and random samples, else the same window would be gone through twice;
    the weights are the same."""
    first, second = read(together, "resumed")
    assert_same(first["straight"], second["straight"])
    state = torch.load(together / "state.pt", weights_only=True)
    assert len(state["others"]) == 1
    # what a stream began with stands first in it
    seeds = [each["random"]["torch"][:8].tolist() for each in (state, *state["others"])]
    assert seeds[0] != seeds[1]


def test_a_file_of_two_processes_serves_one(together):
    """With the same batches a step; only the random streams are of one."""
    from torch.utils.data import DataLoader

    from distributed_runs import AsDouble, Noisy

    trainer = run(1, loader=DataLoader(Noisy(), batch_size=4, shuffle=True), dropout=0.5, ema=0.9,
                  hooks=[AsDouble()])
    with pytest.warns(UserWarning, match="processes 2"):
        trainer.load(together / "state.pt")
    first, _ = read(together, "resumed")
    for one, other in zip(first["first"]["weights"], trainer.model.parameters()):
        assert torch.equal(one, other)
    trainer.fit()
    assert trainer.step_state.samples_seen == first["straight"]["counters"][2]


def test_commands_of_the_first_process_act_in_both(together):
    """At the same boundary; and one process replays the journal."""
    from distributed_runs import AsDouble

    from trainer_nb import Journal, ReplayHook

    first, second = read(together, "steered")
    assert first["entries"] == second["entries"]
    assert [kind for kind, *_ in first["entries"]].count("tune") == 2
    assert {"pause", "resume", "note"} <= {kind for kind, *_ in first["entries"]}
    assert_same(first["steered"], second["steered"])
    replay = run(1, epochs=6,
                 hooks=[AsDouble(), ReplayHook(Journal.load(together / "steered.jsonl"))])
    replay.fit()
    for one, other in zip(first["steered"]["weights"], replay.model.parameters()):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


def test_a_signal_to_one_process_ends_both(together):
    """At the same step, with the exit code of the signal."""
    first, second = read(together, "signalled")
    assert first["code"] == second["code"] == 143
    assert first["step"] == second["step"] < 12


def test_what_another_process_alone_asks_for_is_said_to_have_no_effect(together):
    """Only there, and not where the first process asks for the same."""
    first, second = read(together, "asked_apart")
    assert first == {"step": 7, "told": []}  # what a hook asks for in step 6 is agreed on in 7
    assert second["step"] == 7 and len(second["told"]) == 1
    assert "stop was asked for in process 1 of several" in second["told"][0]


def test_a_time_limit_ends_both_at_the_same_step(together):
    """By the clock of the first."""
    assert read(together, "stopped_by_time") == 2 * [{"status": "stopped", "steps": 7}]


def test_equal_to_distributed_data_parallel_by_hand(together):
    """Bit for bit, where all batches are of one size."""
    for found in read(together, "textbook"):
        assert all(torch.equal(a, b) for a, b in zip(found["own"]["weights"], found["by hand"]))


@pytest.mark.parametrize("k", [1, 2])
def test_parameters_that_some_processes_leave_out(together, k):
    """A part of the model that a batch does not go through gets its gradient from the others;
    one that no batch does stays as it was."""
    found, other = [each[k] for each in read(together, "unused")]
    alone = partly(1, k)
    alone.fit()
    assert_close(outcome(alone), found)
    assert_same(found, other)
    never = dict(zip([name for name, _ in Unused().named_parameters()],
                     found["weights"]))["never.weight"]
    assert torch.equal(never, Unused().never.weight)


def test_a_killed_process_ends_the_other_and_both_go_on_from_a_checkpoint(tmp_path):
    """The survivor says what happened; started again, they make the run that nobody disturbed."""
    (code, text), (killed, _) = start(tmp_path, "killed")
    assert killed == -9 and code == 1
    assert "ProcessLostError: process 0 cannot reach another one" in text
    again = start(tmp_path, "resumed_from_a_file")
    assert [code for code, _ in again] == [0, 0], "\n\n".join(text[-3000:] for _, text in again)
    for found in read(tmp_path, "resumed_from_a_file"):
        assert found["from"].endswith("step_00000006.pt")
        assert_same(found["straight"], found["resumed"])


def test_a_process_that_is_missed_within_a_backward_pass(tmp_path):
    """The survivor says the same there."""
    (code, text), (killed, _) = start(tmp_path, "killed_early")
    assert killed == -9 and code == 1
    assert "ProcessLostError: process 0 cannot reach another one" in text and "in backward" in text
    # raised as such, not noted beside another
    assert "The above exception was the direct cause" in text


def test_an_error_in_one_process_ends_the_other(tmp_path):
    """With its own traceback there, and a word of it here."""
    (code, text), (other, traceback) = start(tmp_path, "failing")
    assert code == other == 1
    assert "ProcessLostError" in text and "ZeroDivisionError: mine" in traceback
    assert "REFUSED fit(skip_failed=True): several processes go in step" in traceback
    assert not list((tmp_path / "failing").glob("*error*"))


@pytest.mark.parametrize("name", marked(SHARED, MORE_SHARED))
def test_processes_that_share_the_parameters_make_the_run_of_one(sharing, name):
    """Also where one of them has no batch: it makes the others' passes, and adds nothing."""
    assert_run_of_one(sharing, name)


def test_a_pass_for_others_leaves_no_trace(sharing):
    """What normalization counts are the process's own batches."""
    for found, own in zip(read(sharing, "normalized, unjudged"), (12, 9)):
        assert found["buffers"][2] == own  # num_batches_tracked, of 21 batches


def test_sharing_processes_are_steered(sharing):
    """Commands act in both at once; one process replays the journal."""
    from distributed_runs import AsDouble

    from trainer_nb import Journal, ReplayHook

    first, second = read(sharing, "steered")
    assert first["entries"] == second["entries"] and len(first["entries"]) >= 5
    replay = run(1, epochs=6,
                 hooks=[AsDouble(), ReplayHook(Journal.load(sharing / "steered.jsonl"))])
    replay.fit()
    for one, other in zip(first["steered"]["weights"], replay.model.parameters()):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["together", "sharing"])
def test_the_best_state_a_rate_and_the_weights(request, kind, tmp_path):
    """What is asked of a run beside training is answered as one process answers it, and changes
    nothing."""
    from safetensors.torch import load_file

    folder, alone = request.getfixturevalue(kind), looked_at(1, tmp_path)
    assert alone["test"]["test/loss"] < alone["last"]["test/loss"]
    for found in read(folder, "looked_at"):
        assert found["best"]["step"] == alone["best"]["step"] and found["untouched"]
        for name in ("test", "last"):
            assert found[name] == pytest.approx(alone[name], abs=1e-10)
        for name in ("predictions", "rates", "losses"):
            torch.testing.assert_close(found[name], alone[name], atol=1e-7, rtol=0)
        for one, other in zip(found["end"], alone["end"], strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=0)
    weights = load_file(
        folder / f"weights{'fsdp' if kind == 'sharing' else 'accelerate'}2.safetensors")
    assert weights.keys() == network().state_dict().keys()
    assert all(any(torch.equal(value, each) for each in found["weights"])
               for value in weights.values())
    best = load_file(folder / f"best{'fsdp' if kind == 'sharing' else 'accelerate'}2.safetensors")
    expected = load_file(tmp_path / "bestaccelerate1.safetensors")
    assert any(not torch.equal(best[name], weights[name]) for name in best)
    torch.testing.assert_close(best, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["together", "sharing"])
def test_outputs_of_all_processes(request, kind, tmp_path):
    """Each sample's own row in one folder, as one process writes it;
    a stream's rows in the order of its batches."""
    alone = written(1, tmp_path)
    for found in read(request.getfixturevalue(kind), "written"):
        assert found["files"] == alone["files"] == ["train", "valid"]
        for split in ("train", "valid", "stream"):
            for name, array in alone[split].items():
                assert (found[split][name] is None) == (array is None)
                if array is not None:
                    np.testing.assert_allclose(found[split][name], array, atol=1e-10,
                                               err_msg=f"{split} {name}")
    assert len(alone["train"]["indices"]) == 26
    assert alone["stream"]["indices"] is None and len(alone["valid"]["outputs"]) == 3


@pytest.mark.parametrize("kind", ["together", "sharing"])
def test_outputs_come_together_for_each_loader(request, kind, tmp_path):
    """From all processes, in the loader's order."""
    alone = collected(1, tmp_path)
    assert alone["valid/count"] == 11 and alone["few/count"] == 3
    for found in read(request.getfixturevalue(kind), "collected"):
        assert found == pytest.approx(alone, abs=1e-10)


@pytest.mark.parametrize("kind", ["together", "sharing"])
def test_samples_of_all_processes(request, kind):
    """The worst ones with places and pictures, and the matrix, as one process finds them."""
    alone = sampled(1)
    assert [(each["split"], each["samples"]) for each in alone] == [
        *[("few", 3), ("valid", 11), ("stream", 26)] * 2,
        ("test", 7),
    ]
    for found in read(request.getfixturevalue(kind), "sampled"):
        assert len(found) == len(alone)
        for mine, theirs in zip(found, alone):
            assert {**mine, "worst": None} == {**theirs, "worst": None}
            for one, other in zip(mine["worst"], theirs["worst"], strict=True):
                assert {**one, "loss": None} == {**other, "loss": None} and one[
                    "loss"
                ] == pytest.approx(other["loss"], abs=1e-6)


def test_every_process_has_a_part(sharing):
    """Of the parameters and of the optimizer's state;
    layer for layer, where the launcher says so."""
    first, second = read(sharing, "in_units")
    whole = [p.numel() for p in network().parameters()]
    assert [a + b for a, b in zip(first["parts"], second["parts"])] == whole
    assert max(first["parts"][0], second["parts"][0]) == whole[0] // 2
    assert [found["held"]
            for found in (first, second)] == [2 * sum(found["parts"]) for found in (first, second)]
    assert first["units"] == ["", "0", "4"]
    trainer = EQUAL["uneven"](1)
    trainer.fit()
    assert_close({**first, "buffers": []}, {**outcome(trainer), "buffers": []})


def test_what_sharing_processes_cannot_do(sharing, tmp_path):
    """Is said by the constructor; and a loss that is None by the process that has it."""
    for found in read(sharing, "refused"):
        assert "EMAHook: needs the whole model" in found["ema"]
        assert "micro_batch_size: processes that share" in found["micro"]
        assert "the optimizer has made steps already" in found["used"]
    codes, texts = zip(*start(tmp_path, "none_shared", engine="fsdp"))
    assert codes == (1, 1) and any("a batch gave no loss (None)" in text for text in texts)


def test_each_sharing_process_writes_its_part(sharing):
    """Into a file of its own that holds no more; of two saves the later one's parts are there.
    Taken up from them, or from a file with whole tensors, the run is the same, bit for bit."""
    for found in read(sharing, "in_shards"):
        assert found["names"] == [".metadata", "__0_0.distcp", "__1_0.distcp"]
        for name in ("parts.pt", "whole.pt"):
            for one, other in zip(found["saved"], found[name]["loaded"], strict=True):
                assert torch.equal(one, other)
            assert_same(found["end"], found[name]["end"])
        # of the last two checkpoints, and of those with the best value, none more
        steps = {name.partition(".")[0] for name in found["kept"] if name.startswith("step_")}
        assert len(steps) == 2
        assert found["kept"] == sorted([".lock", "checkpoints.json", *(
            step + suffix for step in steps for suffix in (".pt", ".pt.shards"))])
        assert all(torch.equal(one, other)
                   for one, other in zip(found["best"], found["end"]["weights"], strict=True))
    table = torch.load(sharing / "parts.pt", weights_only=True)[TABLE]
    written = [{each["file"] for each in tensor["chunks"]} for tensor in table["tensors"]]
    assert written == [{"__0_0.distcp", "__1_0.distcp"}] * 12  # weights and two moments of each


def test_a_disk_that_takes_nothing_more_in_one_process(sharing):
    """No process has the checkpoint, all say so, and the run goes on; save() raises in all."""
    first, second = read(sharing, "disk_full_in_one")
    for found in (first, second):
        assert found["files"] == [".lock", "checkpoints.json", *(
            f"step_0000000{step}{suffix}" for step in (2, 6) for suffix in (".pt", ".pt.shards"))]
        assert [re.sub(r"\[Errno \d+\]", "", text) for text in found["warned"]] == [
            "a checkpoint was not written:  File too large; in process 1. The run goes on, and the "
            "next one is tried"]
        assert "File too large" in found["error"][0] and found["error"][1] == ["in process 1"]
        assert found["there"]
    assert_same(first["end"], second["end"])


def test_a_slow_disk_in_one_process_puts_checkpoints_off(sharing):
    """In all of them, at the same steps; save() waits for its turn."""
    first, second = read(sharing, "slow_in_one")
    assert first == second
    # save() at step 5 waits until the disk is free, and so the next one may be of that step, too
    assert first["steps"][0] == 1 and first["steps"][1] >= 5 and first["steps"][-1] == 12
    assert len(first["warned"]) == 1 and "of step 2 is put off" in first["warned"][0]
    assert first["by hand"] == 5


@pytest.mark.parametrize("processes", [3, pytest.param(2, marks=pytest.mark.long)])
def test_another_number_of_processes_takes_the_parts_up(sharing, processes):
    """Three those of two, and two those of three: bit for bit, and each writes its own again."""
    for number in sorted({3, processes}, reverse=True):
        found = start(sharing, "in_other_shards", processes=number, engine="fsdp")
        assert [code for code, _ in found] == [0] * number, found[0][1][-3000:]
    saved = read(sharing, "in_shards")[0]["saved"]
    taken = [torch.load(sharing / f"in_other_shards.{rank}") for rank in range(processes)]
    for each in taken:
        assert all(torch.equal(one, other)
                   for one, other in zip(each["loaded"], saved, strict=True))
        assert each["names"] == [".metadata", *(f"__{rank}_0.distcp" for rank in range(processes))]
    assert [sum(each) for each in zip(*(each["own"] for each in taken))] == [
        p.numel() for p in network().parameters()]


@pytest.mark.parametrize("other", ["one process", "whole models"])
def test_a_file_of_sharing_processes_serves_others(sharing, tmp_path, other):
    """Another number of processes, or another engine, takes its parts up as whole tensors; a file
    without its parts is refused."""
    from torch.utils.data import DataLoader

    from distributed_runs import AsDouble, Noisy

    first, _ = read(sharing, "resumed")
    if other == "one process":
        trainer = run(1, loader=DataLoader(Noisy(), batch_size=4, shuffle=True), dropout=0.5,
                      hooks=[AsDouble()])
        with pytest.warns(UserWarning, match="processes 2"):
            trainer.load(sharing / "state.pt")
        assert all(torch.equal(a, b)
                   for a, b in zip(first["first"]["weights"], trainer.model.parameters()))
        trainer.fit()
        assert trainer.step_state.samples_seen == first["straight"]["counters"][2]
        return
    shutil.copy(sharing / "state.pt", tmp_path)
    with pytest.raises(CheckpointError, match="copy, move and rename the file and the folder"):
        run(1).load(tmp_path / "state.pt")
    shutil.copytree(sharing / "state.pt.shards", tmp_path / "state.pt.shards")
    found = start(tmp_path, "given", engine="accelerate")
    assert [code for code, _ in found] == [0, 0], found[0][1][-3000:]
    given, second = read(tmp_path, "given")
    assert_same(given, second)
    assert_close(given, {**first["straight"]})


@pytest.mark.parametrize("kind", ["together", "sharing"])
def test_half_precision_with_a_loss_scaler(request, kind):
    """All processes skip the same steps."""
    first, second = read(request.getfixturevalue(kind), "half")
    assert_same(first, second)
    assert first["skipped"] == second["skipped"] == 2 and first["weights"][0].isfinite().all()


@pytest.mark.long
def test_a_killed_process_of_a_shared_run(tmp_path):
    """The survivor is told; started again, both go on from the checkpoint."""
    (code, text), (killed, _) = start(tmp_path, "killed", engine="fsdp")
    assert killed == -9 and code == 1
    assert "ProcessLostError: process 0 cannot reach another one" in text
    again = start(tmp_path, "resumed_from_a_file", engine="fsdp")
    assert [code for code, _ in again] == [0, 0], "\n\n".join(text[-3000:] for _, text in again)
    for found in read(tmp_path, "resumed_from_a_file"):
        assert_same(found["straight"], found["resumed"])


@pytest.mark.long
def test_a_process_that_is_killed_while_it_writes(tmp_path):
    """Half a checkpoint is none: the run is resumed from the one before, and nothing is left."""
    (code, text), (killed, _) = start(tmp_path, "killed_writing", engine="fsdp")
    assert killed == -9 and code == 1
    assert "ProcessLostError: process 0 cannot reach another one" in text
    assert [each.name for each in (tmp_path / "killed").glob("*.pt")] == ["step_00000002.pt"]
    again = start(tmp_path, "resumed_from_a_file", engine="fsdp")
    assert [code for code, _ in again] == [0, 0], "\n\n".join(text[-3000:] for _, text in again)
    for found in read(tmp_path, "resumed_from_a_file"):
        assert found["from"].endswith("step_00000002.pt")
        assert_same(found["straight"], found["resumed"])
    names = {each.name.removesuffix(".shards") for each in (tmp_path / "killed").glob("step*")}
    assert names == {each.name for each in (tmp_path / "killed").glob("*.pt")}


@pytest.mark.parametrize("how", ["by hand", "by a hook"])
def test_a_file_of_one_process_serves_two(together, how):
    """All from the same place, each with random streams of its own."""
    first, second = [found[how] for found in read(together, "from_one")]
    assert_same(first, second)
    assert first["counters"][0] == 3 and first["counters"][2] == 3 * 26
    assert not torch.equal(first["stream"], second["stream"])


def test_what_was_asked_behind_a_stop_does_not_stop_the_next_run(together):
    """A second wish to end is void; a change counts."""
    for found in read(together, "left_over"):
        assert found == {"first": "stopped", "lr": 0.003, "then": "finished"}


def test_a_breakpoint_pauses_all_at_its_own_step(together):
    """Not at the one behind it."""
    assert [found["step"] for found in read(together, "held_at")] == [2, 2]


@pytest.mark.parametrize("name", ["persistent", "spectral"])
def test_a_file_keeps_what_the_processes_have_for_themselves(together, name):
    """That workers have lived on; buffers that training goes by."""
    for found in read(together, name):
        assert_same(found["straight"], found["resumed"])


@pytest.mark.parametrize("kind", ["together", "sharing"])
def test_a_new_layer_is_that_of_the_first_process(request, kind):
    """Each has drawn another one."""
    first, second = read(request.getfixturevalue(kind), "grown")
    assert_same(first, second)


@pytest.mark.parametrize("kind", ["together", "sharing"])
def test_a_group_that_a_hook_adds_is_resumed_and_rewound(request, kind):
    """The thawed layer is trained in both, and in step."""
    first, second = read(request.getfixturevalue(kind), "thawed")
    assert first["groups"] == second["groups"] == 1
    for found in first, second:
        assert_same(found["straight"], first["straight"])
        assert_same(found["straight"], found["resumed"])
        assert_same(found["straight"], found["rewound"])


def test_a_sweep_that_one_process_cancels_ends_in_all(together):
    """After the same step."""
    assert read(together, "cancelled") == 2 * [{"tried": 3, "ended": "cancelled"}]


def test_all_look_for_checkpoints_where_the_first_process_writes(together):
    """Beside a workspace that another run has."""
    assert read(together, "claimed") == 2 * [{"folder": "claimed", "resumed": "claimed"}]


def test_what_was_not_given_alike_is_refused_by_all(together):
    """Instead of two different runs, or half of the data."""
    for found in read(together, "at_odds"):
        assert "the metric 'count' is 7 in process 0 and 4 in process 1" in found["metric"]
        assert "lr is 0.5 in process 0 and None in process 1" in found["lr"]
        assert all("has a DistributedSampler" in found[name] for name in ("test", "valid", "train"))
        assert "gave 4 batches in a pass, and its len() says 7" in found["short"]


@pytest.mark.parametrize("kind", ["together", "sharing"])
def test_layers_are_frozen_and_looked_into(request, kind, tmp_path):
    """Also where the engine has wrapped or cut up what the hooks were given."""
    alone = looked_into(1, tmp_path)
    assert alone["changed"] == ["4.weight", "4.bias"]
    for found in read(request.getfixturevalue(kind), "looked_into"):
        assert found["changed"] == alone["changed"]
        assert found["measured"] == alone["measured"] == ["4"]
        assert found["gradients"] == pytest.approx(alone["gradients"])


LAUNCHED = """
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import Trainer, launch

made = torch.Generator().manual_seed(1)
samples = TensorDataset(torch.randn(40, 5, generator=made),
                        torch.randint(0, 3, (40,), generator=made))

def train(engine, accumulate, failing=False):
    def loss_fn(pred, target):
        if failing and os.environ["RANK"] == "1":
            raise ZeroDivisionError("mine")
        return torch.nn.functional.cross_entropy(pred, target)
    torch.manual_seed(0)
    trainer = Trainer(torch.nn.Linear(5, 3).double(),
                      train_dl=DataLoader([(x.double(), y) for x, y in samples], 4, shuffle=True),
                      loss_fn=loss_fn,
                      epochs=2, seed=0, engine=engine, gradient_accumulation_steps=accumulate,
                      device="cpu", progress=False)
    trainer.fit()
    return trainer.step_state.num_processes, trainer.state_dict()["model"]

torch.set_num_threads(2)
(torch.randn(1500, 1500) @ torch.randn(1500, 1500)).sum()  # threads that a forked process has not
train("accelerate", 1)  # alone: its processes are not to think that they are, too
one, alone = train("local", 2)
for engine in ("accelerate", "fsdp"):
    number, weights = launch(train, engine, 1, num_processes=2)
    assert (one, number) == (1, 2)
    for name, value in alone.items():
        torch.testing.assert_close(weights[name], value, atol=1e-10, rtol=0)
try:
    launch(train, "accelerate", 1, True, num_processes=2)
except RuntimeError as error:
    assert str(error).count(
        "ZeroDivisionError: mine") == 1 and "launch(): process 1 of 2 failed" in str(
            error) and "ZeroDivisionError: mine" in str(error), error
else:
    raise SystemExit("no error")
for number in (0, 1.5, True):
    try:
        launch(train, num_processes=number)
    except ValueError as error:
        assert f"num_processes={number!r}" in str(error)
    else:
        raise SystemExit("no error")
print("done")
"""


def test_launched_from_a_process_that_has_computed(tmp_path):
    """As a notebook does it: forked, with what was defined so far;
    what the first returns comes back, an error is that of who failed first."""
    (tmp_path / "script.py").write_text(LAUNCHED)
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("OMP_NUM_THREADS", "RANK")}
    done = warm.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True,
                    timeout=600, env=environment)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr[-3000:]
    assert "elastic" not in done.stderr  # the error has said it


ASKED = """
import os, torch
from trainer_nb import launch

asked, answer = [], torch.cuda.is_available

def noted():
    asked.append(os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
    return answer()

torch.cuda.is_available = noted
assert launch(os.getpid, num_processes=1) != os.getpid()
print("asked", set(asked), os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
"""


def test_a_launch_asks_the_drivers_library(tmp_path):
    """torch's launcher asks whether CUDA is there, in the process that forks: asked of CUDA itself,
    no forked process could use it."""
    (tmp_path / "script.py").write_text(ASKED)
    done = warm.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True,
                    timeout=600)
    assert done.stdout.startswith("asked {'1'} None"), (done.stdout, done.stderr[-2000:])


SAVES = (r"process 0 is in (\w+ .* within )?fit\(\), called in distributed_runs.py, line \d+; "
         r"process 1 is in save\(\)")
FROZEN = r"process 1 has frozen 0.weight, 0.bias and process 0 has not"
PARTED = {
    "saves_in_a_hook": SAVES, "saves_alone_between": SAVES, "freezes_in_a_hook": FROZEN,
    "frozen_while_adding_up": FROZEN,
    "validates_alone": r"process 0 is in .*fit\(\), called in .*; process 1 is in an evaluation "
                       r"within validate\(\), called in ",
    "frozen_between": r"frozen parameters is \[\] in process 0 and \['0.weight', '0.bias'\] in "
                      r"process 1"}


ALIKE = [("frozen_while_adding_up", "accelerate"), ("freezes_in_a_hook", "accelerate"),
         ("validates_alone", "accelerate"), ("saves_alone_between", "accelerate"),
         ("saves_in_a_hook", "fsdp")]


@pytest.mark.parametrize("name, engine", [
    ("saves_in_a_hook", "accelerate"), ("frozen_between", "accelerate"),
    ("freezes_in_a_hook", "fsdp"),
    *(pytest.param(*each, marks=pytest.mark.long) for each in ALIKE)])
def test_what_only_one_process_does(tmp_path, name, engine):
    """Both waited for ever; now both end, and say which process did what."""
    for code, text in start(tmp_path, name, engine=engine):
        assert code == 1 and re.search(PARTED[name], text), f"{code}: {text[-3000:]}"


@pytest.mark.parametrize("engine", ["accelerate", pytest.param("fsdp", marks=pytest.mark.long)])
def test_one_that_is_slow_is_waited_for(tmp_path, engine):
    """A long time in a hook is no fault, whatever they do at its end."""
    found = start(tmp_path, "one_is_slow", engine=engine)
    assert [code for code, _ in found] == [0, 0], "\n\n".join(text[-3000:] for _, text in found)
    assert_same(*read(tmp_path, "one_is_slow"))


def both_by_hand(turns_of_g=1, k=1):
    """Each step is made with the mean over the samples of two batches, or of two times k."""
    model = Adversaries()
    optims, batches = model.optimizers(), [x.double() for x, _ in data(shuffle=False)]
    for _ in range(3):
        waiting, turns = {"d": [], "g": []}, {"d": 0, "g": 0}
        pairs = [batches[first:first + 2] for first in range(0, len(batches), 2)]
        for number, pair in enumerate(pairs, 1):
            for name, optim in optims.items():
                if name == "g" and number % turns_of_g:
                    continue
                own = list(getattr(model, name).parameters())
                waiting[name] += [(torch.autograd.grad(model.losses(x)[name](), own), len(x))
                                  for x in pair]
                turns[name] += 1
                if turns[name] % k == 0:
                    step_by_hand(optim, name, own, waiting)
        for name, optim in optims.items():
            if waiting[name]:
                step_by_hand(optim, name, list(getattr(model, name).parameters()), waiting)
    return [p.detach() for p in model.parameters()]


def step_by_hand(optim, name, own, waiting):
    """The mean over all samples, clipped for one of the two."""
    samples = sum(n for _, n in waiting[name])
    for index, p in enumerate(own):
        p.grad = sum(gradients[index] * n for gradients, n in waiting[name]) / samples
    if name == "d":
        torch.nn.utils.clip_grad_norm_(own, 0.05)
    optim.step()
    waiting[name].clear()


def test_several_optimizers_step_with_the_gradients_of_all_processes(together):
    found = read(together, "in_turn")
    for name, settings in {"plain": {}, "window": {"k": 2}, "every": {"turns_of_g": 2}}.items():
        for one, other in zip(found[0][name]["weights"], found[1][name]["weights"], strict=True):
            assert torch.equal(one, other)
        for one, other in zip(found[0][name]["weights"], both_by_hand(**settings), strict=True):
            torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
        assert found[0][name]["steps"] == found[0][name]["planned"]
        # samples of all processes, those without a step of the last one too
        assert found[0][name]["counters"][2] == 3 * 26
    assert_same(found[0]["plain"], found[0]["resumed"])
