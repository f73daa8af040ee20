"""Writes to Google Cloud Storage by its XML API, which is similar to that of S3.

It differs in bearer tokens and in the names of conditions. Uploads in parts do not support
conditions, and replace existing objects. Therefore an upload has a temporary name, and the complete
object is copied to its final name. The store does that without moving bytes, and can refuse to
replace an object.
"""

from __future__ import annotations

from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

import google.auth
import obstore
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # it has no types
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from google.oauth2 import credentials as oauth2
from google.oauth2 import service_account
from obstore import exceptions

from weightctl.errors import OutputError
from weightctl.storage.location import split_url
from weightctl.storage.remote.buckets import google_account, open_bucket
from weightctl.storage.remote.failures import translate_error
from weightctl.storage.remote.requests import cloud_environment, repeat
from weightctl.storage.remote.s3_uploads import PartUploads, connect
from weightctl.system.temporary import new_token, temporary_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.storage.base import Bytes, UploadedPart

_ENDPOINT = "https://storage.googleapis.com"
_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
# The metadata key for the token of the upload that an object comes from.
_TOKEN = "weightctl-upload"  # noqa: S105  # not a secret


class GCSUploads(PartUploads):
    """Writes objects of `gs://` URLs.

    The id of an upload consists of the token in its temporary name, a colon, and the store's id.
    """

    scheme = "gs"
    errors: ClassVar[tuple[type[Exception], ...]] = (ClientError, BotoCoreError, GoogleAuthError)

    def client(self) -> Any:
        return _client(cloud_environment())

    def create(self, path: str) -> str:
        token = new_token()
        found = self._call(
            temporary_name(path, token), "create_multipart_upload", Metadata={_TOKEN: token}
        )
        return f"{token}:{found['UploadId']}"

    def put_part(self, path: str, upload: str, number: int, data: Bytes) -> UploadedPart:
        return super().put_part(*_target(path, upload), number, data)

    def list_parts(self, path: str, upload: str) -> dict[int, UploadedPart] | None:
        return super().list_parts(*_target(path, upload))

    def complete(
        self, path: str, upload: str, parts: Mapping[int, UploadedPart], *, force: bool
    ) -> None:
        target, number = _target(path, upload)
        super().complete(target, number, parts, force=True)
        self._copy(target, path, upload.partition(":")[0], force=force)
        self.delete([target])

    def abort(self, path: str, upload: str) -> None:
        """Abort an upload, and remove its parts; do nothing if it does not exist."""
        target, number = _target(path, upload)
        super().abort(target, number)
        # A run that stopped between the two steps of `complete` has left this object.
        self.delete([target])

    def _copy(self, source: str, path: str, token: str, *, force: bool) -> None:
        (scheme, bucket, name), (_, _, key) = split_url(source), split_url(path)
        store = open_bucket(scheme, bucket)
        try:
            repeat(lambda: obstore.copy(store, name, key, overwrite=force), path)
        except exceptions.AlreadyExistsError as error:
            # If the answer was lost, the repeated request finds the object of the first one.
            if self._headers(path).get(f"x-goog-meta-{_TOKEN}") != token:
                raise translate_error(error, path, "written") from error
        except Exception as error:
            raise translate_error(error, path, "written") from error

    def _is_complete(self, path: str, parts: Mapping[int, UploadedPart]) -> bool:
        """Whether the object exists; its temporary name is used by a single upload."""
        del parts
        try:
            return bool(self._headers(path))
        except OutputError:
            return False

    def _headers(self, path: str) -> Mapping[str, str]:
        found = self._call(path, "head_object")
        headers: Mapping[str, str] = found["ResponseMetadata"]["HTTPHeaders"]
        return headers


def _target(path: str, upload: str) -> tuple[str, str]:
    """Return the temporary name of an upload, and its id in the store."""
    token, _, number = upload.partition(":")
    return temporary_name(path, token), number


@cache
def _client(_: tuple[tuple[str, str], ...]) -> Any:
    endpoint = google_account().endpoint or _ENDPOINT
    client = connect(endpoint, is_signed=False, region="auto")
    client.meta.events.register("before-send.s3", _rename_headers)
    client.meta.events.register("before-send.s3", _authorizer())
    return client


def _rename_headers(request: Any, **_: object) -> None:
    """Rename the condition and the metadata of a request to Google's header names."""
    headers = request.headers
    if headers.pop("If-None-Match", None) is not None:
        headers["x-goog-if-generation-match"] = "0"
    if (token := headers.pop(f"x-amz-meta-{_TOKEN}", None)) is not None:
        headers[f"x-goog-meta-{_TOKEN}"] = token


def _authorizer() -> Callable[..., None]:
    """Return a function that adds a token to a request, from the credentials that obstore uses."""
    account = google_account()
    if account.is_anonymous:
        return _ignore
    # google-auth has incomplete type annotations.
    make: Any = service_account.Credentials
    owner: Any = oauth2
    machine: Any = google.auth
    if account.token:
        credentials: Any = owner.Credentials(account.token)
    elif account.service:
        credentials = make.from_service_account_info(account.service, scopes=_SCOPES)
    else:
        credentials, _ = machine.default(scopes=_SCOPES)
    return partial(_authorize, credentials, Request(), Lock())


def _ignore(**_: object) -> None:
    """Leave a request without a token."""


def _authorize(credentials: Any, transport: Any, lock: Lock, request: Any, **_: object) -> None:
    with lock:  # only one thread at a time may renew the token
        credentials.before_request(transport, request.method, request.url, request.headers)
