"""The encoding of each tensor: one for all tensors, and rules for some."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from weightctl import Plan, WeightData, Weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.plan.cast import cast
from weightctl.plan.plan import Item
from weightctl.plan.type_rules import TypeRule
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue

LLAMA = {"general.architecture": MetadataValue("string", "llama")}
SHAPES = {
    "embed.weight": (256, 256),
    "blk.0.attn_norm.weight": (256,),
    "blk.0.router.weight": (8, 256),
    "blk.0.ffn_down.weight": (256, 256),
    "blk.1.ffn_down.weight": (256, 96),
    "positions": (256,),
}


def weights(metadata: dict[str, MetadataValue] | None = None) -> Weights:
    dtypes = {"positions": np.int64}
    return as_checkpoint(
        {
            name: WeightData.from_numpy(np.ones(shape, dtypes.get(name, np.float16)), name)
            for name, shape in SHAPES.items()
        },
        metadata,
    )


def encodings(
    *rules: str, default: str | None = None, metadata: dict[str, MetadataValue] | None = None
) -> list[str]:
    parsed = [rule.split("=") for rule in rules]
    plan = cast(
        Plan.copy(weights(metadata), "gguf"),
        ENCODINGS[default] if default else None,
        [TypeRule(re.compile(name), ENCODINGS.get(encoding)) for name, encoding in parsed],
    )
    return [item.info.encoding.name for item in plan.items]


def test_without_a_rule_or_a_default_nothing_changes() -> None:
    assert encodings() == ["F16", "F16", "F16", "F16", "F16", "I64"]


def test_a_rule_is_for_the_names_in_which_it_is_found() -> None:
    assert encodings("down=Q8_0") == ["F16", "F16", "F16", "Q8_0", "Q8_0", "I64"]
    assert encodings("^blk=BF16") == ["F16", "BF16", "BF16", "BF16", "BF16", "I64"]


def test_the_first_rule_that_fits_wins() -> None:
    found = encodings(r"blk\.0\.ffn=Q5_0", "ffn=Q8_0", "embed=keep", default="Q4_K")
    assert found == ["F16", "F16", "F16", "Q5_0", "Q8_0", "I64"]


def test_what_no_rule_names_gets_the_default() -> None:
    found = encodings("embed=Q8_0", default="Q4_K")
    assert found == ["Q8_0", "F16", "F16", "Q4_K", "Q5_0", "I64"]


def test_a_rule_may_ask_for_what_a_default_leaves() -> None:
    assert encodings("router=Q8_0")[2] == "Q8_0"
    assert encodings("norm=BF16", metadata=LLAMA)[1] == "BF16"


def test_vectors_have_no_blocks_whatever_a_rule_says() -> None:
    assert encodings(".=Q8_0") == ["Q8_0", "F16", "Q8_0", "Q8_0", "Q8_0", "I64"]
    assert encodings(".=Q8_0", metadata=LLAMA)[1] == "F32"


def test_a_rule_that_does_not_fit_takes_the_substitute_and_says_so() -> None:
    plan = cast(
        Plan.copy(weights(), "gguf"), None, [TypeRule(re.compile("down"), ENCODINGS["Q4_K"])]
    )
    assert [item.asked for item in plan.items] == [None, None, None, None, "Q4_K", None]
    with pytest.raises(ConversionError, match=", 96, is not a multiple of the Q4_K block size"):
        cast(plan, None, [TypeRule(re.compile("down"), ENCODINGS["Q4_K"])], fallback=False)


def test_a_rule_that_names_nothing_is_refused() -> None:
    with pytest.raises(ConversionError, match="no tensor's name matches `dwon`") as caught:
        encodings("dwon=Q8_0")
    assert caught.value.hint


def test_buffers_stay_unless_a_rule_names_them() -> None:
    names = ("layers.0.rotary_emb.inv_freq", "norm.running_mean", "norm.bias")
    held = {name: WeightData.from_numpy(np.ones(8, np.float32), name) for name in names}
    plan = Plan.copy(as_checkpoint(held), "safetensors")
    found = [item.info.encoding.name for item in cast(plan, ENCODINGS["F16"]).items]
    assert found == ["F32", "F32", "F16"]
    ruled = cast(plan, None, [TypeRule(re.compile("inv_freq"), ENCODINGS["F16"])])
    assert ruled.items[0].info.encoding.name == "F16"


def test_the_file_type_is_that_of_most_numbers() -> None:
    plan = Plan.copy(weights(LLAMA), "gguf")
    assert "general.file_type" not in cast(plan, None).metadata
    mixed = cast(plan, None, [TypeRule(re.compile("weight"), ENCODINGS["Q8_0"])])
    assert mixed.metadata["general.file_type"] == MetadataValue("u32", 7)
    assert mixed.metadata["general.quantization_version"] == MetadataValue("u32", 2)


# 8-bit floats without scales

MODEL = {
    "model.embed_tokens.weight": (32, 16),
    "model.layers.0.input_layernorm.weight": (16,),
    "model.layers.0.mlp.gate.weight": (8, 16),
    "model.layers.0.mlp.experts.gate_up_proj": (8, 32, 16),
    "model.layers.0.mlp.experts.gate_up_proj_bias": (8, 32),
    "model.layers.0.self_attn.q_proj.weight": (16, 16),
    "model.layers.0.self_attn.q_proj.bias": (16,),
    "lm_head.weight": (32, 16),
}
PROJECTIONS = ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.self_attn.q_proj.weight"]


def plan_of_model(dtype: type = np.float16) -> Plan:
    arrays = {name: np.ones(shape, dtype) for name, shape in MODEL.items()}
    return Plan.copy(arrays, "safetensors")


@pytest.mark.parametrize("target", ["F8_E4M3", "F8_E5M2"])
def test_small_floats_are_for_the_matrices_of_layers_alone(target: str) -> None:
    plan = cast(plan_of_model(), target)
    small = [item.info.name for item in plan.items if item.info.encoding.name == target]
    assert small == PROJECTIONS
    assert {item.info.encoding.name for item in plan.items} == {target, "F16"}


def test_a_rule_gives_a_small_float_to_anything() -> None:
    plan = cast(plan_of_model(), "F8_E4M3", {".": "F8_E4M3"})
    assert {item.info.encoding.name for item in plan.items} == {"F8_E4M3"}


def test_a_note_says_that_small_floats_have_no_scales() -> None:
    unscaled, wide = cast(plan_of_model(), "F8_E4M3").notes
    assert unscaled.startswith("2 tensors become F8_E4M3 without scales")
    assert wide.startswith("norms, biases, routers, embeddings, the output projection and")
    assert "keep a wider type (6 tensors)" in wide
    assert "--tensor-type 'REGEX=f8_e4m3'" in wide
    (note,) = cast(plan_of_model(), None, {"q_proj.weight": "F8_E5M2"}).notes[:1]
    assert note.startswith("1 tensor becomes F8_E5M2 without scales")
    assert not cast(plan_of_model(), "BF16").notes


def test_blocks_around_small_floats_become_bf16() -> None:
    arrays = {
        "token_embd.weight": np.ones((32, 32), np.float32),
        "blk.0.ffn_up.weight": np.ones((32, 32), np.float32),
    }
    plan = cast(Plan.copy(arrays, "gguf"), None, {".": "Q8_0"})
    blocks = replace(
        plan, format="safetensors", items=tuple(Item(i.info, i.info) for i in plan.items)
    )
    made = cast(blocks, "F8_E4M3", requantize=True)
    assert [item.info.encoding.name for item in made.items] == ["BF16", "F8_E4M3"]
