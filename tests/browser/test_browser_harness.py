"""The harness itself: a cell runs, a real click reaches the kernel, a save reaches the disk."""

import pytest
from jupyter_server import JupyterServer
from live_page import later

pytestmark = pytest.mark.browser

BUTTON = """
import ipywidgets
count = ipywidgets.Label("clicked 0")
button = ipywidgets.Button(description="Click me")
def clicked(_):
    count.value = f"clicked {int(count.value.split()[1]) + 1}"
button.on_click(clicked)
ipywidgets.VBox([button, count])
"""


def click_and_save(server, page):
    server.write_notebook("button.ipynb", [BUTTON, "print(count.value)"], kernel="cold")
    page.open("button.ipynb")
    page.run_cell(0)
    page.wait_cell(0)
    page.cell(0).get_by_role("button", name="Click me").click()
    page.wait_text(0, "clicked 1")
    page.run_cell(1)
    page.wait_cell(1)
    assert page.output_text(1) == "clicked 1"
    page.save()
    assert server.read_notebook("button.ipynb").cells[1].outputs[0].text == "clicked 1\n"
    page.reload()
    page.wait_kernel_ready()
    page.wait_text(1, "clicked 1")


def test_a_click_in_jupyterlab(jupyterlab, lab):
    click_and_save(jupyterlab, lab)
    assert lab.problems == []


@pytest.mark.long  # test_browser_live clicks there, too
def test_a_click_in_notebook_7(tmp_path, browser):
    with (
        JupyterServer(tmp_path / "notebook", app="notebook") as server,
        server.new_page(browser) as page,
    ):
        click_and_save(server, page)


def test_a_running_cell_is_seen_and_interrupted(jupyterlab, lab):
    jupyterlab.write_notebook(
        "long.ipynb", ["import time\nprint('started')\nwhile True: time.sleep(0.05)"]
    )
    lab.open("long.ipynb")
    lab.run_cell(0)
    lab.wait_text(0, "started")
    assert lab.is_running(0)
    lab.interrupt()
    lab.page.wait_for_function("() => window.runs[0] !== 'running'")
    assert later(lambda: lab.outputs(0)[-1].get("ename") == "KeyboardInterrupt")
