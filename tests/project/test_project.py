"""The project as a whole: layers of imports, what an import loads, notebooks, README.md, extras."""

import ast
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import trainer_nb

ROOT = Path(__file__).resolve().parents[2]
NBS, LIB = ROOT / "nbs", ROOT / "trainer_nb"
sys.path.insert(0, str(ROOT / "scripts"))

import notebooks

NOTEBOOKS = {path.relative_to(NBS).as_posix(): path for path in notebooks.notebooks_in(NBS)}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# A layer imports from itself and from these layers, from these packages at its top, and from these
# inside functions (at first use).
LAYERS = {
    "support": ("", "torch numpy", ""),
    "core": ("support", "torch numpy", ""),
    "folder": ("support", "", ""),
    "hooks": ("core support folder", "torch numpy",
              "fastprogress tensorboard wandb trackio pandas PIL IPython pyarrow plotly"),
    "engines": ("core support", "torch numpy", "accelerate"),
    "tools": ("core support hooks", "torch numpy",
              "fastcore safetensors hydra omegaconf yaml plotly IPython nbdev"),
    "panel": ("core support folder hooks",
              "torch numpy ipywidgets anywidget traitlets plotly IPython",
              "ipykernel comm zmq tornado google marimo psutil"),
    "trainer": ("core support folder hooks engines tools panel", "torch numpy",
                "IPython plotly pandas"),
    "remote": ("core support folder hooks engines tools panel trainer", "numpy",
               "rich argcomplete mcp starlette uvicorn plotly google"),
}
# Verbs that a lower module offers and a higher one makes: a user looks for `serve` at the trainer.
# Module, function, and what it imports when it is called. `remote.cli` also loads the module of the
# command that is used: prove, mcp or serve.
MADE_ABOVE = {
    ("trainer_nb.panel.run_panels", "runs_in", "trainer_nb.remote.runs"),
    ("trainer_nb.trainer", "serve", "trainer_nb.remote.serve"),
}
NOT_LOADED = set("plotly ipywidgets IPython fastprogress nbdev execnb accelerate anywidget mcp "
                 "matplotlib safetensors torchdata pandas tensorboard wandb trackio "
                 "hydra omegaconf yaml psutil".split())


def listed(contents):
    """The notebooks of a sidebar, in its order."""
    nested = [listed(each["contents"]) if isinstance(each, dict) else [each] for each in contents]
    return [page for each in nested for page in each]


SIDEBAR = listed(yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
                 ["website"]["sidebar"]["contents"])


# Layers


# Each exported module, and the place of its notebook in the order of reading.
PLACES = {f"trainer_nb.{name[1]}": place for place, page in enumerate(SIDEBAR) if page in NOTEBOOKS
          for name in re.finditer(r"#\|\s*default_exp ([\w.]+)", NOTEBOOKS[page].read_text())}


def import_nodes(tree, function=None):
    """(node, the outermost function around it) of each import that is run; None: at import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, function
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            name = getattr(node, "name", "lambda") if inside else None
            yield from import_nodes(node, function or name)


def imported(node, module):
    """The modules that an import statement names, made absolute."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    package = module.split(".")[:-node.level] if node.level else []
    base = ".".join([*package, *filter(None, [node.module])])
    return [f"{base}.{alias.name}" if f"{base}.{alias.name}" in PLACES else base
            for alias in node.names]


def import_problem(module, target, function):
    """What is wrong with an import, or None."""
    own, package = module.split(".")[1], target.split(".")[0]
    layers, at_top, at_first_use = LAYERS[own]
    if package != "trainer_nb":
        allowed = {*at_top.split(), *(at_first_use.split() if function else ())}
        fits = package in allowed | sys.stdlib_module_names
        return None if fits else f"layer {own} may not import {package} there"
    if (module, function, target) in MADE_ABOVE:
        return None
    if target not in PLACES:
        return f"no notebook makes {target} (import from the module that defines the name)"
    if target.split(".")[1] not in [own, *layers.split()]:
        return f"layer {own} may not import it"
    if target.split(".")[1] == own and PLACES[target] >= PLACES[module]:
        return "a notebook imports from those before it in the sidebar"
    return None


