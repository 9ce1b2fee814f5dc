"""The workflows are audited by zizmor: nothing that a stranger writes is run in them."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def audit(folder):
    """Of the workflows in a folder, without the network."""
    zizmor = Path(sys.executable).with_name("zizmor")
    return subprocess.run([zizmor, "--offline", "--no-progress", folder], capture_output=True,
                          text=True)


def test_nothing_is_found_in_the_workflows():
    done = audit(ROOT / ".github")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No findings to report" in done.stdout + done.stderr


def test_a_planted_mistake_is_found(tmp_path):
    """A title of somebody's pull request in a command."""
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    workflow = tmp_path / ".github" / "workflows" / "test.yml"
    text = workflow.read_text()
    assert "run: .ci/run" in text
    workflow.write_text(text.replace(
        "run: .ci/run", "run: echo ${{ github.event.pull_request.title }} && .ci/run"))
    done = audit(tmp_path / ".github")
    assert done.returncode != 0 and "template-injection" in done.stdout
