"""A training batch that raised: which one it was, and a run that goes on as if the loader had never
given it."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from trainer_nb.core.control import Command
from trainer_nb.core.hook import LambdaHook
from small_runs import Loop
from trainer_nb.panel.sections import commands
from trainer_nb.panel.view import LocalRunView

pytestmark = pytest.mark.slow

IMAGES, LABELS = load_digits(return_X_y=True)  # read once
COUNT, SIZE, EPOCHS = 26, 4, 2  # seven batches an epoch, the last one with two samples
BATCHES = 7


class Planted(Exception):
    """What the tests raise."""


class Digits(Dataset):
    """Digits with their indices; a bad sample cannot be read."""

    def __init__(self, bad=()):
        self.images = torch.tensor(IMAGES[:COUNT], dtype=torch.float32) / 16
        self.labels, self.bad = torch.tensor(LABELS[:COUNT]), bad

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if index in self.bad:
            raise Planted(f"sample {index}")
        return (self.images[index].unsqueeze(0), self.labels[index].unsqueeze(0),
                torch.tensor([index]))


class BulkDigits(Digits):
    """The same, asked for a list of indices at once."""

    def __getitem__(self, indices):
        return [torch.stack(column) for column in zip(*map(super().__getitem__, indices))]


class StreamedDigits(IterableDataset):
    """The same without indices to ask for, shared out to the workers."""

    def __init__(self, bad=()):
        self.digits = Digits(bad)

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for batch in range(first, BATCHES, step):
            yield from (self.digits[i]
                        for i in range(batch * SIZE, min(COUNT, batch * SIZE + SIZE)))


class ListedBatches(BatchSampler):
    """A batch sampler that draws its whole epoch when it is asked for an iterator, as a plain class
    may do."""

    def __iter__(self):
        order = torch.randperm(COUNT).tolist()
        return iter([tuple(order[i : i + SIZE]) for i in range(0, COUNT, SIZE)])


def own(seed=5):
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


def batches_of(generator=None):
    """A batch sampler in random order."""
    return BatchSampler(RandomSampler(range(COUNT), generator=generator), SIZE, drop_last=False)


LOADERS = {
    "in order": lambda bad=(), **s: DataLoader(Digits(bad), SIZE, **s),
    "shuffled": lambda bad=(), **s: DataLoader(Digits(bad), SIZE, shuffle=True, **s),
    "generator": lambda bad=(), **s: DataLoader(Digits(bad), SIZE, shuffle=True, generator=own(),
                                                **s),
    "sampler's generator": lambda bad=(), **s: DataLoader(
        Digits(bad), SIZE,
        sampler=RandomSampler(range(COUNT), True, num_samples=COUNT, generator=own()), **s
    ),
    "batch sampler": lambda bad=(), **s: DataLoader(Digits(bad), batch_sampler=batches_of(own()),
                                                    **s),
    "batches of tuples": lambda bad=(), **s: DataLoader(
        Digits(bad),
        batch_sampler=[tuple(range(i, min(COUNT, i + SIZE))) for i in range(0, COUNT, SIZE)], **s
    ),
    "drawn at once": lambda bad=(), **s: DataLoader(
        Digits(bad), batch_sampler=ListedBatches(range(COUNT), SIZE, False), **s
    ),
    "single samples": lambda bad=(), **s: DataLoader(
        Digits(bad), batch_size=None, sampler=RandomSampler(range(COUNT)), **s
    ),
    "in bulk": lambda bad=(), **s: DataLoader(BulkDigits(bad), batch_size=None,
                                              sampler=batches_of(), **s),
    "stream": lambda bad=(), **s: DataLoader(StreamedDigits(bad), SIZE, **s),
    "list": lambda bad=(), **s: list(DataLoader(Digits(bad), SIZE)),
}
INDEXED = [kind for kind in LOADERS if kind not in ("stream", "list")]
WORKERS = {"0": {}, "2": {"num_workers": 2},
           "persistent": {"num_workers": 2, "persistent_workers": True}}
OPTIMS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def make_model():
    """A small classifier in which nothing is drawn."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


