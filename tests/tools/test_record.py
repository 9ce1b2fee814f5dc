"""`record`: a hook that a tab of the panel needs is added in a run, journalled and replayed."""

import pytest
import torch
from digits_runs import wait_for
from feed_page import Page
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import LayerStatsHook, ReplayHook, SamplesHook, SnapshotHook, Trainer
from trainer_nb.core.control import Command


def make(*hooks, valid=True, **settings):
    """A small classifier, ten steps an epoch."""
    torch.manual_seed(0)
    made = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(160, 4, generator=made),
                         torch.randint(3, (160,), generator=made))
    settings = {"epochs": 3, "seed": 2, "progress": False, "device": "cpu"} | settings
    return Trainer(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
                   train_dl=DataLoader(data, 16, shuffle=True), loss_fn=nn.CrossEntropyLoss(),
                   valid_dl=DataLoader(data, 40) if valid else None, hooks=hooks, **settings)


def offers(page):
    """The buttons of the tab Record that act."""
    return [label for label, each in page.view["commands"]["record"]["buttons"].items()
            if "why_not" not in each]


def test_layers_from_here_on():
    """Added at the boundary, with its tab; the journal has it, and the run is the same."""
    trainer, plain = make(), make()
    plain.fit()
    trainer.step(12)
    trainer.do("record", what="layers")
    assert isinstance(trainer.get_hook(LayerStatsHook), LayerStatsHook)
    assert "layers" in trainer.view.panes
    trainer.fit()
    steps = trainer.get_hook(LayerStatsHook).series("0").steps
    assert list(steps) == [21]  # each tenth one
    assert [(each.kind, each.new, each.step) for each in trainer.journal] == [
        ("record", "layers", 12)]
    assert "step 12: record: layers" in str(trainer.journal)
    assert all(map(torch.equal, trainer.model.state_dict().values(),
                   plain.model.state_dict().values()))


def test_samples_of_a_run_in_progress():
    """By a page, while it runs in its thread; the offer is gone then."""
    trainer = make(epochs=5_000)
    page = Page(trainer.feed).hello()
    assert offers(page) == ["Record layers", "Record samples", "Keep snapshots"]
    trainer.start()
    page.command("record", what="samples")
    wait_for(lambda: trainer.get_hook(SamplesHook) is not None
             and trainer.get_hook(SamplesHook).evaluations)
    trainer.stop()
    trainer.wait()
    trainer.feed.look()
    assert offers(page) == ["Record layers", "Keep snapshots"]
    assert "data" in page.view["run"]["panes"]
    assert trainer.journal.entries[0].source == "widget"
    trainer.close()


def test_snapshots_from_here_on():
    """Rewind had nothing to go back to; now it has the state of now, and of the end of an epoch."""
    trainer, plain = make(), make()
    plain.fit()
    page = Page(trainer.feed).hello()
    trainer.step(12)
    assert "Keep snapshots" in page.view["commands"]["rewind"]["buttons"]["Rewind"]["why_not"]
    page.command("record", what="snapshots")
    trainer.step(15)
    trainer.feed.look()
    assert trainer.view.rewind_points() == [12, 20]
    assert "why_not" not in page.view["commands"]["rewind"]["buttons"]["Rewind"]
    assert offers(page) == ["Record layers", "Record samples"]
    trainer.rewind(12)
    trainer.fit()
    assert all(map(torch.equal, trainer.model.state_dict().values(),
                   plain.model.state_dict().values()))
    trainer.close()


@pytest.mark.parametrize(("values", "text"), [
    ({}, "needs what="), ({"what": "layer"}, "layers"), ({"what": 3}, "a text"),
    ({"what": "layers", "every": 2}, "no such value")])
def test_what_cannot_be_recorded(values, text):
    trainer = make()
    with pytest.raises(ValueError, match=text):
        trainer.do("record", **values)
    assert len(trainer.journal) == 0


def test_once_is_enough():
    """A hook that is there, be it off, is no second one."""
    trainer = make(LayerStatsHook())
    reply = trainer.post(Command("record", {"what": "layers"}))
    assert reply.status == "refused" and "'layer_stats' is there already" in reply.reason
    trainer.tune(**{"layer_stats.enabled": False})
    assert "layer_stats.enabled" in trainer.post(Command("record", {"what": "layers"})).reason


def test_without_validation_no_samples_are_offered():
    trainer = make(valid=False)
    page = Page(trainer.feed).hello()
    assert offers(page) == ["Record layers", "Keep snapshots"]
    button = page.view["commands"]["record"]["buttons"]["Record samples"]
    assert "no valid_dl" in button["why_not"]


def changed():
    """A run in which layers are recorded, more often from a later step on."""
    trainer = make()
    trainer.step(5)
    trainer.do("record", what="layers")
    trainer.step(5)
    trainer.tune(**{"layer_stats.every_steps": 2})
    trainer.tune(lr=0.01)
    trainer.fit()
    return trainer


def test_it_is_replayed():
    """With the changes of its tunables."""
    first = changed()
    again = make(ReplayHook(first.journal))
    again.fit()
    assert [each.what for each in again.journal] == [each.what for each in first.journal]
    mine, other = (each.get_hook(LayerStatsHook) for each in (first, again))
    assert list(mine.series("0").steps) == list(other.series("0").steps)
    assert all(map(torch.equal, first.model.state_dict().values(),
                   again.model.state_dict().values()))


def test_a_journal_that_records_something_else_is_refused():
    journal = changed().journal
    journal.entries[0].new = "secrets"
    with pytest.raises(ValueError, match="record 'secrets', one of layers, samples, snapshots"):
        make(ReplayHook(journal)).fit()


def test_the_script_records_too():
    """It makes the same hook, and the same changes of it."""
    first = changed()
    script = first.journal.to_script(epochs=3)
    assert "trainer.do('record', what='layers')" in script
    names = {"make_trainer": lambda seed: make()}
    exec(script, names)  # noqa: S102
    assert names["trainer"].get_hook(LayerStatsHook).every_steps == 2
    assert torch.equal(names["trainer"].model[0].weight, first.model[0].weight)


def test_a_rewind_to_a_step_before():
    """The hook stays: what is there goes on to be recorded."""
    trainer = make(SnapshotHook(every_steps=5))
    trainer.step(12)
    trainer.do("record", what="layers")
    trainer.step(10)
    trainer.rewind(10)
    trainer.fit()
    assert trainer.get_hook(LayerStatsHook) is not None
    assert trainer.state == "finished" and trainer.step_state.optimizer_step == 30


def test_a_checkpoint_of_it_loads_into_a_run_without(tmp_path):
    """And the other way round."""
    first, plain = changed(), make()
    plain.fit()
    first.save(tmp_path / "with.pt")
    plain.save(tmp_path / "without.pt")
    other = make()
    other.load(tmp_path / "with.pt")
    assert torch.equal(other.model[0].weight, first.model[0].weight)
    again = changed()
    again.load(tmp_path / "without.pt")
    assert torch.equal(again.model[0].weight, plain.model[0].weight)
