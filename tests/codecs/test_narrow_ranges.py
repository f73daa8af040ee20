"""Sub-blocks whose numbers lie so close together that the search divides by almost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from oracles import ggml_quantize
from rows import encoded, twins

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from weightctl.codecs.base import F32

WITH_MINS = ["Q2_K", "Q4_K", "Q5_K"]


def neighbors(rng: Generator) -> F32:
    """Sub-blocks of two floats next to each other, of all sizes that no scale overflows at."""
    size = 10 ** rng.uniform(-45, 4, (16, 128, 1)) * rng.choice([-1, 1], (16, 128, 1))
    one = size.astype(np.float32)
    either = np.where(rng.random((16, 128, 32)) < 0.5, one, np.nextafter(one, 2 * one))
    return either.astype(np.float32).reshape(16, 4096)


def with_zeros(rng: Generator) -> F32:
    rows = neighbors(rng)
    return np.where(rng.random(rows.shape) < 0.03, np.float32(0), rows)


@pytest.mark.parametrize("encoding", WITH_MINS)
@pytest.mark.parametrize("make", [neighbors, with_zeros])
@pytest.mark.parametrize("weighted", [False, True])
def test_ranges_of_one_unit_have_the_bytes_of_ggml(
    encoding: str, make: Callable[[Generator], F32], weighted: bool
) -> None:
    rng = np.random.default_rng(40)
    rows = make(rng)
    importance = (10 ** rng.uniform(-12, 12, 4096)).astype(np.float32) if weighted else None
    theirs = ggml_quantize(encoding, rows, importance)
    for name, codec in twins(encoding):
        np.testing.assert_array_equal(encoded(codec, encoding, rows, importance), theirs, name)
