"""A window is one optimizer step: its gradient is that of its batches joined, however they are
cut."""

import weakref

import pytest
import small_runs
import torch
from torch import nn
from torch.utils.data import (BatchSampler, DataLoader, IterableDataset, SequentialSampler,
                              TensorDataset)
from torch.utils.data.distributed import DistributedSampler

from trainer_nb.core.hook import LambdaHook
from small_runs import Loop
from trainer_nb.hooks.recorder import History, RecorderHook

UNEVEN = [5, 3, 8, 1, 4, 2, 7]


def make_model(*before):
    """A small float64 network, the same each time."""
    torch.manual_seed(1)
    return nn.Sequential(*before, nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def make_batches(sizes, seed=0):
    """Pairs (inputs, targets) with n samples."""
    draw = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 3, generator=draw).double(),
         torch.randn(size, 2, generator=draw).double())
        for size in sizes
    ]


def make_loop(model, loader, step=None, *, hooks=(), **settings):
    """A loop that collects each window's gradients in `.seen` and leaves the weights as they are
    (lr 0)."""
    seen = []

    def collect(trainer):
        seen.append([p.grad.clone() for p in model.parameters()])

    loss = {} if step else {"loss_fn": nn.MSELoss()}
    optim = torch.optim.SGD(model.parameters(), lr=0.0)
    hooks = [*hooks, LambdaHook(before_step=collect)]
    loop = Loop(model, step, loader, optim=optim, device="cpu", hooks=hooks, **loss, **settings)
    loop.seen = seen
    return loop


def gradient_of(model, loss):
    """The gradients of one loss."""
    return list(torch.autograd.grad(loss, list(model.parameters())))


def joined_gradient(model, batches):
    """The gradients of the mean over all samples of these batches, as one big batch."""
    inputs, targets = (torch.cat(column) for column in zip(*batches))
    return gradient_of(model, nn.functional.mse_loss(model(inputs), targets))


def in_windows(batches, size):
    """The batches of each window; the last one may be smaller."""
    return [batches[first : first + size] for first in range(0, len(batches), size)]


def assert_close(seen, expected):
    """Lists of lists of tensors, equal to 1e-10."""
    assert len(seen) == len(expected)
    for found, wanted in zip(seen, expected):
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


# ---- uneven batches and tails


@pytest.mark.parametrize("accumulation", [1, 2, 3, 4, 7, 10])
def test_uneven_batches_and_tail_equal_the_joined_batch(accumulation):
    """Every window, the smaller last one too, in each of two epochs;
    a tail is never carried over."""
    model, batches = make_model(), make_batches(UNEVEN)
    loop = make_loop(model, batches, gradient_accumulation_steps=accumulation)
    loop.fit(epochs=2)
    wanted = [joined_gradient(model, window) for window in in_windows(batches, accumulation)]
    assert_close(loop.seen, wanted * 2)
    assert loop.step_state.optimizer_step == len(wanted) * 2


def test_equal_batches_are_bit_equal_to_dividing_the_loss():
    """With equal batches a window is exactly the textbook's `(loss / k).backward()`."""
    model, batches = (make_model().float(),
                      [(x.float(), y.float()) for x, y in make_batches([4] * 6)])
    loop = make_loop(model, batches, gradient_accumulation_steps=3)
    loop.fit(epochs=1)
    for found, window in zip(loop.seen, in_windows(batches, 3), strict=True):
        model.zero_grad()
        for inputs, targets in window:
            (nn.functional.mse_loss(model(inputs), targets) / 3).backward()
        assert all(torch.equal(a, p.grad) for a, p in zip(found, model.parameters()))


def test_the_loss_seen_is_not_scaled():
    """Hooks and records see the loss as the step function gave it, not divided by the window."""
    model, batches = make_model(), make_batches(UNEVEN)
    seen = []
    hook = LambdaHook(
        after_loss=lambda t: seen.append(t.loss.item()),
        after_backward=lambda t: seen.append(t.loss.item()),
    )
    make_loop(model, batches, hooks=[hook], gradient_accumulation_steps=4).fit(epochs=1)
    wanted = [nn.functional.mse_loss(model(x), y).item() for x, y in batches]
    assert seen == [value for loss in wanted for value in (loss, loss)]


