"""Q4_0 and Q5_0: 32 values in 4 or 5 bits each and one scale, with levels on both sides of 0."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.nibbles import NibbleCodec
from weightctl.codecs.scale_search import fit_scale

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8


def _fit(x: F32, weights: F32 | None, half: int) -> tuple[U8, dict[str, F32]]:
    """Return levels and the scales; levels are 0..2 * `half` - 1, and level `half` is zero."""
    level, scale = _round(x, half) if weights is None else _search(x, weights, half)
    return level, {"scale": scale}


def _round(x: F32, half: int) -> tuple[U8, F32]:
    """Return levels (r, b, 32) and scales (r, b) as ggml's `quantize_row_q4_0_ref` does."""
    first_greatest = np.abs(x).argmax(axis=2, keepdims=True)
    # Adding 0 turns -0 into 0, the initial value in ggml: the scale of a block of zeros is -0.
    peak = np.take_along_axis(x, first_greatest, axis=2) + np.float32(0)
    scale = peak / np.float32(-half)
    inverse = np.where(scale != 0, 1 / scale, np.float32(0))
    level = x * inverse
    level += np.float32(half + 0.5)
    # The inverse of a subnormal scale may be infinite; ggml's levels are then 0.
    level[np.isinf(inverse[..., 0])] = 0
    return np.minimum(level.astype(np.uint8), 2 * half - 1), scale[..., 0]


def _search(x: F32, weights: F32, half: int) -> tuple[U8, F32]:
    """Return levels (r, b, 32) and scales (r, b) as ggml's `quantize_row_q4_0_impl` does."""
    lanes, lane_weights = (np.ascontiguousarray(v.reshape(-1, 32).T) for v in (x, weights))
    level, scale = fit_scale(lanes, lane_weights, half)
    return level.T.astype(np.uint8).reshape(x.shape), scale.reshape(x.shape[:2])


def _restore(level: NDArray[np.int8], block: NDArray[np.void], out: F32, half: int) -> None:
    scale = block["scale"].astype(np.float32)
    np.multiply(level - np.int8(half), scale[..., None], out=out, dtype=np.float32)


# ggml's `block_q4_0`.
Q4_0 = NibbleCodec(
    np.dtype([("scale", "<f2"), ("low", "u1", 16)]),
    partial(_fit, half=8),
    partial(_restore, half=8),
)
# ggml's `block_q5_0`.
Q5_0 = NibbleCodec(
    np.dtype([("scale", "<f2"), ("high", "u1", 4), ("low", "u1", 16)]),
    partial(_fit, half=16),
    partial(_restore, half=16),
)
