"""Numbers in 4 bits at the limits of their encodings, and midway between two levels."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import ggml_quantize
from rows import decoded, encoded, twins


def test_mxfp4_of_numbers_too_small_for_its_exponents_has_the_least_exponent() -> None:
    # ggml writes exponents such as 255 here, which means NaN to others.
    rows = np.full((1, 32), 2.0**-126, np.float32)
    rows[0, 16:] = -(2.0**-140)
    for name, codec in twins("MXFP4"):
        blocks = encoded(codec, "MXFP4", rows)
        assert blocks[0, 0] == 0, name
        expected = np.where(rows > 0, rows, 0)
        np.testing.assert_array_equal(decoded(codec, "MXFP4", blocks), expected, name)


@pytest.mark.parametrize("power", [-124, -63, -3, -1, 0, 1, 2, 7, 64, 65, 127])
def test_mxfp4_just_below_a_power_of_two_has_the_exponent_of_ggml(power: int) -> None:
    peaks = np.ldexp(1 - np.arange(1, 101) * 2.0**-24, power).astype(np.float32)
    rows = np.zeros((100, 32), np.float32)
    rows[:, 5] = peaks
    rows[:, 20] = -0.7 * peaks
    theirs = ggml_quantize("MXFP4", rows, None)
    for name, codec in twins("MXFP4"):
        np.testing.assert_array_equal(encoded(codec, "MXFP4", rows), theirs, name)


def test_nvfp4_has_the_scales_of_ggml_for_every_size_of_numbers() -> None:
    peaks = np.geomspace(1e-4, 4e3, 16384).astype(np.float32)
    rows = np.zeros((64, 4096), np.float32)
    rows[:, 3::16] = peaks.reshape(64, 256)
    rows[:, 11::16] = peaks.reshape(64, 256) * np.float32(-0.3)
    theirs = ggml_quantize("NVFP4", rows, None)
    for name, codec in twins("NVFP4"):
        np.testing.assert_array_equal(encoded(codec, "NVFP4", rows), theirs, name)


@pytest.mark.parametrize("encoding", ["IQ4_NL", "IQ4_XS"])
def test_numbers_at_a_midpoint_of_uneven_levels_go_where_ggml_puts_them(encoding: str) -> None:
    # With a peak of 127 the first trial's scale is 1.
    middles = np.array([-115.5, -93.5, -74, -57, -42, -28.5, -16, -4.5, 7, 19, 31.5, 45.5, 61, 79])
    rows = np.zeros((64, 256), np.float32)
    draws = np.random.default_rng(33).choice(middles, rows.shape).astype(np.float32)
    rows[:] = np.nextafter(draws, draws + np.array([-1, 0, 1, 0] * 64, np.float32))
    rows[:, ::32] = 127
    theirs = ggml_quantize(encoding, rows, None)
    for name, codec in twins(encoding):
        np.testing.assert_array_equal(encoded(codec, encoding, rows), theirs, name)
