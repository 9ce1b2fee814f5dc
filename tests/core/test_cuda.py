"""What is promised of the CPU is so on a GPU: the weights of the loop by hand, also after a kill,
a file, a rewind and a replay; no more memory than by hand; an error leaves the run whole."""

import gc
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import exact_runs
import killed
import pytest
import torch
from exact_runs import Plan, differences, final, make_trainer, seed_everything, straight_run
from steered import Process as Steered
from test_several_optimizers import LOSSES, NAMES, adams, batches, make, new_gan
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainer_nb import EMAHook, Hook, SnapshotHook, Trainer

pytestmark = pytest.mark.cuda
TESTS = Path(__file__).parents[1]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    """As `trainer.exact` asks on a GPU."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# ---- the loop by hand


def parts(network="dense"):
    """A model on the GPU, a fused optimizer, and 24 batches in pinned memory."""
    torch.manual_seed(0)
    if network == "dense":
        shape = (32,)
        model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
                              nn.Linear(64, 8))
    elif network == "plain":
        shape = (32,)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    else:
        shape = (3, 16, 16)
        model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
                              nn.Dropout(0.2), nn.Flatten(), nn.Linear(16 * 49, 8))
    batches = [(torch.randn(16, *shape).pin_memory(), torch.randint(0, 8, (16,)).pin_memory())
               for _ in range(24)]
    model.cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), batches


def by_hand(network, precision, accumulation, compiled=None):
    """The textbook's loop; the weights, and those of the average."""
    model, optim, batches = parts(network)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    called = torch.compile(model, **compiled) if compiled is not None else model
    seed_everything(5)
    model.train()
    for number, (x, y) in enumerate(batches, 1):
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        with torch.autocast("cuda", DTYPES.get(precision), enabled=precision is not None):
            loss = nn.functional.cross_entropy(called(x), y)
        scaler.scale(loss / accumulation).backward()
        if number % accumulation == 0:
            scaler.unscale_(optim)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optim)
            scaler.update()
            optim.zero_grad()
            average.update_parameters(model)
    return model.state_dict(), average.module.state_dict()


def by_trainer(network, precision, accumulation, **settings):
    """The same by a trainer, with all that it does beside."""
    model, optim, batches = parts(network)
    ema = EMAHook(0.9, warmup=False)
    trainer = Trainer(model, train_dl=batches, loss_fn=nn.CrossEntropyLoss(), optim=optim, epochs=1,
                      mixed_precision=precision, gradient_accumulation_steps=accumulation,
                      grad_clip=1.0, ema=ema, seed=5, progress=False,
                      hooks=[SnapshotHook(every_steps=3)], **settings)
    assert trainer.device.type == "cuda" and len(trainer.history.names) == 0
    trainer.fit()
    assert trainer.exact or "compile" in settings, trainer.exact
    return model.state_dict(), ema.ema_model.state_dict()


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("precision", [None, "bf16", "fp16"])
@pytest.mark.parametrize("network", ["dense", "convolution"])
def test_the_weights_of_the_loop_by_hand(network, precision, accumulation):
    """Without a device= the GPU is taken; weights, buffers and the average are equal."""
    found = by_trainer(network, precision, accumulation)
    assert not differences(found, by_hand(network, precision, accumulation))


@pytest.mark.parametrize(("mode", "accumulation"), [("default", 4), ("reduce-overhead", 1)])
def test_compiled(mode, accumulation):
    """By Triton, and as CUDA graphs: as compiled by hand."""
    torch._dynamo.reset()
    found = by_trainer("dense", "bf16", accumulation, compile={"mode": mode})
    torch._dynamo.reset()
    assert not differences(found, by_hand("dense", "bf16", accumulation, {"mode": mode}))


def test_several_optimizers():
    """Two that take turns at each batch, one of them in a model that draws on the GPU."""
    data = [x.cuda() for x in batches()]
    gan = new_gan().cuda()
    optims = adams(gan)
    seed_everything(3)
    for x in [*data, *data]:
        for name in NAMES:
            LOSSES[name](gan, x).backward()
            optims[name].step()
            gan.zero_grad()
    trainer = make(new_gan().cuda(), data)
    trainer.fit()
    assert not differences(trainer.model.state_dict(), gan.state_dict())


# ---- going on


