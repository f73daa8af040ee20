"""Buckets: objects by key, and uploads in parts, on S3 and Google Cloud Storage."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from servers.blobs import Blob
from servers.entities import Entity
from servers.messages import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

MIB = 1 << 20
SMALLEST_PART = 5 * MIB
MOST_PARTS = 10_000
# Headers that are stored with an object and sent with it again.
KEPT_HEADERS = {"cache-control", "content-disposition", "content-encoding", "content-language"}


@dataclass(slots=True)
class StoredObject(Entity):
    """An object of a bucket. Each write of any object has a higher `generation`."""

    generation: int = 0


class Part(NamedTuple):
    """A part of an upload. `etag` has no quotes."""

    body: Blob
    etag: str
    modified: float


@dataclass(slots=True)
class Upload:
    """An upload in parts that is neither completed nor aborted."""

    id: str
    key: str
    headers: dict[str, str]
    started: float = field(default_factory=time.time)
    parts: dict[int, Part] = field(default_factory=dict[int, Part])


Check = Callable[[StoredObject | None], None]


class Page(NamedTuple):
    """A page of a listing. `last` is the key or common prefix to continue after."""

    keys: list[str]
    prefixes: list[str]
    last: str | None


class Bucket:
    """The objects and uploads of a bucket, which tests may also read and write directly.

    `public_read` and `public_write` allow requests without credentials. `hashes=False` makes ETags
    without reading the bytes: for benchmarks.
    """

    def __init__(
        self,
        name: str,
        *,
        public_read: bool = False,
        public_write: bool = False,
        smallest_part: int = SMALLEST_PART,
        hashes: bool = True,
    ) -> None:
        self.name = name
        self.public_read, self.public_write = public_read, public_write
        self.smallest_part = smallest_part
        self.objects = dict[str, StoredObject]()
        self.uploads = dict[str, Upload]()
        self.created = time.time()
        self._hashes = hashes
        self._lock = threading.RLock()
        self._generations = itertools.count(1_700_000_000_000_001)

    def __getitem__(self, key: str) -> bytes:
        return bytes(self.objects[key].body)

    def __contains__(self, key: str) -> bool:
        return key in self.objects

    def __iter__(self) -> Iterator[str]:
        # S3 sorts by the bytes of the keys in UTF-8.
        return iter(sorted(self.objects, key=str.encode))

    def put(
        self,
        key: str,
        content: Blob | Buffer,
        headers: dict[str, str] | None = None,
        check: Check | None = None,
        etag: str | None = None,
    ) -> StoredObject:
        """Store an object. `check` gets the present one, and refuses by an exception."""
        body = Blob.of(content)
        headers = headers or {}
        etag = etag or self.etag_of(body)
        kept = {
            name: value
            for name, value in headers.items()
            if name in KEPT_HEADERS or name.startswith(("x-amz-meta-", "x-goog-meta-"))
        }
        if kept.get("content-encoding") == "aws-chunked":
            del kept["content-encoding"]
        kind = headers.get("content-type", "binary/octet-stream")
        with self._lock:
            if check:
                check(self.objects.get(key))
            stored = StoredObject(
                body, f'"{etag}"', time.time(), kind, kept, next(self._generations)
            )
            self.objects[key] = stored
        return stored

    def find(self, key: str) -> StoredObject:
        """Return an object. Raises RefusedError NoSuchKey."""
        try:
            return self.objects[key]
        except KeyError:
            message = f"The specified key does not exist: {key}"
            raise RefusedError(404, "NoSuchKey", message) from None

    def etag_of(self, body: Blob) -> str:
        """Return the ETag of content, without quotes."""
        return body.hash("md5").hex() if self._hashes else uuid.uuid4().hex

    def page(
        self, prefix: str, delimiter: str, after: str, limit: int, *, continues: bool = False
    ) -> Page:
        """List keys after `after`; `continues` says that it is the `last` of a page."""
        keys, prefixes = list[str](), list[str]()
        last = None
        with self._lock:
            ordered = sorted(self.objects, key=str.encode)
        for key in ordered:
            if not key.startswith(prefix) or key.encode() <= after.encode():
                continue
            if continues and delimiter and after.endswith(delimiter) and key.startswith(after):
                continue
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            common = key[: end + len(delimiter)] if end >= 0 else None
            if common is not None and prefixes and prefixes[-1] == common:
                continue
            if len(keys) + len(prefixes) == limit:
                return Page(keys, prefixes, last)
            if common is None:
                keys.append(key)
            else:
                prefixes.append(common)
            last = key if common is None else common
        return Page(keys, prefixes, None)

    def begin(self, key: str, headers: dict[str, str]) -> Upload:
        """Begin an upload in parts."""
        upload = Upload(uuid.uuid4().hex, key, dict(headers))
        with self._lock:
            self.uploads[upload.id] = upload
        return upload

    def upload(self, key: str, number: str) -> Upload:
        """Return an upload by its id. Raises RefusedError NoSuchUpload."""
        found = self.uploads.get(number)
        if found is None or found.key != key:
            raise RefusedError(404, "NoSuchUpload", "The specified upload does not exist.")
        return found

    def put_part(self, upload: Upload, number: int, body: Blob) -> Part:
        """Store a part, in the place of a former one of the same number.

        Raises RefusedError InvalidArgument if the number is not from 1 to 10,000.
        """
        if not 1 <= number <= MOST_PARTS:
            raise RefusedError(400, "InvalidArgument", f"part number {number}")
        part = Part(body, self.etag_of(body), time.time())
        with self._lock:
            upload.parts[number] = part
        return part

    def complete(
        self,
        upload: Upload,
        listed: list[tuple[int, str]],
        check: Check | None = None,
    ) -> StoredObject:
        """Make an object of the listed parts: numbers and ETags without quotes.

        Raises RefusedError: InvalidPart, InvalidPartOrder, EntityTooSmall, MalformedXML.
        """
        if not listed:
            raise RefusedError(400, "MalformedXML", "the list of parts is empty")
        numbers = [number for number, _ in listed]
        if any(one >= other for one, other in itertools.pairwise(numbers)):
            raise RefusedError(400, "InvalidPartOrder", f"{numbers}")
        parts = list[Part]()
        for number, etag in listed:
            part = upload.parts.get(number)
            if part is None or part.etag != etag:
                raise RefusedError(400, "InvalidPart", f"part {number}")
            parts.append(part)
        for part in parts[:-1]:
            if part.body.size < self.smallest_part:
                message = f"a part has {part.body.size} bytes, fewer than {self.smallest_part}"
                raise RefusedError(400, "EntityTooSmall", message)
        digest = hashlib.md5(
            b"".join(bytes.fromhex(part.etag) for part in parts), usedforsecurity=False
        )
        body = Blob.joined(part.body for part in parts)
        etag = f"{digest.hexdigest()}-{len(parts)}"
        with self._lock:
            stored = self.put(upload.key, body, upload.headers, check, etag)
            self.uploads.pop(upload.id, None)
        return stored

    def abort(self, upload: Upload) -> None:
        """Remove an upload and its parts."""
        with self._lock:
            self.uploads.pop(upload.id, None)

    def delete(self, key: str) -> None:
        """Remove an object, if there is one."""
        with self._lock:
            self.objects.pop(key, None)
