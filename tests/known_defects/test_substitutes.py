"""Types that replace a requested type, with mistakes of llama-quantize."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest
from gguf import GGUFReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


@pytest.fixture(scope="module")
def substituted(
    weightctl: Run, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Completed, dict[str, tuple[str, int]]]:
    """What is said of SmolLM2 in Q4_K, and each tensor's type and size as gguf-py reads them."""
    out = tmp_path_factory.mktemp("q4_k") / "q4_k.gguf"
    done = weightctl("convert", smollm2, out, "--quant", "Q4_K", "--allow-requantize")
    assert done.returncode == 0, done.stderr
    found = {
        tensor.name: (tensor.tensor_type.name, int(tensor.n_elements))
        for tensor in GGUFReader(out).tensors
    }
    out.unlink()
    return done, found


# llama-quantize: warns of each tensor in passing; users find most of a "Q4_K_M" to be no K type.


@pytest.mark.real
def test_the_summary_counts_the_substitutes_and_their_share(
    substituted: tuple[Completed, dict[str, tuple[str, int]]],
) -> None:
    done, found = substituted
    others = {name: size for name, (kind, size) in found.items() if kind not in {"Q4_K", "F32"}}
    share = 100 * sum(others.values()) / sum(size for _, size in found.values())
    assert len(others) == 181
    assert f"181 Q5_0 instead of Q4_K ({share:.1f} % of the parameters)" in done.stdout


@pytest.mark.real
def test_json_names_each_substitute(
    weightctl: Run, smollm2: Path, substituted: tuple[Completed, dict[str, tuple[str, int]]]
) -> None:
    done = weightctl(
        *("convert", smollm2, "out.gguf", "--quant", "Q4_K", "--allow-requantize"),
        *("--dry-run", "--json"),
    )
    listed = json.loads(done.stdout)["tensors"]
    assert {each["name"]: each["to"] for each in listed} == {
        name: kind for name, (kind, _) in substituted[1].items()
    }
    assert {each["name"] for each in listed if each["instead_of"] == "Q4_K"} == {
        name for name, (kind, _) in substituted[1].items() if kind == "Q5_0"
    }


@pytest.mark.real
def test_substitutes_can_be_refused(weightctl: Run, smollm2: Path, tmp_path: Path) -> None:
    done = weightctl(
        *("convert", smollm2, tmp_path / "out.gguf", "--quant", "Q4_K", "--allow-requantize"),
        "--no-fallback",
    )
    assert done.returncode == 2
    assert re.search(r"error: 181 .*tensors cannot have the requested type", done.stderr)
    assert ", 576, is not a multiple of the Q4_K block size" in done.stderr
    assert os.listdir(tmp_path) == []
