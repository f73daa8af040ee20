"""Qwen, Mixtral and Phi-3 in every form that their checkpoints have, against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import small_models
from arrays import weights_of
from each import each
from family_variants import draw_variant, make_variant
from lazy import transformers
from runs import executed
from small_models import checkpoint, in_gguf, logits, tokens_below
from weightctl import convert, open_weights, shard
from weightctl.errors import ArchitectureError, TensorSplitError
from weightctl.families import FAMILIES, recognize
from weightctl.families.config_writing import to_gguf, to_hugging_face
from weightctl.families.configs import from_hugging_face
from weightctl.nn.models import build_network
from weightctl.weights import WeightData
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from weightctl.families import RecognizedModel

PHI = FAMILIES["phi3"].load()
QWEN2 = FAMILIES["qwen2"].load()
QWEN3 = FAMILIES["qwen3"].load()


DENSE = {"qwen2": QWEN2, "qwen3": QWEN3}
MAKERS = {"qwen2": small_models.qwen2, "qwen3": small_models.qwen3}
WINDOWED: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 7}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
both = each("make", MAKERS.values(), ids=MAKERS)


def assert_same(found: RecognizedModel, model: Any, length: int = 20) -> None:
    """Ask that a checkpoint is whole and says what a model of transformers' does."""
    assert (found.missing, found.unexpected) == ([], [])
    tokens = tokens_below(96, 2, length)
    (ours,) = executed(build_network(found).graph(), tokens, weights=found.weights)
    assert np.abs(ours - logits(model, tokens)).max() < 1e-4


@both
@each(
    "variation",
    [
        {},
        {"tie_word_embeddings": True, "num_key_value_heads": 4},
        WINDOWED | {"max_window_layers": 1},
        WINDOWED | {"layer_types": MIXED},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
                             "original_max_position_embeddings": 32}},
    ],
    ids=["plain", "tied", "window in later layers", "window in some layers", "yarn"],
)  # fmt: skip
def test_a_qwen_as_transformers_has_it(make: Callable[..., Any], variation: dict[str, Any]) -> None:
    model = make(**variation)
    assert_same(checkpoint(model), model)


def test_a_qwen3_with_biases() -> None:
    model = small_models.qwen3(attention_bias=True)
    found = checkpoint(model)
    assert "layers.2.attention.o.bias" in found.weights
    assert_same(found, model)


def test_the_window_of_a_qwen_hides_what_is_before_it() -> None:
    model, tokens = small_models.qwen2(**WINDOWED, max_window_layers=0), tokens_below(96)
    found = checkpoint(model)
    (ours,) = executed(build_network(found).graph(), tokens, weights=found.weights)
    without = checkpoint(small_models.qwen2())
    (all_seen,) = executed(build_network(without).graph(), tokens, weights=without.weights)
    assert np.abs(ours - all_seen)[:, :7].max() < 1e-4
    assert np.abs(ours - all_seen)[:, 7:].max() > 1e-3


@both
@each("is_tied", [False, True])
def test_a_qwen_in_gguf_has_its_rows_in_transformers_order(
    make: Callable[..., Any], is_tied: bool
) -> None:
    model = make(tie_word_embeddings=is_tied)
    length: dict[str, Any] = (
        {"attention__key_length": 32} if model.config.model_type == "qwen3" else {}
    )
    found = in_gguf(model, **length)
    assert found.convention == "gguf"
    assert_same(found, model)
    assert found.config == checkpoint(model).config


def test_a_qwen_with_windows_crosses_to_gguf_and_back() -> None:
    model = small_models.qwen2(**WINDOWED, layer_types=MIXED)
    found = checkpoint(model)
    metadata = to_gguf(found.family, found.fields)
    assert metadata["qwen2.attention.sliding_window"] == ("u32", 7)
    assert metadata["qwen2.attention.sliding_window_pattern"] == (
        "array[bool]",
        [True, False, True],
    )
    crossed = in_gguf(
        model, attention__sliding_window=7, attention__sliding_window_pattern=[True, False, True]
    )
    assert_same(crossed, model)
    document = to_hugging_face(crossed.family, crossed.fields, "qwen2")
    assert document["architectures"] == ["Qwen2ForCausalLM"]
    back: Any = transformers.AutoConfig.for_model(**document)
    assert (back.sliding_window, back.layer_types) == (7, MIXED)


def test_of_a_qwen_without_windows_gguf_says_nothing_of_them() -> None:
    found = checkpoint(small_models.qwen3())
    assert not [name for name in to_gguf(found.family, found.fields) if "sliding" in name]


