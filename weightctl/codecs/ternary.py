"""TQ1_0, TQ2_0 and Q2_0: values as -1, 0 or 1 times the largest magnitude; Q1_0: values as signs.

TQ1_0 and TQ2_0 have 256 values, Q2_0 has 64. Q1_0 has 128 values, as -1 or 1 times their mean
magnitude.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import BlockCodec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8


def _round(x: F32) -> tuple[F32, U8]:
    """Return scales (r, b) and levels (r, b, 256) of values (r, b, 256); level 1 is zero."""
    scale: F32 = np.maximum(x.max(axis=2), -x.min(axis=2))
    # Adding 0 turns -0 into 0, the initial value in ggml.
    scale += np.float32(0)
    inverse = np.where(scale > 0, 1 / scale, np.float32(0))
    # The inverse of a subnormal scale may be infinite; ggml's levels are then 1.
    inverse[np.isinf(inverse)] = 0
    fraction = x * inverse[..., None]
    level = np.ones(x.shape, np.uint8)
    level += fraction >= np.float32(0.5)
    level -= fraction <= np.float32(-0.5)
    return scale, level


def _restore(level: U8, scale: NDArray[np.float16], out: F32) -> None:
    """Fill `out`, shape (r, b, 256), with levels of that shape times scales (r, b)."""
    signed = level.view(np.int8) - np.int8(1)
    np.multiply(signed, scale.astype(np.float32)[..., None], out=out, dtype=np.float32)


# The first and last (exclusive) element of each field of TQ1_0, and its digits per byte.
_DIGITS = {"first": (0, 160, 5), "second": (160, 240, 5), "third": (240, 256, 4)}


def _encode_digits(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:  # noqa: ARG001
    """Fill blocks of TQ1_0; as in ggml's `quantize_tq1_0`, `importance` has no effect."""
    block["scale"], level = _round(x)
    for name, (start, stop, digits) in _DIGITS.items():
        part = level[..., start:stop].reshape(*block.shape, digits, -1)
        number = np.zeros(block[name].shape, np.uint16)
        for i in range(5):
            number *= 3
            if i < digits:
                number += part[..., i, :]
        # The byte is the fraction number / 243, rounded up: each multiplication by 3 then
        # carries the next digit out of it.
        block[name] = (number * np.uint16(256) + np.uint16(242)) // np.uint16(243)


def _decode_digits(block: NDArray[np.void], out: F32) -> None:
    level = np.empty(out.shape, np.uint8)
    for name, (start, stop, digits) in _DIGITS.items():
        fraction = block[name].copy()
        digit = level[..., start:stop].reshape(*block.shape, digits, -1)
        for i in range(digits):
            digit[..., i, :] = fraction.astype(np.uint16) * np.uint16(3) >> np.uint16(8)
            fraction *= 3
        level[..., start:stop] = digit.reshape(*block.shape, -1)
    _restore(level, block["scale"], out)


def _encode_bits(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:  # noqa: ARG001
    """Fill blocks of TQ2_0; as in ggml's `quantize_tq2_0`, `importance` has no effect."""
    block["scale"], level = _round(x)
    q = level.reshape(*block.shape, 2, 4, 32)
    block["q"] = q[..., 0, :] | q[..., 1, :] << 2 | q[..., 2, :] << 4 | q[..., 3, :] << 6


_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]


def _decode_bits(block: NDArray[np.void], out: F32) -> None:
    level = block["q"][..., None, :] >> _SHIFTS & np.uint8(3)
    _restore(level.reshape(out.shape), block["scale"], out)


def _encode_signs(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:  # noqa: ARG001
    """Fill blocks of Q1_0; as in ggml's `quantize_q1_0`, `importance` has no effect."""
    # `accumulate` adds from left to right, as ggml does.
    block["scale"] = np.add.accumulate(np.abs(x), axis=2)[..., -1] / np.float32(128)
    block["q"] = np.packbits(x >= 0, axis=2, bitorder="little")


def _decode_signs(block: NDArray[np.void], out: F32) -> None:
    scale = block["scale"].astype(np.float32)[..., None]
    positive = np.unpackbits(block["q"], axis=2, bitorder="little")
    out[...] = np.where(positive, scale, -scale)


def _encode_fours(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:  # noqa: ARG001
    """Fill blocks of Q2_0; as in ggml's `quantize_q2_0`, `importance` has no effect."""
    scale, level = _round(x)
    # If the inverse of a subnormal scale is infinite, ggml's levels are 0.
    level[(scale > 0) & np.isinf(1 / scale)] = 0
    block["scale"] = scale
    q = level.reshape(*block.shape, 16, 4) << _PAIRS
    block["q"] = np.bitwise_or.reduce(q, axis=3)


_PAIRS = np.arange(0, 8, 2, dtype=np.uint8)


def _decode_fours(block: NDArray[np.void], out: F32) -> None:
    level = block["q"][..., None] >> _PAIRS & np.uint8(3)
    _restore(level.reshape(out.shape), block["scale"], out)


# ggml's `block_q1_0`: bit i of `q` says whether element i is positive.
Q1_0 = BlockCodec(np.dtype([("scale", "<f2"), ("q", "u1", 16)]), 128, _encode_signs, _decode_signs)
# ggml's `block_q2_0`. Byte i of `q` has elements 4 * i to 4 * i + 3, the first in its low bits.
# Levels are as in TQ2_0.
Q2_0 = BlockCodec(np.dtype([("scale", "<f2"), ("q", "u1", 16)]), 64, _encode_fours, _decode_fours)
# ggml's `block_tq1_0`. In a field of n bytes, byte i has the elements i, i + n, i + 2 * n ... of
# the field; the first is the most significant of five ternary digits. `third` has four elements per
# byte.
TQ1_0 = BlockCodec(
    np.dtype([("first", "u1", 32), ("second", "u1", 16), ("third", "u1", 4), ("scale", "<f2")]),
    256,
    _encode_digits,
    _decode_digits,
)
# ggml's `block_tq2_0`. Byte i of row j of `q` has element 128 * j + i in its low bits, and then
# those at + 32, + 64 and + 96. Level 1 is zero; level 3, which is never written, is twice the
# scale.
TQ2_0 = BlockCodec(
    np.dtype([("q", "u1", (2, 32)), ("scale", "<f2")]), 256, _encode_bits, _decode_bits
)
