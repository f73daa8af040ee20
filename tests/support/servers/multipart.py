"""Uploads in parts, as S3 and the XML API of Google Cloud Storage answer them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servers.documents import children, document, parse, text, timestamp
from servers.messages import RefusedError, Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers.blobs import Blob
    from servers.buckets import Bucket, Check, StoredObject
    from servers.documents import Fields


def create(bucket: Bucket, key: str, request: Request) -> Response:
    """Answer CreateMultipartUpload."""
    upload = bucket.begin(key, request.headers)
    return document(
        "InitiateMultipartUploadResult",
        [("Bucket", bucket.name), ("Key", key), ("UploadId", upload.id)],
    )


def put_part(bucket: Bucket, key: str, request: Request) -> Response:
    """Answer UploadPart."""
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
    """Answer CompleteMultipartUpload."""
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
    """Answer AbortMultipartUpload."""
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


def list_uploads(bucket: Bucket, request: Request) -> Response:
    """Answer ListMultipartUploads, in pages of `max-uploads`."""
    prefix = request.query.get("prefix", "")
    limit = int(request.query.get("max-uploads", 1000))
    after = (request.query.get("key-marker", ""), request.query.get("upload-id-marker", "\uffff"))
    found = sorted(
        (each for each in list(bucket.uploads.values()) if each.key.startswith(prefix)),
        key=lambda each: (each.key, each.id),
    )
    found = [each for each in found if (each.key, each.id) > after]
    listed = found[:limit]
    content: Fields = [
        ("Bucket", bucket.name),
        ("KeyMarker", after[0]),
        ("NextKeyMarker", listed[-1].key if listed else ""),
        ("NextUploadIdMarker", listed[-1].id if listed else ""),
        ("MaxUploads", limit),
        ("IsTruncated", len(found) > limit),
    ]
    content += [
        (
            "Upload",
            [("Key", each.key), ("UploadId", each.id), ("Initiated", timestamp(each.started))],
        )
        for each in listed
    ]
    return document("ListMultipartUploadsResult", content)


def _number(request: Request) -> int:
    try:
        return int(request.query["partNumber"])
    except (KeyError, ValueError):
        raise RefusedError(400, "InvalidArgument", "partNumber") from None
