"""Other runs behind that of a feed: names, what is kept, their curves, what pages ask."""

import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from feed_page import apply
from small_runs import make
from steered import until
from torch import nn, optim
from written_runs import trained

from trainer_nb import LambdaHook, SnapshotHook, attach
from trainer_nb.panel import other_runs
from trainer_nb.panel.bins import COLUMNS, Bins, Records
from trainer_nb.panel.feed import VERSION, Feed
from trainer_nb.panel.other_runs import (DROPPED, LONGEST_NAME, PAST, PastRun, RunsBeside,
                                         differing_names, remember_run)
from trainer_nb.remote.live_page import MOST_BESIDE, Beside, Pages, runs_beside
from trainer_nb.remote.remote_view import RemoteRunView


@pytest.fixture(autouse=True)
def empty():
    """A kernel in which no run has ended."""
    PAST.clear()
    DROPPED.clear()
    yield
    PAST.clear()
    DROPPED.clear()


def ended(lr=0.05, epochs=2, **settings):
    """A run that has ended."""
    model = nn.Linear(2, 1)
    trainer = make(model, epochs=epochs, optim=optim.SGD(model.parameters(), lr), **settings)
    trainer.fit()
    return trainer


def remembered(*rates, **settings):
    """Runs that have ended in this kernel, by their rate."""
    trainers = [ended(lr, **settings) for lr in rates]
    for trainer in trainers:
        remember_run(trainer.view, 1)
    return trainers


def runs_behind(trainer, find=None):
    """The other runs of a trainer, as its feed has them."""
    records = Records()
    records.read(trainer.view)
    runs = RunsBeside(trainer.view, records, find)
    runs.update()
    assert list(runs.read(every=True)) == []
    return runs


class Page:
    """A page of a feed: its view, the curves by name, and the answers, from messages alone."""

    def __init__(self, feed, **about):
        self.view, self.curves, self.answers, self.messages, self.number = {}, {}, {}, [], 0
        self.own = feed.page(self.take, **about)
        self.own.hear({"ask": "hello", "v": VERSION})

    def take(self, message, buffers):
        """A message as it travels."""
        message = json.loads(json.dumps(message, allow_nan=False))
        self.messages.append(message)
        if "re" in message or "status" in message:
            self.answers[message.get("re")] = message
            return
        if "view" in message:
            self.view, self.curves = message["view"], {}
        self.view = apply(self.view, message.get("patch", {}))
        if message.get("again"):
            self.curves = {name: each for name, each in self.curves.items() if "#" in name}
        for number in message.get("void", []):
            self.curves = {name: each for name, each in self.curves.items()
                           if not name.endswith(f"#{number}")}
        for head, data in zip(message.get("curves", []), buffers, strict=True):
            assert head["stride"] == 1  # these runs are short
            new = np.frombuffer(data, "<f4").reshape(-1, len(COLUMNS))
            before = self.curves.get(head["name"], new[:0])
            assert len(before) >= head["from"]
            self.curves[head["name"]] = np.concatenate([before[:head["from"]], new])

    def ask(self, ask, **values):
        """Ask for something; the answer."""
        self.number += 1
        self.own.hear({"ask": ask, "id": str(self.number), **values})
        return self.answers[str(self.number)]


# Names and numbers


def test_a_run_is_named_by_what_differs():
    remembered(0.05, 0.003)
    runs = runs_behind(ended(0.1))
    assert list(runs.names().values()) == ["lr 0.05", "lr 0.003",
                                           "lr 0.1"]
    remembered(0.003)
    runs.update()
    first, second, third = [each.number for each in PAST]
    names = runs.names()
    assert names[first] == "lr 0.05"
    assert names[second] == f"lr 0.003 · run {second}"
    assert names[third] == f"lr 0.003 · run {third}"
    assert (first, second, third) == (first, first + 1, first + 2)


def test_the_rate_of_a_schedule_that_rises_is_the_one_that_was_given():
    """`one_cycle` begins at a twenty-fifth of it."""
    remembered(0.05, sched="one_cycle")
    assert list(runs_behind(ended(0.1, sched="one_cycle")).names().values()) == [
        "lr 0.05", "lr 0.1"]


