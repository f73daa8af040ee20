"""Changes of a manifest, and the error of reading it."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from weightctl.errors import FormatError
from weightctl.formats.sharded.manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Document = dict[str, Any]
    Change = Callable[[Document], object]


def refusal(path: Path) -> str:
    """Return why a manifest is refused, which is said of it and with a hint."""
    with pytest.raises(FormatError) as raised:
        read_manifest(str(path))
    assert raised.value.path == str(path)
    assert raised.value.hint
    return raised.value.reason


def at(*keys: Any, to: Any) -> Change:
    """Return what puts something else at a place of the document."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = to

    return change


def without(*keys: Any) -> Change:
    """Return what takes away what is at a place of the document."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        del document[keys[-1]]

    return change


NORM, W, Q = (("ranks", 0, "tensors", number) for number in range(3))
CUT = (*W, "pieces", 0, "cuts", 0)


def twice(*keys: Any) -> Change:
    """Return what repeats the first entry of a list."""

    def change(document: Any) -> None:
        for key in keys:
            document = document[key]
        document.append(deepcopy(document[0]))

    return change


def both(first: Change, second: Change) -> Change:
    def change(document: Document) -> None:
        first(document)
        second(document)

    return change
