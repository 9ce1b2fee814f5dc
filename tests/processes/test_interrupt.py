"""Ctrl-C: the first ends a run on a whole step, the second at once;
workers survive, and the run can go on."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import small_runs
import torch
import warm
from ends import alive
from steered import until
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import CheckpointHook, ProgressHook, Trainer
from trainer_nb.core.hook import LambdaHook
from small_runs import Loop

SCRIPT = """
import hashlib, os, signal, sys, time
from pathlib import Path
import psutil, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb.core.hook import Hook
from functools import partial
from trainer_nb import Trainer
Loop = partial(Trainer, record=False, progress=False)

# in the workers that import this script, too
signal.signal(signal.SIGINT, signal.default_int_handler)

def say(*words):
    print(*words, flush=True)

def hold(*words):
    "Say it, and wait until the test has sent its signal."
    say(*words)
    while not Path("sent").exists():
        time.sleep(0.01)

def make_loader(workers, **settings):
    draw = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 8, generator=draw),
                         torch.randint(0, 3, (64,), generator=draw))
    return DataLoader(data, 4, shuffle=True, num_workers=workers, **settings)

def make_loop(*hooks, workers=0, loader=None, valid=None, train_step=None, accumulation=2):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 3))
    return Loop(
        model, train_step, loader or make_loader(workers), valid, device="cpu", hooks=hooks, seed=0,
        gradient_accumulation_steps=accumulation,
        loss_fn=None if train_step else nn.CrossEntropyLoss(),
        optim=lambda p: torch.optim.AdamW(p, lr=0.01),
    )

def weights(loop):
    vector = nn.utils.parameters_to_vector(loop.model.parameters()).detach()
    return hashlib.sha256(vector.numpy().tobytes()).hexdigest()

class Told(Hook):
    "Says every step; waits for Ctrl-C in the middle of one."
    def __init__(self, step=None):
        self.step = step
    def after_batch(self, trainer):
        state = trainer.step_state
        if trainer.training and state.optimizer_step == self.step:
            self.step = None
            hold("held")
    def after_step(self, trainer):
        say("step", trainer.step_state.optimizer_step)
    def after_cancel(self, trainer):
        state = trainer.step_state
        whole = (state.batch_idx == state.grad_accum_steps * state.optimizer_step
                 and not trainer.runner.window_open)
        clean = all(p.grad is None for p in trainer.model.parameters())
        say("cancelled", state.optimizer_step, whole and clean,
            *[entry.source for entry in trainer.journal])
    def cleanup_fit(self, trainer):
        say("cleanup")
"""

GO_ON = """
try:
    drive()
    say("returned", loop.state)
