"""Errors of the first hour: torch's own exception, and one line that names the layer or the loss
and says what to write. What each batch would raise again is not offered to be resumed."""

import gc
import sys
import traceback
import weakref
from contextlib import suppress

import pytest
import torch
from shorter import some
from torch import nn
from torch.nn import functional as F

from trainer_nb import LambdaHook, Trainer
from trainer_nb.core.control import Command
from trainer_nb.core.errors import HINT, explanation, without_frames
from trainer_nb.hooks.remote_control import status_of
from trainer_nb.panel.view import LocalRunView
from trainer_nb.panel.sections import commands, state

X = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8)
IMAGES = torch.zeros(8, 28, 28)
BYTES = torch.zeros(8, 1, 28, 28, dtype=torch.uint8)
MEMORY = {"size": None, "training": True, "stepping": False, "split": "train"}


class Residual(nn.Module):
    """A layer of the user's whose sum does not fit."""

    def __init__(self, error=None):
        super().__init__()
        self.inner, self.error = nn.Linear(3, 4), error

    def forward(self, x):
        """Add what does not fit, or raise what is planted."""
        if self.error is not None:
            raise self.error
        return x + self.inner(x)


def trainer_of(model, inputs, targets=LABELS, loss_fn=F.cross_entropy, batches=2, **settings):
    """A run over the same batch."""
    loader = settings.pop("train_dl", [(inputs, targets)] * batches)
    return Trainer(model, train_dl=loader, device="cpu", progress=False,
                   **{"epochs": 1, "loss_fn": loss_fn, **settings})


def hints(error):
    """The lines that the package has added."""
    return [note.removeprefix(HINT) for note in getattr(error, "__notes__", ())
            if note.startswith(HINT)]


def sequential(*layers):
    """Some layers, the last one with ten outputs for the labels."""
    return nn.Sequential(*layers)


def linear(inputs=3, outputs=10):
    """One layer in a model."""
    return sequential(nn.Linear(inputs, outputs))


LAYERS = {
    "images into a linear layer": (
        lambda: sequential(nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10)), IMAGES,
        ["layer '0', Linear(in_features=784", "float32 (8, 28, 28)", "put nn.Flatten() before"]),
    "images with channels": (lambda: linear(784), IMAGES[:, None], ["put nn.Flatten() before"]),
    "maps of another size": (
        lambda: linear(784), torch.zeros(8, 2, 28, 28), ["nn.Flatten()", "nn.Linear(1568, 10)"]),
    "the second layer": (
        lambda: sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(32, 10)), X,
        ["layer '2', Linear(in_features=32", "float32 (8, 16)", "nn.Linear(16, 10)"]),
    "channels": (lambda: sequential(nn.Conv2d(3, 4, 3)), IMAGES[:, None],
                 ["layer '0', Conv2d(3, 4", "(N, C, H, W) with 3 channels", "Conv2d(1, 4, …)"]),
    "channels last": (lambda: sequential(nn.Conv2d(3, 4, 3)), torch.zeros(8, 28, 28, 3),
                      ["the channels come last", "x.movedim(-1, 1)"]),
    "no channels": (lambda: sequential(nn.Conv2d(1, 4, 3)), IMAGES, ["x.unsqueeze(1)"]),
    "a signal without channels": (lambda: sequential(nn.Conv1d(2, 4, 3)), torch.zeros(8, 5),
                                  ["(N, C, W) with 2 channels", "a dimension is missing"]),
    "index": (lambda: sequential(nn.Embedding(10, 4)), torch.tensor([[1, 11], [0, 2]]),
              ["Embedding(10, 4)", "the indices 0 to 9, and got 11", "Embedding(12, 4)"]),
    "negative index": (lambda: sequential(nn.Embedding(10, 4)), torch.tensor([[1, -1]]),
                       ["the indices 0 to 9, and got -1"]),
    "indices of numbers": (lambda: sequential(nn.Embedding(10, 4)), X, ["x.long()"]),
    "features of a norm": (lambda: sequential(nn.Linear(3, 5), nn.BatchNorm1d(6)), X,
                           ["layer '1', BatchNorm1d(6", "float32 (8, 5)", "BatchNorm1d(5)"]),
    "dimensions of a norm": (lambda: sequential(nn.BatchNorm2d(3)), X,
                             ["layer '0', BatchNorm2d(3", "float32 (8, 3)"]),
    "one sample": (lambda: sequential(nn.BatchNorm1d(3)), X[:1], ["drop_last=True"]),
    "layer norm": (lambda: sequential(nn.LayerNorm(8)), X, ["takes (8,)", "LayerNorm(3)"]),
    "recurrent": (lambda: sequential(nn.LSTM(5, 10)), X[None], ["takes 5 features", "LSTM(3, …)"]),
    "float64": (linear, X.double(),
                ["has float32 weights and got float64", ".float()", "NumPy"]),
    "uint8": (lambda: sequential(nn.Conv2d(1, 10, 28), nn.Flatten()), BYTES,
              ["layer '0', Conv2d", "got uint8", ".float() / 255"]),
    "int64": (linear, torch.ones(8, 3, dtype=torch.int64), ["got int64", ".float()"]),
    "double weights": (lambda: linear().double(), X, ["has float64 weights and got float32"]),
    "a layer of your own": (lambda: sequential(nn.Linear(3, 3), Residual()), X,
                            ["layer '1', Residual, was given x = float32 (8, 3)"]),
    "the model": (Residual, X, ["the model itself, Residual, was given x = float32 (8, 3)"])}


