"""Entries of an importance matrix: sums of squares and of products, and their counts."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.codecs.feedback import Curvature

    Bools = NDArray[np.bool_]

_DAMAGED = "the file is damaged, or the model computed invalid numbers; create it again"
# If all weights of a matrix are at most this, its blocks would contain only 0: the weighted sums
# are 0, or are rounded to 0 in float32.
_NEGLIGIBLE = 1e-30
# The rows of products that are read at a time.
_ROWS = 64


class ColumnWeights(Protocol):
    """A weight for each column of each matrix; two-dimensional arrays have this interface."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of matrices, and the number of columns of each."""
        ...

    def __getitem__(self, matrix: int, /) -> F32:
        """Return the weights of a matrix, shape (n,); values in a file are read now."""
        ...


def is_idle(weights: F32) -> bool:
    """Whether the text never reached a matrix with these weights: all of them are tiny."""
    return bool((weights <= _NEGLIGIBLE).all())


class ColumnValues(Protocol):
    """Values for a tensor whose shape is not known yet; flat arrays have this interface."""

    @property
    def size(self) -> int:
        """The number of values."""
        ...

    def reshape(self, matrices: int, columns: int, /) -> ColumnWeights:
        """Return the values as weights of this many matrices and columns."""
        ...


class Products(Protocol):
    """The mean products of the columns of a matrix's inputs; the same ones are equal."""

    def prepare_curvature(self, block: int) -> Curvature:
        """Return what rounding blocks of this many columns with error feedback needs."""
        ...


class _ImportanceNumbers(Protocol):
    """Values that are read from a file on demand."""

    @property
    def size(self) -> int:
        """The number of values."""
        ...

    def read(self, start: int, stop: int) -> F32:
        """Return the values from `start` to `stop`.

        Raises `FormatError` if the file is shorter than when it was opened.
        """
        ...


class ImportanceEntry(NamedTuple):
    """The sums of squares of a tensor's columns, and their offset in a file.

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
        """Return the mean squares for a tensor of this many matrices and columns."""
        return _MeanSquares(self, (matrices, columns))


@dataclass(frozen=True, slots=True, eq=False)
class Hessian:
    """The mean products of the columns of a matrix's inputs, x x^T, which stay in a file.

    `numbers` are the sums of the products: the upper triangle row by row, n (n + 1) / 2 values from
    `offset` on. `name` is that of the tensor under which they are stored.
    """

    path: str
    name: str
    columns: int
    numbers: _ImportanceNumbers
    counts: _ImportanceNumbers
    offset: int

    @property
    def count(self) -> int:
        """The number of inputs; it is read now. Raises `FormatError` if there was none."""
        count = float(self.counts.read(0, 1)[0])
        if not 0.5 <= count < 2**53:
            raise FormatError(
                self.path,
                self.offset,
                f"the products of `{self.name}` have a count of {count:g}",
                hint=_DAMAGED,
            )
        return int(count + 0.5)

    def read(self) -> F32:
        """Return the mean products, shape (n, n), symmetric.

        Raises `FormatError` for values that are not finite or, on the diagonal, negative.
        """
        import numpy as np  # only quantization needs this

        try:
            made = np.empty((self.columns, self.columns), np.float32)
        except MemoryError as error:
            raise self._refuse_size() from error
        # All values are read once, and only a part of them is in memory twice.
        for start in range(0, self.columns, _ROWS):
            self._read_rows(made, start, min(start + _ROWS, self.columns))
        made /= np.float32(self.count)
        return made

    def prepare_curvature(self, block: int, factors: F32 | None = None) -> Curvature:
        """Read the products, and prepare them for rounding blocks with error feedback.

        The inputs are divided by `factors` of the columns, if they are given. Raises `FormatError`
        for values that cannot be products of inputs.
        """
        from weightctl.codecs.feedback import prepare_curvature

        products = self.read()
        if factors is not None:
            products /= factors
            products /= factors[:, None]
        try:
            return prepare_curvature(products, block)
        except MemoryError as error:
            raise self._refuse_size() from error
        except ValueError as error:
            raise FormatError(
                self.path,
                self.offset,
                f"the products of `{self.name}` are not products of inputs: their matrix is not "
                "positive semidefinite",
                hint=_DAMAGED,
            ) from error

    def _refuse_size(self) -> FormatError:
        return FormatError(
            self.path,
            self.offset,
            f"there is not enough memory for the products of {self.columns} columns of "
            f"`{self.name}`",
            hint="use a machine with more memory",
        )

    def _read_rows(self, made: F32, start: int, stop: int) -> None:
        """Read rows of the triangle into `made`, and mirror them."""
        import numpy as np

        first = self._place(start)
        values = self.numbers.read(first, self._place(stop))
        diagonal = np.array([self._place(row) - first for row in range(start, stop)])
        sound = np.isfinite(values)
        sound[diagonal] &= values[diagonal] >= 0
        if not sound.all():
            raise _refuse_value(self, first, values, sound, "products")
        for row, at in zip(range(start, stop), diagonal, strict=True):
            made[row, row:] = values[at : at + self.columns - row]
            made[row:stop, row] = made[row, row:stop]
        made[stop:, start:stop] = made[start:stop, stop:].T

    def _place(self, row: int) -> int:
        """Return where a row begins in the triangle."""
        return row * self.columns - row * (row - 1) // 2


class Recorded(NamedTuple):
    """The entries of a file, the name of the text, and the number of its chunks.

    The name is empty and the number 0 if they are unknown. `datasets` are the names of all texts.
    `counts_chunks` is set if counts are numbers of chunks, and not of tokens. `hessians` has those
    of the tensors with products, by name; tensors with the same inputs have the same object.
    """

    entries: Sequence[ImportanceEntry]
    dataset: str = ""
    chunks: int = 0
    datasets: Sequence[str] = ()
    counts_chunks: bool = False
    hessians: Mapping[str, Hessian] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _MeanSquares:
    """The mean square of each column of each matrix; 1 for a matrix that was never used.

    Values are computed as llama.cpp's quantize does. They are read and checked on demand, one
    matrix at a time.
    """

    entry: ImportanceEntry
    shape: tuple[int, int]

    def __getitem__(self, matrix: int, /) -> F32:
        """Return the mean squares of a matrix.

        Raises `FormatError` for values that cannot be sums of squares or counts.
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
        raise _refuse_value(entry, start, sums, sound, "squares")
    if not np.isfinite(counts).all():
        raise FormatError(
            entry.path,
            entry.offset,
            f"a count of `{entry.name}` is not finite",
            hint="the file is damaged; create it again",
        )


def _refuse_value(
    entry: ImportanceEntry | Hessian, start: int, values: F32, sound: Bools, what: str
) -> FormatError:
    """Return the error for the first of the values from number `start` on that is not sound."""
    index = int(sound.argmin())
    return FormatError(
        entry.path,
        entry.offset + 4 * (start + index),
        f"`{entry.name}` has {values[index]:g} at element {start + index} of its {what}, which is "
        f"not a sum of {what}",
        hint=_DAMAGED,
    )
