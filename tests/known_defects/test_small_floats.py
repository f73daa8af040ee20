"""Dtypes that NumPy does not have, with mistakes of safetensors.numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from build import safetensors_of
from weightctl import WeightData, open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SMALL: dict[str, Any] = {
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("how", [WeightData.to_numpy, np.asarray], ids=["to_numpy", "asarray"])
def test_numpy_gets_the_numbers_of_small_floats(
    tmp_path: Path, name: str, how: Callable[[WeightData], np.ndarray[Any, Any]]
) -> None:
    # safetensors.numpy: fails on bf16 and fp8.
    expected = np.array([[0.5, 1, 2], [4, 8, 16]], SMALL[name])
    content = safetensors_of({"a": (name, (2, 3), expected.tobytes())})
    (tmp_path / "a.safetensors").write_bytes(content)
    found = how(open_weights(tmp_path / "a.safetensors").a.data())
    assert found.dtype == expected.dtype
    assert found.astype(np.float32).tolist() == [[0.5, 1, 2], [4, 8, 16]]
