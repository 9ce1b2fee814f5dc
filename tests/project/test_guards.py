"""How the package is built: no towers of classes, no slices of one, one writer for an attribute,
parts that do not look at their owner."""

import ast
import re
from collections import defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path

import nbformat
import pytest

import trainer_nb
from trainer_nb import Trainer

LIB = Path(trainer_nb.__file__).parent
MODULES = sorted(path for path in LIB.rglob("*.py") if path.stem not in ("__init__", "_modidx"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(path for path in (ROOT / "nbs").rglob("*.ipynb")
                   if not any(part.startswith((".", "_")) for part in path.relative_to(ROOT).parts))
OTHER_CODE = [ROOT / name for name in ("Makefile", ".ci/run", "scripts/install_chromium")]
OTHER_CODE += sorted(path for folder in ("tests", "benchmarks", "examples", "scripts")
                     for path in (ROOT / folder).rglob("*.py"))
LONGEST_LINE = 100
LONGEST_FUNCTION = 30  # lines of the body: signature and docstring do not count
LONGEST_CLASS = 150
CORE = [path for path in MODULES if path.parent.name == "core"]


def module_name(path):
    return ".".join(path.relative_to(LIB.parent).with_suffix("").parts)


def classes():
    """Every class that the package defines."""
    for path in MODULES:
        module = import_module(module_name(path))
        for node in TREES[path].body:
            if isinstance(node, ast.ClassDef):
                yield getattr(module, node.name)


def ours(cls):
    return [each for each in cls.__mro__ if each.__module__.startswith("trainer_nb.")]


def bases(node):
    return [base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
            for base in node.bases]


def functions(tree):
    return [each for each in ast.walk(tree)
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]


def patched_class(function):
    """The class that a function is patched onto; None for another one."""
    for each in function.decorator_list:
        name = each.func if isinstance(each, ast.Call) else each
        first = function.args.args[0].annotation if function.args.args else None
        if isinstance(name, ast.Name) and name.id == "patch" and isinstance(first, ast.Name):
            return first.id
    return None


def long_lines(text):
    """The numbers of the lines of more than 100 columns."""
    return [number for number, line in enumerate(text.splitlines(), 1) if len(line) > LONGEST_LINE]


def lines_of_data(text):
    """The lines of a module in a text of several lines: a page, or a program in another language.

    A docstring is none: it is read as the code is."""
    tree = ast.parse(text)
    bodies = [node.body for node in ast.walk(tree)
              if isinstance(node,
                            (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))]
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, (ast.Constant, ast.JoinedStr))
             and node.lineno != node.end_lineno and id(node) not in docstrings]
    texts = [node for node in texts if '"""' in ast.get_source_segment(text, node)]
    return {number for node in texts for number in range(node.lineno, node.end_lineno + 1)}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_lines_within_100_columns(path):
    """But for the list of names, which the export writes."""
    names = next((each for each in TREES[path].body
                  if ast.unparse(each).startswith("__all__ =")), None)
    theirs = range(names.lineno, names.end_lineno + 1) if names else ()
    found = long_lines(path.read_text(encoding="utf-8"))
    assert not [number for number in found if number not in theirs]


@pytest.mark.parametrize("path", OTHER_CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_other_code_within_100_columns(path):
    text = path.read_text(encoding="utf-8")
    data = lines_of_data(text) if path.suffix == ".py" else ()
    assert [number for number in long_lines(text) if number not in data] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_exported_cells_within_100_columns(path):
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells
             if cell.cell_type == "code" and re.search(r"^#\|\s*export", cell.source, re.MULTILINE)]
    assert [cell.splitlines()[number - 1] for cell in cells for number in long_lines(cell)] == []


def test_a_planted_long_line_is_found():
    """In code and in a docstring; in a page within a text it does not count."""
    long = "x" * 101
    page = f'PAGE = """<p>\n{long}\n"""\n'
    plants = {f'def f():\n    """Short.\n\n    {long}\n    """\n': 4, f"{page}{long} = 1\n": 4,
              f'x = ("a"\n     "{long}")\n': 2}
    for text, line in plants.items():
        assert set(long_lines(text)) - lines_of_data(text) == {line}
    assert set(long_lines(page)) - lines_of_data(page) == set()


