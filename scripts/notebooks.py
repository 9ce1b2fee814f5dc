"""Everything that is done to the notebooks from a command line.

    python scripts/notebooks.py VERB [arguments]

    export [paths]              modules and README.md from the notebooks
    clean [paths]               notebooks without noise
    execute [paths]             run notebooks and store their outputs
    test [paths]                run notebooks as tests; stored outputs must say what they make
    check                       do modules and README.md match the notebooks?
    docs                        process the notebooks for the documentation site
    render                      make its pages with Quarto, where that is installed
    to_py x.ipynb [scratch.py]  a notebook as a percent script (scratch_x.py) ...
    from_py scratch.py x.ipynb  ... and back, keeping ids and outputs

Paths are notebooks or folders; without any, all notebooks are meant.
"""

import argparse
import ast
import filecmp
import gc
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from textwrap import TextWrapper

from fresh import compared_with_stored, is_compared
from pages import Site, address, changelog_page, site_fields


ROOT = Path(__file__).resolve().parent.parent
NBS, LIB, README = ROOT / "nbs", ROOT / "trainer_nb", ROOT / "README.md"
INDEX = NBS / "index.ipynb"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNEL = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}


# Finding and writing


def notebooks_in(folder):
    """Every notebook under `folder`, without hidden folders and those of the docs, sorted."""
    found = sorted(folder.rglob("*.ipynb"))
    return [
        path
        for path in found
        if not any(part[0] in "._" for part in path.relative_to(folder).parts)
    ]


def find_notebooks(paths):
    """The notebooks meant by `paths` (notebooks or folders); all of nbs/ without any."""
    found = []
    for path in [Path(path).resolve() for path in paths] or [NBS]:
        if not path.exists():
            sys.exit(f"{path} does not exist")
        found += notebooks_in(path) if path.is_dir() else [path]
    return found


def show(path):
    """`path` as a person in the project's folder would type it."""
    path = Path(path)
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def write_if_changed(path, text):
    """Write `text` where the file says something else; tell whether it was written."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True


# README.md


def without_directives(source):
    """The source of a code cell without its `#|` lines."""
    return "\n".join(line for line in source.splitlines() if not re.match(r"#\s*\|", line)).strip(
        "\n"
    )


def directives(cell):
    """The directives of a code cell: {"hide": "", "echo": "false"}."""
    found = re.findall(
        r"^#\s*\|\s*([\w-]+):?[ \t]*(.*)$", "".join(cell["source"]), flags=re.MULTILINE
    )
    return {name: value.strip().lower() for name, value in found}


def output_text(output):
    """What an output shows as text, or an empty string."""
    if output["output_type"] == "stream":
        return "".join(output["text"])
    return "".join(output.get("data", {}).get("text/plain", ""))


def code_as_markdown(cell):
    """A code cell as a fenced block, its text outputs as another."""
    marks = directives(cell)
    if "hide" in marks or marks.get("include") == "false":
        return []
    source = without_directives("".join(cell["source"]))
    blocks = [f"```python\n{source}\n```"] if source and marks.get("echo") != "false" else []
    text = "".join(output_text(output) for output in cell["outputs"]).rstrip()
    return blocks + ([f"```\n{text}\n```"] if text and marks.get("output") != "false" else [])


def at_root(markdown):
    """Pictures stand in docs/images: one folder less to climb from the project's root."""
    return re.sub(r"\.\./((?:\.\./)*docs/images/)", r"\1", markdown)


def from_root(markdown, folder=NBS.name):
    """Relative links of a page in `folder`, as they are written in the project's root."""
    def moved(found):
        target = posixpath.normpath(posixpath.join(folder, found[2]))
        return f"{found[1]}({target})"

    return re.sub(r"(\])\((?!\w+:|#|/)([^)\s]+)\)", moved, markdown)


def readme_text(notebook=INDEX):
    """README.md from the index notebook: its prose, its code and what that printed."""
    import nbformat

    parts = ["<!-- Made from nbs/index.ipynb by `make export`; edit that notebook. -->"]
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source.strip())
        elif cell.cell_type == "code":
            parts += code_as_markdown(cell)
    return from_root("\n\n".join(part for part in parts if part)) + "\n"


# Export and clean


