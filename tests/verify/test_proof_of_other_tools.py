"""What other tools make of a model is not called something else, and a changed code is found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from each import each
from other_tools import MODEL, TOOLS
from weightctl import open_weights
from weightctl.verify import verify
from weightctl.verify.proof.verdicts import ProofFigures
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")

# Tools whose codes need not be the nearest ones, or whose matrices have scaled columns; all other
# tools round each value to the nearest one.
OTHERS = {
    "GPTQ": {"reproduced", "within the bound"},
    "GPTQ in the order of activations": {"reproduced", "within the bound"},
    "GPTQ 8 bits": {"reproduced", "within the bound"},
    "AWQ": {"reproduced", "within the bound", "not decidable"},
    # A clipped value has the last code, and is far from it.
    "AWQ with clipped weights": {"reproduced", "within the bound", "not decidable"},
}
USUAL = {"gguf-py Q4_0", "gguf-py TQ1_0", "MLX 4 bits"}
ROWS = [name if name in USUAL else pytest.param(name, marks=pytest.mark.long) for name in TOOLS]


@each("tool", ROWS)
def test_what_another_tool_makes_is_from_the_source(tmp_path: Path, tool: str) -> None:
    if tool.startswith("MLX") and sys.platform != "linux":
        pytest.skip("the test extra has MLX for Linux")
    out = tmp_path / ("out.gguf" if tool.startswith("gguf-py") else "out")
    TOOLS[tool](out)
    report = verify(out, MODEL, checks=["structure"], prove=True)
    figures = report.figures(ProofFigures)
    assert figures is not None, report.results["proof"].skipped
    assert report.problems == []
    all_same = tool.startswith("gguf-py") or tool == "bitsandbytes NF4"
    usual = {"reproduced"} if all_same else {"reproduced", "proved"}
    assert figures.counts.keys() == OTHERS.get(tool, usual), figures.counts
    if tool in OTHERS:
        return
    target = out if out.is_file() else out / "model.safetensors"
    header = header_of(open_weights(target))
    wanted = "blk.1.ffn_up" if out.is_file() else "layers.1.mlp.up_proj"
    mine = {name: each for name, each in header.tensors.items() if wanted in name}
    codes = max(mine, key=lambda name: mine[name].nbytes)
    raw = bytearray(target.read_bytes())
    # This moves a code by 4 levels, or by more.
    raw[header.extents[codes].offset + 771] ^= 0x40
    target.write_bytes(raw)
    found = [str(each) for each in verify(out, MODEL, checks=["structure"], prove=True).problems]
    assert any(wanted in each for each in found), found