def loss_of(model, batch):
    """The mean loss of one batch, of either shape."""
    return nn.functional.cross_entropy(model(batch[0].reshape(-1, 64)), batch[1].reshape(-1))


def indices_of(batch):
    """The indices that a batch carries."""
    return batch[2].flatten().tolist()


def drawn(kind, workers="0", epochs=EPOCHS):
    """The batches of each epoch as the loader alone gives them."""
    loader = LOADERS[kind](**WORKERS[workers])
    torch.manual_seed(3)
    return [list(loader) for _ in range(epochs)]


def state_of(model, optim):
    """All that was learnt."""
    moments = [torch.as_tensor(value) for state in optim.state.values() for value in state.values()]
    return [value.clone() for value in (*model.state_dict().values(), *moments)]


def by_hand(epochs, left_out, optim="sgd", accumulation=1, max_steps=None):
    """A loop over the batches that leaves some of them out; weights, moments, steps and samples."""
    model = make_model()
    optim = OPTIMS[optim](model.parameters())
    steps = samples = 0
    for epoch, batches in enumerate(epochs):
        kept = [batch for number, batch in enumerate(batches) if (epoch, number) not in left_out]
        for first in range(0, len(kept), accumulation):
            if max_steps is not None and steps == max_steps:
                break
            window = kept[first : first + accumulation]
            whole = accumulation * len(window[0][1].flatten())
            for batch in window:
                loss_of(model, batch).backward(torch.tensor(len(batch[1].flatten()) / whole))
                samples += len(batch[1].flatten())
            items = sum(len(batch[1].flatten()) for batch in window)
            for parameter in model.parameters() if items != whole else ():
                parameter.grad *= whole / items
            optim.step()
            optim.zero_grad()
            steps += 1
    return state_of(model, optim), steps, samples


class Failing:
    """A training step, and hooks beside it, that raise at certain batches of certain epochs, each
    time they come."""

    def __init__(self, bad, place="step"):
        self.bad, self.place = bad, place  # (epoch, indices) ...

    def check(self, batch, trainer, place):
        """Raise if this is the place and the batch."""
        if (place == self.place and trainer.training
            and (trainer.step_state.epoch, indices_of(batch)) in self.bad):
            raise Planted(place)

    def step(self, batch, trainer):
        """The training step."""
        self.check(batch, trainer, "step")
        loss = loss_of(trainer.model, batch)
        self.check(batch, trainer, "end of the step")
        return {"loss": loss}

    def hooks(self):
        """A hook for each place outside the step."""
        points = ("before_batch", "after_loss", "after_backward", "after_batch")
        return [LambdaHook(**{p: lambda trainer, p=p: self.check(trainer.batch, trainer, p)})
                for p in points]


PLACES = ("step", "end of the step", "before_batch", "after_loss", "after_backward", "after_batch")


def make_loop(loader, failing=None, optim="sgd", accumulation=1, **settings):
    """A loop on the CPU with its own seed."""
    failing = failing or Failing([])
    return Loop(
        make_model(), failing.step, loader, hooks=[*failing.hooks(), *settings.pop("hooks", ())],
        device="cpu",
        optim=OPTIMS.get(optim, optim), gradient_accumulation_steps=accumulation, seed=3,
        **settings,
    )  # fmt: skip


def planted(kind, numbers, place="step", workers="0", **settings):
    """A loop that fails at these (epoch, number), and all its epochs as the loader alone gives
    them."""
    epochs = drawn(kind, workers)
    bad = [(epoch, indices_of(epochs[epoch][number])) for epoch, number in numbers]
    return make_loop(LOADERS[kind](**WORKERS[workers]), Failing(bad, place), **settings), epochs


def fit_leaving_out(loop, indices=None, **totals):
    """fit() until it ends, each time without the batch that failed;
    their (epoch, number), and what they held."""
    left_out, indices = [], [] if indices is None else indices
    while True:
        try:
            assert loop.fit(**(totals or {"epochs": EPOCHS}),
                            skip_failed=bool(left_out)).status == "finished"
            return left_out
        except Planted:
            left_out.append((loop.loop.feed.failed.epoch, loop.loop.feed.failed.batch_idx))
            indices.append(loop.failed_indices)
            assert len(left_out) < 30
        torch.rand(7)  # what a person does in a cell between