except KeyboardInterrupt:
    say("interrupted", loop.state, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    say("children", len(psutil.Process().children(recursive=True)))
loop.fit(epochs=1)
whole = make_loop()
whole.fit(epochs=1)
say("equal", weights(loop) == weights(whole), loop.step_state == whole.step_state)
"""


class Script:
    """A script of its own process; its lines are read while it runs."""

    def __init__(self, folder, text):
        self.sent, path = folder / "sent", folder / "script.py"
        guarded = textwrap.indent(text, "    ")  # workers may import the script
        path.write_text(f"{SCRIPT}\nif __name__ == '__main__':\n{guarded}", encoding="utf-8")
        self.process = warm.Popen(
            [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=folder, start_new_session=True)
        self.lines, self.errors = [], []
        self.readers = [
            threading.Thread(target=self._read),
            threading.Thread(target=lambda: self.errors.append(self.process.stderr.read())),
        ]
        for reader in self.readers:
            reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def wait_for(self, line):
        """Wait until the script has said this."""
        def said():
            ended = self.process.poll() is not None
            if ended:
                self.readers[0].join()
            assert line in self.lines or not ended, (f"ended with {self.process.returncode}: "
                                                     f"{self.lines} {self.errors}")
            return line in self.lines
        until(said)

    def send(self, number=signal.SIGINT, group=False):
        """A signal, to the script alone or as a terminal sends it, to all its processes; what the
        script holds goes on then."""
        (os.killpg if group else os.kill)(self.process.pid, number)
        self.sent.touch()

    def end(self):
        """Wait for the end; returns the exit status."""
        until(lambda: self.process.poll() is not None)
        for reader in self.readers:
            reader.join()
        return self.process.returncode

    def said(self, word):
        """What followed this word, where it was said first."""
        return next((line.split()[1:] for line in self.lines if line.split()[0] == word), None)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.end()


# ---- real processes


@pytest.mark.slow
def test_a_script_ends_on_a_whole_step_and_fails(tmp_path):
    """Everybody is told, the traceback is that of a KeyboardInterrupt, and the exit status is that
    of the signal."""
    with Script(tmp_path, "make_loop(Told(3)).fit(epochs=100)\nsay('after')") as script:
        script.wait_for("held")
        script.send()
        assert script.end() == -signal.SIGINT
    assert script.said("cancelled") == ["4", "True", "signal"]
    assert script.lines[-1] == "cleanup" and "after" not in script.lines
    assert script.errors[0].rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "group"),
    [(0, False), pytest.param(2, False, marks=pytest.mark.long), (2, True)],
    ids=["alone", "with workers", "workers and all"]
)
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path, workers, group):
    """Loader workers do not die first, none is left behind, and going on equals never having been
    interrupted."""
    text = (f"loop = make_loop(Told(2), workers={workers})\n"
            f"drive = lambda: loop.fit(epochs=1)") + GO_ON
    with Script(tmp_path, text) as script:
        script.wait_for("held")
        script.send(group=group)
        assert script.end() == 0, script.errors
    assert script.said("cancelled") == ["3", "True", "signal"]
    assert script.said("interrupted") == ["interrupted", "True"]
    assert script.said("children") == ["0"]
    assert script.said("equal") == ["True", "True"]
    until(lambda: not alive(script.process.pid))


@pytest.mark.slow
def test_ctrl_c_while_workers_start_is_heard_afterwards(tmp_path):
    """A run of short epochs spends much of its time there."""
    text = """
class Late(torch.utils.data.SequentialSampler):
    def __iter__(self):
        if loop.step_state.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return super().__iter__()
loader = make_loader(2)
loader = torch.utils.data.DataLoader(loader.dataset, 4, sampler=Late(loader.dataset), num_workers=2)
loop = make_loop(loader=loader)
try:
    loop.fit(epochs=3)
except KeyboardInterrupt:
    say("interrupted", loop.state, loop.step_state.epoch)
loop.close()
"""
    with Script(tmp_path, text) as script:
        assert script.end() == 0, script.errors
    assert script.said("interrupted") == ["interrupted", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_the_current_step_gets_all_its_batches(tmp_path, method):
    """Workers from before the drive, or that are not copies of the script, live on until the window
    is full."""
    text = f'''
class Third(Told):
    def after_batch(self, trainer):
        if trainer.training and trainer.step_state.batch_idx == 3:
            hold("held")
loader = make_loader(1, multiprocessing_context="{method}", persistent_workers=True)
loop = make_loop(Third(), loader=loader, accumulation=16)
loop.validate(loader)
try:
    loop.fit(epochs=2)
except KeyboardInterrupt:
    say("interrupted", loop.state)
loop.close()
'''
    with Script(tmp_path, text) as script:
        script.wait_for("held")
        script.send(group=True)
        assert script.end() == 0, script.errors
    assert script.said("cancelled") == ["1", "True", "signal"]
    assert script.said("interrupted") == ["interrupted"]


@pytest.mark.slow
def test_interrupted_in_an_evaluation(tmp_path):
    """The evaluation is discarded, also with workers of its own, and run again when the run goes
    on."""
    text = (
        """
class Watch(Told):
    def after_batch(self, trainer):
        if not trainer.training and trainer.eval_batch == 1:
            hold("evaluating")
    def after_cancel(self, trainer):
        say("cancelled", trainer.step_state.optimizer_step, trainer.eval_batch,
            trainer.model.training)
    def after_valid(self, trainer):
        say("evaluated", len(trainer.records))
loop = make_loop(Watch(), valid=make_loader(2))
drive = lambda: loop.fit(epochs=1)
"""
        + GO_ON
    )
    with Script(tmp_path, text) as script:
        script.wait_for("evaluating")
        script.send(group=True)
        assert script.end() == 0, script.errors
    assert script.said("cancelled") == ["8", "None", "True"]
    assert script.lines.count("evaluated 1") == 1
    assert script.lines.index("cancelled 8 None True") < script.lines.index("evaluated 1")
    assert (script.said("children"), script.said("equal")) == (["0"], ["True", "True"])


@pytest.mark.slow
def test_the_second_interrupt_ends_a_long_step_at_once(tmp_path):
    """The first waits for the step; the second does not, drops the window, and the run can still go
    on."""
    text = """
stuck = [True]
def train_step(batch, trainer):
    if stuck[0] and trainer.step_state.optimizer_step == 2:
        hold("stuck")
        say("still stuck")
        while True:
            time.sleep(0.01)
    return {"loss": nn.functional.cross_entropy(trainer.model(batch[0]), batch[1])}
loop = make_loop(Told(), train_step=train_step)
try:
    loop.fit(epochs=1)
except KeyboardInterrupt:
    state = loop.step_state
    say("interrupted", loop.state, state.optimizer_step, state.batch_idx, state.window_batches)
stuck[0] = False
say("steps", loop.fit(epochs=1).steps)
"""
    with Script(tmp_path, text) as script:
        script.wait_for("stuck")
        script.send()
        script.wait_for("still stuck")
        script.send()
        assert script.end() == 0, script.errors
    assert script.said("cancelled") == ["2", "True"]
    assert script.said("interrupted") == ["interrupted", "2", "4", "0"]
    assert script.said("steps") == ["8"]


@pytest.mark.slow
def test_wait_is_interrupted(tmp_path):
    """Ctrl-C in wait() ends the background run on a whole step, then raises."""
    text = """
loop = make_loop(Told(2), workers=2)
post = loop.post
def told(command):
    "The run is still held here."
    reply = post(command)
    say("posted", command.name)
    return reply
wait = loop.background.wait
def waits(*given):
    "A Ctrl-C from here on is one within wait()."
    say("waiting")
    return wait(*given)
loop.post, loop.background.wait = told, waits
drive = lambda: (loop.start(epochs=1), loop.wait())
""" + GO_ON
    with Script(tmp_path, text) as script:
        script.wait_for("held")
        script.wait_for("waiting")
        os.killpg(script.process.pid, signal.SIGINT)
        script.wait_for("posted interrupt")
        script.sent.touch()
        assert script.end() == 0, script.errors
    assert script.said("cancelled") == ["3", "True", "signal"]
    assert script.said("interrupted") == ["interrupted", "True"]
    assert (script.said("children"), script.said("equal")) == (["0"], ["True", "True"])


# ---- the same signal, sent from within


def make_loop(*hooks, valid=False):
    """A small run of four batches and steps an epoch."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16, 3), torch.randn(16, 1))
    return Loop(
        nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1)), None,
        DataLoader(data, 4, shuffle=True),
        DataLoader(data, 4) if valid else None, loss_fn=nn.MSELoss(), device="cpu", hooks=hooks,
        seed=0,
        optim=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    )  # fmt: skip


