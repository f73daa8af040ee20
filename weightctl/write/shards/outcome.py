"""The files that a plan for several ranks makes, and what stands in their way."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError, FormatError, OutputError
from weightctl.formats import FORMATS, format_module
from weightctl.formats.huggingface import companions
from weightctl.formats.sharded.manifest import is_manifest, read_manifest
from weightctl.formats.sharded.record import MANIFEST, Manifest, RankFile, SourceFingerprint
from weightctl.weights.readable import refuse_expanded
from weightctl.write.shards.belongings import all_below, foreign, refuse_foreign
from weightctl.write.shards.journal import JOURNAL
from weightctl.write.targets import check_place, refuse_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.formats.base import Layout
    from weightctl.sharding.plan import ShardPlan
    from weightctl.weights.info import TensorInfo

__all__ = ["ShardOutcome", "describe_shards"]

# What a rank's file is, in a directory of its own or, as vLLM wants it, beside those of the others.
_PATHS = {"ranks": "rank-{rank}/model{suffix}", "vllm": "model-rank-{rank}-part-0{suffix}"}
# Files that are wrong in one way are many.
_FEW = 5


@dataclass(frozen=True)
class ShardOutcome:
    """The files that a plan makes in a directory, known to the byte.

    `path` is that of the directory, links followed. `files` are by their paths below it, in the
    order of ranks; `carried` are the paths, by theirs, of what stands beside the source and goes
    along. `inputs` are never written.
    """

    plan: ShardPlan
    path: str
    files: Mapping[str, Layout]
    carried: Mapping[str, str]
    inputs: tuple[str, ...]

    @property
    def partial(self) -> str:
        """The name of the directory until it is whole."""
        return f"{self.path}.partial"

    @property
    def nbytes(self) -> int:
        """The bytes of the ranks' files."""
        return sum(layout.nbytes for layout in self.files.values())

    @property
    def tensor_bytes(self) -> int:
        """The bytes of all tensors in them, of which progress is told."""
        return sum(shard.info.nbytes for shards in self.plan.ranks for shard in shards)

    @property
    def directories(self) -> list[str]:
        """The paths of all directories until they are whole, the one that has the others last."""
        below = sorted({os.path.dirname(name) for name in self.files} - {""})
        return [*(os.path.join(self.partial, name) for name in below), self.partial]

    @cached_property
    def names(self) -> frozenset[str]:
        """The paths below the directory of all that this makes there, or does on its way."""
        return frozenset((MANIFEST, JOURNAL, *self.files, *self.carried))

    def manifest(self, source: SourceFingerprint) -> Manifest:
        """Return what will be said of the files; the digests of tensors are not known yet."""
        plan = self.plan
        return Manifest(
            layout=plan.layout,
            format=plan.format,
            grid=plan.grid,
            source=source,
            tensors={name: plan.source.header.tensors[name] for name in plan.shardings},
            shardings=plan.shardings,
            aliases=plan.tied,
            files=tuple(map(RankFile, self.files, plan.ranks)),
        )

    def refuse(self, *, force: bool) -> None:
        """Refuse a directory that must not or cannot be written; raises `OutputError`.

        Even with `force` one is replaced only when all it holds is what this would write, or a set
        for other ranks.
        """
        for path in (self.path, self.partial):
            refuse_inputs(path, self.inputs)
            if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
                raise OutputError(f"{path} is no directory", hint="choose another name")
        self.refuse_target(self.path, force=force)
        carried = sum(map(os.path.getsize, self.carried.values()))
        there = sum(map(_count_occupied_bytes, all_below(self.partial)))
        check_place(os.path.dirname(self.path), self.path, self.nbytes + carried - there)

    def refuse_target(self, directory: str, *, force: bool) -> None:
        """Refuse what is in a directory that the new one takes the place of."""
        if not os.path.isdir(directory) or not os.listdir(directory):
            return
        names = self.list_replaced(directory)
        if force:
            refuse_foreign(directory, names, self.path)
            return
        stays = next(foreign(directory, names), None)
        hint = (
            "pass --force to replace it"
            if stays is None
            else f"choose another directory; --force would not replace {stays}"
        )
        raise OutputError(f"{self.path} exists and is not empty", hint=hint)

    def list_replaced(self, directory: str) -> frozenset[str]:
        """Return the paths below a directory of all that this may replace there.

        That is what it makes, and of a set for other ranks that is there the files that the set's
        manifest names, and what was carried beside them if this carries it too.
        """
        listing = os.path.join(directory, MANIFEST)
        if not os.path.isfile(listing) or not is_manifest(listing):
            return self.names
        try:
            paths = [file.path for file in read_manifest(listing).files]
        except FormatError:
            return self.names
        beside = {os.path.basename(name) for name in self.carried}
        directories = {os.path.dirname(path) for path in paths}
        carried = (os.path.join(below, name) for below in directories for name in beside)
        return self.names.union(paths, carried)


def describe_shards(plan: ShardPlan, out: str | os.PathLike[str]) -> ShardOutcome:
    """Return the files that a plan makes, whether or not the directory can be written.

    Raises `ConversionError` where the format cannot hold the plan, and `EncodingError` where its
    tensors are far larger than the files of the source.
    """
    written = os.fspath(out)
    if not written.rstrip("/"):
        raise ConversionError(f"`{written}` is no name for an output", hint="name a directory")
    header = plan.source.header
    suffix = FORMATS[plan.format].suffix
    paths = [
        _PATHS[plan.layout].format(rank=rank, suffix=suffix) for rank in range(len(plan.ranks))
    ]
    ranks = [tuple(shard.info for shard in shards) for shards in plan.ranks]
    _refuse_unfit(plan.format, ranks)
    module = format_module(plan.format)
    files = {
        path: module.layout(infos, plan.metadata) for path, infos in zip(paths, ranks, strict=True)
    }
    read = dict.fromkeys(
        header.tensors[piece.source]
        for shards in plan.ranks
        for shard in shards
        for piece in shard.pieces
    )
    refuse_expanded(plan.source, list(read))
    beside = companions(header.files)
    carried = {
        os.path.join(directory, name): source
        for directory in dict.fromkeys(map(os.path.dirname, paths))
        for name, source in beside.items()
        if name != MANIFEST
    }
    listing = [header.listing] if header.listing else []
    inputs = (*header.files, *listing, *beside.values())
    return ShardOutcome(plan, os.path.realpath(written), files, carried, inputs)


def _refuse_unfit(format_name: str, ranks: Sequence[Sequence[TensorInfo]]) -> None:
    if format_name == "pytorch":
        raise ConversionError(
            "the files of ranks are safetensors or GGUF", hint="pass --to and one of them"
        )
    infos = {info.name: info for rank in ranks for info in rank}
    if problems := format_module(format_name).unfit(list(infos.values())):
        more = [f"... and {len(problems) - _FEW} more"] if len(problems) > _FEW else []
        raise ConversionError(
            "\n  ".join([f"{format_name} cannot hold all of this:", *problems[:_FEW], *more]),
            hint="convert it first, or choose the format of the input",
        )


def _count_occupied_bytes(path: str) -> int:
    return os.lstat(path).st_blocks * 512
