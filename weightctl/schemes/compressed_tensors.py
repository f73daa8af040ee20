"""compressed-tensors' `pack-quantized`: rows packed into I32; a second tensor states the shape."""

from __future__ import annotations

from functools import partial
from math import prod
from struct import pack as pack_bytes
from typing import TYPE_CHECKING, Any

from weightctl.schemes import decoding, encoding
from weightctl.schemes.cutting import (
    Along,
    cut_beside,
    cut_blockwise,
    cut_in_ratio,
    is_ordered,
    refuse_other_axes,
    spans_blocks,
)
from weightctl.schemes.naming import (
    BITS,
    COMPRESSED,
    LogicalWeight,
    align_counts,
    covers,
    divide_up,
)
from weightctl.schemes.scheme import Scheme
from weightctl.schemes.written import (
    GROUPS,
    SchemeOptions,
    WrittenScheme,
    describe_compressed,
    refuse_groups,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.encoding import Codes, WeightEncoding
    from weightctl.schemes.naming import Candidate
    from weightctl.weights.info import TensorInfo

# The word of packed integers, and of packed zero points.
_WORD, _WORD_BITS = "I32", 32


def _infer(candidate: Candidate) -> LogicalWeight | None:
    """Return a weight with the shape that a tensor states; words of U8 contain floats instead."""
    if candidate.numbers.encoding.name != _WORD:
        return None
    numbers, shape = candidate.numbers.shape, candidate.integers(".weight_shape")
    if not shape or not numbers or shape[:-1] != numbers[:-1]:
        return None
    for bits in BITS:
        # Earlier versions do not split values between two words.
        fitting = {
            divide_up(shape[-1] * bits, _WORD_BITS),
            divide_up(shape[-1], _WORD_BITS // bits),
        }
        if numbers[-1] in fitting:
            return LogicalWeight(shape, bits) if covers(candidate.scales.shape, shape) else None
    return None


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode packed rows; zero points are packed along the other axis."""
    stored.refuse_others(".weight_shape", ".weight_zero_point", ".weight_g_idx")
    shape, bits = stored.shape, stored.bits
    _check_shape(stored)
    words = stored.numbers.shape[-1]
    # Early versions do not split values between two words.
    layout = decoding.PackingLayout(bits, _WORD_BITS)
    if layout.words_of(shape[-1]) != words:
        layout = decoding.PackingLayout(bits, _WORD_BITS, whole=True)
    counts = align_counts(stored.scales.shape, shape)
    grid = stored.ordered_grid(stored.find(".weight_g_idx"), shape, counts, -1)
    middle = 1 << (bits - 1)
    zero, zeros = middle, None
    if (place := stored.find(".weight_zero_point")) is not None:
        info = stored.tensors[place].info
        if info.encoding.name == "I8":
            zeros = stored.per_block(place, grid)
        else:
            if len(counts) != 2:
                raise stored.cannot_dequantize(
                    f"packed zero points (`{info.name}`) are supported only for matrices"
                )
            packed = stored.pack_numbers(place, layout, 0, grid.table)
            zero, zeros = 0, decoding.PerBlock(packed, grid)
    values = decoding.Scaled(
        numbers=stored.pack_numbers(0, layout, 1, (prod(shape[:-1]), shape[-1])),
        scales=stored.per_block(1, grid),
        zero=zero,
        zeros=zeros,
    )
    return decoding.Decoding(shape, values, bits=bits, middle=middle)


def _check_shape(stored: SchemeTensors) -> None:
    """Raise `ConversionError` if the stated shape differs from that of the other tensors."""
    place = stored.find(".weight_shape")
    if place is None:
        return
    size = stored.tensors[place].info.encoding.size
    raw = stored.raw(place)
    shape = [
        int.from_bytes(raw[at : at + size], "little", signed=True)
        for at in range(0, len(raw), size)
    ]
    if shape != list(stored.shape):
        raise stored.cannot_dequantize(
            f"`{stored.tensors[place].info.name}` states the shape {shape}, but the other tensors "
            f"have the shape {list(stored.shape)}"
        )


def _cut(stored: SchemeTensors) -> list[Axes]:
    """Cut rows of words; if inputs are in groups in any order, each shard has all groups."""
    refuse_other_axes(stored)
    is_whole = is_ordered(stored, ".weight_g_idx")
    made: list[Axes] = [_cut_numbers(stored)]
    for place, tensor in enumerate(stored.tensors[1:], start=1):
        if not spans_blocks(stored, place):
            made.append(cut_beside(stored, tensor.info))
            continue
        is_packed = place > 1 and tensor.info.encoding.name == _WORD
        axes = [*cut_blockwise(stored, 1 if is_packed else place)]
        if is_packed:
            # Zero points are packed along the other axis.
            axes[0] = _cut_words(stored, tensor.info, 0)
        if is_whole:
            axes[-1] = None
        made.append(axes)
    return made


def _cut_numbers(stored: SchemeTensors) -> Axes:
    info, axis, length = stored.numbers, len(stored.shape) - 1, stored.shape[-1]
    along = _cut_words(stored, info, axis)
    # Otherwise, the bit width could not be determined from the shape of a shard, so the axis stays
    # whole.
    if length % along.block:
        along = Along(axis, length, info.shape[axis])
    return [*(Along(other) for other in range(axis)), along]


def _cut_words(stored: SchemeTensors, info: TensorInfo, axis: int) -> Along:
    """Return how an axis maps to words; the last word can be partly unused."""
    bits = stored.bits
    length, words = stored.shape[axis], info.shape[axis] if info.shape else 0
    if words == divide_up(length * bits, _WORD_BITS):
        return cut_in_ratio(axis, _WORD_BITS, bits)
    # Early versions do not split values between words, which could not be determined from a shard.
    if words == divide_up(length, _WORD_BITS // bits):
        return Along(axis, length, words)
    raise stored.cannot_dequantize(
        f"`{info.name}` has shape {list(info.shape)}, which does not hold {length} {bits}-bit "
        f"numbers along axis {axis}"
    )


SCHEME = Scheme(
    label="INT{bits} scaled", names=(COMPRESSED,), infer=_infer, decode=_decode, cut=_cut
)


def _encode(
    bits: int, shape: tuple[int, ...], options: SchemeOptions, scales: Encoding
) -> WeightEncoding:
    """Store packed rows; zero points are packed along the other axis, several rows to a word."""
    rows, columns = shape
    words, groups = divide_up(columns * bits, _WORD_BITS), columns // options.group
    unit = 1 if options.symmetric else _WORD_BITS // bits
    parts = [
        encoding.StoredPart(".weight_packed", (rows, words), _WORD, unit=4 * words * unit),
        encoding.StoredPart(
            ".weight_scale", (rows, groups), scales.name, unit=scales.size * groups * unit
        ),
        encoding.StoredPart(".weight_shape", (2,), "I64", content=pack_bytes("<2q", rows, columns)),
    ]
    rounding: encoding.Symmetric | encoding.Affine
    if options.symmetric:
        rounding = encoding.Symmetric(bits, options.group, scales.name)
    else:
        packed = divide_up(rows * bits, _WORD_BITS), groups
        parts.append(encoding.StoredPart(".weight_zero_point", packed, _WORD, unit=4 * groups))
        rounding = encoding.Affine(bits, options.group, scales.name)
    return encoding.WeightEncoding(
        tuple(parts), rows, columns, rounding, partial(_pack, bits), unit=unit
    )


def _pack(bits: int, made: Codes, _peak: np.float32) -> list[U8]:
    parts = [encoding.pack_rows(made.codes, bits, word=_WORD_BITS), made.scales]
    if made.offsets is not None:
        parts.append(encoding.pack_columns(made.offsets, bits))
    return parts


def _describe(bits: int, options: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": options.symmetric,
        "strategy": "group",
        "group_size": options.group,
    }
    return describe_compressed("pack-quantized", weights, None, ignored)


W4A16, W8A16 = (
    WrittenScheme(
        name=f"W{bits}A16",
        summary=f"{bits}-bit integers with a scale per group, as compressed-tensors packs them",
        encode=partial(_encode, bits),
        settings=partial(_describe, bits),
        refuse=refuse_groups,
        defaults=SchemeOptions(group=GROUPS[0]),
        groups=GROUPS,
        has_zeros=True,
        can_scale=True,
    )
    for bits in (4, 8)
)
