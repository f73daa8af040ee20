"""URLs are shown without passwords and signatures, and are requested in full."""

from __future__ import annotations

import os

import pytest

from weightctl import open_weights
from weightctl.errors import FormatError
from weightctl.formats.imatrix import read_importance
from weightctl.storage.files import file_size, is_file, open_reader
from weightctl.storage.location import (
    STORAGES,
    forget_credentials,
    full_url,
    hint_for_missing,
    parse_location,
    store_of,
)


@pytest.fixture(autouse=True)
def _no_urls_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightctl.storage.location._FULL", {})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a.gguf?sig=1", "https://host/a.gguf"),
        ("https://user:word@host/a.gguf", "https://host/a.gguf"),
        ("https://user:word@host:8080/a.gguf?sig=1#x", "https://host:8080/a.gguf"),
        ("HTTPS://host/a.gguf", "https://host/a.gguf"),
        ("hf://org/name/", "hf://org/name"),
        ("s3://bucket/a b?c", "s3://bucket/a b?c"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert parse_location(url).name == shown


def test_a_url_is_requested_in_full() -> None:
    url = "https://user:word@host/a.gguf?sig=1"
    assert full_url(parse_location(url).name) == url


def test_urls_that_differ_in_the_query_are_different_files() -> None:
    urls = [f"https://host/download?id={number}" for number in (1, 2, 3)]
    shown = [parse_location(url).name for url in urls]
    assert shown == ["https://host/download", "https://host/download#2", "https://host/download#3"]
    assert [full_url(name) for name in shown] == urls


def test_the_name_of_a_url_is_parsed_as_itself() -> None:
    for url in ("https://host/a?id=1", "https://host/a?id=2", "https://host/a?id=1"):
        name = parse_location(url).name
        assert parse_location(name).name == name
        assert full_url(name) == url


def test_a_path_stays_as_it_is() -> None:
    assert parse_location("a/b?c#d/").name == "a/b?c#d/"


def test_a_url_of_a_local_file_is_its_path() -> None:
    assert parse_location("file:///a%20b") == ("file", "/a b")


def test_without_credentials_every_storage_that_has_them_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {line.anonymous for line in STORAGES.values()} - {""}
    for name in variables:
        monkeypatch.setenv(name, "")
    forget_credentials()
    assert variables == {
        "HF_HUB_DISABLE_IMPLICIT_TOKEN", "AWS_SKIP_SIGNATURE", "GOOGLE_SKIP_SIGNATURE",
        "AZURE_SKIP_SIGNATURE",
    }  # fmt: skip
    assert {os.environ[name] for name in variables} == {"true"}


@pytest.mark.parametrize("name", ["org/name", "org/Name_1.5-x"])
def test_a_missing_path_that_may_be_a_model_gets_its_url(name: str) -> None:
    assert hint_for_missing(name).endswith(f"use `hf://{name}`")


@pytest.mark.parametrize("name", ["name", "a/b/c", "/a/b", "./b", "ö/b", "a b/c"])
def test_other_missing_paths_do_not(name: str) -> None:
    assert hint_for_missing(name) == "check the path"


def test_errors_about_a_url_do_not_show_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightctl.storage.remote.requests._ATTEMPTS", 1)
    for call in (open_reader, read_importance, is_file, file_size, open_weights):
        with pytest.raises(FormatError) as error:
            call("http://user:PASSWORD@127.0.0.1:1/a.gguf?sig=SIGNATURE")
        assert "http://127.0.0.1:1/a.gguf: " in str(error.value)
        assert "PASSWORD" not in str(error.value)
        assert "SIGNATURE" not in str(error.value)


def test_a_package_that_cannot_be_loaded_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A DLL of the package can be missing, or not fit the system."""

    def refuse(_: str, __: str = "") -> object:
        raise ImportError("DLL load failed while importing _obstore", name="obstore._obstore")

    monkeypatch.setattr("weightctl.storage.location._STORES", {})
    monkeypatch.setattr("weightctl.storage.location.load", refuse)
    with pytest.raises(FormatError, match="which cannot be loaded: DLL load"):
        store_of("https://example.org/a.gguf")
