"""Reads models on the Hugging Face Hub, or from the cache of the Hub's own tools."""

from __future__ import annotations

import os
import warnings
from functools import cache
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from obstore import exceptions
from obstore.store import HTTPStore

from weightctl.errors import FormatError, MissingFileError, SourceWarning
from weightctl.storage.files import open_reader
from weightctl.storage.local import FileReader
from weightctl.storage.local_models import find_commit, find_repository, is_commit
from weightctl.storage.remote.hub_api import (
    ask_hub,
    ask_pages,
    endpoint,
    explain_gate,
    is_set,
    quote_segment,
    read_token,
    unexpected_answer,
)
from weightctl.storage.remote.hub_url import MAIN, is_safe_path, parse_hub_url
from weightctl.storage.remote.reader import RemoteObject
from weightctl.storage.remote.requests import NO_RETRIES, client_options
from weightctl.storage.remote.store import RemoteEntry, RemoteStore, fetch_range
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from weightctl.storage.base import Bytes, Reader
    from weightctl.storage.remote.hub_url import HubPath
    from weightctl.storage.remote.reader import Fetch


def offline_variable() -> str:
    """Return the environment variable that forbids requests; empty if none is set."""
    # Like the Hub's own client, use the second variable if the first is empty.
    name = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
    return name if is_set(name) else ""


class CachedFile(FileReader):
    """A file in the cache, whose `path` is its URL."""

    def __init__(self, path: str, local: str, known: RemoteObject) -> None:
        super().__init__(local)
        self.path = path
        # The same number as without the cache, so that the input has the same fingerprint.
        self.written = known.version or self.written

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (open_reader, (self.path,))

    def refuse_change(self) -> None:
        """Do nothing, since files in the cache are not changed."""


def find_cached(place: HubPath, commit: str, size: int) -> str:
    """Return the path of a commit's file in the cache; empty if it is not cached."""
    path = os.path.join(find_repository(place.repository), "snapshots", commit, place.path)
    try:
        return path if os.path.isfile(path) and os.path.getsize(path) == size else ""
    except OSError:
        return ""


def read_snapshot(place: HubPath, url: str) -> tuple[str, dict[str, int]]:
    """Return the commit of a revision in the cache, and the sizes of its files by path.

    Raises `MissingFileError` if the cache does not have the revision.
    """
    directory = find_repository(place.repository)
    commit = find_commit(directory, place.revision)
    if not commit:
        raise explain_missing(place, url, f"the revision `{place.revision}`")
    root = os.path.join(directory, "snapshots", commit)
    sizes: dict[str, int] = {}
    for parent, _, names in os.walk(root):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.isfile(path):
                sizes[os.path.relpath(path, root).replace(os.sep, "/")] = os.path.getsize(path)
    return commit, sizes


def explain_missing(place: HubPath, url: str, what: str) -> MissingFileError:
    """Return the error for `what`, which is not in the cache, if only the cache can be read."""
    variable = offline_variable()
    option = "" if place.revision == MAIN else f" --revision {place.revision}"
    command = f"hf download {place.repository}{option}"
    return MissingFileError(
        url, None, f"{what} is not in the cache of the Hugging Face Hub, and "
        + (f"{variable} allows no requests" if variable else "the Hub did not answer"),
        hint=f"{f'unset {variable}' if variable else 'check the network connection'}, or download "
        f"it first: `{command}`",
    )  # fmt: skip


# Paths with more directories are ignored, since they would make listings large.
_DEEPEST = 32
# If the cache has the revision, the Hub has this number of seconds to answer.
_PATIENCE = 2.0


class _ListedFile(NamedTuple):
    """A file as listed by the Hub: its path, its size if stated, its ETag, and its hash."""

    path: object
    size: int | None
    tag: str
    stated: str


