"""Buckets that refuse a request: the error, and that the request is not repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from weightctl import open_weights
from weightctl.errors import FormatError, MissingFileError
from weightctl.storage.location import forget_credentials, store_of
from weightctl.storage.traffic import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers.s3 import S3Server


def name_of(server: S3Server) -> str:
    """Return the name of the bucket; a client of another test may still be open."""
    return f"models-{server.port}"


@pytest.fixture
def bucket(no_hub: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    from servers.s3 import KEY, S3Server

    monkeypatch.setenv("HOME", str(no_hub))
    for name in ("AWS_SKIP_SIGNATURE", "GOOGLE_SKIP_SIGNATURE", "AZURE_SKIP_SIGNATURE"):
        # Set and deleted, it is deleted again after the test, whatever the test has set.
        monkeypatch.setenv(name, "true")
        monkeypatch.delenv(name)
    with S3Server() as server:
        made = server.create_bucket(name_of(server))
        made.put("llama/model.safetensors", (tiny_llama / "model.safetensors").read_bytes())
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY.access)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY.secret)
        yield server


def test_credentials_that_are_wrong_are_an_error_at_once(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    before = TRAFFIC.retries
    with pytest.raises(FormatError) as error:
        open_weights(f"s3://{name_of(bucket)}/llama")
    assert error.value.reason == "cannot be read: access is denied"
    assert "--anonymous" in error.value.hint
    assert TRAFFIC.retries == before


@pytest.mark.usefixtures("bucket")
def test_a_bucket_that_does_not_exist_is_an_error_at_once() -> None:
    before = TRAFFIC.retries
    with pytest.raises(MissingFileError) as error:
        open_weights("s3://nothing/llama")
    assert error.value.reason == "the bucket does not exist"
    assert TRAFFIC.retries == before


def test_a_public_bucket_is_read_without_credentials(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "")
    bucket.buckets[name_of(bucket)].public_read = True
    forget_credentials()
    open_weights(f"s3://{name_of(bucket)}/llama")
    assert all("authorization" not in each.headers for each in bucket.log)


def test_a_bucket_is_not_an_object_whatever_the_server_says_of_it(bucket: S3Server) -> None:
    url = f"s3://{name_of(bucket)}"
    store: Any = store_of(url)
    before = len(bucket.log)
    with pytest.raises(FileNotFoundError):
        store._look(url)
    assert len(bucket.log) == before


def test_a_bucket_that_cannot_be_listed_is_read_by_name(bucket: S3Server) -> None:
    from servers.base import Answer

    bucket.inject(Answer(403), path="list-type")
    weights = open_weights(f"s3://{name_of(bucket)}/llama/model.safetensors")
    assert "lm_head" in dir(weights)
