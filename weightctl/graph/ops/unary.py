"""Elementwise functions of one tensor, casts and prints."""

from __future__ import annotations

import sys
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from weightctl.dtype import DType, as_dtype
from weightctl.errors import GraphError
from weightctl.graph.graph import apply
from weightctl.graph.ops.lowering import dtype_of, torch_dtype
from weightctl.graph.ops.rules import Op, require_bool, require_float, require_number
from weightctl.graph.scope import refusing

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType

__all__ = [
    "CAST", "GELU", "PRINT", "UNARY", "UNARY_FUNCTIONS",
    "abs", "cast", "cos", "exp", "gelu", "log", "logical_not", "neg", "print_value", "relu",
    "rsqrt", "sigmoid", "silu", "sin", "softplus", "sqrt", "tanh",
]  # fmt: skip

# The name of each function in torch.
UNARY_FUNCTIONS = {
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "sin": "sin",
    "cos": "cos",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "silu": "nn.functional.silu",
    "softplus": "nn.functional.softplus",
    "relu": "relu",
    "abs": "abs",
    "neg": "neg",
    "logical_not": "logical_not",
}
_OF_INTEGERS_TOO = {"relu", "abs", "neg"}


def exp(x: ValueLike) -> Value:
    """Return the exponentials of the elements."""
    return apply(UNARY, x, function="exp")


def log(x: ValueLike) -> Value:
    """Return the natural logarithms; NaN for negative numbers."""
    return apply(UNARY, x, function="log")


def sqrt(x: ValueLike) -> Value:
    """Return the square roots; NaN for negative numbers."""
    return apply(UNARY, x, function="sqrt")


def rsqrt(x: ValueLike) -> Value:
    """Return the reciprocals of the square roots."""
    return apply(UNARY, x, function="rsqrt")


def sin(x: ValueLike) -> Value:
    """Return the sines of angles in radians."""
    return apply(UNARY, x, function="sin")


def cos(x: ValueLike) -> Value:
    """Return the cosines of angles in radians."""
    return apply(UNARY, x, function="cos")


def tanh(x: ValueLike) -> Value:
    """Return the hyperbolic tangents."""
    return apply(UNARY, x, function="tanh")


def sigmoid(x: ValueLike) -> Value:
    """Return the logistic function `1 / (1 + exp(-x))`."""
    return apply(UNARY, x, function="sigmoid")


def silu(x: ValueLike) -> Value:
    """Return the sigmoid linear unit `x * sigmoid(x)`."""
    return apply(UNARY, x, function="silu")


def softplus(x: ValueLike) -> Value:
    """Return `log(1 + exp(x))`, a smooth form of `relu`."""
    return apply(UNARY, x, function="softplus")


def relu(x: ValueLike) -> Value:
    """Return the elements, with 0 in place of negative ones."""
    return apply(UNARY, x, function="relu")


def abs(x: ValueLike) -> Value:  # noqa: A001  # NumPy's name
    """Return the absolute values."""
    return apply(UNARY, x, function="abs")


def neg(x: ValueLike) -> Value:
    """Return the elements with the opposite sign."""
    return apply(UNARY, x, function="neg")


def logical_not(x: ValueLike) -> Value:
    """Return the negated elements; the operand must be bool."""
    return apply(UNARY, x, function="logical_not")


def infer_unary(x: TensorType, *, function: str) -> TensorType:
    """Return the type of the operand."""
    if function == "logical_not":
        require_bool(x)
    elif function in _OF_INTEGERS_TOO:
        require_number(x)
    else:
        require_float(x)
    if function == "neg" and x.dtype is DType.uint8:
        raise GraphError("uint8 cannot hold negative values", hint="use `.cast(DType.int64)` first")
    return x


def lower_unary(x: Tensor, *, function: str) -> Tensor:
    import torch

    compute: Any = attrgetter(UNARY_FUNCTIONS[function])(torch)
    result: Tensor = compute(x)
    return result


UNARY = Op("unary", infer_unary, lower_unary)


_APPROXIMATIONS = ("none", "tanh")


def gelu(x: ValueLike, *, approximate: Literal["none", "tanh"] = "none") -> Value:
    """Return the Gaussian error linear unit: each element times its normal distribution function.

    `approximate` is `none` for the exact function, or `tanh` for `0.5 * x * (1 + tanh(sqrt(2 / pi)
    * (x + 0.044715 * x**3)))`, with which GPT-2 was trained. Source: D. Hendrycks, K. Gimpel,
    "Gaussian error linear units", 2016.
    """
    return apply(GELU, x, approximate=approximate)