def assert_equal(loop, wanted):
    """The run has learnt what the loop by hand has, bit for bit, and counted the same."""
    tensors, steps, samples = wanted
    for a, b in zip(state_of(loop.model, loop.optim), tensors, strict=True):
        assert torch.equal(a, b)
    assert (loop.step_state.optimizer_step, loop.step_state.samples_seen) == (steps, samples)


def skipped(loop):
    """What the journal says of batches left out."""
    return [(e.kind, e.name, e.new, e.source) for e in loop.journal if e.kind == "skip"]


# ---- which batch it was


@pytest.mark.parametrize("place", PLACES)
def test_the_batch_that_raised_is_kept(place):
    """In the step or in a hook, before and after the batch was counted;
    the exception is the one that was raised."""
    loop, epochs = planted("shuffled", [(1, 2)], place)
    with pytest.raises(Planted, match=place) as excinfo:
        loop.fit(epochs=EPOCHS)
    wanted = epochs[1][2]
    assert all(torch.equal(a, b) for a, b in zip(loop.failed_batch, wanted, strict=True))
    assert loop.failed_indices == indices_of(wanted)
    assert (loop.loop.feed.failed.epoch, loop.loop.feed.failed.batch_idx,
            str(loop.loop.feed.failed)) == (1, 2, "batch 3 of epoch 2")
    assert LocalRunView(loop).failed == "batch 3 of epoch 2"
    assert repr(excinfo.value) == repr(loop.exception)


@pytest.mark.parametrize("number", [(0, 0), (0, 3), (1, 0), (1, 6)])
@pytest.mark.parametrize("kind", INDEXED)
def test_indices_are_those_really_drawn(kind, number):
    """Whatever draws them, and from whichever stream."""
    epoch, index = number
    loop, epochs = planted(kind, [number])
    with pytest.raises(Planted):
        loop.fit(epochs=EPOCHS)
    assert loop.failed_indices == indices_of(loop.failed_batch) == indices_of(epochs[epoch][index])


@pytest.mark.parametrize(
    ("kind", "workers", "resume"),
    [(kind, "0", "skip") for kind in INDEXED]
    + [(kind, workers, "skip") for kind in ("shuffled", "in bulk")
       for workers in ("2", "persistent")]
    + [("shuffled", "0", "replay"), ("batch sampler", "2", "replay")],
)
def test_a_sample_that_cannot_be_read(kind, workers, resume):
    """The loader raises: there is no batch to look at, but its indices are known;
    both epochs meet the sample."""
    epochs, bad = drawn(kind, workers), 11
    loop = make_loop(LOADERS[kind]((bad,), **WORKERS[workers]), resume_data=resume)
    wanted = [(e, n) for e in range(EPOCHS) for n, batch in enumerate(epochs[e])
              if bad in indices_of(batch)]
    assert wanted
    for again, (epoch, number) in enumerate(wanted):
        with pytest.raises(Planted, match="sample 11"):
            loop.fit(epochs=EPOCHS, skip_failed=again > 0)
        assert (loop.failed_batch, loop.failed_indices) == (None, indices_of(epochs[epoch][number]))
    loop.fit(epochs=EPOCHS, skip_failed=True)
    assert_equal(loop, by_hand(epochs, wanted))


@pytest.mark.parametrize("kind", ["stream", "list"])
def test_no_indices_where_there_are_none(kind):
    """The batch is there all the same."""
    loop, epochs = planted(kind, [(1, 2)])
    with pytest.raises(Planted):
        loop.fit(epochs=EPOCHS)
    assert loop.failed_indices is None
    assert indices_of(loop.failed_batch) == indices_of(epochs[1][2])


def test_the_batch_is_kept_as_the_loader_gave_it():
    """Not as a hook has replaced it."""
    change = LambdaHook(
        before_batch=lambda trainer: setattr(trainer, "batch", [t * 1 for t in trainer.batch]))
    loader = LOADERS["list"]()
    loop = make_loop(loader, Failing([(0, indices_of(loader[4]))]), hooks=[change])
    with pytest.raises(Planted):
        loop.fit(epochs=1)
    assert loop.failed_batch is loader[4] and loop.batch is not loader[4]


