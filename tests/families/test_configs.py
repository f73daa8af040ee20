"""Configs of both naming conventions, against those of transformers, and hostile ones."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import small_models
from each import each
from weightctl import open_weights
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.keys import REQUIRED
from weightctl.families.recognition import recognize
from weightctl.families.rope_scaling import inverse_frequencies
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.families.family import Family


def read(document: dict[str, Any]) -> Any:
    for line in FAMILIES.values():
        family: Family = line.load()
        if document["model_type"] in family.model_types:
            return from_hugging_face(family, document, "config.json").config
    raise AssertionError(document)


FIELDS = {
    "llama": {
        "vocabulary": "vocab_size", "context": "max_position_embeddings", "hidden": "hidden_size",
        "layers": "num_hidden_layers", "heads": "num_attention_heads", "activation": "hidden_act",
        "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "tied": "tie_word_embeddings",
        "intermediate": "intermediate_size", "norm_epsilon": "rms_norm_eps",
        "attention_bias": "attention_bias", "attention_output_bias": "attention_bias",
        "mlp_bias": "mlp_bias", "sliding_window": "sliding_window",
    },
    "bert": {
        "vocabulary": "vocab_size", "context": "max_position_embeddings", "hidden": "hidden_size",
        "token_types": "type_vocab_size", "layers": "num_hidden_layers", "activation": "hidden_act",
        "heads": "num_attention_heads", "intermediate": "intermediate_size",
        "norm_epsilon": "layer_norm_eps",
    },
    "gpt2": {
        "vocabulary": "vocab_size", "context": "n_positions", "hidden": "n_embd",
        "layers": "n_layer", "heads": "n_head", "norm_epsilon": "layer_norm_epsilon",
        "tied": "tie_word_embeddings",
    },
}  # fmt: skip
FIELDS["mistral"] = FIELDS["llama"]

DOCUMENTS: list[dict[str, Any]] = [
    {"model_type": "llama"},
    {"model_type": "llama", "num_key_value_heads": None, "head_dim": None, "rope_scaling": None},
    {"model_type": "llama", "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3,
     "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16"},
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "sliding_window": 64},
    {"model_type": "llama", "head_dim": 64, "rope_parameters": {"rope_theta": 5e5}},
    {"model_type": "llama", "partial_rotary_factor": 0.5, "rope_theta": 10000.0},
    {"model_type": "llama", "max_position_embeddings": 131072, "rope_theta": 500000.0,
     "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
    {"model_type": "llama", "dtype": "float16",
     "rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 10000.0}},
    {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"model_type": "llama", "max_position_embeddings": 65536,
     "rope_parameters": {"rope_type": "yarn", "factor": 16.0, "beta_fast": 24.0,
                         "original_max_position_embeddings": 4096, "rope_theta": 10000.0}},
    {"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
     "original_max_position_embeddings": 512, "attention_factor": 0.75}},
    {"model_type": "mistral"},
    {"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": None,
     "attention_bias": False, "head_dim": 128, "hidden_size": 5120, "rope_theta": 1e6},
    {"model_type": "bert"},
    {"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536,
     "hidden_act": "relu", "position_embedding_type": "absolute"},
    {"model_type": "gpt2"},
    {"model_type": "gpt2", "n_inner": None, "n_embd": 48, "n_head": 3, "vocab_size": 17},
    {"model_type": "gpt2", "n_inner": 99, "tie_word_embeddings": False},
]  # fmt: skip


def known(document: dict[str, Any]) -> Any:
    return AutoConfig.for_model(**json.loads(json.dumps(document)))


@each("document", DOCUMENTS, ids=str)
def test_what_config_json_says_and_leaves_out_is_as_transformers_has_it(
    document: dict[str, Any],
) -> None:
    made, expected = read(document), known(document)
    for ours, theirs in FIELDS[document["model_type"]].items():
        if ours == "sliding_window" and document["model_type"] == "llama":
            assert made.sliding_window is None
        elif hasattr(expected, theirs):
            assert getattr(made, ours) == getattr(expected, theirs), ours
    if document["model_type"] == "gpt2":
        assert made.intermediate == (expected.n_inner or 4 * expected.n_embd)
        assert (made.activation, made.transposed) == ("gelu_tanh", True)


@each("document", [d for d in DOCUMENTS if "rope" in str(d)], ids=str)
def test_rotations_are_as_fast_as_in_transformers(document: dict[str, Any]) -> None:
    made, expected = read(document), LlamaRotaryEmbedding(known(document))
    found = inverse_frequencies(made.rope_dimensions, made.rope_base, made.rope_scaling)
    assert found == pytest.approx(np.asarray(expected.inv_freq), rel=1e-6)
    amplitude = 1.0 if made.rope_scaling is None else made.rope_scaling.amplitude
    assert amplitude == pytest.approx(expected.attention_scaling)


def test_what_transformers_5_writes_is_read_as_what_it_read(tmp_path: Path) -> None:
    for document in DOCUMENTS:
        known(document).save_pretrained(tmp_path)
        written = json.loads((tmp_path / "config.json").read_text())
        assert read(written) == read(document)


def gguf_metadata(**changes: Any) -> dict[str, MetadataValue]:
    values: dict[str, tuple[str, Any]] = {
        "general.architecture": ("string", "llama"),
        "llama.block_count": ("u32", 2),
        "llama.context_length": ("u32", 128),
        "llama.embedding_length": ("u32", 64),
        "llama.feed_forward_length": ("u32", 96),
        "llama.attention.head_count": ("u32", 4),
        "llama.attention.layer_norm_rms_epsilon": ("f32", float(np.float32(1e-6))),
        "llama.vocab_size": ("u32", 96),
    }
    metadata = {key: MetadataValue(*value) for key, value in values.items()}
    for key, content in changes.items():
        name = f"llama.{key.replace('__', '.')}"
        kind = {int: "u32", float: "f32", str: "string", bool: "bool"}.get(type(content), "array")
        metadata[name] = MetadataValue(kind, content)
        if content is None:
            del metadata[name]
    return metadata


def from_metadata(**changes: Any) -> Any:
    return from_gguf(FAMILIES["llama"].load(), gguf_metadata(**changes), {}, "model.gguf").config


def test_ggufs_metadata_say_the_same_as_config_json(tmp_path: Path) -> None:
    for kind, make in (
        ("llama", small_models.llama), ("bert", small_models.bert), ("gpt2", small_models.gpt2),
    ):  # fmt: skip
        model = make()
        path = tmp_path / f"{kind}.gguf"
        small_models.write_gguf(path, kind, model.config, small_models.arrays(model))
        found = recognize(open_weights(path)).config
        expected = read(model.config.to_dict())
        changes = {"llama": {"rope_interleaved": True}, "gpt2": {"transposed": False}}
        assert found == dataclasses.replace(expected, **changes.get(kind, {}))


def test_each_head_has_its_own_keys_where_gguf_says_nothing() -> None:
    made = from_metadata()
    assert (made.kv_heads, made.head_dim, made.rope_dimensions) == (4, 16, 16)
    assert (made.rope_base, made.rope_scaling, made.norm_epsilon) == (10000.0, None, 1e-6)


def test_a_value_for_each_layer_is_that_of_all_where_they_agree() -> None:
    assert from_metadata(attention__head_count_kv=[2, 2]).kv_heads == 2
    with pytest.raises(ArchitectureError, match="head_count_kv` differs between layers"):
        from_metadata(attention__head_count_kv=[2, 4])
    with pytest.raises(ArchitectureError, match="feed_forward_length"):
        from_metadata(feed_forward_length=[])


def test_ggufs_scaling_of_rotations() -> None:
    linear = from_metadata(rope__scaling__type="linear", rope__scaling__factor=4.0).rope_scaling
    assert (linear.kind, linear.factor) == ("linear", 4.0)
    assert from_metadata(rope__scaling__factor=4.0).rope_scaling == linear
    assert from_metadata(rope__scale_linear=4.0).rope_scaling == linear
    assert from_metadata(rope__scaling__type="none", rope__scaling__factor=4.0).rope_scaling is None
    yarn = from_metadata(
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=32,
    ).rope_scaling
    assert (yarn.kind, yarn.factor, yarn.original_context) == ("yarn", 4.0, 32)


def test_0_positions_are_not_a_window_in_gguf() -> None:
    assert from_metadata(attention__sliding_window=0).sliding_window is None
    assert from_metadata(attention__sliding_window=16).sliding_window == 16


@each(
    "changes, message",
    [
        ({"block_count": None}, "`llama.block_count` is missing"),
        ({"block_count": 0}, "`llama.block_count` is `0`"),
        ({"block_count": "many"}, "`llama.block_count` is `'many'`"),
        ({"block_count": True}, "`llama.block_count` is `True`"),
        ({"attention__head_count": 3}, "64 / 3"),
        (
            {"attention__head_count_kv": 3},
            ("4 query heads cannot be divided evenly among 3 KV heads"),
        ),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "epsilon` is `nan`"),
        (
            {"rope__dimension_count": 15},
            (
                "15 rotary dimensions are not valid for a head of 16 elements; the number must be "
                "even and at most 16"
            ),
        ),
        (
            {"rope__dimension_count": 18},
            (
                "18 rotary dimensions are not valid for a head of 16 elements; the number must be "
                "even and at most 16"
            ),
        ),
        ({"rope__scaling__type": "longrope"}, "rope.scaling.type` is `'longrope'`"),
        ({"rope__freq_base": 0.0}, "freq_base` is `0.0`"),
        ({"attention__value_length": 8}, "keys and values of different sizes are not supported"),
        ({"expert_count": 8}, r"`llama\.expert_count` is `8`: mixture of experts is not supported"),
    ],
)
def test_metadata_of_no_sense_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message) as caught:
        from_metadata(**changes)
    assert "model.gguf" in str(caught.value)


@each(
    "changes, message",
    [
        (
            {"num_hidden_layers": -3},
            ("`num_hidden_layers` is `-3`; it must be an integer from 1 to 10000"),
        ),
        ({"num_hidden_layers": 10**9}, "`num_hidden_layers` is `1000000000`"),
        ({"hidden_size": 10**400}, "`hidden_size` is an integer of hundreds of digits"),
        ({"hidden_size": 4096.5}, "`hidden_size` is `4096.5`"),
        ({"hidden_size": "4096"}, "`hidden_size` is `'4096'`"),
        ({"hidden_size": True}, "`hidden_size` is `True`"),
        ({"hidden_size": [4096]}, "`hidden_size` is a list"),
        ({"hidden_size": 4097}, "4097 / 32"),
        ({"vocab_size": 1 << 31}, "`vocab_size` is `2147483648`"),
        ({"num_attention_heads": 0}, "`num_attention_heads` is `0`"),
        ({"num_key_value_heads": 7}, "32 query heads cannot be divided evenly among 7 KV heads"),
        ({"head_dim": 127}, "127 rotary dimensions are not valid for a head of 127 elements"),
        ({"rms_norm_eps": -1e-6}, "`rms_norm_eps` is `-1e-06`"),
        ({"rms_norm_eps": float("inf")}, "`rms_norm_eps` is `inf`"),
        ({"attention_bias": "yes"}, "`attention_bias` is `'yes'`; it must be true or false"),
        (
            {"hidden_act": "mish"},
            (
                "`hidden_act` is `'mish'`; it must be one of `silu`, `swish`, `gelu`, "
                "`gelu_python`, `gelu_new`"
            ),
        ),
        ({"hidden_act": "s" * 999}, "`hidden_act` is `'sss"),
        ({"rope_theta": 0}, "rope_theta` is `0`"),
        ({"rope_scaling": [1]}, "is not a JSON object"),
        ({"rope_scaling": {"type": "dynamic", "alpha": 2.0}}, "rope_type` is `'dynamic'`"),
        ({"rope_scaling": {"type": "linear"}}, "no `factor`"),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, "factor` is `-2`"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 5}},
            ("`low_freq_factor` is greater than `high_freq_factor`"),
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1}}}, "full_attention"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}, "rope_theta": 1}, "`rope_theta`.* is 1"),
        ({"rope_scaling": {"type": "yarn", "beta_fast": 1e-320}}, "beta_fast` is `1e-320`"),
        ({"rope_scaling": {"type": "yarn", "beta_slow": 1e-320}}, "beta_slow` is `1e-320`"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-300}}, "`factor` .* is 1e-300"),
        ({"rope_theta": 1e-300}, "rope_theta` is `1e-300`"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}, "partial_rotary_factor": 0.5},
            (
                "`partial_rotary_factor` is 0.5 with `linear` scaling, which transformers "
                "does not support"
            ),
        ),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "relative positions"),
        ({"model_type": "bert", "is_decoder": True}, "BERT decoders are not supported"),
        (
            {"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True},
            (
                "`scale_attn_by_inverse_layer_idx` is `True`: other scaling of attention "
                "scores is not supported"
            ),
        ),
        (
            {"model_type": "gpt2", "scale_attn_weights": False},
            ("`scale_attn_weights` is `False`: other scaling of attention scores is not supported"),
        ),
        (
            {"model_type": "gpt2", "add_cross_attention": True},
            "`add_cross_attention` is `True`: cross attention is not supported",
        ),
    ],
)
def test_configs_of_no_sense_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message) as caught:
        read({"model_type": "llama"} | changes)
    assert len(str(caught.value)) < 400
    assert str(caught.value).startswith("config.json: ")


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from([0, 1, 2, 64, 1 << 31, 1 << 2000, "linear", "yarn", "llama3", 0.5, 1e300]),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.none()),
)  # fmt: skip
KEYS = [(name, key) for name in FAMILIES for key in FAMILIES[name].load().keys]
IN_CONFIG = st.sampled_from(sorted(
    {key.hugging_face.rpartition(".")[2] for _, key in KEYS}
    | {"rope_scaling", "rope_parameters", "rope_theta", "type"}
))  # fmt: skip
IN_METADATA = st.sampled_from(sorted({key.gguf.format(arch=name) for name, key in KEYS}))


@given(
    st.sampled_from(
        sorted({kind for name in FAMILIES for kind in FAMILIES[name].load().model_types})
    ),
    st.dictionaries(IN_CONFIG, ANYTHING | st.dictionaries(IN_CONFIG, ANYTHING), max_size=6),
)
def test_no_config_json_breaks_more_than_the_rules(kind: str, values: dict[str, Any]) -> None:
    with contextlib.suppress(ArchitectureError):
        read(values | {"model_type": kind})


@given(st.sampled_from(list(FAMILIES)), st.dictionaries(IN_METADATA, ANYTHING, max_size=6))
def test_no_metadata_break_more_than_the_rules(name: str, values: dict[str, Any]) -> None:
    usual = {
        key.gguf.format(arch=name): 1e-6 if "epsilon" in key.gguf else 2
        for owner, key in KEYS
        if owner == name and key.gguf and key.gguf_default is REQUIRED
    }
    metadata = {key: MetadataValue("f32", content) for key, content in (usual | values).items()}
    metadata["general.architecture"] = MetadataValue("string", name)
    with contextlib.suppress(ArchitectureError):
        from_gguf(FAMILIES[name].load(), metadata, {}, "model.gguf")
