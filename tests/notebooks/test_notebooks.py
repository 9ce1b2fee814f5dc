"""Every notebook runs, cell by cell, and makes the outputs that are stored in it.

`.venv/bin/python scripts/notebooks.py test [notebooks or folders]` runs some of them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import notebooks

pytestmark = [pytest.mark.slow, pytest.mark.notebook]

# what most notebooks import, imported once before the forks
MODULES = (*warm.PRELOADED, "nbdev.test", "IPython.display", "ipywidgets", "plotly.graph_objects",
           "sklearn.datasets")
MOST = 600  # seconds: a notebook that waits for ever is ended
# folders in which notebooks take longest come first, so that both processes of the tests are
# busy until the end
FIRST = ("real_work", "tutorials", "coming_from", "how_to")


# Pages that train real networks, or start many processes one after the other. In `make test` their
# cells run up to the first that contains this text; `make long` runs them whole.
LONG = {
    "real_work/transformer": ".fit(", "real_work/language_model": ".fit(",
    "real_work/images": ".fit(", "real_work/lora": ".fit(",
    "real_work/gan": ".fit(", "real_work/search": ".fit(",
    "tutorials/pause_crash_resume": "def run(",
    "tutorials/train_in_a_script": '"--epochs", 6, workspace',
    "tutorials/several_processes": 'launch("digits.py"',
    "tutorials/rewind_and_replay": 'program = f"""import torch',
    "tutorials/several_optimizers": "def near_centres(points)",
    "explanation/what_exact_means": "def distances(steps)",
    "hooks/alerts": "def digits_run(model",
    "remote/remote_run": "process = train(",
    "remote/prove": "again = repeat(",
    "remote/mcp": "watched = launch(",
}


def cases():
    """(path, text at which the run ends) of every notebook, or of those that the command line
    names; long ones first."""
    named = os.environ.get("TRAINER_NB_NOTEBOOKS")
    found = notebooks.find_notebooks(named.split(os.pathsep) if named else ())
    for path in sorted(found, key=lambda path: (path.parent.name not in FIRST, path)):
        name, short = notebooks.show(path), LONG.get(f"{path.parent.name}/{path.stem}")
        if short and not named:
            yield pytest.param(path, short, id=f"{name} up to {short}")
        yield pytest.param(path, "", id=name,
                           marks=[pytest.mark.long] if short and not named else [])


@pytest.mark.parametrize(("path", "until"), list(cases()))
def test_a_notebook_runs_and_makes_what_is_stored(path, until):
    command = [sys.executable, str(ROOT / "scripts" / "notebooks.py"), "test_here", str(path),
               "--flags", os.environ.get("TRAINER_NB_NOTEBOOK_FLAGS", ""), "--until", until]
    # a warm process has one thread, and so have those that a page starts and compares itself with
    done = warm.run(command, modules=MODULES, quick_end=True, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True, cwd=ROOT, timeout=MOST,
                    env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout
