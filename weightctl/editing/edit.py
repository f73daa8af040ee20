"""Edits a checkpoint: in place where the header has room, and else as new files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from weightctl.editing.changes import Changes
from weightctl.editing.local import write_files
from weightctl.editing.planning import plan_edit
from weightctl.formats.open.opening import open_weights
from weightctl.plan.metadata import Setting, list_settings
from weightctl.storage.completing_edits import complete_edit
from weightctl.storage.location import is_remote, parse_location
from weightctl.storage.pending_edits import edit_path
from weightctl.text.sizes import parse_size
from weightctl.weights.tree import header_of
from weightctl.write.claims import entrance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.editing.changes import ChangedModel
    from weightctl.editing.planning import EditPlan, FileEdit
    from weightctl.plan.rename import RenamingsLike


class Way(Enum):
    """How a file is edited."""

    UNCHANGED = "unchanged"
    HEADER = "header"
    REWRITE = "rewrite"
    UPLOAD = "upload"


class EditedPart(NamedTuple):
    """A file of an edit: how it is edited, and its sizes before and after."""

    path: str
    way: Way
    before: int
    after: int


@dataclass(frozen=True, slots=True, repr=False)
class Edited:
    """An edit that is planned or done.

    `written_bytes` are the bytes that were written, with the journal, or sent to a store.
    `shared_bytes` are the bytes of new files that share blocks with the old files, or that a store
    has copied. Both are None until the edit is done.
    """

    plan: EditPlan
    written_bytes: int | None = None
    shared_bytes: int | None = None

    def __repr__(self) -> str:
        state = "planned" if self.written_bytes is None else "done"
        return f"<Edited {self.plan.path}: {len(self.plan.changed_files)} files change, {state}>"

    @property
    def changes(self) -> ChangedModel:
        """The metadata that changes, and the new names of tensors."""
        return self.plan.model

    @property
    def parts(self) -> list[EditedPart]:
        """The files with tensors, and how each is edited."""
        return [
            EditedPart(
                each.path,
                _way_of(each),
                each.source.size,
                each.source.size if each.layout is None else each.size,
            )
            for each in self.plan.files
        ]

    @property
    def moved_bytes(self) -> int:
        """The bytes of data in files that are written again."""
        return sum(
            moved.nbytes
            for file in self.plan.changed_files
            if not file.in_place
            for moved in file.moved
        )

    def save(self, progress: Callable[[int], object] | None = None) -> Edited:
        """Carry out the edit; raises `OutputError` if a file cannot be written.

        After an error, or if the run is killed, the files are the old or the new ones. `progress`
        is called with the number of bytes of each step.
        """
        if self.written_bytes is not None:
            return self
        if is_remote(header_of(self.plan.weights).files[0]):
            from weightctl.editing.remote import upload_files

            return Edited(self.plan, *upload_files(self.plan, progress))
        return Edited(self.plan, *write_files(self.plan, progress))


def _way_of(file: FileEdit) -> Way:
    if file.layout is None:
        return Way.UNCHANGED
    if is_remote(file.path):
        return Way.UPLOAD
    return Way.HEADER if file.in_place else Way.REWRITE


def edit(
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, object] | Sequence[Setting] = (),
    unset: str | Sequence[str] = (),
    rename: RenamingsLike = (),
    drop: str | Sequence[str] = (),
    header_room: int | str = 0,
    source_format: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Edited:
    """Edit the files of a checkpoint, as `weightctl edit` does.

    `metadata` sets keys, and `unset` removes keys that match patterns. `rename` has rules for names
    of tensors: `"OLD=NEW"`, with a name or a regular expression, a mapping, or the path of a TOML
    file. `drop` are names or patterns of tensors to remove. If a header has no room for the
    changes, a new file is written, whose header has `header_room` left.

    An edit that an earlier run has begun is completed first. Returns the edit; if `dry_run` is set,
    nothing is written, and its `save` carries it out. Raises `ConversionError`, `FormatError` and
    `OutputError`, which are `WeightctlError`s with a hint; after an error, the files are unchanged.
    """
    where = parse_location(os.fspath(path)).name
    room = parse_size(header_room) if isinstance(header_room, str) else header_room
    changes = Changes(
        list_settings(metadata), _as_list(unset), _list_renamings(rename), _as_list(drop)
    )  # fmt: skip
    if is_remote(where):
        from weightctl.editing.remote import refuse_store

        refuse_store(where)
    elif not dry_run:
        finish_edit(where)
    planned = Edited(plan_edit(where, open_weights(where, source_format), changes, room=room))
    return planned if dry_run else planned.save(progress)


def finish_edit(path: str) -> bool:
    """Complete an edit that an earlier run has begun; return whether there was one."""
    if is_remote(path):
        return False
    real = os.path.realpath(path)
    directory = real if os.path.isdir(real) else os.path.dirname(real)
    if not os.path.isdir(directory):
        return False
    with entrance(directory):
        is_pending = os.path.lexists(edit_path(directory))
        complete_edit(directory)
    return is_pending


def _as_list(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


def _list_renamings(given: RenamingsLike) -> Sequence[RenamingsLike]:
    if not given:
        return []
    return [given] if isinstance(given, str | os.PathLike | Mapping) else given