def press(point, number=1, times=1):
    """A hook that presses Ctrl-C at this call of a point."""
    calls = []

    def act(trainer, *_):
        calls.append(point)
        if len(calls) == number:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return LambdaHook(**{point: act})


def weights(loop):
    """The model's parameters as one vector."""
    return nn.utils.parameters_to_vector(loop.model.parameters()).detach()


@pytest.mark.parametrize(
    ("point", "steps"),
    [("before_fit", 0), ("before_epoch", 0), ("before_batch", 1), ("after_backward", 1),
     ("after_step", 1),
     ("after_train", 4), ("before_valid", 4), ("after_valid", 4), ("after_epoch", 4)],
)  # fmt: skip
def test_wherever_it_comes_it_ends_on_a_whole_step(point, steps):
    """One KeyboardInterrupt, an entry in the journal, and going on gives the weights of an
    undisturbed run."""
    loop, seen = make_loop(press(point), valid=True), []
    loop.hooks.add(
        LambdaHook(**{p: lambda t, p=p: seen.append(p)
                      for p in ("after_cancel", "after_exception", "cleanup_fit")})
    )
    with pytest.raises(KeyboardInterrupt):
        loop.fit(epochs=2)
    state = loop.step_state
    assert (loop.state, state.optimizer_step, state.window_batches) == ("interrupted", steps, 0)
    assert seen == ["after_cancel", "cleanup_fit"]
    assert [(e.kind, e.name, e.source, e.step)
            for e in loop.journal] == [("stop", "interrupt", "signal", steps)]
    assert loop.fit(epochs=2).status == "finished"
    whole = make_loop(valid=True)
    whole.fit(epochs=2)
    assert torch.equal(weights(loop), weights(whole))


