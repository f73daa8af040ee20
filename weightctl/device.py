"""References to devices, on which tensors are."""

from __future__ import annotations

from operator import index
from typing import Any, NamedTuple, Self, SupportsIndex

from weightctl.errors import ArgumentTypeError

__all__ = ["CPU", "DeviceRef"]

_KINDS = ("cpu", "gpu")


class _KindAndNumber(NamedTuple):
    kind: str
    id: int = 0


class DeviceRef(_KindAndNumber):
    """A device by kind (`cpu`, `gpu`) and number; `DeviceRef.CPU()`, `DeviceRef.GPU(0)`.

    Raises `ArgumentTypeError` for another kind, such as torch's names of devices, and for what is
    not a number from 0 on.
    """

    __slots__ = ()

    def __new__(cls, kind: str, id: int = 0) -> Self:  # noqa: A002  # the specified name
        """Make a device of a kind that there is."""
        if kind not in _KINDS:
            raise ArgumentTypeError(
                f"{kind!r} is not a kind of device",
                hint="`DeviceRef.CPU()`, or `DeviceRef.GPU(0)` for the first graphics processor",
            )
        number: Any = id
        if isinstance(number, bool) or not isinstance(number, SupportsIndex) or index(number) < 0:
            raise ArgumentTypeError(
                f"the number of a device is {number!r}",
                hint="devices are counted from 0: `DeviceRef.GPU(0)` is the first",
            )
        return super().__new__(cls, kind, index(number))

    @classmethod
    def CPU(cls, id: int = 0) -> DeviceRef:  # noqa: A002, N802  # the specified names
        """The processor."""
        return cls("cpu", id)

    @classmethod
    def GPU(cls, id: int = 0) -> DeviceRef:  # noqa: A002, N802  # the specified names
        """The graphics processor with this number."""
        return cls("gpu", id)

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


CPU = DeviceRef.CPU()
