"""The files of a checkpoint, and the ranges of bytes that a patch describes one by one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from weightctl.deltas.blocks import WORDS
from weightctl.errors import ConversionError, FormatError
from weightctl.formats.open.opening import open_weights
from weightctl.storage.files import exists, is_directory, list_names, open_reader
from weightctl.system.temporary import is_temporary
from weightctl.weights.tree import source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.storage.base import Reader
    from weightctl.weights.data import Source

# Directories of programs that manage downloads and versions; they are not part of a checkpoint.
_FOREIGN = {".cache", ".git"}
_MOST_FILES = 100_000


class ByteSpan(NamedTuple):
    """A range of a file: a tensor, or other bytes (an empty name). `word` is the size of a word."""

    tensor: str
    file: str
    offset: int
    length: int
    word: int


class CheckpointFiles(NamedTuple):
    """The open files of a checkpoint by name, and where its tensors are.

    Names are relative to the directory. `is_directory` is false for a checkpoint in one file.
    """

    path: str
    is_directory: bool
    files: dict[str, Reader]
    tensors: dict[str, ByteSpan]

    def spans(self, name: str) -> list[ByteSpan]:
        """Return the ranges of a file: its tensors, and the bytes between them."""
        own = sorted(
            (each for each in self.tensors.values() if each.file == name),
            key=lambda each: each.offset,
        )
        end, found = 0, list[ByteSpan]()
        for each in own:
            if each.offset < end or not each.length:
                continue  # it shares its bytes with another tensor
            if each.offset > end:
                found.append(ByteSpan("", name, end, each.offset - end, 1))
            found.append(each)
            end = each.offset + each.length
        if end < self.files[name].size:
            found.append(ByteSpan("", name, end, self.files[name].size - end, 1))
        return found

    def refuse_change(self) -> None:
        """Raise `FormatError` if a file was changed after it was opened."""
        for file in self.files.values():
            file.refuse_change()

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def open_checkpoint_files(path: str) -> CheckpointFiles:
    """Open all files of a checkpoint; the header is parsed, and no tensor is read.

    If the path is a directory, these are all files in it, also those without tensors. Raises
    `ConversionError` if the path is one of several files, and `FormatError` if the checkpoint
    cannot be opened.
    """
    source = source_of(open_weights(path))
    header = source.header
    if is_directory(path):
        names = {os.path.join(path, name): name for name in _walk(path)}
    elif len(header.files) == 1 and header.listing is None:
        names = {header.files[0]: os.path.basename(header.files[0])}
    else:
        raise ConversionError(
            f"{path} is one of several files of a checkpoint",
            hint="use the path of the directory, so that the patch has all files in it",
        )
    files = {name: open_reader(each) for each, name in names.items()}
    return CheckpointFiles(path, is_directory(path), files, _locate(source, names))


def open_plain_files(path: str, names: Sequence[str]) -> dict[str, Reader]:
    """Open the files of these names at a path, which is that of a directory or a single file.

    Raises `FormatError` if a file does not exist.
    """
    if len(names) == 1 and not is_directory(path):
        return {names[0]: open_reader(path)}
    found: dict[str, Reader] = {}
    for name in names:
        where = os.path.join(path, name)
        if not exists(where):
            raise FormatError(
                path, None, f"the patch needs the file {name}, which is not there",
                hint="use the checkpoint A of the command `weightctl diff A B --patch`",
            )  # fmt: skip
        found[name] = open_reader(where)
    return found


def _walk(directory: str, prefix: str = "") -> Iterator[str]:
    for count, name in enumerate(list_names(os.path.join(directory, prefix))):
        if count > _MOST_FILES:
            raise ConversionError(f"{directory} has too many files for a patch")
        inner = f"{prefix}{name}"
        if is_directory(os.path.join(directory, inner)):
            if name not in _FOREIGN:
                yield from _walk(directory, f"{inner}/")
        elif not is_temporary(name):
            yield inner


def _locate(source: Source, names: Mapping[str, str]) -> dict[str, ByteSpan]:
    """Return the ranges of tensors; those that are not stored as a range are left out."""
    found: dict[str, ByteSpan] = {}
    places = {os.path.normpath(path): name for path, name in names.items()}
    for name, info in source.header.tensors.items():
        stored = source.file_range(name)
        if stored is None:
            continue
        file = places.get(os.path.normpath(stored.file.path))
        size = info.encoding.size
        word = size if info.encoding.block == 1 and size in WORDS else 1
        if file is not None and not stored.nbytes % word:
            found[name] = ByteSpan(name, file, stored.offset, stored.nbytes, word)
    return found
