"""GPTQ: `[in, out]`, packed along the input dimension, as written by AutoGPTQ and GPTQModel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes import decoding
from weightctl.schemes.cutting import Along, cut_groups, cut_in_ratio, cut_transposed, is_ordered
from weightctl.schemes.scheme import BITS, QWEIGHT, LogicalWeight, Scheme, divide_exactly, tiles

if TYPE_CHECKING:
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.scheme import Candidate

__all__ = ["SCHEME"]

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
        bits = candidate.number("bits")
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
    bits, version = stored.bits, stored.settings.text("checkpoint_format") or "gptq"
    if bits not in {2, 3, 4, 8} or version not in {"gptq", "gptq_v2"}:
        raise stored.cannot_dequantize(
            f"GPTQ `checkpoint_format` `{version}` with {bits} bits is not supported; formats are "
            "gptq and gptq_v2, with 2, 3, 4 or 8 bits"
        )
    layout, (outputs, inputs) = decoding.PackingLayout(bits, 32), stored.shape
    groups = stored.scales.shape[0]
    grid = stored.ordered_grid(stored.find(".g_idx"), (inputs, outputs), (groups, outputs), -2)
    place, middle = stored.find(".qzeros"), 1 << (bits - 1)
    is_auto_round = "auto-round" in stored.settings.text("quant_method")
    packing = stored.settings.text("packing_format")
    is_plain = version == "gptq_v2" or (is_auto_round and packing in _AUTO_ROUND)
    zeros = None
    if place is not None:
        plus = 0 if is_plain else 1
        zeros = decoding.PerBlock(
            stored.pack_numbers(place, layout, 1, grid.table, plus=plus), grid
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
