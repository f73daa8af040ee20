"""Writes to Azure Blob Storage: uploads blocks with ids, and commits lists of them as objects.

Azure does not have ids of uploads: the uncommitted blocks of a blob are kept for a week. The ids of
blocks therefore begin with a token of their upload, and end with the number of the part.
"""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from azure.core import MatchConditions
from azure.core.credentials import AccessToken, AzureSasCredential
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
)
from azure.storage.blob import (
    BlobBlock,
    BlobSasPermissions,
    BlobServiceClient,
    ExponentialRetry,
    generate_blob_sas,
)

from weightctl.errors import FormatError, OutputError
from weightctl.storage.base import StoredObject, UploadedPart, Uploads
from weightctl.storage.location import split_url
from weightctl.storage.remote.buckets import AzureAccount, azure_account
from weightctl.storage.remote.failures import (
    ChangedSourceError,
    DeniedError,
    ExistingObjectError,
    MissingObjectError,
    UnsupportedError,
    read_timeout,
    translate_refusal,
)
from weightctl.storage.remote.requests import cloud_environment, wait_before
from weightctl.storage.traffic import TRAFFIC
from weightctl.system.temporary import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from azure.storage.blob import BlobClient

    from weightctl.storage.base import Bytes, FileRange

_ATTEMPTS = 8
_LARGEST_PUT = 256 << 20
# The digits of a part's number in a block id, since all ids of a blob must have the same length.
_DIGITS = 5
_SCOPE = "https://storage.azure.com/.default"
# The hours for which a signature is valid at least, and after which another one is made.
_SIGNED_HOURS, _RENEWED_HOURS = 4, 2


class AzureUploads(Uploads):
    """Writes objects of `az://` URLs. All methods may raise `OutputError`, and are thread-safe."""

    # The limits of Azure. Blocks may have any size.
    least_part = 1
    most_parts = 50_000

    def create(self, path: str) -> str:
        """Return a new id for an upload in parts, without a request."""
        del path
        return new_token()

    def put_part(self, path: str, upload: str, number: int, data: Bytes) -> UploadedPart:
        name = _block(upload, number)
        _call(path, lambda blob: blob.stage_block(name, bytes(data), validate_content=True))
        TRAFFIC.count(sent=len(data))
        return UploadedPart(name, len(data))

    def can_copy(self, source: str) -> bool:
        return source.startswith("az://")

    def copy_part(
        self, path: str, upload: str, number: int, source: FileRange
    ) -> UploadedPart | None:
        name, tag = _block(upload, number), source.file.tag
        options: dict[str, Any] = {"headers": {"x-ms-source-if-match": tag}} if tag else {}
        read = _open_source(source.file.path)
        if read.authorization:
            options["source_authorization"] = read.authorization
        try:
            _call(
                path,
                lambda blob: blob.stage_block_from_url(
                    name, read.url, source.offset, source.nbytes, **options
                ),
            )
        except (DeniedError, UnsupportedError):
            # The caller sends the bytes instead. If that fails too, the output is not accessible.
            return None
        except ChangedSourceError as error:
            raise OutputError(
                f"{source.file.path} changed while it was copied",
                hint="try again when nothing writes to it",
            ) from error
        return UploadedPart(name, source.nbytes)

    def list_parts(self, path: str, upload: str) -> dict[int, UploadedPart] | None:
        try:
            _, blocks = _call(path, lambda blob: blob.get_block_list("uncommitted"))
        except MissingObjectError:
            return None
        found = {
            int(block.id[-_DIGITS:]): UploadedPart(block.id, block.size)
            for block in blocks
            if block.id.startswith(f"{upload}-")
        }
        return found or None

    def complete(
        self, path: str, upload: str, parts: Mapping[int, UploadedPart], *, force: bool
    ) -> None:
        names = [_block(upload, number) for number in sorted(parts)]
        blocks = list(map(BlobBlock, names))
        try:
            _call(path, lambda blob: blob.commit_block_list(blocks, **_condition(force=force)))
        except ExistingObjectError:
            # If the answer was lost, the repeated request finds the object of the first one.
            committed, _ = _call(path, lambda blob: blob.get_block_list("committed"))
            if [block.id for block in committed] != names:
                raise

    def abort(self, path: str, upload: str) -> None:
        """Do nothing, since the store removes blocks after a week, or when the blob is written."""

    def put(self, path: str, content: Bytes, *, force: bool) -> None:
        data = bytes(content)
        try:
            _call(path, lambda blob: blob.upload_blob(data, overwrite=force, validate_content=True))
        except ExistingObjectError:
            found = _call(path, lambda blob: blob.get_blob_properties())
            digest = hashlib.md5(data, usedforsecurity=False).digest()
            if bytes(found.content_settings.content_md5 or b"") != digest:
                raise
        TRAFFIC.count(sent=len(content))

    def read(self, path: str, start: int = 0, nbytes: int | None = None) -> bytes:
        offset = None if nbytes is None else start
        content: bytes = _call(
            path, lambda blob: blob.download_blob(offset=offset, length=nbytes).readall()
        )
        TRAFFIC.count(read=len(content))
        return content

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                _call(path, lambda blob: blob.delete_blob())
            except MissingObjectError:
                continue

    def list_objects(self, prefix: str) -> dict[str, StoredObject]:
        scheme, container, key = split_url(prefix)

        def request() -> dict[str, StoredObject]:
            listed = _client(cloud_environment()).get_container_client(container)
            return {
                f"{scheme}://{container}/{blob.name}": StoredObject(
                    blob.size, blob.etag, blob.last_modified.timestamp()
                )
                for blob in listed.list_blobs(name_starts_with=key)
            }

        found: dict[str, StoredObject] = _translating(prefix, request)
        return found


