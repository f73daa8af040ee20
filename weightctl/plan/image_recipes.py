"""Recipes for diffusion transformers: those of ComfyUI-GGUF's patch of llama-quantize.

Source: `tools/lcpp.patch` of city96/ComfyUI-GGUF. It never quantizes the tensors that embed the
inputs or make the outputs, nor tensors of more than two dimensions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from weightctl.families.diffusion import DIFFUSION_FAMILIES
from weightctl.families.model import ARCHITECTURE
from weightctl.plan.recipe_lines import Recipe, RecipeLine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.dtype import Encoding
    from weightctl.weights.metadata import MetadataValue

# By their original names: projections to values, fused ones, and the second matrices of MLPs.
_VALUES = re.compile(r"\.(to_)?v\.weight$")
# The value projections of the first layer, and of the first two. The patch counts projections.
_FIRST_VALUES = re.compile(r"\.0\.(self|cross)_attn\.v\.weight$")
_FIRST_FOUR_VALUES = re.compile(r"\.[01]\.(self|cross)_attn\.v\.weight$")
_FUSED = re.compile(r"attn\.qkv\.weight$")
_DOWN = re.compile(r"\.(ffn|ff\.net)\.2\.weight$")

# The lines by the name of the recipe; their other matrices have the type of llama.cpp's recipe.
_LINES: dict[str, tuple[tuple[re.Pattern[str], str], ...]] = {
    "Q4_0": ((_DOWN, "Q4_1"),),
    "Q5_0": ((_DOWN, "Q5_1"),),
    "Q2_K": ((_VALUES, "Q3_K"),),
    "Q3_K_M": ((_FIRST_VALUES, "Q5_K"), (_VALUES, "Q4_K"), (_FUSED, "Q4_K"), (_DOWN, "Q4_K")),
    "Q3_K_L": ((_VALUES, "Q5_K"), (_FUSED, "Q4_K"), (_DOWN, "Q5_K")),
    "Q4_K_S": ((_FIRST_FOUR_VALUES, "Q5_K"), (_DOWN, "Q5_K")),
    "Q4_K_M": ((_VALUES, "Q6_K"), (_FUSED, "Q5_K"), (_DOWN, "Q6_K")),
    "Q5_K_M": ((_VALUES, "Q6_K"), (_FUSED, "Q6_K"), (_DOWN, "Q6_K")),
}


def adapt_to_images(
    target: Recipe | Encoding, metadata: Mapping[str, MetadataValue]
) -> Recipe | Encoding:
    """Return the recipe for a diffusion transformer that has the name of another recipe or a type.

    Types without blocks, recipes of files, and those for other models do not change.
    """
    stated = metadata.get(ARCHITECTURE)
    if stated is None or stated.content not in DIFFUSION_FAMILIES:
        return target
    kept = DIFFUSION_FAMILIES[str(stated.content)].kept
    first = RecipeLine(re.compile(kept), "", None)
    if isinstance(target, Recipe):
        if target.path:
            return target
        lines = [RecipeLine(pattern, "", name) for pattern, name in _LINES.get(target.name, ())]
        return target._replace(lines=(first, *lines))
    if target.quantization is None:
        return target
    return Recipe(target.name, target.name, (first,), target.file_type)
