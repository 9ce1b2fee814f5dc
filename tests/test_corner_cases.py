"""Corner cases of runs that once went wrong."""

import itertools
import signal

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import Hook, LambdaHook, ProgressHook, RecorderHook, Trainer
from trainer_nb.core.control import Command

X = torch.arange(40.0).reshape(20, 2) / 40
Y = X.sum(1, keepdim=True)
BATCHES = [(X[i:i + 4], Y[i:i + 4]) for i in range(0, 20, 4)]


def make(model=None, **settings):
    """A small regression run without noise."""
    torch.manual_seed(0)
    model = model or nn.Linear(2, 1)
    settings = {"train_dl": BATCHES, "loss_fn": nn.MSELoss(), "progress": False, "device": "cpu",
                "optim": torch.optim.SGD(model.parameters(), 0.05)} | settings
    return Trainer(model, **settings)


def evaluated(trainer):
    """The steps at which the run evaluated."""
    return trainer.history.steps("valid/loss").tolist()


def at_step(step, action):
    """A hook that does something once, after a step."""
    done = []

    def after_step(trainer):
        """Act once."""
        if trainer.step_state.optimizer_step == step and not done:
            done.append(step)
            action(trainer)

    return LambdaHook(name="act", after_step=after_step)


def fail(trainer):
    """What a hook of the user's may do."""
    raise ValueError("the user's own")


def test_a_stop_at_the_limit_does_not_skip_in_the_next_epoch():
    """limit_batches: stopped right at an epoch's last batch, the next epoch begins at its first."""
    def run(stop):
        """The inputs trained on."""
        seen = []
        loader = DataLoader(TensorDataset(X, Y), batch_size=4)
        watch = LambdaHook(before_batch=lambda t: seen.append(t.batch[0][0, 0].item()))
        trainer = make(train_dl=loader, limit_batches=3, epochs=2, hooks=[watch], record=False)
        if stop:
            trainer.step(3)
            trainer.stop()
        trainer.fit()
        return seen

    assert run(stop=True) == run(stop=False)


def test_detach_and_ctrl_c_at_once_leave_the_run_drivable():
    """The interrupt wins, and fit() goes on."""
    def both(trainer):
        """A click and a Ctrl-C between the same two steps."""
        trainer.detach()
        signal.raise_signal(signal.SIGINT)

    trainer = make(epochs=2, hooks=[at_step(2, both)])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert trainer.fit().status == "finished"


class Extra(nn.Linear):
    """A module with a state that is no tensor, and a sparse buffer."""

    def __init__(self):
        super().__init__(2, 1)
        self.register_buffer("table", torch.eye(3).to_sparse())

    def get_extra_state(self):
        """Plain values."""
        return {"version": 1}

    def set_extra_state(self, state):
        """Nothing to keep."""


def test_extra_state_and_sparse_buffers_do_not_stop_a_run():
    """The journal's header takes a checksum of whatever a state dict holds."""
    trainer = make(Extra(), epochs=1)
    assert trainer.fit().status == "finished" and trainer.journal.header["weights"]


@pytest.mark.parametrize(("every", "expected"), [(3, [3, 6, 9, 12]), (2, [2, 4, 6, 8, 10, 12]), (5, [5, 10, 12])])
def test_evaluations_on_tail_windows_are_made(every, expected):
    """Five batches in windows of two: every third step is a tail."""
    trainer = make(valid_dl=BATCHES, max_steps=12, eval_every=every, gradient_accumulation_steps=2)
    trainer.fit()
    assert evaluated(trainer) == expected


@pytest.mark.parametrize("step", [5, 10])
def test_an_exception_after_a_step_does_not_lose_its_evaluation(step):
    """The evaluation that was due is made when the run goes on, the last one too."""
    trainer = make(valid_dl=BATCHES, max_steps=10, eval_every=5, hooks=[at_step(step, fail)])
    with pytest.raises(ValueError, match="user's own"):
        trainer.fit()
    assert trainer.fit().status == "finished" and evaluated(trainer) == [5, 10]


