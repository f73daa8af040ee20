"""The outline of a report: sections of content, which each renderer writes in its own format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.page.markup import Markup
    from weightctl.verify.results import Problem

State: TypeAlias = Literal["good", "wrong", "different", "skipped"]


class CheckLine(NamedTuple):
    """The name of a check, what it examines, and its result."""

    name: str
    about: str
    verdict: str
    state: State
    summary: str
    seconds: float


class Column(NamedTuple):
    """A column of a table, with the kind of its cells.

    Names and code, which are text from files, are shown as code, and numbers are right-aligned. A
    column that is not `brief` is left out of formats with little room.
    """

    title: str
    kind: Literal["name", "text", "code", "number"] = "text"
    brief: bool = True


class Row(NamedTuple):
    """A row of a table. `note` is added to its first cell; `share`, 0 to 1, is drawn as a bar."""

    cells: tuple[str, ...]
    is_problem: bool = False
    note: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineTable:
    """A table with a title and a caption, which may be empty.

    If `marks_problems` is set, rows may be marked as problems. A table that `is_folded` is shown on
    request, and left out of formats that cannot fold it.
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
    """Facts that are shown side by side."""

    facts: tuple[Fact, ...]


class Paragraph(NamedTuple):
    """A paragraph of text."""

    text: str


class Bullets(NamedTuple):
    """A list of sentences."""

    items: tuple[str, ...]


class ProblemList(NamedTuple):
    """Problems in the order in which they were found."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart, and its replacement in formats without pictures.

    `draw` returns the picture as SVG. If `sentence` is not empty, it is shown instead of the
    picture, since it says the same. Formats without pictures show a curve of `values`, the `text`
    that explains it, and the table; if there are no `values`, they leave out the chart.
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
    """The content of a report, in reading order, independent of the format."""

    path: str
    reference: str | None
    description: str
    verdict: str
    is_good: bool
    checks: tuple[CheckLine, ...]
    sections: tuple[Section, ...]
