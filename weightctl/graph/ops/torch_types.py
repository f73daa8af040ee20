"""What torch calls our dtypes and devices."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.errors import EngineError

if TYPE_CHECKING:
    import torch

    from weightctl.device import DeviceRef

__all__ = ["dtype_of", "torch_device", "torch_dtype"]


@cache
def torch_dtype(dtype: DType) -> torch.dtype:
    """Return the torch dtype of single numbers of a `DType`.

    Raises `EngineError` where torch has none: float4, and what a torch of this age lacks.
    """
    import torch

    found = getattr(torch, dtype.value, None)
    if not isinstance(found, torch.dtype):
        raise EngineError(
            f"torch has no tensors of {dtype.value}",
            hint="cast to bfloat16 or float32, or install a newer torch",
        )
    return found


@cache
def torch_device(device: DeviceRef) -> torch.device:
    """Return the torch device of a `DeviceRef`; of the CPUs that a graph may name it has one."""
    import torch

    return torch.device("cpu") if device.kind == "cpu" else torch.device("cuda", device.id)


@cache
def dtype_of(dtype: torch.dtype) -> DType:
    """Return the `DType` of a torch dtype.

    Raises `EngineError` for those that have none (`complex32`, `qint8`, two float4 in a byte).
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DType.__members__:
        raise EngineError(
            f"tensors of {dtype} have no DType", hint="convert the tensor with `.to(torch.float32)`"
        )
    return DType(name)
