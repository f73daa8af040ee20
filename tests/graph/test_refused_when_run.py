"""What only sizes and numbers tell: refused when the graph runs, or right then."""

from __future__ import annotations

import numpy as np
import pytest

from runs import run
from weightctl.dtype import DType
from weightctl.errors import EngineError
from weightctl.graph import ops


def test_a_range_that_its_dtype_does_not_hold_is_refused_when_its_length_is_known() -> None:
    x = np.zeros(300, np.float32)
    with pytest.raises(EngineError, match="int8 cannot hold 299"):
        run(lambda x: ops.range(x.shape[0], dtype=DType.int8), x, shapes=[("n",)])
    found = run(lambda x: ops.range(x.shape[0], dtype=DType.int8), x[:128], shapes=[("n",)])
    np.testing.assert_array_equal(found, np.arange(128))


def test_a_negative_power_of_integers_is_refused() -> None:
    bases, powers = np.array([2, 3]), np.array([2, -1])
    with pytest.raises(EngineError, match="negative power"):
        run(lambda x, y: x**y, bases, powers)
