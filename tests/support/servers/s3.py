"""A server with the API of S3 and one with that of Google Cloud Storage, with buckets in memory."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import itertools
import json
import re
import threading
import time
import uuid
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from servers.base import Blob, Entity, RefusedError, Request, Response, Server, range_of, serve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer


# Buckets: objects by key, and uploads in parts, on S3 and Google Cloud Storage.

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
        with self._lock:
            self.uploads.pop(upload.id, None)

    def delete(self, key: str) -> None:
        """Remove an object, if there is one."""
        with self._lock:
            self.objects.pop(key, None)


# XML of object stores: requests are parsed, answers are built from nested pairs.

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
Content = str | int | bool | list[tuple[str, "Content"]]
Fields = list[tuple[str, Content]]


def document(
    name: str, content: Content, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return an answer whose body is an XML document."""
    root = ET.Element(name) if name == "Error" else ET.Element(name, xmlns=NAMESPACE)
    _fill(root, content)
    body: bytes = ET.tostring(root, encoding="UTF-8", xml_declaration=True)
    return Response(status, {"Content-Type": "application/xml"} | (headers or {}), Blob.of(body))


def error(request: Request, refusal: RefusedError) -> Response:
    content: Content = [
        ("Code", refusal.code),
        ("Message", refusal.message),
        ("Resource", request.path),
        ("RequestId", "0123456789ABCDEF"),
    ]
    return document("Error", content, refusal.status, refusal.headers)


def parse(request: Request) -> ET.Element:
    """Parse the body of a request. Raises RefusedError MalformedXML."""
    try:
        return ET.fromstring(bytes(request.body))
    except ET.ParseError as fault:
        raise RefusedError(400, "MalformedXML", str(fault)) from fault


def text(element: ET.Element, name: str) -> str:
    """Return the text of a child in any namespace. Raises RefusedError MalformedXML without it."""
    found = element.findtext(f"{{*}}{name}")
    if found is None:
        raise RefusedError(400, "MalformedXML", f"{name} is missing")
    return found


def children(element: ET.Element, name: str) -> Iterable[ET.Element]:
    return element.findall(f"{{*}}{name}")