@pytest.mark.parametrize("case", LAYERS)
def test_the_line_names_the_layer_and_what_to_write(case):
    model, inputs, texts = LAYERS[case]
    model = model()
    with pytest.raises((RuntimeError, ValueError, IndexError)) as plain:
        model(inputs)
    trainer = trainer_of(model, inputs, LABELS[:len(inputs)])
    with pytest.raises(type(plain.value)) as found:
        trainer.fit()
    assert type(found.value) is type(plain.value) and str(found.value) == str(plain.value)
    assert found.traceback[-1].name == plain.traceback[-1].name
    line, = hints(found.value)
    assert [text for text in texts if text not in line] == [], line
    assert "\n" not in line and HINT + line in trainer.error_text


LOSSES = {
    "too many classes": (F.cross_entropy, LABELS + 3,
                         ["there is a label 10", "0 to 9", "11 outputs", "targets - 1"]),
    "a negative label": (F.cross_entropy, LABELS - 1, ["a label -1", "ignore_index=-1"]),
    "float labels": (nn.CrossEntropyLoss(), LABELS.float(), ["float32 (8,)", "targets.long()"]),
    "int32 labels": (nn.CrossEntropyLoss(), LABELS.int(), ["targets.long()"]),
    "a column": (nn.CrossEntropyLoss(), LABELS[:, None], ["targets.squeeze(1)"]),
    "a column of floats": (F.cross_entropy, LABELS[:, None].float(), ["targets.squeeze(1).long()"]),
    "one-hot": (F.cross_entropy, F.one_hot(LABELS, 10), ["targets.argmax(1)", "targets.float()"]),
    "one-hot of others": (F.cross_entropy, F.one_hot(LABELS, 8), ["8 classes do not fit"]),
    "other rows": (nn.CrossEntropyLoss(), LABELS[:4], ["the shape (8,)"]),
    "float labels of nll": (F.nll_loss, LABELS.float(), ["nll_loss", "targets.long()"]),
    "whole targets": (nn.BCEWithLogitsLoss(), F.one_hot(LABELS, 10),
                      ["binary_cross_entropy_with_logits", "int64 (8, 10)", "targets.float()"]),
    "binary shapes": (nn.BCEWithLogitsLoss(), LABELS.float(), ["float32 (8,)", "one shape"]),
    "no probabilities": (nn.BCELoss(), torch.ones(8, 10), ["BCEWithLogitsLoss"]),
    "another width": (nn.MSELoss(), torch.ones(8, 2), ["mse_loss", "float32 (8, 2)", "one shape"])}


@pytest.mark.parametrize("case", LOSSES)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_the_line_says_what_is_wrong_with_the_targets(case):
    loss_fn, targets, texts = LOSSES[case]
    model = linear()
    nn.init.constant_(model[0].bias, 2.0)
    with pytest.raises((RuntimeError, ValueError, IndexError)) as plain:
        loss_fn(model(X), targets)
    with pytest.raises(type(plain.value)) as found:
        trainer_of(model, X, targets, loss_fn).fit()
    assert str(found.value) == str(plain.value)
    line, = hints(found.value)
    assert [text for text in texts if text not in line] == [], line


def test_scores_of_tokens_are_to_be_transposed():
    tokens = torch.arange(8).reshape(2, 4)
    with pytest.raises(RuntimeError) as found:
        trainer_of(nn.Embedding(10, 10), tokens, tokens).fit()
    assert "scores.transpose(1, 2)" in hints(found.value)[0]


@pytest.mark.parametrize("error", [
    RuntimeError("the shape of this file"), ValueError("no dtype"), KeyError("image"),
    TypeError("type")], ids=repr)
