"""GPTQ, as written by AutoGPTQ and GPTQModel: `[in, out]`, packed along the input dimension."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from weightctl.schemes import decoding, encoding
from weightctl.schemes.cutting import Along, cut_groups, cut_in_ratio, cut_transposed, is_ordered
from weightctl.schemes.naming import BITS, QWEIGHT, LogicalWeight, divide_exactly, tiles
from weightctl.schemes.scheme import Scheme
from weightctl.schemes.written import GROUPS, SchemeOptions, WrittenScheme, refuse_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.encoding import Codes, WeightEncoding
    from weightctl.schemes.naming import Candidate

# Packing formats in which AutoRound stores zero points unchanged, unlike AutoGPTQ.
_AUTO_ROUND = ("auto_round", "auto_round:gptqmodel")


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
    """Decode a weight whose zero points are packed along the outputs.

    Version 1 of the format stores zero points minus one (GPTQModel's `_shift_gptq_qzeros`).
    """
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
    layout, (outputs, inputs) = decoding.PackingLayout(bits, 32), stored.shape
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
        packed = stored.pack_numbers(place, layout, 1, grid.table, plus=plus)
        zeros = decoding.PerBlock(
            decoding.SymmetricZeros(packed, middle) if is_symmetric else packed, grid
        )
    values = decoding.Scaled(
        numbers=stored.pack_numbers(0, layout, 0, (inputs, outputs)),
        scales=stored.per_block(1, grid),
        zeros=zeros,
        zero=0 if zeros else middle,
    )
    return decoding.Decoding(stored.shape, values, transposed=True, bits=bits, middle=middle)


def _cut(stored: SchemeTensors) -> list[Axes]:
    """Cut packed rows of inputs; each group of inputs has a row of scales and of zero points."""
    inputs, rows = stored.shape[1], stored.numbers.shape[0]
    by_group = None if is_ordered(stored, ".g_idx") else cut_groups(stored)
    return cut_transposed(stored, [Along(1), cut_in_ratio(0, inputs, rows)], by_group)


SCHEME = Scheme(label="GPTQ {bits}-bit", names=(QWEIGHT,), infer=_infer, decode=_decode, cut=_cut)


def _encode(
    bits: int, shape: tuple[int, ...], options: SchemeOptions, _: Encoding
) -> WeightEncoding:
    """Store groups of inputs as rows, with float16 scales; only symmetric ones use version 1."""
    outputs, inputs = shape
    group, groups, count = options.group, inputs // options.group, 32 // bits
    order = b"".join((place // group).to_bytes(4, "little") for place in range(inputs))
    words = outputs // count
    rounding = encoding.Symmetric if options.symmetric else encoding.Affine
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(
                ".qweight", (inputs // count, outputs), "I32", unit=4 * group // count * outputs
            ),
            encoding.StoredPart(".scales", (groups, outputs), "F16", unit=2 * outputs),
            encoding.StoredPart(".qzeros", (groups, words), "I32", unit=4 * words),
            encoding.StoredPart(".g_idx", (inputs,), "I32", content=order),
        ),
        rows=outputs, columns=inputs, rounding=rounding(bits, group, "F16"),
        pack=partial(_pack, bits), unit=group, by_columns=True,
    )  # fmt: skip


def _pack(bits: int, made: Codes, _peak: np.float32) -> tuple[U8, U8, U8]:
    """Pack along inputs; version 1 of the format stores zero points minus one."""
    packed = encoding.pack_transposed(made.codes, bits)
    zeros = encoding.zeros_of(made, (1 << (bits - 1)) - 1)
    scales = encoding.transpose_words(made.scales, 2)
    return packed, scales, encoding.pack_rows(zeros.T, bits, word=32)


def _refuse(bits: int, shape: tuple[int, ...], options: SchemeOptions) -> str:
    count = 32 // bits
    if shape[0] % count:
        return f"its {shape[0]} rows are not a multiple of {count}"
    return refuse_groups(shape, options)


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
        refuse=partial(_refuse, bits),
        defaults=SchemeOptions(group=GROUPS[0]),
        groups=GROUPS,
        has_zeros=True,
    )
    for name, bits in (("GPTQ", 4), ("GPTQ-8bit", 8))
)
