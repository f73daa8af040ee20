"""Weights of the columns of matrices: an array in memory, or read from a file by the row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weightctl.codecs.base import F32

__all__ = ["ColumnValues", "ColumnWeights"]


class ColumnWeights(Protocol):
    """One weight per column for each of several matrices; an array of two dimensions is such."""

    @property
    def shape(self) -> tuple[int, ...]:
        """How many matrices, and of how many columns."""
        ...

    def __getitem__(self, matrix: int, /) -> F32:
        """Return the weights of a matrix, shape (n,); what is in a file is read for it."""
        ...


class ColumnValues(Protocol):
    """Numbers for a tensor whose shape they do not know; a flat array is such."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def reshape(self, matrices: int, columns: int, /) -> ColumnWeights:
        """Return them as weights of this many matrices, whose product is the size."""
        ...
