"""Accounts of Google Cloud Storage and Azure are found where the stores' own tools find them."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.storage.blob import ContainerClient, generate_container_sas
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from servers.base import Request, Response, Server, answer_json
from servers.s3 import TOKEN, GCSServer
from tested_stores import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    BUCKET,
    connection_string,
    expect_refusals,
    writer_of,
)
from weightctl import open_weights
from weightctl.errors import FormatError, OutputError
from weightctl.storage.files import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path


GS = f"gs://{BUCKET}"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTCTL_TIMEOUT", "2")


@pytest.fixture
def gcs() -> Generator[GCSServer, None, None]:
    with GCSServer() as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> bytes:
    return next(tiny_llama.glob("*.safetensors")).read_bytes()


def write_and_open(url: str, model: bytes) -> None:
    writer_of(url).put(url, model, force=False)
    assert open_weights(url).header.tensors


# -- Google -----------------------------------------------------------------------------------


def account_in_a_file(gcs: GCSServer, directory: Path) -> dict[str, str]:
    path = directory / "account.json"
    path.write_text(gcs.service_account)
    return {"GOOGLE_SERVICE_ACCOUNT": str(path)}


GOOGLE: dict[str, Callable[[GCSServer, Path], dict[str, str]]] = {
    "a token": lambda gcs, _: {"GOOGLE_BASE_URL": gcs.url, "GOOGLE_BEARER_TOKEN": TOKEN},
    "a file": account_in_a_file,
    "JSON": lambda gcs, _: {"GOOGLE_SERVICE_ACCOUNT_KEY": gcs.service_account},
    "anonymous": lambda gcs, _: {"GOOGLE_BASE_URL": gcs.url, "GOOGLE_SKIP_SIGNATURE": "true"},
}


@pytest.mark.parametrize("kind", GOOGLE)
def test_an_account_of_google_reads_and_writes(
    kind: str, gcs: GCSServer, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = gcs.buckets[BUCKET]
    bucket.public_read = bucket.public_write = kind != "a token"
    for name, value in GOOGLE[kind](gcs, tmp_path).items():
        monkeypatch.setenv(name, value)
    write_and_open(f"{GS}/a.safetensors", model)
    sent = {each.headers.get("authorization", "") for each in gcs.log}
    assert sent == ({f"Bearer {TOKEN}"} if kind == "a token" else {""})


class TokenServer(Server):
    """Answers each request for a token with another one, which is valid for some seconds."""

    seconds = 3600
    given = 0

    def answer(self, request: Request) -> Response:
        del request
        self.given += 1
        return answer_json({"access_token": f"token-{self.given}", "expires_in": self.seconds})


@pytest.mark.parametrize(("seconds", "given"), [(3600, 1), (1, 2)])
def test_a_token_of_a_service_account_is_renewed_when_it_expires(
    seconds: int, given: int, gcs: GCSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TokenServer() as tokens:
        tokens.seconds = seconds
        path = tmp_path / "account.json"
        path.write_text(json.dumps(service_account(tokens.url)))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        monkeypatch.setenv("GOOGLE_BASE_URL", gcs.url)
        gcs.tokens = {"token-1", "token-2"}
        for name in "ab":
            writer_of(GS).put(f"{GS}/{name}", b"1", force=False)
        assert tokens.given == given
    assert [*gcs.buckets[BUCKET]] == ["a", "b"]


def service_account(url: str) -> dict[str, Any]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return {
        "type": "service_account",
        "project_id": "project",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": "tests@project.example",
        "token_uri": f"{url}/token",
    }


def test_a_token_that_google_refuses_is_not_shown(
    gcs: GCSServer, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs.buckets[BUCKET].put("a.safetensors", model)
    monkeypatch.setenv("GOOGLE_BASE_URL", gcs.url)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "canary")
    expect_refusals(GS, "canary", "GOOGLE_APPLICATION_CREDENTIALS")


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_service_account_that_cannot_be_read_is_named(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "account.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(path))
    with pytest.raises(FormatError, match=r"account\.json") as caught:
        open_weights(f"{GS}/a.safetensors")
    assert "GOOGLE_SERVICE_ACCOUNT" in caught.value.hint


# -- Azure ------------------------------------------------------------------------------------


@pytest.fixture
def container(ports: Callable[[str], int]) -> ContainerClient:
    """A new container of azurite."""
    name = f"accounts-{uuid.uuid4().hex[:12]}"
    made = ContainerClient.from_connection_string(connection_string(base(ports)), name)
    made.create_container()
    return made


def base(ports: Callable[[str], int]) -> str:
    return f"http://127.0.0.1:{ports('azurite')}"


def signature(container: ContainerClient) -> str:
    name = str(container.container_name)
    until = datetime.now(UTC) + timedelta(hours=1)
    return generate_container_sas(AZURE_ACCOUNT, name, AZURE_KEY, None, "rwcdl", until)


def environment(kind: str, url: str, container: ContainerClient) -> dict[str, str]:
    account = {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ENDPOINT": f"{url}/{AZURE_ACCOUNT}",
    }
    return {
        "a key": account | {"AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY},
        "a signature": account | {"AZURE_STORAGE_SAS_TOKEN": f"?{signature(container)}"},
        "a connection string": {"AZURE_STORAGE_CONNECTION_STRING": connection_string(url)},
        "a connection string with a signature": {
            "AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={url}/{AZURE_ACCOUNT};"
            f"SharedAccessSignature={signature(container)}"
        },
        "the emulator": {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": url,
        },
        "the emulator, by a connection string": {
            "AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true",
            "AZURITE_BLOB_STORAGE_URL": url,
        },
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "a key",
        "a signature",
        "a connection string",
        "a connection string with a signature",
        "the emulator",
        "the emulator, by a connection string",
    ],
)
def test_an_account_of_azure_reads_writes_and_copies(
    kind: str,
    ports: Callable[[str], int],
    container: ContainerClient,
    model: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment(kind, base(ports), container).items():
        monkeypatch.setenv(name, value)
    path, copy = (f"az://{container.container_name}/{name}.safetensors" for name in "ab")
    write_and_open(path, model)
    uploads, source = writer_of(path), open_reader(path).range(8, 1000)
    upload = uploads.create(copy)
    part = uploads.copy_part(copy, upload, 1, source)
    assert part is not None
    uploads.complete(copy, upload, {1: part}, force=False)
    assert uploads.read(copy) == model[8:1000]


def test_a_public_container_is_read_without_an_account(
    ports: Callable[[str], int],
    container: ContainerClient,
    model: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container.set_container_access_policy({}, public_access="container")
    container.upload_blob("a/model.safetensors", model)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{base(ports)}/{AZURE_ACCOUNT}")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT)
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    url = f"az://{container.container_name}"
    assert open_weights(f"{url}/a").header.tensors
    with pytest.raises(OutputError) as caught:
        writer_of(url).put(f"{url}/b", b"1", force=False)
    assert "AZURE_STORAGE_ACCOUNT_KEY" in caught.value.hint


def test_a_key_that_azure_refuses_is_not_shown(
    ports: Callable[[str], int],
    container: ContainerClient,
    model: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container.upload_blob("a.safetensors", model)
    wrong = "Y2FuYXJ5" * 8
    for name, value in environment("a key", base(ports), container).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    expect_refusals(f"az://{container.container_name}", wrong, "AZURE_STORAGE_ACCOUNT_KEY")


def test_without_an_account_the_variables_to_set_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    for kind, call in {
        FormatError: lambda: open_weights("az://models/a.safetensors"),
        OutputError: lambda: writer_of("az://models").put("az://models/a", b"", force=False),
    }.items():
        with pytest.raises(kind, match="no storage account is named") as caught:
            call()
        assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.hint


def test_a_missing_container_is_named(
    ports: Callable[[str], int], container: ContainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment("a key", base(ports), container).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OutputError, match="the container does not exist"):
        writer_of("az://none").put("az://none/a", b"1", force=False)


# -- What is installed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "package"), [("s3", "boto3"), ("gs", "google.auth"), ("az", "azure.storage.blob")]
)
def test_a_package_that_is_missing_for_writing_is_named_with_its_extra(
    scheme: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"s3": "s3_uploads", "gs": "gcs_uploads", "az": "azure_uploads"}
    monkeypatch.delitem(sys.modules, f"weightctl.storage.remote.{names[scheme]}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(OutputError, match=package) as caught:
        writer_of(f"{scheme}://models/a")
    assert caught.value.hint.startswith("install it: `pip install ")
    assert "'" + package.replace(".", "-") in caught.value.hint


def test_reading_imports_nothing_that_writes() -> None:
    code = (
        "import sys, weightctl.storage.remote.buckets\n"
        "print([name for name in ('azure', 'boto3', 'google') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
