"""Checkpoints of DeepSpeed's ZeRO: the float32 weights, assembled from the optimizer's partitions.

In stages 1 and 2, the parameters of a group are one long vector, which the ranks have in equal
parts. In stage 3, each parameter is divided by itself, and padded to whole parts. Source:
`deepspeed/utils/zero_to_fp32.py` and `deepspeed/checkpoint/constants.py`.
"""

from __future__ import annotations

import os
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.errors import FormatError, MissingFileError
from weightctl.formats.pytorch.reading import read
from weightctl.formats.training.chunks import INCOMPLETE, ChunkedSource, ChunkedTree, StoredChunk
from weightctl.formats.training.detection import OPTIMIZER
from weightctl.storage.files import open_reader, prepare
from weightctl.system.processes import without_collection
from weightctl.text.untyped import is_sequence
from weightctl.weights.info import Header, TensorInfo
from weightctl.weights.source import FileSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.storage.base import Reader
    from weightctl.weights.metadata import MetadataValue

_MODEL = "mp_rank_00_model_states.pt"
_MODEL_OF_RANK = "zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
_STATE = "optimizer_state_dict"
_GROUPS = {1: "single_partition_of_fp32_groups", 2: "single_partition_of_fp32_groups",
           3: "fp32_flat_groups"}  # fmt: skip
_SHAPES, _BUFFERS, _MODULE = "param_shapes", "buffer_names", "module"
_FROZEN_SHAPES, _FROZEN = "frozen_param_shapes", "frozen_param_fragments"
_SHARED = "shared_params"
_LARGEST = 1 << 60


class _Rank(NamedTuple):
    """A file of the optimizer: its number among the files, and the vectors of its groups."""

    file: int
    source: FileSource
    groups: tuple[TensorInfo, ...]


class _Vector(NamedTuple):
    """The consecutive vectors of a rank, or of all ranks, as one: the end of each, and chunks."""

    ends: tuple[int, ...]
    pieces: tuple[tuple[int, FileSource, TensorInfo], ...]

    @property
    def size(self) -> int:
        return self.ends[-1] if self.ends else 0

    def runs(self, start: int, count: int) -> Iterator[tuple[int, StoredChunk]]:
        """Yield the bytes of elements from `start` on, as far as the vector has them."""
        begin = 0
        for end, (_, source, info) in zip(self.ends, self.pieces, strict=True):
            first, last = max(start, begin), min(start + count, end)
            if first < last:
                width = info.encoding.size
                chunk = StoredChunk(source, info.name, (first - begin) * width)
                yield (last - first) * width, chunk
            begin = end


@without_collection()
def open_deepspeed(directory: str, names: Sequence[str]) -> ChunkedSource:
    """Open the checkpoint in a directory with the files `names`.

    Raises `FormatError` if files of ranks are missing, or do not have all elements.
    """
    ranks = _list_ranks(directory, names)
    paths = [os.path.join(directory, ranks[rank]) for rank in sorted(ranks)]
    prepare(paths)
    files = [open_reader(path) for path in paths]
    headers = [read(file) for file in files]
    stage = _stage_of(headers[0])
    _check_count(directory, headers[0], len(files))
    opened = [
        _Rank(number, FileSource(header, (files[number],)), _groups(header, stage))
        for number, header in enumerate(headers)
    ]
    models = [_MODEL] if stage < 3 else [_MODEL_OF_RANK.format(rank=rank) for rank in sorted(ranks)]
    states = _open_models(directory, models)
    tree = ChunkedTree(directory)
    model = states[0][1]
    _add_stored(tree, model, states, len(files), stage)
    add = _add_partitioned if stage == 3 else _add_consecutive
    add(tree, _list_shapes(model, f"{_SHAPES}."), opened)
    header = Header("deepspeed", (), {}, {}, aliases=_list_shared(model.metadata, tree))
    return tree.make_source(header, [*files, *(file for file, _ in states)])


def _list_ranks(directory: str, names: Sequence[str]) -> dict[int, str]:
    """Return the files of the optimizer by rank."""
    ranks: dict[int, str] = {}
    for name in names:
        if found := OPTIMIZER.fullmatch(name):
            if int(found["model"]):
                raise FormatError(
                    directory,
                    None,
                    "the model was divided among ranks before ZeRO divided it (tensor or pipeline "
                    "parallelism), and weightctl does not join such checkpoints",
                    hint="convert it with DeepSpeed's ds_to_universal.py",
                )
            ranks[int(found["rank"])] = name
    missing = sorted({*range(max(ranks) + 1)} - {*ranks})
    if missing:
        text = f"the file of rank {missing[0]} is missing"
        raise MissingFileError(directory, None, text, hint=INCOMPLETE)
    return ranks


def _stage_of(header: Header) -> int:
    stated = header.metadata.get(f"{_STATE}.zero_stage")
    stage = 0 if stated is None else stated.content
    if stage not in _GROUPS:
        text = "the file does not state a stage of ZeRO from 1 to 3"
        raise FormatError(header.files[0], None, text, hint=INCOMPLETE)
    return int(stage)


def _check_count(directory: str, header: Header, count: int) -> None:
    """Raise `MissingFileError` if there are not as many ranks as a file states."""
    stated = header.metadata.get(f"{_STATE}.partition_count")
    content: Any = None if stated is None else stated.content
    # With mixtures of experts, each group has its own number.
    number = max(content, default=None) if is_sequence(content) else content
    if type(number) is int and number != count:
        text = f"the checkpoint has the files of {count} ranks, and {number} ranks wrote it"
        raise MissingFileError(directory, None, text, hint=INCOMPLETE)


