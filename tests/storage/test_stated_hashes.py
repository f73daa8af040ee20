"""Bytes from the Hub must have the hash that it states, if all of a file is read."""

from __future__ import annotations

import random
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from each import each
from hub_fixtures import MODEL, put_directory
from servers.base import Zeros
from servers.hub import git_oid
from weightctl import open_weights
from weightctl.errors import FormatError
from weightctl.storage.remote import reader
from weightctl.storage.remote.reader import ArrivingHash

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from commands import Completed
    from servers.hub import HubServer

URL, OTHER = f"hf://{MODEL}", "do not have the hash that the Hub states"
SMALL, LARGE = bytes(range(256)) * 3, bytes(range(256)) * 4096


@pytest.fixture
def zeros(hub: HubServer, matrices: Path) -> HubServer:
    """Run a Hub that sends a header, and then zeros with the ETag of the data."""
    put_directory(hub, MODEL, matrices)
    hub.links.inject(
        Zeros(), "GET", when=lambda request: not request.headers["range"].startswith("bytes=0-")
    )
    return hub


@each(
    "command",
    [
        ("convert", URL, "OUT", "--dtype", "bf16"),
        ("convert", URL, "OUT", "--names", "keep", "--quant", "fp8"),
        ("ls", URL, "--hash"),
        ("stat", URL),
    ],
)
@pytest.mark.usefixtures("journal_from_the_start")
def test_zeros_in_place_of_data_end_the_command(
    command: tuple[str, ...], zeros: HubServer, weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    del zeros
    out = tmp_path / "out"
    done = weightctl(*(str(out) if word == "OUT" else word for word in command))
    assert (done.returncode, OTHER in done.stderr) == (2, True), done.stderr
    # Another run must not continue with the zeros that this one wrote.
    assert not list(tmp_path.glob("*out*"))


def test_a_small_file_has_the_hash_of_git(hub: HubServer, matrices: Path) -> None:
    put_directory(hub, MODEL, matrices)
    hub.inject(Zeros(), "GET", path="/config.json")
    with pytest.raises(FormatError, match=OTHER):
        open_weights(f"{URL}/config.json")


def feed(content: bytes, stated: str, parts: list[tuple[int, int]]) -> ArrivingHash:
    found = ArrivingHash("model", len(content), stated)
    for start, stop in parts:
        middle = (start + stop) // 2
        found.add(start, [content[start:middle], memoryview(content)[middle:stop]])
    return found


def draw_parts(seed: int) -> list[tuple[int, int]]:
    """Return ranges that together are all of `LARGE`, some of it twice, in another order."""
    rng = random.Random(seed)
    cuts = sorted({0, len(LARGE), *(rng.randrange(len(LARGE)) for _ in range(8))})
    parts = list(pairwise(cuts))
    parts += [(start, min(start + 5000, len(LARGE))) for start, _ in rng.sample(parts, 2)]
    rng.shuffle(parts)
    return parts


@each("seed", range(50))
def test_the_order_of_arrival_does_not_matter(seed: int) -> None:
    kept = reader._kept
    stated, parts = sha256(LARGE).hexdigest(), draw_parts(seed)
    feed(LARGE, stated, parts).refuse_other()
    with pytest.raises(FormatError, match=OTHER):
        feed(LARGE[:-1] + b"\0", stated, parts)
    assert reader._kept == kept


@each("content", [SMALL, LARGE])
def test_a_hash_of_git_is_compared(content: bytes) -> None:
    everything = [(0, len(content))]
    feed(content, git_oid(content), everything).refuse_other()
    with pytest.raises(FormatError, match=OTHER):
        feed(bytes(len(content)), git_oid(content), everything)


@each(
    "parts, limit",
    [([(0, 1000)], 1 << 20), ([(900_000, len(LARGE)), (0, 900_000)], 1000)],
)
def test_nothing_is_known_of_a_file_that_is_not_complete_or_in_order(
    parts: list[tuple[int, int]], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_MOST_KEPT", limit)
    found = feed(bytes(len(LARGE)), sha256(LARGE).hexdigest(), parts)
    found.close()
    found.refuse_other()


def test_a_model_without_a_stated_hash_is_not_compared() -> None:
    feed(SMALL, "", [(0, len(SMALL))]).refuse_other()
