"""The pickle `.metadata` of torch's distributed checkpoints, read without executing anything.

Source: `torch/distributed/checkpoint/metadata.py` and `filesystem.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.base import is_possible
from weightctl.formats.pickles.dangers import is_dangerous
from weightctl.formats.pickles.machine import UnsoundPickleError, load
from weightctl.formats.pickles.records import Global, Pairs, PickledCall
from weightctl.formats.pytorch.constructors import CONSTRUCTORS, is_allowed
from weightctl.formats.pytorch.records import Size, dtype_of
from weightctl.formats.training.chunks import ChunkBlock
from weightctl.text.untyped import is_list, is_tuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.dtype import Encoding
    from weightctl.storage.base import Reader

_HINT = "the checkpoint is damaged, or another program than torch.distributed.checkpoint wrote it"
_STATE = "state_dict_metadata"
_MOST_DIMENSIONS = 64
# The fewest bytes of the pickle that an honest chunk takes, and the chunks that are always allowed.
_LEAST_CHUNK, _FREE_CHUNKS = 8, 1000


class ChunkPlace(NamedTuple):
    """Where the bytes of a chunk or an entry are: the file, relative to the directory, and range.

    `transforms` are the names of the extensions that have changed the bytes.
    """

    path: str
    offset: int
    length: int
    transforms: tuple[str, ...] = ()


class DistributedTensor(NamedTuple):
    """A tensor: its shape and its chunks, with the place of each.

    `encoding` is None for unsupported types, which `dtype` names.
    """

    dtype: str
    encoding: Encoding | None
    shape: tuple[int, ...]
    chunks: tuple[tuple[ChunkBlock, ChunkPlace], ...]


class DistributedMetadata(NamedTuple):
    """The content of `.metadata`: tensors, and entries that are not tensors, by name.

    `dangerous` are the globals that could run code in programs that load the pickle.
    """

    tensors: dict[str, DistributedTensor]
    entries: dict[str, ChunkPlace]
    dangerous: tuple[str, ...]


def read_metadata(file: Reader) -> DistributedMetadata:
    """Parse the metadata of a distributed checkpoint; raises `FormatError` if it is invalid."""
    seen: dict[str, None] = {}
    try:
        root, _ = load(file.range(), 0, CONSTRUCTORS, _refuse_storage, seen)
        state = _state_of(root)
        dangerous = tuple(name for name in seen if not is_allowed(name) and is_dangerous(name))
        return DistributedMetadata(*_read_state(state, file.size), dangerous)
    except UnsoundPickleError as error:
        text = f"the metadata of the distributed checkpoint are invalid: {error}"
        raise FormatError(file.path, error.offset, text, hint=_HINT) from error
    except ValueError as error:
        if isinstance(error, FormatError):
            raise
        text = f"the metadata of the distributed checkpoint are invalid: {error}"
        raise FormatError(file.path, None, text, hint=_HINT) from error


def _state_of(root: Any) -> dict[str, Any]:
    state = _fields(root)
    if _STATE not in state:
        raise ValueError("it does not describe a distributed checkpoint")
    return state


def _refuse_storage(_: Any) -> Any:
    raise ValueError("a persistent id is not expected")


def _fields(record: Any) -> dict[str, Any]:
    """Return the attributes of an object; empty for other records."""
    if type(record) is not PickledCall or not record.states:
        return {}
    state = record.states[0]
    if is_tuple(state) and len(state) == 2:  # dict and slots
        state = state[1] if type(state[1]) is Pairs else state[0]
    return dict(_list_entries(state)) if type(state) is Pairs else {}


def _list_entries(mapping: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a mapping, whose keys are names."""
    if type(mapping) is not Pairs:
        raise ValueError("a mapping is missing")
    for key, value in mapping.pairs:
        if type(key) is not str:
            raise ValueError("a name is not a text")
        yield key, value


def _read_state(
    state: dict[str, Any], nbytes: int
) -> tuple[dict[str, DistributedTensor], dict[str, ChunkPlace]]:
    whole, by_offset = _read_places(state.get("storage_data"))
    tensors: dict[str, DistributedTensor] = {}
    entries: dict[str, ChunkPlace] = {}
    rest = _FREE_CHUNKS + nbytes // _LEAST_CHUNK
    for name, record in _list_entries(state[_STATE]):
        if name in tensors or name in entries:
            raise ValueError(f"`{name}` is described twice")
        fields = _fields(record)
        if "chunks" not in fields:
            if name in whole:
                entries[name] = whole[name]
            continue
        chunks = fields["chunks"]
        if not is_list(chunks):
            raise ValueError(f"`{name}` has no list of chunks")
        rest -= len(chunks)
        if rest < 0:
            raise ValueError("it states more chunks than it can describe")
        shape = _sizes(fields.get("size"), name)
        found: list[tuple[ChunkBlock, ChunkPlace]] = []
        for chunk in chunks:
            own = _fields(chunk)
            block = ChunkBlock(_sizes(own.get("offsets"), name), _sizes(own.get("sizes"), name))
            place = by_offset.get((name, block.offsets), whole.get(name))
            if place is None:
                raise ValueError(f"the chunk of `{name}` at {list(block.offsets)} is in no file")
            found.append((block, place))
        dtype = _dtype(fields.get("properties"))
        kind = dtype.name if isinstance(dtype, Global) else "unknown"
        tensors[name] = DistributedTensor(kind, dtype_of(dtype), shape, tuple(found))
    return tensors, entries


def _dtype(properties: Any) -> Any:
    """Return the record of the dtype in the properties of a tensor, which is their first field."""
    state = properties.states[0] if type(properties) is PickledCall and properties.states else ()
    if is_tuple(state) and state:
        return state[0]
    return _fields(properties).get("dtype")


def _read_places(
    storage: Any,
) -> tuple[dict[str, ChunkPlace], dict[tuple[str, tuple[int, ...]], ChunkPlace]]:
    """Return the places of whole entries by name, and of chunks by name and offsets."""
    if type(storage) is not Pairs:
        raise ValueError("it does not state where the tensors are")
    whole: dict[str, ChunkPlace] = {}
    by_offset: dict[tuple[str, tuple[int, ...]], ChunkPlace] = {}
    for key, value in storage.pairs:
        index, stated = _fields(key), _fields(value)
        name, path = index.get("fqn"), stated.get("relative_path")
        if type(name) is not str or type(path) is not str:
            raise ValueError("a place has no name or no file")
        offset, length = stated.get("offset"), stated.get("length")
        if not (type(offset) is int and type(length) is int and offset >= 0 and length >= 0):
            raise ValueError(f"the place of `{name}` has no valid offset and length")
        place = ChunkPlace(path, offset, length, _transforms(stated.get("transform_descriptors")))
        if index.get("offset") is None:
            whole[name] = place
        else:
            by_offset[name, _sizes(index["offset"], name)] = place
    return whole, by_offset


def _transforms(stated: Any) -> tuple[str, ...]:
    if not is_list(stated) and not is_tuple(stated):
        return ()
    return tuple(each for each in stated[:3] if type(each) is str)


def _sizes(record: Any, name: str) -> tuple[int, ...]:
    sizes = record.sizes if type(record) is Size else record
    if is_list(sizes):
        sizes = tuple(sizes)
    if (
        not is_tuple(sizes)
        or len(sizes) > _MOST_DIMENSIONS
        or any(type(each) is not int for each in sizes)
        or not is_possible(sizes)
    ):
        raise ValueError(f"`{name}` has an invalid shape or offset")
    return sizes