def infer_gelu(x: TensorType, *, approximate: str) -> TensorType:
    """Return the type of the operand."""
    require_float(x)
    if approximate not in _APPROXIMATIONS:
        raise GraphError(
            f"{approximate!r} is not a supported approximation",
            hint=f"use {' or '.join(map(repr, _APPROXIMATIONS))}",
        )
    return x


def lower_gelu(x: Tensor, *, approximate: str) -> Tensor:
    from torch.nn.functional import gelu

    return gelu(x, approximate=approximate)


GELU = Op("gelu", infer_gelu, lower_gelu)


def cast(x: ValueLike, dtype: DTypeLike) -> Value:
    """Return the elements in another dtype, rounded once, to nearest even.

    Floats lose their fractions in integer dtypes; in bool they are true if they are not 0. The
    result of a cast of NaN or of a value out of range to an integer dtype is torch's, while
    `WeightData.astype` raises an error. A value too large for a float dtype becomes infinity; in a
    dtype without infinity it becomes NaN, except that in float8_e4m3fn it becomes the largest
    value, 448. Raises `GraphError` for complex dtypes, and for float4, which is stored in pairs.
    """
    with refusing("cast", x):
        wanted = as_dtype(dtype)
    return apply(CAST, x, dtype=wanted)


def infer_cast(x: TensorType, *, dtype: DType) -> TensorType:
    """Return the type with the other dtype."""
    if x.dtype is not dtype:
        _require_one_number(x.dtype)
        _require_one_number(dtype)
    return replace(x, dtype=dtype)


def _require_one_number(dtype: DType) -> None:
    """Raise `GraphError` for a dtype whose elements are not single real numbers."""
    if dtype.is_complex or dtype is DType.float4_e2m1fn:
        raise GraphError(
            f"casts from and to {dtype.value} are not supported",
            hint="convert the weights beforehand, for example with `WeightData.astype`",
        )


def lower_cast(x: Tensor, *, dtype: DType) -> Tensor:
    """Return a copy, or the operand itself if it has the dtype."""
    import torch

    kind = torch_dtype(dtype)
    is_small = kind.is_floating_point and kind.itemsize < 4
    if is_small and x.dtype in {torch.float64, torch.int32, torch.int64}:
        x = _round_to_odd(x)
    return x.to(kind)


CAST = Op("cast", infer_cast, lower_cast)


def _round_to_odd(x: Tensor) -> Tensor:
    """Return float32 values that round to smaller dtypes exactly as the given values do.

    torch itself rounds to the nearest float32 first. That can create a tie, which then rounds in
    the wrong direction. Rounding towards 0 with the last bit set if anything was lost never creates
    a tie (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    import torch

    if x.dtype == torch.int64:
        # Above 2**40 the low 16 bits only decide on which side of a tie a value is: one bit is
        # enough.
        low = x & 0xFFFF
        x = torch.where(x.abs() < 2**40, x, x - low + 0x8000 * (low != 0))
    wide = x.double()
    near = wide.float()
    back = near.double()
    bits = near.view(torch.int32) - (back.abs() > wide.abs()).int()
    return torch.where(back == wide, near, (bits | 1).view(torch.float32))


def print_value(x: ValueLike, label: str = "") -> Value:
    """Return the operand, and print it to stdout whenever the graph runs.

    The first line has the label, the dtype and the shape. The elements follow as NumPy prints them,
    abridged if there are more than 100.
    """
    return apply(PRINT, x, label=label)


def infer_print(x: TensorType, *, label: str) -> TensorType:  # noqa: ARG001  # has no effect
    """Return the type of the operand."""
    return x


def lower_print(x: Tensor, *, label: str) -> Tensor:
    """Print the tensor and return it."""
    import numpy as np
    import torch

    numbers = x.detach().cpu()
    # NumPy has no bfloat16 and no 8-bit floats; float32 holds all their values.
    if x.is_floating_point() and x.dtype != torch.float64:
        numbers = numbers.float()
    title = f"{label}: " if label else ""
    shape = ", ".join(map(str, x.shape))
    shown = np.array2string(numbers.numpy(), threshold=100)
    sys.stdout.write(f"{title}{dtype_of(x.dtype).value}[{shape}]\n{shown}\n")
    return x


PRINT = Op("print", infer_print, lower_print, is_seen=True)
