"""Commands read checkpoints by URL: from the Hub, web servers and buckets."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGUFWriter

from hub_fixtures import MODEL, put_directory
from tested_stores import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Completed
    from servers.base import PlainServer
    from servers.hub import HubServer
    from servers.s3 import S3Server

    Run = Callable[..., Completed]

URL = f"hf://{MODEL}"
COMMANDS = ["ls {}", "verify {}", "convert {} out.gguf", "diff {} other", "shard {} out --tp 2"]


@pytest.fixture
def web(no_hub: Path, tiny_llama: Path) -> Iterator[PlainServer]:
    del no_hub
    from servers.base import PlainServer

    with PlainServer() as server:
        for path in tiny_llama.iterdir():
            server.put(f"/model/{path.name}", path.read_bytes())
        yield server


@pytest.fixture
def bucket(no_hub: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setenv("HOME", str(no_hub))
    from servers.s3 import KEY, S3Server

    with S3Server() as server:
        made = server.create_bucket("models")
        for path in tiny_llama.iterdir():
            made.put(f"llama/{path.name}", path.read_bytes())
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY.access)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY.secret)
        yield server


@pytest.fixture(params=["hf", "http", "s3"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of the same model in each storage."""
    if request.param == "hf":
        request.getfixturevalue("hub_model")
        return URL
    if request.param == "s3":
        request.getfixturevalue("bucket")
        return "s3://models/llama"
    return f"{request.getfixturevalue('web').url}/model/model.safetensors"


