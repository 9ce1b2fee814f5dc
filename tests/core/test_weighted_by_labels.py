"""A model that returns the mean over its labels is weighted by labels, in windows and evaluations:
the weights are those of whole windows at once, whatever the model does with its labels."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import Trainer
from trainer_nb.core.engine import Window

pytestmark = pytest.mark.slow

LENGTHS = (12, 3, 11, 2, 10, 4, 12, 2, 9, 3, 12, 12, 5, 2, 3, 10)
VOCABULARY = 30


def rows(lengths=LENGTHS):
    """Token ids, and labels that are -100 behind the given length of each row."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, VOCABULARY, (len(lengths), 12), generator=generator)
    labels = tokens.clone()
    for row, length in enumerate(lengths):
        labels[row, length:] = -100
    return tokens, labels


def causal():
    """GPT-2, which moves its labels by one place."""
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0))


def masked():
    """BERT, a label for each token."""
    transformers = pytest.importorskip("transformers")
    return transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0))


def translating():
    """T5, whose class is one "for conditional generation" as some that move their labels."""
    transformers = pytest.importorskip("transformers")
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        dropout_rate=0, decoder_start_token_id=0, pad_token_id=0))


class Own(nn.Module):
    """Somebody's own model, whose scores are all alike at first."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids, labels):
        """Loss and logits, in a dict."""
        logits = self.head(self.embed(input_ids))
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()),
                "logits": logits}


MODELS = [causal, masked, translating, Own]


def made(model):
    """The model in double precision, always with the same weights."""
    torch.manual_seed(1)
    return model().double()


def batches(size, lengths=LENGTHS):
    """Rows in batches of one size."""
    tokens, labels = rows(lengths)
    return [{"input_ids": a, "labels": b} for a, b in zip(tokens.split(size), labels.split(size))]


def by_hand(model, lengths=LENGTHS):
    """One step for each eight rows at once."""
    net = made(model)
    optim = torch.optim.SGD(net.parameters(), lr=0.5)
    for batch in batches(8, lengths):
        optim.zero_grad()
        net(**batch)["loss"].backward()
        optim.step()
    return net


def trained(net, loader, accumulate, **settings):
    """A trainer after one epoch."""
    trainer = Trainer(net, train_dl=loader, epochs=1, device="cpu", progress=False,
                      optim=torch.optim.SGD(net.parameters(), lr=0.5),
                      gradient_accumulation_steps=accumulate, **settings)
    trainer.fit()
    return trainer


def apart(one, other):
    """The largest difference of a weight."""
    pairs = zip(one.parameters(), other.parameters())
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("settings", [{"size": 2, "accumulate": 4},
                                      {"size": 8, "accumulate": 1, "micro_batch_size": 2}],
                         ids=["windows", "micro-batches"])
def test_windows_are_those_of_whole_batches(model, settings, capsys):
    settings = dict(settings)
    net = made(model)
    trainer = trained(net, batches(settings.pop("size")), settings.pop("accumulate"),
                      valid_dl=batches(2), **settings)
    assert apart(by_hand(model), net) < 1e-6
    tokens, labels = rows()
    with torch.no_grad():
        whole = net.eval()(input_ids=tokens, labels=labels)["loss"].item()
    assert trainer.records["valid/loss"] == pytest.approx(whole, rel=1e-5)
    said = [line for line in capsys.readouterr().out.splitlines() if "labels that are not" in line]
    assert len(said) == 1 and type(net).__name__ in said[0]
    assert ("first of each row" in said[0]) == (model in (causal, Own))


@pytest.mark.parametrize("model", [causal, masked])
def test_a_batch_without_a_label_is_left_out(model):
    # all labels of the second batch of each window are -100; a row of one has none for the next
    lengths = (12, 3, 0, 0, 10, 4, 12, 2, 9, 3, 0, 0, 1, 2, 3, 10)
    net = made(model)
    trainer = trained(net, batches(2, lengths), 4, valid_dl=batches(2, lengths))
    assert apart(by_hand(model, lengths), net) < 1e-6
    tokens, labels = rows(lengths)
    with torch.no_grad():
        whole = net.eval()(input_ids=tokens, labels=labels)["loss"].item()
    assert trainer.records["valid/loss"] == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("model", [causal, masked])
def test_a_first_batch_without_a_label_does_not_decide(model, capsys):
    lengths = (0, 0, 12, 3, 10, 4, 12, 2, 0, 0, 9, 3, 5, 2, 3, 10)
    net = made(model)
    trained(net, batches(2, lengths), 4)
    assert apart(by_hand(model, lengths), net) < 1e-6
    assert "by rows" not in capsys.readouterr().out.replace("not by rows", "")


def test_a_loss_with_a_term_of_its_own_is_weighted_by_rows_and_said_to_be(capsys):
    class Penalty(Own):
        """The mean over labels, and something else."""

        def forward(self, input_ids, labels):
            """More than the cross entropy."""
            found = super().forward(input_ids, labels)
            return found | {"loss": found["loss"] + 0.1}

    net = made(Penalty)
    trained(net, batches(2), 4, valid_dl=batches(2))
    said = [line for line in capsys.readouterr().out.splitlines() if "by rows" in line]
    assert len(said) == 1 and "'n'" in said[0] and "Penalty" in said[0]
    hand = made(Penalty)
    optim = torch.optim.SGD(hand.parameters(), lr=0.5)
    for window in (batches(2)[:4], batches(2)[4:]):
        optim.zero_grad()
        for batch in window:
            (hand(**batch)["loss"] / 4).backward()
        optim.step()
    assert apart(hand, net) < 1e-12


def test_one_label_a_row_and_labels_of_another_length_say_nothing(capsys):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16, num_labels=3)
    net = transformers.BertForSequenceClassification(config)
    tokens, _ = rows()
    loader = [{"input_ids": part, "labels": part[:, 0] % 3} for part in tokens.split(2)]
    trained(net, loader, 4)
    assert "labels" not in capsys.readouterr().out


def test_a_step_of_ones_own_says_n_as_before():
    net = made(causal)

    def step(batch, trainer):
        """By hand, as without a count of the trainer's own."""
        return {"loss": trainer.model(**batch).loss, "n": (batch["labels"][:, 1:] != -100).sum()}

    trained(net, batches(2), 4, train_step=step)
    other = made(causal)
    trained(other, batches(2), 4)
    assert apart(net, other) < 1e-12


