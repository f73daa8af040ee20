"""After a fault of a server at any moment, the output is complete, or absent and continued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from remote_faults import (
    READ_FAULTS,
    WRITE_FAULTS,
    hasten,
    list_parts,
    random_moments,
    settle,
    visible,
    write_model,
)
from remote_stores import BUCKET, put_files, serve_s3, serve_web
from servers.faults import Redirect
from weightctl import convert
from weightctl.errors import WeightctlError
from weightctl.write.objects import stopped_uploads

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from servers.base import Server
    from servers.s3 import S3Server

S3 = f"s3://{BUCKET}"
MOMENTS = [1, pytest.param(20, marks=pytest.mark.long)]
# By name: the output, and options.
OUTPUTS: Mapping[str, tuple[str, dict[str, str]]] = {
    "a file": ("out.safetensors", {}),
    "a directory": ("out/", {"max_shard_size": "2MB"}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Generator[S3Server, None, None]:
    with serve_s3(monkeypatch) as server:
        hasten(monkeypatch)
        yield server


def attempt(source: str | Path, out: str | Path, **options: Any) -> WeightctlError | None:
    """Convert; return the error that prevents it."""
    try:
        convert(source, out, **options)
    except WeightctlError as error:
        return error
    return None


def read_at_moments(
    server: Server, source: str, model: Path, tmp_path: Path, fault: str, moments: int
) -> int:
    """Convert with a fault at each moment; return how many conversions failed."""
    action, is_passing, method = READ_FAULTS[fault]
    expected = tmp_path / "expected.safetensors"
    convert(model / "model.safetensors", expected, dtype="bf16")
    server.forget()
    convert(source, tmp_path / "first.safetensors", dtype="bf16")
    assert server.requests > 20
    failed = 0
    for place, nth in enumerate(random_moments(fault, moments, server.requests)):
        out = tmp_path / f"{place}.safetensors"
        server.inject(action, method, nth=nth, times=1)
        error = attempt(source, out, dtype="bf16")
        if error is not None:
            assert not is_passing, error
            assert error.hint
            assert not out.exists()
            failed += 1
            settle(server)
            convert(source, out, dtype="bf16")
        settle(server)
        assert out.read_bytes() == expected.read_bytes()
    return failed


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("fault", READ_FAULTS)
def test_a_fault_at_any_moment_of_reading_s3_spoils_nothing(
    fault: str, moments: int, s3: S3Server, model: Path, tmp_path: Path
) -> None:
    source = f"{put_files(s3, model, 'in')}/model.safetensors"
    failed = read_at_moments(s3, source, model, tmp_path, fault, moments)
    # A listing that is denied is not needed.
    assert failed >= (0 if READ_FAULTS[fault].is_passing else moments // 3)


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("fault", READ_FAULTS)
def test_a_fault_at_any_moment_of_reading_a_web_server_spoils_nothing(
    fault: str, moments: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_web(monkeypatch, model) as server:
        hasten(monkeypatch)
        source = f"{server.url}/model.safetensors"
        failed = read_at_moments(server, source, model, tmp_path, fault, moments)
    assert failed >= (0 if READ_FAULTS[fault].is_passing else moments // 3)


def test_a_redirect_to_another_host_is_followed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_web(monkeypatch, model) as server, serve_web(monkeypatch, model) as other:
        hasten(monkeypatch)
        server.inject(Redirect(f"http://localhost:{other.port}"))
        convert(f"{server.url}/model.safetensors", tmp_path / "out.safetensors")
        assert other.requests > 20
    convert(model / "model.safetensors", tmp_path / "expected.safetensors")
    expected = (tmp_path / "expected.safetensors").read_bytes()
    assert (tmp_path / "out.safetensors").read_bytes() == expected


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_a_fault_at_any_moment_of_writing_s3_spoils_nothing(
    fault: str, kind: str, moments: int, s3: S3Server, model: Path
) -> None:
    action, is_passing, _ = WRITE_FAULTS[fault]
    bucket = s3.buckets[BUCKET]
    name, options = OUTPUTS[kind]
    convert(model, f"{S3}/expected/{name}", **options)
    requests = s3.requests
    whole = {key.removeprefix("expected/"): bucket[key] for key in bucket}
    failed = 0
    for place, nth in enumerate(random_moments(f"{fault} {kind}", moments, requests)):
        out = f"{S3}/{place}/{name}"
        s3.inject(action, nth=nth, times=1)
        error = attempt(model, out, threads=1, **options)
        if error is not None:
            assert not is_passing, error
            assert error.hint
            # The fault may come when the output has its name, or a part of it has.
            for key, content in visible(bucket, f"{place}/").items():
                assert content == whole[key.removeprefix(f"{place}/")]
            failed += 1
            settle(s3)
            there = list_parts(bucket)
            s3.forget()
            convert(model, out, threads=1, **options)
            again = [
                (each.path.removeprefix(f"/{BUCKET}/"), int(each.query["partNumber"]))
                for each in s3.exchanges("PUT", "partNumber")
            ]
            assert not there.keys() & set(again)
        settle(s3)
        found = visible(bucket, f"{place}/")
        assert found == {f"{place}/{key}": content for key, content in whole.items()}
        # The output is complete before its journal is removed.
        is_kept = any(each.action is action for each in s3.exchanges("DELETE"))
        assert is_kept or found.keys() == {key for key in bucket if key.startswith(f"{place}/")}
        s3.forget()
        # The id of an upload whose answer was lost is not known; there is nothing in it.
        assert not list_parts(bucket)
    assert failed >= (0 if is_passing else moments // 3)


def test_a_run_that_fails_again_and_again_sends_each_part_once(s3: S3Server, model: Path) -> None:
    out, bucket = f"{S3}/out.safetensors", s3.buckets[BUCKET]
    for nth in (5, 4, 3):
        s3.inject(WRITE_FAULTS["403"].action, "PUT", path="partNumber", nth=range(nth, 1000))
        with pytest.raises(WeightctlError, match="access is denied"):
            convert(model, out, threads=1)
        assert visible(bucket, "out") == {}
        settle(s3)
    convert(model, out, threads=1)
    arrived = [
        each.query["partNumber"] for each in s3.exchanges("PUT", "partNumber") if each.status == 200
    ]
    assert len(arrived) == len(set(arrived))
    assert sum(
        each.received for each in s3.exchanges("PUT", "partNumber") if each.status == 200
    ) == len(bucket["out.safetensors"])
    assert not bucket.uploads


def test_the_rest_of_a_journal_that_could_not_be_removed_goes_later(
    s3: S3Server, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped_uploads, "_ENDED_AFTER", -1.0)
    bucket = s3.buckets[BUCKET]
    bucket.put("out.safetensors.weightctl-0123abcd.partial.journal-00000002", b"{}")
    convert(model, f"{S3}/out.safetensors")
    assert [*bucket] == ["out.safetensors"]
