"""Where a quoted statement stands in a module, and the module with another in its place.

A quote is compared token by token within one function, so line breaks, indentation, comments and
trailing commas may differ. A quote that is not a sequence of whole tokens, such as a part of a
string, is looked for as text.
"""

import ast
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

TOKEN = re.compile(
    r"""(?P<space>(?:\s|\\\n)+)
    |(?P<comment>\#[^\n]*)
    |(?P<long>[rRbBfFuU]{0,2}(?:\"\"\"(?:\\.|(?!\"\"\").)*\"\"\"|'''(?:\\.|(?!''').)*'''))
    |(?P<string>[rRbBfFuU]{0,2}(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<name>\w+)
    |(?P<sign>->|:=|\.\.\.|\*\*=?|//=?|>>=?|<<=?|[-+*/%&|^@<>=!]=|.)""",
    re.VERBOSE | re.DOTALL,
)
LONG = re.compile(r"([a-z]*)(\"\"\"|''')(.*)\2", re.DOTALL | re.IGNORECASE)
STRING = re.compile(r"([a-z]*)([\"'])(.*)\2", re.DOTALL | re.IGNORECASE)


class NoPlace(Exception):
    """The quoted text is not there, or more than once."""


@dataclass(frozen=True)
class Token:
    """One token: what it is compared by, and where its text begins and ends."""

    key: str
    start: int
    end: int


@dataclass(frozen=True)
class Scope:
    """One function, method or class: its qualified name, and where it begins and ends."""

    name: str
    start: int
    end: int


def tokens(text: str, comments: bool = False) -> list[Token]:
    """The tokens of a text; adjacent strings are one, a comma before a closing bracket is none."""
    found: list[Token] = []
    for match in TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "space" or (kind == "comment" and not comments):
            continue
        token = Token(_key(kind, match[0]), match.start(), match.end())
        joined = _joined(found[-1], token) if found else None
        if joined:
            found[-1] = joined
            continue
        if token.key in ")]}" and found and found[-1].key == ",":
            found.pop()
        found.append(token)
    return found


def _key(kind: str, text: str) -> str:
    """What a token is compared by; a space marks strings and comments, no other token has one."""
    if kind == "long":
        prefix, _, body = LONG.fullmatch(text).groups()
        return f"long {prefix.lower()} {' '.join(body.split())}"
    if kind == "string":
        prefix, _, body = STRING.fullmatch(text).groups()
        return f"string {prefix.lower()} {body}"
    return f"comment {' '.join(text[1:].split())}" if kind == "comment" else text


def _joined(first: Token, second: Token) -> Token | None:
    """Two adjacent strings as one; None where they are none, or of two sorts."""
    if not (first.key.startswith("string ") and second.key.startswith("string ")):
        return None
    (_, one, left), (_, two, right) = first.key.split(" ", 2), second.key.split(" ", 2)
    if one != two and ({one, two} != {"", "f"} or set(right if one else left) & set("{}")):
        return None
    return Token(f"string {max(one, two)} {left}{right}", first.start, second.end)


class Source:
    """A module's text with its functions and its tokens."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def scopes(self) -> list[Scope]:
        """The functions, classes and methods; what a function holds belongs to the function."""
        lines = [0]
        for line in self.text.split("\n"):
            lines.append(lines[-1] + len(line) + 1)
        found: list[Scope] = []

        def visit(node: ast.AST, prefix: str) -> None:
            for child in ast.iter_child_nodes(node):
                inner = prefix
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                    inner = f"{prefix}{child.name}."
                    found.append(Scope(inner[:-1], lines[first - 1], lines[child.end_lineno]))
                if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                    if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                        visit(child, inner)

        visit(ast.parse(self.text), "")
        return found

    @cached_property
    def plain(self) -> list[Token]:
        """The tokens without the comments."""
        return tokens(self.text)

    @cached_property
    def commented(self) -> list[Token]:
        """The tokens with the comments."""
        return tokens(self.text, comments=True)

    @cached_property
    def positions(self) -> dict[bool, dict[str, list[int]]]:
        """Where among the tokens each one stands, without and with the comments."""
        places: dict[bool, dict[str, list[int]]] = {False: {}, True: {}}
        for comments, stream in ((False, self.plain), (True, self.commented)):
            for number, token in enumerate(stream):
                places[comments].setdefault(token.key, []).append(number)
        return places

    def function_at(self, start: int, end: int) -> str:
        """The innermost function or class around a span; empty for the module."""
        around = [s for s in self.scopes if s.start <= start and end <= s.end]
        return max(around, key=lambda s: s.start).name if around else ""

    def parts(self, function: str) -> list[tuple[int, int]]:
        """Where a function begins and ends; a property and its setter have one name."""
        if not function:
            return [(0, len(self.text))]
        return [(s.start, s.end) for s in self.scopes if s.name == function]

    def spans(self, old: str) -> list[tuple[int, int]]:
        """Where a text stands in the module: by its tokens; if they are nowhere, as text."""
        for comments in (True, False) if "#" in old else (False,):
            if found := self._token_spans(old, comments):
                return found
        words = old.split()
        if not words:
            return []
        begin = old.index(words[0])
        core = old.strip()
        exact = [m.start() + begin for m in re.finditer(f"(?={re.escape(old)})", self.text)]
        if exact:
            return [(start, start + len(core)) for start in exact]
        loose = r"\s+".join(map(re.escape, words))
        return [m.span() for m in re.finditer(loose, self.text)]

    def _token_spans(self, old: str, comments: bool) -> list[tuple[int, int]]:
        """Where the tokens of a text stand."""
        keys = [token.key for token in _tokens_of_quote(old, comments)]
        stream = self.commented if comments else self.plain
        found = []
        for i in self.positions[comments].get(keys[0], []) if keys else []:
            part = stream[i : i + len(keys)]
            if [token.key for token in part] == keys:
                found.append((part[0].start, part[-1].end))
            elif _comment_begins(part, keys):  # a quote may end within a comment
                length = len(old.rstrip().rpartition("#")[2]) + 1
                found.append((part[0].start, part[-1].start + length))
        return found


def _comment_begins(part: list[Token], keys: list[str]) -> bool:
    """Whether tokens are the keys but for the end of a last comment."""
    same = [token.key for token in part[:-1]] == keys[:-1] and len(part) == len(keys)
    return same and keys[-1].startswith("comment ") and part[-1].key.startswith(keys[-1])


@lru_cache(maxsize=512)
def _tokens_of_quote(old: str, comments: bool) -> list[Token]:
    return tokens(old, comments)


@lru_cache(maxsize=256)
def source(text: str) -> Source:
    """A module's source; each text is read once."""
    return Source(text)