PLANS = [
    Plan(device="cuda"),
    Plan(device="cuda", augment="torch", precision="fp16", accumulation=2, clip=0.3, ema=0.9),
    Plan(device="cuda", precision="bf16", workers=2, sched="one cycle", optim="sgd", eval_every=2),
    Plan(device="cuda", micro_batch_size=2, generator="shared", sched="plateau"),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("at", [1, 4, 7])
def test_a_file_taken_up_by_another_process(plan, at, tmp_path):
    """The rest is the same, in a process that never saw the first part."""
    trainer = exact_runs.drive(exact_runs.new_run(plan), plan, exact_runs.Halt("step", at))
    assert trainer.exact
    trainer.save(tmp_path / "part.pt")
    default = Plan()
    changes = {name: value for name, value in vars(plan).items() if value != getattr(default, name)}
    done = subprocess.run(
        [sys.executable, exact_runs.__file__, str(tmp_path / "part.pt"), str(tmp_path / "end.pt"),
         json.dumps(changes)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(TESTS), os.environ.get("PYTHONPATH", "")])})
    assert done.returncode == 0, done.stderr
    straight = straight_run(plan)
    other = make_trainer(plan, weights=9)
    other.load(tmp_path / "end.pt")
    assert other.step_state.optimizer_step == straight.step_state.optimizer_step
    assert not differences(final(other), final(straight))


def steps_of(process, until):
    """The steps that a process tells, up to one; then it is killed."""
    steps = []
    for line in process.stdout:
        if line.startswith("step "):
            steps.append(int(line.split()[1]))
            if steps[-1] >= until:
                break
    process.kill()
    assert process.wait() == -signal.SIGKILL
    return steps


def test_killed_and_started_again(tmp_path):
    """By the signal that nobody can catch, twice; it goes on where its last file is."""
    results = []
    for name, kills in (("one", 0), ("other", 2)):
        result = tmp_path / f"{name}.json"
        words = [sys.executable, killed.__file__, str(tmp_path / name), "--result", str(result),
                 "--device", "cuda"]
        for at, first in [(6, 1), (13, 5)][:kills]:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert steps_of(process, at)[0] >= first  # a file a step, and two may be on their way
        subprocess.run(words, check=True, capture_output=True, timeout=120)
        results.append(result.read_text())
    assert results[0] == results[1]


def test_steered_from_outside_and_replayed(tmp_path):
    """Two settings and a rewind by another process; the journal repeats the run."""
    run = Steered(tmp_path / "run", epochs=20, arguments=("--device", "cuda")).start()
    run.ask("tune", {"lr": 0.02})
    run.ask("tune", {"grad_clip": 0.5})
    run.ask("rewind", {"step": 5})
    ended = run.end()
    replayed = run.replay()
    assert any(entry["kind"] == "rewind" for entry in ended["journal"])
    told = {"journal", "surviving", "status"}
    assert not differences({name: ended[name] for name in ended.keys() - told},
                           {name: replayed[name] for name in replayed.keys() - told})


def test_written_on_the_gpu_and_opened_on_the_cpu(tmp_path):
    """The weights are the same; the difference is told, and training goes on."""
    plan = Plan(device="cuda", ema=0.9, valid=None)
    trainer = make_trainer(plan)
    trainer.step(5)
    trainer.save(tmp_path / "part.pt")
    other = make_trainer(replace(plan, device="cpu"), weights=1)
    with pytest.warns(UserWarning, match=r"device 'cuda' \(here 'cpu'\), cuda '.*' \(here None\)"):
        other.load(tmp_path / "part.pt")
    pairs = zip(trainer.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    assert all(torch.equal(a.cpu(), b) for a, b in pairs)
    assert {each.device.type for each in other.model.state_dict().values()} == {"cpu"}
    other.fit()
    again = make_trainer(plan, weights=2)
    other.save(tmp_path / "end.pt")
    with pytest.warns(UserWarning, match=r"device 'cpu' \(here 'cuda'\)"):
        again.load(tmp_path / "end.pt")
    assert {each.device.type for each in again.model.state_dict().values()} == {"cuda"}


# ---- memory


class Peak(Hook):
    """The most memory from step 5 on."""

    found = 0

    def after_step(self, trainer):
        """The first steps make the optimizer's state."""
        if trainer.step_state.optimizer_step == 5:
            torch.cuda.reset_peak_memory_stats()
        self.found = torch.cuda.max_memory_allocated()


def large():
    """Activations of 64 MB a layer, 12 MB of weights."""
    torch.manual_seed(0)
    layers = [each for _ in range(3) for each in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(1024, 8)).cuda()
    data = [(torch.randn(16384, 1024), torch.randint(0, 8, (16384,))) for _ in range(2)] * 10
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), data