def test_settings_of_some_runs_only_are_not_named():
    """Betas follow from the optimizer, which is named."""
    sgd = {"optimizer": "SGD", "lr": 0.1, "momentum": 0, "seed": 1}
    adam = {"optimizer": "AdamW", "lr": 0.1, "betas": "[0.9, 0.99]", "seed": 1}
    assert differing_names([("net", sgd), ("net", adam), ("net", {})]) == [
        "optimizer SGD", "optimizer AdamW", "net"]
    assert differing_names([("net", sgd | {"fused": True, "lr": 3e-5}), ("net", sgd)]) == [
        "lr 3e-5", "lr 0.1"]


def test_a_name_of_a_person_stays_and_no_two_runs_share_one():
    remembered(0.05, 0.003)
    first, second = PAST
    runs = runs_behind(ended(0.1))
    runs.do("rename", first.number, "  the\nbest  ")
    assert runs.names()[first.number] == "the best"
    for taken in ("the best", runs.names()[0]):
        with pytest.raises(ValueError, match="name of another run"):
            runs.do("rename", second.number, taken)
    with pytest.raises(ValueError, match="a letter at least"):
        runs.do("rename", second.number, " \n")
    runs.do("rename", second.number, "x" * 200)
    assert len(runs.names()[second.number]) == LONGEST_NAME
    other = runs_behind(ended(0.2))  # another panel of the kernel has the names, too
    assert other.names()[first.number] == "the best"
    runs.do("rename", first.number, "lr 0.7")
    remembered(0.7)
    runs.update()
    assert len(set(runs.names().values())) == 4


def test_a_run_that_trains_on_is_remembered_once_and_keeps_its_number():
    trainer, = remembered(0.05)
    past, = PAST
    number = past.number
    remember_run(trainer.view, 1)
    trainer.fit(epochs=3)
    remember_run(trainer.view, 2)
    assert PAST == [past] and past.number == number and past.position.step == 15
    assert len(past.records()["train/loss"]) == 15
    assert runs_behind(trainer).of == {}  # it is not behind itself


# What is kept


def test_all_runs_are_kept_until_there_is_no_room(monkeypatch):
    monkeypatch.setattr(other_runs, "KEPT_RUNS", 3)
    trainers = remembered(0.1, 0.2, 0.3)
    runs = runs_behind(ended(1.0))
    numbers = [each.number for each in PAST]
    runs.do("show", numbers[0])
    assert runs.rows()["dropped"] == 0 and len(runs.of) == 3
    remembered(0.4)
    runs.update()
    assert [each.number for each in PAST] == [*numbers[1:], numbers[-1] + 1]
    assert numbers == [*DROPPED, *numbers[1:]] and list(runs.of) == [each.number for each in PAST]
    assert runs.shown == [] and runs.rows()["dropped"] == 1
    monkeypatch.setattr(other_runs, "KEPT_BYTES", PAST[-1].bytes + 1)
    trainers[-1].fit(epochs=3)  # it comes to be larger than all others
    remember_run(trainers[-1].view, 2)
    assert len(PAST) == 1 and len(DROPPED) == 3
    monkeypatch.setattr(other_runs, "KEPT_BYTES", 1)  # the last one stays
    remembered(0.5)
    assert len(PAST) == 1 and len(DROPPED) == 4


def test_runs_with_the_same_loss_come_first():
    remembered(0.1)
    remembered(0.2, loss_fn=nn.L1Loss())
    runs = runs_behind(make())  # which has not begun: nothing is known of its loss
    assert runs.drawn() == {"runs": {}, "count": 2, "earlier": PAST[1].number}
    own = ended(0.3)
    runs = runs_behind(own)
    assert runs.drawn()["earlier"] == PAST[0].number
    like = {number: row["like"] for number, row in runs.rows()["rows"].items()}
    assert like == {"0": True, str(PAST[0].number): True, str(PAST[1].number): False}
    PAST.clear()
    runs.update()
    assert runs.drawn() == {"runs": {}, "count": 0}


# Rows


