"""Servers in a process of their own, for measurements that must not share one with the client.

Run as `python serving.py DIRECTORY LATENCY SCRATCH [MODEL]`: the files below the directory are
objects of the bucket `models`, files of a web server, and of a model on a Hub that stores uploads
with Xet. The process prints the port of each server, then for each line that it reads how many
requests there were since the line before, and ends when its stdin is closed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from servers.base import Blob, PlainServer
from servers.hub import WRITER, HubFile, HubServer
from servers.s3 import KEY, S3Server

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["ServingProcess", "environment_of", "serve_apart"]

BUCKET = "models"


@dataclass(frozen=True)
class ServingProcess:
    """The URLs of a bucket and of a web server, and the environment of clients of all servers."""

    bucket: str
    web: str
    environment: dict[str, str]
    questions: IO[str]
    answers: IO[str]

    def count_requests(self) -> int:
        """Return how many requests there were since the last call."""
        self.questions.write("\n")
        self.questions.flush()
        return int(self.answers.readline())


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
    directory: Path, scratch: Path, *, latency: float = 0, model: str = ""
) -> Generator[ServingProcess, None, None]:
    """Serve the files below a directory; bodies that are uploaded are files in `scratch`.

    With `model`, there is also a Hub, on which the files of the directory are this model.
    """
    command = [sys.executable, __file__, str(directory), str(latency), str(scratch), model]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        s3, web, *hub = (
            f"http://127.0.0.1:{port}" for port in json.loads(process.stdout.readline())
        )
        environment = environment_of(s3)
        for each in hub:
            environment |= {
                "HF_ENDPOINT": each,
                "HF_TOKEN": WRITER,
                "HF_HOME": f"{scratch}/home",
                "HF_XET_LOG_DEST": f"{scratch}/log/",
            }
        try:
            yield ServingProcess(f"s3://{BUCKET}", web, environment, process.stdin, process.stdout)
        finally:
            process.stdin.close()


def _main(directory: str, latency: str, scratch: str, model: str = "") -> None:
    options = {"latency": float(latency), "directory": scratch}
    files = [path for path in sorted(Path(directory).rglob("*")) if path.is_file()]
    blobs = {str(path.relative_to(directory)): Blob.of_file(str(path)) for path in files}
    with ExitStack() as stack:
        s3 = stack.enter_context(S3Server(**options))
        web = stack.enter_context(PlainServer(root=directory, **options))
        servers = [s3, web]
        # A digest of each body would take longer than the transfer.
        bucket = s3.create_bucket(BUCKET, hashes=False)
        for name, blob in blobs.items():
            bucket.put(name, blob)
        counted = [*servers]
        if model:
            (Path(scratch) / "xet").mkdir()
            hub = stack.enter_context(HubServer(xet_directory=f"{scratch}/xet", **options))
            tree = {name: HubFile.made(name, blob) for name, blob in blobs.items()}
            hub.create(model).commit(tree, "x")
            servers.append(hub)
            counted += [hub, hub.links]
        print(json.dumps([server.port for server in servers]), flush=True)
        for _ in sys.stdin:
            print(sum(server.requests for server in counted), flush=True)
            for server in counted:
                server.forget()


if __name__ == "__main__":
    _main(*sys.argv[1:])
