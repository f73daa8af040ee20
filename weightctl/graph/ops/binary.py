"""Elementwise arithmetic, comparisons and selections, with broadcasting.

A Python number takes the dtype of the tensor next to it. Dtypes are never promoted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph.graph import Value, apply, current_graph
from weightctl.graph.ops.create import constant
from weightctl.graph.ops.quantized import dequantize_value
from weightctl.graph.ops.rules import (
    FLOATS,
    INTEGERS,
    Op,
    broadcast,
    require_bool,
    require_number,
    require_same_dtype,
)
from weightctl.graph.ops.value_checks import is_on_gpu, refuse_where
from weightctl.graph.scope import refusing
from weightctl.shape import Dim

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.graph import ValueLike
    from weightctl.graph.types import TensorType

__all__ = [
    "ARITHMETIC", "ARITHMETIC_FUNCTIONS", "COMPARISON", "COMPARISON_FUNCTIONS", "WHERE",
    "add", "clamp", "div", "equal", "floordiv", "greater", "greater_equal", "less", "less_equal",
    "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "mod", "mul", "not_equal",
    "pow", "sub", "where",
]  # fmt: skip

# The name of each function in torch; `remainder` has the sign of the divisor, as `%` has in Python.
ARITHMETIC_FUNCTIONS = {
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
    return apply(ARITHMETIC, left, right, function="add")


def sub(left: ValueLike, right: ValueLike) -> Value:
    """Return the differences `left - right`."""
    return apply(ARITHMETIC, left, right, function="sub")


def mul(left: ValueLike, right: ValueLike) -> Value:
    """Return the products `left * right`, element by element."""
    return apply(ARITHMETIC, left, right, function="mul")


def div(left: ValueLike, right: ValueLike) -> Value:
    """Return the quotients `left / right` of floating-point numbers."""
    return apply(ARITHMETIC, left, right, function="div")


def floordiv(left: ValueLike, right: ValueLike) -> Value:
    """Return the quotients `left // right`, rounded towards minus infinity."""
    return apply(ARITHMETIC, left, right, function="floordiv")


def mod(left: ValueLike, right: ValueLike) -> Value:
    """Return the remainders `left % right`, with the sign of `right`."""
    return apply(ARITHMETIC, left, right, function="mod")


def pow(left: ValueLike, right: ValueLike) -> Value:  # noqa: A001  # as Python calls it
    """Return the powers `left ** right`; integers cannot be raised to a negative power."""
    if isinstance(left, Value) and isinstance(right, int) and right < 0:
        with refusing("pow", left):
            if left.dtype in INTEGERS:
                raise GraphError(
                    f"raising integers to the power {right} would give fractions",
                    hint="use `.cast(DType.float32)` first",
                )
    return apply(ARITHMETIC, left, right, function="pow")


def minimum(left: ValueLike, right: ValueLike) -> Value:
    """Return the elementwise minimum; NaN if either element is NaN."""
    return apply(ARITHMETIC, left, right, function="minimum")


def maximum(left: ValueLike, right: ValueLike) -> Value:
    """Return the elementwise maximum; NaN if either element is NaN."""
    return apply(ARITHMETIC, left, right, function="maximum")


def infer_arithmetic(left: TensorType, right: TensorType, *, function: str) -> TensorType:
    """Return the common dtype and the broadcast shape."""
    dtype = require_same_dtype(left, right)
    require_number(left)
    if function == "div" and dtype not in FLOATS:
        raise GraphError(
            "`/` of integers would give fractions",
            hint="use `//`, or `.cast(DType.float32)` on both operands",
        )
    return replace(left, shape=broadcast(left.shape, right.shape))


def lower_arithmetic(left: Tensor, right: Tensor, *, function: str) -> Tensor:
    import torch

    if not right.is_floating_point():
        right = _require_divisor(right, function)
    compute: Any = getattr(torch, ARITHMETIC_FUNCTIONS[function])
    result: Tensor = compute(left, right)
    return result


def _require_divisor(right: Tensor, function: str) -> Tensor:
    """Return integers by which others can be divided, or which can be powers.

    Raises `EngineError` if there are others: on a GPU at the end of the run, because torch would
    give wrong numbers without an error.
    """
    if function in {"floordiv", "mod"}:
        is_zero = right == 0
        refuse_where(is_zero, "integers are divided by 0", "check that no divisor is 0")
        return right.masked_fill(is_zero, 1) if is_on_gpu(right) else right
    if function == "pow":
        hint = "cast the operands to a float dtype in the graph"
        refuse_where(right < 0, "a negative power of integers would give fractions", hint)
    return right


ARITHMETIC = Op("arithmetic", infer_arithmetic, lower_arithmetic)


# The name of each function in torch.
COMPARISON_FUNCTIONS = {
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
    """Return whether `left == right`; NaN is not equal to anything."""
    return apply(COMPARISON, left, right, function="equal")


def not_equal(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left != right`."""
    return apply(COMPARISON, left, right, function="not_equal")


