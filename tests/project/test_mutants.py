"""Every planted mistake in tests/mutants still fits; tests/run_mutants.py shows it is noticed."""

import pytest
from mutant_places import NoPlace, place, planted
from run_mutants import all_mutants, mutants_of, relocate

MODULE = '''
class Loop:
    """Goes round."""

    def go(self, steps):
        for step in range(steps):  # each step
            if self.at_end(step):
                self.told(
                    "the end of "
                    f"step {step}",
                    step,
                )
                return False
        return self.told("all", steps)

    def rest(self):
        self.steps = 0
        if self.told("rest", 0):
            self.steps = 0


def apart(loop):
    return loop.told("all", 0)
'''


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda m: f"{m.list}: {m.name}")
def test_mutant_still_applies(mutant):
    """Its statement occurs exactly once, and the test that must fail exists."""
    assert mutant.problem() is None


@pytest.mark.parametrize(
    "old",
    [
        'self.told(f"the end of step {step}", step)',
        "for step in range(\n        steps,\n):\n    if self.at_end(step):",
        "\n    if self.at_end(step):  # another comment\n",
    ],
)
def test_a_wrapped_statement_is_found(old):
    """Line breaks, split strings, comments and a comma before a bracket make no difference."""
    start, end = place(MODULE, "Loop.go", old)
    assert old.split("(")[0].split()[0] in MODULE[start:end]
    assert planted(MODULE, "Loop.go", old, "pass").count("pass") == 1


@pytest.mark.parametrize(
    ("function", "old", "words"),
    [
        ("Loop.rest", "self.steps = 0", "2 times"),
        ("Loop.go", "self.steps = 0", "0 times"),
        ("", ".told(", "4 times"),
        ("Loop.stop", "self.steps = 0", "there is no Loop.stop"),
    ],
)
def test_a_statement_that_is_not_there_once_is_a_problem(function, old, words):
    """Twice in the function is as bad as never."""
    with pytest.raises(NoPlace, match=words):
        place(MODULE, function, old)


def test_the_function_decides():
    """The same tokens in two functions are two places."""
    assert "def apart(loop):\n    return loop.pass(" in planted(MODULE, "apart", "told(", "pass(")
    assert planted(MODULE, "Loop.go", 'return self.told("all", steps)', "pass").count("pass") == 1
    assert planted(MODULE, "apart", "return", "yield").endswith('yield loop.told("all", 0)\n')


def test_a_part_of_a_string_is_found_as_text():
    """It is not a sequence of whole tokens."""
    assert '"the start of "' in planted(MODULE, "Loop.go", "the end of", "the start of")


@pytest.mark.parametrize("by", [0, 4, 8])
def test_several_lines_move_with_the_statement(by):
    """The quote was written at another depth than the statement has now."""
    blank = " " * by
    old = f"\n{blank}        if self.at_end(step):\n{blank}            self.told(\n"
    new = f"\n{blank}        step += 1\n\n{blank}        if step:\n{blank}            self.told(\n"
    text = planted(MODULE, "Loop.go", old, new)
    compile(text, "loop.py", "exec")
    lines = "            step += 1\n\n            if step:\n                self.told(\n"
    assert f"each step\n{lines}" in text


@pytest.mark.parametrize("blank", ["", " " * 4, "\n    ", "\n" + " " * 16])
def test_a_statement_that_goes_takes_its_line_along(blank):
    """Nothing stays of the line, and the body that is left is Python."""
    text = planted(MODULE, "Loop.go", f"{blank}return False", "")
    compile(text, "loop.py", "exec")
    assert ")\n        return self" in text


def test_a_moved_method_is_relocated(tmp_path, capsys):
    """File and function change in the list, nothing else; what is nowhere is printed."""
    package, listed = tmp_path / "package", tmp_path / "test_loop.toml"
    (package / "core").mkdir(parents=True)
    (package / "loop.py").write_text("class Loop:\n    pass\n", encoding="utf-8")
    moved = MODULE.replace("Loop", "Walk")
    (package / "core" / "walk.py").write_text(moved, encoding="utf-8")
    text = "# A list\n" + "".join(
        f"""[[mutant]]\nname = "{name}"\nfile = "loop.py"\nfunction = "Loop.{function}"
old = '''\n            {old}\n'''\nnew = ""\ntest = "test_loop.py::test_it"\n\n"""
        for name, function, old in (
            ("one", "go", "return False"),
            ("many", "go", "self.told("),
            ("none", "go", "return True"),
        )
    )
    listed.write_text(text, encoding="utf-8")
    assert relocate([listed], package) == 1
    went = text.replace('"loop.py"', '"core/walk.py"', 2).replace("Loop.go", "Walk.go", 2)
    assert listed.read_text(encoding="utf-8") == went
    assert [m.fits(package) for m in mutants_of(listed)] == [True, True, False]
    assert "LEFT   test_loop: none: loop.py Loop.go\n    return True" in capsys.readouterr().out
