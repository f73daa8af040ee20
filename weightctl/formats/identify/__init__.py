"""What a file is that no format recognises; loaded only when one is met."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.formats.cut import joined, unfinished
from weightctl.formats.identify import archives, binaries, texts
from weightctl.formats.identify.kinds import AGAIN, FORMATS_HINT, NAMES, STARTS, Stranger

if TYPE_CHECKING:
    from weightctl.storage.mapping import MappedFile

__all__ = ["Stranger", "stranger"]

_HEAD = 512
_LEAST = 9
# Each looks at one thing, and gives None where the file is none such.
_LOOKS = (
    binaries.zeros,
    archives.zipped,
    archives.tarred,
    texts.pointer,
    texts.page,
    texts.document,
    binaries.protobuf,
    binaries.translator,
    binaries.engine,
    binaries.table,
    binaries.openvino,
)


def stranger(file: MappedFile) -> Stranger:
    """Say what a file is that is no checkpoint, from little of it: a few pages, however large."""
    found = _kind(file)
    going = unfinished(file.path)
    return found._replace(hint=f"is the download complete? {going}") if going else found


def _kind(file: MappedFile) -> Stranger:
    if file.size == 0:
        return Stranger("empty", AGAIN)
    head = file.read(0, _HEAD)
    for at, magic, what, hint in STARTS:
        if head.startswith(magic, at):
            return Stranger(what, hint)
    found = next(filter(None, (look(file) for look in _LOOKS)), None)
    if found is not None:
        return found
    if file.size < _LEAST:
        return Stranger(f"{file.size} bytes long, too short for a checkpoint", AGAIN)
    unknown = Stranger(f"of no known kind; it begins with {head[:8].hex(' ')}", FORMATS_HINT)
    return texts.plain(file) or _by_name(file) or unknown


def _by_name(file: MappedFile) -> Stranger | None:
    base = os.path.basename(file.path).lower()
    for name, what, hint in NAMES:
        if name.fullmatch(base):
            return Stranger(what, hint)
    together = joined(file.path)
    return Stranger("a later piece of a file, as its name says", together) if together else None
