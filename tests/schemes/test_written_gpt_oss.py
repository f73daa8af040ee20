"""gpt-oss's experts in the layout of openai/gpt-oss; transformers' dequantization is the judge."""

from __future__ import annotations

import json
from functools import cache
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import weightctl
from lazy import load_file, torch, transformers
from weightctl.errors import ConversionError
from written_models import convert, relative_error, values_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
}  # fmt: skip
NAMES = [
    f"model.layers.{layer}.mlp.experts.{part}_proj"
    for layer in range(2)
    for part in ("gate_up", "down")
]


@cache
def small_gpt_oss(intermediate: int = 96) -> str:
    torch.manual_seed(0)
    directory = mkdtemp(prefix="weightctl-gpt-oss-")
    model: Any = transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**SIZES, intermediate_size=intermediate)
    )
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


def judged(directory: Path) -> dict[str, torch.Tensor]:
    """Return the experts as transformers dequantizes them, which weightctl must read too."""
    made, ours = load_file(directory / "model.safetensors"), values_in(directory)
    found: dict[str, torch.Tensor] = {}
    for name in NAMES:
        blocks, scales = made[f"{name}_blocks"], made[f"{name}_scales"]
        found[name] = transformers.integrations.mxfp4.convert_moe_packed_tensors(
            blocks, scales, dtype=torch.float32
        )
        assert torch.equal(found[name], ours[name])
    return found


def test_transformers_loads_experts_that_are_rounded_from_bf16(tmp_path: Path) -> None:
    done = convert(small_gpt_oss(), tmp_path, "MXFP4", force=True)
    rounded = {item.weight for item in done.plan.items if not item.is_exact}
    assert rounded == {*NAMES}
    found, before = judged(tmp_path), values_in(small_gpt_oss())
    assert all(relative_error(found[name], before[name]) < 0.12 for name in NAMES)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=transformers.Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], found[name]) for name in NAMES)
    settings = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert settings == {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head",
        ],
    }  # fmt: skip


def test_the_blocks_of_gguf_are_the_same_blocks_and_back(tmp_path: Path) -> None:
    convert(small_gpt_oss(), tmp_path / "in.gguf", "MXFP4", tensor_types={"attn|output": "bf16"})
    done = convert(tmp_path / "in.gguf", tmp_path / "out", "MXFP4", exact=True)
    assert all(item.is_exact for item in done.plan.items)
    found, plain = judged(tmp_path / "out"), tmp_path / "plain"
    weightctl.convert(tmp_path / "in.gguf", plain, dtype="f32")
    wanted = values_in(plain)
    assert all(torch.equal(found[name], wanted[name]) for name in NAMES)
    weightctl.convert(tmp_path / "out", tmp_path / "back.gguf")
    before, after = (weightctl.open_weights(tmp_path / name) for name in ("in.gguf", "back.gguf"))
    for part in ("gate", "up", "down"):
        name = f"blk.1.ffn_{part}_exps.weight"
        assert after[name].info == before[name].info
        assert np.array_equal(np.asarray(after[name]), np.asarray(before[name]))


def test_the_blocks_of_a_directory_are_copied(tmp_path: Path) -> None:
    convert(small_gpt_oss(), tmp_path / "in", "MXFP4")
    done = convert(tmp_path / "in", tmp_path / "out", "MXFP4", exact=True)
    assert all(item.is_exact for item in done.plan.items)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "out"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_experts_whose_rows_are_not_whole_blocks_keep_their_type(tmp_path: Path) -> None:
    done = convert(small_gpt_oss(80), tmp_path / "out", "MXFP4")
    assert {item.weight for item in done.plan.items} == {"", NAMES[0], NAMES[2]}
    before, after = values_in(small_gpt_oss(80)), values_in(tmp_path / "out")
    assert torch.equal(after[NAMES[1]], before[NAMES[1]])
    with pytest.raises(ConversionError, match="80, is not a multiple of the group size, 32"):
        convert(small_gpt_oss(80), tmp_path / "none", "MXFP4", fallback=False)


def test_a_search_rounds_experts_no_worse(tmp_path: Path) -> None:
    convert(small_gpt_oss(), tmp_path / "near", "MXFP4")
    convert(small_gpt_oss(), tmp_path / "best", "MXFP4", search=True)
    before = values_in(small_gpt_oss())
    near, best = judged(tmp_path / "near"), judged(tmp_path / "best")
    for name in NAMES:
        assert relative_error(best[name], before[name]) <= relative_error(near[name], before[name])
