"""The effective rank of a matrix, against its singular values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from weightctl import open_weights
from weightctl.values import estimate_rank, has_rank
from weightctl.weights.derived import tensor_of
from weightctl.weights.tree import source_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.weights.derived import ReadableTensor


def stored(path: Path, values: NDArray[np.float32]) -> ReadableTensor:
    save_file({"w": values}, path / "model.safetensors")
    return tensor_of(source_of(open_weights(path / "model.safetensors")), "w")


def ratio_of(values: NDArray[np.float32]) -> float:
    squares = np.linalg.svd(values.astype(np.float64), compute_uv=False) ** 2
    return float(squares.sum() ** 2 / (squares**2).sum())


def product(rank: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    random = np.random.default_rng(rank)
    left = random.standard_normal((shape[0], rank), np.float32)
    return left @ random.standard_normal((rank, shape[1]), np.float32)


@pytest.mark.parametrize("shape", [(300, 200), (40, 600), (540, 520)])
@pytest.mark.parametrize("rank", [1, 8, 40])
def test_a_product_of_thin_matrices_is_exact(
    rank: int, shape: tuple[int, int], tmp_path: Path
) -> None:
    values = product(rank, shape)
    assert estimate_rank(stored(tmp_path, values)) == pytest.approx(ratio_of(values), rel=1e-3)


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("shape", [(520, 560), (560, 520)])
def test_a_full_matrix_is_within_five_percent(
    shape: tuple[int, int], decay: float, tmp_path: Path
) -> None:
    random = np.random.default_rng(3)
    least = min(shape)
    left, _ = np.linalg.qr(random.standard_normal((shape[0], least)))
    right, _ = np.linalg.qr(random.standard_normal((shape[1], least)))
    singular = np.arange(1, least + 1) ** -decay
    values = ((left * singular) @ right.T).astype(np.float32)
    assert estimate_rank(stored(tmp_path, values)) == pytest.approx(ratio_of(values), rel=0.05)


def test_a_stack_has_the_mean_of_its_matrices(tmp_path: Path) -> None:
    values = np.stack([product(1, (16, 32)), np.zeros((16, 32), np.float32)])
    values[0, 0, 0] = np.nan
    found = estimate_rank(stored(tmp_path, values))
    values[0, 0, 0] = 0
    assert found == pytest.approx(ratio_of(values[0]) / 2, rel=1e-5)


def test_a_vector_has_no_rank(tmp_path: Path) -> None:
    assert not has_rank(stored(tmp_path, np.ones(4, np.float32)))
    assert has_rank(stored(tmp_path, np.ones((1, 4), np.float32)))
