"""Configs written in either convention, against what transformers reads and llama.cpp's script."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import pytest
from transformers import AutoConfig

import small_models
from config_documents import DOCUMENTS, LLAMA3, Document, crossed, fields_of, find_family
from each import each
from weightctl import open_weights
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES
from weightctl.families.configs import from_hugging_face
from weightctl.families.written import model_type_of, to_gguf, to_hugging_face
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.families.family import Family


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


def known(document: Document) -> Any:
    return AutoConfig.for_model(**json.loads(json.dumps(document)))


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
    expected, found = known(DOCUMENTS[name]), known(crossed(DOCUMENTS[name]))
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
        # llama.cpp reads these of ModernBERT, MiMo, Qwen3.5, GLM-5 and DeepSeek-V4; the constants
        # of older releases of gguf lack them.
        newer = {
            "ARCH.hidden_activation", "ARCH.attention.value_scale",
            "ARCH.attention.recurrent_layers", "ARCH.hash_layer_count",
            *(f"ARCH.hyper_connection.{key}"
              for key in ("count", "epsilon", "sinkhorn_iterations")),
            *(f"ARCH.attention.{key}"
              for key in ("compress_ratios", "compress_rope_freq_base", "output_group_count",
                          "output_lora_rank")),
            *(f"ARCH.attention.indexer.{key}"
              for key in ("head_count", "key_length", "top_k", "types")),
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
