"""What `make check` runs after an edit.

    python scripts/checking.py [--budget SECONDS]

1. Bring back percent scripts that were edited (`scratch_06_engine.py` of `06_engine.ipynb`).
2. Clean the notebooks, export modules and README.md, run ruff.
3. Execute each notebook whose code differs from HEAD, and the reference if names, arguments or
   docstrings changed. Outputs that are the same apart from noise (times, paths) stay as stored.
4. Test the notebooks that import a changed module, the quickest first, until the time in the
   budget is used up, and execute those whose stored outputs are stale.
5. Run `make quick`.
6. Report what was done, what failed and what nobody looked at.

What passed is remembered in `.venv/checked.json`, with a digest of what it was made from: the
next check runs only what has changed since, and continues with the notebooks that are left.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import notebooks
from fresh import NOISE, NUMBER, UNITS
from notebooks import LIB, NBS, ROOT, show

sys.path.append(str(ROOT / "tests"))

import warm

MEMORY = ROOT / ".venv" / "checked.json"
REFERENCE = notebooks.notebooks_in(NBS / "reference")  # its tables are made from docstrings
README = notebooks.README.name
SOURCES = ("nbs", "trainer_nb", "scripts", "settings.ini", README)  # of export and clean
TESTED = ("trainer_nb", "tests", "pyproject.toml")  # what `make quick` depends on
QUICK = [f"tests/{folder}" for folder in ("core", "hooks", "tools", "panel")]  # what it runs
WORKERS = 2
PRELOADED = (*warm.PRELOADED, "nbdev.test", "IPython.display", "ipywidgets", "nbclient")
EXECUTE, TEST = ("scripts/checking.py", "--execute"), ("scripts/notebooks.py", "test_here")


# Memory


class Memory(dict):
    """What earlier checks found, as a dict that is stored as JSON."""

    def __init__(self):
        super().__init__(seconds={}, passed={}, scripts={}, quick="")
        if MEMORY.exists():
            self.update(json.loads(MEMORY.read_text(encoding="utf-8")))

    def store(self):
        """Write it to the file."""
        if MEMORY.parent.exists():
            MEMORY.write_text(json.dumps(self, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def remember_script(self, script, path):
        """Note that a percent script and its notebook are in step now."""
        self["scripts"][script.name] = [digest(now(script)), digest(percent(now(path)))]
        self.store()


def digest(*texts):
    """A digest of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def digest_of_files(*names):
    """A digest of files and folders, without what a program made there."""
    found = [path for name in names for path in sorted([ROOT / name, *(ROOT / name).rglob("*")])
             if path.is_file() and "__pycache__" not in path.parts]
    return digest(*(f"{show(path)}\n{path.read_bytes()!r}" for path in found))


# What differs from HEAD


def git(*words):
    """What git prints, in the project's folder."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True)
    if done.returncode:
        sys.exit(f"what changed is what differs from HEAD: {done.stderr.decode()}")
    return done.stdout.decode()


def changed_files():
    """The files that differ from HEAD, new and deleted ones too, relative to the project."""
    names = git("diff", "--name-only", "--relative", "-z", "HEAD")
    names += git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted(Path(name) for name in set(names.split("\0")) - {""})


def among(paths, names):
    """The paths that are one of these files, or in one of these folders."""
    return [path for path in paths if any(path.is_relative_to(name) for name in names)]


def at_head(path):
    """The text of a file at HEAD; empty if it is not there."""
    done = subprocess.run(["git", "show", f"HEAD:./{path}"], cwd=ROOT, capture_output=True)
    return done.stdout.decode() if done.returncode == 0 else ""


def now(path):
    """The text of a file; empty if it is not there."""
    return (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""


def code_cells(text):
    """(source, outputs) of each code cell of a notebook's text."""
    cells = json.loads(text)["cells"] if text else []
    return [("".join(cell["source"]), cell["outputs"]) for cell in cells
            if cell["cell_type"] == "code"]


def code(text):
    """The sources of the code cells of a notebook's text."""
    return [source for source, _ in code_cells(text) if source.strip()]


def in_use(path, package):
    """A digest of a notebook's code and outputs, and of the package that it runs."""
    return digest(json.dumps(code_cells(now(path))), package)


# Percent scripts


def percent(text):
    """A notebook's text as a percent script."""
    import jupytext

    return jupytext.writes(jupytext.reads(text, "ipynb"), "py:percent")


