"""The panes of journal and inspect in a real page:
text boxes, buttons, and a script that is copied."""

import pytest
from live_page import later, texts_of

from trainer_nb.panel.journal_pane import SHOWN

PANES = """
import torch
from trainer_nb import Trainer
from trainer_nb.panel.inspect_pane import InspectPane
from trainer_nb.panel.journal_pane import JournalPane
x = torch.randn(64, 4)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1]), batch_size=8)
trainer = Trainer(torch.nn.Linear(4, 1), train_dl=data, loss_fn=torch.nn.MSELoss(), epochs=1,
                  device="cpu",
                  progress=False)
journal, inspect = JournalPane(trainer.view), InspectPane(trainer.view)
"""


@pytest.mark.browser
def test_enter_and_the_button_hand_a_text_over_and_leaving_the_box_does_not(lab, jupyterlab):
    said = "print([entry.new for entry in trainer.journal])"
    jupyterlab.write_notebook("panes.ipynb", [PANES, "journal", "inspect", said])
    lab.open("panes.ipynb")
    for cell in range(3):
        lab.run_cell(cell)
        lab.wait_cell(cell)
    note, place = (lab.cell(cell).locator(".tnb-entry input") for cell in (1, 2))
    def kept():
        lab.run_cell(3)
        lab.wait_cell(3)
        return lab.output_text(3)
    note.click()
    lab.page.keyboard.type("half a no")
    place.click()  # leaves it
    lab.page.keyboard.type("loss > 1")
    note.click()
    assert kept() == "[]"
    assert note.input_value() == "half a no" and place.input_value() == "loss > 1"
    note.press("End")
    lab.page.keyboard.type("te")
    note.press("Enter")
    lab.cell(1).get_by_text("“half a note”").wait_for()
    assert later(lambda: note.input_value() == "")
    lab.page.keyboard.type("another")
    lab.cell(1).get_by_role("button", name="Add note").click()
    lab.cell(1).get_by_text("“another”").wait_for()
    assert kept() == "['half a note', 'another']" and place.input_value() == "loss > 1"
    place.press("End")
    lab.page.keyboard.type("0")
    place.press("Enter")
    lab.cell(2).get_by_text("loss > 10", exact=True).wait_for()
    place.fill("loss >")
    place.press("Enter")
    lab.cell(2).locator(".hint").get_by_text("write a name, a comparison").wait_for()
    assert place.input_value() == "loss >"
    lab.cell(2).get_by_title("No longer pause when loss > 10").click()
    lab.cell(2).get_by_text("loss > 10", exact=True).wait_for(state="detached")


@pytest.mark.browser
def test_the_script_is_copied_or_selected(lab, jupyterlab):
    jupyterlab.write_notebook("copy.ipynb",
                              [PANES, "for n in range(30): trainer.tune(lr=0.01 * n)\njournal"])
    lab.open("copy.ipynb")
    for cell in range(2):
        lab.run_cell(cell)
        lab.wait_cell(cell)
    code, button = (lab.cell(1).locator("pre.code"),
                    lab.cell(1).get_by_role("button", name="Copy as script"))
    assert later(lambda: "more lines, copied too" in code.inner_text())
    assert code.inner_text().count("\n") == SHOWN + 3
    lab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    texts = texts_of(lab.page, ".jp-Cell button")  # what it says it says for three seconds
    button.click()
    assert later(lambda: any("Copied" in text for text in texts()))
    copied = lab.page.evaluate("() => navigator.clipboard.readText()")
    assert copied.count("trainer.tune(lr=") == 30 and copied.endswith("trainer.fit(epochs=1)\n")
    lab.page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
    lab.cell(1).locator("button", has_text="Copied").or_(button).first.click()
    assert later(lambda: any("Press Ctrl+C" in text for text in texts()))
    assert lab.page.evaluate("() => getSelection().toString()").count("trainer.tune(lr=") == 30
    lab.page.evaluate("() => delete navigator.clipboard.writeText")


FOLDED = """
from trainer_nb import AlertsHook
trainer.hooks.add(AlertsHook())
trainer.controls
"""


@pytest.mark.browser
def test_rows_that_are_folded_or_not_looked_for_are_not_on_the_page(lab):
    lab.show("folded.ipynb", [PANES, FOLDED])
    panel = lab.cell(1).locator(".tnb").first
    names = panel.locator(".tnb-row:visible .nm")
    panel.locator(".tnb-row").first.wait_for()
    def shown():
        return names.all_inner_texts()
    assert later(lambda: {"lr", "eval_every"} <= set(shown())) and "spike" not in shown()
    panel.get_by_role("button", name="Show or hide alerts").click()
    names.get_by_text("spike", exact=True).wait_for()
    panel.get_by_role("button", name="Show or hide Loop").click()
    names.get_by_text("eval_every", exact=True).wait_for(state="detached")
    assert "spike" in names.all_inner_texts()
    search = panel.get_by_placeholder("Search")
    search.fill("every")
    assert later(lambda: set(names.all_inner_texts()) == {"eval_every", "every"})
    search.fill("")
    names.get_by_text("spike", exact=True).wait_for()
