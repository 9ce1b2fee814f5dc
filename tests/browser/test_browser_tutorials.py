"""Each tutorial in JupyterLab, all cells, and all of them once more, as people do."""

import json
import os
import shutil
from pathlib import Path

import pytest
from live_page import settle

pytestmark = [pytest.mark.browser, pytest.mark.long]
ROOT = Path(__file__).parents[2]
PAGES = ROOT / "nbs" / "guide" / "tutorials"
TUTORIALS = sorted(path.stem for path in PAGES.glob("*.ipynb")
                   if any(cell["cell_type"] == "code" and "".join(cell["source"]).strip()
                          for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]))
CLOSES = {"train_in_a_script"}  # its panel is closed by a later cell, which is a part of it


@pytest.mark.parametrize("name", TUTORIALS)
def test_all_cells_run_twice(name, lab, jupyterlab):
    """No error, nothing that the page reports, and each run that shows a panel shows it drawn."""
    for folder in ("examples", "docs/images", "nbs/guide/tutorials"):  # as in a clone
        shutil.copytree(ROOT / folder, jupyterlab.folder / folder, dirs_exist_ok=True)
    page = f"nbs/guide/tutorials/{name}.ipynb"
    lab.open(page)
    for number in (1, 2):
        lab.wait_kernel_ready()
        lab.run_all()
        lab.wait_cell(seconds=900)
        lab.save()
        cells = jupyterlab.read_notebook(page).cells
        outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
        assert [each for each in outputs if each.output_type == "error"] == []
        told = [each.text for each in outputs if each.output_type == "stream"
                and each.name == "stderr"]
        assert told == [], number
        assert lab.problems == [] and lab.page.get_by_text("Error displaying").count() == 0
        for index in range(len(cells)):  # a notebook draws the cells that are in sight
            lab.page.evaluate("index => { const panel = jupyterapp.shell.currentWidget; "
                              "panel.content.scrollToItem(index); }", index)
            if "widget-view" in json.dumps(cells[index].get("outputs", [])) and name not in CLOSES:
                # where a later cell has taken the run's name, the picture of its panel stays
                shown = ".tnb:not(.is-waiting), .tnb-kept, .jupyter-widgets"
                lab.cell(index).locator(shown).first.wait_for()
                if folder := os.environ.get("TRAINER_NB_PICTURES"):
                    settle(lab.page, 500)
                    lab.screenshot(Path(folder, f"{name}-{number}-{index}.png"))
