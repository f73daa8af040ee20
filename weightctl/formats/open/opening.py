"""Opening of a path as a tree of weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from weightctl.errors import ArgumentTypeError, ConversionError, FormatError, MissingFileError
from weightctl.formats import format_module
from weightctl.formats.open.parts import open_files
from weightctl.formats.sharded.opening import manifest_at, note_of_part, open_sharded
from weightctl.formats.training.detection import DIRECTORY_OF_RANK, IN_MEGATRON, OPTIMIZER, SHARD
from weightctl.storage.files import (
    is_directory,
    is_file,
    list_names,
    locate_model,
    read_start,
    refresh,
)
from weightctl.system.registry import load_entry_points
from weightctl.weights.source import FileSource
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.weights.data import Source
    from weightctl.weights.protocol import Openable, Weights


_METADATA = ".metadata"
# Megatron's file of everything that is not divided among ranks.
_COMMON = "common.pt"
# The files that name the last checkpoint, and the pattern of its directory.
_TAGS = {"latest": "{}", "latest_checkpointed_iteration.txt": "iter_{:0>7}"}
_LONGEST = 256
# Files by which directories of other programs are recognized, and the group of entry points whose
# values are functions that open such a directory, or return None.
_MARKS = frozenset({"_METADATA", "_CHECKPOINT_METADATA"})
_DIRECTORIES = "weightctl.directories"
# Formats that users can ask for, and that such checkpoints are taken as.
_OF_TORCH = {None, "dcp"}
_OF_RANKS = {None, "dcp", "pytorch"}
_OF_SHARDS = {None, "dcp", "safetensors"}


def open_training(path: str, format_name: str | None = None) -> Source | None:
    """Open the training checkpoint at a path; None if there is none.

    `path` is a directory, the `.metadata` in it, or one of the files that `.metadata` describes.
    Raises `FormatError` if the checkpoint is invalid.
    """
    if not is_directory(path):
        listing = _find_metadata(path)
        return None if listing is None else _open_metadata(listing, format_name)
    try:
        names = list_names(path)
    except (FormatError, OSError):  # a web server cannot be listed
        return None
    return _open_latest(path, names, format_name) or _open_names(path, names, format_name)


def _open_names(path: str, names: Sequence[str], format_name: str | None) -> Source | None:
    """Open the checkpoint that the files `names` of a directory are; None if they are none."""
    if _METADATA in names:
        found = _open_metadata(os.path.join(path, _METADATA), format_name)
        if found is not None:
            return found
    if format_name is None and not _MARKS.isdisjoint(names):
        for each in load_entry_points(_DIRECTORIES):
            found = each.value(path, names)
            if found is not None:
                return cast("Source", found)
    return _open_ranks(path, names, format_name)


def _open_metadata(listing: str, format_name: str | None) -> Source | None:
    if format_name not in _OF_TORCH:
        return None
    from weightctl.formats.training.distributed import open_distributed

    source = open_distributed(listing)
    common = os.path.join(os.path.dirname(listing), _COMMON)
    if not any(map(IN_MEGATRON.search, source.header.tensors)) or not is_file(common):
        return source
    from weightctl.formats.training.megatron_core import rename_core

    return rename_core(source, common)


def _open_ranks(path: str, names: Sequence[str], format_name: str | None) -> Source | None:
    """Open the files of several ranks in a directory; None if there are none."""
    shards = [name for name in names if SHARD.fullmatch(name)]
    if shards and format_name in _OF_SHARDS:
        from weightctl.formats.training.sharded_safetensors import open_sharded_safetensors

        return open_sharded_safetensors(path, shards)
    if format_name not in _OF_RANKS:
        return None
    if any(map(OPTIMIZER.fullmatch, names)):
        from weightctl.formats.training.deepspeed import open_deepspeed

        return open_deepspeed(path, names)
    if any(map(DIRECTORY_OF_RANK.fullmatch, names)):
        from weightctl.formats.training.megatron import open_megatron

        return open_megatron(path, names)
    return None


def _open_latest(path: str, names: Sequence[str], format_name: str | None) -> Source | None:
    """Open the checkpoint that a file in the directory names as the last; None if none does."""
    for tag in filter(names.__contains__, _TAGS):
        where = os.path.join(path, tag)
        written = str(read_start(where, _LONGEST), "utf-8", "replace").strip()
        name = _TAGS[tag].format(written)
        below = os.path.join(path, name)
        if written and os.path.basename(name) == name and is_directory(below):
            return _open_names(below, list_names(below), format_name)
    return None


def _find_metadata(path: str) -> str | None:
    """Return the path of the metadata that describes a file; None if there is none."""
    if os.path.basename(path) == _METADATA:
        found = path
    elif path.endswith(".distcp"):
        found = os.path.join(os.path.dirname(path), _METADATA)
    else:
        return None
    return found if is_file(found) else None


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
    where = locate_model(_path(path))
    refresh(where)
    listing = manifest_at(where)
    if listing is not None:
        return Checkpoint(open_sharded(listing, format_name))
    training = open_training(where, format_name)
    if training is not None:
        return Checkpoint(training)
    try:
        header, files = open_files(where, format_name, partial=partial)
    except MissingFileError as error:
        from weightctl.storage.local_models import hint_for_name  # only on an error

        error.hint = (hint_for_name(where) if error.path == where else "") or error.hint
        raise
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


def open_source(
    source: Openable,
    format_name: str | None = None,
    *,
    partial: bool = False,
) -> Checkpoint:
    """Open what functions take: a path, a tree of weights, arrays by name, or a module.

    A module is one of weightctl or torch; that of a model of transformers has its config. Raises
    the errors of `open_weights`, `open_model` and `loaded_checkpoint`, and `ConversionError` for
    arguments that only apply to paths.
    """
    if isinstance(source, str | os.PathLike):
        return open_weights(source, format_name, partial=partial)
    if format_name is not None or partial:
        name = "partial" if format_name is None else "source_format"
        raise ConversionError(
            f"{name} only applies to a path, but the source is already open",
            hint=f"remove {name}, or pass it to `open_weights`",
        )
    from weightctl.weights.from_arrays import loaded_checkpoint  # only for trees and arrays

    if callable(getattr(type(source), "state_dict", None)):
        return _open_module(source)
    return loaded_checkpoint(cast("Weights | Mapping[str, Any]", source))


def _open_module(module: Any) -> Checkpoint:
    """Open the weights of a module; raises `StateDictError` if one of weightctl has no values."""
    from weightctl.formats.open.in_memory import is_model, open_model  # only for modules
    from weightctl.weights.from_arrays import as_checkpoint

    if not is_model(module):
        is_ours = hasattr(module, "raw_state_dict")  # by default, missing values are zeros there
        return as_checkpoint(module.state_dict(**({"auto_initialize": False} if is_ours else {})))
    opened = open_model(module)
    if opened.adapters:
        names = ", ".join(f"`{name}`" for name in opened.adapters)
        raise ConversionError(
            f"the model has adapters of PEFT that are not merged: {names}",
            hint="call `model.merge_adapter()` first; `to_gguf` and `to_directory` merge adapters",
        )
    return opened.weights
