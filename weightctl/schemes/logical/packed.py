"""How weights of few bits are packed into words, told from the shapes of what is stored.

Each function is one tool's way. It gives None where shapes do not fit together: then the tensors
are something else, and stay what they are.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weightctl.schemes.logical.scaled import microscaled
from weightctl.schemes.logical.stored import BITS, Logical, ceiling, covers, tiles, times

if TYPE_CHECKING:
    from weightctl.schemes.logical.stored import StoredScheme

__all__ = ["awq_fast", "compressed_tensors", "exl2", "exl3", "gptq_or_awq", "hqq", "mlx"]


def gptq_or_awq(stored: StoredScheme) -> Logical | None:
    """GPTQ packs the inputs of `[in, out]`, AutoAWQ its outputs; AWQ's GEMV is `[out, in]`."""
    if not len(stored.numbers.shape) == len(stored.scales.shape) == 2:
        return None
    (_, columns), (_, outputs) = stored.numbers.shape, stored.scales.shape
    if columns == outputs:
        return _gptq(stored)
    return _awq(stored) if columns < outputs else _awq_gemv(stored)


def _gptq(stored: StoredScheme) -> Logical | None:
    rows, outputs = stored.numbers.shape
    groups = stored.scales.shape[0]
    zeros, order = stored.shape(".qzeros"), stored.shape(".g_idx")
    # Symmetric quantization may leave the zeros out.
    if zeros:
        bits = times(32 * zeros[-1], outputs)
    elif order and order != (0,):
        bits = times(32 * rows, order[0])
    else:
        bits = stored.number("bits")
    inputs = times(32 * rows, bits)
    if zeros not in {None, (groups, times(bits * outputs, 32))}:
        return None
    # An order may be of groups that are no runs.
    if order != (inputs,) and (order not in {None, (0,)} or not tiles(groups, inputs)):
        return None
    return _make_logical((outputs, inputs), "GPTQ", bits)


def _awq(stored: StoredScheme) -> Logical | None:
    inputs, columns = stored.numbers.shape
    groups, outputs = stored.scales.shape
    if stored.shape(".qzeros") not in {None, (groups, columns)} or not tiles(groups, inputs):
        return None
    return _make_logical((outputs, inputs), "AWQ", times(32 * columns, outputs))


def _awq_gemv(stored: StoredScheme) -> Logical | None:
    outputs, columns = stored.numbers.shape
    rows, groups = stored.scales.shape
    zeros = stored.shape(".qzeros")
    if not zeros or len(zeros) != 2 or not zeros[0] == rows == outputs:
        return None
    bits = times(32 * zeros[1], groups)
    return _make_logical((outputs, times(32 * columns, bits)), "AWQ", bits)


def awq_fast(stored: StoredScheme) -> Logical | None:
    """AutoAWQ's GEMV-fast: four rows of 4-bit numbers interleaved in a row of I16."""
    numbers, scales = stored.numbers.shape, stored.scales.shape
    if len(numbers) != 2 or len(scales) != 2 or scales[1] != 4 * numbers[0]:
        return None
    return Logical((4 * numbers[0], numbers[1]), "AWQ 4-bit")


def compressed_tensors(stored: StoredScheme) -> Logical | None:
    """What compressed-tensors packs: integers into I32, their shape in a tensor; floats into U8."""
    if stored.numbers.encoding.name == "U8":
        return microscaled(stored)
    numbers, shape = stored.numbers.shape, stored.integers(".weight_shape")
    if not shape or not numbers or shape[:-1] != numbers[:-1]:
        return None
    for bits in BITS:
        # Earlier versions split no number between two words.
        if numbers[-1] in {ceiling(shape[-1] * bits, 32), ceiling(shape[-1], 32 // bits)}:
            fits = covers(stored.scales.shape, shape)
            return Logical(shape, f"INT{bits} scaled") if fits else None
    return None


def mlx(stored: StoredScheme) -> Logical | None:
    """MLX: rows packed into U32, scales and biases of groups whose size only the config says."""
    numbers, scales = stored.numbers.shape, stored.scales.shape
    biases = stored.shape(".biases") or stored.shape(".qbiases")
    if biases is None:
        return microscaled(stored)
    if not numbers or numbers[:-1] != scales[:-1] or biases != scales:
        return None
    columns = scales[-1] * stored.number("group_size")
    return _make_logical((*numbers[:-1], columns), "MLX", times(32 * numbers[-1], columns))


def hqq(stored: StoredScheme) -> Logical | None:
    """HQQ: numbers packed in any shape, and two tensors that hold the shape and the bits."""
    shape, bits = stored.integers(".shape"), stored.integers(".nbits")
    if not shape or not bits or stored.numbers.encoding.block != 1:
        return None
    # 32 bits hold ten numbers of three.
    needed, held = prod(shape) * bits[0], 8 * stored.numbers.nbytes
    return _make_logical(shape, "HQQ", bits[0]) if needed <= held < 2 * needed else None


def exl2(stored: StoredScheme) -> Logical | None:
    """ExLlamaV2: columns packed with bits that change from group to group of the inputs."""
    order = stored.shape(".q_invperm") or stored.shape(".q_perm")
    if not order or len(stored.numbers.shape) != 2:
        return None
    words, outputs = stored.numbers.shape
    return Logical((outputs, order[0]), "EXL2") if order[0] <= 32 * words <= 8 * order[0] else None


def exl3(stored: StoredScheme) -> Logical | None:
    """ExLlamaV3: tiles of 16 inputs and 16 outputs, each in 16 words of I16 for a bit."""
    if len(stored.numbers.shape) != 3:
        return None
    inputs, outputs, words = stored.numbers.shape
    if stored.scales.shape != (16 * inputs,) or words not in range(8, 129, 8):
        return None
    return Logical((16 * outputs, 16 * inputs), f"EXL3 {words / 16:g}-bit")


def _make_logical(shape: tuple[int, ...], tool: str, bits: int) -> Logical | None:
    return Logical(shape, f"{tool} {bits}-bit") if bits in BITS else None
