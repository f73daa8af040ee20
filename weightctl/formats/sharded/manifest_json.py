"""Parsing of a manifest's JSON; every value is checked."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from weightctl.dtype import ENCODINGS
from weightctl.formats import FORMATS
from weightctl.formats.base import is_possible, is_text
from weightctl.formats.sharded.records import (
    Manifest,
    RankFile,
    Shard,
    SourceFingerprint,
    SourceShard,
)
from weightctl.split import Cut, Grid, Sharding, part_shape
from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import pluralize
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.split import Part, Range

# The limit of steps for each range of a part. No plan comes near it, but a file can require any
# number of steps.
_MOST_STEPS = 64
_LARGEST = 1 << 63
_LAYOUTS = ("ranks", "vllm")
_MOST_DIMENSIONS = 64
_MOST_RANKS = 1 << 16
# The limit of ranges: overlapping parts are compared range by range, in all axes.
_MOST_RANGES = 1 << 14
# The limit of tensors times ranks: each combination takes memory, but no bytes in the file.
_MOST_UNSTATED = 1 << 24
_SHA256 = re.compile(r"([0-9a-f]{64})?")
_Tensors = dict[str, TensorInfo]
_Parts: TypeAlias = "tuple[Part | None, ...]"


def _object_at(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key."""
    content = entry.get(key)
    if is_object(content):
        return content
    raise ValueError(f"`{key}` is not a JSON object")


