"""Tensors that a library of arrays reads, piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.weights.boxes import boxes_of_run
from weightctl.weights.deferred import Assembled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.storage.base import Reader
    from weightctl.weights.data import WeightData
    from weightctl.weights.info import Header

_DAMAGED = "check that the copy of the checkpoint is complete"
_MOST_BYTES = 1 << 24


class ArraySource:
    """A source of tensors that are arrays of tensorstore; `path` is its name in messages."""

    def __init__(
        self, header: Header, files: Sequence[Reader], arrays: Mapping[str, Any], path: str
    ) -> None:
        self._header, self._files = header, tuple(files)
        self._arrays, self._path = arrays, path

    @property
    def header(self) -> Header:
        """The header of the whole checkpoint."""
        return self._header

    @property
    def files(self) -> tuple[Reader, ...]:
        """The files of the checkpoint."""
        return self._files

    def data(self, name: str) -> WeightData:
        """Return a tensor's data, which is read on first use."""
        from weightctl.weights.data import WeightData

        return WeightData.of(self._header.tensors[name], Assembled(self, name))

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes of a tensor; only the chunks with these bytes are read.

        Raises `FormatError` if a chunk is missing or damaged.
        """
        import numpy as np  # not loaded by `ls`

        info, array = self._header.tensors[name], self._arrays[name]
        width = info.encoding.size
        first, last = start // width, (start + buffer.nbytes) // width
        shape = info.shape or (1,)
        done = 0
        for box in boxes_of_run(shape, first, last, max(_MOST_BYTES // width, 1)):
            index = (*box.place, slice(box.start, box.stop))
            part = array[index] if info.shape else array
            try:
                values = part.read().result()
            except (ValueError, RuntimeError, OSError, KeyError) as error:
                reason = " ".join(str(error).split())[:300]
                text = f"values of `{name}` cannot be read: {reason}"
                raise FormatError(self._path, None, text, hint=_DAMAGED) from error
            raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            buffer[done : done + raw.nbytes] = raw.data
            done += raw.nbytes

    def file_range(self, _: str, /) -> None:
        """Return None: the bytes of a tensor are compressed."""

    def refuse_change(self) -> None:
        """Raise `FormatError` if a file was changed after it was opened."""
        for file in self._files:
            file.refuse_change()
