"""Sharded checkpoints written in a simple way: whole tensors in memory, and parts from NumPy."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.formats import FORMATS, format_module
from weightctl.formats.sharded.detection import MANIFEST
from weightctl.formats.sharded.manifest import manifest_bytes
from weightctl.formats.sharded.record import Manifest, RankFile, SourceFingerprint
from weightctl.sharding.plan import ShardPlan, ranks_of
from weightctl.split import Cut, Grid, Sharding, Whole, axiswise, replicate
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from weightctl.formats.sharded.record import Shard, SourceShard
    from weightctl.split import Part
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.source import Source
    from weightctl.weights.tree import Checkpoint

    Contents = Mapping[str, tuple[TensorInfo, bytes]]
    Metadata = Mapping[str, MetadataValue]

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
    """Return random bytes for a tensor."""
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
    """Return the manifest for the files of a plan."""
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
    """Return all bytes of a tensor."""
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
    """Return the description and the bytes of each tensor of a checkpoint."""
    source = open_weights(path).source
    return {name: (info, whole_bytes(source, name)) for name, info in source.header.tensors.items()}
