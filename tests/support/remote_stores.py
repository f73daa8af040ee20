"""Servers of this process behind URLs, for tests that read and write remote checkpoints."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from servers.plain import PlainServer
from servers.s3 import KEY, S3Server
from weightctl.storage.remote import upload
from weightctl.storage.remote.s3_uploads import S3Uploads

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    import pytest

__all__ = ["BUCKET", "put_files", "serve_s3", "serve_web"]

BUCKET = "models"
_PART = 1 << 18


@contextmanager
def serve_s3(
    monkeypatch: pytest.MonkeyPatch, *, latency: float = 0, directory: str | None = None
) -> Generator[S3Server, None, None]:
    """Run a server with an empty bucket, which `s3://models/` URLs then lead to.

    Parts of uploads are small, so that small files have many of them.
    """
    with S3Server(latency=latency, directory=directory) as server:
        server.create_bucket(BUCKET, smallest_part=_PART)
        monkeypatch.setattr(upload, "PART", _PART)
        monkeypatch.setattr(S3Uploads, "least_part", _PART)
        for name, value in {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": KEY.access,
            "AWS_SECRET_ACCESS_KEY": KEY.secret,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "WEIGHTCTL_TIMEOUT": "2",
        }.items():
            monkeypatch.setenv(name, value)
        yield server


@contextmanager
def serve_web(monkeypatch: pytest.MonkeyPatch, root: Path) -> Generator[PlainServer, None, None]:
    """Run a web server of the files below a directory."""
    monkeypatch.setenv("WEIGHTCTL_TIMEOUT", "2")
    with PlainServer(root=root) as server:
        yield server


def put_files(server: S3Server, directory: Path, prefix: str) -> str:
    """Put the files below a directory into the bucket; return the URL of the prefix."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            key = f"{prefix}/{path.relative_to(directory)}"
            server.buckets[BUCKET].put(key, path.read_bytes())
    return f"s3://{BUCKET}/{prefix}"