def test_looking_by_hand_ticks_no_scheduler():
    """validate() between a step and its evaluation is none of the run's evaluations."""
    model = nn.Linear(2, 1)
    optim = torch.optim.SGD(model.parameters(), 0.01)
    plateau = ReduceLROnPlateau(optim, patience=0, factor=0.1, threshold=1e9, threshold_mode="abs")
    trainer = make(model, optim=optim, sched=plateau, valid_dl=BATCHES, max_steps=10, eval_every=5)
    trainer.step(5)
    for _ in range(3):
        trainer.validate()
    assert plateau.last_epoch == 0 and optim.param_groups[0]["lr"] == 0.01
    trainer.fit()
    assert plateau.last_epoch == 2


def test_a_run_whose_losses_are_all_none_can_be_stopped():
    """On an endless loader of batches that are left out, a stop is obeyed at once."""
    seen = []

    def step(batch, trainer):
        """Leave every batch out; ask for a stop at the fifth."""
        seen.append(1)
        if len(seen) == 5:
            trainer.stop()
        return {"loss": None} if len(seen) < 1000 else fail(trainer)

    trainer = make(train_step=step, loss_fn=None, train_dl=itertools.cycle(BATCHES), max_steps=3)
    assert trainer.fit().status == "stopped" and len(seen) == 5


@pytest.mark.parametrize("hook", [RecorderHook(), ProgressHook(style="lines", every_steps=1)], ids=["recorder", "progress"])
def test_a_hook_switched_on_in_mid_run_takes_part(hook):
    """It hears of the beginning of the fit first, and works from then on."""
    hook.enabled = False
    name = "recorder" if isinstance(hook, RecorderHook) else "progress"
    trainer = make(epochs=4, hooks=[hook, at_step(7, lambda t: t.tune(**{f"{name}.enabled": True}))], record=False)
    assert trainer.fit().status == "finished"
    assert name != "recorder" or len(trainer.history["train/loss"]) == 13


def test_a_hook_added_in_mid_run_hears_of_the_beginning_once():
    """before_fit, then its other points; cleanup_fit at the end."""
    said = []

    class Late(Hook):
        """Notes what it hears."""

        def before_fit(self, trainer):
            """The beginning."""
            said.append("before_fit")

        def after_epoch(self, trainer):
            """An epoch."""
            said.append("after_epoch")

        def cleanup_fit(self, trainer):
            """The end."""
            said.append("cleanup_fit")

    trainer = make(epochs=3, hooks=[at_step(7, lambda t: t.hooks.add(Late()))])
    trainer.fit()
    assert said == ["before_fit", "after_epoch", "after_epoch", "cleanup_fit"]


def test_steps_asked_for_in_a_pause_are_forgotten_by_a_stop():
    """The pause that "step" would have made does not end a later fit()."""
    trainer = make(epochs=10, hooks=[at_step(3, lambda t: t.post(Command("step", {"n": 20}))), at_step(5, Trainer.stop)])
    assert trainer.fit().status == "stopped"
    assert trainer.fit().status == "finished"


@pytest.mark.parametrize("command", [Command("step", {"n": "x"}), Command("note"), Command("tune", {"lr": "x"}),
                                     Command("validate"), Command("dance")])
def test_a_bad_command_is_refused_and_the_run_goes_on(command):
    """Nothing that is posted can end a run by being wrong."""
    replies = []
    trainer = make(epochs=2, hooks=[at_step(3, lambda t: replies.append(t.post(command)))])
    assert trainer.fit().status == "finished"
    assert replies[0].status == "refused" and replies[0].reason


def test_a_skipped_first_window_evaluates_nothing():
    """No step was made yet, so there is none to evaluate."""
    batches = [(X[:4] * float("nan"), Y[:4]), *BATCHES]
    trainer = make(train_dl=batches, valid_dl=BATCHES, max_steps=8, eval_every=4, non_finite="skip")
    trainer.fit()
    assert evaluated(trainer) == [4, 8]


