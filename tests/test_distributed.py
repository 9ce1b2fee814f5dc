"""Two real processes over gloo on the CPU: the run of one process with all their batches."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")

from distributed_runs import EQUAL, TOGETHER, Unused, outcome, partly, run  # noqa: E402

SCRIPT = Path(__file__).with_name("distributed_runs.py")


def free_port():
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def start(folder, *names, processes=2, seconds=120):
    """Start the processes and wait for them; returns (code, output) of each."""
    place = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(processes), "OMP_NUM_THREADS": "1",
             "LOCAL_WORLD_SIZE": str(processes), "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])}
    started = [subprocess.Popen([sys.executable, str(SCRIPT), str(folder), *names], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True) for rank in range(processes)]
    try:
        return [(each.wait(), text) for each in started for text in [each.communicate(timeout=seconds)[0]]]
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
        torch.testing.assert_close(values, b["records"][name], atol=tolerance, rtol=0, equal_nan=True, msg=lambda text: f"{name}: {text}")
    for one, other in zip(a["weights"], b["weights"], strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


def assert_same(a, b):
    """Bit for bit."""
    assert_close(a, b, tolerance=0)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder with what two processes made of all runs that need no death."""
    folder = tmp_path_factory.mktemp("together")
    names = [*EQUAL, *TOGETHER, "resumed", "rewound", "steered", "signalled", "stopped_by_time", "textbook", "unused"]
    found = start(folder, *names)
    assert [code for code, _ in found] == [0, 0], "\n\n".join(text[-3000:] for _, text in found)
    return folder


@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_make_the_run_of_one(together, name):
    """Uneven tails, accumulation, clipping, weights by items, any kind of loader: with the joined batches of one process."""
    trainer = EQUAL[name](1)
    trainer.fit()
    first, second = read(together, name)
    assert_close(first, outcome(trainer))
    assert_same(first, second)


@pytest.mark.parametrize("name", TOGETHER)
def test_processes_stay_the_same(together, name):
    """Also where one has no loss."""
    first, second = read(together, name)
    assert_same(first, second)
    assert first["counters"][0] >= 3 and all(weights.isfinite().all() for weights in first["weights"])


@pytest.mark.parametrize("name, other", [("resumed", "resumed"), ("rewound", "rewound"), ("signalled", "again")])
def test_two_processes_go_on_bit_for_bit(together, name, other):
    """Each with random streams of its own: taken up from a file, after a rewind, after a signal to one of them."""
    for found in read(together, name):
        assert_same(found["straight"], found[other])


def test_the_processes_draw_from_streams_of_their_own(together):
    """With dropout and random samples, else the same window would be gone through twice; the weights are the same."""
    first, second = read(together, "resumed")
    assert_same(first["straight"], second["straight"])
    state = torch.load(together / "state.pt", weights_only=True)
    assert len(state["others"]) == 1
    seeds = [each["random"]["torch"][:8].tolist() for each in (state, *state["others"])]  # what a stream began with stands first in it
    assert seeds[0] != seeds[1]


def test_a_file_of_two_processes_serves_one(together):
    """With the same batches a step; only the random streams are of one."""
    from torch.utils.data import DataLoader

    from distributed_runs import AsDouble, Noisy

    trainer = run(1, loader=DataLoader(Noisy(), batch_size=4, shuffle=True), dropout=0.5, ema=0.9, hooks=[AsDouble()])
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
    replay = run(1, epochs=6, hooks=[AsDouble(), ReplayHook(Journal.load(together / "steered.jsonl"))])
    replay.fit()
    for one, other in zip(first["steered"]["weights"], replay.model.parameters()):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


def test_a_signal_to_one_process_ends_both(together):
    """At the same step, with the exit code of the signal."""
    first, second = read(together, "signalled")
    assert first["code"] == second["code"] == 143
    assert first["step"] == second["step"] < 12


def test_a_time_limit_ends_both_at_the_same_step(together):
    """By the clock of the first."""
    first, second = read(together, "stopped_by_time")
    assert first == second and 5 < first["steps"] < 100


def test_equal_to_distributed_data_parallel_by_hand(together):
    """Bit for bit, where all batches are of one size."""
    for found in read(together, "textbook"):
        assert all(torch.equal(a, b) for a, b in zip(found["own"]["weights"], found["by hand"]))


@pytest.mark.parametrize("k", [1, 2])
def test_parameters_that_some_processes_leave_out(together, k):
    """A part of the model that a batch does not go through gets its gradient from the others; one that no batch does stays as it was."""
    found, other = [each[k] for each in read(together, "unused")]
    alone = partly(1, k)
    alone.fit()
    assert_close(outcome(alone), found)
    assert_same(found, other)
    never = dict(zip([name for name, _ in Unused().named_parameters()], found["weights"]))["never.weight"]
    assert torch.equal(never, Unused().never.weight)


def test_a_killed_process_ends_the_other_and_both_go_on_from_a_checkpoint(tmp_path):
    """The survivor says what happened; started anew, they make the run that nobody disturbed."""
    (code, text), (killed, _) = start(tmp_path, "killed")
    assert killed == -9 and code == 1
    assert "ProcessLostError: process 0 cannot reach another one" in text
    again = start(tmp_path, "taken_up")
    assert [code for code, _ in again] == [0, 0], "\n\n".join(text[-3000:] for _, text in again)
    for found in read(tmp_path, "taken_up"):
        assert found["from"].endswith("step_00000006.pt")
        assert_same(found["straight"], found["taken up"])


def test_a_process_that_is_missed_within_a_backward_pass(tmp_path):
    """The survivor says the same there."""
    (code, text), (killed, _) = start(tmp_path, "killed_early")
    assert killed == -9 and code == 1
    assert "ProcessLostError: process 0 cannot reach another one" in text and "in backward" in text


def test_an_error_in_one_process_ends_the_other(tmp_path):
    """With its own traceback there, and a word of it here."""
    (code, text), (other, traceback) = start(tmp_path, "failing")
    assert code == other == 1
    assert "ProcessLostError" in text and "ZeroDivisionError: mine" in traceback
    assert not list((tmp_path / "failing").glob("*error*"))
