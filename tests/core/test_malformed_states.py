"""States that are damaged, cut off or of other parts:
loaded whole, or refused with nothing changed; drawn by chance, leaf by leaf."""

import copy
import random
import shutil
import warnings
from contextlib import suppress

import hypothesis
import pytest
import torch
from hypothesis.strategies import integers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import (CheckpointError, CheckpointHook, EarlyStopHook, Hook, LayerGroupsHook,
                        SnapshotHook, Trainer,
                        Tunable)
from trainer_nb.core.control import Command
from trainer_nb.support.saved import plain_copy, read_state, write_state

pytestmark = pytest.mark.slow

SCHEDULER = torch.optim.lr_scheduler
# of a whole run, and before the state is taken: in the middle of the second epoch
STEPS, TAKEN = 12, 7


class Counter(Hook):
    """A hook of the user's: a list and a tensor, and no check of its own."""

    name = "counter"
    share = Tunable(0.5, max=1)

    def __init__(self):
        self.seen, self.sums = [], torch.zeros(2)

    def after_step(self, trainer):
        """Count."""
        self.seen.append(trainer.step_state.optimizer_step)
        self.sums += 1

    def state_dict(self):
        """Both."""
        return {"seen": self.seen, "sums": self.sums}

    def load_state_dict(self, state):
        """One after the other: the second may be missing."""
        self.seen = list(state["seen"])
        self.sums.copy_(state["sums"])


class Weighted(nn.Module):
    """A loss function with a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 1.0]))

    def forward(self, pred, target):
        """The loss."""
        return nn.functional.cross_entropy(pred, target, self.weight)


def make(*hooks, optim=torch.optim.AdamW, sched="one_cycle", seed=1, **settings):
    """Batch norm, dropout, an average, groups, early stopping, a generator of the loader's own."""
    draw = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(20, 4, generator=draw),
                         torch.randint(0, 3, (20,), generator=draw))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 3))
    usual = [Counter(), EarlyStopHook(patience=50),
             LayerGroupsHook({"first": ["0"], "rest": ["1", "3"]})]
    settings = {"epochs": 3, "ema": 0.9, "loss_fn": Weighted(), "valid_dl": DataLoader(data, 10),
                **settings}
    loader = DataLoader(data, 5, shuffle=True, generator=torch.Generator().manual_seed(8))
    return Trainer(model, train_dl=loader, optim=lambda parameters: optim(parameters, lr=0.02),
                   sched=sched, hooks=[*usual, *hooks],
                   device="cpu", seed=5, progress=False, **settings)


def alike(one, other):
    """Equal all the way down; tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return (isinstance(other, torch.Tensor) and one.dtype == other.dtype
                and torch.equal(one, other))
    if isinstance(one, dict):
        return (isinstance(other, dict) and one.keys() == other.keys()
                and all(alike(one[key], other[key]) for key in one))
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and (one == other or one != one)


def outcome(trainer):
    """The end of a run: weights, moments, hooks, counters, streams and what it recorded."""
    state = trainer.state_dict()
    state["position"].pop("seconds")
    points = {name: [column for number, column in enumerate(columns) if number != 3]
              for name, columns in state["history"]["points"].items()
              if not name.startswith(("time/", "samples_per"))}
    entries = [{key: value for key, value in entry.items() if key not in ("time", "seconds")}
               for entry in state["journal"]["entries"]]
    return {**{key: state[key]
               for key in ("model", "optim", "hooks", "position", "random", "data", "loaders",
                           "loss_fn")}, "points": points,
            "entries": entries}


@pytest.fixture(scope="module",
                params=["one_cycle", pytest.param("StepLR", marks=pytest.mark.long)])
def taken(request):
    """A schedule, a state in mid-epoch, and how the run that goes on from it ends."""
    sched = "one_cycle" if request.param == "one_cycle" else lambda optim: SCHEDULER.StepLR(
        optim, 3)
    trainer = make(sched=sched)
    trainer.step(4)
    trainer.note("half way")
    trainer.tune(grad_clip=3.0)
    trainer.step(TAKEN - 4)
    state = trainer.state_dict()
    trainer.fit()
    return sched, state, outcome(trainer)


def leaves(value, path=()):
    """Every place in a state that can be changed, containers too;
    of long lists of numbers the ends."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            if len(value) < 10 or number in (0, len(value) - 1):
                yield from leaves(each, (*path, number))


