"""For the ops of several ranks: what goes in, what comes out, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from op_example import Example, Inferred, Refused
from weightctl.device import DeviceRef
from weightctl.dtype import DType
from weightctl.graph import Shape, TensorType
from weightctl.shape import Dim

Array = np.ndarray[Any, Any]

RANDOM = np.random.default_rng(22)
SEQ = Dim("seq")


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def f32(*shape: Any, device: int | None = None) -> TensorType:
    return TensorType(
        DType.float32, shape, DeviceRef.CPU() if device is None else DeviceRef.GPU(device)
    )


def bools(*shape: Any) -> TensorType:
    return TensorType(DType.bool, shape)


A, B, C = floats(2, 3, 4), floats(2, 3, 4), floats(2, 3, 4)
HALVES = tuple(floats(2, 5).astype(ml_dtypes.bfloat16) for _ in range(3))
ONCE_ROUNDED = sum(each.astype(np.float32) for each in HALVES).astype(ml_dtypes.bfloat16)
SUM = {"ranks": None, "first": None}
GATHER = PARTS = {"axis": -1, "sizes": None, **SUM}
TOTAL = (A.astype(np.float64) + B + C).astype(np.float32)

EXAMPLES = [
    Example("allreduce", (A, B, C), (TOTAL, TOTAL, TOTAL), SUM),
    Example("allreduce", (A,), (A,), SUM | {"ranks": 1}),
    Example("allreduce", HALVES, (ONCE_ROUNDED,) * 3, SUM | {"ranks": 3}),
    Example("allreduce", (np.array([1, 2]), np.array([3, 4])), (np.array([4, 6]),) * 2, SUM),
    Example("allgather", (A, B), (np.concatenate([A, B], -1),) * 2, GATHER),
    Example(
        "allgather",
        (A[:, :1], B),
        (np.concatenate([A[:, :1], B], 1),) * 2,
        GATHER | {"axis": 1, "sizes": Shape([1, 3])},
    ),
    Example("allgather", (HALVES[0],), (HALVES[0],), GATHER | {"ranks": 1}),
    Example("reduce_scatter", (A, B, C), (TOTAL[..., :2], TOTAL[..., 2:3], TOTAL[..., 3:]), PARTS),
    Example(
        "reduce_scatter",
        (A, B),
        ((A + B)[:, :1], (A + B)[:, 1:]),
        PARTS | {"axis": 1, "sizes": Shape([1, 2])},
    ),
    Example("reduce_scatter", (A[:1], B[:1]), ((A + B)[:1], (A + B)[:0]), PARTS | {"axis": 0}),
]

INFERRED = [
    Inferred(
        "allreduce",
        (f32("n", device=0), f32("n", device=1)),
        (f32("n", device=0), f32("n", device=1)),
        SUM | {"ranks": 4},
    ),
    Inferred(
        "allgather",
        (f32("n", 1, device=0), f32("n", 2, device=1)),
        (f32("n", 3, device=0), f32("n", 3, device=1)),
        GATHER,
    ),
    Inferred(
        "allgather",
        (f32(SEQ, 2), f32("more", 2)),
        (f32(SEQ + "more", 2),) * 2,
        GATHER | {"axis": 0},
    ),
    Inferred(
        "allgather",
        (f32("n", 2), f32("n", 1)),
        (f32("n", 8),) * 2,
        GATHER | {"ranks": 4, "sizes": Shape([3, 2, 2, 1])},
    ),
    Inferred(
        "reduce_scatter",
        (f32("n", 5, device=0), f32("n", 5, device=1)),
        (f32("n", 3, device=0), f32("n", 2, device=1)),
        PARTS,
    ),
    Inferred(
        "reduce_scatter",
        (f32("n", 8), f32("n", 8)),
        (f32("n", 2), f32("n", 2)),
        PARTS | {"ranks": 4},
    ),
    Inferred("reduce_scatter", (f32("n", 5),), (f32("n", 1),), PARTS | {"ranks": 3, "first": 2}),
    Inferred(
        "reduce_scatter",
        (f32(SEQ + 2), f32(SEQ + 2)),
        (f32("seq"), f32(2)),
        PARTS | {"sizes": Shape(["seq", 2])},
    ),
]

REFUSED = [
    Refused("allreduce", (), "the list of values is empty", SUM),
    Refused("allreduce", (f32(2), f32(3)), "the tensors of the ranks have different shapes", SUM),
    Refused(
        "allreduce", (f32("n"), f32("m")), "the tensors of the ranks have different shapes", SUM
    ),
    Refused("allreduce", (bools(2), bools(2)), "the operation does not support bool", SUM),
    Refused(
        "allreduce",
        (f32(2), TensorType(DType.int64, [2])),
        "float32 and int64 cannot be combined",
        SUM,
    ),
    Refused(
        "allreduce",
        (f32(2), f32(2)),
        "3 ranks cannot be divided into processes with 2 ranks each",
        SUM | {"ranks": 3},
    ),
    Refused("allreduce", (f32(2),), "0 ranks", SUM | {"ranks": 0}),
    Refused("allgather", (), "the list of values is empty", GATHER),
    Refused(
        "allgather",
        (f32(2, 3), f32(3, 3)),
        "the shapes of the values differ along an axis other than -1",
        GATHER,
    ),
    Refused(
        "allgather", (f32(),), "axis -1 does not exist: a tensor of rank 0 has no axes", GATHER
    ),
    Refused(
        "allgather",
        (f32(2),),
        "the sizes for the 1 ranks in other processes are missing",
        GATHER | {"ranks": 2},
    ),
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
    Refused(
        "reduce_scatter", (f32(2), f32(3)), "the tensors of the ranks have different shapes", PARTS
    ),
    Refused(
        "reduce_scatter",
        (f32("n"), f32("n")),
        "`n` cannot be divided evenly among 2 ranks, because its size is not defined yet",
        PARTS,
    ),
    Refused(
        "reduce_scatter",
        (f32(4), f32(4)),
        "the sizes [1, 2] do not split a dimension of 4 into 2 shards",
        PARTS | {"sizes": Shape([1, 2])},
    ),
    Refused(
        "reduce_scatter",
        (f32(5),),
        "the shard sizes [3, 2] differ, so `first` is required",
        PARTS | {"ranks": 2},
    ),
    Refused(
        "allreduce",
        (f32(8),),
        "a process with 1 of the 2 ranks cannot start at rank 2",
        SUM | {"ranks": 2, "first": 2},
    ),
    Refused(
        "allgather",
        (f32(3),),
        "sizes [3, 2] do not fit: there are 2 ranks, and the values in this process have sizes [3]",
        GATHER | {"ranks": 2, "first": 1, "sizes": Shape([3, 2])},
    ),
    Refused(
        "reduce_scatter",
        (f32(8), f32(8)),
        "a process with 2 of the 4 ranks cannot start at rank 1",
        PARTS | {"ranks": 4, "first": 1},
    ),
]
