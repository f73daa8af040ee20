"""The base class of remote storages, which caches listings and the beginnings of files.

Files on web servers are read if the server supports range requests.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import obstore
from obstore import exceptions
from obstore.store import HTTPStore

from weightctl.errors import FormatError
from weightctl.storage.base import Entry, Store
from weightctl.storage.location import full_url
from weightctl.storage.remote.failures import translate_error
from weightctl.storage.remote.reader import FIRST_BLOCK, RemoteObject, RemoteReader
from weightctl.storage.remote.requests import NO_RETRIES, client_options, repeat
from weightctl.storage.traffic import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

    from weightctl.storage.base import Bytes, Reader
    from weightctl.storage.remote.reader import Fetch

# Suffixes of files that only exist next to local files, and are not requested.
_LOCAL_NAMES = (".partial", ".aria2")
# The number of files whose beginnings are cached, and of concurrent requests for them.
_MOST_KEPT = 512
_REQUESTS = 16
_MISSING = FileNotFoundError
_FORBIDDEN = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)


class RemoteEntry(NamedTuple):
    """An entry of a listing: a directory or an object."""

    is_directory: bool = False
    object: RemoteObject = RemoteObject(0)

    @property
    def entry(self) -> Entry:
        """The entry in the form of the `Store` interface."""
        return Entry(self.is_directory, self.object.size)


class RemoteStore(Store, ABC):
    """A storage of objects whose names have slashes, as if they were in directories.

    A directory is listed once, after a file in it was found, and the listing is kept until
    `refresh` removes it. If listing is not allowed, each name is requested.
    """

    # Whether objects can change while they are read.
    _changes = True

    def __init__(self) -> None:
        self._listings: dict[str, Mapping[str, RemoteEntry] | None] = {}
        self._found: dict[str, RemoteEntry | None] = {}
        self._visited: set[str] = set()
        # The first blocks of opened files, since some files are opened several times.
        self._first: dict[str, Bytes] = {}

    @abstractmethod
    def _list(self, directory: str) -> Mapping[str, RemoteEntry] | None:
        """Request the content of a directory; None if it cannot be listed."""

    @abstractmethod
    def _look(self, path: str) -> RemoteObject:
        """Request the version of an object; raises obstore's error if it does not exist."""

    @abstractmethod
    def _fetcher(self, path: str, known: RemoteObject | None) -> Fetch:
        """Return the function that requests ranges of an object."""

    def open(self, path: str) -> Reader:
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
        def request(path: str) -> None:
            with suppress(FormatError):
                self.open(path)

        paths = [path for path in paths if path not in self._first]
        if len(paths) > 1:
            with ThreadPoolExecutor(min(_REQUESTS, len(paths))) as pool:
                list(pool.map(request, paths))

    def find(self, path: str) -> Entry | None:
        if path.endswith(_LOCAL_NAMES):
            return None
        found = self._find(path)
        return None if found is None else found.entry

    def list_names(self, directory: str) -> Mapping[str, Entry]:
        listing = self._listing(directory)
        if listing is None:
            raise translate_error(PermissionError("it cannot be listed"), directory, "listed")
        return {name: listed.entry for name, listed in listing.items()}

    def refresh(self, path: str) -> None:
        """Remove a path, its directory, and everything in that directory from the caches."""
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
        """Request a name whose directory is not listed.

        If the name has a suffix, an object is requested first, and otherwise a directory.
        """
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


class WebStore(RemoteStore):
    """Files with `https://` and `http://` URLs; directories cannot be listed."""

    def _list(self, directory: str) -> Mapping[str, RemoteEntry] | None:
        del directory
        return None

    def _look(self, path: str) -> RemoteObject:
        # Signed links allow GET, but not HEAD. An existing file is usually read next.
        received, found = fetch_range(_open(path), "", 0, FIRST_BLOCK)
        data = b"".join(received)
        TRAFFIC.count(read=len(data))
        self._first.setdefault(path, data)
        return found

    def _fetcher(self, path: str, known: RemoteObject | None) -> Fetch:
        store, tag = _open(path), known.tag if known else ""
        return lambda start, stop: fetch_range(store, "", start, stop, tag)


def fetch_range(
    store: ObjectStore, key: str, start: int, stop: int, tag: str = ""
) -> tuple[Iterator[Bytes], RemoteObject]:
    """Return an iterator over a range of an object, and the object's version.

    If `tag` is not empty, the object must have this ETag. The function and the iterator raise
    obstore's errors. The bytes are not joined, which would take half of the time of a transfer
    between processes on one machine.
    """
    # By definition, a weak ETag never matches.
    options: GetOptions = {"range": (start, stop)}
    if tag and not tag.startswith("W/"):
        options["if_match"] = tag
    try:
        result = obstore.get(store, key, options=options)
    except exceptions.GenericError:
        if start:
            raise
        found = object_of(obstore.head(store, key))
        if found.size:
            raise
        return iter(()), found  # an empty file has no range
    return map(memoryview, result.stream(min_chunk_size=0)), object_of(result.meta)


def object_of(meta: ObjectMeta) -> RemoteObject:
    """Return the version of an object from obstore's metadata."""
    return RemoteObject(meta["size"], meta["e_tag"] or "", meta["last_modified"].timestamp())


def _open(path: str) -> HTTPStore:
    url = full_url(path)
    options = client_options(url)
    scheme, _, rest = url.partition("://")
    login, is_there, host = rest.partition("/")[0].rpartition("@")
    if is_there:
        # The login is sent in a header, which the client leaves out if a redirect leads to another
        # host.
        secret = b64encode(unquote(login).encode()).decode("ascii")
        options["default_headers"] = {"Authorization": f"Basic {secret}"}
        url = f"{scheme}://{host}{rest[len(login) + 1 + len(host) :]}"
    return HTTPStore.from_url(url, client_options=options, retry_config=NO_RETRIES)
