"""Alerts in JupyterLab: the message line says the newest while the cell runs, its button opens the
tab, and nothing moves."""

import os
from pathlib import Path

import pytest
from live_page import Live, later

pytestmark = pytest.mark.browser

SETUP = """
import time
from pathlib import Path
import torch
from trainer_nb import AlertsHook, LambdaHook, Trainer
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(256, 4)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)),
                                   batch_size=16)
def poison(trainer):
    time.sleep(0.004)
    inputs, targets = trainer.batch
    if Path("poison").exists():
        trainer.batch = inputs, targets + 30
trainer = Trainer(torch.nn.Linear(4, 1), train_dl=data, loss_fn=torch.nn.MSELoss(), epochs=50_000,
                  device="cpu",
                  hooks=[AlertsHook(data_share=None, hook_share=None, divergence=None,
                                    patience=10**9),  # a busy machine may see a plateau
                         LambdaHook(name="poison", before_batch=poison)])
"""
PLACES = """() => ['.tnb-head', '.tnb-controls', '.tnb-message', '.tnb-main', '.tnb-tabs']
    .map(name => document.querySelector(`.tnb ${name}`)).map(part => [part.offsetTop, part.offsetHeight])"""  # noqa: E501


@pytest.mark.long  # tests/hooks/test_alerts; test_browser_panel sees that nothing jumps
@pytest.mark.parametrize("width", [1300, pytest.param(620, marks=pytest.mark.long)])
def test_an_alert_is_seen_and_moves_nothing(jupyterlab, browser, width):
    """Title and sentence in the message line, all of it in the tab;
    the parts stay where they are, also when it is over."""
    with jupyterlab.new_page(browser, width=width, height=1250) as lab:
        run = Live(lab, jupyterlab, ["trainer.fit().status"], setup=SETUP)
        lab.run_cell(1)
        page = lab.page
        message = lab.cell(1).locator(".tnb .message")
        message.wait_for()
        lab.cell(1).get_by_role("tab", name="Alerts 0").wait_for()
        assert later(lambda: run.shown_step() > 200)  # several looks: a spike needs steps before it
        before = page.evaluate(PLACES)
        poison = Path(jupyterlab.folder, "poison")
        poison.touch()
        name = message.locator(".alert-name")
        name.wait_for()
        assert name.inner_text() == "Loss spike" and "train/loss rose from" in message.inner_text()
        assert "lower the rate" in message.locator("span[title]").first.get_attribute("title")
        assert page.evaluate(PLACES) == before
        lab.cell(1).get_by_role("button", name="Alerts", exact=True).click()
        row = lab.cell(1).locator(".tnb-alerts tbody tr").first
        row.wait_for()
        assert "goes on" in row.inner_text()
        assert "trainer.tune(lr_scale=0.5)" in row.locator(".advice code").all_inner_texts()
        box, outer = row.bounding_box(), lab.cell(1).locator(".tnb-alerts").bounding_box()
        assert box["width"] <= outer["width"] + 1  # nothing runs out of the panel
        row.scroll_into_view_if_needed()
        if folder := os.environ.get("TRAINER_NB_PICTURES"):
            lab.screenshot(Path(folder, f"alerts-{width}.png"))
        poison.unlink()
        assert later(lambda: "until" in row.inner_text())  # the spike is over
        assert later(lambda: "Loss spike" not in message.inner_text())
        assert page.evaluate(PLACES) == before
        lab.interrupt()
        assert later(lambda: not lab.is_running(1)) and lab.problems == []
