"""A redirect to another host gets no credentials, whatever is read or written."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING

import pytest

from azure_tokens import AZURE_TOKEN
from each import usual
from hub_fixtures import MODEL, put_directory
from servers.base import PlainServer, Redirect
from servers.hub import READER, WRITER
from servers.s3 import TOKEN
from tested_stores import serve
from weightctl import convert
from weightctl.errors import WeightctlError
from weightctl.storage.files import open_reader
from weightctl.storage.location import store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from servers.base import Server
    from servers.hub import HubServer
    from weightctl.storage.base import Uploads

SECRETS = {"authorization", "x-amz-security-token", "x-ms-copy-source-authorization", "cookie"}
TOKENS = (TOKEN, READER, WRITER, AZURE_TOKEN)


@pytest.fixture
def other() -> Generator[PlainServer, None, None]:
    """Another host, which knows no file."""
    with PlainServer() as server:
        yield server


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightctl.storage.remote.requests._FIRST_WAIT", 0.0)
    monkeypatch.setattr("weightctl.storage.remote.requests._LONGEST_WAIT", 0.0)
    monkeypatch.setattr("weightctl.storage.remote.s3_uploads._ATTEMPTS", 2)
    # What one test has found out about a URL is not true in another.
    monkeypatch.setattr("weightctl.storage.location._STORES", {})


def expect_no_credentials(
    server: Server, other: PlainServer, allowed: frozenset[str] = frozenset()
) -> None:
    """Check that requests were redirected, and that none brought a secret to the other host."""
    assert any("authorization" in each.headers for each in server.log)
    for each in other.log:
        assert not (SECRETS - allowed) & each.headers.keys()
        assert not [token for token in TOKENS if token in f"{each.target} {each.headers}"]


REQUESTS: dict[str, Callable[[Uploads, str], object]] = {
    "put": lambda uploads, path: uploads.put(path, b"1", force=False),
    "create": lambda uploads, path: uploads.put_part(path, uploads.create(path), 1, b"1"),
    "read": lambda uploads, path: uploads.read(path),
    "delete": lambda uploads, path: uploads.delete([path]),
    "list": lambda uploads, path: uploads.list_objects(path),
    "open": lambda _, path: open_reader(path).read(0, 1),
}


@pytest.mark.parametrize(
    ("status", "kind", "request_name"),
    usual(
        [
            *product([307], ["s3"], REQUESTS),
            (302, "gs", "create"),
            (302, "azurite", "put"),
            (307, "azurite", "open"),
        ],
        product([302, 307], ["s3", "gs", "azurite"], REQUESTS),
    ),
)
def test_another_host_gets_no_credentials_of_a_bucket(
    status: int,
    kind: str,
    request_name: str,
    other: PlainServer,
    monkeypatch: pytest.MonkeyPatch,
    ports: Callable[[str], int],
) -> None:
    with serve(kind, monkeypatch, ports) as store:
        monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
        store.put("a", b"1")
        store.server.inject(Redirect(other.other_url, status))
        found = store_of(store.url)
        assert found is not None
        with suppress(WeightctlError):
            REQUESTS[request_name](found.uploads(store.url), f"{store.url}/a")
        # obstore removes the signature only. The token of a session is of no use without it.
        allowed = {"x-amz-security-token"} if request_name == "open" else ()
        expect_no_credentials(store.server, other, frozenset(allowed))


@pytest.mark.parametrize("status", [302, 307])
def test_another_host_gets_no_token_of_the_hub(
    status: int,
    hub: HubServer,
    other: PlainServer,
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_directory(hub, MODEL, tiny_llama)
    monkeypatch.setenv("HF_TOKEN", READER)
    for path in ("/api/", "/resolve/"):
        hub.inject(Redirect(other.other_url, status), path=path)
        with suppress(WeightctlError):
            open_reader(f"hf://{MODEL}/model.safetensors").read(0, 1)
        hub.faults.clear()
    assert other.log
    expect_no_credentials(hub, other)


@pytest.mark.parametrize("path", ["repos/create", "preupload", "xet-write-token", "/commit/"])
def test_another_host_gets_no_token_of_a_writer(
    path: str, xet_hub: HubServer, other: PlainServer, matrices: Path
) -> None:
    xet_hub.inject(Redirect(other.other_url, 307), path=path)
    with suppress(WeightctlError):
        convert(matrices, "hf://org/new")
    expect_no_credentials(xet_hub, other)