def test_an_error_that_somebody_has_worded_stays_as_it_is(error):
    trainer = trainer_of(Residual(error), X)
    with pytest.raises(type(error)) as found:
        trainer.fit()
    assert found.value is error and not hints(error)
    assert LocalRunView(trainer).dead_end == "" and trainer.loop.feed.failed is not None


def test_a_step_of_your_own_and_a_wrapped_model_are_explained_too():
    model = linear(784)
    step = {"train_step": lambda batch, trainer: {"loss": trainer.model(batch[0]).mean()}}
    for extra in ({"loss_fn": None, **step}, {"compile": False}):
        with pytest.raises(RuntimeError) as found:
            trainer_of(model, IMAGES, **extra).fit()
        assert "layer '0', Linear" in hints(found.value)[0]


def test_a_layer_that_is_asked_of_torch_s_wrapper():
    """Of several processes; the hint names the attribute that has it."""
    wrapper = object.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapper)
    with pytest.raises(AttributeError) as found:
        wrapper.head  # noqa: B018  is raised by torch
    assert "trainer.plain_model" in explanation(found.value, nn.Linear(1, 1), **MEMORY).text


def test_a_compiled_model_points_to_the_one_that_is_not():
    model = torch.compile(linear(784), backend="eager")
    with pytest.raises(RuntimeError) as found:
        trainer_of(model, IMAGES).fit()
    assert "without compile" in hints(found.value)[0]


def test_nothing_watches_a_run_without_an_error():
    model = linear()
    trainer_of(model, X).fit()
    hooks = [each._forward_hooks or each._forward_pre_hooks for each in model.modules()]
    assert not any(hooks)


def test_a_failing_explanation_leaves_the_error_alone():
    class Odd(nn.Module):
        """Its own words cannot be had."""

        def extra_repr(self):
            """Planted."""
            raise ZeroDivisionError

        def forward(self, x):
            """Fail in torch."""
            return x @ torch.ones(7, 7)

    with pytest.raises(RuntimeError, match="mat1") as found:
        Odd()(X)
    assert explanation(found.value, Odd(), **MEMORY) is None


# Memory


class Full(nn.Module):
    """Has no room, from some forward pass on."""

    def __init__(self, error, after=0):
        super().__init__()
        self.layer, self.error, self.left = nn.Linear(3, 10), error, after

    def forward(self, x):
        """The scores, or the error."""
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self.layer(x)


def cpu_error():
    """What torch raises if the host has no memory left: asked for more than any address space."""
    try:
        torch.empty(2**50, dtype=torch.float64)
    except RuntimeError as error:
        return error.with_traceback(None)


ERRORS = {"device": lambda: torch.OutOfMemoryError("planted"), "host": cpu_error}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("size, text", [
    (None, "micro_batch_size='auto'"), (4, "in place of 4"), ("auto", "one sample a chunk")])
def test_out_of_memory_in_the_training(error, size, text):
    error = ERRORS[error]()
    with pytest.raises(type(error)) as found:
        trainer_of(Full(error), X, micro_batch_size=size).fit()
    line, = hints(found.value)
    assert found.value is error and text in line


@pytest.mark.parametrize("call", ["fit", "validate", "test", "predict", "lr_find"])
def test_out_of_memory_elsewhere(call):
    error = torch.OutOfMemoryError("planted")
    trainer = trainer_of(Full(error, 2 * (call == "fit")), X, valid_dl=[(X, LABELS)])
    loaders = {"test": [[(X, LABELS)]], "predict": [[(X, LABELS)]]}
    with pytest.raises(torch.OutOfMemoryError) as found:
        getattr(trainer, call)(*loaders.get(call, []))
    line, = hints(found.value)
    split = {"fit": "valid", "validate": "valid"}.get(call, call)
    assert ("micro_batch_size='auto'" if call == "lr_find" else f"the loader {split!r}") in line
    assert found.value is error and ("smaller batch_size" in line) is (call != "lr_find")


def test_out_of_memory_in_the_optimizer_s_step():
    model = linear()

    class Optimizer(torch.optim.SGD):
        """Has no room for its state."""

        def step(self, closure=None):
            """Planted."""
            raise torch.OutOfMemoryError("planted")

    with pytest.raises(torch.OutOfMemoryError) as found:
        trainer_of(model, X, optim=Optimizer(model.parameters(), 0.1)).fit()
    assert "optimizer's step" in hints(found.value)[0]


# Models that are not whole


