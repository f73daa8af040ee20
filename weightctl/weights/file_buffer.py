"""Elements in a private mapping of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.weights.buffer import Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import DType
    from weightctl.weights.source import Source


class FileBuffer(Buffer):
    """A `Buffer` over a mapping; it records the source and the name of its tensor.

    Until the memory is handed out (`is_shared`), it cannot have been changed, so the bytes can be
    read from the source instead of the mapping.
    """

    __slots__ = ("is_shared", "name", "source")

    def __init__(
        self, memory: memoryview, dtype: DType, shape: Sequence[int], source: Source, name: str
    ) -> None:
        super().__init__(memory, dtype, shape)
        self.source = source
        self.name = name
        self.is_shared = False

    @property
    def memory(self) -> memoryview:
        """The bytes themselves."""
        self.is_shared = True
        return self._memory