def test_rows_have_results_and_what_differs():
    first, = remembered(0.1, valid_dl=make().train_dl, hooks=[SnapshotHook(every_steps=2)])
    own = ended(0.2, valid_dl=make().train_dl, grad_clip=1.0)
    for trainer in (first, own):  # what all have done tells nothing
        trainer.tune(gradient_accumulation_steps=2)
    own.tune(lr=0.3)
    own.tune(grad_clip=2.0)
    table = runs_behind(own).rows()
    row, past = table["rows"]["0"], table["rows"][str(PAST[0].number)]
    assert table["settings"] == ["lr", "grad_clip"] and table["can_add"] is False
    assert row["settings"] == {"lr": 0.2, "grad_clip": 1.0} and past["settings"] == {
        "lr": 0.1, "grad_clip": "none"}
    assert (row["steps"], past["steps"], past["state"], past["mine"]) == (10, 10, "finished", True)
    assert "by_hand" not in past and row["by_hand"]["count"] == 2
    assert row["by_hand"]["first"].startswith("step 10: lr 0.2 (initial) → 0.3")
    values = first.history["valid/loss"]
    assert past["values"]["valid/loss"] == {
        "last": pytest.approx(values[-1]), "best": pytest.approx(min(values)), "at": 10}
    assert past["values"]["train/loss"] == {
        "last": pytest.approx(np.mean(first.history["train/loss"]))}
    assert set(past["values"]) == {"train/loss", "valid/loss"} == set(table["records"])


def test_a_row_is_the_same_from_a_trainer_and_from_its_files(tmp_path):
    trainer = trained(tmp_path / "exp1", valid_dl=[(nn.Linear(3, 3).weight.detach(),
                                                    nn.Linear(3, 1).weight.detach().T)])
    remember_run(trainer.view, 1)
    remote = RemoteRunView(tmp_path / "exp1")
    until(lambda: remote.look() or remote.position.step == 24 and len(
        remote.records()["train/loss"]) == 24 and remote.state == "finished")
    runs = runs_behind(ended())
    other = runs.offer(remote, "exp1")
    list(runs.read(every=True))
    here, there = (runs.rows()["rows"][str(number)] for number in (PAST[0].number, other.number))
    assert there["name"] == "exp1" and there["mine"] is False
    # the last status is written a moment before the clock stops
    assert here == there | {"name": here["name"], "mine": True, "seconds": here["seconds"]}
    trainer.close()


# What pages are told


def bins_of(records):
    """The rows of records, by name."""
    found = {}
    for name, series in records.items():
        if not name.startswith("time/"):
            bins = Bins()
            bins.extend(series)
            found[name] = bins.since(0, open=True)[1]
    return found


def same_curves(page, number, records):
    """Whether a page has the curves of another run bit for bit."""
    found = {name.removesuffix(f"#{number}"): rows for name, rows in page.curves.items()
             if name.endswith(f"#{number}")}
    wanted = bins_of(records)
    assert found.keys() == wanted.keys()
    for name, rows in wanted.items():
        np.testing.assert_array_equal(found[name], rows, err_msg=name)
    return bool(found)


def test_curves_of_a_run_that_is_shown_travel_until_it_is_hidden():
    first, second = (each for lr in (0.1, 0.2)
                     for each in remembered(lr, hooks=[SnapshotHook(every_steps=2)]))
    own = ended(0.3)
    page, late = Page(own.feed), None
    names = set(page.curves)
    one, two = (each.number for each in PAST[:2])
    assert page.view["drawn"] == {"runs": {}, "count": 2, "earlier": two}
    assert page.ask("run", do="show", number=one) == {"re": "1", "status": "applied"}
    assert same_curves(page, one, first.view.records())
    assert page.view["drawn"]["runs"] == {str(one): {"name": "lr 0.1"}}
    heads = next(each for each in page.messages if "curves" in each and "view" not in each)
    assert {each["run"] for each in heads["curves"]} == {one}
    page.ask("run", do="show", number=two)
    late = Page(own.feed)
    for each in (page, late):
        assert same_curves(each, two, second.view.records())
        assert set(each.curves) > names
    assert late.messages[0].get("void") is None
    late.own.hear({"ask": "hello", "v": VERSION})  # a reload: everything once more
    assert same_curves(late, one, first.view.records()) and late.curves.keys() == page.curves.keys()
    first.rewind(4)  # its records begin anew, with a branch
    first.fit(epochs=3)
    remember_run(first.view, 2)
    own.feed.look()
    wanted = first.view.records()
    branch, = first.view.branches
    wanted |= {f"{name}\n{branch.number}": each for name, each in branch.series.items()}
    assert page.messages[-1]["void"] == [one]
    assert same_curves(page, one, wanted) and same_curves(page, two, second.view.records())
    page.ask("run", do="hide", number=one)
    assert not any(name.endswith(f"#{one}") for name in page.curves)
    page.ask("run", do="hide")
    assert set(page.curves) == set(late.curves) == names and page.view["drawn"]["runs"] == {}
    page.ask("run", do="show")
    assert page.view["drawn"]["runs"].keys() == {str(one), str(two)}


