"""Commands use a running Ray cluster by the port of its client server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

from weightctl import convert

if TYPE_CHECKING:
    from collections.abc import Generator

# Ray takes 15 seconds to start.
pytestmark = pytest.mark.long


class Head(NamedTuple):
    """The head of a cluster: its client port, the environment of users, and its directory."""

    port: int
    environment: dict[str, str]
    directory: Path


def find_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture(scope="module", params=["with a token"])
def head(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Head, None, None]:
    home, port = tmp_path_factory.mktemp("ray"), find_port()
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    # Paths of sockets are short; and nothing says to others that this cluster is the current one.
    folder = tempfile.mkdtemp(prefix="ray")
    own |= {"HOME": str(home), "RAY_TMPDIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
    own["RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S"] = "120"
    if request.param == "with a token":
        (home / ".ray").mkdir()
        (home / ".ray" / "auth_token").write_text("0f8b3c1de7a94c55b6d2a1f09e8d7c6b")
    begin = [
        "import sys; from ray.scripts.scripts import main; main()", "start", "--head", "--block",
        "--port=0", f"--ray-client-server-port={port}", "--num-cpus=2",
        "--include-dashboard=false", "--disable-usage-stats",
    ]  # fmt: skip
    written = home / "started.log"
    with written.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", *begin], env=own, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_for(port, process, written)
        yield Head(port, own, Path(folder))
    finally:
        process.terminate()
        process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(port: int, process: subprocess.Popen[bytes], written: Path) -> None:
    """Return when a cluster has started whole.

    Its client port opens before its node runs, and clients of that moment are refused.
    """
    for _ in range(300):
        assert process.poll() is None, written.read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            if "Ray runtime started" in written.read_text():
                return
        time.sleep(0.5)
    raise AssertionError(f"the client server of Ray has not started: {written.read_text()}")


def run(head: Head, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command on the cluster, a second time if Ray cannot start its own server for it.

    On a busy machine that process ends at times while it starts.
    """
    on = f"ray://127.0.0.1:{head.port}"
    command = [sys.executable, "-m", "weightctl", *map(str, arguments), "--on", on]
    for _ in range(2):
        done = subprocess.run(
            command, env=head.environment, capture_output=True, text=True, check=False
        )
        if "Starting Ray client server failed" not in done.stderr:
            break
    return done


def read_logs(head: Head) -> str:
    logs = head.directory.glob("**/logs/ray_client_server*")
    return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(logs))


def test_a_cluster_is_reached_by_its_client_port(head: Head, tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    tensors = {
        f"layer.{number}.weight": random.standard_normal((256, 512), np.float32)
        for number in range(8)
    }
    model, single, out = (tmp_path / name for name in ("model.safetensors", "one.gguf", "out.gguf"))
    save_file(tensors, model)
    convert(model, single, quant="Q4_K")
    made = run(head, "convert", model, out, "--quant", "Q4_K")
    assert made.returncode == 0, made.stderr + read_logs(head)
    assert out.read_bytes() == single.read_bytes()
    checked = run(head, "verify", out, "--against", model, "--check", "values")
    assert checked.returncode == 0, checked.stderr + read_logs(head)


def test_a_port_that_is_not_open_is_an_error_with_a_hint(head: Head, tmp_path: Path) -> None:
    save_file({"weight": np.ones((32, 32), np.float32)}, tmp_path / "model.safetensors")
    other = head._replace(port=find_port())
    made = run(other, "convert", tmp_path / "model.safetensors", tmp_path / "out.gguf")
    assert made.returncode == 2
    assert "cannot be reached" in made.stderr
    assert "hint: check the address" in made.stderr
    assert not (tmp_path / "out.gguf").exists()
