"""Sources of tensor data: files, or memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightctl.errors import EncodingError, MissingTensorError
from weightctl.storage.base import FileRange, HeldRange
from weightctl.weights.info import Extent, Header, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from weightctl.storage.base import ByteRange, Reader
    from weightctl.weights.data import WeightData
    from weightctl.weights.metadata import MetadataValue


class FileSource:
    """Tensors in files."""

    def __init__(self, header: Header, files: tuple[Reader, ...]) -> None:
        self._header = header
        self._files = files

    @property
    def header(self) -> Header:
        return self._header

    @property
    def files(self) -> tuple[Reader, ...]:
        return self._files

    def data(self, name: str) -> WeightData:
        """Return a tensor's data as a private mapping of its range of the file.

        Data that is not contiguous, not stored as such, or big-endian is copied. Access to the
        mapping ends the process (SIGBUS) if another program has made the file shorter; `read_into`
        raises an error instead.
        """
        from weightctl.weights.data import Assembled, WeightData

        info, extent = self._header.tensors[name], self._header.extents[name]
        if extent.blocks is not None:
            return WeightData.of(info, Assembled(self, name))
        if extent.strides is not None:
            memory = _memory(info, extent.nbytes)
            self._gather(name, 0, memory)
        elif extent.held is not None:
            memory = memoryview(bytearray(extent.held))
        else:
            memory = self._files[extent.file].private(extent.offset, extent.nbytes)
        if self._header.big_endian:
            memory = _swap_bytes(info, memory)
        return WeightData.stored(info, memory, None if self.file_range(name) is None else self)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Read a tensor's bytes without a mapping."""
        extent = self._header.extents[name]
        if extent.blocks is not None:
            extent.blocks.read_into(self._files[extent.file], extent.offset, start, buffer)
        elif extent.strides is not None:
            self._gather(name, start, buffer)
        elif extent.held is not None:
            buffer[:] = extent.held[start : start + len(buffer)]
        else:
            self._files[extent.file].read_into(extent.offset + start, buffer)
        if self._header.big_endian:
            buffer[:] = _swap_bytes(self._header.tensors[name], buffer)

    def file_range(self, name: str, /) -> FileRange | None:
        """Return the range of a file with the tensor's bytes; None if reading changes the bytes."""
        extent = self._header.extents[name]
        is_elsewhere = extent.held is not None or extent.blocks is not None
        if extent.strides is not None or is_elsewhere or self._header.big_endian:
            return None
        return FileRange(self._files[extent.file], extent.offset, extent.nbytes)

    def refuse_change(self) -> None:
        """Raise `FormatError` if a file was changed after it was opened."""
        for file in self._files:
            file.refuse_change()

    def _gather(self, name: str, start: int, buffer: memoryview) -> None:
        from weightctl.weights.strided import gather

        info, extent = self._header.tensors[name], self._header.extents[name]
        data: ByteRange = self._files[extent.file].range(extent.offset)
        if extent.held is not None:
            data = HeldRange(memoryview(extent.held))
        width, shape = info.encoding.size, info.shape
        if info.encoding.block > 1:
            # An element of the array is a block of values.
            shape = (*shape[:-1], shape[-1] // info.encoding.block)
        if buffer.nbytes:
            strides = extent.strides or ()
            gather(data, width, shape, strides=strides, start=start // width, out=buffer)


def _memory(info: TensorInfo, nbytes: int) -> memoryview:
    try:
        return memoryview(bytearray(nbytes))
    except (MemoryError, OverflowError) as error:
        raise EncodingError(
            f"there is not enough memory for `{info.name}`, which needs {nbytes} bytes",
            hint="the tensor repeats the same elements, so it is larger in memory than in its "
            "file; store it without repeated elements, or use a machine with more memory",
        ) from error


class Held:
    """Tensors in memory."""

    def __init__(
        self, tensors: Mapping[str, WeightData], metadata: Mapping[str, MetadataValue]
    ) -> None:
        self._tensors = tensors
        self._header = Header(
            format="memory",
            files=(),
            tensors={
                name: TensorInfo(name, held.info.shape, held.info.encoding)
                for name, held in tensors.items()
            },
            extents={name: Extent(0, 0, held.info.nbytes) for name, held in tensors.items()},
            metadata=metadata,
        )

    @property
    def header(self) -> Header:
        return self._header

    @property
    def files(self) -> tuple[Reader, ...]:
        return ()

    def data(self, name: str) -> WeightData:
        return self._tensors[name]

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Copy the tensor's bytes that begin at `start`."""
        buffer[:] = self.data(name).view(start, start + buffer.nbytes)

    def file_range(self, _: str, /) -> None:
        """Return None: the bytes are in memory."""

    def refuse_change(self) -> None:
        """Do nothing: the arrays belong to the caller."""


class Declared:
    """A source without tensors: its weights are only declared, and get their data elsewhere."""

    @property
    def header(self) -> Header:
        return Header(format="declared", files=(), tensors={}, extents={})

    @property
    def files(self) -> tuple[Reader, ...]:
        return ()

    def data(self, name: str) -> WeightData:
        """Raise `MissingTensorError`."""
        raise nothing_loaded(name)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:  # noqa: ARG002
        """Raise `MissingTensorError`."""
        raise nothing_loaded(name)

    def file_range(self, _: str, /) -> None:
        """Return None: there are no bytes."""

    def refuse_change(self) -> None:
        """Do nothing: there is no data."""


def nothing_loaded(name: str) -> MissingTensorError:
    """Return the error for reading a tensor of a tree that only declares weights."""
    return MissingTensorError(
        f"`{name}` is only declared: this tree has no data",
        hint="the data comes from the `weights_registry` that is given when an engine loads "
        "the graph",
    )


def _swap_bytes(info: TensorInfo, memory: memoryview) -> memoryview:
    """Return the bytes of big-endian blocks in little-endian order."""
    if not info.encoding.is_known:
        raise EncodingError(
            f"`{info.name}` is stored as {info.encoding.name} in the other byte order",
            hint="weightctl does not support swapping the bytes of this encoding",
        )
    import numpy as np  # not loaded by `ls`

    big = _make_block_dtype(info.encoding.layout, ">")
    little = np.frombuffer(memory, big).astype(_make_block_dtype(info.encoding.layout, "<"))
    return little.view(np.uint8).data


def _make_block_dtype(layout: str, order: str) -> np.dtype[Any]:
    import numpy as np

    fields = re.findall(r"(\d*)([BHIQ])", layout)
    widths = {"B": 1, "H": 2, "I": 4, "Q": 8}
    return np.dtype(
        [
            (f"f{number}", f"{order}u{widths[code]}", (int(repeat or 1),))
            for number, (repeat, code) in enumerate(fields)
        ]
    )