def test_evaluation_weights_every_sample_the_same():
    """A mean over uneven batches is the mean over all samples, not a mean of means."""
    model, batches = make_model(), make_batches(UNEVEN)
    inputs, targets = (torch.cat(column) for column in zip(*batches))
    metric = {"error": lambda pred, target: (pred - target).abs().mean()}
    loop = make_loop(model, batches, valid_dl=batches, metrics=metric)
    records = loop.validate()
    pred = model(inputs).detach()
    assert records["valid/loss"] == pytest.approx(nn.functional.mse_loss(pred, targets).item(),
                                                  rel=1e-10)
    assert records["valid/error"] == pytest.approx((pred - targets).abs().mean().item(), rel=1e-10)


# ---- items that are not samples


def make_token_batches(seed=0):
    """Triples (inputs, targets, mask): sequences with an uneven number of tokens that count."""
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for size in UNEVEN:
        x = torch.randn(size, 6, 3, generator=draw).double()
        y = torch.randn(size, 6, 2, generator=draw).double()
        mask = torch.rand(size, 6, generator=draw) < 0.4
        mask[0, 0] = True
        batches.append((x, y, mask))
    return batches


def token_loss(model, batch):
    """The mean over the tokens that count, and their number as a tensor."""
    x, y, mask = batch
    per_token = (model(x) - y).square().mean(-1)
    return per_token[mask].mean(), mask.sum()


COUNTS = {
    "int": lambda n, turn: n.item(),
    "integer tensor": lambda n, turn: n,
    "float tensor": lambda n, turn: n.double(),
    "mixed": lambda n, turn: n if turn % 2 else n.item(),
}


@pytest.mark.parametrize("accumulation", [1, 3, 10])
@pytest.mark.parametrize("kind", COUNTS)
def test_items_by_tokens_equal_the_joined_batch(kind, accumulation):
    """`n` weights by tokens; as a tensor it stays on the device and loses no precision."""
    model, batches, turns = make_model(), make_token_batches(), iter(range(100))

    def step(batch, trainer):
        loss, n = token_loss(model, batch)
        return {"loss": loss, "n": COUNTS[kind](n, next(turns))}

    loop = make_loop(model, batches, step, gradient_accumulation_steps=accumulation)
    loop.fit(epochs=1)
    wanted = []
    for window in in_windows(batches, accumulation):
        joined = [torch.cat(column) for column in zip(*window)]
        wanted.append(gradient_of(model, token_loss(model, joined)[0]))
    assert_close(loop.seen, wanted)
    assert loop.step_state.samples_seen == sum(UNEVEN)  # samples, never n


def test_items_by_tokens_in_chunks_equal_the_joined_batch():
    """Chunks of one batch may hold uneven numbers of tokens as well."""
    model, batches = make_model(), make_token_batches()

    def step(batch, trainer):
        loss, n = token_loss(model, batch)
        return {"loss": loss, "n": n.item()}

    for _, _, mask in batches:
        mask[:, 0] = True  # a chunk without any token has no mean
    loop = make_loop(model, batches, step, gradient_accumulation_steps=3, micro_batch_size=3)
    loop.fit(epochs=1)
    joined = [[torch.cat(column) for column in zip(*window)] for window in in_windows(batches, 3)]
    assert_close(loop.seen, [gradient_of(model, token_loss(model, batch)[0]) for batch in joined])


@pytest.mark.parametrize("n", [0, -1])
def test_a_window_without_items_is_refused(n):
    """An `n` that would divide by nothing is an error, not a NaN."""
    model, batches = make_model(), make_batches([2])

    def step(batch, trainer):
        return {"loss": model(batch[0]).mean(), "n": n}

    with pytest.raises(ValueError, match="n="):
        make_loop(model, batches, step).fit(epochs=1)


