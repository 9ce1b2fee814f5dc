"""What `make check` runs after an edit; CONTRIBUTING.md says what it does.

`.venv/checked.json` holds what passed, so that the next check leaves it out if it is the same.
"""

import argparse
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
from notebooks import ROOT, show

sys.path.append(str(ROOT / "tests"))

import warm

MEMORY = ROOT / ".venv" / "checked.json"
SOURCES = ("nbs", "trainer_nb", "scripts", "settings.ini", "README.md")  # of export and clean
TESTED = ("trainer_nb", "tests", "pyproject.toml")  # what `make quick` depends on
PRELOADED = (*warm.PRELOADED, "nbdev.test", "IPython.display", "ipywidgets")


class Memory(dict):
    """Name -> digest: notebooks and `make quick` as they passed, percent scripts as they were
    when they and their notebooks held the same cells."""

    def __init__(self):
        super().__init__(json.loads(MEMORY.read_text()) if MEMORY.exists() else {})

    def remember(self, name, digest):
        """Set a digest and write the file."""
        self[str(name)] = digest
        if MEMORY.parent.exists():
            MEMORY.write_text(json.dumps(self, indent=1, sort_keys=True) + "\n")

    def remember_script(self, script, path):
        """Note that a percent script and its notebook hold the same cells now."""
        self.remember(script.name, digest(cells(path)))


def digest(*values):
    """A digest of texts, bytes, lists of them, ..."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def digest_of_files(*names):
    """A digest of files and folders, without what a program made there."""
    found = [path for name in map(Path, names) for path in sorted([name, *name.rglob("*")])
             if path.is_file() and "__pycache__" not in path.parts]
    return digest([(str(path), path.read_bytes()) for path in found])


def changed_files():
    """The files that differ from HEAD, new and deleted ones too, relative to the project."""
    words = ["git", "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all"]
    lines = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
    return sorted(Path(line[3:]) for line in lines if line)


def among(paths, names):
    """The paths that are one of these files, or in one of these folders."""
    return [path for path in paths if any(path.is_relative_to(name) for name in names)]


def cells(path):
    """(type, source) of each cell of a notebook or a percent script."""
    import jupytext

    nb = jupytext.read(path, fmt="py:percent" if path.suffix == ".py" else "ipynb")
    return [(cell.cell_type, cell.source.rstrip("\n")) for cell in nb.cells]


def bring_back_scripts(memory):
    """Bring each percent script that was edited back into its notebook. If the notebook was
    edited instead, write the script again."""
    for path in notebooks.find_notebooks(()):
        script = notebooks.script_of(path)
        if not script.exists():
            continue
        before, ours, theirs = memory.get(script.name), cells(script), cells(path)
        if ours != theirs and before == digest(theirs):
            notebooks.from_py(script, path)
            print(f"{script.name} is brought back into {show(path)}")
        elif ours != theirs and before == digest(ours):
            notebooks.to_py(path, script)
            print(f"{script.name} is written again from {show(path)}")
        elif ours != theirs:
            sys.exit(f"{script.name} and {show(path)} were both edited. Keep one of them:\n"
                     f"  scripts/notebooks.py to_py {show(path)}\n"
                     f"  scripts/notebooks.py from_py {script.name} {show(path)}")
        memory.remember_script(script, path)


def bring_into_step(changed):
    """Clean the notebooks and export them. What was edited by hand stays, and ends the check."""
    before = {}  # what is changed although the notebook that makes it is not
    for path in among(changed, ["trainer_nb", "README.md"]):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        made = re.search(r"(?:File to edit: (?:\.\./)+|Made from )(nbs/\S+\.ipynb)", text[:200])
        if made and Path(made[1]) not in changed:
            before[path] = text
    notebooks.clean()
    notebooks.export()
    by_hand = [path for path in before if path.read_text(encoding="utf-8") != before[path]]
    for path in by_hand:
        path.write_text(before[path], encoding="utf-8")
    if by_hand:
        sys.exit(f"{', '.join(map(str, by_hand))}: edited by hand. Move what you edited into the "
                 "notebook that is named at the top, or drop it with `make export`.")


def code(text):
    """(source, outputs) of each code cell of a notebook's text."""
    return [("".join(cell["source"]), cell["outputs"])
            for cell in (json.loads(text)["cells"] if text else [])
            if cell["cell_type"] == "code"]


def dependents(modules):
    """The notebooks that import one of these modules, or a public name that it defines, and the
    reference, which shows the docstrings of all modules."""
    import trainer_nb

    names = [f"trainer_nb.{module}" for module in modules]
    names += [name for name, module in trainer_nb._EXPORTS.items() if module in modules]
    line = re.compile(r"^\s*(?:from|import)\b[^(\n]*(?:\([^)]*)?\b(?:%s)\b" % "|".join(names), re.M)
    return {Path(show(path)) for path in notebooks.find_notebooks(()) if path.parent.name ==
            "reference" or any(line.search(source) for source, _ in code(path.read_text()))}


