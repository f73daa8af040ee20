"""Writing to Google Cloud Storage, by its XML API: S3's, with bearer tokens and other conditions.

Uploads in parts take no conditions there, and replace what has their name. An upload has a
temporary name therefore, and the complete object is copied to its name: the store does that without
moving bytes, and only if nothing has the name.
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
from weightctl.storage.remote.accounts import google_account
from weightctl.storage.remote.bucket_clients import open_bucket
from weightctl.storage.remote.requests import cloud_environment, repeat, translate_error
from weightctl.storage.remote.s3_uploads import PartUploads, connect
from weightctl.system.temporary import new_token, temporary_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.storage.base import Bytes, UploadedPart

__all__ = ["GCSUploads"]

_ENDPOINT = "https://storage.googleapis.com"
_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
# Metadata of an object: the token of the upload that it comes from.
_TOKEN = "weightctl-upload"  # noqa: S105  # not a secret


class GCSUploads(PartUploads):
    """Writes objects of `gs://` URLs.

    The id of an upload is the token of its temporary name, a colon, and the id in the store.
    """

    scheme = "gs"
    errors: ClassVar[tuple[type[Exception], ...]] = (ClientError, BotoCoreError, GoogleAuthError)

    def client(self) -> Any:
        """Return a client with the credentials and the endpoint of the environment."""
        return _client(cloud_environment())

    def create(self, path: str) -> str:
        """Begin an upload in parts; return its id."""
        token = new_token()
        found = self._call(
            temporary_name(path, token), "create_multipart_upload", Metadata={_TOKEN: token}
        )
        return f"{token}:{found['UploadId']}"

    def put_part(self, path: str, upload: str, number: int, data: Bytes) -> UploadedPart:
        """Upload part `number`, from 1; a part of this number is replaced."""
        return super().put_part(*_target(path, upload), number, data)

    def list_parts(self, path: str, upload: str) -> dict[int, UploadedPart] | None:
        """Return the parts that were uploaded, by number; None if the upload does not exist."""
        return super().list_parts(*_target(path, upload))

    def complete(
        self, path: str, upload: str, parts: Mapping[int, UploadedPart], *, force: bool
    ) -> None:
        """Make an object of parts; it appears whole. Without `force` nothing is replaced."""
        target, number = _target(path, upload)
        super().complete(target, number, parts, force=True)
        self._copy(target, path, upload.partition(":")[0], force=force)
        self.delete([target])

    def abort(self, path: str, upload: str) -> None:
        """End an upload, and remove its parts; do nothing if it has ended."""
        target, number = _target(path, upload)
        super().abort(target, number)
        # What a run has left that stopped between the two steps of a completion.
        self.delete([target])

    def _copy(self, source: str, path: str, token: str, *, force: bool) -> None:
        (scheme, bucket, name), (_, _, key) = split_url(source), split_url(path)
        store = open_bucket(scheme, bucket)
        try:
            repeat(lambda: obstore.copy(store, name, key, overwrite=force), path)
        except exceptions.AlreadyExistsError as error:
            # A repeated request finds the object that the first one made.
            if self._headers(path).get(f"x-goog-meta-{_TOKEN}") != token:
                raise translate_error(error, path, "written") from error
        except Exception as error:
            raise translate_error(error, path, "written") from error

    def _is_complete(self, path: str, parts: Mapping[int, UploadedPart]) -> bool:
        """Whether the object was made: its name is that of one upload, and its ETag no digest."""
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
    """Return the temporary name that an upload has, and its id in the store."""
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
    """Give the condition and the metadata of a request the names that Google's API has."""
    headers = request.headers
    if headers.pop("If-None-Match", None) is not None:
        headers["x-goog-if-generation-match"] = "0"
    if (token := headers.pop(f"x-amz-meta-{_TOKEN}", None)) is not None:
        headers[f"x-goog-meta-{_TOKEN}"] = token


def _authorizer() -> Callable[..., None]:
    """Return what adds a token to a request, of the credentials that obstore reads with."""
    account = google_account()
    if account.is_anonymous:
        return _ignore
    # google-auth is typed in part.
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
    """Add no token to a request."""


def _authorize(credentials: Any, transport: Any, lock: Lock, request: Any, **_: object) -> None:
    with lock:  # one thread renews the token
        credentials.before_request(transport, request.method, request.url, request.headers)
