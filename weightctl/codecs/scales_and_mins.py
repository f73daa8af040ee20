"""Q4_K and Q5_K: 256 values in eight sub-blocks of 32, each with a 6-bit scale and min."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs.base import BlockCodec
from weightctl.codecs.scale_search import (
    clamp_levels,
    fit_scale_and_min,
    fit_unsigned_scale,
    nearest_int,
)
from weightctl.codecs.sub_blocks import AREA, arrange_lanes, weight_by_importance

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8


class _LevelRange(NamedTuple):
    """Levels 0..`most`, and the parameters of the search without importance."""

    most: int
    first: float
    steps: int


def _build_codec(
    block_dtype: np.dtype[np.void],
    levels: _LevelRange,
    pack: Callable[[U8, NDArray[np.void]], None],
    unpack: Callable[[NDArray[np.void], F32], None],
) -> BlockCodec:
    """Return a codec of blocks with sub-blocks whose scales and mins are in `scales`.

    The fields `scale` and `min` scale them. `pack` stores levels of shape (32, 8, b), one sub-block
    per lane, in b blocks. `unpack` fills an array of shape (r, b, 8, 32) with the levels of blocks
    of shape (r, b).
    """

    def encode(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:
        made = np.empty(block.shape, block_dtype)
        flat = made.reshape(-1)
        pack(_fit(x, importance, flat, levels), flat)
        block[...] = made

    def decode(block: NDArray[np.void], out: F32) -> None:
        values = out.reshape(*block.shape, 8, 32)
        scale, low = _scales_and_mins(block.reshape(-1))
        unpack(block, values)
        values *= scale.T.reshape(*block.shape, 8, 1)
        values -= low.T.reshape(*block.shape, 8, 1)

    return BlockCodec(block_dtype, 256, encode, decode, AREA)


def _fit(rows: F32, importance: F32 | None, block: NDArray[np.void], levels: _LevelRange) -> U8:
    """Store the scales and mins of `block`, shape (r * b,); return levels (32, 8, r * b).

    The values have shape (r, b, 256) and `importance` (b, 256).
    """
    x = arrange_lanes(rows, 8)
    eight = (8, len(block))
    if importance is None:
        weights = _magnitude_weights(x)
        level, scale, low = fit_scale_and_min(
            x,
            weights,
            levels.most,
            first=levels.first,
            step=0.1,
            steps=levels.steps,
            saturate=False,
        )
        block_scale, scales = _round_to_greatest(scale.reshape(eight))
        block_min, mins = _round_to_greatest(low.reshape(eight))
    else:
        weights = arrange_lanes(weight_by_importance(rows, importance, 2), 8)
        level, scale, low = fit_scale_and_min(
            x, weights, levels.most, first=-0.9, step=0.05, steps=36, saturate=True
        )
        totals = np.add.accumulate(weights, axis=0)[-1].reshape(eight)
        scales, block_scale = fit_unsigned_scale(scale.reshape(eight), totals, 63)
        mins, block_min = fit_unsigned_scale(low.reshape(eight), totals, 63)
    block["scale"], block["min"] = block_scale, block_min
    block["scales"] = pack_scales(scales, mins).T

    # The scales were rounded after the search: choose levels for the rounded ones.
    final_scale, final_min = (values.reshape(-1) for values in _scales_and_mins(block))
    rounded = clamp_levels((x + final_min) / final_scale, 0, levels.most)
    np.copyto(rounded, level, where=final_scale == 0)
    return rounded.astype(np.uint8).reshape(32, 8, -1)


def _magnitude_weights(x: F32) -> F32:
    """Return ggml's weights without importance: root mean square plus magnitude."""
    mean_square: F32 = np.add.accumulate(x * x, axis=0)[-1] / np.float32(32)
    return np.sqrt(mean_square) + np.abs(x)


