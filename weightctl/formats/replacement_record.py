"""The record of the replacement of a set of files, with the names of the new files.

Several files cannot be renamed in one step, but the record can. As soon as it exists, the new set
is valid; its files have temporary names until they are renamed. If a run is killed in between,
readers find the new files through the record, and the next run continues.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats import INDEX_SUFFIX
from weightctl.formats.open.index import read_index
from weightctl.formats.open.sets import PartSet, part_of
from weightctl.formats.recognition import recognize_format
from weightctl.storage.files import exists, open_reader
from weightctl.system.temporary import SWITCH, loadable_name, without_temporary
from weightctl.text.untyped import is_list, is_object, is_text_map
from weightctl.weights.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_SIZE = 100_000_000


class Switch(NamedTuple):
    """A replacement whose record exists: the new files are valid, and the old ones are not.

    `path` is that of the record. `new` maps the name of each new file to its temporary name; the
    main file of the set comes first. `old` are the names of files to remove, and `decided` is the
    time of the record, in nanoseconds.
    """

    path: str
    new: Mapping[str, str]
    old: tuple[str, ...]
    decided: int

    @property
    def names(self) -> set[str]:
        """The names of the old and new files, without temporary names."""
        return {*self.new, *self.old}

    @property
    def leading(self) -> str:
        """The name of the main new file."""
        return next(iter(self.new))

    def path_of(self, name: str) -> str:
        """Return the path of a file beside the record."""
        return os.path.join(os.path.dirname(self.path), name)

    def current(self, name: str) -> str:
        """Return the current path of a new file, which is temporary or final."""
        temporary = self.path_of(self.new[name])
        return temporary if os.path.lexists(temporary) else self.path_of(name)

    def list_changed(self) -> list[str]:
        """Return the names of files that were changed after the record was written."""
        return [name for name in sorted(self.names) if self._has_changed(name)]

    def _has_changed(self, name: str) -> bool:
        path = self.path_of(name)
        try:
            if os.lstat(path).st_ctime_ns <= self.decided or name not in self.new:
                return os.lstat(path).st_ctime_ns > self.decided
        except FileNotFoundError:
            return False
        own = self.path_of(self.new[name])
        # Without hard links, the new file no longer has a second name.
        return os.path.lexists(own) and not any(
            is_same_file(path, other) for other in (own, loadable_name(own))
        )

    def parts(self) -> PartSet:
        """Return the new set; raises `FormatError` if its files were changed afterwards."""
        if changed := self.list_changed():
            raise FormatError(
                self.path_of(changed[0]),
                None,
                "a run that was replacing this checkpoint was stopped, and this file was changed "
                "afterwards",
                hint=f"to read the files as they are, remove {self.path}; to replace them, run the "
                "stopped command again with --force (force=True in Python)",
            )
        index = self.leading if self.leading.endswith(INDEX_SUFFIX) else None
        paths = {name: self.current(name) for name in self.new if name != index}
        listed = None
        if index is not None:
            read = read_index(self.current(index))
            names = {name: os.path.basename(path) for name, path in paths.items()}
            weight_map = {tensor: names.get(name, name) for tensor, name in read.weight_map.items()}
            listed = read._replace(weight_map=weight_map)
        first = next(iter(paths.values()))
        note = (
            f"the run that is replacing {_set_name(self.leading)} has not finished: the new "
            "files are read under their temporary names; if the run was stopped, run the same "
            "command again to finish it"
        )
        return PartSet(recognize_format(open_reader(first)), tuple(paths.values()), listed, (note,))


def is_same_file(path: str, other: str) -> bool:
    """Whether two paths are names of the same existing file."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def is_switch(name: str) -> bool:
    """Whether a file has the name of a record of a replacement."""
    return name.endswith(SWITCH)


def switch_path(path: str) -> str:
    """Return the path of the record for the set of a file: a part, an index or a single file."""
    directory, base = os.path.split(path)
    return os.path.join(directory, _set_name(base) + SWITCH)


def _set_name(name: str) -> str:
    # Only the end matters: with --to, a set can have any suffix.
    if name.endswith(INDEX_SUFFIX):
        return name.removesuffix(INDEX_SUFFIX)
    part = part_of(name)
    return name if part is None else part["stem"] + part["suffix"]


def switch_of(path: str) -> Switch | None:
    """Return the replacement that a file is part of, new or old; None if there is none."""
    record = switch_path(path)
    if not exists(record):
        return None
    switch = read_switch(record)
    return switch if os.path.basename(path) in switch.names else None


def switch_bytes(new: Mapping[str, str], old: tuple[str, ...]) -> bytes:
    """Return the content of a record."""
    return (json.dumps({"new": dict(new), "old": old}, indent=2) + "\n").encode("ascii")


def read_switch(path: str) -> Switch:
    """Read a record; raises `FormatError` if it is invalid, or names files of another set."""
    file = open_reader(path)
    document = read_json(file, _MAX_SIZE)
    new, old = (document.get("new"), document.get("old")) if is_object(document) else (None, None)
    own = os.path.basename(path).removesuffix(SWITCH)
    if (
        is_text_map(new)
        and new
        and is_list(old)
        and all(isinstance(name, str) and _set_name(name) == own for name in (*new, *old))
        and all(_is_temporary_of(temporary, name) for name, temporary in new.items())
    ):
        return Switch(path, new, tuple(old), _read_change_time(path))
    raise FormatError(
        path,
        None,
        "this file has the name of the journal that weightctl writes while it replaces a "
        "checkpoint, but it is not a valid journal",
        hint="move the file to another directory, then run the command again",
    )


def _read_change_time(path: str) -> int:
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:  # the run has just ended
        return 0


def _is_temporary_of(temporary: str, name: str) -> bool:
    return temporary != name and without_temporary(temporary) == name
