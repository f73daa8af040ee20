"""Numbers of 16 bits are added up in 32: only the result is rounded."""

from __future__ import annotations

import pytest
import torch

from weightctl.graph.ops.product import lower_matmul
from weightctl.graph.ops.reduce import lower_reduce, lower_softmax

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
COUNT = 10_000


def positive(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def assert_rounded_once(result: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert result.dtype is dtype
    assert result.shape == exact.shape
    # Additions in float32 may end on the other side of a middle, but no further away.
    allowed = (exact.to(dtype).double() - exact).abs() + 1e-5 * exact
    assert ((result.double() - exact).abs() <= allowed).all()


@HALVES
def test_additions_in_sixteen_bits_would_be_noticed(dtype: torch.dtype) -> None:
    numbers = positive(32, 8192, dtype=dtype)
    sums = numbers
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    with pytest.raises(AssertionError):
        assert_rounded_once(sums[:, 0], numbers.double().sum(1), dtype)


@HALVES
@pytest.mark.parametrize("rows", [(), (1,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("columns", [(), (1,), (7,)], ids=str)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_matrix_product_is_rounded_once(
    dtype: torch.dtype, rows: tuple[int, ...], columns: tuple[int, ...], is_transposed: bool
) -> None:
    left = positive(*rows, COUNT, dtype=dtype)
    right = positive(COUNT, *columns, dtype=dtype)
    if is_transposed and columns:
        right = right.T.contiguous().T
    product = lower_matmul(left, right)
    assert_rounded_once(product, left.double() @ right.double(), dtype)


@HALVES
@pytest.mark.parametrize(("shape", "axis"), [((2, 5000), None), ((COUNT, 8), 0), ((8, COUNT), 1)])
def test_a_sum_is_rounded_once(
    dtype: torch.dtype, shape: tuple[int, int], axis: int | None
) -> None:
    numbers = positive(*shape, dtype=dtype)
    total = lower_reduce(numbers, function="sum", axis=axis, keepdims=False)
    exact = numbers.double().sum() if axis is None else numbers.double().sum(axis)
    assert_rounded_once(total, exact, dtype)


@HALVES
def test_many_ones_are_counted(dtype: torch.dtype) -> None:
    ones = torch.ones(COUNT, dtype=dtype)
    nearest = torch.tensor(float(COUNT)).to(dtype).item()
    total = lower_reduce(ones, function="sum", axis=None, keepdims=False)
    assert total.item() == nearest
    assert lower_matmul(ones, ones).item() == nearest


@HALVES
def test_a_mean_does_not_overflow_where_its_sum_would(dtype: torch.dtype) -> None:
    large = torch.full((COUNT,), 32768.0, dtype=dtype)
    mean = lower_reduce(large, function="mean", axis=None, keepdims=False)
    assert mean.item() == 32768


@HALVES
def test_shares_are_rounded_once(dtype: torch.dtype) -> None:
    numbers = positive(4, 1000, dtype=dtype) * 8
    shares = lower_softmax(numbers, axis=-1)
    assert_rounded_once(shares, numbers.double().softmax(-1), dtype)