def notebook_of(script):
    """The notebook of `scratch_06_engine.py`; None if there is none, or more than one."""
    stem = script.stem.removeprefix("scratch_")
    found = [path for path in notebooks.find_notebooks(()) if path.stem == stem]
    return found[0] if len(found) == 1 else None


def bring_back_scripts(memory):
    """Bring each percent script that was edited back into its notebook. If the notebook was
    edited instead, write the script again."""
    for script in sorted(ROOT.glob("scratch_*.py")):
        path = notebook_of(script)
        if path is None:
            print(f"{script.name}: no notebook has this name")
            continue
        first = at_head(show(path))
        known = memory["scripts"].get(script.name) or [digest(percent(first)) if first else ""] * 2
        source, theirs = now(script), percent(now(path))
        script_edited, notebook_edited = digest(source) != known[0], digest(theirs) != known[1]
        if script_edited and notebook_edited and source != theirs:
            sys.exit(f"{script.name} and {show(path)} were both edited. Keep one of them:\n"
                     f"  scripts/notebooks.py to_py {show(path)}\n"
                     f"  scripts/notebooks.py from_py {script.name} {show(path)}")
        if script_edited and not notebook_edited:
            notebooks.from_py(script, path)
            print(f"{script.name} is brought back into {show(path)}")
        elif notebook_edited and not script_edited:
            notebooks.to_py(path, script)
            print(f"{script.name} is written again from {show(path)}")
        memory.remember_script(script, path)


# Export


def notebook_that_makes(module):
    """The notebook that makes README.md, or an exported module, which names it at its top."""
    if module.name == README:
        return notebooks.INDEX
    found = re.search(r"File to edit: (\S+\.ipynb)", now(module)[:200])
    return (ROOT / module).parent.joinpath(found[1]).resolve() if found else None


def edited_by_hand(changed):
    """File -> text, of the changed modules, and README.md, whose notebooks have not changed."""
    found = {path: notebook_that_makes(path)
             for path in among(changed, [LIB.name, README]) if notebook_that_makes(path)}
    return {path: now(path) for path, notebook in found.items()
            if show(notebook) not in map(str, changed)}


def bring_into_step(changed):
    """Clean the notebooks and export them; the files that this has changed.

    A module that was edited by hand stays as it is, and ends the check."""
    before = {path: (ROOT / path).read_bytes() for path in notebooks.made_files(ROOT)}
    by_hand = edited_by_hand(changed)
    notebooks.clean()
    notebooks.export()
    lost = {path: text for path, text in by_hand.items() if now(path) != text}
    for path, text in lost.items():
        (ROOT / path).write_text(text, encoding="utf-8")
        print(f"{path} is not what {show(notebook_that_makes(path))} makes. Move what you edited "
              "into the notebook, or drop it with `make export`.")
    if lost:
        sys.exit(1)
    return sorted(path for path in notebooks.made_files(ROOT)
                  if before.get(path) != (ROOT / path).read_bytes())


# What a change touches


class WithoutBodies(ast.NodeTransformer):
    """Leaves of each function its name, arguments and docstring: what the reference shows."""

    def visit_FunctionDef(self, node):
        node.body = [ast.Expr(ast.Constant(ast.get_docstring(node)))]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef


def shape(text):
    """What the reference shows of a module's text, as text."""
    return ast.dump(WithoutBodies().visit(ast.parse(text)))


def changed_modules(changed):
    """Module -> whether the reference shows how it has changed; comments and layout aside."""
    found = {}
    for path in among(changed, [LIB.name]):
        if path.suffix == ".py" and path.name != "_modidx.py":
            old, new = at_head(path), now(path)
            if ast.dump(ast.parse(old)) != ast.dump(ast.parse(new)):
                name = ".".join(path.relative_to(LIB.name).with_suffix("").parts)
                found[name] = shape(old) != shape(new)
    return found


def imported_modules(path):
    """The modules of the package that a notebook's code imports: {"core.engine", "trainer"}."""
    import trainer_nb

    text = "\n".join(code(now(path)))
    found = set(re.findall(r"^\s*(?:from|import) trainer_nb\.([\w.]+)", text, re.MULTILINE))
    for names in re.findall(r"^\s*from trainer_nb import (\([^)]*\)|.*)", text, re.MULTILINE):
        found |= {trainer_nb._EXPORTS.get(name, name) for name in re.findall(r"\w+", names)}
    return found