def at(state, path):
    """What is at a place."""
    for key in path:
        state = state[key]
    return state


def put(state, path, change):
    """Change what is at a place, in a copy; tuples on the way are made again."""
    key, *rest = path
    new = put(state[key], rest, change) if rest else change(state[key])
    if isinstance(state, dict):
        made = {name: new if name == key else each for name, each in state.items()
                if name != key or new is not GONE}
        return type(state)(made)
    return type(state)(new if number == key else each for number, each in enumerate(state)
                       if number != key or new is not GONE)


GONE = object()
KINDS = (None, "text", -3, 2.5, True, [], {}, torch.zeros(2, 3),
         torch.zeros(2, 3, dtype=torch.long))
ODD = (1 + 2j, float("nan"), float("inf"), 10**400, 10**12, 0, b"x", (), set(), [1, 2], {"a": 1},
       [[None]], {None: None}, torch.tensor(0.5), torch.tensor([1j]), torch.tensor(True),
       torch.zeros(0))


def changes(value, draw, kinds=KINDS):
    """What may have become of a value: gone, of another kind, of another form."""
    yield "gone", lambda old: GONE
    other = draw.choice([each for each in kinds
                         if type(each) is not type(value) or isinstance(each, torch.Tensor)])
    yield f"now {type(other).__name__}", lambda old: other
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        yield "shorter", lambda old: old.flatten()[:-1].clone()
    if isinstance(value, (list, tuple)) and value:
        yield "shorter", lambda old: old[:-1]
    if isinstance(value, dict) and value:
        gone = draw.choice(list(value))
        yield "poorer", lambda old: {key: each for key, each in old.items() if key != gone}


FREE = ("fingerprint", "time", "header")  # said, and not what a run is made of


def merged(mine, given, whole, path=()):
    """Places at which a state is neither what was given nor what the whole state has."""
    number = (isinstance(mine, torch.Tensor) and mine.numel() == 1
              and not isinstance(given, torch.Tensor) and mine.item() == given)
    if number or alike(mine, given) or alike(mine, whole) or (path and path[-1] in FREE):
        return []
    # a hook that the state does not know keeps what it has
    if path and path[0] == "hooks" and given is None:
        return []
    if isinstance(mine, dict) and isinstance(given, dict) and isinstance(whole, dict):
        return [found for key in mine
                for found in merged(mine[key], given.get(key), whole.get(key), (*path, key))]
    return [path]


def tried(sched, state, begun, load):
    """Try to load: the trainer, the error, its state before and after."""
    trainer = make(sched=sched, seed=2)
    if begun:
        trainer.step(2)
    before = trainer.state_dict()
    seen = list(trainer.get_hook(Counter).seen)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            load(trainer, state)
            error = None
        except CheckpointError as caught:
            error = caught
    if error is not None:
        after = trainer.state_dict()
        assert alike(before, after), (error, merged(after, before, before))
        assert trainer.get_hook(Counter).seen == seen
    return trainer, error, [str(each.message) for each in said]


def cases(state, seed, count, kinds=KINDS):
    """Drawn changes, of every section alike."""
    draw = random.Random(seed)
    sections = {}
    for path in leaves(state):
        kind = "/".join("#" if isinstance(key, int) else str(key) for key in path)
        sections.setdefault((path[0], kind), []).append(path)
    places = list(sections.values())
    places = places[seed % len(places):] + places[:seed % len(places)]
    for number in range(count):
        path = draw.choice(places[number % len(places)])
        name, change = draw.choice(list(changes(at(state, path), draw, kinds)))
        yield f"{'.'.join(map(str, path))} {name}", path, put(state, path, change)


