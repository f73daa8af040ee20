"""The benches run, at a small size; and conversions keep to their memory at any size."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_listing_bench_runs() -> None:
    done = run("listing.py", "--repeats", "1", "--tokens", "5000", "--tensors", "1600")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\(target \d+\)", done.stdout)) == 3


def test_the_pytorch_bench_runs(tmp_path: Path) -> None:
    arguments = ("--repeats", "1", "--size", "1MB", "--tensors", "100", "--folder", str(tmp_path))
    done = run("pytorch.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\(target \d+\)", done.stdout)) == 2


def test_the_conversion_bench_runs() -> None:
    done = run("conversion.py", "--seconds", "0")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\(target \d+\)", done.stdout)) == 11


def test_the_kernel_bench_runs_and_finds_the_same_bytes() -> None:
    done = run("kernels.py", "--count", "8192", "--repeats", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\(target [\d.]+", done.stdout)) == 29


def test_the_pipeline_bench_runs(tmp_path: Path) -> None:
    arguments = ("--size", "5MB", "--repeats", "1", "--seconds", "0", "--folder", str(tmp_path))
    done = run("pipeline.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"times \(target [\d.]+\)", done.stdout)) == 5


@pytest.mark.parametrize(
    ("output", "size"),
    [
        ("copy to GGUF", "800MB"),
        ("copy to PyTorch", "800MB"),
        ("f32 safetensors", "800MB"),
        ("Q8_0", "800MB"),
        ("Q4_K", "100MB"),
    ],
)
def test_a_conversion_keeps_to_its_memory(output: str, size: str, tmp_path: Path) -> None:
    # One tensor is half of the checkpoint, so at 800 MB it alone is larger than the target.
    done = run("memory.py", "--size", size, "--only", output, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(target 350)" in done.stdout


def test_the_memory_bench_tells_when_a_peak_is_over_the_target() -> None:
    done = run("memory.py", "--size", "20MB", "--only", "Q8_0", "--target", "10MB")
    assert done.returncode == 1
