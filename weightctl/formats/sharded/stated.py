"""A manifest's JSON as a record; nothing of it is taken on trust."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from weightctl.dtype import ENCODINGS
from weightctl.formats import FORMATS
from weightctl.formats.base import is_possible
from weightctl.formats.sharded.covering import first_gap, join_parts
from weightctl.formats.sharded.fields import (
    count_at,
    list_at,
    object_at,
    objects_at,
    one_of,
    require_text,
    text_at,
)
from weightctl.formats.sharded.record import (
    Manifest,
    RankFile,
    Shard,
    SourceFingerprint,
    SourceShard,
)
from weightctl.split import Cut, Grid, Sharding, part_shape
from weightctl.text.untyped import is_list
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.split import Part, Range

__all__ = ["LAYOUTS", "parse_manifest"]

LAYOUTS = ("ranks", "vllm")
_MOST_DIMENSIONS = 64
_MOST_RANKS = 1 << 16
# Where parts meet they are looked at range by range, and those of all axes multiply.
_MOST_RANGES = 1 << 14
# Of each tensor something is kept for every rank, also for those that a file spends no byte on.
_MOST_UNSTATED = 1 << 24
_SHA256 = re.compile(r"([0-9a-f]{64})?")

_Tensors = dict[str, TensorInfo]
_Parts: TypeAlias = "tuple[Part | None, ...]"


def parse_manifest(document: Mapping[str, Any]) -> Manifest:
    """Return the manifest that a JSON object is; `ValueError` says what of it cannot be."""
    layout = one_of(document, "layout", LAYOUTS)
    grid = _grid(object_at(document, "grid"))
    tensors: _Tensors = {}
    strategies: dict[str, str] = {}
    for entry in objects_at(document, "tensors"):
        info = _info(entry)
        if info.name in tensors:
            raise ValueError(f"the manifest lists the tensor `{info.name}` twice")
        tensors[info.name] = info
        strategies[info.name] = text_at(entry, "strategy")
    ranks = objects_at(document, "ranks")
    if len(ranks) != grid.ranks:
        raise ValueError(f"the manifest has {len(ranks)} ranks, but tp x ep x pp is {grid.ranks}")
    files = tuple(_file(entry, rank, tensors, layout) for rank, entry in enumerate(ranks))
    _refuse_twice([file.path for file in files], "is the file of several ranks")
    return Manifest(
        layout=layout,
        format=one_of(document, "format", tuple(FORMATS)),
        grid=grid,
        source=_parse_fingerprint(object_at(document, "source")),
        tensors=tensors,
        shardings=_shardings(tensors, strategies, files),
        aliases=_aliases(object_at(document, "aliases"), tensors),
        files=files,
    )


def _grid(entry: Mapping[str, Any]) -> Grid:
    grid = Grid(*(count_at(entry, key) for key in Grid._fields))
    if min(grid) < 1 or grid.ranks > _MOST_RANKS:
        raise ValueError(f"tp {grid.tp} x ep {grid.ep} x pp {grid.pp} is not a valid grid of ranks")
    return grid


def _parse_fingerprint(entry: Mapping[str, Any]) -> SourceFingerprint:
    files = tuple(map(_source_file, objects_at(entry, "files")))
    header = text_at(entry, "header")
    if _SHA256.fullmatch(header) is None:
        raise ValueError("`header` of `source` is not a SHA-256 digest")
    return SourceFingerprint(files, header)


def _source_file(entry: Mapping[str, Any]) -> tuple[str, int, int]:
    # A name need not be UTF-8, and a time may be before 1970.
    name, modified = entry.get("name"), entry.get("modified")
    if not isinstance(name, str) or type(modified) is not int:
        raise ValueError("a file of `source` has no name or no modification time")
    return name, count_at(entry, "size"), modified


def _aliases(entry: Mapping[str, Any], tensors: _Tensors) -> dict[str, str]:
    for name, tensor in entry.items():
        if not isinstance(tensor, str) or tensor not in tensors or name in tensors:
            raise ValueError(f"the alias `{name}` is also a tensor, or refers to a missing tensor")
        require_text(name)
    return dict(entry)


def _file(entry: Mapping[str, Any], rank: int, tensors: _Tensors, layout: str) -> RankFile:
    path = ""
    try:
        path = text_at(entry, "path")
        entries = objects_at(entry, "tensors")
    except ValueError as error:
        raise ValueError(f"rank {rank}: {error}") from error
    if not _is_below(path):
        raise ValueError(f"the path of rank {rank}, `{path}`, is not inside the directory")
    shards: list[Shard] = []
    for each in entries:
        try:
            shards.append(_shard(each, tensors, layout))
        except ValueError as error:
            raise ValueError(f"`{each.get('name')}` on rank {rank}: {error}") from error
    _refuse_twice([shard.info.name for shard in shards], f"appears twice on rank {rank}")
    return RankFile(path, tuple(shards))


def _is_below(path: str) -> bool:
    """Whether a path is of a file below the directory that it starts in, however it is read."""
    steps = path.split("/")
    return not {"", ".", ".."} & {*steps} and path.isprintable() and "\\" not in path


def _shard(entry: Mapping[str, Any], tensors: _Tensors, layout: str) -> Shard:
    info = _info(entry)
    pieces = tuple([_piece(each, tensors) for each in objects_at(entry, "pieces")])
    sha256 = text_at(entry, "sha256")
    if _SHA256.fullmatch(sha256) is None:
        raise ValueError("`sha256` is not a SHA-256 digest")
    sources = [tensors[piece.source] for piece in pieces]
    if any(source.encoding != info.encoding for source in sources):
        raise ValueError(
            "its encoding differs from the encoding of the tensors that it is a part of"
        )
    shapes = [
        _part_shape(source.shape, piece.part) for source, piece in zip(sources, pieces, strict=True)
    ]
    if layout == "ranks" and shapes != [info.shape]:
        raise ValueError(f"its shape {list(info.shape)} differs from the shape of its cuts")
    if shapes != [info.shape] and sum(map(info.encoding.nbytes, shapes)) > info.nbytes:
        raise ValueError("it has fewer bytes than its pieces need")
    return Shard(info, pieces, text_at(entry, "strategy"), sha256)


def _piece(entry: Mapping[str, Any], tensors: _Tensors) -> SourceShard:
    name = text_at(entry, "source")
    info = tensors.get(name)
    if info is None:
        raise ValueError(f"its source `{name}` is not a tensor of the manifest")
    part = tuple([_cut(each, info) for each in objects_at(entry, "cuts")])
    if len(part) > 1:
        if len({cut.axis for cut in part}) < len(part):
            raise ValueError(f"`{name}` is split twice along one axis")
        if prod(len(cut.ranges) for cut in part) > _MOST_RANGES:
            raise ValueError(f"`{name}` is split into too many pieces")
    return SourceShard(name, part)


def _cut(entry: Mapping[str, Any], info: TensorInfo) -> Cut:
    axis = count_at(entry, "axis")
    shape, block = info.shape, info.encoding.block
    # Blocks that go on in the next row cannot be cut at all.
    if axis >= len(shape) or shape[-1] % block:
        raise ValueError(f"`{info.name}` of shape {list(shape)} cannot be split along axis {axis}")
    if axis < len(shape) - 1:
        block = 1
    ranges: list[Range] = []
    end = 0
    for each in list_at(entry, "ranges"):
        start, stop = _range(each)
        if not end <= start < stop <= shape[axis]:
            raise ValueError(
                f"the range from {start} to {stop} of axis {axis} of `{info.name}` is empty, "
                f"overlaps the range before it, or exceeds the {shape[axis]} elements of the axis"
            )
        if start % block or stop % block:
            raise ValueError(f"the range from {start} to {stop} splits blocks of {block} elements")
        ranges.append((start, stop))
        end = stop
    if not ranges and shape[axis]:
        raise ValueError(f"the list of ranges along axis {axis} of `{info.name}` is empty")
    return Cut(axis, tuple(ranges))


def _range(content: Any) -> Range:
    if is_list(content) and len(content) == 2:
        start, stop = content
        if type(start) is int and type(stop) is int:
            return start, stop
    raise ValueError("a range is not a list of two integers")


def _shardings(
    tensors: _Tensors, strategies: Mapping[str, str], files: Sequence[RankFile]
) -> dict[str, Sharding]:
    least = 64 * sum(len(file.shards) for file in files)
    if len(tensors) * len(files) > least + _MOST_UNSTATED:
        raise ValueError(
            f"{len(tensors)} tensors on {len(files)} ranks are too many for the number of listed "
            "shards"
        )
    held: dict[str, dict[int, list[Part]]] = {name: {} for name in tensors}
    for rank, file in enumerate(files):
        for shard in file.shards:
            for source, part in shard.pieces:
                held[source].setdefault(rank, []).append(part)
    shardings: dict[str, Sharding] = {}
    # Layers are cut alike; what is known of one is not found out, or kept, again.
    known: dict[tuple[tuple[int, ...], _Parts], _Parts] = {}
    for name, by_rank in held.items():
        parts: list[Part | None] = [None] * len(files)
        for rank, several in by_rank.items():
            parts[rank] = several[0] if len(several) == 1 else join_parts(several)
            if parts[rank] is None:
                raise ValueError(
                    f"the pieces of `{name}` on rank {rank} overlap, or cannot be joined into one "
                    f"slice"
                )
        key = tensors[name].shape, tuple(parts)
        if key not in known:
            _refuse_gap(tensors[name], key[1])
            known[key] = key[1]
        shardings[name] = Sharding(strategies[name], known[key])
    return shardings


def _refuse_gap(info: TensorInfo, parts: _Parts) -> None:
    """Raise where a tensor has elements that are in no part."""
    there = [part for part in parts if part is not None]
    try:
        gap = first_gap(info.shape, there)
    except ValueError as error:
        raise ValueError(f"`{info.name}`: {error}") from error
    if gap is not None or not there:
        at = f"element {list(gap)} of " if gap else ""
        raise ValueError(f"no rank has {at}`{info.name}` of shape {list(info.shape)}")


def _info(entry: Mapping[str, Any]) -> TensorInfo:
    name = text_at(entry, "name")
    encoding = ENCODINGS.get(text_at(entry, "encoding"))
    if encoding is None:
        raise ValueError(f"the encoding of `{name}` is not supported")
    shape = tuple(list_at(entry, "shape"))
    if {type(size) for size in shape} - {int}:
        raise ValueError(f"the shape of `{name}` has a size that is not an integer")
    if not _is_shape(shape, encoding.name):
        raise ValueError(
            f"`{name}` is stored as {encoding}, which does not support the shape {list(shape)}"
        )
    return TensorInfo(name, shape, encoding)


# Tens of thousands of tensors have a few shapes.
_part_shape = lru_cache(maxsize=1024)(part_shape)


@lru_cache(maxsize=1024)
def _is_shape(shape: tuple[int, ...], encoding: str) -> bool:
    """Whether arrays can have a shape, and elements of that encoding fill it."""
    can_be = len(shape) <= _MOST_DIMENSIONS and is_possible(shape)
    return can_be and ENCODINGS[encoding].fits(shape)


def _refuse_twice(names: Sequence[str], what: str) -> None:
    if len({*names}) == len(names):
        return
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"`{name}` {what}")
        seen.add(name)