@pytest.mark.parametrize("point", ["after_fit", "cleanup_fit"])
def test_an_interrupt_after_the_last_step_is_not_lost(point):
    """The run is finished, but the user who pressed Ctrl-C does not want the next cell to run."""
    loop = make_loop(press(point))
    with pytest.raises(KeyboardInterrupt):
        loop.fit(epochs=1)
    assert (loop.state, loop.step_state.optimizer_step) == ("finished", 4)
    assert loop.fit(epochs=2).status == "finished"


def test_step_is_interrupted():
    """It raises, too, and the steps made stay made."""
    loop = make_loop(press("after_step", number=2))
    with pytest.raises(KeyboardInterrupt):
        loop.step(4)
    assert (loop.state, loop.step_state.optimizer_step) == ("interrupted", 2)
    assert loop.step(2).steps == 4


def test_two_at_once_raise_in_mid_step():
    """The window is dropped at once; it counts as an interrupt, not as an error of the run."""
    loop = make_loop(press("before_step", number=2, times=2))
    with pytest.raises(KeyboardInterrupt) as excinfo:
        loop.fit(epochs=1)
    assert "on_interrupt" in [entry.name for entry in excinfo.traceback]
    assert (loop.state, loop.step_state.optimizer_step,
            loop.step_state.batch_idx) == ("interrupted", 1, 1)
    assert loop.fit(epochs=1).steps == 4


def make_trainer(*hooks):
    """The same with a schedule, an average and records, two epochs."""
    made = make_loop(valid=True)
    return Trainer(
        made.model, train_dl=made.train_dl, valid_dl=made.valid_dl, loss_fn=made.loss_fn,
        sched="cosine", ema=0.9,
        epochs=2, seed=0, device="cpu", progress=False, hooks=hooks,
        optim=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    )  # fmt: skip


@pytest.mark.parametrize("point",
                         ["after_step", "after_valid", "on_log", "after_epoch", "after_train"])
def test_two_at_once_lose_nothing_of_what_was_just_done(point):
    """The hooks that hear of a whole step, an evaluation or an epoch all hear of it;
    then it ends, and goes on exactly."""
    loop, whole = (make_trainer(press(point, number=3 if point == "after_step" else 1, times=2)),
                   make_trainer())
    with pytest.raises(KeyboardInterrupt):
        loop.fit()
    assert loop.exact and loop.step_state.inexact is None and loop.step_state.window_batches == 0
    loop.fit()
    whole.fit()
    assert torch.equal(weights(loop), weights(whole))
    assert loop.sched.last_epoch == whole.sched.last_epoch


