"""The definition of each encoding gives the bytes of ggml, and decodes as the gguf package does."""

from __future__ import annotations

import os
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from each import each, usual
from llama_cpp import ggml_needs_importance, ggml_quantize
from rows import (
    BLOCKS,
    COLUMNS,
    GRIDS,
    IMPORTANCE,
    ROWS,
    decoded,
    encoded,
    example,
    normal,
    required,
    twins,
)
from weightctl import open_weights
from weightctl.codecs import codebook, definition
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.random import Generator
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8


# With larger numbers the sums of ggml's searches overflow, and it ends the process. weightctl
# refuses them.
LARGEST_IN_GRIDS = 2.0**28
# When ggml first encodes one of these types in a process, it makes tables for up to ten seconds.
# Otherwise than in the long tests, their bytes are compared with digests of ggml's.
SLOW = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"]
# Not with kernels for arm64 or with sanitizers, which are in the interpreter then.
HAS_GGML = find_spec("xllamacpp") is not None and "libasan" not in os.environ.get("LD_PRELOAD", "")
QUICK = [encoding for encoding in BLOCKS if encoding not in SLOW]
SOME_ROWS = [
    "normal", "outlier", "zeros", "both-zeros", "constant", "near-one", "sparse", "halves",
    "sizes", "huge-block-sizes", "1e-40", "1e-8",
]  # fmt: skip
SOME_IMPORTANCE = ["none", "gamma", "some-zero"]


def has_zeros_first(rows: F32) -> NDArray[np.bool_]:
    """Return which blocks have a sub-block of zeros before one that has other numbers.

    ggml stores the levels and signs of sub-blocks of IQ3_S after one of zeros in the wrong place
    (`weightctl/codecs/signed_grids.py`).
    """
    some: NDArray[np.bool_] = rows.reshape(-1, 8, 32).any(axis=2)
    return (~some[:, :-1] & (np.cumsum(some[:, ::-1], axis=1)[:, ::-1] > 0)[:, 1:]).any(axis=1)


def assert_as_ggml(encoding: str, rows: F32, importance: F32 | None) -> None:
    ours = encoded(definition(ENCODINGS[encoding]), encoding, rows, importance)
    assert_those_of_ggml(ours, encoding, rows, importance)


def assert_those_of_ggml(
    ours: U8, encoding: str, rows: F32, importance: F32 | None, about: str = ""
) -> None:
    """Compare the blocks whose scales did not overflow in ggml."""
    kind = ENCODINGS[encoding]
    codec = definition(kind)
    if encoding in GRIDS and np.abs(rows).max() > LARGEST_IN_GRIDS:
        return
    theirs = ggml_quantize(encoding, rows, required(encoding, rows, importance))
    held = decoded(codec, encoding, theirs).reshape(-1, kind.block)
    finite = np.isfinite(held).all(axis=1)
    if encoding == "MXFP4":
        # Of such blocks ggml makes undefined exponents (`weightctl/codecs/e2m1.py`).
        peak = np.abs(rows).reshape(-1, kind.block).max(axis=1)
        finite &= (peak == 0) | (peak >= 2.0**-125)
    if encoding == "IQ3_S":
        finite &= ~has_zeros_first(rows)
    np.testing.assert_array_equal(
        ours.reshape(-1, kind.size)[finite], theirs.reshape(-1, kind.size)[finite], about
    )


def assert_kernels_give(
    expected: U8, encoding: str, rows: F32, importance: F32 | None, about: str = ""
) -> None:
    (_, plain), *compiled = twins(encoding)
    numbers = decoded(plain, encoding, expected)
    for name, codec in compiled:
        ours = encoded(codec, encoding, rows, importance)
        np.testing.assert_array_equal(ours, expected, f"{name} {about}")
        held = decoded(codec, encoding, ours)
        np.testing.assert_array_equal(held.view(np.uint32), numbers.view(np.uint32), name)


@cache
def small_examples(importance: str) -> tuple[F32, F32 | None]:
    """Return two rows of each of some kinds, under each other, and the importance of columns."""
    made = [example(rows, importance) for rows in SOME_ROWS]
    weights = made[0][1]
    return (
        np.concatenate([rows[:2, :512] for rows, _ in made]),
        None if weights is None else weights[:512],
    )


