"""How the package is built: no towers of classes, no slices of one, one writer for an attribute, parts that do not look at their owner."""

import ast
import inspect
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest

import trainer_nb
from trainer_nb import Trainer

LIB = Path(trainer_nb.__file__).parent
MODULES = sorted(path for path in LIB.rglob("*.py") if path.stem not in ("__init__", "_modidx"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}

LONGEST_FUNCTION = 40  # lines
LONGEST_CLASS = 170
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
    return [base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases]


def functions(tree):
    return [each for each in ast.walk(tree) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]


def patched_class(function):
    """The class that a function is patched onto; None for another one."""
    for each in function.decorator_list:
        name = each.func if isinstance(each, ast.Call) else each
        first = function.args.args[0].annotation if function.args.args else None
        if isinstance(name, ast.Name) and name.id == "patch" and isinstance(first, ast.Name):
            return first.id
    return None


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_no_tower(cls):
    assert len(ours(cls)) <= 3, [each.__name__ for each in ours(cls)]


def test_the_trainer_is_a_facade_of_two_classes():
    assert [cls.__name__ for cls in ours(Trainer)] == ["Trainer", "CoreTrainer"]


def test_no_slices():
    """No class has exactly one subclass and is itself neither made nor named by anybody else."""
    children, text = defaultdict(list), "\n".join(path.read_text(encoding="utf-8") for path in MODULES)
    for path in MODULES:
        for node in TREES[path].body:
            if isinstance(node, ast.ClassDef):
                for base in bases(node):
                    children[base].append(node.name)
    own = {node.name for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef)}
    used = {name.id for tree in TREES.values() for name in ast.walk(tree) if isinstance(name, ast.Name)}
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
    assert used and text
    slices = [
        name for name in sorted(own)
        if len(children[name]) == 1 and counts[name] == in_bases[name] and name not in trainer_nb.__all__
    ]
    assert slices == []


def writes(function):
    """Attributes that a function assigns through its first argument."""
    if not function.args.args:
        return
    me = function.args.args[0].arg
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == me and isinstance(each.ctx, ast.Store):
                    yield each.attr


def writers():
    """Class name to the attributes that its own code assigns through `self`."""
    found = defaultdict(set)
    for tree in TREES.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                for function in functions(node):
                    found[node.name] |= set(writes(function))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (cls := patched_class(node)):
                found[cls] |= set(writes(node))
    return found


@pytest.mark.parametrize("cls", [cls for cls in classes() if len(ours(cls)) > 1], ids=lambda cls: cls.__name__)
def test_one_writer(cls):
    """An attribute is assigned through `self` by one class of a chain."""
    found, by = writers(), defaultdict(list)
    for each in ours(cls):
        for name in found[each.__name__]:
            by[name].append(each.__name__)
    twice = {name: names for name, names in by.items() if len(names) > 1}
    assert set(twice) <= SHARED.get(cls.__name__, set()), twice


SHARED: dict[str, set[str]] = {}


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_the_owner_is_opaque(path):
    """What is handed through as `owner` is never looked at."""
    reads = [
        f"line {node.lineno}: {ast.unparse(node)}" for node in ast.walk(TREES[path])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "owner"
        and isinstance(node.ctx, ast.Load)
    ]
    parts = {"runner", "evaluator", "training", "driver", "checkpoint", "best"}
    assert path.stem not in parts or reads == []


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_size(path):
    long = [
        f"{each.name}: {each.end_lineno - each.lineno + 1} lines" for each in functions(TREES[path])
        if each.end_lineno - each.lineno + 1 > LONGEST_FUNCTION and each.name != "__init__"
    ]
    long += [
        f"{each.name}: {each.end_lineno - each.lineno + 1} lines" for each in TREES[path].body
        if isinstance(each, ast.ClassDef) and each.end_lineno - each.lineno + 1 > LONGEST_CLASS
    ]
    assert long == []


def test_every_verb_says_what_it_does():
    """The first line of each public name's help."""
    silent = [
        name for name, value in inspect.getmembers(Trainer)
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
        and not (value.__doc__ or "").strip() and not name.startswith("cb_")
    ]
    assert [name for name in silent if name not in FORWARDED] == []


FORWARDED = {
    name for name, value in inspect.getmembers(Trainer) if isinstance(value, property) and not value.__doc__
}