def less(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left < right`."""
    return apply(COMPARISON, left, right, function="less")


def less_equal(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left <= right`."""
    return apply(COMPARISON, left, right, function="less_equal")


def greater(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left > right`."""
    return apply(COMPARISON, left, right, function="greater")


def greater_equal(left: ValueLike, right: ValueLike) -> Value:
    """Return whether `left >= right`."""
    return apply(COMPARISON, left, right, function="greater_equal")


def logical_and(left: ValueLike, right: ValueLike) -> Value:
    """Return whether both are true; the operands must be bool."""
    return apply(COMPARISON, left, right, function="logical_and")


def logical_or(left: ValueLike, right: ValueLike) -> Value:
    """Return whether at least one is true; the operands must be bool."""
    return apply(COMPARISON, left, right, function="logical_or")


def logical_xor(left: ValueLike, right: ValueLike) -> Value:
    """Return whether exactly one is true; the operands must be bool."""
    return apply(COMPARISON, left, right, function="logical_xor")


def infer_comparison(left: TensorType, right: TensorType, *, function: str) -> TensorType:
    """Return dtype bool and the broadcast shape."""
    dtype = require_same_dtype(left, right)
    if function.startswith("logical"):
        require_bool(left)
    elif dtype is not DType.bool or function not in {"equal", "not_equal"}:
        require_number(left)
    return replace(left, dtype=DType.bool, shape=broadcast(left.shape, right.shape))


def lower_comparison(left: Tensor, right: Tensor, *, function: str) -> Tensor:
    import torch

    compute: Any = getattr(torch, COMPARISON_FUNCTIONS[function])
    result: Tensor = compute(left, right)
    return result


COMPARISON = Op("comparison", infer_comparison, lower_comparison)


def clamp(
    x: ValueLike,
    min: ValueLike | None = None,  # noqa: A002  # torch's name
    max: ValueLike | None = None,  # noqa: A002  # torch's name
) -> Value:
    """Return the elements limited to the range from `min` to `max`; NaN is kept.

    One bound may be left out. Raises `GraphError` if both are.
    """
    value = current_graph().value_of(x)
    if min is None and max is None:
        with refusing("clamp", value):
            raise GraphError("clamp needs min or max", hint="for example `ops.clamp(x, min=0)`")
    if min is not None:
        value = maximum(value, min)
    return value if max is None else minimum(value, max)


def where(condition: ValueLike, left: ValueLike, right: ValueLike) -> Value:
    """Return `left` where the condition is true and `right` elsewhere; all three are broadcast.

    A Python number takes the dtype of the other operand. Raises `GraphError` if the condition is
    not bool, if `left` and `right` have different dtypes, or if the shapes do not broadcast.
    """
    graph = current_graph()
    with refusing("where", condition, left, right):
        condition = graph.value_of(condition)
        # The condition is bool: a number converted next to it alone would become bool too.
        if not isinstance(left, int | float):
            left = _make_choice(left, condition)
            right = graph.value_of(right, left)
        elif not isinstance(right, int | float):
            right = _make_choice(right, condition)
            left = graph.value_of(left, right)
        else:
            is_fraction = isinstance(left, float) or isinstance(right, float)
            dtype = DType.float32 if is_fraction else DType.int64
            left, right = (constant(number, dtype, condition.device) for number in (left, right))
    return apply(WHERE, condition, left, right)


def _make_choice(choice: ValueLike, condition: Value) -> Value:
    """Return an operand as a value; arrays and lists become constants on the condition's device."""
    if isinstance(choice, Value | Dim | str):
        return dequantize_value(choice)
    return constant(choice, device=condition.device)


def infer_where(condition: TensorType, left: TensorType, right: TensorType) -> TensorType:
    """Return the dtype of `left` and `right` and the shape that all three broadcast to."""
    require_bool(condition)
    require_same_dtype(left, right)
    shape = broadcast(condition.shape, broadcast(left.shape, right.shape))
    return replace(left, shape=shape)


def lower_where(condition: Tensor, left: Tensor, right: Tensor) -> Tensor:
    import torch

    return torch.where(condition, left, right)


WHERE = Op("where", infer_where, lower_where)
