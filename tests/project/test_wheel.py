"""The built wheel in an empty environment: it trains without the tools that made it.

No network: what the wheel declares is linked from the development environment, nothing else is.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / "trainer_nb"
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", "*.egg-info", "_proc", "_docs", "build", "dist", ".hypothesis",
    ".pytest_cache", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints", "runs", "outputs")


def run(*command, **options):
    """Run a command and return what it printed; show that where it fails."""
    place = {name: value for name, value in os.environ.items()
             if not name.startswith(("PYTHON", "VIRTUAL_ENV"))} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([str(part) for part in command], text=True, env=place,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


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
def built(tmp_path_factory):
    """The folder with both distributions of a copy of the project, the wheel made from the other.

    The copy leaves no build folder here."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "source", ignore=NOT_COPIED)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "source")
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


@pytest.fixture(scope="module")
def python(wheel, metadata, tmp_path_factory):
    """Python with the wheel, what the wheel declares, and scikit-learn for the data."""
    folder = tmp_path_factory.mktemp("environment") / "empty"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-deps",
        "--no-index", wheel)
    declared = map(Requirement, re.findall(r"^Requires-Dist: (.*)", metadata, re.MULTILINE))
    wanted = [each for each in declared if applies(each, [""])] + [Requirement("scikit-learn")]
    for name in closure(wanted):
        link(name, next((folder / "lib").glob("python*/site-packages")))
    return folder / "bin" / "python"


def test_the_wheel_holds_every_file_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("trainer_nb/")}
    assert held == {path.relative_to(ROOT).as_posix() for path in LIB.rglob("*")
                    if path.suffix in {".py", ".css", ".js", ".html", ".gz", ".typed"}}


def test_the_source_distribution_holds_notebooks_and_tests(built):
    """Every file that is needed to change the package, and none that a run left behind."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        held = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}
    inner = [path.relative_to(ROOT) for name in ("nbs", "tests", "scripts", "examples", "docs")
             for path in (ROOT / name).rglob("*")
             if path.suffix in {".ipynb", ".py", ".toml", ".txt", ".png"}]
    files = {path.as_posix() for path in inner if not any(part[0] in "._" for part in path.parts)}
    assert files - held == set()
    assert {"settings.ini", "setup.py", "Makefile", "CHANGELOG.md", "LICENSE"} <= held
    assert [name for name in held if "__pycache__" in name or name.startswith("_")] == [
        "_quarto.yml"]


def test_the_index_takes_both_distributions_and_shows_no_dead_link(built, metadata):
    """With every warning an error: the description is shown as Markdown."""
    run(sys.executable, "-m", "twine", "check", "--strict", *built.glob("trainer_nb-*.*"))
    assert "pip install trainer_nb" in metadata
    assert re.findall(r"\]\((?!\w+:|#)[^)]*\)", metadata) == []


def test_links_of_the_index_are_whole_with_an_address_and_words_without():
    spec = importlib.util.spec_from_file_location("setup_file", ROOT / "setup.py")
    spec.loader.exec_module(made := importlib.util.module_from_spec(spec))
    page = "![a](docs/a.png)\n\n[b](nbs/b.ipynb) [c](https://d.e) [f](#g)\n"
    code = "https://example.org/some/body"
    assert made.readable_elsewhere(page, code, "main") == (
        f"![a]({code}/raw/main/docs/a.png)\n\n[b]({code}/blob/main/nbs/b.ipynb) "
        "[c](https://d.e) [f](#g)\n")
    assert made.readable_elsewhere(page, "", "main") == "\n\nb [c](https://d.e) [f](#g)\n"
    assert made.addresses("", "", "main") == {}
    assert made.addresses(code, "https://f.g/h/", "main")["Documentation"] == "https://f.g/h/"


def test_every_module_imports_without_the_tools_of_development(python):
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts)
               for path in LIB.rglob("*.py") if path.stem != "__init__"]
    code = f"""
from importlib import import_module, util
for name in {modules}: import_module(name)
print(import_module("trainer_nb").__file__)
print([each for each in ("nbdev", "execnb", "jupyterlab", "pytest") if util.find_spec(each)])"""
    file, tools = run(python, "-I", "-c", code).splitlines()
    assert Path(file).is_relative_to(python.parent.parent) and tools == "[]"


def test_the_digits_train_there(python, tmp_path):
    script = shutil.copy(ROOT / "examples" / "digits.py", tmp_path)
    print(run(python, "-I", script, cwd=tmp_path, timeout=300))
