"""How tools name the tensors of a weight, and the weight that tensors of these names are.

Schemes list the endings of names, which are those in the sources of the tools that write them:
AutoAWQ, AutoGPTQ, compressed-tensors, DeepSeek, ModelOpt, transformers, torchao, MLX, quanto,
ComfyUI.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from struct import unpack
from typing import TYPE_CHECKING, NamedTuple

from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.schemes.settings import Settings
    from weightctl.weights.info import TensorInfo

# Usual widths first, because some small shapes fit several widths.
BITS = (4, 8, 2, 3, 6, 5, 7, 1)
_INTEGERS = {"I32": "i", "I64": "q"}


class LogicalWeight(NamedTuple):
    """The weight that stored tensors represent: its shape, outermost dimension first.

    `bits` is the width of a stored value, if it varies between weights. `element` is the name of
    the stored values for users, if a scheme has several kinds.
    """

    shape: tuple[int, ...]
    bits: int = 0
    element: str = ""


class Candidate(NamedTuple):
    """Tensors that can form a weight; `others` are by the endings of their names.

    `settings` are those of the layer. `content` returns the bytes of a small tensor, given
    also the tensor of the stored values; None if they cannot be read.
    """

    layer: str
    numbers: TensorInfo
    scales: TensorInfo
    others: Mapping[str, TensorInfo]
    settings: Settings
    content: Callable[[TensorInfo, TensorInfo], bytes | None]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors, the stored values first."""
        return (self.numbers.name, self.scales.name, *[info.name for info in self.others.values()])

    def shape(self, ending: str) -> tuple[int, ...] | None:
        """Return the shape of another tensor; None if it is missing."""
        found = self.others.get(ending)
        return found.shape if found else None

    def bytes_of(self, ending: str) -> bytes | None:
        """Return the bytes of a small tensor; None if it is missing or cannot be read."""
        info = self.others.get(ending)
        return self.content(info, self.numbers) if info else None

    def integers(self, ending: str) -> tuple[int, ...] | None:
        """Return the positive integers of a small tensor; None if it is missing or invalid."""
        info = self.others.get(ending)
        code = _INTEGERS.get(info.encoding.name) if info else None
        raw = self.content(info, self.numbers) if info and code else None
        if info is None or not raw:
            return None
        found: tuple[int, ...] = unpack(f"<{len(raw) // info.encoding.size}{code}", raw)
        return found if min(found) > 0 else None


def read_shape(shape: object) -> tuple[int, ...] | None:
    """Return a shape from untrusted JSON; None if it is invalid, or has no elements."""
    if not is_list(shape) or not all(type(length) is int and length > 0 for length in shape):
        return None
    return tuple(shape)


def divide_exactly(whole: int, part: int) -> int:
    """Return the quotient of a division; 0 if there is a remainder."""
    return whole // part if part > 0 and whole % part == 0 else 0


def divide_up(whole: int, part: int) -> int:
    """Return the quotient of a division, rounded up."""
    return -(-whole // part)


@lru_cache(maxsize=256)  # a model has few different shapes, each in many layers
def tiles(count: int, length: int) -> bool:
    """Whether `count` blocks of one size cover a length; the last block can be incomplete."""
    return 0 < count <= length and divide_up(length, divide_up(length, count)) == count


@lru_cache(maxsize=256)
def covers(scales: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether there is a scale for the whole tensor, for each row, or for each block."""
    if prod(scales) == 1:
        return True
    if len(scales) > len(shape):
        scales = tuple(count for count in scales if count != 1)
    scales += (1,) * (len(shape) - len(scales))
    return len(scales) == len(shape) and all(map(tiles, scales, shape))


def align_counts(counts: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of scales with as many dimensions as the weight has."""
    if all(count == 1 for count in counts):
        return (1,) * len(shape)
    if len(counts) > len(shape):
        counts = [count for count in counts if count != 1]
    return (*counts, *(1,) * (len(shape) - len(counts)))


class NameEndings(NamedTuple):
    """The endings of the names of a weight's tensors, after the name of the layer.

    `scales` is the ending by which a weight is found. The tensor with the ending `numbers` has the
    stored values, in one of `encodings`; any if empty. `weight` is the ending of the weight's own
    name.
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
        settings: Settings,
        content: Callable[[TensorInfo, TensorInfo], bytes | None],
    ) -> Candidate | None:
        """Return the tensors that belong to these scales; None if they do not match."""
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
        return Candidate(layer, numbers, scales, others, settings.of(layer), content)


class Quantized(NamedTuple):
    """A weight that is stored as several tensors: packed values, scales, and others.

    `name` and `shape` are those of the weight. `scheme` is the name in `SCHEMES`, and `label` the
    name of the scheme for users. `tensors` are the names of the stored tensors, the packed values
    first, and `nbytes` is their total size. `number_bits` is the width of a packed value, 0 if the
    scheme determines it.
    """

    name: str
    shape: tuple[int, ...]
    scheme: str
    label: str
    number_bits: int
    tensors: tuple[str, ...]
    nbytes: int

    @property
    def size(self) -> int:
        """The number of elements of the weight."""
        return prod(self.shape)

    @property
    def bits(self) -> float:
        """The stored bits per element, including scales."""
        return 8 * self.nbytes / self.size


# Tensors for activations, which do not change the weight.
ACTIVATIONS = (
    "input_scale", "input_zero_point", "input_global_scale", "activation_scale", ".scale_input",
    ".input_scale_ub", ".output_scale",
)  # fmt: skip
