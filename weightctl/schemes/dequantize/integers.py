"""Integers of a few bits in words: GPTQ, AWQ, compressed-tensors, ModelOpt, MLX."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weightctl.schemes.dequantize.form import DecodingScheme
from weightctl.schemes.dequantize.grid import PerBlock
from weightctl.schemes.dequantize.numbers import PackedNumbers
from weightctl.schemes.dequantize.packing import PackingLayout
from weightctl.schemes.dequantize.parts import align_counts
from weightctl.schemes.dequantize.values import Scaled

if TYPE_CHECKING:
    from weightctl.schemes.dequantize.parts import SchemeTensors

__all__ = ["awq", "column_factors", "compressed_tensors", "gptq", "mlx", "two_rows"]

# The columns whose numbers are in a word, as AutoAWQ's kernels have them.
_AWQ = PackingLayout(4, 32, order=(0, 2, 4, 6, 1, 3, 5, 7))
# AutoRound writes zeros as they are, unless it says that it writes as AutoGPTQ does.
_AUTO_ROUND = ("auto_round", "auto_round:gptqmodel")


def gptq(parts: SchemeTensors) -> DecodingScheme:
    """GPTQ: `[in, out]`, packed along the inputs, zeros along the outputs.

    In files of its first version zeros are stored less one (GPTQModel's `_shift_gptq_qzeros`).
    """
    parts.refuse_others(".qzeros", ".g_idx")
    bits, version = _bits(parts), parts.settings.text("checkpoint_format") or "gptq"
    if bits not in {2, 3, 4, 8} or version not in {"gptq", "gptq_v2"}:
        raise parts.cannot_dequantize(f"it is `{version}` of {bits} bits")
    layout, (outputs, inputs) = PackingLayout(bits, 32), parts.shape
    groups = parts.scales.shape[0]
    grid = parts.ordered_grid(parts.find(".g_idx"), (inputs, outputs), (groups, outputs), -2)
    place, middle = parts.find(".qzeros"), 1 << (bits - 1)
    is_auto_round = "auto-round" in parts.settings.text("quant_method")
    packing = parts.settings.text("packing_format")
    is_plain = version == "gptq_v2" or (is_auto_round and packing in _AUTO_ROUND)
    zeros = None
    if place is not None:
        plus = 0 if is_plain else 1
        zeros = PerBlock(parts.packed(place, layout, 1, grid.table, plus=plus), grid)
    values = Scaled(
        numbers=parts.packed(0, layout, 0, (inputs, outputs)),
        scales=parts.per_block(1, grid),
        zeros=zeros,
        zero=0 if zeros else middle,
    )
    return DecodingScheme(parts.shape, values, turned=True, bits=bits, middle=middle)


def awq(parts: SchemeTensors) -> DecodingScheme:
    """AWQ: `[in, out]`, packed along the outputs in an order of its own; GEMV is `[out, in]`."""
    parts.refuse_others(".qzeros")
    place = parts.find(".qzeros")
    if _bits(parts) != 4 or place is None:
        raise parts.cannot_dequantize("weightctl knows it with 4 bits and zeros")
    (outputs, inputs), counts = parts.shape, parts.scales.shape
    if parts.numbers.shape[0] != inputs or parts.numbers.shape[1] >= counts[1]:
        return _awq_gemv(parts, place)
    grid = parts.grid((inputs, outputs), counts, -2)
    values = Scaled(
        numbers=parts.packed(0, _AWQ, 1, (inputs, outputs)),
        scales=parts.per_block(1, grid),
        zeros=PerBlock(parts.packed(place, _AWQ, 1, grid.table), grid),
    )
    return DecodingScheme(parts.shape, values, turned=True, bits=4, middle=8)


def _awq_gemv(parts: SchemeTensors, place: int) -> DecodingScheme:
    layout, inputs = PackingLayout(4, 32), parts.shape[1]
    rows, columns = parts.scales.shape
    # Its tables of scales and zeros are padded: only the settings tell the groups.
    size = next((size for size in parts.settings.sizes(-1) if -(-inputs // size) <= columns), None)
    if size is None:
        raise parts.cannot_dequantize("nothing says how large its groups are")
    counts = (rows, -(-inputs // size))
    grid = parts.grid(parts.shape, counts)
    values = Scaled(
        numbers=parts.packed(0, layout, 1, (rows, inputs)),
        scales=PerBlock(parts.plain(1), grid),
        zeros=PerBlock(parts.packed(place, layout, 1, (rows, columns)), grid),
    )
    return DecodingScheme(parts.shape, values, bits=4, middle=8)


def compressed_tensors(parts: SchemeTensors) -> DecodingScheme:
    """compressed-tensors `pack-quantized`: rows, with zeros packed along the other axis."""
    parts.refuse_others(".weight_shape", ".weight_zero_point", ".weight_g_idx")
    shape, bits = parts.shape, _bits(parts)
    _check_shape(parts)
    words = parts.numbers.shape[-1]
    # Its first versions split no number between two words.
    layout = PackingLayout(bits, 32)
    if layout.words_of(shape[-1]) != words:
        layout = PackingLayout(bits, 32, whole=True)
    counts = align_counts(parts.scales.shape, shape)
    grid = parts.ordered_grid(parts.find(".weight_g_idx"), shape, counts, -1)
    middle = 1 << (bits - 1)
    zero, zeros = middle, None
    if (place := parts.find(".weight_zero_point")) is not None:
        info = parts.tensors[place].info
        if info.encoding.name == "I8":
            zeros = parts.per_block(place, grid)
        else:
            if len(counts) != 2:
                raise parts.cannot_dequantize(f"`{info.name}` is for weights of two dimensions")
            zero, zeros = 0, PerBlock(parts.packed(place, layout, 0, grid.table), grid)
    values = Scaled(
        numbers=parts.packed(0, layout, 1, (prod(shape[:-1]), shape[-1])),
        scales=parts.per_block(1, grid),
        zero=zero,
        zeros=zeros,
    )
    return DecodingScheme(shape, values, bits=bits, middle=middle)


def _check_shape(parts: SchemeTensors) -> None:
    """Refuse a weight that says another shape of itself than those that look like it."""
    place = parts.find(".weight_shape")
    if place is None:
        return
    size = parts.tensors[place].info.encoding.size
    raw = parts.raw(place)
    said = [
        int.from_bytes(raw[at : at + size], "little", signed=True)
        for at in range(0, len(raw), size)
    ]
    if said != list(parts.shape):
        raise parts.cannot_dequantize(f"`{parts.tensors[place].info.name}` says {said}")


def two_rows(parts: SchemeTensors) -> DecodingScheme:
    """ModelOpt's INT4: two rows in one, of signed numbers; inputs may have factors."""
    parts.refuse_others(".pre_quant_scale")
    grid = parts.grid(parts.shape, parts.scales.shape)
    values = Scaled(
        numbers=PackedNumbers(parts.table(0), PackingLayout(4, 8), 0, signed=True),
        scales=parts.per_block(1, grid),
        factors=column_factors(parts),
    )
    return DecodingScheme(parts.shape, values, bits=0 if values.factors else 4)


def column_factors(parts: SchemeTensors) -> PerBlock | None:
    """Return what the inputs are multiplied with before the weight is, as ModelOpt's AWQ has it."""
    place = parts.find(".pre_quant_scale")
    if place is None:
        return None
    columns = parts.shape[-1]
    if parts.tensors[place].info.size != columns:
        raise parts.cannot_dequantize(
            f"`{parts.tensors[place].info.name}` is not of {columns} inputs"
        )
    counts = (*(1 for _ in parts.shape[:-1]), columns)
    return parts.per_block(place, parts.grid(parts.shape, counts))


def mlx(parts: SchemeTensors) -> DecodingScheme:
    """MLX: number * scale + bias, for groups along the rows."""
    parts.refuse_others(".biases", ".qbiases")
    place, bits = parts.find(".biases", ".qbiases"), _bits(parts)
    if place is None:
        raise parts.cannot_dequantize("it has no biases")
    grid = parts.grid(parts.shape, parts.scales.shape)
    values = Scaled(
        numbers=parts.packed(
            0, PackingLayout(bits, 32), 1, (prod(parts.shape[:-1]), parts.shape[-1])
        ),
        scales=parts.per_block(1, grid),
        biases=parts.per_block(place, grid),
    )
    return DecodingScheme(parts.shape, values, bits=bits)


def _bits(parts: SchemeTensors) -> int:
    """Return the bits of a number, as the packing's name has them: `GPTQ 4-bit`, `INT4 scaled`."""
    return int("".join(letter for letter in parts.scheme if letter.isdecimal()))
