"""An upload that is killed at any moment is continued by the same command."""

from __future__ import annotations

import random
import shutil
import signal
import statistics
from typing import TYPE_CHECKING

import pytest

from outcomes import random_model
from remote_faults import list_parts, visible
from remote_stores import BUCKET, put_files, serve_s3
from strikes import strikes
from weightctl import convert

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from servers.s3 import S3Server
    from strikes import Strikes

S3 = f"s3://{BUCKET}"
# By name: the output, and options.
OUTPUTS = {
    "a file": ("out.safetensors", ()),
    "a directory with parts": ("out/", ("--dtype", "f32", "--max-shard-size", "20MB")),
}


@pytest.fixture(scope="module")
def model(scratch: Path) -> Path:
    """A model of 50 MB, so that it has several parts of the size that uploads have."""
    return random_model(scratch / "model", 3, 4096)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Generator[S3Server, None, None]:
    with serve_s3(monkeypatch) as server:
        yield server


@pytest.fixture
def struck(s3: S3Server, scratch: Path) -> Generator[Strikes, None, None]:
    # The runs are processes of their own, with the environment that leads to the server.
    assert s3.port
    with strikes(scratch, begin_after=0) as running:
        yield running


@pytest.mark.parametrize("moments", [2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("source", ["local", "S3"])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_kill_9_at_random_moments_is_continued(
    kind: str, source: str, moments: int, s3: S3Server, struck: Strikes, model: Path, scratch: Path
) -> None:
    name, options = OUTPUTS[kind]
    bucket = s3.buckets[BUCKET]
    read = str(model) if source == "local" else put_files(s3, model, "in")
    (here := scratch / "here").mkdir()
    convert(
        model, f"{here}/{name}", **({"dtype": "f32", "max_shard_size": "20MB"} if options else {})
    )
    whole = {
        str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*") if path.is_file()
    }
    shutil.rmtree(here)
    spans = [
        struck.run("convert", read, f"{S3}/span{number}/{name}", *options, "-q", "-j", "1").seconds
        for number in range(2)
    ]
    chance = random.Random(f"{kind} {source}")
    stopped = 0
    for moment in range(moments):
        place = f"{moment}/"
        arguments = ("convert", read, f"{S3}/{place}{name}", *options, "-q", "-j", "1")
        seconds = statistics.median(spans) * (moment + chance.random()) / moments
        ended = struck.run(*arguments, number=signal.SIGKILL, seconds=seconds)
        assert ended.code in (0, -signal.SIGKILL), ended.errors
        stopped += ended.code != 0
        shown = visible(bucket, place)
        for key, content in shown.items():
            assert content == whole[key.removeprefix(place)]
        there = list_parts(bucket)
        s3.forget()
        if ended.code:
            again = struck.run(*arguments)
            # Killed between its last request and its exit, the command has ended its work.
            ended_before = len(shown) == len(whole) and "exists" in again.errors
            assert again.code == 0 or ended_before, again.errors
        assert {key: bucket[key] for key in bucket if key.startswith(place)} == {
            place + key: content for key, content in whole.items()
        }
        assert not list_parts(bucket)
        sent = {
            (each.path.removeprefix(f"/{BUCKET}/"), int(each.query["partNumber"]))
            for each in s3.exchanges("PUT", "partNumber")
        }
        assert not sent & there.keys()
    assert stopped
