"""The panes of layers and data in a real page:
tabs, cells of the map by mouse and by keys, evaluations step by step."""

import json
import re

import pytest
from live_page import later

pytestmark = pytest.mark.browser

SETUP = """
import json
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import LayerStatsHook, SamplesHook, Trainer
torch.set_num_threads(1)
torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16).float().view(-1, 1, 8, 8), torch.tensor(labels)
train, valid = TensorDataset(x[:200], y[:200]), TensorDataset(x[200:300], y[200:300])
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 32),
                      nn.ReLU(), nn.Linear(32, 10))
stats, samples = LayerStatsHook(every_steps=5), SamplesHook(worst=4)
trainer = Trainer(model, train_dl=DataLoader(train, 20), valid_dl=DataLoader(valid, 50),
                  loss_fn=nn.CrossEntropyLoss(), epochs=3, seed=0,
                  device="cpu", progress=False, hooks=[stats, samples])
trainer.fit()
trainer.dashboard
"""
TRUTH = """
rows = {name: [[row.step, row.gradient] for row in stats.weight_history.of_layer(name)]
        for name in ("0", "3", "5")}
print(json.dumps({"rows": rows,
                  "worst": [[each.index for each in one.worst] for one in samples.evaluations],
                  "matrix": [one.matrix.tolist() for one in samples.evaluations]}))
"""


def number(text):
    """A number as the page writes it."""
    return float(text.replace("−", "-").replace(",", ""))


@pytest.mark.long  # tests/panel: test_layers_pane, test_data_pane
def test_layers_and_data_by_hand(lab):
    """What is shown after a click or a key is what the kernel has."""
    lab.show("data.ipynb", [SETUP, TRUTH])
    truth, panel, page = json.loads(lab.output_text(1)), lab.cell(0).locator(".tnb").first, lab.page
    panel.locator(".tab", has_text="Layers").click()
    field = panel.locator(".heat-map .field")
    field.locator("canvas").wait_for()
    page.wait_for_function("() => document.querySelector('.heat-map canvas').width > 100")
    box = field.bounding_box()
    assert panel.locator(".heat-map .names div").all_inner_texts() == ["0", "3", "5"]
    assert [step for step, _ in truth["rows"]["0"]] == [1, 6, 11, 16, 21, 26]

    # the heading says which cell it is, the first row has its gradient norm
    def shown(layer, step):
        panel.locator(".tnb-layers .heading",
                      has_text=re.compile(rf"^{layer} · step {step}$")).wait_for()
        first = panel.locator(".tnb-layers table.plain td.num").first
        wanted = pytest.approx(dict(truth["rows"][layer])[step], rel=1e-3)
        assert later(lambda: number(first.inner_text()) == wanted), first.inner_text()
        assert later(lambda: panel.locator(".bars span").count() >= 8)
        bars = panel.locator(".bars span").all()
        assert sum(float(each.get_attribute("title").split()[-1].rstrip("%"))
                   for each in bars) == pytest.approx(100, abs=0.5)
    at = {"x": box["width"] * 2.5 / 6, "y": box["height"] * 1.5 / 3}
    field.hover(position=at)
    tip = panel.locator(".heat-map .tip")
    assert later(lambda: tip.inner_text().startswith("3, step 11: "))
    assert number(
        tip.inner_text().split(": ")[1]) == pytest.approx(dict(truth["rows"]["3"])[11], rel=6e-3)
    field.click(position=at)
    shown("3", 11)
    page.keyboard.press("ArrowRight")
    shown("3", 16)
    page.keyboard.press("ArrowDown")
    shown("5", 16)
    page.keyboard.press("ArrowDown")  # the last row stays
    # and no key reached the notebook
    assert later(lambda: "Chosen: 5, step 16" in field.get_attribute("aria-label"))
    assert lab.cell(2).count() == 0
    panel.get_by_role("button", name="weights").click()
    panel.locator(".bar-ends", has_text="|weight|").wait_for()

    panel.locator(".tab", has_text="Data").click()
    words, table = panel.locator(".tnb-databar"), panel.locator("table.confusion")
    for number_of, at in ((3, 2), (2, 1), (1, 0)):
        words.get_by_text(f"evaluation {number_of} of 3").wait_for()
        # the parts of the pane come one after the other
        def cells():
            return [[int(each.replace("·", "0")) for each in row] for row in table.evaluate(
                "table => [...table.querySelectorAll('tbody tr')].map(row => "
                "[...row.querySelectorAll('td')].map(each => each.innerText))")]
        assert later(lambda: cells() == truth["matrix"][at]), cells()
        def found():
            return [int(re.search(r"#(\d+)", each)[1])
                    for each in panel.locator(".gallery figcaption").all_inner_texts()]
        assert later(lambda: found() == truth["worst"][at]), found()
        def sizes():
            return panel.locator(
                ".gallery img").evaluate_all(
                    "images => images.map(each => [each.complete, each.naturalWidth, "
                    "each.naturalHeight])")
        assert later(lambda: sizes() == [[True, 8, 8]] * 4), sizes()
        if at:
            words.get_by_role("button", name="Earlier").click()
    assert later(words.get_by_role("button", name="Earlier").is_disabled)
    words.get_by_role("button", name="Later").focus()
    page.keyboard.press("Enter")
    words.get_by_text("evaluation 2 of 3").wait_for()
    page.set_viewport_size({"width": 800, "height": 1200})  # of which the panel has less than half
    for name in ("Data", "Layers"):
        panel.locator(".tab", has_text=name).click()
        pane = panel.locator(".tnb-data" if name == "Data" else ".tnb-layers")
        pane.wait_for()
        for each in (pane, panel.locator(".tnb-tabs")):
            fits = lambda: each.evaluate("each => each.scrollWidth <= each.clientWidth")
            assert later(fits), name
    assert lab.problems == []
