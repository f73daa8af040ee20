"""Writes to Amazon S3 and compatible stores: uploads in numbered parts, and conditional puts.

Google Cloud Storage supports most of this API too; `gcs_uploads` implements the differences.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import boto3  # type: ignore[import-untyped]  # it has no types
from botocore import UNSIGNED  # type: ignore[import-untyped]  # it has no types
from botocore.config import Config  # type: ignore[import-untyped]  # it has no types
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # it has no types

from weightctl.errors import OutputError
from weightctl.storage.base import StoredObject, UploadedPart, Uploads
from weightctl.storage.location import split_url
from weightctl.storage.remote.failures import (
    ExistingObjectError,
    MissingObjectError,
    MissingUploadError,
    UnsupportedError,
    read_timeout,
    translate_refusal,
)
from weightctl.storage.remote.requests import cloud_environment
from weightctl.storage.traffic import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.storage.base import Bytes, FileRange

_ATTEMPTS = 8
_CONNECTIONS = 16


class PartUploads(Uploads, ABC):
    """Writes objects by the API of Amazon S3, with the client of a subclass.

    All methods may raise `OutputError`, and are thread-safe.
    """

    # The limits of S3: the smallest size of a part except the last, and the number of parts.
    least_part = 5 << 20
    most_parts = 10_000
    # The scheme of the URLs, and the errors of the client.
    scheme: ClassVar = "s3"
    errors: ClassVar[tuple[type[Exception], ...]] = (ClientError, BotoCoreError)

    @abstractmethod
    def client(self) -> Any:
        """Return a client of boto3; may raise one of `errors`."""

    def create(self, path: str) -> str:
        found = self._call(path, "create_multipart_upload")
        return str(found["UploadId"])

    def put_part(self, path: str, upload: str, number: int, data: Bytes) -> UploadedPart:
        found = self._call(
            path, "upload_part", UploadId=upload, PartNumber=number, Body=_body(data)
        )
        TRAFFIC.count(sent=len(data))
        return UploadedPart(str(found["ETag"]), len(data))

    def list_parts(self, path: str, upload: str) -> dict[int, UploadedPart] | None:
        parts: dict[int, UploadedPart] = {}
        marker = 0
        while True:
            try:
                page = self._call(path, "list_parts", UploadId=upload, PartNumberMarker=marker)
            except MissingUploadError:
                return None
            for part in page.get("Parts", ()):
                parts[int(part["PartNumber"])] = UploadedPart(str(part["ETag"]), int(part["Size"]))
            if not page.get("IsTruncated"):
                return parts
            marker = int(page["NextPartNumberMarker"])

    def complete(
        self, path: str, upload: str, parts: Mapping[int, UploadedPart], *, force: bool
    ) -> None:
        listed = [{"PartNumber": number, "ETag": parts[number].tag} for number in sorted(parts)]
        try:
            self._call(
                path,
                "complete_multipart_upload",
                UploadId=upload,
                MultipartUpload={"Parts": listed},
                **_condition(force=force),
            )
        except (ExistingObjectError, MissingUploadError):
            if not self._is_complete(path, parts):
                raise

    def _is_complete(self, path: str, parts: Mapping[int, UploadedPart]) -> bool:
        """Whether the object consists of these parts, so that only the answer was lost."""
        digests = (bytes.fromhex(parts[number].tag.strip('"')) for number in sorted(parts))
        return self._has_tag(path, f"{_md5(b''.join(digests))}-{len(parts)}")

    def abort(self, path: str, upload: str) -> None:
        try:
            self._call(path, "abort_multipart_upload", UploadId=upload)
        except MissingUploadError:
            return

    def put(self, path: str, content: Bytes, *, force: bool) -> None:
        try:
            self._call(path, "put_object", Body=_body(content), **_condition(force=force))
        except ExistingObjectError:
            if not self._has_tag(path, _md5(content)):
                raise
        TRAFFIC.count(sent=len(content))

    def _has_tag(self, path: str, tag: str) -> bool:
        """Whether the object has the ETag `tag`, so that only the answer to a request was lost."""
        found = self._call(path, "head_object")
        return str(found["ETag"]).strip('"') == tag

    def read(self, path: str, start: int = 0, nbytes: int | None = None) -> bytes:
        part = {} if nbytes is None else {"Range": f"bytes={start}-{start + nbytes - 1}"}
        found = self._call(path, "get_object", **part)
        content: bytes = found["Body"].read()
        TRAFFIC.count(read=len(content))
        return content

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with suppress(MissingObjectError):
                self._call(path, "delete_object")

    def list_objects(self, prefix: str) -> dict[str, StoredObject]:
        scheme, bucket, key = split_url(prefix)
        found: dict[str, StoredObject] = {}
        more: dict[str, str] = {}
        while True:
            page = self._request(prefix, bucket, "list_objects_v2", Prefix=key, **more)
            for each in page.get("Contents", ()):
                modified = float(each["LastModified"].timestamp())
                url = f"{scheme}://{bucket}/{each['Key']}"
                found[url] = StoredObject(int(each["Size"]), str(each["ETag"]), modified)
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": str(page["NextContinuationToken"])}

    def _call(self, path: str, method: str, **arguments: Any) -> Mapping[str, Any]:
        _, bucket, key = split_url(path)
        return self._request(path, bucket, method, Key=key, **arguments)

    def _request(self, path: str, bucket: str, method: str, **arguments: Any) -> Mapping[str, Any]:
        try:
            call: Callable[..., Mapping[str, Any]] = getattr(self.client(), method)
            return call(Bucket=bucket, **arguments)
        except self.errors as error:
            raise _translate(error, path) from error


class S3Uploads(PartUploads):
    """Writes objects of `s3://` URLs."""

    def client(self) -> Any:
        """Return a client with the credentials and the endpoint of the environment."""
        return _client(cloud_environment())

    def can_copy(self, source: str) -> bool:
        return source.startswith("s3://")

    def copy_part(
        self, path: str, upload: str, number: int, source: FileRange
    ) -> UploadedPart | None:
        _, bucket, key = split_url(source.file.path)
        last = source.offset + source.nbytes - 1
        tag = source.file.tag
        try:
            found = self._call(
                path,
                "upload_part_copy",
                UploadId=upload,
                PartNumber=number,
                CopySource={"Bucket": bucket, "Key": key},
                CopySourceRange=f"bytes={source.offset}-{last}",
                **({"CopySourceIfMatch": tag} if tag else {}),
            )
        except UnsupportedError:
            return None
        except ExistingObjectError as error:  # the precondition is about the source here
            raise OutputError(
                f"{source.file.path} changed while it was copied",
                hint="try again when nothing writes to it",
            ) from error
        return UploadedPart(str(found["CopyPartResult"]["ETag"]), source.nbytes)


def _body(content: Bytes) -> bytes | bytearray:
    """Return the body of a request; views are copied, since boto3 does not accept them."""
    return bytes(content) if isinstance(content, memoryview) else content


def _md5(content: Bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _condition(*, force: bool) -> dict[str, str]:
    return {} if force else {"IfNoneMatch": "*"}


def _translate(error: Any, path: str) -> OutputError:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    kind = type(error).__name__
    names = {code, str(status)} if status in {401, 403} else {code}
    if "Credentials" in kind or kind == "RefreshError":
        names.add("NoCredentials")
    return translate_refusal(path, code or kind, names)


@cache
def _client(_: tuple[tuple[str, str], ...]) -> Any:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return connect(endpoint, is_signed=not os.environ.get("AWS_SKIP_SIGNATURE"))


def connect(endpoint: str | None, *, is_signed: bool, region: str | None = None) -> Any:
    """Return a client of boto3; `endpoint` is the URL of a store, None for Amazon S3."""
    checksums = {
        # Not all other stores support the checksums of Amazon S3.
        "request_checksum_calculation": "when_required" if endpoint else "when_supported",
        "response_checksum_validation": "when_required",
    }
    config = Config(
        connect_timeout=10,
        read_timeout=read_timeout(),
        retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
        max_pool_connections=_CONNECTIONS,
        user_agent="weightctl",
        **({} if is_signed else {"signature_version": UNSIGNED}),
        **({"s3": {"addressing_style": "path"}} if endpoint else {}),
        **checksums,
    )
    session: Any = boto3.Session(region_name=region)
    client = session.client("s3", endpoint_url=endpoint, config=config)
    client.meta.events.register("before-call.s3.HeadBucket", _mark_redirected)
    client.meta.events.register("before-send.s3", _count_request)
    client.meta.events.register("needs-retry.s3", _count_retry)
    return client


def _mark_redirected(params: Any, **_: object) -> None:
    """Make boto3 request the region of a bucket only once, even if that request is redirected."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _count_request(**_: object) -> None:
    TRAFFIC.count(requests=1)


def _count_retry(attempts: int = 1, **_: object) -> None:
    if attempts > 1:
        TRAFFIC.count(retries=1)
