"""A choice between two tensors, element by element."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.graph.ops.constant import constant
from weightctl.graph.ops.dequantize import numbers_of
from weightctl.graph.ops.rules import broadcast, require_bool, same_dtype
from weightctl.graph.scope import current_graph, refusing
from weightctl.graph.value import Value, apply
from weightctl.shape import Dim

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import ValueLike

__all__ = ["infer", "lower", "where"]


def where(condition: ValueLike, left: ValueLike, right: ValueLike) -> Value:
    """Return `left` where the condition is true and `right` elsewhere, all three broadcast.

    A number takes the dtype of the other choice. Raises `GraphError` where the condition is not
    of dtype bool, and where the choices differ in dtype or the shapes do not fit.
    """
    graph = current_graph()
    with refusing("where", condition, left, right):
        condition = graph.value_of(condition)
        # Beside a condition alone a number would become a truth value.
        if not isinstance(left, int | float):
            left = _choice(left, condition)
            right = graph.value_of(right, left)
        elif not isinstance(right, int | float):
            right = _choice(right, condition)
            left = graph.value_of(left, right)
        else:
            is_fraction = isinstance(left, float) or isinstance(right, float)
            dtype = DType.float32 if is_fraction else DType.int64
            left, right = (constant(number, dtype, condition.device) for number in (left, right))
    return apply("where", condition, left, right)


def _choice(choice: ValueLike, condition: Value) -> Value:
    if isinstance(choice, Value | Dim | str):
        return numbers_of(choice)
    return constant(choice, device=condition.device)


def infer(condition: TensorType, left: TensorType, right: TensorType) -> TensorType:
    """Return the dtype of the choices and the shape that all three broadcast to."""
    require_bool(condition)
    same_dtype(left, right)
    shape = broadcast(condition.shape, broadcast(left.shape, right.shape))
    return replace(left, shape=shape)


def lower(condition: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return a copy."""
    import torch

    return torch.where(condition, left, right)
