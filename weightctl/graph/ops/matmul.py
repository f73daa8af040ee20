"""The matrix product."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import broadcast, require_float, require_rank, same_dtype
from weightctl.graph.value import apply
from weightctl.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "matmul"]


def matmul(left: ValueLike, right: ValueLike) -> Value:
    """Return the matrix product of the last two dimensions, the ones before them broadcast.

    Shapes are `(..., m, k)` and `(..., k, n)`, giving `(..., m, n)`; a vector on either side is a
    single row or column, which the result lacks. Raises `GraphError` where the inner dimensions
    differ, for scalars, and for integers.
    """
    return apply("matmul", left, right)


def infer(left: TensorType, right: TensorType) -> TensorType:
    """Return the dtype of both; the shape is NumPy's."""
    for kind in (left, right):
        require_rank(kind, 1)
    same_dtype(left, right)
    require_float(left)
    inner = right.shape[-2] if right.rank > 1 else right.shape[0]
    if left.shape[-1] != inner:
        raise GraphError(
            f"the inner dimensions are {left.shape[-1]} and {inner}",
            hint="`x @ w.T` is the product with a weight of shape (outputs, inputs)",
        )
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    rows = left.shape[-2:-1]
    columns = right.shape[-1:] if right.rank > 1 else ()
    return replace(left, shape=Shape((*batch, *rows, *columns)))


def lower(left: Tensor, right: Tensor) -> Tensor:
    """Return the product; on a CPU torch adds up float16 and bfloat16 in float32."""
    return left @ right
