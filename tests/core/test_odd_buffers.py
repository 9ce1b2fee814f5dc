"""Buffers that a run sets or resizes, sparse ones, and those of TorchScript."""

from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import CheckpointError, EMAHook, SnapshotHook, Trainer

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))


class Late(nn.Module):
    """Has its mean from the first batch, and keeps something of each."""

    def __init__(self, size=1):
        super().__init__()
        self.linear = nn.Linear(4, size)
        self.register_buffer("mean", None)
        self.register_buffer("seen", torch.empty(0))
        self.register_buffer("unused", None)
        self.register_buffer("passing", None, persistent=False)

    def forward(self, x):
        """The mean goes with the batches in train mode."""
        if self.training:
            here = x.mean(0)
            self.mean = here if self.mean is None else 0.9 * self.mean + 0.1 * here
            self.seen, self.passing = torch.cat([self.seen, x[:1, 0]]), here
        return self.linear(x - (0 if self.mean is None else self.mean)) + self.seen.sum()


class Sparse(nn.Module):
    """Neighbours in a sparse matrix."""

    def __init__(self, layout=torch.sparse_coo):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)
        self.register_buffer("near", (torch.eye(4) + torch.eye(4).roll(1, 0)).to_sparse(
            layout=layout))

    def forward(self, x):
        """Each feature with its neighbour."""
        return self.last((self.near @ self.first(x).T).T)


def make(model=Late, **settings):
    """A run of 24 steps."""
    torch.manual_seed(0)
    data = TensorDataset(X, X[:, :1])
    return Trainer(model(), train_dl=DataLoader(data, 8, shuffle=True),
                   valid_dl=DataLoader(data, 8), epochs=3, **{"loss_fn": nn.MSELoss()} | settings)


def values(trainer):
    """Copies of all that the model holds."""
    return {name: each.clone() for name, each in trainer.model.state_dict().items()}


def assert_alike(found, wanted):
    """To the bit."""
    assert list(found) == list(wanted)
    for name, each in wanted.items():
        assert torch.equal(found[name].to_dense(), each.to_dense()), name


@pytest.mark.parametrize("average", [{}, {"ema": 0.9}])
def test_buffers_that_the_run_sets_and_resizes_are_resumed(average, tmp_path):
    """In a new trainer, and by a rewind, also to where they were not there."""
    trainer = make(hooks=[SnapshotHook(every_steps=2)], **average)
    trainer.step(5)
    trainer.save(tmp_path / "five.pt")
    trainer.step(7)
    wanted = values(trainer)
    assert wanted["seen"].shape == (12,) and wanted["mean"].shape == (4,)
    other = make(hooks=[SnapshotHook(every_steps=2)], **average)
    other.load(tmp_path / "five.pt")
    assert other.model.seen.shape == (5,) and other.model.unused is None
    other.step(7)
    assert_alike(values(other), wanted)
    for place in (4, 0):
        assert trainer.rewind(place) == place and trainer.model.seen.shape == (place,)
        assert (trainer.model.mean is None) == (place == 0)
        trainer.step(12 - place)
        assert_alike(values(trainer), wanted)


