"""Stored weights: bytes in the files of a checkpoint, or in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from weightctl.engine.arrays import tensor_of
from weightctl.engine.device_buffer import bytes_of
from weightctl.graph.ops.lowering import dtype_of
from weightctl.weights.data import WeightData
from weightctl.weights.file_buffer import FileBuffer
from weightctl.weights.info import TensorInfo
from weightctl.weights.protocol import Weights
from weightctl.weights.source import Held
from weightctl.weights.tree import Checkpoint, header_of, info_of, source_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from weightctl.weights.source import Source

__all__ = ["InFiles", "InMemory", "StoredWeight", "to_stored_weight"]


class StoredWeight(Protocol):
    """A tensor as it is stored."""

    @property
    def info(self) -> TensorInfo:
        """Its logical shape and its encoding."""
        ...

    @property
    def key(self) -> Hashable:
        """A key that is equal for all names of the same tensor."""
        ...

    @property
    def source(self) -> Source | None:
        """What it is read from; None for what is in memory."""
        ...

    @property
    def is_borrowed(self) -> bool:
        """Whether the bytes are in memory that other code will use again."""
        ...

    def raw(self) -> Tensor:
        """Return its bytes as a tensor of uint8 with one dimension."""
        ...

    def expect(self) -> None:
        """Announce that the data is needed soon."""
        ...


class InFiles:
    """A tensor of a source, read for each use and not kept."""

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.info = source.header.tensors[name]

    @property
    def key(self) -> Hashable:
        """The source and its name for the tensor."""
        return (id(self.source), self.info.name)

    @property
    def is_borrowed(self) -> bool:
        """False: the bytes that were read belong to the reader."""
        return False

    def raw(self) -> Tensor:
        """Return the bytes, read into memory of their own."""
        import torch

        made = torch.empty(self.info.nbytes, dtype=torch.uint8)
        if self.info.nbytes:
            self._read(0, bytes_of(made))
        return made

    def rows(self, numbers: Sequence[int]) -> InMemory:
        """Return some of its rows; no other is read."""
        import torch

        info = self.info._replace(shape=(len(numbers), *self.info.shape[1:]))
        made = torch.empty(info.nbytes, dtype=torch.uint8)
        if info.nbytes:
            memory, row = bytes_of(made), info.nbytes // len(numbers)
            for place, number in enumerate(numbers):
                part = memory[place * row : (place + 1) * row]
                self._read(number * row, part)
        return InMemory(info, made)

    def expect(self) -> None:
        """Have the system read the file ahead."""
        if (span := self.source.file_range(self.info.name)) is not None:
            span.expect()

    def _read(self, start: int, memory: memoryview) -> None:
        self.source.read_into(self.info.name, start, memory)


class InMemory:
    """A tensor in memory that the caller owns; its bytes are shared."""

    source = None
    is_borrowed = True

    def __init__(self, info: TensorInfo, tensor: Tensor) -> None:
        self.info = info
        self._raw = _flat(tensor)

    @property
    def key(self) -> Hashable:
        """Where its bytes lie, and what they are."""
        return (self._raw.device, self._raw.data_ptr(), self.info.shape, self.info.encoding)

    def raw(self) -> Tensor:
        """Return the bytes themselves."""
        return self._raw

    def expect(self) -> None:
        """Do nothing: the data is in memory."""


class InMapping(InFiles):
    """A tensor in a mapping of its file: read from the file until the mapping may be written to."""

    def __init__(self, info: TensorInfo, buffer: FileBuffer) -> None:
        super().__init__(buffer.source, buffer.name)
        self.info = info._replace(name=buffer.name)
        self._buffer = buffer

    @property
    def key(self) -> Hashable:
        """The mapping, which may differ from its file, and what its bytes are."""
        return (id(self._buffer), self.info)

    @property
    def is_borrowed(self) -> bool:
        """Whether other code has the memory."""
        return self._buffer.is_shared

    def raw(self) -> Tensor:
        """Return the bytes, read again, or the mapped ones if other code has them."""
        return _flat(tensor_of(self._buffer)) if self._buffer.is_shared else super().raw()


def to_stored_weight(given: object, name: str) -> StoredWeight:
    """Return what is stored as an entry of a registry: a `Checkpoint` node, data or an array.

    Raises `MissingTensorError` for a node without a tensor and for data that is only declared, and
    `EngineError` for what is not an array.
    """
    if isinstance(given, Checkpoint):
        info, header = info_of(given), header_of(given)
        own = header.aliases.get(given.name, given.name)
        if not isinstance(source_of(given), Held):
            return InFiles(source_of(given), own)
        given, name = source_of(given).data(own), info.name
    elif isinstance(given, Weights):
        given = given.data()
    if isinstance(given, WeightData):
        buffer = given.to_buffer()
        if isinstance(buffer, FileBuffer):
            return InMapping(given.info, buffer)
        return InMemory(given.info, tensor_of(buffer))
    tensor = tensor_of(given)
    info = TensorInfo(name, tuple(tensor.shape), dtype_of(tensor.dtype).encoding)
    return InMemory(info, tensor)


def _flat(tensor: Tensor) -> Tensor:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)
