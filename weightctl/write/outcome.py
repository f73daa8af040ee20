"""The files that a plan makes, known before they are written, and checks of their target.

The target is a local path, an object store, or a repository of the Hugging Face Hub.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError, FormatError, OutputError
from weightctl.formats.sharded.opening import MANIFEST, is_manifest
from weightctl.storage.files import exists, file_size, is_directory, is_file, list_names
from weightctl.storage.location import has_commits, is_remote
from weightctl.system.temporary import without_temporary
from weightctl.text.sizes import format_size
from weightctl.write.locks import find_leftovers
from weightctl.write.targets import (
    REPLACE_HINT,
    check_place,
    make_older_error,
    refuse_foreign,
    refuse_inputs,
    refuse_what_is_there,
    stream_name,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Collection, Iterator, Mapping

    from weightctl.formats.base import Layout
    from weightctl.formats.sharded.record import Manifest, SourceFingerprint
    from weightctl.sharding.plan import ShardPlan
    from weightctl.weights.info import TensorInfo
    from weightctl.write.targets import Target


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
        """Whether the output is a directory."""
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
        known = {*map(_follow_links, (*self.inputs, *self.consulted)), *self.files}
        there = (
            os.path.join(directory, name)
            for name in list_names(directory)
            if self.pattern.fullmatch(name)
        )
        return [path for path in there if _follow_links(path) not in known]

    def list_objects_to_remove(self) -> list[str]:
        """Return the objects of an earlier output that this one does not replace.

        Unlike a local directory, which is exchanged as a whole, objects are removed one by one.
        """
        if not self.is_directory or not is_directory(self.path):
            return self.list_replaced()
        new = {*self.names, *self.carried, *self.documents, self.where.file_name}
        names = [os.path.relpath(path, self.path) for path in _walk(self.path)]
        foreign = set(self._list_foreign(self.path))
        old = (name for name in names if name.partition("/")[0] not in foreign)
        return [os.path.join(self.path, name) for name in old if name not in {*new, *foreign}]

    def manifest(self, source: SourceFingerprint) -> Manifest:
        """Return the manifest of a sharded checkpoint without the digests of tensors."""
        plan = self.shards
        if plan is None:
            raise TypeError("only sharded checkpoints have a manifest")
        from weightctl.formats.sharded.record import Manifest, RankFile

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

    def refuse(self, *, force: bool) -> None:
        """Raise an error if the target cannot or must not be written.

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
        nbytes = self.nbytes + sum(map(file_size, self.carried.values()))
        nbytes += sum(map(len, self.documents.values()))
        # The files of a stopped run are continued or removed, so their space is available.
        occupied = sum(map(_count_occupied_bytes, find_leftovers(path, self.pattern)))
        check_place(os.path.dirname(path), path, nbytes - occupied)

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
        found = (os.path.relpath(path, directory) for path in _walk(directory))
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
            os.path.relpath(name, below or ".")
            for name in self.carried
            for below in ranks
            if not below or name.startswith(f"{below}/")
        }
        directories = {os.path.dirname(path) for path in paths}
        carried = (os.path.join(below, name) for below in directories for name in beside)
        return own.union(paths, carried)


def _follow_links(path: str) -> str:
    """Return the real path of a local file; a URL is unchanged."""
    return path if is_remote(path) else os.path.realpath(path)


def _count_occupied_bytes(path: str) -> int:
    """Return the number of bytes that a file, or all files of a directory, occupy on the disk."""
    paths = _walk(path) if os.path.isdir(path) and not os.path.islink(path) else [path]
    try:
        return sum(os.lstat(each).st_blocks * 512 for each in paths)
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