class Relative(nn.Module):
    """A loss in multiples of the first one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("first", None)

    def forward(self, pred, target):
        """The first one is 1."""
        found = (pred - target).square().mean()
        if self.first is None:
            self.first = found.detach()
        return found / self.first


def test_those_of_a_loss_function_are_resumed(tmp_path):
    """In a new trainer, and by a rewind to where there were none."""
    def run():
        return make(lambda: nn.Linear(4, 1), hooks=[SnapshotHook(every_steps=2)],
                    loss_fn=Relative())
    trainer = run()
    trainer.step(5)
    trainer.save(tmp_path / "five.pt")
    trainer.step(3)
    wanted, first = values(trainer), trainer.loss_fn.first.clone()
    other = run()
    other.load(tmp_path / "five.pt")
    other.step(3)
    trainer.rewind(0)
    assert trainer.loss_fn.first is None
    trainer.step(8)
    for each in (trainer, other):
        assert_alike(values(each), wanted)
        assert torch.equal(each.loss_fn.first, first)


def test_a_file_of_another_model_is_refused_as_before(tmp_path):
    """By its weights, and by a buffer that is not there or not in the file."""
    trainer = make()
    trainer.step(2)
    trainer.save(tmp_path / "two.pt")

    def more():
        made = Late()
        made.register_buffer("more", torch.ones(1))
        return made

    def fewer():
        made = Late()
        del made.mean
        return made

    def other_kind():
        made = Late()
        made.seen = torch.empty(0, dtype=torch.int64)
        return made
    for model, words in ((lambda: Late(2), "linear.weight is"), (more, "it lacks more"),
                         (fewer, "no place for mean"), (other_kind, "seen is")):
        other = make(model)
        before = values(other)
        with pytest.raises(CheckpointError, match=words):
            other.load(tmp_path / "two.pt")
        assert_alike(values(other), before)
        assert getattr(other.model, "mean", None) is None


@pytest.mark.parametrize("weights", [(torch.ones(2), None), (None, torch.ones(2)),
                                     (torch.ones(2), torch.ones(3))])
@pytest.mark.parametrize("inside", [True, False])
def test_a_buffer_that_was_given_is_not_taken_for_one_that_the_run_has_set(
        weights, inside, tmp_path):
    """The weights of classes of a loss: those of a file are of another run."""
    def run(weight):
        loss = nn.CrossEntropyLoss(weight)
        model = nn.Linear(4, 2 if weight is None else len(weight))
        if not inside:
            return make(lambda: model, loss_fn=loss)
        model.inner = loss
        return make(lambda: model)
    there, here = map(run, weights)
    there.save(tmp_path / "saved.pt")
    with pytest.raises(CheckpointError, match="weight"):
        here.load(tmp_path / "saved.pt")
    kept = here.model.inner if inside else here.loss_fn
    assert (kept.weight is None) == (weights[1] is None)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_buffers(layout, tmp_path):
    """Resumed, averaged, looked past in a search; an export leaves them out and says so."""
    trainer = make(lambda: Sparse(layout), ema=0.9)
    trainer.step(3)
    before = values(trainer)
    trainer.sweep("lr", [0.1, 0.2])
    trainer.lr_find()
    assert_alike(values(trainer), before)
    trainer.save(tmp_path / "three.pt")
    other = make(lambda: Sparse(layout), ema=0.9)
    other.load(tmp_path / "three.pt")
    for each in (trainer, other):
        each.step(4)
    assert_alike(values(other), values(trainer))
    for weights in ("last", "ema"):
        with pytest.warns(UserWarning, match="near is no dense tensor"):
            path = trainer.export(tmp_path / weights, weights=weights)
        assert sorted(load_file(path)) == ["first.bias", "first.weight", "last.bias",
                                           "last.weight"]


@pytest.mark.parametrize("compiled", [torch.jit.script,
                                      lambda model: torch.jit.trace(model.eval(), X[:8])])
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_search_of_a_model_of_torchscript_leaves_no_trace(compiled):
    """Its buffers stand in a container of its own."""
    trainer = make(lambda: compiled(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4),
                                                  nn.Linear(4, 1))))
    trainer.step(3)
    before = values(trainer)
    trainer.sweep("lr", [0.1, 0.2])
    trainer.lr_find()
    with trainer.trial() as trial:
        trial.step()
        assert not torch.equal(values(trainer)["0.weight"], before["0.weight"])
    assert_alike(values(trainer), before)


def test_an_average_of_buffers_takes_those_that_the_run_sets_and_resizes(tmp_path):
    """It begins with their first values, is evaluated with, and is resumed and rewound."""
    def run(**settings):
        return make(hooks=[EMAHook(0.9, buffers="average"), SnapshotHook(every_steps=2)],
                    **settings)
    trainer = run()
    hook = trainer.get_hook(EMAHook)
    trainer.step()
    held = hook.ema_model
    first = trainer.model.mean.clone()
    assert torch.equal(held.mean, first) and held.unused is None
    trainer.step()
    assert hook.ema_model is held
    moved = first.lerp(trainer.model.mean, 1 - 2 / 11)
    assert torch.allclose(held.mean, moved) and not torch.equal(held.mean, trainer.model.mean)
    assert torch.equal(held.seen, trainer.model.seen) and held.seen.shape == (2,)
    trainer.step(3)
    trainer.save(tmp_path / "five.pt")
    trainer.step(7)
    wanted = values(trainer)
    averages = {name: each.clone() for name, each in hook.ema_model.state_dict().items()}
    assert wanted["seen"].shape == averages["seen"].shape == (12,)
    other = run()
    other.load(tmp_path / "five.pt")
    other.step(7)
    trainer.rewind(step=4)
    trainer.step(8)
    for each in other, trainer:
        assert_alike(values(each), wanted)
        assert_alike(each.get_hook(EMAHook).ema_model.state_dict(), averages)


def test_an_average_follows_a_buffer_that_comes_between_its_updates_and_goes():
    """Evaluations before the next update use the average of what is there."""
    class Brief(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.count = nn.Linear(4, 1), 0
            self.register_buffer("shift", None)

        def forward(self, x):
            if self.training:
                self.count += 1
                self.shift = {2: torch.ones(4), 3: torch.full((4,), 3.0)}.get(self.count)
            return self.linear(x if self.shift is None else x + self.shift)

    trainer = make(Brief, hooks=[EMAHook(0.5, every=2, warmup=False, buffers="average")])
    hook = trainer.get_hook(EMAHook)
    seen = []
    for _ in range(4):
        trainer.step()
        with hook.average_in(trainer)():
            seen.append(trainer.model.shift)
            seen[-1] = None if seen[-1] is None else seen[-1].tolist()[0]
    assert seen == [None, 1.0, 1.0, None] and trainer.model.shift is None
    assert hook.ema_model.shift is None


@pytest.mark.parametrize("saved, loaded", [("copy", "average"), ("average", "copy")])
def test_an_average_with_buffers_and_one_without_are_two(saved, loaded, tmp_path):
    """The state is refused before anything has changed."""
    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 1), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.linear(self.norm(x))

    trainer = make(Moving, hooks=[EMAHook(buffers=saved)])
    trainer.step(3)
    trainer.save(tmp_path / "three.pt")
    other = make(Moving, hooks=[EMAHook(buffers=loaded)])
    with pytest.raises(CheckpointError, match="norm.running_mean"):
        other.load(tmp_path / "three.pt")
    assert other.step_state.optimizer_step == 0


@pytest.mark.parametrize("average", [None, "copy", "average"])
def test_the_best_state_has_the_buffers_of_its_own_step(average, tmp_path):
    """Also where they are of other sizes by now, and then the run has its own again."""
    trainer = make(best=("valid/loss", "min"),
                   hooks=[] if average is None else [EMAHook(0.9, buffers=average)])
    trainer.fit(1)
    best = values(trainer)
    trainer.fit(2)
    now = values(trainer)
    assert trainer.best["step"] == 8 and now["seen"].shape == (16,)
    with trainer.best_weights():
        assert trainer.model.seen.shape == (8,)
        if average is None:
            assert_alike(values(trainer), best)
        assert trainer.validate()["valid/loss"] == trainer.best["value"]
    assert_alike(values(trainer), now)
    trainer.export(tmp_path / "best.safetensors", weights="best")
    assert load_file(tmp_path / "best.safetensors")["seen"].shape == (8,)
    trainer.fit(3)
    straight = make(hooks=[] if average is None else [EMAHook(0.9, buffers=average)])
    straight.fit(3)
    assert_alike(values(trainer), values(straight))


class Remembering(nn.Module):
    """Counts and keeps a mean in each pass, also in eval mode, as a memory bank does."""

    def __init__(self, persistent):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(()), persistent=persistent)
        self.register_buffer("mean", torch.zeros(4), persistent=persistent)

    def forward(self, inputs):
        """Both have a part in the output."""
        self.seen += 1
        self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
        return self.layer(inputs - self.mean) * (1 + 0.01 * self.seen)


LOOKS = {"validate": lambda trainer: trainer.validate(),
         "test": lambda trainer: trainer.test(trainer.valid_dl),
         "predict": lambda trainer: trainer.predict(trainer.valid_dl),
         "a model that fails": lambda trainer: trainer.predict([torch.ones(2, 9)])}


@pytest.mark.parametrize("persistent", [True, False], ids=["kept", "not persistent"])
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_leaves_buffers_as_they_were(look, persistent):
    """Also those that a pass in eval mode changes: the run is the one that nobody looked at."""
    def made():
        torch.manual_seed(0)
        inputs, targets = torch.randn(24, 4), torch.randn(24, 1)
        data = TensorDataset(inputs, targets)
        model = Remembering(persistent)
        return Trainer(model, train_dl=DataLoader(data, 8), valid_dl=DataLoader(data, 12),
                       loss_fn=nn.MSELoss(), optim=torch.optim.SGD(model.parameters(), lr=0.1),
                       epochs=2, device="cpu", progress=False)
    straight, looked_at = made(), made()
    straight.fit()
    looked_at.step(2)
    before = {name: each.clone() for name, each in looked_at.model.named_buffers()}
    with suppress(RuntimeError):
        LOOKS[look](looked_at)
    for name, each in looked_at.model.named_buffers():
        assert torch.equal(each, before[name]), name
    looked_at.fit()
    assert torch.equal(looked_at.model.layer.weight, straight.model.layer.weight)
