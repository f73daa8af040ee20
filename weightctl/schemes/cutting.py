"""The axes of a stored tensor that go with axes of its weight, and their blocks."""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weightctl.schemes.scheme import ACTIVATIONS, align_counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.schemes.decoding.tensors import SchemeTensors
    from weightctl.weights.info import TensorInfo

__all__ = [
    "Along",
    "Axes",
    "cut_beside",
    "cut_blockwise",
    "cut_companion",
    "cut_groups",
    "cut_in_ratio",
    "cut_packed",
    "cut_transposed",
    "cut_upright",
    "is_ordered",
    "refuse_other_axes",
    "spans_blocks",
]

# Of scales, or beside them, one for the same numbers; or one for all of a tensor or an expert.
_LIKE_SCALES = (
    "weight_zero_point", ".zero_points", ".qzeros", "_zero_point", ".biases", ".qbiases",
    "weight_scale_2", ".weight_global_scale",
)  # fmt: skip
_OF_INPUTS = (".pre_quant_scale", ".g_idx", ".weight_g_idx")
# They say something of the whole weight, or are for activations.
_WHOLE = (".weight_shape", ".comfy_quant", ".weight_format", *ACTIVATIONS)


class Along(NamedTuple):
    """The axis of a stored tensor along which there are `elements` for each `block` of a weight's.

    It is cut where the weight is cut at a multiple of `block`.
    """

    axis: int
    block: int = 1
    elements: int = 1


# What of a stored tensor belongs to each axis of its weight: None where all of it.
Axes: TypeAlias = "Sequence[Along | None]"


def cut_in_ratio(axis: int, length: int, count: int) -> Along:
    """Return what an axis of `count` elements has of one that is of `length`, packed in order."""
    divisor = gcd(length, count)
    return Along(axis, length // divisor, count // divisor)


def cut_packed(info: TensorInfo, shape: Sequence[int]) -> Axes:
    """Return what numbers of a tensor, packed in order along its axes, have of a weight's axes."""
    made: list[Along | None] = []
    for axis, (length, count) in enumerate(zip(shape, info.shape, strict=True)):
        own = cut_in_ratio(axis, length, count)
        if axis == len(shape) - 1 and info.encoding.block > 1:
            # Several of them are one element of the file.
            block = lcm(own.elements, info.encoding.block)
            own = Along(axis, own.block * block // own.elements, block)
        made.append(own)
    return tuple(made)


def cut_upright(stored: SchemeTensors) -> list[Axes]:
    """Cut numbers whose axes are those of the weight, and scales of blocks of them."""
    refuse_other_axes(stored)
    numbers = cut_packed(stored.numbers, stored.shape)
    return [numbers, *(cut_companion(stored, place) for place in range(1, len(stored.tensors)))]


def refuse_other_axes(stored: SchemeTensors) -> None:
    """Raise `ConversionError` if the axes of numbers are not those of the weight."""
    if len(stored.numbers.shape) != len(stored.shape):
        raise stored.cannot_dequantize("the stored tensor has other axes than the weight")


def cut_companion(stored: SchemeTensors, place: int) -> Axes:
    """Cut scales, or what is beside them: like them, or as what it is."""
    if spans_blocks(stored, place):
        return cut_blockwise(stored, place)
    return cut_beside(stored, stored.tensors[place].info)


def spans_blocks(stored: SchemeTensors, place: int) -> bool:
    """Whether a tensor has an element for each block of numbers, or for larger ones."""
    return place == 1 or stored.tensors[place].info.name.endswith(_LIKE_SCALES)


def cut_blockwise(stored: SchemeTensors, place: int) -> Axes:
    """Return what a tensor with an element for each block of a weight has of its axes."""
    info, shape = stored.tensors[place].info, stored.shape
    if place > 1 and info.encoding.name == "I32":
        raise stored.cannot_dequantize(
            f"splitting the packed tensor `{info.name}` is not supported"
        )
    counts = align_counts(info.shape, shape)
    # Where it has axes of a single element besides, it is one of the others that each stands on.
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
    """Yield how many elements of each axis are for a scale, all where a shard would not tell."""
    found = stored.grid(shape, counts, axis).blocks
    for place, (length, block) in enumerate(zip(shape, found, strict=True), start=-len(shape)):
        is_power = block.bit_count() == 1
        is_named = block in stored.settings.sizes(-1 if place == axis else -2)
        yield block if is_power or is_named else length


def cut_beside(stored: SchemeTensors, info: TensorInfo) -> Axes:
    """Cut what is beside numbers and scales: it is for all of the weight, or for its inputs."""
    whole: list[Along | None] = [None] * len(stored.shape)
    if info.name.endswith(_WHOLE) or info.size in {0, 1}:
        return whole
    if info.name.endswith(_OF_INPUTS) and info.shape == stored.shape[-1:]:
        return [*whole[:-1], Along(0)]
    raise stored.cannot_dequantize(f"splitting `{info.name}` is not supported")


def is_ordered(stored: SchemeTensors, ending: str) -> bool:
    """Whether a tensor says of each input in which group it is: of all groups, wherever it is."""
    place = stored.find(ending)
    if place is None:
        return False
    tensor = stored.tensors[place]
    first = bytearray(tensor.info.encoding.size)
    if not tensor.info.size:
        return False
    tensor.read_into(0, memoryview(first))
    # One that was never set has -1 alone.
    return not all(byte == 0xFF for byte in first)


def cut_groups(stored: SchemeTensors) -> Along | None:
    """Return what rows of scales have of the inputs, where these are the rows of the numbers."""
    outputs, inputs = stored.shape
    groups = stored.scales.shape[0]
    if groups == 1:
        return None
    return Along(0, next(_list_blocks(stored, (inputs, outputs), (groups, outputs), -2)))


def cut_transposed(
    stored: SchemeTensors, numbers: Sequence[Along], by_group: Along | None
) -> list[Axes]:
    """Cut numbers whose rows are inputs; a group of these has a row of scales, and one of zeros.

    Zeros are packed along the outputs.
    """
    outputs = stored.shape[0]
    made: list[Axes] = [numbers, (Along(1), by_group)]
    for tensor in stored.tensors[2:]:
        info = tensor.info
        if info.name.endswith(".qzeros"):
            made.append((cut_in_ratio(1, outputs, info.shape[1]), by_group))
        else:
            made.append(cut_beside(stored, info))
    return made
