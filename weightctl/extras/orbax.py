"""Checkpoints of Orbax, as JAX programs write them: arrays of zarr, in OCDBT or in directories.

tensorstore reads the arrays; JAX is not needed. Source: `orbax/checkpoint/_src/metadata/tree.py`
and `orbax/checkpoint/_src/serialization/`.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.dtype import encoding_by_id
from weightctl.errors import FormatError
from weightctl.formats.base import is_possible, is_text
from weightctl.formats.read_only import require_package
from weightctl.storage.files import is_directory, list_names, open_reader, read_start
from weightctl.storage.location import is_remote
from weightctl.text.untyped import is_list, is_object
from weightctl.weights.byte_ranges import boxes_of_run
from weightctl.weights.data import Assembled
from weightctl.weights.info import Extent, Header, Leaf, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.storage.base import Reader
    from weightctl.weights.data import WeightData

_MOST_BYTES = 1 << 24
_METADATA, _MANIFEST = "_METADATA", "manifest.ocdbt"
_DAMAGED = "check that the copy of the checkpoint is complete"
_LONGEST = 1 << 28
# Types of values that are arrays; the others are leaves.
_ARRAYS = frozenset({"jax.Array", "np.ndarray", "scalar"})
_CACHE = 1 << 26


class _StatedArrays(NamedTuple):
    """What `_METADATA` states: names of arrays, other entries, and how arrays are stored."""

    arrays: list[str]
    leaves: dict[str, Leaf]
    is_ocdbt: bool
    driver: str
    has_all_chunks: bool


def open_directory(path: str, names: Sequence[str]) -> ArraySource | None:
    """Open a directory with the files `names`, or the step that it is; None if it has no arrays."""
    place = path if _METADATA in names else find_item(path, names)
    return None if place is None else open_orbax(place)


def open_orbax(directory: str) -> ArraySource:
    """Open the checkpoint in a directory with `_METADATA`.

    Raises `FormatError` if it is invalid, or if tensorstore is not installed.
    """
    if is_remote(directory):
        text = "checkpoints of Orbax are only read from local directories"
        raise FormatError(directory, None, text, hint="download the directory first")
    require_package("tensorstore", directory, "an Orbax checkpoint", "orbax")
    tree = _read_tree(directory)
    if tree.is_ocdbt and _MANIFEST not in list_names(directory):
        text = f"the file {_MANIFEST} of the Orbax checkpoint is missing"
        raise FormatError(directory, None, text, hint=_DAMAGED)
    store = import_module("tensorstore")
    context = store.Context({"cache_pool": {"total_bytes_limit": _CACHE}})
    pending = [
        (name, store.open(_spec_of(directory, tree, name), context=context, open=True, read=True))
        for name in tree.arrays
    ]
    tensors: dict[str, TensorInfo] = {}
    leaves = dict(tree.leaves)
    arrays: dict[str, Any] = {}
    for name, promise in pending:
        try:
            array = promise.result()
        except (ValueError, RuntimeError, OSError, KeyError, NotImplementedError) as error:
            raise _refuse(directory, name, error) from error
        shape, dtype = tuple(array.shape), array.dtype.name
        encoding = encoding_by_id("pytorch", dtype)
        if not is_possible(shape) or any(array.domain.origin):
            raise _refuse(directory, name, f"its shape is invalid: {list(shape)[:9]}")
        if encoding is None or encoding.block > 1:
            leaves[name] = Leaf("jax.Array", f"{dtype} {list(shape)}")
            continue
        tensors[name] = TensorInfo(name, shape, encoding)
        arrays[name] = array
    files = [open_reader(path) for path in _list_files(directory)]
    header = Header(
        format="orbax",
        files=tuple(file.path for file in files),
        tensors=tensors,
        # The bytes of an array are in several compressed chunks, so the offsets are only an order.
        extents={name: Extent(0, number, info.nbytes)
                 for number, (name, info) in enumerate(tensors.items())},
        leaves=leaves,
    )  # fmt: skip
    return ArraySource(header, files, arrays, directory)


def _refuse(directory: str, name: str, reason: object) -> FormatError:
    shown = " ".join(str(reason).split())[:300]
    text = f"the array `{name}` of the Orbax checkpoint cannot be opened: {shown}"
    return FormatError(directory, None, text, hint=_DAMAGED)


def _read_tree(directory: str) -> _StatedArrays:
    path = os.path.join(directory, _METADATA)
    raw = read_start(path, _LONGEST)
    try:
        document: Any = json.loads(bytes(raw))
    except (ValueError, RecursionError):
        document = None
    stated = document.get("tree_metadata") if is_object(document) else None
    if not is_object(document) or not is_object(stated):
        text = "it does not describe the arrays of an Orbax checkpoint"
        raise FormatError(path, None, text, hint=_DAMAGED)
    arrays: dict[str, None] = {}
    leaves: dict[str, Leaf] = {}
    for entry in stated.values():
        name, kind = _read_entry(path, entry)
        if name in leaves or name in arrays:
            text = f"it describes `{name}` twice"
            raise FormatError(path, None, text, hint=_DAMAGED)
        if kind in _ARRAYS:
            arrays[name] = None
        elif kind not in {"None", "Dict", "List", "NamedTuple", "Tuple"}:
            leaves[name] = Leaf(kind)
    return _StatedArrays(
        [*arrays],
        leaves,
        document.get("use_ocdbt", True) is not False,
        "zarr3" if document.get("use_zarr3") is True else "zarr",
        document.get("store_array_data_equal_to_fill_value") is True,
    )


def _read_entry(path: str, entry: Any) -> tuple[str, str]:
    """Return the name and the type of an entry; the name is also that of its directory."""
    keys: Any = entry.get("key_metadata") if is_object(entry) else None
    value: Any = entry.get("value_metadata") if is_object(entry) else None
    names = [each.get("key") if is_object(each) else None for each in keys or ()] if (
        is_list(keys)) else []  # fmt: skip
    kind = value.get("value_type") if is_object(value) else None
    is_named = all(isinstance(each, str) and is_text(each) and "\0" not in each for each in names)
    name = ".".join(map(str, names))
    if not names or not is_named or not isinstance(kind, str) or "/" in name or name in {".", ".."}:
        text = f"the name of an array is invalid: {name[:60]!r}"
        raise FormatError(path, None, text, hint="the file is damaged or malicious")
    return name, kind


def _spec_of(directory: str, tree: _StatedArrays, name: str) -> dict[str, Any]:
    """Return the specification of an array for tensorstore."""
    base = os.path.abspath(directory)
    kvstore = (
        {"driver": "ocdbt", "base": {"driver": "file", "path": base + "/"}, "path": name + "/"}
        if tree.is_ocdbt
        else {"driver": "file", "path": os.path.join(base, name) + "/"}
    )
    spec: dict[str, Any] = {"driver": tree.driver, "kvstore": kvstore}
    if tree.has_all_chunks:
        # A chunk that is missing is an error, and not zeros.
        spec["fill_missing_data_reads"] = False
    return spec


def _list_files(directory: str) -> Iterator[str]:
    """Yield the paths of all files in a directory, `_METADATA` first."""
    yield os.path.join(directory, _METADATA)
    pending = [directory]
    while pending:
        place = pending.pop()
        for name in sorted(list_names(place)):
            path = os.path.join(place, name)
            if is_directory(path) and not os.path.islink(path):
                pending.append(path)
            elif os.path.isfile(path) and path != os.path.join(directory, _METADATA):
                yield path


def find_item(directory: str, names: Sequence[str]) -> str | None:
    """Return the only directory of a step that has arrays; None if there is not exactly one."""
    below = [os.path.join(directory, name) for name in names]
    found = [path for path in below if is_directory(path) and _METADATA in list_names(path)]
    return found[0] if len(found) == 1 else None


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
