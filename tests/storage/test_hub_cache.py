"""Files that the Hub's own tools have downloaded are read from their cache."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import hf_hub_download

from commands import run_command
from hub_fixtures import MODEL
from weightctl import open_weights
from weightctl.errors import MissingFileError, SourceWarning
from weightctl.storage.files import list_names, open_reader
from weightctl.storage.remote.hub import HubStore
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

    from servers.hub import HubServer

URL = f"hf://{MODEL}"
FILE = f"{URL}/model.safetensors"


def download(hub: HubServer, home: Path, name: str = "model.safetensors") -> Path:
    """Have the Hub's own client put a file into the cache; return its path there."""
    found = hf_hub_download(MODEL, name, endpoint=hub.url, cache_dir=home / "hub", token=False)
    hub.forget()
    hub.links.forget()
    return home / "hub" / found


def test_a_file_in_the_cache_is_not_requested(hub_model: HubServer, no_hub: Path) -> None:
    path = download(hub_model, no_hub)
    assert open_reader(FILE).read(0, 1000) == path.read_bytes()[:1000]
    assert hub_model.exchanges("GET", "/resolve/") == []


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])
def test_the_cache_can_be_elsewhere(
    hub_model: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    download(hub_model, tmp_path / "other")
    monkeypatch.setenv(variable, str(tmp_path / "other" / "hub"))
    open_reader(FILE).read(0, 1000)
    assert hub_model.exchanges("GET", "/resolve/") == []


def test_a_file_of_another_commit_is_requested(hub_model: HubServer, no_hub: Path) -> None:
    download(hub_model, no_hub, "config.json")
    hub_model.repositories[MODEL].put("config.json", b'{"new": 1}')
    assert open_reader(f"{URL}/config.json").read(0, 20) == b'{"new": 1}'


def test_a_file_whose_size_is_wrong_is_requested(hub_model: HubServer, no_hub: Path) -> None:
    path = download(hub_model, no_hub)
    expected = path.read_bytes()[:100]
    path.resolve().write_bytes(b"cut")
    assert open_reader(FILE).read(0, 100) == expected


def test_a_file_in_the_cache_has_the_url_that_was_asked_for(
    hub_model: HubServer, no_hub: Path
) -> None:
    download(hub_model, no_hub)
    assert open_reader(FILE).path == FILE


def test_a_file_has_the_same_version_with_the_cache_and_without(
    hub_model: HubServer, no_hub: Path
) -> None:
    before = open_reader(FILE).written
    download(hub_model, no_hub)
    assert open_reader(FILE).written == before


def test_a_file_in_the_cache_did_not_change(hub_model: HubServer, no_hub: Path) -> None:
    download(hub_model, no_hub)
    open_reader(FILE).refuse_change()


def test_a_file_in_the_cache_is_opened_by_its_url_in_another_process(
    hub_model: HubServer, no_hub: Path
) -> None:
    path = download(hub_model, no_hub)
    copy = pickle.loads(pickle.dumps(open_reader(FILE)))
    assert (copy.path, copy.read(0, 8)) == (FILE, path.read_bytes()[:8])


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_a_model_is_read_from_the_cache(
    hub_model: HubServer, no_hub: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    download(hub_model, no_hub)
    monkeypatch.setenv(variable, "1")
    assert list_names(URL) == ["model.safetensors"]
    assert len(header_of(open_weights(URL)).tensors) == 30
    assert hub_model.log == []


def test_offline_a_commit_is_found_without_a_reference(
    hub_model: HubServer, no_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(hub_model, no_hub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    commit = hub_model.repositories[MODEL].refs["main"]
    assert list_names(f"{URL}@{commit}") == ["model.safetensors"]


def test_offline_a_revision_that_is_not_in_the_cache_is_an_error(
    hub_model: HubServer, no_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(hub_model, no_hub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MissingFileError) as error:
        open_weights(f"{URL}@v2")
    assert error.value.message == (
        f"{URL}@v2: the revision `v2` is not in the cache of the Hugging Face Hub, and "
        "HF_HUB_OFFLINE allows no requests"
    )
    assert error.value.hint == (
        f"unset HF_HUB_OFFLINE, or download it first: `hf download {MODEL} --revision v2`"
    )


def test_offline_a_file_that_is_not_in_the_cache_does_not_exist(
    hub_model: HubServer, no_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(hub_model, no_hub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MissingFileError) as error:
        open_reader(f"{URL}/config.json")
    assert error.value.reason == (
        "it is not in the cache of the Hugging Face Hub, and HF_HUB_OFFLINE allows no requests"
    )


def test_a_reference_that_is_not_a_commit_is_not_followed(
    hub_model: HubServer, no_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = download(hub_model, no_hub)
    (path.parent.parent.parent / "refs" / "main").write_text("../../../..")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MissingFileError, match="is not in the cache"):
        list_names(URL)


def test_without_a_network_a_model_is_read_from_the_cache_with_a_warning(
    hub_model: HubServer, no_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(hub_model, no_hub)
    commit = hub_model.repositories[MODEL].refs["main"]
    monkeypatch.setattr("weightctl.storage.remote.hub._PATIENCE", 0.2)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.warns(SourceWarning) as warned:
        assert len(header_of(open_weights(URL)).tensors) == 30
    (only,) = warned
    assert str(only.message) == (
        f"{URL}: the Hugging Face Hub did not answer within 0.2 seconds; the model is read from "
        f"the cache, at commit {commit[:7]}, which may not be the newest"
    )
    with pytest.raises(MissingFileError, match=r"is not in the cache .* did not answer"):
        open_reader(f"{URL}/config.json")
    monkeypatch.setattr("weightctl.storage.location._STORES", {})
    done = run_command("ls", URL)
    assert done.returncode == 0
    assert done.stderr.startswith(f"warning: {URL}: the Hugging Face Hub did not answer")


def test_a_refusal_of_the_hub_is_not_hidden_by_the_cache(
    hub_model: HubServer, no_hub: Path
) -> None:
    download(hub_model, no_hub)
    del hub_model.repositories[MODEL]
    with pytest.raises(MissingFileError, match="does not exist"):
        open_weights(URL)


def test_what_is_written_follows_what_the_hub_has_and_not_the_cache(
    hub_model: HubServer, no_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(hub_model, no_hub)
    monkeypatch.setattr("weightctl.storage.remote.hub._PATIENCE", 0.0)
    store = HubStore()
    with pytest.warns(SourceWarning):
        assert [*store.list_names(URL)] == ["model.safetensors"]
    found = store.find_commit(URL)
    assert found is not None
    assert "config.json" in found.files