def _objects_at(entry: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the list of objects under a key."""
    content = _list_at(entry, key)
    if all(map(is_object, content)):
        return content
    raise ValueError(f"`{key}` is not a list of JSON objects")


def _list_at(entry: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list under a key."""
    content = entry.get(key)
    if is_list(content):
        return content
    raise ValueError(f"`{key}` is not a list")


def _text_at(entry: Mapping[str, Any], key: str) -> str:
    """Return the string under a key; raises `ValueError` if it cannot be encoded as UTF-8."""
    content = entry.get(key)
    if isinstance(content, str):
        if not content.isascii():
            _require_text(content)
        return content
    raise ValueError(f"`{key}` is not a string")


def _count_at(entry: Mapping[str, Any], key: str) -> int:
    """Return the integer under a key; it must not be negative, and fit into 63 bits."""
    content = entry.get(key)
    if type(content) is int and 0 <= content < _LARGEST:
        return content
    raise ValueError(f"`{key}` is not an integer of at least 0")


def _one_of(entry: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
    """Return the string under a key; raises `ValueError` if it is not in `known`."""
    content = _text_at(entry, key)
    if content not in known:
        raise ValueError(f"`{key}` is `{content}`; it must be {' or '.join(known)}")
    return content


def _require_text(content: str) -> None:
    """Raise `ValueError` if a text has lone surrogates."""
    if not is_text(content):
        raise ValueError(f"{content!r} is not UTF-8")


def parse_manifest(document: Mapping[str, Any]) -> Manifest:
    """Return the manifest in a JSON object; raises `ValueError` if it is invalid."""
    layout = _one_of(document, "layout", _LAYOUTS)
    grid = _grid(_object_at(document, "grid"))
    tensors: _Tensors = {}
    strategies: dict[str, str] = {}
    for entry in _objects_at(document, "tensors"):
        info = _info(entry)
        if info.name in tensors:
            raise ValueError(f"the manifest lists the tensor `{info.name}` twice")
        tensors[info.name] = info
        strategies[info.name] = _text_at(entry, "strategy")
    ranks = _objects_at(document, "ranks")
    if len(ranks) != grid.ranks:
        count = pluralize(len(ranks), "rank")
        raise ValueError(f"the manifest has {count}, but tp x ep x pp is {grid.ranks}")
    files = tuple(_file(entry, rank, tensors, layout) for rank, entry in enumerate(ranks))
    _refuse_twice([file.path for file in files], "is the file of several ranks")
    return Manifest(
        layout=layout,
        format=_one_of(document, "format", tuple(FORMATS)),
        grid=grid,
        source=_parse_fingerprint(_object_at(document, "source")),
        tensors=tensors,
        shardings=_shardings(tensors, strategies, files),
        aliases=_aliases(_object_at(document, "aliases"), tensors),
        files=files,
    )


def _grid(entry: Mapping[str, Any]) -> Grid:
    grid = Grid(*(_count_at(entry, key) for key in Grid._fields))
    if min(grid) < 1 or grid.ranks > _MOST_RANKS:
        raise ValueError(f"tp {grid.tp} x ep {grid.ep} x pp {grid.pp} is not a valid grid of ranks")
    return grid


def _parse_fingerprint(entry: Mapping[str, Any]) -> SourceFingerprint:
    files = tuple(map(_source_file, _objects_at(entry, "files")))
    header = _text_at(entry, "header")
    if _SHA256.fullmatch(header) is None:
        raise ValueError("`header` of `source` is not a SHA-256 digest")
    return SourceFingerprint(files, header)


def _source_file(entry: Mapping[str, Any]) -> tuple[str, int, int]:
    # A name can be invalid UTF-8, and a time can be before 1970.
    name, modified = entry.get("name"), entry.get("modified")
    if not isinstance(name, str) or type(modified) is not int:
        raise ValueError("a file of `source` has no name or no modification time")
    return name, _count_at(entry, "size"), modified


def _aliases(entry: Mapping[str, Any], tensors: _Tensors) -> dict[str, str]:
    for name, tensor in entry.items():
        if not isinstance(tensor, str) or tensor not in tensors or name in tensors:
            raise ValueError(
                f"the alias `{name}` has the same name as a tensor, or refers to a missing tensor"
            )
        _require_text(name)
    return dict(entry)


def _file(entry: Mapping[str, Any], rank: int, tensors: _Tensors, layout: str) -> RankFile:
    path = ""
    try:
        path = _text_at(entry, "path")
        entries = _objects_at(entry, "tensors")
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
    """Whether a path refers to a file below its directory, on any system."""
    steps = path.split("/")
    return not {"", ".", ".."} & {*steps} and path.isprintable() and "\\" not in path


def _shard(entry: Mapping[str, Any], tensors: _Tensors, layout: str) -> Shard:
    info = _info(entry)
    pieces = tuple([_piece(each, tensors) for each in _objects_at(entry, "pieces")])
    sha256 = _text_at(entry, "sha256")
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
        raise ValueError(
            f"its shape {list(info.shape)} differs from the shape of the part that "
            "`pieces` describes"
        )
    if shapes != [info.shape] and sum(map(info.encoding.nbytes, shapes)) > info.nbytes:
        raise ValueError("it has fewer bytes than its pieces need")
    return Shard(info, pieces, _text_at(entry, "strategy"), sha256)


def _piece(entry: Mapping[str, Any], tensors: _Tensors) -> SourceShard:
    name = _text_at(entry, "source")
    info = tensors.get(name)
    if info is None:
        raise ValueError(f"its source `{name}` is not a tensor of the manifest")
    part = tuple([_cut(each, info) for each in _objects_at(entry, "cuts")])
    if len(part) > 1:
        if len({cut.axis for cut in part}) < len(part):
            raise ValueError(f"`{name}` is split twice along one axis")
        if prod(len(cut.ranges) for cut in part) > _MOST_RANGES:
            raise ValueError(f"`{name}` is split into more than {_MOST_RANGES} pieces")
    return SourceShard(name, part)


def _cut(entry: Mapping[str, Any], info: TensorInfo) -> Cut:
    axis = _count_at(entry, "axis")
    shape, block = info.shape, info.encoding.block
    # Blocks that continue in the next row cannot be split.
    if axis >= len(shape) or shape[-1] % block:
        raise ValueError(f"`{info.name}` of shape {list(shape)} cannot be split along axis {axis}")
    if axis < len(shape) - 1:
        block = 1
    ranges: list[Range] = []
    end = 0
    for each in _list_at(entry, "ranges"):
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
    shards = sum(len(file.shards) for file in files)
    if len(tensors) * len(files) > 64 * shards + _MOST_UNSTATED:
        raise ValueError(
            f"it lists {len(tensors)} tensors and {len(files)} ranks, but only {shards} shards: "
            "these numbers do not fit together"
        )
    held: dict[str, dict[int, list[Part]]] = {name: {} for name in tensors}
    for rank, file in enumerate(files):
        for shard in file.shards:
            for source, part in shard.pieces:
                held[source].setdefault(rank, []).append(part)
    shardings: dict[str, Sharding] = {}
    # Layers are split in the same way, so results for one layer are reused.
    known: dict[tuple[tuple[int, ...], _Parts], _Parts] = {}
    for name, by_rank in held.items():
        parts: list[Part | None] = [None] * len(files)
        for rank, several in by_rank.items():
            parts[rank] = several[0] if len(several) == 1 else join_parts(several)
            if parts[rank] is None:
                raise ValueError(
                    f"the pieces of `{name}` on rank {rank} overlap, or cannot be joined into one "
                    "slice"
                )
        key = tensors[name].shape, tuple(parts)
        if key not in known:
            _refuse_gap(tensors[name], key[1])
            known[key] = key[1]
        shardings[name] = Sharding(strategies[name], known[key])
    return shardings


def _refuse_gap(info: TensorInfo, parts: _Parts) -> None:
    """Raise `ValueError` if elements of a tensor are in no part."""
    there = [part for part in parts if part is not None]
    try:
        gap = first_gap(info.shape, there)
    except ValueError as error:
        raise ValueError(f"`{info.name}`: {error}") from error
    if gap is not None or not there:
        at = f"element {list(gap)} of " if gap else ""
        raise ValueError(f"no rank has {at}`{info.name}` of shape {list(info.shape)}")


def _info(entry: Mapping[str, Any]) -> TensorInfo:
    name = _text_at(entry, "name")
    encoding = ENCODINGS.get(_text_at(entry, "encoding"))
    if encoding is None:
        raise ValueError(f"the encoding of `{name}` is not supported")
    shape = tuple(_list_at(entry, "shape"))
    if {type(size) for size in shape} - {int}:
        raise ValueError(f"the shape of `{name}` has a size that is not an integer")
    if not _is_shape(shape, encoding.name):
        raise ValueError(
            f"`{name}` is stored as {encoding}, which does not support the shape {list(shape)}"
        )
    return TensorInfo(name, shape, encoding)


# Tens of thousands of tensors have only a few different shapes.
_part_shape = lru_cache(maxsize=1024)(part_shape)


@lru_cache(maxsize=1024)
def _is_shape(shape: tuple[int, ...], encoding: str) -> bool:
    """Whether a shape is valid for arrays, and for the encoding."""
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


# Checks that shards cover a whole tensor, and joining of the parts of one rank.


def first_gap(shape: Sequence[int], parts: Iterable[Part]) -> tuple[int, ...] | None:
    """Return the first element of a tensor that no part has; None if there is no gap.

    Raises `ValueError` if the parts are too many and too irregular.
    """
    if not prod(shape):
        return None
    different = list(dict.fromkeys(parts))
    if () in different:
        return None
    ranges: list[dict[int, tuple[Range, ...]]] = [dict(part) for part in different]
    axes = sorted({axis for each in ranges for axis in each})
    gap = _Search(shape, ranges, axes).gap(0, tuple(range(len(ranges))))
    if gap is None:
        return None
    found = dict(zip(axes, gap, strict=False))
    return tuple(found.get(axis, 0) for axis in range(len(shape)))


class _Search:
    """A recursive search for gaps along the split axes."""

    def __init__(
        self,
        shape: Sequence[int],
        parts: Sequence[dict[int, tuple[Range, ...]]],
        axes: Sequence[int],
    ) -> None:
        self._shape = shape
        self._parts = parts
        self._axes = axes
        self._known: dict[tuple[int, tuple[int, ...]], tuple[int, ...] | None] = {}
        ranges = sum(len(each) for part in parts for each in part.values())
        self._left = _MOST_STEPS * (ranges + 1)

    def gap(self, place: int, active: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the indices of a gap along the remaining axes; None if there is no gap.

        `place` is the number of axes that are done, and `active` are the parts that remain.
        """
        if not active:
            return (0,) * (len(self._axes) - place)
        if place == len(self._axes):
            return None
        key = (place, active)
        if key not in self._known:
            self._known[key] = self._gap(place, active)
        return self._known[key]

    def _gap(self, place: int, active: tuple[int, ...]) -> tuple[int, ...] | None:
        axis = self._axes[place]
        whole = ((0, self._shape[axis]),)
        events: list[tuple[int, bool, int]] = []
        for part in active:
            for start, stop in self._parts[part].get(axis, whole):
                events += ((start, True, part), (stop, False, part))
        events.sort()
        there: set[int] = set()
        at = passed = 0
        while at < self._shape[axis]:
            # Parts that end here are removed before others begin.
            while passed < len(events) and events[passed][0] <= at:
                _, begins, part = events[passed]
                there.add(part) if begins else there.discard(part)
                passed += 1
            self._left -= 1 + len(there)
            if self._left < 0:
                raise ValueError(
                    "its shards have too many or too irregular ranges; no sharding produces them"
                )
            inner = self.gap(place + 1, tuple(sorted(there)))
            if inner is not None:
                return (at, *inner)
            at = events[passed][0] if passed < len(events) else self._shape[axis]
        return None


def join_parts(parts: Sequence[Part]) -> Part | None:
    """Return one part that consists of several parts; None if that is not possible.

    The parts can differ in one axis, and must not overlap there.
    """
    first, *others = parts
    axes = [cut.axis for cut in first]
    if not others:
        return first
    if any([cut.axis for cut in part] != axes for part in others):
        return None
    columns = list(zip(*parts, strict=True))
    different = [place for place, cuts in enumerate(columns) if len(set(cuts)) > 1]
    if len(different) != 1:
        return None
    (place,) = different
    ranges = sorted(each for cut in columns[place] for each in cut.ranges)
    made: list[Range] = []
    for start, stop in ranges:
        if made and start < made[-1][1]:
            return None
        if made and start == made[-1][1]:
            made[-1] = (made[-1][0], stop)
        else:
            made.append((start, stop))
    return (*first[:place], Cut(axes[place], tuple(made)), *first[place + 1 :])
