"""Recipes of users, from TOML files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from each import each
from weightctl import Plan, WeightData
from weightctl.errors import ConversionError
from weightctl.plan.cast import cast
from weightctl.plan.types import read_recipe
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = {
    "general.architecture": MetadataValue("string", "llama"),
    "llama.block_count": MetadataValue("u32", 1),
}
NAMES = ("output.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight",
         "blk.0.ffn_gate_inp.weight", "blk.0.ffn_norm.weight")  # fmt: skip


def made(folder: Path, text: str, described: dict[str, MetadataValue] | None = LLAMA) -> Plan:
    path = folder / "mine.toml"
    path.write_text(text)
    held = {
        name: WeightData.from_numpy(np.ones(256 if "norm" in name else (4, 256), np.float16), name)
        for name in NAMES
    }
    return cast(Plan.copy(as_checkpoint(held, described), "gguf"), read_recipe(str(path)))


def types(plan: Plan) -> list[str]:
    return [item.info.encoding.name for item in plan.items]


def test_the_first_pattern_found_in_a_name_decides(tmp_path: Path) -> None:
    text = "default = 'q4_k'\n[types]\n'blk.*_down' = 'Q6_K'\n'blk\\.0\\.' = 'Q8_0'\n"
    plan = made(tmp_path, text)
    assert types(plan) == ["Q4_K", "Q8_0", "Q6_K", "F16", "F32"]
    assert [item.line for item in plan.items[:3]] == ["otherwise", r"blk\.0\.", "blk.*_down"]
    assert plan.recipe == "mine.toml"
    assert plan.metadata["general.file_type"] == MetadataValue("u32", 14)


def test_a_base_decides_on_the_rest(tmp_path: Path) -> None:
    plan = made(tmp_path, "base = 'Q4_K_M'\n[types]\nffn_down = 'keep'\n")
    assert types(plan) == ["Q6_K", "Q4_K", "F16", "F16", "F32"]
    assert plan.metadata["general.file_type"] == MetadataValue("u32", 15)


def test_without_a_base_or_a_default_the_rest_stays(tmp_path: Path) -> None:
    plan = made(tmp_path, "[types]\nffn_down = 'Q8_0'\n", described=None)
    assert types(plan) == ["F16", "F16", "Q8_0", "F16", "F16"]


def test_the_file_is_not_an_output(tmp_path: Path) -> None:
    assert made(tmp_path, "default = 'Q8_0'").consulted == {
        str(tmp_path / "mine.toml"): "the recipe"
    }


def test_a_pattern_that_names_no_matrix_is_reported(tmp_path: Path) -> None:
    plan = made(tmp_path, "default = 'Q8_0'\n[types]\nfnn_down = 'Q4_K'\nnorm = 'Q4_K'\n")
    assert [note.rpartition(": ")[2] for note in plan.notes] == [
        "no matrix's name matches `fnn_down`",
        "no matrix's name matches `norm`",
    ]


def test_a_base_needs_names_that_tell_roles(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="needs GGUF's names") as caught:
        made(tmp_path, "base = 'Q6_K'", described=None)
    assert "`default` instead of `base`" in caught.value.hint


@each(
    ("text", "says"),
    [
        ("", "the recipe is empty"),
        ("[types", "is not valid TOML"),
        ("[" * 5000, "is not valid TOML"),
        ("types = 3", "`types` is not a table"),
        ("otherwise = 'Q8_0'", "`otherwise` is not a key"),
        ("base = 'Q4_K_M'\ndefault = 'Q4_K'", "both given"),
        ("base = 'Q4_K'", "which is not a recipe"),
        ("base = 4", "which is not a recipe"),
        ("default = 'Q4_K_M'", "Q4_K_M is a recipe, not a single type"),
        ("[types]\n'attn_v' = 'Q4_K_M'", "Q4_K_M is a recipe, not a single type"),
        ("default = 'nonsense'", "is not a type that weightctl supports"),
        ("default = 'i8'", "I8 cannot be used as the dtype of weights"),
        ("default = 'F4'", "F4 cannot be used as the dtype of weights"),
        ("default = 'F8_E8M0'", "F8_E8M0 cannot be used as the dtype of weights"),
        ("default = 'Q8_K'", "weightctl cannot encode Q8_K"),
        ("[types]\n'(' = 'Q8_0'", "`(` is not a valid regular expression"),
        ("[types]\nblk.0 = 'Q8_0'", "the type of `blk` is not a string"),
        ("#" * (1 << 20) + "##", "too large for a recipe"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_not_a_recipe_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConversionError) as caught:
        made(tmp_path, text)
    assert "mine.toml" in caught.value.message
    assert says in caught.value.message
    assert caught.value.hint


def test_a_byte_order_mark_is_not_a_part_of_a_recipe(tmp_path: Path) -> None:
    assert types(made(tmp_path, "\ufeffdefault = 'Q8_0'"))[0] == "Q8_0"


def test_a_file_with_the_name_of_a_type_is_a_recipe_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "Q8_0"
    path.write_text("base = 'Q4_K_M'\n")
    held = {"lm_head.weight": WeightData.from_numpy(np.ones((4, 256), np.float16), "lm_head")}
    with pytest.raises(ConversionError, match="needs GGUF's names"):
        cast(Plan.copy(as_checkpoint(held), "gguf"), read_recipe(str(path)))


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConversionError, match="is not valid TOML"):
        read_recipe(str(path))
