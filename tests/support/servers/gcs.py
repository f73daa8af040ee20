"""The XML API of Google Cloud Storage, which is near that of S3: clients send bearer tokens.

obstore uses it with `GCSStore(bucket, base_url=server.url, bearer_token=TOKEN)`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from servers.blobs import Blob
from servers.documents import children, document, parse, text
from servers.messages import RefusedError, Request, Response
from servers.s3 import S3Server, is_public

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servers.buckets import Bucket, StoredObject

TOKEN = "test-token"
MOST_COMPONENTS = 32
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
        """Return the ETag and the generation."""
        return {"ETag": str(stored.etag), "x-goog-generation": str(stored.generation)}

    def answer_object(self, request: Request, bucket: Bucket, key: str) -> Response:
        """Answer a request for an object, with the operation `compose` that S3 does not have."""
        if request.method == "PUT" and "compose" in request.query:
            return self._compose(request, bucket, key)
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

    def _compose(self, request: Request, bucket: Bucket, key: str) -> Response:
        components = list(children(parse(request), "Component"))
        if not 1 <= len(components) <= MOST_COMPONENTS:
            raise RefusedError(400, "InvalidArgument", f"{len(components)} components")
        bodies = list[Blob]()
        for component in components:
            stored = bucket.find(text(component, "Name"))
            expected = component.findtext("{*}Generation")
            if expected not in {None, str(stored.generation)}:
                raise RefusedError(404, "NoSuchKey", f"generation {expected}")
            bodies.append(stored.body)
        stored = bucket.put(
            key,
            Blob.joined(bodies),
            request.headers,
            lambda present: self.check_write(request, present),
        )
        return document(
            "ComposeResult", [("ETag", str(stored.etag))], headers=self.headers_of(stored)
        )
