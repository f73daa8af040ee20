"""Tokens of the Hub: where they are found, and which servers receive them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hub_fixtures import MODEL
from weightctl.errors import FormatError
from weightctl.storage.files import list_names, open_reader
from weightctl.storage.remote.hub_api import endpoint, read_token

if TYPE_CHECKING:
    from pathlib import Path

    from servers.hub import HubServer

URL = f"hf://{MODEL}"
READER = "hf_test_reader"


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_token_is_in_a_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, f" {READER}\n")
    assert read_token() == READER


def test_a_token_is_in_the_file_of_the_login(no_hub: Path) -> None:
    no_hub.mkdir()
    (no_hub / "token").write_text(f"{READER}\n")
    assert read_token() == READER


@pytest.mark.usefixtures("no_hub")
def test_the_file_of_the_token_can_be_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text(READER)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "mine"))
    assert read_token() == READER


@pytest.mark.usefixtures("no_hub")
def test_the_home_of_the_hub_is_in_the_cache_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "huggingface" / "token").write_text(READER)
    assert read_token() == READER


@pytest.mark.usefixtures("no_hub")
def test_without_a_login_there_is_no_token() -> None:
    assert read_token() == ""


@pytest.mark.usefixtures("no_hub")
def test_a_token_may_be_unwanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READER)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert read_token() == ""


@pytest.mark.usefixtures("no_hub")
def test_what_cannot_be_a_token_is_an_error_that_does_not_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret\nHost: other")
    with pytest.raises(FormatError) as error:
        read_token()
    assert "secret" not in str(error.value)


@pytest.mark.usefixtures("no_hub")
def test_an_endpoint_that_is_no_url_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(FormatError, match="it is not a URL"):
        endpoint()


def test_the_hub_gets_the_token_and_the_host_of_the_bytes_does_not(
    hub_model: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", READER)
    open_reader(f"{URL}/model.safetensors").read(0, 10)
    assert [each.headers["authorization"] for each in hub_model.log] == [f"Bearer {READER}"] * 2
    assert hub_model.links.requests == 1
    assert "authorization" not in hub_model.links.log[0].headers


def test_a_redirect_of_the_api_to_another_host_takes_no_token(
    hub_model: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from servers.base import Redirect

    monkeypatch.setenv("HF_TOKEN", READER)
    hub_model.inject(Redirect(hub_model.other_url, 307), path="/api/", times=1)
    list_names(URL)
    assert ["authorization" in each.headers for each in hub_model.log] == [True, False]


def test_a_redirect_of_the_api_on_the_same_host_takes_the_token(
    hub_model: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from servers.base import Redirect

    monkeypatch.setenv("HF_TOKEN", READER)
    hub_model.inject(Redirect(hub_model.url, 307), path="/api/", times=1)
    list_names(URL)
    assert ["authorization" in each.headers for each in hub_model.log] == [True, True]


def test_a_next_page_on_another_host_gets_no_token(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weightctl.storage.remote.hub_api import ask_pages
    from weightctl.storage.remote.hub_url import parse_hub_url

    repository = hub.create("org/many")
    for number in range(4):
        repository.put(f"{number}.txt", b"x")
    monkeypatch.setenv("HF_TOKEN", READER)
    # The server names its pages by its address, and not by its name.
    monkeypatch.setenv("HF_ENDPOINT", hub.other_url)
    place = parse_hub_url("hf://org/many")
    assert len([*ask_pages("org/many/tree/main?recursive=true", place, "hf://org/many")]) == 4
    assert ["authorization" in each.headers for each in hub.log] == [True, False]