@pytest.mark.parametrize("number", [(0, 3), (1, 2)])
@pytest.mark.parametrize("kind", ["shuffled", "generator", "batch sampler"])
def test_looking_for_indices_draws_nothing(kind, number):
    """Mended and tried again, a run that failed is the run that never failed, down to what its
    hooks draw."""
    def drawing(seen):
        return LambdaHook(
            after_batch=lambda trainer: seen.append((torch.rand(()).item(),
                                                     indices_of(trainer.batch))))

    wanted, found = [], []
    whole = make_loop(LOADERS[kind](), hooks=[drawing(wanted)])
    whole.fit(epochs=EPOCHS)
    once = wanted[number[0] * BATCHES + number[1]][1]
    loop = make_loop(LOADERS[kind](), Failing([(number[0], once)]), hooks=[drawing(found)])
    with pytest.raises(Planted):
        loop.fit(epochs=EPOCHS)
    assert loop.failed_indices == once
    loop.train_step.__self__.bad.clear()
    loop.fit(epochs=EPOCHS)
    assert (loop.failed_batch, loop.failed_indices, skipped(loop)) == (None, None, [])
    assert found == wanted and len(wanted) == EPOCHS * BATCHES
    assert_equal(loop, (state_of(whole.model, whole.optim), EPOCHS * BATCHES, EPOCHS * COUNT))


class Once(RandomSampler):
    """A sampler that gives its order once and never again."""

    def __iter__(self):
        if "given" in vars(self):
            raise ValueError("given already")
        self.given = True
        return super().__iter__()


