"""Steps that add the product of two small matrices to a weight, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.weights.steps.numbers import AsFloat32, read_floats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

# The most values of a weight that are computed at a time.
_TILE = 1 << 18


@dataclass(frozen=True, slots=True)
class PlusLowRank:
    """A weight plus `scale` times the product of an adapter's matrices, in float32.

    The inputs are the weight, the first matrix of shape (rank, inputs), the second of shape
    (outputs, rank), and for DoRA the magnitudes of the rows. `is_transposed` states that the weight
    has the shape (inputs, outputs). With `experts`, the matrices have the ranks of all experts, as
    PEFT stores them, and the weight has a first dimension of this size, or is that of one `expert`.
    `skipped` is the number of rows of the second matrix before those of the weight. Each value is
    computed in float64 and rounded once, so that the result does not depend on the order of the
    sums.
    """

    scale: float
    is_transposed: bool = False
    experts: int = 0
    expert: int | None = None
    skipped: int = 0

    @property
    def stacked(self) -> int:
        """The number of experts whose weights are in one tensor; 0 for a single weight."""
        return self.experts if self.expert is None else 0

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape of the weight, and F32."""
        for info in inputs:
            AsFloat32().infer([info])
        weight, first, second, *magnitude = inputs
        rank, columns = first.shape[0], prod(first.shape[1:])
        own = _two_dimensions(weight.shape, self.stacked)
        rows = second.shape[0]
        if self.expert is not None and self.skipped + own[0] <= rows:
            rows = own[0]
        wanted = (columns, rows) if self.is_transposed else (rows, columns)
        if (
            own != wanted
            or prod(second.shape[1:]) != rank
            or (self.experts and rank % self.experts)
        ):
            raise ConversionError(
                f"`{weight.name}` has shape {list(weight.shape)}, which does not fit the adapter's "
                f"matrices `{first.name}` of shape {list(first.shape)} and `{second.name}` of "
                f"shape {list(second.shape)}",
                hint="check that the adapter belongs to this model",
            )
        for info in magnitude:
            if info.size != rows or self.is_transposed or self.experts:
                raise ConversionError(
                    f"`{info.name}` of shape {list(info.shape)} does not have the magnitudes of "
                    f"the rows of `{weight.name}` of shape {list(weight.shape)}",
                    hint="DoRA is supported for matrices that are stored as (outputs, inputs)",
                )
        return weight.shape, ENCODINGS["F32"]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Compute the rows that the range is in."""
        import numpy as np

        made = np.frombuffer(buffer, np.float32)
        weight, first, second, *magnitude = inputs
        rows, columns = _two_dimensions(weight.info.shape, self.stacked)
        height = max(1, _TILE // columns)
        at = start // 4
        factors = _Factors(self, first, second)
        for tile in _list_tiles(rows, columns, height, at, at + len(made)):
            top, count = tile
            begin = top * columns
            values = read_floats(weight, begin, count * columns).reshape(count, columns)
            wide = values.astype(np.float64)
            with np.errstate(all="ignore"):  # NaN and infinity of the weight stay
                left, right = factors.of_rows(top, count, rows)
                wide += self.scale * (left @ right)
                if magnitude:
                    norms = np.sqrt((wide * wide).sum(axis=1))
                    wide *= (_read_all(magnitude[0])[top : top + count] / norms)[:, None]
                flat = wide.reshape(-1).astype(np.float32)
            if (np.isfinite(values.reshape(-1)) & ~np.isfinite(flat)).any():
                raise ConversionError(
                    f"`{weight.info.name}` has values that are not finite after the product of "
                    f"`{first.info.name}` and `{second.info.name}`, times {self.scale:.6g}, is "
                    "added",
                    hint="check lora_alpha and r of the adapter, and its matrices: `weightctl "
                    "verify ADAPTER`",
                )
            low, high = max(begin, at), min(begin + len(flat), at + len(made))
            made[low - at : high - at] = flat[low - begin : high - begin]

    def __str__(self) -> str:
        return f"LoRA added, times {self.scale:.6g}"


class _Factors:
    """The matrices of a pair, decoded, in the order of the weight's axes."""

    def __init__(self, step: PlusLowRank, first: ReadableTensor, second: ReadableTensor) -> None:
        self._step = step
        self._first = _read_all(first).reshape(first.info.shape[0], -1)
        self._second = _read_all(second).reshape(second.info.shape[0], -1)

    def of_rows(
        self, top: int, count: int, rows: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the two factors of `count` rows from number `top` on, all of one expert."""
        first, second = self._first, self._second
        if self._step.experts:
            expert = top // rows if self._step.expert is None else self._step.expert
            first = first.reshape(self._step.experts, -1, first.shape[1])[expert]
            second = second.reshape(len(second), -1, self._step.experts)[:, :, expert]
        if self._step.is_transposed:
            first, second = second.T, first.T
        inner = top % rows + self._step.skipped
        return second[inner : inner + count], first


def _list_tiles(
    rows: int, columns: int, height: int, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each tile that has some of the values.

    Tiles begin at multiples of `height` in each expert, whatever range is asked for.
    """
    row = begin // columns
    while row * columns < end:
        expert, inner = divmod(row, rows)
        inner -= inner % height
        count = min(height, rows - inner)
        yield expert * rows + inner, count
        row = expert * rows + inner + count


def _two_dimensions(shape: tuple[int, ...], experts: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of a weight, or of one expert's weight."""
    if experts:
        if len(shape) != 3 or shape[0] != experts:
            return 0, 0
        shape = shape[1:]
    return (shape[0], prod(shape[1:])) if len(shape) > 1 else (0, 0)


def _read_all(tensor: ReadableTensor) -> NDArray[np.float64]:
    import numpy as np

    return read_floats(tensor, 0, tensor.info.size).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of two tensors of one shape; the second is multiplied by `scale`. In float32."""

    scale: float = 1.0

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and F32."""
        first, second = inputs
        AsFloat32().infer([second])
        if first.shape != second.shape:
            raise ConversionError(
                f"`{second.name}` has shape {list(second.shape)}, but `{first.name}` has shape "
                f"{list(first.shape)}",
                hint="check that the adapter belongs to this model",
            )
        return AsFloat32().infer([first])

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Decode the requested range of both, and add."""
        import numpy as np

        AsFloat32().read_into(inputs[:1], start, buffer)
        values = np.frombuffer(buffer, np.float32)
        values += np.float32(self.scale) * read_floats(inputs[1], start // 4, len(values))

    def __str__(self) -> str:
        return "bias of the adapter added"