@pytest.mark.parametrize("settings", [{}, {"micro_batch_size": 3}], ids=["whole", "chunks"])
def test_the_recorded_loss_of_a_step_is_that_of_the_joined_batch(settings):
    """Weighted by items over chunks and batches of the window: not scaled, no mean of means;
    records alike."""
    model, batches = make_model(), make_token_batches()
    for _, _, mask in batches:
        mask[:, 0] = True

    def step(batch, trainer):
        loss, n = token_loss(model, batch)
        return {"loss": loss, "n": n, "double": 2 * loss}

    loop = make_loop(model, batches, step, hooks=[RecorderHook()], gradient_accumulation_steps=3,
                     **settings)
    loop.history = History()
    loop.fit(epochs=1)
    joined = [[torch.cat(column) for column in zip(*window)] for window in in_windows(batches, 3)]
    wanted = [token_loss(model, batch)[0].item() for batch in joined]
    assert loop.history["train/loss"].tolist() == pytest.approx(wanted, rel=1e-10)
    assert loop.history[
        "train/double"].tolist() == pytest.approx([2 * loss for loss in wanted], rel=1e-10)


# ---- batches that are left out


def make_skipping_step(model, left_out):
    """A supervised step that gives no loss for batches of these sizes."""

    def step(batch, trainer):
        x, y = batch
        return {"loss": None if len(x) in left_out else nn.functional.mse_loss(model(x), y)}

    return step


@pytest.mark.parametrize("left_out", [{5}, {3}, {8, 1}, {3, 4}, {2, 7}, {5, 3, 8, 4, 2, 7}])
def test_a_loss_of_none_is_not_counted_in_the_window(left_out):
    """Windows hold n batches *with* a loss, weighted by those alone;
    all batches are counted as taken."""
    model, batches = make_model(), make_batches(UNEVEN)
    loop = make_loop(model, batches, make_skipping_step(model, left_out),
                     gradient_accumulation_steps=2)
    loop.fit(epochs=1)
    counted = [batch for batch in batches if len(batch[0]) not in left_out]
    assert_close(loop.seen, [joined_gradient(model, window) for window in in_windows(counted, 2)])
    assert loop.step_state.samples_seen == sum(UNEVEN)


@pytest.mark.parametrize("precision", [None, "fp16"])
def test_an_epoch_of_none_makes_no_step(precision):
    """No gradient, no step, no scaler trouble:
    an error instead of a run that has finished, or an endless one under max_steps."""
    model, batches = make_model(), make_batches(UNEVEN)
    loop = make_loop(model, batches, make_skipping_step(model, set(UNEVEN)),
                     mixed_precision=precision)
    with pytest.raises(ValueError, match="epoch 1 made no optimizer step"):
        loop.fit(epochs=2)
    assert loop.skipped_steps == loop.step_state.optimizer_step == 0
    with pytest.raises(ValueError, match="max_steps would never be reached"):
        make_loop(model, batches, make_skipping_step(model, set(UNEVEN))).fit(max_steps=3)


@pytest.mark.parametrize("precision", [None, "fp16"])
def test_a_loss_that_no_parameter_took_part_in_makes_no_step(precision):
    """A window whose loss reaches no parameter is left out, tail or not;
    the next one is as if it had not been."""
    model, batches = make_model(), make_batches([2, 3, 4, 5])
    seen = []

    def step(batch, trainer):
        x, y = batch
        outside = torch.zeros(len(x), 2, dtype=torch.float64, requires_grad=True)
        return {"loss": nn.functional.mse_loss(outside if len(x) < 4 else model(x), y)}

    hook = LambdaHook(after_step=lambda t: seen.append(t.step_state.optimizer_step))
    optim = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = {"gradient_accumulation_steps": 2, "mixed_precision": precision, "device": "cpu"}
    loop = Loop(model, step, [*batches, batches[0]], optim=optim, hooks=[hook], **settings)
    loop.fit(epochs=1)
    assert seen == [1] and loop.skipped_steps == 0


# ---- loaders that do not know their length


