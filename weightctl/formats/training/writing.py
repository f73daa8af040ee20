"""Writing of torch's distributed checkpoints: each tensor is one chunk.

Source: `torch/distributed/checkpoint/filesystem.py`, `metadata.py` and `default_planner.py`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from weightctl.formats.base import Layout
from weightctl.formats.pickles.records import Global, PickledCall
from weightctl.formats.pickles.writing import emit
from weightctl.formats.pytorch.writing import torch_shape, whole_tensor_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.weights.info import TensorInfo

_METADATA = "torch.distributed.checkpoint.metadata"
_FILE_SYSTEM = "torch.distributed.checkpoint.filesystem"
_VERSION = "1.0.0"


def layout(tensors: Sequence[TensorInfo]) -> Layout:
    """Describe a file in which each tensor is a file of `torch.save`, one after the other."""
    files = [whole_tensor_layout(info) for info in tensors]
    starts = list(accumulate((file.nbytes for file in files), initial=0))

    def between(crcs: Sequence[int]) -> bytes:
        count = len(crcs)
        ending = _seam(files[count - 1], crcs[-1:]) if count else b""
        if count == len(files):
            return ending
        beginning = files[count].header if count else b""
        return ending + beginning + _seam(files[count], ())

    return Layout(
        files[0].header if files else b"",
        tuple(tensors),
        tuple(start + file.offsets[0] for start, file in zip(starts, files, strict=False)),
        starts[-1],
        between,
    )


def _seam(file: Layout, crcs: Sequence[int]) -> bytes:
    return b"" if file.between is None else file.between(crcs)


def metadata_of(parts: Mapping[str, Layout], tied: Mapping[str, str]) -> bytes:
    """Return the `.metadata` of files, by name; `tied` are further names of tensors."""
    places: dict[str, tuple[TensorInfo, PickledCall]] = {}
    for path, file in parts.items():
        for info, place in _list_places(path, file):
            places[info.name] = (info, place)
    for name, other in tied.items():
        if other in places and name not in places:
            places[name] = places[other]
    properties: dict[str, PickledCall] = {}
    state: dict[str, Any] = {}
    storage = PickledCall(Global("collections", "OrderedDict"), ())
    for name, (info, place) in places.items():
        shape, dtype = torch_shape(info), str(info.encoding.ids.get("pytorch", ""))
        if dtype not in properties:
            properties[dtype] = _properties(dtype)
        start = _size((0,) * len(shape))
        chunk = _new(_METADATA, "ChunkStorageMetadata", {"offsets": start, "sizes": _size(shape)})
        state[name] = _new(
            _METADATA,
            "TensorStorageMetadata",
            {"properties": properties[dtype], "size": _size(shape), "chunks": [chunk]},
        )
        index = _new(_METADATA, "MetadataIndex", {"fqn": name, "index": 0, "offset": start})
        storage.pairs.append((index, place))
    return emit(
        _new(
            _METADATA,
            "Metadata",
            {
                "state_dict_metadata": state,
                "planner_data": {name: (name,) for name in places},
                "storage_data": storage,
                "storage_meta": None,
                "version": _VERSION,
            },
        )
    )


def _list_places(path: str, file: Layout) -> Iterator[tuple[TensorInfo, PickledCall]]:
    start = 0
    for info in file.tensors:
        nbytes = whole_tensor_layout(info).nbytes
        yield (
            info,
            _new(
                _FILE_SYSTEM,
                "_StorageInfo",
                {"relative_path": path, "offset": start, "length": nbytes},
            ),
        )
        start += nbytes


def _new(module: str, name: str, fields: dict[str, Any]) -> PickledCall:
    """Return the record of an object that is created without its constructor."""
    made = PickledCall(Global("copyreg", "__newobj__"), (Global(module, name),))
    made.states = [fields]
    return made


def _size(sizes: Sequence[int]) -> PickledCall:
    return PickledCall(Global("torch", "Size"), (tuple(sizes),))


def _properties(dtype: str) -> PickledCall:
    strided = PickledCall(Global("torch.serialization", "_get_layout"), ("torch.strided",))
    contiguous = PickledCall(Global(_METADATA, "_MEM_FORMAT_ENCODING"), (0,))
    made = PickledCall(Global("copyreg", "__newobj__"), (Global(_METADATA, "TensorProperties"),))
    made.states = [(Global("torch", dtype), strided, False, contiguous, False)]
    return made