def end_of(sched, begun=0):
    """How a trainer's own run ends, with nothing tried on the way."""
    trainer = make(sched=sched, seed=2)
    if begun:
        trainer.step(begun)
    trainer.fit()
    return outcome(trainer)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)],
                         ids=["half", "every"])
def test_a_malformed_state_is_loaded_whole_or_not_at_all(taken, every):
    """The two schedules have a half of the cases each, or all."""
    sched, state, end = taken
    drawn = list(cases(state, 7, 160))
    if not every:
        drawn = drawn[sched == "one_cycle"::2]
    poorer = {**state, "hooks": {**state["hooks"], "counter": {"odd": 1}}}  # only the hook notices
    drawn.append(("hooks.counter odd", ("hooks", "counter"), poorer))
    own, counts = ({begun: end_of(sched, begun) for begun in (0, 2)},
                   {"refused": 0, "whole": 0, "late": 0})
    for number, (case, path, given) in enumerate(drawn):
        begun = 2 * (number % 2)
        trainer, error, said = tried(sched, given, begun, Trainer.load_state_dict)
        counts["refused" if error else "whole"] += 1
        if error is not None:
            counts["late"] += "Nothing was changed" in str(error)
            if number % 5 == 0 or "Nothing was changed" in str(error):
                trainer.fit()
                assert alike(outcome(trainer), own[begun]), case
            continue
        mine = trainer.state_dict()
        assert said or path[:2] == ("hooks",
                                    "counter") or not merged(
                                        mine, given, state), (case, merged(mine, given, state))
        if number % 3 == 0:
            trainer.fit()
        mine["position"]["seconds"] = state["position"]["seconds"]
        if number % 3 == 0 and alike(mine, state):
            assert alike(outcome(trainer), end), case
    assert counts["refused"] > len(drawn) / 2 and counts["whole"] > len(drawn) / 8, counts
    assert counts["late"] > 0, counts


OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, "one_cycle"), "Adafactor": (torch.optim.Adafactor, "cosine"),
    "SGD": (lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9, nesterov=True),
            lambda optim: SCHEDULER.CosineAnnealingWarmRestarts(optim, 3)),
    "NAdam": (torch.optim.NAdam, lambda optim: SCHEDULER.SequentialLR(
        optim, [SCHEDULER.LinearLR(optim), SCHEDULER.ExponentialLR(optim, 0.9)], [3])),
    "Rprop": (torch.optim.Rprop, lambda optim: SCHEDULER.LambdaLR(optim, lambda step: 0.9**step)),
    "RMSprop": (torch.optim.RMSprop, lambda optim: SCHEDULER.CyclicLR(
        optim, 0.001, 0.1, cycle_momentum=False))}
FILES: dict = {}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in ("AdamW", "SGD") else pytest.mark.long)
    for name in OPTIMIZERS])
@hypothesis.given(seed=integers(0, 2**32))
@hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck))
def test_a_malformed_file_is_loaded_or_refused_and_never_breaks_the_run(name, seed, tmp_path):
    """Of any seed: no other error comes from the load, nor from the steps after it."""
    optim, sched = OPTIMIZERS[name]
    if name not in FILES:
        trainer = make(optim=optim, sched=sched)
        trainer.step(TAKEN)
        trainer.note("half way")
        FILES[name] = trainer.state_dict()
    for case, _, state in cases(FILES[name], seed, 2, KINDS + ODD):
        trainer = make(optim=optim, sched=sched, seed=2)
        before = trainer.state_dict()
        path = write_state(state, tmp_path / "run.pt")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                trainer.load(path)
            except CheckpointError:
                assert alike(before, trainer.state_dict()), case
                continue
            with suppress(ArithmeticError):  # numbers that are allowed, and of no use
                trainer.fit()