class Stream(IterableDataset):
    """Batches from a generator; counts how many were asked for."""

    def __init__(self, batches):
        self.batches, self.given = batches, 0

    def __iter__(self):
        for batch in self.batches:
            self.given += 1
            yield batch


def test_a_loader_without_length_steps_its_tail():
    """The tail is found when the loader ends; each epoch starts a window of its own."""
    model, batches = make_model(), make_batches(UNEVEN)
    loop = make_loop(model, DataLoader(Stream(batches), batch_size=None),
                     gradient_accumulation_steps=3)
    loop.fit(epochs=2)
    assert_close(loop.seen,
                 [joined_gradient(model, window) for window in in_windows(batches, 3)] * 2)
    assert loop.position().batches is None


@pytest.mark.parametrize("accumulation", [1, 2, 7])
def test_no_batch_is_fetched_ahead(accumulation):
    """At each step exactly the batches of the windows so far were taken from the loader."""
    model, stream = make_model(), Stream(make_batches(UNEVEN))
    seen = []
    hook = LambdaHook(after_step=lambda t: seen.append((stream.given, t.step_state.batch_idx)))
    loader = DataLoader(stream, batch_size=None)
    make_loop(model, loader, hooks=[hook], gradient_accumulation_steps=accumulation).fit(epochs=1)
    ends = [min(first + accumulation, 7) for first in range(0, 7, accumulation)]
    assert seen == [(end, end) for end in ends]


def test_a_loader_without_length_is_cycled_under_max_steps():
    """The loader is iterated again as often as needed, with the tail of each pass stepped."""
    model, batches = make_model(), make_batches(UNEVEN)
    loop = make_loop(model, DataLoader(Stream(batches), batch_size=None),
                     gradient_accumulation_steps=3)
    assert loop.fit(max_steps=7).steps == 7
    wanted = [joined_gradient(model, window) for window in in_windows(batches, 3)]
    assert_close(loop.seen, (wanted * 3)[:7])


def make_sampler(dataset):
    """A sampler that shuffles by the epoch it is told."""
    return DistributedSampler(dataset, num_replicas=1, rank=0, seed=3)


@pytest.mark.parametrize("where", ["sampler", "batch_sampler"])
def test_set_epoch_is_called_for_each_pass(where):
    """A sampler that shuffles by the epoch gives another order in each pass."""
    dataset = TensorDataset(torch.arange(6).double())
    if where == "sampler":
        loader = DataLoader(dataset, batch_size=2, sampler=make_sampler(dataset))
    else:
        loader = DataLoader(dataset,
                            batch_sampler=BatchSampler(make_sampler(dataset), 2, drop_last=False))
    model, seen = nn.Linear(1, 1).double(), []

    def step(batch, trainer):
        seen.extend(batch[0].long().tolist())
        return {"loss": model(batch[0][:, None]).mean()}

    make_loop(model, loader, step).fit(max_steps=9)
    sampler, wanted = make_sampler(dataset), []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        wanted += list(sampler)
    assert seen == wanted


# ---- loaders that give nothing


def test_an_empty_loader_is_refused_at_once():
    """A loader whose length is 0 is refused before any hook is called."""
    model, called = make_model(), []
    empty = DataLoader(TensorDataset(torch.zeros(0, 3), torch.zeros(0, 2)), batch_size=4)
    loop = make_loop(model, empty, hooks=[LambdaHook(before_fit=called.append)])
    with pytest.raises(ValueError, match="empty"):
        loop.fit(epochs=1)
    assert not called


def test_a_loader_that_turns_out_empty_is_an_error():
    """Where the length is not known, the first epoch tells."""
    model = make_model()
    with pytest.raises(ValueError, match="no batch in epoch 1"):
        make_loop(model, DataLoader(Stream([]), batch_size=None)).fit(epochs=1)


def test_a_used_up_generator_is_an_error_that_says_so():
    """A bare generator serves one epoch; the second is refused with the reason."""
    model, batches = make_model(), make_batches([2, 2])
    loop = make_loop(model, (batch for batch in batches))
    with pytest.raises(ValueError, match="only once"):
        loop.fit(epochs=2)
    assert loop.step_state.epoch == 1


