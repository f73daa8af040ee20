"""Models on the Hugging Face Hub."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from obstore import exceptions
from obstore.store import HTTPStore

from weightctl.errors import MissingFileError
from weightctl.storage.remote.hub_api import (
    ask_hub,
    ask_pages,
    endpoint,
    explain_gate,
    quote_segment,
    read_token,
    unexpected_answer,
)
from weightctl.storage.remote.hub_cache import (
    CachedFile,
    explain_missing,
    find_cached,
    is_commit,
    offline_variable,
    read_snapshot,
)
from weightctl.storage.remote.hub_url import MAIN, is_safe_path, parse_hub_url
from weightctl.storage.remote.reader import RemoteObject
from weightctl.storage.remote.requests import NO_RETRIES, client_options
from weightctl.storage.remote.store import RemoteEntry, RemoteStore
from weightctl.storage.remote.web import fetch_range
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.storage.base import Bytes, Reader
    from weightctl.storage.remote.hub_url import HubPath
    from weightctl.storage.remote.reader import Fetch

__all__ = ["HubCommit", "HubStore"]

# Deeper paths are no model's; they would make listings large.
_DEEPEST = 32


class _ListedFile(NamedTuple):
    """A file as the Hub lists it: its path, its size if that is stated, and its identifier."""

    path: object
    size: int | None
    tag: str


class HubCommit(NamedTuple):
    """The files of a commit, by directory and name."""

    repository: str
    commit: str
    directories: Mapping[str, Mapping[str, RemoteEntry]]
    is_gated: bool = False

    @property
    def files(self) -> dict[str, RemoteObject]:
        """All files by path."""
        return {
            f"{directory}/{name}".lstrip("/"): entry.object
            for directory, entries in self.directories.items()
            for name, entry in entries.items()
            if not entry.is_directory
        }

    def find(self, path: str) -> RemoteEntry | None:
        """Return what is at a path, None if nothing is."""
        if path in self.directories:
            return RemoteEntry(is_directory=True)
        directory, _, name = path.rpartition("/")
        return self.directories.get(directory, {}).get(name)


class HubStore(RemoteStore):
    """Files with `hf://` URLs.

    The first request about a revision finds its commit, with all files and their sizes; everything
    is of this commit then, until `refresh` forgets it. Files that the Hub's tools have downloaded
    are read from their cache.
    """

    _changes = False

    def __init__(self) -> None:
        super().__init__()
        # By the URL of the Hub, the name of the model, and the revision.
        self._commits: dict[tuple[str, str, str], HubCommit] = {}
        self._lock = Lock()

    def refresh(self, path: str) -> None:
        """Forget what is known about a model."""
        super().refresh(path)
        repository = parse_hub_url(path).repository
        with self._lock:
            for key in [key for key in self._commits if key[1] == repository]:
                del self._commits[key]
            for each in [*self._first]:
                if parse_hub_url(each).repository == repository:
                    del self._first[each]

    def find_commit(self, url: str) -> HubCommit | None:
        """Return the files of a model, None if it does not exist; raises `FormatError`."""
        place = parse_hub_url(url)
        try:
            return self._commit_of(url, place)
        except MissingFileError:
            # Where there is no branch of another name, there may still be a model.
            if place.revision != MAIN:
                raise
            return None

    def open(self, path: str) -> Reader:
        """Open a file; raises `FormatError`."""
        if offline_variable() and self._find(path) is None:
            raise explain_missing(parse_hub_url(path), path, "it")
        return super().open(path)

    def _find(self, path: str) -> RemoteEntry | None:
        place = parse_hub_url(path)
        return self._commit_of(path, place).find(place.path)

    def _listing(self, directory: str) -> Mapping[str, RemoteEntry] | None:
        # A commit is known as a whole: there is nothing to request.
        return self._list(directory)

    def _list(self, directory: str) -> Mapping[str, RemoteEntry] | None:
        place = parse_hub_url(directory)
        return self._commit_of(directory, place).directories.get(place.path, {})

    def _look(self, path: str) -> RemoteObject:
        found = self._find(path)
        if found is None:
            raise FileNotFoundError(path)
        return found.object

    def _commit_of(self, url: str, place: HubPath) -> HubCommit:
        key = (endpoint(), place.repository, place.revision)
        with self._lock:
            if key not in self._commits:
                self._commits[key] = _request_commit(url, place)
            return self._commits[key]

    def _open(self, path: str, known: RemoteObject) -> Reader:
        place = parse_hub_url(path)
        local = find_cached(place, self._commit_of(path, place).commit, known.size)
        if local:
            return CachedFile(path, local, known)
        return super()._open(path, known)

    def _fetcher(self, path: str, known: RemoteObject | None) -> Fetch:
        del known  # a file of a commit is always the same
        place = parse_hub_url(path)
        commit = self._commit_of(path, place)
        # obstore follows no redirect of a URL with brackets, which it does not encode itself.
        below, key = ("", place.path) if "[" not in place.path else (quote(place.path), "")
        store = _open_commit(endpoint(), commit.repository, commit.commit, read_token(), below)

        def fetch(start: int, stop: int) -> tuple[Iterator[Bytes], RemoteObject]:
            try:
                arriving, found = fetch_range(store, key, start, stop)
            except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
                if commit.is_gated:
                    raise explain_gate(place, path) from None
                raise
            # The host of the bytes has ETags of its own.
            return arriving, RemoteObject(found.size)

        return fetch


@cache
def _open_commit(hub: str, repository: str, commit: str, token: str, below: str) -> HTTPStore:
    """Return the client for the files of a commit; other hosts than the Hub get no token.

    All files have the same client, and so share connections; `below` is the path of one that has
    a client of its own.
    """
    options = client_options(hub)
    if token:
        options["default_headers"] = {"authorization": f"Bearer {token}"}
    url = f"{hub}/{repository}/resolve/{commit}/{below}".rstrip("/")
    return HTTPStore.from_url(url, client_options=options, retry_config=NO_RETRIES)


def _request_commit(url: str, place: HubPath) -> HubCommit:
    if offline_variable():
        commit, sizes = read_snapshot(place, url)
        found = {path: RemoteObject(size) for path, size in sizes.items()}
        return HubCommit(place.repository, commit, _in_directories(found))
    route = f"{place.repository}/revision/{quote_segment(place.revision)}?blobs=true"
    document = ask_hub(route, place, url)
    if not is_object(document) or not is_commit(document.get("sha")):
        raise unexpected_answer(url)
    commit = document["sha"]
    siblings = document.get("siblings")
    listed = list(map(_read_sibling, filter(is_object, siblings if is_list(siblings) else [])))
    if not is_list(siblings) or any(each.size is None for each in listed):
        route = f"{place.repository}/tree/{commit}?recursive=true"
        rows = filter(is_object, ask_pages(route, place, url))
        listed = [_read_row(row) for row in rows if row.get("type") == "file"]
    found = {
        path: RemoteObject(size, tag)
        for path, size, tag in listed
        if isinstance(path, str) and size is not None and _is_usual(path)
    }
    return HubCommit(place.repository, commit, _in_directories(found), bool(document.get("gated")))


def _read_sibling(sibling: dict[str, Any]) -> _ListedFile:
    """Return a file in the description of a model."""
    return _read(sibling, sibling.get("rfilename"), "sha256", "blobId")


def _read_row(row: dict[str, Any]) -> _ListedFile:
    """Return a file in a listing."""
    return _read(row, row.get("path"), "oid", "oid")


def _read(row: dict[str, Any], path: object, tag_of_lfs: str, tag: str) -> _ListedFile:
    lfs = row.get("lfs")
    found, size = row.get(tag), row.get("size")
    if is_object(lfs):
        found, size = lfs.get(tag_of_lfs, found), lfs.get("size", size)
    is_count = isinstance(size, int) and not isinstance(size, bool) and size >= 0
    return _ListedFile(path, size if is_count else None, found if isinstance(found, str) else "")


def _is_usual(path: str) -> bool:
    return is_safe_path(path) and path.count("/") < _DEEPEST


def _in_directories(files: Mapping[str, RemoteObject]) -> dict[str, dict[str, RemoteEntry]]:
    made: dict[str, dict[str, RemoteEntry]] = {"": {}}
    for path, found in files.items():
        directory, _, name = path.rpartition("/")
        for parent in _list_parents(directory):
            above, _, own = parent.rpartition("/")
            made.setdefault(above, {})[own] = RemoteEntry(is_directory=True)
            made.setdefault(parent, {})
        made[directory][name] = RemoteEntry(object=found)
    return made


def _list_parents(directory: str) -> Iterator[str]:
    """Yield a directory and those that it is in, from the outermost."""
    names = directory.split("/") if directory else []
    for count in range(1, len(names) + 1):
        yield "/".join(names[:count])
