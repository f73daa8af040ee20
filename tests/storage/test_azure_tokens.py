"""Azure with bearer tokens: reading, writing, and copies that the store makes."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from azure.storage.blob import ContainerClient, generate_container_sas
from safetensors.numpy import save_file

from azure_tokens import AZURE_TOKEN, AzureTokenServer
from servers.base import serve_tls, write_certificate
from tested_stores import AZURE_ACCOUNT, AZURE_KEY, connection_string, expect_refusals, writer_of
from weightctl import convert, open_weights
from weightctl.storage.files import open_reader
from weightctl.storage.remote import azure_uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path


class TokenStore(NamedTuple):
    """A container that is read and written with tokens only; `direct` needs none."""

    url: str
    server: AzureTokenServer
    direct: ContainerClient


@pytest.fixture
def store(
    ports: Callable[[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[TokenStore, None, None]:
    port, name = ports("azurite"), f"tokens-{uuid.uuid4().hex[:12]}"
    direct = ContainerClient.from_connection_string(
        connection_string(f"http://127.0.0.1:{port}"), name
    )
    direct.create_container()
    until = datetime.now(UTC) + timedelta(hours=1)
    signature = generate_container_sas(AZURE_ACCOUNT, name, AZURE_KEY, None, "rwcdl", until)
    certificate = write_certificate(tmp_path)
    with (
        AzureTokenServer(port, signature) as server,
        serve_tls(server.port, certificate) as encrypted,
    ):
        for variable, value in {
            "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
            "AZURE_STORAGE_ENDPOINT": f"https://localhost:{encrypted}/{AZURE_ACCOUNT}",
            "AZURE_STORAGE_TOKEN": AZURE_TOKEN,
            "REQUESTS_CA_BUNDLE": str(certificate),
            "SSL_CERT_FILE": str(certificate),
            "WEIGHTCTL_TIMEOUT": "5",
        }.items():
            monkeypatch.setenv(variable, value)
        yield TokenStore(f"az://{name}", server, direct)
    direct.delete_container()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file of 17 megabytes."""
    rng = np.random.default_rng(0)
    arrays = {f"layers.{n}.weight": rng.standard_normal((1024, 1024), np.float32) for n in range(4)}
    save_file(arrays, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_a_model_is_written_and_read_with_a_token(
    store: TokenStore, model: Path, tmp_path: Path
) -> None:
    convert(model, f"{store.url}/a/out.safetensors")
    convert(model, tmp_path / "out.safetensors")
    written = store.direct.download_blob("a/out.safetensors").readall()
    assert written == (tmp_path / "out.safetensors").read_bytes()
    convert(f"{store.url}/a", tmp_path / "back.safetensors", dtype="f16")
    assert open_weights(tmp_path / "back.safetensors").header.tensors
    sent = {each.headers.get("authorization", "") for each in store.server.log}
    assert sent == {f"Bearer {AZURE_TOKEN}"}


def test_an_edit_is_copied_by_the_store_with_a_token(
    store: TokenStore, model: Path, tmp_path: Path
) -> None:
    store.direct.upload_blob("in.safetensors", model.read_bytes())
    convert(f"{store.url}/in.safetensors", f"{store.url}/out.safetensors", rename="^layers=blocks")
    convert(model, tmp_path / "out.safetensors", rename="^layers=blocks")
    written = store.direct.download_blob("out.safetensors").readall()
    assert written == (tmp_path / "out.safetensors").read_bytes()
    copies = [each for each in store.server.log if "x-ms-copy-source" in each.headers]
    assert copies
    for each in copies:
        assert each.headers["x-ms-copy-source-authorization"] == f"Bearer {AZURE_TOKEN}"
        assert AZURE_TOKEN not in each.headers["x-ms-copy-source"]
    assert store.server.bytes_received < 100_000
    assert store.server.bytes_sent < 1_000_000


def test_what_the_store_may_not_copy_is_sent(
    store: TokenStore, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.direct.upload_blob("in.safetensors", model.read_bytes())
    monkeypatch.setattr(
        azure_uploads._CopySource, "authorization", property(lambda _: "Bearer wrong")
    )
    convert(f"{store.url}/in.safetensors", f"{store.url}/out.safetensors", rename="^layers=blocks")
    assert store.server.bytes_received > 16_000_000
    assert open_weights(f"{store.url}/out.safetensors").header.tensors


def test_a_part_is_copied_with_a_token(store: TokenStore, model: Path) -> None:
    store.direct.upload_blob("in", model.read_bytes())
    path, uploads = f"{store.url}/out", writer_of(store.url)
    upload = uploads.create(path)
    part = uploads.copy_part(path, upload, 1, open_reader(f"{store.url}/in").range(8, 1000))
    assert part is not None
    uploads.complete(path, upload, {1: part}, force=False)
    assert uploads.read(path) == model.read_bytes()[8:1000]


def test_a_token_that_azure_refuses_is_not_shown(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "canary")
    expect_refusals(store.url, "canary", "AZURE_STORAGE_ACCOUNT_NAME")
