"""Towers of InternVL and Gemma 4, and audio encoders: what their configs state, what is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from each import each
from weightctl.errors import ArchitectureError
from weightctl.families.configs import from_hugging_face
from weightctl.families.towers import find_tower

if TYPE_CHECKING:
    from weightctl.families.configs import Read

PIXELS = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def read(kind: str, **changes: Any) -> Read:
    """Read a config.json of a type; `vision_config` and `audio_config` are objects."""
    tower = find_tower(kind)
    assert tower is not None
    text = {"hidden_size": 32, "norm_epsilon": 1e-6}
    document = {"model_type": kind, "text": text, "preprocessor": PIXELS, **changes}
    return from_hugging_face(tower.family, document, "here")


def names(kind: str, read: Read) -> set[str | None]:
    tower = find_tower(kind)
    assert tower is not None
    return {each.gguf for each in tower.family.tensors(read.config)}


def test_the_large_encoder_of_internvl_has_norms_of_queries_and_no_biases_of_norms() -> None:
    large = {
        "hidden_size": 3200,
        "num_hidden_layers": 45,
        "num_attention_heads": 25,
        "norm_type": "rms_norm",
        "use_qk_norm": True,
        "image_size": [448, 448],
    }
    found = names("internvl", read("internvl", vision_config=large))
    assert {"v.blk.44.attn_q_norm.weight", "v.blk.0.ln1.weight", "v.class_embd"} <= found
    assert not {"v.blk.0.ln1.bias", "v.blk.0.attn_q.bias"} & found
    usual = names("internvl", read("internvl"))
    assert {"v.blk.0.ln1.bias", "v.blk.0.attn_out.bias", "v.blk.0.ls1.weight"} <= usual
    assert "v.blk.0.attn_q_norm.weight" not in usual


@each(
    "changes, text",
    [
        ({"downsample_ratio": 0.3}, "is not 1 divided by an integer"),
        ({"downsample_ratio": 0.2, "image_seq_length": 40}, "cannot be merged by squares of 5 x 5"),
        ({"image_seq_length": 100}, "an image has 256 tokens"),
        ({"vision_config": {"norm_type": "rms_norm"}}, "layer norms otherwise"),
        ({"vision_config": {"use_qk_norm": True}}, "like the layers"),
        ({"vision_config": {"image_size": [448, 224]}}, "only has squares"),
        ({"vision_config": {"use_mean_pooling": False}}, "no norm after the last layer"),
        ({"vision_config": {"use_absolute_position_embeddings": False}}, "learned positions"),
        ({"vision_config": {"hidden_act": "relu"}}, "must be one of `gelu`"),
        ({"vision_feature_layer": -2}, "of the last layer"),
        ({"vision_feature_select_strategy": "full"}, "leaves out the class token"),
        ({"projector_hidden_act": "silu"}, "another activation"),
    ],
)
def test_what_gguf_does_not_state_of_internvl_is_refused(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ArchitectureError, match=re.escape(text)):
        read("internvl", **changes)


@each(
    "kind, changes, text",
    [
        ("qwen2_audio", {"audio_config": {"max_source_positions": 750}}, "30 seconds"),
        ("qwen2_audio", {"audio_config": {"scale_embedding": True}}, "does not scale"),
        ("qwen2_audio", {"audio_config": {"activation_function": "relu"}}, "has GELU"),
        ("voxtral", {"audio_config": {"intermediate_size": 64}}, "4 vectors of 1280 values"),
        ("voxtral", {"projector_hidden_act": "silu"}, "another activation"),
        ("audioflamingo3", {"projector_bias": False}, "needs these biases"),
    ],
)
def test_what_gguf_does_not_state_of_audio_encoders_is_refused(
    kind: str, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ArchitectureError, match=re.escape(text)):
        read(kind, **changes)


@each(
    "changes, text",
    [
        ({"vision_config": None}, "no image encoder"),
        ({"vision_config": {"head_dim": 32}}, "are not as wide as the hidden size 768"),
        ({"vision_config": {"num_key_value_heads": 4}}, "as many heads of keys"),
        ({"vision_config": {"pooling_kernel_size": 2}}, "squares of 3 x 3 patches"),
        ({"vision_config": {"rope_theta": 1e4}}, "llama.cpp assumes 100"),
        ({"vision_config": {"attention_bias": True}}, "biases are not supported"),
        ({"vision_config": {"hidden_activation": "silu"}}, "must be one of `gelu_pytorch_tanh`"),
    ],
)
def test_what_gguf_does_not_state_of_gemma_4_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ArchitectureError, match=re.escape(text)):
        read("gemma4", **changes)


@each("kind", ["qwen2_audio", "voxtral", "audioflamingo3"])
def test_sizes_have_whispers_own_names_or_the_usual_ones(kind: str) -> None:
    usual = read(kind, audio_config={"hidden_size": 64, "intermediate_size": 256})
    own = read(kind, audio_config={"d_model": 64, "encoder_ffn_dim": 256})
    assert usual.config == own.config
    assert "a.blk.0.attn_k.bias" not in names(kind, own)
    assert {"a.conv1d.2.bias", "a.blk.0.attn_v.bias", "a.post_ln.weight"} <= names(kind, own)
