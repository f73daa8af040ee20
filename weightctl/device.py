"""Where tensors live."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CPU", "DeviceRef"]


class DeviceRef(NamedTuple):
    """A device by kind (`cpu`, `gpu`) and number; `DeviceRef.CPU()`, `DeviceRef.GPU(0)`."""

    kind: str
    id: int = 0

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