@each("encoding", BLOCKS)
@each("importance", SOME_IMPORTANCE)
def test_every_level_encodes_alike_and_as_ggml_does(encoding: str, importance: str) -> None:
    rows, weights = small_examples(importance)
    ours = encoded(definition(ENCODINGS[encoding]), encoding, rows, weights)
    assert_kernels_give(ours, encoding, rows, weights)
    if encoding in QUICK and HAS_GGML:
        small = np.abs(rows).max(axis=1) <= (LARGEST_IN_GRIDS if encoding in GRIDS else np.inf)
        assert_those_of_ggml(ours[small], encoding, rows[small], weights)


@pytest.mark.long
@pytest.mark.parametrize("encoding", BLOCKS)
@each("rows", ROWS)
def test_encoding_gives_the_bytes_of_ggml_for_rows_of_every_kind(encoding: str, rows: str) -> None:
    # Each other kind of importance, in turn.
    first = [*ROWS].index(rows) % 2
    for name in {"none", *[*IMPORTANCE][first::2]}:
        numbers, importance = example(rows, name)
        ours = encoded(definition(ENCODINGS[encoding]), encoding, numbers, importance)
        assert_kernels_give(ours, encoding, numbers, importance, name)
        assert_those_of_ggml(ours, encoding, numbers, importance, name)


@cache
def sparse_rows() -> tuple[F32, F32]:
    rng = np.random.default_rng(28)
    rows = rng.standard_normal((512, 16 * 256), np.float32)
    rows[rng.random(rows.shape, np.float32) > 0.02] = 0
    return rows, (10 ** rng.uniform(-12, 12, 16 * 256)).astype(np.float32)


