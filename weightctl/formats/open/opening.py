"""Opening of a path as a tree of weights."""

from __future__ import annotations

import os
from typing import cast

from weightctl.errors import ArgumentTypeError
from weightctl.formats import format_module
from weightctl.formats.open.parts import open_files
from weightctl.formats.sharded.opening import manifest_at, note_of_part, open_sharded
from weightctl.formats.training.opening import open_training
from weightctl.storage.files import refresh
from weightctl.storage.location import parse_location
from weightctl.weights.source import FileSource
from weightctl.weights.tree import Checkpoint


def open_weights(
    path: str | os.PathLike[str], format_name: str | None = None, *, partial: bool = False
) -> Checkpoint:
    """Open the checkpoint at a path as a tree; headers are parsed, and no tensor is read.

    The path is a file, any part of a split set, an index, a directory, or the manifest of a sharded
    checkpoint, which is opened with whole tensors, as checkpoints of distributed training are. The
    format is detected by content. If a
    directory contains several formats, `format_name` chooses one; by default the first of
    safetensors, GGUF and PyTorch is read, and `header.notes` reports it. With `partial`, parts of a
    set can be missing: the tree has the tensors of the parts that exist, and `header.missing` names
    the others. Raises `FormatError` if the checkpoint is invalid, and `ConversionError` if the
    format is not supported.
    """
    if format_name is not None:
        format_module(format_name)
    where = parse_location(_path(path)).name
    refresh(where)
    listing = manifest_at(where)
    if listing is not None:
        return Checkpoint(open_sharded(listing, format_name))
    training = open_training(where, format_name)
    if training is not None:
        return Checkpoint(training)
    header, files = open_files(where, format_name, partial=partial)
    if note := note_of_part(header.files):
        header = header._replace(notes=(*header.notes, note))
    return Checkpoint(FileSource(header, files))


def _path(given: object) -> str:
    if not isinstance(given, str | bytes | os.PathLike):
        raise ArgumentTypeError(
            f"open_weights needs a path, not a {type(given).__name__}",
            hint="use the path of a file or a directory",
        )
    return os.fsdecode(cast("str | bytes | os.PathLike[str]", given))
