"""Describes and identifies the outcome of a plan, without reading tensors."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError, OutputError
from weightctl.formats import ALL_FORMATS, FORMATS, format_module
from weightctl.formats.base import is_text
from weightctl.formats.huggingface import companions, config, file_name, is_license
from weightctl.formats.open.index import index_of
from weightctl.formats.sharded.opening import MANIFEST
from weightctl.formats.sharded.record import fingerprint_source
from weightctl.plan.plan import Plan, refuse_adapter
from weightctl.schemes.matching import list_scheme_tensors
from weightctl.schemes.settings import SETTINGS_FILES
from weightctl.storage.location import (
    has_commits,
    is_remote,
    parse_location,
    without_file_scheme,
)
from weightctl.system import __version__
from weightctl.system.collection import without_collection
from weightctl.system.temporary import without_temporary
from weightctl.text.wording import list_first
from weightctl.weights.readable import refuse_expanded
from weightctl.write.journal import Purpose
from weightctl.write.outcome import Outcome
from weightctl.write.targets import Target, refuse_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.formats.base import Layout
    from weightctl.plan.plan import Item
    from weightctl.sharding.plan import ShardPlan
    from weightctl.split import Part
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import MetadataValue

# The paths of ranks' files: in a directory for each rank or, as vLLM expects, in one directory.
_PATHS = {"ranks": "rank-{rank}/model{suffix}", "vllm": "model-rank-{rank}-part-0{suffix}"}
# The number of problems that an error lists.
_FEW = 5


def describe(plan: Plan, where: Target) -> Outcome:
    """Return the files that a plan makes, without checking that the target can be written.

    Raises `ConversionError` if the format cannot store the plan, and `EncodingError` if its tensors
    are far larger than the files of the source.
    """
    sources = plan.source.header.files
    if where.file_name is not None:
        where = where._replace(file_name=file_name(sources, where.file_name, plan.documents))
    layouts = plan.layouts()
    refuse_expanded(plan.source, _list_stored_tensors(plan))
    parts = dict(zip(where.names(len(layouts)), layouts, strict=True))
    is_always = bool(ALL_FORMATS[where.format].listing)
    index_name = where.index_name if len(parts) > 1 or is_always else None
    if index_name is not None and not is_text(index_name):
        raise ConversionError(
            "the name of the output is not UTF-8, and an index cannot refer to such files",
            hint="choose another name",
        )
    index = None
    if index_name is not None:
        index = index_name, (_make_metadata if is_always else index_of)(parts, plan.tied)
    # Files that are made for the output take precedence over files next to the source.
    is_model = where.file_name is not None
    documents: Mapping[str, bytes] = plan.documents if is_model else {}
    made = {*parts, *documents, index_name}
    beside: Mapping[str, str] = companions(sources) if is_model else {}
    carried = {
        name: path
        for name, path in beside.items()
        if name not in made and (not plan.translation or is_license(name))
    }
    # Files with quantization settings describe tensors that are stored in this way.
    stale = [*carried.keys() & SETTINGS_FILES.keys()]
    if stale and (plan.scheme or not list_scheme_tensors(plan.source.header)):
        carried = {name: path for name, path in carried.items() if name not in stale}
    inputs = tuple(input_files(plan))
    return Outcome(where, parts, index, carried, documents, inputs, plan.consulted)


@without_collection()
def _make_metadata(parts: Mapping[str, Layout], tied: Mapping[str, str]) -> bytes:
    from weightctl.formats.training.writing import metadata_of  # only one format needs it

    return metadata_of(parts, tied)


def describe_shards(plan: ShardPlan, out: str | os.PathLike[str]) -> Outcome:
    """Return the files that a plan for ranks makes, without checking the directory.

    Raises `ConversionError` if the format cannot store the plan, and `EncodingError` if its tensors
    are far larger than the files of the source, and `OutputError` if the URL cannot be written.
    """
    written = without_file_scheme(os.fspath(out))
    if not written.rstrip("/"):
        raise ConversionError(
            f"`{written}` is not a valid name of an output", hint="use the path of a directory"
        )
    if has_commits(written):
        raise OutputError(
            f"{written}: shards cannot be written to the Hugging Face Hub, which takes the bytes "
            "of a file in order",
            hint="write to a local directory, and upload it with `hf upload`",
        )
    if is_remote(written):
        written = refuse_place(parse_location(written).name)
    header = plan.source.header
    refuse_adapter(header, plan.format)
    suffix = FORMATS[plan.format].suffix
    paths = [
        _PATHS[plan.layout].format(rank=rank, suffix=suffix) for rank in range(len(plan.ranks))
    ]
    ranks = [tuple(shard.info for shard in shards) for shards in plan.ranks]
    _refuse_unfit(plan.format, ranks, plan.source.header.metadata)
    parts = dict(zip(paths, _list_layouts(plan, ranks), strict=True))
    read = dict.fromkeys(
        header.tensors[source.source]
        for shards in plan.ranks
        for shard in shards
        for source in shard.pieces
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
    where = Target(written.rstrip("/"), plan.format, MANIFEST)
    return Outcome(where, parts, None, carried, {}, inputs, {}, plan)


def _list_layouts(plan: ShardPlan, ranks: Sequence[tuple[TensorInfo, ...]]) -> list[Layout]:
    """Return the layout of each rank's file; ranks with the same tensors share one layout."""
    module = format_module(plan.format)
    made: list[tuple[tuple[TensorInfo, ...], Layout]] = []
    found: list[Layout] = []
    for infos in ranks:
        same = next((layout for others, layout in made if others == infos), None)
        if same is None:
            same = module.layout(infos, plan.metadata)
            made.append((infos, same))
        found.append(same)
    return found


