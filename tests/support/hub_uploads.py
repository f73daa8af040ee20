"""A Hub that outputs are committed to, and what its own client downloads from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers.hub import HubServer

MODEL = "org/new"
URL = f"hf://{MODEL}"
SHAPES = {f"model.layers.{number}.mlp.weight": (256, 256) for number in range(20)}


@pytest.fixture
def xet_hub(no_hub: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """Run a Hub without models that stores files in Xet, and log in as one who may write."""
    del no_hub
    from servers.hub import WRITER, HubServer

    (tmp_path / "xet").mkdir()
    monkeypatch.setenv("HF_TOKEN", WRITER)
    # hf_xet would write its log to the home directory.
    monkeypatch.setenv("HF_XET_LOG_DEST", f"{tmp_path}/log/")
    monkeypatch.setattr("weightctl.storage.remote.requests._FIRST_WAIT", 0.0)
    with HubServer(xet_directory=str(tmp_path / "xet")) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture(scope="session")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with five megabytes of matrices, a config, a tokenizer and a model card."""
    from safetensors.numpy import save_file  # can be missing where no test uses it

    path = tmp_path_factory.mktemp("models") / "model"
    path.mkdir()
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
    save_file(arrays, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"torch_dtype": "float32"}))
    (path / "tokenizer.json").write_text("{}")
    (path / "README.md").write_text("the card of the source\n")
    return path


def download(hub: HubServer, where: Path, model: str = MODEL, revision: str = "main") -> Path:
    """Download a model with the client of the Hub; return its directory."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    from servers.hub import WRITER

    disable_progress_bars()
    try:
        found = snapshot_download(
            model,
            revision=revision,
            endpoint=hub.url,
            cache_dir=where / "cache",
            local_dir=where / "downloaded",
            token=WRITER,
        )
    finally:
        enable_progress_bars()
    return type(where)(found)
