"""Weights in the form requested by `Checkpoint.allocate`, if they are stored in another form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.engine.arrays import tensor_of
from weightctl.engine.forms import mismatch
from weightctl.weights.buffer import Buffer
from weightctl.weights.tree import (
    Checkpoint,
    allocations_of,
    find_stored_name,
    header_of,
    info_of,
    source_of,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor

    from weightctl.engine.forms import WeightForm
    from weightctl.weights.data import WeightData
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.source import Source

__all__ = ["Allocated", "find_allocated"]


class Allocated:
    """A tensor of a tree, converted for each use and not kept."""

    def __init__(self, node: Checkpoint) -> None:
        self._node = node
        self.info: TensorInfo = _as_asked(node).info
        self.source: Source = source_of(node)

    is_borrowed = False

    @property
    def key(self) -> Hashable:
        """The source, its name for the tensor, and what that becomes."""
        name = header_of(self._node).aliases.get(self._node.name, self._node.name)
        return (id(self.source), name, self.info.encoding)

    def raw(self) -> Tensor:
        """Return the bytes, in memory of their own."""
        memory = _as_asked(self._node).view()
        return tensor_of(Buffer(memory, DType.uint8, (memory.nbytes,)))

    def expect(self) -> None:
        """Do nothing: the conversion takes longer than the reading."""


def find_allocated(entry: object, form: WeightForm) -> Allocated | None:
    """Return what was allocated under an entry of a registry, where a graph means that by a form.

    It does where its weight is one that the entry's tree gave, and these are blocks, or numbers of
    the form's dtype. Any other weight of the name is the numbers as they are stored.
    """
    if not isinstance(entry, Checkpoint) or not allocations_of(entry).gave(form.weight):
        return None
    info = _as_asked(entry).info
    is_meant = info.encoding.dtype in {None, form.dtype} and not mismatch(info, form)
    return Allocated(entry) if is_meant and info.encoding != info_of(entry).encoding else None


def _as_asked(node: Checkpoint) -> WeightData:
    """Return a node's data as `allocate` was asked for it; nothing is read before it is touched."""
    return allocations_of(node).take(node.name, find_stored_name(node))