def touched(changed):
    """The notebooks with new code; those with new outputs, or that depend on the change."""
    modules = [".".join(path.with_suffix("").parts[1:])
               for path in among(changed, ["trainer_nb"]) if path.suffix == ".py"]
    edited, others = [], dependents(modules) if modules else set()
    for path in among(changed, ["nbs"]):
        if path.suffix == ".ipynb" and path.exists():
            head = subprocess.run(["git", "show", f"HEAD:{path}"], capture_output=True).stdout
            old, new = code(head.decode()), code(path.read_text(encoding="utf-8"))
            if [source for source, _ in old] != [source for source, _ in new]:
                edited.append(path)
            elif old != new:
                others.add(path)
    return edited, sorted(others - set(edited), key=lambda path: path.stat().st_size)


# What differs between two runs of the same code: of the noise, all but numbers without a unit.
CHANGING = [*NOISE[:-1], (rf"{NUMBER} ?(?:{UNITS}|/s)\b", "<measured>"),
            (r"\b\d{4}-\d\d-\d\d\b|\b\d+:\d\d(?::\d\d)?(?:\.\d+)?\b", "<time>")]


def without_noise(outputs):
    """What outputs show, without what differs between two runs of the same code."""
    text = "\n".join(f"{kind}\n{''.join(value)}" for output in outputs
                     for kind, value in (output | output.get("data", {})).items()
                     if isinstance(value, (str, list)))
    for pattern, instead in CHANGING:
        text = re.sub(pattern, instead, text)
    return text


def execute(path):
    """Execute a notebook. Outputs that are the same apart from noise stay as they were stored."""
    stored = {cell["id"]: cell.get("outputs") for cell in json.loads(path.read_text())["cells"]}
    notebooks.execute_one(path, 600)
    nb = json.loads(path.read_text(encoding="utf-8"))
    for cell in nb["cells"]:
        old = stored.get(cell["id"])
        if old and without_noise(old) == without_noise(cell["outputs"]):
            cell["outputs"] = old
    path.write_text(json.dumps(nb), encoding="utf-8")
    path.write_text(notebooks.cleaned(path), encoding="utf-8")


def run_tests(paths, budget):
    """Test notebooks, two at a time; yield (path, passed, text) of those that ended in time."""
    waiting, running, end = list(paths), {}, time.monotonic() + budget
    try:
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < 2:
                output, path = tempfile.TemporaryFile("w+"), waiting.pop(0)
                command = [sys.executable, "scripts/notebooks.py", "test_here", str(path)]
                running[path] = output, warm.Popen(
                    command, modules=PRELOADED, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, start_new_session=True)
            time.sleep(0.02)
            for path in [path for path in running if running[path][1].poll() is not None]:
                output, process = running.pop(path)
                output.seek(0)
                yield path, process.returncode == 0, output.read()
    finally:
        for _, process in running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Check:
    """One run of `make check`."""

    def __init__(self, budget):
        self.budget, self.memory, self.failed = budget, Memory(), []

    def run(self):
        """Do all of it in order; end with status 1 if something failed."""
        bring_back_scripts(self.memory)
        changed = changed_files()
        if not among(changed, SOURCES + TESTED):
            print("nothing to check: notebooks, package, scripts and tests are as in HEAD")
            return
        if among(changed, SOURCES):
            bring_into_step(changed)
            changed = changed_files()
        if subprocess.run([Path(sys.executable).with_name("ruff"), "check", "-q"]).returncode:
            self.failed.append("ruff")
        self.package, tested = digest_of_files("trainer_nb"), digest_of_files(*TESTED)
        edited, others = touched(changed)
        self.execute(self.unknown(edited))
        left = self.test(self.unknown(others))
        notebooks.write_if_changed(notebooks.README, notebooks.readme_text())  # shows outputs
        if among(changed, TESTED) and self.memory.get("make quick") != tested:
            if subprocess.run([os.environ.get("MAKE", "make"), "quick"]).returncode:
                self.failed.append("make quick")
            else:
                self.memory.remember("make quick", tested)
        if left:
            print("not tested in time (`make check` continues):", *left, sep="\n  ")
        if among(changed, TESTED):
            print("not looked at: notebooks that use the change through other modules, tests that "
                  "`make quick` leaves out, docs (`make test` runs all); pictures in docs/images")
        if self.failed:
            sys.exit("FAILED: " + ", ".join(self.failed))
        print("passed; to commit:", *changed_files())

    def state(self, path):
        """A digest of a notebook's code and outputs, and of the package that it runs."""
        return digest(code(path.read_text(encoding="utf-8")), self.package)

    def unknown(self, paths):
        """The notebooks that have not passed as they are now."""
        return [path for path in paths if self.memory.get(str(path)) != self.state(path)]

    def execute(self, paths):
        """Execute notebooks, one after the other."""
        for path in paths:
            try:
                execute(path)
                self.memory.remember(path, self.state(path))
            except Exception as error:
                print(error, flush=True)
                self.failed.append(str(path))

    def test(self, paths):
        """Test notebooks within the budget and execute the stale ones; return those left out."""
        left, stale = list(paths), []
        for path, passed, text in run_tests(paths, self.budget):
            left.remove(path)
            if passed:
                print("tested", path, flush=True)
                self.memory.remember(path, self.state(path))
            elif "stale outputs (" in text:
                stale.append(path)
            else:
                print(text, flush=True)
                self.failed.append(str(path))
        self.execute(stale)
        return left


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=45, help="seconds for dependents")
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # `!trainer-nb` in a cell is the one of this environment
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    Check(parser.parse_args().budget).run()


if __name__ == "__main__":
    main()
