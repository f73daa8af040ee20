"""Commands that read URLs show no secrets, and count the bytes and requests."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from hub_fixtures import MODEL
from terminal import on_a_terminal
from tested_stores import BUCKET, serve_s3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Completed
    from servers.base import PlainServer
    from servers.hub import HubServer

    Run = Callable[..., Completed]

URL = f"hf://{MODEL}"
# A is a URL with a password and a signature; NONE is another, of a file that does not exist.
WITH_SECRETS = [
    "ls A --depth 1",
    "ls A --json",
    "ls A -l",
    "ls A --scan --json",
    "ls NONE",
    "verify NONE",
    "convert NONE out.gguf",
    "diff A A",
    "diff A A --json",
    "verify A --skip forward",
    "verify A --skip forward --json",
    "verify A --against A --skip forward",
    "convert A out.safetensors --dtype f16",
    "convert A out.safetensors --dtype f16 --json",
    "convert A out.safetensors --dry-run",
    "convert A out.gguf --quant q4_k --imatrix A",
    "shard A out --tp 2",
    "shard A out --tp 2 --json",
    "shard A --tp auto",
    "shard A --tp 7 out",
    "shard --gather A out",
]


@pytest.fixture
def web(no_hub: Path, tiny_llama: Path) -> Iterator[PlainServer]:
    del no_hub
    from servers.base import PlainServer

    with PlainServer() as server:
        for path in tiny_llama.iterdir():
            server.put(f"/model/{path.name}", path.read_bytes())
        yield server


@pytest.mark.parametrize("command", WITH_SECRETS)
def test_passwords_and_signatures_are_not_shown(
    web: PlainServer, weightctl: Run, tmp_path: Path, command: str
) -> None:
    host = web.url.removeprefix("http://")
    secret = f"http://user:PASSWORD@{host}/model/{{}}.safetensors?X-Amz-Signature=SIGNATURE"
    urls = {"A": secret.format("model"), "NONE": secret.format("none")}
    done = weightctl(*(urls.get(word, word) for word in command.split()), cwd=tmp_path)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for raw in (done.stdout.encode(), done.stderr.encode(), *written):
        assert b"PASSWORD" not in raw
        assert b"SIGNATURE" not in raw
    assert web.exchanges(path="X-Amz-Signature=SIGNATURE")


def test_the_signature_is_sent(web: PlainServer, weightctl: Run) -> None:
    done = weightctl("ls", f"{web.url}/model/model.safetensors?X-Amz-Signature=SIGNATURE")
    assert done.returncode == 0
    assert "X-Amz-Signature=SIGNATURE" in web.exchanges(path="/model.safetensors")[0].target


def test_anonymous_sends_no_token_to_the_hub(hub_model: HubServer, weightctl: Run) -> None:
    done = weightctl("ls", URL, "--anonymous", HF_TOKEN="hf_test_reader")
    assert done.returncode == 0
    assert all("authorization" not in each.headers for each in hub_model.log)


def test_anonymous_sends_no_signature_to_a_bucket(
    no_hub: Path, weightctl: Run, tiny_llama: Path
) -> None:
    from servers.s3 import S3Server

    with S3Server() as server:
        made = server.create_bucket("models")
        made.public_read = True
        made.put("model.safetensors", (tiny_llama / "model.safetensors").read_bytes())
        done = weightctl(
            "ls", "s3://models/model.safetensors", "--anonymous", AWS_ENDPOINT_URL=server.url,
            AWS_REGION="us-east-1", AWS_ACCESS_KEY_ID="wrong", AWS_SECRET_ACCESS_KEY="wrong",
            HOME=str(no_hub),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert all("authorization" not in each.headers for each in server.log)


@pytest.mark.parametrize(
    "command",
    [
        "ls {}",
        "ls --scan {}",
        "diff {} {}",
        "convert {} out.safetensors --dtype f16",
        "shard {} out --tp 2",
        "shard {} --tp auto",
        "verify {} --check names",
    ],
)
def test_json_counts_what_went_over_the_network(
    hub_model: HubServer, weightctl: Run, tmp_path: Path, command: str
) -> None:
    done = weightctl(*command.format(URL, URL).split(), "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["network"] == {
        "requests": hub_model.requests,
        "bytes_read": hub_model.links.bytes_sent + _body_bytes(hub_model),
        "bytes_sent": 0,
        "retries": 0,
    }


def _body_bytes(hub: HubServer) -> int:
    """Return the bytes that the Hub itself sent, without the bodies of redirects."""
    return sum(each.sent for each in hub.log if each.status < 300)


def test_json_about_local_files_has_no_network(weightctl: Run, tiny_llama: Path) -> None:
    assert "network" not in json.loads(weightctl("ls", tiny_llama, "--json").stdout)


@pytest.mark.usefixtures("hub_model")
def test_the_summary_of_convert_has_what_went_over_the_network(
    weightctl: Run, tmp_path: Path
) -> None:
    done = weightctl("convert", URL, "out.safetensors", "--dtype", "f16", cwd=tmp_path)
    line = next(line for line in done.stdout.splitlines() if "over the network" in line)
    assert line.startswith("4.0")
    assert line.endswith(" requests")


@pytest.mark.usefixtures("hub_model")
def test_the_progress_bar_shows_the_time_left_and_the_rate_of_the_network(tmp_path: Path) -> None:
    shown = on_a_terminal(
        120, "convert", URL, "out.gguf", "--quant", "Q4_K_M", cwd=tmp_path, NO_COLOR="1"
    )
    assert re.search(r"[\d-]:[\d-]{2}:[\d-]{2} network [\d.]+ [kMG]?B/s", shown)


def test_the_progress_bar_shows_the_rate_of_what_is_sent(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_s3(monkeypatch):
        shown = on_a_terminal(
            120, "convert", tiny_llama, f"s3://{BUCKET}/out.safetensors", NO_COLOR="1"
        )
    assert re.search(r"network [\d.]*[1-9][\d.]* [kMG]B/s", shown)


def test_the_progress_bar_of_local_files_does_not(tiny_llama: Path, tmp_path: Path) -> None:
    shown = on_a_terminal(120, "convert", tiny_llama, "out.gguf", "--quant", "Q4_K_M", cwd=tmp_path)
    assert "━" in shown
    assert "network" not in shown


def test_a_request_that_was_repeated_is_in_the_summary(
    hub_model: HubServer, weightctl: Run, tmp_path: Path
) -> None:
    from servers.base import Answer

    hub_model.inject(Answer(503), path="/resolve/", times=1)
    done = weightctl("convert", URL, "out.safetensors", "--dtype", "f16", cwd=tmp_path)
    assert "requests, 1 repeated\n" in done.stdout
