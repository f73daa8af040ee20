"""GPTQ, as written by AutoGPTQ and GPTQModel: `[in, out]`, packed along the inputs.

Version 1 of the format stores zero points minus one (GPTQModel's `_shift_gptq_qzeros`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from weightctl.schemes.cutting import cut_groups, cut_transposed, is_ordered
from weightctl.schemes.layout import ConstantPart, Packing, PartContent, StoredPart, WeightEncoding
from weightctl.schemes.naming import BITS, LogicalWeight, NameEndings, divide_exactly, tiles
from weightctl.schemes.scheme import GROUPS, Scheme, SchemeOptions, WrittenScheme, refuse_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.arrays.values import Decoding
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.naming import Candidate

# GPTQ and AWQ differ only in shapes.
QWEIGHT = NameEndings(".scales", ".qweight", ".weight", ("I32",), (".qzeros", ".g_idx"))
# Packing formats in which AutoRound stores zero points unchanged, unlike AutoGPTQ.
_AUTO_ROUND = ("auto_round", "auto_round:gptqmodel")


def _packings(bits: int) -> tuple[Packing, Packing]:
    """Return how values are packed, along the inputs, and zero points, along the outputs."""
    return Packing(bits, 32, axis=0), Packing(bits, 32, axis=1)


def _infer(candidate: Candidate) -> LogicalWeight | None:
    """Return a weight whose packed values and scales have the same columns."""
    if not len(candidate.numbers.shape) == len(candidate.scales.shape) == 2:
        return None
    (rows, columns), (groups, outputs) = candidate.numbers.shape, candidate.scales.shape
    if columns != outputs:
        return None
    zeros, order = candidate.shape(".qzeros"), candidate.shape(".g_idx")
    # Symmetric quantization can omit the zero points.
    if zeros:
        bits = divide_exactly(32 * zeros[-1], outputs)
    elif order and order != (0,):
        bits = divide_exactly(32 * rows, order[0])
    else:
        bits = candidate.settings.number("bits")
    inputs = divide_exactly(32 * rows, bits)
    if zeros not in {None, (groups, divide_exactly(bits * outputs, 32))}:
        return None
    # If inputs are assigned to groups in any order, the groups can have different sizes.
    if order != (inputs,) and (order not in {None, (0,)} or not tiles(groups, inputs)):
        return None
    return LogicalWeight((outputs, inputs), bits) if bits in BITS else None


def _decode(stored: SchemeTensors) -> Decoding:
    from weightctl.schemes.arrays.tables import PerBlock, SymmetricZeros
    from weightctl.schemes.arrays.values import Decoding, Scaled

    stored.refuse_others(".qzeros", ".g_idx")
    bits, settings = stored.bits, stored.settings
    version = settings.text("checkpoint_format") or settings.text("format") or "gptq"
    if bits not in {2, 3, 4, 8} or version not in {"gptq", "gptq_v2"}:
        raise stored.cannot_dequantize(
            f"GPTQ `checkpoint_format` `{version}` with {bits} bits is not supported; formats are "
            "gptq and gptq_v2, with 2, 3, 4 or 8 bits"
        )
    if settings.value("desc_act") is True and stored.find(".g_idx") is None:
        raise stored.cannot_dequantize("`desc_act` is true, but the order of its inputs is missing")
    (of_values, of_zeros), (outputs, inputs) = _packings(bits), stored.shape
    groups = stored.scales.shape[0]
    grid = stored.ordered_grid(stored.find(".g_idx"), (inputs, outputs), (groups, outputs), -2)
    place, middle = stored.find(".qzeros"), 1 << (bits - 1)
    is_auto_round = "auto-round" in settings.text("quant_method")
    packing = settings.text("packing_format")
    is_plain = version == "gptq_v2" or (is_auto_round and packing in _AUTO_ROUND)
    zeros = None
    if place is not None:
        is_symmetric = settings.value("sym") is True
        plus = 0 if is_plain or is_symmetric else 1
        packed = stored.pack_numbers(place, of_zeros, grid.table, plus=plus)
        zeros = PerBlock(SymmetricZeros(packed, middle) if is_symmetric else packed, grid)
    values = Scaled(
        numbers=stored.pack_numbers(0, of_values, (inputs, outputs)),
        scales=stored.per_block(1, grid),
        zeros=zeros,
        zero=0 if zeros else middle,
    )
    return Decoding(stored.shape, values, transposed=True, bits=bits, middle=middle)


def _cut(stored: SchemeTensors) -> list[Axes]:
    """Cut packed rows of inputs; each group of inputs has a row of scales and of zero points."""
    by_group = None if is_ordered(stored, ".g_idx") else cut_groups(stored)
    return cut_transposed(stored, *_packings(stored.bits), by_group)


SCHEME = Scheme(
    label="GPTQ {bits}-bit",
    summary="GPTQ, as written by AutoGPTQ and GPTQModel: `[in, out]`, packed along "
    "the input dimension",
    names=(QWEIGHT,),
    infer=_infer,
    decode=_decode,
    cut=_cut,
)


def _encode(
    bits: int, shape: tuple[int, ...], options: SchemeOptions, _: Encoding
) -> WeightEncoding:
    """Store float16 scales. Symmetric weights use version 1, others version 2."""
    from weightctl.schemes.arrays.rounding import Affine, Symmetric

    of_values, of_zeros = _packings(bits)
    groups = (place // options.group for place in range(shape[1]))
    order = b"".join(group.to_bytes(4, "little") for group in groups)
    parts = (
        StoredPart(".qweight", PartContent.CODES, "I32", of_values),
        StoredPart(".scales", PartContent.SCALES, "F16"),
        StoredPart(".qzeros", PartContent.OFFSETS, "I32", of_zeros, zero=(1 << (bits - 1)) - 1),
        ConstantPart(".g_idx", "I32", shape[1:], order),
    )
    rounding = Symmetric if options.symmetric else Affine
    return WeightEncoding(parts, shape, rounding(bits, options.group, "F16"), by_columns=True)


def _describe(bits: int, options: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    layers = [name for name in ignored if name != "lm_head"]
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": options.group,
        "desc_act": False,
        "sym": options.symmetric,
        "lm_head": "lm_head" not in ignored,
        "checkpoint_format": "gptq" if options.symmetric else "gptq_v2",
        "pack_dtype": "int32",
        # GPTQModel and vLLM leave out the modules that these patterns match.
        "dynamic": {f"-:^{name.replace('.', '[.]')}$": {} for name in layers},
    }


GPTQ, GPTQ_8BIT = (
    WrittenScheme(
        name=name,
        summary=f"{bits}-bit integers with a scale per group, in GPTQ's layout",
        encode=partial(_encode, bits),
        settings=partial(_describe, bits),
        refuse=partial(refuse_groups, rows=32 // bits),
        defaults=SchemeOptions(group=GROUPS[0]),
        groups=GROUPS,
        has_zeros=True,
    )
    for name, bits in (("GPTQ", 4), ("GPTQ-8bit", 8))
)
