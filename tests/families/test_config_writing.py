"""Configs written in either convention, against what transformers reads and llama.cpp's script."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

import small_models
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.written import model_type_of, to_gguf, to_hugging_face
from weightctl.system.registry import load
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.families.family import Family, Name

Document = dict[str, Any]

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 4096,
    "short_factor": [round(1 + n / 48, 4) for n in range(48)],
    "long_factor": [1.08 + n for n in range(48)],
}  # fmt: skip
DOCUMENTS: dict[str, Document] = {
    "llama": {"model_type": "llama"},
    "smollm": {
        "model_type": "llama", "hidden_size": 576, "num_attention_heads": 9, "rms_norm_eps": 1e-5,
        "num_key_value_heads": 3, "rope_theta": 100000, "tie_word_embeddings": True,
        "vocab_size": 49152, "num_hidden_layers": 30, "intermediate_size": 1536,
    },
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama with short heads": {"model_type": "llama", "head_dim": 64},
    "llama linear": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    },
    "llama3": {
        "model_type": "llama", "max_position_embeddings": 131072, "num_key_value_heads": 8,
        "rope_parameters": LLAMA3,
    },
    "llama yarn": {
        "model_type": "llama", "max_position_embeddings": 65536,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 16.0, "beta_fast": 24.0, "beta_slow": 2.0,
            "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
        },
    },
    "llama yarn of another amplitude": {
        "model_type": "llama",
        "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512,
            "attention_factor": 0.75, "beta_fast": 32.0, "beta_slow": 1.0, "rope_theta": 10000.0,
        },
    },
    "mistral": {"model_type": "mistral", "sliding_window": 4096},
    "mistral nemo": {
        "model_type": "mistral", "sliding_window": 1024, "head_dim": 128, "hidden_size": 5120,
        "rope_theta": 1e6,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 3},
    "bert": {"model_type": "bert"},
    "minilm": {
        "model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6,
        "intermediate_size": 1536, "type_vocab_size": 3,
    },
    "gpt2": {"model_type": "gpt2"},
    "gpt2 with an output": {"model_type": "gpt2", "n_inner": 99, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "rope_theta": 1e6},
    "qwen3": {"model_type": "qwen3", "head_dim": 64, "num_key_value_heads": 8},
    "qwen3moe": {
        "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 64,
        "moe_intermediate_size": 256, "norm_topk_prob": True,
    },
    "gemma2": {"model_type": "gemma2", "query_pre_attn_scalar": 256, "sliding_window": 64},
    "gemma3": {
        "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 16,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        },
    },
    "phi3": {"model_type": "phi3", "sliding_window": 2047},
    "phi4": {"model_type": "phi3", "sliding_window": None, "num_key_value_heads": 8},
    "phi3 long": {
        "model_type": "phi3", "max_position_embeddings": 131072, "rope_parameters": LONGROPE,
        "original_max_position_embeddings": 4096,
    },
    "phi4 mini": {
        "model_type": "phi3", "max_position_embeddings": 131072, "num_attention_heads": 24,
        "rope_parameters": LONGROPE | {"partial_rotary_factor": 0.75},
        "original_max_position_embeddings": 4096,
    },
}  # fmt: skip

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


def find_family(document: Document) -> Family:
    families: list[Family] = [load(reference) for reference in FAMILIES.values()]
    return next(family for family in families if document["model_type"] in family.model_types)


def fields_of(document: Document) -> Any:
    return from_hugging_face(find_family(document), document, "config.json").fields


def made_in_gguf(family: Family, config: Any) -> list[tuple[Name, Any]]:
    made = [(line, line.made(config)) for line in family.names if line.made is not None]
    return [(line, numbers) for line, numbers in made if numbers is not None]


def described(family: Family, fields: Any) -> dict[str, MetadataValue]:
    name = {"general.architecture": MetadataValue("string", family.gguf_name)}
    return name | to_gguf(family, fields)


def crossed(document: Document) -> Document:
    """Return a config.json from the metadata that were made of one."""
    family = find_family(document)
    config = from_hugging_face(family, document, "config.json").config
    metadata = described(family, fields_of(document))
    factors = made_in_gguf(family, config)
    names = [tensor.gguf for tensor in family.tensors(config) if tensor.gguf]
    names += [f"{line.gguf}.weight" for line, _ in factors]
    rows = {
        "token_embd.weight": getattr(config, "vocabulary", 1),
        "token_types.weight": getattr(config, "token_types", 1),
    }
    tensors = {name: TensorInfo(name, (rows.get(name, 1), 1), ENCODINGS["F32"]) for name in names}
    fields = from_gguf(family, metadata, tensors, "model.gguf").fields
    for line, numbers in factors:
        assert line.add_fields is not None
        fields = line.add_fields(fields, numbers)
    return to_hugging_face(family, fields, model_type_of(family, fields))


def known(document: Document) -> Any:
    return AutoConfig.for_model(**json.loads(json.dumps(document)))


def head_dim(config: Any) -> int:
    """Return the length of heads as the modeling code finds it."""
    given = getattr(config, "head_dim", None)
    return given or config.hidden_size // config.num_attention_heads


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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_config_is_to_transformers_what_it_was_before_it_became_metadata(name: str) -> None:
    expected, found = known(DOCUMENTS[name]), known(crossed(DOCUMENTS[name]))
    theirs, ours = expected.to_dict(), found.to_dict()
    assert {k: v for k, v in ours.items() if k not in UNREAD} == {
        k: v for k, v in theirs.items() if k not in UNREAD
    }
    assert head_dim(found) == head_dim(expected)
    assert rotations(found) == rotations(expected)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_config_that_is_written_is_read_as_the_same(name: str) -> None:
    family, document = find_family(DOCUMENTS[name]), DOCUMENTS[name]
    config = from_hugging_face(family, document, "config.json").config
    written = to_hugging_face(family, fields_of(document), document["model_type"])
    assert from_hugging_face(family, written, "config.json").config == config
    kind = family.model_types[document["model_type"]]
    assert written["architectures"] == [kind.class_name]


@pytest.mark.parametrize("scaling", [None, "linear", "yarn"])
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
    for reference in FAMILIES.values():
        family: Family = load(reference)
        # Today's llama.cpp reads it no more than its constants have it.
        keys = {key.gguf.format(arch="ARCH") for key in family.keys if key.written is not False}
        assert keys - {""} <= known_keys


def test_older_transformers_finds_rotations_where_it_looks() -> None:
    document = DOCUMENTS["llama3"]
    written = to_hugging_face(find_family(document), fields_of(document), "llama")
    assert written["rope_theta"] == 500000.0
    assert written["rope_scaling"] == {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    plain = to_hugging_face(find_family(document), fields_of(DOCUMENTS["llama"]), "llama")
    assert "rope_scaling" not in plain


def test_a_llama_with_a_window_is_a_mistral() -> None:
    family: Family = load(FAMILIES["llama"])
    fields = dict(fields_of(DOCUMENTS["llama"]))
    assert model_type_of(family, fields) == "llama"
    assert model_type_of(family, fields | {"sliding_window": 16}) == "mistral"
    with pytest.raises(
        ArchitectureError,
        match="`llama` cannot have `sliding_window` `16`, and `mistral` cannot have "
        "`attention_bias` `True`",
    ):
        model_type_of(family, fields | {"sliding_window": 16, "attention_bias": True})


def test_a_window_that_is_none_is_written_where_none_means_another() -> None:
    family: Family = load(FAMILIES["llama"])
    document = {"model_type": "mistral", "sliding_window": None}
    assert to_hugging_face(family, fields_of(document), "mistral")["sliding_window"] is None
    phi = to_gguf(load(FAMILIES["phi3"]), fields_of(DOCUMENTS["phi4"]))
    assert phi["phi3.attention.sliding_window"] == MetadataValue("u32", 0)


def test_a_word_for_an_activation_is_the_familys_own() -> None:
    for name, key, word in (
        ("gpt2", "activation_function", "gelu_new"),
        ("bert", "hidden_act", "gelu"),
        ("llama", "hidden_act", "silu"),
        ("gemma2", "hidden_activation", "gelu_pytorch_tanh"),
    ):
        assert crossed(DOCUMENTS[name])[key] == word


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "llama",
            {"activation": "relu"},
            r"`activation` is `'relu'`, but llama\.cpp would read `'silu'`",
        ),
        ("llama", {"layers": 0}, "`llama.block_count` is `0`"),
        ("llama", {"hidden": "many"}, "`llama.embedding_length` is `'many'`"),
        ("llama yarn", {"scaling.truncate": False}, "`truncate`"),
        ("gemma2", {"attention_softcap": None}, "`attention_softcap` is `None`"),
    ],
)
def test_what_llama_cpp_would_run_otherwise_is_not_a_gguf(
    name: str, changes: Document, message: str
) -> None:
    fields = fields_of(DOCUMENTS[name]) | changes
    with pytest.raises(ArchitectureError, match=message) as caught:
        to_gguf(find_family(DOCUMENTS[name]), fields)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"rope_dimensions": 64}, "`rope_dimensions` is `64`"),
        ("llama", {"attention_bias": True}, "bias"),
        ("llama", {"has_rope_factors": True}, "`has_rope_factors` is `True`"),
        (
            "llama",
            {"activation": "tanh"},
            ("`hidden_act` is `'tanh'`, which the key does not support"),
        ),
        (
            "phi3 long",
            {"scaling.short_factors": ()},
            (
                "has 0 values in `short_factor` and 48 in `long_factor` for 48 pairs of rotary "
                "dimensions"
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


def test_a_factor_of_longrope_is_kept_as_what_it_does() -> None:
    document = dict(DOCUMENTS["phi3 long"])
    document["rope_parameters"] = {**document["rope_parameters"], "factor": 1}
    family = find_family(document)
    read = from_hugging_face(family, document, "config.json")
    written = to_hugging_face(family, read.fields, "phi3")
    assert read.config.rope_scaling.amplitude == 1
    assert from_hugging_face(family, written, "config.json").config == read.config


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
