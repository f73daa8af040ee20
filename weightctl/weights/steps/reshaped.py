"""Values in another shape: other dimensions, or one matrix for each head; and steps in turn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.codecs.loss import Loss
    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor, Step
    from weightctl.weights.info import TensorInfo


class _SameBytes:
    """What steps have in common that leave the bytes as they are."""

    __slots__ = ()

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        inputs[0].read_into(start, buffer)


@dataclass(frozen=True, slots=True)
class WithoutAxis(_SameBytes):
    """A tensor without a dimension of 1."""

    axis: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with a dimension less."""
        (info,) = inputs
        if len(info.shape) <= self.axis or info.shape[self.axis] != 1 or info.encoding.block > 1:
            raise _cannot_reshape(info, f"dimension {self.axis} is not 1")
        return (*info.shape[: self.axis], *info.shape[self.axis + 1 :]), info.encoding

    def __str__(self) -> str:
        return f"without dimension {self.axis}"


@dataclass(frozen=True, slots=True)
class WithAxis(_SameBytes):
    """A tensor with a dimension of 1 more."""

    axis: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with a dimension more."""
        (info,) = inputs
        if len(info.shape) < self.axis or info.encoding.block > 1:
            raise _cannot_reshape(info, f"it has no place for dimension {self.axis}")
        return (*info.shape[: self.axis], 1, *info.shape[self.axis :]), info.encoding

    def __str__(self) -> str:
        return f"with dimension {self.axis} of 1"


@dataclass(frozen=True, slots=True)
class SplitRows(_SameBytes):
    """A vector as a matrix with `rows` rows."""

    rows: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape of the matrix."""
        (info,) = inputs
        if len(info.shape) != 1 or info.shape[0] % self.rows or info.encoding.block > 1:
            raise _cannot_reshape(info, f"it is not a vector of {self.rows} equal parts")
        return (self.rows, info.shape[0] // self.rows), info.encoding

    def __str__(self) -> str:
        return f"as {self.rows} {'rows' if self.rows > 1 else 'row'}"


@dataclass(frozen=True, slots=True)
class JoinedRows(_SameBytes):
    """A matrix as a vector: its rows, one after the other."""

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape of the vector."""
        (info,) = inputs
        if len(info.shape) != 2 or info.encoding.block > 1:
            raise _cannot_reshape(info, "it is not a matrix")
        return (info.shape[0] * info.shape[1],), info.encoding

    def __str__(self) -> str:
        return "rows joined into a vector"


@dataclass(frozen=True, slots=True)
class Chained:
    """Several steps as one: each computes from the result of the step before it."""

    steps: tuple[Step, ...]

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape and encoding of the last result."""
        from weightctl.weights.info import TensorInfo as Info

        (info,) = inputs
        for step in self.steps:
            info = Info(info.name, *step.infer([info]))
        return info.shape, info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> Loss | None:
        """Compute the requested range, and what the other steps need for it."""
        from weightctl.weights.derived import DerivedTensor

        (tensor,) = inputs
        for step in self.steps:
            tensor = DerivedTensor(tensor.info.name, step, [tensor])
        return tensor.read_into(start, buffer)

    def __str__(self) -> str:
        return ", ".join(filter(None, map(str, self.steps)))


@dataclass(frozen=True, slots=True)
class InShape(_SameBytes):
    """A tensor with more or fewer dimensions of 1."""

    shape: tuple[int, ...]

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        (info,) = inputs
        own, wanted = ([size for size in each if size != 1] for each in (info.shape, self.shape))
        if own != wanted or info.encoding.block > 1:
            raise _cannot_reshape(info, f"it cannot have the shape {list(self.shape)}")
        return self.shape, info.encoding

    def __str__(self) -> str:
        return f"in the shape {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Reshaped(_SameBytes):
    """A tensor with the same elements in the same order, in any shape."""

    shape: tuple[int, ...]

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        (info,) = inputs
        if math.prod(info.shape) != math.prod(self.shape) or info.encoding.block > 1:
            raise _cannot_reshape(info, f"it cannot have the shape {list(self.shape)}")
        return self.shape, info.encoding

    def __str__(self) -> str:
        return f"in the shape {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class SplitHeads:
    """A matrix with the rows of several heads, as `[heads, rows, inputs]`.

    It is `[heads, inputs, rows]` where `is_transposed`.
    """

    heads: int
    is_transposed: bool = False

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with a dimension for the heads."""
        (info,) = inputs
        if len(info.shape) != 2 or info.shape[0] % self.heads:
            raise _cannot_reshape(info, f"it is not a matrix of {self.heads} heads")
        rows, columns = info.shape[0] // self.heads, info.shape[1]
        if not self.is_transposed:
            return (self.heads, rows, columns), info.encoding
        return (self.heads, columns, rows), _without_blocks(info)

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the heads that the run is of, and turn each where that is asked for."""
        (tensor,) = inputs
        if not self.is_transposed:
            tensor.read_into(start, buffer)
            return
        rows, columns = tensor.info.shape[0] // self.heads, tensor.info.shape[1]
        _read_turned(tensor, rows, columns, start, buffer)

    def __str__(self) -> str:
        return f"{self.heads} heads apart" + (", transposed" if self.is_transposed else "")


@dataclass(frozen=True, slots=True)
class JoinedHeads:
    """`[heads, rows, inputs]` as one matrix with the rows of all heads.

    It was `[heads, inputs, rows]` where `is_transposed`.
    """

    is_transposed: bool = False

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape without the dimension of the heads."""
        (info,) = inputs
        if len(info.shape) != 3:
            raise _cannot_reshape(info, "it has no dimension for heads")
        heads, rows, columns = info.shape
        if not self.is_transposed:
            return (heads * rows, columns), info.encoding
        return (heads * columns, rows), _without_blocks(info)

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the heads that the run is of, and turn each where that is asked for."""
        (tensor,) = inputs
        if not self.is_transposed:
            tensor.read_into(start, buffer)
            return
        _, rows, columns = tensor.info.shape
        _read_turned(tensor, rows, columns, start, buffer)

    def __str__(self) -> str:
        return "heads joined" + (", transposed" if self.is_transposed else "")


def _read_turned(
    tensor: ReadableTensor, rows: int, columns: int, start: int, buffer: memoryview
) -> None:
    """Read a run of matrices of `rows` and `columns` that stand one after another, each turned."""
    import numpy as np

    width = tensor.info.encoding.size
    each = rows * columns * width
    first, last = start // each, -(-(start + len(buffer)) // each)
    whole = bytearray((last - first) * each)
    tensor.read_into(first * each, memoryview(whole))
    values = np.frombuffer(whole, np.uint8).reshape(last - first, rows, columns, width)
    turned = np.ascontiguousarray(values.swapaxes(1, 2)).reshape(-1)
    begin = start - first * each
    np.frombuffer(buffer, np.uint8)[:] = turned[begin : begin + len(buffer)]


def _without_blocks(info: TensorInfo) -> Encoding:
    if info.encoding.block > 1:
        raise _cannot_reshape(info, f"the blocks of {info.encoding} cannot be transposed")
    return info.encoding


def _cannot_reshape(info: TensorInfo, reason: str) -> ConversionError:
    return ConversionError(
        f"`{info.name}` has shape {list(info.shape)}: {reason}",
        hint="check that the config belongs to this checkpoint",
    )
