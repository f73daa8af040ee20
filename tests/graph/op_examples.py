"""For every op: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import starmap
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from weightctl import Buffer
from weightctl.device import DeviceRef
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.graph import Shape, TensorType
from weightctl.shape import Dim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Array = np.ndarray[Any, Any]

# What the table of op examples is made of.


@dataclass(frozen=True)
class Example:
    """One run of an op: its inputs, its attributes, and what NumPy (or torch) says comes out.

    `tolerance` is both the absolute and the relative one; 0 asks for equal bits.
    """

    op: str
    inputs: tuple[Array, ...]
    expected: Array | tuple[Array, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tolerance: float = 0.0


@dataclass(frozen=True)
class Inferred:
    """Types that an op takes, with symbolic dimensions, and the types that it says come out."""

    op: str
    inputs: tuple[TensorType, ...]
    expected: TensorType | tuple[TensorType, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Refused:
    """Types that an op does not take, and a part of the error that says so."""

    op: str
    inputs: tuple[TensorType, ...]
    says: str
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


# Arrays and types that the examples of ops are made of.

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


def f32(*shape: Any, device: int | None = None) -> TensorType:
    return TensorType(F32, shape, CPU if device is None else DeviceRef.GPU(device))


def i64(*shape: Any) -> TensorType:
    return TensorType(I64, shape)


def bools(*shape: Any) -> TensorType:
    return TensorType(BOOL, shape)


# For every op: the type of its result, and the inputs that it refuses.

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
    Inferred("mask_top_k", (f32("b", "n"),), TensorType(DType.bool, ["b", "n"]), {"k": 5}),
    Inferred("top_k", (f32("b", "n"),), (f32("b", 5), i64("b", 5)), {"k": Dim(5), "axis": -1}),
    Inferred("top_k", (f32("n", 3),), (f32("k", 3), i64("k", 3)), {"k": Dim("k"), "axis": 0}),
    Inferred("softmax", (f32("batch", "n"),), f32("batch", "n"), {"axis": -1}),
    Inferred("transfer_to", (f32("n"),), TensorType(F32, ("n",), DeviceRef.GPU(0)),
             {"device": DeviceRef.GPU(0)}),
    Inferred("print", (f32("batch"),), f32("batch"), {"label": ""}),
    Inferred("dims", (), i64(), {"dims": Dim("n"), "device": CPU}),
    Inferred("dims", (), i64(2), {"dims": Shape(("n", 4)), "device": CPU}),
]  # fmt: skip

REFUSED: list[Refused] = [
    Refused("arithmetic", (f32(2, 3), f32(2, 4)),
            "dimension -1 is 3 in one operand and 4 in the other", ADD),
    Refused("arithmetic", (f32("n", 3), f32("m", 3)),
            "dimension -2 is n in one operand and m in the other", ADD),
    Refused("arithmetic", (f32("n"), f32(3)), "dimension -1 is n in one operand and 3 in the other",
            ADD),
    Refused("arithmetic", (f32(2), i64(2)), "float32 and int64 cannot be combined", ADD),
    Refused("arithmetic", (bools(2), bools(2)), "the operation does not support bool", ADD),
    Refused("arithmetic", (i64(2), i64(2)), "use `//`", {"function": "div"}),
    Refused("comparison", (f32(2), f32(3)), "dimension -1 is 2 in one operand and 3 in the other",
            {"function": "less"}),
    Refused("comparison", (bools(2), bools(2)), "the operation does not support bool",
            {"function": "less"}),
    Refused("comparison", (f32(2), f32(2)), "the operation needs bool, not float32",
            {"function": "logical_and"}),
    Refused("unary", (i64(2),), "the operation needs a float dtype, not int64",
            {"function": "exp"}),
    Refused("unary", (f32(2),), "the operation needs bool, not float32",
            {"function": "logical_not"}),
    Refused("unary", (TensorType(DType.uint8, (2,)),), "uint8 cannot hold negative values",
            {"function": "neg"}),
    Refused("unary", (TensorType(DType.float8_e4m3fn, (2,)),), "DType.float32",
            {"function": "abs"}),
    Refused("gelu", (i64(2),), "the operation needs a float dtype, not int64",
            {"approximate": "none"}),
    Refused("gelu", (f32(2),), "'erf' is not a supported approximation", {"approximate": "erf"}),
    Refused("cast", (TensorType(DType.complex64, (2,)),), "complex64", {"dtype": F32}),
    Refused("cast", (f32(2),), "float4_e2m1fn", {"dtype": DType.float4_e2m1fn}),
    Refused("where", (f32(2), f32(2), f32(2)), "the operation needs bool, not float32"),
    Refused("where", (bools(2), f32(2), i64(2)), "float32 and int64 cannot be combined"),
    Refused("where", (bools(3), f32(2), f32(2)),
            "dimension -1 is 3 in one operand and 2 in the other"),
    Refused("einsum", (f32(2),), "`i,i->` describes 2 operands, not 1", {"equation": "i,i->"}),
    Refused("einsum", (f32(2, 3),), "`i` has 1 letter, but float32[2, 3] has 2 dimensions",
            {"equation": "i->i"}),
    Refused("einsum", (f32(2), f32(3)), "`i` has size 2 in one operand and 3 in another",
            {"equation": "i,i->i"}),
    Refused(
        "einsum",
        (f32(2),),
        "the right side of `i->j` has a repeated letter, or a letter that is not on the left side",
        {"equation": "i->j"},
    ),
    Refused("einsum", (f32(2),),
            "`...i->i` is not a valid equation: it needs letters, commas and one `->`",
            {"equation": "...i->i"}),
    Refused("einsum", (TensorType(DType.int64, [2]),),
            "the operation needs a float dtype, not int64", {"equation": "i->"}),
    Refused("matmul", (f32(2, 3), f32(2, 3)), "the inner dimensions 3 and 2 differ"),
    Refused("matmul", (f32(2, "n"), f32("m", 3)), "the inner dimensions n and m differ"),
    Refused("matmul", (f32(), f32(2, 3)),
            "the operation needs a tensor of at least one dimension, not 0"),
    Refused("matmul", (f32(2, 2, 3), f32(3, 3, 4)),
            "dimension -1 is 2 in one operand and 3 in the other"),
    Refused("matmul", (i64(2, 3), i64(3, 4)), "the operation needs a float dtype, not int64"),
    Refused("matmul", (f32(2, 3), TensorType(BF16, (3, 4))),
            "float32 and bfloat16 cannot be combined"),
    Refused("reduce", (i64(2),), "the operation needs a float dtype, not int64", MEAN),
    Refused("reduce", (bools(2),), "the operation does not support bool", MAX),
    Refused("reduce", (f32(2, 3),), "axis 2 does not exist: a tensor of rank 2 has axes -2 to 1",
            MEAN | {"axis": 2}),
    Refused("reduce", (f32(0, "n"),), "an empty axis has no largest or smallest element", MAX),
    Refused("mask_top_k", (f32(2, 3),), "`k` is 0; it must be at least 1", {"k": 0}),
    Refused("top_k", (f32(2, 3),), "3 elements, fewer than 4", {"k": Dim(4), "axis": -1}),
    Refused("softmax", (f32(2, 3),), "axis -3 does not exist: a tensor of rank 2 has axes -2 to 1",
            {"axis": -3}),
    Refused("softmax", (i64(2, 3),), "the operation needs a float dtype, not int64", {"axis": -1}),
]  # fmt: skip


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


# For the ops that change shapes, and those of whole layers: what goes in, out, and is refused.

Q8_0 = QuantizationEncoding.Q8_0
BATCH, SEQ = Dim("batch"), Dim("seq")


X = floats(2, 3, 4)
IDS = np.array([[2, 0], [-1, 1]])
WHOLE_AXIS = (0, None, 1)

RANGE = {"start": 0, "stop": 5, "step": 1, "dtype": I64, "device": CPU}
HALF_SPLIT = {"interleaved": False}
PLAIN = {"causal": False, "window": None, "softcap": None, "scale": None}

# A block of Q8_0 is a scale in float16 and 32 numbers in int8.
SCALES = floats(3, 2).astype(np.float16)
BYTES = RANDOM.integers(-127, 128, (3, 2, 32), dtype=np.int8)
BLOCKS = np.concatenate([SCALES[..., None].view(np.uint8), BYTES.view(np.uint8)], -1).reshape(3, 68)
NUMBERS = (SCALES[..., None].astype(np.float32) * BYTES).reshape(3, 64)
DEQUANTIZE = {"encoding": Q8_0, "dtype": DType.float32, "shape": Shape([3, 64]), "device": CPU}
BLOCK_ROWS = {"encoding": Q8_0, "dtype": DType.float32, "device": CPU}


def _layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    wide = x.astype(np.float64)
    centered = wide - wide.mean(-1, keepdims=True)
    normal = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    return (normal * weight.astype(np.float64) + bias.astype(np.float64)).astype(x.dtype)


def _rms_norm(x: Array, weight: Array) -> Array:
    wide = x.astype(np.float32)
    normal = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + np.float32(1e-6))
    return normal.astype(x.dtype) * weight


def _convolved(x: Array, weight: Array) -> Array:
    padded = np.concatenate([np.zeros_like(x[:, : weight.shape[1] - 1]), x], 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[1], axis=1)
    made: Array = (windows * weight).sum(-1)
    return made


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    numbers = x[..., 0::2] + 1j * x[..., 1::2]
    turned = numbers * (cos + 1j * sin)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape).astype(np.float32)


def _attention(query: Array, key: Array, value: Array) -> Array:
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True) @ value


WEIGHT, BIAS, KERNEL = floats(4), floats(4), floats(4, 3)
QUERY, KEY, VALUE = floats(1, 2, 3, 4), floats(1, 2, 5, 4), floats(1, 2, 5, 4)
ANGLES = floats(3, 2)
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)
HALVES = tuple(array.astype(ml_dtypes.bfloat16) for array in (floats(3, 64), floats(64)))

EXAMPLES += [
    Example("transpose", (X,), X.swapaxes(0, 2), {"axis_1": 0, "axis_2": -1}),
    Example("permute", (X,), X.transpose(2, 0, 1), {"axes": (-1, 0, 1)}),
    Example("reshape", (X,), X.reshape(6, 4), {"shape": Shape([6, 4])}),
    Example("reshape", (X.T,), X.T.reshape(2, 12), {"shape": Shape([2, 12])}),
    Example("reshape", (X[:1, 0, :1],), X[0, 0, 0], {"shape": Shape()}),
    Example("unsqueeze", (X,), X[..., None], {"axis": -1}),
    Example("unsqueeze", (X,), X[:, None], {"axis": 1}),
    Example("broadcast_to", (X[:, :1],), np.broadcast_to(X[:, :1], (5, 2, 3, 4)),
            {"shape": Shape([5, 2, 3, 4])}),
    Example("concat", (X, X[:, :1]), np.concatenate([X, X[:, :1]], 1), {"axis": 1}),
    Example("concat", (IDS, IDS[:0]), IDS, {"axis": 0}),
    Example("split", (X,), (X[..., :1], X[..., 1:1], X[..., 1:]),
            {"sizes": Shape([1, 0, 3]), "axis": -1}),
    Example("slice", (X,), X[1, None, ::2], {"index": (1, None, (0, 3, 2), WHOLE_AXIS)}),
    Example("embedding", (X[0], IDS % 3), X[0][IDS % 3]),
    Example("embedding", (BLOCKS, IDS % 3), NUMBERS[IDS % 3], BLOCK_ROWS),
    Example("embedding", (BLOCKS, IDS[:0]), np.zeros((0, 2, 64), np.float32), BLOCK_ROWS),
    Example("range", (), np.arange(5), RANGE),
    Example("range", (), np.arange(7, -8, -3, np.float32),
            RANGE | {"start": 7, "stop": -8, "step": -3, "dtype": DType.float32}),
    Example("range", (), np.arange(5, 2), RANGE | {"start": 5, "stop": 2}),
    Example("rms_norm", (X, WEIGHT), _rms_norm(X, WEIGHT), {"epsilon": 1e-6}, 1e-6),
    Example("rms_norm", HALVES, _rms_norm(*HALVES), {"epsilon": 1e-6}),
    Example("layer_norm", (X, WEIGHT, BIAS), _layer_norm(X, WEIGHT, BIAS), {"epsilon": 1e-5}, 1e-6),
    Example("layer_norm", (*HALVES, HALVES[1]), _layer_norm(*HALVES, HALVES[1]), {"epsilon": 1e-5}),
    Example("causal_convolution", (X, KERNEL), _convolved(X, KERNEL), {}, 1e-6),
    Example("causal_convolution", (X, KERNEL, BIAS), _convolved(X, KERNEL) + BIAS, {}, 1e-6),
    Example("rope", (X, COS, SIN), _rotated(X, COS, SIN), {"interleaved": True}, 1e-6),
    Example("attention", (QUERY, KEY, VALUE), _attention(QUERY, KEY, VALUE), PLAIN, 1e-6),
]  # fmt: skip

INFERRED += [
    Inferred("transpose", (f32("batch", "seq", 4),), f32("batch", 4, "seq"),
             {"axis_1": 1, "axis_2": 2}),
    Inferred("permute", (f32("batch", "seq", 4),), f32("seq", 4, "batch"), {"axes": (1, 2, 0)}),
    Inferred("reshape", (f32("batch", "seq", 64),), f32(BATCH * "seq", 4, 16),
             {"shape": Shape([BATCH * "seq", 4, 16])}),
    Inferred("unsqueeze", (f32("batch"),), f32(1, "batch"), {"axis": 0}),
    Inferred("broadcast_to", (f32("seq", 1),), f32("batch", "seq", "keys"),
             {"shape": Shape(["batch", "seq", "keys"])}),
    Inferred("concat", (f32("batch", "past"), f32("batch", "seq"), f32("batch", 1)),
             f32("batch", Dim("past") + "seq" + 1), {"axis": 1}),
    Inferred("split", (f32(SEQ + 3, 2),), (f32(3, 2), f32("seq", 2)),
             {"sizes": Shape([3, SEQ]), "axis": 0}),
    Inferred("slice", (f32("batch", "seq", 4),), f32("batch", SEQ - 1, 2),
             {"index": (WHOLE_AXIS, (1, None, 1), (0, None, 2))}),
    Inferred("embedding", (f32("rows", 8), i64("batch", "seq")), f32("batch", "seq", 8)),
    Inferred("embedding", (TensorType(DType.uint8, ["rows", 68]), i64("seq")), f32("seq", 64),
             BLOCK_ROWS),
    Inferred("dequantize", (TensorType(DType.uint8, [3, 68]),), f32(3, 64), DEQUANTIZE),
    Inferred("range", (), i64("seq"), RANGE | {"stop": SEQ}),
    Inferred("range", (), i64((SEQ + 1) // 2), RANGE | {"start": SEQ, "stop": 2 * SEQ, "step": 2}),
    Inferred("range", (), i64(SEQ + 1), RANGE | {"start": SEQ, "stop": -1, "step": -1}),
    Inferred("range", (), i64(0), RANGE | {"start": SEQ + 1, "stop": SEQ}),
    Inferred("rms_norm", (f32("batch", 4),), f32("batch", 4), {"epsilon": 1e-6}),
    Inferred("layer_norm", (f32("batch", "dim"), f32("dim")), f32("batch", "dim"),
             {"epsilon": 1e-5}),
    Inferred("causal_convolution", (f32("batch", "seq", 4), f32(4, 3)), f32("batch", "seq", 4)),
    Inferred("rope",
             (f32("batch", 3, "seq", 8), f32("batch", 1, "seq", 2), f32("batch", 1, "seq", 2)),
             f32("batch", 3, "seq", 8), HALF_SPLIT),
    Inferred(
        "attention",
        (
            f32("batch", 6, "seq", 8),
            f32("batch", 2, "keys", 8),
            f32("batch", 2, "keys", 4),
            TensorType(BOOL, ["seq", "keys"]),
        ),
        f32("batch", 6, "seq", 4),
        PLAIN,
    ),
]  # fmt: skip

REFUSED += [
    Refused("transpose", (f32(2, 3),), "axis 2 does not exist: a tensor of rank 2 has axes -2 to 1",
            {"axis_1": 0, "axis_2": 2}),
    Refused("permute", (f32(2, 3),), "axes (0, 0)", {"axes": (0, 0)}),
    Refused("permute", (f32(2, 3),), "axes (0,)", {"axes": (0,)}),
    Refused("reshape", (f32("batch", 4),), "[8] has 8 elements, but the tensor has 4*batch",
            {"shape": Shape([8])}),
    Refused("reshape", (f32("batch", 4),), "[seq, 4] has 4*seq", {"shape": Shape(["seq", 4])}),
    Refused("reshape", (f32(2, 3),), "the size -1 in [-1, 4]", {"shape": (-1, Dim(4))}),
    Refused("reshape", (f32(2, 3),), "more than one -1", {"shape": (-1, -1)}),
    Refused("unsqueeze", (f32(2),), "axis 2 does not exist: a tensor of rank 2 has axes -2 to 1",
            {"axis": 2}),
    Refused("broadcast_to", (f32(2, 3),), "broadcast to [3, 3]", {"shape": Shape([3, 3])}),
    Refused("broadcast_to", (f32("seq"),), "broadcast to [4]", {"shape": Shape([4])}),
    Refused("broadcast_to", (f32(2, 3),), "broadcast to [3]", {"shape": Shape([3])}),
    Refused("concat", (), "the list of values is empty", {"axis": 0}),
    Refused("concat", (f32(2, "a"), f32(2, "b")),
            "the shapes of the values differ along an axis other than 0", {"axis": 0}),
    Refused("concat", (f32(2, 2), f32(2)),
            "the shapes of the values differ along an axis other than 0", {"axis": 0}),
    Refused("concat", (f32(2), i64(2)), "float32 and int64 cannot be combined", {"axis": 0}),
    Refused("split", (f32("seq"),), "sizes [2, 3] add up to 5, but dimension 0 is seq",
            {"sizes": Shape([2, 3]), "axis": 0}),
    Refused("split", (f32(2),), "add up to 0", {"sizes": Shape(), "axis": 0}),
    Refused("slice", (f32(2, "seq"),), "index 2 is out of bounds", {"index": (2,)}),
    Refused("slice", (f32(2),), "2 indices are too many for 1 dimensions", {"index": (0, 0)}),
    Refused("slice", (f32(2),), "an index can have only one `...`", {"index": (..., ...)}),
    Refused("slice", (f32(2),), "(0, None, -1) is not a valid index", {"index": ((0, None, -1),)}),
    Refused("embedding", (f32(2), i64(2)), "the table must have 2 dimensions, [rows, dim], not 1"),
    Refused("embedding", (f32(2, 2), f32(2)), "the operation needs an integer dtype, not float32"),
    Refused("dequantize", (TensorType(DType.uint8, [3, 68]),),
            "floats, so the result cannot be int8", DEQUANTIZE | {"dtype": DType.int8}),
    Refused("range", (), "the step of a range cannot be 0", RANGE | {"step": 0}),
    Refused("range", (), "the operation does not support bool", RANGE | {"dtype": BOOL}),
    Refused("rms_norm", (i64(2),), "the operation needs a float dtype, not int64",
            {"epsilon": 0.0}),
    Refused("rms_norm", (f32(2), f32(1)), "weight must be [2]", {"epsilon": 0.0}),
    Refused("rms_norm", (f32(2), TensorType(BF16, [2])), "float32 and bfloat16 cannot be combined",
            {"epsilon": 0.0}),
    Refused("causal_convolution", (f32(2, 4), f32(4, 3)), "must have three dimensions"),
    Refused("causal_convolution", (f32(1, 2, 4), f32(3, 3)), "weight must be [4, kernel]"),
    Refused("causal_convolution", (f32(1, 2, 4), f32(4, 3), f32(3)), "bias must be [4]"),
    Refused("layer_norm", (f32(),), "the operation needs a tensor of at least one dimension, not 0",
            {"epsilon": 0.0}),
    Refused("layer_norm", (f32(2), f32(2), f32(3)), "the shapes of weight and bias must be [2]",
            {"epsilon": 0.0}),
    Refused("rope", (f32(3, 4), f32(3, 3), f32(3, 3)),
            "3 angles rotate 6 elements, but the head has 4", HALF_SPLIT),
    Refused("rope", (f32(3, "dim"), f32(3, 2), f32(3, 2)),
            "2 angles rotate 4 elements, but the head has dim", HALF_SPLIT),
    Refused("rope", (f32(3, 4), f32(2, 2), f32(2, 2)),
            "the shape of positions [2] cannot be broadcast to [3]", HALF_SPLIT),
    Refused("rope", (f32(1, 4), f32(2, 2), f32(2, 2)),
            "the shape of positions [2] cannot be broadcast to [1]", HALF_SPLIT),
    Refused("rope", (f32(3, 4), f32(3, 2), f32(2)), "cos and sin have different shapes",
            HALF_SPLIT),
    Refused("rope", (f32(3, 4), TensorType(BF16, [3, 2]), f32(3, 2)),
            "cos and sin of dtype bfloat16 cannot", HALF_SPLIT),
    Refused("attention", (f32(2, 3, 4),) * 3, "four dimensions", PLAIN),
    Refused("attention", (f32(1, 3, 5, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 4)),
            "3 query heads cannot be divided among 2 KV heads", PLAIN),
    Refused("attention", (f32(1, 2, 5, 4), f32(1, 2, 5, 8), f32(1, 2, 5, 4)),
            "the shapes of key and value do not match the query", PLAIN),
    Refused("attention", (f32(1, 2, 5, 4), f32(1, 2, 5, 4), f32(1, 2, 6, 4)),
            "the shapes of key and value do not match the query", PLAIN),
    Refused("attention", (f32(1, 2, 5, 4),) * 3, "window and softcap must be positive and finite",
            PLAIN | {"window": 0}),
    Refused("attention", (*(f32(1, 2, 5, 4),) * 3, i64(5, 5)),
            "mask of dtype int64 cannot be used with a query of dtype float32", PLAIN),
    Refused("attention", (*(f32(1, 2, 5, 4),) * 3, f32(2, 1, 5, 5)),
            "cannot be broadcast to [1, 2, 5, 5]", PLAIN),
]  # fmt: skip


# For the delta rules: what goes in, what comes out, and what is refused.

RULE, GENERAL = "gated_delta_rule", "general_delta_rule"


def _rule(
    query: Array, key: Array, value: Array, decay: Array, beta: Array, before: Array | None = None
) -> tuple[Array, Array]:
    """Return what position after position gives, and the states after the last, in float64."""
    group = value.shape[2] // key.shape[2]
    query, key = (np.repeat(each, group, 2).astype(np.float64) for each in (query, key))
    decay = decay.reshape((*value.shape[:3], -1))[..., None]
    zeros = np.zeros((*value.shape[::2], key.shape[-1], value.shape[-1]))
    state = zeros if before is None else before.astype(np.float64)
    made = np.zeros(value.shape)
    for place in range(value.shape[1]):
        k, q = key[:, place, :, None], query[:, place, :, None]
        state = state * np.exp(decay[:, place])
        wrong = value[:, place, :, None] - k @ state
        state = state + beta[:, place, :, None, None] * k.swapaxes(-1, -2) @ wrong
        made[:, place] = (q @ state)[:, :, 0]
    return made.astype(np.float32), state.astype(np.float32)


def _example(positions: int, *, by_element: bool = False, has_states: bool = False) -> Example:
    batch, key_heads, heads, size, width = 2, 2, 4, 3, 5
    keys = (batch, positions, key_heads, size)
    shape = (batch, positions, heads)
    given: tuple[Array, ...] = (
        floats(*keys),
        floats(*keys) * np.float32(0.5),
        floats(*shape, width),
        -np.abs(floats(*shape, size) if by_element else floats(*shape)),
        np.abs(np.tanh(floats(*shape))),
    )
    if has_states:
        given = (*given, floats(batch, heads, size, width))
    return Example(RULE, given, _rule(*given), {}, 2e-5)


def _general(positions: int, *, has_states: bool = False) -> Example:
    """Return what position after position gives, in float64, of heads of other sizes."""
    query, key, decay, read, write = (floats(2, positions, 3, 4) for _ in range(5))
    decay, value = -np.abs(decay), floats(2, positions, 3, 5)
    read, write = read * np.float32(0.3), write * np.float32(0.3)
    before = [floats(2, 3, 4, 5)] if has_states else []
    state, made = sum(before, start=np.zeros((2, 3, 4, 5))), np.zeros(value.shape)
    for place in range(positions):
        was = np.einsum("bhk,bhkv->bhv", read[:, place], state)
        state = state * np.exp(decay[:, place, ..., None])
        state = state + np.einsum("bhk,bhv->bhkv", write[:, place], was)
        state = state + np.einsum("bhk,bhv->bhkv", key[:, place], value[:, place])
        made[:, place] = np.einsum("bhk,bhkv->bhv", query[:, place], state)
    given = (query, key, value, decay, read, write, *before)
    results = (made.astype(np.float32), state.astype(np.float32))
    return Example(GENERAL, given, results, {}, 2e-5)


# A chunk is 64 positions, or 16 with a decay for each element.
EXAMPLES += [
    _example(1),
    _example(150),
    _example(40, by_element=True),
    _example(70, has_states=True),
    _general(1),
    _general(20),
    _general(3, has_states=True),
    Example(RULE, (floats(1, 0, 1, 2),) * 3 + (floats(1, 0, 1),) * 2,
            (floats(1, 0, 1, 2), np.zeros((1, 1, 2, 2), np.float32))),
]  # fmt: skip

DELTA_QUERY, DELTA_VALUE, DELTA_NUMBERS = f32("b", "n", 2, 3), f32("b", "n", 4, 5), f32("b", "n", 4)
KEYS, STATES = f32("b", "n", 4, 3), f32("b", 4, 3, 5)
INFERRED += [
    Inferred(RULE, (DELTA_QUERY, DELTA_QUERY, DELTA_VALUE, DELTA_NUMBERS, DELTA_NUMBERS),
             (DELTA_VALUE, STATES)),
    Inferred(RULE,
             (DELTA_QUERY, DELTA_QUERY, DELTA_VALUE, f32("b", "n", 4, 3), DELTA_NUMBERS, STATES),
             (DELTA_VALUE, STATES)),
    Inferred(GENERAL, (KEYS, KEYS, DELTA_VALUE, KEYS, KEYS, KEYS), (DELTA_VALUE, STATES)),
]  # fmt: skip

REFUSED += [
    Refused(RULE, (DELTA_NUMBERS, DELTA_QUERY, DELTA_VALUE, DELTA_NUMBERS, DELTA_NUMBERS),
            "must have four dimensions"),
    Refused(RULE, (DELTA_QUERY, DELTA_VALUE, DELTA_VALUE, DELTA_NUMBERS, DELTA_NUMBERS),
            "query, key and value do not match"),
    Refused(RULE,
            (f32("b", "n", 3, 3), f32("b", "n", 3, 3), DELTA_VALUE, DELTA_NUMBERS, DELTA_NUMBERS),
            "4 heads cannot be divided among 3 key heads"),
    Refused(RULE,
            (DELTA_QUERY, DELTA_QUERY, DELTA_VALUE, DELTA_NUMBERS, DELTA_NUMBERS, DELTA_VALUE),
            "the states must be"),
    Refused(GENERAL, (KEYS, KEYS, DELTA_VALUE, KEYS, KEYS, KEYS, DELTA_VALUE),
            "the states must be"),
    Refused(RULE, (DELTA_QUERY, DELTA_QUERY, DELTA_VALUE, DELTA_VALUE, DELTA_NUMBERS),
            "decay and beta must be [b, n, 4]"),
    Refused(RULE, (DELTA_QUERY, DELTA_QUERY, DELTA_VALUE, DELTA_NUMBERS, DELTA_VALUE),
            "decay and beta must be [b, n, 4]"),
    Refused(
        RULE,
        (
            DELTA_QUERY,
            DELTA_QUERY,
            TensorType(BF16, ("b", "n", 4, 5)),
            DELTA_NUMBERS,
            DELTA_NUMBERS,
        ),
        "float32 and bfloat16 cannot be combined",
    ),
    Refused(GENERAL, (DELTA_QUERY, DELTA_QUERY, DELTA_VALUE, DELTA_QUERY, DELTA_QUERY, DELTA_QUERY),
            "and the first three must be equal"),
    Refused(GENERAL, (KEYS, KEYS, DELTA_VALUE, KEYS, DELTA_VALUE, KEYS),
            "key, decay, read and write must be"),
    Refused(GENERAL, (KEYS, KEYS, TensorType(BF16, ("b", "n", 4, 5)), KEYS, KEYS, KEYS),
            "float32 and bfloat16 cannot be combined"),
]  # fmt: skip


# For the ops of several ranks: what goes in, what comes out, and what is refused.

A, B, C = floats(2, 3, 4), floats(2, 3, 4), floats(2, 3, 4)
RANK_HALVES = tuple(floats(2, 5).astype(ml_dtypes.bfloat16) for _ in range(3))
ONCE_ROUNDED = sum(each.astype(np.float32) for each in RANK_HALVES).astype(ml_dtypes.bfloat16)
SUM = {"ranks": None, "first": None}
GATHER = PARTS = {"axis": -1, "sizes": None, **SUM}
TOTAL = (A.astype(np.float64) + B + C).astype(np.float32)

EXAMPLES += [
    Example("allreduce", (A, B, C), (TOTAL, TOTAL, TOTAL), SUM),
    Example("allreduce", (A,), (A,), SUM | {"ranks": 1}),
    Example("allreduce", RANK_HALVES, (ONCE_ROUNDED,) * 3, SUM | {"ranks": 3}),
    Example("allreduce", (np.array([1, 2]), np.array([3, 4])), (np.array([4, 6]),) * 2, SUM),
    Example("allgather", (A, B), (np.concatenate([A, B], -1),) * 2, GATHER),
    Example("allgather", (A[:, :1], B), (np.concatenate([A[:, :1], B], 1),) * 2,
            GATHER | {"axis": 1, "sizes": Shape([1, 3])}),
    Example("allgather", (RANK_HALVES[0],), (RANK_HALVES[0],), GATHER | {"ranks": 1}),
    Example("reduce_scatter", (A, B, C), (TOTAL[..., :2], TOTAL[..., 2:3], TOTAL[..., 3:]), PARTS),
    Example("reduce_scatter", (A, B), ((A + B)[:, :1], (A + B)[:, 1:]),
            PARTS | {"axis": 1, "sizes": Shape([1, 2])}),
    Example("reduce_scatter", (A[:1], B[:1]), ((A + B)[:1], (A + B)[:0]), PARTS | {"axis": 0}),
]  # fmt: skip

INFERRED += [
    Inferred("allreduce", (f32("n", device=0), f32("n", device=1)),
             (f32("n", device=0), f32("n", device=1)), SUM | {"ranks": 4}),
    Inferred("allgather", (f32("n", 1, device=0), f32("n", 2, device=1)),
             (f32("n", 3, device=0), f32("n", 3, device=1)), GATHER),
    Inferred("allgather", (f32(SEQ, 2), f32("more", 2)), (f32(SEQ + "more", 2),) * 2,
             GATHER | {"axis": 0}),
    Inferred("allgather", (f32("n", 2), f32("n", 1)), (f32("n", 8),) * 2,
             GATHER | {"ranks": 4, "sizes": Shape([3, 2, 2, 1])}),
    Inferred("reduce_scatter", (f32("n", 5, device=0), f32("n", 5, device=1)),
             (f32("n", 3, device=0), f32("n", 2, device=1)), PARTS),
    Inferred("reduce_scatter", (f32("n", 8), f32("n", 8)), (f32("n", 2), f32("n", 2)),
             PARTS | {"ranks": 4}),
    Inferred("reduce_scatter", (f32("n", 5),), (f32("n", 1),), PARTS | {"ranks": 3, "first": 2}),
    Inferred("reduce_scatter", (f32(SEQ + 2), f32(SEQ + 2)), (f32("seq"), f32(2)),
             PARTS | {"sizes": Shape(["seq", 2])}),
]  # fmt: skip

REFUSED += [
    Refused("allreduce", (), "the list of values is empty", SUM),
    Refused("allreduce", (f32(2), f32(3)), "the tensors of the ranks have different shapes", SUM),
    Refused("allreduce", (f32("n"), f32("m")), "the tensors of the ranks have different shapes",
            SUM),
    Refused("allreduce", (bools(2), bools(2)), "the operation does not support bool", SUM),
    Refused("allreduce", (f32(2), TensorType(DType.int64, [2])),
            "float32 and int64 cannot be combined", SUM),
    Refused("allreduce", (f32(2), f32(2)),
            "3 ranks cannot be divided into processes with 2 ranks each", SUM | {"ranks": 3}),
    Refused("allreduce", (f32(2),), "0 ranks", SUM | {"ranks": 0}),
    Refused("allgather", (), "the list of values is empty", GATHER),
    Refused("allgather", (f32(2, 3), f32(3, 3)),
            "the shapes of the values differ along an axis other than -1", GATHER),
    Refused("allgather", (f32(),), "axis -1 does not exist: a tensor of rank 0 has no axes",
            GATHER),
    Refused("allgather", (f32(2),), "the sizes for the 1 ranks in other processes are missing",
            GATHER | {"ranks": 2}),
    Refused(
        "allgather",
        (f32(2),),
        "sizes [2] do not fit: there are 2 ranks, and the values in this process have sizes [2]",
        GATHER | {"ranks": 2, "sizes": Shape([2])},
    ),
    Refused(
        "allgather",
        (f32(2), f32(3)),
        "sizes [3, 2] do not fit: there are 2 ranks, and the values in this process have sizes "
        "[2, 3]",
        GATHER | {"sizes": Shape([3, 2])},
    ),
    Refused("reduce_scatter", (f32(2), f32(3)), "the tensors of the ranks have different shapes",
            PARTS),
    Refused("reduce_scatter", (f32("n"), f32("n")),
            "`n` cannot be divided evenly among 2 ranks, because its size is not defined yet",
            PARTS),
    Refused("reduce_scatter", (f32(4), f32(4)),
            "the sizes [1, 2] do not split a dimension of 4 into 2 shards",
            PARTS | {"sizes": Shape([1, 2])}),
    Refused("reduce_scatter", (f32(5),), "the shard sizes [3, 2] differ, so `first` is required",
            PARTS | {"ranks": 2}),
    Refused("allreduce", (f32(8),), "a process with 1 of the 2 ranks cannot start at rank 2",
            SUM | {"ranks": 2, "first": 2}),
    Refused(
        "allgather",
        (f32(3),),
        "sizes [3, 2] do not fit: there are 2 ranks, and the values in this process have sizes [3]",
        GATHER | {"ranks": 2, "first": 1, "sizes": Shape([3, 2])},
    ),
    Refused("reduce_scatter", (f32(8), f32(8)),
            "a process with 2 of the 4 ranks cannot start at rank 1",
            PARTS | {"ranks": 4, "first": 1}),
]  # fmt: skip


# What comes out of the recurrence of state space models, and what it refuses.


def _scanned(
    x: Array,
    steps: Array,
    rates: Array,
    read_in: Array,
    read_out: Array,
    before: Array | None = None,
) -> tuple[Array, Array]:
    batch, positions, heads, size = x.shape
    made = np.zeros_like(x)
    after = np.zeros((batch, heads, size, read_in.shape[3]), np.float32)
    after = after if before is None else before.copy()
    for text, head, channel in np.ndindex(batch, heads, size):
        group = head * read_in.shape[2] // heads
        states = after[text, head, channel].astype(np.float64)
        for place in range(positions):
            step = steps[text, place, head]
            added = step * x[text, place, head, channel] * read_in[text, place, group]
            states = states * np.exp(step * rates[head]) + added
            made[text, place, head, channel] = states @ read_out[text, place, group]
        after[text, head, channel] = states
    return made, after


# Four heads in two groups.
SCANNED = (
    floats(2, 3, 4, 2), np.abs(floats(2, 3, 4)), -np.abs(floats(4, 5)), floats(2, 3, 2, 5),
    floats(2, 3, 2, 5),
)  # fmt: skip
SCANNED_STATES = floats(2, 4, 2, 5)
EXAMPLES += [
    *(
        Example("selective_scan", inputs, _scanned(*inputs), {}, 1e-5)
        for inputs in (
            SCANNED,
            (*SCANNED[:2], SCANNED[2][:, :1], *SCANNED[3:]),
            (*SCANNED, SCANNED_STATES),
        )
    ),
]
INFERRED += [
    Inferred(
        "selective_scan",
        (
            f32("batch", "seq", 4, 2),
            f32("batch", "seq", 4),
            f32(4, 1),
            f32("batch", "seq", 2, 5),
            f32("batch", "seq", 2, 5),
        ),
        (f32("batch", "seq", 4, 2), f32("batch", 4, 2, 5)),
    ),
]
REFUSED += [
    Refused(
        "selective_scan",
        (f32(2, 4), f32(2), f32(4, 1), f32(1, 2, 2, 5), f32(1, 2, 2, 5)),
        "must have four dimensions",
    ),
    *(
        Refused("selective_scan", (f32(1, 3, 4, 2), *others), says)
        for others, says in (
            ((f32(1, 3, 5), f32(4, 1), f32(1, 3, 2, 5), f32(1, 3, 2, 5)), "the steps must be"),
            ((f32(1, 3, 4), f32(4, 2), f32(1, 3, 2, 5), f32(1, 3, 2, 5)), "the rates must be"),
            ((f32(1, 3, 4), f32(4, 1), f32(1, 3, 2, 5), f32(1, 3, 1, 5)), "B and C must be equal"),
            ((f32(1, 3, 4), f32(4, 1), f32(1, 3, 3, 5), f32(1, 3, 3, 5)), "cannot be divided"),
            (
                (f32(1, 3, 4), f32(4, 1), f32(1, 3, 2, 5), f32(1, 3, 2, 5), f32(1, 4, 5, 2)),
                "states must be float32[1, 4, 2, 5], not float32[1, 4, 5, 2]",
            ),
        )
    ),
]


# What comes out of the operations on chosen rows, and what they refuse.

SHARES = np.array([[0, 1, 0.5], [0, 0, 0.25], [0, -2, 0]], np.float32)
NAMES = {"names": ("none", "some", "most")}
ROWS, ROW_NUMBERS = floats(4, 2), np.array([2, 0, 2, 2])
SUMS = np.stack([ROWS[1], 0 * ROWS[0], ROWS[0] + ROWS[2] + ROWS[3]])

EXAMPLES += [
    Example("chosen_rows", (SHARES,),
            tuple(np.array(numbers, np.int64) for numbers in ([], [0, 2], [0, 1])), NAMES),
    Example("sum_rows", (ROWS, ROW_NUMBERS), SUMS, {"count": Dim(3)}, 1e-6),
    Example("sum_rows",
            (ROWS[:1], ROW_NUMBERS[:1], ROWS[:0], ROW_NUMBERS[:0], ROWS[1:], ROW_NUMBERS[1:]), SUMS,
            {"count": Dim(3)}, 1e-6),
    Example("sum_rows", (ROWS[:0], ROW_NUMBERS[:0]), 0 * SUMS, {"count": Dim(3)}),
    Example("sum_weighted_rows", (SHARES, ROWS[:1], ROW_NUMBERS[2:3], ROWS[:0], ROW_NUMBERS[:0]),
            np.stack([0 * ROWS[0], 0 * ROWS[0], -2 * ROWS[0]]), {"first": 1}, 1e-6),
    Example("sum_weighted_rows",
            (SHARES[:1], ROWS[1:2], 0 * ROW_NUMBERS[:1], ROWS[:1], 0 * ROW_NUMBERS[:1]),
            0.5 * ROWS[:1] + ROWS[1:2], {"first": 1}, 1e-6),
]  # fmt: skip
INFERRED += [
    Inferred("chosen_rows", (f32("n", 3),), (i64("none"), i64("some"), i64("most")), NAMES),
    Inferred("sum_rows", (f32("m", 2), i64("m")), f32("n", 2), {"count": Dim("n")}),
    Inferred("sum_weighted_rows", (f32("n", 3), f32("m", 2), i64("m")), f32("n", 2), {"first": 2}),
]
REFUSED += [
    Refused("chosen_rows", (i64("n", 3),), "needs a float dtype", NAMES),
    Refused("sum_rows", (f32("m", 2), i64("n")), "one number for each row", {"count": Dim(3)}),
    Refused("sum_rows", (f32("m", 2),), "rows and their numbers", {"count": Dim(3)}),
    Refused("sum_rows", (f32("m", 2), i64("m"), f32("n", 3), i64("n")), "cannot be added to rows",
            {"count": Dim(3)}),
    Refused("sum_rows", (f32("m", 2), f32("m")), "needs an integer dtype", {"count": Dim(3)}),
    Refused("sum_weighted_rows", (f32("n", 3), f32("m", 2), i64("m")),
            "columns 3 to 3 are not among the 3 columns", {"first": 3}),
    Refused("sum_weighted_rows", (f32(3), f32("m", 2), i64("m")), "fixed number", {"first": 0}),
]  # fmt: skip
