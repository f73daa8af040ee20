"""The list of the files of a checkpoint of Keras that has several (`NAME.weights.json`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.storage.files import open_reader
from weightctl.text.untyped import is_list, is_object
from weightctl.weights.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_SIZE = 100_000_000
_KERAS_MAP, _KERAS_PART = "weight_map", ".h5"
_OF_KERAS = "the file is damaged, or another program than Keras wrote it"


def list_keras_parts(path: str) -> tuple[str, ...]:
    """Return the paths of the files that a list of Keras names, in order.

    Raises `FormatError` if it is not such a list, or names files in other directories. Source:
    `ShardedH5IOStore` in `keras/src/saving/saving_lib.py`.
    """
    document: Any = read_json(open_reader(path), _MAX_SIZE)
    stated = document.get(_KERAS_MAP) if is_object(document) else None
    if not is_object(stated) or not stated:
        raise FormatError(path, None, f"it has no list of files (`{_KERAS_MAP}`)", hint=_OF_KERAS)
    names = sorted({name for each in stated.values() for name in _list_part_names(path, each)})
    return tuple(os.path.join(os.path.dirname(path), name) for name in names)


def _list_part_names(path: str, entry: Any) -> Iterator[str]:
    """Yield the names of an entry, which is a name or a list of names."""
    for name in entry if is_list(entry) else [entry]:
        is_name = isinstance(name, str) and name.endswith(_KERAS_PART) and "\0" not in name
        if not is_name or os.path.basename(name) != name:
            text = f"`{str(name)[:60]}` in it is not the name of a file in its directory"
            raise FormatError(path, None, text, hint=_OF_KERAS)
        yield name
