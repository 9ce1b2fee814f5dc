"""Front ends by their messages: clicks on the main shell channel, and places where a panel cannot be shown."""

import time

import pytest
from kernel_client import client_of, told
from live_page import SETUP, later

SLIDER = "FloatLogSliderModel"


@pytest.fixture
def front_end(request, tmp_path):
    """A client of a new kernel that sends everything on the shell channel, as VS Code does."""
    with client_of(request.param, tmp_path) as client:
        client.folder = tmp_path
        client.run(SETUP)
        yield client


KERNELS = [
    "python3",
    pytest.param("ipykernel-6.31", marks=pytest.mark.long),
    pytest.param("ipykernel-7.3", marks=pytest.mark.long),
    pytest.param("colab", marks=pytest.mark.long),
]


@pytest.mark.parametrize("front_end", KERNELS, indirect=True)
def test_clicks_on_the_shell_channel_act_while_the_cell_runs(front_end):
    """Pause, a slider, a box, Resume and Stop reach `trainer.fit()`; cells sent meanwhile run after it, in order."""
    read = lambda: told(front_end.folder)
    cell = front_end.begin("print(trainer.fit().status)")
    assert later(lambda: read()["step"] > 20)
    front_end.show()
    front_end.click("Pause")
    assert front_end.until(lambda: front_end.find(_model_name="ButtonModel", description="Resume"))
    held = read()["step"]
    time.sleep(0.5)
    assert read()["step"] == held and not front_end.replied(cell)
    queued = [front_end.client.execute(f"print({number}, trainer.state)") for number in range(2)]
    front_end.click("Resume")
    assert later(lambda: read()["step"] > held + 5)

    slider = front_end.find(_model_name=SLIDER, value=0.01)[0]
    front_end.set(slider, value=0.002)
    assert later(lambda: read()["rate"] == 0.002), read()
    assert front_end.until(lambda: front_end.find(_model_name="TextModel", value="0.002"))
    box = front_end.find(_model_name="TextModel", value="0.002")[0]
    front_end.set(box, value="4e-3")
    assert later(lambda: read()["rate"] == 0.004), read()
    assert [entry[1:] for entry in read()["journal"] if entry[0] == "lr"] == [[0.002, "widget"], [0.004, "widget"]]
    assert not any(front_end.replied(each) for each in (cell, *queued)), "a cell overtook the run"

    front_end.click("Stop")
    assert front_end.finish(cell).strip().endswith("stopped")
    assert [front_end.finish(each).strip() for each in queued] == ["0 stopped", "1 stopped"]