def wrong_imports(module, tree):
    """A line for each import of a module that the rules do not allow."""
    for node, function in import_nodes(tree):
        for target in imported(node, module):
            if problem := import_problem(module, target, function):
                yield f"{module}:{node.lineno}: {ast.unparse(node)}: {problem}"


def test_imports_flow_one_way():
    paths = {module: ROOT / f"{module.replace('.', '/')}.py" for module in PLACES}
    trees = {module: ast.parse(path.read_text("utf-8")) for module, path in paths.items()}
    found = [line for module, tree in trees.items() for line in wrong_imports(module, tree)]
    assert found == [], "\n".join(found)


def test_a_planted_import_upwards_is_found():
    for module, text in (
            ("trainer_nb.trainer", "def fit(self):\n    from trainer_nb.remote.serve import serve"),
            ("trainer_nb.core.hook", "from ..trainer import Trainer"),
            ("trainer_nb.core.hook", "from .engine import Engine"),
            ("trainer_nb.hooks.ema", "import plotly")):
        assert len(list(wrong_imports(module, ast.parse(text)))) == 1, text


# The package


def test_a_plain_import_loads_nothing_that_draws():
    code = "import sys\nfrom trainer_nb import Trainer\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name.split(".")[0] for name in done.stdout.split()} & NOT_LOADED == set()


def test_public_names_are_those_of_their_modules():
    for name in trainer_nb.__all__:
        module = import_module(f"trainer_nb.{trainer_nb._EXPORTS[name]}")
        assert getattr(trainer_nb, name) is getattr(module, name), name
        assert name in module.__all__ and name in dir(trainer_nb), name
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        trainer_nb.Trainr


def test_the_citation_has_the_version_and_the_licence():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == trainer_nb.__version__ and cited["license"] == PROJECT["license"]


# Notebooks and README.md


def machine_paths():
    """Beginnings of paths that make sense on one machine only."""
    here = (ROOT, Path.home(), Path(tempfile.gettempdir()))
    return [f"{path}/" for path in here if len(path.parts) > 1] + ["/home/", "/Users/", "C:\\Users"]


def faults(text):
    """What is wrong with the text of a notebook."""
    import nbformat  # takes a second

    nb = nbformat.reads(text, as_version=4)
    nbformat.validate(nb)
    if len(text) > 300_000:
        yield f"{len(text):,} bytes: outputs are too heavy"
    if "widgets" in nb.metadata:
        yield "stored state of widgets (make clean)"
    for cell in nb.cells:
        outputs = cell.get("outputs", [])
        shown = [cell.source, *(output.get("text", "") for output in outputs)]
        shown += [str(value) for output in outputs for kind, value in output.get("data", {}).items()
                  if kind.startswith("text/") or "svg" in kind]  # other pictures are only letters
        if any(output.output_type == "error" for output in outputs):
            yield f"cell {cell.id}: an error"
        if any(path in each for path in machine_paths() for each in shown):
            yield f"cell {cell.id}: a path of one machine"


def test_notebooks_are_whole_and_light_and_of_no_machine():
    found = {page: list(faults(path.read_text("utf-8"))) for page, path in NOTEBOOKS.items()}
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


def test_planted_faults_of_a_notebook_are_found():
    import nbformat  # takes a second

    cell = nbformat.v4.new_code_cell("open('/home/me/a')", outputs=[
        nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])])
    nb = nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {}, "more": "x" * 300_000})
    assert len(list(faults(nbformat.writes(nb)))) == 4


def test_the_sidebar_lists_every_notebook():
    assert sorted(SIDEBAR) == sorted(NOTEBOOKS)


def test_readme_is_the_index_notebook():
    assert (ROOT / "README.md").read_text(encoding="utf-8") == notebooks.readme_text()


def test_relative_links_and_pictures_name_files():
    dead, count = [], 0
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"):
        page = ROOT / name
        links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
        dead += [(name, link) for link in links if not (page.parent / link).exists()]
        count += len(links)
    assert dead == [] and count > 20


