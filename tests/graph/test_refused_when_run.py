"""What only sizes and numbers tell: refused when the graph runs, or right then."""

from __future__ import annotations

import numpy as np
import pytest

from runs import run
from weightctl.dtype import DType
from weightctl.errors import EngineError
from weightctl.graph import Dim, ops


def test_a_range_that_its_dtype_does_not_hold_is_refused_when_its_length_is_known() -> None:
    x = np.zeros(300, np.float32)
    with pytest.raises(EngineError, match="int8 does not hold 299"):
        run(lambda x: ops.range(x.shape[0], dtype=DType.int8), x, shapes=[("n",)])
    found = run(lambda x: ops.range(x.shape[0], dtype=DType.int8), x[:128], shapes=[("n",)])
    np.testing.assert_array_equal(found, np.arange(128))


def test_a_negative_power_of_integers_is_refused() -> None:
    bases, powers = np.array([2, 3]), np.array([2, -1])
    with pytest.raises(EngineError, match="negative power"):
        run(lambda x, y: x**y, bases, powers)


@pytest.mark.parametrize(("rows", "columns"), [(4, 2), (2, 4), (3, 3)])
def test_the_diagonal_of_a_mask_may_turn_out_negative(rows: int, columns: int) -> None:
    found = run(
        lambda *_: ops.triangular_mask("r", "c", Dim("c") - "r"),
        np.zeros(rows, np.float32),
        np.zeros(columns, np.float32),
        shapes=[("r",), ("c",)],
    )
    np.testing.assert_array_equal(found, np.tri(rows, columns, columns - rows, bool))