def test_a_long_run_that_has_ended_is_sent_to_its_last_point():
    """Its last bin is not full."""
    trainer = ended(0.1, epochs=205)
    remember_run(trainer.view, 1)
    own = make(epochs=2)
    got = []
    page = own.feed.page(lambda message, buffers: got.append((message, buffers)))
    page.hear({"ask": "hello", "v": VERSION})

    def act(trainer):
        """While the run advances."""
        if trainer.step_state.optimizer_step == 3:
            page.hear({"ask": "run", "id": "1", "do": "show"})
    own.hooks.add(LambdaHook(name="act", after_step=act))
    own.fit()
    heads, buffers = next((message["curves"], buffers) for message, buffers in got
                          if any("#" in each["name"] for each in message.get("curves", [])))
    at = next(at for at, each in enumerate(heads) if each["name"].startswith("train/loss#"))
    rows = np.frombuffer(buffers[at], "<f4").reshape(-1, len(COLUMNS))
    assert heads[at]["stride"] == 2 and rows[-1, 0] == 1025 and rows[-1, 5] == 1


def test_a_rewind_of_the_own_run_leaves_the_curves_of_others():
    first, = remembered(0.1)
    own = make(epochs=4, hooks=[SnapshotHook(every_steps=2)])
    own.step(5)
    page = Page(own.feed)
    page.ask("run", do="show", number=PAST[0].number)
    own.rewind(2)
    assert any(each.get("again") for each in page.messages)
    assert same_curves(page, PAST[0].number, first.view.records())
    assert len(page.curves["train/loss"]) == 2


def test_a_run_that_has_ended_is_remembered_where_a_page_shows_it():
    quiet = ended(0.1)
    quiet.feed.listen(["place", "drawn"], lambda patch: None)
    quiet.feed.look()
    assert PAST == []
    shown = make(epochs=2)
    page = Page(shown.feed)
    assert PAST == []
    shown.fit()
    past, = PAST
    assert past.journal is shown.journal and past.position.step == 10
    shown.feed.look()
    assert PAST == [past] and past.records_version == 1 and page.view["drawn"]["count"] == 0
    own = make()
    other = Page(own.feed)
    assert other.view["drawn"]["count"] == 1


def test_what_is_not_shown_is_not_read(monkeypatch):
    """Own curves cost nothing more; the table of all reads all."""
    remembered(0.1, 0.2)
    own = ended(0.3)
    reads, read = [], Records.read
    monkeypatch.setattr(Records, "read", lambda self, view: reads.append(view) or read(self, view))
    page = Page(own.feed)
    for _ in range(3):
        own.feed.look()
    assert len(reads) == 4 and not any(isinstance(each, PastRun) for each in reads)
    assert "runs" not in page.view
    page.ask("run", do="show", number=PAST[0].number)
    reads.clear()
    own.feed.look()
    assert [each for each in reads if isinstance(each, PastRun)] == [PAST[0]]
    reads.clear()
    page.own.hear({"ask": "open", "tabs": ["runs"]})
    assert [each for each in reads if isinstance(each, PastRun)] == PAST[:2]
    assert page.view["runs"]["rows"].keys() == {"0", *(str(each.number) for each in PAST[:2])}
    page.own.hear({"ask": "open", "tabs": []})
    assert "runs" not in page.view


