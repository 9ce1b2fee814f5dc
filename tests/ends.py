"""A training process for each way in which one can end.

`python tests/ends.py PLACE WORKERS WAY` brings a run to a place, with 0, 2 or persistent loader
workers, and ends there; `test_process_exit.py` checks the exit code, the output and which processes
are left. `python tests/ends.py` alone goes through all of them (`make ends`).
"""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import warm

PLACES = ("paused", "background", "paused background", "training", "evaluation", "predict",
          "validate", "lr_find", "finished")
WORKERS = ("0", "2", "persistent")
WAYS = ("exit", "exception", "interrupt", "two interrupts", "SIGTERM", "SIGTERM to all",
        "dead worker")
# the main thread is within a call of the trainer's
IN_CELL = ("training", "evaluation", "predict", "validate", "lr_find")
LIMIT = 300.0  # seconds, after which a process hangs


def expected(place, workers, way):
    """The exit codes that are right; a negative one is a signal's."""
    if way == "dead worker":
        return {1}
    return {"exit": {3}, "exception": {1}, "interrupt": {-signal.SIGINT, 130},
            "two interrupts": {-signal.SIGINT, 130},
            "SIGTERM": {-signal.SIGTERM}, "SIGTERM to all": {-signal.SIGTERM}}[way]


def scenarios():
    """All that make sense."""
    for place, workers, way in itertools.product(PLACES, WORKERS, WAYS):
        if way == "dead worker" and (workers == "0" or place in ("finished",)):
            continue
        yield place, workers, way


def children():
    """Pids of this process's worker processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def end(way):
    """End this process in a way."""
    print("ending", flush=True)
    if way == "exit":
        sys.exit(3)
    if way == "exception":
        raise ValueError("the user's own mistake")
    if way in ("interrupt", "two interrupts"):
        # handled before this returns
        os.kill(os.getpid(), signal.SIGINT)
        if way == "two interrupts":
            os.kill(os.getpid(), signal.SIGINT)
    if way == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    if way == "SIGTERM to all":
        os.killpg(0, signal.SIGTERM)
    if way == "dead worker":
        os.kill(children()[-1], signal.SIGSEGV)


def main(place, workers, way):
    """The process."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from trainer_nb import LambdaHook, Trainer
    torch.set_num_threads(1)
    begun, ended = threading.Event(), threading.Event()

    class Net(nn.Module):
        """Ends the process at its second batch of a kind."""
        def __init__(self):
            super().__init__()
            self.layer, self.armed, self.seen = nn.Linear(4, 1), False, 0

        def forward(self, inputs):
            """At the second batch after it was armed."""
            if begun.is_set() and (place, way) == ("background", "dead worker"):
                ended.wait()  # with batches left that the dead one had to load
            mine = self.training if place in ("training", "lr_find") else not self.training
            if self.armed and place in IN_CELL and mine:
                self.seen += 1
                if self.seen == 2:
                    end(way)
            return self.layer(inputs)

    inputs = torch.randn(4096, 4)
    data = TensorDataset(inputs, inputs[:, :1])
    settings = ({}
                if workers == "0"
                else {"num_workers": 2, "persistent_workers": workers == "persistent"})
    loader = lambda: DataLoader(data, 8, **settings)
    model = Net()
    epochs = 1 if place == "finished" else 1000

    def after_step(trainer):
        """In the background, the third step has been made."""
        if trainer.step_state.optimizer_step == 3:
            if place == "paused background":
                trainer.pause()
            begun.set()

    trainer = Trainer(model, train_dl=loader(), valid_dl=loader(), loss_fn=nn.MSELoss(),
                      epochs=epochs, device="cpu", progress=False,
                      limit_batches={"train": 20, "valid": 20},
                      hooks=[LambdaHook(after_step=after_step)])
    if place in ("training", "evaluation"):
        model.armed = True
        trainer.fit()
    elif place in ("predict", "validate", "lr_find"):
        trainer.step(3)
        model.armed = True
        {"predict": lambda: trainer.predict(loader()), "validate": trainer.validate,
         "lr_find": trainer.lr_find}[place]()
    elif place == "finished":
        trainer.fit()
        trainer.validate()
        end(way)
    elif place == "paused":
        trainer.step(3)
        end(way)
    else:
        trainer.start()
        begun.wait()
        while place == "paused background" and trainer.state != "paused":
            time.sleep(0.01)
        end(way)
        if way == "dead worker":
            ended.set()
            trainer.resume()
            trainer.wait(LIMIT)
    time.sleep(LIMIT)  # a signal is heard of a moment later


def alive(session):
    """Pids of the processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def run(place, workers, way, patience=LIMIT):
    """Exit code, seconds from the end's beginning to that of the process, the pids of processes
    that are left, and what it printed."""
    process = warm.Popen([sys.executable, __file__, place, workers, way], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, start_new_session=True)
    line = process.stdout.readline()
    begun = time.monotonic()
    watchdog = threading.Timer(patience, end_all, [process.pid])
    watchdog.start()
    try:
        code = process.wait()
        seconds = time.monotonic() - begun
        while (left := alive(process.pid)) and time.monotonic() < begun + patience:
            time.sleep(0.05)
        end_all(process.pid)  # one that is left holds the pipes
        output = line + process.stdout.read() + process.stderr.read()
    finally:
        watchdog.cancel()
        end_all(process.pid)
        process.stdout.close(), process.stderr.close()
    return code, seconds, left, output


def end_all(session):
    """Kill the processes of a session."""
    for pid in alive(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def faults(place, workers, way, code, seconds, left, output):
    """What is wrong with an end; the seconds are for people to read."""
    found = []
    if "ending" not in output:
        found.append("it never came there")
    if code not in expected(place, workers, way):
        found.append(f"exit code {code} instead of {sorted(expected(place, workers, way))}")
    if left:
        found.append("processes were left")
    odd = r"terminate called|core dumped|Fatal Python error"
    # torch raises that death wherever it finds the main thread
    if re.search(odd if way == "dead worker" else odd + "|Exception ignored", output):
        found.append("it said something odd")
    return found


if __name__ == "__main__":
    if len(sys.argv) == 4:
        main(*sys.argv[1:])
    else:
        wrong = 0
        for each in scenarios():
            result = run(*each)
            problems = faults(*each, *result)
            wrong += bool(problems)
            print(f"{' / '.join(each):45} code {result[0]:4}  {result[1]:5.1f} s  "
                  f"{'; '.join(problems)}", flush=True)
            if problems:
                print("    " + result[3][-1500:].replace("\n", "\n    "), flush=True)
        print(f"{wrong} wrong")
        sys.exit(bool(wrong))