def test_a_rewind_to_a_malformed_state_changes_nothing(taken):
    """In a pause and at a boundary of a run that goes on."""
    sched, _, _ = taken
    trainer = make(SnapshotHook(every_steps=2), sched=sched, seed=2)
    trainer.fit()
    end, refused = outcome(trainer), 0
    trainer = make(SnapshotHook(every_steps=2), sched=sched, seed=2)
    trainer.step(3)
    point = trainer.get_hook(SnapshotHook).snapshots[-1]
    state, told = point.take()
    drawn = list(cases(state, 2, 80))
    for number, (case, path, given) in enumerate(drawn):
        if path[0] in ("hooks", "loaders", "tunables") and "gone" in case:
            continue
        point.take = lambda given=given: (given, told)
        before, replies = trainer.state_dict(), []
        if number % 10 == 5 and trainer.step_state.optimizer_step < STEPS - 2:
            trainer.ask(lambda: replies.append(
                trainer.post(Command("rewind", {"step": point.step}))))
            trainer.step(1)
            refused += [reply.status for reply in replies] == ["refused"]
            if replies[0].status == "refused":
                continue
        try:
            trainer.rewind(point.step)
        except CheckpointError:
            refused += 1
            assert alike(before, trainer.state_dict()), case
            continue
        trainer = make(SnapshotHook(every_steps=2), sched=sched, seed=2)  # it was loaded
        trainer.step(3)
        point = trainer.get_hook(SnapshotHook).snapshots[-1]
    trainer.fit()
    assert refused > 15 and alike(outcome(trainer), end)


def test_a_malformed_checkpoint_is_passed_over_for_the_one_before(taken, tmp_path):
    """Of a file whose check sum is right; the message names file and reason."""
    sched, _, _ = taken
    first = tmp_path / "first"
    trainer = make(CheckpointHook(first, every_steps=2, every_epochs=None), sched=sched)
    trainer.step(6)
    trainer.close()
    state = read_state(first / "step_00000006.pt")
    for change in (lambda it: it.pop("position"), lambda it: it.update(hooks=[]),
                   lambda it: it["optim"]["param_groups"][0].update(eps=torch.ones(1)),
                   lambda it: it["journal"].update(header=3),
                   lambda it: it["hooks"]["counter"].pop("sums")):
        given = copy.deepcopy(state)
        change(given)
        folder = shutil.copytree(first, tmp_path / "again")
        write_state(given, folder / "step_00000006.pt")
        hook = CheckpointHook(folder, every_steps=None, every_epochs=None)
        trainer = make(hook, sched=sched, seed=2)
        with pytest.warns(UserWarning, match="step_00000006.pt is passed over: .*is tried"):
            trainer.step(1)
        assert hook.resumed_from == folder / "step_00000004.pt"
        assert trainer.step_state.optimizer_step == 5
        trainer.close()
        shutil.rmtree(folder)


def test_a_state_that_no_trainer_of_this_kind_can_load_ends_the_search(taken, tmp_path):
    """One reason for three files is not damage: a hundred others need not be read."""
    sched, _, _ = taken
    trainer = make(CheckpointHook(tmp_path, every_steps=1, every_epochs=None, keep_last=None),
                   sched=sched)
    trainer.step(6)
    trainer.close()
    other = make(CheckpointHook(tmp_path, every_epochs=None), sched=sched,
                 optim=torch.optim.RAdam)
    with pytest.warns(UserWarning) as said, pytest.raises(CheckpointError, match="here is RAdam"):
        other.fit()
    assert sum("passed over" in str(each.message) for each in said) == 2


