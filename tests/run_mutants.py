"""Plants known mistakes in a copy of the package, one at a time, and requires that the test named for each one fails.

Run as `python tests/run_mutants.py [words ...]`; words choose among list files, names and tests. A list is
tests/mutants/*.toml with entries of name, file (within trainer_nb), old, new and test.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

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
        count = target.read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return f"the old text occurs {count} times in trainer_nb/{self.file}"
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


def run_test(test: str, folder: Path) -> subprocess.CompletedProcess:
    """The test, with the package as it is in `folder`."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"{TESTS / test}"]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def outcome(mutant: Mutant, folder: Path) -> str | None:
    """What is wrong with this mutant; None if its test fails as it must."""
    problem = mutant.problem()
    if problem:
        return problem
    target = folder / "trainer_nb" / mutant.file
    sound = target.read_text(encoding="utf-8")
    target.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        result = run_test(mutant.test, folder)
    except subprocess.TimeoutExpired:
        return None  # a mistake that hangs is noticed too
    finally:
        target.write_text(sound, encoding="utf-8")
    if result.returncode == 1:
        return None
    return "the test passes" if result.returncode == 0 else f"pytest ended with {result.returncode}:\n{result.stdout}"


def main(words: list[str]) -> int:
    """Run the chosen mutants; 1 if one of them survived."""
    chosen = [m for m in all_mutants() if not words or any(w in f"{m.list} {m.name} {m.test}" for w in words)]
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(PACKAGE, folder / "trainer_nb", ignore=shutil.ignore_patterns("__pycache__"))
        for test in sorted({m.test for m in chosen}):
            sound = run_test(test, folder)
            if sound.returncode:
                failures += 1
                print(f"FAILS WITHOUT A MUTANT  {test}\n{sound.stdout}")
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
