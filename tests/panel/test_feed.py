"""The feed: sections of a run as JSON, patches, curves as bins, and what pages may ask."""

import ast
import contextlib
import json
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from feed_page import Page, Reader, apply
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import BATCHES, fail, make
from steered import until
from written_runs import trained

import trainer_nb
from trainer_nb import AlertsHook, LambdaHook, SnapshotHook
from trainer_nb.core.commands import COMMANDS, Button, CommandSpec
from trainer_nb.core.control import Command, CommandHandler, Reply, Series
from trainer_nb.hooks.recorder import History
from trainer_nb.panel import feed as feeds
from trainer_nb.panel.bins import COLUMNS, MOST, WRAP, Bins, Cursor, Records, curve, halved, rows_of
from trainer_nb.panel.feed import LARGEST, OPEN, PAGES, PATIENCE, VERSION, Feed, diff
from trainer_nb.panel.sections import NOT_FOR_PAGES, SECTIONS, USUAL, Section
from trainer_nb.remote.remote_view import RemoteRunView

ROOT = Path(trainer_nb.__path__[0]).parent

# Patches

NAMES = st.text(max_size=3)
LEAVES = (st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.text(max_size=3)
          | st.lists(st.none() | st.integers(0, 2), max_size=2))
VALUES = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=4),
                      max_leaves=12)


def exactly(value):
    """JSON that tells 1 from true and 1.0."""
    return json.dumps(value, sort_keys=True)


@settings(deadline=None, max_examples=150)
@given(VALUES, VALUES)
def test_a_patch_says_every_change(old, new):
    before = exactly(old)
    patch = diff(old, new)
    assert exactly(apply(old, json.loads(json.dumps(patch)))) == exactly(new)
    assert exactly(old) == before
    assert diff(new, new) == {} or not isinstance(new, dict)


def test_a_patch_has_only_what_changes():
    old = {"place": {"step": 1, "epoch": 0}, "lr": {"value": 0.1}, "kept": {"a": [1]}}
    new = {"place": {"step": 2, "epoch": 0}, "lr": {}, "kept": {"a": [1]}}
    patch = diff(old, new)
    assert patch == {"place": {"step": 2}, "lr": {"value": None}}
    assert apply(old, patch)["kept"] is old["kept"]


# Bins

def series(values, first=1):
    """Points of one step each."""
    steps = np.arange(first, first + len(values))
    return Series(steps, steps / 10, 4 * steps, steps * 0.5, np.asarray(values, float))


def by_hand(found, stride):
    """The rows of a series as one reads their definition."""
    rows = []
    for start in range(0, len(found), stride):
        part = found.values[start:start + stride]
        good = part[np.isfinite(part)]
        last = start + len(part) - 1
        measured = (good.min(), good.max(), good.mean()) if len(good) else 3 * (math.nan,)
        step, broken = int(found.steps[last]), len(part) < stride and not np.isfinite(part[-1])
        count = 0 if broken else len(good)  # of a bin that is not full
        rows.append([step % WRAP, step // WRAP, *measured, count, found.epochs[last],
                     found.samples[last], found.seconds[last]])
    return np.array(rows).reshape(-1, len(COLUMNS))


NUMBERS = (st.floats(-1e3, 1e3, width=32) | st.sampled_from([math.nan, math.inf, -math.inf]))


@settings(deadline=None, max_examples=60)
@given(st.lists(NUMBERS, min_size=1, max_size=60), st.integers(1, 120), st.integers(1, 3000),
       st.integers(0, 1 << 40))