def test_a_malformed_checkpoint_stops_a_run_that_was_to_go_on_from_it(taken, tmp_path):
    """Where there is no other: nothing of it is left in the trainer, whose run is another one."""
    sched, state, _ = taken
    own = end_of(sched)
    trainer = make(CheckpointHook(tmp_path, every_steps=4, every_epochs=None), sched=sched)
    trainer.step(5)
    trainer.close()
    *others, path = sorted(tmp_path.glob("*.pt"))
    for other in others:
        other.unlink()
    state = read_state(path)
    for case, _, given in list(cases(state, 3, 60))[::4]:
        write_state(given, path)
        hook = CheckpointHook(tmp_path, every_steps=None, every_epochs=None)
        trainer = make(hook, sched=sched, seed=2)
        before = plain_copy(trainer.model.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                trainer.step(1)
            except CheckpointError:
                assert alike(before,
                             dict(trainer.model.state_dict())) or alike(
                                 before, trainer.model.state_dict()), case
                assert trainer.step_state.optimizer_step == 0 and not trainer.optim.state
                hook.resume = None
                trainer.fit()
                end = outcome(trainer)
                end["hooks"].pop("checkpoint", None)
                del end["position"]["data"]["first_samples"]  # which that hook wants to know
                assert alike(end, own), case
        trainer.close()


@pytest.mark.parametrize("error", [KeyError("count"), KeyboardInterrupt(), MemoryError()])
def test_what_raises_on_the_way_leaves_the_run_as_it_was(taken, error):
    """A hook of another version, Ctrl-C, no memory: after the weights were written."""
    sched, state, _ = taken
    class Late(Counter):
        def load_state_dict(self, given):
            super().load_state_dict(given)
            if given["seen"] != [1, 2]:  # its own may come back
                raise error
    trainer = make(sched=sched, seed=2)
    trainer.hooks.remove(trainer.get_hook(Counter))
    trainer.hooks.add(Late())
    changed = {"grad_clip": 1.0, "layer_groups.first.lr_scale": 0.5}
    trainer.tune(**changed)
    trainer.step(2)
    before, layer = trainer.state_dict(), trainer.model[0].weight
    with pytest.raises(CheckpointError if isinstance(error, KeyError) else type(error)) as caught:
        trainer.load_state_dict(state)
    if isinstance(error, KeyError):
        assert "'counter'" in str(caught.value) and "KeyError: 'count'" in str(caught.value)
        assert "Nothing was changed" in str(caught.value)
        assert caught.value.__cause__.__cause__ is error
    assert alike(before, trainer.state_dict())
    assert trainer.model[0].weight is layer and trainer.grad_clip == 1.0
    trainer.fit()
    same = make(sched=sched, seed=2)
    same.tune(**changed)
    same.fit()
    assert alike(outcome(trainer)["model"], outcome(same)["model"])
    assert alike(outcome(trainer)["points"], outcome(same)["points"])


def test_what_raises_at_the_end_of_a_load_leaves_the_run_as_it_was(taken):
    """A hook that joins then cannot begin: the journal is the run's own again."""
    sched, state, _ = taken
    class Joins(Hook):
        def before_fit(self, trainer):
            raise ValueError("cannot begin")
    trainer, hook = make(sched=sched, seed=2), Joins()
    trainer.tune(grad_clip=1.0)
    trainer.step(2)
    before, journal, stands = trainer.state_dict(), trainer.journal, trainer.state
    trainer.hooks.add(hook)
    with pytest.raises(CheckpointError, match=r"(?s)cannot begin.*Nothing was changed"):
        trainer.load_state_dict(state)
    trainer.hooks.remove(hook)
    assert trainer.journal is journal and trainer.state is stands
    assert alike(before, trainer.state_dict())


def lr(kind, **settings):
    """A schedule by hand."""
    return lambda optim: getattr(SCHEDULER, kind)(optim, **settings)


STEP, EXPONENTIAL = lr("StepLR", step_size=3), lr("ExponentialLR", gamma=0.9)
OTHERS = [({"sched": "one_cycle"}, {"sched": "cosine"}, "one_cycle.*cosine"),
          ({"sched": "cosine"}, {"sched": "warmup_stable_decay"}, "cosine.*stable"),
          ({"sched": STEP}, {"sched": "one_cycle"}, "StepLR.*one_cycle"),
          ({"sched": STEP}, {"sched": EXPONENTIAL}, "StepLR.*ExponentialLR"),
          ({"sched": "one_cycle"}, {"sched": STEP}, "one_cycle.*StepLR"),
          ({"sched": None}, {"sched": "cosine"}, "without the schedule"),
          ({"optim": torch.optim.Adam}, {}, "Adam,.*AdamW"),
          ({"optim": torch.optim.Adam}, {"optim": torch.optim.NAdam}, "Adam,.*NAdam"),
          ({}, {"optim": torch.optim.SGD}, "AdamW,.*SGD"),
          ({"loss_fn": nn.CrossEntropyLoss()}, {}, "another loss function: it lacks weight")]


@pytest.mark.parametrize("known", [True, False], ids=["named", "old"])
@pytest.mark.parametrize(("there", "here", "text"), OTHERS, ids=[text for _, _, text in OTHERS])
def test_another_optimizer_or_schedule_is_refused_by_name(there, here, text, known, tmp_path):
    """And the way out is one; files that do not name the classes are judged by what is there."""
    first = make(**there)
    first.step(5)
    state = first.state_dict()
    if not known:
        state["modules"].pop("optimizer")
        state["hooks"].get("scheduler", {}).pop("kind", None)
        if "cosine.*stable" in text:  # two functions, and nothing tells them apart
            return
    path = write_state(state, tmp_path / "run.pt")
    second = make(**here, seed=2)
    before = second.state_dict()
    with pytest.raises(CheckpointError,
                       match=text if known else "another|without|refused") as caught:
        second.load(path)
    assert alike(before, second.state_dict())
    if "loss" not in text:
        assert "load(path, optimizer=False)" in str(caught.value)
        second.load(path, optimizer=False)
        assert second.step_state.optimizer_step == 5 and second.fit().status == "finished"


def test_a_state_with_more_in_it_and_one_of_an_older_version_are_loaded(taken):
    sched, state, end = taken
    more = copy.deepcopy({**state, "identity": {"x": 1}})
    more["position"][
        "new"] = more["data"]["new"] = more["modules"]["new"] = more["optim"]["new"] = 1
    old = copy.deepcopy(state)
    old["modules"].pop("optimizer")
    old["hooks"]["scheduler"].pop("kind")
    for given in (more, old):
        trainer = make(sched=sched, seed=2)
        trainer.load_state_dict(given)
        trainer.fit()
        assert alike(outcome(trainer), end)


def test_a_hook_may_refuse_a_state_beforehand(taken):
    sched, state, _ = taken
    class Strict(Counter):
        def check_state(self, trainer, given):
            """Not with that many."""
            if len(given["seen"]) > 3:
                raise ValueError(f"{len(given['seen'])} were seen")
    trainer = make(sched=sched, seed=2)
    trainer.hooks.remove(trainer.get_hook(Counter))
    trainer.hooks.add(Strict())
    with pytest.raises(CheckpointError, match="'counter' does not take its state: 7 were seen"):
        trainer.load_state_dict(state)
    assert trainer.get_hook(Counter).seen == [] and trainer.step_state.optimizer_step == 0


def test_a_value_that_is_not_allowed_any_more_is_refused_before_anything_changes(taken):
    sched, state, _ = taken
    given = copy.deepcopy(state)
    given["tunables"]["counter.share"] = 5.0
    trainer = make(sched=sched, seed=2)
    before = trainer.state_dict()
    with pytest.raises(CheckpointError, match="counter.share = 5.0 is refused") as caught:
        trainer.load_state_dict(given)
    assert "Nothing was changed" not in str(caught.value)  # it had not begun
    assert alike(before, trainer.state_dict())