def _round_to_greatest(values: F32) -> tuple[F32, U8]:
    """Return the scale (b,) at which the greatest of (8, b) has level 63, and the levels (8, b)."""
    greatest = np.zeros(values.shape[1], np.float32)
    for row in values:
        np.copyto(greatest, row, where=row > greatest)
    inverse = np.where(greatest > 0, np.float32(63) / greatest, np.float32(0))
    levels = nearest_int(inverse * values).astype(np.uint8)
    return greatest / np.float32(63), np.minimum(levels, 63)


def pack_scales(scales: U8, mins: U8) -> U8:
    """Return the bytes (12, b) that hold 6-bit scales (8, b) and mins (8, b)."""
    packed = np.empty((3, *scales[:4].shape), np.uint8)
    packed[0] = scales[:4] | scales[4:] >> 4 << 6
    packed[1] = mins[:4] | mins[4:] >> 4 << 6
    packed[2] = scales[4:] & 15 | mins[4:] << 4
    return packed.reshape(12, -1)


def unpack_scales(block: NDArray[np.void]) -> tuple[U8, U8]:
    """Return the 6-bit scales and mins of sub-blocks, shape (8, b), of blocks of shape (b,)."""
    first, second, third = np.ascontiguousarray(block["scales"].T).reshape(3, 4, -1)
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], dtype=np.uint8)
    mins = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], dtype=np.uint8)
    return scales, mins


def _scales_and_mins(block: NDArray[np.void]) -> tuple[F32, F32]:
    """Return the scale and the min of each sub-block, shape (8, b), of blocks of shape (b,)."""
    scales, mins = unpack_scales(block)
    return block["scale"].astype(np.float32) * scales, block["min"].astype(np.float32) * mins


def _pack_four_bits(level: U8, block: NDArray[np.void]) -> None:
    block["low"] = (level[:, ::2] | level[:, 1::2] << 4).T


def _unpack_four_bits(block: NDArray[np.void], level: F32) -> None:
    level[..., ::2, :] = block["low"] & 15
    level[..., 1::2, :] = block["low"] >> 4


def _pack_five_bits(level: U8, block: NDArray[np.void]) -> None:
    block["high"] = np.packbits(level >> 4, axis=1, bitorder="little")[:, 0].T
    level &= 15
    _pack_four_bits(level, block)


def _unpack_five_bits(block: NDArray[np.void], level: F32) -> None:
    high = np.unpackbits(block["high"][..., None, :], axis=-2, bitorder="little")
    high <<= 4
    level[..., ::2, :] = block["low"] & 15 | high[..., ::2, :]
    level[..., 1::2, :] = block["low"] >> 4 | high[..., 1::2, :]


def pack_q4_k(levels: U8, block: NDArray[np.void]) -> None:
    """Store levels (b, 256) in blocks of Q4_K, shape (b,)."""
    _pack_four_bits(_turn(levels), block)


def pack_q5_k(levels: U8, block: NDArray[np.void]) -> None:
    """Store levels (b, 256) in blocks of Q5_K, shape (b,)."""
    _pack_five_bits(_turn(levels), block)


def _turn(levels: U8) -> U8:
    return np.ascontiguousarray(levels.reshape(-1, 8, 32).transpose(2, 1, 0))


# ggml's `block_q4_K`. Byte i of row j of `low` has elements 64 * j + i (low bits) and
# 64 * j + i + 32 (high bits).
Q4_K = _build_codec(
    np.dtype([("scale", "<f2"), ("min", "<f2"), ("scales", "u1", 12), ("low", "u1", (4, 32))]),
    _LevelRange(most=15, first=-1.0, steps=20),
    _pack_four_bits,
    _unpack_four_bits,
)
# ggml's `block_q5_K`. `low` has the low four bits as in Q4_K; bit j of byte i of `high` is the
# fifth bit of element 32 * j + i.
Q5_K = _build_codec(
    np.dtype(
        [
            ("scale", "<f2"),
            ("min", "<f2"),
            ("scales", "u1", 12),
            ("high", "u1", 32),
            ("low", "u1", (4, 32)),
        ]
    ),
    _LevelRange(most=31, first=-0.5, steps=15),
    _pack_five_bits,
    _unpack_five_bits,
)