@pytest.mark.parametrize("counts", [(0, 3, 5), (3, 0, 5), (0, 0, 0)])
def test_tensors_of_counts_may_be_zero(counts):
    """What a device returns is not waited for: 0 has to give no gradient, first or later."""
    window = Window()
    window.open(3)
    gradient = 0.0
    for n in counts:
        gradient += float(window.weight(torch.tensor(n))) * 2.0
        window.parts.append((torch.tensor(2.0 if n else 0.0), torch.tensor(n), {}))
    assert gradient * float(window.correction()) == pytest.approx(2.0 if any(counts) else 0.0)
    if any(counts):
        assert float(window.loss()) == pytest.approx(2.0)


CLASSES = 5
NOISE = torch.randn(48, 8, generator=torch.Generator().manual_seed(3)).double()


def labels_of(kind):
    """Class labels for 48 samples: one each, some left out, and one for each of 5 tokens."""
    generator = torch.Generator().manual_seed(4)
    found = torch.randint(0, 3, (48, 5) if kind == "tokens" else (48,), generator=generator)
    if kind == "left out":
        found[:10] = found[30:33] = -100  # whole batches, too
    elif kind == "tokens":
        shares = torch.linspace(0.9, 0, 48)[:, None]
        found[torch.rand(48, 5, generator=generator) < shares] = -100
    return found


LOSSES = {
    "default": nn.CrossEntropyLoss, "function": lambda: F.cross_entropy,
    "ignored 1": lambda: nn.CrossEntropyLoss(ignore_index=1),
    "ignored 1, partial": lambda: partial(F.cross_entropy, ignore_index=1),
    "weighted": lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2]).double()),
    "weighted, smooth": lambda: nn.CrossEntropyLoss(
        weight=torch.tensor([1.0, 5.0, 0.2]).double(), label_smoothing=0.1),
    "nll": lambda: nn.NLLLoss(weight=torch.tensor([1.0, 5.0, 0.2]).double(), ignore_index=2),
}


