"""Patterns of names: globs, number ranges as listings show them, and regular expressions."""

from __future__ import annotations

import fnmatch
import re
import warnings
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError, WeightctlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# `[0-27]` or `[0-2,14]`. With single digits, brackets match one of these characters, as in a shell;
# so does `[10]`, which a listing never shows.
_NUMBERS = re.compile(r"\[(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)\]")
# The characters that make a text a pattern.
PATTERN = frozenset("*?[")
_MOST_NUMBERS = 100_000
_LONGEST = 80


def select_names(
    names: Iterable[str], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> list[str]:
    """Return the names that match a pattern of `include` (or all) and no pattern of `exclude`.

    `*` and `?` also match dots, and `[abc]` matches one of these characters. `[0-27]` and
    `[0-2,14]` match numbers, as listings show similar layers. Raises `WeightctlError` if a range
    has more numbers than a model has layers.
    """
    wanted = _any_of(include) if include else None
    unwanted = _any_of(exclude) if exclude else None
    return [
        name
        for name in names
        if (wanted is None or wanted(name)) and (unwanted is None or not unwanted(name))
    ]


def regular_expression(text: str) -> re.Pattern[str]:
    """Compile a regular expression that a user has written.

    Raises `ConversionError` if it is invalid, nested too deeply, or too large.
    """
    try:
        with warnings.catch_warnings():
            # A later version of Python may give `[[` another meaning.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        raise ConversionError(
            f"`{shown}` is not a valid regular expression: {error}",
            hint="escape special characters with a backslash, such as `\\.` or `\\(`; `.*` "
            "matches any text",
        ) from error


def _any_of(patterns: Sequence[str]) -> Callable[[str], object]:
    return re.compile("|".join(map(_expression, patterns))).match


def _expression(pattern: str) -> str:
    parts: list[str] = []
    end = 0
    for found in _NUMBERS.finditer(pattern):
        if not found[1].isdecimal() and re.search(r"\d\d", found[1]):
            parts += [_glob(pattern[end : found.start()]), _match_numbers(found[1])]
            end = found.end()
    return "(?:" + "".join([*parts, _glob(pattern[end:])]) + r")\Z"


def _glob(pattern: str) -> str:
    return fnmatch.translate(pattern).removesuffix(r"\Z")


def _match_numbers(text: str) -> str:
    numbers: set[int] = set()
    for run in text.split(","):
        first, _, last = run.partition("-")
        if int(last or first) - int(first) > _MOST_NUMBERS:
            raise WeightctlError(
                f"`[{text}]` has too many numbers", hint="use `*` to match any number"
            )
        numbers |= set(range(int(first), int(last or first) + 1))
    return r"(?<!\d)(?:" + "|".join(map(str, sorted(numbers))) + r")(?!\d)"