def test_an_empty_evaluation_is_an_error():
    """A validation loader without a batch is no evaluation with a mean of nothing."""
    model, batches = make_model(), make_batches([2])
    loop = make_loop(model, batches, valid_dl=DataLoader(Stream([]), batch_size=None))
    with pytest.raises(ValueError, match="nothing to evaluate"):
        loop.fit(epochs=1)


# ---- batches that are too large


class Counter(nn.Module):
    """Notes the size of each batch that passes;
    too large a batch is out of memory, forward or backward."""

    def __init__(self, limit=None, backward=False):
        super().__init__()
        self.limit, self.backward, self.sizes = limit, backward, []

    def forward(self, x):
        size = len(x)
        self.sizes.append(size)
        if self.limit is None or size <= self.limit:
            return x
        if not self.backward:
            raise torch.OutOfMemoryError(f"planted: {size} samples do not fit")
        x = (x * 1.0).requires_grad_()
        x.register_hook(self.fail)
        self.made = weakref.ref(x)
        return x

    @staticmethod
    def fail(gradient):
        """Out of memory in mid-backward, when other gradients are there already."""
        raise torch.OutOfMemoryError("planted: does not fit in the backward pass")


@pytest.mark.parametrize("size, limit, chunks",
                         [(10, 4, [4, 3, 3]), (8, 4, [4, 4]), (5, 4, [3, 2]), (4, 4, [4])])
def test_micro_batch_size_cuts_evenly(size, limit, chunks):
    """No more chunks than needed, none lost, sizes differ by at most one;
    the gradient is that of the batch."""
    counter = Counter()
    model, batches = make_model(counter), make_batches([size])
    loop = make_loop(model, batches, micro_batch_size=limit)
    loop.fit(epochs=1)
    assert sorted(counter.sizes, reverse=True) == chunks
    assert_close(loop.seen, [joined_gradient(model, batches)])
    assert loop.step_state.samples_seen == size and loop.step_state.batch_idx == 0


@pytest.mark.parametrize("accumulation", [1, 3])
def test_micro_batch_size_keeps_the_gradient_of_a_window(accumulation):
    """Uneven batches in uneven chunks in windows with a tail."""
    model, batches = make_model(), make_batches(UNEVEN)
    loop = make_loop(model, batches, micro_batch_size=3, gradient_accumulation_steps=accumulation)
    loop.fit(epochs=1)
    assert_close(loop.seen, [joined_gradient(model, w) for w in in_windows(batches, accumulation)])


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_out_of_memory_redoes_the_whole_window(backward):
    """Halved until it fits, the window made again from its first batch, the same gradient, counted
    once."""
    counter = Counter(limit=3, backward=backward)
    model, batches = make_model(counter), make_batches([2, 9, 2, 5, 1])
    after_batch = []
    hook = LambdaHook(after_batch=lambda t: after_batch.append(t.step_state.samples_seen))
    loop = make_loop(model, batches, hooks=[hook], micro_batch_size="auto",
                     gradient_accumulation_steps=3)
    loop.fit(epochs=1)
    counter.limit = None
    assert_close(loop.seen, [joined_gradient(model, window) for window in in_windows(batches, 3)])
    # 2 fits, 9 does not; both again at 5: 9 -> 5 + 4 does not; both again at 3; from then on at
    # most 3
    redone = [2, 9, 2, 5, 2, 3, 3, 3, 2, 3, 2, 1]
    assert counter.sizes[: len(redone)] == redone
    assert after_batch == [2, 11, 13, 18, 19]
    assert loop.step_state.optimizer_step == 2


