"""The record of a scheme: how its tensors are named, fitted together, decoded, and cut.

The endings of names are those that the tools themselves write, as their sources say: AutoAWQ,
AutoGPTQ, compressed-tensors, DeepSeek, ModelOpt, transformers, torchao, MLX, quanto, ComfyUI.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from struct import unpack
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.decoding.tensors import Decoding, SchemeTensors
    from weightctl.weights.info import TensorInfo

__all__ = [
    "ACTIVATIONS",
    "BITS",
    "COMPRESSED",
    "MLX",
    "QWEIGHT",
    "SCALED",
    "Candidate",
    "LogicalWeight",
    "NameEndings",
    "Scheme",
    "align_counts",
    "covers",
    "divide_exactly",
    "divide_up",
    "read_shape",
    "tiles",
]

# The usual ones first: a few small shapes fit several.
BITS = (4, 8, 2, 3, 6, 5, 7, 1)
_INTEGERS = {"I32": "i", "I64": "q"}
# What MLX takes where the settings of a single layer leave it out.
_MLX_GROUP = {"group_size": 64}


class LogicalWeight(NamedTuple):
    """The weight that tensors represent: its shape, outermost dimension first.

    A number has `bits` bits, where these differ from weight to weight; `element` is what people
    call the numbers, where a scheme has several kinds.
    """

    shape: tuple[int, ...]
    bits: int = 0
    element: str = ""


class Candidate(NamedTuple):
    """Tensors that may be one weight; `others` are known by the endings of their names.

    `config` is config.json's content. `content` gives the bytes of a small tensor that is beside
    numbers, None if they cannot be had.
    """

    layer: str
    numbers: TensorInfo
    scales: TensorInfo
    others: Mapping[str, TensorInfo]
    config: Mapping[str, Any]
    content: Callable[[TensorInfo, TensorInfo], bytes | None]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them, the numbers first."""
        return (self.numbers.name, self.scales.name, *[info.name for info in self.others.values()])

    def shape(self, ending: str) -> tuple[int, ...] | None:
        """Return the shape of another tensor, None if there is none."""
        found = self.others.get(ending)
        return found.shape if found else None

    def bytes_of(self, ending: str) -> bytes | None:
        """Return what a small tensor holds, None if there is none or it cannot be read."""
        info = self.others.get(ending)
        return self.content(info, self.numbers) if info else None

    def integers(self, ending: str) -> tuple[int, ...] | None:
        """Return the positive integers that a small tensor holds, None if it does not."""
        info = self.others.get(ending)
        code = _INTEGERS.get(info.encoding.name) if info else None
        raw = self.content(info, self.numbers) if info and code else None
        if info is None or not raw:
            return None
        found: tuple[int, ...] = unpack(f"<{len(raw) // info.encoding.size}{code}", raw)
        return found if min(found) > 0 else None

    def setting(self, key: str) -> object:
        """Return a setting of this layer's quantization in the config, None if it has none."""
        settings = self.config.get("quantization") or self.config.get("quantization_config")
        if not is_object(settings):
            return None
        own = settings.get(self.layer)
        return {**_MLX_GROUP, **own}.get(key) if is_object(own) else settings.get(key)

    def number(self, key: str) -> int:
        """Return a setting of this layer that is a positive integer; 0 if there is none."""
        found = self.setting(key)
        return found if type(found) is int and found > 0 else 0


def read_shape(shape: object) -> tuple[int, ...] | None:
    """Return a shape as a file gives it; None if it is not one, or has no elements."""
    if not is_list(shape) or not all(type(length) is int and length > 0 for length in shape):
        return None
    return tuple(shape)


def divide_exactly(whole: int, part: int) -> int:
    """Return how often a part goes into a whole; 0 where it leaves a rest."""
    return whole // part if part > 0 and whole % part == 0 else 0