def place(text: str, function: str, old: str) -> tuple[int, int]:
    """Where in a function a text stands.

    Raises NoPlace if there is no such function, or if the text is not in it exactly once.
    """
    module = source(text)
    parts = module.parts(function)
    if not parts:
        raise NoPlace(f"there is no {function}")
    found = [s for s in module.spans(old) if any(a <= s[0] and s[1] <= b for a, b in parts)]
    for rule in (
        lambda s: module.function_at(*s) == function,
        lambda s: _same_breaks(text, s, old),
        lambda s: _same_text(text, s, old),
    ):
        if len(found) > 1:
            found = [s for s in found if rule(s)] or found
    if len(found) != 1:
        raise NoPlace(f"the old text occurs {len(found)} times in {function or 'the module'}")
    return found[0]


def _column(text: str, position: int) -> int | None:
    """The column of a position that has only blanks before it on its line; else None."""
    before = text[text.rfind("\n", 0, position) + 1 : position]
    return None if before.strip() else len(before)


def _line_ends(text: str, position: int) -> bool:
    """Whether no more than a comment follows on the line."""
    rest = text[position:].partition("\n")[0].strip()
    return not rest or rest.startswith("#")


def _same_breaks(text: str, span: tuple[int, int], old: str) -> bool:
    """Whether a span begins and ends a line where the quote does."""
    lead, tail = _around(old)
    begins = "\n" not in lead or _column(text, span[0]) is not None
    return begins and ("\n" not in tail or _line_ends(text, span[1]))


def _around(old: str) -> tuple[str, str]:
    """The blanks before and after a text."""
    return old[: len(old) - len(old.lstrip())], old[len(old.rstrip()) :]


def _same_text(text: str, span: tuple[int, int], old: str) -> bool:
    """Whether the text of a span, with the blanks around, is the quote letter by letter."""
    return _exact(text, span, old) is not None


def _exact(text: str, span: tuple[int, int], old: str) -> tuple[int, int] | None:
    """The span with the blanks of the quote around it, if it is the quote letter by letter."""
    lead, tail = _around(old)
    start, end = span[0] - len(lead), span[1] + len(tail)
    if lead and "\n" not in lead and _column(text, span[0]) not in (None, len(lead)):
        return None  # only the end of the indentation is the same
    return (start, end) if start >= 0 and text[start:end] == old else None


def planted(text: str, function: str, old: str, new: str) -> str:
    """The text with `new` where `old` stands in a function.

    Lines of `new` move by as many columns as the quote did. Raises NoPlace as `place` does.
    """
    span = place(text, function, old)
    exact = _exact(text, span, old)
    if exact and new.strip():
        return text[: exact[0]] + new + text[exact[1] :]
    start, end = span
    lead, tail = _around(old)
    lines = new.rstrip() if tail else new
    shift = _shift(text, span, old)
    if lead and _column(text, start) is not None:
        start -= _column(text, start)
        new = _moved(lines.lstrip("\n"), shift, 0)
    else:
        new = _moved(lines.lstrip() if lead else lines, shift, 1)
    if not new.strip() and _column(text, start) is not None and _line_ends(text, end):
        start -= _column(text, start)
        end = text.find("\n", end) + 1 or len(text)
        new = ""
    return text[:start] + new + text[end:]


def _shift(text: str, span: tuple[int, int], old: str) -> int:
    """By how many columns the lines of a quote moved: seen at the first that begins a statement."""
    comments = old.lstrip().startswith("#")
    ours, theirs = tokens(old, comments), tokens(text[span[0] : span[1]], comments)
    depth = 0
    for one, other in zip(ours, theirs, strict=False):
        before, now = _column(old, one.start), _column(text, span[0] + other.start)
        if depth <= 0 and one.start and before is not None and now is not None:
            return now - before
        depth += (one.key in "([{") - (one.key in ")]}")
    return 0


def _moved(lines: str, shift: int, first: int) -> str:
    """The lines from the `first` on with `shift` more blanks before them."""
    found = lines.split("\n")
    for number in range(first, len(found)):
        body = found[number].lstrip(" ")
        if body:
            found[number] = " " * (len(found[number]) - len(body) + shift) + body
    return "\n".join(found)