def test_ls_lists_a_url(url: str, weightctl: Run) -> None:
    done = weightctl("ls", url, "--depth", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{url}: llama, safetensors\n30 tensors, 1.94 M parameters")


def test_ls_estimates_the_memory_of_a_model_at_a_url(url: str, weightctl: Run) -> None:
    done = weightctl("ls", url, "--fit", "1GB", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fits into 1GB with a context of 512 tokens\n")


def test_diff_compares_a_url_with_a_path(url: str, weightctl: Run, tiny_llama: Path) -> None:
    done = weightctl("diff", url, tiny_llama, "--hash")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 tensors, no difference" in done.stdout


def test_convert_makes_the_same_tensors_from_a_url(
    url: str, weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    weightctl("convert", tiny_llama, "local.gguf", "--names", "keep", cwd=tmp_path)
    done = weightctl("convert", url, "remote.gguf", "--names", "keep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = weightctl("diff", "local.gguf", "remote.gguf", "--hash", cwd=tmp_path)
    assert found.returncode == 0, found.stdout


def test_convert_translates_the_config_and_the_tokenizer_of_a_url(
    url: str, weightctl: Run, tmp_path: Path
) -> None:
    done = weightctl("convert", url, "out.gguf", "--quant", "Q8_0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = weightctl("ls", "out.gguf", "--meta", "tokenizer.ggml.model", cwd=tmp_path).stdout
    assert shown == "gpt2\n"


def test_shard_and_gather_read_a_url(
    url: str, weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    done = weightctl("shard", url, "cut", "--tp", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    weightctl("shard", "--gather", "cut", "whole", cwd=tmp_path)
    found = weightctl("diff", tmp_path / "whole", tiny_llama, "--hash")
    assert found.returncode == 0, found.stdout + found.stderr


def test_verify_checks_a_url(url: str, weightctl: Run, tiny_llama: Path) -> None:
    done = weightctl("verify", tiny_llama, "--against", url, "--skip", "forward")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 tensors compared, all values are equal" in done.stdout


def test_check_reads_the_files_at_a_url(url: str, weightctl: Run) -> None:
    done = weightctl("check", url)
    assert done.returncode == 0, done.stderr
    assert ": no findings (" in done.stdout


def test_check_does_not_correct_files_at_a_url(web: PlainServer, weightctl: Run) -> None:
    web.put("/model/generation_config.json", b'{"eos_token_id": 9999}')
    done = weightctl("check", f"{web.url}/model/model.safetensors", "--fix")
    assert done.returncode == 2
    assert "generation_config.json is not on this machine" in done.stderr


def test_verify_does_not_start_readers_of_local_files(url: str, weightctl: Run) -> None:
    done = weightctl("verify", url, "--check", "structure")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "safetensors: the files are not on this machine" in done.stdout


def test_shards_at_a_url_are_gathered(
    hub: HubServer, weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    weightctl("shard", tiny_llama, "cut", "--tp", "2", cwd=tmp_path)
    repository = hub.create("org/cut")
    for path in filter(type(tmp_path).is_file, (tmp_path / "cut").rglob("*")):
        repository.put(str(path.relative_to(tmp_path / "cut")), path.read_bytes())
    done = weightctl("shard", "--gather", "hf://org/cut", "whole", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert weightctl("diff", tmp_path / "whole", tiny_llama, "--hash").returncode == 0


def test_an_importance_matrix_is_read_from_a_url(
    hub_model: HubServer, weightctl: Run, tmp_path: Path
) -> None:
    writer = GGUFWriter(str(tmp_path / "imatrix.gguf"), "")
    writer.add_string("general.type", "imatrix")
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    writer.add_array("imatrix.datasets", ["text"])
    name = "blk.0.ffn_down.weight"
    writer.add_tensor(f"{name}.in_sum2", np.ones((1, 512), np.float32))
    writer.add_tensor(f"{name}.counts", np.full((1, 1), 512, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    hub_model.repositories[MODEL].put("imatrix.gguf", (tmp_path / "imatrix.gguf").read_bytes())
    done = weightctl(
        "convert", f"{URL}/model.safetensors", "out.gguf", "--quant", "Q4_K_M",
        "--imatrix", f"{URL}/imatrix.gguf", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    weighted = [each["name"] for each in json.loads(done.stdout)["tensors"] if each["weighted"]]
    assert weighted == [name]


def test_scan_reads_all_files_of_a_model(hub_model: HubServer, weightctl: Run) -> None:
    hub_model.repositories[MODEL].put("a/b/old.bin", b"\x80\x04cos\nsystem\n.")
    done = weightctl("ls", "--scan", URL)
    assert done.returncode == 1
    assert done.stdout == (
        f"{URL}/a/b/old.bin: os.system  dangerous  (byte 2)\n"
        "7 files, 1 pickle: 1 dangerous, 0 unknown, 0 known\n"
    )


def test_a_sarif_report_has_the_url(hub_model: HubServer, weightctl: Run, tmp_path: Path) -> None:
    hub_model.repositories[MODEL].put("a b.bin", b"\x80\x04cos\nsystem\n.")
    weightctl("ls", "--scan", URL, "--sarif", "found.sarif", cwd=tmp_path)
    found = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"][0]
    place = found["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": f"{URL}/a%20b.bin"}


@pytest.mark.usefixtures("hub_model")
@pytest.mark.parametrize("command", ["ls {}", "verify {}", "ls --scan {}", "diff {} {}"])
def test_a_file_that_does_not_exist_is_an_error(command: str, weightctl: Run) -> None:
    path = f"{URL}/nope.gguf"
    done = weightctl(*command.format(path, path).split())
    assert done.returncode == 2
    assert done.stderr == f"error: {path}: No such file or directory\nhint: check the URL\n"


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_a_model_without_access_is_an_error(
    hub: HubServer, weightctl: Run, tiny_llama: Path, command: str
) -> None:
    put_directory(hub, "org/gated", tiny_llama)
    hub.repositories["org/gated"].gated = True
    done = weightctl(command, "hf://org/gated")
    assert done.returncode == 2
    assert "the model org/gated requires that you accept its conditions" in done.stderr


@pytest.mark.parametrize("command", [*COMMANDS, "{}"])
def test_the_name_of_a_model_on_the_hub_gets_its_url(
    command: str, weightctl: Run, tmp_path: Path
) -> None:
    done = weightctl(*command.format("org/name-1.5").split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "error: org/name-1.5: No such file or directory\n"
        "hint: check the path; for a model on Hugging Face, use `hf://org/name-1.5`\n"
    )


def test_a_missing_file_in_a_directory_that_exists_is_no_model(
    weightctl: Run, tmp_path: Path
) -> None:
    (tmp_path / "org").mkdir()
    done = weightctl("ls", "org/name", cwd=tmp_path)
    assert done.stderr.splitlines()[1] == "hint: check the path"


def test_a_model_is_written_to_the_hub_and_listed(
    xet_hub: HubServer, matrices: Path, weightctl: Run
) -> None:
    del xet_hub
    done = weightctl("convert", matrices, "hf://org/new", "--dtype", "bf16", "--private")
    assert done.returncode == 0, done.stderr
    assert "sent" in done.stdout
    assert "BF16" in weightctl("ls", "hf://org/new").stdout


def test_the_summary_of_an_edit_says_how_much_was_sent(
    weightctl: Run,
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    ports: Callable[[str], int],
) -> None:
    with serve("gs", monkeypatch, ports) as store:
        for path in tiny_llama.iterdir():
            store.put(f"in/{path.name}", path.read_bytes())
        done = weightctl("convert", f"{store.url}/in", f"{store.url}/out", "--rename", "^model=m")
        assert done.returncode == 0, done.stderr
        # Google Cloud Storage copies no ranges of objects.
        assert re.search(r"over the network, 3\.9\d MB sent", done.stdout), done.stdout


def test_the_url_of_a_pull_request_is_shown(
    xet_hub: HubServer, matrices: Path, weightctl: Run
) -> None:
    done = weightctl("convert", matrices, "hf://org/new", "--pr")
    url = f"{xet_hub.url}/org/new/discussions/1"
    assert f"pull request: {url}" in done.stdout
    done = weightctl("convert", matrices, "hf://org/new", "--pr", "--json")
    assert json.loads(done.stdout)["pull_request"].startswith(xet_hub.url)


def test_a_patch_is_made_from_a_url_and_applied_to_it(
    url: str, tiny_llama: Path, tmp_path: Path, weightctl: Run
) -> None:
    tuned = tmp_path / "tuned.safetensors"
    raw = bytearray((tiny_llama / "model.safetensors").read_bytes())
    raw[-1000:-900] = bytes(100)
    tuned.write_bytes(raw)
    for command in (f"diff {url} {tuned} --patch patch", f"apply {url} patch out"):
        done = weightctl(*command.split(), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out").read_bytes() == raw
    assert (tmp_path / "patch").stat().st_size < 10_000
