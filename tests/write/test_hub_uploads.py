"""Outputs on the Hugging Face Hub: all files appear in one commit, with the bytes of local ones."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hub_fixtures import NEW_MODEL, NEW_URL, download
from weightctl import convert, open_weights, save
from weightctl.storage.traffic import TRAFFIC
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

    from servers.hub import HubServer

OUTPUTS = {
    "a directory": ("", {"dtype": "bf16"}),
    "a set of parts": ("", {"max_shard_size": "2MB"}),
    "GGUF": ("/out.gguf", {"quant": "Q8_0", "names": "keep"}),
    "aligned GGUF": ("/out.gguf", {"align": 65536, "names": "keep"}),
    "parts of GGUF": ("/out.gguf", {"max_shard_size": "2MB", "names": "keep"}),
    "PyTorch": ("/out.pt", {"dtype": "f16"}),
    "a file below a directory": ("/below/out.safetensors", {}),
    "a directory below": ("/below/", {}),
}


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_an_output_has_the_bytes_of_a_local_one(
    kind: str, threads: int, xet_hub: HubServer, matrices: Path, tmp_path: Path
) -> None:
    name, options = OUTPUTS[kind]
    local = tmp_path / "here" / name.strip("/")
    local.parent.mkdir(parents=True, exist_ok=True)
    convert(matrices, local, **options)
    convert(matrices, f"{NEW_URL}{name}", threads=threads, memory="8MiB", **options)
    found = download(xet_hub, tmp_path)
    files = [path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*")]
    files = [path for path in files if (tmp_path / "here" / path).is_file()]
    assert {*map(str, files)} == {*xet_hub.repositories[NEW_MODEL].tree()}
    for path in files:
        assert (found / path).read_bytes() == (tmp_path / "here" / path).read_bytes(), path
    assert len(xet_hub.repositories[NEW_MODEL].messages) == 2


@pytest.mark.usefixtures("xet_hub")
def test_an_output_is_opened_from_the_hub(matrices: Path) -> None:
    convert(matrices, NEW_URL, max_shard_size="2MB")
    found = header_of(open_weights(NEW_URL)).tensors
    assert found == header_of(open_weights(matrices)).tensors


def test_files_of_a_model_are_in_one_commit_that_says_what_they_are(
    xet_hub: HubServer, matrices: Path
) -> None:
    convert(matrices, f"{NEW_URL}/out.gguf", quant="Q8_0", names="keep")
    assert xet_hub.repositories[NEW_MODEL].messages[1:] == ["Q8_0 GGUF converted with weightctl"]
    convert(matrices, NEW_URL, dtype="bf16")
    message = xet_hub.repositories[NEW_MODEL].messages[2]
    assert message == "BF16 safetensors converted with weightctl"


@pytest.mark.parametrize("suffix", ["pt", "safetensors", "gguf"])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_come_to_an_end_without_memory_for_bytes_that_wait(
    suffix: str, threads: int, xet_hub: HubServer, tmp_path: Path
) -> None:
    rows = 0 if suffix != "gguf" else 1
    arrays = {
        f"t{number:02d}": np.full((rows if number % 3 == 0 else 300, 256), number, np.float32)
        for number in range(12)
    }
    save(arrays, tmp_path / f"out.{suffix}")
    save(arrays, f"{NEW_URL}/out.{suffix}", threads=threads, memory=1)
    assert xet_hub.repositories[NEW_MODEL][f"out.{suffix}"] == (
        (tmp_path / f"out.{suffix}").read_bytes()
    )


def test_what_the_hub_has_is_not_sent_again(xet_hub: HubServer, tmp_path: Path) -> None:
    arrays = {
        f"t{number:02d}": np.random.default_rng(number).standard_normal((256, 256), np.float32)
        for number in range(64)
    }
    before = TRAFFIC.counts
    save(arrays, f"{NEW_URL}/out.safetensors")
    first = TRAFFIC.counts
    arrays["t30"][:160] += 1  # 1 % of all
    save(arrays, f"{NEW_URL}/out.safetensors", force=True)
    again = TRAFFIC.counts.since(first).bytes_sent
    nbytes = len(xet_hub.repositories[NEW_MODEL]["out.safetensors"])
    assert first.since(before).bytes_sent > 0.9 * nbytes
    assert 0 < again < nbytes / 20
    save(arrays, tmp_path / "out.safetensors")
    found = xet_hub.repositories[NEW_MODEL]["out.safetensors"]
    assert found == (tmp_path / "out.safetensors").read_bytes()


def test_a_large_file_beside_the_weights_is_uploaded_too(
    xet_hub: HubServer, matrices: Path, tmp_path: Path
) -> None:
    shutil.copytree(matrices, tmp_path / "model")
    content = b'{"a": "%s"}' % (b"x" * (11 << 20))
    (tmp_path / "model" / "tokenizer.json").write_bytes(content)
    convert(tmp_path / "model", NEW_URL)
    tree = xet_hub.repositories[NEW_MODEL].tree()
    assert tree["tokenizer.json"].sha256
    assert not tree["config.json"].sha256
    assert (download(xet_hub, tmp_path) / "tokenizer.json").read_bytes() == content


def test_a_model_card_of_the_repository_is_kept(xet_hub: HubServer, matrices: Path) -> None:
    xet_hub.create(NEW_MODEL).put("README.md", b"mine")
    convert(matrices, NEW_URL)
    convert(matrices, NEW_URL, force=True)
    assert xet_hub.repositories[NEW_MODEL]["README.md"] == b"mine"


def test_the_model_card_of_the_source_is_used_where_there_is_none(
    xet_hub: HubServer, matrices: Path
) -> None:
    convert(matrices, NEW_URL)
    assert b"the card of the source" in xet_hub.repositories[NEW_MODEL]["README.md"]


def test_other_files_of_a_repository_stay(xet_hub: HubServer, matrices: Path) -> None:
    repository = xet_hub.create(NEW_MODEL)
    repository.put("other.gguf", b"other")
    repository.put("below/model.safetensors", b"below")
    convert(matrices, NEW_URL)
    convert(matrices, NEW_URL, max_shard_size="2MB", force=True)
    assert repository["other.gguf"] == b"other"
    assert repository["below/model.safetensors"] == b"below"


def test_old_parts_are_deleted_in_the_same_commit(xet_hub: HubServer, matrices: Path) -> None:
    convert(matrices, NEW_URL, max_shard_size="2MB")
    repository = xet_hub.repositories[NEW_MODEL]
    assert "model.safetensors.index.json" in repository.tree()
    convert(matrices, NEW_URL, force=True)
    weights = [name for name in repository.tree() if name.startswith("model")]
    assert weights == ["model.safetensors"]
    assert len(repository.messages) == 3


def test_a_new_repository_can_be_private(xet_hub: HubServer, matrices: Path) -> None:
    convert(matrices, f"{NEW_URL}/a.safetensors", private=True)
    assert xet_hub.repositories[NEW_MODEL].private
    convert(matrices, "hf://org/public/a.safetensors")
    assert not xet_hub.repositories["org/public"].private


def test_a_branch_is_written(xet_hub: HubServer, matrices: Path, tmp_path: Path) -> None:
    repository = xet_hub.create(NEW_MODEL)
    repository.put("README.md", b"x", revision="v1.5")
    convert(matrices, f"{NEW_URL}@v1.5")
    assert "model.safetensors" not in repository.tree()
    convert(matrices, tmp_path / "here")
    found = download(xet_hub, tmp_path, revision="v1.5") / "model.safetensors"
    assert found.read_bytes() == (tmp_path / "here" / "model.safetensors").read_bytes()


def test_a_pull_request_leaves_the_branch(
    xet_hub: HubServer, matrices: Path, tmp_path: Path
) -> None:
    repository = xet_hub.create(NEW_MODEL)
    done = convert(matrices, NEW_URL, pr=True)
    assert repository.tree() == {}
    assert done.saved is not None
    assert done.saved.pull_request == f"{xet_hub.url}/{NEW_MODEL}/discussions/1"
    found = download(xet_hub, tmp_path, revision="refs/pr/1")
    assert (found / "model.safetensors").is_file()


def test_a_repository_with_a_dot_in_its_name_is_a_directory(
    xet_hub: HubServer, matrices: Path
) -> None:
    convert(matrices, "hf://org/Model-1.5")
    assert "model.safetensors" in xet_hub.repositories["org/Model-1.5"].tree()


def test_a_remote_model_is_written_beside_itself(xet_hub: HubServer, matrices: Path) -> None:
    convert(matrices, NEW_URL)
    convert(NEW_URL, f"{NEW_URL}/out.gguf", quant="Q8_0", names="keep")
    assert {"model.safetensors", "out.gguf"} <= xet_hub.repositories[NEW_MODEL].tree().keys()
