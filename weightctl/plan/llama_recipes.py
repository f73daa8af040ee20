"""The recipes of llama.cpp's `llama-quantize` (src/llama-quant.cpp)."""

from __future__ import annotations

from weightctl.plan.recipe_lines import Recipe, RecipeLine

_OUTPUT = (RecipeLine("output", "falcon", "Q8_0"), RecipeLine("output", "", "Q6_K"))
# With eight experts, the other tensors of a layer are small, so they get more bits.
_EIGHT = (RecipeLine("attn_v", "8 experts", "Q8_0"), RecipeLine("attn_k", "8 experts", "Q8_0"))
_EIGHT_OUTPUT = RecipeLine("attn_output", "8 experts, not falcon", "Q5_K")
_OUTER = "first and last eighth of the layers"
_THIRDS = "first and last eighth of the layers and every third layer between"


_GROUPED = "4 or more query heads for each KV head"
_EIGHTH = "first eighth of the layers"


def _recipe(name: str, file_type: int, otherwise: str, *lines: RecipeLine) -> Recipe:
    return Recipe(name, otherwise, (*_OUTPUT, *_EIGHT, *lines), file_type)


def _two_bits(
    name: str, file_type: int, otherwise: str, *, wider: str, attn_output: str = ""
) -> Recipe:
    """Return a recipe of up to two bits; sensitive tensors and embeddings get `wider` types."""
    lines = [
        *_SMALL_OUTPUT,
        RecipeLine("token_embd", "", wider),
        RecipeLine("attn_v", _GROUPED, "Q4_K"),
        RecipeLine("attn_v", "4 or more experts", "Q4_K"),
        RecipeLine("attn_v", "", wider),
        RecipeLine("attn_k", "8 experts", "Q4_K"),
        RecipeLine("ffn_down", "first tensors up to an eighth of the layers", wider),
        RecipeLine("attn_output", "8 experts", "Q5_K"),
    ]
    if attn_output:
        lines.append(RecipeLine("attn_output", "", attn_output))
    return Recipe(name, otherwise, tuple(lines), file_type, wants_importance=True)


# The output of recipes with the fewest bits. Q8_0 replaces Q5_K if rows do not divide into blocks.
_SMALL_OUTPUT = (
    RecipeLine("output", "falcon", "Q8_0"),
    RecipeLine("output", "not rows of whole blocks", "Q8_0"),
    RecipeLine("output", "", "Q5_K"),
)

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
    _two_bits("IQ1_S", 24, "IQ1_S", wider="Q2_K", attn_output="IQ2_XXS"),
    _two_bits("IQ1_M", 31, "IQ1_M", wider="Q2_K", attn_output="IQ2_XXS"),
    _two_bits("IQ2_XXS", 19, "IQ2_XXS", wider="Q2_K"),
    _two_bits("IQ2_XS", 20, "IQ2_XS", wider="Q2_K"),
    _two_bits("IQ2_S", 28, "IQ2_XS", wider="IQ3_S", attn_output="IQ3_S"),
    _two_bits("IQ2_M", 29, "IQ2_S", wider="IQ3_S", attn_output="IQ3_S"),
    Recipe(
        "IQ3_XXS", "IQ3_XXS",
        (
            *_SMALL_OUTPUT,
            *_EIGHT,
            RecipeLine("token_embd", "", "IQ3_S"),
            RecipeLine("attn_v", f"70B model, {_GROUPED}", "Q5_K"),
            RecipeLine("attn_v", _GROUPED, "Q4_K"),
            RecipeLine("attn_v", "not with importance matrix", "IQ3_S"),
            RecipeLine("attn_k", "", "IQ2_S"),
            RecipeLine("attn_q", "", "IQ2_S"),
            RecipeLine("ffn_down", f"not with importance matrix, {_EIGHTH}", "Q4_K"),
            RecipeLine("ffn_down", "not with importance matrix", "Q3_K"),
            RecipeLine("attn_output", "falcon", "IQ3_XXS"),
            RecipeLine("attn_output", "8 experts", "Q5_K"),
            RecipeLine("attn_output", "", "IQ3_S"),
        ), 23, wants_importance=True,
    ),
    _recipe(
        "IQ3_XS", 22, "IQ3_S",
        RecipeLine("attn_v", f"70B model, {_GROUPED}", "Q5_K"),
        RecipeLine("attn_v", _GROUPED, "Q4_K"),
        RecipeLine("attn_k", "", "IQ3_XXS"),
        RecipeLine("attn_q", "", "IQ3_XXS"),
        _EIGHT_OUTPUT,
        RecipeLine("ffn_gate", f"not {_OUTER}", "IQ3_XXS"),
        RecipeLine("ffn_up", f"not {_OUTER}", "IQ3_XXS"),
    )._replace(wants_importance=True),
    _recipe(
        "IQ3_S", 26, "IQ3_S",
        RecipeLine("attn_v", f"70B model, {_GROUPED}", "Q5_K"),
        RecipeLine("attn_v", _GROUPED, "Q4_K"),
        _EIGHT_OUTPUT,
    ),
    _recipe(
        "IQ3_M", 27, "IQ3_S",
        RecipeLine("attn_v", "70B model", "Q5_K"),
        RecipeLine("attn_v", "", "Q4_K"),
        RecipeLine("ffn_down", _EIGHTH, "Q4_K"),
        RecipeLine("ffn_down", f"8 experts, {_THIRDS}", "Q4_K"),
        RecipeLine("attn_output", "falcon", "IQ3_S"),
        RecipeLine("attn_output", "8 experts", "Q5_K"),
        RecipeLine("attn_output", "", "Q4_K"),
    ),
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
    _recipe("Q1_0", 40, "Q1_0"),
    _recipe("Q2_0", 41, "Q2_0", RecipeLine("token_embd", "", "Q4_K")),
    Recipe(
        "MXFP4_MOE", "Q8_0",
        (RecipeLine("output", "", "Q8_0"), RecipeLine("", "stacked experts", "MXFP4")), 38,
    ),
)  # fmt: skip

LLAMA_RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _TABLE}
