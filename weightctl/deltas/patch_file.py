"""The format of patch files. All numbers in the header are little-endian.

| offset | bytes | content |
|---|---|---|
| 0 | 8 | `WCTLDIFF` |
| 8 | 4 | the version, 1 |
| 12 | 4 | 0 |
| 16 | 8 | the offset of the index |
| 24 | 8 | the size of the index, which ends the file |
| 32 | 32 | the SHA-256 of the index |
| 64 | | the blocks, in the order of the chunks in the index, without gaps |

The index is JSON. The keys are those that `write_index` writes and `read_patch` checks.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.deltas.blocks import WORDS, Method
from weightctl.errors import FormatError
from weightctl.storage.files import is_directory, open_reader
from weightctl.system.temporary import is_temporary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.storage.base import Reader

CHUNK = 4 << 20
HEADER = 64
_MAGIC, _VERSION = b"WCTLDIFF", 1
_HEADER = struct.Struct("<8sIIQQ32s")
_LARGEST_CHUNK = 8 << 20
_LARGEST_INDEX = 256 << 20
_LARGEST_FILE = 1 << 60
_DIGEST = re.compile(r"[0-9a-f]{64}")
_AGAIN = "copy the patch again from its origin, or write it again with `weightctl diff --patch`"


class SourceRecord(NamedTuple):
    """A file of the old checkpoint that the patch needs."""

    name: str
    size: int


class PatchChunk(NamedTuple):
    """A chunk: its method, the size of its block, the SHA-256 of the old chunk, listed words."""

    method: Method
    nbytes: int = 0
    digest: str = ""
    changed: int = 0


class RangeRecord(NamedTuple):
    """A range of a new file: a tensor, or other bytes (an empty name).

    `source` is the index of the old file and the offset there; None if no old bytes are needed. All
    chunks but the last have the size that the patch states.
    """

    tensor: str
    length: int
    word: int
    source: tuple[int, int] | None
    chunks: tuple[PatchChunk, ...]


class FileRecord(NamedTuple):
    """A file of the new checkpoint; its ranges are in the order of their bytes, without gaps."""

    name: str
    size: int
    digest: str
    ranges: tuple[RangeRecord, ...]


class Patch(NamedTuple):
    """A patch: the old files that it needs, and the new files that it makes.

    If `is_directory` is false, there is one new file, whose name is not used.
    """

    is_directory: bool
    chunk: int
    sources: tuple[SourceRecord, ...]
    files: tuple[FileRecord, ...]


def make_ends(patch: Patch, offset: int) -> tuple[bytes, bytes]:
    """Return the header and the index of a patch whose blocks end at an offset."""
    document = {
        "directory": patch.is_directory,
        "chunk": patch.chunk,
        "sources": [each._asdict() for each in patch.sources],
        "files": [
            {
                "name": file.name,
                "size": file.size,
                "sha256": file.digest,
                "ranges": [
                    {
                        "tensor": each.tensor,
                        "length": each.length,
                        "word": each.word,
                        "source": each.source,
                        "chunks": [list(chunk) for chunk in each.chunks],
                    }
                    for each in file.ranges
                ],
            }
            for file in patch.files
        ],
    }
    index = json.dumps(document, separators=(",", ":")).encode()
    digest = hashlib.sha256(index).digest()
    return _HEADER.pack(_MAGIC, _VERSION, 0, offset, len(index), digest), index


def read_patch(path: str) -> tuple[Patch, Reader]:
    """Return the index of a patch file, and the open file; blocks are not read.

    Raises `FormatError` if the file is not a patch, or if anything in the index is invalid.
    """
    if is_directory(path):
        raise FormatError(
            path,
            None,
            "this is a directory, not a patch",
            hint="the order is `weightctl apply MODEL PATCH OUT`",
        )
    file = open_reader(path)
    start = file.read(0, HEADER)
    if not start.startswith(_MAGIC):
        raise FormatError(
            path, None, "this file is not a patch", hint="`weightctl diff A B --patch` writes one"
        )
    if len(start) < HEADER:
        raise _make_truncated_error(path, file.size)
    _, version, zero, offset, nbytes, digest = _HEADER.unpack(start)
    if (version, zero) != (_VERSION, 0):
        raise FormatError(
            path, 8, f"version {version} of the patch format is not supported",
            hint="install a newer version of weightctl",
        )  # fmt: skip
    if offset + nbytes > file.size or offset < HEADER:
        raise _make_truncated_error(path, file.size)
    if offset + nbytes < file.size:
        raise FormatError(path, offset + nbytes, "bytes follow the end of the patch", hint=_AGAIN)
    if nbytes > _LARGEST_INDEX:
        raise FormatError(path, offset, f"the index has {nbytes} bytes; the limit is 256 MB")
    index = file.read(offset, nbytes)
    if hashlib.sha256(index).digest() != digest:
        raise FormatError(path, offset, "the SHA-256 of the index is wrong", hint=_AGAIN)
    try:
        patch = _parse(json.loads(str(index, "utf-8")))
        blocks = sum(chunk.nbytes for file in patch.files for each in file.ranges
                     for chunk in each.chunks)  # fmt: skip
        _require(HEADER + blocks == offset, "the blocks do not end at the index")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FormatError(path, offset, f"the index is invalid: {reason}", hint=_AGAIN) from error
    return patch, file


def _make_truncated_error(path: str, size: int) -> FormatError:
    return FormatError(path, size, "the file ends before the end of the patch", hint=_AGAIN)


def _require(condition: object, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _number(value: Any, least: int, most: int) -> int:
    _require(type(value) is int and least <= value <= most, f"{value!r} is not a valid number")
    return int(value)


def _text(value: Any) -> str:
    _require(isinstance(value, str), "a name is not text")
    return str(value)


def _name(value: Any) -> str:
    """Return the name of a file below a directory, which must not lead out of it."""
    name = _text(value)
    segments = name.split("/")
    safe = name.isprintable() and "\\" not in name and not {"", ".", ".."} & {*segments}
    _require(safe, f"{name!r} is not a valid name of a file")
    # weightctl reads journals and markers that lie beside a model.
    _require(not any(map(is_temporary, segments)), f"{name!r} is a name for weightctl's own files")
    return name


def _digest(value: Any) -> str:
    _require(isinstance(value, str) and _DIGEST.fullmatch(value), "a SHA-256 is invalid")
    return str(value)


def _parse(document: Any) -> Patch:
    chunk = _number(document["chunk"], 8, _LARGEST_CHUNK)
    _require(chunk % max(WORDS) == 0, "the size of chunks is not a multiple of 8")
    sources = tuple(
        SourceRecord(_name(each["name"]), _number(each["size"], 0, _LARGEST_FILE))
        for each in document["sources"]
    )
    files = tuple(_parse_file(each, chunk, sources) for each in document["files"])
    _require(files, "there are no files")
    _require(document["directory"] is True or len(files) == 1, "there are several files")
    for listed in (sources, files):
        names = {each.name for each in listed}
        _require(len(names) == len(listed), "two files have the same name")
    inner = {name.rpartition("/")[0] for name in (each.name for each in files)}
    _require(not inner & {each.name for each in files}, "a file has the name of a directory")
    return Patch(document["directory"] is True, chunk, sources, files)


def _parse_file(document: Any, chunk: int, sources: Sequence[SourceRecord]) -> FileRecord:
    size = _number(document["size"], 0, _LARGEST_FILE)
    ranges = tuple(_parse_range(each, chunk, sources) for each in document["ranges"])
    _require(sum(each.length for each in ranges) == size, "the ranges do not fill their file")
    return FileRecord(_name(document["name"]), size, _digest(document["sha256"]), ranges)


def _parse_range(document: Any, chunk: int, sources: Sequence[SourceRecord]) -> RangeRecord:
    length = _number(document["length"], 1, _LARGEST_FILE)
    word = _number(document["word"], 1, max(WORDS))
    _require(word in WORDS and length % word == 0, "a range does not have whole words")
    source = None
    if document["source"] is not None:
        number, offset = document["source"]
        old = sources[_number(number, 0, len(sources) - 1)]
        source = number, _number(offset, 0, old.size - length)
    count = -(-length // chunk)
    _require(len(document["chunks"]) == count, "the number of chunks is wrong")
    chunks: list[PatchChunk] = []
    for number, each in enumerate(document["chunks"]):
        here = min(chunk, length - number * chunk)
        chunks.append(_parse_chunk(each, here, word, has_source=source is not None))
    return RangeRecord(_text(document["tensor"]), length, word, source, tuple(chunks))


def _parse_chunk(document: Any, length: int, word: int, *, has_source: bool) -> PatchChunk:
    name, nbytes, digest, changed = document
    method = Method(_text(name))
    nbytes = _number(nbytes, 0, length)
    if not method.needs_source:
        _require(not digest, "a new chunk has the SHA-256 of an old one")
        _require(method is not Method.STORED or nbytes == length, "a stored chunk is incomplete")
        return PatchChunk(method, nbytes)
    _require(has_source, "a chunk has no source")
    _require(method is not Method.SAME or nbytes == 0, "an unchanged chunk has a block")
    least, most = (1, length // word) if method is Method.SPARSE else (0, 0)
    return PatchChunk(method, nbytes, _digest(digest), _number(changed, least, most))
