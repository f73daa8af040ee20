"""Checkpoints to be sharded, and sets of files that were sharded or damaged."""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from outcomes import standing
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import FormatError
from weightctl.formats import FORMATS, format_module
from weightctl.formats.huggingface import companions
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.formats.sharded.manifest import manifest_bytes, read_manifest
from weightctl.formats.sharded.opening import MANIFEST
from weightctl.formats.sharded.records import (
    Manifest,
    RankFile,
    SourceFingerprint,
    fingerprint_source,
)
from weightctl.sharding.plan import ShardPlan, ranks_of
from weightctl.split import Cut, Grid, Sharding, Whole, axiswise, part_along, replicate
from weightctl.system.temporary import JOURNAL
from weightctl.weights.info import TensorInfo
from weightctl.write.journal import read_journal
from weightctl.write.locks import find_journal
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from weightctl.dtype import Encoding
    from weightctl.formats.sharded.records import Shard, SourceShard
    from weightctl.split import Part, Range
    from weightctl.weights.data import Source
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.tree import Checkpoint
    from weightctl.write.journal import Record

    Contents = Mapping[str, tuple[TensorInfo, bytes]]
    Metadata = Mapping[str, MetadataValue]
    DrawnContents = dict[str, tuple[TensorInfo, bytes]]
    Document = dict[str, Any]
    Change = Callable[[Document], object]

# Sharded checkpoints written in a simple way: whole tensors in memory, and parts from NumPy.

UNKNOWN = SourceFingerprint((), "0" * 64)


def write_whole(path: Path, format_name: str, contents: Contents, metadata: Metadata) -> Path:
    """Write tensors with any bytes to one file."""
    layout = format_module(format_name).layout([info for info, _ in contents.values()], metadata)
    raw = bytearray(layout.nbytes)
    raw[: len(layout.header)] = layout.header
    for info, offset in zip(layout.tensors, layout.offsets, strict=True):
        raw[offset : offset + info.nbytes] = contents[info.name][1]
    path.write_bytes(raw)
    return path


def bytes_for(info: TensorInfo, seed: int = 0) -> bytes:
    return np.random.default_rng([seed, *info.name.encode()]).bytes(info.nbytes)


def whole_of(info: TensorInfo) -> Whole:
    """Return the description of a tensor that sharding needs; its rows are whole blocks."""
    outer = (1,) * (len(info.shape) - 1)
    return Whole(info.name, info.shape, (*outer, info.encoding.block) if info.shape else ())


def rows_or_all(whole: Whole, ranks: int) -> Sharding:
    """Shard matrices by rows if they have enough; each rank has all of the others."""
    is_cut = len(whole.shape) > 1 and whole.shape[0] >= ranks
    return axiswise(whole, ranks, 0) if is_cut else replicate(whole, ranks)


def on_ranks(part: Part, ranks: Iterable[int], count: int) -> Sharding:
    """Give these ranks the same part, and the other ranks nothing."""
    wanted = {*ranks}
    return Sharding("replicate", tuple(part if rank in wanted else None for rank in range(count)))


def plan_of(
    weights: Checkpoint,
    grid: Grid,
    cut: Callable[[Whole, int], Sharding] = rows_or_all,
    format_name: str | None = None,
) -> ShardPlan:
    """Return the plan that cuts each tensor as `cut` returns; each shard has one piece."""
    header = weights.header
    shardings = {name: cut(whole_of(info), grid.ranks) for name, info in header.tensors.items()}
    return ShardPlan(
        source=weights.source,
        format=format_name or header.format,
        layout="ranks",
        grid=grid,
        shardings=shardings,
        ranks=ranks_of(weights.source, shardings, grid),
        metadata=header.metadata,
        tied=header.aliases,
    )


def write_shards(plan: ShardPlan, out: Path) -> Path:
    """Write the shards of a plan, and its manifest; return the directory."""
    files: list[RankFile] = []
    for rank, shards in enumerate(plan.ranks):
        path = (
            f"model-rank-{rank}-part-0{FORMATS[plan.format].suffix}"
            if plan.layout == "vllm"
            else f"rank-{rank}/model{FORMATS[plan.format].suffix}"
        )
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        content = {
            shard.info.name: (shard.info, shard_bytes(plan.source, shard)) for shard in shards
        }
        write_whole(out / path, plan.format, content, plan.metadata)
        hashed = (
            shard._replace(sha256=hashlib.sha256(content[shard.info.name][1]).hexdigest())
            for shard in shards
        )
        files.append(RankFile(path, tuple(hashed)))
    write_manifest(out, manifest_of(plan, files))
    return out