def test_a_qwen2_without_biases_is_none_to_transformers() -> None:
    model = small_models.qwen2()
    for layer in model.model.layers:
        for part in ("q_proj", "k_proj", "v_proj"):
            getattr(layer.self_attn, part).register_parameter("bias", None)
    found = in_gguf(model)
    assert_same(found, model)
    with pytest.raises(ArchitectureError, match="`attention_bias` is `False`"):
        to_hugging_face(found.family, found.fields, "qwen2")


DOCUMENTS: list[dict[str, Any]] = [
    {},
    {"num_key_value_heads": None, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
    {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64,
     "rope_theta": 1e6, "use_sliding_window": False, "sliding_window": 32768,
     "max_window_layers": 21, "num_hidden_layers": 24, "intermediate_size": 4864},
    {"use_sliding_window": True},
    {"use_sliding_window": True, "sliding_window": None},
    {"use_sliding_window": True, "max_window_layers": 0, "num_hidden_layers": 5},
]  # fmt: skip


@each("document", DOCUMENTS, ids=str)
@each("name", DENSE)
def test_what_config_json_leaves_out_is_as_transformers_takes_it(
    name: str, document: dict[str, Any]
) -> None:
    known: Any = transformers.AutoConfig.for_model(name, **document)
    ours: Any = from_hugging_face(DENSE[name], document | {"model_type": name}, "here").config
    expected = {
        "vocabulary": known.vocab_size,
        "context": known.max_position_embeddings,
        "hidden": known.hidden_size,
        "layers": known.num_hidden_layers,
        "heads": known.num_attention_heads,
        "kv_heads": known.num_key_value_heads,
        "head_dim": getattr(known, "head_dim", known.hidden_size // known.num_attention_heads),
        "intermediate": known.intermediate_size,
        "norm_epsilon": known.rms_norm_eps,
        "rope_base": known.rope_parameters["rope_theta"],
        "tied": known.tie_word_embeddings,
        "activation": known.hidden_act,
        "attention_bias": getattr(known, "attention_bias", True),
        "qk_norm": "head" if name == "qwen3" else None,
        "sliding_window": known.sliding_window,
    }
    assert {field: getattr(ours, field) for field in expected} == expected
    windows = [ours.window(layer) is not None for layer in range(ours.layers)]
    assert windows == [kind == "sliding_attention" for kind in known.layer_types]
    written = from_hugging_face(DENSE[name], known.to_dict(), "here")
    assert written.config == ours


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"use_sliding_window": 1}, "use_sliding_window` is `1`"),
    ({"use_sliding_window": True, "sliding_window": 0.5}, "sliding_window` is `0.5`"),
    ({"use_sliding_window": True, "max_window_layers": "all"}, "max_window_layers` is `'all'`"),
    ({"use_sliding_window": True, "num_hidden_layers": 10**9}, "num_hidden_layers` is"),
    ({"layer_types": "full_attention"}, "it must be a list with a layer type for each layer"),
    (WINDOWED | {"layer_types": []}, "it must be a list with a layer type for each layer"),
    ({"layer_types": [[]]}, "`layer_types` has a list"),
    (
        {"layer_types": ["sliding_attention"] * 32},
        ("the config states layers with a sliding window, but not the size of the window"),
    ),
    (
        WINDOWED | {"layer_types": MIXED},
        "the model has 32 layers, but the config states attention types for 3 layers",
    ),
]


@each("changes, message", REFUSED)
def test_windows_of_no_sense_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        recognize(weights_of({"a": np.zeros(1, np.float32)}), {"model_type": "qwen2"} | changes)


@each(
    "pattern, message",
    [
        ([True], "the model has 3 layers, but the config states attention types for 1 layer"),
        (7, "it must be a list with true or false for each layer"),
        (["yes"], "has an element that is not true or false"),
    ],
)
def test_flags_of_no_sense_in_gguf_are_refused(pattern: Any, message: str) -> None:
    model = small_models.qwen2(**WINDOWED)
    with pytest.raises(ArchitectureError, match=message):
        in_gguf(model, attention__sliding_window=7, attention__sliding_window_pattern=pattern)


# Qwen3-Next and Qwen3.5: configs, and heads that stand in another order in GGUF.


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
        ({"rope_parameters": ROPE | {"mrope_section": [0, 0, 0]}}, "sections of RoPE are empty"),
        ({"linear_value_head_dim": 64}, "have 128 elements and the values 64"),
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


