"""Storages and dtypes as PyTorch pickles name them.

Source: `persistent_id` in `torch/serialization.py`.
"""

from __future__ import annotations

import re
from typing import Any

from weightctl.dtype import ENCODINGS, Encoding, encoding_by_id
from weightctl.formats.pickles.records import Global
from weightctl.formats.pytorch.records import Storage

__all__ = ["STORAGE_NAMES", "dtype_of", "identity_of", "key_of", "register_storage", "storage_of"]

_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL", "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128", "QInt8Storage": "QINT8", "QUInt8Storage": "QUINT8",
    "QInt32Storage": "QINT32", "QUInt4x2Storage": "QUINT4X2", "QUInt2x4Storage": "QUINT2X4",
    "UntypedStorage": "",
}  # fmt: skip
_LARGEST = 1 << 60
_LONGEST_KEY = 256
_LONGEST_IDENTITY = 1024
_MODULES = ("torch", "torch.storage", "torch.cuda")
STORAGE_NAMES = frozenset(f"{module}.{name}" for module in _MODULES for name in _STORAGES)

# Persistent ids as protocol 0 writes them: the text of the tuple.
_STORAGE = re.compile(
    r"\('storage', <class '(?P<kind>[\w.]+)'>, '(?P<key>\w+)', '[\w:]*', (?P<count>\d{1,18})"
    r"(?P<view>, None)?\)"
)
_CLASS = re.compile(r"\('module', <class '(?P<kind>[\w.<>]+)'>, ")


def identity_of(text: str) -> tuple[Any, ...]:
    """Return the persistent id that protocol 0 has written as a text; `ValueError` for another."""
    # A pickle may ask for the same one as often as it likes. That of a class has its source.
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
    """Return a storage's key as a text; raises `ValueError` for what cannot be one."""
    is_text = type(key) is str and len(key) <= _LONGEST_KEY
    if not is_text and not (type(key) is int and abs(key) < _LARGEST):
        raise ValueError("a storage key is not a valid string or integer")
    return str(key)


def storage_of(kind: Any, key: Any, count: Any) -> Storage:
    """Return the storage of a class, such as `torch.FloatStorage`; may raise `ValueError`."""
    if not isinstance(kind, Global) or kind.path not in STORAGE_NAMES:
        raise ValueError("a storage has an unsupported type")
    if type(count) is not int or not 0 <= count < _LARGEST:
        raise ValueError("the length of a storage is not valid")
    return Storage(ENCODINGS.get(_STORAGES[kind.name]), key_of(key), count)


def register_storage(storage: Storage, known: dict[str, Storage]) -> Storage:
    """Return a storage, and keep it by its key.

    Raises `ValueError` if another storage of that key has another dtype or length.
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
    """Return the encoding of what is named as a dtype, as `torch.float16`; None for none."""
    if not isinstance(named, Global) or named.module != "torch":
        return None
    return encoding_by_id("pytorch", named.name)
