"""What `is_exact` says is so for every number of the types that have few enough to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from weightctl import DType
from weightctl.codecs import is_exact
from weightctl.codecs.scalar import convert, unpack
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from weightctl.codecs.scalar import Numbers

REAL = [dtype for dtype in DType if not dtype.is_complex]
SMALL = [dtype for dtype in REAL if dtype.encoding.size <= 2]


def every_number(dtype: DType) -> Numbers:
    if dtype is DType.bool:
        return np.array([False, True])
    count = 1 << 8 * dtype.encoding.size
    return unpack(np.arange(count, dtype=f"u{dtype.encoding.size}").view(np.uint8), dtype)


def not_refused(numbers: Numbers, target: DType) -> Numbers:
    """Return those numbers that `convert` takes."""
    with np.errstate(invalid="ignore"):
        values = numbers.astype(np.float64)
    if target is DType.float8_e8m0fnu:
        return numbers[~(values <= 0)]
    if target is DType.float4_e2m1fn:
        return numbers[~np.isnan(values)]
    if target.is_integer:
        limits = np.iinfo(target.value)
        return numbers[(values >= limits.min) & (values <= limits.max)]
    return numbers


@pytest.mark.parametrize("target", REAL, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("source", SMALL, ids=lambda dtype: dtype.value)
def test_a_conversion_is_exact_if_it_changes_no_number(source: DType, target: DType) -> None:
    if source.is_float and not target.is_float:
        assert not is_exact(source.encoding, target.encoding)
        return
    numbers = not_refused(every_number(source), target)
    with np.errstate(invalid="ignore"):
        before = numbers.astype(np.float64)
        after = convert(numbers, target).astype(np.float64)
    is_unchanged = np.array_equal(before, after, equal_nan=True)
    assert is_exact(source.encoding, target.encoding) is is_unchanged


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("F32", "F64", True), ("F64", "F32", False), ("F32", "F16", False), ("F32", "BF16", False),
        ("F32", "F8_E8M0", False), ("F64", "F8_E4M3", False), ("F64", "F64", True),
        ("I32", "F64", True), ("U32", "F64", True), ("I32", "F32", False), ("U32", "F32", False),
        ("I64", "F64", False), ("U64", "F64", False), ("I64", "I8", True), ("U64", "I64", True),
        ("I64", "BOOL", False), ("F32", "I32", False), ("C64", "F64", False), ("F32", "C64", False),
    ],
)  # fmt: skip
def test_of_wide_types_too(source: str, target: str, expected: bool) -> None:
    assert is_exact(ENCODINGS[source], ENCODINGS[target]) is expected


@pytest.mark.parametrize("target", ENCODINGS.values(), ids=str)
@pytest.mark.parametrize("source", ["Q8_0", "Q4_K", "IQ2_XS", "MXFP4"])
def test_blocks_are_float32_numbers(source: str, target: object) -> None:
    assert target in ENCODINGS.values()
    expected = str(target) in {source, "F32", "F64"}
    assert is_exact(ENCODINGS[source], ENCODINGS[str(target)]) is expected


@pytest.mark.parametrize("source", ENCODINGS.values(), ids=str)
def test_to_blocks_only_the_same_blocks_are_exact(source: object) -> None:
    for target in ("Q8_0", "Q5_0", "Q4_K"):
        assert is_exact(ENCODINGS[str(source)], ENCODINGS[target]) is (str(source) == target)
