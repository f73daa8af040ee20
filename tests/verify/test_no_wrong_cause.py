"""A difference that no known mistake explains has no cause, and the search for one ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrays import stored
from weightctl.verify import Request, Subject
from weightctl.verify.checks.values import check
from weightctl.verify.compare.explaining import PATIENCE, explain_each
from weightctl.verify.compare.measure import Samples, take_sample
from weightctl.verify.compare.pairs import pair_tensors
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.rows import RowRange

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from weightctl.verify import Explanation, Problem
    from weightctl.verify.compare.pairing import Pairing

    Array = np.ndarray[Any, Any]


RANDOM = np.random.default_rng(31)
ROWS, COLUMNS = 192, 160
HEALTHY = RANDOM.normal(0, 0.02, (ROWS, COLUMNS)).astype(np.float32)


def noise(size: float, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Array:
    return RANDOM.normal(0, size, shape).astype(np.float32)


def problem_of(tmp_path: Path, own: Array, **bars: Any) -> Problem:
    paths = [
        stored(tmp_path / f"{name}.safetensors", **{"layers.0.w.weight": array})
        for name, array in (("own", own), ("reference", HEALTHY))
    ]
    subject, reference = map(Subject, paths)
    (problem,) = check(Request(subject=subject, reference=reference, **bars)).problems
    return problem


def trained(array: Array) -> Array:
    """Add a change in all directions, some of which matter more."""
    directions = np.exp(-np.arange(COLUMNS) / 60)
    turned = np.linalg.qr(noise(1, (COLUMNS, COLUMNS)))[0]
    return array + (noise(0.003) * directions) @ turned


def columns_lost(array: Array) -> Array:
    """Put random numbers in two columns: a change of rank 2, and not an adapter."""
    array[:, [7, 90]] = noise(0.02, (ROWS, 2))
    return array


def one_limited(array: Array) -> Array:
    """Make the greatest number what the second greatest is, as if it was clipped."""
    flat = array.reshape(-1)
    second, first = np.argsort(flat)[-2:]
    flat[first] = flat[second]
    return array


def rows_drawn_anew(array: Array) -> Array:
    array[[3, 50, 51]] = noise(0.02, (3, COLUMNS))
    return array


def reordered_and_damaged(array: Array) -> Array:
    """Swap rows, and change another."""
    array[[4, 9]] = array[[9, 4]]
    array[100] += noise(0.02, (COLUMNS,))
    return array


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array + noise(0.0002),
        lambda array: array + noise(0.002),
        lambda array: array + noise(0.02),
        trained,
        columns_lost,
        one_limited,
        rows_drawn_anew,
        reordered_and_damaged,
    ],
    ids=[
        "little noise", "noise", "as much noise", "trained", "columns lost", "one limited",
        "rows drawn anew", "reordered and damaged",
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_no_cause(tmp_path: Path, change: Callable[[Array], Array], dtype: type) -> None:
    problem = problem_of(tmp_path, change(HEALTHY.copy()).astype(dtype))
    assert problem.cause is None, problem.cause


def test_a_limit_below_what_an_encoding_costs_has_no_cause(tmp_path: Path) -> None:
    own = HEALTHY.astype(np.float16)
    assert problem_of(tmp_path, own, max_rmse=1e-6).cause is None


@pytest.mark.parametrize("rank", [1, 8, 20])
def test_the_rank_of_an_adapter_is_what_it_was(tmp_path: Path, rank: int) -> None:
    change = noise(0.01, (ROWS, rank)) @ noise(0.1, (rank, COLUMNS))
    cause = cause_of(problem_of(tmp_path, HEALTHY + change))
    assert cause.name == "low_rank"
    assert f"of rank {rank} was" in cause.text
    assert "100 %" in cause.text


def test_clipping_says_the_limit_and_how_many_are_beyond_it(tmp_path: Path) -> None:
    cause = cause_of(problem_of(tmp_path, HEALTHY.clip(-0.03125, 0.03125)))
    beyond = int(np.count_nonzero(np.abs(HEALTHY) > 0.03125))
    assert cause.name == "clipped"
    assert f"±0.0312: {beyond:,} of {HEALTHY.size:,}" in cause.text


def test_clipping_of_one_side_says_which(tmp_path: Path) -> None:
    cause = cause_of(problem_of(tmp_path, np.minimum(HEALTHY, np.float32(0.03125))))
    assert cause.name == "clipped"
    assert "at most 0.0312" in cause.text


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_swapped_bytes_are_named_in_any_plain_type(tmp_path: Path, dtype: type) -> None:
    cause = cause_of(problem_of(tmp_path, HEALTHY.astype(dtype).byteswap()))
    assert cause.name == "byte_order"


def cause_of(problem: Problem) -> Explanation:
    assert problem.cause is not None
    return problem.cause


NOISE = np.random.default_rng(12)
COUNT = PATIENCE + 20


def _matrices() -> dict[str, Any]:
    return {
        f"layers.{number}.w.weight": NOISE.normal(0, 1, (32, 64)).astype(np.float32)
        for number in range(COUNT)
    }


def _pairing(tmp_path: Path, own: dict[str, Any], reference: dict[str, Any]) -> Pairing:
    paths = [
        stored(tmp_path / f"{n}.safetensors", **each) for n, each in enumerate((own, reference))
    ]
    subject, other = map(Subject, paths)
    return pair_tensors(subject, other)


def test_no_cause_is_looked_for_once_many_had_none(tmp_path: Path) -> None:
    pairing = _pairing(tmp_path, _matrices(), _matrices())
    assert explain_each(pairing.pairs, pairing) == [None] * COUNT
    assert len(pairing.causes) == PATIENCE


def test_a_tensor_that_is_explained_gives_hope_for_the_next(tmp_path: Path) -> None:
    reference = _matrices()
    own = _matrices()
    names = list(own)
    for name in (names[PATIENCE - 1], names[-1]):
        own[name] = reference[name] / 2
    pairing = _pairing(tmp_path, own, reference)
    causes = explain_each(pairing.pairs, pairing)
    scaled = [number for number, cause in enumerate(causes) if cause and cause.name == "scaled"]
    assert scaled == [PATIENCE - 1, COUNT - 1]


def test_a_sample_is_kept_for_the_tensor_that_it_is_of(tmp_path: Path) -> None:
    pairing = _pairing(tmp_path, _matrices(), _matrices())
    samples = Samples()
    first = pairing.pairs[0].reference
    kept = samples.of(first)
    assert samples.of(first) is kept
    for number in range(1000):
        # Each is gone before the next is made.
        pair = pairing.pairs[number % COUNT]
        part = DerivedTensor("part", RowRange(1, 5), [pair.reference])
        assert np.array_equal(samples.of(part), take_sample(part))
    assert np.array_equal(samples.of(first), kept)
