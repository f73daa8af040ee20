"""Reads files on web servers that support range requests."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING
from urllib.parse import unquote

import obstore
from obstore import exceptions
from obstore.store import HTTPStore

from weightctl.storage.location import full_url
from weightctl.storage.remote.reader import FIRST_BLOCK, RemoteObject
from weightctl.storage.remote.requests import NO_RETRIES, as_seconds, client_options
from weightctl.storage.remote.store import RemoteStore
from weightctl.storage.traffic import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

    from weightctl.storage.base import Bytes
    from weightctl.storage.remote.reader import Fetch
    from weightctl.storage.remote.store import RemoteEntry


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
    return RemoteObject(meta["size"], meta["e_tag"] or "", as_seconds(meta["last_modified"]))


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
