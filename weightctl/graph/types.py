"""Types of values: their dtype, shape and device, known before they exist."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weightctl.device import CPU, DeviceRef
from weightctl.dtype import as_dtype
from weightctl.errors import ArgumentTypeError
from weightctl.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.dtype import DType, DTypeLike
    from weightctl.shape import Dim, ShapeLike

__all__ = ["TensorType", "Type", "require_device"]

ValueT = TypeVar("ValueT")


def require_device(given: Any) -> None:
    """Raise `ArgumentTypeError` if the value is not a `DeviceRef`, such as the name of a device."""
    if not isinstance(given, DeviceRef):
        raise ArgumentTypeError(
            f"a device must be a DeviceRef, not {given!r}",
            hint="use `DeviceRef.CPU()` or `DeviceRef.GPU(0)`",
        )


class Type(Generic[ValueT]):
    """What is known of a value before it exists; `TensorType` is the only kind."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, init=False)
class TensorType(Type[Any]):
    """The dtype, shape and device of a value; prints as `float32[batch, 256]`.

    Raises `ArgumentTypeError`, a `TypeError` and a `ValueError`, for what is not a dtype or device.
    """

    dtype: DType
    shape: Shape
    device: DeviceRef

    def __init__(self, dtype: DTypeLike, shape: ShapeLike, device: DeviceRef = CPU) -> None:
        require_device(device)
        # Frozen: the one place where the fields are set.
        object.__setattr__(self, "dtype", as_dtype(dtype))
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