def assert_many_blocks_are_those_of_ggml(encoding: str, count: int) -> None:
    rng = np.random.default_rng(21)
    rows = rng.standard_normal((count, 2048), np.float32)
    for importance in (None, rng.gamma(0.5, 1, 2048).astype(np.float32)):
        ours = encoded(definition(ENCODINGS[encoding]), encoding, rows, importance)
        assert_kernels_give(ours, encoding, rows, importance)
        assert_those_of_ggml(ours, encoding, rows, importance)
    # In three of 512 rows in Q4_K, the last of five passes over the sub-blocks' scales counts.
    rows, importance = sparse_rows()
    assert_as_ggml(encoding, rows[[13, 130, 178, *range(count // 16)]], importance)


def assert_rows_of_any_length_are_those_of_ggml(encoding: str) -> None:
    for shape in ((1, 256), (3, 256), (2, 16 * 1024 + 256)):
        rng = np.random.default_rng(22)
        for importance in (None, rng.gamma(0.5, 1, shape[1]).astype(np.float32)):
            rows = rng.standard_normal(shape).astype(np.float32)
            assert_as_ggml(encoding, rows, importance)


@each("encoding", QUICK)
def test_many_blocks_have_the_bytes_of_ggml(encoding: str) -> None:
    assert_many_blocks_are_those_of_ggml(encoding, 24)


@each("encoding", usual(QUICK[::3], QUICK))
def test_rows_of_any_length_have_the_bytes_of_ggml(encoding: str) -> None:
    assert_rows_of_any_length_are_those_of_ggml(encoding)


@pytest.mark.long
@pytest.mark.parametrize("encoding", BLOCKS)
def test_thousands_of_blocks_and_rows_of_any_length_have_the_bytes_of_ggml(encoding: str) -> None:
    assert_many_blocks_are_those_of_ggml(encoding, 16 if encoding in GRIDS else 256)
    assert_rows_of_any_length_are_those_of_ggml(encoding)


finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
any_rows = arrays(np.float32, (2, 256), elements=finite_floats)
any_importance = st.none() | arrays(np.float32, 256, elements=st.floats(0, 1e6, width=32))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(QUICK), any_rows, any_importance)
def test_any_finite_numbers_have_the_bytes_of_ggml(
    encoding: str, rows: F32, importance: F32 | None
) -> None:
    assert_as_ggml(encoding, rows, importance)


@pytest.mark.long
@pytest.mark.parametrize("encoding", BLOCKS)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(any_rows, any_importance)
def test_any_finite_numbers_have_the_bytes_of_ggml_in_every_encoding(
    encoding: str, rows: F32, importance: F32 | None
) -> None:
    if encoding in GRIDS:
        rows = np.clip(rows, -LARGEST_IN_GRIDS, LARGEST_IN_GRIDS)
    assert_as_ggml(encoding, rows, importance)


@each("encoding", BLOCKS)
def test_the_types_that_need_importance_are_those_of_ggml(encoding: str) -> None:
    assert ENCODINGS[encoding].needs_importance == ggml_needs_importance(encoding)


@pytest.mark.long
@pytest.mark.real
@pytest.mark.parametrize("encoding", GRIDS)
@each("weighted", [False, True])
def test_real_weights_have_the_bytes_of_ggml(smollm2: Path, encoding: str, weighted: bool) -> None:
    weights = open_weights(smollm2).blk[12].ffn_down.weight.data().astype("float32")
    rows = np.asarray(weights)[:16]
    importance = np.square(np.random.default_rng(5).standard_normal(1536)).astype(np.float32)
    assert_as_ggml(encoding, rows, importance if weighted else None)


def test_zeros_do_not_displace_what_follows_in_iq3_s() -> None:
    rows = np.random.default_rng(29).standard_normal((4, 256), np.float32)
    rows[:, :32] = 0
    codec = definition(ENCODINGS["IQ3_S"])
    ours = decoded(codec, "IQ3_S", encoded(codec, "IQ3_S", rows))
    theirs = decoded(codec, "IQ3_S", ggml_quantize("IQ3_S", rows, None))
    assert np.square(ours - rows).sum() < 0.03 * np.square(rows).sum()
    assert np.square(theirs - rows).sum() > np.square(rows).sum()


# The gguf package does not decode the others.
KNOWN = [name for name in BLOCKS if name not in {"Q1_0", "Q2_0"}]


def assert_decodes_as_gguf(encoding: str, blocks: U8) -> None:
    with np.errstate(all="ignore"):
        theirs = dequantize(blocks, GGMLQuantizationType[encoding])
    held = np.isfinite(theirs)
    ours = decoded(definition(ENCODINGS[encoding]), encoding, blocks)
    np.testing.assert_array_equal(ours.view(np.uint32)[held], theirs.view(np.uint32)[held])
    assert not np.isfinite(ours[~held]).any()


@each("encoding", KNOWN)
@each("rows", ["normal", "negative", "1e-8", "both-zeros"])
def test_encoded_blocks_decode_as_in_the_gguf_package(encoding: str, rows: str) -> None:
    numbers = ROWS[rows](np.random.default_rng(24))
    codec = definition(ENCODINGS[encoding])
    assert_decodes_as_gguf(encoding, encoded(codec, encoding, numbers, None))


@each("encoding", KNOWN)
def test_any_blocks_decode_as_in_the_gguf_package(encoding: str) -> None:
    rng = np.random.default_rng(25)
    assert_decodes_as_gguf(
        encoding, rng.integers(0, 256, (40, 120 * ENCODINGS[encoding].size), np.uint8)
    )


# Encoded bytes, pinned where ggml is not at hand to compare with.


def integers(count: int, state: int) -> NDArray[np.int64]:
    """Return 16-bit integers from -2**15: a linear congruential generator's upper halves."""
    drawn: list[int] = []
    for _ in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        drawn.append((state >> 16) - 2**15)
    return np.array(drawn, np.int64)


@cache
def golden_rows() -> F32:
    """Sums of four draws, each 32 of them scaled by another power of two; some zeros; (8, 1024)."""
    bell = integers(4 * 8 * 1024, 1).reshape(4, 8, 32, 32).sum(axis=0)
    powers = integers(8 * 32, 2).reshape(8, 32, 1) % 9 - 24
    numbers: F32 = np.ldexp(bell.astype(np.float32), powers).reshape(8, 1024)
    numbers[3, 256:320] = 0
    return numbers


@cache
def golden_importance() -> F32:
    """One weight per column, above 0 and at most 1; (1024,)."""
    return ((integers(1024, 3) + 2**15 + 1) / np.float64(2**16)).astype(np.float32)


# Without importance, where a type can do without, and with it.
DIGESTS = {
    "Q8_0": ("0c6a78b78469597b78ccff19", "0c6a78b78469597b78ccff19"),
    "Q4_0": ("61293c7f67281812e70b42b2", "1972fcfd20c6382baa4461d7"),
    "Q4_1": ("72a594534dccfb5d388dcb46", "5087701c9229f05e93015e97"),
    "Q5_0": ("5528b4b35c005ab86900e5b1", "7da99b583aaa4f33b47abc39"),
    "Q5_1": ("a8efc4ee204cc79d69ad18d7", "1b4b0707b1ff9e5885bc786e"),
    "Q2_K": ("c5c6774b994c8d26fac4021f", "26897eacfabee051fe51478d"),
    "Q3_K": ("aaf6def3ccefe1617f56f000", "5bc1e5db43a593bfc33ba444"),
    "Q4_K": ("2be7a711612665cc78b4ac9d", "0c5a7469caca1dce1db455f0"),
    "Q5_K": ("509bdbb03563906b6f009f3a", "d6fdc613cb55bc3df8dcb978"),
    "Q6_K": ("d91e1196f1679db81331205b", "bbcb59ea74a885a616d27117"),
    "Q1_0": ("e9008c734e17331966ab2ff4", "e9008c734e17331966ab2ff4"),
    "Q2_0": ("759465ed1696f9ff0d569ddb", "759465ed1696f9ff0d569ddb"),
    "IQ1_S": ("", "665282fc21ef9c312d009fcd"),
    "IQ1_M": ("ab5704f9499ac6ca623e50a6", "a85825d8f7261a70ba08207f"),
    "IQ2_XXS": ("", "8cf2e64d9d1aacab1e3abc6f"),
    "IQ2_XS": ("", "b4d2ebde2b832ff0389dc960"),
    "IQ2_S": ("f20ca046c98ad701cd418905", "f4bb5a53f4c0e699e779a3ed"),
    "IQ3_XXS": ("e890d3feacb84af6a41e58bf", "37217ff11fd4543b95de214f"),
    "IQ3_S": ("727236fa33e45cfbb0413db8", "fa743526872f029d18a9f90b"),
    "IQ4_NL": ("fbf2563b44e229ef9d65d95c", "1f576c010319d39202a5ee42"),
    "IQ4_XS": ("aac06fa8554911e9b61a74fe", "beecef4097349512733642e5"),
    "TQ1_0": ("382a0dd0336a47a4ee4ef2e3", "382a0dd0336a47a4ee4ef2e3"),
    "TQ2_0": ("81e1bdb6c46cb02466d5c4c5", "81e1bdb6c46cb02466d5c4c5"),
    "MXFP4": ("ff6bea3a299cac9d370aba4f", "ff6bea3a299cac9d370aba4f"),
    "NVFP4": ("4c56fd171bfac58fc46d1772", "4c56fd171bfac58fc46d1772"),
}


# The first digits of the digest of each of `uneven_rows`.
UNEVEN = {
    ("IQ1_S", True): (
        "dc8dd1cb 18a83fa9 350cadad 6d9c54de b70fe99c 918e8a27 ea4c4780 6d9c54de 411ce592"
    ),
    ("IQ1_M", False): (
        "a8164a0f 79be81e9 61aeef24 6eb69e26 68c2d910 2cbceca4 6eb69e26 6eb69e26 8f02e56d"
    ),
    ("IQ1_M", True): (
        "5a0a46e2 88737cd9 5358f005 6eb69e26 9e49dd41 669c90d1 6eb69e26 6eb69e26 2214579f"
    ),
    ("IQ2_XXS", True): (
        "ecc100b9 31bc7cba 935fa4ab 44b8aa4d a9a262c2 78a1f951 eb5d5747 44b8aa4d 92a5c01c"
    ),
    ("IQ2_XS", True): (
        "df8a9c2b 070e8c68 a639fe30 250f52cb 86ddcca3 97098a89 da5f3900 250f52cb 3c0fd5bf"
    ),
    ("IQ2_S", False): (
        "aefa1240 7f6ef786 c838ecb0 7b4499c3 bf726fd6 8fe95ac4 d7341396 7b4499c3 411d62cf"
    ),
    ("IQ2_S", True): (
        "57b251ef c7fe2909 b6df7938 7b4499c3 e656083f 8fe95ac4 460b59e2 7b4499c3 9724e96c"
    ),
}


@each("encoding", DIGESTS)
def test_encoding_gives_the_bytes_ggml_gave(encoding: str) -> None:
    for digest, importance in zip(DIGESTS[encoding], (None, golden_importance()), strict=True):
        for name, codec in twins(encoding) if digest else ():
            blocks = encoded(codec, encoding, golden_rows(), importance)
            assert sha256(blocks.tobytes()).hexdigest().startswith(digest), name


@cache
def uneven_rows() -> dict[str, F32]:
    """Return small rows of other kinds, which are exact on every machine too."""
    usual = golden_rows()[:2, :512]
    outliers, alone, zeros = usual.copy(), np.zeros_like(usual), usual.copy()
    outliers[:, 3::256] *= 1024
    alone[:, 7::64] = usual[:, 7::64]
    zeros[:, 100:300] = 0
    return {
        "outliers": outliers,
        "alone": alone,
        "some zeros": zeros,
        "zeros": np.zeros_like(usual),
        "negative": -np.abs(usual),
        "constant": np.full_like(usual, 0.375),
        "tiny": usual * np.float32(2.0**-24),
        "subnormal": usual * np.float32(2.0**-130),
        "large": usual * np.float32(2.0**18),
    }


@each("encoding, weighted", UNEVEN)
def test_encoding_of_uneven_rows_gives_the_bytes_ggml_gave(encoding: str, weighted: bool) -> None:
    importance = golden_importance()[:512] if weighted else None
    for name, codec in twins(encoding):
        blocks = [encoded(codec, encoding, rows, importance) for rows in uneven_rows().values()]
        found = dict(
            zip(uneven_rows(), (sha256(one).hexdigest()[:8] for one in blocks), strict=True)
        )
        assert " ".join(found.values()) == UNEVEN[encoding, weighted], (name, found)


@pytest.mark.long
@pytest.mark.parametrize(("encoding", "weighted"), UNEVEN)
def test_the_digests_of_uneven_rows_are_those_of_ggml(encoding: str, weighted: bool) -> None:
    importance = golden_importance()[:512] if weighted else None
    found = [ggml_quantize(encoding, rows, importance) for rows in uneven_rows().values()]
    digests = " ".join(sha256(blocks).hexdigest()[:8] for blocks in found)
    assert digests == UNEVEN[encoding, weighted]


@each("encoding", DIGESTS)
def test_blocks_have_the_size_that_the_table_says(encoding: str) -> None:
    codec: Any = definition(ENCODINGS[encoding])
    assert codec.block_dtype.itemsize == ENCODINGS[encoding].size


# Numbers in 4 bits at the limits of their encodings, and midway between two levels.


def test_mxfp4_of_numbers_too_small_for_its_exponents_has_the_least_exponent() -> None:
    # ggml writes exponents such as 255 here, which means NaN to others.
    rows = np.full((1, 32), 2.0**-126, np.float32)
    rows[0, 16:] = -(2.0**-140)
    for name, codec in twins("MXFP4"):
        blocks = encoded(codec, "MXFP4", rows)
        assert blocks[0, 0] == 0, name
        expected = np.where(rows > 0, rows, 0)
        np.testing.assert_array_equal(decoded(codec, "MXFP4", blocks), expected, name)


@each("power", [-124, -63, -3, -1, 0, 1, 2, 7, 64, 65, 127])
def test_mxfp4_just_below_a_power_of_two_has_the_exponent_of_ggml(power: int) -> None:
    peaks = np.ldexp(1 - np.arange(1, 101) * 2.0**-24, power).astype(np.float32)
    rows = np.zeros((100, 32), np.float32)
    rows[:, 5] = peaks
    rows[:, 20] = -0.7 * peaks
    theirs = ggml_quantize("MXFP4", rows, None)
    for name, codec in twins("MXFP4"):
        np.testing.assert_array_equal(encoded(codec, "MXFP4", rows), theirs, name)


def test_nvfp4_has_the_scales_of_ggml_for_every_size_of_numbers() -> None:
    peaks = np.geomspace(1e-4, 4e3, 16384).astype(np.float32)
    rows = np.zeros((64, 4096), np.float32)
    rows[:, 3::16] = peaks.reshape(64, 256)
    rows[:, 11::16] = peaks.reshape(64, 256) * np.float32(-0.3)
    theirs = ggml_quantize("NVFP4", rows, None)
    for name, codec in twins("NVFP4"):
        np.testing.assert_array_equal(encoded(codec, "NVFP4", rows), theirs, name)


@each("encoding", ["IQ4_NL", "IQ4_XS"])
def test_numbers_at_a_midpoint_of_uneven_levels_go_where_ggml_puts_them(encoding: str) -> None:
    # With a peak of 127 the first trial's scale is 1.
    middles = np.array([-115.5, -93.5, -74, -57, -42, -28.5, -16, -4.5, 7, 19, 31.5, 45.5, 61, 79])
    rows = np.zeros((64, 256), np.float32)
    draws = np.random.default_rng(33).choice(middles, rows.shape).astype(np.float32)
    rows[:] = np.nextafter(draws, draws + np.array([-1, 0, 1, 0] * 64, np.float32))
    rows[:, ::32] = 127
    theirs = ggml_quantize(encoding, rows, None)
    for name, codec in twins(encoding):
        np.testing.assert_array_equal(encoded(codec, encoding, rows), theirs, name)


def test_a_midpoint_of_uneven_levels_belongs_to_the_upper_one() -> None:
    assert [*codebook._find_nearest(codebook._MIDPOINTS)] == [*range(1, 16)]


# Sub-blocks whose numbers lie so close together that the search divides by almost nothing.


WITH_MINS = ["Q2_K", "Q4_K", "Q5_K"]


def neighbors(rng: Generator) -> F32:
    """Sub-blocks of two floats next to each other, of all sizes that no scale overflows at."""
    size = 10 ** rng.uniform(-45, 4, (16, 128, 1)) * rng.choice([-1, 1], (16, 128, 1))
    one = size.astype(np.float32)
    either = np.where(rng.random((16, 128, 32)) < 0.5, one, np.nextafter(one, 2 * one))
    return either.astype(np.float32).reshape(16, 4096)


def with_zeros(rng: Generator) -> F32:
    rows = neighbors(rng)
    return np.where(rng.random(rows.shape) < 0.03, np.float32(0), rows)


@each("encoding", WITH_MINS)
@each("make", [neighbors, with_zeros])
@each("weighted", [False, True])
def test_ranges_of_one_unit_have_the_bytes_of_ggml(
    encoding: str, make: Callable[[Generator], F32], weighted: bool
) -> None:
    rng = np.random.default_rng(40)
    rows = make(rng)
    importance = (10 ** rng.uniform(-12, 12, 4096)).astype(np.float32) if weighted else None
    theirs = ggml_quantize(encoding, rows, importance)
    for name, codec in twins(encoding):
        np.testing.assert_array_equal(encoded(codec, encoding, rows, importance), theirs, name)


# The kernels of every instruction set give the bytes of the definition in NumPy.


@each("encoding", BLOCKS)
def test_any_bytes_decode_to_the_same_numbers(encoding: str) -> None:
    rng = np.random.default_rng(32)
    blocks = rng.integers(0, 256, (40, 120 * ENCODINGS[encoding].size), np.uint8)
    (_, plain), *compiled = twins(encoding)
    expected = decoded(plain, encoding, blocks)
    for name, codec in compiled:
        ours = decoded(codec, encoding, blocks)
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(expected), name)
        held = ~np.isnan(ours)
        np.testing.assert_array_equal(ours.view("u4")[held], expected.view("u4")[held], name)


@each("encoding", BLOCKS)
def test_any_number_of_blocks_is_decoded(encoding: str) -> None:
    rng = np.random.default_rng(30)
    size = ENCODINGS[encoding].size
    blocks = rng.integers(0, 256, (1, 40 * size), np.uint8)
    whole = decoded(definition(ENCODINGS[encoding]), encoding, blocks)
    for name, codec in twins(encoding):
        for count in range(1, 40):
            some = decoded(codec, encoding, blocks[:, : count * size])
            expected = whole[:, : some.shape[1]]
            np.testing.assert_array_equal(some, expected, err_msg=f"{name}, {count} blocks")


@each("encoding", BLOCKS)
def test_any_number_of_blocks_is_encoded(encoding: str) -> None:
    rng = np.random.default_rng(31)
    kind = ENCODINGS[encoding]
    rows = rng.standard_normal((1, 40 * kind.block), np.float32)
    whole = encoded(definition(kind), encoding, rows, None)
    for name, codec in twins(encoding):
        for count in (*range(1, 18), 31, 32, 33, 39) if name != "NumPy" else (1, 7, 39):
            some = encoded(codec, encoding, rows[:, : count * kind.block], None)
            expected = whole[:, : count * kind.size]
            np.testing.assert_array_equal(some, expected, err_msg=f"{name}, {count} blocks")


@each("encoding", BLOCKS)
@each("weighted", [False, True])
def test_a_part_of_a_larger_array_is_encoded_in_place(encoding: str, weighted: bool) -> None:
    rng = np.random.default_rng(23)
    importance = rng.random(512, np.float32) if weighted else None
    rows = normal(rng)[:2, :512]
    for _, codec in twins(encoding):
        expected = encoded(codec, encoding, rows, importance)
        wide_rows = np.concatenate([rows, rows], axis=1)
        wide_out = np.zeros((2 * len(rows), 2 * expected.shape[1]), np.uint8)
        part = wide_out[::2, : expected.shape[1]]
        codec.encode(wide_rows[:, :512], required(encoding, rows, importance), part)
        np.testing.assert_array_equal(part, expected)
        assert not wide_out[1::2].any()
        assert not wide_out[:, expected.shape[1] :].any()


@each("encoding", BLOCKS)
def test_a_part_of_a_larger_array_is_decoded_in_place(encoding: str) -> None:
    for _, codec in twins(encoding):
        blocks = encoded(codec, encoding, normal(np.random.default_rng(26))[:2, :512], None)
        expected = decoded(codec, encoding, blocks)
        wide_blocks = np.concatenate([blocks, blocks], axis=1)
        wide_out = np.zeros((2 * len(blocks), 1024), np.float32)
        part = wide_out[::2, :512]
        codec.decode(wide_blocks[:, : blocks.shape[1]], part)
        np.testing.assert_array_equal(part, expected)
        assert not wide_out[1::2].any()
        assert not wide_out[:, 512:].any()


@each("encoding", BLOCKS)
@each("weighted", [False, True])
@each("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_neither_raise_nor_warn(
    encoding: str, weighted: bool, value: float
) -> None:
    rows = normal(np.random.default_rng(27))[:3, :512]
    rows[::2, ::100] = value
    for _, codec in twins(encoding):
        encoded(codec, encoding, rows, np.ones(512, np.float32) if weighted else None)


@each("encoding", BLOCKS)
@each("weighted", [False, True])
def test_no_rows_encode_and_decode_to_no_rows(encoding: str, weighted: bool) -> None:
    rows = np.empty((0, COLUMNS), np.float32)
    for _, codec in twins(encoding):
        weights = np.ones(COLUMNS, np.float32) if weighted else None
        blocks = encoded(codec, encoding, rows, weights)
        assert len(blocks) == 0
        assert len(decoded(codec, encoding, blocks)) == 0