@pytest.mark.parametrize("cls", list(classes()), ids=lambda cls: cls.__name__)
def test_no_tower(cls):
    assert len(ours(cls)) <= 3, [each.__name__ for each in ours(cls)]


def test_the_trainer_is_a_facade_of_two_classes():
    assert [cls.__name__ for cls in ours(Trainer)] == ["Trainer", "CoreTrainer"]


def test_no_slices():
    """No class has exactly one subclass and is itself neither made nor named by anybody else."""
    children = defaultdict(list)
    for path in MODULES:
        for node in TREES[path].body:
            if isinstance(node, ast.ClassDef):
                for base in bases(node):
                    children[base].append(node.name)
    own = {node.name for tree in TREES.values() for node in tree.body
           if isinstance(node, ast.ClassDef)}
    in_bases = defaultdict(int)
    for tree in TREES.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                for base in bases(node):
                    in_bases[base] += 1
    counts = defaultdict(int)
    for tree in TREES.values():
        for name in ast.walk(tree):
            if isinstance(name, ast.Name):
                counts[name.id] += 1
    slices = [
        name for name in sorted(own)
        if len(children[name]) == 1 and counts[name] == in_bases[name]
        and name not in trainer_nb.__all__
    ]
    assert slices == []


def writes(function):
    """Attributes that a function assigns through its first argument."""
    if not function.args.args:
        return
    me = function.args.args[0].arg
    for node in ast.walk(function):
        targets = (node.targets if isinstance(node, ast.Assign) else [node.target]
                   if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else [])
        for target in targets:
            for each in ast.walk(target):
                if (isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)
                    and each.value.id == me and isinstance(each.ctx, ast.Store)):
                    yield each.attr


@cache
def writers():
    """Class name to the attributes that its own code assigns through `self`."""
    found = defaultdict(set)
    for tree in TREES.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                for function in functions(node):
                    found[node.name] |= set(writes(function))
            elif (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                  and (cls := patched_class(node))):
                found[cls] |= set(writes(node))
    return found


@pytest.mark.parametrize("cls", [cls for cls in classes() if len(ours(cls)) > 1],
                         ids=lambda cls: cls.__name__)
def test_one_writer(cls):
    """An attribute is assigned through `self` by one class of a chain."""
    found, by = writers(), defaultdict(list)
    for each in ours(cls):
        for name in found[each.__name__]:
            by[name].append(each.__name__)
    twice = {name: names for name, names in by.items() if len(names) > 1}
    assert set(twice) <= SHARED.get(cls.__name__, set()), twice


SHARED: dict[str, set[str]] = {}
BY_NAME = {"sweep"}  # a trial's part of a hook has the points of that hook


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_no_attribute_is_set_by_name(path):
    """`setattr(self, ...)` would hide a writer."""
    found = [
        f"line {node.lineno}: {ast.unparse(node)}" for node in ast.walk(TREES[path])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr"
        and ast.unparse(node.args[0]) == "self"
    ]
    assert path.stem in BY_NAME or found == []


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_the_owner_is_opaque(path):
    """What is handed through as `owner` is never looked at."""
    reads = [
        f"line {node.lineno}: {ast.unparse(node)}" for node in ast.walk(TREES[path])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        and node.value.id == "owner"
        and isinstance(node.ctx, ast.Load)
    ]
    parts = {"runner", "evaluator", "training", "driver", "checkpoint", "best"}
    assert path.stem not in parts or reads == []


def body_lines(node):
    """From the first statement after the docstring to the end."""
    first = (node.body[1]
             if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0])
    start = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))])
    return node.end_lineno - start + 1


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_size(path):
    sizes = [(each, LONGEST_FUNCTION) for each in functions(TREES[path])]
    sizes += [(each, LONGEST_CLASS) for each in TREES[path].body if isinstance(each, ast.ClassDef)]
    assert [f"{each.name}: {body_lines(each)} lines" for each, most in sizes
            if body_lines(each) > most] == []
