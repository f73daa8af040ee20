"""compressed-tensors' `pack-quantized`: rows packed into I32; a second tensor states the shape."""

from __future__ import annotations

from functools import partial
from math import prod
from struct import pack as pack_bytes
from typing import TYPE_CHECKING, Any

from weightctl.schemes.cutting import (
    Along,
    cut_beside,
    cut_blockwise,
    cut_words,
    is_ordered,
    refuse_other_axes,
    spans_blocks,
)
from weightctl.schemes.layout import ConstantPart, Packing, PartContent, StoredPart, WeightEncoding
from weightctl.schemes.naming import (
    BITS,
    LogicalWeight,
    NameEndings,
    align_counts,
    covers,
)
from weightctl.schemes.scheme import (
    COMPRESSED_TENSORS,
    GROUPS,
    Scheme,
    SchemeChoice,
    SchemeOptions,
    WrittenScheme,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.arrays.values import Decoding
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.naming import Candidate
    from weightctl.weights.info import TensorInfo

# Integers are stored in words of I32, floats in bytes.
COMPRESSED = NameEndings(
    ".weight_scale", ".weight_packed", ".weight", ("I32", "U8"),
    (
        ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight_global_scale",
        ".input_scale", ".input_zero_point", ".input_global_scale",
    ),
)  # fmt: skip
# The word of packed integers, and of packed zero points.
_WORD = "I32"


def _find_packing(bits: int, count: int, words: int) -> Packing | None:
    """Return how values are packed along rows, if so many words hold them.

    Early versions do not split values between two words. Zero points are packed along columns.
    """
    ways = Packing(bits, 32), Packing(bits, 32, whole=True)
    return next((way for way in ways if way.words_of(count) == words), None)


def _infer(candidate: Candidate) -> LogicalWeight | None:
    """Return a weight with the shape that a tensor states; words of U8 contain floats instead."""
    if candidate.numbers.encoding.name != _WORD:
        return None
    numbers, shape = candidate.numbers.shape, candidate.integers(".weight_shape")
    if not shape or not numbers or shape[:-1] != numbers[:-1]:
        return None
    for bits in BITS:
        if _find_packing(bits, shape[-1], numbers[-1]):
            return LogicalWeight(shape, bits) if covers(candidate.scales.shape, shape) else None
    return None


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode packed rows; zero points are packed along the other axis."""
    from weightctl.schemes.arrays.tables import PerBlock
    from weightctl.schemes.arrays.values import Decoding, Scaled

    stored.refuse_others(".weight_shape", ".weight_zero_point", ".weight_g_idx")
    shape, bits = stored.shape, stored.bits
    _check_shape(stored)
    packing = _find_packing(bits, shape[-1], stored.numbers.shape[-1]) or Packing(bits, 32)
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
            packed = stored.pack_numbers(place, packing._replace(axis=0), grid.table)
            zero, zeros = 0, PerBlock(packed, grid)
    values = Scaled(
        numbers=stored.pack_numbers(0, packing, (prod(shape[:-1]), shape[-1])),
        scales=stored.per_block(1, grid),
        zero=zero,
        zeros=zeros,
    )
    return Decoding(shape, values, bits=bits, middle=middle)


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
    length, words = stored.shape[axis], info.shape[axis] if info.shape else 0
    packing = _find_packing(stored.bits, length, words)
    if packing is None:
        raise stored.cannot_dequantize(
            f"`{info.name}` has shape {list(info.shape)}, which does not hold {length} "
            f"{stored.bits}-bit numbers along axis {axis}"
        )
    # The layout of early versions could not be determined from a shard.
    return Along(axis, length, words) if packing.whole else cut_words(packing, axis)


SCHEME = Scheme(
    label="INT{bits} scaled",
    summary="compressed-tensors' `pack-quantized`: rows packed into I32; a second "
    "tensor states the shape",
    names=(COMPRESSED,),
    infer=_infer,
    decode=_decode,
    cut=_cut,
)


def _encode(
    bits: int, shape: tuple[int, ...], options: SchemeOptions, scales: Encoding
) -> WeightEncoding:
    from weightctl.schemes.arrays.rounding import Affine, Symmetric

    packing = Packing(bits, 32)
    parts: list[StoredPart | ConstantPart] = [
        StoredPart(".weight_packed", PartContent.CODES, _WORD, packing),
        StoredPart(".weight_scale", PartContent.SCALES, scales.name),
        ConstantPart(".weight_shape", "I64", (2,), pack_bytes("<2q", *shape)),
    ]
    if not options.symmetric:
        of_zeros = packing._replace(axis=0)
        parts.append(StoredPart(".weight_zero_point", PartContent.OFFSETS, _WORD, of_zeros))
    rounding = Symmetric if options.symmetric else Affine
    return WeightEncoding(tuple(parts), shape, rounding(bits, options.group, scales.name))


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
        defaults=SchemeOptions(group=GROUPS[0]),
        groups=GROUPS,
        has_zeros=True,
        can_scale=True,
    )
    for bits in (4, 8)
)


def describe_compressed(
    form: str,
    weights: dict[str, Any],
    activations: dict[str, Any] | None,
    ignored: Sequence[str],
) -> dict[str, Any]:
    """Return compressed-tensors' settings of a config, for a format such as `pack-quantized`."""
    always = {"dynamic": False, "observer": "minmax"}
    group: dict[str, Any] = {"targets": ["Linear"], "weights": {**weights, **always}}
    group["input_activations"] = activations
    group["output_activations"] = None
    return {
        "quant_method": COMPRESSED_TENSORS,
        "format": form,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
        "ignore": [*ignored],
    }


def describe_mixture(
    modules: Mapping[SchemeChoice, Sequence[str]], ignored: Sequence[str]
) -> dict[str, Any]:
    """Return the settings of a config for weights in schemes that can be mixed.

    `modules` are the names of the modules of each scheme, which become a group of their own.
    """
    groups: dict[str, Any] = {}
    stated: dict[str, Any] = {}
    for number, ((scheme, options), names) in enumerate(modules.items()):
        stated = scheme.settings(options, ignored)
        (group,) = stated["config_groups"].values()
        groups[f"group_{number}"] = {**group, "targets": [*names], "format": stated["format"]}
    return {**stated, "format": "mixed-precision", "config_groups": groups}
