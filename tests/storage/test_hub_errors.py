"""Requests that the Hub refuses become errors that say why, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hub_fixtures import MODEL, put_directory
from weightctl import open_weights
from weightctl.errors import FormatError, MissingFileError
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

    from servers.hub import HubServer

READER = "hf_test_reader"
LOGIN = "set HF_TOKEN, or log in with `hf auth login`"
NOT_THERE = "the model {} does not exist on the Hugging Face Hub, or is private"


def error_of(url: str) -> FormatError:
    with pytest.raises(FormatError) as error:
        open_weights(url)
    return error.value


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightctl.storage.remote.requests._FIRST_WAIT", 0.0)


@pytest.mark.usefixtures("hub")
def test_a_model_that_does_not_exist() -> None:
    error = error_of("hf://org/nope")
    assert isinstance(error, MissingFileError)
    assert error.message == f"hf://org/nope: {NOT_THERE.format('org/nope')}"
    assert error.hint == f"check the name; for a private model, {LOGIN}"


@pytest.mark.usefixtures("hub")
def test_a_model_that_does_not_exist_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READER)
    error = error_of("hf://org/nope")
    assert error.message == f"hf://org/nope: {NOT_THERE.format('org/nope')}"
    assert error.hint == "check the name, and whether your token may read it"


def test_a_private_model(hub: HubServer) -> None:
    hub.create("org/private", private=True)
    assert error_of("hf://org/private").reason == NOT_THERE.format("org/private")


def test_a_private_model_is_opened_with_a_token(
    hub: HubServer, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_directory(hub, "org/private", tiny_llama)
    hub.repositories["org/private"].private = True
    hub.repositories["org/private"].readers.add("reader")
    monkeypatch.setenv("HF_TOKEN", READER)
    assert len(header_of(open_weights("hf://org/private")).tensors) == 30


@pytest.mark.parametrize(("token", "login"), [("", f"; then {LOGIN}"), (READER, "")])
def test_a_gated_model(
    hub: HubServer, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, token: str, login: str
) -> None:
    put_directory(hub, "org/gated", tiny_llama)
    hub.repositories["org/gated"].gated = True
    monkeypatch.setenv("HF_TOKEN", token)
    error = error_of("hf://org/gated")
    assert error.reason == "the model org/gated requires that you accept its conditions"
    assert error.hint == f"accept them on its page, {hub.url}/org/gated{login}"


@pytest.mark.usefixtures("hub_model")
def test_a_revision_that_does_not_exist() -> None:
    error = error_of(f"hf://{MODEL}@nope")
    assert isinstance(error, MissingFileError)
    assert error.reason == f"the model {MODEL} has no revision `nope`"
    assert error.hint == f"check the revision; hf://{MODEL} is the main branch"


@pytest.mark.usefixtures("hub_model")
def test_a_file_that_does_not_exist() -> None:
    error = error_of(f"hf://{MODEL}/nope.gguf")
    assert isinstance(error, MissingFileError)
    assert error.reason == "No such file or directory"


@pytest.mark.usefixtures("hub_model")
def test_a_token_that_the_hub_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    error = error_of(f"hf://{MODEL}")
    assert error.reason == "the Hugging Face Hub did not accept the token"
    assert error.hint == f"{LOGIN}; for a public model, use --anonymous"
    assert "hf_wrong" not in str(error)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (429, "the Hugging Face Hub allows no more requests for now"),
        (500, "the Hugging Face Hub answered with status 500"),
        (403, "access is denied"),
    ],
)
def test_a_status(hub_model: HubServer, status: int, reason: str) -> None:
    from servers.base import Answer

    hub_model.inject(Answer(status), path="/api/")
    assert error_of(f"hf://{MODEL}").reason == reason


def test_a_hub_that_cannot_be_reached(hub: HubServer) -> None:
    hub.stop()
    error = error_of(f"hf://{MODEL}")
    assert error.reason.startswith("the Hugging Face Hub cannot be reached: ")
    assert "HF_HUB_OFFLINE=1" in error.hint


def test_a_server_that_is_not_a_hub(no_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del no_hub
    from servers.base import PlainServer

    with PlainServer() as server:
        server.put(f"/api/models/{MODEL}/revision/main", b"<html>")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        error = error_of(f"hf://{MODEL}")
    assert error.reason == "the answer of the Hugging Face Hub is not in the expected form"


def test_a_page_that_is_not_a_list(no_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del no_hub
    from servers.base import PlainServer
    from weightctl.storage.remote.hub_api import ask_pages
    from weightctl.storage.remote.hub_url import parse_hub_url

    with PlainServer() as server:
        server.put(f"/api/models/{MODEL}/tree/main", b'{"files": []}')
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        pages = ask_pages(f"{MODEL}/tree/main", parse_hub_url(f"hf://{MODEL}"), f"hf://{MODEL}")
        with pytest.raises(FormatError, match="is not in the expected form"):
            next(pages)


def test_a_checkpoint_in_a_directory_of_the_model_is_named(
    hub: HubServer, tiny_llama: Path
) -> None:
    raw = (tiny_llama / "model.safetensors").read_bytes()
    hub.create("org/deep").put("gguf/model.safetensors", raw)
    assert error_of("hf://org/deep").hint == "use this directory: hf://org/deep/gguf"
