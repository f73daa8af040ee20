"""Configs and names of Gemma 2 and 3: in both naming conventions, against those of transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transformers import AutoConfig, Gemma3Config, Gemma3ForConditionalGeneration

import small_models
from arrays import weights_of
from each import each
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.rope_scaling import RopeScaling
from weightctl.families.windowed_layers import WORDS
from weightctl.families.written import to_gguf, to_hugging_face
from weightctl.nn.models import build_network
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.families.configs import Read
    from weightctl.families.family import Family

LINEAR = {"rope_type": "linear", "factor": 8.0}
GEMMA_3_4B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "rope_scaling": LINEAR, "sliding_window": 1024,
    },
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152},
}  # fmt: skip
IRREGULAR = [*2 * ["full_attention"], "sliding_attention"]
DOCUMENTS: list[dict[str, Any]] = [
    {"model_type": "gemma2"},
    {"model_type": "gemma2", "hidden_size": 4608, "num_hidden_layers": 46, "head_dim": 128,
     "num_attention_heads": 32, "num_key_value_heads": 16, "query_pre_attn_scalar": 144,
     "intermediate_size": 36864, "hidden_act": "gelu_pytorch_tanh", "rope_theta": 20000.0},
    {"model_type": "gemma3_text"},
    {"model_type": "gemma3_text", "num_hidden_layers": 3, "vocab_size": 262144,
     "sliding_window": 512, "sliding_window_pattern": 6, "rope_scaling": None,
     "attn_logit_softcapping": None, "final_logit_softcapping": 12.0, "rope_theta": 1000000,
     "rope_local_base_freq": 10000, "max_position_embeddings": 32768},
    {"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window_pattern": 3,
     "rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": LINEAR},
    {"model_type": "gemma3_text", "num_hidden_layers": 4, "sliding_window_pattern": 1,
     "rope_parameters": {"full_attention": LINEAR | {"rope_theta": 3e5}}},
    GEMMA_3_4B,
]  # fmt: skip
FIELDS = {
    "vocabulary": "vocab_size", "context": "max_position_embeddings", "hidden": "hidden_size",
    "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "tied": "tie_word_embeddings",
    "intermediate": "intermediate_size", "norm_epsilon": "rms_norm_eps",
    "query_scalar": "query_pre_attn_scalar", "attention_softcap": "attn_logit_softcapping",
    "softcap": "final_logit_softcapping", "sliding_window": "sliding_window",
}  # fmt: skip


def find_family(document: dict[str, Any]) -> Family:
    return FAMILIES[document["model_type"].removesuffix("_text")].load()


def read(document: dict[str, Any]) -> Read:
    return from_hugging_face(find_family(document), document, "config.json")


def known(document: dict[str, Any]) -> Any:
    return AutoConfig.for_model(**json.loads(json.dumps(document))).get_text_config()


def metadata(name: str, **changes: Any) -> dict[str, MetadataValue]:
    """Return what a small model's GGUF says at least."""
    keys = {
        "block_count": 3, "context_length": 128, "embedding_length": 64, "feed_forward_length": 96,
        "attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-6, "vocab_size": 96,
        "attention.key_length": 32,
    } | changes  # fmt: skip
    return {
        "general.architecture": MetadataValue("string", name),
        **{
            f"{name}.{key}": MetadataValue("f32" if isinstance(value, float) else "u32", value)
            for key, value in keys.items()
        },
    }


def from_metadata(name: str, **changes: Any) -> Any:
    return from_gguf(FAMILIES[name].load(), metadata(name, **changes), {}, "here").config


@each("document", DOCUMENTS, ids=str)
def test_what_config_json_says_and_leaves_out_is_as_transformers_has_it(
    document: dict[str, Any],
) -> None:
    made: Any = read(document).config
    expected = known(document)
    kinds = expected.layer_types
    for ours, theirs in FIELDS.items():
        if ours != "sliding_window" or "sliding_attention" in kinds:
            assert getattr(made, ours) == getattr(expected, theirs), ours
    assert made.activation == "gelu_tanh"
    assert made.windowed_layers == tuple(kind == "sliding_attention" for kind in kinds)
    rope = expected.rope_parameters
    everywhere = rope.get("full_attention", rope)
    assert made.rope_base == everywhere["rope_theta"]
    if "full_attention" in rope:
        assert made.local_rope_base == rope["sliding_attention"]["rope_theta"]
    is_linear = everywhere["rope_type"] == "linear"
    assert made.rope_scaling == (RopeScaling(kind="linear", factor=8.0) if is_linear else None)


@each("document", DOCUMENTS, ids=str)
def test_what_transformers_writes_is_read_as_what_it_read(
    document: dict[str, Any], tmp_path: Path
) -> None:
    AutoConfig.for_model(**json.loads(json.dumps(document))).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert read(written).config == read(document).config


