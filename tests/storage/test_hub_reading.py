"""Checkpoints on the Hub are read at one commit, with few requests."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hub_fixtures import MODEL
from weightctl import open_weights
from weightctl.storage.files import file_size, is_directory, list_names, open_reader
from weightctl.storage.traffic import TRAFFIC
from weightctl.translate.card import from_directory
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

    from servers.base import Request, Response
    from servers.hub import HubServer

URL = f"hf://{MODEL}"


def raw_of(path: str | Path) -> dict[str, bytes]:
    with open_weights(str(path)) as weights:
        return {
            name: node.data().to_buffer().to_numpy().tobytes() for name, node in weights.items()
        }


@pytest.mark.usefixtures("hub_model")
def test_a_model_has_the_bytes_of_its_files(tiny_llama: Path) -> None:
    assert raw_of(URL) == raw_of(tiny_llama)


def test_opening_takes_one_request_to_the_api_and_one_to_each_file(hub_model: HubServer) -> None:
    open_weights(URL)
    assert len(hub_model.exchanges("GET", "/api/")) == 1
    assert len(hub_model.exchanges("GET", "/resolve/")) == 1


def test_parts_are_opened_with_one_request_each(hub: HubServer) -> None:
    import numpy as np
    from safetensors.numpy import save

    repository = hub.create("org/parts")
    for number in range(1, 6):
        raw = save({f"t{number}": np.full(3, number, np.float32)})
        repository.put(f"model-0000{number}-of-00005.safetensors", raw)
    repository.put("README.md", b"text")
    repository.put("LICENSE", b"text")
    header = header_of(open_weights("hf://org/parts"))
    assert len(header.tensors) == 5
    assert len(hub.exchanges("GET", "/resolve/")) == 5


def test_all_reads_are_of_the_commit_that_was_opened(
    hub_model: HubServer, tiny_llama: Path
) -> None:
    weights = open_weights(URL)
    commit = hub_model.repositories[MODEL].refs["main"]
    hub_model.repositories[MODEL].put("model.safetensors", b"another content")
    with weights:
        found = weights.lm_head.weight.data().to_buffer().to_numpy().tobytes()
    assert found == raw_of(tiny_llama)["lm_head.weight"]
    assert all(
        f"/resolve/{commit}/" in each.path for each in hub_model.exchanges("GET", "/resolve/")
    )


def test_opening_again_finds_a_newer_commit(hub_model: HubServer, tiny_llama: Path) -> None:
    open_weights(URL)
    repository = hub_model.repositories[MODEL]
    repository.put("model.safetensors", _renamed((tiny_llama / "model.safetensors").read_bytes()))
    assert "lm_head.Weight" in header_of(open_weights(URL)).tensors


def _renamed(raw: bytes) -> bytes:
    return raw.replace(b'"lm_head.weight"', b'"lm_head.Weight"')


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1", "refs%2Fpr%2F1", "feature%2Fa"])
def test_a_revision_is_opened(hub_model: HubServer, tiny_llama: Path, revision: str) -> None:
    raw = _renamed((tiny_llama / "model.safetensors").read_bytes())
    branch = revision.replace("%2F", "/")
    hub_model.repositories[MODEL].put("other.safetensors", raw, revision=branch)
    assert "lm_head.Weight" in header_of(open_weights(f"{URL}@{revision}")).tensors
    assert list_names(f"{URL}@{revision}") == ["other.safetensors"]


def test_a_commit_is_a_revision(hub_model: HubServer) -> None:
    repository = hub_model.repositories[MODEL]
    commit = repository.refs["main"]
    repository.put("added.txt", b"x")
    assert "added.txt" not in list_names(f"{URL}@{commit}")


def test_files_in_directories_are_listed_and_opened(hub: HubServer, tiny_llama: Path) -> None:
    repository = hub.create("org/deep")
    repository.put("a/b/model.safetensors", (tiny_llama / "model.safetensors").read_bytes())
    assert list_names("hf://org/deep") == ["a"]
    assert is_directory("hf://org/deep/a/b")
    assert len(header_of(open_weights("hf://org/deep/a/b")).tensors) == 30


def test_an_empty_file_is_read(hub_model: HubServer) -> None:
    hub_model.repositories[MODEL].put("empty.txt", b"")
    assert open_reader(f"{URL}/empty.txt").read(0, 10) == b""


@pytest.mark.parametrize(
    "name", ["a b.txt", "a#b.txt", "a%20b.txt", "a+b.txt", "é.txt", "[1].gguf"]
)
def test_any_name_is_read(hub_model: HubServer, name: str) -> None:
    hub_model.repositories[MODEL].put(name, b"0123")
    assert open_reader(f"{URL}/{name}").read(1, 2) == b"12"


def test_names_outside_of_the_model_are_ignored(hub_model: HubServer) -> None:
    hub_model.repositories[MODEL].put("../outside.txt", b"x")
    assert not [name for name in list_names(URL) if "outside" in name or name == ".."]


@pytest.mark.usefixtures("no_hub")
def test_where_the_api_states_no_sizes_the_listing_does(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hub_fixtures import put_directory
    from servers.hub import HubServer as Server

    class OldHub(Server):
        def answer(self, request: Request) -> Response:
            parameters = [each for each in request.parameters if each[0] != "blobs"]
            return super().answer(replace(request, parameters=parameters))

    with OldHub(page_size=2) as old:
        monkeypatch.setenv("HF_ENDPOINT", old.url)
        put_directory(old, MODEL, tiny_llama)
        expected = (tiny_llama / "model.safetensors").stat().st_size
        assert file_size(f"{URL}/model.safetensors") == expected
        assert len(old.exchanges("GET", "/tree/")) == -(-len(list_names(URL)) // 2)


def test_a_request_to_the_api_is_repeated(hub_model: HubServer) -> None:
    from servers.base import Answer

    hub_model.inject(Answer(503), path="/api/", times=1)
    before = TRAFFIC.counts.retries
    assert "config.json" in list_names(URL)
    # On a busy machine, a connection can also be closed before a request arrives.
    assert TRAFFIC.counts.retries > before
    assert len(hub_model.exchanges("GET", "/api/")) == 2


def test_an_answer_that_is_cut_is_requested_again(hub_model: HubServer) -> None:
    from servers.base import Close

    hub_model.inject(Close(100), path="/api/", times=1)
    assert "config.json" in list_names(URL)
    assert len(hub_model.exchanges("GET", "/api/")) == 2


def test_a_file_that_is_unchanged_has_the_version_that_it_had(hub_model: HubServer) -> None:
    path = f"{URL}/model.safetensors"
    before = open_reader(path).written
    hub_model.repositories[MODEL].put("README.md", b"changed")
    open_weights(URL)
    assert open_reader(path).written == before


def test_a_file_that_is_changed_has_another_version(hub_model: HubServer) -> None:
    path = f"{URL}/config.json"
    before = open_reader(path).written
    hub_model.repositories[MODEL].put("config.json", b"{}" + b" " * 607)
    open_weights(URL)
    assert open_reader(path).written != before


@pytest.mark.usefixtures("hub_model")
def test_the_name_of_a_model_is_that_on_the_hub() -> None:
    found = from_directory(f"{URL}@main")
    assert found["general.name"].content == "Tiny Llama"
    assert found["general.organization"].content == "Org"


@pytest.mark.usefixtures("hub_model")
def test_huggingface_hub_is_not_imported() -> None:
    program = f"""
import sys, weightctl
with weightctl.open_weights({URL!r}) as weights:
    weights.lm_head.weight.data().to_buffer()
print(sorted(name for name in sys.modules if re.match("huggingface_hub|hf_xet|requests$", name)))
"""
    done = subprocess.run(
        [sys.executable, "-c", f"import re{program}"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"\[\]\n", done.stdout)
