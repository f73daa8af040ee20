"""`ls --fit`: whether a model fits into a memory, and how many layers fit."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_a_model_that_fits_is_shown_with_what_needs_the_memory(
    tiny_llama: Path, weightctl: Run
) -> None:
    done = weightctl("ls", tiny_llama, "--fit", "24GiB", "--context", "8192")
    assert (done.returncode, done.stderr) == (0, "")
    assert "fits into 24GiB with a context of 8,192 tokens" in done.stdout
    # 3 layers with 2 KV heads of 32 elements: keys and values of 2 bytes.
    line = next(each for each in done.stdout.splitlines() if "KV cache" in each)
    assert " ".join(line.split()) == (
        "KV cache, full attention 6.29 MB 3 layers, 8,192 tokens, F16"
    )


def test_a_model_that_does_not_fit_is_a_finding(tiny_llama: Path, weightctl: Run) -> None:
    done = weightctl("ls", tiny_llama, "--fit", "9MB", "-q")
    assert done.returncode == 1
    assert done.stdout.startswith("does not fit into 9MB with a context of 512 tokens\n")
    assert "1 of 3 layers and the output fit: --n-gpu-layers 2" in done.stdout


def test_the_document_has_the_estimate(tiny_llama: Path, weightctl: Run) -> None:
    options = ("--fit", "1GB", "--context", "1000", "--kv-type", "q8_0", "--json")
    fit = json.loads(weightctl("ls", tiny_llama, *options).stdout)["fit"]
    # The context is rounded up to 1,024 tokens; 32 elements of Q8_0 take 34 bytes.
    nbytes = 3 * 1024 * 2 * 2 * 34
    assert fit["caches"] == [{"kind": "gqa", "layers": 3, "tokens": 1024, "bytes": nbytes}]
    assert (fit["fits"], fit["fitting_layers"], fit["gpu_layers"]) == (True, 3, 4)
    parts = ("weights", "compute", "overhead")
    assert fit["bytes"] == nbytes + sum(fit[each] for each in parts)
    assert fit["overhead"] == 50_000_000


def test_a_larger_memory_holds_at_least_as_many_layers(tiny_llama: Path) -> None:
    from weightctl import open_weights
    from weightctl.families import recognize
    from weightctl.families.memory import MemoryOptions, estimate_memory

    found = estimate_memory(recognize(open_weights(tiny_llama)), MemoryOptions.of(4096))
    fitting = [found.fit(memory).gpu_layers for memory in range(0, 30_000_000, 500_000)]
    assert fitting == sorted(fitting)
    assert {*fitting} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--fit 24", "has no unit"),
        ("--fit 24GB --kv-type q4_k", "has no KV cache of type Q4_K"),
        ("--fit 24GB --kv-type q9", "q9"),
        ("--fit 24GB --context 99999999999", "is not possible"),
        ("--context 512", "can only be used with --fit"),
        ("--kv-type f16", "can only be used with --fit"),
        ("--fit 24GB --flat", "cannot be combined"),
        ("--fit 24GB --scan", "cannot be combined"),
    ],
)
def test_options_without_a_meaning_are_refused(
    options: str, message: str, tiny_llama: Path, weightctl: Run
) -> None:
    done = weightctl("ls", tiny_llama, *options.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_an_unsupported_family_is_refused(minilm: Path, tmp_path: Path, weightctl: Run) -> None:
    config = json.loads((minilm / "config.json").read_text()) | {"model_type": "unknown"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(minilm / "model.safetensors")
    done = weightctl("ls", tmp_path, "--fit", "24GB")
    assert done.returncode == 2
    assert "model family that weightctl does not support" in done.stderr


def test_no_torch_or_numpy_is_loaded(tiny_llama: Path) -> None:
    program = (
        "import sys, weightctl.cli\n"
        "try: weightctl.cli.app(sys.argv[1:], prog_name='weightctl')\n"
        "except SystemExit as done: assert not done.code\n"
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", program, "ls", str(tiny_llama), "--fit", "1GB"]
    assert subprocess.run(arguments, capture_output=True, check=False).returncode == 0
