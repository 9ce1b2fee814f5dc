"""What an agent asks for, in the panel: of a run in this kernel, and of one elsewhere."""

import threading

import pytest
import torch
from jupyter_server import LIMIT
from steered import Process, until
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import LambdaHook, Trainer, attach
from trainer_nb.core.control import Reply, WaitingCommand
from trainer_nb.folder.control import ControlFolder, Replies, Request
from trainer_nb.hooks.remote_control import MOST_WAITING
from trainer_nb.panel.approvals_pane import SETTLE, ApprovalsPane, asked_text


def asked(control, values=None, name="tune", **others):
    """Leave a command that waits; its id."""
    values = {"lr": 0.25} if values is None else values
    return control.send(Request(name, values, "agent:night", user="a", host="b", approve=True,
                                **{"reason": "it <b>rises</b>", **others}))


@pytest.fixture
def run(tmp_path):
    """A run of this kernel that is paused at step 3."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    trainer = Trainer(torch.nn.Linear(4, 1), train_dl=DataLoader(TensorDataset(x, x[:, :1]), 8),
                      loss_fn=torch.nn.MSELoss(), epochs=2,
                      device="cpu", progress=False, workspace=tmp_path / "run")
    trainer.step(3)
    yield trainer
    trainer.close()


def settled(pane):
    """Lines are old enough for a click."""
    for line in pane.lines:
        line._since -= SETTLE + 1


def test_a_run_of_this_kernel_is_asked(run):
    """A click lets it go; in code `approve` and `decline` do."""
    control, replies = ControlFolder(run.workspace), Replies(ControlFolder(run.workspace))
    board = run.dashboard
    assert board.approvals.widget.layout.display == "none"
    first, second, third = (asked(control), asked(control, {}, "stop"),
                            asked(control, {"grad_clip": 2.0}))
    until(lambda: len(run.waiting) == 3)
    board.refresh()
    line = board.approvals.lines[0]
    assert "<b>agent:night</b> asks: <b>lr " in line.text.value
    assert "→ 0.25</b>: it &lt;b&gt;rises" in line.text.value
    assert board.approvals.widget.layout.display is None and run.rate != 0.25
    settled(board.approvals)
    line.approve.click()
    board.refresh()
    assert replies.wait(first, LIMIT)["status"] == "applied"
    assert run.rate == 0.25 and line.widget.layout.display == "none"
    run.decline(second, "not at night")
    run.approve(third)
    assert replies.wait(second, LIMIT)["reason"].endswith("declined it: not at night")
    assert run.waiting == []
    assert replies.wait(third, LIMIT)["status"] == "applied" and run.grad_clip == 2.0
    with pytest.raises(ValueError, match="no command .* waits for approval: refused"):
        run.approve(second)


@pytest.mark.slow
def test_the_thread_that_trains_does_not_wait_for_what_it_approves(run, monkeypatch):
    """Without subshells a click is handled between two steps, by that thread."""
    control, rates, waited, wait = ControlFolder(run.workspace), [], [], Reply.wait
    id = asked(control)
    until(lambda: run.waiting)

    def approves(trainer):
        if trainer.step_state.optimizer_step == 6:
            trainer.approve(id)
            rates.append(trainer.rate)

    def waits(reply, *seconds):
        waited.append(threading.current_thread())
        return wait(reply, *seconds)

    monkeypatch.setattr(Reply, "wait", waits)
    run.hooks.add(LambdaHook(after_step=approves))
    run.step(5)
    assert rates[0] != 0.25 and run.rate == 0.25 and run.journal.entries[-1].step == 6
    assert threading.current_thread() not in waited
    assert Replies(control).wait(id, LIMIT)["status"] == "applied"


@pytest.mark.long
def test_a_run_elsewhere_is_asked(tmp_path):
    """The same panel, through its folder; what is decided is in its journal."""
    process = Process(tmp_path / "run", epochs=2000).start()
    try:
        remote = attach(tmp_path / "run")
        board, id = remote.dashboard, asked(process.control, {"lr": 1e-3})
        until(lambda: remote.waiting)
        board.refresh()
        settled(board.approvals)
        board.approvals.lines[0].approve.click()
        assert process.replies.wait(id, LIMIT)["status"] == "applied"
        until(lambda: remote.journal.entries and not remote.waiting)
        assert remote.journal.entries[-1].source == "agent:night"
        assert "approved by" in remote.journal.entries[-1].by
        remote.close()
    finally:
        process.kill()


class View:
    """A run of which only what waits counts."""

    def __init__(self, *ids):
        self.waiting, self.tunables, self.posted = [self.one(id) for id in ids], [], []

    def one(self, id):
        return WaitingCommand(id, "pause", {}, "agent:night", "a@b", "", 3)

    def post(self, command):
        self.posted.append((command.name, command.values["id"], command.source))
        return type("Reply", (), {"status": "pending", "reason": ""})


def test_a_click_decides_on_the_line_that_was_seen():
    """No line moves up, and one that was filled a moment ago takes no click."""
    view = View("1", "2", "3", "4")
    pane = ApprovalsPane(view)
    assert [line.id for line in pane.lines] == ["1", "2", "3"] and "1 more" in pane.more.value
    pane.lines[0].approve.click()
    assert view.posted == []
    settled(pane)
    view.waiting = view.waiting[1:]
    pane.refresh()  # the first is gone: its line is empty, or new
    assert [line.id for line in pane.lines][1:] == ["2", "3"]
    pane.lines[0].approve.click()
    assert view.posted == []
    pane.lines[1].decline.click()
    assert view.posted == [("decline", "2", "widget")]
    pane.refresh()
    assert pane.lines[0].id == "4"
    assert pane.lines[1].approve.disabled and not pane.lines[2].approve.disabled


def test_what_another_program_wrote_is_no_markup():
    """Escaped and cut, also the names of values."""
    evil = "<script>x</script>" + "y" * 10_000
    text = asked_text(WaitingCommand("1", "tune", {evil: evil}, evil, evil, evil, 3), {evil: evil})
    assert "<script" not in text and len(text) < 3000
    assert "<script" not in asked_text(WaitingCommand("1", evil, {"step": evil}, evil, evil, evil,
                                                      3), {})


@pytest.mark.slow
def test_only_a_number_of_requests_wait(run):
    """The next one is refused, and says why."""
    control, replies = ControlFolder(run.workspace), Replies(ControlFolder(run.workspace))
    for _ in range(MOST_WAITING):
        asked(control)
    until(lambda: len(run.waiting) == MOST_WAITING)
    assert "a person has to decide first" in replies.wait(asked(control), LIMIT)["reason"]
    run.close()
    assert {each["status"] for each in replies.read().values()} == {"void", "refused"}
