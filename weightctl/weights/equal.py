"""Comparison of the values of two tensors of any dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType

if TYPE_CHECKING:
    from weightctl.dtype import Encoding
    from weightctl.weights.data import WeightData


def difference(one: WeightData, other: WeightData) -> str:
    """Return how two tensors differ; empty if they are equal.

    Values are compared bit by bit. If the dtypes differ, they are converted to a dtype that holds
    the values of both. Nothing is read if the shapes differ, or if no dtype holds the values of
    both.
    """
    first, second = one.info, other.info
    if first.shape != second.shape:
        return f"the shapes differ: {list(first.shape)} and {list(second.shape)}"
    if first.encoding != second.encoding:
        wide = _wide(first.encoding, second.encoding)
        if wide is None:
            return f"the types differ: {first.encoding.called} and {second.encoding.called}"
        one, other = one.astype(wide), other.astype(wide)
    import numpy as np  # not loaded by `ls`

    left, right = (np.frombuffer(each.view(), np.uint8) for each in (one, other))
    return "" if np.array_equal(left, right) else "the values differ"


def _wide(one: Encoding, other: Encoding) -> DType | None:
    """Return a dtype that holds every value of both encodings exactly; None if there is none."""
    if one.dtype is None or other.dtype is None:
        return None
    from weightctl.codecs import holds_all

    candidates = (one.dtype, other.dtype, DType.float32, DType.float64)
    return next(
        (
            wide
            for wide in candidates
            if all(each == wide.encoding or holds_all(each, wide.encoding) for each in (one, other))
        ),
        None,
    )
