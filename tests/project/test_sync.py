"""Modules and README.md are those that the notebooks make, and the notebooks are clean."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def test_the_export_is_in_step_with_the_notebooks():
    """On a copy, so that nothing here changes: `scripts/notebooks.py check`."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "notebooks.py", "check"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
