"""For every op: the type of its result, and the inputs that it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from op_example import Inferred, Refused
from op_values import BF16, CPU, F32, bools, f32, i64
from weightctl.device import DeviceRef
from weightctl.dtype import DType
from weightctl.graph import Shape, TensorType
from weightctl.shape import Dim

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

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
    Inferred(
        "mask_top_k", (f32("b", "n"),), TensorType(DType.bool, ["b", "n"]), {"k": 5}
    ),
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
    Refused("einsum", (f32(2),), "`i,i->` describes 2 operands, not 1", {"equation": "i,i->"}),
    Refused(
        "einsum",
        (f32(2, 3),),
        "`i` has 1 letter, but float32[2, 3] has 2 dimensions",
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
    Refused("mask_top_k", (f32(2, 3),), "`k` is 0; it must be at least 1", {"k": 0}),
    Refused("top_k", (f32(2, 3),), "3 elements, fewer than 4", {"k": Dim(4), "axis": -1}),
    Refused(
        "softmax",
        (f32(2, 3),),
        "axis -3 does not exist: a tensor of rank 2 has axes -2 to 1",
        {"axis": -3},
    ),
    Refused("softmax", (i64(2, 3),), "the operation needs a float dtype, not int64", {"axis": -1}),
]
