"""References to the devices that hold tensors."""

from __future__ import annotations

import re
from operator import index
from typing import Any, NamedTuple, Self, SupportsIndex

from weightctl.errors import ArgumentTypeError

_KINDS = ("cpu", "gpu")


class _KindAndNumber(NamedTuple):
    kind: str
    id: int = 0


class DeviceRef(_KindAndNumber):
    """A device by kind (`cpu`, `gpu`) and number; `DeviceRef.CPU()`, `DeviceRef.GPU(0)`.

    Raises `ArgumentTypeError` if the kind is another one, such as the device names of torch, or if
    the number is not an integer of at least 0.
    """

    __slots__ = ()

    def __new__(cls, kind: str, id: int = 0) -> Self:  # noqa: A002  # the specified name
        """Create a device; the kind must be `cpu` or `gpu`."""
        if kind not in _KINDS:
            raise ArgumentTypeError(
                f"{kind!r} is not a device kind",
                hint="use `DeviceRef.CPU()`, or `DeviceRef.GPU(0)` for the first GPU",
            )
        number: Any = id
        if isinstance(number, bool) or not isinstance(number, SupportsIndex) or index(number) < 0:
            raise ArgumentTypeError(
                f"{number!r} is not a device number",
                hint="devices are numbered from 0: `DeviceRef.GPU(0)` is the first GPU",
            )
        return super().__new__(cls, kind, index(number))

    @classmethod
    def CPU(cls, id: int = 0) -> DeviceRef:  # noqa: A002, N802  # the specified names
        """Return the CPU with this number."""
        return cls("cpu", id)

    @classmethod
    def GPU(cls, id: int = 0) -> DeviceRef:  # noqa: A002, N802  # the specified names
        """Return the GPU with this number."""
        return cls("gpu", id)

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


CPU = DeviceRef.CPU()

DeviceLike = DeviceRef | str
_NAME = re.compile(r"(cpu|gpu|cuda)(?::([0-9]{1,4}))?", re.IGNORECASE)


def as_device(given: object) -> DeviceRef:
    """Return a device as a `DeviceRef`; a name is `cpu`, `gpu`, `gpu:1` or `cuda:1`.

    Raises `ArgumentTypeError` for any other value.
    """
    if isinstance(given, DeviceRef):
        return given
    if isinstance(given, str) and (match := _NAME.fullmatch(given)):
        return DeviceRef("cpu" if match[1].lower() == "cpu" else "gpu", int(match[2] or 0))
    raise ArgumentTypeError(
        f"{given!r} is not a device",
        hint="use `DeviceRef.CPU()` or `DeviceRef.GPU(0)`, or a name such as 'cpu' or 'gpu:0'",
    )
