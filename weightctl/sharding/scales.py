"""How cuts of quantized weights cut their tensors: a line for each way to pack that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.schemes.dequantize.parts import SchemeTensors, align_counts
from weightctl.sharding.footprints import Along, Footprint, WeightFootprint, find_packed_axes, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightctl.weights.info import TensorInfo

__all__ = ["make_footprint"]

# Of scales, or beside them, one for the same numbers; or one for all of a tensor or an expert.
_LIKE_SCALES = (
    "weight_zero_point", ".zero_points", ".qzeros", "_zero_point", ".biases", ".qbiases",
    "weight_scale_2", ".weight_global_scale",
)  # fmt: skip
_OF_INPUTS = (".pre_quant_scale", ".g_idx", ".weight_g_idx")
# They say something of the whole weight, or are for activations.
_WHOLE = (
    ".weight_shape", ".comfy_quant", ".weight_format", "input_scale", "input_zero_point",
    "input_global_scale", "activation_scale", ".scale_input", ".input_scale_ub", ".output_scale",
)  # fmt: skip
_SHAPE = ".weight_shape"
# That of the last versions of compressed-tensors: the bits of numbers in words of 32.
_WORD, _BITS = "I32", 32


def make_footprint(parts: SchemeTensors) -> WeightFootprint:
    """Return a weight that is stored in parts; where they cannot be cut it says why."""
    scheme = parts.scheme
    kind = "scaled" if scheme.endswith(" scaled") else scheme.split()[0]
    make = _SCHEMES.get(kind)
    try:
        if make is None:
            raise parts.cannot_dequantize("its parts")
        along = make(parts)
    except ConversionError:
        whole = tuple(Footprint(each.info, (None,) * len(parts.shape)) for each in parts.tensors)
        refusal = f"it is stored as {scheme}, in tensors that cannot be cut alike"
        return WeightFootprint(parts.name, parts.shape, whole, refusal)
    footprints = (
        Footprint(tensor.info, tuple(axes))
        for tensor, axes in zip(parts.tensors, along, strict=True)
    )
    note = ""
    if parts.find(_SHAPE) is not None:
        note = f"`{_SHAPE}` beside packed numbers says the shape of the whole on every rank"
    return WeightFootprint(parts.name, parts.shape, tuple(footprints), note=note)


def _upright(parts: SchemeTensors) -> list[Sequence[Along | None]]:
    """Numbers whose axes are those of the weight, and scales of blocks of them."""
    if len(parts.numbers.shape) != len(parts.shape):
        raise parts.cannot_dequantize("its numbers have axes of their own")
    is_ordered = _is_ordered(parts, ".weight_g_idx")
    made: list[Sequence[Along | None]] = [_numbers(parts)]
    for place, tensor in enumerate(parts.tensors[1:], start=1):
        name = tensor.info.name
        if place == 1 or name.endswith(_LIKE_SCALES):
            axes = _blockwise(parts, place)
            made.append([*axes[:-1], None if is_ordered else axes[-1]])
        else:
            made.append(_beside(parts, tensor.info))
    return made


def _microscaled(parts: SchemeTensors) -> list[Sequence[Along | None]]:
    """Floats in blocks of a size that is always the same, with a scale for each."""
    shape, scales = parts.shape, parts.scales.shape
    blocks = [
        Along(axis, length // count)
        for axis, (length, count) in enumerate(zip(shape, scales, strict=True))
    ]
    numbers: Sequence[Along | None] = blocks  # gpt-oss has an axis more, that of a block
    if len(parts.numbers.shape) == len(shape):
        numbers = find_packed_axes(parts.numbers, shape)
    made: list[Sequence[Along | None]] = [numbers, blocks]
    for place, tensor in enumerate(parts.tensors[2:], start=2):
        is_above = tensor.info.name.endswith(_LIKE_SCALES)
        made.append(_blockwise(parts, place) if is_above else _beside(parts, tensor.info))
    return made


def _numbers(parts: SchemeTensors) -> Sequence[Along | None]:
    info, shape = parts.numbers, parts.shape
    if info.encoding.name != _WORD:
        return find_packed_axes(info, shape)
    last, length = len(shape) - 1, shape[-1]
    along = _in_words(parts, info, last)
    # Of the few numbers of a part nothing would tell how many bits each has.
    if length % along.block:
        along = Along(last, length, info.shape[last])
    return [*(Along(axis) for axis in range(last)), along]


def _in_words(parts: SchemeTensors, info: TensorInfo, axis: int) -> Along:
    """Return what compressed-tensors' words have of an axis; the last may be filled in part."""
    bits = int("".join(letter for letter in parts.scheme if letter.isdecimal()))
    length, words = parts.shape[axis], info.shape[axis]
    if words == -(-length * bits // _BITS):
        return ratio(axis, _BITS, bits)
    # Its first versions split no number between two words, which no part would tell either.
    if words == -(-length // (_BITS // bits)):
        return Along(axis, length, words)
    raise parts.cannot_dequantize(f"`{info.name}` is of shape {list(info.shape)}")


def _blockwise(parts: SchemeTensors, place: int) -> list[Along | None]:
    """Return what a tensor with an element for each block of a weight has of its axes."""
    info, shape = parts.tensors[place].info, parts.shape
    if info.encoding.name == _WORD and place > 1:
        # Zeros of compressed-tensors, which are packed along the other axis.
        return [_in_words(parts, info, 0), *_blockwise(parts, 1)[1:]]
    counts = align_counts(info.shape, shape)
    # Where it has axes of a single element besides, it is one of the others that each stands on.
    own = [axis for axis, count in enumerate(info.shape) if count != 1]
    if len(info.shape) <= len(shape):
        own = list(range(len(info.shape)))
    own += [0] * (len(shape) - len(own))
    blocks = _blocks(parts, shape, counts)
    return [
        None if count == 1 < length else Along(axis, block)
        for axis, block, count, length in zip(own, blocks, counts, shape, strict=True)
    ]


def _blocks(
    parts: SchemeTensors, shape: tuple[int, ...], counts: tuple[int, ...], axis: int = -1
) -> Iterator[int]:
    """Yield how many elements of each axis are for a scale, all where a part would not tell."""
    found = parts.grid(shape, counts, axis).blocks
    for place, (length, block) in enumerate(zip(shape, found, strict=True), start=-len(shape)):
        is_power = block.bit_count() == 1
        is_named = block in parts.settings.sizes(-1 if place == axis else -2)
        yield block if is_power or is_named else length


def _beside(parts: SchemeTensors, info: TensorInfo) -> list[Along | None]:
    whole: list[Along | None] = [None] * len(parts.shape)
    if info.name.endswith(_WHOLE) or info.size in {0, 1}:
        return whole
    if info.name.endswith(_OF_INPUTS) and info.shape == parts.shape[-1:]:
        return [*whole[:-1], Along(0)]
    raise parts.cannot_dequantize(f"`{info.name}` stands beside it")


def _is_ordered(parts: SchemeTensors, ending: str) -> bool:
    """Whether a part says of each input in which group it is: of all groups, wherever it is."""
    place = parts.find(ending)
    if place is None:
        return False
    tensor = parts.tensors[place]
    first = bytearray(tensor.info.encoding.size)
    if not tensor.info.size:
        return False
    tensor.read_into(0, memoryview(first))
    # One that was never set has -1 alone.
    return not all(byte == 0xFF for byte in first)


def _gptq(parts: SchemeTensors) -> list[Sequence[Along | None]]:
    """Inputs are rows, packed; a group of them has a row of scales and one of zeros, packed."""
    outputs, inputs = parts.shape
    rows, _ = parts.numbers.shape
    by_group = None if _is_ordered(parts, ".g_idx") else _groups(parts)
    return _turned(parts, [Along(1), ratio(0, inputs, rows)], by_group, outputs)


def _awq(parts: SchemeTensors) -> list[Sequence[Along | None]]:
    """Inputs are rows, outputs packed; a group of inputs has a row of scales, and one of zeros."""
    outputs, inputs = parts.shape
    rows, columns = parts.numbers.shape
    # Otherwise it is of the kind for vectors, whose scales are padded.
    is_turned = rows == inputs and columns < parts.scales.shape[1]
    if parts.numbers.encoding.name != _WORD or not is_turned:
        raise parts.cannot_dequantize("it is of another kind")
    return _turned(parts, [ratio(1, outputs, columns), Along(0)], _groups(parts), outputs)


def _groups(parts: SchemeTensors) -> Along | None:
    """Return what rows of scales have of the inputs."""
    outputs, inputs = parts.shape
    groups = parts.scales.shape[0]
    if groups == 1:
        return None
    return Along(0, next(_blocks(parts, (inputs, outputs), (groups, outputs), -2)))


def _turned(
    parts: SchemeTensors, numbers: list[Along], by_group: Along | None, outputs: int
) -> list[Sequence[Along | None]]:
    made: list[Sequence[Along | None]] = [numbers, (Along(1), by_group)]
    for tensor in parts.tensors[2:]:
        info = tensor.info
        if info.name.endswith(".qzeros"):
            made.append((ratio(1, outputs, info.shape[1]), by_group))
        else:
            made.append(_beside(parts, info))
    return made


_SCHEMES: dict[str, Callable[[SchemeTensors], list[Sequence[Along | None]]]] = {
    "scaled": _upright,
    "LLM.int8()": _upright,
    "MLX": _upright,
    "MXFP4": _microscaled,
    "MXFP6": _microscaled,
    "MXFP8": _microscaled,
    "NVFP4": _microscaled,
    "GPTQ": _gptq,
    "AWQ": _awq,
}
