"""The values beside tensors in other formats, where the metadata has them from PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.formats.pickles.records import PickledCall
from weightctl.formats.pytorch.levels import parse_levels, read_stated_values
from weightctl.formats.pytorch.records import Size
from weightctl.formats.pytorch.values import plain
from weightctl.storage.byte_range import HeldRange
from weightctl.weights.info import Leaf

if TYPE_CHECKING:
    from weightctl.weights.info import Header

__all__ = ["with_leaves"]

_NOTHING = HeldRange(memoryview(b""))


def with_leaves(header: Header) -> Header:
    """Return a header with the leaves that a PyTorch file of the same content would have.

    They are the values of its metadata that the levels name; none if these are invalid.
    """
    leaves = {
        place: _leaf(value.kind, value.made)
        for place, value in read_stated_values(parse_levels(header.metadata), header.metadata)
        if place not in header.tensors and place not in header.aliases
    }
    return header._replace(leaves=leaves) if leaves else header


def _leaf(kind: str, made: Any) -> Leaf:
    if kind in {"{}", "[]", "()"}:
        return Leaf("dict" if kind == "{}" else "list" if kind == "[]" else "tuple", kind)
    if type(made) is PickledCall:
        made = complex(*made.arguments) if kind == "complex" else Size(*made.arguments)
    value = plain(made, _NOTHING)
    return Leaf(kind) if value is None else value.leaf
