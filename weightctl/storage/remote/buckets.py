"""Objects in the buckets of Amazon S3, Google Cloud Storage and Azure Blob Storage.

Credentials are those that other tools of each store use. obstore reads objects, and other libraries
write them, with the accounts in obstore's environment variables.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from weightctl.errors import FormatError, OutputError
from weightctl.storage.location import split_url
from weightctl.storage.remote.requests import NO_RETRIES, client_options, cloud_environment
from weightctl.storage.remote.store import RemoteEntry, RemoteStore, fetch_range, object_of
from weightctl.system.registry import load, name_install
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.storage.base import Uploads
    from weightctl.storage.remote.reader import Fetch, RemoteObject

# The classes that write objects, by URL scheme, which is also the name of the extra with their
# dependencies.
_WRITERS = {
    "s3": "weightctl.storage.remote.s3_uploads:S3Uploads",
    "gs": "weightctl.storage.remote.gcs_uploads:GCSUploads",
    "az": "weightctl.storage.remote.azure_uploads:AzureUploads",
}


class BucketStore(RemoteStore):
    """Objects with `s3://`, `gs://` and `az://` URLs."""

    def _list(self, directory: str) -> Mapping[str, RemoteEntry] | None:
        scheme, bucket, prefix = split_url(directory)
        found = obstore.list_with_delimiter(  # pyright: ignore[reportUnknownMemberType]  # an overload for pyarrow
            open_bucket(scheme, bucket), prefix or None, return_arrow=False
        )
        names = {
            os.path.basename(path.rstrip("/")): RemoteEntry(is_directory=True)
            for path in found["common_prefixes"]
        }
        objects = {os.path.basename(meta["path"]): object_of(meta) for meta in found["objects"]}
        if scheme == "az":
            objects = {name: each._replace(tag=_quote(each.tag)) for name, each in objects.items()}
        return names | {name: RemoteEntry(object=each) for name, each in objects.items()}

    def _look(self, path: str) -> RemoteObject:
        scheme, bucket, key = split_url(path)
        if not key:
            raise FileNotFoundError(path)
        return object_of(obstore.head(open_bucket(scheme, bucket), key))

    def _fetcher(self, path: str, known: RemoteObject | None) -> Fetch:
        scheme, bucket, key = split_url(path)
        store, tag = open_bucket(scheme, bucket), known.tag if known else ""
        return lambda start, stop: fetch_range(store, key, start, stop, tag)

    def uploads(self, path: str) -> Uploads:
        """Return the interface for writing; raises `OutputError` if a package is missing."""
        scheme = split_url(path)[0]
        try:
            made: Uploads = load(_WRITERS[scheme])()
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("weightctl"):
                raise
            raise OutputError(
                f"writing {path} needs the package {error.name}, which is not installed",
                hint=f"install it: {name_install(scheme)}",
            ) from error
        return made


def _quote(tag: str) -> str:
    """Return an ETag in quotes, as in headers, since Azure's listings leave them out."""
    return f'"{tag}"' if tag and '"' not in tag else tag


# The account and key of Microsoft's emulator, which are public.
_EMULATOR = "devstoreaccount1"
_EMULATOR_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_EMULATOR_URL = "http://127.0.0.1:10000"


class GoogleAccount(NamedTuple):
    """An account of Google Cloud Storage; if all fields are empty, the default of the machine.

    `service` is the content of a service account's JSON file.
    """

    endpoint: str = ""
    service: Mapping[str, Any] = {}
    token: str = ""
    is_anonymous: bool = False


class AzureAccount(NamedTuple):
    """An account of Azure Blob Storage; without a secret, the logged-in user's credentials apply.

    `signature` is a shared access signature, and `token` an OAuth token.
    """

    name: str
    endpoint: str
    key: str = ""
    signature: str = ""
    token: str = ""
    is_anonymous: bool = False


def google_account() -> GoogleAccount:
    """Return the account in the environment; raises `FormatError` if it is invalid."""
    service = _service_account()
    return GoogleAccount(
        _first("GOOGLE_BASE_URL") or str(service.get("gcs_base_url", "")),
        service,
        _first("GOOGLE_BEARER_TOKEN"),
        _is_on("GOOGLE_SKIP_SIGNATURE") or service.get("disable_oauth") is True,
    )


