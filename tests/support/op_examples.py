"""For every op: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec
from itertools import starmap
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from op_example import Example, Inferred, Refused
from weightctl import Buffer
from weightctl.device import DeviceRef
from weightctl.dtype import DType
from weightctl.graph import Shape, TensorType
from weightctl.shape import Dim

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]

CPU = DeviceRef.CPU()
F32, F16, BF16, I64, BOOL = (
    DType.float32, DType.float16, DType.bfloat16, DType.int64, DType.bool,
)  # fmt: skip
RANDOM = np.random.default_rng(20)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def numbers(*values: float, kind: Any = np.float32) -> Array:
    return np.array(values, kind)


def bf16(*shape: int) -> Array:
    return floats(*shape).astype(ml_dtypes.bfloat16)


def f32(*shape: Any) -> TensorType:
    return TensorType(F32, shape)


def i64(*shape: Any) -> TensorType:
    return TensorType(I64, shape)


def bools(*shape: Any) -> TensorType:
    return TensorType(BOOL, shape)


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
    *TOP_K, *SOFTMAX, *CONSTANT, *OTHERS,
]  # fmt: skip

ADD = {"function": "add"}
MEAN: dict[str, Any] = {"function": "mean", "axis": None, "keepdims": False}
MAX = MEAN | {"function": "max"}
INFERRED: list[Inferred] = [
    Inferred("arithmetic", (f32("batch", 1), f32("words")), f32("batch", "words"), ADD),
    Inferred("arithmetic", (f32("batch", 4), f32()), f32("batch", 4), ADD),
    Inferred("arithmetic", (f32(1), f32(Dim("n") * 2)), f32(Dim("n") + "n"), ADD),
    Inferred("comparison", (i64("n", 1), i64("n")), bools("n", "n"), {"function": "less"}),
    Inferred("unary", (f32("batch", 3),), f32("batch", 3), {"function": "silu"}),
    Inferred("gelu", (f32("batch", 3),), f32("batch", 3), {"approximate": "none"}),
    Inferred("cast", (f32("batch", 3),), TensorType(BF16, ("batch", 3)), {"dtype": BF16}),
    Inferred("where", (bools("n", 1), f32("m"), f32()), f32("n", "m")),
    Inferred("matmul", (f32("batch", "n", "k"), f32("k", 5)), f32("batch", "n", 5)),
    Inferred("matmul", (f32("b", 1, "n", 4), f32("heads", 4, "m")), f32("b", "heads", "n", "m")),
    Inferred("matmul", (f32("k"), f32("k")), f32()),
    Inferred("einsum", (f32("b", "q", 4), f32("b", "k", 4)), f32("b", "q", "k"),
             {"equation": "bqd,bkd->bqk"}),
    Inferred("einsum", (f32(2, "n"), f32("n", 3)), f32(2, 3), {"equation": "ij,jk"}),
    Inferred("reduce", (f32("batch", "n"),), f32("batch"), MEAN | {"axis": -1}),
    Inferred("reduce", (f32("batch", "n"),), f32(1, 1), MEAN | {"keepdims": True}),
    Inferred("top_k", (f32("b", "n"),), (f32("b", 5), i64("b", 5)), {"k": Dim(5), "axis": -1}),
    Inferred("top_k", (f32("n", 3),), (f32("k", 3), i64("k", 3)), {"k": Dim("k"), "axis": 0}),
    Inferred("softmax", (f32("batch", "n"),), f32("batch", "n"), {"axis": -1}),
    Inferred(
        "transfer_to", (f32("n"),), TensorType(F32, ("n",), DeviceRef.GPU(0)),
        {"device": DeviceRef.GPU(0)},
    ),
    Inferred("print", (f32("batch"),), f32("batch"), {"label": ""}),
    Inferred("dims", (), i64(), {"dims": Dim("n"), "device": CPU}),
    Inferred("dims", (), i64(2), {"dims": Shape(("n", 4)), "device": CPU}),
]  # fmt: skip

REFUSED: list[Refused] = [
    Refused(
        "arithmetic",
        (f32(2, 3), f32(2, 4)),
        "dimension -1 is 3 in one operand and 4 in the other",
        ADD,
    ),
    Refused(
        "arithmetic",
        (f32("n", 3), f32("m", 3)),
        "dimension -2 is n in one operand and m in the other",
        ADD,
    ),
    Refused(
        "arithmetic", (f32("n"), f32(3)), "dimension -1 is n in one operand and 3 in the other", ADD
    ),
    Refused("arithmetic", (f32(2), i64(2)), "float32 and int64 cannot be combined", ADD),
    Refused("arithmetic", (bools(2), bools(2)), "the operation does not support bool", ADD),
    Refused("arithmetic", (i64(2), i64(2)), "use `//`", {"function": "div"}),
    Refused(
        "comparison",
        (f32(2), f32(3)),
        "dimension -1 is 2 in one operand and 3 in the other",
        {"function": "less"},
    ),
    Refused(
        "comparison",
        (bools(2), bools(2)),
        "the operation does not support bool",
        {"function": "less"},
    ),
    Refused(
        "comparison",
        (f32(2), f32(2)),
        "the operation needs bool, not float32",
        {"function": "logical_and"},
    ),
    Refused(
        "unary", (i64(2),), "the operation needs a float dtype, not int64", {"function": "exp"}
    ),
    Refused(
        "unary", (f32(2),), "the operation needs bool, not float32", {"function": "logical_not"}
    ),
    Refused(
        "unary",
        (TensorType(DType.uint8, (2,)),),
        "uint8 cannot hold negative values",
        {"function": "neg"},
    ),
    Refused(
        "unary", (TensorType(DType.float8_e4m3fn, (2,)),), "DType.float32", {"function": "abs"}
    ),
    Refused(
        "gelu", (i64(2),), "the operation needs a float dtype, not int64", {"approximate": "none"}
    ),
    Refused("gelu", (f32(2),), "'erf' is not a supported approximation", {"approximate": "erf"}),
    Refused("cast", (TensorType(DType.complex64, (2,)),), "complex64", {"dtype": F32}),
    Refused("cast", (f32(2),), "float4_e2m1fn", {"dtype": DType.float4_e2m1fn}),
    Refused("where", (f32(2), f32(2), f32(2)), "the operation needs bool, not float32"),
    Refused("where", (bools(2), f32(2), i64(2)), "float32 and int64 cannot be combined"),
    Refused(
        "where", (bools(3), f32(2), f32(2)), "dimension -1 is 3 in one operand and 2 in the other"
    ),
    Refused("einsum", (f32(2),), "`i,i->` has 2 operands, but 1 were given", {"equation": "i,i->"}),
    Refused(
        "einsum",
        (f32(2, 3),),
        "`i` has 1 letters, but float32[2, 3] has 2 dimensions",
        {"equation": "i->i"},
    ),
    Refused(
        "einsum",
        (f32(2), f32(3)),
        "`i` has size 2 in one operand and 3 in another",
        {"equation": "i,i->i"},
    ),
    Refused(
        "einsum",
        (f32(2),),
        "the right side of `i->j` has a repeated letter, or a letter that is not on the left side",
        {"equation": "i->j"},
    ),
    Refused(
        "einsum",
        (f32(2),),
        "`...i->i` is not a valid equation: it needs letters, commas and one `->`",
        {"equation": "...i->i"},
    ),
    Refused(
        "einsum",
        (TensorType(DType.int64, [2]),),
        "the operation needs a float dtype, not int64",
        {"equation": "i->"},
    ),
    Refused("matmul", (f32(2, 3), f32(2, 3)), "the inner dimensions 3 and 2 differ"),
    Refused("matmul", (f32(2, "n"), f32("m", 3)), "the inner dimensions n and m differ"),
    Refused(
        "matmul",
        (f32(), f32(2, 3)),
        "the operation needs a tensor of at least one dimension, not 0",
    ),
    Refused(
        "matmul",
        (f32(2, 2, 3), f32(3, 3, 4)),
        "dimension -1 is 2 in one operand and 3 in the other",
    ),
    Refused("matmul", (i64(2, 3), i64(3, 4)), "the operation needs a float dtype, not int64"),
    Refused(
        "matmul", (f32(2, 3), TensorType(BF16, (3, 4))), "float32 and bfloat16 cannot be combined"
    ),
    Refused("reduce", (i64(2),), "the operation needs a float dtype, not int64", MEAN),
    Refused("reduce", (bools(2),), "the operation does not support bool", MAX),
    Refused(
        "reduce",
        (f32(2, 3),),
        "axis 2 does not exist: a tensor of rank 2 has axes -2 to 1",
        MEAN | {"axis": 2},
    ),
    Refused("reduce", (f32(0, "n"),), "an empty axis has no largest or smallest element", MAX),
    Refused("top_k", (f32(2, 3),), "3 elements, fewer than 4", {"k": Dim(4), "axis": -1}),
    Refused(
        "softmax",
        (f32(2, 3),),
        "axis -3 does not exist: a tensor of rank 2 has axes -2 to 1",
        {"axis": -3},
    ),
    Refused("softmax", (i64(2, 3),), "the operation needs a float dtype, not int64", {"axis": -1}),
]

# The ops that change shapes, those of whole layers and those of several ranks have their own files.
for _file in filter(find_spec, ("op_examples_shapes", "op_examples_ranks")):
    _more = import_module(_file)
    EXAMPLES += _more.EXAMPLES
    INFERRED += _more.INFERRED
    REFUSED += _more.REFUSED
