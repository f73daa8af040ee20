"""What the kernels transcode in one pass is what NumPy makes of whole arrays, at every level."""

from __future__ import annotations

import itertools
import platform
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from each import each
from rows import BLOCKS, ROWS, required
from weightctl.codecs import can_decode, codec, definition, transcode
from weightctl.codecs.compiled import transcode_in_one_pass
from weightctl.codecs.scalar import convert, numpy_dtype
from weightctl.codecs.transcoding import decode_rows, transcode_arrays
from weightctl.dtype import ENCODINGS
from weightctl.errors import NonFiniteError
from weightctl.kernels import (
    active,
    levels,
    multiplies_bf16,
    multiply_bf16,
    row_multiplier,
    transcoder,
)

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8
    from weightctl.codecs.loss import Loss


SMALL = ["F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]
SOME = ["Q8_0", "Q5_0", "Q4_K", "Q6_K"]
each_level = each("level", range(len(levels())), ids=levels())
measured_or_not = each("measure", [False, True])


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not levels(),
    reason="needs kernels for x86-64, and Linux",
)
def test_the_instruction_sets_are_those_that_linux_lists() -> None:
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text(encoding="utf-8")))
    needed = {
        "x86-64-v2": {"pni", "ssse3", "sse4_1", "sse4_2", "popcnt"},
        "x86-64-v3": {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma"},
        "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    }
    assert levels() == tuple(itertools.takewhile(lambda name: needed[name] <= flags, needed))
    assert multiplies_bf16() is (active() == "x86-64-v4" and "avx512_bf16" in flags)


class Case(NamedTuple):
    """What is transcoded, and how."""

    raw: U8
    source: str
    target: str
    importance: F32 | None = None
    measure: bool = True
    zero_nonfinite: bool = False

    def defined(self) -> tuple[U8, Loss | None]:
        return transcode_arrays(
            self.raw, ENCODINGS[self.source], ENCODINGS[self.target], self.importance, definition,
            measure=self.measure, zero_nonfinite=self.zero_nonfinite,
        )  # fmt: skip

    def compiled(self, level: int, out: U8 | None = None) -> tuple[U8, Loss | None]:
        weighted = self.importance is not None
        found = transcoder(self.source, self.target, weighted=weighted, level=level)
        assert found is not None
        return transcode_in_one_pass(
            found, self.raw, ENCODINGS[self.source], ENCODINGS[self.target], self.importance,
            out=out, measure=self.measure, zero_nonfinite=self.zero_nonfinite,
        )  # fmt: skip


def assert_as_defined(case: Case, level: int) -> None:
    expected, expected_loss = case.defined()
    made, loss = case.compiled(level)
    np.testing.assert_array_equal(made, expected)
    assert (loss is None) == (expected_loss is None)
    if loss is None or expected_loss is None:
        return
    for name in ("squares", "squared_error"):
        found, wanted = getattr(loss, name), getattr(expected_loss, name)
        assert found == pytest.approx(wanted, rel=1e-6, abs=0, nan_ok=True)
    assert replace(loss, squares=0, squared_error=0) == replace(
        expected_loss, squares=0, squared_error=0
    )


def codes(encoding: str) -> U8:
    """Return every number of a type of up to 16 bits, as two rows."""
    size = ENCODINGS[encoding].size
    return np.arange(1 << 8 * size, dtype=f"u{size}").view(np.uint8).reshape(2, -1)


def hard_numbers() -> U8:
    """Return all numbers of the small types, the middles between them, their neighbors, any bits.

    They are one row of float32.
    """
    found = [np.random.default_rng(6).integers(0, 1 << 32, 1 << 16, np.uint32)]
    for name in SMALL:
        with np.errstate(invalid="ignore"):
            numbers = codes(name).view(numpy_dtype(ENCODINGS[name].dtype)).astype(np.float64)
        numbers = np.unique(numbers[np.isfinite(numbers)])[:: 1 if ENCODINGS[name].size == 1 else 9]
        step = numbers[-1] - numbers[-2]
        beyond = [numbers[-1] + step / 2, numbers[-1] + step, -numbers[-1] - step / 2]
        with np.errstate(over="ignore"):
            exact = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, beyond])
            bits = exact.astype(np.float32).view(np.uint32)
        found += [bits, bits + np.uint32(1), bits - np.uint32(1)]
    return np.concatenate(found).view(np.uint8).reshape(1, -1)


