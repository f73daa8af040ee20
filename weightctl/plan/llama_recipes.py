"""The recipes of llama.cpp's `llama-quantize` (src/llama-quant.cpp)."""

from __future__ import annotations

from weightctl.plan.recipe_lines import Recipe, RecipeLine

__all__ = ["LLAMA_RECIPES"]

_OUTPUT = (RecipeLine("output", "falcon", "Q8_0"), RecipeLine("output", "", "Q6_K"))
# With eight experts, the other tensors of a layer are small, so they get more bits.
_EIGHT = (RecipeLine("attn_v", "8 experts", "Q8_0"), RecipeLine("attn_k", "8 experts", "Q8_0"))
_EIGHT_OUTPUT = RecipeLine("attn_output", "8 experts, not falcon", "Q5_K")
_THIRDS = "first and last eighth of the layers and every third layer between"


def _recipe(name: str, file_type: int, otherwise: str, *lines: RecipeLine) -> Recipe:
    return Recipe(name, otherwise, (*_OUTPUT, *_EIGHT, *lines), file_type)


_TABLE = (
    _recipe(
        "Q4_0", 2, "Q4_0",
        RecipeLine("ffn_down", "with importance matrix, first eighth of the layers", "Q4_1"),
    ),
    _recipe("Q4_1", 3, "Q4_1"),
    _recipe(
        "Q5_0", 8, "Q5_0",
        RecipeLine("ffn_down", "with importance matrix, first eighth of the layers", "Q5_1"),
    ),
    _recipe("Q5_1", 9, "Q5_1"),
    Recipe("Q8_0", "Q8_0", (), 7),
    _recipe(
        "Q2_K", 10, "Q2_K",
        RecipeLine("attn_v", "70B model", "Q5_K"),
        RecipeLine("attn_v", "4 or more query heads for each KV head", "Q4_K"),
        RecipeLine("attn_v", "", "Q3_K"),
        RecipeLine("ffn_down", "", "Q3_K"),
        RecipeLine("attn_output", "falcon", "Q2_K"),
        RecipeLine("attn_output", "8 experts", "Q5_K"),
        RecipeLine("attn_output", "", "Q3_K"),
    ),
    _recipe(
        "Q2_K_S", 21, "Q2_K",
        RecipeLine("attn_v", "70B model, 4 or more query heads for each KV head", "Q5_K"),
        RecipeLine("attn_v", "4 or more query heads for each KV head", "Q4_K"),
        RecipeLine("ffn_down", "first eighth of the layers", "Q4_K"),
    )._replace(wants_importance=True),
    _recipe(
        "Q3_K_S", 11, "Q3_K",
        RecipeLine("attn_v", "70B model", "Q5_K"),
        _EIGHT_OUTPUT,
    ),
    _recipe(
        "Q3_K_M", 12, "Q3_K",
        RecipeLine("attn_v", "70B model", "Q5_K"),
        RecipeLine("attn_v", "first 2 layers", "Q5_K"),
        RecipeLine("attn_v", "", "Q4_K"),
        RecipeLine("ffn_down", "first sixteenth of the layers", "Q5_K"),
        RecipeLine("ffn_down", f"falcon, not {_THIRDS}", "Q3_K"),
        RecipeLine("ffn_down", "", "Q4_K"),
        RecipeLine("attn_output", "falcon", "Q3_K"),
        RecipeLine("attn_output", "8 experts", "Q5_K"),
        RecipeLine("attn_output", "", "Q4_K"),
    ),
    _recipe(
        "Q3_K_L", 13, "Q3_K",
        RecipeLine("attn_v", "", "Q5_K"),
        RecipeLine("ffn_down", "falcon", "Q4_K"),
        RecipeLine("ffn_down", "", "Q5_K"),
        RecipeLine("attn_output", "falcon", "Q4_K"),
        RecipeLine("attn_output", "not 8 experts", "Q5_K"),
    ),
    _recipe(
        "Q4_K_S", 14, "Q4_K",
        RecipeLine("attn_v", "70B model", "Q5_K"),
        RecipeLine("attn_v", "first 4 layers", "Q5_K"),
        RecipeLine("ffn_down", "falcon", "Q4_K"),
        RecipeLine("ffn_down", "first eighth of the layers", "Q5_K"),
        _EIGHT_OUTPUT,
    ),
    _recipe(
        "Q4_K_M", 15, "Q4_K",
        RecipeLine("attn_v", _THIRDS, "Q6_K"),
        RecipeLine("attn_v", "70B model", "Q5_K"),
        RecipeLine("ffn_down", "falcon, first sixteenth of the layers", "Q6_K"),
        RecipeLine("ffn_down", f"falcon, {_THIRDS}", "Q5_K"),
        RecipeLine("ffn_down", "falcon", "Q4_K"),
        RecipeLine("ffn_down", _THIRDS, "Q6_K"),
        _EIGHT_OUTPUT,
    ),
    _recipe("Q5_K_S", 16, "Q5_K"),
    _recipe(
        "Q5_K_M", 17, "Q5_K",
        RecipeLine("attn_v", _THIRDS, "Q6_K"),
        RecipeLine("ffn_down", _THIRDS, "Q6_K"),
    ),
    _recipe("Q6_K", 18, "Q6_K"),
    _recipe(
        "IQ4_NL", 25, "IQ4_NL",
        RecipeLine("attn_v", "4 or more query heads for each KV head", "Q5_K"),
        RecipeLine("ffn_down", "not with importance matrix, first eighth of the layers", "Q5_K"),
        _EIGHT_OUTPUT,
    ),
    _recipe(
        "IQ4_XS", 30, "IQ4_XS",
        RecipeLine("attn_v", "4 or more query heads for each KV head", "Q5_K"),
        RecipeLine("ffn_down", "not with importance matrix, first eighth of the layers", "Q5_K"),
        _EIGHT_OUTPUT,
    ),
    _recipe("TQ1_0", 36, "TQ1_0", RecipeLine("token_embd", "", "Q4_K")),
    _recipe("TQ2_0", 37, "TQ2_0", RecipeLine("token_embd", "", "Q4_K")),
    Recipe(
        "MXFP4_MOE", "Q8_0",
        (RecipeLine("output", "", "Q8_0"), RecipeLine("", "stacked experts", "MXFP4")), 38,
    ),
)  # fmt: skip

LLAMA_RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _TABLE}
