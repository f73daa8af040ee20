"""Cutting of weights: how the axes of their stored tensors map to their own axes."""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weightctl.schemes.naming import ACTIVATIONS, align_counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.layout import Packing
    from weightctl.weights.info import TensorInfo

# Tensors that have an element for each scale, or one for the whole tensor or each expert.
_LIKE_SCALES = (
    "weight_zero_point", ".zero_points", ".qzeros", "_zero_point", ".biases", ".qbiases",
    "weight_scale_2", ".weight_global_scale",
)  # fmt: skip
_OF_INPUTS = (".pre_quant_scale", ".g_idx", ".weight_g_idx")
# Tensors that describe the whole weight, or are for activations.
_WHOLE = (".weight_shape", ".comfy_quant", ".weight_format", *ACTIVATIONS)


class Along(NamedTuple):
    """An axis of a stored tensor, with `elements` elements for each `block` of the weight's.

    The weight can be cut at multiples of `block`.
    """

    axis: int
    block: int = 1
    elements: int = 1


# For each axis of a weight, the axis of a stored tensor that is cut with it; None if none is cut.
Axes: TypeAlias = "Sequence[Along | None]"


def cut_in_ratio(axis: int, length: int, count: int) -> Along:
    """Return how an axis of `length` elements maps to one of `count`, which packs them in order."""
    divisor = gcd(length, count)
    return Along(axis, length // divisor, count // divisor)


def cut_words(packing: Packing, axis: int) -> Along:
    """Return how an axis of values maps to one of words."""
    return Along(axis, packing.numbers, packing.words)


def cut_packed(info: TensorInfo, shape: Sequence[int]) -> Axes:
    """Return how the axes of a weight map to those of a tensor that packs its values in order."""
    made: list[Along | None] = []
    for axis, (length, count) in enumerate(zip(shape, info.shape, strict=True)):
        own = cut_in_ratio(axis, length, count)
        if axis == len(shape) - 1 and info.encoding.block > 1:
            # An element of the file packs several of these values.
            block = lcm(own.elements, info.encoding.block)
            own = Along(axis, own.block * block // own.elements, block)
        made.append(own)
    return tuple(made)


def cut_upright(stored: SchemeTensors) -> list[Axes]:
    """Cut a weight whose stored values have the same axes, with scales of blocks."""
    refuse_other_axes(stored)
    numbers = cut_packed(stored.numbers, stored.shape)
    return [numbers, *(cut_companion(stored, place) for place in range(1, len(stored.tensors)))]


def refuse_other_axes(stored: SchemeTensors) -> None:
    """Raise `ConversionError` if the stored values have another number of axes than the weight."""
    if len(stored.numbers.shape) != len(stored.shape):
        raise stored.cannot_dequantize("the stored tensor has other axes than the weight")


def cut_companion(stored: SchemeTensors, place: int) -> Axes:
    """Cut a tensor beside the stored values: like the scales, or by its purpose."""
    if spans_blocks(stored, place):
        return cut_blockwise(stored, place)
    return cut_beside(stored, stored.tensors[place].info)


def spans_blocks(stored: SchemeTensors, place: int) -> bool:
    """Whether a tensor has an element for each block of values, or for larger blocks."""
    return place == 1 or stored.tensors[place].info.name.endswith(_LIKE_SCALES)


def cut_blockwise(stored: SchemeTensors, place: int) -> Axes:
    """Return how the axes of a weight map to those of a tensor with an element for each block."""
    info, shape = stored.tensors[place].info, stored.shape
    if place > 1 and info.encoding.name == "I32":
        raise stored.cannot_dequantize(
            f"splitting the packed tensor `{info.name}` is not supported"
        )
    counts = align_counts(info.shape, shape)
    # If the tensor has additional axes of size 1, the others correspond to the axes of the weight.
    own = [axis for axis, count in enumerate(info.shape) if count != 1]
    if len(info.shape) <= len(shape):
        own = list(range(len(info.shape)))
    own += [0] * (len(shape) - len(own))
    blocks = _list_blocks(stored, shape, counts)
    return [
        None if count == 1 < length else Along(axis, block)
        for axis, block, count, length in zip(own, blocks, counts, shape, strict=True)
    ]


def _list_blocks(
    stored: SchemeTensors, shape: tuple[int, ...], counts: tuple[int, ...], axis: int = -1
) -> Iterator[int]:
    """Yield the block size along each axis; the whole length if a shard would not determine it."""
    found = stored.grid(shape, counts, axis).blocks
    for place, (length, block) in enumerate(zip(shape, found, strict=True), start=-len(shape)):
        is_power = block.bit_count() == 1
        is_named = block in stored.settings.sizes(-1 if place == axis else -2)
        yield block if is_power or is_named else length


def cut_beside(stored: SchemeTensors, info: TensorInfo) -> Axes:
    """Cut a tensor that is neither values nor scales: for the whole weight, or for its inputs."""
    whole: list[Along | None] = [None] * len(stored.shape)
    if info.name.endswith(_WHOLE) or info.size in {0, 1}:
        return whole
    if info.name.endswith(_OF_INPUTS) and info.shape == stored.shape[-1:]:
        return [*whole[:-1], Along(0)]
    raise stored.cannot_dequantize(f"splitting `{info.name}` is not supported")


def is_ordered(stored: SchemeTensors, ending: str) -> bool:
    """Whether a tensor assigns inputs to groups in any order; each shard then needs all groups."""
    place = stored.find(ending)
    if place is None:
        return False
    tensor = stored.tensors[place]
    first = bytearray(tensor.info.encoding.size)
    if not tensor.info.size:
        return False
    tensor.read_into(0, memoryview(first))
    # A tensor that was never set contains only -1.
    return not all(byte == 0xFF for byte in first)


def cut_groups(stored: SchemeTensors) -> Along | None:
    """Return how the inputs map to rows of scales, if inputs are rows; None for a single group."""
    outputs, inputs = stored.shape
    groups = stored.scales.shape[0]
    if groups == 1:
        return None
    return Along(0, next(_list_blocks(stored, (inputs, outputs), (groups, outputs), -2)))


def cut_transposed(
    stored: SchemeTensors, of_values: Packing, of_zeros: Packing, by_group: Along | None
) -> list[Axes]:
    """Cut a weight whose rows are inputs; a group of inputs has a row of scales and zero points."""
    numbers = [Along(1), Along(0)]
    numbers[1 - of_values.axis] = cut_words(of_values, of_values.axis)
    made: list[Axes] = [numbers, (Along(1), by_group)]
    for tensor in stored.tensors[2:]:
        info = tensor.info
        if info.name.endswith(".qzeros"):
            made.append((cut_words(of_zeros, 1), by_group))
        else:
            made.append(cut_beside(stored, info))
    return made