def export(paths=()):
    """Export notebooks to modules with nbdev, the index to README.md, public names to editors."""
    import nbdev.maker
    from nbdev.doclinks import nbdev_export

    # `__all__` within 100 columns, of which its name takes ten
    nbdev.maker.TextWrapper = lambda width, **options: TextWrapper(90, **options)
    os.chdir(ROOT)
    for path in [str(path) for path in find_notebooks(paths)] if paths else [None]:
        nbdev_export.__wrapped__(path=path, procs=None)

    init = LIB / "__init__.py"
    write_if_changed(init, with_names_for_editors(init.read_text(encoding="utf-8")))
    if INDEX.exists():
        write_if_changed(README, readme_text())


def public_names(text):
    """Name -> module of the package, from the table in the text of `__init__.py`."""
    [table] = [node.value for node in ast.parse(text).body
               if isinstance(node, ast.Assign) and node.targets[0].id == "_BY_TASK"]
    return {name: module for names in ast.literal_eval(table).values()
            for name, module in names.items()}


def with_names_for_editors(text):
    """The text of `__init__.py` with the block of imports that its table asks for."""
    lines = [f"    from .{module} import {name} as {name}\n"
             for name, module in public_names(text).items()]
    block = "if _TYPE_CHECKING:  # made by `make export` from the table above\n" + "".join(lines)
    return re.sub(r"^if _TYPE_CHECKING:.*\n(?: {4}.*\n)*", block, text, flags=re.MULTILINE)


def drop_widgets(nb):
    """Drop what needs a live kernel: no state of widgets is stored, so their views show nothing."""
    nb["metadata"].pop("widgets", None)
    nb["metadata"].pop("jupytext", None)
    for cell in nb["cells"]:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_VIEW, None)
            output.get("metadata", {}).pop(WIDGET_VIEW, None)


def cleaned(path):
    """The text of the notebook at `path` without noise: nbdev's clean, and no widgets."""
    from execnb.nbio import nb2str, read_nb
    from nbdev.clean import _nbdev_clean

    nb = read_nb(path)
    _nbdev_clean(nb)
    drop_widgets(nb)
    # a percent script would add a line to a cell that ends with an empty one
    for cell in nb["cells"]:
        cell["source"] = "".join(cell["source"]).rstrip("\n")
    return nb2str(nb)


def clean(paths=()):
    """Clean notebooks in place; those that are clean are not touched."""
    os.chdir(ROOT)
    for path in find_notebooks(paths):
        if write_if_changed(path, cleaned(path)):
            print("cleaned", show(path))


# Run


def has_gpu():
    """Whether cells marked `#| cuda` can run here."""
    import torch

    return torch.cuda.is_available()


def quiet_client(nb, folder, timeout):
    """A client that runs `nb` in `folder`, and leaves out the cells that are not to be run here."""
    from nbclient import NotebookClient

    left_out = {"notest"} if has_gpu() else {"notest", "cuda"}

    class Client(NotebookClient):
        async def async_execute_cell(self, cell, cell_index, **kwargs):
            marks = directives(cell) if cell.cell_type == "code" else {}
            if left_out & marks.keys() or marks.get("eval") == "false":
                return cell
            return await super().async_execute_cell(cell, cell_index, **kwargs)

    return Client(
        nb,
        timeout=timeout,
        kernel_name="python3",
        extra_arguments=["--log-level=CRITICAL"],
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )


def execute_one(path, timeout):
    """Run one notebook, store its outputs, clean it; refuse when it was edited meanwhile."""
    import nbformat

    before, started = path.read_bytes(), time.perf_counter()
    nb = nbformat.read(path, as_version=4)
    nb.metadata.setdefault("kernelspec", KERNEL["kernelspec"])
    quiet_client(nb, path.parent, timeout).execute()
    if path.read_bytes() != before:
        raise RuntimeError("it was edited while it ran; nothing is stored")
    nbformat.write(nb, path)
    path.write_text(cleaned(path), encoding="utf-8")
    print(f"executed {show(path)} in {time.perf_counter() - started:.1f} s", flush=True)


