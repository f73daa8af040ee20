"""Object stores to test against, servers of the tests and real ones, and their faults."""

from __future__ import annotations

import base64
import random
import threading
import uuid
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

from lazy import boto3
from servers.base import (
    Action,
    Answer,
    Close,
    CutUpload,
    ForwardingServer,
    LoseAnswer,
    OtherETag,
    PlainServer,
    Redirect,
    Reset,
    Stall,
    Truncate,
)
from servers.s3 import KEY, TOKEN, GCSServer, S3Server
from weightctl import convert, open_weights
from weightctl.errors import FormatError, OutputError, WeightctlError
from weightctl.storage.location import store_of
from weightctl.storage.remote import prefetch, requests, s3_uploads, upload
from weightctl.storage.remote.s3_uploads import PartUploads, S3Uploads
from weightctl.write import journal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    from servers.base import Server
    from servers.s3 import Bucket
    from weightctl.storage.base import Uploads


# Servers of this process behind URLs, for tests that read and write remote checkpoints.

BUCKET = "models"
_PART = 1 << 18


@cache
def _make_cached_load() -> Callable[..., Any]:
    from botocore.loaders import JSONFileLoader

    load = cache(JSONFileLoader().load_file)
    return lambda _, path: load(path)


def load_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have boto3 read its description of S3 once for all clients, since each takes 0.1 s."""
    monkeypatch.setattr("botocore.loaders.JSONFileLoader.load_file", _make_cached_load())


@contextmanager
def serve_s3(
    monkeypatch: pytest.MonkeyPatch, *, latency: float = 0, directory: str | None = None
) -> Generator[S3Server, None, None]:
    """Run a server with an empty bucket, which `s3://models/` URLs then lead to.

    Parts of uploads are small, so that small files have many of them.
    """
    load_once(monkeypatch)
    with S3Server(latency=latency, directory=directory) as server:
        server.create_bucket(BUCKET, smallest_part=_PART)
        monkeypatch.setattr(upload, "PART", _PART)
        monkeypatch.setattr(S3Uploads, "least_part", _PART)
        monkeypatch.setattr(requests, "_FIRST_WAIT", 0.01)
        for name, value in {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": KEY.access,
            "AWS_SECRET_ACCESS_KEY": KEY.secret,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "WEIGHTCTL_TIMEOUT": "2",
        }.items():
            monkeypatch.setenv(name, value)
        yield server


@contextmanager
def serve_web(monkeypatch: pytest.MonkeyPatch, root: Path) -> Generator[PlainServer, None, None]:
    """Run a web server of the files below a directory."""
    monkeypatch.setenv("WEIGHTCTL_TIMEOUT", "2")
    with PlainServer(root=root) as server:
        yield server


def put_files(server: S3Server, directory: Path, prefix: str) -> str:
    """Put the files below a directory into the bucket; return the URL of the prefix."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            key = f"{prefix}/{path.relative_to(directory)}"
            server.buckets[BUCKET].put(key, path.read_bytes())
    return f"s3://{BUCKET}/{prefix}"


# Object stores to test against, behind one interface: servers of the tests, and real ones.

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
    load_once(monkeypatch)
    monkeypatch.setattr(upload, "PART", PART)
    monkeypatch.setattr(PartUploads, "least_part", PART)
    monkeypatch.setattr(requests, "_FIRST_WAIT", 0.01)
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
    from botocore.config import Config

    config = Config(
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client: Any = boto3.client(
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
    from azure.core.exceptions import ResourceExistsError
    from azure.storage.blob import ContainerClient

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


def writer_of(url: str) -> Uploads:
    found = store_of(url)
    assert found is not None
    return found.uploads(url)


def expect_refusals(url: str, secret: str, variable: str) -> None:
    """Expect reads and writes to be refused with a hint at a variable, and without the secret."""
    with pytest.raises(FormatError) as read:
        open_weights(f"{url}/a.safetensors")
    with pytest.raises(OutputError) as written:
        writer_of(url).put(f"{url}/b", b"1", force=False)
    for error in (read.value, written.value):
        assert variable in error.hint
        assert secret not in str(error)


# Faults of servers at random moments, and what has to hold after each.


class ServerFault(NamedTuple):
    """What goes wrong, with which method, and whether a run completes if it happens once."""

    action: Action
    is_passing: bool
    method: str | None = None


_DENIALS = {
    "expired token": ServerFault(Answer(400, "ExpiredToken"), is_passing=False),
    "401": ServerFault(Answer(401), is_passing=False),
    "403": ServerFault(Answer(403), is_passing=False),
}
READ_FAULTS = {
    "503": ServerFault(Answer(503), is_passing=True),
    "reset": ServerFault(Reset(1000), is_passing=True),
    "stall": ServerFault(Stall(3, 1000), is_passing=True),
    "short body": ServerFault(Close(1000), is_passing=True),
    "wrong length": ServerFault(Truncate(1000), is_passing=True, method="GET"),
    "lost answer": ServerFault(LoseAnswer(), is_passing=True),
    "changed ETag": ServerFault(OtherETag(), is_passing=False),
    **_DENIALS,
}
WRITE_FAULTS = {
    "503": ServerFault(Answer(503), is_passing=True),
    "reset": ServerFault(Reset(), is_passing=True),
    "stall": ServerFault(Stall(3), is_passing=True),
    "cut upload": ServerFault(CutUpload(100), is_passing=True),
    "lost answer": ServerFault(LoseAnswer(), is_passing=True),
    "redirect": ServerFault(Redirect("http://localhost:9/"), is_passing=False),
    **_DENIALS,
}


def attempt(source: str | Path, out: str | Path, **options: Any) -> WeightctlError | None:
    """Convert; return the error that prevents it."""
    try:
        convert(source, out, **options)
    except WeightctlError as error:
        return error
    return None


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have requests small, timeouts and waits short, and a journal from the first moment."""
    monkeypatch.setattr(prefetch, "CHUNK", 1 << 18)
    monkeypatch.setattr(requests, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(requests, "_LONGEST_WAIT", 0.02)
    monkeypatch.setattr(s3_uploads, "_ATTEMPTS", 3)
    monkeypatch.setattr(journal, "BEGIN_AFTER", 0.0)
    monkeypatch.setattr(journal, "_FLUSH_AFTER", 0.0)
    monkeypatch.setenv("WEIGHTCTL_TIMEOUT", "2.5")


def write_model(directory: Path, matrices: int = 20) -> Path:
    """Write matrices of a quarter of a mebibyte with a config; return the directory."""
    directory.mkdir()
    rng = np.random.default_rng(0)
    save_file(
        {
            f"model.layers.{number}.mlp.weight": rng.standard_normal((256, 256), np.float32)
            for number in range(matrices)
        },
        directory / "model.safetensors",
    )
    (directory / "config.json").write_text('{"torch_dtype": "float32"}')
    return directory


def random_moments(seed: str, count: int, requests: int) -> Iterator[int]:
    """Yield numbers of requests, spread over all that a run has."""
    chance = random.Random(seed)
    for part in range(count):
        yield int(requests * (part + chance.random()) / count)


def settle(server: Server) -> None:
    """Remove all faults, and wait until no thread of a run that failed sends anything."""
    server.faults.clear()
    for thread in threading.enumerate():
        if thread.name == "weightctl-send":
            thread.join(20)


def visible(objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the objects without journals, and without uploads that get their name at the end."""
    return {key: each for key, each in objects.items() if ".weightctl-" not in key}