def _groups(header: Header, stage: int) -> tuple[TensorInfo, ...]:
    """Return the vectors of the parameter groups in a file of the optimizer."""
    found: list[TensorInfo] = []
    while True:
        name = f"{_STATE}.{_GROUPS[stage]}.{len(found)}"
        name = header.aliases.get(name, name)
        if name not in header.tensors:
            break
        info = header.tensors[name]
        if info.encoding.block != 1:
            raise FormatError(header.files[0], None, f"`{name}` is stored as {info.encoding}")
        found.append(info)
    if not found:
        text = f"the file has no vectors `{_STATE}.{_GROUPS[stage]}`"
        raise FormatError(header.files[0], None, text, hint=INCOMPLETE)
    return tuple(found)


def _open_models(directory: str, names: Sequence[str]) -> list[tuple[Reader, Header]]:
    paths = [os.path.join(directory, name) for name in names]
    prepare(paths)
    files = [open_reader(path) for path in paths]
    return [(file, read(file)) for file in files]


def _list_shapes(model: Header, prefix: str) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of parameters for each group, by name, in the order of the file."""
    groups: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, value in model.metadata.items():
        if not key.startswith(prefix):
            continue
        group, _, name = key[len(prefix) :].partition(".")
        shape = value.content
        if not group.isdecimal() or not _is_shape(shape):
            text = f"`{key}` is not the shape of a parameter"
            raise FormatError(model.files[0], None, text, hint=INCOMPLETE)
        groups.setdefault(group, {})[name] = tuple(shape)
    return [groups[group] for group in sorted(groups, key=int)]


def _is_shape(content: Any) -> bool:
    return (
        is_sequence(content)
        and all(type(size) is int and size >= 0 for size in content)
        and prod(content) < _LARGEST
    )


def _join(pieces: Sequence[tuple[int, FileSource, TensorInfo]]) -> _Vector:
    ends = accumulate(info.size for _, _, info in pieces)
    return _Vector(tuple(ends), tuple(pieces))


def _add_consecutive(
    tree: ChunkedTree, shapes: Sequence[Mapping[str, tuple[int, ...]]], ranks: Sequence[_Rank]
) -> None:
    """Add the parameters of stages 1 and 2."""
    count = min(len(rank.groups) for rank in ranks)
    if count < len(shapes):
        tree.problems.append(
            f"the files have {count} groups of parameters, and the model has {len(shapes)}"
        )
    for number, group in enumerate(shapes[:count]):
        whole = _join([(rank.file, rank.source, rank.groups[number]) for rank in ranks])
        place = 0
        for name, shape in group.items():
            size = prod(shape)
            _add(tree, name, shape, [*whole.runs(place, size)], ranks[0].groups[number])
            place += size


def _add_partitioned(
    tree: ChunkedTree, shapes: Sequence[Mapping[str, tuple[int, ...]]], ranks: Sequence[_Rank]
) -> None:
    """Add the parameters of stage 3; the groups of a rank count as one vector."""
    own = [_join([(rank.file, rank.source, info) for info in rank.groups]) for rank in ranks]
    place = 0
    for group in shapes:
        for name, shape in group.items():
            size = prod(shape)
            part = -(-size // len(ranks))
            runs: list[tuple[int, StoredChunk]] = []
            for number, vector in enumerate(own):
                rest = max(min(part, size - number * part), 0)
                runs += vector.runs(place, rest)
            _add(tree, name, shape, runs, ranks[0].groups[0])
            place += part


def _add(
    tree: ChunkedTree,
    name: str,
    shape: tuple[int, ...],
    runs: Sequence[tuple[int, StoredChunk]],
    like: TensorInfo,
) -> None:
    first = runs[0][1] if runs else None
    offset = 0
    if first is not None:
        offset = first.source.header.extents[first.name].offset + first.offset
    tree.add_runs(TensorInfo(name, shape, like.encoding), runs, 0, offset)


def _add_stored(
    tree: ChunkedTree,
    model: Header,
    states: Sequence[tuple[Reader, Header]],
    first: int,
    stage: int,
) -> None:
    """Add buffers and frozen parameters, which the files of the model have."""
    sources = [FileSource(header, (file,)) for file, header in states]
    buffers = model.metadata.get(_BUFFERS)
    names: Any = [] if buffers is None else buffers.content
    for name in names if is_sequence(names) and not isinstance(names, str) else ():
        key = f"{_MODULE}.{name}"
        key = model.aliases.get(key, key)
        if key in model.tensors:
            info = model.tensors[key]._replace(name=str(name))
            run = (info.nbytes, StoredChunk(sources[0], key))
            tree.add_runs(info, [run], first, model.extents[key].offset)
    for key, value in model.metadata.items():
        if not key.startswith(f"{_FROZEN_SHAPES}.") or not _is_shape(value.content):
            continue
        name = key[len(_FROZEN_SHAPES) + 1 :]
        fragment = f"{_FROZEN}.{name}"
        parts = [
            (source, source.header.tensors[fragment])
            for source in (sources if stage == 3 else sources[:1])
            if fragment in source.header.tensors
        ]
        encoding = parts[0][1].encoding if parts else ENCODINGS["F32"]
        info = TensorInfo(name, tuple(value.content), encoding)
        rest, runs = info.nbytes, list[tuple[int, StoredChunk]]()
        for source, part in parts:
            runs.append((min(part.nbytes, rest), StoredChunk(source, part.name)))
            rest -= runs[-1][0]
        tree.add_runs(info, runs, first, 0)


def _list_shared(metadata: Mapping[str, MetadataValue], tree: ChunkedTree) -> dict[str, str]:
    """Return the further names of parameters that several modules share."""
    return {
        key[len(_SHARED) + 1 :]: value.content
        for key, value in metadata.items()
        if key.startswith(f"{_SHARED}.") and type(value.content) is str and tree.has(value.content)
    }