def test_a_scheduler_class_is_a_callable():
    """LinearLR itself is called with the optimizer; a plateau without anything to watch is refused."""
    assert isinstance(make(sched=LinearLR, epochs=1).sched, LinearLR)
    with pytest.raises(ValueError, match="no valid_dl"):
        make(sched=lambda optim: ReduceLROnPlateau(optim), epochs=1).fit()


@pytest.mark.parametrize("point", ["before_valid", "before_batch", "after_loss", "after_batch"])
def test_an_evaluation_within_an_evaluation_is_refused(point):
    """A clear error instead of an endless recursion."""
    def look(trainer):
        """Only from within an evaluation."""
        if not trainer.training:
            trainer.validate()

    trainer = make(valid_dl=BATCHES, epochs=1, hooks=[LambdaHook(**{point: look})])
    with pytest.raises(RuntimeError, match="an evaluation is going on already"):
        trainer.fit()


def test_a_recorder_of_ones_own_replaces_the_default_one():
    """Every step is recorded once."""
    trainer = make(epochs=1, hooks=[RecorderHook()])
    trainer.fit()
    assert len(trainer.history["train/loss"]) == 5


def test_best_is_never_nan():
    """A first evaluation that is not finite is not the best of anything."""
    trainer = make(valid_dl=[(X[:4] * float("nan"), Y[:4])], epochs=1)
    assert trainer.fit().best == {}


def test_a_stop_behind_a_pause_is_obeyed():
    """Where nothing can resume, the stop that waits behind the pause still counts."""
    def both(trainer):
        """Two wishes between the same two steps."""
        trainer.pause()
        trainer.stop()

    trainer = make(epochs=2, hooks=[at_step(2, both)])
    assert trainer.fit().status == "stopped"


def test_a_loss_module_is_evaluated_in_eval_mode():
    """Dropout or BatchNorm within a loss must not act while validating."""
    class Loss(nn.MSELoss):
        """Notes its mode."""

        modes = []

        def forward(self, pred, target):
            """The mean squared error."""
            self.modes.append(self.training)
            return super().forward(pred, target)

    make(loss_fn=Loss(), valid_dl=BATCHES[:1], epochs=1).fit()
    assert Loss.modes == [True] * 5 + [False]


def test_an_empty_validation_batch_is_an_error_that_says_so():
    """As in training."""
    with pytest.raises(ValueError, match="holds no sample"):
        make(valid_dl=[(X[:0], Y[:0])], epochs=1).fit()


def test_the_exception_of_after_fit_is_the_one_that_is_raised():
    """cleanup_fit runs once, and what it raises is a note."""
    said = []

    def cleanup(trainer):
        """Raises too."""
        said.append(trainer.state)
        raise KeyError("second")

    trainer = make(epochs=1, hooks=[LambdaHook(after_fit=fail, cleanup_fit=cleanup)])
    with pytest.raises(ValueError, match="user's own") as caught:
        trainer.fit()
    assert said == ["error"] and any("second" in note for note in caught.value.__notes__)


def test_planned_steps_follow_a_change_of_accumulation():
    """What is done stays done; only what is to come is counted anew."""
    trainer = make(epochs=4)
    trainer.step(epochs=2)
    trainer.tune(gradient_accumulation_steps=5)
    assert trainer.planned_steps == 12 and trainer.fit().steps == 12


def test_a_look_leaves_the_records_of_the_last_evaluation():
    """validate() and test() on other data return theirs; those of the run stay, and are what its state holds."""
    other = DataLoader(TensorDataset(X + 1, Y), batch_size=4)
    trainer = make(valid_dl=DataLoader(TensorDataset(X, Y), batch_size=4), epochs=1)
    trainer.fit()
    before = dict(trainer.records)
    assert trainer.validate(other)["valid/loss"] != before["valid/loss"]
    trainer.test(other)
    assert trainer.records == before == trainer.state_dict()["position"]["records"]
