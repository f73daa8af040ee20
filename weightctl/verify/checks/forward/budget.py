"""Simulates the encoding errors of the checkpoint in the reference's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import can_decode
from weightctl.errors import ConversionError
from weightctl.families.steps import convert_form, module_form
from weightctl.verify.compare.distance import PairSide
from weightctl.verify.compare.measure import read_values
from weightctl.verify.compare.pairing import convert_convention
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.dtype import Encoding
    from weightctl.families import RecognizedModel
    from weightctl.verify.compare.pairing import Pair
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

# The number of values to encode at once, in whole rows.
_RUN = 1 << 20
# Encodings with at least this many bits round each value; their error is negligible compared with
# that of quantized blocks.
_PLAIN = 16
# If more than this fraction of the blocks differ, the two tensors were quantized separately.
_MOST_CHANGED = 0.5


def degrade(
    pair: Pair, subject: RecognizedModel, reference: RecognizedModel
) -> ReadableTensor | None:
    """Return the reference's tensor with the errors that the encodings of both sides cause.

    The result is in the form of the reference's modules. Return None if the encodings explain no
    difference, so that both tensors should be equal, or if the tensors cannot be compared, for
    example because their shapes differ.
    """
    if pair.names is None:
        return None
    # The output of a tied model is only in the pair, not among the model's tensors.
    own = subject.tensors.get(pair.module, pair.tensor)
    other = reference.tensors.get(pair.module, pair.reference)
    sides = (
        PairSide(own.info.encoding, pair.bits),
        PairSide(other.info.encoding, pair.reference_bits),
    )
    is_alike = sides[0] == sides[1]
    is_plain = min(side.bits for side in sides) >= _PLAIN
    if is_alike and (is_plain or not _is_otherwise_quantized(pair)):
        return None
    step = Degraded(*sides, is_repeated=is_alike)
    if not step.costs:
        return None
    # The convention is that of the side with fewer bits, since its blocks must not be split.
    convention = (subject if pair.bits <= pair.reference_bits else reference).convention
    try:
        turned = convert_convention(pair.names, own, subject, convention)
        wanted = convert_convention(pair.names, other, reference, convention)
        if turned.info.shape != wanted.info.shape:
            return None
        made = DerivedTensor(pair.module, step, [wanted, turned])
        form = module_form(pair.names, reference.convention)
        return convert_form(pair.names, made, reference.config, convention, form)
    except ConversionError:
        return None


@dataclass(frozen=True, slots=True)
class Degraded:
    """A step that adds the encoding errors of two tensors to the values of the first.

    `stored` describes the first tensor's encoding and `other` the second's; both tensors have the
    same shape. `is_repeated` is set if both have the same encoding but different blocks. The values
    that both were encoded from are then unknown, and random errors of the typical size are added.
    """

    stored: PairSide
    other: PairSide
    is_repeated: bool = False

    @property
    def costs(self) -> bool:
        """Whether one of the encodings has an error that counts."""
        return _is_worth_counting(self.stored, self.other) or _is_worth_counting(
            self.other, self.stored
        )

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape, and F32."""
        for info in inputs:
            if not can_decode(info.encoding):
                raise ConversionError(
                    f"`{info.name}` is {info.encoding}, which weightctl cannot decode"
                )
            if not info.encoding.fits(info.shape[-1:]):
                raise ConversionError(f"the rows of `{info.name}` are not whole blocks")
        return AsFloat32().infer(inputs[:1])

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the values of the range as float32, with the encoding errors added."""
        made = np.frombuffer(buffer, np.float32)
        shape = inputs[0].info.shape
        row = shape[-1] if shape else 1
        begin, end = start // 4, start // 4 + len(made)
        at_once = max(1, _RUN // max(1, row)) * row
        for first in range(begin // row * row, end, at_once):
            last = min(first + at_once, -(-end // row) * row)
            numbers = self._read_numbers(inputs, first, last, row)
            kept = slice(max(begin - first, 0), max(min(end, last) - first, 0))
            part = numbers.reshape(-1)[kept]
            made[max(first - begin, 0) :][: len(part)] = part

    def __str__(self) -> str:
        return "as far off as its encoding"

    def _read_numbers(
        self, inputs: Sequence[ReadableTensor], first: int, last: int, row: int
    ) -> F32:
        numbers = read_values(inputs[0], first, last - first).reshape(-1, row)
        if self.is_repeated:
            return _add_noise(numbers, self.stored.typical, first)
        made = numbers
        if _is_worth_counting(self.stored, self.other):
            made = _pass_through(self.stored, numbers, first)
        if _is_worth_counting(self.other, self.stored):
            given = read_values(inputs[1], first, last - first).reshape(-1, row)
            with np.errstate(over="ignore", invalid="ignore"):
                cost = given - _pass_through(self.other, given, first)
                made = made + np.where(np.isfinite(cost), cost, 0)
        return made


def _is_worth_counting(side: PairSide, beside: PairSide) -> bool:
    """Whether the error of `side` is significant compared with the error of `beside`."""
    return not side.keeps_all and not (side.bits >= _PLAIN > beside.bits)


def _pass_through(side: PairSide, rows: F32, seed: int) -> F32:
    fits = side.encoding.fits(rows.shape)
    found = side.through(rows.reshape(-1)) if fits else None
    return _add_noise(rows, side.typical, seed) if found is None else found.reshape(rows.shape)


def _add_noise(rows: F32, noise: float, seed: int) -> F32:
    drawn = np.random.default_rng(seed).standard_normal(rows.shape, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.sqrt(np.mean(np.square(rows), axis=-1, keepdims=True)) * np.float32(noise)
        made: F32 = rows + drawn * np.nan_to_num(size, posinf=0, neginf=0)
    return made


def _is_otherwise_quantized(pair: Pair) -> bool:
    """Whether two tensors have different encodings, or most of their blocks differ."""
    one, other = pair.tensor.info, pair.reference.info
    if one.encoding != other.encoding or one.nbytes != other.nbytes:
        return True
    width = one.encoding.size
    blocks, changed, step = one.nbytes // width, 0, max(1, _RUN // width) * width
    for start in range(0, one.nbytes, step):
        length = min(step, one.nbytes - start)
        own, counterpart = (
            _read_bytes(tensor, start, length).reshape(-1, width)
            for tensor in (pair.tensor, pair.reference)
        )
        changed += int(np.count_nonzero((own != counterpart).any(axis=-1)))
    return changed > blocks * _MOST_CHANGED


def _read_bytes(tensor: ReadableTensor, start: int, length: int) -> NDArray[np.uint8]:
    raw = bytearray(length)
    tensor.read_into(start, memoryview(raw))
    return np.frombuffer(raw, np.uint8)
