"""Q2_K: 256 values in 2 bits each, in sixteen sub-blocks with 4-bit scales and mins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import sub_blocks
from weightctl.codecs.scale_search import (
    fit_scale_and_min,
    fit_unsigned_scale,
    nearest_int,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8


def _fit(rows: F32, importance: F32 | None, block: NDArray[np.void]) -> U8:
    """Store the scales, and return the levels, as ggml's `quantize_q2_K` does."""
    x = sub_blocks.arrange_lanes(rows)
    if importance is None:
        found, scale, low = fit_scale_and_min(
            x, np.abs(x), 3, first=-0.5, step=0.1, steps=15, saturate=False, magnitudes=True
        )
        scales, block["scale"] = _round_to_greatest(scale.reshape(16, -1))
        mins, block["min"] = _round_to_greatest(low.reshape(16, -1))
    else:
        weights = sub_blocks.arrange_lanes(sub_blocks.weight_by_importance(rows, importance, 1))
        found, scale, low = fit_scale_and_min(
            x, weights, 3, first=-0.9, step=0.05, steps=36, saturate=True
        )
        totals = np.add.accumulate(weights, axis=0)[-1].reshape(16, -1)
        scales, block["scale"] = fit_unsigned_scale(scale.reshape(16, -1), totals, 15)
        mins, block["min"] = fit_unsigned_scale(low.reshape(16, -1), totals, 15)
    block["scales"] = (scales | mins << 4).T
    lifted = x + _mins(block).reshape(-1)
    return sub_blocks.choose_levels_again(lifted, _scales(block).reshape(-1), found, 0, 3)


def _round_to_greatest(values: F32) -> tuple[U8, F32]:
    """Return levels (16, b) and the scale (b,) at which the greatest of (16, b) has level 15.

    For a negative value, the level wraps around like a byte, as in ggml.
    """
    greatest = np.zeros(values.shape[1], np.float32)
    for row in values:
        np.copyto(greatest, row, where=row > greatest)
    inverse = np.where(greatest > 0, np.float32(15) / greatest, np.float32(0))
    levels = nearest_int(inverse * values).astype(np.uint8)
    levels[:, greatest == 0] = 0
    return levels, greatest / np.float32(15)


def pack(levels: U8, block: NDArray[np.void]) -> None:
    """Store levels (b, 256) in blocks of shape (b,)."""
    block["q"] = sub_blocks.pack_two_bits(levels)


def _scales(block: NDArray[np.void]) -> F32:
    return block["scale"].astype(np.float32) * np.ascontiguousarray(block["scales"].T & 15)


def _mins(block: NDArray[np.void]) -> F32:
    return block["min"].astype(np.float32) * np.ascontiguousarray(block["scales"].T >> 4)


def _unpack(block: NDArray[np.void]) -> U8:
    return sub_blocks.unpack_two_bits(block["q"])


# ggml's `block_q2_K`. Byte j of `scales` has the scale of sub-block j in its low bits, and its min
# in its high bits.
Q2_K = sub_blocks.build_codec(
    np.dtype([("scales", "u1", 16), ("q", "u1", (2, 32)), ("scale", "<f2"), ("min", "<f2")]),
    fit=_fit,
    pack=pack,
    unpack=_unpack,
    scales=_scales,
    mins=_mins,
)
