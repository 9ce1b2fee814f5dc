"""Plants known mistakes in copies of the package: the test that each one names must fail.

Run `python tests/run_mutants.py [word ...]`. With words, it takes the lines of tests/mutants.tsv
that contain one of them. The exit code is 1 if a mistake survives or does not fit, or if a test
fails without a mistake.
"""

import ast
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import hypothesis, nbformat, sklearn.datasets, torch._dynamo  # noqa: F401  slow, so before a fork
import pytest

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "trainer_nb"
WORKERS = 2
SECONDS = 120  # for a test; a mistake that lets it hang is noticed


class Mutant(NamedTuple):
    """A line of the list: `new` replaces `old` in a function, and `test` must fail."""

    module: str
    function: str
    old: str
    new: str
    test: str

    def planted(self, text: str) -> str:
        """Return the module's text with this mistake.

        Blanks and line breaks make no difference. Raises ValueError unless the function contains
        `old` exactly once, and SyntaxError if the new text is not Python.
        """
        old = re.compile(r"\s*".join(map(re.escape, "".join(self.old.split()))))
        lines = text.splitlines(keepends=True)
        parts = [part for name, part in functions(ast.parse(text)) if name == self.function]
        found = [part for part in parts for _ in old.finditer("".join(lines[part]))]
        if len(found) != 1:
            raise ValueError(f"{self.function} contains the old text {len(found)} times")
        lines[found[0]] = [old.sub(lambda _: self.new, "".join(lines[found[0]]))]
        compile("".join(lines), self.module, "exec")
        return "".join(lines)

    def problem(self) -> str | None:
        """Return why this mistake cannot be planted, or None if it can."""
        try:
            self.planted((PACKAGE / self.module).read_text("utf-8"))
        except (OSError, SyntaxError, ValueError) as error:
            return str(error)
        return None


def functions(node: ast.AST, prefix: str = "") -> list[tuple[str, slice]]:
    """Return the name and the lines of each function and class."""
    found = []
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append((prefix + part.name, slice(part.lineno - 1, part.end_lineno)))
            found += functions(part, f"{prefix}{part.name}.")
    return found


def chosen_mutants(words: list[str]) -> list[Mutant]:
    """Return the lines of the list that contain one of the words, or all of them."""
    lines = (TESTS / "mutants.tsv").read_text("utf-8").splitlines()
    lines = [line for line in lines if not words or any(word in line for word in words)]
    return [Mutant(*line.split("\t")) for line in lines if not line.startswith("#")]


def run_tests(tests: list[str], mutated: bool = False) -> tuple[int | None, str]:
    """Return the exit code of pytest, or None if it ran out of time, and its output.

    A fork of this process tests its copy of the package: it has torch in memory, and importing
    torch takes longer than most tests.
    """
    child = os.fork()
    if not child:
        _become_pytest([f"{TESTS}/{test}" for test in tests], mutated)
    deadline = time.monotonic() + SECONDS * len(tests)
    try:
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                output = Path("output.txt").read_text("utf-8", "replace")
                return os.waitstatus_to_exitcode(status), output
            time.sleep(0.02)
        return None, "out of time"
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.killpg(child, signal.SIGKILL)  # also what a test has started
            os.waitpid(child, 0)


def _become_pytest(places: list[str], mutated: bool) -> None:
    """Run pytest and end the process."""
    folder, code = os.getcwd(), 3
    try:
        os.setsid()
        out = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.path[:] = [folder, *sys.path, str(PACKAGE.parent)]  # the last one for benchmarks
        sys.dont_write_bytecode = mutated  # the bytecode of the sound package stays
        os.environ["PYTHONPATH"] = folder  # for processes that tests start
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        options = ["-x"] * mutated + ["-q", "-p", "no:cacheprovider"]
        code = pytest.main([*options, f"--basetemp={folder}/pytest", *places])
        import trainer_nb

        if not trainer_nb.__file__.startswith(folder):
            print(f"another package was tested: {trainer_nb.__file__}")
            code = 3
    finally:
        sys.stdout.flush()
        os._exit(code)


def copy_package(root: str) -> None:
    """Make this process's copy of the package, and work beside it."""
    os.chdir(tempfile.mkdtemp(dir=root))
    shutil.copytree(PACKAGE, "trainer_nb", ignore=shutil.ignore_patterns("__pycache__"))


def survival(mutant: Mutant) -> str | None:
    """Return why this mistake is not noticed, or None if its test fails."""
    if problem := mutant.problem():
        return problem
    target, sound = Path("trainer_nb", mutant.module), Path("sound.py")
    target.rename(sound)  # keeps its time, and so its bytecode
    target.write_text(mutant.planted(sound.read_text("utf-8")), "utf-8")
    code, output = run_tests([mutant.test], mutated=True)
    sound.replace(target)
    return None if code in (1, None) else f"{mutant.test} ended with {code}\n{output}"


def main(words: list[str]) -> int:
    """Plant the chosen mistakes; return 1 if something is wrong."""
    begun, wrong, chosen = time.monotonic(), 0, chosen_mutants(words)
    tests = sorted({mutant.test for mutant in chosen})
    with (tempfile.TemporaryDirectory() as root,
          ProcessPoolExecutor(WORKERS, get_context("fork"), copy_package, (root,)) as workers):
        parts = [tests[n::WORKERS] for n in range(WORKERS) if tests[n::WORKERS]]
        for code, output in workers.map(run_tests, parts):
            if code != 0:
                wrong += 1
                print(f"FAILS WITHOUT A MISTAKE\n{output}", flush=True)
        for mutant, why in zip(chosen, workers.map(survival, chosen)):
            wrong += why is not None
            print("SURVIVED" if why else "killed  ", *mutant[:4], sep="  ", flush=True)
            if why:
                print(why)
    print(f"{len(chosen)} mistakes, {wrong} failures, {time.monotonic() - begun:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
