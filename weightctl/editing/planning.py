"""Plans an edit: what changes in each file, and whether its header can be changed in place."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.editing.changes import apply_changes
from weightctl.editing.headers import layout_at, layout_for_sharing, move_resized
from weightctl.errors import ConversionError, OutputError
from weightctl.formats import format_module
from weightctl.formats.base import SPLIT_KEYS
from weightctl.storage.files import open_reader
from weightctl.storage.location import is_remote
from weightctl.text.wording import list_first
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.editing.changes import ChangedModel, Changes
    from weightctl.formats.base import Layout
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.tree import Checkpoint

_FORMATS = ("gguf", "safetensors")
# Files that are named by the hash of their content, in the caches of the Hub and of Ollama.
_HASH = re.compile(r"(sha256[-:])?([0-9a-f]{40}|[0-9a-f]{64})")
_TOTAL = "total_size"
_FEW = 5


class Moved(NamedTuple):
    """A range of the old file, and its offset in the new one."""

    old: int
    new: int
    nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class FileEdit:
    """A file of an edit: its layout afterwards, and its old size.

    If `in_place` is set, the data stays where it is, and `size` is the new size. Otherwise `moved`
    are the ranges of the old file that the new file has. `layout` is None if nothing changes.
    """

    path: str
    source: Reader
    layout: Layout | None = None
    in_place: bool = False
    start: int = 0
    size: int = 0
    moved: tuple[Moved, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class EditPlan:
    """An edit that can be carried out; `index` is the path and the new content of an index."""

    path: str
    weights: Checkpoint
    model: ChangedModel
    files: tuple[FileEdit, ...]
    index: tuple[str, bytes] | None

    @property
    def changed_files(self) -> list[FileEdit]:
        return [file for file in self.files if file.layout is not None]

    @property
    def format(self) -> str:
        return header_of(self.weights).format


def plan_edit(path: str, weights: Checkpoint, changes: Changes, *, room: int) -> EditPlan:
    """Plan an edit of the files of an open checkpoint; nothing is written.

    `room` is the least room in the header of files that cannot be changed in place. Raises
    `ConversionError` if a change does not apply or the format cannot be edited, and `OutputError`
    if the files must not be changed.
    """
    header = header_of(weights)
    _refuse(path, header)
    model = apply_changes(weights, changes)
    index = _change_index(header, model)
    read = _read_headers(header)
    values = _list_values(header, [own for _, own in read], model)
    files = tuple(
        _plan_file(
            header.files[number],
            source,
            own,
            model,
            values[number],
            room=room,
            has_index=header.listing is not None,
        )
        for number, (source, own) in enumerate(read)
    )
    return EditPlan(path, weights, model, files, index)


def _refuse(path: str, header: Header) -> None:
    if header.format not in _FORMATS:
        raise ConversionError(
            f"{path} is in {header.format} format, which cannot be edited",
            hint="`weightctl convert` writes an edited copy, with the options --set, --unset, "
            "--rename and --exclude",
        )
    if header.shardings or header.big_endian:
        what = "a sharded checkpoint" if header.shardings else "a big-endian file"
        raise ConversionError(
            f"{path} is {what}, which cannot be edited",
            hint="`weightctl convert` writes an edited copy of it",
        )
    if is_remote(header.files[0]):
        return
    real = [os.path.realpath(each) for each in header.files]
    for name, target in zip(header.files, real, strict=True):
        if _HASH.fullmatch(os.path.basename(target)):
            raise OutputError(
                f"{name} is in a cache, in which the name of a file is the hash of its content",
                hint="`weightctl convert` writes an edited copy",
            )
    if len({*map(os.path.dirname, real)}) != 1:
        raise OutputError(
            f"the files of {path} are in several directories, so they cannot be edited together",
            hint="`weightctl convert` writes an edited copy",
        )


def _read_headers(header: Header) -> list[tuple[Reader, Header]]:
    """Return each file of a checkpoint, with its own header."""
    module = format_module(header.format)
    files = [open_reader(path) for path in header.files]
    return [(file, module.read(file)) for file in files]


def _list_values(
    header: Header, parts: Sequence[Header], model: ChangedModel
) -> list[dict[str, MetadataValue]]:
    """Return the values that change in each file: where the key is, or else in the first file."""
    own = [each.metadata for each in parts]
    listed: Any = _read_document(header).get("metadata") or {}
    values: list[dict[str, MetadataValue]] = [{} for _ in own]
    for key, value in model.values.items():
        holders = [number for number, metadata in enumerate(own) if key in metadata]
        for number in holders or ([] if key in listed else [0]):
            values[number][key] = value
    if model.dropped_names and SPLIT_KEYS[2] in own[0]:
        count = own[0][SPLIT_KEYS[2]]._replace(content=len(model.plan.items))
        for each in values:
            each[SPLIT_KEYS[2]] = count
    return values


def _plan_file(
    path: str,
    source: Reader,
    own: Header,
    model: ChangedModel,
    values: Mapping[str, MetadataValue],
    *,
    room: int,
    has_index: bool,
) -> FileEdit:
    kept = [name for name in own.tensors if model.names[name] is not None]
    is_same = kept == [*own.tensors] and all(model.names[name] == name for name in kept)
    if not kept and own.tensors and has_index:
        raise ConversionError(
            f"all tensors of {path} would be dropped, and an index must not have empty parts",
            hint="`weightctl convert` with --exclude writes a copy with fewer parts",
        )
    if is_same and not values and not model.removed & own.metadata.keys():
        return FileEdit(path, source)
    infos = {name: own.tensors[name]._replace(name=model.names[name] or "") for name in kept}
    places = sorted(kept, key=lambda name: (own.extents[name].offset, own.extents[name].nbytes))
    left = {key: value for key, value in own.metadata.items() if key not in model.removed}
    metadata: Mapping[str, MetadataValue] = {**left, **values}
    if own.format == "gguf":
        metadata = move_resized(left, values)
    tensors, ordered = list(infos.values()), [infos[name] for name in places]
    _refuse_unfit(own.format, tensors, metadata)
    start = min((each.offset for each in own.extents.values()), default=-1)
    offsets = [own.extents[name].offset for name in places]
    fitting = layout_at(own.format, tensors, ordered, metadata, start)
    if fitting is not None and [*fitting.offsets] == offsets and _is_editable(path):
        size = source.size if len(kept) == len(own.tensors) else min(source.size, fitting.nbytes)
        return FileEdit(path, source, fitting, True, start, size)
    layout = layout_for_sharing(own.format, tensors, ordered, metadata, offsets=offsets, room=room)
    moved = _list_moved(ordered, offsets, layout, own.alignment)
    return FileEdit(path, source, layout, False, start, layout.nbytes, moved)


def _refuse_unfit(
    format_name: str, tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue]
) -> None:
    if problems := format_module(format_name).unfit(tensors, metadata):
        raise ConversionError(
            "\n  ".join([f"{format_name} cannot store some of the tensors:",
                         *list_first(problems, _FEW)]),
            hint="to leave a tensor out, use --drop (drop in Python)",
        )  # fmt: skip


def _is_editable(path: str) -> bool:
    """Whether a file can be changed in place: it is local, and has no other name."""
    return not is_remote(path) and os.stat(path).st_nlink == 1


def _list_moved(
    ordered: Sequence[TensorInfo], offsets: Sequence[int], layout: Layout, alignment: int
) -> tuple[Moved, ...]:
    """Return the ranges that move; tensors that stay side by side are one range."""
    moved: list[Moved] = []
    for info, old, new in zip(ordered, offsets, layout.offsets, strict=True):
        last = moved[-1] if moved else None
        gap = old - (last.old + last.nbytes) if last else -1
        if last and 0 <= gap < max(alignment, 1) and new - last.new == old - last.old:
            moved[-1] = last._replace(nbytes=old + info.nbytes - last.old)
        else:
            moved.append(Moved(old, new, info.nbytes))
    return tuple(moved)


def _read_document(header: Header) -> dict[str, Any]:
    """Return the JSON of the index; empty if there is none."""
    if header.listing is None:
        return {}
    file = open_reader(header.listing)
    document: dict[str, Any] = json.loads(file.read(0, file.size))
    return document


def _change_index(header: Header, model: ChangedModel) -> tuple[str, bytes] | None:
    """Return the path and new content of the index; None if there is none, or nothing changes."""
    document = _read_document(header)
    if not document or header.listing is None:
        return None
    weight_map: dict[str, str] = {}
    for name, part in document["weight_map"].items():
        new = model.names.get(name, name)
        if new is not None:
            weight_map[new] = part
    made = {**document, "weight_map": weight_map}
    if isinstance(document.get("metadata"), dict):
        stated = document["metadata"]
        metadata = {key: stated[key] for key in stated if key not in model.removed}
        metadata |= {key: value.content for key, value in model.values.items() if key in stated}
        if model.dropped_names and _TOTAL in metadata:
            metadata[_TOTAL] = sum(item.info.nbytes for item in model.plan.items)
        made["metadata"] = metadata
    if made == document:
        return None
    return header.listing, (json.dumps(made, indent=2, ensure_ascii=False) + "\n").encode()
