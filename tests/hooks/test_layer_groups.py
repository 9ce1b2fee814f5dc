"""Layer groups: which parameter belongs where, that dividing changes nothing, freezing and rates
against hand-written loops."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import EMAHook, LambdaHook, LayerGroupsHook, ReplayHook, SnapshotHook, Trainer
from trainer_nb.support.saved import plain_copy
from trainer_nb.hooks.layer_groups import layer_groups

BODY, HEAD = "layer_groups.body", "layer_groups.head"


class Net(nn.Module):
    """A body of two linear layers with BatchNorm, and a head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x).relu())


def net(seed=0):
    """With weights of this seed."""
    torch.manual_seed(seed)
    return Net()


DATA = TensorDataset(torch.randn(80, 6, generator=torch.Generator().manual_seed(5)),
                     torch.randn(80, 1, generator=torch.Generator().manual_seed(6)))
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "single": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
}


def make(split=("body", "head"), optim="adamw", hooks=(), seed=0, **settings):
    """A run of 3 epochs of 10 batches."""
    model = settings.pop("model", None) or net(seed)
    own = [] if split is None else [LayerGroupsHook(split)]
    given = OPTIMIZERS[optim] if isinstance(optim, str) else optim
    return settings.pop("kind", Trainer)(model, train_dl=DataLoader(DATA, 8, shuffle=True),
                                         hooks=[*own, *hooks], device="cpu",
                                         **{"optim": given, "loss_fn": nn.MSELoss(), "seed": 1,
                                            "progress": False, "epochs": 3} | settings)


def values(trainer):
    """Weights, buffers and the optimizer's tensors by parameter."""
    model = trainer.model.state_dict()
    inner = {f"{name}.{key}": value for name, p in trainer.model.named_parameters()
             for key, value in trainer.optim.state.get(p, {}).items()
             if isinstance(value, torch.Tensor)}
    return {name: value.clone() for name, value in {**model, **inner}.items()}


def assert_equal(a, b):
    """Bit for bit."""
    a, b = (values(each) if isinstance(each, Trainer) else each for each in (a, b))
    assert a.keys() == b.keys() and [name for name in a if not torch.equal(a[name], b[name])] == []


# ---- which parameter belongs where
@pytest.mark.parametrize(("split", "expected"), {
    "one name": ("head",
                 {"head": ["head.weight", "head.bias"],
                  "rest": ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias",
                           "body.3.weight", "body.3.bias"]}),
    "all named": (["body", "head"],
                  {"body": ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias",
                            "body.3.weight",
                            "body.3.bias"], "head": ["head.weight", "head.bias"]}),
    "the longer name counts": ({"all": ["body", "head"], "last": "body.3"}, {
        "all": ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight",
                "head.bias"],
        "last": ["body.3.weight", "body.3.bias"]}),
    "a parameter": ({"bias": ["head.bias", "body.0.bias"]},
                    {"bias": ["body.0.bias", "head.bias"], "rest": [
"body.0.weight", "body.1.weight", "body.1.bias", "body.3.weight", "body.3.bias", "head.weight"]}),
    "modules of a function": (lambda m: {"first": m.body[0], "others": [m.body[1:], m.head]}, None),
    "lists of parameters, as fastai's splitters give": (
        lambda m: [list(m.body.parameters()), list(m.head.parameters())], {
"group_0": ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "body.3.weight",
            "body.3.bias"],
"group_1": ["head.weight", "head.bias"]}),
}.values())
def test_the_groups(split, expected):
    """By name, list, dict and function."""
    if expected is None:
        with pytest.raises(ValueError, match="'others': a Sequential is not a module"):
            layer_groups(net(), split)
    else:
        assert layer_groups(net(), split) == expected