def test_no_more_memory_than_by_hand():
    """With history, the look for NaN and clipping: within two hundredths of the loop by hand."""
    model, optim, data = large()
    for number, (x, y) in enumerate(data):
        if number == 5:
            torch.cuda.reset_peak_memory_stats()
        x, y = x.cuda(), y.cuda()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad()
    own = torch.cuda.max_memory_allocated()
    del model, optim, x, y, loss
    gc.collect()
    model, optim, data = large()
    peak = Peak()
    trainer = Trainer(model, train_dl=data, loss_fn=nn.CrossEntropyLoss(), optim=optim, epochs=1,
                      grad_clip=1.0, hooks=[peak], progress=False)
    trainer.fit()
    assert own > 3e8
    assert peak.found <= 1.02 * own, (peak.found / 2**20, own / 2**20)


class Hungry(Hook):
    """Asks in one step for more than there is, as long as more than eight samples are passed."""

    kept = False
    asks = True

    def after_pred(self, trainer):
        """After the activations are there."""
        if self.asks and trainer.step_state.optimizer_step == 5 and len(trainer.pred) > 8:
            torch.empty(2**50, device="cuda")


def test_out_of_memory_and_on():
    """The error is torch's; what the failed pass held is free, and a run without random numbers
    ends as if it had not been."""
    hungry = Hungry()
    model, optim, batches = parts("plain")
    trainer = Trainer(model, train_dl=batches, loss_fn=nn.CrossEntropyLoss(), optim=optim, epochs=1,
                      seed=5, hooks=[hungry], progress=False)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.fit()
    assert trainer.step_state.optimizer_step == 5
    hungry.asks = False
    trainer.fit()
    model, optim, batches = parts("plain")
    straight = Trainer(model, train_dl=batches, loss_fn=nn.CrossEntropyLoss(), optim=optim,
                       epochs=1, seed=5, progress=False)
    straight.fit()
    assert not differences(trainer.model.state_dict(), straight.model.state_dict())


def test_smaller_pieces_where_memory_ends():
    """`micro_batch_size="auto"` halves the batch at a real error of the GPU."""
    model, optim, batches = parts("plain")
    trainer = Trainer(model, train_dl=batches, loss_fn=nn.CrossEntropyLoss(), optim=optim, epochs=1,
                      seed=5, hooks=[Hungry()], micro_batch_size="auto", progress=False)
    trainer.fit()
    assert trainer.step_state.optimizer_step == 24
    assert any("8" in str(entry.new) for entry in trainer.journal), list(trainer.journal)


# ---- processes


SCRIPT = """
import sys, torch
from trainer_nb import Trainer, launch

def train(engine):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.randn(40, 2))
    trainer = Trainer(model, train_dl=torch.utils.data.DataLoader(data, 8, shuffle=True),
                      loss_fn=torch.nn.MSELoss(), epochs=2, seed=1, progress=False, engine=engine)
    trainer.fit()
    return [str(trainer.device), next(trainer.model.parameters()).detach().cpu().tolist()]

if __name__ == "__main__":
    if sys.argv[1:] == ["look"]:
        torch.cuda.is_available()
        try:
            launch(train, "accelerate", num_processes=1)
        except RuntimeError as error:
            print("refused:", error)
        sys.exit()
    try:
        launch(train, "accelerate", num_processes=torch.cuda.device_count() + 1)
    except ValueError as error:
        print("refused:", error)
    together = launch(train, "accelerate", num_processes=1)
    alone = train("local")
    print("device:", together[0], alone[0])
    print("equal:", together[1] == alone[1])
    try:
        launch(train, "accelerate", num_processes=1)
    except RuntimeError as error:
        print("refused:", error)
"""


def test_launched_in_a_process_of_its_own(tmp_path):
    """On the GPU of its own by Accelerate; too many, and a GPU in use, are refused."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True,
                          timeout=180)
    assert done.returncode == 0, done.stderr
    told = done.stdout
    count = torch.cuda.device_count()
    assert f"num_processes={count + 1}: GPUs here: {count}" in told, told
    assert "device: cuda:0 cuda:0" in told and "equal: True" in told, told
    assert "CUDA is in use in this process" in told, told


def test_launched_after_a_look_for_cuda(tmp_path):
    """A process that called torch.cuda.is_available() cannot fork one that uses it: it is told."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script), "look"], capture_output=True, text=True,
                          timeout=180)
    assert done.returncode == 0, done.stderr
    told = done.stdout
    assert told.startswith("refused: launch(): this process has looked for CUDA"), told
