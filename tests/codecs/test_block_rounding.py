"""The kernels that round blocks for serving engines give what NumPy gives, at every level."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pytest

from each import each
from weightctl.codecs import transcode
from weightctl.codecs.loss import sum_squares_and_error
from weightctl.dtype import ENCODINGS
from weightctl.kernels import active, block_rounder, levels, pair_packer
from weightctl.schemes.arrays import packing
from weightctl.schemes.arrays.peaks import find_magnitude
from weightctl.schemes.arrays.rounding import (
    Affine,
    Biased,
    Coded,
    Float8,
    Microscaled4,
    Microscaled8,
    RowScaled,
    Symmetric,
)
from weightctl.schemes.arrays.weight import round_in_one_pass
from weightctl.schemes.layout import Packing

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8
    from weightctl.schemes.arrays.rounding import Rounding

pytestmark = pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")

each_level = each("level", range(len(levels())), ids=levels())

WIDE = 1056
WIDTHS = (32, WIDE)
# With blocks that a row can end in the middle of.
ODD_WIDTHS = (1, 77, 1100)


class _Makes(Protocol):
    def __call__(self, width: int, /) -> Rounding: ...


@dataclass(frozen=True)
class Case:
    """A rounding of rows of any width, and which widths it rounds."""

    make: _Makes
    widths: tuple[int, ...] = WIDTHS


NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
CASES = {
    "FP8": Case(lambda _: Float8(0, 0, "BF16"), WIDTHS + ODD_WIDTHS),
    "FP8_DYNAMIC": Case(lambda width: Float8(1, width, "F16"), WIDTHS + ODD_WIDTHS),
    "FP8_BLOCK": Case(lambda _: Float8(128, 128, "F32"), WIDTHS + ODD_WIDTHS),
    "MXFP8": Case(lambda _: Microscaled8(32)),
    "MXFP4": Case(lambda _: Microscaled4(32)),
    "NVFP4": Case(lambda _: Microscaled4(16, is_nvidia=True)),
    "INT8": Case(lambda _: RowScaled(), WIDTHS + ODD_WIDTHS),
    "NF4": Case(lambda _: Coded(NF4), WIDTHS + ODD_WIDTHS),
    "W4A16": Case(lambda _: Symmetric(4, 32, "BF16")),
    "W8A16": Case(lambda _: Symmetric(8, 32, "F16")),
    "AWQ": Case(lambda _: Affine(4, 32, "F16")),
    "W8A16:asym": Case(lambda _: Affine(8, 32, "F32")),
    "MLX-4bit": Case(lambda _: Biased(4, 32, "BF16")),
    "MLX-8bit": Case(lambda _: Biased(8, 32, "F16")),
}
each_case = each("case", CASES)


@cache
def tiles(width: int) -> dict[str, F32]:
    """Return rows of all kinds: ordinary, degenerate, in the middle between codes, of any size."""
    generator = np.random.default_rng(width)
    usual = generator.standard_normal((130, width), np.float32)
    rows = {
        "usual": usual * np.float32(0.02),
        "outliers": usual * np.where(generator.random(usual.shape) < 0.01, 99, 1),
        "zeros": np.zeros_like(usual),
        "negative zeros": usual * 0,
        "some zeros": np.where(np.arange(130)[:, None] % 3 == 0, 0, usual),
        "sparse": np.where(generator.random(usual.shape) < 0.02, usual, 0),
        "subnormal": usual * np.float32(1e-41),
        "tiny": usual * np.float32(1e-37),
        "large": usual * np.float32(1e6),
        "huge": usual * np.float32(6e37),
        "positive": np.abs(usual),
        "negative": -np.abs(usual),
        "halves": np.rint(usual * 4) / 4,
        "steps": np.rint(usual * 40),
        "of any size": usual * 10.0 ** generator.uniform(-42, 37, usual.shape),
    }
    return {name: made.astype(np.float32) for name, made in rows.items()}


def stored(values: F32, name: str) -> U8:
    raw = values.view(np.uint8)
    return raw if name == "F32" else transcode(raw, ENCODINGS["F32"], ENCODINGS[name]).raw


def assert_as_in_numpy(rounding: Rounding, values: F32, level: int, source: str = "F32") -> None:
    """Assert the same bytes and errors; a value that is not held is left to NumPy."""
    peak = np.abs(values).max()
    raw = stored(values, source)
    with np.errstate(all="ignore"):
        made = rounding.round(values, peak)
        held = rounding.restore(made, peak)
        sums = sum_squares_and_error(values.reshape(-1), held.reshape(-1))
        found = round_in_one_pass(
            rounding, raw, values.shape[1], ENCODINGS[source], peak, level=level
        )
    assert (found is None) == (not np.isfinite(sums[1]))
    if found is None:
        return
    np.testing.assert_array_equal(found.codes.codes, made.codes)
    np.testing.assert_array_equal(found.codes.scales, made.scales)
    np.testing.assert_array_equal(found.codes.offsets, made.offsets)
    assert found.sums == pytest.approx(sums, rel=1e-6, abs=0)


@each_level
@each_case
def test_tiles_of_all_kinds_are_rounded_as_in_numpy(case: str, level: int) -> None:
    # Only blocks of 128 rows need so many.
    count = 130 if case == "FP8_BLOCK" else 33
    for width in CASES[case].widths:
        for values in tiles(width).values():
            assert_as_in_numpy(CASES[case].make(width), values[:count], level)


@each_level
@each_case
@each("source", ["BF16", "F16", "Q8_0"])
def test_tiles_are_read_as_they_are_stored(case: str, source: str, level: int) -> None:
    raw = stored(tiles(WIDE)["usual"], source)
    numbers = transcode(raw, ENCODINGS[source], ENCODINGS["F32"]).raw.view(np.float32)
    values = numbers.reshape(130, -1)
    assert np.array_equal(stored(values, source), raw)
    assert_as_in_numpy(CASES[case].make(WIDE), values, level, source)


@each_case
def test_the_sums_are_the_same_at_every_level(case: str) -> None:
    values = tiles(WIDE)["usual"]
    rounding, encoded = CASES[case].make(WIDE), ENCODINGS["F32"]
    raw, peak = values.view(np.uint8), np.abs(values).max()
    first, *others = [
        round_in_one_pass(rounding, raw, WIDE, encoded, peak, level=level)
        for level in range(len(levels()))
    ]
    assert first is not None
    assert all(other is not None and other.sums == first.sums for other in others)


@each_level
@each_case
@each("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_is_left_to_numpy(case: str, value: float, level: int) -> None:
    for place in (0, 223, 224 * 129 + 100):
        values = tiles(224)["usual"].copy()
        values.reshape(-1)[place] = value
        rounding, peak = CASES[case].make(224), np.float32(1)
        with np.errstate(all="ignore"):
            found = round_in_one_pass(
                rounding, values.view(np.uint8), 224, ENCODINGS["F32"], peak, level=level
            )
        assert found is None


@each("source", ["F32", "BF16", "F16"])
@each("count", [1, 31, 4096, 5001])
def test_the_largest_magnitude_is_found_if_all_are_finite(source: str, count: int) -> None:
    values = np.arange(count, dtype=np.float32) % 199 - 150
    raw = stored(values[None], source)
    assert find_magnitude(raw.reshape(-1), ENCODINGS[source]) == np.abs(values).max()
    values[count // 2] = np.nan
    assert find_magnitude(stored(values[None], source).reshape(-1), ENCODINGS[source]) is None


@each_level
def test_the_extremes_of_blocks_of_any_size_are_found(level: int) -> None:
    rounder = block_rounder("F32", level)
    assert rounder is not None
    for width, size in ((WIDE, 16), (WIDE, 12), (2112, 64), (77, 8), (9000, 4500), (5001, 4500)):
        values = tiles(width)["usual"][:40]
        low, high, most = np.empty((3, 40, -(-width // size)), np.float32)
        rounder.reduce(values, width, size, low, high)
        rounder.reduce(values, width, size, None, most)
        starts = range(0, width, size)
        np.testing.assert_array_equal(low, np.minimum.reduceat(values, starts, axis=1))
        np.testing.assert_array_equal(high, np.maximum.reduceat(values, starts, axis=1))
        np.testing.assert_array_equal(most, np.maximum.reduceat(np.abs(values), starts, axis=1))


@each_level
@each("high_first", [False, True])
@each("count", [0, 2, 30, 64, 4098])
def test_pairs_of_codes_are_packed(count: int, high_first: bool, level: int) -> None:
    codes = np.random.default_rng(0).integers(0, 16, count, np.uint8)
    packer, packed = pair_packer(level), np.empty(count // 2, np.uint8)
    assert packer is not None
    packer.pack(codes, high_first=high_first, out=packed)
    low, high = (codes[1::2], codes[::2]) if high_first else (codes[::2], codes[1::2])
    np.testing.assert_array_equal(packed, low | high << np.uint8(4))


@each("shape", [(8, 1), (16, 77), (136, 33), (512, 40), (0, 3)])
def test_words_of_codes_become_rows_as_in_numpy(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = np.random.default_rng(0).integers(0, 16, shape, np.uint8)
    ways = Packing(4, 32, order=(0, 2, 4, 6, 1, 3, 5, 7)), Packing(4, 32, axis=0)
    found = [packing.pack_table(codes, way, transposed=True) for way in ways]
    monkeypatch.setattr(packing, "pair_packer", lambda: None)
    wanted = [packing.pack_table(codes, way, transposed=True) for way in ways]
    for made, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(made, other)


def test_words_that_do_not_fit_are_refused() -> None:
    packer = pair_packer()
    assert packer is not None
    for words, columns, out in ((64, 3, 64), (64, 4, 60), (64, 0, 64), (62, 1, 62)):
        with pytest.raises(ValueError, match="do not fit together"):
            packer.transpose_words(bytes(words), columns, bytearray(out))
    for codes, columns, order, out in (
        (64, 8, bytes(7), 32), (64, 8, bytes([8] * 8), 32), (64, 7, bytes(8), 32),
        (64, 8, bytes(8), 28), (64, 0, bytes(8), 32),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="do not fit together"):
            packer.pack_row_groups(bytes(codes), columns, order, bytearray(out))


@each(
    "raw, columns, size, kind, scales, offsets, out",
    [
        (128, 32, 32, "E4M3", 8, None, 32),
        (128, 32, 16, "E4M3", 4, None, 32),
        (128, 32, 32, "E4M3", 4, None, 31),
        (126, 32, 32, "E4M3", 4, None, 32),
        (128, 24, 24, "E4M3", 4, None, 32),
        (128, 0, 32, "E4M3", 4, None, 32),
        (128, 32, 0, "E4M3", 4, None, 32),
        (128, 32, 33, "E4M3", 4, None, 32),
        (128, 32, 32, "E4M3", 4, 4, 32),
        (128, 32, 32, "zeros", 4, None, 32),
        (128, 32, 32, "zeros", 4, 8, 32),
        (128, 32, 32, "table", 4, 4, 32),
        (128, 32, 32, "table", 4, None, 32),
    ],
)
def test_tables_that_do_not_fit_together_are_refused(
    raw: int, columns: int, size: int, kind: str, scales: int, offsets: int | None, out: int
) -> None:
    rounder = block_rounder("F32")
    assert rounder is not None
    with pytest.raises(ValueError, match="do not fit together"):
        rounder.round(
            bytes(raw), columns, size, kind=kind, scales=bytes(scales),
            offsets=None if offsets is None else bytes(offsets), most=15, out=bytearray(out),
        )  # fmt: skip


def test_extremes_and_pairs_that_do_not_fit_are_refused() -> None:
    rounder, packer = block_rounder("F32"), pair_packer()
    assert rounder is not None
    assert packer is not None
    for low, high in ((None, 4), (8, 4), (4, 8)):
        low_table = None if low is None else bytearray(low)
        with pytest.raises(ValueError, match="do not fit together"):
            rounder.reduce(bytes(256), 32, 32, low_table, bytearray(high))
    with pytest.raises(ValueError, match="do not fit together"):
        packer.pack(bytes(8), high_first=False, out=bytearray(3))
    with pytest.raises(KeyError, match="E5M7"):
        rounder.round(
            bytes(128), 32, 32, kind="E5M7", scales=bytes(4), offsets=None, most=0,
            out=bytearray(32),
        )  # fmt: skip
