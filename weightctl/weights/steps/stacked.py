"""Tensors that are joined into one tensor: stacked, or with the rows of one after another."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo


@dataclass(frozen=True, slots=True)
class Stacked:
    """Tensors of one shape along a new dimension; `what` names them in texts for users.

    The new dimension is `axis` of the result. Block encodings can only be stacked along the first.
    """

    what: str = "tensors"
    count: int = 0
    axis: int = 0

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with a new dimension."""
        first = _alike(inputs)
        for info in inputs:
            if info.shape != first.shape:
                raise ConversionError(
                    f"`{info.name}` of shape {list(info.shape)} and `{first.name}` of shape "
                    f"{list(first.shape)} cannot be stacked"
                )
        if self.axis and (self.axis > len(first.shape) or first.encoding.block > 1):
            raise ConversionError(
                f"`{first.name}`, stored as {first.encoding} of shape {list(first.shape)}, cannot "
                f"be stacked along axis {self.axis}"
            )
        return (
            (*first.shape[: self.axis], len(inputs), *first.shape[self.axis :]),
            first.encoding,
        )

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the tensors one after another, or in turn for each entry of the axes before."""
        if self.axis:
            _read_by_entries(inputs, self.axis, start, buffer)
        else:
            _read_in_turn(inputs, start, buffer)

    def __str__(self) -> str:
        text = f"{self.count} {self.what} stacked" if self.count else f"{self.what} stacked"
        return f"{text} along axis {self.axis}" if self.axis else text


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows of tensors, one tensor after the other."""

    count: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with the rows of all."""
        first = _alike(inputs)
        for info in inputs:
            if not info.shape or info.shape[1:] != first.shape[1:]:
                raise ConversionError(
                    f"`{info.name}` of shape {list(info.shape)} and `{first.name}` of shape "
                    f"{list(first.shape)} cannot be joined"
                )
        return (sum(info.shape[0] for info in inputs), *first.shape[1:]), first.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read them one after the other."""
        _read_in_turn(inputs, start, buffer)

    def __str__(self) -> str:
        return f"rows of {self.count} tensors joined"


def _read_in_turn(inputs: Sequence[ReadableTensor], start: int, buffer: memoryview) -> None:
    done = position = 0
    for tensor in inputs:
        nbytes = tensor.info.nbytes
        if start + done < position + nbytes and done < len(buffer):
            offset = start + done - position
            count = min(nbytes - offset, len(buffer) - done)
            tensor.read_into(offset, buffer[done : done + count])
            done += count
        position += nbytes


def _read_by_entries(
    inputs: Sequence[ReadableTensor], axis: int, start: int, buffer: memoryview
) -> None:
    """Read for each entry of the first `axis` axes the bytes of all tensors."""
    import numpy as np

    info = inputs[0].info
    each = prod(info.shape[axis:]) * info.encoding.size
    row = each * len(inputs)
    first, last = start // row, -(-(start + len(buffer)) // row)
    whole = np.empty((last - first, len(inputs), each), np.uint8)
    for place, tensor in enumerate(inputs):
        part = bytearray((last - first) * each)
        tensor.read_into(first * each, memoryview(part))
        whole[:, place] = np.frombuffer(part, np.uint8).reshape(-1, each)
    begin = start - first * row
    np.frombuffer(buffer, np.uint8)[:] = whole.reshape(-1)[begin : begin + len(buffer)]


def _alike(inputs: Sequence[TensorInfo]) -> TensorInfo:
    first = inputs[0]
    for info in inputs:
        if info.encoding != first.encoding:
            raise ConversionError(
                f"`{info.name}` is stored as {info.encoding} and `{first.name}` as "
                f"{first.encoding}, so they cannot be joined into one tensor",
                hint='convert first with --dtype bf16 --names keep (dtype="bf16", '
                'names="keep" in Python)',
            )
    return first
