"""Dense Qwen2 and Qwen3 in either naming convention, against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transformers import AutoConfig

import small_models
from arrays import weights_of
from each import each
from runs import executed
from small_models import checkpoint, in_gguf, logits, tokens_below
from weightctl.errors import ArchitectureError
from weightctl.families import recognize
from weightctl.families.configs import from_hugging_face
from weightctl.families.qwen2 import FAMILY as QWEN2
from weightctl.families.qwen3 import FAMILY as QWEN3
from weightctl.families.written import to_gguf, to_hugging_face
from weightctl.nn.models import build_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.families import RecognizedModel

FAMILIES = {"qwen2": QWEN2, "qwen3": QWEN3}
MAKERS = {"qwen2": small_models.qwen2, "qwen3": small_models.qwen3}
WINDOWED: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 7}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
both = each("make", MAKERS.values(), ids=MAKERS)


def assert_same(found: RecognizedModel, model: Any) -> None:
    """Ask that a checkpoint is whole and says what a model of transformers' does."""
    assert (found.missing, found.unexpected) == ([], [])
    tokens = tokens_below(96, 2, 20)
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
    back: Any = AutoConfig.for_model(**document)
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
@each("name", FAMILIES)
def test_what_config_json_leaves_out_is_as_transformers_takes_it(
    name: str, document: dict[str, Any]
) -> None:
    known: Any = AutoConfig.for_model(name, **document)
    ours: Any = from_hugging_face(FAMILIES[name], document | {"model_type": name}, "here").config
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
    written = from_hugging_face(FAMILIES[name], known.to_dict(), "here")
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