def test_a_run_that_cannot_be_read_is_told_of_and_the_others_are_read():
    first, = remembered(0.1)
    own = ended(0.3)
    page = Page(own.feed)
    broken = SimpleNamespace(journal=first.journal, name="gone", state="finished",
                             position=first.view.position)
    bad = own.feed.others.offer(broken, "gone", shown=True)
    with pytest.warns(UserWarning, match=f"run {bad.number} could not be read"):
        page.ask("run", do="show", number=PAST[0].number)
    assert same_curves(page, PAST[0].number, first.view.records())


GARBAGE = [
    ({"do": "shw", "number": 1}, "did you mean 'show'"), ({"do": "show", "number": -1}, "out of"),
    ({"do": "show", "number": "1"}, "number"), ({"do": "show", "number": 1.5}, "number"),
    ({"do": "show", "number": True}, "number"), ({"do": "show", "number": 2**60}, "number"),
    ({"do": "show", "number": 0}, "no run of number 0"), ({"number": 1}, "lacks 'do'"),
    ({"do": "rename", "name": "x"}, "no run of number None"), ({"do": ["show"]}, "do"),
    ({"do": "remove"}, "no run of number None"), ({"do": "rename", "number": 1, "name": 3}, "name"),
    ({"do": "rename", "number": 1, "name": "x" * 301}, "at most")]


@pytest.mark.parametrize(("values", "words"), GARBAGE, ids=str)
def test_what_makes_no_sense_is_refused_and_changes_nothing(values, words):
    remembered(0.1)
    own = ended(0.3)
    page = Page(own.feed)
    runs = own.feed.others
    before = runs.drawn(), runs.names(), list(runs.of)
    answer = page.ask("run", **values)
    assert answer["status"] == "refused" and words in answer["reason"], answer
    assert (runs.drawn(), runs.names(), list(runs.of)) == before


def test_who_may_only_look_changes_nothing(tmp_path):
    remembered(0.1)
    own = ended(0.3)
    page = Page(own.feed, may_steer=False)
    for ask, values in (("run", {"do": "show"}), ("add", {"path": str(tmp_path)})):
        answer = page.ask(ask, **values)
        assert answer["status"] == "refused" and "may look" in answer["reason"]
    assert own.feed.others.shown == []


def test_runs_are_added_by_their_path_where_the_feed_can_find_them(tmp_path):
    written = trained(tmp_path / "exp1")
    trained(tmp_path / "exp2").close()
    own = ended(0.3)
    page = Page(own.feed)
    assert page.ask("add", path=str(tmp_path / "exp1"))["status"] == "applied"
    number, = own.feed.others.of
    assert page.view["drawn"]["runs"] == {str(number): {"name": "exp1"}}
    until(lambda: own.feed.look() or len(page.curves.get(f"train/loss#{number}", [])) == 24)
    assert same_curves(page, number, written.view.records())
    page.ask("run", do="hide", number=number)
    page.ask("add", path=str(tmp_path / "*"))  # the first one is there already: it is shown
    names = [each["name"] for each in page.view["drawn"]["runs"].values()]
    assert names == ["exp1", "exp2"]
    for path, words in ((" ", "empty"), (str(tmp_path / "exp"), "did you mean"), ("x" * 1001, "at"),
                        (str(tmp_path), "not the folder of a run")):
        answer = page.ask("add", path=path)
        assert answer["status"] == "refused" and words in answer["reason"], answer
    other = Page(Feed(own.view))  # whose feed finds nothing
    assert "only a notebook" in other.ask("add", path=str(tmp_path / "exp1"))["reason"]
    assert page.ask("run", do="remove", number=number)["status"] == "applied"
    assert number not in own.feed.others.of and f"train/loss#{number}" not in page.curves
    remembered(0.1)
    own.feed.look()
    assert "hide it" in page.ask("run", do="remove", number=PAST[-1].number)["reason"]
    written.close()
    for each in attach(str(tmp_path / "*")):
        each.close()


def test_there_is_a_limit_to_what_is_added(tmp_path, monkeypatch):
    monkeypatch.setattr(other_runs, "MOST_ADDED", 1)
    for name in ("exp1", "exp2"):
        trained(tmp_path / name).close()
    own = ended()
    page = Page(own.feed)
    assert "at most 1" in page.ask("add", path=str(tmp_path / "*"))["reason"]
    assert page.ask("add", path=str(tmp_path / "exp2"))["status"] == "applied"
    assert "at most 1" in page.ask("add", path=str(tmp_path / "exp1"))["reason"]
    for each in attach(str(tmp_path / "*")):
        each.close()


