"""Object stores to test against, behind one interface: servers of the tests, and real ones."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from azure.storage.blob import ContainerClient
from boto3 import client as boto3_client
from botocore.config import Config

from remote_stores import BUCKET, serve_s3
from servers.forwarding import ForwardingServer
from servers.gcs import TOKEN, GCSServer
from weightctl.storage.remote import upload
from weightctl.storage.remote.s3_uploads import PartUploads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import pytest

    from servers.base import Server
    from servers.buckets import Bucket

__all__ = ["AZURE_ACCOUNT", "AZURE_KEY", "PART", "TestedStore", "connection_string", "serve"]

PART = 1 << 18
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_S3RVER = "S3RVER"  # its key and its secret


class TestedStore(NamedTuple):
    """An empty bucket: `read` returns its objects, and `put` adds one, without weightctl.

    `server` is what clients connect to. `part` is in the target of requests that send a part.
    """

    url: str
    server: Server
    read: Callable[[], dict[str, bytes]]
    put: Callable[[str, bytes], object]
    part: str = "partNumber"


@contextmanager
def serve(
    kind: str, monkeypatch: pytest.MonkeyPatch, ports: Callable[[str], int]
) -> Generator[TestedStore, None, None]:
    """Run a store; `ports` returns the port of a real server by its name."""
    monkeypatch.setattr(upload, "PART", PART)
    monkeypatch.setattr(PartUploads, "least_part", PART)
    monkeypatch.setenv("WEIGHTCTL_TIMEOUT", "5")
    if kind == "s3":
        with serve_s3(monkeypatch) as s3:
            yield _own(f"s3://{BUCKET}", s3, s3.buckets[BUCKET])
    elif kind == "gs":
        with GCSServer() as gcs:
            bucket = gcs.create_bucket(BUCKET, smallest_part=PART)
            _set(monkeypatch, GOOGLE_BASE_URL=gcs.url, GOOGLE_BEARER_TOKEN=TOKEN)
            yield _own(f"gs://{BUCKET}", gcs, bucket)
    else:
        with ForwardingServer(ports(kind)) as server:
            make = _azure if kind == "azurite" else _s3
            yield make(kind, server, monkeypatch)


def _own(url: str, server: Server, bucket: Bucket) -> TestedStore:
    return TestedStore(url, server, lambda: {key: bucket[key] for key in bucket}, bucket.put)


def _s3(kind: str, server: ForwardingServer, monkeypatch: pytest.MonkeyPatch) -> TestedStore:
    _set(
        monkeypatch,
        AWS_ENDPOINT_URL=server.url,
        AWS_ACCESS_KEY_ID=_S3RVER,
        AWS_SECRET_ACCESS_KEY=_S3RVER,
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
    )
    config = Config(
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client: Any = boto3_client(
        "s3", endpoint_url=f"http://127.0.0.1:{server.upstream}", config=config
    )
    bucket = f"{kind}-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)

    def read() -> dict[str, bytes]:
        listed = client.list_objects_v2(Bucket=bucket).get("Contents", [])
        keys = [each["Key"] for each in listed]
        return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    def put(key: str, content: bytes) -> None:
        client.put_object(Bucket=bucket, Key=key, Body=content)

    return TestedStore(f"s3://{bucket}", server, read, put)


def _azure(kind: str, server: ForwardingServer, monkeypatch: pytest.MonkeyPatch) -> TestedStore:
    name = f"{kind}-{uuid.uuid4().hex[:12]}"
    _set(
        monkeypatch,
        AZURE_STORAGE_ACCOUNT_NAME=AZURE_ACCOUNT,
        AZURE_STORAGE_ACCOUNT_KEY=AZURE_KEY,
        AZURE_STORAGE_ENDPOINT=f"{server.url}/{AZURE_ACCOUNT}",
    )
    direct = connection_string(f"http://127.0.0.1:{server.upstream}")
    container = ContainerClient.from_connection_string(direct, name)
    container.create_container()

    def read() -> dict[str, bytes]:
        return {
            blob.name: container.download_blob(blob.name).readall()
            for blob in container.list_blobs()
        }

    def put(key: str, content: bytes) -> None:
        container.upload_blob(key, content, overwrite=True)

    return TestedStore(f"az://{name}", server, read, put, "comp=block&")


def connection_string(base: str) -> str:
    """Return the connection string of the emulator at a URL."""
    fields = {
        "DefaultEndpointsProtocol": "http",
        "AccountName": AZURE_ACCOUNT,
        "AccountKey": AZURE_KEY,
        "BlobEndpoint": f"{base}/{AZURE_ACCOUNT}",
    }
    return ";".join(f"{name}={value}" for name, value in fields.items())


def _set(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
