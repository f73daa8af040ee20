"""The codes and scales of blocks, read and stored apart, for types whose codes can be chosen.

A value is its code's level times a scale, minus a min in types with mins. The scale and the min of
a sub-block are the products of a float16 of the block and an integer of the sub-block. In blocks
without sub-blocks, they are one float16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import (
    affine,
    codebook,
    nibbles,
    q2_k,
    q3_k,
    q6_k,
    scales_and_mins,
    symmetric,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8, BlockCodec
    from weightctl.codecs.nibbles import NibbleCodec
    from weightctl.dtype import Encoding

    Blocks = NDArray[np.void]


class ScaleFields(NamedTuple):
    """How the scales of blocks are stored, and the mins if the type `has_mins`.

    `factors` is the range of the integers of the sub-blocks; None if there are no sub-blocks.
    `read` returns the float16 numbers and the integers of blocks (b,), shapes (k, b) and (k, s, b):
    k is 2 with mins and otherwise 1, and s the number of sub-blocks. `write` stores them.
    """

    has_mins: bool
    factors: tuple[int, int] | None
    read: Callable[[Blocks], tuple[F32, F32]]
    write: Callable[[Blocks, F32, F32], None]


class Parts(NamedTuple):
    """How the blocks of a type are made of codes and scales.

    A block has `block` values, and `shared` of them have one scale. Codes are integers from `least`
    to `most`, or those of `levels`, in ascending order, if the type has uneven ones. `pack` stores
    the indices of codes, shape (b, block), in blocks (b,).
    """

    block_dtype: np.dtype[np.void]
    block: int
    shared: int
    least: int
    most: int
    scales: ScaleFields
    pack: Callable[[U8, Blocks], None]
    levels: F32 | None = None

    def find_indices(self, codes: F32) -> U8:
        """Return the indices that are stored for codes."""
        if self.levels is not None:
            return np.searchsorted(self.levels, codes).astype(np.uint8)
        return (codes - np.float32(self.least)).astype(np.uint8)


def has_parts(encoding: Encoding) -> bool:
    """Whether the codes of an encoding can be chosen."""
    return encoding.name in _PARTS


def parts_of(encoding: Encoding) -> Parts:
    """Return the parts of an encoding that has them."""
    return _PARTS[encoding.name]


def _read_halves(block: Blocks, *names: str) -> F32:
    return np.stack([block[name].astype(np.float32) for name in names])


def _read_q2_k(block: Blocks) -> tuple[F32, F32]:
    scales = np.ascontiguousarray(block["scales"].T)
    factors = np.stack([scales & 15, scales >> 4]).astype(np.float32)
    return _read_halves(block, "scale", "min"), factors


def _write_q2_k(block: Blocks, of_blocks: F32, of_groups: F32) -> None:
    block["scale"], block["min"] = of_blocks
    scales, mins = of_groups.astype(np.uint8)
    block["scales"] = (scales | mins << 4).T


def _read_q3_k(block: Blocks) -> tuple[F32, F32]:
    return _read_halves(block, "scale"), q3_k.unpack_scales(block)[None].astype(np.float32)


def _write_q3_k(block: Blocks, of_blocks: F32, of_groups: F32) -> None:
    block["scale"] = of_blocks[0]
    block["scales"] = q3_k.pack_scales((of_groups[0] + 32).astype(np.uint8)).T


def _read_scales_and_mins(block: Blocks) -> tuple[F32, F32]:
    factors = np.stack(scales_and_mins.unpack_scales(block)).astype(np.float32)
    return _read_halves(block, "scale", "min"), factors


def _write_scales_and_mins(block: Blocks, of_blocks: F32, of_groups: F32) -> None:
    block["scale"], block["min"] = of_blocks
    block["scales"] = scales_and_mins.pack_scales(*of_groups.astype(np.uint8)).T


def _read_q6_k(block: Blocks) -> tuple[F32, F32]:
    scales = np.ascontiguousarray(block["scales"].T)
    return _read_halves(block, "scale"), scales[None].astype(np.float32)


def _write_q6_k(block: Blocks, of_blocks: F32, of_groups: F32) -> None:
    block["scale"] = of_blocks[0]
    block["scales"] = of_groups[0].T.astype(np.int8)


def _read_iq4_xs(block: Blocks) -> tuple[F32, F32]:
    return _read_halves(block, "scale"), codebook.unpack_scales(block).T[None].astype(np.float32)


def _write_iq4_xs(block: Blocks, of_blocks: F32, of_groups: F32) -> None:
    block["scale"] = of_blocks[0]
    codebook.pack_scales(of_groups[0].T.astype(np.int8), block)


def _pack_iq4(levels: U8, block: Blocks) -> None:
    block["q"] = nibbles.pack_pairs(levels.reshape(len(block), -1, 32)).reshape(block["q"].shape)


# Blocks without sub-blocks: the factor of the block is 1.
def _read_scale(block: Blocks) -> tuple[F32, F32]:
    scales = _read_halves(block, "scale")
    return np.ones_like(scales), scales[:, None]


def _write_scale(block: Blocks, _: F32, scales: F32) -> None:
    block["scale"] = scales[0, 0]


def _read_scale_and_min(block: Blocks) -> tuple[F32, F32]:
    both = _read_halves(block, "scale", "min")
    both[1] *= -1  # it is added
    return np.ones_like(both), both[:, None]


def _write_scale_and_min(block: Blocks, _: F32, both: F32) -> None:
    block["scale"], block["min"] = both[0, 0], -both[1, 0]


_SCALE = ScaleFields(False, None, _read_scale, _write_scale)
_SCALE_AND_MIN = ScaleFields(True, None, _read_scale_and_min, _write_scale_and_min)
_SCALES_AND_MINS = ScaleFields(True, (0, 63), _read_scales_and_mins, _write_scales_and_mins)


def _even(
    codec: BlockCodec | NibbleCodec,
    shared: int,
    codes: range,
    scales: ScaleFields,
    pack: Callable[[U8, Blocks], None] = nibbles.pack_levels,
) -> Parts:
    block = 256 if scales.factors else 32
    return Parts(codec.block_dtype, block, shared, codes[0], codes[-1], scales, pack)


def _uneven(codec: BlockCodec, scales: ScaleFields) -> Parts:
    levels = np.array(codebook.IQ4_LEVELS, np.float32)
    least, most = codebook.IQ4_LEVELS[0], codebook.IQ4_LEVELS[-1]
    return Parts(codec.block_dtype, codec.elements, 32, least, most, scales, _pack_iq4, levels)


_PARTS = {
    "Q2_K": _even(
        q2_k.Q2_K, 16, range(4), ScaleFields(True, (0, 15), _read_q2_k, _write_q2_k), q2_k.pack
    ),
    "Q3_K": _even(
        q3_k.Q3_K, 16, range(-4, 4), ScaleFields(False, (-32, 31), _read_q3_k, _write_q3_k),
        q3_k.pack,
    ),
    "Q4_K": _even(
        scales_and_mins.Q4_K, 32, range(16), _SCALES_AND_MINS, scales_and_mins.pack_q4_k
    ),
    "Q5_K": _even(
        scales_and_mins.Q5_K, 32, range(32), _SCALES_AND_MINS, scales_and_mins.pack_q5_k
    ),
    "Q6_K": _even(
        q6_k.Q6_K, 16, range(-32, 32), ScaleFields(False, (-128, 127), _read_q6_k, _write_q6_k),
        q6_k.pack,
    ),
    "Q4_0": _even(symmetric.Q4_0, 32, range(-8, 8), _SCALE),
    "Q5_0": _even(symmetric.Q5_0, 32, range(-16, 16), _SCALE),
    "Q4_1": _even(affine.Q4_1, 32, range(16), _SCALE_AND_MIN),
    "Q5_1": _even(affine.Q5_1, 32, range(32), _SCALE_AND_MIN),
    "IQ4_NL": _uneven(codebook.IQ4_NL, _SCALE),
    "IQ4_XS": _uneven(
        codebook.IQ4_XS, ScaleFields(False, (-32, 31), _read_iq4_xs, _write_iq4_xs)
    ),
}  # fmt: skip