@pytest.mark.parametrize(("split", "words"), [
    ("heat", "'heat': 'heat' is not a module or parameter of the model: did you mean 'head'"),
    ({"a": "zzz"}, "'zzz' is not a module or parameter of the model: there are body, body.0"),
    ({"a": "head", "b": ["body", "head"]}, "'head' is in 'a' and in 'b'"),
    ({"a": ["head"], "b": ["head.weight", "head.bias"]}, "'a' has no parameter of its own"),
    ({"act": "body.2"}, "'act' has no parameter of its own"),
    ({1: "head"}, "1 is not a name for a group"),
    (lambda m: [nn.Linear(1, 1)], "a Linear is not a module or parameter of the model"),
])
def test_a_split_that_fits_nothing_is_refused(split, words):
    """Before anything has changed."""
    model = net()
    optim = OPTIMIZERS["sgd"](model.parameters())
    with pytest.raises(ValueError) as error:
        make(split, optim, model=model)
    assert words in str(error.value) and len(optim.param_groups) == 1


def test_a_weight_of_two_modules_is_in_the_group_of_the_first():
    """Tied weights have one owner, whichever name is given."""
    model = net()
    model.again = nn.Linear(8, 1)
    model.again.weight = model.head.weight
    assert layer_groups(model, ["body", "head", "again"])["again"] == ["again.bias"]


def test_a_name_that_begins_another():
    """`body` is not `body_2`."""
    model = nn.ModuleDict({"body": nn.Linear(1, 1), "body_2": nn.Linear(1, 1)})
    assert layer_groups(model, "body") == {"body": ["body.weight", "body.bias"],
                                           "rest": ["body_2.weight", "body_2.bias"]}


# ---- dividing the optimizer
@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("sched", [None, "one_cycle"])
def test_dividing_alone_changes_no_bit(optim, sched):
    """Two groups against one, with clipping and accumulation."""
    settings = {"optim": optim, "sched": sched, "grad_clip": 0.5, "gradient_accumulation_steps": 2}
    plain, divided = (make(None, **settings),
                      make({"a": ["head", "body.0"], "b": "body.1"}, **settings))
    assert [len(trainer.optim.param_groups) for trainer in (plain, divided)] == [1, 3]
    plain.fit()
    divided.fit()
    assert_equal(plain, divided)


def test_groups_of_the_users_own_are_divided_with_their_options():
    """No decay for biases, say; names stay with their parameters."""
    model = net()
    named = dict(model.named_parameters())
    optim = torch.optim.AdamW([
        {"params": [(n, p) for n, p in named.items() if p.ndim > 1], "weight_decay": 0.3,
         "lr": 0.02},
        {"params": [(n, p) for n, p in named.items() if p.ndim == 1], "weight_decay": 0.0}],
        lr=0.01)
    trainer = make(optim=optim, model=model)
    found = [(group["param_names"], group["weight_decay"], group["lr"])
             for group in optim.param_groups]
    assert found == [(["body.0.weight", "body.3.weight"], 0.3, 0.02), (["head.weight"], 0.3, 0.02),
                     (["body.0.bias", "body.1.weight", "body.1.bias", "body.3.bias"], 0.0, 0.01),
                     (["head.bias"], 0.0, 0.01)]
    assert all(p is named[n] for group in optim.param_groups
               for n, p in zip(group["param_names"], group["params"]))
    trainer.tune(**{f"{HEAD}.lr_scale": 10.0})
    assert trainer.rates() == pytest.approx([0.02, 0.2, 0.01, 0.1]) and trainer.rate == 0.02


def test_what_the_loss_function_learns_stays_in_no_group():
    """And learns on, at the run's rate, when all of the model is frozen."""
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, pred, target):
            return ((pred * self.scale - target) ** 2).mean()

    model, loss = net(), Scaled()
    optim = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    trainer = Trainer(model, train_dl=DataLoader(DATA, 8), loss_fn=loss, optim=optim,
                      hooks=[LayerGroupsHook(["body", "head"])],
                      epochs=1, device="cpu", progress=False)
    trainer.tune(**{f"{BODY}.frozen": True, f"{HEAD}.frozen": True, f"{HEAD}.lr_scale": 0.5})
    assert trainer.rates() == pytest.approx([0.1, 0.05, 0.1])
    before = model.head.weight.clone()
    trainer.fit()
    assert torch.equal(model.head.weight, before) and loss.scale.item() != 1.0


def test_a_parameter_group_that_joins_the_run():
    """It has the run's rate, and steps."""
    trainer = make(optim="sgd")
    trainer.tune(**{f"{HEAD}.lr_scale": 2.0})
    trainer.step(2)
    more = nn.Parameter(torch.ones(1))
    trainer.model.register_parameter("more", more)
    trainer.optim.add_param_group({"params": [more], "lr": 0.4})
    assert trainer.rates() == pytest.approx([0.1, 0.2, 0.4])
    trainer.fit()
    assert trainer.rates() == pytest.approx([0.1, 0.2, 0.4])