@each("document", DOCUMENTS, ids=str)
def test_a_config_goes_to_either_convention_and_comes_back(document: dict[str, Any]) -> None:
    family, found = find_family(document), read(document)
    made: Any = found.config
    name = {"general.architecture": MetadataValue("string", family.name)}
    again: Any = from_gguf(family, name | to_gguf(family, found.fields), {}, "here").config
    assert again.norm_offset == 0
    for field in made.__dataclass_fields__.keys() - {"norm_offset"}:
        assert getattr(again, field) == getattr(made, field), field
    kind = next(iter(family.model_types))
    written = to_hugging_face(family, found.fields, kind)
    assert written["architectures"] == [family.model_types[kind].class_name]
    assert from_hugging_face(family, written, "here").config == made
    ours, theirs = known(written).to_dict(), known(document).to_dict()
    for rope in ours["rope_parameters"].values():
        if isinstance(rope, dict):
            # That of layers that are not there is not filled in.
            rope.setdefault("rope_type", "default")
    alike = {"sliding_window", "sliding_window_pattern", "_sliding_window_pattern"}
    alike |= {"architectures", "use_bidirectional_attention", "hidden_act", "model_type"}
    for key in theirs.keys() - alike:
        assert ours.get(key) == theirs[key], key


def test_what_gguf_leaves_out_is_as_llama_cpp_takes_it() -> None:
    made = from_metadata("gemma2")
    assert (made.attention_softcap, made.softcap, made.sliding_window) == (50.0, 30.0, 4096)
    assert made.windowed_layers == (True, False, True)
    assert (made.query_scalar, made.norm_offset, made.tied) == (32, 0.0, True)
    assert made.kv_heads == 4
    made = from_metadata("gemma3")
    assert (made.attention_softcap, made.softcap) == (None, None)
    assert made.windowed_layers == (False, False, False)
    made = from_metadata("gemma3", **{"attention.sliding_window": 512, "block_count": 7})
    assert (made.sliding_window, made.local_rope_base) == (512, 10000.0)
    assert made.windowed_layers == (*5 * (True,), False, True)
    made = from_metadata("gemma3", **{"attention.sliding_window": 0})
    assert not any(made.windowed_layers)


