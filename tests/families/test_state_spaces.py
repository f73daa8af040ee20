"""State space models: what config.json may state in several ways, and what llama.cpp lacks."""

from __future__ import annotations

from typing import Any

import pytest

from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.state_space import without_auto
from weightctl.families.written import to_gguf, to_hugging_face
from weightctl.weights.metadata import MetadataValue


def fields_of(name: str, **document: Any) -> dict[str, Any]:
    """Return the fields of a config.json of a family."""
    family = FAMILIES[name].load()
    given = {"model_type": FAMILIES[name].model_types[0], **document}
    return dict(from_hugging_face(family, given, "here").fields)


REFUSED = {
    "a limit of the steps": ("mamba2", {"time_step_limit": [0.001, 0.1]}, "does not limit"),
    "biases of projections": ("mamba", {"use_bias": True}, "no biases in the projections"),
    "no bias of the convolution": ("mamba", {"use_conv_bias": False}, "bias of the convolution"),
    "heads that do not fit": ("mamba2", {"num_heads": 64}, "64 SSM heads of size 64"),
    "heads in uneven groups": ("mamba2", {"n_groups": 3}, "divided evenly among 3 groups"),
    "norms before gates": ("falcon_h1", {"mamba_rms_norm": True}, "before the norm"),
    "four factors": ("falcon_h1", {"ssm_multipliers": [1.0] * 4}, "5 `ssm_multipliers`"),
    "another word": ("nemotron_h", {"layers_block_type": ["conv"]}, "each layer must be one of"),
    "MLPs and experts": (
        "nemotron_h_moe",
        {"hybrid_override_pattern": "M-E"},
        "has `'mlp'`; each layer must be one of",
    ),
    "experts with biases": (
        "nemotron_h_moe",
        {"layers_block_type": ["moe"], "mlp_bias": True},
        "no biases in the experts",
    ),
    "an offset after the period": ("jamba", {"attn_layer_offset": 8}, "less than their period"),
    "numbers that are no layers": ("bamba", {"attn_layer_indices": ["1"]}, "list of layer numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_cpp_or_the_family_lacks_is_refused(case: str) -> None:
    name, document, message = REFUSED[case]
    with pytest.raises(ArchitectureError, match=message):
        fields_of(name, **document)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("mamba", {"expand": 3}),
        ("jamba", {"mamba_expand": 1}),
        ("granitehybrid", {"mamba_expand": 4}),
        ("granitehybrid", {"layer_types": ["attention"] * 32}),
    ],
)
def test_what_llama_cpp_does_not_load_is_not_written(name: str, document: Any) -> None:
    with pytest.raises(ArchitectureError, match=r"llama\.cpp does not load this"):
        to_gguf(FAMILIES[name].load(), fields_of(name, **document))


def test_layers_of_nemotron_h_are_a_pattern_or_words_of_either_version() -> None:
    words = ("linear_attention", "mlp", "full_attention")
    older = ["mamba", "mlp", "attention"]
    for document in (
        {"hybrid_override_pattern": "M-*"},
        {"layers_block_type": list(words)},
        {"layers_block_type": older},
    ):
        assert fields_of("nemotron_h", **document)["layer_words"] == words


def test_layers_of_granite_are_words_of_either_version() -> None:
    for words in (["linear_attention", "full_attention"], ["mamba", "attention"]):
        found = fields_of("granitehybrid", num_hidden_layers=2, layer_types=words)
        assert found["attention_layers"] == (False, True)


def test_a_size_may_be_left_to_the_model() -> None:
    assert without_auto({"mamba_d_head": "auto", "mamba_n_heads": 4}) == {"mamba_n_heads": 4}
    assert fields_of("granitehybrid", mamba_d_head="auto")["ssm_size"] == 64


@pytest.mark.parametrize(
    ("layers", "period", "offset"),
    [((1,), 4, 1), ((0, 2), 2, 0), ((2,), 3, 2), ((), 6, 5)],
)
def test_the_layers_with_attention_in_jamba_become_a_period_and_an_offset(
    layers: tuple[int, ...], period: int, offset: int
) -> None:
    family = FAMILIES["jamba"].load()
    given = fields_of("jamba", num_hidden_layers=5, attn_layer_period=period,
                      attn_layer_offset=offset)  # fmt: skip
    metadata = to_gguf(family, given)
    counts = [8 if number in layers else 0 for number in range(5)]
    if layers == (0, 2):
        counts[4] = 8
    assert metadata["jamba.attention.head_count_kv"] == MetadataValue("array[u32]", counts)
    described = metadata | {"general.architecture": MetadataValue("string", "jamba")}
    back = to_hugging_face(family, from_gguf(family, described, {}, "here").fields, "jamba")
    assert (back["attn_layer_period"], back["attn_layer_offset"]) == (period, offset)


def test_factors_of_a_tied_output_go_into_the_norm_before_it() -> None:
    family = FAMILIES["falcon_h1"].load()
    document = {"model_type": "falcon_h1", "tie_word_embeddings": True,
                "embedding_multiplier": 4.0, "lm_head_multiplier": 0.5}  # fmt: skip
    config = from_hugging_face(family, document, "here").config
    steps = {
        each.module: str(each.change.to_gguf(config))
        for each in family.names
        if each.module in {"embedding", "norm"} and each.change is not None
    }
    assert steps == {"embedding": "times 4", "norm": "times 0.125"}
