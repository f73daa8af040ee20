"""The stored grids."""

from __future__ import annotations

from typing import Any

import gguf.quants
import numpy as np

from weightctl.kernels.grids import DISTANCES, load_levels


def test_the_grids_are_those_of_the_package_gguf() -> None:
    for name in DISTANCES:
        stored: Any = getattr(gguf.quants, name)
        stored.init_grid()
        values = np.array(stored.grid_map)[load_levels(name)]
        np.testing.assert_array_equal(values, stored.grid.reshape(stored.grid_shape), name)