def test_indices_that_cannot_be_found():
    """Looking for them does not hide what really went wrong."""
    loader = DataLoader(Digits(), SIZE, sampler=Once(range(COUNT)))
    loop = make_loop(loader, hooks=[LambdaHook(after_loss=lambda trainer: 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        loop.fit(epochs=1)
    assert loop.failed_indices is None and len(indices_of(loop.failed_batch)) == SIZE


# ---- without it


@pytest.mark.parametrize("number", [(0, 0), (0, 3), (0, 6), (1, 0), (1, 4), (1, 6)])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("optim", OPTIMS)
def test_without_it_equals_a_loop_without_it(optim, accumulation, number):
    """The first, a middle, the last batch, in either epoch:
    the windows are those of the batches that are left."""
    loop, epochs = planted("shuffled", [number], optim=optim, accumulation=accumulation)
    assert fit_leaving_out(loop) == [number]
    assert_equal(loop, by_hand(epochs, [number], optim, accumulation))
    assert skipped(loop) == [("skip", "batch", f"batch {number[1] + 1} of epoch {number[0] + 1}",
                              "code")]
    assert (loop.loop.feed.failed, LocalRunView(loop).failed) == (None, "")


@pytest.mark.parametrize("number", [(0, 4), (1, 0)])
@pytest.mark.parametrize("place", PLACES[1:])
def test_wherever_it_failed(place, number):
    """A gradient that was added already, or a batch that was counted, leaves no trace."""
    loop, epochs = planted("generator", [number], place, accumulation=3)
    assert fit_leaving_out(loop) == [number]
    assert_equal(loop, by_hand(epochs, [number], accumulation=3))


@pytest.mark.parametrize("numbers", [[(0, 0), (1, 4)], [(0, 4), (1, 0)], [(0, 6), (1, 6)]])
@pytest.mark.parametrize("kind", LOADERS)
def test_whatever_gave_it(kind, numbers):
    """Every kind of loader, in both epochs."""
    loop, epochs = planted(kind, numbers, accumulation=3)
    assert fit_leaving_out(loop) == numbers
    assert_equal(loop, by_hand(epochs, numbers, accumulation=3))


@pytest.mark.parametrize("workers", [pytest.param("2", marks=pytest.mark.long), "persistent"])
@pytest.mark.parametrize("kind", ["shuffled", "batch sampler", "stream", *(
    pytest.param(kind, marks=pytest.mark.long) for kind in LOADERS
    if kind not in ("shuffled", "batch sampler", "stream", "list"))])
def test_whichever_worker_gave_it(kind, workers):
    """With workers that end with the epoch, and with persistent ones;
    the indices are those drawn with workers."""
    numbers = [(0, 3), (1, 0)]
    loop, epochs = planted(kind, numbers, workers=workers, accumulation=3)
    found = []
    assert fit_leaving_out(loop, found) == numbers
    wanted = [None if kind == "stream" else indices_of(epochs[epoch][number])
              for epoch, number in numbers]
    assert found == wanted
    assert_equal(loop, by_hand(epochs, numbers, accumulation=3))


@pytest.mark.parametrize("kind", ["shuffled", "generator", "stream"])
def test_by_replay(kind):
    """Where batches are loaded again instead of skipped."""
    loop, epochs = planted(kind, [(0, 4), (1, 1)], accumulation=3, resume_data="replay")
    assert fit_leaving_out(loop) == [(0, 4), (1, 1)]
    assert_equal(loop, by_hand(epochs, [(0, 4), (1, 1)], accumulation=3))


SEVERAL = {
    "two side by side": [(0, 2), (0, 3)],
    "two in one window": [(0, 3), (0, 5)],
    "the first two": [(0, 0), (0, 1)],
    "the last two": [(0, 5), (0, 6)],
    "in both epochs": [(0, 3), (1, 3)],
    "over the end of an epoch": [(0, 6), (1, 0)],
    "a whole epoch": [(0, n) for n in range(BATCHES)],
}


@pytest.mark.parametrize("several", SEVERAL)
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("kind", ["shuffled", "list"])
def test_several_one_after_the_other(kind, accumulation, several):
    """Each one is met, named and left out."""
    numbers = SEVERAL[several]
    loop, epochs = planted(kind, numbers, accumulation=accumulation)
    assert fit_leaving_out(loop) == numbers
    assert_equal(loop, by_hand(epochs, numbers, accumulation=accumulation))
    assert [new for _, _, new, _ in skipped(loop)] == [f"batch {n + 1} of epoch {e + 1}"
                                                       for e, n in numbers]


@pytest.mark.parametrize("number", [(0, 0), (0, 2), (0, 4), (1, 4)])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize(("kind", "limit"),
                         [("shuffled", 5), ("shuffled", 0.72), ("list", 5), ("stream", 5)])
def test_under_a_limit(kind, limit, accumulation, number):
    """The epoch still ends where it would have: no batch from behind the limit moves up."""
    loop, epochs = planted(kind, [number], accumulation=accumulation, limit_batches=limit)
    assert fit_leaving_out(loop) == [number]
    assert_equal(loop,
                 by_hand([batches[:5] for batches in epochs], [number], accumulation=accumulation))


@pytest.mark.parametrize("kind", ["in order", "shuffled", "list"])
def test_an_epoch_of_one_batch(kind):
    """Nothing is left of the epoch, and it is over all the same."""
    loop, epochs = planted(kind, [(0, 0)], limit_batches=1, valid_dl=LOADERS["list"]())
    assert fit_leaving_out(loop) == [(0, 0)]
    assert_equal(loop, by_hand([batches[:1] for batches in epochs], [(0, 0)]))
    assert (loop.step_state.epoch, loop.step_state.evaluated_at) == (2, 1)


@pytest.mark.parametrize(
    "numbers", [[(0, 0)], [(0, 1)], [(0, 2)], [(1, 0)], [(1, 2)], [(0, 0), (0, 2)],
                [(1, 1), (1, 3)]]
)
def test_with_the_same_few_batches(numbers):
    """Of overfit_batches some are left out of one epoch."""
    epochs = [drawn("shuffled")[0][:4]] * EPOCHS
    bad = [(epoch, indices_of(epochs[epoch][number])) for epoch, number in numbers]
    loop = make_loop(LOADERS["shuffled"](), Failing(bad), overfit_batches=4, accumulation=2)
    assert fit_leaving_out(loop) == numbers
    assert_equal(loop, by_hand(epochs, numbers, accumulation=2))


@pytest.mark.parametrize("number", [(0, 1), (1, 0), (1, 1), (1, 6)])
def test_counted_in_steps(number):
    """The steps that are missing come from the next pass."""
    epochs = drawn("shuffled", epochs=3)
    loop = make_loop(LOADERS["shuffled"](),
                     Failing([(number[0], indices_of(epochs[number[0]][number[1]]))]))
    assert fit_leaving_out(loop, max_steps=17) == [number]
    assert_equal(loop, by_hand(epochs, [number], max_steps=17))


def test_a_run_in_pieces_and_with_evaluations():
    """Steps, pauses, stops and evaluations around the batch that is left out change nothing."""
    loop, epochs = planted("shuffled", [(0, 4)], accumulation=3, valid_dl=LOADERS["shuffled"]())
    loop.step()
    loop.stop()
    with pytest.raises(Planted):
        loop.step(5)
    loop.fit(max_steps=2, skip_failed=True)
    loop.step()
    loop.stop()
    loop.fit(epochs=EPOCHS)
    assert_equal(loop, by_hand(epochs, [(0, 4)], accumulation=3))


def test_in_the_background():
    """wait() raises, the view names the batch, and a panel's Resume leaves it out."""
    loop, epochs = planted("shuffled", [(0, 4)], accumulation=3, epochs=EPOCHS)
    loop.start()
    with pytest.raises(Planted):
        loop.wait()
    view = LocalRunView(loop)
    assert view.failed == "batch 5 of epoch 1"
    button = commands(view)["resume"]["buttons"]["Skip the batch"]
    assert "why_not" not in button
    assert loop.post(Command("resume", dict(button["values"]), source="widget")).status == "applied"
    assert loop.wait().status == "finished"
    assert "why_not" in commands(view)["resume"]["buttons"]["Skip the batch"]
    assert skipped(loop) == [("skip", "batch", "batch 5 of epoch 1", "widget")]
    assert_equal(loop, by_hand(epochs, [(0, 4)], accumulation=3))


def test_an_error_without_a_batch_offers_none_to_be_skipped():
    """A hook raised after the step: its batch is not the one to leave out."""
    loop, _ = planted("shuffled", [], hooks=[LambdaHook(after_step=lambda trainer: 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        loop.fit(epochs=1)
    buttons = commands(LocalRunView(loop))["resume"]["buttons"]
    assert "why_not" not in buttons["Resume"]
    assert buttons["Skip the batch"]["why_not"] == "No batch has failed"


def test_the_entry_stands_where_the_run_goes_on():
    """At the window that is taken again, before the batch."""
    loop, _ = planted("in order", [(0, 4)], accumulation=3)
    fit_leaving_out(loop)
    entry = loop.journal.entries[0]
    assert (entry.step, entry.epoch, entry.batch_idx, entry.samples_seen) == (1, 0, 3, 12)


@pytest.mark.parametrize("kind", ["stream", "list"])
def test_a_loader_that_cannot_go_on(kind):
    """Where it is the loader that raised and no index can be passed over, leaving out is refused or
    comes to an end."""

    class Broken(list):
        def __iter__(self):
            yield from self[:2]
            raise Planted("the third batch")

    loader = LOADERS["stream"]((11,)) if kind == "stream" else Broken(LOADERS["list"]())
    loop = make_loop(loader)
    for again in range(BATCHES + 1):
        try:
            loop.fit(epochs=1, skip_failed=again > 0)
            break
        except Planted:
            continue
        except RuntimeError:
            break
    else:
        pytest.fail(f"left out so far: {[new for _, _, new, _ in skipped(loop)]}")


# ---- nothing to leave out


def things(loop):
    """What a refusal must not change."""
    places = (loop.state, loop.epochs, loop.max_steps, loop.step_state.boundary, len(loop.journal),
              loop.loop.feed.failed)
    return places, [p.clone() for p in loop.model.parameters()], torch.get_rng_state()


@pytest.mark.parametrize("when",
                         ["before", "paused", "finished", "after an evaluation failed",
                          "skipped already"])
def test_nothing_to_leave_out_is_refused(when):
    """RuntimeError before anything changes, in a cell and by a command."""
    failing = Failing([])
    evaluating = (LambdaHook(before_valid=lambda trainer: 1 / 0)
                  if "evaluation" in when else LambdaHook(before_fit=id))
    loop = make_loop(LOADERS["shuffled"](), failing, hooks=[evaluating], valid_dl=LOADERS["list"](),
                     epochs=1)
    if when == "paused":
        loop.step(2)
    elif when == "finished":
        loop.fit()
    elif when == "after an evaluation failed":
        with pytest.raises(ZeroDivisionError):
            loop.fit()
    elif when == "skipped already":
        failing.bad = [(0, indices_of(drawn("shuffled")[0][2]))]
        with pytest.raises(Planted):
            loop.fit()
        loop.post(Command("resume", {"skip_failed": True}))
        loop.wait()
    (places, weights, streams), fired = things(loop), []
    loop.hooks.add(LambdaHook(**{p: lambda t, *_: fired.append(p)
                                 for p in ("before_fit", "after_exception")}))
    with pytest.raises(RuntimeError, match="nothing to skip"):
        loop.fit(epochs=5, skip_failed=True)
    reply = loop.post(Command("resume", {"skip_failed": True}))
    assert reply.status == "refused"
    now, later, stream = things(loop)
    assert now == places and fired == []
    assert all(torch.equal(a, b) for a, b in zip(weights, later)) and torch.equal(stream, streams)


class Stumbling(torch.optim.SGD):
    """An optimizer that fails at its second step."""

    count = 0

    def step(self, closure=None):
        """Fail once."""
        self.count += 1
        if self.count == 2:
            raise Planted("optimizer")
        return super().step(closure)


class Unopened(list):
    """A loader that cannot be opened."""

    def __iter__(self):
        raise Planted("open")


def failures():
    """Runs that fail elsewhere than at a training batch."""
    def once(point):
        return LambdaHook(**{point: lambda trainer: 1 / 0})

    def interrupted(trainer):
        raise KeyboardInterrupt

    made = {
        "evaluation": {"hooks": [LambdaHook(before_batch=lambda t: None if t.training else 1 / 0)]},
        "optimizer": {"optim": lambda parameters: Stumbling(parameters, lr=0.1)},
        "before_step": {"hooks": [once("before_step")]},
        "after_step": {"hooks": [once("after_step")]},
        "before_epoch": {"hooks": [once("before_epoch")]},
        "after_epoch": {"hooks": [once("after_epoch")]}, "opening": {},
        "interrupt": {"hooks": [LambdaHook(after_batch=interrupted)]},
    }  # fmt: skip
    return made


@pytest.mark.parametrize("where", failures())
def test_a_failure_elsewhere_is_no_failed_batch(where):
    """Nothing names a batch that is not to blame, not even one that failed in an earlier drive."""
    settings = failures()[where]
    loader = Unopened([1]) if where == "opening" else LOADERS["shuffled"]()
    failing = Failing([(0, indices_of(drawn("shuffled")[0][0]))])
    loop = make_loop(loader, failing, valid_dl=LOADERS["list"](), **settings)
    if where not in ("opening", "before_epoch"):
        with pytest.raises(Planted):
            loop.fit(epochs=1)
        assert loop.failed_batch is not None
    failing.bad.clear()
    with pytest.raises((Planted, ZeroDivisionError, KeyboardInterrupt)):
        loop.fit(epochs=1)
    assert (loop.loop.feed.failed, loop.failed_batch, loop.failed_indices,
            LocalRunView(loop).failed) == (None, None, None, "")
    with pytest.raises(RuntimeError, match="nothing to skip"):
        loop.fit(epochs=1, skip_failed=True)


def test_the_comparison_would_notice():
    """A loop by hand that leaves out the next batch, or none, ends elsewhere."""
    loop, epochs = planted("shuffled", [(0, 3)], accumulation=3)
    fit_leaving_out(loop)
    for others in ([(0, 4)], []):
        assert not torch.equal(by_hand(epochs, others, accumulation=3)[0][0],
                               state_of(loop.model, loop.optim)[0])
