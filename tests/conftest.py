"""What tests share: the command, run as a user runs it, and checkpoints to run it on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from real_files import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

# Side by side, tests have all processors: threads of torch's own would wait for each other. The
# processes that tests start inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
# pytest-xdist tells its workers how wide the terminal is: no test is to read otherwise for it.
os.environ.pop("COLUMNS", None)

pytest_plugins = [
    "crossing_fixtures",
    "extended_package",
    "full_disks",
    "healthy_models",
    "hub_fixtures",
    "hub_uploads",
    "real_servers",
]

# Examples follow from the text of a test: a commit passes on every machine or fails on every one.
# `HYPOTHESIS_PROFILE=search` draws ten times as many at random, to look for what they miss.
# There is no deadline: how long an example takes depends on what else runs on the machine.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "search", settings.get_profile("repeatable"), derandomize=False, max_examples=1000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

ROOT = Path(__file__).parent.parent
Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def weightctl() -> Callable[..., Completed]:
    """Run `weightctl` in a process of its own, without a terminal."""

    def run(*arguments: str | Path, cwd: Path = ROOT, **environment: str) -> Completed:
        return subprocess.run(
            [sys.executable, "-m", "weightctl", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            env=os.environ | {"COLUMNS": "100"} | environment,
        )

    return run


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    return ROOT / "fixtures" / "tiny-llama"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return fetch("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def minilm() -> Path:
    return fetch("minilm")


@pytest.fixture(scope="session")
def silero() -> Path:
    return fetch("silero") / "silero_vad_16k.safetensors"


@pytest.fixture(scope="session")
def vocabularies() -> list[Path]:
    return sorted(fetch("vocabularies").glob("*.gguf"))


@pytest.fixture
def journal_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs keep a journal from their first moment, as those that last long do."""
    monkeypatch.setattr("weightctl.write.journal.BEGIN_AFTER", 0.0)


@pytest.fixture(scope="module")
def scratch() -> Generator[Path, None, None]:
    """A directory in memory, where there is one: hundreds of runs wait for no disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="weightctl-test-") as directory:
        yield Path(directory)
