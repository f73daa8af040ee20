"""Grouping of names and sentences that differ only in layer or expert numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

_Item = TypeVar("_Item")

# A number that is a whole segment of a dotted name.
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def mask_numbers(text: str, sign: str = "N", most: int = 0) -> str:
    """Return text with a placeholder for the numbers in dotted names: `layers.N.mlp.up.weight`.

    If `most` is given, at most that many numbers are replaced.
    """
    return _NUMBER.sub(sign, text, count=most)


def group_alike(items: Iterable[_Item], key: Callable[[_Item], Hashable]) -> list[list[_Item]]:
    """Return groups of items with equal keys, ordered by the first item of each group."""
    groups: dict[Hashable, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [*groups.values()]