# What pages and examples say to install


EXTRAS = PROJECT["optional-dependencies"]
IMPORTED_AS = {"scikit-learn": "sklearn", "hydra-core": "hydra", "pillow": "PIL"}


def modules_of(requirements):
    """The modules that these requirements bring, by the names that a program imports."""
    names = [canonicalize_name(Requirement(text).name) for text in requirements]
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}


OF_THE_PACKAGE = modules_of(PROJECT["dependencies"]) | {"trainer_nb"}


def installed_by(text):
    """The modules that the `pip install` lines of a text bring beside the package."""
    found = set()
    for line in re.findall(r"pip install ([^`\n#]+)", text):
        words = [word for word in shlex.split(line) if not re.match(r"-|\.|https?:", word)]
        for requirement in map(Requirement, words):
            if requirement.name == "trainer_nb":
                found |= modules_of(each for extra in requirement.extras for each in EXTRAS[extra])
            else:
                found |= modules_of([str(requirement)])
    return found - OF_THE_PACKAGE


def needed_by(*programs):
    """The modules that programs import beside the package and Python's own."""
    files = set(re.findall(r"^%%writefile (\w+)\.py", "\n".join(programs), re.MULTILINE))
    found = set()
    for text in programs:
        plain = re.sub(r"^[%!].*|^await .*", "", text, flags=re.MULTILINE)
        found |= {name.split(".")[0] for node, _ in import_nodes(ast.parse(plain))
                  for name in imported(node, "main")}
    return found - files - OF_THE_PACKAGE - {"IPython"} - sys.stdlib_module_names


def texts_of(path):
    """The text of a notebook, and its cells that import something; hidden cells are left out."""
    import nbformat  # takes a second

    cells = [cell for cell in nbformat.read(path, as_version=4).cells
             if "hide" not in notebooks.directives(cell)]
    return "\n".join(cell.source for cell in cells), [
        cell.source for cell in cells if cell.cell_type == "code" and "import " in cell.source]


def test_each_page_says_how_to_install_what_it_imports():
    pages = {page: texts_of(path) for page, path in NOTEBOOKS.items()
             if page.startswith(("index", "guide/"))}
    missing = {page: needed_by(*code) - installed_by(text) for page, (text, code) in pages.items()}
    assert {page: names for page, names in missing.items() if names} == {}


def test_a_planted_import_without_an_install_line_is_found():
    code = "import torch, pandas\nfrom sklearn import svm\nfrom digits import a"
    assert needed_by(code, "%%writefile digits.py\nimport os") == {"pandas", "sklearn"}
    assert installed_by("Do `pip install -U scikit-learn` and `pip install \"trainer_nb[search]\"`"
                        " or\n%pip install trainer_nb\nx = 1  # pip install pandas") == {
        "sklearn", "optuna", "pandas"}


def test_the_readme_of_the_examples_says_how_to_install_what_they_import():
    programs = list((ROOT / "examples").rglob("*.py"))
    needed = needed_by(*[path.read_text("utf-8") for path in programs])
    prose = (ROOT / "examples" / "README.md").read_text("utf-8")
    assert needed - {path.stem for path in programs} - installed_by(prose) == set()


def test_only_the_extra_vision_can_replace_torch():
    """torchvision is compiled for one version of torch, and brings that version along."""
    brings = {extra for extra, listed in EXTRAS.items()
              if modules_of(listed) & {"torchvision", "timm", "torchaudio", "torch"}}
    assert brings == {"vision"}
    assert modules_of(EXTRAS["examples"]) == {"sklearn", "pandas", "PIL", "torchmetrics"}


def test_the_install_page_has_every_extra():
    text, _ = texts_of(NBS / "guide" / "how_to" / "install.ipynb")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(EXTRAS)


def test_links_in_git_lead_to_files_of_the_project():
    """One to an environment of this machine breaks every other clone."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.splitlines()
    links = [ROOT / line.split("\t")[1] for line in listed if line.startswith("120000")]
    kept = {ROOT / line.split("\t")[1] for line in listed}
    assert links and [each for each in links if each.resolve() not in kept] == []
