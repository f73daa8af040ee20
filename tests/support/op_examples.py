"""For every op: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec
from itertools import starmap
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from op_example import Example
from op_examples_types import INFERRED, REFUSED
from op_values import BF16, BOOL, CPU, F16, F32, I64, bf16, floats, numbers
from weightctl import Buffer
from weightctl.dtype import DType
from weightctl.graph import Shape
from weightctl.shape import Dim

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]

LEFT, RIGHT = floats(2, 3, 4), floats(3, 1)
WHOLE, DIVISORS = numbers(-7, 7, 6, -6, kind=np.int64), numbers(2, -2, 3, 3, kind=np.int64)
NAN = numbers(1, math.nan, -1, math.inf)


def _arithmetic(function: str, reference: Callable[..., Any], *inputs: Array) -> Example:
    # NumPy's and torch's powers differ in the last bit.
    tolerance = 1e-6 if function == "pow" and inputs[0].dtype.kind == "f" else 0.0
    return Example("arithmetic", inputs, reference(*inputs), {"function": function}, tolerance)


ARITHMETIC = [
    _arithmetic("add", np.add, LEFT, RIGHT),
    _arithmetic("add", np.add, WHOLE, DIVISORS),
    _arithmetic("add", np.add, bf16(2, 1, 5), bf16(4, 1)),
    _arithmetic("add", np.add, floats(0, 3), floats(3)),
    _arithmetic("sub", np.subtract, LEFT, RIGHT),
    _arithmetic("sub", np.subtract, numbers(1, kind=np.uint8), numbers(2, kind=np.uint8)),
    _arithmetic("mul", np.multiply, LEFT, RIGHT),
    _arithmetic("div", np.divide, LEFT, RIGHT),
    _arithmetic("floordiv", np.floor_divide, WHOLE, DIVISORS),
    _arithmetic("floordiv", np.floor_divide, numbers(-7.5, 7.5), numbers(2, -2)),
    _arithmetic("mod", np.mod, WHOLE, DIVISORS),
    _arithmetic("mod", np.mod, numbers(-7.5, 7.5), numbers(2, -2)),
    _arithmetic("pow", np.power, np.abs(LEFT), RIGHT),
    _arithmetic("pow", np.power, WHOLE, np.abs(DIVISORS)),
    _arithmetic("minimum", np.minimum, LEFT, RIGHT),
    _arithmetic("minimum", np.minimum, NAN, numbers(0, 0, math.nan, 0)),
    _arithmetic("maximum", np.maximum, LEFT, RIGHT),
    _arithmetic("maximum", np.maximum, WHOLE, DIVISORS),
]


def _comparison(function: str, *inputs: Array) -> Example:
    return Example("comparison", inputs, getattr(np, function)(*inputs), {"function": function})


YES_AND_NO = (np.array([True, True, False, False]), np.array([True, False, True, False]))
COMPARISON = [
    *(
        _comparison(function, *inputs)
        for function in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
        for inputs in (
            (numbers(1, 2, math.nan, 3), numbers(1, 3, math.nan, 2)),
            (np.arange(3)[:, None], np.arange(3)),
            (numbers(1, 2).astype(ml_dtypes.bfloat16), numbers(1, 3).astype(ml_dtypes.bfloat16)),
        )
    ),
    *(
        _comparison(function, *YES_AND_NO)
        for function in ("equal", "not_equal", "logical_and", "logical_or", "logical_xor")
    ),
]


def _unary(function: str, reference: Callable[..., Any], x: Array) -> Example:
    exact = function in {"abs", "neg", "relu", "logical_not"}
    return Example("unary", (x,), reference(x), {"function": function}, 0.0 if exact else 2e-6)


def _sigmoid(x: Array) -> Array:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


POSITIVE = np.abs(LEFT) + np.float32(0.1)
UNARY = [
    _unary("exp", np.exp, LEFT),
    _unary("log", np.log, POSITIVE),
    _unary("sqrt", np.sqrt, POSITIVE),
    _unary("rsqrt", lambda x: 1 / np.sqrt(x), POSITIVE),
    _unary("sin", np.sin, LEFT),
    _unary("cos", np.cos, LEFT),
    _unary("tanh", np.tanh, LEFT),
    _unary("sigmoid", _sigmoid, LEFT),
    _unary("silu", lambda x: x * _sigmoid(x), LEFT),
    _unary("softplus", lambda x: np.log1p(np.exp(x)), LEFT),
    _unary("relu", lambda x: np.maximum(x, 0), LEFT),
    _unary("relu", lambda x: np.maximum(x, 0), WHOLE),
    _unary("abs", np.abs, LEFT),
    _unary("abs", np.abs, WHOLE),
    _unary("neg", np.negative, bf16(3)),
    _unary("neg", np.negative, WHOLE),
    _unary("logical_not", np.logical_not, YES_AND_NO[0]),
]


def _gelu(x: Array) -> Array:
    one = [0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in x.reshape(-1).tolist()]
    return np.array(one, np.float32).reshape(x.shape)


def _gelu_tanh(x: Array) -> Array:
    wide = x.astype(np.float64)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    return (0.5 * wide * (1 + np.tanh(inner))).astype(np.float32)


GELU = [
    Example("gelu", (LEFT,), _gelu(LEFT), {"approximate": "none"}, 1e-6),
    Example("gelu", (LEFT,), _gelu_tanh(LEFT), {"approximate": "tanh"}, 1e-6),
]


def _cast(x: Array, dtype: DType, expected: Array) -> Example:
    return Example("cast", (x,), expected, {"dtype": dtype})


HALF = bf16(3)
CAST = [
    _cast(LEFT, BF16, LEFT.astype(ml_dtypes.bfloat16)),
    _cast(LEFT, F16, LEFT.astype(np.float16)),
    _cast(LEFT, F32, LEFT),
    _cast(HALF, F32, HALF.astype(np.float32)),
    _cast(numbers(1.9, -1.9, 0), I64, np.array([1, -1, 0])),
    _cast(numbers(0, 0.1, -2), BOOL, np.array([False, True, True])),
    _cast(np.array([True, False]), F32, numbers(1, 0)),
    _cast(numbers(1, -2), DType.float8_e4m3fn, numbers(1, -2).astype(ml_dtypes.float8_e4m3fn)),
]

CHOICE = np.array([[True], [False]])
WHERE = [
    Example("where", (CHOICE, LEFT[0, :2], floats(4) * 0), np.where(CHOICE, LEFT[0, :2], 0)),
    Example("where", (CHOICE, WHOLE, DIVISORS), np.where(CHOICE, WHOLE, DIVISORS)),
]


def _matmul(left: Array, right: Array) -> Example:
    wide = left.astype(np.float64) @ right.astype(np.float64)
    tolerance = {2: 8e-3, 4: 1e-5}[left.itemsize]
    return Example("matmul", (left, right), np.asarray(wide).astype(left.dtype), {}, tolerance)


MATMUL = list(
    starmap(
        _matmul,
        [
            (floats(3, 4), floats(4, 5)),
            (floats(4), floats(4)),
            (floats(4), floats(4, 5)),
            (floats(3, 4), floats(4)),
            (floats(2, 3, 4), floats(4)),
            (floats(4), floats(2, 4, 5)),
            (floats(2, 3, 4), floats(4, 5)),
            (floats(7, 1, 3, 4), floats(2, 4, 5)),
            (floats(3, 0), floats(0, 5)),
            (bf16(3, 64), bf16(64, 5)),
            (floats(3, 64).astype(np.float16), floats(64, 5).astype(np.float16)),
        ],
    )
)


def _reduce(
    function: str, x: Array, axis: int | None, keepdims: bool, tolerance: float = 0.0
) -> Example:
    reference = np.asarray(getattr(np, function)(x, axis=axis, keepdims=keepdims)).astype(x.dtype)
    attributes = {"function": function, "axis": axis, "keepdims": keepdims}
    return Example("reduce", (x,), reference, attributes, tolerance)


REDUCE = [
    *(
        _reduce(function, LEFT, axis, keepdims, 1e-6)
        for function in ("sum", "mean", "max", "min")
        for axis in (None, 0, -1)
        for keepdims in (False, True)
    ),
    _reduce("sum", WHOLE.astype(np.int32), None, keepdims=False),
    _reduce("sum", floats(0, 3), 0, keepdims=False),
    _reduce("sum", np.array(3.0, np.float32), None, keepdims=False),
    _reduce("max", WHOLE, 0, keepdims=True),
    _reduce("min", numbers(1, math.nan), None, keepdims=False),
]


def _top_k(x: Array, k: int, axis: int) -> Example:
    order = np.flip(np.argsort(x, axis), axis).take(range(k), axis)
    return Example(
        "top_k", (x,), (np.take_along_axis(x, order, axis), order), {"k": Dim(k), "axis": axis}
    )


def _mask_top_k(x: Array, k: int) -> Example:
    found = np.zeros(x.shape, bool)
    np.put_along_axis(found, np.argsort(-x, -1)[..., :k], True, -1)
    return Example("mask_top_k", (x,), found, {"k": k})


MASK_TOP_K = [_mask_top_k(LEFT, 2), _mask_top_k(LEFT, 9)]
TOP_K = [_top_k(LEFT, 2, -1), _top_k(LEFT, 3, 1), _top_k(WHOLE, 4, 0), _top_k(LEFT, 0, -1)]


def _softmax(x: Array, axis: int, tolerance: float = 1e-6) -> Example:
    wide = np.exp(x.astype(np.float64) - x.astype(np.float64).max(axis, keepdims=True))
    shares = (wide / wide.sum(axis, keepdims=True)).astype(x.dtype)
    return Example("softmax", (x,), shares, {"axis": axis}, tolerance)


SOFTMAX = [_softmax(LEFT, -1), _softmax(LEFT, 0), _softmax(bf16(2, 5), 1), _softmax(LEFT * 100, -1)]


def _constant(array: Array) -> Example:
    return Example("constant", (), array, {"data": Buffer.from_numpy(array), "device": CPU})


CONSTANT = [
    _constant(array)
    for array in (
        LEFT, bf16(2, 2), np.array(3), np.array([True, False]), floats(0, 3),
        numbers(1, 2).astype(ml_dtypes.float8_e4m3fn),
    )
]  # fmt: skip

OTHERS = [
    Example("transfer_to", (LEFT,), LEFT, {"device": CPU}),
    *(Example("print", (x,), x, {"label": "x"}) for x in (LEFT, bf16(2), np.array(3))),
    Example("dims", (), np.array(7), {"dims": Dim(7), "device": CPU}),
    Example("dims", (), np.array([7, 2]), {"dims": Shape((7, 2)), "device": CPU}),
    Example("dims", (), np.array([], np.int64), {"dims": Shape(()), "device": CPU}),
]


def _einsum(equation: str, *operands: Array) -> Example:
    wide = np.einsum(equation, *(operand.astype(np.float64) for operand in operands))
    kind = operands[0].dtype
    return Example("einsum", operands, np.asarray(wide).astype(kind), {"equation": equation}, 1e-5)


EINSUM = [
    _einsum("bqd,bkd->bqk", floats(2, 3, 4), floats(2, 5, 4)),
    _einsum("ij,jk", floats(2, 3), floats(3, 4)),
    _einsum("ii->i", floats(3, 3)),
    _einsum("ij->", floats(2, 3)),
    _einsum("i,j,k->kji", floats(2), floats(3), floats(4)),
]

EXAMPLES: list[Example] = [
    *ARITHMETIC, *COMPARISON, *UNARY, *GELU, *CAST, *WHERE, *MATMUL, *EINSUM, *REDUCE,
    *MASK_TOP_K, *TOP_K, *SOFTMAX, *CONSTANT, *OTHERS,
]  # fmt: skip

# The ops that change shapes, those of whole layers and those of several ranks have their own files.
_FILES = (
    "op_examples_shapes", "op_examples_delta", "op_examples_ranks", "op_examples_states",
    "op_examples_rows",
)  # fmt: skip
for _file in filter(find_spec, _FILES):
    _more = import_module(_file)
    EXAMPLES += _more.EXAMPLES
    INFERRED += _more.INFERRED
    REFUSED += _more.REFUSED
