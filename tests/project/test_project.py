"""The project's own rules: layers of imports, what a plain import loads, notebooks, README.md."""

import ast
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
import yaml

import trainer_nb

ROOT = Path(__file__).resolve().parents[2]
NBS, LIB = ROOT / "nbs", ROOT / "trainer_nb"
sys.path.insert(0, str(ROOT / "scripts"))

import notebooks

NOTEBOOKS = notebooks.notebooks_in(NBS)
MODULES = sorted(
    path for path in LIB.rglob("*.py") if notebooks.is_exported(path) and path.name != "_modidx.py"
)

# A layer imports from itself and from these layers,
# from these packages at its top, and from these inside functions (at first use).
LAYERS = {
    "core": [],
    "hooks": ["core"],
    "tools": ["core", "hooks"],
    "panel": ["core", "hooks"],
    "trainer": ["core", "hooks", "tools", "panel"],
    "remote": ["core", "hooks", "tools", "panel", "trainer"],
}
AT_TOP = {
    "core": {"torch", "numpy", "fastcore"},
    "hooks": {"torch", "numpy"},
    "tools": {"torch", "numpy", "fastcore"},
    "panel": {"torch", "numpy", "ipywidgets", "anywidget", "traitlets", "plotly", "IPython"}
    | {"tsdownsample"},
    "trainer": {"torch", "numpy", "fastcore"},
    "remote": {"numpy"},
}
AT_FIRST_USE = {
    "core": set(),
    "hooks": {"fastprogress", "tensorboard", "wandb", "trackio", "pandas", "PIL", "IPython"}
    | {"pyarrow", "plotly"},
    "tools": {"accelerate", "safetensors", "hydra", "omegaconf", "plotly", "IPython", "nbdev"},
    "panel": {"ipykernel", "comm", "zmq", "tornado", "google"},
    "trainer": {"IPython", "plotly", "pandas"},
    "remote": {"rich", "mcp", "starlette", "uvicorn", "plotly", "google"},
}
# Verbs that a lower module offers and a higher one makes: a user looks for `serve` at the trainer,
# and for all commands in one program. Module -> function -> what it imports when it is called.
MADE_ABOVE = {
    "trainer_nb.trainer": {
        "runs_in": "trainer_nb.remote.runs",
        "serve": "trainer_nb.remote.serve",
    },
    "trainer_nb.remote.remote_run": {"find_runs": "trainer_nb.remote.runs"},
    "trainer_nb.remote.cli": {
        "agents": "trainer_nb.remote.mcp",
        "pages": "trainer_nb.remote.serve",
    },
}
NOT_LOADED = set(
    "plotly ipywidgets IPython fastprogress nbdev execnb accelerate anywidget "
    "matplotlib tsdownsample safetensors torchdata pandas tensorboard wandb trackio hydra "
    "omegaconf mcp".split()
)


# Layers


def module_name(path):
    """trainer_nb/core/hook.py -> trainer_nb.core.hook"""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def layer(module):
    """trainer_nb.core.hook -> core"""
    return module.split(".")[1]


def notebook_numbers():
    """Module -> number of the notebook that makes it."""
    numbers = {}
    for path in NOTEBOOKS:
        found = re.search(r"#\|\s*default_exp\s+([\w.]+)", path.read_text(encoding="utf-8"))
        if found:
            numbers[f"trainer_nb.{found[1]}"] = int(re.match(r"\d+", path.name)[0])
    return numbers


def is_type_checking(node):
    """Whether a node is `if TYPE_CHECKING:`, which imports nothing when run."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def import_nodes(tree, function=None):
    """(node, the outermost function around it) of every import statement; None: run at import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, function
        elif not is_type_checking(node):
            inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            name = getattr(node, "name", "lambda") if inside else None
            yield from import_nodes(node, function or name)


def imported(node, module, known):
    """The modules an import statement names, made absolute."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        package = module.split(".")[: -node.level]
        base = ".".join(package + ([base] if base else []))
    return [
        f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names
    ]


def import_problem(module, target, function, numbers):
    """What is wrong with an import, or None."""
    own, at_top = layer(module), function is None
    if target in numbers and MADE_ABOVE.get(module, {}).get(function) == target:
        return None
    if target.split(".")[0] == "trainer_nb":
        if target not in numbers:
            return f"no notebook makes {target} (import from the module that defines the name)"
        if layer(target) not in [own, *LAYERS[own]]:
            return f"layer {own} may not import layer {layer(target)}"
        return (
            None
            if numbers[target] < numbers[module]
            else "a notebook imports from lower numbers only"
        )
    package = target.split(".")[0]
    allowed = AT_TOP[own] | (set() if at_top else AT_FIRST_USE[own]) | set(sys.stdlib_module_names)
    return (
        None
        if package in allowed
        else f"layer {own} may not import {package}" + (" at its top" if at_top else "")
    )


def wrong_imports(module, text):
    """A line for each import of a module's text that the rules do not allow."""
    numbers, found = notebook_numbers(), []
    for node, function in import_nodes(ast.parse(text)):
        for target in imported(node, module, numbers):
            problem = import_problem(module, target, function, numbers)
            found += [f"line {node.lineno}: {ast.unparse(node)}: {problem}"] if problem else []
    return found


