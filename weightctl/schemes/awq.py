"""AWQ, as written by AutoAWQ: `[in, out]`, packed along the outputs; `[out, in]` for GEMV."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from weightctl.schemes.cutting import cut_groups, cut_transposed
from weightctl.schemes.gptq import QWEIGHT
from weightctl.schemes.layout import Packing, PartContent, StoredPart, WeightEncoding
from weightctl.schemes.naming import BITS, LogicalWeight, NameEndings, divide_exactly, tiles
from weightctl.schemes.scheme import GROUPS, Scheme, SchemeOptions, WrittenScheme, refuse_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.arrays.values import Decoding
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.naming import Candidate

_FAST = NameEndings(".scales", ".qweight", ".weight", ("I16",), (".scaled_zeros",))
# Along the outputs; the columns of the values in a word are in the order of AutoAWQ's kernels.
_PACKING = Packing(4, 32, order=(0, 2, 4, 6, 1, 3, 5, 7))


def _infer(candidate: Candidate) -> LogicalWeight | None:
    """Return a weight in one of AutoAWQ's three layouts: GEMM, GEMV, GEMV-fast."""
    if not len(candidate.numbers.shape) == len(candidate.scales.shape) == 2:
        return None
    if candidate.numbers.encoding.name == "I16":
        return _infer_fast(candidate)
    columns, outputs = candidate.numbers.shape[1], candidate.scales.shape[1]
    if columns == outputs:
        return None
    return _infer_matrix(candidate) if columns < outputs else _infer_vector(candidate)


def _infer_matrix(candidate: Candidate) -> LogicalWeight | None:
    inputs, columns = candidate.numbers.shape
    groups, outputs = candidate.scales.shape
    if candidate.shape(".qzeros") not in {None, (groups, columns)} or not tiles(groups, inputs):
        return None
    return _make_weight((outputs, inputs), divide_exactly(32 * columns, outputs))


def _infer_vector(candidate: Candidate) -> LogicalWeight | None:
    outputs, columns = candidate.numbers.shape
    rows, groups = candidate.scales.shape
    zeros = candidate.shape(".qzeros")
    if not zeros or len(zeros) != 2 or not zeros[0] == rows == outputs:
        return None
    bits = divide_exactly(32 * zeros[1], groups)
    return _make_weight((outputs, divide_exactly(32 * columns, bits)), bits)


def _infer_fast(candidate: Candidate) -> LogicalWeight | None:
    """Return a weight in which a row of I16 contains four interleaved rows of 4-bit values."""
    rows, columns = candidate.numbers.shape
    return LogicalWeight((4 * rows, columns), 4) if candidate.scales.shape[1] == 4 * rows else None


def _make_weight(shape: tuple[int, ...], bits: int) -> LogicalWeight | None:
    return LogicalWeight(shape, bits) if bits in BITS else None


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode a weight in the GEMM or the GEMV layout."""
    from weightctl.schemes.arrays.tables import PerBlock
    from weightctl.schemes.arrays.values import Decoding, Scaled

    stored.refuse_others(".qzeros")
    place = stored.find(".qzeros")
    if stored.bits != 4 or place is None:
        raise stored.cannot_dequantize("only AWQ with 4 bits and zero points is supported")
    (outputs, inputs), counts = stored.shape, stored.scales.shape
    if stored.numbers.shape[0] != inputs or stored.numbers.shape[1] >= counts[1]:
        return _decode_vector(stored, place)
    grid = stored.grid((inputs, outputs), counts, -2)
    values = Scaled(
        numbers=stored.pack_numbers(0, _PACKING, (inputs, outputs)),
        scales=stored.per_block(1, grid),
        zeros=PerBlock(stored.pack_numbers(place, _PACKING, grid.table), grid),
    )
    return Decoding(stored.shape, values, transposed=True, bits=4, middle=8)


def _decode_vector(stored: SchemeTensors, place: int) -> Decoding:
    from weightctl.schemes.arrays.tables import PerBlock
    from weightctl.schemes.arrays.values import Decoding, Scaled

    packing, inputs = Packing(4, 32), stored.shape[1]
    rows, columns = stored.scales.shape
    # The tables of scales and zero points are padded, so only the settings determine the groups.
    size = next((size for size in stored.settings.sizes(-1) if -(-inputs // size) <= columns), None)
    if size is None:
        raise stored.cannot_dequantize("the config does not state its group size")
    grid = stored.grid(stored.shape, (rows, -(-inputs // size)))
    values = Scaled(
        numbers=stored.pack_numbers(0, packing, (rows, inputs)),
        scales=PerBlock(stored.plain(1), grid),
        zeros=PerBlock(stored.pack_numbers(place, packing, (rows, columns)), grid),
    )
    return Decoding(stored.shape, values, bits=4, middle=8)


def _cut(stored: SchemeTensors) -> list[Axes]:
    """Cut a weight in the GEMM layout: outputs are packed, and each group of inputs is a row."""
    rows, columns = stored.numbers.shape
    # Otherwise, the layout is GEMV, whose scales are padded.
    is_for_matrices = rows == stored.shape[1] and columns < stored.scales.shape[1]
    if stored.numbers.encoding.name != "I32" or not is_for_matrices:
        raise stored.cannot_dequantize("this variant of AWQ is not supported")
    packing = _PACKING._replace(bits=stored.bits)
    return cut_transposed(stored, packing, packing, cut_groups(stored))


SCHEME = Scheme(
    label="AWQ {bits}-bit",
    summary="AWQ, as written by AutoAWQ: `[in, out]`, packed along the outputs; "
    "`[out, in]` for GEMV",
    names=(QWEIGHT, _FAST),
    infer=_infer,
    decode=_decode,
    cut=_cut,
)


def _encode(shape: tuple[int, ...], options: SchemeOptions, _: Encoding) -> WeightEncoding:
    """Store a weight in the GEMM layout, with float16 scales."""
    from weightctl.schemes.arrays.rounding import Affine

    parts = (
        StoredPart(".qweight", PartContent.CODES, "I32", _PACKING),
        StoredPart(".scales", PartContent.SCALES, "F16"),
        StoredPart(".qzeros", PartContent.OFFSETS, "I32", _PACKING),
    )
    return WeightEncoding(parts, shape, Affine(4, options.group, "F16"), by_columns=True)


def _describe(options: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": options.group,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": [*ignored],
    }


AWQ = WrittenScheme(
    name="AWQ",
    summary="4-bit integers with a scale and a zero point per group, in AutoAWQ's GEMM layout",
    encode=_encode,
    settings=_describe,
    refuse=partial(refuse_groups, rows=_PACKING.numbers),
    defaults=SchemeOptions(group=GROUPS[0], symmetric=False, scaled=True),
    groups=GROUPS,
    can_scale=True,
)
