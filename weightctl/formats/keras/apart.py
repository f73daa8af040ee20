"""Reading of HDF5 files in a process of its own, because h5py's library can crash or hang.

The process gets the bytes that it asks for through a pipe, so that it opens no file, and returns
the structure of the file as JSON.
"""

from __future__ import annotations

import json
import sys
from struct import Struct
from subprocess import DEVNULL, PIPE, Popen
from typing import IO, TYPE_CHECKING, Any, cast

from weightctl.errors import FormatError
from weightctl.formats.keras.datasets import DAMAGED
from weightctl.formats.keras.document import header_from, to_document
from weightctl.system.children import (
    limit_process,
    receive_message,
    send_message,
    start_python,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.formats.keras.walking import Path
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header

# What the process sends: a kind, then the offset and number of bytes that it needs, or the number
# of bytes of its result.
_MESSAGE = Struct("<cQQ")
_READ, _DONE = b"R", b"D"
_LARGEST_READ, _LARGEST_RESULT = 1 << 24, 1 << 30
_PROGRAM = "from weightctl.formats.keras.apart import main; main()"
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
        """Return bytes of the file."""
        sys.stdout.buffer.write(_MESSAGE.pack(_READ, offset, nbytes))
        sys.stdout.buffer.flush()
        return receive_message(sys.stdin.buffer)


def main() -> None:
    """Read the file that weightctl sends through the pipe; called in the process."""
    from weightctl.formats.keras.structure import read_structure

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
