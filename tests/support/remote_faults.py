"""Faults of servers at random moments, and what has to hold after each."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from servers.faults import (
    Action,
    Answer,
    Close,
    CutUpload,
    LoseAnswer,
    OtherETag,
    Redirect,
    Reset,
    Stall,
    Truncate,
)
from weightctl import convert
from weightctl.errors import WeightctlError
from weightctl.storage.remote import ahead, requests, s3_uploads
from weightctl.write import journal
from weightctl.write.objects import object_journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pytest

    from servers.base import Server

__all__ = [
    "READ_FAULTS",
    "WRITE_FAULTS",
    "ServerFault",
    "attempt",
    "hasten",
    "random_moments",
    "settle",
    "visible",
    "write_model",
]


class ServerFault(NamedTuple):
    """What goes wrong, with which method, and whether a run completes if it happens once."""

    action: Action
    is_passing: bool
    method: str | None = None


_DENIALS = {
    "expired token": ServerFault(Answer(400, "ExpiredToken"), is_passing=False),
    "401": ServerFault(Answer(401), is_passing=False),
    "403": ServerFault(Answer(403), is_passing=False),
}
READ_FAULTS = {
    "503": ServerFault(Answer(503), is_passing=True),
    "reset": ServerFault(Reset(1000), is_passing=True),
    "stall": ServerFault(Stall(1.5, 1000), is_passing=True),
    "short body": ServerFault(Close(1000), is_passing=True),
    "wrong length": ServerFault(Truncate(1000), is_passing=True, method="GET"),
    "lost answer": ServerFault(LoseAnswer(), is_passing=True),
    "changed ETag": ServerFault(OtherETag(), is_passing=False),
    **_DENIALS,
}
WRITE_FAULTS = {
    "503": ServerFault(Answer(503), is_passing=True),
    "reset": ServerFault(Reset(), is_passing=True),
    "stall": ServerFault(Stall(1.5), is_passing=True),
    "cut upload": ServerFault(CutUpload(100), is_passing=True),
    "lost answer": ServerFault(LoseAnswer(), is_passing=True),
    "redirect": ServerFault(Redirect("http://localhost:9/"), is_passing=False),
    **_DENIALS,
}


def attempt(source: str | Path, out: str | Path, **options: Any) -> WeightctlError | None:
    """Convert; return the error that prevents it."""
    try:
        convert(source, out, **options)
    except WeightctlError as error:
        return error
    return None


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have requests small, timeouts and waits short, and a journal from the first moment."""
    monkeypatch.setattr(ahead, "CHUNK", 1 << 18)
    monkeypatch.setattr(requests, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(requests, "_LONGEST_WAIT", 0.02)
    monkeypatch.setattr(s3_uploads, "_ATTEMPTS", 3)
    monkeypatch.setattr(journal, "BEGIN_AFTER", 0.0)
    monkeypatch.setattr(object_journal, "_FLUSH_AFTER", 0.0)
    monkeypatch.setenv("WEIGHTCTL_TIMEOUT", "0.7")


def write_model(directory: Path) -> Path:
    """Write five megabytes of matrices with a config; return the directory."""
    directory.mkdir()
    rng = np.random.default_rng(0)
    save_file(
        {
            f"model.layers.{number}.mlp.weight": rng.standard_normal((256, 256), np.float32)
            for number in range(20)
        },
        directory / "model.safetensors",
    )
    (directory / "config.json").write_text('{"torch_dtype": "float32"}')
    return directory


def random_moments(seed: str, count: int, requests: int) -> Iterator[int]:
    """Yield numbers of requests, spread over all that a run has."""
    chance = random.Random(seed)
    for part in range(count):
        yield int(requests * (part + chance.random()) / count)


def settle(server: Server) -> None:
    """Remove all faults, and wait until no thread of a run that failed sends anything."""
    server.faults.clear()
    for thread in threading.enumerate():
        if thread.name == "weightctl-send":
            thread.join(20)


def visible(objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the objects without journals, and without uploads that get their name at the end."""
    return {key: each for key, each in objects.items() if ".weightctl-" not in key}
