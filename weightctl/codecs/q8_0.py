"""Q8_0: 32 values as bytes and one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import BlockCodec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def _encode(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:  # noqa: ARG001
    """Fill blocks as ggml's `quantize_row_q8_0_ref` does; `importance` has no effect."""
    magnitude = np.abs(x)
    peak = np.take_along_axis(magnitude, magnitude.argmax(axis=2, keepdims=True), axis=2)
    scale = peak / np.float32(127)
    inverse = np.where(scale > 0, 1 / scale, np.float32(0))
    # The inverse of a subnormal scale may be infinite; ggml's levels are then 0.
    inverse[np.isinf(inverse)] = 0
    level = x * inverse
    # Half away from zero, like C's `roundf`: adding a full half would round its predecessor up.
    level += np.copysign(_BELOW_HALF, x)
    block["q"] = level.astype(np.int8)
    block["scale"] = scale[..., 0]


def _decode(block: NDArray[np.void], out: F32) -> None:
    scale = block["scale"].astype(np.float32)
    np.multiply(block["q"], scale[..., None], out=out, dtype=np.float32)


# ggml's `block_q8_0`.
Q8_0 = BlockCodec(np.dtype([("scale", "<f2"), ("q", "i1", 32)]), 32, _encode, _decode)