# Qwen3's mixtures of experts in every form that their checkpoints have, against transformers.


@pytest.fixture(scope="module")
def qwen3moe() -> Any:
    return small_models.qwen3moe()


def test_a_qwen3_with_experts_as_transformers_saves_it(qwen3moe: Any, tmp_path: Path) -> None:
    qwen3moe.save_pretrained(tmp_path)
    found = recognize(open_weights(tmp_path))
    assert found.family.name == "qwen3moe"
    assert found.weights["layers.1.mlp.experts.2.up.weight"].info.shape == (32, 64)
    assert_same(found, qwen3moe)


def test_a_qwen3_with_experts_as_transformers_has_it_in_memory(qwen3moe: Any) -> None:
    assert_same(small_models.checkpoint(qwen3moe), qwen3moe)


def test_a_qwen3_with_experts_in_gguf(qwen3moe: Any, tmp_path: Path) -> None:
    found = recognize(open_weights(small_models.write(tmp_path / "model.gguf", qwen3moe)))
    assert (found.family.name, found.convention) == ("qwen3moe", "gguf")
    assert_same(found, qwen3moe)


@each(
    "variation",
    [
        {"norm_topk_prob": False},
        {"use_sliding_window": True, "sliding_window": 8},
        {"attention_bias": True},
        {"tie_word_embeddings": True},
    ],
    ids=["shares among all", "window", "biases", "tied"],
)
def test_the_variations_of_a_qwen3_with_experts(variation: dict[str, Any]) -> None:
    changed = small_models.qwen3moe(**variation)
    assert_same(small_models.checkpoint(changed), changed)


def recognize_changed(**changes: Any) -> RecognizedModel:
    given = {"num_hidden_layers": 1, "model_type": "qwen3_moe"} | changes
    return recognize(weights_of({"one": np.zeros(1, np.float32)}), given)


@each("name", ["num_experts", "num_local_experts"])
def test_either_name_of_the_number_of_experts_counts(name: str) -> None:
    config: Any = recognize_changed(**{name: 16}).config
    assert config.experts == 16


@each(
    "changes, message",
    [
        ({"mlp_only_layers": [0]}, "`mlp_only_layers` .*some layers have no experts"),
        ({"decoder_sparse_step": 2}, "`decoder_sparse_step` .*some layers have no experts"),
        ({"num_experts_per_tok": 129}, "129 experts per token are not possible with 128 experts"),
    ],
)
def test_a_config_of_other_mixtures_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        recognize_changed(**changes)


def test_a_config_without_layers_that_lack_experts_is_taken() -> None:
    assert recognize_changed(mlp_only_layers=[], decoder_sparse_step=1).config.layers == 1


def test_shares_among_all_experts_cannot_be_said_in_gguf() -> None:
    kept = recognize_changed(norm_topk_prob=True)
    written = to_gguf(kept.family, kept.fields)
    assert written["qwen3moe.expert_count"].content == 128
    assert written["qwen3moe.expert_feed_forward_length"].content == 768
    other = recognize_changed(norm_topk_prob=False)
    with pytest.raises(ArchitectureError, match="`experts_normalized` is `False`"):
        to_gguf(other.family, other.fields)


# Mixtral in every form that its checkpoints have, against transformers.


@pytest.fixture(scope="module")
def mixtral() -> Any:
    return small_models.mixtral()


def test_a_mixtral_as_transformers_saves_it(mixtral: Any, tmp_path: Path) -> None:
    mixtral.save_pretrained(tmp_path)
    found = recognize(open_weights(tmp_path))
    assert found.family.name == "mixtral"
    assert found.weights["layers.1.mlp.experts.2.up.weight"].info.shape == (96, 64)
    assert_same(found, mixtral)


def test_a_mixtral_as_transformers_has_it_in_memory(mixtral: Any) -> None:
    assert_same(small_models.checkpoint(mixtral), mixtral)


@each("is_stacked", [True, False])
def test_a_mixtral_in_gguf_is_a_llama_with_experts(
    is_stacked: bool, mixtral: Any, tmp_path: Path
) -> None:
    path = small_models.write(tmp_path / "model.gguf", mixtral, is_stacked=is_stacked)
    found = recognize(open_weights(path))
    assert (found.family.name, found.convention) == ("mixtral", "gguf")
    assert_same(found, mixtral)