@pytest.mark.parametrize("part", ["model", "loss"])
@pytest.mark.parametrize("kind", ["meta", "lazy"])
def test_a_model_without_numbers_is_refused_at_construction(kind, part):
    def half():
        """A module with some parameters that are not there."""
        whole = nn.Linear(3, 4)
        return nn.Sequential(whole, {"meta": lambda: nn.Linear(4, 10, device="meta"),
                                     "lazy": lambda: nn.LazyLinear(10)}[kind]())

    model, loss_fn = (half(), F.cross_entropy) if part == "model" else (linear(), half())
    texts = {"meta": ["1.weight, 1.bias", "meta device", "to_empty", "init_weights",
                      "from_pretrained"], "lazy": ["1.weight, 1.bias", "no shape yet",
                                                   "Run one batch"]}[kind]
    before = [each.device for each in model.parameters()]
    with pytest.raises(ValueError) as found:
        trainer_of(model, X, loss_fn=loss_fn)
    assert [text for text in texts if text not in str(found.value)] == []
    assert [each.device for each in model.parameters()] == before


def test_the_ways_out_of_it_work():
    model = nn.Sequential(nn.Linear(3, 10, device="meta"))
    model.to_empty(device="cpu")
    for each in model.parameters():
        nn.init.constant_(each, 0.1)
    lazy = nn.Sequential(nn.LazyLinear(10))
    lazy(X)
    for each in (model, lazy):
        assert trainer_of(each, X).fit().steps == 2


# Resume


def offered(trainer):
    """Whether Resume has an effect, and the batch that it can leave out."""
    view = LocalRunView(trainer)
    return ("why_not" not in commands(view)["resume"]["buttons"]["Resume"],
            state(view).get("failed", ""))


def test_what_each_batch_raises_is_not_offered_to_be_resumed():
    batches = [(IMAGES, LABELS)] * 2
    trainer = trainer_of(linear(784), None, train_dl=batches)
    with pytest.raises(RuntimeError):
        trainer.fit()
    view = LocalRunView(trainer)
    assert offered(trainer) == (False, "")
    for reply in (trainer.resume(), trainer.post(Command("step"))):
        assert reply.status == "refused" and "run the cell again" in reply.reason
    assert "run the cell again" in status_of(view)["dead_end"] and not status_of(view)["failed"]
    assert trainer.loop.feed.failed is not None and trainer.failed_batch is not None
    resume = commands(view)["resume"]["buttons"].values()
    assert any("run the cell again" in each["why_not"] for each in resume)
    assert all(each["why_not"] for each in resume)
    assert "put nn.Flatten() before it" in state(view)["what"] + state(view)["dead_end"]
    batches[:] = [(torch.zeros(8, 784), LABELS)] * 2
    assert trainer.fit().steps == 2 and offered(trainer)[0] is False
    assert LocalRunView(trainer).dead_end == ""


@pytest.mark.filterwarnings("ignore:no loss_fn=")
def test_neither_is_a_model_without_a_loss():
    trainer = trainer_of(linear(), X, loss_fn=None)
    with pytest.raises(TypeError):
        trainer.fit()
    assert offered(trainer) == (False, "")


BAD = {"a shape in mid-run": (X[:, :2], LABELS), "a label": (X, LABELS + 3)}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("at", [0, 1])
def test_one_bad_batch_can_be_skipped(case, at):
    good = (X, LABELS)
    loader = [good, BAD[case], good] if at else [BAD[case], good, good]
    trainer = trainer_of(linear(), X, train_dl=loader)
    with pytest.raises((RuntimeError, IndexError)):
        trainer.fit()
    if case == "a shape in mid-run" and not at:  # no batch has ever passed
        assert offered(trainer) == (False, "")
    else:
        assert offered(trainer) == (True, f"batch {at + 1} of epoch 1")
    assert trainer.fit(skip_failed=True).steps == 2


def test_an_error_of_a_hook_keeps_resume():
    model = linear()
    hook = LambdaHook(before_batch=lambda trainer: model(torch.ones(8, 5)))
    trainer = trainer_of(model, X, hooks=[hook])
    with pytest.raises(RuntimeError):
        trainer.fit()
    assert offered(trainer)[0]
    assert any("failure" in row for row in trainer.feed.whole("hooks")["hooks"].values())


# What stays alive


class Saved:
    """A tensor that a graph keeps for its backward pass."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()  # an output that a graph keeps would keep the graph


class Watched(nn.Module):
    """Keeps weak references to its activations and to what the graph has saved."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 16), nn.Linear(16, 10)
        self.seen, self.passes = [], 0

    def forward(self, x):
        """The scores."""
        def pack(tensor):
            """Note what is saved."""
            saved = Saved(tensor)
            self.seen.append(weakref.ref(saved))
            return saved

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
            hidden = self.first(x).tanh()
            scores = self.last(hidden)
        self.passes += 1
        self.seen += [weakref.ref(hidden), weakref.ref(scores)]
        return scores

    def alive(self):
        """How many of them are still there."""
        return sum(each() is not None for each in self.seen)