def test_without_a_split_the_groups_are_those_of_the_optimizer():
    """By their names or places; what is not of the model has the run's rate, and stays apart."""
    class Scaled(nn.MSELoss):
        """A loss with a parameter of its own."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, pred, target):
            return self.scale * super().forward(pred, target)

    model, loss = net(), Scaled()
    groups = [{"params": model.body.parameters(), "name": "body"},
              {"params": loss.parameters()}, {"params": model.head.parameters(), "lr": 0.2}]
    trainer = make(None, optim=torch.optim.SGD(groups, lr=0.1), model=model,
                   hooks=[LayerGroupsHook()], loss_fn=loss)
    mine = [name for name in trainer.tunables.table
            if name.startswith("layer_groups.") and name.count(".") == 2]
    assert mine == [f"layer_groups.{name}.{what}" for name in ("body", "group_2")
                    for what in ("frozen", "lr_scale")]
    assert len(trainer.optim.param_groups) == 3
    trainer.tune(**{"layer_groups.group_2.lr_scale": 3.0, "layer_groups.body.frozen": True})
    assert trainer.rates() == pytest.approx([0.1, 0.1, 0.6])
    before = values(trainer)
    trainer.step(1)
    changed = {name for name, value in values(trainer).items() if not torch.equal(
        value, before.get(name, torch.zeros(0)))}
    assert {"head.weight", "head.bias"} <= changed and "body.0.weight" not in changed
    later = [{"params": list(model.parameters()), "name": "all"}]
    trainer.optim = torch.optim.SGD(later, lr=0.1)
    assert "layer_groups.all.lr_scale" in trainer.tunables.table
    assert trainer.rates() == pytest.approx([0.1])


def test_two_groups_of_one_name_are_refused():
    """A change would not say which of them it is of."""
    model = net()
    groups = [{"params": part.parameters(), "name": "a"} for part in (model.body, model.head)]
    with pytest.raises(ValueError, match="two parameter groups of the optimizer have the name 'a'"):
        make(None, optim=torch.optim.SGD(groups, lr=0.1), model=model, hooks=[LayerGroupsHook()])


class Again(Trainer):
    """A trainer for optimizers that compute the loss again."""

    repeats_windows = True

    def do_opt_step(self):
        """With the window's loss as the closure."""
        return super().do_opt_step(self.window_gradients)


def test_lbfgs_a_part_outside_the_optimizer_and_a_scheduler_that_came_before():
    """Refused where they cannot work."""
    with pytest.raises(ValueError, match="LBFGS takes all parameters as one group"):
        make(optim=lambda p: torch.optim.LBFGS(p), kind=Again)
    model = net()
    with pytest.raises(ValueError, match="'body' has no parameter in the optimizer"):
        make(optim=torch.optim.SGD(model.head.parameters(), lr=0.1), model=model)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.StepLR(optim, 3)
    with pytest.raises(ValueError, match="built for 1 parameter group.s. and the optimizer has 2"):
        make(optim=optim, model=model, sched=sched).fit()
    late = make(None)
    late.hooks.add(LayerGroupsHook("head"))
    with pytest.raises(RuntimeError, match="when the trainer is built"):
        late.fit()


# ---- freezing and rates, against loops written by hand
def by_hand(optim, change):
    """The same run; `change(step, model, optimizer)` before each step."""
    model = net()
    optimizer = OPTIMIZERS[optim]([{"params": model.body.parameters()},
                                   {"params": model.head.parameters()}])
    torch.manual_seed(1)
    step = 0
    for _ in range(3):
        for x, y in DataLoader(DATA, 8, shuffle=True):
            change(step, model, optimizer)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    inner = {f"{name}.{key}": value for name, p in model.named_parameters()
             for key, value in optimizer.state.get(p, {}).items()
             if isinstance(value, torch.Tensor)}
    return {**model.state_dict(), **inner}