def divide_up(whole: int, part: int) -> int:
    """Return how many parts hold a whole."""
    return -(-whole // part)


@lru_cache(maxsize=256)  # a model has few shapes, each in many layers
def tiles(count: int, length: int) -> bool:
    """Whether this many blocks of one size, the last perhaps cut off, are as long as that."""
    return 0 < count <= length and divide_up(length, divide_up(length, count)) == count


@lru_cache(maxsize=256)
def covers(scales: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether there is a scale for the whole of a tensor, for each row, or for each block."""
    if prod(scales) == 1:
        return True
    if len(scales) > len(shape):
        scales = tuple(count for count in scales if count != 1)
    scales += (1,) * (len(shape) - len(scales))
    return len(scales) == len(shape) and all(map(tiles, scales, shape))


def align_counts(counts: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of scales with as many dimensions as what they are for."""
    if all(count == 1 for count in counts):
        return (1,) * len(shape)
    if len(counts) > len(shape):
        counts = [count for count in counts if count != 1]
    return (*counts, *(1,) * (len(shape) - len(counts)))


class NameEndings(NamedTuple):
    """How the names of a weight's tensors end, after the name of its layer.

    `scales` ends the one that a weight is found by. `numbers` are packed in one of `encodings`, any
    where none is named. `weight` ends the name of what it represents.
    """

    scales: str
    numbers: str
    weight: str
    encodings: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def gather(
        self,
        scales: TensorInfo,
        tensors: Mapping[str, TensorInfo],
        config: Mapping[str, Any],
        content: Callable[[TensorInfo, TensorInfo], bytes | None],
    ) -> Candidate | None:
        """Return the tensors that belong to these scales, None if they do not match."""
        if not scales.name.endswith(self.scales):
            return None
        layer = scales.name[: -len(self.scales)]
        numbers = tensors.get(layer + self.numbers)
        if numbers is None or (self.encodings and numbers.encoding.name not in self.encodings):
            return None
        others = {
            ending: info
            for ending in self.others
            if (info := tensors.get(layer + ending)) is not None
        }
        return Candidate(layer, numbers, scales, others, config, content)


# They are for activations: the weight is the same without them.
ACTIVATIONS = (
    "input_scale", "input_zero_point", "input_global_scale", "activation_scale", ".scale_input",
    ".input_scale_ub", ".output_scale",
)  # fmt: skip
_F8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_BYTES = (*_F8, "I8", "U8", "F4")

# GPTQ and AWQ differ in shapes alone.
QWEIGHT = NameEndings(".scales", ".qweight", ".weight", ("I32",), (".qzeros", ".g_idx"))
# Integers have biases beside them, floats have none.
MLX = NameEndings(".scales", ".weight", ".weight", ("U32",), (".biases", ".qbiases"))
# Integers are in words of I32, floats in bytes.
COMPRESSED = NameEndings(
    ".weight_scale", ".weight_packed", ".weight", ("I32", "U8"),
    (
        ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight_global_scale",
        ".input_scale", ".input_zero_point", ".input_global_scale",
    ),
)  # fmt: skip
# Bytes, or pairs of floats of 4 bits: shapes and encodings say what the scales make of them.
SCALED = (
    NameEndings(
        ".weight_scale", ".weight", ".weight", _BYTES,
        (
            ".weight_scale_2", ".input_scale", ".pre_quant_scale", ".weight_zero_point",
            ".input_zero_point", ".input_scale_ub", ".comfy_quant",
        ),
    ),
    NameEndings(
        ".weight_scale_inv", ".weight", ".weight", _BYTES, (".input_scale", ".activation_scale")
    ),
    NameEndings(".scales", ".weight", ".weight", _BYTES, (".zero_points", ".qzeros")),
    NameEndings(".scale_weight", ".weight", ".weight", _F8, (".scale_input",)),
    NameEndings(".scale", ".weight", ".weight", _BYTES),
    NameEndings(
        "._weight_scale", "._weight_qdata", ".weight", (*_F8, "I8"),
        ("._weight_zero_point", "._weight_act_pre_scale", "._weight_per_tensor_scale"),
    ),
    NameEndings(
        ".weight._scale", ".weight._data", ".weight", (*_F8, "I8"),
        (".input_scale", ".output_scale"),
    ),
    NameEndings("_weight_scale", "", "", _BYTES, ("_weight_scale_2", "_input_scale")),
    NameEndings("_scale_inv", "", "", _BYTES, ("_activation_scale",)),
    NameEndings("_scale", "", "", _BYTES, ("_zero_point", "_input_scale")),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scheme:
    """A way to store a weight in several tensors.

    `label` is what people read, with the `{bits}` of a number, or what its `{element}` is called.
    Nothing decides on it.

    `names` are how tools name the tensors, the usual way first.

    `infer` returns the weight that tensors of these names represent, by their shapes. It returns
    None if they do not fit together: then they are something else, and stay what they are.

    `decode` returns how the values of a weight follow from its tensors, and raises
    `ConversionError` if one cannot be decoded; None if none can.

    `cut` returns, for each tensor of a weight, what of it belongs to each axis of the weight, and
    raises `ConversionError` if one cannot be split; None if none can.
    """

    label: str
    names: tuple[NameEndings, ...]
    infer: Callable[[Candidate], LogicalWeight | None]
    decode: Callable[[SchemeTensors], Decoding] | None = None
    cut: Callable[[SchemeTensors], Sequence[Axes]] | None = None
