"""The estimated memory of a model is what llama.cpp takes for it."""

from __future__ import annotations

import json
from shutil import copytree, ignore_patterns
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import weightctl
from each import usual
from family_cases import make_checkpoint
from lazy import torch, transformers
from llama_memory import measure_memory
from weightctl.families import recognize
from weightctl.families.memory import MemoryOptions, estimate_memory
from weightctl.families.memory.caches import _count_state
from weightctl.families.memory.estimate import _size_state

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.families.memory import MemoryEstimate

CONTEXT = 4096
# The kinds of caches of a model of each family.
KINDS = {
    "llama": {"gqa"},
    "gemma3": {"window", "gqa"},
    "deepseek_v3": {"mla"},
    "deepseek_v32": {"mla", "indexer"},
    "deepseek_v4": {"window", "compressed", "indexer", "recurrent"},
    "minicpm3": {"gqa"},
    "mamba2": {"recurrent"},
    "rwkv7": {"recurrent"},
    "qwen3next": {"recurrent", "gqa"},
    "kimi_linear": {"recurrent", "mla"},
    "gemma4": {"window", "gqa"},
}
# Of the larger models: the config that differs from that of the small one.
LARGER: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 14,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    },
    "gemma3": {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128,
        "sliding_window": 1024, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
    },
    "deepseek_v3": {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12,
        "num_attention_heads": 8, "num_key_value_heads": 8, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "qk_head_dim": 192, "v_head_dim": 128,
        "q_lora_rank": 384, "moe_intermediate_size": 512,
    },
}  # fmt: skip


def estimate(path: Path, context: int, kv_type: str = "f16") -> MemoryEstimate:
    return estimate_memory(
        recognize(weightctl.open_weights(path)), MemoryOptions.of(context, kv_type)
    )


@pytest.mark.parametrize("family", usual(["gemma3", "deepseek_v32", "kimi_linear"], KINDS))
def test_caches_have_the_sizes_that_llama_cpp_prints(
    family: str, crossed: Path, tmp_path: Path
) -> None:
    source, model = make_checkpoint(family, crossed).path, tmp_path / "model.gguf"
    weightctl.convert(source, model)
    found = estimate(model, CONTEXT)
    printed = measure_memory(model, CONTEXT)
    assert {each.kind for each in found.kinds} == KINDS[family]
    assert found.cache == pytest.approx(printed.cache, abs=printed.tolerance)
    assert found.weights == pytest.approx(printed.weights, rel=0.01, abs=printed.tolerance)
    # The small models have other proportions than published ones.
    assert found.compute == pytest.approx(printed.compute, rel=0.4)
    # The config of transformers says the same.
    assert estimate(source, CONTEXT).caches == found.caches


@pytest.mark.parametrize("family", usual(["gemma3"], ["gemma3", "qwen3next"]))
def test_a_quantized_cache_has_the_size_that_llama_cpp_prints(
    family: str, crossed: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    weightctl.convert(make_checkpoint(family, crossed).path, model)
    printed = measure_memory(model, CONTEXT, "q8_0")
    found = estimate(model, CONTEXT, "q8_0").cache
    assert found == pytest.approx(printed.cache, abs=printed.tolerance)


@pytest.mark.long
@pytest.mark.parametrize("family", LARGER)
def test_the_resident_memory_of_larger_models_is_as_estimated(
    family: str, crossed: Path, tmp_path: Path
) -> None:
    model = make_larger(make_checkpoint(family, crossed).path, tmp_path, LARGER[family])
    for context in (8192, 32768):
        found, measured = estimate(model, context), measure_memory(model, context)
        sum_of_printed = measured.weights + measured.cache + measured.compute
        assert found.total == pytest.approx(sum_of_printed, rel=0.01)
        assert found.total == pytest.approx(measured.resident, rel=0.1)


def make_larger(small: Path, into: Path, changes: dict[str, Any]) -> Path:
    """Return a GGUF file of a random model with the config of a small one, with some changes."""
    directory = into / "larger"
    copytree(small, directory, ignore=ignore_patterns("*.safetensors"))
    config = directory / "config.json"
    stated = json.loads(config.read_text()) | {"max_position_embeddings": 32768} | changes
    config.write_text(json.dumps(stated))
    kind = transformers.AutoConfig.from_pretrained(directory)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(kind, dtype=torch.float16)
    model.save_pretrained(directory)
    config.write_text(json.dumps(stated))
    weightctl.convert(directory, into / "larger.gguf")
    return into / "larger.gguf"


def test_a_state_of_mamba_2_is_computed_from_two_inputs_for_each_group() -> None:
    def size(version: int, state: int) -> int:
        config: Any = SimpleNamespace(
            ssm_layers=True, ssm_version=version, ssm_groups=4, ssm_state=state, ssm_inner=64,
            ssm_heads=8,
        )  # fmt: skip
        return _size_state(config, 0)

    # The convolution has a channel for each number of B and C of a group, and is stored thrice.
    assert size(2, 17) - size(2, 16) == 3 * 2 * 4
    assert size(1, 17) == size(1, 16)


def test_a_state_of_a_delta_net_has_its_keys_twice_in_the_convolution() -> None:
    config: Any = SimpleNamespace(
        ssm_layers=False, delta_layers=True, convolution_length=4, delta_key_heads=2,
        delta_key_size=16, delta_heads=4, delta_value_size=8,
    )  # fmt: skip
    # llama.cpp: `n_embd_r` and `n_embd_s` of `llama_hparams`.
    assert _count_state(config, 0) == (4 - 1) * (32 + 2 * 2 * 16) + 16 * 32
