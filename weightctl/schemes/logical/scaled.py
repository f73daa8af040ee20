"""What scales make of 8-bit numbers, and of 4-bit floats in bytes, told from their shapes.

Each function is one layout. It gives None where shapes do not fit together: then the tensors are
something else, and stay what they are.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from weightctl.schemes.logical.stored import Logical, ceiling, covers, sound, tiles, times
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from weightctl.dtype import Encoding
    from weightctl.schemes.logical.stored import StoredScheme

__all__ = ["bitsandbytes", "gpt_oss", "llm_int8", "microscaled", "quanto", "scaled"]

# The block formats of the Open Compute Project and of NVIDIA: how many numbers share a scale, how
# it is encoded (MLX keeps NVIDIA's in U8), and the name by the bits of a number.
_MICROSCALES = (
    (32, ("U8", "F8_E8M0"), {4: "MXFP4", 6: "MXFP6", 8: "MXFP8"}),
    (16, ("F8_E4M3", "U8"), {4: "NVFP4"}),
)
_INTEGERS = {"I8": "INT8", "U8": "UINT8"}
_ZEROS = (".weight_zero_point", ".zero_points", ".qzeros", "_zero_point")


def microscaled(stored: StoredScheme) -> Logical | None:
    """MXFP and NVFP4, packed along the last axis; Llama 4's experts along the one before."""
    return _find_microscaled(*stored.numbers[1:], *stored.scales[1:])


@lru_cache(maxsize=256)  # a model has few shapes, each in many layers
def _find_microscaled(
    numbers: tuple[int, ...], packed: Encoding, scales: tuple[int, ...], scaling: Encoding
) -> Logical | None:
    if len(numbers) != len(scales):
        return None
    for group, encodings, names in _MICROSCALES:
        if scaling.name not in encodings:
            continue
        for axis in range(len(numbers) - 1, max(len(numbers) - 3, -1), -1):
            length = group * scales[axis]
            bits = times(8 * packed.size * numbers[axis], packed.block * length)
            if bits in names and _holds(packed, bits):
                shape = (*numbers[:axis], length, *numbers[axis + 1 :])
                if shape == (*scales[:axis], length, *scales[axis + 1 :]):
                    return Logical(shape, names[bits])
    return None


def _holds(encoding: Encoding, bits: int) -> bool:
    """Whether floats of so many bits are kept in this; bytes that are no floats are packed."""
    return encoding.name == "U32" or (bits == 8) == encoding.name.startswith("F8")


def scaled(stored: StoredScheme) -> Logical | None:
    """Scales for the tensor, each row or each block: compressed-tensors, DeepSeek, ModelOpt."""
    if found := microscaled(stored):
        return found
    name, shape, scales = stored.numbers.encoding.name, stored.numbers.shape, stored.scales.shape
    if name == "U8" and not any(stored.shape(ending) == scales for ending in _ZEROS):
        return _find_packed_rows(stored)
    return Logical(shape, f"{_INTEGERS.get(name, name)} scaled") if covers(scales, shape) else None


def _find_packed_rows(stored: StoredScheme) -> Logical | None:
    """ModelOpt's INT4, two rows in one, and BitNet's -1, 0 and 1, four rows in one."""
    shape, scales = stored.numbers.shape, stored.scales.shape
    if len(shape) < 2:
        return None
    *lead, rows, columns = shape
    if scales[:-1] == (*lead, 2 * rows) and tiles(scales[-1], columns):
        return Logical((*lead, 2 * rows, columns), "INT4 scaled")
    if stored.setting("quant_method") == "bitnet" and prod(scales) == 1:
        return Logical((*lead, 4 * rows, columns), "BitNet 1.58-bit")
    return None


def llm_int8(stored: StoredScheme) -> Logical | None:
    """LLM.int8() of bitsandbytes: I8, and the largest absolute value of each row."""
    shape = stored.numbers.shape
    fits = len(shape) == 2 and stored.scales.shape == shape[:1]
    return Logical(shape, "LLM.int8()") if fits else None


def bitsandbytes(stored: StoredScheme) -> Logical | None:
    """NF4 and FP4 of bitsandbytes: two numbers in a byte, the shape in a tensor of JSON."""
    for kind in ("nf4", "fp4"):
        raw = stored.bytes_of(f".weight.quant_state.bitsandbytes__{kind}")
        if raw is None or stored.numbers.encoding.block != 1:
            continue
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError):
            return None
        shape = sound(document.get("shape")) if is_object(document) else None
        if shape and ceiling(prod(shape), 2) == stored.numbers.nbytes:
            return Logical(shape, kind.upper())
    return None


def gpt_oss(stored: StoredScheme) -> Logical | None:
    """gpt-oss: MXFP4 as bytes `[..., rows, groups, 16]`, a scale for each group of 32."""
    shape = stored.numbers.shape
    if len(shape) < 2 or shape[-1] != 16 or shape[:-1] != stored.scales.shape:
        return None
    return Logical((*shape[:-2], 32 * shape[-2]), "MXFP4")


def quanto(_stored: StoredScheme) -> None:
    """Integers of quanto with fewer than 8 bits: no tensor says the shape of the weight."""