def test_out_of_memory_is_remembered_and_journalled():
    """Each new size is written down once; later windows and another fit() start from it."""
    counter = Counter(limit=3)
    model, batches = make_model(counter), make_batches([8, 8])
    loop = make_loop(model, batches, micro_batch_size="auto")
    loop.fit(epochs=1)
    notes = [(e.kind, e.name, e.old, e.new, e.source, e.step) for e in loop.journal]
    assert notes == [
        ("memory", "micro_batch_size", 8, 4, "loop", 0),
        ("memory", "micro_batch_size", 4, 2, "loop", 0),
    ]
    counter.sizes.clear()
    loop.fit(epochs=2)
    assert counter.sizes == [2] * 8
    assert [e.kind for e in loop.journal] == ["memory", "memory", "totals"]


def test_out_of_memory_counts_every_item_once():
    """The means of a window are those of its final pass:
    nothing of a pass that failed is left in them."""
    counter = Counter(limit=3)
    model, batches = make_model(counter), make_batches([3, 8])
    parts = []
    hook = LambdaHook(before_step=lambda t: parts.extend(t.runner.window.parts))
    make_loop(model, batches, hooks=[hook], micro_batch_size="auto",
              gradient_accumulation_steps=2).fit(epochs=1)
    counter.limit = None
    assert sum(n for _, n, _ in parts) == 11
    inputs, targets = (torch.cat(column) for column in zip(*batches))
    mean = sum(loss.item() * n for loss, n, _ in parts) / 11
    assert mean == pytest.approx(nn.functional.mse_loss(model(inputs), targets).item(), rel=1e-10)


def test_out_of_memory_frees_what_failed():
    """Before the window is redone nothing holds the graph of the pass that failed."""
    counter = Counter(limit=4, backward=True)
    model, batches = make_model(counter), make_batches([8])
    alive = []
    hook = LambdaHook(on_intervention=lambda t, entry: alive.append(counter.made()))
    make_loop(model, batches, hooks=[hook], micro_batch_size="auto").fit(epochs=1)
    assert len(alive) == 1 and alive[0] is None


def test_one_sample_that_does_not_fit_is_the_users_error():
    """Below one sample nothing can be halved: the error comes out, with a note."""
    model, batches = make_model(Counter(limit=0)), make_batches([4])
    with pytest.raises(torch.OutOfMemoryError) as caught:
        make_loop(model, batches, micro_batch_size="auto").fit(epochs=1)
    assert any("one sample" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("size", [None, 4])
def test_out_of_memory_without_auto_is_the_users_error(size):
    """A fixed size, or none, is not changed behind the user's back."""
    model, batches = make_model(Counter(limit=2)), make_batches([8])
    loop = make_loop(model, batches, micro_batch_size=size)
    with pytest.raises(torch.OutOfMemoryError):
        loop.fit(epochs=1)
    assert len(loop.journal) == 0


def test_a_batch_sampler_of_uneven_batches_is_weighted_by_samples():
    """The same through a real DataLoader, whose last batch is smaller."""
    model, (batch,) = make_model(), make_batches([26])
    loader = DataLoader(TensorDataset(*batch),
                        batch_sampler=BatchSampler(SequentialSampler(range(26)), 4, False))
    loop = make_loop(model, loader, gradient_accumulation_steps=4)
    loop.fit(epochs=1)
    assert_close(loop.seen,
                 [joined_gradient(model, window) for window in in_windows(list(loader), 4)])


@pytest.mark.parametrize(("every", "expected"),
                         [(3, [3, 6, 9, 12]), (2, [2, 4, 6, 8, 10, 12]), (5, [5, 10, 12])])
def test_evaluations_on_tail_windows_are_made(every, expected):
    """Five batches in windows of two: every third step is a tail."""
    trainer = small_runs.make(valid_dl=small_runs.BATCHES, max_steps=12, eval_every=every,
                              gradient_accumulation_steps=2)
    trainer.fit()
    assert small_runs.evaluated(trainer) == expected


def test_planned_steps_follow_a_change_of_accumulation():
    """What is done stays done; only what is to come is counted again."""
    trainer = small_runs.make(epochs=4)
    trainer.step(epochs=2)
    trainer.tune(gradient_accumulation_steps=5)
    assert trainer.planned_steps == 12 and trainer.fit().steps == 12
