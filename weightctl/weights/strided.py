"""Tensors whose elements do not follow one another in their file."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["gather"]


def gather(
    memory: memoryview,
    width: int,
    shape: Sequence[int],
    *,
    strides: Sequence[int],
    start: int,
    out: memoryview,
) -> None:
    """Fill `out` with the elements from number `start` on, row after row.

    `memory` starts with the first element; elements are `width` bytes, and `strides` are in bytes.
    """
    import numpy as np  # `ls` loads no numpy

    kind = np.dtype((np.void, width))
    array: NDArray[Any] = np.ndarray(tuple(shape), kind, memory, strides=tuple(strides))
    target = np.frombuffer(out, kind)
    _copy(array.reshape(1) if array.ndim == 0 else array, start, start + target.size, target)


def _copy(array: NDArray[Any], start: int, stop: int, out: NDArray[np.void]) -> None:
    if array.ndim == 1:
        out[:] = array[start:stop]
        return
    # Rows of which a part is asked for, at the start and at the end, and whole ones between them.
    row = prod(array.shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:
        _copy(array[last], start - last * row, stop - last * row, out)
        return
    head, whole = first * row - start, (last - first) * row
    if head:
        _copy(array[first - 1], row - head, row, out[:head])
    if whole:
        out[head : head + whole].reshape(-1, *array.shape[1:])[...] = array[first:last]
    if stop > last * row:
        _copy(array[last], 0, stop - last * row, out[head + whole :])