@each("name, layers", [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_of_a_family_scales_queries_by_its_width(name: str, layers: int) -> None:
    assert from_metadata(name, block_count=layers).query_scalar == 16
    assert from_metadata(name, block_count=layers - 1).query_scalar == 32


@each("name", ["gemma2", "gemma3_text"])
def test_weights_in_gguf_contain_any_other_scale_of_queries(name: str) -> None:
    document = {"model_type": name, "query_pre_attn_scalar": 100}
    family, found = find_family(document), read(document)
    named = {"general.architecture": MetadataValue("string", family.name)}
    again: Any = from_gguf(family, named | to_gguf(family, found.fields), {}, "here").config
    assert again.query_scalar == again.head_dim == 256
    changes = [each.change for each in family.tensors(found.config) if each.layer == 0]
    steps = [str(each.to_gguf(found.config)) for each in changes if each is not None]
    assert sum("times 1.6" in step for step in steps) == 1


@each("name", ["softcap", "attention_softcap"])
def test_a_gemma_2_without_a_cap_has_one_in_gguf_that_bounds_nothing(name: str) -> None:
    document = {"model_type": "gemma2", "query_pre_attn_scalar": 256, FIELDS[name]: None}
    family, found = find_family(document), read(document)
    written = to_gguf(family, found.fields)
    caps = [value.content for key, value in written.items() if key.endswith("softcapping")]
    assert caps.count(1e6) == 1
    named = {"general.architecture": MetadataValue("string", "gemma2")}
    again: Any = from_gguf(family, named | written, {}, "here").config
    assert getattr(again, name) is None
    assert to_hugging_face(family, found.fields, "gemma2")[FIELDS[name]] is None


@each("name", ["gemma2", "gemma3_text"])
def test_any_other_pattern_of_windows_goes_to_gguf_as_flags(name: str) -> None:
    document: dict[str, Any] = {
        "model_type": name, "num_hidden_layers": 3, "layer_types": IRREGULAR,
        "query_pre_attn_scalar": 256,
    }  # fmt: skip
    family, found = find_family(document), read(document)
    written = to_gguf(family, found.fields)
    flags = written[f"{family.name}.attention.sliding_window_pattern"]
    assert flags == MetadataValue("array[bool]", [False, False, True])
    named = {"general.architecture": MetadataValue("string", family.name)}
    again: Any = from_gguf(family, named | written, {}, "here").config
    assert again.windowed_layers == (False, False, True)


@each("layers", range(1, 9))
@each("period", range(1, 9))
def test_any_regular_pattern_of_windows_goes_to_gguf(period: int, layers: int) -> None:
    windowed = [(number + 1) % period != 0 for number in range(layers)]
    document: dict[str, Any] = {
        "model_type": "gemma3_text",
        "num_hidden_layers": layers,
        "layer_types": WORDS.write(windowed),
    }
    family, found = find_family(document), read(document)
    name = {"general.architecture": MetadataValue("string", family.name)}
    again: Any = from_gguf(family, name | to_gguf(family, found.fields), {}, "here").config
    assert list(again.windowed_layers) == windowed


@each(
    "document, field",
    [
        ({"model_type": "gemma2", "tie_word_embeddings": False}, "tied"),
        ({"model_type": "gemma3_text", "hidden_activation": "silu"}, "activation"),
    ],
    ids=str,
)  # fmt: skip
def test_what_gguf_has_no_word_for_is_refused(document: dict[str, Any], field: str) -> None:
    with pytest.raises(ArchitectureError, match=f"cannot describe .*`{field}`"):
        to_gguf(find_family(document), read(document).fields)


@each(
    "document, message",
    [
        ({"model_type": "gemma2", "attention_bias": True}, "biases"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "later tokens"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 5.0}, "soft caps"),
        (
            {"model_type": "gemma3_text", "layer_types": IRREGULAR},
            "26 layers, but the config states attention types for 3 layers",
        ),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, "must be an integer"),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": LINEAR}},
            "RoPE scaling of",
        ),
        (
            {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "`yarn` scaling in a model with sliding window layers is not supported",
        ),
        (
            {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "llama3", "factor": 4.0}},
            "it must be one of `default`, `linear`, `yarn`",
        ),
        ({"model_type": "gemma3", "text_config": 3}, "not a JSON object"),
        (
            {"model_type": "gemma2", "num_key_value_heads": 3},
            ("8 query heads cannot be divided evenly among 3 KV heads"),
        ),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        read(document)


def test_rotations_of_layers_with_a_window_are_gemma_3s_alone() -> None:
    with pytest.raises(
        ArchitectureError,
        match="separate RoPE settings for sliding window layers are not supported",
    ):
        from_metadata("gemma2", **{"rope.freq_base_swa": 500.0})


def multimodal() -> Any:
    """Return a random Gemma 3 that sees."""
    text = small_models.gemma3(num_hidden_layers=1, vocab_size=104).config.to_dict()
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "image_size": 8,
        "num_attention_heads": 2, "patch_size": 2,
    }  # fmt: skip
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    return Gemma3ForConditionalGeneration(config)


def test_the_text_of_a_multimodal_model_is_known_as_transformers_saves_it(tmp_path: Path) -> None:
    from weightctl import open_weights

    model = multimodal()
    model.save_pretrained(tmp_path)
    found = recognize(open_weights(tmp_path))
    assert (found.missing, found.unexpected) == ([], [])
    assert (found.family.name, found.config.vocabulary) == ("gemma3", 104)
    assert set(found.weights) == set(build_network(found).raw_state_dict()) - {"output.weight"}


@each(
    "layers, head",
    [
        ("language_model.model.", "language_model.lm_head."),
        ("model.language_model.", "lm_head."),
        ("language_model.", "lm_head."),
        ("model.", "lm_head."),
    ],
)
@each("seeing", ["", "model."])
def test_the_text_of_a_multimodal_model_is_known_by_all_its_names(
    layers: str, head: str, seeing: str
) -> None:
    model = small_models.gemma3(num_hidden_layers=1, tie_word_embeddings=False)
    arrays = {
        f"{seeing}vision_tower.vision_model.head.probe": np.ones(3, np.float32),
        f"{seeing}multi_modal_projector.mm_input_projection_weight": np.ones((3, 3), np.float32),
    }
    for name, array in small_models.arrays(model).items():
        is_head = name.startswith("lm_head.")
        was, now = ("lm_head.", head) if is_head else ("model.", layers)
        arrays[now + name.removeprefix(was)] = array
    document = {
        "model_type": "gemma3",
        "text_config": model.config.to_dict(),
        "tie_word_embeddings": False,
    }
    found = recognize(weights_of(arrays), document)
    assert (found.missing, found.unexpected) == ([], [])
    assert found.weights["output.weight"].name == f"{head}weight"


def test_older_transformers_gets_both_rotations_in_its_own_words() -> None:
    found = read(DOCUMENTS[4])
    written = to_hugging_face(find_family(DOCUMENTS[4]), found.fields, "gemma3_text")
    assert (written["rope_theta"], written["rope_local_base_freq"]) == (5e5, 2e4)
    assert written["rope_scaling"] == LINEAR
    del written["rope_parameters"]
    assert read(written).config == found.config
