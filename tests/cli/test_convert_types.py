"""The types that a conversion chooses, and its messages if a format does not have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from arrays import stored
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_substitutes_are_counted_and_can_be_refused(weightctl: Run, tmp_path: Path) -> None:
    source = stored(
        tmp_path / "in.safetensors",
        a_weight=np.ones((4, 256), np.float32),
        b_weight=np.ones((4, 96), np.float32),
        c_weight=np.ones((4, 100), np.float32),
    )
    out = tmp_path / "out.gguf"
    done = weightctl("convert", source, out, "--quant", "Q4_K")
    assert "1 Q5_0 instead of Q4_K, 1 F16 instead of Q4_K (43.4 % of the parameters)" in done.stdout
    encodings = {name: node.info.encoding.name for name, node in open_weights(out).items()}
    assert encodings == {"a_weight": "Q4_K", "b_weight": "Q5_0", "c_weight": "F16"}
    refused = weightctl("convert", source, out, "--quant", "Q4_K", "--no-fallback", "--force")
    assert refused.returncode == 2
    assert "is not a multiple of the Q4_K block size" in refused.stderr


def test_some_tensors_can_have_other_types(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl(
        "convert", tiny_llama, out, "--quant", "q4_k",
        "--tensor-type", r"blk\.0\..*down=keep", "--tensor-type", "down=Q8_0",
    )  # fmt: skip
    assert "20 x BF16 -> Q4_K" in done.stdout
    assert "2 x BF16 -> Q8_0" in done.stdout
    assert open_weights(out)["blk.0.ffn_down.weight"].info.encoding.name == "BF16"


def test_what_a_format_cannot_hold_is_reported_for_all_tensors(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    quantized = tmp_path / "q.gguf"
    weightctl("convert", tiny_llama, quantized, "--quant", "q8_0")
    done = weightctl("convert", quantized, tmp_path / "out.safetensors")
    assert done.returncode == 2
    assert (
        "`token_embd.weight` is stored as Q8_0, which safetensors does not support" in done.stderr
    )
    assert "... and 18 more" in done.stderr
    assert "--dtype bf16" in done.stderr


def test_quantized_blocks_into_safetensors_say_where_they_can_go(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out", "--quant", "q8_0")
    assert "error: safetensors cannot store Q8_0" in done.stderr
    assert "hint: use an output name that ends in .gguf" in done.stderr


def test_fp8_goes_into_safetensors_and_back_out(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "f8.safetensors"
    assert weightctl("convert", tiny_llama, out, "--dtype", "f8_e4m3").returncode == 0
    assert open_weights(out).header.tensors["lm_head.weight"].encoding.name != "F8_E4M3"
    refused = weightctl("convert", out, tmp_path / "out.gguf")
    stored = "`model.layers.0.mlp.down_proj.weight` is stored as F8_E4M3"
    assert f"{stored}, which GGUF does not support" in refused.stderr
    assert "--dtype bf16" in refused.stderr
    assert weightctl("convert", out, tmp_path / "x.gguf", "--dtype", "bf16").returncode == 0
    assert weightctl("convert", out, tmp_path / "b.safetensors", "--dtype", "bf16").returncode == 0
