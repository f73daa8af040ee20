"""Object stores to test against, behind one interface: servers of the tests, and real ones."""

from __future__ import annotations

import base64
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from azure.core.exceptions import ResourceExistsError
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

__all__ = [
    "AZURE_ACCOUNT",
    "AZURE_KEY",
    "PART",
    "StoredPart",
    "TestedStore",
    "connection_string",
    "serve",
]

PART = 1 << 18
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_S3RVER = "S3RVER"  # its key and its secret


class StoredPart(NamedTuple):
    """A part of an upload: the name of its object, and its number or id."""

    key: str
    number: str


class TestedStore(NamedTuple):
    """An empty bucket: `read` returns its objects, and `put` adds one, without weightctl.

    `read` takes the start of the names of objects. `list_arrived` returns the parts of uploads that
    are not complete. `server` is what clients connect to. `part` is in the target of requests that
    send a part, and `above` the number of names above an object in their path.
    """

    url: str
    server: Server
    read: Callable[..., dict[str, bytes]]
    put: Callable[[str, bytes], object]
    list_arrived: Callable[[], set[StoredPart]]
    part: str = "partNumber"
    above: int = 1

    def list_sent(self) -> list[StoredPart]:
        """Return the parts that the requests in the log send."""
        return [
            StoredPart(
                each.path.split("/", self.above + 1)[-1],
                each.query.get("partNumber") or base64.b64decode(each.query["blockid"]).decode(),
            )
            for each in self.server.exchanges("PUT", self.part)
        ]


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
            if kind == "azurite":
                with _azure(kind, server, monkeypatch) as found:
                    yield found
            else:
                yield _s3(kind, server, monkeypatch)


def _own(url: str, server: Server, bucket: Bucket) -> TestedStore:
    def read(start: str = "") -> dict[str, bytes]:
        return {key: bucket[key] for key in bucket if key.startswith(start)}

    def list_arrived() -> set[StoredPart]:
        uploads = bucket.uploads.values()
        return {StoredPart(each.key, str(number)) for each in uploads for number in each.parts}

    return TestedStore(url, server, read, bucket.put, list_arrived)


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

    def read(start: str = "") -> dict[str, bytes]:
        listed = client.list_objects_v2(Bucket=bucket, Prefix=start).get("Contents", [])
        keys = [each["Key"] for each in listed]
        return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    def put(key: str, content: bytes) -> None:
        client.put_object(Bucket=bucket, Key=key, Body=content)

    def list_arrived() -> set[StoredPart]:
        found = set[StoredPart]()
        for each in client.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
            key, upload = each["Key"], each["UploadId"]
            parts = client.list_parts(Bucket=bucket, Key=key, UploadId=upload).get("Parts", [])
            found |= {StoredPart(key, str(part["PartNumber"])) for part in parts}
        return found

    return TestedStore(f"s3://{bucket}", server, read, put, list_arrived)


@contextmanager
def _azure(
    kind: str, server: ForwardingServer, monkeypatch: pytest.MonkeyPatch
) -> Generator[TestedStore, None, None]:
    name = f"{kind}-{uuid.uuid4().hex[:12]}"
    _set(
        monkeypatch,
        AZURE_STORAGE_ACCOUNT_NAME=AZURE_ACCOUNT,
        AZURE_STORAGE_ACCOUNT_KEY=AZURE_KEY,
        AZURE_STORAGE_ENDPOINT=f"{server.url}/{AZURE_ACCOUNT}",
    )
    direct = connection_string(f"http://127.0.0.1:{server.upstream}")
    container = ContainerClient.from_connection_string(direct, name)
    # The name is new: if it exists, the answer to a first request came too late.
    with suppress(ResourceExistsError):
        container.create_container()

    def read(start: str = "") -> dict[str, bytes]:
        return {
            blob.name: container.download_blob(blob.name).readall()
            for blob in container.list_blobs(name_starts_with=start)
        }

    def list_arrived() -> set[StoredPart]:
        found = set[StoredPart]()
        for blob in container.list_blobs(include=["uncommittedblobs"]):
            _, blocks = container.get_blob_client(blob.name).get_block_list("all")
            found |= {StoredPart(blob.name, block.id) for block in blocks}
        return found

    def put(key: str, content: bytes) -> None:
        container.upload_blob(key, content, overwrite=True)

    yield TestedStore(f"az://{name}", server, read, put, list_arrived, "comp=block&", above=2)
    # The emulator has all objects in memory.
    container.delete_container()


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
