"""llama.cpp's recipes choose the same types as llama-quantize."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from weightctl import Plan, WeightData
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.plan.cast import cast
from weightctl.plan.plan import Item
from weightctl.plan.recipe_lines import LLAMA_RECIPES, RECIPE_TABLE
from weightctl.plan.recipes import CONDITIONS, RecipeChoice, choose
from weightctl.plan.type_rules import TypeRule
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import MetadataValue

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "recipes.json").read_text()
)
# Names in the fixture that are not block types, but those of --dtype.
PLAIN = {"F16": ENCODINGS["F16"], "BF16": ENCODINGS["BF16"]}


def metadata(architecture: str, **counts: Any) -> dict[str, MetadataValue]:
    typed = {
        f"{architecture}.{key}": MetadataValue("f32" if isinstance(count, float) else "u32", count)
        for key, count in counts.items()
    }
    return {"general.architecture": MetadataValue("string", architecture), **typed}


class Shaped(NamedTuple):
    """A model of the fixture: F32 tensors without data, and the types for each recipe."""

    tensors: list[TensorInfo]
    metadata: dict[str, MetadataValue]
    recipes: dict[str, Any]

    @classmethod
    def of(cls, name: str) -> Shaped:
        described = GOLDEN[name]
        infos = [
            TensorInfo(each.format(i=layer), tuple(shape), ENCODINGS["F32"])
            for pattern, shape in described["tensors"].items()
            for each in [pattern.replace("blk.0.", "blk.{i}.")]
            for layer in range(described["metadata"]["block_count"] if "{i}" in each else 1)
        ]
        return cls(
            infos,
            metadata(described["architecture"], **described["metadata"]),
            described["recipes"],
        )

    def plan(self) -> Plan:
        held = as_checkpoint({}, self.metadata)
        return Plan.copy(held, "gguf").with_items(tuple(_item(info) for info in self.tensors))

    def expected(self, recipe: str) -> dict[str, str]:
        described = self.recipes[recipe]
        found = {info.name: described["the rest"] for info in self.tensors}
        for kind, patterns in described["types"].items():
            for pattern, layers in patterns.items():
                found |= {pattern.format(i=layer): kind for layer in layers or [0]}
        return found


def _item(info: TensorInfo) -> Item:
    # The fixture's model stores this tensor as F16; it is not a matrix to quantize, and stays F16.
    kept = info._replace(encoding=ENCODINGS["F16"]) if info.name == "position_embd.weight" else info
    return Item(kept, kept)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_tensor_gets_the_type_that_llama_quantize_gives(name: str) -> None:
    shaped = Shaped.of(name)
    for recipe in shaped.recipes:
        plan = cast(shaped.plan(), PLAIN.get(recipe) or LLAMA_RECIPES[recipe])
        found = {item.info.name: item.info.encoding.name for item in plan.items}
        assert found == shaped.expected(recipe), recipe


def test_the_fixture_has_every_recipe() -> None:
    for described in GOLDEN.values():
        missing = (LLAMA_RECIPES.keys() | PLAIN.keys()) - described["recipes"].keys()
        # llama-quantize has no substitute for Q1_0, and refuses rows of incomplete blocks.
        assert missing <= {"Q1_0"}


def test_every_condition_of_a_recipe_is_one() -> None:
    named = {
        condition.removeprefix("!")
        for recipe in LLAMA_RECIPES.values()
        for line in recipe.lines
        for condition in line.when
    }
    assert named == CONDITIONS.keys() == RECIPE_TABLE["conditions"].keys()


def chosen(
    recipe: str,
    *names: str,
    architecture: str = "llama",
    shape: tuple[int, ...] = (256, 256),
    weighted: bool = False,
    **counts: int,
) -> list[str]:
    infos = [TensorInfo(name, shape, ENCODINGS["F32"]) for name in names]
    described = metadata(architecture, **{"block_count": 32, **counts})
    found = choose(LLAMA_RECIPES[recipe], infos, described, weighted=weighted)
    return [str(found[name].encoding) if name in found else "" for name in names]


def test_an_importance_matrix_changes_the_first_layers() -> None:
    down = ("blk.0.ffn_down.weight", "blk.3.ffn_down.weight", "output.weight")
    assert chosen("Q4_0", *down) == ["Q4_0", "Q4_0", "Q6_K"]
    assert chosen("Q4_0", *down, weighted=True) == ["Q4_1", "Q4_1", "Q6_K"]
    assert chosen("Q5_0", *down, weighted=True) == ["Q5_1", "Q5_1", "Q6_K"]
    assert chosen("IQ4_XS", *down) == ["Q5_K", "Q5_K", "Q6_K"]
    assert chosen("IQ4_XS", *down, weighted=True) == ["IQ4_XS", "IQ4_XS", "Q6_K"]


def test_falcon_has_rules_of_its_own() -> None:
    names = ("output.weight", "blk.0.ffn_down.weight", "blk.1.ffn_down.weight",
             "blk.2.ffn_down.weight", "blk.0.attn_output.weight")  # fmt: skip
    found = [chosen(recipe, *names, architecture="falcon") for recipe in
             ("Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M")]  # fmt: skip
    assert found == [
        ["Q8_0", "Q5_K", "Q5_K", "Q4_K", "Q3_K"],
        ["Q8_0", "Q4_K", "Q4_K", "Q4_K", "Q4_K"],
        ["Q8_0", "Q4_K", "Q4_K", "Q4_K", "Q4_K"],
        ["Q8_0", "Q6_K", "Q6_K", "Q5_K", "Q4_K"],
    ]


def test_experts_have_the_layer_in_their_name_and_others_that_of_their_turn() -> None:
    names = ("output.weight", "blk.20.ffn_down.weight", "blk.21.ffn_down.weight")
    assert chosen("Q4_K_M", *names) == ["Q6_K", "Q6_K", "Q6_K"]
    assert chosen("Q4_K_M", *names, expert_count=4) == ["Q6_K", "Q4_K", "Q6_K"]


def test_layers_are_in_the_order_of_their_numbers() -> None:
    names = [f"blk.{layer}.attn_v.weight" for layer in range(20)]
    early = [name for name, kind in zip(names, chosen("Q4_K_S", *names), strict=True)
             if kind == "Q5_K"]  # fmt: skip
    assert early == names[:4]
    assert chosen("Q4_K_S", *reversed(names))[-4:] == ["Q5_K"] * 4


def test_a_tied_embedding_is_the_output() -> None:
    assert chosen("Q4_K_M", "token_embd.weight") == ["Q6_K"]
    assert chosen("Q4_K_M", "token_embd.weight", "output.weight") == ["Q4_K", "Q6_K"]


def test_stacks_become_mxfp4_but_not_those_of_no_expert() -> None:
    names = ("blk.0.attn_k_b.weight", "blk.0.ffn_up_exps.weight")
    assert chosen("MXFP4_MOE", *names) == ["Q8_0", "Q8_0"]
    stacked = {"shape": (2, 256, 256)}
    assert chosen("MXFP4_MOE", *names, **stacked) == ["MXFP4", "MXFP4"]
    assert chosen("MXFP4_MOE", *names, architecture="bailingmoe3", **stacked) == ["Q8_0", "MXFP4"]
    assert [str(line) for line in LLAMA_RECIPES["MXFP4_MOE"].lines] == ["output", "stacked experts"]


def test_a_part_of_a_model_gets_the_types_of_the_whole() -> None:
    names = [f"blk.{layer}.attn_v.weight" for layer in range(9)]
    whole = small("token_embd.weight", *names, described=metadata("llama"))
    expected = {item.info.name: item.info.encoding for item in
                cast(whole, LLAMA_RECIPES["Q4_K_M"]).items}  # fmt: skip
    assert len(set(expected.values())) == 2
    for name, encoding in expected.items():
        (item,) = cast(whole.only([name]), LLAMA_RECIPES["Q4_K_M"]).items
        assert item.info.encoding == encoding, name


def test_a_part_without_roles_is_still_of_a_model_that_has_them() -> None:
    plan = cast(small(*GGUF, described=metadata("llama")).only(GGUF[1:2]), LLAMA_RECIPES["Q4_K_M"])
    assert [item.info.encoding.name for item in plan.items] == ["F32"]


def test_a_choice_names_its_line() -> None:
    infos = [TensorInfo(name, (256, 256), ENCODINGS["F32"])
             for name in ("blk.0.attn_v.weight", "blk.0.attn_q.weight")]  # fmt: skip
    found = choose(LLAMA_RECIPES["Q4_K_S"], infos, metadata("llama"))
    assert found == {
        "blk.0.attn_v.weight": RecipeChoice(ENCODINGS["Q5_K"], "attn_v: first 4 layers"),
        "blk.0.attn_q.weight": RecipeChoice(ENCODINGS["Q4_K"], "otherwise"),
    }


def small(*names: str, described: dict[str, MetadataValue] | None = None) -> Plan:
    shapes = {name: 256 if "norm" in name else (4, 256) for name in names}
    held = {
        name: WeightData.from_numpy(np.ones(shape, np.float16), name)
        for name, shape in shapes.items()
    }
    return Plan.copy(as_checkpoint(held, described), "gguf")


GGUF = ("output.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight")


def test_rules_win_over_a_recipe_and_leave_its_number() -> None:
    plan = cast(
        small(*GGUF, described=metadata("llama")),
        LLAMA_RECIPES["Q4_K_M"],
        [TypeRule(re.compile("attn_k"), ENCODINGS["Q8_0"]), TypeRule(re.compile("attn_q"), None)],
    )
    assert [item.info.encoding.name for item in plan.items] == ["Q6_K", "F32", "F16", "Q8_0"]
    lines = [item.line for item in plan.items]
    assert lines == ["output", "", "--tensor-type attn_q", "--tensor-type attn_k"]
    assert plan.recipe == "Q4_K_M"
    assert plan.metadata["general.file_type"] == MetadataValue("u32", 15)
    assert plan.metadata["general.quantization_version"] == MetadataValue("u32", 2)


def test_a_substitute_in_a_recipe_can_be_refused() -> None:
    described = Shaped.of("llama 30 layers, tied, rows of 576 (SmolLM2 shape)")
    with pytest.raises(ConversionError, match="181 tensors cannot have the requested type"):
        cast(described.plan(), LLAMA_RECIPES["Q4_K_M"], fallback=False)


def test_without_importance_a_recipe_that_wants_it_says_so() -> None:
    plan = small(*GGUF, described=metadata("llama"))
    assert "importance matrix" in cast(plan, LLAMA_RECIPES["Q2_K_S"]).notes[0]
    assert not cast(plan, LLAMA_RECIPES["Q2_K_S"], weighted=True).notes


def test_without_importance_the_types_that_need_it_are_refused() -> None:
    plan = cast(small(*GGUF, described=metadata("llama")), LLAMA_RECIPES["IQ2_XXS"])
    assert "importance matrix" in plan.notes[0]
    with pytest.raises(ConversionError, match=r"attn_k\.weight` would be IQ2_XXS, which") as caught:
        plan.layouts()
    assert "use --imatrix FILE" in caught.value.hint


def test_recipes_that_only_want_importance_work_without_it() -> None:
    plan = cast(small(*GGUF, described=metadata("llama")), LLAMA_RECIPES["IQ2_M"])
    assert "IQ2_M loses much precision without an importance matrix" in plan.notes[0]
    assert plan.layouts()


@pytest.mark.parametrize("described", [None, metadata("llama")], ids=["bare", "llama"])
def test_a_mixture_needs_names_that_tell_roles(described: dict[str, MetadataValue] | None) -> None:
    plan = small("model.embed_tokens.weight", "lm_head.weight", described=described)
    with pytest.raises(ConversionError, match="Q4_K_M needs GGUF's names") as caught:
        cast(plan, LLAMA_RECIPES["Q4_K_M"])
    assert "use --quant Q4_K (quant in Python)" in caught.value.hint


def test_a_recipe_with_the_name_of_a_type_is_that_type_under_other_names() -> None:
    plan = cast(small("model.embed_tokens.weight", "lm_head.weight"), LLAMA_RECIPES["Q6_K"])
    assert [item.info.encoding.name for item in plan.items] == ["Q6_K", "Q6_K"]
    assert plan.recipe == ""
    assert plan.notes == (
        "every matrix becomes Q6_K: llama.cpp's recipe of that name needs GGUF's names and "  # noqa: ISC004
        "metadata, which this model does not have",
    )


def test_q8_0_is_the_same_under_all_names() -> None:
    assert not cast(small("lm_head.weight"), LLAMA_RECIPES["Q8_0"]).notes
