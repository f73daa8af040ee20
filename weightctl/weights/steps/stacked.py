"""Tensors that are joined into one tensor: stacked, or with the rows of one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

__all__ = ["Joined", "Stacked"]


@dataclass(frozen=True, slots=True)
class Stacked:
    """Tensors of one shape along a new first dimension; `what` names them in texts for users."""

    what: str = "tensors"
    count: int = 0

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with a new first dimension."""
        first = _alike(inputs)
        for info in inputs:
            if info.shape != first.shape:
                raise ConversionError(
                    f"`{info.name}` of shape {list(info.shape)} and `{first.name}` of shape "
                    f"{list(first.shape)} cannot be stacked"
                )
        return (len(inputs), *first.shape), first.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the tensors one after another."""
        _read_in_turn(inputs, start, buffer)

    def __str__(self) -> str:
        return f"{self.count} {self.what} stacked" if self.count else f"{self.what} stacked"


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
