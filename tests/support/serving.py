"""Servers in a process of their own, for measurements that must not share one with the client.

Run as `python serving.py DIRECTORY LATENCY SCRATCH`: the files below the directory are objects of
the bucket `models`, and files of a web server. The process prints the ports of both, and ends when
its stdin is closed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from servers.blobs import Blob
from servers.plain import PlainServer
from servers.s3 import KEY, S3Server

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["ServingProcess", "environment_of", "serve_apart"]

BUCKET = "models"


class ServingProcess(NamedTuple):
    """The URLs of a bucket and of a web server, and the environment of clients of the bucket."""

    bucket: str
    web: str
    environment: dict[str, str]


def environment_of(endpoint: str) -> dict[str, str]:
    """Return the environment variables with which clients of S3 use a server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY.access,
        "AWS_SECRET_ACCESS_KEY": KEY.secret,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def serve_apart(
    directory: Path, scratch: Path, *, latency: float = 0
) -> Generator[ServingProcess, None, None]:
    """Serve the files below a directory; bodies that are uploaded are files in `scratch`."""
    command = [sys.executable, __file__, str(directory), str(latency), str(scratch)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ports = json.loads(process.stdout.readline())
        s3, web = (f"http://127.0.0.1:{port}" for port in ports)
        try:
            yield ServingProcess(f"s3://{BUCKET}", web, environment_of(s3))
        finally:
            process.stdin.close()


def _main(directory: str, latency: str, scratch: str) -> None:
    options = {"latency": float(latency), "directory": scratch}
    with S3Server(**options) as s3, PlainServer(root=directory, **options) as web:
        # A digest of each body would take longer than the transfer.
        bucket = s3.create_bucket(BUCKET, hashes=False)
        for path in sorted(Path(directory).rglob("*")):
            if path.is_file():
                bucket.put(str(path.relative_to(directory)), Blob.of_file(str(path)))
        print(json.dumps([s3.port, web.port]), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _main(*sys.argv[1:])
