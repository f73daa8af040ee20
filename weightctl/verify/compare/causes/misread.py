"""Detects tensors whose bits were read in the wrong byte order, or as the wrong dtype."""

from __future__ import annotations

from contextlib import suppress
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.verify.compare.explaining import is_proven
from weightctl.verify.results import Explanation
from weightctl.weights.derived import DerivedTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

_F32, _F16, _BF16 = (ENCODINGS[name] for name in ("F32", "F16", "BF16"))
# The encodings of full-precision checkpoints.
_PLAIN = (_F32, _BF16, _F16)
_LEAST_DIFFERENT = 0.5


def find_misread(pair: Pair, pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that the bits of a tensor were read in the wrong byte order, or as the wrong dtype.

    If the tensor still has the bits, they are reinterpreted. If it was quantized afterwards, the
    same mistake is made with the reference's values.
    """
    if found.runs_unequal < _LEAST_DIFFERENT * found.runs and not found.nonfinite:
        return None
    own = pairing.checkpoint
    view = pair if own is None else pairing.seen_in(own.convention, pair)
    if view is None:
        return None
    for step in _READINGS:
        if any(is_proven(made, pairing) for made in _correct(view, step)):
            return _make_cause(step)
    return None


class _Reading(NamedTuple):
    """A step that reads the bits of `held` values as `meant` values.

    `is_swapped` says whether the bytes of each value are reversed.
    """

    held: Encoding
    meant: Encoding
    is_swapped: bool

    @property
    def undone(self) -> _Reading:
        """The reading that reverses this one."""
        return _Reading(self.meant, self.held, self.is_swapped)

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape and the encoding of the result."""
        (info,) = inputs
        if info.encoding not in _PLAIN or not info.encoding.size >= self.held.size:
            raise ConversionError(f"`{info.name}` is stored as {info.encoding}, not as {self.held}")
        return info.shape, self.meant

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the values, and reinterpret their bits."""
        (tensor,) = inputs
        stored, width = tensor.info.encoding, self.held.size
        raw = bytearray(len(buffer) // width * stored.size)
        tensor.read_into(start // width * stored.size, memoryview(raw))
        bits = _encode(self.held, stored, np.frombuffer(raw, np.uint8))
        if self.is_swapped:
            bits = bits.reshape(-1, width)[:, ::-1].reshape(-1)
        np.frombuffer(buffer, np.uint8)[:] = bits

    def __str__(self) -> str:
        return f"bits of {self.held} as {self.meant}"


def _list_readings() -> Iterator[_Reading]:
    for encoding in _PLAIN:
        yield _Reading(encoding, encoding, is_swapped=True)
    for held, meant in permutations((_F16, _BF16)):
        yield _Reading(held, meant, is_swapped=False)


# The readings to try. `held` is the wrong encoding, which the tensor was read as.
_READINGS = tuple(_list_readings())


def _correct(pair: Pair, step: _Reading) -> Iterator[Pair]:
    """Yield the pair with a reinterpreted tensor, and the pair with a reference misread likewise.

    The first is left out if the tensor does not hold the bits any more, and the second if the
    reference cannot be misread in this way.
    """
    own, reference = pair.tensor, pair.reference
    encoding = own.info.encoding
    if encoding == step.held or _may_hold(own, step.held):
        yield pair._replace(tensor=DerivedTensor(pair.module, step, [own]))
    elif encoding in _PLAIN and encoding.size < step.held.size:
        return
    with suppress(ConversionError):
        yield pair._replace(reference=DerivedTensor(pair.module, step.undone, [reference]))


def _may_hold(tensor: ReadableTensor, encoding: Encoding) -> bool:
    """Whether a float32 tensor's first values can be represented in a narrower encoding."""
    if tensor.info.encoding != _F32:
        return False
    raw = bytearray(min(tensor.info.nbytes, 1 << 12))
    tensor.read_into(0, memoryview(raw))
    numbers = np.frombuffer(raw, np.uint8)
    recoded = _encode(_F32, encoding, _encode(encoding, _F32, numbers))
    is_number = np.isfinite(numbers.view(np.float32))
    bits, recoded_bits = (each.view(np.uint32)[is_number] for each in (numbers, recoded))
    return np.array_equal(bits, recoded_bits)


def _encode(encoding: Encoding, stored: Encoding, raw: U8) -> U8:
    """Convert raw values from one full-precision encoding to another."""
    with np.errstate(all="ignore"):  # misread bits may be NaN, and overflow
        return transcode(raw.reshape(1, -1), stored, encoding).raw.reshape(-1)


def _make_cause(step: _Reading) -> Explanation:
    if step.is_swapped:
        return Explanation(
            "byte_order",
            f"its byte order is swapped: the {step.held.size} bytes of each value are "
            "reversed, as when big-endian values are read as little-endian",
        )
    return Explanation(
        "wrong_dtype",
        f"its bits are those of {step.meant} values, but were read as {step.held}",
    )
