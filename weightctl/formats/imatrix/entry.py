"""Entries of an importance matrix: sums of squares and their counts, as weights of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.codecs.base import F32

__all__ = ["ColumnValues", "ColumnWeights", "ImportanceEntry", "Recorded"]


class ColumnWeights(Protocol):
    """One weight for each column of each matrix; a two-dimensional array is one, too."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of matrices, and of their columns."""
        ...

    def __getitem__(self, matrix: int, /) -> F32:
        """Return the weights of a matrix, shape (n,); values in a file are read now."""
        ...


class ColumnValues(Protocol):
    """Values for a tensor whose shape is not known yet; a flat array is one, too."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def reshape(self, matrices: int, columns: int, /) -> ColumnWeights:
        """Return the values as weights of matrices, of this shape."""
        ...


class _ImportanceNumbers(Protocol):
    """Numbers that are read from a file on demand."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def read(self, start: int, stop: int) -> F32:
        """Return the numbers from `start` on; raises `FormatError` if the file is now shorter."""
        ...


class ImportanceEntry(NamedTuple):
    """The `size` sums of a tensor's columns, and their place in a file.

    `counts` has the divisor of the sums for each matrix, or one for all matrices.
    """

    name: str
    sums: _ImportanceNumbers
    counts: _ImportanceNumbers
    path: str
    offset: int

    @property
    def size(self) -> int:
        """The total number of columns of all matrices."""
        return self.sums.size

    def reshape(self, matrices: int, columns: int, /) -> _MeanSquares:
        """Return the mean squares for a tensor of this many matrices."""
        return _MeanSquares(self, (matrices, columns))


class Recorded(NamedTuple):
    """The entries of a file, their text and its number of chunks: empty and 0 if unknown."""

    entries: Sequence[ImportanceEntry]
    dataset: str = ""
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class _MeanSquares:
    """The mean square for each column of each matrix; 1 for a matrix that was never used.

    They are computed as llama.cpp's quantize does. They are read and checked on demand, and only
    one row is in memory.
    """

    entry: ImportanceEntry
    shape: tuple[int, int]

    def __getitem__(self, matrix: int, /) -> F32:
        """Return those of a matrix.

        Raises `FormatError` for numbers that cannot be a sum of squares or a count.
        """
        matrices, columns = self.shape
        if not 0 <= matrix < matrices:
            raise IndexError(matrix)
        try:
            return self._means(matrix * columns, (matrix + 1) * columns)
        except MemoryError as error:
            raise FormatError(
                self.entry.path,
                self.entry.offset,
                f"there is not enough memory for {columns} values of `{self.entry.name}`",
            ) from error

    def _means(self, start: int, stop: int) -> F32:
        import numpy as np  # only quantization needs this

        entry = self.entry
        sums = entry.sums.read(start, stop)
        # The number of matrices in the file can differ from that of the tensor.
        width = entry.size // entry.counts.size
        first, last = start // width, (stop - 1) // width
        counts = entry.counts.read(first, last + 1)
        _require_sound(entry, start, sums, counts)
        # Counts are whole numbers; llama.cpp rounds others, halves away from zero.
        whole = np.floor(counts.astype(np.float64) + 0.5).astype(np.float32)
        if len(whole) > 1:
            whole = whole[np.arange(start, stop) // width - first]
        return np.where(whole > 0, sums / np.maximum(whole, np.float32(1)), np.float32(1))


def _require_sound(entry: ImportanceEntry, start: int, sums: F32, counts: F32) -> None:
    import numpy as np

    sound = np.isfinite(sums) & (sums >= 0)
    if not sound.all():
        index = int(np.argmin(sound))
        raise FormatError(
            entry.path,
            entry.offset + 4 * (start + index),
            f"`{entry.name}` has {sums[index]:g} at element {start + index}, which is not "
            "a sum of squares",
            hint="the file is damaged, or the model computed invalid numbers; create it again",
        )
    if not np.isfinite(counts).all():
        raise FormatError(
            entry.path,
            entry.offset,
            f"a count of `{entry.name}` is not finite",
            hint="the file is damaged; create it again",
        )
