"""Records of PyTorch pickles: storages, tensors, and NumPy arrays.

Source of the persistent ids of storages: `persistent_id` in `torch/serialization.py`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from weightctl.dtype import ENCODINGS, Encoding, encoding_by_id
from weightctl.formats.pickles.records import Built, Global
from weightctl.text.untyped import is_tuple

_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL", "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128", "QInt8Storage": "QINT8", "QUInt8Storage": "QUINT8",
    "QInt32Storage": "QINT32", "QUInt4x2Storage": "QUINT4X2", "QUInt2x4Storage": "QUINT2X4",
    "UntypedStorage": "",
}  # fmt: skip
STORAGE_CLASSES = {encoding: kind for kind, encoding in _STORAGES.items()}
_LARGEST = 1 << 60
_LONGEST_KEY = 256
_LONGEST_IDENTITY = 1024
_MODULES = ("torch", "torch.storage", "torch.cuda")
STORAGE_NAMES = frozenset(f"{module}.{name}" for module in _MODULES for name in _STORAGES)
# The persistent ids of protocol 0, which are the text of a tuple.
_STORAGE = re.compile(
    r"\('storage', <class '(?P<kind>[\w.]+)'>, '(?P<key>\w+)', '[\w:]*', (?P<count>\d{1,18})"
    r"(?P<view>, None)?\)"
)
_CLASS = re.compile(r"\('module', <class '(?P<kind>[\w.<>]+)'>, ")


class Storage(NamedTuple):
    """A storage of `length` elements, stored under `key`; a view of it begins at element `start`.

    `encoding` is None for an untyped storage, whose tensors state their dtype.
    """

    encoding: Encoding | None
    key: str
    length: int
    start: int = 0


class Enclosed(NamedTuple):
    """A storage that is embedded in the pickle as bytes, which are a stream of their own."""

    content: Any


class TensorRecord(NamedTuple):
    """A view of a storage: offset and strides are in elements.

    `encoding` is that of the elements. `quantizer` describes the values of quantized integers.
    """

    storage: Any
    offset: Any
    shape: Any
    strides: Any
    encoding: Encoding | None
    quantizer: Any = None


class NumPyType(Built):
    """A NumPy dtype: its code, such as `f4`, and its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code = code.lstrip("<>|=")
        self.order = code[:1] if code[:1] in "<>" else "<"

    def build(self, state: Any) -> None:
        """Set the state `(version, order, subtype, names, fields, ...)`."""
        if not is_tuple(state) or len(state) < 5:
            self.code = "unknown"
            return
        _, order, subtype, names, fields = state[:5]
        if order in {"<", ">"}:
            self.order = order
        if subtype is not None or names is not None or fields is not None:
            self.code = "structured"


class Array(Built):
    """A NumPy array: its bytes in the pickle, or its objects."""

    __slots__ = ("content", "dtype", "is_fortran", "shape")

    def __init__(
        self,
        dtype: Any = None,
        shape: Any = (),
        content: Any = None,
        *,
        is_fortran: bool = False,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.content = content
        self.is_fortran = is_fortran

    def build(self, state: Any) -> None:
        """Set the state `(version, shape, dtype, is_fortran, content)`; the oldest has no version.

        Further fields, which subclasses add, are ignored, and so are states of another form.
        """
        if not is_tuple(state) or len(state) < 4:
            return
        first = 1 if len(state) > 4 else 0
        self.shape, self.dtype, is_fortran, self.content = state[first : first + 4]
        self.is_fortran = bool(is_fortran)


class NumpyScalar(NamedTuple):
    """A NumPy scalar: its dtype and its bytes."""

    dtype: Any
    content: Any


class Encoded(NamedTuple):
    """Bytes that the pickle stores as text, one character per byte."""

    text: str


class Items(NamedTuple):
    """A mapping that was created from a sequence of its keys and values."""

    pairs: Any


class Size(NamedTuple):
    """A `torch.Size`."""

    sizes: Any


class Device(NamedTuple):
    """A `torch.device`."""

    name: str


def identity_of(text: str) -> tuple[Any, ...]:
    """Return the persistent id from its text in protocol 0; raises `ValueError` if invalid."""
    # The length is limited, because a pickle can repeat the same id. The id of a class includes its
    # source code, so only its start is matched.
    named = _CLASS.match(text, 0, _LONGEST_IDENTITY)
    if named is not None:
        return ("module", _global(named["kind"]), "", "")
    if len(text) > _LONGEST_IDENTITY:
        raise ValueError("a persistent id is too long")
    found = _STORAGE.fullmatch(text)
    if found is None:
        raise ValueError("a persistent id does not describe a storage")
    view = () if found["view"] is None else (None,)
    return ("storage", _global(found["kind"]), found["key"], "", int(found["count"]), *view)


def _global(path: str) -> Global:
    module, _, name = path.rpartition(".")
    return Global(module, name)


def key_of(key: Any) -> str:
    """Return a storage's key as a string; raises `ValueError` if it is invalid."""
    is_text = type(key) is str and len(key) <= _LONGEST_KEY
    if not is_text and not (type(key) is int and abs(key) < _LARGEST):
        raise ValueError("a storage key is not a valid string or integer")
    return str(key)


def storage_of(kind: Any, key: Any, count: Any) -> Storage:
    """Return the storage of a class such as `torch.FloatStorage`; raises `ValueError` if unknown.

    Also raises `ValueError` for an invalid key or length.
    """
    if not isinstance(kind, Global) or kind.path not in STORAGE_NAMES:
        raise ValueError("a storage has an unsupported type")
    if type(count) is not int or not 0 <= count < _LARGEST:
        raise ValueError("the length of a storage is not valid")
    return Storage(ENCODINGS.get(_STORAGES[kind.name]), key_of(key), count)


def register_storage(storage: Storage, known: dict[str, Storage]) -> Storage:
    """Return a storage, and store it by its key.

    Raises `ValueError` if a known storage with this key has another dtype or length.
    """
    before = known.setdefault(storage.key, storage)
    if before != storage:
        raise ValueError(
            f"storage {storage.key} has two different descriptions: "
            f"{_describe_storage(before)}, and {_describe_storage(storage)}"
        )
    return storage


def _describe_storage(storage: Storage) -> str:
    kind = "bytes" if storage.encoding is None else storage.encoding.name
    return f"{storage.length} elements of {kind}"


def dtype_of(named: Any) -> Encoding | None:
    """Return the encoding of a dtype such as `torch.float16`; None for other objects."""
    if not isinstance(named, Global) or named.module != "torch":
        return None
    return encoding_by_id("pytorch", named.name)