@each(
    "variation",
    [
        {"num_experts_per_tok": 4},
        {"num_local_experts": 1, "num_experts_per_tok": 1},
        {"sliding_window": 8},
        {"tie_word_embeddings": True, "head_dim": 32},
    ],
    ids=["all used", "one", "window", "tied"],
)
def test_the_variations_of_mixtral(variation: dict[str, Any]) -> None:
    changed = small_models.mixtral(**variation)
    assert_same(small_models.checkpoint(changed), changed)


def metadata(**changes: int) -> dict[str, MetadataValue]:
    sizes = {
        "vocab_size": 96, "context_length": 128, "embedding_length": 64, "block_count": 2,
        "attention.head_count": 4, "feed_forward_length": 96,
    }  # fmt: skip
    numbers = {
        f"llama.{name}": MetadataValue("u32", size) for name, size in (sizes | changes).items()
    }
    epsilon = {"llama.attention.layer_norm_rms_epsilon": MetadataValue("f32", 1e-5)}
    return {"general.architecture": MetadataValue("string", "llama")} | numbers | epsilon


def family(**changes: int) -> str:
    # As many tensors as layers may be at least.
    one = WeightData.from_numpy(np.zeros(1, np.float32), "one")
    tensors = {f"tensor {number}": one for number in range(200)}
    return recognize(as_checkpoint(tensors, metadata(**changes))).family.name


def test_a_llama_of_no_experts_is_not_a_mixtral() -> None:
    assert family() == "llama"
    assert family(expert_count=0) == "llama"
    assert family(expert_count=4, expert_used_count=2) == "mixtral"


@each(
    "changes, message",
    [
        ({"expert_count": 4}, r"`llama\.expert_used_count` is missing"),
        (
            {"expert_count": 4, "expert_used_count": 5},
            "5 experts per token are not possible with 4 experts",
        ),
        ({"expert_count": 1025, "expert_used_count": 1}, r"`llama\.expert_count` is `1025`"),
        (
            {"expert_count": 1024, "expert_used_count": 1, "block_count": 129},
            "more than the limit of",
        ),
    ],
)
def test_counts_of_experts_that_cannot_be_are_refused(
    changes: dict[str, int], message: str
) -> None:
    with pytest.raises(ArchitectureError, match=message):
        family(**changes)


@each("count", [3, 5])
def test_stacks_of_more_or_fewer_experts_than_there_are_are_refused(
    count: int, mixtral: Any, tmp_path: Path
) -> None:
    stored = open_weights(small_models.write(tmp_path / "model.gguf", mixtral))
    tensors = {name: node.data() for name, node in stored.items()}
    changed = stored.metadata | {"llama.expert_count": MetadataValue("u32", count)}
    with pytest.raises(ArchitectureError, match=r"ffn_gate_(exps|inp)"):
        build_network(recognize(as_checkpoint(tensors, changed)))


# Phi-3 in either naming convention, against transformers.


SHORT, LONG = [1.0, 1.1, 1.2, 1.3], [2.0, 3.0, 4.0, 5.0]
LONGROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG,
        "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
    },
    "original_max_position_embeddings": 32,
}  # fmt: skip
# What transformers says of every longrope that says no `factor`.


@pytest.mark.filterwarnings("ignore:.*original_max_position_embeddings")
@each(
    "variation",
    [
        {},
        {"tie_word_embeddings": True, "num_key_value_heads": 4},
        {"sliding_window": 7},
        {"partial_rotary_factor": 0.5},
    ],
    ids=["plain", "tied", "window", "partial rotations"],
)
def test_a_phi3_as_transformers_has_it(variation: dict[str, Any]) -> None:
    model = small_models.phi3(**variation)
    assert_same(checkpoint(model), model)


@pytest.fixture(scope="module")
def long_model() -> Any:
    return small_models.phi3(**LONGROPE)


# The last of the lengths that the first factors are for is 32.
@pytest.mark.filterwarnings("ignore:.*original_max_position_embeddings")
@each("length", [20, 32, 33, 64])
def test_the_length_of_a_sequence_decides_between_the_factors(long_model: Any, length: int) -> None:
    assert_same(checkpoint(long_model), long_model, length)


