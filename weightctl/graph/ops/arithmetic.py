"""Arithmetic on two tensors, element by element, with broadcasting.

A Python number takes the dtype of the tensor beside it. Dtypes are never promoted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.errors import EngineError, GraphError
from weightctl.graph.ops.rules import FLOATS, INTEGERS, broadcast, require_number, same_dtype
from weightctl.graph.scope import refusing
from weightctl.graph.value import Value, apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import ValueLike

__all__ = [
    "add",
    "div",
    "floordiv",
    "infer",
    "lower",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "pow",
    "sub",
]

# What torch calls each; `remainder` has the sign of the divisor, as `%` has in Python.
_FUNCTIONS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "minimum": "minimum",
    "maximum": "maximum",
}


def add(left: ValueLike, right: ValueLike) -> Value:
    """Return the sums `left + right`."""
    return apply("arithmetic", left, right, function="add")


def sub(left: ValueLike, right: ValueLike) -> Value:
    """Return the differences `left - right`."""
    return apply("arithmetic", left, right, function="sub")


def mul(left: ValueLike, right: ValueLike) -> Value:
    """Return the products `left * right`, element by element."""
    return apply("arithmetic", left, right, function="mul")


def div(left: ValueLike, right: ValueLike) -> Value:
    """Return the quotients `left / right` of floating-point numbers."""
    return apply("arithmetic", left, right, function="div")


def floordiv(left: ValueLike, right: ValueLike) -> Value:
    """Return the quotients `left // right`, rounded towards minus infinity."""
    return apply("arithmetic", left, right, function="floordiv")


def mod(left: ValueLike, right: ValueLike) -> Value:
    """Return the remainders `left % right`, with the sign of `right`."""
    return apply("arithmetic", left, right, function="mod")


def pow(left: ValueLike, right: ValueLike) -> Value:  # noqa: A001  # as Python calls it
    """Return the powers `left ** right`; those of integers are whole, and have no negative ones."""
    if isinstance(left, Value) and isinstance(right, int) and right < 0:
        with refusing("pow", left):
            if left.dtype in INTEGERS:
                raise GraphError(
                    f"integers to the power of {right} would be fractions",
                    hint="`.cast(DType.float32)` first",
                )
    return apply("arithmetic", left, right, function="pow")


def minimum(left: ValueLike, right: ValueLike) -> Value:
    """Return the smaller of each two numbers; NaN where one of them is."""
    return apply("arithmetic", left, right, function="minimum")


def maximum(left: ValueLike, right: ValueLike) -> Value:
    """Return the larger of each two numbers; NaN where one of them is."""
    return apply("arithmetic", left, right, function="maximum")


def infer(left: TensorType, right: TensorType, *, function: str) -> TensorType:
    """Return the dtype of both and the shape that they broadcast to."""
    dtype = same_dtype(left, right)
    require_number(left)
    if function == "div" and dtype not in FLOATS:
        raise GraphError(
            "`/` of integers would give fractions",
            hint="use `//`, or `.cast(DType.float32)` both",
        )
    return replace(left, shape=broadcast(left.shape, right.shape))


def lower(left: Tensor, right: Tensor, *, function: str) -> Tensor:
    """Return a copy."""
    import torch

    if function == "pow" and not right.is_floating_point() and bool((right < 0).any()):
        raise EngineError(
            "integers to a negative power would be fractions",
            hint="cast them to a float dtype in the graph",
        )
    compute: Any = getattr(torch, _FUNCTIONS[function])
    result: Tensor = compute(left, right)
    return result
