"""Types of values: dtype, shape and device, defined before the values are computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weightctl.device import CPU, DeviceRef, as_device
from weightctl.dtype import as_dtype
from weightctl.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.device import DeviceLike
    from weightctl.dtype import DType, DTypeLike
    from weightctl.shape import Dim, ShapeLike

ValueT = TypeVar("ValueT")


class Type(Generic[ValueT]):
    """The base class of types of values; `TensorType` is the only subclass."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, init=False)
class TensorType(Type[Any]):
    """The dtype, shape and device of a value; prints as `float32[batch, 256]`.

    Raises `ArgumentTypeError`, a `TypeError` and a `ValueError`, if an argument is not a dtype or a
    device.
    """

    dtype: DType
    shape: Shape
    device: DeviceRef

    def __init__(self, dtype: DTypeLike, shape: ShapeLike, device: DeviceLike = CPU) -> None:
        # The dataclass is frozen; fields are set only here.
        object.__setattr__(self, "dtype", as_dtype(dtype))
        object.__setattr__(self, "shape", Shape(shape))
        object.__setattr__(self, "device", as_device(device))

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def substitute(self, dims: Mapping[str, Dim]) -> TensorType:
        """Return the type with named dimensions replaced."""
        return replace(self, shape=self.shape.substitute(dims))

    def _replace(self, **changes: Any) -> TensorType:
        return replace(self, **changes)

    def __str__(self) -> str:
        where = "" if self.device == CPU else f" on {self.device}"
        return f"{self.dtype.value}{self.shape.text}{where}"
