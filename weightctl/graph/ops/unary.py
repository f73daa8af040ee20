"""Functions of every element of one tensor."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph.ops.rules import require_bool, require_float, require_number
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = [
    "abs",
    "cos",
    "exp",
    "infer",
    "log",
    "logical_not",
    "lower",
    "neg",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "sqrt",
    "tanh",
]

# What torch calls each.
_FUNCTIONS = {
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "sin": "sin",
    "cos": "cos",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "silu": "nn.functional.silu",
    "relu": "relu",
    "abs": "abs",
    "neg": "neg",
    "logical_not": "logical_not",
}
_OF_INTEGERS_TOO = {"relu", "abs", "neg"}


def exp(x: ValueLike) -> Value:
    """Return the exponentials of the elements."""
    return apply("unary", x, function="exp")


def log(x: ValueLike) -> Value:
    """Return the natural logarithms; NaN for negative numbers."""
    return apply("unary", x, function="log")


def sqrt(x: ValueLike) -> Value:
    """Return the square roots; NaN for negative numbers."""
    return apply("unary", x, function="sqrt")


def rsqrt(x: ValueLike) -> Value:
    """Return the reciprocals of the square roots."""
    return apply("unary", x, function="rsqrt")


def sin(x: ValueLike) -> Value:
    """Return the sines of angles in radians."""
    return apply("unary", x, function="sin")


def cos(x: ValueLike) -> Value:
    """Return the cosines of angles in radians."""
    return apply("unary", x, function="cos")


def tanh(x: ValueLike) -> Value:
    """Return the hyperbolic tangents."""
    return apply("unary", x, function="tanh")


def sigmoid(x: ValueLike) -> Value:
    """Return the logistic function `1 / (1 + exp(-x))`."""
    return apply("unary", x, function="sigmoid")


def silu(x: ValueLike) -> Value:
    """Return the sigmoid linear unit `x * sigmoid(x)`."""
    return apply("unary", x, function="silu")


def relu(x: ValueLike) -> Value:
    """Return the elements where they are positive, and 0 elsewhere."""
    return apply("unary", x, function="relu")


def abs(x: ValueLike) -> Value:  # noqa: A001  # as Python calls it
    """Return the absolute values."""
    return apply("unary", x, function="abs")


def neg(x: ValueLike) -> Value:
    """Return the elements with the other sign."""
    return apply("unary", x, function="neg")


def logical_not(x: ValueLike) -> Value:
    """Return the opposite truth values; the operand is of dtype bool."""
    return apply("unary", x, function="logical_not")


def infer(x: TensorType, *, function: str) -> TensorType:
    """Return the operand's own type."""
    if function == "logical_not":
        require_bool(x)
    elif function in _OF_INTEGERS_TOO:
        require_number(x)
    else:
        require_float(x)
    if function == "neg" and x.dtype is DType.uint8:
        raise GraphError("uint8 has no negative numbers", hint="`.cast(DType.int64)` first")
    return x


def lower(x: Tensor, *, function: str) -> Tensor:
    """Return a copy."""
    import torch

    compute: Any = attrgetter(_FUNCTIONS[function])(torch)
    result: Tensor = compute(x)
    return result
