"""Paths of adapters, which may end in a weight: `adapter:0.5`."""

from __future__ import annotations

import os
from typing import NamedTuple, TypeAlias

from weightctl.errors import ConversionError


class AdapterPath(NamedTuple):
    """The path of an adapter, and the weight that its changes are multiplied by."""

    path: str
    weight: float = 1.0


# A path, which may end in a weight as in `adapter:0.5`, or a path and a weight.
AdapterLike: TypeAlias = "str | os.PathLike[str] | tuple[str, float]"


def parse_adapter(given: AdapterLike) -> AdapterPath:
    """Return a path with its weight; raises `ConversionError` if the weight is not finite."""
    if isinstance(given, tuple):
        return AdapterPath(os.fspath(given[0]), float(given[1]))
    path = os.fspath(given)
    stem, colon, text = path.rpartition(":")
    if not colon or not stem or os.path.exists(path) or text.startswith("//"):
        return AdapterPath(path)
    try:
        weight = float(text)
    except ValueError:
        return AdapterPath(path)
    if not abs(weight) < float("inf"):
        raise ConversionError(
            f"{text} is not a weight of an adapter", hint="use a number, as in adapter:0.5"
        )
    return AdapterPath(stem, weight)
