"""Arrays and types that the examples of ops are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from weightctl.device import DeviceRef
from weightctl.dtype import DType
from weightctl.graph import TensorType

if TYPE_CHECKING:
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
