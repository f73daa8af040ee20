"""Edits of a large object in a store send few bytes: the store copies unchanged ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from servers.base import Blob
from tested_stores import BUCKET, serve_s3
from weightctl import convert
from weightctl.storage.remote import upload
from weightctl.storage.remote.s3_uploads import S3Uploads

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from servers.s3 import S3Server

pytestmark = pytest.mark.long
S3 = f"s3://{BUCKET}"
TENSORS, SHAPE = 16, (4096, 4096)  # a gigabyte of F32


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[S3Server, None, None]:
    least, size = S3Uploads.least_part, upload.PART
    with serve_s3(monkeypatch, directory=str(tmp_path)) as server:
        # The limits of the real store, and time for a busy machine to copy.
        monkeypatch.setenv("WEIGHTCTL_TIMEOUT", "60")
        monkeypatch.setattr(S3Uploads, "least_part", least)
        monkeypatch.setattr(upload, "PART", size)
        server.buckets[BUCKET].smallest_part = least
        yield server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    rng = np.random.default_rng(0)
    save_file(
        {
            f"layers.{each}.weight": rng.standard_normal(SHAPE, np.float32)
            for each in range(TENSORS)
        },
        path,
    )
    return path


EDITS: dict[str, tuple[str, dict[str, object]]] = {
    "renamed tensors": ("out.safetensors", {"rename": "^layers=blocks"}),
    "changed metadata": ("out.safetensors", {"metadata": {"license": "mit"}}),
    "three parts": ("out/", {"max_shard_size": "450MB"}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_a_gigabyte_sends_less_than_20_megabytes(
    edit: str, s3: S3Server, model: Path, tmp_path: Path
) -> None:
    out, options = EDITS[edit]
    s3.buckets[BUCKET].put("model.safetensors", Blob.of(model.read_bytes()))
    s3.forget()
    convert(f"{S3}/model.safetensors", f"{S3}/{out}", **options)
    assert s3.bytes_received < 20_000_000
    assert s3.bytes_sent < 20_000_000
    found: dict[str, str] = {}
    bucket = s3.buckets[BUCKET]
    for key in [key for key in bucket if key.startswith("out") and key.endswith(".safetensors")]:
        path = tmp_path / os.path.basename(key).replace("model", "copy")
        path.write_bytes(bucket[key])
        with safe_open(path, "np") as opened:
            found |= dict.fromkeys(opened.keys(), str(path))
    assert len(found) == TENSORS
    with safe_open(model, "np") as before:
        for name, path in found.items():
            with safe_open(path, "np") as after:
                old = before.get_tensor(name.replace("blocks", "layers"))
                assert np.array_equal(after.get_tensor(name), old)
