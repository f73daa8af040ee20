"""Rounding with error feedback: its bytes on all processors, what it gains, and what it refuses."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from each import each
from weightctl.codecs import codec, transcode
from weightctl.codecs import feedback as package
from weightctl.codecs.feedback import FeedbackCodec, choose_codes, prepare_curvature
from weightctl.codecs.feedback.parts import CodeValues, has_parts, parts_of
from weightctl.dtype import ENCODINGS
from weightctl.errors import NonFiniteError
from weightctl.kernels import active, error_feedback, levels

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.codecs.base import F32, U8

F32_ENCODING = ENCODINGS["F32"]
TYPES = [name for name, encoding in ENCODINGS.items() if has_parts(encoding)]
each_type = each("name", TYPES)
with_kernels = pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")


def draw(seed: int, *shape: int) -> np.ndarray:
    """Return whole numbers from -255 to 255, more of them near 0, that no library chooses."""
    with np.errstate(over="ignore"):
        state = np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(seed << 32)
        for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            state = (state ^ state >> np.uint64(30)) * np.uint64(factor)
    state ^= state >> np.uint64(31)
    made = (state & np.uint64(255)).astype(np.int64) - (state >> np.uint64(8) & np.uint64(255))
    return made.astype(np.float64).reshape(shape)


def make_hessian(seed: int, n: int) -> F32:
    """Return the mean products of correlated inputs of different sizes, whose sums are exact."""
    inputs = draw(seed, 2 * n, n) + 2 * draw(seed + 1, 2 * n, n // 16).repeat(16, 1)
    inputs *= 2.0 ** (np.arange(n) % 5 - 2)
    return (inputs.T @ inputs / (2 * n) / 2**16).astype(np.float32)


def make_rows(seed: int, count: int, n: int) -> F32:
    """Return rows of weights; some are 0 or constant, and others are very small or large."""
    rows = draw(seed, count, n) / 2**13
    rows[0] = 0
    rows[1, n // 2 :] = 0
    rows[2] *= 1e-38
    rows[3] *= 1e-6
    rows[4] *= 3e4
    rows[5] = 0.125
    rows[6] = np.abs(rows[6])
    rows[7, ::17] *= 50
    rows[8, : n // 2] *= 1e-7
    return rows.astype(np.float32)


def width_of(name: str) -> int:
    return 512 if parts_of(ENCODINGS[name]).grid.block == 256 else 128


def encode(name: str, rows: F32, hessian: F32) -> U8:
    encoding, importance = ENCODINGS[name], np.diag(hessian).copy()
    curvature = prepare_curvature(hessian.copy(), encoding.block)
    made = FeedbackCodec(encoding, codec(encoding), curvature)
    out = np.empty((len(rows), encoding.row_bytes(rows.shape[1])), np.uint8)
    made.encode(rows, importance, out)
    return out


def decode(name: str, raw: U8) -> F32:
    return transcode(raw, ENCODINGS[name], F32_ENCODING).raw.view(np.float32)


def use(monkeypatch: pytest.MonkeyPatch, level: int | None) -> None:
    """Round with the kernels of a level, or as NumPy defines it."""
    found = None if level is None else error_feedback(level)
    monkeypatch.setattr(package, "error_feedback", lambda: found)


def test_the_types_are_those_of_llama_cpp_whose_codes_are_chosen() -> None:
    assert set(TYPES) == {
        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS",
    }  # fmt: skip


@with_kernels
@each_type
@each("kind", ["correlated", "diagonal"])
def test_kernels_of_each_level_give_the_bytes_of_numpy(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, count = (width_of(name), 37) if kind == "correlated" else (width_of(name) // 2, 12)
    hessian, rows = make_hessian(1, n), make_rows(3, count, n)
    if kind == "diagonal":
        hessian = np.diag(np.diag(hessian))
    use(monkeypatch, None)
    expected = encode(name, rows, hessian)
    for level in range(len(levels())):
        use(monkeypatch, level)
        made = encode(name, rows, hessian)
        assert np.array_equal(made, expected), levels()[level]


@each(
    "grid",
    [
        CodeValues(32, 16, 0, 15, True, is_fixed=True),
        CodeValues(64, 64, 0, 7, True, is_fixed=True),
        CodeValues(32, 16, -6, 6, False, levels=np.array(
            [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6, 6], np.float32,
        ), is_fixed=True),
    ],
    ids=["integers", "larger blocks", "levels"],
)  # fmt: skip
def test_codes_at_fixed_scales_lose_less_and_are_the_same_for_all_kernels(
    grid: CodeValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 128
    hessian, rows = make_hessian(27, n), (draw(29, 37, n) / 2**13).astype(np.float32)
    rows[0], rows[1] = 0, rows[1] * 1e3
    groups = rows.reshape(37, -1, grid.shared)
    levels_of = np.arange(grid.most + 1, dtype=np.float32) if grid.levels is None else grid.levels
    lows = -groups.min(-1) if grid.has_mins else np.zeros(groups.shape[:2], np.float32)
    scales = (groups.max(-1) + lows if grid.has_mins else np.abs(groups).max(-1)) / levels_of[-1]
    of_columns, of_lows = scales.repeat(grid.shared, 1), lows.repeat(grid.shared, 1)
    curvature = prepare_curvature(hessian.copy(), grid.block)
    use(monkeypatch, None)
    expected = choose_codes(rows, scales, lows, grid, curvature)
    for level in range(len(levels())):
        use(monkeypatch, level)
        made = choose_codes(rows, scales, lows, grid, curvature)
        assert np.array_equal(made, expected), levels()[level]
    all_values = levels_of * of_columns[..., None] - of_lows[..., None]
    nearest = np.abs(all_values - rows[..., None]).argmin(-1)
    losses = []
    for codes in (expected.astype(np.intp), nearest):
        error = np.take_along_axis(all_values, codes[..., None], -1)[..., 0] - rows
        losses.append(np.einsum("ri,ij,rj->r", error, hessian, error))
    assert not losses[0][0]
    # From 0.22 to 0.25.
    assert np.mean(losses[0][1:] / losses[1][1:]) < 0.3


@with_kernels
@each("n", [1, 31, 33, 200])
def test_kernels_factor_matrices_of_any_size_as_numpy(n: int) -> None:
    matrix = make_hessian(5, 256)[:n, :n] + np.eye(n, dtype=np.float32)
    expected = matrix.copy()
    package.factor_hessian(expected)
    lower = np.tril(expected, -1).astype(np.float64) + np.eye(n)
    product = lower.T * np.diag(expected) @ lower
    np.testing.assert_allclose(product, matrix, atol=1e-4 * matrix.max())
    for level in range(len(levels())):
        made, kernel = matrix.copy(), error_feedback(level)
        assert kernel is not None
        kernel.factor(made, n)
        assert np.array_equal(np.tril(made), np.tril(expected)), levels()[level]


@each_type
def test_the_loss_is_lower_than_that_of_the_search_with_importance(name: str) -> None:
    n = width_of(name)
    hessian, rows = make_hessian(7, n), (draw(9, 64, n) / 2**13).astype(np.float32)
    plain = transcode(rows.view(np.uint8), F32_ENCODING, ENCODINGS[name], np.diag(hessian).copy())
    losses = []
    for raw in (encode(name, rows, hessian), plain.raw):
        error = (decode(name, raw) - rows).astype(np.float64)
        losses.append(np.einsum("ri,ij,rj->", error, hessian.astype(np.float64), error))
    # From 0.20 for Q5_K to 0.32 for Q2_K.
    assert losses[0] < 0.35 * losses[1]


# Beginnings of the SHA-256 of the bytes, which proofs of older files depend on.
GOLDEN = {
    "Q4_0": "b2cea7ba98f6a6dd",
    "Q4_1": "53bb4b0d7b2a558c",
    "Q5_0": "fe9f210e2a613829",
    "Q5_1": "4ee58bb024233cbc",
    "Q2_K": "0cae6e8530853613",
    "Q3_K": "24203fac0b4958eb",
    "Q4_K": "22a7df561037a8b6",
    "Q5_K": "a853ccfc80153057",
    "Q6_K": "6af91c4347961bb9",
    "IQ4_NL": "2e6ceec8915d3785",
    "IQ4_XS": "b15687d2d102ce5f",
}


def test_the_bytes_are_those_of_earlier_releases() -> None:
    made = {}
    for name in TYPES:
        raw = encode(name, make_rows(11, 33, width_of(name)), make_hessian(13, width_of(name)))
        made[name] = hashlib.sha256(raw.tobytes()).hexdigest()[:16]
    assert made == GOLDEN


@each_type
def test_each_row_is_rounded_alone(name: str) -> None:
    n = width_of(name)
    hessian, rows = make_hessian(15, n), make_rows(17, 70, n)
    whole = encode(name, rows, hessian)
    for part in (slice(0, 1), slice(3, 41), slice(69, 70)):
        assert np.array_equal(encode(name, rows[part], hessian), whole[part])


@each_type
def test_scales_and_codes_that_are_read_and_stored_are_the_same(name: str) -> None:
    encoding, parts = ENCODINGS[name], parts_of(ENCODINGS[name])
    grid = parts.grid
    random = np.random.default_rng(3)
    blocks = random.integers(256, size=(300, encoding.size), dtype=np.uint8)
    blocks = blocks.view(parts.block_dtype)[:, 0]
    kinds, groups = 1 + grid.has_mins, grid.block // grid.shared
    low, high = grid.factors or (1, 1)
    factors = random.integers(low, high + 1, (kinds, groups, 300)).astype(np.float32)
    halves = np.full((kinds, 300), 2, np.float32)
    parts.scales.write(blocks, halves, factors)
    again = parts.scales.read(blocks)
    for made, wanted in zip(again, (halves, factors), strict=True):
        if grid.factors:
            assert np.array_equal(made, wanted)
    scales, *lows = (again[0][:, None] * again[1]).repeat(grid.shared, 1).transpose(0, 2, 1)
    codes = np.arange(grid.least, grid.most + 1) if grid.levels is None else grid.levels
    held = decode(name, blocks[:, None].view(np.uint8).reshape(300, -1))
    # Where the scale is 0, the codes are not known.
    known = scales != 0
    codes = codes.astype(np.float32)
    values = codes * scales[..., None] - (lows[0][..., None] if lows else 0)
    found = np.argmin(np.abs(values - held[..., None]), axis=-1)
    assert np.array_equal(np.take_along_axis(values, found[..., None], -1)[..., 0], held)
    assert set(np.unique(found[known])) == set(range(len(codes)))
    fresh = np.zeros_like(blocks)
    parts.scales.write(fresh, *again)
    parts.pack(grid.find_indices(codes[found]), fresh)
    is_known = known.all(axis=1)
    assert np.count_nonzero(is_known) > 100
    assert fresh[is_known].tobytes() == blocks[is_known].tobytes()


def test_zeros_stay_zeros_without_a_sign() -> None:
    # Of the other types, the search gives zeros a scale with a sign.
    for name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"):
        n = width_of(name)
        raw = encode(name, np.zeros((1, n), np.float32), make_hessian(19, n))
        assert not decode(name, raw).any()
        assert not raw.any(), name


@each_type
def test_values_that_a_block_cannot_hold_are_refused(name: str) -> None:
    encoding, n = ENCODINGS[name], width_of(name)
    hessian, rows = make_hessian(21, n), make_rows(23, 40, n)
    curvature, importance = (
        prepare_curvature(hessian.copy(), encoding.block),
        np.diag(hessian).copy(),
    )
    for value, said in ((np.nan, "nan"), (np.inf, "inf"), (-3e9, r"-3e\+09")):
        rows[33, 7] = value
        with pytest.raises(NonFiniteError, match=f"is {said}") as caught:
            transcode(rows.view(np.uint8), F32_ENCODING, encoding, importance, curvature=curvature)
        assert caught.value.index == 33 * n + 7
    rows[33, 7] = np.nan
    made, loss = transcode(
        rows.view(np.uint8), F32_ENCODING, encoding, importance,
        curvature=curvature, zero_nonfinite=True, measure=True,
    )  # fmt: skip
    assert loss is not None
    assert loss.nonfinite == 1
    rows[33, 7] = 0
    assert np.array_equal(made, encode(name, rows, hessian))


def spoil(change: Callable[[F32], None]) -> F32:
    made = make_hessian(25, 64)
    change(made)
    return made


@each(
    "matrix",
    [
        np.zeros((64, 64), np.float32),
        -make_hessian(25, 64),
        make_hessian(25, 64) - np.float32(2) * np.diag(np.diag(make_hessian(25, 64))),
        spoil(lambda made: made.__setitem__((3, 3), np.nan)),
        spoil(lambda made: made.__setitem__((slice(5, 7), slice(5, 7)), np.nan)),
        spoil(lambda made: made.__setitem__((40, 40), np.inf)),
        spoil(lambda made: made.__setitem__(([9, 50], [50, 9]), 1e6)),
        np.diag(np.full(64, 3.3e38, np.float32)),
    ],
    ids=["zeros", "negative", "indefinite", "NaN", "NaNs", "infinity", "a product", "too large"],
)
@each("level", [None, *range(len(levels()))], ids=["numpy", *levels()])
def test_what_cannot_be_products_of_inputs_is_refused(
    matrix: F32, level: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, level)
    with pytest.raises(ValueError, match="positive"):
        prepare_curvature(matrix.copy(), 32)


class Call(NamedTuple):
    """Sound arguments of a kernel for 64 columns, 32 rows, and blocks of 32 with sub-blocks."""

    name: str
    arguments: tuple[Any, ...]


class Rounds(int):
    """A number that may be any, but not negative."""


class Column(int):
    """A number that may also be 0."""


def floats(count: int) -> bytearray:
    return bytearray(4 * count)


PARTS = (32, 16, 0.0, 3.0, None, False, True, 0.0, 15.0)
FACTOR = Call("factor", (floats(64 * 64), 64))
ROUND = Call(
    "round_columns",
    ((floats(64 * 64), 64, Column(32)), (floats(64 * 32), floats(64 * 32), floats(64 * 32)),
     (floats(32 * 32), floats(32 * 32)), PARTS),
)  # fmt: skip
REFINE = Call(
    "refine",
    ((floats(64 * 64), 64, Rounds(1)), (floats(64 * 32), floats(64 * 32)),
     (floats(2 * 32), floats(4 * 32), floats(2 * 32), floats(4 * 32)), PARTS),
)  # fmt: skip
# Numbers of columns whose squares, or whose bytes, are 0 in 64 bits.
FAR = [1 << 31, 1 << 32, 1 << 57, 1 << 62, (1 << 63) - 32]
NUMBERS = [0, -1, -32, 31, 63, 65, 128, *FAR]


def list_spoiled(value: Any) -> list[Any]:
    """Return other values for an argument, of which each is wrong for all calls above."""
    if isinstance(value, bytearray):
        odd = memoryview(bytearray(len(value) + 1))[1:]
        return [value[:-4], value + bytes(4), value[:-1], bytearray(), odd, None, 3, "text"]
    if isinstance(value, tuple):
        return [
            (), value[:-1], (*value, 1), None, 7,
            *((*value[:at], other, *value[at + 1 :])
              for at, each in enumerate(value) for other in list_spoiled(each)),
        ]  # fmt: skip
    if isinstance(value, bool):
        return []
    if isinstance(value, Rounds):
        return [-1, "1", 1 << 80]
    if isinstance(value, int):
        return [*NUMBERS[isinstance(value, Column) :], "64", 1 << 80]
    return ["text", 3.5] if value is None else ["text"]


def list_calls(call: Call) -> list[tuple[Any, ...]]:
    return [
        (*call.arguments[:at], other, *call.arguments[at + 1 :])
        for at, each in enumerate(call.arguments)
        for other in list_spoiled(each)
    ]


@with_kernels
def test_kernels_refuse_buffers_that_do_not_fit_together() -> None:
    kernel = error_feedback()
    assert kernel is not None
    accepted = []
    for call in (FACTOR, ROUND, REFINE):
        run: Callable[..., None] = getattr(kernel, call.name)
        run(*call.arguments)
        for arguments in list_calls(call):
            try:
                run(*arguments)
            except (ValueError, TypeError, OverflowError, BufferError):
                continue
            accepted.append((call.name, *(repr(each)[:60] for each in arguments)))
    assert accepted == []