def numbers_as(encoding: str, numbers: F32) -> U8:
    raw = numbers.view(np.uint8)
    return raw if encoding == "F32" else transcode(raw, ENCODINGS["F32"], ENCODINGS[encoding]).raw


def weights(*shape: int) -> F32:
    return np.random.default_rng(8).standard_normal(shape, np.float32) * np.float32(0.02)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@measured_or_not
@each("target", [*SMALL, "F32"])
@each("source", SMALL)
def test_every_number_of_a_small_type_becomes_any_other(
    source: str, target: str, measure: bool, level: int
) -> None:
    if source != target:
        assert_as_defined(Case(codes(source), source, target, measure=measure), level)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@measured_or_not
@each("target", SMALL)
def test_float32_of_all_kinds_is_rounded(target: str, measure: bool, level: int) -> None:
    assert_as_defined(Case(hard_numbers(), "F32", target, measure=measure), level)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@each("target", [*SMALL, "F32"])
@each("source", [*SMALL, "F32"])
def test_finite_numbers_of_any_count_become_any_other(source: str, target: str, level: int) -> None:
    # Other than above, no tile has a number that makes for another way.
    if source == target:
        return
    size = ENCODINGS[source].size
    raw = numbers_as(source, weights(1, 4096 + 37))
    for count in (1, 7, 15, 16, 33, 255, 4095, 4096, 4133):
        case = Case(raw[:, : count * size], source, target, measure=False)
        assert_as_defined(case, level)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@each("shape", [(1, 256), (3, 1792), (1, 4864), (2, 4096)], ids=str)
@each("target", [*SOME, "BF16", "F8_E4M3"])
@each("source", ["F32", "BF16", *SOME])
def test_rows_of_any_length_become_blocks_and_come_from_them(
    source: str, target: str, shape: tuple[int, int], level: int
) -> None:
    if source != target:
        assert_as_defined(Case(numbers_as(source, weights(*shape)), source, target), level)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@each("target", BLOCKS)
def test_every_block_type_is_made_and_measured(target: str, level: int) -> None:
    importance = required(target, weights(3, 1792), None)
    assert_as_defined(Case(numbers_as("BF16", weights(3, 1792)), "BF16", target, importance), level)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@each("shape", [(1, 4608), (5, 768), (7, 256), (2, 4096)], ids=str)
@each("source", ["F32", "BF16", "Q8_0"])
@each("target", ["Q4_0", "Q4_K", "Q6_K"])
def test_importance_weighs_whole_rows(
    source: str, target: str, shape: tuple[int, int], level: int
) -> None:
    importance = np.random.default_rng(3).gamma(0.5, 1, shape[1]).astype(np.float32)
    assert_as_defined(Case(numbers_as(source, weights(*shape)), source, target, importance), level)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@each("target", ["F16", "Q8_0", "Q4_K"])
