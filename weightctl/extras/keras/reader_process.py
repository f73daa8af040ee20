"""Reading of HDF5 files in a process of its own, because h5py's library can crash or hang.

The process gets the bytes that it asks for through a pipe, so that it opens no file, and returns
the structure of the file as JSON.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from struct import Struct
from subprocess import DEVNULL, PIPE, Popen
from typing import IO, TYPE_CHECKING, Any, cast

from weightctl.dtype import ENCODINGS
from weightctl.errors import FormatError
from weightctl.extras.keras.blocks import BlockOfFile, DatasetBlocks
from weightctl.extras.keras.datasets import DAMAGED
from weightctl.formats.base import is_possible
from weightctl.system.children import (
    limit_process,
    receive_message,
    send_message,
    start_python,
)
from weightctl.weights.info import Extent, Header, Leaf, TensorInfo
from weightctl.weights.metadata import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.extras.keras.walking import Path
    from weightctl.storage.base import Reader

# What the process sends: a kind, then the offset and number of bytes that it needs, or the number
# of bytes of its result.
_MESSAGE = Struct("<cQQ")
_READ, _DONE = b"R", b"D"
_LARGEST_READ, _LARGEST_RESULT = 1 << 24, 1 << 30
_PROGRAM = "from weightctl.extras.keras.reader_process import main; main()"
# Limits of the process: seconds of processor time, and bytes of memory.
_SECONDS, _MEMORY = 20, 1 << 32


def read_apart(file: Reader, labels: Mapping[Path, str]) -> Header:
    """Parse an HDF5 file in another process; raises `FormatError` if it is invalid."""
    given = json.dumps([file.path, file.size, [[*path, label] for path, label in labels.items()]])
    with start_python(
        "-c", _PROGRAM, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, is_untrusted=True
    ) as process:
        try:
            raw = _serve(file, process, given.encode())
        except BrokenPipeError:
            raw = b""
        finally:
            process.kill()
    try:
        if raw:
            return header_from(json.loads(raw), file)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
    text = "the structure of the HDF5 file is invalid: the library of HDF5 stopped"
    raise FormatError(file.path, None, text, hint=DAMAGED)


def _serve(file: Reader, process: Popen[bytes], given: bytes) -> bytes:
    """Send the bytes that the process needs; return its result, empty if it ended without."""
    to, of = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
    send_message(to, given)
    while True:
        message = of.read(_MESSAGE.size)
        if len(message) < _MESSAGE.size:
            return b""
        kind, offset, nbytes = _MESSAGE.unpack(message)
        if kind == _DONE:
            return of.read(nbytes) if nbytes <= _LARGEST_RESULT else b""
        send_message(
            to, file.read(offset, min(nbytes, _LARGEST_READ)) if offset < file.size else b""
        )


class _PipedFile:
    """The file in the process, which gets its bytes from weightctl."""

    def __init__(self) -> None:
        self.path, self.size, self.labels = cast(
            "tuple[str, int, Any]", json.loads(receive_message(sys.stdin.buffer))
        )

    @staticmethod
    def read(offset: int, nbytes: int) -> bytes:
        sys.stdout.buffer.write(_MESSAGE.pack(_READ, offset, nbytes))
        sys.stdout.buffer.flush()
        return receive_message(sys.stdin.buffer)


def main() -> None:
    """Read the file that weightctl sends through the pipe; called in the process."""
    from weightctl.extras.keras.structure import read_structure

    limit_process(_MEMORY, _SECONDS)
    file = _PipedFile()
    labels = {tuple(path): str(label) for *path, label in file.labels}
    try:
        document = to_document(read_structure(file, labels))
    except FormatError as error:
        document = {"error": [error.offset, error.reason, error.hint]}
    result = json.dumps(document).encode()
    sys.stdout.buffer.write(_MESSAGE.pack(_DONE, 0, len(result)))
    sys.stdout.buffer.write(result)
    sys.stdout.buffer.flush()


# The header of an HDF5 file as JSON, in which the process that parses the file returns it.


def to_document(header: Header) -> dict[str, Any]:
    """Return a header as JSON values."""
    return {
        "tensors": [
            [info.name, info.shape, info.encoding.name, *_describe(header.extents[info.name])]
            for info in header.tensors.values()
        ],
        "metadata": {key: value.content for key, value in header.metadata.items()},
        "aliases": dict(header.aliases),
        "leaves": [[name, *leaf] for name, leaf in header.leaves.items()],
        "big_endian": header.big_endian,
        "notes": header.notes,
    }


def _describe(extent: Extent) -> tuple[int, str | None, Any]:
    held = None if extent.held is None else b64encode(extent.held).decode()
    blocks = extent.blocks
    return extent.offset, held, blocks.describe() if isinstance(blocks, DatasetBlocks) else None


def header_from(document: Any, file: Reader) -> Header:
    """Return the header of a file from JSON values; raises the `FormatError` that they state."""
    if "error" in document:
        offset, reason, hint = document["error"]
        raise FormatError(file.path, offset, reason, hint=hint)
    tensors: dict[str, TensorInfo] = {}
    extents: dict[str, Extent] = {}
    for name, shape, encoding, offset, held, blocks in document["tensors"]:
        info = TensorInfo(name, tuple(shape), ENCODINGS[encoding])
        raw = None if held is None else b64decode(held)
        is_within = raw is not None or blocks is not None or offset + info.nbytes <= file.size
        is_sized = raw is None or len(raw) == info.nbytes
        if not is_possible(info.shape) or not is_within or not is_sized:
            reason = f"the bytes of `{name}` are not in the file"
            raise FormatError(file.path, None, reason, hint=DAMAGED)
        tensors[name] = info
        extents[name] = Extent(0, offset, info.nbytes, None, raw, _read_blocks(info, blocks))
    return Header(
        format="keras",
        files=(file.path,),
        tensors=tensors,
        extents=extents,
        metadata={key: text(value) for key, value in document["metadata"].items()},
        aliases=document["aliases"],
        leaves={name: Leaf(kind, look) for name, kind, look in document["leaves"]},
        big_endian=document["big_endian"],
        notes=tuple(document["notes"]),
    )


def _read_blocks(info: TensorInfo, described: Any) -> DatasetBlocks | None:
    if described is None:
        return None
    sizes, filters, blocks = described
    places = {tuple(place): BlockOfFile(*where) for place, where in blocks}
    return DatasetBlocks(info, tuple(sizes), tuple(filters), places)
