"""Text that users read is plain technical English: no pattern of the old style comes back.

`python tests/test_plain_english.py` lists all places that remain, also those in `TO_DO`.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import typer

if __name__ == "__main__":  # pytest has this folder in its path
    sys.path.append(str(Path(__file__).parent / "support"))

from commands import run_command
from structure import list_statements, name_module, parse_modules, walk
from weightctl.cli import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "weightctl"

# Text that is still to be rewritten: remove a line when its text is done.
TO_DO: set[str] = set()

# Each pattern of the old style, and what to write instead.
PATTERNS = {
    r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b)\w+": "is not a ...",
    r"\b(?:is|are|be|was|were|been) told\b": "is reported, is listed",
    r"\btold of\b|\btold that\b|\btold apart\b|\btold from\b": "reported, distinguished",
    r"\bcannot be told\b": "cannot be determined",
    r"\bstands? for one another\b": "are swapped",
    r"\bof which\b": "a sentence of its own, or `whose`",
    r"\bfor which there (?:is|are)\b": "that ... cannot express",
    r"\b(?:which|that|what) (?:is|are) none\b": "which is not a",
    r"\bsuch as it\b": "as it",
    r"\bonly such\b": "name what is meant",
    r"\bno such\b(?! file or directory)": "name what is missing",
    r"\bknown again\b": "detected",
    r"\bstands? twice\b": "appears twice",
    r"\botherwise than\b": "differently from",
    r"\bcalled otherwise\b": "with other names",
    r"\bsays? otherwise\b|\bsaid otherwise\b": "states something else",
    r"\bcomes? out otherwise\b": "differs",
    r"\ball the same\b": "still, anyway",
    r"\banew\b": "again",
    r"\bin vain\b": "without success",
    r"\bfor want of\b": "because ... is missing",
    r"\bnothing (?:says|tells)\b": "... is not stated",
    r"\bnobody\b|\banybody\b|\bsomebody\b": "name who is meant, or use the passive",
    r"\bbelongs? to none\b": "is not part of",
    r"\bis of no\b|\bare of no\b|\bof no part\b": "has no ..., is not a part of",
    r"\b(?:which|that|as|what) (?:\S+ ){0,3}has not\b(?! \w)": "which ... does not have",
    r"\bnot sound\b|\bunsound\b": "invalid",
    r"\bweightctl (?:does not know|knows)\b": "weightctl does not support, supports",
    r"\bknown are\b": "supported are",
    r"\b(?:number|integer)s? from \d on\b": "an integer of at least ...",
    r"\bis said to\b|\bare said to\b|\bit is said\b": "is declared, is stated",
    r"\bshared? out\b|\bshares out\b": "divided",
    r"\bcut alike\b|\bwhat is alike\b|\bthose that are alike\b": "cut in the same way, similar",
    r"\bno word for\b|\bno words for\b": "cannot express",
    r"\bbehind (?:the|it|its|that|this|them)\b": "after",
    r"\bput together as\b": "joined",
    r"\bthan (?:any|one) can have meant\b": "too many",
    r"\bmay you\b": "check that ...",
    r"\bmade of what\b|\bof what are not\b": "name what is meant",
    r"\bdoes not lie in\b|\blie in memory\b": "is not stored in",
    r"\bthat there (?:is|are)\b": "that exists, that is supported",
    r"\b(?:that|which) there (?:is|are) not\b": "that does not exist",
    r"\bholds? what\b|\bhas what is neither\b": "has a value that is not",
    r"\bpass --": "use --NAME (name= in Python)",
    r"\bor say --|\bleave --\S+ out\b": "use --NAME, leave out --NAME",
    r"\bor not all there\b|\bnot all there\b": "incomplete",
    r"\bmatters? most\b": "has the largest effect",
    r"\bkey-value heads?\b": "KV head",
    r"\blicen(?:ce|ces|ced)\b": "license",
    r"\b\w*(?:olour|avour|ehaviour|eighbour|onour)\w*": "the American spelling: color, behavior",
    r"\b(?:recogn|organ|optim|summar|serial|initial|normal|token|util|synchron|minim|maxim)is"
    r"(?:e|es|ed|ing|ation)\b": "the American spelling: recognize, organize",
    r"\b(?:de)?quantis(?:es|ed|ing|ation)\b|\banalys(?:e|ed|ing)\b": "quantize, analyze",
    r"\b(?:mis)?spelt\b|\blearnt\b": "spelled, learned",
    r"\b(?:labell|modell|cancell|travell)(?:ed|ing)\b": "labeled, modeled, canceled",
    r"\b(?:centre|centred|metre|grey|fulfil|artefact|judgement)s?\b": "center, gray, fulfill",
    r"\brotations? (?:are|is|that are) stretched\b|\bstretched\b": "RoPE scaling",
}
# Each pattern begins where a word does, so that no other places are tried.
_OLD = re.compile(
    r"\b(?=\w)(?:" + "|".join(f"(?P<p{n}>{pattern})" for n, pattern in enumerate(PATTERNS)) + ")",
    re.IGNORECASE,
)
_ADVICE = list(PATTERNS.values())

# Text in which a pattern is right, each with its reason.
EXEMPT = {
    "LICENCE": "the name of a file, as the authors of some models spell it",
    "No such file or directory": "the text of the operating system",
    "nobody on Earth would know of it": "the built-in text that models run on, which is data",
}


class Offender(NamedTuple):
    """A text with a pattern of the old style."""

    place: str
    found: str
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place}: `{self.found}` in {self.text!r:.150}; write: {self.advice}"


def offenders() -> Iterator[Offender]:
    """Yield every text with a pattern of the old style."""
    for place, text in texts():
        for found, shown, advice in find_old_style(" ".join(text.split())):
            yield Offender(place, found, shown, advice)


@cache
def find_old_style(text: str) -> list[tuple[str, str, str]]:
    """Return what matches, the text around it, and the advice; half of all texts are repeated."""
    for right in EXEMPT:
        text = text.replace(right, "")
    return [
        (
            match[0],
            text[max(match.start() - 40, 0) : match.end() + 60],
            _ADVICE[int((match.lastgroup or "p0")[1:])],
        )
        for match in _OLD.finditer(text)
    ]


def texts() -> Iterator[tuple[str, str]]:
    """Yield all text that users read, each with its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in texts_of(path):
            yield f"{path.relative_to(ROOT)}:{line}", text
    tables = (path for name in ("check", "verify") for path in (PACKAGE / name).rglob("*.toml"))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(tables)):
        for line, text in paragraphs(path.read_text()):
            yield f"{path.relative_to(ROOT)}:{line}", text
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = changes[: changes.find("\n## ", changes.find("\n## ") + 1)]
    for line, text in paragraphs(newest):
        yield f"CHANGELOG.md:{line}", text
    for command in ([], *([name] for name in COMMANDS), *(["help", name] for name in COMMANDS)):
        arguments = command if command[:1] == ["help"] else [*command, "--help"]
        shown = run_command(*arguments, COLUMNS="200").stdout
        for number, text in paragraphs(shown):
            yield f"--help of weightctl {' '.join(command)}:{number}".replace(" :", ":"), text


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a document, each with the number of its first line."""
    number, lines = 1, list[str]()
    for at, line in enumerate([*text.splitlines(), ""], start=1):
        if line.strip():
            number = number if lines else at
            lines.append(line)
        elif lines:
            yield number, "\n".join(lines)
            lines = []


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the string literals of a module, and the docstrings of its public objects."""
    _, tree = parse_modules(PACKAGE)[name_module(PACKAGE, path)]
    private = {id(each) for each in _private_docstrings(tree)}
    nodes = walk(tree)
    within = {id(part) for each in nodes if isinstance(each, ast.JoinedStr) for part in each.values}
    for each in nodes:
        if isinstance(each, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in each.values)
            yield each.lineno, "".join(map(str, parts))
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            hidden = id(each) in private or id(each) in within
            yield from () if hidden else ((each.lineno, each.value),)