def dependents(modules):
    """The notebooks that import one of these modules."""
    return [path for path in notebooks.find_notebooks(()) if imported_modules(path) & set(modules)]


# Running notebooks

# What differs between two runs of the same code: of the noise, all but numbers without a unit.
CHANGING = [*NOISE[:-1], (rf"{NUMBER} ?(?:{UNITS}|/s)\b", "<measured>"),
            (r"\b\d{4}-\d\d-\d\d\b|\b\d+:\d\d(?::\d\d)?(?:\.\d+)?\b", "<time>")]


def without_noise(outputs):
    """What outputs show, without what differs between two runs of the same code."""
    found = []
    for output in outputs:
        shown = {"text": output.get("text", "")} | output.get("data", {})
        texts = {kind: "".join(value) if isinstance(value, list) else str(value)
                 for kind, value in shown.items()}
        for pattern, instead in CHANGING:
            texts = {kind: re.sub(pattern, instead, text) for kind, text in texts.items()}
        found.append((output["output_type"], output.get("name"), texts))
    return found


def execute(path):
    """Execute a notebook. Outputs that are the same apart from noise stay as they were stored."""
    stored = {cell["id"]: cell.get("outputs") for cell in json.loads(now(path))["cells"]}
    notebooks.execute_one(path, 600)
    nb = json.loads(now(path))
    for cell in nb["cells"]:
        old = stored.get(cell["id"])
        if old and without_noise(old) == without_noise(cell["outputs"]):
            cell["outputs"] = old
    path.write_text(json.dumps(nb), encoding="utf-8")
    path.write_text(notebooks.cleaned(path), encoding="utf-8")


class Job:
    """A notebook that runs in a process of its own, with torch in memory from the start."""

    def __init__(self, path, words, folder):
        self.path, self.started, self.file = path, time.perf_counter(), Path(folder, path.stem)
        output = os.open(self.file, os.O_WRONLY | os.O_CREAT)  # warm.Popen closes it
        self.process = warm.Popen([sys.executable, *words, str(path)], modules=PRELOADED,
                                  cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output,
                                  stderr=subprocess.STDOUT, start_new_session=True)

    def is_over(self):
        """Whether it has ended."""
        return self.process.poll() is not None

    def end(self):
        """End the process and those that it started, if it is still there."""
        if not self.is_over():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.passed, self.text = self.process.wait() == 0, self.file.read_text()
        self.seconds = time.perf_counter() - self.started


