"""Opens clients that read buckets, with the credentials that other tools of each store use."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from obstore.store import AzureStore, GCSStore, S3Store

from weightctl.errors import FormatError
from weightctl.storage.remote.accounts import azure_account, google_account
from weightctl.storage.remote.requests import NO_RETRIES, client_options, cloud_environment

if TYPE_CHECKING:
    from typing import Any

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
            hint="install it: `pip install 'weightctl[s3]'`; or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY",
        ) from error
    return boto3.Session()
