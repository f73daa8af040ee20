"""URLs of models on the Hub are parsed as the Hub's own tools parse them."""

from __future__ import annotations

import pytest
from huggingface_hub.utils import parse_hf_uri

from weightctl.errors import FormatError
from weightctl.storage.remote.hub_url import HubPath, is_safe_path, parse_hub_url

URLS = [
    "hf://org/name",
    "hf://models/org/name",
    "hf://org/name/model.safetensors",
    "hf://org/name/gguf/a-00001-of-00002.gguf",
    "hf://org/name@v1.0",
    "hf://org/name@v1.0/model.gguf",
    "hf://org/name@refs/pr/1",
    "hf://org/name@refs/pr/12/model.gguf",
    "hf://org/name@refs/convert/parquet/a/b",
    "hf://org/name@feature%2Fx/model.gguf",
    "hf://org/name@refs/heads/x",
    "hf://Org.1/a_name-1.5B.Q4",
]


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_parsed_as_huggingface_hub_does(url: str) -> None:
    theirs = parse_hf_uri(url)
    assert parse_hub_url(url) == HubPath(theirs.id, theirs.revision or "main", theirs.path_in_repo)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("hf://", "the URL does not contain both an owner and a model name"),
        ("hf://gpt2", "the URL does not contain both an owner and a model name"),
        ("hf://gpt2@main/a.bin", "`gpt2@main/a.bin` is not a valid model name"),
        ("hf://datasets/org/a", "it is not a model: weightctl does not open datasets of the Hub"),
        ("hf://spaces/org/name/a", "it is not a model: weightctl does not open spaces of the Hub"),
        ("hf://org/a--b", "`org/a--b` is not a valid model name"),
        ("hf://org/name.git", "`org/name.git` is not a valid model name"),
        ("hf://org/-name", "`org/-name` is not a valid model name"),
        ("hf://org/name@", "`` is not a valid revision name"),
        ("hf://org/name@..%2Fx", "`../x` is not a valid revision name"),
    ],
)  # fmt: skip
def test_what_is_not_the_url_of_a_model_is_an_error(url: str, reason: str) -> None:
    with pytest.raises(FormatError) as error:
        parse_hub_url(url)
    assert error.value.message == f"{url}: {reason}"
    assert error.value.hint


@pytest.mark.parametrize("path", ["../x", "a/../b", "/a", "a//b", "a/.", "a\0b", "a\\b", ""])
def test_a_path_that_may_leave_its_directory_is_not_safe(path: str) -> None:
    assert not is_safe_path(path)


def test_a_path_in_directories_is_safe() -> None:
    assert is_safe_path("a/.b/c..d.txt")