def classes(targets, loss, size, accumulate=1, **settings):
    """The network and the validation's loss after an epoch."""
    ignored = {"ignored 1": 1, "ignored 1, partial": 1, "nll": 2}.get(loss, -100)
    targets = targets.where(targets != -100, ignored)
    torch.manual_seed(0)
    last = nn.LogSoftmax(1) if loss == "nll" else nn.Identity()
    shape = (3, 5) if targets.ndim == 2 else (3,)
    net = nn.Sequential(nn.Linear(8, 15 if targets.ndim == 2 else 3), nn.Unflatten(1, shape),
                        last).double()
    data = TensorDataset(NOISE, targets)
    trainer = trained(net, DataLoader(data, size), accumulate, loss_fn=LOSSES[loss](),
                      valid_dl=DataLoader(data, size), **settings)
    return net, trainer.records["valid/loss"]


@pytest.mark.parametrize("kind", ["all", "left out", "tokens"])
@pytest.mark.parametrize("loss", [*LOSSES])
def test_a_loss_of_classes_is_weighted_by_what_it_is_the_mean_of(loss, kind):
    """In windows, micro-batches and evaluations: as the whole batch at once."""
    targets = labels_of(kind)
    whole, loss_of_whole = classes(targets, loss, 24)
    for settings in {"size": 6, "accumulate": 4}, {"size": 24, "micro_batch_size": 6}:
        net, found = classes(targets, loss, **settings)
        assert apart(whole, net) < 1e-12, settings
        assert found == pytest.approx(loss_of_whole, rel=1e-6) and found == found


def test_targets_that_are_shares_count_as_samples():
    """The mean over all of them."""
    shares = torch.rand(48, 3, generator=torch.Generator().manual_seed(2)).double().softmax(1)
    torch.manual_seed(0)
    nets = [nn.Linear(8, 3).double() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net, size, accumulate in zip(nets, (24, 6), (1, 4)):
        trained(net, DataLoader(TensorDataset(NOISE, shares), size), accumulate,
                loss_fn=nn.CrossEntropyLoss())
    assert apart(*nets) < 1e-12


def test_targets_of_bytes():
    """As masks of pictures have them; a label of 156 is not -100."""
    for kind in torch.uint8, torch.int64:
        torch.manual_seed(0)
        net = nn.Linear(8, 200).double()
        targets = torch.full((48,), 156, dtype=torch.int64)
        targets[::2] = 3
        data = TensorDataset(NOISE, targets.to(kind))
        weight = torch.linspace(0.1, 3, 200).double()
        trainer = trained(net, DataLoader(data, 6), 4, loss_fn=nn.CrossEntropyLoss(weight),
                          valid_dl=DataLoader(data, 7))
        with torch.no_grad():
            whole = F.cross_entropy(net(NOISE), targets, weight).item()
        assert trainer.records["valid/loss"] == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("model, told", [(causal, True), (masked, False)])
def test_metrics_of_a_causal_model_are_told_of(model, told, capsys):
    """They get scores and labels as they are, which belong together only after a move."""
    net = made(model)
    trained(net, batches(8), 1, valid_dl=batches(8),
            metrics={"mine": lambda scores, labels: scores.mean()})
    assert ("metrics get scores and labels that are not moved" in capsys.readouterr().out) is told


def test_weights_of_classes_that_are_replaced_count_as_they_are():
    """As those of a loss that is moved to a device, or that a hook sets."""
    torch.manual_seed(0)
    net, targets = nn.Linear(8, 3).double(), labels_of("all")
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 1.0]).double())
    data = TensorDataset(NOISE, targets)
    trainer = Trainer(net, train_dl=DataLoader(data, 6), valid_dl=DataLoader(data, 7), epochs=1,
                      loss_fn=loss, device="cpu", progress=False,
                      optim=torch.optim.SGD(net.parameters(), lr=0.5))
    loss.weight = torch.tensor([1.0, 9.0, 0.1]).double()
    with torch.no_grad():
        whole = loss(net(NOISE), targets).item()
    assert trainer.validate()["valid/loss"] == pytest.approx(whole, rel=1e-6)
