"""Names, counts and numbers, as they stand in what people read."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["join_names", "number", "percent", "pluralize", "printable"]


def printable(text: str) -> str:
    """Return text in which nothing can hide, or turn, break or colour what stands around it."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )


def pluralize(count: int, noun: str) -> str:
    """Return a count and what is counted: `1 problem`, `2,000 problems`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def join_names(names: Sequence[object], most: int) -> str:
    """Return the first names and how many more there are: `a, b and 3 more`."""
    more = len(names) - most
    shown = ", ".join(map(str, names[:most]))
    return f"{shown} and {more} more" if more > 0 else shown


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many digits that count; powers of ten only where it is very large."""
    if isnan(value):
        return "NaN"
    if not isfinite(value):
        return "infinite"
    value += 0.0  # which makes 0 of -0
    if 10**digits <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(share: float, digits: int = 3) -> str:
    """Return a share of something: `6.95 %`."""
    return f"{number(100 * share, digits)} %" if isfinite(share) else number(share)
