"""Comparisons of two tensors, and logic on two of truth values, element by element."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.graph.ops.rules import broadcast, require_bool, require_number, same_dtype
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = [
    "equal",
    "greater",
    "greater_equal",
    "infer",
    "less",
    "less_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "lower",
    "not_equal",
]

# What torch calls each.
_FUNCTIONS = {
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}


def equal(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left == right`; a NaN equals nothing."""
    return apply("comparison", left, right, function="equal")


def not_equal(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left != right`."""
    return apply("comparison", left, right, function="not_equal")


def less(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left < right`."""
    return apply("comparison", left, right, function="less")


def less_equal(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left <= right`."""
    return apply("comparison", left, right, function="less_equal")


def greater(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left > right`."""
    return apply("comparison", left, right, function="greater")


def greater_equal(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left >= right`."""
    return apply("comparison", left, right, function="greater_equal")


def logical_and(left: ValueLike, right: ValueLike) -> Value:
    """Return whether both are true; operands are of dtype bool."""
    return apply("comparison", left, right, function="logical_and")


def logical_or(left: ValueLike, right: ValueLike) -> Value:
    """Return whether either is true; operands are of dtype bool."""
    return apply("comparison", left, right, function="logical_or")


def logical_xor(left: ValueLike, right: ValueLike) -> Value:
    """Return whether just one is true; operands are of dtype bool."""
    return apply("comparison", left, right, function="logical_xor")


def infer(left: TensorType, right: TensorType, *, function: str) -> TensorType:
    """Return the type of truth values, of the shape that both broadcast to."""
    dtype = same_dtype(left, right)
    if function.startswith("logical"):
        require_bool(left)
    elif dtype is not DType.bool or function not in {"equal", "not_equal"}:
        require_number(left)
    return replace(left, dtype=DType.bool, shape=broadcast(left.shape, right.shape))


def lower(left: Tensor, right: Tensor, *, function: str) -> Tensor:
    """Return a copy."""
    import torch

    compute: Any = getattr(torch, _FUNCTIONS[function])
    result: Tensor = compute(left, right)
    return result