def _refuse_unfit(
    format_name: str,
    ranks: Sequence[Sequence[TensorInfo]],
    metadata: Mapping[str, MetadataValue],
) -> None:
    if format_name not in {"safetensors", "gguf"}:
        raise ConversionError(
            "shards can only be written as safetensors or GGUF",
            hint="use --to safetensors or --to gguf (`to` in Python)",
        )
    infos = {info.name: info for rank in ranks for info in rank}
    if problems := format_module(format_name).unfit(list(infos.values()), metadata):
        first = list_first(problems, _FEW)
        raise ConversionError(
            "\n  ".join([f"{format_name} cannot store some of the tensors:", *first]),
            hint="convert the checkpoint first, or write the format of the input",
        )


@without_collection()
def identify_run(plan: Plan | ShardPlan, outcome: Outcome) -> Purpose:
    """Return the purpose of a run; only a run with the same plan and input can continue it."""
    # A codec may change from version to version.
    found = hashlib.sha256(__version__.encode())
    if isinstance(plan, Plan):
        # Steps such as a permutation of heads depend on the config, but their text does not contain
        # all of it.
        beside = config(plan.source.header.files)
        for row in (*_describe_rows(plan), beside):
            found.update(json.dumps(row, default=repr).encode() + b"\n")
    else:
        for text in _describe_shards(plan):
            found.update(text.encode("utf-8", "surrogatepass"))
    for name, layout in outcome.parts.items():
        found.update(json.dumps([name, layout.nbytes, len(layout.header)]).encode())
        found.update(layout.header)
    source = repr(fingerprint_source(plan.source)).encode("utf-8", "surrogatepass")
    return Purpose(found.hexdigest(), hashlib.sha256(source).hexdigest())


def _describe_rows(plan: Plan) -> Iterator[list[Any]]:
    seen: dict[int, str] = {}
    for item in plan.items:
        source, info = item.source, item.info
        yield [
            info.name, info.shape, info.encoding.name,
            source.name, source.shape, source.encoding.name,
            item.steps, item.part, plan.zero_nonfinite, _digest_importance(item, seen),
        ]  # fmt: skip


def _describe_shards(plan: ShardPlan) -> Iterator[str]:
    """Yield text that identifies a plan, apart from the headers of the files."""
    yield repr((plan.layout, plan.format, plan.grid, [*plan.tied.items()])) + "\n"
    for name, sharding in plan.shardings.items():
        yield f"{name!r} {sharding.strategy}\n"
    # Many tensors have the same parts, whose text is computed once.
    parts: dict[Part, str] = {}
    for shards in plan.ranks:
        lines: list[str] = []
        for shard in shards:
            for name, part in shard.pieces:
                if part not in parts:
                    parts[part] = repr(part)
                lines.append(f"{name!r} {parts[part]}")
            lines.append(shard.strategy)
        yield "\n".join([*lines, "", ""])


def _digest_importance(item: Item, seen: dict[int, str]) -> str:
    """Return the SHA-256 of the importance of a tensor's columns, which tensors may share."""
    weights = item.searched_with if item.importance is None else item.importance
    if weights is None:
        return ""
    if id(weights) not in seen:
        found = hashlib.sha256()
        for matrix in range(weights.shape[0]):
            found.update(weights[matrix].tobytes())
        seen[id(weights)] = found.hexdigest()
    return seen[id(weights)]


def _list_stored_tensors(plan: Plan) -> list[TensorInfo]:
    """Return the stored tensors that a plan reads, without duplicates."""
    return list(dict.fromkeys(info for item in plan.items for info in item.sources))


def input_files(plan: Plan) -> list[str]:
    """Return the paths of the checkpoint that a plan reads, and of the files next to it."""
    header = plan.source.header
    index = [header.listing] if header.listing else []
    read = [*header.files, *index]
    # A temporary name may be replaced by the final name at any time, so both count (see
    # `weightctl.write.replacing`).
    named = [path for path in map(without_temporary, read) if path not in read]
    return [*read, *named, *companions(header.files).values()]