def test_bins_are_what_one_counts_by_hand(numbers, times, piece, first):
    """Whatever the pieces in which the points come; steps are exact beyond 2**24."""
    every = series(np.tile(numbers, times), first + 1)
    bins = Bins()
    for start in range(0, len(every), piece):
        bins.extend(Series(*(each[start:start + piece] for each in vars(every).values())))
    at, rows = bins.since(0, open=True)
    assert at == 0 and bins.count < MOST and bins.points + bins.open == len(every)
    wanted = by_hand(every, bins.stride)
    step = rows[:, 0].astype(float) + rows[:, 1].astype(float) * WRAP
    assert (step == wanted[:, 0] + wanted[:, 1] * WRAP).all()
    np.testing.assert_array_equal(rows[:, [2, 3, 5]], wanted[:, [2, 3, 5]].astype("<f4"))
    np.testing.assert_allclose(rows[:, 4], wanted[:, 4], rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(rows[:, 6:], wanted[:, 6:].astype("<f4"))


def test_numbers_beyond_float32_are_no_infinities():
    rows = rows_of(list(vars(series([1e300, -1e300, 1e308, 1e308])).values()), 2)
    assert np.isfinite(rows).all() and (rows[:, 5] == 2).all()


class Run:
    """As much of a `RunView` as the curves need."""
    records_version = property(lambda self: self.history.version)
    branches = property(lambda self: self.history.branches)

    def __init__(self):
        self.history, self.step, self.reads = History(), 0, []

    def records(self, since=None, most=None):
        """New points; what was asked for is noted."""
        self.reads.append(dict(since or {}))
        return self.history.since(since or {}, most)

    def advance(self, numbers, evaluated):
        """Some steps, and an evaluation."""
        found = series(numbers, self.step + 1)
        self.step += len(numbers)
        self.history.extend("train/loss", *vars(found).values())
        self.history.extend("time/step", *vars(found).values())
        if evaluated:
            self.history.extend("valid/loss", *([column[-1]] for column in vars(found).values()))

    def rewind(self, step):
        """Back to an earlier step."""
        counts = {name: int((self.history.steps(name) <= step).sum())
                  for name in self.history.names}
        self.history.cut(counts, len(self.branches) + 1, step, self.step)
        self.step = step


ACTS = st.one_of(
    st.tuples(st.just("steps"), st.lists(NUMBERS, min_size=1, max_size=5), st.integers(1, 700),
              st.booleans()),
    st.tuples(st.just("look"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("rewind"), st.floats(0, 1)), st.tuples(st.just("hello"), st.integers(0, 1)))


@settings(deadline=None, max_examples=80)
@given(st.lists(ACTS, max_size=14))
def test_a_page_has_the_whole_view_whenever_it_looks(acts):
    """Two pages look when they want, with rewinds between; both end as one that has just come."""
    run, records = Run(), Records()
    pages, cursors = [Reader(), Reader()], [Cursor(), Cursor()]

    def tell(page, open):
        """One message."""
        records.read(run)
        pages[page].hear(*cursors[page].news(records, open))

    for act, *given_ in acts:
        if act == "steps":
            numbers, times, evaluated = given_
            run.advance(np.tile(numbers, times), evaluated)
        elif act == "look":
            tell(*given_)
        elif act == "rewind":
            run.rewind(int(given_[0] * run.step))
        else:
            pages[given_[0]], cursors[given_[0]] = Reader(), Cursor()
    late = Reader()
    for page in (0, 1):
        tell(page, True)
    late.hear(*Cursor().news(records, True))
    for page in pages:
        assert page.curves.keys() == late.curves.keys()
        for name, (stride, rows) in late.curves.items():
            assert page.curves[name][0] == stride
            np.testing.assert_array_equal(page.curves[name][1], rows, err_msg=name)
    every = {name: run.history.series(name) for name in run.history.names}
    every |= {f"{name}\n{branch.number}": found for branch in run.branches
              for name, found in branch.series.items()}
    every = {name: found for name, found in every.items() if not name.startswith("time/")}
    assert late.curves.keys() == every.keys()
    for name, (stride, rows) in late.curves.items():
        np.testing.assert_array_equal(rows[:, 5], by_hand(every[name], stride)[:, 5])


def test_only_new_rows_travel_and_an_open_bin_only_at_rest():
    run, records, cursor = Run(), Records(), Cursor()
    run.advance(np.arange(1500.0), True)  # a stride of 2, 750 rows
    records.read(run)
    part, buffers = cursor.news(records, False)
    assert part["again"] and [(each["name"], each["from"]) for each in part["curves"]] == [
        ("train/loss", 0), ("valid/loss", 0)]
    run.advance([1.0] * 7, False)
    records.read(run)
    assert run.reads[-1] == {"train/loss": 1500, "valid/loss": 1, "time/step": 1500}
    part, buffers = cursor.news(records, False)
    assert part == {"curves": [{"name": "train/loss", "stride": 2, "from": 750}]}
    assert len(buffers[0]) == 3 * 4 * len(COLUMNS)
    assert cursor.news(records, False) == ({}, [])
    part, buffers = cursor.news(records, True)  # a pause: the seventh point
    assert part["curves"][0]["from"] == 753 and len(buffers[0]) == 4 * len(COLUMNS)
    assert cursor.news(records, True) == ({}, [])  # it has it already


def test_records_that_share_their_places_have_the_bins_of_each_alone():
    """Also one that begins later, and one that lacks 64 steps now and then: its open bin is as full
    as those of the others, and begins elsewhere."""
    rng, together, alone = np.random.default_rng(0), {}, {}
    for name in ("first", "second", "late", "gaps"):
        together[name], alone[name] = Bins(), Bins()
    done = 0
    for piece in [*rng.integers(1, 90, 200), *[3, 4, 2] * 200]:
        steps = np.arange(done, done + piece)
        places = steps, steps / 7, 4 * steps, steps / 3
        known = {}
        for name in together:
            chosen = steps < (done + piece - 64 if name == "gaps" and piece > 64 else done + piece)
            if name == "late" and done < 700 or not chosen.any():
                continue
            own = places if chosen.all() else [each[chosen] for each in places]
            values = rng.normal(size=len(own[0]))
            values[rng.random(len(values)) < 0.01] = np.nan
            together[name].extend(Series(*own, values), known)
            alone[name].extend(Series(*map(np.copy, own), values))
        done += int(piece)
    for name, bins in together.items():
        assert bins.stride == alone[name].stride > 4
        for got, expected in zip(bins.since(open=True), alone[name].since(open=True)):
            np.testing.assert_array_equal(got, expected)


def test_a_page_halves_as_the_kernel_does():
    values = np.random.default_rng(0).normal(size=999)
    values[::7] = math.nan
    rows = rows_of(list(vars(series(values)).values()), 1)
    np.testing.assert_array_equal(halved(rows), Reader.half(rows))
    assert halved(rows[:1]).shape == (0, len(COLUMNS))


def test_a_zoom_reads_the_points_once_more():
    run, records = Run(), Records()
    run.advance(np.sin(np.arange(50_000)), True)
    records.read(run)
    found = records.span(run, 40_000, 40_499)
    assert run.reads[-1]["train/loss"] > 39_900  # not the whole history
    assert set(found) == {"train/loss"} and found["train/loss"].stride == 1
    head, rows = curve("train/loss", found["train/loss"])
    rows = np.frombuffer(rows, "<f4").reshape(-1, len(COLUMNS))
    np.testing.assert_array_equal(rows[:, 4], np.sin(np.arange(39_999, 40_499)).astype("<f4"))
    assert records.span(run, 60_000, 70_000) == {}


# Sections: a run of this process, and its folder read from outside


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The sections of one run, by its trainer and by its files."""
    folder = tmp_path_factory.mktemp("feed") / "exp1"
    torch.manual_seed(1)
    x = torch.randn(32, 3)
    valid = [(x, x.sum(1, keepdim=True))]

    def act(trainer):
        """What leaves traces in many sections."""
        step = trainer.step_state.optimizer_step
        if step == 5:
            trainer.tune(lr=0.01)
            trainer.note("a <b>note</b>")
        if step == 9:
            trainer.log({"score/acc": 0.5, "score/odd": float("inf")})
    trainer = trained(folder, valid_dl=valid, eval_every=6, grad_clip=1.0, sched="cosine",
                      hooks=[LambdaHook(name="act", after_step=act), SnapshotHook(every_steps=4),
                             AlertsHook()])
    trainer.pause_when("loss > 1000")
    trainer.rewind(12)
    trainer.post(Command("inspect", {"on": True}))
    trainer.fit()
    trainer.lr_find(num_steps=20)
    remote = RemoteRunView(folder)
    yield Feed(trainer.view), Feed(remote)
    trainer.close()


# what a reader of files cannot know, or knows in its own way
UNEQUAL = {
    "run": {"name", "panes"},  # the folder is part of the name; two tabs stay with the run
    "state": {"standing", "word", "notice"},  # the process of the run
    "commands": {name for name, spec in COMMANDS.items() if not spec.remote},
    "memory": {"used"}}  # of another moment


def without(view, unequal):
    """The sections without what may differ."""
    return {name: {key: value for key, value in section.items() if key not in unequal[name]}
            if name in unequal else section for name, section in view.items()}


@pytest.mark.slow
def test_both_views_give_the_same_sections(both):
    here, there = {}, {}

    def same():  # the files of the run follow it
        nonlocal here, there
        both[1].view.look()
        here, there = (each.whole() for each in both)
        return exactly(without(here, UNEQUAL)) == exactly(without(there, UNEQUAL))
    with contextlib.suppress(AssertionError):  # what differs is named below
        until(same)
    for name in USUAL:
        one, other = (without(each, UNEQUAL).get(name) for each in (here, there))
        assert exactly(one) == exactly(other), name
    assert there["run"]["name"] == f"{here['run']['name']} in exp1"
    assert set(here["run"]["panes"]) - set(there["run"]["panes"]) == {"system"}
    missing = here["commands"].keys() - there["commands"].keys()
    assert missing == UNEQUAL["commands"] - {*NOT_FOR_PAGES}
    assert here["numbers"]["score/odd"] == {
        "value": "inf", "of": 1, "step": 9, "bad_since": 9, "count": 1}
    assert here["branches"] and here["journal"]["count"] == 3 and here["tunables"]["lr"]["doc"]
    words = [each["change"] for each in here["journal"]["entries"].values()]
    assert "a <b>note</b>" in words  # text, not HTML


def test_what_is_sent_is_json_without_null(both):
    def check(value):
        """No name with None."""
        for each in value.values() if isinstance(value, dict) else ():
            assert each is not None
            check(each)
    for feed in both:
        every = feed.whole(SECTIONS)
        assert json.loads(json.dumps(every, allow_nan=False)) == every
        check(every)
        assert set(feed.whole()) <= set(USUAL)


@pytest.mark.slow
def test_what_was_inspected_and_searched_is_the_same_too(both):
    """The tensors of the last batch, gradient and update of each layer, the losses of each rate and
    what is read from them; the rates to come stay with the run."""
    def read(name):
        return [each.whole(name)[name] for each in both]

    def known():  # the files of the run follow it
        both[1].view.look()
        return both[1].view.lr_search
    until(known)
    here, there = read("inspect")
    assert exactly(here) == exactly(there)
    assert [len(here[name]) for name in ("tensors", "layers")] == [4, 2]
    here, there = read("lr")
    assert exactly(here["search"]) == exactly(there["search"])
    assert len(here["search"]["losses"]) == 20
    assert here.keys() - there.keys() <= {"plan"}
    assert [each.view.lr_search.reason for each in both] == [here["search"]["reason"]] * 2


def test_the_table_is_the_same_too(both):
    here, there = (each.whole("table")["table"] for each in both)
    assert exactly(here) == exactly(there)
    rows = here["rows"]
    assert [*rows] == ["6", "9", "12", "18", "24"] and here["order"][:3] == [
        "step", "epoch", "train/loss"]
    assert "valid/loss" not in rows["9"] and "score/acc" not in rows["6"]
    assert rows["9"]["score/acc"] == 0.5
    losses = {step: row["valid/loss"] for step, row in rows.items() if "valid/loss" in row}
    assert losses[str(here["best"]["valid/loss"])] == min(losses.values())


def test_the_states_to_go_back_to_have_the_loss_that_was_measured_there(both):
    here, there = (each.whole("rewind")["rewind"] for each in both)
    table = both[0].whole("table")["table"]["rows"]
    losses = {int(step): row["valid/loss"] for step, row in table.items() if "valid/loss" in row}
    assert exactly(here) == exactly(there)
    steps = [row["step"] for row in here]
    assert steps == both[0].view.rewind_points() == [0, 4, 8, 12, 16, 20, 24]
    assert "epoch" not in here[0] and here[0].keys() == {"step"} == here[1].keys() - {"epoch"}
    for row in here[2:]:
        measured = max(step for step in losses if step <= row["step"])
        assert (row["name"], row["measured"]) == ("valid/loss", measured)
        assert row["value"] == pytest.approx(losses[measured], rel=1e-5)
        assert row["epoch"] == row["step"] / 8
    [best] = [row for row in here if row.get("best")]
    assert best["value"] == min(row["value"] for row in here[2:])


def test_a_loss_that_is_nan_is_not_one_that_was_not_measured():
    trainer = make(epochs=2, valid_dl=BATCHES)
    trainer.log({"valid/loss": 9.0})  # before the first step
    trainer.step(3)
    trainer.log({"valid/loss": float("nan"), "valid/acc": 0.5})
    trainer.hooks.add(LambdaHook(name="odd", after_step=lambda trainer: trainer.log(
        {"train/loss": float("nan")})))
    trainer.fit()
    rows = trainer.feed.whole("table")["table"]["rows"]
    assert [(step, row.get("valid/acc")) for step, row in rows.items()] == [
        ("0", None), ("3", 0.5), ("5", None), ("10", None)]
    assert (rows["0"]["valid/loss"], rows["3"]["valid/loss"]) == (9.0, "nan")
    assert rows["5"]["valid/loss"] > 0
    assert "train/loss" not in rows["0"] and rows["3"]["train/loss"] > 0


def test_of_two_states_with_the_best_loss_the_earlier_one_is_best():
    """The later one has had steps since that loss was measured."""
    records = {"train/loss": series(np.arange(30.0)), "valid/loss": Series(
        *(column[[9, 19]] for column in vars(series([1.0] * 10 + [0.5] * 20)).values()))}
    view = SimpleNamespace(records=lambda: records, rewind_points=lambda: [5, 19, 20, 25])
    rows = SECTIONS["rewind"].read(view)
    assert [(row["step"], row.get("value"), row.get("best")) for row in rows] == [
        (5, None, None), (19, 1.0, None), (20, 0.5, True), (25, 0.5, None)]


def test_evaluations_are_counted_also_where_a_bin_stands_for_several():
    run, records = Run(), Records()
    for _ in range(MOST + 101):
        run.advance([1.0], True)
    records.read(run)
    found = SECTIONS["numbers"].read(SimpleNamespace(binned=records))
    assert found["valid/loss"]["count"] == MOST + 101 and "count" not in found["train/loss"]


def test_the_newest_entries_are_always_sent_and_all_of_them_with_their_tab():
    trainer = make()
    for number in range(45):
        trainer.note(str(number))
    found = trainer.feed.whole(["journal", "entries"])
    assert list(found["journal"]["entries"]) == [str(number) for number in range(6, 46)]
    assert len(found["entries"]) == found["journal"]["count"] == 45


def test_a_failure_of_a_hook_has_its_place(run):
    run.hooks.add(LambdaHook(name="bad", after_step=fail))
    with pytest.raises(ValueError, match="the user's own"):
        run.fit()
    found = run.feed.whole("hooks")["hooks"]["bad"]
    assert found["error"] == "ValueError: the user's own"
    assert (found["failure"]["point"], found["failure"]["step"]) == ("after_step", 4)
    assert found["failure"]["traceback"].rstrip().endswith("ValueError: the user's own")
    guest, owner = (Page(run.feed, may_steer=each).hello() for each in (False, True))
    assert owner.view["hooks"]["bad"]["failure"] == found["failure"]
    assert guest.view["hooks"]["bad"] == {
        name: each for name, each in found.items() if name != "failure"}


def test_curves_of_both_views_are_the_same(both):
    pages = Reader(), Reader()
    for page, feed in zip(pages, both):
        feed.records.read(feed.view)
        page.hear(*Cursor().news(feed.records, True))
    assert pages[0].curves.keys() == pages[1].curves.keys() > {"train/loss", "train/loss\n0"}
    for name, (stride, rows) in pages[0].curves.items():
        assert stride == pages[1].curves[name][0]
        np.testing.assert_array_equal(rows, pages[1].curves[name][1], err_msg=name)


def test_words_of_commands_are_those_of_the_registry():
    trainer = make(epochs=2)
    spec = CommandSpec("keep", "Keep a copy", buttons=(Button("Keep", "save", values={"n": None}),),
                       unavailable=lambda view: f"not at step {view.position.step}")
    trainer.mailbox.register(spec, CommandHandler(lambda command: None))
    trainer.step(3)
    found = trainer.feed.whole("commands")["commands"]
    assert found.keys() == {*trainer.commands, "checkpoint", "approve", "decline"} - {
        *NOT_FOR_PAGES}
    pause, keep = found["pause"]["buttons"]["Pause"], found["keep"]["buttons"]["Keep"]
    assert pause["why_not"] == "The run is paused: this acts while it is running"
    failed = SimpleNamespace(state="error", commands=trainer.commands)
    assert trainer.commands["pause"].why_not(failed, trainer.commands["pause"].buttons[0]) == (
        "The run has failed: this acts while it is running")
    assert found["pause"]["doc"] == trainer.commands["pause"].doc
    assert keep["why_not"] == "not at step 3" and keep["values"] == [["n", None]]
    assert "why_not" not in found["resume"]["buttons"]["Resume"]
    assert "CheckpointHook" in found["checkpoint"]["why_not"]


# Listening


def test_patches_add_up_to_the_view():
    trainer = make(epochs=3, hooks=[SnapshotHook(every_steps=2)])
    trainer.feed.every = 0.0
    told, known = [], {}

    def take(patch):
        """Apply one patch."""
        told.append(json.loads(json.dumps(patch, allow_nan=False)))
        known.update(apply(known, told[-1]))
    with trainer.feed.listen(USUAL, take):
        assert told[0]["state"] == {"name": "idle"} and len(told) == 1
        trainer.step(4)
        mine = LambdaHook(name="mine", after_step=lambda trainer: time.sleep(0.06))
        trainer.hooks.add(mine)
        trainer.step(3)
        trainer.tune(lr=0.01)
        trainer.rewind(4)
        trainer.fit()
        assert known == trainer.feed.whole() and "in_cell" not in known["state"]
        trainer.hooks.remove(mine)
        trainer.fit(epochs=4)
        whole = trainer.feed.whole()
    assert known == whole and known["state"]["name"] == "finished"
    assert "mine" not in known["hooks"] and len(told) > 5
    small = [patch for patch in told[1:] if patch]
    assert not any("tunables" in patch and "hooks" not in patch for patch in small)


def test_a_pause_and_the_end_are_told_at_once_and_all_else_seldom():
    trainer, told, resumed = make(epochs=400), [], threading.Event()
    trainer.feed.every = trainer.feed._due = 1e9
    trainer.feed.listen("state", lambda patch: told.append(patch["state"]["name"]))
    trainer.feed._due = 1e9
    trainer.hooks.add(LambdaHook(name="slow", after_step=lambda trainer: (
        resumed.is_set() or time.sleep(0.02))))
    trainer.start()
    trainer.driver.status.front_end = True
    until(lambda: told[-1] == "running")
    trainer.pause().wait(120)
    until(lambda: told[-1] == "paused")
    assert told == ["idle", "running", "paused"]
    resumed.set()
    trainer.resume()
    trainer.wait()
    assert told[-1] == "finished"
    trainer.close()


def counted(monkeypatch):
    """How often each section was read."""
    counts = dict.fromkeys(SECTIONS, 0)

    def count(name, section):
        """The same section, which counts."""
        def read(view):
            """Count, and read."""
            counts[name] += 1
            return section.read(view)
        return Section(read, section.key, section.tab)
    monkeypatch.setattr(feeds, "SECTIONS", {n: count(n, each) for n, each in SECTIONS.items()})
    return counts


def test_what_cannot_have_changed_is_not_read(monkeypatch):
    counts = counted(monkeypatch)
    trainer = make(epochs=20)
    feed = trainer.feed
    feed.listen(["tunables", "values", "points", "journal", "alerts"], lambda patch: None)
    for _ in range(5):
        feed.look()
    assert counts["tunables"] == counts["points"] == counts["journal"] == 1
    assert counts["values"] == 6 and counts["place"] == counts["run"] == counts["numbers"] == 0
    trainer.hooks.add(LambdaHook(name="mine", after_step=lambda trainer: None))
    trainer.step()
    feed.look()
    assert counts["tunables"] == counts["points"] == 2 and counts["journal"] == 1
    trainer.tune(lr=0.01)
    feed.look()
    assert counts["tunables"] == 2 and counts["journal"] == 2


def test_nobody_listens_and_nothing_is_read(monkeypatch):
    counts = counted(monkeypatch)
    trainer = make(epochs=2)
    listener = trainer.feed.listen("place", lambda patch: None)
    listener.stop()
    page = trainer.feed.page(lambda *message: None)  # which has not said hello
    trainer.feed.every = 0.0
    trainer.fit()
    assert counts["place"] == 1 and sum(counts.values()) == 1
    page.hear({"ask": "hello", "v": VERSION})
    assert counts["place"] == 2 and counts["table"] == 0
    page.stop()
    reads = trainer.feed.records.reads
    trainer.fit(epochs=3)
    assert counts["place"] == 2 and trainer.feed.records.reads == reads


def test_records_are_read_where_somebody_wants_them(monkeypatch):
    trainer, reads = make(epochs=2), []
    monkeypatch.setattr(Records, "read", lambda self, view: reads.append(1))
    trainer.feed.listen(["state", "values"], lambda patch: None)
    trainer.feed.look()
    assert not reads
    trainer.feed.listen("numbers", lambda patch: None)
    assert len(reads) == 1


def test_a_listener_that_fails_is_told_of_and_stops_nothing():
    trainer, told = make(epochs=8), []

    def fail(patch):
        """What a listener may do."""
        told.append(patch)
        if len(told) > 1:
            raise ValueError("the user's own")
    trainer.feed.listen("place", fail)
    good = []
    trainer.feed.listen("place", good.append)
    trainer.hooks.add(LambdaHook(name="look", after_step=lambda trainer: trainer.feed.look()))
    with pytest.warns(UserWarning, match="a listener of trainer.feed failed .* the user's own"):
        trainer.fit()
    assert trainer.state == "finished" and len(told) == 1 + PATIENCE and len(good) > 5


def test_what_could_not_be_told_is_told_with_the_next_change(run):
    """Neither a listener nor a page misses a change because of one error."""
    bad, told = [1], []

    def send(*message):
        """Fail once."""
        if bad:
            bad.pop()
            raise OSError("full")
        told.append(message)
    listener = run.feed.listen("values", lambda patch: None)
    listener.function = send
    page = Page(run.feed).hello()
    with pytest.warns(UserWarning, match="is called again"):
        run.tune(lr=0.25)
    run.tune(grad_clip=1.0)
    assert told == [({"values": {"lr": {"value": 0.25}, "grad_clip": {"value": 1.0}}},)]
    page.own.function = lambda *message: bad.append(1) or send(*message)
    with pytest.warns(UserWarning, match="OSError: full"):
        run.tune(lr=0.3)
    page.own.function = page.take
    run.feed.look()
    assert page.view == {**run.feed.whole(), "may_steer": True}
    assert page.messages[-1]["v"] == VERSION  # all of it, once more


def test_no_error_of_a_page_or_of_the_records_stops_the_training(run, monkeypatch):
    """An answer that cannot be sent, records that cannot be read."""
    page = Page(run.feed).hello()

    def act(trainer):
        """The page asks, and is gone."""
        page.own.hear({"ask": "command", "id": "1", "name": "note", "values": {"text": "x"}})
        page.own.function = fail_to_send

    def fail_to_send(message, buffers):
        """As a socket that was closed."""
        raise OSError("closed")
    monkeypatch.setattr(run.view.trainer.history, "since", lambda *args: 1 / 0)
    run.feed.every = 0.0
    run.hooks.add(LambdaHook(name="ask", after_step=lambda trainer: page.own.tabs or act(trainer)))
    with pytest.warns(UserWarning) as caught:
        run.fit()
    words = " ".join(str(each.message) for each in caught)
    assert "the records could not be read" in words and "OSError: closed" in words
    assert run.state == "finished" and "x" in [entry.new for entry in run.journal.entries]


def test_a_section_that_fails_is_told_of_once(monkeypatch):
    def fail(view):
        """A hook of the user's with a broken property, say."""
        raise RuntimeError("no")
    monkeypatch.setattr(feeds, "SECTIONS", SECTIONS | {"hooks": Section(fail)})
    trainer, told = make(epochs=2), []
    with pytest.warns(UserWarning, match="hooks could not be read") as caught:
        trainer.feed.listen(["hooks", "place"], told.append)
        trainer.fit()
    assert len([each for each in caught if "could not be read" in str(each.message)]) == 1
    assert told[-1]["place"]["step"] == 10


def test_a_listener_may_act_and_end_itself():
    trainer = make(epochs=6)
    trainer.feed.every = 0.0

    def act(patch):
        """Tune once, and look again, which does nothing here."""
        if trainer.step_state.optimizer_step >= 3:
            listener.stop()
            trainer.tune(lr=0.5)
            trainer.feed.look()
    listener = trainer.feed.listen("place", lambda patch: None)
    listener.function = act
    trainer.hooks.add(LambdaHook(name="slow", after_step=lambda trainer: time.sleep(0.02)))
    trainer.fit()
    assert trainer.rate == 0.5 and trainer.feed.listeners == []
    assert [entry.name for entry in trainer.journal.entries] == ["lr"]


def test_wrong_arguments_of_listen():
    feed = make().feed
    with pytest.raises(ValueError, match="did you mean 'state'"):
        feed.listen("stat", print)
    with pytest.raises(ValueError, match="listen\\('nothing'\\)"):
        feed.listen(["state", "nothing"], print)
    with pytest.raises(TypeError, match="no function"):
        feed.listen("state", "print")
    assert feed.listeners == []


def test_one_feed_beside_the_panel_and_gone_with_its_trainer():
    trainer, told = make(epochs=2), []
    feed, drawn = trainer.feed, []
    assert trainer.feed is feed
    trainer.panels.parts.screen.add(SimpleNamespace(tick=drawn.append, close=lambda: None))
    feed.listen("state", told.append)
    trainer.fit()
    assert drawn and told[-1] == {"state": {"name": "finished", "in_cell": None}}
    trainer.close()
    trainer.fit(epochs=3)  # a closed trainer trains on, and is heard
    page = feed.page(lambda message, buffers: told.append(message), ["state"], curves=False)
    del trainer
    page.hear({"ask": "hello", "v": VERSION})
    assert "is gone" in told[-1]["reason"]


# Pages


@pytest.fixture
def run():
    """A run that is paused at step 3."""
    trainer = make(epochs=4, hooks=[SnapshotHook(every_steps=2)])
    trainer.step(3)
    yield trainer
    trainer.close()


def state_of(trainer):
    """What a refused message must not change."""
    return (trainer.state, trainer.step_state.optimizer_step, trainer.rate, len(trainer.journal),
            dict(trainer.tunables.pending), [str(each) for each in trainer.breakpoints])


def test_a_page_gets_everything_and_then_what_is_new(run):
    page = Page(run.feed).hello()
    first = page.messages[0]
    assert first["v"] == VERSION and set(first["view"]) == {*run.feed.whole(), "may_steer"}
    assert {each["name"] for each in first["curves"]} == {"train/loss", "lr", "samples_per_second"}
    run.fit()
    assert page.view == {**run.feed.whole(), "may_steer": True}
    late = Page(run.feed).hello()
    assert late.view == page.view
    for name, (_, rows) in late.curves.items():
        np.testing.assert_array_equal(page.curves[name][1], rows)
    assert all(rows[-1, 0] == 20 for _, rows in page.curves.values())
    page.hello()  # a reload: everything once more
    assert page.view == late.view and page.messages[-1]["v"] == VERSION


def test_a_command_of_a_page_goes_the_way_of_all(run):
    page = Page(run.feed).hello()
    assert page.command("tune", lr=0.25) == {"re": "1", "status": "applied", "where": "at step 3"}
    assert run.rate == 0.25 and page.view["values"]["lr"]["value"] == 0.25
    entry = run.journal.entries[-1]
    assert (entry.source, str(entry).endswith("(panel)")) == ("widget", True)
    before = state_of(run)
    answer = page.command("tune", lr=-1.0)
    assert answer["status"] == "refused" and "0 or more" in answer["reason"]
    assert state_of(run) == before
    assert page.command("rewind", step=2)["status"] == "applied"
    assert page.view["place"]["step"] == 2
    assert page.view["branches"] == {"0": {"start": 2, "end": 3}}
    assert "train/loss\n0" in page.curves and len(page.curves["train/loss"][1]) == 2
    assert page.command("pause_when", text="loss > 1e9")["status"] == "applied"
    assert page.view["breakpoints"] == ["loss > 1e9"]
    assert page.command("step", n=2)["status"] == "applied"
    until(lambda: (page.view["place"]["step"], page.view["state"]["name"]) == (4, "paused"))
    page.command("stop")
    until(lambda: page.view["state"]["name"] == "stopped")


def test_a_command_while_the_run_goes_on_is_answered_from_its_thread(run):
    run.hooks.add(LambdaHook(name="slow", after_step=lambda trainer: time.sleep(0.01)))
    run.driver.status.front_end = True
    page = Page(run.feed).hello()
    run.feed.every = 1e9  # only what is told at once
    run.start(epochs=1000)
    page.command("pause")
    until(lambda: page.answers)
    assert page.answers[0]["status"] == "applied"
    until(lambda: page.view["state"]["name"] == "paused")
    run.stop()
    run.wait(120)


WRONG = [
    ("x", "the message is str"), ([1], "the message is"), ({}, "lacks 'ask'"), ({"ask": 3}, "ask"),
    ({"ask": "helo"}, "did you mean"), ({"ask": "hello"}, "lacks 'v'"),
    ({"ask": "hello", "v": "1"}, "v"), ({"ask": "open", "tabs": ["no"]}, "tabs: 'no'"),
    ({"ask": "open", "tabs": ["table", "place"]}, "tabs: 'place'"),
    ({"ask": "open", "tabs": "table"}, "not a list"), ({"ask": "open"}, "lacks 'tabs'"),
    ({"ask": "open", "tabs": [["table"]]}, "tabs"),
    ({"ask": "open", "tabs": ["lr"] * 9}, "at most 8"), ({"ask": "script"}, "lacks 'id'"),
    ({"ask": "cancel", "id": "1"}, "no search"),
    ({"ask": "span", "id": "1", "first": -1, "last": 2}, "out of range"),
    ({"ask": "span", "id": "1", "first": 1}, "lacks 'last'"),
    ({"ask": "span", "id": "1", "first": 1, "last": 2**70}, "last"),
    ({"ask": "command", "id": "1"}, "lacks 'name'"),
    ({"ask": "command", "name": "pause"}, "lacks 'id'"),
    ({"ask": "command", "id": "-1", "name": "pause"}, "counts up"),
    ({"ask": "command", "id": "²", "name": "pause"}, "counts up"),
    ({"ask": "command", "id": "1" * 16, "name": "pause"}, "at most 15"),
    ({"ask": "command", "id": 1, "name": "pause"}, "id"),
    ({"ask": "command", "id": "1", "name": "pause", "page": "x" * 41}, "at most 40"),
    ({"ask": "command", "id": "1", "name": "paus"}, "did you mean 'pause'"),
    ({"ask": "command", "id": "1", "name": "__init__"}, "no command"),
    ({"ask": "command", "id": "1", "name": "interrupt"}, "interrupt is not for pages"),
    ({"ask": "command", "id": "1", "name": "sweep"}, "sweep is not for pages"),
    ({"ask": "command", "id": "1", "name": "pause", "values": {"x": 1}}, "no such value"),
    ({"ask": "command", "id": "1", "name": "pause", "values": ["x"]}, "values"),
    ({"ask": "command", "id": "1", "name": "tune", "values": {"lr": [1]}}, "lr"),
    ({"ask": "command", "id": "1", "name": "tune", "values": {"lr": {"a": 1}}}, "lr"),
    ({"ask": "command", "id": "1", "name": "tune", "values": {"lr": 10**400}}, "lr"),
    ({"ask": "command", "id": "1", "name": "tune", "values": {"lr": math.nan}}, "lr"),
    ({"ask": "command", "id": "1", "name": "tune", "values": {"lr": "0.1"}}, "lr"),
    ({"ask": "command", "id": "1", "name": "tune", "values": {"l": 1.0}}, "no tunable"),
    ({"ask": "command", "id": "1", "name": "tune", "values": {"lr": 0.5, "grad_clip": -1}}, "clip"),
    ({"ask": "command", "id": "1", "name": "tune", "values": {}}, "needs"),
    ({"ask": "command", "id": "1", "name": "note", "values": {"text": 3}}, "a text"),
    ({"ask": "command", "id": "1", "name": "note", "values": {"text": "x" * LARGEST}}, "at most"),
    ({"ask": "command", "id": "1", "name": "rewind", "values": {"step": -5}}, "-5"),
    ({"ask": "command", "id": "1", "name": "step", "values": {"n": 1.5}}, "a whole number"),
    ({"ask": "command", "id": "1", "name": "pause_when", "values": {"text": "import os"}}, ""),
    ({"ask": "command", "id": "1", "name": "lr_find", "values": {"found": "x"}}, "no such value"),
    ({"ask": "command", "id": "1", "name": "lr_find", "values": {"num_steps": 0}}, "num_steps"),
    ({"ask": "command", "id": "1", "name": "save", "values": {}}, "needs path"),
    ({"ask": "command", "id": "1", "name": "save", "values": {"path": "/no/where/x.pt"}}, "folder"),
    ({"ask": "command", "id": "1", "name": "pause", "basis": "now"}, "basis"),
    ({"ask": "command", "id": "1", "name": "pause", "values": {str(k): 1 for k in range(9999)}},
     "at most"),
    ({"ask": "command", "id": "1", "name": {1}}, "")]


@pytest.mark.parametrize("message, words", WRONG, ids=[f"{n}" for n in range(len(WRONG))])
def test_what_makes_no_sense_is_refused_and_changes_nothing(run_once, message, words):
    trainer, page = run_once
    before, page.answers = state_of(trainer), []
    page.own.hear(message)
    assert len(page.answers) == 1, page.messages[-1]
    answer = page.answers[0]
    assert answer["status"] == "refused" and words in answer["reason"], answer
    assert len(answer["reason"]) <= 1000
    assert state_of(trainer) == before
    id = message.get("id") if isinstance(message, dict) else None
    if isinstance(id, str) and id == "1" and "name" in message and words != "at most":
        assert answer.get("re", "1") == "1"


@pytest.fixture(scope="module")
def run_once():
    """A paused run with a page, which nothing in the list above changes."""
    trainer = make(epochs=4, hooks=[SnapshotHook(every_steps=2)])
    trainer.step(3)
    yield trainer, Page(trainer.feed).hello()
    trainer.close()


def test_a_page_that_may_only_look(run):
    page = Page(run.feed, may_steer=False).hello()
    before = state_of(run)
    assert page.view["may_steer"] is False
    assert "may look" in page.command("tune", lr=0.5)["reason"] and state_of(run) == before
    page.own.hear({"ask": "cancel", "id": "9"})
    assert "may look" in page.answers[-1]["reason"]
    page.own.hear({"ask": "open", "tabs": ["rewind", "times", "inspect", "runs"]})
    assert [row["step"] for row in page.view["rewind"]] == [0, 2] and "runs" not in page.view
    assert not run.hooks.clock and run.inspection is None  # it costs the run nothing


def test_of_a_page_only_a_later_tune_counts(run):
    page = Page(run.feed).hello()
    assert page.command("tune", 8, lr=0.2)["status"] == "applied"
    assert page.command("tune", 7, lr=0.1) == {"re": "7", "status": "void",
                                               "where": "replaced by a newer value"}
    assert run.rate == pytest.approx(0.2)
    assert page.command("tune", 9, lr=-1.0)["status"] == "refused"  # and does not count
    assert page.command("tune", 6, lr=0.2)["status"] == "void"
    answer = page.command("tune", 5, lr=0.1, grad_clip=2.0)  # what is not older counts
    assert answer["status"] == "applied" and run.grad_clip == 2.0
    assert run.rate == pytest.approx(0.2)
    other = {"ask": "command", "id": "1", "name": "tune", "values": {"lr": 0.3}, "page": "b"}
    page.own.hear(other)  # another browser counts for itself
    assert page.answers[-1] == {"page": "b", "re": "1", "status": "applied", "where": "at step 3"}
    assert run.rate == pytest.approx(0.3)
    page.hello()  # a reload counts from the beginning
    assert page.command("tune", 1, lr=0.4)["status"] == "applied"
    assert run.rate == pytest.approx(0.4)


def test_a_page_of_another_version_is_told_only_that(run):
    page = Page(run.feed)
    page.own.hear({"ask": "hello", "v": VERSION + 1})
    assert page.messages == [{"v": VERSION}] and not page.own.ready


def test_a_tab_is_sent_while_it_is_open(run):
    page = Page(run.feed).hello()
    assert not page.view.keys() & {"rewind", "inspect", "entries"}
    page.own.hear({"ask": "open", "tabs": ["rewind", "inspect", "rewind"]})
    assert [row["step"] for row in page.view["rewind"]] == [0, 2]
    assert page.view["inspect"]["tensors"][0]["shape"] == [4, 2]
    page.own.hear({"ask": "open", "tabs": ["entries"]})
    assert not page.view.keys() & {"rewind", "inspect"} and page.view["entries"] == {}
    page.command("note", text="x")
    assert page.view["entries"]["1"]["change"] == "x"
    page.own.hear({"ask": "open", "tabs": []})
    assert "entries" not in page.view


def test_two_browsers_of_one_widget_have_tabs_of_their_own(run):
    page, measured = Page(run.feed).hello(), lambda: run.hooks.watched
    says = lambda browser, *tabs: page.own.hear({"ask": "open", "tabs": [*tabs], "page": browser})
    says("a", "times")
    says("b", "entries", "lr")
    assert page.own.tabs == ("times", "entries", "lr") and "entries" in page.view and measured()
    says("b")
    assert page.own.tabs == ("times",) and "entries" not in page.view
    says("b", "times")
    says("a")
    assert page.own.tabs == ("times",) and measured()
    page.own.hear({"ask": "hello", "v": VERSION, "page": "c"})  # b after a reload
    assert measured()  # until it says what it has open
    says("a")
    says("c", "lr")
    assert page.own.tabs == ("lr",) and not measured()
    for number in range(2 * PAGES):
        says(f"d{number}", "entries")
    assert len(page.own._opened) <= PAGES + 1


def test_what_costs_time_is_measured_while_a_page_looks(run):
    """Of several pages the last one to close its tab ends it, or to go away."""
    one, two = Page(run.feed).hello(), Page(run.feed).hello()
    measured = lambda: ("inspect" in [row.name for row in run.hooks.rows], run.hooks.watched)
    assert measured() == (False, False)
    one.own.hear({"ask": "open", "tabs": ["times", "inspect"]})
    two.own.hear({"ask": "open", "tabs": ["times"]})
    assert measured() == (True, True)
    run.step(3)
    assert one.view["times"]["steps"] == 2 and "recorder" in one.view["times"]["hooks"]
    assert one.view["hooks"]["recorder"]["calls"] >= 1
    one.command("inspect", on=True)  # it came here without a pause
    assert one.view["inspect"]["layers"][0]["norm"] > 0
    one.hello()  # after a reload
    assert measured() == (True, True)
    one.own.stop()
    assert measured() == (False, True)
    two.own.hear({"ask": "open", "tabs": ["table"]})
    assert measured() == (False, False)
    assert len(run.journal) == 0


def test_the_journal_as_a_script(run, both):
    page = Page(run.feed).hello()
    page.command("tune", lr=0.25)
    page.own.hear({"ask": "script", "id": "7"})
    answer = page.answers[-1]
    assert (answer["re"], answer["status"]) == ("7", "applied")
    assert "trainer.tune(lr=0.25)" in answer["text"] and "trainer.fit(epochs=4)" in answer["text"]
    assert answer["promise"].startswith("Replays to the same weights")
    elsewhere = Page(both[1])  # of a run that is read from its files
    elsewhere.own.hear({"ask": "script", "id": "8"})
    assert "trainer.tune(lr=0.01)" in elsewhere.answers[-1]["text"]


def test_a_search_for_a_rate(run):
    page = Page(run.feed).hello()
    page.own.hear({"ask": "open", "tabs": ["lr"]})
    assert page.view["lr"] == {}
    page.command("lr_find", num_steps=30, stop_factor=1e9)  # in a thread of its own
    until(lambda: page.answers)  # and the page is told at once, while nothing drives the run
    assert page.answers[0]["status"] == "applied"
    search = page.view["lr"]["search"]
    assert search["use"] == ["lr", 1.0] and search["planned"] == 30 and search["reason"]
    assert len(search["rates"]) == len(search["losses"]) == 30


def test_a_search_that_is_cancelled(run):
    page = Page(run.feed).hello()
    page.own.hear({"ask": "open", "tabs": ["lr"]})
    seen = []

    def cancel(message, buffers):
        """As soon as the page sees it."""
        page.take(message, buffers)
        search = page.view.get("lr", {}).get("search", {})
        if search.get("rates") and "ended" not in search and not page.answers:
            seen.append((page.view["state"]["searching"], f"{len(search['rates'])} of 10000"))
            page.own.hear({"ask": "cancel", "id": "9"})
    page.own.function = cancel
    run.feed.every = 0.0
    page.command("lr_find", num_steps=10_000, start_lr=1e-9, end_lr=1e-8)
    until(lambda: len(page.answers) == 2)
    assert [each["status"] for each in page.answers] == ["applied", "applied"]
    assert page.view["lr"]["search"]["ended"] == "cancelled"
    assert "searching" not in page.view["state"]
    assert seen[0][0] == seen[0][1]


def test_a_zoom_of_a_page(run):
    page = Page(run.feed).hello()
    page.own.hear({"ask": "span", "id": "9", "first": 2, "last": 3})
    answer = page.answers[-1]
    assert (answer["re"], answer["status"], answer["first"], answer["last"]) == (
        "9", "applied", 2, 3)
    assert {"name": "train/loss", "stride": 1, "from": 0} in answer["curves"]


def test_a_page_that_floods_is_refused(run):
    """Commands that have no answer yet are bounded."""
    page = Page(run.feed).hello()
    run.feed.view = SimpleNamespace(commands=run.commands, post=lambda command: Reply())
    for _ in range(OPEN):
        page.command("pause")
    assert "no answer yet" in page.command("pause")["reason"] and len(run.feed.asked) == OPEN
    page.own.stop()
    assert run.feed.asked == []


def test_many_threads_ask_and_all_are_answered(run):
    """Messages come in any thread while the run goes on; the page ends with its view."""
    run.hooks.add(LambdaHook(name="slow", after_step=lambda trainer: time.sleep(0.002)))
    run.driver.status.front_end = True
    page = Page(run.feed).hello()
    run.start(epochs=100_000)
    ids = iter(range(1, 1000))

    def ask():
        """Tune and zoom."""
        for _ in range(8):
            page.own.hear({"ask": "command", "id": str(next(ids)), "name": "tune",
                           "values": {"lr": 0.001 * next(ids)}})
            page.own.hear({"ask": "span", "id": str(next(ids)), "first": 1, "last": 50})
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(300)
    until(lambda: len(page.answers) == 64)
    run.stop()
    run.wait(120)
    assert len(page.answers) == 64
    assert {each["status"] for each in page.answers} <= {"applied", "void"}
    assert page.view == {**run.feed.whole(), "may_steer": True}


def test_a_run_elsewhere_is_steered_by_the_same_messages(tmp_path):
    """A run that is not there any more refuses, and says why."""
    trained(tmp_path / "exp1").close()
    view = RemoteRunView(tmp_path / "exp1", "page")
    page = Page(Feed(view)).hello()
    buttons = page.view["commands"]["resume"]["buttons"]
    assert {each["why_not"] for each in buttons.values()} == {
        "The run takes no commands any more"}
    answer = page.command("pause")
    assert answer["status"] == "refused" and "takes no commands" in answer["reason"]


def test_the_feed_loads_nothing_that_draws():
    """Nor does what it imports, or what that imports."""
    seen, waiting = set(), ["trainer_nb.panel.feed"]
    while waiting:
        name = waiting.pop()
        path = ROOT / (name.replace(".", "/") + ".py")
        if name in seen or not path.exists():
            seen.add(name.partition(".")[0] if not path.exists() else name)
            continue
        seen.add(name)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                waiting += [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = name.split(".")[:-node.level] if node.level else []
                base = ".".join([*base, *filter(None, [node.module])])
                waiting += [base, *(f"{base}.{each.name}" for each in node.names)]
    assert "numpy" in seen and "trainer_nb.core.control" in seen
    assert not seen & {"ipywidgets", "anywidget", "plotly", "IPython", "traitlets"}
