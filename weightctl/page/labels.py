"""Formats figures and names as short texts for pages."""

from __future__ import annotations

from math import isfinite

from weightctl.text.wording import number, printable

# Characters that look like a hyphen and a letter, so they are written as escapes.
DASH, TIMES = "\u2013", "\u00d7"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def show_tick(value: float) -> str:
    """Return a short label for an axis: `0.02`, `3.2·10⁻⁵`."""
    if value == 0 or not isfinite(value) or 1e-4 < abs(value) < 1e5:
        return number(value + 0.0, 2) if isfinite(value) else number(value)
    digits, _, power = f"{value:.1e}".partition("e")
    raised = str(int(power)).translate(_RAISED)
    digits = digits.removesuffix(".0")
    return f"10{raised}" if digits == "1" else f"{digits}·10{raised}"


def show_times(value: float) -> str:
    """Return a factor with a multiplication sign."""
    return f"{number(value, 2)} {TIMES}"


def shorten(text: str, length: int) -> str:
    """Return a printable text of at most `length` characters, with an ellipsis in its middle."""
    text = printable(text)
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"
