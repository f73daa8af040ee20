"""Q4_1 and Q5_1: 32 values in 4 or 5 bits each, one scale and one min."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.nibbles import NibbleCodec
from weightctl.codecs.scale_search import fit_scale_and_min

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8


def _fit(x: F32, weights: F32 | None, most: int) -> tuple[U8, dict[str, F32]]:
    """Return levels, the scales and the mins; levels are 0..`most`, and level 0 is the min."""
    level, scale, low = _round(x, most) if weights is None else _search(x, weights, most)
    return level, {"scale": scale, "min": low}


def _round(x: F32, most: int) -> tuple[U8, F32, F32]:
    """Return levels (r, b, 32), scales and mins (r, b): ggml's `quantize_row_q4_1_ref`."""
    # The first minimum: of a 0 and a -0, the one that comes first.
    low = np.take_along_axis(x, x.argmin(axis=2, keepdims=True), axis=2)
    spread = x.max(axis=2, keepdims=True) - low
    # Adding 0 turns -0, the spread of zeros of both signs, into 0.
    scale = (spread + np.float32(0)) / np.float32(most)
    inverse = np.where(scale != 0, 1 / scale, np.float32(0))
    level = x - low
    level *= inverse
    level += np.float32(0.5)
    # The inverse of a subnormal scale may be infinite, and so may the spread; ggml's levels are
    # then 0.
    level[np.isinf(scale + inverse)[..., 0]] = 0
    return np.minimum(level.astype(np.uint8), most), scale[..., 0], low[..., 0]


def _search(x: F32, weights: F32, most: int) -> tuple[U8, F32, F32]:
    """Return levels (r, b, 32), scales and mins (r, b): ggml's `quantize_row_q4_1_impl`."""
    lanes, lane_weights = (np.ascontiguousarray(v.reshape(-1, 32).T) for v in (x, weights))
    level, scale, negated = fit_scale_and_min(
        lanes, lane_weights, most, first=-0.9, step=0.05, steps=36, saturate=True
    )
    levels = level.T.astype(np.uint8).reshape(x.shape)
    return levels, scale.reshape(x.shape[:2]), -negated.reshape(x.shape[:2])


def _restore(level: NDArray[np.int8], block: NDArray[np.void], out: F32) -> None:
    scale, low = (block[name].astype(np.float32)[..., None] for name in ("scale", "min"))
    np.multiply(level, scale, out=out, dtype=np.float32)
    np.add(out, low, out=out)


# ggml's `block_q4_1`.
Q4_1 = NibbleCodec(
    np.dtype([("scale", "<f2"), ("min", "<f2"), ("low", "u1", 16)]),
    partial(_fit, most=15),
    _restore,
)
# ggml's `block_q5_1`.
Q5_1 = NibbleCodec(
    np.dtype([("scale", "<f2"), ("min", "<f2"), ("high", "u1", 4), ("low", "u1", 16)]),
    partial(_fit, most=31),
    _restore,
)
