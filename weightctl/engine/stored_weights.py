"""Stored weights and parts of them: bytes in the files of a checkpoint, or in memory."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

from weightctl.engine.arrays import bytes_of, tensor_of
from weightctl.graph.ops.lowering import dtype_of
from weightctl.split import part_shape
from weightctl.weights.byte_ranges import byte_part, byte_shape
from weightctl.weights.data import FileBuffer, WeightData
from weightctl.weights.info import TensorInfo
from weightctl.weights.protocol import Weights
from weightctl.weights.source import Held
from weightctl.weights.steps.sliced import read_part, runs
from weightctl.weights.tree import Checkpoint, header_of, info_of, source_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from weightctl.split import Part
    from weightctl.weights.data import Source

# Reading ahead is not requested for a part in more byte ranges than this.
_PIECES = 8


class StoredWeight(Protocol):
    """A tensor as it is stored."""

    @property
    def info(self) -> TensorInfo:
        """The logical shape and the encoding."""
        ...

    @property
    def key(self) -> Hashable:
        """A key that is equal for all names of one tensor."""
        ...

    @property
    def source(self) -> Source | None:
        """The source that the tensor is read from; None if it is in memory."""
        ...

    @property
    def is_borrowed(self) -> bool:
        """Whether the bytes are in memory that other code will use again."""
        ...

    def raw(self) -> Tensor:
        """Return the bytes as a uint8 tensor of one dimension."""
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
        """The source, and the name of the tensor in it."""
        return (id(self.source), self.info.name)

    @property
    def is_borrowed(self) -> bool:
        """False: the bytes are read into new memory."""
        return False

    def raw(self, *, pinned: bool = False) -> Tensor:
        """Read the bytes into new memory and return them; `pinned` is for copies to a GPU."""
        import torch

        made = torch.empty(self.info.nbytes, dtype=torch.uint8, pin_memory=pinned)
        if self.info.nbytes:
            self._read(0, bytes_of(made))
        return made

    def rows(self, numbers: Sequence[int]) -> InMemory:
        """Return the rows with these numbers; only they are read."""
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
        """Ask the operating system to read the tensor ahead."""
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
        """The address of the bytes, the shape and the encoding."""
        return (self._raw.device, self._raw.data_ptr(), self.info.shape, self.info.encoding)

    def raw(self) -> Tensor:
        """Return the bytes without a copy."""
        return self._raw

    def expect(self) -> None:
        """Do nothing: the data is in memory."""


class InMapping(InFiles):
    """A memory-mapped tensor; it is read from the file while the mapping is not shared.

    Other code that has the mapping may have written to it: then the mapped bytes are used.
    """

    def __init__(self, info: TensorInfo, buffer: FileBuffer) -> None:
        super().__init__(buffer.source, buffer.name)
        self.info = info._replace(name=buffer.name)
        self._buffer = buffer

    @property
    def key(self) -> Hashable:
        """The mapping, whose bytes may differ from the file, and the tensor's info."""
        return (id(self._buffer), self.info)

    @property
    def is_borrowed(self) -> bool:
        """Whether other code has the mapping."""
        return self._buffer.is_shared

    def raw(self, *, pinned: bool = False) -> Tensor:
        """Return the bytes: the mapped ones if other code has the mapping, or read again."""
        if self._buffer.is_shared:
            return _flat(tensor_of(self._buffer))
        return super().raw(pinned=pinned)


def to_stored_weight(given: object, name: str) -> StoredWeight:
    """Return the stored weight of a registry's entry: a `Checkpoint` node, data or an array.

    Raises `MissingTensorError` for a node without a tensor and for data that is only declared, and
    `EngineError` if the entry is not an array.
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


def slice_weight(place: StoredWeight, whole: TensorInfo, part: Part) -> StoredWeight:
    """Return a part of a stored tensor, with `whole` as the tensor's info."""
    if not part:
        return place
    if isinstance(place, InFiles):
        return _FileSlice(place, whole, part)
    return _Slice(place, whole, part)


class _Slice:
    """A part of a tensor that is in memory or computed."""

    def __init__(self, place: StoredWeight, whole: TensorInfo, part: Part) -> None:
        self._place, self._whole, self._part = place, whole, part
        self.info = whole._replace(shape=part_shape(whole.shape, part))
        self.source = place.source

    @property
    def key(self) -> Hashable:
        """The key of the tensor, and the part."""
        return (self._place.key, self._part)

    @property
    def is_borrowed(self) -> bool:
        """Whether the tensor is borrowed: the part may share its memory."""
        return self._place.is_borrowed

    def raw(self) -> Tensor:
        """Return the part's bytes, without a copy if they are contiguous."""
        return _cut(self._place.raw(), self._whole, self._part)

    def expect(self) -> None:
        """Announce that the data of the tensor is needed soon."""
        self._place.expect()


class _FileSlice(InFiles):
    """A part of a tensor in a file, read on each use."""

    def __init__(self, place: InFiles, whole: TensorInfo, part: Part) -> None:
        super().__init__(place.source, place.info.name)
        self._place, self._whole, self._part = place, whole, part
        self.info = whole._replace(name=place.info.name, shape=part_shape(whole.shape, part))

    @property
    def key(self) -> Hashable:
        """The key of the tensor, and the part."""
        return (self._place.key, self._part)

    @property
    def is_borrowed(self) -> bool:
        """Whether other code has the memory of the tensor."""
        return self._place.is_borrowed

    def raw(self, *, pinned: bool = False) -> Tensor:
        """Return the part's bytes, read from the file unless other code has the tensor's memory."""
        if self.is_borrowed:
            return _cut(self._place.raw(), self._whole, self._part)
        return super().raw(pinned=pinned)

    def expect(self) -> None:
        """Ask the operating system to read the part ahead if it has few byte ranges."""
        span = self.source.file_range(self.info.name)
        pieces = list(islice(runs(self._whole, self._part), _PIECES + 1))
        if span is not None and len(pieces) <= _PIECES:
            for offset, nbytes in pieces:
                span.expect(offset, offset + nbytes)

    def _read(self, start: int, memory: memoryview) -> None:
        def read(at: int, buffer: memoryview) -> None:
            self.source.read_into(self.info.name, at, buffer)

        read_part(self._whole, self._part, read, start, memory)


def _cut(raw: Tensor, whole: TensorInfo, part: Part) -> Tensor:
    """Return the bytes of a part, cut from the bytes of the whole tensor."""
    import torch

    found = raw.reshape(byte_shape(whole))
    for axis, ranges in byte_part(whole, part):
        pieces = [found.narrow(axis, start, stop - start) for start, stop in ranges]
        found = pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)
    return found.contiguous().reshape(-1)
