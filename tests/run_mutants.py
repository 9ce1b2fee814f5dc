"""Plants known mistakes in a copy of the package, one at a time, and requires that the test named for each one fails.

Run as `python tests/run_mutants.py [words ...]`; words choose among list files, names and tests. A list is
tests/mutants/*.toml with entries of name, file (within trainer_nb), old, new and test.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

# Slow to import, so in memory before the first fork.
import hypothesis  # noqa: F401
import psutil  # noqa: F401
import pytest
import sklearn.datasets  # noqa: F401
import torch._dynamo  # noqa: F401

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "trainer_nb"


@dataclass
class Mutant:
    """One mistake: a text of a module, what stands there instead, and the test that must notice."""

    list: str
    name: str
    file: str
    old: str
    new: str
    test: str

    def problem(self) -> str | None:
        """Why this mutant cannot be planted; None if it can."""
        target = PACKAGE / self.file
        if not target.is_file():
            return f"there is no trainer_nb/{self.file}"
        text = target.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            return f"the old text occurs {text.count(self.old)} times in trainer_nb/{self.file}"
        if target.suffix == ".py":
            try:
                compile(text.replace(self.old, self.new), self.file, "exec")
            except SyntaxError as error:
                return f"the new text is no Python: {error}"
        test_file, _, function = self.test.partition("::")
        if f"def {function.split('[')[0]}(" not in (TESTS / test_file).read_text(encoding="utf-8"):
            return f"there is no test {self.test}"
        return None


def all_mutants() -> list[Mutant]:
    """Every mutant of every list."""
    return [
        Mutant(path.stem, **entry)
        for path in sorted((TESTS / "mutants").glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]


def run_tests(tests: list[str], folder: Path, seconds: float = 120) -> tuple[int | None, str]:
    """Pytest's exit status, None if it ran out of time, and what it said; with the package as it is in `folder`.

    In a child that has torch in memory already: importing it each time would take longer than the tests.
    """
    said = folder / "output.txt"
    child = os.fork()
    if not child:
        _become_pytest(tests, folder, said)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), said.read_text(encoding="utf-8")
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, ""


def _become_pytest(tests: list[str], folder: Path, said: Path) -> None:
    """Run pytest and end the process."""
    code = 3
    try:
        os.setsid()
        out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True
        os.environ["PYTHONPATH"] = str(folder)  # for processes that tests start
        options = ["-x", "-q", "-p", "no:cacheprovider", "--durations=0", "--durations-min=9999"]
        code = pytest.main([*options, *(f"{TESTS / test}" for test in tests)])
        import trainer_nb

        if Path(trainer_nb.__file__).parent.parent != folder:
            print(f"another package was tested: {trainer_nb.__file__}")
            code = 3
    finally:
        sys.stdout.flush()
        os._exit(code)


def outcome(mutant: Mutant, folder: Path) -> str | None:
    """What is wrong with this mutant; None if its test fails as it must."""
    problem = mutant.problem()
    if problem:
        return problem
    target = folder / "trainer_nb" / mutant.file
    sound = target.read_text(encoding="utf-8")
    target.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, said = run_tests([mutant.test], folder)
    finally:
        target.write_text(sound, encoding="utf-8")
    if code in (1, None):  # a mistake that hangs is noticed too
        return None
    return "the test passes" if code == 0 else f"pytest ended with {code}:\n{said}"


def main(words: list[str]) -> int:
    """Run the chosen mutants; 1 if one of them survived."""
    chosen = [m for m in all_mutants() if not words or any(w in f"{m.list} {m.name} {m.test}" for w in words)]
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(PACKAGE, folder / "trainer_nb", ignore=shutil.ignore_patterns("__pycache__"))
        code, said = run_tests(sorted({m.test for m in chosen}), folder, seconds=600) if chosen else (0, "")
        if code != 0:
            failures += 1
            print(f"FAILS WITHOUT A MUTANT\n{said}")
        for mutant in chosen:
            wrong = outcome(mutant, folder)
            failures += wrong is not None
            print(f"{'killed  ' if wrong is None else 'SURVIVED'}  {mutant.list}: {mutant.name}", flush=True)
            if wrong:
                print(f"    {mutant.test}: {wrong}")
    print(f"{len(chosen)} mutants, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