@each("source", ["F32", "BF16"])
def test_parts_of_larger_arrays_are_transcoded(source: str, target: str, level: int) -> None:
    raw = numbers_as(source, weights(6, 2048))
    assert_as_defined(Case(raw[::2, : raw.shape[1] // 2], source, target), level)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@each("source, target", [("F32", "BF16"), ("F16", "F32"), ("F32", "Q8_0")])
def test_bytes_at_odd_addresses_are_transcoded(source: str, target: str, level: int) -> None:
    raw = numbers_as(source, weights(1, 4384))
    odd = np.empty(raw.size + 1, np.uint8)[1:].reshape(raw.shape)
    odd[...] = raw
    expected, _ = Case(raw, source, target).defined()
    out = np.empty(expected.size + 1, np.uint8)[1:].reshape(expected.shape)
    made, _ = Case(odd, source, target).compiled(level, out)
    assert made is out
    assert np.array_equal(made, expected)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@each("rows", ["1e-44", "1e-38", "1e-20", "1e10", "1e19", "1e38", "sparse"])
@each("target", ["BF16", "F16", "F8_E4M3"])
def test_numbers_of_any_size_are_measured(rows: str, target: str, level: int) -> None:
    numbers = ROWS[rows](np.random.default_rng(1))
    assert_as_defined(Case(numbers.view(np.uint8), "F32", target), level)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each("target", ["BF16", "Q8_0", "Q4_K"])
def test_sums_are_the_same_at_every_level(target: str) -> None:
    case = Case(weights(3, 1792).view(np.uint8), "F32", target)
    first, *others = [case.compiled(level)[1] for level in range(len(levels()))]
    assert all(other == first for other in others)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@measured_or_not
@each("target", ["Q8_0", "Q5_1", "Q4_K", "Q3_K"])
def test_what_is_not_finite_is_refused_or_becomes_zero(
    target: str, measure: bool, level: int
) -> None:
    rows = weights(3, 4096)
    rows[1, 700::900] = np.nan
    rows[2, 5] = -np.inf
    rows[0, 9] = 1e9  # too large as well, which only counts where all is finite
    case = Case(rows.view(np.uint8), "F32", target, measure=measure)
    for transcoded in (case.defined, lambda: case.compiled(level)):
        with pytest.raises(NonFiniteError, match="element 4796 is nan"):
            transcoded()
    rows[0, 9] = 0
    case = Case(rows.view(np.uint8), "F32", target, measure=measure, zero_nonfinite=True)
    assert_as_defined(case, level)
    _, loss = case.compiled(level)
    assert loss is not None
    assert loss.nonfinite == 5
    clean = np.where(np.isfinite(rows), rows, np.float32(0))
    expected, _ = Case(clean.view(np.uint8), "F32", target).defined()
    assert np.array_equal(case.compiled(level)[0], expected)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@measured_or_not
@each("zero_nonfinite", [False, True])
@each("target", ["Q8_0", "Q5_1", "Q4_K", "Q6_K"])
def test_the_greatest_of_what_overflows_a_scale_is_refused(
    target: str, zero_nonfinite: bool, measure: bool, level: int
) -> None:
    rows = weights(2, 8192)
    rows[0, 100], rows[1, 300], rows[1, 5000] = 1e9, -3e9, 3e9
    case = Case(rows.view(np.uint8), "F32", target, measure=measure, zero_nonfinite=zero_nonfinite)
    for transcoded in (case.defined, lambda: case.compiled(level)):
        with pytest.raises(NonFiniteError, match=r"is -3e\+09") as caught:
            transcoded()
        assert caught.value.index == 8192 + 300


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@measured_or_not
def test_plain_numbers_keep_what_is_not_finite(measure: bool, level: int) -> None:
    rows = weights(1, 5000)
    rows[0, ::300], rows[0, 7::300] = np.nan, np.inf
    raw = rows.view(np.uint8)
    case = Case(raw, "F32", "F16", measure=measure, zero_nonfinite=True)
    assert_as_defined(case, level)
    assert np.array_equal(np.isnan(case.compiled(level)[0].view(np.float16)), np.isnan(rows))


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each("target", ["F64", "F16", "Q8_0", "BF16"])
def test_the_result_is_where_it_is_asked_to_be(target: str) -> None:
    raw = numbers_as("BF16", weights(2, 512))
    expected = transcode(raw, ENCODINGS["BF16"], ENCODINGS[target]).raw
    out = np.full(expected.shape, 0xA5, np.uint8)
    assert transcode(raw, ENCODINGS["BF16"], ENCODINGS[target], out=out).raw is out
    assert np.array_equal(out, expected)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each("source", ["F64", "I16", "F8_E8M0", "IQ2_XS"])
def test_sources_without_a_kernel_are_encoded_by_one(source: str) -> None:
    generator = np.random.default_rng(4)
    kind = ENCODINGS[source]
    if kind.dtype is None:
        raw = generator.integers(0, 60, (2, 2 * kind.size), np.uint8)
    else:
        numbers = generator.integers(1, 90, (2, 512)).astype(np.float64)
        raw = convert(numbers.astype(np.int64), kind.dtype).view(np.uint8)
    expected, _ = Case(raw, source, "Q4_K").defined()
    assert np.array_equal(transcode(raw, kind, ENCODINGS["Q4_K"]).raw, expected)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each(
    "raw, columns, out",
    [(128, 32, 33), (130, 32, 34), (128, 16, 34), (128, 0, 34), (256, 64, 34), (0, -32, 0)],
)
def test_buffers_that_do_not_fit_together_are_refused(raw: int, columns: int, out: int) -> None:
    found = transcoder("F32", "Q8_0")
    assert found is not None
    with pytest.raises(ValueError, match="do not fit together"):
        found.transcode(
            bytes(raw), columns, None, bytearray(out),
            counts=True, measures=False, zero_nonfinite=False,
        )  # fmt: skip


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
def test_buffers_that_share_memory_are_refused() -> None:
    found = transcoder("F32", "BF16")
    assert found is not None
    memory = memoryview(bytearray(96))
    with pytest.raises(ValueError, match="do not fit together"):
        found.transcode(
            memory[:64], 16, None, memory[60:92],
            counts=True, measures=False, zero_nonfinite=False,
        )  # fmt: skip


# The kernels that multiply vectors with rows of blocks give what NumPy gives, at every level.


NAMES = [
    name for name, each in ENCODINGS.items()
    if can_decode(each) and row_multiplier(name) is not None
]  # fmt: skip
FIVE = 5


def blocks_of(name: str, columns: int) -> np.ndarray:
    """Return rows of blocks whose values are finite and not all zero."""
    kind = ENCODINGS[name]
    rng = np.random.default_rng(7)
    while True:
        made = rng.integers(0, 60, (FIVE, kind.row_bytes(columns)), np.uint8)
        values = decode_rows(made, kind, codec)
        if np.isfinite(values).all() and values.any():
            return made


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@each("name", NAMES)
@each("count", [1, 3, 21])
def test_products_are_those_with_decoded_values(name: str, count: int, level: int) -> None:
    # More values than are decoded at a time, and fewer; the same of vectors that are arranged.
    for columns in (1280, 256):
        blocks = blocks_of(name, columns)
        vectors = np.random.default_rng(1).standard_normal((count, columns), np.float32)
        held = decode_rows(blocks, ENCODINGS[name], codec).astype(np.float64)
        out = np.full((count, FIVE + 4), np.nan, np.float32)
        kernel = row_multiplier(name, level)
        assert kernel is not None
        kernel.multiply(blocks, columns, vectors, 2, out)
        expected = vectors.astype(np.float64) @ held.T
        close = 1e-5 * (np.abs(vectors.astype(np.float64)) @ np.abs(held).T).max()
        np.testing.assert_allclose(out[:, 2:-2], expected, rtol=0, atol=close)
        assert np.isnan(out[:, [0, 1, -2, -1]]).all()


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
def test_rows_of_any_width_are_multiplied(level: int) -> None:
    kernel = row_multiplier("F16", level)
    assert kernel is not None
    for columns, count in itertools.product((1, 17, 1029), (1, 7)):
        rows = np.random.default_rng(2).standard_normal((3, columns)).astype(np.float16)
        vectors = np.random.default_rng(3).standard_normal((count, columns), np.float32)
        out = np.empty((count, 3), np.float32)
        kernel.multiply(rows.view(np.uint8), columns, vectors, 0, out)
        np.testing.assert_allclose(out, vectors @ rows.astype(np.float32).T, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each_level
@each(
    "name, count",
    [("Q4_K", 530), *itertools.product(["Q4_K", "Q5_K", "Q6_K", "Q8_0"], [1, 2, 4, 5])],
)
def test_threads_share_the_rows(name: str, count: int, level: int) -> None:
    # More vectors and rows than are multiplied together, and more columns than are read at a time.
    columns, rows = 4352, 115
    values = np.random.default_rng(4).standard_normal((rows, columns), np.float32)
    blocks, _ = transcode(values.view(np.uint8), ENCODINGS["F32"], ENCODINGS[name])
    vectors = np.random.default_rng(5).standard_normal((count, columns), np.float32)
    held = decode_rows(blocks, ENCODINGS[name], codec)
    kernel = row_multiplier(name, level)
    assert kernel is not None
    for threads in (1, 3):
        out = np.empty((count, rows), np.float32)
        kernel.multiply(blocks, columns, vectors, 0, out, threads=threads)
        np.testing.assert_allclose(out, vectors @ held.T, rtol=0, atol=1e-3)


@pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")
@each(
    "columns, nbytes, vectors, first, outputs",
    [
        (33, 34, 33, 0, 1), (0, 34, 32, 0, 1), (32, 33, 32, 0, 1), (32, 34, 31, 0, 1),
        (32, 34, 32, 1, 1), (32, 34, 32, -1, 1), (32, 68, 32, 0, 1), (32, 34, 0, 0, 1),
    ],
)  # fmt: skip
def test_buffers_that_do_not_fit_are_refused(
    columns: int, nbytes: int, vectors: int, first: int, outputs: int
) -> None:
    kernel = row_multiplier("Q8_0")
    assert kernel is not None
    blocks, left = np.zeros(nbytes, np.uint8), np.zeros(vectors, np.float32)
    with pytest.raises(ValueError, match="do not fit together"):
        kernel.multiply(blocks, columns, left, first, np.zeros(outputs, np.float32))


# The kernel that multiplies with rows in bfloat16 rounds the vectors, and sums in float32.


# Fewer and more than a tile of vectors, a panel of rows, and the columns that are added at a time.
@pytest.mark.skipif(
    not multiplies_bf16(), reason="this processor does not multiply pairs of bfloat16"
)
@each("count, rows, columns", [(1, 1, 2), (7, 50, 34), (17, 97, 1540), (64, 48, 512)])
@each("threads", [1, 3])
def test_products_are_those_of_rounded_vectors(
    count: int, rows: int, columns: int, threads: int
) -> None:
    import torch

    raw = torch.Generator().manual_seed(1)
    vectors = torch.randn(count, columns, generator=raw)
    weights = torch.randn(rows, columns, generator=raw).bfloat16()
    out = np.full((count, rows), np.nan, np.float32)
    stored = weights.view(torch.uint8).numpy()
    multiply_bf16(stored, columns, vectors.numpy(), out, threads=threads)
    rounded, held = vectors.bfloat16().double(), weights.double()
    close = 1e-6 * float((rounded.abs() @ held.abs().T).max())
    np.testing.assert_allclose(out, (rounded @ held.T).numpy(), rtol=0, atol=close)


@pytest.mark.skipif(
    not multiplies_bf16(), reason="this processor does not multiply pairs of bfloat16"
)
def test_values_that_are_not_finite_stay_so() -> None:
    vectors = np.array([[1, np.nan], [1, -np.inf], [1, 3.4e38]], np.float32)
    out = np.empty((3, 1), np.float32)
    multiply_bf16(np.array([0x3F80, 0x3F80], np.uint16).view(np.uint8), 2, vectors, out)
    # The largest number of bfloat16 is 3.39e38.
    np.testing.assert_array_equal(out[:, 0], [np.nan, -np.inf, np.inf])


@pytest.mark.skipif(
    not multiplies_bf16(), reason="this processor does not multiply pairs of bfloat16"
)
@each(
    "columns, nbytes, vectors, outputs",
    [(3, 6, 3, 1), (0, 4, 2, 1), (2, 5, 2, 1), (2, 4, 3, 1), (2, 4, 2, 2), (2, 8, 2, 1)],
)
def test_buffers_of_other_sizes_are_refused(
    columns: int, nbytes: int, vectors: int, outputs: int
) -> None:
    rows, left = np.zeros(nbytes, np.uint8), np.zeros(vectors, np.float32)
    with pytest.raises(ValueError, match="do not fit together"):
        multiply_bf16(rows, columns, left, np.zeros(outputs, np.float32))