@pytest.mark.parametrize("point",
                         ["after_step", "after_valid", "on_log", "after_epoch", "after_train"])
def test_the_third_raises_there_too_and_says_what_it_cost(point):
    """A hook that hangs can be ended; which hooks did not hear of it is not known."""
    loop = make_trainer(press(point, times=3))
    with pytest.raises(KeyboardInterrupt):
        loop.fit()
    assert not loop.exact
    part = {"after_step": "at the end of step 1",
            "after_valid": "in the evaluation after step 4"}.get(point, "")
    inexact = loop.step_state.inexact
    assert inexact.startswith("KeyboardInterrupt") and part in inexact
    assert loop.state_dict()["position"]["inexact"] == loop.step_state.inexact


def test_an_error_after_which_all_hooks_were_called_costs_nothing():
    """One in after_step, on_log or after_epoch, or in an evaluation that is made again."""
    for point in ("after_step", "on_log", "after_epoch", "after_loss"):
        failed = []

        def fail(trainer, *_, point=point, failed=failed):
            if not failed and (trainer.training is (point != "after_loss")):
                failed.append(1)
                raise ValueError(point)

        loop, whole = make_trainer(LambdaHook(**{point: fail})), make_trainer()
        with pytest.raises(ValueError, match=point):
            loop.fit()
        assert loop.exact, loop.exact
        loop.fit(), whole.fit()
        assert torch.equal(weights(loop), weights(whole))
        assert loop.sched.last_epoch == whole.sched.last_epoch


