"""Tensors that a generator makes one after the other, kept in a file until all are there."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError, FormatError
from weightctl.storage.base import cannot_write
from weightctl.system.files import read_into_at
from weightctl.text.untyped import is_tuple
from weightctl.weights.data import Absent, Assembled, WeightData
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.source import Held
from weightctl.weights.tree import Checkpoint, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO


def collect_tensors(tensors: Iterator[tuple[str, Any]], directory: str) -> Checkpoint:
    """Write pairs of names and arrays to a temporary file, and return them as a tree.

    Headers of checkpoints precede the values, and are not known before the last tensor. The file is
    in `directory`, and has no name, so that nothing is left if the process is killed. One tensor is
    in memory at a time. Raises `ConversionError` for values that are not such pairs, and for a name
    that is given twice, and `OutputError` if the file cannot be written.
    """
    try:
        file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  # closed below
    except OSError as error:
        raise cannot_write(directory, error) from error
    described: dict[str, WeightData] = {}
    offsets: dict[str, int] = {}
    with file:
        for pair in tensors:
            name, data = _take(pair)
            if name in offsets:
                raise ConversionError(f"the generator has two tensors with the name `{name}`")
            offsets[name] = file.tell()
            _append(file, data.view(), directory)
            described[name] = WeightData.of(data.info, Absent())
        return Checkpoint(_Collected(described, offsets, os.dup(file.fileno())))


def _append(file: IO[bytes], values: memoryview, directory: str) -> None:
    try:
        while values:
            values = values[file.write(values) :]
    except OSError as error:
        raise cannot_write(directory, error) from error


def _take(pair: Any) -> tuple[str, WeightData]:
    if not is_tuple(pair) or len(pair) != 2:
        raise ConversionError(
            f"the generator has a {type(pair).__name__}, not a pair of a name and an array",
            hint="use `yield name, array`",
        )
    source = source_of(as_checkpoint({pair[0]: pair[1]}))
    (name,) = source.header.tensors
    return name, source.data(name)


class _Collected(Held):
    """Tensors in a temporary file."""

    def __init__(
        self, described: dict[str, WeightData], offsets: dict[str, int], descriptor: int
    ) -> None:
        super().__init__(described, {})
        self._offsets, self._descriptor = offsets, descriptor
        weakref.finalize(self, os.close, descriptor)

    def data(self, name: str) -> WeightData:
        """Return a tensor's data, which is read on first use."""
        return WeightData.of(self.header.tensors[name], Assembled(self, name))

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Read the tensor's bytes that begin at `start`."""
        done = 0
        while done < buffer.nbytes:
            at = self._offsets[name] + start + done
            count = read_into_at(self._descriptor, buffer[done:], at)
            if not count:
                raise FormatError("a temporary file", at, "it ends before the values")
            done += count
