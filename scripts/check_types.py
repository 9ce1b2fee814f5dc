"""Check the types of the package's own bodies by mypy: `python scripts/check_types.py`.

mypy does not follow `@patch`, by which a class is told in several cells. So it reads a copy of
the package in which the patched functions stand in their class, and its messages are mapped back
to the lines of the exported modules. The settings are mypy's in `pyproject.toml`.
"""

import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from stubs import name_of, patch_of

ROOT = Path(__file__).resolve().parent.parent
LIB = ROOT / "trainer_nb"
KINDS = {"as_prop": "@property", "cls_method": "@classmethod"}


def method_lines(node, lines):
    """The (number, text) of the lines of a patched function, as it stands in its class."""
    patch = patch_of(node)
    numbers = range(node.decorator_list[0].lineno, node.end_lineno + 1)
    found = {number: f"    {lines[number - 1]}".rstrip() for number in numbers}
    kinds = [KINDS[each.arg] for each in getattr(patch, "keywords", []) if each.arg in KINDS]
    found[patch.lineno] = f"    {kinds[0]}" if kinds else ""
    me, first = node.args.args[0], node.args.args[0].lineno
    found[first] = found[first].replace(f"{me.arg}: {ast.unparse(me.annotation)}", me.arg, 1)
    return list(found.items())


def whole_classes(text):
    """A module in which patched functions stand in their class, and the old number of each line."""
    tree, lines = ast.parse(text), text.split("\n")
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    added, moved = {}, set()
    for node in tree.body:
        if patch_of(node):
            owner = classes[name_of(node.args.args[0].annotation)]
            found = method_lines(node, lines)
            added.setdefault(owner.end_lineno, []).extend(found)
            moved |= {number for number, _ in found}
    new = []
    for number, line in enumerate(lines, 1):
        new += [] if number in moved else [(number, line)]
        new += added.get(number, [])
    return "\n".join(line for _, line in new), [number for number, _ in new]


def write_copy(package, folder):
    """A copy of the package without stubs; relative path -> the old number of each line."""
    numbers = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package.parent)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text, numbers[str(name)] = whole_classes(path.read_text(encoding="utf-8"))
        (folder / name).write_text(text, encoding="utf-8")
    return numbers


def mapped(report, numbers):
    """mypy's report with the line numbers of the exported modules."""
    def old(found):
        path, number = found[1], int(found[2])
        return f"{path}:{numbers[path][number - 1] if path in numbers else number}:"

    return re.sub(r"^([^:\n]+):(\d+):", old, report, flags=re.MULTILINE)


def check(package=LIB, settings=ROOT / "pyproject.toml", cache=ROOT / ".mypy_cache"):
    """mypy's exit code and report for a package that is told in several cells."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = write_copy(package, Path(folder))
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file", settings, "--cache-dir", cache,
             package.name], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, mapped(done.stdout, numbers) + done.stderr


if __name__ == "__main__":
    code, report = check()
    print(report, end="")
    sys.exit(code)
