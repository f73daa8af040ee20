"""S3 with paths as `/bucket/key`, as its clients use it; signatures are checked."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from servers import multipart
from servers.base import Server
from servers.buckets import Bucket, StoredObject
from servers.documents import Fields, children, document, error, parse, text, timestamp
from servers.entities import range_of, serve
from servers.messages import RefusedError, Request, Response
from servers.signatures import Key, check_signature

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servers.blobs import Blob
    from servers.buckets import Check

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
        """Create a bucket, with the options of `Bucket`."""
        with self.lock:
            return self.buckets.setdefault(name, Bucket(name, **options))

    def refuse(self, request: Request, refusal: RefusedError) -> Response:
        """Return an error as S3 writes it."""
        return error(request, refusal)

    def answer(self, request: Request) -> Response:
        """Answer a request for the service, a bucket, or an object."""
        name, _, key = request.path[1:].partition("/")
        bucket = self.buckets.get(name)
        self.authenticate(request, bucket)
        _check_digests(request)
        if not name:
            return self._list_buckets()
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
        """Answer a request for an object."""

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
                return multipart.list_parts(bucket, key, request)
            case "PUT" if f"{self.vendor}copy-source" in request.headers:
                return multipart.copy_part(bucket, key, request, self._copied_range(request))
            case "PUT":
                return multipart.put_part(bucket, key, request)
            case "POST" if "uploads" in request.query:
                return multipart.create(bucket, key, request)
            case "POST":
                return multipart.complete(bucket, key, request, check, self.headers_of)
            case "DELETE":
                return multipart.abort(bucket, key, request)
            case _:
                raise RefusedError(405, "MethodNotAllowed", request.method)

    def _answer_bucket(self, request: Request, bucket: Bucket) -> Response:
        match request.method:
            case "GET" if "uploads" in request.query:
                return multipart.list_uploads(bucket, request)
            case "GET" if "location" in request.query:
                return document("LocationConstraint", "us-east-1")
            case "GET":
                return _list_objects(request, bucket)
            case "HEAD":
                return Response(200)
            case "POST" if "delete" in request.query:
                return _delete_objects(request, bucket)
            case "PUT":
                raise RefusedError(409, "BucketAlreadyOwnedByYou", bucket.name)
            case "DELETE":
                if bucket.objects:
                    raise RefusedError(409, "BucketNotEmpty", bucket.name)
                with self.lock:
                    del self.buckets[bucket.name]
                return Response(204)
            case _:
                raise RefusedError(405, "MethodNotAllowed", request.method)

    def _list_buckets(self) -> Response:
        with self.lock:
            listed: Fields = [
                ("Bucket", [("Name", each.name), ("CreationDate", timestamp(each.created))])
                for each in self.buckets.values()
            ]
        owner: Fields = [("ID", "owner"), ("DisplayName", "owner")]
        return document("ListAllMyBucketsResult", [("Owner", owner), ("Buckets", listed)])

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


def _delete_objects(request: Request, bucket: Bucket) -> Response:
    content = Fields()
    for each in children(parse(request), "Object"):
        key = text(each, "Key")
        bucket.delete(key)
        content.append(("Deleted", [("Key", key)]))
    return document("DeleteResult", content)
