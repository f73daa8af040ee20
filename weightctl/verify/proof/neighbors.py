"""The values beside the stored ones: those that the next lower and the next higher code give.

Some tools choose the codes first, and then round the scales. This can move the values of whole
groups, by an amount that the stored scales bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.codecs.scalar import convert, unpack
from weightctl.dtype import DType
from weightctl.schemes.arrays.tables import PackedNumbers, PlainNumbers
from weightctl.schemes.arrays.trees import Dequantized, resolve
from weightctl.schemes.arrays.values import CodedRow, Scaled
from weightctl.weights.derived import DerivedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.schemes.arrays.tables import NumberTable, Region
    from weightctl.schemes.arrays.values import WeightValues
    from weightctl.weights.derived import ReadableTensor


# The rounding to bfloat16 of a scale and of what is added to the products with it, and that of a
# quotient plus a zero point.
_OF_SUM, _OF_CODE = 2.0**-8, 2.0**-9


class Neighbors(NamedTuple):
    """A weight of a scheme with each code replaced by its lower, and by its higher, one.

    A code at the end of the range stays. `rounding` has as its magnitudes how far the rounding of
    scales can have moved the values, beyond a part of the values; None if it cannot.
    """

    lower: ReadableTensor
    higher: ReadableTensor
    rounding: ReadableTensor | None


def find_neighbors(tensor: ReadableTensor) -> Neighbors | None:
    """Return the neighbors of a weight; None if it is not stored as codes with scales."""
    lower, higher = (_change(tensor, partial(_shift_values, by=by)) for by in (-1, 1))
    if lower is None or higher is None:
        return None
    return Neighbors(lower, higher, _change(tensor, _find_rounding))


def _change(
    tensor: ReadableTensor, change: Callable[[WeightValues], WeightValues | None]
) -> ReadableTensor | None:
    tensor = resolve(tensor)
    if not isinstance(tensor, DerivedTensor):
        return None
    step = tensor.step
    if isinstance(step, Dequantized):
        values = change(step.values)
        if values is None:
            return None
        return DerivedTensor(tensor.info.name, replace(step, values=values), tensor.inputs)
    below = [_change(each, change) for each in tensor.inputs]
    inputs = [each for each in below if each is not None]
    if len(inputs) < len(below):
        return None
    return DerivedTensor(tensor.info.name, step, inputs)


def _find_rounding(values: WeightValues) -> WeightValues | None:
    if isinstance(values, CodedRow) and values.nested is not None:
        # bitsandbytes chooses a code beside the true scale, but not always the nearest one.
        apart = np.abs(np.diff(values.nested.values, prepend=np.nan, append=np.nan))
        largest = np.fmax(apart[1:], apart[:-1])
        nested = replace(values.nested, values=largest, offset=0.0)
        return replace(values, values=_find_largest(values.values), nested=nested)
    if not isinstance(values, Scaled):
        return None
    if values.biases is not None:
        return replace(values, biases=None, factor=values.factor * _OF_SUM)
    if values.zeros is not None and isinstance(values.numbers, PackedNumbers):
        # Tools add zero points to quotients that are at least 0, or at least minus this.
        half = 1 << (values.numbers.packing.bits - 1)
        numbers = _AtLeast(values.numbers, half)
        return replace(values, numbers=numbers, zero=0, zeros=None, factor=values.factor * _OF_CODE)
    return None


def _shift_values(values: WeightValues, by: int) -> WeightValues | None:
    if isinstance(values, CodedRow):
        table = _order_codes(tuple(values.values.tolist()), by)
        return replace(values, codes=_NextCodes(values.codes, table))
    if not isinstance(values, Scaled):
        return None
    moved = _shift_numbers(values, by)
    return None if moved is None else replace(values, numbers=moved)


def _shift_numbers(values: Scaled, by: int) -> NumberTable | None:
    numbers = values.numbers
    if values.codes:
        return _NextCodes(numbers, _order_codes(values.codes, by))
    if isinstance(numbers, PackedNumbers):
        least = -(1 << (numbers.packing.bits - 1)) if numbers.signed else 0
        return _NextIntegers(numbers, by, least, least + (1 << numbers.packing.bits) - 1)
    if isinstance(numbers, PlainNumbers) and numbers.dtype in {DType.int8, DType.uint8}:
        limits = np.iinfo(numbers.dtype.name)
        return _NextIntegers(numbers, by, limits.min, limits.max)
    if isinstance(numbers, PlainNumbers) and numbers.dtype.encoding.size == 1:
        return _NextFloats(numbers, _list_values(numbers.dtype), by)
    return None


def _find_largest(values: F32) -> F32:
    """Return the largest magnitude of each value and of those that the codes beside it have."""
    codes = tuple(values.tolist())
    beside = [values, *(values[_order_codes(codes, by)] for by in (-1, 1))]
    largest: F32 = np.abs(beside).max(axis=0)
    return largest


@lru_cache(maxsize=32)
def _order_codes(values: tuple[float, ...], by: int) -> NDArray[np.uint8]:
    """Return the code beside each one, by value; codes of equal values count as one."""
    levels = sorted(set(values))
    place = {level: number for number, level in enumerate(levels)}
    last = len(levels) - 1
    wanted = [levels[min(max(place[value] + by, 0), last)] for value in values]
    return np.array([values.index(value) for value in wanted], np.uint8)


@lru_cache
def _list_values(dtype: DType) -> F32:
    """Return the finite values of an 8-bit float type, in order."""
    values = convert(unpack(np.arange(256, dtype=np.uint8), dtype), DType.float32)
    return np.unique(values[np.isfinite(values)])


@dataclass(frozen=True, slots=True, eq=False)
class _NextCodes:
    """Codes that are replaced by those of a table."""

    codes: NumberTable
    table: NDArray[np.uint8]

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        return np.take(self.table, self.codes.read(inputs, region), mode="clip")


@dataclass(frozen=True, slots=True, eq=False)
class _NextIntegers:
    """Integers plus `by`, at least `least` and at most `most`."""

    numbers: NumberTable
    by: int
    least: int
    most: int

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        found = self.numbers.read(inputs, region)
        moved = found.astype(np.int16) + np.int16(self.by)
        kept: NDArray[Any] = np.clip(moved, self.least, self.most).astype(found.dtype)
        return kept


@dataclass(frozen=True, slots=True, eq=False)
class _AtLeast:
    """Integers that are at least 0; smaller ones than `least` are replaced by it."""

    numbers: PackedNumbers
    least: int

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        larger: NDArray[Any] = np.maximum(self.numbers.read(inputs, region), self.least)
        return larger


@dataclass(frozen=True, slots=True, eq=False)
class _NextFloats:
    """Floats replaced by the value that is `by` places further in a sorted list."""

    numbers: NumberTable
    values: F32
    by: int

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        places = np.searchsorted(self.values, self.numbers.read(inputs, region)) + self.by
        return np.take(self.values, places, mode="clip")