def execute(paths=(), timeout=600):
    """Run notebooks in fresh kernels and store their outputs; one that fails stays as it was."""
    os.chdir(ROOT)
    failed = []
    for path in find_notebooks(paths):
        try:
            execute_one(path, timeout)
        except Exception as error:
            print(f"failed {show(path)}\n{error}", file=sys.stderr, flush=True)
            failed.append(show(path))
    if failed:
        sys.exit("not executed: " + ", ".join(failed))


def has_stored_outputs(path):
    """Whether stored outputs of the notebook at `path` must say what it makes here."""
    path = Path(path).resolve()
    return path.is_relative_to(NBS) and is_compared(path.relative_to(NBS)) and not has_gpu()


def test_here(path, flags, until=None):
    """Run one notebook's cells as tests in this process, with nbdev's own function.

    It fails too if stored outputs are compared and say something else. `until` leaves out the
    first cell that contains this text, and all that follow.
    """
    from nbdev.config import get_config
    from nbdev.test import test_nb

    with compared_with_stored(Path(path).read_text(encoding="utf-8"), until) as stale:
        passed, _ = test_nb(
            Path(path),
            skip_flags=get_config().tst_flags.split(),
            force_flags=flags.split(),
            basepath=ROOT,
        )
    if passed and stale and has_stored_outputs(path):
        print(f"stale outputs (scripts/notebooks.py execute {show(path)}):", *stale, sep="\n")
        passed = False
    sys.exit(0 if passed else 1)


def test(paths=(), flags=""):
    """Run notebooks as tests, each in a process of its own, without storing anything."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "tests/notebooks/test_notebooks.py"]
    place = {"TRAINER_NB_NOTEBOOKS": os.pathsep.join(map(str, find_notebooks(paths))),
             "TRAINER_NB_NOTEBOOK_FLAGS": flags}
    sys.exit(subprocess.run(command, cwd=ROOT, env=os.environ | place).returncode)


# The sync check


def is_exported(path):
    """Whether a file of the package is made from a notebook (and not written by hand)."""
    return path.suffix == ".py" and path.name not in ("__init__.py", "__main__.py")


def copy_without_exports(target):
    """Copy notebooks and hand-written files to `target`: no exported module, no README.md."""
    skip = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for folder in (NBS, LIB, ROOT / "scripts"):
        shutil.copytree(folder, target / folder.name, ignore=skip)
    for name in ("settings.ini", "_quarto.yml"):
        shutil.copy(ROOT / name, target / name)
    for path in (target / LIB.name).rglob("*.py*"):
        if is_exported(path):
            path.unlink()


def made_files(root):
    """What export and clean make, relative to `root`: notebooks, package, README.md."""
    found = {root / "README.md"} | set(notebooks_in(root / NBS.name))
    found |= {
        path
        for path in (root / LIB.name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {path.relative_to(root) for path in found}


def differences(fresh):
    """How the project differs from `fresh`, the same project exported and cleaned again."""
    here, there = made_files(ROOT), made_files(fresh)
    for path in sorted(here | there):
        if not (fresh / path).exists():
            yield f"{path}: no notebook makes it (delete it)"
        elif not (ROOT / path).exists():
            yield f"{path}: missing (make export)"
        elif not filecmp.cmp(ROOT / path, fresh / path, shallow=False):
            yield f"{path}: differs (make {'clean' if path.suffix == '.ipynb' else 'export'})"


def check():
    """Fail where modules, README.md or the notebooks' form are not what the notebooks make.

    The work is done on a copy without the exported modules, so a stale module is
    found, and nothing in the project changes, whatever is uncommitted.
    """
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder).resolve() / "project"
        copy_without_exports(fresh)
        for verb in ("export", "clean"):
            subprocess.run(
                [sys.executable, fresh / "scripts" / Path(__file__).name, verb],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        found = list(differences(fresh))
    if found:
        sys.exit("out of step with the notebooks:\n  " + "\n  ".join(found))
    print("modules, README.md and notebooks are in step")


# Documentation


def docs():
    """Process the notebooks into _proc, as nbdev's docs do before Quarto renders them."""
    from nbdev.config import get_config
    from nbdev.quarto import proc_nbs

    os.chdir(ROOT)
    config = get_config()
    (NBS / "nbdev.yml").write_text(site_fields(config), encoding="utf-8")
    cache = proc_nbs(NBS, n_workers=0, force=True)
    if (ROOT / "docs" / "images").exists():
        shutil.copytree(ROOT / "docs" / "images", cache / "docs" / "images", dirs_exist_ok=True)
    for path in notebooks_in(cache):
        write_if_changed(path, at_root(path.read_text(encoding="utf-8")))
    finish_pages(cache, config)
    gc.freeze()  # at the end of Python the shell of each page has garbage collected
    print(f"{len(notebooks_in(cache))} notebooks are processed in {show(cache)}")