def manifest_of(plan: ShardPlan, files: Iterable[RankFile]) -> Manifest:
    tensors = {name: plan.source.header.tensors[name] for name in plan.shardings}
    return Manifest(
        plan.layout, plan.format, plan.grid, UNKNOWN, tensors, plan.shardings, plan.tied,
        tuple(files),
    )  # fmt: skip


def write_manifest(out: Path, manifest: Manifest) -> Path:
    """Write a manifest into a directory; return its path."""
    path = out / MANIFEST
    path.write_bytes(manifest_bytes(manifest))
    return path


def shard_bytes(source: Source, shard: Shard) -> bytes:
    """Return the bytes of a shard: those of its pieces, one after another, then zeros."""
    made = b"".join(piece_bytes(source, piece) for piece in shard.pieces)
    return made + bytes(shard.info.nbytes - len(made))


def piece_bytes(source: Source, piece: SourceShard) -> bytes:
    """Return the bytes of a part of a tensor, selected from the whole."""
    info = source.header.tensors[piece.source]
    raw = whole_bytes(source, piece.source)
    if not piece.part:
        return raw
    block, size = info.encoding.block, info.encoding.size
    # Each entry is a block.
    shape = (*info.shape[:-1], info.shape[-1] // block)
    blocks = np.frombuffer(raw, np.dtype((np.void, size))).reshape(shape)
    for cut in piece.part:
        blocks = blocks.take(_indices(cut, block if cut.axis == len(shape) - 1 else 1), cut.axis)
    return blocks.tobytes()


def _indices(cut: Cut, block: int) -> np.ndarray[Any, Any]:
    found = [np.arange(start // block, stop // block) for start, stop in cut.ranges]
    return np.concatenate([np.arange(0), *found])


def whole_bytes(source: Source, name: str) -> bytes:
    raw = bytearray(source.header.extents[name].nbytes)
    source.read_into(name, 0, memoryview(raw))
    return bytes(raw)


def two_ranks(directory: Path) -> Path:
    """Write a set in GGUF: both ranks have `norm`, and each has half the rows of `w` and `q`."""
    shapes = {"norm": ("F32", (4,)), "w": ("F32", (4, 6)), "q": ("Q8_0", (2, 64))}
    infos = [TensorInfo(name, shape, ENCODINGS[kind]) for name, (kind, shape) in shapes.items()]
    contents = {info.name: (info, bytes_for(info)) for info in infos}
    path = write_whole(directory / "whole.gguf", "gguf", contents, {})
    return write_shards(plan_of(open_weights(path), Grid(2)), directory / "parts")


def gathered(path: Path) -> GatheredSource:
    source = open_weights(path).source
    assert isinstance(source, GatheredSource)
    return source


def document_of(path: Path) -> dict[str, Any]:
    """Return the JSON of a set's manifest."""
    made: dict[str, Any] = json.loads((path / MANIFEST).read_bytes())
    return made


def write_document(document: Any, directory: Path) -> Path:
    """Write a manifest with any content; return its path."""
    path = directory / MANIFEST
    path.write_text(json.dumps(document))
    return path


def contents_of(path: Path) -> dict[str, tuple[TensorInfo, bytes]]:
    source = open_weights(path).source
    return {name: (info, whole_bytes(source, name)) for name, info in source.header.tensors.items()}


# Sharded checkpoints that `save_shards` writes, whole or stopped, and what they should be.


class StopError(Exception):
    """What a caller's own progress raises."""


def written(path: Path, format_name: str, tensors: Iterable[TensorInfo], seed: int = 1) -> Path:
    """Write tensors of random bytes; return the path."""
    random = np.random.default_rng(seed)
    layout = format_module(format_name).layout(list(tensors), {})
    raw = bytearray(layout.nbytes)
    raw[: len(layout.header)] = layout.header
    for info, offset in zip(layout.tensors, layout.offsets, strict=True):
        raw[offset : offset + info.nbytes] = random.bytes(info.nbytes)
    path.write_bytes(raw)
    return path


def tensor(name: str, *shape: int, encoding: str = "F32") -> TensorInfo:
    """Describe a tensor; the last size is in blocks."""
    block = ENCODINGS[encoding].block
    return TensorInfo(name, (*shape[:-1], shape[-1] * block), ENCODINGS[encoding])


def all_encodings(format_name: str) -> list[TensorInfo]:
    """Describe tensors of each encoding that a format holds: matrix, vector, stack, no element."""
    shapes = {"m": (5, 3), "v": (1,), "s": (3, 4, 2), "e": (0, 1)}
    tensors = [
        tensor(f"{encoding}.{key}", *shape, encoding=encoding)
        for encoding in ENCODINGS
        for key, shape in shapes.items()
    ]
    module = format_module(format_name)
    return [info for info in tensors if not module.unfit([info]) and prod(info.shape) < 1 << 20]


def columns_or_all(whole: Whole, ranks: int) -> Sharding:
    """Cut tensors along their last axis, as far as that has enough blocks."""
    axis = len(whole.shape) - 1
    is_cut = axis > 0 and 0 not in whole.shape and whole.shape[axis] >= ranks * whole.blocks[axis]
    return axiswise(whole, ranks, axis) if is_cut else replicate(whole, ranks)


def inner_or_all(whole: Whole, ranks: int) -> Sharding:
    """Cut stacks along the axis in their middle, and matrices by rows."""
    is_stack = len(whole.shape) > 2 and whole.shape[1] >= ranks
    return axiswise(whole, ranks, 1) if is_stack else rows_or_all(whole, ranks)


def assert_whole(plan: ShardPlan, out: Path, scratch: Path) -> None:
    """Assert that a directory holds, byte for byte, what a plan says, and nothing else."""
    found, wanted = standing(out), standing(write_shards(plan, scratch / "wanted"))
    manifest = read_manifest(str(out / MANIFEST))
    plain = read_manifest(str(scratch / "wanted" / MANIFEST))
    assert manifest == plain._replace(source=fingerprint_source(plan.source))
    del found[MANIFEST], wanted[MANIFEST]
    for name, path in companions(plan.source.header).items():
        with open(path, "rb") as file:
            content = file.read()
        places = (
            {""} if plan.layout == "vllm" else {f"rank-{rank}/" for rank in range(len(plan.ranks))}
        )
        wanted |= {f"{place}{name}": content for place in places}
    assert found == wanted


def layers(directory: Path, seed: int = 1, count: int = 8) -> Path:
    """Write a model whose plan for two ranks cuts most: 6 MB with a config beside it."""
    directory.mkdir()
    tensors = [tensor(f"layers.{number}.weight", 256, 512) for number in range(count)]
    tensors += [tensor(f"layers.{number}.norm", 512) for number in range(count)]
    written(directory / "model.safetensors", "safetensors", tensors, seed)
    (directory / "config.json").write_text("{}")
    return directory


def cut(source: Path, ranks: int = 2) -> ShardPlan:
    return plan_of(open_weights(source), Grid(ranks))


def after(nbytes: int, do: Callable[[], object]) -> Callable[[int], object]:
    """Return a progress that does something each time once so many bytes are written."""
    seen = 0

    def progress(count: int) -> None:
        nonlocal seen
        seen += count
        if seen >= nbytes:
            do()

    return progress


def stop() -> None:
    raise StopError


def stopped(plan: ShardPlan, out: Path, share: float = 0.5) -> Mapping[tuple[int, str], Record]:
    """Stop writing shards at a share of all bytes; return what is recorded."""
    total = sum(shard.info.nbytes for rank in plan.ranks for shard in rank)
    with pytest.MonkeyPatch.context() as patch:
        # A run as short as this keeps no journal.
        patch.setattr("weightctl.write.journal.BEGIN_AFTER", 0.0)
        with pytest.raises(StopError):
            save_shards(plan, out, threads=1, progress=after(int(total * share), stop))
    return recorded(out)


def recorded(out: Path) -> Mapping[tuple[int, str], Record]:
    """Return what the journal of an unfinished output says."""
    path = find_journal(str(out))
    assert path is not None
    journal = read_journal(path)
    assert journal is not None
    return {(record.file, record.key): record for record in journal[1]}


def partial_of(out: Path) -> Path:
    """Return the directory that an unfinished output is in."""
    path = find_journal(str(out))
    assert path is not None
    return Path(path.removesuffix(JOURNAL))


# Strategies of hypothesis for sharded checkpoints: tensors, and the part that each rank has.

HELD_BY = {
    "safetensors": ("F32", "BF16", "U8", "F8_E4M3"),
    "gguf": ("F32", "BF16", "Q8_0", "Q4_K"),
}
_MOST_RANKS = 6


class Drawn(NamedTuple):
    """A checkpoint and its sharding, before anything is written."""

    format: str
    ranks: int
    contents: DrawnContents
    shardings: dict[str, Sharding]

    def plan(self, directory: Path) -> ShardPlan:
        """Write the whole checkpoint, and return the plan to shard it."""
        path = write_whole(directory / "whole", self.format, self.contents, {})
        return plan_of(
            open_weights(path), Grid(self.ranks), lambda whole, _: self.shardings[whole.name]
        )

    def write(self, directory: Path) -> Path:
        """Write the whole checkpoint and its shards; return the directory of the shards."""
        return write_shards(self.plan(directory), directory / "parts")


@st.composite
def tensors_of(draw: st.DrawFn, name: str, encoding: Encoding) -> TensorInfo:
    """A tensor of up to three dimensions in whole blocks; it can be a scalar, or empty."""
    outer = draw(st.lists(st.integers(1, 5), max_size=2))
    row = draw(st.integers(1, 5)) * encoding.block
    few = [(*outer, row)] * 8 + [(0, row), (2, 0)] + [()] * (encoding.block == 1)
    return TensorInfo(name, draw(st.sampled_from(few)), encoding)


@st.composite
def parts_of(draw: st.DrawFn, whole: Whole, ranks: int) -> Sharding:
    """Any parts for several ranks, in any order, that cover the whole tensor without overlap.

    Several ranks can have the same part, and some can have none.
    """
    left = ranks
    choices: list[list[Part]] = []
    for axis, size in enumerate(whole.shape):
        units = size // whole.blocks[axis]
        groups = draw(st.integers(1, max(min(units, left), 1)))
        left //= groups
        choices.append(draw(_along(axis, size, whole.blocks[axis], groups)))
    parts: list[Part] = [tuple(cut for each in cuts for cut in each) for cuts in product(*choices)]
    others = st.sampled_from([*parts, None])
    given = [*parts, *(draw(others) for _ in range(ranks - len(parts)))]
    return Sharding("drawn", tuple(draw(st.permutations(given))))


@st.composite
def _along(draw: st.DrawFn, axis: int, size: int, block: int, groups: int) -> list[Part]:
    """Divide the units of an axis among groups; each group gets at least one."""
    units = size // block
    each = [*range(groups), *(draw(st.integers(0, groups - 1)) for _ in range(units - groups))]
    owners = draw(st.permutations(each)) if units else []
    ranges: list[list[Range]] = [
        [(unit * block, (unit + 1) * block) for unit in range(units) if owners[unit] == group]
        for group in range(groups)
    ]
    return [part_along(axis, size, of) for of in ranges] if size else [(Cut(axis, ()),)]


@st.composite
def drawn_sets(draw: st.DrawFn) -> Drawn:
    """A few tensors in any encodings of a format, sharded for a few ranks."""
    format_name = draw(st.sampled_from([*HELD_BY]))
    ranks = draw(st.integers(1, _MOST_RANKS))
    contents: DrawnContents = {}
    shardings: dict[str, Sharding] = {}
    for number, name in enumerate(
        draw(st.lists(st.sampled_from(HELD_BY[format_name]), max_size=4))
    ):
        info = draw(tensors_of(f"layers.{number}.{name}", ENCODINGS[name]))
        contents[info.name] = info, bytes_for(info)
        shardings[info.name] = draw(parts_of(whole_of(info), ranks))
    return Drawn(format_name, ranks, contents, shardings)


# Changes of a manifest, and the error of reading it.


def refusal(path: Path) -> str:
    """Return why a manifest is refused, which is said of it and with a hint."""
    with pytest.raises(FormatError) as raised:
        read_manifest(str(path))
    assert raised.value.path == str(path)
    assert raised.value.hint
    return raised.value.reason


def at(*keys: Any, to: Any) -> Change:
    """Return what puts something else at a place of the document."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = to

    return change


def without(*keys: Any) -> Change:
    """Return what takes away what is at a place of the document."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        del document[keys[-1]]

    return change


NORM, W, Q = (("ranks", 0, "tensors", number) for number in range(3))
CUT = (*W, "pieces", 0, "cuts", 0)


def twice(*keys: Any) -> Change:
    """Return what repeats the first entry of a list."""

    def change(document: Any) -> None:
        for key in keys:
            document = document[key]
        document.append(deepcopy(document[0]))

    return change


def both(first: Change, second: Change) -> Change:
    def change(document: Document) -> None:
        first(document)
        second(document)

    return change
