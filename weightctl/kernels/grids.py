"""The grids of the IQ1, IQ2 and IQ3 types: the groups of levels that they can store."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

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
    """Return the levels of a type's grid, shape (points, coordinates), from the gguf package."""
    # Imported on use: the import takes as long as the rest of a conversion's start.
    import gguf.quants
    import numpy as np

    stored: Any = getattr(gguf.quants, name)  # a class of gguf, which has no types
    stored.init_grid()
    values: NDArray[np.float32] = stored.grid.reshape(stored.grid_shape)
    levels: NDArray[np.intp] = np.searchsorted(stored.grid_map, values)
    return levels.astype(np.uint8)