def render():
    """Make the pages of what `docs` has processed; without Quarto one line says what is missing."""
    from nbdev.config import get_config

    os.chdir(ROOT)
    cache = get_config().config_path / "_proc"
    quarto = shutil.which("quarto")
    if quarto is None:
        print("no pages are rendered: Quarto is not installed (https://quarto.org)")
        return
    sys.exit(subprocess.run([quarto, "render", cache, "--no-cache"]).returncode)


def finish_pages(cache, config):
    """Links to what pages show, words for pictures, HTML as Markdown, the changelog
    as a page, llms.txt."""
    import yaml

    site = Site(cache, address(config))
    site.mend_anchors()
    site.name_pictures()
    site.html_as_markdown()
    write_if_changed(cache / "changelog.md", changelog_page((ROOT / "CHANGELOG.md").read_text()))
    sidebar = yaml.safe_load((ROOT / "_quarto.yml").read_text())["website"]["sidebar"]
    text = site.llms_text(config.title, config.description, sidebar["contents"],
                          address(config) if config.doc_host else "")
    write_if_changed(cache / "llms.txt", text)


# Percent scripts


def script_of(notebook):
    """The percent script that `make check` keeps in step with a notebook; git ignores it."""
    return ROOT / f"scratch_{Path(notebook).stem}.py"


def to_py(notebook, script=None):
    """Write a notebook as a percent script (cells start with `# %%`) for an editor.

    Without a name the script is one that `make check` brings back."""
    import jupytext

    script = script or script_of(notebook)
    jupytext.write(jupytext.read(notebook), script, fmt="py:percent")
    remember(script, notebook)


def remember(script, notebook):
    """Let `make check` know that a script and its notebook are in step."""
    if Path(script).resolve() == script_of(notebook):
        from checking import Memory

        Memory().remember_script(Path(script).resolve(), Path(notebook).resolve())


def from_py(script, notebook):
    """Bring a percent script back into a notebook: unchanged cells keep ids and outputs."""
    import jupytext
    from jupytext.combine import combine_inputs_with_outputs

    nb, path = jupytext.read(script, fmt="py:percent"), Path(notebook)
    nb.metadata = type(nb.metadata)(nb.metadata | KERNEL)
    if path.exists():
        nb = combine_inputs_with_outputs(nb, jupytext.read(path), fmt="py:percent")
    path.parent.mkdir(parents=True, exist_ok=True)
    jupytext.write(nb, path, fmt="ipynb")
    clean([path])
    remember(script, path)


# Command line


def parser():
    """The command line: a subcommand a verb."""
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = top.add_subparsers(required=True, metavar="verb")
    for verb in (export, clean, execute, test, test_here, check, docs, render, to_py, from_py):
        one = verbs.add_parser(verb.__name__, description=verb.__doc__)
        one.set_defaults(verb=verb)
        if verb in (export, clean, execute, test):
            one.add_argument("paths", nargs="*", help="notebooks or folders (default: all)")
        if verb is execute:
            one.add_argument("--timeout", type=int, default=600, help="seconds for a cell")
        if verb is test_here:
            one.add_argument("path")
            one.add_argument("--until", help="leave out the cells from the first with this text on")
        if verb in (test, test_here):
            one.add_argument(
                "--flags",
                default="",
                help="directives to run although settings.ini leaves them out, as in cuda",
            )
        if verb in (to_py, from_py):
            for name in ("notebook", "script") if verb is to_py else ("script", "notebook"):
                one.add_argument(name, nargs="?" if name == "script" and verb is to_py else None)
    return top


def main():
    """Run the verb of the command line; `!trainer-nb` in a cell is the one of this environment."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    arguments = vars(parser().parse_args())
    arguments.pop("verb")(**arguments)


if __name__ == "__main__":
    main()
