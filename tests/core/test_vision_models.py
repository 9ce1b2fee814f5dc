"""Networks of timm and torchvision, with transforms drawn in workers: the lines of the page
*Images* run as they stand there, and a run that stops in mid-epoch goes on bit for bit."""

import json
import subprocess
from pathlib import Path

import pytest
from jupyter_server import ENVIRONMENTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "nbs" / "guide" / "real_work" / "images.ipynb"
PYTHON = ENVIRONMENTS / ".venv-vision" / "bin" / "python"
# The operators of torchvision are compiled for one build of torch; beside another one they cannot
# be loaded, and its description of them cannot be imported. Networks and transforms need neither.
OPERATORS = """
import sys, types
try:
    import torchvision
except RuntimeError as error:
    assert "torchvision::nms does not exist" in str(error), error
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("without operators")
"""
COMPARE = """
import torchvision

def make_torchvision_trainer():
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    return Trainer(model, train_dl=DataLoader(augmented, 50, shuffle=True, num_workers=2),
                   loss_fn=nn.CrossEntropyLoss(), sched="one_cycle", ema=0.98, epochs=2,
                   optim=torch.optim.AdamW(model.parameters(), lr=2e-3), hooks=[MixupHook(0.2)],
                   seed=0, seed_samples=True, device="cpu", progress=False)

few = len(train) < 500
for make in (make_timm_trainer, make_torchvision_trainer)[:1 if few else 2]:
    whole, first, second = make(), make(), make()
    whole.fit()
    first.step(len(whole.train_dl) + min(3, len(whole.train_dl) - 1))
    second.load_state_dict(first.state_dict())
    second.fit()
    sets = [[*run.model.state_dict().values(), *run.get_hook(EMAHook).ema_model.parameters()]
            for run in (whole, second)]
    same = all(torch.equal(*pair) for pair in zip(*sets, strict=True))
    fell = whole.history["train/loss"][-1] < whole.history["train/loss"][0]
    print(make.__name__, type(whole.model).__name__, bool(whole.exact), same,
          bool(fell) or few)
"""
FEWER = "train, valid = train[:60], valid[:20]"


def lines_of_the_page():
    """Its cells up to the network of timm, and the block of lines that stands there."""
    code = []
    for cell in json.loads(PAGE.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if text.startswith("## With timm and torchvision"):
            return "\n".join(code), text.partition("```python\n")[2].partition("```")[0]
        made = ("import copy", "pixels, labels", "class MixupHook")
        if cell["cell_type"] == "code" and text.startswith(made):
            code.append(text)
        if "def accuracy(" in text:
            code.append("def accuracy(" + text.partition("def accuracy(")[2].partition("\n\n")[0])
    raise AssertionError("the page has no such section")


@pytest.mark.skipif(not PYTHON.exists(), reason="`make env` makes .venv-vision")
@pytest.mark.parametrize("fewer", [FEWER, pytest.param("", marks=pytest.mark.long)],
                         ids=["few pictures", "all pictures"])
def test_the_lines_of_the_page_run_and_go_on_bit_for_bit(tmp_path, fewer):
    """With workers that draw the crops, mixup, an average and a schedule."""
    before, block = lines_of_the_page()
    program = tmp_path / "vision.py"
    program.write_text("\n".join([OPERATORS, before, "torch.set_num_threads(1)", fewer, block,
                                  COMPARE]))
    done = subprocess.run([PYTHON, program], cwd=tmp_path, capture_output=True, text=True,
                          timeout=900, check=False, env={"PYTHONPATH": str(ROOT), "PATH": ""})
    assert done.returncode == 0, done.stderr[-3000:]
    printed = done.stdout.splitlines()
    wanted = [f"make_{name}_trainer ResNet True True True" for name in ("timm", "torchvision")]
    assert "valid/accuracy" in printed[0] and printed[1:] == (wanted[:1] if fewer else wanted)