def _service_account() -> Mapping[str, Any]:
    text = _first("GOOGLE_SERVICE_ACCOUNT_KEY")
    path = _first("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
    if not text and not path:
        return {}
    try:
        if not text:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        found = json.loads(text)
    except (OSError, ValueError) as error:
        # The error's own text is not shown, since it may contain the key.
        raise _refusal("gs", f"{path or 'GOOGLE_SERVICE_ACCOUNT_KEY'} cannot be read") from error
    if not is_object(found):
        raise _refusal("gs", f"{path or 'GOOGLE_SERVICE_ACCOUNT_KEY'} is not a JSON object")
    return found


def azure_account() -> AzureAccount:
    """Return the account in the environment; raises `FormatError` if it is not named."""
    parts = _connection_string()
    if _is_on("AZURE_STORAGE_USE_EMULATOR") or parts.get("usedevelopmentstorage") == "true":
        name = _first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT") or _EMULATOR
        parts = {
            "accountname": name,
            "accountkey": _EMULATOR_KEY if name == _EMULATOR else "",
            "blobendpoint": f"{_first('AZURITE_BLOB_STORAGE_URL') or _EMULATOR_URL}/{name}",
        }
    name = _first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT") or parts.get(
        "accountname", ""
    )
    endpoint = _first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT") or parts.get("blobendpoint", "")
    if not name and not endpoint:
        raise _refusal("az", "no storage account is named")
    suffix = parts.get("endpointsuffix", "core.windows.net")
    protocol = parts.get("defaultendpointsprotocol", "https")
    signature = _first("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY") or parts.get(
        "sharedaccesssignature", ""
    )
    key = _first(
        "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY",
        "AZURE_STORAGE_KEY",
    ) or parts.get("accountkey", "")  # fmt: skip
    return AzureAccount(
        name,
        (endpoint or f"{protocol}://{name}.blob.{suffix}").rstrip("/"),
        key,
        "" if key else signature.removeprefix("?"),
        _first("AZURE_STORAGE_TOKEN"),
        _is_on("AZURE_SKIP_SIGNATURE"),
    )


def _connection_string() -> dict[str, str]:
    """Return the fields of the connection string, with their names in lower case."""
    fields = (
        field.partition("=") for field in _first("AZURE_STORAGE_CONNECTION_STRING").split(";")
    )
    return {name.strip().lower(): value.strip() for name, _, value in fields if value}


def _first(*names: str) -> str:
    """Return the value of the first environment variable that is set; empty if none is."""
    return next(filter(None, map(os.environ.get, names)), "")


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() in {"1", "on", "t", "true", "y", "yes"}


def _refusal(scheme: str, reason: str) -> FormatError:
    hints = {
        "gs": "check GOOGLE_SERVICE_ACCOUNT, the path of a service account's JSON file",
        "az": "set AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_CONNECTION_STRING",
    }
    return FormatError(f"{scheme}://", None, reason, hint=hints[scheme])


_PROFILES = (".aws/credentials", ".aws/config")


def open_bucket(scheme: str, bucket: str) -> S3Store | GCSStore | AzureStore:
    """Return the client of a bucket, with the credentials that other tools of the store use.

    Raises `FormatError` if the environment does not state them, or if they are invalid.
    """
    return _open_bucket(scheme, bucket, cloud_environment())


@cache
def _open_bucket(
    scheme: str, bucket: str, _: tuple[tuple[str, str], ...]
) -> S3Store | GCSStore | AzureStore:
    if scheme == "s3":
        return _open_s3(bucket)
    return _open_google(bucket) if scheme == "gs" else _open_azure(bucket)


def _open_google(bucket: str) -> GCSStore:
    options = client_options(google_account().endpoint)
    return GCSStore(bucket, client_options=options, retry_config=NO_RETRIES)


def _open_azure(container: str) -> AzureStore:
    account = azure_account()
    # obstore itself reads tokens and the logged-in user's credentials from the environment.
    secrets: dict[str, Any] = {}
    if account.key:
        secrets["account_key"] = account.key
    elif account.signature:
        secrets["sas_key"] = account.signature
    return AzureStore(
        container,
        account_name=account.name,
        endpoint=account.endpoint,
        # If the emulator is used, `account.endpoint` is already its URL.
        use_emulator=False,
        client_options=client_options(account.endpoint),
        retry_config=NO_RETRIES,
        **secrets,
    )


def _open_s3(bucket: str) -> S3Store:
    options: dict[str, Any] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if _has_profile():
        session = _profile_session(bucket)
        from obstore.auth.boto3 import Boto3CredentialProvider

        options["credential_provider"] = Boto3CredentialProvider(session)
        if session.region_name:
            options["region"] = session.region_name
    if endpoint:
        options["endpoint"] = endpoint
    return S3Store(
        bucket, client_options=client_options(endpoint), retry_config=NO_RETRIES, **options
    )


def _has_profile() -> bool:
    """Whether the credentials are in a profile in a file, and not in the environment."""
    if "AWS_ACCESS_KEY_ID" in os.environ or os.environ.get("AWS_SKIP_SIGNATURE"):
        return False
    files = (os.path.join(os.path.expanduser("~"), name) for name in _PROFILES)
    return "AWS_PROFILE" in os.environ or any(map(os.path.isfile, files))


def _profile_session(bucket: str) -> Any:  # boto3 has no types
    try:
        import boto3  # type: ignore[import-untyped]  # it has no types
    except ModuleNotFoundError as error:
        raise FormatError(
            f"s3://{bucket}",
            None,
            "the AWS credentials are in a profile, which needs the package boto3",
            hint=f"install it: {name_install('s3')}; or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY",
        ) from error
    return boto3.Session()
