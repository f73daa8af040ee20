"""The benches run, at a small size; and conversions keep to their memory at any size."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cluster
import forward
import generation
import pytest
import streaming
from cluster import Inputs

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


def test_the_bench_of_schemes_runs() -> None:
    done = run("schemes.py", "--repeats", "1", "--size", "1MB", "--only", "FP8")
    assert done.returncode == 0, done.stderr
    assert "FP8:" in done.stdout


@pytest.mark.long
def test_the_bench_of_budgets_finds_types_with_less_divergence_than_a_recipe() -> None:
    fixture = str(BENCH.parents[1] / "fixtures" / "tiny-llama")
    done = run("budget.py", "--model", fixture, "--only", "Q4_K_M", "--tokens", "100")
    assert done.returncode == 0, done.stderr
    lower = re.search(r"lower by (\d+) % in the median", done.stdout)
    assert lower is not None
    assert int(lower[1]) >= 10


@pytest.mark.long
def test_the_bench_of_budgets_measures_time_and_memory() -> None:
    done = run("budget.py", "--size", "1MB")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\| search \| \d+ \| \d+ \| 0\.\d\d GB \|", done.stdout)


def test_the_bench_of_statistics_runs() -> None:
    done = run("statistics_of_values.py", "--repeats", "1", "--size", "1MB")
    assert done.returncode == 0, done.stderr
    assert "(target 2.0)" in done.stdout


def test_the_bench_of_importance_matrices_runs() -> None:
    done = run("imatrix.py", "--size", "1MB", "--chunks", "2", "--context", "64", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert "weightctl: " in done.stdout


def test_the_bench_of_patches_runs() -> None:
    done = run("deltas.py", "--size", "2MB", "--bsdiff-size", "0B")
    assert done.returncode == 0, done.stderr
    assert "weightctl" in done.stdout
    assert "missed" not in done.stdout


def test_the_bench_of_workers_runs() -> None:
    done = run("workers.py", "--repeats", "1", "--size", "1MB")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("processes:2") == 3


@pytest.mark.parametrize("on", ["processes", "ranks"])
def test_the_chaos_bench_kills_workers_and_finds_the_same_bytes(on: str) -> None:
    done = run("chaos.py", "--on", on, "--workers", "3", "--drivers", "1", "--size", "100MB")
    assert done.returncode == 0, done.stderr
    assert "killed 3 workers" in done.stdout
    assert "all identical" in done.stdout


def test_the_bench_of_large_plans_runs() -> None:
    done = run("scale.py", "--small", "--size", "1MB", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\(target \d+\)", done.stdout)) == 8
    assert done.stdout.count(" workers ") == 2 * 9


def test_simulated_workers_do_all_work_and_repeat_what_is_lost() -> None:
    tasks = [[1e9, 1.3e9, 10.0]] * 640
    calm = Inputs(start=0.0).without_failures()
    alone, many = (cluster.simulate(tasks, 1.0, count, calm, 1) for count in (1, 64))
    assert (alone.seconds, alone.efficiency) == (6400.0, 1.0)
    # The store serves 25 GB per second to 64 workers.
    assert many.seconds == pytest.approx(10 * (10 - 1.3 + 1.3 * 64 / 25))
    rough = cluster.simulate(tasks, 1.0, 64, calm._replace(failures=20.0), 1)
    assert rough.lost > 0
    assert rough.seconds > many.seconds
    assert 0 < rough.repeated < rough.lost / len(tasks)


def test_the_conversion_bench_runs() -> None:
    done = run("conversion.py", "--seconds", "0")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\(target \d+\)", done.stdout)) == 11


def test_the_kernel_bench_runs_and_finds_the_same_bytes() -> None:
    done = run("kernels.py", "--count", "8192", "--repeats", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\(target [\d.]+", done.stdout)) == 29


def test_the_bench_of_the_check_finite_runs() -> None:
    done = run("verify_finite.py", "--rows", "16", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\(target [\d.]+\)", done.stdout)) == 10


def test_the_pipeline_bench_runs(tmp_path: Path) -> None:
    arguments = ("--size", "5MB", "--repeats", "1", "--seconds", "0", "--folder", str(tmp_path))
    done = run("pipeline.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"times \(target [\d.]+\)", done.stdout)) == 5


@pytest.mark.parametrize(
    ("size", "outputs"),
    [
        pytest.param(
            "800MB",
            ["copy to GGUF", "copy to PyTorch", "f32 safetensors", "Q8_0"],
            marks=pytest.mark.long,
        ),
        ("100MB", ["Q4_K"]),
    ],
)
def test_a_conversion_keeps_to_its_memory(size: str, outputs: list[str], tmp_path: Path) -> None:
    # One tensor is half of the checkpoint, so at 800 MB it alone is larger than the target.
    only = [word for output in outputs for word in ("--only", output)]
    done = run("memory.py", "--size", size, *only, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"\n{output}: " in done.stdout for output in outputs)
    assert "(target 350)" in done.stdout


def test_the_forward_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--size", "5MB", "--vocabulary", "1000", "--repeats", "1", "--dtype", "float32"]
    small += ["--folder", str(tmp_path)]
    # What takes time is to start torch and transformers, so both halves do that side by side, and
    # one of them here, where other tests may have done it.
    command = [sys.executable, str(BENCH / "forward.py"), *small, "--only", "streamed"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as streamed:
        import torch

        threads = str(torch.get_num_threads())
        assert not forward.main([*small, "--only", "resident", "--threads", threads])
        printed, _ = streamed.communicate()
    assert streamed.returncode == 0
    printed += capsys.readouterr().out
    assert len(re.findall(r"\(target [\d.]+\)", printed)) == 2
    assert "32 of 32 choices the same" in printed


def test_the_generation_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    small = ["--size", "5MB", "--vocabulary", "1000", "--repeats", "1", "--prompt", "8"]
    small += ["--count", "2", "--folder", str(tmp_path), "--only", "float32", "--only", "Q4_K"]
    generation.main([*small, "--threads", str(torch.get_num_threads())])
    printed = capsys.readouterr().out
    assert re.findall(r"^(\w+), against (\S+):", printed, re.MULTILINE) == [
        ("float32", "transformers"), ("Q4_K", "llama.cpp")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "memory"), [("20MB", "10MB"), pytest.param("2GB", "1GB", marks=pytest.mark.long)]
)
def test_a_second_run_reads_at_most_half(
    size: str, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not streaming.main(["--size", size, "--memory", memory])
    assert "(target 0.5)" in capsys.readouterr().out


def test_the_crossing_bench_runs(tmp_path: Path) -> None:
    done = run("crossing.py", "--size", "5MB", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\(target [\d.]+\)", done.stdout)) == 2


def test_the_remote_bench_runs(tmp_path: Path) -> None:
    done = run(
        "remote.py", "--size", "20MB", "--repeats", "1", "--parts", "4", "--folder", str(tmp_path)
    )
    assert done.returncode in (0, 1), done.stderr
    assert len(re.findall(r"\(target [\d.]+\)", done.stdout)) == 6, done.stderr


@pytest.mark.parametrize(
    ("size", "limit"), [("100MB", "32MB"), pytest.param("2GB", "64MB", marks=pytest.mark.long)]
)
def test_a_remote_conversion_keeps_to_its_memory(size: str, limit: str, tmp_path: Path) -> None:
    only = [] if size == "2GB" else ["--only", "Q8_0 to S3", "--only", "https copy to a file"]
    done = run("remote.py", "--size", size, "--memory", limit, *only, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\(target \d+\)", done.stdout)) == (8 if size == "2GB" else 2)


@pytest.mark.long
def test_the_verify_bench_runs(tmp_path: Path) -> None:
    model = BENCH.parents[1] / "fixtures" / "tiny-llama"
    arguments = ("--model", str(model), "--tokens", "64", "--rounds", "1", "--warm-up", "0")
    done = run("verify.py", *arguments, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\(target [\d.]+\)", done.stdout)) >= 2, done.stderr
    assert "(target 1%)" in done.stdout
    done = run("verify.py", *arguments, "--all-checks", "--before", str(BENCH.parents[1]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("reports differ in 0 places") == 2


def test_the_memory_bench_tells_when_a_peak_is_over_the_target() -> None:
    done = run("memory.py", "--size", "20MB", "--only", "Q8_0", "--target", "10MB")
    assert done.returncode == 1


@pytest.mark.parametrize("hand", [pytest.param([], marks=pytest.mark.long), ["--no-hand"]])
def test_the_sharding_bench_runs(hand: list[str], tmp_path: Path) -> None:
    done = run("sharding.py", "--size", "5MB", "--repeats", "1", *hand, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\(target [\d.]+\)", done.stdout)) == 2
    assert ("by hand" in done.stdout) == (not hand)


def test_cutting_keeps_to_its_memory(tmp_path: Path) -> None:
    arguments = ("--size", "140MB", "--repeats", "1", "--no-hand", "--folder", str(tmp_path))
    done = run("sharding.py", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"peak (\d+) MB", done.stdout)[0]) < 100


def test_the_bench_of_two_versions_runs(tmp_path: Path) -> None:
    arguments = ("--size", "1MB", "--repeats", "1", "--folder", str(tmp_path))
    only = ("--only", "to Q8_0", "--only", "a cut for 4 ranks")
    done = run("side_by_side.py", sys.executable, *arguments, *only)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"times \(clock and processor\)", done.stdout)) == 2
