"""After a fault of the Hub, or kill -9, at any moment: one whole commit, or none and continued."""

from __future__ import annotations

import random
import signal
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from outcomes import random_model, strikes
from servers.base import Answer
from servers.hub import XetStore
from tested_stores import WRITE_FAULTS, attempt, hasten, random_moments, settle
from weightctl import convert
from weightctl.errors import WeightctlError
from weightctl.storage.traffic import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from servers.hub import HubServer

MOMENTS = [2, pytest.param(20, marks=pytest.mark.long)]
# Files are sent in pieces of at most so many bytes.
PIECE = 64 << 20
# By name: the output, and options.
OUTPUTS = {"a file": ("/out.safetensors", {}), "a directory": ("", {"max_shard_size": "2MB"})}


@pytest.fixture(scope="module")
def large(scratch: Path) -> Path:
    """A model of 300 MB, which is uploaded in several pieces."""
    return random_model(scratch / "large", 18, 4096)


def files_of(hub: HubServer, model: str) -> dict[str, bytes]:
    """Return the files of a model that may not exist."""
    repository = hub.repositories.get(model)
    return {} if repository is None else {path: repository[path] for path in repository.tree()}


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_a_fault_at_any_moment_of_writing_the_hub_spoils_nothing(
    fault: str,
    kind: str,
    moments: int,
    xet_hub: HubServer,
    matrices: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hasten(monkeypatch)
    action, is_passing, _ = WRITE_FAULTS[fault]
    path, options = OUTPUTS[kind]
    convert(matrices, f"hf://org/expected{path}", **options)
    whole, requests = files_of(xet_hub, "org/expected"), xet_hub.requests
    failed = 0
    for place, nth in enumerate(random_moments(f"{fault} {kind}", moments, requests)):
        model = f"org/model-{place}"
        xet_hub.inject(action, nth=nth, times=1)
        error = attempt(matrices, f"hf://{model}{path}", **options)
        settle(xet_hub)
        if error is not None:
            assert not is_passing, error
            assert error.hint
            assert files_of(xet_hub, model) == {}
            failed += 1
            convert(matrices, f"hf://{model}{path}", **options)
        assert files_of(xet_hub, model) == whole
        assert len(xet_hub.repositories[model].messages) == 2
    # A request whose redirect leads nowhere is repeated.
    assert failed >= (0 if is_passing or fault == "redirect" else moments // 3)


def test_what_has_arrived_is_not_sent_again(xet_hub: HubServer, large: Path, scratch: Path) -> None:
    fault = xet_hub.inject(Answer(403), path="/commit/")
    with fresh_store(xet_hub, scratch):
        before = TRAFFIC.counts
        with pytest.raises(WeightctlError, match="may not write"):
            convert(large, "hf://org/model")
        xet_hub.faults.remove(fault)
        first, again = TRAFFIC.counts.since(before).bytes_sent, TRAFFIC.counts
        convert(large, "hf://org/model")
    assert TRAFFIC.counts.since(again).bytes_sent < first / 20


@pytest.mark.parametrize("moments", [1, pytest.param(20, marks=pytest.mark.long)])
def test_kill_9_at_random_moments_is_continued(
    moments: int, xet_hub: HubServer, large: Path, scratch: Path
) -> None:
    options = ("--max-shard-size", "100MB", "-q", "-j", "1")
    chance = random.Random("kill")
    stopped = 0
    with strikes(scratch, limit=60) as struck:
        with fresh_store(xet_hub, scratch):
            span = struck.run("convert", large, "hf://org/whole", *options)
            assert span.code == 0, span.errors
            whole, total = files_of(xet_hub, "org/whole"), bytes_arrived(xet_hub)
        for moment in range(moments):
            model = f"org/model-{moment}"
            seconds = span.seconds * (moment + chance.random()) / moments
            with fresh_store(xet_hub, scratch):
                ended = struck.run(
                    "convert", large, f"hf://{model}", *options,
                    number=signal.SIGKILL, seconds=seconds,
                )  # fmt: skip
                assert ended.code in (0, -signal.SIGKILL), ended.errors
                found = files_of(xet_hub, model)
                assert found in ({}, whole)
                if found:
                    continue
                stopped += 1
                arrived, before = bytes_arrived(xet_hub), TRAFFIC.counts
                convert(large, f"hf://{model}", max_shard_size="100MB", threads=1)
                sent = TRAFFIC.counts.since(before).bytes_sent
                # Pieces that arrived in the last moment are not noted yet.
                assert sent < total - arrived + 2 * PIECE
                assert files_of(xet_hub, model) == whole
    assert stopped


@contextmanager
def fresh_store(hub: HubServer, scratch: Path) -> Generator[None, None, None]:
    """Have the Hub store files where it has none, because it stores each piece once."""
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        hub.xet = XetStore(directory)
        yield


def bytes_arrived(hub: HubServer) -> int:
    return 0 if hub.xet is None else hub.xet.bytes_stored
