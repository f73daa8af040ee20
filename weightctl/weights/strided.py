"""Tensors whose elements are not contiguous in their file."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.storage.base import ByteRange

_LARGEST_READ = 1 << 20
# Gaps with fewer bytes are read too, because this costs less than another read.
_LARGEST_GAP = 1 << 13


def gather(
    data: ByteRange,
    width: int,
    shape: Sequence[int],
    *,
    strides: Sequence[int],
    start: int,
    out: memoryview,
) -> None:
    """Fill `out` with elements in row-major order, beginning with number `start`.

    `data` begins with the first element. `width` is the size of an element, and `strides` are in
    bytes. Raises `FormatError` as `data.read` does.
    """
    import numpy as np  # not loaded by `ls`

    target = np.frombuffer(out, np.dtype((np.void, width)))
    sizes, steps = (tuple(shape), tuple(strides)) if shape else ((1,), (width,))
    _copy(_Array(data, 0, sizes, steps), start, start + target.size, target)


class _Array:
    """A strided array in a byte range: offset of its first element, shape, and strides."""

    def __init__(
        self, data: ByteRange, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.data = data
        self.offset = offset
        self.shape = shape
        self.strides = strides

    def row(self, number: int) -> _Array:
        """Return an entry of the first axis."""
        offset = self.offset + number * self.strides[0]
        return _Array(self.data, offset, self.shape[1:], self.strides[1:])

    def entries(self, axis: int, start: int, stop: int) -> _Array:
        """Return the entries from `start` to `stop` of an axis."""
        offset = self.offset + start * self.strides[axis]
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return _Array(self.data, offset, shape, self.strides)


def _copy(array: _Array, start: int, stop: int, out: NDArray[np.void]) -> None:
    """Copy the elements from number `start` to `stop` of an array."""
    row = prod(array.shape[1:])
    # Partial rows at the start and at the end, and whole rows between them.
    first, last = -(-start // row), stop // row
    if first > last:
        _copy(array.row(last), start - last * row, stop - last * row, out)
        return
    head, whole = first * row - start, (last - first) * row
    if head:
        _copy(array.row(first - 1), row - head, row, out[:head])
    if whole:
        box = array.entries(0, first, last)
        _copy_all(box, out[head : head + whole].reshape(box.shape))
    if stop > last * row:
        _copy(array.row(last), 0, stop - last * row, out[head + whole :])


def _copy_all(array: _Array, out: NDArray[Any]) -> None:
    """Copy an array with reads of limited size, for any strides."""
    import numpy as np

    width: int = out.itemsize
    reaches = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    span = sum(reaches) + width
    axis = max(range(len(reaches)), key=lambda axis: (reaches[axis] > 0, array.strides[axis]))
    step, count = array.strides[axis], array.shape[axis]
    # The number of bytes that one entry of this axis spans.
    inner = span - reaches[axis]
    is_close = step - inner <= _LARGEST_GAP
    if not reaches[axis] or (is_close and span <= _LARGEST_READ):
        raw = array.data.read(array.offset, span)
        out[...] = np.ndarray(array.shape, out.dtype, raw, strides=array.strides)
        return
    at_once = max((_LARGEST_READ - inner) // step, 0) + 1 if is_close else 1
    for start in range(0, count, at_once):
        stop = min(start + at_once, count)
        place = (slice(None),) * axis + (slice(start, stop),)
        _copy_all(array.entries(axis, start, stop), out[place])