def imports_by_name(text):
    """Lines that import a module of the package by its name as a string."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    by_name = re.compile(r"(\w+\.)*import_module|__import__")
    return [
        node.lineno
        for node in calls
        if by_name.fullmatch(ast.unparse(node.func)) and "trainer_nb" in ast.unparse(node)
    ]


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_flow_one_way(path):
    text = path.read_text(encoding="utf-8")
    found = wrong_imports(module_name(path), text)
    assert not found, "\n".join(found)
    assert imports_by_name(text) == []


@pytest.mark.parametrize(
    ("module", "function"), [(m, name) for m, names in MADE_ABOVE.items() for name in names]
)
def test_a_verb_that_is_made_above_imports_at_its_call(module, function):
    text = (ROOT / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
    target, numbers = MADE_ABOVE[module][function], notebook_numbers()
    assert numbers[target] > numbers[module], "an ordinary import will do"
    nodes = [node for node, name in import_nodes(ast.parse(text)) if name == function]
    assert target in [each for node in nodes for each in imported(node, module, numbers)]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("trainer_nb.trainer", "from trainer_nb.remote.serve import serve_trainer"),
        ("trainer_nb.trainer", "def fit(self):\n    from trainer_nb.remote.serve import serve"),
        ("trainer_nb.trainer", "def serve(self):\n    from trainer_nb.remote.runs import attach"),
        ("trainer_nb.hooks.ema", "def serve(self):\n    from trainer_nb.remote import serve"),
        ("trainer_nb.core.hook", "from ..trainer import Trainer"),
    ],
)
def test_a_planted_import_upwards_is_found(module, text):
    assert len(wrong_imports(module, text)) == 1


@pytest.mark.parametrize("call", ["importlib.import_module", "import_module", "__import__"])
def test_a_planted_import_by_name_is_found(call):
    assert imports_by_name(f"def serve():\n    return {call}('trainer_nb.remote.serve')") == [2]


# What an import loads

STATEMENTS = ["import trainer_nb"]
STATEMENTS += ["from trainer_nb import Trainer"] if "Trainer" in trainer_nb.__all__ else []


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_plain_import_loads_nothing_that_draws(statement):
    code = (
        f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & NOT_LOADED == set()


@pytest.mark.parametrize("name", trainer_nb.__all__)
def test_a_public_name_is_there_and_exported(name):
    module = import_module(f"trainer_nb.{trainer_nb._EXPORTS[name]}")
    assert getattr(trainer_nb, name) is getattr(module, name)
    assert name in module.__all__ and name in dir(trainer_nb)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        trainer_nb.Trainr


# Notebooks


def notebook_name(path):
    return str(path.relative_to(NBS))


def text_of(cell):
    """Source and text outputs of a cell (pictures are letters without meaning)."""
    parts = [cell.source]
    for output in cell.get("outputs", []):
        parts.append(output.get("text", ""))
        parts += [
            str(value)
            for name, value in output.get("data", {}).items()
            if name.startswith("text/") or "svg" in name
        ]
    return "\n".join(parts)


def machine_paths():
    """Beginnings of paths that make sense on one machine only."""
    here = [
        str(path)
        for path in (ROOT, Path.home(), Path(tempfile.gettempdir()))
        if len(path.parts) > 1
    ]
    return [f"{path}/" for path in here] + ["/home/", "/Users/", "C:\\Users"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_name)
def test_a_notebook_is_whole_and_light(path):
    text = path.read_text(encoding="utf-8")
    nb = nbformat.reads(text, as_version=4)
    nbformat.validate(nb)
    assert len(text) < 300_000, f"{len(text)} bytes: outputs are too heavy"
    assert "widgets" not in nb.metadata, "stored state of widgets (make clean)"
    errors = [
        cell.source
        for cell in nb.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]
    assert not errors


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_name)
def test_a_notebook_opens_with_its_title_and_promise(path):
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    source = "".join(first["source"])
    assert first["cell_type"] == "markdown" and source.startswith("# ")
    assert re.search(r"^> \S", source, flags=re.MULTILINE), "a line '> one sentence' is missing"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_name)
def test_cells_run_on_any_machine(path):
    cells = nbformat.read(path, as_version=4).cells
    found = [
        (cell.source, start)
        for cell in cells
        for start in machine_paths()
        if start in text_of(cell)
    ]
    assert not found, "a path of one machine in the cell or its output"


CELL_LINES = 150  # the most of a class: a shorter bound had classes cut into chains of subclasses


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_name)
def test_exported_cells_are_short(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    exported = [
        cell.source.splitlines() for cell in cells if "export" in notebooks.directives(cell)
    ]
    assert [f"{lines[1]} {len(lines)} lines" for lines in exported if len(lines) > CELL_LINES] == []


def pages(contents):
    """The notebooks that a sidebar lists, in its order."""
    nested = [pages(each["contents"]) if isinstance(each, dict) else [each] for each in contents]
    return [page for each in nested for page in each]


def test_the_sidebar_lists_every_notebook_in_order():
    site = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
    listed = pages(site["website"]["sidebar"]["contents"])
    assert sorted(listed) == sorted(notebook_name(path) for path in NOTEBOOKS)
    for layer_name in LAYERS:
        of_layer = [page for page in listed if page.startswith(f"{layer_name}/")]
        assert of_layer == sorted(of_layer)


# README.md


def test_readme_is_the_index_notebook():
    assert (ROOT / "README.md").read_text(encoding="utf-8") == notebooks.readme_text()


def relative_links(text):
    """The targets of links and pictures without a scheme, without their anchors."""
    return re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md",
                                  "examples/README.md"])
def test_relative_links_and_pictures_name_files(name):
    page = ROOT / name
    found = relative_links(page.read_text(encoding="utf-8"))
    assert found or name == "SECURITY.md"
    assert [link for link in found if not (page.parent / link).exists()] == []


def test_the_readme_links_to_notebooks_and_pictures():
    kinds = {Path(link).suffix for link in relative_links((ROOT / "README.md").read_text())}
    assert {".ipynb", ".png"} <= kinds


def test_links_are_rewritten_from_the_root():
    page = ("![a](../docs/images/a.png) [b](tutorials/b.ipynb#c) [d](https://e.f/g) [h](#i)\n"
            "[![j](../docs/j.svg)](k.ipynb)")
    assert notebooks.from_root(page) == (
        "![a](docs/images/a.png) [b](nbs/tutorials/b.ipynb#c) [d](https://e.f/g) [h](#i)\n"
        "[![j](docs/j.svg)](nbs/k.ipynb)")


def test_nbdev_docs_leaves_the_readme_alone(monkeypatch):
    """Its own README has no pictures; `readme_nb` in settings.ini names no notebook."""
    from nbdev.config import get_config
    from nbdev.quarto import _doc_mtime_not_older

    monkeypatch.chdir(ROOT)
    config = get_config()
    assert not (NBS / config.readme_nb).exists()
    # what nbdev_docs asks before it makes a README
    assert _doc_mtime_not_older(ROOT / "missing.md", NBS / config.readme_nb)


def test_the_citation_has_the_version_and_the_licence():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["version"] == trainer_nb.__version__ and cited["license"] == project["license"]


# What a person who only has the package can import


def imported_packages(text):
    """The packages that a program imports, but for those inside `try`."""
    nodes = [node for node in ast.walk(ast.parse(text))
             if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) if not node.level]
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)


def installed_with(extra):
    """The packages that a user has with the package and this extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["dependencies"] + project["optional-dependencies"][extra]
    names = {re.match(r"[\w-]+", each)[0].replace("-", "_") for each in listed}
    return names | {{"scikit_learn": "sklearn", "hydra_core": "hydra", "pillow": "PIL"}.get(n, n)
                    for n in names}


def test_the_extra_has_what_readme_examples_and_pages_import():
    texts = [path.read_text() for path in (ROOT / "examples").rglob("*.py")]
    pages = [path for folder in ("tutorials", "real_work", "how_to", "coming_from")
             for path in (NBS / folder).glob("*.ipynb")]
    for path in [NBS / "index.ipynb", *pages]:
        texts += [re.sub(r"^[%!].*|^await .*", "", cell.source, flags=re.MULTILINE)
                  for cell in nbformat.read(path, as_version=4).cells
                  if cell.cell_type == "code" and "import " in cell.source
                  and "hide" not in notebooks.directives(cell)]
    own = {path.stem for path in (ROOT / "examples").rglob("*.py")} | {"trainer_nb", "IPython"}
    known = own | installed_with("examples") | installed_with("trackers")  # send_records names it
    assert set().union(*map(imported_packages, texts)) - known == set()
