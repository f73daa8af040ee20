"""The files that a plan makes, described without reading tensors, and checks of their target.

The target is a local path, an object store, or a repository of the Hugging Face Hub.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError, FormatError, OutputError
from weightctl.formats import FORMATS, find_format, format_module
from weightctl.formats.base import is_text
from weightctl.formats.huggingface import companions, config, file_name, is_license
from weightctl.formats.open.index import index_of
from weightctl.formats.sharded.opening import MANIFEST, is_manifest
from weightctl.formats.sharded.records import fingerprint_source
from weightctl.plan.plan import Plan, refuse_adapter
from weightctl.schemes.matching import list_scheme_tensors
from weightctl.schemes.settings import SETTINGS_FILES
from weightctl.storage.files import exists, file_size, is_directory, is_file, list_names
from weightctl.storage.location import (
    has_commits,
    is_remote,
    parse_location,
    without_file_scheme,
)
from weightctl.system import __version__
from weightctl.system.files import SEPARATORS, count_allocated, fold_name, fold_path, relative_name
from weightctl.system.processes import without_collection
from weightctl.system.temporary import without_temporary
from weightctl.text.sizes import format_size
from weightctl.text.wording import list_first
from weightctl.weights.readable import refuse_expanded
from weightctl.write.journal import Purpose
from weightctl.write.locks import find_leftovers
from weightctl.write.targets import (
    REPLACE_HINT,
    Target,
    check_place,
    make_older_error,
    refuse_foreign,
    refuse_inputs,
    refuse_place,
    refuse_what_is_there,
    stream_name,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from weightctl.formats.base import Layout
    from weightctl.formats.sharded.records import Manifest, SourceFingerprint
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
    header = plan.source.header
    if where.file_name is not None:
        where = where._replace(file_name=file_name(header, where.file_name, plan.documents))
    layouts = plan.layouts()
    refuse_expanded(plan.source, _list_stored_tensors(plan))
    parts = dict(zip(where.names(len(layouts)), layouts, strict=True))
    is_always = bool(find_format(where.format).listing)
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
    beside: Mapping[str, str] = companions(header) if is_model else {}
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
    if not written.rstrip(SEPARATORS):
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
    beside = companions(header)
    carried = {
        posixpath.join(directory, name): source
        for directory in dict.fromkeys(map(os.path.dirname, paths))
        for name, source in beside.items()
        if name != MANIFEST
    }
    listing = [header.listing] if header.listing else []
    inputs = (*header.files, *listing, *beside.values())
    where = Target(written.rstrip(SEPARATORS), plan.format, MANIFEST)
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
        beside = config(plan.source.header)
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
    # The squares stand for all products, which have gigabytes.
    return seen[id(weights)] + " with error feedback" * (item.hessian is not None)


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
    return [*read, *named, *companions(header).values()]


@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
    """The files that a plan makes at a target, with their exact sizes.

    `parts` are the files with tensors. The names of all files are paths relative to the target's
    directory. `index` is the name and content of the index, None if there is none. `carried` maps
    names to the paths of files next to the source that are copied, and `documents` maps names to
    the contents of other files. `inputs` are the paths of input files, and `consulted` maps the
    paths of other files that were read to their roles; none of these is overwritten. `shards` is
    the plan of a sharded checkpoint, otherwise None.
    """

    where: Target
    parts: Mapping[str, Layout]
    index: tuple[str, bytes] | None
    carried: Mapping[str, str]
    documents: Mapping[str, bytes]
    inputs: tuple[str, ...]
    consulted: Mapping[str, str]
    shards: ShardPlan | None = None

    def __repr__(self) -> str:
        size = format_size(self.nbytes)
        return f"<Outcome at {self.where.path}: {len(self.parts)} files, {size}>"

    @property
    def path(self) -> str:
        """The real path of the file or directory; for numbered parts, their common path."""
        return _follow_links(self.where.path)

    @property
    def is_directory(self) -> bool:
        return self.where.file_name is not None

    @property
    def nbytes(self) -> int:
        """The number of bytes in the checkpoint's files."""
        listed = len(self.index[1]) if self.index else 0
        return sum(layout.nbytes for layout in self.parts.values()) + listed

    @property
    def tensor_bytes(self) -> int:
        """The number of bytes of all tensors, which is the sum of all calls of `progress`."""
        return sum(info.nbytes for info in self.tensors)

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """All tensors in the order of the files and their offsets."""
        return tuple(chain.from_iterable(layout.tensors for layout in self.parts.values()))

    @property
    def names(self) -> list[str]:
        """The names of the checkpoint's files; the index, if any, is the first."""
        return [*([self.index[0]] if self.index else ()), *self.parts]

    @property
    def files(self) -> list[str]:
        """The real paths of the checkpoint's files, in the order of `names`."""
        return [self.where.path] if self.where.is_stream else [*map(self.path_of, self.names)]

    def path_of(self, name: str) -> str:
        """Return the real path that a file of the output will have."""
        if self.is_directory:
            return os.path.join(self.path, name)
        if len(self.parts) == 1 and name in self.parts:
            return self.path
        return os.path.join(os.path.dirname(self.path), name)

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The pattern of the names of all possible parts; None for a directory."""
        return None if self.is_directory else self.where.pattern()

    def list_replaced(self) -> list[str]:
        """Return files next to the output that readers would assign to the same checkpoint.

        These are the files of a checkpoint with another number of parts. Inputs are not listed.
        """
        directory = os.path.dirname(self.path)
        if self.where.is_stream or self.pattern is None or not is_directory(directory):
            return []
        known = {*map(_fold_path, (*self.inputs, *self.consulted, *self.files))}
        there = (
            os.path.join(directory, name)
            for name in list_names(directory)
            if self.pattern.fullmatch(name)
        )
        return [path for path in there if _fold_path(path) not in known]

    def list_objects_to_remove(self) -> list[str]:
        """Return the objects of an earlier output that this one does not replace.

        Unlike a local directory, which is exchanged as a whole, objects are removed one by one.
        """
        if not self.is_directory or not is_directory(self.path):
            return self.list_replaced()
        new = {*self.names, *self.carried, *self.documents, self.where.file_name}
        names = [relative_name(path, self.path) for path in _walk(self.path)]
        foreign = set(self._list_foreign(self.path))
        old = (name for name in names if name.partition("/")[0] not in foreign)
        return [os.path.join(self.path, name) for name in old if name not in {*new, *foreign}]

    def manifest(self, source: SourceFingerprint) -> Manifest:
        """Return the manifest of a sharded checkpoint without the digests of tensors."""
        plan = self.shards
        if plan is None:
            raise TypeError("only sharded checkpoints have a manifest")
        from weightctl.formats.sharded.records import Manifest, RankFile

        return Manifest(
            layout=plan.layout,
            format=plan.format,
            grid=plan.grid,
            source=source,
            tensors={name: plan.source.header.tensors[name] for name in plan.shardings},
            shardings=plan.shardings,
            aliases=plan.tied,
            files=tuple(map(RankFile, self.parts, plan.ranks)),
        )

    def refuse(self, *, force: bool, is_sized: bool = True) -> None:
        """Raise an error if the target cannot or must not be written.

        If `is_sized` is false, the sizes may still change, so the free space is not checked.

        Raises `ConversionError` for several files into one pipe, and otherwise `OutputError`.
        """
        if self.where.is_stream:
            if len(self.parts) > 1:
                raise ConversionError(
                    f"{stream_name(self.where.path)} accepts one file, but the output would have "
                    f"{len(self.parts)} files",
                    hint="remove --max-shard-size (max_shard_size in Python), or write to a file",
                )
            return
        path = self.path
        if has_commits(path):
            refuse_files(self, force=force)
            return
        for each in [path] if self.is_directory else self.files:
            refuse_inputs(each, self.inputs, self.consulted)
        if self.is_directory:
            self.refuse_contents(path, force=force)
        else:
            refuse_what_is_there(self.files, force=force)
        if not force and (rivals := self.list_replaced()):
            raise make_older_error(rivals[0])
        if is_remote(path):
            return
        spellings: dict[str, str] = {}
        for name in (*self.names, *self.carried, *self.documents):
            if (other := spellings.setdefault(fold_name(name), name)) != name:
                raise OutputError(
                    f"{other} and {name} would be the same file in {path}, since this system does "
                    "not distinguish upper and lower case",
                    hint="rename one of them in the source",
                )
        nbytes = self.nbytes + sum(map(file_size, self.carried.values()))
        nbytes += sum(map(len, self.documents.values()))
        # The files of a stopped run are continued or removed, so their space is available.
        occupied = sum(map(_count_occupied_bytes, find_leftovers(path, self.pattern)))
        check_place(os.path.dirname(path), path, nbytes - occupied if is_sized else 0)

    def refuse_contents(self, directory: str, *, force: bool) -> None:
        """Raise `OutputError` if the output must not replace the contents of a directory.

        Even with `force`, a directory is only replaced if all its files have names that the output
        can have, or are those of a sharded checkpoint for other ranks.
        """
        path = self.path
        if not is_directory(directory):
            if exists(directory):
                raise OutputError(
                    f"{path} exists and is not a directory, so the output cannot be written there",
                    hint="choose another path for the output",
                )
            return
        if not list_names(directory):
            return
        foreign = self._list_foreign(directory)
        if foreign and force:
            refuse_foreign(path, foreign)
        if not force:
            hint = REPLACE_HINT
            if foreign:
                hint = f"choose another directory: --force does not replace {foreign[0]}"
            raise OutputError(f"{path} exists and is not empty", hint=hint)

    def _list_foreign(self, directory: str) -> list[str]:
        """Return the names in a directory that the output does not have and cannot have."""
        found = (relative_name(path, directory) for path in _walk(directory))
        if self.shards is None:
            folders = tuple({f"{name.partition('/')[0]}/" for name in self.carried if "/" in name})
            top = [name for name in list_names(directory) if not self.has_name(name)]
            inside = (name for name in found if name.startswith(folders))
            return [
                *(name for name in top if f"{name}/" not in folders),
                *(name for name in inside if name not in self.carried),
            ]
        names = self._list_replaceable(directory)
        return sorted(name for name in found if name not in names)

    def has_name(self, name: str) -> bool:
        """Whether an output in this directory has, or could have, a file of this name."""
        name = without_temporary(name)
        is_beside = name in self.carried or name in self.documents
        return is_beside or self.where.pattern().fullmatch(name) is not None

    def _list_replaceable(self, directory: str) -> set[str]:
        """Return the names of the files in a directory that a sharded checkpoint may replace.

        These are its own files and, if there is a sharded checkpoint for other ranks, the files
        that its manifest lists, and files next to them with names that are also carried here.
        """
        own = {MANIFEST, *self.parts, *self.carried}
        listing = os.path.join(directory, MANIFEST)
        if not is_file(listing) or not is_manifest(listing):
            return own
        from weightctl.formats.sharded.manifest import read_manifest

        try:
            paths = [file.path for file in read_manifest(listing).files]
        except FormatError:
            return own
        ranks = set(map(os.path.dirname, self.parts))
        beside = {
            posixpath.relpath(name, below or ".")
            for name in self.carried
            for below in ranks
            if not below or name.startswith(f"{below}/")
        }
        directories = {os.path.dirname(path) for path in paths}
        carried = (posixpath.join(below, name) for below in directories for name in beside)
        return own.union(paths, carried)


def _follow_links(path: str) -> str:
    """Return the real path of a local file; a URL is unchanged."""
    return path if is_remote(path) else os.path.realpath(path)


def _fold_path(path: str) -> str:
    """Return what all paths of a local file have in common; a URL is unchanged."""
    return path if is_remote(path) else fold_path(path)


def _count_occupied_bytes(path: str) -> int:
    """Return the number of bytes that a file, or all files of a directory, occupy on the disk."""
    paths = _walk(path) if os.path.isdir(path) and not os.path.islink(path) else [path]
    try:
        return sum(map(count_allocated, paths))
    except OSError:  # it was removed in the meantime
        return 0


def _walk(directory: str) -> Iterator[str]:
    if is_remote(directory):
        for path in (os.path.join(directory, name) for name in list_names(directory)):
            yield from _walk(path) if is_directory(path) else (path,)
        return
    for parent, _, names in os.walk(directory):
        yield from (os.path.join(parent, name) for name in names)


# Repositories of the Hugging Face Hub, whose modules most runs do not load.


def is_kept(path: str, files: Collection[str]) -> bool:
    """Whether the repository keeps its own file of this path: an existing model card."""
    return os.path.basename(path) == "README.md" and path in files


def list_replaced_files(outcome: Outcome, files: Collection[str]) -> list[str]:
    """Return files of a repository that readers would assign to the output.

    These are parts of an earlier output that this output does not have.
    """
    from weightctl.storage.remote.hub_url import parse_hub_url

    directory = os.path.dirname(parse_hub_url(outcome.path_of(outcome.names[0])).path)
    new = {parse_hub_url(outcome.path_of(name)).path for name in outcome.names}
    pattern = outcome.where.pattern()
    return sorted(
        path
        for path in files
        if os.path.dirname(path) == directory
        and pattern.fullmatch(os.path.basename(path))
        and path not in new
    )


def refuse_files(outcome: Outcome, *, force: bool) -> None:
    """Raise `OutputError` if an output cannot be committed, or replaces files without `force`.

    Other files in the repository are kept.
    """
    from weightctl.storage.remote.hub_commits import ModelRepository
    from weightctl.storage.remote.hub_url import parse_hub_url

    repository = ModelRepository(outcome.path, outcome.where.commit)
    repository.refuse()
    commit = repository.find_commit()
    if commit is None:
        return
    files = commit.files
    beside = [*outcome.carried, *outcome.documents] if outcome.is_directory else []
    urls = {parse_hub_url(url).path: url for url in map(outcome.path_of, (*outcome.names, *beside))}
    old = list_replaced_files(outcome, files)
    inputs = {parse_hub_url(url) for url in outcome.inputs if has_commits(url)}
    for name in outcome.names:
        if parse_hub_url(outcome.path_of(name)) in inputs:
            raise OutputError(
                f"{outcome.path_of(name)} is the input itself",
                hint="choose another name for the output",
            )
    for path, url in urls.items():
        if path in commit.directories:
            raise OutputError(f"{url} is a directory", hint="choose another name for the output")
        if path in files and not force and not is_kept(path, files):
            raise OutputError(f"{url} exists", hint=REPLACE_HINT)
    for path in old:
        if not force:
            raise make_older_error(f"{path} in {outcome.path}")
        if repository.place._replace(path=path) in inputs:
            raise OutputError(
                f"{path} in {outcome.path} is an input, which the output would replace",
                hint="choose another name for the output",
            )
