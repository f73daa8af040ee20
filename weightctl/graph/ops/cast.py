"""The same numbers in another dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.dtype import DType, as_dtype
from weightctl.errors import GraphError
from weightctl.graph.scope import refusing
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.dtype import DTypeLike
    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["cast", "infer", "lower"]


def cast(x: ValueLike, dtype: DTypeLike) -> Value:
    """Return the numbers rounded to another dtype, once, to nearest even.

    Floating-point numbers that become integers lose their fractions; those that become bool are
    true where they are not 0. What no integer of the dtype is, NaN too, becomes what torch makes of
    it; `WeightData.astype` refuses it. What is too large becomes an infinity; of the dtypes without
    one, which torch rounds to, float8_e4m3fn takes its largest number, 448, and the others NaN.
    Raises `GraphError` for complex numbers and for float4, which is stored in pairs.
    """
    with refusing("cast", x):
        wanted = as_dtype(dtype)
    return apply("cast", x, dtype=wanted)


def infer(x: TensorType, *, dtype: DType) -> TensorType:
    """Return the type with the other dtype."""
    if x.dtype is not dtype:
        _require_one_number(x.dtype)
        _require_one_number(dtype)
    return replace(x, dtype=dtype)


def _require_one_number(dtype: DType) -> None:
    if dtype.is_complex or dtype is DType.float4_e2m1fn:
        raise GraphError(
            f"{dtype.value} is neither cast nor cast to",
            hint="convert the weights beforehand, such as by `WeightData.astype`",
        )


def lower(x: Tensor, *, dtype: DType) -> Tensor:
    """Return a copy, or the operand itself where it has the dtype."""
    import torch

    from weightctl.graph.ops.torch_types import torch_dtype

    kind = torch_dtype(dtype)
    is_small = kind.is_floating_point and kind.itemsize < 4
    if is_small and x.dtype in {torch.float64, torch.int32, torch.int64}:
        x = _odd(x)
    return x.to(kind)


def _odd(x: Tensor) -> Tensor:
    """Return float32 numbers that round to smaller types as these do.

    torch itself rounds them to float32 first, to nearest, and what that makes a tie is not the
    nearest then. Rounded towards 0 with the last bit set for what was lost, none becomes a tie
    (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    import torch

    if x.dtype == torch.int64:
        # Of more than 2**40 the last 16 bits only say on which side of a tie it is; one says so.
        low = x & 0xFFFF
        x = torch.where(x.abs() < 2**40, x, x - low + 0x8000 * (low != 0))
    wide = x.double()
    near = wide.float()
    back = near.double()
    bits = near.view(torch.int32) - (back.abs() > wide.abs()).int()
    return torch.where(back == wide, near, (bits | 1).view(torch.float32))
