"""The pane of the data: pictures that can be read again, a matrix whose cells are right, evaluation
by evaluation."""

import base64
import io
import re

import numpy as np
import torch
from PIL import Image
from sample_runs import VALID, by_hand, make
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import SamplesHook, SnapshotHook
from trainer_nb.hooks.samples import Sample
from trainer_nb.panel.data_pane import DataPane, confusion_table, sample_figure
from trainer_nb.panel.looks import png


def opened(page):
    """The pictures in a text of the page, as PIL reads them."""
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each))))
            for each in re.findall(r'base64,([^"]+)"', page)]


def counts(page):
    """The numbers of a matrix in the page."""
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", page)
    return [[int(each.replace("·", "0").replace(",", ""))
             for each in re.findall(r"<td[^>]*>([^<]*)</td>", row)] for row in rows]


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
    """The last one until another is chosen; then that one stays, while new ones come."""
    samples = SamplesHook(worst=6)
    trainer = make(samples, epochs=4)
    pane = DataPane(trainer.view)
    assert "No evaluation" in pane.matrix.value and pane.earlier.disabled and pane.later.disabled
    trainer.step(31)
    pane.refresh()
    assert "evaluation 3 of 3" in pane.words.value
    assert "step 30" in pane.words.value and pane.later.disabled and not pane.earlier.disabled
    pane.earlier.click()
    assert "evaluation 2 of 3" in pane.words.value and "step 20" in pane.words.value
    shown = pane.matrix.value, pane.worst.value
    assert counts(
        shown[0]) == samples.evaluations[
            1].matrix.tolist() != samples.evaluations[2].matrix.tolist()
    for picture, each in zip(opened(shown[1]), samples.evaluations[1].worst, strict=True):
        assert (picture == each.picture[..., 0]).all() and f"#{each.index}" in shown[1]
    trainer.step(9)
    trainer.validate()
    pane.refresh()
    assert "evaluation 2 of 4" in pane.words.value
    assert (pane.matrix.value, pane.worst.value) == shown
    pane.later.click()
    pane.later.click()
    assert "evaluation 4 of 4" in pane.words.value and pane.later.disabled
    losses, predictions = by_hand(trainer)
    right = int((predictions == VALID.tensors[1]).sum())
    assert f"{right} of 123 right" in pane.matrix.value
    order = losses.argsort(descending=True)[:6].tolist()
    assert [int(each) for each in re.findall(r"#(\d+)<", pane.worst.value)] == order


def test_a_rewind_while_a_later_one_is_chosen():
    """The pane goes to what is left."""
    samples = SamplesHook(worst=1)
    trainer = make(samples, SnapshotHook(every_steps=5, every_epochs=None), epochs=5)
    trainer.step(41)
    pane = DataPane(trainer.view)
    pane.earlier.click()
    assert "step 30" in pane.words.value
    trainer.rewind(12)
    pane.refresh()
    assert "evaluation 1 of 1" in pane.words.value and "step 10" in pane.words.value


def test_several_loaders():
    """Each is chosen by its name."""
    samples = SamplesHook(worst=1)
    trainer = make(samples,
                   valid={"valid": DataLoader(VALID, 60),
                          "other": DataLoader(TensorDataset(*VALID[:50]), 50)})
    trainer.fit()
    pane = DataPane(trainer.view)
    assert list(pane.split.options) == ["valid", "other"]
    assert "123 samples" in pane.words.value and pane.split.layout.display is None
    pane.split.value = "other"
    assert "50 samples" in pane.words.value and "evaluation 2 of 2" in pane.words.value


def test_the_page_gets_no_markup_of_the_data():
    """Names, texts, reasons are escaped; classes have their names."""
    matrix = confusion_table(np.array([[3, 1], [0, 2]]), ["<i>cat</i>", "dog & co"])
    assert "<i>" not in matrix and "&lt;i&gt;cat" in matrix and counts(matrix) == [[3, 1], [0, 2]]
    figure = sample_figure(Sample(1.5, 4, 4, 0, 1, text="<script>alert(1)</script>"),
                           ["<b>a</b>", "b"])
    assert "<script>" not in figure
    assert "<b>a" not in figure and "&lt;b&gt;a&lt;/b&gt; → b" in figure
    assert "scaled" in sample_figure(Sample(1.0, picture=np.zeros((2, 2, 1), np.uint8),
                                            scaled=True), None)
    assert "no. 8" in sample_figure(Sample(1.0, -1, 7), None)
    assert '<b class="wrong">nan</b>' in sample_figure(Sample(float("nan")), None)


def test_many_classes():
    """Those with the most errors are shown, and it says so."""
    matrix = np.diag(np.full(60, 5))
    matrix[41, 7] = 9
    page = confusion_table(matrix)
    assert len(counts(page)) == 20
    assert "20 of 60 classes" in page and 'title="target 41, predicted 7: 9 of 14"' in page


def test_what_was_logged_and_what_is_missing():
    """Pictures and texts with name and step, newest first; without losses or classes the reason."""
    samples = SamplesHook()
    trainer = make(samples, loss_fn=lambda pred, target: nn.functional.cross_entropy(pred, target))
    trainer.fit()
    trainer.log_images({"first": torch.zeros(4, 4)})
    trainer.log_images({"<second>": torch.ones(3, 4, 6)})
    samples.log_texts(trainer, {"prompt": "a <b>text</b>"})
    pane = trainer.data_pane
    assert pane.logged.value.index("&lt;second&gt;") < pane.logged.value.index("first")
    assert "step 20" in pane.logged.value
    assert "a &lt;b&gt;text&lt;/b&gt;" in pane.logged.value
    assert opened(pane.logged.value)[0].shape == (4, 6, 3)
    assert "return the loss of each sample" in pane.worst.value and "%" in pane.matrix.value


def test_the_tab_is_there_where_the_hook_is():
    """Built when it is opened."""
    trainer = make()
    board = trainer.dashboard
    assert "data" not in trainer.view.panes and "SamplesHook" in trainer.data_pane.matrix.value
    trainer.hooks.add(SamplesHook())
    trainer.fit()
    board.refresh()
    assert "Data" in [each.description for each in board.tabs.strip.children]
    assert "data" not in board.tabs.built
    board.tabs.buttons["data"].click()
    assert "evaluation 2 of 2" in board.tabs.built["data"].words.value