def in_gguf_with_factors(model: Any) -> RecognizedModel:
    found = checkpoint(model)
    given = to_gguf(found.family, found.fields)
    share = given["phi3.rope.scaling.attn_factor"]
    # sqrt(1 + ln(128 / 32) / ln(32)), as llama.cpp's script has it.
    assert share.type == "f32"
    assert share.content == pytest.approx(1.18321596)
    factors = {"short": SHORT, "long": LONG}
    return in_gguf(
        model,
        tensors={
            f"rope_factors_{name}.weight": np.array(values, np.float32)
            for name, values in factors.items()
        },
        attention__sliding_window=0,
        rope__dimension_count=8,
        rope__scaling__original_context_length=32,
        rope__scaling__attn_factor=share.content,
    )


@pytest.mark.filterwarnings("ignore:.*original_max_position_embeddings")
@each("length", [32, 33])
def test_ggufs_factors_are_tensors(long_model: Any, length: int) -> None:
    found = in_gguf_with_factors(long_model)
    assert set(found.weights) >= {"long_rope_factors.weight", "short_rope_factors.weight"}
    assert_same(found, long_model, length)


@pytest.mark.filterwarnings("ignore:.*original_max_position_embeddings")
def test_the_factors_that_gguf_gets_are_those_of_the_config(long_model: Any) -> None:
    config = checkpoint(long_model).config
    made = {line.gguf: line.made(config) for line in PHI.names if line.made is not None}
    assert {name: np.asarray(array).tolist() for name, array in made.items()} == {
        "rope_factors_long": LONG,
        "rope_factors_short": [float(np.float32(factor)) for factor in SHORT],
    }


@pytest.mark.filterwarnings("ignore:.*original_max_position_embeddings")
def test_a_phi3_in_gguf_says_that_it_has_no_window() -> None:
    model = small_models.phi3(partial_rotary_factor=0.5)
    found = checkpoint(model)
    metadata = to_gguf(found.family, found.fields)
    assert metadata["phi3.attention.sliding_window"] == ("u32", 0)
    assert metadata["phi3.rope.dimension_count"] == ("u32", 8)
    crossed = in_gguf(model, attention__sliding_window=0, rope__dimension_count=8)
    assert crossed.config == found.config
    assert_same(crossed, model)
    document = to_hugging_face(crossed.family, crossed.fields, "phi3")
    assert document["architectures"] == ["Phi3ForCausalLM"]
    back: Any = transformers.AutoConfig.for_model(**document)
    assert back.rope_parameters["partial_rotary_factor"] == 0.5
    assert back.sliding_window is None


PHI3: list[dict[str, Any]] = [
    {},
    {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10,
     "num_hidden_layers": 40, "intermediate_size": 17920, "sliding_window": 2047},
    {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 128} | LONGROPE,
    {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 131072,
     "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
     "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*original_max_position_embeddings")
@each("document", PHI3, ids=str)
def test_what_a_phi3_leaves_out_is_as_transformers_takes_it(document: dict[str, Any]) -> None:
    ours: Any = from_hugging_face(PHI, document | {"model_type": "phi3"}, "here").config
    known: Any = transformers.AutoConfig.for_model("phi3", **document)
    head_dim = known.hidden_size // known.num_attention_heads
    rope = known.rope_parameters
    expected = {
        "vocabulary": known.vocab_size,
        "context": known.max_position_embeddings,
        "hidden": known.hidden_size,
        "layers": known.num_hidden_layers,
        "heads": known.num_attention_heads,
        "kv_heads": known.num_key_value_heads,
        "head_dim": head_dim,
        "intermediate": known.intermediate_size,
        "norm_epsilon": known.rms_norm_eps,
        "rope_base": rope["rope_theta"],
        "rope_dimensions": int(head_dim * rope["partial_rotary_factor"]),
        "tied": known.tie_word_embeddings,
        "activation": known.hidden_act,
        "sliding_window": known.sliding_window,
    }
    assert {field: getattr(ours, field) for field in expected} == expected
    if rope["rope_type"] == "longrope":
        scaling = ours.rope_scaling
        assert (list(scaling.short_factors), list(scaling.long_factors)) == (SHORT, LONG)
        assert scaling.original_context == known.original_max_position_embeddings
    assert from_hugging_face(PHI, known.to_dict(), "here").config == ours


@pytest.mark.filterwarnings("ignore:.*original_max_position_embeddings")
def test_factors_for_other_numbers_of_pairs_are_refused() -> None:
    rope = LONGROPE["rope_parameters"] | {"long_factor": [1.0]}
    document = {"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 4}
    with pytest.raises(
        ArchitectureError,
        match="has 4 values in `short_factor` and 1 in `long_factor`, but there are 4 pairs",
    ):
        from_hugging_face(PHI, document | {"rope_parameters": rope}, "here")
