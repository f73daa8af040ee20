"""Q3_K: 256 values in 3 bits each, in sixteen sub-blocks with 6-bit scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import sub_blocks
from weightctl.codecs.scale_search import (
    NEGLIGIBLE,
    clamp_levels,
    first_peak,
    fit_scale,
    nearest_int,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8


def _fit(rows: F32, importance: F32 | None, block: NDArray[np.void]) -> U8:
    """Store the scales, and return the levels, as ggml's `quantize_q3_K` does."""
    x = sub_blocks.arrange_lanes(rows)
    if importance is None:
        level, scale = _descend(x)
        scales = scale.reshape(16, -1)
        largest = first_peak(scales)
        inverse: F32 = np.float32(-32) / largest
        signed = np.clip(nearest_int(inverse * scales).astype(np.int8), -32, 31)
        rounded = (signed + np.int8(32)).astype(np.uint8)
        rounded[:, largest == 0] = 0
        of_scales = np.where(largest != 0, np.float32(1) / inverse, np.float32(0))
    else:
        weights = sub_blocks.arrange_lanes(sub_blocks.weight_by_importance(rows, importance, 2))
        level, scale = fit_scale(x, weights, 4)
        totals = np.add.accumulate(weights, axis=0)[-1]
        found, of_scales = fit_scale(scale.reshape(16, -1), totals.reshape(16, -1), 32)
        rounded = found.astype(np.uint8)
    block["scale"] = of_scales
    block["scales"] = pack_scales(rounded).T
    return sub_blocks.choose_levels_again(x, _scales(block).reshape(-1), level, -4, 3)


def _descend(x: F32) -> tuple[F32, F32]:
    """Find levels -4..3 and a scale such that `x`, shape (16, lanes), is near `scale * level`.

    Returns the levels plus 4, and the scale of each lane; both are 0 for a lane of negligible
    values. Starts with the scale that puts the value of largest magnitude at -4, and changes single
    levels while that raises the correlation, in at most five passes. Mirrors ggml's
    `make_q3_quants`.
    """
    peak = first_peak(x)
    weights = x * x
    weighted = weights * x
    inverse: F32 = np.float32(-4) / peak
    levels = clamp_levels(x * inverse, -4, 3)
    sum_lx = np.add.accumulate(weighted * levels, axis=0)[-1]
    sum_l2 = np.add.accumulate(weights * levels * levels, axis=0)[-1]
    for _ in range(5):
        changed = False
        for number, w, wx, level in zip(x, weights, weighted, levels, strict=True):
            rest_lx = sum_lx - wx * level
            rest_l2 = sum_l2 - w * level * level
            new = clamp_levels(number * rest_l2 / rest_lx, -4, 3)
            new_lx = rest_lx + wx * new
            new_l2 = rest_l2 + w * new * new
            better = (rest_lx > 0) & (new_l2 > 0) & (new != level)
            better &= new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2
            np.copyto(level, new, where=better)
            np.copyto(sum_lx, new_lx, where=better)
            np.copyto(sum_l2, new_l2, where=better)
            changed |= bool(better.any())
        if not changed:
            break
    scale = np.where(sum_l2 > 0, sum_lx / sum_l2, np.float32(0))
    levels += np.float32(4)
    negligible = np.abs(peak) < NEGLIGIBLE
    levels[:, negligible] = 0
    scale[negligible] = 0
    return levels, scale


def pack(levels: U8, block: NDArray[np.void]) -> None:
    """Store levels plus 4 (b, 256) in blocks of shape (b,)."""
    block["low"] = sub_blocks.pack_two_bits(levels)
    high = levels.reshape(-1, 8, 32) >> 2
    block["high"] = np.packbits(high, axis=1, bitorder="little")[:, 0]


def pack_scales(scales: U8) -> U8:
    """Return the bytes (12, b) that hold the scales (16, b), each plus 32, in 6 bits."""
    packed = np.empty((12, scales.shape[1]), np.uint8)
    packed[:8] = scales[:8] & 15 | scales[8:] << 4
    high = scales.reshape(4, 4, -1) >> 4
    packed[8:] = high[0] | high[1] << 2 | high[2] << 4 | high[3] << 6
    return packed


def unpack_scales(block: NDArray[np.void]) -> NDArray[np.int8]:
    """Return the integers of the scales of blocks (b,), shape (16, b)."""
    packed = np.ascontiguousarray(block["scales"].T)
    scales = np.concatenate([packed[:8] & 15, packed[:8] >> 4]).reshape(4, 4, -1)
    for four in range(4):
        scales[four] |= (packed[8:] >> 2 * four & 3) << 4
    return scales.view(np.int8).reshape(16, -1) - np.int8(32)


def _scales(block: NDArray[np.void]) -> F32:
    return block["scale"].astype(np.float32) * unpack_scales(block)


def _unpack(block: NDArray[np.void]) -> NDArray[np.int8]:
    levels = sub_blocks.unpack_two_bits(block["low"])
    high = np.unpackbits(block["high"][:, None], axis=1, bitorder="little")
    levels |= high.reshape(-1, 256) << 2
    return levels.view(np.int8) - np.int8(4)


# ggml's `block_q3_K`. `low` has the lower two bits of all elements, and bit k of byte i of `high`
# the third bit of element 32 * k + i. A level of 4 is zero.
Q3_K = sub_blocks.build_codec(
    np.dtype([("high", "u1", 32), ("low", "u1", (2, 32)), ("scales", "u1", 12), ("scale", "<f2")]),
    fit=_fit,
    pack=pack,
    unpack=_unpack,
    scales=_scales,
)
