"""Which journals of edits this user wrote: their SHA-256 is kept outside of the edited directory.

A journal makes readers see other bytes than a file has, and may come with a download. So it is
applied only if it is known here.
"""

from __future__ import annotations

import os
from contextlib import suppress


def own_edit_path(directory: str) -> str:
    """Return the path of the file that knows the journal of an edit in a directory."""
    import hashlib  # opening a file without an edit does not need this

    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    place = os.path.realpath(directory or ".")
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:32]
    return os.path.join(state, "weightctl", "edits", name)


def note_own_edit(directory: str, digest: str) -> None:
    """Record the SHA-256 of a journal; raises `OSError` if that is not possible."""
    path = own_edit_path(directory)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())


def is_own_edit(directory: str, digest: str) -> bool:
    """Whether this user wrote the journal with this SHA-256, for this directory."""
    try:
        with open(own_edit_path(directory), encoding="ascii") as file:
            return file.read(len(digest) + 1).strip() == digest
    except (OSError, ValueError):
        return False


def forget_own_edit(directory: str) -> None:
    """Remove what `note_own_edit` recorded."""
    with suppress(OSError):
        os.unlink(own_edit_path(directory))
