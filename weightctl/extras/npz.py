"""Archives of arrays (`.npz`), as NumPy and MLX write them; they are only read.

Source: `numpy/lib/_format_impl.py`. Arrays are read in place, so they must not be compressed.
Arrays of objects, which are pickles, are listed but not read.
"""

from __future__ import annotations

from ast import literal_eval
from math import prod
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.dtype import ENCODINGS, Encoding
from weightctl.errors import FormatError
from weightctl.formats.base import is_possible
from weightctl.formats.read_only import ReadOnly
from weightctl.text.untyped import is_object, is_tuple
from weightctl.weights.info import Extent, Header, Leaf, TensorInfo

if TYPE_CHECKING:
    from weightctl.formats.pytorch.archive import Archive
    from weightctl.storage.base import Reader

_ZIP = b"PK\3\4"
_MAGIC = b"\x93NUMPY"
_SUFFIX = ".npy"
# The length of the header of an array, by version.
_LENGTHS = {1: Struct("<H"), 2: Struct("<I"), 3: Struct("<I")}
_LONGEST = 1 << 16
_DAMAGED = "the file is damaged: check that the download is complete"
_BFLOAT16 = "2-byte values without a type (V2) are read as BF16, as MLX and ml_dtypes write them"
_READ_ONLY = ReadOnly(".npz", "write safetensors, which NumPy and MLX read too")
unfit, layout = _READ_ONLY.unfit, _READ_ONLY.layout


class _Stored(NamedTuple):
    """The description of an array: dtype, order of elements, and shape."""

    descr: str
    is_fortran: bool
    shape: tuple[int, ...]


def sniff(file: Reader) -> bool:
    """Whether a file is a zip file of arrays that are not compressed."""
    if file.read(0, 4) != _ZIP:
        return False
    from weightctl.formats.pytorch.archive import Archive

    try:
        members = Archive(file).members
    except FormatError:
        return False
    return bool(members) and all(
        name.endswith(_SUFFIX) and not member.method for name, member in members.items()
    )


def read(file: Reader) -> Header:
    """Parse the headers of all arrays; raises `FormatError` if one is invalid."""
    from weightctl.formats.pytorch.archive import Archive

    archive = Archive(file)
    tensors: dict[str, TensorInfo] = {}
    extents: dict[str, Extent] = {}
    leaves: dict[str, Leaf] = {}
    orders: set[bool] = set()
    notes: dict[str, None] = {}
    for member in archive.members:
        name = member.removesuffix(_SUFFIX)
        stored, start, nbytes = _read_member(file, archive, member)
        encoding = _encoding_of(stored.descr)
        if encoding is None:
            leaves[name] = Leaf("numpy.ndarray", f"{stored.descr} {list(stored.shape)}")
            continue
        info = TensorInfo(name, stored.shape, encoding)
        if info.nbytes != nbytes:
            text = f"`{name}` needs {info.nbytes} bytes, but the file has {nbytes}"
            raise FormatError(file.path, start, text, hint=_DAMAGED)
        if encoding.size > 1:
            orders.add(stored.descr.startswith(">"))
        if stored.descr[1:] == "V2":
            notes[_BFLOAT16] = None
        tensors[name] = info
        extents[name] = Extent(0, start, nbytes, _strides(stored, encoding))
    if len(orders) > 1:
        text = "its arrays have different byte orders"
        raise FormatError(file.path, None, text, hint="save them in one byte order")
    return Header(
        format="npz",
        files=(file.path,),
        tensors=tensors,
        extents=extents,
        leaves=leaves,
        big_endian=True in orders,
        notes=tuple(notes),
    )


def _read_member(file: Reader, archive: Archive, member: str) -> tuple[_Stored, int, int]:
    """Return the description of an array, and the offset and number of its bytes."""
    span = archive.content(member)
    beginning = span.read(0, len(_MAGIC) + 6)
    version = beginning[len(_MAGIC)] if len(beginning) > len(_MAGIC) else 0
    length = _LENGTHS.get(version)
    if not beginning.startswith(_MAGIC) or length is None or len(beginning) < len(_MAGIC) + 6:
        raise FormatError(
            file.path, span.offset, f"`{member}` is not an array of NumPy", hint=_DAMAGED
        )
    at = len(_MAGIC) + 2
    nbytes = int(length.unpack_from(beginning, at)[0])
    at += length.size
    if nbytes > min(_LONGEST, len(span) - at):
        raise FormatError(
            file.path, span.offset, f"the header of `{member}` is too long", hint=_DAMAGED
        )
    stored = _parse(span.read(at, nbytes))
    if stored is None:
        raise FormatError(
            file.path, span.offset + at, f"the header of `{member}` is invalid", hint=_DAMAGED
        )
    return stored, span.offset + at + nbytes, len(span) - at - nbytes


def _parse(raw: bytes) -> _Stored | None:
    """Return the description of an array from its text, which is a literal of Python."""
    try:
        document: Any = literal_eval(raw.decode("utf-8"))
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None
    if not is_object(document):
        return None
    descr, shape = document.get("descr"), document.get("shape")
    if not is_tuple(shape) or any(type(size) is not int for size in shape):
        return None
    if not is_possible(shape):
        return None
    kind = descr if isinstance(descr, str) else "structured"
    return _Stored(kind, document.get("fortran_order") is True, shape)


def _encoding_of(descr: str) -> Encoding | None:
    from weightctl.formats.pytorch.tensors import NUMPY_ENCODINGS

    if descr in {"|V2", "<V2"}:
        return ENCODINGS["BF16"]
    return ENCODINGS.get(NUMPY_ENCODINGS.get(descr[1:], ""))


def _strides(stored: _Stored, encoding: Encoding) -> tuple[int, ...] | None:
    shape = stored.shape
    if not stored.is_fortran or len(shape) < 2:
        return None
    return tuple(encoding.size * prod(shape[:axis]) for axis in range(len(shape)))
