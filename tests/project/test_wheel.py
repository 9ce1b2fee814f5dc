"""The built wheel in an empty environment: it trains without the tools that made it.

No network: what the wheel declares is linked from the development environment, nothing else is.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / "trainer_nb"
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
}


def run(*command, **options):
    """Run a command and return what it printed; show that where it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        text=True,
        env=ENVIRONMENT | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build_wheel(folder):
    """Build the wheel from a copy of the project, which leaves no build folder here."""
    source = folder / "source"
    shutil.copytree(LIB, source / "trainer_nb", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source)
    return next(folder.glob("*.whl"))


def applies(requirement, extras):
    """Whether a requirement holds on this machine, with these extras of the package that has it."""
    return requirement.marker is None or any(
        requirement.marker.evaluate({"extra": extra}) for extra in extras or [""]
    )


def closure(requirements):
    """The installed distributions that `requirements` bring along."""
    found, waiting = {}, list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        seen = found.setdefault(name, set())
        extras = {"", *requirement.extras} - seen
        seen |= extras
        listed = [Requirement(text) for text in distribution(name).requires or []] if extras else []
        waiting += [each for each in listed if applies(each, extras)]
    return sorted(found)


def link(name, site_packages):
    """Link an installed distribution's files into another environment."""
    installed = distribution(name)
    for top in {Path(file).parts[0] for file in installed.files} - {"..", "__pycache__"}:
        target = site_packages / top
        if not target.exists():
            target.symlink_to(installed.locate_file(top))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Python with the wheel, what the wheel declares, and scikit-learn for the data."""
    folder = tmp_path_factory.mktemp("environment") / "empty"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "bin" / "python",
        "install",
        "--no-deps",
        "--no-index",
        wheel,
    )
    site_packages = next((folder / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    declared = [
        Requirement(line.partition(": ")[2]) for line in lines if line.startswith("Requires-Dist: ")
    ]
    wanted = [each for each in declared if applies(each, [""])] + [Requirement("scikit-learn")]
    for name in closure(wanted):
        link(name, site_packages)
    return folder / "bin" / "python"


def test_the_wheel_holds_every_file_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("trainer_nb/")}
    files = {
        path.relative_to(ROOT).as_posix()
        for path in LIB.rglob("*")
        if path.suffix in {".py", ".css", ".js", ".html"}
    }
    assert held == files


@pytest.mark.parametrize("name", ["nbdev", "execnb", "jupyterlab", "pytest"])
def test_tools_of_development_are_not_there(python, name):
    code = f"import importlib.util as util; print(util.find_spec('{name}'))"
    assert run(python, "-I", "-c", code) == "None\n"


def test_every_module_imports(python):
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in LIB.rglob("*.py")
        if path.stem != "__init__"
    ]
    code = f"from importlib import import_module\nfor name in {modules}: import_module(name)\n"
    code += "import trainer_nb; print(trainer_nb.__file__)"
    assert Path(run(python, "-I", "-c", code).strip()).is_relative_to(python.parent.parent)


def test_the_digits_train_there(python, tmp_path):
    script = shutil.copy(ROOT / "examples" / "digits.py", tmp_path)
    print(run(python, "-I", script, cwd=tmp_path, timeout=300))
