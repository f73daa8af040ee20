"""Floats in small blocks along an axis, each with a scale: shapes, codes, and cuts.

These are the block formats of the Open Compute Project (MXFP) and of NVIDIA (NVFP4). Values are
packed along the last axis; for Llama 4's experts, along the axis before it.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from weightctl.schemes import decoding
from weightctl.schemes.cutting import Along, cut_companion, cut_packed
from weightctl.schemes.naming import COMPRESSED, MLX, SCALED, LogicalWeight, divide_exactly

if TYPE_CHECKING:
    from weightctl.dtype import Encoding
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.decoding import BlockGrid, PackedNumbers, SchemeTensors
    from weightctl.schemes.naming import Candidate

MICROSCALED_NAMES = (*SCALED, COMPRESSED, MLX)
# Block sizes and encodings of the scales; MLX stores NVIDIA's scales as U8.
MXFP_BLOCK, _MXFP_SCALES = 32, ("U8", "F8_E8M0")
NVFP_BLOCK, _NVFP_SCALES = 16, ("F8_E4M3", "U8")


def infer_mxfp(candidate: Candidate, bits: int) -> LogicalWeight | None:
    """Return a weight of MXFP with this bit width."""
    return _infer(candidate, bits, MXFP_BLOCK, _MXFP_SCALES)


def infer_nvfp(candidate: Candidate, bits: int) -> LogicalWeight | None:
    """Return a weight in NVIDIA's blocks with this bit width."""
    return _infer(candidate, bits, NVFP_BLOCK, _NVFP_SCALES)


def _infer(
    candidate: Candidate, bits: int, block: int, encodings: tuple[str, ...]
) -> LogicalWeight | None:
    if candidate.scales.encoding.name not in encodings:
        return None
    # Biases belong to MLX's integers.
    if (candidate.shape(".biases") or candidate.shape(".qbiases")) is not None:
        return None
    numbers, scales = candidate.numbers, candidate.scales
    return _infer_blocks(numbers.shape, numbers.encoding, scales.shape, bits, block)


@lru_cache(maxsize=1024)  # a model has few different shapes, each in many layers
def _infer_blocks(
    numbers: tuple[int, ...], packed: Encoding, scales: tuple[int, ...], bits: int, block: int
) -> LogicalWeight | None:
    if len(numbers) != len(scales) or not _holds(packed, bits):
        return None
    for axis in range(len(numbers) - 1, max(len(numbers) - 3, -1), -1):
        length = block * scales[axis]
        if divide_exactly(8 * packed.size * numbers[axis], packed.block * length) == bits:
            shape = (*numbers[:axis], length, *numbers[axis + 1 :])
            if shape == (*scales[:axis], length, *scales[axis + 1 :]):
                return LogicalWeight(shape)
    return None


def _holds(encoding: Encoding, bits: int) -> bool:
    """Whether an encoding can store floats of this bit width; packed floats are stored as bytes."""
    if encoding.name == "I32":
        return False  # compressed-tensors' integers
    return encoding.name == "U32" or (bits == 8) == encoding.name.startswith("F8")


def read_float_codes(stored: SchemeTensors) -> tuple[PackedNumbers, int]:
    """Return the codes of 4-bit floats, and the axis along which they are packed, 1 or 0."""
    info, size = stored.numbers, stored.numbers.encoding.size
    per_word = 2 * size
    if prod(info.shape) // info.encoding.block * per_word != prod(stored.shape):
        raise stored.cannot_dequantize(
            f"`{info.name}` of shape {list(info.shape)} does not hold "
            f"one 4-bit code for each of the {prod(stored.shape)} elements"
        )
    layout = decoding.PackingLayout(4, 8 * size)
    is_along = len(info.shape) != len(stored.shape) or info.shape[-1] != stored.shape[-1]
    if is_along or info.encoding.name == "F4":
        table = stored.table(0, stored.shape[-1] // per_word)
        return decoding.PackedNumbers(table, layout, 1), 1
    return decoding.PackedNumbers(stored.table(0), layout, 0), 0


def make_block_grid(stored: SchemeTensors, block: int, axis: int) -> BlockGrid:
    """Return the grid of blocks along an axis of the table of codes, 1 or 0."""
    shape = stored.shape
    counts = (*shape[:-1], shape[-1] // block)
    if axis == 0:
        counts = (*shape[:-2], shape[-2] // block, shape[-1])
    return stored.grid(shape, counts)


def cut_microscaled(stored: SchemeTensors) -> list[Axes]:
    """Cut floats in blocks of a fixed size, and the scales of the blocks."""
    others = (cut_companion(stored, place) for place in range(2, len(stored.tensors)))
    return [cut_packed(stored.numbers, stored.shape), cut_blocks(stored), *others]


def cut_blocks(stored: SchemeTensors) -> Axes:
    """Return how the axes of a weight map to those of its scales, one for each block."""
    shape, scales = stored.shape, stored.scales.shape
    return [
        Along(axis, length // count)
        for axis, (length, count) in enumerate(zip(shape, scales, strict=True))
    ]
