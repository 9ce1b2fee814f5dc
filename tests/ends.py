"""A training process for each way in which one can end.

`python tests/ends.py PLACE WORKERS WAY` brings a run to a place, with 0, 2 or persistent loader
workers, and ends there; `test_process_exit.py` looks at exit code, seconds, and processes that are
left. `python tests/ends.py` alone goes through all of them (`make ends`).
"""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

PLACES = ("paused", "background", "paused background", "training", "evaluation", "predict",
          "validate", "lr_find", "finished")
WORKERS = ("0", "2", "persistent")
WAYS = ("exit", "exception", "interrupt", "two interrupts", "SIGTERM", "SIGTERM to all",
        "dead worker")
# the main thread is within a call of the trainer's
IN_CELL = ("training", "evaluation", "predict", "validate", "lr_find")
MARK = "TRAINER_NB_ENDS"


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
        os.kill(os.getpid(), signal.SIGINT)
        if way == "two interrupts":
            time.sleep(0.05)
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

    from trainer_nb import Trainer
    torch.set_num_threads(1)

    class Net(nn.Module):
        """Ends the process at its second batch of a kind."""
        def __init__(self):
            super().__init__()
            self.layer, self.armed, self.seen = nn.Linear(4, 1), False, 0

        def forward(self, inputs):
            """At the second batch after it was armed."""
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
    trainer = Trainer(model, train_dl=loader(), valid_dl=loader(), loss_fn=nn.MSELoss(),
                      epochs=epochs, device="cpu", progress=False,
                      limit_batches={"train": 20, "valid": 20})
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
        while trainer.step_state.optimizer_step < 3:
            time.sleep(0.01)
        if place == "paused background":
            trainer.pause().wait(10)
        end(way)
        if way == "dead worker":
            trainer.resume()
            trainer.wait(10)
    time.sleep(10)  # a signal is heard of a moment later


def alive(mark):
    """Processes that carry a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if (mark.encode() in path.read_bytes()
                and "Z" not in (path.parent / "stat").read_text().rpartition(")")[2].split()[0]):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def run(place, workers, way, patience=40.0):
    """Exit code, seconds from the end's beginning to that of the process, seconds until no process
    was left, and what it printed."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen([sys.executable, __file__, place, workers, way],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True, env=os.environ | {MARK: mark})
    line = process.stdout.readline()
    begun = time.monotonic()
    watchdog = threading.Timer(patience,
                               lambda: [os.kill(pid, signal.SIGKILL) for pid in alive(mark)])
    watchdog.start()
    try:
        code = process.wait()
        seconds = time.monotonic() - begun
        while alive(mark) and time.monotonic() < begun + patience:
            time.sleep(0.05)
        left = time.monotonic() - begun
        output = line + process.stdout.read() + process.stderr.read()
    finally:
        watchdog.cancel()
        for pid in alive(mark):
            os.kill(pid, signal.SIGKILL)
    return code, seconds, left, output


def faults(place, workers, way, code, seconds, left, output):
    """What is wrong with an end."""
    found = []
    if "ending" not in output:
        found.append("it never came there")
    if code not in expected(place, workers, way):
        found.append(f"exit code {code} instead of {sorted(expected(place, workers, way))}")
    if seconds > 12:
        found.append(f"{seconds:.1f} s to the end")
    if left > 20:
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
            print(f"{' / '.join(each):45} code {result[0]:4}  {result[1]:5.1f} s  none left after "
                  f"{result[2]:5.1f} s  {'; '.join(problems)}", flush=True)
            if problems:
                print("    " + result[3][-1500:].replace("\n", "\n    "), flush=True)
        print(f"{wrong} wrong")
        sys.exit(bool(wrong))
