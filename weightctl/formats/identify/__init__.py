"""Identification of non-checkpoint files; imported only when there is one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.formats.identify import binaries, texts
from weightctl.formats.identify.kinds import AGAIN, FORMATS_HINT, NAMES, STARTS, NonCheckpointFile
from weightctl.formats.truncation import describe_join, describe_unfinished

if TYPE_CHECKING:
    from weightctl.storage.base import Reader

__all__ = ["NonCheckpointFile", "identify_file"]

_HEAD = 512
_LEAST = 9
# Each function identifies some kinds of files, and returns None for other files.
_LOOKS = (
    binaries.zeros,
    binaries.recognize_zip,
    binaries.recognize_tar,
    texts.pointer,
    texts.page,
    texts.document,
    binaries.protobuf,
    binaries.translator,
    binaries.engine,
    binaries.table,
    binaries.openvino,
)


def identify_file(file: Reader) -> NonCheckpointFile:
    """Identify a non-checkpoint file; only small parts of it are read."""
    found = _kind(file)
    going = describe_unfinished(file.path)
    return found._replace(hint=f"check that the download is complete; {going}") if going else found


def _kind(file: Reader) -> NonCheckpointFile:
    if file.size == 0:
        return NonCheckpointFile("empty", AGAIN)
    head = file.read(0, _HEAD)
    for at, magic, what, hint in STARTS:
        if head.startswith(magic, at):
            return NonCheckpointFile(what, hint)
    found = next(filter(None, (look(file) for look in _LOOKS)), None)
    if found is not None:
        return found
    if file.size < _LEAST:
        return NonCheckpointFile(f"only {file.size} bytes long, too short for a checkpoint", AGAIN)
    unknown = NonCheckpointFile(
        f"of an unsupported kind; it begins with {head[:8].hex(' ')}", FORMATS_HINT
    )
    return texts.plain(file) or _by_name(file) or unknown


def _by_name(file: Reader) -> NonCheckpointFile | None:
    base = os.path.basename(file.path).lower()
    for name, what, hint in NAMES:
        if name.fullmatch(base):
            return NonCheckpointFile(what, hint)
    together = describe_join(file.path)
    return (
        NonCheckpointFile("a later piece of a split file, according to its name", together)
        if together
        else None
    )
