"""Parsing and formatting of sizes in bytes."""

from __future__ import annotations

import re

from weightctl.errors import WeightctlError

_UNITS: dict[str, int] = {
    unit + suffix: base**power
    for power, unit in enumerate("kmgtp", start=1)
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_UNITS["b"] = 1


def parse_size(text: str, *, unit: str = "") -> int:
    """Parse a size: `5GB` (decimal), `5GiB` (binary) or `5G`; `unit` applies to a bare number.

    Raises `WeightctlError` for anything else, and for a bare number if `unit` is empty.
    """
    if text.startswith("--"):
        raise WeightctlError(
            f"a size in bytes is missing before {text}", hint="write it as 5GB, 512MiB or 64kB"
        )
    match = re.fullmatch(r"\s*(\d{1,99})(?:\.(\d{1,99}))?\s*([a-zA-Z]*)\s*", text, re.ASCII)
    found = None if match is None else (match[3] or unit).lower()
    if match is None or (found and found not in _UNITS):
        raise WeightctlError(
            f"`{text}` is not a size in bytes", hint="write it as 5GB, 512MiB or 64kB"
        )
    if not found:
        number = text.strip()
        raise WeightctlError(
            f"the size `{number}` has no unit", hint=f"write {number}GB, {number}MiB or {number}GiB"
        )
    decimals = match[2] or ""
    one = int("1".ljust(len(decimals) + 1, "0"))
    return int(match[1] + decimals) * _UNITS[found] // one


def format_size(nbytes: int) -> str:
    """Format bytes in decimal units with three significant digits: `98.4 MB`."""
    return _format_in_units(nbytes, ("B", "kB", "MB", "GB", "TB", "PB"), " ")


def format_count(count: int) -> str:
    """Format a count with three significant digits: `135 M`."""
    return _format_in_units(count, ("", "K", "M", "B", "T", "Q"), " ").rstrip()


def _format_in_units(number: int, units: tuple[str, ...], space: str) -> str:
    if number < 1000:
        return f"{number}{space}{units[0]}"
    value = float(number)
    power = 0
    while value >= 999.5 and power < len(units) - 1:
        value /= 1000
        power += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}{space}{units[power]}"
