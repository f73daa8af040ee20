"""Elements of HTML and SVG, in which text from files is always escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Markup", "element", "join", "mark_code", "show_decimal"]


class Markup(str):
    """Text that is already markup; any other text is escaped when it is put in an element."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element with its children and attributes.

    In an attribute's name, a final underscore is removed, and others become hyphens. Attributes
    with the value None are left out. Numbers have up to two decimals.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_show_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if not children and tag in {"rect", "line", "path", "circle", "meta"}:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{join(children)}</{tag}>")


def join(children: Sequence[str]) -> Markup:
    """Return elements and texts joined in order."""
    return Markup("".join(map(_escape_child, children)))


def mark_code(text: str) -> Markup:
    """Return a text with the parts between backticks as code, and its line breaks kept."""
    lines = [_mark_code_in_line(line) for line in text.split("\n")]
    return Markup("<br/>".join(line for line in lines if line))


def _mark_code_in_line(line: str) -> Markup:
    pieces = line.split("`")
    if len(pieces) % 2 == 0:
        return join([line])
    return join(
        [element("code", piece) if number % 2 else piece for number, piece in enumerate(pieces)]
    )


def show_decimal(number: float) -> str:
    """Return a finite number with up to two decimals."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if number % 1 else f"{number:.0f}"


def _show_attribute(value: str | float) -> str:
    return _escape_child(value) if isinstance(value, str) else show_decimal(value)


def _escape_child(text: str) -> str:
    return text if isinstance(text, Markup) else escape(printable(text))
