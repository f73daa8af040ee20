"""Configs of both naming conventions, against those of transformers, and hostile ones."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import small_models
import tiny
from config_documents import DOCUMENTS, LLAMA3, Document, crossed, described, fields_of, find_family
from each import each
from lazy import LazyModule, torch, transformers
from weightctl import open_weights
from weightctl.errors import ArchitectureError, GraphError
from weightctl.families import FAMILIES
from weightctl.families.common_keys import HARMLESS, REFUSED, USED, describe_foreign_classes
from weightctl.families.config_keys import REQUIRED
from weightctl.families.config_writing import model_type_of, to_gguf, to_hugging_face
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.recognition import recognize
from weightctl.families.rope_factors import (
    RopeScaling,
    inverse_frequencies,
    llama3_scaling,
    long_factors,
    rope_factors,
    short_factors,
    with_llama3,
)
from weightctl.families.towers import find_tower
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.families.configs import Read
    from weightctl.families.family import Family

modeling_rope_utils: Any = LazyModule("transformers.modeling_rope_utils")
llama_module: Any = LazyModule("transformers.models.llama")
modeling_llama: Any = LazyModule("transformers.models.llama.modeling_llama")
phi3_module: Any = LazyModule("transformers.models.phi3")


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

TAKEN: list[dict[str, Any]] = [
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
    return transformers.AutoConfig.for_model(**json.loads(json.dumps(document)))


@each("document", TAKEN, ids=str)
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


@each("document", [d for d in TAKEN if "rope" in str(d)], ids=str)
def test_rotations_are_as_fast_as_in_transformers(document: dict[str, Any]) -> None:
    made, expected = read(document), modeling_llama.LlamaRotaryEmbedding(known(document))
    found = inverse_frequencies(made.rope_dimensions, made.rope_base, made.rope_scaling)
    assert found == pytest.approx(np.asarray(expected.inv_freq), rel=1e-6)
    amplitude = 1.0 if made.rope_scaling is None else made.rope_scaling.amplitude
    assert amplitude == pytest.approx(expected.attention_scaling)


def test_what_transformers_5_writes_is_read_as_what_it_read(tmp_path: Path) -> None:
    for document in TAKEN:
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


# Published classes of decoders whose tokens see later ones.
BIDIRECTIONAL = (
    ("llama", "LlamaBidirectionalModel"), ("qwen2", "Qwen2BidirectionalModel"),
    ("mistral", "BidirectionalMistralModel"), ("mistral", "NVEmbedModel"),
    ("mistral", "MistralEncoderModel"), ("llama", "LlamaBiModel"), ("qwen2", "Qwen2BiForMNTP"),
    ("qwen3", "Qwen3ForMaskedLM"),
)  # fmt: skip


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
        ({"model_type": "gpt_bigcode", "add_cross_attention": True}, "cross attention"),
        ({"per_layer_config": {"3": {"hidden_act": "relu"}}}, "settings of single layers"),
        ({"pruned_heads": {"0": [1]}}, "heads that are removed"),
        ({"use_bidirectional_attention": True}, "later tokens"),
        (
            {"model_type": "gemma3", "text_config": {"use_bidirectional_attention": True}},
            "`use_bidirectional_attention` is `True`: attention to later tokens is not supported",
        ),
        ({"model_type": "t5", "is_causal": False}, "`is_causal` is `False`"),
        ({"model_type": "dots1", "max_window_layers": 3}, "llama.cpp has no sliding windows"),
        *(
            (
                {"model_type": kind, "architectures": [name]},
                f"`architectures` names `'{name}'`: attention to later tokens is not supported",
            )
            for kind, name in BIDIRECTIONAL
        ),
        (
            {"auto_map": {"AutoModel": "modeling_llama_encoder.LlamaEncoderModel"}},
            "`auto_map` names `'modeling_llama_encoder.LlamaEncoderMod…`",
        ),
    ],
)
def test_configs_of_no_sense_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message) as caught:
        read({"model_type": "llama"} | changes)
    assert len(str(caught.value)) < 400
    assert str(caught.value).startswith("config.json: ")


# What releases state, with the classes that are not of their family.
CLASSES: tuple[tuple[Document, list[str]], ...] = (
    ({"model_type": "llama", "architectures": ["LLaMAForCausalLM"]}, []),
    ({"model_type": "internlm3", "architectures": ["InternLM3ForCausalLM"]}, []),
    ({"model_type": "mpt", "architectures": ["MPTForCausalLM"]}, []),
    ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, []),
    ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, []),
    ({"model_type": "t5", "architectures": ["T5WithLMHeadModel"]}, []),
    ({"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]}, []),
    ({"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}, []),
    ({"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"],
      "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config",
                   "AutoModel": "modeling_deepseek.DeepseekV3Model"}}, []),
    ({"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "auto_map": {
        "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}}, []),
    ({"model_type": "bert", "architectures": ["JinaBertForMaskedLM"]}, ["JinaBertForMaskedLM"]),
    ({"model_type": "qwen3", "architectures": ["JinaForRanking"],
      "auto_map": {"AutoModel": "modeling.JinaForRanking"}},
     ["JinaForRanking", "modeling.JinaForRanking"]),
    ({"model_type": "qwen2", "architectures": "Qwen2MoeForCausalLM"}, ["Qwen2MoeForCausalLM"]),
)  # fmt: skip


@each("changes", [{}, {"sliding_window": None, "max_window_layers": 3}])
def test_a_dots1_without_windows_is_read(changes: Document) -> None:
    assert read({"model_type": "dots1"} | changes).layers == 62


@each("document, foreign", CLASSES, ids=[str(document) for document, _ in CLASSES])
def test_classes_that_are_not_of_the_family_are_named(
    document: Document, foreign: list[str]
) -> None:
    text = describe_foreign_classes(find_family(document), document)
    assert re.findall(r"`([\w.]+)` \(", text) == foreign
    assert bool(text) == bool(foreign)


def test_the_usual_classes_are_those_of_their_families() -> None:
    families = [line.load() for line in FAMILIES.values()]
    texts = [
        describe_foreign_classes(family, {"architectures": [kind.class_name]})
        for family in families
        for kind in family.model_types.values()
    ]
    assert not [*filter(None, texts)]


def test_each_key_of_all_models_in_transformers_is_used_harmless_or_refused() -> None:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "configuration_utils.py").read_text())
    (own,) = (node for node in tree.body if getattr(node, "name", "") == "PreTrainedConfig")
    fields = {
        ast.unparse(node.target)
        for node in own.body
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
    }
    (begin,) = (node for node in own.body if getattr(node, "name", "") == "__post_init__")
    taken = re.findall(r"kwargs\.(?:pop|get)\('(\w+)'", ast.unparse(begin))
    assert {"per_layer_config", "architectures", "problem_type"} <= fields | {*taken}
    assert fields | {*taken} <= USED | HARMLESS | REFUSED.keys()


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


def list_odd_documents(case: str) -> Iterator[dict[str, Any]]:
    """Yield the config of a model with one value of another type, for each of its keys."""
    usual = tiny.make_config(case)
    model_type = usual.pop("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip("transformers does not have this type")
    stated = json.loads(transformers.CONFIG_MAPPING[model_type](**usual).to_json_string(False))
    for key in stated.keys() - {"model_type"}:
        for value in ([1], [[]], {"a": 1}, "x", None, True, False, -1, math.inf):
            yield {**stated, "model_type": model_type, key: value}


@pytest.mark.long
@each("case", tiny.read_cases())
def test_no_value_of_another_type_breaks_more_than_the_rules(case: str) -> None:
    for document in list_odd_documents(case):
        with contextlib.suppress(ArchitectureError):
            read(document)


def test_a_number_of_groups_that_is_a_list_is_an_error() -> None:
    changes = {"topk_method": "group_limited_greedy", "n_group": [1]}
    with pytest.raises(ArchitectureError, match="n_group"):
        read(tiny.make_config("deepseek_v2", **changes))


def test_a_falcon_with_keys_for_each_query_is_read_or_refused() -> None:
    assert read(tiny.make_config("falcon", multi_query=False)).kv_heads > 1


@pytest.mark.parametrize(("kv_heads", "is_new"), [(1, False), (2, True), (4, False)])
def test_a_falcon_from_gguf_has_the_architecture_that_its_kv_heads_need(
    kv_heads: int, is_new: bool
) -> None:
    changes = {"new_decoder_architecture": True, "num_kv_heads": kv_heads,
               "num_ln_in_parallel_attn": 1}  # fmt: skip
    config = crossed(tiny.make_config("falcon", num_attention_heads=4, **changes))
    assert config["new_decoder_architecture"] is is_new
    assert read(config).kv_heads == kv_heads


def read_usual_metadata(name: str, values: dict[str, Any]) -> None:
    """Read metadata with the keys that a family requires, and other values."""
    family = FAMILIES[name].load()
    usual = {
        key.gguf.format(arch=family.gguf_name): 1e-6 if "epsilon" in key.gguf else 2
        for key in family.keys
        if key.gguf and key.gguf_default is REQUIRED
    }
    metadata = {key: MetadataValue("f32", content) for key, content in (usual | values).items()}
    metadata["general.architecture"] = MetadataValue("string", family.gguf_name)
    with contextlib.suppress(ArchitectureError):
        from_gguf(family, metadata, {}, "model.gguf")


def test_llama_cpp_defaults_read_fields_of_earlier_keys() -> None:
    broken = []
    for name in FAMILIES:
        try:
            read_usual_metadata(name, {})
        except Exception as error:  # noqa: BLE001 - every family is read
            broken.append(f"{name}: {error!r}")
    assert not broken


@given(st.sampled_from(list(FAMILIES)), st.dictionaries(IN_METADATA, ANYTHING, max_size=6))
def test_no_metadata_break_more_than_the_rules(name: str, values: dict[str, Any]) -> None:
    read_usual_metadata(name, values)


# Configs that one of the conventions cannot express are refused, and never written wrong.


# What files may say, in which few models make sense.
CHANGES = st.one_of(
    st.none(), st.booleans(), st.integers(1, 64), st.floats(0, 2), st.sampled_from([
        1024, 4096, 1 << 20, 1e-5, 1e6, "silu", "gelu_pytorch_tanh", "default", "linear", "yarn",
        "longrope",
    ]),
)  # fmt: skip
IN_ROPE = [
    "rope_type", "rope_theta", "factor", "original_max_position_embeddings", "attention_factor",
    "partial_rotary_factor", "beta_fast", "mscale", "mscale_all_dim", "low_freq_factor",
]  # fmt: skip


@each(
    "name, changes, message",
    [
        (
            "llama",
            {"activation": "relu"},
            r"`activation` is `'relu'`, but llama\.cpp would read `'silu'`",
        ),
        ("llama", {"layers": 0}, "`llama.block_count` is `0`"),
        ("llama", {"hidden": "many"}, "`llama.embedding_length` is `'many'`"),
        ("llama yarn", {"scaling.truncate": False}, "`truncate`"),
    ],
)
def test_what_llama_cpp_would_run_otherwise_is_not_a_gguf(
    name: str, changes: Document, message: str
) -> None:
    fields = fields_of(DOCUMENTS[name]) | changes
    with pytest.raises(ArchitectureError, match=message) as caught:
        to_gguf(find_family(DOCUMENTS[name]), fields)
    assert caught.value.hint


@each(
    "name, changes, message",
    [
        ("llama", {"rope_dimensions": 64}, "`rope_dimensions` is `64`"),
        ("llama", {"attention_bias": True}, "bias"),
        ("llama", {"has_rope_factors": True}, "`has_rope_factors` is `True`"),
        (
            "llama",
            {"activation": "tanh"},
            ("`hidden_act` is `'tanh'`, a value that the key does not support"),
        ),
        (
            "phi3 long",
            {"scaling.short_factors": ()},
            (
                "has 0 values in `short_factor` and 48 in `long_factor`, but there are 48 pairs of "
                "rotary dimensions: each needs one value"
            ),
        ),
    ],
)
def test_what_transformers_would_run_otherwise_is_not_a_config_json(
    name: str, changes: Document, message: str
) -> None:
    document = DOCUMENTS[name]
    fields = fields_of(document) | changes
    with pytest.raises(ArchitectureError, match=message) as caught:
        to_hugging_face(find_family(document), fields, document["model_type"])
    assert caught.value.hint


@given(st.sampled_from(sorted(DOCUMENTS)), st.data())
def test_whatever_can_be_read_is_written_or_refused(name: str, data: st.DataObject) -> None:
    document = dict(DOCUMENTS[name])
    family = find_family(document)
    paths = sorted({key.hugging_face for key in family.keys if "." not in key.hugging_face} - {""})
    document |= data.draw(st.dictionaries(st.sampled_from(paths), CHANGES, max_size=2))
    rope = dict(document.get("rope_parameters", {}))
    if not any(isinstance(value, dict) for value in rope.values()):
        rope |= data.draw(st.dictionaries(st.sampled_from(IN_ROPE), CHANGES, max_size=3))
        document["rope_parameters"] = rope
    try:
        read = from_hugging_face(family, document, "config.json")
    except ArchitectureError:
        return
    with contextlib.suppress(ArchitectureError):
        written = to_hugging_face(family, read.fields, document["model_type"])
        assert from_hugging_face(family, written, "config.json").config == read.config
    with contextlib.suppress(ArchitectureError):
        crossed(document)


@given(st.sampled_from(sorted(DOCUMENTS)), st.data())
def test_whatever_metadata_say_is_written_or_refused(name: str, data: st.DataObject) -> None:
    family = find_family(DOCUMENTS[name])
    metadata = described(family, fields_of(DOCUMENTS[name]))
    keys = {key.gguf.format(arch=family.gguf_name): key for key in family.keys if key.gguf}
    for changed in data.draw(st.lists(st.sampled_from(sorted(keys)), max_size=3)):
        metadata[changed] = MetadataValue(keys[changed].kind.gguf_type, data.draw(CHANGES))
    try:
        fields = from_gguf(family, metadata, {}, "model.gguf").fields
    except ArchitectureError:
        return
    with contextlib.suppress(ArchitectureError):
        to_hugging_face(family, fields, model_type_of(family, fields))
    with contextlib.suppress(ArchitectureError):
        to_gguf(family, fields)


# Configs written in either convention, against what transformers reads and llama.cpp's script.


# What the modeling code does not read, or only in training.
UNREAD = {
    "architectures", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop",
    "bos_token_id", "classifier_dropout", "dtype", "embd_pdrop", "eos_token_id", "head_dim",
    "hidden_dropout_prob", "initializer_range", "is_decoder", "max_window_layers",
    "output_router_logits", "pad_token_id", "partial_rotary_factor", "pretraining_tp",
    "resid_pdrop", "rope_parameters", "router_aux_loss_coef", "router_jitter_noise",
    "transformers_version", "use_cache",
}  # fmt: skip


# What it takes where there is none.
DEFAULTS = {
    "beta_fast": 32, "beta_slow": 1, "truncate": True, "attention_factor": None,
    "partial_rotary_factor": 1.0,
}  # fmt: skip


def head_dim(config: Any) -> int:
    """Return the length of heads as the modeling code finds it."""
    given = getattr(config, "head_dim", None)
    return given or config.hidden_size // config.num_attention_heads


def rotations(config: Any) -> Any:
    """Return the rotations of a config without what says nothing."""
    given = getattr(config, "rope_parameters", None) or {}
    nested = given if any(isinstance(value, dict) for value in given.values()) else {"": given}
    return {
        kind: {
            name: value
            for name, value in each.items()
            if name != "type" and not (name in DEFAULTS and DEFAULTS[name] == value)
        }
        for kind, each in nested.items()
    }


@each("name", DOCUMENTS)
def test_a_config_is_to_transformers_what_it_was_before_it_became_metadata(name: str) -> None:
    expected, found = (
        known(DOCUMENTS[name]),
        known(crossed(DOCUMENTS[name])),
    )
    theirs, ours = expected.to_dict(), found.to_dict()
    assert {k: v for k, v in ours.items() if k not in UNREAD} == {
        k: v for k, v in theirs.items() if k not in UNREAD
    }
    assert head_dim(found) == head_dim(expected)
    assert rotations(found) == rotations(expected)


@each("name", DOCUMENTS)
def test_a_config_that_is_written_is_read_as_the_same(name: str) -> None:
    family, document = find_family(DOCUMENTS[name]), DOCUMENTS[name]
    config = from_hugging_face(family, document, "config.json").config
    written = to_hugging_face(family, fields_of(document), document["model_type"])
    assert from_hugging_face(family, written, "config.json").config == config
    kind = family.model_types[document["model_type"]]
    assert written["architectures"] == [kind.class_name]


@each("scaling", [None, "linear", "yarn"])
def test_the_keys_are_those_of_llama_cpps_own_writer(tmp_path: Path, scaling: str | None) -> None:
    rope = {"rope_theta": 10000.0, "rope_type": scaling or "default"}
    if scaling:
        rope |= {"factor": 4.0}
    if scaling == "yarn":
        rope |= {"original_max_position_embeddings": 32}
    for kind, make in (
        ("llama", small_models.llama), ("bert", small_models.bert), ("gpt2", small_models.gpt2),
    ):  # fmt: skip
        model = make(**({"rope_parameters": rope} if kind == "llama" else {}))
        path = tmp_path / f"{kind}.gguf"
        small_models.write_gguf(path, kind, model.config, small_models.arrays(model))
        theirs = {
            key: value
            for key, value in open_weights(path).metadata.items()
            if not key.startswith(("general.", "GGUF."))
        }
        document = model.config.to_dict()
        ours = to_gguf(find_family(document), fields_of(document))
        assert {key: ours[key] for key in theirs} == theirs


def test_every_key_is_one_that_ggufs_own_constants_have() -> None:
    known_keys = {
        value.replace("{arch}", "ARCH")
        for group in vars(gguf.Keys).values()
        if isinstance(group, type)
        for value in vars(group).values()
        if isinstance(value, str)
    }
    for line in FAMILIES.values():
        family: Family = line.load()
        if not family.in_llama_cpp:
            continue  # its keys are weightctl's own
        keys = {key.gguf.format(arch="ARCH") for key in family.keys if key.written is not False}
        # llama.cpp reads these of ModernBERT, MiMo, Qwen3.5, GLM-5, DeepSeek-V4, Granite with
        # windows, Nanbeige, Ling 3.0, Hunyuan 4 and MiniMax-M3; the constants of older releases of
        # gguf lack them.
        newer = {
            "ARCH.hidden_activation", "ARCH.num_loops", "ARCH.skip_loop_final_norm",
            "ARCH.kda.gate_lower_bound",
            "ARCH.attention.rope_pattern", "ARCH.attention.value_scale",
            "ARCH.attention.recurrent_layers", "ARCH.hash_layer_count",
            *(f"ARCH.hyper_connection.{key}"
              for key in ("count", "epsilon", "magnitude", "sinkhorn_iterations")),
            *(f"ARCH.attention.{key}"
              for key in ("compress_ratios", "compress_rope_freq_base", "output_group_count",
                          "output_lora_rank")),
            *(f"ARCH.attention.indexer.{key}"
              for key in ("block_size", "head_count", "key_length", "local_blocks", "top_k",
                          "types")),
        }  # fmt: skip
        assert keys - {""} - newer <= known_keys


def test_older_transformers_finds_rotations_where_it_looks() -> None:
    document = DOCUMENTS["llama3"]
    written = to_hugging_face(find_family(document), fields_of(document), "llama")
    assert written["rope_theta"] == 500000.0
    assert written["rope_scaling"] == {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    plain = to_hugging_face(find_family(document), fields_of(DOCUMENTS["llama"]), "llama")
    assert "rope_scaling" not in plain


def test_a_llama_with_a_window_is_a_mistral() -> None:
    family = FAMILIES["llama"].load()
    fields = dict(fields_of(DOCUMENTS["llama"]))
    assert model_type_of(family, fields) == "llama"
    assert model_type_of(family, fields | {"sliding_window": 16}) == "mistral"
    with pytest.raises(
        ArchitectureError,
        match="`llama` does not allow `sliding_window` = `16`, and `mistral` does not allow "
        "`attention_bias` = `True`",
    ):
        model_type_of(family, fields | {"sliding_window": 16, "attention_bias": True})


def test_a_window_that_is_none_is_written_where_none_means_another() -> None:
    family = FAMILIES["llama"].load()
    document = {"model_type": "mistral", "sliding_window": None}
    assert to_hugging_face(family, fields_of(document), "mistral")["sliding_window"] is None
    phi = to_gguf(FAMILIES["phi3"].load(), fields_of(DOCUMENTS["phi4"]))
    assert phi["phi3.attention.sliding_window"] == MetadataValue("u32", 0)


def test_a_word_for_an_activation_is_the_familys_own() -> None:
    for name, key, word in (
        ("gpt2", "activation_function", "gelu_new"),
        ("bert", "hidden_act", "gelu"),
        ("llama", "hidden_act", "silu"),
        ("gemma2", "hidden_activation", "gelu_pytorch_tanh"),
    ):
        assert crossed(DOCUMENTS[name])[key] == word


def test_a_factor_of_longrope_is_kept_as_what_it_does() -> None:
    document = dict(DOCUMENTS["phi3 long"])
    document["rope_parameters"] = {**document["rope_parameters"], "factor": 1}
    family = find_family(document)
    read = from_hugging_face(family, document, "config.json")
    written = to_hugging_face(family, read.fields, "phi3")
    assert read.config.rope_scaling.amplitude == 1
    assert from_hugging_face(family, written, "config.json").config == read.config


# Rotations that GGUF tells by tensors, made of a config and found in one again.


@dataclass
class Rotations:
    """What of a config matters here."""

    rope_base: float
    rope_dimensions: int
    rope_scaling: RopeScaling | None


def llama3(base: float, dimensions: int, factor: float, *rest: float) -> Rotations:
    original, low, high = rest
    scaling = RopeScaling(
        kind="llama3",
        factor=factor,
        original_context=int(original),
        low_frequency_factor=low,
        high_frequency_factor=high,
    )
    return Rotations(base, dimensions, scaling)


SPEEDS = [
    (500000.0, 128, 8.0, 8192, 1.0, 4.0),
    (500000.0, 64, 32.0, 8192, 1.0, 4.0),
    (1000000.0, 128, 8.0, 4096, 1.0, 32.0),
    (10000.0, 64, 4.0, 300, 2.0, 5.5),
    (10000.0, 16, 8.0, 64, 1.0, 4.0),
    # No pair turns at a speed between.
    (10000.0, 8, 8.0, 32, 1.0, 4.0),
]


@each("case", SPEEDS, ids=str)
def test_factors_stretch_rotations_as_transformers_does(case: tuple[float, ...]) -> None:
    base, dimensions, factor, original, low, high = case
    config = llama_module.LlamaConfig(
        head_dim=int(dimensions),
        max_position_embeddings=1 << 20,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": base, "factor": factor, "low_freq_factor": low,
            "high_freq_factor": high, "original_max_position_embeddings": int(original),
        },
    )  # fmt: skip
    expected, _ = modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config)
    factors = rope_factors(llama3(*case))  # type: ignore[arg-type]
    assert factors is not None
    assert factors.dtype == np.float32
    plain = inverse_frequencies(int(dimensions), base)
    assert plain / factors == pytest.approx(expected.numpy(), rel=1e-6)


def test_factors_are_those_of_llama_cpps_own_rule() -> None:
    # As its `convert_hf_to_gguf.py` has it, pair by pair.
    base, dimensions, factor, original, low, high = SPEEDS[0]
    expected: list[Any] = []
    for frequency in 1.0 / base ** (
        torch.arange(0, dimensions, 2, dtype=torch.float32) / dimensions
    ):
        wavelength = 2 * math.pi / frequency
        smooth = (original / wavelength - low) / (high - low)
        is_fast, is_slow = wavelength < original / high, wavelength > original / low
        between = 1 / ((1 - smooth) / factor + smooth)
        expected.append(1 if is_fast else factor if is_slow else between)
    found = rope_factors(llama3(*SPEEDS[0]))  # type: ignore[arg-type]
    assert found == pytest.approx(np.array(expected, np.float32), rel=1e-6)


@each("says_context", [True, False])
@each("case", SPEEDS, ids=str)
def test_factors_tell_the_scaling_that_they_were_made_of(
    case: tuple[float, ...], says_context: bool
) -> None:
    config = llama3(*case)  # type: ignore[arg-type]
    base, dimensions, factor, original, low, high = case
    found = llama3_scaling(
        rope_factors(config),  # type: ignore[arg-type]
        base,
        int(dimensions),
        1 << 20,
        int(original) if says_context else None,
    )
    assert found["scaling.kind"] == "llama3"
    assert found["scaling.factor"] == factor
    # Without the context only its ratio to the others is known, and 1 is the usual lowest.
    scale = 1 if says_context else low
    assert found["scaling.original_context"] * scale == original
    assert found["scaling.low_frequency_factor"] * scale == low
    assert found["scaling.high_frequency_factor"] * scale == high


def test_factors_of_1_are_not_a_scaling() -> None:
    found = llama3_scaling(np.ones(8, np.float32), 10000.0, 16, 2048)
    assert found["scaling.kind"] is None


@each(
    "factors, message",
    [
        (np.ones(7, np.float32), r"`rope_freqs\.weight` has 7 values, but there are 8 pairs"),
        (np.full(8, np.nan, np.float32), "that is less than 1 or not finite"),
        (np.full(8, np.inf, np.float32), "that is less than 1 or not finite"),
        (np.full(8, 0.5, np.float32), "that is less than 1 or not finite"),
        (np.full(8, -1.0, np.float32), "that is less than 1 or not finite"),
        (np.arange(8, 0, -1).astype(np.float32), "does not match llama3 scaling"),
        (np.array([1, 1, 1, 3, 2, 9, 9, 9], np.float32), "does not match llama3 scaling"),
    ],
)
@each("base", [10000.0, 1.0, 1e12])
def test_factors_of_no_llama3_scaling_are_refused(factors: Any, message: str, base: float) -> None:
    fields = {
        "scaling.kind": "linear", "scaling.factor": 0.0, "scaling.original_context": 2048,
        "rope_base": base, "rope_dimensions": 16, "context": 2048,
    }  # fmt: skip
    with pytest.raises(ArchitectureError, match=message):
        with_llama3(fields, factors)


def test_factors_beside_another_scaling_are_refused() -> None:
    fields = {"scaling.kind": "linear", "scaling.factor": 4.0}
    with pytest.raises(ArchitectureError, match="and a metadata key"):
        with_llama3(fields, np.ones(8, np.float32))


SHORT = tuple(1 + n / 64 for n in range(48))
LONG = tuple(2.0 + n for n in range(48))


def longrope(**changes: Any) -> RopeScaling:
    given: dict[str, Any] = {
        "kind": "longrope", "factor": 32.0, "original_context": 4096, "short_factors": SHORT,
        "long_factors": LONG,
    }  # fmt: skip
    return RopeScaling(**given | changes)


@each("length", [1, 4096, 4097])
@each("attention_factor", [None, 1.25])
def test_longrope_turns_pairs_as_transformers_does(
    length: int, attention_factor: float | None
) -> None:
    config = phi3_module.Phi3Config(
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": list(SHORT),
            "long_factor": list(LONG), "attention_factor": attention_factor,
        },
    )  # fmt: skip
    expected, amplitude = modeling_rope_utils.ROPE_INIT_FUNCTIONS["longrope"](
        config, seq_len=length
    )
    scaling = longrope(attention_factor=attention_factor)
    found = inverse_frequencies(96, 10000.0, scaling, length)
    assert found == pytest.approx(expected.numpy(), rel=1e-6)
    assert scaling.amplitude == pytest.approx(amplitude)


def test_longropes_factors_are_tensors_of_float32() -> None:
    config: Any = Rotations(10000.0, 96, longrope())
    short, long = short_factors(config), long_factors(config)
    assert short is not None
    assert long is not None
    assert (short.dtype, long.dtype) == (np.float32, np.float32)
    assert (short.tolist(), long.tolist()) == (list(SHORT), list(LONG))
    assert rope_factors(config) is None


def test_without_scaling_there_are_no_factors() -> None:
    config: Any = Rotations(10000.0, 96, None)
    assert rope_factors(config) is short_factors(config) is long_factors(config) is None


def test_longrope_with_factors_for_other_pairs_is_refused() -> None:
    with pytest.raises(GraphError, match="48 factors for 32 pairs"):
        inverse_frequencies(64, 10000.0, longrope())


# Towers of InternVL and Gemma 4, and audio encoders: what their configs state, what is refused.


PIXELS = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def read_tower(kind: str, **changes: Any) -> Read:
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
    found = names("internvl", read_tower("internvl", vision_config=large))
    assert {"v.blk.44.attn_q_norm.weight", "v.blk.0.ln1.weight", "v.class_embd"} <= found
    assert not {"v.blk.0.ln1.bias", "v.blk.0.attn_q.bias"} & found
    usual = names("internvl", read_tower("internvl"))
    assert {"v.blk.0.ln1.bias", "v.blk.0.attn_out.bias", "v.blk.0.ls1.weight"} <= usual
    assert "v.blk.0.attn_q_norm.weight" not in usual


@each(
    "changes, text",
    [
        ({"downsample_ratio": 0.3}, "must be 1 / an integer"),
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
        read_tower("internvl", **changes)


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
        read_tower(kind, **changes)


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
        read_tower("gemma4", **changes)


@each("kind", ["qwen2_audio", "voxtral", "audioflamingo3"])
def test_sizes_have_whispers_own_names_or_the_usual_ones(kind: str) -> None:
    usual = read_tower(kind, audio_config={"hidden_size": 64, "intermediate_size": 256})
    own = read_tower(kind, audio_config={"d_model": 64, "encoder_ffn_dim": 256})
    assert usual.config == own.config
    assert "a.blk.0.attn_k.bias" not in names(kind, own)
    assert {"a.conv1d.2.bias", "a.blk.0.attn_v.bias", "a.post_ln.weight"} <= names(kind, own)