def _private_docstrings(tree: ast.AST, *, is_private: bool = False) -> Iterator[ast.Constant]:
    for each in list_statements(tree):
        hidden = is_private
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            hidden = is_private or each.name.startswith("_")
            match each.body[0]:
                case ast.Expr(value=ast.Constant(value=str()) as docstring) if hidden:
                    yield docstring
                case _:
                    pass
        yield from _private_docstrings(each, is_private=hidden)


@pytest.fixture(scope="module")
def found() -> list[Offender]:
    """All texts with a pattern of the old style."""
    return list(offenders())


def test_no_text_that_users_read_has_a_pattern_of_the_old_style(found: list[Offender]) -> None:
    wrong = [each for each in found if not each.place.startswith(tuple(TO_DO))]
    assert not wrong, "\n".join(map(str, wrong))


def test_every_text_that_is_still_to_do_has_an_offender(found: list[Offender]) -> None:
    places = [each.place for each in found]
    done = [entry for entry in TO_DO if not any(place.startswith(entry) for place in places)]
    assert not done, f"nothing is left in {done}: remove these entries of TO_DO"


@pytest.mark.parametrize(
    "text",
    [
        "`int4` is no recipe",
        "a suffix that says otherwise is told of",
        "the two tensors stand for one another",
        "`w` stands twice",
        "the pickle is not sound",
        "--exclude leaves it out; known are a, b",
        "8 key-value heads",
        "pass --force to replace it",
        "the licence of the model",
        "no format recognises the file",
        "neighbouring rows differ",
        "a misspelt name",
    ],
)
def test_text_of_the_old_style_is_found(text: str) -> None:
    assert _OLD.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "there is no tensor with this name",
        "the file is no longer readable",
        "weightctl cannot read this format",
        "to replace it, use --force (force=True in Python)",
        "otherwise, the rows are precise",
    ],
)
def test_plain_text_is_not_found(text: str) -> None:
    assert not _OLD.search(text)


if __name__ == "__main__":
    remaining = sorted(map(str, offenders()))
    typer.echo("\n".join(remaining))
    typer.echo(f"{len(remaining)} places")
    sys.exit(1 if remaining else 0)
