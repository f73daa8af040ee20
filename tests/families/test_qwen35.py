"""Qwen3-Next and Qwen3.5: configs, and heads that stand in another order in GGUF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from family_variants import draw_variant, make_variant
from weightctl import convert, open_weights, shard
from weightctl.errors import ArchitectureError, TensorSplitError
from weightctl.families import FAMILIES
from weightctl.families.configs import from_hugging_face
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}


def read(family: str, **stated: Any) -> Any:
    return from_hugging_face(FAMILIES[family].load(), stated, "here")


def test_older_configs_state_the_interval_of_layers_with_attention() -> None:
    stated = {"model_type": "qwen3_next", "num_hidden_layers": 6, "full_attention_interval": 3}
    found = read("qwen3next", **stated).config
    assert found.delta_layers == (True, True, False) * 2
    assert found.attention_layers == (False, False, True) * 2


def test_a_multimodal_model_has_the_config_of_its_text_model() -> None:
    text = {"num_hidden_layers": 4, "hidden_size": 64, "tie_word_embeddings": False}
    own = read("qwen35", model_type="qwen3_5_text", **(text | {"tie_word_embeddings": True}))
    outer = {"text_config": text, "tie_word_embeddings": True}
    assert read("qwen35", model_type="qwen3_5", **outer).config == own.config


def test_heads_that_do_not_divide_into_key_heads_are_refused() -> None:
    with pytest.raises(ArchitectureError, match="32 value heads cannot be divided evenly among 5"):
        read("qwen35", model_type="qwen3_5_text", linear_num_key_heads=5)


@each(
    "stated, reason",
    [
        ({"rope_parameters": ROPE | {"mrope_section": [1, 1, 30]}}, "do not contain all rotated"),
        ({"linear_value_head_dim": 64}, "have 128 elements and the values 64"),
        ({"layer_types": ["full_attention"] * 32}, "all of its layers have attention"),
        ({}, None),
    ],
)
def test_llama_cpp_does_not_load_some_models(stated: dict[str, Any], reason: str | None) -> None:
    found = read("qwen35", model_type="qwen3_5_text", **stated)
    unloaded = FAMILIES["qwen35"].load().unloaded
    assert unloaded is not None
    said = unloaded(found.fields)
    assert said is None if reason is None else said is not None and reason in said


@each("key_heads, is_possible", [(2, False), (4, True)])
def test_blocks_that_are_longer_than_a_head_are_not_split(
    key_heads: int, is_possible: bool, tmp_path: Path
) -> None:
    sizes = {
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 64, "vocab_size": 64, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_num_key_heads": key_heads,
        "linear_num_value_heads": 2 * key_heads,
    }  # fmt: skip
    variant = draw_variant("qwen35", 1, **sizes)._replace(dtype="f32", parts=1, is_old=False)
    make_variant(variant, tmp_path / "model")
    quantized, ranks = tmp_path / "model.gguf", tmp_path / "ranks"
    convert(tmp_path / "model", quantized, quant="Q8_0")
    if not is_possible:
        # In GGUF, the two heads of a key head are not neighbors.
        with pytest.raises(TensorSplitError, match=r"ssm_out.*blocks of 64 elements"):
            shard(quantized, ranks, tp=2)
        return
    shard(quantized, ranks, tp=2)
    whole, gathered = open_weights(quantized), open_weights(ranks)
    for name in header_of(whole).tensors:
        one, other = (each[name].data().to_numpy() for each in (whole, gathered))
        assert np.array_equal(one, other), name
