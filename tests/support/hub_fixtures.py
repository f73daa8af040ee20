"""A Hub for tests, with a model, and an environment that knows no other Hub, token or cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers.hub import HubServer

MODEL = "org/tiny-llama"


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Remove all settings of the Hub; return the empty directory that is its home."""
    for name in [*os.environ]:
        if name.startswith(("HF_", "HUGGING")) or name in {"TRANSFORMERS_OFFLINE", "NO_PROXY"}:
            monkeypatch.delenv(name)
    home = tmp_path / "hub-home"
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    # What one test has found out about a URL is not true in another.
    monkeypatch.setattr("weightctl.storage.location._STORES", {})
    return home


@pytest.fixture
def hub(no_hub: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Run a Hub without models."""
    del no_hub
    from servers.hub import HubServer

    with HubServer(page_size=3) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def hub_model(hub: HubServer, tiny_llama: Path) -> HubServer:
    """Run a Hub that has the model `org/tiny-llama`."""
    put_directory(hub, MODEL, tiny_llama)
    return hub


def put_directory(hub: HubServer, name: str, directory: Path) -> None:
    """Make a model of the files in a directory."""
    from servers.blobs import Blob
    from servers.hub_repositories import HubFile

    repository = hub.create(name)
    files = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
    repository.commit({path: HubFile.made(path, Blob.of(raw)) for path, raw in files.items()}, "x")
