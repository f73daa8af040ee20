"""The kernel that multiplies with rows in bfloat16 rounds the vectors, and sums in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weightctl.kernels import multiplies_bf16, multiply_bf16

pytestmark = pytest.mark.skipif(
    not multiplies_bf16(), reason="this processor does not multiply pairs of bfloat16"
)


# Fewer and more than a tile of vectors, a panel of rows, and the columns that are added at a time.
@pytest.mark.parametrize(
    ("count", "rows", "columns"), [(1, 1, 2), (7, 50, 34), (17, 97, 1540), (64, 48, 512)]
)
@pytest.mark.parametrize("threads", [1, 3])
def test_products_are_those_of_rounded_vectors(
    count: int, rows: int, columns: int, threads: int
) -> None:
    raw = torch.Generator().manual_seed(1)
    vectors = torch.randn(count, columns, generator=raw)
    weights = torch.randn(rows, columns, generator=raw).bfloat16()
    out = np.full((count, rows), np.nan, np.float32)
    stored = weights.view(torch.uint8).numpy()
    multiply_bf16(stored, columns, vectors.numpy(), out, threads=threads)
    rounded, held = vectors.bfloat16().double(), weights.double()
    close = 1e-6 * float((rounded.abs() @ held.abs().T).max())
    np.testing.assert_allclose(out, (rounded @ held.T).numpy(), rtol=0, atol=close)


def test_values_that_are_not_finite_stay_so() -> None:
    vectors = np.array([[1, np.nan], [1, -np.inf], [1, 3.4e38]], np.float32)
    out = np.empty((3, 1), np.float32)
    multiply_bf16(np.array([0x3F80, 0x3F80], np.uint16).view(np.uint8), 2, vectors, out)
    # The largest number of bfloat16 is 3.39e38.
    np.testing.assert_array_equal(out[:, 0], [np.nan, -np.inf, np.inf])


@pytest.mark.parametrize(
    ("columns", "nbytes", "vectors", "outputs"),
    [(3, 6, 3, 1), (0, 4, 2, 1), (2, 5, 2, 1), (2, 4, 3, 1), (2, 4, 2, 2), (2, 8, 2, 1)],
)
def test_buffers_of_other_sizes_are_refused(
    columns: int, nbytes: int, vectors: int, outputs: int
) -> None:
    rows, left = np.zeros(nbytes, np.uint8), np.zeros(vectors, np.float32)
    with pytest.raises(ValueError, match="do not fit together"):
        multiply_bf16(rows, columns, left, np.zeros(outputs, np.float32))
