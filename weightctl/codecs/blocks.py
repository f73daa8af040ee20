"""Numbers as blocks: what a block cannot hold is refused, and what it loses is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.loss import Loss, squares_and_error
from weightctl.errors import NonFiniteError

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8, Codec
    from weightctl.dtype import Encoding

__all__ = ["encoded"]

# Where no number is beyond this, no scale overflows float16.
_HARMLESS = 65504.0
# Numbers that are decoded at a time, to see what was lost.
_TILE = 1 << 17


def encoded(
    numbers: F32, target: Encoding, codec: Codec, importance: F32 | None, *, measure: bool
) -> tuple[U8, Loss]:
    """Return the blocks of rows of numbers, and the loss: all of it with `measure`.

    `importance` is one weight per column, or None. Raises `NonFiniteError` where a block would have
    to hold a NaN, an infinity or a number that overflows its scale.
    """
    rows, columns = numbers.shape
    blocks = np.empty((rows, columns // target.block * target.size), np.uint8)
    if not numbers.size:
        return blocks, Loss(0)
    greatest = max(numbers.max(), -numbers.min())
    if not np.isfinite(greatest):
        raise _refusal(numbers, np.argmin(np.isfinite(numbers)), target)
    codec.encode(numbers, importance, blocks)
    if greatest > _HARMLESS:
        _require_held(numbers, blocks, target, codec)
    if measure:
        return blocks, _measured(numbers, blocks, target, codec)
    return blocks, Loss.unmeasured(numbers.size)


def _require_held(numbers: F32, blocks: U8, target: Encoding, codec: Codec) -> None:
    held = np.empty_like(numbers)
    codec.decode(blocks, held)
    lost = ~np.isfinite(held)
    if lost.any():
        raise _refusal(numbers, np.argmax(np.where(lost, np.abs(numbers), -1)), target)


def _refusal(numbers: F32, index: np.intp, target: Encoding) -> NonFiniteError:
    return NonFiniteError(int(index), float(numbers.reshape(-1)[index]), target.name)


def _measured(numbers: F32, blocks: U8, target: Encoding, codec: Codec) -> Loss:
    total = Loss(0)
    step = _TILE // target.block
    flat, table = numbers.reshape(-1), blocks.reshape(-1, target.size)
    space = np.empty(min(_TILE, flat.size), np.float32)
    for start in range(0, len(table), step):
        part = table[start : start + step].reshape(1, -1)
        x = flat[start * target.block :][: step * target.block]
        held = space[: x.size]
        codec.decode(part, held.reshape(1, -1))
        total += Loss(x.size, 0, 0, *squares_and_error(x, held))
    return total
