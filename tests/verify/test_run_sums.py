"""The sums over runs of two tables: the kernels give what NumPy gives, at every level."""

from __future__ import annotations

import numpy as np
import pytest

from weightctl.kernels import RunComparer, levels
from weightctl.verify.compare import run_sums
from weightctl.verify.compare.run_sums import RunSums, compare_runs

RUNS = 40
NEAR = 1e-6

pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


def pair() -> tuple[np.ndarray, np.ndarray]:
    """Return two tables; some of their runs are equal, zero, huge or tiny."""
    rng = np.random.default_rng(3)
    reference = rng.standard_normal((RUNS, 32), np.float32)
    own = reference + rng.standard_normal((RUNS, 32), np.float32) / 16
    own[1] = reference[1]
    own[2] = reference[2] = 0
    own[3] = 0
    for table in (own, reference):
        table[4] *= np.float32(1e25)
        table[5] *= np.float32(1e-30)
    return own, reference


def expected(own: np.ndarray, reference: np.ndarray) -> RunSums:
    difference = own - reference
    a, b, d = (each.astype(np.float64) for each in (own, reference, difference))
    sums = ((each**2).sum(1) for each in (d, b, a))
    return RunSums(*sums, float((a * b).sum()), float(np.abs(difference).max()))


def require_near(found: RunSums, wanted: RunSums) -> None:
    for name in ("error", "squares", "own_squares", "product"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=NEAR)
    assert found.max_error == wanted.max_error


def test_sums_are_those_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    require_near(compare_runs(*pair()), expected(*pair()))
    monkeypatch.setattr(run_sums, "run_comparer", lambda: None)
    require_near(compare_runs(*pair()), expected(*pair()))


def test_all_levels_give_the_same_sums() -> None:
    made: set[bytes] = set()
    for level in range(len(levels())):
        out = np.empty((3, RUNS), np.float64)
        totals = RunComparer(level).compare(*pair(), out)
        made.add(out.tobytes() + np.array(totals).tobytes())
    assert len(made) <= 1


def test_runs_with_values_that_are_not_finite_have_such_sums() -> None:
    for value in (np.inf, np.nan):
        own, reference = pair()
        own[7, 3] = value
        sums = compare_runs(own, reference)
        assert np.flatnonzero(~np.isfinite(sums.error)).tolist() == [7]
        assert np.isfinite(sums.squares).all()


def test_tables_that_do_not_fit_are_refused() -> None:
    own, reference = pair()
    for level in range(len(levels())):
        for shape in ((3, RUNS - 1), (2, RUNS)):
            with pytest.raises(ValueError, match="do not fit"):
                RunComparer(level).compare(own, reference, np.empty(shape, np.float64))
