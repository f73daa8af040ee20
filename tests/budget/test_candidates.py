"""Which tensors a budget chooses types for, which types they can get, and on what text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from weightctl.budget.search import QuantizationBudget, list_candidates
from weightctl.budget.type_search import make_calibration
from weightctl.calibrate.chunks import read_texts
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.plan.recipe_lines import Recipe
from weightctl.verify import Subject
from weightctl.verify.run.prompt import TEXT
from weightctl.write.convert import convert

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.plan.plan import Plan

TYPES = QuantizationBudget(bits=4).encodings


def plan_rows(columns: int, **options: object) -> Plan:
    """Return the plan of one matrix and one norm."""
    arrays = {
        "blk.0.ffn_up.weight": np.zeros((4, columns), np.float32),
        "blk.0.ffn_norm.weight": np.zeros(columns, np.float32),
    }
    recipe = Recipe("budget", "Q4_K", ())
    return convert(arrays, "out.gguf", quant=recipe, dry_run=True, **options).plan  # type: ignore[arg-type]


def names_of(plan: Plan, *in_place: str) -> list[str]:
    ((_, found),) = list_candidates(plan, TYPES, [ENCODINGS[name] for name in in_place])
    return [kind.name for kind in found]


def test_rows_of_whole_blocks_get_the_types_themselves() -> None:
    wanted = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0"]
    assert names_of(plan_rows(512), "IQ4_NL", "Q4_1") == wanted


def test_other_rows_get_types_with_smaller_blocks() -> None:
    assert names_of(plan_rows(576), "IQ4_NL", "Q4_1") == ["IQ4_NL", "Q4_1", "Q8_0"]
    # Types that the user lists are replaced as llama.cpp replaces them.
    assert names_of(plan_rows(576)) == ["Q4_0", "Q5_0", "Q5_1", "Q8_0"]
    assert names_of(plan_rows(40), "IQ4_NL") == ["F16"]


def test_a_plan_without_a_matrix_to_quantize_is_refused() -> None:
    with pytest.raises(ConversionError, match="no tensor can be quantized") as caught:
        names_of(plan_rows(512, exclude="*ffn_up*"))
    assert caught.value.hint
    with pytest.raises(ConversionError, match="chooses the type of every matrix, for example of"):
        names_of(plan_rows(512, tensor_types={"ffn_up": "f16"}))


@pytest.mark.parametrize("name", ["keep", "F8_E4M3"])
def test_a_type_that_gguf_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(ConversionError, match=f"`{name}` of --types is not a type that GGUF can"):
        QuantizationBudget(size="2MB", types=["Q4_K", name]).encodings  # noqa: B018


def test_the_built_in_texts_share_no_sentence(tiny_llama: Path) -> None:
    found = make_calibration(Subject(tiny_llama))
    assert (found.count, found.notes) == (1024, ())
    both = (read_texts(())[0].content, TEXT)
    one, two = (
        {" ".join(each.split()).lower() for each in re.split(r"[.!?\n]", text)} for text in both
    )
    assert not {each for each in one & two if len(each) > 20}
