"""Plants known mistakes in a copy of the package, and requires that the test of each one fails.

Run as `python tests/run_mutants.py [words ...]`; words choose among list files, names and tests.
One mistake is planted at a time. A list is tests/mutants/*.toml with entries of

- name: what is wrong then,
- file: the module, within trainer_nb,
- function: the function around the statement: "function", "Class.method", "Class" for the body of
  a class, "" for the module itself; what stands in an inner function belongs to the outer one,
- old: the statement, or a part of it, which occurs once in that function. It is compared token by
  token (see mutant_places.py), so line breaks, indentation and comments may change in the module,
- new: what stands there instead, with the indentation that fits `old`. If `new` has more lines than
  `old`, `old` begins with its own line's indentation,
- test: the test that must fail, "file::function"; the file is found by its name, in any folder.

`python tests/run_mutants.py --relocate` mends the entries whose function has moved: if the
statement stands in one other function, that one's file and name are written into the list. It
prints the entries that are left for a person.
"""

import os
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Slow to import, so in memory before the first fork.
import hypothesis  # noqa: F401
import psutil  # noqa: F401
import pytest
import sklearn.datasets  # noqa: F401
import torch._dynamo  # noqa: F401
from mutant_places import NoPlace, place, planted, source

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "trainer_nb"


@dataclass
class Mutant:
    """One mistake: a statement of a function, what stands there instead, and its test."""

    list: str
    name: str
    file: str
    function: str
    old: str
    new: str
    test: str

    def problem(self) -> str | None:
        """Why this mutant cannot be planted; None if it can."""
        target = PACKAGE / self.file
        if not target.is_file():
            return f"there is no trainer_nb/{self.file}"
        try:
            text = self.planted(_text(target))
            if target.suffix == ".py":
                compile(text, self.file, "exec")
        except NoPlace as error:
            return f"trainer_nb/{self.file}: {error}"
        except SyntaxError as error:
            return f"the new text is not Python: {error}"
        test_file, _, function = self.test.partition("::")
        path = test_path(test_file)
        if path is None or f"def {function.split('[')[0]}(" not in _text(path):
            return f"there is no test {self.test}"
        return None

    def planted(self, text: str) -> str:
        """The module's text with this mistake. Raises NoPlace if the statement is not there."""
        if self.file.endswith(".py"):
            return planted(text, self.function, self.old, self.new)
        if text.count(self.old) != 1:
            raise NoPlace(f"the old text occurs {text.count(self.old)} times")
        return text.replace(self.old, self.new)

    def fits(self, package: Path) -> bool:
        """Whether the statement stands where this mutant says."""
        try:
            self.planted(_text(package / self.file))
        except (NoPlace, OSError):
            return False
        return True


def _text(path: Path) -> str:
    """What a file says."""
    return path.read_text(encoding="utf-8")


@cache
def test_path(name: str) -> Path | None:
    """Where the test file of this name is; None if there is none, or more than one."""
    found = list(TESTS.rglob(name))
    return found[0] if len(found) == 1 else None


def all_mutants() -> list[Mutant]:
    """Every mutant of every list."""
    return [m for path in sorted((TESTS / "mutants").glob("*.toml")) for m in mutants_of(path)]


def mutants_of(path: Path) -> list[Mutant]:
    """The mutants of one list."""
    return [Mutant(path.stem, **entry) for entry in tomllib.loads(_text(path))["mutant"]]


def new_place(mutant: Mutant, package: Path) -> tuple[str, str] | None:
    """File and name of the one function in which the statement stands; None if that is unclear.

    Of several functions, one with the same last name is taken, else one in the same file.
    """
    found = []
    for path in sorted(package.rglob("*.py")):
        file, module = path.relative_to(package).as_posix(), source(_text(path))
        for function in sorted({module.function_at(*span) for span in module.spans(mutant.old)}):
            try:
                place(module.text, function, mutant.old)
            except NoPlace:
                continue
            found.append((file, function))
    last = mutant.function.rpartition(".")[2]
    for rule in (
        lambda at: at[1].rpartition(".")[2] == last,
        lambda at: at[0] == mutant.file,
    ):
        if len(found) > 1:
            found = [at for at in found if rule(at)] or found
    return found[0] if len(found) == 1 else None


def relocate(lists: list[Path], package: Path) -> int:
    """Write the new places of moved statements into the lists; how many entries do not fit."""
    left = 0
    for path in lists:
        start, *entries = re.split(r"(?m)^(?=\[\[mutant\]\]$)", _text(path))
        for number, mutant in enumerate(mutants_of(path)):
            if not mutant.file.endswith(".py") or mutant.fits(package):
                continue
            found = new_place(mutant, package)
            where = f"{path.stem}: {mutant.name}: {mutant.file} {mutant.function}"
            if found is None:
                left += 1
                print(f"LEFT   {where}\n    {mutant.old.strip()}")
                continue
            for key, value in zip(("file", "function"), found, strict=True):
                line = f'{key} = "{value}"'
                entries[number] = re.sub(rf"(?m)^{key} = .*$", line, entries[number], count=1)
            print(f"moved  {where} -> {found[0]} {found[1]}")
        text = start + "".join(entries)
        if text != _text(path):
            path.write_text(text, encoding="utf-8")
    return left


def run_tests(tests: list[str], folder: Path, seconds: float = 120) -> tuple[int | None, str]:
    """Pytest's exit status, None if it ran out of time, and what it said.

    It tests the package as it is in `folder`, in a child that has torch in memory already:
    importing it each time would take longer than the tests.
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
        os.environ["TRAINER_NB_LONG"] = "1"
        os.environ["PYTHONPATH"] = str(folder)  # for processes that tests start
        options = ["-x", "-q", "-p", "no:cacheprovider", "--durations=0", "--durations-min=9999"]
        parts = (test.partition("::") for test in tests)
        places = [f"{test_path(file)}::{function}" for file, _, function in parts]
        code = pytest.main([*options, *places])
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
    target.write_text(mutant.planted(sound), encoding="utf-8")
    try:
        code, said = run_tests([mutant.test], folder)
    finally:
        target.write_text(sound, encoding="utf-8")
    if code in (1, None):  # a mistake that hangs is noticed too
        return None
    return "the test passes" if code == 0 else f"pytest ended with {code}:\n{said}"


def main(words: list[str]) -> int:
    """Run the chosen mutants; 1 if one of them survived. With --relocate: mend the lists."""
    if words == ["--relocate"]:
        left = relocate(sorted((TESTS / "mutants").glob("*.toml")), PACKAGE)
        print(f"{left} entries are left")
        return int(left > 0)
    chosen = [
        mutant
        for mutant in all_mutants()
        if not words or any(w in f"{mutant.list} {mutant.name} {mutant.test}" for w in words)
    ]
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, folder / "trainer_nb", ignore=ignored)
        tests = sorted({mutant.test for mutant in chosen})
        code, said = run_tests(tests, folder, seconds=600) if chosen else (0, "")
        if code != 0:
            failures += 1
            print(f"FAILS WITHOUT A MUTANT\n{said}")
        for mutant in chosen:
            wrong = outcome(mutant, folder)
            failures += wrong is not None
            said = "killed  " if wrong is None else "SURVIVED"
            print(f"{said}  {mutant.list}: {mutant.name}", flush=True)
            if wrong:
                print(f"    {mutant.test}: {wrong}")
    print(f"{len(chosen)} mutants, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