class HubCommit(NamedTuple):
    """The files of a commit, by directory and name."""

    repository: str
    commit: str
    directories: Mapping[str, Mapping[str, RemoteEntry]]
    is_gated: bool = False
    # Whether the files are those in the cache, which may not be all.
    is_cached: bool = False

    @property
    def files(self) -> dict[str, RemoteObject]:
        return {
            f"{directory}/{name}".lstrip("/"): entry.object
            for directory, entries in self.directories.items()
            for name, entry in entries.items()
            if not entry.is_directory
        }

    def find(self, path: str) -> RemoteEntry | None:
        if path in self.directories:
            return RemoteEntry(is_directory=True)
        directory, _, name = path.rpartition("/")
        return self.directories.get(directory, {}).get(name)


class HubStore(RemoteStore):
    """Files with `hf://` URLs.

    The first request for a revision returns its commit, with all files and their sizes. All files
    are then read from this commit, until `refresh` removes it. Files that the Hub's tools have
    downloaded are read from their cache. If the cache has the revision and the Hub does not answer,
    the commit is that of the cache, with a `SourceWarning`.
    """

    _changes = False

    def __init__(self) -> None:
        super().__init__()
        # The keys are the Hub's URL, the name of the model, and the revision.
        self._commits: dict[tuple[str, str, str], HubCommit] = {}
        self._lock = Lock()

    def refresh(self, path: str) -> None:
        """Remove all revisions of a model from the caches."""
        super().refresh(path)
        repository = parse_hub_url(path).repository
        with self._lock:
            for key in [key for key in self._commits if key[1] == repository]:
                del self._commits[key]
            for each in [*self._first]:
                if parse_hub_url(each).repository == repository:
                    del self._first[each]

    def find_commit(self, url: str) -> HubCommit | None:
        """Return the files of a model at a revision; None if the model does not exist.

        The files are those that the Hub has, and not those in the cache. Raises `FormatError` if
        the revision does not exist, or if a request fails.
        """
        place = parse_hub_url(url)
        try:
            found = self._commit_of(url, place)
            is_newest = not found.is_cached or offline_variable()
            return found if is_newest else _request_commit(url, place)
        except MissingFileError:
            # If another branch does not exist, the model may still exist.
            if place.revision != MAIN:
                raise
            return None

    def open(self, path: str) -> Reader:
        place = parse_hub_url(path)
        commit = self._commit_of(path, place)
        if commit.is_cached and commit.find(place.path) is None:
            raise explain_missing(place, path, "it")
        return super().open(path)

    def _find(self, path: str) -> RemoteEntry | None:
        place = parse_hub_url(path)
        return self._commit_of(path, place).find(place.path)

    def _listing(self, directory: str) -> Mapping[str, RemoteEntry] | None:
        # All files of a commit are known, so no request is needed.
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
                self._commits[key] = _find_commit(url, place)
            return self._commits[key]

    def _open(self, path: str, known: RemoteObject) -> Reader:
        place = parse_hub_url(path)
        local = find_cached(place, self._commit_of(path, place).commit, known.size)
        if local:
            return CachedFile(path, local, known)
        return super()._open(path, known)

    def _fetcher(self, path: str, known: RemoteObject | None) -> Fetch:
        del known  # a file of a commit does not change
        place = parse_hub_url(path)
        commit = self._commit_of(path, place)
        # obstore does not encode brackets in URLs, and then does not follow redirects.
        below, key = ("", place.path) if "[" not in place.path else (quote(place.path), "")
        store = _open_commit(endpoint(), commit.repository, commit.commit, read_token(), below)

        def fetch(start: int, stop: int) -> tuple[Iterator[Bytes], RemoteObject]:
            try:
                arriving, found = fetch_range(store, key, start, stop)
            except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
                if commit.is_gated:
                    raise explain_gate(place, path) from None
                raise
            # The ETag is left out, since the host that sends the bytes has different ETags.
            return arriving, RemoteObject(found.size)

        return fetch


