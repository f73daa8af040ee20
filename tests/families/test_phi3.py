"""Phi-3 in either naming convention, against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transformers import AutoConfig

import small_models
from each import each
from runs import executed
from small_models import checkpoint, in_gguf, logits, tokens_below
from weightctl.errors import ArchitectureError
from weightctl.families.configs import from_hugging_face
from weightctl.families.phi3 import FAMILY
from weightctl.families.written import to_gguf, to_hugging_face
from weightctl.nn.models import build_network

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel

SHORT, LONG = [1.0, 1.1, 1.2, 1.3], [2.0, 3.0, 4.0, 5.0]
LONGROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG,
        "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
    },
    "original_max_position_embeddings": 32,
}  # fmt: skip
# What transformers says of every longrope that says no `factor`.
pytestmark = pytest.mark.filterwarnings("ignore:.*original_max_position_embeddings")


def assert_same(found: RecognizedModel, model: Any, length: int = 20) -> None:
    """Ask that a checkpoint is whole and says what a model of transformers' does."""
    assert (found.missing, found.unexpected) == ([], [])
    tokens = tokens_below(96, 2, length)
    (ours,) = executed(build_network(found).graph(), tokens, weights=found.weights)
    assert np.abs(ours - logits(model, tokens)).max() < 1e-4


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


@each("length", [32, 33])
def test_ggufs_factors_are_tensors(long_model: Any, length: int) -> None:
    found = in_gguf_with_factors(long_model)
    assert set(found.weights) >= {"long_rope_factors.weight", "short_rope_factors.weight"}
    assert_same(found, long_model, length)


def test_the_factors_that_gguf_gets_are_those_of_the_config(long_model: Any) -> None:
    config = checkpoint(long_model).config
    made = {line.gguf: line.made(config) for line in FAMILY.names if line.made is not None}
    assert {name: np.asarray(array).tolist() for name, array in made.items()} == {
        "rope_factors_long": LONG,
        "rope_factors_short": [float(np.float32(factor)) for factor in SHORT],
    }


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
    back: Any = AutoConfig.for_model(**document)
    assert back.rope_parameters["partial_rotary_factor"] == 0.5
    assert back.sliding_window is None


DOCUMENTS: list[dict[str, Any]] = [
    {},
    {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10,
     "num_hidden_layers": 40, "intermediate_size": 17920, "sliding_window": 2047},
    {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 128} | LONGROPE,
    {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 131072,
     "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
     "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}},
]  # fmt: skip


@each("document", DOCUMENTS, ids=str)
def test_what_a_phi3_leaves_out_is_as_transformers_takes_it(document: dict[str, Any]) -> None:
    ours: Any = from_hugging_face(FAMILY, document | {"model_type": "phi3"}, "here").config
    known: Any = AutoConfig.for_model("phi3", **document)
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
    assert from_hugging_face(FAMILY, known.to_dict(), "here").config == ours


def test_factors_for_other_numbers_of_pairs_are_refused() -> None:
    rope = LONGROPE["rope_parameters"] | {"long_factor": [1.0]}
    document = {"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 4}
    with pytest.raises(
        ArchitectureError,
        match="has 4 values in `short_factor` and 1 in `long_factor`, but there are 4 pairs",
    ):
        from_hugging_face(FAMILY, document | {"rope_parameters": rope}, "here")
