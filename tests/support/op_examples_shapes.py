"""For the ops that change shapes, and those of whole layers: what goes in, out, and is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from op_example import Example, Inferred, Refused
from weightctl.device import DeviceRef
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.graph import Shape, TensorType
from weightctl.shape import Dim

Array = np.ndarray[Any, Any]

RANDOM = np.random.default_rng(21)
CPU = DeviceRef.CPU()
I64, BOOL, BF16 = DType.int64, DType.bool, DType.bfloat16
Q8_0 = QuantizationEncoding.Q8_0
BATCH, SEQ = Dim("batch"), Dim("seq")


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def f32(*shape: Any) -> TensorType:
    return TensorType(DType.float32, shape)


def i64(*shape: Any) -> TensorType:
    return TensorType(I64, shape)


X = floats(2, 3, 4)
IDS = np.array([[2, 0], [-1, 1]])
WHOLE = (0, None, 1)

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

EXAMPLES = [
    Example("transpose", (X,), X.swapaxes(0, 2), {"axis_1": 0, "axis_2": -1}),
    Example("permute", (X,), X.transpose(2, 0, 1), {"axes": (-1, 0, 1)}),
    Example("reshape", (X,), X.reshape(6, 4), {"shape": Shape([6, 4])}),
    Example("reshape", (X.T,), X.T.reshape(2, 12), {"shape": Shape([2, 12])}),
    Example("reshape", (X[:1, 0, :1],), X[0, 0, 0], {"shape": Shape()}),
    Example("unsqueeze", (X,), X[..., None], {"axis": -1}),
    Example("unsqueeze", (X,), X[:, None], {"axis": 1}),
    Example(
        "broadcast_to",
        (X[:, :1],),
        np.broadcast_to(X[:, :1], (5, 2, 3, 4)),
        {"shape": Shape([5, 2, 3, 4])},
    ),
    Example("concat", (X, X[:, :1]), np.concatenate([X, X[:, :1]], 1), {"axis": 1}),
    Example("concat", (IDS, IDS[:0]), IDS, {"axis": 0}),
    Example(
        "split",
        (X,),
        (X[..., :1], X[..., 1:1], X[..., 1:]),
        {"sizes": Shape([1, 0, 3]), "axis": -1},
    ),
    Example("slice", (X,), X[1, None, ::2], {"index": (1, None, (0, 3, 2), WHOLE)}),
    Example("embedding", (X[0], IDS % 3), X[0][IDS % 3]),
    Example("embedding", (BLOCKS, IDS % 3), NUMBERS[IDS % 3], BLOCK_ROWS),
    Example("embedding", (BLOCKS, IDS[:0]), np.zeros((0, 2, 64), np.float32), BLOCK_ROWS),
    Example("range", (), np.arange(5), RANGE),
    Example(
        "range",
        (),
        np.arange(7, -8, -3, np.float32),
        RANGE | {"start": 7, "stop": -8, "step": -3, "dtype": DType.float32},
    ),
    Example("range", (), np.arange(5, 2), RANGE | {"start": 5, "stop": 2}),
    Example("rms_norm", (X, WEIGHT), _rms_norm(X, WEIGHT), {"epsilon": 1e-6}, 1e-6),
    Example("rms_norm", HALVES, _rms_norm(*HALVES), {"epsilon": 1e-6}),
    Example("layer_norm", (X, WEIGHT, BIAS), _layer_norm(X, WEIGHT, BIAS), {"epsilon": 1e-5}, 1e-6),
    Example("layer_norm", (*HALVES, HALVES[1]), _layer_norm(*HALVES, HALVES[1]), {"epsilon": 1e-5}),
    Example("causal_convolution", (X, KERNEL), _convolved(X, KERNEL), {}, 1e-6),
    Example("causal_convolution", (X, KERNEL, BIAS), _convolved(X, KERNEL) + BIAS, {}, 1e-6),
    Example("rope", (X, COS, SIN), _rotated(X, COS, SIN), {"interleaved": True}, 1e-6),
    Example("attention", (QUERY, KEY, VALUE), _attention(QUERY, KEY, VALUE), PLAIN, 1e-6),
]

INFERRED = [
    Inferred(
        "transpose", (f32("batch", "seq", 4),), f32("batch", 4, "seq"), {"axis_1": 1, "axis_2": 2}
    ),
    Inferred("permute", (f32("batch", "seq", 4),), f32("seq", 4, "batch"), {"axes": (1, 2, 0)}),
    Inferred(
        "reshape",
        (f32("batch", "seq", 64),),
        f32(BATCH * "seq", 4, 16),
        {"shape": Shape([BATCH * "seq", 4, 16])},
    ),
    Inferred("unsqueeze", (f32("batch"),), f32(1, "batch"), {"axis": 0}),
    Inferred(
        "broadcast_to",
        (f32("seq", 1),),
        f32("batch", "seq", "keys"),
        {"shape": Shape(["batch", "seq", "keys"])},
    ),
    Inferred(
        "concat",
        (f32("batch", "past"), f32("batch", "seq"), f32("batch", 1)),
        f32("batch", Dim("past") + "seq" + 1),
        {"axis": 1},
    ),
    Inferred(
        "split",
        (f32(SEQ + 3, 2),),
        (f32(3, 2), f32("seq", 2)),
        {"sizes": Shape([3, SEQ]), "axis": 0},
    ),
    Inferred(
        "slice",
        (f32("batch", "seq", 4),),
        f32("batch", SEQ - 1, 2),
        {"index": (WHOLE, (1, None, 1), (0, None, 2))},
    ),
    Inferred("embedding", (f32("rows", 8), i64("batch", "seq")), f32("batch", "seq", 8)),
    Inferred(
        "embedding", (TensorType(DType.uint8, ["rows", 68]), i64("seq")), f32("seq", 64), BLOCK_ROWS
    ),
    Inferred("dequantize", (TensorType(DType.uint8, [3, 68]),), f32(3, 64), DEQUANTIZE),
    Inferred("range", (), i64("seq"), RANGE | {"stop": SEQ}),
    Inferred("range", (), i64((SEQ + 1) // 2), RANGE | {"start": SEQ, "stop": 2 * SEQ, "step": 2}),
    Inferred("range", (), i64(SEQ + 1), RANGE | {"start": SEQ, "stop": -1, "step": -1}),
    Inferred("range", (), i64(0), RANGE | {"start": SEQ + 1, "stop": SEQ}),
    Inferred("rms_norm", (f32("batch", 4),), f32("batch", 4), {"epsilon": 1e-6}),
    Inferred(
        "layer_norm", (f32("batch", "dim"), f32("dim")), f32("batch", "dim"), {"epsilon": 1e-5}
    ),
    Inferred("causal_convolution", (f32("batch", "seq", 4), f32(4, 3)), f32("batch", "seq", 4)),
    Inferred(
        "rope",
        (f32("batch", 3, "seq", 8), f32("batch", 1, "seq", 2), f32("batch", 1, "seq", 2)),
        f32("batch", 3, "seq", 8),
        HALF_SPLIT,
    ),
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
]

REFUSED = [
    Refused(
        "transpose",
        (f32(2, 3),),
        "axis 2 does not exist: a tensor of rank 2 has axes -2 to 1",
        {"axis_1": 0, "axis_2": 2},
    ),
    Refused("permute", (f32(2, 3),), "axes (0, 0)", {"axes": (0, 0)}),
    Refused("permute", (f32(2, 3),), "axes (0,)", {"axes": (0,)}),
    Refused(
        "reshape",
        (f32("batch", 4),),
        "[8] has 8 elements, but the tensor has 4*batch",
        {"shape": Shape([8])},
    ),
    Refused("reshape", (f32("batch", 4),), "[seq, 4] has 4*seq", {"shape": Shape(["seq", 4])}),
    Refused("reshape", (f32(2, 3),), "the size -1 in [-1, 4]", {"shape": (-1, Dim(4))}),
    Refused("reshape", (f32(2, 3),), "more than one -1", {"shape": (-1, -1)}),
    Refused(
        "unsqueeze",
        (f32(2),),
        "axis 2 does not exist: a tensor of rank 2 has axes -2 to 1",
        {"axis": 2},
    ),
    Refused("broadcast_to", (f32(2, 3),), "broadcast to [3, 3]", {"shape": Shape([3, 3])}),
    Refused("broadcast_to", (f32("seq"),), "broadcast to [4]", {"shape": Shape([4])}),
    Refused("broadcast_to", (f32(2, 3),), "broadcast to [3]", {"shape": Shape([3])}),
    Refused("concat", (), "the list of values is empty", {"axis": 0}),
    Refused(
        "concat",
        (f32(2, "a"), f32(2, "b")),
        "the shapes of the values differ along an axis other than 0",
        {"axis": 0},
    ),
    Refused(
        "concat",
        (f32(2, 2), f32(2)),
        "the shapes of the values differ along an axis other than 0",
        {"axis": 0},
    ),
    Refused("concat", (f32(2), i64(2)), "float32 and int64 cannot be combined", {"axis": 0}),
    Refused(
        "split",
        (f32("seq"),),
        "sizes [2, 3] add up to 5, but dimension 0 is seq",
        {"sizes": Shape([2, 3]), "axis": 0},
    ),
    Refused("split", (f32(2),), "add up to 0", {"sizes": Shape(), "axis": 0}),
    Refused("slice", (f32(2, "seq"),), "index 2 is out of bounds", {"index": (2,)}),
    Refused("slice", (f32(2),), "2 indices are too many for 1 dimensions", {"index": (0, 0)}),
    Refused("slice", (f32(2),), "an index can have only one `...`", {"index": (..., ...)}),
    Refused("slice", (f32(2),), "(0, None, -1) is not a valid index", {"index": ((0, None, -1),)}),
    Refused("embedding", (f32(2), i64(2)), "the table must have 2 dimensions, [rows, dim], not 1"),
    Refused("embedding", (f32(2, 2), f32(2)), "the operation needs an integer dtype, not float32"),
    Refused(
        "dequantize",
        (TensorType(DType.uint8, [3, 68]),),
        "floats, so the result cannot be int8",
        DEQUANTIZE | {"dtype": DType.int8},
    ),
    Refused("range", (), "the step of a range cannot be 0", RANGE | {"step": 0}),
    Refused("range", (), "the operation does not support bool", RANGE | {"dtype": BOOL}),
    Refused(
        "rms_norm", (i64(2),), "the operation needs a float dtype, not int64", {"epsilon": 0.0}
    ),
    Refused("rms_norm", (f32(2), f32(1)), "weight must be [2]", {"epsilon": 0.0}),
    Refused(
        "rms_norm",
        (f32(2), TensorType(BF16, [2])),
        "float32 and bfloat16 cannot be combined",
        {"epsilon": 0.0},
    ),
    Refused("causal_convolution", (f32(2, 4), f32(4, 3)), "must have three dimensions"),
    Refused("causal_convolution", (f32(1, 2, 4), f32(3, 3)), "weight must be [4, kernel]"),
    Refused("causal_convolution", (f32(1, 2, 4), f32(4, 3), f32(3)), "bias must be [4]"),
    Refused(
        "layer_norm",
        (f32(),),
        "the operation needs a tensor of at least one dimension, not 0",
        {"epsilon": 0.0},
    ),
    Refused(
        "layer_norm",
        (f32(2), f32(2), f32(3)),
        "the shapes of weight and bias must be [2]",
        {"epsilon": 0.0},
    ),
    Refused(
        "rope",
        (f32(3, 4), f32(3, 3), f32(3, 3)),
        "3 angles rotate 6 elements, but the head has 4",
        HALF_SPLIT,
    ),
    Refused(
        "rope",
        (f32(3, "dim"), f32(3, 2), f32(3, 2)),
        "2 angles rotate 4 elements, but the head has dim",
        HALF_SPLIT,
    ),
    Refused(
        "rope",
        (f32(3, 4), f32(2, 2), f32(2, 2)),
        "the shape of positions [2] cannot be broadcast to [3]",
        HALF_SPLIT,
    ),
    Refused(
        "rope",
        (f32(1, 4), f32(2, 2), f32(2, 2)),
        "the shape of positions [2] cannot be broadcast to [1]",
        HALF_SPLIT,
    ),
    Refused(
        "rope", (f32(3, 4), f32(3, 2), f32(2)), "cos and sin have different shapes", HALF_SPLIT
    ),
    Refused(
        "rope",
        (f32(3, 4), TensorType(BF16, [3, 2]), f32(3, 2)),
        "cos and sin of dtype bfloat16 cannot",
        HALF_SPLIT,
    ),
    Refused("attention", (f32(2, 3, 4),) * 3, "four dimensions", PLAIN),
    Refused(
        "attention",
        (f32(1, 3, 5, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 4)),
        "3 query heads cannot be divided among 2 KV heads",
        PLAIN,
    ),
    Refused(
        "attention",
        (f32(1, 2, 5, 4), f32(1, 2, 5, 8), f32(1, 2, 5, 4)),
        "the shapes of key and value do not match the query",
        PLAIN,
    ),
    Refused(
        "attention",
        (f32(1, 2, 5, 4), f32(1, 2, 5, 4), f32(1, 2, 6, 4)),
        "the shapes of key and value do not match the query",
        PLAIN,
    ),
    Refused(
        "attention",
        (f32(1, 2, 5, 4),) * 3,
        "window and softcap must be positive and finite",
        PLAIN | {"window": 0},
    ),
    Refused(
        "attention",
        (*(f32(1, 2, 5, 4),) * 3, i64(5, 5)),
        "mask of dtype int64 cannot be used with a query of dtype float32",
        PLAIN,
    ),
    Refused(
        "attention",
        (*(f32(1, 2, 5, 4),) * 3, f32(2, 1, 5, 5)),
        "cannot be broadcast to [1, 2, 5, 5]",
        PLAIN,
    ),
]