def test_an_error_among_the_hooks_of_an_evaluation_says_so():
    """Those before it have heard of the evaluation, and will again."""
    loop = make_trainer(LambdaHook(after_valid=lambda trainer: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        loop.fit()
    assert "in the evaluation after step 4" in loop.step_state.inexact and not loop.exact


def test_an_interrupt_at_a_detach_stops_the_run():
    """Ctrl-C at the moment of a detach: nothing goes on in the background, and the run is free to
    be driven."""
    loop = make_loop(LambdaHook(after_step=lambda trainer: trainer.detach()))
    loop.at_safe_point = lambda kind: signal.raise_signal(
        signal.SIGINT) if kind == "ended" else None
    with pytest.raises(KeyboardInterrupt):
        loop.fit(epochs=1)
    loop.at_safe_point = None
    assert not any(thread.name == "trainer_nb" for thread in threading.enumerate())
    assert loop.step_state.optimizer_step == 1
    loop.hooks.remove(loop.get_hook(LambdaHook))
    assert loop.fit(epochs=1).steps == 4


def test_each_drive_counts_its_own():
    """After an interrupted drive, the first Ctrl-C of the next one waits for the step again."""
    loop = make_loop(press("before_batch", number=1), press("before_batch", number=2))
    for steps in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            loop.fit(epochs=1)
        assert loop.step_state.optimizer_step == steps
    assert loop.fit(epochs=1).steps == 4


def test_an_interrupt_ends_a_held_pause():
    """Where a panel holds fit() in a pause, Ctrl-C gets out of it."""

    def tick(kind):
        if kind == "paused":
            signal.raise_signal(signal.SIGINT)

    loop = make_loop(LambdaHook(after_step=lambda trainer: trainer.pause()))
    loop.driver.status.front_end, loop.at_safe_point = True, tick
    with pytest.raises(KeyboardInterrupt):
        loop.fit(epochs=1)
    assert [entry.name for entry in loop.journal] == ["pause", "interrupt"]
    assert (loop.state, loop.step_state.optimizer_step) == ("interrupted", 1)


def own_handler(signum, frame):
    """A handler of another library."""


@pytest.mark.parametrize("handler",
                         [own_handler, signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL])
@pytest.mark.parametrize("end", ["finished", "stopped", "error", "interrupted", "paused"])
def test_the_handler_comes_back(handler, end):
    """Whoever handled the signal before handles it after, however the drive ends."""
    hook = {
        "finished": LambdaHook(), "stopped": LambdaHook(after_step=lambda t: t.stop()),
        "interrupted": press("after_step"), "error": LambdaHook(after_step=lambda t: 1 / 0),
        "paused": LambdaHook(after_step=lambda t: t.pause()),
    }[end]  # fmt: skip
    within = []
    loop = make_loop(hook,
                     LambdaHook(after_batch=lambda t: within.append(
                         signal.getsignal(signal.SIGINT))))
    before = signal.signal(signal.SIGINT, handler)
    try:
        try:
            loop.fit(epochs=1)
        except (ZeroDivisionError, KeyboardInterrupt):
            pass
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert loop.state == end
    assert handler not in within and callable(within[0])


def test_a_background_run_leaves_the_handler_alone():
    """Only the main thread may have one, and it is the cell's."""
    within = []
    loop = make_loop(
        LambdaHook(after_batch=lambda t: within.append(signal.getsignal(signal.SIGINT))))
    loop.start(epochs=1)
    loop.wait()
    assert set(within) == {signal.getsignal(signal.SIGINT)}


def test_a_run_of_anothers_thread_can_be_driven():
    """fit() in a thread of the user's own works; it just hears no Ctrl-C."""
    loop, results = make_loop(), []
    thread = threading.Thread(target=lambda: results.append(loop.fit(epochs=1)))
    thread.start()
    thread.join()
    assert results[0].status == "finished"


def test_detach_and_ctrl_c_at_once_leave_the_run_drivable():
    """The interrupt wins, and fit() goes on."""
    def both(trainer):
        """A click and a Ctrl-C between the same two steps."""
        trainer.detach()
        signal.raise_signal(signal.SIGINT)

    trainer = small_runs.make(epochs=2, hooks=[small_runs.at_step(2, both)])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert trainer.fit().status == "finished"


# ---- what a user of a plain script reads then


def make_told(folder=None, **settings):
    """A run of two epochs of four steps, in lines; Ctrl-C comes after step 6."""
    checkpoint = [] if folder is None else [CheckpointHook(folder, **settings)]
    trainer = make_trainer(press("after_step", number=6), *checkpoint)
    trainer.hooks.add(ProgressHook(style="lines"))
    return trainer


def said_at_the_end(trainer, capsys):
    """The lines after those of the progress."""
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("epoch ")]


def test_the_lines_say_where_the_run_was_saved_and_how_it_goes_on(tmp_path, capsys):
    """The file is complete then, and a resume names the same place in the same words."""
    trainer, file = make_told(tmp_path), tmp_path / "step_00000006.pt"
    place, saved = said_at_the_end(trainer, capsys)
    assert place == "interrupted after step 6, 1 of 2 epochs done: fit() goes on from there"
    assert saved == (f"saved in {file}: the same program started again resumes from it, any other "
                     f"after trainer.load({str(file)!r})")
    trainer.close()
    again = make_trainer(CheckpointHook(tmp_path))
    assert again.fit().status == "finished"
    assert capsys.readouterr().out == f"resumed from {file}: step 6, 1 of 2 epochs done\n"
    again.close()
    # what the line says can be called
    other = make_trainer()
    other.load(file)
    assert other.fit().status == "finished"
    assert torch.equal(weights(other), weights(again))


@pytest.mark.parametrize("resume", [None, False, "elsewhere"])
def test_what_does_not_resume_by_itself_is_loaded(resume, tmp_path, capsys):
    """A hook that begins new runs, or resumes from another file: the line has the call."""
    if resume == "elsewhere":
        resume = tmp_path / "elsewhere.pt"
        first = make_trainer()
        first.step(1)
        first.save(resume)
    trainer = make_trainer(press("after_step", number=6), ProgressHook(style="lines"),
                           CheckpointHook(tmp_path / "kept", resume=resume))
    *_, saved = said_at_the_end(trainer, capsys)
    file = tmp_path / "kept" / f"step_{trainer.step_state.optimizer_step:08d}.pt"
    assert file.exists()
    assert saved == f"saved in {file}: trainer.load({str(file)!r}), then fit(), goes on from it"


def test_what_was_not_saved_is_said(tmp_path, capsys):
    """Without a CheckpointHook: both ways to save. With one that cannot write: why not."""
    place, saved = said_at_the_end(make_told(), capsys)
    assert place == "interrupted after step 6, 1 of 2 epochs done: fit() goes on from there"
    assert saved == ("not saved: it ends with this process; trainer.save('run.pt') keeps it, "
                     "hooks=[CheckpointHook('checkpoints')] saves it by itself")
    trainer = make_told(tmp_path)
    hook = trainer.get_hook(CheckpointHook)
    saver, waited_for = hook.saver, threading.Event()
    where, join = saver.where, saver.writer.join

    def watched_where(*given):
        saver.writer.join = lambda: (waited_for.set(), join())
        try:
            return where(*given)
        finally:
            waited_for.set()

    def full(*_):
        waited_for.wait()  # the line waits for the file
        raise OSError("no space left")

    saver.where = watched_where

    trainer.hooks.add(LambdaHook(before_batch=lambda t: setattr(hook.folder, "add", full)
                                 if t.step_state.optimizer_step == 5 else None))
    with pytest.raises(OSError, match="no space left"):
        trainer.fit()
    out = capsys.readouterr().out
    assert "not saved: OSError: no space left\n" in out and "saved in" not in out


def test_a_run_that_was_stopped_in_code_is_not_called_lost(tmp_path, capsys):
    """A program that stops its run knows what it does; where the run is saved, it is said."""
    def stopped(*hooks):
        stop = LambdaHook(after_step=lambda t: t.stop() if t.step_state.optimizer_step == 6
                          else None)
        make_trainer(stop, ProgressHook(style="lines"), *hooks).fit()
        return [line for line in capsys.readouterr().out.splitlines()
                if not line.startswith("epoch ")]
    assert stopped() == ["stopped after step 6, 1 of 2 epochs done: fit() goes on from there"]
    assert stopped(CheckpointHook(tmp_path))[1].startswith(f"saved in {tmp_path}")


def test_in_the_middle_of_a_step(tmp_path, capsys):
    """Two at once: the batches are taken again."""
    trainer = make_trainer(press("before_step", number=6, times=2), ProgressHook(style="lines"))
    place, _ = said_at_the_end(trainer, capsys)
    assert place == ("interrupted after step 5, 1 of 2 epochs done, in the middle of a step: fit() "
                     "takes its batches again, not bit for bit")


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_script_that_is_ended_by_a_signal(signum, tmp_path):
    """The same from a real process; after SIGTERM no fit() of it can go on."""
    text = f"""
from trainer_nb import CheckpointHook, ProgressHook
from trainer_nb import Trainer
made = make_loop()
trainer = Trainer(made.model, train_dl=made.train_dl, loss_fn=made.loss_fn, epochs=100, seed=0,
                  device="cpu", workspace={str(tmp_path / "run")!r},
                  hooks=[Told(20), CheckpointHook()])
trainer.fit()
"""
    with Script(tmp_path, text) as script:
        script.wait_for("held")
        script.send(signum)
        code = script.end()
    first = "interrupted" if signum == signal.SIGINT else "stopped"
    step, saved = (next(line for line in script.lines if line.startswith(word))
                   for word in (first, "saved in"))
    number = int(script.said("cancelled")[0])
    assert number == 21
    file = tmp_path / "run" / "checkpoints" / f"step_{number:08d}.pt"
    done = f"after step {number}, {number // 16} of 100 epochs done"
    if signum == signal.SIGINT:
        assert code in (1, 130, -signal.SIGINT)
        assert step == f"interrupted {done}: fit() goes on from there"
    else:
        assert code == 143 and step == f"stopped {done}, by a signal"
    assert file.exists() and saved.startswith(f"saved in {file}: the same program started again")