def timestamp(seconds: float) -> str:
    """Return a time as documents of S3 write it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _fill(element: ET.Element, content: Content) -> None:
    if isinstance(content, list):
        for name, inner in content:
            _fill(ET.SubElement(element, name), inner)
    else:
        element.text = str(content).lower() if isinstance(content, bool) else str(content)


# Signatures of AWS, version 4, as a server checks them in the Authorization header.

ALGORITHM = "AWS4-HMAC-SHA256"
# The difference between the clocks of client and server that S3 accepts.
SKEW_SECONDS = 15 * 60
_CREDENTIALS = re.compile(
    ALGORITHM + r" Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request,"
    r"\s*SignedHeaders=([^,]+),\s*Signature=([0-9a-f]{64})"
)


class Key(NamedTuple):
    """An access key with its secret; temporary keys have a session token."""

    access: str
    secret: str
    token: str | None = None


def check_signature(request: Request, keys: Iterable[Key]) -> None:
    """Check the Authorization header, and that the body is the one that was signed.

    Raises RefusedError as S3 does: InvalidAccessKeyId, SignatureDoesNotMatch, InvalidToken,
    RequestTimeTooSkewed, XAmzContentSHA256Mismatch, AuthorizationHeaderMalformed.
    """
    headers = request.sent_headers
    match = _CREDENTIALS.fullmatch(headers.get("authorization", ""))
    if not match:
        raise RefusedError(400, "AuthorizationHeaderMalformed", "not a signature of version 4")
    access, day, region, service, signed, signature = match.groups()
    key = next((each for each in keys if each.access == access), None)
    if key is None:
        raise RefusedError(403, "InvalidAccessKeyId", access)
    if headers.get("x-amz-security-token") != key.token:
        raise RefusedError(400, "InvalidToken", "the session token is not the one of the key")
    moment = headers.get("x-amz-date", "")
    _check_clock(moment)
    names = signed.split(";")
    unsigned = {"host", *(name for name in headers if name.startswith("x-amz-"))} - set(names)
    # Trailers come after the signature was made.
    unsigned -= {name.strip() for name in headers.get("x-amz-trailer", "").split(",")}
    if unsigned:
        raise RefusedError(403, "AccessDenied", f"headers that must be signed: {sorted(unsigned)}")
    payload = headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    canonical = "\n".join(
        [
            request.method,
            quote(unquote(request.target.partition("?")[0]), safe="/-_.~"),
            _canonical_query(request),
            *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in names),
            "",
            signed,
            payload,
        ]
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join([ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signing = f"AWS4{key.secret}".encode()
    for part in (day, region, service, "aws4_request"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    expected = hmac.digest(signing, text.encode(), "sha256").hex()
    if not hmac.compare_digest(expected, signature):
        raise RefusedError(403, "SignatureDoesNotMatch", "the calculated signature differs")
    _check_payload(request, payload)


def _check_clock(moment: str) -> None:
    try:
        sent = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise RefusedError(403, "AccessDenied", "x-amz-date is missing or malformed") from None
    if abs((datetime.now(UTC) - sent).total_seconds()) > SKEW_SECONDS:
        raise RefusedError(403, "RequestTimeTooSkewed", moment)


def _canonical_query(request: Request) -> str:
    query = request.target.partition("?")[2]
    # A plus sign is a space, as s3rver reads it too: obstore sends it so, and signs %20.
    pairs = parse_qsl(query, keep_blank_values=True)
    encoded = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs)
    return "&".join(f"{name}={value}" for name, value in encoded)


def _check_payload(request: Request, payload: str) -> None:
    if payload.startswith("STREAMING-"):
        declared = request.headers.get("x-amz-decoded-content-length")
        if declared != str(request.body.size):
            raise RefusedError(400, "IncompleteBody", f"{request.body.size} bytes, not {declared}")
    elif payload != "UNSIGNED-PAYLOAD" and request.body.hash("sha256").hex() != payload:
        raise RefusedError(400, "XAmzContentSHA256Mismatch", "the body is not the signed one")


# S3 with paths as `/bucket/key`, as its clients use it; signatures are checked.

KEY = Key("test-access-key", "test-secret-key")


class S3Server(Server):
    """S3 with its buckets in memory. The default key is `KEY`; any region is accepted."""

    # What the names of the vendor's own headers begin with.
    vendor = "x-amz-"

    def __init__(self, *, keys: Iterable[Key] = (KEY,), **options: Any) -> None:
        super().__init__(**options)
        self.keys = list(keys)
        self.buckets = dict[str, Bucket]()

    def create_bucket(self, name: str, **options: Any) -> Bucket:
        with self.lock:
            return self.buckets.setdefault(name, Bucket(name, **options))

    def refuse(self, request: Request, refusal: RefusedError) -> Response:
        return error(request, refusal)

    def answer(self, request: Request) -> Response:
        """Answer a request for a bucket or an object."""
        name, _, key = request.path[1:].partition("/")
        bucket = self.buckets.get(name)
        self.authenticate(request, bucket)
        _check_digests(request)
        if bucket is None:
            if request.method == "PUT" and not key:
                self.create_bucket(name)
                return Response(200, {"Location": f"/{name}"})
            raise RefusedError(404, "NoSuchBucket", f"The specified bucket does not exist: {name}")
        if key:
            return self.answer_object(request, bucket, key)
        return self._answer_bucket(request, bucket)

    def authenticate(self, request: Request, bucket: Bucket | None) -> None:
        """Check who sends a request. Raises RefusedError."""
        if "authorization" in request.sent_headers:
            check_signature(request, self.keys)
        elif not is_public(request, bucket):
            raise RefusedError(403, "AccessDenied", "Access Denied")

    def check_write(self, request: Request, present: StoredObject | None) -> None:
        """Check the preconditions of a write. Raises RefusedError."""
        if (unless := request.headers.get("if-none-match")) is not None:
            if unless != "*":
                raise RefusedError(501, "NotImplemented", "If-None-Match of a write is * on S3")
            if present is not None:
                raise RefusedError(412, "PreconditionFailed", "If-None-Match")
        if (expected := request.headers.get("if-match")) is not None:
            if present is None:
                raise RefusedError(404, "NoSuchKey", "If-Match of an object that does not exist")
            if expected.strip('"') != str(present.etag).strip('"'):
                raise RefusedError(412, "PreconditionFailed", "If-Match")

    def headers_of(self, stored: StoredObject) -> dict[str, str]:
        """Return the headers that describe an object after a write."""
        return {"ETag": str(stored.etag)}

    def answer_object(self, request: Request, bucket: Bucket, key: str) -> Response:
        def check(present: StoredObject | None) -> None:
            self.check_write(request, present)

        if request.query.keys() & {"uploads", "uploadId"}:
            return self._answer_upload(request, bucket, key, check)
        match request.method:
            case "GET" | "HEAD":
                stored = bucket.find(key)
                response = serve(request, stored)
                response.headers |= self.headers_of(stored)
            case "PUT" if f"{self.vendor}copy-source" in request.headers:
                response = self._copy(request, bucket, key, check)
            case "PUT":
                stored = bucket.put(key, request.body, request.headers, check)
                response = Response(200, self.headers_of(stored))
            case "DELETE":
                bucket.delete(key)
                response = Response(204)
            case _:
                raise RefusedError(405, "MethodNotAllowed", request.method)
        return response

    def _answer_upload(self, request: Request, bucket: Bucket, key: str, check: Check) -> Response:
        match request.method:
            case "GET":
                return list_parts(bucket, key, request)
            case "PUT" if f"{self.vendor}copy-source" in request.headers:
                return copy_part(bucket, key, request, self._copied_range(request))
            case "PUT":
                return put_part(bucket, key, request)
            case "POST" if "uploads" in request.query:
                return create(bucket, key, request)
            case "POST":
                return complete(bucket, key, request, check, self.headers_of)
            case "DELETE":
                return abort(bucket, key, request)
            case _:
                raise RefusedError(405, "MethodNotAllowed", request.method)

    def _answer_bucket(self, request: Request, bucket: Bucket) -> Response:
        match request.method:
            case "GET":
                return _list_objects(request, bucket)
            case "HEAD":
                return Response(200)
            case "PUT":
                raise RefusedError(409, "BucketAlreadyOwnedByYou", bucket.name)
            case _:
                raise RefusedError(405, "MethodNotAllowed", request.method)

    def _copied(self, request: Request) -> StoredObject:
        source = unquote(request.headers[f"{self.vendor}copy-source"].partition("?")[0])
        name, _, key = source.removeprefix("/").partition("/")
        if name not in self.buckets:
            raise RefusedError(404, "NoSuchBucket", name)
        stored = self.buckets[name].find(key)
        expected = request.headers.get(f"{self.vendor}copy-source-if-match")
        if expected is not None and expected.strip('"') != str(stored.etag).strip('"'):
            raise RefusedError(412, "PreconditionFailed", f"{self.vendor}copy-source-if-match")
        return stored

    def _copied_range(self, request: Request) -> Blob:
        body = self._copied(request).body
        header = request.headers.get(f"{self.vendor}copy-source-range")
        if header is None:
            return body
        bounds = range_of(header, body.size)
        # Unlike a read, a copy is not cut to the end of the object.
        if bounds is None or int(header.rpartition("-")[2] or -1) != bounds[1] - 1:
            raise RefusedError(400, "InvalidArgument", f"{header} of {body.size} bytes")
        return body.cut(*bounds)

    def _copy(self, request: Request, bucket: Bucket, key: str, check: Check) -> Response:
        source = self._copied(request)
        headers = {"content-type": source.content_type} | source.headers
        if request.headers.get(f"{self.vendor}metadata-directive") == "REPLACE":
            headers = request.headers
        stored = bucket.put(key, source.body, headers, check)
        content: Fields = [
            ("LastModified", timestamp(stored.modified)),
            ("ETag", str(stored.etag)),
        ]
        return document("CopyObjectResult", content, headers=self.headers_of(stored))


def is_public(request: Request, bucket: Bucket | None) -> bool:
    """Return whether a bucket allows a request without credentials."""
    if bucket is None:
        return False
    reads = request.method in {"GET", "HEAD"}
    return bucket.public_read if reads else bucket.public_write


def _check_digests(request: Request) -> None:
    body = request.body
    if (sent := request.headers.get("content-md5")) is not None:
        _compare("Content-MD5", sent, body.hash("md5"))
    if request.method != "PUT":
        # The checksum in the completion of an upload is that of the whole object.
        return
    if (sent := request.headers.get("x-amz-checksum-crc32")) is not None:
        sum32 = 0
        for view in body.views():
            sum32 = zlib.crc32(view, sum32)
        _compare("x-amz-checksum-crc32", sent, sum32.to_bytes(4, "big"))
    if (sent := request.headers.get("x-amz-checksum-sha256")) is not None:
        _compare("x-amz-checksum-sha256", sent, body.hash("sha256"))


def _compare(name: str, sent: str, actual: bytes) -> None:
    try:
        expected = base64.b64decode(sent, validate=True)
    except binascii.Error:
        raise RefusedError(400, "InvalidDigest", name) from None
    if expected != actual:
        raise RefusedError(400, "BadDigest", f"{name} does not match the body")


def _list_objects(request: Request, bucket: Bucket) -> Response:
    query = request.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    limit = min(int(query.get("max-keys", 1000)), 1000)
    token = query.get("continuation-token")
    after = query.get("start-after", query.get("marker", ""))
    if token:
        try:
            after = base64.urlsafe_b64decode(token).decode()
        except ValueError:
            raise RefusedError(400, "InvalidArgument", "continuation-token") from None
    page = bucket.page(prefix, delimiter, after, limit, continues=token is not None)

    def shown(name: str) -> str:
        return quote(name, safe="/") if query.get("encoding-type") == "url" else name

    content: Fields = [
        ("Name", bucket.name),
        ("Prefix", shown(prefix)),
        ("MaxKeys", limit),
        ("KeyCount", len(page.keys) + len(page.prefixes)),
        ("IsTruncated", page.last is not None),
    ]
    if query.get("encoding-type") == "url":
        content.append(("EncodingType", "url"))
    if page.last is not None:
        token = base64.urlsafe_b64encode(page.last.encode()).decode()
        content.append(("NextContinuationToken", token))
    for key in page.keys:
        if (stored := bucket.objects.get(key)) is None:
            continue  # It was deleted in between.
        content.append(
            (
                "Contents",
                [
                    ("Key", shown(key)),
                    ("LastModified", timestamp(stored.modified)),
                    ("ETag", str(stored.etag)),
                    ("Size", stored.body.size),
                    ("StorageClass", "STANDARD"),
                ],
            )
        )
    content += [("CommonPrefixes", [("Prefix", shown(each))]) for each in page.prefixes]
    return document("ListBucketResult", content)


# Uploads in parts, as S3 and the XML API of Google Cloud Storage answer them.


def create(bucket: Bucket, key: str, request: Request) -> Response:
    upload = bucket.begin(key, request.headers)
    return document(
        "InitiateMultipartUploadResult",
        [("Bucket", bucket.name), ("Key", key), ("UploadId", upload.id)],
    )


def put_part(bucket: Bucket, key: str, request: Request) -> Response:
    upload = bucket.upload(key, request.query["uploadId"])
    part = bucket.put_part(upload, _number(request), request.body)
    return Response(200, {"ETag": f'"{part.etag}"'})


def copy_part(bucket: Bucket, key: str, request: Request, source: Blob) -> Response:
    """Answer UploadPartCopy, with the bytes that the source is cut to."""
    upload = bucket.upload(key, request.query["uploadId"])
    part = bucket.put_part(upload, _number(request), source)
    content: Fields = [("LastModified", timestamp(part.modified)), ("ETag", f'"{part.etag}"')]
    return document("CopyPartResult", content)


def complete(
    bucket: Bucket,
    key: str,
    request: Request,
    check: Check,
    headers: Callable[[StoredObject], dict[str, str]],
) -> Response:
    upload = bucket.upload(key, request.query["uploadId"])
    listed = [
        (int(text(part, "PartNumber")), text(part, "ETag").strip('"'))
        for part in children(parse(request), "Part")
    ]
    stored = bucket.complete(upload, listed, check)
    content: Fields = [
        ("Location", f"http://{request.headers.get('host', '')}{request.path}"),
        ("Bucket", bucket.name),
        ("Key", key),
        ("ETag", str(stored.etag)),
    ]
    return document("CompleteMultipartUploadResult", content, headers=headers(stored))


def abort(bucket: Bucket, key: str, request: Request) -> Response:
    bucket.abort(bucket.upload(key, request.query["uploadId"]))
    return Response(204)


def list_parts(bucket: Bucket, key: str, request: Request) -> Response:
    """Answer ListParts, in pages of `max-parts`."""
    upload = bucket.upload(key, request.query["uploadId"])
    after = int(request.query.get("part-number-marker", 0))
    limit = int(request.query.get("max-parts", 1000))
    numbers = [number for number in sorted(upload.parts) if number > after]
    listed = numbers[:limit]
    content: Fields = [
        ("Bucket", bucket.name),
        ("Key", key),
        ("UploadId", upload.id),
        ("PartNumberMarker", after),
        ("NextPartNumberMarker", listed[-1] if listed else 0),
        ("MaxParts", limit),
        ("IsTruncated", len(numbers) > limit),
    ]
    for number in listed:
        part = upload.parts[number]
        content.append(
            (
                "Part",
                [
                    ("PartNumber", number),
                    ("LastModified", timestamp(part.modified)),
                    ("ETag", f'"{part.etag}"'),
                    ("Size", part.body.size),
                ],
            )
        )
    return document("ListPartsResult", content)


def _number(request: Request) -> int:
    try:
        return int(request.query["partNumber"])
    except (KeyError, ValueError):
        raise RefusedError(400, "InvalidArgument", "partNumber") from None


# The XML API of Google Cloud Storage, which is near that of S3: clients send bearer tokens.
# obstore uses it with `GCSStore(bucket, base_url=server.url, bearer_token=TOKEN)`.

TOKEN = "test-token"
_CONDITION = "x-goog-if-generation-match"


class GCSServer(S3Server):
    """Google Cloud Storage with its buckets in memory. `tokens` are accepted as bearer tokens."""

    vendor = "x-goog-"

    def __init__(self, *, tokens: Iterable[str] = (TOKEN,), **options: Any) -> None:
        super().__init__(**options)
        self.tokens = set(tokens)

    @property
    def service_account(self) -> str:
        """A service account, as JSON, whose clients send requests here and without a token."""
        account = {
            "gcs_base_url": self.url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return json.dumps(account)

    def authenticate(self, request: Request, bucket: Bucket | None) -> None:
        """Check the bearer token. Raises RefusedError: 401 for a wrong one, 403 without one."""
        sent = request.sent_headers.get("authorization", "")
        token = sent.removeprefix("Bearer").strip()
        if token:
            if token not in self.tokens:
                raise RefusedError(401, "AuthenticationRequired", "the token is invalid or expired")
        elif not is_public(request, bucket):
            raise RefusedError(403, "AccessDenied", "anonymous callers have no access")

    def check_write(self, request: Request, present: StoredObject | None) -> None:
        """Check the generation that a write expects: 0 is no object. Raises RefusedError."""
        expected = request.headers.get(_CONDITION)
        generation = present.generation if present else 0
        if expected is not None and expected != str(generation):
            raise RefusedError(412, "PreconditionFailed", f"the generation is {generation}")

    def headers_of(self, stored: StoredObject) -> dict[str, str]:
        return {"ETag": str(stored.etag), "x-goog-generation": str(stored.generation)}

    def answer_object(self, request: Request, bucket: Bucket, key: str) -> Response:
        """Answer a request for an object, which has a generation that S3 does not have."""
        if "x-goog-copy-source" in request.headers and "uploadId" in request.query:
            raise RefusedError(501, "NotImplemented", "parts cannot be copied; use compose")
        if _CONDITION in request.headers and request.query.keys() & {"uploads", "uploadId"}:
            raise RefusedError(400, "NotImplemented", "uploads in parts take no preconditions")
        if request.method == "DELETE" and "uploadId" not in request.query:
            bucket.find(key)  # unlike S3, the deletion of what does not exist is an error
        if request.method in {"GET", "HEAD"} and (expected := request.headers.get(_CONDITION)):
            generation = bucket.find(key).generation
            if expected != str(generation):
                raise RefusedError(412, "PreconditionFailed", f"the generation is {generation}")
        return super().answer_object(request, bucket, key)