@pytest.mark.parametrize("optim", ["sgd", "adamw", "fused"])
def test_freezing_is_what_torch_does_without_gradients(optim):
    """Off from step 4 to 17: no decay, no momentum in that time; BatchNorm counts on."""
    def change(step, model, optimizer):
        if step in (4, 17):
            model.body.requires_grad_(step == 17)
    trainer = make(optim=optim)
    trainer.step(4)
    trainer.tune(**{f"{BODY}.frozen": True})
    held = trainer.model.body[0].weight.clone()
    trainer.step(13)
    assert torch.equal(held, trainer.model.body[0].weight)
    assert trainer.model.body[0].weight.grad is None
    trainer.tune(**{f"{BODY}.frozen": False})
    trainer.fit()
    assert_equal(values(trainer), by_hand(optim, change))


@pytest.mark.parametrize("optim", ["sgd", "adamw", "tensor lr"])
def test_a_groups_rate_is_the_runs_times_its_own(optim):
    """From the start, changed at step 9, with the run's own changed at step 20;
    groups keep what the optimizer gave them."""
    first = {"sgd": 0.1, "adamw": 0.01, "tensor lr": torch.tensor(0.01).item()}[optim]
    def change(step, model, optimizer):
        if step in (0, 9, 20):
            run = first if step < 20 else first * 0.5
            rates = [run * (0.1 if step < 9 else 0.25), run]
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = torch.tensor(rate) if optim == "tensor lr" else rate
    trainer = make(optim=optim)
    trainer.tune(**{f"{BODY}.lr_scale": 0.1})
    trainer.step(9)
    trainer.tune(**{f"{BODY}.lr_scale": 0.25})
    trainer.step(11)
    trainer.tune(lr_scale=0.5)
    assert trainer.rate == pytest.approx(first / 2)
    assert trainer.rates() == pytest.approx([first / 8, first / 2])
    trainer.fit()
    assert_equal(values(trainer), by_hand(optim, change))


def test_under_a_schedule_taken_over_by_hand_and_given_back():
    """The group's factor stays on top of whatever the run's rate is."""
    trainer = make(sched="cosine")
    trainer.tune(**{f"{HEAD}.lr_scale": 3.0})
    trainer.step(7)
    assert trainer.rates() == pytest.approx([trainer.rate, 3 * trainer.rate])
    assert trainer.history["lr"].tolist()[-1] < 0.0101  # of the run, not of a group
    trainer.tune(lr=0.2)
    assert trainer.rates() == pytest.approx([0.2, 0.6])
    trainer.tune(lr=None)
    assert trainer.rates() == pytest.approx([trainer.optim.param_groups[0]["lr"],
                                             3 * trainer.optim.param_groups[1]["lr"]])


def test_the_switch_of_the_hook():
    """Off: everything learns at one rate; on again: as it was."""
    trainer = make()
    trainer.tune(**{f"{BODY}.frozen": True, f"{HEAD}.lr_scale": 2.0})
    trainer.tune(**{"layer_groups.enabled": False})
    assert trainer.rates() == pytest.approx([0.01, 0.01])
    assert all(p.requires_grad for p in trainer.model.parameters())
    trainer.tune(**{"layer_groups.enabled": True})
    assert trainer.rates() == pytest.approx([0.01, 0.02])
    assert [p.requires_grad for p in trainer.model.parameters()] == [False] * 6 + [True] * 2


def test_what_was_frozen_before_stays_so():
    """One layer of the body by hand; a head that is frozen as a whole begins so."""
    model = net()
    model.body[0].requires_grad_(False)
    model.head.requires_grad_(False)
    trainer = make(model=model)
    table = {name: entry.read() for name, entry in trainer.tunables().items()
             if name.endswith("frozen")}
    assert table == {f"{BODY}.frozen": False, f"{HEAD}.frozen": True}
    trainer.tune(**{f"{HEAD}.frozen": False})
    trainer.tune(**{f"{BODY}.frozen": True})
    trainer.tune(**{f"{BODY}.frozen": False})
    assert [p.requires_grad
            for p in model.parameters()] == [False, False, True, True, True, True, True, True]


