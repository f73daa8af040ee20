"""Nothing that a command prints or writes contains secrets of remote stores."""

from __future__ import annotations

import base64
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pytest
from azure.storage.blob import generate_container_sas

from commands import run_command as weightctl
from each import usual
from servers.base import Redirect
from servers.hub import HubServer, HubUser
from servers.s3 import GCSServer, Key
from tested_stores import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    BUCKET,
    READ_FAULTS,
    WRITE_FAULTS,
    put_files,
    serve,
    serve_s3,
    serve_web,
    write_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from servers.base import Server

CANARY = "c4n4ry"
S3 = f"s3://{BUCKET}"
FAULTS = {**READ_FAULTS, **WRITE_FAULTS}
SHORT = ["expired token", "redirect"]
KINDS = ["s3", "presigned", "password", "gs", "azure", "hub"]
COMMANDS = {
    "ls": ("ls", "{source}", "--json"),
    "ls of what is missing": ("ls", "{missing}"),
    "convert to a file": (
        "convert", "{source}", "{out}/a.gguf", "--quant", "Q8_0", "--names", "keep",
        "--report", "{out}/report.json",
    ),
    "convert to a store": (
        "convert", "{source}", "{store}/out/", "--max-shard-size", "1MB", "--json",
    ),
    "verify": ("verify", "{source}", "--report", "{out}/report.html", "--json"),
    "diff": ("diff", "{source}", "{local}", "--json", "--values"),
}  # fmt: skip


def places_of(source: str, store: str, model: Path, out: Path) -> dict[str, str]:
    missing = source.replace("model.safetensors", "missing.safetensors")
    local = f"{model}/model.safetensors"
    places = {"source": source, "store": store, "missing": missing, "local": local}
    return places | {"out": str(out)}


@pytest.mark.parametrize(
    ("kind", "fault"),
    usual(
        [*product(["s3"], SHORT), *product(KINDS[1:], ["expired token"])], product(KINDS, FAULTS)
    ),
)
def test_a_secret_is_in_nothing_that_commands_print_or_write(
    kind: str,
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ports: Callable[[str], int],
) -> None:
    model = write_model(tmp_path / "model", 6)
    (out := tmp_path / "out").mkdir()
    (xet := tmp_path / "xet").mkdir()
    with (
        serve_s3(monkeypatch) as s3,
        serve_web(monkeypatch, model) as web,
        GCSServer(tokens=[f"ya29.{CANARY}"]) as gcs,
        HubServer(users={f"hf_{CANARY}": HubUser("writer")}, xet_directory=str(xet)) as hub,
        ExitStack() as stack,
    ):
        # What the URL has would be in a file of any name that is made of it.
        s3.keys = [Key("test-access-key", f"secret-{CANARY}")]
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"secret-{CANARY}")
        monkeypatch.setenv("AWS_SESSION_TOKEN", f"token-{CANARY}")
        monkeypatch.setenv("HF_TOKEN", f"hf_{CANARY}")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_XET_LOG_DEST", f"{out}/log/")
        monkeypatch.setenv("GOOGLE_BASE_URL", gcs.url)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", f"ya29.{CANARY}")
        gcs.create_bucket(BUCKET).put(
            "in/model.safetensors", (model / "model.safetensors").read_bytes()
        )
        hub.create("org/model").put("model.safetensors", (model / "model.safetensors").read_bytes())
        sources = {
            "gs": f"gs://{BUCKET}/in/model.safetensors",
            "hub": "hf://org/model/model.safetensors",
            "s3": f"{put_files(s3, model, 'in')}/model.safetensors",
            "presigned": f"{web.url}/model.safetensors?X-Amz-Signature={CANARY}&Expires=9",
            "password": f"{web.url}/model.safetensors".replace("://", f"://user:{CANARY}@"),
        }
        servers: dict[str, Server] = {"s3": s3, "gs": gcs, "hub": hub}
        stores = {"gs": f"gs://{BUCKET}", "hub": "hf://org/new"}
        secrets = [CANARY, base64.b64encode(f"user:{CANARY}".encode()).decode()]
        if kind == "azure":
            azure = stack.enter_context(serve("azurite", monkeypatch, ports))
            secrets += sign_in(azure.url, monkeypatch)
            azure.put("in/model.safetensors", (model / "model.safetensors").read_bytes())
            servers[kind], stores[kind] = azure.server, azure.url
            sources[kind] = f"{azure.url}/in/model.safetensors"
        server, store = servers.get(kind, web), stores.get(kind, S3)
        action, is_passing, _ = FAULTS[fault]
        texts: list[str] = []
        for words in COMMANDS.values():
            server.faults.clear()
            is_repeated = is_passing or isinstance(action, Redirect)
            server.inject(action, nth={2, 3} if is_repeated else range(2, 1000))
            places = places_of(sources[kind], store, model, out)
            done = weightctl(*(word.format(**places) for word in words))
            assert done.returncode in (0, 1, 2)
            texts += [done.stdout, done.stderr]
        sent = [f"{each.target} {each.headers}" for each in server.log]
        if kind == "azure":
            texts += [key + each.decode("latin-1") for key, each in azure.read().items()]
        for bucket in (s3.buckets[BUCKET], gcs.buckets[BUCKET]):
            texts += [key + bucket[key].decode("latin-1") for key in bucket]
        for repository in hub.repositories.values():
            files = repository.tree()
            texts += [str(repository.messages), *files]
            texts += [bytes(file.body).decode("latin-1") for file in files.values()]
        texts += [path.read_text("latin-1") for path in out.rglob("*") if path.is_file()]
    assert any(secret in each for each in sent for secret in secrets)
    assert "Traceback" not in "".join(texts)
    for each in texts:
        assert not [secret for secret in secrets if secret in each]


def sign_in(url: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have clients use a signature of a container instead of a key; return how it may look."""
    until = datetime.now(UTC) + timedelta(hours=1)
    name = url.removeprefix("az://")
    signature = generate_container_sas(AZURE_ACCOUNT, name, AZURE_KEY, None, "rwcdl", until)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", signature)
    secret = signature.rpartition("sig=")[2]
    return [secret, unquote(secret), quote(unquote(secret), safe="")]


def test_a_password_is_not_sent_to_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model", 6)
    with serve_web(monkeypatch, model) as web, serve_web(monkeypatch, model) as other:
        web.inject(Redirect(f"http://localhost:{other.port}"))
        source = f"{web.url}/model.safetensors".replace("://", f"://user:{CANARY}@")
        done = weightctl("convert", source, tmp_path / "out.safetensors")
        assert done.returncode == 0, done.stderr
        assert all("authorization" in each.headers for each in web.log)
        assert other.log
        assert not any("authorization" in each.headers for each in other.log)


def test_a_signature_of_s3_is_not_sent_to_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model", 6)
    with serve_s3(monkeypatch) as s3, serve_web(monkeypatch, model) as other:
        source = f"{put_files(s3, model, 'in')}/model.safetensors"
        stored = s3.buckets[BUCKET].find("in/model.safetensors")
        other.put(f"/{BUCKET}/in/model.safetensors", stored.body, etag=stored.etag)
        s3.inject(Redirect(f"http://localhost:{other.port}"), path="in/model")
        assert weightctl("convert", source, tmp_path / "out.safetensors").returncode == 0
        assert other.log
        assert not any("authorization" in each.headers for each in other.log)
