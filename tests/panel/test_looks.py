"""What a page asks for by itself: the same of a run here and of its files, and nothing else."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from steered import until
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import LayerStatsHook, SamplesHook, Trainer
from trainer_nb.panel.feed import Feed
from trainer_nb.panel.looks import MOST_COLUMNS, look_at
from trainer_nb.panel.sections import looks
from trainer_nb.remote.remote_view import RemoteRunView


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """A run that measures its layers and keeps its samples: by its trainer, and by its files."""
    folder = tmp_path_factory.mktemp("looks") / "exp1"
    torch.manual_seed(0)
    x, y = torch.rand(32, 1, 6, 6), torch.randint(3, (32,))
    loader = DataLoader(TensorDataset(x, y), 8)
    trainer = Trainer(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3)),
                      train_dl=loader, valid_dl={"valid": loader, "other": loader},
                      loss_fn=nn.CrossEntropyLoss(), epochs=3, device="cpu", progress=False, seed=0,
                      workspace=folder, hooks=[LayerStatsHook(2), SamplesHook(2)])
    trainer.fit()
    trainer.close()
    remote = RemoteRunView(folder)
    until(lambda: remote.look() or looks(remote).keys() >= {"layers", "data"})
    return trainer.view, remote


ASKED = [("layers", {"quantity": each}) for each in ("gradient", "weights", "update/weight",
                                                     "activation", "near zero")]
ASKED += [("layers", {"quantity": "gradient", "text": " 2"}),
          ("layer", {"quantity": "gradient", "layer": "2", "step": 5}),
          ("layer", {"quantity": "near zero", "layer": "0", "step": 100}),
          ("layer", {"quantity": "weights", "layer": "gone", "step": 1}),
          ("data", {}), ("data", {"split": "other"}), ("data", {"split": "valid", "step": 5})]


@pytest.mark.parametrize(("what", "values"), ASKED, ids=str)
def test_a_run_here_and_its_files_give_the_same(views, what, values):
    (found, cells), (there, others) = (look_at(view, what, values) for view in views)
    assert found == there and cells == others and found


def test_a_map_has_a_cell_for_each_layer_and_measurement(views):
    hook = views[0].layer_stats
    found, (cells,) = look_at(views[0], "layers", {"quantity": "weights"})
    made = np.frombuffer(cells, "<f4").reshape(len(found["layers"]), len(found["steps"]))
    assert found["layers"] == ["0", "2"] and found["steps"] == [1, 3, 5, 7, 9, 11]
    row = list(hook.weight_history.of_layer("2"))[-1]
    assert made[1, -1] == np.float32(row.weight) and found["range"][1] == float(made.max())
    one, _ = look_at(views[0], "layer", {"quantity": "weights", "layer": "2", "step": 11})
    assert one["numbers"]["weight norm"] == row.weight and one["step"] == 11
    assert sum(one["shares"]) == pytest.approx(1)
    seen, _ = look_at(views[0], "layer", {"quantity": "near zero", "layer": "2", "step": 5})
    mean = dict(hook.history.fetch())[5]["activations"]["2"][0]
    assert seen["step"] == 5 and seen["numbers"]["activation mean"] == float(mean)
    assert len(found["steps"]) <= MOST_COLUMNS


def test_an_evaluation_is_found_by_its_step(views):
    """A matrix whose sums are the samples, the worst ones first, with pictures."""
    found, _ = look_at(views[0], "data", {})
    assert found["splits"] == ["valid", "other"] and found["split"] == "valid"
    assert found["steps"] == [4, 8, 12] and found["at"] == 2 and found["step"] == 12
    matrix = found["matrix"]
    assert matrix["total"] == found["samples"] == 32 == sum(map(sum, matrix["counts"]))
    assert found["correct"] == sum(matrix["counts"][at][at] for at in range(3))
    losses = [each["loss"] for each in found["worst"]]
    assert losses == sorted(losses, reverse=True) and len(losses) == 2
    picture = Image.open(io.BytesIO(base64.b64decode(found["worst"][0]["picture"])))
    assert picture.size == (6, 6)
    earlier, _ = look_at(views[0], "data", {"split": "other", "step": 7})
    assert (earlier["step"], earlier["at"], earlier["split"]) == (8, 1, "other")


@pytest.mark.parametrize(("what", "values", "words"), [
    ("weights", {}, "there are layers, layer, data"), ("layers", {}, "quantity"),
    ("layers", {"quantity": "gradients"}, "did you mean 'gradient'"),
    ("layer", {"quantity": "gradient", "layer": 3, "step": 1}, "layer"),
    ("data", {"step": "1"}, "step"), ("data", {"path": "/etc/passwd"}, "path")])
def test_what_cannot_be_asked_is_refused(views, what, values, words):
    """By the page's own message, which is answered."""
    messages = []
    page = Feed(views[0]).page(lambda message, buffers: messages.append(message))
    page.hear({"ask": "look", "id": "1", "what": what, "values": values})
    assert messages[-1]["re"] == "1" and messages[-1]["status"] == "refused"
    assert words in messages[-1]["reason"]


def test_a_page_is_told_that_there_is_something_new(views):
    """While its tab is open; the answer has the cells as a buffer."""
    messages = []
    feed = Feed(views[0])
    page = feed.page(lambda message, buffers: messages.append((message, buffers)))
    page.hear({"ask": "hello", "v": 1})
    assert "looks" not in messages[0][0]["view"]
    page.hear({"ask": "open", "tabs": ["looks"]})
    assert messages[-1][0]["patch"]["looks"] == looks(views[0])
    page.hear({"ask": "look", "id": "7", "what": "layers", "values": {"quantity": "weights"}})
    message, buffers = messages[-1]
    assert (message["re"], message["status"]) == ("7", "applied")
    assert len(buffers[0]) == 4 * len(message["found"]["layers"]) * len(message["found"]["steps"])


def test_without_the_hooks_there_is_nothing_to_see():
    trainer = Trainer(nn.Linear(3, 1), train_dl=[torch.ones(1, 3)], loss_fn=nn.MSELoss(),
                      max_steps=1, progress=False, device="cpu")
    assert looks(trainer.view) == {}
    assert look_at(trainer.view, "layers", {"quantity": "weights"})[0]["layers"] == []
    assert look_at(trainer.view, "data", {})[0]["steps"] == []
