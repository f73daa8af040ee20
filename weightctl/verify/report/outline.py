"""The outline of a report: sections of what was found, which renderers write in their own ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.verify.report.markup import Markup
    from weightctl.verify.results import Problem

__all__ = [
    "Block",
    "Bullets",
    "Chart",
    "CheckLine",
    "Column",
    "Fact",
    "Facts",
    "Outline",
    "OutlineTable",
    "Paragraph",
    "ProblemList",
    "Row",
    "Section",
    "State",
]


State: TypeAlias = Literal["good", "wrong", "different", "skipped"]


class CheckLine(NamedTuple):
    """A check, what it looks at, and what came of it."""

    name: str
    about: str
    verdict: str
    state: State
    summary: str
    seconds: float


class Column(NamedTuple):
    """A column of a table: names and other texts of files are code, numbers stand at the right.

    One that is not `brief` is left out where there is little room.
    """

    title: str
    kind: Literal["name", "text", "code", "number"] = "text"
    brief: bool = True


class Row(NamedTuple):
    """A row of a table. `note` belongs to its first cell; `share`, 0 to 1, is drawn as a bar."""

    cells: tuple[str, ...]
    is_problem: bool = False
    note: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineTable:
    """A table with a title and a caption, which may be empty.

    In one that `marks_problems` rows may be problems. One that `is_folded` is shown on request, and
    left out where there is no way to ask.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""
    caption: str = ""
    marks_problems: bool = False
    is_folded: bool = False


class Fact(NamedTuple):
    """A number with its name and its meaning."""

    name: str
    value: str
    meaning: str


class Facts(NamedTuple):
    """Facts that stand side by side."""

    facts: tuple[Fact, ...]


class Paragraph(NamedTuple):
    """A text that explains what comes after it."""

    text: str


class Bullets(NamedTuple):
    """Sentences one below the other."""

    items: tuple[str, ...]


class ProblemList(NamedTuple):
    """Problems in the order in which they were found."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart, and what stands in for it where pictures cannot be drawn.

    `draw` returns SVG; a `sentence` says all that there is to be seen where it is not empty. Where
    pictures cannot be drawn there are a curve of `values` with a text that says what it is, and a
    table; nothing without `values`.
    """

    title: str
    caption: str
    draw: Callable[[], Markup]
    sentence: str = ""
    values: tuple[float, ...] = ()
    text: str = ""
    table: OutlineTable | None = None


Block: TypeAlias = Paragraph | Bullets | ProblemList | Facts | OutlineTable | Chart


class Section(NamedTuple):
    """A titled part of a report."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A report in the order in which it is read."""

    path: str
    reference: str | None
    description: str
    verdict: str
    is_good: bool
    checks: tuple[CheckLine, ...]
    sections: tuple[Section, ...]