def raised_in(place, model):
    """A run that fails in its third step, after the loss, in the backward pass or in a hook."""
    def third(trainer):
        """Fail."""
        if trainer.step_state.optimizer_step == 2:
            raise ArithmeticError("planted")

    def loss_fn(pred, targets):
        """The loss, which fails in the third step."""
        loss = F.cross_entropy(pred, targets)
        if model.passes == 3 and place == "loss":
            raise ArithmeticError("planted")
        if model.passes == 3 and place == "backward":
            pred.register_hook(planted)
        return loss

    def planted(gradient):
        """Fail in the backward pass."""
        raise ArithmeticError("planted")

    hooks = [LambdaHook(**{place: third})] if place.startswith("after") else []
    return trainer_of(model, X, loss_fn=loss_fn, batches=4, hooks=hooks)


@pytest.fixture
def counted_alone():
    """Without the garbage collector: what is freed here has no cycle."""
    gc.disable()
    yield
    gc.enable()


PLACES = ["loss", "backward", "after_loss", "after_backward", "after_batch"]


@pytest.mark.parametrize(("way", "place"), some(
    [(way, place) for way in ("fit", "start") for place in PLACES],
    [("start", "loss"), *(("fit", place) for place in PLACES)]))
def test_after_an_exception_no_activation_stays(place, way, counted_alone):
    model = Watched()
    trainer = raised_in(place, model)
    with suppress(ArithmeticError):
        trainer.fit() if way == "fit" else (trainer.start(), trainer.wait())
    assert type(trainer.exception) is ArithmeticError and model.passes == 3
    assert model.seen and model.alive() == 0


@pytest.mark.parametrize("place", ["backward", "after_loss", "after_batch"])
def test_the_traceback_keeps_your_frames_and_not_ours(place, counted_alone):
    """As in a notebook, where `sys.last_value` has the exception until the next one."""
    model = Watched()
    trainer = raised_in(place, model)
    kept = None
    try:
        trainer.fit()
    except ArithmeticError as error:
        kept = error
    frames = [frame for frame, _ in traceback.walk_tb(kept.__traceback__)]
    ours = [frame for frame in frames if frame.f_globals["__name__"].startswith("trainer_nb")
            and frame.f_code.co_name in ("run_chunk", "accumulate", "take")]
    assert ours and all(not frame.f_locals for frame in ours)
    assert model.alive() == 0
    assert isinstance(trainer.exception, ArithmeticError) and "planted" in str(trainer.exception)
    assert trainer.exception.__traceback__ is None


def test_frames_of_the_model_stay_for_debug():
    trainer = trainer_of(sequential(nn.Linear(3, 3), Residual()), X)
    with pytest.raises(RuntimeError) as found:
        trainer.fit()
    frame = [each for each in traceback.walk_tb(found.value.__traceback__)][-1][0]
    assert frame.f_locals["x"].shape == (8, 3)


class Odd(Exception):
    """Takes other arguments than it passes on."""

    def __init__(self, code, *, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code


def test_an_exception_without_its_frames_is_the_same_otherwise():
    for error in (Odd(3, detail="no"), OSError(2, "none", "file"), KeyError("x"),
                  UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")):
        error.add_note("a note")
        error.invalid_since = 4
        try:
            raise error
        except Exception as raised:
            bare = without_frames(raised)
        assert type(bare) is type(error) and str(bare) == str(error)
        assert bare.__notes__ == ["a note"] and bare.invalid_since == 4
        assert bare.__traceback__ is None and sys.exc_info() == (None, None, None)


SILENT = {"a row": ((8,), (8,), "one sample with as many classes"),
          "a column": ((8, 1), (8, 1), "a single class"), "probabilities": ((8, 2), (8, 2), None)}


@pytest.mark.parametrize("case", SILENT)
@pytest.mark.parametrize("loss_fn", [F.cross_entropy, nn.CrossEntropyLoss()])
def test_targets_that_are_silently_taken_for_probabilities(case, loss_fn, recwarn):
    scores, targets, text = SILENT[case]
    model = nn.Sequential(nn.Linear(3, scores[-1] if scores[1:] else 1),
                          *[nn.Flatten(0)] * (len(scores) == 1))
    trainer_of(model, X, torch.ones(targets), loss_fn).fit()
    told = [str(each.message) for each in recwarn if "cross_entropy takes" in str(each.message)]
    assert len(told) == (text is not None) and (text is None or text in told[0])
