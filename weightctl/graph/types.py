"""What is known of a value before it exists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weightctl.device import CPU, DeviceRef
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.shape import Dim, ShapeLike

__all__ = ["TensorType", "require_device", "require_dtype"]


def require_dtype(given: Any) -> None:
    """Raise `GraphError` for what is no `DType`, such as the name of one."""
    if not isinstance(given, DType):
        raise GraphError(
            f"a dtype is a DType, not {given!r}", hint="`DType.float32`; `DType(name)` finds it"
        )


def require_device(given: Any) -> None:
    """Raise `GraphError` for what is no `DeviceRef`, such as the name of a device."""
    if not isinstance(given, DeviceRef):
        raise GraphError(
            f"a device is a DeviceRef, not {given!r}",
            hint="`DeviceRef.CPU()` or `DeviceRef.GPU(0)`",
        )


@dataclass(frozen=True, slots=True, init=False)
class TensorType:
    """The dtype, shape and device of a value; prints as `float32[batch, 256]`.

    Raises `GraphError`, a `ValueError`, for what is no dtype or device.
    """

    dtype: DType
    shape: Shape
    device: DeviceRef

    def __init__(self, dtype: DType, shape: ShapeLike, device: DeviceRef = CPU) -> None:
        require_dtype(dtype)
        require_device(device)
        # Frozen: the one place where the fields are set.
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", Shape(shape))
        object.__setattr__(self, "device", device)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def substitute(self, dims: Mapping[str, Dim]) -> TensorType:
        """Return the type with names of dimensions replaced."""
        return replace(self, shape=self.shape.substitute(dims))

    def _replace(self, **changes: Any) -> TensorType:
        return replace(self, **changes)

    def __str__(self) -> str:
        where = "" if self.device == CPU else f" on {self.device}"
        return f"{self.dtype.value}{self.shape.text}{where}"
