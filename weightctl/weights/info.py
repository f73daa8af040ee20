"""What a checkpoint's header says, without a byte of its tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.dtype import Encoding
    from weightctl.weights.metadata import Value

__all__ = ["Extent", "Header", "TensorInfo"]


class TensorInfo(NamedTuple):
    """A tensor's name, logical shape (outermost dimension first) and encoding."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that the elements fill."""
        return self.encoding.nbytes(self.shape)

    @property
    def row(self) -> int:
        """The number of elements in a row, the contiguous dimension; 1 for a scalar."""
        return self.shape[-1] if self.shape else 1


class Extent(NamedTuple):
    """Where a tensor's bytes lie: the number of the file in `Header.files`, offset and length."""

    file: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything a checkpoint says about itself.

    `tensors` and `extents` have the same names, in the order of the file. `aliases` are further
    names of tensors (tied weights). `metadata` keeps the types the file gives its values.
    `alignment` is the boundary in bytes that tensors start on. `index` is the path of the file
    that lists the parts. `notes` are what a person should be told of how it was opened.
    """

    format: str
    files: tuple[str, ...]
    tensors: Mapping[str, TensorInfo]
    extents: Mapping[str, Extent]
    metadata: Mapping[str, Value] = field(default_factory=dict[str, "Value"])
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    alignment: int = 1
    big_endian: bool = False
    index: str | None = None
    notes: tuple[str, ...] = ()
