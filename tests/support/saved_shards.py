"""Sharded checkpoints that `save_shards` writes, whole or stopped, and what they should be."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from outcomes import standing
from sharded_files import plan_of, rows_or_all, write_shards
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.formats import format_module
from weightctl.formats.huggingface import companions
from weightctl.formats.sharded.detection import MANIFEST
from weightctl.formats.sharded.manifest import read_manifest
from weightctl.formats.sharded.record import fingerprint_source
from weightctl.split import Grid, Sharding, Whole, axiswise, replicate
from weightctl.system.temporary import JOURNAL
from weightctl.weights.info import TensorInfo
from weightctl.write.claims import find_journal
from weightctl.write.journal import read_journal
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from weightctl.sharding.plan import ShardPlan
    from weightctl.write.journal import Record


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
    for name, path in companions(plan.source.header.files).items():
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
    """Plan to cut a checkpoint by rows."""
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
