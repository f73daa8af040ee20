"""The content of both forms of an importance matrix: sums of squares, and their counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.codecs.base import F32

__all__ = ["ImportanceEntry", "ImportanceNumbers", "MeanSquares", "Recorded"]


class ImportanceNumbers(Protocol):
    """Numbers that stay in their file until they are asked for."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def read(self, start: int, stop: int) -> F32:
        """Return those from `start` on; raises `FormatError` if the file has them no more."""
        ...


class ImportanceEntry(NamedTuple):
    """The sums of a tensor's columns, `size` of them, and where in which file they are.

    `counts` has a number for each matrix, or one for all: by how much its sums are divided.
    """

    name: str
    sums: ImportanceNumbers
    counts: ImportanceNumbers
    path: str
    offset: int

    @property
    def size(self) -> int:
        """How many columns all matrices have together."""
        return self.sums.size

    def reshape(self, matrices: int, columns: int, /) -> MeanSquares:
        """Return the mean squares for a tensor of this many matrices."""
        return MeanSquares(self, (matrices, columns))


class Recorded(NamedTuple):
    """The entries of a file, what they were measured on, and how much of it: empty and 0 unsaid."""

    entries: Sequence[ImportanceEntry]
    dataset: str = ""
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class MeanSquares:
    """The mean square for each column of each matrix, and 1 for those of one that was never used.

    They are as llama.cpp's quantize computes them, and read and checked on demand: no more than a
    row is in memory.
    """

    entry: ImportanceEntry
    shape: tuple[int, int]

    def __getitem__(self, matrix: int, /) -> F32:
        """Return those of a matrix.

        Raises `FormatError` for numbers that no sum of squares and no count can be.
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
        import numpy as np  # only what quantizes needs it

        entry = self.entry
        sums = entry.sums.read(start, stop)
        # Of the matrices as the file counts them, which need not be the tensor's.
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
