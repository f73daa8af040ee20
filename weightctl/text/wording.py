"""Formatting of names, counts and numbers for messages."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def printable(text: str) -> str:
    """Return text with control characters, line breaks and other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun: `1 problem`, `2,000 problems`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def say_more(count: int, what: str = "") -> str:
    """Return the number of omitted items: `and 3 more`, `and 3 more files`; empty for none."""
    return f"and {count} more {what}".rstrip() if count > 0 else ""


def join_names(names: Sequence[object], most: int, separator: str = ", ") -> str:
    """Return the first names and how many more there are: `a, b and 3 more`."""
    shown = separator.join(map(str, names[:most]))
    return f"{shown} {say_more(len(names) - most)}".rstrip() if len(names) > most else shown


def list_first(lines: Sequence[str], most: int, what: str = "") -> list[str]:
    """Return the first lines, and a line with the number of the others: `... and 3 more`."""
    more = say_more(len(lines) - most, what)
    return [*lines[:most], f"... {more}"] if more else [*lines]


def number(value: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits; only very large ones use exponents."""
    if isnan(value):
        return "NaN"
    if not isfinite(value):
        return "infinite"
    value += 0.0  # turns -0 into 0
    if 10**digits <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(share: float, digits: int = 3) -> str:
    """Format a fraction as a percentage: `6.95 %`."""
    return f"{number(100 * share, digits)} %" if isfinite(share) else number(share)


def join_ranges(segments: Sequence[str]) -> str:
    """Return different numbers, in order, as one text: `[0-2,4]`, or `4` for one number."""
    if len(segments) == 1:
        return segments[0]
    return f"[{','.join(list_ranges(map(int, segments)))}]"


def list_ranges(numbers: Iterable[int]) -> list[str]:
    """Return different numbers, in order, as texts with ranges: `0-3`, `6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
