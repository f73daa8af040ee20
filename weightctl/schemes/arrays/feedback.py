"""The codes of a tile with error feedback, at the scales that the search has found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.feedback.parts import CodeValues
from weightctl.schemes.arrays.rounding import (
    E2M1,
    Affine,
    Biased,
    Microscaled4,
    Symmetric,
    shape_of,
    spread,
)

if TYPE_CHECKING:
    from weightctl.codecs.base import F32
    from weightctl.codecs.feedback import Curvature
    from weightctl.schemes.arrays.rounding import Codes, Rounding

# The largest block, and the smallest one.
_BLOCK, _LEAST = 256, 32
# The values of 4-bit floats in ascending order, the largest one twice, and their codes.
_LEVELS = np.array([*sorted(set(E2M1)), max(E2M1)], np.float32)
_CODES = np.array([E2M1.index(level) for level in _LEVELS], np.uint8)


def find_grid(rounding: Rounding, columns: int) -> CodeValues | None:
    """Return the grid of the codes of a rounding; None if they are not chosen with feedback."""
    group = min(rounding.grid.columns, columns)
    # Larger groups are sub-blocks with the same scale.
    shared = group if 0 < group <= _BLOCK and _BLOCK % group == 0 else _LEAST
    block = max(shared, _LEAST)
    if not group or group % shared or columns % group or columns % block:
        return None
    match rounding:
        case Symmetric() | Affine() | Biased():
            return CodeValues(block, shared, 0, rounding.most, True, is_fixed=True)
        case Microscaled4():
            return CodeValues(block, shared, -6, 6, False, levels=_LEVELS, is_fixed=True)
        case _:
            return None


def feed_back(
    rounding: Rounding,
    values: F32,
    found: Codes,
    peak: np.float32,
    *,
    grid: CodeValues,
    curvature: Curvature,
) -> Codes:
    """Return codes of whole rows, shape (r, columns), at the scales of `found`.

    `grid` is that of `find_grid`.
    """
    from weightctl.codecs.feedback import choose_codes  # few conversions need it

    shape = shape_of(values)
    scales = spread(rounding.read_scales(found.scales, peak), shape, rounding.grid)[..., 0]
    scales = np.repeat(scales, shape[1] // grid.shared // scales.shape[1], axis=1)
    # Values are codes times scales plus what code 0 stands for.
    lows = rounding.restore(found._replace(codes=np.zeros(shape, np.uint8)), peak)
    codes = choose_codes(values, scales, -lows[:, :: grid.shared], grid, curvature)
    return found._replace(codes=codes if grid.levels is None else _CODES[codes])
