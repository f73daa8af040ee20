"""The grids of the IQ1, IQ2 and IQ3 types: the groups of levels that they can store."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The types with grids, and the number of different distances in their lists of near grid points
# (ggml's `nwant`).
DISTANCES = {
    "IQ1_S": 3, "IQ1_M": 3, "IQ2_XXS": 2, "IQ2_XS": 2, "IQ2_S": 1, "IQ3_XXS": 2, "IQ3_S": 3,
}  # fmt: skip


@cache
def load_levels(name: str) -> NDArray[np.uint8]:
    """Return the levels of a type's grid, shape (points, coordinates)."""
    import numpy as np

    for line in Path(__file__).with_suffix(".txt").read_text("ascii").splitlines():
        types, *points = line.split()
        if name in types.split(","):
            digits = np.frombuffer("".join(points).encode(), np.uint8)
            return digits.reshape(len(points), -1) - np.uint8(ord("0"))
    raise KeyError(name)