def run_jobs(paths, words, budget=float("inf")):
    """Run notebooks, two at a time; yield the jobs that ended within so many seconds."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    waiting, running, end = list(paths), [], time.perf_counter() + budget
    with tempfile.TemporaryDirectory() as folder:
        try:
            while (waiting or running) and time.perf_counter() < end:
                while waiting and len(running) < WORKERS:
                    running.append(Job(waiting.pop(0), words, folder))
                time.sleep(0.02)
                for job in [job for job in running if job.is_over()]:
                    running.remove(job)
                    job.end()
                    yield job
        finally:
            for job in running:
                job.end()


# The check


class Check:
    """One run of `make check`."""

    def __init__(self, budget):
        self.budget, self.memory, self.failed, self.left = budget, Memory(), [], []
        self.modules = []

    def tell(self, words, passed=True, text=""):
        """Report a step; the text that it printed only if it failed."""
        print(f"{'ok  ' if passed else 'FAIL'} {words}", flush=True)
        if not passed:
            print(text, end="", flush=True)
            self.failed.append(words)

    def run(self):
        """Do all of it in order; return the exit status."""
        bring_back_scripts(self.memory)
        changed = changed_files()
        if not among(changed, [*SOURCES, *TESTED]):
            print("nothing to check: notebooks, package, scripts and tests are as in HEAD")
            return 0
        if among(changed, SOURCES):
            made = bring_into_step(changed)
            self.tell(f"in step{': made ' if made else ''}{', '.join(map(str, made))}")
            changed = changed_files()
        done = subprocess.run([Path(sys.executable).with_name("ruff"), "check", "-q"], cwd=ROOT)
        self.tell("ruff", done.returncode == 0)
        self.run_notebooks(changed)
        self.memory.store()
        self.run_quick(changed)
        self.memory.store()
        self.report(changed_files())
        return 1 if self.failed else 0

    def run_notebooks(self, changed):
        """Execute what changed, test what depends on it, execute what is stale."""
        mine = [ROOT / path for path in among(changed, ["nbs"])
                if path.suffix == ".ipynb" and (ROOT / path).exists()]
        edited = [path for path in mine if code(now(path)) != code(at_head(show(path)))]
        modules = changed_modules(changed)
        edited += [path for path in REFERENCE if any(modules.values()) and path not in edited]
        others = [path for path in mine
                  if code_cells(now(path)) != code_cells(at_head(show(path)))]
        others += [path for path in dependents(modules) if path not in others]
        self.modules = list(modules)
        self.execute(self.unknown(edited))
        self.test(self.unknown([path for path in others if path not in edited]))

    def unknown(self, paths):
        """The notebooks that have not passed as they are now."""
        package = digest_of_files(LIB.name)
        found = [path for path in paths
                 if self.memory["passed"].get(show(path)) != in_use(path, package)]
        if len(found) < len(paths):
            self.tell(f"passed before, with the same code: {len(paths) - len(found)} notebooks")
        return found

    def remember(self, job):
        """Note that a notebook passed, and how long it took."""
        self.memory["seconds"][show(job.path)] = round(job.seconds, 1)
        self.memory["passed"][show(job.path)] = in_use(job.path, digest_of_files(LIB.name))

    def execute(self, paths):
        """Execute notebooks in kernels."""
        for job in run_jobs(paths, EXECUTE):
            self.tell(f"executed {show(job.path)} in {job.seconds:.0f} s", job.passed, job.text)
            if job.passed:
                self.remember(job)

    def test(self, paths):
        """Test notebooks within the budget, the quickest first; execute those that are stale."""
        seconds, started = self.memory["seconds"], time.perf_counter()
        # of a notebook that has not run yet only its length is known
        paths.sort(key=lambda path: seconds.get(show(path), len(now(path)) / 5000))
        self.left, stale = list(paths), []
        for job in run_jobs(paths, TEST, self.budget):
            self.left.remove(job.path)
            if job.passed:
                self.remember(job)
            elif "stale outputs (" in job.text:
                stale.append(job.path)
            else:
                self.tell(f"tested {show(job.path)}", False, job.text)
        if paths:
            self.tell(f"tested {len(paths) - len(self.left)} of {len(paths)} notebooks that "
                      f"depend on the change in {time.perf_counter() - started:.0f} s")
        self.execute(stale)

    def run_quick(self, changed):
        """Run `make quick` if the package or the tests have changed since it passed."""
        state, started = digest_of_files(*TESTED), time.perf_counter()
        if not among(changed, TESTED):
            self.tell("make quick is not needed: package and tests are as in HEAD")
        elif self.memory["quick"] == state:
            self.tell("make quick is not needed: it passed with these files")
        else:
            done = subprocess.run([os.environ.get("MAKE", "make"), "quick"], cwd=ROOT)
            passed = done.returncode == 0
            self.tell(f"make quick in {time.perf_counter() - started:.0f} s", passed)
            self.memory["quick"] = state if passed else ""

    def report(self, changed):
        """Print what this check left out, and what failed."""
        if self.left:
            print(f"not tested within {self.budget:.0f} s (`make check` again continues):",
                  *sorted(map(show, self.left)), sep="\n  ")
        if self.modules:
            print("not tested: notebooks that use the change through other modules; processes, "
                  "browser, remote, docs (`make test` runs all of it)")
        others = [path for path in among(changed, ["tests"]) if not among([path], QUICK)]
        if others:
            print("not run: changed in tests, and not in make quick:", *others)
        if among(changed, [f"{LIB.name}/panel", f"{LIB.name}/remote/page"]):
            print("not made again: docs/images, which shows the panel (scripts/pictures.py)")
        print("FAILED: " + "; ".join(self.failed) if self.failed else
              f"passed; to commit: {' '.join(map(str, changed))}")


def main():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=45,
                        help="seconds for the notebooks that import a changed module")
    parser.add_argument("--execute", metavar="NOTEBOOK", type=Path, help="do only this")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    if arguments.execute:
        try:
            execute(arguments.execute)
        except Exception as error:
            sys.exit(str(error))
    else:
        sys.exit(Check(arguments.budget).run())


if __name__ == "__main__":
    main()
