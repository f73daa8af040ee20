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

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding

    Blocks = NDArray[np.void]


class CodeValues(NamedTuple):
    """The values that codes stand for. A block has `block` values, and `shared` ones have a scale.

    Codes are integers from `least` to `most`, or those of `levels`, 16 in ascending order. A value
    is the code times the scale of its sub-block, minus a min if the type `has_mins`. `factors` is
    the range of the integers of the sub-blocks, None for types without them. Scales that are
    `is_fixed` are kept; others are fitted to the codes.
    """

    block: int
    shared: int
    least: int
    most: int
    has_mins: bool
    factors: tuple[int, int] | None = None
    levels: F32 | None = None
    is_fixed: bool = False

    def find_indices(self, codes: F32) -> U8:
        """Return the places of codes among those of the grid."""
        if self.levels is not None:
            return np.searchsorted(self.levels, codes).astype(np.uint8)
        return (codes - np.float32(self.least)).astype(np.uint8)


class ScaleFields(NamedTuple):
    """How the scales of blocks are stored, and the mins.

    `read` returns the float16 numbers and the integers of blocks (b,), shapes (k, b) and (k, s, b):
    k is 2 with mins and otherwise 1, and s the number of sub-blocks. `write` stores them.
    """

    read: Callable[[Blocks], tuple[F32, F32]]
    write: Callable[[Blocks, F32, F32], None]


class Parts(NamedTuple):
    """How the blocks of a type are made of codes and scales.

    `pack` stores the indices of codes, shape (b, block), in blocks (b,).
    """

    block_dtype: np.dtype[np.void]
    grid: CodeValues
    scales: ScaleFields
    pack: Callable[[U8, Blocks], None]


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
    block["scale"], block["min"] = both[0, 0], 0 - both[1, 0]  # 0, not -0


_SCALE = ScaleFields(_read_scale, _write_scale)
_SCALE_AND_MIN = ScaleFields(_read_scale_and_min, _write_scale_and_min)
_SCALES_AND_MINS = ScaleFields(_read_scales_and_mins, _write_scales_and_mins)
_SIX_BITS, _SIX_SIGNED_BITS = (0, 63), (-32, 31)
_LEVELS = np.array(codebook.IQ4_LEVELS, np.float32)

# The dtype of blocks is that of the codec; a grid has the size of a block, that of a sub-block, the
# range of the codes, whether there are mins, and the range of the factors of sub-blocks.
_PARTS = {
    "Q2_K": Parts(
        q2_k.Q2_K.block_dtype, CodeValues(256, 16, 0, 3, True, (0, 15)),
        ScaleFields(_read_q2_k, _write_q2_k), q2_k.pack,
    ),
    "Q3_K": Parts(
        q3_k.Q3_K.block_dtype, CodeValues(256, 16, -4, 3, False, _SIX_SIGNED_BITS),
        ScaleFields(_read_q3_k, _write_q3_k), q3_k.pack,
    ),
    "Q4_K": Parts(
        scales_and_mins.Q4_K.block_dtype, CodeValues(256, 32, 0, 15, True, _SIX_BITS),
        _SCALES_AND_MINS, scales_and_mins.pack_q4_k,
    ),
    "Q5_K": Parts(
        scales_and_mins.Q5_K.block_dtype, CodeValues(256, 32, 0, 31, True, _SIX_BITS),
        _SCALES_AND_MINS, scales_and_mins.pack_q5_k,
    ),
    "Q6_K": Parts(
        q6_k.Q6_K.block_dtype, CodeValues(256, 16, -32, 31, False, (-128, 127)),
        ScaleFields(_read_q6_k, _write_q6_k), q6_k.pack,
    ),
    "Q4_0": Parts(
        symmetric.Q4_0.block_dtype, CodeValues(32, 32, -8, 7, False), _SCALE, nibbles.pack_levels
    ),
    "Q5_0": Parts(
        symmetric.Q5_0.block_dtype, CodeValues(32, 32, -16, 15, False), _SCALE, nibbles.pack_levels
    ),
    "Q4_1": Parts(
        affine.Q4_1.block_dtype,
        CodeValues(32, 32, 0, 15, True), _SCALE_AND_MIN, nibbles.pack_levels
    ),
    "Q5_1": Parts(
        affine.Q5_1.block_dtype,
        CodeValues(32, 32, 0, 31, True), _SCALE_AND_MIN, nibbles.pack_levels
    ),
    "IQ4_NL": Parts(
        codebook.IQ4_NL.block_dtype, CodeValues(32, 32, -127, 113, False, None, _LEVELS),
        _SCALE, _pack_iq4,
    ),
    "IQ4_XS": Parts(
        codebook.IQ4_XS.block_dtype,
        CodeValues(256, 32, -127, 113, False, _SIX_SIGNED_BITS, _LEVELS),
        ScaleFields(_read_iq4_xs, _write_iq4_xs), _pack_iq4,
    ),
}  # fmt: skip
