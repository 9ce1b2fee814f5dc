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


NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", "*.egg-info", "_proc", "_docs", "build", "dist", ".hypothesis",
    ".pytest_cache", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints", "runs", "outputs")


def build(folder):
    """The folder with both distributions of a copy of the project, the wheel made from the other.

    The copy leaves no build folder here."""
    shutil.copytree(ROOT, folder / "source", ignore=NOT_COPIED)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "source")
    return folder


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
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def sdist(built):
    return next(built.glob("*.tar.gz"))


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
        if path.suffix in {".py", ".pyi", ".css", ".js", ".html", ".typed"}
    }
    assert held == files


def test_the_source_distribution_holds_notebooks_and_tests(sdist):
    """Every file that is needed to change the package, and none that a run left behind."""
    with tarfile.open(sdist) as archive:
        held = {Path(each.name).relative_to(Path(each.name).parts[0]).as_posix()
                for each in archive.getmembers() if each.isfile()}
    folders = ("nbs", "tests", "scripts", "examples", "requirements", "docs/images", "trainer_nb")
    files = {path.relative_to(ROOT).as_posix() for name in folders
             for path in (ROOT / name).rglob("*") if path.is_file()
             and path.suffix in {".ipynb", ".py", ".toml", ".txt", ".png", ".yaml"}
             and not any(part.startswith((".", "_")) and part != "_modidx.py"
                         for part in path.relative_to(ROOT).parts if part != "__init__.py"
                         and part != "__main__.py")}
    assert files - held == set()
    assert {"settings.ini", "setup.py", "Makefile", "CHANGELOG.md", "LICENSE"} <= held
    assert [name for name in held if "__pycache__" in name or name.startswith("_")] == [
        "_quarto.yml"]


def test_the_index_takes_both_distributions(built, wheel, sdist):
    """With every warning an error: the description is shown as Markdown."""
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)


def test_the_description_has_no_link_that_is_dead_on_the_index(wheel):
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(next(name for name in archive.namelist()
                                 if name.endswith("METADATA"))).decode()
    code = setup_file().CODE
    assert "pip install trainer_nb" in text
    assert re.findall(r"\]\((?!\w+:|#)[^)]*\)", text) == []
    assert ("Project-URL" in text) == bool(code)


def setup_file():
    """setup.py as a module."""
    spec = importlib.util.spec_from_file_location("setup_file", ROOT / "setup.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def test_links_are_whole_with_an_address_and_words_without():
    page = "![a](docs/a.png)\n\n[b](nbs/b.ipynb) [c](https://d.e) [f](#g)\n"
    made, code = setup_file(), "https://example.org/some/body"
    assert made.readable_elsewhere(page, code, "main") == (
        f"![a]({code}/raw/main/docs/a.png)\n\n[b]({code}/blob/main/nbs/b.ipynb) "
        "[c](https://d.e) [f](#g)\n")
    assert made.readable_elsewhere(page, "", "main") == "\n\nb [c](https://d.e) [f](#g)\n"
    assert made.addresses("", "", "main") == {}
    assert made.addresses(code, "https://f.g/h/", "main")["Documentation"] == "https://f.g/h/"


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