class _CopySource(NamedTuple):
    """The URL from which the store reads an object.

    The URL has a signature if one is needed; `authorization` is a header with a token instead.
    """

    url: str
    authorization: str = ""


def _open_source(path: str) -> _CopySource:
    """Return the URL and authorization that let the store read an object for this account."""
    account, (_, container, key) = azure_account(), split_url(path)
    client = _client(cloud_environment()).get_blob_client(container, key)
    url = str(client.url).partition("?")[0]
    if account.is_anonymous:
        return _CopySource(url)
    if account.key:
        period = int(time.time() // 3600 // _RENEWED_HOURS)
        return _CopySource(f"{url}?{_sign(account, container, key, period)}")
    if account.signature:
        return _CopySource(f"{url}?{account.signature}")
    credential: Any = client.credential
    return _CopySource(url, f"Bearer {credential.get_token(_SCOPE).token}")


@cache
def _sign(account: AzureAccount, container: str, key: str, period: int) -> str:
    """Return a signature that allows reading an object.

    `period` is the number of periods of two hours since 1970; a signature is made once for each,
    and is valid for at least four hours.
    """
    hours = period * _RENEWED_HOURS + _RENEWED_HOURS + _SIGNED_HOURS
    signature: str = generate_blob_sas(
        account.name,
        container,
        key,
        account_key=account.key,
        permission=BlobSasPermissions(read=True),
        expiry=datetime.fromtimestamp(hours * 3600, UTC),
    )
    return signature


class _GivenToken:
    """An OAuth token from the environment, which is not renewed."""

    def __init__(self, token: str) -> None:
        self._token = token

    def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken(self._token, int(time.time()) + 3600)


class _Retries(ExponentialRetry):
    """Repeats requests as often, and after the same waits, as those of the other stores."""

    def __init__(self) -> None:
        # Without the others, three refused connections, lost answers or errors would be the end.
        times = _ATTEMPTS - 1
        super().__init__(
            retry_total=times, retry_connect=times, retry_read=times, retry_status=times
        )

    def get_backoff_time(self, settings: dict[str, Any]) -> float:
        TRAFFIC.count(retries=1)
        return wait_before(int(settings["count"]))


def _block(upload: str, number: int) -> str:
    return f"{upload}-{number:0{_DIGITS}d}"


def _condition(*, force: bool) -> dict[str, Any]:
    return {} if force else {"match_condition": MatchConditions.IfMissing}


def _call(path: str, request: Callable[[BlobClient], Any]) -> Any:
    _, container, key = split_url(path)
    return _translating(
        path, lambda: request(_client(cloud_environment()).get_blob_client(container, key))
    )


def _translating(path: str, request: Callable[[], Any]) -> Any:
    try:
        return request()
    except (AzureError, FormatError) as error:
        raise _translate(error, path) from error


def _translate(error: AzureError | FormatError, path: str) -> OutputError:
    if isinstance(error, FormatError):
        return OutputError(f"{path}: {error.reason}", hint=error.hint)
    found: Any = getattr(error, "error_code", None)  # set if the store has answered
    code = str(getattr(found, "value", found) or type(error).__name__)
    names = {code, *(kind.__name__ for kind in type(error).__mro__)}
    if isinstance(error, HttpResponseError) and error.status_code in {401, 403}:
        names.add(str(error.status_code))
    return translate_refusal(path, code, names)


@cache
def _client(_: tuple[tuple[str, str], ...]) -> BlobServiceClient:
    account = azure_account()
    credential: Any = None
    if account.is_anonymous:
        credential = None
    elif account.key:
        credential = {"account_name": account.name, "account_key": account.key}
    elif account.signature:
        credential = AzureSasCredential(account.signature)
    elif account.token:
        credential = _GivenToken(account.token)
    else:
        from azure.identity import DefaultAzureCredential  # rarely needed

        credential = DefaultAzureCredential()
    return BlobServiceClient(
        account.endpoint,
        credential=credential,
        connection_timeout=10,
        read_timeout=read_timeout(),
        retry_policy=_Retries(),
        max_single_put_size=_LARGEST_PUT,
        raw_request_hook=_count_request,
        user_agent="weightctl",
    )


def _count_request(_: object) -> None:
    TRAFFIC.count(requests=1)