# The page of a run in another process


def test_runs_beside_a_run_are_found_by_their_files_and_links_are_not_followed(tmp_path):
    runs = tmp_path / "runs"
    for name in ("exp1", "exp2", "other"):
        trained(runs / name).close()
    elsewhere = tmp_path / "elsewhere"
    trained(elsewhere).close()
    (runs / "link").symlink_to(elsewhere)
    (runs / "empty").mkdir()
    (runs / "file").write_text("")
    assert runs_beside(runs / "exp1") == ["exp2", "other"]
    assert runs_beside(tmp_path / "gone" / "exp1", ["exp2"]) == ["exp2"]


def test_of_many_runs_the_newest_are_offered(tmp_path):
    for number in range(MOST_BESIDE + 5):
        folder = tmp_path / f"exp{number:02}"
        folder.mkdir()
        (folder / "journal.jsonl").write_text("")
        os.utime(folder, (number, number))
    assert runs_beside(tmp_path / "exp03")[0] == "exp05"
    kept = runs_beside(tmp_path / "exp03", ["exp00", "exp01"])
    assert kept[:3] == ["exp00", "exp01", "exp07"] and len(kept) == MOST_BESIDE


def test_the_page_of_a_run_offers_the_runs_beside_it(tmp_path):
    """While its tab is open; hidden, without a path; one that goes is dropped. Each is there once,
    also where it has ended in this kernel."""
    for name in ("exp1", "exp2", "exp3"):
        trainer = trained(tmp_path / name)
        remember_run(trainer.view, 1)
        trainer.close()
    (tmp_path / "broken" / "control").mkdir(parents=True)
    (tmp_path / "broken" / "control" / "status.json").write_text("[")
    pages, page = Pages(tmp_path / "exp1"), None
    feed = pages.feed()
    page = Page(feed)
    beside = Beside(tmp_path / "exp1", feed.others)
    beside.look(False)
    assert feed.others.of == beside.offered == {}
    for _ in range(3):
        beside.look(True)
    page.own.hear({"ask": "open", "tabs": ["runs"]})
    rows = page.view["runs"]["rows"]
    assert [each["name"] for each in rows.values()] == ["Linear in exp1", "exp2", "exp3"]
    assert not any(each["shown"] for number, each in rows.items() if number != "0")
    assert page.view["runs"]["can_add"] is False and "broken" in beside.offered
    two, three = feed.others.of
    page.ask("run", do="show", number=two)
    assert len(page.curves[f"train/loss#{two}"]) == 24
    assert "only a notebook" in page.ask("add", path=str(tmp_path / "exp3"))["reason"]
    shutil.rmtree(tmp_path / "exp2")
    beside._due = 0.0
    beside.look(True)
    feed.look()
    assert list(feed.others.of) == [three] and f"train/loss#{two}" not in page.curves


def test_an_open_tab_of_a_served_run_reads_what_is_beside_it(tmp_path):
    """By the thread of its pages."""
    for name in ("exp1", "exp2"):
        trained(tmp_path / name).close()
    pages, messages = Pages(tmp_path / "exp1"), []
    pages.come("a", VERSION, lambda message, buffers: messages.append(message), may_steer=True)
    pages.hear(json.dumps({"ask": "open", "tabs": ["runs"], "page": "a"}).encode(), True)
    until(lambda: any("exp2" in json.dumps(each) for each in messages))
    pages.leave("a")


def test_past_runs_are_thinned_and_their_means_are_of_as_many_steps(monkeypatch):
    monkeypatch.setattr(other_runs, "MOST_KEPT", 50)
    monkeypatch.setattr(other_runs.thinned, "__defaults__", (50,))
    trainer = ended(0.1, epochs=40)
    remember_run(trainer.view, 1)
    past, = PAST
    losses = trainer.history["train/loss"]
    assert len(losses) == 200 and len(past.records()["train/loss"]) == 50
    runs = runs_behind(ended(0.2))
    last = runs.rows()["rows"][str(past.number)]["values"]["train/loss"]["last"]
    assert last == pytest.approx(np.mean(losses[-32:]), rel=1e-5)
