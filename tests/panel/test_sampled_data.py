"""The data of evaluations: pictures that can be read again, a matrix whose cells are right,
evaluation by evaluation."""

import base64
import io

import numpy as np
import torch
from feed_page import Page
from PIL import Image
from sample_runs import VALID, by_hand, make
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import SamplesHook, SnapshotHook
from trainer_nb.hooks.samples import Sample
from trainer_nb.panel.looks import look_at, png, shown_matrix, shown_sample


def seen(trainer, **values):
    """What a page gets."""
    return look_at(trainer.view, "data", values)[0]


def opened(picture):
    """A picture of a message, as PIL reads it."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(picture))))


def test_a_png_is_what_another_program_reads():
    """Grey and colour, of odd sizes."""
    for shape in ((1, 1), (7, 5), (96, 31, 1), (3, 97, 3)):
        pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        image = Image.open(io.BytesIO(png(pixels)))
        image.load()
        assert image.mode == ("RGB" if shape[-1] == 3 and len(shape) == 3 else "L")
        assert (np.asarray(image) == pixels.squeeze()
                if pixels.squeeze().ndim == np.asarray(image).ndim
                else pixels.reshape(np.asarray(image).shape)).all()


def test_step_by_step_through_the_evaluations():
    """Each is found by its step, while new ones come; the worst samples are those by hand."""
    samples = SamplesHook(worst=6)
    trainer = make(samples, epochs=4)
    assert "matrix" not in seen(trainer)
    trainer.step(31)
    assert (seen(trainer)["step"], seen(trainer)["at"]) == (30, 2)
    second = seen(trainer, step=20)
    assert (second["step"], second["at"], second["epoch"]) == (20, 1, 1)
    every = samples.evaluations[1].matrix
    matrix = second["matrix"]
    assert matrix["counts"] == every[np.ix_(matrix["chosen"], matrix["chosen"])].tolist()
    assert every.tolist() != samples.evaluations[2].matrix.tolist()
    for shown, each in zip(second["worst"], samples.evaluations[1].worst, strict=True):
        assert (opened(shown["picture"]) == each.picture[..., 0]).all()
        assert shown["index"] == each.index
    trainer.step(9)
    trainer.validate()
    assert seen(trainer, step=20) == {**second, "steps": seen(trainer)["steps"]}
    last = seen(trainer)
    losses, predictions = by_hand(trainer)
    assert last["at"] == 3 and last["samples"] == 123 == last["matrix"]["total"]
    assert last["correct"] == int((predictions == VALID.tensors[1]).sum())
    order = losses.argsort(descending=True)[:6].tolist()
    assert [each["index"] for each in last["worst"]] == order


def test_a_rewind_takes_later_ones_back():
    """What was looked at then is the nearest of those that are left."""
    trainer = make(SamplesHook(worst=1), SnapshotHook(every_steps=5, every_epochs=None), epochs=5)
    trainer.step(41)
    assert seen(trainer, step=30)["step"] == 30
    trainer.rewind(12)
    assert seen(trainer, step=30)["steps"] == [10] and seen(trainer, step=30)["step"] == 10


def test_several_loaders():
    """Each is chosen by its name."""
    trainer = make(SamplesHook(worst=1),
                   valid={"valid": DataLoader(VALID, 60),
                          "other": DataLoader(TensorDataset(*VALID[:50]), 50)})
    trainer.fit()
    assert seen(trainer)["splits"] == ["valid", "other"] and seen(trainer)["samples"] == 123
    other = seen(trainer, split="other")
    assert (other["samples"], other["steps"], other["at"]) == (50, [10, 20], 1)
    assert seen(trainer, split="gone")["split"] == "valid"


def test_a_sample_says_what_is_known_of_it():
    assert shown_sample(Sample(1.5, 4, 4, 0, 1, text="<b>x</b>")) == {
        "loss": 1.5, "index": 4, "place": 4, "target": 0, "prediction": 1, "text": "<b>x</b>"}
    assert shown_sample(Sample(1.0, -1, 7)).keys() == {"loss", "place"}
    assert shown_sample(Sample(float("nan")))["loss"] == "nan"
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    shown = shown_sample(Sample(1.0, picture=picture, scaled=True))
    assert shown["scaled"] is True and (opened(shown["picture"]) == picture).all()


def test_of_many_classes_those_with_the_most_errors_are_shown():
    matrix = np.diag(np.full(60, 5))
    matrix[41, 7] = 9
    found = shown_matrix(matrix)
    assert found["classes"] == 60 and found["total"] == 309
    assert len(found["chosen"]) == len(found["counts"]) == 20
    row, column = found["chosen"].index(41), found["chosen"].index(7)
    assert found["counts"][row][column] == 9 and found["sums"][row] == 14


def test_what_was_logged_and_what_is_missing():
    """Pictures and texts with name and step, newest first; without losses the reason."""
    samples = SamplesHook()
    trainer = make(samples, loss_fn=lambda pred, target: nn.functional.cross_entropy(pred, target))
    trainer.fit()
    trainer.log_images({"first": torch.zeros(4, 4)})
    trainer.log_images({"<second>": torch.ones(3, 4, 6)})
    samples.log_texts(trainer, {"prompt": "a <b>text</b>"})
    found = seen(trainer)
    text, second, first = found["logged"]
    assert [each["name"] for each in found["logged"]] == ["prompt", "<second>", "first"]
    assert text["text"] == "a <b>text</b>" and {each["step"] for each in found["logged"]} == {20}
    assert opened(second["picture"]).shape == (4, 6, 3)
    assert opened(first["picture"]).shape == (4, 4)
    assert "return the loss of each sample" in found["absent"]["losses"] and found["matrix"]


def test_the_tab_is_there_where_the_hook_is():
    trainer = make()
    page = Page(trainer.feed).hello()
    assert "data" not in page.view["run"]["panes"]
    trainer.hooks.add(SamplesHook())
    trainer.fit()
    assert "data" in page.view["run"]["panes"]
    page.own.hear({"ask": "look", "id": "1", "what": "data", "values": {}})
    assert page.answers[-1]["found"]["at"] == 1
