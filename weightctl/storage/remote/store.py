"""What the storages of remote files share: listings, and answers that are kept for a while."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from obstore import exceptions

from weightctl.errors import FormatError, OutputError
from weightctl.storage.base import Entry
from weightctl.storage.remote.reader import RemoteObject, RemoteReader
from weightctl.storage.remote.requests import repeat, translate_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.storage.base import Bytes, Reader, Uploads
    from weightctl.storage.remote.reader import Fetch

__all__ = ["RemoteEntry", "RemoteStore"]

# Names that exist beside local files only, so that no request asks for them.
_LOCAL_NAMES = (".partial", ".aria2")
# Files whose starts are kept, and requests for them at a time.
_MOST_KEPT = 512
_REQUESTS = 16
_MISSING = FileNotFoundError
_FORBIDDEN = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)


class RemoteEntry(NamedTuple):
    """What a listing says of a name: a directory, or an object."""

    is_directory: bool = False
    object: RemoteObject = RemoteObject(0)

    @property
    def entry(self) -> Entry:
        """The same, as storages say it."""
        return Entry(self.is_directory, self.object.size)


class RemoteStore(ABC):
    """A storage of objects whose names have slashes, as if they were in directories.

    A directory is listed once, when something in it was found; `refresh` forgets it. Where listing
    is not allowed, each name is asked for.
    """

    # Whether an object can become another one while it is read.
    _changes = True

    def __init__(self) -> None:
        self._listings: dict[str, Mapping[str, RemoteEntry] | None] = {}
        self._found: dict[str, RemoteEntry | None] = {}
        self._visited: set[str] = set()
        # The blocks at the start of files that were opened, since some are opened several times.
        self._first: dict[str, Bytes] = {}

    @abstractmethod
    def _list(self, directory: str) -> Mapping[str, RemoteEntry] | None:
        """Request what a directory contains; None if that cannot be listed."""

    @abstractmethod
    def _look(self, path: str) -> RemoteObject:
        """Request what is known of an object; raises an error of obstore if it does not exist."""

    @abstractmethod
    def _fetcher(self, path: str, known: RemoteObject | None) -> Fetch:
        """Return what fetches ranges of an object."""

    def open(self, path: str) -> Reader:
        """Open an object; raises `FormatError`."""
        listed = self._find(path)
        if listed is None:
            raise translate_error(FileNotFoundError(path), path)
        if listed.is_directory:
            raise FormatError(
                path, None, "it is not a file", hint="use the URL of a file in this directory"
            )
        return self._open(path, listed.object)

    def _open(self, path: str, known: RemoteObject) -> Reader:
        first = self._first.get(path, b"")
        fetch = self._fetcher(path, known)
        check = (lambda: self._look(path)) if self._changes else None
        reader = RemoteReader(path, fetch, known, check, first)
        if not first and len(self._first) < _MOST_KEPT:
            self._first[path] = reader.read_first_block()
        return reader

    def prepare(self, paths: Sequence[str]) -> None:
        """Request the starts of files, several at a time; errors are raised when they are read."""

        def request(path: str) -> None:
            with suppress(FormatError):
                self.open(path)

        paths = [path for path in paths if path not in self._first]
        if len(paths) > 1:
            with ThreadPoolExecutor(min(_REQUESTS, len(paths))) as pool:
                list(pool.map(request, paths))

    def find(self, path: str) -> Entry | None:
        """Return what is at a path, None if nothing is; raises `FormatError`."""
        if path.endswith(_LOCAL_NAMES):
            return None
        found = self._find(path)
        return None if found is None else found.entry

    def list_names(self, directory: str) -> Mapping[str, Entry]:
        """Return what a directory contains, by name; raises `FormatError`."""
        listing = self._listing(directory)
        if listing is None:
            raise translate_error(PermissionError("it cannot be listed"), directory, "listed")
        return {name: listed.entry for name, listed in listing.items()}

    def uploads(self, path: str) -> Uploads:
        """Raise `OutputError`: a storage that can be written has its own method."""
        raise OutputError(
            f"{path}: weightctl cannot write to {path.partition(':')[0]}:// URLs",
            hint="write to a local path, and upload it with the tool of the store",
        )

    def refresh(self, path: str) -> None:
        """Forget what is known about a path, what is below it and its directory."""
        directory = os.path.dirname(path)
        self._visited.discard(directory)
        for known in (self._listings, self._found, self._first):
            for each in [*known]:
                if each.startswith(f"{directory}/") or each in {directory, path}:
                    del known[each]

    def _is_listed(self, path: str) -> bool:
        directory = os.path.dirname(path)
        return directory in self._visited and self._listing(directory) is not None

    def _find(self, path: str) -> RemoteEntry | None:
        if self._is_listed(path):
            listing = self._listing(os.path.dirname(path)) or {}
            return listing.get(os.path.basename(path))
        if path not in self._found:
            self._found[path] = self._ask(path)
        return self._found[path]

    def _ask(self, path: str) -> RemoteEntry | None:
        """Ask for a name whose directory is not listed: first for what its name looks like."""
        is_like_file = os.path.splitext(path)[1][1:].isalpha()
        found = self._ask_object(path) if is_like_file else None
        if found is None and self._listing(path):
            found = RemoteEntry(is_directory=True)
        if found is None and not is_like_file:
            found = self._ask_object(path)
        if found is not None and not found.is_directory:
            self._visited.add(os.path.dirname(path))
        return found

    def _ask_object(self, path: str) -> RemoteEntry | None:
        try:
            return RemoteEntry(object=repeat(lambda: self._look(path), path))
        except _MISSING:
            return None
        except Exception as error:
            raise translate_error(error, path) from error

    def _listing(self, directory: str) -> Mapping[str, RemoteEntry] | None:
        if directory not in self._listings:
            try:
                listing = repeat(lambda: self._list(directory), directory)
            except _FORBIDDEN:
                listing = None
            except _MISSING:
                listing = {}
            except Exception as error:
                raise translate_error(error, directory, "listed") from error
            self._listings[directory] = listing
            if listing:
                self._visited.add(directory)
        return self._listings[directory]
