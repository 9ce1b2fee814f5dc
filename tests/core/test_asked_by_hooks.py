"""States that are taken at a boundary have what the run's own code has asked for there, and what it
reads of the step before."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import CheckpointHook, Hook, LambdaHook, SnapshotHook, Trainer
from trainer_nb.core.control import Command
from trainer_nb.core.state import RunState


ASKS = {
    "tune": lambda trainer: trainer.tune(lr_scale=0.1),
    "assign": lambda trainer: setattr(trainer, "lr_scale", 0.1),
    "ask": lambda trainer: trainer.ask(lambda: trainer.tune(lr_scale=0.1)),
    "validate": lambda trainer: trainer.post(Command("validate")),
    "tune, then pause": lambda trainer: (trainer.tune(lr_scale=0.1), trainer.pause())}


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["rewind", "file"])
@pytest.mark.parametrize("point", ["after_step", "after_epoch"])
@pytest.mark.parametrize("asked", ASKS)
def test_a_state_has_what_hooks_have_asked_for_at_its_boundary(asked, point, way, tmp_path):
    """Who goes on from there does not call them again."""
    def act(trainer):
        at = trainer.step_state.optimizer_step
        if at == 8:
            ASKS[asked](trainer)

    def run(*hooks):
        torch.manual_seed(0)
        x = torch.randn(32, 3)
        loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=True)
        return Trainer(nn.Linear(3, 1), train_dl=loader, valid_dl=loader, loss_fn=nn.MSELoss(),
                       optim=lambda parameters: torch.optim.SGD(parameters, 0.1), epochs=3, seed=0,
                       hooks=[LambdaHook(**{point: act}), *hooks], device="cpu", progress=False)

    def to_the_end(trainer):
        while trainer.state is not RunState.FINISHED:  # the hook may pause it
            trainer.step(100)
        return trainer

    straight, first = run(), run(SnapshotHook(every_steps=8),
                                 CheckpointHook(tmp_path, every_steps=8, keep_last=9))
    to_the_end(straight)
    first.step(11 if "pause" not in asked else 8)
    if way == "rewind":
        first.rewind(8)
        again = first
    else:
        first.close()
        again = run()
        again.load(tmp_path / "step_00000008.pt")
    to_the_end(again)
    assert torch.equal(again.model.weight, straight.model.weight)
    for name in ("lr", "valid/loss"):
        assert again.history[name].tolist() == straight.history[name].tolist()
    def told(trainer):
        return [(each.kind, each.name, each.new, each.step, each.boundary)
                for each in trainer.journal.surviving() if each.kind in ("tune", "validate")]
    assert told(again) == told(straight)
    assert again.exact


class Jitter(Hook):
    """Changes the batch while the last loss was high."""

    def before_batch(self, trainer):
        """Before there is another one."""
        if trainer.training and trainer.loss is not None and float(trainer.loss) > 1:
            trainer.batch = [0.9 * trainer.batch[0], trainer.batch[1]]


class DecayByLoss(Hook):
    """Takes the decay of an epoch from the last loss of the one before."""

    def before_epoch(self, trainer):
        """Before its first batch."""
        if trainer.loss is not None:
            trainer.optim.param_groups[0]["weight_decay"] = 0.5 * float(trainer.loss)


@pytest.mark.parametrize("way", ["rewind", "file"])
@pytest.mark.parametrize("halt", [3, 8, 16])
@pytest.mark.parametrize("hook", [Jitter, DecayByLoss])
def test_the_loss_of_the_step_before_is_there_again(hook, halt, way, tmp_path):
    """For hooks that read it before the next batch has one; an evaluation does not change it."""
    def run(*hooks):
        torch.manual_seed(0)
        x = torch.randn(32, 3)
        loader = DataLoader(TensorDataset(x, 3 * x.sum(1, keepdim=True)), 4, shuffle=True)
        return Trainer(nn.Linear(3, 1), train_dl=loader, valid_dl=loader, loss_fn=nn.MSELoss(),
                       optim=lambda parameters: torch.optim.SGD(parameters, 0.02), epochs=3, seed=0,
                       hooks=[hook(), *hooks], device="cpu", progress=False)
    straight, first = run(), run(SnapshotHook(every_steps=1))
    straight.fit()
    first.step(halt)
    loss = first.loss.clone()
    if way == "rewind":
        first.step(2)
        first.rewind(halt)
        again = first
    else:
        first.save(tmp_path / "saved.pt")
        again = run()
        again.load(tmp_path / "saved.pt")
    assert torch.equal(again.loss, loss)
    again.fit()
    assert again.exact and torch.equal(again.model.weight, straight.model.weight)
