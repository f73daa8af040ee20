"""Functions for files of any storage, by path or URL: existence, size, listing and opening."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.storage.location import is_remote, parse_location, store_of
from weightctl.system.files import SEPARATORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.storage.base import Reader, Store


def _at(path: str) -> tuple[Store | None, str]:
    """Return the storage of a path or URL (None for local files), and its name without secrets."""
    return store_of(path), parse_location(path).name


def locate_model(text: str) -> str:
    """Return the path or URL of the model that a text names, as `find_model` does."""
    path = text.rstrip(SEPARATORS)
    is_usual = not os.path.basename(path).startswith("models--") and "manifests" not in path
    if is_usual and "://" not in path and os.path.lexists(path):
        return text
    from weightctl.storage.local_models import find_model  # only for names and URLs

    return find_model(text)


def name_model(path: str) -> str:
    """Return the name of a model of Ollama, whose files have none; otherwise the path."""
    if not os.path.basename(path).startswith("sha256-"):
        return path
    from weightctl.storage.local_models import name_blob  # only for these files

    return name_blob(path) or path


def open_reader(path: str, *, as_stored: bool = False) -> Reader:
    """Open the file at a path or URL for reading; raises `FormatError` if it cannot be opened.

    With `as_stored`, the bytes are those of the file, also if an edit of it is not complete.
    """
    store, path = _at(path)
    if store is not None:
        return store.open(path)
    if as_stored:
        from weightctl.storage.local import FileReader

        return FileReader(path)
    from weightctl.storage.pending_edits import open_local

    return open_local(path)


def is_pending(path: str) -> bool:
    """Whether a local file is part of an edit that may not be complete."""
    store, path = _at(path)
    if store is not None:
        return False
    from weightctl.storage.pending_edits import find_edited

    return find_edited(path) is not None


def read_start(path: str, nbytes: int) -> bytes:
    """Return the first `nbytes` of a file or pipe, or all of a smaller one.

    Raises `OSError` if a path cannot be read, and `FormatError` if a URL cannot be read.
    """
    store, path = _at(path)
    if store is None:
        with open(path, "rb") as pipe:
            return pipe.read(nbytes)
    return store.open(path).read(0, nbytes)


def exists(path: str) -> bool:
    """Whether a path or URL exists; a broken symbolic link counts as existing."""
    store, path = _at(path)
    return os.path.lexists(path) if store is None else store.find(path) is not None


def is_file(path: str) -> bool:
    """Whether a path or URL is that of a file."""
    store, path = _at(path)
    if store is None:
        return os.path.isfile(path)
    entry = store.find(path)
    return entry is not None and not entry.is_directory


def is_directory(path: str) -> bool:
    """Whether a path or URL is that of a directory, or a common prefix of objects."""
    store, path = _at(path)
    if store is None:
        return os.path.isdir(path)
    entry = store.find(path)
    return entry is not None and entry.is_directory


def list_names(directory: str) -> list[str]:
    """Return the sorted names in a directory; an empty path means the current directory.

    Raises `OSError` if a path cannot be listed, and `FormatError` if a URL cannot be listed.
    """
    store, directory = _at(directory)
    return sorted(os.listdir(directory or ".") if store is None else store.list_names(directory))


def file_size(path: str) -> int:
    """Return the size of a file in bytes.

    Raises `OSError` for a path and `FormatError` for a URL if the file does not exist.
    """
    store, path = _at(path)
    if store is None:
        return os.path.getsize(path)
    entry = store.find(path)
    return store.open(path).size if entry is None else entry.size


def prepare(paths: Sequence[str]) -> None:
    """Request the beginnings of remote files concurrently; do nothing for local files."""
    store = store_of(paths[0]) if paths else None
    if store is not None:
        store.prepare([parse_location(path).name for path in paths])


def refresh(path: str) -> None:
    """Remove a URL, which may have changed, from caches; do nothing for local paths."""
    if is_remote(path):
        store, path = _at(path)
        if store is not None:
            store.refresh(path)