def test_not_everything_may_be_frozen():
    """Refused with the reason, whatever the order; names and values that are none, too."""
    trainer = make()
    trainer.tune(**{f"{HEAD}.frozen": True})
    with pytest.raises(ValueError,
                       match=r"layer_groups\.body\.frozen = True is refused: every layer group "
                             r"would be frozen"):
        trainer.tune(**{f"{BODY}.frozen": True})
    for name, value, words in ((f"{BODY}.lr_scale", -1, "0 or more"),
                               (f"{BODY}.frozen", 1, "True or False"),
                               ("layer_groups.bod.lr_scale", 1.0,
                                "did you mean 'layer_groups.body.lr_scale'")):
        with pytest.raises(ValueError, match=words):
            trainer.tune(**{name: value})
    assert len(trainer.journal) == 1


# ---- exact
def steered(trainer, upto=None):
    """Changes at steps 3, 11 and 19, and on to the end or to a step."""
    changes = {3: {f"{BODY}.frozen": True}, 11: {f"{BODY}.frozen": False, f"{BODY}.lr_scale": 0.1},
               19: {f"{HEAD}.lr_scale": 2.0}}
    for step, change in changes.items():
        if trainer.step_state.optimizer_step < step <= (upto or 99):
            trainer.step(step - trainer.step_state.optimizer_step)
            trainer.tune(**change)
    if upto is None:
        trainer.fit()
    elif trainer.step_state.optimizer_step < upto:
        trainer.step(upto - trainer.step_state.optimizer_step)
    return trainer


@pytest.mark.parametrize("k", [2, 5, 11, 14, 25])
def test_going_on_in_another_trainer(k):
    """Halted frozen, unfrozen, with rates of its own: the same weights."""
    straight = steered(make(sched="one_cycle"))
    state = plain_copy(steered(make(sched="one_cycle"), k).state_dict())
    second = make(sched="one_cycle", seed=9)
    second.load_state_dict(state)
    assert_equal(steered(second), straight)


def test_rewind_and_replay():
    """Freezing goes back with the rest; a script makes the steered run again."""
    trainer = make(hooks=[SnapshotHook(every_steps=5)])
    steered(trainer, 14)
    assert trainer.rewind(10) == 10
    assert [p.requires_grad for p in trainer.model.parameters()] == [False] * 6 + [True] * 2
    assert trainer.rates() == [0.01, 0.01]
    trainer.tune(**{f"{HEAD}.lr_scale": 0.3})
    trainer.fit()
    again = make(hooks=[ReplayHook(trainer.journal), SnapshotHook(every_steps=5)])
    again.fit()
    assert_equal(again, trainer)
    other = make()  # without the journal it is another run
    other.fit()
    assert not torch.equal(other.model.head.weight, trainer.model.head.weight)


def test_a_search_for_a_rate_keeps_the_proportion():
    """lr_find multiplies each group by its factor, and leaves no trace."""
    trainer = make(optim="sgd")
    trainer.tune(**{f"{BODY}.lr_scale": 0.1})
    before = values(trainer)
    seen = []
    trainer.hooks.add(LambdaHook(before_step=lambda t: seen.append(t.rates())))
    trainer.lr_find(num_steps=12)
    assert seen and all(rates[0] == pytest.approx(0.1 * rates[1]) for rates in seen)
    assert_equal(values(trainer), before)


def test_the_average_goes_on_through_freezing():
    """EMA of a frozen group converges to its weights."""
    trainer = make(ema=0.5)
    trainer.step(5)
    trainer.tune(**{f"{BODY}.frozen": True})
    trainer.fit()
    ema = trainer.get_hook(EMAHook)
    assert torch.allclose(ema.ema_model.body[0].weight, trainer.model.body[0].weight, atol=1e-6)
    assert not torch.equal(ema.ema_model.head.weight, trainer.model.head.weight)


# ---- the panel
def test_the_panel_has_a_switch_and_a_rate_for_each_group():
    """Under the name of the hook."""
    trainer = make({"body": "body", "the <head>": "head"})
    found = [name for name, rules in trainer.feed.whole("tunables")["tunables"].items()
             if rules["group"] == "layer_groups"]
    assert found == ["layer_groups.enabled", "layer_groups.order", f"{BODY}.frozen",
                     f"{BODY}.lr_scale", "layer_groups.the <head>.frozen",
                     "layer_groups.the <head>.lr_scale"]
