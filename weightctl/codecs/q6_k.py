"""Q6_K: 256 values in 6 bits each, in sixteen sub-blocks with 8-bit scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import sub_blocks
from weightctl.codecs.scale_search import NEGLIGIBLE, first_peak, fit_scale, nearest_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8


def _fit(rows: F32, importance: F32 | None, block: NDArray[np.void]) -> U8:
    """Store the scales, and return the levels, as ggml's `quantize_q6_K` does."""
    x = sub_blocks.arrange_lanes(rows)
    if importance is None:
        weights = x * x
    else:
        weights = sub_blocks.arrange_lanes(np.broadcast_to(importance, rows.shape))
    level, scale = fit_scale(x, weights, 32)
    scales = scale.reshape(16, -1)
    largest = first_peak(scales)
    inverse: F32 = np.float32(-128) / largest
    block["scale"] = np.float32(1) / inverse
    block["scales"] = np.minimum(nearest_int(inverse * scales), 127).T
    final = _scales(block).reshape(-1)
    levels = sub_blocks.choose_levels_again(x, final, level, -32, 31)
    # If all values are negligible, all bytes are 0, for any scale.
    nothing = np.abs(largest) < NEGLIGIBLE
    block[nothing] = np.zeros((), block.dtype)
    levels.reshape(16, 16, -1)[..., nothing] = 0
    return levels


def pack(levels: U8, block: NDArray[np.void]) -> None:
    """Store levels plus 32 (b, 256) in blocks of shape (b,)."""
    q = levels.reshape(-1, 2, 4, 32)
    block["low"] = q[:, :, :2] & 15 | q[:, :, 2:] << 4
    high = q >> 4
    block["high"] = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6


def _scales(block: NDArray[np.void]) -> F32:
    scales: F32 = block["scale"].astype(np.float32) * np.ascontiguousarray(block["scales"].T)
    return scales


def _unpack(block: NDArray[np.void]) -> NDArray[np.int8]:
    low, high = block["low"], block["high"]
    levels = np.empty((len(block), 2, 4, 32), np.uint8)
    levels[:, :, :2] = low & 15
    levels[:, :, 2:] = low >> 4
    for group in range(4):
        levels[:, :, group] |= (high >> 2 * group & 3) << 4
    return levels.view(np.int8).reshape(-1, 256) - np.int8(32)


# ggml's `block_q6_K`. Each half of the elements is four groups of 32: row j of `low` has the low
# four bits of group j and, above them, of group j + 2; `high` the upper two of all four groups,
# the first lowest. A level of 32 is zero.
Q6_K = sub_blocks.build_codec(
    np.dtype(
        [
            ("low", "u1", (2, 2, 32)),
            ("high", "u1", (2, 32)),
            ("scales", "i1", 16),
            ("scale", "<f2"),
        ]
    ),
    fit=_fit,
    pack=pack,
    unpack=_unpack,
    scales=_scales,
)