@cache
def _open_commit(hub: str, repository: str, commit: str, token: str, below: str) -> HTTPStore:
    """Return the client for the files of a commit; only the Hub gets the token.

    All files use the same client, so that they share connections, except a file whose path has to
    be encoded in the URL of its own client: `below` is its path.
    """
    options = client_options(hub)
    if token:
        options["default_headers"] = {"authorization": f"Bearer {token}"}
    url = f"{hub}/{repository}/resolve/{commit}/{below}".rstrip("/")
    return HTTPStore.from_url(url, client_options=options, retry_config=NO_RETRIES)


def _find_commit(url: str, place: HubPath) -> HubCommit:
    """Return the commit that the Hub has, or the one in the cache if the Hub does not answer."""
    if offline_variable():
        return _read_commit(url, place)
    is_there = find_commit(find_repository(place.repository), place.revision)
    cached = _read_commit(url, place) if is_there else None
    if cached is None or cached.find(place.path) is None:
        return _request_commit(url, place)
    answers: list[HubCommit | Exception] = []

    def request() -> None:
        try:
            answers.append(_request_commit(url, place))
        except Exception as error:  # noqa: BLE001  # raised below, in the thread that waits
            answers.append(error)

    # Finding the address of a host has no limit of time, so that a thread is needed.
    thread = Thread(target=request, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    answer = answers[0] if answers else None
    if isinstance(answer, HubCommit):
        return answer
    is_refused = not (isinstance(answer, FormatError) and isinstance(answer.__cause__, OSError))
    if answer is not None and is_refused:
        raise answer
    reason = f"did not answer within {_PATIENCE:g} seconds" if answer is None else "was not reached"
    warnings.warn(
        f"{url}: the Hugging Face Hub {reason}; the model is read from the cache, at commit "
        f"{cached.commit[:7]}, which may not be the newest",
        SourceWarning,
        stacklevel=2,
    )
    return cached


def _read_commit(url: str, place: HubPath) -> HubCommit:
    """Return the commit in the cache; raises `MissingFileError` if the cache does not have it."""
    commit, sizes = read_snapshot(place, url)
    found = {path: RemoteObject(size) for path, size in sizes.items()}
    return HubCommit(place.repository, commit, _in_directories(found), is_cached=True)


def _request_commit(url: str, place: HubPath) -> HubCommit:
    """Return the commit that the Hub has; raises `FormatError` if a request fails."""
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
        path: RemoteObject(size, tag, stated=stated)
        for path, size, tag, stated in listed
        if isinstance(path, str) and size is not None and _is_usual(path)
    }
    return HubCommit(place.repository, commit, _in_directories(found), bool(document.get("gated")))


def _read_sibling(sibling: dict[str, Any]) -> _ListedFile:
    """Return a file from the description of a model."""
    return _read(sibling, sibling.get("rfilename"), "sha256", "blobId")


def _read_row(row: dict[str, Any]) -> _ListedFile:
    """Return a file from a listing of a tree."""
    return _read(row, row.get("path"), "oid", "oid")


def _read(row: dict[str, Any], path: object, tag_of_lfs: str, tag: str) -> _ListedFile:
    lfs = row.get("lfs")
    found, size = row.get(tag), row.get("size")
    if is_object(lfs):
        found, size = lfs.get(tag_of_lfs, found), lfs.get("size", size)
    is_count = isinstance(size, int) and not isinstance(size, bool) and size >= 0
    found = found if isinstance(found, str) else ""
    # A large file has the hash of its content, others that of Git. Some answers lack the former.
    is_hash = len(found) == (64 if is_object(lfs) else 40)
    return _ListedFile(path, size if is_count else None, found, found if is_hash else "")


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
    """Yield the parents of a directory, outermost first, and the directory itself."""
    names = directory.split("/") if directory else []
    for count in range(1, len(names) + 1):
        yield "/".join(names[:count])
