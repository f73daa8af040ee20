"""Configs and names of Gemma 2 and 3: in both naming conventions, against those of transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

import small_models
from arrays import weights_of
from each import each
from family_cases import make_checkpoint, run_transformers
from lazy import load_file, save_file, torch, transformers
from runs import executed
from small_models import logits, tokens_below
from weightctl import DType, convert, open_weights, shard
from weightctl.device import CPU
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.families.config_writing import to_gguf, to_hugging_face
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.layers import WORDS
from weightctl.families.rope_factors import RopeScaling
from weightctl.graph import Graph, TensorType
from weightctl.nn.across_ranks import parallel
from weightctl.nn.models import build_network
from weightctl.nn.recurrent.linear_unit import RealGatedRecurrence
from weightctl.split import Grid
from weightctl.system.registry import load
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.families import RecognizedModel
    from weightctl.families.configs import Read
    from weightctl.families.family import Family

    Floats = NDArray[np.float32]


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
    return transformers.AutoConfig.for_model(**json.loads(json.dumps(document))).get_text_config()


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
    transformers.AutoConfig.for_model(**json.loads(json.dumps(document))).save_pretrained(tmp_path)
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
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4
    )
    return transformers.Gemma3ForConditionalGeneration(config)


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


# Gemma 2 and 3 say what transformers' do, from either naming convention.


# Longer than the windows.
TOKENS = tokens_below(96, 2, 40)
ARCHS = {"gemma2": gguf.MODEL_ARCH.GEMMA2, "gemma3": gguf.MODEL_ARCH.GEMMA3}


def run(checkpoint: RecognizedModel, **changes: Any) -> Floats:
    """Return the logits of a checkpoint, or of what it would be with another config."""
    config: Any = checkpoint.config
    module = load(checkpoint.family.module)(replace(config, **changes), DType.float32)
    (output,) = executed(module.graph(), TOKENS, weights=checkpoint.weights)
    return output


@cache
def usual_logits(name: str) -> tuple[RecognizedModel, Floats]:
    """Return a checkpoint of a family and its logits."""
    checkpoint = small_models.checkpoint(getattr(small_models, name)())
    return checkpoint, run(checkpoint)


def distance(found: Floats, expected: Floats) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


def write(path: Path, name: str, model: Any) -> None:
    """Write a model as llama.cpp's `conversion/gemma.py` does."""
    config, writer = model.config, gguf.GGUFWriter(path, name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window(config.sliding_window)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    else:
        rope = config.rope_parameters["full_attention"]
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    table = gguf.get_tensor_name_map(ARCHS[name], config.num_hidden_layers)
    for given, array in small_models.arrays(model).items():
        renamed = table.get_name(given, (".weight",))
        assert renamed is not None
        writer.add_tensor(renamed, array + 1 if given.endswith("norm.weight") else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_llama_cpp_has_it(name: str) -> Any:
    """Return a model that needs no key that llama.cpp's script does not write."""
    if name == "gemma2":
        return small_models.gemma2()
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    return small_models.gemma3(rope_parameters=rope, sliding_window_pattern=6, num_hidden_layers=7)


@each("name", ARCHS)
def test_a_checkpoint_of_transformers_says_what_it_says_there(name: str) -> None:
    model = getattr(small_models, name)()
    checkpoint = small_models.checkpoint(model)
    assert (checkpoint.missing, checkpoint.unexpected) == ([], [])
    assert distance(run(checkpoint), logits(model, TOKENS)) < 1e-4


@each("name", ARCHS)
def test_a_gguf_with_the_keys_of_llama_cpps_script_says_the_same(name: str, tmp_path: Path) -> None:
    model = as_llama_cpp_has_it(name)
    write(tmp_path / "model.gguf", name, model)
    checkpoint = recognize(open_weights(tmp_path / "model.gguf"))
    assert (checkpoint.family.name, checkpoint.convention) == (name, "gguf")
    assert (checkpoint.missing, checkpoint.unexpected) == ([], [])
    assert distance(run(checkpoint), logits(model, TOKENS)) < 1e-4


@each(
    "name, changes",
    [
        ("gemma2", {"query_pre_attn_scalar": 20}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("gemma2", {"layer_types": ["full_attention", *3 * ["sliding_attention"]]}),
        ("gemma2", {"tie_word_embeddings": False}),
        ("gemma3", {"query_pre_attn_scalar": 20, "final_logit_softcapping": 1.0}),
        ("gemma3", {"sliding_window_pattern": 1}),
        ("gemma3", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    ],
    ids=str,
)
def test_what_a_config_may_change_changes_the_logits_alike(
    name: str, changes: dict[str, Any]
) -> None:
    model = getattr(small_models, name)(**changes)
    assert distance(run(small_models.checkpoint(model)), logits(model, TOKENS)) < 1e-4


@each(
    "name, changes",
    [
        ("gemma2", {"attention_softcap": None}),
        ("gemma2", {"softcap": None}),
        ("gemma2", {"query_scalar": 64}),
        ("gemma2", {"sliding_window": 9}),
        ("gemma2", {"windowed_layers": (False, True, False, True)}),
        ("gemma2", {"norm_offset": 0.0}),
        ("gemma3", {"local_rope_base": 50000.0}),
        ("gemma3", {"rope_scaling": None}),
        ("gemma3", {"sliding_window": 9}),
        ("gemma3", {"norm_offset": 0.0}),
    ],
    ids=str,
)
def test_each_part_of_the_config_is_felt(name: str, changes: dict[str, Any]) -> None:
    checkpoint, usual = usual_logits(name)
    assert distance(run(checkpoint, **changes), usual) > 1e-3


@each("name", ARCHS)
def test_embeddings_are_scaled_by_a_number_of_the_activations_dtype(name: str) -> None:
    # The root of 80 is 8.944, and 8.9375 in bfloat16.
    model = getattr(small_models, name)(hidden_size=80, num_hidden_layers=1).to(torch.bfloat16)
    checkpoint = small_models.checkpoint(model)
    module: Any = build_network(checkpoint, DType.bfloat16)
    module.name_weights()
    with Graph("embedded", module.input_types()) as graph:
        graph.output(module.begin(*graph.inputs)[0])
    (found,) = executed(graph, TOKENS, weights=checkpoint.weights)
    with torch.inference_mode():
        expected = model.model.embed_tokens(torch.from_numpy(TOKENS)).float().numpy()
    assert (found.astype(np.float32) == expected).all()


# Gemma 3n with other sizes than llama.cpp has, and the text model of a multimodal checkpoint.


TEN = [3, 90, 17, 95, 4, 61, 88, 5, 20, 7]
LOCAL, GLOBAL = "sliding_attention", "full_attention"
SIZES: dict[str, Any] = {
    "vocab_size": 100, "vocab_size_per_layer_input": 80, "hidden_size": 32, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4,
    "layer_types": [LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL], "max_position_embeddings": 64,
}  # fmt: skip
# What llama.cpp has one value of.
OTHER: dict[str, Any] = {
    "altup_num_inputs": 3, "altup_active_idx": 1, "laurel_rank": 12,
    "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2,
    "intermediate_size": [48, 32, 64, 64, 32],
    "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.8, 0.0],
}  # fmt: skip
USUAL: dict[str, Any] = {
    "num_kv_shared_layers": 0, "intermediate_size": 64, "activation_sparsity_pattern": [0.95] * 5,
}  # fmt: skip


def make(path: Path, **stated: Any) -> NDArray[np.float32]:
    """Write a checkpoint, in which some tokens have no embeddings for layers; return its logits."""
    config = transformers.Gemma3nTextConfig(**SIZES | stated)
    torch.manual_seed(0)
    model = transformers.Gemma3nForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() > 1:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_((1.0 if name.endswith("norm.weight") else 0.0) + 0.2 * noise)
    model.save_pretrained(path)
    return run_transformers(model, TEN)


def run_both(path: Path, grid: Grid | None = None) -> NDArray[np.float32]:
    found = recognize(open_weights(path))
    network = build_network(found)
    if grid is not None:
        network = parallel(network, [CPU] * grid.ranks, grid=grid)
    (output,) = executed(network.graph(), np.array([TEN]), weights=found.weights)
    logits: NDArray[np.float32] = output[0]
    return logits


@each("grid", [None, Grid(2)])
def test_sizes_that_llama_cpp_does_not_have_are_computed_as_transformers_does(
    grid: Grid | None, tmp_path: Path
) -> None:
    expected = make(tmp_path / "model", **OTHER)
    assert np.abs(run_both(tmp_path / "model", grid) - expected).max() < 1e-4


@each(
    "stated, reason",
    [
        (OTHER, "its `laurel_rank` is 12, and llama.cpp has only 64"),
        (USUAL | {"hidden_size_per_layer_input": 8}, "its `layer_input` is 8"),
        (USUAL | {"altup_active_idx": 1}, "its `active_stream` is 1"),
        (USUAL | {"final_logit_softcapping": 20.0}, "its `softcap` is 20.0"),
        (USUAL | {"intermediate_size": [64, 64, 32, 32, 32]}, "MLPs of different widths"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_not_converted(
    stated: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make(tmp_path / "model", **stated)
    with pytest.raises(ArchitectureError) as caught:
        convert(tmp_path / "model", tmp_path / "model.gguf", to="gguf")
    assert reason in str(caught.value)


def test_projections_between_streams_are_in_the_stages_that_read_them(tmp_path: Path) -> None:
    make(tmp_path / "model", **OTHER)
    shard(tmp_path / "model", tmp_path / "ranks", pp=2)
    stages = [
        " ".join(name for name, _ in open_weights(tmp_path / "ranks" / f"rank-{rank}").items())
        for rank in range(2)
    ]
    for part, stage in (("altup_projections", 0), ("altup_unembed_projections", 1)):
        assert [f"model.{part}.1.weight" in names for names in stages] == [
            stage == rank for rank in range(2)
        ]


def test_the_text_model_of_a_multimodal_checkpoint_is_the_same_model(tmp_path: Path) -> None:
    expected = make(tmp_path / "model", **USUAL)
    file, config = tmp_path / "model" / "model.safetensors", tmp_path / "model" / "config.json"
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(file).items()
    }
    tensors["model.vision_tower.timm_model.conv_stem.conv.weight"] = torch.ones(4, 4)
    tensors["model.embed_audio.embedding.weight"] = torch.ones(4, 4)
    save_file(tensors, file, {"format": "pt"})
    text = json.loads(config.read_text())
    document = {"model_type": "gemma3n", "text_config": text, "vision_config": {}}
    config.write_text(json.dumps(document))
    assert np.abs(run_both(tmp_path / "model") - expected).max() < 1e-4
    convert(tmp_path / "model", tmp_path / "model.gguf", to="gguf", dtype="f32")
    assert np.abs(run_both(tmp_path / "model.gguf") - expected).max() < 1e-4


@pytest.mark.long
def test_layers_that_share_keys_have_copies_of_them_in_gguf_only(tmp_path: Path) -> None:
    model, gguf = tmp_path / "model", tmp_path / "model.gguf"
    types = [LOCAL, GLOBAL] * 10 + [GLOBAL, LOCAL]
    shared: dict[str, Any] = {"num_hidden_layers": 22, "layer_types": types,
                              "num_kv_shared_layers": 2, "intermediate_size": 64}  # fmt: skip
    make(model, **shared)
    # Older checkpoints have such tensors, which nothing reads.
    file = model / "model.safetensors"
    unused = {"model.layers.20.self_attn.k_proj.weight": torch.ones(16, 32)}
    save_file(load_file(file) | unused, file, {"format": "pt"})
    convert(model, gguf, to="gguf", dtype="f32")
    stored = open_weights(gguf)
    for layer, source in ((20, 19), (21, 18)):
        for part in ("attn_k", "attn_v", "attn_k_norm"):
            one, other = (
                stored[f"blk.{number}.{part}.weight"].data().to_numpy()
                for number in (layer, source)
            )
            assert np.array_equal(one, other)
    assert np.abs(run_both(gguf) - run_both(model)).max() < 1e-4
    convert(gguf, tmp_path / "back", dtype="f32")
    names = {name for name, _ in open_weights(tmp_path / "back").items()}
    assert names == set(load_file(file)) - set(unused)


# Gemma 4 without encoders (`gemma4_unified`): GGUF has it as any other Gemma 4.


UNIFIED: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "global_head_dim": 64,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 4, "max_position_embeddings": 64,
}  # fmt: skip


def test_the_text_model_is_computed_as_transformers_does_and_comes_back_from_gguf(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    config = transformers.Gemma4UnifiedTextConfig(**UNIFIED)
    model = transformers.Gemma4UnifiedForCausalLM._from_config(
        config, attn_implementation="eager"
    ).eval()
    model.save_pretrained(tmp_path / "model")
    expected = run_transformers(model, TEN)
    convert(tmp_path / "model", tmp_path / "model.gguf", to="gguf")
    for path in (tmp_path / "model", tmp_path / "model.gguf"):
        found = recognize(open_weights(path))
        network = build_network(found)
        (ours,) = executed(network.graph(), np.array([TEN]), weights=found.weights)
        assert np.abs(ours[0] - expected).max() < 1e-4
    convert(tmp_path / "model.gguf", tmp_path / "back")
    back: Any = transformers.Gemma4ForCausalLM.from_pretrained(
        tmp_path / "back", attn_implementation="eager"
    )
    assert np.abs(run_transformers(back.eval(), TEN) - expected).max() < 1e-4


def test_the_text_model_of_a_multimodal_checkpoint_is_found(tmp_path: Path) -> None:
    model: Any = transformers.Gemma4UnifiedForConditionalGeneration(
        transformers.Gemma4UnifiedConfig(text_config=UNIFIED)
    )
    model.save_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    found = recognize(open_weights(tmp_path))
    found.check()
    assert (stated["model_type"], found.family.name) == ("gemma4_unified", "gemma4")
    assert found.fields["layer_input"] == 0


# What is special about RecurrentGemma's config, and its recurrence at its limits.


FAMILY = FAMILIES["recurrent_gemma"].load()


def read_recurrent(**keys: Any) -> Any:
    return from_hugging_face(FAMILY, {"model_type": "recurrent_gemma", **keys}, "here")


def test_types_of_layers_repeat_and_are_written_once() -> None:
    found = read_recurrent(num_hidden_layers=5, block_types=["recurrent", "attention"])
    assert found.config.attention_layers == (False, True, False, True, False)
    written = to_hugging_face(FAMILY, found.fields, "recurrent_gemma")
    assert written["block_types"] == ["recurrent", "attention"]


@each("hidden", [256, 2560, 4096, 7920])
def test_the_factor_of_the_embedding_is_rounded_as_transformers_does(hidden: int) -> None:
    expected = float(torch.tensor(hidden**0.5, dtype=torch.bfloat16))
    found = read_recurrent(hidden_size=hidden, num_attention_heads=10 if hidden % 10 == 0 else 8)
    assert found.config.embedding_scale == expected


@each(
    "keys, said",
    [
        ({"lru_width": 2561}, "the 2561 channels"),
        ({"block_types": ["recurrent", "ssm"]}, "`'ssm'`"),
        ({"block_types": []}, "block_types"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "no RoPE scaling"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ArchitectureError) as caught:
        read_recurrent(**keys)
    assert said in str(caught.value)


def test_convert_says_that_llama_cpp_does_not_run_it(crossed: Path, tmp_path: Path) -> None:
    source = make_checkpoint("recurrent_gemma", crossed).path
    report = convert(source, tmp_path / "model.gguf", dtype="f32")
    assert "llama.cpp does not run recurrent_gemma models" in [*report.notes]


@each("bias", [-200.0, 0.0, 200.0])
def test_states_that_do_not_fade_or_fade_at_once_are_numbers(bias: float) -> None:
    unit = RealGatedRecurrence(4, 4, blocks=2, kernel=2, activation="gelu_tanh")
    weights = {
        name: np.ones(tuple(map(int, weight.shape)), np.float32)
        for name, weight in unit.raw_state_dict().items()
    }
    weights["fade_gate.weight"] *= 0
    weights["fade_gate_bias.weight"] *= bias
    with Graph("unit", input_types=[TensorType(DType.float32, (1, 3, 4))]) as graph:
        graph.output(unit(graph.inputs[0]))
    (output,) = executed(graph, np.ones((1, 3, 4), np.float32), weights=weights)
    assert np.isfinite(output).all()
    # What the first position adds is not scaled.
    assert np.abs(output[0, 0]).min() > 1
