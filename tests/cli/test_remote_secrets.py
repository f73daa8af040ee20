"""Nothing that a command prints or writes contains secrets of remote stores."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from remote_faults import READ_FAULTS, WRITE_FAULTS, write_model
from remote_stores import BUCKET, put_files, serve_s3, serve_web
from servers.faults import Redirect
from servers.signatures import Key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed
    from servers.base import Server

CANARY = "c4n4ry"
S3 = f"s3://{BUCKET}"
FAULTS = {**READ_FAULTS, **WRITE_FAULTS}
SHORT = {"expired token", "redirect"}
COMMANDS = {
    "ls": ("ls", "{source}", "--json"),
    "ls of what is missing": ("ls", "{missing}"),
    "convert to a file": (
        "convert", "{source}", "{out}/a.gguf", "--quant", "Q8_0", "--names", "keep",
        "--report", "{out}/report.json",
    ),
    "convert to S3": ("convert", "{source}", S3 + "/out/", "--max-shard-size", "2MB", "--json"),
    "verify": ("verify", "{source}", "--report", "{out}/report.html", "--json"),
    "diff": ("diff", "{source}", "{local}", "--json", "--values"),
}  # fmt: skip


def places_of(source: str, model: Path, out: Path) -> dict[str, str]:
    missing = source.replace("model.safetensors", "missing.safetensors")
    local = f"{model}/model.safetensors"
    return {"source": source, "missing": missing, "local": local, "out": str(out)}


@pytest.mark.parametrize(
    "fault",
    [each if each in SHORT else pytest.param(each, marks=pytest.mark.long) for each in FAULTS],
)
@pytest.mark.parametrize("kind", ["s3", "presigned", "password"])
def test_a_secret_is_in_nothing_that_commands_print_or_write(
    kind: str,
    fault: str,
    weightctl: Callable[..., Completed],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = write_model(tmp_path / "model")
    (out := tmp_path / "out").mkdir()
    with serve_s3(monkeypatch) as s3, serve_web(monkeypatch, model) as web:
        # What the URL has would be in a file of any name that is made of it.
        s3.keys = [Key("test-access-key", f"secret-{CANARY}")]
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"secret-{CANARY}")
        monkeypatch.setenv("AWS_SESSION_TOKEN", f"token-{CANARY}")
        monkeypatch.setenv("HF_TOKEN", f"hf_{CANARY}")
        sources = {
            "s3": f"{put_files(s3, model, 'in')}/model.safetensors",
            "presigned": f"{web.url}/model.safetensors?X-Amz-Signature={CANARY}&Expires=9",
            "password": f"{web.url}/model.safetensors".replace("://", f"://user:{CANARY}@"),
        }
        server: Server = s3 if kind == "s3" else web
        action, is_passing, _ = FAULTS[fault]
        texts: list[str] = []
        for words in COMMANDS.values():
            server.faults.clear()
            is_repeated = is_passing or isinstance(action, Redirect)
            server.inject(action, nth={2, 3} if is_repeated else range(2, 1000))
            places = places_of(sources[kind], model, out)
            done = weightctl(*(word.format(**places) for word in words))
            assert done.returncode in (0, 1, 2)
            texts += [done.stdout, done.stderr]
        sent = [f"{each.target} {each.headers}" for each in server.log]
        texts += [s3.buckets[BUCKET][key].decode("latin-1") for key in s3.buckets[BUCKET]]
        texts += [path.read_text("latin-1") for path in out.rglob("*") if path.is_file()]
    password = base64.b64encode(f"user:{CANARY}".encode()).decode()
    assert any(CANARY in each or password in each for each in sent)
    assert "Traceback" not in "".join(texts)
    for each in texts:
        assert CANARY not in each
        assert password not in each


def test_a_password_is_not_sent_to_another_host(
    weightctl: Callable[..., Completed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model")
    with serve_web(monkeypatch, model) as web, serve_web(monkeypatch, model) as other:
        web.inject(Redirect(f"http://localhost:{other.port}"))
        source = f"{web.url}/model.safetensors".replace("://", f"://user:{CANARY}@")
        done = weightctl("convert", source, tmp_path / "out.safetensors")
        assert done.returncode == 0, done.stderr
        assert all("authorization" in each.headers for each in web.log)
        assert other.log
        assert not any("authorization" in each.headers for each in other.log)


def test_a_signature_of_s3_is_not_sent_to_another_host(
    weightctl: Callable[..., Completed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model")
    with serve_s3(monkeypatch) as s3, serve_web(monkeypatch, model) as other:
        source = f"{put_files(s3, model, 'in')}/model.safetensors"
        stored = s3.buckets[BUCKET].find("in/model.safetensors")
        other.put(f"/{BUCKET}/in/model.safetensors", stored.body, etag=stored.etag)
        s3.inject(Redirect(f"http://localhost:{other.port}"), path="in/model")
        assert weightctl("convert", source, tmp_path / "out.safetensors").returncode == 0
        assert other.log
        assert not any("authorization" in each.headers for each in other.log)
